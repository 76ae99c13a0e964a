//! Jobs of a worker whose device is a file of the kernel's, with each engine: the tables are the same, byte by byte.
//! Here a regular file stands for the block device, and is brought to the store's device when the job is done.

use std::io;
use std::path::Path;

use rockmill_io::BlockDevice;

use super::device::{numbered, taken};
use super::elsewhere::registry;
use super::*;
use crate::compaction::elsewhere as remote;
use crate::compaction::worker::{DeviceFile, WorkerDevice, WorkerMachine};
use crate::compaction_workers::{RemoteDone, RemoteJob, RemoteUsage, TableCheck, TakenWorker, whole_blocks};
use crate::error::Result;

/// Bytes of one write: less than a table of these tests has.
const WRITE_BYTES: usize = 8 << 10;

#[derive(Debug)]
struct FileDevice(BlockDevice);

impl WorkerDevice for FileDevice {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn file(&self) -> Option<DeviceFile> {
        Some(DeviceFile { fd: self.0.raw_fd(), write_bytes_max: WRITE_BYTES })
    }
}

#[derive(Debug)]
struct OnFile {
    machine: WorkerMachine,
    path: PathBuf,
}

impl TakenWorker for OnFile {
    fn place(&self) -> usize {
        0
    }

    fn rejected(&self) {}

    fn check(&self) -> TableCheck {
        TableCheck::All
    }

    fn run(&self, job: &RemoteJob<'_>) -> Result<RemoteDone> {
        let spec = self.machine.accept(job.spec)?;
        std::fs::File::create(&self.path).unwrap().set_len(job.device.bytes()).unwrap();
        let disk = BlockDevice::open(&self.path).unwrap();
        let mut inputs = vec![0; job.device.outputs_at() as usize];
        job.device.read(0, &mut inputs).unwrap();
        disk.write(0, &inputs).unwrap();
        let device = Arc::new(FileDevice(disk));
        let result = self.machine.run(&spec, Arc::clone(&device) as Arc<dyn WorkerDevice>, &Arc::default());
        if let Ok(made) = &result.outcome {
            let places: Vec<_> = spec.leased_numbers().into_iter().zip(&spec.space).collect();
            for file in &made.files {
                let place = places.iter().find(|(number, _)| *number == file.number).unwrap().1;
                let mut bytes = vec![0; whole_blocks(file.size).unwrap() as usize];
                device.read(place.offset, &mut bytes).unwrap();
                job.device.write(place.offset, &bytes).unwrap();
            }
        }
        Ok(RemoteDone { result: result.encode()?, worker: "here".to_owned(), usage: RemoteUsage::default() })
    }
}

fn machine(clock: &Arc<dyn rockmill_io::Clock>, threads: usize) -> WorkerMachine {
    WorkerMachine::new(registry(), threads, Arc::clone(clock)).with_kernel_driver(kernel_driver())
}

/// Whether files in this directory can stand for devices.
fn takes_direct_io(test: &str, dir: &Path) -> bool {
    let path = dir.join("probe");
    std::fs::write(&path, [0; 4096]).unwrap();
    let opened = BlockDevice::open(&path);
    if let Err(e) = &opened {
        skip(test, &Needs::DirectIo.because(e));
    }
    opened.is_ok()
}

