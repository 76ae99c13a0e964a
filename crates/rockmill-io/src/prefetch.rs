//! Tells the CPU about memory that is needed soon.

/// Bytes that the CPU fetches at once.
const LINE: usize = 64;

/// Begins to load `bytes` into the caches. Affects only speed; does nothing if the CPU has no such instruction.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint about memory that a slice holds; it reads nothing for the program.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (bytes, LINE);
}
