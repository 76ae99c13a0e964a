//! The files of tables: how many tables have each file, and which files no table has any more.
//!
//! A table consists of a file of its own and perhaps of older files that it shares with other tables. So files are
//! counted by number, over the tables of all versions. A table has its files as long as a version, an iterator or a job
//! refers to it. When it is dropped, each of its files loses one table:
//!
//! 1. A table that left the current version is *obsolete*: it gives its files up.
//! 2. A table of a version that is dropped without being obsolete, as all are when the database is closed, *keeps* its
//!    files, because the MANIFEST names them.
//! 3. A table that was never part of a version decides nothing about its files. The job that wrote them removes them.
//!
//! When the last table that has a file is dropped, the file is queued for deletion if some table gave it up and none
//! kept it. If a MANIFEST could not be written, the version that it should have described may keep a shared file; the
//! next open removes it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

pub use rockmill_format::edit::TableFile;

use super::{FileMeta, TableDirs};
use crate::info_log::Alarm;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, thread_number};

/// The files of some tables, each once.
pub fn each_file<'f>(tables: impl IntoIterator<Item = &'f Arc<FileMeta>>) -> impl Iterator<Item = TableFile> {
    each_file_in(tables).map(|(_, file)| file)
}

/// The same with the directories of the table's column family.
pub fn each_file_in<'f>(
    tables: impl IntoIterator<Item = &'f Arc<FileMeta>>,
) -> impl Iterator<Item = (&'f TableDirs, TableFile)> {
    let mut seen = HashSet::new();
    let files = tables.into_iter().flat_map(|table| table.files().map(|file| (table.purge.dirs(), file)));
    files.filter(move |(_, file)| seen.insert(file.number))
}

/// A table's hold on its files.
pub(super) struct HeldFiles {
    files: Box<[TableFile]>,
    /// Some version had the table.
    in_version: AtomicBool,
    /// It is no longer in the current version.
    obsolete: AtomicBool,
    purge: Arc<PurgeQueue>,
}

impl HeldFiles {
    pub fn new(files: Box<[TableFile]>, purge: &Arc<PurgeQueue>) -> Self {
        let (in_version, obsolete) = (AtomicBool::new(false), AtomicBool::new(false));
        purge.hold(&files);
        Self { files, in_version, obsolete, purge: Arc::clone(purge) }
    }

    pub fn set_in_version(&self) {
        self.in_version.store(true, Ordering::Release);
    }

    pub fn set_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
        if let Some(own) = self.files.first() {
            self.purge.shared.past.lock().insert(own.number);
        }
    }
}

impl Drop for HeldFiles {
    fn drop(&mut self) {
        let obsolete = self.obsolete.load(Ordering::Acquire);
        let keeps = !obsolete && self.in_version.load(Ordering::Acquire);
        self.purge.let_go(&self.files, obsolete, keeps);
    }
}

/// The tables that have a file.
#[derive(Debug, Default)]
struct Users {
    tables: usize,
    /// A dropped table gave the file up.
    given_up: bool,
    /// A dropped table keeps it.
    kept: bool,
}

/// Counts the tables that have each file, and queues the files that no table has any more for deletion. All column
/// families of a database share one queue; what each of them has is its view of it, which knows its directories.
#[derive(Debug, Default)]
pub struct PurgeQueue {
    shared: Arc<Shared>,
    dirs: TableDirs,
}

/// What all views of a queue have in common.
#[derive(Debug, Default)]
struct Shared {
    /// By file number.
    users: Mutex<HashMap<u64, Users>>,
    waiting: Mutex<Vec<Waiting>>,
    in_hand: Mutex<InHand>,
    /// Tables that left the current version and whose own files still exist, because of a reader or because they are
    /// not deleted yet; without those whose files are files of other tables.
    past: Mutex<BTreeSet<u64>>,
    /// Signalled when files were deleted, or listeners were notified.
    done: Condvar,
    /// Wakes the thread that deletes them if nothing else does, since the last user of a table may be a reader.
    alarm: OnceLock<Arc<Alarm>>,
}

/// A file to delete.
#[derive(Debug)]
struct Waiting {
    file: TableFile,
    dir: PathBuf,
}

/// What threads have taken from the queue.
#[derive(Debug, Default)]
struct InHand {
    /// Files that are being deleted.
    deleting: usize,
    /// Threads that tell listeners of files which are deleted.
    telling: Vec<usize>,
}

