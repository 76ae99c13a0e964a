//! The jobs of these tests once more, each by a worker that has nothing but a device (`compaction/elsewhere.rs`,
//! `compaction/worker.rs`): the tables are the same, byte by byte. And what comes of a worker that lies.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use super::*;
use crate::compaction::elsewhere as remote;
use crate::compaction::objects::JobRegistry;
use crate::compaction::result::JobResult;
use crate::compaction::worker::{WorkerDevice, WorkerMachine};
use crate::compaction::{JobOutput, JobStats};
use crate::compaction_workers::{JobDevice, RemoteDone, RemoteJob, RemoteUsage, TakenWorker};
use crate::error::{Error, ErrorKind};

/// Of a table.
const FOOTER_BYTES: u64 = 53;

/// What a worker does to its result before it sends it.
type Lie = dyn Fn(&mut JobResult) + Send + Sync;

/// A worker in this process.
struct InProcess {
    clock: Arc<dyn rockmill_io::Clock>,
    lie: Box<Lie>,
    /// Changes this byte of the first output.
    damages: Option<u64>,
    /// Writes to the device again when the result is there.
    writes_late: Mutex<Option<Arc<JobDevice>>>,
    rejected: AtomicU64,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcess")
    }
}

#[derive(Debug)]
struct Lent {
    device: Arc<JobDevice>,
    damages: Option<u64>,
}

impl WorkerDevice for Lent {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut data = data.to_vec();
        let place = offset - self.device.outputs_at();
        if let Some(byte) = self.damages.and_then(|n| data.get_mut(usize::try_from(n.checked_sub(place)?).ok()?)) {
            *byte ^= 1;
        }
        self.device.write(offset, &data)
    }
}

impl TakenWorker for InProcess {
    fn place(&self) -> usize {
        0
    }

    fn rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone> {
        let machine = WorkerMachine::new(JobRegistry::default(), 1, Arc::clone(&self.clock));
        let spec = machine.accept(job.spec)?;
        let lent = Lent { device: Arc::clone(job.device), damages: self.damages };
        let mut result = machine.run(&spec, Arc::new(lent), &Arc::default());
        (self.lie)(&mut result);
        *self.writes_late.lock() = Some(Arc::clone(job.device));
        Ok(RemoteDone { result: result.encode()?, worker: "here".to_owned(), usage: RemoteUsage::default() })
    }
}

fn honest(ctx: &LocalHost) -> InProcess {
    let clock = Arc::clone(&ctx.means.clock);
    InProcess {
        clock,
        lie: Box::new(|_| {}),
        damages: None,
        writes_late: Mutex::default(),
        rejected: AtomicU64::new(0),
    }
}

/// The host with numbers that nobody else has.
fn numbered(ctx: &LocalHost) -> LocalHost {
    let next = AtomicU64::new(1 << 31);
    let new_file_number = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    let mut host = LocalHost { new_file_number, events: JobEvents::default(), ..ctx.clone() };
    host.means.db.merge_engine = MergeEngine::Pread;
    host
}

/// Takes away the tables of an output, and gives their bytes.
fn taken(host: &LocalHost, output: &JobOutput) -> Vec<Vec<u8>> {
    let take = |f: &FileEntry| {
        let bytes = host.means.fs.read_to_vec(&host.output_path(f.number)).unwrap();
        host.remove_output(f.number);
        bytes
    };
    output.files.iter().map(take).collect()
}

/// True of a table with keys, or sequence numbers, that are not within what the spec says of the inputs.
fn has_what_no_input_has(spec: &JobSpec, ctx: &LocalHost, made: &FileEntry) -> bool {
    let cmp = &ctx.means.objects.cmp;
    let inputs = || spec.runs.iter().flat_map(|run| &run.files).map(|f| &f.entry);
    inputs().all(|f| cmp.compare_user(made.smallest.user_key(), f.smallest.user_key()).is_lt())
        || inputs().all(|f| cmp.compare_user(made.largest.user_key(), f.largest.user_key()).is_gt())
        || inputs().all(|f| made.largest_seqno > f.largest_seqno)
}

/// Compares what a compaction writes here with what a worker writes.
pub(super) fn compare(spec: &JobSpec, ctx: &LocalHost) {
    if !remote::may_go(spec) {
        return;
    }
    let mut spec = spec.clone();
    spec.parts_max = 1; // or numbers would go to parts by chance
    let host = numbered(ctx);
    let here = run(&spec, &host).unwrap();
    let bytes = taken(&host, &here);
    let host = numbered(ctx);
    let done = remote::run(&spec, &host, &honest(ctx));
    if here.files.iter().any(|f| has_what_no_input_has(&spec, ctx, f)) {
        done.expect_err("inputs are damaged in a way that no checksum catches");
        return;
    }
    let (there, _) = done.unwrap();
    assert_eq!(here.files, there.files, "{}", spec.what());
    assert!(bytes == taken(&host, &there), "{}: a worker wrote other bytes", spec.what());
    let counted = |output: &JobOutput| JobStats { wall_micros: 0, cpu_micros: 0, ..output.stats };
    assert_eq!(counted(&here), counted(&there), "{}", spec.what());
}

/// A tree, a job of several tables, and the names in its directory.
fn tree_and_job(fs: &Arc<MemFileSystem>) -> (Tree, JobSpec, BTreeSet<String>) {
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (tree, c) = tree_with_l0(Arc::clone(fs) as _, dir.clone(), small_options(), 400);
    let spec = tree.spec(&c);
    assert!(remote::may_go(&spec));
    let names = fs.list_dir(&dir).unwrap().into_iter().collect();
    (tree, spec, names)
}

