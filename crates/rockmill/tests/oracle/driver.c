/* Drives any RocksDB that exports the C API from a script on standard input, without its headers: the library is the
 * program's argument and is loaded when it runs (the native library in each Java package of RocksDB is one, from 3.13
 * to 11). scripts/fixtures/make writes the fixtures with it, and the test `fixtures` lets old versions read
 * them after Rockmill changed them.
 *
* One command per line, words separated by spaces; keys and values in hex, "-" for an empty one. The first failing
 * command ends the program with "error LINE: why" and exit status 1; a function that the library lacks ends it with
 * "unsupported WHAT".
 *
 *   db OPTIONS             database options, as RocksDB's option strings ("a=1;b=2"); may be repeated
 *   cf NAME [OPTIONS]      a column family and its options; the default one is always there
 *   operator CF NAME       StringAppendOperator (with ",") or UInt64AddOperator
 *   order CF reverse|u64ts the reverse bytewise comparator, or the bytewise one with timestamps of 8 bytes
 *   prefix CF N            prefixes of N bytes
 *   paths db|CF PATH SIZE...  db_paths, or cf_paths of a column family
 *   plain CF               plain tables (with `prefix` and allow_mmap_reads)
 *   ttl SECONDS            databases opened from here on have a time to live; only the default family
 *   transactions           databases opened from here on are TransactionDB, only for txn_... and dump
 *   load PATH              loads the newest OPTIONS file and forgets it; an unknown option is an error
 *   open PATH | open_ro PATH
 *   put CF K V, del CF K, sdel CF K, merge CF K V, delrange CF BEGIN END
 *   entity CF K V          a record of wide columns with V as it is encoded
 *   begin, commit          the writes between them are one batch
 *   txn_begin NAME, txn_put K V, txn_prepare, txn_commit   a transaction on the default column family
 *   flush CF, compact CF, wait, set CF NAME=VALUE
 *   snap NAME, release NAME
 *   write_sst CF PATH OP...  a table by SstFileWriter; OP is p K V, m K V or d K
 *   ingest CF PATH
 *   create_cf NAME [OPTIONS], drop_cf NAME
 *   dump CF [SNAP]         "entry K V" for each
 *   get CF K               "value V" or "missing"
 *   prop CF NAME           "prop VALUE"
 *   checkpoint DIR
 *   backup DIR             a new backup of the open database in DIR
 *   backup_verify DIR ID, restore DIR PATH   the newest backup becomes the database at PATH
 *   say WORDS              "said WORDS"
 *   reset                  forgets all options and column families; no database is open
 *   close
 *   crash                  ends the process like kill -9, without closing anything
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef const char *str;
typedef unsigned char byte;

/* The functions of the C API in use: result, name without rocksdb_, arguments. */
#define API(X)                                                                                                       \
    X(void *, options_create, (void))                                                                                \
    X(void, options_set_create_if_missing, (void *, byte))                                                           \
    X(void, options_set_create_missing_column_families, (void *, byte))                                              \
    X(void, get_options_from_string, (const void *, str, void *, char **))                                           \
    X(void *, create_default_env, (void))                                                                            \
    X(void *, cache_create_lru, (size_t))                                                                            \
    X(void, load_latest_options,                                                                                     \
      (str, void *, _Bool, void *, void **, size_t *, char ***, void ***, char **))                                  \
    X(void, options_set_merge_operator, (void *, void *))                                                            \
    X(void, options_set_comparator, (void *, void *))                                                                \
    X(void *, dbpath_create, (str, uint64_t))                                                                        \
    X(void, options_set_db_paths, (void *, const void **, size_t))                                                   \
    X(void, options_set_cf_paths, (void *, const void **, size_t))                                                   \
    X(void, options_set_prefix_extractor, (void *, void *))                                                          \
    X(void, options_set_plain_table_factory,                                                                               \
      (void *, uint32_t, int, double, size_t, size_t, int, int, int))                                                \
    X(void *, slicetransform_create_fixed_prefix, (size_t))                                                          \
    X(void *, comparator_create,                                                                                     \
      (void *, void (*)(void *), int (*)(void *, str, size_t, str, size_t), str (*)(void *)))                        \
    X(void *, comparator_with_ts_create,                                                                             \
      (void *, void (*)(void *), int (*)(void *, str, size_t, str, size_t),                                          \
       int (*)(void *, str, size_t, str, size_t), int (*)(void *, str, size_t, byte, str, size_t, byte),             \
       str (*)(void *), size_t))                                                                                     \
    X(void *, mergeoperator_create,                                                                                  \
      (void *, void (*)(void *),                                                                                     \
       char *(*)(void *, str, size_t, str, size_t, const str *, const size_t *, int, byte *, size_t *),              \
       char *(*)(void *, str, size_t, const str *, const size_t *, int, byte *, size_t *),                           \
       void (*)(void *, str, size_t), str (*)(void *)))                                                              \
    X(void *, open_column_families, (void *, str, int, const str *, const void *const *, void **, char **))          \
    X(void *, open_for_read_only_column_families,                                                                    \
      (void *, str, int, const str *, const void *const *, void **, byte, char **))                                  \
    X(void *, open_with_ttl, (void *, str, int, char **))                                                            \
    X(void *, transactiondb_options_create, (void))                                                                  \
    X(void *, transactiondb_open, (void *, void *, str, char **))                                                    \
    X(void *, transactiondb_create_iterator, (void *, void *))                                                       \
    X(void *, transaction_options_create, (void))                                                                    \
    X(void *, transaction_begin, (void *, void *, void *, void *))                                                   \
    X(void, transaction_set_name, (void *, str, size_t, char **))                                                    \
    X(void, transaction_put, (void *, str, size_t, str, size_t, char **))                                            \
    X(void, transaction_prepare, (void *, char **))                                                                  \
    X(void, transaction_commit, (void *, char **))                                                                   \
    X(void *, create_column_family, (void *, void *, str, char **))                                                  \
    X(void, drop_column_family, (void *, void *, char **))                                                           \
    X(void, column_family_handle_destroy, (void *))                                                                  \
    X(void *, writeoptions_create, (void))                                                                           \
    X(void *, readoptions_create, (void))                                                                            \
    X(void, readoptions_destroy, (void *))                                                                           \
    X(void, readoptions_set_snapshot, (void *, const void *))                                                        \
    X(void, readoptions_set_total_order_seek, (void *, byte))                                                        \
    X(void *, writebatch_create, (void))                                                                             \
    X(void *, writebatch_create_from, (str, size_t))                                                                 \
    X(void, writebatch_destroy, (void *))                                                                            \
    X(void, writebatch_put_cf, (void *, void *, str, size_t, str, size_t))                                           \
    X(void, writebatch_put, (void *, str, size_t, str, size_t))                                                      \
    X(str, writebatch_data, (void *, size_t *))                                                                      \
    X(void, write, (void *, void *, void *, char **))                                                                \
    X(const void *, create_snapshot, (void *))                                                                       \
    X(void, release_snapshot, (void *, const void *))                                                                \
    X(void *, flushoptions_create, (void))                                                                           \
    X(void, flush, (void *, void *, char **))                                                                        \
    X(void, flush_cf, (void *, void *, void *, char **))                                                             \
    X(void, compact_range, (void *, str, size_t, str, size_t))                                                       \
    X(void, compact_range_cf, (void *, void *, str, size_t, str, size_t))                                            \
    X(void, set_options_cf, (void *, void *, int, const str *, const str *, char **))                                \
    X(void *, create_iterator, (void *, void *))                                                                     \
    X(void *, create_iterator_cf, (void *, void *, void *))                                                          \
    X(void, iter_seek_to_first, (void *))                                                                            \
    X(byte, iter_valid, (void *))                                                                                    \
    X(void, iter_next, (void *))                                                                                     \
    X(str, iter_key, (void *, size_t *))                                                                             \
    X(str, iter_value, (void *, size_t *))                                                                           \
    X(void, iter_get_error, (void *, char **))                                                                       \
    X(void, iter_destroy, (void *))                                                                                  \
    X(char *, get, (void *, void *, str, size_t, size_t *, char **))                                                 \
    X(char *, get_cf, (void *, void *, void *, str, size_t, size_t *, char **))                                      \
    X(char *, property_value, (void *, str))                                                                         \
    X(char *, property_value_cf, (void *, void *, str))                                                              \
    X(void *, envoptions_create, (void))                                                                             \
    X(void *, sstfilewriter_create, (void *, void *))                                                                \
    X(void, sstfilewriter_open, (void *, str, char **))                                                              \
    X(void, sstfilewriter_add, (void *, str, size_t, str, size_t, char **))                                          \
    X(void, sstfilewriter_put, (void *, str, size_t, str, size_t, char **))                                          \
    X(void, sstfilewriter_merge, (void *, str, size_t, str, size_t, char **))                                        \
    X(void, sstfilewriter_delete, (void *, str, size_t, char **))                                                    \
    X(void, sstfilewriter_finish, (void *, char **))                                                                 \
    X(void, sstfilewriter_destroy, (void *))                                                                         \
    X(void *, ingestexternalfileoptions_create, (void))                                                              \
    X(void, ingest_external_file_cf, (void *, void *, const str *, size_t, void *, char **))                         \
    X(void *, checkpoint_object_create, (void *, char **))                                                           \
    X(void, checkpoint_create, (void *, str, uint64_t, char **))                                                     \
    X(void *, backup_engine_open, (void *, str, char **))                                                            \
    X(void, backup_engine_create_new_backup, (void *, void *, char **))                                              \
    X(void, backup_engine_verify_backup, (void *, uint32_t, char **))                                                \
    X(void *, restore_options_create, (void))                                                                        \
    X(void, backup_engine_restore_db_from_latest_backup, (void *, str, str, void *, char **))                        \
    X(void, backup_engine_close, (void *))                                                                           \
    X(void, close, (void *))                                                                                         \
    X(void, transactiondb_close, (void *))

