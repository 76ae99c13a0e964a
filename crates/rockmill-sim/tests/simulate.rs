//! Properties of simulations: the same report each time, consistent sums, and known properties of the strategies.

use rockmill_sim::{Comparison, KeyOrder, Limit, Report, Settings, Split, Workers, Workload, run};

fn small(strategy: &str) -> Settings {
    let mut s = Settings { strategy: strategy.to_owned(), data_bytes: 2 << 30, ..Settings::default() };
    s.options.write_buffer_size = 8 << 20;
    s.options.target_file_size_base = 8 << 20;
    s.options.max_bytes_for_level_base = 32 << 20;
    s
}

fn of(s: &Settings) -> Report {
    run(s).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_seed_gives_the_same_report() {
    for strategy in ["leveled", "tiered"] {
        let s = small(strategy);
        let (a, b) = (of(&s).to_json().to_string(), of(&s).to_json().to_string());
        assert_eq!(a, b);
        let other = Settings { seed: 2, ..s };
        assert_ne!(a, of(&other).to_json().to_string(), "the seed does something");
    }
}

#[test]
fn what_is_written_is_there() {
    for strategy in ["leveled", "tiered"] {
        for keys in [KeyOrder::Uniform, KeyOrder::Sequential] {
            let s = Settings { keys, ..small(strategy) };
            let r = of(&s);
            assert!(!r.wedged && (r.user_bytes / s.data_bytes as f64 - 1.0).abs() < 1e-6);
            let stored: u64 = r.levels.iter().map(|l| l.1).sum();
            // All except the last memtables, with eight bytes for each entry.
            let expected = s.data_bytes as f64 * (1048.0 / 1040.0);
            let missing = expected - stored as f64;
            assert!((-1e6..40e6).contains(&missing), "{strategy} {keys:?}: {missing} bytes missing");
            assert!((0.9..1.05).contains(&r.space), "each key once: {}", r.space);
            let written = r.flushed_bytes + r.compacted_bytes;
            assert!((r.write_amplification() - written / r.user_bytes).abs() < 1e-9);
            assert!(r.compacted_bytes <= r.read_bytes * 1.001, "a merge writes no more than it reads");
        }
    }
    let r = of(&Settings { keys: KeyOrder::Sequential, ..small("leveled") });
    assert!(r.write_amplification() < 1.2 && r.moves > 0, "sorted input moves: {}", r.write_amplification());
}

/// If cores are scarce, workers' cores help as far as the host's part of a job and the network allow.
#[test]
fn workers_take_what_the_cores_cannot() {
    let with = |workers: Option<Workers>| {
        let s = Settings { threads: 8, cores: 2.0, merge_ns_per_entry: 4000.0, workers, ..small("leveled") };
        let r = of(&s);
        assert!(!r.wedged);
        r
    };
    let workers = |cores, network, host_part| Some(Workers { cores, network, host_part, input_bytes_min: 1e6 });
    let local = with(None).seconds;
    let half = with(workers(8.0, 1.25e9, 0.5)).seconds;
    let tenth = with(workers(8.0, 1.25e9, 0.1)).seconds;
    assert!(half < 0.9 * local && tenth < 0.9 * half, "{local}, {half} and {tenth} s");
    // A worker with half a core, or a network of 20 MB/s, does not help: writers wait for it.
    for slow in [workers(0.5, 1.25e9, 0.1), workers(8.0, 20e6, 0.1)] {
        let r = with(slow);
        assert!(r.seconds > 0.9 * local, "{} and {local} s", r.seconds);
        assert!(r.limits.part(Limit::Workers) > 0.3, "{}", r.to_text());
    }
    let bad = Settings { workers: workers(8.0, 0.0, 0.5), ..small("leveled") };
    assert!(run(&bad).expect_err("no network").to_string().contains("workers need"));
}

/// A run's figures do not change if it continues after the last write; deferred work is done then.
#[test]
fn what_is_put_off_is_paid_until_rest() {
    for strategy in ["leveled", "df-leveled", "tiered", "df-tiered", "classic-leveled", "classic-tiered"] {
        let s = Settings { threads: 8, ..small(strategy) };
        let (without, with) = (of(&s), of(&Settings { settle: true, ..s }));
        let settled = with.settled.clone().unwrap_or_else(|| panic!("{strategy} came to no rest"));
        let text = with.to_text();
        assert!(!with.wedged && text.contains("nothing left to do"), "{text}");
        assert_eq!(Report { settled: None, ..with }.to_json(), without.to_json(), "{strategy}");
        assert!(settled.write_amplification >= without.write_amplification() - 1e-9, "{strategy}: {settled:?}");
        let bytes = |levels: &[(usize, u64)]| levels.iter().map(|l| l.1).sum::<u64>() as f64;
        // Each key was written once; data in memory at the last write may have been flushed since.
        let more = bytes(&settled.levels) - bytes(&without.levels);
        assert!((-1e6..40e6).contains(&more), "{strategy}: {more} bytes more");
        let l0 = settled.levels.first().map_or(0, |l| l.0);
        assert!(
            settled.runs <= if strategy.ends_with("tiered") { 20 } else { 10 } && l0 <= 4,
            "{strategy}: {settled:?}"
        );
    }
}

#[test]
fn tiered_writes_less_and_takes_more_space_and_runs() {
    let overwrite = |strategy: &str| {
        let mut s = small(strategy);
        (s.workload, s.write_bytes, s.data_bytes) = (Workload::Overwrite, 2 << 30, 1 << 30);
        // The rate keeps both busy. With little to do, tiered compaction merges the smallest runs immediately and
        // writes more; with a backlog, leveled compaction's jobs are larger and write as little.
        s.ingest_rate = 200 << 20;
        of(&s)
    };
    let (l, t) = (overwrite("leveled"), overwrite("tiered"));
    assert!(
        t.write_amplification() < l.write_amplification(),
        "{} {}",
        t.write_amplification(),
        l.write_amplification()
    );
    assert!(t.space > l.space && l.space < 1.6, "{} {}", t.space, l.space);
    assert!(t.space < 3.3, "max_size_amplification_percent bounds it: {}", t.space);
}

#[test]
fn hot_keys_are_written_less_often_than_they_are_changed() {
    let of_keys = |keys| {
        let mut s = small("leveled");
        (s.workload, s.keys, s.write_bytes) = (Workload::Overwrite, keys, 2 << 30);
        of(&s)
    };
    let (u, z) = (of_keys(KeyOrder::Uniform), of_keys(KeyOrder::Zipfian(0.99)));
    assert!(z.flushed_bytes < u.flushed_bytes * 0.9);
    assert!(z.write_amplification() < u.write_amplification());
}

#[test]
fn more_threads_and_a_slower_device_are_felt() {
    let with = |threads, device_write: f64| {
        let mut s = small("leveled");
        s.options.level_compaction_dynamic_level_bytes = false;
        (s.threads, s.device_write) = (threads, device_write);
        of(&s)
    };
    let (one, four) = (with(1, 2.5e9), with(4, 2.5e9));
    assert!(four.throughput() > one.throughput() * 1.2, "{} {}", four.throughput(), one.throughput());
    assert!(one.parallelism() <= 1.0 + 1e-9 && four.parallelism() > 1.0);
    let slow = with(4, 50e6);
    assert!(slow.throughput() < four.throughput() / 2.0);
    assert!(slow.stopped_seconds + slow.delayed_seconds > slow.seconds / 4.0);
    // Writers that want less than the store can do are not delayed.
    let mut s = small("leveled");
    s.ingest_rate = 10 << 20;
    let r = of(&s);
    assert!((r.throughput() / (10u64 << 20) as f64 - 1.0).abs() < 0.01 && r.stopped_seconds == 0.0, "{r:?}");
}

/// An hour of overwrites with concurrent reads, at a sustainable rate and at a slightly higher one: no writer waits for
/// a tenth of a second, and writers get the rate that compactions can absorb.
#[test]
fn an_hour_of_overwrites_beside_reads_has_no_long_stall() {
    for (strategy, sustained) in [("leveled", 45u64), ("tiered", 55)] {
        for rate in [sustained << 20, (sustained << 20) * 5 / 4] {
            let mut s =
                Settings { strategy: strategy.to_owned(), workload: Workload::Overwrite, ..Settings::default() };
            (s.cores, s.device_read, s.device_write, s.device_total) = (4.0, 1000e6, 600e6, 1200e6);
            (s.ingest_rate, s.write_bytes, s.reads_per_second) = (rate, rate * 3600, 20_000.0);
            s.options.table.bloom_bits_per_key = 10.0;
            let r = of(&s);
            let what = format!("{strategy}, {} MiB/s: {:?}, {} s", rate >> 20, r.waits.reason, r.waits.longest);
            assert!(r.seconds >= 3599.0 && r.waits.longest < 0.1 && r.stopped_seconds == 0.0, "{what}");
            assert!(r.waits.percentile(99.9) <= 0.002, "{what}");
            assert!(r.throughput() > 0.99 * (sustained << 20) as f64, "{what}: {}", r.throughput());
            // A scarce resource is shared in proportion.
            assert!(r.reads / r.seconds > 0.3 * s.reads_per_second, "{what}: {} reads", r.reads / r.seconds);
        }
    }
}

/// An unlimited writer on a slower device: memory fills up during a flush, and the writer is slowed down until the
/// flush ends, but not stopped.
#[test]
fn a_slow_device_slows_an_unbounded_writer_and_does_not_stop_it() {
    for strategy in ["leveled", "df-leveled"] {
        let r = of(&on_a_slow_device(strategy));
        let what = format!("{strategy}: {:?}, {} s; stopped {} s", r.waits.reason, r.waits.longest, r.stopped_seconds);
        assert!(r.waits.longest < 0.05 && r.stopped_seconds < 0.02 * r.seconds, "{what}");
        assert!(r.waits.percentile(99.9) <= 0.002, "{what}");
        let memtables = r.stalls.iter().filter(|s| s.0 == "memtables").map(|s| s.1).sum::<f64>();
        // Otherwise it waits for the tree.
        assert!(memtables > 0.1 * r.seconds, "{what}: {memtables} s for flushes");
    }
}

/// `fillrandom` as in docs/benchmarks/df-compaction.md, "DF-compaction on a slowed device".
fn on_a_slow_device(strategy: &str) -> Settings {
    let mut s = Settings { strategy: strategy.to_owned(), threads: 5, write_ns: 1000.0, ..Settings::default() };
    (s.cores, s.value_bytes, s.data_bytes) = (2.0, 1000, 1_500 << 20);
    (s.device_read, s.device_write, s.device_total) = (314_572_800.0, 262_144_000.0, 1e10);
    (s.options.write_buffer_size, s.options.target_file_size_base) = (16 << 20, 16 << 20);
    s.options.max_bytes_for_level_base = 64 << 20;
    s
}

/// Each run reports what limited it, and changing that limit changes the result.
#[test]
fn a_run_says_what_limits_it() {
    let with = |change: fn(&mut Settings)| {
        let mut s = small("leveled");
        change(&mut s);
        let r = of(&s);
        let all: f64 = Limit::ALL.into_iter().map(|l| r.limits.part(l)).sum();
        assert!((all - 1.0).abs() < 1e-6, "{:?}", r.limits);
        let (most, _) = r.limits.largest()[0];
        assert!(r.to_text().contains(most.words()), "{}", r.to_text());
        most
    };
    assert_eq!(with(|s| s.ingest_rate = 10 << 20), Limit::Writers);
    assert_eq!(with(|s| s.device_write = 50e6), Limit::Device);
    assert_eq!(with(|s| s.cores = 0.5), Limit::Cores);
    assert_eq!(with(|s| (s.threads, s.overlap, s.merge_ns_per_byte) = (1, false, 4.0)), Limit::Threads);
    let jobs = |s: &mut Settings| {
        (s.strategy, s.threads, s.overlap, s.merge_ns_per_byte) = ("classic-leveled".to_owned(), 16, false, 4.0);
    };
    assert_eq!(with(jobs), Limit::Jobs);
}

/// Compactions that are behind leave the device to flushes: writers that want less than flushes can absorb hardly wait.
#[test]
fn a_writer_that_flushes_keep_up_with_hardly_waits_for_them() {
    for strategy in ["leveled", "df-leveled"] {
        for (rate, part) in [(80, 0.01), (110, 0.1)] {
            let mut s = on_a_slow_device(strategy);
            s.ingest_rate = rate << 20;
            let r = of(&s);
            let memtables = r.stalls.iter().filter(|s| s.0 == "memtables").map(|s| s.1).sum::<f64>();
            let what = format!("{strategy}, {rate} MiB/s: {:?}, {} s", r.waits.reason, r.waits.longest);
            assert!(r.waits.longest < 0.02 && r.stopped_seconds == 0.0, "{what}");
            assert!(memtables < part * r.seconds, "{what}: {memtables} s for flushes");
        }
    }
}

/// Two threads for four levels, assigned by score: the debt stays within its bound.
#[test]
fn debt_keeps_to_its_bound_where_threads_are_short() {
    for workload in [Workload::Fill, Workload::Overwrite] {
        let mut s = Settings { threads: 2, workload, data_bytes: 50 << 30, ..Settings::default() };
        s.options.max_bytes_for_level_multiplier = 5.0;
        let r = of(&s);
        assert!(r.stopped_seconds < r.seconds / 100.0, "{workload:?}: {} s", r.stopped_seconds);
    }
}

#[test]
fn fifo_keeps_to_its_size() {
    let mut s = small("fifo");
    s.options.compaction_options_fifo.max_table_files_size = 256 << 20;
    let r = of(&s);
    let stored: u64 = r.levels.iter().map(|l| l.1).sum();
    assert!(stored <= 256 << 20 && r.deletions > 10 && (r.write_amplification() - 1.0).abs() < 0.05, "{r:?}");
}

/// Far larger than any test machine: a hundred terabytes with large tables, simulated for a short time.
#[test]
fn a_hundred_terabytes_are_planned() {
    let mut s =
        Settings { data_bytes: 100 << 40, workload: Workload::Overwrite, write_bytes: 1 << 30, ..small("leveled") };
    s.options = Settings::default().options;
    let r = of(&s);
    assert!(r.notes.len() == 1 && r.notes[0].contains("max_compaction_bytes="), "{:?}", r.notes);
    assert!(r.levels[6].1 > 99 << 40 && r.levels[6].0 <= 4096, "{:?}", r.levels);
}

/// Larger tables, as chosen for large trees, change little: here the tables of the second-to-last level are nine times
/// larger. (docs/simulator.md has figures of larger trees.)
#[test]
fn larger_tables_change_little() {
    for (strategy, most) in [("leveled", 0.1), ("df-leveled", 0.15), ("tiered", 0.1), ("df-tiered", 0.1)] {
        let with = |multiplier: i32| {
            let mut s = Settings { data_bytes: 8 << 30, ..small(strategy) };
            s.options.target_file_size_multiplier = multiplier;
            if multiplier > 1 {
                s.options.max_compaction_bytes = 25 * s.options.target_file_size_base * (multiplier as u64).pow(3);
            }
            of(&s)
        };
        let (one, coarse) = (with(1), with(2));
        let off = |f: fn(&Report) -> f64| f(&coarse) / f(&one) - 1.0;
        let (speed, written) = (off(Report::throughput), off(Report::write_amplification));
        println!("{strategy}: throughput {:+.1} %, write amplification {:+.1} %", speed * 100.0, written * 100.0);
        assert!(speed.abs() < most && written.abs() < most, "{strategy}: {speed} {written}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let refused = |change: fn(&mut Settings)| {
        let mut s = Settings::default();
        change(&mut s);
        run(&s).expect_err("refused").to_string()
    };
    for (change, words) in [
        (
            (|s| s.strategy = "magic".to_owned()) as fn(&mut Settings),
            "there are leveled, tiered, df-leveled, df-tiered, classic-leveled, classic-tiered, fifo",
        ),
        (|s| s.data_bytes = 1 << 60, "1M to 100T"),
        (|s| s.threads = 0, "threads"),
        (|s| s.device_read = 0.0, "device read"),
        (|s| s.cores = f64::NAN, "cores"),
        (|s| s.keys = KeyOrder::Zipfian(0.9), "a fill writes each key once"),
        (|s| s.options.write_buffer_size = 1, "memtables are too many"),
        (|s| s.options.num_levels = 99, "num_levels"),
        (|s| s.write_ns = 0.0, "ingest rate"),
    ] {
        let said = refused(change);
        assert!(said.contains(words), "{said}");
    }
}

/// The workload and machine of the paper on DF-compaction (docs/simulator.md has the table and the assumptions). As in
/// the paper, no job is split.
fn paper(strategy: &str, threads: usize) -> Report {
    of(&of_paper(strategy, threads))
}

fn of_paper(strategy: &str, threads: usize) -> Settings {
    let mut s = Settings { strategy: strategy.to_owned(), threads, data_bytes: 50 << 30, ..Settings::default() };
    (s.cores, s.overlap, s.write_ns, s.merge_ns_per_byte) = (32.0, false, 1000.0, 1.6);
    (s.device_read, s.device_write, s.device_total) = (7e9, 6e9, 10e9);
    s.options.level_compaction_dynamic_level_bytes = false;
    s.options.max_bytes_for_level_multiplier = 5.0;
    (s.split, s.options.table.bloom_bits_per_key) = (Split::Never, 10.0);
    s
}

/// A job in two parts has two threads, and a rule applies to any strategy.
#[test]
fn threads_are_counted_as_threads_and_both_sides_have_the_same_rule() {
    let both = Comparison::run(&of_paper("df-leveled", 16), |_, _| {}).unwrap();
    println!("{}", both.to_text());
    let [(_, plain, df), (_, plain_split, df_split)] = both.runs.as_slice() else { panic!("two rules") };
    for r in [plain, df] {
        assert!((r.parallelism() - r.jobs_at_once).abs() < 1e-6, "{}", r.to_text());
    }
    for r in [plain_split, df_split] {
        assert!(r.parallelism() > r.jobs_at_once * 1.1, "{}", r.to_text());
        assert!(r.parallelism() <= 16.0, "never more than there are: {}", r.to_text());
    }
    // As in the store, one side splits jobs and the other does not.
    let with = |strategy, split| of(&Settings { split, ..of_paper(strategy, 16) }).to_json().to_string();
    assert_eq!(with("leveled", Split::Store).replace("store", ""), with("leveled", Split::Never).replace("never", ""));
    assert_eq!(
        with("df-leveled", Split::Store).replace("store", ""),
        with("df-leveled", Split::Idle).replace("idle", "")
    );
    let json = both.to_json();
    for rule in ["split_never", "split_idle"] {
        let gain = &json[rule]["df_by_plain"]["throughput"];
        assert!(gain.as_f64().is_some_and(|gain| gain > 1.0), "{rule}: {gain}");
        assert!(json[rule]["leveled"]["lookup_micros"].as_f64().is_some_and(|t| t > 0.0));
    }
    let e = Comparison::run(&Settings { strategy: "fifo".to_owned(), ..Settings::default() }, |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("fifo"), "{e}");
}

/// The cost of more sorted runs for reads: for seeks always, for lookups if no filter tells which table has the key.
#[test]
fn readers_pay_for_sorted_runs() {
    let with = |strategy: &str, bits: f64| {
        let mut s = Settings { workload: Workload::Overwrite, ingest_rate: 60 << 20, ..small(strategy) };
        s.options.table.bloom_bits_per_key = bits;
        of(&s)
    };
    for strategy in ["leveled", "df-leveled", "tiered", "df-tiered"] {
        let (bare, filters) = (with(strategy, 0.0), with(strategy, 10.0));
        let what = format!("{strategy}: {}{}", bare.to_text(), filters.to_text());
        // Without a filter, a block of each table that may have the key is read; with one, hardly more than the block
        // of the table that has it.
        assert!((bare.lookup_blocks - bare.lookup_tables).abs() < 1e-6 && bare.lookup_blocks > 1.5, "{what}");
        assert!((1.0..1.2).contains(&filters.lookup_blocks), "{what}");
        assert!(filters.lookup_seconds < bare.lookup_seconds && filters.lookup_tables <= filters.runs + 1e-6, "{what}");
        assert!(bare.seek_seconds >= bare.lookup_seconds, "{what}");
    }
    let (leveled, df) = (with("leveled", 10.0), with("df-leveled", 10.0));
    let what = format!("{}{}", leveled.to_text(), df.to_text());
    assert!(df.runs > leveled.runs && df.seek_seconds > leveled.seek_seconds, "{what}");
    // Reads share the device with jobs: the cost of seeks is the bytes that they read.
    let mut s = Settings { workload: Workload::Overwrite, ingest_rate: 60 << 20, ..small("leveled") };
    (s.seeks_per_second, s.reads_per_second, s.device_read) = (1e6, 1000.0, 200e6);
    let r = of(&s);
    let bytes = (r.seeks / r.seconds * r.runs + r.reads / r.seconds * r.lookup_blocks) * 4096.0;
    // On average; the device has 200 MB/s, of which jobs need a part.
    assert!((100e6..220e6).contains(&bytes), "{bytes} bytes a second, {}", r.to_text());
}

#[test]
fn df_leveled_keeps_more_threads_busy_and_writes_less() {
    let (leveled, df) = (paper("leveled", 16), paper("df-leveled", 16));
    println!("{}{}", leveled.to_text(), df.to_text());
    let ratio = df.throughput() / leveled.throughput();
    assert!(ratio > 1.8, "throughput: {ratio}");
    let ratio = df.parallelism() / leveled.parallelism();
    assert!(ratio > 1.44, "busy threads: {ratio}");
    assert!(df.write_amplification() < leveled.write_amplification());
    assert!(df.stopped_seconds < df.seconds / 100.0, "{} s stopped", df.stopped_seconds);
    // More than eight threads help only by splitting jobs.
    let split = |threads| of(&Settings { split: Split::Idle, ..of_paper("df-leveled", threads) });
    let ratio = split(16).throughput() / split(8).throughput();
    assert!(ratio > 1.1, "from 8 to 16 threads: {ratio}");
}

/// Where all threads are always busy, bytes decide, and df-leveled writes fewer: it takes all of L0 at once, as leveled
/// does, and merges less. Stop triggers near the trigger of compactions end no run.
#[test]
fn df_leveled_is_ahead_with_few_threads() {
    for threads in [1, 2] {
        for (slowdown, stop) in [(20, 36), (5, 6)] {
            let with = |strategy: &str| {
                let mut s = of_paper(strategy, threads);
                s.data_bytes = 10 << 30;
                (s.options.level0_slowdown_writes_trigger, s.options.level0_stop_writes_trigger) = (slowdown, stop);
                of(&s)
            };
            let (leveled, df) = (with("leveled"), with("df-leveled"));
            let ratio = df.throughput() / leveled.throughput();
            let (a, b) = (df.write_amplification(), leveled.write_amplification());
            let what =
                format!("{threads} threads, {slowdown} and {stop}: throughput {ratio:.2}, bytes {a:.2} by {b:.2}");
            println!("{what}");
            assert!(!df.wedged && !leveled.wedged, "{what}");
            assert!(ratio > if threads == 1 { 1.4 } else { 1.2 } && a < b, "{what}");
        }
    }
}

/// If jobs keep up with the writers, merges for reads cost no more than leveled compaction, both until the last write
/// and until nothing is left to do.
#[test]
fn df_leveled_writes_less_at_a_sustained_rate() {
    for (rate, workload, dynamic) in [
        (10, Workload::Overwrite, true),
        (10, Workload::Fill, true),
        (60, Workload::Overwrite, true),
        (60, Workload::Overwrite, false),
        (60, Workload::Fill, false),
    ] {
        let with = |strategy: &str| {
            let mut s =
                Settings { strategy: strategy.to_owned(), data_bytes: 3 << 30, threads: 4, ..Settings::default() };
            (s.workload, s.ingest_rate, s.settle) = (workload, rate << 20, true);
            s.options.level_compaction_dynamic_level_bytes = dynamic;
            s.write_bytes = if workload == Workload::Overwrite { 6 << 30 } else { 0 };
            of(&s)
        };
        let (leveled, df) = (with("leveled"), with("df-leveled"));
        let until_rest = |r: &Report| r.settled.as_ref().expect("it comes to rest").write_amplification;
        let (a, b) = (df.write_amplification(), leveled.write_amplification());
        let (c, d) = (until_rest(&df), until_rest(&leveled));
        println!("{rate} MiB/s, {workload:?}, dynamic {dynamic}: {a:.2} by {b:.2}, until rest {c:.2} by {d:.2}");
        assert!(a < b && c < d, "{rate} MiB/s, {workload:?}, dynamic {dynamic}: {a} {b}, until rest {c} {d}");
    }
}

/// The paper's merges of extra runs at once: fewer sorted runs for more bytes, at a sustained rate.
#[test]
fn merges_at_once_write_more_and_leave_fewer_runs() {
    let with = |at_once: bool| {
        let mut s = Settings { data_bytes: 3 << 30, threads: 4, ingest_rate: 60 << 20, ..small("df-leveled") };
        s.options.compaction_downforce_merge_at_once = at_once;
        of(&s)
    };
    let (usual, at_once) = (with(false), with(true));
    let (a, b) = (at_once.write_amplification(), usual.write_amplification());
    println!("at once {a:.2} bytes for each, {:.1} runs; usually {b:.2}, {:.1}", at_once.runs, usual.runs);
    assert!(a > 1.1 * b && at_once.runs < usual.runs, "{a} {b}, {} {}", at_once.runs, usual.runs);
}

/// Small memtables and a trigger of 2 make more runs than the levels can take: the runs of the last level are merged by
/// size, not all into one.
#[test]
fn df_tiered_does_not_collapse_where_levels_are_few() {
    let with = |strategy: &str, data: u64| {
        let mut s = of_paper(strategy, 16);
        (s.data_bytes, s.options.write_buffer_size, s.options.level0_file_num_compaction_trigger) =
            (data << 30, 8 << 20, 2);
        of(&s)
    };
    let (small, large) = (with("df-tiered", 5), with("df-tiered", 10));
    println!("{}{}", small.to_text(), large.to_text());
    assert!(large.throughput() > 0.5 * small.throughput(), "{} {}", large.throughput(), small.throughput());
    let tiered = with("tiered", 10);
    assert!(large.throughput() > 0.65 * tiered.throughput(), "{} {}", large.throughput(), tiered.throughput());
    assert!(large.write_amplification() < 1.1 * tiered.write_amplification(), "{}", large.write_amplification());
}

#[test]
fn df_tiered_is_faster_than_tiered_and_writes_less() {
    let (tiered, df) = (paper("tiered", 16), paper("df-tiered", 16));
    let ratio = df.throughput() / tiered.throughput();
    assert!(ratio > 1.5, "throughput: {ratio}");
    assert!(df.write_amplification() < tiered.write_amplification() * 0.65, "the paper: 4.5 by 6.9");
    let split = |strategy, threads| of(&Settings { split: Split::Idle, ..of_paper(strategy, threads) }).throughput();
    let df = split("df-tiered", 16);
    assert!(df > 1.63 * split("tiered", 16), "jobs of both split: {df}");
    assert!(df > 1.1 * split("df-tiered", 8), "still growing at 16 threads where jobs are split");
}

/// Time of one pick in a tree of 100 TB with about 78,000 tables, with and without busy ones. `--nocapture` shows the
/// figures.
#[test]
fn a_pick_in_a_tree_of_a_hundred_terabytes_is_quick() {
    use rockmill::internals::simulation::{
        FileMeta, Moment, PurgeQueue, RunningCompactions, Version, level_scores, pick,
    };
    use rockmill_format::edit::FileEntry;
    use rockmill_format::key::{InternalKey, ValueType};
    use std::sync::Arc;

    let purge: Arc<PurgeQueue> = Arc::default();
    for (style, downforce) in [("leveled", false), ("df-leveled", true)] {
        let mut version = Version::empty(7, Default::default());
        let mut number = 0;
        for (level, tables) in [(0, 8u64), (1, 1), (2, 8), (3, 70), (4, 700), (5, 7000), (6, 70_000)] {
            for i in 0..tables {
                number += 1;
                let width = if level == 0 { u64::MAX } else { u64::MAX / tables };
                let at = if level == 0 { 0 } else { i * width };
                let key = |n: u64| InternalKey::new(&n.to_be_bytes(), 1, ValueType::Value);
                let entry = FileEntry {
                    number,
                    size: 1600 << 20,
                    smallest: key(at),
                    largest: key(at + (width - 1)),
                    epoch_number: number,
                    ..FileEntry::default()
                };
                version.levels[level].push(Arc::new(FileMeta::new(entry, Arc::clone(&purge))));
            }
        }
        let (version, mut options) = (Arc::new(version), Settings::default().options);
        (options.compaction_downforce, options.max_bytes_for_level_base) = (downforce, 1 << 30);
        let (mut cursors, mut jobs, mut longest) = (RunningCompactions::new(), 0, 0.0f64);
        let began = std::time::Instant::now();
        while jobs < 64 {
            let one = std::time::Instant::now();
            let Some(c) = pick(&version, &options, &mut cursors, &Moment::default()) else { break };
            cursors.start(&c);
            longest = longest.max(one.elapsed().as_secs_f64());
            jobs += 1;
        }
        let each = began.elapsed().as_secs_f64() / f64::from(jobs);
        let scores = std::time::Instant::now();
        let due = level_scores(&version, &options).needs_compaction();
        println!(
            "{style}: {jobs} jobs, {:.2} ms each, {:.2} ms at most, of these scores {:.2} ms ({due})",
            each * 1e3,
            longest * 1e3,
            scores.elapsed().as_secs_f64() * 1e3
        );
        assert!(jobs >= 4 && each < 1.0, "{style}: {jobs} jobs, {each} s each");
    }
}
