//! Writes the head of a TPH table: a block-based file with the new entries, and a function over all live user keys.

use std::cmp::Ordering;
use std::sync::Arc;

use rockmill_format::key::{self, MAX_SEQUENCE, ValueType};
use rockmill_format::key_buffer::KeyBuffer;
use rockmill_format::{InternalKey, SequenceNumber};
use rockmill_io::WritableFile;
use rockmill_phash::BuildError;

use super::PIECES_MAX;
use super::columns::{BLOCK_BITS, Column, GONE, Places, SHARED};
use super::layout::{self, Head, LOCATOR_BITS_MAX, PieceUse, Totals};
use crate::error::{Error, ErrorKind, Result};
use crate::helpers::{ExtraThreads, Help};
use crate::table::block_based::{BlockBasedBuilder, TPH_BLOCK};
use crate::table::builder::{StopBuild, help_for_table};
use crate::table::options::{TableBuilderOptions, TableSummary};
use crate::table::syncing::SyncingTable;

/// A file whose entries a new table may keep using where they are.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptPiece {
    /// Its number.
    pub number: u64,
    /// The table to which it belongs now; several tables may share it.
    pub table: u64,
    /// First and last user key for which it counts there; `None` all of it.
    pub bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// Its size in bytes.
    pub size: u64,
    /// Its data blocks.
    pub blocks: u64,
    /// Bytes of its file for each byte of its keys and values.
    pub stored_per_byte: f64,
}

/// Where an entry is that a compaction has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Place in [`TableBuilderOptions::pieces`].
    pub piece: u32,
    /// Number of its data block in that file.
    pub block: u64,
    /// It is the only entry of its user key in the table that it was read from, so it may stay where it is.
    pub alone: bool,
}

/// A piece in the table that is being written.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    /// Bytes of keys and values that stay there.
    bytes: u64,
    /// The table needs it.
    needed: bool,
    /// Its number in packed places, from 1; 0 if no key has one.
    number: usize,
}

/// Builds a table. See `docs/tph.md` for why each guarantee holds.
pub struct TphBuilder {
    blocks: BlockBasedBuilder,
    options: TableBuilderOptions,
    /// Who may build the function.
    help: Option<Help>,
    /// Hash and place of each user key.
    hashes: Column,
    places: Places,
    seed: u64,
    /// No function can be made: user keys span blocks, or equal ones may have different bytes.
    without_function: bool,
    totals: Totals,
    /// Of each piece.
    kept: Vec<Kept>,
    kept_bytes: u64,
    /// How many of them it needs.
    used: usize,
    /// The own file has placeholders.
    placeholders: bool,
    /// Deleted user keys after the last entry, and which piece has placeholders for them.
    gone: Vec<(Vec<u8>, Option<u32>)>,
    /// First and last entry; placeholders do not count.
    last_key: KeyBuffer,
    last_block: u64,
    first_key: Vec<u8>,
    seqnos: (SequenceNumber, SequenceNumber),
    /// Of range tombstones.
    tombstone_bounds: Option<(InternalKey, InternalKey)>,
}

impl TphBuilder {
    /// A builder that appends to `file`.
    pub fn new(options: TableBuilderOptions, file: Box<dyn WritableFile>) -> Self {
        let mut blocks = BlockBasedBuilder::new(options.clone(), file);
        blocks.keep_user_keys_whole();
        let p = &options.properties;
        Self {
            blocks,
            help: None,
            hashes: Column::default(),
            places: Places::default(),
            seed: rockmill_phash::hash_key(p.db_id.as_bytes(), p.orig_file_number),
            without_function: !options.cmp.finds_by_bytes(),
            totals: Totals::default(),
            kept: vec![Kept::default(); options.pieces.len()],
            kept_bytes: 0,
            used: 0,
            placeholders: false,
            gone: Vec::new(),
            last_key: KeyBuffer::new(),
            last_block: 0,
            first_key: Vec::new(),
            seqnos: (SequenceNumber::MAX, 0),
            tombstone_bounds: None,
            options,
        }
    }

    /// See [`TableBuilder`](crate::table::TableBuilder).
    pub(crate) fn set_help(&mut self, help: Option<&Help>) {
        self.blocks.set_help(help);
        self.help = help_for_table(help, &self.options.compression_opts);
    }

    /// Adds a point entry, whose value is written to the own file.
    pub fn add(&mut self, ikey: &[u8], value: &[u8]) -> Result<()> {
        if !self.gone.is_empty() {
            self.write_gone()?;
        }
        let new_user_key = self.begins_user_key(ikey);
        self.blocks.add(ikey, value)?;
        let block = self.blocks.block_number();
        if new_user_key {
            self.note_key(ikey, block);
        } else {
            // One that is longer than a block can be.
            self.without_function |= block != self.last_block;
        }
        self.last_block = block;
        self.note(ikey, value.len());
        Ok(())
    }

