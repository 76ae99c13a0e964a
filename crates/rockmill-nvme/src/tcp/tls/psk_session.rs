//! Pre-shared keys of either hash, by functions of OpenSSL that the crate `openssl` does not have: the callbacks that
//! it has make every key one for SHA-256. Of this crate only this module has `unsafe`.
//!
//! A host offers one key, with the one cipher suite of that key's hash. A controller reads in the ClientHello which key
//! the host names, and then accepts that key and its suite alone. So the key decides the suite, never the other way
//! round. (OpenSSL by itself chooses the suite first, and ignores a key that does not fit.)

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_uchar};
use std::mem;
use std::ptr;
use std::slice;
use std::sync::{Arc, OnceLock};

use foreign_types::{ForeignType, ForeignTypeRef};
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{ClientHelloResponse, Ssl, SslContextBuilder, SslRef, SslSession};
use openssl_sys::{EVP_MD, SSL, SSL_CIPHER, SSL_CTX, SSL_SESSION, TLS1_3_VERSION};

use crate::auth::Hash;
use crate::psk::Psk;

/// The ClientHello's extension that names keys (RFC 8446, section 4.2.11).
const PRE_SHARED_KEY: u32 = 41;

/// A cipher suite of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suite {
    name: &'static CStr,
    code: [u8; 2],
}

impl Suite {
    /// The suite for keys of this hash. Each has one, as in NVMe/TCP Transport 1.0, "Cipher Suites".
    pub fn of(hash: Hash) -> Self {
        match hash {
            Hash::Sha256 => Self { name: c"TLS_AES_128_GCM_SHA256", code: [0x13, 0x01] },
            // There are no keys of TLS for SHA-512.
            Hash::Sha384 | Hash::Sha512 => Self { name: c"TLS_AES_256_GCM_SHA384", code: [0x13, 0x02] },
        }
    }

    pub fn name(self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }
}

/// The key of a connection.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub psk: Arc<Psk>,
    /// The host also offers the key's cipher suite.
    pub has_suite: bool,
}

impl Chosen {
    pub fn suite(&self) -> Suite {
        Suite::of(self.psk.hash())
    }
}

/// The index under which a connection stores its key.
fn index() -> Result<Index<Ssl, Chosen>, ErrorStack> {
    static INDEX: OnceLock<Index<Ssl, Chosen>> = OnceLock::new();
    match INDEX.get() {
        Some(index) => Ok(*index),
        None => {
            let made = Ssl::new_ex_index()?;
            Ok(*INDEX.get_or_init(|| made))
        }
    }
}

/// The key of a connection: on a host's side the one that it [offers](offer), on a controller's side the one that the
/// host names, if it is known. Nothing is proven until the handshake is complete.
pub(super) fn chosen(ssl: &SslRef) -> Option<&Chosen> {
    ssl.ex_data(index().ok()?)
}

/// Has a connection to a controller offer this key. Its context must [be able to](let_offer).
pub(super) fn offer(ssl: &mut SslRef, psk: &Arc<Psk>) -> Result<(), ErrorStack> {
    ssl.set_ex_data(index()?, Chosen { psk: Arc::clone(psk), has_suite: true });
    Ok(())
}

/// Connections of this context can [`offer`] a key.
pub(super) fn let_offer(context: &mut SslContextBuilder) {
    // SAFETY: the context lives, and the function is of the type that OpenSSL calls.
    unsafe { SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(use_session)) };
}

/// Connections of this context accept these keys, by their identities.
pub(super) fn accept(context: &mut SslContextBuilder, known: BTreeMap<Vec<u8>, Arc<Psk>>) -> Result<(), ErrorStack> {
    let index = index()?;
    // Called again after a HelloRetryRequest. OpenSSL refuses a suite that is another then.
    context.set_client_hello_callback(move |ssl, _| {
        let suites = ssl.client_hello_ciphers().unwrap_or_default();
        let named = identities(pre_shared_key(ssl)).filter_map(|identity| known.get(identity)).map(|psk| {
            let code = Suite::of(psk.hash()).code;
            Chosen { psk: Arc::clone(psk), has_suite: suites.chunks_exact(2).any(|suite| *suite == code) }
        });
        // The first that can be used, or else the first, for the error.
        if let Some(chosen) = named.min_by_key(|chosen| !chosen.has_suite) {
            // SAFETY: the connection lives, and the name ends with a zero.
            let done = unsafe { openssl_sys::SSL_set_ciphersuites(ssl.as_ptr(), chosen.suite().name.as_ptr()) };
            if done != 1 {
                return Err(ErrorStack::get());
            }
            ssl.set_ex_data(index, chosen);
        }
        Ok(ClientHelloResponse::SUCCESS)
    });
    // SAFETY: the context lives, and the function is of the type that OpenSSL calls.
    unsafe { SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find_session)) };
    Ok(())
}

/// The contents of the extension that names keys; empty if there is none, and outside the ClientHello callback.
fn pre_shared_key(ssl: &SslRef) -> &[u8] {
    let (mut data, mut len) = (ptr::null(), 0);
    // SAFETY: the connection lives; OpenSSL sets both places if it returns 1.
    let is_there =
        unsafe { openssl_sys::SSL_client_hello_get0_ext(ssl.as_ptr(), PRE_SHARED_KEY, &raw mut data, &raw mut len) };
    if is_there != 1 || data.is_null() {
        return &[];
    }
    // SAFETY: `len` bytes of the ClientHello, which the connection owns until it goes on; that takes it mutably.
    unsafe { slice::from_raw_parts(data, len) }
}

