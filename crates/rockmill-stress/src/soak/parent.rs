//! The parent: starts children, kills them, limits their resources, and checks the databases that they leave.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::beside::{Reader, Readings};
use super::child::{self, Said};
use super::expected::{self, Expected};
use super::limits::{Arranged, Limit};
use super::mend;
use super::oracle::Ldb;
use super::report::{Failure, Report};
use super::sample::{self, Judging, SAMPLES_HEAD, Sample};
use super::settings::{Paths, Settings};
use rockmill_io::PosixFileSystem;
use rockmill_skip::Needs;

use crate::configuration::Configuration;
use crate::files::count_shared;

/// A kill during recovery comes at most this long after the start.
const EARLY_MAX: Duration = Duration::from_millis(300);
/// Bytes of the children's messages that a failure shows.
const LOG_TAIL: usize = 2000;
/// SIGABRT, with which a failed allocation ends a process, and SIGKILL, with which the kernel does for lack of memory.
const ABORTED: i32 = 6;
const KILLED: i32 = 9;
/// The standard library's message about a failed allocation before it aborts.
const NO_MEMORY: &str = "memory allocation of ";
/// In a run whose children are killed, one in this many parts of the time is for a child that lives until its memory
/// and handles can be judged.
const LONG_LIVES: u32 = 3;

/// The configurations to use: one, or another for each life, with some choices fixed.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    random: bool,
    fixed: Vec<(String, String)>,
}

impl FromStr for Choice {
    type Err = String;

    /// `random`, `AXIS=CHOICE,...`, or both: `random,format=5`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut new = Self::default();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty() && *p != "default") {
            match part.split_once('=') {
                None if part == "random" => new.random = true,
                None => return Err(format!("{part:?} is neither random nor AXIS=CHOICE")),
                Some((axis, choice)) => new.fixed.push((axis.to_owned(), choice.to_owned())),
            }
        }
        new.pick(&mut fastrand::Rng::with_seed(0)).map(|_| new)
    }
}

impl Choice {
    /// Another one for each life.
    pub fn random() -> Self {
        Self { random: true, fixed: Vec::new() }
    }

    /// Fixes one more choice, unless it is already fixed.
    #[must_use]
    pub fn or_fixed(mut self, axis: &str, choice: &str) -> Self {
        if !self.fixed.iter().any(|(a, _)| a == axis) {
            self.fixed.push((axis.to_owned(), choice.to_owned()));
        }
        self
    }

    fn pick(&self, rng: &mut fastrand::Rng) -> Result<Configuration, String> {
        let mut base = if self.random { Configuration::random(rng) } else { Configuration::default() };
        if base.get("strategy") == "fifo" {
            // Its tables keep the size that they were flushed with, and a life makes many.
            base = base.with("memtable", "1m")?;
        }
        self.fixed.iter().try_fold(base, |c, (axis, choice)| c.with(axis, choice))
    }
}

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program with the subcommands `stress-child`, `verify` and `downgrade`.
    pub program: PathBuf,
    /// What children do.
    pub settings: Settings,
    /// Where.
    pub paths: Paths,
    /// How long.
    pub duration: Duration,
    /// End earlier, after this many operations.
    pub ops_max: Option<u64>,
    /// Mean time from a child's readiness to its death; `None` to let it live.
    pub kill_every: Option<Duration>,
    /// How the store is configured.
    pub choice: Choice,
    /// The resource that is in short supply.
    pub limit: Option<Limit>,
    /// Mean time for which a limit holds, and for which it does not.
    pub limit_every: Duration,
    /// Number of deaths between checks by other programs; 0 for the end only.
    pub check_every: u64,
    /// One of this many deaths is followed by a repair; 0 for none.
    pub repair_every: u64,
    /// Another process reads the database concurrently with the child.
    pub read_beside: bool,
    /// RocksDB's `ldb`, if not the one in PATH.
    pub ldb: Option<PathBuf>,
    /// Between two samples.
    pub sample_every: Duration,
    /// When growth counts.
    pub judging: Judging,
    /// A child that completes no operation for this long counts as hanging.
    pub hang: Duration,
    /// The file to which samples are written, one per line.
    pub samples: Option<PathBuf>,
}

