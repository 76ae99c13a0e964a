//! What a power cut can leave at a MANIFEST's end, and what it cannot.
//!
//! An append (one edit, or an atomic group) is synced before anything depends on it and before the next one is written.
//! So after a power cut at most the last append is damaged, and it was not acknowledged: it may be skipped. An append
//! that was synced and damaged later must not be skipped: the tables that it names are the database.
//!
//! The two can be distinguished only sometimes; in doubt the database is refused:
//!
//! - The file ends inside the append: the length was not yet on the disk, so its sync had not returned.
//! - A whole sector of it reads as zeros: space that was allocated to the file and that the data never reached. Damage
//!   to written data flips bits, or makes the sector unreadable, but does not leave zeros from its first byte to its
//!   last. At both ends of the append, only a part of a sector belongs to it; fewer than [`ZEROS_MIN`] bytes there
//!   prove nothing.
//! - Garbage in place of a sector looks like damage and is refused.
//!
//! In any case, if a whole edit that is not part of the same atomic group follows the damage, the damaged append was
//! synced.

use std::path::Path;

use rockmill_format::edit::VersionEdit;
use rockmill_format::log::scan::{Found, Part, fragments};
use rockmill_io::FileSystem;

use crate::error::{Error, Result};

/// The unit in which a disk writes. Larger sectors are several of these.
const SECTOR: u64 = 512;

/// At least this many zeros are no coincidence.
const ZEROS_MIN: u64 = 16;

/// A damaged end of a MANIFEST that is longer is refused unread. The largest edits name some ten thousand tables.
const TAIL_BYTES_MAX: u64 = 8 << 20;

/// Bytes of checksums that looking for whole fragments may cost.
const WORK_MAX: usize = 64 << 20;

/// What the reader of a MANIFEST met after the last whole append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// The file ends inside a record.
    Cut,
    /// Anything else: a wrong checksum, zeros, fragments that do not fit.
    Other,
}

/// True when the MANIFEST's bytes from `end` on, which the reader could not make sense of, can only be an append whose
/// sync never returned.
pub(super) fn is_unsynced(fs: &dyn FileSystem, path: &Path, end: u64, damage: Damage) -> Result<bool> {
    let failed = |e| Error::io(path.display(), &e);
    if fs.file_size(path).map_err(failed)?.saturating_sub(end) > TAIL_BYTES_MAX {
        return Ok(false);
    }
    let mut file = fs.open_sequential(path).map_err(failed)?;
    file.skip(end).map_err(failed)?;
    let mut tail = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            // It may have grown since: a secondary instance reads while the primary writes.
            n if tail.len() as u64 + n as u64 > TAIL_BYTES_MAX => return Ok(false),
            n => tail.extend_from_slice(&buffer[..n]),
        }
    }
    let Some(whole) = fragments(&tail, end, WORK_MAX) else { return Ok(false) };
    Ok(is_one_append(&whole) && (damage == Damage::Cut || has_lost_sector(&tail, end, &whole)))
}

