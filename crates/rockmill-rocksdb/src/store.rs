//! A database with all calls of a random history.
//!
//! Column families are identified by name, snapshots and iterators by small numbers that the caller chooses. The
//! database owns them all, so none outlives it. Errors are RocksDB's own texts, which begin with the kind ("Invalid
//! argument: ...").

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

pub use crate::types::{CompactHow, Filter, Go, Kept, Look, Op, Open, WriteHow};

use crate::ffi::{DbOptions, ErrOut, Library, Obj, bytes, c_string, symbols};

/// RocksDB's callbacks of a compaction filter: for values, ...
// SAFETY: RocksDB calls it, with arguments as in c.h.
type FilterCallback = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut c_uchar,
) -> c_uchar;

/// ... when it is destroyed, ...
// SAFETY: as above.
type GoneCallback = unsafe extern "C" fn(*mut c_void);
/// ... and for its name.
// SAFETY: as above.
type NameCallback = unsafe extern "C" fn(*mut c_void) -> *const c_char;
/// A call that changes options, given as two lists of texts.
// SAFETY: the caller's: lists of so many texts that end in a zero byte.
type SetCall = unsafe extern "C" fn(Obj, c_int, *const *const c_char, *const *const c_char, ErrOut);
/// A call that sets a flag.
// SAFETY: the caller's: a live object.
type FlagCall = unsafe extern "C" fn(Obj, c_uchar);

symbols! {
    Functions:
    open_for_read_only_column_families:
        fn(Obj, *const c_char, c_int, *const *const c_char, *const Obj, *mut Obj, c_uchar, ErrOut) -> Obj;
    open_column_families_with_ttl:
        fn(Obj, *const c_char, c_int, *const *const c_char, *const Obj, *mut Obj, *const c_int, ErrOut) -> Obj;
    create_column_family_with_ttl: fn(Obj, Obj, *const c_char, c_int, ErrOut) -> Obj;
    list_column_families: fn(Obj, *const c_char, *mut usize, ErrOut) -> *mut *mut c_char;
    list_column_families_destroy: fn(*mut *mut c_char, usize);
    options_set_compaction_filter: fn(Obj, Obj);
    compactionfilter_create:
        fn(*mut c_void, GoneCallback, FilterCallback, NameCallback) -> Obj;
    writebatch_put_cf: fn(Obj, Obj, *const c_char, usize, *const c_char, usize);
    writebatch_merge_cf: fn(Obj, Obj, *const c_char, usize, *const c_char, usize);
    writebatch_delete_cf: fn(Obj, Obj, *const c_char, usize);
    writebatch_singledelete_cf: fn(Obj, Obj, *const c_char, usize);
    writebatch_delete_range_cf: fn(Obj, Obj, *const c_char, usize, *const c_char, usize);
    writebatch_put_log_data: fn(Obj, *const c_char, usize);
    writebatch_data: fn(Obj, *mut usize) -> *const c_char;
    writeoptions_set_no_slowdown: fn(Obj, c_uchar);
    writeoptions_set_low_pri: fn(Obj, c_uchar);
    get_pinned_cf: fn(Obj, Obj, Obj, *const c_char, usize, ErrOut) -> Obj;
    multi_get_cf:
        fn(Obj, Obj, *const Obj, usize, *const *const c_char, *const usize, *mut *mut c_char, *mut usize, ErrOut);
    create_snapshot: fn(Obj) -> Obj;
    release_snapshot: fn(Obj, Obj);
    readoptions_set_snapshot: fn(Obj, Obj);
    readoptions_set_iterate_upper_bound: fn(Obj, *const c_char, usize);
    readoptions_set_iterate_lower_bound: fn(Obj, *const c_char, usize);
    readoptions_set_total_order_seek: fn(Obj, c_uchar);
    readoptions_set_prefix_same_as_start: fn(Obj, c_uchar);
    readoptions_set_readahead_size: fn(Obj, usize);
    create_iterator_cf: fn(Obj, Obj, Obj) -> Obj;
    iter_seek_for_prev: fn(Obj, *const c_char, usize);
    flushoptions_set_wait: fn(Obj, c_uchar);
    compactoptions_create: fn() -> Obj;
    compactoptions_destroy: fn(Obj);
    compactoptions_set_exclusive_manual_compaction: fn(Obj, c_uchar);
    compactoptions_set_bottommost_level_compaction: fn(Obj, c_uchar);
    compactoptions_set_change_level: fn(Obj, c_uchar);
    compact_range_cf_opt: fn(Obj, Obj, Obj, *const c_char, usize, *const c_char, usize);
    set_options_cf: fn(Obj, Obj, c_int, *const *const c_char, *const *const c_char, ErrOut);
    envoptions_create: fn() -> Obj;
    envoptions_destroy: fn(Obj);
    sstfilewriter_create: fn(Obj, Obj) -> Obj;
    sstfilewriter_open: fn(Obj, *const c_char, ErrOut);
    sstfilewriter_put: fn(Obj, *const c_char, usize, *const c_char, usize, ErrOut);
    sstfilewriter_merge: fn(Obj, *const c_char, usize, *const c_char, usize, ErrOut);
    sstfilewriter_delete: fn(Obj, *const c_char, usize, ErrOut);
    sstfilewriter_delete_range: fn(Obj, *const c_char, usize, *const c_char, usize, ErrOut);
    sstfilewriter_finish: fn(Obj, ErrOut);
    sstfilewriter_destroy: fn(Obj);
    ingestexternalfileoptions_create: fn() -> Obj;
    ingestexternalfileoptions_destroy: fn(Obj);
    ingestexternalfileoptions_set_move_files: fn(Obj, c_uchar);
    ingestexternalfileoptions_set_ingest_behind: fn(Obj, c_uchar);
    ingest_external_file_cf: fn(Obj, Obj, *const *const c_char, usize, Obj, ErrOut);
    flush_wal: fn(Obj, c_uchar, ErrOut);
    get_latest_sequence_number: fn(Obj) -> u64;
    get_updates_since: fn(Obj, u64, Obj, ErrOut) -> Obj;
    wal_iter_next: fn(Obj);
    wal_iter_valid: fn(Obj) -> c_uchar;
    wal_iter_status: fn(Obj, ErrOut);
    wal_iter_get_batch: fn(Obj, *mut u64) -> Obj;
    wal_iter_destroy: fn(Obj);
    property_value_cf: fn(Obj, Obj, *const c_char) -> *mut c_char;
    checkpoint_object_create: fn(Obj, ErrOut) -> Obj;
    checkpoint_create: fn(Obj, *const c_char, u64, ErrOut);
    checkpoint_object_destroy: fn(Obj);
}

