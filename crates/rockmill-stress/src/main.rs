//! The `rockmill-stress` command; see the library's `cli`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    rockmill_stress::cli::main()
}
