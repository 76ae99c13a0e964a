//! What stands for this crate's system calls on every system but Linux: nothing can be created, and the error says why.

use std::convert::Infallible;
use std::io;

use rockmill_io::ring::BatchIo;

use crate::btf::Btf;
use crate::said::{Refused, Thing};

fn only_linux() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "eBPF is Linux's, and this is another system")
}

/// A mapping that cannot be made.
#[derive(Debug)]
pub struct Memory(Infallible);

impl Memory {
    /// The lower half of its address.
    pub fn base(&self) -> u32 {
        match self.0 {}
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        match self.0 {}
    }

    /// All of it, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self.0 {}
    }
}

/// An arena that cannot be made.
#[derive(Debug)]
pub struct Arena(Infallible);

impl Arena {
    /// Always fails.
    pub fn new(_bytes: usize) -> io::Result<Self> {
        Err(only_linux())
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        match self.0 {}
    }

    /// Its memory.
    pub fn memory(&self) -> &Memory {
        match self.0 {}
    }

    /// Its memory, to be written.
    pub fn memory_mut(&mut self) -> &mut Memory {
        match self.0 {}
    }
}

/// A program that cannot be loaded.
#[derive(Debug)]
pub struct Loaded(Infallible);

impl Loaded {
    /// Always fails.
    pub fn new(_instructions: &[u64], _licence: &str) -> Result<Self, Refused> {
        Err(Refused { error: only_linux(), log: String::new() })
    }

    /// Runs the program.
    pub fn run(&self, _arena: &mut Arena, _context: &mut [u32; 2]) -> io::Result<()> {
        match self.0 {}
    }

    /// Instructions that the verifier processed.
    pub fn verified_instructions(&self) -> Option<u32> {
        match self.0 {}
    }
}

/// The kernel's numbers of its types; never found.
#[derive(Debug, Clone)]
pub struct LoopTypes {
    /// The functions that programs may call, by name.
    pub functions: Vec<(String, u32)>,
    never: Infallible,
}

impl LoopTypes {
    /// Always fails.
    pub fn find(_btf: &Btf, _functions: &[&str]) -> Result<Self, String> {
        Err("io_uring, which is Linux's".to_owned())
    }
}

/// A program that is in no ring.
#[derive(Debug)]
pub struct Looped(Infallible);

impl Looped {
    /// Cannot be called, as there are no types.
    pub fn new(_instructions: &[u64], _licence: &str, types: LoopTypes) -> Result<Self, Refused> {
        match types.never {}
    }

    /// The program.
    pub fn loaded(&self) -> &Loaded {
        match self.0 {}
    }

    /// Attaches the program to the ring of `io`.
    pub fn attach_to(&mut self, _io: &BatchIo) -> io::Result<()> {
        match self.0 {}
    }

    /// Leaves that ring.
    pub fn detach(&mut self) {
        match self.0 {}
    }

    /// True if it runs in a shared ring.
    pub fn shares_ring(&self) -> bool {
        match self.0 {}
    }

    /// Makes the next call wait for these transfers if a run is dry.
    pub fn await_transfers(&mut self, _transfers: impl Iterator<Item = u64>) {
        match self.0 {}
    }

    /// Enters the ring until the program stops.
    pub fn call(&mut self, _arena: &mut Arena, _control: u32) -> io::Result<u32> {
        match self.0 {}
    }
}

/// True if the kernel still has the object with this number.
///
/// # Errors
/// Always: this is not Linux.
pub fn is_in_kernel(_what: Thing, _id: u32) -> io::Result<bool> {
    Err(only_linux())
}
