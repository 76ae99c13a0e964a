//! Settings of the peers: one text of RocksDB's option names for every store that supports them, the two presets, the
//! effective settings of each store, and differences between sides.

use std::fs;
use std::path::Path;

use rockmill_format::comparator::HASH_RANGE_NAME;

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::outcome::SideReport;

/// The presets of `--settings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Every side gets exactly the flags' settings.
    Same,
    /// The flags' settings, and the recommendations of each store's documentation for this kind of work.
    Best,
}

impl Preset {
    /// Reads `same` or `best`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "same" => Ok(Self::Same),
            "best" => Ok(Self::Best),
            _ => Err(Error::Usage(format!("--settings={text}: same or best"))),
        }
    }
}

fn compression(name: &str) -> Result<&'static str> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "none" => "kNoCompression",
        "snappy" => "kSnappyCompression",
        "zlib" => "kZlibCompression",
        "lz4" => "kLZ4Compression",
        "lz4hc" => "kLZ4HCCompression",
        "zstd" => "kZSTD",
        _ => return Err(Error::Usage(format!("--compression_type={name}: none, snappy, zlib, lz4, lz4hc or zstd"))),
    })
}

fn checksum(number: i32) -> Result<&'static str> {
    const NAMES: [&str; 5] = ["kNoChecksum", "kCRC32c", "kxxHash", "kxxHash64", "kXXH3"];
    let name = usize::try_from(number).ok().and_then(|n| NAMES.get(n).copied());
    name.ok_or_else(|| Error::Usage(format!("--checksum_type={number}: 0 to 4")))
}

/// The flags' settings as a text of RocksDB's options: Rockmill and RocksDB get the same text, except for TPH tables,
/// which RocksDB does not have.
pub fn options_text(flags: &Flags, preset_extra: &[(&str, String)]) -> Result<String> {
    let f = flags;
    let mut table = vec![
        ("block_size", f.block_size.to_string()),
        ("block_restart_interval", f.block_restart_interval.to_string()),
        ("format_version", f.format_version.to_string()),
        ("checksum", checksum(f.checksum_type)?.to_owned()),
        (
            "filter_policy",
            match f.bloom_bits {
                bits if bits > 0.0 => format!("bloomfilter:{bits}:false"),
                _ => "nullptr".to_owned(),
            },
        ),
    ];
    if f.cache_size > 0 {
        table.push(("block_cache", f.cache_size.to_string()));
    } else {
        table.push(("no_block_cache", "true".to_owned()));
    }
    let mut all: Vec<(&str, String)> = vec![
        ("create_if_missing", (!f.use_existing_db).to_string()),
        ("create_missing_column_families", (f.num_column_families > 1).to_string()),
        ("max_open_files", f.open_files.to_string()),
        ("max_background_jobs", f.max_background_jobs.to_string()),
        ("max_subcompactions", f.subcompactions.to_string()),
        ("use_fsync", f.use_fsync.to_string()),
        ("use_direct_reads", f.use_direct_reads.to_string()),
        ("use_direct_io_for_flush_and_compaction", f.use_direct_io_for_flush_and_compaction.to_string()),
        ("bytes_per_sync", f.bytes_per_sync.to_string()),
        ("wal_bytes_per_sync", f.wal_bytes_per_sync.to_string()),
        ("compaction_readahead_size", f.compaction_readahead_size.to_string()),
        ("delayed_write_rate", f.delayed_write_rate.to_string()),
        ("writable_file_max_buffer_size", f.writable_file_max_buffer_size.to_string()),
        ("allow_concurrent_memtable_write", f.allow_concurrent_memtable_write.to_string()),
        ("write_buffer_size", f.write_buffer_size.to_string()),
        ("max_write_buffer_number", f.max_write_buffer_number.to_string()),
        ("min_write_buffer_number_to_merge", f.min_write_buffer_number_to_merge.to_string()),
        ("level0_file_num_compaction_trigger", f.level0_file_num_compaction_trigger.to_string()),
        ("level0_slowdown_writes_trigger", f.level0_slowdown_writes_trigger.to_string()),
        ("level0_stop_writes_trigger", f.level0_stop_writes_trigger.to_string()),
        ("num_levels", f.num_levels.to_string()),
        ("target_file_size_base", f.target_file_size_base.to_string()),
        ("target_file_size_multiplier", f.target_file_size_multiplier.to_string()),
        ("max_bytes_for_level_base", f.max_bytes_for_level_base.to_string()),
        ("max_bytes_for_level_multiplier", f.max_bytes_for_level_multiplier.to_string()),
        ("level_compaction_dynamic_level_bytes", f.level_compaction_dynamic_level_bytes.to_string()),
        ("soft_pending_compaction_bytes_limit", f.soft_pending_compaction_bytes_limit.to_string()),
        ("hard_pending_compaction_bytes_limit", f.hard_pending_compaction_bytes_limit.to_string()),
        ("disable_auto_compactions", f.disable_auto_compactions.to_string()),
        ("compression", compression(&f.compression_type)?.to_owned()),
    ];
    if !f.merge_operator.is_empty() {
        all.push(("merge_operator", f.merge_operator.clone()));
    }
    if f.hash_range {
        all.push(("comparator", HASH_RANGE_NAME.to_owned()));
    }
    let mut factory = "block_based_table_factory";
    if f.table_format == "tph" {
        factory = "tph_table_factory";
        table.push(("piece_limit", f.piece_limit.to_string()));
        table.push(("garbage_percent", f.garbage_percent.to_string()));
    }
    // Later ones win: a preset overrides the flags, and --options_string overrides both.
    for (name, value) in preset_extra {
        match name.strip_prefix("table.") {
            Some(name) => table.push((name, value.clone())),
            None => all.push((name, value.clone())),
        }
    }
    let join = |pairs: &[(&str, String)]| {
        let last = |i: usize| pairs[i + 1..].iter().all(|(n, _)| *n != pairs[i].0);
        let kept = (0..pairs.len()).filter(|&i| last(i));
        kept.map(|i| format!("{}={}", pairs[i].0, pairs[i].1)).collect::<Vec<_>>().join(";")
    };
    let mut text = join(&all);
    text += &format!(";{factory}={{{}}}", join(&table));
    if !f.options_string.is_empty() {
        text += &format!(";{}", f.options_string);
    }
    Ok(text)
}

