//! Parts that one engine begins and another one does, on a worker's device, which takes each output once, from front to
//! back. The engine that gives up is one of these tests, and no kernel is needed.

use std::collections::BTreeSet;
use std::io;

use super::device::{numbered, taken};
use super::elsewhere::registry;
use super::*;
use crate::compaction::elsewhere as remote;
use crate::compaction::result::JobResult;
use crate::compaction::spec::Extent;
use crate::compaction::worker::{WorkerDevice, WorkerMachine};
use crate::compaction_workers::{DEVICE_BLOCK, JobDevice, RemoteDone, RemoteJob, RemoteUsage, TableCheck, TakenWorker};

/// Why.
const REASON: &str = "it has had enough";

/// The first number that the hosts of these tests give.
const FIRST: u64 = 1 << 31;

/// An engine that writes the tables of what is before a user key, and then hands the part over.
struct GivesUp(&'static [u8]);

impl PartEngine for GivesUp {
    fn kind(&self) -> MergeEngine {
        MergeEngine::Kernel
    }

    fn run(&self, job: &PartJob<'_>) -> Result<PartEnd> {
        let whole = job.output.part;
        if whole.begin.as_deref().is_none_or(|begin| begin < self.0) {
            let end = whole.end.as_deref().map_or(self.0, |end| end.min(self.0));
            let part = Part { end: Some(end.to_vec()), ..whole.clone() };
            let output = Destination { part: &part, ..job.output };
            let map = SstMap::new(output.plan, &part, output.host())?;
            in_order(MergeEngine::Pread)[0].run(&PartJob { output, map: &map, ..*job })?;
        }
        Ok(PartEnd::HandOver(REASON.to_owned()))
    }
}

/// A worker in this process.
#[derive(Debug)]
struct Tired {
    machine: WorkerMachine,
    /// The key at which the first engine gives up; `None` without one.
    until: Option<&'static [u8]>,
    /// The numbers and the room that are left for the job; the others are taken away before it.
    tables: Option<usize>,
    bytes: Option<u64>,
}

impl Tired {
    fn new(ctx: &LocalHost, until: Option<&'static [u8]>) -> Self {
        let machine = WorkerMachine::new(registry(), 2, Arc::clone(&ctx.means.clock));
        Self { machine, until, tables: None, bytes: None }
    }
}

#[derive(Debug)]
struct Lent(Arc<JobDevice>);

impl WorkerDevice for Lent {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// Writes zeros to an output, until `left` bytes remain of the job's room.
fn fill(place: &Extent, left: u64, device: &JobDevice) {
    let zeros = vec![0; 1 << 20];
    let (mut at, end) = (place.offset, place.offset + place.length - left);
    while at < end {
        let len = (end - at).min(zeros.len() as u64) as usize;
        device.write(at, &zeros[..len]).unwrap();
        at += len as u64;
    }
}

impl TakenWorker for Tired {
    fn place(&self) -> usize {
        0
    }

    fn rejected(&self) {}

    fn check(&self) -> TableCheck {
        TableCheck::All
    }

    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone> {
        let mut spec = self.machine.accept(job.spec)?;
        if let Some(tables) = self.tables {
            spec.numbers.truncate(tables);
            spec.space.truncate(tables);
        }
        if let Some(left) = self.bytes {
            fill(spec.space.last().unwrap(), left, job.device);
        }
        let host = self.machine.host(&spec, Arc::new(Lent(Arc::clone(job.device))), &Arc::default())?;
        let first = self.until.map(GivesUp);
        let engines: Vec<&dyn PartEngine> = match &first {
            Some(first) => vec![first, in_order(MergeEngine::Pread)[0]],
            None => vec![in_order(MergeEngine::Pread)[0]],
        };
        let result = JobResult { job: spec.job, outcome: run_by(&spec, &host, &engines) };
        Ok(RemoteDone { result: result.encode()?, worker: "here".to_owned(), usage: RemoteUsage::default() })
    }
}

/// A tree, a job of many tables in one part, and the names in its directory.
fn tree_and_job(fs: &Arc<MemFileSystem>) -> (Tree, JobSpec, BTreeSet<String>) {
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (tree, c) = tree_with_l0(Arc::clone(fs) as _, dir, small_options(), 2000);
    let mut spec = tree.spec(&c);
    spec.parts_max = 1;
    (tree, spec, names(fs))
}

fn names(fs: &MemFileSystem) -> BTreeSet<String> {
    fs.list_dir(&PathBuf::from("/db")).unwrap().into_iter().collect()
}

/// What the job writes here if its first table has this number.
fn here_from(tree: &Tree, spec: &JobSpec, first: u64) -> (Vec<FileEntry>, Vec<Vec<u8>>) {
    let next = AtomicU64::new(first);
    let new_file_number = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    let host = LocalHost { new_file_number, ..numbered(&tree.host()) };
    let output = run(spec, &host).unwrap();
    let bytes = taken(&host, &output);
    (output.files, bytes)
}

#[test]
fn a_part_that_is_handed_over_takes_the_next_numbers() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    let host = numbered(&tree.host());
    let worker = Tired::new(&host, Some(b"k01500"));
    let (there, _) = remote::run(&spec, &host, &worker).unwrap();
    // Of what was given up, nothing is left.
    let of_outputs = there.files.iter().map(|f| filename::table(f.number));
    assert_eq!(names(&fs), before.iter().cloned().chain(of_outputs).collect());
    let first = there.files[0].number;
    assert!(first > FIRST + 2, "several tables were given up: {first}");
    let bytes = taken(&host, &there);
    let (files, wanted) = here_from(&tree, &spec, first);
    assert_eq!(there.files, files);
    assert!(bytes == wanted, "other bytes");
    let parts = worker.machine.engine_parts();
    assert_eq!((parts.pread, parts.kernel, parts.handed_over), (1, 0, 1), "{parts:?}");
    assert_eq!(worker.machine.handed_over().as_deref(), Some(REASON));
    assert_eq!(names(&fs), before);
}

#[test]
fn each_part_that_is_handed_over_takes_numbers_of_its_own() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, mut spec, before) = tree_and_job(&fs);
    let (_, wanted) = here_from(&tree, &spec, FIRST);
    spec.parts_max = 3;
    let host = numbered(&tree.host());
    // In the middle of one part, and after the end of others.
    let worker = Tired::new(&host, Some(b"k01500"));
    let (there, _) = remote::run(&spec, &host, &worker).unwrap();
    let parts = worker.machine.engine_parts();
    assert!(parts.handed_over > 1 && parts.pread == parts.handed_over, "{parts:?}");
    assert!(!wanted.is_empty() && there.files.iter().any(|f| f.number > FIRST + wanted.len() as u64));
    let entries = |files: &[FileEntry]| {
        let metas = files.iter().map(|f| Arc::new(FileMeta::new(f.clone(), Arc::default())));
        metas.fold(Model::default(), |all, f| all.plus(&contents(&host, &f))).entries
    };
    let of_worker = entries(&there.files);
    taken(&host, &there);
    let here = run(&spec, &host).unwrap();
    assert!(of_worker == entries(&here.files), "other entries");
    taken(&host, &here);
    assert_eq!(names(&fs), before);
}

