//! `rockmill downgrade`: a database becomes one that RocksDB opens.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use rockmill::{ColumnFamily, Db};
use serde_json::json;

use crate::args::WriteArgs;
use crate::error::{CliError, Result};
use crate::output::{self, Out};
use crate::progress;
use crate::store::{self, OpenToWrite};

/// Make a database one that RocksDB opens: merge away what RocksDB does not know
///
/// DF-compaction (the option compaction_downforce) leaves extra sorted runs in levels, and RocksDB refuses a database
/// that has them. Each is merged into its level's base run, in all column families, and a MANIFEST without them is
/// begun. Nothing else is rewritten. When interrupted, run it again: the database is whole at every moment.
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
    let names: Vec<String> = store::families(&args.db)?.into_iter().map(|f| f.name).collect();
    let open = OpenToWrite { path: &args.db, args: &args.store, create: false, family: None, fs: None };
    let (db, _) = open.open()?;
    let families: Vec<ColumnFamily> = names.iter().filter_map(|name| db.cf_handle(name)).collect();
    for cf in &families {
        // Jobs that leave extra runs would go on meanwhile.
        if db.get_options_cf(cf).cf.compaction_downforce {
            db.set_options_cf(cf, &[("compaction_downforce", "false")])?;
        }
    }
    let before = families.iter().map(|cf| extra_runs(&db, cf)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let (runs, bytes) = before;
    let started = Instant::now();
    let bar = progress::bytes("downgrade", Some(bytes), out.quiet);
    let counters = db.counters();
    let show = |bar: &ProgressBar| {
        let left: u64 = families.iter().map(|cf| extra_runs(&db, cf).1).sum();
        bar.set_position(bytes.saturating_sub(left));
    };
    progress::beside(&bar, show, || families.iter().try_for_each(|cf| db.merge_extra_runs_cf(cf)))?;
    let (read, written) = {
        let now = db.counters();
        (now.compact_read_bytes - counters.compact_read_bytes, now.compact_write_bytes - counters.compact_write_bytes)
    };
    let left: usize = families.iter().map(|cf| extra_runs(&db, cf).0).sum();
    if left > 0 {
        return Err(CliError::usage(format!("{left} extra runs came while others were merged; run it again")));
    }
    drop(families);
    drop(db);
    if out.json {
        return out.json_object(&json!({
            "column_families": names.len(),
            "extra_runs": runs,
            "extra_run_bytes": bytes,
            "read_bytes": read,
            "written_bytes": written,
            "wall_seconds": output::round(started.elapsed().as_secs_f64(), 6),
        }));
    }
    if runs == 0 {
        return out.note("no extra runs: RocksDB opens the database");
    }
    out.note(format!(
        "merged {} of {} in {}: read {}, wrote {}; RocksDB opens the database",
        output::plural(runs as u64, "extra run"),
        output::size(bytes),
        output::seconds(started.elapsed().as_secs_f64()),
        output::size(read),
        output::size(written),
    ))
}

/// Extra runs of a column family, and the bytes of their tables.
fn extra_runs(db: &Db, cf: &ColumnFamily) -> (usize, u64) {
    db.level_stats(cf).iter().map(|l| (l.extra_runs, l.extra_run_bytes)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}
