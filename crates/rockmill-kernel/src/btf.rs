//! The kernel's description of its own types and functions (BTF). Programs refer to them by the numbers found here.

use std::fmt;

/// Where the kernel describes itself.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_FUNC: u32 = 12;

/// Why a description cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBtf(String);

impl fmt::Display for BadBtf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel's type information: {}", self.0)
    }
}

impl std::error::Error for BadBtf {}

/// A field of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its offset in bytes.
    pub offset: u32,
}

/// A structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Struct {
    /// Its number.
    pub id: u32,
    /// Its size in bytes.
    pub bytes: u32,
    /// Its fields, in order.
    pub fields: Vec<Field>,
}

impl Struct {
    /// Index and byte offset of a field.
    pub fn field(&self, name: &str) -> Option<(u32, u32)> {
        let i = self.fields.iter().position(|f| f.name == name)?;
        Some((i as u32, self.fields[i].offset))
    }
}

/// Type information, whole.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    types: std::ops::Range<usize>,
    strings: std::ops::Range<usize>,
}

/// One type, as it is stored.
struct Raw {
    name: u32,
    vlen: u32,
    kind: u32,
    bits: bool,
    size: u32,
    /// Where what comes behind begins.
    rest: usize,
}

impl Btf {
    /// Parses type information.
    ///
    /// # Errors
    /// The bytes are not valid type information.
    pub fn read(bytes: Vec<u8>) -> Result<Self, BadBtf> {
        let bad = |what: &str| BadBtf(what.to_owned());
        let u32_at = |at| u32_at(&bytes, at).map(|n| n as usize);
        let magic = bytes.first_chunk::<2>().map(|b| u16::from_le_bytes(*b));
        if magic != Some(MAGIC) {
            return Err(bad("it does not begin as such"));
        }
        let header: Option<Vec<usize>> = (4..24).step_by(4).map(u32_at).collect();
        let Some(header) = header else { return Err(bad("its header is cut")) };
        let part = |offset: usize, len: usize| {
            let start = header[0].checked_add(offset)?;
            let end = start.checked_add(len)?;
            (end <= bytes.len()).then_some(start..end)
        };
        match (part(header[1], header[2]), part(header[3], header[4])) {
            (Some(types), Some(strings)) => Ok(Self { types, strings, bytes }),
            _ => Err(bad("its parts are not in it")),
        }
    }

    /// Reads the type information of the running kernel.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn of_kernel() -> Result<Self, BadBtf> {
        let bytes = std::fs::read(KERNEL).map_err(|e| BadBtf(format!("{KERNEL}: {e}")))?;
        Self::read(bytes)
    }

    /// The structure with this name; `None` if there is none.
    pub fn structure(&self, name: &str) -> Option<Struct> {
        let (id, raw) = self.find(KIND_STRUCT, name)?;
        let field = |i: u32| {
            let at = raw.rest + 12 * i as usize;
            let offset = u32_at(&self.bytes, at + 8)?;
            let bits = if raw.bits { offset & 0x00ff_ffff } else { offset };
            Some(Field { name: self.text(u32_at(&self.bytes, at)?)?.to_owned(), offset: bits / 8 })
        };
        Some(Struct { id, bytes: raw.size, fields: (0..raw.vlen).map(field).collect::<Option<_>>()? })
    }

    /// The number of the function with this name.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.find(KIND_FUNC, name).map(|(id, _)| id)
    }

    fn find(&self, kind: u32, name: &str) -> Option<(u32, Raw)> {
        let (mut at, mut id) = (self.types.start, 1);
        while at < self.types.end {
            let info = u32_at(&self.bytes, at + 4)?;
            let raw = Raw {
                name: u32_at(&self.bytes, at)?,
                vlen: info & 0xffff,
                kind: info >> 24 & 0x1f,
                bits: info >> 31 == 1,
                size: u32_at(&self.bytes, at + 8)?,
                rest: at + 12,
            };
            let each = match raw.kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * raw.vlen as usize,
                6 | 13 => 8 * raw.vlen as usize,
                2 | 7..=12 | 16 | 18 => 0,
                // An unknown kind of a newer kernel: its length is unknown, too.
                _ => return None,
            };
            if raw.kind == kind && self.text(raw.name) == Some(name) {
                return Some((id, raw));
            }
            at = raw.rest + each;
            id += 1;
        }
        None
    }

    fn text(&self, at: u32) -> Option<&str> {
        let rest = self.bytes.get(self.strings.clone())?.get(at as usize..)?;
        let end = rest.iter().position(|&b| b == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|b| u32::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, a structure `pair` of two fields, and a function.
    fn small() -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |s: &str| {
            let at = strings.len() as u32;
            strings.extend_from_slice(s.as_bytes());
            strings.push(0);
            at
        };
        let (int, pair, a, b, f) = (name("int"), name("pair"), name("a"), name("b"), name("call_me"));
        let types: Vec<u32> = [
            vec![int, 1 << 24, 4, 32],
            vec![pair, 4 << 24 | 2, 16, a, 1, 0, b, 1, 64],
            vec![0, 13 << 24, 0],
            vec![f, 12 << 24, 3],
        ]
        .concat();
        let header = [24, 0, 4 * types.len() as u32, 4 * types.len() as u32, strings.len() as u32];
        let mut out = vec![0x9f, 0xeb, 1, 0];
        out.extend(header.iter().chain(&types).flat_map(|n| n.to_le_bytes()));
        out.extend(&strings);
        out
    }

    #[test]
    fn names_give_numbers_and_places() {
        let btf = Btf::read(small()).unwrap();
        let pair = btf.structure("pair").unwrap();
        assert_eq!((pair.id, pair.bytes), (2, 16));
        assert_eq!((pair.field("a"), pair.field("b"), pair.field("c")), (Some((0, 0)), Some((1, 8)), None));
        assert_eq!((btf.function("call_me"), btf.function("pair"), btf.structure("int")), (Some(4), None, None));
    }

    #[test]
    fn damage_is_an_error_or_finds_nothing() {
        let whole = small();
        for len in 0..whole.len() {
            if let Ok(btf) = Btf::read(whole[..len].to_vec()) {
                let _ = (btf.structure("pair"), btf.function("call_me"));
            }
        }
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut bytes = whole.clone();
            bytes[rng.usize(..whole.len())] = rng.u8(..);
            if let Ok(btf) = Btf::read(bytes) {
                let _ = (btf.structure("pair"), btf.function("call_me"));
            }
        }
    }

    #[test]
    fn the_kernel_describes_its_maps() {
        match Btf::of_kernel() {
            Ok(btf) => assert!(btf.structure("bpf_map").is_some_and(|s| s.field("ops").is_some())),
            Err(e) => rockmill_skip::skip("the_kernel_describes_its_maps", &rockmill_skip::Needs::Btf.because(e)),
        }
    }
}
