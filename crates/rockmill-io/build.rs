//! Sets `cfg(rings)` where io_uring can be used: on Linux, on processors for which the crate `io-uring` has the
//! kernel's structures. `Cargo.toml` has the same list.

const KNOWN: [&str; 5] = ["x86_64", "aarch64", "riscv64", "loongarch64", "powerpc64"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(rings)");
    let of = |name| std::env::var(name).unwrap_or_default();
    if of("CARGO_CFG_TARGET_OS") == "linux" && KNOWN.contains(&of("CARGO_CFG_TARGET_ARCH").as_str()) {
        println!("cargo::rustc-cfg=rings");
    }
}
