//! `rockmill stress`: a database under load, killed and checked, in `rockmill_stress::soak`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::modifiers::UTF8_ROUND_CORNERS;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use indicatif::ProgressBar;
use rockmill_stress::configuration::Configuration;
use rockmill_stress::soak::child::{self, Orders};
use rockmill_stress::soak::limits::Limit;
use rockmill_stress::soak::parent::{self, Choice, Plan};
use rockmill_stress::soak::report::{Failure, Report};
use rockmill_stress::soak::sample::{SAMPLES_HEAD, Trend};
use rockmill_stress::soak::scenario::{self, SCENARIOS, Scenario};
use rockmill_stress::soak::settings::{ACTS, Paths};
use serde_json::{Map, Value, json};

use crate::args::parse_size;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::progress;

/// How often a progress line is printed if standard output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Run random operations on a new database, kill them at random moments, and check that nothing is lost
///
/// A child process works on the database with many threads; this one kills it (SIGKILL), starts it again, and so on.
/// DB.stress/expected records every acknowledged write. After each start the whole database is compared with it, and
/// every read is compared while the run goes on. From time to time `rockmill verify` and RocksDB's `ldb`, if it is
/// installed, check what a kill left. Memory, file handles, threads and disk space are sampled; the run fails if they
/// keep growing after a warm-up.
///
/// Exit code 1 if something was lost, wrong or growing: the message names it, and DB and DB.stress are kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Shares of operations need not add up to 100: --writes 60 makes twice as many puts as there are by default.

Examples:
  rockmill stress /tmp/s --duration 60s
  rockmill stress /tmp/s --duration 2h --config random --kill-every 10s --threads 16 --keys 1000000
  rockmill stress /tmp/s --config compression=zstd,direct=yes --value-size 1K-64K --kill-every never
  rockmill stress /tmp/s --limit space=64M --keys 5000 --duration 5m
  rockmill stress /tmp/s --scenario all --duration 1h
  rockmill stress /tmp/s --verify")]
pub struct StressArgs {
    /// Database directory, new or of a run that was kept
    pub db: PathBuf,
    /// How long (30s, 10m, 2h); over all scenarios together
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    pub duration: Duration,
    /// End earlier, after N operations
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,
    /// A run by name, or `all` of them one after the other; `list` shows them
    #[arg(long, value_name = "NAME")]
    pub scenario: Option<String>,
    /// Only compare what a kept run left
    #[arg(long, conflicts_with = "scenario")]
    pub verify: bool,
    /// Seed of all random choices; how threads interleave stays random [default: any]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Threads [default: 8]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Keys in each column family [default: 20000]
    #[arg(long, value_name = "N")]
    pub keys: Option<u32>,
    /// Bytes of values [default: 20-400]
    #[arg(long, value_name = "SIZE|MIN-MAX", value_parser = parse_value_size)]
    pub value_size: Option<(u32, u32)>,
    /// Column families; there is one more, of counters [default: 3]
    #[arg(long, value_name = "N")]
    pub column_families: Option<usize>,
    /// One of N writes of a thread is synced; 0 for none [default: 1000]
    #[arg(long, value_name = "N")]
    pub sync_every: Option<u64>,
    /// AXIS=CHOICE,... or `random` (another for each life), or both: random,format=5
    #[arg(long, value_name = "CONFIG")]
    pub config: Option<Choice>,
    /// Mean time from a child's readiness to its death, or `never` [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_pause)]
    pub kill_every: Option<Pause>,
    /// What is short: fsize=SIZE, space=SIZE, files=N (now and then) or memory=SIZE
    #[arg(long, value_name = "LIMIT")]
    pub limit: Option<Limit>,
    /// Mean time for which a limit holds, and for which it does not [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub limit_every: Option<Duration>,
    /// Deaths between two checks by RocksDB and `rockmill verify`; 0 checks at the end only [default: 10]
    #[arg(long, value_name = "N")]
    pub check_every: Option<u64>,
    /// RocksDB's ldb [default: that in PATH]
    #[arg(long, value_name = "PROGRAM")]
    pub ldb: Option<PathBuf>,
    /// Write samples of memory, handles, threads and disk to this file
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Between two samples
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1s")]
    pub sample_every: Duration,
    /// Samples of the beginning of a life that do not count
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    pub warm_up: Duration,
    /// Growth over less than this, after the warm-up, is not judged
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "120s")]
    pub judge_after: Duration,
    /// Time without a completed operation after which a child is taken to hang
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "120s")]
    pub hang: Duration,
    /// Keep DB and DB.stress even when all is well
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shares: ShareArgs,
    /// Leak BYTES with each operation, to see the run fail
    #[arg(long, value_name = "BYTES", hide = true)]
    pub leak: Option<usize>,
}