/// The options in the newest OPTIONS file of the database in `dir`, with RocksDB's names: the effective settings.
/// `None` if the store does not write such a file.
pub fn effective(dir: &Path) -> Option<Vec<(String, String)>> {
    let names = fs::read_dir(dir).ok()?.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let newest = names
        .filter_map(|n| Some((n.strip_prefix("OPTIONS-")?.parse::<u64>().ok()?, n)))
        .max()
        .map(|(_, name)| dir.join(name))?;
    Some(parse_options_file(&fs::read_to_string(newest).ok()?))
}

fn parse_options_file(text: &str) -> Vec<(String, String)> {
    let mut section = "";
    let mut out = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = match name.split_whitespace().next().unwrap_or_default() {
                "TableOptions/BlockBasedTable" => "table.",
                "Version" => "version.",
                _ => "",
            };
        } else if let Some((name, value)) = line.split_once('=') {
            out.push((format!("{section}{name}"), value.to_owned()));
        }
    }
    out
}

/// The value of an option of [`effective`].
pub fn value_of<'a>(settings: &'a [(String, String)], name: &str) -> Option<&'a str> {
    settings.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
}

/// Options that both sides have with different values: name, first, second. Structs are compared member by member
/// (`compression_opts.level`). Irrelevant differences are omitted: versions, paths, and the form of texts.
pub fn differences(a: &[(String, String)], b: &[(String, String)]) -> Vec<(String, String, String)> {
    const WITHOUT_MEANING: [&str; 5] = ["version.", "db_log_dir", "wal_dir", "db_host_id", "persist_stats_to_disk"];
    let same = |x: &str, y: &str| {
        x == y
            || matches!((x.parse::<f64>(), y.parse::<f64>()), (Ok(x), Ok(y)) if x == y)
            || (is_nothing(x) && is_nothing(y))
    };
    let mut out = Vec::new();
    let others = members(b);
    for (name, value) in members(a) {
        if WITHOUT_MEANING.iter().any(|w| name.starts_with(w)) {
            continue;
        }
        if let Some(other) = value_of(&others, &name)
            && !same(&value, other)
        {
            let other = other.to_owned();
            out.push((name, value, other));
        }
    }
    out
}