impl Plan {
    /// A run with nothing special about it.
    pub fn new(program: PathBuf, db: &Path) -> Self {
        Self {
            program,
            settings: Settings::default(),
            paths: Paths::of(db),
            duration: Duration::from_secs(60),
            ops_max: None,
            kill_every: Some(Duration::from_secs(5)),
            choice: Choice::default(),
            limit: None,
            limit_every: Duration::from_secs(2),
            check_every: 10,
            repair_every: 4,
            read_beside: true,
            ldb: None,
            sample_every: Duration::from_secs(1),
            judging: Judging { warm_up: 60.0, seconds_min: 120.0 },
            hang: Duration::from_secs(120),
            samples: None,
        }
    }
}

/// Checks that a run can begin, and creates its files, or continues a kept run with its seed, keys, column families and
/// values, which determine the database's contents. True if it continues one.
///
/// # Errors
/// Why it cannot begin; nothing was changed then.
pub fn prepare(plan: &mut Plan) -> Result<bool, String> {
    let failed = |path: &Path, e: &std::io::Error| format!("{}: {e}", path.display());
    let (paths, db) = (plan.paths.clone(), plan.paths.db.display().to_string());
    let kept = paths.settings().exists();
    if kept {
        // Someone else may have put links there, whose targets would be overwritten.
        let entries = std::fs::read_dir(&paths.home).map_err(|e| failed(&paths.home, &e))?;
        for entry in entries.filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                return Err(format!("{} is a link, which no stress run makes; remove it", entry.path().display()));
            }
        }
        let text = std::fs::read_to_string(paths.settings()).map_err(|e| failed(&paths.settings(), &e))?;
        let old = Settings::from_text(&text)?;
        let new = &mut plan.settings;
        (new.seed, new.keys, new.families) = (old.seed, old.keys, old.families);
        (new.value_min, new.value_max) = (old.value_min, old.value_max);
        (new.own_wals, new.hash_range) = (old.own_wals, old.hash_range);
    } else if std::fs::read_dir(&paths.db).is_ok_and(|mut d| d.next().is_some()) {
        return Err(format!("{db} exists and is of no stress run; give a new directory: what is there would be lost"));
    } else if paths.home.exists() {
        return Err(format!("{} exists and is of no stress run; give another name", paths.home.display()));
    }
    plan.settings.check()?;
    if let Some(Limit::Fsize(bytes)) = plan.limit
        && bytes < expected::file_bytes(&plan.settings)
    {
        let need = expected::file_bytes(&plan.settings);
        return Err(format!("fsize={bytes}: the expected state alone has {need} bytes; give more, or fewer keys"));
    }
    if plan.limit.is_some() && plan.choice.fixed.iter().any(|(a, c)| a == "wal" && c == "manual") {
        return Err("wal=manual and a limit exclude each other: what a write comes to is not known then".to_owned());
    }
    std::fs::create_dir_all(&paths.home).map_err(|e| failed(&paths.home, &e))?;
    std::fs::write(paths.settings(), plan.settings.to_text()).map_err(|e| failed(&paths.settings(), &e))?;
    if !kept {
        expected::create(&paths.expected(), &plan.settings).map_err(|e| failed(&paths.expected(), &e))?;
    }
    Ok(kept)
}

/// Prepares the limit.
///
/// # Errors
/// Why this machine does not support it.
pub fn arrange(plan: &Plan) -> Result<Option<Arranged>, String> {
    plan.limit.map(|limit| Arranged::new(limit, &plan.paths.db, &plan.paths.home)).transpose()
}

