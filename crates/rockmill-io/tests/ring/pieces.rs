//! Pieces at scattered places.

use super::places::{Place, everywhere, in_memory, on_disk, pattern, small};
use rockmill_io::error::raw_os_error;
use rockmill_io::ring::{BatchKind, BatchLimits, CallOrder, Pieces, ReadOptions, Tamper};
use rockmill_io::{OpKind, RandomAccessFile, WriteOptions};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

/// Files with a pattern, open for reading.
fn files(place: &Place, lens: &[usize]) -> Vec<(Arc<dyn RandomAccessFile>, PathBuf, Vec<u8>)> {
    let file = |(i, len): (usize, &usize)| {
        let (path, data) = (place.path(&format!("{i}.log")), pattern(*len, i as u32));
        let mut file = place.fs.create(&path, WriteOptions::default()).unwrap();
        file.append(&data).unwrap();
        file.close().unwrap();
        (place.fs.open_random(&path, place.direct).unwrap(), path, data)
    };
    lens.iter().enumerate().map(file).collect()
}

/// Random pieces of every size: adjacent, nested, duplicate, empty, spanning many spans.
fn random(rng: &mut fastrand::Rng, lens: &[usize]) -> Vec<(u32, u64, usize)> {
    let mut all: Vec<(u32, u64, usize)> = Vec::new();
    for _ in 0..rng.usize(1..300) {
        let file = rng.usize(0..lens.len());
        let offset = rng.usize(0..lens[file]);
        let most = *rng.choice(&[0, 1, 100, 5000, 300_000]).unwrap();
        let len = rng.usize(0..=most.min(lens[file] - offset));
        all.push((file as u32, offset as u64, len));
        match rng.u32(0..4) {
            0 => all.push((file as u32, offset as u64, len)),
            1 => all.push((file as u32, (offset + len) as u64, (lens[file] - offset - len).min(700))),
            2 => all.push((file as u32, (offset + len / 2) as u64, len / 4)),
            _ => {}
        }
    }
    all
}

#[test]
fn every_piece_has_its_bytes_in_the_order_in_which_it_was_asked_for() {
    everywhere(|place| {
        let lens = [700_000, 5000, 200_001];
        let files = files(place, &lens);
        let mut rng = fastrand::Rng::with_seed(5);
        let mut pieces = Pieces::default();
        for round in 0..12 {
            let io = place.io(&BatchLimits { memory_bytes: 1 << 20, ..small() });
            pieces.clear(if round % 2 == 0 { 0 } else { 50_000 });
            assert!(pieces.is_empty() && pieces.bytes() == 0 && pieces.reads_left() == 0);
            for (file, path, _) in &files {
                pieces.add_file(file, path, round % 3 == 0);
            }
            let wanted = random(&mut rng, &lens);
            for (n, (file, offset, len)) in wanted.iter().enumerate() {
                assert_eq!(pieces.add(*file, *offset, *len), n);
            }
            let options = ReadOptions { depth: rng.usize(0..40), ..ReadOptions::default() };
            let read = pieces.begin(&io, options, *rng.choice(&[0, 100, 1 << 20]).unwrap()).unwrap();
            assert!(read <= lens.iter().sum::<usize>() as u64, "bytes are read twice");
            let all = pieces.reads();
            while pieces.reads_left() > 0 && rng.u32(0..20) > 0 {
                pieces.take(rng.usize(0..5)).unwrap();
            }
            assert_eq!(pieces.reads(), all);
            pieces.finish().unwrap();
            assert!(io.is_idle(), "memory is held after the last read");
            assert_eq!(pieces.len(), wanted.len());
            for (n, (file, offset, len)) in wanted.iter().enumerate() {
                let want = &files[*file as usize].2[*offset as usize..][..*len];
                assert!(pieces.piece(n) == want, "{}, round {round}: piece {n}", place.name);
                assert!(pieces.piece_mut(n) == want);
            }
        }
    });
}

#[test]
fn what_is_close_together_is_read_together_and_what_is_long_in_parts() {
    let (place, fs) = in_memory(CallOrder::Random(3), false);
    let files = files(&place, &[1 << 20]);
    let io = place.io(&small());
    let reads = |wanted: &[(u64, usize)], gap_max| {
        let before = fs.calls_of(OpKind::ReadAt);
        let mut pieces = Pieces::default();
        pieces.add_file(&files[0].0, &files[0].1, false);
        for (offset, len) in wanted {
            pieces.add(0, *offset, *len);
        }
        let bytes = pieces.begin(&io, ReadOptions::default(), gap_max).unwrap();
        pieces.finish().unwrap();
        assert_eq!(fs.calls_of(OpKind::ReadAt) - before, pieces.reads() as u64);
        (pieces.reads(), bytes)
    };
    assert_eq!(reads(&[(300, 100), (0, 100), (100, 100)], 100), (1, 400));
    assert_eq!(reads(&[(300, 100), (0, 100), (100, 100)], 99), (2, 300));
    assert_eq!(reads(&[(5, 300 << 10)], 0), (5, 300 << 10));
    assert_eq!(reads(&[(5, 0)], 0), (0, 0));
}

