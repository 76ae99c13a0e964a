//! The rate that writers get, learned from what compactions can take in.
//!
//! A pure state machine in given times, for the store and the simulator alike. It knows the pressure
//! (`write_control.rs`) and how much was written, and keeps one number, the *sustained* rate S:
//!
//! - Writers get S / p^2 below the slowdown trigger (p < 1) and S (2 - p)^2 above it: S at the trigger, with the same
//!   slope on both sides, without bound where there is no pressure, and nothing (a few KiB) at the stop trigger.
//! - As long as p is below 1 and writers do write more than S, S grows; above 1 it shrinks. The relative change is the
//!   bytes that would be written at S meanwhile, divided by [`WINDOW`] times the bytes from the slowdown to the stop
//!   trigger. So whatever the size of memtables and the speed of the device, the two integrators (the tree, and S) are
//!   damped: with x = p - 1, y = S / S* - 1 and time in units of that way by S*, x' = y - 2 x and y' = -2 x / WINDOW,
//!   whose roots are real from WINDOW = 2 on.
//! - S begins, when there is pressure for the first time, with what writers wrote lately ([`LATELY_SECONDS`]), at
//!   least `delayed_write_rate`. That may be too much, since the tree grew meanwhile, but it is not a guess. A guess
//!   that is far too low would hold up writers long before the slowdown trigger until S has been learned, which takes
//!   longer the lower S is.
//! - Without pressure writers are not limited, and nothing is learned. But if the slope's triggers are so close that p
//!   jumps over everything below 1, S would only fall. In that case it grows by a tenth each time that pressure comes
//!   back, at most to what writers wrote lately.

use crate::pacing::common::{BytesPerSecond, LATELY_SECONDS, Seconds};
use crate::pacing::write_control::WriteControl;

/// Time constant in which S is learned, in units of the bytes from the slowdown trigger to the stop trigger at rate S.
/// Derived: from 2 on the loop does not oscillate (the module's text); 3 leaves a margin. In the model of the tests
/// half or twice of it changes throughput by less than 0.5 %; with twice of it, rates are still 8 % off long after a
/// step.
const WINDOW: f64 = 3.0;
/// The lowest rate. RocksDB's `kMinWriteRate`.
const RATE_MIN: BytesPerSecond = 16.0 * 1024.0;
/// The step by which S grows each time that pressure comes back where the slope has no room. Simulated with a slowdown
/// trigger next to the compaction trigger: half or twice the step has 6 and 2 % less throughput, none 8 %.
const STEP_FACTOR: f64 = 1.1;
/// The most by which S changes in one update, as a part of it, however long ago the last update was. Derived: after a
/// pause of writers it is unknown what compactions took in meanwhile. Simulated: while writers write, no update comes
/// near it, and 24 fills without it are the same.
const CHANGE_MAX: f64 = 0.1;
/// The shortest time between two updates. Each write asks for one, but learning takes seconds. Simulated: half, twice
/// or nothing of it changes throughput by less than 4 %, and no wait.
const LOOK_SECONDS: Seconds = 1e-3;

/// How fast writers may write.
#[derive(Debug, Clone)]
pub struct RateControl {
    /// What compactions can take in, as far as is known.
    pub sustained: BytesPerSecond,
    /// There was pressure, so `sustained` is learned from now on.
    begun: bool,
    /// Pressure was between 0 and 1 since it last rose from 0.
    grew: bool,
    /// What writers wrote in the last seconds.
    before: BytesPerSecond,
    pressure: f64,
    span_bytes: f64,
    seen: Option<Seen>,
}

/// Until when what was written is taken into account, and how much that was.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Seconds,
    written: f64,
}

impl Default for RateControl {
    fn default() -> Self {
        Self { sustained: 0.0, begun: false, grew: false, before: 0.0, pressure: 0.0, span_bytes: 1e9, seen: None }
    }
}

/// Part of S that writers get.
fn share(pressure: f64) -> f64 {
    match pressure {
        p if p <= 0.0 => f64::INFINITY,
        p if p <= 1.0 => 1.0 / (p * p),
        p => (2.0 - p).max(0.0).powi(2),
    }
}

impl RateControl {
    /// The tree's pressure from now on. S begins with at least `delayed_write_rate`. `written`: all bytes written so
    /// far.
    pub fn set(&mut self, now: Seconds, control: &WriteControl, delayed_write_rate: BytesPerSecond, written: f64) {
        if self.sustained <= 0.0 {
            self.sustained = delayed_write_rate.max(RATE_MIN);
        }
        self.observe(now, written);
        if self.pressure <= 0.0 && control.pressure > 0.0 {
            // The first time S becomes all of it. Later it grows by a step, since a burst is not a sustainable rate,
            // and only if the slope has no room for a pressure below 1, with which the rate would grow.
            let most = match (self.begun, self.grew) {
                (false, _) => f64::INFINITY,
                (true, false) => self.sustained * STEP_FACTOR,
                (true, true) => 0.0,
            };
            self.sustained = self.sustained.max(self.before.min(most));
            (self.begun, self.grew) = (true, false);
        }
        self.grew |= control.pressure > 0.0 && control.pressure < 1.0;
        (self.pressure, self.span_bytes) = (control.pressure, control.span_bytes.max(1.0));
    }

