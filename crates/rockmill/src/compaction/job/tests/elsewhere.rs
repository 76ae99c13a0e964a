//! Runs the jobs of these tests again in another process with another host. Spec and result are passed as bytes, and
//! the tables must be the same, byte by byte.
//!
//! The other process is this program, which an environment variable makes a worker. It reads directories from its
//! standard input, one per line. Each contains `spec`, `clock`, the inputs with the files that they share, and
//! `memtable-ID` if a flush needs them. It answers when it has written `result`. Inputs are plain files, or extents of
//! one file `device`, as on a shared device.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use rockmill_format::coding::{Decoder, put_length_prefixed};
use rockmill_format::comparator::{BytewiseComparator, Comparator, HashRangeComparator};
use rockmill_format::edit::FileEntry;
use rockmill_format::footer::BlockHandle;
use rockmill_format::log::LogEncoder;
use rockmill_format::log::place::RecordPlace;
use rockmill_io::ring::BatchIo;
use rockmill_io::{RandomAccessFile, WritableFile, WriteOptions};

use super::*;
use crate::compaction::file_ranges::{FileRange, FileRanges};
use crate::compaction::host::create_file;
use crate::compaction::objects::JobRegistry;
use crate::compaction::result::JobResult;
use crate::compaction::spec::{Extent, NumberRange};
use crate::compaction::{JobProgress, JobStats};
use crate::db::open::ttl::wrap;
use crate::memtable::log_values::{LogFile, LoggedValue};
use crate::memtable::{MemTableFilter, MergePlan, MergedMemTable, SealedTable};
use crate::options::TphTableOptions;
use crate::table::TphSettings;
use crate::version::table_of_files;

/// The variable that makes this process a worker.
const WORKER: &str = "ROCKMILL_TEST_JOB_WORKER";
/// Prefix of an answer; other lines come from the test harness.
const ANSWER: &str = "rockmill job: ";

/// What the worker knows by name.
pub(super) fn registry() -> JobRegistry {
    let mut options = crate::Options::default();
    options.set_compaction_filter("keep", |_, _, _| crate::compaction_filter::Decision::Keep);
    let mut known = JobRegistry::default();
    known.filters.extend(options.cf.compaction_filter.take());
    rules::register(&mut known);
    #[cfg(feature = "kernel")]
    in_kernel::register(&mut known);
    known
}

/// A directory in memory if possible.
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

    /// Runs the job in `dir` and returns its result.
    fn run(&mut self, dir: &Path) -> JobResult {
        writeln!(self.asks, "{}", dir.display()).unwrap();
        let mut line = String::new();
        while !line.starts_with(ANSWER) {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the worker ended");
        }
        assert_eq!(line.trim_end(), format!("{ANSWER}done"));
        JobResult::decode(&std::fs::read(dir.join("result")).unwrap()).unwrap()
    }
}

/// The output of a job, and the bytes of its tables.
type Made = (JobOutput, Vec<Vec<u8>>);

/// Puts the inputs into pieces of the file `device`, the last ones first and with gaps.
fn put_on_device(spec: &mut JobSpec, dir: &Path, host: &LocalHost) {
    let mut device = vec![0xdb; 100];
    for file in spec.runs.iter_mut().flat_map(|run| &mut run.files) {
        let bytes =
            host.input_bytes(file, &host.output_path(file.number()), false).and_then(|f| read_all(&*f)).unwrap();
        let mut extents = Vec::new();
        for piece in bytes.chunks(bytes.len() / 3 + 1).rev() {
            extents.insert(0, Extent { offset: device.len() as u64, length: piece.len() as u64 });
            device.extend_from_slice(piece);
            device.extend_from_slice(&[0xdb; 7]);
        }
        Arc::make_mut(file).extents = extents;
    }
    std::fs::write(dir.join("device"), device).unwrap();
}

fn read_all(file: &dyn RandomAccessFile) -> Result<Vec<u8>> {
    let mut bytes = vec![0; file.size() as usize];
    file.read_at(0, &mut bytes).map_err(|e| Error::io("cannot read an input", &e))?;
    Ok(bytes)
}

