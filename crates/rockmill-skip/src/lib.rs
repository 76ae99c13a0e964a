//! How a test reports that (part of) it cannot run on this machine, and how a machine declares that it must.
//!
//! The test harness captures the output of a test that passes, so nobody sees a skip that is printed like any other
//! line. [`skip`] bypasses the capture. Its line always has the same form and names the missing requirement:
//!
//! ```text
//! skipped: ldb_backs_up_and_restores_beside_rockmill: needs ldb: ldb is not installed
//! ```
//!
//! `ROCKMILL_REQUIRE` contains the names of requirements that must be met, separated by commas or blanks: a skip
//! because of one of them is a failure. A name that is none of [`Needs`] is an error. `scripts/has` determines
//! independently what a machine has, and continuous integration requires exactly that.

#![forbid(unsafe_code)]

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The environment variable that lists the requirements that must be met.
pub const REQUIRE: &str = "ROCKMILL_REQUIRE";

macro_rules! needs {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// A test's possible requirements of the machine besides Rust.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Needs {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Needs {
            /// All of them, in the order of their list in `docs/reliability.md`.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name in `ROCKMILL_REQUIRE` and in messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

needs! {
    /// A kernel that runs the merge program with the driver `run`: BPF arenas (Linux 6.9) and CAP_BPF.
    Kernel = "kernel",
    /// A kernel that runs it with the driver `loop` (Linux 7.1, BTF).
    KernelLoop = "kernel-loop",
    /// A kernel that cannot run it with the driver `loop`: what is then said is tested, too.
    NoKernelLoop = "no-kernel-loop",
    /// A kernel, or a process, that cannot run it at all.
    NoKernel = "no-kernel",
    /// A kernel that describes its types (BTF).
    Btf = "btf",
    /// `io_uring`.
    Uring = "uring",
    /// A file system that takes O_DIRECT.
    DirectIo = "direct-io",
    /// A file system that says where on its device files lie (ext4, XFS).
    Extents = "extents",
    /// A file system that reserves space for files.
    Reserve = "reserve",
    /// `/dev/shm`.
    Shm = "shm",
    /// `/dev/full`.
    DevFull = "dev-full",
    /// `/proc`, with the children of threads.
    Proc = "proc",
    /// Counters of system calls for this process (tracepoints, `perf_event_open`).
    Perf = "perf",
    /// The permissions of root.
    Root = "root",
    /// Permission to mount file systems.
    Mount = "mount",
    /// Limits of memory and of files for other processes (`prlimit`, control groups).
    Limits = "limits",
    /// `setpriv`, and the permission to give privileges away.
    Setpriv = "setpriv",
    /// `script`, which runs a command in a terminal of its own.
    Script = "script",
    /// `renice`.
    Renice = "renice",
    /// More than one core.
    Cores = "cores",
    /// RocksDB's library with its headers and a C++ compiler.
    RocksDb = "rocksdb",
    /// A library of RocksDB that can be loaded at run time.
    LibRocksDb = "librocksdb",
    /// RocksDB's tools: `ldb`, `sst_dump`, `db_bench`.
    Ldb = "ldb",
    /// The Python wheel rocksdict.
    RocksDict = "rocksdict",
    /// Another RocksDB, whose compiler flags `ROCKMILL_ROCKSDB_FLAGS` names.
    OtherRocksDb = "other-rocksdb",
    /// Something that the RocksDB at hand does not have; another version may.
    PeerFeature = "peer-feature",
    /// Libraries of other releases of RocksDB, named by `ROCKMILL_ROCKSDB_LIBS`.
    Releases = "releases",
    /// The compiler of the eBPF programs.
    Clang = "clang",
    /// valgrind, which counts instructions.
    Valgrind = "valgrind",
    /// A nightly compiler with what Miri and the sanitizers need.
    Nightly = "nightly",
    /// Rust's standard library for macOS and Windows (`scripts/platforms`).
    Targets = "targets",
    /// An emulator of another processor, and a compiler for it (`scripts/platforms`).
    Emulator = "emulator",
    /// What builds and runs OCI images: docker, podman or buildah (`scripts/oci`).
    Oci = "oci",
    /// `dpkg-deb`, which makes and unpacks Debian packages (`scripts/deb`).
    Dpkg = "dpkg",
    /// A machine in software with a Linux kernel of the 7 series (`scripts/kernel7`).
    Guest = "guest",
    /// Network namespaces with a link between them that `tc` can slow down: root, and the commands of iproute2.
    Netns = "netns",
    /// The same with a link that `tc netem` disturbs: a kernel with `sch_netem`, as the guest of `scripts/kernel7` has.
    Netem = "netem",
    /// A kernel that has loaded both sides of NVMe over TCP (`nvme-tcp`, `nvmet-tcp`), and root.
    NvmeKernel = "nvme-kernel",
    /// `nvme`, of the package nvme-cli.
    NvmeCli = "nvme-cli",
    /// `tlshd` of ktls-utils, which does TLS handshakes for the kernel, and `keyctl` of keyutils.
    Tlshd = "tlshd",
    /// `tshark`, whose dissector knows NVMe over TCP.
    Tshark = "tshark",
    /// OpenSSL 3: the program, and its headers with pkg-config.
    OpenSsl = "openssl",
    /// `nats-server`, with JetStream.
    NatsServer = "nats-server",
    /// What `scripts/bench_offload_nfs` needs: nfs-ganesha, rpcbind, libnfs, and a network of its own.
    Nfs = "nfs",
    /// What `scripts/link` needs: `/dev/net/tun`, a C compiler, and networks of its own.
    Tun = "tun",
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Needs {
    /// Describes why this requirement is not met.
    pub fn because(self, reason: impl fmt::Display) -> Missing {
        Missing { needs: self, reason: reason.to_string() }
    }

    /// True if `ROCKMILL_REQUIRE` names it.
    ///
    /// # Errors
    /// The name there that is unknown.
    pub fn is_required(self) -> Result<bool, String> {
        let text = std::env::var_os(REQUIRE).unwrap_or_default();
        Ok(named(&text.to_string_lossy())?.contains(&self))
    }
}

/// What `ROCKMILL_REQUIRE` names.
fn named(text: &str) -> Result<Vec<Needs>, String> {
    let words = text.split([',', ' ', '\t', '\n']).filter(|word| !word.is_empty());
    words
        .map(|word| {
            Needs::ALL.iter().find(|needs| needs.name() == word).copied().ok_or_else(|| {
                let all: Vec<_> = Needs::ALL.iter().map(|needs| needs.name()).collect();
                format!("{REQUIRE} names {word:?}, which is none of {}", all.join(", "))
            })
        })
        .collect()
}

/// A requirement of a test that is not met, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What.
    pub needs: Needs,
    /// Why it is not met.
    pub reason: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The reason on one line, whatever a compiler or the verifier printed.
        let reason = self.reason.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(f, "needs {}: {reason}", self.needs)
    }
}

