//! The device of a job as a block device of the kernel's: the kernel connects to the store, not this process. The
//! engines read and write it as a file, past the page cache.
//!
//! - Nothing waits for ever: without a connection reads and writes fail, and then the controller goes, both before the
//!   lease could end ([`Times`]).
//! - The controller is deleted when the job is over, however it ends, also where the store no longer wants it
//!   ([`DeviceEnd`]). What a killed process leaves goes by itself, since the store is no longer there to connect to, or
//!   when the next worker starts.
//! - The kernel sends commands in any order. So a write is one command, and an output has one at a time.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rockmill::internals::{DEVICE_BLOCK, DeviceFile, WorkerDevice};
use rockmill_io::error::raw_os_error;
use rockmill_io::{BlockDevice, Clock};
use rockmill_nvme::kernel::{DiskCounters, KernelConfig, KernelController, KernelDisk, KernelInitiator};
use rockmill_nvme::tcp::Cutter;

use super::{CONNECT_TIMEOUT, Place, READ_QUEUES, lost};

/// However long the store waits, a connection that was lost is noticed in so long, and given up after twice that.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of one write, at most.
const WRITE_BYTES: usize = 1 << 20;
/// How often it is looked whether the device is there.
const POLL: Duration = Duration::from_millis(5);

/// How long the kernel waits, from how long the store waits for a worker that says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    keep_alive: Duration,
    io_fails_after: Duration,
    gives_up_after: Duration,
}

impl Times {
    /// The kernel notices a lost connection after one and a half times the keep alive time. Then the other two begin.
    fn of(silence: Duration) -> Self {
        let short = (silence * 3 / 10).min(WAIT_MAX);
        Self { keep_alive: short, io_fails_after: short, gives_up_after: (silence / 2).min(2 * WAIT_MAX) }
    }
}

/// Ends a job's device from outside, also while it is being connected to.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceEnd {
    /// The connections of this process.
    pub cutter: Cutter,
    controller: Arc<Mutex<Option<Arc<KernelController>>>>,
}

impl DeviceEnd {
    /// Ends it: reads and writes fail, and nothing of it is left when this returns.
    pub fn cut(&self) {
        self.cutter.cut();
        let controller = self.controller.lock().take(); // not held while the kernel works
        if let Some(controller) = controller {
            let _ = controller.delete(); // whoever has the device asks, too, and tells
        }
    }

    fn watch(&self, controller: &Arc<KernelController>) {
        *self.controller.lock() = Some(Arc::clone(controller));
    }
}

/// A namespace that another machine serves, as a block device.
#[derive(Debug)]
pub(crate) struct KernelDevice {
    disk: BlockDevice,
    known: KernelDisk,
    write_bytes_max: usize,
    controller: Arc<KernelController>,
}

impl KernelDevice {
    /// Has the kernel connect. `silence`: how long the store waits for a worker that says nothing.
    ///
    /// # Errors
    /// Why that failed.
    pub fn connect(
        kernel: &KernelInitiator,
        place: &Place,
        silence: Duration,
        end: &DeviceEnd,
        clock: &dyn Clock,
    ) -> io::Result<Self> {
        let now = || Duration::from_nanos(clock.monotonic_nanos());
        let until = now() + CONNECT_TIMEOUT;
        let goes_on = || match (end.cutter.is_cut(), now() < until) {
            (true, _) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the device is no longer wanted")),
            (_, false) => Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel has made no device in time")),
            _ => Ok(()),
        };
        let controller = Arc::new(Self::controller(kernel, config(place, silence), &goes_on)?);
        end.watch(&controller);
        loop {
            // After that, or it could have been missed.
            if let Err(e) = goes_on() {
                controller.delete()?;
                return Err(e);
            }
            // A name is told before its file is there, and others have a look at new devices.
            if let Some(known) = controller.disk(&place.subsystem)? {
                match BlockDevice::open(&known.path) {
                    // Names and numbers are used again: what was ours before it was opened could be another job's.
                    Ok(disk) if controller.disk(&place.subsystem)?.as_ref() == Some(&known) => {
                        return Self::of(disk, known, controller);
                    }
                    Ok(_) => {}
                    Err(e) if is_not_ready(&e) => {}
                    Err(e) => return Err(e),
                }
            }
            clock.sleep(POLL);
        }
    }

