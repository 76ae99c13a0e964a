//! A model of which keys are where, without storing keys.
//!
//! Keys are divided into *classes* by how often they are written, each spread evenly over the whole key space. A table
//! holds a number of keys of each class, spread evenly over its range. If the share `p` of `n` writes goes to a class
//! of `K` keys, a memtable keeps `K (1 - e^(-np/K))` of them: the other writes are newer versions of these keys. Where
//! tables are merged, a key of the range is in the result unless it is in none of them: if they hold the parts `d` of a
//! class's keys, the result holds `1 - (1 - d1)(1 - d2)...` of it. If each key is written once (a fill), parts add up
//! instead.

use crate::settings::{KeyOrder, Settings, Workload};

/// The key space as positions: the largest.
pub const POSITIONS: u64 = 1 << 56;

/// Keys of about the same popularity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Class {
    /// How many.
    pub keys: f64,
    /// Share of all writes.
    pub share: f64,
}

/// All keys.
#[derive(Debug, Clone)]
pub struct KeySpace {
    /// By falling popularity.
    pub classes: Vec<Class>,
    /// Each key is written once.
    pub unique: bool,
    /// In order of position.
    pub sequential: bool,
    /// Writes so far.
    written: f64,
}

/// A range of positions and how many keys of each class it has.
#[derive(Debug, Clone, PartialEq)]
pub struct Extent {
    /// First position.
    pub begin: u64,
    /// Behind the last one.
    pub end: u64,
    /// Keys of each class.
    pub keys: Vec<f64>,
}

impl Extent {
    /// Entries.
    pub fn entries(&self) -> f64 {
        self.keys.iter().sum()
    }

    fn width(&self) -> f64 {
        (self.end - self.begin) as f64
    }
}

impl KeySpace {
    /// The keys of these settings.
    pub fn new(s: &Settings) -> Self {
        let count = s.key_count();
        let classes = match s.keys {
            KeyOrder::Zipfian(theta) => zipfian(count, theta),
            _ => vec![Class { keys: count, share: 1.0 }],
        };
        Self { classes, unique: s.workload == Workload::Fill, sequential: s.keys == KeyOrder::Sequential, written: 0.0 }
    }

    /// Keys of all classes.
    pub fn count(&self) -> f64 {
        self.classes.iter().map(|c| c.keys).sum()
    }

    /// The contents of a memtable after `writes` more writes.
    pub fn memtable(&mut self, writes: f64) -> Extent {
        let (count, from) = (self.count(), self.written);
        self.written += writes;
        if self.sequential {
            let at = |n: f64| ((n / count).min(1.0) * POSITIONS as f64) as u64;
            let (begin, end) = (at(from), at(self.written));
            return Extent { begin, end: end.max(begin + 1), keys: vec![writes] };
        }
        let keys = self.classes.iter().map(|c| match self.unique {
            true => writes * c.share,
            false => c.keys * -(-writes * c.share / c.keys).exp_m1(),
        });
        Extent { begin: 0, end: POSITIONS, keys: keys.collect() }
    }

    /// Every key once, in extents of `entries` entries each.
    pub fn everything(&self, entries: f64) -> Vec<Extent> {
        let pieces = (self.count() / entries.max(1.0)).ceil().max(1.0);
        let at = |i: u64| (i as f64 / pieces * POSITIONS as f64) as u64;
        let keys: Vec<f64> = self.classes.iter().map(|c| c.keys / pieces).collect();
        (0..pieces as u64).map(|i| Extent { begin: at(i), end: at(i + 1), keys: keys.clone() }).collect()
    }

    /// Distinct keys written so far, starting from an empty store.
    pub fn distinct(&self) -> f64 {
        if self.unique {
            return self.written.min(self.count());
        }
        self.classes.iter().map(|c| c.keys * -(-self.written * c.share / c.keys).exp_m1()).sum()
    }

    /// Fraction of the key space in which there are keys.
    pub fn there(&self) -> f64 {
        match self.sequential {
            true => (self.written / self.count()).min(1.0),
            false => 1.0,
        }
    }

    /// Number of keys of a class in an extent's range.
    pub fn in_range(&self, class: usize, extent: &Extent) -> f64 {
        self.classes[class].keys * extent.width() / POSITIONS as f64
    }

