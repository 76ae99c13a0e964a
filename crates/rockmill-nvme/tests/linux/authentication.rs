//! DH-HMAC-CHAP with the kernel, in both directions.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rockmill_nvme::auth::{AuthError, AuthPolicy, Group, Hash, HostAuth, HostSecrets, Secret, SystemRandom};
use rockmill_nvme::initiator::{HostError, QueueConfig};
use rockmill_nvme::status::Status;
use rockmill_nvme::target::TargetConfig;
use rockmill_nvme::tcp::TcpHost;
use rockmill_skip::{Needs, skip};

use crate::common::{NQN, pattern};
use crate::kernel::{KernelController, NVMET, clock, kernel};
use crate::kernel_host::{HOST, Served};
use crate::kernel_target::{self, SUBSYSTEM, Subsystem};

/// Checks that one side of the kernel has a feature; otherwise the test is skipped.
fn has(test: &str, what: &str, there: bool) -> bool {
    if !there {
        skip(test, &Needs::NvmeKernel.because(format!("the kernel's {what} was built without authentication")));
    }
    there
}

fn secret(hash: Option<Hash>) -> Secret {
    Secret::generate(hash, &SystemRandom).unwrap()
}

#[test]
fn the_kernel_authenticates_to_our_target() {
    const TEST: &str = "the_kernel_authenticates_to_our_target";
    let Some(_alone) = kernel(TEST) else { return };
    // If it is read before it is written, it lists the supported options.
    let options = fs::read_to_string("/dev/nvme-fabrics").unwrap_or_default();
    if !has(TEST, "initiator", options.contains("dhchap_ctrl_secret")) {
        return;
    }
    let cases = [
        (None, Group::Null, Hash::Sha256, false),
        (Some(Hash::Sha256), Group::Ffdhe2048, Hash::Sha256, false),
        (Some(Hash::Sha384), Group::Ffdhe3072, Hash::Sha384, true),
        (Some(Hash::Sha512), Group::Ffdhe2048, Hash::Sha512, true),
    ];
    for (of_secret, group, hash, both) in cases {
        let (host, controller) = (secret(of_secret), both.then(|| secret(None)));
        let secrets = HostSecrets { host: host.clone(), controller: controller.clone() };
        let mut policy = AuthPolicy::new(BTreeMap::from([(HOST.to_owned(), secrets)]));
        policy.groups = vec![group];
        policy.hashes = vec![hash];
        let mut config = TargetConfig::new(NQN);
        config.auth = Some(Arc::new(policy));
        let served = Served::with(config, 512);
        let options = |host: &Secret, controller: Option<&Secret>| {
            let proof = controller.map_or_else(String::new, |c| format!(",dhchap_ctrl_secret={}", c.to_text()));
            format!(",nr_io_queues=2,hdr_digest,dhchap_secret={}{proof}", host.to_text())
        };
        let connected = served.connect(&options(&host, controller.as_ref()));
        // The admin queue and both I/O queues have authenticated.
        assert_eq!(connected.attribute("queue_count"), "3");
        let disk = served.device();
        let data = pattern(1, 65_536);
        disk.write(0, &data);
        assert!(disk.read(0, data.len()) == data);
        drop((disk, connected));
        // Another secret, no secret, and a controller with none or another.
        let refused = |more: &str| KernelController::connect(&served.options(more)).is_err();
        assert!(refused(&options(&secret(of_secret), controller.as_ref())));
        assert!(refused(",nr_io_queues=2"));
        assert!(refused(&options(&host, Some(&secret(None)))));
    }
}

#[test]
fn our_host_authenticates_to_the_kernel_s_target() {
    const TEST: &str = "our_host_authenticates_to_the_kernel_s_target";
    let Some(_alone) = kernel(TEST) else { return };
    let subsystem = Subsystem::new();
    let probe = Path::new(NVMET).join("hosts/nqn.2026-11.test:probe");
    fs::create_dir(&probe).unwrap();
    let there = probe.join("dhchap_key").exists();
    fs::remove_dir(&probe).unwrap();
    if !has(TEST, "target", there) {
        return;
    }
    let cases = [
        (None, "null", Group::Null, "hmac(sha256)", false),
        (Some(Hash::Sha256), "ffdhe2048", Group::Ffdhe2048, "hmac(sha256)", false),
        (Some(Hash::Sha384), "ffdhe2048", Group::Ffdhe2048, "hmac(sha384)", true),
        (Some(Hash::Sha512), "ffdhe3072", Group::Ffdhe3072, "hmac(sha512)", true),
    ];
    for (of_secret, group_name, group, hash, both) in cases {
        let (host, controller) = (secret(of_secret), both.then(|| secret(Some(Hash::Sha256))));
        let mut config = kernel_target::config(SUBSYSTEM, QueueConfig::default());
        let required = subsystem.require(&config.host, (&host, controller.as_ref()), hash, group_name);
        let connect = |auth: Option<HostAuth>| {
            let mut config = config.clone();
            config.auth = auth;
            TcpHost::connect(kernel_target::address(), config, clock())
        };
        let with = |host: &Secret, controller: Option<&Secret>| {
            let mut auth = HostAuth::new(host.clone(), controller.cloned());
            // The kernel finds the null group only in a list with another group.
            auth.groups = if group == Group::Null { vec![Group::Ffdhe2048, group] } else { vec![group] };
            connect(Some(auth))
        };
        let connected = with(&host, controller.as_ref()).unwrap();
        let disk = connected.admin(|admin| admin.namespace(1)).unwrap();
        connected.admin(|admin| admin.set_queues(2)).unwrap();
        for queue in 1..=2 {
            let mut io = connected.io_queue(queue).unwrap();
            let data = pattern(queue.into(), 65_536);
            io.write(&disk, 0, &data, false).unwrap();
            let mut back = vec![0; data.len()];
            io.read(&disk, 0, &mut back).unwrap();
            assert!(back == data);
        }
        connected.admin(|admin| admin.shut_down()).unwrap();
        drop(connected);
        let wrong = with(&secret(of_secret), controller.as_ref()).unwrap_err();
        // The kernel closes the connection when it refuses; the reason may or may not arrive before.
        assert!(matches!(wrong, HostError::Authentication(AuthError::Refused(_)) | HostError::Io(_)), "{wrong}");
        assert!(matches!(connect(None).unwrap_err(), HostError::Answer(_)));
        if both {
            // A controller that does not know its secret is refused.
            let wrong = with(&host, Some(&secret(None))).unwrap_err();
            assert!(matches!(wrong, HostError::Authentication(AuthError::Mismatch)), "{wrong}");
        }
        config.host.push_str("-unknown");
        let unknown = TcpHost::connect(kernel_target::address(), config, clock()).unwrap_err();
        assert_eq!(unknown.status(), Some(Status::CONNECT_INVALID_HOST));
        drop(required);
    }
}
