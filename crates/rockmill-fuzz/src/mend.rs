//! Corrects checksums after damage, so that the damaged bytes reach the decoders that follow the check.

use std::collections::BTreeMap;

use rockmill_format::block::{BlockBuilder, BlockBuilderOptions, BlockCursor, BlockKind, BlockLayout};
use rockmill_format::checksum::{self, ChecksumType};
use rockmill_format::coding;
use rockmill_format::compression::decompress;
use rockmill_format::footer::{BLOCK_BASED_TABLE_MAGIC, BLOCK_TRAILER_LEN, BlockHandle, FOOTER_LEN_MAX, Footer};
use rockmill_format::log::{BLOCK_SIZE, HEADER_LEN, RECYCLABLE_HEADER_LEN};
use rockmill_format::properties::{INDEX_TYPE, TableProperties};

/// Maximum number of blocks corrected in a table.
const BLOCKS_MAX: usize = 10_000;

/// Corrects a file, according to its name: a table, a log, a MANIFEST. Others have no checksums.
pub fn file(path: &str, bytes: &mut [u8]) {
    let name = path.rsplit('/').next().unwrap_or(path);
    if name.ends_with(".sst") {
        table(bytes);
    } else if name.ends_with(".log") || name.starts_with("MANIFEST-") {
        log(bytes);
    }
}

/// Corrects the checksum at the end of a job's spec or result.
pub fn job_message(bytes: &mut [u8]) {
    if let Some((fields, stored)) = bytes.split_last_chunk_mut::<4>() {
        *stored = checksum::mask(checksum::crc32c(fields)).to_le_bytes();
    }
}

/// Corrects checksums and sizes in the meta files of a directory of backups.
pub fn backups(files: &mut BTreeMap<String, Vec<u8>>) {
    let names: Vec<String> = files.keys().filter(|n| n.starts_with("meta/")).cloned().collect();
    for name in names {
        let Some(text) = files.get(&name).and_then(|bytes| String::from_utf8(bytes.clone()).ok()) else { continue };
        let mut out = String::new();
        for line in text.split_inclusive('\n') {
            let mut words: Vec<String> = line.trim_end_matches('\n').split(' ').map(str::to_owned).collect();
            if let Some(bytes) = words.first().and_then(|path| files.get(path)) {
                for at in 1..words.len() {
                    match words[at - 1].as_str() {
                        "crc32" => words[at] = checksum::crc32c(bytes).to_string(),
                        "size" => words[at] = bytes.len().to_string(),
                        _ => {}
                    }
                }
            }
            out += &words.join(" ");
            out += if line.ends_with('\n') { "\n" } else { "" };
        }
        files.insert(name, out.into_bytes());
    }
}

/// Corrects the checksum of a footer of format_version 6 or newer; `file_size` is where it ends.
pub fn footer(bytes: &mut [u8], file_size: u64) {
    let Some(footer) = bytes.last_chunk_mut::<FOOTER_LEN_MAX>() else { return };
    let magic = coding::fixed64_at(footer, FOOTER_LEN_MAX - 8);
    let version = coding::fixed32_at(footer, 41).unwrap_or(0);
    let Some(kind) = ChecksumType::from_u8(footer[0]).filter(|_| magic == Some(BLOCK_BASED_TABLE_MAGIC)) else {
        return;
    };
    if version < 6 {
        return;
    }
    footer[5..9].fill(0);
    let base = coding::fixed32_at(footer, 9).unwrap_or(0);
    let Some((&last, rest)) = footer.split_last() else { return };
    let offset = file_size.saturating_sub(FOOTER_LEN_MAX as u64);
    let sum = checksum::block_checksum(kind, rest, last).wrapping_add(checksum::context_modifier(base, offset));
    footer[5..9].copy_from_slice(&sum.to_le_bytes());
}

/// Corrects every block of a table that is reachable from its footer, meta-index and index.
pub fn table(bytes: &mut [u8]) {
    let size = bytes.len() as u64;
    footer(bytes, size);
    let Ok(footer) = Footer::decode(bytes, size) else { return };
    let Some(metaindex) = block(bytes, &footer, footer.metaindex) else { return };
    let mut left = BLOCKS_MAX;
    let mut index = footer.index;
    let mut properties = TableProperties::default();
    let mut two_levels = false;
    for (name, handle) in handles(&metaindex, BlockKind::Meta) {
        let contents = block(bytes, &footer, handle);
        match (name.as_slice(), contents) {
            (b"rocksdb.properties", Some(contents)) => {
                properties = TableProperties::decode_block(&contents).unwrap_or_default();
                let number = properties.other.get(INDEX_TYPE).and_then(|v| coding::fixed32_at(v, 0));
                two_levels = number == Some(2);
            }
            (b"rocksdb.index", _) => index = Some(handle),
            (name, Some(contents)) if name.starts_with(b"partitionedfilter.") => {
                partitions(bytes, &footer, &contents, &properties, &mut left);
            }
            _ => {}
        }
    }
    let Some(contents) = index.and_then(|handle| block(bytes, &footer, handle)) else { return };
    let inner = partitions(bytes, &footer, &contents, &properties, &mut left);
    if two_levels {
        for partition in inner {
            partitions(bytes, &footer, &partition, &properties, &mut left);
        }
    }
}

