//! Repair after the loss of the MANIFEST or of its last records, with TPH tables that share files: overwritten and
//! deleted data does not reappear, and an interrupted job loses nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use rockmill::{
    BlockBasedOptions, CompressionType, Db, DbIterator, IteratorMode, Options, TphTableOptions, WriteOptions,
};
use tempfile::TempDir;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(rng: &mut Rng, tph: bool) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    o.set_target_file_size_base(8 << 10);
    o.set_compression_type(CompressionType::None);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_size(512);
    match rng.u8(0..5) {
        0 if !tph => o.set_block_based_table_factory(&blocks),
        n => {
            let mut tph = TphTableOptions::default();
            tph.set_block_based_options(&blocks);
            tph.set_garbage_percent([20, 100, 1000][usize::from(n) % 3]);
            o.set_tph_table_factory(&tph);
        }
    }
    o
}

/// A new store, in `db` below the directory.
fn start(seed: u64, tph: bool) -> (Rng, TempDir, Options, Db) {
    let mut rng = Rng::with_seed(seed);
    let temp = tempfile::tempdir().unwrap();
    let o = options(&mut rng, tph);
    let db = Db::open(&o, temp.path().join("db")).unwrap();
    (rng, temp, o, db)
}

/// Writes and deletes a few keys, and flushes them.
fn write(rng: &mut Rng, db: &Db, model: &mut Map) {
    let keys = rng.usize(1..120);
    for _ in 0..keys {
        let key = format!("key{:04}", rng.u32(0..800)).into_bytes();
        if rng.u8(0..4) == 0 {
            db.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let len = rng.usize(10..90);
            let value: Vec<u8> = std::iter::repeat_with(|| rng.alphanumeric() as u8).take(len).collect();
            db.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
    db.flush().unwrap();
}

/// Replaces all tables several times; the readers keep the replaced ones.
fn replace<'a>(rng: &mut Rng, db: &'a Db, model: &mut Map) -> Vec<DbIterator<'a>> {
    let mut readers = Vec::new();
    for _ in 0..rng.usize(3..7) {
        write(rng, db, model);
        readers.push(db.iterator(IteratorMode::Start));
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    }
    readers
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for file in files(from) {
        match std::fs::copy(&file, to.join(file.file_name().unwrap())) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {} // a WAL that a flush has just made obsolete
            copied => drop(copied.unwrap()),
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = entries.filter(|p| p.is_file()).collect();
    all.sort();
    all
}

fn manifest(dir: &Path) -> PathBuf {
    let name = std::fs::read_to_string(dir.join("CURRENT")).unwrap();
    dir.join(name.trim_end())
}

fn all(db: &Db) -> Map {
    db.iterator(IteratorMode::Start).map(|e| e.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
}

fn repaired(o: &Options, dir: &Path, model: &Map, what: &str) {
    let report = Db::repair(o, dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    let what = &format!("{what}: {report:?}");
    let db = Db::open(o, dir).unwrap();
    let found = all(&db);
    for key in model.keys().chain(found.keys()) {
        assert_eq!(found.get(key), model.get(key), "{what}: {}", String::from_utf8_lossy(key));
        assert_eq!(db.get(key).unwrap().as_ref(), model.get(key), "{what}");
    }
}

#[test]
fn what_files_of_tables_had_before_does_not_come_back() {
    let (mut cut, mut lost, mut halves) = (0, 0, 0);
    for seed in 0..16 {
        let (mut rng, temp, o, db) = start(seed, false);
        let (dir, before, other) = (temp.path().join("db"), temp.path().join("before"), temp.path().join("other"));
        let mut model = Map::new();
        let mut earlier = Vec::new();
        for _ in 0..rng.usize(2..7) {
            (0..rng.usize(1..4)).for_each(|_| write(&mut rng, &db, &mut model));
            copy(&dir, &before);
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            earlier.push(std::fs::metadata(manifest(&before)).unwrap().len());
        }
        drop(db);

        // The MANIFEST is gone.
        copy(&dir, &other);
        std::fs::remove_file(manifest(&other)).unwrap();
        repaired(&o, &other, &model, &format!("seed {seed}, without a MANIFEST"));
        lost += 1;

        // Its last records are lost, from before some compaction on.
        for len in earlier {
            copy(&dir, &other);
            let file = std::fs::OpenOptions::new().write(true).open(manifest(&other)).unwrap();
            file.set_len(len).unwrap();
            repaired(&o, &other, &model, &format!("seed {seed}, MANIFEST of {len} bytes"));
            cut += 1;
        }

        // The process died during the last compaction, and the MANIFEST is lost: some outputs and all inputs exist.
        copy(&before, &other);
        let outputs: Vec<PathBuf> = files(&dir)
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "sst") && !before.join(p.file_name().unwrap()).exists())
            .collect();
        for output in &outputs[..outputs.len() / 2] {
            std::fs::copy(output, other.join(output.file_name().unwrap())).unwrap();
            halves += 1;
        }
        std::fs::remove_file(manifest(&other)).unwrap();
        repaired(&o, &other, &model, &format!("seed {seed}, in the middle of a compaction"));
    }
    assert!(cut > 30 && lost == 16 && halves > 8, "{cut} cut, {lost} lost, {halves} outputs of half a job");
}

/// Readers keep tables that were replaced long ago. The evidence that the replacing job has ended may be gone.
#[test]
fn what_a_reader_still_has_does_not_come_back() {
    let mut held = 0;
    for seed in 0..24 {
        let (mut rng, temp, o, db) = start(seed, true);
        let (dir, other) = (temp.path().join("db"), temp.path().join("other"));
        let mut model = Map::new();
        let mut readers = Vec::new();
        for step in 0..rng.usize(4..9) {
            (0..rng.usize(1..3)).for_each(|_| write(&mut rng, &db, &mut model));
            if rng.bool() {
                readers.push(db.iterator(IteratorMode::Start));
            }
            // A part of the keys, so that outputs of the previous job are replaced one by one.
            let from = rng.u32(0..800);
            let range = |n: u32| format!("key{n:04}").into_bytes();
            match rng.u8(0..3) {
                0 => db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap(),
                _ => db.compact_range(Some(range(from)), Some(range(from + rng.u32(0..200)))).unwrap(),
            }
            copy(&dir, &other);
            held += files(&other).len() - db.live_files().unwrap().len();
            std::fs::remove_file(manifest(&other)).unwrap();
            repaired(&o, &other, &model, &format!("seed {seed}, step {step}, with readers"));
        }
    }
    assert!(held > 500, "{held} files beside the live ones");
}

/// A damaged table of another column family does not make old data reappear, as long as the MANIFEST tells to which
/// column family it belongs.
#[test]
fn damage_in_one_column_family_brings_nothing_back_in_another() {
    let mut held = 0;
    for seed in 0..8 {
        let (mut rng, temp, o, db) = start(seed, true);
        let (dir, other) = (temp.path().join("db"), temp.path().join("other"));
        let mut model = Map::new();
        db.create_cf("damaged", &o).unwrap();
        let cf = db.cf_handle("damaged").unwrap();
        db.put_cf(&cf, "key", "value").unwrap();
        db.flush_cf(&cf).unwrap();
        let damaged = db.live_files().unwrap().remove(0);
        let readers = replace(&mut rng, &db, &mut model);
        copy(&dir, &other);
        held += files(&other).len() - db.live_files().unwrap().len();
        drop(readers);
        drop(db);
        let table = other.join(format!("{:06}.sst", damaged.number));
        let mut bytes = std::fs::read(&table).unwrap();
        let end = bytes.len() - 60;
        bytes[end..].fill(0x55);
        std::fs::write(table, bytes).unwrap();
        // Two records with wrong checksums follow the MANIFEST's records, so it is not trusted.
        let file = manifest(&other);
        let mut bytes = std::fs::read(&file).unwrap();
        let record = [&[0x55; 4][..], &[10, 0, 1], &[0; 10]].concat();
        bytes.extend(record.repeat(2));
        std::fs::write(file, bytes).unwrap();
        let report = Db::repair(&o, &other).unwrap();
        assert!(report.tables_damaged == 1 && report.manifest_damage.is_some(), "{report:?}");
        let db = Db::open_cf(&o, &other, ["default", "damaged"]).unwrap();
        assert!(all(&db) == model, "seed {seed}: {report:?}");
    }
    assert!(held > 40, "{held} files beside the live ones");
}

/// If tables are damaged, inputs of finished jobs may count again. The next repair does not change the first one's
/// result.
#[test]
fn a_second_repair_changes_nothing() {
    let mut damaged = 0;
    for seed in 0..24 {
        let (mut rng, temp, o, db) = start(seed, true);
        let (dir, other) = (temp.path().join("db"), temp.path().join("other"));
        let mut model = Map::new();
        let readers = replace(&mut rng, &db, &mut model);
        copy(&dir, &other);
        drop(readers);
        drop(db);
        let tables: Vec<PathBuf> =
            files(&other).into_iter().filter(|p| p.extension().is_some_and(|e| e == "sst")).collect();
        let table = rng.choice(&tables).unwrap();
        let mut bytes = std::fs::read(table).unwrap();
        let at = rng.usize(0..bytes.len());
        bytes[at] ^= 0x55;
        std::fs::write(table, bytes).unwrap();
        if rng.bool() {
            std::fs::remove_file(manifest(&other)).unwrap();
        }
        let Ok(first) = Db::repair(&o, &other) else { continue };
        damaged += first.tables_damaged;
        let before = all(&Db::open(&o, &other).unwrap());
        let second = Db::repair(&o, &other).unwrap();
        let after = all(&Db::open(&o, &other).unwrap());
        assert!(before == after, "seed {seed}: {first:?}, then {second:?}");
    }
    assert!(damaged > 5, "{damaged} damaged tables");
}

/// A table, one that was flushed later with new values of every twentieth key, and a job's output from both.
struct Job {
    temp: TempDir,
    options: Options,
    /// The tables, as paths in `after`.
    inputs: [PathBuf; 2],
    output: PathBuf,
    /// The contents of the first table, and of both together.
    old: Map,
    new: Map,
}

impl Job {
    fn run() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut options = options(&mut Rng::with_seed(1), true);
        options.set_target_file_size_base(1 << 20);
        let dir = temp.path().join("db");
        let db = Db::open(&options, &dir).unwrap();
        // A WAL that is about to be deleted would be read.
        let mut no_wal = WriteOptions::default();
        no_wal.disable_wal(true);
        let put = |value: &str, step: usize| {
            let keys = (0..800u32).step_by(step).map(|n| format!("key{n:04}").into_bytes());
            let pairs: Map = keys.map(|key| (key, value.repeat(9).into_bytes())).collect();
            pairs.iter().for_each(|(key, value)| db.put_opt(key, value, &no_wal).unwrap());
            pairs
        };
        let tables = || db.live_files().unwrap().iter().map(|f| f.number).collect::<Vec<_>>();
        // Written by a compaction, and not moved, its entries have the sequence number 0.
        put("oldest", 2);
        db.flush().unwrap();
        let old = put("old", 1);
        db.flush().unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let first = tables();
        let mut new = old.clone();
        new.extend(put("new", 20));
        db.flush().unwrap();
        let both = tables();
        copy(&dir, &temp.path().join("before"));
        // A reader keeps the inputs until the copy is made.
        let reader = db.iterator(IteratorMode::Start);
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let files = db.live_files().unwrap();
        copy(&dir, &temp.path().join("after"));
        drop(reader);
        let second = *both.iter().find(|n| **n != first[0]).unwrap();
        assert!(first.len() == 1 && both.len() == 2 && files.len() == 1, "{first:?}, {both:?}, {files:?}");
        assert_eq!(files[0].pieces.iter().map(|p| p.number).collect::<Vec<_>>(), first);
        let path = |number: u64| temp.path().join("after").join(format!("{number:06}.sst"));
        let (inputs, output) = ([path(first[0]), path(second)], path(files[0].number));
        drop(db);
        Self { temp, options, inputs, output, old, new }
    }

    fn dir(&self) -> PathBuf {
        self.temp.path().join("after")
    }

    /// Damages the first data block of a table.
    fn damage(table: &Path) {
        let mut bytes = std::fs::read(table).unwrap();
        bytes[20] ^= 0x55;
        std::fs::write(table, bytes).unwrap();
    }

    /// Repairs and compares, twice.
    fn repaired(&self, model: &Map, damaged: u64) {
        let report = Db::repair(&self.options, self.dir()).unwrap();
        assert_eq!(report.tables_damaged, damaged, "{report:?}");
        assert!(all(&Db::open(&self.options, self.dir()).unwrap()) == *model, "{report:?}");
        repaired(&self.options, &self.dir(), model, "again");
    }
}

