//! Loading, options, and a database with one column family.
//!
//! A loaded library is never unloaded: its background threads live as long as the process.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

/// An object of the library, known only by its address.
#[repr(C)]
pub(crate) struct Opaque {
    _private: [u8; 0],
}

pub(crate) type Obj = *mut Opaque;
pub(crate) type ErrOut = *mut *mut c_char;

macro_rules! symbols {
    ($group:ident: $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions in use, by their names in c.h without the prefix.
        #[allow(non_snake_case)]
        pub(crate) struct $group {
            // SAFETY: calling one is sound as far as its type is the one in c.h; each call says why its arguments are.
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $group {
            /// Finds every function; the error is the name of the first missing one.
            pub(crate) fn load(handle: std::ptr::NonNull<c_void>) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let name = concat!("rocksdb_", stringify!($name), "\0");
                        // SAFETY: the handle is of a library that stays loaded and the name ends in a zero byte.
                        let address = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr().cast()) };
                        if address.is_null() {
                            return Err(concat!("rocksdb_", stringify!($name)));
                        }
                        // SAFETY: a function of this name has this signature in RocksDB's c.h.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(address) }
                    },)*
                })
            }
        }
    };
}
pub(crate) use symbols;

symbols! {
    Symbols:
    free: fn(*mut c_void);
    options_create: fn() -> Obj;
    options_destroy: fn(Obj);
    options_enable_statistics: fn(Obj);
    options_set_wal_dir: fn(Obj, *const c_char);
    options_set_db_paths: fn(Obj, *const Obj, usize);
    dbpath_create: fn(*const c_char, u64) -> Obj;
    dbpath_destroy: fn(Obj);
    get_options_from_string: fn(Obj, *const c_char, Obj, ErrOut);
    open_column_families: fn(Obj, *const c_char, c_int, *const *const c_char, *const Obj, *mut Obj, ErrOut) -> Obj;
    column_family_handle_destroy: fn(Obj);
    close: fn(Obj);
    destroy_db: fn(Obj, *const c_char, ErrOut);
    writeoptions_create: fn() -> Obj;
    writeoptions_destroy: fn(Obj);
    writeoptions_set_sync: fn(Obj, c_uchar);
    writeoptions_disable_WAL: fn(Obj, c_int);
    readoptions_create: fn() -> Obj;
    readoptions_destroy: fn(Obj);
    readoptions_set_verify_checksums: fn(Obj, c_uchar);
    writebatch_create: fn() -> Obj;
    writebatch_destroy: fn(Obj);
    writebatch_clear: fn(Obj);
    writebatch_put_cf: fn(Obj, Obj, *const c_char, usize, *const c_char, usize);
    writebatch_merge_cf: fn(Obj, Obj, *const c_char, usize, *const c_char, usize);
    writebatch_delete_cf: fn(Obj, Obj, *const c_char, usize);
    write: fn(Obj, Obj, Obj, ErrOut);
    get_pinned_cf: fn(Obj, Obj, Obj, *const c_char, usize, ErrOut) -> Obj;
    pinnableslice_value: fn(Obj, *mut usize) -> *const c_char;
    pinnableslice_destroy: fn(Obj);
    multi_get: fn(Obj, Obj, usize, *const *const c_char, *const usize, *mut *mut c_char, *mut usize, ErrOut);
    batched_multi_get_cf:
        fn(Obj, Obj, Obj, usize, *const *const c_char, *const usize, *mut Obj, ErrOut, bool);
    create_iterator_cf: fn(Obj, Obj, Obj) -> Obj;
    iter_destroy: fn(Obj);
    iter_valid: fn(Obj) -> c_uchar;
    iter_seek: fn(Obj, *const c_char, usize);
    iter_seek_to_first: fn(Obj);
    iter_seek_to_last: fn(Obj);
    iter_next: fn(Obj);
    iter_prev: fn(Obj);
    iter_key: fn(Obj, *mut usize) -> *const c_char;
    iter_value: fn(Obj, *mut usize) -> *const c_char;
    iter_get_error: fn(Obj, ErrOut);
    flushoptions_create: fn() -> Obj;
    flushoptions_destroy: fn(Obj);
    create_column_family: fn(Obj, Obj, *const c_char, ErrOut) -> Obj;
    drop_column_family: fn(Obj, Obj, ErrOut);
    put_cf: fn(Obj, Obj, Obj, *const c_char, usize, *const c_char, usize, ErrOut);
    flush_cf: fn(Obj, Obj, Obj, ErrOut);
    compact_range_cf: fn(Obj, Obj, *const c_char, usize, *const c_char, usize);
    property_value_cf: fn(Obj, Obj, *const c_char) -> *mut c_char;
    livefiles: fn(Obj) -> Obj;
    livefiles_count: fn(Obj) -> c_int;
    livefiles_level: fn(Obj, c_int) -> c_int;
    livefiles_size: fn(Obj, c_int) -> usize;
    livefiles_destroy: fn(Obj);
}

