use rockmill_format::checksum::{crc32c, mask};
use rockmill_format::coding::{put_fixed32, put_varint64};

use super::*;
use crate::compaction::ResolveStats;
use crate::compaction::spec::tests::{bytes, entry, fields, list, number, of_fields, text};
use crate::compaction::wire::{CHECKSUM_LEN, LISTED_MAX};

type Rng = fastrand::Rng;

fn random_properties(rng: &mut Rng) -> TableProperties {
    TableProperties {
        num_entries: number(rng),
        num_deletions: number(rng),
        raw_key_size: number(rng),
        raw_value_size: number(rng),
        column_family_id: number(rng),
        column_family_name: text(rng),
        db_session_id: text(rng),
        key_largest_seqno: rng.bool().then(|| number(rng)),
        other: list(rng, 3, |rng| (format!("user.{}", text(rng)), bytes(rng, 9))).into_iter().collect(),
        ..TableProperties::default()
    }
}

fn random_result(rng: &mut Rng) -> JobResult {
    let job = number(rng);
    if rng.u8(0..4) == 0 {
        return JobResult { job, outcome: Err(Error::new(*rng.choice(&KINDS).unwrap(), text(rng))) };
    }
    let files = list(rng, 4, entry);
    let mut n = || number(rng);
    let dropped = ResolveStats {
        input_records: n(),
        output_records: n(),
        hidden: n(),
        obsolete: n(),
        obsolete_above: n(),
        range_deleted: n(),
        merged: n(),
        filtered: n(),
        blocks_passed: n(),
    };
    let stats = JobStats {
        input_bytes: n(),
        output_bytes: n(),
        input_records: n(),
        output_records: n(),
        wall_micros: n(),
        cpu_micros: n(),
        subcompactions: n(),
        files_covered: n(),
        bytes_covered: n(),
        dropped,
    };
    let properties = files.iter().map(|_| random_properties(rng)).collect();
    JobResult { job, outcome: Ok(JobOutput { files, properties, stats }) }
}

#[test]
fn results_go_there_and_back() {
    for seed in 0..2000 {
        let result = random_result(&mut Rng::with_seed(seed));
        let encoded = result.encode().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let decoded = JobResult::decode(&encoded).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(decoded, result, "seed {seed}");
        assert_eq!(decoded.encode().unwrap(), encoded, "seed {seed}");
        assert_eq!(of_fields::<JobResult>(1, &fields(&encoded)), encoded, "seed {seed}");
    }
    for kind in KINDS {
        let result = JobResult { job: 1, outcome: Err(Error::new(kind, "x")) };
        assert_eq!(JobResult::decode(&result.encode().unwrap()), Ok(result));
    }
}

#[test]
fn damage_is_an_error_or_a_result() {
    let (mut errors, mut results) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let encoded = random_result(&mut rng).encode().unwrap();
        let end = encoded.len() - CHECKSUM_LEN;
        for at in 0..end {
            let mut damaged = encoded.clone();
            damaged[at] ^= 1 << rng.u8(0..8);
            assert!(JobResult::decode(&damaged).is_err() && JobResult::decode(&encoded[..at]).is_err());
            // The same damage with a correct checksum.
            damaged.truncate(if rng.bool() { end } else { at + 1 });
            let checksum = mask(crc32c(&damaged));
            put_fixed32(&mut damaged, checksum);
            match JobResult::decode(&damaged) {
                Ok(result) => {
                    results += 1;
                    let again = result.encode().unwrap_or_else(|e| panic!("seed {seed}, byte {at}: {e}"));
                    assert_eq!(JobResult::decode(&again), Ok(result), "seed {seed}, byte {at}");
                }
                Err(e) => {
                    errors += 1;
                    assert!(e.message().starts_with("job result: "), "seed {seed}, byte {at}: {e}");
                }
            }
        }
    }
    assert!(errors > 1000 && results > 1000, "{errors} errors, {results} results");
}

#[test]
fn a_result_is_an_output_or_an_error() {
    let output = |files: usize| JobOutput {
        files: vec![entry(&mut Rng::with_seed(1)); files],
        properties: vec![TableProperties::default(); files],
        ..JobOutput::default()
    };
    let job = |outcome| JobResult { job: 1, outcome };
    let sound = fields(&job(Ok(output(1))).encode().unwrap());
    let failed = fields(&job(Err(Error::new(ErrorKind::Busy, "x"))).encode().unwrap());
    let cases: [(Vec<_>, &str); 6] = [
        (sound[..1].to_vec(), "one of the fields [2, 3] is missing"),
        ([sound[0].clone(), failed[1].clone(), sound[1].clone()].into(), "more than the error"),
        ([failed.clone(), sound[2..].to_vec()].concat(), "more than the error"),
        (sound[1..].to_vec(), "field 1 is missing"),
        ([sound[0].clone(), (tag::ERROR, vec![16, 0])].into(), "kind of error 16"),
        ([sound[0].clone(), (tag::TABLE, vec![0])].into(), "0 files"),
    ];
    for (fields, what) in cases {
        let e = JobResult::decode(&of_fields::<JobResult>(1, &fields)).unwrap_err();
        assert!(e.kind() == ErrorKind::Corruption && e.message().contains(what), "{what}: {e}");
    }
    let mut vast = Vec::new();
    put_varint64(&mut vast, 1 << 30);
    let e = JobResult::decode(&of_fields::<JobResult>(1, &[sound[0].clone(), (tag::TABLE, vast)])).unwrap_err();
    assert!(e.message().contains("table"), "{e}");

    let full = Error::io("a flush", &std::io::ErrorKind::StorageFull.into()).with_os_error(libc::ENOSPC);
    let decoded = JobResult::decode(&job(Err(full)).encode().unwrap()).unwrap();
    assert!(decoded.outcome.unwrap_err().is_no_space());

    let e = job(Ok(JobOutput { properties: Vec::new(), ..output(1) })).encode().unwrap_err();
    assert!(e.message().contains("without their properties"), "{e}");
    let e = job(Ok(output(LISTED_MAX + 1))).encode().unwrap_err();
    assert!(e.message().contains("fields in lists"), "{e}");
    // The cut is between two characters.
    let long = job(Err(Error::corruption("ä".repeat(40_000)))).encode().unwrap();
    let read = JobResult::decode(&long).unwrap().outcome.unwrap_err();
    assert_eq!((read.kind(), read.message().len()), (ErrorKind::Corruption, 64 << 10));
}