/// A description of the differences between the first side and each other: a warning if they were set explicitly.
pub(crate) fn differences_text(sides: &[SideReport]) -> String {
    let [first, others @ ..] = sides else { return String::new() };
    let mut text = String::new();
    for other in others {
        let (chosen, set): (Vec<_>, Vec<_>) =
            differences(&first.settings, &other.settings).into_iter().partition(|(name, a, b)| is_chosen(name, a, b));
        let list = |all: &[(String, String, String)]| {
            let all: Vec<String> =
                all.iter().map(|(name, a, b)| format!("{name} {} | {}", in_words(a), in_words(b))).collect();
            all.join("; ")
        };
        let both = format!("ptions that {} and {} both have, at different values: ", first.label, other.label);
        text += &match set.is_empty() {
            true => format!("O{both}none\n"),
            false => format!("WARNING: o{both}{}\n", list(&set)),
        };
        if !chosen.is_empty() {
            text += &format!("  and what one of them leaves to the store: {}\n", list(&chosen));
        }
    }
    text
}

/// The value of `ttl` and `periodic_compaction_seconds` that lets the store choose.
const CHOSEN: &str = "18446744073709551614";
/// The value that stands for no limit.
const UNLIMITED: &str = "18446744073709551615";

/// A value, or several in braces, with the two numbers above written as words.
pub(crate) fn in_words(value: &str) -> String {
    value.replace(CHOSEN, "default").replace(UNLIMITED, "unlimited")
}

/// True if one of two values says that the store chooses.
pub(crate) fn is_chosen(name: &str, a: &str, b: &str) -> bool {
    let by_zero = matches!(name, "max_compaction_bytes" | "arena_block_size");
    [a, b].iter().any(|value| *value == CHOSEN || (by_zero && *value == "0"))
}

/// Every option with its value: members of structs under `struct.member`, an object under its option's name
/// (`{id=stringappend;delimiter=,}` has the value `stringappend`, and a member).
fn members(settings: &[(String, String)]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (name, value) in settings {
        add_members(name, value, &mut out);
    }
    out
}

fn add_members(name: &str, value: &str, out: &mut Vec<(String, String)>) {
    let Some(inner) = value.trim().strip_prefix('{').and_then(|v| v.strip_suffix('}')) else {
        return out.push((name.to_owned(), value.to_owned()));
    };
    let parts = parts_of(inner);
    // A list of structs, or a value without members: compared as text.
    if parts.is_empty() || parts.iter().any(|part| !part.contains('=') || part.starts_with('{')) {
        return out.push((name.to_owned(), value.to_owned()));
    }
    for part in parts {
        match part.split_once('=') {
            Some(("id", id)) => out.push((name.to_owned(), id.to_owned())),
            Some((member, value)) => add_members(&format!("{name}.{}", member.trim()), value, out),
            None => {}
        }
    }
}

