//! Entries of a table of several files, in order.
//!
//! Each file is a sorted run. Of the files that have a user key, the newest has all of its entries that count, or a
//! placeholder if there are none; entries of the key in other files are stale and are skipped. So at each moment one
//! file, the current one, gives the entries, and no other file is on its user key.
//!
//! The others are in a heap. A step compares the current file's key only with that of the heap's top; only if that is
//! passed does the current file go into the heap, and the top become current. So a step takes at most the logarithm of
//! the number of files.

use std::path::Path;

use rockmill_format::InternalKeyComparator;
use rockmill_format::key::{self, InternalKey, MAX_SEQUENCE, ValueType};

use super::builder::Origin;
use crate::error::{Error, Result};
use crate::iter::InternalIterator;
use crate::iter::heap::RunHeap;
use crate::iter::seek_reads::SeekReads;
use crate::table::block_based::{Source, StreamSource, TableIter};
use crate::table::{Leaves, TableScan};

/// Files, newest first, with the first and last user key for which each counts; `None` for all.
pub(super) type Files<S> = Vec<(TableIter<S>, Option<(Vec<u8>, Vec<u8>)>)>;

/// A file within its bounds.
struct File<S: Source> {
    iter: TableIter<S>,
    bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// The iterator is on an entry within them.
    valid: bool,
    /// It has requested a block, and seeks again.
    waits: bool,
}

impl<S: Source> File<S> {
    #[inline]
    fn note(&mut self, cmp: &InternalKeyComparator) {
        self.valid = self.iter.valid()
            && self.bounds.as_ref().is_none_or(|(first, last)| {
                let user_key = key::user_key(self.iter.key());
                cmp.compare_user(user_key, last).is_le() && cmp.compare_user(user_key, first).is_ge()
            });
    }

    /// To the first entry at or after `target` or, with `backward`, the last at or before it. With `reads`, it may ask
    /// for a block first.
    fn seek(&mut self, target: &[u8], backward: bool, cmp: &InternalKeyComparator, reads: Option<&mut SeekReads>) {
        let edge = self.bounds.as_ref().and_then(|(first, last)| match backward {
            false => Some(around(first).0).filter(|first| cmp.compare(target, first.as_bytes()).is_lt()),
            true => Some(around(last).1).filter(|last| cmp.compare(target, last.as_bytes()).is_gt()),
        });
        let target = edge.as_ref().map_or(target, |edge| edge.as_bytes());
        match reads {
            // It is at its position.
            Some(reads) if !reads.is_asking() && !self.waits => return,
            Some(reads) => {
                let asked = reads.asked();
                self.iter.seek_together(target, backward, reads);
                self.waits = reads.asked() > asked;
            }
            None if backward => self.iter.seek_for_prev(target),
            None => self.iter.seek(target),
        }
        self.note(cmp);
    }

    fn seek_to_end(&mut self, backward: bool, cmp: &InternalKeyComparator) {
        match (&self.bounds, backward) {
            (None, false) => self.iter.seek_to_first(),
            (None, true) => self.iter.seek_to_last(),
            (Some((first, _)), false) => self.iter.seek(around(first).0.as_bytes()),
            (Some((_, last)), true) => self.iter.seek_for_prev(around(last).1.as_bytes()),
        }
        self.note(cmp);
    }
}

/// See the module's text.
pub(super) struct TphIter<S: Source> {
    files: Vec<File<S>>,
    cmp: InternalKeyComparator,
    current: Option<usize>,
    /// The others that are on an entry.
    heap: RunHeap,
    backward: bool,
    error: Option<Error>,
}

/// True if file `a` is above file `b` in the heap: it has the next key in this direction, or they have the same key and
/// it is the newer one.
fn before<S: Source>(cmp: &InternalKeyComparator, files: &[File<S>], backward: bool) -> impl Fn(usize, usize) -> bool {
    let user_key = move |file: usize| key::user_key(files[file].iter.key());
    move |a, b| {
        let order = cmp.compare_user(user_key(a), user_key(b));
        let order = if backward { order.reverse() } else { order };
        order.then(a.cmp(&b)).is_lt()
    }
}

/// What a step forward went over.
#[derive(Default)]
struct Skipped {
    /// Files whose stale entries of the current user key were skipped, as bits; the 64th bit stands for all later
    /// files.
    stale: u64,
}

fn bit(file: usize) -> u64 {
    1 << file.min(63)
}

impl<S: Source> TphIter<S> {
    pub fn new(files: Files<S>, cmp: InternalKeyComparator) -> Self {
        let files = files.into_iter().map(|(iter, bounds)| File { iter, bounds, valid: false, waits: false }).collect();
        Self { files, cmp, current: None, heap: RunHeap::default(), backward: false, error: None }
    }