    /// Merges extents into tables; extents of the same run do not overlap.
    pub fn merge(&self, inputs: &[&Extent], cuts: &Cuts) -> Vec<Extent> {
        let mut bounds: Vec<u64> = inputs.iter().flat_map(|e| [e.begin, e.end]).collect();
        if let (Some(&begin), Some(&end)) = (bounds.iter().min(), bounds.iter().max()) {
            bounds.extend(cuts.below.iter().filter(|at| (begin..end).contains(at)));
        }
        bounds.sort_unstable();
        bounds.dedup();
        let mut order: Vec<&Extent> = inputs.to_vec();
        order.sort_by_key(|e| e.begin);
        let mut out = Cutter {
            classes: self.classes.len(),
            entries_max: cuts.entries_max,
            done: Vec::new(),
            open: None,
            passed: 0,
        };
        let mut below = cuts.below.iter().peekable();
        let mut bases = cuts.bases.iter().peekable();
        let (mut next, mut active): (usize, Vec<&Extent>) = (0, Vec::new());
        for pair in bounds.windows(2) {
            let (begin, end) = (pair[0], pair[1]);
            while let Some(e) = order.get(next).filter(|e| e.begin <= begin) {
                active.push(e);
                next += 1;
            }
            active.retain(|e| e.end > begin);
            if active.is_empty() {
                continue;
            }
            while let Some(&(_, entries_max)) = bases.next_if(|(at, _)| *at <= begin) {
                out.base(cuts.entries, entries_max);
            }
            let width = (end - begin) as f64;
            let keys: Vec<f64> = (0..self.classes.len())
                .map(|class| {
                    // All keys of the class in this range.
                    let all = self.classes[class].keys * width / POSITIONS as f64;
                    let parts = active.iter().map(|e| e.keys[class] * width / e.width());
                    match self.unique {
                        // This may exceed the number of keys in the range, because tables are assumed to be even
                        // although they are not; but no key may be lost.
                        true => parts.sum::<f64>(),
                        false => all * (1.0 - parts.map(|n| 1.0 - (n / all).min(1.0)).product::<f64>()),
                    }
                })
                .collect();
            out.add(begin, end, &keys);
            while below.next_if(|at| **at < end).is_some() {}
            if below.next_if(|at| **at == end).is_some() && cuts.bases.is_empty() {
                out.boundary(cuts.entries);
            }
        }
        out.finish()
    }
}

/// Where tables end.
#[derive(Debug, Clone, Default)]
pub struct Cuts {
    /// Entries that a table should have.
    pub entries: f64,
    /// Entries at which it ends.
    pub entries_max: f64,
    /// Boundaries of tables that the output will be merged with later, ascending: a table may end there once it is half
    /// full, as in the store (`compaction/output.rs`).
    pub below: Vec<u64>,
    /// Beginnings of tables whose files the outputs continue to use, ascending, with the entries at which a table ends
    /// from there on. A table ends at each of them if it is a quarter full, and not at boundaries below.
    pub bases: Vec<(u64, f64)>,
}

impl Cuts {
    /// Cuts only by the number of entries.
    pub fn at(entries: f64) -> Self {
        Self { entries, entries_max: entries, ..Self::default() }
    }
}

/// Cuts what is merged into tables.
struct Cutter {
    classes: usize,
    entries_max: f64,
    done: Vec<Extent>,
    open: Option<Extent>,
    /// Boundaries that the open table passed.
    passed: u32,
}

impl Cutter {
    /// Notes the beginning of a table whose files continue to be used.
    fn base(&mut self, entries: f64, entries_max: f64) {
        if self.open.as_ref().is_some_and(|open| open.entries() * 4.0 >= entries && open.end > open.begin) {
            self.done.extend(self.open.take());
        }
        self.entries_max = entries_max;
    }

    /// Notes a boundary of a table below.
    fn boundary(&mut self, entries: f64) {
        let Some(open) = &self.open else { return };
        let percent = 50 + (self.passed * 5).min(40);
        if open.entries() * 100.0 >= entries * f64::from(percent) && open.end > open.begin {
            self.done.extend(self.open.take());
            self.passed = 0;
        } else {
            self.passed += 1;
        }
    }

    fn add(&mut self, mut begin: u64, end: u64, keys: &[f64]) {
        let total: f64 = keys.iter().sum();
        let mut left = total;
        while begin < end {
            let classes = self.classes;
            let open = self.open.get_or_insert_with(|| Extent { begin, end: begin, keys: vec![0.0; classes] });
            let room = self.entries_max - open.entries();
            let part = if left <= room || left <= 0.0 { 1.0 } else { (room / left).clamp(0.0, 1.0) };
            // A table is at least one position wide.
            let cut = match part >= 1.0 {
                true => end,
                false => (begin + ((end - begin) as f64 * part) as u64).clamp(begin + 1, end),
            };
            let taken = if cut == end { left } else { left * part };
            for (have, more) in open.keys.iter_mut().zip(keys) {
                *have += if total > 0.0 { more / total * taken } else { 0.0 };
            }
            open.end = cut;
            left -= taken;
            begin = cut;
            if open.entries() >= self.entries_max * 0.999_999 {
                self.done.extend(self.open.take());
                self.passed = 0;
            }
        }
    }

