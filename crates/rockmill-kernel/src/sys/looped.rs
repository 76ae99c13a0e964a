//! Running a program inside `io_uring_enter` (Linux 7.1): operations attached to a ring.
//!
//! The ring is the one that the merging thread reads and writes with, if it has one ([`Looped::attach_to`]); otherwise
//! a separate, empty ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::{self, ThreadId};

use rockmill_io::ring::program_slot::page;
use rockmill_io::ring::{BatchIo, CompletionPlaces, ProgramSlot};

use super::{Arena, Attr, Loaded, Memory, Refused, owned, page_bytes};
use crate::btf::Btf;

const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_BTF_LOAD: libc::c_long = 18;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_STRUCT_OPS: u32 = 26;
const BPF_PROG_TYPE_STRUCT_OPS: u32 = 27;
const BPF_STRUCT_OPS: u32 = 44;
const BPF_F_LINK: u32 = 1 << 13;
const BPF_F_SLEEPABLE: u32 = 1 << 4;

const IORING_SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const IORING_SETUP_DEFER_TASKRUN: u32 = 1 << 13;
const IORING_ENTER_GETEVENTS: libc::c_uint = 1;
const IORING_REGISTER_MEM_REGION: libc::c_uint = 34;
/// Flag of a region: the process provides its memory.
const IORING_MEM_REGION_TYPE_USER: u32 = 1;

/// The structure of the operations, the kernel's wrapper of it, and the function that the program implements.
const OPS: &str = "io_uring_bpf_ops";
const OPS_VALUE: &str = "bpf_struct_ops_io_uring_bpf_ops";
const STEP: &str = "loop_step";

/// The kernel's numbers of the types and functions that this driver needs.
#[derive(Debug, Clone)]
pub struct LoopTypes {
    ops: u32,
    step_place: u32,
    value: u32,
    value_bytes: u32,
    /// Of fields, in the value.
    step_at: u32,
    ring_at: u32,
    /// Where a ring's memory has its completions, if known. Only what a call waits for depends on it.
    completions: Option<CompletionPlaces>,
    /// The functions that programs may call, by name.
    pub functions: Vec<(String, u32)>,
}

impl LoopTypes {
    /// Finds them in the kernel's BTF, for a program that calls `functions`; `Err` names what is missing.
    pub fn find(btf: &Btf, functions: &[&str]) -> Result<Self, String> {
        let structure = |name: &str| btf.structure(name).ok_or_else(|| format!("struct {name}"));
        let (ops, value) = (structure(OPS)?, structure(OPS_VALUE)?);
        let field = |s: &crate::btf::Struct, name: &str| s.field(name).ok_or_else(|| format!("the field {name}"));
        let (_, data) = field(&value, "data")?;
        let (step_place, step_at) = field(&ops, STEP)?;
        let (_, ring_at) = field(&ops, "ring_fd")?;
        let number = |name: &&str| {
            let id = btf.function(name).ok_or_else(|| format!("the function {name}"))?;
            Ok(((*name).to_owned(), id))
        };
        Ok(Self {
            ops: ops.id,
            step_place,
            value: value.id,
            value_bytes: value.bytes,
            step_at: data + step_at,
            ring_at: data + ring_at,
            completions: completions(btf),
            functions: functions.iter().map(number).collect::<Result<_, String>>()?,
        })
    }
}

/// Where a ring's memory has its completions.
fn completions(btf: &Btf) -> Option<CompletionPlaces> {
    let rings = btf.structure("io_rings")?;
    let tail = rings.field("cq")?.1 + btf.structure("io_uring")?.field("tail")?.1;
    Some(CompletionPlaces { tail, entries: rings.field("cqes")?.1 })
}

/// A program that the kernel calls while a thread is in `io_uring_enter`.
#[derive(Debug)]
pub struct Looped {
    types: LoopTypes,
    loaded: Loaded,
    /// Created again if another thread calls: a ring belongs to one thread.
    attached: Option<Attached>,
    /// What the next call waits for if a run is dry.
    awaited: Vec<u64>,
}

