#![no_main]

#[global_allocator]
static ALLOCATOR: rockmill_fuzz::memory::Counted = rockmill_fuzz::memory::Counted;

libfuzzer_sys::fuzz_target!(|data: &[u8]| rockmill_fuzz::memory::watched("control_message", data));