impl PurgeQueue {
    /// The queue, for a column family whose tables are in these directories.
    #[must_use]
    pub fn of_dirs(&self, dirs: TableDirs) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(&self.shared), dirs })
    }

    /// Where the tables are.
    pub fn dirs(&self) -> &TableDirs {
        &self.dirs
    }

    /// Notes that one more table has these files.
    fn hold(&self, files: &[TableFile]) {
        let mut users = self.shared.users.lock();
        files.iter().for_each(|file| users.entry(file.number).or_default().tables += 1);
    }

    /// Notes that one table fewer has these files; it gave them up, keeps them, or decides nothing about them.
    fn let_go(&self, files: &[TableFile], gives_up: bool, keeps: bool) {
        let (mut unused, mut shared) = (Vec::new(), None);
        {
            let mut users = self.shared.users.lock();
            for &file in files {
                let Entry::Occupied(mut of_file) = users.entry(file.number) else { continue };
                let of = of_file.get_mut();
                of.tables -= 1;
                of.given_up |= gives_up;
                of.kept |= keeps;
                if of.tables == 0 {
                    let of = of_file.remove();
                    unused.extend((of.given_up && !of.kept).then_some(file));
                } else if files.first() == Some(&file) {
                    shared = Some(file.number);
                }
            }
        }
        if let Some(number) = shared.filter(|_| gives_up) {
            self.shared.past.lock().remove(&number);
        }
        unused.into_iter().for_each(|file| self.push(file));
    }

    fn push(&self, file: TableFile) {
        let first = {
            let mut waiting = self.shared.waiting.lock();
            waiting.push(Waiting { file, dir: self.dirs.of_file(file).to_owned() });
            waiting.len() == 1
        };
        if first && let Some(alarm) = self.shared.alarm.get() {
            alarm.ring();
        }
    }

    /// Rings this from now on when there is something to delete.
    pub(crate) fn set_alarm(&self, alarm: &Arc<Alarm>) {
        let _ = self.shared.alarm.set(Arc::clone(alarm));
    }

    /// Takes everything queued, to be deleted before [`Taken::deleted`] is called, and told before it is dropped.
    pub fn take(&self) -> Taken<'_> {
        let queue = &*self.shared;
        let mut waiting = queue.waiting.lock();
        queue.in_hand.lock().deleting += waiting.len();
        let files: Vec<_> = waiting.drain(..).map(|Waiting { file, dir }| (file.number, dir)).collect();
        Taken { queue, deleting: files.len(), tells: false, files }
    }

    /// Numbers of the tables that left the current version although their own files are still there, rising. A table
    /// that is a file of others by now may be missing.
    pub fn past(&self) -> Vec<u64> {
        self.shared.past.lock().iter().copied().collect()
    }

    /// Bytes of the files that wait.
    pub fn bytes(&self) -> u64 {
        self.shared.waiting.lock().iter().map(|waiting| waiting.file.size).sum()
    }

    /// Waits until every file that was taken is deleted, by whichever thread, and listeners know. Within a listener's
    /// call it does not wait for listeners, since this call could be the one that it would wait for.
    pub fn wait_deleted(&self) {
        let me = thread_number();
        let mut in_hand = self.shared.in_hand.lock();
        while in_hand.deleting > 0 || !(in_hand.telling.is_empty() || in_hand.telling.contains(&me)) {
            self.shared.done.wait(&mut in_hand);
        }
    }
}

/// Files taken from a [`PurgeQueue`].
#[derive(Debug)]
pub struct Taken<'a> {
    queue: &'a Shared,
    /// Their numbers, and the directories that they are in.
    pub files: Vec<(u64, PathBuf)>,
    /// How many of them are not deleted yet.
    deleting: usize,
    /// They are deleted, and listeners are being notified.
    tells: bool,
}

