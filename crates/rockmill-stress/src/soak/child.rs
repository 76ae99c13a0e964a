//! The child: opens the database, compares all of it with the expected state, and works until it is killed.
//!
//! It reports to its parent in lines on standard output ([`Said`]), and takes orders on standard input: `stop`,
//! `limited`, `unlimited`. When its input ends, its parent has died, and it exits, too.

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rockmill::merge_operator::{MaxOperator, UInt64AddOperator};
use rockmill::{
    ColumnFamilyDescriptor, Db, ErrorSeverity, HashRangeComparator, IteratorMode, Options, ReadOptions,
    ReverseBytewiseComparator,
};

use super::expected::Expected;
use super::judge;
use super::limits::Limit;
use super::settings::{Paths, Settings};
use super::value::{self, Kind};
use super::work::{Counts, Shared, Trouble};
use crate::configuration::Configuration;
use crate::events::Events;
use crate::kinds::Expire;

/// All is well.
pub const EXIT_OK: u8 = 0;
/// Something is wrong; the line `failed` describes it.
pub const EXIT_WRONG: u8 = 1;
/// The parent has ended.
pub const EXIT_ORPHAN: u8 = 3;
/// The database could not be opened because of the limit.
pub const EXIT_REFUSED: u8 = 4;

/// Between two lines of counts.
const TICK: Duration = Duration::from_millis(100);
/// A store must accept writes again at most this long after a limit was lifted.
const RESUME_MAX: Duration = Duration::from_secs(30);
/// Keys that a verification looks up individually, in addition to iterating over all.
const GETS: usize = 2000;
/// Number of LOG files to keep, and their size: disk usage must not grow with the number of lives.
const LOG_FILES: usize = 3;
const LOG_BYTES: usize = 1 << 20;
/// A MANIFEST of an hour has tens of MiB; RocksDB's limit is 1 GiB.
const MANIFEST_BYTES: u64 = 4 << 20;
/// Most MiB of archived WALs, for the same reason.
const ARCHIVE_MIB: u64 = 8;
/// Most pieces of memory that are allocated with a memory limit.
const PIECES_MAX: usize = 200_000;
/// Between two tries to resume, in microseconds.
const RESUME_MICROS: u64 = 100_000;

/// How a child is started.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The database.
    pub db: PathBuf,
    /// Which child it is, from 1.
    pub life: u64,
    /// How the store is configured.
    pub configuration: Configuration,
    /// The resource that it will be short of.
    pub limit: Option<Limit>,
    /// It is so from the beginning.
    pub limited: bool,
    /// Compare and end.
    pub verify_only: bool,
}

/// What a child says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The database is open, after this many milliseconds.
    Opened(u64),
    /// This many keys are correct; work begins.
    Verified(u64),
    /// Operations, writes, keys compared and refused operations, of this life so far.
    Counts([u64; 4]),
    /// The store refuses writes, or compactions wait, for this reason.
    Background(String),
    /// The store works again, this many milliseconds after the limit was lifted.
    Resumed(u64),
    /// Something is wrong.
    Failed(String),
    /// The database cannot be opened because of the limit.
    Refused(String),
    /// All threads have ended, everything was compared again, and the database is closed.
    Done,
}

impl Said {
    fn text(&self) -> String {
        let one_line = |text: &str| text.replace('\\', "\\\\").replace('\n', "\\n");
        match self {
            Self::Opened(ms) => format!("opened {ms}"),
            Self::Verified(keys) => format!("verified {keys}"),
            Self::Counts([a, b, c, d]) => format!("counts {a} {b} {c} {d}"),
            Self::Background(text) => format!("background {}", one_line(text)),
            Self::Resumed(ms) => format!("resumed {ms}"),
            Self::Failed(text) => format!("failed {}", one_line(text)),
            Self::Refused(text) => format!("refused {}", one_line(text)),
            Self::Done => "done ".to_owned(),
        }
    }

    /// Parses a line for the parent; `None` if it is not such a message.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        let text = || rest.replace("\\n", "\n").replace("\\\\", "\\");
        match word {
            "opened" => rest.parse().ok().map(Self::Opened),
            "verified" => rest.parse().ok().map(Self::Verified),
            "counts" => {
                let numbers: Vec<u64> = rest.split(' ').map_while(|n| n.parse().ok()).collect();
                numbers.try_into().ok().map(Self::Counts)
            }
            "background" => Some(Self::Background(text())),
            "resumed" => rest.parse().ok().map(Self::Resumed),
            "failed" => Some(Self::Failed(text())),
            "refused" => Some(Self::Refused(text())),
            "done" => Some(Self::Done),
            _ => None,
        }
    }
}

