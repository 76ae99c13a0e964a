//! Power cuts at every recorded point of histories over every feature.
//!
//! A history runs once on an in-memory disk that records every change ([`rockmill_io::mem`]). For each point of the
//! recording, and each possible state of the disk after a power cut there, the database is opened again and must have:
//!
//! - everything that was acknowledged as durable, and beyond that only a prefix of what was begun: no part of a batch,
//!   no later write without an earlier one, and the same state in all column families;
//! - exactly the files that it needs;
//! - a recovery whose cost is explained by the data that it had to read.
//!
//! Then the power is cut again at points of the recovery itself, and in the recovery from that; nothing may be lost.
//! Finally the history continues, with all comparisons.

mod cost;
mod newest;
mod record;
mod together;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rockmill::{Db, ErrorKind, RecoveryMode, RepairOptions};
use rockmill_format::filename;
use rockmill_io::{CountingFileSystem, CrashMode, FileSystem, MemFileSystem};

use crate::configuration::Configuration;
use crate::contents::Contents;
use crate::files;
use crate::generate::{Profile, generate};
use crate::history::{History, Step};
use crate::kinds::Slot;
use crate::model::Model;
use crate::place::{TestDir, existing};
use crate::replay::{Run, Silent, replay};
pub use cost::{Cost, Costs};
use newest::Suffixes;
pub use record::Where;
pub(crate) use record::empty_disk;
use record::{Recording, Window};
use together::Cut;

/// Depth of power cuts: in the recovery, and in the recovery from that.
const DEPTH_MAX: u32 = 3;

/// Which of the recorded points are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Points {
    /// Every one.
    All,
    /// About so many, by chance.
    About(usize),
    /// This one.
    Only(usize),
}

impl Points {
    pub(crate) fn choose(self, points: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
        match self {
            Self::All => (0..points).collect(),
            Self::Only(n) => (n..points.min(n + 1)).collect(),
            Self::About(n) if n >= points => (0..points).collect(),
            Self::About(n) => {
                let mut all: Vec<usize> = (0..n).map(|_| rng.usize(..points)).collect();
                all.sort_unstable();
                all.dedup();
                all
            }
        }
    }
}

/// What a database must show after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Everything acknowledged as durable, and a prefix of the rest; if only the process died, everything that had
    /// returned.
    Logged,
    /// A prefix, at least up to the last flush of everything: there are no WALs, and all column families are flushed
    /// together.
    Together,
    /// A separate prefix for each column family, at least up to the last flush of everything: there are no WALs.
    Each,
    /// As `Logged`, but only the newest part of each column family: FIFO compaction drops old tables.
    Newest,
}

/// A plan of tests.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of all chance.
    pub seed: u64,
    /// The operations.
    pub history: History,
    /// The configurations that it uses.
    pub configurations: Vec<Configuration>,
    /// The parts of the store with separate directories.
    pub places: Where,
    /// What a database must show after a power cut.
    pub promise: Promise,
    /// Where the power is cut.
    pub points: Points,
    /// Random disks of each kind per point, in addition to the two fixed ones.
    pub images: u64,
    /// In one of this many images, the recovery is also cut; 0 for none.
    pub double_every: u64,
    /// Where.
    pub double_points: Points,
    /// In one of this many images, the history continues; 0 for none.
    pub go_on_every: u64,
    /// One of this many disks after a death of the process is also repaired; 0 for none.
    pub repair_every: u64,
    /// When to stop, done or not.
    pub until: Option<Instant>,
    /// Where the disk of the first failure is saved.
    pub save: Option<PathBuf>,
}

