//! Compares secrets with nvme-cli's and groups with independent computations; runs both sides of valid and invalid
//! exchanges.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::group::PRIVATE_BYTES;
use super::*;

const HOST: &str = "nqn.2026-11.test:host";
const STORE: &str = "nqn.2026-11.test:store";

/// Deterministic "random" bytes.
#[derive(Debug)]
struct Counting(Mutex<u8>);

impl Random for Counting {
    fn fill(&self, into: &mut [u8]) -> io::Result<()> {
        let mut next = self.0.lock().unwrap();
        into.iter_mut().for_each(|b| {
            *next = next.wrapping_mul(5).wrapping_add(113);
            *b = *next;
        });
        Ok(())
    }
}

fn counting(seed: u8) -> Arc<dyn Random> {
    Arc::new(Counting(Mutex::new(seed)))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Made by `nvme gen-dhchap-key --secret=000102…` of nvme-cli 2.3, and with Python's hmac and zlib.
#[test]
fn secrets_are_those_of_nvme_cli() {
    for (hash, text, of_host) in [
        (None, "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", None),
        (
            Some(Hash::Sha256),
            "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
            Some("f90505ffec2b69558a1c772fd76334b1baae4c26d84f7231c63da8f4c027bdb7"),
        ),
        (
            Some(Hash::Sha384),
            "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
            Some("5de592df5ed2bddf2b97d64fe4c954ceb9ac59f10343fdbb263658f07d08fd6f8b90782dc9321afe677fa1954240632c"),
        ),
        (
            Some(Hash::Sha512),
            "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:",
            Some(
                "cbb3882d578ce0e0dbc12d57f779248e04d76fa9cfaa0bfdd99da0bfabdd148f\
                 6cb1637194b697ddd2fc3b1fe6cef4ba213bd40a823eebe75b4fd4074724e469",
            ),
        ),
    ] {
        let secret = Secret::parse(text).unwrap();
        assert_eq!(secret.to_text(), text);
        let key: Vec<u8> = (0..hash.map_or(32, Hash::bytes) as u8).collect();
        assert_eq!(hexadecimal(&secret.of(HOST)), of_host.map_or_else(|| hexadecimal(&key), str::to_owned));
        assert!(!format!("{secret:?}").contains("1, 2"), "{secret:?}");
        let made = Secret::generate(hash, &SystemRandom).unwrap();
        assert_eq!(Secret::parse(&made.to_text()), Ok(made));
    }
}

#[test]
fn texts_that_are_no_secrets_say_why() {
    let good = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    for (text, why) in [
        ("", "begin"),
        ("DHHC-2:00:AAAA:", "begin"),
        ("DHHC-1:00", "colon is missing"),
        (&good[..good.len() - 1], "at its end"),
        (&good.replace("1:00", "1:04"), "none of"),
        (&good.replace("AAEC", "AA*C"), "base64"),
        (&good.replace("KfiaR", "KfiaS"), "checksum"),
        (&good.replace("1:00", "1:02"), "another length than its hash"),
        ("DHHC-1:00:AAEC:", "too short"),
        ("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=:", "not 32"),
        (&good.replace("iaR:", "iaRA:"), "base64"),
        (&format!("DHHC-1:00:{}:", "A".repeat(1 << 20)), "base64"),
    ] {
        let said = Secret::parse(text).unwrap_err().to_string();
        assert!(said.contains(why), "{text}: {said}");
    }
}

/// Computed with Python's pow; its primes were checked against OpenSSL's.
#[test]
fn groups_give_the_values_that_others_give() {
    let known = [
        (
            "1908b0773912e53f8b481d76c9723f551e22e7edcee9e562bf0cc763a9ce3958",
            "da2e5a31108cb467718205688162911b67b0775bb6427693cc44e99296029eeb",
        ),
        (
            "e9f81f609bb558fd1ea247cff217d7681f14a9b132cb0c93203a873ad800ca24",
            "7ca8871c67094faa57d2d029157ddede14907ea9ad868e87a42b29a10b9b86f9",
        ),
        (
            "a53688d3a4d42b2c60ebff8551c83d059a0415eea23c365d1e190ebaff879f1c",
            "b423e866c604cc41468f35e233d5f96320623d8fc88dc45bc671e04b06abb6fb",
        ),
        (
            "21ff5bd61a7d69b1817b7ae910dc291ab6c5f4d60aa562b30c987dda2f0f9157",
            "332940455ad5fb10c840d23362c27930dd69a5d657415e44d025d9d2d0272f9f",
        ),
        (
            "b2f1e92b44e0a45ee7b23938bfd9be352a84ab3878fa0afae756e3c4f6999e9e",
            "2a6df4efba355cdb6e01ef0a30f59043e965e571a09a5f8d0b5b2a7ddccc6634",
        ),
    ];
    let one: Vec<u8> = (1..=PRIVATE_BYTES as u8).collect();
    let other: Vec<u8> = one.iter().rev().copied().collect();
    for (code, (public, shared)) in (1..).zip(known) {
        let group = Group::from_code(code).unwrap();
        let (a, b) = (group.public(&one), group.public(&other));
        assert_eq!(hexadecimal(&Hash::Sha256.digest(&a)), public);
        let secret = group.shared(&one, &b).unwrap();
        assert_eq!(hexadecimal(&Hash::Sha256.digest(&secret)), shared);
        assert_eq!(group.shared(&other, &a).unwrap(), secret);
        // 0, 1, p - 1, p, and more than p; and a value of another length.
        let value = |byte: u8| [vec![0; group.bytes() - 1], vec![byte]].concat();
        let mut prime = group.bytes() / 8;
        prime = prime * 8 - 1;
        let mut last = hex(match group {
            Group::Ffdhe2048 => primes::FFDHE2048,
            Group::Ffdhe3072 => primes::FFDHE3072,
            Group::Ffdhe4096 => primes::FFDHE4096,
            Group::Ffdhe6144 => primes::FFDHE6144,
            _ => primes::FFDHE8192,
        });
        let p = last.clone();
        last[prime] -= 1;
        for bad in [value(0), value(1), last, p, vec![0xff; group.bytes()], a[1..].to_vec(), Vec::new()] {
            assert_eq!(group.shared(&one, &bad), None);
        }
        assert!(group.shared(&one, &value(2)).is_some());
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn secret(seed: u8, hash: Option<Hash>) -> Secret {
    Secret::generate(hash, &*counting(seed)).unwrap()
}

fn sides(controller: bool, group: Group, hash: Hash) -> (HostAuth, Arc<AuthPolicy>) {
    let of_controller = controller.then(|| secret(9, None));
    let mut host = HostAuth::new(secret(1, Some(hash)), of_controller.clone());
    host.groups = vec![group];
    host.hashes = vec![hash];
    host.random = counting(77);
    let secrets = HostSecrets { host: secret(1, Some(hash)), controller: of_controller };
    let mut policy = AuthPolicy::new(BTreeMap::from([(HOST.to_owned(), secrets)]));
    policy.groups.push(Group::Null);
    policy.random = counting(3);
    (host, Arc::new(policy))
}

/// The result of both sides. `change` may alter each message on its way; it gets the number and the bytes.
fn exchange(
    host: &HostAuth,
    policy: &Arc<AuthPolicy>,
    mut change: impl FnMut(usize, &mut Vec<u8>),
) -> (Result<(), AuthError>, Step) {
    let mut h = HostExchange::new(host, HOST, STORE, 0x1234);
    let mut c = ControllerExchange::new(Arc::clone(policy), HOST.into(), STORE.into());
    let mut message = h.negotiate();
    let mut number = 0;
    loop {
        change(number, &mut message);
        let mut step = c.received(&message);
        let Some(mut answer) = c.fetch() else {
            // After Success2 there is nothing to fetch.
            return (if h.is_done() { Ok(()) } else { Err(AuthError::Mismatch) }, step);
        };
        assert!(answer.len() <= MESSAGE_BYTES_MAX && message.len() <= MESSAGE_BYTES_MAX);
        change(number + 1, &mut answer);
        number += 2;
        match h.received(&answer) {
            Ok(Some(next)) => message = next,
            Ok(None) => return (Ok(()), step),
            Err(e) => {
                if let Some(failure) = h.failure(e) {
                    step = c.received(&failure);
                    assert_eq!(c.fetch(), None);
                }
                return (Err(e), step);
            }
        }
    }
}

#[test]
fn both_sides_agree_with_every_hash_and_group_in_one_and_two_directions() {
    for hash in Hash::ALL {
        for group in Group::ALL.into_iter().chain([Group::Null]) {
            for controller in [false, true] {
                let (host, policy) = sides(controller, group, hash);
                let messages = std::cell::Cell::new(0);
                let ended = exchange(&host, &policy, |n, _| messages.set(n + 1));
                assert_eq!(ended, (Ok(()), Step::Authenticated), "{hash:?} {group:?} {controller}");
                assert_eq!(messages.get(), if controller { 5 } else { 4 });
            }
        }
    }
}

#[test]
fn secrets_that_differ_are_noticed_by_the_side_that_asks() {
    let (mut host, policy) = sides(true, Group::Ffdhe2048, Hash::Sha384);
    host.secret = secret(2, Some(Hash::Sha384));
    assert_eq!(exchange(&host, &policy, |_, _| ()), (Err(AuthError::Refused(Failure::Failed)), Step::Failed));
    // The same key for another name is another key.
    let (mut host, policy) = sides(true, Group::Ffdhe2048, Hash::Sha384);
    host.controller = Some(secret(2, None));
    assert_eq!(exchange(&host, &policy, |_, _| ()), (Err(AuthError::Mismatch), Step::Failed));
    // The host wants a proof that the controller has no secret for.
    let (mut host, policy) = sides(false, Group::Null, Hash::Sha256);
    host.controller = Some(secret(2, None));
    assert_eq!(exchange(&host, &policy, |_, _| ()), (Err(AuthError::Refused(Failure::Failed)), Step::Failed));
}

#[test]
fn what_both_do_not_have_is_said() {
    let (mut host, policy) = sides(false, Group::Null, Hash::Sha256);
    let mut policy = AuthPolicy::clone(&policy);
    policy.hashes = vec![Hash::Sha512];
    let refused = |host: &HostAuth, policy: &AuthPolicy| exchange(host, &Arc::new(policy.clone()), |_, _| ()).0;
    assert_eq!(refused(&host, &policy), Err(AuthError::Refused(Failure::Hash)));
    policy.hashes = Hash::ALL.to_vec();
    policy.groups = Group::ALL.to_vec();
    assert_eq!(refused(&host, &policy), Err(AuthError::Refused(Failure::Group)));
    host.groups = Vec::new();
    assert_eq!(refused(&host, &policy), Err(AuthError::Refused(Failure::Group)));
}

/// Changes each byte of each message. Either the change has no effect (reserved bytes, other offers), or one side
/// fails. A host that asks for proof never accepts a controller if a relevant byte was changed.
#[test]
fn messages_changed_on_their_way() {
    for controller in [false, true] {
        let (host, policy) = sides(controller, Group::Null, Hash::Sha256);
        let (mut good, mut bad) = (0, 0);
        for message in 0..5 {
            for at in 0..200 {
                let mut changed = false;
                let ended = exchange(&host, &policy, |n, bytes| {
                    if n == message && at < bytes.len() {
                        bytes[at] ^= 0x41;
                        changed = true;
                    }
                });
                if !changed {
                    continue;
                }
                match ended {
                    (Ok(()), Step::Authenticated) => good += 1,
                    _ => bad += 1,
                }
                // What is in the proofs.
                let proven = match message {
                    1 => matches!(at, 4..=6 | 12..48),
                    2 => matches!(at, 4..=6 | 16..48) || controller && matches!(at, 12..80),
                    3 => controller && matches!(at, 16..48),
                    _ => false,
                };
                assert!(!proven || ended != (Ok(()), Step::Authenticated), "message {message}, byte {at}");
            }
        }
        println!("{good} changes that nobody minds, {bad} that somebody does");
        assert!(bad >= 100);
    }
}

#[test]
fn messages_out_of_order_and_cut_short_fail() {
    let (host, policy) = sides(true, Group::Ffdhe2048, Hash::Sha512);
    let mut all = Vec::new();
    let _ = exchange(&host, &policy, |_, m| all.push(m.clone()));
    assert_eq!(all.len(), 5);
    for (n, message) in all.iter().enumerate() {
        for cut in 0..message.len() {
            // The last bytes of Success1 and Success2 are optional.
            let _ = message::Message::decode(&message[..cut]);
            let ended = exchange(&host, &policy, |i, m| {
                if i == n {
                    m.truncate(cut);
                }
            });
            assert!(ended.1 == Step::Failed || ended.0.is_err() || (n >= 3 && cut >= 8), "{n} {cut}: {ended:?}");
        }
    }
    for first in [2, 4] {
        let mut c = ControllerExchange::new(Arc::clone(&policy), HOST.into(), STORE.into());
        assert_eq!(c.received(&all[first]), Step::Failed);
        assert!(c.fetchable().is_some());
        assert_eq!(c.received(&all[0]), Step::Failed);
    }
    let mut c = ControllerExchange::new(Arc::clone(&policy), HOST.into(), STORE.into());
    assert_eq!(c.received(&all[0]), Step::Continues);
    // The challenge was not fetched yet.
    assert_eq!(c.received(&all[2]), Step::Failed);
    let mut h = HostExchange::new(&host, HOST, STORE, 0x1234);
    assert_eq!(h.received(&all[3]).unwrap_err().failure(), Failure::Message);
}

/// A recorded reply does not fit another exchange: the challenges differ.
#[test]
fn a_reply_of_another_exchange_is_refused() {
    let (host, policy) = sides(false, Group::Null, Hash::Sha256);
    let mut reply = Vec::new();
    let _ = exchange(&host, &policy, |n, m| {
        if n == 2 {
            reply = m.clone();
        }
    });
    let ended = exchange(&host, &policy, |n, m| {
        if n == 2 {
            m.clone_from(&reply);
        }
    });
    assert_eq!(ended, (Err(AuthError::Refused(Failure::Failed)), Step::Failed));
}
