//! A seek that reads the blocks of several sorted runs at once finds the same as one that reads them in turn, with the
//! same reads.

use std::path::Path;
use std::sync::Arc;

use rockmill::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rockmill::statistics::{Histogram, Ticker};
use rockmill::{
    BlockBasedOptions, Db, DbRawIterator, ErrorKind, MergeEngine, Options, ReadOptions, SliceTransform, TphTableOptions,
};
use rockmill_io::ring::{BatchKind, BatchLimits, CallOrder};
use rockmill_io::{CountingFileSystem, Fault, FileSystem, MemFileSystem, PosixFileSystem};
use rockmill_skip::{Needs, skip};

/// One of the databases that are compared.
#[derive(Debug, Clone, Copy)]
struct Kind {
    tph: bool,
    cache: bool,
    prefixes: bool,
}

const KINDS: [Kind; 5] = [
    Kind { tph: false, cache: false, prefixes: false },
    Kind { tph: false, cache: true, prefixes: false },
    Kind { tph: false, cache: true, prefixes: true },
    Kind { tph: true, cache: false, prefixes: false },
    Kind { tph: true, cache: true, prefixes: false },
];

impl Kind {
    fn options(self, fs: Arc<dyn FileSystem>, engine: MergeEngine) -> Options {
        let mut o = super::multi_get::reads_past_the_page_cache(fs, engine);
        let mut t = BlockBasedOptions::default();
        t.set_block_size(512);
        t.set_bloom_filter(10.0, false);
        if !self.cache {
            t.disable_cache();
        }
        if self.prefixes {
            o.set_prefix_extractor(SliceTransform::create_fixed_prefix(7));
        }
        if self.tph {
            let mut tph = TphTableOptions::default();
            tph.set_block_based_options(&t);
            o.set_tph_table_factory(&tph);
        } else {
            o.set_block_based_table_factory(&t);
        }
        o
    }
}

fn key(i: u64) -> String {
    format!("key{i:05}")
}

/// Tables in L0 above a level, with everything that a seek can find, and a memtable. If tables can have pieces, those
/// of the level have several.
fn fill(db: &Db) {
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..7u64 {
        let keys = if round == 0 { 1500 } else { 300 };
        for i in 0..keys {
            let k = if round == 0 { key(i) } else { key(rng.u64(..1500)) };
            match rng.u32(..10) {
                0 => db.delete(k).unwrap(),
                1 => db.merge(k, format!("+{round}")).unwrap(),
                _ => db.put(k, format!("{round}:{}", "v".repeat(rng.usize(..200)))).unwrap(),
            }
        }
        let from = rng.u64(..1400);
        db.delete_range_cf(&db.cf_handle("default").unwrap(), key(from), key(from + 15)).unwrap();
        if round < 6 {
            db.flush().unwrap();
        }
        if round < 3 {
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        }
    }
}

type Seen = Vec<Option<(Vec<u8>, Vec<u8>)>>;

fn here(it: &DbRawIterator<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    it.status().unwrap();
    it.item().map(|(k, v)| (k.to_vec(), v.to_vec()))
}

/// The results of random seeks and of steps after them; each iterator makes several seeks.
fn seeks(db: &Db, seed: u64, read: &ReadOptions) -> Seen {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut seen = Vec::new();
    for _ in 0..60 {
        let mut it = db.raw_iterator_opt(read.clone());
        for _ in 0..rng.usize(1..5) {
            let mut target = key(rng.u64(..1600));
            if rng.u8(..4) == 0 {
                target.push('x');
            }
            if rng.bool() {
                it.seek(&target);
            } else {
                it.seek_for_prev(&target);
            }
            seen.push(here(&it));
            let backward = rng.bool();
            for step in 0..rng.usize(..12) {
                if (step == 7) != backward {
                    it.prev();
                } else {
                    it.next();
                }
                seen.push(here(&it));
            }
        }
    }
    seen
}

