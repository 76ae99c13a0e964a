// Drives RocksDB from a script on standard input, so that a test can create a database with any options and see how
// RocksDB reads one that Rockmill wrote. One command per line, words separated by spaces; keys and values in hex, "-"
// for an empty one. The first failing command ends the program with "error LINE: why" and exit status 1.
//
//   db OPTIONS             database options, as RocksDB's option strings ("a=1;b=2"); may be repeated
//   cf NAME OPTIONS        a column family and its options
//   filter CF [flush]      a compaction filter controlled by the values (ByValue); with "flush", of a factory
//                          that filters flushes too
//   paths db|CF PATH SIZE...  db_paths, or cf_paths of a column family
//   ttl SECONDS            databases opened from here on are DBWithTTL
//   load PATH              loads all options from the newest OPTIONS file
//   options CF             "option NAME=VALUE" for each option of a family and its tables; also "options db"
//   set CF NAME=VALUE      SetOptions; "set db ..." is SetDBOptions
//   open PATH | open_ro PATH
//   wopt sync|nowal|default
//   put CF K V, del CF K, sdel CF K, merge CF K V, delrange CF BEGIN END
//   begin, commit          the writes between them are one batch
//   flush_all              every column family in one call
//   updates SEQ            "update SEQ COUNT" for each batch of GetUpdatesSince, then "wals N" for the WAL files
//   flush CF, flush_wal, compact CF [LEVEL], compact_once CF, wait
//   compact_files CF LEVEL FILES   the first FILES tables of L0 into LEVEL
//   snap NAME, release NAME
//   ingest CF K V ...      writes a table of these entries and ingests it
//   write_sst CF PATH OP... a table by SstFileWriter; OP is p K V, m K V, d K or r BEGIN END
//   ingest_files CF FLAGS PATH...  FLAGS: "-" or any of move, behind, nosnapshots, separated by commas
//   export CF DIR          "file NAME LEVEL SIZE SMALLEST_SEQ LARGEST_SEQ" for each
//   import NAME DIR FILE... each FILE as export printed it, without the word file
//   delete_files CF BEGIN END  files wholly in [BEGIN, END]
//   create_cf NAME OPTIONS, drop_cf NAME [keep]   with "keep" its handle remains
//   dump CF [SNAP]         "entry K V" for each
//   rdump CF [SNAP]        the same in reverse order
//   pscan CF K             "entry K V" for each key from K on with its prefix, by prefix_same_as_start
//   prscan CF K            the same from K backwards
//   by_length CF           orders keys by length, then as bytes: the comparator test.ByLength
//   get CF K [SNAP]        "value V" or "missing"
//   levels CF              "level N FILES" for each level that has files
//   prop CF NAME           "prop VALUE"
//   times CF               "prop OLDEST WRITTEN" for each table: times of its oldest data, and of its writing
//   text CF NAME           "prop LINE" for each line of the property
//   statistics             before open: collects statistics
//   stats                  "prop LINE" for each line of the statistics
//   histogram N ...        "prop" with the data of a histogram of these values
//   approximate CF BEGIN END MARGIN   "prop BYTES"
//   backup DIR [flush]     a new backup of the open database in DIR
//   backups DIR            "backup ID FILES" for each usable one
//   backup_verify DIR ID   with checksums
//   backup_delete DIR ID
//   restore DIR ID PATH    the backup becomes the database at PATH
//   repair PATH            RepairDB with the options and column families given so far
//   verify                 reads every block of every file and checks it
//   say WORDS              "said WORDS"
//   reset                  forgets all options and column families; no database is open
//   version                "version MAJOR.MINOR.PATCH"
//   try COMMAND ...        "status OK", or "status CODE" if the command fails; the script continues
//   walk CF FLAGS LOWER UPPER MOVE...   an iterator; FLAGS: "-" or any of same, total, auto, with commas; bounds
//                          in hex or "none"; MOVE is first, last, next, prev, seek:K or back:K; "at K" or "at end"
//   live CF                "option NAME=VALUE" of the open database
//   list_cf PATH, destroy PATH, checkpoint PATH
//   close
//   crash                  ends the process like kill -9, without closing anything
#include <rocksdb/compaction_filter.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/backup_engine.h>
#include <rocksdb/utilities/options_util.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/utilities/db_ttl.h>
#include <rocksdb/version.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace ROCKSDB_NAMESPACE;

