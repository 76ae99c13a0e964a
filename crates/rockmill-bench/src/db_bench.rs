//! db_bench's workloads with the same random draws: with the same seed, both programs do the same operations.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::flags::Flags;
use crate::generate::{KeyGenerator, write_key};
use crate::record::Done;
use crate::store::OpKind;
use crate::workload::{Limit, Thread, Work};

impl Thread<'_> {
    /// db_bench draws a number before most operations, to choose one of several databases.
    #[inline]
    fn choose_database(&mut self) {
        self.random.next_u64();
    }

    /// Makes `self.key` a random one of `num`.
    #[inline]
    fn random_key(&mut self, num: u64) {
        write_key(self.random.next_u64() % num, &mut self.key);
    }
}

/// fillseq, fillrandom, filluniquerandom, overwrite.
pub(crate) struct Fill {
    keys: KeyGenerator,
}

impl Fill {
    pub fn new(keys: KeyGenerator) -> Self {
        Self { keys }
    }
}

impl Work for Fill {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Write]
    }

    fn next_ops(&self, flags: &Flags) -> u64 {
        flags.batch_size as u64
    }

    #[inline]
    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        let f = t.flags;
        if !matches!(self.keys, KeyGenerator::Sequential(_)) {
            t.choose_database();
        }
        let mut entries = 0;
        while entries < f.batch_size as u64 {
            let Some(n) = self.keys.next_key(&mut t.random, f.num as u64) else { break };
            write_key(n, &mut t.key);
            t.session.put(&t.key, t.values.next_value(f.value_size));
            entries += 1;
        }
        if entries == 0 {
            return Ok(None);
        }
        t.session.commit()?;
        Ok(Some(Done::write(entries, entries * (f.key_size + f.value_size) as u64)))
    }
}

/// readrandom, and the readers of readwhilewriting.
pub(crate) struct ReadRandom;

impl Work for ReadRandom {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Read]
    }

    #[inline]
    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        t.choose_database();
        t.random_key(t.flags.num as u64);
        Ok(Some(Done::read(t.get()?.unwrap_or(0))))
    }
}

/// readmissing: keys of one byte more, which no workload writes.
pub(crate) struct ReadMissing;

impl Work for ReadMissing {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Read]
    }

    #[inline]
    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        t.key.resize(t.flags.key_size + 1, b'0');
        ReadRandom.step(t)
    }
}

/// readseq, readreverse.
pub(crate) struct ReadInOrder {
    pub reverse: bool,
}

impl Work for ReadInOrder {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Read]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        // One pass over everything; `run` never asks for single steps.
        self.run(t, &mut Limit::none()).map(|()| None)
    }

    fn run(&mut self, t: &mut Thread<'_>, limit: &mut Limit) -> Result<()> {
        // The scan needs the session, and the visitor needs the rest of the thread, so the session is taken out
        // meanwhile.
        let flags = t.flags;
        if !limit.take(1, t) {
            return Ok(());
        }
        let Thread { session, record, progress, pace, shared, .. } = t;
        session.scan(self.reverse, &mut |bytes| {
            record.finished(Done::read(bytes));
            progress.set(record.ops);
            if let Some(at) = pace.owe(&Done::read(bytes)) {
                record.starts(at);
            }
            Ok(record.ops < flags.reads() && !shared.failed.load(Ordering::Relaxed))
        })
    }
}

/// seekrandom.
pub(crate) struct SeekRandom;

impl Work for SeekRandom {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Seek]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        t.random_key(t.flags.num as u64);
        let sought = t.session.seek(&t.key, t.flags.seek_nexts)?;
        *t.record.found.get_or_insert(0) += u64::from(sought.found);
        Ok(Some(Done { kind: OpKind::Seek, ops: 1, wrote: 0, read: sought.bytes }))
    }
}

/// multireadrandom.
pub(crate) struct MultiReadRandom {
    keys: Vec<Vec<u8>>,
}

impl MultiReadRandom {
    pub fn new(flags: &Flags) -> Self {
        Self { keys: vec![vec![0; flags.key_size]; flags.batch_size] }
    }
}