fn say(what: &Said) {
    let mut out = std::io::stdout().lock();
    // If nobody reads: the parent is gone, and its pipe to us will end, too.
    let _ = out.write_all(format!("{}\n", what.text()).as_bytes()).and_then(|()| out.flush());
}

/// Options of a column family.
pub fn family_options(settings: &Settings, family: usize, base: &Options) -> Options {
    let mut options = base.clone();
    match Kind::of(settings, family) {
        Kind::Counters => options.set_merge_operator_object(Arc::new(UInt64AddOperator)),
        Kind::Plain => options.set_merge_operator_object(Arc::new(MaxOperator)),
        Kind::Reversed => {
            options.set_merge_operator_object(Arc::new(MaxOperator));
            options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        }
        Kind::Hashed => {
            options.set_merge_operator_object(Arc::new(MaxOperator));
            options.set_comparator_object(Arc::new(HashRangeComparator));
            // Keys with the same prefix are not adjacent there.
            options.cf.prefix_extractor = None;
        }
        Kind::Expiring => options.set_compaction_filter_factory(Expire),
    }
    options
}

/// All column families.
pub fn families(settings: &Settings, base: &Options) -> Vec<ColumnFamilyDescriptor> {
    (0..=settings.families)
        .map(|f| ColumnFamilyDescriptor::new(judge::family_name(settings, f), family_options(settings, f, base)))
        .collect()
}

/// A configuration's options, adjusted for a long run.
fn options_of(configuration: &Configuration) -> Options {
    let mut options = configuration.options();
    options.set_keep_log_file_num(LOG_FILES);
    options.set_max_log_file_size(LOG_BYTES);
    options.set_bgerror_resume_retry_interval(RESUME_MICROS);
    if configuration.get("manifest") == "large" {
        options.set_max_manifest_file_size(MANIFEST_BYTES);
    }
    if configuration.get("wal") == "kept" {
        options.set_wal_size_limit_mb(ARCHIVE_MIB);
    }
    options
}

/// Runs a child; gives its exit code.
pub fn run(orders: &Orders) -> u8 {
    let lines = listen();
    match live(orders, &lines) {
        Ok(()) => {
            say(&Said::Done);
            EXIT_OK
        }
        Err(Ending::Wrong(text)) => {
            say(&Said::Failed(text));
            // Without closing anything, so that the state can be inspected.
            std::process::exit(EXIT_WRONG.into());
        }
        Err(Ending::Refused(text)) => {
            say(&Said::Refused(text));
            EXIT_REFUSED
        }
    }
}

/// Why a life did not end well.
enum Ending {
    Wrong(String),
    Refused(String),
}

impl From<String> for Ending {
    fn from(text: String) -> Self {
        Self::Wrong(text)
    }
}

/// Receives orders, with a thread that ends the process when there can be no more.
fn listen() -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
        std::process::exit(EXIT_ORPHAN.into());
    });
    receive
}

