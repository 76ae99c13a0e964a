//! io_uring: the queue that the kernel works on.
//!
//! 1. `push` keeps the operation, with its memory and its file, in a table, and writes an entry for the kernel.
//! 2. `submit` and a waiting `reap` enter the kernel: one call submits all entries and waits for a completion.
//! 3. A completion identifies its slot in the table; the operation leaves the table with its memory.
//! 4. Dropping the queue cancels what is in flight and waits for it.
//! 5. A ring belongs to the thread that created it. If another thread claims the queue, the queue gets a new ring over
//!    the same arena, which takes about 50 us.
//!
//! Invariants: memory in the table belongs to the kernel, and nothing in this process reads or writes it. It is never
//! freed while it is in the table: if waiting for the kernel fails, it is leaked. No more operations are in flight than
//! the completion ring has room for, so it cannot overflow.
//!
//! A wait is not left to the kernel alone: after two seconds without a completion a no-op with `IOSQE_ASYNC` is
//! submitted, for which the kernel wakes or makes a thread of its own (`iou-wrk`), and that thread also runs what is
//! queued before it. Seen once, on Linux 6.18: two reads of a tmpfs, which only such threads can do, were queued for
//! ever when no thread was left (docs/notebook/testing.md).

use super::arena::Arena;
use super::probe;
#[cfg(feature = "program")]
use super::program_slot::{CompletionPlaces, page};
use super::queue::{Action, BatchFile, Done, Op, Queue, QueueCounts};
use super::{BatchLimits, Registered};
use io_uring::types::{CancelBuilder, Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use program::InRing;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
#[cfg(feature = "program")]
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

/// Places in the table of registered files: more than the inputs and outputs of any job.
const FILES_MAX: u32 = 256;

/// Most bytes of one operation; the kernel's own limit is 2 GiB.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// Largest registered buffer that the kernel accepts.
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// Mark of a cancellation's own completion.
const CANCELLATION: u64 = u64::MAX;

/// Mark of the completion of a no-op that was submitted to wake the kernel's threads.
const NUDGE: u64 = u64::MAX - 1;

/// A wait for so long, without a completion, submits such a no-op. Longer than any device in order takes.
const NUDGE_AFTER: Duration = Duration::from_secs(2);

/// Completions to wait for at once: one per this many operations in flight, up to a limit.
const IN_FLIGHT_PER_WAIT: usize = 4;
const WAIT_MAX: usize = 8;

/// Retries if the kernel has no memory for the submission, with a pause of a millisecond each.
const AGAIN_MAX: u32 = 2000;

/// A ring, the operations in it, and the arena.
pub(super) struct KernelQueue {
    ring: IoUring,
    owner: ThreadId,
    depth: usize,
    /// Operations in flight or pushed, by slot.
    table: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Operations that were done at the push, because their file has no descriptor.
    ready: Vec<Done>,
    unsubmitted: usize,
    /// Registered from the arena's start.
    registered_bytes: usize,
    /// Free slots in the table of registered files; `None` without such a table.
    files: Option<Vec<u32>>,
    counts: QueueCounts,
    /// [`NUDGE_AFTER`]; `None` where the kernel's waits have no limit (before 5.11).
    nudge_after: Option<Duration>,
    /// No-ops in flight.
    nudges: u32,
    program: InRing,
    limits: BatchLimits,
    arena: Arc<Arena>,
}

impl fmt::Debug for KernelQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelQueue")
            .field("in_flight", &self.in_flight())
            .field("registered_bytes", &self.registered_bytes)
            .finish_non_exhaustive()
    }
}

/// Creates a ring with the best flags that this kernel supports.
fn set_up(limits: &BatchLimits) -> io::Result<(IoUring, &'static str)> {
    let entries = limits.depth.next_power_of_two().clamp(2, 4096);
    if limits.any_thread {
        return IoUring::builder().build(entries).map(|ring| (ring, "no flags"));
    }
    // Linux 6.1, 5.19, older. A kernel that does not know a flag returns EINVAL.
    let mut best = IoUring::builder();
    match best.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all().build(entries) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
        other => return other.map(|ring| (ring, "SINGLE_ISSUER DEFER_TASKRUN")),
    }
    let mut fair = IoUring::builder();
    match fair.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all().build(entries) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
        other => return other.map(|ring| (ring, "COOP_TASKRUN")),
    }
    IoUring::builder().build(entries).map(|ring| (ring, "no flags"))
}

