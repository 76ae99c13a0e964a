//! Inputs that a worker reads at a target of NVMe/TCP that is not the store's: the Linux kernel's, SPDK's, or that of a
//! storage server, which exports the block device with the store's file system.
//!
//! ```text
//!   the store ── spec, extents of the inputs ──► worker ── reads ──► the external target ── block device
//!   JobNamespace ◄────── writes, other reads ─────┘                        file system of the store ┘
//! ```
//!
//! Only reads go there. Outputs go through the store's own namespace always: nothing fences a late write at a target
//! that the store does not have, and blocks that a file system has set aside are not a file's until it writes them.
//!
//! Reads need no fence. Tables never change, and the job holds its inputs, so their blocks are not used anew meanwhile.
//! Whoever moves them all the same (a defragmentation) makes the worker read other bytes: mostly a checksum tells, and
//! the store asks for the extents once more when the job is done, and takes its tables only if they are the same. A
//! worker that reads later, when it has lost the job, reads what may be another file's by then: that goes into tables
//! that nobody takes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use rockmill::internals::{DEVICE_BLOCK, DeviceExtent, JobDevice};
use rockmill_io::block_device_number;

use crate::bad_configuration;
use crate::message::NAME_BYTES_MAX;

/// A target that exports the block device of the store's file system.
///
/// As text `ADDRESS,SUBSYSTEM,NAMESPACE,DEVICE` or, where the exported device begins before the file system's (a
/// partition of it), with `,START` in bytes: `10.0.0.5:4420,nqn.2026-11.example:disk,1,/dev/nvme0n1p2,1048576`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalTarget {
    /// Where workers reach it.
    pub address: SocketAddr,
    /// Its subsystem's name.
    pub subsystem: String,
    /// The namespace.
    pub namespace: u32,
    /// The block device with the file system, on the store's machine. Tables on others are not read at the target.
    pub device: PathBuf,
    /// Where that device begins in the namespace, in bytes.
    pub start: u64,
}

impl fmt::Display for ExternalTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, subsystem, namespace, device, start } = self;
        write!(f, "{address},{subsystem},{namespace},{},{start}", device.display())
    }
}

impl FromStr for ExternalTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("external target {text:?}: {what}");
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let (address, subsystem, namespace, device, start) = match *parts.as_slice() {
            [address, subsystem, namespace, device] => (address, subsystem, namespace, device, "0"),
            [address, subsystem, namespace, device, start] => (address, subsystem, namespace, device, start),
            _ => return Err(wrong("it is ADDRESS,SUBSYSTEM,NAMESPACE,DEVICE, and ,START where that is not 0")),
        };
        if subsystem.is_empty() || subsystem.len() > NAME_BYTES_MAX {
            return Err(wrong("its subsystem has a name of 1 to 223 bytes"));
        }
        let start = start.parse().map_err(|_| wrong("START is a number of bytes"))?;
        if start % DEVICE_BLOCK as u64 != 0 {
            return Err(wrong("START is a multiple of 4096"));
        }
        Ok(Self {
            address: address.parse().map_err(|_| wrong("an address is IP:PORT, as 10.0.0.5:4420"))?,
            subsystem: subsystem.to_owned(),
            namespace: namespace.parse().map_err(|_| wrong("a namespace is a number from 1 on"))?,
            device: PathBuf::from(device),
            start,
        })
    }
}

/// Where a worker reads the inputs of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExternalInputs {
    pub address: SocketAddr,
    pub subsystem: String,
    pub namespace: u32,
    /// What of the job's device is there; `device_offset` is in the namespace. Rising, without overlaps.
    pub extents: Vec<DeviceExtent>,
}

impl ExternalInputs {
    /// False for a list that no store makes.
    pub fn is_in_order(&self) -> bool {
        let block = DEVICE_BLOCK as u64;
        let is_whole = |e: &DeviceExtent| [e.offset, e.device_offset, e.len].iter().all(|n| n.is_multiple_of(block));
        let ends = |e: &DeviceExtent| e.offset.checked_add(e.len).zip(e.device_offset.checked_add(e.len));
        self.extents.iter().all(|e| e.len > 0 && is_whole(e) && ends(e).is_some())
            && self.extents.is_sorted_by(|a, b| ends(a).is_some_and(|(end, _)| end <= b.offset))
    }

    /// Where a part of the device lies in the namespace, and how much of it from there on.
    pub fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let after = self.extents.partition_point(|e| e.offset <= offset);
        let extent = self.extents.get(after.checked_sub(1)?)?;
        let into = offset - extent.offset;
        let left = extent.len.checked_sub(into).filter(|left| *left > 0)?;
        Some((extent.device_offset.saturating_add(into), left))
    }

    /// Where the next extent behind `offset` begins.
    pub fn next(&self, offset: u64) -> Option<u64> {
        self.extents.get(self.extents.partition_point(|e| e.offset <= offset)).map(|e| e.offset)
    }
}

