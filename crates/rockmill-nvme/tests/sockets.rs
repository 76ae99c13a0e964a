//! Both sides over TCP.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{BLOCK, Bench, pattern};
use rockmill_io::{Clock, Fault, FileSystem, MemFileSystem, OpKind, PosixFileSystem, RandomAccessFile, SystemClock};
use rockmill_nvme::fabrics::DISCOVERY_NQN;
use rockmill_nvme::identify::OPTIONAL_WRITE_ZEROES;
use rockmill_nvme::initiator::{Admin, Command, HostError, Io, Link as _, NamespaceInfo, QueueConfig};
use rockmill_nvme::pdu::{Direction, Framing, IcResp, Pdu};
use rockmill_nvme::pdu_error::FatalError;
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{FilePart, Namespace, TargetConfig};
use rockmill_nvme::tcp::{Cutter, LinkCounters, ServerConfig, TcpHost, TcpLink, TcpServer};

struct Served {
    bench: Bench,
    server: TcpServer,
    clock: Arc<dyn Clock>,
}

fn served(bench: Bench) -> Served {
    served_with(bench, ServerConfig::default())
}

fn served_with(bench: Bench, config: ServerConfig) -> Served {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TcpServer::start(listener, Arc::clone(&bench.target), config, Arc::clone(&clock)).unwrap();
    Served { bench, server, clock }
}

impl Served {
    fn host(&self) -> TcpHost {
        TcpHost::connect(self.server.address(), self.bench.host.clone(), Arc::clone(&self.clock)).unwrap()
    }

    /// Waits for something that other threads do.
    fn until(&self, what: &str, done: impl Fn() -> bool) {
        for _ in 0..3000 {
            if done() {
                return;
            }
            self.clock.sleep(Duration::from_millis(10));
        }
        panic!("waited 30 seconds for {what}");
    }
}

#[test]
fn several_queues_write_and_read_at_once() {
    let served = served(Bench::new());
    let host = served.host();
    assert_eq!(host.admin(|admin| admin.set_queues(4)).unwrap(), 4);
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    thread::scope(|scope| {
        for q in 1..=4u16 {
            let host = &host;
            scope.spawn(move || {
                let mut io = host.io_queue(q).unwrap();
                let first = u64::from(q - 1) * 2048;
                for round in 0..4 {
                    let data = pattern(u64::from(q) * 100 + round, 2048 * BLOCK);
                    io.write(&disk, first, &data, round == 3).unwrap();
                    let mut back = vec![0; data.len()];
                    io.read(&disk, first, &mut back).unwrap();
                    assert!(back == data, "queue {q}, round {round}");
                }
            });
        }
    });
    assert_eq!(host.admin(|admin| admin.smart()).unwrap().errors, 0);
    host.admin(|admin| admin.shut_down()).unwrap();
    drop(host);
    served.until("the controller's end", || served.bench.target.controllers() == 0);
}

/// A message that arrives does not take the core from a thread of the store.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_serve_a_connection_stand_back() {
    const SCHED_BATCH: &str = "3";
    let served = served(Bench::new());
    let _host = served.host();
    let stand_back = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // `PID (NAME) STATE ...`: the policy is the 41st field, so the 39th after the name.
        let policies: Vec<String> = stats
            .filter_map(|stat| stat.split_once("(nvme-connection) ").map(|(_, rest)| rest.to_owned()))
            .filter_map(|rest| rest.split(' ').nth(38).map(str::to_owned))
            .collect();
        !policies.is_empty() && policies.iter().all(|policy| policy == SCHED_BATCH)
    };
    // A thread has its name a moment before it stands back.
    served.until("the threads of connections", stand_back);
}

#[test]
fn round_trips_and_bytes_are_counted() {
    let served = served(Bench::new());
    let host = served.host();
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let mut io = host.io_queue(1).unwrap();
    let large = 256 * BLOCK;
    let mut cost = |body: &mut dyn FnMut(&mut Io<TcpLink>)| {
        let before = host.counters();
        body(&mut io);
        let now = host.counters();
        assert_eq!(io.link().counters(), now);
        let of = |of: fn(&LinkCounters) -> u64| of(&now) - of(&before);
        (of(|c| c.round_trips), of(|c| c.sent_bytes), of(|c| c.received_bytes))
    };
    let (trips, sent, received) = cost(&mut |io| io.read(&disk, 0, &mut vec![0; large]).unwrap());
    assert!(trips == 1 && sent < 200 && received > large as u64, "{trips} {sent} {received}");
    // One write in the capsule, and one that waits for an R2T.
    let (trips, sent, received) = cost(&mut |io| io.write(&disk, 0, &pattern(1, BLOCK), false).unwrap());
    assert!(trips == 1 && sent > BLOCK as u64 && received < 200, "{trips} {sent} {received}");
    let (trips, sent, received) = cost(&mut |io| io.write(&disk, 0, &pattern(1, large), false).unwrap());
    assert!(trips == 2 && sent > large as u64 && received < 400, "{trips} {sent} {received}");
}

