//! The interface of a store in the benchmark, which Rockmill and its peers implement.

use rockmill::EngineParts;
use rockmill_format::hash::hash64;

use crate::error::Result;
use crate::flags::Flags;

/// The column family of [`Store::warm_up`].
pub(crate) const WARM_UP: &str = "warm_up";

/// The entries of table number `i`: keys interleaved with those of the other tables.
pub(crate) fn warm_up_entries(i: usize) -> impl Iterator<Item = (String, [u8; 100])> {
    (0..64).map(move |key| (format!("{key:04}{i:04}"), [b'v'; 100]))
}

/// The column families of a store like RocksDB, with db_bench's names.
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
    /// Flushes, then compactions by the level that they begin at, from L0; empty for a store that does not tell.
    pub jobs: Vec<u64>,
    /// Compacting threads; a job has as many as it has parts.
    pub threads: u64,
}

/// An open store.
pub trait Store: Send + Sync {
    /// A thread's access to the store: it may keep a batch, a transaction or an iterator between calls.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Writes memtables as tables.
    fn flush(&self) -> Result<()>;

    /// Compacts everything.
    fn compact(&self) -> Result<()>;

    /// Merges `inputs` small tables of a separate column family in one job, and drops it, so that the store's setup for
    /// its first jobs is done.
    fn warm_up(&self, inputs: usize) -> Result<()> {
        let _ = inputs;
        Ok(())
    }

    /// Returns when no flush or compaction runs or is due.
    fn wait_for_compaction(&self) -> Result<()>;

    /// Stalls of writers so far, and the current reason; empty for a store that does not tell.
    fn stalls(&self) -> Result<Stalls> {
        Ok(Stalls::default())
    }

    /// Bytes of tables in each level, from L0; empty for stores without levels.
    fn levels(&self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// Currently running jobs; none for a store that does not tell.
    fn running_jobs(&self) -> RunningNow {
        RunningNow::default()
    }

    /// The resource use of each kind of work since the open, including running jobs; empty for a store that does not
    /// tell.
    fn tasks(&self) -> Vec<TaskUse> {
        Vec::new()
    }

    /// Named numbers of the store, for charts over time.
    fn numbers(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The store's own statistics, as text.
    fn stats(&self) -> Result<String>;

    /// Calls to the operating system that the store's own I/O layer counted since it was opened, if it counts them.
    fn counted_calls(&self) -> Option<Vec<(&'static str, u64)>> {
        None
    }

    /// Which of its engines did the parts of jobs since the open, for stores with several engines.
    fn engine_parts(&self) -> Option<EngineParts> {
        None
    }

    /// The current engine, with the store's reason if it is not the requested one.
    fn engine_text(&self) -> Option<String> {
        None
    }

    /// Closes the store. Writes of the close belong to the run.
    fn close(self: Box<Self>) -> Result<()>;
}

/// The resource use of one kind of work of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskUse {
    /// Which.
    pub name: &'static str,
    /// Microseconds of wall time of all jobs together. For appends, the time of syncs.
    pub busy_micros: u64,
    /// CPU microseconds of finished jobs, if the store counts them.
    pub cpu_micros: Option<u64>,
    /// Input bytes: of writes, of memtables, of tables.
    pub bytes_in: u64,
    /// Bytes that finished jobs wrote to a device.
    pub bytes_out: u64,
}

impl TaskUse {
    /// Adds another store's use for the same kind.
    pub fn add(&mut self, other: &Self) {
        self.name = other.name;
        self.busy_micros += other.busy_micros;
        self.cpu_micros = other.cpu_micros.map(|micros| micros + self.cpu_micros.unwrap_or(0));
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }

    /// The use since `begun`. A job that has just ended may be missing for a moment, so values never go below `before`.
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

/// How long writers were delayed or stopped since the open, and the current reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Microseconds of delays, or the total if the store does not distinguish delays from stops.
    pub delayed_micros: u64,
    /// Microseconds that they were stopped.
    pub stopped_micros: u64,
    /// Why they are delayed or stopped now; empty if they are not.
    pub reason: String,
    /// How often each reason has delayed or stopped a write so far, if the store counts that.
    pub counts: Vec<(String, u64)>,
}

impl Stalls {
    /// Both kinds together.
    pub fn micros(&self) -> u64 {
        self.delayed_micros + self.stopped_micros
    }
}

/// One thread's use of a store. Errors contain the store's message.
pub trait Session {
    /// Adds a put to the batch.
    fn put(&mut self, key: &[u8], value: &[u8]);

    /// Adds a deletion to the batch.
    fn delete(&mut self, key: &[u8]);

    /// Adds a merge operand to the batch.
    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()>;

    /// Writes the batch and empties it.
    fn commit(&mut self) -> Result<()>;

    /// Looks up the key and, if it exists, passes the value in place, without copying it.
    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Looks many keys up in one call: returns how many exist, and the bytes of their values.
    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)>;

    /// Opens an iterator, seeks to the first key at or after `key`, visits at most `entries` entries and steps after
    /// each. Returns whether exactly this key was found, the number of visited entries, and their bytes.
    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought>;

    /// Visits entries from the first, or backwards from the last, until `visit`, which gets each one's bytes, returns
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

/// Kinds of operations, whose latencies are recorded separately.
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
    /// A complete requested background job, such as a compaction.
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