/// Submits what was pushed and waits for `want` completions, no longer than `longest`. The wait's end is no error.
fn submit_and_wait(ring: &IoUring, want: usize, longest: Option<Duration>) -> io::Result<()> {
    let done = match longest {
        Some(longest) if want > 0 => {
            let longest = Timespec::from(longest);
            ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&longest))
        }
        _ => ring.submitter().submit_and_wait(want),
    };
    match done {
        Err(e) if e.raw_os_error() == Some(libc::ETIME) => Ok(()),
        done => done.map(|_| ()),
    }
}

/// A program in the ring ([`super::program_slot`]).
#[cfg(feature = "program")]
mod program {
    use super::super::program_slot::{CompletionPlaces, Page, page};
    use super::QueueCounts;
    use io_uring::IoUring;
    use std::io;
    use std::os::fd::AsRawFd;

    /// The shared state of the ring and a program in it.
    #[derive(Default)]
    pub(super) struct InRing {
        /// Completions taken so far, as the ring counts them.
        taken: u32,
        /// The shared page, once there was a program. The kernel keeps its memory as long as the ring exists.
        page: Option<Page>,
        /// A program is attached: entering the ring runs it.
        is_there: bool,
    }

    impl InRing {
        pub(super) fn is_there(&self) -> bool {
            self.is_there
        }

        /// A completion was taken.
        pub(super) fn took_one(&mut self) {
            self.taken = self.taken.wrapping_add(1);
        }

        /// Submits pushed operations and waits for `want` completions; `None` without a program.
        pub(super) fn enter(
            &mut self,
            ring: &mut IoUring,
            want: usize,
            counts: &mut QueueCounts,
        ) -> Option<io::Result<()>> {
            let page = self.page.as_mut().filter(|_| self.is_there)?;
            Some(enter_with_program(ring, page, self.taken, want, counts))
        }

        /// Prepares the ring for a program.
        pub(super) fn open(&mut self, ring: &IoUring, completions: Option<CompletionPlaces>) -> io::Result<()> {
            if self.is_there {
                return Err(io::Error::other("the ring has a program already"));
            }
            if self.page.is_none() {
                self.page = Some(register_page(ring)?);
            }
            if let Some(page) = &mut self.page {
                page.set(page::TAIL_AT, completions.map_or(0, |c| c.tail));
                page.set(page::CQES_AT, completions.map_or(0, |c| c.entries));
                page.set(page::MASK, ring.params().cq_entries().wrapping_sub(1));
            }
            self.is_there = true;
            Ok(())
        }

        /// The program is gone.
        pub(super) fn close(&mut self) {
            self.is_there = false;
        }

        /// The page, prepared so that the next call runs the program, with `pending` operations to submit.
        pub(super) fn prepare(&mut self, pending: usize) -> io::Result<&mut Page> {
            let Some(page) = self.page.as_mut().filter(|_| self.is_there) else {
                return Err(io::Error::other("there is no program in the ring"));
            };
            prepare(page, self.taken, 0, 0, pending);
            Ok(page)
        }
    }

    /// Of `io_uring_register` (Linux 6.13), and in a region's description: its memory is the process's.
    const REGISTER_MEM_REGION: libc::c_uint = 34;
    const REGION_OF_USER: u32 = 1;
    /// Of `io_uring_enter`: completions are wanted.
    const ENTER_GETEVENTS: u32 = 1;

    /// Registers a page with a ring, for a program in it. Once per ring.
    fn register_page(ring: &IoUring) -> io::Result<Page> {
        let mut page = Page::new();
        let description = [page.address(), page::BYTES as u64, u64::from(REGION_OF_USER), 0, 0, 0, 0, 0];
        let register = [description.as_ptr().expose_provenance() as u64, 0, 0, 0];
        let (call, fd) = (libc::SYS_io_uring_register, ring.as_raw_fd());
        // SAFETY: both structures are whole and live until the call returns. The kernel holds the page itself for as
        // long as the ring is; it writes there while this thread is in a call that enters the ring, when nobody looks.
        let done = unsafe { libc::syscall(call, fd, REGISTER_MEM_REGION, register.as_ptr(), 1) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(page) }
    }

