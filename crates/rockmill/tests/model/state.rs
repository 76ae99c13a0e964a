//! The ordered maps that the store must agree with, and the random operations on both.

use std::collections::BTreeMap;
use std::path::Path;

use rockmill::{Db, Options, SstFileWriter, WriteBatch};

use crate::families::{CFS, FILTERED, MERGING, REVERSED, SINGLE, filtered_value, settled};

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What the store must show, by column family.
#[derive(Clone, Default)]
pub struct Model {
    pub now: [Map; CFS.len()],
    /// Keys of the column family of single deletes that were ever put.
    singles: u32,
}

pub enum Op {
    Put(usize, Vec<u8>, Vec<u8>),
    /// In the column family that has a merge operator only.
    Merge(Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    /// In the column family of single deletes only.
    SingleDelete(Vec<u8>),
    /// In the order of the column family.
    DeleteRange(usize, Vec<u8>, Vec<u8>),
}

pub fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    // Few enough keys that versions pile up; some share long prefixes, one is empty.
    match rng.u8(0..10) {
        0 => vec![0xff; rng.usize(0..4)],
        1..=4 => format!("key{:04}", rng.u32(0..300)).into_bytes(),
        _ => format!("a-longer-shared-prefix/{:06}", rng.u32(0..1500)).into_bytes(),
    }
}

fn random_value(rng: &mut fastrand::Rng, n: u64) -> Vec<u8> {
    let len = if rng.u8(0..40) == 0 { rng.usize(0..9000) } else { rng.usize(0..120) };
    let mut v = format!("{n}:").into_bytes();
    v.extend(std::iter::repeat_with(|| rng.u8(b'a'..=b'f')).take(len));
    v
}

/// Two keys in the order of the column family.
fn random_range(rng: &mut fastrand::Rng, cf: usize) -> (Vec<u8>, Vec<u8>) {
    let (a, b) = (random_key(rng), random_key(rng));
    if (a <= b) == (cf != REVERSED) { (a, b) } else { (b, a) }
}

impl Model {
    pub fn random_op(&mut self, rng: &mut fastrand::Rng, n: u64) -> Op {
        let cf = [0, 0, MERGING, REVERSED, FILTERED, SINGLE][rng.usize(0..6)];
        if cf == SINGLE {
            // The contract of single deletes: a key is put once before it, and not otherwise deleted.
            if let (0..=4, Some(key)) = (rng.u8(0..10), self.some_single(rng)) {
                return Op::SingleDelete(key);
            }
            self.singles += 1;
            // Spread over the key space.
            let key = format!("{:05}-{}", self.singles.wrapping_mul(40_503) % 65_536, self.singles);
            return Op::Put(cf, key.into_bytes(), random_value(rng, n));
        }
        match rng.u16(0..400) {
            0..=1 => {
                let (a, b) = random_range(rng, cf);
                Op::DeleteRange(cf, a, b)
            }
            2..=80 => Op::Delete(cf, random_key(rng)),
            81..=240 if cf == MERGING => {
                let len = (n % 12) as usize;
                let operand = std::iter::repeat_with(|| rng.u8(b'a'..=b'f')).take(len).collect();
                Op::Merge(random_key(rng), operand)
            }
            _ => {
                let value = random_value(rng, n);
                let value = if cf == FILTERED { filtered_value(rng, value) } else { value };
                Op::Put(cf, random_key(rng), value)
            }
        }
    }

    fn some_single(&self, rng: &mut fastrand::Rng) -> Option<Vec<u8>> {
        let all = &self.now[SINGLE];
        let from = format!("{:05}", rng.u32(0..65_536)).into_bytes();
        all.range(from..).next().or_else(|| all.iter().next()).map(|(k, _)| k.clone())
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(cf, k, v) => {
                self.now[*cf].insert(k.clone(), v.clone());
            }
            Op::Merge(k, v) => match self.now[MERGING].get_mut(k) {
                Some(value) => {
                    value.push(b',');
                    value.extend_from_slice(v);
                }
                None => drop(self.now[MERGING].insert(k.clone(), v.clone())),
            },
            Op::Delete(cf, k) => {
                self.now[*cf].remove(k);
            }
            Op::SingleDelete(k) => {
                self.now[SINGLE].remove(k);
            }
            Op::DeleteRange(cf, a, b) => {
                let inside = |k: &Vec<u8>| if *cf == REVERSED { k <= a && k > b } else { k >= a && k < b };
                self.now[*cf].retain(|k, _| !inside(k));
            }
        }
    }

    /// What a read of `key` must give; see [`settled`].
    pub fn get(&self, cf: usize, key: &[u8]) -> Option<&[u8]> {
        self.now[cf].get(key).and_then(|v| settled(cf, v))
    }

    /// A column family in its order, without what may or may not be there.
    pub fn sorted(&self, cf: usize) -> Pairs {
        let all = self.now[cf].iter().filter_map(|(k, v)| Some((k.clone(), settled(cf, v)?.to_vec())));
        if cf == REVERSED { all.rev().collect() } else { all.collect() }
    }
}

pub fn add_to_batch(batch: &mut WriteBatch, db: &Db, op: Op) {
    let cf = |i: usize| db.cf_handle(CFS[i]).unwrap();
    match op {
        Op::Put(i, k, v) => batch.put_cf(&cf(i), k, v),
        Op::Merge(k, v) => batch.merge_cf(&cf(MERGING), k, v),
        Op::Delete(i, k) => batch.delete_cf(&cf(i), k),
        Op::SingleDelete(k) => batch.single_delete_cf(&cf(SINGLE), k),
        Op::DeleteRange(i, a, b) => batch.delete_range_cf(&cf(i), a, b),
    }
}

/// A table of random keys for a column family, made outside of the database; the model has its content afterwards.
pub fn random_table(model: &mut Model, rng: &mut fastrand::Rng, cf: usize, options: &Options, path: &Path, n: u64) {
    let mut keys: Vec<Vec<u8>> = (0..rng.usize(1..60)).map(|_| random_key(rng)).collect();
    keys.sort();
    keys.dedup();
    if cf == REVERSED {
        keys.reverse();
    }
    let mut writer = SstFileWriter::create(options);
    writer.open(path).unwrap();
    // A file's range tombstones are older than its points.
    if rng.u8(0..4) == 0 {
        let (a, b) = random_range(rng, cf);
        if a != b {
            writer.delete_range(&a, &b).unwrap();
            model.apply(&Op::DeleteRange(cf, a, b));
        }
    }
    for key in keys {
        let op = match rng.u8(0..8) {
            0 => Op::Delete(cf, key),
            1..=3 if cf == MERGING => Op::Merge(key, b"ingested".to_vec()),
            _ => Op::Put(cf, key, random_value(rng, n)),
        };
        model.apply(&op);
        match op {
            Op::Put(_, k, v) => writer.put(k, v).unwrap(),
            Op::Merge(k, v) => writer.merge(k, v).unwrap(),
            Op::Delete(_, k) => writer.delete(k).unwrap(),
            Op::SingleDelete(_) | Op::DeleteRange(..) => unreachable!("not made here"),
        }
    }
    writer.finish().unwrap();
}
