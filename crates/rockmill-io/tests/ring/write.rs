//! Writing files.

use super::places::{everywhere, in_memory, on_disk, pattern, small};
use rockmill_io::ring::{BatchKind, CallOrder};
use rockmill_io::{Fault, FileSystem, OpKind};
use std::os::unix::fs::MetadataExt;

use rockmill_io::{WritableFile, WriteOptions};

#[test]
fn what_is_appended_and_filled_in_place_is_in_the_file() {
    everywhere(|place| {
        let io = place.io(&small());
        for buffer_size in [0, 8192, 20_000] {
            let path = place.path("out.sst");
            let options = WriteOptions { buffer_size, preallocate: 1 << 20, ..place.options() };
            let mut writer = io.create(&*place.fs, &path, options).unwrap();
            let mut wanted = Vec::new();
            let mut rng = fastrand::Rng::with_seed(buffer_size as u64);
            for i in 0..200 {
                let piece = pattern(rng.usize(0..12_000), i);
                let fits = piece.len() <= writer.space_bytes_max();
                if rng.bool() && fits {
                    let space =
                        writer.space(piece.len() + rng.usize(0..=writer.space_bytes_max() - piece.len())).unwrap();
                    space[..piece.len()].copy_from_slice(&piece);
                    writer.commit(piece.len());
                } else {
                    writer.append(&piece).unwrap();
                }
                wanted.extend_from_slice(&piece);
                assert_eq!(writer.len(), wanted.len() as u64);
                if rng.u8(..) < 10 {
                    writer.flush().unwrap();
                    let now = place.fs.read_to_vec(&path).unwrap();
                    assert!(now.len() >= wanted.len() && now[..wanted.len()] == wanted, "{}: flushed", place.name);
                }
                if rng.u8(..) < 10 {
                    writer.sync().unwrap();
                    assert!(place.fs.read_to_vec(&path).unwrap() == wanted, "{}: synced", place.name);
                }
            }
            writer.sync().unwrap();
            writer.close().unwrap();
            writer.close().unwrap();
            assert!(place.fs.read_to_vec(&path).unwrap() == wanted, "{}: closed", place.name);
            assert!(writer.append(b"more").unwrap_err().to_string().contains("closed"));
        }
        assert_eq!(io.free_bytes(), io.facts().memory_bytes);
    });
}

#[test]
fn an_empty_file_is_created_synced_and_closed() {
    everywhere(|place| {
        let path = place.path("empty.sst");
        let mut writer = place.io(&small()).create(&*place.fs, &path, place.options()).unwrap();
        assert!(writer.is_empty());
        writer.sync().unwrap();
        writer.close().unwrap();
        assert_eq!(place.fs.file_size(&path).unwrap(), 0);
    });
}

#[test]
fn a_short_write_goes_on_from_a_sector_and_stays_direct() {
    for order in [CallOrder::Oldest, CallOrder::Random(2)] {
        let (place, fs) = in_memory(order, true);
        let mut writer = place.io(&small()).create(&*place.fs, &place.path("out.sst"), place.options()).unwrap();
        fs.set_hook(Box::new(|op| if op.kind == OpKind::Write { Fault::Short(5000) } else { Fault::None }));
        let data = pattern(3_000_001, 1);
        for piece in data.chunks(70_000) {
            writer.append(piece).unwrap();
        }
        writer.sync().unwrap();
        assert!(writer.is_direct(), "a write that was not aligned");
        assert!(fs.read_to_vec(&place.path("out.sst")).unwrap() == data);
    }
}

#[test]
fn reserved_space_and_padding_are_gone_when_the_file_is_closed() {
    for kind in [BatchKind::Uring, BatchKind::Pread] {
        for place in on_disk(kind) {
            let path = place.path("out.sst");
            let options = WriteOptions { preallocate: 16 << 20, ..place.options() };
            let mut writer = place.io(&small()).create(&*place.fs, &path, options).unwrap();
            writer.append(&pattern(100_001, 1)).unwrap();
            writer.flush().unwrap();
            assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 100_001);
            writer.append(&pattern(100_000, 2)).unwrap();
            // Closed without a sync, which cuts, too.
            writer.close().unwrap();
            let meta = std::fs::metadata(&path).unwrap();
            assert_eq!(meta.len(), 200_001, "{}", place.name);
            assert!(meta.blocks() * 512 <= 512 << 10, "{}: {} bytes of blocks", place.name, meta.blocks() * 512);
        }
    }
}