/// True when these fragments, whole between damaged ones, can all be of one record or one atomic group.
fn is_one_append(whole: &[Found<'_>]) -> bool {
    // How many edits of the group follow the last one that was found; `None` before the first.
    let mut following: Option<u32> = None;
    let mut record = Vec::new();
    for (i, fragment) in whole.iter().enumerate() {
        if following == Some(0) {
            return false;
        }
        match fragment.part {
            Part::Full => record.clear(),
            // A second record: only a group has one, and the description of the group is in its first bytes, or lost.
            Part::First if i > 0 && following.is_none() => return false,
            Part::First => {
                record.clear();
                record.extend_from_slice(fragment.payload);
                continue;
            }
            Part::Middle => {
                record.extend_from_slice(fragment.payload);
                continue;
            }
            Part::Last if record.is_empty() => continue,
            Part::Last => {}
        }
        record.extend_from_slice(fragment.payload);
        // A record that lacks its middle does not decode, and tells nothing.
        let edit = VersionEdit::decode(&std::mem::take(&mut record));
        match (edit.map(|e| e.remaining_in_group), fragment.part) {
            (Ok(Some(n)), _) if following.is_none_or(|before| n < before) => following = Some(n),
            (Err(_), Part::Last) => {}
            _ => return false,
        }
    }
    true
}

/// True when some sector, as far as it is in the tail, is all zeros and not inside a whole fragment.
fn has_lost_sector(tail: &[u8], end: u64, whole: &[Found<'_>]) -> bool {
    let mut at = 0;
    while at < tail.len() {
        let position = end + at as u64;
        let to = (at as u64 + SECTOR - position % SECTOR).min(tail.len() as u64) as usize;
        let piece = &tail[at..to];
        let inside = whole.iter().any(|f| f.start <= at && to <= f.end());
        if piece.len() as u64 >= ZEROS_MIN && !inside && piece.iter().all(|b| *b == 0) {
            return true;
        }
        at = to;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rockmill_format::InternalKeyComparator;
    use rockmill_format::edit::FileEntry;
    use rockmill_format::filename;
    use rockmill_io::{CrashMode, MemFileSystem};

    use super::super::{ManifestWriter, RecoveredState, recover_manifest};
    use super::*;
    use crate::error::ErrorKind;

    const DIR: &str = "/db";

    /// An edit that names this many tables and has `number`.
    fn edit(number: u64, tables: u64, remaining_in_group: Option<u32>) -> VersionEdit {
        let file = |n: u64| FileEntry {
            number: number * 1000 + n,
            size: 5000,
            smallest: rockmill_format::key::InternalKey::new(
                format!("{number}-{n}-first").as_bytes(),
                9,
                rockmill_format::ValueType::Value,
            ),
            largest: rockmill_format::key::InternalKey::new(
                format!("{number}-{n}-last").as_bytes(),
                8,
                rockmill_format::ValueType::Value,
            ),
            ..FileEntry::default()
        };
        VersionEdit {
            next_file_number: Some(number),
            last_sequence: Some(number),
            new_files: (0..tables).map(|n| (0, file(n))).collect(),
            remaining_in_group,
            comparator: (number == 1).then(|| "leveldb.BytewiseComparator".into()),
            ..VersionEdit::default()
        }
    }

    fn manifest() -> (MemFileSystem, ManifestWriter) {
        let fs = MemFileSystem::default();
        fs.create_dir(Path::new(DIR), true).unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let writer = ManifestWriter::create(&shared, Path::new(DIR), 5, &[edit(1, 1, None)]).unwrap();
        (fs, writer)
    }

    /// Which edit is the last that a recovery sees.
    fn last(fs: &MemFileSystem) -> Result<u64> {
        let all = &mut |_: &str, _: &str| Ok((InternalKeyComparator::default(), 7));
        let state: RecoveredState = recover_manifest(fs, Path::new(DIR), &|_| Arc::default(), all)?;
        Ok(state.last_sequence)
    }

    fn bytes(fs: &MemFileSystem) -> Vec<u8> {
        fs.read_to_vec(&Path::new(DIR).join(filename::manifest(5))).unwrap()
    }

    /// The same file system with other bytes in the MANIFEST.
    fn with_bytes(fs: &MemFileSystem, bytes: &[u8]) -> MemFileSystem {
        let fs = fs.crash_image(CrashMode::KeepAll);
        fs.write_all(&Path::new(DIR).join(filename::manifest(5)), bytes).unwrap();
        fs
    }

    #[test]
    fn an_edit_that_lost_whole_sectors_was_never_acknowledged_and_is_passed_over() {
        for tables in [1, 10, 100, 1000] {
            let (fs, mut writer) = manifest();
            writer.append(&[edit(2, 3, None)]).unwrap();
            let synced = bytes(&fs).len();
            writer.append(&[edit(3, tables, None)]).unwrap();
            let whole = bytes(&fs);
            assert_eq!(last(&fs).unwrap(), 3);
            let mut from = synced;
            while from < whole.len() {
                let to = ((from / 512 + 1) * 512).min(whole.len());
                let mut lost = whole.clone();
                lost[from..to].fill(0);
                let seen = last(&with_bytes(&fs, &lost));
                if to - from >= 16 {
                    assert_eq!(seen.unwrap(), 2, "{tables} tables, zeros from {from} to {to}");
                }
                from = to;
            }
        }
    }

    #[test]
    fn an_edit_with_flipped_bits_may_have_been_synced_and_is_refused() {
        let (fs, mut writer) = manifest();
        writer.append(&[edit(2, 3, None)]).unwrap();
        let synced = bytes(&fs).len();
        writer.append(&[edit(3, 20, None)]).unwrap();
        let whole = bytes(&fs);
        let mut cut = 0;
        for at in synced * 8..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            match last(&with_bytes(&fs, &damaged)) {
                Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption),
                // A truncated record can also have a length that reaches beyond the end.
                Ok(n) => {
                    assert_eq!(n, 2);
                    cut += 1;
                }
            }
        }
        assert!(cut <= 16, "{cut}: only bits of the length make a record look cut");
    }

    #[test]
    fn damage_in_front_of_a_later_edit_is_refused_whatever_it_looks_like() {
        let (fs, mut writer) = manifest();
        let mut ends = vec![bytes(&fs).len()];
        for n in 2..30 {
            writer.append(&[edit(n, n % 7, None)]).unwrap();
            ends.push(bytes(&fs).len());
        }
        let whole = bytes(&fs);
        // All but the last edit are known to have been synced.
        let last_begins = ends[ends.len() - 2];
        for sector in 0..last_begins / 512 {
            let mut lost = whole.clone();
            lost[sector * 512..(sector + 1) * 512].fill(0);
            assert_eq!(last(&with_bytes(&fs, &lost)).unwrap_err().kind(), ErrorKind::Corruption, "sector {sector}");
        }
        // From the beginning of an edit on: its header is zeros, which RocksDB passes over with all that is behind.
        for &begin in &ends[..ends.len() - 2] {
            let mut lost = whole.clone();
            let to = ((begin / 512 + 1) * 512).min(last_begins);
            lost[begin..to].fill(0);
            assert_eq!(last(&with_bytes(&fs, &lost)).unwrap_err().kind(), ErrorKind::Corruption, "{begin} to {to}");
        }
        // A damaged length reaches beyond the end, like that of a truncated record.
        for &begin in &ends[..ends.len() - 2] {
            let mut damaged = whole.clone();
            damaged[begin + 5] = 0x7f;
            assert_eq!(last(&with_bytes(&fs, &damaged)).unwrap_err().kind(), ErrorKind::Corruption, "at {begin}");
        }
    }

    #[test]
    fn zeros_in_one_block_do_not_hide_edits_in_the_next() {
        let (fs, mut writer) = manifest();
        let begin = bytes(&fs).len();
        let mut n = 2;
        while bytes(&fs).len() < 100_000 {
            writer.append(&[edit(n, 3, None)]).unwrap();
            n += 1;
        }
        let mut lost = bytes(&fs);
        lost[begin..512].fill(0);
        assert_eq!(last(&with_bytes(&fs, &lost)).unwrap_err().kind(), ErrorKind::Corruption);
    }

    #[test]
    fn an_atomic_group_that_lost_sectors_is_passed_over_as_a_whole_unless_an_edit_follows() {
        let (fs, mut writer) = manifest();
        writer.append(&[edit(2, 3, None)]).unwrap();
        let synced = bytes(&fs).len();
        writer.append(&[edit(3, 30, Some(2)), edit(4, 30, Some(1)), edit(5, 30, Some(0))]).unwrap();
        let group = bytes(&fs);
        writer.append(&[edit(6, 1, None)]).unwrap();
        let followed = bytes(&fs);
        for sector in synced / 512 + 1..group.len() / 512 {
            let lose = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                bytes[sector * 512..(sector + 1) * 512].fill(0);
                last(&with_bytes(&fs, &bytes))
            };
            assert_eq!(lose(&group).unwrap(), 2, "sector {sector}");
            assert_eq!(lose(&followed).unwrap_err().kind(), ErrorKind::Corruption, "sector {sector}");
        }
    }

    #[test]
    fn whatever_a_power_cut_with_lost_sectors_leaves_opens_at_the_edit_before_or_at_this_one() {
        for tables in [1, 7, 40, 500] {
            let (mut refused, mut images) = (0, 0);
            let (fs, mut writer) = manifest();
            for n in 2..22 {
                fs.start_recording();
                writer.append(&[edit(n, tables, None)]).unwrap();
                let mut replay = fs.replay().unwrap();
                // After the write and before the sync.
                replay.advance_to(1);
                for seed in 0..50 {
                    images += 1;
                    match last(&replay.crash_image(CrashMode::Random(seed))) {
                        Ok(seen) => assert!(seen == n || seen == n - 1, "{seen} and {n}"),
                        Err(_) => refused += 1,
                    }
                }
            }
            println!("edits of {tables} tables: {refused} of {images} refused");
            assert!(refused * 40 < images, "{refused} of {images} refused: only short pieces of sectors should be");
        }
    }
}
