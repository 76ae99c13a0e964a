//! Runs random histories on Rockmill and on RocksDB at the same time. RocksDB's library is loaded into the same
//! process, both do every step, and all of their results must be the same. Now and then they swap directories, so that
//! each opens what the other one wrote.
//!
//! The model only determines which steps are valid ([`Model::admit`]). The results of both stores are compared with
//! each other, also where the model has no answer: kinds of errors, keys of one prefix, sequence numbers, batches read
//! from WALs, tables ingested behind everything, values that reach the end of their time to live.
//!
//! Features that the loaded library does not have are skipped and counted ([`Beside::left_out`]).

mod left_out;
mod options;
mod ours;
mod steps;
mod store;
mod theirs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rockmill::{ColumnFamilyDescriptor, ColumnFamilyTtl, Db, Options};
use rockmill_rocksdb::store::{self as rocksdb, Open};

use crate::case::Case;
use crate::configuration::Configuration;
use crate::contents::{Difference, shown};
use crate::generate::{Profile, generate};
use crate::history::{External, Move, Reopen, Step, Update, Writer};
use crate::kinds::{Kind, Slot, family_name, key_bytes};
use crate::model::{Family, Model, State};
use crate::place::{TestDir, descriptors, existing};
use crate::replay::{Failure, Observer, Trouble, caught};
use options::{Peer, Texts};
use ours::Ours;
use steps::{On, Seen, Shown, op};
use store::{Said, Store};
use theirs::Theirs;

/// A time to live whose end no test reaches, in seconds. Older versions of RocksDB add it to the time in signed 32
/// bits: if it ends after 2038, it has already expired there.
const LONG: i32 = 100_000_000;
/// One that ends during a history, and the time after which it has certainly ended: times are stored in whole seconds.
const SHORT: i32 = 1;
const AGED: Duration = Duration::from_millis(2200);
/// Bytes of a batch before its records.
const BATCH_HEAD: usize = 12;

/// Counts of the work done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Steps.
    pub steps: u64,
    /// Results that were compared.
    pub results: u64,
    /// Openings.
    pub opened: u64,
    /// Of these, in the other one's directory.
    pub swapped: u64,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: Tally) {
        self.steps += other.steps;
        self.results += other.results;
        self.opened += other.opened;
        self.swapped += other.swapped;
    }
}

/// A RocksDB to compare with.
pub struct Beside {
    peer: Peer,
    /// Keep the directories of a failing case.
    pub keep: bool,
}

/// A deliberate mistake on Rockmill's side, to check that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// Range deletions also delete the key at their end.
    RangeTakesItsEnd,
    /// Seeks within one prefix return keys of any prefix.
    AnyPrefix,
}

impl Beside {
    /// Loads the library at a path, or the machine's; `scratch` is a directory that does not exist yet.
    ///
    /// # Errors
    /// Why the library cannot be used.
    pub fn new(library: Option<&Path>, scratch: &Path) -> Result<Self, String> {
        Ok(Self { peer: Peer::new(rockmill_rocksdb::find(library)?, scratch)?, keep: false })
    }

    /// A readable name.
    pub fn name(&self) -> String {
        let (major, minor) = self.peer.version;
        format!("RocksDB {major}.{minor} ({})", self.peer.library.path.display())
    }

    /// What was skipped because the library does not have it, and how often.
    pub fn left_out(&self) -> BTreeMap<String, u64> {
        self.peer.left_out.lock().clone()
    }

    /// The case of a seed: a history of about `steps` steps with a few configurations. Some histories have
    /// DF-compaction or TPH tables, a time to live, or ingestions behind everything.
    pub fn case(&self, seed: u64, steps: usize) -> Case {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (profile, ttl) = match rng.u8(..10) {
            0 => (Profile::aging(), true),
            1 => (Profile::beside(), true),
            // Older versions lose deletions above tables that were ingested behind.
            2..=3 if self.peer.version >= (10, 0) => (Profile::behind(), false),
            _ => (Profile::beside(), false),
        };
        // Waiting for old age takes time.
        let steps = if profile.age > 0 { steps.min(700) } else { steps };
        let (df, tph) = (rng.u8(..4) == 0, rng.bool());
        let mut configurations: Vec<Configuration> = Vec::new();
        while configurations.len() < 3 {
            let one = Configuration::random(&mut rng);
            if !df && one.makes_extra_runs() {
                continue;
            }
            let block_based = |one: Configuration| one.with("table", "block-based").unwrap_or_default();
            configurations.push(if tph { one } else { block_based(one) });
        }
        if rng.u8(..12) == 0 {
            let fifo = |one: Configuration| one.with("strategy", "fifo").unwrap_or_default();
            configurations = configurations.into_iter().map(fifo).collect();
        }
        Case { configurations, ttl, own_wals: false, history: generate(seed, steps, &profile) }
    }

