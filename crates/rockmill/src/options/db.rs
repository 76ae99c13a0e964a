//! Options of the whole database.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_io::{Clock, FileSystem, PosixFileSystem, SystemClock};

use super::declare::declare_options;
use super::file::Carried;
use super::{DBPath, OptionWarning, Options, RecoveryMode, paths};
use crate::compaction_workers::CompactionWorkers;
use crate::env::Env;
use crate::event_listener::Listeners;
use crate::info_log::{InfoLogger, LogLevel};
use crate::memtable::write_buffer_manager::WriteBufferManager;
use crate::options::{KernelDriver, MergeEngine};
use crate::rate_limiter::{RateLimiter, RateLimiterMode};
use crate::statistics::Statistics;

declare_options! {
    /// Options of the whole database (RocksDB's `DBOptions`).
    #[allow(non_snake_case)] // two of RocksDB's names
    pub struct DbOptions;
    setters of Options at db;
    beside {
        /// What an OPTIONS file had in addition; it stays with the options when they are copied.
        carried: Carried,
        /// Options of the OPTIONS file that have no effect. They go to the info log at open.
        load_warnings: Vec<OptionWarning>,
        /// An object that was given as bytes, with the name that stands for its path in `kernel_merge_program`
        /// ([`Options::set_kernel_merge_program_object`]).
        #[cfg(feature = "kernel")]
        kernel_program_bytes: Option<(PathBuf, Arc<[u8]>)>,
    }

    /// Create the database when the directory holds none.
    create_if_missing: bool = false, fixed, create_if_missing;
    /// Create column families that `open_cf` names and the database lacks.
    create_missing_column_families: bool = false, fixed, create_missing_column_families;
    /// Refuse to open an existing database.
    error_if_exists: bool = false, fixed, set_error_if_exists;
    /// Refuse a damaged database rather than open what is left.
    paranoid_checks: bool = true, fixed, set_paranoid_checks;
    /// The most table files kept open; -1 keeps all.
    max_open_files: i32 = -1, mutable, set_max_open_files;
    /// The most flushes and compactions at the same time. A quarter of them, at least one, is kept for flushes.
    max_background_jobs: i32 = 2, mutable, set_max_background_jobs;
    /// The most threads for one compaction.
    max_subcompactions: u32 = 1, mutable, set_max_subcompactions;
    /// Use fsync instead of fdatasync.
    use_fsync: bool = false, fixed, set_use_fsync;
    /// Reserve space for tables, and make synced WALs longer ahead of their contents, so that syncs are quicker. Turn
    /// it off where RocksDB follows as a secondary (docs/rocksdb.md).
    allow_fallocate: bool = true, fixed, set_allow_fallocate;
    /// Total bytes of WALs above which the oldest column family is flushed; 0 means four times the size of all
    /// memtables.
    max_total_wal_size: u64 = 0, mutable, set_max_total_wal_size;
    /// How much damage a WAL may have.
    wal_recovery_mode: RecoveryMode = RecoveryMode::PointInTime, fixed, set_wal_recovery_mode;
    /// How many old WAL files are kept for reuse. Counts as 0 with a WAL archive, and in the recovery modes that must
    /// tell damage from a WAL's end (tolerate corrupted tail, absolute consistency).
    recycle_log_file_num: usize = 0, fixed, set_recycle_log_file_num;
    /// Read tables without the page cache (O_DIRECT). Compactions and flushes that use io_uring then also write tables
    /// without it.
    use_direct_reads: bool = false, fixed, set_use_direct_reads;
    /// Write tables without the page cache (O_DIRECT). If neither this nor `use_direct_reads` is set, tables in the
    /// page cache stay there.
    use_direct_io_for_flush_and_compaction: bool = false, fixed, set_use_direct_io_for_flush_and_compaction;
    /// Start write-back of a table each time this many bytes were written; 0 is off. With a rate limiter, an open takes
    /// 1 MiB instead of 0.
    bytes_per_sync: u64 = 0, mutable, set_bytes_per_sync;
    /// With `bytes_per_sync` or `wal_bytes_per_sync`: wait for one write-back before starting the next, so that
    /// unwritten data does not pile up.
    strict_bytes_per_sync: bool = false, mutable, set_strict_bytes_per_sync;
    /// Tell the kernel that tables are read at random, so that it does not read ahead.
    advise_random_on_open: bool = true, fixed, set_advise_random_on_open;
    /// Start write-back of a WAL each time this many bytes were written; 0 is off.
    wal_bytes_per_sync: u64 = 0, mutable, set_wal_bytes_per_sync;
    /// Bytes that a compaction reads at once from each input; 0 reads one block at a time.
    compaction_readahead_size: usize = 2 << 20, mutable, set_compaction_readahead_size;
    /// Bytes per second that writers may still write when first slowed; 0 takes the rate limiter's rate, or 16 MiB.
    delayed_write_rate: u64 = 16 << 20, mutable, set_delayed_write_rate;
    /// Bytes at which a new MANIFEST is started.
    max_manifest_file_size: u64 = 1 << 30, fixed, set_max_manifest_file_size;
    /// Bytes gathered before a table write goes to the kernel.
    writable_file_max_buffer_size: usize = 1 << 20, mutable, set_writable_file_max_buffer_size;
    /// Let the members of a write group insert at the same time.
    allow_concurrent_memtable_write: bool = true, fixed, set_allow_concurrent_memtable_write;
    /// The most bytes of batches logged as one group. If the first is at most an eighth of this, the group grows by
    /// only another eighth, so that small writes do not wait for large ones. A larger batch than this is written alone.
    max_write_batch_group_size_bytes: u64 = 1 << 20, fixed, set_max_write_batch_group_size_bytes;
    /// Directory of the WALs of this database alone; empty means the database's own. Give it at every open: an open
    /// does not take it from the OPTIONS file.
    wal_dir: PathBuf = PathBuf::new(), fixed;
    /// Directory of the WALs on a faster device; empty means `wal_dir`. Give it at every open.
    fast_path: PathBuf = PathBuf::new(), own_fixed;
    /// The most bytes of WALs, which keep values until they are flushed; memtables then hold only addresses
    /// (docs/hybrid.md). Writers are slowed before they are stopped. 0 keeps values in memtables.
    fast_capacity: u64 = 0, own_fixed;
    /// With `fast_capacity`: bytes of memory of one index table, in place of `write_buffer_size`.
    max_index_size: usize = 8 << 20, own_fixed, set_max_index_size;
    /// With `fast_capacity`: bytes of memory of full index tables at which they are flushed.
    data_flush_trigger_size: usize = 32 << 20, own_fixed, set_data_flush_trigger_size;
    /// With `fast_capacity`: how many consecutive full index tables are merged into one in memory; up to 6 more if a
    /// core is short, and never fewer than 2. 0 merges none.
    index_merge_trigger_num: usize = 2, own_fixed, set_index_merge_trigger_num;
    /// With `fast_capacity`: `index_merge_trigger_num` and `data_flush_trigger_size` follow what is short, a core or
    /// the slow device; false: they stay as given.
    adaptive_index_triggers: bool = true, own_fixed, set_adaptive_index_triggers;
    /// With `fast_capacity`: levels may hold as many times their size as flushes are larger than
    /// `data_flush_trigger_size`; false: what the options say.
    elastic_level_capacity: bool = true, own_fixed, set_elastic_level_capacity;
    /// With `fast_capacity`: values of up to this many bytes are kept in the index table.
    index_inline_size: usize = 64, own_fixed, set_index_inline_size;
    /// Directories of tables, and how many bytes each is meant to take; empty means the database's own. Give them at
    /// every open: no OPTIONS file has them.
    db_paths: Vec<DBPath> = Vec::new(), paths(paths::text, paths::read);
    /// Keep obsolete WALs in `archive/` for this many seconds after their last write. If this and `WAL_size_limit_MB`
    /// are 0, they are deleted at once. With `fast_capacity`, they stay only while there is room.
    WAL_ttl_seconds: u64 = 0, fixed, set_wal_ttl_seconds;
    /// Keep up to this many MiB of obsolete WALs in `archive/`. If this and `WAL_ttl_seconds` are 0, they are deleted
    /// at once. With `fast_capacity`, only as many stay as there is room for.
    WAL_size_limit_MB: u64 = 0, fixed, set_wal_size_limit_mb;
    /// Keep written records in the process's memory until `flush_wal`, a synced write, a full buffer
    /// (`writable_file_max_buffer_size`), the next WAL, or a close. They are lost if the process dies first.
    manual_wal_flush: bool = false, fixed, set_manual_wal_flush;
    /// Flush all column families with data together and commit their tables as one. With `disable_wal`, a crash then
    /// leaves a batch over several column families whole or not at all.
    atomic_flush: bool = false, fixed, set_atomic_flush;
    /// Do not flush data that is in no WAL (`disable_wal`) on close; it is lost.
    avoid_flush_during_shutdown: bool = false, mutable, set_avoid_flush_during_shutdown;
    /// Keep recovered data in memtables, and its WALs, instead of writing tables at open. Tables are still written if
    /// memtables fill up or a WAL is damaged; a torn end is no such damage.
    avoid_flush_during_recovery: bool = false, fixed, set_avoid_flush_during_recovery;
    /// How often the store tries to resume after the same failure (a full disk); 0 is never.
    max_bgerror_resume_count: i32 = i32::MAX, fixed, set_max_bgerror_resume_count;
    /// Microseconds between two tries to resume.
    bgerror_resume_retry_interval: u64 = 1_000_000, fixed, set_bgerror_resume_retry_interval;
    /// Allow tables to be ingested below all other data. The last level is kept free for them, and compactions keep the
    /// entries that hide theirs. Set it from the database's first day on.
    allow_ingest_behind: bool = false, fixed, set_allow_ingest_behind;
    /// How compactions read and merge.
    merge_engine: MergeEngine = MergeEngine::Auto, own, set_merge_engine;
    /// How the engine `kernel` runs its program.
    kernel_driver: KernelDriver = KernelDriver::Run, own;
    /// The merge program of the engine `kernel`: the path of a compiled object (kernel-engine.md, "Programs of your
    /// own"); empty or `builtin` for the built-in one.
    kernel_merge_program: PathBuf = PathBuf::new(), own;
    /// The most bytes of memory for reads and writes in flight, for each part of a compaction and each flush with
    /// `uring`. A flush takes 9 MiB. A part that merges 4, 8 or 16 inputs takes 14, 17 or 22 MiB, or 2, 4 or 8 MiB if
    /// all are in the page cache. The next jobs reuse it within 5 seconds. Without io_uring: the most that a flush
    /// reads from logs at a time.
    compaction_io_memory: usize = 24 << 20, own, set_compaction_io_memory;
    /// Threads that compress and decompress blocks and build the functions of TPH tables for compactions and flushes.
    /// -1 uses idle cores, 0 none. Another number is the most for all jobs of the database together, whether cores are
    /// idle or not.
    compaction_helper_threads: i32 = -1, own, set_compaction_helper_threads;
    /// Seconds between dumps of `rocksdb.stats`, and of statistics if enabled, into the info log; 0 dumps none.
    stats_dump_period_sec: u32 = 600, mutable, set_stats_dump_period_sec;
    /// A file rewritten every second with what the database counts and does (see [`crate::Db::prometheus_text`]), for
    /// `rockmill top` and Prometheus. The path is relative to the database's directory; empty writes none. An existing
    /// file is replaced only if it is a status file.
    status_file: PathBuf = PathBuf::new(), own;
    /// Counters and histograms; `None` counts nothing. See [`Options::enable_statistics`].
    statistics: Option<Arc<Statistics>> = None, hidden;
    /// Objects that are notified of events. See [`Options::add_event_listener`].
    listeners: Listeners = Listeners::default(), hidden;
    /// The lowest level of lines in the info log.
    info_log_level: LogLevel = LogLevel::Info, fixed, set_log_level;
    /// Takes the lines of the info log in place of the file LOG. See [`Options::set_info_logger`].
    info_logger: Option<InfoLogger> = None, hidden;
    /// Directory of the info log; empty means the database's.
    db_log_dir: PathBuf = PathBuf::new(), fixed;
    /// How many files of the info log are kept, the present one included.
    keep_log_file_num: usize = 1000, fixed, set_keep_log_file_num;
    /// Bytes at which a new file of the info log is started; 0 is never.
    max_log_file_size: usize = 0, fixed, set_max_log_file_size;
    /// Seconds after which a new file of the info log is started; 0 is never.
    log_file_time_to_roll: usize = 0, fixed, set_log_file_time_to_roll;
    /// The most bytes of all memtables of the database together; 0 leaves each column family to its
    /// `write_buffer_size`. A limit of some KiB counts as a few blocks for each core. Not used with a
    /// `write_buffer_manager`.
    db_write_buffer_size: usize = 0, fixed, set_db_write_buffer_size;
    /// Bounds the memory of memtables, over databases; see [`WriteBufferManager`].
    write_buffer_manager: Option<WriteBufferManager> = None, hidden;
    /// Bounds the bytes per second of background work, by priority; see [`RateLimiter`].
    rate_limiter: Option<Arc<RateLimiter>> = None, hidden;
    /// The same work on copies of one database gives the same bytes. See [`Options::set_reproducible`].
    reproducible: bool = false, hidden;
    /// Has compactions done on other machines. See [`Options::set_compaction_workers`].
    compaction_workers: Option<Arc<dyn CompactionWorkers>> = None, hidden;
    /// Where files are.
    fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default()), hidden;
    /// Source of time.
    clock: Arc<dyn Clock> = Arc::new(SystemClock::default()), hidden;
}

