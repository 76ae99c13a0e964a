//! This crate's system calls: `bpf(2)` and the mapping of an arena. All `unsafe` is here.

mod looped;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use crate::said::{Refused, Thing};
pub use looped::{LoopTypes, Looped};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_RUN: libc::c_long = 10;
const BPF_PROG_GET_NEXT_ID: libc::c_long = 11;
const BPF_MAP_GET_NEXT_ID: libc::c_long = 12;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_GET_NEXT_ID: libc::c_long = 31;

const BPF_MAP_TYPE_ARENA: u32 = 33;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_SYSCALL: u32 = 31;
const BPF_F_SLEEPABLE: u32 = 1 << 4;

/// Faults pages in now, for writing (Linux 5.14).
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// Most bytes of the verifier's log that are kept.
const LOG_BYTES: usize = 256 << 10;

/// Attempts to load a program: the verifier gives up when the thread has other work, such as that of its rings.
const LOAD_TRIES: u32 = 5;

/// The attributes of one `bpf` call: a union of structures; each call passes the length up to its last field.
struct Attr([u8; 144]);

impl Attr {
    fn new() -> Self {
        Self([0; 144])
    }

    fn u32(mut self, at: usize, v: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&v.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, v: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&v.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: &OwnedFd) -> Self {
        self.u32(at, fd.as_raw_fd() as u32)
    }

    fn name(mut self, at: usize, name: &str) -> Self {
        let len = name.len().min(15);
        self.0[at..at + len].copy_from_slice(&name.as_bytes()[..len]);
        self
    }

    fn get_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// Makes the call with the first `len` bytes. Memory that the attributes refer to must outlive the call and be as
    /// large as the lengths given with it.
    fn call(&mut self, command: libc::c_long, len: usize) -> io::Result<libc::c_long> {
        // SAFETY: the attributes are `len` initialised bytes; the functions of this module, the only callers, put
        // addresses of memory in them that lives until the call returns, with its length.
        let n = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), len) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n) }
    }
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// A mapping of shared or private pages, all present, initialised with zeros.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is reached through this value alone.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(len: usize, flags: libc::c_int, fd: RawFd) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap gave the address 0"))?;
        let this = Self { start, len };
        // Makes all pages present: a program's store to a missing page would be lost. SAFETY: the range is this
        // mapping, and the advice changes no contents.
        match unsafe { libc::madvise(start.as_ptr().cast(), len, MADV_POPULATE_WRITE) } {
            0 => Ok(this),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is whole, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A mapping that this process shares with programs.
pub struct Memory(Mapping);

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("bytes", &self.0.len).finish_non_exhaustive()
    }
}

impl Memory {
    fn map(len: usize, flags: libc::c_int, fd: RawFd) -> io::Result<Self> {
        Mapping::map(len, flags, fd).map(Self)
    }

    /// The lower half of its address: the address of its first byte in programs.
    pub fn base(&self) -> u32 {
        self.0.start.addr().get() as u32
    }

    fn address(&self) -> u64 {
        self.0.start.addr().get() as u64
    }

    /// All of it.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: these are `len` initialised bytes that live as long as this; programs write to them during
        // `Loaded::run` and `Looped::call` only, which take the arena as `&mut`.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }

    /// All of it, to be written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

/// A BPF arena: the map, and its memory here.
#[derive(Debug)]
pub struct Arena {
    fd: OwnedFd,
    memory: Memory,
}

impl Arena {
    /// Creates an arena of `bytes` bytes, all present.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let pages = u32::try_from(bytes.div_ceil(page_bytes())).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut attr =
            Attr::new().u32(0, BPF_MAP_TYPE_ARENA).u32(12, pages).u32(16, BPF_F_MMAPABLE).name(28, "rockmill_arena");
        let fd = owned(attr.call(BPF_MAP_CREATE, 72)?);
        let memory = Memory::map(pages as usize * page_bytes(), libc::MAP_SHARED, fd.as_raw_fd())?;
        Ok(Self { fd, memory })
    }

    /// Its descriptor, for programs that refer to it.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Its memory.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its memory, to be written.
    #[inline]
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }
}

/// While it lives, no signal reaches the thread that made it. They wait.
struct SignalsHeld {
    before: libc::sigset_t,
    /// Of this thread alone.
    _thread: PhantomData<*const ()>,
}

