//! Reads several files in an interleaved order and writes one, with each implementation of batched I/O in turn: the
//! cost of a compaction's I/O without the merge.
//!
//! ```text
//! cargo run --release -p rockmill-io --example ring_copy -- DIR [files=4] [mib=128] [rounds=7] [variants=...]
//! ```
//!
//! The variants alternate within each round. It prints medians, and for each variant the median of its per-round ratio
//! to the first variant, because the speed of shared machines drifts. GB/s refers to the input; the same amount is
//! written.

use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits, ReadOptions, ReadPlan, Span};
use rockmill_io::{FileSystem, PosixFileSystem, WritableFile, WriteOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A way to copy.
#[derive(Clone)]
struct Variant {
    name: &'static str,
    kind: BatchKind,
    limits: BatchLimits,
    direct: bool,
    span_bytes: u32,
    depth: usize,
    preallocate: u64,
    write_bytes: usize,
}

fn variants() -> Vec<Variant> {
    let uring = Variant {
        name: "uring",
        kind: BatchKind::Uring,
        limits: BatchLimits::default(),
        direct: true,
        span_bytes: 256 << 10,
        depth: 0,
        preallocate: 128 << 20,
        write_bytes: 1 << 20,
    };
    let with = |name, limits: BatchLimits| Variant { name, limits, ..uring.clone() };
    let written = |name, writes_in_flight, write_bytes| Variant {
        name,
        limits: BatchLimits { writes_in_flight, memory_bytes: 20 << 20, ..BatchLimits::default() },
        write_bytes,
        ..uring.clone()
    };
    let pread = Variant { name: "pread256k", kind: BatchKind::Pread, ..uring.clone() };
    vec![
        uring.clone(),
        pread.clone(),
        Variant { name: "pread1m", span_bytes: 1 << 20, ..pread.clone() },
        Variant { name: "pread2m", span_bytes: 2 << 20, ..pread.clone() },
        Variant { name: "pread4k", span_bytes: 4096, depth: 1, ..pread.clone() },
        Variant { name: "preadbuffered", direct: false, span_bytes: 1 << 20, ..pread },
        Variant { name: "uring64k", span_bytes: 64 << 10, ..uring.clone() },
        Variant { name: "uring128k", span_bytes: 128 << 10, ..uring.clone() },
        Variant { name: "uring512k", span_bytes: 512 << 10, ..uring.clone() },
        Variant { name: "uring1m", span_bytes: 1 << 20, ..uring.clone() },
        Variant { name: "depth1", depth: 1, ..uring.clone() },
        Variant { name: "depth2", depth: 2, ..uring.clone() },
        Variant {
            name: "depth8",
            depth: 8,
            limits: BatchLimits { memory_bytes: 32 << 20, ..BatchLimits::default() },
            ..uring.clone()
        },
        Variant { name: "nofallocate", preallocate: 0, ..uring.clone() },
        Variant { name: "uringbuffered", direct: false, ..uring.clone() },
        with("unregistered", BatchLimits { register: false, ..BatchLimits::default() }),
        with("smallpages", BatchLimits { huge_pages: false, ..BatchLimits::default() }),
        written("writes1", 1, 1 << 20),
        written("writes2", 2, 1 << 20),
        written("writes8", 8, 1 << 20),
        written("writes8x512k", 8, 512 << 10),
        written("writes16x256k", 16, 256 << 10),
        written("writes4x2m", 4, 2 << 20),
    ]
}

struct Outcome {
    seconds: f64,
    cpu_seconds: f64,
    enters: u64,
}

/// CPU time of all threads of this process, including kernel threads that work for it.
fn cpu_seconds() -> f64 {
    let mut nanos = 0u64;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        nanos += stat.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    nanos as f64 / 1e9
}

fn copy(io: &BatchIo, variant: &Variant, inputs: &[PathBuf], output: &Path) -> io::Result<Outcome> {
    let fs = PosixFileSystem::default();
    let mut plan = ReadPlan::new();
    for path in inputs {
        let file = fs.open_random(path, variant.direct)?;
        let size = file.size();
        let number = plan.add_file(file, path);
        let spans = (0..size.div_ceil(u64::from(variant.span_bytes))).map(|i| {
            let offset = i * u64::from(variant.span_bytes);
            Span { file: number, offset, len: (size - offset).min(u64::from(variant.span_bytes)) as u32 }
        });
        plan.add_run(spans.collect());
    }
    let options = WriteOptions {
        direct: variant.direct,
        preallocate: variant.preallocate,
        buffer_size: variant.write_bytes,
        ..WriteOptions::default()
    };
    let (before, cpu, start) = (io.counts(), cpu_seconds(), Instant::now());
    let mut stream = io.read(plan, ReadOptions { depth: variant.depth, ..ReadOptions::default() })?;
    let mut writer = io.create(&fs, output, options)?;
    let mut open: Vec<usize> = (0..inputs.len()).collect();
    while !open.is_empty() {
        let mut ended = Vec::new();
        for &run in &open {
            match stream.next(run)? {
                // Like blocks: some KiB at a time, copied once.
                Some(window) => {
                    for block in window.chunks(16 << 10) {
                        writer.space(block.len())?.copy_from_slice(block);
                        writer.commit(block.len());
                    }
                }
                None => ended.push(run),
            }
        }
        open.retain(|run| !ended.contains(run));
    }
    writer.sync()?;
    writer.close()?;
    drop(stream);
    let seconds = start.elapsed().as_secs_f64();
    let after = io.counts();
    Ok(Outcome { seconds, cpu_seconds: cpu_seconds() - cpu, enters: after.enters - before.enters })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next().map(PathBuf::from) else {
        println!("ring_copy DIR [files=4] [mib=128] [rounds=7] [variants=uring,pread256k,...]");
        return Ok(());
    };
    let (mut files, mut mib, mut rounds, mut names) = (4u64, 128u64, 7usize, "uring,pread256k,pread1m".to_string());
    for arg in args {
        let (key, value) = arg.split_once('=').unwrap_or((&arg, ""));
        match key {
            "files" => files = value.parse().unwrap_or(files).max(1),
            "mib" => mib = value.parse().unwrap_or(mib).max(1),
            "rounds" => rounds = value.parse().unwrap_or(rounds).max(1),
            "variants" => names = value.to_string(),
            other => println!("{other} is not known"),
        }
    }
    let fs = PosixFileSystem::default();
    std::fs::create_dir_all(&dir)?;
    println!("device: {:?}", fs.device(&dir));
    let inputs: Vec<PathBuf> = (0..files).map(|i| dir.join(format!("in{i}"))).collect();
    let bytes = mib << 20;
    for (i, path) in inputs.iter().enumerate() {
        let len = (bytes / files) as usize;
        let mut state = i as u64 + 1;
        let data: Vec<u8> = (0..len.div_ceil(8))
            .flat_map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            })
            .collect();
        fs.write_all(path, &data[..len])?;
    }
    let output = dir.join("out");
    let all = variants();
    let chosen: Vec<&Variant> = names.split(',').filter_map(|name| all.iter().find(|v| v.name == name)).collect();
    let mut results: Vec<Vec<Outcome>> = chosen.iter().map(|_| Vec::new()).collect();
    // One arena and ring for each variant, as for the life of a compaction thread.
    let mut ios = Vec::new();
    for variant in &chosen {
        let io = fs.batch_io(variant.kind, &variant.limits)?;
        println!("{}: {:?}", variant.name, io.facts());
        ios.push(io);
    }
    for _ in 0..rounds {
        for (i, variant) in chosen.iter().enumerate() {
            results[i].push(copy(&ios[i], variant, &inputs, &output)?);
            fs.remove(&output)?;
        }
    }
    println!("{files} files, {mib} MiB in all, {rounds} rounds, variants alternating; ratios to the first, paired");
    println!(
        "{:<14} {:>7} {:>8} {:>9} {:>9} {:>8} {:>8}",
        "", "GB/s", "time x", "CPU s/GB", "CPU x", "enters", "per GB"
    );
    let gb = bytes as f64 / 1e9;
    for (variant, outcomes) in chosen.iter().zip(&results) {
        let seconds = median(outcomes.iter().map(|o| o.seconds).collect());
        let cpu = median(outcomes.iter().map(|o| o.cpu_seconds).collect());
        let ratio =
            |of: fn(&Outcome) -> f64| median(outcomes.iter().zip(&results[0]).map(|(a, b)| of(a) / of(b)).collect());
        let enters = median(outcomes.iter().map(|o| o.enters as f64).collect());
        println!(
            "{:<14} {:>7.2} {:>8.2} {:>9.3} {:>9.2} {:>8.0} {:>8.0}",
            variant.name,
            gb / seconds,
            ratio(|o| o.seconds),
            cpu / gb,
            ratio(|o| o.cpu_seconds),
            enters,
            enters / gb,
        );
    }
    for path in &inputs {
        fs.remove(path)?;
    }
    Ok(())
}
