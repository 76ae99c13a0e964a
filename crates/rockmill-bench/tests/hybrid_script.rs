//! `scripts/bench_hybrid` creates its devices, checks that they are slowed down, and leaves nothing behind.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rockmill_skip::{Needs, skip};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench_hybrid")
}

fn check(dir: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(script()).args(["--check", "--slow=disk", "--dir"]).arg(dir);
    command
}

/// The script's reason why slow devices cannot be created here.
fn cannot(done: &Output) -> Option<String> {
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let reasons = ["want root", "root is needed", "losetup", "mkfs.ext4", "mount", "no control group", "controller"];
    (!done.status.success() && reasons.iter().any(|r| said.contains(r))).then_some(said)
}

fn left_behind(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).expect("the folder").map(|e| e.expect("an entry").path().display().to_string());
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    let mounts = mounts.lines().filter(|l| l.contains(&dir.display().to_string())).map(str::to_owned);
    files.chain(mounts).collect()
}

#[test]
fn slowed_devices_are_checked_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let Ok(done) = check(dir.path()).output() else {
        return skip("slowed devices", &Needs::RocksDict.because("there is no python3"));
    };
    if let Some(why) = cannot(&done) {
        assert_eq!(left_behind(dir.path()), [""; 0]);
        return skip("slowed devices", &Needs::Root.because(why));
    }
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("slow device: "), "{said}");
    assert_eq!(left_behind(dir.path()), [""; 0]);
    // An interrupt in the middle.
    let mut child = check(dir.path()).spawn().unwrap();
    let began = Instant::now();
    let mounted = || std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&dir.path().display().to_string());
    while !mounted() {
        assert!(began.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none(), "it did not mount");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(!child.wait().unwrap().success());
    assert_eq!(left_behind(dir.path()), [""; 0]);
}

#[test]
fn the_script_lists_its_cells() {
    let Ok(done) = Command::new("python3").arg(script()).args(["--list", "--json=no-such.json"]).output() else {
        return skip("the list of cells", &Needs::RocksDict.because("there is no python3"));
    };
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    for cell in
        ["micro | 1,000 B", "ycsb | uniform", "ycsb | zipfian", "nutanix", "ablation", "synced", "recovery", "sizes"]
    {
        assert!(text.contains(cell), "{cell}: {text}");
    }
}