/// Blocks of a file, which can be sent as they are.
#[derive(Debug)]
struct Blocks {
    file: Arc<dyn RandomAccessFile>,
    cannot_send: Arc<AtomicBool>,
    /// Where memory for reads and writes began.
    places: Mutex<Vec<usize>>,
}

impl Blocks {
    fn of(file: Arc<dyn RandomAccessFile>) -> Arc<Self> {
        Arc::new(Self { file, cannot_send: Arc::default(), places: Mutex::default() })
    }

    fn places(&self) -> Vec<usize> {
        std::mem::take(&mut self.places.lock().unwrap())
    }
}

impl Namespace for Blocks {
    fn block_bytes(&self) -> u32 {
        4096
    }
    fn blocks(&self) -> u64 {
        self.file.size() / 4096
    }
    fn read_only(&self) -> bool {
        false
    }
    fn nguid(&self) -> [u8; 16] {
        [4; 16]
    }
    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status> {
        self.places.lock().unwrap().push(into.as_ptr().addr());
        match self.file.read_at(first * 4096, into) {
            Ok(n) if n == into.len() => Ok(()),
            _ => Err(Status::UNRECOVERED_READ_ERROR),
        }
    }
    fn file_part(&self, first: u64, bytes: u32) -> Option<FilePart> {
        let sends = self.file.sends() && !self.cannot_send.load(Ordering::Relaxed);
        let has_failed = Arc::clone(&self.cannot_send);
        sends.then(|| FilePart { file: Arc::clone(&self.file), offset: first * 4096, bytes, has_failed })
    }
    fn write(&self, _: u64, from: &[u8]) -> Result<(), Status> {
        self.places.lock().unwrap().push(from.as_ptr().addr());
        Ok(())
    }
    fn write_zeroes(&self, _: u64, _: u32) -> Result<(), Status> {
        Ok(())
    }
    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// A served file of 3 MiB in this file system, as namespace 2.
fn file_served(fs: &dyn FileSystem, path: &Path, config: TargetConfig) -> (Served, Arc<Blocks>, Vec<u8>) {
    let data = pattern(7, 3 << 20);
    fs.write_all(path, &data).unwrap();
    let blocks = Blocks::of(fs.open_random(path, false).unwrap());
    let served = served(Bench::with(config));
    served.bench.target.add_namespace(2, blocks.clone()).unwrap();
    (served, blocks, data)
}

/// Without digests of data, and where nothing follows the data, a file is sent without being read.
#[test]
fn files_are_sent_without_being_read() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let posix: (Arc<dyn FileSystem>, _) = (Arc::new(PosixFileSystem::new()), dir.path().join("table"));
    let short = MemFileSystem::new();
    short.set_hook(Box::new(|op| Fault::Short(1000.max(op.len as usize / 3))));
    let memory: (Arc<dyn FileSystem>, _) = (Arc::new(short), PathBuf::from("/table"));
    for (fs, path) in [posix, memory] {
        // Data in one PDU; in several, of which the last is sent from the file.
        for c2h_data_max in [1 << 20, 128 << 10] {
            let config = TargetConfig { c2h_data_max, ..TargetConfig::new(common::NQN) };
            let (served, blocks, data) = file_served(&*fs, &path, config);
            let host = served.host();
            let info = host.admin(|admin| admin.namespace(2)).unwrap();
            let mut io = host.io_queue_with(1, |queue| queue.data_digest = false).unwrap();
            // Commands of all lengths, some of them outstanding together.
            for (first, count) in [(0, 256), (256, 256), (3, 1), (700, 68), (1, 31)] {
                let all = io.begin_read(&info, first, count * 4096).unwrap();
                let one = io.begin_read(&info, 767, 4096).unwrap();
                for (id, first, count) in [(all, first, count), (one, 767, 1)] {
                    let read = loop {
                        match io.ended("Read", id) {
                            Some(read) => break read.unwrap(),
                            None => io.advance().unwrap(),
                        }
                    };
                    let start = first as usize * 4096;
                    assert!(read == data[start..start + count * 4096], "{first} {count}");
                }
            }
            let reads = blocks.places().len();
            // All but the last of eight PDUs, twice, and of three.
            assert_eq!(reads, if c2h_data_max == 1 << 20 { 0 } else { 7 + 7 + 2 });
            // A digest has to be computed, and a completion would have to follow.
            for change in [|q: &mut QueueConfig| q.data_digest = true, |q: &mut QueueConfig| q.no_flow_control = false]
            {
                let mut io = host.io_queue_with(2, change).unwrap();
                let mut back = vec![0; 1 << 20];
                io.read(&info, 512, &mut back).unwrap();
                assert!(back == data[512 * 4096..]);
                assert!(!blocks.places().is_empty());
                drop(io);
                served.clock.sleep(Duration::from_millis(200)); // until the target has seen it
            }
        }
    }
}

