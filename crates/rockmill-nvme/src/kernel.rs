//! The Linux kernel's initiator in place of ours: it connects to a target, and a block device appears.
//!
//! 1. A line of options is written to `/dev/nvme-fabrics`. The call returns when the kernel is connected; what can then
//!    be read says which controller it is.
//! 2. The controller's namespaces become block devices, some time later ([`KernelController::disk`]). They are found by
//!    the subsystem's name, which no other controller may have.
//! 3. `delete_controller` in sysfs takes controller and devices away ([`KernelController::delete`]).
//!
//! A controller belongs to no process: it stays when the one that asked for it is killed. So the host ID that the
//! kernel shows for each controller says whose it is ([`Owner`]), and [`KernelInitiator::remove_leftovers`] takes away
//! those of processes that are gone.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::auth::Secret;

/// Between two attempts to connect again, in seconds.
const RECONNECT_DELAY: u64 = 1;

/// What to connect to, and how.
#[derive(Debug, Clone)]
pub struct KernelConfig {
    /// Where the target listens.
    pub address: SocketAddr,
    /// The subsystem's name: 1 to 223 letters, digits and `.:-_`, since it becomes part of a line of options.
    pub subsystem: String,
    /// The host's name, of the same characters.
    pub host: String,
    /// The host ID. The kernel has one for each host name at a time.
    pub host_id: [u8; 16],
    /// The host's secret, and the controller's, if the controller must authenticate, too.
    pub secrets: Option<(Secret, Option<Secret>)>,
    /// Queues for reads, 1 at least, and for writes. The kernel has no more of each than processors.
    pub queues: (u16, u16),
    /// Header and data digests.
    pub digests: bool,
    /// Keep Alive Timeout. All times are rounded down to seconds, and are 1 second at least.
    pub keep_alive: Duration,
    /// After so long without a connection, reads and writes fail.
    pub io_fails_after: Duration,
    /// After so long without a connection, the kernel takes the controller away.
    pub gives_up_after: Duration,
}

impl KernelConfig {
    /// The line of options.
    fn line(&self) -> io::Result<String> {
        for name in [&self.subsystem, &self.host] {
            check_name(name)?;
        }
        let address = match self.address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
            other => other.ip().to_string(),
        };
        let seconds = |time: Duration| time.as_secs().max(1);
        let mut line = format!(
            "transport=tcp,traddr={address},trsvcid={},nqn={},hostnqn={},hostid={},nr_io_queues={},keep_alive_tmo={},\
             reconnect_delay={RECONNECT_DELAY},ctrl_loss_tmo={},fast_io_fail_tmo={}",
            self.address.port(),
            self.subsystem,
            self.host,
            id_text(self.host_id),
            self.queues.0.max(1),
            seconds(self.keep_alive),
            seconds(self.gives_up_after),
            seconds(self.io_fails_after),
        );
        // invariant: nothing fails that writes into memory.
        if self.queues.1 > 0 {
            let _ = write!(line, ",nr_write_queues={}", self.queues.1);
        }
        if self.digests {
            line.push_str(",hdr_digest,data_digest");
        }
        if let Some((host, controller)) = &self.secrets {
            let _ = write!(line, ",dhchap_secret={}", host.to_text());
            if let Some(controller) = controller {
                let _ = write!(line, ",dhchap_ctrl_secret={}", controller.to_text());
            }
        }
        Ok(line)
    }
}

/// Refuses what would be more than a name in a line of options.
///
/// # Errors
/// Which characters a name may have.
pub fn check_name(name: &str) -> io::Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ".:-_".contains(c);
    match (1..=223).contains(&name.len()) && name.chars().all(fits) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no name that the kernel is told: 1 to 223 letters, digits and .:-_"),
        )),
    }
}

/// An ID as UUIDs are written.
fn id_text(id: [u8; 16]) -> String {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The process that a controller belongs to. No other process has or had the same one since the machine was started,
/// which is as long as a controller lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    process: u32,
    /// The namespace that knows the process by this number.
    namespace: u32,
    /// When it began, in the kernel's ticks since its start.
    began: u64,
}