/// Corrects the blocks that an index block points to, and returns the contents of the first of them.
fn partitions(
    bytes: &mut [u8],
    footer: &Footer,
    contents: &[u8],
    properties: &TableProperties,
    left: &mut usize,
) -> Vec<Vec<u8>> {
    let kind = BlockKind::Index {
        value_delta: properties.index_value_is_delta_encoded != 0,
        user_keys: properties.index_key_is_user_key != 0,
        first_key: properties.other.get(INDEX_TYPE).is_some_and(|v| v.first() == Some(&3)),
    };
    let mut out = Vec::new();
    for (_, handle) in handles(contents, kind) {
        if *left == 0 {
            break;
        }
        *left -= 1;
        if let Some(contents) = block(bytes, footer, handle).filter(|_| out.len() < 100) {
            out.push(contents);
        }
    }
    out
}

/// Keys and handles of a block, as far as it can be read.
fn handles(contents: &[u8], kind: BlockKind) -> Vec<(Vec<u8>, BlockHandle)> {
    let mut out = Vec::new();
    let Ok(layout) = BlockLayout::parse(contents) else { return out };
    let mut cursor = BlockCursor::new(layout, kind);
    let mut step = cursor.seek_to_first(contents);
    while step.is_ok() && cursor.valid() && out.len() < BLOCKS_MAX {
        let handle = match kind {
            BlockKind::Meta => BlockHandle::decode(cursor.value(contents)).ok().map(|(handle, _)| handle),
            _ => Some(cursor.handle()),
        };
        out.extend(handle.map(|handle| (cursor.key().to_vec(), handle)));
        step = cursor.next(contents);
    }
    out
}

/// Corrects a block's trailer, and returns the block's contents.
fn block(bytes: &mut [u8], footer: &Footer, handle: BlockHandle) -> Option<Vec<u8>> {
    if handle.end() > bytes.len() as u64 {
        return None;
    }
    let raw = bytes.get_mut(handle.offset as usize..handle.end() as usize)?;
    let (data, trailer) = raw.split_last_chunk_mut::<BLOCK_TRAILER_LEN>()?;
    let sum = footer.block_checksum(data, trailer[0], handle.offset);
    trailer[1..].copy_from_slice(&sum.to_le_bytes());
    if trailer[0] == 0 { Some(data.to_vec()) } else { decompress(trailer[0], data, None, 1 << 20).ok() }
}

/// Corrects the checksum of every fragment of a log whose length is possible. Zeros are kept.
pub fn log(bytes: &mut [u8]) {
    for block in bytes.chunks_mut(BLOCK_SIZE) {
        let mut rest = block;
        while let Some(header) = rest.first_chunk::<HEADER_LEN>() {
            let len = usize::from(u16::from_le_bytes([header[4], header[5]]));
            let kind = header[6];
            // The types with a longer header: recyclable full to last, timestamp sizes, end of the previous log.
            let recyclable = matches!(kind, 5..=8 | 11 | 131);
            let header_len = if recyclable { RECYCLABLE_HEADER_LEN } else { HEADER_LEN };
            if header_len + len > rest.len() || (kind == 0 && len == 0) {
                break;
            }
            let (record, later) = rest.split_at_mut(header_len + len);
            let sum = checksum::mask(checksum::crc32c(&record[6..]));
            record[..4].copy_from_slice(&sum.to_le_bytes());
            rest = later;
        }
    }
}

/// The contents of a table's properties block, if it can be found.
pub fn properties_block(bytes: &[u8]) -> Option<Vec<u8>> {
    meta_block(bytes, b"rocksdb.properties")
}

/// The contents of a table's meta block with this name, if it can be found.
pub fn meta_block(bytes: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let footer = Footer::decode(&bytes, bytes.len() as u64).ok()?;
    let metaindex = block(&mut bytes, &footer, footer.metaindex)?;
    let entry = handles(&metaindex, BlockKind::Meta).into_iter().find(|(n, _)| n == name)?;
    block(&mut bytes, &footer, entry.1)
}

/// The table with other contents in its meta block with this name; `None` if that cannot be found. The new contents
/// follow the existing bytes, with a meta-index that points to them.
pub fn with_meta_block(bytes: &[u8], name: &[u8], contents: &[u8]) -> Option<Vec<u8>> {
    let mut out = bytes.to_vec();
    let footer = Footer::decode(&out, out.len() as u64).ok()?;
    let metaindex = block(&mut out, &footer, footer.metaindex)?;
    let mut entries = handles(&metaindex, BlockKind::Meta);
    let at = entries.iter().position(|(n, _)| n == name)?;
    out.truncate(footer.metaindex.offset as usize);
    entries[at].1 = append(&mut out, &footer, contents);
    let mut builder = BlockBuilder::new(BlockBuilderOptions { restart_interval: 1, ..BlockBuilderOptions::default() });
    for (name, handle) in &entries {
        let mut value = Vec::new();
        handle.encode(&mut value);
        builder.add(name, &value, None);
    }
    let metaindex = append(&mut out, &footer, builder.finish());
    let footer = Footer { metaindex, ..footer };
    out.extend(footer.encode(out.len() as u64));
    Some(out)
}

/// Appends an uncompressed block with its trailer.
fn append(out: &mut Vec<u8>, footer: &Footer, contents: &[u8]) -> BlockHandle {
    let handle = BlockHandle { offset: out.len() as u64, size: contents.len() as u64 };
    out.extend_from_slice(contents);
    out.push(0);
    out.extend_from_slice(&footer.block_checksum(contents, 0, handle.offset).to_le_bytes());
    handle
}
