//! Specs and results as bytes; docs/job-spec.md has them byte by byte.
//!
//! ```text
//! message: magic | varint32 version | field* | fixed32 masked CRC-32C of all before it
//! field:   varint32 tag | varint32 length | bytes
//! ```
//!
//! Tags rise; those of lists may repeat. A reader skips an unknown tag with bit 13 and refuses any other. Every length
//! and count is checked against the available bytes before memory is allocated for it, and the memory of lists is
//! counted.
//!
//! A [`Message`] describes each of its fields once, to a [`Coder`]: that is a [`Writer`], which appends the values that
//! it is shown, or a [`Reader`], which sets them. The description's checks apply in both directions, so that nothing is
//! written that a reader would refuse.
//!
//! This is here and not in `rockmill-format` because its types are the store's: jobs are not part of RocksDB's formats.

use rockmill_format::FormatError;
use rockmill_format::checksum::{crc32c, mask, unmask};
use rockmill_format::coding::{
    Decoder, fixed32_at, put_fixed32, put_fixed64, put_length_prefixed, put_varint32, put_varint64, put_varsigned64,
};
use rockmill_format::edit::{FileEntry, MAX_LEVELS, VersionEdit};

use crate::error::{Error, Result};

/// Longest message, in bytes. Longer ones are neither written nor read.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Longest name, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;
/// The most fields of lists in one message.
pub(super) const LISTED_MAX: usize = 1 << 16;
/// The most bytes of memory that the items of all lists of a message count for.
pub(super) const LISTS_MEMORY_MAX: usize = 16 << 20;
/// Last four bytes.
pub(super) const CHECKSUM_LEN: usize = 4;
/// A tag with this bit may be skipped.
pub(super) const SAFE_TO_IGNORE: u32 = 1 << 13;

/// What an item of a list costs. A byte or two of a message may stand for one item, so the message's length alone does
/// not bound memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    /// The fewest bytes that it takes in the message.
    pub bytes: usize,
    /// Bytes of memory that it counts for: about what it takes while a message is read.
    pub memory: usize,
}

impl Item {
    pub const NUMBER: Self = Self { bytes: 1, memory: 8 };
    pub const TWO_NUMBERS: Self = Self { bytes: 2, memory: 16 };
    pub const KEY_RANGE: Self = Self { bytes: 3, memory: 32 };
    /// A further file of a table.
    pub const PIECE: Self = Self { bytes: 3, memory: 64 };
    /// A field that may repeat.
    pub const FIELD: Self = Self { bytes: 2, memory: 128 };
    /// A file that a part reads, without its blocks.
    pub const PART_FILE: Self = Self { bytes: 2, memory: 128 };
    /// A table, as the MANIFEST describes it.
    pub const FILE: Self = Self { bytes: 20, memory: 512 };
    /// Of a table.
    pub const PROPERTIES: Self = Self { bytes: 1, memory: 512 };
}

/// What a coder says about a value.
pub(super) type Coded<T = ()> = rockmill_format::Result<T>;

/// A message that can be encoded and decoded.
pub(super) trait Message: Clone {
    /// Its name in errors.
    const NAME: &'static str;
    const MAGIC: &'static [u8; 8];
    const VERSION: u32;
    /// Its last tag; the first is 1.
    const TAG_MAX: u32;
    /// Fields that are always there.
    const REQUIRED: &'static [u32];
    /// Fields of which one is always there; empty if there are none.
    const ONE_OF: &'static [u32] = &[];
    /// Fields that may be there several times.
    const LISTS: &'static [u32];

    /// An empty message.
    fn blank() -> Self;

    /// Codes the field with this tag, by [`Coder::field`] or [`Coder::each`].
    fn field<C: Coder>(&mut self, tag: u32, c: &mut C) -> Coded;

    /// Checks the message as a whole; the error says what is wrong.
    fn check(&self) -> std::result::Result<(), String>;
}

/// Writes values, or reads them into their places.
pub(super) trait Coder: Sized {
    /// True if values are read.
    const READS: bool;