namespace {

int line_number = 0;

// Runs a command that may fail, and reports its status.
bool trying = false;

struct Tried {
  std::string code;
};

[[noreturn]] void Fail(const std::string& why) {
  if (trying) throw Tried{"none"};
  std::cout << "error " << line_number << ": " << why << std::endl;
  std::cout.flush();
  _exit(1);
}

std::string CodeOf(const Status& s) {
  switch (s.code()) {
    case Status::kNotFound: return "NotFound";
    case Status::kCorruption: return "Corruption";
    case Status::kNotSupported: return "NotSupported";
    case Status::kInvalidArgument: return "InvalidArgument";
    case Status::kIOError: return "IOError";
    case Status::kBusy: return "Busy";
    case Status::kTryAgain: return "TryAgain";
    case Status::kColumnFamilyDropped: return "ColumnFamilyDropped";
    default: return s.ToString();
  }
}

void Check(const Status& s) {
  if (!s.ok() && trying) throw Tried{CodeOf(s)};
  if (!s.ok()) Fail(s.ToString());
}

std::string FromHex(const std::string& text) {
  if (text == "-") return "";
  if (text.empty() || text.size() % 2 != 0) Fail("bad hex: " + text);
  std::string out;
  out.reserve(text.size() / 2);
  auto digit = [&](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    Fail("bad hex: " + text);
  };
  for (size_t i = 0; i < text.size(); i += 2) {
    out.push_back(static_cast<char>(digit(text[i]) << 4 | digit(text[i + 1])));
  }
  return out;
}

std::string ToHex(const Slice& bytes) {
  if (bytes.empty()) return "-";
  static const char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (size_t i = 0; i < bytes.size(); i++) {
    unsigned char c = static_cast<unsigned char>(bytes[i]);
    out.push_back(kDigits[c >> 4]);
    out.push_back(kDigits[c & 15]);
  }
  return out;
}

// Decides by the first byte of values and operands: r removes it, c changes it to "C" and the rest, p purges it, s
// skips to the key in the rest, and anything else is kept.
class ByValue : public CompactionFilter {
 public:
  const char* Name() const override { return "ByValue"; }
  Decision FilterV2(int, const Slice&, ValueType, const Slice& value, std::string* changed,
                    std::string* skip_until) const override {
    if (value.empty()) return Decision::kKeep;
    std::string rest(value.data() + 1, value.size() - 1);
    switch (value[0]) {
      case 'r':
        return Decision::kRemove;
      case 'c':
        *changed = "C" + rest;
        return Decision::kChangeValue;
      case 'p':
        return Decision::kPurge;
      case 's':
        *skip_until = rest;
        return Decision::kRemoveAndSkipUntil;
      default:
        return Decision::kKeep;
    }
  }
};

class ByValueFactory : public CompactionFilterFactory {
 public:
  const char* Name() const override { return "ByValueFactory"; }
  bool ShouldFilterTableFileCreation(TableFileCreationReason) const override { return true; }
  std::unique_ptr<CompactionFilter> CreateCompactionFilter(const CompactionFilter::Context&) override {
    return std::make_unique<ByValue>();
  }
};

// Orders keys by length, then as bytes. To get a key between two of the same length, take the first one and set all
// bytes after the first difference to ff.
class ByLength : public Comparator {
 public:
  const char* Name() const override { return "test.ByLength"; }
  int Compare(const Slice& a, const Slice& b) const override {
    if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
    return a.compare(b);
  }
  void FindShortestSeparator(std::string* start, const Slice& limit) const override {
    size_t same = 0;
    while (same < start->size() && same < limit.size() && (*start)[same] == limit[same]) same++;
    if (start->size() == limit.size() && same < start->size()) {
      for (size_t i = same + 1; i < start->size(); i++) (*start)[i] = '\xff';
    }
  }
  void FindShortSuccessor(std::string*) const override {}
};

struct Driver {
  ByValue by_value;
  bool with_ttl = false;
  int ttl = 0;
  ConfigOptions config;
  DBOptions db_options;
  std::map<std::string, ColumnFamilyOptions> families;
  std::unique_ptr<DB> db;
  std::map<std::string, ColumnFamilyHandle*> handles;
  std::map<std::string, const Snapshot*> snapshots;
  WriteOptions write_options;
  std::unique_ptr<WriteBatch> batch;
  std::string path;
  int ingested = 0;