/// A loaded RocksDB.
pub struct Library {
    pub(crate) symbols: Symbols,
    /// The loader's handle, as an address.
    handle: usize,
    /// The file that the loader loaded.
    pub path: PathBuf,
    /// The functions of [`crate::store`], after their first use.
    pub(crate) more: OnceLock<Result<crate::store::Functions, &'static str>>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Library {
    /// Loads the library; `name` is a path, or a bare file name for the loader to find.
    pub fn load(name: &Path) -> Result<Arc<Self>, String> {
        let text = c_string(name.to_string_lossy().as_bytes())?;
        // RTLD_LOCAL: two versions in one process must not find each other's functions. SAFETY: the text ends in a zero
        // byte. Loading runs the library's initialisers, as the caller intends.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else { return Err(loader_error()) };
        let symbols = Symbols::load(handle)
            .map_err(|missing| format!("it has no function {missing}: not RocksDB with its C API, or too old"))?;
        let path = file_of(symbols.options_create as *const c_void).unwrap_or_else(|| name.to_path_buf());
        Ok(Arc::new(Self { symbols, handle: handle.as_ptr() as usize, path, more: OnceLock::new() }))
    }

    /// The loader's handle.
    pub(crate) fn handle(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.handle as *mut c_void)
    }

    /// Options: RocksDB's defaults, changed by the text `name=value;...`.
    pub fn options(self: &Arc<Self>, text: &str, statistics: bool) -> Result<DbOptions, String> {
        let s = &self.symbols;
        // SAFETY: no arguments; the result belongs to us.
        let (base, out) = unsafe { ((s.options_create)(), (s.options_create)()) };
        let base = DbOptions { library: Arc::clone(self), raw: base };
        let out = DbOptions { library: Arc::clone(self), raw: out };
        let text = c_string(text.as_bytes())?;
        // SAFETY: both options are live, the text ends in a zero byte, the error goes to a pointer of `checked`.
        self.checked(|e| unsafe { (s.get_options_from_string)(base.raw, text.as_ptr(), out.raw, e) })?;
        if statistics {
            // SAFETY: the options are live.
            unsafe { (s.options_enable_statistics)(out.raw) };
        }
        Ok(out)
    }

    /// Deletes the database at `path`; it is no error if there is none.
    pub fn destroy(self: &Arc<Self>, options: &DbOptions, path: &Path) -> Result<(), String> {
        let path = c_string(path.to_string_lossy().as_bytes())?;
        // SAFETY: the options are live and the path ends in a zero byte.
        self.checked(|e| unsafe { (self.symbols.destroy_db)(options.raw, path.as_ptr(), e) })
    }

    /// Calls `f` with a pointer for an error message and returns the message if there is one.
    pub(crate) fn checked<T>(&self, f: impl FnOnce(ErrOut) -> T) -> Result<T, String> {
        let mut error: *mut c_char = ptr::null_mut();
        let out = f(&raw mut error);
        if error.is_null() { Ok(out) } else { Err(self.take_text(error)) }
    }

    /// Copies a text that the library allocated, and frees it.
    pub(crate) fn take_text(&self, text: *mut c_char) -> String {
        // SAFETY: the library gives texts that end in a zero byte and belong to the caller.
        let out = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: it came from the library's malloc and is not used again.
        unsafe { (self.symbols.free)(text.cast()) };
        out
    }
}

