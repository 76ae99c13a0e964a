//! Hostile input: one function for each decoder, and one for whole databases. Each takes any bytes and checks what
//! Rockmill promises about them: the result is a value or an error with a place, without a panic, endless work, or
//! memory beyond a bound.
//!
//! `fuzz/` passes these functions to libFuzzer, which searches for inputs that reach new code. In every `cargo test`,
//! `tests/hostile.rs` runs them on the corpus in `fuzz/corpus` and on some mutations of it.

#[path = "../../rockmill/tests/compat/archive.rs"]
pub mod archive;
pub mod control;
pub mod copies;
pub mod crafted;
pub mod database;
pub mod decoders;
pub mod files;
pub mod fixtures;
pub mod hostile;
pub mod job_specs;
pub mod memory;
pub mod mend;
pub mod mutate;
pub mod nvme;
pub mod pieces;
pub mod seeds;

/// A function that takes hostile bytes. It panics if a promise is broken.
pub type Body = fn(&[u8]);

/// Every target: its name, which is also that of its corpus, and its function.
pub const TARGETS: [(&str, Body); 31] = [
    ("footer", decoders::footer),
    ("block", decoders::block),
    ("filter", decoders::filter),
    ("properties", decoders::properties),
    ("compression", decoders::compression),
    ("batch", decoders::batch),
    ("write_batch", files::write_batch),
    ("wal", decoders::wal),
    ("version_edit", decoders::version_edit),
    ("job_spec", decoders::job_spec),
    ("perfect_hash", decoders::perfect_hash),
    ("job_result", decoders::job_result),
    ("manifest", files::manifest),
    ("table", files::table),
    ("tph_table", pieces::tph_table),
    ("options", files::options),
    ("option_string", files::option_string),
    ("backup_meta", files::backup_meta),
    ("backup", copies::backup),
    ("ingest", files::ingest),
    ("import", copies::import),
    ("nvme_pdu", nvme::pdu),
    ("nvme_target", nvme::target_script),
    ("nvme_initiator", nvme::initiator_script),
    ("nvme_host", nvme::host_script),
    ("nvme_auth", nvme::auth),
    ("control_message", control::message),
    ("control_channel", control::channel),
    ("tombstones", crafted::tombstones),
    ("operands", crafted::operands),
    ("database", database::mutated),
];

/// Limit for the bytes of files that an input of this target can create: inputs of some targets are choices, and the
/// files chosen from have a size too.
pub fn room_of(target: &str) -> usize {
    match target {
        "backup" | "import" => 1 << 20,
        "tombstones" | "operands" => crafted::SIZE,
        "database" => {
            let bytes = |fixture: &fixtures::Fixture| fixture.files.values().map(Vec::len).sum::<usize>();
            static LARGEST: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
            *LARGEST.get_or_init(|| fixtures::all().iter().map(bytes).max().unwrap_or(0))
        }
        _ => 0,
    }
}
