//! All tables of a column family together, in one merging pass.
//!
//! Places are numbered from the newest: first each L0 table, then each deeper level. Entries come in internal-key
//! order, so the newest version of a user key comes first, and the places of its versions must never decrease.
//! Meanwhile, each table's keys and sequence numbers are compared with its entry in the MANIFEST.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use rockmill::internals::{FileMeta, InternalIterator, RecoveredCf, Table, TableReadOptions};
use rockmill_format::{InternalKeyComparator, SequenceNumber, filename, key};

use super::{Context, Report};
use crate::output;
use crate::progress;

/// Readahead size of each run in bytes.
const READAHEAD: usize = 1 << 20;
/// Entries between two updates of the progress bar.
const SHOW_EVERY: u64 = 1 << 16;
/// Longest key shown, in bytes.
const KEY_SHOWN_MAX: usize = 60;

/// The observed contents of a table.
struct Seen {
    first: Vec<u8>,
    last: Vec<u8>,
    smallest_seqno: SequenceNumber,
    largest_seqno: SequenceNumber,
}

/// The table that a run is in.
type OpenTable = (Arc<FileMeta>, Arc<Table>, Box<dyn InternalIterator>);

/// Tables of one place, one after the other.
struct Run {
    level: usize,
    /// The remaining tables, the next one last.
    files: Vec<(Arc<FileMeta>, Arc<Table>)>,
    at: Option<OpenTable>,
    seen: Option<Seen>,
}

impl Run {
    fn new(level: usize, mut files: Vec<(Arc<FileMeta>, Arc<Table>)>) -> Self {
        files.reverse();
        Self { level, files, at: None, seen: None }
    }

    fn key(&self) -> Option<&[u8]> {
        self.at.as_ref().filter(|a| a.2.valid()).map(|a| a.2.key())
    }

    /// Notes the present entry.
    fn note(&mut self) {
        let Some((_, _, iter)) = self.at.as_ref().filter(|a| a.2.valid()) else { return };
        let k = iter.key();
        let seq = key::sequence(k);
        match &mut self.seen {
            Some(s) => {
                s.last.clear();
                s.last.extend_from_slice(k);
                s.smallest_seqno = s.smallest_seqno.min(seq);
                s.largest_seqno = s.largest_seqno.max(seq);
            }
            None => {
                self.seen = Some(Seen { first: k.to_vec(), last: k.to_vec(), smallest_seqno: seq, largest_seqno: seq });
            }
        }
    }

    /// Moves to the next entry; at the end of a table, checks it and begins the next one.
    fn advance(&mut self, cmp: &InternalKeyComparator, report: &mut Report) {
        if let Some((_, _, iter)) = &mut self.at {
            iter.next();
        }
        loop {
            match self.at.take() {
                Some(at) if at.2.valid() => {
                    self.at = Some(at);
                    self.note();
                    return;
                }
                Some((file, table, iter)) => {
                    let seen = self.seen.take();
                    match iter.status() {
                        Ok(()) => check_entry(&file, &table, seen, cmp, report),
                        Err(e) => report.problem(filename::table(file.number()), e.to_string()),
                    }
                }
                None => {}
            }
            let Some((file, table)) = self.files.pop() else { return };
            let ro = TableReadOptions { fill_cache: false, readahead: READAHEAD, ..TableReadOptions::default() };
            let mut iter = table.iter(ro);
            iter.seek_to_first();
            self.at = Some((file, table, iter));
        }
    }
}