/// The job has ended, and its output's damage is found only by reading it: the output's shared file counts as a table
/// again.
#[test]
fn a_damaged_table_hides_none_of_its_files() {
    let job = Job::run();
    std::fs::remove_file(manifest(&job.dir())).unwrap();
    std::fs::remove_file(&job.inputs[1]).unwrap();
    Job::damage(&job.output);
    job.repaired(&job.old, 1);

    // The MANIFEST has lost its last record, which described the job: it is trusted nevertheless.
    let job = Job::run();
    let len = std::fs::metadata(manifest(&job.temp.path().join("before"))).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(manifest(&job.dir())).unwrap().set_len(len).unwrap();
    std::fs::remove_file(&job.inputs[1]).unwrap();
    Job::damage(&job.output);
    job.repaired(&job.old, 0);
}

/// The process died before the job was in the MANIFEST, which is lost. One of the job's inputs is damaged, and its
/// output has all data.
#[test]
fn where_an_input_is_damaged_what_the_job_wrote_counts() {
    let job = Job::run();
    std::fs::remove_file(manifest(&job.dir())).unwrap();
    job.repaired(&job.new, 0);

    let job = Job::run();
    std::fs::remove_file(manifest(&job.dir())).unwrap();
    Job::damage(&job.inputs[1]);
    job.repaired(&job.new, 1);
}