/// Bytes of an ID for when a process began: enough for three hundred years, at a hundred ticks a second.
const BEGAN_BYTES: usize = 5;

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// No `/proc` that says so.
    pub fn this() -> io::Result<Self> {
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "/proc does not say when this process began");
        let namespace = Self::own_namespace().ok_or_else(missing)?;
        let process = std::process::id();
        let began = Self::began(process).ok_or_else(missing)?;
        Ok(Self { process, namespace, began })
    }

    /// As the ID of this host's name. (The kernel refuses one ID for several names, which a process may have.)
    #[must_use]
    pub fn to_id(self, host: &str) -> [u8; 16] {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&self.process.to_be_bytes());
        id[4..8].copy_from_slice(&self.namespace.to_be_bytes());
        id[8..].copy_from_slice(&self.began.to_be_bytes());
        id[8..16 - BEGAN_BYTES].copy_from_slice(&Sha256::digest(host)[..8 - BEGAN_BYTES]);
        id
    }

    /// From a host ID as the kernel shows it.
    fn parse(text: &str) -> Option<Self> {
        let id = u128::from_str_radix(&text.replace('-', ""), 16).ok()?;
        // invariant: each part has the bits of its type.
        let began = id as u64 & (u64::MAX >> (64 - 8 * BEGAN_BYTES));
        Some(Self { process: (id >> 96) as u32, namespace: (id >> 64) as u32, began })
    }

    /// True if the process was of this one's namespace, and is there no more.
    fn is_gone(self) -> bool {
        if Self::own_namespace() != Some(self.namespace) {
            return false;
        }
        match Self::stat(self.process) {
            Ok(stat) => Self::began_of(&stat).is_some_and(|began| began != self.began),
            // Any other error may come of a living one, and where other users' processes are hidden, this one, too.
            Err(e) => e.kind() == io::ErrorKind::NotFound && Self::stat(1).is_ok(),
        }
    }

    fn own_namespace() -> Option<u32> {
        let link = fs::read_link("/proc/self/ns/pid").ok()?;
        link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
    }

    fn began(process: u32) -> Option<u64> {
        Self::began_of(&Self::stat(process).ok()?)
    }

    fn stat(process: u32) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{process}/stat"))
    }

    fn began_of(stat: &str) -> Option<u64> {
        // The program's name may have any character.
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(19)?.parse().ok()
    }
}

/// The kernel's initiator.
#[derive(Debug, Clone)]
pub struct KernelInitiator {
    sys: PathBuf,
    dev: PathBuf,
}

impl Default for KernelInitiator {
    fn default() -> Self {
        Self::at("/sys", "/dev")
    }
}

/// A file's text without its line end.
fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim_end().to_owned())
}

impl KernelInitiator {
    /// With other places for `/sys` and `/dev`.
    pub fn at(sys: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        Self { sys: sys.into(), dev: dev.into() }
    }

    fn fabrics(&self) -> PathBuf {
        self.dev.join("nvme-fabrics")
    }

    fn open(&self) -> io::Result<File> {
        let path = self.fabrics();
        OpenOptions::new().read(true).write(true).open(&path).map_err(|e| {
            let what = match e.kind() {
                io::ErrorKind::NotFound => "the kernel's NVMe over TCP is not there: load it with `modprobe nvme-tcp`",
                io::ErrorKind::PermissionDenied => "only root may ask the kernel for devices",
                _ => "the kernel's NVMe over TCP cannot be used",
            };
            io::Error::new(e.kind(), format!("{what} ({}: {e})", path.display()))
        })
    }