/// Has the other process run `spec`.
fn run_elsewhere(spec: &JobSpec, sealed: &[SealedTable], ctx: &LocalHost) -> Made {
    // It ends when this process does.
    static ONE: Mutex<Option<Worker>> = Mutex::new(None);
    let dir = scratch();
    let dir = dir.path();
    let mut spec = spec.clone();
    if spec.runs.iter().flat_map(|run| &run.files).map(|f| f.number()).sum::<u64>() % 2 == 0 {
        put_on_device(&mut spec, dir, ctx);
    }
    let encoded = spec.encode().unwrap();
    let decoded = JobSpec::decode(&encoded).unwrap();
    assert_eq!(decoded, spec);
    assert_eq!(decoded.encode().unwrap(), encoded);
    std::fs::write(dir.join("spec"), encoded).unwrap();
    std::fs::write(dir.join("clock"), ctx.means.clock.now_micros().to_string()).unwrap();
    let inputs = spec.runs.iter().flat_map(|run| &run.files);
    let own = inputs.clone().filter(|f| f.extents.is_empty()).map(|f| f.number());
    let shared = inputs.flat_map(|f| f.entry.pieces.iter().map(|piece| piece.number));
    for number in own.chain(shared) {
        let name = filename::table(number);
        std::fs::write(dir.join(&name), ctx.means.fs.read_to_vec(&ctx.dir.join(&name)).unwrap()).unwrap();
    }
    for table in sealed {
        // Merged memtables are stored under the id of the newest one; the others' files are empty.
        for (i, id) in table.ids().into_iter().enumerate() {
            let entries = if i == 0 { dump(table) } else { Vec::new() };
            std::fs::write(dir.join(format!("memtable-{id}")), entries).unwrap();
        }
    }
    let result = {
        let mut worker = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        worker.get_or_insert_with(Worker::start).run(dir)
    };
    assert_eq!(result.job, spec.job);
    let output = result.outcome.unwrap_or_else(|e| panic!("{}: {e}", spec.what()));
    let bytes = output.files.iter().map(|f| std::fs::read(dir.join(filename::table(f.number))).unwrap()).collect();
    (output, bytes)
}

fn local(output: &JobOutput, host: &LocalHost) -> Made {
    let read = |f: &FileEntry| host.means.fs.read_to_vec(&host.output_path(f.number)).unwrap();
    (output.clone(), output.files.iter().map(read).collect())
}

#[track_caller]
fn assert_same(here: &Made, there: &Made, spec: &JobSpec) {
    assert_eq!(here.0.files, there.0.files, "{}", spec.what());
    assert_eq!(here.0.properties, there.0.properties, "{}", spec.what());
    assert!(here.1 == there.1, "{}: another process wrote other bytes", spec.what());
    let counted = |made: &Made| {
        // Differs by engine; a memtable that was sent has fragmented range tombstones.
        let dropped = ResolveStats { blocks_passed: 0, ..made.0.stats.dropped };
        let input_bytes = if spec.runs.is_empty() { 0 } else { made.0.stats.input_bytes };
        JobStats { input_bytes, wall_micros: 0, cpu_micros: 0, dropped, ..made.0.stats }
    };
    assert_eq!(counted(here), counted(there), "{}", spec.what());
}

fn lease(spec: &mut JobSpec, numbers: &[u64]) {
    spec.numbers = numbers.iter().map(|&first| NumberRange { first, count: 1 }).collect();
}

/// Compares the output of a compaction with its output elsewhere.
pub(super) fn compare(spec: &JobSpec, ctx: &LocalHost, output: &JobOutput) {
    let mut spec = spec.clone();
    let numbers: Vec<u64> = output.files.iter().map(|f| f.number).collect();
    // Every other job with its blocks, so that the runner needs no index.
    if numbers.first().is_some_and(|n| n % 2 == 0) {
        spec.lay_out(ctx).unwrap();
    }
    if output.stats.subcompactions < 2 {
        lease(&mut spec, &numbers);
        return assert_same(&local(output, ctx), &run_elsewhere(&spec, &[], ctx), &spec);
    }
    // Parallel parts take file numbers in a random order, so parts run one after the other.
    spec.output.reproducible = true;
    spec.numbers = vec![NumberRange { first: 1 << 30, count: 1000 }];
    let mut ctx = LocalHost { events: JobEvents::default(), ..ctx.clone() };
    ctx.means.engines = Arc::default();
    ctx.means.db.merge_engine = MergeEngine::Pread;
    let again = run(&spec, &ctx).unwrap();
    let here = local(&again, &ctx);
    again.files.iter().for_each(|f| ctx.remove_output(f.number));
    assert_same(&here, &run_elsewhere(&spec, &[], &ctx), &spec);
}

