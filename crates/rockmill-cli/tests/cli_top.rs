//! `rockmill top`, `stats --watch` and `stats --prometheus`, on a database that this process has open.

mod cli_support;

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cli_support::{ROCKMILL, Sandbox};
use rockmill::{Db, Options};
use rockmill_skip::{Needs, skip};

/// Keeps a database with tables in several levels open, and writes to it, while `look` runs.
fn while_open(s: &Sandbox, status: Option<&str>, look: impl FnOnce()) {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_write_buffer_size(256 << 10);
    options.enable_statistics();
    if let Some(file) = status {
        options.set_status_file(file);
    }
    let db = Db::open_cf(&options, s.path("db"), ["default", "queue"]).expect("opens");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                db.put((i % 5000).to_be_bytes(), [b'x'; 200]).expect("written");
                db.get((i % 5000).to_be_bytes()).expect("read");
                if i % 500 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let began = Instant::now();
        // Until there is something to see.
        let written = || status.is_none_or(|f| s.path("db").join(f).exists()) && !s.files("db", ".sst").is_empty();
        while !written() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = looked {
            std::panic::resume_unwind(panic);
        }
    });
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("no line {start:?} in:\n{text}"))
}

#[test]
fn a_frame_shows_what_another_process_does() {
    let s = Sandbox::new();
    while_open(&s, Some("STATUS"), || {
        // More than a second, so that the file is rewritten in between.
        let text = s.ok(&["top", "db", "--once", "--every", "1.5"]);
        assert!(line(&text, "rockmill top  db").contains(&format!("open in process {}", std::process::id())), "{text}");
        assert!(!line(&text, "writes").contains("writes     0/s"), "{text}");
        assert!(!line(&text, "reads").contains("reads      0 keys/s"), "{text}");
        assert!(line(&text, "stalls").contains("writers waited"), "{text}");
        for start in ["process", "jobs", "cache", "memory", "latencies", "level", "L0", "column family queue"] {
            line(&text, start);
        }
        assert!(text.lines().any(|l| l.trim_start().starts_with("get ") && l.contains(" us")), "{text}");
        assert!(!text.contains('\u{1b}'), "no colours where nobody looks: {text}");
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
        let narrow = Command::new(ROCKMILL)
            .args(["top", "db", "--once", "--every", "0.1"])
            .env("COLUMNS", "60")
            .current_dir(s.dir.path())
            .output()
            .expect("runs");
        let narrow = String::from_utf8_lossy(&narrow.stdout).into_owned();
        assert!(narrow.lines().any(|l| l.ends_with('…')), "{narrow}");
        assert!(narrow.lines().all(|l| l.chars().count() <= 60), "{narrow}");
    });
    assert!(!s.path("db/STATUS").exists());
}

#[test]
fn without_a_status_file_a_frame_is_from_manifest_and_log() {
    let s = Sandbox::new();
    while_open(&s, None, || {
        let text = s.ok(&["top", "db", "--once", "--every", "0.1"]);
        assert!(line(&text, "rockmill top  db").contains("open in process"), "{text}");
        assert!(text.contains("from MANIFEST and LOG, since there is no db/STATUS"), "{text}");
        assert!(text.contains("Options::set_status_file"), "{text}");
        line(&text, "level");
        assert!(line(&text, "ended").contains("by the info log: "), "{text}");
    });
    let closed = s.ok(&["top", "db", "--once", "--every", "0.1"]);
    assert!(closed.contains("no visible process has it open"), "{closed}");
    s.run(&["top", "missing", "--once"]).fails(3, &["no such directory"]);
    let json = s.run(&["top", "db", "--once", "--json"]);
    assert!(json.code == 2 && json.stderr.contains("top prints no JSON"), "{}", json.stderr);
    s.run(&["top", "db", "--every", "0"]).fails(2, &["not a number of seconds"]);
}

