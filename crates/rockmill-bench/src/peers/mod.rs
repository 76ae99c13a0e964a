//! The measured stores, and their names on the command line.

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "heed")]
mod lmdb;
mod many;
#[cfg(feature = "redb")]
mod redb;
pub(crate) mod rockmill;
mod rocksdb;

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::place;
use crate::settings::{self, Preset};
use crate::store::Store;
use crate::workload::Workload;
use many::ManyStores;
use rockmill::RockmillStore;
use rocksdb::{RocksDbLibrary, RocksDbStore};

/// A store and its settings: one side of a comparison.
pub(crate) struct Side {
    /// Its unique name in reports.
    pub label: String,
    /// Where its database is.
    pub dir: PathBuf,
    /// The flags, with this side's changes from `--peer`.
    pub flags: Flags,
    /// Notes for readers of the figures: the library, whether it has assertions, changes by a preset.
    pub notes: Vec<String>,
    kind: Kind,
    /// Options in RocksDB's text form, for the stores that support them.
    options_text: String,
}

/// Peers that are features of this crate.
const OPTIONAL: [&str; 4] = ["fjall", "redb", "lmdb", "heed"];

enum Kind {
    Rockmill,
    RocksDb(RocksDbLibrary),
    #[cfg(feature = "fjall")]
    Fjall,
    #[cfg(feature = "redb")]
    Redb,
    #[cfg(feature = "heed")]
    Lmdb,
}

/// All requested sides, Rockmill first. Libraries are loaded and settings checked; nothing is written.
pub(crate) fn sides(flags: &Flags) -> Result<Vec<Side>> {
    let mut specs: Vec<&str> = if flags.rockmill { vec!["rockmill"] } else { vec![] };
    specs.extend(flags.peer.0.iter().map(String::as_str));
    let alone = specs.len() == 1;
    let mut out: Vec<Side> = Vec::new();
    for spec in specs {
        let mut side = side(spec, flags)?;
        let (first, mut n) = (side.label.clone(), 2);
        while out.iter().any(|s| s.label == side.label) {
            side.label = format!("{first}-{n}");
            n += 1;
        }
        // One side has the directory to itself, as in db_bench.
        side.dir = if alone { PathBuf::from(&flags.db) } else { Path::new(&flags.db).join(&side.label) };
        if !side.flags.fast_path.is_empty() && !alone {
            let own = Path::new(&side.flags.fast_path).join(&side.label);
            side.flags.fast_path = own.to_string_lossy().into_owned();
        }
        out.push(side);
    }
    Ok(out)
}

/// Escapes `text` for a `--peer`, in which commas separate flags.
pub(crate) fn escape(text: &str) -> String {
    text.replace(',', "\\,")
}

/// The parts between unescaped commas.
fn parts_of(spec: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for piece in spec.split_inclusive(',') {
        let part = parts.last_mut();
        match (part, piece.strip_suffix(',')) {
            (Some(part), Some(piece)) if piece.ends_with('\\') => {
                part.push_str(&piece[..piece.len() - 1]);
                part.push(',');
            }
            (Some(part), Some(piece)) => {
                part.push_str(piece);
                parts.push(String::new());
            }
            (Some(part), None) => part.push_str(piece),
            (None, _) => {}
        }
    }
    parts
}