#define POINTER(result, name, args) static result(*p_##name) args;
API(POINTER)

static int line_number = 0;

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("error %d: ", line_number);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

static void lacks(const char *what) {
    printf("unsupported %s\n", what);
    fflush(stdout);
    _exit(1);
}

#define CALL(name) (p_##name ? p_##name : (lacks("rocksdb_" #name), p_##name))

static char *error = NULL;

static void check(void) {
    if (error) fail("%s", error);
}

static void *loaded(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail("cannot load %s: %s", path, dlerror());
#define FIND(result, name, args) *(void **)&p_##name = dlsym(library, "rocksdb_" #name);
    API(FIND)
    return library;
}

/* Words of the command. */

static char *rest_of_line;

static char *word_or_null(void) {
    char *w = strtok_r(NULL, " ", &rest_of_line);
    return w;
}

static char *word(void) {
    char *w = word_or_null();
    if (!w) fail("a word is missing");
    return w;
}

typedef struct {
    char *data;
    size_t len, room;
} bytes;

static void add(bytes *to, const void *data, size_t len) {
    if (to->len + len > to->room) {
        to->room = (to->len + len) * 2 + 64;
        to->data = realloc(to->data, to->room);
        if (!to->data) fail("no memory");
    }
    if (len) memcpy(to->data + to->len, data, len);
    to->len += len;
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    fail("not hex");
    return 0;
}

