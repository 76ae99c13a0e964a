//! A worker whose store does what it should not, what a worker counts, and which worker gets a job.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rockmill::internals::{DEVICE_BLOCK, JobResult, WorkerDevice as _};
use rockmill_nvme::command::Cqe;
use rockmill_nvme::fabrics::{Capabilities, NO_FLOW_CONTROL, fctype, property};
use rockmill_nvme::pdu::{Assembler, Direction, Framing, IcReq, IcResp, Pdu};
use rockmill_nvme::psk::TlsKey;
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{Namespace, Target, TargetConfig};
use rockmill_nvme::tcp::{ClientTls, Cutter, ServerConfig, ServerTls, TcpServer};

use super::*;
use crate::MetricsServer;
use crate::device::{NvmeDevice, Place};

const SUBSYSTEM: &str = "nqn.2026-11.rockmill:job:test";

/// A device that cannot be read, or that answers only when it is let go.
#[derive(Debug, Default)]
struct Broken {
    waits: bool,
    was_asked: AtomicBool,
    let_go: AtomicBool,
}

impl Namespace for Broken {
    fn block_bytes(&self) -> u32 {
        DEVICE_BLOCK as u32
    }

    fn blocks(&self) -> u64 {
        1 << 30
    }

    fn read_only(&self) -> bool {
        false
    }

