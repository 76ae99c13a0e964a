//! Blocks that a call of many lookups has read, for its later lookups.
//!
//! The lookups go in the order of their keys, so several in a row often need one block, and the second finds it in the
//! block cache. If the cache does not keep it (it keeps rows, or there is no cache, or the call must not fill it), the
//! block is held here until the call ends, or until [`BYTES_MAX`] of blocks were used after it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use rockmill_io::RandomAccessFile;

use super::CachedBlock;

/// Bytes of all blocks, as many as such a call has for its reads. The block used last is held whatever its size.
const BYTES_MAX: usize = 2 << 20;

/// A block and where it is from. The file is held so that no other file gets its address.
#[derive(Debug)]
struct Held {
    file: Arc<dyn RandomAccessFile>,
    offset: u64,
    block: Arc<CachedBlock>,
}

/// See the module's text. The lookups of a call are one thread's, and share it.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks(RefCell<Blocks>);

#[derive(Debug, Default)]
struct Blocks {
    /// The one used last is the last.
    in_order: VecDeque<Held>,
    bytes: usize,
}

impl HeldBlocks {
    /// Takes out the block at `offset` of a file.
    pub fn take(&self, file: &Arc<dyn RandomAccessFile>, offset: u64) -> Option<Arc<CachedBlock>> {
        let blocks = &mut *self.0.borrow_mut();
        let is_it = |held: &Held| held.offset == offset && Arc::ptr_eq(&held.file, file);
        let held = blocks.in_order.iter().rposition(is_it).and_then(|at| blocks.in_order.remove(at))?;
        blocks.bytes -= held.block.charge();
        Some(held.block)
    }

    /// Holds a block that is not here.
    pub fn put(&self, file: &Arc<dyn RandomAccessFile>, offset: u64, block: Arc<CachedBlock>) {
        let Blocks { in_order, bytes } = &mut *self.0.borrow_mut();
        *bytes += block.charge();
        in_order.push_back(Held { file: Arc::clone(file), offset, block });
        while *bytes > BYTES_MAX && in_order.len() > 1 {
            *bytes -= in_order.pop_front().map_or(0, |held| held.block.charge());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockmill_format::block::BlockLayout;
    use rockmill_io::{FileSystem, MemFileSystem, WriteOptions};
    use std::path::Path;

    #[test]
    fn the_blocks_used_last_are_held() {
        let fs = MemFileSystem::new();
        fs.create(Path::new("/f"), WriteOptions::default()).unwrap().close().unwrap();
        let file = || fs.open_random(Path::new("/f"), false).unwrap();
        let (one, two) = (file(), file());
        let block = |len: usize| {
            let data = vec![0; len].into_boxed_slice();
            let layout = BlockLayout::parse(&data).unwrap();
            Arc::new(CachedBlock::new(data, layout))
        };
        let held = HeldBlocks::default();
        assert!(held.take(&one, 0).is_none());
        for n in 0..4 {
            held.put(&one, n, block(BYTES_MAX / 4 - 1_000));
        }
        assert!(held.take(&two, 0).is_none() && held.take(&one, 4).is_none());
        // Used: no longer the oldest.
        let first = held.take(&one, 0).unwrap();
        assert!(held.take(&one, 0).is_none(), "it was taken out");
        held.put(&one, 0, first);
        held.put(&two, 0, block(BYTES_MAX / 4));
        assert!(held.take(&one, 1).is_none() && held.take(&one, 0).is_some() && held.take(&two, 0).is_some());
        // A large one goes alone.
        held.put(&two, 9, block(2 * BYTES_MAX));
        assert!(held.take(&one, 3).is_none() && held.0.borrow().bytes > 2 * BYTES_MAX);
        assert!(held.take(&two, 9).is_some());
        assert!(held.0.borrow().bytes == 0 && held.0.borrow().in_order.is_empty());
    }
}
