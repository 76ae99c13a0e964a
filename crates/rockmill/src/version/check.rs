//! What must hold in every version, as far as the MANIFEST shows it: debug builds check every version that is
//! installed. `rockmill verify` checks it key by key.

use std::collections::HashMap;

use rockmill_format::key::{self, ParsedInternalKey};
use rockmill_format::{InternalKey, ValueType};

use super::{FileMeta, Version};
use crate::error::{Error, Result};

impl Version {
    /// Checks the places of a version: ids of a level's extra runs fall, each run holds the files that say so, in the
    /// order of keys and without overlap; and for the user keys that bound tables, entries in a shallower place are
    /// newer than those in a deeper one. Inner keys are not known here, and tables whose ranges overlap may have no key
    /// in common.
    ///
    /// # Errors
    /// Corruption that names the tables.
    pub fn check(&self) -> Result<()> {
        for (level, tables) in self.levels.iter().enumerate() {
            let ids: Vec<u64> = tables.extras.iter().map(|run| run.id).collect();
            if ids.contains(&0) || ids.windows(2).any(|w| w[0] <= w[1]) || (level == 0 && !ids.is_empty()) {
                return Err(Error::corruption(format!("level {level} has extra runs {ids:?}")));
            }
            let runs = tables.extras.iter().map(|run| (run.id, &run.files)).chain([(0, &tables.base)]);
            for (id, files) in runs {
                if let Some(f) = files.iter().find(|f| f.entry.extra_run != id) {
                    let says = f.entry.extra_run;
                    return Err(Error::corruption(format!("{f:?} of run {says} is in run {id} of level {level}")));
                }
                if id != 0 && files.is_empty() {
                    return Err(Error::corruption(format!("extra run {id} of level {level} has no files")));
                }
                let cmp = &self.cmp;
                let unordered = files
                    .windows(2)
                    .filter(|_| level > 0)
                    .find(|w| cmp.compare(w[0].entry.largest.as_bytes(), w[1].entry.smallest.as_bytes()).is_ge());
                if let Some([a, b]) = unordered {
                    return Err(Error::corruption(format!(
                        "tables {a:?} and {b:?} overlap in run {id} of level {level}"
                    )));
                }
            }
        }
        self.check_boundaries()
    }

    fn check_boundaries(&self) -> Result<()> {
        // Of each boundary user key the oldest version seen so far, and the table.
        let mut seen: HashMap<&[u8], (u64, &FileMeta)> = HashMap::new();
        for place in self.sorted_runs() {
            let ends = || {
                let both = place.files.iter().flat_map(|f| [(f, &f.entry.smallest), (f, &f.entry.largest)]);
                both.filter_map(|(f, k)| {
                    let k = ParsedInternalKey::parse(k.as_bytes()).ok()?;
                    // Where a range tombstone bounds a table there may be no key.
                    (k.value_type != ValueType::RangeDeletion && k.sequence < key::MAX_SEQUENCE)
                        .then_some((k.user_key, k.sequence, &**f))
                })
            };
            for (user_key, seq, f) in ends() {
                // Sequence numbers are 0 if all readers see the entry, or if it was ingested behind everything.
                if let Some((above, g)) = seen.get(user_key).filter(|(above, _)| *above <= seq && seq > 0) {
                    return Err(Error::corruption(format!(
                        "key {} is in {:06}.sst @ {above}, and newer, @ {seq}, in {:06}.sst below it (L{} run {})",
                        crate::table::describe_internal_key(
                            InternalKey::new(user_key, seq, ValueType::Value).as_bytes()
                        ),
                        g.number(),
                        f.number(),
                        place.level,
                        place.run
                    )));
                }
            }
            for (user_key, seq, f) in ends() {
                seen.entry(user_key).and_modify(|old| old.0 = old.0.min(seq)).or_insert((seq, f));
            }
        }
        Ok(())
    }
}
