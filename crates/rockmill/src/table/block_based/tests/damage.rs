//! Damaged tables: an error that names the file, never a panic, never wrong data where there are checksums.

use super::*;
use rockmill_io::RandomAccessFile;

/// A file in memory, to damage at any byte.
#[derive(Debug)]
struct Bytes(Vec<u8>);

impl RandomAccessFile for Bytes {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let from = self.0.get(offset as usize..).unwrap_or(&[]);
        let n = from.len().min(buf.len());
        buf[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }
    fn size(&self) -> u64 {
        self.0.len() as u64
    }
    fn prefetch(&self, _: u64, _: u64) {}
    fn is_direct(&self) -> bool {
        false
    }
}

fn open_bytes(bytes: Vec<u8>, cmp: &InternalKeyComparator) -> crate::Result<Arc<Table>> {
    let options = TableOpenOptions {
        path: "/damaged.sst".into(),
        cmp: cmp.clone(),
        cache: None,
        largest_seqno: None,
        statistics: None,
        read_protection: None,
        prefix_extractor: None,
    };
    Table::open(Arc::new(Bytes(bytes)), options)
}

/// Reads all of a table in every way; returns the first error.
fn read_all(table: &Arc<Table>) -> crate::Result<Entries> {
    let mut out = Vec::new();
    let mut it = table.iter(TableReadOptions::default());
    it.seek_to_first();
    while it.valid() {
        out.push((it.key().to_vec(), it.value().to_vec()));
        it.next();
    }
    it.status()?;
    it.seek_to_last();
    while it.valid() {
        it.prev();
    }
    it.status()?;
    for (k, _) in out.iter().take(50) {
        let mut ctx = GetContext::new(key::user_key(k));
        table.get(k, TableReadOptions::default(), &mut ctx)?;
    }
    Ok(out)
}

fn sample(rng: &mut fastrand::Rng, checksum: ChecksumType) -> (Vec<u8>, Entries, TableBuilderOptions) {
    let cmp = InternalKeyComparator::default();
    let mut o = random_options(rng, cmp.clone());
    o.block_based.checksum = checksum;
    let entries = random_entries(rng, 60, &cmp);
    let fs = MemFileSystem::new();
    build(&fs, &o, &entries, &vec![(b"a".to_vec(), b"b".to_vec(), 3)]);
    (fs.read_to_vec(&o.path).unwrap(), entries, o)
}

#[test]
fn every_flipped_bit_is_found_by_verify() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let (bytes, entries, o) = sample(&mut rng, ChecksumType::Xxh3);
        for _ in 0..400 {
            let mut bad = bytes.clone();
            let at = rng.usize(..bad.len());
            bad[at] ^= 1 << rng.u32(..8);
            // No checksum covers the padding between the handles and the version in an old footer.
            let footer = bad.len() - rockmill_format::footer::FOOTER_LEN_MAX;
            let padding = o.block_based.format_version < 6 && (footer..footer + 41).contains(&at);
            let result = open_bytes(bad, &o.cmp).and_then(|t| {
                let read = read_all(&t);
                if let Ok(read) = &read {
                    assert!(*read == entries, "wrong data, byte {at} of {}", bytes.len());
                }
                t.verify()
            });
            match result {
                Ok(()) => assert!(padding, "damage at byte {at} of {} was not found", bytes.len()),
                Err(e) => assert!(e.message().contains("/damaged.sst"), "{e}"),
            }
        }
    }
}

#[test]
fn damage_without_checksums_never_panics() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let (bytes, _, o) = sample(&mut rng, ChecksumType::None);
        for _ in 0..200 {
            let mut bad = bytes.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bad.len());
                bad[at] = *rng.choice(&[0, 1, 0x7f, 0x80, 0xff, bad[at] ^ 1]).unwrap();
            }
            if let Ok(t) = open_bytes(bad, &o.cmp) {
                let _ = read_all(&t);
                let _ = t.verify();
                let _ = t.anchors(10);
            }
        }
    }
}

#[test]
fn truncated_files_are_errors() {
    let mut rng = fastrand::Rng::with_seed(5);
    let (bytes, _, o) = sample(&mut rng, ChecksumType::Crc32c);
    for len in (0..bytes.len()).step_by(7) {
        let e = open_bytes(bytes[..len].to_vec(), &o.cmp).unwrap_err();
        assert!(e.message().contains("/damaged.sst"), "{e}");
    }
}

/// RocksDB can write an ingested file's sequence number into its properties without updating their checksum.
#[test]
fn a_global_seqno_written_in_place_is_read_and_other_damage_is_not() {
    use rockmill_format::properties::{EXTERNAL_VERSION, GLOBAL_SEQNO};
    let mut o = options(InternalKeyComparator::default());
    o.properties.other.insert(EXTERNAL_VERSION.into(), 2u32.to_le_bytes().to_vec());
    o.properties.other.insert(GLOBAL_SEQNO.into(), 0u64.to_le_bytes().to_vec());
    let k = |u: &str, s| InternalKey::new(u.as_bytes(), s, ValueType::Value).as_bytes().to_vec();
    let fs = MemFileSystem::new();
    build(&fs, &o, &vec![(k("a", 0), b"1".to_vec()), (k("b", 0), b"2".to_vec())], &Vec::new());
    let mut bytes = fs.read_to_vec(&o.path).unwrap();
    // Names share prefixes in the block: the number follows the unshared part of the name.
    let name = b"global_seqno";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len();
    assert_eq!(bytes[at..at + 8], [0; 8]);
    bytes[at] = 77;
    let table = open_bytes(bytes.clone(), &o.cmp).unwrap();
    assert_eq!(table.global_seqno(), Some(77));
    assert_eq!(read_all(&table).unwrap(), [(k("a", 77), b"1".to_vec()), (k("b", 77), b"2".to_vec())]);
    table.verify().unwrap();

    let with_largest = |bytes: &[u8], largest| {
        let options = TableOpenOptions {
            path: "/damaged.sst".into(),
            cmp: o.cmp.clone(),
            cache: None,
            largest_seqno: Some(largest),
            statistics: None,
            read_protection: None,
            prefix_extractor: None,
        };
        Table::open(Arc::new(Bytes(bytes.to_vec())), options)
    };
    with_largest(&bytes, 77).unwrap();
    assert!(with_largest(&bytes, 78).unwrap_err().message().contains("global sequence number 77"));

    bytes[at - name.len() - 4] ^= 1;
    assert_eq!(open_bytes(bytes, &o.cmp).unwrap_err().kind(), crate::ErrorKind::Corruption);
}