    fn nguid(&self) -> [u8; 16] {
        [7; 16]
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Status> {
        self.was_asked.store(true, Ordering::Release);
        for _ in 0..4000 {
            if !self.waits || self.let_go.load(Ordering::Acquire) {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(Status::UNRECOVERED_READ_ERROR)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Status> {
        Err(Status::WRITE_FAULT)
    }

    fn write_zeroes(&self, _: u64, _: u32) -> Result<(), Status> {
        Err(Status::WRITE_FAULT)
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// Serves it.
fn serve(device: &Arc<Broken>) -> TcpServer {
    serve_with(device, None)
}

/// The same, with TLS if there is a key.
fn serve_with(device: &Arc<Broken>, tls: Option<ServerTls>) -> TcpServer {
    let target = Target::new(TargetConfig::new(SUBSYSTEM)).unwrap();
    target.add_namespace(1, Arc::clone(device) as Arc<dyn Namespace>).unwrap();
    TcpServer::start_with(listener(), target, ServerConfig::default(), tls, clock()).unwrap()
}

/// The spec of some job, as stores send it.
fn some_spec() -> Vec<u8> {
    let spec = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&spec);
    let rogue = Rogue::start(move |mut channel| {
        channel.greet_store(WORKER, None, &|| false).unwrap();
        let Message::Offer { spec, .. } = next(&mut channel) else { panic!("no offer") };
        *seen.lock() = spec;
    });
    run_database(config(&[rogue.address]));
    std::mem::take(&mut *spec.lock())
}

/// Offers a job whose device is at `port`.
fn offer(worker: &Worker, port: u16, spec: Vec<u8>) -> Channel {
    let mut channel = Channel::new(TcpStream::connect(worker.address()).unwrap(), clock()).unwrap();
    channel.greet_worker(HOST, None, &|| false).unwrap();
    let subsystem = SUBSYSTEM.to_owned();
    channel
        .tell(&Message::Offer { epoch: 9, ticket: None, subsystem, port, silence_ms: 200, external: None, spec })
        .unwrap();
    channel
}

/// The next message that is no sign of life.
fn answer(channel: &mut Channel) -> Message {
    loop {
        match next(channel) {
            Message::Progress { epoch: 9, .. } => {}
            other => return other,
        }
    }
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited 30 seconds: {what}");
}

#[test]
fn a_job_that_fails_is_counted_as_one_that_failed() {
    let worker = worker(WorkerConfig::default());
    let device = Arc::new(Broken::default());
    let server = serve(&device);
    let mut channel = offer(&worker, server.address().port(), some_spec());
    assert_eq!(next(&mut channel), Message::Accepted { epoch: 9 });
    let Message::Done { epoch: 9, result, .. } = answer(&mut channel) else { panic!("no result") };
    assert!(JobResult::decode(&result).unwrap().outcome.is_err());
    assert!(device.was_asked.load(Ordering::Acquire));
    let counters = worker.counters();
    assert_eq!((counters.done, counters.failed, counters.refused, counters.running), (0, 1, 0, 0));
    assert!(counters.round_trips > 5 && counters.received_bytes > 4096, "{counters:?}");
}

/// A device that does not answer must not hold a worker for longer than its store wants the job.
#[test]
fn a_job_that_is_not_wanted_ends_though_its_device_does_not_answer() {
    let spec = some_spec();
    for ends in ["a message", "a lost connection", "the worker's end"] {
        let mut worker = worker(WorkerConfig::default());
        let device = Arc::new(Broken { waits: true, ..Broken::default() });
        let server = serve(&device);
        let mut channel = offer(&worker, server.address().port(), spec.clone());
        assert_eq!(next(&mut channel), Message::Accepted { epoch: 9 });
        until("the device is read", || device.was_asked.load(Ordering::Acquire));
        // It says that it is alive, though it waits.
        assert!(matches!(next(&mut channel), Message::Progress { epoch: 9, .. }));
        let since = Instant::now();
        match ends {
            "a message" => {
                channel.tell(&Message::Cancel { epoch: 9 }).unwrap();
                assert!(matches!(answer(&mut channel), Message::Refused { epoch: 9, .. }));
            }
            "a lost connection" => drop(channel),
            _ => worker.stop(),
        }
        until(ends, || worker.counters().running == 0);
        assert!(since.elapsed() < Duration::from_secs(10), "{ends} took {:?}", since.elapsed());
        assert_eq!(worker.counters().failed, 1, "{ends}");
        device.let_go.store(true, Ordering::Release);
    }
}

/// A controller that answers all that a host asks until it is ready, and never says that it is.
fn never_ready() -> u16 {
    let listener = listener();
    let port = listener.local_addr().unwrap().port();
    // It ends with the process.
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || answer_until_ready(socket));
        }
    });
    port
}

/// Ends with its connection.
fn answer_until_ready(mut socket: TcpStream) -> Option<()> {
    let mut incoming = Framing::initial(Direction::ToController, 8192, 8192);
    let mut outgoing = Framing::initial(Direction::ToHost, 0, 0);
    let (mut assembler, mut buffer) = (Assembler::default(), [0; 4096]);
    loop {
        let n = socket.read(&mut buffer).ok().filter(|&n| n > 0)?;
        let (mut rest, mut out) = (&buffer[..n], Vec::new());
        while assembler.fill(&incoming, &mut rest).ok()? {
            let pdu = assembler.take();
            match incoming.decode(&pdu).ok()? {
                Pdu::IcReq(IcReq { header_digest, data_digest, .. }) => {
                    let h2c_data_max = 128 << 10;
                    let response = IcResp { format: 0, alignment: 0, header_digest, data_digest, h2c_data_max };
                    outgoing.encode(&Pdu::IcResp(response), &mut out);
                    for framing in [&mut incoming, &mut outgoing] {
                        (framing.header_digest, framing.data_digest) = (header_digest, data_digest);
                    }
                }
                Pdu::CapsuleCmd(sqe, _) => {
                    let result = match (sqe.fabrics_type(), sqe.dword(11)) {
                        (fctype::CONNECT, _) => 1,
                        (fctype::PROPERTY_GET, property::CAP) => {
                            Capabilities { queue_entries_max: 127, timeout: 255 }.encode()
                        }
                        _ => 0,
                    };
                    let cqe = Cqe::new(sqe.command_id(), Status::SUCCESS, result, NO_FLOW_CONTROL);
                    outgoing.encode(&Pdu::CapsuleResp(cqe), &mut out);
                }
                _ => return None,
            }
        }
        socket.write_all(&out).ok()?;
    }
}

/// A job holds its place no longer than its store wants it, also while its device is being connected.
#[test]
fn a_job_whose_device_is_never_ready_ends_when_it_is_not_wanted() {
    let (spec, silent) = (some_spec(), listener());
    for port in [never_ready(), silent.local_addr().unwrap().port()] {
        let mut worker = worker(WorkerConfig::default());
        let mut channel = offer(&worker, port, spec.clone());
        assert_eq!(next(&mut channel), Message::Accepted { epoch: 9 });
        assert!(matches!(next(&mut channel), Message::Progress { epoch: 9, .. }));
        assert_eq!(worker.counters().running, 1);
        let since = Instant::now();
        drop(channel);
        until("its place is free", || worker.counters().running == 0);
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
        // The same when the worker ends.
        let mut channel = offer(&worker, port, spec.clone());
        assert_eq!(next(&mut channel), Message::Accepted { epoch: 9 });
        let since = Instant::now();
        worker.stop();
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    }
}

/// A clock that is ten times as fast.
#[derive(Debug, Default)]
struct Fast(rockmill_io::SystemClock);

impl Clock for Fast {
    fn now_micros(&self) -> u64 {
        self.0.now_micros()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.monotonic_nanos() * 10
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration / 10);
    }
}