/// The same for a flush.
pub(super) fn compare_flush(spec: &JobSpec, ctx: &LocalHost, output: &JobOutput) {
    let mut spec = spec.clone();
    lease(&mut spec, &output.files.iter().map(|f| f.number).collect::<Vec<_>>());
    let sealed = ctx.sealed.as_ref().unwrap().tables();
    assert_same(&local(output, ctx), &run_elsewhere(&spec, sealed, ctx), &spec);
}

/// A memtable as bytes: its entries with their values, then its range tombstones.
fn dump(table: &SealedTable) -> Vec<u8> {
    let mut out = Vec::new();
    let mut it = table.iter();
    it.seek_to_first();
    while it.valid() {
        put_length_prefixed(&mut out, it.key());
        put_length_prefixed(&mut out, it.value());
        it.next();
    }
    if let Some(list) = table.range_tombstones() {
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

/// The host of a job in a directory. It has no store: no open tables, and only the file numbers that the spec reserves.
struct Folder {
    means: JobMeans,
    dir: PathBuf,
    cancelled: AtomicBool,
    progress: Arc<JobProgress>,
}

impl Folder {
    fn open(&self, path: &Path, direct: bool) -> Result<Arc<dyn RandomAccessFile>> {
        let file = self.means.fs.open_random(path, direct);
        file.map_err(|e| Error::io(format_args!("cannot open {}", path.display()), &e))
    }
}

impl JobHost for Folder {
    fn means(&self) -> &JobMeans {
        &self.means
    }

    fn open_input(&self, file: &SpecFile) -> Result<Arc<Table>> {
        let own = self.output_path(file.number());
        let mut files = vec![(own.clone(), self.input_bytes(file, &own, false)?)];
        for path in file.entry.pieces.iter().map(|piece| self.output_path(piece.number)) {
            let piece = self.open(&path, false)?;
            files.push((path, piece));
        }
        table_of_files(files, &self.means.objects.cmp, Some(file.entry.largest_seqno))
    }

    fn input_bytes(&self, file: &SpecFile, path: &Path, direct: bool) -> Result<Arc<dyn RandomAccessFile>> {
        // Extents are parts of the table's own file.
        if file.extents.is_empty() || path != self.output_path(file.number()) {
            return self.open(path, direct);
        }
        let device = self.open(&self.dir.join("device"), direct)?;
        Ok(Arc::new(Extents { device, extents: file.extents.clone() }))
    }

    fn memtables(&self, ids: &[u64]) -> Result<SealedRuns> {
        let path = |id: &u64| self.dir.join(format!("memtable-{id}"));
        let mem = |id: &u64| load(*id, &self.means.objects.cmp, &std::fs::read(path(id)).unwrap());
        Ok(SealedRuns::new(ids.iter().map(mem).collect()))
    }

    fn next_number(&self) -> Result<u64> {
        Err(Error::new(ErrorKind::Aborted, "no file number is left"))
    }

    fn output_path(&self, number: u64) -> PathBuf {
        self.dir.join(filename::table(number))
    }

    fn create_output(
        &self,
        number: u64,
        options: WriteOptions,
        ring: Option<&BatchIo>,
    ) -> Result<Box<dyn WritableFile>> {
        let file = create_file(&*self.means.fs, &self.output_path(number), options, ring);
        file.map_err(|e| Error::io("cannot create an output", &e))
    }

    fn sync_outputs(&self) -> Result<()> {
        Ok(())
    }

    fn remove_output(&self, number: u64) {
        let _ = std::fs::remove_file(self.output_path(number));
    }

    fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }

    fn progress(&self) -> &Arc<JobProgress> {
        &self.progress
    }
}

/// A file in extents of a device.
#[derive(Debug)]
struct Extents {
    device: Arc<dyn RandomAccessFile>,
    extents: Vec<Extent>,
}

impl RandomAccessFile for Extents {
    fn read_at(&self, mut offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        for extent in &self.extents {
            let len = extent.length.saturating_sub(offset).min((buf.len() - done) as u64);
            if len > 0 {
                let piece = &mut buf[done..done + len as usize];
                assert_eq!(self.device.read_at(extent.offset + offset, piece)?, piece.len());
                done += piece.len();
            }
            offset = offset.saturating_sub(extent.length);
        }
        Ok(done)
    }

    fn size(&self) -> u64 {
        self.extents.iter().map(|extent| extent.length).sum()
    }

    fn prefetch(&self, _offset: u64, _len: u64) {}

    fn is_direct(&self) -> bool {
        self.device.is_direct()
    }
}

/// Runs the job in `dir`, as a worker would.
fn serve(dir: &Path) -> Result<JobOutput> {
    let spec = JobSpec::decode(&std::fs::read(dir.join("spec")).unwrap())?;
    let clock = std::fs::read_to_string(dir.join("clock")).unwrap().parse().unwrap();
    let (fs, clock) = (Arc::new(PosixFileSystem::default()), Arc::new(ManualClock::new(clock)));
    let means = JobMeans::new(registry().objects(&spec)?, DbOptions::default(), fs, clock);
    let host = Folder { means, dir: dir.to_owned(), cancelled: AtomicBool::new(false), progress: Arc::default() };
    run(&spec, &host)
}

/// Runs as the other process. Does nothing in the process under test.
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    for dir in std::io::stdin().lines() {
        let dir = PathBuf::from(dir.unwrap());
        let job =
            std::fs::read(dir.join("spec")).ok().and_then(|spec| JobSpec::decode(&spec).ok()).map_or(0, |s| s.job);
        let result = JobResult { job, outcome: serve(&dir) };
        std::fs::write(dir.join("result"), result.encode().unwrap()).unwrap();
        // Bypasses the harness, which captures printed output.
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{ANSWER}done").and_then(|()| out.flush()).unwrap();
    }
    std::process::exit(0); // without the harness's summary
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

/// An error elsewhere is reported as it would be here.
#[test]
fn an_error_comes_back_from_elsewhere() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (tree, c) = tree_with_l0(fs, dir, small_options(), 50);
    let mut spec = tree.spec(&c);
    (spec.job, spec.comparator) = (7, "x".into());
    let dir = scratch();
    std::fs::write(dir.path().join("spec"), spec.encode().unwrap()).unwrap();
    std::fs::write(dir.path().join("clock"), "0").unwrap();
    let result = Worker::start().run(dir.path());
    let e = result.outcome.unwrap_err();
    assert!(e.kind() == ErrorKind::NotSupported && e.message().contains("comparator \"x\""), "{e}");
    assert_eq!(result.job, 7);
}