#[test]
fn write_back_is_started_as_bytes_per_sync_says() {
    everywhere(|place| {
        for strict_bytes_per_sync in [false, true] {
            let options = WriteOptions {
                bytes_per_sync: 1 << 20,
                strict_bytes_per_sync,
                buffer_size: 256 << 10,
                ..place.options()
            };
            let path = place.path("out.sst");
            let mut writer = place.io(&small()).create(&*place.fs, &path, options).unwrap();
            let data = pattern(6 << 20, 3);
            for piece in data.chunks(100_000) {
                writer.append(piece).unwrap();
            }
            writer.sync().unwrap();
            let wanted = if place.direct { 0..=0 } else { 4..=5 };
            assert!(wanted.contains(&writer.write_backs()), "{}: {}", place.name, writer.write_backs());
            writer.close().unwrap();
            assert!(place.fs.read_to_vec(&path).unwrap() == data);
        }
    });
}

#[test]
fn a_file_system_that_knows_nothing_of_batches_is_written_in_order() {
    /// Forwards only the required methods of a file system.
    #[derive(Debug)]
    struct Plain(rockmill_io::MemFileSystem);

    macro_rules! pass_on {
        ($($name:ident($($arg:ident: $of:ty),*) -> $result:ty;)*) => {
            impl FileSystem for Plain {
                $(fn $name(&self, $($arg: $of),*) -> std::io::Result<$result> {
                    self.0.$name($($arg),*)
                })*
            }
        };
    }
    type P<'a> = &'a std::path::Path;
    pass_on! {
        open_random(path: P<'_>, direct: bool) -> std::sync::Arc<dyn rockmill_io::RandomAccessFile>;
        open_sequential(path: P<'_>) -> Box<dyn rockmill_io::SequentialFile>;
        create(path: P<'_>, options: WriteOptions) -> Box<dyn WritableFile>;
        reuse(old: P<'_>, new: P<'_>, options: WriteOptions) -> Box<dyn WritableFile>;
        list_dir(path: P<'_>) -> Vec<String>;
        exists(path: P<'_>) -> bool;
        file_size(path: P<'_>) -> u64;
        rename(from: P<'_>, to: P<'_>) -> ();
        remove(path: P<'_>) -> ();
        remove_dir(path: P<'_>) -> ();
        create_dir(path: P<'_>, parents: bool) -> ();
        hard_link(from: P<'_>, to: P<'_>) -> ();
        truncate(path: P<'_>, len: u64) -> ();
        sync_file(path: P<'_>) -> ();
        sync_dir(path: P<'_>) -> ();
        lock(path: P<'_>) -> Box<dyn rockmill_io::FileLock>;
        free_space(path: P<'_>) -> u64;
    }
    for direct in [false, true] {
        let fs = Plain(rockmill_io::MemFileSystem::new());
        assert!(!fs.batch_probe().available);
        assert!(fs.batch_io(BatchKind::Uring, &small()).is_err());
        let io = fs.batch_io(BatchKind::Auto, &small()).unwrap();
        assert!(io.facts().fallback.is_some());
        let path = std::path::Path::new("/out");
        let options = WriteOptions { direct, buffer_size: 10_000, ..WriteOptions::default() };
        let mut writer = io.create(&fs, path, options).unwrap();
        let data = pattern(123_456, 4);
        for (i, piece) in data.chunks(7000).enumerate() {
            writer.append(piece).unwrap();
            if i % 4 == 3 {
                writer.flush().unwrap();
                let now = fs.read_to_vec(path).unwrap();
                assert!(now.len() as u64 >= writer.len() && data.starts_with(&now[..writer.len() as usize]));
            }
        }
        writer.sync().unwrap();
        assert!(fs.0.crash_image(rockmill_io::CrashMode::KeepAll).read_to_vec(path).unwrap() == data);
        writer.close().unwrap();
        assert!(fs.read_to_vec(path).unwrap() == data);
    }
}
