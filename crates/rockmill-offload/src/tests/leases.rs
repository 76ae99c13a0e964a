//! The lease, alone and with all that may happen around it.

use std::collections::HashSet;
use std::time::Duration;

use crate::lease::{End, Epochs, Event, Lease, Terms};

const TERMS: Terms = Terms { silence_max: Duration::from_secs(2), job_max: Duration::from_secs(5) };

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What comes of events, each with its time.
fn ends(events: &[(Event, u64)]) -> Vec<Option<End>> {
    let mut lease = Lease::new(7, TERMS, at(0));
    let ends = events.iter().map(|(event, time)| lease.on(*event, at(*time))).collect();
    assert_eq!(lease.epoch(), 7);
    ends
}

#[test]
fn a_lease_ends_once_and_for_one_reason() {
    use Event::{Accepted, Done, Lost, Nonsense, Progress, Refused, Time, Unwanted};
    let last = |events: &[(Event, u64)]| *ends(events).last().unwrap();
    assert_eq!(ends(&[(Accepted(7), 0), (Progress(7), 1), (Done(7), 2)]), [None, None, Some(End::Done)]);
    assert_eq!(ends(&[(Accepted(7), 0), (Done(7), 1), (Done(7), 1), (Lost, 1), (Time, 99)])[2..], [None; 3]);
    assert_eq!(last(&[(Done(7), 0)]), Some(End::Nonsense));
    assert_eq!(last(&[(Progress(7), 0)]), Some(End::Nonsense));
    assert_eq!(last(&[(Accepted(7), 0), (Accepted(7), 0)]), Some(End::Nonsense));
    assert_eq!(last(&[(Accepted(6), 0)]), Some(End::Nonsense));
    assert_eq!(last(&[(Accepted(7), 0), (Done(8), 0)]), Some(End::Nonsense));
    assert_eq!(last(&[(Accepted(7), 0), (Progress(6), 0)]), Some(End::Nonsense));
    assert_eq!(last(&[(Nonsense, 0)]), Some(End::Nonsense));
    assert_eq!(last(&[(Refused(7), 0)]), Some(End::Refused));
    assert_eq!(last(&[(Accepted(7), 0), (Refused(7), 0)]), Some(End::Refused));
    assert_eq!(last(&[(Lost, 0)]), Some(End::Lost));
    assert_eq!(last(&[(Accepted(7), 0), (Unwanted, 0)]), Some(End::Unwanted));
    // Time counts before what came: a result that comes too late is none.
    assert_eq!(last(&[(Time, 1)]), None);
    assert_eq!(last(&[(Time, 2)]), Some(End::Silent));
    assert_eq!(last(&[(Accepted(7), 2)]), Some(End::Silent));
    assert_eq!(last(&[(Accepted(7), 1), (Done(7), 3)]), Some(End::Silent));
    assert_eq!(last(&[(Accepted(7), 1), (Progress(7), 2), (Progress(7), 3), (Done(7), 4)]), Some(End::Done));
    assert_eq!(last(&[(Accepted(7), 1), (Progress(7), 2), (Progress(7), 4)]), Some(End::Silent));
    let alive = [(Accepted(7), 1), (Progress(7), 2), (Progress(7), 3), (Progress(7), 4), (Done(7), 5)];
    assert_eq!(last(&alive), Some(End::Slow));
    // What the store held up does not count as the worker's, but that it lives must be seen all the same.
    let mut held_up = Lease::new(7, TERMS, at(0));
    for (event, time) in alive {
        held_up.held_up(at(1));
        held_up.held_up(at(0)); // what was held up stays so
        assert_eq!(held_up.on(event, at(time)), (event == Done(7)).then_some(End::Done), "{event:?}");
    }
    let mut silent = Lease::new(7, TERMS, at(0));
    silent.held_up(at(100));
    assert_eq!(silent.on(Time, at(2)), Some(End::Silent));
    // A clock that goes back ends nothing.
    assert_eq!(ends(&[(Accepted(7), 1), (Time, 0)]), [None; 2]);
}

#[test]
fn no_epoch_is_given_twice() {
    let epochs = Epochs::default();
    let given: HashSet<u64> = (0..100).map(|_| epochs.next()).collect();
    assert_eq!(given.len(), 100);
}

/// A message or a write that is under way, of the worker of an epoch. It may arrive at any time, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Flying {
    Accepted(u64),
    Progress(u64),
    Done(u64),
    Write(u64),
}

/// How the job was done in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    Elsewhere(u64),
    Here,
}

/// The device of one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Device {
    open: bool,
    writes: u8,
    /// What the store took of it.
    taken: Option<u8>,
}

