//! Workers that die, are silent, lie, or write when they should not: the job is done by the store, and nothing is left.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use rockmill::internals::{JobRegistry, JobResult, WorkerDevice, WorkerMachine};
use rockmill_nvme::fabrics::DISCOVERY_NQN;
use rockmill_nvme::initiator::{HostConfig, QueueConfig};
use rockmill_nvme::status::Status;
use rockmill_nvme::tcp::TcpHost;

use super::*;
use crate::VERSION;
use crate::device::{NvmeDevice, Place};

/// What a rogue has of an offer.
pub(super) struct Job {
    pub epoch: u64,
    pub spec: Vec<u8>,
    pub device: NvmeDevice,
}

/// Takes an offer as a worker should, and connects to its device.
pub(super) fn take(channel: &mut Channel) -> Job {
    channel.greet_store(WORKER, None, &|| false).unwrap();
    let Message::Offer { epoch, subsystem, port, spec, .. } = next(channel) else { panic!("no offer") };
    channel.tell(&Message::Accepted { epoch }).unwrap();
    let address = SocketAddr::new(channel.stream().peer_addr().unwrap().ip(), port);
    let place = Place { address, subsystem, name: WORKER.to_owned(), host_id: [3; 16], auth: None, tls: None };
    Job { epoch, spec, device: NvmeDevice::connect(place, clock()).unwrap() }
}

/// Does a job as a worker should.
pub(super) fn work(spec: &[u8], device: Arc<dyn WorkerDevice>) -> JobResult {
    let machine = WorkerMachine::new(JobRegistry::default(), 1, clock());
    let spec = machine.accept(spec).unwrap();
    machine.run(&spec, device, &Arc::default())
}

/// What a worker says that has done a job.
pub(super) fn done(epoch: u64, result: &JobResult) -> Message {
    Message::Done { epoch, usage: RemoteUsage::default(), result: result.encode().unwrap() }
}

/// Every job comes back from such a worker.
#[track_caller]
fn all_come_back(config_of: impl FnOnce(WorkersConfig) -> WorkersConfig, act: impl Fn(Channel) + Send + 'static) {
    let rogue = Rogue::start(act);
    let (elsewhere, returned) = run_database(config_of(config(&[rogue.address])));
    assert!(elsewhere == 0 && returned > 0, "{elsewhere} done elsewhere, {returned} came back");
}

#[test]
fn a_worker_of_another_version_or_none() {
    all_come_back(
        |c| c,
        |mut channel| {
            let _ = next(&mut channel);
            let name = WORKER.to_owned();
            let _ = channel.tell(&Message::Welcome { version: VERSION + 1, name, authenticates: false });
        },
    );
    all_come_back(|c| c, drop);
    // Nobody listens there.
    let address = listener().local_addr().unwrap();
    let (elsewhere, returned) = run_database(config(&[address]));
    assert!(elsewhere == 0 && returned > 0);
}

#[test]
fn a_worker_that_dies_in_the_middle() {
    all_come_back(
        |c| c,
        |mut channel| {
            let job = take(&mut channel);
            let (machine, dies_at) = (WorkerMachine::new(JobRegistry::default(), 1, clock()), 2);
            let spec = machine.accept(&job.spec).unwrap();
            /// Its connections end at the second write.
            #[derive(Debug)]
            struct Dying(parking_lot::Mutex<Option<NvmeDevice>>, u64, AtomicU64, u64);
            impl WorkerDevice for Dying {
                fn bytes(&self) -> u64 {
                    self.1
                }
                fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
                    self.0.lock().as_ref().ok_or(io::ErrorKind::NotConnected)?.read(offset, into)
                }
                fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
                    let mut device = self.0.lock();
                    if self.2.fetch_add(1, Ordering::Relaxed) + 1 == self.3 {
                        device.take();
                    }
                    device.as_ref().ok_or(io::ErrorKind::NotConnected)?.write(offset, data)
                }
            }
            let bytes = job.device.bytes();
            let device = Dying(parking_lot::Mutex::new(Some(job.device)), bytes, AtomicU64::new(0), dies_at);
            let result = machine.run(&spec, Arc::new(device), &Arc::default());
            assert!(result.outcome.is_err());
        },
    );
}

#[test]
fn a_worker_that_is_silent() {
    let short = |c| WorkersConfig { silence_max: Duration::from_secs(1), ..c };
    all_come_back(short, |mut channel| {
        let job = take(&mut channel);
        // Until the store gives it up.
        while !matches!(channel.receive(Duration::from_secs(10)), Ok(Some(Message::Cancel { .. })) | Err(_)) {}
        job.device.read(0, &mut [0; 4096]).unwrap_err();
    });
}

#[test]
fn a_worker_that_says_what_makes_no_sense() {
    for said in [
        |epoch: u64| Message::Done { epoch: epoch + 1, usage: RemoteUsage::default(), result: Vec::new() },
        |epoch: u64| Message::Done { epoch, usage: RemoteUsage::default(), result: vec![1, 2, 3] },
        |epoch: u64| Message::Accepted { epoch },
        |epoch: u64| Message::Cancel { epoch },
    ] {
        all_come_back(
            |c| c,
            move |mut channel| {
                let job = take(&mut channel);
                channel.tell(&said(job.epoch)).unwrap();
                let _ = channel.receive(Duration::from_secs(10));
            },
        );
    }
}