/// Shares of operations.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Shares of operations")]
#[allow(missing_docs)]
pub struct ShareArgs {
    #[arg(long, value_name = "SHARE", help = "Lookups [default: 33]")]
    pub reads: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Many lookups in one call [default: 4]")]
    pub multi_reads: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Iterators [default: 8]")]
    pub iterations: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Snapshots, read twice [default: 1]")]
    pub snapshots: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Puts [default: 30]")]
    pub writes: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Batches over several column families [default: 7]")]
    pub batches: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Deletions, some of them single deletions [default: 9]")]
    pub deletes: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Range deletions [default: 0.8]")]
    pub range_deletes: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Merges [default: 7]")]
    pub merges: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Ingested tables [default: 0.06]")]
    pub ingests: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Checkpoints, opened and compared [default: 0.01]")]
    pub checkpoints: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Backups, some restored and compared [default: 0.01]")]
    pub backups: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Flushes [default: 0.1]")]
    pub flushes: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Manual compactions [default: 0.018]")]
    pub compactions: Option<f64>,
    #[arg(long, value_name = "SHARE", help = "Column families dropped and created again [default: 0.002]")]
    pub clears: Option<f64>,
}

impl ShareArgs {
    /// In the order of [`ACTS`].
    fn all(&self) -> [Option<f64>; ACTS.len()] {
        [
            self.reads,
            self.multi_reads,
            self.iterations,
            self.snapshots,
            self.writes,
            self.batches,
            self.deletes,
            self.range_deletes,
            self.merges,
            self.ingests,
            self.checkpoints,
            self.backups,
            self.flushes,
            self.compactions,
            self.clears,
        ]
    }
}

/// Be the process that works on the database and is killed (started by `rockmill stress`)
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// Database directory
    pub db: PathBuf,
    /// Which life it is
    #[arg(long)]
    pub life: u64,
    /// The configuration
    #[arg(long)]
    pub config: Configuration,
    /// What will be short
    #[arg(long)]
    pub limit: Option<Limit>,
    /// It is from the beginning
    #[arg(long)]
    pub limited: bool,
    /// Compare and end
    #[arg(long)]
    pub verify_only: bool,
}

/// A time, or no end.
#[derive(Debug, Clone, Copy)]
pub enum Pause {
    /// So long.
    For(Duration),
    /// For ever.
    Ever,
}

fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let bad = || format!("{text:?} is not a time: use seconds, or a number with ms, s, m or h (for example 10m)");
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..at].parse().map_err(|_| bad())?;
    let unit = match &text[at..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(number * unit).map_err(|_| bad())
}

fn parse_pause(text: &str) -> std::result::Result<Pause, String> {
    match text {
        "never" | "0" => Ok(Pause::Ever),
        _ => parse_time(text).map(Pause::For),
    }
}

fn parse_value_size(text: &str) -> std::result::Result<(u32, u32), String> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let size = |text: &str| parse_size(text).and_then(|n| u32::try_from(n).map_err(|_| format!("{text}: too large")));
    Ok((size(min)?, size(max)?))
}

/// `rockmill stress-child`
pub fn child(args: &ChildArgs) -> Result<()> {
    let (db, configuration) = (args.db.clone(), args.config.clone());
    let (life, limit, limited) = (args.life, args.limit, args.limited);
    let orders = Orders { db, life, configuration, limit, limited, verify_only: args.verify_only };
    std::process::exit(child::run(&orders).into());
}

