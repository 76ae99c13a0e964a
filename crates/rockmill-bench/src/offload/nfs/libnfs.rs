//! The C library libnfs, loaded at run time: sessions with a server of NFS version 3, with several reads and writes on
//! their way at once. All `unsafe` of NFS is here.
//!
//! A session belongs to one thread. The library calls back only from calls that this thread makes, so a callback finds
//! no borrow of the session's state: it moves one transfer to those that have ended, and does nothing else.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::mem::transmute;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use rockmill::internals::DeviceOp;

/// The library's name for the loader, Debian's libnfs13. Its next versions have other signatures.
const LIBRARY: &CStr = c"libnfs.so.13";
/// How long a session waits at once.
const POLL_MS: c_int = 1000;
/// Permission bits of new files.
const MODE: c_int = 0o600;

/// An object of the library, known only by its address.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

type Context = *mut Opaque;
type Handle = *mut Opaque;
// SAFETY: only the library calls one, as the contract of `ended` says.
type Callback = unsafe extern "C" fn(c_int, Context, *mut c_void, *mut c_void);

/// `struct nfs_url`.
#[repr(C)]
struct Url {
    server: *mut c_char,
    path: *mut c_char,
    file: *mut c_char,
}

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions in use, by their names in libnfs.h.
        struct Functions {
            // SAFETY: calling one is sound as far as its type is the one in libnfs.h; each call says why its arguments
            // are.
            $($name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            /// Finds every function; the error is the name of the first missing one.
            fn load(handle: NonNull<c_void>) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the handle is of a library that stays loaded and the name ends in a zero byte.
                        let address = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr().cast()) };
                        if address.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: a function of this name has this signature in libnfs.h of this version.
                        unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    nfs_init_context: fn() -> Context;
    nfs_destroy_context: fn(Context);
    nfs_parse_url_dir: fn(Context, *const c_char) -> *mut Url;
    nfs_destroy_url: fn(*mut Url);
    nfs_set_autoreconnect: fn(Context, c_int);
    nfs_mount: fn(Context, *const c_char, *const c_char) -> c_int;
    nfs_get_error: fn(Context) -> *const c_char;
    nfs_get_readmax: fn(Context) -> u64;
    nfs_get_writemax: fn(Context) -> u64;
    nfs_get_fd: fn(Context) -> c_int;
    nfs_which_events: fn(Context) -> c_int;
    nfs_service: fn(Context, c_int) -> c_int;
    nfs_open2: fn(Context, *const c_char, c_int, c_int, *mut Handle) -> c_int;
    nfs_fsync: fn(Context, Handle) -> c_int;
    nfs_close: fn(Context, Handle) -> c_int;
    nfs_pread_async: fn(Context, Handle, u64, u64, Callback, *mut c_void) -> c_int;
    nfs_pwrite_async: fn(Context, Handle, u64, u64, *const c_void, Callback, *mut c_void) -> c_int;
}

/// The loaded library. It is never unloaded.
pub struct Library {
    functions: Functions,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// Loads it.
    ///
    /// # Errors
    /// It is not installed, or is another version.
    pub fn load() -> Result<Arc<Self>, String> {
        let name = LIBRARY.to_string_lossy();
        // SAFETY: the name ends in a zero byte. Loading runs the library's initialisers, as the caller intends.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let missing = || format!("{name} cannot be loaded: install libnfs (Debian's package libnfs13)");
        let handle = NonNull::new(handle).ok_or_else(missing)?;
        let functions = Functions::load(handle).map_err(|function| format!("{name} has no function {function}"))?;
        Ok(Arc::new(Self { functions }))
    }
}

/// Where a caller that waits gets the data of a read, or nothing of a write; with it the number of the piece.
pub type Reply = mpsc::Sender<(usize, io::Result<Vec<u8>>)>;

/// A read or a write. Its memory is on the heap, and stays where it is when this is moved.
#[derive(Debug)]
pub enum Transfer {
    /// Of an engine that goes on meanwhile.
    Op(DeviceOp),
    /// A piece of one that a thread waits for.
    Piece {
        /// Its data, or room for it.
        data: Vec<u8>,
        /// A read.
        reads: bool,
        /// Its number.
        piece: usize,
        /// Who waits.
        reply: Reply,
    },
}

impl Transfer {
    fn reads(&self) -> bool {
        match self {
            Self::Op(op) => op.reads,
            Self::Piece { reads, .. } => *reads,
        }
    }

    fn memory(&mut self) -> &mut [u8] {
        match self {
            Self::Op(op) => op.memory(),
            Self::Piece { data, .. } => data,
        }
    }

    /// Ends it.
    pub fn done(self, result: io::Result<()>) {
        match self {
            Self::Op(op) => op.done(result),
            Self::Piece { data, piece, reply, reads } => {
                let data = if reads { data } else { Vec::new() };
                // Nobody waits for it any more where an earlier piece failed.
                let _ = reply.send((piece, result.map(|()| data)));
            }
        }
    }
}

