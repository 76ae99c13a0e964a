//! Kinds of column families, each with its own semantics in reads and compactions; and keys and values by small
//! numbers.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use rockmill::merge_operator::{StringAppendOperator, UInt64AddOperator};
use rockmill::{
    CompactionDecision, CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Comparator,
    HashRangeComparator, Options, ReverseBytewiseComparator,
};

/// How a column family treats its keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing special. The default column family is of this kind.
    #[default]
    Plain,
    /// Merges append with a comma.
    Merging,
    /// Keys descend.
    Reversed,
    /// A compaction filter removes and changes values, see [`Kind::settled`].
    Filtered,
    /// Values begin with the second at which they expire, and a compaction filter removes expired ones ([`Expire`]).
    Expiring,
    /// Keys are deleted by single deletes.
    Single,
    /// Merges add numbers of eight bytes; operands merge with each other.
    Counting,
    /// The case of letters is ignored, and reads use keys in capitals ([`Kind::asked`]): equal keys have different
    /// bytes.
    Folded,
    /// Keys are in the order of a hash (hash range). Ranges are not deleted, and there are no prefixes.
    Hashed,
}

/// The order of [`Kind::Folded`].
#[derive(Debug)]
pub struct FoldedComparator;

impl Comparator for FoldedComparator {
    fn name(&self) -> &str {
        "rockmill.Folded"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        let fold = |key: &[u8]| key.iter().map(u8::to_ascii_lowercase).collect::<Vec<u8>>();
        fold(a).cmp(&fold(b))
    }
}

/// Values of [`Kind::Filtered`] that begin like this may vanish, with every older version of their key.
const EXPIRED: &[u8] = b"expired";
/// Values of [`Kind::Filtered`] that begin like this may lose it.
const OLD: &[u8] = b"old:";

/// The expiry time of values of [`Kind::Expiring`] that may vanish, in seconds since 1970.
const EXPIRED_SECOND: u64 = 1;

/// Keys have numbers below this.
pub const KEYS: u16 = 1800;

/// Bytes after the number of long keys: the length needs more than one byte, and exceeds a small block.
const LONG_KEY_TAIL: usize = 400;

/// The key with a number. Some share a long prefix, some consist of bytes 255, one is empty, some have hundreds of
/// bytes.
pub fn key_bytes(number: u16) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        1..=3 => vec![0xff; usize::from(number)],
        4..=299 => format!("key{number:04}").into_bytes(),
        _ => {
            let mut key = format!("a-longer-shared-prefix/{number:06}").into_bytes();
            if number % 50 == 7 {
                key.resize(key.len() + LONG_KEY_TAIL, b'~');
            }
            key
        }
    }
}

