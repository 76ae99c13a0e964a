//! Limits of memory, files and I/O: rate limiter, write buffer manager, cache capacity, open files, how files are read
//! and written, compression of levels.

mod oracle;

#[path = "resources/compression.rs"]
mod compression;
#[path = "resources/files.rs"]
mod files;
#[path = "resources/helpers.rs"]
mod helpers;
#[path = "resources/memory.rs"]
mod limits;
#[path = "resources/rate.rs"]
mod rate;
#[path = "resources/watch.rs"]
mod watch;

use std::path::Path;
use std::sync::Arc;

use rockmill::{BlockBasedOptions, Db, Options, TphTableOptions};
use rockmill_io::{FileSystem, MemFileSystem};

/// Options of a new database in memory that compacts only when told.
fn options(fs: &Arc<dyn FileSystem>) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::clone(fs));
    o.set_disable_auto_compactions(true);
    o.set_compression_type(rockmill::CompressionType::None);
    o
}

fn memory() -> Arc<dyn FileSystem> {
    Arc::new(MemFileSystem::default())
}

/// Bytes that do not compress, the same for the same number.
fn noise(n: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(n);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:08}").into_bytes()
}

/// Puts keys `range` with values of `len` bytes.
fn fill(db: &Db, range: std::ops::Range<u64>, len: usize) {
    for n in range {
        db.put(key(n), noise(n, len)).unwrap();
    }
}

/// Makes tables of this column family TPH tables with such blocks.
fn set_tph(o: &mut Options, blocks: &BlockBasedOptions) {
    let mut tph = TphTableOptions::default();
    tph.set_block_based_options(blocks);
    o.set_tph_table_factory(&tph);
}

/// A database with this many keys in the last of two levels, in tables of one kind; new tables are of the other kind.
fn filled_before_a_change_of_kind(
    fs: &Arc<dyn FileSystem>,
    blocks: &BlockBasedOptions,
    old_is_tph: bool,
    keys: u64,
) -> Db {
    let open = |tph: bool| {
        let mut o = options(fs);
        o.set_num_levels(2);
        if tph {
            set_tph(&mut o, blocks);
        } else {
            o.set_block_based_table_factory(blocks);
        }
        Db::open(&o, "/db").unwrap()
    };
    let db = open(old_is_tph);
    fill(&db, 0..keys, 100);
    db.flush().unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    drop(db);
    open(!old_is_tph)
}

/// Names and sizes of the tables in a directory.
fn tables(fs: &dyn FileSystem, dir: &Path) -> Vec<(String, u64)> {
    let mut all: Vec<_> = fs.list_dir(dir).unwrap().into_iter().filter(|n| n.ends_with(".sst")).collect();
    all.sort();
    all.into_iter().map(|n| (n.clone(), fs.file_size(&dir.join(n)).unwrap())).collect()
}

fn table_bytes(fs: &dyn FileSystem, dir: &Path) -> u64 {
    tables(fs, dir).iter().map(|t| t.1).sum()
}
