//! Block compression (RocksDB `util/compression.cc`, `table/block_based/block_based_table_builder.cc`).
//!
//! The compression byte of a block's trailer says how its contents are stored:
//!
//! | byte | contents |
//! |------|----------|
//! | 0 | as they are |
//! | 1 | Snappy, whose own format starts with the length |
//! | 2 | varint32 length, then raw deflate with a 16 KiB window and no header |
//! | 3 | varint32 length, then bzip2 |
//! | 4, 5 | varint32 length, then one LZ4 block |
//! | 6 | XPRESS (Windows) |
//! | 7, 0x40 | varint32 length, then one Zstandard frame; 0x40 is what RocksDB wrote before that format was final |
//! | 0x80 to 0xfe | a compression manager's own (format_version 7) |

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use lz4_flex::block::CompressTable;
use zstd::dict::DecoderDictionary;
use zstd::zstd_safe;

use crate::coding;
use crate::error::{FormatError, Result};

/// The level that means the library's default (RocksDB's `kDefaultCompressionLevel`).
pub const DEFAULT_LEVEL: i32 = i32::MAX;
/// Largest block that RocksDB compresses, in bytes; a larger one is stored uncompressed.
pub const COMPRESSED_INPUT_LEN_MAX: usize = i32::MAX as usize;

/// RocksDB inflates with this window, so a match must not reach further back.
const ZLIB_WINDOW_BITS: u8 = 14;
const ZLIB_WINDOW_BITS_MIN: u8 = 9;
/// The compression byte of RocksDB's ZSTD before the format was final.
const ZSTD_NOT_FINAL: u8 = 0x40;

/// Compression of a block; the block's trailer stores the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum CompressionType {
    None = 0,
    Snappy = 1,
    Zlib = 2,
    Bzip2 = 3,
    Lz4 = 4,
    Lz4hc = 5,
    Xpress = 6,
    Zstd = 7,
}

impl CompressionType {
    /// Every type.
    pub const ALL: [Self; 8] =
        [Self::None, Self::Snappy, Self::Zlib, Self::Bzip2, Self::Lz4, Self::Lz4hc, Self::Xpress, Self::Zstd];

    /// The type with this number in a block's trailer.
    pub fn from_u8(v: u8) -> Option<Self> {
        if v == ZSTD_NOT_FINAL { Some(Self::Zstd) } else { Self::ALL.into_iter().find(|t| *t as u8 == v) }
    }

    /// RocksDB's name, as the table property `rocksdb.compression` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "NoCompression",
            Self::Snappy => "Snappy",
            Self::Zlib => "Zlib",
            Self::Bzip2 => "BZip2",
            Self::Lz4 => "LZ4",
            Self::Lz4hc => "LZ4HC",
            Self::Xpress => "Xpress",
            Self::Zstd => "ZSTD",
        }
    }

    /// RocksDB's name in options, for example `kZSTD`.
    pub fn option_name(self) -> &'static str {
        match self {
            Self::None => "kNoCompression",
            Self::Snappy => "kSnappyCompression",
            Self::Zlib => "kZlibCompression",
            Self::Bzip2 => "kBZip2Compression",
            Self::Lz4 => "kLZ4Compression",
            Self::Lz4hc => "kLZ4HCCompression",
            Self::Xpress => "kXpressCompression",
            Self::Zstd => "kZSTD",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "ZSTDNotFinal" { Some(Self::Zstd) } else { Self::ALL.into_iter().find(|t| t.name() == name) }
    }
}

/// How blocks are compressed, where the method has a choice.
#[derive(Debug, Clone, Copy)]
pub struct CompressorParams<'a> {
    /// The library's level; [`DEFAULT_LEVEL`] (and RocksDB's 32767) means its default.
    pub level: i32,
    /// zlib: bits of the window, 9 to 14.
    pub window_bits: u8,
    /// ZSTD: put a checksum behind each frame.
    pub checksum: bool,
    /// Compressed bytes for each 1024 of input up to which the result is kept.
    pub bytes_per_kib_max: u32,
    /// The dictionary: contents that blocks have in common, to which zlib, LZ4 and ZSTD refer. Empty for none.
    pub dictionary: &'a [u8],
}

