//! db_bench-compatible workloads.
