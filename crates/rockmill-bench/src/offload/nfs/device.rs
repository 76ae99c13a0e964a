//! The device of a job for a worker that reaches the store's files through NFS.
//!
//! A worker has one code for all jobs, which reads and writes a device (`WorkerDevice`). Here that device is made of
//! files: the spec says where each input lies on it, and where each output goes, and so which part of it is which file
//! of the export. So the merge, its engines and what they ask for are the same as over NVMe/TCP; only what carries the
//! bytes differs.
//!
//! NFS is given what NVMe/TCP is given: a connection for reads and another one for writes, a thread for each, up to 31
//! transfers on their way, of up to 1 MiB. Writes are unstable, and each file is committed once, at the end.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use rockmill::internals::{DEVICE_BLOCK, DeviceOp, JobSpec, WorkerDevice};
use rockmill_format::filename;
use rockmill_io::sync::{Condvar, Mutex};

use super::libnfs::{Library, Session, Transfer};

/// Transfers of one connection on their way, at most: as many as commands of a queue of NVMe.
const DEPTH: usize = 31;
/// Seconds that a server may be silent.
const SILENCE_MAX: usize = 60;

/// Where the files of a job are.
#[derive(Debug, Clone)]
pub struct Export {
    /// `nfs://SERVER/EXPORT?nfsport=PORT&mountport=PORT`.
    pub url: String,
    /// Directory of the inputs below the export.
    pub inputs: String,
    /// Directory of the outputs.
    pub outputs: String,
}

/// A file, as a part of the device.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where it begins.
    pub offset: u64,
    /// Bytes of it, of an output those that it may have.
    pub length: u64,
    /// Number of the table.
    pub number: u64,
    /// Where it is below the export.
    pub path: String,
    /// It is an output.
    pub writes: bool,
}

/// The files of a job, in their order on its device.
pub fn places(spec: &JobSpec, inputs: &str, outputs: &str) -> Vec<Place> {
    let place = |offset, length, number, dir: &str, writes| Place {
        offset,
        length,
        number,
        path: format!("{dir}/{}", filename::table(number)),
        writes,
    };
    let read = spec.runs.iter().flat_map(|run| &run.files).filter_map(|file| {
        let extent = file.extents.first()?;
        Some(place(extent.offset, extent.length, file.number(), inputs, false))
    });
    let further = spec.further.iter().filter_map(|file| {
        let extent = file.extents.first()?;
        Some(place(extent.offset, extent.length, file.number, inputs, false))
    });
    let numbers = spec.numbers.iter().flat_map(|range| range.first..range.first.saturating_add(range.count));
    let written = spec.space.iter().zip(numbers).map(|(e, number)| place(e.offset, e.length, number, outputs, true));
    let mut all: Vec<Place> = read.chain(further).chain(written).collect();
    all.sort_by_key(|place| place.offset);
    all
}

/// The file that has this range of the device.
pub fn place_of(places: &[Place], offset: u64) -> Option<(usize, &Place)> {
    let i = places.partition_point(|place| place.offset <= offset).checked_sub(1)?;
    places.get(i).map(|place| (i, place))
}

/// What goes over the connections.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads and writes.
    pub calls: AtomicU64,
    /// Bytes of data read.
    pub read: AtomicU64,
    /// Bytes of data written.
    pub written: AtomicU64,
}

#[derive(Debug)]
enum Work {
    Transfer { file: usize, offset: u64, least: usize, transfer: Transfer },
    Finish(mpsc::Sender<io::Result<()>>),
}

impl Work {
    fn fail(self, why: io::Error) {
        match self {
            Self::Transfer { transfer, .. } => transfer.done(Err(why)),
            Self::Finish(reply) => drop(reply.send(Err(why))),
        }
    }
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the session with the NFS server is over")
}

#[derive(Debug, Default)]
struct Waiting {
    work: VecDeque<Work>,
    over: bool,
    /// The thread waits for the server, and is to be woken.
    polls: bool,
}

#[derive(Debug)]
struct Requests {
    state: Mutex<Waiting>,
    more: Condvar,
    wake: UnixStream,
}

