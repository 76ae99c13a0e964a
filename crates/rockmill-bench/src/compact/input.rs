//! The database that every side merges. It is written once; each side and repetition gets a copy with linked tables, so
//! that all read the same blocks of the disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rockmill::{Db, Options, ReadOptions};

use super::flags::Case;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::generate::{KeyGenerator, ValueGenerator, write_key};
use crate::kernel;
use crate::peers;
use crate::random::Mersenne64;

/// Marks a directory as this command's, which may remove it.
const MARK: &str = "made-by-rockmill-bench-compact";
/// Entries of a batch.
const BATCH_ENTRIES: u64 = 256;

/// The directory of a run; removed with its contents when this is dropped.
#[derive(Debug)]
pub struct Workspace {
    dir: PathBuf,
    /// It was there before, and stays.
    keep: bool,
}

impl Workspace {
    /// Creates it, or empties the directory of an earlier run.
    pub fn create(dir: &Path) -> Result<Self> {
        let failed = |e: &std::io::Error| Error::io(format_args!("cannot use {}", dir.display()), e);
        let was_there = dir.exists();
        if was_there {
            Self::check(dir)?;
            if dir.join(MARK).exists() {
                fs::remove_dir_all(dir).map_err(|e| failed(&e))?;
            }
        }
        fs::create_dir_all(dir).map_err(|e| failed(&e))?;
        let made = Self { dir: dir.to_path_buf(), keep: was_there };
        fs::write(dir.join(MARK), "rockmill bench compact may remove this folder\n").map_err(|e| failed(&e))?;
        Ok(made)
    }

    /// Refuses a directory with contents that are not this command's.
    pub fn check(dir: &Path) -> Result<()> {
        if !dir.exists() || dir.join(MARK).exists() {
            return Ok(());
        }
        let mut entries =
            fs::read_dir(dir).map_err(|e| Error::io(format_args!("cannot read {}", dir.display()), &e))?;
        match entries.next() {
            None => Ok(()),
            Some(_) => Err(Error::Usage(format!(
                "{} is not empty and was not made by `rockmill bench compact`: choose another --db",
                dir.display()
            ))),
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Remaining files are removed by the next run, which finds the mark.
        let _ = match (self.keep, fs::read_dir(&self.dir)) {
            (true, Ok(entries)) => {
                for entry in entries.flatten() {
                    let path = entry.path();
                    let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                }
                Ok(())
            }
            _ => fs::remove_dir_all(&self.dir),
        };
    }
}

/// A database of overlapping tables in L0.
#[derive(Debug)]
pub struct Input {
    dir: PathBuf,
    /// The tables.
    pub tables: Vec<PathBuf>,
    /// Bytes of the tables.
    pub bytes: u64,
    /// Entries, each of another key.
    pub entries: u64,
    /// Sum of the entries' hashes.
    pub digest: u64,
    /// Who wrote it.
    pub written_by: String,
}

impl Input {
    /// Writes it into `dir`: every key once, in an order determined by the seed, with the same number in each table.
    pub fn write(flags: &Flags, case: &Case, dir: &Path) -> Result<Self> {
        let mut sides = peers::sides(flags)?;
        let side = sides.pop().ok_or_else(|| Error::Run("nobody to write the inputs".to_owned()))?;
        let store = side.open(false)?;
        let (entries, per_table) = (flags.num as u64, flags.num as u64 / case.inputs as u64);
        let mut keys = KeyGenerator::unique_random(entries, flags.seed);
        let mut random = Mersenne64::new(flags.seed);
        let mut values = ValueGenerator::new(flags.compression_ratio, case.value_size.max(1 << 20));
        let (mut key, mut digest) = (vec![0; flags.key_size], 0u64);
        for _ in 0..case.inputs {
            let mut session = store.session()?;
            let mut waiting = 0;
            for _ in 0..per_table {
                let Some(n) = keys.next_key(&mut random, entries) else { break };
                write_key(n, &mut key);
                let value = values.next_value(case.value_size);
                digest = digest.wrapping_add(hash_entry(&key, value));
                session.put(&key, value);
                waiting += 1;
                if waiting == BATCH_ENTRIES {
                    session.commit()?;
                    waiting = 0;
                }
            }
            session.commit()?;
            drop(session);
            store.flush()?;
        }
        let levels = store.levels()?;
        store.close()?;
        let mut tables = tables_of(dir)?;
        tables.sort();
        if tables.len() != case.inputs || levels.iter().skip(1).any(|b| *b > 0) {
            return Err(Error::Run(format!(
                "{} wrote {} tables for {} inputs, with {levels:?} bytes by level",
                side.label,
                tables.len(),
                case.inputs
            )));
        }
        let size = |path: &PathBuf| {
            fs::metadata(path).map(|m| m.len()).map_err(|e| Error::io(format_args!("{}", path.display()), &e))
        };
        let bytes = tables.iter().map(size).sum::<Result<u64>>()?;
        let written_by = format!("{} {}", side.label, side.version());
        Ok(Self { dir: dir.to_path_buf(), tables, bytes, entries, digest, written_by })
    }

