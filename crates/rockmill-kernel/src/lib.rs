//! The merge of compactions inside the kernel: an eBPF program, its loader, and its memory.
//!
//! The program (`bpf/merge.h`) works on a BPF arena, which is memory shared with this process. User space puts in the
//! blocks of sorted tables, in order for each run. One call of the program merges up to some thousand entries. User
//! space then reads the resulting records, which refer to keys and values in that memory.
//!
//! The compiled object is committed next to its source (`bpf/merge.bpf.o`, built by `scripts/build-bpf`). The loader
//! here needs only `bpf(2)`: no compiler, no libbpf, no libelf, no headers, and no type information of the kernel.
//!
//! - [`object`]: reading the object;
//! - `allowed`: what an object may contain, whatever its origin;
//! - [`merge_object`]: merge programs: the built-in one, or a user's with a custom order or filter;
//! - [`btf`]: the kernel's description of its own types, for the driver `loop`;
//! - [`instance`]: a loaded program with its arena, or the reason why there is none;
//! - [`pool`]: idle instances, kept for the next merge;
//! - [`merge`]: one merge;
//! - [`layout`]: the structures that both sides share;
//! - `sys`: the system calls. On other systems than Linux the crate compiles, and says that it can load nothing.

mod allowed;
pub mod btf;
pub mod instance;
pub mod layout;
pub mod merge;
pub mod merge_object;
pub mod object;
pub mod pool;
mod said;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(not(target_os = "linux"))]
#[path = "no_sys.rs"]
mod sys;

pub use instance::{Driver, Instance, Unavailable};
pub use merge::{BlockPlace, Dropped, FilterJob, Job, Merge, Record, Refusal, Status};
pub use merge_object::MergeObject;
pub use object::{BadObject, Program};
pub use pool::Pool;
pub use said::Thing;
pub use sys::is_in_kernel;
