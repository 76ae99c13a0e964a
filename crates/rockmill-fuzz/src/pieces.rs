//! TPH tables with all of their files: the block that makes a file the head of a table, the head, and the further
//! files.
//!
//! An input has each part after its length (a u32): first the block's contents, then the files, with the head first.
//! The block is inserted into the head with a correct checksum, so that damage to it passes the check.

use std::path::Path;
use std::sync::Arc;

use rockmill::internals::{OwnFile, table_of_files, told_by_own_file};
use rockmill_format::{InternalKeyComparator, coding, filename};
use rockmill_io::{FileSystem, MemFileSystem, RandomAccessFile};

use crate::files::{assert_placed, read_open_table};
use crate::fixtures::{self, Fixture};
use crate::mend;

/// The name of the head's block.
const TPH: &[u8] = b"rockmill.tph";
/// Bytes of the block before the list of further files, and bytes of a file in that list before its two keys.
const BEFORE_LIST: usize = 64;
const BEFORE_KEYS: usize = 32;

const DIR: &str = "/hostile";

/// An input made of these parts.
fn join<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(&(part.len() as u32).to_le_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// The parts of an input; the last one ends with the input.
fn split(mut data: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    while let Some((len, rest)) = data.split_first_chunk::<4>() {
        let (part, rest) = rest.split_at(rest.len().min(u32::from_le_bytes(*len) as usize));
        out.push(part);
        data = rest;
    }
    out
}

/// A table of several files: opened with the files that its head lists, read in every way, verified; unchanged, and
/// with corrected sizes and checksums.
pub fn tph_table(data: &[u8]) {
    let parts = split(data);
    let [block, own, others @ ..] = &parts[..] else { return };
    for mended in [false, true] {
        let (mut block, mut own) = (block.to_vec(), own.to_vec());
        let mut others: Vec<Vec<u8>> = others.iter().map(|file| file.to_vec()).collect();
        if mended {
            set_sizes(&mut block, &others);
            mend::table(&mut own);
            others.iter_mut().for_each(|file| mend::table(file));
        }
        let own = mend::with_meta_block(&own, TPH, &block).unwrap_or(own);
        if let Err(e) = read(&own, &others) {
            assert_placed(&e, DIR);
        }
    }
}

fn read(own: &[u8], others: &[Vec<u8>]) -> rockmill::Result<()> {
    let fs = MemFileSystem::new();
    let open = |number: u64, at: usize, bytes: &[u8]| {
        // A head may list several files with the same number.
        let dir = Path::new(DIR).join(at.to_string());
        let path = dir.join(filename::table(number));
        fs.create_dir(&dir, true).expect("a directory in memory");
        fs.write_all(&path, bytes).expect("a file in memory");
        let file: Arc<dyn RandomAccessFile> = fs.open_random(&path, false).expect("the file");
        (path, file)
    };
    let (path, file) = open(1000, 0, own);
    let told = told_by_own_file(Arc::clone(&file), &path)?;
    let mut files = vec![(path, file)];
    files.extend(told.pieces.iter().zip(others).zip(1..).map(|((piece, bytes), at)| open(piece.number, at, bytes)));
    let table = table_of_files(files, &InternalKeyComparator::default(), None)?;
    let size = others.iter().map(Vec::len).sum::<usize>() + own.len();
    read_open_table(&table, size as u64, DIR);
    Ok(())
}

/// The start of each further file's entry in the block's list, as far as the list is readable.
fn places(block: &[u8]) -> Vec<usize> {
    let (mut out, mut at) = (Vec::new(), BEFORE_LIST);
    for _ in 0..coding::fixed32_at(block, 4).unwrap_or(0) {
        let mut end = at + BEFORE_KEYS;
        for _ in 0..2 {
            let Some(len) = coding::fixed32_at(block, end) else { return out };
            end = end.saturating_add(4 + len as usize);
        }
        out.push(at);
        at = end;
    }
    out.push(at);
    out
}

/// Writes the sizes of the further files into the block.
fn set_sizes(block: &mut [u8], others: &[Vec<u8>]) {
    for (at, file) in places(block).into_iter().zip(others) {
        if let Some(size) = block.get_mut(at + 8..at + 16) {
            size.copy_from_slice(&(file.len() as u64).to_le_bytes());
        }
    }
}

/// The block of the same table without a perfect hash function.
fn without_function(block: &[u8]) -> Option<Vec<u8>> {
    let mut at = *places(block).last()?;
    let lists = if block.get(1)? & 2 == 0 { 1 } else { 2 };
    for _ in 0..lists {
        at += 4 + 8 * coding::fixed32_at(block, at)? as usize;
    }
    let mut out = block.get(..at)?.to_vec();
    out[1] &= !1;
    Some(out)
}

/// The tables of a sound database that have a head: the block, then all files.
fn tables_of(fixture: &Fixture) -> Vec<Vec<Vec<u8>>> {
    let fs = fixtures::file_system(&fixture.files);
    let told = |name: &str| -> Option<OwnFile> {
        let path = Path::new(fixtures::DIR).join(name);
        told_by_own_file(fs.open_random(&path, false).ok()?, &path).ok()
    };
    let table = |(name, own): (&String, &Vec<u8>)| -> Option<Vec<Vec<u8>>> {
        let block = mend::meta_block(own, TPH)?;
        let others = told(name)?.pieces;
        let others = others.iter().map(|piece| fixture.files.get(&filename::table(piece.number)).cloned());
        [Some(block), Some(own.clone())].into_iter().chain(others).collect()
    };
    fixture.files.iter().filter(|(name, _)| name.ends_with(".sst")).filter_map(table).collect()
}

/// Sound tables, with their functions and without.
pub fn seeds() -> Vec<Vec<u8>> {
    let made = &fixtures::all()[..fixtures::MADE];
    let mut out = Vec::new();
    for files in made.iter().flat_map(tables_of) {
        let Some((block, files)) = files.split_first() else { continue };
        let others = || files.iter().map(Vec::as_slice);
        out.push(join(std::iter::once(block.as_slice()).chain(others())));
        if let Some(block) = without_function(block) {
            out.push(join(std::iter::once(block.as_slice()).chain(others())));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise, the damage to them would test nothing.
    #[test]
    fn seeds_are_sound_tables_and_some_have_further_files() {
        let (mut several, mut functions) = (0, 0);
        for seed in seeds() {
            let parts = split(&seed);
            assert_eq!(join(parts.iter().copied()), seed);
            let [block, own, others @ ..] = &parts[..] else { panic!("{} parts", parts.len()) };
            several += usize::from(!others.is_empty());
            functions += usize::from(block[1] & 1 == 1);
            let own = mend::with_meta_block(own, TPH, block).unwrap();
            assert_eq!(mend::meta_block(&own, TPH).as_deref(), Some(*block));
            let others: Vec<Vec<u8>> = others.iter().map(|file| file.to_vec()).collect();
            let mut sized = block.to_vec();
            set_sizes(&mut sized, &others);
            assert_eq!(sized, *block);
            read(&own, &others).unwrap();
        }
        assert!(several > 2 && functions > 2, "{several} of several files, {functions} with a function");
    }
}