    #[inline]
    fn user_key(&self, file: usize) -> &[u8] {
        key::user_key(self.files[file].iter.key())
    }

    fn is_same(&self, a: usize, b: usize) -> bool {
        self.cmp.compare_user(self.user_key(a), self.user_key(b)).is_eq()
    }

    fn is_placeholder(&self, file: usize) -> bool {
        key::tag(self.files[file].iter.key()) as u8 == ValueType::Placeholder as u8
    }

    /// Notes the failure of a file that has no entry; true if it failed.
    fn failed(&mut self, file: usize) -> bool {
        match self.files[file].iter.status() {
            Ok(()) => false,
            Err(e) => {
                self.error = Some(e);
                self.current = None;
                true
            }
        }
    }

    /// Moves a file by one in the current direction; false on failure.
    fn step(&mut self, file: usize) -> bool {
        let at = &mut self.files[file];
        if self.backward {
            at.iter.prev()
        } else {
            at.iter.next()
        }
        at.note(&self.cmp);
        at.valid || at.iter.valid() || !self.failed(file)
    }

    /// True where the key of `a` comes before that of `b` in the current direction.
    #[inline]
    fn comes_before(&self, a: usize, b: usize) -> bool {
        let order = self.cmp.compare_user(self.user_key(a), self.user_key(b));
        if self.backward { order.is_gt() } else { order.is_lt() }
    }

    /// Adds the current file to the heap if it is on an entry; then no file is current.
    fn push_current(&mut self) {
        let Some(current) = self.current.take().filter(|&current| self.files[current].valid) else { return };
        self.heap.push(current, before(&self.cmp, &self.files, self.backward));
    }

    /// Makes the heap of all files but the current one, wherever they stand.
    fn fill_heap(&mut self) {
        self.heap.clear();
        for (file, at) in self.files.iter().enumerate() {
            if at.valid && Some(file) != self.current {
                self.heap.append(file);
            }
        }
        self.heap.heapify(before(&self.cmp, &self.files, self.backward));
    }

    /// Moves `file`, at the heap's top, past the user key of `best`, which it is on; false on failure.
    fn pass_top(&mut self, file: usize, best: usize) -> bool {
        while self.files[file].valid && self.is_same(file, best) {
            if !self.step(file) {
                return false;
            }
        }
        let before = before(&self.cmp, &self.files, self.backward);
        if self.files[file].valid {
            self.heap.replace_top(file, before);
        } else {
            self.heap.pop(before);
        }
        true
    }

    /// Finds the file that has the next user key, and moves the others past that key. `wanted` gets the files that have
    /// stale entries of a placeholder's key; the placeholder is skipped if `wanted` does not want it.
    fn settle(&mut self, wanted: impl Fn(usize, u64) -> bool) -> Skipped {
        loop {
            self.push_current();
            // The newest file that has the next user key.
            let next = self.heap.pop(before(&self.cmp, &self.files, self.backward));
            let Some(best) = next else { return Skipped::default() };
            let mut stale = 0;
            while let Some(file) = self.heap.top().filter(|&file| self.is_same(file, best)) {
                stale |= bit(file);
                if !self.pass_top(file, best) {
                    return Skipped::default();
                }
            }
            if self.is_placeholder(best) && !wanted(best, stale) {
                if !self.step(best) {
                    return Skipped::default();
                }
                self.current = Some(best);
                continue;
            }
            self.current = Some(best);
            return Skipped { stale };
        }
    }

    /// The same after files were moved to other positions.
    fn settle_anew(&mut self, wanted: impl Fn(usize, u64) -> bool) -> Skipped {
        self.current = None;
        self.fill_heap();
        self.settle(wanted)
    }

    /// One step in the current direction. `None` if nothing was skipped.
    #[inline]
    fn go_on(&mut self, wanted: impl Fn(usize, u64) -> bool) -> Option<Skipped> {
        let current = self.current?;
        if !self.step(current) {
            return None;
        }
        let stays = self.files[current].valid
            && self.heap.top().is_none_or(|next| self.comes_before(current, next))
            && !self.is_placeholder(current);
        if stays { None } else { Some(self.settle(wanted)) }
    }

    /// All files to their first entry at or after `target`; with `backward`, to their last at or before it.
    fn seek_all(&mut self, target: &[u8], backward: bool, mut reads: Option<&mut SeekReads>) -> bool {
        self.error = None;
        self.current = None;
        self.backward = backward;
        (0..self.files.len()).all(|file| self.seek_file(file, target, reads.as_deref_mut()))
    }