impl Plan {
    /// A random history of `steps` steps with a few random configurations, cut at `points`. None has a worker; give one
    /// to [`Self::configurations`]. The seed also chooses the kind of history: ordinary writes (most of them), copies
    /// of the database, tables deleted by range, no WAL (with column families flushed together or separately), FIFO
    /// compaction that drops old tables, and many concurrent writes of several threads. Some concurrent writes are also
    /// in all other kinds, except with separate flushes and with FIFO compaction.
    pub fn random(seed: u64, steps: usize, points: Points) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut configurations: Vec<_> = (0..3).map(|_| Configuration::random(&mut rng).without_worker()).collect();
        let ordinary = Profile { together: 15, ..Profile::crash() };
        let unlogged = Profile { synced: 0, unlogged: 0, ingest: 0, copy: 0, flush_wal: 0, ..ordinary.clone() };
        let (profile, promise) = match seed % 8 {
            0 => (
                Profile { checkpoint: 6, backup: 4, secondary: 6, updates: 6, inspect: 4, ..ordinary },
                Promise::Logged,
            ),
            1 => (Profile { delete_files: 20, flush: 40, ..ordinary }, Promise::Logged),
            2 => (unlogged, Promise::Together),
            3 => (Profile { together: 0, ..unlogged }, Promise::Each),
            4 => (newest::profile(ordinary), Promise::Newest),
            7 => (Profile { together: 150, ..ordinary }, Promise::Logged),
            _ => (ordinary, Promise::Logged),
        };
        let mut history = generate(seed, steps, &profile);
        if promise == Promise::Newest {
            history = newest::with_drops(history);
            configurations.iter_mut().for_each(|c| *c = newest::configure(c));
        }
        if matches!(promise, Promise::Together | Promise::Each) {
            for step in &mut history.steps {
                match step {
                    Step::Write(how, _) => (how.sync, how.disable_wal) = (false, true),
                    Step::Together(writers) => {
                        writers.iter_mut().for_each(|w| (w.how.sync, w.how.disable_wal) = (false, true));
                    }
                    _ => {}
                }
            }
        }
        if promise == Promise::Together {
            for configuration in &mut configurations {
                *configuration = configuration.clone().with("flush", "atomic").unwrap_or_default();
            }
            for step in &mut history.steps {
                // A flush of a named column family flushes only that one.
                if let Step::Flush(slots, _) = step {
                    slots.clear();
                }
            }
        }
        let may_have_two_paths = Where::may_have_two_paths(&configurations);
        Self {
            seed,
            history,
            configurations,
            places: Where { own_wals: rng.u8(..4) == 0, two_paths: rng.u8(..3) == 0 && may_have_two_paths },
            promise,
            points,
            images: 1,
            double_every: 40,
            double_points: Points::About(12),
            go_on_every: 25,
            repair_every: 6,
            until: None,
            save: None,
        }
    }
}

/// What was tested, and the results.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Histories that were cut at all chosen points, not only until the time was over.
    pub whole: u64,
    /// Recorded points at which the power was cut.
    pub points: u64,
    /// Disks that databases were opened from.
    pub images: u64,
    /// Of these, with the power cut during the recovery from another cut.
    pub double: u64,
    /// And during that recovery.
    pub triple: u64,
    /// Disks without a database yet.
    pub unborn: u64,
    /// Disks on which the MANIFEST was refused as damaged.
    pub refused: u64,
    /// Databases that were repaired.
    pub repaired: u64,
    /// Histories that went on.
    pub gone_on: u64,
    /// Steps that had returned and were lost, legitimately.
    pub lost: u64,
    /// Column families whose oldest tables FIFO compaction had dropped.
    pub dropped: u64,
    /// Disks with a part of the concurrent writes of several threads.
    pub parts: u64,
    /// Recoveries.
    pub costs: Costs,
}

impl Report {
    /// Adds another.
    pub fn join(&mut self, other: Report) {
        let Report {
            whole,
            points,
            images,
            double,
            triple,
            unborn,
            refused,
            repaired,
            gone_on,
            lost,
            dropped,
            parts,
            costs,
        } = other;
        self.repaired += repaired;
        self.whole += whole;
        self.points += points;
        self.images += images;
        self.double += double;
        self.triple += triple;
        self.unborn += unborn;
        self.refused += refused;
        self.gone_on += gone_on;
        self.lost += lost;
        self.dropped += dropped;
        self.parts += parts;
        self.costs.join(costs);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            whole,
            points,
            images,
            double,
            triple,
            unborn,
            refused,
            repaired,
            gone_on,
            lost,
            dropped,
            parts,
            costs,
        } = self;
        write!(
            f,
            "{whole} histories to their end, {points} crash points, {images} disks: {double} after a cut in a recovery, \
             {triple} after one in that recovery, {unborn} before there was a database, {refused} refused for their \
             MANIFEST, {repaired} repaired; {gone_on} histories went on, {lost} unsynced steps lost, {dropped} times \
             old tables of a column family dropped, {parts} disks with a part of what threads wrote at once\n{costs}"
        )
    }
}