#[test]
fn each_engine_writes_the_same_tables_on_a_file_of_the_kernel_s() {
    let dir = tempfile::tempdir().unwrap();
    if !takes_direct_io("each_engine_writes_the_same_tables_on_a_file_of_the_kernel_s", dir.path()) {
        return;
    }
    let fs = Arc::new(MemFileSystem::new());
    let place = PathBuf::from("/db");
    fs.create_dir(&place, true).unwrap();
    let options = CfOptions { target_file_size_base: 40_000, ..small_options() };
    let (tree, c) = tree_with_l0(Arc::clone(&fs) as _, place.clone(), options, 6000);
    let mut spec = tree.spec(&c);
    let before = fs.list_dir(&place).unwrap().len();
    spec.parts_max = 1; // or numbers would go to parts by chance
    let host = numbered(&tree.host());
    let here = run(&spec, &host).unwrap();
    let wanted = taken(&host, &here);
    let several = wanted.iter().filter(|table| table.len() > 2 * WRITE_BYTES).count();
    assert!(several > 1, "tables that need several writes: {:?}", wanted.iter().map(Vec::len).collect::<Vec<_>>());
    let clock = &tree.ctx.means.clock;
    let has_ring = PosixFileSystem::new().batch_probe().available;
    let engines = [MergeEngine::Pread, MergeEngine::Uring, MergeEngine::Auto, MergeEngine::Kernel];
    for engine in engines.into_iter().filter(|engine| *engine != MergeEngine::Kernel || kernel_is_there()) {
        let machine = machine(clock, 1).with_kernel_devices().with_engine(engine).unwrap();
        let worker = OnFile { machine, path: dir.path().join("device") };
        let host = numbered(&tree.host());
        let (there, _) = remote::run(&spec, &host, &worker).unwrap();
        assert_eq!(there.files, here.files, "{engine}");
        assert!(taken(&host, &there) == wanted, "{engine}: other bytes");
        let parts = worker.machine.engine_parts();
        let by = match engine {
            MergeEngine::Kernel => parts.kernel,
            MergeEngine::Uring | MergeEngine::Auto if has_ring => parts.uring,
            _ => parts.pread,
        };
        assert_eq!((by, parts.handed_over), (1, 0), "{engine}: {parts:?}");
        assert_eq!(worker.machine.ring_enters() > 0, parts.pread == 0, "{engine}");
        let program = worker.machine.program_calls();
        let looped = engine == MergeEngine::Kernel && kernel_driver() == KernelDriver::Loop;
        assert_eq!((program.0 > 0, program.1 > 0), (looped, looped), "{engine}: {program:?}");
        assert_eq!(fs.list_dir(&place).unwrap().len(), before, "{engine}");
    }
}

#[test]
fn the_engine_kernel_needs_a_file_of_the_kernel_s() {
    let clock: Arc<dyn rockmill_io::Clock> = Arc::new(ManualClock::new(0));
    let e = machine(&clock, 1).with_engine(MergeEngine::Kernel).unwrap_err();
    assert!(e.message().contains("needs a device of the kernel's") && e.message().contains("--device kernel"), "{e}");
    // With one, what this machine lacks is said.
    let made = machine(&clock, 1).with_kernel_devices().with_engine(MergeEngine::Kernel);
    assert_eq!(made.is_ok(), kernel_is_there(), "{made:?}");
    if let Err(e) = made {
        assert!(!e.message().is_empty());
    }
}

/// A key that is too long for the program, after several tables: they stay where they are, unused, and the next engine
/// takes the next places.
#[cfg(feature = "kernel")]
#[test]
fn what_the_kernel_gives_up_on_a_device_is_done_with_the_next_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let test = "what_the_kernel_gives_up_on_a_device_is_done_with_the_next_numbers";
    if !takes_direct_io(test, dir.path()) || !kernel_is_there() {
        return;
    }
    let mut tree = in_kernel::empty(CfOptions { target_file_size_base: 40_000, ..small_options() });
    for round in 0..2u64 {
        let mut m = Model::default();
        for i in 0..6000u64 {
            let seq = 1 + round * 10_000 + i;
            m.entries.push((format!("k{i:05}").into_bytes(), seq, ValueType::Value, seq.to_le_bytes().repeat(9)));
        }
        m.entries.push((vec![b'l'; 9000], 9000 + round * 10_000, ValueType::Value, b"v".to_vec()));
        tree.flush(&[m]);
    }
    let spec = tree.spec(&in_kernel::whole_level(&tree));
    let machine = machine(&tree.ctx.means.clock, 1).with_kernel_devices().with_engine(MergeEngine::Kernel).unwrap();
    let worker = OnFile { machine, path: dir.path().join("device") };
    let host = numbered(&tree.host());
    let (there, _) = remote::run(&spec, &host, &worker).unwrap();
    let parts = worker.machine.engine_parts();
    assert_eq!((parts.kernel, parts.uring + parts.pread, parts.handed_over), (0, 1, 1), "{parts:?}");
    let said = worker.machine.handed_over().unwrap_or_default();
    assert!(said.contains("a key is longer"), "{said}");
    // Where the first table would be is something else now.
    let first = there.files[0].number;
    assert!(first > 1 << 31, "the kernel wrote nothing: {first}");
    let bytes = taken(&host, &there);
    let next = AtomicU64::new(first);
    let new_file_number = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    let host = LocalHost { new_file_number, ..numbered(&tree.host()) };
    let here = run(&spec, &host).unwrap();
    assert_eq!(there.files, here.files);
    assert!(bytes == taken(&host, &here), "other bytes");
}
