//! Reading by plan.

use super::places::{Place, everywhere, in_memory, pattern, small};
use rockmill_io::ring::{BatchKind, BatchLimits, CallOrder, Pieces, ReadOptions, ReadPlan, ReadStream, Span, coalesce};
use rockmill_io::{RandomAccessFile, WritableFile as _};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes files of these lengths and returns their contents.
pub fn files(place: &Place, lens: &[usize]) -> Vec<Vec<u8>> {
    lens.iter()
        .enumerate()
        .map(|(i, len)| {
            let data = pattern(*len, i as u32);
            place.fs.write_all(&place.path(&format!("{i}.sst")), &data).unwrap();
            data
        })
        .collect()
}

pub fn plan(place: &Place, files: usize) -> ReadPlan {
    let mut plan = ReadPlan::new();
    for i in 0..files {
        let path = place.path(&format!("{i}.sst"));
        assert_eq!(plan.add_file(place.fs.open_random(&path, place.direct).unwrap(), &path), i as u32);
    }
    plan
}

fn check(stream: &mut ReadStream, run: usize, wanted: &[Span], data: &[Vec<u8>], name: &str) {
    for (i, span) in wanted.iter().enumerate() {
        let window = stream.next(run).unwrap().unwrap_or_else(|| panic!("{name}: run {run} ended at {i}"));
        assert_eq!((window.span(), window.index()), (*span, i));
        let at = span.offset as usize;
        assert!(window[..] == data[span.file as usize][at..at + span.len as usize], "{name}: run {run} {span:?}");
    }
    assert!(stream.next(run).unwrap().is_none());
    assert!(stream.next(run).unwrap().is_none());
}

/// A stream with a given memory limit gets that memory, even if a writer already has its own.
#[test]
fn a_stream_has_the_memory_that_it_asks_for_beside_a_writer() {
    everywhere(|place| {
        let data = files(place, &[4 << 20]);
        let in_flight = Pieces::memory_in_flight(32);
        let mut limits = BatchLimits { huge_pages: false, ..small() };
        limits.memory_bytes = limits.memory_for(None, 0) + in_flight;
        let io = place.io(&limits);
        let depth = |memory_bytes| {
            let mut plan = plan(place, 1);
            let spans: Vec<Span> = (0..64).map(|i| Span { file: 0, offset: i << 16, len: 1 << 16 }).collect();
            plan.add_run(spans.clone());
            let mut stream = io.read(plan, ReadOptions { depth: 32, memory_bytes, throttle: None }).unwrap();
            let depth = stream.depth();
            check(&mut stream, 0, &spans, &data, &place.name);
            depth
        };
        let wanted = if place.kind == BatchKind::Pread && place.direct { 1 } else { 32 };
        assert_eq!(depth(in_flight), wanted);
        let mut writer = io.create(&*place.fs, &place.path("out"), place.options()).unwrap();
        writer.append(b"begun").unwrap();
        assert_eq!(depth(in_flight), wanted, "beside a writer");
        writer.close().unwrap();
    });
}

#[test]
fn every_run_gives_its_spans_in_order_with_the_files_bytes() {
    everywhere(|place| {
        let data = files(place, &[300_000, 1, 4096, 100_000]);
        let mut plan = plan(place, 4);
        let blocks = (0..75).map(|i| (i * 4000, 4000));
        let runs = [
            coalesce(0, blocks, 16_000),
            vec![Span { file: 1, offset: 0, len: 1 }, Span { file: 2, offset: 0, len: 4096 }],
            Vec::new(),
            coalesce(3, [(0, 99_999), (99_999, 1)], 16_000),
        ];
        for run in &runs {
            plan.add_run(run.clone());
        }
        assert_eq!(plan.bytes(), 300_000 + 4097 + 100_000);
        let io = place.io(&small());
        let mut stream = io.read(plan, ReadOptions::default()).unwrap();
        for (run, spans) in runs.iter().enumerate() {
            check(&mut stream, run, spans, &data, &place.name);
        }
        drop(stream);
        assert_eq!(io.free_bytes(), io.facts().memory_bytes);
    });
}

