//! The initial inputs of the corpora: the parts of the fixtures, by target.

use rockmill_format::block::{BlockBuilder, BlockBuilderOptions};
use rockmill_format::compression::{CompressionType, Compressor};
use rockmill_format::edit::{FileEntry, TablePiece, VersionEdit};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, FOOTER_LEN_MAX};
use rockmill_format::log::{LogEvent, LogReader};
use rockmill_format::{InternalKey, ValueType};

use crate::{control, fixtures, job_specs, nvme, pieces};

/// Records of a log.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = LogReader::new(bytes, 0);
    let mut out = Vec::new();
    let mut record = Vec::new();
    loop {
        match reader.next_record(&mut record) {
            Ok(LogEvent::Record { .. }) => out.push(record.clone()),
            Ok(LogEvent::Damage { .. }) => {}
            Ok(LogEvent::End { .. }) => return out,
            Err(never) => match never {},
        }
    }
}

/// Sound inputs for each target: the parts of every database; for some targets, many of them are similar.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let files = |end: fn(&str) -> bool| {
        let all = fixtures::all().iter().flat_map(|f| f.files.iter());
        all.filter(move |(name, _)| end(name)).map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>()
    };
    let table = |name: &str| name.ends_with(".sst");
    let mut out = match target {
        "footer" => files(table).into_iter().map(|b| b[b.len().saturating_sub(FOOTER_LEN_MAX)..].to_vec()).collect(),
        "table" => files(table).into_iter().chain(fixtures::externals()).collect(),
        "tph_table" => pieces::seeds(),
        // Other versions' tables have sequence numbers and are refused; some with damaged numbers are not.
        "ingest" => fixtures::externals().into_iter().chain(files(table).into_iter().step_by(31)).collect(),
        "wal" => files(|name| name.ends_with(".log")),
        "batch" | "write_batch" => files(|name| name.ends_with(".log")).iter().flat_map(|b| records(b)).collect(),
        "manifest" => files(|name| name.starts_with("MANIFEST-")),
        "version_edit" => {
            let manifests = files(|name| name.starts_with("MANIFEST-"));
            manifests.iter().flat_map(|b| records(b)).chain([edit_with_pieces()]).collect()
        }
        "job_spec" => job_specs::all(),
        "perfect_hash" => perfect_hashes(),
        "job_result" => job_specs::results(),
        "options" => {
            let all = files(|name| name.starts_with("OPTIONS-")).into_iter();
            all.chain([TPH_OPTIONS.to_vec()]).collect()
        }
        "option_string" => vec![
            b"write_buffer_size=1024;compression=kZSTD;block_based_table_factory={block_size=1;checksum=kXXH3;}"
                .to_vec(),
            b"compression_opts={level=3;max_dict_bytes=1};merge_operator={id=stringappend;delimiter=:;}".to_vec(),
            b"table_factory={id=TphTable;piece_limit=8;block_size=8192};tph_table_factory={garbage_percent=1;}"
                .to_vec(),
            b"max_bytes_for_level_multiplier_additional=1:2:3;comparator=leveldb.BytewiseComparator".to_vec(),
        ],
        "backup_meta" => {
            let files = fixtures::backups().iter().flat_map(|f| f.files.iter());
            let meta = files.filter(|(name, _)| name.starts_with("meta/")).map(|(_, bytes)| bytes.clone());
            meta.chain(backup_meta()).collect()
        }
        "nvme_pdu" | "nvme_target" | "nvme_initiator" | "nvme_host" | "nvme_auth" => nvme::seeds(target),
        "control_message" | "control_channel" => control::seeds(target),
        "properties" | "block" | "filter" => blocks(target),
        "compression" => compressed(),
        _ => (0..20u64).map(|n| n.to_le_bytes().to_vec()).collect(),
    };
    out.sort_by_key(|b| (b.len(), b.clone()));
    out.dedup();
    out
}