pub(crate) fn c_string(bytes: &[u8]) -> Result<CString, String> {
    CString::new(bytes).map_err(|_| "a zero byte in a path or option".to_owned())
}

/// The loader's description of its last failure.
fn loader_error() -> String {
    // SAFETY: dlerror gives null or a text that ends in a zero byte and lives until the next call in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The file that contains the code at `address`.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is a valid place for one Dl_info; any address may be asked for.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it filled the structure, which was zeroed and is valid either way.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: the loader's names end in a zero byte and live as long as the library.
    Some(PathBuf::from(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()))
}

/// Options of a database.
pub struct DbOptions {
    pub(crate) library: Arc<Library>,
    pub(crate) raw: Obj,
}

impl DbOptions {
    /// Puts WALs into a separate directory.
    pub fn set_wal_dir(&self, dir: &Path) -> Result<(), String> {
        let dir = c_string(dir.as_os_str().as_bytes())?;
        // SAFETY: the options are live and the path ends in a zero byte; the library copies it.
        unsafe { (self.library.symbols.options_set_wal_dir)(self.raw, dir.as_ptr()) };
        Ok(())
    }

    /// The directories of tables, each with its target size in bytes.
    pub fn set_db_paths(&self, paths: &[(PathBuf, u64)]) -> Result<(), String> {
        let s = &self.library.symbols;
        let names =
            paths.iter().map(|(path, _)| c_string(path.as_os_str().as_bytes())).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: each path ends in a zero byte and is copied; the results belong to us.
        let made =
            |(name, (_, bytes)): (&CString, &(PathBuf, u64))| unsafe { (s.dbpath_create)(name.as_ptr(), *bytes) };
        let made: Vec<Obj> = names.iter().zip(paths).map(made).collect();
        // SAFETY: options and paths are live and there are so many of them; the library copies them. Each path was made
        // above and is destroyed once.
        unsafe {
            (s.options_set_db_paths)(self.raw, made.as_ptr(), made.len());
            made.iter().for_each(|path| (s.dbpath_destroy)(*path));
        }
        Ok(())
    }
}

impl Drop for DbOptions {
    fn drop(&mut self) {
        // SAFETY: made by options_create, destroyed once.
        unsafe { (self.library.symbols.options_destroy)(self.raw) };
    }
}

/// An open database with its default column family, and its options for writes and reads.
pub struct Db {
    library: Arc<Library>,
    db: Obj,
    /// The default column family first.
    families: Vec<Obj>,
    write_options: Obj,
    read_options: Obj,
}

// SAFETY: RocksDB's database handle may be used by several threads at once; the other objects are only read.
unsafe impl Send for Db {}
// SAFETY: as above.
unsafe impl Sync for Db {}

impl Db {
    /// Opens the database at `path` with these column families, all with the same options. `default` comes first.
    pub fn open(
        options: &DbOptions,
        path: &Path,
        names: &[String],
        sync: bool,
        no_wal: bool,
        verify: bool,
    ) -> Result<Self, String> {
        let library = Arc::clone(&options.library);
        let s = &library.symbols;
        let path = c_string(path.to_string_lossy().as_bytes())?;
        let names = names.iter().map(|name| c_string(name.as_bytes())).collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let (own, mut families) = (vec![options.raw; names.len()], vec![ptr::null_mut(); names.len()]);
        let (p, count) = (path.as_ptr(), names.len() as c_int);
        let db = library.checked(|e| {
            // SAFETY: for each column family a name, options and a place for a handle; all live during the call.
            unsafe {
                (s.open_column_families)(options.raw, p, count, texts.as_ptr(), own.as_ptr(), families.as_mut_ptr(), e)
            }
        })?;
        // SAFETY: no arguments; the results belong to us.
        let (write_options, read_options) = unsafe { ((s.writeoptions_create)(), (s.readoptions_create)()) };
        // SAFETY: the objects are live.
        unsafe {
            (s.writeoptions_set_sync)(write_options, c_uchar::from(sync));
            (s.writeoptions_disable_WAL)(write_options, c_int::from(no_wal));
            (s.readoptions_set_verify_checksums)(read_options, c_uchar::from(verify));
        }
        Ok(Self { library, db, families, write_options, read_options })
    }

