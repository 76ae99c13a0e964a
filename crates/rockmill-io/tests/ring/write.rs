//! Writing files.

use super::places::{everywhere, pattern, small};
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