impl Default for CompressorParams<'_> {
    fn default() -> Self {
        Self {
            level: DEFAULT_LEVEL,
            window_bits: ZLIB_WINDOW_BITS,
            checksum: false,
            bytes_per_kib_max: BYTES_PER_KIB_MAX,
            dictionary: &[],
        }
    }
}

/// RocksDB's `max_compressed_bytes_per_kb`: a result above 7/8 of the input is not worth the decompression.
const BYTES_PER_KIB_MAX: u32 = 896;
/// RocksDB's own number for the library's default level.
const ROCKSDB_DEFAULT_LEVEL: i32 = 32767;

/// Compresses blocks of one table, keeping its working memory between calls.
pub struct Compressor {
    engine: Engine,
    bytes_per_kib_max: u32,
    /// For the methods that are given it with each block.
    dictionary: Vec<u8>,
}

enum Engine {
    None,
    Snappy(Box<snap::raw::Encoder>),
    /// `None` if there was no memory for it.
    Zlib(Option<Box<Compress>>),
    Lz4(Lz4Tables),
    Zstd(Box<zstd::bulk::Compressor<'static>>),
}

/// LZ4's working memory. The matches found depend on the kind of table, which therefore must depend only on the input:
/// the library's own choice depends on whether there was a large input before.
#[derive(Default)]
struct Lz4Tables {
    /// For inputs whose places are 16-bit numbers.
    small: Option<Box<CompressTable>>,
    large: Option<Box<CompressTable>>,
}

impl Lz4Tables {
    fn of(&mut self, input_len: usize) -> &mut CompressTable {
        if input_len < usize::from(u16::MAX) {
            self.small.get_or_insert_with(|| Box::new(CompressTable::small()))
        } else {
            self.large.get_or_insert_with(|| Box::new(CompressTable::large()))
        }
    }
}

/// zlib's working memory. If there is not enough memory, the library panics, unlike everything else here; the blocks
/// then stay uncompressed, as in RocksDB.
fn deflate_state(level: Compression, window_bits: u8) -> Option<Box<Compress>> {
    std::panic::catch_unwind(|| Box::new(Compress::new_with_window_bits(level, false, window_bits))).ok()
}

/// True for methods that a dictionary helps.
pub fn takes_dictionary(kind: CompressionType) -> bool {
    matches!(kind, CompressionType::Zlib | CompressionType::Lz4 | CompressionType::Lz4hc | CompressionType::Zstd)
}

/// A dictionary of at most `size_max` bytes, made by ZSTD's trainer from consecutive samples with their lengths. Empty
/// if there are too few samples or they are too similar; RocksDB then compresses without a dictionary.
pub fn train_dictionary(samples: &[u8], lens: &[usize], size_max: usize) -> Vec<u8> {
    zstd::dict::from_continuous(samples, lens, size_max).unwrap_or_default()
}

impl Compressor {
    /// `level` is the library's level; `i32::MAX` (RocksDB's `kDefaultCompressionLevel`) means its default.
    ///
    /// LZ4HC is written as ordinary LZ4, which has the same format; LZ4 and Snappy have no levels here.
    pub fn new(kind: CompressionType, level: i32) -> Result<Self> {
        Self::with_params(kind, &CompressorParams { level, ..CompressorParams::default() })
    }

    /// A compressor with everything that the method lets choose.
    pub fn with_params(kind: CompressionType, params: &CompressorParams<'_>) -> Result<Self> {
        let level = if params.level == ROCKSDB_DEFAULT_LEVEL { DEFAULT_LEVEL } else { params.level };
        let engine = match kind {
            CompressionType::None => Engine::None,
            CompressionType::Snappy => Engine::Snappy(Box::new(snap::raw::Encoder::new())),
            CompressionType::Zlib => {
                let level =
                    if (0..=9).contains(&level) { Compression::new(level as u32) } else { Compression::default() };
                let window_bits = params.window_bits.clamp(ZLIB_WINDOW_BITS_MIN, ZLIB_WINDOW_BITS);
                Engine::Zlib(deflate_state(level, window_bits))
            }
            CompressionType::Lz4 | CompressionType::Lz4hc => Engine::Lz4(Lz4Tables::default()),
            CompressionType::Zstd => {
                let level = if level == DEFAULT_LEVEL { 3 } else { level };
                let unsupported =
                    |e: std::io::Error| FormatError::unsupported(format!("ZSTD compression level {level} ({e})"));
                let mut compressor =
                    zstd::bulk::Compressor::with_dictionary(level, params.dictionary).map_err(unsupported)?;
                if params.checksum {
                    let checksum = zstd_safe::CParameter::ChecksumFlag(true);
                    compressor.set_parameter(checksum).map_err(unsupported)?;
                }
                Engine::Zstd(Box::new(compressor))
            }
            CompressionType::Bzip2 | CompressionType::Xpress => {
                return Err(FormatError::unsupported(format!("{} compression", kind.name())));
            }
        };
        let dictionary = match engine {
            Engine::Zlib(_) | Engine::Lz4(_) => params.dictionary.to_vec(),
            Engine::None | Engine::Snappy(_) | Engine::Zstd(_) => Vec::new(),
        };
        Ok(Self { engine, bytes_per_kib_max: params.bytes_per_kib_max.min(1023), dictionary })
    }