/// A transfer on its way.
struct Way {
    transfer: Transfer,
    /// Bytes that have to come of a read; what is missing after these becomes zeros. Of a write, all.
    least: usize,
}

#[derive(Default)]
struct State {
    on_the_way: HashMap<u64, Way>,
    ended: Vec<(Transfer, io::Result<()>)>,
    begun: u64,
}

/// What the library keeps for a transfer until it calls back.
struct Token {
    state: Rc<RefCell<State>>,
    id: u64,
}

/// A session with a server, and the files that are open in it.
pub struct Session {
    library: Arc<Library>,
    context: NonNull<Opaque>,
    /// The file, and whether it is written.
    files: Vec<(Handle, bool)>,
    state: Rc<RefCell<State>>,
}

fn text(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in a name"))
}

impl Session {
    /// Mounts what `nfs://SERVER/EXPORT?nfsport=PORT&mountport=PORT` names.
    ///
    /// # Errors
    /// A text that is no such thing, or the server's reason.
    pub fn mount(library: &Arc<Library>, url: &str) -> io::Result<Self> {
        let (functions, url_text) = (&library.functions, text(url)?);
        // SAFETY: no arguments; the result belongs to us.
        let context = NonNull::new(unsafe { (functions.nfs_init_context)() });
        let context = context.ok_or(io::ErrorKind::OutOfMemory)?;
        let session = Self { library: Arc::clone(library), context, files: Vec::new(), state: Rc::default() };
        // SAFETY: the context is live, and the text ends in a zero byte; the result belongs to us.
        let parsed = unsafe { (functions.nfs_parse_url_dir)(context.as_ptr(), url_text.as_ptr()) };
        if parsed.is_null() {
            return Err(session.error("not a URL of NFS"));
        }
        // SAFETY: the context is live. A lost connection is to fail, since a measurement with a pause is none.
        unsafe { (functions.nfs_set_autoreconnect)(context.as_ptr(), 0) };
        // SAFETY: the URL is live and has a server and a path, texts that end in zero bytes: parsing fails otherwise.
        let status = unsafe { (functions.nfs_mount)(context.as_ptr(), (*parsed).server, (*parsed).path) };
        // SAFETY: it came from the library and is not used again.
        unsafe { (functions.nfs_destroy_url)(parsed) };
        if status < 0 { Err(session.error(&format!("cannot mount {url}"))) } else { Ok(session) }
    }

    fn functions(&self) -> &Functions {
        &self.library.functions
    }

    fn error(&self, what: &str) -> io::Error {
        // SAFETY: the context is live.
        let said = unsafe { (self.functions().nfs_get_error)(self.context.as_ptr()) };
        let said = match said.is_null() {
            true => "no reason is given".into(),
            // SAFETY: the library's texts end in a zero byte, and this one lives until the next call.
            false => unsafe { CStr::from_ptr(said) }.to_string_lossy(),
        };
        io::Error::other(format!("NFS: {what}: {said}"))
    }

