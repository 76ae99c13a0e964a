//! Every job of these tests once more, in another process: the spec goes there as bytes, the inputs as plain files, and
//! the tables that come back are the same, byte by byte.
//!
//! The other process is this program, told by a variable to be a worker. It reads directories from its standard input,
//! one a line; in each are `spec`, `clock`, the inputs, and `memtable-ID` where a flush needs them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use rockmill_format::coding::{Decoder, put_length_prefixed};
use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::footer::BlockHandle;

use super::*;
use crate::compaction::file_ranges::{FileRange, FileRanges};
use crate::compaction::objects::JobRegistry;
use crate::compaction::spec::NumberRange;

/// Says that this process is a worker.
const WORKER: &str = "ROCKMILL_TEST_JOB_WORKER";
/// What an answer begins with; other lines are the test harness's.
const ANSWER: &str = "rockmill job: ";

/// What the worker knows by name.
fn registry() -> JobRegistry {
    let mut options = crate::Options::default();
    options.set_compaction_filter("keep", |_, _, _| crate::compaction_filter::Decision::Keep);
    let mut known = JobRegistry::default();
    known.filters.extend(options.cf.compaction_filter.take());
    #[cfg(feature = "kernel")]
    in_kernel::register(&mut known);
    known
}

/// A directory in memory where there is one.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

struct Worker {
    _child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["compaction::job::tests::elsewhere::worker", "--exact", "--nocapture", "--test-threads=1"])
            .env(WORKER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (asks, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { _child: child, asks, answers }
    }

    /// The files that the job in `dir` wrote.
    fn run(&mut self, dir: &Path) -> Vec<FileEntry> {
        writeln!(self.asks, "{}", dir.display()).unwrap();
        let mut line = String::new();
        while !line.starts_with(ANSWER) {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the worker ended");
        }
        assert_eq!(line.trim_end(), format!("{ANSWER}done"));
        let edit = VersionEdit::decode(&std::fs::read(dir.join("result")).unwrap()).unwrap();
        edit.new_files.into_iter().map(|(_, entry)| entry).collect()
    }
}

/// Has the other process run `spec`, and gives the files and their bytes.
fn run_elsewhere(spec: &JobSpec, memtables: &[Arc<MemTable>], ctx: &JobContext) -> Vec<(FileEntry, Vec<u8>)> {
    // It ends when this process does.
    static ONE: Mutex<Option<Worker>> = Mutex::new(None);
    let encoded = spec.encode().unwrap();
    let decoded = JobSpec::decode(&encoded).unwrap();
    assert_eq!(decoded, *spec);
    assert_eq!(decoded.encode().unwrap(), encoded);
    let dir = scratch();
    let dir = dir.path();
    std::fs::write(dir.join("spec"), encoded).unwrap();
    std::fs::write(dir.join("clock"), ctx.clock.now_micros().to_string()).unwrap();
    for file in spec.runs.iter().flat_map(|run| &run.files) {
        let name = filename::table(file.entry.number);
        std::fs::write(dir.join(&name), ctx.fs.read_to_vec(&ctx.dir.join(&name)).unwrap()).unwrap();
    }
    for mem in memtables {
        std::fs::write(dir.join(format!("memtable-{}", mem.id())), dump(mem)).unwrap();
    }
    let files = {
        let mut worker = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        worker.get_or_insert_with(Worker::start).run(dir)
    };
    let read = |f: FileEntry| {
        let bytes = std::fs::read(dir.join(filename::table(f.number))).unwrap();
        (f, bytes)
    };
    files.into_iter().map(read).collect()
}

fn local(files: &[FileEntry], ctx: &JobContext) -> Vec<(FileEntry, Vec<u8>)> {
    let read = |f: &FileEntry| (f.clone(), ctx.fs.read_to_vec(&ctx.dir.join(filename::table(f.number))).unwrap());
    files.iter().map(read).collect()
}

#[track_caller]
fn assert_same(here: &[(FileEntry, Vec<u8>)], there: &[(FileEntry, Vec<u8>)], spec: &JobSpec) {
    let entries = |files: &[(FileEntry, Vec<u8>)]| files.iter().map(|(entry, _)| entry.clone()).collect::<Vec<_>>();
    assert_eq!(entries(here), entries(there), "{}", spec.what());
    assert!(here == there, "{}: another process wrote other bytes", spec.what());
}