    /// Replaces `out` by the compressed form of `input`, in the shape of format_version 2 and newer (size prefix
    /// where RocksDB writes one). False when the result is not worth keeping: RocksDB keeps it only up to 7/8 of the
    /// input, or what `max_compressed_bytes_per_kb` says. Then `out` holds nothing useful.
    pub fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let limit = ((input.len() as u64 * u64::from(self.bytes_per_kib_max)) >> 10) as usize;
        if limit <= coding::MAX_VARINT32_LEN || input.len() > COMPRESSED_INPUT_LEN_MAX {
            return false;
        }
        match &mut self.engine {
            Engine::None => false,
            Engine::Snappy(encoder) => {
                out.resize(snap::raw::max_compress_len(input.len()), 0);
                let len = encoder.compress(input, out).unwrap_or(usize::MAX);
                keep(out, len, limit)
            }
            Engine::Zlib(deflate) => {
                coding::put_varint32(out, input.len() as u32);
                // Room for the limit and one byte: zlib does not report its end if no byte of room is left, and whether
                // a block of exactly that size is kept must not depend on the room for an earlier one.
                out.reserve_exact(limit + 1 - out.len());
                let Some(deflate) = deflate else { return false };
                deflate.reset();
                if !self.dictionary.is_empty() && deflate.set_dictionary(&self.dictionary).is_err() {
                    return false;
                }
                let done = deflate.compress_vec(input, out, FlushCompress::Finish);
                matches!(done, Ok(Status::StreamEnd)) && out.len() <= limit
            }
            Engine::Lz4(tables) => {
                coding::put_varint32(out, input.len() as u32);
                let prefix = out.len();
                out.resize(prefix + lz4_flex::block::get_maximum_output_size(input.len()), 0);
                let len = if self.dictionary.is_empty() {
                    lz4_flex::block::compress_into_with_table(input, &mut out[prefix..], tables.of(input.len()))
                } else {
                    lz4_flex::block::compress_into_with_dict(input, &mut out[prefix..], &self.dictionary)
                };
                keep(out, len.map_or(usize::MAX, |n| prefix + n), limit)
            }
            Engine::Zstd(compressor) => {
                coding::put_varint32(out, input.len() as u32);
                let prefix = out.len();
                out.resize(limit, 0);
                match compressor.compress_to_buffer(input, &mut out[prefix..]) {
                    Ok(n) => keep(out, prefix + n, limit),
                    Err(_) => false, // does not fit the limit
                }
            }
        }
    }
}

fn keep(out: &mut Vec<u8>, len: usize, limit: usize) -> bool {
    if len > limit {
        return false;
    }
    out.truncate(len);
    true
}

/// A compression dictionary prepared for decompression: the contents of a table's dictionary block.
pub struct Dictionary {
    bytes: Vec<u8>,
    /// What ZSTD makes of the bytes, `None` if they are no dictionary to it; other methods take them as they are.
    zstd: Option<DecoderDictionary<'static>>,
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dictionary({} bytes)", self.bytes.len())
    }
}

impl Dictionary {
    /// Prepares `bytes`, the contents of the table's dictionary block.
    pub fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), zstd: DecoderDictionary::try_copy(bytes).ok() }
    }

    /// Bytes held, about.
    pub fn memory_usage(&self) -> usize {
        2 * self.bytes.len()
    }
}