    /// The kernel's call cannot be ended, so nobody waits for it any longer than the job is wanted. What comes of it
    /// then is deleted where it arrives.
    fn controller(
        kernel: &KernelInitiator,
        config: KernelConfig,
        goes_on: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<KernelController> {
        // The kernel connects one at a time. Who waits for that here leaves nothing behind when the job is over.
        let turn = loop {
            if let Some(turn) = Turn::take() {
                break turn;
            }
            goes_on()?;
            thread::sleep(POLL);
        };
        let (tells, told) = mpsc::channel();
        let kernel = kernel.clone();
        let connects = move || {
            let connected = kernel.connect(&config);
            drop(turn);
            drop(tells.send(connected));
        };
        thread::Builder::new().name("nvme-connect".into()).spawn(connects)?;
        loop {
            match told.recv_timeout(POLL) {
                Ok(connected) => return connected,
                Err(mpsc::RecvTimeoutError::Timeout) => goes_on()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(lost()),
            }
        }
    }

    fn of(disk: BlockDevice, known: KernelDisk, controller: Arc<KernelController>) -> io::Result<Self> {
        let wrong = |what: String| Err(io::Error::other(format!("{}: {what}", disk.path().display())));
        if disk.numbers()?.is_some_and(|numbers| numbers != known.numbers) {
            return wrong("another device than the one that the kernel made".to_owned());
        }
        if known.block_bytes != DEVICE_BLOCK {
            return wrong(format!("blocks of {} bytes, where a job's device has {DEVICE_BLOCK}", known.block_bytes));
        }
        let most = known.command_bytes.min(WRITE_BYTES);
        let write_bytes_max = most - most % DEVICE_BLOCK;
        if write_bytes_max < 2 * DEVICE_BLOCK {
            return wrong(format!("writes of at most {} bytes", known.command_bytes));
        }
        Ok(Self { disk, known, write_bytes_max, controller })
    }

    /// What went to and from it.
    pub fn counters(&self) -> DiskCounters {
        self.controller.counters(&self.known)
    }

    /// Deletes it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn delete(&self) -> io::Result<()> {
        self.controller.delete()
    }
}

impl Drop for KernelDevice {
    fn drop(&mut self) {
        let _ = self.delete(); // who wants to know has called it
    }
}

/// Whoever has this may have the kernel connect.
struct Turn;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

impl Turn {
    fn take() -> Option<Self> {
        (!IS_TAKEN.swap(true, Ordering::AcqRel)).then_some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IS_TAKEN.store(false, Ordering::Release);
    }
}

/// "No such device or address": the kernel has made the file of a disk, and not the disk yet.
const ENXIO: i32 = 6;

fn is_not_ready(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy) || raw_os_error(e) == Some(ENXIO)
}

fn config(place: &Place, silence: Duration) -> KernelConfig {
    let Times { keep_alive, io_fails_after, gives_up_after } = Times::of(silence);
    KernelConfig {
        address: place.address,
        subsystem: place.subsystem.clone(),
        host: place.name.clone(),
        host_id: place.host_id,
        secrets: place.auth.as_ref().map(|auth| (auth.secret.clone(), auth.controller.clone())),
        queues: (READ_QUEUES, 1),
        digests: true,
        keep_alive,
        io_fails_after,
        gives_up_after,
    }
}

impl WorkerDevice for KernelDevice {
    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut at = offset;
        for piece in data.chunks(self.write_bytes_max) {
            self.disk.write(at, piece)?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    fn file(&self) -> Option<DeviceFile> {
        Some(DeviceFile { fd: self.disk.raw_fd(), write_bytes_max: self.write_bytes_max })
    }
}

#[cfg(test)]
mod tests;
