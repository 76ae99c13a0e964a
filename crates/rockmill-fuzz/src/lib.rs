//! Hostile input: one function per decoder, and one for whole databases, each of which takes any bytes and holds
//! Rockmill to what it promises of them: a value or an error that says where, no panic, no end-less work, no memory
//! beyond a bound.
//!
//! `fuzz/` gives these functions to libFuzzer, which looks for inputs that reach new code. `tests/hostile.rs` runs them
//! over the corpus in `fuzz/corpus`, with some mutations of it, in every `cargo test`.

#[path = "../../rockmill/tests/compat/archive.rs"]
pub mod archive;
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

/// What takes hostile bytes. It panics if a promise is broken.
pub type Body = fn(&[u8]);

/// Every target: its name, which is that of its corpus, and its function.
pub const TARGETS: [(&str, Body); 29] = [
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
    ("tombstones", crafted::tombstones),
    ("operands", crafted::operands),
    ("database", database::mutated),
];

/// Bytes of the files that an input of this target stands for, at most: inputs of some are choices, and what they
/// choose from has a size, too.
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
