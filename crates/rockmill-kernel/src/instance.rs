//! A program loaded into the kernel, with its memory. An instance does one merge at a time, on any thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rockmill_io::ring::BatchIo;

use crate::btf::Btf;
use crate::object::Program;
use crate::said::Refused;
use crate::sys::{Arena, Loaded, LoopTypes, Looped};

/// The committed merge program, compiled from `bpf/merge.bpf.c`.
pub const MERGE_OBJECT: &[u8] = include_bytes!("../bpf/merge.bpf.o");

/// The same for [`Driver::Loop`], compiled from `bpf/loop.bpf.c`.
pub const LOOP_OBJECT: &[u8] = include_bytes!("../bpf/loop.bpf.o");

/// An example of a merge program with a custom filter, compiled from `bpf/examples/expire.bpf.c`.
pub const EXPIRE_EXAMPLE: &[u8] = include_bytes!("../bpf/examples/expire.bpf.o");

/// An example of a merge program with a custom order, compiled from `bpf/examples/reverse.bpf.c`.
pub const REVERSE_EXAMPLE: &[u8] = include_bytes!("../bpf/examples/reverse.bpf.o");

/// An example of a merge program that combines merge operands, compiled from `bpf/examples/counters.bpf.c`.
pub const COUNTERS_EXAMPLE: &[u8] = include_bytes!("../bpf/examples/counters.bpf.o");

/// How the merge program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// `BPF_PROG_RUN` of a sleepable program on an arena (Linux 6.9): one call for each output buffer.
    #[default]
    Run,
    /// Inside `io_uring_enter` (Linux 7.1).
    Loop,
}

impl Driver {
    /// All, in the order of help texts.
    pub const ALL: [Self; 2] = [Self::Run, Self::Loop];

    /// Its name on the command line and in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Loop => "loop",
        }
    }

    /// The committed object that contains its program.
    pub fn object(self) -> &'static [u8] {
        match self {
            Self::Run => MERGE_OBJECT,
            Self::Loop => LOOP_OBJECT,
        }
    }

    /// The section of the object that has its entry.
    pub fn entry(self) -> &'static str {
        match self {
            Self::Run => "syscall",
            Self::Loop => "struct_ops",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why there is no instance: one line, and the verifier's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// One line.
    pub reason: String,
    /// The verifier's log, if it refused the program; empty otherwise.
    pub log: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}

fn unavailable(reason: impl Into<String>) -> Unavailable {
    Unavailable { reason: reason.into(), log: String::new() }
}

/// What runs the program.
#[derive(Debug)]
enum How {
    Run(Loaded),
    Loop(Box<Looped>),
}

/// A loaded merge program and its memory.
#[derive(Debug)]
pub struct Instance {
    how: How,
    arena: Arena,
    program: Arc<Program>,
    driver: Driver,
    asked: usize,
    calls: u64,
    counted: Option<Counted>,
}

/// Sums over instances.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Memory of those that live.
    pub bytes: AtomicUsize,
    /// Calls of all that ever did.
    pub calls: AtomicU64,
}

/// An instance's share of these.
#[derive(Debug)]
struct Counted {
    sums: Arc<Sums>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sums.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Instance {
    /// Loads `program` with an arena of `bytes` bytes.
    ///
    /// # Errors
    /// What is missing: a capability, a newer kernel, or memory; or why the verifier refuses the program.
    pub fn new(program: &Arc<Program>, driver: Driver, bytes: usize) -> Result<Self, Unavailable> {
        // Checked first: the feature that an older kernel lacks says more than the kernel's error.
        let types = match driver {
            Driver::Run => None,
            Driver::Loop => Some(loop_types(program)?),
        };
        let arena = Arena::new(bytes).map_err(|e| unavailable(why_no_arena(&e, bytes)))?;
        let refused = |refused: Refused| {
            let e = &refused.error;
            let reason = match e.raw_os_error() {
                Some(libc::EPERM) if refused.log.is_empty() => {
                    format!("no permission to load a BPF program ({e}): it needs CAP_BPF")
                }
                _ => match refused.log.lines().rfind(|l| says_why(l)) {
                    Some(last) => format!("the kernel's verifier refuses the merge program ({e}): {}", last.trim()),
                    None => format!("the kernel does not load the merge program: {e}"),
                },
            };
            Unavailable { reason, log: refused.log }
        };
        let (fd, licence) = (arena.fd(), program.licence());
        let how = match types {
            None => How::Run(Loaded::new(&program.with_arena(fd), licence).map_err(refused)?),
            Some(types) => {
                let instructions = program.with_functions(fd, &types.functions);
                How::Loop(Box::new(Looped::new(&instructions, licence, types).map_err(refused)?))
            }
        };
        Ok(Self { how, arena, program: Arc::clone(program), driver, asked: bytes, calls: 0, counted: None })
    }

    /// Adds its memory, for as long as it lives, and its calls to `sums`.
    pub(crate) fn counted(mut self, sums: &Arc<Sums>) -> Self {
        let bytes = self.memory_bytes();
        sums.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counted = Some(Counted { sums: Arc::clone(sums), bytes });
        self
    }

    /// The program it runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// How it is run.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The size in bytes that was requested.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory().len()
    }

    /// Makes the program run in the ring of `io`, on the ring's thread, until [`Self::detach`]. Each call then submits
    /// the transfers begun there, and waits for those that a dry run needs. For [`Driver::Loop`].
    ///
    /// # Errors
    /// The reason why it cannot; the program then continues to run outside of the ring.
    pub fn attach_to(&mut self, io: &BatchIo) -> std::io::Result<()> {
        match &mut self.how {
            How::Run(_) => Err(std::io::Error::other("the driver run is in no ring")),
            How::Loop(looped) => looped.attach_to(io),
        }
    }

