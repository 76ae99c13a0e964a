//! The data of a PDU that is received where it belongs, without a copy of the PDU.

use super::{DIGEST_BYTES, Extent};

/// What is still to come of a data PDU whose header was taken, and its digest so far.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// Bytes of data.
    data: usize,
    /// With data digests: that of the data so far, and what came of the one that follows the data.
    digest: Option<(u32, Vec<u8>)>,
}

impl Arriving {
    /// All data of this PDU.
    pub fn new(extent: &Extent) -> Self {
        let has_digest = extent.total > extent.data_end;
        let digest = has_digest.then(|| (0, Vec::with_capacity(DIGEST_BYTES)));
        Self { data: extent.data_end - extent.data_start, digest }
    }

    /// Bytes of data that are still to come.
    pub fn data(&self) -> usize {
        self.data
    }

    /// Tells that these bytes of data came: at most [`Self::data`].
    pub fn came(&mut self, bytes: &[u8]) {
        self.data -= bytes.len();
        if let Some((digest, _)) = &mut self.digest {
            *digest = crc32c::crc32c_append(*digest, bytes);
        }
    }

    /// Takes the digest that follows the data from the front of `bytes`. True or false once all has come: whether the
    /// digest matches; true if there is none.
    pub fn finish(&mut self, bytes: &mut &[u8]) -> Option<bool> {
        if self.data > 0 {
            return None;
        }
        let Some((digest, sent)) = &mut self.digest else { return Some(true) };
        let (taken, rest) = bytes.split_at((DIGEST_BYTES - sent.len()).min(bytes.len()));
        sent.extend_from_slice(taken);
        *bytes = rest;
        (sent.len() == DIGEST_BYTES).then(|| *sent == digest.to_le_bytes())
    }
}
