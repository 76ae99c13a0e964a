//! Each I/O call of a history over every feature fails once, in turn.
//!
//! Whatever the call was: the caller gets the error, or background work reports it and the store refuses writes with
//! the reason. It shows no wrong data meanwhile, and `resume` makes it continue. After a reopen, immediately as after a
//! power cut or at the end, everything acknowledged is there. Now and then, another call fails during `resume`.
//!
//! After each failure, a synced write goes to every column family: it must be there after a reopen, with the column
//! families that the store reports, and in a checkpoint.
//!
//! Calls are counted over all threads, so call number 700 is not the same call in each run. Nevertheless, over all
//! numbers every call is hit.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rockmill::{Checkpoint, Db, ErrorKind, ErrorSeverity, WriteBatch, WriteOptions};
use rockmill_io::{CrashMode, Fault, FileSystem, MemFileSystem, Op, OpKind};

use crate::configuration::Configuration;
use crate::contents::{Contents, matches};
use crate::crash::{Points, Where, empty_disk, rounds, with_context};
use crate::generate::{Profile, generate};
use crate::history::{History, Step};
use crate::model::Model;
use crate::place::TestDir;
use crate::replay::{Done, Failure, Observer, Run, Trouble, Verdict, replay};

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// The device fails.
    Eio,
    /// The disk is full.
    Enospc,
    /// The quota is used up.
    Edquot,
    /// The process has no more file handles.
    Emfile,
    /// A part of a write is performed, then the disk is full.
    PartThenEnospc,
    /// A part of a write is performed, then the device fails.
    PartThenEio,
    /// The call does less than requested and reports that: not a failure.
    Short,
    /// One bit of the data read is wrong.
    Flip,
    /// The call takes its time: no failure.
    Delay,
    /// The device fails, and from then on every call fails, until the process ends.
    Dead,
    /// The device with the WALs fails, and from then on every call there fails. The other device continues to work.
    WalsGone,
    /// The device with the WALs is full, until the error was noticed.
    WalsFull,
}

/// The ways in which only the device of the WALs fails, at a call that concerns it.
const WALS_ALONE: [Way; 2] = [Way::WalsGone, Way::WalsFull];

impl Way {
    /// The ways in which a call of this kind can fail.
    pub fn of(kind: OpKind) -> &'static [Way] {
        match kind {
            OpKind::Write => {
                use Way::{Dead, Delay, Edquot, Eio, Enospc, PartThenEio, PartThenEnospc, Short};
                &[Eio, Enospc, Edquot, PartThenEnospc, PartThenEio, Short, Delay, Dead]
            }
            OpKind::Read | OpKind::ReadAt => &[Way::Eio, Way::Short, Way::Flip, Way::Delay],
            OpKind::OpenRandom | OpKind::OpenSequential => &[Way::Eio, Way::Emfile, Way::Delay],
            OpKind::Create | OpKind::Reuse => &[Way::Eio, Way::Enospc, Way::Edquot, Way::Emfile, Way::Delay],
            OpKind::CreateDir | OpKind::Rename | OpKind::HardLink => &[Way::Eio, Way::Enospc, Way::Edquot, Way::Delay],
            OpKind::Sync | OpKind::SyncDir => &[Way::Eio, Way::Enospc, Way::Delay, Way::Dead],
            OpKind::Close => &[Way::Eio, Way::Enospc, Way::Delay],
            _ => &[Way::Eio, Way::Delay],
        }
    }

    /// True if another call also fails after a failure of this kind.
    fn hits_later(self, op: &Op<'_>, wals: Option<&Path>, freed: bool) -> bool {
        let there = wals.is_some_and(|dir| op.path.starts_with(dir));
        match self {
            Way::Dead => true,
            Way::WalsGone => there,
            Way::WalsFull => there && !freed && Self::of(op.kind).contains(&Way::Enospc),
            _ => false,
        }
    }

    /// True where the call does not fail.
    fn is_harmless(self) -> bool {
        matches!(self, Way::Short | Way::Delay)
    }

    fn errno(self) -> i32 {
        match self {
            Way::Enospc | Way::PartThenEnospc | Way::WalsFull => 28,
            Way::Edquot => 122,
            Way::Emfile => 24,
            Way::Eio | Way::PartThenEio | Way::Short | Way::Flip | Way::Delay | Way::Dead | Way::WalsGone => 5,
        }
    }

    fn fault(self, op: &Op<'_>, rng: &mut fastrand::Rng) -> Fault {
        let error = io::Error::from_raw_os_error(self.errno());
        let part = |rng: &mut fastrand::Rng| rng.u64(..op.len.max(1)) as usize;
        match self {
            Way::Eio | Way::Enospc | Way::Edquot | Way::Emfile | Way::Dead | Way::WalsGone | Way::WalsFull => {
                Fault::Error(error)
            }
            Way::PartThenEnospc | Way::PartThenEio => Fault::Partial(part(rng), error),
            Way::Short => Fault::Short(part(rng)),
            Way::Flip => Fault::FlipBit(rng.u64(..op.len.max(1) * 8)),
            Way::Delay => Fault::Delay(Duration::from_millis(2)),
        }
    }
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
    /// Which calls fail.
    pub calls: Points,
    /// Each call in every way, or in one random way.
    pub every_way: bool,
    /// When to stop, done or not.
    pub until: Option<Instant>,
}

