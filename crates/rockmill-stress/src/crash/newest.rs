//! Histories with FIFO compaction that drops old tables, and the allowed contents: for each column family, everything
//! written from some moment on. Tables are dropped as a whole and oldest first, and a table has everything written
//! between two moments. So nothing older ever reappears, and nothing in between is missing.

use std::collections::BTreeMap;

use crate::configuration::Configuration;
use crate::contents::{Contents, Difference};
use crate::generate::Profile;
use crate::history::{History, Reopen, Step};
use crate::kinds::{Kind, Slot};
use crate::model::Model;

/// Bytes of tables that a column family may keep: a few of its memtables.
const KEPT: u64 = 12 << 10;

/// Only writes: contents are checked on the disks, not during the history.
pub(super) fn profile(ordinary: Profile) -> Profile {
    Profile {
        families: vec![Kind::Merging, Kind::Reversed, Kind::Counting],
        get: 0,
        walk: 0,
        multi_get: 0,
        snapshot: 0,
        copy: 0,
        create: 0,
        together: 0,
        flush: 50,
        ..ordinary
    }
}

/// Makes every column family drop data beyond [`KEPT`], and omits steps that need all of the data.
pub(super) fn with_drops(history: History) -> History {
    // Randomly chooses whether small tables are merged.
    let merges = history.steps.iter().filter(|step| matches!(step, Step::Flush(..))).count().is_multiple_of(2);
    let limit = |slot: Slot| {
        let text = format!("{{max_table_files_size={KEPT};allow_compaction={merges}}}");
        Step::SetOptions(slot, "compaction_options_fifo".to_owned(), text)
    };
    let mut steps = vec![limit(0)];
    let mut slots = vec![0];
    for step in history.steps {
        match step {
            Step::Create(slot, _) => {
                slots.push(slot);
                steps.extend([step, limit(slot)]);
            }
            Step::Reopen(how) => {
                // Others compare the whole contents.
                let how = if how == Reopen::Next { how } else { Reopen::Same };
                steps.push(Step::Reopen(how));
                steps.extend(slots.iter().map(|slot| limit(*slot)));
            }
            // If several are ingested at once, some may be dropped. A memtable without keys of an ingested table is not
            // flushed before it, and would become a table of what was written before and after that one.
            Step::Ingest(moved, files) => steps.extend(
                files.into_iter().flat_map(|f| [Step::Flush(vec![f.slot], true), Step::Ingest(moved, vec![f])]),
            ),
            Step::SetOptions(_, ref name, _) if name.starts_with("compaction_") => {}
            Step::Check(_) => {}
            step => steps.push(step),
        }
    }
    History { steps }
}

/// Small memtables, so that there are tables to drop.
pub(super) fn configure(configuration: &Configuration) -> Configuration {
    configuration.clone().with_all("strategy=fifo,memtable=16k,memory=own").unwrap_or_default()
}

/// Hashes of each column family's contents if it has only what was written between two moments.
pub(super) struct Suffixes {
    /// By slot: the step after which it exists, and its hash by the first and the last step that count.
    families: BTreeMap<Slot, (usize, Vec<Vec<u64>>)>,
}

impl Suffixes {
    /// Of a whole history.
    pub fn new(steps: &[Step]) -> Self {
        let mut families = BTreeMap::from([(0, (0, Vec::new()))]);
        for (n, step) in steps.iter().enumerate() {
            if let Step::Create(slot, _) = step {
                families.insert(*slot, (n + 1, Vec::new()));
            }
        }
        for first in 0..=steps.len() {
            let mut model = Model::new();
            families.values_mut().for_each(|(_, hashes)| hashes.push(Vec::with_capacity(steps.len() - first + 1)));
            for done in 0..=steps.len() {
                if done >= first {
                    for (slot, (_, hashes)) in &mut families {
                        let hash = model.state.get(slot).map_or(0, |family| family.hash());
                        hashes[first].push(hash);
                    }
                }
                match steps.get(done) {
                    Some(Step::Write(..) | Step::Ingest(..)) if done < first => model.pass(),
                    Some(step) => drop(model.step(step)),
                    None => {}
                }
            }
        }
        Self { families }
    }

    /// Finds a moment between `durable` and `started` whose newest part each column family shows. Returns the moment,
    /// and how many column families have legitimately dropped some data.
    ///
    /// # Errors
    /// The column families whose contents match no such part.
    pub fn find(&self, contents: &Contents, durable: usize, started: usize) -> Result<(usize, usize), Difference> {
        let mut wrong = Vec::new();
        for done in durable..=started {
            let mut dropped = 0;
            wrong.clear();
            for (&slot, (born, hashes)) in &self.families {
                let first = match contents.hash(slot) {
                    // Its creation is durable immediately, whatever happens to earlier writes.
                    None => (done < *born).then_some(0),
                    Some(hash) => (0..=done).find(|first| hashes[*first][done - first] == hash),
                };
                match first {
                    Some(first) => dropped += usize::from(first > 0),
                    None => wrong.push(slot),
                }
            }
            if wrong.is_empty() {
                return Ok((done, dropped));
            }
        }
        let what = format!(
            "numbers {wrong:?} show no newest part of what was written up to the last of {started} steps (nor, with \
             the others, after any from {durable} on)"
        );
        Err(Difference::new("column families", what))
    }
}
