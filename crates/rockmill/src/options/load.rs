//! Options from OPTIONS files and option strings.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::comparator::Comparator;
use rockmill_io::{Clock, FileSystem, PosixFileSystem};

use super::declare::TextOption;
use super::file::{Carried, OptionsFile};
use super::known::{Note, Notes, Section, What};
use super::text::{self, Allow, Pairs, Source};
use super::{BlockBasedOptions, CfOptions, DbOptions, Options, TableKind, TphTableOptions, parse};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::merge_operator::MergeOperator;
use crate::options::ColumnFamilyDescriptor;
use crate::table::Cache;
use rockmill_format::filename::{self, FileType};

/// An option of an OPTIONS file that does not work as it does in RocksDB: it has no effect in Rockmill, or names an
/// object that the caller has to provide.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionWarning {
    /// The column family; `None` for options of the database.
    pub column_family: Option<String>,
    /// RocksDB's name; dots lead into structs.
    pub name: String,
    /// As the file has it.
    pub value: String,
    /// Why, and what to do.
    pub reason: String,
}

impl fmt::Display for OptionWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cf) = &self.column_family {
            write!(f, "column family {cf:?}: ")?;
        }
        write!(f, "{}={}: {}", self.name, self.value, self.reason)
    }
}

/// Options as an OPTIONS file has them.
#[derive(Debug)]
#[non_exhaustive]
pub struct LoadedOptions {
    /// Of the database, and of the default column family.
    pub options: Options,
    /// Every column family with its options, to open the database with.
    pub column_families: Vec<ColumnFamilyDescriptor>,
    /// Options of the file that have no effect, or need an object that was not given.
    pub warnings: Vec<OptionWarning>,
    /// The file.
    pub path: PathBuf,
    /// The RocksDB version that the file names.
    pub rocksdb_version: (u32, u32, u32),
}

impl LoadedOptions {
    /// Refuses options that no database can be opened with.
    ///
    /// # Errors
    /// `InvalidArgument` or `NotSupported`, with the option's name.
    pub fn check(&self) -> Result<()> {
        crate::options::check::check_db_options(&self.options.db)?;
        self.column_families.iter().try_for_each(|d| crate::options::check::check_cf_options(d.name(), &d.options().cf))
    }
}

/// Reads OPTIONS files (RocksDB's `LoadLatestOptions` and `LoadOptionsFromFile`).
///
/// RocksDB's comparators, merge operators and filters are created from their names. Others are given to the loader,
/// which finds them by name, or set in the loaded options. Rockmill's own options (`merge_engine`,
/// `kernel_merge_program`) are never taken from a file, which anybody may have written. An object that is not given is
/// a warning; its name stays in the OPTIONS files of a database that is opened with the loaded options. An option that
/// has no effect here is a warning, too. An option that asks for something that Rockmill cannot do is an error.
///
/// ```
/// # fn main() -> rockmill::Result<()> {
/// # let scratch = tempfile::tempdir().expect("a temporary directory");
/// # let dir = scratch.path().join("db");
/// # rockmill::Db::destroy(&rockmill::Options::default(), &dir)?;
/// # drop(rockmill::Db::open_default(&dir)?);
/// let loaded = rockmill::OptionsLoader::new().load_latest(&dir)?;
/// let db = rockmill::Db::open_cf_descriptors(&loaded.options, &dir, loaded.column_families)?;
/// # drop(db);
/// # rockmill::Db::destroy(&rockmill::Options::default(), &dir)
/// # }
/// ```
#[derive(Default)]
pub struct OptionsLoader {
    fs: Option<Arc<dyn FileSystem>>,
    clock: Option<Arc<dyn Clock>>,
    ignore_unknown_options: bool,
    cache: Option<Cache>,
    comparators: Vec<Arc<dyn Comparator>>,
    merge_operators: Vec<Arc<dyn MergeOperator>>,
}

impl fmt::Debug for OptionsLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptionsLoader")
            .field("ignore_unknown_options", &self.ignore_unknown_options)
            .finish_non_exhaustive()
    }
}

impl OptionsLoader {
    /// A loader that knows RocksDB's own objects and refuses unknown options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Skips options that neither Rockmill nor any RocksDB known to it has, and Rockmill's own, which do not belong in
    /// an OPTIONS file. They become warnings; without this call they are errors.
    pub fn ignore_unknown_options(&mut self, ignore: bool) -> &mut Self {
        self.ignore_unknown_options = ignore;
        self
    }

