//! Host and worker in separate network namespaces, with a slow link between them that is cut during a job and restored.

use std::time::{Duration, Instant};

use rockmill_skip::{Missing, Needs};

use super::*;

pub(super) const HOST: &str = "10.203.77.1";
pub(super) const WORKER: &str = "10.203.77.2";

/// Two namespaces with a link. Dropping it removes them and ends all processes in them.
pub(super) struct Network {
    pub host: String,
    pub worker: String,
}

pub(super) fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).stdin(Stdio::null()).output().map_err(|e| format!("{program}: {e}"))?;
    if !done.status.success() {
        return Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

impl Network {
    /// Creates a link with this rate in each direction, in `tc`'s notation.
    fn new(name: &str, rate: &str) -> Result<Self, Missing> {
        let network = Self::empty(name);
        network.slow(rate).map_err(|e| Needs::Netns.because(e))?;
        Ok(network)
    }

    /// Names for two namespaces that are not there yet.
    pub(super) fn empty(name: &str) -> Self {
        let id = std::process::id();
        Self { host: format!("rm-{name}-h{id}"), worker: format!("rm-{name}-w{id}") }
    }

    fn slow(&self, rate: &str) -> Result<(), String> {
        self.make()?;
        self.join("link0", HOST, WORKER)?;
        for namespace in [&self.host, &self.worker] {
            let shape = ["-n", namespace, "qdisc", "add", "dev", "link0", "root", "tbf"];
            run("tc", &[&shape[..], &["rate", rate, "burst", "256kb", "latency", "100ms"]].concat())?;
        }
        Ok(())
    }

    /// Makes the namespaces, without a link.
    pub(super) fn make(&self) -> Result<(), String> {
        for namespace in [&self.host, &self.worker] {
            run("ip", &["netns", "add", namespace])?;
            run("ip", &["-n", namespace, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// Adds a link of this name, with these addresses of the host's and the worker's end.
    pub(super) fn join(&self, link: &str, host: &str, worker: &str) -> Result<(), String> {
        let (h, w) = (self.host.as_str(), self.worker.as_str());
        run("ip", &["link", "add", link, "netns", h, "type", "veth", "peer", "name", link, "netns", w])?;
        for (namespace, address) in [(h, host), (w, worker)] {
            run("ip", &["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", link])?;
            run("ip", &["-n", namespace, "link", "set", link, "up"])?;
        }
        Ok(())
    }

    /// Cuts or restores the link. Neither side is notified: open connections stay open.
    fn set_link(&self, up: bool) {
        // The worker's end, so that the host only notices that nothing arrives.
        run("ip", &["-n", &self.worker, "link", "set", "link0", if up { "up" } else { "down" }]).expect("the link");
    }

    /// Bytes that came to the worker.
    fn bytes(&self) -> u64 {
        let file = ["netns", "exec", &self.worker, "cat", "/sys/class/net/link0/statistics/rx_bytes"];
        run("ip", &file).expect("the counter").trim().parse().expect("a number")
    }

    /// `rockmill` in one of the namespaces.
    fn rockmill(&self, namespace: &str, dir: &Path, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, ROCKMILL]).args(args).current_dir(dir).stdin(Stdio::null());
        command
    }

    /// A worker that listens at its end of the link.
    fn worker(&self, dir: &Path) -> Worker {
        let listen = format!("{WORKER}:0");
        let mut command = self.rockmill(&self.worker, dir, &["worker", "--listen", &listen, "--allow-unauthenticated"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the worker starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening at ").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Worker { child: Some(child), address }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.host, &self.worker] {
            // What a test that failed has left there.
            for process in run("ip", &["netns", "pids", namespace]).unwrap_or_default().split_whitespace() {
                let _ = run("kill", &["-9", process]);
            }
            let _ = run("ip", &["netns", "del", namespace]);
        }
    }
}

/// Compacts a database in the host's namespace, with the worker if possible.
fn compact(network: &Network, dir: &Path, db: &str, worker: &str) -> Child {
    let args = ["compact", db, "--worker-input-min", "0", "--allow-unauthenticated-workers"];
    let mut command = network.rockmill(&network.host, dir, &args);
    command.args(["--compaction-workers", worker]).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the command starts")
}

#[test]
fn a_link_between_two_networks_is_cut_and_comes_back() {
    // 1 MB per second: a job takes about a second, so it can be interrupted in the middle.
    let network = match Network::new("cut", "8mbit") {
        Ok(network) => network,
        Err(missing) => return rockmill_skip::skip("a_link_between_two_networks_is_cut_and_comes_back", &missing),
    };
    let s = Sandbox::new();
    filled(&s, "db");
    let wanted = s.ok(&["scan", "db"]);
    let worker = network.worker(s.dir.path());
    let count = |what: &str| log(&s, "db").matches(what).count();
    let again = || {
        for file in ["a.tsv", "b.tsv"] {
            s.ok(&["load", "db", file, "--option", "disable_auto_compactions=true"]);
            s.ok(&["flush", "db", "--option", "disable_auto_compactions=true"]);
        }
    };
    let holds = |when: &str| {
        assert!(s.ok(&["scan", "db"]) == wanted, "{when}");
        s.ok(&["verify", "db"]);
    };

    let before = network.bytes();
    assert!(compact(&network, s.dir.path(), "db", &worker.address).wait().expect("it ends").success());
    assert_eq!((count("Done by worker"), count("Not done by a worker")), (1, 0), "{}", log(&s, "db"));
    let job = network.bytes() - before;
    holds("over a link that works");

    // Cut after a part of a job's traffic; both sides keep open connections.
    for part in [4, 2] {
        again();
        let before = network.bytes();
        let mut compacts = compact(&network, s.dir.path(), "db", &worker.address);
        let until = Instant::now() + Duration::from_secs(60);
        while network.bytes() < before + job / part {
            assert!(Instant::now() < until, "the job does not get on");
            std::thread::sleep(Duration::from_millis(2));
        }
        network.set_link(false);
        let cut = Instant::now();
        assert!(compacts.wait().expect("it ends").success());
        let took = cut.elapsed();
        assert_eq!(count("Not done by a worker, and done here"), 1, "{}", log(&s, "db"));
        assert!(took < Duration::from_secs(40), "a worker that is silent for ten seconds has lost its job: {took:?}");
        holds("behind a cut");
        // The worker's remaining data arrives, and is ignored.
        network.set_link(true);
        std::thread::sleep(Duration::from_millis(1500));
        holds("after the link came back");
    }

    // The worker has noticed, and does the next job.
    again();
    assert!(compact(&network, s.dir.path(), "db", &worker.address).wait().expect("it ends").success());
    assert_eq!((count("Done by worker"), count("Not done by a worker")), (1, 0), "{}", log(&s, "db"));
    holds("after all");

    // Nobody answers at all.
    network.set_link(false);
    again();
    assert!(compact(&network, s.dir.path(), "db", &worker.address).wait().expect("it ends").success());
    assert_eq!(count("Not done by a worker, and done here"), 1, "{}", log(&s, "db"));
    holds("behind a link that is cut from the beginning");
}