/// Records the plan's history and cuts it.
///
/// # Errors
/// The first violation, with everything needed to reproduce it.
pub fn run(plan: &Plan) -> Result<Report, String> {
    with_context(plan.seed, &plan.history, &plan.configurations, plan.places, cut(plan))
}

/// Adds to an error what is needed to reproduce it.
pub(crate) fn with_context<R>(
    seed: u64,
    history: &History,
    configurations: &[Configuration],
    places: Where,
    done: Result<R, String>,
) -> Result<R, String> {
    done.map_err(|e| {
        let (steps, all): (_, Vec<_>) = (history.steps.len(), configurations.iter().map(ToString::to_string).collect());
        format!("seed {seed}, {steps} steps, configurations {}, {places:?}: {e}", all.join(" | "))
    })
}

fn cut(plan: &Plan) -> Result<Report, String> {
    let recording = Recording::new(&plan.history, &plan.configurations, plan.places)?;
    let newest = (plan.promise == Promise::Newest).then(|| Suffixes::new(&recording.steps));
    let mut cutter = Cutter {
        plan,
        recording: &recording,
        newest,
        report: Report::default(),
        rng: fastrand::Rng::with_seed(plan.seed),
    };
    cutter.cut_all()?;
    Ok(cutter.report)
}

struct Cutter<'a> {
    plan: &'a Plan,
    recording: &'a Recording,
    /// For [`Promise::Newest`].
    newest: Option<Suffixes>,
    report: Report,
    rng: fastrand::Rng,
}

/// What an image showed.
struct Seen {
    contents: Contents,
    /// To go on with.
    model: Option<Model>,
}

