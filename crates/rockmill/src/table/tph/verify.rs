//! Checks a whole TPH table: each of its files, that they agree with the head, and that the function finds every key
//! and no deleted one.

use rockmill_format::key::{self, ParsedInternalKey, ValueType};

use super::reader::TphTable;
use crate::error::{Error, Result};
use crate::table::block_based::TableIter;
use crate::table::{BlockStream, StreamReads};

/// Bytes read at once, of all files together.
const READ_LEN: usize = 4 << 20;

impl TphTable {
    /// Reads everything and checks it; see [`Table::verify`](crate::table::Table::verify).
    pub fn verify(&self) -> Result<()> {
        self.verify_each(&mut |_| Ok(()))
    }

    /// The same; `visit` sees each entry that counts, except range tombstones.
    pub(crate) fn verify_each(&self, visit: &mut dyn FnMut(&ParsedInternalKey<'_>) -> Result<()>) -> Result<()> {
        for piece in &self.pieces {
            piece.table.verify()?;
        }
        let bad = |key: &[u8], what: &str| {
            let key: String = key.iter().map(|b| format!("{b:02x}")).collect();
            Error::corruption(format!("{}: user key {key} {what}", self.path().display()))
        };
        // Like a compaction that keeps every file: it learns about each placeholder that hides something.
        let files = self.whole_files();
        let reads = StreamReads::unpaced(READ_LEN, true).shared_by(files.len());
        let files = files.into_iter().map(|file| {
            let source = BlockStream::of_file(&reads, &file);
            TableIter::streaming(file, source)
        });
        let mut scan = self.scan_of(files, &|file| u32::try_from(file).ok());
        let finder = self.finder(false)?;
        // What the function returns for hashes that several keys share: that the files have to be searched.
        let shared = Some(self.head.blocks());
        let (mut entries, mut keys, mut before) = (0u64, 0u64, None::<Vec<u8>>);
        scan.seek_to_first();
        while scan.valid() {
            let user_key = key::user_key(scan.key());
            let found = finder.map(|finder| finder.find(finder.hash(user_key)));
            let found = found.filter(|found| *found != shared);
            if key::tag(scan.key()) as u8 == ValueType::Placeholder as u8 {
                if found.flatten().is_some() {
                    return Err(bad(user_key, "is gone, and the function leads to a block"));
                }
            } else {
                visit(&ParsedInternalKey::parse(scan.key()).map_err(|e| Error::format(self.path(), &e))?)?;
                entries += 1;
                if before.as_deref() != Some(user_key) {
                    keys += 1;
                    let at = scan.origin().map(|o| self.block_number(o.piece as usize, o.block));
                    if found.is_some_and(|found| found != at) {
                        return Err(bad(user_key, "is not where the function says"));
                    }
                    before = Some(user_key.to_vec());
                }
            }
            scan.next();
        }
        scan.status()?;
        let totals = &self.head.totals;
        if (entries, keys) != (totals.entries, totals.user_keys) {
            return Err(Error::corruption(format!(
                "{}: the head counts {} entries of {} user keys, the files have {entries} of {keys}",
                self.path().display(),
                totals.entries,
                totals.user_keys
            )));
        }
        Ok(())
    }
}