fn lease(spec: &mut JobSpec, numbers: &[u64]) {
    spec.numbers = numbers.iter().map(|&first| NumberRange { first, count: 1 }).collect();
}

/// Compares what a compaction wrote with what it writes elsewhere.
pub(super) fn compare(spec: &JobSpec, ctx: &JobContext, output: &JobOutput) {
    let mut spec = spec.clone();
    let numbers: Vec<u64> = output.files.iter().map(|f| f.number).collect();
    // Every other job with its blocks, so that the runner needs no index.
    if numbers.first().is_some_and(|n| n % 2 == 0) {
        spec.lay_out(ctx).unwrap();
    }
    if output.stats.subcompactions < 2 {
        lease(&mut spec, &numbers);
        return assert_same(&local(&output.files, ctx), &run_elsewhere(&spec, &[], ctx), &spec);
    }
    // Parts at once take numbers by chance: one after the other, then.
    spec.output.reproducible = true;
    spec.numbers = vec![NumberRange { first: 1 << 30, count: 1000 }];
    let mut ctx = JobContext { engines: Arc::default(), events: JobEvents::default(), ..ctx.clone() };
    ctx.db.merge_engine = MergeEngine::Pread;
    let again = run(&spec, &ctx).unwrap();
    let here = local(&again.files, &ctx);
    again.files.iter().for_each(|f| ctx.fs.remove(&ctx.dir.join(filename::table(f.number))).unwrap());
    assert_same(&here, &run_elsewhere(&spec, &[], &ctx), &spec);
}

/// The same for a flush.
pub(super) fn compare_flush(spec: &JobSpec, mems: &[Arc<MemTable>], ctx: &JobContext, output: Option<&FileEntry>) {
    let mut spec = spec.clone();
    lease(&mut spec, &output.map(|f| f.number).into_iter().collect::<Vec<_>>());
    let here = output.map(|f| local(std::slice::from_ref(f), ctx)).unwrap_or_default();
    assert_same(&here, &run_elsewhere(&spec, mems, ctx), &spec);
}

/// A memtable as bytes: its entries, then its range tombstones.
fn dump(mem: &Arc<MemTable>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut it = mem.iter();
    it.seek_to_first();
    while it.valid() {
        put_length_prefixed(&mut out, it.key());
        put_length_prefixed(&mut out, it.value());
        it.next();
    }
    if let Some(list) = mem.range_tombstones() {
        for (begin, end, seq) in list.iter() {
            let key = InternalKey::new(begin, seq, ValueType::RangeDeletion);
            put_length_prefixed(&mut out, key.as_bytes());
            put_length_prefixed(&mut out, end);
        }
    }
    out
}

fn load(id: u64, cmp: &InternalKeyComparator, bytes: &[u8]) -> Arc<MemTable> {
    let mem = MemTable::new(id, cmp.clone(), 4096);
    let mut d = Decoder::new(bytes);
    while !d.is_empty() {
        let (key, value) = (d.length_prefixed("key").unwrap(), d.length_prefixed("value").unwrap());
        let key = ParsedInternalKey::parse(key).unwrap();
        mem.add(key.sequence, key.value_type, key.user_key, value);
    }
    Arc::new(mem)
}

/// The host of the job in `dir`: plain files, and the numbers that the spec sets aside.
fn host(spec: &JobSpec, dir: &Path) -> Result<JobContext> {
    let objects = registry().objects(spec)?;
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let cmp = objects.cmp.clone();
    let clock = std::fs::read_to_string(dir.join("clock")).unwrap().parse().unwrap();
    Ok(JobContext {
        objects,
        clock: Arc::new(ManualClock::new(clock)),
        db: DbOptions::default(),
        tables: Arc::new(Tables { fs: Arc::clone(&fs), dir: dir.to_owned(), cmp }),
        new_file_number: Arc::new(|| Err(Error::new(ErrorKind::Aborted, "no file number is left"))),
        ..context(fs, dir.to_owned())
    })
}