    /// Adds a point entry that stays where it is. It is the only one of its user key. False if the table may not use
    /// the file: then it is not added.
    pub fn keep(&mut self, ikey: &[u8], value_len: usize, origin: Origin) -> Result<bool> {
        // This comes first: the table may keep using files for these keys, among them the same file or the last one
        // that it may have.
        if !self.gone.is_empty() {
            self.write_gone()?;
        }
        let place = origin.piece as usize;
        if !self.may_use(place) {
            return Ok(false);
        }
        let known = self.options.pieces.get(place).filter(|piece| origin.block < piece.blocks);
        let Some(stored_per_byte) = known.map(|piece| piece.stored_per_byte) else {
            return Err(self.bad(ikey, "stays in a file that the table does not have"));
        };
        let bytes = (ikey.len() + value_len) as u64;
        let number = self.use_piece(place, bytes);
        self.kept_bytes += (bytes as f64 * stored_per_byte) as u64;
        // The block builder checks the order of added entries.
        if !self.last_key.is_empty() {
            match self.options.cmp.compare_user(key::user_key(&self.last_key), key::user_key(ikey)) {
                Ordering::Less => {}
                Ordering::Equal => return Err(self.bad(ikey, "stays where it is, and has other versions")),
                Ordering::Greater => return Err(self.bad(ikey, "is not after the one before")),
            }
        }
        self.note_key(ikey, (number as u64) << BLOCK_BITS | origin.block);
        self.note(ikey, value_len);
        Ok(true)
    }

    /// False if the table already has the file for other keys, since it is listed once, or if it has enough files.
    fn may_use(&self, place: usize) -> bool {
        let pieces = &self.options.pieces;
        // A block that does not exist is refused when it is used.
        let Some(number) = pieces.get(place).map(|p| p.number) else { return true };
        if self.kept[place].needed {
            return true;
        }
        let limit = self.options.tph.map_or(PIECES_MAX, |tph| PIECES_MAX.min(tph.piece_limit as usize));
        if self.used + 1 >= limit {
            return false;
        }
        // They are in descending order.
        let same = |&i: &usize| pieces.get(i).is_some_and(|p| p.number == number);
        let behind = (place + 1..).take_while(same);
        let before = (0..place).rev().take_while(same);
        before.chain(behind).all(|i| !self.kept[i].needed)
    }

    /// Keeps using a piece, for this many bytes. Returns its number in packed places.
    fn use_piece(&mut self, place: usize, bytes: u64) -> usize {
        let Some(kept) = self.kept.get_mut(place) else { return 0 };
        kept.bytes += bytes;
        if !std::mem::replace(&mut kept.needed, true) {
            self.used += 1;
            kept.number = self.used;
        }
        kept.number
    }

    /// Notes that a user key has no entry any more, although files that the table keeps using may have some. If none of
    /// these files holds a placeholder (`held_by`), one is written to the own file. The key comes after the last entry.
    ///
    /// After the table's last entry no lookup reaches it, and a placeholder there would do harm: entries of that user
    /// key may get into an older file of a neighbouring table, and both files later into one table.
    pub fn gone(&mut self, user_key: &[u8], held_by: Option<u32>) {
        self.gone.push((user_key.to_vec(), held_by));
    }

    #[cold]
    fn write_gone(&mut self) -> Result<()> {
        for (user_key, held_by) in std::mem::take(&mut self.gone) {
            let held_by = held_by.filter(|&place| self.may_use(place as usize));
            match held_by.filter(|&piece| (piece as usize) < self.kept.len()) {
                Some(piece) => _ = self.use_piece(piece as usize, 0),
                None => {
                    let placeholder = InternalKey::new(&user_key, 0, ValueType::Placeholder);
                    self.blocks.add(placeholder.as_bytes(), &[])?;
                    self.placeholders = true;
                }
            }
            self.push_key(&user_key, GONE);
        }
        Ok(())
    }

    fn begins_user_key(&self, ikey: &[u8]) -> bool {
        self.last_key.is_empty() || key::user_key(ikey) != key::user_key(&self.last_key)
    }

    fn note_key(&mut self, ikey: &[u8], place: u64) {
        self.totals.user_keys += 1;
        self.push_key(key::user_key(ikey), place);
    }

    fn push_key(&mut self, user_key: &[u8], place: u64) {
        self.hashes.push(rockmill_phash::hash_key(user_key, self.seed));
        self.places.push(place);
    }

