//! CPU time of threads.

/// CPU time of the current thread, from the kernel's scheduler statistics.
pub(super) struct ThreadCpu(Option<u64>);

impl ThreadCpu {
    pub fn now() -> Self {
        Self(thread_cpu_nanos())
    }

    /// Microseconds since the start; 0 if the kernel does not tell.
    pub fn elapsed_micros(&self) -> u64 {
        match (self.0, thread_cpu_nanos()) {
            (Some(before), Some(now)) => now.saturating_sub(before) / 1000,
            _ => 0,
        }
    }
}

fn thread_cpu_nanos() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
