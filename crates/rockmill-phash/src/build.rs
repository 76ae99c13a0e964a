//! The builder: attempts with one salt after another, until every key has its slot.

use crate::error::BuildError;
use crate::mix::{mix, salt};
use crate::{cphash, partition, pilot};

/// Attempts with different salts before a builder gives up.
const ATTEMPTS_MAX: u8 = 16;
/// An attempt with more keys than this in one bucket ends before any key is placed: it would take long, and only
/// another salt makes the bucket smaller. Uniformly distributed keys stay far below the limit. With ten keys per bucket
/// on average, the most for any kind, one bucket in 10^30 has 65.
pub(crate) const BUCKET_KEYS_MAX: usize = 64;

/// How a function finds slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Kind {
    /// CHD's displacements over PTHash's dense and sparse buckets, as in CompassDB.
    CpHash = 1,
    /// One byte for each bucket, slots in groups of 64, cuckoo evictions.
    #[default]
    Pilot = 2,
    /// CPHash with uniform buckets: the CHD that the paper compares with.
    Chd = 3,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Pilot, Self::CpHash, Self::Chd];

    /// The kind with this number in the encoding.
    pub(crate) fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == n)
    }

    /// The name that options and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpHash => "cphash",
            Self::Pilot => "pilot",
            Self::Chd => "chd",
        }
    }
}

/// Builds functions.
#[derive(Debug, Clone)]
pub struct Builder {
    kind: Kind,
    seed: u64,
    threads: usize,
    simd: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

/// Why an attempt ended.
pub(crate) enum Failed {
    /// Two hashes are equal after mixing; this is their mixed value.
    Equal(u64),
    /// The caller stopped the build.
    Stopped,
    /// A bucket found no place, or a bucket or segment has too many keys.
    Full,
}

impl Builder {
    /// A builder of [`Kind::default`] with seed 0, on the calling thread.
    pub fn new() -> Self {
        Self { kind: Kind::default(), seed: 0, threads: 1, simd: true }
    }

    /// The kind of function.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// The seed. It is stored in the bytes ([`PerfectHash::seed`](crate::PerfectHash::seed)); pass the same seed to
    /// [`hash_key`](crate::hash_key).
    ///
    /// If untrusted users choose keys, they must not be able to guess the seed: whoever knows it can choose keys for
    /// which no function can be built. Choose a number that they do not know, and send it with the job, so that every
    /// machine that runs the job writes the same bytes. After [`BuildError::Duplicate`] of different keys and
    /// [`BuildError::NotPlaced`], hash and build again with the next seed, at most eight times (docs/phash.md, "Keys
    /// from strangers").
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Number of threads for the build, including the calling thread, at least one. Small sets use fewer. The others
    /// are started for this build; each that cannot be started reduces the number by one.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Number of threads that are useful for `keys` keys: [`Kind::Pilot`] has one segment for about 92,000 keys, and
    /// each segment is built by one thread.
    pub fn useful_threads(&self, keys: usize) -> usize {
        let keys_of_a_thread = match self.kind {
            Kind::Pilot => pilot::SEGMENT_KEYS,
            Kind::CpHash | Kind::Chd => partition::KEYS_PER_THREAD_MIN,
        };
        (keys / keys_of_a_thread).max(1)
    }

    /// Whether AVX2 is used if the processor has it; the default is true. The bytes are the same without it.
    pub fn simd(mut self, simd: bool) -> Self {
        self.simd = simd;
        self
    }

    /// Builds the function of these hashes, which must be distinct. The build takes 8 bytes for each key, in addition
    /// to the caller's 8. For each thread it also takes about 1.5 MiB, or for CPHash and CHD 8 to 16 bytes for each key
    /// of a segment.
    pub fn build(&self, hashes: &[u64]) -> Result<Vec<u8>, BuildError> {
        self.build_until(hashes, || false)
    }

    /// Like [`build`](Self::build), but ends with [`BuildError::Stopped`] soon after `stop` returns true.
    ///
    /// All threads call `stop` before each attempt, and each time before they place the keys of a segment. A segment
    /// has up to about 92,000 keys; for CPHash and CHD, it has a 64th of all keys. Between an attempt's start and its
    /// first segment the keys are sorted by segment, in two passes over them.
    pub fn build_until(&self, hashes: &[u64], stop: impl Fn() -> bool + Sync) -> Result<Vec<u8>, BuildError> {
        let keys_max = match self.kind {
            Kind::Pilot => pilot::KEYS_MAX,
            Kind::CpHash | Kind::Chd => cphash::KEYS_MAX,
        };
        if hashes.len() as u64 > keys_max {
            return Err(BuildError::TooManyKeys { keys: hashes.len(), keys_max });
        }
        let simd = self.simd && crate::simd::available();
        for attempt in 0..ATTEMPTS_MAX {
            let salt = salt(self.seed, attempt);
            let Self { kind, seed, threads, .. } = *self;
            let job = Job { kind, seed, attempt, salt, threads, simd, hashes, stop: &stop };
            let built = job.look_for_stop().and_then(|()| match kind {
                Kind::Pilot => pilot::build(&job),
                Kind::CpHash | Kind::Chd => cphash::build(&job),
            });
            match built {
                Ok(bytes) => return Ok(bytes),
                Err(Failed::Stopped) => return Err(BuildError::Stopped),
                Err(Failed::Equal(mixed)) => refuse_duplicates(hashes, salt, mixed)?,
                Err(Failed::Full) => {}
            }
        }
        Err(BuildError::NotPlaced { attempts: ATTEMPTS_MAX })
    }
}

/// One attempt.
pub(crate) struct Job<'a> {
    pub kind: Kind,
    pub seed: u64,
    pub attempt: u8,
    pub salt: u64,
    pub threads: usize,
    pub simd: bool,
    pub hashes: &'a [u64],
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl Job<'_> {
    /// An error if the caller wants to stop the build.
    pub fn look_for_stop(&self) -> Result<(), Failed> {
        if (self.stop)() { Err(Failed::Stopped) } else { Ok(()) }
    }
}

/// An error if several hashes that became `mixed` are equal; different ones need only another salt.
fn refuse_duplicates(hashes: &[u64], salt: u64, mixed: u64) -> Result<(), BuildError> {
    let mut alike: Vec<u64> = hashes.iter().copied().filter(|&hash| mix(hash, salt) == mixed).collect();
    alike.sort_unstable();
    match alike.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(duplicate(hashes, pair[0])),
        None => Ok(()),
    }
}

fn duplicate(hashes: &[u64], hash: u64) -> BuildError {
    let positions = hashes.iter().enumerate().filter(|&(_, &h)| h == hash).map(|(i, _)| i).collect();
    BuildError::Duplicate { hash, positions }
}
