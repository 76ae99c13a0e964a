//! RocksDB's side.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rockmill_rocksdb::Library;
use rockmill_rocksdb::store::{self as rocksdb, CompactHow, Go, Look, Op, WriteHow};

use super::options::Texts;
use super::store::{Batches, Pair, Refusal, Said, Store};
use crate::kinds::Kind;

/// An open RocksDB.
pub(super) struct Theirs {
    pub db: rocksdb::Store,
    pub library: Arc<Library>,
    pub texts: Texts,
    pub ttl: Option<Duration>,
}

fn refused(text: String) -> Refusal {
    text.into()
}

impl Store for Theirs {
    fn write(&mut self, how: WriteHow, ops: &[Op]) -> Said<()> {
        self.db.write(how, ops).map_err(refused)
    }

    fn write_together(&mut self, writers: &[Vec<Vec<Op>>]) -> Said<()> {
        self.db.write_together(WriteHow::default(), writers).map_err(refused)
    }

    fn get(&mut self, family: &str, key: &[u8], snapshot: Option<u8>) -> Said<Option<Vec<u8>>> {
        self.db.get(family, key, snapshot).map_err(refused)
    }

    fn multi_get(&mut self, keys: &[(String, Vec<u8>)], snapshot: Option<u8>) -> Vec<Said<Option<Vec<u8>>>> {
        match self.db.multi_get(keys, snapshot) {
            Ok(all) => all.into_iter().map(|one| one.map_err(refused)).collect(),
            Err(text) => vec![Err(refused(text))],
        }
    }

    fn snapshot(&mut self, id: u8) -> Said<()> {
        self.db.snapshot(id).map_err(refused)
    }

    fn release(&mut self, id: u8) -> Said<()> {
        self.db.release(id).map_err(refused)
    }

    fn iterator(&mut self, id: u8, family: &str, look: &Look) -> Said<()> {
        self.db.iterator(id, family, look).map_err(refused)
    }

    fn go(&mut self, id: u8, to: &Go) -> Said<Option<Pair>> {
        self.db.go(id, to).map_err(refused)
    }

    fn close(&mut self, id: u8) {
        self.db.close_iterator(id);
    }

    fn flush(&mut self, families: &[String], wait: bool) -> Said<()> {
        self.db.flush(families, wait).map_err(refused)
    }

    fn compact(&mut self, family: &str, from: Option<&[u8]>, to: Option<&[u8]>, how: CompactHow) -> Said<()> {
        self.db.compact(family, from, to, how).map_err(refused)
    }

    fn set_option(&mut self, family: &str, name: &str, value: &str) -> Said<()> {
        self.db.set_option(family, name, value).map_err(refused)
    }

    fn set_db_option(&mut self, name: &str, value: &str) -> Said<Option<()>> {
        self.db.set_db_option(name, value).map_err(refused)
    }

    fn write_table(&mut self, kind: Kind, path: &Path, ops: &[Op]) -> Said<()> {
        let options = self.texts.family(&self.library, kind)?;
        if self.ttl.is_none() {
            return self.library.write_table(&options, path, ops).map_err(refused);
        }
        // RocksDB's table writers do not support a time to live: the caller has to append the time to each value.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let now = i32::try_from(now).unwrap_or(i32::MAX).to_le_bytes();
        let mut ops = ops.to_vec();
        for op in &mut ops {
            if let Op::Put(_, _, value) | Op::Merge(_, _, value) = op {
                value.extend(now);
            }
        }
        self.library.write_table(&options, path, &ops).map_err(refused)
    }

    fn ingest(&mut self, family: &str, files: &[PathBuf], moved: bool, behind: bool) -> Said<()> {
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        self.db.ingest(family, &files, moved, behind).map_err(refused)
    }

    fn create(&mut self, name: &str, kind: Kind) -> Said<()> {
        let options = self.texts.family(&self.library, kind)?;
        self.db.create_family(name, &options).map_err(refused)
    }

    fn drop_family(&mut self, name: &str) -> Said<()> {
        self.db.drop_family(name).map_err(refused)
    }

    fn names(&mut self) -> Vec<String> {
        self.db.names()
    }

    fn flush_wal(&mut self, sync: bool) -> Said<()> {
        self.db.flush_wal(sync).map_err(refused)
    }

    fn latest_sequence(&mut self) -> u64 {
        self.db.latest_sequence()
    }

    fn updates_since(&mut self, sequence: u64) -> Said<(Batches, Said<()>)> {
        let (mut batches, ended) = self.db.updates_since(sequence).map_err(refused)?;
        // RocksDB begins with the batch that has the number, Rockmill after it, as RocksDB's Rust crate does.
        batches.retain(|(at, _)| *at > sequence);
        Ok((batches, ended.map_err(refused)))
    }

    fn property(&mut self, family: &str, name: &str) -> Option<String> {
        self.db.property(family, name)
    }

    fn checkpoint(&mut self, path: &Path, log_size: u64) -> Said<()> {
        self.db.checkpoint(path, log_size).map_err(refused)
    }
}