impl SignalsHeld {
    /// `None` if the system refuses, which it does for wrong arguments only.
    fn new() -> Option<Self> {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both point to memory of the type's size; the first call fills `all` before the second reads it.
        let held = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
        };
        // SAFETY: the call that succeeded has filled it.
        held.then(|| Self { before: unsafe { before.assume_init() }, _thread: PhantomData })
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the system, and the call may leave out where to store the mask of now.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// A program that the kernel's verifier has accepted.
#[derive(Debug)]
pub struct Loaded {
    fd: OwnedFd,
}

impl Loaded {
    /// Loads a sleepable `syscall` program.
    pub fn new(instructions: &[u64], licence: &str) -> Result<Self, Refused> {
        let kind = |attr: Attr| attr.u32(0, BPF_PROG_TYPE_SYSCALL).u32(44, BPF_F_SLEEPABLE).name(48, "rockmill_merge");
        Self::load(instructions, licence, kind)
    }

    /// Loads a program; `kind` says what it is.
    fn load(instructions: &[u64], licence: &str, kind: impl Fn(Attr) -> Attr) -> Result<Self, Refused> {
        let licence = [licence.as_bytes(), b"\0"].concat();
        let attr = || {
            kind(Attr::new())
                .u32(4, instructions.len() as u32)
                .u64(8, instructions.as_ptr().addr() as u64)
                .u64(16, licence.as_ptr().addr() as u64)
        };
        // A process that is profiled gets a signal each millisecond, and the verifier may need longer than that.
        let _held = SignalsHeld::new();
        let load = |mut attr: Attr| {
            let mut tries = LOAD_TRIES;
            loop {
                tries -= 1;
                match attr.call(BPF_PROG_LOAD, 144) {
                    Ok(fd) => return Ok(Self { fd: owned(fd) }),
                    Err(e) if tries > 0 && matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
                    Err(e) => return Err(e),
                }
            }
        };
        let error = match load(attr()) {
            Ok(loaded) => return Ok(loaded),
            Err(e) => e,
        };
        // Once more, to hear why.
        let mut log = vec![0; LOG_BYTES];
        let with_log = attr().u32(24, 1).u32(28, LOG_BYTES as u32).u64(32, log.as_mut_ptr().addr() as u64);
        if let Ok(loaded) = load(with_log) {
            return Ok(loaded);
        }
        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
        Err(Refused { error, log: String::from_utf8_lossy(&log[..end]).into_owned() })
    }

    /// Runs the program, with `context` in and out. It takes the arena as `&mut`, so that nothing else uses its memory
    /// meanwhile.
    pub fn run(&self, arena: &mut Arena, context: &mut [u32; 2]) -> io::Result<()> {
        let _ = arena;
        let mut attr = Attr::new()
            .fd(0, &self.fd)
            .u32(40, size_of_val(context) as u32)
            .u64(48, context.as_mut_ptr().addr() as u64);
        attr.call(BPF_PROG_RUN, 80)?;
        match attr.get_u32(4) {
            0 => Ok(()),
            n => Err(io::Error::other(format!("the program returned {n}"))),
        }
    }