#[test]
fn reproducible_tables_keep_their_numbers_or_are_not_written() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, mut spec, before) = tree_and_job(&fs);
    spec.output.reproducible = true;
    // Before there is a table, nothing is in the way.
    let host = numbered(&tree.host());
    let (there, _) = remote::run(&spec, &host, &Tired::new(&host, Some(b""))).unwrap();
    let bytes = taken(&host, &there);
    let (files, wanted) = here_from(&tree, &spec, FIRST);
    assert_eq!(there.files, files);
    assert!(bytes == wanted, "other bytes");

    let host = numbered(&tree.host());
    let e = remote::run(&spec, &host, &Tired::new(&host, Some(b"k01500"))).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotSupported);
    for said in ["merge engine kernel handed over", REASON, "it cannot begin again", "reproducible"] {
        assert!(e.message().contains(said), "{e}");
    }
    assert_eq!(names(&fs), before);
}

#[test]
fn a_part_that_is_handed_over_needs_numbers_for_all_its_tables() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    let tables = Some(here_from(&tree, &spec, FIRST).0.len());
    let host = numbered(&tree.host());
    let (there, _) = remote::run(&spec, &host, &Tired { tables, ..Tired::new(&host, None) }).unwrap();
    taken(&host, &there);
    let host = numbered(&tree.host());
    let e = remote::run(&spec, &host, &Tired { tables, ..Tired::new(&host, Some(b"k01500")) }).unwrap_err();
    for said in ["merge engine kernel handed over", REASON, "more tables than the", "room for"] {
        assert!(e.message().contains(said), "{e}");
    }
    assert_eq!(names(&fs), before);
}

#[test]
fn tables_that_were_given_up_count_for_the_room_of_the_job() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    let needed = |table: &Vec<u8>| table.len().next_multiple_of(DEVICE_BLOCK) as u64;
    // What the job needs once.
    let bytes = Some(here_from(&tree, &spec, FIRST).1.iter().map(needed).sum());
    let host = numbered(&tree.host());
    let (there, _) = remote::run(&spec, &host, &Tired { bytes, ..Tired::new(&host, None) }).unwrap();
    taken(&host, &there);
    assert_eq!(names(&fs), before);
    let host = numbered(&tree.host());
    let e = remote::run(&spec, &host, &Tired { bytes, ..Tired::new(&host, Some(b"k01500")) }).unwrap_err();
    for said in ["merge engine kernel handed over", REASON, "more than the job may write"] {
        assert!(e.message().contains(said), "{e}");
    }
    assert_eq!(names(&fs), before);
}