    fn seek_file(&mut self, file: usize, target: &[u8], reads: Option<&mut SeekReads>) -> bool {
        let at = &mut self.files[file];
        at.seek(target, self.backward, &self.cmp, reads);
        at.valid || at.iter.valid() || !self.failed(file)
    }

    /// To the first entry at or after `target`; with `backward`, to the last at or before it.
    fn seek_to(&mut self, target: &[u8], backward: bool, mut reads: Option<&mut SeekReads>) {
        // From the user key's first entry on, because that decides which file has it.
        let (first, last) = around(key::user_key(target));
        let edge = if backward { last } else { first };
        let asked = reads.as_ref().map_or(0, |reads| reads.asked());
        let went_well = self.seek_all(edge.as_bytes(), backward, reads.as_deref_mut());
        if !went_well || reads.is_some_and(|reads| reads.asked() > asked) {
            return;
        }
        self.settle_anew(unwanted);
        if let Some(current) = self.current {
            let order = self.cmp.compare(self.files[current].iter.key(), target);
            let passed_over = if backward { order.is_gt() } else { order.is_lt() };
            if passed_over && self.seek_file(current, target, None) {
                self.settle(unwanted);
            }
        }
    }

    /// All files to their first entry; with `backward`, to their last.
    fn seek_all_to_end(&mut self, backward: bool) -> bool {
        self.error = None;
        self.current = None;
        self.backward = backward;
        (0..self.files.len()).all(|file| {
            let at = &mut self.files[file];
            at.seek_to_end(backward, &self.cmp);
            at.valid || at.iter.valid() || !self.failed(file)
        })
    }

    /// Lets the steps go in the other direction from here on. False on failure.
    fn turn(&mut self, current: usize) -> bool {
        let user_key = self.user_key(current).to_vec();
        self.backward = !self.backward;
        let (first, last) = around(&user_key);
        let edge = if self.backward { &first } else { &last };
        for file in (0..self.files.len()).filter(|&file| file != current) {
            if !self.seek_file(file, edge.as_bytes(), None) {
                return false;
            }
            while self.files[file].valid && self.cmp.compare_user(self.user_key(file), &user_key).is_eq() {
                if !self.step(file) {
                    return false;
                }
            }
        }
        self.fill_heap();
        true
    }
}

/// Keys before and after all entries of a user key.
fn around(user_key: &[u8]) -> (InternalKey, InternalKey) {
    (InternalKey::new(user_key, MAX_SEQUENCE, ValueType::Max), InternalKey::new(user_key, 0, ValueType::Deletion))
}

/// Readers see no placeholder.
fn unwanted(_: usize, _: u64) -> bool {
    false
}

impl<S: Source> InternalIterator for TphIter<S> {
    #[inline]
    fn valid(&self) -> bool {
        self.current.is_some()
    }

    fn seek_to_first(&mut self) {
        if self.seek_all_to_end(false) {
            self.settle_anew(unwanted);
        }
    }

    fn seek_to_last(&mut self) {
        if self.seek_all_to_end(true) {
            self.settle_anew(unwanted);
        }
    }

    fn seek(&mut self, target: &[u8]) {
        self.seek_to(target, false, None);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.seek_to(target, true, None);
    }

    fn seek_together(&mut self, target: &[u8], backward: bool, reads: &mut SeekReads) {
        self.seek_to(target, backward, Some(reads));
    }

    #[inline]
    fn next(&mut self) {
        let Some(current) = self.current else { return };
        if self.backward && !self.turn(current) {
            return;
        }
        self.go_on(unwanted);
    }

    #[inline]
    fn prev(&mut self) {
        let Some(current) = self.current else { return };
        if !self.backward && !self.turn(current) {
            return;
        }
        self.go_on(unwanted);
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current.map_or(&[], |current| self.files[current].iter.key())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current.map_or(&[], |current| self.files[current].iter.value())
    }

    fn status(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    fn file(&self) -> Option<&Path> {
        self.current.and_then(|current| self.files[current].iter.file())
    }
}

/// One pass over the entries for a compaction, which also learns where each entry is, and which placeholders still
/// count.
pub(super) struct PieceScan<S: Source> {
    iter: TphIter<S>,
    /// The position of each file among the pieces that outputs may keep using.
    places: Vec<Option<u32>>,
    /// Files that outputs may keep using, as bits.
    kept: u64,
    /// There is one file.
    single: bool,
    leaves: Leaves,
    /// The current entry is the first of its user key in its file, as far as that is known, and the last.
    first: bool,
    last: bool,
}

impl<S: StreamSource> PieceScan<S> {
    pub fn new(files: Files<S>, cmp: InternalKeyComparator, places: Vec<Option<u32>>) -> Self {
        let kept = places.iter().enumerate().filter(|(_, place)| place.is_some()).fold(0, |all, (i, _)| all | bit(i));
        let single = files.len() == 1;
        let iter = TphIter::new(files, cmp);
        Self { iter, places, kept, single, leaves: Leaves::Nothing, first: true, last: false }
    }

