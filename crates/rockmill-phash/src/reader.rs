//! Reading a function in place.

use crate::build::Kind;
use crate::error::OpenError;
use crate::header::Header;
use crate::{cphash, pilot};

/// Number of lookups that [`PerfectHash::slots`] has in progress at a time.
const BATCH: usize = 32;

/// A function over its bytes, borrowed or owned (`&[u8]`, `Vec<u8>`, `Arc<[u8]>`). It needs no other memory.
#[derive(Debug, Clone)]
pub struct PerfectHash<B> {
    bytes: B,
    header: Header,
    layout: Layout,
}

#[derive(Debug, Clone, Copy)]
enum Layout {
    CpHash(cphash::Layout),
    Pilot(pilot::Layout),
}

impl<B: AsRef<[u8]>> PerfectHash<B> {
    /// Checks the bytes, in time proportional to the number of segments and not of keys. An opened function has at most
    /// 256 slots for each of its bytes.
    ///
    /// Damage to pilots or displacements cannot be detected: it leads to other slots, still below
    /// [`slot_count`](Self::slot_count). Therefore store a checksum with the bytes.
    pub fn open(bytes: B) -> Result<Self, OpenError> {
        let all = bytes.as_ref();
        let header = Header::decode(all)?;
        let layout = match header.kind {
            Kind::Pilot => Layout::Pilot(pilot::Layout::open(all, &header)?),
            Kind::CpHash | Kind::Chd => Layout::CpHash(cphash::Layout::open(all, &header)?),
        };
        Ok(Self { bytes, header, layout })
    }

    /// The slot of the key with this hash, below [`slot_count`](Self::slot_count). An absent key gets an arbitrary
    /// slot.
    #[inline]
    pub fn slot(&self, hash: u64) -> usize {
        let bytes = self.bytes.as_ref();
        match &self.layout {
            Layout::Pilot(layout) => layout.slot(bytes, hash),
            Layout::CpHash(layout) => layout.slot(bytes, hash),
        }
    }

    /// The slots of several keys, in the order of their hashes: as many as there are hashes, or as fit into `slots`.
    /// The rest of `slots` keeps its values.
    ///
    /// For [`Kind::Pilot`] this is faster than one call for each key if the function is larger than the processor's
    /// cache, since many memory reads are in progress at a time. For the other kinds it is a loop of single calls.
    pub fn slots(&self, hashes: &[u64], slots: &mut [usize]) {
        let bytes = self.bytes.as_ref();
        match &self.layout {
            Layout::Pilot(layout) => {
                for (hashes, slots) in hashes.chunks(BATCH).zip(slots.chunks_mut(BATCH)) {
                    let mut found = [(0, 0, 0); BATCH];
                    for (&hash, found) in hashes.iter().zip(&mut found) {
                        let (mixed, bucket) = layout.bucket(hash);
                        *found = (mixed, bucket, layout.pilot(bytes, bucket));
                    }
                    for (&(mixed, bucket, pilot), slot) in found[..hashes.len()].iter().zip(slots) {
                        *slot = layout.slot_with(bytes, mixed, bucket, pilot);
                    }
                }
            }
            Layout::CpHash(layout) => {
                for (&hash, slot) in hashes.iter().zip(slots) {
                    *slot = layout.slot(bytes, hash);
                }
            }
        }
    }

    /// The number of keys that it was built from.
    pub fn key_count(&self) -> u64 {
        self.header.keys
    }

    /// The number of slots: at least one, at least as many as keys.
    pub fn slot_count(&self) -> usize {
        self.header.slots as usize
    }

    /// The seed that it was built with.
    pub fn seed(&self) -> u64 {
        self.header.seed
    }

    /// The kind of the function.
    pub fn kind(&self) -> Kind {
        self.header.kind
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