/// A store that offers one job twice at most, then does it itself; workers that say and write what they like, also when
/// they have lost the job; and a network that delays and loses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    time: u64,
    lease: Option<Lease>,
    devices: [Device; 2],
    flying: Vec<Flying>,
    /// What workers have sent, so that there is an end.
    sent: [u8; 2],
    outcome: Option<Outcome>,
}

impl World {
    fn offer(&mut self, epoch: u64) {
        self.lease = Some(Lease::new(epoch, TERMS, at(self.time)));
        self.devices[epoch as usize - 1].open = true;
    }

    /// As `Workers::run_on` and the store do: first the lease, then the device, then what was said.
    fn event(&mut self, event: Event) {
        let Some(lease) = &mut self.lease else { return };
        let (epoch, end) = (lease.epoch(), lease.on(event, at(self.time)));
        let Some(end) = end else { return };
        assert!(self.outcome.is_none());
        let device = &mut self.devices[epoch as usize - 1];
        assert!(device.open && device.taken.is_none(), "{epoch} was fenced twice");
        device.open = false;
        device.taken = Some(device.writes);
        self.lease = None;
        match end {
            End::Done => self.outcome = Some(Outcome::Elsewhere(epoch)),
            _ if epoch == 1 => self.offer(2),
            _ => self.outcome = Some(Outcome::Here),
        }
    }

    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            world.flying.sort_unstable();
            all.push(world);
        };
        for (i, flying) in self.flying.iter().enumerate() {
            step(&|w| {
                w.flying.remove(i); // lost
            });
            step(&|w| {
                w.flying.remove(i);
                match *flying {
                    Flying::Accepted(epoch) => w.event(Event::Accepted(epoch)),
                    Flying::Progress(epoch) => w.event(Event::Progress(epoch)),
                    Flying::Done(epoch) => w.event(Event::Done(epoch)),
                    Flying::Write(epoch) => {
                        let device = &mut w.devices[epoch as usize - 1];
                        device.writes += u8::from(device.open);
                    }
                }
            });
        }
        for epoch in [1, 2] {
            let known = self.devices[epoch as usize - 1].open || self.devices[epoch as usize - 1].taken.is_some();
            if known && self.outcome.is_none() && self.sent[epoch as usize - 1] < 3 {
                for new in [Flying::Accepted, Flying::Progress, Flying::Done, Flying::Write] {
                    step(&|w| {
                        w.sent[epoch as usize - 1] += 1;
                        w.flying.push(new(epoch));
                    });
                }
            }
        }
        if self.time < 3 {
            step(&|w| {
                w.time += 1;
                w.event(Event::Time);
            });
        }
        step(&|w| w.event(Event::Lost));
        all
    }

    fn check(&self, heard: &Self) {
        for (device, before) in self.devices.iter().zip(&heard.devices) {
            // What was taken never changes, and nothing opens a device again.
            assert!(device.taken.is_none_or(|taken| taken == device.writes && !device.open), "{self:?}");
            assert!(before.taken.is_none() || device == before, "{self:?}");
        }
        // One device at a time; and none once the job is done.
        let open = self.devices.iter().filter(|device| device.open).count();
        assert_eq!(open, usize::from(self.lease.is_some()), "{self:?}");
        assert!(self.outcome.is_none() || open == 0, "{self:?}");
        assert!(heard.outcome.is_none() || heard.outcome == self.outcome, "{self:?}");
        if let Some(Outcome::Elsewhere(epoch)) = self.outcome {
            assert!(self.devices[epoch as usize - 1].taken.is_some(), "{self:?}");
            assert!(self.sent[epoch as usize - 1] >= 2, "{self:?}: done by a worker that said nothing");
        }
    }
}

/// All interleavings of two epochs, three messages or writes of each worker, whatever it says, delays, losses, time.
#[test]
fn no_interleaving_changes_what_was_taken() {
    let mut first =
        World { time: 0, lease: None, devices: Default::default(), flying: Vec::new(), sent: [0; 2], outcome: None };
    first.offer(1);
    let mut seen = HashSet::from([first.clone()]);
    let mut rest = vec![first];
    let (mut elsewhere, mut late) = ([0u64; 2], 0u64);
    while let Some(world) = rest.pop() {
        for next in world.next() {
            next.check(&world);
            if let Some(Outcome::Elsewhere(epoch)) = next.outcome {
                elsewhere[epoch as usize - 1] += 1;
                late += u64::from(next.flying.contains(&Flying::Write(epoch)));
            }
            if seen.insert(next.clone()) {
                rest.push(next);
            }
        }
    }
    println!("{} states, {elsewhere:?} done elsewhere, {late} with a write under way", seen.len());
    assert!(seen.len() > 10_000 && elsewhere.iter().all(|&n| n > 100) && late > 100);
}