  Driver() {
    config.ignore_unknown_options = false;
    db_options.create_if_missing = true;
    db_options.create_missing_column_families = true;
  }

  DB& Open() {
    if (!db) Fail("no database is open");
    return *db;
  }

  ColumnFamilyHandle* Handle(const std::string& name) {
    auto found = handles.find(name);
    if (found == handles.end()) Fail("no column family " + name);
    return found->second;
  }

  void OpenDb(const std::string& where, bool read_only) {
    path = where;
    families.emplace("default", ColumnFamilyOptions());
    std::vector<ColumnFamilyDescriptor> descriptors;
    for (auto& [name, options] : families) descriptors.emplace_back(name, options);
    std::vector<ColumnFamilyHandle*> opened;
    if (with_ttl) {
      DBWithTTL* raw = nullptr;
      std::vector<int32_t> ttls(descriptors.size(), ttl);
      Check(DBWithTTL::Open(db_options, path, descriptors, &opened, &raw, ttls, read_only));
      db.reset(raw);
      for (auto* h : opened) handles[h->GetName()] = h;
      return;
    }
#if ROCKSDB_MAJOR >= 10
    Check(read_only ? DB::OpenForReadOnly(db_options, path, descriptors, &opened, &db)
                    : DB::Open(db_options, path, descriptors, &opened, &db));
#else
    DB* raw = nullptr;
    Check(read_only ? DB::OpenForReadOnly(db_options, path, descriptors, &opened, &raw)
                    : DB::Open(db_options, path, descriptors, &opened, &raw));
    db.reset(raw);
#endif
    for (auto* h : opened) handles[h->GetName()] = h;
  }

  void Close() {
    for (auto& [name, s] : snapshots) Open().ReleaseSnapshot(s);
    snapshots.clear();
    for (auto& [name, h] : handles) Check(Open().DestroyColumnFamilyHandle(h));
    handles.clear();
    Check(Open().Close());
    db.reset();
  }

  std::unique_ptr<BackupEngine> Backups(const std::string& dir) {
    BackupEngine* engine = nullptr;
    Check(BackupEngine::Open(Env::Default(), BackupEngineOptions(dir), &engine));
    return std::unique_ptr<BackupEngine>(engine);
  }

  void Repair(const std::string& where) {
    families.emplace("default", ColumnFamilyOptions());
    std::vector<ColumnFamilyDescriptor> descriptors;
    for (auto& [name, options] : families) descriptors.emplace_back(name, options);
    Check(RepairDB(where, db_options, descriptors, families["default"]));
  }

  ReadOptions Reads(std::istringstream& in) {
    ReadOptions options;
    options.verify_checksums = true;
    // With a prefix extractor, iterators would otherwise be correct only within one prefix.
    options.total_order_seek = true;
    std::string name;
    if (in >> name) {
      if (!snapshots.count(name)) Fail("no snapshot " + name);
      options.snapshot = snapshots[name];
    }
    return options;
  }