fn read_settings(paths: &Paths) -> Result<Settings, String> {
    let path = paths.settings();
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Settings::from_text(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Removes the remains of an earlier life.
fn sweep(home: &Path) {
    for entry in std::fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let left = ["ingest.sst-", "checkpoint", "restored"].iter().any(|start| name.starts_with(start));
        if left && entry.file_type().is_ok_and(|t| t.is_dir()) {
            let _ = std::fs::remove_dir_all(entry.path());
        } else if left {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn live(orders: &Orders, lines: &mpsc::Receiver<String>) -> Result<(), Ending> {
    let paths = Paths::of(&orders.db);
    let settings = read_settings(&paths)?;
    let expected = Expected::open(&paths.expected(), &settings)?;
    sweep(&paths.home);
    let mut options = options_of(&orders.configuration);
    if settings.own_wals {
        options.set_wal_dir(paths.wals());
    }
    let began = Instant::now();
    // In every second life, a listener writes at each notification. It is not a listener of copies.
    let events = Events::default();
    let mut own = options.clone();
    if orders.life % 2 == 1 {
        own.add_event_listener(events.clone());
    }
    let opened = Db::open_cf_descriptors(&own, &orders.db, families(&settings, &options));
    let db = Arc::new(opened.map_err(|e| match orders.limit {
        Some(limit) if limit.explains(&e) => Ending::Refused(e.to_string()),
        _ => Ending::Wrong(format!("the database does not open: {e}")),
    })?);
    events.open(&db);
    say(&Said::Opened(began.elapsed().as_millis() as u64));
    let mut handles = Vec::new();
    for family in 0..=settings.families {
        let name = judge::family_name(&settings, family);
        handles.push(RwLock::new(db.cf_handle(&name).ok_or_else(|| format!("no column family {name}"))?));
    }
    let shared = Shared {
        settings: &settings,
        expected: &expected,
        db: &db,
        families: handles,
        options: &options,
        paths: &paths,
        manual_wal: orders.configuration.get("wal") == "manual",
        limit: orders.limit,
        stop: AtomicBool::new(false),
        counts: Counts::default(),
        failure: Mutex::new(None),
        copies: Mutex::new(()),
    };
    say(&Said::Verified(verify(&shared, "after the start", orders.life)?));
    if !orders.verify_only {
        std::thread::scope(|scope| {
            for thread in 0..settings.threads {
                let shared = &shared;
                scope.spawn(move || shared.run(orders.life, thread));
            }
            if let Some(Limit::Memory(bytes)) = orders.limit {
                let (stop, seed) = (&shared.stop, settings.seed ^ orders.life);
                scope.spawn(move || devour(bytes, stop, seed));
            }
            attend(&shared, lines, orders.limited);
        });
        say(&Said::Verified(verify(&shared, "at the end of a life", orders.life + 1)?));
    }
    drop(shared);
    events.close();
    drop(db);
    Ok(())
}

/// Compares the whole database with the expected state, and resolves what was unknown.
fn verify(shared: &Shared<'_>, when: &str, seed: u64) -> Result<u64, Ending> {
    let (settings, expected) = (shared.settings, shared.expected);
    let refused = AtomicBool::new(false);
    let note = |e: rockmill::Error| {
        if matches!(shared.trouble("", &e), Trouble::Refused) {
            refused.store(true, Ordering::Relaxed);
        }
        format!("the iteration ends with an error: {e}")
    };
    let mut settled = Vec::new();
    let entries = |family: usize| {
        let mut options = ReadOptions::default();
        options.set_total_order_seek(true);
        let iter = shared.db.iterator_cf_opt(&shared.family(family), options, IteratorMode::Start);
        let note = &note;
        Ok(iter.map(move |entry| entry.map(|(k, v)| (k.into_vec(), v.into_vec())).map_err(note)))
    };
    let judged = judge::judge_dead(when, settings, expected, entries, |family, key, found| {
        let slot = expected.slot(family, key);
        if slot.is_pending() {
            settled.push((family, key, slot.settled(found, expected.is_counter(family))));
        }
    });
    if refused.load(Ordering::Relaxed) {
        return Err(Ending::Refused(judged.err().unwrap_or_default()));
    }
    let checked = judged?;
    for (family, key, slot) in settled {
        expected.set(family, key, slot)?;
    }
    // Lookups take other ways than iterators do.
    let mut rng = fastrand::Rng::with_seed(settings.seed ^ seed);
    for n in 0..GETS {
        // If hardly any table stays open, each lookup opens hundreds: slow, but not a hang.
        if n % 50 == 49 {
            tell_counts(&shared.counts);
        }
        let (family, key) = (rng.usize(..expected.families()), rng.u32(..expected.keys()));
        let found = match shared.db.get_cf(&shared.family(family), value::key(settings, family, key)) {
            Ok(found) => found,
            Err(e) => match shared.trouble("get", &e) {
                Trouble::Refused => return Err(Ending::Refused(e.to_string())),
                Trouble::Wrong(text) => return Err(Ending::Wrong(text)),
            },
        };
        let version = found.map(|bytes| value::version_of(settings, family, key, &bytes)).transpose()?;
        let slot = expected.slot(family, key);
        let (version, _) = value::unfiltered(settings, family, &slot, version);
        if version != slot.exact() {
            return Err(Ending::Wrong(format!(
                "{when}: {}: expected {}, a lookup found {}, and an iterator what was expected",
                judge::place(settings, family, key),
                slot.describe(expected.is_counter(family)),
                judge::found_text(settings, family, version)
            )));
        }
        shared.counts.checked.fetch_add(1, Ordering::Relaxed);
    }
    Ok(checked)
}

/// Allocates all available memory now and then, so that the next allocation fails.
fn devour(bytes: u64, stop: &AtomicBool, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let touch = vec![1; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(rng.u64(100..1000)));
        let mut taken: Vec<Vec<u8>> = Vec::new();
        // Now, because a growing list would be the first to find no memory.
        if taken.try_reserve_exact(PIECES_MAX).is_err() {
            continue;
        }
        let mut total = 0;
        // Repeatedly for a while, because others free and allocate memory meanwhile.
        let until = Instant::now() + Duration::from_millis(rng.u64(100..1000));
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            // Large pieces first, then smaller and smaller ones, for the gaps between them.
            for piece_bytes in [1 << 20, 64 << 10, 4 << 10, 256] {
                while total < bytes && taken.len() < PIECES_MAX {
                    let mut piece: Vec<u8> = Vec::new();
                    if piece.try_reserve_exact(piece_bytes).is_err() {
                        break;
                    }
                    // Touched, because a control group counts it only then.
                    while piece.len() < piece_bytes {
                        piece.extend_from_slice(&touch[..touch.len().min(piece_bytes - piece.len())]);
                    }
                    total += piece_bytes as u64;
                    taken.push(piece);
                }
            }
            std::thread::yield_now();
        }
    }
}

/// Follows orders and monitors the store until `stop`.
fn attend(shared: &Shared<'_>, lines: &mpsc::Receiver<String>, mut limited: bool) {
    let mut lifted: Option<Instant> = None;
    let mut told: Option<String> = None;
    let mut tries = 0u32;
    let ended = loop {
        match lines.recv_timeout(TICK) {
            Ok(line) if line == "stop" => break Ok(()),
            Ok(line) => {
                limited = line == "limited";
                lifted = (!limited).then(Instant::now);
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The listening thread ends the process before this can happen.
            Err(RecvTimeoutError::Disconnected) => break Ok(()),
        }
        tell_counts(&shared.counts);
        if shared.stop.load(Ordering::Relaxed) {
            break Ok(());
        }
        let Some(e) = shared.db.background_error() else {
            if told.take().is_some() {
                say(&Said::Resumed(lifted.map_or(0, |l| l.elapsed().as_millis() as u64)));
            }
            continue;
        };
        if let Trouble::Wrong(text) = shared.trouble("background error", &e) {
            break Err(text);
        }
        if told.replace(e.to_string()).is_none() {
            say(&Said::Background(e.to_string()));
        }
        tries += 1;
        // While the limit holds, an attempt now and then must do no harm.
        if shared.db.background_error_severity() == Some(ErrorSeverity::Fatal) && (!limited || tries.is_multiple_of(10))
        {
            match shared.db.resume() {
                Err(e) if matches!(shared.trouble("resume", &e), Trouble::Wrong(_)) => {
                    break Err(format!("resume: {e}"));
                }
                _ => {}
            }
        }
        if !limited && lifted.get_or_insert_with(Instant::now).elapsed() > RESUME_MAX {
            break Err(format!("{RESUME_MAX:?} after the limit was lifted the store still has an error: {e}"));
        }
    };
    shared.stop.store(true, Ordering::Relaxed);
    tell_counts(&shared.counts);
    let failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(text) = failure.or(ended.err()) {
        // Immediately: a hanging thread must not prevent this message.
        say(&Said::Failed(text));
        std::process::exit(EXIT_WRONG.into());
    }
}

fn tell_counts(counts: &Counts) {
    let all = [&counts.ops, &counts.writes, &counts.checked, &counts.refused];
    say(&Said::Counts(all.map(|c| c.load(Ordering::Relaxed))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_says_is_understood() {
        let all = [
            Said::Opened(12),
            Said::Verified(7),
            Said::Counts([1, 2, 3, 4]),
            Said::Background("a\nb".to_owned()),
            Said::Resumed(3),
            Said::Failed("x: 1 problem\n  and so on".to_owned()),
            Said::Done,
        ];
        for said in all {
            assert_eq!(Said::parse(&said.text()), Some(said));
        }
        assert_eq!(Said::parse("warning: something else"), None);
    }
}