fn side(spec: &str, flags: &Flags) -> Result<Side> {
    let parts = parts_of(spec);
    let mut parts = parts.iter().map(String::as_str);
    let first = parts.next().unwrap_or_default();
    let (name, library) = match first.split_once('=') {
        Some((name, path)) => (name, Some(Path::new(path))),
        None => (first, None),
    };
    let (tables_of_all, order_of_all) = (&flags.table_format, flags.hash_range);
    let mut flags = flags.clone();
    let mut label = name.to_owned();
    let mut notes = Vec::new();
    let mut changed = Vec::new();
    for part in parts {
        let (flag, value) = part.split_once('=').unwrap_or((part, "true"));
        if flag == "label" {
            label = value.to_owned();
            continue;
        }
        flags.set(&flag.replace('-', "_"), value)?;
        changed.push(part);
    }
    if label.is_empty() || !label.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(Error::Usage(format!("--peer {spec}: {label:?} is not the name of a store")));
    }
    flags.check()?;
    if !changed.is_empty() {
        notes.push(format!("this side alone: {}", changed.join(", ")));
    }
    let kind = kind(name, library)?;
    if !matches!(kind, Kind::Rockmill) {
        if flags.table_format != *tables_of_all || flags.hash_range != order_of_all {
            return Err(Error::Usage(format!("--peer {spec}: --table_format and --hash_range are for Rockmill alone")));
        }
        flags.hash_range = false;
        flags.table_format = Flags::default().table_format;
    }
    match kind {
        Kind::Rockmill => {}
        // It has no index tables: its faster device has the WALs, L0 and L1.
        Kind::RocksDb(_) => {
            flags.fast_capacity.0 = 0;
            flags.compaction_workers.clear();
        }
        #[cfg(any(feature = "fjall", feature = "redb", feature = "heed"))]
        _ if !flags.fast_path.is_empty() => {
            return Err(Error::Usage(format!("--fast_path: {label} has one directory")));
        }
        #[cfg(any(feature = "fjall", feature = "redb", feature = "heed"))]
        _ => {}
    }
    if let Kind::RocksDb(library) = &kind {
        notes.push(format!("library {}", library.path().display()));
        if library.assertions {
            notes.push("built with assertions on: slower than RocksDB has to be".to_owned());
        }
    }
    if !flags.device_model().is_unlimited() && !matches!(kind, Kind::Rockmill) {
        return Err(Error::Usage(format!(
            "--device_read and the like slow Rockmill's files alone; for {label} slow the device itself, as \
             scripts/bench_slow does"
        )));
    }
    let mut extra = Vec::new();
    if Preset::parse(&flags.settings)? == Preset::Best {
        extra = best(&kind);
        let text: Vec<String> = extra.iter().map(|(n, v)| format!("{n}={v}")).collect();
        notes.push(format!(
            "best: {}",
            if text.is_empty() { "nothing beyond the flags".into() } else { text.join(", ") }
        ));
    }
    let options_text = settings::options_text(&flags, &extra)?;
    if matches!(kind, Kind::Rockmill) {
        notes.extend(rockmill::engine_note(&flags, &options_text)?);
    }
    let side = Side { label, dir: PathBuf::new(), flags, notes, kind, options_text };
    side.check()?;
    Ok(side)
}

fn kind(name: &str, library: Option<&Path>) -> Result<Kind> {
    if library.is_some() && name != "rocksdb" {
        return Err(Error::Usage(format!("--peer {name}: only rocksdb takes a library")));
    }
    Ok(match name {
        "rockmill" => Kind::Rockmill,
        "rocksdb" => Kind::RocksDb(RocksDbLibrary::load(library)?),
        #[cfg(feature = "fjall")]
        "fjall" => Kind::Fjall,
        #[cfg(feature = "redb")]
        "redb" => Kind::Redb,
        #[cfg(feature = "heed")]
        "lmdb" | "heed" => Kind::Lmdb,
        _ if OPTIONAL.contains(&name) => {
            let feature = if name == "lmdb" { "heed" } else { name };
            return Err(Error::Usage(format!(
                "--peer {name}: this program was built without it; build with --features {feature}"
            )));
        }
        _ => return Err(Error::Usage(format!("--peer {name}: rockmill, rocksdb, fjall, redb or lmdb"))),
    })
}

/// What the preset `best` changes. For RocksDB: the recommendations of its tuning guide and db_bench for point
/// operations on few cores.
fn best(kind: &Kind) -> Vec<(&'static str, String)> {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let jobs = [("max_background_jobs", cores.max(2).to_string()), ("max_subcompactions", cores.to_string())];
    match kind {
        Kind::Rockmill => jobs.to_vec(),
        Kind::RocksDb(_) => {
            let mut all = jobs.to_vec();
            all.push(("enable_pipelined_write", "true".to_owned()));
            all.push(("table.data_block_index_type", "kDataBlockBinaryAndHash".to_owned()));
            all
        }
        #[cfg(any(feature = "fjall", feature = "redb", feature = "heed"))]
        _ => vec![],
    }
}

impl Side {
    /// It keeps tables in RocksDB's format.
    pub fn has_rocksdb_files(&self) -> bool {
        matches!(self.kind, Kind::Rockmill | Kind::RocksDb(_))
    }

    /// Checks the settings before any work.
    fn check(&self) -> Result<()> {
        match &self.kind {
            Kind::Rockmill => rockmill::options(&self.flags, &self.options_text).map(drop),
            Kind::RocksDb(library) => RocksDbStore::check(library, &self.options_text),
            #[cfg(any(feature = "fjall", feature = "redb", feature = "heed"))]
            _ => Ok(()),
        }
    }

    /// The engine that the flags name; `None` for a store without engines.
    pub fn engine(&self) -> Option<&str> {
        matches!(self.kind, Kind::Rockmill).then_some(self.flags.engine.as_str())
    }

