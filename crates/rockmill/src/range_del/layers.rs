//! Finds the sequence numbers over each piece if many tombstones overlap.
//!
//! A list of all sequence numbers for each piece is quadratic for nested tombstones. Here, tombstones are sorted by
//! sequence number, with layers of nodes above them: a node of layer *k* stores which pieces its 2^k tombstones cover
//! together. Adjacent pieces form one run, so nested tombstones, whose union is one run, need only one run per node. In
//! the worst case, each of the log *n* layers has *n* runs.
//!
//! ```text
//! layer 2  [------------- 0..8)
//! layer 1  [------ 0..5)         [2..3) [4..8)
//! layer 0  [0..5)#3  [1..4)#5    [2..3)#7  [4..8)#9      by sequence number
//! ```
//!
//! A binary search over nodes finds the newest tombstone over a piece that a snapshot sees; each node is checked with a
//! binary search of its runs.

use rockmill_format::SequenceNumber;

/// From (inclusive) to (exclusive) piece.
type Run = (u32, u32);

/// One layer of nodes.
#[derive(Debug, Clone)]
struct Layer {
    /// Node `i` has `runs[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
    /// In ascending order within a node, with gaps between them.
    runs: Vec<Run>,
}

impl Layer {
    fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    fn of(&self, node: usize) -> &[Run] {
        &self.runs[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    fn covers(&self, node: usize, piece: u32) -> bool {
        let runs = self.of(node);
        let after = runs.partition_point(|r| r.0 <= piece);
        after > 0 && piece < runs[after - 1].1
    }

    /// The layer above this one: each node stands for two nodes.
    fn above(&self) -> Self {
        let mut above = Self { starts: Vec::with_capacity(self.nodes() / 2 + 2), runs: Vec::new() };
        above.starts.push(0);
        for pair in (0..self.nodes()).step_by(2) {
            let left = self.of(pair);
            let right = if pair + 1 < self.nodes() { self.of(pair + 1) } else { &[] };
            let begin = above.runs.len();
            let (mut l, mut r) = (left.iter().peekable(), right.iter().peekable());
            loop {
                let run = match (l.peek(), r.peek()) {
                    (Some(a), Some(b)) if a.0 <= b.0 => l.next(),
                    (_, Some(_)) => r.next(),
                    (Some(_), None) => l.next(),
                    (None, None) => break,
                };
                let Some(&(from, to)) = run else { break };
                match above.runs[begin..].last_mut() {
                    Some(last) if from <= last.1 => last.1 = last.1.max(to),
                    _ => above.runs.push((from, to)),
                }
            }
            above.starts.push(above.runs.len() as u32);
        }
        above
    }
}

/// Tombstones by sequence number, with the pieces that each covers.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    /// Rising.
    seqs: Vec<SequenceNumber>,
    /// From the tombstones themselves up to one node for all.
    layers: Vec<Layer>,
}

impl Layers {
    /// `tombstones`: sequence number, and first (inclusive) and last (exclusive) piece. There is at least one, and none
    /// is empty.
    pub(super) fn new(mut tombstones: Vec<(SequenceNumber, Run)>) -> Self {
        tombstones.sort_unstable();
        let lowest =
            Layer { starts: (0..=tombstones.len() as u32).collect(), runs: tombstones.iter().map(|t| t.1).collect() };
        let mut layers = vec![lowest];
        while let Some(last) = layers.last().filter(|l| l.nodes() > 1) {
            layers.push(last.above());
        }
        for layer in &mut layers {
            layer.runs.shrink_to_fit();
        }
        Self { seqs: tombstones.into_iter().map(|t| t.0).collect(), layers }
    }

    /// The newest sequence number over `piece` that is at most `snapshot`.
    pub(super) fn newest(&self, piece: usize, snapshot: SequenceNumber) -> Option<SequenceNumber> {
        let piece = u32::try_from(piece).ok()?;
        // The first `end` nodes of a layer stand for the tombstones that the snapshot sees and that were not checked
        // yet.
        let mut end = self.seqs.partition_point(|&s| s <= snapshot);
        for (level, layer) in self.layers.iter().enumerate() {
            if end % 2 == 1 {
                end -= 1;
                if layer.covers(end, piece) {
                    return self.descend(level, end, piece, true);
                }
            }
            end /= 2;
        }
        None
    }

    /// The oldest sequence number over `piece`.
    pub(super) fn oldest(&self, piece: usize) -> Option<SequenceNumber> {
        let (piece, top) = (u32::try_from(piece).ok()?, self.layers.len().checked_sub(1)?);
        if self.layers[top].covers(0, piece) { self.descend(top, 0, piece, false) } else { None }
    }

    /// The newest or oldest tombstone over `piece` below a node that covers it.
    fn descend(&self, level: usize, mut node: usize, piece: u32, newest: bool) -> Option<SequenceNumber> {
        for layer in self.layers[..level].iter().rev() {
            let (left, right) = (2 * node, 2 * node + 1);
            let (first, second) = if newest { (right, left) } else { (left, right) };
            node = if first < layer.nodes() && layer.covers(first, piece) { first } else { second };
        }
        self.seqs.get(node).copied()
    }

    pub(super) fn memory_usage(&self) -> usize {
        let of_layer = |l: &Layer| l.starts.capacity() * size_of::<u32>() + l.runs.capacity() * size_of::<Run>();
        size_of::<Self>() + self.seqs.len() * 8 + self.layers.iter().map(of_layer).sum::<usize>()
    }
}