/// What an interruption leaves. The child does not see the signal, and ends because its input does.
pub fn kept(args: &StressArgs) -> String {
    let all = args.scenario.as_deref() == Some("all");
    let paths = Paths::of(&if all { of_scenario(&args.db, "SCENARIO") } else { args.db.clone() });
    let (db, home) = (paths.db.display(), paths.home.display());
    if all {
        return format!("{db} and {home} of the scenario in progress are kept");
    }
    let scenario = args.scenario.as_deref().and_then(|name| scenario::by_name(name).ok());
    let plan = plan_of(args, &args.db, scenario, args.duration, 0);
    // This limit mounts the file system that the database is in.
    let limit = plan.ok().and_then(|plan| plan.limit).filter(|limit| matches!(limit, Limit::Space(_)));
    let limit = limit.map_or_else(String::new, |limit| format!(" --limit {limit}"));
    format!("{db} and {home} are kept; `rockmill stress {db}{limit} --verify` compares them")
}

/// The database of one of several scenarios.
fn of_scenario(db: &Path, scenario: &str) -> PathBuf {
    let mut name = db.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{scenario}"));
    db.with_file_name(name)
}

/// `rockmill stress`
pub fn run(args: &StressArgs, out: &mut Out) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    match args.scenario.as_deref() {
        Some("list") => {
            let width = SCENARIOS.iter().map(|s| s.name.len()).max().unwrap_or(0);
            SCENARIOS.iter().try_for_each(|s| out.line(format!("{:width$}  {}", s.name, s.about)))
        }
        Some("all") => {
            let part = args.duration / SCENARIOS.len() as u32;
            for s in SCENARIOS {
                one(args, &of_scenario(&args.db, s.name), Some(s), part, seed, out)?;
            }
            Ok(())
        }
        Some(name) => {
            let scenario = scenario::by_name(name).map_err(CliError::usage)?;
            one(args, &args.db, Some(scenario), args.duration, seed, out)
        }
        None => one(args, &args.db, None, args.duration, seed, out),
    }
}

fn plan_of(args: &StressArgs, db: &Path, scenario: Option<&Scenario>, duration: Duration, seed: u64) -> Result<Plan> {
    let program = std::env::current_exe().map_err(|e| CliError::io("cannot find this program", &e))?;
    let mut plan = Plan::new(program, db);
    if let Some(scenario) = scenario {
        (scenario.apply)(&mut plan);
    }
    let settings = &mut plan.settings;
    settings.seed = seed;
    settings.threads = args.threads.unwrap_or(settings.threads);
    settings.keys = args.keys.unwrap_or(settings.keys);
    settings.families = args.column_families.unwrap_or(settings.families);
    settings.sync_every = args.sync_every.unwrap_or(settings.sync_every);
    settings.leak = args.leak.unwrap_or(0);
    (settings.value_min, settings.value_max) = args.value_size.unwrap_or((settings.value_min, settings.value_max));
    for (share, given) in settings.shares.iter_mut().zip(args.shares.all()) {
        *share = given.unwrap_or(*share);
    }
    plan.duration = duration;
    plan.ops_max = args.ops;
    plan.choice = args.config.clone().unwrap_or(plan.choice);
    plan.limit = args.limit.or(plan.limit);
    plan.limit_every = args.limit_every.unwrap_or(plan.limit_every);
    plan.check_every = args.check_every.unwrap_or(plan.check_every);
    plan.ldb = args.ldb.clone();
    plan.samples = args.samples.clone();
    plan.sample_every = args.sample_every;
    plan.judging.warm_up = args.warm_up.as_secs_f64();
    plan.judging.seconds_min = args.judge_after.as_secs_f64();
    plan.hang = args.hang;
    match args.kill_every {
        Some(Pause::For(mean)) => plan.kill_every = Some(mean),
        Some(Pause::Ever) => plan.kill_every = None,
        None => {}
    }
    Ok(plan)
}