    /// Bytes of one transfer, at most, as the server says.
    pub fn transfer_max(&self) -> usize {
        let (functions, context) = (self.functions(), self.context.as_ptr());
        // SAFETY: the context is live.
        let most = unsafe { (functions.nfs_get_readmax)(context).min((functions.nfs_get_writemax)(context)) };
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Opens a file below the export; creates it, or empties it, to be written.
    ///
    /// # Errors
    /// The server's reason.
    pub fn open(&mut self, path: &str, writes: bool) -> io::Result<usize> {
        let flags = if writes { libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC } else { libc::O_RDONLY };
        let (name, mut handle) = (text(path)?, ptr::null_mut());
        let (open, context) = (self.functions().nfs_open2, self.context.as_ptr());
        // SAFETY: the context is live, the path ends in a zero byte, and `handle` is a place for one address.
        let status = unsafe { open(context, name.as_ptr(), flags, MODE, &raw mut handle) };
        if status < 0 || handle.is_null() {
            return Err(self.error(&format!("cannot open {path}")));
        }
        self.files.push((handle, writes));
        Ok(self.files.len() - 1)
    }

    /// Transfers that have not been taken yet.
    pub fn on_the_way(&self) -> usize {
        let state = self.state.borrow();
        state.on_the_way.len() + state.ended.len()
    }

    /// Begins a transfer, of which `least` bytes have to come.
    pub fn begin(&mut self, file: usize, offset: u64, least: usize, mut transfer: Transfer) {
        let Some(&(handle, _)) = self.files.get(file) else {
            return transfer.done(Err(io::ErrorKind::NotFound.into()));
        };
        let (context, reads) = (self.context.as_ptr(), transfer.reads());
        let memory = transfer.memory();
        let (memory, count) = (memory.as_ptr(), memory.len() as u64);
        let id = {
            let mut state = self.state.borrow_mut();
            state.begun += 1;
            let id = state.begun;
            state.on_the_way.insert(id, Way { transfer, least });
            id
        };
        let token = Box::into_raw(Box::new(Token { state: Rc::clone(&self.state), id })).cast::<c_void>();
        let functions = self.functions();
        let status = match reads {
            // SAFETY: context and handle are live; the callback gets the token once, in this thread.
            true => unsafe { (functions.nfs_pread_async)(context, handle, offset, count, ended, token) },
            // SAFETY: as above. The memory has `count` bytes, and stays until the callback: the transfer is kept in
            // `on_the_way`, and its memory does not move with it.
            false => unsafe {
                (functions.nfs_pwrite_async)(context, handle, offset, count, memory.cast(), ended, token)
            },
        };
        if status < 0 {
            // SAFETY: it was made above, and the library gives it to nobody when it refuses a transfer.
            drop(unsafe { Box::from_raw(token.cast::<Token>()) });
            let why = self.error("a transfer was refused");
            let mut state = self.state.borrow_mut();
            if let Some(way) = state.on_the_way.remove(&id) {
                state.ended.push((way.transfer, Err(why)));
            }
        }
    }

    /// Sends and receives what can be sent and received, and waits for that for a second, or until `wake` has something
    /// to read. False: nothing happened.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn advance(&mut self, wake: BorrowedFd<'_>) -> io::Result<bool> {
        let (functions, context) = (self.functions(), self.context.as_ptr());
        // SAFETY: the context is live.
        let (fd, events) = unsafe { ((functions.nfs_get_fd)(context), (functions.nfs_which_events)(context)) };
        let wanted = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let events = libc::c_short::try_from(events).unwrap_or(libc::POLLIN);
        let mut both = [wanted(fd, events), wanted(wake.as_raw_fd(), libc::POLLIN)];
        // SAFETY: it has two entries, which the kernel reads and writes.
        let count = unsafe { libc::poll(both.as_mut_ptr(), both.len() as libc::nfds_t, POLL_MS) };
        if count < 0 {
            let why = io::Error::last_os_error();
            return if why.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(why) };
        }
        let came = both[0].revents;
        // SAFETY: the context is live, and no borrow of the state is held, which callbacks take.
        if came != 0 && unsafe { (functions.nfs_service)(context, came.into()) } < 0 {
            return Err(self.error("the connection is lost"));
        }
        Ok(count > 0)
    }

    /// Takes the transfers that have ended.
    pub fn take_ended(&mut self) -> Vec<(Transfer, io::Result<()>)> {
        std::mem::take(&mut self.state.borrow_mut().ended)
    }

    /// Has the server make durable what was written, one commit for each file, and closes all files.
    ///
    /// # Errors
    /// The server's reason.
    pub fn finish(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for (handle, writes) in std::mem::take(&mut self.files) {
            let (functions, context) = (self.functions(), self.context.as_ptr());
            // SAFETY: context and handle are live, and no borrow of the state is held.
            if writes && unsafe { (functions.nfs_fsync)(context, handle) } < 0 {
                result = result.and(Err(self.error("cannot commit")));
            }
            // SAFETY: as above; the handle is not used again.
            if unsafe { (functions.nfs_close)(context, handle) } < 0 {
                result = result.and(Err(self.error("cannot close")));
            }
        }
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the context is live and not used again. It ends what is on its way by the callback, which finds the
        // state, since each token has a share of it. Memory of transfers lives until after this call.
        unsafe { (self.functions().nfs_destroy_context)(self.context.as_ptr()) };
        let state = std::mem::take(&mut *self.state.borrow_mut());
        let lost = || io::Error::new(io::ErrorKind::NotConnected, "the session with the NFS server is over");
        for (transfer, result) in state.ended {
            transfer.done(result);
        }
        state.on_the_way.into_values().for_each(|way| way.transfer.done(Err(lost())));
    }
}

/// Ends a transfer, as the library tells it.
///
/// # Safety
/// The token is one that `begin` gave to the library, and this is its only use. Of a read with a status above zero,
/// `data` has as many bytes.
// SAFETY: `begin` alone passes it on, and the library calls it as the contract says.
unsafe extern "C" fn ended(status: c_int, _: Context, data: *mut c_void, token: *mut c_void) {
    // SAFETY: as the contract says.
    let token = unsafe { Box::from_raw(token.cast::<Token>()) };
    let mut state = token.state.borrow_mut();
    let Some(mut way) = state.on_the_way.remove(&token.id) else { return };
    let reads = way.transfer.reads();
    let memory = way.transfer.memory();
    let result = match usize::try_from(status) {
        Err(_) => Err(io::Error::from_raw_os_error(status.saturating_neg())),
        Ok(count) if count < way.least || count > memory.len() => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            if reads && count > 0 {
                // SAFETY: as the contract says; the bytes are the library's, so they do not overlap ours.
                let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), count) };
                memory[..count].copy_from_slice(data);
            }
            if reads {
                memory[count..].fill(0);
            }
            Ok(())
        }
    };
    state.ended.push((way.transfer, result));
}
