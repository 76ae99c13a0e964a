//! Compiled merge programs: the one that is built in, and those of users, with an order, a filter, a merge of operands
//! (`bpf/rockmill_program.h`) or a whole merge loop (`bpf/rockmill_loop.h`) of their own.
//!
//! An object says in its section `rockmill` for which version of the interface it was made, and which comparator,
//! compaction filter and merge operator of the store it stands for, and whether its merge loop is its own. It has the
//! program for each driver, or for one of them.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::instance::{Driver, Instance, Unavailable};
use crate::layout::INTERFACE;
use crate::object::{self, BadObject, Program};

/// Bytes of a name.
const NAME_BYTES: usize = 64;
/// `struct rockmill_info`.
const INFO_BYTES: usize = 4 + 3 * NAME_BYTES + 4;
/// The order that the merge has by itself.
const BYTEWISE: &str = "leveldb.BytewiseComparator";

/// What an object's section `rockmill` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Info {
    comparator: Option<String>,
    filter: Option<String>,
    merge: Option<String>,
    own_loop: bool,
}

/// A merge program, compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeObject {
    /// Where it comes from, for messages.
    origin: String,
    info: Info,
    /// Its programs, by driver.
    programs: Vec<(Driver, Result<Arc<Program>, BadObject>)>,
}

impl MergeObject {
    /// The programs that are built in: bytewise order, and no filter.
    ///
    /// # Errors
    /// None, if the committed objects are what they should be (tested).
    pub fn built_in() -> Result<Arc<Self>, BadObject> {
        static BUILT_IN: LazyLock<Result<Arc<MergeObject>, BadObject>> = LazyLock::new(|| {
            let mut all = MergeObject { origin: "builtin".to_owned(), info: Info::default(), programs: Vec::new() };
            for driver in Driver::ALL {
                all.info = info(driver.object())?;
                all.programs.push((driver, Program::read(driver.object(), driver.entry()).map(Arc::new)));
            }
            Ok(Arc::new(all))
        });
        BUILT_IN.clone()
    }

    /// Reads a compiled object. Whether the kernel takes its program shows when an instance is made: [`Self::check`].
    ///
    /// # Errors
    /// Bytes that are none, that are made for another version of the interface, or that have no program at all.
    pub fn read(origin: impl Into<String>, bytes: &[u8]) -> Result<Self, BadObject> {
        let info = info(bytes)?;
        if info.comparator.as_deref() == Some(BYTEWISE) {
            return Err(BadObject(format!(
                "it brings an order named {BYTEWISE}, which is that of the merge by itself"
            )));
        }
        let mut programs = Vec::new();
        for driver in Driver::ALL {
            let program = match Program::read(bytes, driver.entry()) {
                // An object may lack a driver. One with a program that is refused is refused whole.
                Err(e) if object::section(bytes, driver.entry())?.is_some() => return Err(e),
                program => program.map(Arc::new),
            };
            programs.push((driver, program));
        }
        match programs.iter().find_map(|(_, program)| program.as_ref().err()) {
            Some(e) if programs.iter().all(|(_, program)| program.is_err()) => Err(e.clone()),
            _ => Ok(Self { origin: origin.into(), info, programs }),
        }
    }

    /// Where it comes from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The store's comparator that it stands for; `None` for bytewise order.
    pub fn comparator(&self) -> Option<&str> {
        self.info.comparator.as_deref()
    }

    /// The store's compaction filter (or factory of filters) that it stands for.
    pub fn filter(&self) -> Option<&str> {
        self.info.filter.as_deref()
    }

    /// The store's merge operator whose operands it combines, as OPTIONS files have it.
    pub fn merge_operator(&self) -> Option<&str> {
        self.info.merge.as_deref()
    }

    /// True if its merge loop is its own (`bpf/rockmill_loop.h`): what it gives may be in any order.
    pub fn has_own_loop(&self) -> bool {
        self.info.own_loop
    }

    /// The program for a driver.
    ///
    /// # Errors
    /// It has none.
    pub fn program(&self, driver: Driver) -> Result<&Arc<Program>, Unavailable> {
        let found = self.programs.iter().find(|(d, _)| *d == driver).map(|(_, program)| program.as_ref());
        found.unwrap_or(Err(&BadObject("no such driver".to_owned()))).map_err(|e| Unavailable {
            reason: format!("merge program {} for the driver {driver}: {e}", self.origin),
            log: String::new(),
        })
    }

    /// Has the kernel's verifier look at its program, with a memory of `bytes`; gives the instance.
    ///
    /// # Errors
    /// As [`Instance::new`].
    pub fn check(&self, driver: Driver, bytes: usize) -> Result<Instance, Unavailable> {
        Instance::new(self.program(driver)?, driver, bytes)
    }
}

impl fmt::Display for MergeObject {
    /// `builtin`, or `/path/x.bpf.o (own loop, comparator X, filter Y)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        let names =
            [("comparator", self.comparator()), ("filter", self.filter()), ("merge operator", self.merge_operator())];
        let own_loop = self.has_own_loop().then(|| "own loop".to_owned());
        let names = names.iter().filter_map(|(what, name)| Some(format!("{what} {}", (*name)?)));
        let names: Vec<_> = own_loop.into_iter().chain(names).collect();
        if names.is_empty() { Ok(()) } else { write!(f, " ({})", names.join(", ")) }
    }
}