static bytes hex(void) {
    bytes out = {malloc(1), 0, 1};
    const char *text = word();
    if (strcmp(text, "-") == 0) return out;
    if (strlen(text) % 2) fail("not hex: %s", text);
    for (; *text; text += 2) {
        char c = (char)(digit(text[0]) << 4 | digit(text[1]));
        add(&out, &c, 1);
    }
    return out;
}

static void print_hex(const char *data, size_t len) {
    if (!len) printf("-");
    for (size_t i = 0; i < len; i++) printf("%02x", (byte)data[i]);
}

/* Objects that callers of RocksDB provide. */

static void nothing(void *state) { (void)state; }

static str name_of(void *state) { return state; }

static int bytewise(void *state, str a, size_t alen, str b, size_t blen) {
    (void)state;
    int c = memcmp(a, b, alen < blen ? alen : blen);
    return c ? c : alen < blen ? -1 : alen > blen;
}

static int reverse(void *state, str a, size_t alen, str b, size_t blen) { return -bytewise(state, a, alen, b, blen); }

static uint64_t fixed64(str p) {
    uint64_t n;
    memcpy(&n, p, 8);
    return n;
}

static int times(void *state, str a, size_t alen, str b, size_t blen) {
    (void)state, (void)alen, (void)blen;
    return fixed64(a) < fixed64(b) ? -1 : fixed64(a) > fixed64(b);
}