/// Functions that only newer libraries have.
#[derive(Debug, Default)]
struct Newer {
    /// `set_db_options`.
    set_db_options: Option<SetCall>,
    /// `readoptions_set_auto_prefix_mode`.
    auto_prefix_mode: Option<FlagCall>,
}

/// The result of a call.
pub type Outcome<T> = Result<T, String>;

fn chars(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

fn c_path(path: &Path) -> Outcome<CString> {
    c_string(path.as_os_str().as_bytes())
}

/// The name of every filter; it is only written to the OPTIONS file.
// SAFETY: it looks at no argument.
unsafe extern "C" fn filter_name(_: *mut c_void) -> *const c_char {
    c"rockmill-rocksdb.Filter".as_ptr()
}

// SAFETY: it looks at no argument.
unsafe extern "C" fn filter_gone(_: *mut c_void) {
    // The state is the address of a function.
}

/// Calls a [`Filter`], whose address is the state.
///
/// # Safety
/// As in RocksDB's c.h: the value is readable for its length, and the last three are places to write to.
// SAFETY: RocksDB keeps to that.
unsafe extern "C" fn filter_value(
    state: *mut c_void,
    _level: c_int,
    _key: *const c_char,
    _key_len: usize,
    value: *const c_char,
    value_len: usize,
    new_value: *mut *mut c_char,
    new_len: *mut usize,
    changed: *mut c_uchar,
) -> c_uchar {
    // SAFETY: `set_compaction_filter` made the state of a `Filter`; the value is as the caller promises.
    let (filter, value) = unsafe { (std::mem::transmute::<*mut c_void, Filter>(state), bytes(value, value_len)) };
    match filter(value) {
        Kept::All => 0,
        Kept::Nothing => 1,
        Kept::After(start) => {
            let rest = &value[start.min(value.len())..];
            // SAFETY: the caller's promise; RocksDB copies the new value, which lies in the old one, before that goes.
            unsafe {
                *new_value = rest.as_ptr().cast_mut().cast();
                *new_len = rest.len();
                *changed = 1;
            }
            0
        }
    }
}

impl Library {
    /// The functions of this module.
    ///
    /// # Errors
    /// The name of the first one that the library lacks.
    fn functions(&self) -> Outcome<&Functions> {
        let load = || self.handle().map_or(Err("any"), Functions::load);
        self.more.get_or_init(load).as_ref().map_err(|missing| format!("the library has no function {missing}"))
    }

    fn newer(&self) -> Newer {
        let find = |name: &CStr| {
            let handle = self.handle()?;
            // SAFETY: the handle is of a library that stays loaded and the name ends in a zero byte.
            let address = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        Newer {
            // SAFETY: a function of this name has this signature in RocksDB's c.h.
            set_db_options: find(c"rocksdb_set_db_options").map(|f| unsafe { std::mem::transmute(f) }),
            // SAFETY: as above.
            auto_prefix_mode: find(c"rocksdb_readoptions_set_auto_prefix_mode")
                .map(|f| unsafe { std::mem::transmute(f) }),
        }
    }

    /// The names of a database's column families.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn families(&self, options: &DbOptions, path: &Path) -> Outcome<Vec<String>> {
        let f = self.functions()?;
        let path = c_path(path)?;
        let mut count = 0;
        let list = self.checked(|e| {
            // SAFETY: the options are live, the path ends in a zero byte, the count is a place to write to.
            unsafe { (f.list_column_families)(options.raw, path.as_ptr(), &raw mut count, e) }
        })?;
        // SAFETY: the list has so many texts that end in a zero byte.
        let name = |i: usize| unsafe { CStr::from_ptr(*list.add(i)) }.to_string_lossy().into_owned();
        let names = (0..count).map(name).collect();
        // SAFETY: it came from the library and is not used again.
        unsafe { (f.list_column_families_destroy)(list, count) };
        Ok(names)
    }

    /// Writes a table outside any database. Updates must be in order, range deletions first.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn write_table(&self, options: &DbOptions, path: &Path, ops: &[Op]) -> Outcome<()> {
        let f = self.functions()?;
        let path = c_path(path)?;
        // SAFETY: no arguments; the result belongs to us. The options are live.
        let (env, writer) = unsafe {
            let env = (f.envoptions_create)();
            (env, (f.sstfilewriter_create)(env, options.raw))
        };
        let write = || {
            // SAFETY: the writer is live and the path ends in a zero byte.
            self.checked(|e| unsafe { (f.sstfilewriter_open)(writer, path.as_ptr(), e) })?;
            for op in ops {
                // SAFETY: the writer is live; keys and values are readable for their lengths.
                self.checked(|e| unsafe {
                    match op {
                        Op::Put(_, k, v) => (f.sstfilewriter_put)(writer, chars(k), k.len(), chars(v), v.len(), e),
                        Op::Merge(_, k, v) => (f.sstfilewriter_merge)(writer, chars(k), k.len(), chars(v), v.len(), e),
                        Op::Delete(_, k) => (f.sstfilewriter_delete)(writer, chars(k), k.len(), e),
                        Op::DeleteRange(_, a, b) => {
                            (f.sstfilewriter_delete_range)(writer, chars(a), a.len(), chars(b), b.len(), e);
                        }
                        Op::SingleDelete(..) | Op::LogData(_) => {}
                    }
                })?;
            }
            // SAFETY: the writer is live.
            self.checked(|e| unsafe { (f.sstfilewriter_finish)(writer, e) })
        };
        let done = write();
        // SAFETY: made above, destroyed once.
        unsafe {
            (f.sstfilewriter_destroy)(writer);
            (f.envoptions_destroy)(env);
        }
        done
    }
}