/// A child that runs.
struct Life {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Receiver<Option<Said>>,
    /// It has compared the database and works.
    ready: bool,
    counts: [u64; 4],
    progress: Instant,
    /// Reads beside it.
    reader: Option<Reader>,
    /// Bytes that the children's messages had before.
    log_from: u64,
    /// The control group's previous count of kills for lack of memory.
    oom_kills: Option<u64>,
}

/// How a life ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Killed,
    OutOfMemory,
    Refused,
    /// As it was told to.
    Done,
}

struct Run<'a> {
    plan: &'a Plan,
    limit: Option<Arranged>,
    rng: fastrand::Rng,
    report: Report,
    /// Counts of earlier lives.
    before: [u64; 4],
    samples: Vec<Sample>,
    samples_file: Option<File>,
    began: Instant,
    configuration: Configuration,
    used: BTreeSet<String>,
    formats: BTreeSet<String>,
    ldb: Option<Ldb>,
    next_toggle: Instant,
    next_sample: Instant,
    /// The end of the current or last child that lives until it can be judged; before the first one, the beginning.
    long_life_ends: Instant,
    progress: &'a mut dyn FnMut(&Report),
}

/// Runs the plan.
///
/// # Errors
/// What was wrong.
pub fn run(plan: &Plan, limit: Option<Arranged>, progress: &mut dyn FnMut(&Report)) -> Result<Report, Box<Failure>> {
    let mut run = Run::new(plan, limit, progress);
    let done = run.all();
    run.end(done)
}