/// Counters of reads: cache hits and misses, number and bytes of reads, and results of filters.
fn counted(o: &Options) -> Vec<u64> {
    let mut counts: Vec<u64> = [
        Ticker::BlockCacheDataHit,
        Ticker::BlockCacheDataMiss,
        Ticker::BlockCacheDataAdd,
        Ticker::BlockCacheDataBytesInsert,
        Ticker::PrefetchBytes,
        Ticker::PrefetchHits,
        Ticker::BlockChecksumComputeCount,
        Ticker::NonLastLevelSeekFiltered,
        Ticker::NonLastLevelSeekFilterMatch,
        Ticker::LastLevelSeekFiltered,
        Ticker::LastLevelSeekFilterMatch,
    ]
    .map(|t| o.get_ticker_count(t))
    .to_vec();
    counts.extend([Histogram::SstReadMicros].map(|h| o.get_histogram_data(h).count()));
    let perf = PerfContext::default();
    counts.extend([PerfMetric::BlockReadCount, PerfMetric::BlockReadByte].map(|m| perf.metric(m)));
    counts
}

/// Results of seeks in a newly opened database, the counters, whether there was a ring, and the reads through the
/// kernel's ring.
fn run(
    kind: Kind,
    fs: &CountingFileSystem,
    dir: &Path,
    engine: MergeEngine,
    seed: u64,
) -> (Seen, Vec<u64>, (bool, u64)) {
    let o = kind.options(Arc::new(fs.clone()), engine);
    let db = Db::open(&o, dir).unwrap();
    // Opens all tables first, so that reads for opening are not compared.
    let mut all = ReadOptions::default();
    all.fill_cache(false);
    all.set_total_order_seek(true);
    db.iterator_opt(rockmill::IteratorMode::Start, all).for_each(|entry| drop(entry.unwrap()));
    let before = (counted(&o), fs.counts().ring_reads);
    PerfContext::default().reset();
    let perf = PerfContext::default();
    assert_eq!(perf.metric(PerfMetric::BlockReadCount), 0);
    let seen = seeks(&db, seed, &ReadOptions::default());
    let mut counts = counted(&o);
    let of_options = counts.len() - 2;
    counts[..of_options].iter_mut().zip(&before.0).for_each(|(now, before)| *now -= before);
    (seen, counts, (has_ring(&db), fs.counts().ring_reads - before.1))
}

/// True if memory is allocated for reads in flight.
fn has_ring(db: &Db) -> bool {
    db.property_int_value("rockmill.io-memory").unwrap().unwrap() > 0
}

fn compare(fs: &CountingFileSystem, dir: &Path, kind: Kind, orders: Option<&MemFileSystem>, what: &str) {
    fill(&Db::open(&kind.options(Arc::new(fs.clone()), MergeEngine::Auto), dir).unwrap());
    let ring = fs.batch_io(BatchKind::Uring, &BatchLimits::default()).is_ok();
    for seed in 0..6 {
        if let Some(memory) = orders {
            memory.set_batch_order(match seed {
                0 => CallOrder::OnDemand,
                1 => CallOrder::Oldest,
                2 => CallOrder::Newest,
                _ => CallOrder::Random(seed),
            });
        }
        let what = format!("{what}, {kind:?}, seed {seed}");
        let (wanted, alone, none) = run(kind, fs, dir, MergeEngine::Pread, seed);
        let (found, together, some) = run(kind, fs, dir, MergeEngine::Auto, seed);
        assert!(wanted.iter().flatten().count() > 300, "{what}");
        assert!(found == wanted, "{what}");
        assert_eq!(none, (false, 0), "{what}");
        if !ring {
            skip("the blocks of a seek read together", &Needs::Uring.because("no ring"));
        } else if orders.is_some() {
            assert!(some.0, "{what}");
        } else if is_direct(fs, dir) {
            assert!(some.0 && some.1 > 50, "{what}: {some:?}");
        }
        assert_eq!(together, alone, "{what}");
    }
}

/// True if tables are read past the page cache there.
fn is_direct(fs: &CountingFileSystem, dir: &Path) -> bool {
    let all = fs.list_dir(dir).unwrap();
    let table = all.iter().find(|name| name.ends_with(".sst")).unwrap();
    fs.open_random(&dir.join(table), true).unwrap().is_direct()
}

