//! OPTIONS files: RocksDB's format, read into names and values, and written.
//!
//! ```text
//! [Version]
//!   rocksdb_version=7.8.0
//!   options_file_version=1.1
//! [DBOptions]
//!   max_background_jobs=2
//! [CFOptions "default"]
//!   write_buffer_size=67108864
//! [TableOptions/BlockBasedTable "default"]
//!   block_size=4096
//! ```
//!
//! Written files have the names that every RocksDB since 7.8 knows. An option that is newer is written only if its
//! value is not RocksDB's default; `rocksdb_version` then is the oldest RocksDB that reads the file.
//!
//! A column family of TPH tables has the sections of block-based tables, as which RocksDB reads and writes its files. A
//! line that RocksDB takes for a comment says that Rockmill writes TPH tables: `#rockmill
//! tph_table_factory={piece_limit=16;}`. An OPTIONS file that RocksDB writes later does not have that line.

use std::fmt::Write as _;

use super::declare::TextOption;
use super::known;
use super::parse::{escape, unescape, without_comment};
use super::text::TPH_FACTORY;
use super::value::Value as _;
use super::{BlockBasedOptions, CfOptions, DbOptions, TableKind, TphTableOptions};
use crate::error::{Error, Result};

/// A RocksDB version: major, minor, patch.
pub(crate) type RocksDbVersion = (u32, u32, u32);

/// The oldest RocksDB that reads the files written here.
const OLDEST: RocksDbVersion = (7, 8, 0);

/// Names and values in their order; values with the file's escapes.
pub(crate) type Entries = Vec<(String, String)>;

/// A column family's sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FamilyEntries {
    pub name: String,
    pub options: Entries,
    /// The table factory's name and options.
    pub table: Option<(String, Entries)>,
    /// The options of TPH tables, as the value of [`TPH_FACTORY`], where such tables are written.
    pub tph: Option<String>,
}

/// The start of a line with an option that RocksDB must take for a comment.
const OWN: &str = "#rockmill ";

/// The contents of an OPTIONS file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OptionsFile {
    pub rocksdb_version: RocksDbVersion,
    pub db: Entries,
    /// `default` first.
    pub families: Vec<FamilyEntries>,
}

/// Where the reader is.
enum Section {
    None,
    Version,
    Db,
    Family,
    Table,
}