/// The parts between unescaped semicolons outside of inner braces.
fn parts_of(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth, mut escaped) = (Vec::new(), 0, 0usize, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => {}
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => {
                parts.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    parts.push(text[begin..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn is_nothing(value: &str) -> bool {
    matches!(value, "" | "nullptr" | "(nil)" | "{}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_one_text() {
        let flags = Flags { compression_type: "ZSTD".into(), bloom_bits: 10.0, cache_size: 0, ..Flags::default() };
        let text = options_text(&flags, &[]).unwrap();
        for part in ["compression=kZSTD", "filter_policy=bloomfilter:10:false", "no_block_cache=true", "checksum=kXXH3"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let extra = [("max_background_jobs", "7".to_owned()), ("table.block_size", "8192".to_owned())];
        let text = options_text(&Flags { options_string: "wal_dir=x".into(), ..flags }, &extra).unwrap();
        assert!(text.contains("max_background_jobs=7") && !text.contains("max_background_jobs=2"), "{text}");
        assert!(text.contains("block_size=8192") && !text.contains("block_size=4096"), "{text}");
        assert!(text.ends_with(";wal_dir=x"), "{text}");
        let tph = Flags { table_format: "tph".into(), piece_limit: 8, hash_range: true, ..Flags::default() };
        let text = options_text(&tph, &[]).unwrap();
        assert!(text.contains("tph_table_factory={block_size=4096;") && text.contains(";piece_limit=8;"), "{text}");
        assert!(text.contains(";comparator=rockmill.HashRangeComparator;"), "{text}");
    }

    #[test]
    fn bad_choices_are_named() {
        let bad = |f: Flags| options_text(&f, &[]).expect_err("a bad choice").to_string();
        assert!(bad(Flags { compression_type: "rar".into(), ..Flags::default() }).contains("rar"));
        assert!(bad(Flags { checksum_type: 9, ..Flags::default() }).contains("0 to 4"));
        assert!(Preset::parse("middling").expect_err("no preset").to_string().contains("same or best"));
    }

    #[test]
    fn options_files_are_compared() {
        let a =
            parse_options_file("# c\n[Version]\n  rocksdb_version=7.8.3\n[DBOptions]\n  max_open_files=-1\n  x=1.0\n");
        let b = parse_options_file("[Version]\n rocksdb_version=9.0\n[DBOptions]\n  max_open_files=5\n x=1\n");
        assert_eq!(value_of(&a, "version.rocksdb_version"), Some("7.8.3"));
        assert_eq!(differences(&a, &b), [("max_open_files".to_owned(), "-1".to_owned(), "5".to_owned())]);
        let a = parse_options_file(
            "[CFOptions]\n compression_opts={level=3;max_dict_bytes=0;parallel={a=1;b=2};}\n merge_operator=stringappend\n \
             compaction_options_universal={size_ratio=1}\n x={1}\n same={a=1;b=2}\n",
        );
        let b = parse_options_file(
            "[CFOptions]\n compression_opts={max_dict_bytes=16384;level=3;newer=1;parallel={a=1;b=3}}\n \
             merge_operator={id=stringappend;delimiter=\\;;}\n compaction_options_universal={size_ratio=2;}\n x={2}\n \
             same={b=2;a=1.0;}\n",
        );
        let found: Vec<String> = differences(&a, &b).into_iter().map(|(n, a, b)| format!("{n} {a} {b}")).collect();
        let wanted = [
            "compression_opts.max_dict_bytes 0 16384",
            "compression_opts.parallel.b 2 3",
            "compaction_options_universal.size_ratio 1 2",
            "x {1} {2}",
        ];
        assert_eq!(found, wanted);
        let side = |label: &str, settings| SideReport { label: label.to_owned(), settings, ..SideReport::default() };
        let more = |value: &str| vec![("ttl".to_owned(), value.to_owned()), ("a".to_owned(), "1".to_owned())];
        let text = differences_text(&[side("one", a), side("two", b)]);
        assert!(
            text.starts_with("WARNING: options that one and two both have") && text.contains("max_dict_bytes 0 | ")
        );
        let text = differences_text(&[side("one", more("18446744073709551614")), side("two", more("7"))]);
        assert!(text.contains("different values: none\n") && text.contains("to the store: ttl default | 7"), "{text}");
        assert_eq!(in_words("{a=18446744073709551615;b=18446744073709551614;c=1}"), "{a=unlimited;b=default;c=1}");
        let t = parse_options_file("[TableOptions/BlockBasedTable \"default\"]\n  block_size=4096\n");
        assert_eq!(value_of(&t, "table.block_size"), Some("4096"));
        let tph = "[TableOptions/BlockBasedTable \"default\"]\n  #rockmill tph_table_factory={}\n  block_size=8192\n";
        let other = parse_options_file(tph);
        assert_eq!(differences(&t, &other), [("table.block_size".to_owned(), "4096".to_owned(), "8192".to_owned())]);
    }
}