impl Plan {
    /// A random history of `steps` steps with a few random configurations; the chosen calls fail.
    pub fn random(seed: u64, steps: usize, calls: Points) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let configurations: Vec<_> = (0..3).map(|_| Configuration::random(&mut rng).without_worker()).collect();
        Self {
            seed,
            history: generate(seed, steps, &Profile { write: 300, ..Profile::crash() }),
            places: Where {
                two_paths: Where::may_have_two_paths(&configurations) && rng.u8(..3) == 0,
                own_wals: rng.u8(..3) == 0,
            },
            configurations,
            calls,
            every_way: false,
            until: None,
        }
    }
}

/// What was tested, and the results.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Histories in which all chosen calls failed, not only until the time was over.
    pub whole: u64,
    /// Runs with a fault that happened.
    pub faults: u64,
    /// Failures that a caller got.
    pub told: u64,
    /// Failures after which the store had a background error.
    pub background: u64,
    /// Failures without visible consequences.
    pub silent: u64,
    /// Runs that had fewer calls than expected.
    pub missed: u64,
    /// Calls that failed while the store resumed.
    pub second: u64,
    /// Kinds of calls and ways in which they failed.
    pub kinds: BTreeSet<(OpKind, Way)>,
}

impl Report {
    /// Adds another.
    pub fn join(&mut self, other: Report) {
        let Report { whole, faults, told, background, silent, missed, second, kinds } = other;
        self.whole += whole;
        self.faults += faults;
        self.told += told;
        self.background += background;
        self.silent += silent;
        self.missed += missed;
        self.second += second;
        self.kinds.extend(kinds);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { whole, faults, told, background, silent, missed, second, kinds } = self;
        write!(
            f,
            "{whole} histories to their end, {faults} faults of {} kinds: {told} came to a caller, {background} became \
             background errors, {silent} had no consequence; {missed} came too late; {second} more while it resumed",
            kinds.len()
        )
    }
}

/// What the hook has done.
#[derive(Debug, Default)]
struct Hit {
    /// The call that failed, and how.
    what: Option<(OpKind, Way, PathBuf)>,
    /// Another call that should fail while the store resumes.
    second_at: Option<Second>,
    /// That call.
    second: Option<(OpKind, Way, PathBuf)>,
    /// A file whose sync failed was synced again.
    retried: Option<PathBuf>,
    /// The store resumes.
    resuming: bool,
    /// The table that it writes then.
    rescued: Option<PathBuf>,
    /// The device with the WALs has space again.
    freed: bool,
}

/// Selects the first matching call from a number on.
#[derive(Debug, Clone, Copy)]
enum Second {
    /// Whatever it is.
    Any(u64),
    /// Of a kind.
    Of(u64, OpKind),
    /// A write to a table fails for lack of space: of a job that runs during the recovery, or of its flush.
    Table(u64),
}

impl Second {
    fn fits(self, op: &Op<'_>) -> bool {
        match self {
            Second::Any(from) => op.number >= from,
            Second::Of(from, kind) => op.number >= from && op.kind == kind,
            Second::Table(from) => op.number >= from && op.kind == OpKind::Write && is_table(op),
        }
    }
}

fn is_table(op: &Op<'_>) -> bool {
    op.path.extension().is_some_and(|e| e == "sst")
}

fn is_of_the_probe(op: &Op<'_>) -> bool {
    op.path.components().any(|name| name.as_os_str() == PROBE_DIR)
}