/// Working memory for decompression, one per thread: a ZSTD context alone is 150 KiB.
struct Contexts {
    snappy: snap::raw::Decoder,
    zlib: Decompress,
    zstd: Option<zstd_safe::DCtx<'static>>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts {
        snappy: snap::raw::Decoder::new(),
        zlib: Decompress::new_with_window_bits(false, ZLIB_WINDOW_BITS),
        zstd: None,
    });
}

/// Decompresses one block. `compression_byte` is the trailer's. Output is bounded: a block that claims more than
/// `size_max` bytes is refused before anything is allocated.
pub fn decompress(compression_byte: u8, input: &[u8], dict: Option<&Dictionary>, size_max: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    decompress_into(compression_byte, input, dict, size_max, &mut out)?;
    Ok(out)
}

/// Like [`decompress`], but replaces the contents of `out`, so that its memory serves again.
pub fn decompress_into(
    compression_byte: u8,
    input: &[u8],
    dict: Option<&Dictionary>,
    size_max: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    out.clear();
    let kind = match CompressionType::from_u8(compression_byte) {
        Some(kind @ (CompressionType::Bzip2 | CompressionType::Xpress)) => {
            return Err(FormatError::unsupported(format!("{} compression", kind.name())));
        }
        Some(kind) => kind,
        None if (0x80..0xff).contains(&compression_byte) => {
            return Err(FormatError::unsupported(format!(
                "custom compression {compression_byte:#04x} of a compression manager"
            )));
        }
        None => return Err(FormatError::corruption(format!("unknown compression byte {compression_byte:#04x}"), 0)),
    };
    let (len, input) = match kind {
        CompressionType::None => (input.len(), input),
        CompressionType::Snappy => {
            let len = snap::raw::decompress_len(input).map_err(|e| damaged(kind, e))?;
            (len, input)
        }
        _ => match coding::varint32(input) {
            Some((len, n)) => (len as usize, input.get(n..).unwrap_or(&[])),
            None => return Err(damaged(kind, "its size prefix is damaged")),
        },
    };
    if len > size_max {
        return Err(damaged(kind, format_args!("it claims {len} bytes, more than the {size_max} that are allowed")));
    }
    if kind == CompressionType::None {
        out.extend_from_slice(input);
        return Ok(());
    }
    // Checked before memory is allocated: sizes that the input cannot have.
    let possible = most_from(kind, input.len());
    if len > possible {
        return Err(damaged(kind, format_args!("it claims {len} bytes, and can have {possible} at most")));
    }
    if kind == CompressionType::Zstd
        && let Ok(Some(frame)) = zstd_safe::get_frame_content_size(input)
        && frame != len as u64
    {
        return Err(damaged(kind, format_args!("it claims {len} bytes, and its frame {frame}")));
    }
    let got = CONTEXTS.with_borrow_mut(|contexts| match kind {
        CompressionType::Snappy => {
            out.resize(len, 0);
            contexts.snappy.decompress(input, out).map_err(|e| damaged(kind, e))
        }
        CompressionType::Zlib => inflate(&mut contexts.zlib, input, dict, len, out).map_err(|e| damaged(kind, e)),
        CompressionType::Zstd => {
            let zstd = contexts.zstd.get_or_insert_with(zstd_safe::DCtx::create);
            out.reserve_exact(len);
            match dict.map(|d| &d.zstd) {
                Some(Some(dict)) => zstd.decompress_using_ddict(out, input, dict.as_ddict()),
                Some(None) => return Err(damaged(kind, "its table's dictionary is damaged")),
                None => zstd.decompress(out, input),
            }
            .map_err(|code| damaged(kind, zstd_safe::get_error_name(code)))
        }
        _ => {
            out.resize(len, 0);
            match dict {
                Some(dict) => lz4_flex::block::decompress_into_with_dict(input, out, &dict.bytes),
                None => lz4_flex::block::decompress_into(input, out),
            }
            .map_err(|e| damaged(kind, e))
        }
    })?;
    if got != len || out.len() != len {
        return Err(damaged(kind, format_args!("it claims {len} bytes and has {got}")));
    }
    Ok(())
}

