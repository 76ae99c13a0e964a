//! Checksums of blocks, log records and files.

/// Checksum of a table's blocks; the number stands in the footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChecksumType {
    /// Blocks carry no checksum.
    None = 0,
    /// CRC-32C, masked.
    Crc32c = 1,
    /// xxHash, 32 bits.
    XxHash = 2,
    /// Low 32 bits of xxHash64.
    XxHash64 = 3,
    /// RocksDB's use of XXH3: low 32 bits, last byte mixed in.
    Xxh3 = 4,
}

/// CRC-32C of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    let _ = data;
    todo!()
}

/// CRC-32C of the bytes that gave `crc` followed by `data`.
pub fn crc32c_extend(crc: u32, data: &[u8]) -> u32 {
    let _ = (crc, data);
    todo!()
}

/// RocksDB's mask, so that a CRC of bytes that hold CRCs stays useful.
pub fn mask(crc: u32) -> u32 {
    let _ = crc;
    todo!()
}

/// Undoes [`mask`].
pub fn unmask(masked: u32) -> u32 {
    let _ = masked;
    todo!()
}

/// The value that stands in a block's trailer: over `data` and then the one compression-type byte.
pub fn block_checksum(kind: ChecksumType, data: &[u8], compression_byte: u8) -> u32 {
    let _ = (kind, data, compression_byte);
    todo!()
}

/// What format_version 6 and newer adds to a checksum for the block's place in its file
/// (RocksDB `ChecksumModifierForContext`).
pub fn context_modifier(base_context_checksum: u32, offset: u64) -> u32 {
    let _ = (base_context_checksum, offset);
    todo!()
}
