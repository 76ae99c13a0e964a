// The oracle of tests/rocksdb_tables.rs: RocksDB writes tables in many shapes and reads ours.
//
//   tables write DIR        one database per configuration, DIR/NAME, flushed to one table each
//   tables read FILE...     every entry of each table, "KEY VALUE" in hexadecimal, checksums verified
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

using namespace rocksdb;

static void check(const Status& s) {
  if (!s.ok()) {
    fprintf(stderr, "%s\n", s.ToString().c_str());
    exit(1);
  }
}

static const int kKeys = 3000;

// Must match `expected_entries` in the Rust test.
static std::string key(int i) {
  char b[32];
  snprintf(b, sizeof(b), "user%06d", i * 7);
  return b;
}

static std::string value(int i) {
  char b[32];
  snprintf(b, sizeof(b), "value-%d-", i % 50);
  std::string v;
  for (int n = 0; n < i % 12; n++) v += b;
  return v;
}

struct Config {
  std::string name;
  std::function<void(Options&, BlockBasedTableOptions&)> set;
};

static int write_all(const std::string& dir) {
  std::vector<Config> configs;
  auto add = [&](std::string name, std::function<void(Options&, BlockBasedTableOptions&)> f) {
    configs.push_back({name, f});
  };
  for (int v = 2; v <= 5; v++) {
    add("version" + std::to_string(v), [v](Options&, BlockBasedTableOptions& t) { t.format_version = v; });
  }
  for (auto c : {kSnappyCompression, kZlibCompression, kLZ4Compression, kLZ4HCCompression, kZSTD, kBZip2Compression}) {
    add("compression" + std::to_string(c), [c](Options& o, BlockBasedTableOptions&) { o.compression = c; });
  }
  for (auto c : {kZlibCompression, kLZ4Compression, kZSTD}) {
    add("dictionary" + std::to_string(c), [c](Options& o, BlockBasedTableOptions&) {
      o.compression = c;
      o.compression_opts.max_dict_bytes = 4096;
      if (c == kZSTD) o.compression_opts.zstd_max_train_bytes = 65536;
    });
  }
  for (auto c : {kNoChecksum, kCRC32c, kxxHash, kxxHash64, kXXH3}) {
    add("checksum" + std::to_string(c), [c](Options&, BlockBasedTableOptions& t) { t.checksum = c; });
  }
  for (int r : {1, 3, 16, 100}) {
    add("restart" + std::to_string(r), [r](Options&, BlockBasedTableOptions& t) {
      t.block_restart_interval = r;
      t.index_block_restart_interval = r;
    });
  }
  add("nodelta", [](Options&, BlockBasedTableOptions& t) { t.use_delta_encoding = false; });
  add("hashindex", [](Options&, BlockBasedTableOptions& t) {
    t.data_block_index_type = BlockBasedTableOptions::kDataBlockBinaryAndHash;
  });
  for (int v : {3, 5}) {
    for (int r : {1, 4}) {
      add("firstkey" + std::to_string(v) + "r" + std::to_string(r), [=](Options&, BlockBasedTableOptions& t) {
        t.format_version = v;
        t.index_type = BlockBasedTableOptions::kBinarySearchWithFirstKey;
        t.index_block_restart_interval = r;
      });
    }
  }
  add("partitioned", [](Options&, BlockBasedTableOptions& t) {
    t.index_type = BlockBasedTableOptions::kTwoLevelIndexSearch;
    t.partition_filters = true;
    t.metadata_block_size = 512;
    t.filter_policy.reset(NewBloomFilterPolicy(10));
  });
  for (double bits : {1.0, 3.7, 5.0, 8.125, 10.0, 15.5, 20.0, 33.0, 100.0}) {
    char name[32];
    snprintf(name, sizeof(name), "bloom%.3f", bits);
    add(name, [bits](Options&, BlockBasedTableOptions& t) { t.filter_policy.reset(NewBloomFilterPolicy(bits)); });
  }
  for (double bits : {3.0, 10.0, 20.0, 50.0}) {
    char name[32];
    snprintf(name, sizeof(name), "ribbon%.3f", bits);
    add(name, [bits](Options&, BlockBasedTableOptions& t) { t.filter_policy.reset(NewRibbonFilterPolicy(bits, -2)); });
  }
  for (int bits : {5, 10, 30}) {
    add("legacybloom" + std::to_string(bits), [bits](Options&, BlockBasedTableOptions& t) {
      t.format_version = 4;
      t.filter_policy.reset(NewBloomFilterPolicy(bits));
    });
  }

  for (auto& c : configs) {
    Options o;
    BlockBasedTableOptions t;
    o.create_if_missing = true;
    o.compression = kNoCompression;
    o.disable_auto_compactions = true;
    t.block_size = 1000;
    t.block_align = false;
    c.set(o, t);
    o.table_factory.reset(NewBlockBasedTableFactory(t));
    DB* db = nullptr;
    check(DB::Open(o, dir + "/" + c.name, &db));
    for (int i = 0; i < kKeys; i++) check(db->Put(WriteOptions(), key(i), value(i)));
    const Snapshot* snapshot = db->GetSnapshot();
    for (int i = 0; i < kKeys; i += 10) check(db->Delete(WriteOptions(), key(i)));
    check(db->DeleteRange(WriteOptions(), db->DefaultColumnFamily(), key(100), key(200)));
    check(db->Flush(FlushOptions()));
    db->ReleaseSnapshot(snapshot);
    check(db->Close());
    delete db;
    printf("%s\n", c.name.c_str());
  }
  return 0;
}

static void hex(const Slice& s) {
  for (size_t i = 0; i < s.size(); i++) printf("%02x", static_cast<unsigned char>(s[i]));
}

static int read_all(int n, char** files) {
  for (int i = 0; i < n; i++) {
    SstFileReader reader((Options()));
    check(reader.Open(files[i]));
    check(reader.VerifyChecksum(ReadOptions()));
    ReadOptions ro;
    Iterator* it = reader.NewIterator(ro);
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      hex(it->key());
      printf(" ");
      hex(it->value());
      printf("\n");
      // A point lookup uses the filter and the index.
      Iterator* one = reader.NewIterator(ro);
      one->Seek(it->key());
      if (!one->Valid() || one->key() != it->key()) {
        fprintf(stderr, "%s: seek misses a key\n", files[i]);
        exit(1);
      }
      delete one;
    }
    check(it->status());
    delete it;
    printf("end %llu entries by properties\n", (unsigned long long)reader.GetTableProperties()->num_entries);
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "write") return write_all(argv[2]);
  if (argc >= 3 && std::string(argv[1]) == "read") return read_all(argc - 2, argv + 2);
  fprintf(stderr, "usage: tables write DIR | tables read FILE...\n");
  return 2;
}