/// A file that ends too early cannot be sent. The connection ends, since the data was promised; whoever asks again gets
/// the reason.
#[test]
fn a_file_that_ends_early_or_fails_ends_the_connection_and_then_the_command() {
    // Cut off, or with an error; also one after which sockets try again.
    for error in [None, Some(ErrorKind::Other), Some(ErrorKind::TimedOut)] {
        let fs = MemFileSystem::new();
        let path = PathBuf::from("/table");
        let config = TargetConfig { c2h_data_max: 1 << 20, ..TargetConfig::new(common::NQN) };
        let (served, blocks, _) = file_served(&fs, &path, config);
        let host = served.host();
        let info = host.admin(|admin| admin.namespace(2)).unwrap();
        let open = |queue| host.io_queue_with(queue, |queue| queue.data_digest = false).unwrap();
        let mut io = open(1);
        io.read(&info, 0, &mut vec![0; 1 << 20]).unwrap();
        assert!(blocks.places().is_empty(), "sent");
        match error {
            None => fs.truncate(&path, 300_000).unwrap(),
            Some(kind) => {
                fs.set_hook(Box::new(move |op| match op.kind == OpKind::ReadAt && op.offset + op.len > 300_000 {
                    true => std::io::Error::new(kind, "a bad sector").into(),
                    false => Fault::None,
                }))
            }
        }
        let since = Instant::now();
        let lost = io.read(&info, 0, &mut vec![0; 1 << 20]).unwrap_err();
        assert!(lost.is_lost() && since.elapsed() < Duration::from_secs(10), "{lost}");
        let why = open(2).read(&info, 0, &mut vec![0; 1 << 20]).unwrap_err();
        assert_eq!(why.status().map(|s| s.code()), Some(Status::UNRECOVERED_READ_ERROR.code()), "{why}");
        assert!(!blocks.places().is_empty(), "read");
    }
}

/// A file that waits for its host does not hold the server.
#[test]
fn a_host_that_takes_nothing_of_a_file_is_left_alone() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let config = TargetConfig { c2h_data_max: 1 << 20, ..TargetConfig::new(common::NQN) };
    let (mut served, blocks, _) = file_served(&PosixFileSystem::new(), &dir.path().join("table"), config);
    let host = served.host();
    let info = host.admin(|admin| admin.namespace(2)).unwrap();
    let mut io = host.io_queue_with(1, |queue| queue.data_digest = false).unwrap();
    for _ in 0..30 {
        io.begin_read(&info, 0, 1 << 20).unwrap();
    }
    // Sends the commands, and takes the first bytes that come. No socket has room for the others.
    io.link().exchange().unwrap();
    served.clock.sleep(Duration::from_millis(200));
    let since = Instant::now();
    served.server.stop();
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert!(blocks.places().is_empty(), "sent as a file");
}

/// Memory for data begins with a page: what is read and written past the page cache is not copied.
#[test]
fn data_is_read_and_written_in_whole_pages_of_memory() {
    let (fs, path) = (MemFileSystem::new(), PathBuf::from("/table"));
    let config = TargetConfig { c2h_data_max: 1 << 20, ..TargetConfig::new(common::NQN) };
    let (served, blocks, _) = file_served(&fs, &path, config);
    blocks.cannot_send.store(true, Ordering::Relaxed);
    let host = served.host();
    let info = host.admin(|admin| admin.namespace(2)).unwrap();
    let mut io = host.io_queue(1).unwrap();
    for count in [256, 1, 17, 256] {
        io.read(&info, 1, &mut vec![0; count * 4096]).unwrap();
        io.write(&info, 1, &vec![1; count * 4096], false).unwrap();
    }
    let places = blocks.places();
    // Small writes come in the capsule.
    assert!(places.len() == 8 && places.iter().filter(|place| place.is_multiple_of(4096)).count() >= 7, "{places:?}");
}