/// A ring with the program. The attachment is dropped before the ring.
#[derive(Debug)]
struct Attached {
    _link: OwnedFd,
    _map: OwnedFd,
    to: AttachedTo,
}

/// Where it is attached.
#[derive(Debug)]
enum AttachedTo {
    /// In a ring of its own.
    Own { ring: OwnedFd, region: Memory, thread: ThreadId },
    /// In the ring that the thread reads and writes with.
    Shared(ProgramSlot),
}

impl Looped {
    /// Loads the program.
    pub fn new(instructions: &[u64], licence: &str, types: LoopTypes) -> Result<Self, Refused> {
        let (ops, place) = (types.ops, types.step_place);
        let kind = move |attr: Attr| {
            let attr = attr.u32(0, BPF_PROG_TYPE_STRUCT_OPS).u32(44, BPF_F_SLEEPABLE);
            attr.u32(68, place).u32(108, ops).name(48, STEP)
        };
        let loaded = Loaded::load(instructions, licence, kind)?;
        Ok(Self { types, loaded, attached: None, awaited: Vec::new() })
    }

    /// The program.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Attaches the program to the ring of `io`, until [`Self::detach`].
    pub fn attach_to(&mut self, io: &BatchIo) -> io::Result<()> {
        self.attached = None;
        let slot = io.program_slot(self.types.completions).map_err(|e| failed("making place in the ring", &e))?;
        let (link, map) = self.attach(slot.ring())?;
        self.attached = Some(Attached { _link: link, _map: map, to: AttachedTo::Shared(slot) });
        Ok(())
    }

    /// Leaves that ring.
    pub fn detach(&mut self) {
        if self.shares_ring() {
            self.attached = None;
        }
    }

    /// True if it runs in a shared ring, not in its own.
    pub fn shares_ring(&self) -> bool {
        matches!(self.attached, Some(Attached { to: AttachedTo::Shared(_), .. }))
    }

    /// Makes the next call wait for these transfers if a run is dry.
    pub fn await_transfers(&mut self, transfers: impl Iterator<Item = u64>) {
        self.awaited.clear();
        self.awaited.extend(transfers);
    }

    /// Creates a separate ring with the program.
    fn attach_alone(&self) -> io::Result<Attached> {
        let mut params = [0u32; 30];
        params[2] = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
        // SAFETY: `params` has the size of `struct io_uring_params`, and lives until the call returns.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
        if ring < 0 {
            return Err(failed("making a ring", &io::Error::last_os_error()));
        }
        let ring = owned(ring);
        let bytes = page_bytes();
        let region = Memory::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        let description = [region.address(), bytes as u64, u64::from(IORING_MEM_REGION_TYPE_USER), 0, 0, 0, 0, 0];
        let register = [description.as_ptr().addr() as u64, 0, 0, 0];
        let (call, fd) = (libc::SYS_io_uring_register, ring.as_raw_fd());
        // SAFETY: both structures are whole and live until the call returns; the region lives longer than the ring,
        // which is dropped first.
        let done = unsafe { libc::syscall(call, fd, IORING_REGISTER_MEM_REGION, register.as_ptr(), 1) };
        if done < 0 {
            return Err(failed("giving the ring its region", &io::Error::last_os_error()));
        }
        let (link, map) = self.attach(ring.as_raw_fd())?;
        let to = AttachedTo::Own { ring, region, thread: thread::current().id() };
        Ok(Attached { _link: link, _map: map, to })
    }