impl Hit {
    /// Records operations on a file whose sync failed.
    fn watch(&mut self, op: &Op<'_>) {
        for failed in [&mut self.what, &mut self.second] {
            let Some((OpKind::Sync, way, path)) = failed else { continue };
            if way.is_harmless() {
                continue;
            }
            let created = matches!(op.kind, OpKind::Create | OpKind::Reuse | OpKind::Rename | OpKind::HardLink);
            if created && (op.path == path || op.to == Some(path)) {
                *path = PathBuf::new(); // another file from now on
            } else if op.kind == OpKind::Sync && op.path == path {
                self.retried = Some(path.clone());
            }
        }
    }

    /// The ways in which calls failed.
    fn ways(&self) -> impl Iterator<Item = Way> {
        [&self.what, &self.second].into_iter().flatten().map(|(_, way, _)| *way)
    }
}

/// Makes call number `n` from now on fail, and watches what is done with a file whose sync failed. `wals`: the
/// directory of the WALs, if they have a separate one.
fn inject(fs: &MemFileSystem, n: u64, way: Option<Way>, seed: u64, wals: Option<PathBuf>) -> Arc<Mutex<Hit>> {
    let hit = Arc::new(Mutex::new(Hit::default()));
    let (noted, at) = (Arc::clone(&hit), fs.calls() + n);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut slow = if rng.u8(..4) == 0 { SLOW_WRITES } else { 0 };
    fs.set_hook(Box::new(move |op| {
        let mut hit = noted.lock();
        if op.number == at {
            let mut ways = Way::of(op.kind).to_vec();
            let alone = |way: &&Way| {
                let there = wals.as_deref().is_some_and(|dir| op.path.starts_with(dir));
                there && (**way == Way::WalsGone || Way::of(op.kind).contains(&Way::Enospc))
            };
            ways.extend(WALS_ALONE.iter().filter(alone));
            let way = way.filter(|way| ways.contains(way)).unwrap_or(ways[rng.usize(..ways.len())]);
            hit.what = Some((op.kind, way, op.path.to_owned()));
            return way.fault(op, &mut rng);
        }
        if op.number > at
            && let Some((_, way, _)) = hit.what
            && way.hits_later(op, wals.as_deref(), hit.freed)
        {
            return Fault::Error(io::Error::from_raw_os_error(way.errno()));
        }
        hit.watch(op);
        if let Some(second) = hit.second_at.filter(|second| second.fits(op)) {
            hit.second_at = None;
            if matches!(second, Second::Table(_)) {
                hit.second = Some((op.kind, Way::Enospc, op.path.to_owned()));
                return Way::Enospc.fault(op, &mut rng);
            }
            let mut ways = Way::of(op.kind).to_vec();
            ways.retain(|way| !matches!(way, Way::Dead | Way::Flip) && !way.is_harmless());
            let way = ways[rng.usize(..ways.len())];
            hit.second = Some((op.kind, way, op.path.to_owned()));
            return way.fault(op, &mut rng);
        }
        if hit.resuming && op.kind == OpKind::Create && is_table(op) {
            hit.rescued.get_or_insert_with(|| op.path.to_owned());
        }
        // Jobs with tables this small would end before a recovery begins. The copy that is checked afterwards has no
        // concurrent recovery: one of its own jobs would fail instead.
        if slow > 0 && op.kind == OpKind::Write && is_table(op) && !is_of_the_probe(op) {
            slow -= 1;
            if hit.rescued.as_deref() == Some(op.path) {
                return Fault::Delay(RESCUE);
            }
            let (noted, path) = (Arc::clone(&noted), op.path.to_owned());
            return Fault::Deferred(Box::new(move || beside_a_recovery(&noted, path)));
        }
        Fault::None
    }));
    hit
}

