//! Limits the background writes of two databases to 4 MiB per second in total, and lifts the limit while they run.

use std::time::Instant;

use rockmill::{Db, IoPriority, Options, RateLimiter, RateLimiterMode};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    // Bytes are released each tenth of a second; lower priorities go first once in ten times.
    let limiter = RateLimiter::new(4 << 20, 100_000, 10, RateLimiterMode::KWritesOnly, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_shared_ratelimiter(&limiter);
    options.set_compression_type(rockmill::CompressionType::None);
    let one = Db::open(&options, dir.path().join("one"))?;
    let two = Db::open(&options, dir.path().join("two"))?;

    let started = Instant::now();
    for db in [&one, &two] {
        for n in 0..1000u32 {
            db.put(n.to_be_bytes(), [n as u8; 1000])?;
        }
        db.flush()?;
    }
    let flushed = limiter.total_bytes_through(Some(IoPriority::High));
    println!("flushes wrote {flushed} bytes in {:?}", started.elapsed());
    assert!(flushed > 2_000_000);
    // 2 MB at 4 MiB/s; the bytes of the first tenth of a second are available immediately.
    assert!(started.elapsed().as_millis() > 300);

    limiter.set_bytes_per_second(1 << 30)?;
    one.put(5u32.to_be_bytes(), b"newer")?;
    one.compact_range(None::<&[u8]>, None::<&[u8]>)?;
    println!("compactions wrote {} bytes", limiter.total_bytes_through(Some(IoPriority::Low)));
    assert_eq!(limiter.total_pending_requests(None), 0);
    assert_eq!(one.get(5u32.to_be_bytes())?.as_deref(), Some(&b"newer"[..]));
    Ok(())
}
