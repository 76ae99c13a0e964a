//! `ldb`'s flags and commands that have another name here, or that are not there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use crate::error::{CliError, Result};

/// What a flag becomes.
pub enum Flag {
    /// This argument.
    Is(OsString),
    /// An argument without a name, such as the file that `--path` names.
    Place(OsString),
    /// Nothing: the command does it anyway.
    Done,
}

/// How a flag of `ldb` is said here.
enum Here {
    /// As a flag with the same value.
    Flag(&'static str),
    /// As a flag without a value, unless its value is `false`.
    Switch(&'static str),
    /// With `--option`: an option of RocksDB, and its value.
    Option(&'static str, fn(&str) -> Option<String>),
    /// As an argument without a name.
    Place,
    /// It is always so; only `false` is refused.
    Always,
    /// It makes no difference.
    Never,
    /// Not at all; and why, or what to use instead.
    Refused(&'static str),
}

const BLOBS: &str = "blob files are not supported";
const TRANSACTIONS: &str = "transactions are not supported";
const TIMES: &str = "times of values are not printed; the library opens such a database with Db::open_with_ttl";
const TIMESTAMPS: &str = "user-defined timestamps are not supported";
const LOCAL: &str = "databases and backups are in the local file system";
const NO_LOCK: &str = "leave it out: get, scan, dump and stats take no lock, so the database may be open elsewhere";

/// Flags of a command, or of every command (the empty name), with underscores.
const FLAGS: &[(&str, &str, Here)] = &[
    ("", "key_hex", Here::Switch("--key-hex")),
    ("", "value_hex", Here::Switch("--value-hex")),
    ("", "hex", Here::Switch("--hex")),
    ("", "auto_compaction", Here::Option("disable_auto_compactions", |v| Some((!v.parse::<bool>().ok()?).to_string()))),
    ("", "compression_type", Here::Option("compression", compression)),
    ("", "compression_max_dict_bytes", Here::Option("compression_opts.max_dict_bytes", number)),
    ("", "db_write_buffer_size", Here::Option("db_write_buffer_size", number)),
    ("", "file_size", Here::Option("target_file_size_base", number)),
    ("", "fix_prefix_len", Here::Option("prefix_extractor", |v| Some(format!("fixed:{}", number(v)?)))),
    ("", "disable_consistency_checks", Here::Refused("the tree is always checked")),
    ("", "ignore_unknown_options", Here::Refused("--ignore-stored-options takes the defaults, --options another file")),
    ("", "secondary_path", Here::Refused(NO_LOCK)),
    ("", "leader_path", Here::Refused(NO_LOCK)),
    ("", "env_uri", Here::Refused(LOCAL)),
    ("", "fs_uri", Here::Refused(LOCAL)),
    ("", "backup_env_uri", Here::Refused(LOCAL)),
    ("", "backup_fs_uri", Here::Refused(LOCAL)),
    ("", "use_txn", Here::Refused(TRANSACTIONS)),
    ("", "txn_write_policy", Here::Refused(TRANSACTIONS)),
    ("", "read_timestamp", Here::Refused(TIMESTAMPS)),
    ("", "timestamp", Here::Refused(TIMES)),
    ("", "start_time", Here::Refused(TIMES)),
    ("", "end_time", Here::Refused(TIMES)),
    ("", "bucket", Here::Refused(TIMES)),
    ("", "get_write_unix_time", Here::Refused(TIMES)),
    ("", "enable_blob_files", Here::Refused(BLOBS)),
    ("", "decode_blob_index", Here::Refused(BLOBS)),
    ("", "dump_uncompressed_blobs", Here::Refused(BLOBS)),
    ("put", "create_if_missing", Here::Switch("--create")),
    ("batchput", "create_if_missing", Here::Switch("--create")),
    ("ingest_extern_sst", "move_files", Here::Switch("--move")),
    ("ingest_extern_sst", "snapshot_consistency", Here::Always),
    ("ingest_extern_sst", "allow_global_seqno", Here::Always),
    ("ingest_extern_sst", "allow_blocking_flush", Here::Always),
    ("ingest_extern_sst", "write_global_seqno", Here::Refused("RocksDB has given it up; tables are not changed")),
    ("manifest_dump", "path", Here::Place),
    ("manifest_dump", "verbose", Here::Always),
    ("dump", "path", Here::Place),
    ("dump_wal", "walfile", Here::Place),
    ("dump_wal", "header", Here::Never),
    ("dump_wal", "print_value", Here::Always),
    ("dump_wal", "write_committed", Here::Never),
    ("checkpoint", "checkpoint_dir", Here::Place),
    ("backup", "backup_dir", Here::Place),
    ("backup", "num_threads", Here::Flag("--threads")),
    ("backup", "stderr_log_level", Here::Never),
    ("restore", "backup_dir", Here::Place),
    ("restore", "num_threads", Here::Flag("--threads")),
    ("restore", "stderr_log_level", Here::Never),
    ("repair", "verbose", Here::Always),
    ("change_compaction_style", "old_compaction_style", Here::Never),
];

/// Commands that are not there, and what to use instead.
const COMMANDS: &[(&str, &str)] = &[
    ("write_extern_sst", "`rockmill write-sst TABLE FILE` writes a table from tsv, csv or jsonl; - is standard input"),
    ("list_file_range_deletes", "`rockmill dump FILE --entries` prints the range deletions of a table"),
    ("dump_live_files", "`rockmill dump FILE` shows one file; `rockmill --db=DB list_live_files_metadata` lists them"),
    ("reduce_levels", "empty levels cost nothing; `rockmill compact DB` moves all data to the deepest level"),
    ("update_manifest", "`rockmill repair DB` writes a new MANIFEST from the tables"),
    ("unsafe_remove_sst_file", "move the file away, then `rockmill repair DB` makes a database of what is left"),
    ("compaction_progress_dump", "compactions do not store their progress"),
    ("remote_compaction_primary", "`rockmill compact DB --compaction-workers HOST` uses other machines"),
    ("remote_compaction_worker", "`rockmill worker` runs compactions for other machines"),
    ("get_entity", "wide columns are not supported"),
    ("multi_get_entity", "wide columns are not supported"),
    ("put_entity", "wide columns are not supported"),
];

/// What to use instead of a command of `ldb` that is not there.
pub fn instead_of(command: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(name, _)| *name == command).map(|(_, instead)| *instead)
}

fn number(value: &str) -> Option<String> {
    Some(value.parse::<u64>().ok()?.to_string())
}

fn compression(value: &str) -> Option<String> {
    let name = match value {
        "no" => "kNoCompression",
        "snappy" => "kSnappyCompression",
        "zlib" => "kZlibCompression",
        "bzip2" => "kBZip2Compression",
        "lz4" => "kLZ4Compression",
        "lz4hc" => "kLZ4HCCompression",
        "xpress" => "kXpressCompression",
        "zstd" => "kZSTD",
        _ => return None,
    };
    Some(name.to_owned())
}

/// Translates an argument of a call of `command` (`ldb`'s name of it, with underscores).
pub fn translate(command: &str, arg: &OsStr) -> Result<Flag> {
    let same = || Ok(Flag::Is(arg.to_owned()));
    let Some(body) = arg.as_bytes().strip_prefix(b"--") else { return same() };
    let (name, value) = match body.iter().position(|b| *b == b'=') {
        Some(at) => (&body[..at], Some(OsStr::from_bytes(&body[at + 1..]))),
        None => (body, None),
    };
    let Ok(name) = std::str::from_utf8(name).map(|name| name.replace('-', "_")) else { return same() };
    let text = value.and_then(OsStr::to_str);
    let wrong = || CliError::usage(format!("{}: not a value of ldb's --{name}", arg.display()));
    let on = || match (value, text) {
        (None, _) | (_, Some("true")) => Ok(true),
        (_, Some("false")) => Ok(false),
        _ => Err(wrong()),
    };
    match name.as_str() {
        "try_load_options" if on()? => return Ok(Flag::Done),
        "try_load_options" => return Ok(Flag::Is("--ignore-stored-options".into())),
        "new_compaction_style" if command == "change_compaction_style" => {
            let style = match text {
                Some("0") => "kCompactionStyleLevel",
                Some("1") => "kCompactionStyleUniversal",
                _ => return Err(wrong().hint("0 is leveled, 1 universal")),
            };
            return Ok(Flag::Place(format!("compaction_style={style}").into()));
        }
        _ => {}
    }
    let Some((.., here)) = FLAGS.iter().find(|(of, flag, _)| *flag == name && (of.is_empty() || *of == command)) else {
        return same();
    };
    match here {
        Here::Flag(flag) => {
            let mut with_value = OsString::from(flag).into_vec();
            if let Some(value) = value {
                with_value.push(b'=');
                with_value.extend_from_slice(value.as_bytes());
            }
            Ok(Flag::Is(OsString::from_vec(with_value)))
        }
        Here::Switch(flag) => Ok(if on()? { Flag::Is(flag.into()) } else { Flag::Done }),
        Here::Option(option, convert) => {
            let value = text.and_then(convert).ok_or_else(wrong)?;
            Ok(Flag::Is(format!("--option={option}={value}").into()))
        }
        Here::Place => match value {
            Some(value) if !value.is_empty() => Ok(Flag::Place(value.to_owned())),
            _ => Err(CliError::usage(format!("--{name} has no value: --{name}=PATH"))),
        },
        Here::Always if on()? => Ok(Flag::Done),
        Here::Always => Err(CliError::usage(format!("--{name}=false is not possible: it is always on"))),
        Here::Never => Ok(Flag::Done),
        Here::Refused(why) => Err(CliError::usage(format!("ldb's --{name} is not there")).hint(*why)),
    }
}
