//! The purpose of the databases of RocksDB 11.8.1: formats that only they have, and reads without a merge operator.

use std::collections::BTreeSet;

use rockmill::{Db, IteratorMode, Options};
use rockmill_io::FileSystem;

use super::archive::{self, Entries};
use super::oracle::content::{read, same};
use super::{DIR, Home};

/// Checks that the fixtures really have these features.
#[test]
fn tables_use_the_new_formats() {
    let mut found = BTreeSet::new();
    for case in archive::cases("rocksdb-11.8.1-features").iter().filter(|c| c.refused.is_none()) {
        for table in Home::new(case).tables() {
            let p = table.properties();
            found.extend(p.other.keys().map(String::clone));
            found.extend(table.describe().into_iter().map(|b| b.kind.to_string()));
            if p.separate_key_value_in_data_block > 0 {
                found.insert("keys apart from values".to_owned());
            }
            let footer = table.as_block_based().expect("block-based").footer();
            found.insert(format!("format_version {}", footer.format_version));
            if p.num_uniform_blocks > 0 {
                found.insert("uniform index blocks".to_owned());
            }
        }
    }
    for wanted in [
        "format_version 6",
        "format_version 7",
        "uniform index blocks",
        "keys apart from values",
        "rocksdb.seqno.time.map",
        "rocksdb.udi.is.primary.index",
        "compression dictionary",
        "filter partition",
        "index partition",
    ] {
        assert!(found.contains(wanted), "no table with {wanted} among {found:#?}");
    }
}

/// An older format here would leave the newest untested.
#[test]
fn tables_of_11_8_are_of_format_version_7() {
    for case in archive::cases("rocksdb-11.8.1-tables") {
        for table in Home::new(&case).tables() {
            let blocks = table.as_block_based().expect("block-based");
            assert_eq!(blocks.footer().format_version, 7, "{}", case.title());
        }
    }
}

/// Without a merge operator, keys without operands can be read; reads of others are refused.
#[test]
fn operands_without_an_operator() {
    let cases = archive::cases("rocksdb-11.8.1-features");
    let case = cases.iter().find(|c| c.name == "defaults").expect("the case");
    let home = Home::new(case);
    let mut options = Options::default();
    options.set_file_system(std::sync::Arc::clone(&home.fs) as std::sync::Arc<dyn FileSystem>);
    let db = Db::open_cf_for_read_only(&options, DIR, case.contents.keys(), false).expect("opens");
    for (name, entries) in &case.contents {
        if name != "merges" {
            same(name, entries, &read(&db, name));
            continue;
        }
        let (merged, plain): (Entries, Entries) = entries.iter().cloned().partition(|(k, _)| k.starts_with(b"operand"));
        assert!(!merged.is_empty(), "no key with operands");
        let cf = db.cf_handle(name).expect("opened");
        let found = db.iterator_cf(&cf, IteratorMode::Start);
        let found: Entries = found.map_while(|e| e.ok().map(|(k, v)| (k.into_vec(), v.into_vec()))).collect();
        same(name, &plain, &found);
        for (key, _) in &merged {
            let e = db.get_cf(&cf, key).expect_err("a merge operator is missing");
            assert!(e.message().contains("merge operator"), "{e}");
        }
    }
}
