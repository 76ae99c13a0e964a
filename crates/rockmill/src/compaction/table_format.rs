//! How a job's tables are written, as plain data: the options of the column family that shape a table's bytes, and the
//! names and ids that its properties have.

use rockmill_format::compression::CompressionType;

use crate::error::{Error, Result};
use crate::options::check::{Adjusted, take_cf_options};
use crate::options::{
    BlockBasedIndexType, BlockBasedOptions, CfOptions, CompressionOptions, DataBlockIndexType, DbOptions, TableKind,
    TphTableOptions,
};
use crate::table::{BlockBasedSettings, TphSettings};

/// Where a table comes from, as its properties say it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableOwner {
    /// Database id.
    pub db_id: String,
    /// Id of the session that the job belongs to; the table's unique id is made of it.
    pub db_session_id: String,
    /// Column family's id.
    pub cf_id: u32,
    /// Column family's name.
    pub cf_name: String,
    /// Name of the column family's merge operator; empty without one.
    pub merge_operator: String,
}

/// The options of a column family that shape the bytes of its tables, compression apart.
#[derive(Debug, Clone, PartialEq)]
pub struct TableFormat {
    /// How blocks and the rest of a table are written; for TPH tables, without the options that these do not have.
    pub block_based: BlockBasedSettings,
    /// The options of TPH tables alone; `None` if the tables are block-based.
    pub tph: Option<TphSettings>,
    /// Name of the prefix extractor for the tables' filters; empty without one.
    pub prefix_extractor: String,
}

impl TableFormat {
    /// That of a column family with these options.
    pub fn of(cf: &CfOptions) -> Self {
        let t = &cf.table;
        let mut block_based = BlockBasedSettings {
            block_size: t.block_size,
            block_size_deviation: t.block_size_deviation,
            block_restart_interval: t.block_restart_interval,
            index_block_restart_interval: t.index_block_restart_interval,
            format_version: t.format_version,
            checksum: t.checksum,
            bloom_bits_per_key: t.bloom_bits_per_key,
            whole_key_filtering: t.whole_key_filtering,
            partition_filters: t.partition_filters,
            two_level_index: t.index_type == BlockBasedIndexType::TwoLevelIndexSearch,
            metadata_block_size: t.metadata_block_size,
            hash_index_util_ratio: (t.data_block_index_type == DataBlockIndexType::BinaryAndHash)
                .then_some(t.data_block_hash_table_util_ratio),
        };
        let tph = (cf.table_factory == TableKind::Tph)
            .then_some(TphSettings { piece_limit: cf.tph.piece_limit, garbage_percent: cf.tph.garbage_percent });
        if tph.is_some() {
            // The perfect hash function finds a key, and also shows whether it exists.
            block_based.bloom_bits_per_key = 0.0;
            block_based.hash_index_util_ratio = None;
            (block_based.two_level_index, block_based.partition_filters) = (false, false);
        }
        Self {
            block_based,
            tph,
            prefix_extractor: cf.prefix_extractor.as_ref().map_or_else(String::new, |e| e.name().to_owned()),
        }
    }
}

impl TableFormat {
    /// Refuses tables that no database writes with any options: a spec may come from anywhere.
    pub(super) fn check(&self, compression: CompressionType, opts: &CompressionOptions) -> Result<()> {
        let (index, data) = (BlockBasedIndexType::default(), DataBlockIndexType::default());
        let b = &self.block_based;
        let table = BlockBasedOptions {
            block_size: b.block_size,
            block_size_deviation: b.block_size_deviation,
            block_restart_interval: b.block_restart_interval,
            index_block_restart_interval: b.index_block_restart_interval,
            format_version: b.format_version,
            checksum: b.checksum,
            bloom_bits_per_key: b.bloom_bits_per_key,
            whole_key_filtering: b.whole_key_filtering,
            partition_filters: b.partition_filters,
            index_type: if b.two_level_index { BlockBasedIndexType::TwoLevelIndexSearch } else { index },
            metadata_block_size: b.metadata_block_size,
            data_block_index_type: b.hash_index_util_ratio.map_or(data, |_| DataBlockIndexType::BinaryAndHash),
            data_block_hash_table_util_ratio: b.hash_index_util_ratio.unwrap_or(0.75),
            ..BlockBasedOptions::default()
        };
        let (mut kind, mut tph) = (TableKind::BlockBased, TphTableOptions::default());
        if let Some(t) = &self.tph {
            kind = TableKind::Tph;
            (tph.piece_limit, tph.garbage_percent) = (t.piece_limit, t.garbage_percent);
        }
        let opts = CompressionOptions { enabled: true, ..opts.clone() };
        let mut cf = CfOptions {
            table_factory: kind,
            table,
            tph,
            compression,
            bottommost_compression_opts: opts.clone(),
            ..CfOptions::default()
        };
        take_cf_options("of the job", &mut cf, &DbOptions::default(), &mut Adjusted::default())?;
        let taken = Self { prefix_extractor: self.prefix_extractor.clone(), ..Self::of(&cf) };
        if taken != *self || cf.bottommost_compression_opts != opts {
            let what = "the job's tables are such as no options give";
            return Err(Error::invalid_argument(format!("{what}: {self:?}, {opts:?}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn tph_format(change: impl FnOnce(&mut BlockBasedOptions, &mut TphTableOptions)) -> TableFormat {
        let (mut table, mut tph) = (BlockBasedOptions::default(), TphTableOptions::default());
        change(&mut table, &mut tph);
        tph.set_block_based_options(&table);
        let mut options = Options::default();
        options.set_tph_table_factory(&tph);
        TableFormat::of(&options.cf)
    }

    fn check(format: &TableFormat) -> Result<()> {
        format.check(CompressionType::None, &CompressionOptions { enabled: true, ..CompressionOptions::default() })
    }

    #[test]
    fn tph_tables_have_no_filter_and_no_other_index() {
        let format = tph_format(|table, tph| {
            table.set_block_size(8192);
            table.set_bloom_filter(10.0, false);
            table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
            table.set_partition_filters(true);
            table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
            tph.set_piece_limit(4);
        });
        let plain = TableFormat::of(&CfOptions::default());
        let wanted = BlockBasedSettings { block_size: 8192, ..plain.block_based.clone() };
        assert_eq!((&format.block_based, &plain.tph), (&wanted, &None));
        assert_eq!(format.tph, Some(TphSettings { piece_limit: 4, garbage_percent: 20 }));
        check(&format).unwrap();
    }

    #[test]
    fn tph_tables_that_no_options_give_are_refused() {
        let sound = tph_format(|_, _| {});
        for (piece_limit, garbage_percent, is_sound) in
            [(1, 0, true), (1024, 1000, true), (0, 20, false), (1025, 20, false), (16, 1001, false)]
        {
            let format = TableFormat { tph: Some(TphSettings { piece_limit, garbage_percent }), ..sound.clone() };
            assert_eq!(check(&format).is_ok(), is_sound, "{piece_limit} pieces, {garbage_percent} % garbage");
        }
        let block_based = [
            BlockBasedSettings { bloom_bits_per_key: 10.0, ..sound.block_based.clone() },
            BlockBasedSettings { two_level_index: true, ..sound.block_based.clone() },
            BlockBasedSettings { hash_index_util_ratio: Some(0.75), ..sound.block_based.clone() },
        ];
        for block_based in block_based {
            let format = TableFormat { block_based, ..sound.clone() };
            assert!(check(&format).is_err(), "{format:?}");
            check(&TableFormat { tph: None, ..format }).unwrap();
        }
    }
}
