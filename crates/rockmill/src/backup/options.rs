//! Options of the backup engine, and the information that it returns.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_io::Clock;

use crate::env::Env;
use crate::error::{Error, Result};
use crate::options::setters::setters;
use crate::rate_limiter::{RateLimiter, RateLimiterMode};

/// Bytes copied at a time (RocksDB's default).
const IO_BUFFER_BYTES: u64 = 5 << 20;
/// Bytes between two calls of a progress callback (RocksDB's default).
const CALLBACK_BYTES: u64 = 4 << 20;
/// Refill period of a private rate limiter.
const REFILL_MICROS: i64 = 100_000;

/// How shared tables are named in a backup (RocksDB `ShareFilesNaming`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ShareFilesNaming {
    /// `000012_3735928559_4096.sst`: the file's CRC-32C and size. Every backup has to read every table to name it.
    LegacyCrc32cAndFileSize,
    /// `000012_sPZ1MIGNKN18W4BBZIXHU.sst`: the session that wrote the table.
    UseDbSessionId,
    /// `000012_sPZ1MIGNKN18W4BBZIXHU_4096.sst`: session and size. RocksDB's default.
    #[default]
    UseDbSessionIdAndFileSize,
}

/// How fast bytes may move.
#[derive(Debug, Clone, Default)]
pub(super) struct Rate {
    bytes_per_second: u64,
    limiter: Option<Arc<RateLimiter>>,
}

impl Rate {
    fn of(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, limiter: None }
    }

    fn shared(limiter: &Arc<RateLimiter>) -> Self {
        Self { bytes_per_second: 0, limiter: Some(Arc::clone(limiter)) }
    }

    /// The shared limiter, or one for this operation, or none.
    pub fn limiter(&self, clock: &Arc<dyn Clock>) -> Option<Arc<RateLimiter>> {
        let own = || {
            let rate = i64::try_from(self.bytes_per_second).unwrap_or(i64::MAX);
            // Each byte counts once, when it is read.
            let mode = RateLimiterMode::KReadsOnly;
            RateLimiter::with_clock(rate, REFILL_MICROS, 10, mode, false, Arc::clone(clock))
        };
        self.limiter.clone().or_else(|| (self.bytes_per_second > 0).then(own))
    }
}

/// Options of a [`super::BackupEngine`] (`rocksdb::backup::BackupEngineOptions`).
#[derive(Debug, Clone)]
pub struct BackupEngineOptions {
    pub(super) dir: PathBuf,
    pub(super) env: Option<Env>,
    pub(super) share_table_files: bool,
    pub(super) share_files_with_checksum: bool,
    pub(super) naming: ShareFilesNaming,
    pub(super) sync: bool,
    pub(super) destroy_old_data: bool,
    pub(super) backup_log_files: bool,
    pub(super) backup_rate: Rate,
    pub(super) restore_rate: Rate,
    pub(super) io_buffer_size: u64,
    pub(super) threads: usize,
    pub(super) callback_interval: u64,
}

impl BackupEngineOptions {
    /// Options for backups in this directory, which is created when the engine is opened. It must not be the
    /// database's.
    pub fn new(backup_dir: impl AsRef<Path>) -> Result<Self> {
        let dir = backup_dir.as_ref();
        if dir.as_os_str().is_empty() {
            return Err(Error::invalid_argument("the backup directory's name is empty"));
        }
        Ok(Self {
            dir: dir.to_owned(),
            env: None,
            share_table_files: true,
            share_files_with_checksum: true,
            naming: ShareFilesNaming::default(),
            sync: true,
            destroy_old_data: false,
            backup_log_files: true,
            backup_rate: Rate::default(),
            restore_rate: Rate::default(),
            io_buffer_size: IO_BUFFER_BYTES,
            threads: 1,
            callback_interval: CALLBACK_BYTES,
        })
    }
}

setters! {
    impl BackupEngineOptions;

    /// The file system of the backups, if it is not the database's (`backup_env`).
    set_backup_env(env: &Env) env = Some(env.clone());
    /// Whether backups share tables, so that each is copied once. Without it every backup is a whole copy. Default:
    /// true.
    set_share_table_files(share: bool) share_table_files;
    /// Whether the names of shared tables identify the table. If so, one directory can hold tables of several
    /// databases, or of a database that was restored and then diverged. Otherwise tables are shared by number, and each
    /// backup reads every table to check that it is the one in the directory. Default: true.
    set_share_files_with_checksum(with_checksum: bool) share_files_with_checksum;
    /// How shared tables are named. Default: session and size.
    set_share_files_with_checksum_naming(naming: ShareFilesNaming) naming;
    /// Whether a completed backup survives a power cut. Default: true.
    set_sync(sync: bool) sync;
    /// Deletes all backups when the engine is opened. Default: false.
    set_destroy_old_data(destroy: bool) destroy_old_data;
    /// Whether WALs are part of a backup. Without them, a backup has only the data in tables: flush before the backup.
    /// Default: true.
    set_backup_log_files(backup: bool) backup_log_files;
    /// Bytes per second that backups and verifications may read; 0 is no limit. Default: 0.
    set_backup_rate_limit(bytes_per_second: u64) backup_rate = Rate::of(bytes_per_second);
    /// Limits backups and verifications with a limiter that may be shared, at its lowest priority. Its mode decides
    /// whether reads or writes count.
    set_backup_rate_limiter(limiter: &Arc<RateLimiter>) backup_rate = Rate::shared(limiter);
    /// Bytes per second that restores may read; 0 is no limit. Default: 0.
    set_restore_rate_limit(bytes_per_second: u64) restore_rate = Rate::of(bytes_per_second);
    /// As [`Self::set_backup_rate_limiter`], for restores.
    set_restore_rate_limiter(limiter: &Arc<RateLimiter>) restore_rate = Rate::shared(limiter);
    /// Bytes copied at a time; 0 takes the default of 5 MiB.
    set_io_buffer_size(bytes: u64) io_buffer_size = if bytes == 0 { IO_BUFFER_BYTES } else { bytes };
    /// Threads that copy and check files. Default: 1; numbers below that count as 1.
    set_max_background_operations(threads: i32) threads = usize::try_from(threads).unwrap_or(1).max(1);
    /// Bytes between two calls of a progress callback. Default: 4 MiB.
    set_callback_trigger_interval_size(bytes: u64) callback_interval = bytes.max(1);
}

