//! The `rockmill-bench` command; see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    rockmill_bench::main_with_args("rockmill-bench", std::env::args().skip(1))
}
