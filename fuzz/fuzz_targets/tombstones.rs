#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rockmill_fuzz::crafted::tombstones(data));