/// Compares a table's observed contents with its entry in the MANIFEST.
fn check_entry(file: &FileMeta, table: &Table, seen: Option<Seen>, cmp: &InternalKeyComparator, report: &mut Report) {
    let name = filename::table(file.number());
    let entry = &file.entry;
    let shown =
        |ikey: &[u8]| format!("'{}' @ {}", output::escape(key::user_key(ikey), KEY_SHOWN_MAX), key::sequence(ikey));
    let mut sequences = Vec::new();
    if let Some(seen) = &seen {
        if cmp.compare(&seen.first, entry.smallest.as_bytes()) == Ordering::Less {
            let (has, says) = (shown(&seen.first), shown(entry.smallest.as_bytes()));
            report.problem(&name, format!("begins with {has}, before the MANIFEST's smallest key {says}"));
        }
        if cmp.compare(&seen.last, entry.largest.as_bytes()) == Ordering::Greater {
            let (has, says) = (shown(&seen.last), shown(entry.largest.as_bytes()));
            report.problem(&name, format!("ends with {has}, after the MANIFEST's largest key {says}"));
        }
        sequences.extend([seen.smallest_seqno, seen.largest_seqno]);
    }
    match table.range_tombstones() {
        Some(tombstones) => sequences.extend(tombstones.extremes().map(|(_, _, seq)| seq)),
        // Range tombstones widen a table's range, even those that a compaction dropped. Without any, the range should
        // be exact.
        None => {
            let exact =
                seen.is_some_and(|s| s.first == entry.smallest.as_bytes() && s.last == entry.largest.as_bytes());
            if !exact {
                report.warning(&name, "the MANIFEST gives a wider key range than the table has");
            }
        }
    }
    let (low, high) = (entry.smallest_seqno, entry.largest_seqno);
    if let Some(bad) = sequences.iter().find(|&&s| s < low || s > high) {
        report.problem(&name, format!("has sequence number {bad}, the MANIFEST says {low} to {high}"));
    }
    if high > report.last_sequence {
        let last = report.last_sequence;
        report.problem(&name, format!("has sequence numbers up to {high}, the database's last one is {last}"));
    }
}

/// Checks all tables of `cf`; `sound` has those that are readable, by number.
pub fn check(context: &Context<'_>, cf: &RecoveredCf, sound: &HashMap<u64, Arc<Table>>, report: &mut Report) {
    let cmp = &cf.version.cmp;
    let open = |f: &Arc<FileMeta>| sound.get(&f.number()).map(|t| (Arc::clone(f), Arc::clone(t)));
    let mut runs: Vec<Run> = Vec::new();
    let mut entries = 0;
    for place in cf.version.sorted_runs() {
        let files: Vec<_> = place.files.iter().filter_map(open).collect();
        entries += files.iter().map(|(_, t)| t.properties().num_entries).sum::<u64>();
        if !files.is_empty() {
            runs.push(Run::new(place.level, files));
        }
    }
    let bar = progress::count("order ", entries, context.quiet);
    runs.iter_mut().for_each(|r| r.advance(cmp, report));
    let mut last_key: Vec<u8> = Vec::new();
    let mut last: Option<(usize, SequenceNumber)> = None;
    let mut done = 0u64;
    // Few runs: finding the smallest one by one is as fast as a heap.
    while let Some(place) = smallest(&runs, cmp) {
        let Some(run) = runs.get_mut(place) else { break };
        let level = run.level;
        if let Some(ikey) = run.key() {
            let (user_key, seq) = (key::user_key(ikey), key::sequence(ikey));
            match last {
                Some((above, newer)) if user_key == last_key => {
                    if place < above || seq == newer {
                        let shown = output::escape(user_key, KEY_SHOWN_MAX);
                        let what = if seq == newer { "stands twice" } else { "is older and nearer to the top" };
                        let name = run.at.as_ref().map(|a| filename::table(a.0.number())).unwrap_or_default();
                        report.problem(
                            name,
                            format!("key '{shown}' @ {seq} in L{level} {what}: another version is @ {newer}"),
                        );
                    }
                }
                _ => {
                    last_key.clear();
                    last_key.extend_from_slice(user_key);
                }
            }
            last = Some((place, seq));
        }
        run.advance(cmp, report);
        done += 1;
        if done.is_multiple_of(SHOW_EVERY) {
            bar.set_position(done);
        }
    }
    bar.finish_and_clear();
}

fn smallest(runs: &[Run], cmp: &InternalKeyComparator) -> Option<usize> {
    let mut best: Option<(usize, &[u8])> = None;
    for (i, run) in runs.iter().enumerate() {
        if let Some(k) = run.key()
            && best.is_none_or(|(_, b)| cmp.compare(k, b) == Ordering::Less)
        {
            best = Some((i, k));
        }
    }
    best.map(|b| b.0)
}