/// A log is read while it is written: its reader was opened when it was empty.
#[test]
fn a_file_that_grows_is_read_to_its_present_end() {
    everywhere(|place| {
        if place.direct {
            return;
        }
        let path = place.path("growing.log");
        let mut file = place.fs.create(&path, WriteOptions::default()).unwrap();
        let reader = place.fs.open_random(&path, false).unwrap();
        let data = pattern(100_000, 1);
        file.append(&data).unwrap();
        file.flush().unwrap();
        let read = |grows, offset| {
            let mut pieces = Pieces::default();
            let number = pieces.add_file(&reader, &path, grows);
            pieces.add(number, 90_000, 1000);
            pieces.add(number, offset, 1000);
            let io = place.io(&small());
            pieces.begin(&io, ReadOptions::default(), 0)?;
            pieces.finish()?;
            assert!(pieces.piece(0) == &data[90_000..91_000]);
            Ok::<_, std::io::Error>(pieces.piece(1) == &data[offset as usize..][..1000])
        };
        assert!(read(true, 99_000).unwrap());
        assert_eq!(read(false, 99_000).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let e = read(true, 99_500).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::UnexpectedEof);
        let text = e.to_string();
        assert!(text.contains("read at 99500 from") && text.contains("growing.log"), "{text}");
    });
}

#[test]
fn short_refused_and_late_reads_change_nothing() {
    for place in on_disk(BatchKind::Uring).into_iter().chain(on_disk(BatchKind::Pread)) {
        let files = files(&place, &[400_000, 300_000]);
        let mut rng = fastrand::Rng::with_seed(9);
        let tampers = [
            Tamper::Short(1),
            Tamper::Short(600),
            Tamper::Refuse(libc::EAGAIN),
            Tamper::Refuse(libc::EINVAL),
            // The result of a plain call is final.
            if place.kind == BatchKind::Uring { Tamper::FailAfter(libc::EINTR) } else { Tamper::Late(2) },
            Tamper::Late(7),
        ];
        for _ in 0..10 {
            let io = place.io(&small());
            let seed = rng.u64(..);
            io.set_shim(Box::new(move |op| match (op.number ^ seed) as usize % 9 {
                n if n < tampers.len() => tampers[n],
                _ => Tamper::No,
            }))
            .unwrap();
            let mut pieces = Pieces::default();
            for (file, path, _) in &files {
                pieces.add_file(file, path, false);
            }
            let wanted = random(&mut rng, &[400_000, 300_000]);
            for (file, offset, len) in &wanted {
                pieces.add(*file, *offset, *len);
            }
            pieces.begin(&io, ReadOptions { depth: 20, ..ReadOptions::default() }, 200).unwrap();
            pieces.finish().unwrap();
            for (n, (file, offset, len)) in wanted.iter().enumerate() {
                assert!(pieces.piece(n) == &files[*file as usize].2[*offset as usize..][..*len], "{}: {n}", place.name);
            }
        }
    }
}

/// After a failure, nothing is returned as read, and nothing is in flight.
#[test]
fn a_failed_read_ends_it() {
    for order in [CallOrder::Oldest, CallOrder::Newest, CallOrder::Random(1)] {
        let (place, fs) = in_memory(order, false);
        let files = files(&place, &[900_000]);
        let io = place.io(&small());
        let mut pieces = Pieces::default();
        pieces.add_file(&files[0].0, &files[0].1, false);
        for i in 0..40 {
            pieces.add(0, i * 20_000, 100);
        }
        pieces.begin(&io, ReadOptions::default(), 0).unwrap();
        pieces.take(5).unwrap();
        fs.fail_once_after(8, libc::EIO);
        let e = pieces.finish().unwrap_err();
        assert_eq!(raw_os_error(&e), Some(libc::EIO));
        assert!(e.to_string().contains("0.log"), "{e}");
        assert!(io.is_idle());
        let left = pieces.reads_left();
        assert!(left > 0);
        assert!(pieces.finish().is_err(), "it goes on after a failure");
        assert_eq!(pieces.reads_left(), left);
    }
}
