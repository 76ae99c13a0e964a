//! What both directions use of the kernel: its files, and devices that come and go.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rockmill_io::{Clock, SystemClock};
use rockmill_skip::{Missing, Needs, skip};

/// Where the kernel's target is configured.
pub const NVMET: &str = "/sys/kernel/config/nvmet";
/// The file through which a host asks the kernel's initiator for a controller.
const FABRICS: &str = "/dev/nvme-fabrics";
/// O_DIRECT on x86-64.
const DIRECT: i32 = 0o40000;

/// Locks both sides of the kernel for this test; the test is skipped if they are missing.
pub fn kernel(test: &str) -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    for path in [FABRICS, NVMET] {
        if !Path::new(path).exists() {
            skip(test, &Needs::NvmeKernel.because(format!("no {path} (scripts/test-nvme has a kernel with both)")));
            return None;
        }
        if let Err(e) = OpenOptions::new().write(true).open(FABRICS) {
            skip(test, &Needs::NvmeKernel.because(format!("{FABRICS}: {e}")));
            return None;
        }
    }
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Removes what a failed test has left: the kernel refuses a second controller of the same subsystem and number.
    for entry in fs::read_dir("/sys/class/nvme").into_iter().flatten().flatten() {
        let _ = fs::write(entry.path().join("delete_controller"), "1");
    }
    Some(alone)
}

/// Finds a program; without it, that part of the test is skipped.
pub fn program(test: &str, name: &str, needs: Needs) -> Option<PathBuf> {
    let found: Result<PathBuf, Missing> = rockmill_skip::program(name, needs);
    found.map_err(|missing| skip(test, &missing)).ok()
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

/// Runs a program, and returns its output.
#[track_caller]
pub fn run(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let out = Command::new(program.as_ref()).args(arguments).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{} {arguments:?}: {}: {said}", program.as_ref().display(), out.status);
    said
}

/// Waits for something that the kernel does asynchronously.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("waited 30 seconds for {what}");
}

/// A file's text without its line end; empty if there is no file.
pub fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

#[track_caller]
pub fn put(path: impl AsRef<Path>, text: &str) {
    fs::write(path.as_ref(), text).unwrap_or_else(|e| panic!("{text:?} into {}: {e}", path.as_ref().display()));
}

/// A controller of the kernel's initiator. It is deleted when it is dropped.
#[derive(Debug)]
pub struct KernelController {
    pub name: String,
}

impl KernelController {
    /// Asks the kernel to connect, with `options` in nvme-cli's form.
    pub fn connect(options: &str) -> Result<Self, std::io::Error> {
        let mut fabrics = OpenOptions::new().read(true).write(true).open(FABRICS)?;
        fabrics.write_all(options.as_bytes())?;
        let mut said = [0; 256];
        let n = fabrics.read(&mut said)?;
        let said = String::from_utf8_lossy(&said[..n]).into_owned();
        let instance = said.trim().split(',').find_map(|w| w.strip_prefix("instance="));
        let instance = instance.unwrap_or_else(|| panic!("the kernel says {said:?}"));
        Ok(Self { name: format!("nvme{instance}") })
    }

    fn path(&self, attribute: &str) -> PathBuf {
        Path::new("/sys/class/nvme").join(&self.name).join(attribute)
    }

    /// What the kernel says of it.
    pub fn attribute(&self, name: &str) -> String {
        text(self.path(name))
    }

    pub fn until_live(&self) {
        until("a live controller", || self.attribute("state") == "live");
    }

    pub fn reset(&self) {
        put(self.path("reset_controller"), "1");
        self.until_live();
    }
}

impl Drop for KernelController {
    fn drop(&mut self) {
        // If this fails, the next test removes it.
        let _ = fs::write(self.path("delete_controller"), "1");
    }
}

/// The block device of the namespace with this identifier.
pub fn device(nguid: [u8; 16]) -> PathBuf {
    let mut found = None;
    until("a block device", || {
        found = find_device(nguid);
        found.is_some()
    });
    found.unwrap()
}

/// The same, if it exists now.
pub fn find_device(nguid: [u8; 16]) -> Option<PathBuf> {
    let wanted: String = nguid.iter().map(|b| format!("{b:02x}")).collect();
    let names = fs::read_dir("/sys/block").unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let devices = names.filter(|n| n.starts_with("nvme")).filter(|n| {
        let nguid = text(Path::new("/sys/block").join(n).join("nguid"));
        nguid.replace('-', "") == wanted
    });
    devices.map(|n| Path::new("/dev").join(n)).find(|d| d.exists())
}

/// A block device without the kernel's cache.
pub struct Direct(File);

impl Direct {
    pub fn open(device: &Path) -> Self {
        Self(OpenOptions::new().read(true).write(true).custom_flags(DIRECT).open(device).unwrap())
    }

    /// A buffer with a part that is aligned for O_DIRECT.
    fn buffer(bytes: usize) -> (Vec<u8>, usize) {
        let buffer = vec![0; bytes + 4096];
        let at = buffer.as_ptr().align_offset(4096);
        (buffer, at)
    }

    pub fn try_write(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        let (mut buffer, start) = Self::buffer(bytes.len());
        let part = &mut buffer[start..start + bytes.len()];
        part.copy_from_slice(bytes);
        self.0.write_all_at(part, at)
    }

    #[track_caller]
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.try_write(at, bytes).unwrap();
    }

    #[track_caller]
    pub fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let (mut buffer, start) = Self::buffer(bytes);
        self.0.read_exact_at(&mut buffer[start..start + bytes], at).unwrap();
        buffer[start..start + bytes].to_vec()
    }

    #[track_caller]
    pub fn sync(&self) {
        self.0.sync_all().unwrap();
    }
}
