//! The space of the fast device, which may be less than `fast_capacity`: others may fill it, or it may be smaller.
//!
//! Logs may have what they have and what the file system says is free. That is asked once per second and after logs
//! were deleted, which is enough to slow writers in time. If an append finds no space all the same, the device is
//! *full*: logs may have nothing more until the next look.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes that logs may have in any case, as the smallest `fast_capacity`: whether there is space for a little more,
/// only the append itself can tell.
const DEVICE_BYTES_MIN: u64 = 64 << 10;

/// See the module's text. What reads it holds the database's lock; all of it is about moments that have passed.
#[derive(Debug)]
pub(crate) struct DeviceSpace {
    /// Bytes that logs may have as the device has no more; the maximum if that is not known.
    limit: AtomicU64,
    /// An append found no space since the last look.
    full: AtomicBool,
    /// How often the timer has looked.
    rounds: AtomicU64,
    /// Threads that delete obsolete logs.
    deleting: AtomicUsize,
}

impl Default for DeviceSpace {
    fn default() -> Self {
        let (limit, full) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Self { limit, full, rounds: AtomicU64::new(0), deleting: AtomicUsize::new(0) }
    }
}

impl DeviceSpace {
    /// The bytes that logs may have, of which they have `held`; the maximum if the device does not bound them.
    pub fn limit(&self, held: u64) -> u64 {
        if self.is_full() { held } else { self.limit.load(Ordering::Relaxed) }
    }

    /// An append found no space since the last look.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// An append found no space.
    pub fn set_full(&self) {
        self.full.store(true, Ordering::Release);
    }

    /// Takes what the file system says: these bytes are free for logs, if it says something. Logs have `held`.
    pub fn looked(&self, held: u64, free: Option<u64>) {
        let limit = free.map_or(u64::MAX, |free| held.saturating_add(free).max(DEVICE_BYTES_MIN));
        self.limit.store(limit, Ordering::Relaxed);
        self.full.store(false, Ordering::Release);
    }

    /// How often the timer has looked.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// The timer has looked again, and has deleted what archived logs have to leave.
    pub fn end_round(&self) {
        self.rounds.fetch_add(1, Ordering::AcqRel);
    }

    /// A thread begins to delete obsolete logs, which are in no list from here on.
    pub fn begin_deletion(&self) {
        self.deleting.fetch_add(1, Ordering::AcqRel);
    }

    /// They are deleted, or stuck.
    pub fn end_deletion(&self) {
        self.deleting.fetch_sub(1, Ordering::AcqRel);
    }

    /// A thread deletes obsolete logs.
    pub fn is_deleting(&self) -> bool {
        self.deleting.load(Ordering::Acquire) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_has_room_again_after_a_look() {
        let space = DeviceSpace::default();
        assert_eq!(space.limit(7), u64::MAX, "nobody has looked");
        space.looked(100_000, Some(50_000));
        assert_eq!(space.limit(120_000), 150_000);
        space.set_full();
        assert_eq!((space.is_full(), space.limit(120_000)), (true, 120_000));
        space.looked(0, Some(0));
        assert_eq!((space.is_full(), space.limit(0)), (false, DEVICE_BYTES_MIN), "only an append can tell");
        space.looked(0, None);
        assert_eq!(space.limit(0), u64::MAX, "the file system does not say");
    }
}
