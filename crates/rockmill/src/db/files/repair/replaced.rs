//! Finds, from the tables alone, those that no longer count: tables that a job has replaced, and outputs of jobs that
//! did not end.
//!
//! The inputs of most jobs are gone once the job is in the MANIFEST. Those of a job that wrote TPH tables may stay, as
//! files of its outputs. If such a file were taken for a table of its own, values that were overwritten and keys that
//! were deleted would come back. So the head of such a table lists all inputs of its job:
//!
//! - *The job has ended* if one of its inputs is gone, if the MANIFEST or a job that has ended knows an output of it,
//!   or if an output of such a job has one of its inputs as a file. Inputs are deleted no earlier. They do not count.
//! - *A reader may still have* tables that were replaced long ago: all inputs of a job may exist, while the outputs
//!   that would show its end were themselves replaced. So every TPH table also lists the tables that no longer counted
//!   when its own job began, and were still there. They do not count, and the jobs that replaced them have ended.
//! - *It has not* if all of its inputs exist and are sound. Then its outputs, some of which may be missing, have
//!   nothing that the inputs lack, and do not count.
//! - *The MANIFEST names an input and an output* only if an earlier repair took the input in again (below): the job's
//!   record in it names the one and removes the other. The MANIFEST is right then.
//! - If all inputs exist and one is damaged, inputs and outputs both count. If other tables of the column family are
//!   damaged, inputs count as well, because they may have data that was in those. If it is unknown which column family
//!   a damaged table belongs to, this applies to all column families.
//!
//! Most damage shows only when a table is read. A damaged table's lists are not used: the others are then chosen again
//! without it ([`Repair::choose`]).

use std::collections::{BTreeMap, BTreeSet};

use rockmill_format::edit::TablePiece;

use super::scan::{Found, Scanned};
use super::{Directory, Family, Repair};
use crate::error::Result;

/// Column families by id.
type Families = BTreeMap<u32, Family>;
/// Tables that were read, by the id of their column family.
type TablesByFamily = BTreeMap<u32, Vec<Scanned>>;

/// What a table says about the job that wrote it.
pub(super) struct Output<'a> {
    pub number: u64,
    /// The tables that the job replaced; none if the table does not say.
    pub replaced: &'a [u64],
    /// The further files of the table.
    pub pieces: Vec<u64>,
}

/// See the module's text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Superseded {
    /// Outputs of jobs that did not end.
    pub unfinished: BTreeSet<u64>,
    /// Outputs of jobs that may have ended or not.
    pub unclear: BTreeSet<u64>,
    /// Inputs of jobs that did.
    pub replaced: BTreeSet<u64>,
}