    /// Notes how much was written until now.
    pub fn observe(&mut self, now: Seconds, written: f64) {
        let Some(before) = self.seen else {
            self.seen = Some(Seen { at: now, written });
            return;
        };
        let seconds = now - before.at;
        if seconds < LOOK_SECONDS {
            return;
        }
        self.seen = Some(Seen { at: now, written });
        let rate = (written - before.written).max(0.0) / seconds;
        let old = (-seconds / LATELY_SECONDS).exp();
        self.before = self.before * old + rate * (1.0 - old);
        if self.pressure <= 0.0 {
            return;
        }
        let wrote = rate / self.sustained.max(1.0);
        let by = match share(self.pressure) {
            share if self.pressure < 1.0 => wrote.min(share).max(1.0),
            share => share,
        };
        let part = (self.sustained * seconds / (WINDOW * self.span_bytes)).min(CHANGE_MAX);
        self.sustained = (self.sustained * (1.0 + (by - 1.0) * part)).max(RATE_MIN);
    }

    /// The rate that writers get; infinite if they are not limited.
    pub fn rate(&self) -> BytesPerSecond {
        if self.pressure > 0.0 { (self.sustained * share(self.pressure)).max(RATE_MIN) } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacing::write_control::{Slope, StallReason};

    /// An L0 into which writers' memtables go and which compactions empty, some files at a time.
    struct Model {
        control: RateControl,
        file: f64,
        /// Files in L0 and those that the running compaction has.
        l0: f64,
        written: f64,
        now: f64,
        /// What compactions owe: bytes drained and not yet taken out of L0, since a job ends as a whole.
        drained: f64,
        job_files: f64,
    }

    const MB: f64 = (1u64 << 20) as f64;
    const SLOPE: Slope = Slope { begin: 12.0, slowdown: 20.0, stop: 36.0 };
    const STEP: f64 = 0.005;

    impl Model {
        fn new(file: f64, job_files: f64) -> Self {
            Self { control: RateControl::default(), file, l0: 0.0, written: 0.0, now: 0.0, drained: 0.0, job_files }
        }

        fn pressure(&self) -> f64 {
            SLOPE.pressure(self.l0.floor())
        }

        /// Continues for `seconds`. Returns the bytes written, the highest L0, and the lowest and highest rate of whole
        /// seconds.
        fn run(&mut self, seconds: f64, demand: f64, drain: f64) -> (f64, f64, f64, f64) {
            let (from, until) = (self.written, self.now + seconds);
            let (mut top, mut low, mut high) = (0.0f64, f64::INFINITY, 0.0f64);
            let mut second = (self.now, self.written);
            while self.now < until {
                let control = WriteControl {
                    pressure: self.pressure(),
                    reason: StallReason::L0Files,
                    behind: true,
                    span_bytes: 16.0 * self.file,
                };
                self.control.set(self.now, &control, 16.0 * MB, self.written);
                let rate = if self.l0 >= 36.0 { 0.0 } else { self.control.rate().min(demand) };
                self.written += rate * STEP;
                self.l0 += rate * STEP / self.file;
                self.drained = (self.drained + drain * STEP).min(self.l0.min(self.job_files) * self.file);
                if self.job_files == 0.0 {
                    self.l0 = (self.l0 - drain * STEP / self.file).max(0.0);
                } else if self.drained >= self.job_files * self.file {
                    self.l0 -= self.job_files;
                    self.drained = 0.0;
                }
                self.now += STEP;
                top = top.max(self.l0);
                if self.now - second.0 >= 1.0 {
                    let rate = (self.written - second.1) / (self.now - second.0);
                    (low, high) = (low.min(rate), high.max(rate));
                    second = (self.now, self.written);
                }
            }
            (self.written - from, top, low, high)
        }
    }

    #[test]
    fn the_rate_has_no_step() {
        let mut c = RateControl::default();
        let at = |p: f64| WriteControl { pressure: p, ..WriteControl::default() };
        c.set(0.0, &at(0.001), 16.0 * MB, 0.0);
        let mut last = c.rate();
        for i in 2..2000 {
            let p = f64::from(i) / 1000.0;
            c.set(0.0, &at(p), 16.0 * MB, 0.0);
            let rate = c.rate();
            assert!(rate <= last && (!(0.1..=1.9).contains(&p) || rate > last * 0.95), "{p}: {last} to {rate}");
            last = rate;
        }
        c.set(0.0, &at(1.0), 16.0 * MB, 0.0);
        c.set(0.0, &at(2.0), 16.0 * MB, 0.0);
        assert_eq!(c.rate(), RATE_MIN, "at the stop trigger");
    }

    /// Sixteen megabytes a tenth of a second, as a device takes them; L0 then has a file too many.
    #[test]
    fn the_first_pressure_finds_what_writers_write() {
        let at = |p: f64| WriteControl { pressure: p, span_bytes: 256.0 * MB, ..WriteControl::default() };
        for (seconds, at_least, at_most) in [(0.0, 8.0, 8.0), (0.5, 10.0, 20.0), (8.0, 120.0, 135.0)] {
            let (mut c, mut now, mut written) = (RateControl::default(), 1000.0, 0.0);
            c.set(now, &at(0.0), 8.0 * MB, written);
            while now < 1000.0 + seconds {
                (now, written) = (now + 0.1, written + 16.0 * MB);
                c.set(now, &at(0.0), 8.0 * MB, written);
            }
            assert_eq!(c.rate(), f64::INFINITY);
            c.set(now, &at(0.5), 8.0 * MB, written);
            let s = c.sustained / MB;
            assert!((at_least..=at_most).contains(&s), "{seconds} s: {s} MiB/s");
            // Later changes are learned, but not fully at once.
            (now, written) = (now + 1.0, written + 1000.0 * MB);
            c.set(now, &at(0.0), 8.0 * MB, written);
            c.set(now, &at(0.5), 8.0 * MB, written);
            assert!(c.sustained < s * 1.31 * MB, "{} after {s} MiB/s", c.sustained / MB);
        }
    }

    /// From no pressure to the slowdown trigger at once, as where it is next to the compaction trigger.
    #[test]
    fn the_rate_comes_back_where_the_slope_has_no_room() {
        let at = |p: f64| WriteControl { pressure: p, span_bytes: 1024.0 * MB, ..WriteControl::default() };
        let (mut c, mut now, mut written) = (RateControl::default(), 0.0, 0.0);
        let mut run = |c: &mut RateControl, pressure: f64, seconds: f64, most: f64| {
            for _ in 0..(seconds / 0.01) as usize {
                c.set(now, &at(pressure), 16.0 * MB, written);
                now += 0.01;
                written += c.rate().min(most) * 0.01;
            }
        };
        run(&mut c, 0.0, 60.0, 100.0 * MB);
        run(&mut c, 1.9, 3600.0, 100.0 * MB);
        let low = c.sustained;
        assert!(low < 10.0 * MB, "{low}");
        for _ in 0..60 {
            run(&mut c, 0.0, 20.0, 100.0 * MB);
            run(&mut c, 1.0, 1.0, 100.0 * MB);
        }
        assert!((50.0 * MB..=110.0 * MB).contains(&c.sustained), "{low} became {}", c.sustained);
    }

    /// The step response: compactions become four times as slow, or as fast, and nobody waits for long.
    #[test]
    fn a_change_of_what_compactions_take_in_is_followed_without_a_stop() {
        for job_files in [0.0, 8.0] {
            let mut m = Model::new(64.0 * MB, job_files);
            for drain in [100.0, 25.0, 100.0, 400.0, 100.0, 10.0] {
                let settling = 64.0 * 64.0 / drain * 2.0 + 60.0;
                let (_, top, low, _) = m.run(settling, 1000.0 * MB, drain * MB);
                assert!(top < 35.0, "{drain} MB/s, jobs of {job_files}: {top} files");
                // A write of 1 KiB, ten milliseconds at most.
                assert!(low > 100.0 * 1024.0, "{drain} MB/s, jobs of {job_files}: {low} bytes in a second");
                let (wrote, _, low, high) = m.run(400.0, 1000.0 * MB, drain * MB);
                let got = wrote / 400.0 / MB / drain;
                assert!((0.93..1.07).contains(&got), "{got} of {drain} MB/s, jobs of {job_files}");
                if job_files == 0.0 {
                    assert!(high / low < 1.25, "settled at {} to {} MB/s", low / MB, high / MB);
                }
            }
        }
    }

    /// Whatever writers want and compactions take in, by how much at a time, debt stays below its bound and writers get
    /// what there is.
    #[test]
    fn debt_stays_in_its_bound_and_writers_get_what_is_taken_in() {
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let file = (1.0 + rng.f64() * 63.0) * MB;
            let files_per_second = 0.1 * 100f64.powf(rng.f64());
            let drain = file * files_per_second;
            let (want, job_files) = (0.2 * 200f64.powf(rng.f64()), f64::from(rng.u32(0..12)));
            let mut m = Model::new(file, job_files);
            let long = 400.0 / files_per_second;
            m.run(long, drain * want, drain);
            let (wrote, top, ..) = m.run(long, drain * want, drain);
            let what = format!("seed {seed}: {files_per_second} files/s, {want} wanted, {job_files} files a job");
            assert!(top < 36.0, "{what}: {top} files, writers stopped");
            let got = wrote / long / (drain * want.min(1.0));
            assert!((0.9..1.1).contains(&got), "{what}: {got} of what could be");
        }
    }
}
