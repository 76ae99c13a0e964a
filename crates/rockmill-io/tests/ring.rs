//! Batched I/O: what the ring, plain calls and memory must all do alike, and what becomes of every fault on the way.

#[path = "ring/places.rs"]
mod places;
#[path = "ring/read.rs"]
mod read;
#[path = "ring/write.rs"]
mod write;
