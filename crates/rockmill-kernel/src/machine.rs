//! What runs a program: the kernel. One machine does one merge at a time, for any thread.

use std::fmt;
use std::sync::Arc;

use crate::object::Program;
use crate::sys::{Arena, Loaded};

/// The merge program as it is committed, compiled from `bpf/merge.bpf.c`.
pub const MERGE_OBJECT: &[u8] = include_bytes!("../bpf/merge.bpf.o");

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

/// Why there is no machine: one line, and what the verifier said.
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

/// A loaded merge program and its memory.
#[derive(Debug)]
pub struct Machine {
    arena: Arena,
    loaded: Loaded,
    program: Arc<Program>,
    driver: Driver,
    asked_bytes: usize,
    calls: u64,
}

impl Machine {
    /// Loads `program` with an arena of so many bytes.
    ///
    /// # Errors
    /// What is missing, in words: a capability, a newer kernel, memory; or what the verifier has against the program.
    pub fn new(program: &Arc<Program>, driver: Driver, bytes: usize) -> Result<Self, Unavailable> {
        if driver == Driver::Loop {
            return Err(unavailable("the driver loop is not built yet: use run"));
        }
        let arena = Arena::new(bytes).map_err(|e| {
            unavailable(match e.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    format!("no permission to make a BPF arena ({e}): it needs CAP_BPF")
                }
                Some(libc::EINVAL) => format!("the kernel has no BPF arenas ({e}): they came with Linux 6.9"),
                Some(libc::EOPNOTSUPP) => format!("the kernel's BPF compiler does not do arenas ({e})"),
                Some(libc::ENOSYS) => format!("the kernel has no bpf(2), or a filter forbids it ({e})"),
                _ => format!("cannot make a BPF arena of {bytes} bytes: {e}"),
            })
        })?;
        let loaded = Loaded::new(&program.with_arena(arena.fd()), program.licence()).map_err(|refused| {
            let e = &refused.error;
            let reason = match e.raw_os_error() {
                Some(libc::EPERM) if refused.log.is_empty() => {
                    format!("no permission to load a BPF program ({e}): it needs CAP_BPF")
                }
                _ => match refused.log.lines().rfind(|l| !l.starts_with("processed ") && !l.trim().is_empty()) {
                    Some(last) => format!("the kernel's verifier refuses the merge program ({e}): {}", last.trim()),
                    None => format!("the kernel does not load the merge program: {e}"),
                },
            };
            Unavailable { reason, log: refused.log }
        })?;
        Ok(Self { arena, loaded, program: Arc::clone(program), driver, asked_bytes: bytes, calls: 0 })
    }

    /// The program it runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// How it is run.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Bytes of memory that it was asked to have.
    pub fn asked_bytes(&self) -> usize {
        self.asked_bytes
    }

    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory().len()
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Instructions that the verifier went over, where the kernel says so.
    pub fn verified_instructions(&self) -> Option<u32> {
        self.loaded.verified_instructions()
    }

    /// The address of the memory's first byte, as programs have it.
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

    /// One call of the program, with the control block at `control`.
    pub(crate) fn call(&mut self, control: u32) -> std::io::Result<()> {
        self.calls += 1;
        let mut context = [control, 0];
        self.loaded.run(&mut self.arena, &mut context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_program_is_accepted_by_the_verifier() {
        let program = Arc::new(Program::read(MERGE_OBJECT, Driver::Run.entry()).unwrap());
        match Machine::new(&program, Driver::Run, 4 << 20) {
            Ok(m) => println!("verified instructions: {:?}", m.verified_instructions()),
            Err(e) if e.log.is_empty() => println!("skipped: the merge program in the kernel: {e}"),
            Err(e) => panic!("{e}"),
        }
    }
}
