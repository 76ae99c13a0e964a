//! Which of many runs has the smallest key.
//!
//! Few runs: their prefixes are next to each other in memory, and scanning all of them costs two instructions each and
//! no branch that could be mispredicted. Many runs: a tree of losers, in which a run that moved plays again against
//! only log2(runs) others. If prefixes are equal, the keys decide, newer runs first.

use rockmill_format::InternalKeyComparator;

/// Up to this many runs, scanning all prefixes is faster than a tree; measured, see `docs/notebook/compaction.md`.
const LINEAR_RUNS_MAX: usize = 8;

/// Up to this many of them, the scan is even faster.
const FEW: usize = 4;

/// When the same run was at the top this often in a row, it is worth finding the second smallest prefix.
const STREAK: u32 = 4;

/// The keys of runs, with their positions, and their order.
pub(super) struct Keys<'a, K> {
    /// The current internal key of a run that is not at its end.
    pub of: K,
    pub cmp: &'a InternalKeyComparator,
}

impl<'k, K: Fn(usize) -> &'k [u8]> Keys<'_, K> {
    /// Says whether the key of one run comes before that of another; of equal keys the newer run's does.
    #[inline]
    fn before(&self, a: usize, b: usize) -> bool {
        self.cmp.compare((self.of)(a), (self.of)(b)).then(a.cmp(&b)).is_lt()
    }
}

/// The order of runs by their current entries.
pub(super) enum Order {
    /// See [`Linear`].
    Linear(Linear<LINEAR_RUNS_MAX>),
    /// See [`Losers`].
    Losers(Losers),
}

impl Order {
    /// Runs by their first prefixes; `None` for those without entries. [`Self::build`] comes next.
    pub fn new(first: &[Option<u64>]) -> Self {
        Self::with_linear_max(first, LINEAR_RUNS_MAX)
    }

    fn with_linear_max(first: &[Option<u64>], linear_max: usize) -> Self {
        if first.len() <= linear_max.min(LINEAR_RUNS_MAX) {
            Self::Linear(Linear::new(first))
        } else {
            Self::Losers(Losers::new(first))
        }
    }

    /// Orders the runs for the first time.
    pub fn build<'k>(&mut self, keys: Keys<'_, impl Fn(usize) -> &'k [u8]>) {
        if let Self::Losers(losers) = self {
            losers.build(&keys);
        }
    }

    /// The run with the smallest key, its prefix, and a prefix that it can go on below without a new choice.
    #[inline]
    pub fn pick<'k>(&mut self, keys: Keys<'_, impl Fn(usize) -> &'k [u8]>) -> Option<(usize, u64, u64)> {
        match self {
            Self::Linear(linear) => linear.pick(&keys),
            Self::Losers(losers) => losers.pick(&keys),
        }
    }

    /// The picked run went on to an entry with this prefix.
    #[inline]
    pub fn moved(&mut self, run: usize, prefix: u64) {
        match self {
            Self::Linear(linear) => linear.moved(prefix),
            Self::Losers(losers) => losers.prefixes[run] = prefix,
        }
    }

    /// The smallest prefix of the runs that were not picked; `MAX` if there are none.
    #[cold]
    pub fn others(&self) -> u64 {
        match self {
            Self::Linear(linear) => {
                let others = linear.prefixes.iter().enumerate().filter(|(i, _)| *i != linear.at);
                others.map(|(_, prefix)| *prefix).min().unwrap_or(u64::MAX)
            }
            Self::Losers(losers) => losers.tree.first().map_or(u64::MAX, |top| losers.others(*top as usize)),
        }
    }

    /// The picked run is at its end.
    #[cold]
    pub fn ended(&mut self, run: usize) {
        match self {
            Self::Linear(linear) => linear.ended(),
            Self::Losers(losers) => {
                losers.prefixes[run] = u64::MAX;
                losers.live[run] = false;
            }
        }
    }
}

/// Up to `N` runs: those that are not at their end, newest first. After them the prefixes are `MAX`.
pub(super) struct Linear<const N: usize> {
    prefixes: [u64; N],
    runs: [usize; N],
    live: usize,
    /// The picked one's place.
    at: usize,
}

impl<const N: usize> Linear<N> {
    fn new(first: &[Option<u64>]) -> Self {
        let mut new = Self { prefixes: [u64::MAX; N], runs: [0; N], live: 0, at: 0 };
        for (run, &prefix) in first.iter().enumerate() {
            if let Some(prefix) = prefix {
                (new.prefixes[new.live], new.runs[new.live]) = (prefix, run);
                new.live += 1;
            }
        }
        new
    }