impl OptionsFile {
    /// Reads the text of a file. Errors name the line; the caller adds the file's name.
    pub fn parse(text: &str) -> Result<Self> {
        let mut out = Self::default();
        let mut section = Section::None;
        let (mut has_db, mut has_version) = (false, false);
        let mut family = 0; // that of the table section
        for (at, line) in text.lines().enumerate() {
            let bad = |what: &str| Error::corruption(format!("line {}: {what}", at + 1));
            let own = line.trim().strip_prefix(OWN).and_then(|own| own.trim().split_once('='));
            if let (Section::Table, Some((TPH_FACTORY, value))) = (&section, own) {
                out.families[family].tph = Some(value.to_owned());
            }
            let line = without_comment(line);
            if line.is_empty() {
                continue;
            }
            if let Some(head) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                let (title, name) = match head.split_once('"') {
                    Some((title, name)) => {
                        (title.trim(), unescape(name.strip_suffix('"').ok_or_else(|| bad("a quote is missing"))?))
                    }
                    None => (head.trim(), String::new()),
                };
                section = match title {
                    "Version" if has_version => return Err(bad("there are two [Version] sections")),
                    "Version" => {
                        has_version = true;
                        Section::Version
                    }
                    "DBOptions" if has_db => return Err(bad("there are two [DBOptions] sections")),
                    "DBOptions" => {
                        has_db = true;
                        Section::Db
                    }
                    "CFOptions" => {
                        out.begin_family(name).map_err(|what| bad(&what))?;
                        Section::Family
                    }
                    _ => {
                        let Some(factory) = title.strip_prefix("TableOptions/") else {
                            return Err(bad(&format!("section [{head}] is not known")));
                        };
                        let Some(found) = out.families.iter().position(|f| f.name == name) else {
                            return Err(bad(&format!("table options for column family {name:?}, which is not above")));
                        };
                        family = found;
                        out.families[family].table = Some((factory.to_owned(), Vec::new()));
                        Section::Table
                    }
                };
                continue;
            }
            let Some((name, value)) = line.split_once('=') else { return Err(bad("a name and `=` are expected")) };
            let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
            if name.is_empty() {
                return Err(bad("a name is missing before `=`"));
            }
            match section {
                Section::None => return Err(bad("an option stands before the first section")),
                Section::Version => out.read_version(&name, &value).map_err(|what| bad(&what))?,
                Section::Db => out.db.push((name, value)),
                Section::Family => out.families.last_mut().into_iter().for_each(|f| {
                    f.options.push((name.clone(), value.clone()));
                }),
                Section::Table => out.families[family].table.iter_mut().for_each(|t| {
                    t.1.push((name.clone(), value.clone()));
                }),
            }
        }
        if !has_db {
            return Err(Error::corruption("the section [DBOptions] is missing"));
        }
        if out.families.is_empty() {
            return Err(Error::corruption("the section [CFOptions \"default\"] is missing"));
        }
        Ok(out)
    }

    fn begin_family(&mut self, name: String) -> std::result::Result<(), String> {
        if self.families.is_empty() != (name == "default") {
            return Err("the first column family has to be \"default\", and no other".to_owned());
        }
        if self.families.iter().any(|f| f.name == name) {
            return Err(format!("column family {name:?} stands twice"));
        }
        self.families.push(FamilyEntries { name, options: Vec::new(), table: None, tph: None });
        Ok(())
    }

    fn read_version(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        let parts: Option<Vec<u32>> = value.split('.').map(|p| p.parse().ok()).collect();
        let bad = || format!("{name}={value} is no version");
        let part = |parts: &[u32], i: usize| parts.get(i).copied().unwrap_or(0);
        match (name, parts) {
            ("rocksdb_version", Some(p)) if p.len() <= 3 => {
                self.rocksdb_version = (part(&p, 0), part(&p, 1), part(&p, 2));
                Ok(())
            }
            ("options_file_version", Some(p)) if p.len() <= 2 && part(&p, 0) >= 1 => Ok(()),
            ("rocksdb_version" | "options_file_version", _) => Err(bad()),
            _ => Err(format!("{name} is not known in the section [Version]")),
        }
    }
}

/// An object that is not set, as files have it.
const NO_OBJECT: &str = "nullptr";

/// What a file had in addition to declared options.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried {
    /// Options that do nothing here, and the names of objects that the caller did not give. They are written back so
    /// that RocksDB finds them again. `outer.inner` is a field of a declared struct.
    pub options: Entries,
    /// The RocksDB that wrote them.
    pub rocksdb_version: RocksDbVersion,
}

/// Options as lines, and the oldest RocksDB version that reads them.
struct Lines {
    text: String,
    version: RocksDbVersion,
}

impl Lines {
    fn section<O>(&mut self, options: &O, table: &[TextOption<O>], carried: &Carried) {
        self.options(options, table, carried);
        self.text.push_str("  \n");
    }

    fn options<O>(&mut self, options: &O, table: &[TextOption<O>], carried: &Carried) {
        let written = table.iter().filter(|o| o.kind.is_in_files());
        for option in written {
            let Some(value) = (option.write)(options) else { continue };
            // An object that the caller did not give keeps its name from the file.
            let kept = carried.options.iter().find(|(name, _)| value == NO_OBJECT && name == option.name);
            let value = kept.map_or(value, |(_, kept)| kept.clone());
            self.option(option.name, &with_parts(value, option.name, carried));
        }
        let is_whole = |name: &str| !name.contains('.') && !table.iter().any(|o| o.name == name);
        for (name, value) in carried.options.iter().filter(|(name, _)| is_whole(name)) {
            self.option(name, value);
        }
        if !carried.options.is_empty() {
            self.version = self.version.max(carried.rocksdb_version);
        }
    }

    fn option(&mut self, name: &str, value: &str) {
        if let Some((usual, (major, minor))) = known::newer(name) {
            if usual == value {
                return;
            }
            self.version = self.version.max((major, minor, 0));
        }
        self.version = self.version.max(known::version_of_nested(name, value));
        // Not the colon: it separates the elements of lists. Whoever writes a text with a colon of its own escapes it.
        let value = escape(value).replace("\\:", ":");
        let _ = writeln!(self.text, "  {name}={value}"); // writing to a String cannot fail
    }
}