/// TPH tables, which continue to use files of the inputs, in both key orders.
#[test]
fn jobs_over_tph_tables_write_the_same_elsewhere() {
    for comparator in [Arc::new(BytewiseComparator) as Arc<dyn Comparator>, Arc::new(HashRangeComparator)] {
        let cmp = InternalKeyComparator::new(Arc::clone(&comparator));
        let (order, is_bytewise) = (comparator.name().to_owned(), cmp.is_bytewise());
        let (mut asked, mut shared, mut reshared, mut in_parts) = (0, 0, 0, 0);
        for seed in 0..8 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut options = crate::Options { cf: small_options(), ..crate::Options::default() };
            let mut tph = TphTableOptions::default();
            tph.set_block_based_options(&options.cf.table);
            tph.set_piece_limit(*rng.choice(&[2, 4, 16]).unwrap());
            tph.set_garbage_percent(*rng.choice(&[20, 1000]).unwrap());
            options.set_tph_table_factory(&tph);
            options.set_comparator_object(Arc::clone(&comparator));
            let fs = Arc::new(MemFileSystem::new());
            fs.create_dir(Path::new("/db"), true).unwrap();
            let mut ctx = context(Arc::clone(&fs) as _, PathBuf::from("/db"));
            ctx.means.objects.cmp = cmp.clone();
            ctx.tables = Arc::new(Tables { fs, dir: PathBuf::from("/db"), cmp: cmp.clone() });
            let mut tree = Tree::new(ctx, options.cf);
            let mut seq = 0;
            for round in 0..12 {
                let mut model = Model::default();
                for _ in 0..rng.usize(20..90) {
                    seq += 1;
                    let key = format!("k{:03}", rng.u32(..250)).into_bytes();
                    match rng.u8(..12) {
                        // Range deletions do not exist in hash order.
                        0 if is_bytewise => {
                            let end = format!("{}~", String::from_utf8_lossy(&key)).into_bytes();
                            model.ranges.push((key, end, seq));
                        }
                        0..3 => model.entries.push((key, seq, ValueType::Deletion, Vec::new())),
                        3 => model.entries.push((key, seq, ValueType::Merge, seq.to_string().into_bytes())),
                        _ => model.entries.push((key, seq, ValueType::Value, vec![b'v'; rng.usize(..30)])),
                    }
                }
                tree.flush(&[model]);
                if rng.u8(..3) == 0 {
                    tree.snapshots.push(seq);
                }
                if rng.bool() && !tree.snapshots.is_empty() {
                    tree.snapshots.remove(0);
                }
                for _ in 0..3 {
                    let version = Arc::new(tree.version.clone());
                    let picked = strategy::pick(&version, &tree.cf, &mut RunningCompactions::new(), &Moment::default());
                    let Some(mut c) = picked else { break };
                    c.subcompactions_max = rng.usize(1..4);
                    asked += usize::from(!tree.spec(&c).keep.is_empty());
                    reshared += usize::from(c.input_files().any(|f| !f.entry.pieces.is_empty()));
                    if c.trivial_move {
                        tree.compact(&c);
                        continue;
                    }
                    let output = tree.run(&c).unwrap();
                    shared += usize::from(output.files.iter().any(|f| !f.pieces.is_empty()));
                    in_parts += usize::from(output.stats.subcompactions > 1);
                    tree.commit(&c, output.files);
                }
                tree.history.assert_same(&tree.all(), &tree.snapshots, &format!("{order}, seed {seed}, round {round}"));
            }
        }
        println!(
            "{order}: {asked} jobs were to share files, {shared} did, {reshared} had such inputs, {in_parts} parts"
        );
        assert!(asked > 20 && shared > 20 && reshared > 20 && in_parts > 5, "{order}");
    }
}

