//! Runs a history on a database, and compares all results with a model.

mod copies;
mod reads;
mod session;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rockmill::{ColumnFamily, Db, ErrorKind, Options, OptionsLoader, RepairOptions};

use crate::configuration::Configuration;
use crate::contents::{Difference, matches};
use crate::events::Events;
use crate::files::verify_tables;
use crate::history::{History, Reopen, Step, Writer};
use crate::kinds::FoldedComparator;
use crate::model::Model;
use crate::place::{TestDir, descriptors, existing};
use session::Session;
pub(crate) use session::TOGETHER;

/// Most consecutive attempts to open while the observer asks for retries. Retries do not help against a permanent
/// failure, and a history must not run for ever.
const TRIES_MAX: u32 = 100;

/// What went wrong in a step.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// The store's result differs from the model's.
    Wrong(Difference),
    /// A call failed.
    Failed(rockmill::Error),
    /// A file of the test itself failed.
    Test(String),
    /// Something panicked.
    Panicked(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(difference) => write!(f, "{difference}"),
            Self::Failed(error) => write!(f, "a call failed: {error}"),
            Self::Test(what) => f.write_str(what),
            Self::Panicked(what) => write!(f, "a panic: {what}"),
        }
    }
}

impl From<Difference> for Trouble {
    fn from(difference: Difference) -> Self {
        Self::Wrong(difference)
    }
}

impl From<rockmill::Error> for Trouble {
    fn from(error: rockmill::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Test(error.to_string())
    }
}

/// Does something; its panic is trouble.
pub(crate) fn caught<T>(what: impl FnOnce() -> T) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(what)).map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Trouble::Panicked(words.to_owned())
    })
}

/// The failure of a history: where, and how.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The index in the history, from 0; the history's length after the last step.
    pub step: usize,
    /// The step's text.
    pub text: String,
    /// The configuration that was open.
    pub configuration: String,
    /// What happened.
    pub trouble: Trouble,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} ({}) with {}: {}", self.step, self.text, self.configuration, self.trouble)
    }
}

impl std::error::Error for Failure {}

/// A step that was run or skipped.
#[derive(Debug)]
pub struct Done<'a> {
    /// Place in the history, from 0.
    pub step: usize,
    /// The part that was run; `None` if nothing was.
    pub what: Option<&'a Step>,
    /// From now on, a power cut loses nothing of this step or earlier ones.
    pub durable: bool,
    /// What the database must show now.
    pub model: &'a Model,
}

/// How to continue a history after a failed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It ends with the failure.
    Stop,
    /// The step counts as not done, and the history continues.
    Pass,
    /// The step nevertheless counts as done, and the history continues.
    Took,
    /// The step is done again.
    Again,
}

/// A batch of a concurrent writer: when it began, and when it had returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// By the observer's clock.
    pub at: (usize, usize),
    /// Its positions among all beginnings and returns of its step.
    pub order: (usize, usize),
}

/// Tells threads when it is.
pub type Clock = Arc<dyn Fn() -> usize + Send + Sync>;

/// Looks on while a history is done.
pub trait Observer {
    /// A step begins.
    fn before(&mut self, _step: usize, _what: &Step) {}
    /// A step ended. `db` is `None` after a failed reopen.
    fn after(&mut self, _done: &Done<'_>) {}
    /// A step failed. `db` is `None` while the database is closed.
    fn failed(&mut self, _failure: &Failure, _db: Option<&Db>) -> Verdict {
        Verdict::Stop
    }
    /// The database was opened, before the step with this number.
    fn opened(&mut self, _step: usize, _db: &Db) {}
    /// The clock that concurrent writers record.
    fn clock(&self) -> Clock {
        Arc::new(|| 0)
    }
    /// Threads have written concurrently: the writers, and the batches of each. The step ends after this.
    fn wrote_together(&mut self, _writers: &[Writer], _batches: Vec<Vec<Span>>) {}
}

/// An observer that does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {}

/// A database under a history.
pub struct Run<'a> {
    place: TestDir,
    configurations: Vec<Configuration>,
    current: usize,
    /// What must be seen.
    model: Model,
    observer: &'a mut dyn Observer,
    /// A hash of each step's results, as far as they do not depend on the configuration.
    seen: Vec<u64>,
    /// There is a database.
    made: bool,
    /// Of the database that is open.
    events: Events,
    /// A handle of an earlier opening.
    stale: Option<ColumnFamily>,
    /// Something failed, and the history went on.
    passed_over: bool,
}