  void Dump(std::istringstream& in, bool backwards) {
    auto* cf = Handle(Word(in));
    std::unique_ptr<Iterator> it(Open().NewIterator(Reads(in), cf));
    for (backwards ? it->SeekToLast() : it->SeekToFirst(); it->Valid(); backwards ? it->Prev() : it->Next()) {
      std::cout << "entry " << ToHex(it->key()) << ' ' << ToHex(it->value()) << '\n';
    }
    Check(it->status());
  }

  std::string Word(std::istringstream& in) {
    std::string word;
    if (!(in >> word)) Fail("a word is missing");
    return word;
  }

  void Load(const std::string& where) {
    std::vector<ColumnFamilyDescriptor> descriptors;
    Check(LoadLatestOptions(config, where, &db_options, &descriptors));
    families.clear();
    for (auto& d : descriptors) families[d.name] = d.options;
  }

  void PrintOptions(const std::string& name) {
    ConfigOptions lines = config;
    lines.delimiter = "\noption ";
    std::string text, table;
    if (name == "db") {
      Check(GetStringFromDBOptions(lines, db_options, &text));
    } else {
      Check(GetStringFromColumnFamilyOptions(lines, families.at(name), &text));
      Check(families.at(name).table_factory->GetOptionString(lines, &table));
    }
    std::cout << "option " << text << table << '\n';
  }

  std::string Hex(std::istringstream& in) { return FromHex(Word(in)); }