impl Taken<'_> {
    /// All of them are deleted. The thread that took them then tells listeners.
    pub fn deleted(&mut self) {
        {
            let mut past = self.queue.past.lock();
            for (number, _) in &self.files {
                past.remove(number);
            }
        }
        let mut in_hand = self.queue.in_hand.lock();
        in_hand.deleting -= std::mem::take(&mut self.deleting);
        self.tells = true;
        in_hand.telling.push(thread_number());
        self.queue.done.notify_all();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let (me, mut in_hand) = (thread_number(), self.queue.in_hand.lock());
        in_hand.deleting -= self.deleting;
        // In a call of a listener, one that took nothing must not end what the thread tells outside of it.
        if self.tells
            && let Some(at) = in_hand.telling.iter().position(|thread| *thread == me)
        {
            in_hand.telling.swap_remove(at);
        }
        self.queue.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::edit::{FileEntry, TablePiece};

    use super::*;

    /// A table of the file `number` and of those of `shared`.
    fn table(number: u64, shared: &[u64], purge: &Arc<PurgeQueue>) -> FileMeta {
        let pieces = shared.iter().map(|&number| TablePiece { number, size: 10, live: 7, path_id: 0 }).collect();
        FileMeta::new(FileEntry { number, size: 100, pieces, ..FileEntry::default() }, Arc::clone(purge))
    }

    /// The same in a version.
    fn in_version(number: u64, shared: &[u64], purge: &Arc<PurgeQueue>) -> FileMeta {
        let table = table(number, shared, purge);
        table.set_in_version();
        table
    }

    fn queued(purge: &PurgeQueue) -> Vec<u64> {
        purge.take().files.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn a_shared_file_is_queued_once_after_its_last_table() {
        let purge = Arc::<PurgeQueue>::default();
        let (a, b) = (in_version(10, &[5, 6], &purge), in_version(11, &[6, 10, 5], &purge));
        assert_eq!(b.files().map(|f| f.number).collect::<Vec<_>>(), [11, 6, 10, 5]);
        assert_eq!(b.files().map(|f| f.size).sum::<u64>(), 130);
        let both = [Arc::new(a), Arc::new(b)];
        assert_eq!(each_file(&both).map(|f| f.number).collect::<Vec<_>>(), [10, 5, 6, 11]);
        let [a, b] = both;
        a.set_obsolete();
        drop(a);
        assert_eq!((queued(&purge), purge.bytes()), (vec![], 0), "the other table has all of its files");
        b.set_obsolete();
        let reader = Arc::clone(&b);
        drop(b);
        assert!(queued(&purge).is_empty());
        drop(reader);
        assert_eq!(purge.bytes(), 130);
        assert_eq!(queued(&purge), [11, 6, 10, 5]);
        assert!(purge.shared.users.lock().is_empty());
    }

    /// Each file is expected in the directory of its own path id, among those of its column family.
    #[test]
    fn a_file_is_queued_with_its_directory() {
        let purge = Arc::<PurgeQueue>::default();
        let of_family = |dirs: [&str; 2]| purge.of_dirs(TableDirs::new(dirs, std::path::Path::new("/db")));
        let piece = |number, path_id| TablePiece { number, size: 1, live: 1, path_id };
        let entry = |number, path_id, pieces| FileEntry { number, path_id, pieces, ..FileEntry::default() };
        let one = FileMeta::new(entry(10, 1, vec![piece(5, 0), piece(6, 3)]), of_family(["/a", "/b"]));
        let other = FileMeta::new(entry(11, 1, Vec::new()), of_family(["/db", "/c"]));
        for table in [one, other] {
            table.set_in_version();
            table.set_obsolete();
        }
        let expected = [(10, "/b"), (5, "/a"), (6, "/b"), (11, "/c")];
        assert_eq!(purge.take().files, expected.map(|(number, dir)| (number, PathBuf::from(dir))));
    }

    /// A repair must know about tables that left and still exist.
    #[test]
    fn a_table_is_past_from_when_it_leaves_until_its_file_is_deleted() {
        let purge = Arc::<PurgeQueue>::default();
        let (a, b) = (Arc::new(in_version(10, &[], &purge)), in_version(11, &[10], &purge));
        let (c, reader) = (in_version(12, &[], &purge), Arc::clone(&a));
        c.set_obsolete();
        a.set_obsolete();
        drop(a);
        assert_eq!(purge.past(), [10, 12]);
        drop(reader);
        assert_eq!(purge.past(), [12], "10 is a file of 11");
        drop(c);
        assert_eq!(purge.past(), [12], "it is not deleted yet");
        let mut taken = purge.take();
        taken.deleted();
        drop(taken);
        assert_eq!(purge.past(), []);
        b.set_obsolete();
        drop(b);
        purge.take().deleted();
        assert_eq!(purge.past(), []);
    }

    /// A database is closed while a reader holds an obsolete table: whichever is dropped first, the files that the
    /// MANIFEST names stay.
    #[test]
    fn a_table_that_goes_without_being_obsolete_keeps_its_files() {
        for obsolete_first in [true, false] {
            let purge = Arc::<PurgeQueue>::default();
            let (old, new) = (in_version(10, &[5], &purge), in_version(11, &[5], &purge));
            old.set_obsolete();
            let (first, second) = if obsolete_first { (old, new) } else { (new, old) };
            drop(first);
            drop(second);
            assert_eq!(queued(&purge), [10]);
        }
    }

    /// Recovery passes tables that later edits replace, and a job may lose its outputs.
    #[test]
    fn a_table_that_no_version_had_neither_keeps_its_files_nor_gives_them_up() {
        let purge = Arc::<PurgeQueue>::default();
        let (passed, last) = (table(10, &[5], &purge), in_version(11, &[5], &purge));
        drop(passed);
        assert!(queued(&purge).is_empty());
        last.set_obsolete();
        drop(last);
        assert_eq!(queued(&purge), [11, 5]);
    }

    #[test]
    fn a_table_that_is_renewed_counts_once() {
        let purge = Arc::<PurgeQueue>::default();
        let old = in_version(10, &[5], &purge);
        let new = old.renewed(FileEntry { extra_run: 3, ..old.entry.clone() });
        new.set_obsolete();
        drop(new);
        assert!(queued(&purge).is_empty());
        drop(old);
        assert_eq!(queued(&purge), [10, 5]);
    }
}