    /// Column families.
    pub fn families(&self) -> usize {
        self.families.len()
    }

    /// A property's text; `None` if the property does not exist.
    pub fn property(&self, family: usize, name: &str) -> Option<String> {
        let name = c_string(name.as_bytes()).ok()?;
        let cf = self.families[family];
        // SAFETY: the database is open and the name ends in a zero byte; the result is null or a text for us.
        let text = unsafe { (self.library.symbols.property_value_cf)(self.db, cf, name.as_ptr()) };
        (!text.is_null()).then(|| self.library.take_text(text))
    }

    /// Flushes the memtable of each column family to a table and waits for the end.
    pub fn flush(&self) -> Result<(), String> {
        self.families.iter().try_for_each(|cf| self.flush_family(*cf))
    }

    fn flush_family(&self, cf: Obj) -> Result<(), String> {
        let s = &self.library.symbols;
        // SAFETY: no arguments; the result belongs to us.
        let options = unsafe { (s.flushoptions_create)() };
        // SAFETY: the database is open and the options are live.
        let done = self.library.checked(|e| unsafe { (s.flush_cf)(self.db, options, cf, e) });
        // SAFETY: made above, destroyed once.
        unsafe { (s.flushoptions_destroy)(options) };
        done
    }

    /// Compacts every key.
    pub fn compact_all(&self) {
        for cf in &self.families {
            // SAFETY: the database is open; null keys mean no bound.
            unsafe { (self.library.symbols.compact_range_cf)(self.db, *cf, ptr::null(), 0, ptr::null(), 0) };
        }
    }

    /// Writes tables in a new column family, compacts them and drops it.
    pub fn merge_elsewhere<E: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        name: &str,
        tables: impl Iterator<Item = impl Iterator<Item = (E, V)>>,
    ) -> Result<(), String> {
        let (library, s) = (&self.library, &self.library.symbols);
        let options = library.options("disable_auto_compactions=true;compression=kNoCompression", false)?;
        let name = c_string(name.as_bytes())?;
        // SAFETY: the database is open, the options are live and the name ends in a zero byte.
        let cf = library.checked(|e| unsafe { (s.create_column_family)(self.db, options.raw, name.as_ptr(), e) })?;
        let write = || {
            for table in tables {
                for (key, value) in table {
                    let (key, value) = (key.as_ref(), value.as_ref());
                    // SAFETY: database, options and handle are live; key and value are valid for their lengths.
                    library.checked(|e| unsafe {
                        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
                        (s.put_cf)(self.db, self.write_options, cf, k, key.len(), v, value.len(), e);
                    })?;
                }
                self.flush_family(cf)?;
            }
            // SAFETY: database and handle are live; null keys mean no bound.
            unsafe { (s.compact_range_cf)(self.db, cf, ptr::null(), 0, ptr::null(), 0) };
            // SAFETY: as above.
            library.checked(|e| unsafe { (s.drop_column_family)(self.db, cf, e) })
        };
        let done = write();
        // SAFETY: made above, destroyed once, before the database is closed.
        unsafe { (s.column_family_handle_destroy)(cf) };
        done
    }

    /// Level and size of each table.
    pub fn tables(&self) -> Vec<(usize, u64)> {
        let s = &self.library.symbols;
        // SAFETY: the database is open; the result belongs to us.
        let files = unsafe { (s.livefiles)(self.db) };
        // SAFETY: the list is live; indexes are below its count.
        let out = unsafe {
            (0..(s.livefiles_count)(files))
                .map(|i| ((s.livefiles_level)(files, i).max(0) as usize, (s.livefiles_size)(files, i) as u64))
                .collect()
        };
        // SAFETY: made above, destroyed once.
        unsafe { (s.livefiles_destroy)(files) };
        out
    }

    /// Looks up a key and passes its value without copying it.
    #[inline]
    pub fn get(&self, family: usize, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
        let (s, cf) = (&self.library.symbols, self.families[family]);
        let slice = self.library.checked(|e| {
            // SAFETY: the database is open, the options are live, the key is readable for its length.
            unsafe { (s.get_pinned_cf)(self.db, self.read_options, cf, key.as_ptr().cast(), key.len(), e) }
        })?;
        if slice.is_null() {
            return Ok(false);
        }
        let mut len = 0;
        // SAFETY: the slice is live; the value is readable for the length that the call gives.
        unsafe {
            let data = (s.pinnableslice_value)(slice, &raw mut len);
            value(bytes(data, len));
            (s.pinnableslice_destroy)(slice);
        }
        Ok(true)
    }

    /// An iterator over everything in a column family.
    pub fn iterator(&self, family: usize) -> Iter<'_> {
        let cf = self.families[family];
        // SAFETY: the database is open and the options are live as long as `self`, which the iterator borrows.
        let raw = unsafe { (self.library.symbols.create_iterator_cf)(self.db, self.read_options, cf) };
        Iter { db: self, raw }
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch<'_> {
        // SAFETY: no arguments; the result belongs to us.
        Batch { db: self, raw: unsafe { (self.library.symbols.writebatch_create)() } }
    }

    /// Buffers for lookups of up to `max` keys at once.
    pub fn multi(&self) -> Multi<'_> {
        Multi {
            db: self,
            keys: vec![],
            lens: vec![],
            values: vec![],
            value_lens: vec![],
            slices: vec![],
            errors: vec![],
        }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let s = &self.library.symbols;
        // SAFETY: each was made at opening and is destroyed once; sessions borrow `self`, so none is left.
        unsafe {
            (s.writeoptions_destroy)(self.write_options);
            (s.readoptions_destroy)(self.read_options);
            self.families.iter().for_each(|cf| (s.column_family_handle_destroy)(*cf));
            (s.close)(self.db);
        }
    }
}