#[test]
fn a_worker_that_writes_something_else() {
    /// Changes a byte of every block that it writes.
    #[derive(Debug)]
    struct Damaging(NvmeDevice);
    impl WorkerDevice for Damaging {
        fn bytes(&self) -> u64 {
            self.0.bytes()
        }
        fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            self.0.read(offset, into)
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            let mut data = data.to_vec();
            let middle = data.len() / 2;
            data[middle] ^= 4;
            self.0.write(offset, &data)
        }
    }
    all_come_back(
        |c| c,
        |mut channel| {
            let job = take(&mut channel);
            let result = work(&job.spec, Arc::new(Damaging(job.device)));
            assert!(result.outcome.is_ok());
            channel.tell(&done(job.epoch, &result)).unwrap();
        },
    );
}

#[test]
fn a_worker_that_counts_wrongly() {
    all_come_back(
        |c| c,
        |mut channel| {
            let job = take(&mut channel);
            let mut result = work(&job.spec, Arc::new(job.device));
            result.outcome.as_mut().unwrap().stats.output_records += 1;
            channel.tell(&done(job.epoch, &result)).unwrap();
        },
    );
}

#[test]
fn a_worker_that_writes_where_it_may_not() {
    all_come_back(
        |c| c,
        |mut channel| {
            let job = take(&mut channel);
            let block = [0xdb; 4096];
            // The inputs, behind the end, in the middle of an output, and nothing at all.
            job.device.write(0, &block).unwrap_err();
            job.device.write(job.device.bytes(), &block).unwrap_err();
            job.device.write(job.device.bytes() - 4096, &block).unwrap_err();
            job.device.read(job.device.bytes() - 4096, &mut [0; 4096]).unwrap_err();
            let mut first = [0; 4096];
            job.device.read(0, &mut first).unwrap();
            assert_ne!(first, block);
            channel.tell(&Message::Refused { epoch: job.epoch, reason: "enough seen".to_owned() }).unwrap();
        },
    );
}

/// The worker's result is good, and it goes on writing, to an output that its result does not have. What it writes
/// before the fence is removed, what it writes after it does not arrive.
#[test]
fn a_worker_that_writes_on_when_it_is_done() {
    let late = Arc::new(AtomicU64::new(0));
    let refused = Arc::clone(&late);
    let rogue = Rogue::start(move |mut channel| {
        let job = take(&mut channel);
        let machine = WorkerMachine::new(JobRegistry::default(), 1, clock());
        let spec = machine.accept(&job.spec).unwrap();
        let place = spec.space.last().copied().unwrap();
        let device = Arc::new(job.device);
        let result = machine.run(&spec, Arc::clone(&device) as Arc<dyn WorkerDevice>, &Arc::default());
        channel.tell(&done(job.epoch, &result)).unwrap();
        for i in 0..place.length / 4096 {
            if device.write(place.offset + i * 4096, &[0xdb; 4096]).is_err() {
                refused.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        device.write(place.offset, &[0xdb; 4096]).unwrap_err();
    });
    let (elsewhere, returned) = run_database(config(&[rogue.address]));
    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
    drop(rogue);
    assert_eq!(late.load(Ordering::Relaxed), elsewhere);
}

/// Peers that do not authenticate keep no worker from its job, with connections or with the discovery service.
#[test]
fn strangers_at_a_job_s_port_take_no_place() {
    let rogue = Rogue::start(|mut channel| {
        channel.greet_store(WORKER, None, &|| false).unwrap();
        let Message::Offer { epoch, subsystem, port, spec, .. } = next(&mut channel) else { panic!("no offer") };
        channel.tell(&Message::Accepted { epoch }).unwrap();
        let address = SocketAddr::new(channel.stream().peer_addr().unwrap().ip(), port);
        let idle: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let config = HostConfig {
            subsystem: DISCOVERY_NQN.to_owned(),
            host: WORKER.to_owned(),
            host_id: [4; 16],
            keep_alive_ms: 0,
            auth: None,
            queue: QueueConfig::default(),
        };
        let e = TcpHost::connect(address, config, clock()).unwrap_err();
        assert_eq!(e.status(), Some(Status::CONNECT_INVALID_PARAMETERS), "{e}");
        let place = Place { address, subsystem, name: WORKER.to_owned(), host_id: [3; 16], auth: None, tls: None };
        let device = NvmeDevice::connect(place, clock()).unwrap();
        let more: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let result = work(&spec, Arc::new(device));
        channel.tell(&done(epoch, &result)).unwrap();
        drop((idle, more));
    });
    let (elsewhere, returned) = run_database(config(&[rogue.address]));
    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
}

/// A database that is closed does not wait for a worker.
#[test]
fn a_database_that_closes_gives_a_job_up() {
    let (asked, was_asked) = std::sync::mpsc::channel();
    let rogue = Rogue::start(move |mut channel| {
        let job = take(&mut channel);
        let _ = asked.send(());
        loop {
            let _ = channel.tell(&Message::Progress { epoch: job.epoch, bytes: 1 });
            if !matches!(channel.receive(Duration::from_millis(50)), Ok(None)) {
                return;
            }
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(config(&[rogue.address]));
    let db = Db::open(&options, dir.path()).unwrap();
    let all = fill(&db, 3);
    drop(db);
    options.set_disable_auto_compactions(false);
    options.set_level_zero_file_num_compaction_trigger(2);
    let db = Db::open(&options, dir.path()).unwrap();
    was_asked.recv_timeout(Duration::from_secs(30)).unwrap();
    drop(db);
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, dir.path()).unwrap();
    assert!(contents(&db) == all);
    nothing_is_left(&db, dir.path());
}
