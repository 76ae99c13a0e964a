//! A fast device in front of a slow one: books that balance, and the bound of the logs.

use rockmill_sim::{Fast, FastComparison, Front, Settings, Workload, run};

fn sata(data: u64, front: Front) -> Settings {
    let mut s = Settings { data_bytes: data, key_bytes: 24, value_bytes: 1000, ..Settings::default() };
    (s.device_read, s.device_write, s.device_total, s.device_latency) = (530e6, 450e6, 530e6, 100e-6);
    s.cores = 4.0;
    s.fast = Some(Fast { front, capacity: (data / 10).max(64 << 20), ..Fast::default() });
    s
}

#[test]
fn what_is_written_is_on_one_of_both_and_the_logs_keep_to_their_bound() {
    for (data, workload) in [(4 << 30, Workload::Fill), (2 << 30, Workload::Overwrite)] {
        let s = Settings { workload, ..sata(data, Front::Index) };
        let r = run(&s).unwrap();
        let fast = r.fast.as_ref().unwrap();
        let what = format!("{workload:?}: {}", r.to_text());
        assert!(!r.wedged && fast.flushes > 2 && fast.merges > 0, "{what}");
        // A value is written once to the log, and once by a flush.
        let log = fast.written[0] / r.user_bytes;
        assert!((1.0..1.05).contains(&log), "{log}: {what}");
        let tables = (r.flushed_bytes + r.compacted_bytes) / r.user_bytes;
        assert!((fast.written[1] / r.user_bytes / tables - 1.0).abs() < 0.2, "{what}");
        let most = s.fast.as_ref().unwrap().capacity as f64;
        assert!(fast.bytes_most <= most * 1.001, "{} of {most}: {what}", fast.bytes_most);
        let cpu: f64 = fast.used.cpu.iter().sum();
        assert!((cpu / r.seconds / s.cores - fast.busy[0].mean()).abs() < 0.05, "{what}");
        assert_eq!(r.to_json().to_string(), run(&s).unwrap().to_json().to_string(), "the same each time");
    }
}

#[test]
fn the_wal_and_two_levels_are_on_the_fast_device() {
    let r = run(&sata(4 << 30, Front::Levels)).unwrap();
    let fast = r.fast.as_ref().unwrap();
    let both = fast.written[0] + fast.written[1];
    let all = r.user_bytes + r.flushed_bytes + r.compacted_bytes;
    assert!((both / all - 1.0).abs() < 0.2, "{}", r.to_text());
    assert!(fast.used.fast[2] > 0.0 && fast.used.slow[2] == 0.0 && fast.used.slow[3] > 0.0, "{}", r.to_text());
    assert!(fast.merges == 0 && fast.tables() == 0.0);
}

#[test]
fn a_comparison_has_both_for_each_number_of_cores_and_a_page_has_charts_by_task() {
    let both = FastComparison::run(&sata(1 << 30, Front::Index), &[2, 4], |_, _| {}).unwrap();
    println!("{}", both.to_text());
    assert_eq!(both.to_text().lines().count(), 4);
    assert_eq!(both.to_json()["runs"][1]["cores"], 4);
    let page = rockmill_sim::page::page(&both.runs[0].1);
    assert!(page.matches("<svg").count() == 13 && page.contains("index merge") && !page.contains("NaN"));
    let e = FastComparison::run(&Settings::default(), &[1], |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("no fast device"), "{e}");
}

/// For docs/benchmarks.md.
#[test]
#[ignore = "the figures of the docs, by hand"]
fn figures() {
    let s = sata(100_000_000_000, Front::Index);
    println!("{}", FastComparison::run(&s, &[4, 8, 12, 16, 20], |_, _| {}).unwrap().to_text());
    for percent in [1, 2, 5, 10, 20] {
        let mut s = s.clone();
        s.fast.as_mut().unwrap().capacity = s.data_bytes / 100 * percent;
        let r = run(&s).unwrap();
        println!("{percent} %: {:.0} MiB/s, {:.2}", r.throughput() / 1048576.0, r.write_amplification());
    }
}