/// The maximum number of bytes that `input` compressed bytes of this kind can expand to.
fn most_from(kind: CompressionType, input: usize) -> usize {
    let (per_byte, beside) = match kind {
        // A copy of 64 bytes takes three.
        CompressionType::Snappy => (22, 64),
        // A match of 258 bytes takes two bits.
        CompressionType::Zlib => (1032, 1032),
        // A repeated byte fills a block of 128 KiB and takes four bytes.
        CompressionType::Zstd => (32 << 10, 0),
        // Each further byte of a length adds 255.
        _ => (255, 64),
    };
    input.saturating_mul(per_byte).saturating_add(beside)
}

/// Raw deflate. Gives the number of bytes made.
fn inflate(
    inflate: &mut Decompress,
    input: &[u8],
    dict: Option<&Dictionary>,
    len: usize,
    out: &mut Vec<u8>,
) -> std::result::Result<usize, String> {
    inflate.reset(false);
    if let Some(dict) = dict {
        inflate.set_dictionary(&dict.bytes).map_err(|e| e.to_string())?;
    }
    out.resize(len, 0);
    match inflate.decompress(input, out, FlushDecompress::Finish) {
        Ok(Status::StreamEnd) => Ok(inflate.total_out() as usize),
        Ok(_) => Err("its stream does not end".into()),
        Err(e) => Err(e.to_string()),
    }
}

#[cold]
fn damaged(kind: CompressionType, why: impl std::fmt::Display) -> FormatError {
    FormatError::corruption(format!("{} block does not decompress: {why}", kind.name()), 0)
}

/// Checks a table's `rocksdb.compression` property: whether its blocks can be decompressed here.
///
/// Up to format_version 6 it is a [`CompressionType`]'s name. From format_version 7 on it is
/// `MANAGER;TYPES;`, where MANAGER is `BuiltinV2` or empty when nothing is compressed, and TYPES has two hexadecimal
/// digits for each compression byte that occurs.
pub fn check_compression_name(format_version: u32, name: &str) -> Result<()> {
    if name.is_empty() {
        return Ok(()); // before RocksDB 4.9
    }
    if format_version < 7 {
        return match CompressionType::from_name(name) {
            Some(kind @ (CompressionType::Bzip2 | CompressionType::Xpress)) => {
                Err(FormatError::unsupported(format!("{} compression", kind.name())))
            }
            Some(_) => Ok(()),
            None => Err(FormatError::corruption(format!("table property rocksdb.compression is '{name}'"), 0)),
        };
    }
    let mut fields = name.split(';');
    let (Some(manager), Some(types), Some(_)) = (fields.next(), fields.next(), fields.next()) else {
        return Err(FormatError::corruption(format!("table property rocksdb.compression is '{name}'"), 0));
    };
    if !matches!(manager, "" | "BuiltinV2") {
        return Err(FormatError::unsupported(format!("compression manager '{manager}'")));
    }
    let (pairs, rest) = types.as_bytes().as_chunks::<2>();
    for pair in pairs {
        let byte = std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
        match byte.map(|b| (b, CompressionType::from_u8(b))) {
            Some((_, Some(kind @ (CompressionType::Bzip2 | CompressionType::Xpress)))) => {
                return Err(FormatError::unsupported(format!("{} compression", kind.name())));
            }
            Some((_, Some(kind))) if kind != CompressionType::None => {}
            Some((b, None)) if (0x80..0xff).contains(&b) => {
                return Err(FormatError::unsupported(format!("custom compression {b:#04x}")));
            }
            _ => {
                return Err(FormatError::corruption(format!("table property rocksdb.compression is '{name}'"), 0));
            }
        }
    }
    if !rest.is_empty() {
        return Err(FormatError::corruption(format!("table property rocksdb.compression is '{name}'"), 0));
    }
    Ok(())
}

/// True when the `rocksdb.compression` property of a table of `format_version` names a compression. One that has no
/// such property may have compressed blocks all the same.
pub fn names_compression(format_version: u32, name: &str) -> bool {
    match format_version {
        ..7 => !matches!(name, "" | "NoCompression"),
        _ => name.split(';').nth(1).is_some_and(|types| !types.is_empty()),
    }
}