    /// Attaches the program to a ring: link and map.
    fn attach(&self, ring: i32) -> io::Result<(OwnedFd, OwnedFd)> {
        let t = &self.types;
        let types = own_types().map_err(|e| failed("giving the kernel types", &e))?;
        let mut attr = Attr::new()
            .u32(0, BPF_MAP_TYPE_STRUCT_OPS)
            .u32(4, 4)
            .u32(8, t.value_bytes)
            .u32(12, 1)
            .u32(16, BPF_F_LINK)
            .fd(48, &types)
            .u32(60, t.value)
            .name(28, "rockmill_loop");
        let map = attr.call(super::BPF_MAP_CREATE, 80).map_err(|e| failed("making the operations", &e))?;
        let map = owned(map);
        let mut value = vec![0u8; t.value_bytes as usize];
        let mut put = |at: u32, bytes: &[u8]| {
            let place = value.get_mut(at as usize..at as usize + bytes.len());
            place.map(|place| place.copy_from_slice(bytes)).ok_or(io::ErrorKind::InvalidData)
        };
        put(t.step_at, &(self.loaded.fd.as_raw_fd() as u64).to_ne_bytes())?;
        put(t.ring_at, &(ring as u32).to_ne_bytes())?;
        let key = 0u32;
        let (key_at, value_at) = (std::ptr::from_ref(&key).addr() as u64, value.as_ptr().addr() as u64);
        let mut update = Attr::new().fd(0, &map).u64(8, key_at).u64(16, value_at);
        update.call(BPF_MAP_UPDATE_ELEM, 32).map_err(|e| failed("filling the operations", &e))?;
        let mut link = Attr::new().fd(0, &map).u32(8, BPF_STRUCT_OPS);
        let link = link.call(BPF_LINK_CREATE, 16).map_err(|e| failed("attaching the operations to the ring", &e))?;
        Ok((owned(link), map))
    }

    /// Enters the ring until the program stops. Takes the arena as `&mut`, so that nothing else uses its memory
    /// meanwhile. Returns the number of steps.
    pub fn call(&mut self, arena: &mut Arena, control: u32) -> io::Result<u32> {
        let _ = arena;
        let here = thread::current().id();
        let fits = self.attached.as_ref().is_some_and(|a| match &a.to {
            AttachedTo::Own { thread, .. } => *thread == here,
            AttachedTo::Shared(_) => true,
        });
        if !fits {
            self.attached = None;
            self.attached = Some(self.attach_alone()?);
        }
        let (ring, region) = match &mut self.attached {
            None => return Err(io::ErrorKind::NotFound.into()),
            Some(Attached { to: AttachedTo::Shared(slot), .. }) => {
                let steps = slot.enter(control, &self.awaited);
                self.awaited.clear();
                return steps.map_err(|e| failed("entering the ring", &e));
            }
            Some(Attached { to: AttachedTo::Own { ring, region, .. }, .. }) => (ring, region),
        };
        // Nothing is in flight there.
        let place = region.bytes_mut();
        place.fill(0);
        place[..4].copy_from_slice(&control.to_ne_bytes());
        loop {
            let (call, fd) = (libc::SYS_io_uring_enter, ring.as_raw_fd());
            let nothing = std::ptr::null::<libc::c_void>();
            // SAFETY: the call takes numbers and no memory; what the program writes to is the arena, which this has
            // for itself, and the region.
            let done = unsafe { libc::syscall(call, fd, 0, 0, IORING_ENTER_GETEVENTS, nothing, 0) };
            if done >= 0 {
                break;
            }
            let e = io::Error::last_os_error();
            // A signal between two steps: the program continues where it was.
            if e.kind() != io::ErrorKind::Interrupted {
                return Err(failed("entering the ring", &e));
            }
        }
        let steps = region.bytes()[page::STEPS..].first_chunk::<4>().map_or(0, |b| u32::from_ne_bytes(*b));
        if steps == 0 {
            return Err(io::Error::other("the kernel did not call the program"));
        }
        Ok(steps)
    }
}

/// BTF of this process, which the kernel requires for a map of operations: a single unused integer.
fn own_types() -> io::Result<OwnedFd> {
    const NAME: &[u8] = b"\0int\0";
    // Header: magic number and version, its length, then offset and length of types and of names. Then the type.
    let words: [u32; 10] = [0x0001_eb9f, 24, 0, 16, 16, NAME.len() as u32, 1, 1 << 24, 4, 32];
    let mut btf: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    btf.extend_from_slice(NAME);
    let mut attr = Attr::new().u64(0, btf.as_ptr().addr() as u64).u32(16, btf.len() as u32);
    Ok(owned(attr.call(BPF_BTF_LOAD, 32)?))
}

fn failed(what: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}
