//! Every target in one program: `ROCKMILL_FUZZ_TARGET` says which. `fuzz/run` uses it, so that one program is linked.
#![no_main]

use std::sync::OnceLock;

use rockmill_fuzz::{Body, TARGETS};

fn body() -> Body {
    static BODY: OnceLock<Body> = OnceLock::new();
    *BODY.get_or_init(|| {
        let name = std::env::var("ROCKMILL_FUZZ_TARGET").unwrap_or_default();
        match TARGETS.iter().find(|(target, _)| *target == name) {
            Some((_, body)) => *body,
            None => {
                eprintln!("ROCKMILL_FUZZ_TARGET is {name:?}: one of {:?}", TARGETS.map(|(target, _)| target));
                std::process::exit(2);
            }
        }
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| body()(data));
