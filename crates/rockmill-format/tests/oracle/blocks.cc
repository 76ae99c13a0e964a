// Wrote tests/data/blocks-rocksdb-11.bin with RocksDB 11.8.1's own BlockBuilder: the layouts that no released
// package of RocksDB writes yet. To write it again, in the source tree of RocksDB:
//
//   g++ -std=c++20 -O2 -DNDEBUG -ffunction-sections -Wl,--gc-sections -DROCKSDB_PLATFORM_POSIX
//     -DROCKSDB_LIB_IO_POSIX -DOS_LINUX -I. -Iinclude blocks.cc util/{coding,hash}.cc
//     table/block_based/{block_builder,data_block_footer,data_block_hash_index}.cc -o blocks
//   ./blocks > blocks-rocksdb-11.bin
//
// Each block: u32 length, its bytes. tests/blocks_rocksdb_11.rs has the same entries and order of blocks.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "table/block_based/block_builder.h"
#include "util/coding.h"

namespace rocksdb {
// Called only if timestamps are stripped; its source file needs most of RocksDB.
void StripTimestampFromInternalKey(std::string*, const Slice&, size_t) { abort(); }
}  // namespace rocksdb

using namespace rocksdb;

static void emit(Slice block) {
  std::string n;
  PutFixed32(&n, static_cast<uint32_t>(block.size()));
  fwrite(n.data(), 1, n.size(), stdout);
  fwrite(block.data(), 1, block.size(), stdout);
}

static std::string user_key(int i) {
  char b[32];
  snprintf(b, sizeof(b), "key%05d", i * 3);
  return b;
}

int main() {
  for (int separated = 0; separated < 2; separated++) {
    for (int restart : {1, 4, 16}) {
      for (int hashed = 0; hashed < 2; hashed++) {
        for (double uniform : {-1.0, 10.0}) {
          BlockBuilder b(restart, true, false,
                         hashed ? BlockBasedTableOptions::kDataBlockBinaryAndHash
                                : BlockBasedTableOptions::kDataBlockBinarySearch,
                         0.75, 0, true, false, separated, nullptr, uniform);
          for (int i = 0; i < 40; i++) {
            std::string key = user_key(i);
            PutFixed64(&key, (uint64_t{100} + i) << 8 | 1);
            b.Add(key, std::string(i % 20 == 7 ? 150 : i * 7 % 20, static_cast<char>('a' + i % 26)));
          }
          emit(b.Finish());
        }
      }
      BlockBuilder b(restart, true, true, BlockBasedTableOptions::kDataBlockBinarySearch, 0.75, 0, true, true,
                     separated, nullptr, -1.0);
      uint64_t offset = 0, previous = 0;
      for (int i = 0; i < 40; i++) {
        uint64_t size = 4000 + i * 37 % 500;
        std::string value, delta;
        PutVarint64Varint64(&value, offset, size);
        PutVarsignedint64(&delta, static_cast<int64_t>(size - previous));
        Slice d(delta);
        b.Add(user_key(i), value, &d, /*skip_delta_encoding=*/i == 0);
        offset += size + 5;
        previous = size;
      }
      emit(b.Finish());
    }
  }
  return 0;
}
