// Writes one database for each of many table options with the system's RocksDB, for the tests in oracle.rs.
// Usage: write_tables DIRECTORY. Prints one line "name format_version" for each database.
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/options.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/table.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

using namespace rocksdb;

static void Check(const Status& s) {
  if (!s.ok()) {
    fprintf(stderr, "%s\n", s.ToString().c_str());
    exit(1);
  }
}

// Never called: nothing here reads or compacts merges away.
class Concat : public AssociativeMergeOperator {
 public:
  bool Merge(const Slice&, const Slice* old, const Slice& value, std::string* result, Logger*) const override {
    *result = (old ? old->ToString() : "") + value.ToString();
    return true;
  }
  const char* Name() const override { return "Concat"; }
};

using Set = std::function<void(Options&, BlockBasedTableOptions&)>;

static void Write(const std::string& dir, const char* name, Set set) {
  Options options;
  options.create_if_missing = true;
  options.compression = kNoCompression;
  options.merge_operator = std::make_shared<Concat>();
  options.disable_auto_compactions = true;
  options.enforce_single_del_contracts = false;
  BlockBasedTableOptions table;
  set(options, table);
  options.table_factory.reset(NewBlockBasedTableFactory(table));
  DB* db;
  Check(DB::Open(options, dir + "/" + name, &db));
  std::mt19937 rng(42);
  const bool ranges = std::string(name) != "reverse";
  // Without keys that span blocks, the index has user keys.
  const bool versions = std::string(name).compare(0, 6, "unique") != 0;
  auto key = [&] {
    char buffer[32];
    snprintf(buffer, sizeof buffer, "key%06u", unsigned(rng() % 2000));
    return std::string(buffer) + std::string(rng() % 3, 'x');
  };
  auto value = [&] { return std::string(rng() % 120, 'a' + rng() % 26) + std::to_string(rng()); };
  for (int file = 0; file < 2; file++) {
    for (int i = 0; i < 3000; i++) {
      switch (rng() % 12) {
        case 0:
          Check(db->Delete(WriteOptions(), key()));
          break;
        case 1:
          Check(db->SingleDelete(WriteOptions(), key()));
          break;
        case 2:
          Check(db->Merge(WriteOptions(), key(), value()));
          break;
        case 3: {
          std::string begin = key(), end = key();
          if (i % 50 == 0 && begin < end && ranges) {
            Check(db->DeleteRange(WriteOptions(), db->DefaultColumnFamily(), begin, end));
          }
          break;
        }
        default:
          Check(db->Put(WriteOptions(), key(), value()));
      }
      // Many versions of one key, so that it spans blocks.
      if (i % 1000 == 0 && versions) {
        for (int n = 0; n < 200; n++) {
          db->GetSnapshot();
          Check(db->Put(WriteOptions(), "key000777", value()));
        }
      }
      if (i % 100 == 0 && versions) db->GetSnapshot();
    }
    Check(db->Flush(FlushOptions()));
  }
  printf("%s %u\n", name, table.format_version);
  fflush(stdout);
}

