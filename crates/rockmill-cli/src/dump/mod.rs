//! `rockmill dump`: what is in one file.

mod manifest;
mod sst;
pub mod table_file;
mod tph;
mod wal;

use std::path::Path;
use std::sync::Arc;

use rockmill_format::filename::{self, FileType};
use rockmill_format::footer::BLOCK_BASED_TABLE_MAGIC;
use rockmill_format::{FormatError, ParsedInternalKey};
use rockmill_io::{FileSystem, PosixFileSystem};
use serde_json::{Map, Value, json};

use crate::args::{DumpArgs, FileTypeArg};
use crate::error::{CliError, Result};
use crate::output::{self, Out};

/// Most bytes of a key or value that text output shows, unless `--hex` is given.
const SHOWN_LEN_MAX: usize = 200;

/// A number for a WAL or MANIFEST whose name has none.
const NO_NUMBER: u64 = 0;

/// What a dump was asked for.
pub struct Dump<'a> {
    args: &'a DumpArgs,
    path: &'a Path,
    fs: Arc<dyn FileSystem>,
    /// Records or entries still wanted.
    left: u64,
    /// Number of damaged places that were skipped.
    damage: u64,
}

impl Dump<'_> {
    /// Bytes as text: escaped and shortened, or all of them in hexadecimal.
    fn show(&self, bytes: &[u8]) -> String {
        if self.args.hex { output::hex(bytes) } else { format!("'{}'", output::escape(bytes, SHOWN_LEN_MAX)) }
    }

    /// An internal key as text: `'key' @ 17 : Value`.
    fn show_key(&self, ikey: &[u8]) -> String {
        match ParsedInternalKey::parse(ikey) {
            Ok(k) => format!("{} @ {} : {:?}", self.show(k.user_key), k.sequence, k.value_type),
            Err(_) => format!("{} (no internal key)", self.show(ikey)),
        }
    }

    /// Counts one item of the limit; false if the limit is reached.
    fn take(&mut self) -> bool {
        let any = self.left > 0;
        self.left = self.left.saturating_sub(1);
        any
    }

    /// First fields of the JSON object.
    fn head(&self, what: &str) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("file".into(), self.path.display().to_string().into());
        map.insert("type".into(), what.into());
        map
    }

    /// Returns an error if damage was found, so that scripts notice it.
    fn verdict(&self) -> Result<()> {
        match self.damage {
            0 => Ok(()),
            1 => Err(CliError::corruption(format!("{}: damaged at one place, shown above", self.path.display()))),
            n => Err(CliError::corruption(format!("{}: damaged at {n} places, shown above", self.path.display()))),
        }
    }
}

/// An internal key as a JSON object.
fn key_json(ikey: &[u8]) -> Map<String, Value> {
    let mut map = Map::new();
    match ParsedInternalKey::parse(ikey) {
        Ok(k) => {
            output::put_bytes(&mut map, "key", k.user_key);
            map.insert("sequence".into(), k.sequence.into());
            map.insert("kind".into(), format!("{:?}", k.value_type).into());
        }
        Err(e) => {
            output::put_bytes(&mut map, "key", ikey);
            map.insert("error".into(), e.to_string().into());
        }
    }
    map
}

/// A decoding error in the file at `path`.
fn format_error(path: &Path, e: &FormatError) -> CliError {
    CliError::from(rockmill::Error::format(path, e))
}

