//! A binary heap of run numbers; the run that comes next is at its top.

/// A heap of run numbers. Their order changes as the runs move, so each call that needs it takes it as an argument:
/// `before(a, b)` is true if run `a` comes before run `b`.
#[derive(Default)]
pub struct RunHeap {
    /// The parent of place `i` is `(i - 1) / 2`.
    places: Vec<usize>,
}

impl RunHeap {
    /// An empty heap with room for `runs` runs.
    pub fn with_capacity(runs: usize) -> Self {
        Self { places: Vec::with_capacity(runs) }
    }

    /// Takes out all runs.
    pub fn clear(&mut self) {
        self.places.clear();
    }

    /// Adds a run at the end. The heap order is restored only by [`heapify`](Self::heapify).
    #[inline]
    pub fn append(&mut self, run: usize) {
        self.places.push(run);
    }

    /// Builds the heap, from any order.
    pub fn heapify(&mut self, before: impl Fn(usize, usize) -> bool) {
        for place in (0..self.places.len() / 2).rev() {
            self.sift_down(place, &before);
        }
    }

    /// The run that comes first.
    #[inline]
    pub fn top(&self) -> Option<usize> {
        self.places.first().copied()
    }

    /// Adds a run.
    pub fn push(&mut self, run: usize, before: impl Fn(usize, usize) -> bool) {
        let mut place = self.places.len();
        self.places.push(run);
        while place > 0 && before(run, self.places[(place - 1) / 2]) {
            self.places.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    /// Removes and returns the first run.
    pub fn pop(&mut self, before: impl Fn(usize, usize) -> bool) -> Option<usize> {
        let top = self.top()?;
        self.places.swap_remove(0);
        self.sift_down(0, before);
        Some(top)
    }

    /// Replaces the first run with `run`, which may be the same run after it has moved.
    #[inline]
    pub fn replace_top(&mut self, run: usize, before: impl Fn(usize, usize) -> bool) {
        self.places[0] = run;
        self.sift_down(0, before);
    }

    fn sift_down(&mut self, mut place: usize, before: impl Fn(usize, usize) -> bool) {
        loop {
            let left = 2 * place + 1;
            if left >= self.places.len() {
                return;
            }
            let right = left + 1;
            let is_right = right < self.places.len() && before(self.places[right], self.places[left]);
            let first = if is_right { right } else { left };
            if !before(self.places[first], self.places[place]) {
                return;
            }
            self.places.swap(place, first);
            place = first;
        }
    }
}