static int without_times(void *state, str a, size_t alen, byte atime, str b, size_t blen, byte btime) {
    return bytewise(state, a, alen - (atime ? 8 : 0), b, blen - (btime ? 8 : 0));
}

/* Newer first if the bytes before the timestamp are equal. */
static int with_times(void *state, str a, size_t alen, str b, size_t blen) {
    int c = without_times(state, a, alen, 1, b, blen, 1);
    return c ? c : -times(state, a + alen - 8, 8, b + blen - 8, 8);
}

static char *combine(void *state, str old, size_t old_len, int has_old, const str *operands, const size_t *lens, int n,
                     size_t *len) {
    if (strcmp(state, "UInt64AddOperator") == 0) {
        uint64_t sum = has_old && old_len == 8 ? fixed64(old) : 0;
        for (int i = 0; i < n; i++) sum += lens[i] == 8 ? fixed64(operands[i]) : 0;
        char *out = malloc(8);
        memcpy(out, &sum, *len = 8);
        return out;
    }
    bytes out = {malloc(1), 0, 1};
    if (has_old) add(&out, old, old_len);
    for (int i = 0; i < n; i++) {
        if (has_old || i) add(&out, ",", 1);
        add(&out, operands[i], lens[i]);
    }
    *len = out.len;
    return out.data;
}

static char *full_merge(void *state, str key, size_t key_len, str old, size_t old_len, const str *operands,
                        const size_t *lens, int n, byte *ok, size_t *len) {
    (void)key, (void)key_len;
    *ok = 1;
    return combine(state, old, old_len, old != NULL, operands, lens, n, len);
}

static char *partial_merge(void *state, str key, size_t key_len, const str *operands, const size_t *lens, int n,
                           byte *ok, size_t *len) {
    (void)key, (void)key_len;
    *ok = 1;
    return combine(state, NULL, 0, 0, operands, lens, n, len);
}

/* Column families, the database, snapshots. */

#define MAX 64

typedef struct {
    char *name;
    void *options, *handle;
} family;

static family families[MAX];
static int family_count = 0;
static void *db_options, *db, *txn_db, *txn, *write_options;
static int ttl = -1, with_transactions = 0;
static struct {
    char *name;
    const void *snapshot;
} snapshots[MAX];
static int snapshot_count = 0;

static void apply(void **options, const char *text) {
    if (!text || !*text) return;
    void *out = CALL(options_create)();
    CALL(get_options_from_string)(*options, text, out, &error);
    check();
    *options = out;
}

static family *find(const char *name) {
    for (int i = 0; i < family_count; i++) {
        if (strcmp(families[i].name, name) == 0) return &families[i];
    }
    return NULL;
}

static family *named(const char *name) {
    family *f = find(name);
    if (f) return f;
    if (family_count == MAX) fail("too many column families");
    f = &families[family_count++];
    f->name = strdup(name);
    f->options = CALL(options_create)();
    f->handle = NULL;
    return f;
}

static family *there(void) {
    const char *name = word();
    family *f = find(name);
    if (!f) fail("no column family %s", name);
    return f;
}