/// Nor does a store that wants it.
#[test]
fn a_job_whose_device_is_never_ready_fails() {
    let worker = Worker::start(listener(), WorkerConfig::default(), Arc::new(Fast::default())).unwrap();
    let mut channel = offer(&worker, never_ready(), some_spec());
    assert_eq!(next(&mut channel), Message::Accepted { epoch: 9 });
    // The controller says that it takes up to 128 seconds, and there are 30 for all.
    let since = Instant::now();
    let Message::Refused { reason, .. } = answer(&mut channel) else { panic!("no refusal") };
    assert!(reason.contains("in time"), "{reason}");
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
}

/// Once a connection is lost no call waits for an answer anew.
#[test]
fn a_device_whose_connection_is_lost_answers_at_once() {
    lost_connection(None, None);
    if cfg!(feature = "tls") {
        let psk = TlsKey::generate(&SystemRandom).unwrap().psk(WORKER, SUBSYSTEM);
        lost_connection(Some(ServerTls::new(vec![psk.clone()]).unwrap()), Some(ClientTls::new(&psk).unwrap()));
    }
}

fn lost_connection(server: Option<ServerTls>, tls: Option<ClientTls>) {
    let device = Arc::new(Broken { waits: true, ..Broken::default() });
    let server = serve_with(&device, server);
    let place = Place {
        address: server.address(),
        subsystem: SUBSYSTEM.to_owned(),
        name: WORKER.to_owned(),
        host_id: [3; 16],
        auth: None,
        tls,
    };
    let cutter = Cutter::default();
    let theirs = NvmeDevice::connect_cuttable(place, cutter.clone(), clock()).unwrap();
    thread::scope(|scope| {
        let reads = scope.spawn(|| theirs.read(0, &mut [0; DEVICE_BLOCK]).unwrap_err());
        until("the device is read", || device.was_asked.load(Ordering::Acquire));
        let since = Instant::now();
        cutter.cut();
        reads.join().unwrap();
        for _ in 0..3 {
            theirs.read(0, &mut [0; DEVICE_BLOCK]).unwrap_err();
            let e = theirs.write(0, &[0; DEVICE_BLOCK]).unwrap_err();
            assert_eq!(e.kind(), std::io::ErrorKind::NotConnected);
        }
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    });
    device.let_go.store(true, Ordering::Release);
}

