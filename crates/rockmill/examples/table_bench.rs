//! Speed of one table: building, lookups with all blocks cached, scans, compaction input. Run with `cargo run --release
//! -p rockmill --example table_bench`. It prints processor times and asserts nothing.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill::CompressionType;
use rockmill::internals::{
    BlockBasedSettings, BlockCache, GetContext, InternalIterator, Table, TableBuilder, TableBuilderOptions,
    TableOpenOptions, TableReadOptions,
};
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK, ValueType};
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKeyComparator, key};
use rockmill_io::{FileSystem, PosixFileSystem, WriteOptions};

type Failure = Box<dyn std::error::Error>;

/// A stopwatch for this thread's processor time, so that other load on the machine does not affect the figures.
struct Cpu(u64);

impl Cpu {
    fn now() -> Self {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        Self(text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0))
    }
    fn seconds(&self) -> f64 {
        (Self::now().0 - self.0) as f64 / 1e9
    }
}

fn main() -> Result<(), Failure> {
    for value_len in [100, 1000] {
        for compression in [CompressionType::None, CompressionType::Lz4] {
            run(value_len, compression)?;
        }
    }
    Ok(())
}

fn run(value_len: usize, compression: CompressionType) -> Result<(), Failure> {
    let count = (128 << 20) / (value_len + 24);
    let fs = PosixFileSystem::default();
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let path = scratch.path().join("table.sst");
    let cmp = InternalKeyComparator::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = (0..1 << 20).map(|i| if i % 2 == 0 { rng.u8(..) } else { b' ' }).collect();
    let key_of = |i: usize| InternalKey::new(format!("{:016}", i * 7).as_bytes(), 9, ValueType::Value);
    let keys: Vec<InternalKey> = (0..count).map(key_of).collect();
    let options = TableBuilderOptions {
        cmp: cmp.clone(),
        tph: None,
        pieces: Arc::new([]),
        replaced: Arc::default(),
        block_based: BlockBasedSettings { bloom_bits_per_key: 10.0, ..BlockBasedSettings::default() },
        compression,
        compression_opts: rockmill::CompressionOptions::default(),
        target_file_size: 0,
        prefix_extractor: None,
        properties: TableProperties::default(),
        path: path.clone(),
        statistics: None,
    };

    let start = Cpu::now();
    let mut builder = TableBuilder::new(options, fs.create(&path, WriteOptions::default())?);
    for (i, k) in keys.iter().enumerate() {
        let at = i * 31 % (noise.len() - value_len);
        builder.add(k.as_bytes(), &noise[at..at + value_len])?;
    }
    let built = start.seconds();
    let summary = builder.finish()?;
    let raw = (count * (value_len + 24)) as f64 / 1e6;
    println!("values of {value_len} B, {compression:?}: {count} entries, file {} MB", summary.file_size >> 20);
    println!("  build       {:7.0} MB/s without sync, {:.0} ns/entry", raw / built, built * 1e9 / count as f64);

    let start = Cpu::now();
    let cache = BlockCache::new(1 << 30);
    let open = || {
        let options = TableOpenOptions {
            path: PathBuf::from(&path),
            cmp: cmp.clone(),
            cache: Some(Arc::clone(&cache)),
            largest_seqno: None,
            statistics: None,
            read_protection: None,
            prefix_extractor: None,
        };
        Ok::<_, Failure>(Table::open(fs.open_random(&path, false)?, options)?)
    };
    let table = open()?;
    println!("  open        {:7.0} us, {} KiB held", start.seconds() * 1e6, table.memory_usage() >> 10);

    let ro = TableReadOptions::default();
    scan("scan, file  ", raw, count, &mut *table.iter(ro));
    scan("scan, cached", raw, count, &mut *table.iter(ro));
    scan("past cache  ", raw, count, &mut *table.scan(2 << 20, true));
    for (name, part) in [("hot 1% ", count / 100), ("all    ", count)] {
        let lookups = 1_000_000;
        let targets: Vec<InternalKey> = (0..lookups.min(part * 4))
            .map(|_| InternalKey::new(keys[rng.usize(..part)].user_key(), MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK))
            .collect();
        let mut found = 0;
        let start = Cpu::now();
        for target in targets.iter().cycle().take(lookups) {
            let mut ctx = GetContext::new(key::user_key(target.as_bytes()));
            table.get(target.as_bytes(), ro, &mut ctx)?;
            found += usize::from(ctx.is_done());
        }
        let ns = start.seconds() * 1e9 / lookups as f64;
        println!("  get {name} {ns:7.0} ns cached ({found} of {lookups} found)");
    }
    let start = Cpu::now();
    let lookups = 1_000_000;
    let mut passed = 0;
    for i in 0..lookups {
        let target = InternalKey::new(keys[i % count].user_key(), 1, VALUE_TYPE_FOR_SEEK);
        let mut absent = target.as_bytes().to_vec();
        absent[15] ^= 0x40;
        let mut ctx = GetContext::new(key::user_key(&absent));
        table.get(&absent, ro, &mut ctx)?;
        passed += usize::from(ctx.is_done());
    }
    println!("  get absent  {:7.0} ns ({passed} found)", start.seconds() * 1e9 / lookups as f64);
    fs.remove(&path)?;
    Ok(())
}

fn scan<I: InternalIterator + ?Sized>(name: &str, raw: f64, count: usize, it: &mut I) {
    let start = Cpu::now();
    let (mut n, mut bytes) = (0, 0);
    it.seek_to_first();
    while it.valid() {
        n += 1;
        bytes += it.key().len() + it.value().len();
        it.next();
    }
    let seconds = start.seconds();
    let complete = if n == count && it.status().is_ok() { "" } else { " INCOMPLETE" };
    println!("  {name}{:7.0} MB/s, {:.0} ns/entry{complete} ({bytes} bytes)", raw / seconds, seconds * 1e9 / n as f64);
}