    /// Puts a copy into the new directory `dir`, and drops the tables from the page cache.
    pub fn copy_to(&self, dir: &Path) -> Result<()> {
        let failed = |what: &Path, e: &std::io::Error| Error::io(format_args!("cannot copy {}", what.display()), e);
        fs::create_dir_all(dir).map_err(|e| failed(dir, &e))?;
        for entry in fs::read_dir(&self.dir).map_err(|e| failed(&self.dir, &e))? {
            let from = entry.map_err(|e| failed(&self.dir, &e))?.path();
            let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The writer's log, options and lock are not copied.
            if ["LOG", "LOCK", "OPTIONS"].iter().any(|own| name.starts_with(own)) {
                continue;
            }
            let to = dir.join(&name);
            let linked = is_table(&from) && fs::hard_link(&from, &to).is_ok();
            if !linked {
                fs::copy(&from, &to).map_err(|e| failed(&from, &e))?;
            }
        }
        kernel::sync_disks();
        for table in tables_of(dir)? {
            kernel::forget_cached(&File::open(&table).map_err(|e| failed(&table, &e))?);
        }
        Ok(())
    }

    /// Scans a side's result with Rockmill: every entry must exist, in order and unchanged.
    pub fn check_merged(&self, label: &str, dir: &Path) -> Result<()> {
        let wrong = |what: String| Error::Run(format!("what {label} merged is not what was written: {what}"));
        let db = Db::open_for_read_only(&Options::default(), dir, false)?;
        let mut read = ReadOptions::default();
        read.set_readahead_size(2 << 20);
        read.fill_cache(false);
        let mut iter = db.raw_iterator_opt(read);
        let (mut count, mut digest, mut before) = (0u64, 0u64, Vec::new());
        iter.seek_to_first();
        while let Some((key, value)) = iter.item() {
            if count > 0 && before.as_slice() >= key {
                return Err(wrong(format!("entry {count} does not come after the one before it")));
            }
            before.clear();
            before.extend_from_slice(key);
            digest = digest.wrapping_add(hash_entry(key, value));
            count += 1;
            iter.next();
        }
        iter.status()?;
        match () {
            () if count != self.entries => Err(wrong(format!("{count} entries of {}", self.entries))),
            () if digest != self.digest => Err(wrong("the sum of the entries' hashes differs".to_owned())),
            () => Ok(()),
        }
    }
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "sst")
}

fn tables_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: &std::io::Error| Error::io(format_args!("cannot list {}", dir.display()), e);
    let entries = fs::read_dir(dir).map_err(|e| failed(&e))?;
    let paths = entries.map(|e| Ok(e.map_err(|e| failed(&e))?.path()));
    paths.filter(|p| p.as_ref().map_or(true, |p| is_table(p))).collect()
}

/// A hash of one entry, independent of its place: sums of these hashes compare sets of entries.
fn hash_entry(key: &[u8], value: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = (key.len() as u64) << 32 ^ value.len() as u64;
    for bytes in [key, value] {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mixed = u128::from(h ^ u64::from_le_bytes(word)) * u128::from(ODD);
            h = (mixed as u64) ^ (mixed >> 64) as u64 ^ ODD.rotate_left(17);
        }
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_folders_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("precious"), "x").unwrap();
        let e = Workspace::create(&path).expect_err("not ours").to_string();
        assert!(e.contains("not empty") && path.join("precious").exists(), "{e}");
        fs::remove_file(path.join("precious")).unwrap();
        drop(Workspace::create(&path).unwrap());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "it was there, and is empty again");
        fs::remove_dir(&path).unwrap();
        drop(Workspace::create(&path).unwrap());
        assert!(!path.exists());
        std::mem::forget(Workspace::create(&path).unwrap());
        fs::create_dir(path.join("left")).unwrap();
        drop(Workspace::create(&path).unwrap());
        assert!(!path.join("left").exists(), "what a killed run left");
    }

    #[test]
    fn hashes_see_every_byte() {
        let h = hash_entry(b"key", b"value");
        assert_ne!(h, hash_entry(b"keyv", b"alue"));
        assert_ne!(h, hash_entry(b"key", b"valuf"));
        assert_ne!(h, hash_entry(b"key", b"value\0"));
        assert_eq!(h, hash_entry(b"key", b"value"));
    }
}