impl DbOptions {
    /// Sets a filter for compactions. It is never freed, because databases may keep it for any length of time.
    ///
    /// # Errors
    /// If the library lacks the functions of this module.
    pub fn set_compaction_filter(&self, filter: Filter) -> Outcome<()> {
        let f = self.library.functions()?;
        // SAFETY: the callbacks have the signatures of c.h and the state is what `filter_value` takes it for; the
        // options are live.
        unsafe {
            let made = (f.compactionfilter_create)(filter as *mut c_void, filter_gone, filter_value, filter_name);
            (f.options_set_compaction_filter)(self.raw, made);
        }
        Ok(())
    }
}

/// An iterator together with its options.
struct Held {
    raw: Obj,
    read: Obj,
    /// RocksDB keeps the addresses of the bounds.
    _look: Box<Look>,
}

/// An open database.
pub struct Store {
    library: Arc<Library>,
    newer: Newer,
    db: Obj,
    families: BTreeMap<String, Obj>,
    snapshots: BTreeMap<u8, Obj>,
    iterators: BTreeMap<u8, Held>,
    ttl: Option<i32>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("library", &self.library).field("families", &self.families.keys()).finish()
    }
}

/// The state that several writers share: a database and its handles, which RocksDB allows several threads to use at
/// once.
#[derive(Clone, Copy)]
struct Shared<'a>(&'a Store);

