//! What the info log begins with: who opened which files with which options.

use std::collections::BTreeMap;
use std::path::Path;

use rockmill_format::filename::{self, FileType};

use crate::db::DbInner;
use crate::info_log::{InfoLog, log_header, log_warn};
use crate::options::{BlockBasedOptions, CfOptions, DbOptions, TableKind, TphTableOptions};

/// The most file names of one kind that a line shows.
const NAMES_MAX: usize = 9;

/// Version, files and options of the database at `path`, in RocksDB's form.
pub(crate) fn begin(log: &InfoLog, o: &DbOptions, cfs: &BTreeMap<String, CfOptions>, path: &Path) {
    if !log.is_on() {
        return;
    }
    log_header!(log, "Rockmill version: {}", env!("CARGO_PKG_VERSION"));
    summary(log, o, path);
    for option in DbOptions::TEXT {
        if let Some(value) = (option.write)(o) {
            log_header!(log, "{:>40}: {value}", format_args!("Options.{}", option.name).to_string());
        }
    }
    for (name, cf) in cfs {
        log_header!(log, "--------------- Options for column family [{name}]:");
        for option in CfOptions::TEXT {
            if let Some(value) = (option.write)(cf) {
                log_header!(log, "{:>50}: {value}", format_args!("Options.{}", option.name).to_string());
            }
        }
        let of_table = |name, value: Option<String>| {
            if let Some(value) = value {
                log_header!(log, "{:>50}: {value}", format_args!("table_factory options: {name}").to_string());
            }
        };
        if cf.table_factory == TableKind::Tph {
            TphTableOptions::TEXT.iter().for_each(|o| of_table(o.name, (o.write)(&cf.tph)));
        }
        BlockBasedOptions::TEXT.iter().for_each(|o| of_table(o.name, (o.write)(&cf.table)));
    }
}

/// The files that are there.
fn summary(log: &InfoLog, o: &DbOptions, path: &Path) {
    log_header!(log, "DB SUMMARY");
    let mut names = o.fs.list_dir(path).unwrap_or_default();
    names.sort();
    let size = |name: &str| o.fs.file_size(&path.join(name)).unwrap_or(0);
    let (mut tables, mut wals) = (Vec::new(), Vec::new());
    for name in &names {
        match filename::parse(name) {
            Some(FileType::Current) => log_header!(log, "CURRENT file:  {name}"),
            Some(FileType::Identity) => log_header!(log, "IDENTITY file:  {name}"),
            Some(FileType::Manifest(_)) => log_header!(log, "MANIFEST file:  {name} size: {} Bytes", size(name)),
            Some(FileType::Table(_)) => tables.push(name.as_str()),
            Some(FileType::Wal(_)) => wals.push(format!("{name} size: {} ;", size(name))),
            _ => {}
        }
    }
    let (dir, count) = (path.display(), tables.len());
    tables.truncate(NAMES_MAX);
    log_header!(log, "SST files in {dir} dir, Total Num: {count}, files: {}", tables.join(" "));
    log_header!(log, "Write Ahead Log file in {dir}: {}", wals.join(" "));
}

impl DbInner {
    /// What was recovered.
    pub(crate) fn log_opened(&self) {
        if !self.log.is_on() {
            return;
        }
        log_header!(self.log, "DB ID: {}", self.opened.db_id);
        log_header!(self.log, "DB Session ID:  {}", self.opened.session_id);
        for warning in &self.opts.load_warnings {
            log_warn!(self.log, "Option of the OPTIONS file: {warning}");
        }
        let state = self.state.lock();
        for c in state.families() {
            log_header!(
                self.log,
                "Column family [{}] (ID {}), log number is {}",
                c.cf().name,
                c.cf().id,
                c.front().log_number()
            );
        }
    }
}