/// Neither side may wait for the other to read first, however small the socket buffers are.
#[test]
fn reads_and_writes_larger_than_all_buffers_do_not_block_each_other() {
    let mut config = TargetConfig::new(common::NQN);
    config.output_max = 4096;
    let mut bench = Bench::with(config);
    bench.host.queue.entries = 128;
    let served = served(bench);
    let host = served.host();
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let mut io = host.io_queue(1).unwrap();
    use rockmill_nvme::command::{read, write};
    let link = io.link();
    let mut ids = Vec::new();
    for i in 0..60 {
        let sqe = read(1, 0, 2048);
        ids.push(link.queue().submit(Command::reading(sqe, 1 << 20)).unwrap());
        let data = vec![i as u8; 1 << 20];
        ids.push(link.queue().submit(Command::writing(write(1, 2048, 2048, false), data)).unwrap());
    }
    for id in ids {
        let done = loop {
            match link.queue().take(id) {
                Some(done) => break done,
                None => link.exchange().unwrap(),
            }
        };
        assert!(done.status.is_success());
    }
    let mut last = vec![0; 1 << 20];
    io.read(&disk, 2048, &mut last).unwrap();
    assert!(last.iter().all(|&b| b == 59));
}

#[test]
fn a_host_that_is_kept_alive_stays_and_one_that_is_lost_goes() {
    let mut bench = Bench::new();
    bench.host.keep_alive_ms = 300;
    let served = served(bench);
    let host = served.host();
    let mut io = host.io_queue(1).unwrap();
    served.clock.sleep(Duration::from_millis(1500));
    io.flush(1).unwrap();
    assert_eq!(served.bench.target.controllers(), 1);
    drop(host);
    served.until("the controller's end", || served.bench.target.controllers() == 0);
    assert!(io.flush(1).is_err());
}

