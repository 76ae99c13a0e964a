//! The resource use of process and devices during a benchmark, second by second: how much, and how evenly.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::flags::Flags;
use crate::kernel;
use crate::measure::{DeviceBytes, device_entry};
use crate::store::{Store, TaskUse};
use crate::timeline::{Sample, Timeline};

/// Shorter parts at the end of a benchmark do not count as a second.
const SECOND_MIN: f64 = 0.5;

/// The devices of a side: the database's device and, with `--fast_path`, the faster one.
pub(crate) struct Places {
    db: PathBuf,
    fast: Option<PathBuf>,
    /// The database's device is a loop device over a file on the faster one, so its transfers are counted twice there.
    nested: bool,
}

impl Places {
    /// Of a side's flags.
    pub fn new(f: &Flags) -> Self {
        let db = PathBuf::from(&f.db);
        let fast = (!f.fast_path.is_empty()).then(|| PathBuf::from(&f.fast_path));
        let nested = fast.as_deref().is_some_and(|fast| lies_on(&db, fast));
        Self { db, fast, nested }
    }

    /// Transfers of the devices so far, the database's first; the faster one is included if it is a different device.
    pub fn devices(&self) -> Vec<DeviceBytes> {
        let Some(db) = DeviceBytes::now(&self.db) else { return vec![] };
        let fast = self.fast.as_deref().filter(|fast| device_entry(fast) != device_entry(&self.db));
        match fast.and_then(DeviceBytes::now) {
            Some(fast) if self.nested => vec![db, fast.without(&db)],
            Some(fast) => vec![db, fast],
            None => vec![db],
        }
    }

    /// Bytes of logs and of everything in the faster device's directory.
    pub fn fast_bytes(&self) -> Option<(u64, u64)> {
        self.fast.as_deref().map(fast_bytes)
    }
}

/// True if `path` is on a loop device over a file on the device of `below`.
fn lies_on(path: &Path, below: &Path) -> bool {
    let file = device_entry(path).and_then(|entry| fs::read_to_string(entry.join("loop/backing_file")).ok());
    file.is_some_and(|file| device_entry(Path::new(file.trim())) == device_entry(below))
}

fn fast_bytes(dir: &Path) -> (u64, u64) {
    let Ok(entries) = fs::read_dir(dir) else { return (0, 0) };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(m) if m.is_dir() => fast_bytes(&entry.path()),
        // Preallocated space that was not written yet does not count as use.
        Ok(m) => {
            let bytes = m.len().min(m.blocks() * 512);
            (if entry.path().extension().is_some_and(|e| e == "log") { bytes } else { 0 }, bytes)
        }
        Err(_) => (0, 0),
    };
    entries.filter_map(Result::ok).map(of).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

/// What is sampled of process and devices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Use {
    /// Microseconds of CPU of all threads since the measured part began.
    pub cpu_micros: u64,
    /// Transfers of the devices since then: the database's, then the faster one, if different.
    pub devices: Vec<DeviceBytes>,
    /// Bytes of logs and of everything in `--fast_path`, in the samples that query them.
    pub fast_bytes: Option<(u64, u64)>,
    /// Numbers of the store by name.
    pub numbers: Vec<(&'static str, u64)>,
    /// The use of each kind of the store's work since the measured part began.
    pub tasks: Vec<TaskUse>,
}

/// The counts at the beginning of the measured part.
pub(crate) struct Begun {
    cpu_micros: u64,
    devices: Vec<DeviceBytes>,
    tasks: Vec<TaskUse>,
}

impl Begun {
    pub fn now(places: &Places, store: &dyn Store) -> Self {
        Self { cpu_micros: cpu_micros(), devices: places.devices(), tasks: store.tasks() }
    }

    /// The use since then. `before`: the previous sample.
    pub fn since(&self, places: &Places, ask_files: bool, store: &dyn Store, before: Option<&Use>) -> Use {
        let task = |(i, now): (usize, &TaskUse)| now.since(self.tasks.get(i), before.and_then(|b| b.tasks.get(i)));
        Use {
            cpu_micros: cpu_micros().saturating_sub(self.cpu_micros),
            devices: places.devices().iter().zip(&self.devices).map(|(now, then)| now.since(then)).collect(),
            fast_bytes: if ask_files { places.fast_bytes() } else { None },
            numbers: store.numbers(),
            tasks: store.tasks().iter().enumerate().map(task).collect(),
        }
    }
}

fn cpu_micros() -> u64 {
    let used = kernel::resource_use();
    (used.user + used.system).as_micros() as u64
}

/// A count's rate second by second: the end of each interval, and the increase per second.
pub(crate) fn rates(timeline: &Timeline, of: impl Fn(&Sample) -> Option<u64>) -> Vec<(f64, f64)> {
    let (mut then, mut before) = (0.0, 0);
    let mut out = Vec::new();
    for (i, s) in timeline.samples.iter().enumerate() {
        let last = i + 1 == timeline.samples.len();
        let long = s.seconds - then;
        let Some(now) = of(s) else { continue };
        if long >= 1.0 || (last && (out.is_empty() || long >= SECOND_MIN)) {
            out.push((s.seconds, now.saturating_sub(before) as f64 / long.max(1e-9)));
            (then, before) = (s.seconds, now);
        }
    }
    out
}

