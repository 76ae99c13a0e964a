//! Results as text, in db_bench's own lines, and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use crate::device::DeviceLimits;
use crate::flags::Flags;
use crate::measure::ProcessUsage;
use crate::record::Recorder;
use crate::workload::Workload;

/// What one benchmark gave.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub workload: Workload,
    /// The store's name.
    pub store: String,
    /// Threads whose operations are counted.
    pub threads: usize,
    /// Operations, bytes, time and latencies of all of them.
    pub record: Recorder,
    /// What the process used meanwhile.
    pub usage: ProcessUsage,
    /// Microseconds that writers were delayed and stopped meanwhile.
    pub stall_micros: (u64, u64),
    /// Why writers were held back at the end, or "none".
    pub stall_reason: String,
    /// Of `stats`.
    pub stats: Option<String>,
    /// Of `device`.
    pub device: Option<DeviceLimits>,
}

const MIB: f64 = (1 << 20) as f64;

impl Outcome {
    /// Operations per second of elapsed time.
    pub fn ops_per_second(&self) -> f64 {
        self.record.ops.max(1) as f64 / self.record.elapsed.as_secs_f64().max(1e-9)
    }

    /// Microseconds of a thread per operation.
    pub fn micros_per_op(&self) -> f64 {
        self.record.thread_time.as_secs_f64() * 1e6 / self.record.ops.max(1) as f64
    }

    /// The text: db_bench's line, then what db_bench does not tell, indented.
    pub fn to_text(&self) -> String {
        if let Some(d) = &self.device {
            return format!(
                "{:<12} : 1 MiB sequential write {:.0} MB/s, 1 MiB sequential read {:.0} MB/s, 4 KiB random read {:.0} \
                 reads/s ({:.1} us each){}\n",
                self.workload.name(),
                d.sequential_write / MIB,
                d.sequential_read / MIB,
                d.random_reads,
                1e6 / d.random_reads,
                if d.direct { "" } else { "; direct I/O refused, the page cache took part" },
            );
        }
        if let Some(stats) = &self.stats {
            return format!("{stats}\n");
        }
        let seconds = self.record.elapsed.as_secs_f64();
        let mut extra = String::new();
        if self.record.bytes > 0 {
            extra = format!(" {:6.1} MB/s", self.record.bytes as f64 / MIB / seconds.max(1e-9));
        }
        if let Some(found) = self.record.found {
            extra += &format!(" ({found} of {} found)", self.record.ops);
        }
        let mut text = format!(
            "{:<12} : {:11.3} micros/op {} ops/sec {seconds:.3} seconds {} operations;{extra}\n",
            self.workload.name(),
            self.micros_per_op(),
            self.ops_per_second() as u64,
            self.record.ops.max(1),
        );
        if let Some(h) = self.record.latencies().filter(|h| !h.is_empty()) {
            let at = |p: f64| h.value_at_percentile(p) as f64 / 1e3;
            text += &format!("Microseconds per {}:\n", self.workload.operation());
            text += &format!("Count: {} Average: {:.4}  StdDev: {:.2}\n", h.len(), h.mean() / 1e3, h.stdev() / 1e3);
            text += &format!(
                "Min: {:.3}  Median: {:.4}  Max: {:.3}\n",
                h.min() as f64 / 1e3,
                at(50.0),
                h.max() as f64 / 1e3
            );
            text += &format!(
                "Percentiles: P50: {:.2} P75: {:.2} P95: {:.2} P99: {:.2} P99.9: {:.2} P99.99: {:.2}\n",
                at(50.0),
                at(75.0),
                at(95.0),
                at(99.0),
                at(99.9),
                at(99.99)
            );
        }
        let u = &self.usage;
        text += &format!(
            "  cpu {:.2} s user {:.2} s system; peak RSS {:.1} MB; device {:.1} MB read {:.1} MB written; calls {} \
             read {} write\n",
            u.user.as_secs_f64(),
            u.system.as_secs_f64(),
            u.peak_rss_bytes as f64 / MIB,
            u.device_read_bytes as f64 / MIB,
            u.device_write_bytes as f64 / MIB,
            u.read_calls,
            u.write_calls,
        );
        let (delayed, stopped) = self.stall_micros;
        if delayed + stopped > 0 {
            text += &format!(
                "  stalls: {delayed} us delayed, {stopped} us stopped; reason at the end: {}\n",
                self.stall_reason
            );
        }
        text
    }

