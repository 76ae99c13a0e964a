//! A column family's memtables, their logs, flushes and merges.

use super::*;
use crate::front::MergeMeans;
use crate::options::DbOptions;

#[test]
fn logs_are_needed_until_what_they_hold_is_in_tables() {
    let (options, memory) = (CfOptions::default(), FrontMemory::default());
    let mut front = FamilyFront::new(&InternalKeyComparator::default(), &options, &memory, 3);
    let writers = WritersNow { written: 0, now: 0.0, waited: 0.0 };
    let seal = |front: &mut FamilyFront, log| front.seal(&options, &memory, log, FlushReason::ManualFlush, &writers);
    let put = |front: &FamilyFront, seq| front.view().insert(seq, ValueType::Value, b"k", b"v", None);

    assert!(seal(&mut front, 4).is_none(), "it is empty");
    assert_eq!((front.oldest_log(), front.log_number()), (None, 3));
    front.log_begins(4);
    put(&front, 1);
    front.log_begins(5);
    assert_eq!(front.oldest_log(), Some(4), "data stays where it is");
    let sealed = seal(&mut front, 5).expect("it has an entry");
    assert_eq!((sealed.id, sealed.first_sequence, sealed.stats.entries), (1, 1, 1));

    put(&front, 2);
    let (runs, reason) = front.take_sealed();
    assert_eq!((runs.count(), reason, front.is_flushing()), (1, FlushReason::ManualFlush, true));
    assert!(seal(&mut front, 6).is_some());
    assert_eq!(front.log_number_after(&runs), 5);
    let reader = front.view();
    assert!(front.flush_queue().in_flight);
    front.flushed(&runs, 5);
    let queue = front.flush_queue();
    assert_eq!((queue.waiting, queue.in_flight, front.is_flushing()), (1, false, true), "committed, not ended");
    assert!(!front.waits_for_flush(&CfOptions { min_write_buffer_number_to_merge: 2, ..options.clone() }, false));
    front.flush_ended(&runs, 1.0, 0.0);
    assert_eq!((front.oldest_log(), front.log_number(), front.sealed_count()), (Some(5), 5, 1));
    assert!(!front.is_unflushed(1, true) && front.is_unflushed(2, false));
    assert_eq!(front.active_log(), 6);

    drop(runs);
    assert!(front.flushed_memory() > 0, "a reader has it");
    drop(reader);
    assert_eq!(front.flushed_memory(), 0);
}

/// Values are compressed, and it is unknown how well: the space asked for may be too little, but only a few times.
#[test]
fn a_flush_needs_what_the_last_one_needed_and_more_where_that_was_too_little() {
    let (options, memory, mut front) = index_tables();
    let compressed = CfOptions { compression: CompressionType::Lz4, ..options.clone() };
    let plain = CfOptions { compression: CompressionType::None, ..options.clone() };
    assert_eq!(front.space_for_flush(&plain, 0), front.memory_usage(), "it is empty");
    fill(&mut front, &options, &memory, 1);
    let all = front.space_for_flush(&plain, 0);
    assert!(all >= front.memory_usage());
    assert_eq!(front.space_for_flush(&plain, 9), all);
    let asked = |front: &FamilyFront| [0, 1, 2, 3, u32::MAX].map(|tries| front.space_for_flush(&compressed, tries));
    assert_eq!(asked(&front), [all / 4, all / 2, all, all, all]);
    let (runs, _) = front.take_sealed();
    front.table_has(&runs, runs.data_size() / 2);
    let [first, second, ..] = asked(&front);
    assert!(first > all / 2 && first < all * 7 / 10 && second == all, "{first}, then {second} of {all}");
    front.table_has(&runs, runs.data_size() * 2);
    assert_eq!(asked(&front), [all; 5], "never more than the values have");
    // Almost nothing was left of the last ones.
    front.table_has(&runs, 0);
    assert!(asked(&front)[0] > 0 && (0..9).any(|tries| front.space_for_flush(&compressed, tries) == all));
    let first_level = CfOptions { compression_per_level: vec![CompressionType::None], ..compressed.clone() };
    assert_eq!(front.space_for_flush(&first_level, 0), all);
}

/// Index tables without logs: all values are inline.
fn index_tables() -> (CfOptions, FrontMemory, FamilyFront) {
    let all = DbOptions { fast_capacity: 1 << 20, ..DbOptions::default() };
    let (options, memory) = (CfOptions::default(), FrontMemory::new(&all, &Arc::default()));
    let front = FamilyFront::new(&InternalKeyComparator::default(), &options, &memory, 1);
    (options, memory, front)
}

/// Seals a table of one entry, whose log is `seq`.
fn fill(front: &mut FamilyFront, options: &CfOptions, memory: &FrontMemory, seq: u64) {
    front.log_begins(seq);
    front.view().insert(seq, ValueType::Value, &[b'a' + seq as u8 % 3], &[seq as u8], None);
    let writers = WritersNow { written: 0, now: 0.0, waited: 0.0 };
    front.seal(options, memory, seq + 1, FlushReason::WriteBufferFull, &writers).expect("it has an entry");
}