    /// Refuses workloads that the store cannot do.
    pub fn check_for(&self, workloads: &[Workload]) -> Result<()> {
        let merges = matches!(self.kind, Kind::Rockmill | Kind::RocksDb(_));
        if workloads.contains(&Workload::MergeRandom) && !merges {
            return Err(Error::Usage(format!("mergerandom: {} has no merge operators", self.label)));
        }
        if self.flags.num_column_families > 1 && !merges {
            return Err(Error::Usage(format!("--num_column_families: {} has none", self.label)));
        }
        if self.flags.num_column_families > 1 && workloads.contains(&Workload::MultiReadRandom) {
            return Err(Error::Usage("multireadrandom reads one column family: --num_column_families=1".to_owned()));
        }
        Ok(())
    }

    /// Opens the database. With `count`, counts the calls of its I/O layer, if the store supports that.
    pub fn open(&self, count: bool) -> Result<Box<dyn Store>> {
        if !self.flags.use_existing_db {
            place::make(&self.dir)?;
            self.wal_dir().map_or(Ok(()), |dir| place::make(&dir))?;
            for (dir, _) in self.flags.table_paths(&self.dir).iter().take(1) {
                // RocksDB creates only the last directory of a path.
                std::fs::create_dir_all(dir)
                    .map_err(|e| Error::io(format_args!("cannot make {}", dir.display()), &e))?;
            }
        }
        let dirs = self.databases();
        // RocksDB creates only the last directory of a path.
        let folder = if dirs.len() > 1 { Some(self.dir.as_path()) } else { self.dir.parent() };
        std::fs::create_dir_all(folder.filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
            .map_err(|e| Error::io(format_args!("cannot create the folder of {}", self.dir.display()), &e))?;
        if let [dir] = &dirs[..] {
            return self.open_one(dir, count);
        }
        Ok(Box::new(ManyStores::new(dirs.iter().map(|dir| self.open_one(dir, count)).collect::<Result<_>>()?)))
    }

    /// The directories of its databases: its own directory, or as many below it as requested.
    fn databases(&self) -> Vec<PathBuf> {
        match self.flags.num_multi_db {
            0 | 1 => vec![self.dir.clone()],
            n => (0..n).map(|i| self.dir.join(format!("{i}"))).collect(),
        }
    }

    fn open_one(&self, dir: &Path, count: bool) -> Result<Box<dyn Store>> {
        Ok(match &self.kind {
            Kind::Rockmill => Box::new(RockmillStore::open(&self.flags, &self.options_text, dir, count)?),
            Kind::RocksDb(library) => Box::new(RocksDbStore::open(library, &self.flags, &self.options_text, dir)?),
            #[cfg(feature = "fjall")]
            Kind::Fjall => Box::new(fjall::FjallStore::open(&self.flags, dir)?),
            #[cfg(feature = "redb")]
            Kind::Redb => Box::new(redb::RedbStore::open(&self.flags, dir)?),
            #[cfg(feature = "heed")]
            Kind::Lmdb => Box::new(lmdb::LmdbStore::open(&self.flags, dir)?),
        })
    }

    /// Refuses a directory that must not be emptied. With `--use_existing_db`, none is emptied.
    pub fn check_place(&self) -> Result<()> {
        if self.flags.use_existing_db {
            return Ok(());
        }
        place::check(&self.dir)?;
        self.wal_dir().map_or(Ok(()), |dir| place::check(&dir))
    }

    /// The directory of WALs in the options, if not the database's directory.
    pub fn wal_dir(&self) -> Option<PathBuf> {
        if !self.flags.fast_path.is_empty() {
            return Some(PathBuf::from(&self.flags.fast_path));
        }
        let dir_of = |option: &'_ str| {
            let option = option.trim();
            option.strip_prefix("wal_dir=").or_else(|| option.strip_prefix("fast_path=")).map(str::to_owned)
        };
        let mut given = self.options_text.split(';').filter_map(dir_of);
        given.next_back().map(PathBuf::from).filter(|dir| *dir != self.dir)
    }

    /// Deletes the database, which is a benchmark's.
    pub fn destroy(&self) -> Result<()> {
        self.check_place()?;
        if let Some(dir) = self.wal_dir() {
            place::remove_wals(&dir)?;
        }
        self.databases().iter().filter(|dir| dir.exists()).try_for_each(|dir| match &self.kind {
            Kind::Rockmill => RockmillStore::destroy(&self.flags, dir),
            Kind::RocksDb(library) => library.destroy(&self.flags, dir),
            #[cfg(any(feature = "fjall", feature = "redb", feature = "heed"))]
            _ => remove_peer_files(dir),
        })
    }