#[test]
fn seeks_that_read_together_find_the_same_with_the_same_reads() {
    set_perf_stats(PerfStatsLevel::EnableCount);
    for kind in KINDS {
        let memory = Arc::new(MemFileSystem::new());
        let fs = CountingFileSystem::new(Arc::clone(&memory) as Arc<dyn FileSystem>);
        compare(&fs, Path::new("/db"), kind, Some(&memory), "in memory");
        // On the disk of the build directory: elsewhere, direct I/O may be impossible.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let fs = CountingFileSystem::new(Arc::new(PosixFileSystem::default()));
        compare(&fs, dir.path(), kind, None, "on a disk");
    }
}

#[test]
fn seeks_in_the_page_cache_read_together_only_where_they_are_told_to() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    let mut o = KINDS[0].options(Arc::clone(&fs), MergeEngine::Auto);
    o.set_use_direct_reads(false);
    fill(&Db::open(&o, "/db").unwrap());
    let db = Db::open(&o, "/db").unwrap();
    let wanted = seeks(&db, 1, &ReadOptions::default());
    assert!(!has_ring(&db));
    let mut told = ReadOptions::default();
    told.set_async_io(true);
    // What is read ahead is no block.
    told.set_readahead_size(10_000);
    assert!(seeks(&db, 1, &told) == wanted && !has_ring(&db));
    told.set_readahead_size(0);
    assert!(seeks(&db, 1, &told) == wanted && has_ring(&db));
    // What may not be read is not.
    let mut cached = ReadOptions::default();
    cached.set_async_io(true);
    cached.set_cache_only(true);
    let mut it = db.raw_iterator_opt(cached);
    it.seek(key(700));
    assert_eq!(it.status().unwrap_err().kind(), ErrorKind::Incomplete);
}

#[test]
fn a_seek_that_reads_together_is_right_or_says_what_failed() {
    for kind in [KINDS[0], KINDS[3]] {
        let (twin, dir) = (Arc::new(MemFileSystem::new()), Path::new("/db"));
        let o = kind.options(Arc::clone(&twin) as _, MergeEngine::Auto);
        fill(&Db::open(&o, dir).unwrap());
        let db = Db::open(&o, dir).unwrap();
        let look = |target: &str, backward: bool| {
            let before = twin.calls();
            let mut it = db.raw_iterator();
            if backward {
                it.seek_for_prev(target)
            } else {
                it.seek(target)
            }
            let found = it.item().map(|(k, v)| (k.to_vec(), v.to_vec()));
            (found, it.status(), twin.calls() - before)
        };
        let (mut told, mut tried) = (0, 0);
        for (i, backward) in [(3, false), (321, false), (700, true), (1234, true), (1400, false)] {
            let target = key(i);
            look(&target, backward).1.unwrap(); // opens tables
            let (wanted, status, calls) = look(&target, backward);
            assert!(wanted.is_some() && status.is_ok() && calls > 3, "{kind:?} {target}: {status:?} {calls}");
            for call in 0..calls {
                for fault in 0..4 {
                    let (at, lasting) = (twin.calls() + call, fault == 3);
                    twin.set_hook(Box::new(move |op| match fault {
                        0 if op.number == at => Fault::Short(100),
                        1 if op.number == at => Fault::FlipBit(77),
                        _ if fault > 1 && (op.number == at || (lasting && op.number > at)) => {
                            Fault::Error(std::io::Error::from_raw_os_error(libc::EIO))
                        }
                        _ => Fault::None,
                    }));
                    let (found, status, _) = look(&target, backward);
                    twin.clear_fault();
                    tried += 1;
                    let what = format!("{kind:?}, {target}, fault {fault} at call {call}: {found:?} {status:?}");
                    match status {
                        Ok(()) => assert!(found == wanted && fault != 3, "{what}"),
                        Err(e) => {
                            told += 1;
                            let kind = if fault == 1 { ErrorKind::Corruption } else { ErrorKind::IOError };
                            assert!(fault != 0 && found.is_none(), "{what}");
                            assert!(e.kind() == kind && e.message().contains(".sst"), "{what}");
                        }
                    }
                }
            }
            let (found, status, _) = look(&target, backward);
            assert!(found == wanted && status.is_ok(), "nothing lasts");
        }
        assert!(told * 4 > tried, "{told} of {tried}");
    }
}
