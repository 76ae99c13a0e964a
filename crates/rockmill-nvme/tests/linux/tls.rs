//! TLS 1.3 with pre-shared keys with the kernel, in both directions. The kernel has the handshakes done by `tlshd`, and
//! takes the keys from its keyring `.nvme`.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rockmill_nvme::auth::{AuthPolicy, Hash, HostSecrets, Secret, SystemRandom};
use rockmill_nvme::fabrics::DISCOVERY_NQN;
use rockmill_nvme::initiator::{HostError, QueueConfig};
use rockmill_nvme::logs::Security;
use rockmill_nvme::psk::{Derivation, Psk, TlsKey};
use rockmill_nvme::target::TargetConfig;
use rockmill_nvme::tcp::{ClientTls, Reconnect, ServerTls, TcpHost};
use rockmill_skip::{Needs, skip};
use tempfile::TempDir;

use crate::common::{NQN, pattern};
use crate::kernel::{KernelController, clock, kernel, program, run, text, until};
use crate::kernel_host::{HOST, HOST_ID, Served, exercise};
use crate::kernel_target::{self, SUBSYSTEM, Subsystem};

const LOG: &str = "log";

/// `tlshd`, and the keyring. Dropping this ends the one and clears the other.
struct Handshakes {
    daemon: Child,
    /// Its configuration and its log.
    place: TempDir,
    keyctl: PathBuf,
}

