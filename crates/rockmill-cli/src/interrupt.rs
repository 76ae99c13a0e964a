//! Handling of Ctrl-C and of the system's requests to end: long commands tell what is kept.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::output;

/// Signals that ask a program to terminate.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Records that `load` has written.
static RECORDS: AtomicU64 = AtomicU64::new(0);

/// Notes how many records are written.
pub fn note_records(n: u64) {
    RECORDS.store(n, Ordering::Relaxed);
}

/// Prints a line about what the command leaves when it is asked to end.
pub fn say_at_end(what: String) {
    on_end(move || say(&what));
}

/// The same for `load`, whose records count.
pub fn say_records_at_end(logged: bool) {
    on_end(move || {
        let count = RECORDS.load(Ordering::Relaxed);
        let records =
            format!("{} {} written", output::plural(count, "record"), if count == 1 { "was" } else { "were" });
        say(&match logged {
            true => format!("{records} and kept; loading the input again is safe"),
            false => format!("{records} without a log; records not yet flushed to a table are lost"),
        });
    });
}

fn say(what: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        // Below the bar, and the ^C that the terminal shows. If that fails there is nobody to tell.
        let _ = stderr.write_all(b"\n");
    }
    output::tell(&format!("interrupted: {what}"));
}

/// Has `act` called, once, when the command is asked to end, and ends the process then with the exit status that shells
/// give to a signal. To be called before there is any other thread: those that are made later leave the signals to the
/// one that waits for them. So do processes that are made later, unless they change their signal mask.
pub fn on_end(act: impl FnOnce() + Send + 'static) {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `set` is a valid place for a set, which `sigemptyset` fills.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in ENDING.into_iter().filter(|&signal| !is_ignored(signal)) {
        // SAFETY: the set was filled above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: the set is filled; the old mask is not asked for.
    if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) } != 0 {
        return; // the signals end the process as usual
    }
    // SAFETY: it was filled. A set is plain bits.
    let set = unsafe { set.assume_init() };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both are valid for the call.
        if unsafe { libc::sigwait(&raw const set, &raw mut signal) } == 0 {
            act();
            std::process::exit(128 + signal);
        }
    });
}

/// True if the parent process wants this signal to be ignored: `nohup`, and shells for background jobs.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given; `action` is a valid place for the present one.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0;
    // SAFETY: the call filled it, or it is zeroed, which is the default action.
    !failed && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}
