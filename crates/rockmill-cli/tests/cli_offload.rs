//! `rockmill worker` as another process: it does compactions, and is killed while it does.

mod cli_support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cli_support::{ROCKMILL, Sandbox};

/// A worker in another process, and where it listens.
struct Worker {
    child: Child,
    address: String,
}

impl Worker {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(ROCKMILL)
            .args(["worker", "--listen", "127.0.0.1:0"])
            .args(args)
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening at ").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Self { child, address }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn records(from: u32, to: u32) -> String {
    (from..to).map(|i| format!("key{:07}\t{:0100}\n", (u64::from(i) * 7919) % 100_003, i)).collect()
}

/// Lines of the database's log that say where compactions were done.
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
    // The worker is gone: the same command does it all here.
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

/// The worker is killed at some moment of the compaction: before it, in the middle, or when all is done.
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
        worker.child.kill().expect("it is killed");
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
    s.run(&["worker", "--listen", "nowhere"]).fails(2, &["no address"]);
    s.file("secrets", "self DHHC-1:00:nonsense:\n");
    s.run(&["worker", "--listen", "127.0.0.1:0", "--secrets", "secrets"]).fails(2, &["others may read", "chmod 600"]);
    filled(&s, "db");
    let far = ["compact", "db", "--compaction-workers", "192.0.2.1:4421"];
    s.run(&far).fails(2, &["without secrets"]);
    s.run(&["compact", "db", "--worker-input-min", "0"]).fails(2, &["compaction-workers"]);
}
