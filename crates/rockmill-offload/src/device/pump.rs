//! The queues of a device: each has a thread, which keeps as many commands outstanding as the queue takes, and gets its
//! connection again if that is lost.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rockmill::internals::DeviceOp;
use rockmill_nvme::initiator::{HostError, Io, NamespaceInfo, QueueConfig};
use rockmill_nvme::tcp::{Reconnect, TcpHost, TcpLink};

/// Pieces of memory that a queue keeps, each of the length of a command at most.
const SPARES_MAX: usize = 8;
/// How a controller is connected to again whose connections were lost. The job's lease does not depend on it: it lives
/// as long as the control channel says so. After this time it is better to have the job done elsewhere.
pub(super) const RECONNECT: Reconnect = Reconnect {
    loss_timeout: Duration::from_secs(20),
    delay: Duration::from_millis(100),
    useless_max: 3,
    // A store listens for one job until that is over.
    while_refused: false,
};

/// How a queue gets its connection, and gets it again.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub host: Arc<TcpHost>,
    pub namespace: NamespaceInfo,
    /// I/O queues of the host.
    pub queues: u16,
    /// This one.
    pub queue: u16,
    pub change: fn(&mut QueueConfig),
}

impl Line {
    pub fn open(&self) -> Result<Io<TcpLink>, HostError> {
        self.host.io_queue_with(self.queue, self.change)
    }

    /// Connects anew after the loss of a connection of this association.
    fn open_again(&self, mut lost: u64) -> Result<Io<TcpLink>, HostError> {
        loop {
            lost = self.host.reconnect(lost, &RECONNECT, |admin| {
                admin.set_queues(self.queues)?;
                match admin.namespace(self.namespace.id)? == self.namespace {
                    true => Ok(()),
                    false => Err(HostError::Answer("its namespace is another one now")),
                }
            })?;
            match self.open() {
                Err(e) if e.is_lost() => {}
                opened => return opened,
            }
        }
    }
}

pub(super) fn failed(e: HostError) -> io::Error {
    match e {
        HostError::Io(e) => e,
        e => io::Error::other(e.to_string()),
    }
}

/// What a call gets whose connection was lost before.
pub(super) fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "a connection to the store was lost before")
}

/// An operation that takes several commands.
#[derive(Debug)]
pub(super) struct Split {
    /// `None` once it is over: the first failure ends it.
    pub op: Option<DeviceOp>,
    pub left: usize,
}

impl Split {
    /// A piece of a read has come.
    fn took(split: &Mutex<Self>, at: usize, result: io::Result<Vec<u8>>) {
        let mut state = split.lock();
        state.left = state.left.saturating_sub(1);
        let is_last = state.left == 0;
        let Some(op) = &mut state.op else { return };
        let taken = result.and_then(|data| {
            let part = op.memory().get_mut(at..).and_then(|memory| memory.get_mut(..data.len()));
            part.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(&data);
            Ok(())
        });
        let ended = if is_last || taken.is_err() { state.op.take() } else { None };
        drop(state);
        if let Some(op) = ended {
            op.done(taken);
        }
    }
}

/// What a queue is asked: one command.
#[derive(Debug)]
pub(super) struct Request {
    /// Its first block.
    pub first: u64,
    pub work: Work,
}

/// Where a caller that waits gets the data of a read, or nothing of a write; with it the number of the piece.
pub(super) type Reply = mpsc::Sender<(usize, io::Result<Vec<u8>>)>;

#[derive(Debug)]
pub(super) enum Work {
    Op(DeviceOp),
    /// A part of a read that begins `at` bytes into it.
    Part {
        of: Arc<Mutex<Split>>,
        at: usize,
        bytes: usize,
    },
    Read {
        bytes: usize,
        piece: usize,
        reply: Reply,
    },
    Write {
        data: Vec<u8>,
        piece: usize,
        reply: Reply,
    },
}

impl Request {
    fn begin(&mut self, io: &mut Io<TcpLink>, namespace: &NamespaceInfo, spare: &mut Spare) -> Result<u16, HostError> {
        let first = self.first;
        match &mut self.work {
            Work::Op(op) if op.reads => io.begin_read_into(namespace, first, spare.of(op.memory().len())),
            Work::Op(op) => {
                let mut data = spare.0.pop().unwrap_or_default();
                data.clear();
                data.extend_from_slice(op.memory());
                io.begin_write(namespace, first, data)
            }
            Work::Read { bytes, .. } | Work::Part { bytes, .. } => {
                io.begin_read_into(namespace, first, spare.of(*bytes))
            }
            Work::Write { data, .. } => io.begin_write(namespace, first, std::mem::take(data)),
        }
    }

