//! The memory that transfers go to and come from.
//!
//! 1. An [`Arena`] is one mapping, on huge pages where the kernel gives them: fewer entries in the TLB and fewer pages
//!    to pin for each transfer are worth a quarter of a merge's time. It lives as long as anything in it. The kernel
//!    takes milliseconds to find huge pages, so only as many are made ready as are wanted, and more later if needed.
//! 2. A [`Pool`] is a region of it, cut into slots of one size: one for each stream or file, so that nothing fragments.
//! 3. A [`Lease`] owns one slot. Its owner may read and write the slot; giving the lease to a transfer gives the slot
//!    away until the completion returns it; dropping the lease frees the slot.
//!
//! Invariants: regions of live pools do not overlap; a slot is in its pool's free list or in exactly one lease; all
//! memory is initialised from the start (the kernel gives zeros).

use crate::aligned::{ALIGNMENT, AlignedBuf, align_up};
use crate::sync::Mutex;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Size of the huge pages that an arena asks for.
const HUGE_PAGE: usize = 2 << 20;

/// MADV_COLLAPSE of Linux 6.1: make huge pages of this range now, and say whether that worked.
#[cfg(target_os = "linux")]
const MADV_COLLAPSE: libc::c_int = 25;

/// What the kernel gave for an arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pages {
    /// Pages reserved by the administrator (`vm.nr_hugepages`).
    HugeTlb,
    /// Transparent huge pages, all of it.
    Transparent,
    /// Transparent huge pages were asked for; an older kernel does not say whether they came.
    TransparentAsked,
    /// Pages of the usual size, and why.
    Small(String),
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pages::HugeTlb => f.write_str("reserved huge pages"),
            Pages::Transparent => f.write_str("transparent huge pages"),
            Pages::TransparentAsked => f.write_str("transparent huge pages, asked for"),
            Pages::Small(why) => write!(f, "small pages ({why})"),
        }
    }
}