impl Work for MultiReadRandom {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::MultiRead]
    }

    fn next_ops(&self, flags: &Flags) -> u64 {
        flags.batch_size as u64
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        let (f, num) = (t.flags, t.flags.num as u64);
        let count = self.keys.len() as u64;
        t.choose_database();
        if f.multiread_stride > 0 {
            let mut n = t.random.next_u64() % num;
            if n + (count - 1) * f.multiread_stride >= num {
                n = num.saturating_sub(count * f.multiread_stride);
            }
            for key in &mut self.keys {
                write_key(n, key);
                n += f.multiread_stride;
            }
        } else {
            for key in &mut self.keys {
                write_key(t.random.next_u64() % num, key);
            }
        }
        let (found, bytes) = t.session.multi_get(&self.keys)?;
        *t.record.found.get_or_insert(0) += found;
        Ok(Some(Done { kind: OpKind::MultiRead, ops: count, wrote: 0, read: found * f.key_size as u64 + bytes }))
    }
}

/// deleterandom.
pub(crate) struct DeleteRandom;

impl Work for DeleteRandom {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Delete]
    }

    fn next_ops(&self, flags: &Flags) -> u64 {
        flags.batch_size as u64
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        let entries = t.flags.batch_size as u64;
        t.choose_database();
        for _ in 0..entries {
            t.random_key(t.flags.num as u64);
            t.session.delete(&t.key);
        }
        t.session.commit()?;
        Ok(Some(Done { kind: OpKind::Delete, ops: entries, wrote: entries * t.key.len() as u64, read: 0 }))
    }
}

/// The writer of readwhilewriting and seekrandomwhilewriting: overwrites random keys until every reader has ended.
pub(crate) struct WriteUntilOthersEnd;

impl Work for WriteUntilOthersEnd {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Write]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        t.choose_database();
        t.random_key(t.flags.num as u64);
        let bytes = t.put(t.flags.value_size)?;
        Ok(Some(Done::write(1, bytes)))
    }

    fn run(&mut self, t: &mut Thread<'_>, _: &mut Limit) -> Result<()> {
        while t.shared.done.load(Ordering::Acquire) < t.flags.threads && !t.shared.failed.load(Ordering::Relaxed) {
            if let Some(done) = self.step(t)? {
                t.finished(done);
            }
        }
        Ok(())
    }
}

/// readrandomwriterandom: a hundred operations at a time, first the gets, then the puts.
#[derive(Default)]
pub(crate) struct ReadRandomWriteRandom {
    gets_left: u32,
    puts_left: u32,
}

impl Work for ReadRandomWriteRandom {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Read, OpKind::Write]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        t.choose_database();
        t.random_key(t.flags.num as u64);
        if self.gets_left + self.puts_left == 0 {
            self.gets_left = t.flags.readwritepercent;
            self.puts_left = 100 - self.gets_left;
        }
        if self.gets_left > 0 {
            self.gets_left -= 1;
            return Ok(Some(Done::read(t.get()?.unwrap_or(0))));
        }
        self.puts_left -= 1;
        let bytes = t.put(t.flags.value_size)?;
        Ok(Some(Done::write(1, bytes)))
    }
}

/// updaterandom.
pub(crate) struct UpdateRandom;

impl Work for UpdateRandom {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Update]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        t.choose_database();
        t.random_key(t.flags.num as u64);
        let read = t.get()?.unwrap_or(0);
        let wrote = t.put(t.flags.value_size)?;
        Ok(Some(Done { kind: OpKind::Update, ops: 1, wrote, read }))
    }
}

/// mergerandom.
pub(crate) struct MergeRandom;

impl Work for MergeRandom {
    fn kinds(&self) -> &'static [OpKind] {
        &[OpKind::Merge]
    }

    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>> {
        t.choose_database();
        t.random_key(t.flags.merge_keys());
        let len = t.flags.value_size;
        t.session.merge(&t.key, t.values.next_value(len))?;
        t.session.commit()?;
        Ok(Some(Done { kind: OpKind::Merge, ops: 1, wrote: (t.key.len() + len) as u64, read: 0 }))
    }
}