/// Progress of a backup, a restore or a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes copied or read.
    pub bytes_done: u64,
    /// Total bytes to copy or read, as far as known, without files that earlier backups already have.
    pub bytes_total: u64,
}

/// Called while files are copied, from the threads that copy them.
pub(super) type Callback = Arc<dyn Fn(BackupProgress) + Send + Sync>;

/// How one backup is made (RocksDB `CreateBackupOptions`).
#[derive(Clone, Default)]
pub struct CreateBackupOptions {
    pub(super) flush_before_backup: bool,
    pub(super) callback: Option<Callback>,
}

impl CreateBackupOptions {
    /// Flushes the memtables first, so that the backup includes data written without a WAL, and WALs are short.
    /// Default: false.
    pub fn set_flush_before_backup(&mut self, flush: bool) {
        self.flush_before_backup = flush;
    }

    /// Sets a callback that is called after every `callback_trigger_interval_size` bytes copied. It must be quick; if
    /// it panics, the backup fails.
    pub fn set_progress_callback(&mut self, callback: impl Fn(BackupProgress) + Send + Sync + 'static) {
        self.callback = Some(Arc::new(callback));
    }
}

impl fmt::Debug for CreateBackupOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateBackupOptions")
            .field("flush_before_backup", &self.flush_before_backup)
            .finish_non_exhaustive()
    }
}

/// Which files in the database's directory a restore keeps (RocksDB `RestoreOptions::Mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RestoreMode {
    /// Nothing: everything comes from the backup.
    #[default]
    PurgeAllFiles,
    /// Keep tables whose number, session and size match the backup; their contents are not read.
    KeepLatestDbSessionIdFiles,
    /// Keep tables whose checksum matches the backup.
    VerifyChecksum,
}

/// How a backup is restored (`rocksdb::backup::RestoreOptions`).
#[derive(Clone, Default)]
pub struct RestoreOptions {
    pub(super) keep_log_files: bool,
    pub(super) mode: RestoreMode,
    pub(super) same_database_only: bool,
    pub(super) callback: Option<Callback>,
}

impl RestoreOptions {
    /// As [`CreateBackupOptions::set_progress_callback`].
    pub fn set_progress_callback(&mut self, callback: impl Fn(BackupProgress) + Send + Sync + 'static) {
        self.callback = Some(Arc::new(callback));
    }
}

setters! {
    impl RestoreOptions;

    /// Refuses to replace a database other than the one in the backup, with `InvalidArgument`. Databases are compared
    /// by the ids in their MANIFESTs (or in the file IDENTITY); a database with an unknown id counts as another one.
    /// Default: false, as in RocksDB.
    set_same_database_only(only: bool) same_database_only;
    /// Keeps the WALs in the directory, so that they are replayed over the backup, and moves archived WALs (`archive`)
    /// back to the directory. If a WAL is in both places, the one in the directory stays. For backups made without WALs
    /// (`backup_log_files`). Default: false.
    set_keep_log_files(keep: bool) keep_log_files;
    /// Which of the directory's files are kept. Default: none.
    set_mode(mode: RestoreMode) mode;
}

impl fmt::Debug for RestoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestoreOptions")
            .field("keep_log_files", &self.keep_log_files)
            .field("mode", &self.mode)
            .field("same_database_only", &self.same_database_only)
            .finish_non_exhaustive()
    }
}

/// A backup, in short (`rocksdb::backup::BackupEngineInfo`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupEngineInfo {
    /// When it was made, in seconds since the Unix epoch.
    pub timestamp: i64,
    /// Its number.
    pub backup_id: u32,
    /// Bytes of all its files, shared ones included.
    pub size: u64,
    /// Its files.
    pub num_files: u32,
}

/// A backup in full (RocksDB `BackupInfo` with file details).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupDetails {
    /// What [`super::BackupEngine::get_backup_info`] says.
    pub info: BackupEngineInfo,
    /// A sequence number at or below the newest in it.
    pub sequence: u64,
    /// What the caller stored with it.
    pub app_metadata: Vec<u8>,
    /// Its files.
    pub files: Vec<BackupFile>,
}

/// A file of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupFile {
    /// Path below the backup directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// CRC-32C of its contents; `None` if the backup does not say.
    pub crc32c: Option<u32>,
    /// How many backups have it.
    pub backups: usize,
}