    fn moved(&mut self, prefix: u64) {
        if let Some(place) = self.prefixes.get_mut(self.at) {
            *place = prefix;
        }
    }

    fn ended(&mut self) {
        self.prefixes[self.at..].rotate_left(1);
        self.runs[self.at..].rotate_left(1);
        self.prefixes[N - 1] = u64::MAX;
        self.live -= 1;
    }

    #[inline]
    fn pick<'k>(&mut self, keys: &Keys<'_, impl Fn(usize) -> &'k [u8]>) -> Option<(usize, u64, u64)> {
        let (at, smallest, others) = match self.live {
            0 => return None,
            1..=FEW => scan(self.prefixes.first_chunk::<FEW>()?),
            _ => scan(&self.prefixes),
        };
        self.at = if others == smallest { self.smallest_key(smallest, keys) } else { at };
        Some((*self.runs.get(self.at)?, smallest, others))
    }

    /// Among those with this prefix.
    #[inline(never)]
    fn smallest_key<'k>(&self, prefix: u64, keys: &Keys<'_, impl Fn(usize) -> &'k [u8]>) -> usize {
        let mut equal = (0..self.live).filter(|&i| self.prefixes[i] == prefix);
        let mut best = equal.next().unwrap_or(0);
        let mut smallest = (keys.of)(self.runs[best]);
        for i in equal {
            let key = (keys.of)(self.runs[i]);
            // Of equal keys, the newer run's comes first; newer runs have smaller positions.
            if keys.cmp.compare(key, smallest).is_lt() {
                (best, smallest) = (i, key);
            }
        }
        best
    }
}

/// Place and prefix of the first with the smallest prefix, and the smallest prefix of the others. Without branches.
#[inline(always)]
fn scan<const N: usize>(prefixes: &[u64; N]) -> (usize, u64, u64) {
    let (mut at, mut smallest, mut others) = (0, prefixes[0], u64::MAX);
    let mut i = 1;
    while i < N {
        let prefix = prefixes[i];
        others = others.min(prefix.max(smallest));
        at = if prefix < smallest { i } else { at };
        smallest = smallest.min(prefix);
        i += 1;
    }
    (at, smallest, others)
}

/// Many runs: node `i` of the tree has children `2 i` and `2 i + 1`, leaves from `runs` on; each inner node holds the
/// run that lost there, node 0 the one that won everywhere.
pub(super) struct Losers {
    /// By run; `MAX` at its end.
    prefixes: Vec<u64>,
    live: Vec<bool>,
    tree: Vec<u32>,
    /// How often in a row the same run was picked.
    streak: u32,
}

impl Losers {
    fn new(first: &[Option<u64>]) -> Self {
        Self {
            prefixes: first.iter().map(|prefix| prefix.unwrap_or(u64::MAX)).collect(),
            live: first.iter().map(Option::is_some).collect(),
            tree: vec![0; first.len()],
            streak: 0,
        }
    }

