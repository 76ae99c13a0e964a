//! Compares the model of TPH tables with the store itself, and with their known properties.

use std::sync::Arc;

use rockmill::{BlockBasedOptions, CompressionType, Db, Options, TableKind, TphTableOptions, WriteOptions};
use rockmill_io::MemFileSystem;
use rockmill_sim::{Report, Settings, Workload, run};

/// A full tree of `data_bytes` that is slowly overwritten twice: every due compaction runs immediately.
fn overwrites(value_bytes: u64, data_bytes: u64, tph: Option<(u32, u32)>) -> Settings {
    let mut s = Settings { value_bytes, data_bytes, workload: Workload::Overwrite, threads: 2, ..Settings::default() };
    (s.write_bytes, s.ingest_rate) = (2 * data_bytes, 1 << 20);
    s.options.write_buffer_size = 512 << 10;
    s.options.target_file_size_base = 1 << 20;
    s.options.max_bytes_for_level_base = 2 << 20;
    s.options.compression = CompressionType::None;
    if let Some((piece_limit, garbage_percent)) = tph {
        s.options.table_factory = TableKind::Tph;
        (s.options.tph.piece_limit, s.options.tph.garbage_percent) = (piece_limit, garbage_percent);
    }
    s
}

fn simulated(s: &Settings) -> Report {
    run(s).unwrap_or_else(|e| panic!("{e}"))
}

/// Write amplification, average space amplification, and index bytes per key.
fn real(s: &Settings) -> [f64; 3] {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(MemFileSystem::new()));
    o.set_write_buffer_size(s.options.write_buffer_size);
    o.set_target_file_size_base(s.options.target_file_size_base);
    o.set_max_bytes_for_level_base(s.options.max_bytes_for_level_base);
    o.set_compression_type(CompressionType::None);
    o.set_max_background_jobs(s.threads as i32 + 1);
    match s.options.table_factory {
        TableKind::Tph => {
            let mut tph = TphTableOptions::default();
            tph.set_piece_limit(s.options.tph.piece_limit);
            tph.set_garbage_percent(s.options.tph.garbage_percent);
            o.set_tph_table_factory(&tph);
        }
        _ => o.set_block_based_table_factory(&BlockBasedOptions::default()),
    }
    let db = Db::open(&o, "/db").unwrap();
    let keys = s.data_bytes / (s.key_bytes + s.value_bytes);
    let value = vec![b'v'; s.value_bytes as usize];
    let mut how = WriteOptions::default();
    how.disable_wal(true);
    let put = |n: u64| db.put_opt(format!("{n:016}"), &value, &how).unwrap();
    (0..keys).for_each(put);
    db.flush().unwrap();
    db.compact_range(None::<&str>, None::<&str>).unwrap();
    let int = |name: &str| db.property_int_value(name).unwrap().unwrap() as f64;
    let (before, live) = (db.counters(), int("rocksdb.live-sst-files-size"));
    let (mut rng, mut space, mut samples) = (fastrand::Rng::with_seed(1), 0.0, 0.0);
    let writes = s.write_bytes / (s.key_bytes + s.value_bytes);
    for i in 0..writes {
        put(rng.u64(0..keys));
        if i.is_multiple_of(64) {
            db.wait_for_background_work().unwrap();
            (space, samples) = (space + int("rocksdb.live-sst-files-size") / live, samples + 1.0);
        }
    }
    let after = db.counters();
    let written = (after.flush_bytes + after.compact_write_bytes) - (before.flush_bytes + before.compact_write_bytes);
    let index = int("rockmill.tph-index-memory") / int("rockmill.tph-keys").max(1.0);
    [written as f64 / s.write_bytes as f64, space / samples, index]
}

/// The bytes that compactions write, the space used, and the size of the index are as in the store, for tables with few
/// and many entries, and few and many files.
#[test]
fn the_model_is_near_the_store() {
    for (value_bytes, data_bytes) in [(1000, 24 << 20), (100, 8 << 20)] {
        for tph in [None, Some((1, 20)), Some((16, 20)), Some((16, 100)), Some((4, 0))] {
            let s = overwrites(value_bytes, data_bytes, tph);
            let r = simulated(&s);
            let model = [r.write_amplification(), r.space, r.tph.map_or(0.0, |(_, index)| index)];
            let store = real(&s);
            println!("values of {value_bytes}, {tph:?}: simulated {model:.2?}, in the store {store:.2?}");
            let off = |i: usize| (model[i] / store[i] - 1.0).abs();
            assert!(off(0) < 0.3, "{tph:?}: written {} and {}", model[0], store[0]);
            assert!(off(1) < 0.15, "{tph:?}: space {} and {}", model[1], store[1]);
            assert!(tph.is_none() || off(2) < 0.25, "{tph:?}: index {} and {}", model[2], store[2]);
        }
    }
}

#[test]
fn what_has_not_changed_is_not_written_again() {
    let of = |tph| simulated(&overwrites(1000, 64 << 20, tph));
    let (block, whole, few, many) = (of(None), of(Some((1, 20))), of(Some((16, 20))), of(Some((16, 100))));
    let written = [&block, &whole, &few, &many].map(Report::write_amplification);
    // With one file, a TPH table writes one function more than a block-based table.
    assert!((0.95..1.05).contains(&(written[1] / written[0])), "{written:?}");
    assert!(written[2] < written[1] * 0.8 && written[3] < written[2], "{written:?}");
    assert!(few.space > block.space && many.space > few.space && many.space < 2.3, "{} {}", few.space, many.space);
    let [whole, few, many] = [whole, few, many].map(|r| r.tph.expect("TPH tables"));
    assert!(whole.0 == 1.0 && few.0 > 1.0 && many.0 > few.0 && many.0 <= 16.0, "{whole:?} {few:?} {many:?}");
    assert!((2.5..4.0).contains(&few.1), "{few:?}");
    assert!(block.tph.is_none() && block.to_json().get("files_per_table").is_none());
}

/// Every strategy works with them, and sums are consistent.
#[test]
fn every_strategy_has_them() {
    for (strategy, ..) in Settings::STRATEGIES {
        for workload in [Workload::Fill, Workload::Overwrite] {
            let mut s =
                Settings { strategy: strategy.to_owned(), workload, ..overwrites(1000, 64 << 20, Some((8, 30))) };
            s.reads_per_second = 100.0;
            let (a, b) = (simulated(&s), simulated(&s));
            assert_eq!(a.to_json().to_string(), b.to_json().to_string());
            let blocks = 1.0 + a.lookup_tables / 255.0;
            assert!(!a.wedged && a.lookup_blocks < blocks, "{strategy}: {} {blocks}", a.lookup_blocks);
            assert_eq!(a.to_json()["piece_limit"], 8);
            assert!(a.to_text().contains("TPH tables"), "{}", a.to_text());
            let json = a.to_json();
            assert!(json["files_per_table"].as_f64().is_some_and(|n| (1.0..=8.0).contains(&n)), "{strategy}: {json}");
        }
    }
}
