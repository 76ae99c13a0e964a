//! The control channel for peers that are hostile: what the fuzz targets of `rockmill-fuzz` call.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rockmill::internals::{DeviceExtent, RemoteUsage};
use rockmill_io::Clock;

use crate::channel::Channel;
use crate::external::ExternalInputs;
use crate::message::{HEAD_BYTES, Message};
use crate::pool::Ticket;
use crate::{Secrets, VERSION};

/// The names that both sides have here.
pub const NAMES: [&str; 2] = ["nqn.2026-11.test:store", "nqn.2026-11.test:worker"];
/// How long a side waits for the next message when both know each other.
const WAIT: Duration = Duration::from_secs(5);

/// Decodes the body of a message, encodes the message again, and decodes that. `None` if the bytes are no message.
///
/// # Errors
/// What was decoded cannot be encoded, or comes back as another message: neither may be.
pub fn recode(body: &[u8]) -> Option<io::Result<()>> {
    let message = Message::decode(body).ok()?;
    let again = message.encode().and_then(|frame| {
        let body = frame.get(HEAD_BYTES..).unwrap_or_default();
        match Message::decode(body).map_err(io::Error::other)? {
            again if again == message => Ok(()),
            again => Err(io::Error::other(format!("{} became {}", message.kind(), again.kind()))),
        }
    });
    Some(again)
}

/// What a side took from its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The greeting was complete.
    pub greeted: bool,
    /// Messages after the greeting.
    pub messages: u64,
    /// The most bytes of memory for what had come, measured after the greeting and after each message.
    pub memory: usize,
}

/// Plays a side on a socket until the peer ends the connection or says nonsense: the worker's or the store's, with
/// secrets or without.
///
/// # Errors
/// The socket's, before anything is said.
pub fn play(socket: TcpStream, is_worker: bool, secrets: Option<&Secrets>, clock: Arc<dyn Clock>) -> io::Result<Taken> {
    let mut channel = Channel::new(socket, clock)?;
    let [store, worker] = NAMES;
    let greeted = match is_worker {
        true => channel.greet_store(worker, secrets, &|| false),
        false => channel.greet_worker(store, secrets, &|| false),
    };
    let mut taken = Taken { greeted: greeted.is_ok(), messages: 0, memory: channel.memory() };
    while taken.greeted {
        let message = channel.receive(WAIT);
        taken.memory = taken.memory.max(channel.memory());
        match message {
            Ok(Some(_)) => taken.messages += 1,
            Ok(None) | Err(_) => break,
        }
    }
    Ok(taken)
}

/// A frame of each kind of message, those of a greeting first: a store's Hello, a worker's Welcome.
#[must_use]
pub fn frames(authenticates: bool) -> Vec<Vec<u8>> {
    let [store, worker] = NAMES.map(str::to_owned);
    let external = ExternalInputs {
        address: ([127, 0, 0, 1], 4420).into(),
        subsystem: worker.clone(),
        namespace: 7,
        extents: vec![DeviceExtent { offset: 0, device_offset: 8192, len: 4096 }],
    };
    let offer = |ticket, external| Message::Offer {
        epoch: 1,
        ticket,
        subsystem: worker.clone(),
        port: 4421,
        silence_ms: 10_000,
        external,
        spec: vec![9; 40],
    };
    let usage = RemoteUsage { cpu_micros: 1, round_trips: 2, sent_bytes: 3, received_bytes: 4 };
    let all = [
        Message::Hello { version: VERSION, name: store.clone(), authenticates },
        Message::Welcome { version: VERSION, name: worker.clone(), authenticates },
        Message::Auth(vec![1, 2, 3]),
        offer(None, None),
        offer(Some(Ticket([7; 16])), Some(external)),
        Message::Accepted { epoch: 1 },
        Message::Refused { epoch: 1, reason: "no".to_owned() },
        Message::Progress { epoch: 1, bytes: 5 },
        Message::Done { epoch: 1, usage, result: vec![8; 40] },
        Message::Cancel { epoch: 1 },
        Message::Ping { number: 6 },
        Message::Pong { number: 6 },
        Message::Idle,
    ];
    all.iter().filter_map(|message| message.encode().ok()).collect()
}
