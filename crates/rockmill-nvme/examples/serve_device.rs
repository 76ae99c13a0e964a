//! Serves a block device, or an image of one, read-only over NVMe/TCP, until it is killed: an external target to try
//! (docs/offload.md). No authentication: for this machine, or a network that is trusted.
//!
//! ```text
//! cargo run --locked --release -p rockmill-nvme --example serve_device -- \
//!     127.0.0.1:4420 nqn.2026-11.example:disk /dev/sdb1
//! ```

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::aligned::AlignedBuf;
use rockmill_io::{Clock as _, SystemClock};
use rockmill_nvme::status::Status;
use rockmill_nvme::target::{Namespace, Target, TargetConfig};
use rockmill_nvme::tcp::{ServerConfig, TcpServer};

const BLOCK: u64 = 4096;
/// Past the page cache, which may be older than what the file system wrote.
#[cfg(target_os = "linux")]
const DIRECT: i32 = libc::O_DIRECT;
#[cfg(not(target_os = "linux"))]
const DIRECT: i32 = 0;

thread_local! {
    /// Where direct reads go: memory that is aligned for them.
    static MEMORY: RefCell<AlignedBuf> = const { RefCell::new(AlignedBuf::empty()) };
}

#[derive(Debug)]
struct Device {
    file: File,
    blocks: u64,
}

impl Namespace for Device {
    fn block_bytes(&self) -> u32 {
        BLOCK as u32
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read_only(&self) -> bool {
        true
    }

    fn nguid(&self) -> [u8; 16] {
        [1; 16]
    }

    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Status> {
        MEMORY.with_borrow_mut(|memory| {
            memory.grow(into.len(), 0);
            let memory = &mut memory[..into.len()];
            self.file.read_exact_at(memory, first * BLOCK).map_err(|_| Status::UNRECOVERED_READ_ERROR)?;
            into.copy_from_slice(memory);
            Ok(())
        })
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Status> {
        Err(Status::ACCESS_DENIED)
    }

    fn write_zeroes(&self, _: u64, _: u32) -> Result<(), Status> {
        Err(Status::ACCESS_DENIED)
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, subsystem, path] = args.as_slice() else {
        return Err("serve_device ADDRESS SUBSYSTEM DEVICE".into());
    };
    let file = OpenOptions::new().read(true).custom_flags(DIRECT).open(path)?;
    // The length of a block device is where its end is.
    let bytes = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0))?;
    let target = Target::new(TargetConfig { c2h_data_max: 1 << 20, ..TargetConfig::new(subsystem) })?;
    target.add_namespace(1, Arc::new(Device { file, blocks: bytes / BLOCK }))?;
    let clock = Arc::new(SystemClock::default());
    let server =
        TcpServer::start_with(TcpListener::bind(address)?, target, ServerConfig::default(), None, clock.clone())?;
    println!("{path}, {bytes} bytes, as namespace 1 of {subsystem} at {}", server.address());
    loop {
        clock.sleep(Duration::from_secs(3600));
    }
}