impl Options {
    /// RocksDB's shorthand: as many background jobs as `threads`.
    pub fn increase_parallelism(&mut self, threads: i32) {
        self.db.max_background_jobs = threads.max(2);
    }

    /// Makes tables the same, in bytes and file numbers, whenever the same calls are made on copies of one database.
    /// Tables are written with a fixed session id, and instead of the present time with the time of their oldest data
    /// (0 if it is not known). The parts of a compaction run one after another. No compaction starts by itself until
    /// [`Db::continue_background_work`](crate::Db::continue_background_work), and no flush because time passes (where
    /// values stay in WALs, [`Options::set_fast_path`](crate::Options::set_fast_path)).
    ///
    /// This is for comparing engines, machines and versions. Do not use it for databases in production: two databases
    /// that share a block cache must not have tables with the same ids.
    pub fn set_reproducible(&mut self, reproducible: bool) {
        self.db.reproducible = reproducible;
    }

    /// Bounds the memory of memtables by `manager`, which other databases may share.
    pub fn set_write_buffer_manager(&mut self, manager: &WriteBufferManager) {
        self.db.write_buffer_manager = Some(manager.clone());
    }

    /// Limits what flushes and compactions write to `rate_bytes_per_sec`, handed out every `refill_period_us`; once in
    /// `fairness` periods a lower priority goes first. See [`RateLimiter`].
    pub fn set_ratelimiter(&mut self, rate_bytes_per_sec: i64, refill_period_us: i64, fairness: i32) {
        let mode = RateLimiterMode::KWritesOnly;
        self.set_ratelimiter_with_mode(rate_bytes_per_sec, refill_period_us, fairness, mode, false);
    }