/// The `rocksdb.compression` property of a table of `format_version` whose blocks are compressed with `kind`, where
/// `used` tells whether any of them is.
pub fn compression_name(format_version: u32, kind: CompressionType, used: bool) -> String {
    if format_version < 7 {
        return kind.name().into();
    }
    match (kind, used) {
        (CompressionType::None, _) => ";;".into(),
        (_, false) => "BuiltinV2;;".into(),
        (kind, true) => format!("BuiltinV2;{:02X};", kind as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: [CompressionType; 5] = [
        CompressionType::Snappy,
        CompressionType::Zlib,
        CompressionType::Lz4,
        CompressionType::Lz4hc,
        CompressionType::Zstd,
    ];

    /// Bytes with as much repetition as a real block's.
    fn sample(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
        let mut v = Vec::new();
        while v.len() < len {
            v.extend_from_slice(format!("key{:08}-", rng.u32(0..500)).as_bytes());
            v.push(rng.u8(..));
        }
        v.truncate(len);
        v
    }

    #[test]
    fn a_block_that_zlib_has_no_memory_for_stays_as_it_is() {
        let params = CompressorParams::default();
        let mut compressor = Compressor::with_params(CompressionType::Zlib, &params).unwrap();
        let (input, mut out) = (vec![7; 4000], Vec::new());
        assert!(compressor.compress(&input, &mut out));
        compressor.engine = Engine::Zlib(None);
        assert!(!compressor.compress(&input, &mut out));
    }

    #[test]
    fn what_is_kept_does_not_depend_on_the_room_of_an_earlier_block() {
        let mut rng = fastrand::Rng::with_seed(5);
        for kind in WRITTEN {
            let (mut fresh, mut used) = (Compressor::new(kind, 6).unwrap(), Compressor::new(kind, 6).unwrap());
            let mut roomy = Vec::with_capacity(1 << 16);
            for _ in 0..3000 {
                let len = rng.usize(1..400);
                let input: Vec<u8> = match rng.bool() {
                    true => sample(&mut rng, len),
                    false => std::iter::repeat_with(|| rng.u8(b'a'..b'h')).take(len).collect(),
                };
                let mut tight = Vec::new();
                let (a, b) = (fresh.compress(&input, &mut tight), used.compress(&input, &mut roomy));
                assert_eq!(a, b, "{kind:?}: {} bytes became {} and {}", input.len(), tight.len(), roomy.len());
                assert!(!a || tight == roomy, "{kind:?}");
            }
        }
    }

    #[test]
    fn every_method_round_trips() {
        let mut rng = fastrand::Rng::with_seed(3);
        for kind in WRITTEN {
            let mut compressor = Compressor::new(kind, DEFAULT_LEVEL).unwrap();
            let mut out = Vec::new();
            for len in [200, 1000, 4096, 16 * 1024, 70_000, 300_000] {
                let input = sample(&mut rng, len);
                assert!(compressor.compress(&input, &mut out), "{kind:?} {len}");
                assert!(out.len() * 8 <= len * 7);
                assert_eq!(decompress(kind as u8, &out, None, len).unwrap(), input);
                let error = decompress(kind as u8, &out, None, len - 1).unwrap_err().to_string();
                assert!(error.contains("more than"), "{error}");
            }
            let noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(5000).collect();
            assert!(!compressor.compress(&noise, &mut out), "{kind:?} keeps noise");
            assert!(!compressor.compress(b"short", &mut out));
        }
        assert_eq!(decompress(0, b"plain", None, 5).unwrap(), b"plain");
    }

    #[test]
    fn what_was_compressed_before_does_not_change_the_bytes() {
        // Tables are compressed by whichever thread is free, and must be the same all the same.
        let mut rng = fastrand::Rng::with_seed(4);
        let inputs: Vec<_> = [200, 900, 4096, 4100, 16 << 10, 40_000, 4000, 150_000, 4096, 300, 4096]
            .into_iter()
            .map(|len| sample(&mut rng, len))
            .collect();
        let dictionary = sample(&mut rng, 3000);
        for kind in WRITTEN {
            for level in [DEFAULT_LEVEL, -3, 1, 5, 7, 9, 12, 16] {
                for dictionary in [&[][..], &dictionary] {
                    let params = CompressorParams { level, dictionary, ..CompressorParams::default() };
                    let mut used = Compressor::with_params(kind, &params).unwrap();
                    let (mut a, mut b) = (Vec::new(), Vec::new());
                    for _ in 0..3 {
                        for (i, input) in inputs.iter().enumerate() {
                            let kept = used.compress(input, &mut a);
                            let mut fresh = Compressor::with_params(kind, &params).unwrap();
                            assert_eq!(fresh.compress(input, &mut b), kept, "{kind:?} {level} {i}");
                            assert!(!kept || a == b, "{kind:?} {level} {i} {}", dictionary.len());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_claimed_size_takes_no_memory_that_the_bytes_cannot_fill() {
        let text = [7u8; 4096];
        for kind in CompressionType::ALL {
            let mut packed = Vec::new();
            let Ok(mut compressor) = Compressor::new(kind, 3) else { continue };
            if kind == CompressionType::None || !compressor.compress(&text, &mut packed) {
                continue;
            }
            // In front of every kind is the size, as a varint of two bytes here.
            let mut claims = Vec::new();
            coding::put_varint32(&mut claims, 1 << 30);
            claims.extend_from_slice(&packed[2..]);
            let mut out = Vec::new();
            let e = decompress_into(kind as u8, &claims, None, u32::MAX as usize, &mut out).unwrap_err();
            assert!(e.to_string().contains("claims 1073741824 bytes"), "{e}");
            assert!(out.capacity() < 1 << 20, "{kind:?} took {} bytes", out.capacity());
        }
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let mut rng = fastrand::Rng::with_seed(5);
        for kind in WRITTEN {
            let mut compressor = Compressor::new(kind, DEFAULT_LEVEL).unwrap();
            let input = sample(&mut rng, 3000);
            let mut good = Vec::new();
            assert!(compressor.compress(&input, &mut good));
            for _ in 0..3000 {
                let mut bad = good.clone();
                for _ in 0..rng.usize(1..4) {
                    let at = rng.usize(0..bad.len());
                    bad[at] = rng.u8(..);
                }
                bad.truncate(rng.usize(0..=bad.len()));
                // Changed bytes may still decompress to something of the claimed length.
                if let Ok(out) = decompress(kind as u8, &bad, None, 100_000) {
                    assert!(out.len() <= 100_000);
                }
            }
            // After damage the thread's contexts still work.
            assert_eq!(decompress(kind as u8, &good, None, 3000).unwrap(), input);
        }
    }

    #[test]
    fn dictionaries() {
        let mut rng = fastrand::Rng::with_seed(9);
        let dict_bytes = sample(&mut rng, 2000);
        let input = sample(&mut rng, 3000);
        let dict = Dictionary::new(&dict_bytes);
        let mut frame = Vec::new();
        coding::put_varint32(&mut frame, 3000);
        let prefix = frame.len();
        let mut zstd = zstd::bulk::Compressor::with_dictionary(3, &dict_bytes).unwrap();
        frame.extend_from_slice(&zstd.compress(&input).unwrap());
        assert_eq!(decompress(7, &frame, Some(&dict), 3000).unwrap(), input);

        frame.truncate(prefix);
        frame.extend_from_slice(&lz4_flex::block::compress_with_dict(&input, &dict_bytes));
        assert_eq!(decompress(4, &frame, Some(&dict), 3000).unwrap(), input);

        frame.truncate(prefix);
        frame.reserve(4000);
        let mut deflate = Compress::new_with_window_bits(Compression::default(), false, ZLIB_WINDOW_BITS);
        deflate.set_dictionary(&dict_bytes).unwrap();
        assert_eq!(deflate.compress_vec(&input, &mut frame, FlushCompress::Finish).unwrap(), Status::StreamEnd);
        assert_eq!(decompress(2, &frame, Some(&dict), 3000).unwrap(), input);
        assert_ne!(decompress(2, &frame, None, 3000), Ok(input));
    }

    #[test]
    fn what_was_compressed_with_a_dictionary_needs_it_and_is_smaller() {
        let mut rng = fastrand::Rng::with_seed(11);
        let samples: Vec<Vec<u8>> = (0..100).map(|_| sample(&mut rng, 500)).collect();
        let lens: Vec<usize> = samples.iter().map(Vec::len).collect();
        let trained = train_dictionary(&samples.concat(), &lens, 4000);
        assert!(!trained.is_empty() && trained.len() <= 4000);
        assert!(train_dictionary(b"one", &[3], 4000).is_empty());
        for kind in [CompressionType::Zlib, CompressionType::Lz4, CompressionType::Zstd] {
            assert!(takes_dictionary(kind));
            for bytes in [&samples[..8].concat(), &trained] {
                let params = CompressorParams { dictionary: bytes, ..CompressorParams::default() };
                let mut with = Compressor::with_params(kind, &params).unwrap();
                let mut without = Compressor::new(kind, DEFAULT_LEVEL).unwrap();
                let dict = Dictionary::new(bytes);
                let (mut a, mut b, mut smaller) = (Vec::new(), Vec::new(), 0);
                for _ in 0..20 {
                    let input = sample(&mut rng, 700);
                    assert!(with.compress(&input, &mut a) && without.compress(&input, &mut b));
                    assert_eq!(decompress(kind as u8, &a, Some(&dict), 700).unwrap(), input);
                    smaller += u32::from(a.len() < b.len());
                }
                assert!(smaller > 15, "{kind:?}: {smaller} of 20 blocks are smaller with a dictionary");
            }
        }
        // Bytes that look like a ZSTD dictionary and are none.
        let bad = Dictionary::new(&[0x37, 0xa4, 0x30, 0xec, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let mut plain = Compressor::new(CompressionType::Zstd, DEFAULT_LEVEL).unwrap();
        let mut out = Vec::new();
        assert!(plain.compress(&sample(&mut rng, 700), &mut out));
        assert!(decompress(7, &out, Some(&bad), 700).is_err());
    }

    #[test]
    fn parameters_have_their_effect() {
        let mut rng = fastrand::Rng::with_seed(13);
        let input = sample(&mut rng, 3000);
        let len = |kind, params: &CompressorParams<'_>| {
            let mut out = Vec::new();
            let kept = Compressor::with_params(kind, params).unwrap().compress(&input, &mut out);
            kept.then(|| {
                assert_eq!(decompress(kind as u8, &out, None, 3000).unwrap(), input);
                out.len()
            })
        };
        let usual = CompressorParams::default();
        let zstd = len(CompressionType::Zstd, &usual).unwrap();
        assert_eq!(len(CompressionType::Zstd, &CompressorParams { checksum: true, ..usual }), Some(zstd + 4));
        let strict = CompressorParams { bytes_per_kib_max: 100, ..usual };
        assert_eq!(len(CompressionType::Zstd, &strict), None);
        let narrow = CompressorParams { window_bits: 9, ..usual };
        assert!(len(CompressionType::Zlib, &narrow) > len(CompressionType::Zlib, &usual));
        let fast = CompressorParams { level: 1, ..usual };
        assert!(len(CompressionType::Zlib, &fast) > len(CompressionType::Zlib, &usual));
        let rocksdb_default = CompressorParams { level: 32767, ..usual };
        assert_eq!(len(CompressionType::Zstd, &rocksdb_default), Some(zstd));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (byte, name) in [(3, "BZip2"), (6, "Xpress"), (0x85, "0x85")] {
            let error = decompress(byte, b"xxxx", None, 100).unwrap_err();
            assert!(matches!(error, FormatError::Unsupported { .. }) && error.to_string().contains(name), "{error}");
        }
        assert!(matches!(decompress(9, b"xxxx", None, 100), Err(FormatError::Corruption { .. })));
        assert!(Compressor::new(CompressionType::Bzip2, 1).is_err());
    }

    #[test]
    fn compression_names() {
        for kind in WRITTEN {
            for version in [2, 5, 6, 7] {
                let name = compression_name(version, kind, true);
                assert_eq!(check_compression_name(version, &name), Ok(()));
                assert!(names_compression(version, &name), "{name}");
                let none = compression_name(version, CompressionType::None, false);
                assert!(!names_compression(version, &none), "{none}");
            }
        }
        assert_eq!(compression_name(7, CompressionType::Zstd, true), "BuiltinV2;07;");
        assert_eq!(check_compression_name(7, ";;"), Ok(()));
        assert_eq!(check_compression_name(7, "BuiltinV2;0407;future"), Ok(()));
        for (version, bad) in [(6, "BuiltinV2;07;"), (7, "ZSTD"), (7, "BuiltinV2;0;"), (7, "BuiltinV2;00;")] {
            assert!(matches!(check_compression_name(version, bad), Err(FormatError::Corruption { .. })), "{bad}");
        }
        for (version, bad) in [(6, "BZip2"), (7, "Mine;80;"), (7, "BuiltinV2;80;"), (7, "BuiltinV2;03;")] {
            assert!(matches!(check_compression_name(version, bad), Err(FormatError::Unsupported { .. })), "{bad}");
        }
    }
}
