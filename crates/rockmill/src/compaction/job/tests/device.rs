//! The jobs of these tests once more, each by a worker that has nothing but a device (`compaction/elsewhere.rs`,
//! `compaction/worker.rs`): the tables are the same, byte by byte. And what comes of a worker that lies.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use rockmill_format::block::{BlockCursor, BlockKind, BlockLayout};
use rockmill_format::checksum::ChecksumType;
use rockmill_format::footer::Footer;
use rockmill_format::properties::TableProperties;

use super::elsewhere::registry;
use super::*;
use crate::compaction::elsewhere as remote;
use crate::compaction::result::JobResult;
use crate::compaction::spec::FilterSpec;
use crate::compaction::worker::{WorkerDevice, WorkerMachine};
use crate::compaction::{JobOutput, JobStats};
use crate::compaction_workers::{JobCode, JobDevice, RemoteDone, RemoteJob, RemoteUsage, TableCheck, TakenWorker};
use crate::error::{Error, ErrorKind};
use crate::options::TableKind;

/// Of a table.
const FOOTER_BYTES: u64 = 53;

/// What a worker does to its result before it sends it.
type Lie = dyn Fn(&mut JobResult) + Send + Sync;

/// What a worker does to its first table before it writes it, given the size that its result says.
type Forgery = dyn Fn(&mut [u8], usize) + Send + Sync;

/// The part that a sample in these tests has.
const PERCENT: u8 = 25;

/// Samples and all.
fn checks() -> [TableCheck; 2] {
    [TableCheck::All, TableCheck::Sample { percent: PERCENT, seed: 1 }]
}

/// A worker in this process.
struct InProcess {
    clock: Arc<dyn rockmill_io::Clock>,
    engine: MergeEngine,
    lie: Box<Lie>,
    /// Changes what it does.
    other: fn(&mut JobSpec),
    /// Changes this byte of the first output.
    damages: Option<u64>,
    forges: Option<Box<Forgery>>,
    check: TableCheck,
    /// Writes to the device again when the result is there.
    writes_late: Mutex<Option<Arc<JobDevice>>>,
    rejected: AtomicU64,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcess")
    }
}

/// A write that is held back, and its offset.
type HeldWrite = (u64, Vec<u8>);

#[derive(Debug)]
struct Lent {
    device: Arc<JobDevice>,
    damages: Option<u64>,
    /// What is held back; `None` where nothing is.
    held: Option<Mutex<Vec<HeldWrite>>>,
}

