//! A small compaction without the merge: three inputs read in turns, one output written.

use super::places::{Place, pattern};
use rockmill_io::ring::{BatchIo, BatchLimits, ReadOptions, ReadPlan, coalesce};
use rockmill_io::{WritableFile, WriteOptions};
use std::io;

const INPUTS: usize = 3;
const INPUT_BYTES: usize = 150_000;
const BLOCK: usize = 3001;

pub fn limits() -> BatchLimits {
    BatchLimits { memory_bytes: 2 << 20, depth: 16, huge_pages: false, writes_in_flight: 3, ..BatchLimits::default() }
}

/// Writes the inputs; returns the expected output.
pub fn prepare(place: &Place) -> Vec<u8> {
    let inputs: Vec<Vec<u8>> = (0..INPUTS).map(|i| pattern(INPUT_BYTES, i as u32)).collect();
    for (i, data) in inputs.iter().enumerate() {
        place.fs.write_all(&place.path(&format!("{i}.sst")), data).unwrap();
    }
    let mut wanted = Vec::new();
    for span in coalesce(0, blocks(), 10 * BLOCK) {
        for data in &inputs {
            wanted.extend_from_slice(&data[span.offset as usize..span.offset as usize + span.len as usize]);
        }
    }
    wanted
}

fn blocks() -> impl Iterator<Item = (u64, u32)> {
    (0..INPUT_BYTES).step_by(BLOCK).map(|at| (at as u64, BLOCK.min(INPUT_BYTES - at) as u32))
}

pub fn run(place: &Place, io: &BatchIo, sync: bool) -> io::Result<()> {
    let mut plan = ReadPlan::new();
    for i in 0..INPUTS {
        let path = place.path(&format!("{i}.sst"));
        let file = plan.add_file(place.fs.open_random(&path, place.direct)?, &path);
        plan.add_run(coalesce(file, blocks(), 10 * BLOCK));
    }
    let options = WriteOptions { buffer_size: 64 << 10, preallocate: 256 << 10, ..place.options() };
    let mut writer = io.create(&*place.fs, &place.path("out.sst"), options)?;
    let mut stream = io.read(plan, ReadOptions::default())?;
    let result = (|| {
        let mut left = INPUTS;
        while left > 0 {
            left = 0;
            for run in 0..INPUTS {
                if let Some(window) = stream.next(run)? {
                    left += 1;
                    for block in window.chunks(BLOCK) {
                        writer.space(block.len())?.copy_from_slice(block);
                        writer.commit(block.len());
                    }
                }
            }
        }
        if sync {
            writer.begin_sync()?;
            writer.sync()?;
        }
        writer.close()
    })();
    if let Err(e) = &result {
        // Whatever failed, nothing after it pretends otherwise.
        let text = e.to_string();
        match text.contains("out.sst") {
            true => {
                for again in [writer.append(b"x"), writer.sync(), writer.close()] {
                    let again = again.expect_err("a writer that failed went on").to_string();
                    assert!(again.contains("earlier failure"), "{again}");
                }
            }
            false => assert!(text.contains(".sst"), "no file is named: {text}"),
        }
    }
    result
}

/// The output is what it must be.
pub fn check(place: &Place, wanted: &[u8], what: &str) {
    let out = place.fs.read_to_vec(&place.path("out.sst")).unwrap();
    assert!(out == wanted, "{what}: {} bytes, {} expected, or others", out.len(), wanted.len());
}
