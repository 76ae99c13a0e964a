//! Sector-aligned buffers for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of memory, offsets and lengths for direct I/O. Every disk's logical block divides it.
pub const ALIGNMENT: usize = 4096;

/// Rounds down to a multiple of `block`, a power of two.
#[inline]
pub(crate) const fn down_to(n: u64, block: u64) -> u64 {
    n & !(block - 1)
}

/// Rounds up to a multiple of `block`, a power of two; saturates at the last multiple that fits.
#[inline]
pub(crate) const fn up_to(n: u64, block: u64) -> u64 {
    down_to(n.saturating_add(block - 1), block)
}

/// Rounds down to a multiple of [`ALIGNMENT`].
#[inline]
pub const fn align_down(n: u64) -> u64 {
    down_to(n, ALIGNMENT as u64)
}

/// Rounds up to a multiple of [`ALIGNMENT`]; saturates at the last multiple that fits.
#[inline]
pub const fn align_up(n: u64) -> u64 {
    up_to(n, ALIGNMENT as u64)
}

/// Heap memory that starts at a multiple of [`ALIGNMENT`] and is a multiple of it long, always initialised.
///
/// Dereferences to all of its capacity: who uses it keeps the used length. An empty one owns no memory.
#[derive(Debug)]
pub struct AlignedBuf {
    start: NonNull<u8>,
    capacity: usize,
    /// Bytes of the allocation that lie before `start`.
    before: usize,
}

/// From so many bytes on the allocator is asked for memory without an alignment, and for a page more: it then hands on
/// zeroed pages of the kernel's as they are, where it would fill aligned ones with zeros itself, used or not.
const PLAIN_BYTES_MIN: usize = 256 << 10;

// SAFETY: the buffer owns its memory alone, and shared access to it is read-only; it is a Vec<u8> but for alignment.
unsafe impl Send for AlignedBuf {}
// SAFETY: see above.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer without memory.
    pub const fn empty() -> Self {
        Self { start: NonNull::dangling(), capacity: 0, before: 0 }
    }

    /// At least `capacity` zeroed bytes, rounded up to the alignment.
    ///
    /// # Panics
    ///
    /// When the capacity is beyond what the address space allows, as `Vec` does.
    pub fn with_capacity(capacity: usize) -> Self {
        if capacity == 0 {
            return Self::empty();
        }
        let capacity = capacity.checked_next_multiple_of(ALIGNMENT).expect("capacity overflow");
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero: the capacity is not, and it was rounded up.
        let whole = unsafe { alloc_zeroed(layout) };
        let Some(whole) = NonNull::new(whole) else { handle_alloc_error(layout) };
        // Zero where the layout is aligned; otherwise less than the page by which it is larger than the capacity.
        let before = whole.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        // SAFETY: `before` and `capacity` bytes lie within the allocation, see above.
        let start = unsafe { whole.add(before) };
        Self { start, capacity, before }
    }

    /// Makes room for `capacity` bytes and keeps the first `used` ones. Does nothing when they fit already.
    pub fn grow(&mut self, capacity: usize, used: usize) {
        if capacity <= self.capacity {
            return;
        }
        let mut larger = Self::with_capacity(capacity);
        larger[..used].copy_from_slice(&self[..used]);
        *self = larger;
    }

    /// Bytes in it.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Of the whole allocation for a capacity, a multiple of the alignment.
    fn layout(capacity: usize) -> Layout {
        let layout = match capacity < PLAIN_BYTES_MIN {
            true => Layout::from_size_align(capacity, ALIGNMENT),
            false => Layout::from_size_align(capacity.saturating_add(ALIGNMENT), align_of::<usize>()),
        };
        layout.expect("capacity overflow")
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        Self::empty()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `capacity` bytes, all initialised by alloc_zeroed and later writes; when the
        // capacity is 0 it is dangling, which an empty slice allows.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.capacity != 0 {
            // SAFETY: allocated in `with_capacity` with this very layout, `before` bytes earlier, and freed only here.
            unsafe { dealloc(self.start.sub(self.before).as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_rounded_up() {
        for wanted in [1, 4095, 4096, 4097, PLAIN_BYTES_MIN - 1, PLAIN_BYTES_MIN] {
            let buf = AlignedBuf::with_capacity(wanted);
            assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buf.capacity(), wanted.next_multiple_of(ALIGNMENT));
            assert!(buf.iter().all(|&b| b == 0));
        }
        assert!(AlignedBuf::with_capacity(0).is_empty());
    }

    #[test]
    fn growing_keeps_what_was_used() {
        let mut buf = AlignedBuf::with_capacity(4096);
        buf[..5].copy_from_slice(b"hello");
        buf.grow(10_000, 5);
        assert_eq!(buf.capacity(), 12288);
        assert_eq!(&buf[..6], b"hello\0");
        let before = buf.as_ptr();
        buf.grow(100, 5);
        assert_eq!(buf.as_ptr(), before);
        let mut none = AlignedBuf::empty();
        none.grow(1, 0);
        assert_eq!(none.capacity(), 4096);
    }

    #[test]
    fn rounding() {
        assert_eq!((align_down(4095), align_down(4096), align_down(8191)), (0, 4096, 4096));
        assert_eq!((align_up(0), align_up(1), align_up(4096), align_up(4097)), (0, 4096, 4096, 8192));
        assert_eq!(align_up(u64::MAX) % 4096, 0);
    }
}