    /// A field that may be absent. (When a reader calls this, it is there.)
    fn field(&mut self, there: bool, body: impl FnOnce(&mut Self) -> Coded) -> Coded;
    /// A field for each item of a list.
    fn each<T: Default>(&mut self, items: &mut Vec<T>, body: impl Fn(&mut Self, &mut T) -> Coded) -> Coded;
    /// A 64-bit varint.
    fn number(&mut self, what: &'static str, n: &mut u64) -> Coded;
    /// A zigzag varint.
    fn signed(&mut self, what: &'static str, n: &mut i64) -> Coded;
    fn byte(&mut self, what: &'static str, n: &mut u8) -> Coded;
    fn fixed64(&mut self, what: &'static str, n: &mut u64) -> Coded;
    /// Bytes with their length before them.
    fn bytes(&mut self, what: &'static str, bytes: &mut Vec<u8>) -> Coded;
    /// The bytes up to the end of the field.
    fn rest(&mut self, bytes: &mut Vec<u8>);
    /// How many items follow: never more than there are bytes and memory for.
    fn count(&mut self, what: &'static str, item: Item, n: usize) -> Coded<usize>;
    /// Bytes of memory that further items may count for.
    fn room(&mut self) -> &mut usize;
    /// The next value's position in the field.
    fn offset(&self) -> u64;

    /// Counts `n` items.
    fn take_room(&mut self, what: &'static str, item: Item, n: usize) -> Coded {
        let left = n.checked_mul(item.memory).and_then(|bytes| self.room().checked_sub(bytes));
        let too_many = || format!("{what}: lists that take more than {LISTS_MEMORY_MAX} bytes of memory");
        self.check(left.is_some(), too_many)?;
        *self.room() = left.unwrap_or(0);
        Ok(())
    }

    /// Counts a file with its further ones.
    fn take_file(&mut self, what: &'static str, file: &FileEntry) -> Coded {
        self.take_room(what, Item::FILE, 1)?;
        self.take_room(what, Item::PIECE, file.pieces.len())
    }

    /// An error where `sound` is false.
    fn check(&self, sound: bool, what: impl FnOnce() -> String) -> Coded {
        if sound { Ok(()) } else { Err(FormatError::corruption(what(), self.offset())) }
    }

    /// A 32-bit varint.
    fn number32(&mut self, what: &'static str, n: &mut u32) -> Coded {
        let mut wide = u64::from(*n);
        self.number(what, &mut wide)?;
        *n = self.narrow(what, wide)?;
        Ok(())
    }

    fn size(&mut self, what: &'static str, n: &mut usize) -> Coded {
        let mut wide = *n as u64;
        self.number(what, &mut wide)?;
        *n = self.narrow(what, wide)?;
        Ok(())
    }

    fn signed32(&mut self, what: &'static str, n: &mut i32) -> Coded {
        let mut wide = i64::from(*n);
        self.signed(what, &mut wide)?;
        *n = self.narrow(what, wide)?;
        Ok(())
    }

    fn narrow<W: Copy + std::fmt::Display, N: TryFrom<W>>(&self, what: &'static str, wide: W) -> Coded<N> {
        N::try_from(wide).map_err(|_| FormatError::corruption(format!("{what}: {wide} is too large"), self.offset()))
    }

    /// A number that is at least `before`, as what it is more.
    fn beyond(&mut self, what: &'static str, before: u64, n: &mut u64) -> Coded {
        let mut more = n.wrapping_sub(before);
        self.check(Self::READS || *n >= before, || format!("{what} {n}, which is before {before}"))?;
        self.number(what, &mut more)?;
        self.check(more <= u64::MAX - before, || format!("{what} is beyond 64 bits"))?;
        *n = before + more;
        Ok(())
    }

    fn level(&mut self, level: &mut usize) -> Coded {
        self.size("level", level)?;
        self.check(*level < MAX_LEVELS as usize, || format!("level {level} is not below {MAX_LEVELS}"))
    }

    fn double(&mut self, what: &'static str, n: &mut f64) -> Coded {
        let mut bits = n.to_bits();
        self.fixed64(what, &mut bits)?;
        *n = f64::from_bits(bits);
        self.check(n.is_finite(), || format!("{what} is no number"))
    }

    fn text(&mut self, what: &'static str, text: &mut String) -> Coded {
        let mut bytes = std::mem::take(text).into_bytes();
        self.bytes(what, &mut bytes)?;
        let len = bytes.len();
        self.check(len <= TEXT_BYTES_MAX, || format!("{what} of {len} bytes, of {TEXT_BYTES_MAX} at most"))?;
        let not_utf8 = |_| FormatError::corruption(format!("{what} is not UTF-8"), self.offset());
        *text = String::from_utf8(bytes).map_err(not_utf8)?;
        Ok(())
    }

    /// A byte of flags, the first in its lowest bit.
    fn flags<const N: usize>(&mut self, flags: [&mut bool; N]) -> Coded {
        let mut bits = 0u8;
        for (i, flag) in flags.iter().enumerate() {
            bits |= u8::from(**flag) << i;
        }
        self.byte("flags", &mut bits)?;
        self.check(u32::from(bits) >> N == 0, || format!("flags {bits:#04x}, of which the first {N} are known"))?;
        for (i, flag) in flags.into_iter().enumerate() {
            *flag = bits >> i & 1 != 0;
        }
        Ok(())
    }

    /// One of `all`, as its number among them.
    fn one_of<T: Copy + PartialEq>(&mut self, what: &'static str, value: &mut T, all: &[T]) -> Coded {
        let mut i = all.iter().position(|one| one == value).unwrap_or(0) as u8;
        self.byte(what, &mut i)?;
        let unknown = || FormatError::corruption(format!("{what} {i} is not known"), self.offset());
        *value = *all.get(usize::from(i)).ok_or_else(unknown)?;
        Ok(())
    }

    /// A value whose presence an earlier value determines.
    fn if_there<T: Default>(
        &mut self,
        there: bool,
        value: &mut Option<T>,
        body: impl FnOnce(&mut Self, &mut T) -> Coded,
    ) -> Coded {
        if there { body(self, value.get_or_insert_default()) } else { Ok(()) }
    }

    /// How many items there are, then each.
    fn list<T: Default>(
        &mut self,
        what: &'static str,
        item: Item,
        items: &mut Vec<T>,
        mut body: impl FnMut(&mut Self, &mut T) -> Coded,
    ) -> Coded {
        let n = self.count(what, item, items.len())?;
        debug_assert!(size_of::<T>() <= item.memory, "{what} take more memory than they count for");
        if Self::READS {
            items.clear();
            items.reserve_exact(n); // there is room for so many
        }
        for i in 0..n {
            if Self::READS {
                items.push(T::default());
            }
            items.get_mut(i).map_or(Ok(()), |item| body(self, item))?;
        }
        Ok(())
    }

    /// Files of one level, as a version edit that has nothing else. They are gone once they are written.
    fn files(&mut self, what: &'static str, level: usize, files: &mut Vec<FileEntry>) -> Coded {
        let mut bytes = Vec::new();
        if !Self::READS {
            files.iter().try_for_each(|f| self.take_file(what, f))?;
            let new_files = std::mem::take(files).into_iter().map(|f| (level as u32, f)).collect();
            bytes = VersionEdit { new_files, ..VersionEdit::default() }.encode();
        }
        self.bytes(what, &mut bytes)?;
        if !Self::READS {
            return Ok(());
        }
        let start = self.offset() - bytes.len() as u64;
        let others = || format!("{what} have something other than files of their level");
        let (mut known, mut sound) = (0, Ok(()));
        let edit = VersionEdit::decode_while(&bytes, |edit| {
            let many = edit.deleted_files.len() + edit.compact_cursors.len() + edit.wal_additions.len();
            sound = self.check(many == 0, others);
            if let Some((_, file)) = edit.new_files.get(known).filter(|_| sound.is_ok()) {
                known += 1;
                sound = self.take_file(what, file);
            }
            sound.is_ok()
        });
        let Some(mut edit) = edit.map_err(|e| e.at(start))? else { return sound };
        let new_files = std::mem::take(&mut edit.new_files);
        let alone = edit == VersionEdit::default() && new_files.iter().all(|(l, _)| *l as usize == level);
        self.check(alone, others)?;
        *files = new_files.into_iter().map(|(_, f)| f).collect();
        Ok(())
    }
}

/// The bytes of a message.
///
/// # Errors
/// If the message exceeds the bounds of the encoding, or is not sound.
pub(super) fn encode<M: Message>(message: &M) -> Result<Vec<u8>> {
    write(message).map_err(|e| match e {
        FormatError::Corruption { what, .. } => Error::invalid_argument(format!("a {} with {what}", M::NAME)),
        FormatError::Unsupported { .. } => Error::invalid_argument(format!("{}: {e}", M::NAME)),
    })
}

fn write<M: Message>(message: &M) -> Coded<Vec<u8>> {
    message.check().map_err(|what| FormatError::corruption(what, 0))?;
    let mut message = message.clone();
    let mut out = Writer { bytes: M::MAGIC.to_vec(), tag: 0, listed: 0, room: LISTS_MEMORY_MAX };
    put_varint32(&mut out.bytes, M::VERSION);
    for tag in 1..=M::TAG_MAX {
        out.tag = tag;
        message.field(tag, &mut out)?;
    }
    let len = out.bytes.len() + CHECKSUM_LEN;
    out.check(len <= MESSAGE_BYTES_MAX, || format!("{len} bytes, of {MESSAGE_BYTES_MAX} at most"))?;
    let checksum = mask(crc32c(&out.bytes));
    put_fixed32(&mut out.bytes, checksum);
    Ok(out.bytes)
}

/// Decodes a message from untrusted bytes.
///
/// # Errors
/// `Corruption` that says what is wrong and at which offset; `NotSupported` for what a newer version wrote.
pub(super) fn decode<M: Message>(bytes: &[u8]) -> Result<M> {
    read(bytes).map_err(|e| match &e {
        FormatError::Corruption { .. } => Error::corruption(format!("{}: {e}", M::NAME)),
        FormatError::Unsupported { .. } => Error::not_supported(format!("{}: {e}", M::NAME)),
    })
}

fn read<M: Message>(bytes: &[u8]) -> Coded<M> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        let what = format!("{} bytes, more than the {MESSAGE_BYTES_MAX} that one may have", bytes.len());
        return Err(FormatError::corruption(what, MESSAGE_BYTES_MAX as u64));
    }
    let mut head = Decoder::new(bytes);
    if head.bytes(M::MAGIC.len(), "magic number")? != M::MAGIC {
        return Err(FormatError::corruption(format!("the magic number is another: this is no {}", M::NAME), 0));
    }
    let (version, known) = (head.varint32("version")?, M::VERSION);
    if version != known {
        let what = format!("version {version} of the encoding (version {known} is known)");
        return Err(FormatError::unsupported(what));
    }
    let begin = head.offset() as usize;
    let Some(end) = bytes.len().checked_sub(CHECKSUM_LEN).filter(|&end| end >= begin) else {
        return Err(head.error("the checksum is cut short"));
    };
    let (fields, stored) = (&bytes[..end], unmask(fixed32_at(bytes, end).unwrap_or(0)));
    let computed = crc32c(fields);
    if stored != computed {
        let what = format!("the checksum is {stored:#010x}, that of the bytes before it {computed:#010x}");
        return Err(FormatError::corruption(what, end as u64));
    }
    let mut d = Decoder::new(fields);
    d.bytes(begin, "version")?;
    let (mut message, mut seen, mut last, mut listed) = (M::blank(), 0u32, 0, 0);
    let mut room = LISTS_MEMORY_MAX;
    while !d.is_empty() {
        let at = d.offset();
        let tag = d.varint32("tag")?;
        let in_list = M::LISTS.contains(&tag);
        if tag < last || (tag == last && !in_list) {
            return Err(FormatError::corruption(format!("field {tag} stands behind field {last}"), at));
        }
        last = tag;
        listed += usize::from(in_list);
        if listed > LISTED_MAX {
            return Err(FormatError::corruption(too_many_listed(), at));
        }
        let body = d.length_prefixed("field")?;
        let start = d.offset() - body.len() as u64;
        if !(1..=M::TAG_MAX).contains(&tag) {
            if tag & SAFE_TO_IGNORE != 0 {
                continue;
            }
            let what = format!("field {tag}, which may not be skipped (a newer version may have written it),");
            return Err(FormatError::unsupported(what));
        }
        let mut body = Reader { body: Decoder::new(body), room };
        message.field(tag, &mut body).map_err(|e| e.at(start))?;
        seen |= 1 << tag;
        if !body.body.is_empty() {
            return Err(body.body.error(format!("field {tag} has bytes left over")).at(start));
        }
        room = body.room;
    }
    if let Some(missing) = M::REQUIRED.iter().find(|tag| seen & (1 << **tag) == 0) {
        return Err(d.error(format!("field {missing} is missing")));
    }
    if !M::ONE_OF.is_empty() && M::ONE_OF.iter().all(|tag| seen & (1 << *tag) == 0) {
        return Err(d.error(format!("one of the fields {:?} is missing", M::ONE_OF)));
    }
    message.check().map_err(|what| d.error(what))?;
    Ok(message)
}

fn too_many_listed() -> String {
    format!("more than {LISTED_MAX} fields in lists")
}

/// Appends values.
struct Writer {
    bytes: Vec<u8>,
    tag: u32,
    listed: usize,
    room: usize,
}

impl Coder for Writer {
    const READS: bool = false;

    fn field(&mut self, there: bool, body: impl FnOnce(&mut Self) -> Coded) -> Coded {
        if !there {
            return Ok(());
        }
        let mut inner = Self { bytes: Vec::new(), tag: self.tag, listed: 0, room: self.room };
        body(&mut inner)?;
        self.room = inner.room;
        put_varint32(&mut self.bytes, self.tag);
        put_length_prefixed(&mut self.bytes, &inner.bytes);
        Ok(())
    }

    fn each<T: Default>(&mut self, items: &mut Vec<T>, body: impl Fn(&mut Self, &mut T) -> Coded) -> Coded {
        self.listed += items.len();
        self.check(self.listed <= LISTED_MAX, too_many_listed)?;
        self.take_room("fields in lists", Item::FIELD, items.len())?;
        items.iter_mut().try_for_each(|item| self.field(true, |c| body(c, item)))
    }

    fn number(&mut self, _: &'static str, n: &mut u64) -> Coded {
        put_varint64(&mut self.bytes, *n);
        Ok(())
    }

    fn signed(&mut self, _: &'static str, n: &mut i64) -> Coded {
        put_varsigned64(&mut self.bytes, *n);
        Ok(())
    }

    fn byte(&mut self, _: &'static str, n: &mut u8) -> Coded {
        self.bytes.push(*n);
        Ok(())
    }

    fn fixed64(&mut self, _: &'static str, n: &mut u64) -> Coded {
        put_fixed64(&mut self.bytes, *n);
        Ok(())
    }

    fn bytes(&mut self, _: &'static str, bytes: &mut Vec<u8>) -> Coded {
        put_length_prefixed(&mut self.bytes, bytes);
        Ok(())
    }

    fn rest(&mut self, bytes: &mut Vec<u8>) {
        self.bytes.extend_from_slice(bytes);
    }

    fn count(&mut self, what: &'static str, item: Item, n: usize) -> Coded<usize> {
        self.take_room(what, item, n)?;
        put_varint64(&mut self.bytes, n as u64);
        Ok(n)
    }

    fn room(&mut self) -> &mut usize {
        &mut self.room
    }

    fn offset(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Sets values.
struct Reader<'a> {
    body: Decoder<'a>,
    room: usize,
}

impl Coder for Reader<'_> {
    const READS: bool = true;

    fn field(&mut self, _: bool, body: impl FnOnce(&mut Self) -> Coded) -> Coded {
        body(self)
    }

    fn each<T: Default>(&mut self, items: &mut Vec<T>, body: impl Fn(&mut Self, &mut T) -> Coded) -> Coded {
        self.take_room("fields in lists", Item::FIELD, 1)?;
        let mut item = T::default();
        body(self, &mut item)?;
        items.push(item);
        Ok(())
    }

    fn number(&mut self, what: &'static str, n: &mut u64) -> Coded {
        self.body.varint64(what).map(|read| *n = read)
    }

    fn signed(&mut self, what: &'static str, n: &mut i64) -> Coded {
        self.body.varsigned64(what).map(|read| *n = read)
    }

    fn byte(&mut self, what: &'static str, n: &mut u8) -> Coded {
        self.body.u8(what).map(|read| *n = read)
    }

    fn fixed64(&mut self, what: &'static str, n: &mut u64) -> Coded {
        self.body.fixed64(what).map(|read| *n = read)
    }

    fn bytes(&mut self, what: &'static str, bytes: &mut Vec<u8>) -> Coded {
        self.body.length_prefixed(what).map(|read| *bytes = read.to_vec())
    }

    fn rest(&mut self, bytes: &mut Vec<u8>) {
        *bytes = self.body.bytes(self.body.remaining().len(), "the rest").unwrap_or_default().to_vec();
    }

    fn count(&mut self, what: &'static str, item: Item, _: usize) -> Coded<usize> {
        let mut n = 0;
        self.number(what, &mut n)?;
        let most = self.body.remaining().len() / item.bytes;
        let too_many = || self.body.error(format!("{what}: {n} where there is room for {most}"));
        let n = usize::try_from(n).ok().filter(|&n| n <= most).ok_or_else(too_many)?;
        self.take_room(what, item, n)?;
        Ok(n)
    }

    fn room(&mut self) -> &mut usize {
        &mut self.room
    }

    fn offset(&self) -> u64 {
        self.body.offset()
    }
}