    /// Runs a case in a new directory below `home`, which is removed afterwards.
    ///
    /// # Errors
    /// The first difference.
    pub fn run(&self, case: &Case, home: &Path, observer: &mut dyn Observer) -> Result<Tally, Failure> {
        self.run_with(case, home, observer, None)
    }

    /// The same with a mistake.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_with(
        &self,
        case: &Case,
        home: &Path,
        observer: &mut dyn Observer,
        mistake: Option<Mistake>,
    ) -> Result<Tally, Failure> {
        static DIRECTORIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let n = DIRECTORIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let root = home.join(format!("rockmill-beside-{}-{n}", std::process::id()));
        let place = TestDir { ttl: case.ttl, ..TestDir::on_disk(&root) };
        let mut run = Run::new(self, case, place, observer, mistake);
        let done = caught(|| run.all()).unwrap_or_else(Err);
        let done = done.map_err(|trouble| run.failure(trouble)).map(|()| run.tally);
        if done.is_ok() || !self.keep {
            let _ = std::fs::remove_dir_all(&root);
        }
        done
    }
}

/// A case that is being done.
struct Run<'a> {
    beside: &'a Beside,
    case: &'a Case,
    place: TestDir,
    observer: &'a mut dyn Observer,
    model: Model,
    configuration: usize,
    at: usize,
    tally: Tally,
    mistake: Option<Mistake>,
    /// Properties of the history: some values expire; some tables are ingested behind.
    ages: bool,
    behind: bool,
    /// No configuration has DF-compaction or TPH tables: RocksDB can open Rockmill's directory at any time.
    plain: bool,
    made: bool,
}

/// Both stores, open.
struct Pair<'db> {
    ours: Ours<'db>,
    theirs: Theirs,
    held: BTreeMap<u8, Kind>,
    /// The sequence numbers of the mark.
    marked: (u64, u64),
}

fn wrong(place: impl Into<String>, what: String) -> Trouble {
    Trouble::Wrong(Difference::new(place, what))
}

fn io(path: &Path, done: std::io::Result<()>) -> Result<(), Trouble> {
    done.map_err(|e| Trouble::Test(format!("{}: {e}", path.display())))
}

impl<'a> Run<'a> {
    fn new(
        beside: &'a Beside,
        case: &'a Case,
        place: TestDir,
        observer: &'a mut dyn Observer,
        mistake: Option<Mistake>,
    ) -> Self {
        let mut model = Model::new().with_ttl(case.ttl);
        model.beside = true;
        let has = |what: fn(&Step) -> bool| case.history.steps.iter().any(what);
        let (ages, behind) = (has(|s| matches!(s, Step::Age)), has(|s| matches!(s, Step::Behind(_))));
        let plain = case.configurations.iter().all(|c| !c.makes_extra_runs() && !c.shares_files());
        Self {
            beside,
            case,
            place,
            observer,
            model,
            configuration: 0,
            at: 0,
            tally: Tally::default(),
            mistake,
            ages,
            behind,
            plain,
            made: false,
        }
    }

    fn failure(&self, trouble: Trouble) -> Failure {
        let text = self.case.history.steps.get(self.at).map_or_else(|| "at the end".to_owned(), ToString::to_string);
        let configuration = self.options().map_or_else(|e| e, |(c, _)| c.to_string());
        Failure { step: self.at, text, configuration, trouble }
    }

    fn ttl(&self) -> Option<i32> {
        self.case.ttl.then_some(if self.ages { SHORT } else { LONG })
    }

    /// The current configuration in the case.
    fn asked(&self) -> Option<Configuration> {
        let all = &self.case.configurations;
        all.get(self.configuration % all.len().max(1)).cloned()
    }