    /// Leaves that ring.
    pub fn detach(&mut self) {
        if let How::Loop(looped) = &mut self.how {
            looped.detach();
        }
    }

    /// True if it runs in the ring of the reads and writes.
    pub fn shares_ring(&self) -> bool {
        matches!(&self.how, How::Loop(looped) if looped.shares_ring())
    }

    /// Makes the next call wait for these transfers if a run is dry.
    pub fn await_transfers(&mut self, transfers: impl Iterator<Item = u64>) {
        if let How::Loop(looped) = &mut self.how {
            looped.await_transfers(transfers);
        }
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Instructions that the verifier processed, if the kernel tells.
    pub fn verified_instructions(&self) -> Option<u32> {
        match &self.how {
            How::Run(loaded) => loaded.verified_instructions(),
            How::Loop(looped) => looped.loaded().verified_instructions(),
        }
    }

    /// The address of the memory's first byte in programs.
    pub(crate) fn base(&self) -> u32 {
        self.arena.memory().base()
    }

    /// The memory.
    #[inline]
    pub(crate) fn memory(&self) -> &[u8] {
        self.arena.memory().bytes()
    }

    /// The memory, to be written.
    #[inline]
    pub(crate) fn memory_mut(&mut self) -> &mut [u8] {
        self.arena.memory_mut().bytes_mut()
    }

    /// Calls the program once, with the control block at `control`.
    pub(crate) fn call(&mut self, control: u32) -> std::io::Result<()> {
        self.calls += 1;
        if let Some(counted) = &self.counted {
            counted.sums.calls.fetch_add(1, Ordering::Relaxed);
        }
        match &mut self.how {
            How::Run(loaded) => loaded.run(&mut self.arena, &mut [control, 0]),
            How::Loop(looped) => looped.call(&mut self.arena, control).map(|_steps| ()),
        }
    }
}

/// Explains why the kernel does not create an arena.
fn why_no_arena(e: &std::io::Error, bytes: usize) -> String {
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("no permission to make a BPF arena ({e}): it needs CAP_BPF"),
        Some(libc::EINVAL) => format!("the kernel has no BPF arenas ({e}): they came with Linux 6.9"),
        Some(libc::EOPNOTSUPP) => format!("the kernel's BPF compiler does not do arenas ({e})"),
        Some(libc::ENOSYS) => format!("the kernel has no bpf(2), or a filter forbids it ({e})"),
        _ => format!("cannot make a BPF arena of {bytes} bytes: {e}"),
    }
}

/// True if a line of the verifier's log gives a reason. Summaries and register states after it do not.
fn says_why(line: &str) -> bool {
    let no = ["processed ", "cur state:", "old state:", "verification time", "stack depth", "mark_precise:"];
    !line.trim().is_empty() && !no.iter().any(|no| line.starts_with(no))
}

/// The types found in the kernel's BTF, or what is missing, by the functions that a program calls.
type FoundTypes = HashMap<Vec<String>, Result<LoopTypes, String>>;

/// The kernel's numbers of the types that the driver `loop` needs. The kernel's BTF has several megabytes and does not
/// change while it runs, so each process searches it once per set of functions.
fn loop_types(program: &Program) -> Result<LoopTypes, Unavailable> {
    static FOUND: Mutex<Option<FoundTypes>> = Mutex::new(None);
    let functions = program.functions();
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    let names: Vec<String> = functions.iter().map(|&name| name.to_owned()).collect();
    if !found.contains_key(&names) {
        // Not cached: what cannot be read now may be readable the next time.
        let btf = Btf::of_kernel();
        let btf = btf.map_err(|e| unavailable(format!("{e}: the driver loop needs Linux 7.1 with BTF")))?;
        found.insert(names.clone(), LoopTypes::find(&btf, &functions));
    }
    found[&names].clone().map_err(|what| {
        unavailable(format!(
            "the kernel does not know {what}: the driver loop needs Linux 7.1 with CONFIG_IO_URING_BPF_OPS"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_lacks_is_one_clear_line() {
        let cases = [
            (libc::EPERM, "it needs CAP_BPF"),
            (libc::EACCES, "it needs CAP_BPF"),
            (libc::EINVAL, "they came with Linux 6.9"),
            (libc::EOPNOTSUPP, "the kernel's BPF compiler does not do arenas"),
            (libc::ENOSYS, "the kernel has no bpf(2), or a filter forbids it"),
            (libc::ENOMEM, "cannot make a BPF arena of 4096 bytes"),
        ];
        for (errno, part) in cases {
            let said = why_no_arena(&std::io::Error::from_raw_os_error(errno), 4096);
            assert!(said.contains(part) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn the_committed_program_is_accepted_by_the_verifier() {
        for driver in Driver::ALL {
            let program = Arc::new(Program::read(driver.object(), driver.entry()).unwrap());
            match Instance::new(&program, driver, 4 << 20) {
                Ok(m) => println!("{driver}: verified instructions: {:?}", m.verified_instructions()),
                Err(e) if e.log.is_empty() => {
                    let needs = match driver {
                        Driver::Run => rockmill_skip::Needs::Kernel,
                        Driver::Loop => rockmill_skip::Needs::KernelLoop,
                    };
                    rockmill_skip::skip("the_committed_program_is_accepted_by_the_verifier", &needs.because(e));
                }
                Err(e) => panic!("{driver}: {e}"),
            }
        }
    }
}