    /// Reads with this file system, and puts it into the options.
    pub fn file_system(&mut self, fs: Arc<dyn FileSystem>) -> &mut Self {
        self.fs = Some(fs);
        self
    }

    /// Gives every column family this block cache; OPTIONS files do not say which cache was used.
    pub fn block_cache(&mut self, cache: &Cache) -> &mut Self {
        self.cache = Some(cache.clone());
        self
    }

    /// Column families whose comparator has this one's name get it.
    pub fn comparator(&mut self, comparator: Arc<dyn Comparator>) -> &mut Self {
        self.comparators.push(comparator);
        self
    }

    /// Column families whose merge operator has this one's name get it.
    pub fn merge_operator(&mut self, operator: Arc<dyn MergeOperator>) -> &mut Self {
        self.merge_operators.push(operator);
        self
    }

    /// Reads with this environment, and puts it into the options.
    pub fn env(&mut self, env: &Env) -> &mut Self {
        self.clock = Some(Arc::clone(&env.clock));
        self.file_system(Arc::clone(&env.fs))
    }

    fn fs(&self) -> Arc<dyn FileSystem> {
        self.fs.clone().unwrap_or_else(|| Arc::new(PosixFileSystem::default()))
    }

    /// Reads the newest OPTIONS file of the database in `dir`; `NotFound` if it has none.
    pub fn load_latest(&self, dir: impl AsRef<Path>) -> Result<LoadedOptions> {
        let dir = dir.as_ref();
        let found = match latest_options_file(&*self.fs(), dir) {
            Err(e) if e.is_missing_file() => None,
            found => found?,
        };
        match found {
            Some((_, path)) => self.load_file(path),
            None => Err(Error::new(ErrorKind::NotFound, format!("{}: there is no OPTIONS file", dir.display()))),
        }
    }

    /// Says whether the database in `dir`, which need not be open, can be opened with these column families (RocksDB's
    /// `CheckOptionsCompatibility`): the newest OPTIONS file has the same column families, in any order, each with the
    /// same comparator, the same merge operator (unless the file has none), and the same prefix extractor (unless the
    /// file or the given options have none). `InvalidArgument` names what differs.
    pub fn check_compatibility(&self, dir: impl AsRef<Path>, families: &[ColumnFamilyDescriptor]) -> Result<()> {
        let dir = dir.as_ref();
        let Some((_, path)) = latest_options_file(&*self.fs(), dir)? else {
            return Err(Error::new(ErrorKind::NotFound, format!("{}: there is no OPTIONS file", dir.display())));
        };
        let file = read_file(&*self.fs(), &path)?;
        let differs = |what: String| Err(Error::invalid_argument(format!("{}: {what}", path.display())));
        let name_of = |text: &str| parse::object(text).map(|o| o.0).unwrap_or_default();
        for stored in &file.families {
            let Some(given) = families.iter().find(|d| d.name() == stored.name) else {
                return differs(format!("column family {:?} is not given", stored.name));
            };
            let values = given.options().values();
            for (option, null_stored, null_given) in
                [("comparator", false, false), ("merge_operator", true, false), ("prefix_extractor", true, true)]
            {
                let entry = stored.options.iter().find(|(name, _)| name == option);
                let (Some((_, was)), Some(now)) = (entry, values.iter().find(|v| v.name == option)) else { continue };
                let (was, now) = (name_of(&parse::unescape(was)), name_of(&now.value));
                if was != now && !(null_stored && was == "nullptr") && !(null_given && now == "nullptr") {
                    let family = &stored.name;
                    return differs(format!("column family {family:?}: {option} is {was:?}, and {now:?} is given"));
                }
            }
        }
        match families.iter().find(|d| !file.families.iter().any(|f| f.name == d.name())) {
            Some(more) => differs(format!("there is no column family {:?}", more.name())),
            None => Ok(()),
        }
    }