impl Lent {
    /// Writes what is held back, the first output as it was made another.
    fn release(&self, first_size: u64, forge: &Forgery) {
        let held = std::mem::take(&mut *self.held.as_ref().unwrap().lock());
        let (outputs_at, mut first, mut others) = (self.device.outputs_at(), Vec::new(), Vec::new());
        for (offset, data) in held {
            match offset == outputs_at + first.len() as u64 {
                true => first.extend(data),
                false => others.push((offset, data)),
            }
        }
        forge(&mut first, first_size as usize);
        self.device.write(outputs_at, &first).unwrap();
        others.into_iter().for_each(|(offset, data)| self.device.write(offset, &data).unwrap());
    }
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
        if let Some(held) = &self.held {
            held.lock().push((offset, data));
            return Ok(());
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

    fn check(&self) -> TableCheck {
        self.check
    }

    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone> {
        let machine = WorkerMachine::new(registry(), 1, Arc::clone(&self.clock));
        let machine = machine.with_engine(self.engine)?;
        let mut spec = machine.accept(job.spec)?;
        (self.other)(&mut spec);
        let held = self.forges.as_ref().map(|_| Mutex::default());
        let lent = Arc::new(Lent { device: Arc::clone(job.device), damages: self.damages, held });
        let mut result = machine.run(&spec, Arc::clone(&lent) as Arc<dyn WorkerDevice>, &Arc::default());
        if let Some(forge) = &self.forges {
            lent.release(result.outcome.as_ref().unwrap().files[0].size, &**forge);
        }
        (self.lie)(&mut result);
        *self.writes_late.lock() = Some(Arc::clone(job.device));
        Ok(RemoteDone { result: result.encode()?, worker: "here".to_owned(), usage: RemoteUsage::default() })
    }
}

fn honest(ctx: &LocalHost) -> InProcess {
    let clock = Arc::clone(&ctx.means.clock);
    InProcess {
        clock,
        engine: MergeEngine::Pread, // which needs no memory for reads in flight, and most jobs here are small
        lie: Box::new(|_| {}),
        other: |_| {},
        damages: None,
        forges: None,
        check: TableCheck::All,
        writes_late: Mutex::default(),
        rejected: AtomicU64::new(0),
    }
}

/// The host with numbers that nobody else has.
pub(super) fn numbered(ctx: &LocalHost) -> LocalHost {
    let next = AtomicU64::new(1 << 31);
    let new_file_number = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    let mut host = LocalHost { new_file_number, events: JobEvents::default(), ..ctx.clone() };
    host.means.db.merge_engine = MergeEngine::Pread;
    // What it does is not among what the job's own engines have done.
    host.means.engines = Arc::default();
    host
}

/// Takes away the tables of an output, and gives their bytes.
pub(super) fn taken(host: &LocalHost, output: &JobOutput) -> Vec<Vec<u8>> {
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
    if remote::may_go(spec, |code| registry().knows(code)).is_err() {
        return;
    }
    let mut spec = spec.clone();
    spec.parts_max = 1; // or numbers would go to parts by chance
    let host = numbered(ctx);
    let here = run(&spec, &host).unwrap();
    let bytes = taken(&host, &here);
    let host = numbered(ctx);
    let check = checks()[(spec.input_bytes() % 2) as usize];
    let engine = if spec.input_bytes() % 4 < 2 { MergeEngine::Uring } else { MergeEngine::Pread };
    let done = remote::run(&spec, &host, &InProcess { check, engine, ..honest(ctx) });
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
    assert_eq!(remote::may_go(&spec, |_| false), Ok(()));
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
    let lies: [(&str, Change); 22] = [
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
        ("an input that was dropped unread", |made| made.stats.files_covered = 1),
        ("one in place of what was not read", |made| {
            (made.stats.files_covered, made.stats.input_records) = (1, 0);
        }),
        ("its bytes", |made| (made.stats.files_covered, made.stats.bytes_covered) = (1, 1)),
        ("bytes of none", |made| made.stats.bytes_covered = 1),
        ("more entries dropped than there are", |made| made.stats.dropped.hidden = u64::MAX),
    ];
    for ((what, change), check) in lies.into_iter().flat_map(|lie| checks().map(|check| (lie, check))) {
        let host = numbered(&tree.host());
        let lie = move |result: &mut JobResult| change(result.outcome.as_mut().unwrap());
        let worker = InProcess { lie: Box::new(lie), check, ..honest(&host) };
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
fn tables_of_another_format_are_refused() {
    type Change = fn(&mut JobSpec);
    let changes: [(&str, Change); 9] = [
        ("checksum", |spec| spec.output.format.block_based.checksum = ChecksumType::None),
        ("checksum", |spec| spec.output.format.block_based.checksum = ChecksumType::Crc32c),
        ("format_version", |spec| spec.output.format.block_based.format_version = 6),
        ("compression", |spec| spec.output.compression = CompressionType::Lz4),
        ("compression", |spec| spec.output.compression_opts.level = 3),
        ("filter", |spec| {
            let bits = &mut spec.output.format.block_based.bloom_bits_per_key;
            *bits = if *bits > 0.0 { 0.0 } else { 10.0 };
        }),
        ("filter", |spec| spec.output.format.block_based.whole_key_filtering = false),
        ("index type", |spec| spec.output.format.block_based.two_level_index = true),
        ("restart interval", |spec| spec.output.format.block_based.block_restart_interval = 4),
    ];
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    for ((what, other), check) in changes.into_iter().flat_map(|change| checks().map(|check| (change, check))) {
        let host = numbered(&tree.host());
        let worker = InProcess { other, check, ..honest(&host) };
        let e = remote::run(&spec, &host, &worker).expect_err(what);
        assert!(e.message().contains(&format!("is of another format: {what}")), "{what}: {e}");
        assert_eq!(names(&fs), before, "{what}");
    }
    // Without checksums a sample would not see it.
    let host = numbered(&tree.host());
    let forge = |table: &mut [u8], size: usize| table[size - FOOTER_BYTES as usize] = ChecksumType::None as u8;
    let worker = InProcess { forges: Some(Box::new(forge)), ..honest(&host) };
    let e = remote::run(&spec, &host, &worker).expect_err("a footer");
    assert!(e.message().contains("is of another format: checksum"), "{e}");
    assert_eq!(names(&fs), before);
}

/// Some inputs are as a whole deleted by range tombstones of others, and not read: the host finds the same ones.
#[test]
fn inputs_that_are_dropped_unread_are_counted_here_too() {
    let fs = Arc::new(MemFileSystem::new());
    let dir = PathBuf::from("/db");
    fs.create_dir(&dir, true).unwrap();
    let mut tree = Tree::new(context(Arc::clone(&fs) as _, dir), small_options());
    let keys = |from: u32, seq: u64| {
        let entry = |i| (format!("k{i:05}").into_bytes(), seq + u64::from(i - from), ValueType::Value, vec![b'v'; 20]);
        Model { entries: (from..from + 100).map(entry).collect(), ..Model::default() }
    };
    tree.flush(&[keys(0, 1)]);
    tree.flush(&[keys(200, 101)]);
    let deletes = (b"k00000".to_vec(), b"k00100".to_vec(), 300);
    tree.flush(&[Model { ranges: vec![deletes], ..keys(400, 301) }]);
    let (version, none) = (Arc::new(tree.version.clone()), RunningCompactions::new());
    let picked = manual::pick(&version, &tree.cf, &none, 0, 1, None, None, u64::MAX);
    let ManualPick::Pick(c, _) = picked else { panic!("nothing picked") };
    let spec = tree.spec(&c);
    compare(&spec, &tree.host());
    let host = numbered(&tree.host());
    let (output, _) = remote::run(&spec, &host, &honest(&host)).unwrap();
    assert_eq!((output.stats.files_covered, output.stats.input_records), (1, 200));
    taken(&host, &output);
    type Change = fn(&mut JobStats);
    let lies: [(&str, Change); 4] = [
        ("fewer entries", |stats| stats.input_records -= 1),
        ("entries of the input that was dropped", |stats| stats.input_records += 1),
        ("another input", |stats| stats.files_covered = 2),
        ("no input", |stats| (stats.files_covered, stats.bytes_covered) = (0, 0)),
    ];
    for (what, change) in lies {
        let host = numbered(&tree.host());
        let lie = move |result: &mut JobResult| change(&mut result.outcome.as_mut().unwrap().stats);
        remote::run(&spec, &host, &InProcess { lie: Box::new(lie), ..honest(&host) }).expect_err(what);
    }
}

/// What a worker reads has no other checksums on its way.
#[test]
fn inputs_without_checksums_stay_here() {
    for (checksum, goes) in [(ChecksumType::None, false), (ChecksumType::Xxh3, true)] {
        for table_factory in [TableKind::BlockBased, TableKind::Tph] {
            let fs = Arc::new(MemFileSystem::new());
            let dir = PathBuf::from("/db");
            fs.create_dir(&dir, true).unwrap();
            let mut cf = CfOptions { table_factory, ..small_options() };
            cf.table.checksum = checksum;
            let (tree, c) = tree_with_l0(fs, dir, cf, 100);
            let said = remote::inputs_may_go(&tree.spec(&c), &tree.host());
            assert_eq!(said.is_ok(), goes, "{checksum:?} {table_factory:?} {said:?}");
            assert!(goes || said.unwrap_err().contains("has no checksums"));
        }
    }
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

/// The first table of a job, and its data blocks.
fn first_table(tree: &Tree, spec: &JobSpec) -> (u64, Vec<BlockHandle>) {
    let host = numbered(&tree.host());
    let (output, _) = remote::run(spec, &host, &honest(&host)).unwrap();
    let table = host.open_input(&SpecFile::new(output.files[0].clone())).unwrap();
    let blocks = table.as_block_based().unwrap().blocks_between(None, None).unwrap();
    let size = output.files[0].size;
    taken(&host, &output);
    (size, blocks)
}

/// What a sample never misses is all that is not in the middle of the data; and a block there as rarely as is said.
#[test]
fn a_sample_finds_what_it_is_said_to_find() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    let (size, blocks) = first_table(&tree, &spec);
    let is_found = |byte: u64, percent: u8, seed: u64| {
        let host = numbered(&tree.host());
        let check = TableCheck::Sample { percent, seed };
        let worker = InProcess { damages: Some(byte), check, ..honest(&host) };
        match remote::run(&spec, &host, &worker) {
            Ok((output, _)) => drop(taken(&host, &output)),
            Err(e) => {
                assert!(!e.message().contains("panicked"), "byte {byte} of {size}: {e}");
                assert_eq!(names(&fs), before);
                return true;
            }
        }
        false
    };
    let [first, .., last] = blocks[..] else { panic!("{blocks:?}") };
    let middle = first.end()..last.offset;
    let always = (0..size - FOOTER_BYTES).step_by(7).filter(|byte| !middle.contains(byte));
    for byte in always.chain([size - FOOTER_BYTES, size - 8, size - 1]) {
        assert!(is_found(byte, 0, byte), "byte {byte} of {size}, where the middle is {middle:?}");
        assert!(is_found(byte, PERCENT, byte), "byte {byte} of {size}");
    }
    let wanted = (blocks.len() * usize::from(PERCENT)).div_ceil(100) as f64 / blocks.len() as f64;
    let (mut found, mut tried) = (0, 0);
    for (i, byte) in middle.clone().step_by(7).enumerate() {
        assert!(!is_found(byte, 0, i as u64), "with nothing but the ends");
        assert!(is_found(byte, 100, i as u64), "with all blocks");
        for seed in 0..4 {
            tried += 1;
            found += usize::from(is_found(byte, PERCENT, (4 * i + seed) as u64));
        }
    }
    let deviation = (wanted * (1.0 - wanted) / tried as f64).sqrt();
    let part = found as f64 / tried as f64;
    println!("{found} of {tried} found, {part:.3} where {wanted:.3} is said; {} blocks", blocks.len());
    assert!(tried > 200 && (part - wanted).abs() < 4.0 * deviation, "{part} where {wanted} is said");
}

/// Changes properties in a table of `size` bytes, with a checksum that is right.
fn forge_properties(table: &mut [u8], size: usize, change: fn(&mut TableProperties)) {
    let footer = Footer::decode(&table[..size], size as u64).unwrap();
    let contents = |table: &[u8], handle: BlockHandle| table[handle.offset as usize..][..handle.size as usize].to_vec();
    let metaindex = contents(table, footer.metaindex);
    let mut cursor = BlockCursor::new(BlockLayout::parse(&metaindex).unwrap(), BlockKind::Meta);
    cursor.seek_to_first(&metaindex).unwrap();
    while cursor.key() != b"rocksdb.properties" {
        cursor.next(&metaindex).unwrap();
    }
    let (place, _) = BlockHandle::decode(&metaindex[cursor.value_range()]).unwrap();
    let mut properties = TableProperties::decode_block(&contents(table, place)).unwrap();
    change(&mut properties);
    let mut block = properties.encode_block();
    assert_eq!(block.len() as u64, place.size, "another length would need another metaindex");
    let checksum = footer.block_checksum(&block, 0, place.offset);
    block.push(0);
    block.extend_from_slice(&checksum.to_le_bytes());
    table[place.offset as usize..][..block.len()].copy_from_slice(&block);
}

#[test]
fn properties_that_lie_are_found_by_a_sample_unless_only_the_data_says_otherwise() {
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, before) = tree_and_job(&fs);
    type Change = fn(&mut TableProperties);
    // With what a sample of the ends alone sees.
    let forgeries: [(&str, bool, Change); 9] = [
        ("nothing", false, |_| {}),
        ("fewer blocks", true, |p| p.num_data_blocks -= 1),
        ("less data", true, |p| p.data_size -= 1),
        ("an earlier end", true, |p| p.tail_start_offset -= 1),
        ("an entry for each block, less one", true, |p| p.num_entries = p.num_data_blocks - 1),
        ("another column family", true, |p| p.column_family_id += 1),
        ("another newest entry", true, |p| p.key_largest_seqno = p.key_largest_seqno.map(|seq| seq ^ 1)),
        // Which only those see that look at all entries.
        ("more deletions", false, |p| p.num_deletions += 1),
        ("longer values", false, |p| p.raw_value_size += 1),
    ];
    for (what, is_seen, change) in forgeries {
        for check in [TableCheck::All, TableCheck::Sample { percent: 0, seed: 0 }] {
            let host = numbered(&tree.host());
            let forge = move |table: &mut [u8], size: usize| forge_properties(table, size, change);
            let worker = InProcess { forges: Some(Box::new(forge)), check, ..honest(&host) };
            match remote::run(&spec, &host, &worker) {
                Ok((output, _)) => {
                    assert!(what == "nothing" || (check != TableCheck::All && !is_seen), "{what}: {check:?}");
                    taken(&host, &output);
                }
                Err(e) => {
                    assert!(what != "nothing" && (check == TableCheck::All || is_seen), "{what}: {check:?}: {e}");
                    assert!(!e.message().contains("panicked"), "{what}: {e}");
                }
            }
            assert_eq!(names(&fs), before, "{what}");
        }
    }
}

#[test]
fn the_rate_limiter_counts_what_a_worker_reads_and_writes() {
    use crate::rate_limiter::{RateLimiter, RateLimiterMode};
    let fs = Arc::new(MemFileSystem::new());
    let (tree, spec, _) = tree_and_job(&fs);
    for mode in [RateLimiterMode::KReadsOnly, RateLimiterMode::KWritesOnly, RateLimiterMode::KAllIo] {
        let limiter = RateLimiter::new(1 << 30, 100_000, 10, mode, false);
        let mut host = numbered(&tree.host());
        host.means.db.rate_limiter = Some(Arc::clone(&limiter));
        let worker = honest(&host);
        let (output, _) = remote::run(&spec, &host, &worker).unwrap();
        let written = output.stats.output_bytes * u64::from(mode.limits_writes());
        let read = spec.input_bytes() * u64::from(mode.limits_reads());
        let through = limiter.total_bytes_through(None);
        // Whole blocks of 4 KiB, and an input's end is read to open it.
        assert!(through >= written + read && (through > 0) == (written + read > 0), "{mode:?}: {through}");
        assert!(read > 0 || through <= written + (output.files.len() as u64) * 4096, "{mode:?}: {through}");
        taken(&host, &output);
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
    fn filter(name: &str, options: &str, from_factory: bool) -> Option<FilterSpec> {
        Some(FilterSpec { name: name.into(), options: options.into(), from_factory, ..FilterSpec::default() })
    }
    let changes: [(&str, Change); 8] = [
        ("to have the comparator \"x\"", |spec| spec.comparator = "x".into()),
        ("to have the merge operator \"x\"", |spec| spec.merge_operator = "x".into()),
        ("to have the prefix extractor \"x\"", |spec| spec.output.format.prefix_extractor = "x".into()),
        ("to have the compaction filter \"f\" with the options \"o\"", |spec| spec.filter = filter("f", "o", false)),
        ("filter of the factory \"f\"", |spec| spec.filter = filter("f", "", true)),
        ("with the options \"seconds=1;filter=\\\"f\\\"\"", |spec| {
            spec.filter = filter("TtlCompactionFilterFactory", "seconds=1;filter=\"f\"", true);
        }),
        ("into L0", |spec| spec.output.level = 0),
        ("no input", |spec| spec.runs.clear()),
    ];
    for (why, change) in changes {
        let mut spec = spec.clone();
        change(&mut spec);
        let said = remote::may_go(&spec, |_| false).unwrap_err();
        assert!(said.contains(why), "{said}, where {why} is the reason");
    }
    // What all workers have may go, and nothing that they have not.
    for (name, options, from_factory, goes) in [
        ("f", "o", false, true),
        ("f", "", false, false),
        ("f", "o", true, false),
        ("TtlCompactionFilterFactory", "seconds=1", true, true),
        ("TtlCompactionFilterFactory", "seconds=1", false, false),
    ] {
        let spec = JobSpec { filter: filter(name, options, from_factory), ..spec.clone() };
        let knows = |code: JobCode<'_>| code == JobCode::Filter { name: "f", options: "o" };
        assert_eq!(remote::may_go(&spec, knows).is_ok(), goes, "{name} {options} {from_factory}");
    }
}
