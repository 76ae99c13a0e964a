//! The kind of tables that a column family writes, as an option: in code, strings, OPTIONS files and an open database.

use rockmill::{
    BlockBasedOptions, ColumnFamilyDescriptor, Db, ErrorKind, Options, OptionsLoader, TableKind, TphTableOptions,
};

use super::{open, options_files};

#[test]
fn strings_choose_the_kind_of_tables() {
    let base = Options::default();
    let of = |text: &str| {
        let cf = Options::from_string(&base, text).unwrap_or_else(|e| panic!("{text}: {e}")).cf;
        (cf.table_factory, cf.tph.piece_limit, cf.tph.garbage_percent, cf.table.block_size)
    };
    let tph = |limit, garbage, block| (TableKind::Tph, limit, garbage, block);
    let block_based = |limit, block| (TableKind::BlockBased, limit, 20, block);
    for (text, wanted) in [
        ("", block_based(16, 4096)),
        ("table_factory=TphTable", tph(16, 20, 4096)),
        ("table_factory={id=TphTable;piece_limit=8;block_size=8192}", tph(8, 20, 8192)),
        ("tph_table_factory={garbage_percent=0;block_size=8K;checksum=kCRC32c;}", tph(16, 0, 8192)),
        ("tph_table_factory={}", tph(16, 20, 4096)),
        ("table_factory=TphTable;table_factory.piece_limit=2;tph_table_factory.block_size=1K", tph(2, 20, 1024)),
        // Unnamed options stay, also when the kind changes; the last kind counts.
        ("block_based_table_factory={block_size=8K};tph_table_factory={piece_limit=8}", tph(8, 20, 8192)),
        ("tph_table_factory={piece_limit=8;block_size=8K};table_factory=BlockBasedTable", block_based(8, 8192)),
        ("tph_table_factory={piece_limit=8};block_based_table_factory={block_size=1K}", block_based(8, 1024)),
    ] {
        assert_eq!(of(text), wanted, "{text}");
    }
    for (text, named) in [
        ("table_factory={id=TphTable;no_such=1}", "no_such"),
        ("tph_table_factory={piece_limit=many}", "piece_limit"),
        ("tph_table_factory={piece_limit=-1}", "piece_limit"),
        ("tph_table_factory={piece_limit=4294967296}", "piece_limit"),
        ("tph_table_factory={piece_limit", "piece_limit"),
        ("block_based_table_factory={piece_limit=8}", "piece_limit"),
        ("piece_limit=8", "piece_limit"),
        ("tph_table_factory.piece_limit=8", "BlockBasedTable"),
        ("tph_table_factory={};block_based_table_factory.block_size=8K", "TphTable"),
        ("table_factory={piece_limit=8}", "no id"),
        ("table_factory=PlainTable", "PlainTable"),
        ("table_factory=", "table_factory"),
    ] {
        let e = Options::from_string(&base, text).unwrap_err();
        assert!(e.message().contains(named), "{text}: {e}");
    }
}