#[test]
fn random_plans_read_what_pread_reads() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let seeds: Vec<u64> = (0..4).map(|_| rng.u64(..)).collect();
    everywhere(|place| {
        for seed in &seeds {
            let mut rng = fastrand::Rng::with_seed(*seed);
            let lens: Vec<usize> = (0..rng.usize(1..5)).map(|_| rng.usize(1..200_000)).collect();
            let data = files(place, &lens);
            let mut plan = plan(place, lens.len());
            let mut runs = Vec::new();
            for _ in 0..rng.usize(1..10) {
                let mut spans = Vec::new();
                for (file, &file_len) in lens.iter().enumerate() {
                    // Neighbours, gaps, tiny spans within one sector, and large ones.
                    let mut at = rng.usize(0..file_len);
                    while at < file_len && spans.len() < 60 {
                        let most = *rng.choice(&[10, 5_000, 30_000]).unwrap();
                        let len = rng.usize(1..=most).min(file_len - at);
                        spans.push(Span { file: file as u32, offset: at as u64, len: len as u32 });
                        at += len + if rng.u8(..) < 40 { rng.usize(0..9000) } else { 0 };
                    }
                }
                plan.add_run(spans.clone());
                runs.push(spans);
            }
            let limits = BatchLimits { memory_bytes: rng.usize(1..4_000_000), depth: rng.u32(1..64), ..small() };
            let io = place.io(&limits);
            let mut stream = io.read(plan, ReadOptions { depth: rng.usize(0..6), ..ReadOptions::default() }).unwrap();
            // Some windows are kept for a while.
            let mut kept = Vec::new();
            let mut given = vec![0; runs.len()];
            loop {
                let open: Vec<usize> = (0..runs.len()).filter(|run| given[*run] <= runs[*run].len()).collect();
                let Some(&run) = rng.choice(&open) else { break };
                let window = stream.next(run).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                let span = runs[run].get(given[run]).copied();
                given[run] += 1;
                assert_eq!(window.as_ref().map(|w| w.span()), span, "seed {seed}");
                if let (Some(window), Some(span)) = (window, span) {
                    let at = span.offset as usize;
                    let wanted = &data[span.file as usize][at..at + span.len as usize];
                    assert!(window[..] == *wanted, "{} seed {seed}: run {run} {span:?}", place.name);
                    if rng.u8(..) < 50 {
                        kept.push((window, span));
                    }
                }
                if kept.len() > 5 {
                    kept.remove(rng.usize(0..kept.len()));
                }
            }
            for (window, span) in &kept {
                let at = span.offset as usize;
                assert!(window[..] == data[span.file as usize][at..at + span.len as usize], "a kept window changed");
            }
        }
    });
}

#[test]
fn a_span_beyond_the_end_fails_in_its_turn_and_names_the_place() {
    everywhere(|place| {
        files(place, &[10_000]);
        let mut plan = plan(place, 1);
        let spans = vec![Span { file: 0, offset: 5000, len: 5000 }, Span { file: 0, offset: 10_000, len: 1 }];
        plan.add_run(spans);
        let mut stream = place.io(&small()).read(plan, ReadOptions::default()).unwrap();
        assert_eq!(stream.next(0).unwrap().unwrap().len(), 5000);
        let e = stream.next(0).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::UnexpectedEof);
        let text = e.to_string();
        assert!(text.contains("read at 10000 from") && text.contains("0.sst"), "{text}");
        assert!(stream.next(0).unwrap_err().to_string().contains("earlier failure"));
    });
}

/// A direct file with a given block size, which refuses unaligned reads and counts bytes.
#[derive(Debug)]
struct Blocks {
    inner: Arc<dyn RandomAccessFile>,
    block: u64,
    read: Arc<AtomicU64>,
}

impl RandomAccessFile for Blocks {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let aligned = |n: u64| n.is_multiple_of(self.block);
        assert!(aligned(offset) && aligned(buf.len() as u64), "{} bytes at {offset}", buf.len());
        assert!(buf.as_ptr().addr().is_multiple_of(512));
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.read_at(offset, buf)
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn prefetch(&self, _offset: u64, _len: u64) {}
    fn is_direct(&self) -> bool {
        true
    }
    fn direct_alignment(&self) -> u64 {
        self.block
    }
}

#[test]
fn direct_reads_are_aligned_to_the_files_blocks_and_no_more() {
    let (place, _) = in_memory(CallOrder::Random(5), true);
    let data = files(&place, &[250_001]);
    let path = place.path("0.sst");
    let mut rng = fastrand::Rng::with_seed(6);
    // Neighbours that share blocks, some of which lie within one, and lookups here and there.
    let mut neighbours = vec![Span { file: 0, offset: 3, len: 700 }];
    while let Some(last) = neighbours.last().map(|s| s.offset + u64::from(s.len)).filter(|end| *end < 250_001) {
        let len = *rng.choice(&[1u64, 90, 511, 512, 513, 4101, 9000]).unwrap();
        neighbours.push(Span { file: 0, offset: last, len: len.min(250_001 - last) as u32 });
    }
    let lookups: Vec<Span> = (0..20).map(|i| Span { file: 0, offset: i * 12_345, len: 4101 }).collect();
    let read = |block: u64, spans: &[Span]| {
        let read = Arc::new(AtomicU64::new(0));
        let inner = place.fs.open_random(&path, true).unwrap();
        let mut plan = ReadPlan::new();
        plan.add_file(Arc::new(Blocks { inner, block, read: Arc::clone(&read) }), &path);
        plan.add_run(spans.to_vec());
        let mut stream = place.io(&small()).read(plan, ReadOptions { depth: 5, ..ReadOptions::default() }).unwrap();
        check(&mut stream, 0, spans, &data, &format!("blocks of {block}"));
        assert_eq!(stream.bytes_read(), read.load(Ordering::Relaxed));
        stream.bytes_read()
    };
    for block in [1, 512, 1024, 2048, 4096] {
        // Each block once.
        assert_eq!(read(block, &neighbours), (250_001u64).next_multiple_of(block) - 3 / block * block, "{block}");
        let around = |s: &Span| (s.offset + 4101u64).next_multiple_of(block) - s.offset / block * block;
        assert_eq!(read(block, &lookups), lookups.iter().map(around).sum::<u64>(), "{block}");
    }
}