    /// The current configuration as both stores support it, and its options.
    fn options(&self) -> Result<(Configuration, Options), String> {
        let all = &self.case.configurations;
        let mut one = self.asked().unwrap_or_default();
        if one.get("format") > self.beside.peer.format_max() {
            one = one.with("format", self.beside.peer.format_max())?;
        }
        one = left_out::replaced(one, self.beside.peer.version, |_| {});
        // RocksDB's FIFO compaction does not support tables that other styles left in deeper levels; and older versions
        // delete tables older than periodic_compaction_seconds.
        let fifo = all.iter().all(|c| c.get("strategy") == "fifo") && self.beside.peer.version >= (10, 0);
        if one.get("strategy") == "fifo" && (self.ages || !fifo) {
            one = one.with("strategy", "leveled")?;
        }
        // Older versions treat a table that is not open as one from 1970, and delete it because of its age.
        if one.get("strategy") == "fifo" {
            one = one.with("open-files", "all")?;
        }
        // With others, RocksDB compacts into the level that must stay free.
        if self.behind && !one.get("strategy").starts_with("tiered") {
            one = one.with("strategy", "tiered")?;
        }
        let mut options = self.place.options(&one);
        if self.ages {
            options.set_disable_auto_compactions(true);
        }
        if self.behind {
            options.set_allow_ingest_behind(true);
        }
        Ok((one, options))
    }

    fn ours(&self) -> PathBuf {
        self.place.path("ours")
    }

    fn theirs(&self) -> PathBuf {
        self.place.path("theirs")
    }

    /// Opens a directory as Rockmill does.
    fn open_ours(&self, path: &Path, options: &Options, read_only: bool) -> Result<Db, rockmill::Error> {
        let options = if self.made { existing(options.clone()) } else { options.clone() };
        let all = descriptors(&self.model.state, &options);
        let Some(seconds) = self.ttl() else {
            return match read_only {
                true => Db::open_cf_descriptors_read_only(&options, path, all, false),
                false => Db::open_cf_descriptors(&options, path, all),
            };
        };
        let ttl = Duration::from_secs(seconds.unsigned_abs().into());
        let same = ColumnFamilyTtl::SameAsDb;
        let all = all.into_iter().map(|d| ColumnFamilyDescriptor::new_with_ttl(d.name(), d.options().clone(), same));
        Db::open_cf_descriptors_with_ttl(&options, path, all, ttl)
    }

    /// Opens a directory as RocksDB does.
    fn open_theirs(&self, path: &Path, texts: &Texts, read_only: bool) -> Said<rocksdb::Store> {
        let library = &self.beside.peer.library;
        let options = texts.db(library, !self.made)?;
        let mut families = Vec::new();
        for (&slot, family) in &self.model.state {
            families.push((family_name(slot, family.kind), texts.family(library, family.kind)?));
        }
        let how = match self.ttl() {
            Some(seconds) => Open::Ttl(seconds),
            None if read_only => Open::ReadOnly,
            None => Open::Plain,
        };
        Ok(rocksdb::Store::open(&options, path, &families, how)?)
    }

    /// The whole history.
    fn all(&mut self) -> Result<(), Trouble> {
        for dir in [self.place.root.clone(), self.scratch(true), self.scratch(false)] {
            io(&dir, std::fs::create_dir_all(&dir))?;
        }
        loop {
            let (_, options) = self.options().map_err(Trouble::Test)?;
            if let Some(asked) = self.asked() {
                left_out::replaced(asked, self.beside.peer.version, |what| self.beside.peer.leave_out(what));
            }
            let texts = self.beside.peer.texts(&options);
            let db = self.open_ours(&self.ours(), &options, false)?;
            let theirs = self.open_theirs(&self.theirs(), &texts, false);
            let theirs = theirs.map_err(|e| wrong("opening", format!("RocksDB refuses what Rockmill takes: {e}")))?;
            self.made = true;
            self.tally.opened += 1;
            let ttl = self.ttl().map(|seconds| Duration::from_secs(seconds.unsigned_abs().into()));
            let mut pair = Pair {
                ours: Ours::new(&db, options.clone(), ttl),
                theirs: Theirs {
                    db: theirs,
                    library: Arc::clone(&self.beside.peer.library),
                    texts: texts.clone(),
                    ttl,
                },
                held: BTreeMap::new(),
                marked: (0, 0),
            };
            self.steps(&mut pair)?;
            let next = self.case.history.steps.get(self.at).cloned();
            let swaps = matches!(next, None | Some(Step::Reopen(Reopen::Swapped)));
            // Snapshots hold what would be merged away.
            (pair.ours.iterators, pair.ours.snapshots) = (BTreeMap::new(), BTreeMap::new());
            if swaps && !self.plain {
                pair.ours.downgrade()?;
            }
            if let Some(error) = db.background_error() {
                return Err(error.into());
            }
            drop(pair);
            drop(db);
            match next {
                Some(Step::Reopen(Reopen::Next)) => self.configuration += 1,
                Some(Step::Reopen(Reopen::ReadOnly)) => self.across(&options, &texts, false)?,
                Some(Step::Reopen(Reopen::Swapped)) => {
                    let (a, b, c) = (self.ours(), self.theirs(), self.place.path("between"));
                    for (from, to) in [(&a, &c), (&b, &a), (&c, &b)] {
                        io(from, std::fs::rename(from, to))?;
                    }
                    self.tally.swapped += 1;
                }
                Some(_) => {}
                None => {
                    self.model.closed();
                    return self.across(&options, &texts, true);
                }
            }
            self.model.apply(&Step::Reopen(Reopen::Same));
            self.at += 1;
        }
    }