/// One run.
fn one(
    args: &StressArgs,
    db: &Path,
    scenario: Option<&Scenario>,
    duration: Duration,
    seed: u64,
    out: &mut Out,
) -> Result<()> {
    let mut plan = plan_of(args, db, scenario, duration, seed)?;
    if let Some(path) = &args.samples {
        let is_ours = |head: &str| head.starts_with(SAMPLES_HEAD.trim_end());
        rockmill_bench::check_output(path, is_ours).map_err(CliError::usage)?;
    }
    let name = scenario.map_or("stress", |s| s.name);
    if args.verify && !plan.paths.settings().exists() {
        let home = plan.paths.home.display();
        return Err(CliError::usage(format!("{home}: no kept run to compare {} with", db.display())));
    }
    let kept = parent::prepare(&mut plan).map_err(CliError::usage)?;
    let limit = match parent::arrange(&plan) {
        Ok(limit) => limit,
        Err(reason) => {
            let limit = plan.limit.map(|l| l.to_string()).unwrap_or_default();
            if !kept {
                let _ = std::fs::remove_dir_all(&plan.paths.home);
                let _ = std::fs::remove_dir(&plan.paths.db);
            }
            // One of several scenarios: the others continue.
            if scenario.is_some() && args.scenario.as_deref() == Some("all") {
                return out.line(format!("skipped: {name}: the limit {limit} is not available: {reason}"));
            }
            return Err(CliError::usage(format!("the limit {limit} is not available on this machine: {reason}")));
        }
    };
    let bar = progress::count("stress", duration.as_secs().max(1), out.quiet);
    let mut next_line = Instant::now() + LINE_EVERY;
    let mut show = |report: &Report| {
        bar.set_position(report.seconds as u64);
        bar.set_message(in_short(report));
        if bar.is_hidden() && !out.quiet && Instant::now() >= next_line {
            next_line += LINE_EVERY;
            output::tell(&format!("{name}: {}: {}", output::seconds(report.seconds), in_short(report)));
        }
    };
    let done = match args.verify {
        true => parent::verify(&plan, limit, &mut show),
        false => parent::run(&plan, limit, &mut show),
    };
    finish(&bar);
    match done {
        Ok(report) => {
            print(name, &plan, &report, "ok", out)?;
            if !args.keep && !args.verify {
                remove(&plan.paths.db)?;
                remove(&plan.paths.home)?;
            }
            Ok(())
        }
        Err(failure) => {
            print(name, &plan, &failure.report, "FAILED", out)?;
            Err(failed(args, &plan, scenario, &failure))
        }
    }
}

fn finish(bar: &ProgressBar) {
    bar.finish_and_clear();
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::io(format_args!("cannot remove {}", path.display()), &e))
        }
        _ => Ok(()),
    }
}

/// Reports a failure, and how to reproduce it.
fn failed(args: &StressArgs, plan: &Plan, scenario: Option<&Scenario>, failure: &Failure) -> CliError {
    let (db, home, seed) = (plan.paths.db.display(), plan.paths.home.display(), plan.settings.seed);
    let mut again: Vec<String> = std::env::args().skip(1).collect();
    if let (Some(s), true) = (scenario, args.scenario.as_deref() == Some("all")) {
        again.iter_mut().filter(|a| *a == "all").for_each(|a| *a = s.name.to_owned());
    }
    if args.seed.is_none() {
        again.push(format!("--seed {seed}"));
    }
    let text = format!("seed {seed}, configuration {}: {}", failure.configuration, failure.text);
    let mounted = match plan.limit {
        Some(Limit::Space(_)) => format!(" (the file system is {home}/disk.ext4)"),
        _ => String::new(),
    };
    CliError::problems(text).hint(format!(
        "kept: {db}{mounted} and {home}; `rockmill stress {db} --verify` compares them again; \
         `rockmill {}` (with a new directory) repeats the run, but for what threads did at the same time",
        again.join(" ")
    ))
}

/// One line of figures.
fn in_short(r: &Report) -> String {
    let mut text = format!(
        "{}, {} ops, {} keys compared, {} of memory",
        output::plural(r.kills + r.memory_deaths, "death"),
        output::count(r.ops),
        output::count(r.checked),
        output::size(r.memory_now)
    );
    if r.refused > 0 {
        text.push_str(&format!(", {} refused", output::count(r.refused)));
    }
    text
}

