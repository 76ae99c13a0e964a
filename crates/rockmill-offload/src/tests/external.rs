//! Inputs that workers read at a target that is not the store's.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rockmill_io::{FileExtent, FileSystem as _, PosixFileSystem};
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{Namespace, Target, TargetConfig};
use rockmill_nvme::tcp::{ServerConfig, TcpServer};

use super::*;
use crate::ExternalTarget;
use crate::external::External;

const DISK: &str = "nqn.2026-11.example:disk";

/// The block device that a directory is on, with nothing but the tables in there: who reads it finds what the file
/// system says is at that place.
#[derive(Debug)]
struct Disk {
    dir: PathBuf,
    block_bytes: u32,
    reads: AtomicU64,
    /// Answers reads with an error.
    fails: AtomicBool,
    /// Answers reads with what is not there.
    lies: AtomicBool,
    /// At the first read, this table moves to other blocks.
    moves: Mutex<Option<PathBuf>>,
    /// Where it was until then, and its bytes, which its old blocks still have.
    was: Mutex<Vec<(FileExtent, Vec<u8>)>>,
}

impl Disk {
    fn new(dir: &Path, block_bytes: u32) -> Arc<Self> {
        let (reads, fails, lies, moves, was) = Default::default();
        Arc::new(Self { dir: dir.to_owned(), block_bytes, reads, fails, lies, moves, was })
    }

    /// Moves a table to other blocks, as a defragmentation does.
    fn move_it(&self, table: &Path) -> std::io::Result<()> {
        let bytes = std::fs::read(table)?;
        let extents = PosixFileSystem::default().open_random(table, false)?.extents()?.extents;
        let old = extents.into_iter().map(|e| (e, bytes[e.offset as usize..].to_vec()));
        self.was.lock().extend(old);
        let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(table)?;
        let mut other = std::fs::File::create(self.dir.join("in its place"))?;
        for file in [&mut other, &mut file] {
            file.write_all(&bytes)?;
            file.sync_all()?;
        }
        Ok(())
    }

    /// What is there, as far as a table is.
    fn find(&self, mut at: u64, mut into: &mut [u8]) -> std::io::Result<()> {
        let tables = std::fs::read_dir(&self.dir)?.map(|e| e.unwrap().path());
        let tables: Vec<_> = tables.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect();
        let was = self.was.lock();
        while !into.is_empty() {
            if let Some((e, bytes)) = was.iter().find(|(e, _)| (e.device_offset..e.device_offset + e.len).contains(&at))
            {
                let from = (at - e.device_offset) as usize;
                let now = into.len().min(e.len as usize - from);
                let (piece, rest) = into.split_at_mut(now);
                let there = bytes.len().saturating_sub(from).min(now);
                piece[..there].copy_from_slice(&bytes[from.min(bytes.len())..][..there]);
                piece[there..].fill(0);
                (at, into) = (at + now as u64, rest);
                continue;
            }
            let found = tables.iter().find_map(|path| {
                let file = PosixFileSystem::default().open_random(path, false).ok()?;
                let extents = file.extents().ok()?.extents;
                let there = extents.into_iter().find(|e| (e.device_offset..e.device_offset + e.len).contains(&at))?;
                let into_it = at - there.device_offset;
                Some((file, there.offset + into_it, there.len - into_it))
            });
            let (file, offset, left) = found.ok_or(std::io::ErrorKind::NotFound)?;
            let now = into.len().min(left as usize);
            let (piece, rest) = into.split_at_mut(now);
            let read = file.read_at(offset, piece)?;
            piece[read..].fill(0);
            (at, into) = (at + now as u64, rest);
        }
        Ok(())
    }
}

impl Namespace for Disk {
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn blocks(&self) -> u64 {
        u64::MAX / 4096 / 1024
    }

    fn read_only(&self) -> bool {
        true
    }