/// Parts that the fixtures' databases lack: an extra run, and tables of several files.
fn edit_with_pieces() -> Vec<u8> {
    let file = |number: u64, extra_run: u64, pieces: &[(u64, u64, u64)]| {
        let pieces = pieces
            .iter()
            .map(|&(number, size, live)| TablePiece { number, size, live, path_id: (number % 2) as u32 })
            .collect();
        let key = InternalKey::new(b"key", 7, ValueType::Value);
        let (smallest, largest) = (key.clone(), key);
        (2, FileEntry { number, size: 1000, smallest, largest, extra_run, pieces, ..FileEntry::default() })
    };
    let new_files = vec![file(9, 0, &[(7, 4096, 100), (5, 900, 900)]), file(10, 3, &[(7, 4096, 0)])];
    VersionEdit { new_files, ..VersionEdit::default() }.encode()
}

/// Column families with both kinds of tables.
const TPH_OPTIONS: &[u8] = b"[Version]\n  rocksdb_version=7.8.0\n  options_file_version=1.1\n[DBOptions]\n\
    [CFOptions \"default\"]\n  table_factory=BlockBasedTable\n[TableOptions/BlockBasedTable \"default\"]\n  \
    #rockmill tph_table_factory={piece_limit=8;garbage_percent=50;}\n  block_size=8192\n\
    [CFOptions \"other\"]\n  table_factory=BlockBasedTable\n\
    [TableOptions/BlockBasedTable \"other\"]\n  block_size=4096\n";

/// The two forms of these files.
fn backup_meta() -> [Vec<u8>; 2] {
    [
        b"5\n6\nmetadata 6D79\n1\nprivate/1/CURRENT crc32 2339073190\n".to_vec(),
        b"schema_version 2.1\n5\n6\nfield x\n2\nshared_checksum/000012_sABC_10.sst crc32 7 size 10\n\
          private/1/CURRENT\n// FOOTER\nfuture 1\n"
            .to_vec(),
    ]
}

fn blocks(target: &str) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for choice in 0..8u8 {
        let mut builder = BlockBuilder::new(BlockBuilderOptions {
            restart_interval: 3,
            hash_index_util_ratio: (choice == 1).then_some(0.75),
            ..Default::default()
        });
        for n in 0..8u8 {
            let key = [b"key", &[b'0' + n][..], b"\x01\x07\0\0\0\0\0\0"].concat();
            builder.add(&key, &[n, 9, 3, b'a', b'b', b'c', 1, 1, 0, 0, 0, 0, 0, 0], None);
        }
        out.push([&[choice][..], builder.finish()].concat());
    }
    match target {
        "block" => return out,
        "filter" => {
            return vec![
                [&[0x5a; 64][..], &[255, 0, 6, 0, 0]].concat(),
                [&[0x5a; 96][..], &[254, 7, 2, 0, 0]].concat(),
                [&[0x5a; 64][..], &[6, 1, 0, 0, 0]].concat(),
                vec![0; 6],
            ];
        }
        _ => {}
    }
    // Properties are found by the name of their first entry.
    let tables = fixtures::all().iter().flat_map(|f| f.files.iter()).filter(|(name, _)| name.ends_with(".sst"));
    tables.step_by(40).filter_map(|(_, bytes)| crate::mend::properties_block(bytes)).collect()
}

/// Functions of each kind, and hashes to build them from, some of them equal.
fn perfect_hashes() -> Vec<Vec<u8>> {
    let hashes: Vec<u64> = (0..300u64).map(|key| rockmill_phash::hash_key(&key.to_le_bytes(), 0)).collect();
    let bytes = |hashes: &[u64]| hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect::<Vec<_>>();
    let mut out = vec![bytes(&hashes), bytes(&[&hashes[..9], &hashes[..2]].concat()), bytes(&[0, 1, u64::MAX])];
    for kind in rockmill_phash::Kind::ALL {
        for n in [0, 1, 20, 300] {
            let built = rockmill_phash::Builder::new().kind(kind).build(&hashes[..n]);
            out.push(built.expect("different hashes have a function"));
        }
    }
    out
}

fn compressed() -> Vec<Vec<u8>> {
    let text = b"key0001 value value value value key0002 value value value value".repeat(4);
    let mut out = Vec::new();
    for kind in CompressionType::ALL {
        let Ok(mut compressor) = Compressor::new(kind, 3) else { continue };
        let mut packed = Vec::new();
        if compressor.compress(&text, &mut packed) {
            packed.truncate(packed.len().max(BLOCK_TRAILER_LEN));
            out.push([&[kind as u8, 0][..], &packed].concat());
        }
    }
    out
}
