//! `rockmill verify` on databases that RocksDB wrote: all are intact, and every damaged byte of a data block is
//! noticed. And `compact --reproducible` on the same databases: every engine writes the same tables.

#[path = "../../rockmill/tests/compat/archive.rs"]
mod archive;
mod cli_support;
#[path = "oracle_verify/reproducible.rs"]
mod reproducible;

use std::fs;
use std::path::Path;

use archive::Case;
use cli_support::Sandbox;

/// The repository's databases that can be read without a merge operator, comparator or time to live.
fn fixtures(archives: &[&str]) -> Vec<Case> {
    let all = archives.iter().flat_map(|name| archive::cases(name));
    all.filter(|c| c.refused.is_none() && c.operators.is_empty() && c.reverse.is_empty() && !c.ttl && !c.is_backup)
        .collect()
}

fn write(case: &Case, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for (name, bytes) in &case.files {
        fs::write(to.join(name), bytes).expect("a file");
    }
}

#[test]
fn databases_of_other_versions_are_sound() {
    for case in fixtures(&["rocksdb-5.18.4", "rocksdb-8.11.4", "rocksdb-11.8.1-tables", "rockmill-0.1.0"]) {
        let sandbox = Sandbox::new();
        write(&case, &sandbox.path("db"));
        let done = sandbox.run(&["verify", "db"]);
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(done.code, 0, "{}: {said}{}", case.title(), done.stderr);
    }
}

#[test]
fn damage_is_noticed() {
    for case in fixtures(&["rocksdb-11.8.1-tables"]).into_iter().step_by(3) {
        let sandbox = Sandbox::new();
        let db = sandbox.path("db");
        write(&case, &db);
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
                assert_ne!(done.code, 0, "{}: {name} damaged at {at}: {said}", case.title());
                assert!(said.contains(&name), "the damaged {name} is not named: {said}");
            }
            fs::write(&table, bytes).expect("the copy");
        }
        assert_eq!(sandbox.run(&["verify", "db"]).code, 0);
    }
}
