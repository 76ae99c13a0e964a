//! A fast device in front of a slow one: sums are consistent, bounds hold, and writers make progress.

use rockmill_sim::{Fast, FastComparison, Front, KeyOrder, Report, Settings, Workload, run};

const GB: u64 = 1_000_000_000;
const FRONTS: [Front; 3] = [Front::Index, Front::Plain, Front::RocksDb];

/// A tenth of the data fits the fast device; a SATA SSD behind it.
fn sata(data: u64, front: Front) -> Settings {
    let mut s = Settings { data_bytes: data, key_bytes: 24, value_bytes: 1000, ..Settings::default() };
    (s.device_read, s.device_write, s.device_total, s.device_latency) = (530e6, 450e6, 980e6, 100e-6);
    s.cores = 4.0;
    s.fast = Some(Fast { front, capacity: data / 10, ..Fast::default() });
    s
}

fn disk(data: u64, front: Front) -> Settings {
    let mut s = sata(data, front);
    (s.device_read, s.device_write, s.device_total, s.device_latency) = (180e6, 180e6, 360e6, 1.0 / 150.0);
    s
}

fn capacity(s: &Settings) -> f64 {
    s.fast.as_ref().unwrap().capacity as f64
}

/// Entries that are in tables, and those that are in logs only.
fn held(r: &Report) -> (f64, f64) {
    let tables: u64 = r.levels.iter().map(|l| l.1).sum();
    let log_entry = r.settings.entry_bytes() + 24.0;
    (tables as f64 / r.settings.stored_entry_bytes(), r.fast.as_ref().unwrap().log_bytes / log_entry)
}

#[test]
fn what_was_written_is_in_tables_and_logs_once() {
    for front in FRONTS {
        for (data, cores) in [(GB, 2.0), (4 * GB, 8.0)] {
            let s = Settings { cores, ..sata(data, front) };
            let r = run(&s).unwrap();
            let ((tables, logs), all) = (held(&r), r.user_bytes / s.entry_bytes());
            assert!(((tables + logs) / all - 1.0).abs() < 1e-5, "{front:?}: {tables} + {logs} of {all}");
            // Each write is logged once; the bytes of tables are those that flushes and compactions wrote.
            let fast = r.fast.as_ref().unwrap();
            let in_logs = all * (s.entry_bytes() + 24.0);
            let done = in_logs + r.flushed_bytes + r.compacted_bytes + fast.unfinished;
            let all = fast.written[0] + fast.written[1];
            assert!((all / done - 1.0).abs() < 1e-4, "{front:?}: {all} of {done}");
            let by_task: f64 = fast.used.cpu.iter().sum();
            assert!((by_task / r.seconds / s.cores - fast.busy[0].mean()).abs() < 0.05, "{}", r.to_text());
        }
    }
}

#[test]
fn each_side_keeps_to_its_fast_bytes() {
    for (what, of) in [("sata", sata as fn(u64, Front) -> Settings), ("disk", disk)] {
        for front in FRONTS {
            for workload in [Workload::Fill, Workload::Overwrite] {
                for (data, cores) in [(2 * GB, 2), (10 * GB, 4), (100 * GB, 20)] {
                    let (cores, threads) = (cores as f64, cores);
                    let s = Settings { workload, write_bytes: data, cores, threads, ..of(data, front) };
                    let r = run(&s).unwrap();
                    let most = r.fast.as_ref().unwrap().bytes_most;
                    assert!(most <= capacity(&s) * 1.001, "{what}, {front:?}, {workload:?}, {data}: {}", r.to_text());
                    // They also use them; at 100 GB, index tables do not have enough memory for that.
                    assert!(most >= capacity(&s) * 0.15, "{what}, {front:?}, {workload:?}, {data}: {}", r.to_text());
                    let seen = r.samples.iter().map(|p| p.fast_bytes).fold(0.0, f64::max);
                    assert!(seen <= most && seen > most * 0.7, "{seen} in samples, {most} at most");
                }
            }
        }
    }
}

#[test]
fn nobody_stops_for_ever() {
    for front in FRONTS {
        for seed in 0..12 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let data = GB << rng.u32(0..3);
            let mut s = if rng.bool() { sata(data, front) } else { disk(data, front) };
            s.seed = seed;
            s.workload = if rng.bool() { Workload::Fill } else { Workload::Overwrite };
            s.keys = match s.workload {
                Workload::Fill if rng.bool() => KeyOrder::Sequential,
                Workload::Overwrite if rng.bool() => KeyOrder::Zipfian(0.99),
                _ => KeyOrder::Uniform,
            };
            s.write_bytes = data;
            s.value_bytes = [40, 64, 65, 300, 1000, 16_000][rng.usize(0..6)];
            s.threads = rng.usize(1..9);
            s.cores = f64::from(rng.u32(1..9));
            let part = [5, 10, 40][rng.usize(0..3)];
            s.fast.as_mut().unwrap().capacity = (data / 100 * part).max(16 << 20);
            let r = run(&s).unwrap();
            let what = format!("{front:?}, seed {seed}: {:?}\n{}", s.fast, r.to_text());
            assert!(!r.wedged, "{what}");
            assert!((r.user_bytes / s.write_bytes.max(data) as f64 - 1.0).abs() < 0.01, "{what}");
        }
    }
}