/// `past`: tables that some table lists as replaced before its job. `there`, `sound`, `named`: whether a file has this
/// number, whether it is a sound table, whether the MANIFEST names it as a table.
pub(super) fn superseded<'a>(
    outputs: impl Iterator<Item = Output<'a>>,
    past: BTreeSet<u64>,
    there: impl Fn(u64) -> bool,
    sound: impl Fn(u64) -> bool,
    named: impl Fn(u64) -> bool,
) -> Superseded {
    // The outputs of one job replace the same tables.
    let mut jobs: BTreeMap<&[u64], (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    for output in outputs.filter(|o| !o.replaced.is_empty()) {
        let (numbers, pieces) = jobs.entry(output.replaced).or_default();
        numbers.push(output.number);
        pieces.extend(output.pieces);
    }
    let mut jobs: Vec<_> = jobs.into_iter().collect();
    // Those that read outputs of others have outputs with higher numbers.
    jobs.sort_by_key(|(_, (outputs, _))| std::cmp::Reverse(outputs.iter().copied().max()));
    let mut all = Superseded { replaced: past, ..Superseded::default() };
    // Files of the outputs of jobs that have ended.
    let mut in_use = BTreeSet::new();
    for (replaced, (outputs, pieces)) in jobs {
        let known = |n: &u64| named(*n) || all.replaced.contains(n);
        // A table becomes a file of others by being replaced, once.
        let is_past = |n: &u64| !there(*n) || in_use.contains(n) || all.replaced.contains(n);
        if outputs.iter().any(known) || replaced.iter().any(is_past) {
            let in_manifest = outputs.iter().any(|n| named(*n));
            all.replaced.extend(replaced.iter().filter(|n| !in_manifest || !named(**n)));
            in_use.extend(pieces);
        } else if replaced.iter().all(|n| sound(*n)) {
            all.unfinished.extend(outputs);
        } else {
            all.unclear.extend(outputs);
        }
    }
    all
}

/// Keeps the tables of column families without damage. `damaged_in` lists the families with damage; it contains `None`
/// if the family of a damaged table is unknown, and then no table is kept. `family_of` returns a table's family, if it
/// is known.
fn keep_of_whole_families(
    replaced: &mut BTreeSet<u64>,
    damaged_in: &BTreeSet<Option<u32>>,
    family_of: impl Fn(u64) -> Option<u32>,
) {
    let is_whole = |id: u32| !damaged_in.contains(&Some(id)) && !damaged_in.contains(&None);
    replaced.retain(|n| family_of(*n).is_some_and(is_whole));
}

impl Repair<'_> {
    /// Chooses the tables that count, which stay in `found`, and reads them; with the column families that there are.
    pub(super) fn choose(
        &mut self,
        found: &mut Vec<Found>,
        sizes: &BTreeMap<u64, u64>,
        dir: &Directory,
    ) -> Result<(Families, TablesByFamily)> {
        let mut read = BTreeMap::new();
        loop {
            let left_out = self.leave_out_superseded(found, sizes, dir);
            let hinted = self.hints.families.iter().filter_map(|(id, h)| Some((*id, h.comparator.clone()?)));
            let stated = found.iter().filter_map(|f| Some((f.column_family()?, f.comparator()?.to_owned())));
            self.orders = stated.chain(hinted).collect();
            let families = self.families(found, &dir.wals)?;
            let known = self.unsound.len();
            let tables = self.scan_all(found, &families, &mut read)?;
            let none_hides = left_out.is_empty() && self.replaced.is_empty() && self.listed.is_empty();
            if self.unsound.len() == known || none_hides {
                let told = |f: &&Found| self.listed.contains(&f.number) || self.unsound.contains(&f.number);
                let left_over = left_out.iter().filter(|f| !told(f)).count();
                self.report.tables_left_over += left_over as u64;
                return Ok((families, tables));
            }
            found.extend(left_out);
            found.sort_by_key(|f| f.number);
        }
    }

    /// The column family of a table, where that is sure.
    pub(super) fn owner(&self, f: &Found) -> Option<u32> {
        let named = self.hints.file(f.number).map(|(id, _)| id);
        named.or_else(|| f.column_family().filter(|_| self.is_own(f)))
    }

    /// False for a table that came from another database, by ingestion or import: it means that one's numbers.
    fn is_own(&self, f: &Found) -> bool {
        f.properties.db_id == self.db_id && f.properties.orig_file_number == f.number
    }

    /// Leaves out what newer tables show not to count, as far as no MANIFEST names it: files that they go on using, and
    /// what [`superseded`] says. Gives what it left out.
    fn leave_out_superseded(
        &mut self,
        found: &mut Vec<Found>,
        sizes: &BTreeMap<u64, u64>,
        dir: &Directory,
    ) -> Vec<Found> {
        let there = |p: &TablePiece| sizes.get(&p.number) == Some(&p.size);
        let unsound = |number: u64| self.unsound.contains(&number);
        let whole = || found.iter().filter(|f| !unsound(f.number) && f.pieces.iter().all(there));
        let named = |number: u64| self.hints.file(number).is_some();
        let pieces = |f: &Found| f.pieces.iter().map(|p| p.number).collect();
        let outputs = whole().map(|f| Output { number: f.number, replaced: &f.replaced.by_job, pieces: pieces(f) });
        let exists = |number: u64| dir.tables.binary_search_by_key(&number, |(n, _)| *n).is_ok();
        let past_of = |f: &Found| {
            let in_manifest = named(f.number);
            let listed = f.replaced.before.iter().copied();
            listed.filter(|n| exists(*n) && !(in_manifest && named(*n))).collect::<Vec<_>>()
        };
        let past = found.iter().filter(|f| self.is_own(f) && !unsound(f.number)).flat_map(past_of);
        let sound = |number: u64| sizes.contains_key(&number) && !unsound(number);
        let Superseded { unfinished, unclear, mut replaced } =
            superseded(outputs, past.collect(), exists, sound, named);
        let ended = whole().filter(|f| !unfinished.contains(&f.number) && !unclear.contains(&f.number));
        let listed: BTreeSet<u64> = ended.flat_map(|f| f.pieces.iter().map(|p| p.number)).collect();
        // A table that was replaced may have lost further files, while its own is one of another.
        let lacks = |f: &Found| !f.pieces.iter().all(there) && !replaced.contains(&f.number);
        let mut damaged_in = self.damaged_in.clone();
        damaged_in.extend(found.iter().filter(|f| lacks(f)).map(|f| self.owner(f)));
        if !damaged_in.is_empty() {
            let found: BTreeMap<u64, Option<u32>> = found.iter().map(|f| (f.number, self.owner(f))).collect();
            let hinted = |n: u64| self.hints.file(n).map(|(id, _)| id);
            keep_of_whole_families(&mut replaced, &damaged_in, |n| found.get(&n).map_or_else(|| hinted(n), |id| *id));
        }
        let counts = |f: &Found| {
            named(f.number)
                || !(unfinished.contains(&f.number) || replaced.contains(&f.number) || listed.contains(&f.number))
        };
        let (counting, left_out) = std::mem::take(found).into_iter().partition(counts);
        *found = counting;
        (self.replaced, self.listed) = (replaced, listed);
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outputs: &[(u64, &[u64])], there: &[u64], named: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let outputs = outputs.iter().map(|&(number, replaced)| Output { number, replaced, pieces: Vec::new() });
        let there = |n| there.contains(&n);
        let all = superseded(outputs, BTreeSet::new(), there, there, |n| named.contains(&n));
        assert!(all.unclear.is_empty());
        (all.unfinished.into_iter().collect(), all.replaced.into_iter().collect())
    }

    #[test]
    fn a_job_has_ended_when_an_input_is_gone() {
        assert_eq!(of(&[(12, &[10, 11]), (13, &[10, 11])], &[10, 11, 12], &[]), (vec![12, 13], vec![]));
        assert_eq!(of(&[(12, &[10, 11])], &[10, 12], &[]), (vec![], vec![10, 11]));
        assert_eq!(of(&[(12, &[10, 11])], &[10, 11, 12], &[12]), (vec![], vec![10, 11]));
        assert_eq!(of(&[(12, &[])], &[12], &[]), (vec![], vec![]));
    }

    /// Somebody still reads 9, and 14 took the place of 13, which had been an output of the same job as 12.
    #[test]
    fn what_an_ended_job_has_as_a_file_was_replaced_before() {
        let first = |number| Output { number, replaced: &[9, 10], pieces: vec![10] };
        let second = Output { number: 15, replaced: &[13, 14], pieces: vec![10] };
        let there = |n| [9, 10, 12, 15].contains(&n);
        let all = superseded([first(12), second].into_iter(), BTreeSet::new(), there, there, |_| false);
        assert_eq!(all, Superseded { replaced: [9, 10, 13, 14].into(), ..Superseded::default() });
        let all = superseded([first(12)].into_iter(), BTreeSet::new(), there, there, |_| false);
        assert_eq!(all, Superseded { unfinished: [12].into(), ..Superseded::default() });
    }

    /// A reader has 9 and 10. Of the outputs of their job, 13 was replaced by 15, which shares no file with it.
    #[test]
    fn what_no_longer_counted_when_a_job_began_was_replaced() {
        let first = || std::iter::once(Output { number: 12, replaced: &[9, 10], pieces: vec![10] });
        let there = |n| [9, 10, 12, 15].contains(&n);
        let all = superseded(first(), [9].into(), there, there, |_| false);
        assert_eq!(all, Superseded { replaced: [9, 10].into(), ..Superseded::default() });
    }

    /// A repair took 10 in again, as another table was damaged.
    #[test]
    fn what_the_manifest_names_beside_what_replaced_it_stays() {
        let all = of(&[(12, &[10, 11])], &[10, 12], &[10, 12]);
        assert_eq!(all, (vec![], vec![11]));
        // The MANIFEST has lost the job's record.
        assert_eq!(of(&[(12, &[10, 11])], &[10, 12], &[10]), (vec![], vec![10, 11]));
    }

    #[test]
    fn where_an_input_is_damaged_everything_counts() {
        let outputs = || std::iter::once(Output { number: 12, replaced: &[10, 11], pieces: vec![10] });
        let all = superseded(outputs(), BTreeSet::new(), |_| true, |n| n != 11, |_| false);
        assert_eq!(all, Superseded { unclear: [12].into(), ..Superseded::default() });
        let all = superseded(outputs(), BTreeSet::new(), |_| true, |n| n != 11, |n| n == 12);
        assert_eq!(all, Superseded { replaced: [10, 11].into(), ..Superseded::default() });
    }

    #[test]
    fn damage_in_one_column_family_is_none_in_others() {
        let kept = |damaged_in: &[Option<u32>]| {
            let mut replaced = [10, 11, 20, 30].into();
            let family_of = |n: u64| (n < 30).then_some(n as u32 / 10);
            keep_of_whole_families(&mut replaced, &damaged_in.iter().copied().collect(), family_of);
            replaced.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(kept(&[Some(2)]), [10, 11]);
        assert_eq!(kept(&[Some(1)]), [20]);
        assert_eq!(kept(&[Some(7)]), [10, 11, 20]);
        assert!(kept(&[Some(7), None]).is_empty() && kept(&[Some(1), Some(2)]).is_empty());
    }

    #[test]
    fn what_a_job_that_has_ended_read_had_ended_before() {
        // A reader still uses 11, so it exists; 14 does not.
        let outputs: &[(u64, &[u64])] = &[(12, &[10, 11]), (13, &[10, 11]), (15, &[12, 14])];
        assert_eq!(of(outputs, &[10, 11, 12, 13, 15], &[]), (vec![], vec![10, 11, 12, 14]));
        // The later job has not ended, so it says nothing about the earlier one.
        assert_eq!(of(outputs, &[10, 12, 13, 14, 15], &[]), (vec![15], vec![10, 11]));
    }
}
