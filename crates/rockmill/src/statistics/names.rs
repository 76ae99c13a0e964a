//! Names of tickers and histograms: RocksDB's texts, and the enums of the `rocksdb` crate.

use std::fmt;
use std::str::FromStr;

/// No ticker or histogram has this name (`rocksdb::statistics::NameParseError`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameParseError;

impl fmt::Display for NameParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unrecognized name")
    }
}

impl std::error::Error for NameParseError {}

macro_rules! named {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident($text:literal),)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All of them, in RocksDB's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// RocksDB's name in text.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// All of them, in RocksDB's order.
            pub fn iter() -> std::slice::Iter<'static, Self> {
                Self::ALL.iter()
            }
        }

        impl FromStr for $name {
            type Err = NameParseError;

            fn from_str(text: &str) -> Result<Self, NameParseError> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(NameParseError),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// What is counted (`rocksdb::statistics::Ticker`).
    pub enum Ticker {
        /// Lookups in the block cache that did not find the block: the sum of the kinds.
        BlockCacheMiss("rocksdb.block.cache.miss"),
        /// Blocks found in the block cache: the sum of the kinds.
        BlockCacheHit("rocksdb.block.cache.hit"),
        /// Blocks put into the block cache: the sum of the kinds.
        BlockCacheAdd("rocksdb.block.cache.add"),
        /// Index blocks not in the cache.
        BlockCacheIndexMiss("rocksdb.block.cache.index.miss"),
        /// Index blocks found in the cache.
        BlockCacheIndexHit("rocksdb.block.cache.index.hit"),
        /// Index blocks put into the cache.
        BlockCacheIndexAdd("rocksdb.block.cache.index.add"),
        /// Bytes of index blocks put into the cache.
        BlockCacheIndexBytesInsert("rocksdb.block.cache.index.bytes.insert"),
        /// Filter blocks not in the cache.
        BlockCacheFilterMiss("rocksdb.block.cache.filter.miss"),
        /// Filter blocks found in the cache.
        BlockCacheFilterHit("rocksdb.block.cache.filter.hit"),
        /// Filter blocks put into the cache.
        BlockCacheFilterAdd("rocksdb.block.cache.filter.add"),
        /// Bytes of filter blocks put into the cache.
        BlockCacheFilterBytesInsert("rocksdb.block.cache.filter.bytes.insert"),
        /// Data blocks not in the cache.
        BlockCacheDataMiss("rocksdb.block.cache.data.miss"),
        /// Data blocks found in the cache.
        BlockCacheDataHit("rocksdb.block.cache.data.hit"),
        /// Data blocks put into the cache.
        BlockCacheDataAdd("rocksdb.block.cache.data.add"),
        /// Bytes of data blocks put into the cache.
        BlockCacheDataBytesInsert("rocksdb.block.cache.data.bytes.insert"),
        /// Bytes of blocks found in the cache.
        BlockCacheBytesRead("rocksdb.block.cache.bytes.read"),
        /// Bytes of blocks put into the cache.
        BlockCacheBytesWrite("rocksdb.block.cache.bytes.write"),
        /// Lookups that a whole-key filter answered: the table was not read.
        BloomFilterUseful("rocksdb.bloom.filter.useful"),
        /// Lookups that a whole-key filter let through.
        BloomFilterFullPositive("rocksdb.bloom.filter.full.positive"),
        /// Lookups that a whole-key filter let through and that found the key in the table.
        BloomFilterFullTruePositive("rocksdb.bloom.filter.full.true.positive"),
        /// Point lookups that asked a prefix filter.
        BloomFilterPrefixChecked("rocksdb.bloom.filter.prefix.checked"),
        /// Point lookups that a prefix filter answered: the table was not read.
        BloomFilterPrefixUseful("rocksdb.bloom.filter.prefix.useful"),
        /// Point lookups that a prefix filter let through and that found the key in the table.
        BloomFilterPrefixTruePositive("rocksdb.bloom.filter.prefix.true.positive"),
        /// Seeks of iterators for which a prefix filter avoided a table of the last level.
        LastLevelSeekFiltered("rocksdb.last.level.seek.filtered"),
        /// Seeks of iterators that a prefix filter let through to a table of the last level.
        LastLevelSeekFilterMatch("rocksdb.last.level.seek.filter.match"),
        /// Seeks of iterators for which a prefix filter avoided a table of another level.
        NonLastLevelSeekFiltered("rocksdb.non.last.level.seek.filtered"),
        /// Seeks of iterators that a prefix filter let through to a table of another level.
        NonLastLevelSeekFilterMatch("rocksdb.non.last.level.seek.filter.match"),
        /// Lookups that the memtables answered.
        MemtableHit("rocksdb.memtable.hit"),
        /// Lookups that continued in the tables.
        MemtableMiss("rocksdb.memtable.miss"),
        /// Lookups that a table of L0 answered.
        GetHitL0("rocksdb.l0.hit"),
        /// Lookups that a table of L1 answered.
        GetHitL1("rocksdb.l1.hit"),
        /// Lookups that a table of L2 or deeper answered.
        GetHitL2AndUp("rocksdb.l2andup.hit"),
        /// Entries that compactions dropped because the key has a newer one.
        CompactionKeyDropNewerEntry("rocksdb.compaction.key.drop.new"),
        /// Tombstones dropped because nothing older exists.
        CompactionKeyDropObsolete("rocksdb.compaction.key.drop.obsolete"),
        /// Entries dropped under a range tombstone.
        CompactionKeyDropRangeDel("rocksdb.compaction.key.drop.range_del"),
        /// Entries that a compaction filter dropped.
        CompactionKeyDropUser("rocksdb.compaction.key.drop.user"),
        /// Tombstones dropped above the bottommost level because no deeper file holds the key.
        CompactionOptimizedDelDropObsolete("rocksdb.compaction.optimized.del.drop.obsolete"),
        /// Records of write batches.
        NumberKeysWritten("rocksdb.number.keys.written"),
        /// Point lookups.
        NumberKeysRead("rocksdb.number.keys.read"),
        /// Bytes of write batches.
        BytesWritten("rocksdb.bytes.written"),
        /// Bytes of values that point lookups returned.
        BytesRead("rocksdb.bytes.read"),
        /// Seeks of iterators.
        NumberDbSeek("rocksdb.number.db.seek"),
        /// Steps of iterators to the next key.
        NumberDbNext("rocksdb.number.db.next"),
        /// Steps of iterators to the previous key.
        NumberDbPrev("rocksdb.number.db.prev"),
        /// Seeks of iterators that found a key.
        NumberDbSeekFound("rocksdb.number.db.seek.found"),
        /// Steps to the next key that found one.
        NumberDbNextFound("rocksdb.number.db.next.found"),
        /// Steps to the previous key that found one.
        NumberDbPrevFound("rocksdb.number.db.prev.found"),
        /// Bytes of keys and values that iterators returned.
        IterBytesRead("rocksdb.db.iter.bytes.read"),
        /// Entries that iterators skipped: older versions, tombstones, and entries that a snapshot does not see.
        NumberIterSkip("rocksdb.number.iter.skip"),
        /// Seeks that iterators made to skip many versions of one key.
        NumberOfReseeksInIteration("rocksdb.number.reseeks.iteration"),
        /// Iterators made.
        NoIteratorCreated("rocksdb.num.iterator.created"),
        /// Iterators dropped.
        NoIteratorDeleted("rocksdb.num.iterator.deleted"),
        /// Table files opened.
        NoFileOpens("rocksdb.no.file.opens"),
        /// Table files that could not be opened.
        NoFileErrors("rocksdb.no.file.errors"),
        /// Microseconds that writers waited or were delayed.
        StallMicros("rocksdb.stall.micros"),
        /// Calls of `multi_get` and its variants.
        NumberMultigetCalls("rocksdb.number.multiget.get"),
        /// Keys requested in them.
        NumberMultigetKeysRead("rocksdb.number.multiget.keys.read"),
        /// Bytes of values that they returned.
        NumberMultigetBytesRead("rocksdb.number.multiget.bytes.read"),
        /// Keys that they found.
        NumberMultigetKeysFound("rocksdb.number.multiget.keys.found"),
        /// Merges that the operator refused.
        NumberMergeFailures("rocksdb.number.merge.failures"),
        /// Calls of `get_updates_since`.
        GetUpdatesSinceCalls("rocksdb.getupdatessince.calls"),
        /// Syncs of WALs.
        WalFileSynced("rocksdb.wal.synced"),
        /// Bytes written to WALs.
        WalFileBytes("rocksdb.wal.bytes"),
        /// Writes whose own thread led the group.
        WriteDoneBySelf("rocksdb.write.self"),
        /// Writes that another thread performed for their thread.
        WriteDoneByOther("rocksdb.write.other"),
        /// Writes that went to the WAL.
        WriteWithWal("rocksdb.write.wal"),
        /// Bytes that compactions read.
        CompactReadBytes("rocksdb.compact.read.bytes"),
        /// Bytes that compactions wrote.
        CompactWriteBytes("rocksdb.compact.write.bytes"),
        /// Bytes that flushes wrote.
        FlushWriteBytes("rocksdb.flush.write.bytes"),
        /// Of the bytes read, those of compactions of marked files.
        CompactReadBytesMarked("rocksdb.compact.read.marked.bytes"),
        /// Of the bytes read, those of periodic compactions.
        CompactReadBytesPeriodic("rocksdb.compact.read.periodic.bytes"),
        /// Of the bytes read, those of compactions for a time to live.
        CompactReadBytesTtl("rocksdb.compact.read.ttl.bytes"),
        /// Of the bytes written, those of compactions of marked files.
        CompactWriteBytesMarked("rocksdb.compact.write.marked.bytes"),
        /// Of the bytes written, those of periodic compactions.
        CompactWriteBytesPeriodic("rocksdb.compact.write.periodic.bytes"),
        /// Of the bytes written, those of compactions for a time to live.
        CompactWriteBytesTtl("rocksdb.compact.write.ttl.bytes"),
        /// Blocks stored compressed.
        NumberBlockCompressed("rocksdb.number.block.compressed"),
        /// Blocks decompressed.
        NumberBlockDecompressed("rocksdb.number.block.decompressed"),
        /// Bytes of blocks stored compressed, before compression.
        BytesCompressedFrom("rocksdb.bytes.compressed.from"),
        /// Bytes of blocks stored compressed, after compression.
        BytesCompressedTo("rocksdb.bytes.compressed.to"),
        /// Bytes of blocks for which no compression was requested.
        BytesCompressionBypassed("rocksdb.bytes.compression_bypassed"),
        /// Bytes of blocks that compression did not make small enough.
        BytesCompressionRejected("rocksdb.bytes.compression.rejected"),
        /// Blocks for which no compression was requested.
        NumberBlockCompressionBypassed("rocksdb.number.block_compression_bypassed"),
        /// Blocks that compression did not make small enough.
        NumberBlockCompressionRejected("rocksdb.number.block_compression_rejected"),
        /// Bytes of blocks before decompression.
        BytesDecompressedFrom("rocksdb.bytes.decompressed.from"),
        /// Bytes of blocks after decompression.
        BytesDecompressedTo("rocksdb.bytes.decompressed.to"),
        /// Nanoseconds in merge operators.
        MergeOperationTotalTime("rocksdb.merge.operation.time.nanos"),
        /// CPU microseconds of compactions.
        CompactionCpuTotalTime("rocksdb.compaction.total.time.cpu_micros"),
        /// Intervals in which the rate limiter released all its bytes.
        NumberRateLimiterDrains("rocksdb.number.rate_limiter.drains"),
        /// Errors of background work.
        ErrorHandlerBgErrorCount("rocksdb.error.handler.bg.error.count"),
        /// Of them, errors of I/O.
        ErrorHandlerBgIoErrorCount("rocksdb.error.handler.bg.io.error.count"),
        /// Of them, errors that may resolve themselves.
        ErrorHandlerBgRetryableIoErrorCount("rocksdb.error.handler.bg.retryable.io.error.count"),
        /// Recoveries that started without a call of `resume`.
        ErrorHandlerAutoresumeCount("rocksdb.error.handler.autoresume.count"),
        /// Attempts of them.
        ErrorHandlerAutoresumeRetryTotalCount("rocksdb.error.handler.autoresume.retry.total.count"),
        /// Those that succeeded.
        ErrorHandlerAutoresumeSuccessCount("rocksdb.error.handler.autoresume.success.count"),
        /// Bytes of keys and values in memtables that were flushed.
        MemtablePayloadBytesAtFlush("rocksdb.memtable.payload.bytes.at.flush"),
        /// Of them, bytes that were not written because newer versions hid them.
        MemtableGarbageBytesAtFlush("rocksdb.memtable.garbage.bytes.at.flush"),
        /// Bytes that backups read.
        BackupReadBytes("rocksdb.backup.read.bytes"),
        /// Bytes that backups wrote.
        BackupWriteBytes("rocksdb.backup.write.bytes"),
        /// Block checksums verified.
        BlockChecksumComputeCount("rocksdb.block.checksum.compute.count"),
        /// Blocks whose checksum was wrong.
        BlockChecksumMismatchCount("rocksdb.block.checksum.mismatch.count"),
        /// Blocks read while opening a table that its first read did not contain.
        TableOpenPrefetchTailMiss("rocksdb.table.open.prefetch.tail.miss"),
        /// Blocks read while opening a table that its first read contained.
        TableOpenPrefetchTailHit("rocksdb.table.open.prefetch.tail.hit"),
        /// Bytes that iterators read ahead.
        PrefetchBytes("rocksdb.prefetch.bytes"),
        /// Of them, bytes that were requested later.
        PrefetchBytesUseful("rocksdb.prefetch.bytes.useful"),
        /// Block reads that readahead answered.
        PrefetchHits("rocksdb.prefetch.hits"),
    }
}

