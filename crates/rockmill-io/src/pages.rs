//! Memory directly from the kernel, on huge pages if available.
//!
//! For large, reused memory with random access: on 4 KiB pages, each first touch is a page fault, and each access a TLB
//! miss, which is even more expensive under a hypervisor.

use std::fmt;
use std::io;
use std::ptr::NonNull;

/// Size unit and alignment of pieces: a huge page of x86-64, and of ARM with pages of 4 KiB.
pub const PIECE: usize = 2 << 20;

/// A separate piece of memory: whole huge pages, all zero at first. Its owner decides which thread may access which
/// part.
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by this value alone, and nothing is reached through a shared one but its address.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `len` bytes, rounded up to whole [pieces](PIECE). Requests huge pages; if transparent huge pages are
    /// disabled, uses small ones.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).checked_next_multiple_of(PIECE).filter(|&n| n <= isize::MAX as usize - PIECE);
        let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { start: map(len)?, len })
    }

    /// Touches every page, so that later uses do not wait for page faults.
    pub fn touch(&mut self) {
        for at in (0..self.len).step_by(4096) {
            // SAFETY: within the piece, which `&mut self` makes this thread's alone.
            unsafe { self.start.add(at).write_volatile(0) };
        }
    }

    /// Its start, for the whole of it.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(not(miri))]
fn map(len: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let wide = len + PIECE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that exists.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), wide, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapped = mapped.cast::<u8>();
    let before = mapped.addr().wrapping_neg() % PIECE;
    let after = wide - before - len;
    // SAFETY: `before` is less than a piece, so within the mapping.
    let start = unsafe { mapped.add(before) };
    for (at, len) in [(mapped, before), (start.wrapping_add(len), after)] {
        if len > 0 {
            // SAFETY: both ranges are whole pages of the mapping just made, outside of what is kept. That they cannot
            // be unmapped would only leave address space unused.
            unsafe { libc::munmap(at.cast(), len) };
        }
    }
    // SAFETY: the range is what is kept of the mapping; the advice does not change its contents, and it is no matter
    // whether it is taken.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE)
    };
    NonNull::new(start).ok_or_else(|| io::Error::other("mmap gave the address 0"))
}

#[cfg(not(miri))]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and owned by this value alone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(miri)]
fn layout(len: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(len, PIECE).expect("a length that `new` has checked")
}

#[cfg(miri)]
fn map(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the length is not zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(len)) })
        .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(miri)]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `map` with this layout, and owned by this value alone.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), layout(self.len)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_aligned_zero_and_apart() {
        let all: Vec<Pages> = [1, PIECE, PIECE + 1].into_iter().map(|len| Pages::new(len).unwrap()).collect();
        assert_eq!(all.iter().map(Pages::len).collect::<Vec<_>>(), [PIECE, PIECE, 2 * PIECE]);
        let mut ranges: Vec<_> = all.iter().map(|p| (p.start().addr().get(), p.len())).collect();
        ranges.sort_unstable();
        assert!(ranges.iter().all(|(start, _)| start % PIECE == 0));
        assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        for mut p in all {
            p.touch();
            for at in [0, p.len() / 2, p.len() - 1] {
                // SAFETY: within the piece, which is initialised and nobody else's.
                unsafe {
                    assert_eq!(p.start().add(at).read(), 0);
                    p.start().add(at).write(1);
                }
            }
        }
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        assert!(Pages::new(usize::MAX).is_err());
        assert!(Pages::new(isize::MAX as usize - 1).is_err());
    }
}
