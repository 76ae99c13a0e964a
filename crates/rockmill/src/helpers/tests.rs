use std::time::Duration;

use super::*;
use crate::error::Error;
use crate::sync::atomic::AtomicBool;

/// A piece of work that records its execution, fails, panics, or waits to be released.
struct Step {
    number: u64,
    result: u64,
    kind: Kind,
}

enum Kind {
    Plain,
    Fails,
    Panics,
    /// Until this is set.
    Waits(Arc<AtomicBool>, Arc<AtomicBool>),
}

impl Piece for Step {
    fn run(&mut self) -> Result<()> {
        match &self.kind {
            Kind::Plain => self.result = self.number * self.number,
            Kind::Fails => return Err(Error::corruption(format!("piece {} is bad", self.number))),
            Kind::Panics => panic!("piece {} panics", self.number),
            Kind::Waits(begun, go) => {
                begun.store(true, Ordering::SeqCst);
                until(|| go.load(Ordering::SeqCst));
                self.result = self.number;
            }
        }
        Ok(())
    }
}

fn plain(number: u64) -> Step {
    Step { number, result: 0, kind: Kind::Plain }
}

fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not come");
}

/// A piece that a helper has begun and that waits to be released.
fn begun_by_a_helper(ahead: &mut Ahead<Step>) -> Arc<AtomicBool> {
    let (begun, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    ahead.push(Step { number: 0, result: 0, kind: Kind::Waits(Arc::clone(&begun), Arc::clone(&go)) });
    until(|| begun.load(Ordering::SeqCst));
    go
}

#[test]
fn pieces_come_back_in_order_whoever_does_them() {
    let helpers = Arc::new(Helpers::default());
    for threads in [1, 3] {
        let mut ahead = Ahead::new(&helpers.help(threads).unwrap());
        let mut next = 0;
        let mut check = |step: Result<Step>| {
            let step = step.unwrap();
            assert_eq!((step.number, step.result), (next, next * next));
            next += 1;
        };
        for i in 0..2000 {
            ahead.push(plain(i));
            if i % 3 == 0 {
                std::thread::yield_now();
            }
            while let Some(step) = if ahead.len() > 8 { ahead.take() } else { ahead.take_done() } {
                check(step);
            }
        }
        while let Some(step) = ahead.take() {
            check(step);
        }
        assert_eq!(next, 2000);
    }
    // On a busy machine, the owner may have done them all. Pieces that it does not ask for are done by a helper.
    let mut ahead = Ahead::new(&helpers.help(1).unwrap());
    ahead.push(plain(3));
    until(|| helpers.done() > 0);
    assert_eq!(ahead.take().unwrap().unwrap().result, 9);
    assert!(helpers.threads.lock().len() <= 3);
    assert!(helpers.help(0).is_none());
}

#[test]
fn a_failure_and_a_panic_are_told_where_the_piece_comes_back() {
    let helpers = Arc::new(Helpers::default());
    let mut ahead = Ahead::new(&helpers.help(1).unwrap());
    // The helper does both, because the owner does not ask before they are done.
    for kind in [Kind::Fails, Kind::Panics] {
        ahead.push(Step { number: 7, result: 0, kind });
    }
    ahead.push(plain(3));
    until(|| helpers.done() == 3);
    let e = ahead.take().unwrap().err().unwrap().to_string();
    assert!(e.contains("piece 7 is bad"), "{e}");
    let e = ahead.take().unwrap().err().unwrap().to_string();
    assert!(e.contains("a helper thread panicked: piece 7 panics"), "{e}");
    assert_eq!(ahead.take().unwrap().unwrap().result, 9);
    assert!(ahead.take().is_none());
}

#[test]
fn the_owner_does_what_nobody_has_begun_and_waits_for_what_somebody_has() {
    let helpers = Arc::new(Helpers::default());
    let mut ahead = Ahead::new(&helpers.help(1).unwrap());
    let go = begun_by_a_helper(&mut ahead);
    for i in 1..4 {
        ahead.push(plain(i));
    }
    assert!(ahead.take_done().is_none());
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        go.store(true, Ordering::SeqCst);
    });
    // The only helper is blocked until the three pieces after its own are done here.
    let results: Vec<u64> = std::iter::from_fn(|| ahead.take()).map(|step| step.unwrap().result).collect();
    assert_eq!(results, [0, 1, 4, 9]);
    until(|| helpers.done() == 1);
    release.join().unwrap();
}

#[test]
fn what_a_helper_is_at_ends_before_its_owner_goes() {
    let helpers = Arc::new(Helpers::default());
    let mut ahead = Ahead::new(&helpers.help(1).unwrap());
    let go = begun_by_a_helper(&mut ahead);
    ahead.push(plain(1));
    let dropped = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&dropped);
    let owner = std::thread::spawn(move || {
        drop(ahead);
        told.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!dropped.load(Ordering::SeqCst));
    go.store(true, Ordering::SeqCst);
    owner.join().unwrap();
    until(|| helpers.done() == 1);
    assert!(helpers.shared.state.lock().aheads.is_empty());
}

