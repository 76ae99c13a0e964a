use super::*;
use rockmill_io::{ManualClock, MemFileSystem, PosixFileSystem, WritableFile, WriteOptions};
use std::path::PathBuf;
use std::time::Duration;

const MIB: usize = 1 << 20;

struct World {
    rings: Arc<Rings>,
    clock: ManualClock,
    fs: Arc<dyn FileSystem>,
    limits: BatchLimits,
}

impl World {
    fn over(fs: Arc<dyn FileSystem>) -> Self {
        let limits = BatchLimits { memory_bytes: 8 * MIB, huge_pages: false, ..BatchLimits::default() };
        Self { rings: Arc::default(), clock: ManualClock::new(0), fs, limits }
    }

    fn lend(&self, memory: usize) -> LentRing {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        self.rings.lend(&self.fs, &clock, &self.limits, memory).unwrap()
    }

    /// Rings made so far, rings kept, and the memory of all in MiB.
    fn counts(&self) -> (u64, usize, usize) {
        (self.rings.made(), self.rings.state.lock().idle.len(), self.rings.memory_bytes() / MIB)
    }
}

/// On disk, if rings are available, and in memory.
fn worlds() -> Vec<(World, PathBuf, Option<tempfile::TempDir>)> {
    let memory: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    memory.create_dir(&PathBuf::from("/db"), true).unwrap();
    let mut worlds = vec![(World::over(memory), PathBuf::from("/db"), None)];
    let disk = PosixFileSystem::default();
    let probe = disk.batch_probe();
    if probe.available {
        let dir = tempfile::tempdir().unwrap();
        worlds.push((World::over(Arc::new(disk)), dir.path().to_owned(), Some(dir)));
    } else {
        rockmill_skip::skip("rings on the disk", &rockmill_skip::Needs::Uring.because(probe.reason));
    }
    worlds
}

#[test]
fn rings_are_kept_from_job_to_job_and_from_thread_to_thread() {
    for (world, dir, _kept) in worlds() {
        let job = |ring: &LentRing, name: &str| {
            let mut out = ring.create(&*world.fs, &dir.join(name), WriteOptions::default()).unwrap();
            out.append(name.as_bytes()).unwrap();
            out.sync().unwrap();
            out.close().unwrap();
            assert_eq!(world.fs.read_to_vec(&dir.join(name)).unwrap(), name.as_bytes());
        };
        job(&world.lend(MIB), "a");
        assert_eq!(world.counts(), (1, 1, 1));
        std::thread::scope(|scope| {
            for name in ["b", "c", "d"] {
                scope.spawn(|| job(&world.lend(MIB), name)).join().unwrap();
            }
        });
        assert_eq!(world.counts(), (1, 1, 1));
        // Two at once, then one that needs more memory: it gets the larger of the two kept.
        let (one, two) = (world.lend(MIB), world.lend(3 * MIB));
        assert_eq!(world.counts(), (2, 0, 4));
        drop((one, two));
        job(&world.lend(5 * MIB), "e");
        assert_eq!(world.counts(), (2, 2, 6));
        // Never more than the limit.
        job(&world.lend(500 * MIB), "f");
        assert_eq!(world.counts(), (2, 2, 9));
    }
}

#[test]
fn rings_go_after_a_while_with_other_options_and_when_the_database_closes() {
    for (mut world, ..) in worlds() {
        drop((world.lend(MIB), world.lend(2 * MIB)));
        assert_eq!(world.counts(), (2, 2, 3));
        world.clock.advance(Duration::from_nanos(IDLE_NANOS - 1));
        drop(world.lend(2 * MIB));
        world.rings.trim(&world.clock);
        assert_eq!(world.counts(), (2, 2, 3));
        world.clock.advance(Duration::from_nanos(1));
        world.rings.trim(&world.clock);
        assert_eq!(world.counts(), (2, 1, 2), "what was used just before stays");
        world.limits.memory_bytes = 4 * MIB;
        let lent = world.lend(MIB);
        assert_eq!(world.counts(), (3, 0, 1), "the one of other options went");
        drop(lent);
        let lent = world.lend(MIB);
        world.rings.close();
        assert_eq!(world.counts(), (3, 0, 1));
        drop(lent);
        assert_eq!(world.counts(), (3, 0, 0));
        drop(world.lend(MIB));
        assert_eq!(world.counts(), (4, 0, 0), "a job that ends after the database was closed");
    }
}

#[test]
fn a_ring_that_a_job_left_in_use_is_not_kept() {
    for (world, dir, _kept) in worlds() {
        let lent = world.lend(4 * MIB);
        let mut left = lent.create(&*world.fs, &dir.join("left"), WriteOptions::default()).unwrap();
        left.append(b"some").unwrap();
        drop(lent);
        assert_eq!(world.counts(), (1, 0, 0));
        let other = world.lend(MIB);
        assert_eq!(world.counts(), (2, 0, 1));
        drop((left, other));
        assert_eq!(world.counts(), (2, 1, 1));
    }
}

#[test]
fn refusal_is_told_and_nothing_is_counted() {
    let fs = MemFileSystem::new();
    let world = World::over(Arc::new(fs.clone()));
    fs.refuse_rings(Some("not today"));
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let e = world.rings.lend(&world.fs, &clock, &world.limits, MIB).unwrap_err();
    assert!(e.to_string().contains("not today"), "{e}");
    assert_eq!(world.counts(), (0, 0, 0));
}

#[test]
fn many_threads_that_look_up_have_only_so_many_rings() {
    for (world, ..) in worlds() {
        let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
        let lookups = LookupRings::default();
        let lend = || lookups.lend(&world.fs, &clock);
        let mut lent: Vec<_> = (0..LOOKUP_RINGS_MAX).map(|_| lend().expect("a ring")).collect();
        assert!(lend().is_none(), "{} bytes", lookups.memory_bytes());
        lent.pop();
        let again = lend().expect("one was given back, and none was refused");
        assert!(lend().is_none());
        drop((again, lent));
        assert!(lend().is_some());
    }
}

/// By default a stream leaves a part of the ring to a writer.
#[test]
fn lookups_read_with_all_of_their_ring() {
    use rockmill_io::ring::{ReadOptions, ReadPlan, Span};
    const SPAN: u32 = 64 << 10;
    for (world, dir, _kept) in worlds() {
        let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
        let path = dir.join("blocks");
        world.fs.write_all(&path, &vec![7; 64 * SPAN as usize]).unwrap();
        let file = world.fs.open_random(&path, true).unwrap();
        let lookups = LookupRings::default();
        let depth = |memory_bytes| {
            let ring = lookups.lend(&world.fs, &clock).expect("a ring");
            let mut plan = ReadPlan::new();
            let number = plan.add_file(Arc::clone(&file), &path);
            let span = |i| Span { file: number, offset: i * u64::from(SPAN), len: SPAN };
            let run = plan.add_run((0..64).map(span).collect());
            let mut stream = ring.read(plan, ReadOptions { depth: 64, memory_bytes, throttle: None }).unwrap();
            let depth = stream.depth();
            while stream.next(run).unwrap().is_some() {}
            depth
        };
        let (all, part) = (depth(LOOKUP_MEMORY), depth(0));
        assert!(all >= 24 && part <= all / 2 + 1, "{all} and {part} reads in flight");
    }
}