static void open_db(const char *path, int read_only) {
    str names[MAX];
    const void *options[MAX];
    void *handles[MAX] = {NULL};
    named("default");
    if (ttl >= 0 || with_transactions) {
        if (family_count > 1) fail("one column family only");
        void *both = families[0].options;
        CALL(options_set_create_if_missing)(both, 1);
        if (with_transactions) {
            txn_db = CALL(transactiondb_open)(both, CALL(transactiondb_options_create)(), path, &error);
        } else {
            db = CALL(open_with_ttl)(both, path, ttl, &error);
        }
        check();
        return;
    }
    for (int i = 0; i < family_count; i++) {
        names[i] = families[i].name;
        options[i] = families[i].options;
    }
    CALL(options_set_create_if_missing)(db_options, 1);
    CALL(options_set_create_missing_column_families)(db_options, 1);
    db = read_only
             ? CALL(open_for_read_only_column_families)(db_options, path, family_count, names, options, handles, 0, &error)
             : CALL(open_column_families)(db_options, path, family_count, names, options, handles, &error);
    check();
    for (int i = 0; i < family_count; i++) families[i].handle = handles[i];
}

static void close_db(void) {
    if (!db && !txn_db) fail("no database is open");
    for (int i = 0; i < snapshot_count; i++) CALL(release_snapshot)(db, snapshots[i].snapshot);
    snapshot_count = 0;
    for (int i = 0; i < family_count; i++) {
        if (families[i].handle) CALL(column_family_handle_destroy)(families[i].handle);
        families[i].handle = NULL;
    }
    if (txn_db) {
        CALL(transactiondb_close)(txn_db);
    } else {
        CALL(close)(db);
    }
    db = txn_db = NULL;
}

/* Writes. Batches are encoded here, so that every record can be written with every version of the C API. */

static bytes batch;
static int batching = 0;
static uint32_t batch_count = 0;

static void varint(bytes *to, uint64_t n) {
    for (; n >= 0x80; n >>= 7) {
        char c = (char)(n | 0x80);
        add(to, &c, 1);
    }
    char c = (char)n;
    add(to, &c, 1);
}

/* The number of a column family, which the library writes into a batch of one entry. */
static uint32_t number_of(family *f) {
    if (!f->handle) return 0;
    void *b = CALL(writebatch_create)();
    CALL(writebatch_put_cf)(b, f->handle, "", 0, "", 0);
    size_t len;
    str data = CALL(writebatch_data)(b, &len);
    uint32_t id = 0;
    /* 12 bytes of header, the type (1: without a number, 5: with one), the number. */
    if (len > 13 && data[12] == 5) {
        for (size_t i = 13, shift = 0; i < len; i++, shift += 7) {
            id |= (uint32_t)(data[i] & 0x7f) << shift;
            if (!(data[i] & 0x80)) break;
        }
    }
    CALL(writebatch_destroy)(b);
    return id;
}

static void send(void) {
    for (int i = 0; i < 4; i++) batch.data[8 + i] = (char)(batch_count >> (8 * i));
    if (!write_options) write_options = CALL(writeoptions_create)();
    void *b = CALL(writebatch_create_from)(batch.data, batch.len);
    CALL(write)(db, write_options, b, &error);
    check();
    CALL(writebatch_destroy)(b);
    batch.len = 0;
}

