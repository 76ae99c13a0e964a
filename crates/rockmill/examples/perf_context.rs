//! The cost of one thread's reads.

use rockmill::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rockmill::{Db, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let dir = scratch.path().join("db");
    let db = Db::open_default(&dir)?;
    for i in 0..10_000 {
        db.put(format!("key{i:05}"), "value")?;
    }
    db.flush()?;

    set_perf_stats(PerfStatsLevel::EnableTime);
    let mut context = PerfContext::default();
    context.reset();
    db.get("key05000")?;
    assert_eq!(context.metric(PerfMetric::BlockReadCount), 1);
    println!("first read:  {}", context.report(true));

    context.reset();
    db.get("key05000")?;
    assert_eq!(context.metric(PerfMetric::BlockReadCount), 0, "the block is cached now");
    assert_eq!(context.metric(PerfMetric::BlockCacheHitCount), 1);
    println!("second read: {}", context.report(true));
    set_perf_stats(PerfStatsLevel::Disable);

    drop(db);
    Db::destroy(&Options::default(), &dir)?;
    Ok(())
}