/// The store's side of an external target.
#[derive(Debug)]
pub(crate) struct External {
    target: ExternalTarget,
    /// The device's number.
    device: u64,
}

impl External {
    /// # Errors
    /// `device` is not there or no block device.
    pub fn new(target: ExternalTarget) -> io::Result<Self> {
        let device = block_device_number(&target.device)
            .map_err(|e| bad_configuration(format!("external target: {}: {e}", target.device.display())))?;
        Ok(Self::on(target, device))
    }

    /// The target for files on the device of this number.
    pub fn on(target: ExternalTarget, device: u64) -> Self {
        Self { target, device }
    }

    /// Where the inputs of a job lie in the namespace.
    ///
    /// # Errors
    /// Why a worker cannot read them there.
    pub fn inputs(&self, device: &JobDevice) -> io::Result<ExternalInputs> {
        let mut extents = device.input_extents(self.device)?;
        for extent in &mut extents {
            extent.device_offset = extent.device_offset.saturating_add(self.target.start);
        }
        let ExternalTarget { address, ref subsystem, namespace, .. } = self.target;
        Ok(ExternalInputs { address, subsystem: subsystem.clone(), namespace, extents })
    }

    /// An error if the inputs are not where they were when the job began.
    pub fn check(&self, inputs: &ExternalInputs, device: &JobDevice) -> io::Result<()> {
        match self.inputs(device)? == *inputs {
            true => Ok(()),
            false => {
                Err(io::Error::other("the file system moved its inputs while they were read at the external target"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_external_target_is_read_as_it_is_written() {
        let text = "10.0.0.5:4420,nqn.2026-11.example:disk,1,/dev/nvme0n1p2,1048576";
        let target: ExternalTarget = text.parse().unwrap();
        assert_eq!((target.to_string().as_str(), target.start, target.namespace), (text, 1 << 20, 1));
        let whole: ExternalTarget = "[::1]:4420,nqn.2026-11.example:disk,7,/dev/sda".parse().unwrap();
        assert_eq!((whole.start, whole.namespace, whole.device), (0, 7, PathBuf::from("/dev/sda")));
        for wrong in [
            "",
            "10.0.0.5:4420",
            "10.0.0.5,nqn,1,/dev/sda",
            "10.0.0.5:4420,,1,/dev/sda",
            "10.0.0.5:4420,nqn,one,/dev/sda",
            "10.0.0.5:4420,nqn,1,/dev/sda,5",
            "10.0.0.5:4420,nqn,1,/dev/sda,4K",
            "10.0.0.5:4420,nqn,1,/dev/sda,0,0",
        ] {
            let e = wrong.parse::<ExternalTarget>().unwrap_err();
            assert!(e.starts_with("external target"), "{e}");
        }
        let e = External::new("127.0.0.1:1,nqn,1,/dev/null".parse().unwrap()).unwrap_err();
        assert!(e.to_string().contains("/dev/null: not a block device"), "{e}");
    }

    #[test]
    fn parts_of_a_device_are_found_in_their_extents() {
        let extent = |offset, device_offset, len| DeviceExtent { offset, device_offset, len };
        let inputs = |extents: &[DeviceExtent]| ExternalInputs {
            address: "127.0.0.1:1".parse().unwrap(),
            subsystem: "nqn".to_owned(),
            namespace: 1,
            extents: extents.to_vec(),
        };
        let some = inputs(&[extent(0, 40_960, 8192), extent(8192, 4096, 4096), extent(16_384, 0, 4096)]);
        assert!(some.is_in_order());
        assert_eq!((some.find(0), some.find(4096)), (Some((40_960, 8192)), Some((45_056, 4096))));
        assert_eq!(
            (some.find(8192), some.find(12_288), some.find(16_384)),
            (Some((4096, 4096)), None, Some((0, 4096)))
        );
        assert_eq!((some.find(20_480), inputs(&[]).find(0)), (None, None));
        assert_eq!((some.next(0), some.next(12_288), some.next(16_384)), (Some(8192), Some(16_384), None));
        for wrong in [
            extent(20_480, 0, 0),
            extent(20_480, 1, 4096),
            extent(20_481, 0, 4096),
            extent(16_384, 0, 4096),
            extent(u64::MAX - 4095, 0, 8192),
        ] {
            let mut extents = some.extents.clone();
            extents.push(wrong);
            assert!(!inputs(&extents).is_in_order(), "{wrong:?}");
        }
    }
}