    /// Prepares the program's next call: its own work (`mode` 0), or waiting for `want` completions.
    fn prepare(page: &mut Page, taken: u32, mode: u32, want: usize, pending: usize) {
        page.set(page::STEPS, 0);
        page.set(page::MODE, mode);
        page.set(page::WAIT, want as u32);
        page.set(page::PHASE, 0);
        page.set(page::HEAD, taken);
        page.set(page::PENDING, pending as u32);
        page.set(page::SUBMITTED, 0);
        page.set(page::ERROR, 0);
    }

    /// Enters a ring, and has completions posted.
    pub(super) fn enter_events(ring: &IoUring, pending: usize, want: usize) -> io::Result<()> {
        let nothing: Option<&libc::sigset_t> = None;
        // SAFETY: the call takes numbers and no memory. Entries that it hands on were made by `push`.
        unsafe { ring.submitter().enter(pending as u32, want as u32, ENTER_GETEVENTS, nothing) }.map(|_| ())
    }

    /// Submits pushed operations and waits for `want` completions, with a program in the ring. If the program is gone,
    /// the kernel does the same itself.
    fn enter_with_program(
        ring: &mut IoUring,
        page: &mut Page,
        taken: u32,
        want: usize,
        counts: &mut QueueCounts,
    ) -> io::Result<()> {
        let pending = ring.submission().len();
        prepare(page, taken, 1, want, pending);
        let done = enter_events(ring, pending, want);
        counts.by_program += u64::from(page.get(page::SUBMITTED));
        done?;
        match page.get(page::ERROR) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}

/// There is no program in a ring.
#[cfg(not(feature = "program"))]
mod program {
    use super::QueueCounts;
    use io_uring::IoUring;
    use std::io;

    #[derive(Default)]
    pub(super) struct InRing {}

    impl InRing {
        pub(super) fn is_there(&self) -> bool {
            false
        }

        pub(super) fn took_one(&mut self) {}

        pub(super) fn enter(&mut self, _: &mut IoUring, _: usize, _: &mut QueueCounts) -> Option<io::Result<()>> {
            None
        }
    }
}

/// Number of the registered buffer, the arena.
const BUFFER: u16 = 0;

/// Registers as much of the arena as the limit on locked memory allows; returns how much, and why not all.
fn register_arena(ring: &IoUring, arena: &Arena) -> (usize, Option<String>) {
    let all = arena.bytes().min(REGISTERED_BYTES_MAX);
    let mut len = all;
    let mut refused = None;
    while len >= 1 << 20 {
        let buffer = libc::iovec { iov_base: arena.start().cast(), iov_len: len };
        // SAFETY: the range is the arena's memory, which the queue keeps mapped until the ring is gone.
        let done = unsafe { ring.submitter().register_buffers(&[buffer]) };
        match done {
            Ok(()) => break,
            Err(e) => {
                let limited = e.raw_os_error() == Some(libc::ENOMEM);
                refused.get_or_insert_with(|| probe::explain_registration(&e));
                len = if limited { len / 2 } else { 0 };
            }
        }
    }
    if len < 1 << 20 { (0, refused) } else { (len, refused) }
}

impl KernelQueue {
    /// Creates a ring for the calling thread, the only one that may use it.
    pub(super) fn new(limits: &BatchLimits, arena: &Arc<Arena>) -> io::Result<(Self, Registered, &'static str)> {
        let (ring, flags) = set_up(limits)?;
        let mut registered = Registered { bytes: 0, files: false, refused: None };
        if !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel may drop completions (before 5.5)"));
        }
        let mut ops = io_uring::Probe::new();
        let probed = ring.submitter().register_probe(&mut ops);
        let needed = [
            opcode::ReadFixed::CODE,
            opcode::WriteFixed::CODE,
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Fsync::CODE,
            opcode::SyncFileRange::CODE,
        ];
        if probed.is_err() || needed.iter().any(|code| !ops.is_supported(*code)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel lacks reads and writes (before 5.6)"));
        }
        let mut files = None;
        if limits.register {
            (registered.bytes, registered.refused) = register_arena(&ring, arena);
            match ring.submitter().register_files_sparse(FILES_MAX) {
                Ok(()) => {
                    files = Some((0..FILES_MAX).rev().collect());
                    registered.files = true;
                }
                Err(e) => {
                    registered.refused.get_or_insert_with(|| probe::explain_registration(&e));
                }
            }
        } else {
            registered.refused = Some("registration was not asked for".to_string());
        }
        // Never more in flight than fit into either ring.
        let depth = (ring.params().sq_entries().min(ring.params().cq_entries()) as usize).min(limits.depth as usize);
        let nudge_after = ring.params().is_feature_ext_arg().then_some(NUDGE_AFTER);
        let queue = Self {
            ring,
            owner: std::thread::current().id(),
            depth,
            table: (0..depth).map(|_| None).collect(),
            free: (0..depth as u32).rev().collect(),
            ready: Vec::new(),
            unsubmitted: 0,
            registered_bytes: registered.bytes,
            files,
            counts: QueueCounts::default(),
            nudge_after,
            nudges: 0,
            program: InRing::default(),
            limits: limits.clone(),
            arena: Arc::clone(arena),
        };
        Ok((queue, registered, flags))
    }

