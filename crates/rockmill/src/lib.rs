//! Rockmill