    /// The connection was lost before it ended: takes back what another command needs. It is the same command: reads
    /// change nothing, and the store takes a write that it has already taken as done (`JobDevice::write`).
    fn begin_anew(&mut self, memory: Vec<u8>, spare: &mut Spare) {
        match &mut self.work {
            Work::Write { data, .. } => *data = memory,
            _ => spare.keep(memory),
        }
    }

    /// Tells who asked. Memory that nobody needs any more is kept.
    fn ended(self, result: Result<Vec<u8>, HostError>, spare: &mut Spare) {
        match (self.work, result) {
            (Work::Op(mut op), Ok(data)) => {
                let is_whole = !op.reads || op.memory().len() == data.len();
                if op.reads && is_whole {
                    op.memory().copy_from_slice(&data);
                }
                op.done(if is_whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) });
                spare.keep(data);
            }
            (Work::Write { piece, reply, .. }, Ok(data)) => {
                spare.keep(data);
                drop(reply.send((piece, Ok(Vec::new()))));
            }
            (work, result) => Self { first: self.first, work }.end(result),
        }
    }

    fn end(self, result: Result<Vec<u8>, HostError>) {
        let result = result.map_err(failed);
        match self.work {
            Work::Op(mut op) => {
                let reads = op.reads;
                let taken = result.and_then(|data| match op.memory() {
                    memory if reads && memory.len() != data.len() => Err(io::ErrorKind::UnexpectedEof.into()),
                    memory if reads => {
                        memory.copy_from_slice(&data);
                        Ok(())
                    }
                    _ => Ok(()),
                });
                op.done(taken);
            }
            Work::Part { of, at, bytes } => {
                let whole = |data: Vec<u8>| match data.len() == bytes {
                    true => Ok(data),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
                Split::took(&of, at, result.and_then(whole));
            }
            // Nobody waits for it any more where an earlier piece failed.
            Work::Read { piece, reply, .. } | Work::Write { piece, reply, .. } => drop(reply.send((piece, result))),
        }
    }
}

/// Memory of commands that have ended: the next ones have none made and cleared for them.
#[derive(Debug, Default)]
struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Memory of so many bytes, with anything in it.
    fn of(&mut self, bytes: usize) -> Vec<u8> {
        let mut memory = self.0.pop().unwrap_or_default();
        memory.resize(bytes, 0);
        memory
    }

    fn keep(&mut self, memory: Vec<u8>) {
        if self.0.len() < SPARES_MAX {
            self.0.push(memory);
        }
    }
}

/// What is asked of a queue, until its thread takes it.
#[derive(Debug, Default)]
pub(super) struct Requests {
    state: Mutex<Waiting>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// The thread takes no more.
    over: bool,
}

impl Requests {
    /// Asks for something. What is not taken any more fails.
    pub fn ask(&self, request: Request) {
        let mut state = self.state.lock();
        if state.over {
            drop(state);
            return request.end(Err(HostError::Io(lost())));
        }
        state.requests.push_back(request);
        self.more.notify_one();
    }

    /// The next requests, `most` at most; none where there are none and `busy`. `None` once it is over.
    fn take(&self, most: usize, busy: bool) -> Option<Vec<Request>> {
        let mut state = self.state.lock();
        while state.requests.is_empty() && !busy && !state.over {
            self.more.wait(&mut state);
        }
        if state.over {
            return None;
        }
        let most = most.min(state.requests.len());
        Some(state.requests.drain(..most).collect())
    }

    /// No more is taken, and what waits fails.
    fn close(&self) {
        let mut state = self.state.lock();
        state.over = true;
        self.more.notify_all();
        let left = std::mem::take(&mut state.requests);
        drop(state);
        left.into_iter().for_each(|request| request.end(Err(HostError::Io(lost()))));
    }
}

/// Says that a queue's thread has ended, also where it panicked: nobody is to wait for it.
struct Closes<'a>(&'a Requests, &'a AtomicBool);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
        self.0.close();
    }
}