impl Cutter<'_> {
    fn cut_all(&mut self) -> Result<(), String> {
        let mut disk = self.recording.replay()?;
        let points = disk.points();
        for point in self.plan.points.choose(points, &mut self.rng) {
            if self.plan.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            disk.advance_to(point);
            self.report.points += 1;
            let window = self.recording.window(point);
            let mut modes = vec![CrashMode::KeepAll, CrashMode::SyncedOnly];
            for n in 0..self.plan.images {
                let seed = self.plan.seed ^ ((point as u64) << 20) ^ n;
                modes.extend([CrashMode::Random(seed), CrashMode::Hostile(seed)]);
            }
            for mode in modes {
                let image = disk.crash_image(mode);
                let saved = image.crash_image(CrashMode::KeepAll);
                self.image(image, window, mode).map_err(|e| {
                    let place = self.save(&saved);
                    format!("power cut at {point} of {points}, {mode:?}, {window:?}: {e}{place}")
                })?;
            }
        }
        self.report.whole += 1;
        Ok(())
    }

    fn place(&self, image: &MemFileSystem) -> TestDir {
        self.plan.places.on(image)
    }

    fn configuration(&self, window: Window) -> Configuration {
        let all = &self.plan.configurations;
        if all.is_empty() { Configuration::default() } else { all[window.configuration % all.len()].clone() }
    }

    /// One disk after a power cut.
    fn image(&mut self, image: MemFileSystem, window: Window, mode: CrashMode) -> Result<(), String> {
        let place = self.place(&image);
        let exists = image.exists(&place.db().join(filename::CURRENT)).map_err(|e| e.to_string())?;
        if !exists {
            if window.made {
                return Err("the database is gone".to_owned());
            }
            self.report.unborn += 1;
            return place.create(&self.configuration(window)).map(drop).map_err(|e| format!("cannot begin anew: {e}"));
        }
        let cut_recovery = self.plan.double_every > 0 && self.rng.u64(..self.plan.double_every) == 0;
        if cut_recovery {
            image.start_recording();
        }
        let dead = matches!(mode, CrashMode::KeepAll | CrashMode::SyncedOnly);
        let repair = dead && self.plan.repair_every > 0 && self.rng.u64(..self.plan.repair_every) == 0;
        let twin = repair.then(|| image.crash_image(CrashMode::KeepAll));
        let Some(seen) = self.recover(&image, window, mode)? else { return Ok(()) };
        if let Some(twin) = twin {
            self.repair(&twin, window, &seen.contents).map_err(|e| format!("repaired: {e}"))?;
        }
        if cut_recovery {
            self.cut_recovery(&image, window, &seen.contents, 2)?;
        }
        if let Some(model) = seen.model
            && self.plan.go_on_every > 0
            && self.rng.u64(..self.plan.go_on_every) == 0
        {
            self.go_on(&image, window, model)?;
        }
        Ok(())
    }

    /// Opens the database of a disk and reads all of it; `None` if it was refused for a legitimate reason.
    fn recover(&mut self, image: &MemFileSystem, window: Window, mode: CrashMode) -> Result<Option<Seen>, String> {
        let configuration = self.configuration(window);
        self.report.images += 1;
        // If only the process died, every recovery mode can read the WALs; the record being written may be truncated.
        let recovery = match mode {
            CrashMode::KeepAll => *self.rng.choice(&RECOVERY_MODES).unwrap_or(&RecoveryMode::PointInTime),
            _ => RecoveryMode::PointInTime,
        };
        // A record that was being written.
        let writing = window.started > window.returned;
        let cut = |e: &rockmill::Error| {
            writing && recovery == RecoveryMode::AbsoluteConsistency && e.kind() == ErrorKind::Corruption
        };
        let db = match self.open(image, &configuration, recovery) {
            Ok(db) => db,
            Err(e) if may_refuse(mode, &e) || cut(&e) => {
                self.report.refused += 1;
                return Ok(None);
            }
            Err(e) => return Err(format!("does not open ({recovery:?}): {e}")),
        };
        let contents = Contents::read(&db).map_err(|e| e.to_string())?;
        let Window { point, durable, returned, kept, started, .. } = window;
        let manual = configuration.get("wal") == "manual";
        // A dying process loses nothing that the kernel has, which excludes data buffered by `manual_wal_flush`.
        let logged = matches!(self.plan.promise, Promise::Logged | Promise::Newest);
        let keeps = mode == CrashMode::KeepAll && logged && !manual;
        let at_least = if keeps { kept } else { durable };
        let (base, steps) = (&self.recording.models[at_least], &self.recording.steps[at_least..]);
        let wrong = |e| format!("{e} (counted from step {at_least})");
        let (done, found) = match self.plan.promise {
            Promise::Logged | Promise::Together => {
                let cut = Cut { point, keeps, atomic: self.plan.promise == Promise::Together };
                let part = |n: usize, before: &Model, anything: &dyn Fn(Slot, &[u8]) -> bool| {
                    let step = self.recording.together.get(&(at_least + n))?;
                    Some(step.left(&contents, before, cut, anything))
                };
                let found = contents.find_partly(base, steps, 0, started - at_least, part);
                let (done, found, is_part) = found.map_err(wrong)?;
                self.report.parts += u64::from(is_part);
                (done, found)
            }
            Promise::Each => {
                contents.find_each(base, steps, started - at_least).map_err(wrong)?;
                (0, base.clone())
            }
            Promise::Newest => {
                let found = self.newest.as_ref().map(|all| all.find(&contents, at_least, started)).transpose();
                let (done, dropped) = found.map_err(wrong)?.unwrap_or((at_least, 0));
                self.report.dropped += dropped as u64;
                (done - at_least, base.clone())
            }
        };
        self.report.lost += (returned - at_least).saturating_sub(done) as u64;
        db.wait_for_background_work().map_err(|e| format!("background work after a recovery: {e}"))?;
        files::check(&self.place(image), &db, &configuration)?;
        let after = Contents::read(&db).map_err(|e| e.to_string())?;
        if after != contents {
            return Err("compactions changed what is there".to_owned());
        }
        let model = match self.plan.promise {
            Promise::Logged | Promise::Together => Some(contents.settle(&found, steps, done, started - at_least)),
            // No model has been in such a state.
            Promise::Each | Promise::Newest => None,
        };
        Ok(Some(Seen { contents, model }))
    }

    /// Repairs the database of a disk, which must give the same as an open: nothing is damaged.
    fn repair(&mut self, image: &MemFileSystem, window: Window, expected: &Contents) -> Result<(), String> {
        self.report.repaired += 1;
        let (place, configuration) = (self.place(image), self.configuration(window));
        let options = existing(place.options(&configuration));
        let mut how = RepairOptions::default();
        let families = place.families_on_disk(&options).map_err(|e| e.to_string())?;
        families.into_iter().for_each(|f| how.add_column_family(f));
        let mut given = options;
        if self.rng.bool() {
            // The database's files tell where its WALs are.
            given.set_wal_dir("");
        }
        let report = Db::repair_with(&given, place.db(), &how).map_err(|e| e.to_string())?;
        let sound = report.manifest_damage.is_none()
            && report.damaged.is_empty()
            && report.tables_missing.is_empty()
            && report.tables_merged == 0
            && report.wals_not_read.is_none()
            && report.entries_without_column_family == 0;
        if !sound {
            return Err(format!("a sound database is taken for damaged: {report:?}"));
        }
        for dir in [place.db(), place.wals(), place.slow()] {
            place.remove_tree(&dir.join("lost")).map_err(|e| e.to_string())?;
        }
        let db = place.open(&configuration).map_err(|e| format!("does not open: {e}"))?;
        let contents = Contents::read(&db).map_err(|e| e.to_string())?;
        if contents != *expected {
            return Err(format!("not what an opening shows: {}; {report:?}", expected.compare(&contents)));
        }
        db.wait_for_background_work().map_err(|e| e.to_string())?;
        files::check(&place, &db, &configuration)
    }

    /// Opens a database, and measures the cost.
    fn open(
        &mut self,
        image: &MemFileSystem,
        configuration: &Configuration,
        recovery: RecoveryMode,
    ) -> rockmill::Result<Db> {
        let counted = CountingFileSystem::new(Arc::new(image.clone()));
        let logs = files::log_bytes(&self.place(image));
        let place = TestDir { fs: Arc::new(counted.clone()), ..self.place(image) };
        let begin = Instant::now();
        let mut options = existing(place.options(configuration));
        options.set_wal_recovery_mode(recovery);
        let db = place.open_families(&options, &place.db(), place.families_on_disk(&options)?)?;
        let cost = Cost { logs, io: counted.counts(), time: begin.elapsed() };
        cost.check(db.cf_names().len() as u64).map_err(|what| rockmill::Error::new(ErrorKind::Unknown, what))?;
        self.report.costs.add(&cost);
        Ok(db)
    }

    /// Cuts the recovery that `image` has recorded. Everything on its disk was durable at the beginning, so nothing may
    /// be lost.
    fn cut_recovery(
        &mut self,
        image: &MemFileSystem,
        window: Window,
        expected: &Contents,
        depth: u32,
    ) -> Result<(), String> {
        let mut disk = image.replay().ok_or("the recovery was not recorded")?;
        let points = disk.points();
        let choice = if depth == 2 { self.plan.double_points } else { Points::About(4) };
        for point in choice.choose(points, &mut self.rng) {
            disk.advance_to(point);
            let seed = self.rng.u64(..);
            for mode in [CrashMode::SyncedOnly, CrashMode::Random(seed), CrashMode::Hostile(seed)] {
                let again = disk.crash_image(mode);
                let saved = again.crash_image(CrashMode::KeepAll);
                let deeper = depth < DEPTH_MAX && self.rng.u8(..20) == 0;
                if deeper {
                    again.start_recording();
                }
                match depth {
                    2 => self.report.double += 1,
                    _ => self.report.triple += 1,
                }
                let what = |e: String, place: String| {
                    format!("power cut number {depth}, at {point} of {points} of the recovery, {mode:?}: {e}{place}")
                };
                let configuration = self.configuration(window);
                self.report.images += 1;
                let db = match self.open(&again, &configuration, RecoveryMode::PointInTime) {
                    Ok(db) => db,
                    Err(e) if may_refuse(mode, &e) => {
                        self.report.refused += 1;
                        continue;
                    }
                    Err(e) => return Err(what(format!("does not open: {e}"), self.save(&saved))),
                };
                let got = Contents::read(&db).map_err(|e| what(e.to_string(), self.save(&saved)))?;
                if got != *expected {
                    return Err(what(format!("lost: {}", expected.compare(&got)), self.save(&saved)));
                }
                db.wait_for_background_work().map_err(|e| what(e.to_string(), String::new()))?;
                files::check(&self.place(&again), &db, &configuration).map_err(|e| what(e, self.save(&saved)))?;
                drop(db);
                if deeper {
                    self.cut_recovery(&again, window, expected, depth + 1).map_err(|e| what(e, String::new()))?;
                }
            }
        }
        Ok(())
    }

    /// Continues the history from the found state.
    fn go_on(&mut self, image: &MemFileSystem, window: Window, model: Model) -> Result<(), String> {
        self.report.gone_on += 1;
        let place = self.place(image);
        for name in image.list_dir(&place.root).map_err(|e| e.to_string())? {
            // Remains of an interrupted step; the next step of its kind uses the same names.
            if !matches!(&*name, "db" | "wals" | "slow" | "backups") && !name.ends_with(".tmp") {
                place.remove_tree(&place.path(&name)).map_err(|e| e.to_string())?;
            }
        }
        let more = generate(self.rng.u64(..), 30, &Profile { check: 30, ..Profile::crash() });
        let mut silent = Silent;
        let mut run = Run::from(place, vec![self.configuration(window)], model, &mut silent);
        replay(&more, &mut run).map_err(|e| format!("going on: {e}\n{more}"))
    }

    /// Saves a disk for inspection, once.
    fn save(&self, image: &MemFileSystem) -> String {
        let Some(to) = &self.plan.save else { return String::new() };
        // What is there already stays.
        let numbered = |n: u32| if n == 1 { to.clone() } else { PathBuf::from(format!("{}.{n}", to.display())) };
        let free = |to: &PathBuf| std::fs::read_dir(to).map_or(!to.exists(), |mut names| names.next().is_none());
        let to = &(1..).map(numbered).find(free).unwrap_or_else(|| to.clone());
        match copy_out(image, Path::new("/"), to) {
            Ok(()) => format!(" (the disk is saved in {})", to.display()),
            Err(e) => format!(" (the disk cannot be saved: {e})"),
        }
    }
}