static void begin(void) {
    batch.len = 0;
    batch_count = 0;
    add(&batch, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
}

/* `plain` and `of_family` are the types of the record without and with a column family's number. */
static void record(int plain, int of_family, int has_value) {
    family *f = there();
    uint32_t id = number_of(f);
    if (!batching) begin();
    bytes key = hex();
    char type = (char)(id ? of_family : plain);
    add(&batch, &type, 1);
    if (id) varint(&batch, id);
    varint(&batch, key.len);
    add(&batch, key.data, key.len);
    if (has_value) {
        bytes value = hex();
        varint(&batch, value.len);
        add(&batch, value.data, value.len);
        free(value.data);
    }
    free(key.data);
    batch_count++;
    if (!batching) send();
}

static void *reads(void) {
    void *options = CALL(readoptions_create)();
    if (p_readoptions_set_total_order_seek) p_readoptions_set_total_order_seek(options, 1);
    const char *name = word_or_null();
    for (int i = 0; name && i < snapshot_count; i++) {
        if (strcmp(snapshots[i].name, name) == 0) {
            CALL(readoptions_set_snapshot)(options, snapshots[i].snapshot);
            name = NULL;
        }
    }
    if (name) fail("no snapshot %s", name);
    return options;
}

static void dump(void) {
    family *f = there();
    void *options = reads();
    void *it = txn_db      ? CALL(transactiondb_create_iterator)(txn_db, options)
               : f->handle ? CALL(create_iterator_cf)(db, options, f->handle)
                           : CALL(create_iterator)(db, options);
    for (CALL(iter_seek_to_first)(it); CALL(iter_valid)(it); CALL(iter_next)(it)) {
        size_t len;
        str data = CALL(iter_key)(it, &len);
        printf("entry ");
        print_hex(data, len);
        printf(" ");
        data = CALL(iter_value)(it, &len);
        print_hex(data, len);
        printf("\n");
    }
    CALL(iter_get_error)(it, &error);
    check();
    CALL(iter_destroy)(it);
    CALL(readoptions_destroy)(options);
}

static char *property(family *f, const char *name) {
    return f->handle ? CALL(property_value_cf)(db, f->handle, name) : CALL(property_value)(db, name);
}

/* Waits until no flush or compaction runs, and a while longer if one is due: some never start. */
static void wait_for_work(void) {
    static const char *const all[] = {"rocksdb.num-running-compactions", "rocksdb.num-running-flushes",
                                      "rocksdb.mem-table-flush-pending", "rocksdb.compaction-pending"};
    for (int quiet = 0, tries = 0; quiet < 40; tries++) {
        int busy = 0, due = 0;
        for (int i = 0; i < family_count; i++) {
            for (int j = 0; j < 4; j++) {
                char *value = property(&families[i], all[j]);
                int there = value && atoi(value) > 0;
                busy += there && j < 3;
                due += there;
                free(value);
            }
        }
        quiet = busy ? 0 : quiet + (due ? 1 : 8);
        if (tries > 3000) fail("background work does not end");
        usleep(10000);
    }
}

static void write_sst(void) {
    family *f = there();
    const char *path = word(), *op;
    void *w = CALL(sstfilewriter_create)(CALL(envoptions_create)(), f->options);
    CALL(sstfilewriter_open)(w, path, &error);
    check();
    while ((op = word_or_null())) {
        bytes key = hex();
        if (*op == 'd') {
            CALL(sstfilewriter_delete)(w, key.data, key.len, &error);
        } else {
            bytes value = hex();
            if (*op == 'm') {
                CALL(sstfilewriter_merge)(w, key.data, key.len, value.data, value.len, &error);
            } else if (p_sstfilewriter_put) {
                p_sstfilewriter_put(w, key.data, key.len, value.data, value.len, &error);
            } else {
                CALL(sstfilewriter_add)(w, key.data, key.len, value.data, value.len, &error);
            }
        }
        check();
    }
    CALL(sstfilewriter_finish)(w, &error);
    check();
    CALL(sstfilewriter_destroy)(w);
}

static void *backups(const char *dir) {
    void *engine = CALL(backup_engine_open)(db_options, dir, &error);
    check();
    return engine;
}

static int run(char *line) {
    char *command = strtok_r(line, " ", &rest_of_line);
    if (!command) return 1;
#define IS(name) (strcmp(command, name) == 0)
    if (IS("db")) {
        apply(&db_options, rest_of_line);
    } else if (IS("cf")) {
        family *f = named(word());
        apply(&f->options, rest_of_line);
    } else if (IS("create_cf")) {
        family *f = named(word());
        apply(&f->options, rest_of_line);
        f->handle = CALL(create_column_family)(db, f->options, f->name, &error);
    } else if (IS("drop_cf")) {
        family *f = there();
        CALL(drop_column_family)(db, f->handle, &error);
        check();
        CALL(column_family_handle_destroy)(f->handle);
        *f = families[--family_count];
    } else if (IS("operator")) {
        family *f = named(word());
        void *m = CALL(mergeoperator_create)(strdup(word()), nothing, full_merge, partial_merge, NULL, name_of);
        CALL(options_set_merge_operator)(f->options, m);
    } else if (IS("order")) {
        family *f = named(word());
        void *c = strcmp(word(), "reverse") == 0
                      ? CALL(comparator_create)("rocksdb.ReverseBytewiseComparator", nothing, reverse, name_of)
                      : CALL(comparator_with_ts_create)("leveldb.BytewiseComparator.u64ts", nothing, with_times, times,
                                                        without_times, name_of, 8);
        CALL(options_set_comparator)(f->options, c);
    } else if (IS("prefix")) {
        family *f = named(word());
        void *p = CALL(slicetransform_create_fixed_prefix)((size_t)atoi(word()));
        CALL(options_set_prefix_extractor)(f->options, p);
    } else if (IS("paths")) {
        const char *of = word(), *path;
        const void *paths[MAX];
        size_t count = 0;
        while (count < MAX && (path = word_or_null())) {
            paths[count++] = CALL(dbpath_create)(path, strtoull(word(), NULL, 10));
        }
        if (strcmp(of, "db") == 0) {
            CALL(options_set_db_paths)(db_options, paths, count);
        } else {
            CALL(options_set_cf_paths)(named(of)->options, paths, count);
        }
    } else if (IS("plain")) {
        /* Keys of any length, 10 bits of Bloom filter; the additional parameters of newer versions are zero. */
        CALL(options_set_plain_table_factory)(named(word())->options, 0, 10, 0.75, 16, 0, 0, 0, 0);
    } else if (IS("ttl")) {
        ttl = atoi(word());
    } else if (IS("transactions")) {
        with_transactions = 1;
    } else if (IS("load")) {
        void *loaded, **of_families;
        size_t count;
        char **names;
        const char *path = word();
        CALL(load_latest_options)
        (path, CALL(create_default_env)(), 0, CALL(cache_create_lru)(1 << 20), &loaded, &count, &names, &of_families,
         &error);
    } else if (IS("open")) {
        open_db(word(), 0);
    } else if (IS("open_ro")) {
        open_db(word(), 1);
    } else if (IS("put")) {
        record(1, 5, 1);
    } else if (IS("del")) {
        record(0, 4, 0);
    } else if (IS("sdel")) {
        record(7, 8, 0);
    } else if (IS("merge")) {
        record(2, 6, 1);
    } else if (IS("delrange")) {
        record(15, 14, 1);
    } else if (IS("entity")) {
        record(22, 23, 1);
    } else if (IS("begin")) {
        begin();
        batching = 1;
    } else if (IS("commit")) {
        batching = 0;
        send();
    } else if (IS("txn_begin")) {
        if (!write_options) write_options = CALL(writeoptions_create)();
        txn = CALL(transaction_begin)(txn_db, write_options, CALL(transaction_options_create)(), NULL);
        const char *name = word_or_null();
        if (name) CALL(transaction_set_name)(txn, name, strlen(name), &error);
    } else if (IS("txn_put")) {
        bytes key = hex(), value = hex();
        CALL(transaction_put)(txn, key.data, key.len, value.data, value.len, &error);
    } else if (IS("txn_prepare")) {
        CALL(transaction_prepare)(txn, &error);
    } else if (IS("txn_commit")) {
        CALL(transaction_commit)(txn, &error);
    } else if (IS("flush")) {
        family *f = there();
        void *options = CALL(flushoptions_create)();
        if (f->handle && p_flush_cf) {
            p_flush_cf(db, options, f->handle, &error);
        } else if (f->handle && strcmp(f->name, "default") != 0) {
            /* If there is no call for it: a manual compaction of an empty range flushes. */
            CALL(compact_range_cf)(db, f->handle, NULL, 0, NULL, 0);
        } else {
            CALL(flush)(db, options, &error);
        }
    } else if (IS("compact")) {
        family *f = there();
        if (f->handle) {
            CALL(compact_range_cf)(db, f->handle, NULL, 0, NULL, 0);
        } else {
            CALL(compact_range)(db, NULL, 0, NULL, 0);
        }
    } else if (IS("wait")) {
        wait_for_work();
    } else if (IS("set")) {
        family *f = there();
        char *option = rest_of_line, *value = strchr(option, '=');
        if (!value) fail("no value");
        *value++ = 0;
        str keys[] = {option}, values[] = {value};
        CALL(set_options_cf)(db, f->handle, 1, keys, values, &error);
    } else if (IS("snap")) {
        if (snapshot_count == MAX) fail("too many snapshots");
        snapshots[snapshot_count].name = strdup(word());
        snapshots[snapshot_count++].snapshot = CALL(create_snapshot)(db);
    } else if (IS("release")) {
        const char *name = word();
        for (int i = 0; i < snapshot_count; i++) {
            if (strcmp(snapshots[i].name, name) == 0) {
                CALL(release_snapshot)(db, snapshots[i].snapshot);
                snapshots[i] = snapshots[--snapshot_count];
                return 1;
            }
        }
        fail("no snapshot %s", name);
    } else if (IS("write_sst")) {
        write_sst();
    } else if (IS("ingest")) {
        family *f = there();
        str paths[] = {word()};
        CALL(ingest_external_file_cf)(db, f->handle, paths, 1, CALL(ingestexternalfileoptions_create)(), &error);
    } else if (IS("dump")) {
        dump();
    } else if (IS("get")) {
        family *f = there();
        bytes key = hex();
        size_t len = 0;
        void *options = reads();
        char *value = f->handle ? CALL(get_cf)(db, options, f->handle, key.data, key.len, &len, &error)
                                : CALL(get)(db, options, key.data, key.len, &len, &error);
        check();
        if (!value) {
            printf("missing\n");
        } else {
            printf("value ");
            print_hex(value, len);
            printf("\n");
        }
    } else if (IS("prop")) {
        family *f = there();
        char *value = property(f, word());
        if (!value) fail("no such property");
        printf("prop %s\n", value);
    } else if (IS("checkpoint")) {
        void *c = CALL(checkpoint_object_create)(db, &error);
        check();
        CALL(checkpoint_create)(c, word(), 0, &error);
    } else if (IS("backup")) {
        void *engine = backups(word());
        CALL(backup_engine_create_new_backup)(engine, db, &error);
        check();
        CALL(backup_engine_close)(engine);
    } else if (IS("backup_verify")) {
        void *engine = backups(word());
        CALL(backup_engine_verify_backup)(engine, (uint32_t)atoi(word()), &error);
        check();
        CALL(backup_engine_close)(engine);
    } else if (IS("restore")) {
        void *engine = backups(word());
        const char *path = word();
        CALL(backup_engine_restore_db_from_latest_backup)(engine, path, path, CALL(restore_options_create)(), &error);
        check();
        CALL(backup_engine_close)(engine);
    } else if (IS("say")) {
        printf("said %s\n", rest_of_line);
    } else if (IS("reset")) {
        if (db || txn_db) fail("a database is open");
        family_count = 0;
        db_options = CALL(options_create)();
        ttl = -1;
        with_transactions = 0;
    } else if (IS("close")) {
        close_db();
    } else if (IS("crash")) {
        fflush(stdout);
        _exit(0);
    } else {
        fail("unknown command %s", command);
    }
    check();
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: driver LIBRARY <SCRIPT\n");
        return 2;
    }
    loaded(argv[1]);
    db_options = CALL(options_create)();
    char *line = NULL;
    size_t room = 0;
    ssize_t len;
    while ((len = getline(&line, &room, stdin)) > 0) {
        if (line[len - 1] == '\n') line[len - 1] = 0;
        line_number++;
        run(line);
    }
    if (db || txn_db) close_db();
    fflush(stdout);
    /* Threads of the library may still run, and its destructors are not needed. */
    _exit(0);
}
