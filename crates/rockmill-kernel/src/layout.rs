//! The numbers of `bpf/layout.h`: what user space and the program share.

macro_rules! layout {
    ($($name:ident = $value:expr;)*) => {
        $(
            #[allow(missing_docs)]
            pub const $name: u32 = $value;
        )*

        /// All of them by name, for the test that compares them with the header.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, u32)] = &[$((stringify!($name), $value)),*];
    };
}

layout! {
    INTERFACE = 5;
    CTL_STATUS = 0;
    CTL_RUN = 4;
    CTL_RUNS = 8;
    CTL_FLAGS = 12;
    CTL_END_PREFIX = 16;
    CTL_END_KEY = 24;
    CTL_END_LEN = 28;
    CTL_BEGIN_KEY = 32;
    CTL_BEGIN_LEN = 36;
    CTL_SKIP = 40;
    CTL_SNAPSHOTS = 44;
    CTL_SNAPSHOT_COUNT = 48;
    CTL_BEGAN = 52;
    CTL_EARLIEST = 56;
    CTL_RECORDS = 64;
    CTL_RECORDS_MAX = 68;
    CTL_RECORD_COUNT = 72;
    CTL_KEYS = 76;
    CTL_KEYS_END = 80;
    CTL_LAST_KEY = 84;
    CTL_LAST_LEN = 88;
    CTL_CHAIN = 92;
    CTL_LAST_PREFIX = 96;
    CTL_OTHERS = 104;
    CTL_LAST_SEQ = 112;
    CTL_HIDDEN = 120;
    CTL_OBSOLETE = 128;
    CTL_ENTRIES = 136;
    CTL_WORK = 144;
    CTL_WORK_MAX = 152;
    CTL_CURRENT = 160;
    CTL_PHASE = 164;
    CTL_LIVE = 168;
    CTL_AT = 172;
    CTL_MARKS = 176;
    CTL_ORDER = 180;
    CTL_RUN_TABLE = 184;
    CTL_KEY_MAX = 188;
    CTL_ZERO = 192;
    CTL_LAST_SLOT = 196;
    CTL_STEPS_MAX = 200;
    CTL_LINEAR_MAX = 204;
    CTL_DETAIL = 208;
    CTL_LEVEL = 212;
    CTL_NOW = 216;
    CTL_FILTERED = 224;
    CTL_SHIFT = 232;
    CTL_SHARED = 236;
    CTL_UNSHARED = 240;
    CTL_VALUE_LEN = 244;
    CTL_STEPS = 248;
    CTL_CALLED = 256;
    CTL_COMBINED = 264;
    CTL_OPERAND = 272;
    CTL_BYTES = 320;
    FLAG_PASS = 1;
    FLAG_DROP = 2;
    FLAG_BOTTOM = 4;
    FLAG_FILTER = 8;
    FLAG_COMBINE = 16;
    CHAIN_HAVE = 1;
    CHAIN_SIMPLE = 2;
    CHAIN_DELETION = 8;
    CHAIN_TOMB = 4;
    CHAIN_OPERANDS = 16;
    PHASE_PRIME = 0;
    PHASE_PICK = 1;
    PHASE_GIVE = 2;
    PHASE_STEP = 3;
    STATUS_PAUSE = 0;
    STATUS_FULL = 1;
    STATUS_DRY = 2;
    STATUS_END = 3;
    STATUS_CORRUPT = 4;
    STATUS_HAND_OVER = 5;
    REASON_KEY = 1;
    REASON_CUT = 2;
    REASON_BLOCK = 3;
    REASON_ORDER = 4;
    NONE = 0xffff_ffff;
    RUN_PREFIX = 0;
    RUN_KEY = 8;
    RUN_KEY_LEN = 12;
    RUN_VALUE = 16;
    RUN_VALUE_LEN = 20;
    RUN_POS = 24;
    RUN_END = 28;
    RUN_STATE = 32;
    RUN_DESCS = 36;
    RUN_DESC_MASK = 40;
    RUN_TAKEN = 44;
    RUN_GIVEN = 48;
    RUN_LAST = 52;
    RUN_NUMBER = 56;
    RUN_SELF = 60;
    RUN_BYTES = 64;
    STATE_NEED = 0;
    STATE_HAS = 1;
    STATE_ENDED = 2;
    DESC_AT = 0;
    DESC_END = 4;
    DESC_RESTART = 8;
    DESC_FLAGS = 12;
    DESC_BYTES = 16;
    DESC_WHOLE = 1;
    DESC_DAMAGED = 2;
    REC_KIND = 0;
    REC_RUN = 4;
    REC_BLOCK = 8;
    REC_KEY = 12;
    REC_KEY_LEN = 16;
    REC_VALUE = 20;
    REC_VALUE_LEN = 24;
    REC_BYTES = 32;
    KIND_ENTRY = 0;
    KIND_NEW = 2;
    KIND_KEPT = 3;
    KIND_BLOCK = 1;
    LINEAR_RUNS = 16;
    COMBINED_MAX = 64;
    SLACK = 40;
    RING_CONTROL = 0;
    RING_STEPS = 4;
    RING_MODE = 8;
    RING_WAIT = 12;
    RING_PHASE = 16;
    RING_HEAD = 20;
    RING_PENDING = 24;
    RING_SUBMITTED = 28;
    RING_ERROR = 32;
    RING_BUSY = 36;
    RING_AWAITED = 40;
    RING_TAIL_AT = 44;
    RING_CQES_AT = 48;
    RING_MASK = 52;
    RING_PLACES = 1024;
    RING_PLACES_MAX = 3072;
    RING_BYTES = 4096;
    MODE_MERGE = 0;
    MODE_WAIT = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`ALL`] adds up to for the version of the interface that this is. Users' objects are compiled with these
    /// numbers, so that each change of one is a new version.
    const FINGERPRINT: (u32, u64) = (5, 0x5c68_810e_1af7_e953);

    #[test]
    fn another_layout_is_another_version_of_the_interface() {
        let bytes = ALL.iter().flat_map(|(name, value)| name.bytes().chain(value.to_le_bytes()));
        let sum = bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, b| (sum ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        assert!(FINGERPRINT == (INTERFACE, sum), "raise INTERFACE, and make this ({INTERFACE}, {sum:#x})");
    }

    #[test]
    fn a_rings_page_is_what_the_ring_takes_it_for() {
        use rockmill_io::ring::program_slot::page;
        let ours = [
            (RING_CONTROL, page::CONTROL),
            (RING_STEPS, page::STEPS),
            (RING_MODE, page::MODE),
            (RING_WAIT, page::WAIT),
            (RING_PHASE, page::PHASE),
            (RING_HEAD, page::HEAD),
            (RING_PENDING, page::PENDING),
            (RING_SUBMITTED, page::SUBMITTED),
            (RING_ERROR, page::ERROR),
            (RING_BUSY, page::BUSY),
            (RING_AWAITED, page::AWAITED),
            (RING_TAIL_AT, page::TAIL_AT),
            (RING_CQES_AT, page::CQES_AT),
            (RING_MASK, page::MASK),
            (RING_PLACES, page::PLACES),
            (RING_PLACES_MAX, page::PLACES_MAX),
            (RING_BYTES, page::BYTES),
        ];
        for (a, b) in ours {
            assert_eq!(a as usize, b);
        }
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        let header = include_str!("../bpf/layout.h");
        let mut found = Vec::new();
        for line in header.lines() {
            let mut words = line.split_whitespace();
            if words.next() != Some("#define") {
                continue;
            }
            let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
            let value = match value.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex.trim_end_matches('u'), 16),
                None => value.parse(),
            };
            found.push((name.to_owned(), value.unwrap()));
        }
        let ours: Vec<(String, u32)> = ALL.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        assert_eq!(found, ours);
    }
}