/// Index tables, oldest first, of these histories: values longer than eight bytes are in log `number`.
fn index_tables(fs: &dyn FileSystem, dir: &Path, number: u64, models: &[Model]) -> Vec<SealedTable> {
    let (mut encoder, mut bytes, mut offsets) = (LogEncoder::new(number, false, 0), Vec::new(), HashMap::new());
    for (_, seq, _, value) in models.iter().flat_map(|m| &m.entries) {
        offsets.insert(*seq, RecordPlace { start: bytes.len() as u64, recyclable: false }.offset_of(0));
        encoder.add_record(value, &mut bytes);
    }
    let path = dir.join(filename::wal(number));
    fs.write_all(&path, &bytes).unwrap();
    let file = fs.open_random(&path, false).unwrap();
    let log = Arc::new(LogFile::new(number, path, file, false));
    let table = |(id, model): (u64, &Model)| {
        let mem = MemTable::new(id, InternalKeyComparator::default(), 4096).with_values_in_log(8);
        for (key, seq, value_type, value) in &model.entries {
            let at = LoggedValue { log: &log, offset: offsets[seq] };
            mem.add_logged(*seq, *value_type, key, value, Some(at));
        }
        for (begin, end, seq) in &model.ranges {
            mem.add(*seq, ValueType::RangeDeletion, begin, end);
        }
        SealedTable::Plain(Arc::new(mem))
    };
    (1..).zip(models).map(table).collect()
}