fn build(merge: &IndexMerge, options: &CfOptions, memory: &FrontMemory) -> MergedIndex {
    let means = MergeMeans { visible: 1000, snapshots: &[], threads: 1, stop: &|| false };
    merge.build(memory, options, &means).expect("a merge").expect("nothing stopped it")
}

fn ids(front: &FamilyFront) -> Vec<Vec<u64>> {
    front.sealed.iter().map(|s| s.table.ids()).collect()
}

#[test]
fn neighbours_of_a_tier_become_one_table_that_holds_their_oldest_log() {
    let (options, memory, mut front) = index_tables();
    fill(&mut front, &options, &memory, 1);
    assert!(front.take_merge().is_none(), "there is one");
    for seq in 2..=40 {
        fill(&mut front, &options, &memory, seq);
        if seq % 3 == 0 {
            while let Some(merge) = front.take_merge() {
                assert!(front.take_merge().is_none(), "one runs");
                assert!(front.merged(&merge, build(&merge, &options, &memory)));
                front.merge_ended(false);
            }
        }
        assert!(front.sealed.iter().zip(front.sealed.iter().skip(1)).all(|(a, b)| a.tier >= b.tier));
        let newest_first: Vec<u64> = ids(&front).into_iter().rev().flatten().collect();
        assert_eq!(newest_first, (1..=seq).rev().collect::<Vec<_>>());
    }
    assert!(front.sealed.len() <= 8 && front.sealed[0].tier <= 5, "{:?}", ids(&front));
    for s in &front.sealed {
        assert_eq!(s.log, s.table.oldest_id(), "the log of the oldest");
    }
    assert!(front.is_unflushed(1, false) && front.oldest_log() == Some(1));
    // Three keys are left of what was merged.
    assert_eq!(front.sealed[0].table.num_entries(), 3);
    let (runs, _) = front.take_sealed();
    assert_eq!((runs.count(), runs.ids().collect::<Vec<_>>()), (40, (1..=40).collect()));
    assert_eq!(front.log_number_after(&runs), 41);
    let reader = front.view();
    front.flushed(&runs, 41);
    front.flush_ended(&runs, 1.0, 0.0);
    assert!(front.sealed.is_empty() && !front.is_unflushed(40, true));
    drop(runs);
    assert!(front.flushed_memory() > 0, "a reader has it");
    drop(reader);
    assert_eq!(front.flushed_memory(), 0);
}

/// What a merged table has itself is held by readers when another has taken its place.
#[test]
fn superseded_tables_are_counted_while_readers_have_them() {
    let (options, memory, mut front) = index_tables();
    let options = CfOptions { memtable_prefix_bloom_size_ratio: 0.01, memtable_whole_key_filtering: true, ..options };
    front.active = memory.memtable(1, &front.cmp, &options);
    let merge_all = |front: &mut FamilyFront| {
        while let Some(merge) = front.take_merge() {
            assert!(front.merged(&merge, build(&merge, &options, &memory)));
            front.merge_ended(false);
        }
    };
    (1..=2).for_each(|seq| fill(&mut front, &options, &memory, seq));
    let plain = front.view();
    merge_all(&mut front);
    let filters = front.flushed_memory();
    assert!((1..front.memory_usage()).contains(&filters), "{filters} bytes of two filters");
    let own = match &front.sealed[0].table {
        SealedTable::Plain(_) => panic!("they were merged"),
        SealedTable::Merged(t) => t.own_memory_usage() as u64,
    };
    let merged = front.view();
    (3..=4).for_each(|seq| fill(&mut front, &options, &memory, seq));
    merge_all(&mut front);
    assert_eq!((front.sealed.len(), front.sealed[0].table.count()), (1, 4));
    // Both views have the third, which was being filled.
    assert_eq!(front.flushed_memory(), filters + filters / 2 + own);
    drop(merged);
    assert_eq!(front.flushed_memory(), filters + filters / 2);
    drop(plain);
    assert_eq!(front.flushed_memory(), 0);
}

/// A manual flush that finds an empty memtable does not wait for what is written to it next: it did not ask for a
/// flush of that, and index tables are not flushed automatically until there are enough.
#[test]
fn nobody_waits_for_what_is_written_after_the_request() {
    let (options, memory, mut front) = index_tables();
    let none = front.newest_id();
    fill(&mut front, &options, &memory, 1);
    assert!(!front.is_unflushed(none, false) && !front.flush_due(&options, false));
    let first = front.newest_id();
    front.request_flush(FlushReason::ManualFlush);
    fill(&mut front, &options, &memory, 2);
    assert!(front.is_unflushed(first, false) && front.flush_due(&options, false));
    let (runs, _) = front.take_sealed();
    front.flushed(&runs, 2);
    front.flush_ended(&runs, 0.0, 0.0);
    assert!(!front.is_unflushed(first, false));
}