    /// [`Self::set_ratelimiter`] with a rate that follows demand, up to `rate_bytes_per_sec`.
    pub fn set_auto_tuned_ratelimiter(&mut self, rate_bytes_per_sec: i64, refill_period_us: i64, fairness: i32) {
        let mode = RateLimiterMode::KWritesOnly;
        self.set_ratelimiter_with_mode(rate_bytes_per_sec, refill_period_us, fairness, mode, true);
    }

    /// [`Self::set_ratelimiter`], with a choice of what is limited: the reads of compactions, writes, or both.
    pub fn set_ratelimiter_with_mode(
        &mut self,
        rate_bytes_per_sec: i64,
        refill_period_us: i64,
        fairness: i32,
        mode: RateLimiterMode,
        auto_tuned: bool,
    ) {
        let limiter = RateLimiter::new(rate_bytes_per_sec, refill_period_us, fairness, mode, auto_tuned);
        self.db.rate_limiter = Some(limiter);
    }

    /// Limits background work by `limiter`, which other databases may share and which may be changed later.
    pub fn set_shared_ratelimiter(&mut self, limiter: &Arc<RateLimiter>) {
        self.db.rate_limiter = Some(Arc::clone(limiter));
    }

    /// Directory of the WALs; empty means the database's own directory. It must be given at every open: an OPTIONS file
    /// has it, but an open does not take it from there. It belongs to one database: an open with another's is refused.
    ///
    /// An open uses and creates this directory wherever it is, even if the options were loaded from a file that
    /// somebody else may have written. [`crate::Db::check_stored_path`] checks such a path.
    pub fn set_wal_dir(&mut self, path: impl AsRef<Path>) {
        self.db.wal_dir = path.as_ref().to_owned();
    }