/// A slow write of a job. If a call fails meanwhile, it waits until the recovery writes its table, and then fails for
/// lack of space.
fn beside_a_recovery(hit: &Mutex<Hit>, path: PathBuf) -> Fault {
    let begun = Instant::now();
    loop {
        {
            let mut hit = hit.lock();
            let taken = match hit.what.is_some() && hit.second.is_none() {
                true => begun.elapsed() > WAITS_FOR_RECOVERY,
                false => begun.elapsed() > SLOW,
            };
            if taken {
                return Fault::None;
            }
            if hit.rescued.is_some() && hit.second.is_none() {
                hit.second_at = None;
                hit.second = Some((OpKind::Write, Way::Enospc, path));
                return Fault::Error(io::Error::from_raw_os_error(Way::Enospc.errno()));
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Observes a history in which one call fails.
struct Watch<'a> {
    fs: &'a MemFileSystem,
    place: TestDir,
    steps: &'a [Step],
    configurations: &'a [Configuration],
    hit: Arc<Mutex<Hit>>,
    /// The expected contents after each step.
    models: Vec<Model>,
    /// Steps that no power cut may lose.
    durable: usize,
    /// What is wrong.
    wrong: Option<String>,
    /// It ended with the disk's failure, or with a legitimate loss.
    died: bool,
    /// A close could not write the data that `manual_wal_flush` had buffered, and could not report that.
    lost: bool,
    told: u64,
    background: u64,
    /// The disks at the moment of an error, and the steps that had begun.
    cuts: Vec<(MemFileSystem, MemFileSystem, usize, usize, usize)>,
    rng: fastrand::Rng,
}

/// The note of a WAL directory, which announces the next OPTIONS file.
const WAL_OWNER: &str = "WAL_OWNER";
/// The beginning of the store's error about column families that were not named.
const NOT_OPENED: &str = "column families not opened: ";
/// Written to every column family after a failure, and deleted again.
const PROBE: (&str, &[u8]) = ("written after a failure", b"99999999");
/// Written by another thread while the store resumes, and deleted again.
const MEANWHILE: (&str, &[u8]) = ("written during a recovery", b"99999999");
/// The directory of the checkpoint that is checked after a failure.
const PROBE_DIR: &str = "probe";
/// In one of four runs, this many writes to tables are slow.
const SLOW_WRITES: u32 = 300;
const SLOW: Duration = Duration::from_millis(2);
/// How long a job's write waits for a recovery at most, after a call has failed.
const WAITS_FOR_RECOVERY: Duration = Duration::from_millis(30);
/// Duration of a recovery's writes in such a run, so that prematurely admitted writers write meanwhile.
const RESCUE: Duration = Duration::from_millis(10);
/// One of this many calls of a recovery fails.
const SECOND_WITHIN: u64 = 24;
/// Or the first of one of these kinds.
const SECOND_KINDS: [OpKind; 6] =
    [OpKind::Truncate, OpKind::Create, OpKind::Write, OpKind::Sync, OpKind::SyncDir, OpKind::Rename];

impl Watch<'_> {
    /// What `manual_wal_flush` gathered dies with the process.
    fn manual(&self) -> bool {
        self.configurations.iter().any(|c| c.get("wal") == "manual")
    }

    /// A close may have failed to write buffered data without a way to report it.
    fn may_lose(&self) -> bool {
        let wal = |path: &PathBuf| path.extension().is_some_and(|e| e == "log");
        self.manual() && self.told == 0 && self.hit.lock().what.as_ref().is_some_and(|(.., p)| wal(p))
    }

    /// Keeps the disk's current state, to test a crash.
    fn cut(&mut self, step: usize) {
        let image = |mode| self.fs.crash_image(mode);
        let done = self.models.len() - 1;
        self.cuts.push((image(CrashMode::SyncedOnly), image(CrashMode::KeepAll), self.durable, done, step + 1));
    }

    /// Resumes the store; in half of the cases, another call fails meanwhile.
    fn resume(&mut self, db: &Db, text: &str, step: usize) -> Result<(), String> {
        if self.rng.bool() {
            let calls = self.fs.calls();
            // Rare calls of a recovery would hardly ever be hit by number.
            let second = match self.rng.usize(..3 * SECOND_KINDS.len()) {
                n if n < SECOND_KINDS.len() => Second::Of(calls, SECOND_KINDS[n]),
                n if n < 2 * SECOND_KINDS.len() => Second::Table(calls),
                _ => Second::Any(calls + self.rng.u64(..SECOND_WITHIN)),
            };
            self.hit.lock().second_at = Some(second);
        }
        // A concurrent job may be what fails; then the recovery's success counts, once that is known.
        for _ in 0..3 {
            let done = self.resume_beside_a_writer(db)?;
            let fired = {
                let mut hit = self.hit.lock();
                hit.second_at = None;
                hit.second.is_some()
            };
            let Err(error) = done else {
                return match db.background_error() {
                    Some(error) if !fired => Err(format!("has resumed, and still has {error}")),
                    Some(_) => continue,
                    None => Ok(()),
                };
            };
            if !fired {
                return Err(format!("does not resume after {text}: {error}"));
            }
            self.cut(step);
            let background = db.background_error().ok_or_else(|| format!("{error}, and no error of the database"))?;
            if db.background_error_severity() != Some(ErrorSeverity::Soft) && db.put("never", "taken").is_ok() {
                if db.background_error().is_some() {
                    return Err(format!("takes writes after a recovery that failed, with {background}"));
                }
                // It has recovered automatically meanwhile, as it may from a lack of space.
                db.delete("never").map_err(|e| format!("after a recovery by itself: {e}"))?;
            }
        }
        db.resume().map_err(|e| format!("does not resume after {text} and another failure: {e}"))
    }

    /// Resumes while another thread does a synced write: if that write is accepted, it and everything acknowledged
    /// before it exist after a power cut.
    fn resume_beside_a_writer(&self, db: &Db) -> Result<rockmill::Result<()>, String> {
        // FIFO compaction may drop it.
        if self.configurations.iter().any(|c| c.get("strategy") == "fifo") {
            return Ok(db.resume());
        }
        let resumed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                while !resumed.load(Ordering::Acquire) {
                    let mut synced = WriteOptions::default();
                    synced.set_sync(true);
                    synced.set_no_slowdown(true);
                    if db.put_opt(MEANWHILE.0, MEANWHILE.1, &synced).is_ok() {
                        return self.taken_meanwhile();
                    }
                    std::thread::yield_now();
                }
                Ok(())
            });
            self.hit.lock().resuming = true;
            let done = db.resume();
            self.hit.lock().resuming = false;
            resumed.store(true, Ordering::Release);
            let taken = writer.join().map_err(|_| "the writer beside a recovery panics".to_owned())?;
            taken.map_err(|e| format!("a write was taken while the store resumed, and after a power cut: {e}"))?;
            Ok(done)
        })
    }

    /// Checks the state after a power cut now that [`MEANWHILE`] is written and synced.
    fn taken_meanwhile(&self) -> Result<(), String> {
        let image: Arc<dyn FileSystem> = Arc::new(self.fs.crash_image(CrashMode::SyncedOnly));
        let place = TestDir { fs: image, ..self.place.clone() };
        let db = place.open(&self.configurations.first().cloned().unwrap_or_default()).map_err(|e| e.to_string())?;
        if db.get(MEANWHILE.0).map_err(|e| e.to_string())?.as_deref() != Some(MEANWHILE.1) {
            return Err("it is not there".to_owned());
        }
        db.delete(MEANWHILE.0).map_err(|e| e.to_string())?;
        // The failed step may or may not have happened.
        let done = self.models.len() - 1;
        let contents = Contents::read(&db).map_err(|e| e.to_string())?;
        let rest = &self.steps[done.min(self.steps.len())..];
        contents.find(&self.models[done], rest, 0, rest.len().min(1)).map(drop).map_err(|d| d.to_string())
    }

    /// Checks that a synced write after a failure exists after a crash, with the column families that the store
    /// reports, and in a checkpoint.
    fn probe(&self, db: &Db) -> Result<(), String> {
        // FIFO compaction may drop it.
        if self.configurations.iter().any(|c| c.get("strategy") == "fifo") {
            return Ok(());
        }
        let failed = |what: &str, e: &dyn fmt::Display| format!("{what} after a failure: {e}");
        let names = db.cf_names();
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        let (mut put, mut delete) = (WriteBatch::new(), WriteBatch::new());
        for name in &names {
            let cf = db.cf_handle(name).ok_or_else(|| format!("column family {name} is missing"))?;
            put.put_cf(&cf, PROBE.0, PROBE.1);
            delete.delete_cf(&cf, PROBE.0);
        }
        delete.delete(MEANWHILE.0);
        let write = |batch: &WriteBatch| match db.write_opt(batch, &synced) {
            // The second failed call was a job's, which is reported now.
            Err(_) if self.hit.lock().second.is_some() && db.background_error().is_some() => {
                db.resume().and_then(|()| db.write_opt(batch, &synced)).map_err(|e| failed("a write", &e))
            }
            done => done.map_err(|e| failed("a write", &e)),
        };
        write(&put)?;
        let configuration = self.configurations.first().cloned().unwrap_or_default();
        let look = |what: &str, place: &TestDir| -> Result<(), String> {
            let copy = place.open(&configuration).map_err(|e| failed(what, &e))?;
            if copy.cf_names() != names {
                return Err(format!("{what} after a failure has column families {:?}, not {names:?}", copy.cf_names()));
            }
            for name in &names {
                let cf = copy.cf_handle(name).ok_or_else(|| format!("column family {name} is missing"))?;
                let found = copy.get_cf(&cf, PROBE.0).map_err(|e| failed(what, &e))?;
                if found.as_deref() != Some(PROBE.1) {
                    return Err(format!("{what} after a failure lacks what was written and synced since ({name})"));
                }
            }
            Ok(())
        };
        for mode in [CrashMode::KeepAll, CrashMode::SyncedOnly] {
            let image: Arc<dyn FileSystem> = Arc::new(self.fs.crash_image(mode));
            look(&format!("{mode:?}"), &TestDir { fs: image, ..self.place.clone() })?;
        }
        // A checkpoint has its WALs in itself.
        let copy = TestDir { root: self.place.path(PROBE_DIR), own_wals: false, ..self.place.clone() };
        copy.make_root().map_err(|e| failed("a directory", &e))?;
        let checkpoint = Checkpoint::new(db).and_then(|c| c.create_checkpoint_with_log_size(copy.db(), u64::MAX));
        checkpoint.map_err(|e| failed("a checkpoint", &e))?;
        look("a checkpoint", &copy)?;
        self.place.remove_tree(&copy.root).map_err(|e| e.to_string())?;
        write(&delete)
    }

    fn stop(&mut self, what: impl Into<String>) -> Verdict {
        self.wrong.get_or_insert(what.into());
        Verdict::Stop
    }

    /// Checks the state after the error.
    fn judge(&mut self, failure: &Failure, db: Option<&Db>) -> Result<Verdict, String> {
        let Some((kind, way, path)) = self.hit.lock().what.clone() else {
            return Err(format!("fails without a fault: {failure}"));
        };
        // The OPTIONS file that could not be written lacks the changes, and the caller got the error. If WALs have a
        // separate directory, a note of the next file is written first, and may be what failed.
        let before_options = path == self.place.db() || path.to_string_lossy().contains(WAL_OWNER);
        let lacks_family = matches!(&failure.trouble, Trouble::Failed(e) if e.message().starts_with(NOT_OPENED));
        let lacks = path.to_string_lossy().contains("OPTIONS") || (before_options && lacks_family);
        if lacks && failure.text.starts_with("reopen stored") && self.told > 0 {
            return Ok(Verdict::Pass);
        }
        let text = match &failure.trouble {
            Trouble::Failed(error) => {
                self.told += 1;
                let expected =
                    match way {
                        Way::Flip => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotSupported),
                        _ => self.hit.lock().ways().any(|way| {
                            error.to_string().contains(&io::Error::from_raw_os_error(way.errno()).to_string())
                        }),
                    };
                if !expected || way.is_harmless() {
                    return Err(format!("{kind:?} failed by {way:?}, and the error is another: {failure}"));
                }
                error.to_string()
            }
            Trouble::Panicked(what) => return Err(format!("panics: {what}")),
            // A call of the test's own.
            Trouble::Test(text) => text.clone(),
            Trouble::Wrong(difference) if difference.what.starts_with("cannot be read: ") => {
                self.told += 1;
                difference.what.clone()
            }
            // A read after a close with a legitimate loss: the history ends here.
            Trouble::Wrong(_) if self.lost => {
                self.died = true;
                return Ok(Verdict::Stop);
            }
            // The same for a check between two opens. The next open decides whether the contents are allowed.
            Trouble::Wrong(_) if db.is_none() && self.may_lose() => return Ok(Verdict::Pass),
            Trouble::Wrong(difference) => return Err(format!("shows something wrong: {difference} ({failure})")),
        };
        if self.cuts.is_empty() {
            self.cut(failure.step);
        }
        if way == Way::Dead || way == Way::WalsGone {
            self.died = true;
            // Data in tables can be read. An acknowledged write would be lost.
            let mut synced = WriteOptions::default();
            synced.set_sync(true);
            if way == Way::WalsGone
                && let Some(db) = db
                && db.put_opt(PROBE.0, PROBE.1, &synced).is_ok()
            {
                return Err("takes a synced write while the device with the WALs is gone".to_owned());
            }
            return Ok(Verdict::Stop);
        }
        self.hit.lock().freed = true;
        for name in ["checkpoint", "restored", "export"] {
            self.place.remove_tree(&self.place.path(name)).map_err(|e| e.to_string())?;
        }
        let Some(db) = db else { return Ok(Verdict::Again) };
        if let Some(error) = db.background_error() {
            self.background += 1;
            let severity = db.background_error_severity();
            if severity != Some(ErrorSeverity::Soft) {
                match db.put("never", "taken") {
                    Ok(()) if db.background_error().is_some() => {
                        return Err(format!("takes writes with the background error {error}"));
                    }
                    Ok(()) => return Err("the background error went while writes were refused".to_owned()),
                    Err(e) if e.to_string() == error.to_string() => {}
                    Err(e) => return Err(format!("refuses writes because of {e}, not of {error}")),
                }
            }
            self.resume(db, &text, failure.step)?;
        }
        self.probe(db)?;
        // Done or not done, and nothing between.
        let before = self.models[self.models.len() - 1].clone();
        let Some(step) = self.steps.get(failure.step).filter(|_| !failure.text.ends_with("close")) else {
            return matches(db, &before).map(|()| Verdict::Pass).map_err(|d| format!("after {failure}: {d}"));
        };
        let Err(difference) = matches(db, &before) else { return Ok(Verdict::Again) };
        let mut after = before;
        after.step(step);
        match matches(db, &after) {
            Ok(()) => Ok(Verdict::Took),
            Err(d) => Err(format!("after {failure}: neither what was before ({difference}) nor after the step ({d})")),
        }
    }
}

