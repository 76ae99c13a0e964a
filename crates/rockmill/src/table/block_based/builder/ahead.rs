//! Where a builder's blocks are compressed: here, or ahead by helper threads.
//!
//! This is decided again at the beginning of each batch, as cores become idle or busy. It does not change the file:
//! blocks come back in order, and if a decision depends on a table's size, the size is known
//! ([`BlockBasedBuilder::file_size_settled`]).

use rockmill_format::footer::BLOCK_TRAILER_LEN;

use super::super::compress_ahead::{Batch, CompressAhead, Recipe};
use super::super::filter_builder::FilterBuilder;
use super::BlockBasedBuilder;
use crate::error::Result;
use crate::helpers::Help;
use crate::sync::Mutex;
use crate::table::builder::help_for_table;
use rockmill_format::compression::CompressionType;

impl BlockBasedBuilder {
    /// Lets helpers compress data blocks, as many as `parallel_threads` allows; before the first entry.
    pub(crate) fn set_help(&mut self, help: Option<&Help>) {
        let o = &self.options;
        if o.compression == CompressionType::None {
            return;
        }
        self.help = help_for_table(help, &o.compression_opts);
        // Before the first block nothing can fail.
        let _ = self.look_for_help();
    }

    /// Decides where the next blocks are compressed. Their keys follow with them where the filter needs that.
    pub(super) fn look_for_help(&mut self) -> Result<()> {
        let Some(help) = self.help.as_ref().filter(|_| self.held.is_none()) else { return Ok(()) };
        if !help.is_there() {
            self.settle()?;
            self.hand_over = false;
            self.keys_follow = false;
            return Ok(());
        }
        if self.ahead.is_none() {
            let recipe = Recipe {
                kind: self.options.compression,
                options: self.options.compression_opts.clone(),
                dictionary: self.dictionary.clone(),
                statistics: self.options.statistics.clone(),
                idle: Mutex::default(),
            };
            self.ahead = Some(CompressAhead::new(help, recipe));
        }
        self.hand_over = true;
        self.keys_follow = self.has_partitioned_filter();
        Ok(())
    }

    pub(super) fn has_partitioned_filter(&self) -> bool {
        self.filter.as_ref().is_some_and(FilterBuilder::is_partitioned)
    }

    /// After a block was handed over: writes what has come back.
    pub(super) fn write_what_is_done(&mut self) -> Result<()> {
        if !self.ahead.as_ref().is_some_and(CompressAhead::at_batch) {
            return Ok(());
        }
        while let Some(batch) = self.ahead.as_mut().and_then(CompressAhead::take) {
            self.write_batch(batch)?;
        }
        self.look_for_help()
    }

    /// Writes everything that was handed over.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.unwritten == 0 {
            return Ok(());
        }
        while let Some(batch) = self.ahead.as_mut().and_then(CompressAhead::take_all) {
            self.write_batch(batch)?;
        }
        Ok(())
    }

    /// [`Self::file_size_estimate`] when everything that was handed over is written: exact, as without help. If that
    /// fails, the next entry will say so.
    pub(crate) fn file_size_settled(&mut self) -> u64 {
        let _ = self.settle();
        self.file_size_estimate()
    }

    fn write_batch(&mut self, batch: Result<Batch>) -> Result<()> {
        let batch = match batch {
            Ok(batch) => batch,
            Err(e) => return self.fail(e.context(format_args!("{}: compressing", self.options.path.display()))),
        };
        let follow = self.has_partitioned_filter();
        for block in batch.blocks() {
            if follow {
                self.filter_keys(block.contents)?;
            }
            let written = match block.compressed {
                Some(data) => self.writer.write_stored(data, self.options.compression as u8),
                None => self.writer.write_stored(block.contents, 0),
            };
            let handle = match written {
                Ok(handle) => handle,
                Err(e) => return self.fail(e),
            };
            self.unwritten -= (block.contents.len() + BLOCK_TRAILER_LEN) as u64;
            self.properties.num_data_blocks += 1;
            self.properties.data_size = self.writer.offset;
            self.index.add(block.last_key, block.next_key, handle, &self.options.cmp);
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.give_back(batch);
        }
        Ok(())
    }
}
