//! The resources that one input took: memory, counted by an allocator, and processor time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with counters. A test binary names it as its `#[global_allocator]`.
#[derive(Debug)]
pub struct Counted;

fn took(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(live, Relaxed);
    LARGEST.fetch_max(bytes, Relaxed);
}

fn gave(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

// SAFETY: every call goes to `System` with the arguments it came with; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counted {
    /// # Safety
    /// What [`GlobalAlloc`] asks of the caller.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    /// What [`GlobalAlloc`] asks of the caller.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    /// # Safety
    /// What [`GlobalAlloc`] asks of the caller.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    /// # Safety
    /// What [`GlobalAlloc`] asks of the caller.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        took(new_size);
        gave(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Memory allocated since [`start`].
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Maximum bytes in use, above those at the start.
    pub peak: usize,
    /// The largest single allocation, in bytes.
    pub largest: usize,
}

/// Starts a measurement and returns the bytes in use, for [`since`]. Only one measurement at a time.
pub fn start() -> usize {
    let live = LIVE.load(Relaxed);
    PEAK.store(live, Relaxed);
    LARGEST.store(0, Relaxed);
    live
}

/// Memory that all threads have taken since `start` returned this number.
pub fn since(start: usize) -> Use {
    Use { peak: PEAK.load(Relaxed).saturating_sub(start), largest: LARGEST.load(Relaxed) }
}

/// Processor time of all threads of the process, if the system reports it (Linux). Unlike the wall-clock time, it does
/// not depend on the machine's other work.
pub fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may have spaces. It is followed by the state; the 12th and 13th fields after it are the
    // user time and the system time, in hundredths of a second.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
    Some(Duration::from_millis((user + system) * 10))
}

/// Limit for the memory of one input: this, plus [`MEMORY_PER_BYTE`] for each byte of it and of its files.
const MEMORY: usize = 64 << 20;
const MEMORY_PER_BYTE: usize = 4;
/// Limit for the time of one input: this, plus [`TIME_PER_BYTE`] for each byte of it and of its files.
const TIME: Duration = Duration::from_secs(20);
const TIME_PER_BYTE: Duration = Duration::from_micros(40);

/// Describes what an input took beyond its limits; `size` is the bytes of it and of its files.
pub fn beyond(size: usize, used: Use, time: Duration) -> Vec<String> {
    let mut broken = Vec::new();
    let (memory, longest) = (MEMORY + MEMORY_PER_BYTE * size, TIME + TIME_PER_BYTE * size as u32);
    if used.peak > memory {
        broken.push(format!("{} bytes of memory (largest {}), at most {memory}", used.peak, used.largest));
    }
    if time > longest {
        broken.push(format!("{time:?}, at most {longest:?} for {size} bytes"));
    }
    broken
}

/// Runs a target for libFuzzer, which counts only the memory of the whole process, with the same limits as the tests.
/// Time is wall-clock time here: reading the processor time costs too much for a million inputs.
///
/// # Panics
/// A promise is broken, or there is no such target.
pub fn watched(target: &str, data: &[u8]) {
    let body = crate::TARGETS.iter().find(|(name, _)| *name == target).expect("a target").1;
    let size = data.len() + crate::room_of(target);
    let (start, clock) = (start(), Instant::now());
    body(data);
    let broken = beyond(size, since(start), clock.elapsed());
    assert!(broken.is_empty(), "{}", broken.join("; "));
}
