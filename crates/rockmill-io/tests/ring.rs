//! Batched I/O: the common behaviour of the ring, plain calls and memory, and the handling of all faults.

#[path = "ring/faults.rs"]
mod faults;
#[path = "ring/job.rs"]
mod job;
#[path = "ring/limits.rs"]
mod limits;
#[path = "ring/pieces.rs"]
mod pieces;
#[path = "ring/places.rs"]
mod places;
#[path = "ring/read.rs"]
mod read;
#[path = "ring/reuse.rs"]
mod reuse;
#[path = "ring/shim.rs"]
mod shim;
#[path = "ring/write.rs"]
mod write;