    fn finish(mut self) -> Vec<Extent> {
        self.done.extend(self.open.take().filter(|e| e.end > e.begin));
        self.done
    }
}

/// Keys whose popularity is proportional to rank^-`theta`, in classes of doubling size.
fn zipfian(count: f64, theta: f64) -> Vec<Class> {
    // The sum over ranks (a, b] of rank^-theta, by its integral.
    let sum = |a: f64, b: f64| match (theta - 1.0).abs() < 1e-9 {
        true => (b / a).ln(),
        false => (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta),
    };
    let mut classes = Vec::new();
    let mut rank = 1.0;
    while rank < count + 1.0 {
        // Smaller classes at the top would not matter: these keys are in every table.
        let end = (rank * 4.0).max(rank + 15.0).min(count + 1.0);
        classes.push(Class { keys: end - rank, share: sum(rank, end) });
        rank = end;
    }
    let all: f64 = classes.iter().map(|c| c.share).sum();
    for class in &mut classes {
        class.share /= all;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(workload: Workload, keys: KeyOrder) -> KeySpace {
        KeySpace::new(&Settings { data_bytes: 1040 * 1_000_000, workload, keys, ..Settings::default() })
    }

    #[test]
    fn shares_and_keys_add_up() {
        for theta in [0.5, 0.99, 1.0, 1.2] {
            let k = space(Workload::Overwrite, KeyOrder::Zipfian(theta));
            assert!((k.classes.iter().map(|c| c.share).sum::<f64>() - 1.0).abs() < 1e-9);
            assert!((k.count() - 1e6).abs() < 1.0, "{}", k.count());
            let per_key: Vec<f64> = k.classes.iter().map(|c| c.share / c.keys).collect();
            assert!(per_key.windows(2).all(|w| w[0] > w[1]), "popularity falls");
        }
    }

    /// Compares the formulas with randomly drawn keys.
    #[test]
    fn memtables_and_merges_keep_as_many_keys_as_drawn_ones() {
        let mut k = KeySpace {
            classes: vec![Class { keys: 1000.0, share: 1.0 }],
            ..space(Workload::Overwrite, KeyOrder::Uniform)
        };
        let mut rng = fastrand::Rng::with_seed(5);
        let mut draw = |n: usize| (0..n).map(|_| rng.u32(0..1000)).collect::<std::collections::BTreeSet<_>>();
        let (a, b) = (draw(700), draw(1500));
        let (ma, mb) = (k.memtable(700.0), k.memtable(1500.0));
        assert!((ma.entries() - a.len() as f64).abs() < 40.0 && (mb.entries() - b.len() as f64).abs() < 40.0);
        let merged: f64 = k.merge(&[&ma, &mb], &Cuts::at(1e9)).iter().map(Extent::entries).sum();
        let union = a.union(&b).count() as f64;
        assert!((merged - union).abs() < 40.0, "{merged} {union}");
        assert!((k.distinct() - union).abs() < 40.0);
    }

    #[test]
    fn merges_of_keys_that_are_written_once_lose_none() {
        let mut k = space(Workload::Fill, KeyOrder::Uniform);
        let parts: Vec<Extent> = (0..4).map(|_| k.memtable(10_000.0)).collect();
        let out = k.merge(&parts.iter().collect::<Vec<_>>(), &Cuts::at(3000.0));
        assert!((out.iter().map(Extent::entries).sum::<f64>() - 40_000.0).abs() < 1.0);
        assert_eq!(out.len(), 14);
        assert!(out.windows(2).all(|w| w[0].end == w[1].begin));
        assert!(out.iter().all(|e| e.entries() <= 3001.0 && e.end > e.begin));
        let mut k = space(Workload::Fill, KeyOrder::Sequential);
        let (a, b) = (k.memtable(1000.0), k.memtable(500.0));
        assert!(a.end == b.begin && (k.merge(&[&b, &a], &Cuts::at(1e9))[0].entries() - 1500.0).abs() < 1e-6);
    }
}
