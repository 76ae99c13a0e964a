//! A database stores its options: this program loads them and changes them as text, and RocksDB reads them.
//!
//! `cargo run --example options_file`

use rockmill::{CompressionType, Db, ErrorKind, Options, OptionsLoader, Result};

fn main() -> Result<()> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");

    // Options from a text in RocksDB's syntax.
    let text = "compression=kZSTD;write_buffer_size=8M;block_based_table_factory={filter_policy=bloomfilter:10:false}";
    let mut options = Options::from_string(&Options::default(), text)?;
    options.create_if_missing(true);
    drop(Db::open(&options, &dir)?);

    // The next program does not need to know them.
    let loaded = OptionsLoader::new().load_latest(&dir)?;
    println!("{}: {} warnings", loaded.path.display(), loaded.warnings.len());
    assert_eq!(loaded.options.cf.compression, CompressionType::Zstd);
    assert_eq!(loaded.options.cf.write_buffer_size, 8 << 20);
    let db = Db::open_cf_descriptors(&loaded.options, &dir, loaded.column_families)?;

    // Changes are stored too.
    db.set_options(&[("level0_file_num_compaction_trigger", "8")])?;
    db.set_db_options(&[("max_background_jobs", "4")])?;
    drop(db);
    let loaded = OptionsLoader::new().load_latest(&dir)?;
    assert_eq!(loaded.options.cf.level0_file_num_compaction_trigger, 8);
    for option in loaded.options.values().iter().filter(|o| o.value != o.default) {
        println!("{}={} (default {})", option.name, option.value, option.default);
    }

    // Nothing is silently ignored.
    let refused = Options::from_string(&options, "compresion=kZSTD");
    assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::InvalidArgument));

    Db::destroy(&Options::default(), &dir)
}
