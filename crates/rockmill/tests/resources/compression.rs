//! Compression by level, its parameters, and dictionaries, compared with RocksDB.

use std::path::Path;

use rockmill::{BlockBasedOptions, CompressionOptions, CompressionType, Db, Options};

use super::oracle::{Peer, Script, run_tool, tool};
use super::{key, memory, options, table_bytes, tables};
use crate::need;
use rockmill_skip::skip;

/// A value that has much in common with others, and little internal repetition.
fn value(n: u64) -> Vec<u8> {
    let (id, tail) = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n.wrapping_mul(0xd6e8_feb8_6659_fd93));
    format!(
        "{{\"identifier\":\"{id:016x}\",\"measured_at\":\"2026-11-{:02}\",\"temperature_celsius\":{},\"sensor\":\"{tail:x}\"}}",
        n % 28 + 1,
        n % 90
    )
    .into_bytes()
}

fn entries(range: std::ops::Range<u64>) -> Vec<(Vec<u8>, Vec<u8>)> {
    range.map(|n| (key(n), value(n))).collect()
}

fn disk_options() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o
}

/// Two flushes of overlapping keys and a compaction of them.
fn write_database(o: &Options, dir: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let db = Db::open(o, dir).unwrap();
    for range in [0..1000, 600..1500] {
        for (k, v) in entries(range) {
            db.put(k, v).unwrap();
        }
        db.flush().unwrap();
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    for (k, v) in entries(1400..1700) {
        db.put(k, v).unwrap();
    }
    db.flush().unwrap();
    entries(0..1700)
}

fn all(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = db.iterator(rockmill::IteratorMode::Start);
    all.map(|e| e.map(|(k, v)| (k.into_vec(), v.into_vec()))).collect::<Result<_, _>>().unwrap()
}

const KINDS: [CompressionType; 4] =
    [CompressionType::Zstd, CompressionType::Lz4, CompressionType::Zlib, CompressionType::Lz4hc];

#[test]
fn dictionaries_make_tables_smaller_and_rocksdb_reads_them() {
    let test = "dictionaries_make_tables_smaller_and_rocksdb_reads_them";
    let sst_dump = tool("sst_dump");
    let peers = Peer::all(test);
    for (i, kind) in KINDS.into_iter().enumerate() {
        let mut sizes = Vec::new();
        for (dict, train) in [(0, 0), (4096, 0), (4096, 64 << 10)] {
            let dir = tempfile::tempdir().unwrap();
            let mut o = disk_options();
            o.set_compression_type(kind);
            o.set_compression_options(-14, 32767, 0, dict);
            o.set_zstd_max_train_bytes(train);
            // Samples: all data of a flush, a part of a compaction's output, and one block.
            o.cf.compression_opts.max_dict_buffer_bytes = [0, 20_000, 1][i % 3];
            let mut table = BlockBasedOptions::default();
            table.set_format_version(if i % 2 == 0 { 5 } else { 6 });
            table.set_block_size(1000);
            o.set_block_based_table_factory(&table);
            let wanted = write_database(&o, dir.path());
            sizes.push(table_bytes(&rockmill_io::PosixFileSystem::default(), dir.path()));
            assert_eq!(all(&Db::open(&o, dir.path()).unwrap()), wanted, "{kind:?}");
            for peer in &peers {
                match peer.peer {
                    Peer::Library if i % 2 == 1 => continue, // 7.8 reads no format_version 6
                    // It cannot decompress RocksDB 7.8's zlib blocks either.
                    Peer::Wheel if kind == CompressionType::Zlib => continue,
                    _ => {}
                }
                let mut script = Script::new();
                script.open(dir.path()).line("dump default");
                let Some(answer) = peer.answer(test, &script) else { continue };
                assert_eq!(answer.entries(), wanted, "{kind:?}, dictionary of {dict} {train}, {:?}", peer.peer);
            }
            match &sst_dump {
                Ok(sst_dump) => {
                    let table = super::oracle::tables(dir.path()).remove(0);
                    let args = [&*format!("--file={}", table.display()), "--show_properties", "--command=none"];
                    if i % 2 == 1 {
                        continue;
                    }
                    let text = run_tool(sst_dump, &args).unwrap();
                    let shown = format!("max_dict_bytes={dict}; zstd_max_train_bytes={train};");
                    assert!(text.contains(&shown), "{text}");
                }
                Err(reason) => skip(test, reason),
            }
        }
        // A dictionary with everything in common, in blocks of 1,000 bytes.
        assert!(sizes[1] < sizes[0] * 9 / 10, "{kind:?}: {sizes:?}");
        assert!(sizes[2] < sizes[0] * 9 / 10, "{kind:?}: {sizes:?}");
    }
}

#[test]
fn what_rocksdb_compressed_with_a_dictionary_is_read_and_compacted() {
    let test = "what_rocksdb_compressed_with_a_dictionary_is_read_and_compacted";
    for peer in Peer::all(test) {
        for (kind, opts) in [
            ("kZSTD", "{max_dict_bytes=4096;zstd_max_train_bytes=65536;level=5;enabled=true}"),
            ("kZSTD", "{max_dict_bytes=4096}"),
            ("kLZ4Compression", "{max_dict_bytes=1000}"),
            ("kZlibCompression", "{max_dict_bytes=4096;window_bits=-12}"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut script = Script::new();
            script.line(format!("cf default compression={kind};compression_opts={opts}"));
            script.open(dir.path());
            for (k, v) in entries(0..1000) {
                script.put("default", k, v);
            }
            script.line("flush default");
            if peer.answer(test, &script).is_none() {
                continue;
            }
            let mut o = disk_options();
            o.set_compression_type(CompressionType::Zstd);
            o.set_compression_options(-14, 32767, 0, 2048);
            let db = Db::open(&o, dir.path()).unwrap();
            assert_eq!(all(&db), entries(0..1000), "{kind} {opts}");
            db.put(key(5), value(5)).unwrap();
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            assert_eq!(all(&db), entries(0..1000), "{kind} {opts}");
        }
    }
}

#[test]
fn each_level_has_its_compression_and_the_deepest_its_own_options() {
    let test = "each_level_has_its_compression_and_the_deepest_its_own_options";
    let dir = tempfile::tempdir().unwrap();
    let mut o = disk_options();
    o.set_num_levels(4);
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_disable_auto_compactions(true);
    o.set_compression_type(CompressionType::Lz4);
    o.set_min_level_to_compress(1);
    assert_eq!(o.cf.compression_per_level[0], CompressionType::None);
    assert_eq!(o.cf.compression_per_level[1..], [CompressionType::Lz4; 3]);
    o.set_bottommost_compression_type(CompressionType::Zstd);
    o.set_bottommost_compression_options(-14, 9, 0, 2000, true);
    o.set_compression_level(2);
    let wanted = write_database(&o, dir.path());
    let sst_dump = need!(test, tool("sst_dump"));
    let mut seen: Vec<(String, bool, bool)> = Vec::new();
    for table in super::oracle::tables(dir.path()) {
        let args = [&*format!("--file={}", table.display()), "--show_properties", "--command=none"];
        let text = run_tool(&sst_dump, &args).unwrap();
        let kind = text.lines().find_map(|l| l.trim().strip_prefix("SST file compression algo: ")).unwrap();
        let (deep, other) = (text.contains("level=9;") && text.contains("enabled=1"), text.contains("level=2;"));
        seen.push((kind.to_owned(), deep, other));
    }
    seen.sort();
    assert_eq!(seen, [("NoCompression".to_owned(), false, true), ("ZSTD".to_owned(), true, false)]);
    for peer in Peer::all(test) {
        let mut script = Script::new();
        script.line("cf default num_levels=4;level_compaction_dynamic_level_bytes=false");
        script.open(dir.path()).line("dump default");
        let Some(answer) = peer.answer(test, &script) else { continue };
        assert_eq!(answer.entries(), wanted);
    }
}

#[test]
fn what_cannot_be_written_is_refused_by_name() {
    let fs = memory();
    let refused = |change: &dyn Fn(&mut CompressionOptions), what: &str| {
        for bottommost in [false, true] {
            let mut o = options(&fs);
            let opts = if bottommost { &mut o.cf.bottommost_compression_opts } else { &mut o.cf.compression_opts };
            opts.enabled = true;
            change(opts);
            let e = Db::open(&o, "/refused").unwrap_err().to_string();
            assert!(e.contains(what) && e.contains("compression_opts"), "{e}");
        }
    };
    refused(&|o| o.window_bits = 15, "window_bits");
    refused(&|o| o.window_bits = -15, "window_bits");
    refused(&|o| o.strategy = 1, "strategy");
    refused(&|o| o.max_compressed_bytes_per_kb = 0, "max_compressed_bytes_per_kb");
    let untrained = |o: &mut CompressionOptions| {
        (o.max_dict_bytes, o.zstd_max_train_bytes, o.use_zstd_dict_trainer) = (1, 1, false);
    };
    refused(&untrained, "use_zstd_dict_trainer");
    let mut o = options(&fs);
    o.set_zstd_max_train_bytes(100);
    assert!(Db::open(&o, "/refused").unwrap_err().to_string().contains("needs max_dict_bytes"));

    // If they are set while the database is open, invalid ones are also refused, and valid ones accepted.
    let db = Db::open(&options(&fs), "/db").unwrap();
    let e = db.set_options(&[("compression_opts", "{window_bits=-15}")]).unwrap_err().to_string();
    assert!(e.contains("window_bits"), "{e}");
    let good = "{level=7;max_dict_bytes=1000;parallel_threads=4}";
    db.set_options(&[("compression", "kZSTD"), ("compression_opts", good)]).unwrap();
    for (k, v) in entries(0..1000) {
        db.put(k, v).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(all(&db), entries(0..1000));
    assert_eq!(tables(&*fs, Path::new("/db")).len(), 1);
}

#[test]
fn shorthands_set_what_rocksdb_sets() {
    let mut o = Options::default();
    o.optimize_level_style_compaction(512 << 20);
    let cf = &o.cf;
    assert_eq!(
        (cf.write_buffer_size, cf.min_write_buffer_number_to_merge, cf.max_write_buffer_number),
        (128 << 20, 2, 6)
    );
    assert_eq!((cf.level0_file_num_compaction_trigger, cf.target_file_size_base), (2, 64 << 20));
    assert_eq!(cf.max_bytes_for_level_base, 512 << 20);
    assert_eq!(cf.compression_per_level[..3], [CompressionType::None, CompressionType::None, CompressionType::Lz4]);
}
