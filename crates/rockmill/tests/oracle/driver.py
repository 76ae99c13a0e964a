"""Drives the RocksDB inside the Python wheel rocksdict with the script language of driver.cc.

The wheel lacks some calls (merge, single delete, comparators). A script that needs one ends with exit status 3 and
"unsupported WHAT" on standard output, so that the test can say that it was skipped.
"""

import os
import sys
import time

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    ChecksumType,
    CompactOptions,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SliceTransform,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)


def unsupported(what):
    print("unsupported", what)
    sys.stdout.flush()
    os._exit(3)


def fail(line, why):
    print(f"error {line}: {why}")
    sys.stdout.flush()
    os._exit(1)


def from_hex(text):
    return b"" if text == "-" else bytes.fromhex(text)


def to_hex(data):
    return data.hex() if data else "-"


def pairs(text):
    """Splits RocksDB's option string "a=1;b={c=2;d=3}" at its outer semicolons."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text + ";"):
        depth += (c == "{") - (c == "}")
        if c == ";" and depth == 0:
            if text[start:i].strip():
                key, value = text[start:i].split("=", 1)
                value = value.strip()
                if value.startswith("{") and value.endswith("}"):
                    value = value[1:-1]
                out.append((key.strip(), value))
            start = i + 1
    return out


def boolean(text):
    return text == "true"


def one_of(choices):
    def parse(text):
        return choices[text]() if text in choices else unsupported(text)

    return parse


compression = one_of(
    {
        "kNoCompression": DBCompressionType.none,
        "kSnappyCompression": DBCompressionType.snappy,
        "kZlibCompression": DBCompressionType.zlib,
        "kLZ4Compression": DBCompressionType.lz4,
        "kLZ4HCCompression": DBCompressionType.lz4hc,
        "kZSTD": DBCompressionType.zstd,
        "kBZip2Compression": DBCompressionType.bz2,
    }
)
checksum = one_of(
    {
        "kNoChecksum": ChecksumType.no_checksum,
        "kCRC32c": ChecksumType.crc32c,
        "kxxHash": ChecksumType.xxhash,
        "kxxHash64": ChecksumType.xxhash64,
        "kXXH3": ChecksumType.xxh3,
    }
)
index_type = one_of(
    {
        "kBinarySearch": BlockBasedIndexType.binary_search,
        "kHashSearch": BlockBasedIndexType.hash_search,
        "kTwoLevelIndexSearch": BlockBasedIndexType.two_level_index_search,
    }
)
data_index = one_of(
    {
        "kDataBlockBinarySearch": DataBlockIndexType.binary_search,
        "kDataBlockBinaryAndHash": DataBlockIndexType.binary_and_hash,
    }
)
style = one_of(
    {"kCompactionStyleLevel": DBCompactionStyle.level, "kCompactionStyleUniversal": DBCompactionStyle.universal}
)

def extractor(text):
    kind, _, length = text.partition(":")
    return SliceTransform.create_fixed_prefix(int(length)) if kind == "fixed" else unsupported(text)


# What table options are called in the wheel, and how their values are read.
TABLE = {
    "format_version": ("set_format_version", int),
    "checksum": ("set_checksum_type", checksum),
    "index_type": ("set_index_type", index_type),
    "data_block_index_type": ("set_data_block_index_type", data_index),
    "data_block_hash_table_util_ratio": ("set_data_block_hash_ratio", float),
    "partition_filters": ("set_partition_filters", boolean),
    "metadata_block_size": ("set_metadata_block_size", int),
    "block_size": ("set_block_size", int),
    "block_restart_interval": ("set_block_restart_interval", int),
    "index_block_restart_interval": ("set_index_block_restart_interval", int),
}
PLAIN = {
    "compression": ("set_compression_type", compression),
    "compaction_style": ("set_compaction_style", style),
    "write_buffer_size": ("set_write_buffer_size", int),
    "target_file_size_base": ("set_target_file_size_base", int),
    "max_bytes_for_level_base": ("set_max_bytes_for_level_base", int),
    "max_bytes_for_level_multiplier": ("set_max_bytes_for_level_multiplier", float),
    "max_compaction_bytes": ("set_max_compaction_bytes", int),
    "level_compaction_dynamic_level_bytes": ("set_level_compaction_dynamic_level_bytes", boolean),
    "disable_auto_compactions": ("set_disable_auto_compactions", boolean),
    "level0_file_num_compaction_trigger": ("set_level_zero_file_num_compaction_trigger", int),
    "num_levels": ("set_num_levels", int),
    "prefix_extractor": ("set_prefix_extractor", extractor),
    "memtable_prefix_bloom_size_ratio": ("set_memtable_prefix_bloom_ratio", float),
    "optimize_filters_for_hits": ("set_optimize_filters_for_hits", boolean),
    "max_manifest_file_size": ("set_max_manifest_file_size", int),
    "recycle_log_file_num": ("set_recycle_log_file_num", int),
    "max_background_jobs": ("set_max_background_jobs", int),
    "max_subcompactions": ("set_max_subcompactions", int),
}


def apply(options, text):
    for key, value in pairs(text):
        if key == "block_based_table_factory":
            table = BlockBasedOptions()
            for name, setting in pairs(value):
                if name == "filter_policy" and setting.startswith("bloomfilter:"):
                    table.set_bloom_filter(float(setting.split(":")[1]), False)
                elif name in TABLE:
                    setter, parse = TABLE[name]
                    getattr(table, setter)(parse(setting))
                else:
                    unsupported(f"{name}={setting}")
            options.set_block_based_table_factory(table)
        elif key == "compression_opts":
            given = dict(pairs(value))
            level = int(given.pop("level", "32767"))
            options.set_compression_options(-14, level, 0, int(given.pop("max_dict_bytes", "0")))
            if "zstd_max_train_bytes" in given:
                options.set_zstd_max_train_bytes(int(given.pop("zstd_max_train_bytes")))
            if given:
                unsupported(f"compression_opts {given}")
        elif key in PLAIN:
            setter, parse = PLAIN[key]
            getattr(options, setter)(parse(value))
        else:
            unsupported(f"{key}={value}")


def new_options(texts):
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    for text in texts:
        apply(options, text)
    return options


class Driver:
    def __init__(self):
        self.db_texts, self.families, self.ttl = [], {}, None
        self.db, self.handles, self.snapshots = None, {}, {}
        self.write_options, self.batch, self.path = WriteOptions(), None, None

    def wait(self):
        idle = 0
        for _ in range(6000):
            numbers = [
                self.handles["default"].property_value(f"rocksdb.{name}")
                for name in ("num-running-compactions", "num-running-flushes", "compaction-pending")
            ]
            idle = idle + 1 if numbers[:2] == ["0", "0"] else 0
            if idle == 25 or numbers == ["0", "0", "0"]:
                break
            time.sleep(0.01)

    def open(self, path, read_only):
        self.path = path
        default = self.db_texts + self.families.get("default", [])
        others = {n: new_options(t) for n, t in self.families.items() if n != "default"}
        access = AccessType.read_only() if read_only else AccessType.read_write()
        if self.ttl is not None:
            access = AccessType.with_ttl(self.ttl)
        self.db = Rdict(path, new_options(default), column_families=others or None, access_type=access)
        self.handles = {"default": self.db}
        for name in others:
            self.handles[name] = self.db.get_column_family(name)

    def close(self):
        self.snapshots.clear()
        for name, handle in self.handles.items():
            if name != "default":
                handle.close()
        self.db.close()
        self.db, self.handles = None, {}

    def dump(self, cf, snapshot=None, backwards=False):
        if snapshot:
            # The wheel's iterator of a snapshot shows the newest versions all the same.
            unsupported("dump at a snapshot")
        read = ReadOptions()
        read.set_verify_checksums(True)
        # With a prefix extractor, iterators would otherwise be right within one prefix only.
        read.set_total_order_seek(True)
        it = self.handles[cf].iter(read)
        it.seek_to_last() if backwards else it.seek_to_first()
        while it.valid():
            print("entry", to_hex(it.key()), to_hex(it.value()))
            it.prev() if backwards else it.next()
        it.status()

    def prefix_scan(self, cf, key, backwards):
        read = ReadOptions()
        read.set_prefix_same_as_start(True)
        it = self.handles[cf].iter(read)
        it.seek_for_prev(key) if backwards else it.seek(key)
        while it.valid():
            print("entry", to_hex(it.key()), to_hex(it.value()))
            it.prev() if backwards else it.next()
        it.status()

    def run(self, line):
        words = line.split()
        if not words:
            return
        command, args = words[0], words[1:]
        if command == "db":
            self.db_texts.append(line[3:].strip())
        elif command == "cf":
            self.families.setdefault(args[0], []).append(" ".join(args[1:]))
        elif command == "load":
            Options.load_latest(args[0])  # fails for an option that it does not know
        elif command == "ttl":
            self.ttl = int(args[0])
        elif command in ("open", "open_ro"):
            self.open(args[0], command == "open_ro")
        elif command == "wopt":
            self.write_options = WriteOptions()
            self.write_options.sync = args[0] == "sync"
            self.write_options.disable_wal(args[0] == "nowal")
        elif command == "begin":
            self.batch = WriteBatch(raw_mode=True)
        elif command == "commit":
            self.db.write(self.batch, self.write_options)
            self.batch = None
        elif command in ("put", "del", "delrange"):
            data = [from_hex(a) for a in args[1:]]
            if self.batch is not None:
                handle = self.db.get_column_family_handle(args[0])
                target, extra = self.batch, (handle,)
            else:
                target, extra = self.handles[args[0]], ()
            call = {"put": "put", "del": "delete", "delrange": "delete_range"}[command]
            if self.batch is None:
                getattr(target, call)(*data, write_opt=self.write_options)
            else:
                getattr(target, call)(*data, *extra)
        elif command == "flush":
            self.handles[args[0]].flush()
        elif command == "flush_wal":
            self.db.flush_wal(True)
        elif command in ("compact", "compact_once"):
            options = CompactOptions()
            force = BottommostLevelCompaction.force
            if command == "compact_once":
                force = BottommostLevelCompaction.force_optimized
            options.set_bottommost_level_compaction(force())
            if len(args) > 1:
                options.set_change_level(True)
                options.set_target_level(int(args[1]))
            self.handles[args[0]].compact_range(None, None, options)
        elif command == "snap":
            for cf, handle in self.handles.items():
                self.snapshots[args[0], cf] = handle.snapshot()
        elif command == "release":
            for cf in self.handles:
                del self.snapshots[args[0], cf]
        elif command == "write_sst":
            writer = SstFileWriter(new_options(self.db_texts + self.families.get(args[0], [])))
            writer.open(args[1])
            ops = iter(args[2:])
            for op in ops:
                if op == "p":
                    key = from_hex(next(ops))
                    writer[key] = from_hex(next(ops))
                elif op == "d":
                    del writer[from_hex(next(ops))]
                else:
                    unsupported(f"{op} in write_sst")
            writer.finish()
        elif command == "ingest_files":
            options = IngestExternalFileOptions()
            options.set_move_files("move" in args[1])
            options.set_ingest_behind("behind" in args[1])
            options.set_snapshot_consistency("nosnapshots" not in args[1])
            self.handles[args[0]].ingest_external_file(args[2:], options)
        elif command in ("pscan", "prscan"):
            self.prefix_scan(args[0], from_hex(args[1]), command == "prscan")
        elif command in ("dump", "rdump"):
            self.dump(args[0], args[1] if len(args) > 1 else None, command == "rdump")
        elif command == "get":
            source = self.snapshots[args[2], args[0]] if len(args) > 2 else self.handles[args[0]]
            try:
                value = source[from_hex(args[1])]
            except KeyError:
                value = None
            print("missing" if value is None else f"value {to_hex(value)}")
        elif command == "set":
            self.handles[args[0]].set_options(dict(pairs(args[1])))
        elif command == "wait":
            self.wait()
        elif command == "levels":
            for level in range(64):
                files = self.handles[args[0]].property_value(f"rocksdb.num-files-at-level{level}")
                if files is None:
                    break
                if files != 0 and files != "0":
                    print("level", level, files)
        elif command == "prop":
            print("prop", self.handles[args[0]].property_value(args[1]))
        elif command == "version":
            print("version", "rocksdict")
        elif command == "close":
            self.close()
        elif command == "crash":
            sys.stdout.flush()
            os._exit(0)
        else:
            unsupported(command)


def main():
    driver = Driver()
    for number, line in enumerate(sys.stdin, 1):
        try:
            driver.run(line.rstrip("\n"))
        except Exception as e:  # pylint: disable=broad-except
            fail(number, f"{type(e).__name__}: {e}")
    if driver.db is not None:
        driver.close()


main()