/// The identities in the extension, up to the first that is cut off; OpenSSL refuses such a ClientHello later.
fn identities(extension: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = counted(extension).map_or(&[][..], |(list, _)| list);
    std::iter::from_fn(move || {
        let (identity, more) = counted(rest)?;
        // The age of a ticket, which such keys do not have.
        rest = more.get(4..).unwrap_or_default();
        Some(identity)
    })
}

/// Bytes after their number, and what comes after them.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
}

/// A session that stands for a key. Each connection gets its own: OpenSSL changes them, and they expire.
fn session(ssl: &SslRef, psk: &Psk) -> Option<SslSession> {
    let (suite, key) = (Suite::of(psk.hash()), psk.key());
    // SAFETY: no arguments.
    let made = unsafe { SSL_SESSION_new() };
    if made.is_null() {
        return None;
    }
    // SAFETY: it is a new session that nothing else owns.
    let session = unsafe { SslSession::from_ptr(made) };
    // SAFETY: the connection lives, and a suite's code is the two bytes that OpenSSL reads. Suites are constants of
    // OpenSSL, so the pointer stays good; null is checked.
    let cipher = unsafe { SSL_CIPHER_find(ssl.as_ptr(), suite.code.as_ptr()) };
    // SAFETY: the session lives and is ours alone; OpenSSL copies the key, whose length it gets.
    let is_done = !cipher.is_null()
        && unsafe {
            SSL_SESSION_set1_master_key(made, key.as_ptr(), key.len()) == 1
                && SSL_SESSION_set_cipher(made, cipher) == 1
                && SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1
        };
    is_done.then_some(session)
}

/// Gives a session to OpenSSL, which frees it.
fn give(session: SslSession) -> *mut SSL_SESSION {
    let given = session.as_ptr();
    mem::forget(session);
    given
}

/// OpenSSL asks a host's side for the key to offer. The digest is that of the suite after a HelloRetryRequest; there is
/// only one suite. Returns 0 for an error.
extern "C" fn use_session(
    ssl: *mut SSL,
    _: *const EVP_MD,
    identity: *mut *const c_uchar,
    identity_len: *mut usize,
    out: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL calls this with its connection.
    let ssl = unsafe { SslRef::from_ptr(ssl) };
    let Some(chosen) = chosen(ssl) else { return 0 };
    let Some(session) = session(ssl, &chosen.psk) else { return 0 };
    let named = chosen.psk.identity().as_bytes();
    // SAFETY: these are places for the results. OpenSSL copies the identity at once, which the connection keeps, and
    // takes over the session.
    unsafe {
        *identity = named.as_ptr();
        *identity_len = named.len();
        *out = give(session);
    }
    1
}

/// OpenSSL asks a controller's side for a key that the host names. No session is not an error: the host may name
/// others. Returns 0 for an error.
extern "C" fn find_session(
    ssl: *mut SSL,
    identity: *const c_uchar,
    identity_len: usize,
    out: *mut *mut SSL_SESSION,
) -> c_int {
    if identity.is_null() {
        return 0;
    }
    // SAFETY: OpenSSL calls this with its connection, and with an identity of this length.
    let (ssl, identity) = unsafe { (SslRef::from_ptr(ssl), slice::from_raw_parts(identity, identity_len)) };
    let found = match chosen(ssl).filter(|chosen| chosen.psk.identity().as_bytes() == identity) {
        None => ptr::null_mut(),
        Some(chosen) => match session(ssl, &chosen.psk) {
            None => return 0,
            Some(session) => give(session),
        },
    };
    // SAFETY: it is a place for the result. OpenSSL takes over the session.
    unsafe { *out = found };
    1
}

type UseSession =
    extern "C" fn(*mut SSL, *const EVP_MD, *mut *const c_uchar, *mut usize, *mut *mut SSL_SESSION) -> c_int;
type FindSession = extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;

// SAFETY: as in openssl/ssl.h of OpenSSL 1.1.1 and 3; `openssl-sys` links the library.
unsafe extern "C" {
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: Option<UseSession>);
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: Option<FindSession>);
    fn SSL_CIPHER_find(ssl: *mut SSL, code: *const c_uchar) -> *const SSL_CIPHER;
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut SSL_SESSION, key: *const c_uchar, bytes: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_up_to_the_first_that_is_cut_off() {
        let all = |bytes: &[u8]| identities(bytes).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let two = [0, 15, 0, 2, b'a', b'b', 1, 2, 3, 4, 0, 1, b'c', 9, 9, 9, 9, 0, 33, 32];
        assert_eq!(all(&two), [b"ab".to_vec(), b"c".to_vec()]);
        // The list is longer than the extension; an identity is longer than the list; no age; nothing at all.
        assert!(all(&two[..16]).is_empty());
        assert_eq!(all(&[0, 10, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 9, b'c']), [b"ab".to_vec()]);
        assert_eq!(all(&[0, 10, 0, 2, b'a', b'b', 0, 0, 0, 0, 255, 255]), [b"ab".to_vec()]);
        assert_eq!(all(&[0, 4, 0, 2, b'a', b'b']), [b"ab".to_vec()]);
        assert!(all(&[0, 0]).is_empty() && all(&[0]).is_empty() && all(&[]).is_empty());
    }
}