/// Compares a kept run's database with its expected state, with the store and with the other programs.
///
/// # Errors
/// A description of the problems.
pub fn verify(plan: &Plan, limit: Option<Arranged>, progress: &mut dyn FnMut(&Report)) -> Result<Report, Box<Failure>> {
    let mut run = Run::new(plan, limit, progress);
    let done = run.pick().and_then(|()| run.check_dead()).and_then(|()| run.verify());
    run.end(done)
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, limit: Option<Arranged>, progress: &'a mut dyn FnMut(&Report)) -> Self {
        let mut report = Report::default();
        // RocksDB does not support the order by hash, and does not open such a database.
        let ldb = (!plan.settings.hash_range).then(|| Ldb::find(plan.ldb.as_deref())).and_then(|ldb| {
            ldb.map_err(|e| report.skipped.insert("checks by RocksDB".to_owned(), Needs::Ldb.because(e))).ok()
        });
        let mut formats = BTreeSet::new();
        for line in std::fs::read_to_string(plan.paths.own("configurations")).unwrap_or_default().lines() {
            let known = line.split_once(' ').and_then(|(_, c)| c.parse::<Configuration>().ok());
            formats.extend(known.map(|c| c.get("format").to_owned()));
        }
        let now = Instant::now();
        Self {
            plan,
            limit,
            rng: fastrand::Rng::with_seed(plan.settings.seed),
            report,
            before: [0; 4],
            samples: Vec::new(),
            samples_file: None,
            began: now,
            configuration: Configuration::default(),
            used: BTreeSet::new(),
            formats,
            ldb,
            next_toggle: now + plan.limit_every,
            next_sample: now,
            long_life_ends: now,
            progress,
        }
    }

    fn end(mut self, done: Result<(), String>) -> Result<Report, Box<Failure>> {
        self.report.seconds = self.began.elapsed().as_secs_f64();
        self.report.trends = sample::trends(&self.samples, self.plan.judging);
        let grew: Vec<String> = self.report.trends.iter().filter(|t| t.grew).map(growth).collect();
        let text = match done {
            Err(text) => text,
            Ok(()) if grew.is_empty() => return Ok(self.report),
            Ok(()) => grew.join("\n"),
        };
        Err(Box::new(Failure { text, configuration: self.configuration.to_string(), report: self.report }))
    }

    /// The whole run.
    fn all(&mut self) -> Result<(), String> {
        loop {
            self.pick()?;
            match self.live()? {
                End::Done => break,
                End::Killed => {
                    self.report.kills += 1;
                    let every = self.plan.check_every;
                    if every > 0 && self.report.kills.is_multiple_of(every) {
                        self.check_dead()?;
                    }
                    // A repair writes, which a limit may prevent.
                    if !self.limit.as_ref().is_some_and(|l| l.on) {
                        self.mend()?;
                    }
                }
                End::OutOfMemory => self.report.memory_deaths += 1,
                End::Refused => {
                    self.report.refused_starts += 1;
                    self.limit(false, None)?;
                }
            }
        }
        self.check_dead()?;
        self.verify()
    }

    /// The next life's configuration.
    fn pick(&mut self) -> Result<(), String> {
        self.configuration = self.plan.choice.pick(&mut self.rng)?;
        if self.plan.limit.is_some() && self.configuration.get("wal") == "manual" {
            self.configuration = self.configuration.clone().with("wal", "new")?;
        }
        Ok(())
    }

    fn life_number(&self) -> u64 {
        self.report.lives
    }

    /// Starts a child.
    fn start(&mut self, verify_only: bool) -> Result<Life, String> {
        self.report.lives += 1;
        if let Some((what, missing)) = self.configuration.skipped() {
            self.report.skipped.insert(what, missing);
        }
        let text = self.configuration.to_string();
        let failed = |e: std::io::Error| format!("cannot start a child: {e}");
        let log = |name: &str| OpenOptions::new().create(true).append(true).open(self.plan.paths.own(name));
        writeln!(log("configurations").map_err(failed)?, "{} {text}", self.life_number()).map_err(failed)?;
        self.formats.insert(self.configuration.get("format").to_owned());
        self.used.insert(text.clone());
        self.report.configurations = self.used.len();
        let mut command = match &self.limit {
            Some(limit) => limit.command(&self.plan.program),
            None => Command::new(&self.plan.program),
        };
        command.arg("stress-child").arg(&self.plan.paths.db);
        command.args(["--life", &self.life_number().to_string(), "--config", &text]);
        if let Some(limit) = self.plan.limit {
            command.args(["--limit", &limit.to_string()]);
        }
        if self.limit.as_ref().is_some_and(|l| l.on) {
            command.arg("--limited");
        }
        if verify_only {
            command.arg("--verify-only");
        }
        let said = log("children.log").map_err(failed)?;
        let log_from = said.metadata().map_err(failed)?.len();
        let oom_kills = self.limit.as_ref().and_then(Arranged::oom_kills);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("a child has no output")?;
        let (send, said) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for said in lines.filter_map(|line| Said::parse(&line)) {
                let _ = send.send(Some(said));
            }
            let _ = send.send(None);
        });
        let (progress, reader) = (Instant::now(), None);
        Ok(Life { child, stdin, said, ready: false, counts: [0; 4], progress, reader, log_from, oom_kills })
    }

    /// A time around this mean.
    fn around(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(0.2 + 1.6 * self.rng.f64())
    }

    /// Starts a child and supervises it until its end.
    fn live(&mut self) -> Result<End, String> {
        let mut life = self.start(false)?;
        let ended = self.watch(&mut life, true);
        // Whatever happened, it must not go on.
        let _ = life.child.kill();
        let _ = life.child.wait();
        let read = self.stop_reader(&mut life);
        for (before, count) in self.before.iter_mut().zip(life.counts) {
            *before += count;
        }
        read.and(ended)
    }

    /// Ends the reads that run next to a child.
    fn stop_reader(&mut self, life: &mut Life) -> Result<(), String> {
        let Some(reader) = life.reader.take() else { return Ok(()) };
        let Readings { whole, keys, passed_over, failure } = reader.stop();
        self.report.readings += whole;
        self.report.readings_passed_over += passed_over;
        self.report.checked += keys;
        failure.map_or(Ok(()), Err)
    }

    /// Now and then, repairs a killed database.
    fn mend(&mut self) -> Result<(), String> {
        let (plan, every) = (self.plan, self.plan.repair_every);
        if every == 0 || self.rng.u64(..every) != 0 || !plan.paths.db.join("CURRENT").exists() {
            return Ok(());
        }
        if self.rng.bool() {
            self.report.checked += mend::repair_copy(&plan.paths, &plan.settings, &self.configuration)?;
            self.report.repaired_copies += 1;
        } else {
            mend::repair_in_place(&plan.paths, &plan.settings, &self.configuration)?;
            self.report.repaired += 1;
        }
        Ok(())
    }

    /// Supervises a child until its end; kills and limits it meanwhile if `harass` is set.
    fn watch(&mut self, life: &mut Life, harass: bool) -> Result<End, String> {
        let spared = harass && self.spares();
        let kill_every = self.plan.kill_every.filter(|_| harass && !spared);
        let started = Instant::now();
        let deadline = self.began + self.plan.duration;
        let early = kill_every.is_some() && self.rng.u8(..5) == 0;
        let mut kill_at = early.then(|| started + EARLY_MAX.mul_f64(self.rng.f64()));
        let mut stopping = false;
        loop {
            let now = Instant::now();
            let mut until = self.next_sample.min(now + Duration::from_millis(200));
            until = kill_at.map_or(until, |at| until.min(at));
            match life.said.recv_timeout(until.saturating_duration_since(now)) {
                Ok(Some(said)) => {
                    let was_ready = life.ready;
                    if let Some(end) = self.heard(life, said)? {
                        let status = life.child.wait().map_err(|e| format!("cannot wait for a child: {e}"))?;
                        let well = status.success() || end == End::Refused;
                        return if well { Ok(end) } else { self.ended(life, status) };
                    }
                    if life.ready && !was_ready && harass && self.plan.read_beside {
                        let seed = self.rng.u64(..);
                        let Plan { paths, settings, .. } = self.plan;
                        life.reader = Some(Reader::start(paths, settings, &self.configuration, seed));
                    }
                    if life.ready && !was_ready && spared {
                        self.long_life_ends = Instant::now() + self.plan.judging.needs();
                        kill_at = Some(self.long_life_ends);
                    } else if life.ready && !was_ready && kill_at.is_none() {
                        kill_at = kill_every.map(|mean| Instant::now() + self.around(mean));
                    }
                }
                Ok(None) | Err(RecvTimeoutError::Disconnected) => {
                    let status = life.child.wait().map_err(|e| format!("cannot wait for a child: {e}"))?;
                    return self.ended(life, status);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(text) = life.reader.as_ref().and_then(Reader::failure) {
                return Err(text);
            }
            let now = Instant::now();
            self.sample(life, now);
            if life.progress.elapsed() > self.plan.hang {
                return Err(self.hang(life));
            }
            let enough = self.plan.ops_max.is_some_and(|most| self.report.ops >= most);
            if life.ready && !stopping && (now >= deadline || enough) {
                stopping = true;
                kill_at = None;
                self.limit(false, Some(life))?;
                // The child resolves unknown operations at its end.
                self.stop_reader(life)?;
                life.progress = Instant::now();
                tell(life, "stop");
            }
            if kill_at.is_some_and(|at| now >= at) {
                self.report.kills_in_recovery += u64::from(!life.ready);
                life.child.kill().map_err(|e| format!("cannot kill a child: {e}"))?;
                let _ = life.child.wait();
                // Its earlier output counts.
                while let Ok(Some(said)) = life.said.recv() {
                    self.heard(life, said)?;
                }
                return Ok(End::Killed);
            }
            if harass && !stopping && now >= self.next_toggle && self.toggles() {
                let on = !self.limit.as_ref().is_some_and(|l| l.on);
                self.limit(on, Some(life))?;
                self.next_toggle = now + self.around(self.plan.limit_every);
            }
        }
    }

    /// True if the next child should live until its resource usage can be judged.
    fn spares(&self) -> bool {
        let now = Instant::now();
        let left = (self.began + self.plan.duration).saturating_duration_since(now);
        let since_last = now.saturating_duration_since(self.long_life_ends);
        self.plan.kill_every.is_some() && is_time_for_a_long_life(since_last, left, self.plan.judging.needs())
    }

    fn toggles(&self) -> bool {
        self.plan.limit.is_some_and(|l| l.comes_and_goes())
    }

    /// Sets or lifts the limit, and tells the child.
    fn limit(&mut self, on: bool, life: Option<&mut Life>) -> Result<(), String> {
        let Some(limit) = &mut self.limit else { return Ok(()) };
        self.report.limited += u64::from(on && !limit.on);
        // Announced before it is set and after it is lifted, so that the child always knows.
        match life {
            Some(life) if on => {
                tell(life, "limited");
                limit.set(on, Some(life.child.id()), &mut self.rng)
            }
            Some(life) => {
                limit.set(on, Some(life.child.id()), &mut self.rng)?;
                tell(life, "unlimited");
                Ok(())
            }
            None => limit.set(on, None, &mut self.rng),
        }
    }

    /// Processes a child's message; returns the child's end, if the message was that.
    fn heard(&mut self, life: &mut Life, said: Said) -> Result<Option<End>, String> {
        let report = &mut self.report;
        match said {
            Said::Opened(ms) => report.open_ms_max = report.open_ms_max.max(ms),
            Said::Verified(keys) => {
                report.verifications += 1;
                report.checked += keys;
                life.ready = true;
            }
            Said::Counts(counts) => {
                if counts == life.counts {
                    return Ok(None);
                }
                let checked = counts[2] - life.counts[2];
                life.counts = counts;
                report.checked += checked;
                let [ops, writes, _, refused] = self.before;
                (report.ops, report.writes) = (ops + counts[0], writes + counts[1]);
                report.refused = refused + counts[3];
            }
            Said::Background(_) => report.background_errors += 1,
            Said::Resumed(ms) => {
                report.resumed += 1;
                report.resume_ms_max = report.resume_ms_max.max(ms);
            }
            Said::Failed(text) => return Err(text),
            Said::Refused(_) => return Ok(Some(End::Refused)),
            Said::Done => return Ok(Some(End::Done)),
        }
        life.progress = Instant::now();
        Ok(None)
    }

    /// A child ended without a word.
    fn ended(&self, life: &Life, status: ExitStatus) -> Result<End, String> {
        use std::os::unix::process::ExitStatusExt as _;
        let memory = matches!(self.plan.limit, Some(Limit::Memory(_)));
        let text = std::fs::read(self.plan.paths.own("children.log")).unwrap_or_default();
        let said = String::from_utf8_lossy(&text[text.len().min(life.log_from as usize)..]).into_owned();
        let kills = self.limit.as_ref().and_then(Arranged::oom_kills);
        // Without a control group, there is no count.
        let counted = life.oom_kills.zip(kills).is_none_or(|(before, now)| now > before);
        if memory && status.signal().is_some_and(|signal| is_want_of_memory(signal, &said, counted)) {
            return Ok(End::OutOfMemory);
        }
        Err(format!("the child ended by itself: {status}{}", self.log_tail()))
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read(self.plan.paths.own("children.log")).unwrap_or_default();
        let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_TAIL)..]).trim().to_owned();
        if tail.is_empty() { String::new() } else { format!("; it said:\n{tail}") }
    }

    /// Describes what a hanging child waits for.
    fn hang(&self, life: &Life) -> String {
        let mut text = format!("nothing was completed for {:?}; the child's threads:", self.plan.hang);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", life.child.id()));
        for task in tasks.into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (name, waits) = (read("comm"), read("wchan"));
            text.push_str(&format!("\n  {}: {}", name.trim(), waits.trim()));
        }
        text
    }

    fn sample(&mut self, life: &Life, now: Instant) {
        if now < self.next_sample {
            return;
        }
        self.next_sample = now + self.plan.sample_every;
        self.report.seconds = self.began.elapsed().as_secs_f64();
        if life.ready {
            let (pid, number) = (life.child.id(), self.life_number());
            match sample::look(pid, &self.plan.paths.db, self.report.seconds, number) {
                Some(mut sample) => {
                    sample.disk += sample::disk_bytes(&self.plan.paths.wals());
                    self.report.memory_now = sample.memory;
                    self.write_sample(&sample);
                    self.samples.push(sample);
                }
                None if !Path::new("/proc/self/status").exists() => {
                    let why = Needs::Proc.because("this system has no /proc");
                    self.report.skipped.insert("samples of memory and handles".to_owned(), why);
                }
                None => {}
            }
        }
        (self.progress)(&self.report);
    }

    /// Writes a line of the samples' file; a failure does not end the run.
    fn write_sample(&mut self, s: &Sample) {
        let Some(path) = &self.plan.samples else { return };
        let new = self.samples.is_empty();
        if new {
            self.samples_file = rockmill_io::report::create(path).ok();
        }
        let Some(file) = &mut self.samples_file else { return };
        let head = if new { SAMPLES_HEAD } else { "" };
        let (at, life, memory) = (s.at, s.life, s.memory);
        let _ = writeln!(file, "{head}{at:.1}\t{life}\t{memory}\t{}\t{}\t{}", s.handles, s.threads, s.disk);
    }

    /// Lets other programs check a closed database.
    fn check_dead(&mut self) -> Result<(), String> {
        let (plan, paths) = (self.plan, &self.plan.paths);
        // Killed before it made the database.
        if !paths.db.join("CURRENT").exists() {
            return Ok(());
        }
        if let Some(ldb) = &self.ldb {
            match ldb.reads(self.formats.iter().map(String::as_str)) {
                Err(reason) => {
                    let missing = Needs::PeerFeature.because(reason);
                    self.report.skipped.insert("checks by RocksDB".to_owned(), missing);
                }
                Ok(()) => {
                    let expected = Expected::open(&paths.expected(), &plan.settings)?;
                    let copy = paths.own("for-ldb");
                    let wals = plan.settings.own_wals.then(|| paths.wals());
                    match ldb.check((&paths.db, wals.as_deref()), &copy, &plan.program, &plan.settings, &expected)? {
                        Some(checked) => {
                            self.report.oracle_keys += checked.keys;
                            self.report.oracle_checks += 1;
                            self.report.oracle_downgraded += u64::from(checked.downgraded);
                        }
                        None => self.report.oracle_passed_over += 1,
                    }
                }
            }
        }
        let out = Command::new(&plan.program).arg("verify").arg(&paths.db).stdin(Stdio::null()).output();
        let out = out.map_err(|e| format!("cannot run {} verify: {e}", plan.program.display()))?;
        if !out.status.success() {
            let said = [out.stdout, out.stderr].concat();
            return Err(format!("rockmill verify of the dead database: {}", String::from_utf8_lossy(&said).trim()));
        }
        self.report.file_checks += 1;
        let shared = count_shared(&PosixFileSystem::default(), &paths.db);
        self.report.shared_tables += shared.map_err(|e| format!("the MANIFEST of the dead database: {e}"))?;
        Ok(())
    }

    /// A child that only compares.
    fn verify(&mut self) -> Result<(), String> {
        let mut life = self.start(true)?;
        let ended = self.watch(&mut life, false);
        let _ = life.child.kill();
        let _ = life.child.wait();
        match ended? {
            End::Done => Ok(()),
            end => Err(format!("the last verification did not come to its end: {end:?}{}", self.log_tail())),
        }
    }
}

