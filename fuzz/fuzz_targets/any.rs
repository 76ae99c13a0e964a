//! All targets in one program: `ROCKMILL_FUZZ_TARGET` selects one. `fuzz/run` uses it, so that only one program is
//! linked.
#![no_main]

use std::sync::OnceLock;

use rockmill_fuzz::TARGETS;

#[global_allocator]
static ALLOCATOR: rockmill_fuzz::memory::Counted = rockmill_fuzz::memory::Counted;

/// The target's name.
fn target() -> &'static str {
    static TARGET: OnceLock<&str> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("ROCKMILL_FUZZ_TARGET").unwrap_or_default();
        match TARGETS.iter().find(|(target, _)| *target == name) {
            Some((target, _)) => target,
            None => {
                eprintln!("ROCKMILL_FUZZ_TARGET is {name:?}: one of {:?}", TARGETS.map(|(target, _)| target));
                std::process::exit(2);
            }
        }
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| rockmill_fuzz::memory::watched(target(), data));