/// A struct's text, with what the file had in it in addition to declared fields.
fn with_parts(mut value: String, name: &str, carried: &Carried) -> String {
    for (inner, part) in carried.options.iter().filter_map(|(n, v)| Some((n.strip_prefix(name)?.strip_prefix('.')?, v)))
    {
        if let Some(open) = value.strip_suffix('}') {
            value = format!("{open}{inner}={part};}}");
        }
    }
    value
}

/// The text of a file with these options, the default column family first.
pub(crate) fn text(db: &DbOptions, families: &[(&str, &CfOptions)]) -> String {
    let mut lines = Lines { text: String::new(), version: OLDEST };
    let families_first = families.iter().filter(|f| f.0 == "default");
    let families = families_first.chain(families.iter().filter(|f| f.0 != "default"));
    lines.text.push_str("\n[DBOptions]\n");
    lines.section(db, DbOptions::TEXT, &db.carried);
    for (name, options) in families {
        let name = escape(name);
        let rocksdb = CfOptions { table_factory: TableKind::BlockBased, ..(*options).clone() };
        let _ = writeln!(lines.text, "\n[CFOptions \"{name}\"]");
        lines.section(&rocksdb, CfOptions::TEXT, &options.carried);
        let _ = writeln!(lines.text, "[TableOptions/{} \"{name}\"]", rocksdb.table_factory.write());
        if options.table_factory == TableKind::Tph {
            let values = TphTableOptions::TEXT.iter().filter_map(|o| Some((o.name, (o.write)(&options.tph)?)));
            let values: String = values.map(|(name, value)| format!("{name}={value};")).collect();
            let _ = writeln!(lines.text, "  {OWN}{TPH_FACTORY}={{{values}}}");
        }
        lines.section(&options.table, BlockBasedOptions::TEXT, &options.table.carried);
    }
    let (major, minor, patch) = lines.version;
    format!(
        "# An options file in RocksDB's format, written by Rockmill.\n\n[Version]\n  \
         rocksdb_version={major}.{minor}.{patch}\n  options_file_version=1.1\n{}",
        lines.text
    )
}