    /// Reads an OPTIONS file.
    pub fn load_file(&self, path: impl AsRef<Path>) -> Result<LoadedOptions> {
        let path = path.as_ref();
        let in_file = |e: Error| e.context(path.display());
        let file = read_file(&*self.fs(), path)?;
        let mut options = Options::default();
        if let Some(fs) = &self.fs {
            options.db.fs = Arc::clone(fs);
        }
        if let Some(clock) = &self.clock {
            options.db.clock = Arc::clone(clock);
        }
        let mut warnings = Vec::new();
        let mut notes = Notes::default();
        text::set_db(&mut options.db, &file.db, Allow::All, Source::File, &mut notes).map_err(in_file)?;
        options.db.carried = carried(&notes, &file.db, DbOptions::TEXT, &file);
        self.report(notes, None, &mut warnings).map_err(in_file)?;
        let mut families: Vec<(String, CfOptions)> = Vec::new();
        for family in &file.families {
            let in_family = |e: Error| in_file(e.context(format_args!("column family {:?}", family.name)));
            let mut cf = CfOptions::default();
            let mut notes = Notes::default();
            let pairs = self.with_objects(&family.options, &mut cf);
            text::set_cf(&mut cf, &pairs, Allow::All, Source::File, &mut notes).map_err(in_family)?;
            cf.carried = carried(&notes, &pairs, CfOptions::TEXT, &file);
            self.report(notes, Some(&family.name), &mut warnings).map_err(in_file)?;
            if let Some((factory, entries)) = &family.table {
                let kind = text::table_kind(factory).map_err(in_family)?;
                if kind != cf.table_factory && family.options.iter().any(|(name, _)| name == "table_factory") {
                    let what = format!("the section [TableOptions/{factory}] is of another kind than table_factory");
                    return Err(in_family(Error::invalid_argument(what)));
                }
                cf.table_factory = kind;
                let mut notes = Notes::default();
                text::set_table(&mut cf, entries, Allow::All, Source::File, &mut notes).map_err(in_family)?;
                cf.table.carried = carried(&notes, entries, BlockBasedOptions::TEXT, &file);
                self.report(notes, Some(&family.name), &mut warnings).map_err(in_file)?;
            }
            if let Some(tph) = &family.tph {
                let mut notes = Notes::default();
                let pair = [(text::TPH_FACTORY.to_owned(), tph.clone())];
                text::set_cf(&mut cf, &pair, Allow::All, Source::File, &mut notes).map_err(in_family)?;
                self.report(notes, Some(&family.name), &mut warnings).map_err(in_file)?;
            }
            if let Some(cache) = &self.cache
                && !cf.table.no_block_cache
            {
                cf.table.set_block_cache(cache);
            }
            families.push((family.name.clone(), cf));
        }
        options.db.load_warnings = warnings.clone();
        if let Some((_, default)) = families.first() {
            options.cf = default.clone();
        }
        let with_db = |(name, cf)| ColumnFamilyDescriptor::new(name, Options { db: options.db.clone(), cf });
        let column_families = families.into_iter().map(with_db).collect();
        Ok(LoadedOptions {
            options,
            column_families,
            warnings,
            path: path.to_owned(),
            rocksdb_version: file.rocksdb_version,
        })
    }

    /// Puts the objects that the caller gave into the options; gives the other options.
    fn with_objects(&self, pairs: &Pairs, cf: &mut CfOptions) -> Vec<(String, String)> {
        let mut rest = Vec::new();
        for (name, value) in pairs {
            let id = parse::object(&parse::unescape(value)).map(|o| o.0).unwrap_or_default();
            match name.as_str() {
                "comparator" if let Some(c) = self.comparators.iter().find(|c| c.name() == id) => {
                    cf.comparator = Arc::clone(c);
                }
                "merge_operator" if let Some(m) = self.merge_operators.iter().find(|m| m.name() == id) => {
                    cf.merge_operator = Some(Arc::clone(m));
                }
                _ => rest.push((name.clone(), value.clone())),
            }
        }
        rest
    }