#[test]
fn closing_ends_the_threads_and_the_work_goes_on_without() {
    let helpers = Arc::new(Helpers::default());
    let mut ahead = Ahead::new(&helpers.help(2).unwrap());
    let go = begun_by_a_helper(&mut ahead);
    ahead.push(plain(2));
    let closer = std::thread::spawn({
        let helpers = Arc::clone(&helpers);
        move || helpers.close()
    });
    until(|| helpers.shared.state.lock().closed);
    go.store(true, Ordering::SeqCst);
    closer.join().unwrap();
    assert!(helpers.threads.lock().is_empty());
    ahead.push(plain(3));
    let results: Vec<u64> = std::iter::from_fn(|| ahead.take()).map(|step| step.unwrap().result).collect();
    assert_eq!(results, [0, 4, 9]);
    assert!(helpers.threads.lock().is_empty(), "a thread was started after the close");
}

#[test]
fn a_table_gets_no_more_threads_than_it_may_have() {
    let helpers = Arc::new(Helpers::default());
    let help = helpers.help(3).unwrap();
    assert!(help.clone().at_most(0).is_none());
    let mut ahead = Ahead::new(&help.at_most(1).unwrap());
    let go = begun_by_a_helper(&mut ahead);
    // Others have helpers of their own.
    let mut other = Ahead::new(&helpers.help(3).unwrap());
    ahead.push(plain(1));
    other.push(plain(2));
    until(|| other.take_done().is_some());
    until(|| helpers.done() == 1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(helpers.done(), 1, "a second helper came");
    go.store(true, Ordering::SeqCst);
    assert_eq!(ahead.take().unwrap().unwrap().result, 0);
    assert_eq!(ahead.take().unwrap().unwrap().result, 1);
}

#[test]
fn threads_of_a_job_s_own_count_as_helpers() {
    let helpers = Arc::new(Helpers::default());
    let help = helpers.help(3).unwrap();
    let (two, one) = (help.extra(2), help.extra(9));
    assert_eq!([two.count(), one.count(), help.extra(1).count()], [2, 1, 0]);
    drop(two);
    // A working helper is one of the three.
    let mut ahead = Ahead::new(&help);
    let go = begun_by_a_helper(&mut ahead);
    assert_eq!(help.extra(9).count(), 1);
    go.store(true, Ordering::SeqCst);
    assert_eq!(ahead.take().unwrap().unwrap().result, 0);
    drop(one);
    until(|| help.extra(9).count() == 3);
    // With three at work, no other helper comes, and the piece's owner does it.
    let three = help.extra(3);
    assert_eq!(three.count(), 3);
    let done = helpers.done();
    ahead.push(plain(4));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(helpers.done(), done);
    assert_eq!(ahead.take().unwrap().unwrap().result, 16);
    drop(three);
    // A table's limit applies to that table only.
    let all_but_one = help.extra(2);
    assert_eq!(all_but_one.count(), 2);
    assert_eq!(help.clone().at_most(1).unwrap().extra(9).count(), 1);
    drop(all_but_one);
    assert!(help.micros() > 0, "their time counts, too");
}

#[test]
fn where_no_core_is_idle_nobody_helps() {
    let helpers = Arc::new(Helpers::default());
    let Some(help) = helpers.help(-1) else {
        let missing = rockmill_skip::Needs::Cores.because("this machine has one");
        return rockmill_skip::skip("where_no_core_is_idle_nobody_helps", &missing);
    };
    assert_eq!(help.most(), cores() - 1);
    let busy: Vec<_> = (0..cores()).map(|_| Working::begin()).collect();
    assert!(!is_idle() && Working::if_idle().is_none());
    assert_eq!(help.extra(1).count(), 0);
    let mut ahead = Ahead::new(&help);
    ahead.push(plain(5));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((helpers.done(), helpers.threads.lock().len()), (0, 0));
    assert_eq!(ahead.take().unwrap().unwrap().result, 25);
    drop(busy);
}

#[test]
fn a_database_that_closes_in_the_middle_ends_its_helpers() {
    let fs: Arc<dyn rockmill_io::FileSystem> = Arc::new(rockmill_io::MemFileSystem::new());
    let mut o = crate::Options::default();
    o.create_if_missing(true);
    o.set_file_system(fs);
    o.set_compression_type(crate::CompressionType::Zstd);
    o.set_compaction_helper_threads(2);
    o.set_write_buffer_size(32 << 10);
    o.set_target_file_size_base(40 << 10);
    o.set_level_zero_file_num_compaction_trigger(2);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut wanted = std::collections::BTreeMap::new();
    let mut helped = 0;
    for round in 0..12u32 {
        let db = crate::Db::open(&o, "/db").unwrap();
        for (k, v) in &wanted {
            let read: Option<Vec<u8>> = db.get(k).unwrap();
            assert_eq!(read.as_ref(), Some(v), "round {round}");
        }
        for _ in 0..600 {
            let (k, v) = (format!("key{:05}", rng.u32(0..5000)), format!("{round:03} ").repeat(rng.usize(1..80)));
            db.put(&k, &v).unwrap();
            wanted.insert(k.into_bytes(), v.into_bytes());
        }
        let engines = Arc::clone(&db.inner.engines);
        std::thread::sleep(Duration::from_millis(rng.u64(0..8)));
        drop(db);
        assert!(engines.helpers.threads.lock().is_empty(), "round {round}: helpers live on");
        assert!(engines.helpers.shared.state.lock().aheads.is_empty(), "round {round}: a job lives on");
        helped += engines.helpers.done();
    }
    assert!(helped > 0, "no helper did anything");
}