int main(int, char** argv) {
  const std::string dir = argv[1];
  using T = BlockBasedTableOptions;
  auto write = [&](const char* name, Set set) {
    // This is a separate process: it ends without releasing its snapshots.
    pid_t child = fork();
    if (child == 0) {
      Write(dir, name, set);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) exit(1);
  };
  write("plain", [](Options&, T&) {});
  write("bloom", [](Options&, T& t) { t.filter_policy.reset(NewBloomFilterPolicy(10)); });
  write("ribbon", [](Options&, T& t) { t.filter_policy.reset(NewRibbonFilterPolicy(10)); });
  write("snappy", [](Options& o, T&) { o.compression = kSnappyCompression; });
  write("lz4", [](Options& o, T&) { o.compression = kLZ4Compression; });
  write("lz4hc", [](Options& o, T&) { o.compression = kLZ4HCCompression; });
  write("zlib", [](Options& o, T&) { o.compression = kZlibCompression; });
  write("zstd", [](Options& o, T&) { o.compression = kZSTD; });
  write("zstd_dictionary", [](Options& o, T&) {
    o.compression = kZSTD;
    o.compression_opts.max_dict_bytes = 4096;
    o.compression_opts.zstd_max_train_bytes = 65536;
  });
  write("two_level", [](Options&, T& t) {
    t.index_type = T::kTwoLevelIndexSearch;
    t.metadata_block_size = 200;
  });
  write("two_level_filters", [](Options& o, T& t) {
    o.compression = kLZ4Compression;
    t.index_type = T::kTwoLevelIndexSearch;
    t.metadata_block_size = 200;
    t.partition_filters = true;
    t.filter_policy.reset(NewBloomFilterPolicy(10));
  });
  write("two_level_filters_3", [](Options&, T& t) {
    t.format_version = 3;
    t.index_type = T::kTwoLevelIndexSearch;
    t.partition_filters = true;
    t.filter_policy.reset(NewBloomFilterPolicy(10));
  });
  write("hash_index", [](Options&, T& t) {
    t.data_block_index_type = T::kDataBlockBinaryAndHash;
    t.data_block_hash_table_util_ratio = 0.75;
  });
  write("hash_search", [](Options& o, T& t) {
    t.index_type = T::kHashSearch;
    o.prefix_extractor.reset(NewFixedPrefixTransform(5));
  });
  write("first_key", [](Options&, T& t) {
    t.index_type = T::kBinarySearchWithFirstKey;
    t.index_block_restart_interval = 4;
  });
  write("prefix_filter", [](Options& o, T& t) {
    t.filter_policy.reset(NewBloomFilterPolicy(10));
    t.whole_key_filtering = false;
    o.prefix_extractor.reset(NewFixedPrefixTransform(5));
  });
  write("both_filters", [](Options& o, T& t) {
    t.filter_policy.reset(NewBloomFilterPolicy(10));
    o.prefix_extractor.reset(NewFixedPrefixTransform(5));
  });
  write("capped_prefix", [](Options& o, T& t) {
    t.filter_policy.reset(NewBloomFilterPolicy(10));
    o.prefix_extractor.reset(NewCappedPrefixTransform(9));
  });
  auto partitioned = [](T& t) {
    t.index_type = T::kTwoLevelIndexSearch;
    t.metadata_block_size = 200;
    t.partition_filters = true;
    t.filter_policy.reset(NewBloomFilterPolicy(10));
  };
  write("unique_partitions", [&](Options&, T& t) { partitioned(t); });
  write("partition_prefixes", [&](Options& o, T& t) {
    partitioned(t);
    o.prefix_extractor.reset(NewFixedPrefixTransform(8));
  });
  write("unique_partition_prefixes", [&](Options& o, T& t) {
    partitioned(t);
    t.block_size = 300;
    t.whole_key_filtering = false;
    o.prefix_extractor.reset(NewFixedPrefixTransform(8));
  });
  write("crc32c", [](Options&, T& t) { t.checksum = kCRC32c; });
  write("xxhash", [](Options&, T& t) { t.checksum = kxxHash; });
  write("xxhash64", [](Options&, T& t) { t.checksum = kxxHash64; });
  write("no_checksum", [](Options&, T& t) { t.checksum = kNoChecksum; });
  write("version_2", [](Options& o, T& t) {
    t.format_version = 2;
    o.compression = kSnappyCompression;
    t.filter_policy.reset(NewBloomFilterPolicy(10));
  });
  write("version_3", [](Options&, T& t) { t.format_version = 3; });
  write("version_4", [](Options&, T& t) {
    t.format_version = 4;
    t.index_block_restart_interval = 8;
    t.filter_policy.reset(NewBloomFilterPolicy(7));
  });
  write("small_blocks", [](Options&, T& t) {
    t.block_size = 100;
    t.block_restart_interval = 2;
    t.index_block_restart_interval = 7;
    t.filter_policy.reset(NewBloomFilterPolicy(10));
  });
  write("aligned", [](Options&, T& t) { t.block_align = true; });
  write("no_shortening", [](Options&, T& t) { t.index_shortening = T::IndexShorteningMode::kNoShortening; });
  write("no_delta", [](Options&, T& t) { t.use_delta_encoding = false; });
  write("unique", [](Options&, T&) {});
  write("unique_two_level", [](Options&, T& t) {
    t.index_type = T::kTwoLevelIndexSearch;
    t.metadata_block_size = 200;
    t.filter_policy.reset(NewBloomFilterPolicy(10));
  });
  write("unique_small_blocks", [](Options&, T& t) {
    t.block_size = 100;
    t.block_restart_interval = 2;
    t.index_block_restart_interval = 7;
  });
  write("reverse", [](Options& o, T&) { o.comparator = ReverseBytewiseComparator(); });
}