    /// Turns what reading noted into warnings and errors.
    fn report(&self, notes: Notes, family: Option<&str>, warnings: &mut Vec<OptionWarning>) -> Result<()> {
        for Note { name, value, what } in notes.list {
            let reason = match what {
                What::Unknown if !self.ignore_unknown_options => {
                    let whose = family.map_or_else(String::new, |f| format!("column family {f:?}: "));
                    return Err(Error::invalid_argument(format!(
                        "{whose}option {name:?} (with the value {value:?}) is not known; ignore_unknown_options \
                         passes over it"
                    )));
                }
                What::Own if !self.ignore_unknown_options => {
                    let whose = family.map_or_else(String::new, |f| format!("column family {f:?}: "));
                    return Err(Error::invalid_argument(format!(
                        "{whose}option {name:?} (with the value {value:?}) is Rockmill's own, which no Rockmill writes \
                         into a file: somebody else did. It is taken from code and from a command line only; remove \
                         the line, or pass over it with ignore_unknown_options"
                    )));
                }
                What::Unknown => "not known: ignored".to_owned(),
                What::Own => "Rockmill's own, and not taken from files: ignored".to_owned(),
                What::NoEffect(why) => format!("has no effect: {why}"),
                What::Object => {
                    "not built in: give the object that has this name; it stays in OPTIONS files".to_owned()
                }
                What::Refused(why) => {
                    let whose = family.map_or_else(String::new, |f| format!("column family {f:?}: "));
                    return Err(Error::not_supported(format!("{whose}{name}={value}: {why}")));
                }
            };
            warnings.push(OptionWarning { column_family: family.map(str::to_owned), name, value, reason });
        }
        Ok(())
    }
}

/// Reads an OPTIONS file's names and values.
pub(crate) fn read_file(fs: &dyn FileSystem, path: &Path) -> Result<OptionsFile> {
    let bytes = fs.read_to_vec(path).map_err(|e| Error::io(format_args!("cannot read {}", path.display()), &e))?;
    let text =
        String::from_utf8(bytes).map_err(|e| Error::corruption(format!("{}: not UTF-8: {e}", path.display())))?;
    OptionsFile::parse(&text).map_err(|e| e.context(path.display()))
}

/// What to write back: options that do nothing here, and objects that were not given, which the next program to open
/// the database may have. A value nested in an undeclared option is kept as part of that option; one nested in a
/// declared option is kept by itself, as `outer.inner`.
fn carried<O>(notes: &Notes, pairs: &Pairs, table: &[TextOption<O>], file: &OptionsFile) -> Carried {
    let kept = |n: &&Note| matches!(n.what, What::NoEffect(_) | What::Object);
    let noted = notes.list.iter().filter(kept).map(|n| (&n.name, &n.value));
    let noted: Vec<(&String, &String)> = noted.chain(notes.silent.iter().map(|(n, v)| (n, v))).collect();
    let outer = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    // A declared option is in the options already, unless it is an object that was not given.
    let object = |name: &str| notes.list.iter().any(|n| n.name == name && n.value != "nullptr");
    let declared = |name: &str| table.iter().any(|o| o.name == name);
    let whole = pairs
        .iter()
        .filter(|(name, _)| noted.iter().any(|(noted, _)| outer(noted) == *name) && (!declared(name) || object(name)));
    let whole = whole.map(|(n, v)| (n.clone(), parse::unescape(v)));
    let parts = noted.iter().filter(|(name, _)| name.contains('.') && declared(&outer(name)));
    let options = whole.chain(parts.map(|(n, v)| ((*n).clone(), (*v).clone()))).collect();
    Carried { options, rocksdb_version: file.rocksdb_version }
}

/// An option with its value, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionValue {
    /// `DBOptions`, `CFOptions`, `TableOptions/BlockBasedTable` or `TableOptions/TphTable`: its section in OPTIONS
    /// files.
    pub section: &'static str,
    /// RocksDB's name.
    pub name: &'static str,
    /// As OPTIONS files have it.
    pub value: String,
    /// Rockmill's default.
    pub default: String,
    /// What it does.
    pub document: String,
    /// True if `set_options` or `set_db_options` changes it.
    pub mutable: bool,
    /// True if OPTIONS files have it; Rockmill's own options are not in them.
    pub in_files: bool,
}

impl Options {
    /// The options of the newest OPTIONS file of the database in `path`, and its column families, all with `cache`
    /// (`rocksdb::Options::load_latest`). What has no effect is in [`Self::load_warnings`], and goes to the info log
    /// when the database is opened. [`OptionsLoader`] can do more.
    pub fn load_latest(
        path: impl AsRef<Path>,
        env: Env,
        ignore_unknown_options: bool,
        cache: Cache,
    ) -> Result<(Self, Vec<ColumnFamilyDescriptor>)> {
        let mut loader = OptionsLoader::new();
        loader.env(&env).ignore_unknown_options(ignore_unknown_options).block_cache(&cache);
        loader.load_latest(path).map(|loaded| (loaded.options, loaded.column_families))
    }