/// Mean and standard deviation.
fn spread(all: &[(f64, f64)]) -> (f64, f64) {
    let count = all.len().max(1) as f64;
    let mean = all.iter().map(|(_, x)| x).sum::<f64>() / count;
    let variance = all.iter().map(|(_, x)| (x - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// A count of a device.
pub(crate) type CountOf = fn(&DeviceBytes) -> u64;

/// The reported counts of each device.
pub(crate) const COUNTS: [(&str, CountOf); 3] = [
    ("read_bytes_per_second", |d| d.read),
    ("written_bytes_per_second", |d| d.written),
    ("busy_millis_per_second", |d| d.busy_millis),
];

/// Cores in use.
pub(crate) fn cores(timeline: &Timeline) -> Vec<(f64, f64)> {
    rates(timeline, |s| Some(s.used.cpu_micros)).into_iter().map(|(t, micros)| (t, micros / 1e6)).collect()
}

/// A device's count, from second to second.
pub(crate) fn of_device(timeline: &Timeline, device: usize, of: CountOf) -> Vec<(f64, f64)> {
    rates(timeline, |s| s.used.devices.get(device).map(of))
}

/// A count of a kind of work.
pub(crate) type TaskCountOf = fn(&TaskUse) -> u64;

/// The figures of each kind of work, second by second: concurrent jobs, and input bytes.
pub(crate) const TASK_COUNTS: [(&str, TaskCountOf); 2] =
    [("busy_micros_per_second", |t| t.busy_micros), ("bytes_in_per_second", |t| t.bytes_in)];

/// A count of a kind of work, second by second.
pub(crate) fn of_task(timeline: &Timeline, task: usize, of: TaskCountOf) -> Vec<(f64, f64)> {
    rates(timeline, |s| s.used.tasks.get(task).map(of))
}

/// The names of the devices in reports, in the order of [`Use::devices`].
pub(crate) const DEVICES: [&str; 2] = ["db", "fast"];

fn spread_json(all: &[(f64, f64)]) -> Value {
    let (mean, deviation) = spread(all);
    json!({ "mean": mean, "standard_deviation": deviation })
}

/// Means and standard deviations of CPU and devices over the seconds of a benchmark, and the devices' totals.
pub(crate) fn to_json(timeline: &Timeline) -> Value {
    let mut out = json!({ "cpu_cores": spread_json(&cores(timeline)) });
    let Some(last) = timeline.samples.last() else { return out };
    for (i, (name, all)) in DEVICES.iter().zip(&last.used.devices).enumerate() {
        let mut device = json!({ "read_bytes": all.read, "written_bytes": all.written });
        for (count, of) in COUNTS {
            device[count] = spread_json(&of_device(timeline, i, of));
        }
        out["devices"][*name] = device;
    }
    let mut jobs_cpu = 0;
    for (i, task) in last.used.tasks.iter().enumerate() {
        let mut v = task_json(task);
        v["cpu_micros"] = task.cpu_micros.into();
        v["bytes_out"] = task.bytes_out.into();
        for (count, of) in TASK_COUNTS {
            v[count] = spread_json(&of_task(timeline, i, of));
        }
        out["tasks"][task.name] = v;
        jobs_cpu += task.cpu_micros.unwrap_or(0);
    }
    if !last.used.tasks.is_empty() {
        // Includes users' calls, appends and index merges.
        out["cpu_micros_outside_of_flushes_and_compactions"] = last.used.cpu_micros.saturating_sub(jobs_cpu).into();
    }
    let of_files = || timeline.samples.iter().filter_map(|s| s.used.fast_bytes);
    if let Some(most) = of_files().map(|(_, all)| all).max() {
        out["fast_bytes_max"] = most.into();
        out["fast_log_bytes_max"] = of_files().map(|(logs, _)| logs).max().into();
    }
    out
}

fn task_json(task: &TaskUse) -> Value {
    json!({ "busy_micros": task.busy_micros, "bytes_in": task.bytes_in })
}

/// What a sample has of it.
pub(crate) fn sample_json(used: &Use) -> Value {
    let numbers: serde_json::Map<String, Value> =
        used.numbers.iter().map(|(name, n)| ((*name).to_owned(), (*n).into())).collect();
    let tasks: serde_json::Map<String, Value> =
        used.tasks.iter().map(|task| (task.name.to_owned(), task_json(task))).collect();
    json!({
        "cpu_micros": used.cpu_micros,
        "devices": used.devices.iter().map(|d| json!([d.read, d.written, d.busy_millis])).collect::<Vec<_>>(),
        "fast_log_bytes": used.fast_bytes.map(|(logs, _)| logs),
        "fast_bytes": used.fast_bytes.map(|(_, all)| all),
        "numbers": numbers,
        "tasks": tasks,
    })
}

/// A line for people.
pub(crate) fn text(timeline: &Timeline) -> String {
    let all = cores(timeline);
    if all.len() < 2 {
        return String::new();
    }
    let (mean, deviation) = spread(&all);
    let mut out = format!("  each second: {mean:.2} cores (standard deviation {deviation:.2})");
    let devices = timeline.samples.last().map_or(0, |s| s.used.devices.len());
    for (i, name) in DEVICES.iter().enumerate().take(devices) {
        let mb = |of: CountOf| {
            let (mean, deviation) = spread(&of_device(timeline, i, of));
            format!("{:.1} ({:.1})", mean / 1e6, deviation / 1e6)
        };
        out += &format!("; device {name}: MB read {}, written {}", mb(COUNTS[0].1), mb(COUNTS[1].1));
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, cpu_micros: u64, written: u64) -> Sample {
        let devices = vec![DeviceBytes { read: 0, written, busy_millis: written / 2 }];
        let flush = TaskUse { name: "flush", busy_micros: cpu_micros / 2, bytes_in: written, ..TaskUse::default() };
        let flush = TaskUse { cpu_micros: Some(cpu_micros / 4), bytes_out: written / 2, ..flush };
        let fast_bytes = Some((written / 4, written / 2));
        let used = Use { cpu_micros, devices, fast_bytes, numbers: vec![("n", 3)], tasks: vec![flush] };
        Sample { seconds, used, ..Sample::default() }
    }

    #[test]
    fn seconds_have_means_and_deviations() {
        let samples = vec![
            sample(0.5, 900_000, 10),
            sample(1.0, 1_000_000, 100),
            sample(2.0, 3_000_000, 400),
            sample(2.2, 9_000_000, 900),
        ];
        let t = Timeline { samples };
        assert_eq!(cores(&t), [(1.0, 1.0), (2.0, 2.0)], "the rest is no second");
        let v = to_json(&t);
        assert_eq!(
            (v["cpu_cores"]["mean"].as_f64(), v["cpu_cores"]["standard_deviation"].as_f64()),
            (Some(1.5), Some(0.5))
        );
        let db = &v["devices"]["db"];
        assert_eq!((db["written_bytes"].as_u64(), db["read_bytes"].as_u64()), (Some(900), Some(0)));
        assert_eq!(db["written_bytes_per_second"]["mean"], 200.0);
        assert_eq!(db["busy_millis_per_second"]["standard_deviation"], 50.0);
        assert!(v["devices"]["fast"].is_null(), "there is one device");
        let flush = &v["tasks"]["flush"];
        assert_eq!((flush["bytes_in"].as_u64(), flush["bytes_out"].as_u64()), (Some(900), Some(450)));
        assert_eq!(flush["busy_micros_per_second"]["mean"], 750_000.0);
        assert_eq!(v["cpu_micros_outside_of_flushes_and_compactions"].as_u64(), Some(6_750_000));
        assert_eq!(sample_json(&t.samples[1].used)["tasks"]["flush"]["bytes_in"], 100);
        assert_eq!((v["fast_bytes_max"].as_u64(), v["fast_log_bytes_max"].as_u64()), (Some(450), Some(225)));
        let short = Timeline { samples: vec![sample(0.25, 500_000, 1)] };
        assert_eq!(cores(&short), [(0.25, 2.0)], "all there is is better than nothing");
        assert!(cores(&Timeline::default()).is_empty() && text(&short).is_empty());
        assert!(text(&t).contains("1.50 cores (standard deviation 0.50); device db"), "{}", text(&t));
    }

    #[test]
    fn a_job_that_ends_takes_nothing_back() {
        let task = |busy_micros, bytes_in| TaskUse { name: "flush", busy_micros, bytes_in, ..TaskUse::default() };
        let (begun, running) = (task(100, 10), task(300, 50));
        let before = running.since(Some(&begun), None);
        assert_eq!((before.busy_micros, before.bytes_in), (200, 40));
        // A finished job is in no list for a moment, and then it is counted.
        let between = begun.since(Some(&begun), Some(&before));
        assert_eq!((between.busy_micros, between.bytes_in), (200, 40));
        let ended = task(350, 55).since(Some(&begun), Some(&between));
        assert_eq!((ended.busy_micros, ended.bytes_in), (250, 45));
    }

    #[test]
    fn a_directory_on_the_same_device_is_no_second_device() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("fast/tables")).unwrap();
        fs::write(dir.path().join("fast/1.log"), [1; 5000]).unwrap();
        fs::write(dir.path().join("fast/tables/2.sst"), [1; 7000]).unwrap();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let f = Flags { db: text(dir.path().join("db")), fast_path: text(dir.path().join("fast")), ..Flags::default() };
        let places = Places::new(&f);
        assert!(places.devices().len() <= 1 && !places.nested);
        assert_eq!(places.fast_bytes(), Some((5000, 12_000)));
        assert_eq!(Places::new(&Flags { db: f.db, ..Flags::default() }).fast_bytes(), None);
    }
}
