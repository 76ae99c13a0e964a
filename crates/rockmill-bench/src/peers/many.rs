//! Several databases of one store in one process (db_bench's `num_multi_db`).

use rockmill::EngineParts;

use crate::error::Result;
use crate::store::{RunningNow, Session, Sought, Stalls, Store, TaskUse, place_of};

/// Open databases of the same kind. The hash of a key determines its database.
pub(crate) struct ManyStores {
    all: Vec<Box<dyn Store>>,
}

impl ManyStores {
    /// At least one.
    pub fn new(all: Vec<Box<dyn Store>>) -> Self {
        Self { all }
    }
}

impl Store for ManyStores {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let all = self.all.iter().map(|store| store.session()).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(ManySessions { touched: vec![false; all.len()], all }))
    }

    fn flush(&self) -> Result<()> {
        self.all.iter().try_for_each(|store| store.flush())
    }

    fn compact(&self) -> Result<()> {
        self.all.iter().try_for_each(|store| store.compact())
    }

    fn warm_up(&self, inputs: usize) -> Result<()> {
        self.all.iter().try_for_each(|store| store.warm_up(inputs))
    }

    fn wait_for_compaction(&self) -> Result<()> {
        self.all.iter().try_for_each(|store| store.wait_for_compaction())
    }

    fn stalls(&self) -> Result<Stalls> {
        let mut sum = Stalls::default();
        for store in &self.all {
            let one = store.stalls()?;
            sum.delayed_micros += one.delayed_micros;
            sum.stopped_micros += one.stopped_micros;
            if !one.reason.is_empty() {
                sum.reason = one.reason;
            }
            for (name, count) in one.counts {
                match sum.counts.iter_mut().find(|known| known.0 == name) {
                    Some(known) => known.1 += count,
                    None => sum.counts.push((name, count)),
                }
            }
        }
        Ok(sum)
    }

    fn levels(&self) -> Result<Vec<u64>> {
        let mut sum = Vec::new();
        for store in &self.all {
            let levels = store.levels()?;
            sum.resize(levels.len().max(sum.len()), 0);
            sum.iter_mut().zip(levels).for_each(|(sum, bytes)| *sum += bytes);
        }
        Ok(sum)
    }

    fn running_jobs(&self) -> RunningNow {
        let mut sum = RunningNow::default();
        for RunningNow { jobs, threads } in self.all.iter().map(|store| store.running_jobs()) {
            sum.jobs.resize(jobs.len().max(sum.jobs.len()), 0);
            sum.jobs.iter_mut().zip(jobs).for_each(|(sum, jobs)| *sum += jobs);
            sum.threads += threads;
        }
        sum
    }

    fn tasks(&self) -> Vec<TaskUse> {
        let mut sum: Vec<TaskUse> = Vec::new();
        for tasks in self.all.iter().map(|store| store.tasks()) {
            sum.resize(tasks.len().max(sum.len()), TaskUse::default());
            sum.iter_mut().zip(&tasks).for_each(|(sum, task)| sum.add(task));
        }
        sum
    }

    fn stats(&self) -> Result<String> {
        Ok(self.all.iter().map(|store| store.stats()).collect::<Result<Vec<_>>>()?.join("\n"))
    }

    fn counted_calls(&self) -> Option<Vec<(&'static str, u64)>> {
        let mut sum: Vec<(&'static str, u64)> = Vec::new();
        for store in &self.all {
            for (name, count) in store.counted_calls()? {
                match sum.iter_mut().find(|known| known.0 == name) {
                    Some(known) => known.1 += count,
                    None => sum.push((name, count)),
                }
            }
        }
        Some(sum)
    }

    fn engine_parts(&self) -> Option<EngineParts> {
        let mut sum = EngineParts::default();
        for store in &self.all {
            let one = store.engine_parts()?;
            sum.pread += one.pread;
            sum.uring += one.uring;
            sum.kernel += one.kernel;
            sum.flushes_pread += one.flushes_pread;
            sum.flushes_uring += one.flushes_uring;
            sum.handed_over += one.handed_over;
        }
        Some(sum)
    }

    fn engine_text(&self) -> Option<String> {
        self.all.first()?.engine_text()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.all.into_iter().try_for_each(|store| store.close())
    }
}

struct ManySessions<'a> {
    all: Vec<Box<dyn Session + 'a>>,
    /// The stores whose batch is not empty.
    touched: Vec<bool>,
}

impl<'a> ManySessions<'a> {
    fn of(&mut self, key: &[u8]) -> &mut Box<dyn Session + 'a> {
        let at = place_of(key, self.all.len());
        &mut self.all[at]
    }

    fn touch(&mut self, key: &[u8]) -> &mut Box<dyn Session + 'a> {
        let at = place_of(key, self.all.len());
        self.touched[at] = true;
        &mut self.all[at]
    }
}

impl Session for ManySessions<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.touch(key).put(key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.touch(key).delete(key);
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.touch(key).merge(key, operand)
    }

    fn commit(&mut self) -> Result<()> {
        for (session, touched) in self.all.iter_mut().zip(&mut self.touched) {
            if std::mem::take(touched) {
                session.commit()?;
            }
        }
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.of(key).get(key, value)
    }

    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)> {
        let count = self.all.len();
        let (mut found, mut bytes) = (0, 0);
        for (at, session) in self.all.iter_mut().enumerate() {
            let own: Vec<Vec<u8>> = keys.iter().filter(|key| place_of(key, count) == at).cloned().collect();
            let got = session.multi_get(&own)?;
            (found, bytes) = (found + got.0, bytes + got.1);
        }
        Ok((found, bytes))
    }

    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought> {
        self.of(key).seek(key, entries)
    }

    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
        let mut goes_on = true;
        for session in &mut self.all {
            if goes_on {
                session.scan(reverse, &mut |bytes| {
                    goes_on = visit(bytes)?;
                    Ok(goes_on)
                })?;
            }
        }
        Ok(())
    }
}