/// Flushes of index tables whose values are in logs; single tables, and several that an index merge made into one.
#[test]
fn flushes_of_index_tables_write_the_same_elsewhere() {
    let (real, memory) = (tempfile::tempdir().unwrap(), MemFileSystem::new());
    memory.create_dir(Path::new("/db"), true).unwrap();
    let places: [(Arc<dyn FileSystem>, PathBuf); 2] =
        [(Arc::new(PosixFileSystem::default()), real.path().to_owned()), (Arc::new(memory), PathBuf::from("/db"))];
    let (mut left_out, mut dropped) = (0, ResolveStats::default());
    for (fs, dir) in places {
        for seed in 0..6 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut tree = Tree::new(context(Arc::clone(&fs), dir.clone()), small_options());
            tree.cf.merge_operator = rng.bool().then(rules::operator);
            tree.change_filter(1); // flushes ask factories alone
            let (mut last, mut alive, mut models) = (0, [false; 256], Vec::new());
            for _ in 0..3 {
                let mut model = random_history(&mut rng, &mut last, 100, &mut alive);
                for (.., value) in model.entries.iter_mut().filter(|e| !e.3.is_empty()) {
                    value.resize(rng.usize(1..3000), b'v');
                }
                models.push(model);
                if rng.bool() {
                    tree.snapshots.push(last - 20);
                }
            }
            let tables = index_tables(&*fs, &dir, 100 + seed, &models);
            let mut merged = |tables: &[SealedTable]| {
                let newest_first: Vec<_> = tables.iter().rev().cloned().collect();
                let (snapshots, filter) = (&tree.snapshots, &MemTableFilter::default());
                let stop = &|| false;
                let plan = MergePlan { visible: last, snapshots, threads: 2, filter, manager: None, stop };
                let (table, left) = MergedMemTable::build(&newest_first, &plan).unwrap().unwrap();
                left_out += left.entries;
                SealedTable::Merged(Arc::new(table))
            };
            let cases = [vec![merged(&tables[..2]), tables[2].clone()], vec![merged(&tables)], tables];
            for tables in cases {
                let runs = SealedRuns::of(tables);
                assert_eq!(runs.with_values_in_logs(), runs.tables().len());
                let host = LocalHost { sealed: Some(runs.clone()), ..tree.host() };
                let reason = TableFileCreationReason::Flush;
                let spec = JobSpec::of_flush(&runs, &tree.family(), reason, 0, &host.means).unwrap();
                assert_eq!(spec.memtables, [1, 2, 3]);
                let flushed = run(&spec, &host).unwrap();
                compare_flush(&spec, &host, &flushed);
                dropped.add(flushed.stats.dropped);
                flushed.files.iter().for_each(|f| host.remove_output(f.number));
            }
        }
    }
    let (filtered, merged) = (dropped.filtered, dropped.merged);
    println!("{left_out} left out by index merges, {filtered} filtered, {merged} merged");
    assert!(left_out > 100 && filtered > 5 && merged > 50);
}

/// The number of parts that a spec asks for is not the number of threads.
#[test]
fn many_parts_wait_for_few_threads() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (tree, c) = tree_with_l0(fs, dir, small_options(), 400);
    let mut spec = tree.spec(&c);
    let bounds: Vec<Vec<u8>> = contents(&tree.ctx, tree.version.levels[0].base.first().unwrap())
        .entries
        .chunk_by(|a, b| a.0 == b.0)
        .map(|of_key| of_key[0].0.clone())
        .collect();
    assert!(bounds.len() > 100);
    let ends = bounds.iter().map(|key| Some(key.clone())).chain([None]);
    let mut begin = None;
    spec.parts =
        ends.map(|end| Part { begin: std::mem::replace(&mut begin, end.clone()), end, blocks: None }).collect();
    let mut whole: Option<Vec<_>> = None;
    for (parts_max, parallel) in [(1, 9), (3, 9), (9, 2), (0, 9), (1000, 4)] {
        spec.parts_max = parts_max;
        let mut host = tree.host();
        (host.means.parallel_parts_max, host.means.engines) = (parallel, Arc::default());
        let output = run(&spec, &host).unwrap();
        // Each thread has a ring, if rings are available.
        let (made, most) = (host.means.engines.rings.made(), parts_max.min(parallel).max(1) as u64);
        assert!(made <= most, "{made} rings for {most} threads");
        assert_eq!(output.stats.subcompactions, spec.parts.len() as u64);
        // File numbers depend on the order of the parts; all else is the same.
        let files = output.files.iter().map(|f| {
            let table = host.open_input(&SpecFile::new(f.clone())).unwrap();
            (contents_of(&table).entries, f.smallest.clone(), f.largest.clone())
        });
        let files: Vec<_> = files.collect();
        output.files.iter().for_each(|f| host.remove_output(f.number));
        assert!(*whole.get_or_insert_with(|| files.clone()) == files, "{parts_max} parts, {parallel} in parallel");
    }
}

fn filter_named(name: &str, from_factory: bool) -> crate::compaction::spec::FilterSpec {
    let name = name.into();
    crate::compaction::spec::FilterSpec { name, from_factory, input_start_level: Some(0), ..Default::default() }
}

