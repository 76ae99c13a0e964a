//! The programs that run RocksDB.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rockmill_skip::{Needs, python_with_rocksdict, skip};
use tempfile::TempDir;

use crate::table::Entries;

/// Runs a tool that must succeed.
fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    out
}

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn hex_entries<'a>(lines: impl Iterator<Item = &'a str>) -> Entries {
    lines
        .map(|line| {
            let (key, value) = line.split_once(' ').expect("KEY VALUE");
            (unhex(key), unhex(value))
        })
        .collect()
}

/// The only table in a database directory.
fn only_table(dir: &Path) -> Vec<u8> {
    let tables: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "sst"))
        .collect();
    assert_eq!(tables.len(), 1, "{}", dir.display());
    fs::read(&tables[0]).unwrap()
}

/// Debian's RocksDB through `tests/oracle/tables.cc`.
pub struct Cpp {
    dir: TempDir,
}

impl Cpp {
    pub fn build() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/tables.cc");
        let built = Command::new("g++")
            .args(["-O0", "-std=c++17", "-o"])
            .arg(dir.path().join("tables"))
            .arg(source)
            .arg("-lrocksdb")
            .output();
        match built {
            Ok(out) if out.status.success() => Some(Self { dir }),
            Ok(out) => {
                let error = String::from_utf8_lossy(&out.stderr);
                assert!(error.contains("rocksdb"), "{error}");
                skip("blocks of RocksDB's library", &Needs::RocksDb.because("g++ finds no librocksdb"));
                None
            }
            Err(e) => {
                skip("blocks of RocksDB's library", &Needs::RocksDb.because(format!("g++: {e}")));
                None
            }
        }
    }

    /// Writes a database with one table for each configuration and returns their names.
    pub fn write_tables(&self) -> Vec<String> {
        let dir = self.dir.path().join("written");
        fs::create_dir_all(&dir).unwrap();
        let out = run(Command::new(self.dir.path().join("tables")).arg("write").arg(&dir));
        String::from_utf8(out.stdout).unwrap().lines().map(String::from).collect()
    }

    pub fn table(&self, name: &str) -> Vec<u8> {
        only_table(&self.dir.path().join("written").join(name))
    }

    /// The user keys and values that RocksDB reads from each of `tables`.
    pub fn read_tables(&self, tables: &[Vec<u8>]) -> Vec<Entries> {
        let mut command = Command::new(self.dir.path().join("tables"));
        command.arg("read");
        for (i, table) in tables.iter().enumerate() {
            let path = self.dir.path().join(format!("{i:06}.sst"));
            fs::write(&path, table).unwrap();
            command.arg(path);
        }
        let out = String::from_utf8(run(&mut command).stdout).unwrap();
        let mut all = Vec::new();
        let mut lines = out.lines().peekable();
        while lines.peek().is_some() {
            all.push(hex_entries(lines.by_ref().take_while(|l| !l.starts_with("end "))));
        }
        assert_eq!(all.len(), tables.len());
        all
    }
}

/// RocksDB 9 through the Python package rocksdict.
pub struct Python {
    python: PathBuf,
    dir: TempDir,
}

/// One database for each configuration; the same operations as in `tables.cc`.
const WRITE: &str = r#"
import sys
from rocksdict import *

def options(configure):
    o = Options(raw_mode=True)
    o.set_disable_auto_compactions(True)
    o.set_compression_type(DBCompressionType.none())
    b = BlockBasedOptions()
    b.set_format_version(6)
    b.set_block_size(1000)
    configure(o, b)
    o.set_block_based_table_factory(b)
    return o

configs = {
    "plain": lambda o, b: None,
    "bloom": lambda o, b: b.set_bloom_filter(10, False),
    "crc": lambda o, b: b.set_checksum_type(ChecksumType.crc32c()),
    "xxhash64": lambda o, b: b.set_checksum_type(ChecksumType.xxhash64()),
    "lz4": lambda o, b: o.set_compression_type(DBCompressionType.lz4()),
    "zstd": lambda o, b: o.set_compression_type(DBCompressionType.zstd()),
    "snappy": lambda o, b: o.set_compression_type(DBCompressionType.snappy()),
    "hashindex": lambda o, b: b.set_data_block_index_type(DataBlockIndexType.binary_and_hash()),
    "twolevel": lambda o, b: (b.set_index_type(BlockBasedIndexType.two_level_index_search()),
                              b.set_metadata_block_size(512)),
    "restarts": lambda o, b: (b.set_block_restart_interval(3), b.set_index_block_restart_interval(4)),
}
for name, configure in configs.items():
    db = Rdict(sys.argv[1] + "/" + name, options(configure))
    key = lambda i: b"user%06d" % (i * 7)
    for i in range(3000):
        db[key(i)] = (b"value-%d-" % (i % 50)) * (i % 12)
    snapshot = db.snapshot()
    for i in range(0, 3000, 10):
        del db[key(i)]
    db.delete_range(key(100), key(200))
    db.flush()
    del snapshot
    db.close()
    print(name)
"#;

const INGEST: &str = r#"
import sys
from rocksdict import *

db = Rdict(sys.argv[1], Options(raw_mode=True))
db.ingest_external_file([sys.argv[2]])
for k, v in db.items():
    assert db[k] == v
    print(k.hex(), v.hex())
db.close()
"#;

impl Python {
    pub fn find() -> Option<Self> {
        let found = python_with_rocksdict();
        let python = found.inspect_err(|missing| skip("blocks of RocksDB 9.8", missing)).ok()?;
        Some(Self { python, dir: tempfile::tempdir().unwrap() })
    }

    /// Returns (configuration, table) for each.
    pub fn write_tables(&self) -> Vec<(String, Vec<u8>)> {
        let out = run(Command::new(&self.python).args(["-c", WRITE]).arg(self.dir.path()));
        let names = String::from_utf8(out.stdout).unwrap();
        names.lines().map(|name| (name.into(), only_table(&self.dir.path().join(name)))).collect()
    }

    /// The entries that RocksDB reads after ingesting `table` into an empty database.
    pub fn ingest_and_read(&self, table: &[u8]) -> Entries {
        let path = self.dir.path().join("ours.sst");
        fs::write(&path, table).unwrap();
        let db = self.dir.path().join("ingested");
        let out = run(Command::new(&self.python).args(["-c", INGEST]).arg(&db).arg(&path));
        fs::remove_dir_all(&db).unwrap();
        hex_entries(String::from_utf8(out.stdout).unwrap().lines())
    }
}