impl Observer for Watch<'_> {
    fn after(&mut self, done: &Done<'_>) {
        self.models.push(done.model.clone());
        if done.durable {
            self.durable = done.step + 1;
        }
    }

    fn opened(&mut self, step: usize, db: &Db) {
        if self.may_lose() && self.models.last().is_some_and(|model| matches(db, model).is_err()) {
            // The contents are nevertheless a prefix, as after the death of the process.
            let found = Contents::read(db).and_then(|contents| {
                let (base, steps) = (&self.models[self.durable], &self.steps[self.durable..]);
                contents.find(base, steps, 0, step.saturating_sub(self.durable)).map(drop)
            });
            match found {
                Ok(()) => self.lost = true,
                Err(d) => drop(self.stop(format!("after a close that failed: {d}"))),
            }
            return;
        }
        self.durable = self.durable.max(step);
    }

    fn failed(&mut self, failure: &Failure, db: Option<&Db>) -> Verdict {
        match self.judge(failure, db) {
            Ok(verdict) => verdict,
            Err(what) => self.stop(what),
        }
    }
}

/// Opens a disk from the middle of a history, and finds its state.
fn moment(
    (places, image): (Where, &MemFileSystem),
    configuration: &Configuration,
    (models, steps): (&[Model], &[Step]),
    (at_least, started): (usize, usize),
) -> Result<(), String> {
    let place = places.on(image);
    if !image.exists(&place.db().join("CURRENT")).map_err(|e| e.to_string())? {
        return if at_least == 0 { Ok(()) } else { Err("the database is gone".to_owned()) };
    }
    let db = place.open(configuration).map_err(|e| format!("does not open: {e}"))?;
    // The concurrent writer may have been admitted.
    db.delete(MEANWHILE.0).map_err(|e| e.to_string())?;
    let contents = Contents::read(&db).map_err(|e| e.to_string())?;
    let found = contents.find(&models[at_least], &steps[at_least..], 0, started.saturating_sub(at_least));
    found.map(drop).map_err(|d| d.to_string())
}

