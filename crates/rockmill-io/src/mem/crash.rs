//! What a power cut leaves.

use super::tree::{DataOp, DirOp, Event, FileNode, Id, Node, ROOT, Tree, write_at};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::Arc;

/// What a disk writes at once.
const SECTOR: usize = 512;

/// How much unsynced data survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashMode {
    /// Nothing: the least that the disk promised.
    SyncedOnly,
    /// Everything that reached the kernel: the process died, the machine did not.
    KeepAll,
    /// By chance, on a file system with a journal (ext4, XFS, btrfs): of each file nothing, all, the first writes with
    /// the last one torn, or any sectors in any order; of the changes to names the first ones, either of all
    /// directories together (one journal, which commits in order) or of each directory by itself (each on a file
    /// system of its own). Where a sector was lost behind the old end, zeros are read.
    Random(u64),
    /// By chance, on a file system without a journal, as little as POSIX promises: as `Random`, and lost sectors may
    /// hold garbage, a sector itself may be torn, and of the changes to names any may survive without the ones before.
    /// Only changes of the same name stay in order, and the two halves of a rename together.
    Hostile(u64),
}

/// SplitMix64: enough randomness to choose sectors, and the same on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 up to and without `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// True in `n` of sixteen cases.
    fn sixteenths(&mut self, n: usize) -> bool {
        self.below(16) < n
    }
}

impl Tree {
    /// The disk as the next start finds it.
    pub(super) fn crash(&self, mode: CrashMode) -> Tree {
        let (seed, hostile) = match mode {
            CrashMode::Random(seed) => (seed, false),
            CrashMode::Hostile(seed) => (seed, true),
            CrashMode::SyncedOnly | CrashMode::KeepAll => (0, false),
        };
        let mut after = self.clone();
        let mut rng = Rng(seed);
        let pending = std::mem::take(&mut after.pending);
        let kept = match mode {
            CrashMode::SyncedOnly => vec![false; pending.len()],
            CrashMode::KeepAll => vec![true; pending.len()],
            CrashMode::Random(_) => journaled(&pending, &mut rng),
            CrashMode::Hostile(_) => unordered(&pending, &mut rng),
        };
        for (op, _) in pending.iter().zip(kept).filter(|(_, kept)| *kept) {
            after.settle(op);
        }
        for (id, node) in &mut after.nodes {
            match node {
                Node::Dir(dir) => dir.current.clone_from(&dir.durable),
                Node::File(file) => {
                    let contents = match mode {
                        CrashMode::SyncedOnly => Arc::clone(&file.durable),
                        CrashMode::KeepAll => Arc::clone(&file.current),
                        CrashMode::Random(_) | CrashMode::Hostile(_) => {
                            // Each file by its own chance, whatever other files there are.
                            let mut rng = Rng(seed ^ id.wrapping_mul(0xD6E8_FEB8_6659_FD93));
                            file.survivors(&mut rng, hostile)
                        }
                    };
                    *file = FileNode { durable: Arc::clone(&contents), current: contents, ..FileNode::default() };
                }
            }
        }
        after.keep_reachable();
        after
    }

    /// The same files and directories with the same page cache, for another process. No file is open.
    pub(super) fn next_process(&self) -> Tree {
        let mut after = self.clone();
        for node in after.nodes.values_mut() {
            if let Node::File(file) = node {
                file.handles = Arc::default();
            }
        }
        after.collect();
        after
    }

    /// Drops everything that no path leads to: a directory whose name was lost takes its whole tree with it.
    fn keep_reachable(&mut self) {
        let mut reachable = BTreeSet::new();
        let mut todo: Vec<Id> = vec![ROOT];
        while let Some(id) = todo.pop() {
            if reachable.insert(id)
                && let Some(dir) = self.dir(id)
            {
                todo.extend(dir.current.values().copied());
            }
        }
        self.nodes.retain(|id, _| reachable.contains(id));
    }
}

/// Which changes of names survive where they are committed in order: the first ones, of all together or by directory.
/// A rename between two directories is in both orders, and is lost with either.
fn journaled(pending: &[DirOp], rng: &mut Rng) -> Vec<bool> {
    let together = rng.below(pending.len() + 1);
    if rng.one_in(2) {
        return (0..pending.len()).map(|i| i < together).collect();
    }
    let mut left: BTreeMap<Id, usize> = BTreeMap::new();
    for (dir, ..) in pending.iter().flat_map(|op| &op.0) {
        *left.entry(*dir).or_default() += 1;
    }
    for left in left.values_mut() {
        *left = rng.below(*left + 1);
    }
    let mut kept = Vec::with_capacity(pending.len());
    for op in pending {
        let keep = op.0.iter().all(|(dir, ..)| left.get(dir).is_some_and(|left| *left > 0));
        for (dir, ..) in &op.0 {
            let left = left.entry(*dir).or_default();
            *left = if keep { left.saturating_sub(1) } else { 0 };
        }
        kept.push(keep);
    }
    kept
}