/// Runs the job in `dir`, as a worker would.
fn serve(dir: &Path) -> Result<()> {
    let spec = JobSpec::decode(&std::fs::read(dir.join("spec")).unwrap())?;
    let ctx = host(&spec, dir)?;
    let files = match spec.reason {
        TableFileCreationReason::Compaction => run(&spec, &ctx)?.files,
        _ => {
            let path = |id: &u64| dir.join(format!("memtable-{id}"));
            let mem = |id: &u64| load(*id, &ctx.objects.cmp, &std::fs::read(path(id)).unwrap());
            let mems: Vec<_> = spec.memtables.iter().map(mem).collect();
            flush::run(&spec, &SealedRuns::new(mems), &ctx)?.map(|(entry, _)| entry).into_iter().collect()
        }
    };
    let new_files = files.into_iter().map(|f| (spec.output.level as u32, f)).collect();
    std::fs::write(dir.join("result"), VersionEdit { new_files, ..VersionEdit::default() }.encode()).unwrap();
    Ok(())
}

/// The other process. Does nothing in the process that is tested.
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    for dir in std::io::stdin().lines() {
        let done = serve(Path::new(&dir.unwrap())).map_or_else(|e| e.to_string(), |()| "done".to_owned());
        // Past the harness, which keeps what is printed.
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{ANSWER}{}", done.replace('\n', " ")).and_then(|()| out.flush()).unwrap();
    }
    std::process::exit(0); // nobody reads what the harness would say
}

#[test]
fn a_host_refuses_what_it_does_not_know() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (tree, c) = tree_with_l0(fs, dir, small_options(), 50);
    let spec = tree.spec(&c);
    type Change = fn(&mut JobSpec);
    let changes: [(&str, Change); 5] = [
        ("comparator \"x\"", |spec| spec.comparator = "x".into()),
        ("merge operator \"x\"", |spec| {
            (spec.merge_operator, spec.output.owner.merge_operator) = ("x".into(), "x".into());
        }),
        ("prefix extractor \"x\"", |spec| spec.output.format.prefix_extractor = "x".into()),
        ("compaction filter \"x\"", |spec| spec.filter = Some(filter_named("x", false))),
        ("compaction filter \"x\"", |spec| spec.filter = Some(filter_named("x", true))),
    ];
    for (what, change) in changes {
        let mut spec = spec.clone();
        change(&mut spec);
        let e = registry().objects(&spec).unwrap_err();
        assert!(e.kind() == ErrorKind::NotSupported && e.message().contains(what), "{what}: {e}");
        let e = run(&spec, &tree.host()).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(what), "{what}: {e}");
    }
    // RocksDB's own need no registration.
    let mut spec = spec;
    spec.comparator = "rocksdb.ReverseBytewiseComparator".into();
    spec.merge_operator = "{id=StringAppendOperator;delimiter=,;}".into();
    spec.output.format.prefix_extractor = "rocksdb.FixedPrefix.3".into();
    let objects = registry().objects(&spec).unwrap();
    assert_eq!(objects.merge_operator.map(|m| m.option_text()), Some(spec.merge_operator));
}

fn filter_named(name: &str, from_factory: bool) -> crate::compaction::spec::FilterSpec {
    crate::compaction::spec::FilterSpec {
        name: name.into(),
        from_factory,
        is_full_compaction: false,
        is_manual_compaction: false,
        input_start_level: Some(0),
        now_micros: 0,
    }
}