#[test]
fn a_job_that_one_worker_fails_at_goes_to_another_one() {
    let asked = Arc::new(AtomicU64::new(0));
    let drops = |asked: &Arc<AtomicU64>| {
        let asked = Arc::clone(asked);
        Rogue::start(move |channel| {
            asked.fetch_add(1, Ordering::Relaxed);
            drop(channel);
        })
    };
    let (first, second, good) = (drops(&asked), drops(&asked), worker(WorkerConfig::default()));
    let counters = run_counted(config(&[first.address, good.address()]));
    let n = counters.compactions_elsewhere;
    assert!(n > 0 && counters.compactions_returned == 0, "{counters:?}");
    assert_eq!(counters.compactions_offered_again, n, "{counters:?}");
    assert!(counters.elsewhere_round_trips > 0 && counters.elsewhere_wire_bytes > counters.elsewhere_read_bytes);
    assert_eq!(asked.load(Ordering::Relaxed), n);
    // Two at most are asked, also where there is a third.
    let done_before = good.counters().done;
    let counters = run_counted(config(&[first.address, second.address, good.address()]));
    let n = counters.compactions_returned;
    assert!(n > 0 && counters.compactions_elsewhere == 0, "{counters:?}");
    assert_eq!((counters.compactions_offered_again, good.counters().done), (n, done_before), "{counters:?}");
    // Without a second one it is done here.
    let counters = run_counted(config(&[first.address]));
    assert!(counters.compactions_returned > 0 && counters.compactions_offered_again == 0, "{counters:?}");
}

/// One that gives back what is of no use is left alone for a while, as one that fails openly.
#[test]
fn a_worker_whose_result_is_refused_gets_no_job_for_a_while() {
    let rogue = Rogue::start(|mut channel| {
        let job = rogues::take(&mut channel);
        let mut result = rogues::work(&job.spec, Arc::new(job.device));
        result.outcome.as_mut().unwrap().stats.output_records += 1;
        channel.tell(&rogues::done(job.epoch, &result)).unwrap();
    });
    let paused = |workers: &[SocketAddr]| WorkersConfig { pause: Duration::from_secs(3600), ..config(workers) };
    assert_eq!(run_database(paused(&[rogue.address])), (0, 1));
    let good = worker(WorkerConfig::default());
    let counters = run_counted(paused(&[rogue.address, good.address()]));
    assert!(counters.compactions_elsewhere > 0 && counters.compactions_returned == 0, "{counters:?}");
    assert_eq!(counters.compactions_offered_again, 1, "{counters:?}");
}

/// Asks for a page, and gives all of the answer.
fn ask(server: &MetricsServer, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_there_for_prometheus() {
    let worker = worker(WorkerConfig { jobs_max: 3, ..WorkerConfig::default() });
    let server = MetricsServer::start(listener(), worker.metrics(), clock()).unwrap();
    let (elsewhere, _) = run_database(config(&[worker.address()]));
    worker.drain();
    let page = ask(&server, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("# EOF\n"), "{page}");
    let value = |name: &str| -> u64 {
        let mut lines = page.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        lines.next().unwrap_or_else(|| panic!("no {name} in {page}"))
    };
    assert_eq!(value("rockmill_worker_jobs_done_total "), elsewhere);
    assert_eq!((value("rockmill_worker_jobs_max "), value("rockmill_worker_draining ")), (3, 1));
    for name in ["input_bytes", "output_bytes", "job_micros", "round_trips", "sent_bytes", "received_bytes"] {
        assert!(value(&format!("rockmill_worker_{name}_total ")) > 0, "{name} in {page}");
    }
    assert!(page.contains(&format!("name=\"{WORKER}\"")), "{page}");
    assert!(ask(&server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(&server, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    // One who says too much gets no answer, and one who says nothing holds nobody for long.
    let silent = TcpStream::connect(server.address()).unwrap();
    let mut loud = TcpStream::connect(server.address()).unwrap();
    let _ = loud.write_all(&[b'a'; 20_000]);
    assert!(ask(&server, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    drop((silent, loud));
}