impl<'a> Run<'a> {
    /// A history from the start. The first of the configurations is opened first; `reopen next` goes through them.
    pub fn new(place: TestDir, configurations: Vec<Configuration>, observer: &'a mut dyn Observer) -> Self {
        let model = Model::new().with_ttl(place.ttl);
        Self { made: false, ..Self::from(place, configurations, model, observer) }
    }

    /// Continues with an existing database that agrees with the model.
    pub fn from(
        place: TestDir,
        configurations: Vec<Configuration>,
        model: Model,
        observer: &'a mut dyn Observer,
    ) -> Self {
        Self {
            place,
            configurations,
            current: 0,
            model,
            observer,
            seen: Vec::new(),
            made: true,
            events: Events::default(),
            stale: None,
            passed_over: false,
        }
    }

    /// What must be seen now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Plants a mistake into the model.
    pub fn plant(&mut self, model: Model) {
        self.model = model;
    }

    /// Hashes of the steps' results, one for each. They are the same for all configurations of a history.
    pub fn seen(&self) -> &[u64] {
        &self.seen
    }

    fn configuration(&self) -> Configuration {
        let all = &self.configurations;
        if all.is_empty() { Configuration::default() } else { all[self.current % all.len()].clone() }
    }

    fn options(&self) -> Options {
        self.place.options(&self.configuration())
    }

    fn open(&mut self) -> Result<Db, Trouble> {
        self.events = Events::default();
        let mut options = self.options();
        options.add_event_listener(self.events.clone());
        if self.made {
            options = existing(options);
        }
        self.place.make_root()?;
        let all = descriptors(&self.model.state, &options);
        let db = self.place.open_families(&options, &self.place.db(), all)?;
        self.made = true;
        Ok(db)
    }

    /// Checks that a handle of an earlier open is refused.
    fn check_stale_handle(&self, db: &Db) -> Result<(), Trouble> {
        let Some(handle) = &self.stale else { return Ok(()) };
        let calls = [db.get_cf(handle, "key").map(drop), db.put_cf(handle, "key", "stale"), db.flush_cf(handle)];
        for done in calls {
            if done.as_ref().err().map(rockmill::Error::kind) != Some(ErrorKind::InvalidArgument) {
                let what = format!("a call with it gives {done:?}");
                return Err(Trouble::Wrong(Difference::new("a handle of an earlier opening", what)));
            }
        }
        Ok(())
    }

    /// After the database was closed.
    fn check_events(&self, done: &[Step]) -> Result<(), Trouble> {
        let dropped = done.iter().any(|step| matches!(step, Step::Drop(_)));
        let told = self.events.check_closed(dropped);
        if self.passed_over {
            return Ok(());
        }
        told.map_err(|what| Trouble::Wrong(Difference::new("listeners", what)))
    }

