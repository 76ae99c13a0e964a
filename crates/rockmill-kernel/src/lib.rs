//! The merge of compactions inside the kernel: an eBPF program, its loader, and its memory.
//!
//! The program (`bpf/merge.h`) works on a BPF arena, memory that it shares with this process: user space puts blocks of
//! sorted tables in, each run's in order; one call of the program merges them, up to some thousand entries; user space
//! takes the records, which name keys and values in that memory.
//!
//! The compiled object is committed beside its source (`bpf/merge.bpf.o`, made by `scripts/build-bpf`), and the loader
//! here needs nothing but `bpf(2)`: no compiler, no libbpf, no libelf, no headers, and no type information of the
//! kernel's.
//!
//! - [`object`]: reading the object;
//! - `allowed`: what an object may have, whoever gives it;
//! - [`merge_object`]: what it stands for: the built-in program, or a user's with an order or a filter of its own;
//! - [`btf`]: what the kernel says of its own types, for the driver `loop`;
//! - [`instance`]: a loaded program with its arena, or why there is none;
//! - [`pool`]: instances that wait for the next merge;
//! - [`merge`]: one merge;
//! - [`layout`]: the structures that both sides know;
//! - `sys`: the system calls.

mod allowed;
pub mod btf;
pub mod instance;
pub mod layout;
pub mod merge;
pub mod merge_object;
pub mod object;
pub mod pool;
mod sys;

pub use instance::{Driver, Instance, Unavailable};
pub use merge::{BlockPlace, Dropped, FilterJob, Job, Merge, Record, Refusal, Status};
pub use merge_object::MergeObject;
pub use object::{BadObject, Program};
pub use pool::Pool;
pub use sys::{Thing, is_in_kernel};