    fn in_flight(&self) -> usize {
        self.depth - self.free.len()
    }

    fn check_thread(&self) -> io::Result<()> {
        if self.limits.any_thread || std::thread::current().id() == self.owner {
            return Ok(());
        }
        Err(io::Error::other("a ring is used only by the thread that made it; give each thread its own"))
    }

    /// The kernel's entry for an operation, whose memory starts at `memory`.
    fn entry(op: &Op, memory: *mut u8, fixed: Option<u16>, priority: u16) -> squeue::Entry {
        let len = op.range.len().min(OPERATION_BYTES_MAX) as u32;
        let (at, buffer) = (op.file.at_fd(op.offset), fixed.unwrap_or(0));
        let bytes = |n: u64| u32::try_from(n).unwrap_or(0);
        // One arm per kind of file: the builders are generic over it.
        macro_rules! entry {
            ($fd:expr) => {
                match op.action {
                    Action::Read if fixed.is_some() => {
                        opcode::ReadFixed::new($fd, memory, len, buffer).offset(at).ioprio(priority).build()
                    }
                    Action::Read => opcode::Read::new($fd, memory, len).offset(at).ioprio(priority).build(),
                    Action::Write if fixed.is_some() => {
                        opcode::WriteFixed::new($fd, memory, len, buffer).offset(at).ioprio(priority).build()
                    }
                    Action::Write => opcode::Write::new($fd, memory, len).offset(at).ioprio(priority).build(),
                    Action::Sync => opcode::Fsync::new($fd).flags(FsyncFlags::DATASYNC).build(),
                    // A length of 0 means "to the end"; also used for a range too long for the field.
                    Action::StartWriteBack(n) => {
                        opcode::SyncFileRange::new($fd, bytes(n)).offset(at).flags(libc::SYNC_FILE_RANGE_WRITE).build()
                    }
                    Action::AwaitWriteBack(n) => opcode::SyncFileRange::new($fd, bytes(n))
                        .offset(at)
                        .flags(libc::SYNC_FILE_RANGE_WAIT_BEFORE)
                        .build(),
                }
            };
        }
        match (op.file.registered(), op.file.fd) {
            (Some(index), _) => entry!(Fixed(index)),
            (None, fd) => entry!(Fd(fd.unwrap_or(-1))),
        }
    }

