//! What a benchmark asks of a store. Rockmill and its peers implement it.

use rockmill::EngineParts;
use rockmill_format::hash::hash64;

use crate::error::Result;
use crate::flags::Flags;

/// The column family of [`Store::warm_up`].
pub(crate) const WARM_UP: &str = "warm_up";

/// What its table number `i` has: keys between those of the others.
pub(crate) fn warm_up_entries(i: usize) -> impl Iterator<Item = (String, [u8; 100])> {
    (0..64).map(move |key| (format!("{key:04}{i:04}"), [b'v'; 100]))
}

/// The column families that a store of RocksDB's kind has: db_bench's names.
pub(crate) fn family_names(flags: &Flags) -> Vec<String> {
    let name = |i| if i == 0 { "default".to_owned() } else { format!("column_family_name_{i:06}") };
    (0..flags.num_column_families).map(name).collect()
}

/// Which of `count` column families or databases a key is in.
#[inline]
pub(crate) fn place_of(key: &[u8], count: usize) -> usize {
    if count == 1 { 0 } else { (hash64(key) % count as u64) as usize }
}

/// Jobs that run at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunningNow {
    /// Flushes, then compactions by the level that they begin at, from L0; empty for a store that does not say.
    pub jobs: Vec<u64>,
    /// Threads that compact: as many of a job as it has parts.
    pub threads: u64,
}

/// An open store.
pub trait Store: Send + Sync {
    /// What one thread works with: it may keep a batch, a transaction or an iterator between calls.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Writes memtables as tables.
    fn flush(&self) -> Result<()>;

    /// Compacts everything.
    fn compact(&self) -> Result<()>;

    /// Merges `inputs` small tables of a column family of their own in one job, and drops it: what a store sets up for
    /// its first jobs is then there.
    fn warm_up(&self, inputs: usize) -> Result<()> {
        let _ = inputs;
        Ok(())
    }

    /// Returns when no flush or compaction runs or is due.
    fn wait_for_compaction(&self) -> Result<()>;

    /// What holds writers back, so far and now; nothing for a store that does not say.
    fn stalls(&self) -> Result<Stalls> {
        Ok(Stalls::default())
    }

    /// Bytes of tables in each level, from L0; empty for stores without levels.
    fn levels(&self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// Jobs that run now; none for a store that does not say.
    fn running_jobs(&self) -> RunningNow {
        RunningNow::default()
    }

    /// What each kind of work has taken since the store was opened, with the jobs that run now; nothing for a store
    /// that does not say.
    fn tasks(&self) -> Vec<TaskUse> {
        Vec::new()
    }

    /// Numbers that the store tells by name, to be drawn over time.
    fn numbers(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The store's own statistics, as text.
    fn stats(&self) -> Result<String>;

    /// Calls to the operating system that the store's own I/O layer counted since it was opened, if it counts them.
    fn counted_calls(&self) -> Option<Vec<(&'static str, u64)>> {
        None
    }

    /// Which of its engines did the parts of jobs since it was opened, for a store that has several.
    fn engine_parts(&self) -> Option<EngineParts> {
        None
    }

    /// The engine that it has now, and why it is not the one that was asked for, in its own words.
    fn engine_text(&self) -> Option<String> {
        None
    }

    /// Closes the store. What that writes belongs to the run.
    fn close(self: Box<Self>) -> Result<()>;
}

/// What one kind of work of a store has taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskUse {
    /// Which.
    pub name: &'static str,
    /// Microseconds of wall time, of all jobs together. Of appends, what syncs took.
    pub busy_micros: u64,
    /// Microseconds of CPU of the jobs that have ended, where the store counts them.
    pub cpu_micros: Option<u64>,
    /// Bytes that it took: of writes, of memtables, of tables.
    pub bytes_in: u64,
    /// Bytes that it wrote to a device, of the jobs that have ended.
    pub bytes_out: u64,
}

impl TaskUse {
    /// Adds what another store took for the same.
    pub fn add(&mut self, other: &Self) {
        self.name = other.name;
        self.busy_micros += other.busy_micros;
        self.cpu_micros = other.cpu_micros.map(|micros| micros + self.cpu_micros.unwrap_or(0));
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }

    /// What came since. A job that has just ended may be missing for a moment: nothing falls below `before`.
    pub fn since(&self, begun: Option<&Self>, before: Option<&Self>) -> Self {
        let (none, nothing) = (Self::default(), Self::default());
        let (begun, before) = (begun.unwrap_or(&none), before.unwrap_or(&nothing));
        let of = |now: u64, then: u64, least: u64| now.saturating_sub(then).max(least);
        Self {
            name: self.name,
            busy_micros: of(self.busy_micros, begun.busy_micros, before.busy_micros),
            cpu_micros: self.cpu_micros.map(|now| now.saturating_sub(begun.cpu_micros.unwrap_or(0))),
            bytes_in: of(self.bytes_in, begun.bytes_in, before.bytes_in),
            bytes_out: of(self.bytes_out, begun.bytes_out, before.bytes_out),
        }
    }
}

/// Time that writers were held back since the store was opened, and why they are now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Microseconds that they were slowed, or all of it where the store does not tell the two apart.
    pub delayed_micros: u64,
    /// Microseconds that they were stopped.
    pub stopped_micros: u64,
    /// Why they are held back now; empty if they are not.
    pub reason: String,
    /// How often each reason held back a write so far, where the store counts that.
    pub counts: Vec<(String, u64)>,
}

impl Stalls {
    /// Both kinds together.
    pub fn micros(&self) -> u64 {
        self.delayed_micros + self.stopped_micros
    }
}

/// One thread's use of a store. Errors carry what the store said.
pub trait Session {
    /// Adds a put to the batch.
    fn put(&mut self, key: &[u8], value: &[u8]);

    /// Adds a deletion to the batch.
    fn delete(&mut self, key: &[u8]);

    /// Adds a merge operand to the batch.
    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()>;

    /// Writes the batch and empties it.
    fn commit(&mut self) -> Result<()>;

    /// Looks the key up and, if it is there, shows the value where it lies, without copying it.
    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Looks many keys up in one call: how many are there, and the bytes of their values.
    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)>;

    /// Opens an iterator, seeks to the first key at or after `key`, visits at most `entries` entries and steps behind
    /// each. Gives whether the very key was there, the entries visited, and their bytes.
    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought>;

    /// Visits entries from the first, or from the last backwards, until `visit`, which is given each one's bytes, says
    /// false.
    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()>;
}

/// What a seek found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sought {
    /// The very key was there.
    pub found: bool,
    /// Entries visited.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// Kinds of operations, for which latencies are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    /// A point lookup.
    Read,
    /// A batch of puts.
    Write,
    /// A seek, with the steps behind it.
    Seek,
    /// A read and a write of the same key.
    Update,
    /// A batch of deletions.
    Delete,
    /// A merge operand written.
    Merge,
    /// Many lookups in one call.
    MultiRead,
    /// A short range read (YCSB).
    Scan,
    /// A new key (YCSB).
    Insert,
    /// A whole pass of a background job asked for, such as a compaction.
    Job,
}

impl OpKind {
    /// All, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::Read,
        Self::Write,
        Self::Seek,
        Self::Update,
        Self::Delete,
        Self::Merge,
        Self::MultiRead,
        Self::Scan,
        Self::Insert,
        Self::Job,
    ];

    /// db_bench's name, or YCSB's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Seek => "seek",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Merge => "merge",
            Self::MultiRead => "multiread",
            Self::Scan => "scan",
            Self::Insert => "insert",
            Self::Job => "op",
        }
    }
}