impl std::error::Error for Missing {}

impl Missing {
    /// The line that reports that all or part of `test` was not run; [`skip`] and tools print it.
    ///
    /// # Errors
    /// The requirement must be met, or `ROCKMILL_REQUIRE` has an unknown name.
    pub fn line(&self, test: &str) -> Result<String, String> {
        if self.needs.is_required()? {
            return Err(format!("{test} cannot run, and {REQUIRE} names {}: {self}", self.needs));
        }
        Ok(format!("skipped: {test}: {self}"))
    }
}

/// Reports, bypassing the test harness's capture, that (part of) a test was not run.
///
/// # Panics
/// If `ROCKMILL_REQUIRE` names the missing requirement, or has an unknown name.
#[track_caller]
pub fn skip(test: &str, missing: &Missing) {
    let line = missing.line(test).unwrap_or_else(|why| {
        // invariant: a test that must run cannot.
        panic!("{why}")
    });
    // A single write, so that lines of concurrent tests do not mix. A failure cannot be reported to anybody.
    let _ = std::io::stderr().write_all(format!("\n{line}\n").as_bytes());
}

/// Like [`skip`], for an additional requirement that only some machines meet, when the test has already run without it:
/// prints nothing.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn wish(test: &str, missing: &Missing) {
    if let Err(why) = missing.line(test) {
        // invariant: a test that must run cannot.
        panic!("{why}");
    }
}

/// Finds a program.
///
/// # Errors
/// It is not installed; `needs` is the requirement that it belongs to.
pub fn program(name: &str, needs: Needs) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
        .ok_or_else(|| needs.because(format!("{name} is not installed (scripts/setup installs it)")))
}

/// Finds a Python with rocksdict: the one that `scripts/setup` made, or the system's.
///
/// # Errors
/// There is none.
pub fn python_with_rocksdict() -> Result<PathBuf, Missing> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut candidates = vec![root.join("target/oracle-venv/bin/python")];
    candidates.extend(program("python3", Needs::RocksDict));
    let works = |python: &PathBuf| {
        let mut c = Command::new(python);
        c.args(["-c", "import rocksdict"]).stdin(Stdio::null()).output().is_ok_and(|o| o.status.success())
    };
    let found = candidates.into_iter().find(works);
    found.ok_or_else(|| Needs::RocksDict.because("the wheel is not installed (scripts/setup installs it)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_unknown_ones_refused() {
        assert_eq!(named(""), Ok(vec![]));
        assert_eq!(named("kernel,uring, ldb\n"), Ok(vec![Needs::Kernel, Needs::Uring, Needs::Ldb]));
        for needs in Needs::ALL {
            assert_eq!(named(needs.name()), Ok(vec![*needs]), "each name is one capability's");
        }
        let e = named("kernel,kernal").expect_err("no such name");
        assert!(e.contains("\"kernal\"") && e.contains("uring"), "{e}");
    }

    #[test]
    fn what_is_required_here_has_names() {
        named(&std::env::var(REQUIRE).unwrap_or_default()).expect("ROCKMILL_REQUIRE");
    }

    #[test]
    fn a_reason_is_one_line() {
        let missing = Needs::Clang.because("first\n  second\n");
        assert_eq!(missing.to_string(), "needs clang: first second");
    }

    /// Tests of the variable run in separate processes: this binary again, with the tests' output captured.
    const CHILD: &str = "ROCKMILL_SKIP_CHILD";

    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_some() {
            skip("a test", &Needs::OtherRocksDb.because("only\nfor this test"));
        }
    }

    #[test]
    fn a_skip_is_seen_though_the_test_passes_and_fails_where_it_is_required() {
        let run = |require: &str| {
            let me = std::env::current_exe().expect("this binary");
            let mut c = Command::new(me);
            c.args(["--exact", "tests::child"]).env(CHILD, "1").env(REQUIRE, require);
            let out = c.output().expect("it runs");
            let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            (out.status.success(), said)
        };
        let (passed, said) = run("");
        assert!(passed && said.contains("\nskipped: a test: needs other-rocksdb: only for this test\n"), "{said}");
        assert!(run("kernel uring").0);
        let (passed, said) = run("kernel,other-rocksdb");
        assert!(!passed && said.contains("a test cannot run, and ROCKMILL_REQUIRE names other-rocksdb"), "{said}");
        let (passed, said) = run("kernel,rocksdict2");
        assert!(!passed && said.contains("\"rocksdict2\", which is none of"), "{said}");
    }
}