    fn scratch(&self, ours: bool) -> PathBuf {
        self.place.path(if ours { "scratch-ours" } else { "scratch-theirs" })
    }

    /// Checks that both stores show the same, each in its directory, or in the other one's if `swapped`.
    fn across(&mut self, options: &Options, texts: &Texts, swapped: bool) -> Result<(), Trouble> {
        let (mut a, mut b) = (self.ours(), self.theirs());
        if swapped {
            (a, b) = (b, a);
        }
        self.same_directories(options, texts, &a, &b, "after a reopening")
    }

    fn same_directories(
        &mut self,
        options: &Options,
        texts: &Texts,
        ours: &Path,
        theirs: &Path,
        what: &str,
    ) -> Result<(), Trouble> {
        let db = self.open_ours(ours, options, true)?;
        let store = self.open_theirs(theirs, texts, true);
        let store = store.map_err(|e| wrong(what, format!("RocksDB refuses what Rockmill takes: {e}")))?;
        self.tally.opened += 1;
        let state = self.model.state.clone();
        let slots: Vec<Slot> = state.keys().copied().collect();
        let (held, mut first, mut second) = (BTreeMap::new(), Seen::new(), Seen::new());
        let mut side = Ours::new(&db, options.clone(), None);
        On { store: &mut side, state: &state, scratch: ours, held: &held }.everything(None, &slots, &mut first);
        let library = Arc::clone(&self.beside.peer.library);
        let mut side = Theirs { db: store, library, texts: texts.clone(), ttl: None };
        On { store: &mut side, state: &state, scratch: theirs, held: &held }.everything(None, &slots, &mut second);
        self.compare(what, &first, &second)
    }

    /// Both must have shown the same.
    fn compare(&mut self, what: &str, ours: &Seen, theirs: &Seen) -> Result<(), Trouble> {
        self.tally.results += ours.len() as u64;
        let n = (0..ours.len().max(theirs.len())).find(|&n| ours.get(n) != theirs.get(n));
        let Some(n) = n else { return Ok(()) };
        let text = |said: Option<&Said<Shown>>| match said {
            None => "nothing more".to_owned(),
            Some(Err(refusal)) => format!("{refusal}"),
            Some(Ok(Shown::Done)) => "done".to_owned(),
            Some(Ok(Shown::Value(value))) => value.as_deref().map_or_else(|| "no value".to_owned(), shown),
            Some(Ok(Shown::At(None))) => "nowhere".to_owned(),
            Some(Ok(Shown::At(Some((key, value))))) => format!("at {}={}", shown(key), shown(value)),
            Some(Ok(Shown::Text(text))) => text.clone().unwrap_or_else(|| "no text".to_owned()),
        };
        let (ours, theirs) = (text(ours.get(n)), text(theirs.get(n)));
        Err(wrong(what, format!("result {n} of Rockmill is {ours}; of RocksDB, {theirs}")))
    }

    /// Steps up to the next reopening.
    fn steps(&mut self, pair: &mut Pair<'_>) -> Result<(), Trouble> {
        while let Some(step) = self.case.history.steps.get(self.at) {
            if matches!(step, Step::Reopen(_)) {
                self.observer.before(self.at, step);
                return Ok(());
            }
            let admitted = self.model.admit(&self.supported(step)).filter(|step| self.may(step));
            let Some(step) = admitted else {
                self.model.pass();
                self.at += 1;
                continue;
            };
            self.observer.before(self.at, &step);
            self.tally.steps += 1;
            if self.step(pair, &step)? {
                self.model.apply(&step);
            } else {
                self.model.pass();
            }
            self.at += 1;
        }
        Ok(())
    }