/// A private anonymous mapping.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is memory owned by this value alone; who may touch which part of it is the leases' matter.
unsafe impl Send for Mapping {}
// SAFETY: as above: nothing is reached through a shared `Mapping` but its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(len: usize, flags: libc::c_int) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap gave the address 0"))?;
        Ok(Self { start, len })
    }

    /// Maps so that it starts at a huge page's start.
    fn map_for_huge(len: usize) -> io::Result<Self> {
        let wide = std::mem::ManuallyDrop::new(Self::map(len + HUGE_PAGE, 0)?);
        let before = wide.start.addr().get().wrapping_neg() % HUGE_PAGE;
        let after = wide.len - before - len;
        // SAFETY: `before` is within the mapping.
        let start = unsafe { wide.start.add(before) };
        let this = Self { start, len };
        for (at, len) in [(wide.start.as_ptr(), before), (start.as_ptr().wrapping_add(len), after)] {
            if len > 0 {
                // SAFETY: both ranges are whole pages of the mapping just made, outside of what `this` keeps. That
                // they cannot be unmapped would only leave address space unused.
                unsafe { libc::munmap(at.cast(), len) };
            }
        }
        Ok(this)
    }

    /// Gives the kernel advice about a part that begins and ends at pages; one beyond the mapping is cut to it.
    #[cfg(target_os = "linux")]
    fn advise(&self, part: Range<usize>, advice: libc::c_int) -> io::Result<()> {
        let (start, end) = (part.start.min(self.len), part.end.min(self.len));
        // SAFETY: the range is of this mapping; none of the advices used here changes its contents.
        match unsafe { libc::madvise(self.start.as_ptr().add(start).cast(), end.saturating_sub(start), advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The second value is what all of it is on, when it is ready as a whole.
    #[cfg(target_os = "linux")]
    fn huge(len: usize) -> io::Result<(Self, Option<Pages>)> {
        if let Ok(mapping) = Self::map(len, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
            return Ok((mapping, Some(Pages::HugeTlb)));
        }
        let mapping = Self::map_for_huge(len)?;
        // Collapsing would work even if the administrator has switched huge pages off, and that decision must be
        // respected.
        let allowed = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let small = if allowed.contains("[never]") {
            Some(Pages::Small("transparent huge pages are switched off".to_string()))
        } else {
            let asked = mapping.advise(0..len, libc::MADV_HUGEPAGE);
            asked.err().map(|e| Pages::Small(format!("madvise(MADV_HUGEPAGE): {e}")))
        };
        Ok((mapping, small))
    }

    /// Makes the kernel find huge pages for a part now.
    #[cfg(target_os = "linux")]
    fn make_ready(&self, part: Range<usize>) -> Pages {
        // Faults everything in; older kernels do not know it, and the first use faults it in then.
        let _ = self.advise(part.clone(), libc::MADV_POPULATE_WRITE);
        match self.advise(part, MADV_COLLAPSE) {
            Ok(()) => Pages::Transparent,
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Pages::TransparentAsked,
            Err(e) => Pages::Small(format!("no huge pages to be had: {e}")),
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Mapping {
    fn huge(len: usize) -> io::Result<(Self, Option<Pages>)> {
        Ok((Self::map_for_huge(len)?, Some(Self::small())))
    }

    fn make_ready(&self, _part: Range<usize>) -> Pages {
        Self::small()
    }

    fn small() -> Pages {
        Pages::Small("huge pages are asked for on Linux only".to_string())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is whole and nobody has a lease in it any more: they keep the arena alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Memory for transfers: one mapping for the life of a queue.
pub struct Arena {
    mapping: Mapping,
    /// Size of the requested pages.
    page: usize,
    parts: Mutex<Parts>,
}

/// How an arena is used.
#[derive(Debug)]
struct Parts {
    /// Regions of live pools, in order.
    regions: Vec<Range<usize>>,
    /// Bytes from the start that are ready; pools lie within.
    ready: usize,
    /// What these are on.
    pages: Option<Pages>,
}

impl Parts {
    fn free_bytes(&self) -> usize {
        self.ready - self.regions.iter().map(ExactSizeIterator::len).sum::<usize>()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("mapped", &self.mapping.len).field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl Arena {
    /// Maps `bytes`, rounded up to whole pages of the kind asked for, and makes them ready.
    pub fn new(bytes: usize, huge: bool) -> io::Result<Arc<Self>> {
        Self::with_ready(bytes, bytes, huge)
    }

    /// The same, with only the first `ready` bytes ready, until [`grow`](Self::grow) wants more.
    pub fn with_ready(bytes: usize, ready: usize, huge: bool) -> io::Result<Arc<Self>> {
        let too_much = || io::Error::new(io::ErrorKind::OutOfMemory, format!("an arena of {bytes} bytes"));
        let page = if huge { HUGE_PAGE } else { ALIGNMENT };
        let len = bytes.max(1).checked_next_multiple_of(page).filter(|n| *n < isize::MAX as usize - HUGE_PAGE);
        let len = len.ok_or_else(too_much)?;
        let (mapping, pages) = match huge {
            true => Mapping::huge(len)?,
            false => (Mapping::map(len, 0)?, Some(Pages::Small("huge pages were not asked for".to_string()))),
        };
        let reserved = if pages == Some(Pages::HugeTlb) { len } else { 0 };
        let parts = Mutex::new(Parts { regions: Vec::new(), ready: reserved, pages });
        let this = Self { mapping, page, parts };
        this.grow(ready.max(1));
        Ok(Arc::new(this))
    }

    /// Makes the first `bytes` ready, or all of it where that is less. True when that are more than were before.
    pub fn grow(&self, bytes: usize) -> bool {
        let wanted = bytes.checked_next_multiple_of(self.page).unwrap_or(usize::MAX).min(self.mapping.len);
        let mut parts = self.parts.lock();
        if wanted <= parts.ready {
            return false;
        }
        if matches!(parts.pages, None | Some(Pages::Transparent)) {
            // If this part cannot get huge pages, they are not requested again.
            parts.pages = Some(self.mapping.make_ready(parts.ready..wanted));
        }
        parts.ready = wanted;
        true
    }

    /// Bytes that are ready.
    pub fn bytes(&self) -> usize {
        self.parts.lock().ready
    }

    /// Bytes that are ready and that no pool has.
    pub fn free_bytes(&self) -> usize {
        self.parts.lock().free_bytes()
    }

    /// True when no pool lives.
    pub fn is_unused(&self) -> bool {
        self.parts.lock().regions.is_empty()
    }

    /// On which pages it is.
    pub fn pages(&self) -> Pages {
        self.parts.lock().pages.clone().unwrap_or(Pages::TransparentAsked)
    }

    /// Where it starts, for registration.
    pub(super) fn start(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// Cuts a region of `count` slots of `slot_bytes` each (rounded up to the alignment) off the first place that is
    /// large enough. `None` when none is.
    pub fn pool(self: &Arc<Self>, slot_bytes: usize, count: usize) -> Option<Arc<Pool>> {
        let slot_bytes = align_up(slot_bytes.max(1) as u64) as usize;
        let mut parts = self.parts.lock();
        let Parts { regions, ready, .. } = &mut *parts;
        let len = slot_bytes.checked_mul(count).filter(|len| (1..=*ready).contains(len))?;
        let mut start = 0;
        let mut place = regions.len();
        for (i, taken) in regions.iter().enumerate() {
            if taken.start - start >= len {
                place = i;
                break;
            }
            start = taken.end;
        }
        if start > *ready - len {
            return None;
        }
        regions.insert(place, start..start + len);
        // From the back, so that the first slots are used first.
        let free = (0..u32::try_from(count).ok()?).rev().collect();
        Some(Arc::new(Pool { arena: Arc::clone(self), start, slot_bytes, count, free: Mutex::new(free) }))
    }
}

/// Slots of one size.
#[derive(Debug)]
pub struct Pool {
    arena: Arc<Arena>,
    start: usize,
    slot_bytes: usize,
    count: usize,
    free: Mutex<Vec<u32>>,
}

impl Pool {
    /// A free slot; `None` when all are in use.
    pub fn lease(self: &Arc<Self>) -> Option<Lease> {
        let slot = self.free.lock().pop()?;
        Some(Lease { memory: Memory::Slot { pool: Arc::clone(self), slot } })
    }

    /// Size of each slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.slot_bytes * self.count
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let start = self.start;
        self.arena.parts.lock().regions.retain(|region| region.start != start);
    }
}

#[derive(Debug)]
enum Memory {
    Slot {
        pool: Arc<Pool>,
        slot: u32,
    },
    /// For sizes larger than any slot.
    Heap(AlignedBuf),
}

/// A piece of memory for one transfer at a time, aligned for direct I/O.
///
/// Dereferences to all of it. What it contains at first is what the last user left.
#[derive(Debug)]
pub struct Lease {
    memory: Memory,
}

impl Lease {
    /// Separate memory, outside the arena.
    pub(super) fn heap(bytes: usize) -> Self {
        Self { memory: Memory::Heap(AlignedBuf::with_capacity(bytes.max(1))) }
    }

    /// Where in the arena it starts; `None` on the heap.
    pub(super) fn arena_offset(&self) -> Option<usize> {
        match &self.memory {
            Memory::Slot { pool, slot } => Some(pool.start + *slot as usize * pool.slot_bytes),
            Memory::Heap(_) => None,
        }
    }

    /// Where it starts, for the kernel.
    pub(super) fn start(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Slot { pool, slot } => {
                // SAFETY: the slot lies within its pool's region, and that within the mapping.
                unsafe { pool.arena.start().add(pool.start + *slot as usize * pool.slot_bytes) }
            }
            Memory::Heap(buffer) => buffer.as_mut_ptr(),
        }
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Slot { pool, slot } => {
                let offset = pool.start + *slot as usize * pool.slot_bytes;
                // SAFETY: the slot lies within the mapping, which lives while `pool` does, and is initialised; this
                // lease is the only one of the slot, so nobody writes while it is borrowed: the kernel neither, as a
                // transfer owns its lease.
                unsafe { std::slice::from_raw_parts(pool.arena.start().add(offset), pool.slot_bytes) }
            }
            Memory::Heap(buffer) => buffer,
        }
    }
}

impl DerefMut for Lease {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Slot { pool, slot } => {
                let offset = pool.start + *slot as usize * pool.slot_bytes;
                // SAFETY: as in `deref`, and `&mut self` makes this the only access.
                unsafe { std::slice::from_raw_parts_mut(pool.arena.start().add(offset), pool.slot_bytes) }
            }
            Memory::Heap(buffer) => buffer,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Memory::Slot { pool, slot } = &self.memory {
            pool.free.lock().push(*slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_disjoint_and_come_back() {
        let arena = Arena::new(1 << 20, false).unwrap();
        let pool = arena.pool(5000, 4).unwrap();
        assert_eq!(pool.slot_bytes(), 8192);
        let mut leases: Vec<Lease> = (0..4).map(|_| pool.lease().unwrap()).collect();
        assert!(pool.lease().is_none());
        for (i, lease) in leases.iter_mut().enumerate() {
            assert_eq!(lease.as_ptr() as usize % ALIGNMENT, 0);
            lease.fill(i as u8 + 1);
        }
        for (i, lease) in leases.iter().enumerate() {
            assert!(lease.iter().all(|&b| b == i as u8 + 1));
        }
        drop(leases.pop());
        assert_eq!(pool.lease().unwrap()[0], 4, "the freed slot with what was left in it");
    }

    #[test]
    fn regions_are_first_fit_and_freed_when_the_last_lease_goes() {
        let arena = Arena::new(16 * 4096, false).unwrap();
        let a = arena.pool(4096, 4).unwrap();
        let b = arena.pool(4096, 4).unwrap();
        assert_eq!(arena.free_bytes(), 8 * 4096);
        assert!(arena.pool(4096, 9).is_none());
        let kept = a.lease().unwrap();
        drop(a);
        assert!(arena.pool(4096, 9).is_none(), "a region whose lease lives was given away");
        drop(kept);
        let again = arena.pool(4096, 3).unwrap();
        assert_eq!(again.lease().unwrap().arena_offset(), Some(0));
        assert_eq!(arena.pool(4096, 8).unwrap().lease().unwrap().arena_offset(), Some(8 * 4096));
        drop(b);
        assert_eq!(arena.pool(4096, 13).unwrap().lease().unwrap().arena_offset(), Some(3 * 4096));
    }

    #[test]
    fn sizes_beyond_reason_are_refused() {
        let arena = Arena::new(4096, false).unwrap();
        assert!(arena.pool(usize::MAX / 2, 4).is_none());
        assert!(arena.pool(4096, 0).is_none());
        assert!(Arena::new(usize::MAX - 5000, false).is_err());
    }

    #[test]
    fn huge_pages_are_given_or_the_reason_is_named() {
        let arena = Arena::new(3 << 20, true).unwrap();
        assert_eq!(arena.bytes() % HUGE_PAGE, 0);
        assert_eq!(arena.start() as usize % HUGE_PAGE, 0);
        println!("arena on {}", arena.pages());
        if let Pages::Small(why) = arena.pages() {
            assert!(!why.is_empty());
        }
        let mut lease = arena.pool(1 << 20, 4).unwrap().lease().unwrap();
        lease.fill(7);
    }

    #[test]
    fn an_arena_grows_in_place_up_to_its_size() {
        for huge in [false, true] {
            let arena = Arena::with_ready(8 << 20, 1 << 20, huge).unwrap();
            let mut before = arena.bytes();
            // Reserved huge pages are all there from the start.
            assert!(before == 8 << 20 || before == if huge { 2 << 20 } else { 1 << 20 });
            let mut kept = arena.pool(1 << 20, 1).unwrap().lease().unwrap();
            kept.fill(7);
            assert!(arena.pool(8 << 20, 1).is_none(), "memory that is not ready was given");
            for wanted in [3 << 20, 1 << 20, usize::MAX] {
                let grew = arena.grow(wanted);
                let now = arena.bytes();
                assert_eq!((grew, now >= wanted.min(8 << 20)), (now > before, true), "{wanted}");
                before = now;
            }
            assert_eq!((arena.bytes(), arena.free_bytes(), arena.is_unused()), (8 << 20, 7 << 20, false));
            arena.pool(7 << 20, 1).unwrap().lease().unwrap().fill(9);
            assert!(kept.iter().all(|b| *b == 7));
            drop(kept);
            assert!(arena.is_unused());
        }
    }
}