    /// Enters the kernel: submits pushed operations, and waits for `want` completions.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        let ring = &mut self.ring;
        let mut again = 0;
        loop {
            self.counts.enters += 1;
            self.counts.ring_enters += 1;
            let done = match self.program.enter(ring, want, &mut self.counts) {
                Some(done) => done,
                None => submit_and_wait(ring, want, self.nudge_after),
            };
            match done {
                Ok(()) => {
                    // A kernel that stops at an invalid entry leaves the others for the next call.
                    self.unsubmitted = ring.submission().len();
                    if want > 0 {
                        if ring.completion().is_empty() {
                            self.nudge();
                        }
                        return Ok(());
                    }
                    if self.unsubmitted == 0 {
                        return Ok(());
                    }
                    again += 1;
                }
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {
                    self.unsubmitted = ring.submission().len();
                    if want > 0 && !ring.completion().is_empty() {
                        return Ok(());
                    }
                    continue;
                }
                // No memory for requests now, or completions must be fetched first, which happens if there are some.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => {
                    self.unsubmitted = ring.submission().len();
                    if !ring.completion().is_empty() {
                        return Ok(());
                    }
                    if again >= AGAIN_MAX {
                        return Err(e);
                    }
                    again += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e),
            }
            if again > AGAIN_MAX {
                return Err(io::Error::other("the kernel does not take the operations"));
            }
        }
    }

    /// A wait was over without a completion: makes the kernel look at what is queued for its own threads. Submitted at
    /// once, so that it takes no entry of an operation; if that fails, the next entry submits it.
    #[cold]
    fn nudge(&mut self) {
        let entry = opcode::Nop::new().build().flags(squeue::Flags::ASYNC).user_data(NUDGE);
        // There is room for their completions: the ring of these has twice as many places as operations are in flight.
        if self.nudges < self.ring.params().sq_entries() {
            // SAFETY: a no-op has no memory and no file.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            self.nudges += u32::from(pushed.is_ok());
            self.counts.nudges += u64::from(pushed.is_ok());
            let _ = self.ring.submit();
        }
    }

    /// Takes completed operations.
    fn collect(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.ready);
        for completion in self.ring.completion() {
            self.program.took_one();
            match completion.user_data() {
                CANCELLATION => continue,
                NUDGE => {
                    self.nudges = self.nudges.saturating_sub(1);
                    continue;
                }
                _ => {}
            }
            let place = completion.user_data() as usize;
            let Some(op) = self.table.get_mut(place).and_then(Option::take) else { continue };
            self.free.push(place as u32);
            let result = match completion.result() {
                n if n >= 0 => Ok(n as usize),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
            done.push(Done { op, result, raw: true, bypassed: true });
        }
    }

    /// Cancels what can be cancelled and waits for everything. False if some operations are left.
    fn drain(&mut self) -> bool {
        if self.in_flight() == 0 {
            return true;
        }
        if self.check_thread().is_err() {
            return false;
        }
        // Operations that the kernel has not seen cannot be cancelled.
        if self.unsubmitted > 0 && self.enter(0).is_err() {
            return false;
        }
        // Linux 6.0; without it, and for operations already at a device, only the wait remains.
        let _ = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
        let mut gone = Vec::new();
        while self.in_flight() > 0 {
            if self.enter(1).is_err() {
                return false;
            }
            self.collect(&mut gone);
            gone.clear();
        }
        true
    }
}