/// One run with a fault.
fn one(plan: &Plan, n: u64, way: Option<Way>, report: &mut Report) -> Result<(), String> {
    let fs = empty_disk()?;
    let place = plan.places.on(&fs);
    let hit = inject(&fs, n, way, plan.seed ^ n, plan.places.own_wals.then(|| place.wals()));
    let mut watch = Watch {
        fs: &fs,
        place: place.clone(),
        steps: &plan.history.steps,
        configurations: &plan.configurations,
        hit: Arc::clone(&hit),
        models: vec![Model::new()],
        durable: 0,
        wrong: None,
        died: false,
        lost: false,
        told: 0,
        background: 0,
        cuts: Vec::new(),
        rng: fastrand::Rng::with_seed(plan.seed ^ (n << 1)),
    };
    let mut run = Run::new(place, plan.configurations.clone(), &mut watch);
    let done = replay(&plan.history, &mut run);
    let model = run.model().clone();
    fs.clear_fault();
    let (what, second) = {
        let hit = hit.lock();
        (hit.what.clone(), hit.second.clone())
    };
    let context = |e: String| {
        let then = second.as_ref().map_or_else(String::new, |s| format!(", then {s:?}"));
        format!("call {n} fails, {what:?}{then}: {e}")
    };
    report.second += u64::from(second.is_some());
    let (told, background, died) = (watch.told, watch.background, watch.died);
    if let Some(wrong) = watch.wrong {
        return Err(context(wrong));
    }
    if let Some(path) = &hit.lock().retried {
        return Err(context(format!("{} was synced again after its sync had failed", path.display())));
    }
    // The last check of everything is not a step, and may be what failed.
    let ended = died || watch.lost;
    if let Err(failure) = done
        && !ended
        && (failure.step < plan.history.steps.len() || what.is_none())
    {
        return Err(context(failure.to_string()));
    }
    let first = plan.configurations.first().cloned().unwrap_or_default();
    for (synced, all, durable, done, started) in &watch.cuts {
        let manual = watch.manual();
        let history = (&*watch.models, &*plan.history.steps);
        moment((plan.places, synced), &first, history, (*durable, *started))
            .map_err(|e| context(format!("after a power cut: {e}")))?;
        let at_least = if manual { *durable } else { *done };
        moment((plan.places, all), &first, history, (at_least, *started))
            .map_err(|e| context(format!("after its death: {e}")))?;
    }
    // At the end everything exists, and stays. If the history ended early, the disk's current state must satisfy this.
    if died && !watch.lost {
        let (manual, started) = (watch.manual(), watch.models.len());
        let at_least = if manual { watch.durable } else { started - 1 };
        let history = (&*watch.models, &*plan.history.steps);
        moment((plan.places, &fs), &first, history, (at_least, started))
            .map_err(|e| context(format!("after its end: {e}")))?;
    }
    for cut in [false, true].into_iter().filter(|_| !ended) {
        let disk = if cut { fs.crash_image(CrashMode::SyncedOnly) } else { fs.clone() };
        let db = plan.places.on(&disk).open(&first).map_err(|e| context(format!("does not open at the end: {e}")))?;
        matches(&db, &model).map_err(|d| context(format!("at the end: {d}")))?;
    }
    if plan.places.own_wals && !ended {
        refuses_without_wals(plan, &first, &fs).map_err(context)?;
    }
    match what {
        None => report.missed += 1,
        Some((kind, way, _)) => {
            report.faults += 1;
            report.kinds.insert((kind, way));
            report.told += u64::from(told > 0);
            report.background += u64::from(background > 0);
            report.silent += u64::from(told == 0 && background == 0);
        }
    }
    Ok(())
}