    /// Runs the steps, and closes the database. Each call opens it again.
    ///
    /// # Errors
    /// The first failure that the observer does not accept.
    pub fn steps(&mut self, steps: &[Step]) -> Result<(), Failure> {
        let mut at = 0;
        loop {
            let mut tries = TRIES_MAX;
            let db = loop {
                match self.open() {
                    Ok(db) => break db,
                    Err(trouble) => {
                        let failure = self.failure(at, "open", trouble);
                        tries -= 1;
                        // Without a database, the history cannot continue.
                        if self.observer.failed(&failure, None) != Verdict::Again || tries == 0 {
                            return Err(failure);
                        }
                        self.passed_over = true;
                    }
                }
            };
            let db = Arc::new(db);
            self.observer.opened(at, &db);
            self.check_stale_handle(&db)
                .map_err(|trouble| self.failure(at, "a handle of an earlier opening", trouble))?;
            self.stale = Some(db.default_cf());
            self.events.open(&db);
            let events = self.events.clone();
            let end = Session::new(self, &db).run(steps, at);
            events.close();
            drop(db);
            let end = end?;
            self.check_events(&steps[at..end]).map_err(|trouble| self.failure(end, "close", trouble))?;
            let Some(step @ Step::Reopen(how)) = steps.get(end) else {
                self.model.closed();
                return Ok(());
            };
            self.observer.before(end, step);
            let mut tries = TRIES_MAX;
            loop {
                match self.between(*how) {
                    Ok(()) => break,
                    Err(trouble) => {
                        let failure = self.failure(end, &step.to_string(), trouble);
                        tries -= 1;
                        match self.observer.failed(&failure, None) {
                            Verdict::Stop => return Err(failure),
                            Verdict::Pass | Verdict::Took => {
                                self.passed_over = true;
                                break;
                            }
                            Verdict::Again if tries == 0 => return Err(failure),
                            Verdict::Again => {}
                        }
                    }
                }
            }
            self.model.apply(step);
            self.seen.push(0);
            let done = Done { step: end, what: Some(step), durable: false, model: &self.model };
            self.observer.after(&done);
            at = end + 1;
        }
    }

    /// While the database is closed.
    fn between(&mut self, how: Reopen) -> Result<(), Trouble> {
        let path = self.place.db();
        match how {
            Reopen::Same | Reopen::Swapped => {}
            Reopen::Next => self.current += 1,
            // Databases with a time to live cannot be opened in this way.
            Reopen::Stored | Reopen::ReadOnly if self.place.ttl => {}
            Reopen::Stored => {
                let mut loader = OptionsLoader::new();
                loader.comparator(Arc::new(FoldedComparator));
                let loaded = loader.env(&self.place.env()).load_latest(&path)?;
                // Objects that the file cannot create; the store temporarily runs without its filters.
                let filter = |name: &str| matches!(name, "compaction_filter" | "compaction_filter_factory");
                if let Some(w) = loaded.warnings.iter().find(|w| !filter(&w.name)) {
                    return Err(Trouble::Wrong(Difference::new("stored options", format!("{w:?}"))));
                }
                let mut options = existing(loaded.options);
                // No file says where tables are.
                options.set_db_paths(&self.options().db.db_paths);
                let db = Db::open_cf_descriptors(&options, &path, loaded.column_families)?;
                matches(&db, &self.model)?;
            }
            Reopen::Repaired => {
                let options = self.options();
                let mut repair = RepairOptions::default();
                descriptors(&self.model.state, &options).into_iter().for_each(|d| repair.add_column_family(d));
                let report = Db::repair_with(&options, &path, &repair)?;
                if let Some((file, why)) = report.damaged.first() {
                    return Err(Trouble::Wrong(Difference::new("repair", format!("{file} is damaged: {why}"))));
                }
            }
            Reopen::ReadOnly => {
                let options = existing(self.options());
                let all = descriptors(&self.model.state, &options);
                let db = Db::open_cf_descriptors_read_only(&options, &path, all, false)?;
                matches(&db, &self.model)?;
                drop(db);
                verify_tables(&self.place)?;
            }
        }
        Ok(())
    }

    fn failure(&self, step: usize, text: &str, trouble: Trouble) -> Failure {
        Failure { step, text: text.to_owned(), configuration: self.configuration().to_string(), trouble }
    }
}

/// Runs a whole history, and checks everything at the end, before and after a last open.
///
/// # Errors
/// The place of the failure.
pub fn replay(history: &History, run: &mut Run<'_>) -> Result<(), Failure> {
    run.steps(&history.steps)?;
    let at = history.steps.len();
    let checked = run.open().and_then(|db| Ok(matches(&db, &run.model)?));
    let checked = checked.and_then(|()| Ok(verify_tables(&run.place)?));
    checked.map_err(|trouble| run.failure(at, "at the end", trouble))
}

/// A hash of anything.
fn hash_one(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