    fn note(&mut self, ikey: &[u8], value_len: usize) {
        if self.first_key.is_empty() {
            self.first_key.extend_from_slice(ikey);
        }
        self.last_key.set(ikey);
        let (tag, t) = (key::tag(ikey), &mut self.totals);
        t.entries += 1;
        t.key_bytes += ikey.len() as u64;
        t.value_bytes += value_len as u64;
        match ValueType::from_u8(tag as u8) {
            Some(ValueType::Deletion | ValueType::SingleDeletion) => t.tombstones += 1,
            Some(ValueType::Merge) => t.merge_operands += 1,
            _ => {}
        }
        let seq = tag >> 8;
        self.seqnos = (self.seqnos.0.min(seq), self.seqnos.1.max(seq));
    }

    #[cold]
    fn bad(&self, ikey: &[u8], what: &str) -> Error {
        let key: String = ikey.iter().map(|b| format!("{b:02x}")).collect();
        Error::corruption(format!("{}: key {key} {what}", self.options.path.display()))
    }

    /// Adds a range tombstone; begins rise.
    pub fn add_range_tombstone(&mut self, begin: &[u8], end: &[u8], seq: SequenceNumber) -> Result<()> {
        self.blocks.add_range_tombstone(begin, end, seq)?;
        let smallest = InternalKey::new(begin, seq, ValueType::RangeDeletion);
        let largest = InternalKey::new(end, MAX_SEQUENCE, ValueType::RangeDeletion);
        self.tombstone_bounds = Some(match self.tombstone_bounds.take() {
            Some((s, l)) if self.options.cmp.compare(l.as_bytes(), largest.as_bytes()).is_gt() => (s, l),
            Some((s, _)) => (s, largest),
            None => (smallest, largest),
        });
        self.seqnos = (self.seqnos.0.min(seq), self.seqnos.1.max(seq));
        Ok(())
    }

    /// Bytes that the table counts for, as far as they are known.
    pub fn file_size_estimate(&self) -> u64 {
        self.blocks.file_size_estimate() + self.kept_bytes
    }

    pub(crate) fn file_size_most(&self) -> u64 {
        self.blocks.file_size_most() + self.kept_bytes
    }

    pub(crate) fn file_size_settled(&mut self) -> u64 {
        self.blocks.file_size_settled() + self.kept_bytes
    }

    /// Writes the rest and begins to sync the file.
    pub fn finish_without_waiting(mut self, stop: StopBuild<'_>) -> Result<(TableSummary, SyncingTable)> {
        let pieces: Arc<[KeptPiece]> = Arc::clone(&self.options.pieces);
        if self.placeholders && self.kept.iter().all(|kept| !kept.needed) {
            // A reader that treats a table of one file as a block-based one must not meet placeholders.
            self.kept.iter_mut().take(1).for_each(|kept| kept.needed = true);
        }
        let (first, last) = (key::user_key(&self.first_key), key::user_key(&self.last_key));
        let cmp = &self.options.cmp;
        let uses = |(piece, kept): (&KeptPiece, &Kept)| {
            // The table does not know what the file has outside of this table's keys.
            let (mut from, mut to) = (first, last);
            if let Some((first, last)) = &piece.bounds {
                from = if cmp.compare_user(first, from).is_gt() { first } else { from };
                to = if cmp.compare_user(last, to).is_lt() { last } else { to };
            }
            PieceUse {
                number: piece.number,
                size: piece.size,
                live: ((kept.bytes as f64 * piece.stored_per_byte) as u64).min(piece.size),
                blocks: piece.blocks,
                bounds: (from.to_vec(), to.to_vec()),
            }
        };
        let used = || pieces.iter().zip(&self.kept).filter(|(_, kept)| kept.needed);
        let mut head = Head { own_blocks: 0, totals: self.totals, ..Head::default() };
        head.pieces = used().map(uses).collect();
        head.replaced.before.clone_from(&self.options.replaced.before);
        if !head.pieces.is_empty() {
            head.replaced.by_job.clone_from(&self.options.replaced.by_job);
        }
        let summary_pieces = head.pieces.clone();
        // By the number in packed places, where the blocks of a piece begin, counted over all files but the own one.
        let mut firsts = vec![0; self.used + 1];
        let mut blocks = 0;
        used().for_each(|(piece, kept)| {
            firsts[kept.number] = blocks;
            blocks += piece.blocks;
        });
        let (hashes, places) = (std::mem::take(&mut self.hashes), std::mem::take(&mut self.places));
        let means =
            (!self.without_function).then_some(FunctionMeans { seed: self.seed, help: self.help.as_ref(), stop });
        let (mut summary, file) = self.blocks.finish_with(|own_blocks| {
            head.own_blocks = own_blocks;
            Ok(Some((TPH_BLOCK, tph_block(&head, hashes, places, &firsts, means)?)))
        })?;

        let cmp = &self.options.cmp;
        let points = (!self.first_key.is_empty())
            .then(|| (InternalKey::from_encoded(&self.first_key[..]), InternalKey::from_encoded(&self.last_key[..])));
        let bounds = [points, self.tombstone_bounds].into_iter().flatten().reduce(|(s, l), (s2, l2)| {
            let smallest = if cmp.compare(s.as_bytes(), s2.as_bytes()).is_le() { s } else { s2 };
            let largest = if cmp.compare(l.as_bytes(), l2.as_bytes()).is_ge() { l } else { l2 };
            (smallest, largest)
        });
        (summary.smallest, summary.largest) = bounds.unwrap_or_default();
        summary.smallest_seqno = if self.seqnos.0 == SequenceNumber::MAX { 0 } else { self.seqnos.0 };
        summary.largest_seqno = self.seqnos.1;
        summary.pieces = summary_pieces;
        if !summary.pieces.is_empty() {
            self.totals.write_to(&mut summary.properties);
        }
        Ok((summary, file))
    }

