//! `rockmill downgrade`: makes a database readable for RocksDB.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use rockmill::{ColumnFamily, Db};
use rockmill_format::comparator::HASH_RANGE_NAME;
use serde_json::json;

use crate::args::WriteArgs;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::progress;
use crate::stats::Pieces;
use crate::store::{self, Manner, OpenToWrite};

/// Make a database readable by RocksDB
///
/// DF-compaction (the option compaction_downforce) and classic tiered compaction (compaction_classic) leave extra
/// sorted runs in levels, and some kinds of table share files with others. RocksDB refuses a database that has either.
/// Each extra run is merged into its level's base run, and each table of several files is rewritten as one file in its
/// place, in all column families. Then a MANIFEST without them is begun. Column families write block-based tables from
/// then on. Nothing else is rewritten. If it is interrupted, run it again: the database is whole at every moment.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rockmill downgrade my.db
  rockmill downgrade my.db --threads 4 --json
  rockmill downgrade my.db && ldb --db=my.db scan --max_keys=5")]
pub struct DowngradeArgs {
    /// Database directory
    pub db: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: WriteArgs,
}

/// `rockmill downgrade`
pub fn run(args: &DowngradeArgs, out: &mut Out) -> Result<()> {
    let stored = store::families(&args.db)?;
    if let Some(family) = stored.iter().find(|f| f.comparator == HASH_RANGE_NAME) {
        return Err(CliError::usage(format!(
            "column family {:?} is in the order of its keys' hashes ({HASH_RANGE_NAME}), which RocksDB does not know",
            family.name
        ))
        .hint("`rockmill scan DB --hex | rockmill load NEW - --format tsv --hex` writes it in the order of keys"));
    }
    let names: Vec<String> = stored.into_iter().map(|f| f.name).collect();
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family: None, fs: None };
    // Otherwise compactions would again make tables that RocksDB refuses, now or after the next open.
    let (db, _) = open.open_as(Manner { block_based: true, ..Manner::default() })?;
    let families: Vec<ColumnFamily> = names.iter().filter_map(|name| db.cf_handle(name)).collect();
    for cf in &families {
        // Otherwise jobs that leave extra runs would continue meanwhile.
        let now = db.get_options_cf(cf).cf;
        if now.compaction_downforce || now.compaction_classic {
            db.set_options_cf(cf, &[("compaction_downforce", "false"), ("compaction_classic", "false")])?;
        }
    }
    let before = Refused::of(&db, &families)?;
    if before.tables > 0 {
        // Automatic jobs could make more of them.
        db.pause_background_work();
    }
    let bytes = before.bytes();
    let started = Instant::now();
    let bar = progress::bytes("downgrade", Some(bytes), out.quiet);
    let counters = db.counters();
    let show = |bar: &ProgressBar| {
        let left = Refused::of(&db, &families).map_or(bytes, |left| left.bytes());
        bar.set_position(bytes.saturating_sub(left));
    };
    let rewrite = |cf: &ColumnFamily| db.merge_extra_runs_cf(cf).and_then(|()| db.make_tables_whole_cf(cf));
    progress::beside(&bar, show, || families.iter().try_for_each(rewrite))?;
    let (read, written) = {
        let now = db.counters();
        (now.compact_read_bytes - counters.compact_read_bytes, now.compact_write_bytes - counters.compact_write_bytes)
    };
    let left = Refused::of(&db, &families)?;
    if left.any() {
        return Err(CliError::usage(format!("{} appeared during the merge; run it again", left.words())));
    }
    drop(families);
    drop(db);
    if out.json {
        return out.json_object(&json!({
            "column_families": names.len(),
            "extra_runs": before.runs,
            "extra_run_bytes": before.run_bytes,
            "tables_with_pieces": before.tables,
            "live_piece_bytes": before.piece_bytes,
            "read_bytes": read,
            "written_bytes": written,
            "wall_seconds": output::round(started.elapsed().as_secs_f64(), 6),
        }));
    }
    if !before.any() {
        return out.note("no extra runs and no tables of several files: RocksDB opens the database");
    }
    out.note(format!(
        "rewrote {} of {} in {}: read {}, wrote {}; RocksDB opens the database",
        before.words(),
        output::size(bytes),
        output::seconds(started.elapsed().as_secs_f64()),
        output::size(read),
        output::size(written),
    ))
}

/// What of a database RocksDB refuses.
#[derive(Debug, Clone, Copy, Default)]
struct Refused {
    runs: u64,
    /// Bytes of the extra runs' tables.
    run_bytes: u64,
    /// Tables of several files.
    tables: u64,
    /// Bytes of their additional files that they refer to.
    piece_bytes: u64,
}

impl Refused {
    fn of(db: &Db, families: &[ColumnFamily]) -> Result<Self> {
        let mut all = Self::default();
        for cf in families {
            for level in db.level_stats(cf) {
                all.runs += level.extra_runs as u64;
                all.run_bytes += level.extra_run_bytes;
            }
            if let Some(pieces) = Pieces::of(db, cf)? {
                all.tables += pieces.tables();
                all.piece_bytes += pieces.live_bytes();
            }
        }
        Ok(all)
    }

    fn any(&self) -> bool {
        self.runs > 0 || self.tables > 0
    }

    fn bytes(&self) -> u64 {
        self.run_bytes + self.piece_bytes
    }

    fn words(&self) -> String {
        let runs = output::plural(self.runs, "extra run");
        let tables = format!("{} of several files", output::plural(self.tables, "table"));
        match (self.runs, self.tables) {
            (_, 0) => runs,
            (0, _) => tables,
            _ => format!("{runs} and {tables}"),
        }
    }
}