    /// The step without updates that RocksDB does not support in databases with a time to live, and without range
    /// deletions if tables are ingested behind: RocksDB loses those in its deepest compactions.
    fn supported(&self, step: &Step) -> Step {
        let (ttl, behind, ages) = (self.case.ttl, self.behind, self.ages);
        let refused = |update: &Update| match update {
            Update::SingleDelete(..) => ttl,
            // A merge renews a value's time, and when it happens depends on flushes.
            Update::Merge(..) => ages,
            Update::DeleteRange(..) => ttl || behind,
            _ => false,
        };
        match step {
            Step::Write(how, updates) if ttl || behind => {
                Step::Write(*how, updates.iter().filter(|update| !refused(update)).cloned().collect())
            }
            Step::Together(writers) if ttl => {
                let few = |all: &[Update]| all.iter().filter(|update| !refused(update)).cloned().collect();
                let few = |writer: &Writer| Writer { how: writer.how, updates: few(&writer.updates) };
                Step::Together(writers.iter().map(few).collect())
            }
            step => step.clone(),
        }
    }

    /// Options that only one of them can change while open are excluded.
    fn may(&self, step: &Step) -> bool {
        let version = self.beside.peer.version;
        if let Some(what) = self.options().ok().and_then(|(c, _)| left_out::left_out(step, &c, version)) {
            self.beside.peer.leave_out(what);
            return false;
        }
        match step {
            // With expiring values, neither store may compact automatically.
            Step::SetOptions(_, name, _) => !(self.ages && name == "disable_auto_compactions"),
            // Which entries reappear when a table is deleted depends on the tables.
            Step::DeleteFiles(..) | Step::Refit(_) => false,
            Step::Compact(..) => !self.ages,
            // Which calls are refused, and when, differs between the stores.
            Step::Write(how, _) if how.disable_wal => self.options().is_ok_and(|(c, _)| c.get("wal") != "recycled"),
            // Older versions accept column families without a name.
            Step::Wrong(1) => self.beside.peer.version >= (10, 0),
            // The level of such a table depends on compactions, and a table in the last level keeps others out.
            Step::Ingest(..) => !self.behind,
            // An extractor need not accept keys shorter than its prefix, and these kinds have such keys.
            Step::SamePrefix(slot, _, _, moves) => {
                let bytewise = self.model.state.get(slot).is_none_or(|family| family.kind.is_bytewise());
                bytewise && moves.iter().all(|to| !matches!(to, Move::Seek(0..4)))
            }
            _ => true,
        }
    }

    /// Runs one step on both; false if both refused it.
    fn step(&mut self, pair: &mut Pair<'_>, step: &Step) -> Result<bool, Trouble> {
        match step {
            Step::Wait => {
                pair.ours.db.wait_for_background_work()?;
                return Ok(true);
            }
            Step::SetDbOptions(name, value) => return self.set_db_option(pair, name, value),
            Step::Ingest(moved, files) => return self.ingest(pair, files, *moved, false),
            Step::Behind(files) => return self.ingest(pair, files, true, true),
            Step::Checkpoint(flush) => return self.checkpoint(pair, *flush).map(|()| true),
            Step::Mark => {
                pair.marked = (pair.ours.latest_sequence(), pair.theirs.latest_sequence());
                return Ok(true);
            }
            Step::Updates => return self.updates(pair).map(|()| true),
            Step::Age => std::thread::sleep(AGED),
            _ => {}
        }
        let before = (pair.ours.latest_sequence(), pair.theirs.latest_sequence());
        let (ours, theirs) = self.both(pair, step);
        self.compare(&step.to_string(), &ours, &theirs)?;
        let after = (pair.ours.latest_sequence(), pair.theirs.latest_sequence());
        if ours.iter().all(Result::is_ok) && after.0 - before.0 != after.1 - before.1 {
            let text = |before, after| format!("from {before} to {after}");
            let (ours, theirs) = (text(before.0, after.0), text(before.1, after.1));
            let what = format!("Rockmill's sequence numbers went {ours}, RocksDB's {theirs}");
            return Err(wrong(step.to_string(), what));
        }
        match step {
            Step::Iterator(id, slot, _) => {
                pair.held.insert(*id, self.model.state.get(slot).map_or(Kind::Plain, |family| family.kind));
            }
            Step::Close(id) => drop(pair.held.remove(id)),
            _ => {}
        }
        Ok(!ours.iter().any(Result::is_err) || ours.len() != 1)
    }

