//! RocksDB's tools as oracles, both ways.
