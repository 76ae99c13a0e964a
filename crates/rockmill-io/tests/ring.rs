//! Batched I/O: what the ring, plain calls and memory must all do alike, and what becomes of every fault on the way.

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
