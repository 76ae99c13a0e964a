//! `rockmill verify` on databases that RocksDB wrote: all sound, and every damaged byte of a data block noticed.

mod cli_support;

use std::fs;
use std::path::{Path, PathBuf};

use cli_support::Sandbox;

/// The databases of other RocksDB versions that are kept in the repository.
fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rockmill/tests/fixtures/rocksdb-11.8.1");
    let mut all: Vec<_> = fs::read_dir(root).expect("fixtures").map(|e| e.expect("an entry").path()).collect();
    all.sort();
    assert!(all.len() >= 9, "the fixtures were not found");
    all
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("the fixture") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

#[test]
fn databases_of_other_versions_are_sound() {
    for fixture in fixtures() {
        let sandbox = Sandbox::new();
        copy(&fixture.join("db"), &sandbox.path("db"));
        let done = sandbox.run(&["verify", "db"]);
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(done.code, 0, "{}: {said}{}", fixture.display(), done.stderr);
    }
}

#[test]
fn damage_is_noticed() {
    for fixture in fixtures().into_iter().step_by(3) {
        let sandbox = Sandbox::new();
        let db = sandbox.path("db");
        copy(&fixture.join("db"), &db);
        let mut tables: Vec<_> = fs::read_dir(&db).expect("the copy").map(|e| e.expect("an entry").path()).collect();
        tables.retain(|p| p.extension().is_some_and(|e| e == "sst"));
        for table in tables {
            let bytes = fs::read(&table).expect("a table");
            for at in [0, 5, bytes.len() / 3, bytes.len() - 20] {
                let mut damaged = bytes.clone();
                damaged[at] ^= 4;
                fs::write(&table, damaged).expect("the copy");
                let done = sandbox.run(&["verify", "db"]);
                let said = String::from_utf8_lossy(&done.stdout).into_owned() + &done.stderr;
                let name = table.file_name().expect("a name").to_string_lossy().into_owned();
                assert_ne!(done.code, 0, "{}: {name} damaged at {at}: {said}", fixture.display());
                assert!(said.contains(&name), "the damaged {name} is not named: {said}");
            }
            fs::write(&table, bytes).expect("the copy");
        }
        assert_eq!(sandbox.run(&["verify", "db"]).code, 0);
    }
}