    /// What each shows.
    fn both(&self, pair: &mut Pair<'_>, step: &Step) -> (Seen, Seen) {
        let (state, held) = (&self.model.state, &pair.held);
        let (for_ours, for_theirs) = (self.scratch(true), self.scratch(false));
        let mistaken = self.mistake.and_then(|mistake| mistaken(mistake, step));
        let own = mistaken.as_ref().unwrap_or(step);
        let ours = On { store: &mut pair.ours, state, scratch: &for_ours, held }.step(own);
        let theirs = On { store: &mut pair.theirs, state, scratch: &for_theirs, held }.step(step);
        (ours, theirs)
    }

    fn set_db_option(&mut self, pair: &mut Pair<'_>, name: &str, value: &str) -> Result<bool, Trouble> {
        let theirs = match pair.theirs.set_db_option(name, value) {
            Ok(None) => {
                self.beside.peer.leave_out("set_db_options");
                return Ok(true);
            }
            Ok(Some(())) => Ok(Shown::Done),
            Err(e) => Err(e),
        };
        let ours = pair.ours.set_db_option(name, value).map(|_| Shown::Done);
        let both = ours.is_ok();
        self.compare(&format!("set-db {name} {value}"), &vec![ours], &vec![theirs])?;
        Ok(both)
    }

    /// Ingests tables into both; the stores take turns in making them, and those of a column family are ingested in one
    /// call.
    fn ingest(&mut self, pair: &mut Pair<'_>, files: &[External], moved: bool, behind: bool) -> Result<bool, Trouble> {
        let state = self.model.state.clone();
        let (ours_at, theirs_at) = (self.scratch(true), self.scratch(false));
        let mut groups: Vec<(Slot, Vec<PathBuf>, Vec<PathBuf>)> = Vec::new();
        for (n, file) in files.iter().enumerate() {
            let Some(family) = state.get(&file.slot) else { continue };
            let name = format!("{n}.sst");
            let (a, b) = (ours_at.join(&name), theirs_at.join(&name));
            let ops = table_ops(&state, family, file);
            let of_ours = (self.at + n).is_multiple_of(2);
            let (maker, made) = if of_ours { ("Rockmill", &a) } else { ("RocksDB", &b) };
            let done = if of_ours {
                pair.ours.write_table(family.kind, &a, &ops)
            } else {
                pair.theirs.write_table(family.kind, &b, &ops)
            };
            done.map_err(|e| wrong("a table made outside", format!("{maker} cannot make it: {e}")))?;
            let other = if of_ours { &b } else { &a };
            io(other, std::fs::copy(made, other).map(drop))?;
            match groups.iter_mut().find(|(slot, ..)| *slot == file.slot) {
                Some((_, ours, theirs)) => {
                    ours.push(a);
                    theirs.push(b);
                }
                None => groups.push((file.slot, vec![a], vec![b])),
            }
        }
        let mut all = true;
        for (slot, ours, theirs) in &groups {
            let name = state.get(slot).map_or_else(String::new, |family| family_name(*slot, family.kind));
            let a = pair.ours.ingest(&name, ours, moved, behind).map(|()| Shown::Done);
            let b = pair.theirs.ingest(&name, theirs, moved, behind).map(|()| Shown::Done);
            all &= a.is_ok();
            self.compare(&format!("ingestion into {name}"), &vec![a], &vec![b])?;
        }
        for (_, ours, theirs) in groups {
            ours.iter().chain(&theirs).for_each(|path| drop(std::fs::remove_file(path)));
        }
        Ok(all)
    }