#[test]
fn the_kind_of_tables_goes_through_options_files() {
    let dir = tempfile::tempdir().unwrap();
    let (mut block_based, mut tph) = (BlockBasedOptions::default(), TphTableOptions::default());
    block_based.set_block_size(8192);
    tph.set_block_based_options(&block_based);
    tph.set_piece_limit(8);
    tph.set_garbage_percent(300);
    let db = open(&dir, |o| o.set_tph_table_factory(&tph));
    db.create_cf("other", &Options::default()).unwrap();
    db.put("key", "1").unwrap();
    db.flush().unwrap();
    drop(db);
    let load = || {
        let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
        assert_eq!(loaded.warnings, []);
        loaded
    };
    let mut loaded = load();
    let cf = &loaded.options.cf;
    assert_eq!((cf.table_factory, cf.tph.piece_limit, cf.tph.garbage_percent), (TableKind::Tph, 8, 300));
    assert_eq!(cf.table.block_size, 8192);
    assert_eq!(loaded.column_families[1].options().cf.table_factory, TableKind::BlockBased);
    let value = |name: &str| loaded.options.values().into_iter().find(|v| v.name == name).unwrap();
    let limit = value("piece_limit");
    assert_eq!((limit.section, limit.value.as_str(), limit.default.as_str()), ("TableOptions/TphTable", "8", "16"));
    assert!(limit.mutable && limit.in_files && !value("table_factory").mutable);
    assert_eq!(value("block_size").section, "TableOptions/TphTable");
    // From now on the other kind: tables of the first kind stay readable, and its options are not in the file.
    loaded.options.set_block_based_table_factory(&block_based);
    loaded.column_families[0] = ColumnFamilyDescriptor::new("default", loaded.options.clone());
    let db = Db::open_cf_descriptors(&loaded.options, dir.path(), loaded.column_families).unwrap();
    db.put("key2", "2").unwrap();
    db.flush().unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
    drop(db);
    let loaded = load();
    assert_eq!(loaded.options.cf.table_factory, TableKind::BlockBased);
    assert!(loaded.options.values().iter().all(|v| v.name != "piece_limit"));
    // And back, with both kinds there.
    let options = Options::from_string(&loaded.options, "table_factory=TphTable").unwrap();
    let families = vec![
        ColumnFamilyDescriptor::new("default", options.clone()),
        ColumnFamilyDescriptor::new("other", options.clone()),
    ];
    let db = Db::open_cf_descriptors(&options, dir.path(), families).unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get("key2").unwrap().as_deref(), Some(&b"2"[..]));
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn options_of_tph_tables_change_and_the_kind_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_tph_table_factory(&TphTableOptions::default()));
    let other = db.create_cf("other", &Options::default()).unwrap();
    db.set_options(&[("tph_table_factory", "{piece_limit=8;block_size=16K}")]).unwrap();
    db.set_options(&[("table_factory", "{id=TphTable;garbage_percent=40;}")]).unwrap();
    db.set_options(&[("table_factory.block_restart_interval", "8")]).unwrap();
    db.set_options(&[("table_factory", "TphTable")]).unwrap();
    let cf = db.get_options().cf;
    assert_eq!((cf.tph.piece_limit, cf.tph.garbage_percent), (8, 40));
    assert_eq!((cf.table.block_size, cf.table.block_restart_interval), (16 << 10, 8));
    for (name, value) in [
        ("table_factory", "BlockBasedTable"),
        ("block_based_table_factory", "{block_size=4K}"),
        ("block_based_table_factory.block_size", "4K"),
        ("tph_table_factory", "{piece_limit=many}"),
        ("tph_table_factory", "{no_such=1}"),
        ("tph_table_factory", "{no_block_cache=true}"),
        ("piece_limit", "4"),
    ] {
        let e = db.set_options(&[(name, value)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{name}={value}: {e}");
    }
    for (name, value) in [("table_factory", "TphTable"), ("tph_table_factory", "{}")] {
        let e = db.set_options_cf(&other, &[(name, value)]).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains("BlockBasedTable"), "{e}");
    }
    assert_eq!(db.set_options(&[("table_factory", "PlainTable")]).unwrap_err().kind(), ErrorKind::NotSupported);
    // Invalid values are adjusted to the allowed range.
    db.set_options(&[("tph_table_factory", "{piece_limit=0;garbage_percent=5000}")]).unwrap();
    let cf = db.get_options().cf;
    assert_eq!((cf.tph.piece_limit, cf.tph.garbage_percent), (1, 1000));
    db.set_options(&[("tph_table_factory", "{piece_limit=4294967295}")]).unwrap();
    assert_eq!(db.get_options().cf.tph.piece_limit, 1024);
    drop(db);
    let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
    assert_eq!((loaded.options.cf.tph.piece_limit, loaded.options.cf.table.block_size), (1024, 16 << 10));
}

#[test]
fn files_that_contradict_themselves_about_tables_are_refused() {
    const TABLE: &str = "[TableOptions/BlockBasedTable \"default\"]";
    for (changed, to, named) in [
        ("table_factory=BlockBasedTable", "table_factory=TphTable", "TableOptions/BlockBasedTable"),
        (TABLE, "[TableOptions/TphTable \"default\"]", "TableOptions/TphTable"),
        (TABLE, "[TableOptions/PlainTable \"default\"]", "PlainTable"),
        (TABLE, "[TableOptions/BlockBasedTable \"default\"]\n  piece_limit=8", "piece_limit"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(&dir, |_| {}));
        let file = options_files(dir.path()).pop().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(changed), "{text}");
        std::fs::write(&file, text.replace(changed, to)).unwrap();
        let e = OptionsLoader::new().load_latest(dir.path()).unwrap_err();
        assert!(e.message().contains(named) && e.message().contains("OPTIONS-"), "{e}");
    }
    // Without a line with the kind, the section determines it.
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir, |_| {}));
    let file = options_files(dir.path()).pop().unwrap();
    let text = std::fs::read_to_string(&file).unwrap().replace("  table_factory=BlockBasedTable\n", "");
    std::fs::write(&file, text.replace(TABLE, "[TableOptions/TphTable \"default\"]\n  piece_limit=3")).unwrap();
    let cf = OptionsLoader::new().load_latest(dir.path()).unwrap().options.cf;
    assert_eq!((cf.table_factory, cf.tph.piece_limit), (TableKind::Tph, 3));
}