#[test]
fn triggers_come_to_rest() {
    // At full speed, and at rates from very low to more than the slow device can absorb.
    for rate in [0, 20, 60, 120, 400].map(|mb| mb * 1_000_000) {
        for cores in [2.0, 8.0] {
            let s = Settings {
                workload: Workload::Overwrite,
                write_bytes: 40 * GB,
                ingest_rate: rate,
                cores,
                threads: cores as usize,
                ..sata(10 * GB, Front::Index)
            };
            let r = run(&s).unwrap();
            let late: Vec<_> = r.samples.iter().skip(r.samples.len() / 2).map(|p| p.triggers).collect();
            let changes = late.windows(2).filter(|w| w[0] != w[1]).count();
            assert!(changes <= 1, "{rate} B/s, {cores} cores: {late:?}");
        }
    }
}

#[test]
fn writers_get_what_the_slow_device_takes_in() {
    // There are enough cores, so the device is the limit.
    for of in [sata, disk] {
        let s = Settings {
            workload: Workload::Overwrite,
            write_bytes: 40 * GB,
            cores: 16.0,
            threads: 8,
            ..of(10 * GB, Front::Index)
        };
        let r = run(&s).unwrap();
        let fast = r.fast.as_ref().unwrap();
        assert!(fast.busy[2].mean() > 0.9, "the slow device rests: {}", r.to_text());
        let taken = s.device_write * fast.busy[2].mean();
        let written = fast.written[1] / r.seconds;
        // Reads may also keep it busy.
        assert!((0.8..1.001).contains(&(written / taken)), "{written} of {taken}: {}", r.to_text());
        // After the first fifth of the run, no sample has less than an eighth of the mean, which is what remains during
        // an L0 job of half a minute.
        let rates: Vec<f64> = r.samples.iter().skip(r.samples.len() / 5).map(|p| p.write_rate).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(least > mean / 8.0, "{least} of {mean}: {}", r.to_text());
        // Writers that want less than that get what they want.
        let s = Settings { ingest_rate: (r.throughput() * 0.7) as u64, ..s };
        let r = run(&s).unwrap();
        assert!((r.throughput() / s.ingest_rate as f64 - 1.0).abs() < 0.01, "{}", r.to_text());
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    for front in FRONTS {
        let json = |seed| run(&Settings { seed, ..sata(2 * GB, front) }).unwrap().to_json().to_string();
        assert_eq!(json(1), json(1), "{front:?}");
        assert_ne!(json(1), json(2), "{front:?}");
    }
}

#[test]
fn the_wal_and_two_levels_are_on_the_fast_device() {
    for front in [Front::Plain, Front::RocksDb] {
        let r = run(&sata(4 * GB, front)).unwrap();
        let fast = r.fast.as_ref().unwrap();
        assert!(fast.used.fast[2] > 0.0 && fast.used.slow[2] == 0.0 && fast.used.slow[3] > 0.0, "{}", r.to_text());
        // Data in L2 and below was written to the slow device; nothing got there by a move.
        let below: u64 = r.levels.iter().skip(2).map(|l| l.1).sum();
        assert!(below > 0 && fast.written[1] >= below as f64, "{}", r.to_text());
        assert!(fast.merges == 0 && fast.tables() == 0.0);
    }
    let r = run(&sata(4 * GB, Front::Index)).unwrap();
    let fast = r.fast.as_ref().unwrap();
    assert!(fast.merges > 0 && fast.flushes > 2 && fast.used.slow[2] > 0.0, "{}", r.to_text());
    // A value is written once to the log, and read from there once.
    let log = fast.written[0] / r.user_bytes;
    assert!((1.0..1.05).contains(&log), "{log}: {}", r.to_text());
    assert!(fast.used.fast[2] > r.user_bytes * 0.8, "{}", r.to_text());
}

#[test]
fn a_comparison_has_both_for_each_number_of_cores_and_a_page_has_charts_by_task() {
    let both = FastComparison::run(&sata(GB, Front::Index), &[2, 4], |_, _| {}).unwrap();
    assert_eq!(both.to_text().lines().count(), 4);
    assert_eq!(both.to_json()["runs"][1]["cores"], 4);
    let about = rockmill_sim::page::About::default();
    let page = rockmill_sim::page::page(&both.runs[0].1, &about);
    assert!(page.contains("of a fast device in front of it"), "{page}");
    assert!(page.matches("<svg").count() == 16 && page.contains("index merge") && !page.contains("NaN"));
    let page = rockmill_sim::page::page(&both.runs[0].2, &about);
    assert!(page.matches("<svg").count() == 13 && !page.contains("NaN"));
    let e = FastComparison::run(&Settings::default(), &[1], |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("no fast device"), "{e}");
}