/// An I/O queue, and the thread that has it.
#[derive(Debug)]
pub(super) struct Pump {
    pub requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Once `is_lost` is set, nothing is asked any more: each call would wait for an answer anew.
    pub fn start(name: &str, line: Line, mut io: Io<TcpLink>, is_lost: &Arc<AtomicBool>) -> io::Result<Self> {
        let requests = Arc::<Requests>::default();
        let (mine, is_lost) = (Arc::clone(&requests), Arc::clone(is_lost));
        let run = move || {
            let (mut begun, mut spare) = (Vec::new(), Spare::default());
            let closes = Closes(&mine, &is_lost);
            let end = loop {
                let end = pump(&mut io, &line.namespace, &mine, (&mut begun, &mut spare), &is_lost);
                match end {
                    Err(e) if e.is_lost() && !is_lost.load(Ordering::Acquire) => {}
                    end => break end,
                }
                if let Err(e) = anew(&mut io, &line, (&mut begun, &mut spare)) {
                    break Err(e);
                }
            };
            drop(closes);
            let why = end.err().map_or_else(lost, failed);
            for (_, request) in begun {
                request.end(Err(HostError::Io(io::Error::new(why.kind(), why.to_string()))));
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { requests, thread: Some(thread) })
    }
}

/// What is outstanding at a queue in its order, and memory for more.
type Begun<'a> = (&'a mut Vec<(u16, Request)>, &'a mut Spare);

/// Gets the connection of a queue anew, and begins what was outstanding once more, in its order.
fn anew(io: &mut Io<TcpLink>, line: &Line, (begun, spare): Begun<'_>) -> Result<(), HostError> {
    for (id, request) in &mut *begun {
        request.begin_anew(io.take_back(*id).unwrap_or_default(), spare);
    }
    *io = line.open_again(io.link().association())?;
    for (id, request) in begun {
        *id = request.begin(io, &line.namespace, spare)?;
    }
    Ok(())
}

/// Some queues for the same, which are asked in turn.
#[derive(Debug)]
pub(super) struct Pumps {
    all: Vec<Pump>,
    asked: AtomicUsize,
}

impl Pumps {
    /// Queues 1 to `count` of the line's host.
    pub fn start(name: &str, line: &Line, count: u16, is_lost: &Arc<AtomicBool>) -> Result<Self, HostError> {
        let lines = (1..=count).map(|queue| Line { queue, ..line.clone() });
        let opened: Vec<_> = lines.map(|line| Ok((line.open()?, line))).collect::<Result<_, HostError>>()?;
        let all = opened.into_iter().map(|(io, line)| Pump::start(name, line, io, is_lost));
        Ok(Self { all: all.collect::<io::Result<_>>().map_err(HostError::Io)?, asked: AtomicUsize::new(0) })
    }

    pub fn next(&self) -> &Pump {
        // invariant: there is one at least, as there was a queue.
        &self.all[self.asked.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.requests.close();
        if let Some(thread) = self.thread.take() {
            // What it had begun failed when it panicked.
            let _ = thread.join();
        }
    }
}

/// Keeps as many requests outstanding as the queue takes, until there are no more or the connection is lost. `begun`
/// is what is outstanding then.
fn pump(
    io: &mut Io<TcpLink>,
    namespace: &NamespaceInfo,
    requests: &Requests,
    (begun, spare): Begun<'_>,
    is_lost: &AtomicBool,
) -> Result<(), HostError> {
    while let Some(next) = requests.take(io.room(), !begun.is_empty()) {
        for mut request in next {
            if is_lost.load(Ordering::Acquire) {
                request.end(Err(HostError::Io(lost())));
                continue;
            }
            match request.begin(io, namespace, spare) {
                Ok(id) => begun.push((id, request)),
                Err(e @ HostError::Ended(_)) => {
                    request.end(Err(HostError::Io(lost())));
                    return Err(e); // and what was not begun fails as it is dropped
                }
                Err(e) => request.end(Err(e)),
            }
        }
        if begun.is_empty() {
            continue;
        }
        let moved = io.advance();
        // Also what was answered before the connection was lost.
        let mut i = 0;
        while let Some(&(id, _)) = begun.get(i) {
            match io.ended_reusing("a command of a job", id) {
                Some(result) => begun.remove(i).1.ended(result, spare),
                None => i += 1,
            }
        }
        moved?;
    }
    Ok(())
}