    /// Looks whether the kernel can be asked; `secrets`: with secrets.
    ///
    /// # Errors
    /// Why it cannot: what is not loaded or not built in, or no permission.
    pub fn probe(&self, secrets: bool) -> io::Result<()> {
        let mut options = String::new();
        // What it says before anything is written to it.
        self.open()?.read_to_string(&mut options)?;
        let needed = ["fast_io_fail_tmo", "dhchap_ctrl_secret"];
        let needed = if secrets { &needed[..] } else { &needed[..1] };
        match needed.iter().find(|option| !options.contains(*option)) {
            None => Ok(()),
            Some(option) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel's NVMe over Fabrics does not know {option}: it is too old, or built without it"),
            )),
        }
    }

    /// Connects. This takes as long as the kernel waits, a minute or more where nobody answers.
    ///
    /// # Errors
    /// A name that is none, or what the kernel says; its log says more.
    pub fn connect(&self, config: &KernelConfig) -> io::Result<KernelController> {
        let line = config.line()?;
        let mut fabrics = self.open()?;
        fabrics.write_all(line.as_bytes()).map_err(|e| self.refused(config, &e))?;
        let mut said = [0; 256];
        let n = fabrics.read(&mut said)?;
        let said = String::from_utf8_lossy(&said[..n]);
        let instance = said.trim().split(',').find_map(|word| word.strip_prefix("instance=")?.parse::<u32>().ok());
        let Some(instance) = instance else {
            return Err(io::Error::other(format!("the kernel is connected, but does not say as what: {said:?}")));
        };
        let name = format!("nvme{instance}");
        let controller = self.controller(&name)?;
        match self.attribute(&name, "subsysnqn").as_deref() {
            Ok(found) if found == config.subsystem => {
                self.hide_secrets(&name)?;
                Ok(controller)
            }
            // It is another one's by now, which is left alone.
            _ => {
                controller.disown();
                Err(io::Error::other(format!("the connection was lost at once: {name} is gone")))
            }
        }
    }

    /// The kernel shows the secrets of a controller to everybody on the machine. From now on to root alone.
    fn hide_secrets(&self, name: &str) -> io::Result<()> {
        for secret in ["dhchap_secret", "dhchap_ctrl_secret"] {
            match fs::set_permissions(self.class(name).join(secret), Permissions::from_mode(0o600)) {
                // A kernel without authentication has none.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// What the kernel said, and what may be the reason.
    fn refused(&self, config: &KernelConfig, e: &io::Error) -> io::Error {
        let shown = id_text(config.host_id);
        let is_other = |name: &String| {
            self.attribute(name, "hostnqn").is_ok_and(|host| host == config.host)
                && self.attribute(name, "hostid").is_ok_and(|id| id != shown)
        };
        let why = match self.controllers().iter().find(|name| is_other(name)) {
            Some(name) => {
                format!("{name} is connected as {} by another process: give each a name of its own", config.host)
            }
            None => "the kernel's log says why".to_owned(),
        };
        io::Error::new(e.kind(), format!("the kernel does not connect to {}: {e}; {why}", config.address))
    }

    fn class(&self, name: &str) -> PathBuf {
        self.sys.join("class/nvme").join(name)
    }

    fn attribute(&self, name: &str, attribute: &str) -> io::Result<String> {
        text(self.class(name).join(attribute))
    }

    /// The controllers that there are.
    fn controllers(&self) -> Vec<String> {
        let all = fs::read_dir(self.sys.join("class/nvme")).into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn controller(&self, name: &str) -> io::Result<KernelController> {
        // An open file of a controller that is gone does nothing, also where another one has its name by then.
        let delete = OpenOptions::new().write(true).open(self.class(name).join("delete_controller"))?;
        Ok(KernelController { kernel: self.clone(), name: name.to_owned(), delete: Mutex::new(Some(delete)) })
    }

    /// Takes away the controllers that this host connected to subsystems whose names begin with `subsystems`, and whose
    /// [`Owner`] is a process that is gone. Others are left alone, as are those whose owner cannot be known. Gives the
    /// names of what was taken away.
    ///
    /// # Errors
    /// One could not be taken away.
    pub fn remove_leftovers(&self, host: &str, subsystems: &str) -> io::Result<Vec<String>> {
        let mut removed = Vec::new();
        for name in self.controllers() {
            // Opened first: what is then found out is of this controller, or of a later one, and then this one is gone.
            let Ok(controller) = self.controller(&name) else { continue };
            let says = |attribute| self.attribute(&name, attribute).unwrap_or_default();
            let is_ours = says("hostnqn") == host && says("subsysnqn").starts_with(subsystems);
            if is_ours && Owner::parse(&says("hostid")).is_some_and(Owner::is_gone) {
                controller.delete()?;
                removed.push(name);
            } else {
                controller.disown();
            }
        }
        Ok(removed)
    }
}

/// A namespace's block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelDisk {
    /// Its file.
    pub path: PathBuf,
    /// The kernel's numbers of it.
    pub numbers: (u32, u32),
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of a write that the kernel certainly sends as one command.
    pub command_bytes: usize,
}

/// What a disk was asked so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Commands that were answered.
    pub commands: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
}

/// A controller of the kernel's. It is deleted when this is dropped.
#[derive(Debug)]
pub struct KernelController {
    kernel: KernelInitiator,
    name: String,
    delete: Mutex<Option<File>>,
}

impl KernelController {
    /// As the kernel calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The block device of the only namespace of `subsystem`, which this controller is connected to; `None` while there
    /// is none.
    ///
    /// # Errors
    /// The kernel does not say what is needed to know of it.
    pub fn disk(&self, subsystem: &str) -> io::Result<Option<KernelDisk>> {
        let blocks = self.kernel.sys.join("block");
        for entry in fs::read_dir(&blocks)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            let device = blocks.join(&name);
            // `nvme0c0n1` is a path to a disk, without a file of its own.
            let is_disk = name.strip_prefix("nvme").is_some_and(|rest| !rest.contains('c'));
            if !is_disk || !text(device.join("device/subsysnqn")).is_ok_and(|found| found == subsystem) {
                continue;
            }
            let path = self.kernel.dev.join(&name);
            if !path.exists() {
                return Ok(None); // not yet
            }
            return match Self::facts(&name, &device, path) {
                Ok(disk) => Ok(Some(disk)),
                // The kernel makes the file before it says what the disk is.
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(e),
            };
        }
        Ok(None)
    }

    fn facts(name: &str, device: &Path, path: PathBuf) -> io::Result<KernelDisk> {
        let number = |file: &str| -> io::Result<usize> {
            let said = text(device.join(file))?;
            said.parse().map_err(|_| io::Error::other(format!("{name}: {file} is {said:?}, and no number")))
        };
        let numbers = text(device.join("dev"))?;
        let numbers =
            numbers.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let largest = number("queue/max_sectors_kb")?.saturating_mul(1024);
        // A page of memory may be a segment.
        let pieces = number("queue/max_segments")?.saturating_mul(4096);
        Ok(KernelDisk {
            numbers: numbers.ok_or_else(|| io::Error::other(format!("{name} has no device numbers")))?,
            block_bytes: number("queue/logical_block_size")?,
            command_bytes: largest.min(pieces),
            path,
        })
    }

    /// What a disk was asked so far; zeros where the kernel does not say.
    #[must_use]
    pub fn counters(&self, disk: &KernelDisk) -> DiskCounters {
        let name = disk.path.file_name().unwrap_or_default();
        let stat = text(self.kernel.sys.join("block").join(name).join("stat")).unwrap_or_default();
        let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let field = |n: usize| fields.get(n).copied().unwrap_or(0);
        DiskCounters {
            commands: field(0).saturating_add(field(4)),
            read_bytes: field(2).saturating_mul(512),
            written_bytes: field(6).saturating_mul(512),
        }
    }

    /// Takes the controller away, with its devices. Reads and writes that are not done fail. When this returns, it is
    /// gone; a second call waits for the first one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn delete(&self) -> io::Result<()> {
        let mut file = self.delete.lock();
        let Some(mut delete) = file.take() else { return Ok(()) };
        match delete.write_all(b"1") {
            // The kernel has given it up, or somebody else has deleted it.
            Err(e) if matches!(e.raw_os_error(), Some(ENODEV | ENOENT)) => Ok(()),
            done => done.map_err(|e| io::Error::new(e.kind(), format!("{} is not deleted: {e}", self.name))),
        }
    }

    /// Leaves the controller as it is.
    fn disown(&self) {
        *self.delete.lock() = None;
    }
}

/// "No such device": of each call on a file in sysfs whose device is gone.
const ENODEV: i32 = 19;
const ENOENT: i32 = 2;

impl Drop for KernelController {
    fn drop(&mut self) {
        let _ = self.delete(); // who wants to know has called it
    }
}

#[cfg(test)]
mod tests;