impl Queue for KernelQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    /// The kernel accepts a ring's operations only from the thread that created it: this thread gets its own ring, over
    /// the same memory, whose setup is the expensive part.
    fn claim(&mut self, anew: bool) -> io::Result<Option<Registered>> {
        if self.in_flight() > 0 || !self.ready.is_empty() || self.program.is_there() {
            return Err(io::Error::other("operations are in flight, or a program is in the ring"));
        }
        let mine = self.check_thread().is_ok();
        if mine && !anew {
            return Ok(None);
        }
        if mine && self.registered_bytes > 0 {
            // So that the same pages do not count twice as locked memory. Otherwise closing the ring must be enough.
            let _ = self.ring.submitter().unregister_buffers();
            self.registered_bytes = 0;
        }
        let (mut queue, registered, _) = Self::new(&self.limits, &self.arena)?;
        queue.counts = self.counts;
        *self = queue;
        Ok(Some(registered))
    }

    fn register(&mut self, files: &[Arc<BatchFile>]) {
        if self.check_thread().is_err() {
            return;
        }
        let Some(free) = &mut self.files else { return };
        let known: Vec<&Arc<BatchFile>> = files.iter().filter(|f| f.fd.is_some() && f.registered().is_none()).collect();
        let mut places = free.split_off(free.len().saturating_sub(known.len()));
        places.sort_unstable();
        let mut known = known.into_iter();
        // One call for neighbours.
        for run in places.chunk_by(|a, b| a + 1 == *b) {
            let files: Vec<_> = known.by_ref().take(run.len()).collect();
            let fds: Vec<i32> = files.iter().filter_map(|file| file.fd).collect();
            let set = self.ring.submitter().register_files_update(run[0], &fds).unwrap_or(0);
            for (i, (place, file)) in run.iter().zip(files).enumerate() {
                if i < set { file.set_registered(Some(*place)) } else { free.push(*place) }
            }
        }
    }

    fn unregister(&mut self, files: &[Arc<BatchFile>]) {
        if self.check_thread().is_err() {
            return;
        }
        let Some(free) = &mut self.files else { return };
        let mut places: Vec<u32> = files.iter().filter_map(|file| file.registered()).collect();
        files.iter().for_each(|file| file.set_registered(None));
        places.sort_unstable();
        for run in places.chunk_by(|a, b| a + 1 == *b) {
            // A slot that cannot be cleared keeps the file open; it is not used again.
            let gone = self.ring.submitter().register_files_update(run[0], &vec![-1; run.len()]).unwrap_or(0);
            free.extend(&run[..gone.min(run.len())]);
        }
    }

    fn push(&mut self, mut op: Op) {
        self.counts.operations += 1;
        if let Err(e) = self.check_thread() {
            self.ready.push(Done { op, result: Err(e), raw: false, bypassed: false });
            return;
        }
        if op.file.fd.is_none() {
            self.counts.enters += 1;
            let result = op.call();
            self.ready.push(Done { op, result, raw: false, bypassed: false });
            return;
        }
        let Some(place) = self.free.pop() else {
            let result = Err(io::Error::other("the ring is full"));
            self.ready.push(Done { op, result, raw: false, bypassed: false });
            return;
        };
        let range = op.range.clone();
        let place_in_arena = op.lease.as_ref().and_then(|lease| lease.arena_offset());
        let fixed = place_in_arena.filter(|at| at + range.end <= self.registered_bytes).map(|_| BUFFER);
        let memory = match &mut op.lease {
            // The part must lie within the lease: this is what makes the entry safe.
            Some(lease) if range.start <= range.end && range.end <= lease.len() => {
                lease.start().wrapping_add(range.start)
            }
            Some(_) => {
                self.free.push(place);
                let result = Err(io::Error::new(io::ErrorKind::InvalidInput, "a range outside its memory"));
                self.ready.push(Done { op, result, raw: false, bypassed: false });
                return;
            }
            None => {
                op.range = 0..0;
                std::ptr::null_mut()
            }
        };
        self.counts.fixed += u64::from(fixed.is_some());
        let entry = Self::entry(&op, memory, fixed, self.limits.io_priority).user_data(u64::from(place));
        self.table[place as usize] = Some(op);
        // SAFETY: the entry's memory is the lease in the table, of which the range is a part; it stays there, untouched
        // and alive, until the completion is seen (`collect`) or for ever (`drop`). The descriptor is that of a file
        // that the operation in the table keeps alive.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        match pushed {
            Ok(()) => self.unsubmitted += 1,
            // Cannot happen: there are as many entries as slots. The operation never reached the kernel.
            Err(e) => {
                self.free.push(place);
                if let Some(op) = self.table[place as usize].take() {
                    self.ready.push(Done { op, result: Err(io::Error::other(e)), raw: false, bypassed: false });
                }
            }
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        self.check_thread()?;
        // A program submits queued operations in its next call.
        if self.unsubmitted == 0 || self.program.is_there() { Ok(()) } else { self.enter(0) }
    }

    #[cfg(feature = "program")]
    fn open_slot(&mut self, completions: Option<CompletionPlaces>) -> io::Result<i32> {
        self.check_thread()?;
        self.program.open(&self.ring, completions)?;
        Ok(self.ring.as_raw_fd())
    }

    #[cfg(feature = "program")]
    fn close_slot(&mut self) {
        self.program.close();
    }

    #[cfg(feature = "program")]
    fn enter_program(&mut self, control: u32, awaited: &[u64]) -> io::Result<u32> {
        self.check_thread()?;
        let busy = self.in_flight() > 0;
        let pending = self.ring.submission().len();
        let page = self.program.prepare(pending)?;
        page.set(page::CONTROL, control);
        page.set(page::BUSY, u32::from(busy));
        page.mark(&self.table, awaited);
        loop {
            self.counts.enters += 1;
            self.counts.ring_enters += 1;
            match program::enter_events(&self.ring, 0, 0) {
                Ok(()) => break,
                // A signal between two steps: the program continues where it was.
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
        self.counts.by_program += u64::from(page.get(page::SUBMITTED));
        // Entries that the kernel did not accept are submitted the next time, or their waiter gets the error.
        self.unsubmitted = self.ring.submission().len();
        match page.get(page::STEPS) {
            0 => Err(io::Error::other("the kernel did not call the program")),
            steps => Ok(steps),
        }
    }

    fn reap(&mut self, wait: usize, _wanted: u64, done: &mut Vec<Done>) -> io::Result<()> {
        self.check_thread()?;
        let before = done.len();
        self.collect(done);
        if wait == 0 {
            return Ok(());
        }
        while done.len() == before && self.in_flight() > 0 {
            // A waiting caller is faster than the device, so it waits for several completions, as long as most
            // operations stay in flight: fewer system calls and fewer sleeps, while the device stays equally busy.
            let want = (self.in_flight() / IN_FLIGHT_PER_WAIT).clamp(1, WAIT_MAX);
            self.enter(want.max(wait.min(self.in_flight())))?;
            self.collect(done);
        }
        Ok(())
    }

    fn unsubmitted(&self) -> usize {
        self.unsubmitted
    }

    fn counts(&self) -> QueueCounts {
        self.counts
    }
}

impl Drop for KernelQueue {
    fn drop(&mut self) {
        if self.drain() {
            return;
        }
        // The kernel may still write to this memory: it is leaked, together with the files. Closing the ring (if
        // another thread drops it, the kernel cancels and waits on its own time) does not end that at once.
        for op in self.table.iter_mut().filter_map(Option::take) {
            let _kept = ManuallyDrop::new(op);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RandomAccessFile;
    use std::io::{PipeReader, Write};
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::time::Instant;

    /// A file whose reads wait for ever: a pipe without writes.
    #[derive(Debug)]
    struct Pipe(PipeReader);

    impl RandomAccessFile for Pipe {
        fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }
        fn size(&self) -> u64 {
            u64::MAX
        }
        fn prefetch(&self, _offset: u64, _len: u64) {}
        fn is_direct(&self) -> bool {
            false
        }
        fn raw_fd(&self) -> Option<i32> {
            Some(self.0.as_raw_fd())
        }
    }

    fn queue(depth: u32) -> Option<(KernelQueue, Arc<Arena>)> {
        let arena = Arena::new(1 << 20, false).unwrap();
        match KernelQueue::new(&BatchLimits { depth, ..BatchLimits::default() }, &arena) {
            Ok((queue, ..)) => Some((queue, arena)),
            Err(e) => {
                let missing = rockmill_skip::Needs::Uring.because(probe::explain_setup(&e));
                rockmill_skip::skip("queues of the kernel's rings", &missing);
                None
            }
        }
    }

    fn read(token: u64, file: &Arc<BatchFile>, arena: &Arc<Arena>) -> Op {
        let lease = arena.pool(4096, 1).unwrap().lease();
        Op { token, file: Arc::clone(file), action: Action::Read, offset: u64::MAX, lease, range: 0..4096 }
    }

    #[test]
    fn a_ring_is_private_to_the_process() {
        let Some((queue, _arena)) = queue(8) else { return };
        let fd = queue.ring.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let flags = text.lines().find_map(|l| l.strip_prefix("flags:")).expect("the line").trim();
        let flags = u32::from_str_radix(flags, 8).unwrap();
        assert!(flags & libc::O_CLOEXEC as u32 != 0, "a program that we start would inherit it: {flags:o}");
        // A started program does not have its memory either: a ring is not mapped in a child.
        let child = std::process::Command::new("cat").arg("/proc/self/maps").output().unwrap();
        assert!(child.status.success() && !String::from_utf8_lossy(&child.stdout).contains("io_uring"));
        let child = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
        assert!(child.status.success() && !String::from_utf8_lossy(&child.stdout).contains("io_uring"));
    }

    #[test]
    fn dropping_a_queue_cancels_what_will_never_complete_and_frees_its_memory() {
        let Some((mut queue, arena)) = queue(8) else { return };
        let (reader, writer) = io::pipe().unwrap();
        let file = Arc::new(BatchFile::reading(Arc::new(Pipe(reader)), Path::new("pipe"), false));
        for token in 0..5 {
            queue.push(read(token, &file, &arena));
            if token == 2 {
                queue.submit().unwrap();
            }
        }
        assert_eq!((queue.in_flight(), queue.unsubmitted()), (5, 2));
        assert_eq!(arena.free_bytes(), arena.bytes() - 5 * 4096);
        let start = Instant::now();
        drop(queue);
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(arena.free_bytes(), arena.bytes());
        drop(writer);
    }

    #[test]
    fn dropping_a_queue_elsewhere_gives_its_memory_up_rather_than_free_it() {
        let Some((mut queue, arena)) = queue(8) else { return };
        let (reader, writer) = io::pipe().unwrap();
        let file = Arc::new(BatchFile::reading(Arc::new(Pipe(reader)), Path::new("pipe"), false));
        queue.push(read(0, &file, &arena));
        queue.submit().unwrap();
        std::thread::spawn(move || drop(queue)).join().unwrap();
        assert_eq!(arena.free_bytes(), arena.bytes() - 4096, "memory that the kernel may write to was freed");
        drop(writer);
    }

    #[test]
    fn completions_come_with_their_own_operation_and_memory() {
        let Some((mut queue, arena)) = queue(4) else { return };
        let pipes: Vec<_> = (0..4).map(|_| io::pipe().unwrap()).collect();
        let mut writers = Vec::new();
        for (token, (reader, writer)) in pipes.into_iter().enumerate() {
            let file = Arc::new(BatchFile::reading(Arc::new(Pipe(reader)), Path::new("pipe"), false));
            queue.register(std::slice::from_ref(&file));
            queue.push(read(token as u64, &file, &arena));
            writers.push(writer);
        }
        queue.submit().unwrap();
        for token in [2u8, 0, 3, 1] {
            writers[token as usize].write_all(&[token + 10; 7]).unwrap();
            let mut done = Vec::new();
            queue.reap(1, 0, &mut done).unwrap();
            let done = done.pop().unwrap();
            assert_eq!((done.op.token, done.result.unwrap()), (u64::from(token), 7));
            assert_eq!(done.op.lease.unwrap()[..7], [token + 10; 7]);
            queue.unregister(std::slice::from_ref(&done.op.file));
        }
        assert_eq!(queue.in_flight(), 0);
        let mut done = Vec::new();
        queue.reap(1, 0, &mut done).unwrap();
        assert!(done.is_empty(), "an empty queue waited");
    }

    #[test]
    fn a_long_wait_makes_the_kernel_look_again() {
        let Some((mut queue, arena)) = queue(4) else { return };
        if queue.nudge_after.is_none() {
            return rockmill_skip::skip(
                "waits with a limit",
                &rockmill_skip::Needs::Uring.because("before Linux 5.11"),
            );
        }
        queue.nudge_after = Some(Duration::from_millis(5));
        let (reader, mut writer) = io::pipe().unwrap();
        let file = Arc::new(BatchFile::reading(Arc::new(Pipe(reader)), Path::new("pipe"), false));
        queue.push(read(7, &file, &arena));
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            writer.write_all(&[9; 11]).unwrap();
        });
        let mut done = Vec::new();
        queue.reap(1, 0, &mut done).unwrap();
        late.join().unwrap();
        let done = done.pop().unwrap();
        assert_eq!((done.op.token, done.result.unwrap()), (7, 11));
        // Each came back, and was counted once.
        assert!(queue.counts.nudges > 1 && queue.nudges <= 1, "{:?}", queue.counts);
        assert_eq!((queue.in_flight(), queue.counts.operations), (0, 1));
    }

    #[test]
    fn a_range_outside_its_memory_never_reaches_the_kernel() {
        let Some((mut queue, arena)) = queue(4) else { return };
        let (reader, _writer) = io::pipe().unwrap();
        let file = Arc::new(BatchFile::reading(Arc::new(Pipe(reader)), Path::new("pipe"), false));
        let mut op = read(0, &file, &arena);
        op.range = 0..4097;
        queue.push(op);
        let mut done = Vec::new();
        queue.reap(1, 0, &mut done).unwrap();
        assert_eq!(done.pop().unwrap().result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(queue.in_flight(), 0);
    }
}