#[test]
fn a_host_that_sends_nonsense_is_told_what_was_wrong() {
    let served = served(Bench::new());
    let mut stream = TcpStream::connect(served.server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // Only the first eight bytes are examined.
    stream.write_all(b"GET / HTTP/1.1\r\nHost: store\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    match Framing::initial(Direction::ToHost, 0, 0).decode(&answer).unwrap() {
        Pdu::C2hTermReq(term) => {
            assert_eq!((term.fatal, term.information), (FatalError::InvalidHeaderField, 0));
            assert_eq!(term.header, b"GET / HT");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_namespace_is_taken_away_under_writes() {
    let served = served(Bench::new());
    let host = served.host();
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let mut io = host.io_queue(1).unwrap();
    let writer = thread::spawn(move || {
        for round in 1.. {
            if let Err(e) = io.write(&disk, 0, &vec![round as u8; 8192 * BLOCK], false) {
                return (round, e.status());
            }
        }
        unreachable!("it ends when the namespace is gone");
    });
    served.until("a write", || served.bench.disk.contents()[0] != 0);
    assert!(served.bench.target.remove_namespace(1));
    // From here on nothing is written, even if commands were outstanding.
    let then = served.bench.disk.contents();
    let (_, status) = writer.join().unwrap();
    assert_eq!(status, Some(Status::INVALID_NAMESPACE));
    assert!(served.bench.disk.contents() == then);
}

#[test]
fn a_server_that_stops_ends_its_connections() {
    let mut served = served(Bench::new());
    let host = served.host();
    let mut io = host.io_queue(1).unwrap();
    served.server.stop();
    assert!(matches!(io.flush(1), Err(HostError::Io(_))));
    assert_eq!(served.bench.target.controllers(), 0);
    assert!(TcpStream::connect(served.server.address()).is_err());
}

/// A clock that is a hundred times as fast.
#[derive(Debug, Default)]
struct Fast(SystemClock);

impl Clock for Fast {
    fn now_micros(&self) -> u64 {
        self.0.now_micros()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.monotonic_nanos() * 100
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration / 100);
    }
}

/// A controller whose bytes come one by one is as late as one that says nothing.
#[test]
fn a_byte_now_and_then_is_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Gives up its first answer bytewise: in 128 times 5 seconds of the host's clock.
    let trickles = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let response = IcResp { format: 0, alignment: 0, header_digest: true, data_digest: true, h2c_data_max: 4096 };
        let mut bytes = Vec::new();
        Framing::initial(Direction::ToHost, 0, 0).encode(&Pdu::IcResp(response), &mut bytes);
        for byte in bytes {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let since = Instant::now();
    let e = TcpHost::connect(address, Bench::new().host, Arc::new(Fast::default())).unwrap_err();
    assert!(matches!(&e, HostError::Io(e) if e.kind() == ErrorKind::TimedOut), "{e}");
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    trickles.join().unwrap();
}

/// A host can be cut off before the controller has said anything, and has a limit for all of the beginning.
#[test]
fn a_host_is_cut_off_while_it_connects() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let connect = |cutter: &Cutter| {
        let since = Instant::now();
        let (config, cutter) = (Bench::new().host, Some(cutter.clone()));
        let e = TcpHost::connect_cuttable(address, config, None, cutter, Arc::clone(&clock)).unwrap_err();
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
        let HostError::Io(e) = e else { panic!("{e}") };
        e.kind()
    };
    let cutter = Cutter::default();
    thread::scope(|scope| {
        let connects = scope.spawn(|| connect(&cutter));
        thread::sleep(Duration::from_millis(200));
        cutter.cut();
        assert_eq!(connects.join().unwrap(), ErrorKind::UnexpectedEof);
    });
    // Nor does it begin again.
    assert_eq!(connect(&cutter), ErrorKind::ConnectionAborted);
    let cutter = Cutter::default();
    let soon = Duration::from_nanos(clock.monotonic_nanos()) + Duration::from_millis(300);
    cutter.set_limit(Some(soon));
    assert_eq!(connect(&cutter), ErrorKind::TimedOut);
}

/// A host that keeps taking its answers does not keep the server from stopping, however many they are.
#[test]
fn a_server_stops_while_a_host_takes_its_answers() {
    use rockmill_nvme::command::{ALL_NAMESPACES, get_log_page, log_page};
    let mut bench = Bench::with(TargetConfig { queue_entries_max: 4096, ..TargetConfig::new(common::NQN) });
    bench.host.queue.entries = 4096;
    let mut served = served(bench);
    let host = served.host();
    let (answered, answers) = std::sync::mpsc::channel();
    let takes = thread::spawn(move || {
        host.admin(|admin| {
            let link = admin.link();
            // Commands that arrive together. The admin queue does not end with another one.
            let page = || Command::reading(get_log_page(log_page::SMART, ALL_NAMESPACES, 0, 1 << 20, false), 1 << 20);
            let pages: Vec<u16> = (0..1000).map(|_| link.queue().submit(page()).unwrap()).collect();
            for id in pages {
                while link.queue().take(id).is_none() {
                    if link.exchange().is_err() {
                        return;
                    }
                    // 8 seconds in all, and yet faster than that the server would wait.
                    thread::sleep(Duration::from_millis(2));
                }
                let _ = answered.send(());
            }
        });
    });
    for _ in 0..20 {
        answers.recv().unwrap();
    }
    let since = Instant::now();
    served.server.stop();
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    takes.join().unwrap();
}

/// Connections whose hosts do not go on give way to others; those that are in use do not.
#[test]
fn idle_connections_keep_nobody_out() {
    let config = ServerConfig { connections_max: 3, ..ServerConfig::default() };
    let served = served_with(Bench::new(), config);
    let connect = || {
        let stream = TcpStream::connect(served.server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream
    };
    let mut idle: Vec<_> = (0..3).map(|_| connect()).collect();
    let host = served.host();
    let mut io = host.io_queue(1).unwrap();
    // The oldest ones are gone.
    for stream in &mut idle[..2] {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
    idle[2].set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(matches!(idle[2].read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    let mut second = host.io_queue(2).unwrap();
    assert_eq!(idle[2].read(&mut [0; 1]).unwrap(), 0);
    // Now all places are taken.
    assert!(connect().read(&mut [0; 1]).map_or(true, |n| n == 0));
    io.flush(1).unwrap();
    second.flush(1).unwrap();
    host.admin(|admin| admin.keep_alive()).unwrap();
}

#[test]
fn what_a_target_does_not_offer_is_refused() {
    let config = TargetConfig { discovery: false, write_zeroes: false, ..TargetConfig::new(common::NQN) };
    let mut bench = Bench::with(config);
    let admin = bench.admin();
    let controller = admin.controller().clone();
    assert_eq!(controller.identity.optional & OPTIONAL_WRITE_ZEROES, 0);
    let disk = NamespaceInfo { id: 1, block_bytes: BLOCK as u32, blocks: 8192, read_only: false };
    let e = bench.io(&admin, 1).write_zeroes(&disk, 0, 1).unwrap_err();
    assert_eq!(e.status(), Some(Status::INVALID_OPCODE));
    bench.host.subsystem = DISCOVERY_NQN.to_owned();
    let e = Admin::connect(bench.wire(bench.host.queue), bench.host.clone()).err().unwrap();
    assert_eq!(e.status(), Some(Status::CONNECT_INVALID_PARAMETERS));
    assert_eq!(bench.target.controllers(), 1);
}
