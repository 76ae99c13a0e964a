//! Compresses a table's data blocks on other threads, in order.
//!
//! ```text
//! builder ── blocks ──► batch of about 128 KiB ──► helpers, or this thread ──► in order: trailer, file, index
//! ```
//!
//! The cost of a hand-over, such as a wake-up, is per batch, so a batch has many blocks. Its buffers come back and are
//! reused. The compressed form of a block depends only on its contents, so the file is the same whichever thread
//! compressed it.

use std::ops::Range;
use std::sync::Arc;

use rockmill_format::compression::{CompressionType, Compressor};

use super::builder::{compressor_params, count_compression};
use crate::error::{Error, ErrorKind, Result};
use crate::helpers::{Ahead, Help, Piece};
use crate::statistics::{MaybeStatistics, Statistics};
use crate::sync::Mutex;
use crate::table::compression::CompressionOptions;

/// Bytes of blocks that go to another thread at once. Tests have small tables.
const BATCH_BYTES: usize = if cfg!(test) { 1 << 10 } else { 128 << 10 };
/// The most batches in flight, however many helpers there are.
const BATCHES_MAX: usize = 32;

/// How blocks are compressed, and compressors that are not in use.
pub(super) struct Recipe {
    pub kind: CompressionType,
    pub options: CompressionOptions,
    pub dictionary: Vec<u8>,
    pub statistics: Option<Arc<Statistics>>,
    pub idle: Mutex<Vec<Compressor>>,
}

/// Blocks on their way to the file.
pub(super) struct CompressAhead {
    ahead: Ahead<Batch>,
    recipe: Arc<Recipe>,
    filling: Batch,
    spare: Vec<Batch>,
    batches_max: usize,
}

/// Some blocks, one after another.
pub(super) struct Batch {
    recipe: Arc<Recipe>,
    /// Contents, and the keys before and after.
    raw: Vec<u8>,
    keys: Vec<u8>,
    places: Vec<BlockSlot>,
    /// The result for each block that is to be stored compressed. There may be more buffers than blocks, because
    /// buffers are kept.
    compressed: Vec<Vec<u8>>,
}

struct BlockSlot {
    contents: Range<usize>,
    last_key: Range<usize>,
    next_key: Option<Range<usize>>,
    /// The compressed form is worth keeping.
    smaller: bool,
}

/// A block that comes back.
pub(super) struct Block<'a> {
    pub contents: &'a [u8],
    pub compressed: Option<&'a [u8]>,
    pub last_key: &'a [u8],
    /// The first key after it; nothing for the table's last block.
    pub next_key: Option<&'a [u8]>,
}

impl Batch {
    fn new(recipe: &Arc<Recipe>) -> Self {
        Self {
            recipe: Arc::clone(recipe),
            raw: Vec::new(),
            keys: Vec::new(),
            places: Vec::new(),
            compressed: Vec::new(),
        }
    }

    fn add(&mut self, contents: &[u8], last_key: &[u8], next_key: Option<&[u8]>) {
        let contents = append(&mut self.raw, contents);
        let last_key = append(&mut self.keys, last_key);
        let next_key = next_key.map(|key| append(&mut self.keys, key));
        self.places.push(BlockSlot { contents, last_key, next_key, smaller: false });
    }

    fn clear(&mut self) {
        self.raw.clear();
        self.keys.clear();
        self.places.clear();
    }

    /// The blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        self.places.iter().zip(&self.compressed).map(|(place, compressed)| Block {
            contents: &self.raw[place.contents.clone()],
            compressed: place.smaller.then_some(compressed),
            last_key: &self.keys[place.last_key.clone()],
            next_key: place.next_key.clone().map(|key| &self.keys[key]),
        })
    }
}

fn append(to: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = to.len();
    to.extend_from_slice(bytes);
    start..to.len()
}

impl Piece for Batch {
    fn run(&mut self) -> Result<()> {
        let recipe = &*self.recipe;
        let idle = recipe.idle.lock().pop();
        let mut compressor = match idle {
            Some(compressor) => compressor,
            None => Compressor::with_params(recipe.kind, &compressor_params(&recipe.options, &recipe.dictionary))
                .map_err(|e| Error::new(ErrorKind::NotSupported, e.to_string()))?,
        };
        if self.compressed.len() < self.places.len() {
            self.compressed.resize_with(self.places.len(), Vec::new);
        }
        for (place, out) in self.places.iter_mut().zip(&mut self.compressed) {
            let contents = &self.raw[place.contents.clone()];
            let began = recipe.statistics.start_detailed();
            place.smaller = compressor.compress(contents, out);
            count_compression(&recipe.statistics, true, contents.len(), place.smaller.then_some(out.len()), began);
        }
        recipe.idle.lock().push(compressor);
        Ok(())
    }
}

impl CompressAhead {
    pub fn new(help: &Help, recipe: Recipe) -> Self {
        let recipe = Arc::new(recipe);
        Self {
            ahead: Ahead::new(help),
            filling: Batch::new(&recipe),
            recipe,
            spare: Vec::new(),
            batches_max: (2 * help.most() + 2).min(BATCHES_MAX),
        }
    }

    /// Adds a block. True if the limit in flight is reached: then the caller must take the next batch.
    pub fn add(&mut self, contents: &[u8], last_key: &[u8], next_key: Option<&[u8]>) {
        self.filling.add(contents, last_key, next_key);
        if self.filling.raw.len() >= BATCH_BYTES {
            let next = self.spare.pop().unwrap_or_else(|| Batch::new(&self.recipe));
            self.ahead.push(std::mem::replace(&mut self.filling, next));
        }
    }

    /// True at the beginning of a batch.
    pub fn at_batch(&self) -> bool {
        self.filling.places.is_empty()
    }

    /// The next batch that is done, or must be because too many are in flight.
    pub fn take(&mut self) -> Option<Result<Batch>> {
        if self.ahead.len() >= self.batches_max { self.ahead.take() } else { self.ahead.take_done() }
    }

    /// The next batch, to the last.
    pub fn take_all(&mut self) -> Option<Result<Batch>> {
        if let Some(batch) = self.ahead.take() {
            return Some(batch);
        }
        if self.filling.places.is_empty() {
            return None;
        }
        let next = self.spare.pop().unwrap_or_else(|| Batch::new(&self.recipe));
        let mut batch = std::mem::replace(&mut self.filling, next);
        Some(batch.run().map(|()| batch))
    }

    /// Gives the buffers of a batch back.
    pub fn give_back(&mut self, mut batch: Batch) {
        batch.clear();
        self.spare.push(batch);
    }
}