impl Handshakes {
    /// Starts `tlshd`; the test is skipped if it is not installed.
    fn begin(test: &str) -> Option<Self> {
        let found = |name: &str| {
            let why =
                || Needs::Tlshd.because(format!("{name} is not installed (the guest of scripts/test-nvme has it)"));
            rockmill_skip::program(name, Needs::Tlshd).map_err(|_| skip(test, &why())).ok()
        };
        let (tlshd, keyctl) = (found("tlshd")?, found("keyctl")?);
        let place = tempfile::tempdir().unwrap();
        let configuration = place.path().join("conf");
        fs::write(&configuration, "[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n").unwrap();
        let to = File::create(place.path().join(LOG)).unwrap();
        let mut command = Command::new(tlshd);
        command.arg("-s").arg("-c").arg(&configuration).stdin(Stdio::null()).stdout(to.try_clone().unwrap()).stderr(to);
        let me = Self { daemon: command.spawn().unwrap(), place, keyctl };
        // It listens when it has a generic netlink socket (16) in a multicast group. The socket's port has its process.
        until("tlshd to listen", || {
            let sockets = fs::read_to_string("/proc/net/netlink").unwrap();
            sockets.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let is_its = |port: &str| port.parse::<u32>().is_ok_and(|port| port & 0x3f_ffff == me.daemon.id());
                matches!(words[..], [_, "16", port, groups, ..] if is_its(port) && groups != "00000000")
            })
        });
        me.forget();
        Some(me)
    }

    /// Gives the kernel a key as tools do. Returns the kernel's number of it.
    fn tell(&self, psk: &Psk) -> String {
        self.tell_as(psk.identity(), psk.key())
    }

    fn tell_as(&self, identity: &str, key: &[u8]) -> String {
        let mut keyctl = Command::new(&self.keyctl)
            .args(["padd", "psk", identity, "%keyring:.nvme"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        keyctl.stdin.take().unwrap().write_all(key).unwrap();
        let out = keyctl.wait_with_output().unwrap();
        assert!(out.status.success(), "{identity}");
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    /// The kernel's keys, with their identities.
    fn list(&self) -> String {
        run(&self.keyctl, &["list", "%keyring:.nvme"])
    }

    /// How many keys the kernel has.
    fn known(&self) -> usize {
        run(&self.keyctl, &["rlist", "%keyring:.nvme"]).split_whitespace().count()
    }

    /// Takes all keys from the kernel.
    fn forget(&self) {
        run(&self.keyctl, &["clear", "%keyring:.nvme"]);
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        let _ = Command::new(&self.keyctl).args(["clear", "%keyring:.nvme"]).status();
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        if thread::panicking() {
            eprintln!("tlshd said:\n{}", text(self.place.path().join(LOG)));
        }
    }
}

fn key() -> TlsKey {
    TlsKey::generate(&SystemRandom).unwrap()
}

fn server(psks: &[Psk]) -> Option<ServerTls> {
    Some(ServerTls::new(psks.to_vec()).unwrap())
}

/// The kernel's initiator with every way to derive a key, with authentication besides, after a reset, and after the
/// target was away.
#[test]
fn the_kernel_uses_our_target_over_tls() {
    const TEST: &str = "the_kernel_uses_our_target_over_tls";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let key = key();
    for derivation in Derivation::ALL {
        handshakes.forget();
        let psk = key.psk_by(derivation, HOST, NQN);
        let number = handshakes.tell(&psk);
        let mut config = TargetConfig::new(NQN);
        let mut more = String::from(",tls,nr_io_queues=2,ctrl_loss_tmo=60,hdr_digest,data_digest");
        if derivation == Derivation::V0 {
            // Without this, the kernel looks for a key by the names.
            more.push_str(&format!(",tls_key={number}"));
        }
        if derivation == Derivation::OldV1 {
            let secret = Secret::generate(Some(Hash::Sha256), &SystemRandom).unwrap();
            more.push_str(&format!(",dhchap_secret={}", secret.to_text()));
            let secrets = HostSecrets { host: secret, controller: None };
            config.auth = Some(Arc::new(AuthPolicy::new([(HOST.to_owned(), secrets)].into())));
        }
        let mut served = Served::with_tls(config, 4096, server(std::slice::from_ref(&psk)));
        let controller = served.connect(&more);
        assert_eq!(controller.attribute("queue_count"), "3");
        assert_eq!(controller.attribute("tls_mode"), "tls");
        let disk = served.device();
        let data = pattern(7, 65_536);
        disk.write(8192, &data);
        assert!(disk.read(8192, data.len()) == data && served.disk.contents()[8192..][..data.len()] == data);
        if derivation == Derivation::V1 {
            exercise(&served, 500);
            controller.reset();
            exercise(&served, 600);
            served.server.stop();
            until("the kernel to notice", || controller.attribute("state") == "connecting");
            served.start_again(server(&[psk]));
            controller.until_live();
            exercise(&served, 700);
        }
    }
}

#[test]
fn our_target_refuses_the_kernel_with_another_key_or_none() {
    const TEST: &str = "our_target_refuses_the_kernel_with_another_key_or_none";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let key = key();
    let psk = key.psk(HOST, NQN);
    let served = Served::with_tls(TargetConfig::new(NQN), 512, server(&[psk.clone(), key.psk(HOST, "nqn.2026-11:b")]));
    let refused = |what: &str, more: &str| {
        let said = KernelController::connect(&served.options(&format!(",nr_io_queues=1{more}")));
        assert!(said.is_err(), "{what}");
        assert_eq!(served.target.controllers(), 0, "{what}");
    };
    refused("no TLS", "");
    refused("TLS without a key", ",tls");
    handshakes.tell_as(psk.identity(), &[7; 32]);
    refused("the right name with another key", ",tls");
    handshakes.forget();
    handshakes.tell(&self::key().psk(HOST, NQN));
    refused("a key that the target does not know", ",tls");
    handshakes.forget();
    handshakes.tell(&psk);
    let _controller = served.connect(",nr_io_queues=1,tls");
}

/// nvme-cli derives a key, each way that its version has, and our target has the same.
#[test]
fn our_target_derives_keys_as_nvme_cli() {
    const TEST: &str = "our_target_derives_keys_as_nvme_cli";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let Some(nvme) = program(TEST, "nvme", Needs::NvmeCli) else { return };
    let key = key();
    for (version, derivations) in
        [("0", [Derivation::V0, Derivation::OldV0]), ("1", [Derivation::V1, Derivation::OldV1])]
    {
        handshakes.forget();
        let secret = key.to_text();
        run(&nvme, &["check-tls-key", "-d", &secret, "-n", HOST, "-c", NQN, "-I", version, "--insert"]);
        let works = derivations.map(|derivation| {
            let psk = key.psk_by(derivation, HOST, NQN);
            let served = Served::with_tls(TargetConfig::new(NQN), 512, server(&[psk]));
            KernelController::connect(&served.options(",nr_io_queues=1,tls")).is_ok()
        });
        assert!(works[0] != works[1], "version {version}: {works:?}");
    }
}

/// nvme-cli derives the keys, finds our target by its discovery service, and learns there that it needs TLS.
#[test]
fn nvme_cli_connects_to_all_that_we_serve_over_tls() {
    const TEST: &str = "nvme_cli_connects_to_all_that_we_serve_over_tls";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let Some(nvme) = program(TEST, "nvme", Needs::NvmeCli) else { return };
    let key = key();
    let secret = key.to_text();
    for subsystem in [NQN, DISCOVERY_NQN] {
        run(&nvme, &["check-tls-key", "-d", &secret, "-n", HOST, "-c", subsystem, "-I", "1", "--insert"]);
    }
    assert_eq!(handshakes.known(), 2);
    let both =
        [Derivation::V1, Derivation::OldV1].map(|d| [key.psk_by(d, HOST, NQN), key.psk_by(d, HOST, DISCOVERY_NQN)]);
    let served = Served::with_tls(TargetConfig::new(NQN), 512, server(&both.concat()));
    let port = served.server.address().port().to_string();
    served.announce();
    let to = ["--tls", "-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-q", HOST, "-I", HOST_ID];
    let found = run(&nvme, &[&["discover"], &to[..]].concat());
    assert!(found.contains(&format!("subnqn:  {NQN}")) && found.contains("sectype: tls13"), "{found}");
    run(&nvme, &[&["connect-all"], &to[..]].concat());
    let disk = served.device();
    let data = pattern(8, 65_536);
    disk.write(0, &data);
    assert!(disk.read(0, data.len()) == data);
    drop(disk);
    assert!(run(&nvme, &["disconnect", "-n", NQN]).contains("disconnected 1 controller"));
}

/// nvme-cli makes a key for SHA-384, and both derive the same identity from it.
#[test]
fn our_side_has_the_identities_of_nvme_cli_for_sha384() {
    const TEST: &str = "our_side_has_the_identities_of_nvme_cli_for_sha384";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let Some(nvme) = program(TEST, "nvme", Needs::NvmeCli) else { return };
    let secret = run(&nvme, &["gen-tls-key", "--hmac=2"]);
    let key = TlsKey::parse(secret.trim()).unwrap();
    assert_eq!(key.hash(), Hash::Sha384);
    for (version, derivations) in
        [("0", [Derivation::V0, Derivation::OldV0]), ("1", [Derivation::V1, Derivation::OldV1])]
    {
        handshakes.forget();
        run(&nvme, &["check-tls-key", "-d", secret.trim(), "-n", HOST, "-c", NQN, "-I", version, "--insert"]);
        let (listed, ours) = (handshakes.list(), derivations.map(|d| key.psk_by(d, HOST, NQN).identity().to_owned()));
        assert!(ours.iter().any(|identity| listed.contains(identity)), "{listed}{ours:?}");
    }
}

/// For such a key `tlshd` offers the suite of SHA-384, but its GnuTLS proves the key with SHA-256. So there is no TLS
/// with these keys, in either direction; keys for SHA-256 work at the same target. If this fails because it connects,
/// `tlshd` has learnt it: then the other tests here should have keys of both hashes.
#[test]
fn tlshd_has_no_keys_for_sha384() {
    const TEST: &str = "tlshd_has_no_keys_for_sha384";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let (long, short) = (TlsKey::generate_sha384(&SystemRandom).unwrap(), key());
    let psks = [long.psk(HOST, NQN), short.psk(HOST, NQN)];
    let number = handshakes.tell(&psks[0]);
    let served = Served::with_tls(TargetConfig::new(NQN), 512, server(&psks));
    let said = KernelController::connect(&served.options(&format!(",nr_io_queues=1,tls,tls_key={number}")));
    assert!(said.is_err(), "{said:?}");
    assert_eq!(served.target.controllers(), 0);
    let number = handshakes.tell(&psks[1]);
    drop(served.connect(&format!(",nr_io_queues=1,tls,tls_key={number}")));

    let subsystem = Subsystem::with(&[("addr_tsas", "tls1.3"), ("addr_treq", "required")]);
    let host = kernel_target::config(SUBSYSTEM, QueueConfig::default()).host;
    let psks = [&long, &short].map(|key| key.psk(&host, SUBSYSTEM));
    psks.iter().for_each(|psk| drop(handshakes.tell(psk)));
    let e = connect(Some(&psks[0]), SUBSYSTEM).unwrap_err();
    assert!(matches!(e, HostError::Io(_)), "{e}");
    use_it(&connect(Some(&psks[1]), SUBSYSTEM).unwrap(), &subsystem, 500);
}

fn connect(psk: Option<&Psk>, subsystem: &str) -> Result<TcpHost, HostError> {
    let tls = psk.map(|psk| ClientTls::new(psk).unwrap());
    let config = kernel_target::config(subsystem, QueueConfig::default());
    TcpHost::connect_with(kernel_target::address(), config, tls, clock())
}

/// What a connection to the kernel's target must be able to do.
fn use_it(host: &TcpHost, subsystem: &Subsystem, seed: u64) {
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    assert_eq!(host.admin(|admin| admin.set_queues(2)).unwrap(), 2);
    let part = 2 << 20;
    for queue in 1..=2u64 {
        let mut io = host.io_queue(queue as u16).unwrap();
        let first = (queue - 1) * part / u64::from(disk.block_bytes);
        let data = pattern(seed + queue, part as usize);
        // In the capsule, and then by R2Ts.
        io.write(&disk, first, &data[..8192], false).unwrap();
        io.write(&disk, first, &data, true).unwrap();
        let mut back = vec![0; data.len()];
        io.read(&disk, first, &mut back).unwrap();
        assert!(back == data, "queue {queue}");
        io.flush(1).unwrap();
    }
    let all: Vec<u8> = (1..=2).flat_map(|queue| pattern(seed + queue, part as usize)).collect();
    assert!(fs::read(&subsystem.file).unwrap()[..all.len()] == all);
    host.admin(|admin| admin.shut_down()).unwrap();
}

#[test]
fn our_host_uses_the_kernel_s_target_over_tls() {
    const TEST: &str = "our_host_uses_the_kernel_s_target_over_tls";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let subsystem = Subsystem::with(&[("addr_tsas", "tls1.3"), ("addr_treq", "required")]);
    let key = key();
    let host = kernel_target::config(SUBSYSTEM, QueueConfig::default()).host;
    for (seed, derivation) in Derivation::ALL.into_iter().enumerate() {
        handshakes.forget();
        let psk = key.psk_by(derivation, &host, SUBSYSTEM);
        handshakes.tell(&psk);
        use_it(&connect(Some(&psk), SUBSYSTEM).unwrap(), &subsystem, seed as u64 * 10);
    }
    // Its discovery service needs a key, too, and says so of the subsystem.
    let psk = key.psk(&host, DISCOVERY_NQN);
    handshakes.tell(&psk);
    let discovery = connect(Some(&psk), DISCOVERY_NQN).unwrap();
    let log = discovery.admin(|admin| admin.discovery_log()).unwrap();
    let entry = log.iter().find(|e| e.subsystem == SUBSYSTEM).unwrap_or_else(|| panic!("{log:?}"));
    assert_eq!(entry.security, Security::Tls13Required);
}

/// The kernel's target closes its connections, is away for a while, and comes back.
#[test]
fn our_host_connects_to_the_kernel_s_target_again_over_tls() {
    const TEST: &str = "our_host_connects_to_the_kernel_s_target_again_over_tls";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let subsystem = Subsystem::with(&[("addr_tsas", "tls1.3"), ("addr_treq", "required")]);
    let psk = key().psk(&kernel_target::config(SUBSYSTEM, QueueConfig::default()).host, SUBSYSTEM);
    handshakes.tell(&psk);
    let host = connect(Some(&psk), SUBSYSTEM).unwrap();
    let disk = host.admin(|admin| admin.namespace(1)).unwrap();
    let data = pattern(9, 1 << 20);
    let mut io = host.io_queue(1).unwrap();
    io.write(&disk, 0, &data, false).unwrap();
    subsystem.leave();
    let e = (0..100).find_map(|_| io.write(&disk, 0, &data, false).err()).unwrap();
    assert!(e.is_lost(), "{e}");
    let lost = io.link().association();
    let terms = Reconnect {
        loss_timeout: Duration::from_secs(30),
        delay: Duration::from_millis(50),
        useless_max: 3,
        while_refused: true,
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(1));
            subsystem.come_back();
        });
        host.reconnect(lost, &terms, |admin| admin.set_queues(1).map(drop)).unwrap();
    });
    assert_eq!(host.reconnects(), 1);
    use_it(&host, &subsystem, 400);
}