    fn place(&self) -> Option<u32> {
        self.places.get(self.iter.current?).copied().flatten()
    }

    /// After a step that may have skipped something: what the user key leaves behind if it is deleted.
    fn note(&mut self, stale: u64) {
        let stale = stale & self.kept != 0;
        let placeholder = self.iter.current.is_some_and(|current| self.iter.is_placeholder(current));
        self.leaves = match (self.place(), placeholder) {
            (Some(place), true) if stale => Leaves::Placeholder(place),
            (Some(_), false) => Leaves::Entries,
            _ if stale => Leaves::Entries,
            _ => Leaves::Nothing,
        };
    }

    fn take_single(&mut self) {
        self.iter.files[0].note(&self.iter.cmp);
        let valid = self.iter.files[0].valid;
        self.iter.current = valid.then_some(0);
        if valid {
            self.note(0);
            self.arrive();
        } else {
            self.iter.failed(0);
        }
    }

    fn settle(&mut self) {
        let kept = self.kept;
        let skipped = self.iter.settle_anew(|_, stale| stale & kept != 0);
        self.note(skipped.stale);
        self.arrive();
    }

    /// Now on another entry. It is examined once, however often it is asked for.
    #[inline]
    fn arrive(&mut self) {
        self.last = self.iter.current.is_some_and(|current| self.iter.files[current].iter.is_last_of_user_key());
    }
}

impl<S: StreamSource> InternalIterator for PieceScan<S> {
    fn valid(&self) -> bool {
        self.iter.valid()
    }

    fn seek_to_first(&mut self) {
        self.first = true;
        if self.single {
            self.iter.error = None;
            self.iter.files[0].iter.seek_to_first();
            self.take_single();
        } else if self.iter.seek_all_to_end(false) {
            self.settle();
        }
    }

    fn seek_to_last(&mut self) {
        self.iter.seek_to_last();
        self.arrive();
    }

    /// Only for keys before all entries of a user key.
    fn seek(&mut self, target: &[u8]) {
        self.first = true;
        if self.single {
            self.iter.error = None;
            self.iter.files[0].iter.seek(target);
            self.take_single();
        } else if self.iter.seek_all(target, false, None) {
            self.settle();
        }
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.iter.seek_for_prev(target);
        self.arrive();
    }

    fn next(&mut self) {
        if self.iter.current.is_none() {
            return;
        }
        let ends_user_key = self.last;
        if self.single {
            self.iter.files[0].iter.next();
            self.first = ends_user_key;
            self.take_single();
            return;
        }
        let kept = self.kept;
        match self.iter.go_on(|_, stale| stale & kept != 0) {
            Some(skipped) => {
                self.first = true;
                self.note(skipped.stale);
            }
            None => {
                self.first = ends_user_key;
                // A placeholder is the only entry of its key in its file.
                if ends_user_key || matches!(self.leaves, Leaves::Placeholder(_)) {
                    self.note(0);
                }
            }
        }
        self.arrive();
    }

    fn prev(&mut self) {
        self.iter.prev();
        self.arrive();
    }

    fn key(&self) -> &[u8] {
        self.iter.key()
    }

    fn value(&self) -> &[u8] {
        self.iter.value()
    }

    fn status(&self) -> Result<()> {
        self.iter.status()
    }

    fn file(&self) -> Option<&Path> {
        self.iter.file()
    }
}

impl<S: StreamSource> TableScan for PieceScan<S> {
    fn bytes_read(&self) -> u64 {
        self.iter.files.iter().map(|f| f.iter.bytes_read()).sum()
    }

    fn value_len(&self) -> usize {
        self.iter.current.map_or(0, |current| self.iter.files[current].iter.value_len())
    }

    fn origin(&self) -> Option<Origin> {
        let (piece, file) = (self.place()?, self.iter.files.get(self.iter.current?)?);
        Some(Origin { piece, block: file.iter.block_number() as u64, alone: self.first && self.last })
    }

    fn leaves(&self) -> Leaves {
        self.leaves
    }
}
