//! CPU time of this process.

/// User and system time of all threads so far, in seconds.
pub fn process_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid place for one `rusage`, and `getrusage` writes nothing else.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0;
    if failed {
        return 0.0;
    }
    // SAFETY: the call succeeded, so it filled the structure, which was zeroed and is valid either way.
    let usage = unsafe { usage.assume_init() };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_takes_time() {
        let before = super::process_seconds();
        let mut x = 1u64;
        while super::process_seconds() - before < 0.01 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(x != 0);
    }
}