impl Requests {
    fn ask(&self, work: Work) {
        let mut state = self.state.lock();
        if state.over {
            drop(state);
            return work.fail(lost());
        }
        state.work.push_back(work);
        if std::mem::take(&mut state.polls) {
            // If its buffer is full, there is enough to wake for.
            let _ = (&self.wake).write(&[0]);
        }
        self.more.notify_one();
    }

    /// The next work, `most` at most; none where there is none and `busy`. `None` once it is over.
    fn take(&self, most: usize, busy: bool) -> Option<Vec<Work>> {
        let mut state = self.state.lock();
        while state.work.is_empty() && !busy && !state.over {
            self.more.wait(&mut state);
        }
        if state.over {
            return None;
        }
        let most = most.min(state.work.len());
        let next: Vec<Work> = state.work.drain(..most).collect();
        state.polls = true;
        Some(next)
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.over = true;
        let left = std::mem::take(&mut state.work);
        let _ = (&self.wake).write(&[0]);
        self.more.notify_all();
        drop(state);
        left.into_iter().for_each(|work| work.fail(lost()));
    }
}

/// A session, and the thread that has it.
#[derive(Debug)]
struct Pump {
    requests: Arc<Requests>,
    transfer_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    fn start(name: &str, library: &Arc<Library>, url: &str, places: &Arc<[Place]>) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let requests = Arc::new(Requests { state: Mutex::default(), more: Condvar::default(), wake });
        let (mounts, mounted) = mpsc::channel();
        let (mine, library, url, places) =
            (Arc::clone(&requests), Arc::clone(library), url.to_owned(), Arc::clone(places));
        // A session belongs to the thread that made it.
        let run = move || match Session::mount(&library, &url) {
            Err(e) => drop(mounts.send(Err(e))),
            Ok(mut session) => {
                let _ = mounts.send(Ok(session.transfer_max()));
                // Whoever waits learns of it by what fails.
                let _ = pump(&mut session, &places, &mine, &woken);
                mine.close();
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        let most = mounted.recv().map_err(|_| lost())??;
        let transfer_max = most / DEVICE_BLOCK * DEVICE_BLOCK;
        if transfer_max == 0 {
            return Err(io::Error::other(format!("NFS: the server takes transfers of {most} bytes at most")));
        }
        Ok(Self { requests, transfer_max, thread: Some(thread) })
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

/// Keeps as many transfers on their way as it may, until there are no more or the connection is lost.
fn pump(session: &mut Session, places: &[Place], requests: &Requests, woken: &UnixStream) -> io::Result<()> {
    let mut open: Vec<Option<usize>> = vec![None; places.len()];
    let (mut finish, mut silent) = (None, 0);
    while let Some(next) = requests.take(DEPTH.saturating_sub(session.on_the_way()), session.on_the_way() > 0) {
        for work in next {
            match work {
                Work::Finish(reply) => finish = Some(reply),
                Work::Transfer { file, offset, least, transfer } => {
                    let handle = match (open.get(file).copied().flatten(), places.get(file)) {
                        (Some(handle), _) => Ok(handle),
                        (None, Some(place)) => session.open(&place.path, place.writes),
                        (None, None) => Err(io::ErrorKind::NotFound.into()),
                    };
                    match handle {
                        Ok(handle) => {
                            if let Some(known) = open.get_mut(file) {
                                *known = Some(handle);
                            }
                            session.begin(handle, offset, least, transfer);
                        }
                        Err(e) => transfer.done(Err(e)),
                    }
                }
            }
        }
        for (transfer, result) in session.take_ended() {
            transfer.done(result);
        }
        if session.on_the_way() > 0 {
            silent = if session.advance(woken.as_fd())? { 0 } else { silent + 1 };
            if silent > SILENCE_MAX {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the NFS server does not answer"));
            }
            let mut bytes = [0; 64];
            let mut from: &UnixStream = woken;
            while from.read(&mut bytes).is_ok_and(|n| n == bytes.len()) {}
        }
        for (transfer, result) in session.take_ended() {
            transfer.done(result);
        }
        if session.on_the_way() == 0
            && let Some(reply) = finish.take()
        {
            open.fill(None);
            let _ = reply.send(session.finish()); // else nobody waits any more
        }
    }
    Ok(())
}

/// The device.
#[derive(Debug)]
pub struct NfsDevice {
    places: Arc<[Place]>,
    reads: Pump,
    writes: Pump,
    counters: Counters,
}

impl NfsDevice {
    /// Mounts the export, twice.
    ///
    /// # Errors
    /// Why that failed.
    pub fn connect(library: &Arc<Library>, export: &Export, spec: &JobSpec) -> io::Result<Self> {
        let places: Arc<[Place]> = places(spec, &export.inputs, &export.outputs).into();
        let reads = Pump::start("nfs-reads", library, &export.url, &places)?;
        let writes = Pump::start("nfs-writes", library, &export.url, &places)?;
        Ok(Self { places, reads, writes, counters: Counters::default() })
    }

    /// Commits what was written, and closes all files.
    ///
    /// # Errors
    /// The server's reason.
    pub fn finish(&self) -> io::Result<()> {
        for pump in [&self.reads, &self.writes] {
            let (reply, done) = mpsc::channel();
            pump.requests.ask(Work::Finish(reply));
            done.recv().map_err(|_| lost())??;
        }
        Ok(())
    }

    /// What went over its connections.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn pump(&self, reads: bool) -> &Pump {
        if reads { &self.reads } else { &self.writes }
    }

    fn ask(&self, reads: bool, offset: u64, bytes: usize, transfer: Transfer) {
        let end = offset.saturating_add(bytes as u64);
        let found = place_of(&self.places, offset).filter(|(_, place)| {
            let room = place.length.next_multiple_of(DEVICE_BLOCK as u64);
            place.writes != reads && end <= place.offset.saturating_add(room)
        });
        let Some((file, place)) = found else {
            let what = "a transfer to what is no input or no output";
            return transfer.done(Err(io::Error::new(io::ErrorKind::InvalidInput, what)));
        };
        let offset = offset - place.offset;
        // An input ends within its last block.
        let there = usize::try_from(place.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let least = if reads { bytes.min(there) } else { bytes };
        let c = &self.counters;
        c.calls.fetch_add(1, Ordering::Relaxed);
        (if reads { &c.read } else { &c.written }).fetch_add(least as u64, Ordering::Relaxed);
        self.pump(reads).requests.ask(Work::Transfer { file, offset, least, transfer });
    }

    /// Asks for all pieces of a range at once, and waits for them.
    fn transfer(&self, reads: bool, offset: u64, pieces: Vec<Vec<u8>>) -> io::Result<Vec<Vec<u8>>> {
        let (reply, replies) = mpsc::channel();
        let (count, mut at) = (pieces.len(), offset);
        for (piece, data) in pieces.into_iter().enumerate() {
            let bytes = data.len();
            self.ask(reads, at, bytes, Transfer::Piece { data, reads, piece, reply: reply.clone() });
            at += bytes as u64;
        }
        drop(reply); // what is left of it are the transfers'
        let mut done = vec![Vec::new(); count];
        for _ in 0..count {
            let (piece, result) = replies.recv().map_err(|_| lost())?;
            let data = result?;
            if let Some(place) = done.get_mut(piece) {
                *place = data;
            }
        }
        Ok(done)
    }
}

impl WorkerDevice for NfsDevice {
    fn bytes(&self) -> u64 {
        let end = |place: &Place| place.offset.saturating_add(place.length.next_multiple_of(DEVICE_BLOCK as u64));
        self.places.last().map_or(0, end)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let most = self.reads.transfer_max;
        let pieces = into.chunks(most).map(|piece| vec![0; piece.len()]).collect();
        let read = self.transfer(true, offset, pieces)?;
        for (to, piece) in into.chunks_mut(most).zip(read) {
            to.copy_from_slice(&piece);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let pieces = data.chunks(self.writes.transfer_max).map(<[u8]>::to_vec).collect();
        self.transfer(false, offset, pieces).map(drop)
    }

    fn begin(&self, mut op: DeviceOp) {
        let (reads, offset, bytes) = (op.reads, op.offset, op.memory().len());
        if bytes <= self.pump(reads).transfer_max {
            return self.ask(reads, offset, bytes, Transfer::Op(op));
        }
        // Longer than a transfer, which only a block is that is longer than a read ahead.
        let result = match reads {
            true => self.read(offset, op.memory()),
            false => self.write(offset, op.memory()),
        };
        op.done(result);
    }
}
