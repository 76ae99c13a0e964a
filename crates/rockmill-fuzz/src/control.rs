//! The control channel between a store and a worker: bytes as messages, and peers that say what they like.
//!
//! `control_channel` takes a script: whose side it is that hears it, then what the peer sends, piece by piece. So
//! inputs pass the checksums and the greeting. One kind of piece is sent as it is.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};

use rockmill_io::{Clock, SystemClock};
use rockmill_offload::Secrets;
use rockmill_offload::hostile::{self, NAMES, Taken};

/// Bytes of memory that a side may have for what has come, besides twice what was sent.
const MEMORY: usize = 256 << 10;

/// The body of a message: no more than its bytes is believed, and what is a message comes back as it was.
pub fn message(data: &[u8]) {
    let recoded = hostile::recode(data);
    assert!(!matches!(recoded, Some(Err(_))), "{recoded:?}");
}

/// Both sides of a connection.
fn pair() -> (TcpStream, TcpStream) {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    (listener.accept().expect("the same").0, peer)
}

/// The secrets of the store and the worker.
fn secrets() -> &'static [Secrets; 2] {
    static SECRETS: OnceLock<[Secrets; 2]> = OnceLock::new();
    SECRETS.get_or_init(|| {
        let [store, worker] = NAMES;
        let files = Secrets::generate(store, worker).expect("random bytes");
        files.map(|text| {
            // Without keys of TLS.
            let lines = text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
            Secrets::parse(&lines.collect::<Vec<_>>().join("\n")).expect("what was made")
        })
    })
}

/// A peer that begins with a right greeting, or not, and goes on as the script says.
pub fn channel(data: &[u8]) {
    let Some((&choice, script)) = data.split_first() else { return };
    let (is_worker, has_secrets, greets) = (choice & 1 != 0, choice & 2 != 0, choice & 4 != 0);
    let mut sent = Vec::new();
    if greets {
        // A worker hears Hello, a store Welcome.
        sent.extend_from_slice(&hostile::frames(has_secrets)[usize::from(!is_worker)]);
    }
    let mut rest = script;
    while let Some((head, after)) = rest.split_first_chunk::<3>() {
        let [kind, low, high] = *head;
        let (body, after) = after.split_at(usize::from(u16::from_le_bytes([low, high])).min(after.len()));
        rest = after;
        let (length, checksum) = (body.len() as u32, crc32c::crc32c(body));
        match kind % 4 {
            0 | 1 => {
                sent.extend(length.to_le_bytes());
                sent.extend(checksum.to_le_bytes());
                sent.extend_from_slice(body);
            }
            // A length that is not so.
            2 => {
                sent.extend((u32::from(kind) << 20 | length).to_le_bytes());
                sent.extend(checksum.to_le_bytes());
                sent.extend_from_slice(body);
            }
            _ => sent.extend_from_slice(body),
        }
    }
    sent.extend_from_slice(rest);
    let taken = hear(&sent, is_worker, has_secrets);
    assert!(taken.memory <= 2 * sent.len() + MEMORY, "{} bytes of memory for {}", taken.memory, sent.len());
    // Nobody is known who has proven nothing.
    assert!(!(taken.greeted && has_secrets), "a peer without a secret was taken for one that has it");
}

/// What a side takes of these bytes.
fn hear(sent: &[u8], is_worker: bool, has_secrets: bool) -> Taken {
    let (mine, mut peer) = pair();
    // They fit into the socket, and nothing comes after them. The side may have closed it by then.
    let _ = peer.write_all(sent);
    let _ = peer.shutdown(Shutdown::Write);
    let secrets = has_secrets.then(|| &secrets()[usize::from(is_worker)]);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    hostile::play(mine, is_worker, secrets, clock).expect("a socket")
}

/// Inputs to begin with.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let bodies = |authenticates| hostile::frames(authenticates).into_iter().map(|frame| frame[8..].to_vec());
    if target == "control_message" {
        return bodies(true).chain(bodies(false)).collect();
    }
    let mut out = Vec::new();
    for choice in 0..8u8 {
        let mut script = vec![choice];
        for (kind, body) in (0..4u8).cycle().zip(bodies(choice & 2 != 0)) {
            // After a greeting of its own, without one; as it is, framed and with a wrong length.
            let kind = if choice & 4 != 0 { 0 } else { kind };
            script.push(kind);
            script.extend((body.len() as u16).to_le_bytes());
            script.extend(body);
        }
        out.push(script);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script reaches what it is to reach.
    #[test]
    fn a_right_greeting_is_one_and_secrets_are_asked_for() {
        for is_worker in [false, true] {
            let frames = hostile::frames(false);
            let sent = [&frames[usize::from(!is_worker)][..], &frames[2..].concat()].concat();
            let taken = hear(&sent, is_worker, false);
            assert_eq!((taken.greeted, taken.messages), (true, frames.len() as u64 - 2));
            let frames = hostile::frames(true);
            assert!(!hear(&frames[usize::from(!is_worker)], is_worker, true).greeted);
        }
    }
}