/// # Safety
/// `data` is readable for `len` bytes as long as the result lives, or `len` is 0.
pub(crate) unsafe fn bytes<'a>(data: *const c_char, len: usize) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast(), len) }
}

/// A write batch.
pub struct Batch<'a> {
    db: &'a Db,
    raw: Obj,
}

impl Batch<'_> {
    /// Adds a put.
    #[inline]
    pub fn put(&mut self, family: usize, key: &[u8], value: &[u8]) {
        let (cf, k, v) = (self.db.families[family], key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the batch is live; key and value are readable for their lengths and are copied.
        unsafe { (self.db.library.symbols.writebatch_put_cf)(self.raw, cf, k, key.len(), v, value.len()) };
    }

    /// Adds a merge operand.
    pub fn merge(&mut self, family: usize, key: &[u8], value: &[u8]) {
        let (cf, k, v) = (self.db.families[family], key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: as in `put`.
        unsafe { (self.db.library.symbols.writebatch_merge_cf)(self.raw, cf, k, key.len(), v, value.len()) };
    }

    /// Adds a deletion.
    pub fn delete(&mut self, family: usize, key: &[u8]) {
        let cf = self.db.families[family];
        // SAFETY: as in `put`.
        unsafe { (self.db.library.symbols.writebatch_delete_cf)(self.raw, cf, key.as_ptr().cast(), key.len()) };
    }

    /// Writes the batch and empties it, even after an error.
    #[inline]
    pub fn commit(&mut self) -> Result<(), String> {
        let s = &self.db.library.symbols;
        // SAFETY: database, options and batch are live.
        let done = self.db.library.checked(|e| unsafe { (s.write)(self.db.db, self.db.write_options, self.raw, e) });
        // SAFETY: the batch is live.
        unsafe { (s.writebatch_clear)(self.raw) };
        done
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // SAFETY: made by writebatch_create, destroyed once.
        unsafe { (self.db.library.symbols.writebatch_destroy)(self.raw) };
    }
}

/// An iterator.
pub struct Iter<'a> {
    db: &'a Db,
    raw: Obj,
}

