//! Measures perfect hash functions of other crates, like the example `figure13` does for ours: with the same keys,
//! lookups and rows. Build both with the same `RUSTFLAGS`.
//!
//!     RUSTFLAGS=-Ctarget-cpu=native \
//!         cargo run --locked --release --manifest-path crates/rockmill-phash/compare/Cargo.toml -- [KEYS...]
//!
//! The keys are random hashes. `ptr_hash` uses them unchanged (its `NoHash`). `ph` mixes each with its seed by one
//! multiplication, which is about what our functions do. *Many* is a stream with prefetching for `ptr_hash`, and a loop
//! of single lookups for `ph`, which has no batched form.

#[path = "../../examples/figure13/measure.rs"]
mod measure;

use std::hash::Hasher;

use measure::{Built, Keys};
use ph::phast::{DefaultCompressedArray, Function, Params, SeedChooser, SeedOnly, ShiftOnlyWrapped};
use ph::seeds::Bits8;
use ph::{BuildSeededHasher, GetSize};
use ptr_hash::bucket_fn::{BucketFn, Linear, Skewed};
use ptr_hash::hash::NoHash;
use ptr_hash::pack::{EliasFano, MutPacked};
use ptr_hash::{PtrHash, PtrHashParams};

fn main() {
    measure::print_head();
    for count in measure::counts() {
        let keys = Keys::new(count);
        let (fast, balanced) = (PtrHashParams::default_fast(), PtrHashParams::default_balanced());
        let compact = PtrHashParams::default_compact();
        pointers::<Linear, Vec<u32>, true, false>(&keys, "ptr_hash fast, not minimal", fast);
        pointers::<Linear, Vec<u32>, true, true>(&keys, "ptr_hash fast", fast);
        pointers::<Linear, Vec<u32>, false, true>(&keys, "ptr_hash fast, in parts", fast);
        // PTHash's buckets: 60 % of the keys in 30 % of them.
        let (alpha, lambda, bucket_fn) = (fast.alpha, balanced.lambda, Skewed::new(0.6, 0.3));
        let (keys_per_shard, sharding) = (fast.keys_per_shard, fast.sharding);
        let skewed = PtrHashParams { alpha, lambda, bucket_fn, keys_per_shard, sharding };
        pointers::<_, Vec<u32>, false, true>(&keys, "ptr_hash with PTHash's buckets, in parts", skewed);
        pointers::<_, EliasFano, false, true>(&keys, "ptr_hash balanced, in parts", balanced);
        pointers::<_, EliasFano, false, true>(&keys, "ptr_hash compact, in parts", compact);
        phast(&keys, "ph PHast, 8 bits, 4.5", SeedOnly);
        phast(&keys, "ph PHast+, 8 bits, 4.5", ShiftOnlyWrapped::<2>);
    }
}

/// A setting of `ptr_hash`: buckets, how leftover keys are remapped, one part or several, minimal or not.
fn pointers<B: BucketFn + Send, F: MutPacked + Send, const ONE_PART: bool, const MINIMAL: bool>(
    keys: &Keys,
    name: &str,
    params: PtrHashParams<B>,
) {
    let [one, two] = [1, 2]
        .map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started"));
    let mut function = None;
    let nanos = keys.build(|hashes, threads| {
        let pool = if threads == 1 { &one } else { &two };
        let built = pool.install(|| PtrHash::<u64, B, F, NoHash, Vec<u8>, ONE_PART, MINIMAL>::try_new(hashes, params));
        function = built;
    });
    // Its buckets are designed for large sets, and may not fit small ones.
    let Some(function) = function else { return println!("| {name} | {} | fails |", keys.hashes.len()) };
    let (pilots, rest) = function.bits_per_element();
    let rest = if MINIMAL { rest } else { 0.0 };
    let bits = ((pilots + rest) * keys.hashes.len() as f64) as usize;
    let many = |some: &[u64], slots: &mut [usize]| {
        // The iterator only supports folding, and `enumerate` folds.
        function.index_stream::<32, _>(some).enumerate().for_each(|(i, found)| slots[i] = found);
    };
    let built = Built { name, nanos, bits, slots: function.max_index() };
    keys.print_row(&built, |hash| function.index(&hash), many);
}

/// A variant of `ph`'s PHast.
fn phast(keys: &Keys, name: &str, variant: impl SeedChooser + Sync) {
    let mut function = None;
    let nanos = keys.build(|hashes, threads| {
        let params = Params::new(Bits8, 450);
        let build = Function::<_, _, DefaultCompressedArray, Mix>::with_slice_p_threads_hash_sc;
        function = Some(build(hashes, &params, threads, Mix, variant));
    });
    let function = function.expect("built");
    let many = |some: &[u64], slots: &mut [usize]| {
        slots.iter_mut().zip(some).for_each(|(slot, hash)| *slot = function.get(hash));
    };
    let built = Built { name, nanos, bits: 8 * function.size_bytes_dyn(), slots: keys.hashes.len() };
    keys.print_row(&built, |hash| function.get(&hash), many);
}

/// Hashes numbers that are already hashes.
#[derive(Clone, Copy)]
struct Mix;

impl BuildSeededHasher for Mix {
    type Hasher = Mixed;

    #[inline]
    fn build_hasher(&self, seed: u64) -> Mixed {
        Mixed(seed)
    }
}

struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key ^ self.0) * 0x9fb2_1c65_1e98_df25;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