/// The text of a file with its `wal_dir` replaced and nothing else changed; `None` if it names this directory already.
pub(crate) fn with_wal_dir(text: &str, wal_dir: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len() + wal_dir.len());
    let (mut in_db, mut found, mut same) = (false, false, true);
    let line_of = |dir: &str| format!("  wal_dir={}\n", escape(dir).replace("\\:", ":"));
    for line in text.split_inclusive('\n') {
        let bare = without_comment(line);
        if bare.starts_with('[') {
            if in_db && !found && !wal_dir.is_empty() {
                out.push_str(&line_of(wal_dir));
                same = false;
            }
            in_db = bare.starts_with("[DBOptions]");
        }
        match bare.split_once('=') {
            Some((name, value)) if in_db && name.trim() == "wal_dir" => {
                found = true;
                same &= unescape(value.trim()) == wal_dir;
                out.push_str(&line_of(wal_dir));
            }
            _ => out.push_str(line),
        }
    }
    (!same).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[Version]\n rocksdb_version=9.8.4\n options_file_version=1.1\n[DBOptions]\n  a=1 # why\n\
                         [CFOptions \"default\"]\n b = x=y\n [TableOptions/BlockBasedTable \"default\"]\n c=\n\
                         [CFOptions \"a\\#b\\:\\\\\"\"]\n";

    #[test]
    fn a_copy_of_a_file_names_another_wal_directory() {
        let text = "[Version]\n  rocksdb_version=7.8.0\n  options_file_version=1.1\n[DBOptions]\n  wal_dir=/a\\#b # x\n\
                    max_open_files=7\n[CFOptions \"default\"]\n  wal_dir=of no meaning\n";
        let parsed = |text: &str| OptionsFile::parse(text).unwrap().db;
        assert_eq!(with_wal_dir(text, "/a#b"), None);
        let none = with_wal_dir(text, "").unwrap();
        assert_eq!(parsed(&none), [("wal_dir".into(), String::new()), ("max_open_files".into(), "7".into())]);
        assert!(none.contains("of no meaning"));
        assert_eq!(with_wal_dir(&none, ""), None);
        let other = with_wal_dir(&none, "/c:\\d").unwrap();
        assert_eq!(unescape(&parsed(&other)[0].1), "/c:\\d");
        let missing = text.replace("  wal_dir=/a\\#b # x\n", "");
        assert_eq!(with_wal_dir(&missing, ""), None);
        assert_eq!(parsed(&with_wal_dir(&missing, "/w").unwrap()).len(), 2);
    }

    #[test]
    fn sections_are_read() {
        let file = OptionsFile::parse(SMALL).unwrap();
        assert_eq!(file.rocksdb_version, (9, 8, 4));
        assert_eq!(file.db, [("a".to_owned(), "1".to_owned())]);
        assert_eq!(file.families[0].options, [("b".to_owned(), "x=y".to_owned())]);
        let table = file.families[0].table.as_ref().unwrap();
        assert_eq!((table.0.as_str(), table.1.as_slice()), ("BlockBasedTable", &[("c".to_owned(), String::new())][..]));
        assert_eq!(file.families[1].name, "a#b:\\\"");
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line) in [
            ("a=1", 1),
            ("[DBOptions]\na", 2),
            ("[DBOptions]\n=1", 2),
            ("[DBOptions]\n\n[DBOptions]", 3),
            ("[Version]\nrocksdb_version=x", 2),
            ("[Version]\nrocksdb_version=1.2.3.4", 2),
            ("[Version]\noptions_file_version=0.1", 2),
            ("[Other]", 1),
            ("[CFOptions \"x\"]", 1),
            ("[CFOptions \"default\"]\n[CFOptions \"default\"]", 2),
            ("[TableOptions/BlockBasedTable \"default\"]", 1),
            ("[CFOptions \"default]", 1),
        ] {
            let e = OptionsFile::parse(text).unwrap_err();
            assert!(e.message().starts_with(&format!("line {line}:")), "{text:?}: {e}");
        }
        for text in ["", "[DBOptions]", "[CFOptions \"default\"]"] {
            assert!(OptionsFile::parse(text).unwrap_err().message().contains("missing"), "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let (mut db, mut cf) = (DbOptions::default(), CfOptions::default());
        db.max_background_jobs = 7;
        cf.compression_per_level = vec![super::super::CompressionType::None, super::super::CompressionType::Zstd];
        let written = text(&db, &[("z\n#1", &cf), ("default", &cf)]);
        let file = OptionsFile::parse(&written).unwrap();
        assert_eq!(file.rocksdb_version, OLDEST);
        let names: Vec<&str> = file.families.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["default", "z\n#1"]);
        assert!(file.db.contains(&("max_background_jobs".to_owned(), "7".to_owned())), "{written}");
        let levels = ("compression_per_level".to_owned(), "kNoCompression:kZSTD".to_owned());
        assert!(file.families[0].options.contains(&levels), "{written}");
    }

    #[test]
    fn the_kind_of_tables_is_written() {
        let (db, mut cf) = (DbOptions::default(), CfOptions::default());
        let of = |cf: &CfOptions| {
            let family = OptionsFile::parse(&text(&db, &[("default", cf)])).unwrap().families.pop().unwrap();
            let kind = family.options.iter().find(|(name, _)| name == "table_factory").unwrap().1.clone();
            assert_eq!(
                (kind.as_str(), family.table.as_ref().unwrap().0.as_str()),
                ("BlockBasedTable", "BlockBasedTable")
            );
            (family.tph.clone(), FamilyEntries { tph: None, ..family })
        };
        let (tph, block_based) = of(&cf);
        assert_eq!(tph, None);
        cf.table_factory = TableKind::Tph;
        cf.tph.piece_limit = 8;
        let (tph, rocksdb) = of(&cf);
        assert_eq!(tph.as_deref(), Some("{piece_limit=8;garbage_percent=20;}"));
        assert_eq!(rocksdb, block_based);
    }
}
