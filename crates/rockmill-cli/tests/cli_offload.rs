//! `rockmill worker` as another process: it runs compactions, and is killed meanwhile.

mod cli_support;
#[path = "cli_offload/kernel_device.rs"]
mod kernel_device;
#[path = "cli_offload/kills.rs"]
mod kills;
#[path = "cli_offload/namespaces.rs"]
mod namespaces;
#[path = "cli_offload/netem.rs"]
mod netem;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cli_support::{ROCKMILL, Sandbox};
use rockmill_skip::{Needs, skip};

/// A worker in another process, and where it listens.
struct Worker {
    /// `None` once somebody else has it.
    child: Option<Child>,
    address: String,
}

impl Worker {
    fn start(dir: &Path, args: &[&str]) -> Self {
        Self::start_with_lines(dir, args, 1).0
    }

    /// The same; also returns the lines that it prints after the first one, `count` lines in total.
    fn start_with_lines(dir: &Path, args: &[&str], count: usize) -> (Self, Vec<String>) {
        let listens =
            if args.contains(&"--config") { vec!["worker"] } else { vec!["worker", "--listen", "127.0.0.1:0"] };
        let mut child = Command::new(ROCKMILL)
            .args(listens)
            .args(args)
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let stdout = BufReader::new(child.stdout.as_mut().expect("a pipe"));
        let mut lines: Vec<String> = stdout.lines().take(count).map(|line| line.expect("a line")).collect();
        let rest = lines.split_off(1);
        let address = lines[0].strip_prefix("listening at ").unwrap_or_else(|| panic!("{lines:?}")).to_owned();
        (Self { child: Some(child), address }, rest)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn records(from: u32, to: u32) -> String {
    (from..to).map(|i| format!("key{:07}\t{:0100}\n", (u64::from(i) * 7919) % 100_003, i)).collect()
}

/// Lines of the database's log that tell where compactions ran.
fn log(s: &Sandbox, db: &str) -> String {
    std::fs::read_to_string(s.path(db).join("LOG")).expect("a log")
}

fn filled(s: &Sandbox, db: &str) {
    s.file("a.tsv", records(0, 20_000));
    s.file("b.tsv", records(10_000, 30_000));
    for file in ["a.tsv", "b.tsv"] {
        s.ok(&["load", db, file, "--option", "disable_auto_compactions=true"]);
        s.ok(&["flush", db, "--option", "disable_auto_compactions=true"]);
    }
}

#[test]
fn a_worker_in_another_process_compacts_a_database() {
    let s = Sandbox::new();
    let worker = Worker::start(s.dir.path(), &["--threads", "2"]);
    for db in ["here", "there"] {
        filled(&s, db);
    }
    s.ok(&["compact", "here"]);
    s.ok(&["compact", "there", "--compaction-workers", &worker.address, "--worker-input-min", "0"]);
    let said = log(&s, "there");
    assert!(said.contains("Done by worker nqn.2026-11.rockmill:worker at 127.0.0.1:"), "{said}");
    assert!(!said.contains("Not done by a worker"), "{said}");
    assert!(!log(&s, "here").contains("Done by worker"));
    assert!(s.ok(&["scan", "there"]) == s.ok(&["scan", "here"]));
    s.ok(&["verify", "there"]);
    // The worker is gone: the same command does all the work here.
    let address = worker.address.clone();
    drop(worker);
    s.ok(&["load", "there", "a.tsv", "--option", "disable_auto_compactions=true"]);
    s.ok(&["compact", "there", "--compaction-workers", &address, "--worker-input-min", "0"]);
    let said = log(&s, "there");
    assert!(said.contains("Not done by a worker, and done here"), "{said}");
    s.ok(&["load", "here", "a.tsv"]);
    assert!(s.ok(&["scan", "there"]) == s.ok(&["scan", "here"]));
    s.ok(&["verify", "there"]);
}

/// With the same ids and times, each engine writes the same tables byte for byte, locally and on the worker.
#[test]
fn each_engine_of_a_worker_writes_the_same_bytes() {
    let s = Sandbox::new();
    s.run(&["worker", "--listen", "127.0.0.1:0", "--engine", "kernel"])
        .fails(2, &["--engine kernel", "needs a device of the kernel's"]);
    s.run(&["worker", "--listen", "127.0.0.1:0", "--engine", "fast"]).fails(2, &["pread", "uring"]);
    filled(&s, "db");
    let copy = |to: &str| {
        let (from, to) = (s.path("db"), s.path(to));
        std::fs::create_dir(&to).expect("a folder");
        for entry in std::fs::read_dir(from).expect("a database") {
            let entry = entry.expect("an entry");
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    };
    let tables = |db: &str| {
        let all = std::fs::read_dir(s.path(db)).expect("a database").map(|entry| entry.expect("an entry").path());
        let all = all.filter(|path| path.extension().is_some_and(|name| name == "sst"));
        let mut all: Vec<Vec<u8>> = all.map(|path| std::fs::read(path).expect("a table")).collect();
        all.sort();
        all
    };
    copy("here");
    let reproducible = ["--reproducible", "--target-file-size", "100K"];
    s.ok(&[&["compact", "here"][..], &reproducible].concat());
    let wanted = tables("here");
    assert!(wanted.len() > 2, "{} tables", wanted.len());
    for engine in ["pread", "uring", "auto"] {
        let worker = Worker::start(s.dir.path(), &["--engine", engine]);
        copy(engine);
        let workers = ["--compaction-workers", &worker.address, "--worker-input-min", "0"];
        s.ok(&[&["compact", engine][..], &reproducible, &workers].concat());
        let said = log(&s, engine);
        assert!(said.contains("Done by worker") && !said.contains("Not done by a worker"), "{engine}: {said}");
        assert!(tables(engine) == wanted, "{engine}");
    }
}

/// The worker is killed at different moments of the compaction: before it, in the middle, or at its end.
#[test]
fn a_worker_that_is_killed_costs_nothing_but_time() {
    let s = Sandbox::new();
    filled(&s, "db");
    let wanted = s.ok(&["scan", "db"]);
    let mut came_back = 0;
    for round in 0..6u64 {
        let mut worker = Worker::start(s.dir.path(), &[]);
        s.ok(&["load", "db", "a.tsv", "--option", "disable_auto_compactions=true"]);
        s.ok(&["load", "db", "b.tsv", "--option", "disable_auto_compactions=true"]);
        let compact = ["compact", "db", "--bottommost", "force", "--worker-input-min", "0", "--compaction-workers"];
        let mut compacts = Command::new(ROCKMILL)
            .args(compact)
            .arg(&worker.address)
            .current_dir(s.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("the command starts");
        std::thread::sleep(std::time::Duration::from_millis(30 + 40 * round));
        worker.child.as_mut().expect("it runs").kill().expect("it is killed");
        assert!(compacts.wait().expect("it ends").success());
        came_back += u32::from(log(&s, "db").contains("Not done by a worker"));
        assert!(s.ok(&["scan", "db"]) == wanted, "round {round}");
        s.ok(&["verify", "db"]);
    }
    println!("{came_back} of 6 compactions came back");
}

#[test]
fn what_is_not_safe_is_refused() {
    let s = Sandbox::new();
    s.run(&["worker", "--listen", "0.0.0.0:0"]).fails(2, &["without secrets"]);
    s.run(&["worker", "--listen", "nowhere"]).fails(2, &["not an address"]);
    s.file("secrets", "self DHHC-1:00:nonsense:\n");
    s.run(&["worker", "--listen", "127.0.0.1:0", "--secrets", "secrets"]).fails(2, &["others may read", "chmod 600"]);
    filled(&s, "db");
    let far = ["compact", "db", "--compaction-workers", "192.0.2.1:4421"];
    s.run(&far).fails(2, &["without secrets"]);
    s.run(&["compact", "db", "--worker-input-min", "0"]).fails(2, &["compaction-workers"]);
    s.run(&["compact", "db", "--worker-jobs", "2"]).fails(2, &["compaction-workers"]);
    let pool = ["compact", "db", "--compaction-pool", "nats://127.0.0.1:1", "--worker-jobs", "2"];
    s.run(&pool).fails(2, &["worker-jobs"]);
    let none = ["compact", "db", "--compaction-workers", "127.0.0.1:1", "--worker-jobs", "0"];
    s.run(&none).fails(2, &["worker-jobs"]);
    let external = |target| ["compact", "db", "--compaction-workers", "127.0.0.1:1", "--external-target", target];
    s.run(&external("127.0.0.1:1")).fails(2, &["ADDRESS,SUBSYSTEM,NAMESPACE,DEVICE"]);
    s.run(&external("127.0.0.1:1,nqn,1,/dev/null")).fails(2, &["/dev/null: not a block device", "as `df` shows it"]);
}

#[test]
fn pools_that_cannot_be_meant_are_refused() {
    let s = Sandbox::new();
    filled(&s, "db");
    let compact = |args: &[&str]| s.run(&[&["compact", "db", "--compaction-pool"], args].concat());
    compact(&["10.0.0.5:4222"]).fails(2, &["--compaction-pool", "nats://HOST:PORT"]);
    compact(&["nats://me:secret@10.0.0.5"]).fails(2, &["go into a file"]);
    compact(&["nats://127.0.0.1:1", "--pool-queue", "a b"]).fails(2, &["no name of a queue"]);
    compact(&["nats://127.0.0.1:1", "--compaction-workers", "127.0.0.1:1"]).fails(2, &["cannot be used with"]);
    s.run(&["compact", "db", "--pool-wait", "1"]).fails(2, &["--compaction-pool"]);
    let worker = |args: &[&str]| s.run(&[&["worker", "--listen", "127.0.0.1:0"], args].concat());
    worker(&["--pool", "here"]).fails(2, &["nats://HOST:PORT"]);
    worker(&["--pool-queue", "mine"]).fails(2, &["need --pool"]);
    let open = ["worker", "--listen", "0.0.0.0:0", "--allow-unauthenticated", "--pool", "nats://127.0.0.1:1"];
    s.run(&open).fails(2, &["listens at one address"]);
    s.file("credentials", "token abc\n");
    let with = ["--pool", "nats://127.0.0.1:1", "--pool-credentials", "credentials"];
    worker(&with).fails(2, &["others may read", "chmod 600"]);
    if !rockmill_offload::NATS {
        compact(&["nats://127.0.0.1:1"]).fails(2, &["the feature `nats`"]);
        worker(&["--pool", "nats://127.0.0.1:1"]).fails(2, &["the feature `nats`"]);
    }
}

#[test]
fn two_commands_are_enough_for_secrets_and_tls() {
    let s = Sandbox::new();
    let made = s.run(&["worker", "--make-secrets", "."]);
    assert_eq!(made.stderr.contains("nothing is encrypted"), !rockmill_offload::TLS, "{}", made.stderr);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let made = made.text();
    assert_eq!(made.lines().count(), 2, "{made}");
    for file in ["host.secrets", "worker.secrets"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(s.path(file)).expect("it was made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    // Existing files do not change, and no new ones are created.
    s.run(&["worker", "--make-secrets", "."]).fails(2, &["host.secrets already exists"]);
    std::fs::create_dir(s.path("other")).expect("a folder");
    s.file("other/worker.secrets", "mine");
    s.run(&["worker", "--make-secrets", "other"]).fails(2, &["worker.secrets already exists"]);
    assert!(!s.path("other/host.secrets").exists());
    s.run(&["worker", "--make-secrets", ".", "--listen", "127.0.0.1:0"]).fails(2, &["--listen"]);
    s.run(&["worker"]).fails(2, &["--listen"]);
    let worker = Worker::start(s.dir.path(), &["--secrets", "worker.secrets"]);
    filled(&s, "db");
    let wanted = s.ok(&["scan", "db"]);
    let compact = ["compact", "db", "--compaction-workers", &worker.address, "--worker-input-min", "0"];
    s.ok(&compact);
    let said = log(&s, "db");
    assert!(said.contains("Not done by a worker, and done here"), "{said}");
    assert_eq!(said.contains("it speaks TLS alone"), rockmill_offload::TLS, "{said}");
    s.ok(&[&compact[..], &["--bottommost", "force", "--worker-secrets", "host.secrets"]].concat());
    let said = log(&s, "db");
    assert!(said.contains("Done by worker nqn.2026-11.rockmill:worker at 127.0.0.1:"), "{said}");
    assert!(s.ok(&["scan", "db"]) == wanted);
    s.ok(&["verify", "db"]);
    // A worker that a benchmark starts has it, too.
    let bench = s.run(&["bench", "offload", "--db=b", "--mb=1", "--repeat=1", "--value_size=100", "--tls=1"]);
    match rockmill_offload::TLS {
        true => drop(bench.ok()),
        false => drop(bench.fails(2, &["--tls", "the feature `tls`"])),
    }
}

#[test]
fn a_worker_has_metrics_and_a_unit_with_options_that_it_knows() {
    let s = Sandbox::new();
    let (worker, lines) = Worker::start_with_lines(s.dir.path(), &["--metrics", "127.0.0.1:0"], 2);
    filled(&s, "db");
    s.ok(&["compact", "db", "--compaction-workers", &worker.address, "--worker-input-min", "0"]);
    let at = lines[0].strip_prefix("metrics at http://").and_then(|at| at.strip_suffix("/metrics"));
    let mut asks = TcpStream::connect(at.unwrap_or_else(|| panic!("{lines:?}"))).expect("it listens");
    asks.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("it is asked");
    let mut page = String::new();
    asks.read_to_string(&mut page).expect("it answers");
    let done = page.lines().find_map(|line| line.strip_prefix("rockmill_worker_jobs_done_total "));
    assert!(done.is_some_and(|n| n != "0"), "{page}");

    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rockmill-worker.service");
    let unit = std::fs::read_to_string(unit).expect("the unit");
    let starts = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("what it starts");
    let help = s.ok(&["worker", "--help"]);
    let options: Vec<&str> = starts.split_whitespace().filter(|word| word.starts_with("--")).collect();
    assert!(options.contains(&"--config") && options.iter().all(|option| help.contains(option)), "{starts}\n{help}");
}

#[test]
fn a_worker_has_its_flags_in_a_file() {
    let s = Sandbox::new();
    s.file(
        "w.conf",
        "# a worker\nlisten = 127.0.0.1:0\nname = nqn.2026-11.rockmill:other\njobs = 2\n\nmetrics = nowhere\n",
    );
    // The command line overrides the file.
    let (worker, lines) =
        Worker::start_with_lines(s.dir.path(), &["--config", "w.conf", "--metrics", "127.0.0.1:0"], 2);
    assert!(lines[0].starts_with("metrics at http://127.0.0.1:"), "{lines:?}");
    filled(&s, "db");
    s.ok(&[
        "compact",
        "db",
        "--compaction-workers",
        &worker.address,
        "--worker-input-min",
        "0",
        "--worker-check",
        "10%",
        "--worker-jobs",
        "2",
    ]);
    let said = log(&s, "db");
    assert!(said.contains("Done by worker nqn.2026-11.rockmill:other at 127.0.0.1:"), "{said}");
    s.ok(&["verify", "db"]);
    s.run(&["worker", "--config", "w.conf"]).fails(2, &["\"nowhere\" is not an address"]);
    s.file("bad.conf", "listen = 127.0.0.1:0\njops = 2\n");
    s.run(&["worker", "--config", "bad.conf"]).fails(2, &["bad.conf:2: there is no \"jops\"", "did you mean jobs?"]);
    s.file("empty.conf", "jobs = 2\n");
    s.run(&["worker", "--config", "empty.conf"]).fails(2, &["says where to listen"]);
    s.run(&["worker", "--config", "none.conf"]).fails(3, &["none.conf"]);
    s.run(&["worker"]).fails(2, &["--listen"]);
    s.run(&["compact", "db", "--compaction-workers", "127.0.0.1:1", "--worker-check", "10"]).fails(2, &["0% to 100%"]);
}

#[test]
fn jobs_of_a_worker_are_measured_against_those_done_here() {
    let s = Sandbox::new();
    let line = ["bench", "offload", "--db=b", "--mb=1,2", "--repeat=1", "--value_size=100", "--json=offload.json"];
    let text = s.ok(&line);
    for part in ["1 MiB here", "2 MiB worker", "round trips", "The host spends less CPU with a worker"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = std::fs::read_to_string(s.path("offload.json")).expect("the results");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let runs = json["sizes"][1]["runs"].as_array().expect("runs");
    let elsewhere = runs.iter().find(|run| run["worker"] == true).expect("a run of the worker");
    let number = |name: &str| elsewhere[name].as_f64().expect("a number");
    let input = json["sizes"][1]["input_bytes"].as_f64().expect("a number");
    assert!(number("round_trips") > 10.0 && number("wire_bytes") > input, "{elsewhere}");
    assert!(number("worker_cpu_seconds") > 0.0 && number("host_user_seconds") > 0.0, "{elsewhere}");
    assert!(!s.path("b").exists(), "what it made is gone");
    // A worker that is not there.
    let nobody = ["bench", "offload", "--db=b", "--mb=1", "--repeat=1", "--worker=127.0.0.1:1"];
    s.run(&nobody).fails(1, &["the worker did 0 jobs of one", "done here"]);
}

/// The script's way to say that it cannot run.
const SKIPPED: i32 = 77;

#[test]
fn jobs_through_nfs_are_measured_and_have_the_same_bytes() {
    let s = Sandbox::new();
    let (dir, json) = (s.path("nfs"), s.path("nfs.json"));
    let run = |engine: &str, link: &[&str]| {
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench_offload_nfs"))
            .env("ROCKMILL", ROCKMILL)
            .args(link)
            .arg("--dir")
            .arg(&dir)
            .args(["--mb=3", "--repeat=1", "--value_size=100", &format!("--worker_engine={engine}")])
            .arg(format!("--json={}", json.display()))
            .stdin(Stdio::null())
            .output()
            .expect("the script starts")
    };
    for (engine, link) in [("uring", &[][..]), ("pread", &[]), ("uring", &["--link", "10,50"])] {
        let done = run(engine, link);
        let said = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
        if done.status.code() == Some(SKIPPED) {
            let needs = if link.is_empty() { Needs::Nfs } else { Needs::Tun };
            return skip(&format!("jobs through NFS {}", link.join(" ")), &needs.because(said));
        }
        // It has compared the tables of the job with those of the same job without NFS.
        assert!(done.status.success() && said.contains("The same jobs through NFS"), "{said}");
        assert_eq!(said.contains("link: from there: "), !link.is_empty(), "{said}");
        let json = std::fs::read_to_string(&json).expect("the results");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let runs = json["sizes"][0]["runs"].as_array().expect("runs");
        let through = runs.iter().find(|run| run["by"] == "nfs").expect("a run through NFS");
        let moved = json["sizes"][0]["input_bytes"].as_f64().zip(through["output_bytes"].as_f64());
        let (input, output) = moved.expect("numbers");
        // Tails and blocks on borders are read twice, and outputs end within a block.
        let wire = through["wire_bytes"].as_f64().expect("a number");
        assert!(wire >= input + output && wire < 2.0 * (input + output), "{through}");
        assert!(through["round_trips"].as_u64().is_some_and(|calls| calls > 4), "{through}");
        assert_eq!(std::fs::read_dir(&dir).expect("the folder").count(), 0, "it leaves nothing");
    }
}