    /// Gives up: closes the file, whose contents are not valid.
    pub fn abandon(self) {
        self.blocks.abandon();
    }
}

/// How a function is built.
#[derive(Clone, Copy)]
struct FunctionMeans<'a> {
    seed: u64,
    help: Option<&'a Help>,
    stop: StopBuild<'a>,
}

impl FunctionMeans<'_> {
    /// Builds with as many threads as the job may have. Their number does not change the bytes.
    fn build(&self, hashes: &[u64]) -> std::result::Result<Vec<u8>, BuildError> {
        let builder = rockmill_phash::Builder::new().seed(self.seed);
        let others = builder.useful_threads(hashes.len()) - 1;
        let extra = self.help.filter(|_| others > 0).map(|help| help.extra(others));
        builder.threads(1 + extra.as_ref().map_or(0, ExtraThreads::count)).build_until(hashes, self.stop)
    }
}

/// The meta block. If no function can be made, or `means` is `None`, the table has none: lookups then search its files
/// in turn.
fn tph_block(
    head: &Head,
    hashes: Column,
    places: Places,
    firsts: &[u64],
    means: Option<FunctionMeans<'_>>,
) -> Result<Vec<u8>> {
    let function = means.map(|means| function_of(hashes, places, &means)).transpose()?;
    if let Some((function, hashes, places)) = function.flatten() {
        let blocks = head.blocks();
        let shared = places.iter().any(|packed| packed == SHARED);
        let bits = layout::locator_bits(blocks + u64::from(shared));
        let place = |packed: u64| match packed >> BLOCK_BITS {
            _ if packed == GONE => None,
            _ if packed == SHARED => Some(blocks),
            0 => Some(packed),
            piece => {
                let first = firsts.get(piece as usize).copied().unwrap_or(0);
                Some(head.own_blocks + first + (packed & ((1 << BLOCK_BITS) - 1)))
            }
        };
        let mut out = head.encode(bits, true);
        if bits <= LOCATOR_BITS_MAX
            && layout::append_finder(&mut out, &function, &hashes, places.iter().map(place), bits)
        {
            return Ok(out);
        }
    }
    Ok(head.encode(0, false))
}

/// A function's bytes, the hashes that it was built from, and the value for each.
type Function = (Vec<u8>, Vec<u64>, Places);

/// The function of the keys' hashes, with these and the keys' places. Different keys with equal hashes become one
/// shared hash: by chance that happens once in 37 million tables of a million keys. `None` for keys chosen by somebody
/// who knows the seed.
fn function_of(hashes: Column, places: Places, means: &FunctionMeans<'_>) -> Result<Option<Function>> {
    let hashes = hashes.into_vec();
    match means.build(&hashes) {
        Err(BuildError::Duplicate { .. }) => {}
        Err(BuildError::Stopped) => return Err(stopped()),
        built => return Ok(built.ok().map(|function| (function, hashes, places))),
    }
    let mut keys: Vec<(u64, u64)> = hashes.into_iter().zip(places.iter()).collect();
    keys.sort_unstable();
    keys.dedup_by(|key, before| {
        let equal = key.0 == before.0;
        if equal {
            before.1 = SHARED;
        }
        equal
    });
    let hashes: Vec<u64> = keys.iter().map(|key| key.0).collect();
    let mut places = Places::default();
    keys.into_iter().for_each(|key| places.push(key.1));
    match means.build(&hashes) {
        Err(BuildError::Stopped) => Err(stopped()),
        built => Ok(built.ok().map(|function| (function, hashes, places))),
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::ShutdownInProgress, "it was stopped")
}
