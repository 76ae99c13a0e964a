//! Handles of column families: each belongs to one open of one database, and every call refuses other handles.

use std::sync::Arc;
use std::time::Duration;

use rockmill::internals::explain_compact_range_cf_opt;
use rockmill::{
    BlockBasedOptions, Checkpoint, ColumnFamily, CompactOptions, Db, ErrorKind, FlushOptions,
    IngestExternalFileOptions, IteratorMode, Options, Range, ReadOptions, Result, SizeApproximationOptions,
    SstFileWriter, WriteBatch, WriteOptions,
};
use rockmill_io::{FileSystem as _, MemFileSystem};

use crate::{in_memory, path};

type Call = (&'static str, fn(&Db, &ColumnFamily) -> Result<()>);

/// Every call that takes a handle and can fail.
const CALLS: &[Call] = &[
    ("put", |db, cf| db.put_cf(cf, "k", "v")),
    ("put_opt", |db, cf| db.put_cf_opt(cf, "k", "v", &WriteOptions::default())),
    ("delete", |db, cf| db.delete_cf(cf, "k")),
    ("delete_opt", |db, cf| db.delete_cf_opt(cf, "k", &WriteOptions::default())),
    ("single_delete", |db, cf| db.single_delete_cf(cf, "k")),
    ("merge", |db, cf| db.merge_cf(cf, "k", "v")),
    ("delete_range", |db, cf| db.delete_range_cf(cf, "a", "z")),
    ("write", |db, cf| {
        let mut batch = WriteBatch::new();
        batch.put("fine", "v");
        batch.put_cf(cf, "k", "v");
        db.write(&batch)
    }),
    ("write of own and other handles", |db, cf| {
        let mut batch = WriteBatch::new();
        batch.put_cf(&db.default_cf(), "fine", "v");
        batch.merge_cf(cf, "k", "v");
        db.write(&batch)
    }),
    ("write without a WAL", |db, cf| {
        let mut batch = WriteBatch::new();
        batch.delete_range_cf(cf, "a", "z");
        db.write_without_wal(&batch)
    }),
    ("get", |db, cf| db.get_cf(cf, "k").map(drop)),
    ("get_opt", |db, cf| db.get_cf_opt(cf, "k", &ReadOptions::default()).map(drop)),
    ("get_pinned", |db, cf| db.get_pinned_cf(cf, "k").map(drop)),
    ("get of a snapshot", |db, cf| db.snapshot().get_cf(cf, "k").map(drop)),
    ("multi_get", |db, cf| {
        let own = db.default_cf();
        let mut all = db.multi_get_cf([(&own, "own"), (cf, "k"), (&own, "own")]);
        assert_eq!(all[0].as_ref().unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(all[2].as_ref().unwrap().as_deref(), Some(&b"1"[..]));
        all.remove(1).map(drop)
    }),
    ("iterator", |db, cf| db.iterator_cf(cf, IteratorMode::Start).next().expect("an error").map(drop)),
    ("prefix_iterator", |db, cf| db.prefix_iterator_cf(cf, "k").next().expect("an error").map(drop)),
    ("raw_iterator", |db, cf| {
        let mut it = db.raw_iterator_cf(cf);
        it.seek("k");
        assert!(!it.valid());
        it.status()
    }),
    ("flush", |db, cf| db.flush_cf(cf)),
    ("flush_cfs", |db, cf| db.flush_cfs_opt(&[db.default_cf(), cf.clone()], &FlushOptions::default())),
    ("compact_range", |db, cf| db.compact_range_cf(cf, None::<&[u8]>, None::<&[u8]>)),
    ("explain_compact_range", |db, cf| {
        let o = CompactOptions::default();
        explain_compact_range_cf_opt(db, cf, None::<&[u8]>, None::<&[u8]>, &o).map(drop)
    }),
    ("delete_file_in_range", |db, cf| db.delete_file_in_range_cf(cf, "a", "z")),
    ("merge_extra_runs", |db, cf| db.merge_extra_runs_cf(cf)),
    ("ingest_external_file", |db, cf| {
        db.ingest_external_file_cf_opts(cf, &IngestExternalFileOptions::default(), vec!["/ext.sst"])
    }),
    ("export_column_family", |db, cf| Checkpoint::new(db)?.export_column_family(cf, "/export").map(drop)),
    ("property_value", |db, cf| db.property_value_cf(cf, "rocksdb.stats").map(drop)),
    ("property_int_value", |db, cf| db.property_int_value_cf(cf, "rocksdb.estimate-num-keys").map(drop)),
    ("set_options", |db, cf| db.set_options_cf(cf, &[("write_buffer_size", "100000")])),
    ("get_approximate_sizes", |db, cf| {
        let o = SizeApproximationOptions::default();
        db.get_approximate_sizes_cf_opt(cf, &[Range::new(b"a", b"z")], &o).map(drop)
    }),
    ("set_ttl", |db, cf| db.set_ttl_cf(cf, Duration::from_secs(9))),
    ("ttl", |db, cf| db.ttl_cf(cf).map(drop)),
];

#[test]
fn every_call_refuses_a_handle_of_another_database_or_of_an_earlier_opening() {
    let (o, fs) = in_memory();
    let mut o: Options = o;
    o.create_missing_column_families(true);
    let mut writer = SstFileWriter::create(&o);
    writer.open("/ext.sst").unwrap();
    writer.put("m", "ingested").unwrap();
    writer.finish().unwrap();
    let open = || Db::open_cf(&o, path(), ["default", "a", "b"]).unwrap();
    let db = open();
    let earlier: Vec<ColumnFamily> = ["default", "a"].map(|name| db.cf_handle(name).unwrap()).to_vec();
    db.put_cf(&earlier[1], "old", "1").unwrap();
    drop(db);
    let db = open();
    db.put("own", "1").unwrap();
    // Ids that this database has, and one that it does not have.
    let other = Db::open_cf(&o, "/other", ["default", "x", "y", "z"]).unwrap();
    let foreign = ["default", "x", "z"].map(|name| other.cf_handle(name).unwrap());
    let before = db.latest_sequence_number();
    for cf in earlier.iter().chain(&foreign) {
        for (what, call) in CALLS {
            let refused = call(&db, cf).expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{what}: {refused}");
            assert!(refused.message().contains("another database"), "{what}: {refused}");
            let named = refused.message().contains(&format!("{:?}", cf.name()));
            assert!(named || refused.message().contains(&format!("(id {})", cf.id())), "{what}: {refused}");
        }
        // Without a way to say no: nothing.
        assert_eq!(db.get_column_family_metadata_cf(cf).levels.len(), 0);
        assert_eq!(db.level_stats(cf).len(), 0);
        assert_eq!(db.compaction_debt(cf), 0);
        assert_eq!(db.get_approximate_memtable_stats_cf(cf, &Range::new(b"a", b"z")), (0, 0));
        assert!(db.get_approximate_sizes_cf(cf, &[Range::new(b"a", b"z")]).iter().all(|&n| n == 0));
    }
    assert_eq!(db.latest_sequence_number(), before, "nothing was written");
    assert!(!fs.exists("/export".as_ref()).unwrap());
    assert_eq!(other.latest_sequence_number(), 0);
    assert!(db.put_cf(&db.cf_handle("a").unwrap(), "k", "v").is_ok());
    assert_eq!(db.get_cf(&db.cf_handle("a").unwrap(), "old").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_batch_that_forgets_its_handles_goes_to_any_database() {
    let (mut o, _) = in_memory();
    o.create_missing_column_families(true);
    let (one, two) =
        (Db::open_cf(&o, "/1", ["default", "a"]).unwrap(), Db::open_cf(&o, "/2", ["default", "a"]).unwrap());
    let (first, second) = (one.cf_handle("a").unwrap(), two.cf_handle("a").unwrap());
    let mut batch = WriteBatch::new();
    batch.put("k", "v");
    one.write(&batch).unwrap();
    two.write(&batch).unwrap();
    batch.set_save_point();
    batch.put_cf(&first, "k", "v");
    assert_eq!(two.write(&batch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    one.write(&batch).unwrap();
    two.write(&WriteBatch::from_data(batch.data()).unwrap()).unwrap();
    assert!(two.get_cf(&second, "k").unwrap().is_some());
    batch.rollback_to_save_point().unwrap();
    two.write(&batch).unwrap();
    batch.put_cf(&second, "l", "v");
    two.write(&batch).unwrap();
    batch.clear();
    batch.put_cf(&first, "l", "v");
    one.write(&batch).unwrap();
}

#[test]
fn what_is_printed_for_people_is_short_and_says_which_one_it_is() {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(MemFileSystem::new()));
    o.set_write_buffer_size(1 << 20);
    let mut table = BlockBasedOptions::default();
    table.set_block_size(8192);
    o.set_block_based_table_factory(&table);
    let db = Db::open(&o, "/db").unwrap();
    db.create_cf("b", &o).unwrap();
    assert_eq!(format!("{db:?}"), r#"Db { path: "/db", column_families: ["b", "default"], .. }"#);
    let printed = format!("{o:?}");
    let (db_part, cf_part) = printed.split_once(", cf: ").expect("two parts");
    assert_eq!(db_part, "Options { db: DbOptions { create_if_missing: true, .. }");
    let table = "BlockBasedOptions { block_size: 8192, .. }";
    assert_eq!(cf_part, format!("CfOptions {{ write_buffer_size: 1048576, table: {table}, .. }} }}"));
    db.put("k\u{ff}", "v").unwrap();
    let mut iter = db.raw_iterator();
    iter.seek_to_first();
    assert_eq!(format!("{iter:?}"), r#"DbRawIterator { key: Some("k\\xc3\\xbf"), status: Ok(()), .. }"#);
}