    fn to_json(&self) -> Value {
        let seconds = |d: Duration| d.as_secs_f64();
        let u = &self.usage;
        let mut v = json!({
            "benchmark": self.workload.name(),
            "store": self.store,
            "threads": self.threads,
            "operations": self.record.ops,
            "bytes": self.record.bytes,
            "seconds": seconds(self.record.elapsed),
            "ops_per_second": self.ops_per_second(),
            "micros_per_op": self.micros_per_op(),
            "cpu_user_seconds": seconds(u.user),
            "cpu_system_seconds": seconds(u.system),
            "peak_rss_bytes": u.peak_rss_bytes,
            "device_read_bytes": u.device_read_bytes,
            "device_write_bytes": u.device_write_bytes,
            "read_calls": u.read_calls,
            "write_calls": u.write_calls,
            "stall_delayed_micros": self.stall_micros.0,
            "stall_stopped_micros": self.stall_micros.1,
        });
        if let Some(found) = self.record.found {
            v["found"] = found.into();
        }
        if let Some(h) = self.record.latencies().filter(|h| !h.is_empty()) {
            v["latency_micros"] = json!({
                "mean": h.mean() / 1e3,
                "p50": h.value_at_quantile(0.5) as f64 / 1e3,
                "p95": h.value_at_quantile(0.95) as f64 / 1e3,
                "p99": h.value_at_quantile(0.99) as f64 / 1e3,
                "p99.9": h.value_at_quantile(0.999) as f64 / 1e3,
                "p99.99": h.value_at_quantile(0.9999) as f64 / 1e3,
                "max": h.max() as f64 / 1e3,
            });
        }
        if let Some(stats) = &self.stats {
            v["stats"] = stats.as_str().into();
        }
        if let Some(d) = &self.device {
            v["device"] = json!({
                "sequential_write_bytes_per_second": d.sequential_write,
                "sequential_read_bytes_per_second": d.sequential_read,
                "random_4k_reads_per_second": d.random_reads,
                "direct": d.direct,
            });
        }
        v
    }
}

/// The whole run: settings and results.
pub fn to_json(flags: &Flags, outcomes: &[Outcome]) -> Value {
    let settings: serde_json::Map<String, Value> =
        flags.settings().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "settings": settings,
        "results": outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(timed: bool) -> Outcome {
        let mut record = Recorder::new(timed);
        record.finished(1_000_000);
        record.bytes = 116_000_000;
        record.elapsed = Duration::from_millis(2345);
        record.thread_time = record.elapsed;
        Outcome {
            workload: Workload::FillRandom,
            store: "rockmill".to_owned(),
            threads: 1,
            record,
            usage: ProcessUsage::default(),
            stall_micros: (5, 7),
            stall_reason: "memtables".to_owned(),
            stats: None,
            device: None,
        }
    }

    #[test]
    fn the_line_is_db_benchs() {
        let text = outcome(false).to_text();
        let line = text.lines().next().unwrap();
        assert_eq!(
            line,
            "fillrandom   :       2.345 micros/op 426439 ops/sec 2.345 seconds 1000000 operations;   47.2 MB/s"
        );
        assert!(text.contains("5 us delayed, 7 us stopped; reason at the end: memtables"), "{text}");
        assert!(!text.contains("Percentiles"));
        let timed = outcome(true).to_text();
        assert!(timed.contains("Microseconds per write:\nCount: 1 Average: ") && timed.contains(" P99.9: "), "{timed}");
    }

    #[test]
    fn found_keys_are_told() {
        let mut o = outcome(false);
        (o.workload, o.record.found) = (Workload::ReadRandom, Some(632_000));
        assert!(o.to_text().contains("MB/s (632000 of 1000000 found)"), "{}", o.to_text());
    }

    #[test]
    fn json_holds_settings_and_figures() {
        let v = to_json(&Flags::default(), &[outcome(true)]);
        assert_eq!(v["settings"]["value_size"], "100");
        let r = &v["results"][0];
        assert_eq!(r["benchmark"], "fillrandom");
        assert_eq!(r["operations"], 1_000_000);
        assert!((r["ops_per_second"].as_f64().unwrap() - 426_439.0).abs() < 1.0);
        assert!(r["latency_micros"]["p99.9"].is_number() && r["stall_stopped_micros"] == 7);
    }
}