/// True if a child with a memory limit died for lack of memory: by the kernel's kill, which its control group counts,
/// or by the abort after a failed allocation, with its message. Any other abort is not.
fn is_want_of_memory(signal: i32, said: &str, counted: bool) -> bool {
    match signal {
        KILLED => counted,
        // zlib panics without memory; the store catches that, and leaves the block uncompressed.
        ABORTED => {
            let panicked = said.lines().any(|line| line.contains("panicked at") && !line.contains("/zlib-rs-"));
            said.contains(NO_MEMORY) && !panicked
        }
        _ => false,
    }
}

/// True if the next child should be spared: the last spared one is long enough ago that such lives have their share of
/// the time, and enough time is left to judge one.
fn is_time_for_a_long_life(since_last: Duration, left: Duration, needs: Duration) -> bool {
    left > needs && since_last >= needs * (LONG_LIVES - 1)
}

fn tell(life: &mut Life, order: &str) {
    if let Some(stdin) = &mut life.stdin {
        // A dead child is noticed by its end.
        let _ = stdin.write_all(format!("{order}\n").as_bytes());
    }
}

/// A trend in words.
fn growth(trend: &sample::Trend) -> String {
    let amount = |n: f64| if trend.what.is_bytes() { format!("{:.1} MiB", n / 1048576.0) } else { format!("{n:.1}") };
    format!(
        "{} grew: by {} an hour, fitted through {} samples over {:.0} s (from {} to {})",
        trend.what.name(),
        amount(trend.per_hour),
        trend.samples,
        trend.seconds,
        amount(trend.least),
        amount(trend.most)
    )
}

