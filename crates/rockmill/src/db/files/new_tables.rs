//! What is known about tables that jobs wrote and have not committed: until they are live, nothing else has this
//! information.

use std::collections::BTreeSet;
use std::sync::Arc;

use rockmill_format::edit::VersionEdit;

use crate::db::files::Files;
use crate::version::{FileMeta, NewTables, OpenTable, Version};

impl Files {
    /// Where a job records its outputs.
    pub fn new_tables(&self) -> Arc<NewTables> {
        Arc::clone(&self.new_tables)
    }

    /// A new table was opened, so that no read has to.
    pub fn set_new_table_open(&self, number: u64, open: OpenTable) {
        if let Some(new) = self.new_tables.lock().get_mut(&number) {
            new.open = Some(open);
        }
    }

    /// The open table of a new one.
    pub fn open_new_table(&self, number: u64) -> Option<OpenTable> {
        self.new_tables.lock().get(&number).and_then(|new| new.open.clone())
    }

    /// Files of the new tables that are open.
    pub fn new_files_open(&self) -> usize {
        self.new_tables.lock().values().filter(|new| new.open.is_some()).map(|new| new.files).sum()
    }

    /// Forgets a new table that does not become live.
    pub fn forget_new_table(&self, number: u64) {
        let gone = self.new_tables.lock().remove(&number);
        drop(gone); // closed without the lock
    }

    /// Passes to a version's new tables what the jobs that wrote them know. Returns those that are open.
    pub fn adopt_new_tables(&self, version: &Version, edit: &VersionEdit) -> Vec<Arc<FileMeta>> {
        let (mut known, mut opened) = (self.new_tables.lock(), Vec::new());
        let levels: BTreeSet<u32> = edit.new_files.iter().map(|(level, _)| *level).collect();
        for f in levels.iter().filter_map(|level| version.levels.get(*level as usize)).flatten() {
            if f.numbers.get().is_none()
                && let Some(new) = known.remove(&f.number())
            {
                let _ = f.numbers.set(new.numbers);
                if new.open.is_some() {
                    f.set_open(new.open);
                    opened.push(Arc::clone(f));
                }
            }
        }
        drop(known);
        version.weigh_tombstones();
        opened
    }
}