    /// Puts the WALs, up to `capacity` bytes, on a faster device, and keeps values there until they are flushed in
    /// large sorted runs (docs/hybrid.md). The directory belongs to one database, as a [`wal_dir`](Self::set_wal_dir)
    /// does, and takes its place. An open that turns this on or off, or gives another directory, first writes what is
    /// in the WALs of before as tables.
    pub fn set_fast_path(&mut self, path: impl AsRef<Path>, capacity: u64) {
        self.db.fast_path = path.as_ref().to_owned();
        self.db.fast_capacity = capacity;
    }

    /// Every second, rewrites a file with what the database counts and does. It is for `rockmill top`, which looks for
    /// `STATUS` in the database's directory, and for Prometheus (the textfile collector of its node exporter). The file
    /// is removed when the database is closed. A relative path is within the database's directory; an empty one writes
    /// no file. See [`crate::Db::prometheus_text`].
    pub fn set_status_file(&mut self, path: impl AsRef<Path>) {
        self.db.status_file = path.as_ref().to_owned();
    }

    /// How the engine `kernel` runs its program. Needs the Cargo feature `kernel`.
    #[cfg(feature = "kernel")]
    pub fn set_kernel_driver(&mut self, value: KernelDriver) {
        self.db.kernel_driver = value;
    }

