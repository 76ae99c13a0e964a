//! Shared by tests with histories on small databases: options with which small data compacts often, keys, and
//! inspection of tables.

use std::collections::BTreeMap;
use std::path::Path;

use rockmill::internals::{TableDirs, current_manifest, for_each_edit, open_table};
use rockmill::{BlockBasedOptions, CompressionType, Db, IteratorMode, Options, TphTableOptions};
use rockmill_format::edit::FileEntry;
use rockmill_format::{InternalKeyComparator, filename};
use rockmill_io::FileSystem;

/// Keys and values.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Bytes of a data block.
const BLOCK_SIZE: usize = 512;

/// Where databases are, in memory.
pub fn path() -> &'static Path {
    Path::new("/db")
}

/// The key with a number. One is empty, some are long.
pub fn key(n: u32) -> Vec<u8> {
    match n {
        0 => Vec::new(),
        n if n % 37 == 1 => format!("key{n:06}{}", "~".repeat(300)).into_bytes(),
        n => format!("key{n:06}").into_bytes(),
    }
}

/// Small limits everywhere, so that short histories compact often; tables are block-based.
pub fn small() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_write_buffer_size(16 << 10);
    o.set_target_file_size_base(12 << 10);
    o.set_max_bytes_for_level_base(24 << 10);
    o.set_max_bytes_for_level_multiplier(3.0);
    o.set_level_zero_file_num_compaction_trigger(2);
    o.set_compression_type(CompressionType::None);
    o.set_block_based_table_factory(&small_blocks());
    o
}

fn small_blocks() -> BlockBasedOptions {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_size(BLOCK_SIZE);
    blocks
}

/// Makes the store write TPH tables, also with small blocks.
pub fn write_tph(o: &mut Options, piece_limit: u32, garbage_percent: u32) {
    let mut tph = TphTableOptions::default();
    tph.set_block_based_options(&small_blocks());
    tph.set_piece_limit(piece_limit);
    tph.set_garbage_percent(garbage_percent);
    o.set_tph_table_factory(&tph);
}

/// All entries, read forwards; checks that they are the same backwards.
pub fn entries(db: &Db) -> Pairs {
    let all =
        |mode| db.iterator(mode).map(|e| e.map(|(k, v)| (k.into_vec(), v.into_vec())).unwrap()).collect::<Pairs>();
    let (forwards, mut backwards) = (all(IteratorMode::Start), all(IteratorMode::End));
    backwards.reverse();
    assert_eq!(forwards, backwards);
    forwards
}

/// The tables of a closed database: level, and entry in the MANIFEST.
pub fn tables(fs: &dyn FileSystem, dir: &Path) -> Vec<(u32, FileEntry)> {
    let manifest = dir.join(filename::manifest(current_manifest(fs, dir).unwrap()));
    let mut families: BTreeMap<u32, BTreeMap<u64, (u32, FileEntry)>> = BTreeMap::new();
    for_each_edit(fs, &manifest, &mut |edit| {
        if edit.column_family_drop {
            families.remove(&edit.column_family);
            return Ok(());
        }
        let tables = families.entry(edit.column_family).or_default();
        edit.deleted_files.iter().for_each(|(_, number)| drop(tables.remove(number)));
        tables.extend(edit.new_files.into_iter().map(|(level, file)| (file.number, (level, file))));
        Ok(())
    })
    .unwrap();
    families.into_values().flat_map(BTreeMap::into_values).collect()
}

/// Verifies all tables of a closed database.
pub fn verify(fs: &dyn FileSystem, dir: &Path, cmp: &InternalKeyComparator, what: &str) {
    for (_, file) in tables(fs, dir) {
        let table = open_table(fs, &TableDirs::one(dir), &file, cmp, Some(file.largest_seqno)).unwrap();
        table.verify().unwrap_or_else(|e| panic!("{e}; {file:?}; {what}"));
    }
}