  void Run(const std::string& line) {
    std::istringstream in(line);
    std::string command;
    if (!(in >> command)) return;
    auto rest = [&] {
      std::string text;
      std::getline(in >> std::ws, text);
      return text;
    };
    if (command == "db") {
      DBOptions base = db_options;
      Check(GetDBOptionsFromString(config, base, rest(), &db_options));
    } else if (command == "cf" || command == "create_cf") {
      std::string name = Word(in);
      ColumnFamilyOptions base = families[name];
      Check(GetColumnFamilyOptionsFromString(config, base, rest(), &families[name]));
      if (command == "create_cf") {
        ColumnFamilyHandle* made = nullptr;
        Check(Open().CreateColumnFamily(families[name], name, &made));
        handles[name] = made;
      }
    } else if (command == "drop_cf") {
      std::string name = Word(in);
      Check(Open().DropColumnFamily(Handle(name)));
      std::string keep;
      if (in >> keep) return;
      Check(Open().DestroyColumnFamilyHandle(Handle(name)));
      handles.erase(name);
      families.erase(name);
    } else if (command == "filter") {
      auto& options = families[Word(in)];
      std::string flush;
      if (in >> flush) {
        options.compaction_filter_factory = std::make_shared<ByValueFactory>();
      } else {
        options.compaction_filter = &by_value;
      }
    } else if (command == "paths") {
      std::string of = Word(in), path;
      auto& paths = of == "db" ? db_options.db_paths : families[of].cf_paths;
      paths.clear();
      while (in >> path) paths.emplace_back(path, std::stoull(Word(in)));
    } else if (command == "ttl") {
      with_ttl = true;
      ttl = std::stoi(Word(in));
    } else if (command == "load") {
      Load(Word(in));
    } else if (command == "options") {
      PrintOptions(Word(in));
    } else if (command == "set") {
      std::string name = Word(in), option = rest();
      auto at = option.find('=');
      std::unordered_map<std::string, std::string> change{{option.substr(0, at), option.substr(at + 1)}};
      Check(name == "db" ? Open().SetDBOptions(change) : Open().SetOptions(Handle(name), change));
    } else if (command == "open") {
      OpenDb(Word(in), false);
    } else if (command == "open_ro") {
      OpenDb(Word(in), true);
    } else if (command == "wopt") {
      std::string how = Word(in);
      write_options = WriteOptions();
      write_options.sync = how == "sync";
      write_options.disableWAL = how == "nowal";
    } else if (command == "begin") {
      batch = std::make_unique<WriteBatch>();
    } else if (command == "commit") {
      Check(Open().Write(write_options, batch.get()));
      batch.reset();
    } else if (command == "put" || command == "merge" || command == "delrange") {
      auto* cf = Handle(Word(in));
      std::string a = Hex(in), b = Hex(in);
      WriteBatch single;
      WriteBatch& to = batch ? *batch : single;
      Check(command == "put" ? to.Put(cf, a, b) : command == "merge" ? to.Merge(cf, a, b) : to.DeleteRange(cf, a, b));
      if (!batch) Check(Open().Write(write_options, &single));
    } else if (command == "del" || command == "sdel") {
      auto* cf = Handle(Word(in));
      std::string key = Hex(in);
      WriteBatch single;
      WriteBatch& to = batch ? *batch : single;
      Check(command == "del" ? to.Delete(cf, key) : to.SingleDelete(cf, key));
      if (!batch) Check(Open().Write(write_options, &single));
    } else if (command == "flush") {
      Check(Open().Flush(FlushOptions(), Handle(Word(in))));
    } else if (command == "flush_all") {
      std::vector<ColumnFamilyHandle*> all;
      for (auto& [name, h] : handles) all.push_back(h);
      Check(Open().Flush(FlushOptions(), all));
    } else if (command == "updates") {
      std::unique_ptr<TransactionLogIterator> it;
      Check(Open().GetUpdatesSince(std::stoull(Word(in)), &it));
      for (; it->Valid(); it->Next()) {
        BatchResult b = it->GetBatch();
        std::cout << "update " << b.sequence << ' ' << b.writeBatchPtr->Count() << '\n';
      }
      VectorLogPtr files;
      Check(Open().GetSortedWalFiles(files));
      std::cout << "wals " << files.size() << '\n';
    } else if (command == "flush_wal") {
      Check(Open().FlushWAL(true));
    } else if (command == "compact") {
      auto* cf = Handle(Word(in));
      CompactRangeOptions options;
      options.bottommost_level_compaction = BottommostLevelCompaction::kForce;
      int level = 0;
      if (in >> level) {
        options.change_level = true;
        options.target_level = level;
      }
      Check(Open().CompactRange(options, cf, nullptr, nullptr));
    } else if (command == "compact_once") {
      // No entry is filtered twice.
      CompactRangeOptions options;
      options.bottommost_level_compaction = BottommostLevelCompaction::kForceOptimized;
      Check(Open().CompactRange(options, Handle(Word(in)), nullptr, nullptr));
    } else if (command == "compact_files") {
      auto* cf = Handle(Word(in));
      int level = std::stoi(Word(in));
      size_t count = std::stoul(Word(in));
      ColumnFamilyMetaData meta;
      Open().GetColumnFamilyMetaData(cf, &meta);
      std::vector<std::string> names;
      // L0 lists its newest file first; the oldest ones move down.
      auto& files = meta.levels[0].files;
      for (auto f = files.rbegin(); f != files.rend() && names.size() < count; ++f) names.push_back(f->name);
      Check(Open().CompactFiles(CompactionOptions(), cf, names, level));
    } else if (command == "wait") {
#if ROCKSDB_MAJOR >= 8
      Check(Open().WaitForCompact(WaitForCompactOptions()));
#else
      for (int i = 0, idle = 0; i < 6000; i++) {
        std::string running, pending, flushes;
        Open().GetProperty("rocksdb.num-running-compactions", &running);
        Open().GetProperty("rocksdb.compaction-pending", &pending);
        Open().GetProperty("rocksdb.num-running-flushes", &flushes);
        if (running == "0" && pending == "0" && flushes == "0") break;
        // Universal compaction may have nothing to do although one is reported as pending.
        idle = running == "0" && flushes == "0" ? idle + 1 : 0;
        if (idle == 25) break;
        usleep(10000);
      }
#endif
    } else if (command == "text") {
      auto* cf = Handle(Word(in));
      std::string value;
      if (!Open().GetProperty(cf, Word(in), &value)) Fail("no such property");
      std::istringstream text(value);
      for (std::string one; std::getline(text, one);) std::cout << "prop " << one << '\n';
    } else if (command == "statistics") {
      db_options.statistics = CreateDBStatistics();
    } else if (command == "stats") {
      std::istringstream text(db_options.statistics->ToString());
      for (std::string one; std::getline(text, one);) std::cout << "prop " << one << '\n';
    } else if (command == "histogram") {
      auto statistics = CreateDBStatistics();
      for (uint64_t value; in >> value;) statistics->recordInHistogram(DB_GET, value);
      HistogramData d;
      statistics->histogramData(DB_GET, &d);
      char buf[400];
      snprintf(buf, sizeof(buf), "prop %.17g %.17g %.17g %.17g %.17g %.17g %llu %llu %.17g", d.median, d.percentile95,
               d.percentile99, d.average, d.standard_deviation, d.max, (unsigned long long)d.count,
               (unsigned long long)d.sum, d.min);
      std::cout << buf << '\n';
    } else if (command == "approximate") {
      auto* cf = Handle(Word(in));
      std::string begin = Hex(in), end = Hex(in);
      SizeApproximationOptions options;
      options.files_size_error_margin = std::stod(Word(in));
      Range range(begin, end);
      uint64_t size = 0;
      Check(Open().GetApproximateSizes(options, cf, &range, 1, &size));
      std::cout << "prop " << size << '\n';
    } else if (command == "snap") {
      snapshots[Word(in)] = Open().GetSnapshot();
    } else if (command == "release") {
      std::string name = Word(in);
      Open().ReleaseSnapshot(snapshots.at(name));
      snapshots.erase(name);
    } else if (command == "ingest") {
      std::string name = Word(in);
      auto* cf = Handle(name);
      std::string file = path + ".ingest" + std::to_string(ingested++) + ".sst";
      SstFileWriter writer(EnvOptions(), Options(db_options, families[name]), cf);
      Check(writer.Open(file));
      std::string word;
      while (in >> word) {
        std::string key = FromHex(word);
        Check(writer.Put(key, Hex(in)));
      }
      Check(writer.Finish());
      IngestExternalFileOptions options;
      options.move_files = true;
      Check(Open().IngestExternalFile(cf, {file}, options));
    } else if (command == "write_sst") {
      std::string name = Word(in);
      SstFileWriter writer(EnvOptions(), Options(db_options, families[name]));
      Check(writer.Open(Word(in)));
      std::string op;
      while (in >> op) {
        std::string key = Hex(in);
        if (op == "d") {
          Check(writer.Delete(key));
        } else {
          std::string value = Hex(in);
          Check(op == "p" ? writer.Put(key, value)
                : op == "m" ? writer.Merge(key, value)
                            : writer.DeleteRange(key, value));
        }
      }
      Check(writer.Finish());
    } else if (command == "ingest_files") {
      auto* cf = Handle(Word(in));
      std::string flags = Word(in), word;
      IngestExternalFileOptions options;
      options.move_files = flags.find("move") != std::string::npos;
      options.ingest_behind = flags.find("behind") != std::string::npos;
      options.snapshot_consistency = flags.find("nosnapshots") == std::string::npos;
      std::vector<std::string> files;
      while (in >> word) files.push_back(word);
      Check(Open().IngestExternalFile(cf, files, options));
    } else if (command == "export") {
      auto* cf = Handle(Word(in));
      Checkpoint* raw = nullptr;
      Check(Checkpoint::Create(&Open(), &raw));
      std::unique_ptr<Checkpoint> checkpoint(raw);
      ExportImportFilesMetaData* made = nullptr;
      Check(checkpoint->ExportColumnFamily(cf, Word(in), &made));
      std::unique_ptr<ExportImportFilesMetaData> meta(made);
      for (auto& f : meta->files) {
        std::cout << "file " << f.name << ' ' << f.level << ' ' << f.size << ' ' << f.smallest_seqno << ' '
                  << f.largest_seqno << '\n';
      }
    } else if (command == "import") {
      std::string name = Word(in), dir = Word(in), file;
      ExportImportFilesMetaData meta;
      meta.db_comparator_name = families[name].comparator->Name();
      while (in >> file) {
        LiveFileMetaData f;
        f.name = file;
        f.db_path = dir;
        f.level = std::stoi(Word(in));
        f.size = std::stoull(Word(in));
        f.smallest_seqno = std::stoull(Word(in));
        f.largest_seqno = std::stoull(Word(in));
        meta.files.push_back(f);
      }
      ImportColumnFamilyOptions options;
      Check(Open().CreateColumnFamilyWithImport(families[name], name, options, meta, &handles[name]));
    } else if (command == "delete_files") {
      auto* cf = Handle(Word(in));
      std::string begin = Hex(in), end = Hex(in);
      Slice from(begin), to(end);
      Check(DeleteFilesInRange(&Open(), cf, &from, &to));
    } else if (command == "pscan" || command == "prscan") {
      auto* cf = Handle(Word(in));
      std::string key = Hex(in);
      ReadOptions options;
      options.prefix_same_as_start = true;
      std::unique_ptr<Iterator> it(Open().NewIterator(options, cf));
      bool back = command == "prscan";
      for (back ? it->SeekForPrev(key) : it->Seek(key); it->Valid(); back ? it->Prev() : it->Next()) {
        std::cout << "entry " << ToHex(it->key()) << ' ' << ToHex(it->value()) << '\n';
      }
      Check(it->status());
    } else if (command == "by_length") {
      static const ByLength by_length;
      families[Word(in)].comparator = &by_length;
    } else if (command == "dump" || command == "rdump") {
      Dump(in, command == "rdump");
    } else if (command == "get") {
      auto* cf = Handle(Word(in));
      std::string key = Hex(in), value;
      Status s = Open().Get(Reads(in), cf, key, &value);
      if (s.IsNotFound()) {
        std::cout << "missing\n";
      } else {
        Check(s);
        std::cout << "value " << ToHex(value) << '\n';
      }
    } else if (command == "levels") {
      ColumnFamilyMetaData meta;
      Open().GetColumnFamilyMetaData(Handle(Word(in)), &meta);
      for (auto& level : meta.levels) {
        if (!level.files.empty()) std::cout << "level " << level.level << ' ' << level.files.size() << '\n';
      }
    } else if (command == "prop") {
      auto* cf = Handle(Word(in));
      std::string value;
      if (!Open().GetProperty(cf, Word(in), &value)) Fail("no such property");
      std::cout << "prop " << value << '\n';
    } else if (command == "backup") {
      auto engine = Backups(Word(in));
      std::string flush;
      in >> flush;
      Check(engine->CreateNewBackup(&Open(), flush == "flush"));
    } else if (command == "backups") {
      std::vector<BackupInfo> found;
      Backups(Word(in))->GetBackupInfo(&found);
      for (auto& b : found) std::cout << "backup " << b.backup_id << ' ' << b.number_files << '\n';
    } else if (command == "backup_verify") {
      auto engine = Backups(Word(in));
      Check(engine->VerifyBackup(std::stoul(Word(in)), true));
    } else if (command == "backup_delete") {
      auto engine = Backups(Word(in));
      Check(engine->DeleteBackup(std::stoul(Word(in))));
    } else if (command == "restore") {
      auto engine = Backups(Word(in));
      auto id = std::stoul(Word(in));
      std::string path = Word(in);
      Check(engine->RestoreDBFromBackup(id, path, path));
    } else if (command == "repair") {
      Repair(Word(in));
    } else if (command == "times") {
      ColumnFamilyMetaData meta;
      Open().GetColumnFamilyMetaData(Handle(Word(in)), &meta);
      for (auto& level : meta.levels) {
        for (auto& f : level.files) {
          std::cout << "prop " << f.oldest_ancester_time << ' ' << f.file_creation_time << '\n';
        }
      }
    } else if (command == "say") {
      std::cout << "said " << rest() << '\n';
    } else if (command == "reset") {
      if (db) Fail("a database is open");
      families.clear();
      db_options = DBOptions();
      db_options.create_if_missing = true;
      db_options.create_missing_column_families = true;
      with_ttl = false;
    } else if (command == "try") {
      trying = true;
      std::string code = "OK";
      try {
        Run(rest());
      } catch (const Tried& tried) {
        code = tried.code;
      }
      trying = false;
      std::cout << "status " << code << '\n';
    } else if (command == "walk") {
      auto* cf = Handle(Word(in));
      std::string flags = Word(in), lower = Word(in), upper = Word(in), move;
      ReadOptions options;
      options.prefix_same_as_start = flags.find("same") != std::string::npos;
      options.total_order_seek = flags.find("total") != std::string::npos;
      options.auto_prefix_mode = flags.find("auto") != std::string::npos;
      std::string from = lower == "none" ? "" : FromHex(lower), to = upper == "none" ? "" : FromHex(upper);
      Slice from_slice(from), to_slice(to);
      if (lower != "none") options.iterate_lower_bound = &from_slice;
      if (upper != "none") options.iterate_upper_bound = &to_slice;
      std::unique_ptr<Iterator> it(Open().NewIterator(options, cf));
      while (in >> move) {
        if (move == "first") it->SeekToFirst();
        if (move == "last") it->SeekToLast();
        if (move.rfind("seek:", 0) == 0) it->Seek(FromHex(move.substr(5)));
        if (move.rfind("back:", 0) == 0) it->SeekForPrev(FromHex(move.substr(5)));
        if (move == "next" && it->Valid()) it->Next();
        if (move == "prev" && it->Valid()) it->Prev();
        Check(it->status());
        std::cout << "at " << (it->Valid() ? ToHex(it->key()) : "end") << '\n';
      }
    } else if (command == "live") {
      ConfigOptions lines = config;
      lines.delimiter = "\noption ";
      std::string text, table;
      std::string name = Word(in);
      if (name == "db") {
        Check(GetStringFromDBOptions(lines, Open().GetDBOptions(), &text));
      } else {
        Options live = Open().GetOptions(Handle(name));
        Check(GetStringFromColumnFamilyOptions(lines, live, &text));
        Check(live.table_factory->GetOptionString(lines, &table));
      }
      std::cout << "option " << text << table << '\n';
    } else if (command == "list_cf") {
      std::vector<std::string> names;
      Check(DB::ListColumnFamilies(db_options, Word(in), &names));
    } else if (command == "destroy") {
      Check(DestroyDB(Word(in), Options(db_options, families["default"])));
    } else if (command == "checkpoint") {
      Checkpoint* raw = nullptr;
      Check(Checkpoint::Create(&Open(), &raw));
      std::unique_ptr<Checkpoint> checkpoint(raw);
      Check(checkpoint->CreateCheckpoint(Word(in)));
    } else if (command == "verify") {
      Check(Open().VerifyChecksum());
    } else if (command == "version") {
      std::cout << "version " << ROCKSDB_MAJOR << '.' << ROCKSDB_MINOR << '.' << ROCKSDB_PATCH << '\n';
    } else if (command == "close") {
      Close();
    } else if (command == "crash") {
      std::cout.flush();
      _exit(0);
    } else {
      Fail("unknown command " + command);
    }
  }
};

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  Driver driver;
  std::string line;
  while (std::getline(std::cin, line)) {
    line_number++;
    driver.Run(line);
  }
  if (driver.db) driver.Close();
  std::cout.flush();
  return 0;
}