    /// The options that have no effect, or lack an object, in the OPTIONS file that these options were loaded from.
    pub fn load_warnings(&self) -> &[OptionWarning] {
        &self.db.load_warnings
    }

    /// Changes options by RocksDB's names, given as one text: `write_buffer_size=64M;compression_opts={level=3};
    /// block_based_table_factory={block_size=16K;filter_policy=bloomfilter:10:false}` (RocksDB's
    /// `GetOptionsFromString`).
    ///
    /// It is an error if a name is not known, a value is not valid, or an option of RocksDB would have no effect at
    /// that value.
    pub fn from_string(base: &Self, text: &str) -> Result<Self> {
        Self::from_pairs(base, parse::pairs(text)?)
    }

    /// As [`Self::from_string`], with names and values given separately (RocksDB's `GetDBOptionsFromMap` and
    /// `GetColumnFamilyOptionsFromMap`).
    pub fn from_pairs<N: Into<String>, V: Into<String>>(
        base: &Self,
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self> {
        let mut out = base.clone();
        let mut notes = Notes::default();
        for (name, value) in pairs {
            let (name, value): (String, String) = (name.into(), value.into());
            let outer = name.split('.').next().unwrap_or_default();
            let of_db = DbOptions::TEXT.iter().any(|o| o.name == outer && o.kind.has_text())
                || (super::known::meaning(Section::Db, outer).is_some()
                    && !CfOptions::TEXT.iter().any(|o| o.name == outer));
            let pair = [(name, value)];
            if of_db {
                text::set_db(&mut out.db, &pair, Allow::All, Source::Caller, &mut notes)?;
            } else {
                text::set_cf(&mut out.cf, &pair, Allow::All, Source::Caller, &mut notes)?;
            }
        }
        match notes.list.into_iter().next() {
            None => Ok(out),
            Some(Note { name, value, what }) => Err(match what {
                What::Unknown => Error::invalid_argument(format!("option {name:?} is not known")),
                What::Object => Error::invalid_argument(format!("{name}={value}: no such object is built in")),
                What::NoEffect(why) => Error::not_supported(format!("{name}={value} would have no effect: {why}")),
                What::Refused(why) => Error::not_supported(format!("{name}={value}: {why}")),
                What::Own => Error::invalid_argument(format!("option {name:?} is not taken from files")),
            }),
        }
    }

    /// Every option with its value, in the order of declaration: the database's, the column family's, the tables'.
    pub fn values(&self) -> Vec<OptionValue> {
        let base = Self::default();
        let mut out = Vec::new();
        add_values(&mut out, "DBOptions", DbOptions::TEXT, &self.db, &base.db);
        add_values(&mut out, "CFOptions", CfOptions::TEXT, &self.cf, &base.cf);
        let section = match self.cf.table_factory {
            TableKind::BlockBased => "TableOptions/BlockBasedTable",
            TableKind::Tph => {
                add_values(&mut out, "TableOptions/TphTable", TphTableOptions::TEXT, &self.cf.tph, &base.cf.tph);
                "TableOptions/TphTable"
            }
        };
        add_values(&mut out, section, BlockBasedOptions::TEXT, &self.cf.table, &base.cf.table);
        out
    }
}

fn add_values<O>(out: &mut Vec<OptionValue>, section: &'static str, table: &[TextOption<O>], options: &O, base: &O) {
    for option in table {
        let (Some(value), Some(default)) = ((option.write)(options), (option.write)(base)) else { continue };
        out.push(OptionValue {
            section,
            name: option.name,
            value,
            default,
            document: option.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "),
            mutable: option.kind.is_mutable(),
            in_files: option.kind.is_in_files(),
        });
    }
}

/// OPTIONS files in a directory, the newest (highest number) last.
pub(crate) fn options_files(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let names = fs.list_dir(dir).map_err(|e| Error::io(format_args!("cannot list {}", dir.display()), &e))?;
    let mut files: Vec<(u64, PathBuf)> = names
        .iter()
        .filter_map(|name| match filename::parse(name) {
            Some(FileType::Options(number)) => Some((number, dir.join(name))),
            _ => None,
        })
        .collect();
    files.sort();
    Ok(files)
}

/// The newest OPTIONS file of a database, if it has one: its number and path.
pub(crate) fn latest_options_file(fs: &dyn FileSystem, dir: &Path) -> Result<Option<(u64, PathBuf)>> {
    Ok(options_files(fs, dir)?.pop())
}