/// Changes something in a spec that a runner relies on.
fn distort(spec: &mut JobSpec, rng: &mut fastrand::Rng) {
    let number = *rng.choice(&[0, 1, 7, 1 << 20, 1 << 58]).unwrap();
    let key = |rng: &mut fastrand::Rng| format!("k{:05}", rng.u32(0..120)).into_bytes();
    let i = rng.usize(..spec.runs.len());
    let entry = spec.runs[i].files.first_mut().map(|f| &mut f.entry).unwrap();
    let o = &mut spec.output;
    match rng.u8(0..24) {
        0 => entry.size = number,
        1 => std::mem::swap(&mut entry.smallest, &mut entry.largest),
        2 => entry.smallest = InternalKey::new(&key(rng), number, ValueType::Value),
        3 => entry.largest = InternalKey::new(&key(rng), number, ValueType::RangeDeletion),
        4 => (entry.smallest_seqno, entry.largest_seqno) = (number, 0),
        5 => drop(spec.runs.remove(i)),
        6 => spec.runs.reverse(),
        7 => spec.snapshots = vec![number, number + 1],
        8 => spec.bottommost ^= true,
        9 => spec.older = None,
        10 => {
            let mut ranges = FileRanges::default();
            ranges.push(FileRange { smallest: &key(rng), largest: &key(rng), size: number });
            spec.older = Some(vec![ranges.clone()]);
            o.grandparents = ranges;
        }
        11 => o.level = rng.usize(0..256),
        12 => o.file_size_target = number,
        13 => o.file_size_max = number,
        14 => o.grandparent_overlap_max = number,
        15 => o.split_key = Some(InternalKey::new(&key(rng), number, ValueType::Value)),
        16 => o.compression = *rng.choice(&CompressionType::ALL).unwrap(),
        17 => o.format.block_based.block_restart_interval = number as usize,
        18 => o.format.block_based.format_version = rng.u32(0..10),
        19 => o.bytes_expected = number,
        21 => spec.numbers = vec![NumberRange { first: 40, count: 2 }, NumberRange { first: 41, count: number.min(9) }],
        22 => spec.numbers = vec![NumberRange { first: entry.number, count: 3 }],
        20 => (o.epoch_number, o.oldest_ancestor_time) = (number, number),
        _ => {
            // Blocks that are not there, or not all that are.
            for blocks in spec.parts.iter_mut().filter_map(|p| p.blocks.as_mut()).flat_map(|b| b.values_mut()) {
                let at = rng.usize(0..=blocks.len());
                blocks.truncate(at);
                blocks.extend(blocks.last().map(|last| BlockHandle { offset: last.end(), size: number }));
            }
        }
    }
}

#[test]
fn a_spec_that_lies_is_an_error_or_a_job() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (tree, c) = tree_with_l0(Arc::clone(&fs) as _, dir.clone(), small_options(), 60);
    let (plain, before) = (tree.spec(&c), fs.list_dir(&dir).unwrap().len());
    let (mut done, mut failed, mut refused) = (0, 0, 0);
    for seed in 0..600 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut spec = plain.clone();
        spec.parts_max = rng.usize(1..4);
        if rng.bool() {
            spec.lay_out(&tree.host()).unwrap();
        }
        for _ in 0..rng.usize(1..4) {
            if !spec.runs.is_empty() {
                distort(&mut spec, &mut rng);
            }
        }
        let Ok(objects) = registry().objects(&spec) else {
            refused += 1;
            continue;
        };
        let host = JobContext { objects, ..tree.host() };
        match guarded("the runner", || run(&spec, &host)) {
            Ok(output) => {
                done += 1;
                output.files.iter().for_each(|f| fs.remove(&dir.join(filename::table(f.number))).unwrap());
            }
            Err(e) => {
                failed += 1;
                assert!(!e.message().contains("panicked"), "seed {seed}: {e}");
            }
        }
        assert_eq!(fs.list_dir(&dir).unwrap().len(), before, "seed {seed}: tables were left");
    }
    assert!(done > 50 && failed > 50 && refused > 10, "{done} done, {failed} failed, {refused} refused");
}

#[test]
fn a_job_without_a_number_left_fails_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, c) = tree_with_l0(Arc::new(PosixFileSystem::default()), dir.path().to_owned(), small_options(), 400);
    let mut spec = tree.spec(&c);
    spec.numbers = vec![NumberRange { first: 1 << 30, count: 2 }];
    let host = JobContext {
        new_file_number: Arc::new(|| Err(Error::new(ErrorKind::Aborted, "no file number is left"))),
        ..tree.host()
    };
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let before = files();
    let e = run(&spec, &host).unwrap_err();
    assert!(e.message().contains("no file number is left"), "{e}");
    assert_eq!(files(), before);
}