/// A value: its bytes follow from a seed and a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    /// Says which bytes.
    pub seed: u32,
    /// How many, beside what says the seed.
    pub len: u16,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 9] = [
        Kind::Plain,
        Kind::Merging,
        Kind::Reversed,
        Kind::Filtered,
        Kind::Single,
        Kind::Counting,
        Kind::Expiring,
        Kind::Folded,
        Kind::Hashed,
    ];

    /// Its name in histories and in names of column families.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Merging => "merging",
            Self::Reversed => "reversed",
            Self::Filtered => "filtered",
            Self::Expiring => "expiring",
            Self::Single => "single",
            Self::Counting => "counting",
            Self::Folded => "folded",
            Self::Hashed => "hashed",
        }
    }

    /// The kind with a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Options of a column family of this kind on top of those of a configuration.
    pub fn options(self, options: &Options) -> Options {
        let mut o = options.clone();
        match self {
            Self::Merging => o.set_merge_operator_object(Arc::new(StringAppendOperator::default())),
            Self::Counting => o.set_merge_operator_object(Arc::new(UInt64AddOperator)),
            Self::Reversed => o.set_comparator_object(Arc::new(ReverseBytewiseComparator)),
            Self::Filtered => o.set_compaction_filter("rockmill-stress", filter),
            Self::Expiring => o.set_compaction_filter_factory(Expire),
            Self::Folded => {
                o.set_comparator_object(Arc::new(FoldedComparator));
                // Filters compare bytes, so they do not work with such an order.
                o.cf.table.bloom_bits_per_key = 0.0;
                o.cf.memtable_whole_key_filtering = false;
                o.cf.prefix_extractor = None;
            }
            Self::Hashed => {
                o.set_comparator_object(Arc::new(HashRangeComparator));
                o.cf.prefix_extractor = None;
            }
            Self::Plain | Self::Single => {}
        }
        o
    }

    /// True where merges mean something.
    pub fn merges(self) -> bool {
        matches!(self, Self::Merging | Self::Counting)
    }

    /// True if a compaction filter removes and changes values.
    pub fn is_filtered(self) -> bool {
        matches!(self, Self::Filtered | Self::Expiring)
    }

    /// The order of two keys. For [`Self::Folded`], the order of the bytes of the written keys.
    pub fn order(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Reversed => b.cmp(a),
            Self::Hashed => HashRangeComparator.compare(a, b),
            _ => a.cmp(b),
        }
    }

    /// True where keys are in the order of their bytes.
    pub fn is_bytewise(self) -> bool {
        !matches!(self, Self::Reversed | Self::Hashed)
    }

    /// True if ranges can be deleted: the keys in between are those that the caller means.
    pub fn deletes_ranges(self) -> bool {
        self != Self::Hashed
    }

    /// The bytes with which a read looks up a key: equal to the key, but with different bytes if possible.
    pub fn asked(self, key: &[u8]) -> Vec<u8> {
        if self == Self::Folded { key.to_ascii_uppercase() } else { key.to_vec() }
    }

    /// The bytes of a value in a column family of this kind.
    pub fn value_bytes(self, value: Value) -> Vec<u8> {
        if self == Self::Counting {
            return u64::from(value.seed).to_le_bytes().to_vec();
        }
        let mut bytes = match (self, value.seed % 4) {
            // Expired long ago, never expiring, or expiring in the far future.
            (Self::Expiring, 0) => EXPIRED_SECOND.to_be_bytes().to_vec(),
            (Self::Expiring, 1) => 0u64.to_be_bytes().to_vec(),
            (Self::Expiring, _) => u64::MAX.to_be_bytes().to_vec(),
            (Self::Filtered, 0) => EXPIRED.to_vec(),
            (Self::Filtered, 1) => OLD.to_vec(),
            _ => Vec::new(),
        };
        bytes.extend_from_slice(format!("{}:", value.seed).as_bytes());
        let mut rng = fastrand::Rng::with_seed(u64::from(value.seed));
        bytes.extend((0..value.len).map(|_| rng.u8(b'a'..=b'f')));
        bytes
    }

    /// The result of a merge into a key's value.
    pub fn merged(self, existing: Option<&[u8]>, operand: &[u8]) -> Vec<u8> {
        match (self, existing) {
            (Self::Counting, Some(value)) => (number(value).wrapping_add(number(operand))).to_le_bytes().to_vec(),
            (_, Some(value)) => [value, b",", operand].concat(),
            (_, None) => operand.to_vec(),
        }
    }

    /// The value independent of whether a compaction filter has processed it; `None` if it may be gone.
    pub fn settled(self, value: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Filtered if value.starts_with(EXPIRED) => None,
            Self::Filtered => Some(value.strip_prefix(OLD).unwrap_or(value)),
            Self::Expiring if value.starts_with(&EXPIRED_SECOND.to_be_bytes()) => None,
            _ => Some(value),
        }
    }
}

/// The compaction filter of [`Kind::Filtered`].
fn filter(_level: u32, _key: &[u8], value: &[u8]) -> CompactionDecision {
    if value.starts_with(EXPIRED) {
        CompactionDecision::Remove
    } else if let Some(rest) = value.strip_prefix(OLD) {
        CompactionDecision::Change(rest.to_vec())
    } else {
        CompactionDecision::Keep
    }
}

/// The compaction filter of [`Kind::Expiring`]. It must decide like the merge program `expire` in the kernel
/// (rockmill-kernel's `bpf/examples/expire.bpf.c`).
pub struct Expire;

/// The filter of one job.
pub struct ExpireBefore {
    second: u64,
}

impl CompactionFilterFactory for Expire {
    type Filter = ExpireBefore;

    fn create(&mut self, context: CompactionFilterContext) -> ExpireBefore {
        ExpireBefore { second: context.now_micros / 1_000_000 }
    }

    fn name(&self) -> &str {
        "rockmill.Expire"
    }
}

impl CompactionFilter for ExpireBefore {
    fn filter(&mut self, _level: u32, _key: &[u8], value: &[u8]) -> CompactionDecision {
        let expires = value.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        if expires != 0 && expires <= self.second { CompactionDecision::Remove } else { CompactionDecision::Keep }
    }

    fn name(&self) -> &str {
        "an instance of rockmill.Expire"
    }
}

/// A counter's value.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Number of a column family in a history. 0 is the default one, of [`Kind::Plain`].
pub type Slot = u8;

/// The name of a slot's column family. It contains the kind, so that a database alone tells how to open it.
pub fn family_name(slot: Slot, kind: Kind) -> String {
    if slot == 0 { rockmill::DEFAULT_COLUMN_FAMILY_NAME.to_owned() } else { format!("{slot}-{kind}") }
}

/// Slot and kind of the column family with a name; `None` for names that [`family_name`] does not produce.
pub fn named_family(name: &str) -> Option<(Slot, Kind)> {
    if name == rockmill::DEFAULT_COLUMN_FAMILY_NAME {
        return Some((0, Kind::Plain));
    }
    let (slot, kind) = name.split_once('-')?;
    Some((slot.parse().ok().filter(|&slot| slot > 0)?, Kind::named(kind)?))
}