    fn nguid(&self) -> [u8; 16] {
        [3; 16]
    }

    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status> {
        self.reads.fetch_add(1, Ordering::AcqRel);
        let at = first * u64::from(self.block_bytes);
        if let Some(table) = self.moves.lock().take() {
            self.move_it(&table).unwrap();
        }
        if self.fails.load(Ordering::Acquire) {
            return Err(Status::UNRECOVERED_READ_ERROR);
        }
        self.find(at, into).map_err(|_| Status::UNRECOVERED_READ_ERROR)?;
        if self.lies.load(Ordering::Acquire) {
            into.iter_mut().skip(99).step_by(1000).for_each(|byte| *byte ^= 0x10);
        }
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Status> {
        panic!("nobody may write there");
    }

    fn write_zeroes(&self, _: u64, _: u32) -> Result<(), Status> {
        panic!("nobody may write there");
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// A database with tables, a worker, and the target with the database's device; `None` where the file system does not
/// say where files lie.
struct Setting {
    dir: tempfile::TempDir,
    disk: Arc<Disk>,
    server: TcpServer,
    worker: Worker,
    all: Contents,
}

fn setting(test: &str, block_bytes: u32) -> Option<Setting> {
    let dir = tempfile::tempdir().unwrap();
    let probe = dir.path().join("probe");
    std::fs::write(&probe, [1; 5000]).unwrap();
    let probed = PosixFileSystem::default().open_random(&probe, false).unwrap().extents();
    if let Err(e) = probed {
        rockmill_skip::skip(test, &rockmill_skip::Needs::Extents.because(e));
        return None;
    }
    std::fs::remove_file(&probe).unwrap();
    let db = Db::open(&options(config(&[])), dir.path()).unwrap();
    let all = fill(&db, 5);
    drop(db);
    let disk = Disk::new(dir.path(), block_bytes);
    let target = Target::new(TargetConfig::new(DISK)).unwrap();
    target.add_namespace(3, Arc::clone(&disk) as Arc<dyn Namespace>).unwrap();
    let server = TcpServer::start_with(listener(), target, ServerConfig::default(), None, clock()).unwrap();
    let worker = worker(WorkerConfig::default());
    Some(Setting { dir, disk, server, worker, all })
}

impl Setting {
    fn target(&self) -> ExternalTarget {
        format!("{},{DISK},3,/dev/of-the-test", self.server.address()).parse().unwrap()
    }

    /// Opens the database with this target on the device that it is on, or another one.
    fn open(&self, config: WorkersConfig, device: Option<u64>) -> Db {
        let device = device.unwrap_or_else(|| std::fs::metadata(self.dir.path()).unwrap().dev());
        let external = External::on(self.target(), device);
        let mut options = options(super::config(&[]));
        options.set_compaction_workers(Workers::with_external(config, Some(external), clock()).unwrap());
        Db::open(&options, self.dir.path()).unwrap()
    }

    /// Compacts all, and looks whether all is there; gives how many jobs were done elsewhere and how many came back.
    fn compact(&self, db: &Db) -> (u64, u64) {
        compact(db);
        assert!(contents(db) == self.all);
        nothing_is_left(db, self.dir.path());
        let counters = db.counters();
        (counters.compactions_elsewhere, counters.compactions_returned)
    }

    fn config(&self) -> WorkersConfig {
        config(&[self.worker.address()])
    }

    fn reads(&self) -> u64 {
        self.disk.reads.load(Ordering::Acquire)
    }

    /// The database's log, which is whole once it is closed.
    fn log(&self, db: Db) -> String {
        drop(db);
        std::fs::read_to_string(self.dir.path().join("LOG")).unwrap()
    }
}

/// Tables that were made with and without the target are the same.
#[test]
fn inputs_are_read_at_the_external_target_and_nothing_is_written_there() {
    for block_bytes in [512, 4096] {
        let Some(setting) = setting("inputs at an external target", block_bytes) else { return };
        let db = setting.open(setting.config(), None);
        let input: u64 = db.live_files().unwrap().iter().map(|f| f.size as u64).sum();
        let (elsewhere, returned) = setting.compact(&db);
        assert!(elsewhere > 0 && returned == 0, "{elsewhere} {returned}");
        let log = setting.log(db);
        assert!(setting.reads() > 0 && log.contains("with the external target"), "{log}");
        // What the store sent is what the worker needs besides inputs: nearly nothing.
        let counters = setting.worker.counters();
        assert!(counters.received_bytes >= input, "{counters:?} of {input}");
    }
}

#[test]
fn a_job_that_fails_at_the_target_is_done_all_the_same() {
    let Some(setting) = setting("an external target that fails", 4096) else { return };
    setting.disk.fails.store(true, Ordering::Release);
    let other = worker(WorkerConfig::default());
    let config = config(&[setting.worker.address(), other.address()]);
    let db = setting.open(WorkersConfig { pause: Duration::from_secs(600), ..config }, None);
    // The second worker is not sent there any more.
    let (elsewhere, _) = setting.compact(&db);
    assert!(elsewhere > 0 && setting.reads() > 0);
    let log = setting.log(db);
    assert!(log.contains("with the external target"), "{log}");
    assert!(log.contains("(not at the external target: a job failed with it lately)"), "{log}");
}

/// The blocks' checksums tell, so that nothing wrong becomes a table.
#[test]
fn what_is_not_the_tables_bytes_is_not_merged() {
    let Some(setting) = setting("an external target that lies", 4096) else { return };
    setting.disk.lies.store(true, Ordering::Release);
    let db = setting.open(setting.config(), None);
    let (elsewhere, returned) = setting.compact(&db);
    assert!(elsewhere == 0 && returned > 0, "{elsewhere} {returned}");
}

/// Whoever moves an input while it is read: the result is not taken, whatever it is.
#[test]
fn a_result_is_not_taken_if_inputs_were_moved_meanwhile() {
    let Some(setting) = setting("inputs that move", 4096) else { return };
    let db = setting.open(setting.config(), None);
    let first = db.live_files().unwrap().remove(0);
    *setting.disk.moves.lock() = Some(setting.dir.path().join(first.name.trim_start_matches('/')));
    let (_, returned) = setting.compact(&db);
    assert!(returned > 0);
    let log = setting.log(db);
    assert!(log.contains("the file system moved its inputs while they were read"), "{log}");
}

#[test]
fn where_inputs_are_not_on_the_targets_device_they_come_from_the_store() {
    let Some(setting) = setting("an external target of another device", 4096) else { return };
    let db = setting.open(setting.config(), Some(u64::MAX));
    let (elsewhere, returned) = setting.compact(&db);
    assert!(elsewhere > 0 && returned == 0 && setting.reads() == 0);
    let log = setting.log(db);
    assert!(log.contains("(not at the external target: an input is on another device)"), "{log}");
}

#[test]
fn a_target_that_is_not_there_costs_nothing_but_its_use() {
    let Some(mut setting) = setting("an external target that is gone", 4096) else { return };
    setting.server.stop();
    let db = setting.open(setting.config(), None);
    let (elsewhere, returned) = setting.compact(&db);
    assert!(elsewhere > 0 && returned == 0 && setting.reads() == 0);
}

/// A worker with secrets does not read at a target that it has none of; the store sends all then.
#[test]
fn a_worker_with_secrets_does_not_read_at_strangers() {
    let Some(mut setting) = setting("an external target without a secret", 4096) else { return };
    let (of_host, of_worker) = secrets();
    setting.worker = worker(WorkerConfig { secrets: Some(of_worker), ..WorkerConfig::default() });
    let db = setting.open(WorkersConfig { secrets: Some(of_host), ..setting.config() }, None);
    let (elsewhere, returned) = setting.compact(&db);
    assert!(elsewhere > 0 && returned == 0 && setting.reads() == 0);
}

#[test]
fn a_target_on_another_machine_needs_secrets_or_permission() {
    let external: ExternalTarget = format!("192.0.2.1:4420,{DISK},1,/dev/null").parse().unwrap();
    let open = WorkersConfig { external: Some(external.clone()), ..config(&[]) };
    let e = Workers::with_external(open.clone(), Some(External::on(external.clone(), 1)), clock()).unwrap_err();
    assert!(e.to_string().contains("without secrets"), "{e}");
    let allowed = WorkersConfig { allow_unauthenticated: true, ..open.clone() };
    Workers::with_external(allowed, Some(External::on(external, 1)), clock()).unwrap();
    let e = Workers::new(open, clock()).unwrap_err();
    assert!(e.to_string().contains("/dev/null: not a block device"), "{e}");
}