fn amount(trend: &Trend, n: f64) -> String {
    let sign = if n < 0.0 { "-" } else { "" };
    match trend.what.is_bytes() {
        true => format!("{sign}{}", output::size(n.abs() as u64)),
        false => format!("{n:.1}"),
    }
}

/// The table at the end, or the JSON object.
fn print(name: &str, plan: &Plan, r: &Report, verdict: &str, out: &mut Out) -> Result<()> {
    if out.json {
        return out.json_object(&json_of(name, plan, r, verdict));
    }
    if out.quiet { Ok(()) } else { out.text(format!("{}\n", table_of(name, plan, r, verdict, out.columns()))) }
}

/// The table at the end, at most this many columns wide.
fn table_of(name: &str, plan: &Plan, r: &Report, verdict: &str, columns: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).apply_modifier(UTF8_ROUND_CORNERS);
    if let Ok(columns) = u16::try_from(columns) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table.set_header([name, verdict]);
    let count = output::count;
    let rows = [
        ("seed", plan.settings.seed.to_string(), true),
        ("time", output::seconds(r.seconds), true),
        (
            "lives",
            format!("{} under {}", count(r.lives), output::plural(r.configurations as u64, "configuration")),
            true,
        ),
        ("kills", format!("{}, {} of them in recovery", count(r.kills), count(r.kills_in_recovery)), r.kills > 0),
        ("deaths for want of memory", count(r.memory_deaths), r.memory_deaths > 0),
        ("operations", format!("{}, {} of them writes", count(r.ops), count(r.writes)), true),
        ("keys compared", count(r.checked), true),
        ("databases compared whole", count(r.verifications), true),
        ("limit", format!("held {} times", count(r.limited)), r.limited > 0),
        ("refused operations", count(r.refused), r.refused > 0),
        ("refused starts", count(r.refused_starts), r.refused_starts > 0),
        (
            "background errors",
            format!("{}, {} recovered from running", count(r.background_errors), count(r.resumed)),
            r.background_errors > 0,
        ),
        ("longest until writes went on", format!("{} ms", count(r.resume_ms_max)), r.resumed > 0),
        ("longest opening", format!("{} ms", count(r.open_ms_max)), true),
        (
            "read by RocksDB",
            format!("{} times, {} keys", count(r.oracle_checks), count(r.oracle_keys)),
            r.oracle_checks > 0,
        ),
        ("after a downgrade of its copy", format!("{} times", count(r.oracle_downgraded)), r.oracle_downgraded > 0),
        (
            "not read by RocksDB",
            format!("{} times, killed while a column family was cleared", count(r.oracle_passed_over)),
            r.oracle_passed_over > 0,
        ),
        ("files verified", format!("{} times", count(r.file_checks)), r.file_checks > 0),
        ("tables of several files then", count(r.shared_tables), r.shared_tables > 0),
        (
            "repaired after kills",
            format!("{} times, and {} copies", count(r.repaired), count(r.repaired_copies)),
            r.repaired + r.repaired_copies > 0,
        ),
        (
            "read by another process",
            format!("{} times; {} given up", count(r.readings), count(r.readings_passed_over)),
            r.readings + r.readings_passed_over > 0,
        ),
    ];
    for (what, figure, shown) in rows {
        if shown {
            table.add_row([what.to_owned(), figure]);
        }
    }
    for t in &r.trends {
        let slope = format!("{} an hour over {}", amount(t, t.per_hour), output::seconds(t.seconds));
        let slope = match (t.judged, t.grew) {
            (false, _) => "too short to judge growth".to_owned(),
            (true, false) => format!("{slope}: flat"),
            (true, true) => format!("{slope}: GROWS"),
        };
        let range = format!("{} to {}, mean {}", amount(t, t.least), amount(t, t.most), amount(t, t.mean));
        table.add_row([t.what.name().to_owned(), format!("{range}; {slope}")]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    for (what, why) in &r.skipped {
        table.add_row([format!("skipped: {what}"), why.to_string()]);
    }
    table
}

fn json_of(name: &str, plan: &Plan, r: &Report, verdict: &str) -> Value {
    let trends: Map<String, Value> = r
        .trends
        .iter()
        .map(|t| {
            let figures = json!({
                "samples": t.samples,
                "seconds": output::round(t.seconds, 1),
                "min": t.least,
                "mean": output::round(t.mean, 1),
                "max": t.most,
                "per_hour": output::round(t.per_hour, 1),
                "judged": t.judged,
                "grew": t.grew,
            });
            (t.what.name().replace(' ', "_"), figures)
        })
        .collect();
    json!({
        "scenario": name,
        "verdict": verdict,
        "seed": plan.settings.seed,
        "seconds": output::round(r.seconds, 3),
        "lives": r.lives,
        "configurations": r.configurations,
        "kills": r.kills,
        "kills_in_recovery": r.kills_in_recovery,
        "memory_deaths": r.memory_deaths,
        "operations": r.ops,
        "writes": r.writes,
        "keys_compared": r.checked,
        "verifications": r.verifications,
        "limited": r.limited,
        "refused": r.refused,
        "refused_starts": r.refused_starts,
        "background_errors": r.background_errors,
        "resumed": r.resumed,
        "resume_ms_max": r.resume_ms_max,
        "open_ms_max": r.open_ms_max,
        "rocksdb_checks": r.oracle_checks,
        "rocksdb_downgraded": r.oracle_downgraded,
        "rocksdb_keys": r.oracle_keys,
        "rocksdb_passed_over": r.oracle_passed_over,
        "file_checks": r.file_checks,
        "shared_tables": r.shared_tables,
        "skipped": r.skipped.iter().map(|(what, why)| (what.clone(), json!(why.to_string()))).collect::<Map<_, _>>(),
        "repaired": r.repaired,
        "repaired_copies": r.repaired_copies,
        "readings": r.readings,
        "readings_passed_over": r.readings_passed_over,
        "trends": trends,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_the_terminal() {
        let plan = Plan::new(PathBuf::from("rockmill"), Path::new("db"));
        let report = Report { ops: 1_234_567, oracle_downgraded: 12, oracle_passed_over: 345, ..Report::default() };
        let lines = |columns| table_of("stress", &plan, &report, "ok", columns).lines().collect::<Vec<String>>();
        let widest = |lines: &[String]| lines.iter().map(|line| line.chars().count()).max().expect("lines");
        let (piped, wide, narrow) = (lines(usize::MAX), lines(200), lines(80));
        assert!(widest(&piped) > 80, "{piped:#?}");
        assert_eq!(wide, piped, "a wide terminal shows the same table as a pipe");
        assert!(widest(&narrow) <= 80 && narrow.len() > wide.len(), "{narrow:#?}");
        assert!(widest(&lines(40)) <= 40, "{:#?}", lines(40));
        let words = |lines: &[String]| lines.concat().replace(['│', ' '], "");
        assert!(words(&wide).contains("killedwhileacolumnfamilywascleared"));
        assert!(narrow.iter().any(|line| line.contains("cleared")), "no word is cut: {narrow:#?}");
    }

    #[test]
    fn an_interruption_names_what_is_kept() {
        use crate::args::{Cli, Command};
        use clap::Parser as _;

        let said = |args: &[&str]| {
            let cli =
                Cli::try_parse_from([&["rockmill", "stress", "db"][..], args].concat()).expect("a good command line");
            let Command::Stress(args) = cli.command else { panic!("another command") };
            kept(&args)
        };
        assert_eq!(said(&[]), "db and db.stress are kept; `rockmill stress db --verify` compares them");
        assert!(said(&["--limit", "space=16M"]).contains("`rockmill stress db --limit space=16777216 --verify`"));
        assert!(said(&["--scenario", "space"]).contains("--limit space="));
        assert!(said(&["--scenario", "all"]).starts_with("db-SCENARIO and db-SCENARIO.stress of the scenario"));
    }
}