/// What an object says of itself.
fn info(bytes: &[u8]) -> Result<Info, BadObject> {
    let bad = |what: String| Err(BadObject(what));
    let Some(section) = object::section(bytes, "rockmill")? else {
        return bad("it has no section rockmill: it was not made with rockmill_program.h".to_owned());
    };
    let version = section.first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b));
    if version != INTERFACE {
        return bad(format!(
            "it was made for version {version} of the interface, and this is version {INTERFACE}: compile it anew with \
             this version's rockmill_program.h"
        ));
    }
    if section.len() != INFO_BYTES {
        return bad(format!("its section rockmill has {} bytes, not {INFO_BYTES}", section.len()));
    }
    let name = |at: usize| {
        let field = section.get(at..at + NAME_BYTES).unwrap_or(&[]);
        let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
        match std::str::from_utf8(&field[..end]) {
            Ok("") => Ok(None),
            Ok(name) => Ok(Some(name.to_owned())),
            Err(_) => Err(BadObject("it has a name that is no text".to_owned())),
        }
    };
    let own_loop = section.last_chunk::<4>().is_some_and(|b| u32::from_le_bytes(*b) != 0);
    Ok(Info { comparator: name(4)?, filter: name(4 + NAME_BYTES)?, merge: name(4 + 2 * NAME_BYTES)?, own_loop })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVERSE: &[u8] = include_bytes!("../bpf/examples/reverse.bpf.o");
    const EXPIRE: &[u8] = include_bytes!("../bpf/examples/expire.bpf.o");
    const COUNTERS: &[u8] = include_bytes!("../bpf/examples/counters.bpf.o");
    const SUMS: &[u8] = include_bytes!("../bpf/examples/sums.bpf.o");

    #[test]
    fn objects_say_what_they_stand_for() {
        let built_in = MergeObject::built_in().unwrap();
        assert_eq!((built_in.comparator(), built_in.filter(), &*built_in.to_string()), (None, None, "builtin"));
        let reverse = MergeObject::read("r.o", REVERSE).unwrap();
        assert_eq!((reverse.comparator(), reverse.filter()), (Some("rocksdb.ReverseBytewiseComparator"), None));
        assert_eq!(reverse.to_string(), "r.o (comparator rocksdb.ReverseBytewiseComparator)");
        let expire = MergeObject::read("e.o", EXPIRE).unwrap();
        assert_eq!((expire.comparator(), expire.filter()), (None, Some("rockmill.Expire")));
        assert_eq!(expire.merge_operator(), None);
        let counters = MergeObject::read("c.o", COUNTERS).unwrap();
        assert_eq!((counters.comparator(), counters.filter()), (None, None));
        assert_eq!(counters.merge_operator(), Some("UInt64AddOperator"));
        assert_eq!(counters.to_string(), "c.o (merge operator UInt64AddOperator)");
        let sums = MergeObject::read("s.o", SUMS).unwrap();
        assert_eq!(sums.to_string(), "s.o (own loop, merge operator UInt64AddOperator)");
        assert!(sums.has_own_loop() && ![&built_in, &reverse, &expire, &counters].iter().any(|o| o.has_own_loop()));
        for driver in Driver::ALL {
            for object in [&built_in, &reverse, &expire, &counters, &sums] {
                assert!(!object.program(driver).unwrap().instructions().is_empty(), "{object} {driver}");
            }
        }
    }

    #[test]
    fn what_is_no_object_of_this_interface_is_refused_in_words() {
        let refused = |bytes: &[u8]| MergeObject::read("x.o", bytes).unwrap_err().to_string();
        assert!(refused(b"").contains("no 64-bit little-endian ELF file for BPF"));
        assert!(refused(&[0xa5; 9000]).contains("no 64-bit little-endian ELF file for BPF"));
        let name = REVERSE.windows(8).position(|w| w == b"rocksdb.").unwrap();
        let mut other = REVERSE.to_vec();
        other[name - 4] += 1;
        let said = format!("for version {} of the interface, and this is version {INTERFACE}", INTERFACE + 1);
        assert!(refused(&other).contains(&said));
        let mut bytewise = REVERSE.to_vec();
        bytewise[name..name + NAME_BYTES].fill(0);
        bytewise[name..name + BYTEWISE.len()].copy_from_slice(BYTEWISE.as_bytes());
        assert!(refused(&bytewise).contains("an order named leveldb.BytewiseComparator"));
        // The name of the section: without it, an object of somebody else's.
        let at = REVERSE.windows(10).position(|w| w == b"\0rockmill\0").unwrap();
        let mut foreign = REVERSE.to_vec();
        foreign[at + 1] = b'x';
        assert!(refused(&foreign).contains("no section rockmill"));
    }

    #[test]
    fn damaged_objects_are_refused_or_read_and_never_worse() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut bytes = EXPIRE.to_vec();
            for _ in 0..rng.usize(1..20) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(if rng.bool() { bytes.len() } else { rng.usize(..bytes.len()) });
            let _ = MergeObject::read("damaged.o", &bytes);
        }
    }
}
