//! `rockmill simulate --calibrate DIR`: compares predictions with real runs.
//!
//! 1. The device below DIR is measured (`rockmill_bench::probe`), and the cores are counted.
//! 2. A first database is filled. Its counters give the costs of a write, a flush and a merge.
//! 3. A second one, of twice the size and with another write buffer, is simulated with these costs and then filled.
//!    Both are filled three times, and the median run counts: such short runs differ by up to a third.
//! 4. A third one is filled at no more than half the speed of the second, so that compactions keep up. The bytes that
//!    they write then depend on the tree and not on the machine's speed, and show how well the tree is modelled.
//! 5. The databases are deleted; predicted and real figures are printed with the error of each.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rockmill::{CfOptions, CompressionType, Db, DbCounters, Options, WriteBatch, WriteOptions};
use rockmill_sim::{Settings, Workload};
use serde_json::{Value, json};

use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::simulate::SimulateArgs;

/// Bytes written to the first database; the second gets twice as many.
const FIRST_BYTES: u64 = 96 << 20;
/// Size of the file with which the device is measured.
const PROBE_BYTES: u64 = 128 << 20;
/// Entries per write, so that the store is measured and not the loop.
const BATCH: u64 = 16;

/// A run that happened.
struct Real {
    seconds: f64,
    counters: DbCounters,
    /// Bytes and files at the end of the writes, before compactions that were still due.
    bytes: u64,
    /// Average bytes of an entry in a table.
    stored_entry: f64,
    /// Seconds including the compactions that were still due.
    settled: f64,
}

/// Upper limit of the write rate to the third database, in bytes per second.
const PACE_MAX: f64 = (24u64 << 20) as f64;

impl Real {
    fn write_amplification(&self, user_bytes: f64) -> f64 {
        (self.counters.flush_bytes + self.counters.compact_write_bytes) as f64 / user_bytes
    }
}

fn options_of(base: &CfOptions, settings: &Settings) -> Options {
    let mut o = Options::default();
    o.cf = base.clone();
    o.create_if_missing(true);
    o.set_compression_type(CompressionType::None);
    o.set_max_background_jobs(settings.threads as i32 + 1);
    o.set_max_subcompactions(settings.subcompactions as u32);
    o
}

/// Each key once, in an order unrelated to the key order.
fn key(i: u64, count: u64) -> [u8; 16] {
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ count;
    let text = format!("{mixed:016x}");
    let mut key = [0; 16];
    key.copy_from_slice(text.as_bytes());
    key
}

