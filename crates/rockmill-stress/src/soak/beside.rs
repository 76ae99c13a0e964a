//! Another process that reads the database while the child writes to it: the parent. Again and again it opens the
//! database read-only and compares all of it with the expected state before and after.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rockmill::{Db, ErrorKind, IteratorMode, Options, ReadOptions};

use super::child;
use super::expected::{Expected, Slot};
use super::judge::{self, Entry, Findings};
use super::reads::between;
use super::settings::{Paths, Settings};
use super::value;
use crate::configuration::Configuration;

/// Between two readings at most.
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// What readings came to.
#[derive(Debug, Clone, Default)]
pub struct Readings {
    /// Readings of the whole database.
    pub whole: u64,
    /// Keys that were compared.
    pub keys: u64,
    /// Reads that gave up because the child changed its tables too fast, or was clearing a column family.
    pub passed_over: u64,
    /// What was wrong.
    pub failure: Option<String>,
}

/// A thread that reads beside a child.
#[derive(Debug)]
pub struct Reader {
    stop: Arc<AtomicBool>,
    readings: Arc<Mutex<Readings>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Begins to read the database of a working child.
    pub fn start(paths: &Paths, settings: &Settings, configuration: &Configuration, seed: u64) -> Self {
        let (stop, readings) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Readings::default())));
        let (stopped, out) = (Arc::clone(&stop), Arc::clone(&readings));
        let (db, expected) = (paths.db.clone(), paths.expected());
        let (settings, mut options) = (settings.clone(), configuration.options());
        options.set_max_open_files(-1);
        if settings.own_wals {
            options.set_wal_dir(paths.wals());
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let read = read(&db, &expected, &settings, &options);
                let mut sum = out.lock().unwrap_or_else(PoisonError::into_inner);
                match read {
                    Ok(Some(keys)) => {
                        sum.whole += 1;
                        sum.keys += keys;
                    }
                    Ok(None) => sum.passed_over += 1,
                    Err(text) => {
                        sum.failure = Some(text);
                        return;
                    }
                }
                drop(sum);
                let until = PAUSE_MAX.mul_f64(rng.f64());
                for _ in 0..until.as_millis() / 20 {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Self { stop, readings, thread: Some(thread) }
    }

    /// What was wrong, so far.
    pub fn failure(&self) -> Option<String> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner).failure.clone()
    }

    /// Ends the current read, and returns the totals. After it, nothing reads the expected state any more.
    pub fn stop(mut self) -> Readings {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            return Readings { failure: Some("a reader beside the child panicked".to_owned()), ..Readings::default() };
        }
        self.readings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Every slot of the expected state; `None` if two reads show that it was being written.
fn slots(path: &Path, settings: &Settings) -> Result<Vec<Vec<Option<Slot>>>, String> {
    let (one, two) = (Expected::open(path, settings)?, Expected::open(path, settings)?);
    let family = |family| {
        let (one, two) = (one.slots(family, 0..settings.keys), two.slots(family, 0..settings.keys));
        one.into_iter().zip(two).map(|(a, b)| (a == b).then_some(a)).collect()
    };
    Ok((0..one.families()).map(family).collect())
}

/// One read of the database; returns the number of compared keys, or `None` if the child prevented it.
fn read(path: &Path, expected: &Path, settings: &Settings, options: &Options) -> Result<Option<u64>, String> {
    let before = slots(expected, settings)?;
    let failed = |what: &str, e: rockmill::Error| format!("a reader beside the child: {what}: {e}");
    let there = match Db::list_cf(options, path) {
        Ok(there) => there,
        Err(e) if e.kind() == ErrorKind::TryAgain => return Ok(None),
        Err(e) => return Err(failed("list_cf", e)),
    };
    let mut families = child::families(settings, options);
    families.retain(|f| there.iter().any(|name| name == f.name()));
    let db = match Db::open_cf_descriptors_read_only(options, path, families, false) {
        Ok(db) => db,
        Err(e) if e.kind() == ErrorKind::TryAgain => return Ok(None),
        // Dropped since it was listed.
        Err(e) if e.kind() == ErrorKind::InvalidArgument && e.message().contains("does not exist") => return Ok(None),
        Err(e) => return Err(failed("open", e)),
    };
    let mut all: Vec<Vec<Entry>> = Vec::new();
    for family in 0..before.len() {
        let mut entries = Vec::new();
        if let Some(cf) = db.cf_handle(&judge::family_name(settings, family)) {
            let mut how = ReadOptions::default();
            how.set_total_order_seek(true);
            for entry in db.iterator_cf_opt(&cf, how, IteratorMode::Start) {
                let (key, value) = entry.map_err(|e| failed("an iteration", e))?;
                entries.push(Ok((key.into_vec(), value.into_vec())));
            }
        }
        all.push(entries);
    }
    let after = slots(expected, settings)?;
    let mut findings = Findings::default();
    for (family, entries) in all.into_iter().enumerate() {
        let counter = family == settings.families;
        judge::compare(settings, family, 0..settings.keys, entries.into_iter(), &mut findings, |key, found| {
            let (Some(before), Some(after)) = (before[family][key as usize], after[family][key as usize]) else {
                return Ok(());
            };
            let (found, _) = value::unfiltered_between(settings, family, &before, &after, found);
            let allowed = Slot::allows_between(&before, &after, found);
            if allowed { Ok(()) } else { Err(between(&before, &after, counter)) }
        });
    }
    findings.verdict("a reader beside the child").map(Some)
}