named! {
    /// What is measured (`rocksdb::statistics::Histogram`), in microseconds unless the name says otherwise.
    pub enum Histogram {
        /// A point lookup.
        DbGet("rocksdb.db.get.micros"),
        /// A write.
        DbWrite("rocksdb.db.write.micros"),
        /// A compaction.
        CompactionTime("rocksdb.compaction.times.micros"),
        /// CPU of a compaction.
        CompactionCpuTime("rocksdb.compaction.times.cpu_micros"),
        /// Splitting a compaction into parts.
        SubcompactionSetupTime("rocksdb.subcompaction.setup.times.micros"),
        /// Sync of a flushed table.
        TableSyncMicros("rocksdb.table.sync.micros"),
        /// Sync of a compacted table.
        CompactionOutfileSyncMicros("rocksdb.compaction.outfile.sync.micros"),
        /// Sync of a WAL.
        WalFileSyncMicros("rocksdb.wal.file.sync.micros"),
        /// Sync of the MANIFEST.
        ManifestFileSyncMicros("rocksdb.manifest.file.sync.micros"),
        /// Opening a table.
        TableOpenIoMicros("rocksdb.table.open.io.micros"),
        /// A call of `multi_get`.
        DbMultiget("rocksdb.db.multiget.micros"),
        /// Reading a block for a compaction.
        ReadBlockCompactionMicros("rocksdb.read.block.compaction.micros"),
        /// Reading a block for a lookup or an iterator.
        ReadBlockGetMicros("rocksdb.read.block.get.micros"),
        /// Input files of a compaction.
        NumFilesInSingleCompaction("rocksdb.numfiles.in.singlecompaction"),
        /// A seek of an iterator.
        DbSeek("rocksdb.db.seek.micros"),
        /// A wait or delay of a writer.
        WriteStall("rocksdb.db.write.stall"),
        /// A read of a table file.
        SstReadMicros("rocksdb.sst.read.micros"),
        /// A read of a table file for a compaction.
        FileReadCompactionMicros("rocksdb.file.read.compaction.micros"),
        /// A read of a table file for a point lookup.
        FileReadGetMicros("rocksdb.file.read.get.micros"),
        /// Reads of table files for many lookups together.
        FileReadMultigetMicros("rocksdb.file.read.multiget.micros"),
        /// A read of a table file for an iterator.
        FileReadDbIteratorMicros("rocksdb.file.read.db.iterator.micros"),
        /// A write of a table file.
        SstWriteMicros("rocksdb.sst.write.micros"),
        /// A write of a table file in a flush.
        FileWriteFlushMicros("rocksdb.file.write.flush.micros"),
        /// A write of a table file in a compaction.
        FileWriteCompactionMicros("rocksdb.file.write.compaction.micros"),
        /// A write of a table file while a database opens.
        FileWriteDbOpenMicros("rocksdb.file.write.db.open.micros"),
        /// Parts of a compaction.
        NumSubcompactionsScheduled("rocksdb.num.subcompactions.scheduled"),
        /// Bytes of a value that a lookup returned.
        BytesPerRead("rocksdb.bytes.per.read"),
        /// Bytes of a group of write batches.
        BytesPerWrite("rocksdb.bytes.per.write"),
        /// Bytes of the values that a `multi_get` returned.
        BytesPerMultiget("rocksdb.bytes.per.multiget"),
        /// Compressing a block.
        CompressionTimesNanos("rocksdb.compression.times.nanos"),
        /// Decompressing a block.
        DecompressionTimesNanos("rocksdb.decompression.times.nanos"),
        /// Operands that a lookup merged.
        ReadNumMergeOperands("rocksdb.read.num.merge_operands"),
        /// A flush.
        FlushTime("rocksdb.db.flush.micros"),
        /// Attempts of a recovery without a call of `resume`.
        ErrorHandlerAutoresumeRetryCount("rocksdb.error.handler.autoresume.retry.count"),
        /// Bytes of the first read while opening a table.
        TableOpenPrefetchTailReadBytes("rocksdb.table.open.prefetch.tail.read.bytes"),
    }
}