fn fill(dir: &Path, settings: &Settings) -> Result<Real> {
    let db = Db::open(&options_of(&settings.options, settings), dir)?;
    let count = settings.data_bytes / (settings.key_bytes + settings.value_bytes);
    let value = vec![b'v'; settings.value_bytes as usize];
    let mut write = WriteOptions::default();
    write.disable_wal(!settings.wal);
    let began = Instant::now();
    let mut batch = WriteBatch::new();
    for i in 0..count {
        batch.put(key(i, count), &value);
        if (i + 1) % BATCH == 0 || i + 1 == count {
            db.write_opt(&batch, &write)?;
            batch.clear();
            if settings.ingest_rate > 0 {
                let due = (i + 1) as f64 * settings.entry_bytes() / settings.ingest_rate as f64;
                let ahead = due - began.elapsed().as_secs_f64();
                if ahead > 1e-3 {
                    std::thread::sleep(Duration::from_secs_f64(ahead));
                }
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let counters = db.counters();
    let cf = db.cf_handle("default").ok_or_else(|| CliError::data("there is no default column family"))?;
    let bytes = db.level_stats(&cf).iter().map(|l| l.bytes).sum();
    db.wait_for_background_work()?;
    let settled = began.elapsed().as_secs_f64();
    db.flush()?;
    // Each key is there once.
    let stored: u64 = db.level_stats(&cf).iter().map(|l| l.bytes).sum();
    Ok(Real { seconds, counters, bytes, stored_entry: stored as f64 / count.max(1) as f64, settled })
}

/// Number of runs at full speed, of which the median counts.
const RUNS: usize = 3;

/// The median run, and the seconds of the fastest and the slowest.
fn middle(dir: &Path, settings: &Settings) -> Result<(Real, f64, f64)> {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(fill_and_remove(dir, settings)?);
    }
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let (fast, slow) = (runs[0].seconds, runs[RUNS - 1].seconds);
    Ok((runs.swap_remove(RUNS / 2), fast, slow))
}

fn fill_and_remove(dir: &Path, settings: &Settings) -> Result<Real> {
    let done = fill(dir, settings);
    let _ = std::fs::remove_dir_all(dir);
    done
}

/// Median seconds of a small write with a sync.
fn sync_seconds(dir: &Path) -> Result<f64> {
    let path = dir.join(format!("rockmill-calibrate-{}.tmp", std::process::id()));
    let failed = |e| CliError::io(format_args!("cannot measure a sync with {}", path.display()), &e);
    let mut file = std::fs::File::create_new(&path).map_err(failed)?;
    let mut times = Vec::new();
    for _ in 0..32 {
        let began = Instant::now();
        file.write_all(&[0; 4096]).and_then(|()| file.sync_data()).map_err(failed)?;
        times.push(began.elapsed().as_secs_f64());
    }
    std::fs::remove_file(&path).map_err(failed)?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Runs the command.
pub fn run(dir: &Path, args: &SimulateArgs, out: &mut Out) -> Result<()> {
    let mut settings = args.settings()?;
    settings.workload = Workload::Fill;
    settings.keys = rockmill_sim::KeyOrder::Uniform;
    settings.key_bytes = 16;
    settings.data_bytes = FIRST_BYTES;
    settings.compression_ratio = 1.0;
    settings.cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let small = |o: &mut CfOptions, memtable: usize| {
        o.write_buffer_size = memtable;
        o.target_file_size_base = 2 << 20;
        o.max_bytes_for_level_base = 8 << 20;
    };
    small(&mut settings.options, 2 << 20);
    let place = dir.join(format!("rockmill-calibrate-{}", std::process::id()));
    if place.exists() {
        let what = "already exists, and this command needs that name temporarily: remove it";
        return Err(CliError::usage(format!("{}: {what}", place.display())));
    }
    let limits = rockmill_bench::probe(dir, PROBE_BYTES, args.seed).map_err(|e| CliError::data(e.to_string()))?;
    settings.device_read = limits.sequential_read_deep.max(limits.sequential_read);
    settings.device_write = limits.sequential_write;
    settings.device_total = settings.device_read.max(settings.device_write);
    settings.device_latency = 1.0 / limits.random_reads.max(1.0);

    settings.device_sync = sync_seconds(dir)?;

    let (first, ..) = middle(&place, &settings)?;
    learn(&mut settings, &first);
    settings.data_bytes = 2 * FIRST_BYTES;
    small(&mut settings.options, 4 << 20);
    let predicted = rockmill_sim::run(&settings).map_err(|e| CliError::usage(e.to_string()))?;
    let (real, fast, slow_run) = middle(&place, &settings)?;

    let mut paced = settings.clone();
    paced.ingest_rate = (settings.data_bytes as f64 / real.seconds.max(1e-9) / 2.0).clamp(1.0, PACE_MAX) as u64;
    let slow_predicted = rockmill_sim::run(&paced).map_err(|e| CliError::usage(e.to_string()))?;
    let slow = fill_and_remove(&place, &paced)?;

    let c = &real.counters;
    let user = real.seconds.max(1e-9);
    let bytes = settings.data_bytes as f64;
    let figures = [
        ("throughput, MiB/s", predicted.throughput() / MIB, bytes / user / MIB),
        ("write amplification", predicted.write_amplification(), real.write_amplification(bytes)),
        (
            "stalled, percent",
            (predicted.stopped_seconds + predicted.delayed_seconds) / predicted.seconds * 100.0,
            c.stall_micros as f64 * 1e-4 / user,
        ),
        ("compaction read, MiB", predicted.read_bytes / MIB, c.compact_read_bytes as f64 / MIB),
        (
            "tables at the end, MiB",
            predicted.levels.iter().map(|l| l.1 as f64).sum::<f64>() / MIB,
            real.bytes as f64 / MIB,
        ),
        ("paced: write amplification", slow_predicted.write_amplification(), slow.write_amplification(bytes)),
        ("paced: compaction read, MiB", slow_predicted.read_bytes / MIB, slow.counters.compact_read_bytes as f64 / MIB),
        ("paced: compactions", slow_predicted.jobs.iter().sum::<u64>() as f64, slow.counters.compactions as f64),
        ("paced: moves", slow_predicted.moves as f64, slow.counters.trivial_moves as f64),
        ("paced: flushed, MiB", slow_predicted.flushed_bytes / MIB, slow.counters.flush_bytes as f64 / MIB),
    ];
    let error = |p: f64, r: f64| (p - r) / r.max(1e-9) * 100.0;
    if out.json {
        let list: Vec<Value> = figures
            .iter()
            .map(|&(name, p, r)| {
                json!({"figure": name, "predicted": output::round(p, 3), "measured": output::round(r, 3),
                       "error_percent": output::round(error(p, r), 1)})
            })
            .collect();
        return out.json_object(&json!({
            "figures": list, "measured_costs": costs(&settings), "settled_seconds": output::round(real.settled, 3),
            "seconds_of_runs": [output::round(fast, 3), output::round(user, 3), output::round(slow_run, 3)],
        }));
    }
    out.note(format!(
        "measured below {}: a write {:.0} ns, a flushed entry {:.0} ns, a merged entry {:.0} ns; device reads {}/s, \
         writes {}/s; {} cores",
        dir.display(),
        settings.write_ns,
        settings.flush_ns_per_entry,
        settings.merge_ns_per_entry,
        output::size(settings.device_read as u64),
        output::size(settings.device_write as u64),
        settings.cores
    ))?;
    let speed = |seconds: f64| bytes / seconds.max(1e-9) / MIB;
    out.note(format!(
        "at full speed {RUNS} runs, {:.0} to {:.0} MiB/s: the middle one counts",
        speed(slow_run),
        speed(fast)
    ))?;
    out.line(format!("{:<28} {:>12} {:>12} {:>9}", "", "predicted", "measured", "error"))?;
    for (name, p, r) in figures {
        out.line(format!("{name:<28} {p:>12.2} {r:>12.2} {:>8.1}%", error(p, r)))?;
    }
    Ok(())
}

const MIB: f64 = (1 << 20) as f64;

/// Costs from a run's counters. The whole cost of a merge is attributed to its entries, which makes no difference for
/// values of one size.
fn learn(settings: &mut Settings, real: &Real) {
    let c = &real.counters;
    let entries = settings.data_bytes as f64 / settings.entry_bytes();
    let stalled = c.stall_micros as f64 * 1e-6;
    // Blocks contain lengths, restarts and an index in addition to the entries.
    settings.compression_ratio *= real.stored_entry / settings.stored_entry_bytes();
    // The time that writers had, with background jobs on the same cores.
    settings.write_ns = ((real.seconds - stalled).max(real.seconds / 10.0) / entries * 1e9).max(100.0);
    let merged = c.compact_read_bytes as f64 / settings.stored_entry_bytes();
    if merged > 0.0 {
        settings.merge_ns_per_entry = c.compact_cpu_micros as f64 * 1e3 / merged;
        settings.merge_ns_per_byte = 0.0;
    }
    settings.flush_ns_per_entry = settings.merge_ns_per_entry;
}

fn costs(s: &Settings) -> Value {
    json!({
        "write_ns": output::round(s.write_ns, 0), "merge_ns_per_entry": output::round(s.merge_ns_per_entry, 0),
        "flush_ns_per_entry": output::round(s.flush_ns_per_entry, 0),
        "device_read": output::round(s.device_read, 0), "device_write": output::round(s.device_write, 0),
        "device_sync_us": output::round(s.device_sync * 1e6, 1),
        "device_latency_us": output::round(s.device_latency * 1e6, 1), "cores": s.cores,
    })
}