    /// The effective settings after the open, with RocksDB's names for Rockmill and RocksDB.
    pub fn settings(&self) -> Vec<(String, String)> {
        match &self.kind {
            Kind::Rockmill | Kind::RocksDb(_) => {
                self.databases().first().and_then(|dir| settings::effective(dir)).unwrap_or_default()
            }
            #[cfg(feature = "fjall")]
            Kind::Fjall => fjall::settings(&self.flags),
            #[cfg(feature = "redb")]
            Kind::Redb => redb::settings(&self.flags),
            #[cfg(feature = "heed")]
            Kind::Lmdb => lmdb::settings(&self.flags),
        }
    }

    /// The store's version, once it was opened.
    pub fn version(&self) -> String {
        match &self.kind {
            Kind::Rockmill => env!("CARGO_PKG_VERSION").to_owned(),
            Kind::RocksDb(_) => {
                settings::value_of(&self.settings(), "version.rocksdb_version").unwrap_or("unknown").to_owned()
            }
            #[cfg(feature = "fjall")]
            Kind::Fjall => fjall::VERSION.to_owned(),
            #[cfg(feature = "redb")]
            Kind::Redb => redb::VERSION.to_owned(),
            #[cfg(feature = "heed")]
            Kind::Lmdb => lmdb::VERSION.to_owned(),
        }
    }
}

/// Deletes a directory that a benchmark created and that can contain only a peer's files.
#[cfg(any(feature = "fjall", feature = "redb", feature = "heed"))]
fn remove_peer_files(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format_args!("cannot remove {}", dir.display()), &e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::List;

    fn flags(peers: &[&str]) -> Flags {
        Flags { db: "d".into(), peer: List(peers.iter().map(|p| (*p).to_owned()).collect()), ..Flags::default() }
    }

    #[test]
    fn sides_have_names_settings_and_places_of_their_own() {
        let all = sides(&flags(&["rockmill,value_size=7,sync", "rockmill,label=third"])).unwrap();
        let labels: Vec<&str> = all.iter().map(|s| s.label.as_str()).collect();
        assert_eq!(labels, ["rockmill", "rockmill-2", "third"]);
        assert_eq!((all[0].flags.value_size, all[1].flags.value_size), (100, 7));
        assert!(all[1].flags.sync && all[1].notes[0].contains("value_size=7"), "{:?}", all[1].notes);
        assert_eq!(all[2].dir, Path::new("d/third"));
        assert_eq!(sides(&flags(&[])).unwrap()[0].dir, Path::new("d"), "alone");
    }

    #[test]
    fn one_side_has_tph_tables() {
        let all = sides(&flags(&["rockmill,table_format=tph,piece_limit=4", "rockmill,table-format=block"])).unwrap();
        let formats: Vec<&str> = all.iter().map(|s| s.flags.table_format.as_str()).collect();
        assert_eq!(formats, ["block", "tph", "block"]);
        let texts = all.iter().map(|s| s.options_text.contains("tph_table_factory={"));
        assert_eq!(texts.collect::<Vec<_>>(), [false, true, false]);
        let options = rockmill::options(&all[1].flags, &all[1].options_text).unwrap();
        assert_eq!((options.cf.table_factory, options.cf.tph.piece_limit), (::rockmill::TableKind::Tph, 4));
        assert_eq!(options.cf.table.block_size, 4096);
    }

    #[test]
    fn commas_within_a_value_have_a_backslash() {
        assert_eq!(parts_of("a,b=c\\,d,,e\\,"), ["a", "b=c,d", "", "e,"]);
        for text in ["a,b", ",", "", "a\\b=c;d,e"] {
            assert_eq!(parts_of(&format!("x,y={}", escape(text))), ["x", &format!("y={text}")]);
        }
        let all = sides(&flags(&["rockmill,options_string=wal_dir=a\\,b,sync"])).unwrap();
        assert_eq!((all[1].flags.options_string.as_str(), all[1].flags.sync), ("wal_dir=a,b", true));
    }

    #[test]
    fn bad_peers_are_explained() {
        let bad = |peer: &str| sides(&flags(&[peer])).err().expect(peer).to_string();
        assert!(bad("oracle").contains("rocksdb, fjall"));
        assert!(bad("rockmill,valu_size=1").contains("did you mean --value_size"));
        assert!(bad("rockmill,label=a/b").contains("is not the name of a store"));
        assert!(bad("rockmill=/x.so").contains("only rocksdb"));
        assert!(bad("rocksdb=/no/such.so").contains("/no/such.so"));
        #[cfg(not(feature = "redb"))]
        assert!(bad("redb").contains("--features redb"));
        assert!(bad("rockmill,num=0").contains("at least 1"));
        assert!(bad("rockmill,table_format=plain").contains("block or tph"));
        #[cfg(feature = "redb")]
        assert!(bad("redb,table_format=tph").contains("for Rockmill alone"));
    }
}