/// Which changes of names survive if nothing orders them: any, but none without the earlier changes of the same name.
fn unordered(pending: &[DirOp], rng: &mut Rng) -> Vec<bool> {
    // Few, half, most and nearly all: a single lost change among many kept ones reveals errors that are hidden if half
    // of all are lost.
    let odds = [4, 8, 12, 15][rng.below(4)];
    let mut lost: BTreeSet<(Id, &OsString)> = BTreeSet::new();
    let mut kept = Vec::with_capacity(pending.len());
    for op in pending {
        let follows_lost = op.0.iter().any(|(dir, name, _)| lost.contains(&(*dir, name)));
        let keep = rng.sixteenths(odds) && !follows_lost;
        if !keep {
            lost.extend(op.0.iter().map(|(dir, name, _)| (*dir, name)));
        }
        kept.push(keep);
    }
    kept
}

impl FileNode {
    fn survivors(&self, rng: &mut Rng, hostile: bool) -> Arc<Vec<u8>> {
        let fate = rng.below(4);
        if self.pending.is_empty() || fate == 0 {
            return Arc::clone(&self.durable);
        }
        if fate == 1 {
            return Arc::clone(&self.current);
        }
        let mut contents = Vec::clone(&self.durable);
        if fate == 2 {
            let whole = rng.below(self.pending.len());
            for op in &self.pending[..whole] {
                op.apply(&mut contents);
            }
            if let DataOp::Write { offset, data } = &self.pending[whole] {
                let cut = rng.below(data.len() + 1);
                // A disk's sectors start at multiples of their size in the file, not in the write.
                let end = *offset as usize + cut;
                let end = if hostile { end } else { end - end % SECTOR };
                if let Some(n) = end.checked_sub(*offset as usize) {
                    write_at(&mut contents, *offset as usize, &data[..n]);
                }
            }
            return Arc::new(contents);
        }
        // Lengths change in order, and no write overtakes one: the new blocks belong to the same transaction. Between
        // them, each sector goes its own way.
        let mut settled = rng.below(self.pending.len() + 1);
        for op in &self.pending {
            match op {
                DataOp::SetLen(_) if settled == 0 => break,
                DataOp::SetLen(_) => op.apply(&mut contents),
                DataOp::Write { offset, data } => scatter(&mut contents, *offset as usize, data, rng, hostile),
            }
            settled = settled.saturating_sub(1);
        }
        Arc::new(contents)
    }
}

/// Writes some sectors of a write and loses the others.
fn scatter(contents: &mut Vec<u8>, offset: usize, data: &[u8], rng: &mut Rng, hostile: bool) {
    let end = offset + data.len();
    // The length may have been updated before the data arrived.
    if rng.one_in(2) && contents.len() < end {
        let from = contents.len().max(offset);
        contents.resize(end, 0);
        if hostile && rng.one_in(2) {
            contents[from..].fill_with(|| rng.next() as u8);
        }
    }
    let mut at = offset;
    while at < end {
        let sector_end = ((at / SECTOR + 1) * SECTOR).min(end);
        let sector = &data[at - offset..sector_end - offset];
        if rng.one_in(2) {
            let torn = hostile && rng.one_in(8);
            let n = if torn { rng.below(sector.len()) } else { sector.len() };
            if torn && rng.one_in(2) {
                // The head of the sector was written last and is lost: the disk has the new tail, and the old bytes
                // before it.
                write_at(contents, at + n, &sector[n..]);
            } else {
                write_at(contents, at, &sector[..n]);
            }
        }
        at = sector_end;
    }
}

/// A recorded run, played again.
#[derive(Debug, Clone)]
pub(super) struct Recording {
    pub(super) base: Tree,
    pub(super) events: Vec<Event>,
}

/// Steps through a recorded run: crash images at rising points cost one pass in all.
#[derive(Debug)]
pub struct Replay {
    tree: Tree,
    events: Vec<Event>,
    next: usize,
}

impl Replay {
    pub(super) fn new(recording: Recording) -> Self {
        Self { tree: recording.base, events: recording.events, next: 0 }
    }

    /// The number of points: one before each recorded change, and one after the last.
    pub fn points(&self) -> usize {
        self.events.len() + 1
    }

    /// The current position: the number of changes so far.
    pub fn point(&self) -> usize {
        self.next
    }

    /// Advances to a point, or to the last one. Never moves back.
    pub fn advance_to(&mut self, point: usize) {
        while self.next < point.min(self.events.len()) {
            self.tree.apply(&self.events[self.next]);
            self.next += 1;
        }
    }

    /// The disk after a power cut at this point.
    pub fn crash_image(&self, mode: CrashMode) -> super::MemFileSystem {
        super::MemFileSystem::from_tree(self.tree.crash(mode))
    }
}