/// `rockmill dump`
pub fn run(args: &DumpArgs, out: &mut Out) -> Result<()> {
    let path = args.file.as_path();
    let meta = std::fs::metadata(path).map_err(|e| CliError::io(format_args!("cannot open {}", path.display()), &e))?;
    if meta.is_dir() {
        return Err(CliError::usage(format!("{}: is a directory; dump shows one file", path.display())).hint(
            match rockmill::Db::find_wal_dir(&rockmill::Options::default(), path) {
                Ok(wals) if wals != path => format!(
                    "give one of its files: `rockmill dump DB/CURRENT` names the MANIFEST; WALs are in {}",
                    wals.display()
                ),
                _ => "give one of its files: `rockmill dump DB/CURRENT` names the MANIFEST".to_owned(),
            },
        ));
    }
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let by_name = filename::parse(&name);
    let (what, number) = match (args.file_type, by_name) {
        (Some(what), Some(FileType::Wal(n) | FileType::Manifest(n))) => (what, n),
        (Some(what), _) => (what, NO_NUMBER),
        (None, Some(FileType::Table(_))) => (FileTypeArg::Sst, NO_NUMBER),
        (None, Some(FileType::Wal(n))) => (FileTypeArg::Wal, n),
        (None, Some(FileType::Manifest(n))) => (FileTypeArg::Manifest, n),
        (None, Some(FileType::Current)) => (FileTypeArg::Current, NO_NUMBER),
        (None, Some(FileType::Blob(_))) => {
            return Err(CliError {
                kind: "NotSupported".into(),
                ..CliError::corruption(format!("{}: blob files (BlobDB) are not supported", path.display()))
            });
        }
        (None, Some(FileType::Options(_) | FileType::InfoLog | FileType::Identity)) => {
            return Err(CliError::usage(format!("{}: is plain text, read it as it is", path.display())));
        }
        (None, _) if ends_like_a_table(&fs, path) => (FileTypeArg::Sst, NO_NUMBER),
        (None, _) => {
            return Err(CliError::usage(format!("{}: its name does not tell what it is", path.display()))
                .hint("give --type sst, wal, manifest or current"));
        }
    };
    let mut dump = Dump { args, path, fs, left: args.limit.unwrap_or(u64::MAX), damage: 0 };
    match what {
        FileTypeArg::Sst => sst::run(&mut dump, out)?,
        FileTypeArg::Wal => wal::run(&mut dump, number, out)?,
        FileTypeArg::Manifest => manifest::run(&mut dump, out)?,
        FileTypeArg::Current => current(&dump, out)?,
    }
    dump.verdict()
}

fn ends_like_a_table(fs: &Arc<dyn FileSystem>, path: &Path) -> bool {
    let Ok(file) = fs.open_random(path, false) else { return false };
    let mut magic = [0; 8];
    let Some(at) = file.size().checked_sub(8) else { return false };
    file.read_at(at, &mut magic).is_ok_and(|n| n == 8) && u64::from_le_bytes(magic) == BLOCK_BASED_TABLE_MAGIC
}

/// Longest CURRENT that is read; the real ones have 16 bytes.
const CURRENT_LEN_MAX: u64 = 4096;

fn current(dump: &Dump<'_>, out: &mut Out) -> Result<()> {
    let shown = dump.path.display().to_string();
    let io = |e| CliError::io(&shown, &e);
    let size = dump.fs.file_size(dump.path).map_err(io)?;
    if size > CURRENT_LEN_MAX {
        return Err(CliError::corruption(format!("{shown}: {size} bytes are too many for a file CURRENT")));
    }
    let bytes = dump.fs.read_to_vec(dump.path).map_err(io)?;
    let name = bytes.strip_suffix(b"\n").and_then(|b| std::str::from_utf8(b).ok());
    let Some((name, FileType::Manifest(number))) = name.and_then(|n| Some((n, filename::parse(n)?))) else {
        return Err(CliError::corruption(format!(
            "{shown}: must hold the MANIFEST's name and a newline, holds '{}'",
            output::escape(&bytes, SHOWN_LEN_MAX)
        )));
    };
    let exists = dump.path.with_file_name(name).exists();
    if out.json {
        let mut map = dump.head("current");
        map.insert("manifest".into(), name.into());
        map.insert("manifest_number".into(), number.into());
        map.insert("manifest_exists".into(), exists.into());
        return out.json_object(&json!(map));
    }
    out.line(format!("{name}{}", if exists { "" } else { " (which is missing)" }))
}