    /// Makes a checkpoint of each, and opens it with the other if possible.
    fn checkpoint(&mut self, pair: &mut Pair<'_>, flush: bool) -> Result<(), Trouble> {
        let (a, b) = (self.place.path("checkpoint-ours"), self.place.path("checkpoint-theirs"));
        let log_size = if flush || self.model.unlogged { 0 } else { u64::MAX };
        let ours = pair.ours.checkpoint(&a, log_size).map(|()| Shown::Done);
        let theirs = pair.theirs.checkpoint(&b, log_size).map(|()| Shown::Done);
        self.compare("checkpoint", &vec![ours], &vec![theirs])?;
        let (options, texts) = (pair.ours.options.clone(), pair.theirs.texts.clone());
        self.same_directories(&options, &texts, &a, &b, "checkpoints")?;
        if self.plain {
            self.same_directories(&options, &texts, &b, &a, "checkpoints, swapped")?;
        }
        for dir in [&a, &b] {
            io(dir, std::fs::remove_dir_all(dir))?;
        }
        Ok(())
    }

    /// Compares the updates in WALs since the mark: the same records in the same batches, as far as both still have
    /// them.
    fn updates(&mut self, pair: &mut Pair<'_>) -> Result<(), Trouble> {
        pair.ours.flush_wal(false).and_then(|()| pair.theirs.flush_wal(false)).map_err(refusal)?;
        let ours = pair.ours.updates_since(pair.marked.0);
        let theirs = pair.theirs.updates_since(pair.marked.1);
        // Which WALs still exist depends on flushes.
        let (Ok((ours, Ok(()))), Ok((theirs, Ok(())))) = (ours, theirs) else {
            self.beside.peer.leave_out("updates of WALs that went with their memtables");
            return Ok(());
        };
        let since = |batches: store::Batches, mark: u64| -> Vec<(u64, Vec<u8>)> {
            // Batches without updates are a store's internal records.
            let all = batches.into_iter().filter(|(_, data)| data.len() > BATCH_HEAD);
            all.map(|(at, data)| (at - mark, data.get(BATCH_HEAD..).unwrap_or_default().to_vec())).collect()
        };
        let (mut ours, mut theirs) = (since(ours, pair.marked.0), since(theirs, pair.marked.1));
        self.tally.results += ours.len() as u64;
        let from = ours.first().map_or(0, |(at, _)| *at).max(theirs.first().map_or(0, |(at, _)| *at));
        ours.retain(|(at, _)| *at >= from);
        theirs.retain(|(at, _)| *at >= from);
        if ours == theirs {
            return Ok(());
        }
        let n = (0..ours.len().max(theirs.len())).find(|&n| ours.get(n) != theirs.get(n)).unwrap_or(0);
        let text = |batch: Option<&(u64, Vec<u8>)>| {
            batch.map_or_else(|| "the end".to_owned(), |(at, data)| format!("{} at {at}", shown(data)))
        };
        let (ours, theirs) = (text(ours.get(n)), text(theirs.get(n)));
        Err(wrong("updates", format!("batch {n} of Rockmill is {ours}; of RocksDB, {theirs}")))
    }
}

fn refusal(refusal: store::Refusal) -> Trouble {
    Trouble::Failed(rockmill::Error::new(refusal.kind, refusal.text))
}

/// The updates of a table in its order, ranges first.
fn table_ops(state: &State, family: &Family, file: &External) -> Vec<rocksdb::Op> {
    let mut updates: Vec<&Update> = file.updates.iter().collect();
    let key = |update: &Update| match update {
        Update::Put(_, key, _) | Update::Merge(_, key, _) | Update::Delete(_, key) => key_bytes(*key),
        Update::SingleDelete(..) | Update::DeleteRange(..) | Update::LogData(_) => Vec::new(),
    };
    updates.sort_by(|a, b| family.kind.order(&key(a), &key(b)));
    let range = file.range.map(|(from, to)| Update::DeleteRange(file.slot, from, to));
    range.iter().chain(updates).filter_map(|update| op(state, update)).collect()
}

/// The wrong step that Rockmill does instead.
fn mistaken(mistake: Mistake, step: &Step) -> Option<Step> {
    match (mistake, step) {
        (Mistake::RangeTakesItsEnd, Step::Write(how, updates)) => {
            let mut more = Vec::new();
            for update in updates {
                more.push(update.clone());
                if let Update::DeleteRange(slot, from, to) = update
                    && *slot == 0
                {
                    let last = if key_bytes(*from) < key_bytes(*to) { *to } else { *from };
                    more.push(Update::Delete(*slot, last));
                }
            }
            Some(Step::Write(*how, more))
        }
        (Mistake::AnyPrefix, Step::SamePrefix(slot, view, bounds, moves)) => {
            Some(Step::Walk(*slot, *view, crate::history::Bounds { prefix: None, ..*bounds }, moves.clone()))
        }
        _ => None,
    }
}
