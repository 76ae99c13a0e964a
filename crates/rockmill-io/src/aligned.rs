//! Sector-aligned buffers for direct I/O.