    /// Instructions that the verifier processed, if the kernel tells (Linux 5.16).
    pub fn verified_instructions(&self) -> Option<u32> {
        /// `struct bpf_prog_info` up to `verified_insns`.
        const INFO_BYTES: usize = 224;
        let mut info = [0u8; INFO_BYTES];
        let mut attr = Attr::new().fd(0, &self.fd).u32(4, INFO_BYTES as u32).u64(8, info.as_mut_ptr().addr() as u64);
        attr.call(BPF_OBJ_GET_INFO_BY_FD, 16).ok()?;
        Some(u32::from_ne_bytes(*info.get(216..)?.first_chunk::<4>()?))
    }
}

/// True if the kernel still has the object with this number. For tests.
///
/// # Errors
/// The process lacks CAP_SYS_ADMIN.
pub fn is_in_kernel(what: Thing, id: u32) -> io::Result<bool> {
    let command = match what {
        Thing::Program => BPF_PROG_GET_NEXT_ID,
        Thing::Map => BPF_MAP_GET_NEXT_ID,
        Thing::Link => BPF_LINK_GET_NEXT_ID,
    };
    // The next number after the given one.
    let mut attr = Attr::new().u32(0, id.saturating_sub(1));
    match attr.call(command, 12) {
        Ok(_) => Ok(attr.get_u32(4) == id),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Size of the kernel's pages.
fn page_bytes() -> usize {
    // SAFETY: the call takes a number and returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, MergeObject};
    use rockmill_skip::{Needs, skip};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const TEST: &str = "what_the_kernel_holds_for_us_no_other_user_and_no_child_can_reach";
    /// For the child: the process, the map's number and the program's.
    const CHILD: &str = "ROCKMILL_TEST_KERNEL_IDS";
    const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
    const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;
    /// A user that owns nothing.
    const NOBODY: u32 = 65534;
    /// A program that returns 0.
    const NOTHING: [u64; 2] = [0xb7, 0x95];

    /// A line of the kernel's information about a descriptor.
    fn info(fd: i32, line: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        text.lines().find_map(|l| l.strip_prefix(line)).expect("the line").trim().to_owned()
    }

    extern "C" fn ignored(_: libc::c_int) {}

    #[test]
    fn signals_neither_stop_a_load_nor_hide_why_a_program_is_refused() {
        let built_in = MergeObject::built_in().unwrap();
        if let Err(e) = built_in.check(Driver::Run, 1 << 20) {
            return skip("a load among signals", &Needs::Kernel.because(e));
        }
        let endless = MergeObject::read("endless.o", include_bytes!("../bpf/tests/endless.bpf.o")).unwrap();
        // SAFETY: the handler does nothing, and nothing else here uses this signal.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignored as *const () as libc::sighandler_t;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        // SAFETY: the call takes nothing.
        let loading = unsafe { libc::pthread_self() };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let profiler = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: the scope outlives this thread, and the thread that opened it waits for its end.
                    assert_eq!(unsafe { libc::pthread_kill(loading, libc::SIGUSR2) }, 0);
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            for _ in 0..5 {
                let refused = endless.check(Driver::Run, 1 << 20).map(drop);
                let loaded = built_in.check(Driver::Run, 1 << 20).map(drop);
                if profiler.is_finished()
                    || loaded.is_err()
                    || !matches!(&refused, Err(e) if e.log.contains("processed"))
                {
                    done.store(true, Ordering::Relaxed);
                    panic!("{refused:?}, {loaded:?}");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    /// Not a test by itself: checks in a child process what another user can reach.
    #[test]
    fn child_process() {
        let Some(ids) = std::env::var_os(CHILD) else { return };
        let ids: Vec<u32> = ids.to_str().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
        for (command, id) in [(BPF_MAP_GET_FD_BY_ID, ids[1]), (BPF_PROG_GET_FD_BY_ID, ids[2])] {
            let e = Attr::new().u32(0, id).call(command, 12).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{e}");
        }
        for what in ["fd", "map_files"] {
            std::fs::read_dir(format!("/proc/{}/{what}", ids[0])).map(drop).unwrap_err();
        }
        std::fs::read(format!("/proc/{}/mem", ids[0])).unwrap_err();
        println!("CHILD done");
    }

    #[test]
    fn what_the_kernel_holds_for_us_no_other_user_and_no_child_can_reach() {
        let (arena, program) = match (Arena::new(1 << 16), Loaded::new(&NOTHING, "GPL")) {
            (Ok(arena), Ok(program)) => (arena, program),
            (Err(e), _) => return skip(TEST, &Needs::Kernel.because(e)),
            (_, Err(e)) => return skip(TEST, &Needs::Kernel.because(e.error)),
        };
        for fd in [arena.fd(), program.fd.as_raw_fd()] {
            let flags = u32::from_str_radix(&info(fd, "flags:"), 8).unwrap();
            assert!(flags & libc::O_CLOEXEC as u32 != 0, "a program that we start would inherit it: {flags:o}");
        }
        let ids = format!(
            "{} {} {}",
            std::process::id(),
            info(arena.fd(), "map_id:"),
            info(program.fd.as_raw_fd(), "prog_id:")
        );
        // Another user may not be able to enter the build directory.
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = dir.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let mut child = std::process::Command::new(&copy);
        child.args(["--exact", "sys::tests::child_process", "--nocapture"]).env(CHILD, ids).current_dir("/");
        let done = child.uid(NOBODY).gid(NOBODY).output();
        dir.close().unwrap();
        match done {
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stdout).into_owned();
                assert!(done.status.success() && said.contains("CHILD done"), "{said}");
            }
            Err(e) => skip(TEST, &Needs::Root.because(format!("the test acts as another user: {e}"))),
        }
    }
}