impl Iter<'_> {
    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        // SAFETY: the iterator is live and the key readable for its length.
        unsafe { (self.db.library.symbols.iter_seek)(self.raw, key.as_ptr().cast(), key.len()) };
    }

    /// Moves to the first or the last key.
    pub fn seek_to_end(&mut self, last: bool) {
        let s = &self.db.library.symbols;
        let f = if last { s.iter_seek_to_last } else { s.iter_seek_to_first };
        // SAFETY: the iterator is live.
        unsafe { f(self.raw) };
    }

    /// Moves to the next or the previous key. The iterator must be on an entry.
    #[inline]
    pub fn step(&mut self, back: bool) {
        let s = &self.db.library.symbols;
        let f = if back { s.iter_prev } else { s.iter_next };
        // SAFETY: the iterator is live.
        unsafe { f(self.raw) };
    }

    /// Key and value of the current entry.
    #[inline]
    pub fn item(&self) -> Option<(&[u8], &[u8])> {
        let s = &self.db.library.symbols;
        // SAFETY: the iterator is live; key and value are asked for only where it stands on an entry, and stay
        // readable until it moves, which needs `&mut self`.
        unsafe {
            if (s.iter_valid)(self.raw) == 0 {
                return None;
            }
            let (mut key_len, mut value_len) = (0, 0);
            let key = (s.iter_key)(self.raw, &raw mut key_len);
            let value = (s.iter_value)(self.raw, &raw mut value_len);
            Some((bytes(key, key_len), bytes(value, value_len)))
        }
    }

    /// The error that ended the iteration, if any.
    pub fn status(&self) -> Result<(), String> {
        // SAFETY: the iterator is live.
        self.db.library.checked(|e| unsafe { (self.db.library.symbols.iter_get_error)(self.raw, e) })
    }
}

impl Drop for Iter<'_> {
    fn drop(&mut self) {
        // SAFETY: made by create_iterator, destroyed once.
        unsafe { (self.db.library.symbols.iter_destroy)(self.raw) };
    }
}

/// Lookups of many keys in one call. Reuses its lists between calls.
pub struct Multi<'a> {
    db: &'a Db,
    keys: Vec<*const c_char>,
    lens: Vec<usize>,
    values: Vec<*mut c_char>,
    value_lens: Vec<usize>,
    slices: Vec<Obj>,
    errors: Vec<*mut c_char>,
}

impl Multi<'_> {
    /// Looks up `keys` in the default column family, with RocksDB's batched call or with the older one that copies.
    /// Returns how many exist and the bytes of their values.
    pub fn get(&mut self, keys: &[Vec<u8>], batched: bool) -> Result<(u64, u64), String> {
        let (library, n) = (&self.db.library, keys.len());
        let s = &library.symbols;
        self.keys.clear();
        self.lens.clear();
        for key in keys {
            self.keys.push(key.as_ptr().cast());
            self.lens.push(key.len());
        }
        for list in [&mut self.values, &mut self.errors] {
            list.clear();
            list.resize(n, ptr::null_mut());
        }
        self.value_lens.clear();
        self.value_lens.resize(n, 0);
        self.slices.clear();
        self.slices.resize(n, ptr::null_mut());
        let (db, read) = (self.db.db, self.db.read_options);
        let (k, l, e) = (self.keys.as_ptr(), self.lens.as_ptr(), self.errors.as_mut_ptr());
        // SAFETY: every list has `n` places; the keys are readable for their lengths; the database is open.
        unsafe {
            if batched {
                (s.batched_multi_get_cf)(db, read, self.db.families[0], n, k, l, self.slices.as_mut_ptr(), e, false);
            } else {
                (s.multi_get)(db, read, n, k, l, self.values.as_mut_ptr(), self.value_lens.as_mut_ptr(), e);
            }
        }
        let (mut found, mut bytes, mut failed) = (0, 0, None);
        for i in 0..n {
            if !self.errors[i].is_null() {
                failed = Some(library.take_text(self.errors[i]));
            }
            if batched && !self.slices[i].is_null() {
                let mut len = 0;
                // SAFETY: the slice is live, ours, and destroyed once.
                unsafe {
                    (s.pinnableslice_value)(self.slices[i], &raw mut len);
                    (s.pinnableslice_destroy)(self.slices[i]);
                }
                (found, bytes) = (found + 1, bytes + len as u64);
            } else if !batched && !self.values[i].is_null() {
                // SAFETY: the value came from the library's malloc, is ours, and is freed once.
                unsafe { (s.free)(self.values[i].cast()) };
                (found, bytes) = (found + 1, bytes + self.value_lens[i] as u64);
            }
        }
        failed.map_or(Ok((found, bytes)), Err)
    }
}