#[test]
fn watching_prints_frame_after_frame_into_a_pipe() {
    let s = Sandbox::new();
    while_open(&s, Some("STATUS"), || {
        let mut child = Command::new(ROCKMILL)
            .args(["stats", "db", "--watch=0.2"])
            .current_dir(s.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut text = String::new();
        let mut pipe = child.stdout.take().expect("a pipe");
        let mut some = [0; 512];
        while text.matches("rockmill top").count() < 3 {
            let n = pipe.read(&mut some).expect("output");
            assert!(n > 0, "it ended: {text}");
            text.push_str(&String::from_utf8_lossy(&some[..n]));
        }
        drop(pipe);
        let ended = child.wait_with_output().expect("ends");
        assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
    });
}

#[test]
fn prometheus_gets_the_other_processs_figures_or_this_ones() {
    let s = Sandbox::new();
    while_open(&s, Some("STATUS"), || {
        let text = s.ok(&["stats", "db", "--prometheus"]);
        assert!(text.contains(&format!("pid=\"{}\"", std::process::id())), "the writer's: {text}");
        assert!(text.contains("# TYPE rocksdb_db_get_micros histogram\n"), "{text}");
        assert!(text.contains("rocksdb_num_files_at_level{cf=\"queue\",level=\"0\"} 0\n"), "{text}");
        assert!(!text.contains("# job") && !text.contains("# EOF"), "{text}");
    });
    let text = s.ok(&["stats", "db", "--prometheus"]);
    assert!(!text.contains(&format!("pid=\"{}\"", std::process::id())), "{text}");
    assert!(text.contains("rocksdb_estimate_num_keys{cf=\"default\"} "), "{text}");
    s.run(&["stats", "db", "--prometheus", "--status-file", "none"]).fails(3, &["there is no none"]);
    s.run(&["stats", "db", "--prometheus", "--watch"]).fails(2, &["--watch"]);
}

/// Runs `top` in a separate terminal, presses `key` once it shows something, and returns all output.
fn in_a_terminal(s: &Sandbox, key: &[u8]) -> String {
    // `stty` reports the terminal's state afterwards.
    let line = format!("stty rows 30 cols 90; {ROCKMILL} top db --every 0.2; echo \"ended $?\"; stty -a");
    let mut child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("LC_ALL", "C.UTF-8")
        .current_dir(s.dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    let mut keys = child.stdin.take().expect("a pipe");
    let mut screen = child.stdout.take().expect("a pipe");
    let (mut seen, mut some, mut pressed) = (Vec::new(), [0; 4096], false);
    loop {
        let n = screen.read(&mut some).expect("output");
        if n == 0 {
            break;
        }
        seen.extend_from_slice(&some[..n]);
        // In the second frame, which has rates.
        if !pressed && String::from_utf8_lossy(&seen).matches("q quits").count() >= 2 {
            keys.write_all(key).expect("pressed");
            keys.flush().expect("pressed");
            pressed = true;
        }
    }
    child.wait().expect("ends");
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn the_terminal_is_given_back_as_it_was() {
    let test = "the_terminal_is_given_back_as_it_was";
    let probe = Command::new("script").args(["-qec", "true", "/dev/null"]).stdin(Stdio::null()).output();
    if !probe.is_ok_and(|o| o.status.success()) {
        return skip(test, &Needs::Script.because("script cannot run a command in a terminal"));
    }
    let s = Sandbox::new();
    while_open(&s, Some("STATUS"), || {
        // q, and what Ctrl-C sends in raw mode.
        for key in [&b"q"[..], b"\x03"] {
            let seen = in_a_terminal(&s, key);
            let (_, shown) = seen.split_once("\x1b[?1049h").unwrap_or_else(|| panic!("no screen was taken: {seen}"));
            let (frames, after) = shown.split_once("\x1b[?1049l").unwrap_or_else(|| panic!("not given back: {seen}"));
            for word in ["rockmill top  db", "writes", "stalls", "level", "q quits; every 0.2 s"] {
                assert!(frames.contains(word), "no {word} in {frames}");
            }
            assert!(after.contains("ended 0"), "{after}");
            assert!(after.contains(" icanon") && !after.contains("-icanon"), "still raw: {after}");
            assert!(frames.ends_with("\x1b[?25h"), "the cursor is back");
        }
    });
}