/// The exit code of a child whose parent has ended.
pub const EXIT_ORPHAN: u8 = child::EXIT_ORPHAN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_allocation_or_a_counted_kill_is_want_of_memory() {
        assert!(is_want_of_memory(ABORTED, "memory allocation of 4096 bytes failed\n", true));
        assert!(is_want_of_memory(KILLED, "", true));
        let caught = "thread 'x' panicked at /registry/zlib-rs-0.6.8/src/deflate.rs:137:9:\n";
        assert!(is_want_of_memory(ABORTED, &format!("{caught}memory allocation of 8192 bytes failed\n"), true));
        // In an earlier version, each of these counted as lack of memory.
        for (signal, said, counted) in [
            (ABORTED, "", true),
            (ABORTED, "malloc(): corrupted top size\n", true),
            (ABORTED, "thread 'main' panicked at src/lib.rs:1:1:\nindex out of bounds\n", true),
            (ABORTED, "thread panicked at x\nmemory allocation of 9 bytes failed\n", true),
            (KILLED, "", false),
        ] {
            assert!(!is_want_of_memory(signal, said, counted), "{signal} {said:?}");
        }
    }

    #[test]
    fn a_share_of_the_time_is_for_lives_that_are_long_enough() {
        let needs = Duration::from_secs(200);
        let (mut last, mut spared, mut now) = (0, 0, 0);
        // An hour of lives of six seconds, except for spared ones.
        while now < 3600 {
            let (since, left) = (Duration::from_secs(now - last), Duration::from_secs(3600 - now));
            let long = is_time_for_a_long_life(since, left, needs);
            now += if long { needs.as_secs() } else { 6 };
            if long {
                spared += needs.as_secs();
                last = now;
            }
        }
        assert!((900..=1300).contains(&spared), "{spared} s of an hour");
    }

    #[test]
    fn configurations_are_random_but_for_what_is_fixed() {
        let choice: Choice = "random,format=5,wal=recycled".parse().expect("a choice");
        let mut rng = fastrand::Rng::with_seed(3);
        let all: BTreeSet<String> = (0..20)
            .map(|_| {
                let c = choice.pick(&mut rng).expect("a configuration");
                assert_eq!((c.get("format"), c.get("wal")), ("5", "recycled"));
                c.to_string()
            })
            .collect();
        assert!(all.len() > 10);
        assert!("random,colour=red".parse::<Choice>().unwrap_err().contains("colour"));
        assert!("steam".parse::<Choice>().unwrap_err().contains("neither"));
        let one: Choice = "compression=lz4".parse().expect("a choice");
        assert_eq!(one.pick(&mut rng).expect("one").to_string(), "compression=lz4");
    }
}
