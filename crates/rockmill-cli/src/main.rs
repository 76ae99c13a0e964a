//! The `rockmill` command.
fn main() {}