    /// Lets the engine `kernel` merge with your own program (docs/kernel-engine.md, "Programs of your own"): the path
    /// of an object compiled with `rockmill_program.h`, which contains an order of keys, a compaction filter, or both.
    /// It is used for column families whose comparator and filter (or filter factory) have the names that the program
    /// states. Other engines, and parts that the program cannot do, use that comparator and filter themselves.
    /// `builtin` or an empty path means the built-in program.
    ///
    /// The file is read when the database is opened, and again when `set_options` names it. An open fails if the file
    /// is not such an object, or if the kernel can run merge programs but its verifier refuses this one.
    ///
    /// Needs the Cargo feature `kernel`.
    #[cfg(feature = "kernel")]
    pub fn set_kernel_merge_program(&mut self, path: impl AsRef<Path>) {
        self.db.kernel_merge_program = path.as_ref().to_owned();
    }

    /// The same with the object's bytes, for programs that are part of the application (`include_bytes!`). No file is
    /// read; in messages and for `set_options`, `name` takes the place of the path.
    ///
    /// Needs the Cargo feature `kernel`.
    #[cfg(feature = "kernel")]
    pub fn set_kernel_merge_program_object(&mut self, name: impl AsRef<Path>, object: &[u8]) {
        self.set_kernel_merge_program(&name);
        self.db.kernel_program_bytes = Some((name.as_ref().to_owned(), object.into()));
    }

    /// Runs compactions on other machines where that is possible (docs/offload.md). `workers` is made by the crate
    /// `rockmill-offload`. A compaction that fails there runs here instead.
    pub fn set_compaction_workers(&mut self, workers: Arc<dyn CompactionWorkers>) {
        self.db.compaction_workers = Some(workers);
    }

    /// Takes the file system and the clock of `env`.
    pub fn set_env(&mut self, env: &Env) {
        self.db.fs = Arc::clone(&env.fs);
        self.db.clock = Arc::clone(&env.clock);
    }

    /// Replaces the file system, for tests.
    pub fn set_file_system(&mut self, fs: Arc<dyn FileSystem>) {
        self.db.fs = fs;
    }

    /// Replaces the clock, for tests.
    pub fn set_clock(&mut self, clock: Arc<dyn Clock>) {
        self.db.clock = clock;
    }
}

impl DbOptions {
    /// Values stay in the WALs until they are flushed.
    pub(crate) fn keeps_values_in_logs(&self) -> bool {
        self.fast_capacity > 0
    }
}