/// Ways to read a log.
const RECOVERY_MODES: [RecoveryMode; 4] = [
    RecoveryMode::PointInTime,
    RecoveryMode::TolerateCorruptedTailRecords,
    RecoveryMode::AbsoluteConsistency,
    RecoveryMode::SkipAnyCorruptedRecords,
];

/// True if sectors that a power cut replaced with garbage may have damaged the last edit of a MANIFEST: it is unknown
/// whether that edit was acknowledged.
fn may_refuse(mode: CrashMode, error: &rockmill::Error) -> bool {
    matches!(mode, CrashMode::Random(_) | CrashMode::Hostile(_))
        && error.kind() == ErrorKind::Corruption
        && error.to_string().contains("MANIFEST-")
}

/// Copies a tree from a memory file system to the machine's.
pub fn copy_out(fs: &MemFileSystem, from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for name in fs.list_dir(from)? {
        let (from, to) = (from.join(&name), to.join(&name));
        if fs.list_dir(&from).is_ok() {
            copy_out(fs, &from, &to)?;
        } else {
            std::fs::write(to, fs.read_to_vec(&from)?)?;
        }
    }
    Ok(())
}

/// Cuts random histories until the time is over, in this many threads. Returns the number of histories begun, and the
/// results; calls `told` with them now and then.
///
/// # Errors
/// The first failure.
pub fn run_for(
    seed: u64,
    duration: Duration,
    threads: u64,
    plan: impl Fn(u64) -> Plan + Sync,
    told: impl Fn(u64, &Report) + Sync,
) -> Result<(u64, Report), String> {
    let until = Instant::now() + duration;
    let one = |seed| run(&Plan { until: Some(until), ..plan(seed) });
    rounds(seed, until, threads, one, Report::join, told)
}

/// Runs a function with one seed after the other until a deadline, in several threads, and sums the results.
pub(crate) fn rounds<R: Default + Send>(
    seed: u64,
    until: Instant,
    threads: u64,
    one: impl Fn(u64) -> Result<R, String> + Sync,
    join: impl Fn(&mut R, R) + Sync,
    told: impl Fn(u64, &R) + Sync,
) -> Result<(u64, R), String> {
    let sum = Mutex::new((0, R::default()));
    let next = AtomicU64::new(seed);
    let failure: Mutex<Option<String>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while Instant::now() < until && failure.lock().is_none() {
                    match one(next.fetch_add(1, Ordering::Relaxed)) {
                        Ok(report) => {
                            let mut sum = sum.lock();
                            sum.0 += 1;
                            join(&mut sum.1, report);
                            told(sum.0, &sum.1);
                        }
                        Err(e) => drop(failure.lock().get_or_insert(e)),
                    }
                }
            });
        }
    });
    match failure.into_inner() {
        None => Ok(sum.into_inner()),
        Some(e) => Err(e),
    }
}
