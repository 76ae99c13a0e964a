//! Threads that compress and decompress for jobs: RocksDB's own tools check their output.

use rockmill::{BlockBasedOptions, CompressionType, Db, Options};

use super::key;
use super::oracle::{run_tool, tables, tool};
use crate::need;

fn value(n: u64, round: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(n * 31 + round);
    let words = ["anchor", "bridge", "cipher", "drift", "ember", "flint", "grove", "harbor"];
    let mut out = Vec::new();
    while out.len() < 200 {
        // Some values are noise, so that some blocks are stored uncompressed.
        if n % 100 < 30 {
            out.push(rng.u8(..));
        } else {
            out.extend_from_slice(words[rng.usize(0..words.len())].as_bytes());
        }
    }
    out
}

#[test]
fn rocksdb_verifies_what_helpers_wrote() {
    let test = "rocksdb_verifies_what_helpers_wrote";
    let mut dirs = Vec::new();
    let kinds = [CompressionType::Snappy, CompressionType::Lz4, CompressionType::Zstd];
    for (kind, (helpers, parallel)) in kinds.into_iter().zip([(1, 1), (3, 2), (3, 4)]) {
        let dir = tempfile::tempdir().unwrap();
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_disable_auto_compactions(true);
        o.set_compression_type(kind);
        o.set_compaction_helper_threads(helpers);
        o.set_compression_options_parallel_threads(parallel);
        o.set_target_file_size_base(600 << 10);
        o.set_max_subcompactions(2);
        let mut table = BlockBasedOptions::default();
        table.set_bloom_filter(10.0, false);
        o.set_block_based_table_factory(&table);
        let db = Db::open(&o, dir.path()).unwrap();
        for round in 0..4 {
            for n in (round..8000).step_by(round as usize + 1) {
                db.put(key(n), value(n, round)).unwrap();
            }
            db.flush().unwrap();
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        for n in (0..8000).step_by(7) {
            let newest = (0..4).rev().find(|round| n >= *round && (n - round) % (round + 1) == 0).unwrap();
            assert_eq!(db.get(key(n)).unwrap().unwrap(), value(n, newest), "{kind:?}");
        }
        drop(db);
        assert!(tables(dir.path()).len() > 1);
        dirs.push(dir);
    }
    let sst_dump = need!(test, tool("sst_dump"));
    for dir in &dirs {
        for table in tables(dir.path()) {
            let file = format!("--file={}", table.display());
            for command in ["verify", "check"] {
                run_tool(&sst_dump, &[&file, &format!("--command={command}"), "--verify_checksum"]).unwrap();
            }
        }
    }
}