fn names(fs: &MemFileSystem) -> BTreeSet<String> {
    fs.list_dir(&PathBuf::from("/db")).unwrap().into_iter().collect()
}

#[test]
fn a_worker_that_lies_is_found_out_and_leaves_nothing() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    type Change = fn(&mut JobOutput);
    let lies: [(&str, Change); 18] = [
        ("a size", |made| made.files[0].size += 1),
        ("a much larger size", |made| made.files[0].size = u64::MAX),
        ("a smallest key", |made| made.files[1].smallest = InternalKey::new(b"k", 1, ValueType::Value)),
        ("a largest key", |made| made.files[1].largest = InternalKey::new(b"z", 1, ValueType::Value)),
        ("a sequence number", |made| made.files[0].largest_seqno += 1),
        ("a larger smallest sequence number", |made| made.files[0].smallest_seqno += 1),
        ("a number that is not set aside", |made| made.files[0].number = 1),
        ("another's number", |made| made.files[0].number += 1),
        ("an epoch", |made| made.files[0].epoch_number += 1),
        ("a run", |made| made.files[0].extra_run = 7),
        ("an id", |made| made.files[0].unique_id[0] ^= 1),
        ("a path", |made| made.files[0].path_id = 1),
        ("a mark", |made| made.files[0].marked_for_compaction = true),
        ("another order", |made| {
            made.files.swap(0, 1);
            made.properties.swap(0, 1);
        }),
        ("a table less", |made| {
            made.files.pop();
            made.properties.pop();
        }),
        ("more entries written", |made| made.stats.output_records += 1),
        ("fewer entries read", |made| made.stats.input_records -= 1),
        ("more entries dropped than there are", |made| made.stats.dropped.hidden = u64::MAX),
    ];
    for (what, change) in lies {
        let host = numbered(&tree.host());
        let lie = move |result: &mut JobResult| change(result.outcome.as_mut().unwrap());
        let worker = InProcess { lie: Box::new(lie), ..honest(&host) };
        let e = remote::run(&spec, &host, &worker).expect_err(what);
        assert!(!e.message().contains("panicked"), "{what}: {e}");
        assert_eq!(worker.rejected.load(Ordering::Relaxed), 1, "{what}");
        assert_eq!(names(&fs), before, "{what}");
    }
    let others: [(&str, Box<Lie>); 2] = [
        ("another job", Box::new(|result: &mut JobResult| result.job += 1)),
        ("an error", Box::new(|result| result.outcome = Err(Error::new(ErrorKind::Busy, "not today")))),
    ];
    for (what, lie) in others {
        let host = numbered(&tree.host());
        remote::run(&spec, &host, &InProcess { lie, ..honest(&host) }).expect_err(what);
        assert_eq!(names(&fs), before, "{what}");
    }
    // The job itself is as it was.
    compare(&spec, &tree.host());
    assert_eq!(names(&fs), before);
}

#[test]
fn a_damaged_byte_is_found_wherever_it_is() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    let host = numbered(&tree.host());
    let (output, _) = remote::run(&spec, &host, &honest(&host)).unwrap();
    let size = output.files[0].size;
    taken(&host, &output);
    // A footer has bytes that mean nothing, so that it is looked at by itself.
    let blocks = (0..size - FOOTER_BYTES).step_by(7);
    for byte in blocks.chain([size - FOOTER_BYTES, size - 8, size - 1]) {
        let host = numbered(&tree.host());
        let worker = InProcess { damages: Some(byte), ..honest(&host) };
        let e = remote::run(&spec, &host, &worker).expect_err("a damaged byte");
        assert!(!e.message().contains("panicked"), "byte {byte} of {size}: {e}");
        assert_eq!(names(&fs), before);
    }
}

#[test]
fn a_late_write_does_not_reach_a_table() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, _) = tree_and_job(&fs);
    let host = numbered(&tree.host());
    let worker = honest(&host);
    let (output, _) = remote::run(&spec, &host, &worker).unwrap();
    let read = |f: &FileEntry| host.means.fs.read_to_vec(&host.output_path(f.number)).unwrap();
    let before: Vec<_> = output.files.iter().map(read).collect();
    let device = worker.writes_late.lock().take().unwrap();
    assert!(device.is_fenced());
    for block in (0..device.bytes() / 4096).step_by(101) {
        device.write(block * 4096, &[0; 4096]).unwrap_err();
    }
    assert!(output.files.iter().map(read).collect::<Vec<_>>() == before);
}

#[test]
fn jobs_that_workers_cannot_do_stay_here() {
    let fs = Arc::new(MemFileSystem::new());
    let (_, spec, _) = tree_and_job(&fs);
    type Change = fn(&mut JobSpec);
    let changes: [(&str, Change); 5] = [
        ("an unknown comparator", |spec| spec.comparator = "x".into()),
        ("an unknown operator", |spec| spec.merge_operator = "x".into()),
        ("a filter", |spec| spec.filter = Some(Default::default())),
        ("into L0", |spec| spec.output.level = 0),
        ("no input", |spec| spec.runs.clear()),
    ];
    for (what, change) in changes {
        let mut spec = spec.clone();
        change(&mut spec);
        assert!(!remote::may_go(&spec), "{what}");
    }
}