#[test]
fn the_kernel_s_target_refuses_our_host_with_another_key_or_none() {
    const TEST: &str = "the_kernel_s_target_refuses_our_host_with_another_key_or_none";
    let Some(_alone) = kernel(TEST) else { return };
    let Some(handshakes) = Handshakes::begin(TEST) else { return };
    let host = kernel_target::config(SUBSYSTEM, QueueConfig::default()).host;
    let key = key();
    let psk = key.psk(&host, SUBSYSTEM);
    {
        let subsystem = Subsystem::with(&[("addr_tsas", "tls1.3"), ("addr_treq", "required")]);
        let refused = |what: &str, psk: Option<&Psk>| {
            let e = connect(psk, SUBSYSTEM).expect_err(what);
            assert!(matches!(e, HostError::Io(_)), "{what}: {e}");
        };
        refused("no key on its side", Some(&psk));
        handshakes.tell_as(psk.identity(), &[7; 32]);
        refused("another key under this name", Some(&psk));
        handshakes.forget();
        handshakes.tell(&self::key().psk(&host, SUBSYSTEM));
        refused("another key", Some(&psk));
        refused("no TLS", None);
        handshakes.forget();
        handshakes.tell(&psk);
        use_it(&connect(Some(&psk), SUBSYSTEM).unwrap(), &subsystem, 100);
    }
    // A target that only offers TLS has it, and does without.
    let subsystem = Subsystem::with(&[("addr_tsas", "tls1.3"), ("addr_treq", "not required")]);
    use_it(&connect(Some(&psk), SUBSYSTEM).unwrap(), &subsystem, 200);
    use_it(&connect(None, SUBSYSTEM).unwrap(), &subsystem, 300);
    let log = connect(None, DISCOVERY_NQN).unwrap().admin(|admin| admin.discovery_log()).unwrap();
    assert!(log.iter().any(|e| e.subsystem == SUBSYSTEM && e.security == Security::Tls13Offered), "{log:?}");
}