/// Two hosts with filters of the same name but different limits would write different tables.
#[test]
fn a_host_refuses_a_filter_with_other_options() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (mut tree, c) = tree_with_l0(fs, dir, small_options(), 50);
    let lives_for = |seconds: u64| {
        let mut options = crate::Options { cf: small_options(), ..crate::Options::default() };
        options.set_compaction_filter("keep", |_, _, _| crate::compaction_filter::Decision::Keep);
        wrap(&mut options.cf, &options.db, seconds);
        options.cf
    };
    // With a limit as the suffix of the name.
    let limited = |limit: u32| CfOptions { compaction_filter: Some(rules::limited(limit)), ..small_options() };
    let pairs = [
        ("seconds=100;filter=\"keep\"", [lives_for(100), lives_for(50)]),
        ("limit 3", [limited(3), limited(4)]),
        ("", [limited(0), limited(4)]),
    ];
    for (said, [mine, others]) in pairs {
        let registry = |of: &[&CfOptions]| JobRegistry {
            filters: of.iter().filter_map(|cf| cf.compaction_filter.clone()).collect(),
            filter_factories: of.iter().filter_map(|cf| cf.compaction_filter_factory.clone()).collect(),
            ..JobRegistry::default()
        };
        tree.cf = mine.clone();
        let spec = tree.spec(&c);
        assert_eq!(spec.filter.as_ref().map(|f| f.options.as_str()), Some(said));
        assert_eq!(JobSpec::decode(&spec.encode().unwrap()).as_ref(), Ok(&spec));
        // Among several filters of the same name, selects the one with the same options.
        let objects = registry(&[&others, &mine]).objects(&spec).unwrap();
        let mut host = tree.host();
        host.means.objects = objects;
        let output = run(&spec, &host).unwrap();
        output.files.iter().for_each(|f| host.remove_output(f.number));
        let e = registry(&[&others]).objects(&spec).unwrap_err();
        let named = format!("compaction filter with options {said:?}");
        assert!(e.kind() == ErrorKind::NotSupported && e.message().contains(&named), "{e}");
        tree.cf = others;
        let e = run(&spec, &tree.host()).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(&named), "{e}");
    }
}

/// A changed time to live applies to later jobs, and does not affect jobs that have begun.
#[test]
fn a_job_goes_by_the_options_that_its_filter_had_when_it_was_made() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let (mut tree, c) = tree_with_l0(fs, dir, small_options(), 50);
    wrap(&mut tree.cf, &DbOptions::default(), 100);
    let host = tree.host();
    let spec = JobSpec::of_compaction(&c, &tree.family(), 0, &host.means).unwrap();
    let factory = tree.cf.compaction_filter_factory.as_ref().unwrap();
    factory.time_to_live.as_ref().unwrap().store(50, Ordering::Release);
    run(&spec, &host).unwrap();
    assert_eq!(tree.spec(&c).filter.unwrap().options, "seconds=50");
    let e = run(&spec, &tree.host()).unwrap_err();
    assert!(e.message().contains("seconds=100") && e.message().contains("seconds=50"), "{e}");
}

/// Changes something in a spec that a runner relies on.
fn distort(spec: &mut JobSpec, rng: &mut fastrand::Rng) {
    let number = *rng.choice(&[0, 1, 7, 1 << 20, 1 << 58]).unwrap();
    let key = |rng: &mut fastrand::Rng| format!("k{:05}", rng.u32(0..120)).into_bytes();
    let i = rng.usize(..spec.runs.len());
    let entry = spec.runs[i].files.first_mut().map(|f| &mut Arc::make_mut(f).entry).unwrap();
    let o = &mut spec.output;
    match rng.u8(0..25) {
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
        23 => o.format.tph = Some(TphSettings { piece_limit: number as u32, garbage_percent: rng.u32(0..2000) }),
        _ => {
            // Blocks that do not exist, or an incomplete list.
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
        let mut host = tree.host();
        host.means.objects = objects;
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
    let host = LocalHost {
        new_file_number: Arc::new(|| Err(Error::new(ErrorKind::Aborted, "no file number is left"))),
        ..tree.host()
    };
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let before = files();
    let e = run(&spec, &host).unwrap_err();
    assert!(e.message().contains("no file number is left"), "{e}");
    assert_eq!(files(), before);
}
