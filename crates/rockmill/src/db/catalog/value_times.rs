//! Values that end with the time of their writing, as databases with a time to live have them (`open/ttl.rs`).

use rockmill_format::batch::{BatchRecord, BatchRep, MAX_SLICE_LEN};
use rockmill_io::Clock;

use crate::compaction_filter::ttl::{STAMP_LEN, split};
use crate::error::{Error, Result};
use crate::iter::get::PinnedValue;

/// The property of an external table whose values end with times. As in RocksDB, tables that the database writes do not
/// have it. RocksDB ignores the property.
pub(crate) const VALUES_WITH_TIMES: &str = "rockmill.values.with.times";

/// RocksDB treats times before this one (May 2013) as damage.
const STAMP_MIN: u32 = 1_368_146_402;

/// A time as it is stored after a value.
pub(crate) fn stamp(seconds: u64) -> [u8; STAMP_LEN] {
    (seconds as u32).to_le_bytes() // RocksDB's clock wraps as well, in 2106
}

/// The present time as it is stored after a value.
pub(crate) fn stamp_now(clock: &dyn Clock) -> [u8; STAMP_LEN] {
    stamp(clock.now_micros() / 1_000_000)
}

/// The name, in tables, of the merge operator that removes times.
pub(crate) const TTL_MERGE_OPERATOR: &str = "TtlMergeOperator";

/// Checks a stored value; returns the length of its own bytes.
pub(crate) fn check_stamp(key: &[u8], value: &[u8]) -> Result<usize> {
    let why = match split(value) {
        Some((own, time)) if time >= STAMP_MIN => return Ok(own.len()),
        Some((_, time)) => format!("the time {time}, which is before there were any"),
        None => format!("{} bytes, which is too short for a time", value.len()),
    };
    Err(Error::corruption(format!(
        "the value of key {} ends with {why}: it is damaged, or was not written to a database with a time to live",
        key.escape_ascii()
    )))
}

/// A value that was read, without its time.
pub(crate) fn strip(key: &[u8], value: PinnedValue) -> Result<PinnedValue> {
    let own = check_stamp(key, value.as_slice())?;
    Ok(match value {
        PinnedValue::Block(block, range) => PinnedValue::Block(block, range.start..range.start + own),
        PinnedValue::Owned(mut bytes) => {
            bytes.truncate(own);
            PinnedValue::Owned(bytes)
        }
    })
}

/// A batch with the time `seconds` after each value and merge operand.
pub(crate) fn stamped(rep: &BatchRep, seconds: u64) -> Result<BatchRep> {
    let time = stamp(seconds);
    let mut out = BatchRep::with_capacity(rep.len_bytes() + rep.count() as usize * STAMP_LEN);
    let mut buffer = Vec::new();
    for record in rep.iter() {
        let record = record.map_err(|e| Error::corruption(format!("write batch: {e}")))?;
        let mut with_time = |key: &[u8], value: &[u8]| {
            if value.len() > MAX_SLICE_LEN - STAMP_LEN {
                return Err(Error::invalid_argument(format!(
                    "the value of key {} has {} bytes: with its time it would be too large",
                    key.escape_ascii(),
                    value.len()
                )));
            }
            buffer.clear();
            buffer.extend_from_slice(value);
            buffer.extend_from_slice(&time);
            Ok(())
        };
        match record {
            BatchRecord::Put { cf, key, value } => {
                with_time(key, value)?;
                out.push(BatchRecord::Put { cf, key, value: &buffer });
            }
            BatchRecord::Merge { cf, key, value } => {
                with_time(key, value)?;
                out.push(BatchRecord::Merge { cf, key, value: &buffer });
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rocksdbs() {
        assert_eq!(stamp(1_700_000_000), [0x00, 0xf1, 0x53, 0x65]);
        assert_eq!(check_stamp(b"k", b"abc\x00\xf1\x53\x65").unwrap(), 3);
        let at = |time: u32| check_stamp(b"k", &time.to_le_bytes());
        assert_eq!(at(STAMP_MIN).unwrap(), 0);
        assert!(at(STAMP_MIN - 1).unwrap_err().to_string().contains("1368146401, which is before"));
        let e = check_stamp(b"key", b"abc").unwrap_err();
        assert!(e.to_string().contains("value of key key ends with 3 bytes, which is too short"), "{e}");
    }
}