/// Nor is a memtable flushed that is sealed while a requested flush runs: otherwise a small run would follow it,
/// and then another.
#[test]
fn a_request_is_for_what_is_sealed() {
    let (options, memory, mut front) = index_tables();
    let end = |front: &mut FamilyFront, runs: SealedRuns, log| {
        front.flushed(&runs, log);
        front.flush_ended(&runs, 1.0, 0.0);
    };
    for by_log in [false, true] {
        let first = front.newest_id() + 1;
        fill(&mut front, &options, &memory, first);
        if by_log {
            assert!(front.request_flush_of_log(first) && front.flush_due(&options, false));
        } else {
            front.request_flush(FlushReason::ManualFlush);
        }
        let (runs, _) = front.take_sealed();
        // Again, of what the flush has.
        front.request_flush(FlushReason::ManualFlush);
        fill(&mut front, &options, &memory, first + 1);
        end(&mut front, runs, first + 1);
        assert!(front.sealed_count() == 1 && !front.flush_due(&options, false), "{by_log}");
        let (runs, _) = front.take_sealed();
        fill(&mut front, &options, &memory, first + 2);
        front.request_flush(FlushReason::ManualFlush);
        end(&mut front, runs, first + 2);
        assert!(front.flush_due(&options, false), "asked for while the other ran, {by_log}");
        let (runs, _) = front.take_sealed();
        // It fails.
        front.flush_ended(&runs, 1.0, 0.0);
        assert!(front.flush_due(&options, false), "what failed is due again, {by_log}");
        let (runs, _) = front.take_sealed();
        end(&mut front, runs, first + 3);
    }
}

#[test]
fn a_merge_of_what_a_flush_took_is_thrown_away() {
    let (options, memory, mut front) = index_tables();
    (1..=3).for_each(|seq| fill(&mut front, &options, &memory, seq));
    let merge = front.take_merge().expect("three are full");
    let merged = build(&merge, &options, &memory);
    let (runs, _) = front.take_sealed();
    assert!(!front.is_wanted(&merge) && !front.merged(&merge, merged));
    front.merge_ended(false);
    assert_eq!(ids(&front), [[1], [2], [3]]);
    // What the flush has is left alone; what comes after it is not.
    fill(&mut front, &options, &memory, 4);
    assert!(front.take_merge().is_none());
    fill(&mut front, &options, &memory, 5);
    let later = front.take_merge().expect("two are full");
    assert!(front.is_wanted(&later) && front.merged(&later, build(&later, &options, &memory)));
    front.merge_ended(false);
    assert_eq!(ids(&front), [vec![1], vec![2], vec![3], vec![5, 4]]);
    assert_eq!(front.log_number_after(&runs), 4);
    front.flushed(&runs, 4);
    front.flush_ended(&runs, 1.0, 0.0);
    assert_eq!((ids(&front), front.oldest_log()), (vec![vec![5, 4]], Some(4)));
}

#[test]
fn a_merge_whose_tables_were_flushed_is_thrown_away() {
    let (options, memory, mut front) = index_tables();
    (1..=2).for_each(|seq| fill(&mut front, &options, &memory, seq));
    let merge = front.take_merge().expect("two are full");
    let merged = build(&merge, &options, &memory);
    let (runs, _) = front.take_sealed();
    front.flushed(&runs, 3);
    front.flush_ended(&runs, 1.0, 0.0);
    fill(&mut front, &options, &memory, 3);
    assert!(!front.is_wanted(&merge) && !front.merged(&merge, merged));
    assert_eq!(ids(&front), [[3]]);
}

/// A failed flush leaves the tables that it took, and they are merged again.
#[test]
fn a_failed_merge_is_the_last_before_a_flush_and_a_failed_flush_is_not() {
    let (options, memory, mut front) = index_tables();
    (1..=2).for_each(|seq| fill(&mut front, &options, &memory, seq));
    let (runs, _) = front.take_sealed();
    assert!(front.take_merge().is_none());
    front.flush_ended(&runs, 1.0, 0.0);
    assert!(front.take_merge().is_some());
    front.merge_ended(true);
    assert!(front.take_merge().is_none());
    // What it was to merge is gone.
    let (runs, _) = front.take_sealed();
    front.flushed(&runs, 3);
    front.flush_ended(&runs, 2.0, 0.0);
    (3..=4).for_each(|seq| fill(&mut front, &options, &memory, seq));
    assert!(front.take_merge().is_some());
}

#[test]
fn memtables_with_values_are_never_merged() {
    let (options, memory) = (CfOptions::default(), FrontMemory::default());
    let mut front = FamilyFront::new(&InternalKeyComparator::default(), &options, &memory, 1);
    (1..=9).for_each(|seq| fill(&mut front, &options, &memory, seq));
    assert!(front.take_merge().is_none() && front.schedule(LogsNow::UNBOUNDED).is_none());
}