    #[inline]
    fn wins<'k>(&self, a: usize, b: usize, keys: &Keys<'_, impl Fn(usize) -> &'k [u8]>) -> bool {
        if self.prefixes[a] != self.prefixes[b] {
            return self.prefixes[a] < self.prefixes[b];
        }
        match (self.live[a], self.live[b]) {
            (true, true) => keys.before(a, b),
            (a, _) => a,
        }
    }

    fn build<'k>(&mut self, keys: &Keys<'_, impl Fn(usize) -> &'k [u8]>) {
        let n = self.prefixes.len();
        // Winners of the games at each node, leaves included.
        let mut winners: Vec<usize> = (0..2 * n).map(|i| i.saturating_sub(n)).collect();
        for node in (1..n).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            let first = self.wins(a, b, keys);
            winners[node] = if first { a } else { b };
            self.tree[node] = if first { b } else { a } as u32;
        }
        if let Some(top) = self.tree.first_mut() {
            *top = winners.get(1).copied().unwrap_or(0) as u32;
        }
    }

    #[inline]
    fn pick<'k>(&mut self, keys: &Keys<'_, impl Fn(usize) -> &'k [u8]>) -> Option<(usize, u64, u64)> {
        let n = self.prefixes.len();
        let last = *self.tree.first()? as usize;
        let mut winner = last;
        let mut node = (n + last) / 2;
        while node > 0 {
            let other = self.tree[node] as usize;
            if self.wins(other, winner, keys) {
                self.tree[node] = winner as u32;
                winner = other;
            }
            node /= 2;
        }
        self.tree[0] = winner as u32;
        if !self.live[winner] {
            return None;
        }
        self.streak = if winner == last { self.streak + 1 } else { 0 };
        // No prefix is below 0, so the next step plays again.
        let others = if self.streak >= STREAK { self.others(winner) } else { 0 };
        Some((winner, self.prefixes[winner], others))
    }

    /// The smallest prefix of the others: one that lost to the winner itself has it.
    fn others(&self, winner: usize) -> u64 {
        let mut smallest = u64::MAX;
        let mut node = (self.prefixes.len() + winner) / 2;
        while node > 0 {
            smallest = smallest.min(self.prefixes[self.tree[node] as usize]);
            node /= 2;
        }
        smallest
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::{InternalKey, ValueType};

    use super::*;

    /// Merges runs of numbers whose prefixes are their upper halves.
    fn merged(runs: &[Vec<u64>], linear_max: usize) -> Vec<(u64, usize)> {
        let mut at = vec![0; runs.len()];
        let first: Vec<_> = runs.iter().map(|r| r.first().map(|k| k >> 32)).collect();
        let mut order = Order::with_linear_max(&first, linear_max);
        let mut out = Vec::new();
        let cmp = InternalKeyComparator::default();
        let encode = |k: &u64| InternalKey::new(&k.to_be_bytes(), 1, ValueType::Value);
        let encoded: Vec<Vec<_>> = runs.iter().map(|run| run.iter().map(encode).collect()).collect();
        order.build(Keys { of: |run: usize| encoded[run][at[run]].as_bytes(), cmp: &cmp });
        while let Some((run, prefix, others)) =
            order.pick(Keys { of: |run: usize| encoded[run][at[run]].as_bytes(), cmp: &cmp })
        {
            assert_eq!(prefix, runs[run][at[run]] >> 32);
            loop {
                out.push((runs[run][at[run]], run));
                at[run] += 1;
                match runs[run].get(at[run]) {
                    None => break order.ended(run),
                    Some(k) if k >> 32 >= others => break order.moved(run, k >> 32),
                    Some(_) => {}
                }
            }
        }
        out
    }

    #[test]
    fn both_orders_merge_like_a_sort() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let spread = [1, 3, 1000][rng.usize(0..3)];
            let runs: Vec<Vec<u64>> =
                (0..if seed % 2 == 0 { rng.usize(0..=LINEAR_RUNS_MAX) } else { rng.usize(0..40) })
                    .map(|_| {
                        let top = [0, u64::from(u32::MAX) - spread][rng.usize(0..2)];
                        let n = rng.usize(0..60);
                        let mut run: Vec<u64> =
                            (0..n).map(|_| (top + rng.u64(0..=spread)) << 32 | rng.u64(0..3)).collect();
                        run.sort_unstable();
                        run
                    })
                    .collect();
            let mut want: Vec<(u64, usize)> =
                runs.iter().enumerate().flat_map(|(r, keys)| keys.iter().map(move |k| (*k, r))).collect();
            want.sort_unstable();
            assert_eq!(merged(&runs, usize::MAX), want, "seed {seed}, linear");
            assert_eq!(merged(&runs, 0), want, "seed {seed}, tree");
        }
    }

    /// One of both, as [`measure`] takes it.
    trait Choice {
        fn next<'k>(&mut self, keys: Keys<'_, impl Fn(usize) -> &'k [u8]>) -> Option<(usize, u64, u64)>;
        fn went_on(&mut self, run: usize, prefix: u64);
        fn end(&mut self, run: usize);
    }

    impl<const N: usize> Choice for Linear<N> {
        fn next<'k>(&mut self, keys: Keys<'_, impl Fn(usize) -> &'k [u8]>) -> Option<(usize, u64, u64)> {
            self.pick(&keys)
        }
        fn went_on(&mut self, _: usize, prefix: u64) {
            self.moved(prefix);
        }
        fn end(&mut self, _: usize) {
            self.ended();
        }
    }

    impl Choice for Order {
        fn next<'k>(&mut self, keys: Keys<'_, impl Fn(usize) -> &'k [u8]>) -> Option<(usize, u64, u64)> {
            self.pick(keys)
        }
        fn went_on(&mut self, run: usize, prefix: u64) {
            self.moved(run, prefix);
        }
        fn end(&mut self, run: usize) {
            self.ended(run);
        }
    }

    /// Nanoseconds for each entry, and a checksum of the output. The keys are the prefixes' bytes, plus one more that
    /// decides between equal prefixes.
    fn measure(mut order: impl Choice, runs: &[Vec<u64>], keys: &[Vec<[u8; 9]>]) -> (f64, u64) {
        let cmp = InternalKeyComparator::default();
        let mut at = vec![0; runs.len()];
        let (mut sum, mut entries) = (0u64, 0u64);
        let began = std::time::Instant::now();
        while let Some((run, _, others)) = order.next(Keys { of: |r: usize| &keys[r][at[r]][..], cmp: &cmp }) {
            loop {
                entries += 1;
                sum = sum.wrapping_mul(31).wrapping_add(runs[run][at[run]] ^ run as u64);
                at[run] += 1;
                match runs[run].get(at[run]) {
                    None => break order.end(run),
                    Some(prefix) if *prefix >= others => break order.went_on(run, *prefix),
                    Some(_) => {}
                }
            }
        }
        (began.elapsed().as_nanos() as f64 / entries.max(1) as f64, sum)
    }

    /// Runs whose entries alternate randomly; runs of which one provides 64 entries in a row; and runs of which many
    /// have the same prefix.
    fn measured(shape: &str, count: usize, of_run: usize) -> Vec<Vec<u64>> {
        let mut rng = fastrand::Rng::with_seed(count as u64);
        let mut runs = vec![Vec::new(); count];
        let stretch = if shape == "stretches" { 64 } else { 1 };
        let (mut prefix, mut left) = (1u64, count * of_run);
        while left > 0 {
            let run = rng.usize(0..count);
            for _ in 0..stretch.min(left) {
                prefix += if shape == "ties" { u64::from(rng.usize(0..4 * count) == 0) } else { 1 };
                runs[run].push(prefix);
                left -= 1;
            }
        }
        runs
    }

    /// What a choice takes by the number of runs, going over all prefixes and with the tree
    /// (docs/notebook/compaction.md has the command). Without `ROCKMILL_MEASURE` it merges little, once, and both must
    /// give the same.
    #[test]
    fn linear_and_tree_by_runs() {
        let measures = std::env::var_os("ROCKMILL_MEASURE").is_some();
        let (of_run, rounds) = if measures { (20_000, 5) } else { (200, 1) };
        println!("| runs | by chance: all, tree, ns | | stretches | | ties | |\n|---|---|---|---|---|---|---|");
        for count in [4, 6, 8, 12, 16, 24, 32, 40] {
            let mut row = format!("| {count} ");
            for shape in ["by chance", "stretches", "ties"] {
                let runs = measured(shape, count, of_run);
                // The tag after the user key: the type, and a sequence number.
                let key = |prefix: &u64| {
                    let mut key = [0; 9];
                    key[0] = *prefix as u8;
                    key[1] = 1;
                    key
                };
                let keys: Vec<Vec<[u8; 9]>> = runs.iter().map(|run| run.iter().map(key).collect()).collect();
                let first: Vec<Option<u64>> = runs.iter().map(|run| run.first().copied()).collect();
                let tree = || {
                    let cmp = InternalKeyComparator::default();
                    let mut order = Order::with_linear_max(&first, 0);
                    order.build(Keys { of: |r: usize| &keys[r][0][..], cmp: &cmp });
                    measure(order, &runs, &keys)
                };
                let all = || match count {
                    0..=8 => measure(Linear::<8>::new(&first), &runs, &keys),
                    9..=16 => measure(Linear::<16>::new(&first), &runs, &keys),
                    17..=24 => measure(Linear::<24>::new(&first), &runs, &keys),
                    25..=32 => measure(Linear::<32>::new(&first), &runs, &keys),
                    _ => measure(Linear::<40>::new(&first), &runs, &keys),
                };
                // The measurements alternate, so that other load on the machine affects both; the fastest of each
                // counts.
                let (mut quickest, mut sums) = ([f64::INFINITY; 2], [0; 2]);
                for _ in 0..rounds {
                    for (i, (ns, sum)) in [all(), tree()].into_iter().enumerate() {
                        (quickest[i], sums[i]) = (quickest[i].min(ns), sum);
                    }
                }
                assert_eq!(sums[0], sums[1], "{count} runs, {shape}: both merge alike");
                row += &format!("| {:.1} | {:.1} ", quickest[0], quickest[1]);
            }
            println!("{row}|");
        }
    }
}