// SAFETY: writers only call `write_one`, which makes its own batch and options and otherwise reads.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    fn write_all(&self, how: WriteHow, batches: &[Vec<Op>]) -> Outcome<()> {
        batches.iter().try_for_each(|ops| self.0.write(how, ops))
    }
}

impl Store {
    /// Opens the database at `path` with these column families.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn open(options: &DbOptions, path: &Path, families: &[(String, DbOptions)], how: Open) -> Outcome<Self> {
        let library = Arc::clone(&options.library);
        let (s, f) = (&library.symbols, library.functions()?);
        let path = c_path(path)?;
        let texts = families.iter().map(|(name, _)| c_string(name.as_bytes())).collect::<Outcome<Vec<CString>>>()?;
        let names: Vec<*const c_char> = texts.iter().map(|name| name.as_ptr()).collect();
        let own: Vec<Obj> = families.iter().map(|(_, options)| options.raw).collect();
        let mut handles: Vec<Obj> = vec![ptr::null_mut(); families.len()];
        let (p, n, names, own, h) =
            (path.as_ptr(), families.len() as c_int, names.as_ptr(), own.as_ptr(), handles.as_mut_ptr());
        let ttls = vec![if let Open::Ttl(seconds) = how { seconds } else { 0 }; families.len()];
        let db = library.checked(|e| {
            // SAFETY: each list has one place for each column family; all live during the call.
            unsafe {
                match how {
                    Open::Plain => (s.open_column_families)(options.raw, p, n, names, own, h, e),
                    Open::Ttl(_) => {
                        (f.open_column_families_with_ttl)(options.raw, p, n, names, own, h, ttls.as_ptr(), e)
                    }
                    Open::ReadOnly => (f.open_for_read_only_column_families)(options.raw, p, n, names, own, h, 0, e),
                }
            }
        })?;
        let ttl = if let Open::Ttl(seconds) = how { Some(seconds) } else { None };
        let families = families.iter().map(|(name, _)| name.clone()).zip(handles).collect();
        let (snapshots, iterators) = (BTreeMap::new(), BTreeMap::new());
        let newer = library.newer();
        Ok(Self { library, newer, db, families, snapshots, iterators, ttl })
    }

    fn functions(&self) -> Outcome<&Functions> {
        self.library.functions()
    }

    fn family(&self, name: &str) -> Outcome<Obj> {
        let found = self.families.get(name).copied();
        found.ok_or_else(|| format!("Invalid argument: there is no column family {name:?}"))
    }

    /// The names of the column families that are open.
    pub fn names(&self) -> Vec<String> {
        self.families.keys().cloned().collect()
    }

    /// Creates a column family, with the database's time to live if it has one.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn create_family(&mut self, name: &str, options: &DbOptions) -> Outcome<()> {
        let text = c_string(name.as_bytes())?;
        let (s, f) = (&self.library.symbols, self.functions()?);
        let made = self.library.checked(|e| {
            // SAFETY: the database is open, the options are live and the name ends in a zero byte.
            unsafe {
                match self.ttl {
                    Some(ttl) => (f.create_column_family_with_ttl)(self.db, options.raw, text.as_ptr(), ttl, e),
                    None => (s.create_column_family)(self.db, options.raw, text.as_ptr(), e),
                }
            }
        })?;
        if let Some(old) = self.families.insert(name.to_owned(), made) {
            // SAFETY: a handle of this database that is not used again.
            unsafe { (self.library.symbols.column_family_handle_destroy)(old) };
        }
        Ok(())
    }

    /// Drops a column family.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn drop_family(&mut self, name: &str) -> Outcome<()> {
        let cf = self.family(name)?;
        let s = &self.library.symbols;
        // SAFETY: database and handle are live.
        self.library.checked(|e| unsafe { (s.drop_column_family)(self.db, cf, e) })?;
        self.families.remove(name);
        // SAFETY: off the list, so it is not used again.
        unsafe { (self.library.symbols.column_family_handle_destroy)(cf) };
        Ok(())
    }

    /// Writes a batch.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn write(&self, how: WriteHow, ops: &[Op]) -> Outcome<()> {
        let (s, f) = (&self.library.symbols, self.functions()?);
        // Handles are looked up before anything is created that would have to be freed.
        let mut handles = Vec::with_capacity(ops.len());
        for op in ops {
            handles.push(match op {
                Op::Put(cf, ..) | Op::Merge(cf, ..) | Op::Delete(cf, _) => self.family(cf)?,
                Op::SingleDelete(cf, _) | Op::DeleteRange(cf, ..) => self.family(cf)?,
                Op::LogData(_) => ptr::null_mut(),
            });
        }
        // SAFETY: no arguments; the results belong to us.
        let (batch, options) = unsafe { ((s.writebatch_create)(), (s.writeoptions_create)()) };
        // SAFETY: batch, options and handles are live; keys and values are readable for their lengths and are copied.
        unsafe {
            (s.writeoptions_set_sync)(options, c_uchar::from(how.sync));
            (s.writeoptions_disable_WAL)(options, c_int::from(how.disable_wal));
            (f.writeoptions_set_no_slowdown)(options, c_uchar::from(how.no_slowdown));
            (f.writeoptions_set_low_pri)(options, c_uchar::from(how.low_pri));
            for (op, &cf) in ops.iter().zip(&handles) {
                match op {
                    Op::Put(_, k, v) => (f.writebatch_put_cf)(batch, cf, chars(k), k.len(), chars(v), v.len()),
                    Op::Merge(_, k, v) => (f.writebatch_merge_cf)(batch, cf, chars(k), k.len(), chars(v), v.len()),
                    Op::Delete(_, k) => (f.writebatch_delete_cf)(batch, cf, chars(k), k.len()),
                    Op::SingleDelete(_, k) => (f.writebatch_singledelete_cf)(batch, cf, chars(k), k.len()),
                    Op::DeleteRange(_, a, b) => {
                        (f.writebatch_delete_range_cf)(batch, cf, chars(a), a.len(), chars(b), b.len());
                    }
                    Op::LogData(data) => (f.writebatch_put_log_data)(batch, chars(data), data.len()),
                }
            }
        }
        // SAFETY: database, options and batch are live.
        let done = self.library.checked(|e| unsafe { (s.write)(self.db, options, batch, e) });
        // SAFETY: made above, destroyed once.
        unsafe {
            (s.writebatch_destroy)(batch);
            (s.writeoptions_destroy)(options);
        }
        done
    }

    /// Writes from several threads at once, each with its own batches.
    ///
    /// # Errors
    /// The first error of RocksDB's.
    pub fn write_together(&self, how: WriteHow, writers: &[Vec<Vec<Op>>]) -> Outcome<()> {
        let shared = Shared(self);
        std::thread::scope(|scope| {
            let all: Vec<_> =
                writers.iter().map(|batches| scope.spawn(move || { shared }.write_all(how, batches))).collect();
            let ended = all.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a writer panicked".to_owned())));
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Options of a read; the caller destroys them.
    fn read_options(&self, look: &Look) -> Outcome<Obj> {
        let (s, f) = (&self.library.symbols, self.functions()?);
        let snapshot = look.snapshot.map(|id| self.snapshots.get(&id).copied());
        let snapshot = snapshot.map(|found| found.ok_or("Invalid argument: there is no such snapshot")).transpose()?;
        // SAFETY: no arguments; the result belongs to us. Bounds live as long as the caller keeps `look`.
        unsafe {
            let read = (s.readoptions_create)();
            if let Some(snapshot) = snapshot {
                (f.readoptions_set_snapshot)(read, snapshot);
            }
            if let Some(key) = &look.lower {
                (f.readoptions_set_iterate_lower_bound)(read, chars(key), key.len());
            }
            if let Some(key) = &look.upper {
                (f.readoptions_set_iterate_upper_bound)(read, chars(key), key.len());
            }
            let auto = self.newer.auto_prefix_mode.filter(|_| look.auto_prefix);
            let total = look.total_order || (look.auto_prefix && auto.is_none());
            (f.readoptions_set_total_order_seek)(read, c_uchar::from(total));
            (f.readoptions_set_prefix_same_as_start)(read, c_uchar::from(look.same_prefix));
            (f.readoptions_set_readahead_size)(read, look.readahead);
            if let Some(auto) = auto {
                auto(read, 1);
            }
            Ok(read)
        }
    }

    /// Looks up a key.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn get(&self, family: &str, key: &[u8], snapshot: Option<u8>) -> Outcome<Option<Vec<u8>>> {
        let (s, f, cf) = (&self.library.symbols, self.functions()?, self.family(family)?);
        let read = self.read_options(&Look { snapshot, ..Look::default() })?;
        // SAFETY: database, options and handle are live; the key is readable for its length.
        let slice = self.library.checked(|e| unsafe { (f.get_pinned_cf)(self.db, read, cf, chars(key), key.len(), e) });
        // SAFETY: made above, destroyed once.
        unsafe { (s.readoptions_destroy)(read) };
        let slice = slice?;
        if slice.is_null() {
            return Ok(None);
        }
        let mut len = 0;
        // SAFETY: the slice is live, ours, and destroyed once; the value is readable for its length until then.
        unsafe {
            let value = bytes((s.pinnableslice_value)(slice, &raw mut len), len).to_vec();
            (s.pinnableslice_destroy)(slice);
            Ok(Some(value))
        }
    }

    /// Looks up several keys in one call.
    ///
    /// # Errors
    /// RocksDB's; each key has its own.
    #[allow(clippy::type_complexity)]
    pub fn multi_get(
        &self,
        keys: &[(String, Vec<u8>)],
        snapshot: Option<u8>,
    ) -> Outcome<Vec<Outcome<Option<Vec<u8>>>>> {
        let (s, f) = (&self.library.symbols, self.functions()?);
        let families = keys.iter().map(|(cf, _)| self.family(cf)).collect::<Outcome<Vec<Obj>>>()?;
        let read = self.read_options(&Look { snapshot, ..Look::default() })?;
        let n = keys.len();
        let texts: Vec<*const c_char> = keys.iter().map(|(_, key)| chars(key)).collect();
        let lens: Vec<usize> = keys.iter().map(|(_, key)| key.len()).collect();
        let (mut values, mut errors) = (vec![ptr::null_mut::<c_char>(); n], vec![ptr::null_mut::<c_char>(); n]);
        let mut value_lens = vec![0usize; n];
        let (v, vl, e) = (values.as_mut_ptr(), value_lens.as_mut_ptr(), errors.as_mut_ptr());
        // SAFETY: every list has `n` places; handles are live; keys are readable for their lengths.
        unsafe {
            (f.multi_get_cf)(self.db, read, families.as_ptr(), n, texts.as_ptr(), lens.as_ptr(), v, vl, e);
            (s.readoptions_destroy)(read);
        }
        let mut out = Vec::with_capacity(n);
        for i in 0..n {
            if !errors[i].is_null() {
                out.push(Err(self.library.take_text(errors[i])));
            } else if values[i].is_null() {
                out.push(Ok(None));
            } else {
                // SAFETY: the value came from the library's malloc, is readable for its length, and is freed once.
                out.push(Ok(Some(unsafe {
                    let value = bytes(values[i], value_lens[i]).to_vec();
                    (s.free)(values[i].cast());
                    value
                })));
            }
        }
        Ok(out)
    }

    /// Takes a snapshot under an unused number.
    ///
    /// # Errors
    /// If the library lacks the function.
    pub fn snapshot(&mut self, id: u8) -> Outcome<()> {
        let f = self.functions()?;
        // SAFETY: the database is open; the result is released below, or when the database is closed.
        let taken = unsafe { (f.create_snapshot)(self.db) };
        self.snapshots.insert(id, taken);
        Ok(())
    }

    /// Releases a snapshot.
    ///
    /// # Errors
    /// If the library lacks the function.
    pub fn release(&mut self, id: u8) -> Outcome<()> {
        if let Some(snapshot) = self.snapshots.remove(&id) {
            // SAFETY: off the list, so it is released once.
            unsafe { (self.functions()?.release_snapshot)(self.db, snapshot) };
        }
        Ok(())
    }

    /// Opens an iterator under a number; an existing one with this number is closed.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn iterator(&mut self, id: u8, family: &str, look: &Look) -> Outcome<()> {
        self.close_iterator(id);
        let (f, cf, look) = (self.functions()?, self.family(family)?, Box::new(look.clone()));
        let read = self.read_options(&look)?;
        // SAFETY: database, options and handle are live; options and bounds are kept as long as the iterator.
        let raw = unsafe { (f.create_iterator_cf)(self.db, read, cf) };
        self.iterators.insert(id, Held { raw, read, _look: look });
        Ok(())
    }

    /// Closes an iterator.
    pub fn close_iterator(&mut self, id: u8) {
        if let Some(held) = self.iterators.remove(&id) {
            let s = &self.library.symbols;
            // SAFETY: off the list, so they are destroyed once.
            unsafe {
                (s.iter_destroy)(held.raw);
                (s.readoptions_destroy)(held.read);
            }
        }
    }

    /// Moves an iterator and returns its new entry. An iterator that is on no entry is not moved to a neighbour.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn go(&mut self, id: u8, to: &Go) -> Outcome<Option<(Vec<u8>, Vec<u8>)>> {
        let (s, f) = (&self.library.symbols, self.functions()?);
        let held = self.iterators.get(&id).ok_or("Invalid argument: there is no such iterator")?;
        let raw = held.raw;
        // SAFETY: the iterator is live and keys are readable for their lengths. It is asked for an entry only where it
        // stands on one.
        unsafe {
            match to {
                Go::First => (s.iter_seek_to_first)(raw),
                Go::Last => (s.iter_seek_to_last)(raw),
                Go::Seek(key) => (s.iter_seek)(raw, chars(key), key.len()),
                Go::SeekForPrev(key) => (f.iter_seek_for_prev)(raw, chars(key), key.len()),
                Go::Next if (s.iter_valid)(raw) != 0 => (s.iter_next)(raw),
                Go::Prev if (s.iter_valid)(raw) != 0 => (s.iter_prev)(raw),
                Go::Next | Go::Prev => {}
            }
            self.library.checked(|e| (s.iter_get_error)(raw, e))?;
            if (s.iter_valid)(raw) == 0 {
                return Ok(None);
            }
            let (mut key_len, mut value_len) = (0, 0);
            let key = (s.iter_key)(raw, &raw mut key_len);
            let value = (s.iter_value)(raw, &raw mut value_len);
            Ok(Some((bytes(key, key_len).to_vec(), bytes(value, value_len).to_vec())))
        }
    }

    /// Flushes column families, one after another.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn flush(&self, families: &[String], wait: bool) -> Outcome<()> {
        let (s, f) = (&self.library.symbols, self.functions()?);
        for family in families {
            let cf = self.family(family)?;
            // SAFETY: no arguments; the result belongs to us.
            let options = unsafe { (s.flushoptions_create)() };
            // SAFETY: the options are live.
            unsafe { (f.flushoptions_set_wait)(options, c_uchar::from(wait)) };
            // SAFETY: database, options and handle are live.
            let done = self.library.checked(|e| unsafe { (s.flush_cf)(self.db, options, cf, e) });
            // SAFETY: made above, destroyed once.
            unsafe { (s.flushoptions_destroy)(options) };
            done?;
        }
        Ok(())
    }

    /// Compacts a range manually; RocksDB's C API does not report whether that failed.
    ///
    /// # Errors
    /// If there is no such column family.
    pub fn compact(&self, family: &str, from: Option<&[u8]>, to: Option<&[u8]>, how: CompactHow) -> Outcome<()> {
        let (f, cf) = (self.functions()?, self.family(family)?);
        let bound = |key: Option<&[u8]>| key.map_or((ptr::null(), 0), |key| (chars(key), key.len()));
        let ((from, from_len), (to, to_len)) = (bound(from), bound(to));
        // SAFETY: database and handle are live; a null key means no bound, others are readable for their lengths.
        unsafe {
            let options = (f.compactoptions_create)();
            (f.compactoptions_set_exclusive_manual_compaction)(options, c_uchar::from(how.exclusive));
            (f.compactoptions_set_bottommost_level_compaction)(options, how.bottommost);
            (f.compactoptions_set_change_level)(options, c_uchar::from(how.change_level));
            (f.compact_range_cf_opt)(self.db, cf, options, from, from_len, to, to_len);
            (f.compactoptions_destroy)(options);
        }
        Ok(())
    }

    /// Changes an option of a column family.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn set_option(&self, family: &str, name: &str, value: &str) -> Outcome<()> {
        let (f, cf) = (self.functions()?, self.family(family)?);
        let (name, value) = (c_string(name.as_bytes())?, c_string(value.as_bytes())?);
        let (names, values) = ([name.as_ptr()], [value.as_ptr()]);
        self.library.checked(|e| {
            // SAFETY: database and handle are live; the lists have one text each, which ends in a zero byte.
            unsafe { (f.set_options_cf)(self.db, cf, 1, names.as_ptr(), values.as_ptr(), e) }
        })
    }

    /// Changes an option of the database; `None` if the library's C API cannot.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn set_db_option(&self, name: &str, value: &str) -> Outcome<Option<()>> {
        let Some(set) = self.newer.set_db_options else { return Ok(None) };
        let (name, value) = (c_string(name.as_bytes())?, c_string(value.as_bytes())?);
        let (names, values) = ([name.as_ptr()], [value.as_ptr()]);
        self.library.checked(|e| {
            // SAFETY: the database is open; the lists have one text each, which ends in a zero byte.
            unsafe { set(self.db, 1, names.as_ptr(), values.as_ptr(), e) }
        })?;
        Ok(Some(()))
    }

    /// Ingests external tables into a column family.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn ingest(&self, family: &str, files: &[&Path], moved: bool, behind: bool) -> Outcome<()> {
        let (f, cf) = (self.functions()?, self.family(family)?);
        let paths = files.iter().map(|path| c_path(path)).collect::<Outcome<Vec<CString>>>()?;
        let list: Vec<*const c_char> = paths.iter().map(|path| path.as_ptr()).collect();
        // SAFETY: no arguments; the result belongs to us.
        let options = unsafe { (f.ingestexternalfileoptions_create)() };
        // SAFETY: the options are live.
        unsafe {
            (f.ingestexternalfileoptions_set_move_files)(options, c_uchar::from(moved));
            (f.ingestexternalfileoptions_set_ingest_behind)(options, c_uchar::from(behind));
        }
        let done = self.library.checked(|e| {
            // SAFETY: database, handle and options are live; the list has so many texts that end in a zero byte.
            unsafe { (f.ingest_external_file_cf)(self.db, cf, list.as_ptr(), list.len(), options, e) }
        });
        // SAFETY: made above, destroyed once.
        unsafe { (f.ingestexternalfileoptions_destroy)(options) };
        done
    }

    /// Writes the WAL's buffer to its file; also syncs it if `sync`.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn flush_wal(&self, sync: bool) -> Outcome<()> {
        let f = self.functions()?;
        // SAFETY: the database is open.
        self.library.checked(|e| unsafe { (f.flush_wal)(self.db, c_uchar::from(sync), e) })
    }

    /// The newest sequence number.
    pub fn latest_sequence(&self) -> u64 {
        // SAFETY: the database is open.
        self.functions().map_or(0, |f| unsafe { (f.get_latest_sequence_number)(self.db) })
    }

    /// The batches in WALs since a sequence number, each with its own sequence number; and the error that ended the
    /// iteration, if any.
    ///
    /// # Errors
    /// RocksDB's, if there is nothing to read.
    #[allow(clippy::type_complexity)]
    pub fn updates_since(&self, sequence: u64) -> Outcome<(Vec<(u64, Vec<u8>)>, Outcome<()>)> {
        let (s, f) = (&self.library.symbols, self.functions()?);
        // SAFETY: the database is open; null options are RocksDB's defaults.
        let raw = self.library.checked(|e| unsafe { (f.get_updates_since)(self.db, sequence, ptr::null_mut(), e) })?;
        let mut out = Vec::new();
        // SAFETY: the iterator is live; each batch is ours and destroyed once, its bytes are readable until then.
        unsafe {
            while (f.wal_iter_valid)(raw) != 0 {
                let (mut at, mut len) = (0, 0);
                let batch = (f.wal_iter_get_batch)(raw, &raw mut at);
                let data = (f.writebatch_data)(batch, &raw mut len);
                out.push((at, bytes(data, len).to_vec()));
                (s.writebatch_destroy)(batch);
                (f.wal_iter_next)(raw);
            }
        }
        // SAFETY: the iterator is live.
        let ended = self.library.checked(|e| unsafe { (f.wal_iter_status)(raw, e) });
        // SAFETY: made above, destroyed once.
        unsafe { (f.wal_iter_destroy)(raw) };
        Ok((out, ended))
    }

    /// A property's text; `None` if the property does not exist.
    pub fn property(&self, family: &str, name: &str) -> Option<String> {
        let (f, cf, name) = (self.functions().ok()?, self.family(family).ok()?, c_string(name.as_bytes()).ok()?);
        // SAFETY: database and handle are live and the name ends in a zero byte; the result is null or a text for us.
        let text = unsafe { (f.property_value_cf)(self.db, cf, name.as_ptr()) };
        (!text.is_null()).then(|| self.library.take_text(text))
    }

    /// Makes a checkpoint.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn checkpoint(&self, path: &Path, log_size: u64) -> Outcome<()> {
        let (f, path) = (self.functions()?, c_path(path)?);
        // SAFETY: the database is open.
        let made = self.library.checked(|e| unsafe { (f.checkpoint_object_create)(self.db, e) })?;
        // SAFETY: the object is live and the path ends in a zero byte.
        let done = self.library.checked(|e| unsafe { (f.checkpoint_create)(made, path.as_ptr(), log_size, e) });
        // SAFETY: made above, destroyed once.
        unsafe { (f.checkpoint_object_destroy)(made) };
        done
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let ids: Vec<u8> = self.iterators.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close_iterator(id));
        let ids: Vec<u8> = self.snapshots.keys().copied().collect();
        ids.into_iter().for_each(|id| drop(self.release(id)));
        let s = &self.library.symbols;
        for &cf in self.families.values() {
            // SAFETY: each handle was made once and is destroyed once, before the database is closed.
            unsafe { (s.column_family_handle_destroy)(cf) };
        }
        // SAFETY: opened once, closed once; nothing of it is left.
        unsafe { (s.close)(self.db) };
    }
}