/// A database whose WALs are on a missing device, or on another one's device, does not open, neither with an empty
/// directory nor with none.
fn refuses_without_wals(plan: &Plan, first: &Configuration, fs: &MemFileSystem) -> Result<(), String> {
    for directory in [true, false] {
        let disk = fs.crash_image(CrashMode::KeepAll);
        let place = plan.places.on(&disk);
        place.remove_tree(&place.wals()).map_err(|e| e.to_string())?;
        if directory {
            disk.create_dir(&place.wals(), true).map_err(|e| e.to_string())?;
        }
        let Err(e) = place.open(first) else { return Err(format!("opens without its WALs (directory: {directory})")) };
        let text = e.to_string();
        if !text.contains(&place.wals().display().to_string()) {
            return Err(format!("without its WALs: the error does not name the directory: {text}"));
        }
    }
    Ok(())
}

/// Runs the history once to count its calls, and then again for each call that should fail.
///
/// # Errors
/// The first violation, with everything needed to reproduce it.
pub fn run(plan: &Plan) -> Result<Report, String> {
    with_context(plan.seed, &plan.history, &plan.configurations, plan.places, fail_all(plan))
}

fn fail_all(plan: &Plan) -> Result<Report, String> {
    let mut report = Report::default();
    let fs = empty_disk()?;
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&kinds);
    fs.set_hook(Box::new(move |op| {
        noted.lock().push(op.kind);
        Fault::None
    }));
    let mut silent = crate::replay::Silent;
    let mut whole = Run::new(plan.places.on(&fs), plan.configurations.clone(), &mut silent);
    replay(&plan.history, &mut whole).map_err(|e| format!("without a fault: {e}"))?;
    fs.clear_fault();
    let kinds = std::mem::take(&mut *kinds.lock());
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    for n in plan.calls.choose(kinds.len(), &mut rng) {
        let ways: Vec<Option<Way>> =
            if plan.every_way { Way::of(kinds[n]).iter().copied().map(Some).collect() } else { vec![None] };
        for way in ways {
            if plan.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(report);
            }
            one(plan, n as u64, way, &mut report)?;
        }
    }
    report.whole += 1;
    Ok(report)
}

/// Makes calls of random histories fail until the time is over, in this many threads. Returns the number of histories
/// begun, and the results; calls `told` with them now and then.
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
