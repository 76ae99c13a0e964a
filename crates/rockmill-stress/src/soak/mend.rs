//! Repairs after kills: a kill leaves an intact database with leftovers; its repair must lose nothing, bring nothing
//! back, and find no damage.

use std::path::{Path, PathBuf};

use rockmill::{Db, IteratorMode, Options, ReadOptions, RepairOptions};

use super::child;
use super::expected::Expected;
use super::judge::{self, Entry};
use super::settings::{Paths, Settings};
use crate::configuration::Configuration;

/// Repairs the killed database and checks the report.
///
/// # Errors
/// Something that the repair must not do.
fn repair(path: &Path, settings: &Settings, options: &Options) -> Result<(), String> {
    let mut how = RepairOptions::default();
    child::families(settings, options).into_iter().for_each(|f| how.add_column_family(f));
    let report = Db::repair_with(options, path, &how).map_err(|e| format!("a repair after a kill: {e}"))?;
    let sound = report.manifest_damage.is_none()
        && report.damaged.is_empty()
        && report.tables_missing.is_empty()
        && report.tables_merged == 0
        && report.entries_without_column_family == 0;
    if sound { Ok(()) } else { Err(format!("a repair after a kill took a sound database for damaged: {report:?}")) }
}

/// Copies the WALs of the killed database next to its copy, without the marker of their owner.
fn copy_wals(paths: &Paths, copy: &Path) -> std::io::Result<PathBuf> {
    let wals = paths.own("repaired-wals");
    let _ = std::fs::remove_dir_all(&wals);
    copy_tree(&paths.wals(), &wals)?;
    for dir in [copy, &wals] {
        std::fs::remove_file(dir.join("WAL_OWNER"))?;
    }
    Ok(wals)
}

/// Repairs a copy of the killed database and compares all of it; returns the number of compared keys.
///
/// # Errors
/// A description of the problems.
pub fn repair_copy(paths: &Paths, settings: &Settings, configuration: &Configuration) -> Result<u64, String> {
    let copy = paths.own("repaired");
    let _ = std::fs::remove_dir_all(&copy);
    copy_tree(&paths.db, &copy).map_err(|e| format!("cannot copy the dead database to {}: {e}", copy.display()))?;
    let mut options = configuration.options();
    if settings.own_wals {
        let wals = copy_wals(paths, &copy).map_err(|e| format!("cannot copy the WALs of the dead database: {e}"))?;
        options.set_wal_dir(wals);
    }
    repair(&copy, settings, &options)?;
    let expected = Expected::open(&paths.expected(), settings)?;
    let families = child::families(settings, &options);
    let there = Db::list_cf(&options, &copy).map_err(|e| format!("a repaired copy: {e}"))?;
    // A column family that was being cleared may be missing: it has no keys.
    let families: Vec<_> = families.into_iter().filter(|f| there.iter().any(|name| name == f.name())).collect();
    let db = Db::open_cf_descriptors(&options, &copy, families)
        .map_err(|e| format!("a repaired copy does not open: {e}"))?;
    let entries = |family: usize| -> Result<std::vec::IntoIter<Entry>, String> {
        let Some(cf) = db.cf_handle(&judge::family_name(settings, family)) else { return Ok(Vec::new().into_iter()) };
        let mut how = ReadOptions::default();
        how.set_total_order_seek(true);
        let all = db.iterator_cf_opt(&cf, how, IteratorMode::Start);
        let all = all.map(|e| e.map(|(k, v)| (k.into_vec(), v.into_vec())).map_err(|e| e.to_string()));
        Ok(all.collect::<Vec<Entry>>().into_iter())
    };
    let checked = judge::judge_dead("a repaired copy", settings, &expected, entries, |_, _, _| ())?;
    drop(db);
    let _ = std::fs::remove_dir_all(&copy);
    let _ = std::fs::remove_dir_all(paths.own("repaired-wals"));
    Ok(checked)
}

/// Repairs the killed database itself: the next child compares it, and continues with it.
///
/// # Errors
/// A description of the problems.
pub fn repair_in_place(paths: &Paths, settings: &Settings, configuration: &Configuration) -> Result<(), String> {
    repair(&paths.db, settings, &configuration.options())?;
    // Kept for inspection if the next child finds something, until the next repair; moved away because the database
    // must not grow by it.
    let (lost, kept) = (paths.db.join("lost"), paths.own("lost"));
    let _ = std::fs::remove_dir_all(&kept);
    if !lost.exists() {
        return Ok(());
    }
    move_tree(&lost, &kept).map_err(|e| format!("cannot move {} away: {e}", lost.display()))
}

/// Renames, or copies and removes: a database with limited space is on a separate file system.
fn move_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    match std::fs::rename(from, to) {
        Err(e) if e.kind() == std::io::ErrorKind::CrossesDevices => {
            copy_tree(from, to)?;
            std::fs::remove_dir_all(from)
        }
        done => done,
    }
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
