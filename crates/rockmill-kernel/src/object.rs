//! Reads the compiled object: an ELF file with the program's sections, and the relocations to apply to them.
//!
//! A program is its entry's section followed by `.text`, which has the functions that it calls. The object leaves two
//! things open: references to the arena (by its map's descriptor, which the kernel assigns), and calls of functions in
//! another section.

use std::collections::BTreeMap;
use std::fmt;

use crate::allowed;

/// ELF's number for this machine, `EM_BPF`.
const MACHINE_BPF: u16 = 247;
const SECTION_REL: u32 = 9;
/// A 64-bit constant in two instructions.
const R_BPF_64_64: u32 = 1;
/// The target of a call.
const R_BPF_64_32: u32 = 10;
pub(crate) const BPF_LD_IMM64: u8 = 0x18;
pub(crate) const BPF_CALL: u8 = 0x85;
/// In the source register field. In a load: the constant is a map's descriptor. In a call: the target is a function of
/// this program.
const BPF_PSEUDO_MAP_FD: u8 = 1;
pub(crate) const BPF_PSEUDO_CALL: u8 = 1;
/// The same: the call's target is a function of the kernel.
const BPF_PSEUDO_KFUNC_CALL: u8 = 2;
/// What a program may end with: an exit, and jumps without a condition (of 16 and of 32 bits).
const ENDS: [u8; 3] = [0x95, 0x05, 0x06];

/// Why an object cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadObject(pub(crate) String);

impl fmt::Display for BadObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a program that can be loaded: {}", self.0)
    }
}

impl std::error::Error for BadObject {}

pub(crate) fn bad(what: impl Into<String>) -> BadObject {
    BadObject(what.into())
}

/// A program, complete except for the arena's descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its instructions, eight bytes each.
    instructions: Vec<u64>,
    /// Instructions that name the arena.
    arena: Vec<usize>,
    /// Calls of functions of the kernel.
    calls: Vec<(usize, String)>,
    licence: String,
}

#[derive(Debug)]
pub(crate) struct Section<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub data: &'a [u8],
    pub link: u32,
    pub info: u32,
}

#[derive(Debug)]
struct Symbol<'a> {
    name: &'a str,
    section: u16,
    value: u64,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], BadObject> {
        let bytes = self.0.get(at..).and_then(|b| b.first_chunk::<N>());
        bytes.copied().ok_or_else(|| bad(format!("it ends before byte {}", at.saturating_add(N))))
    }

    fn u16(&self, at: usize) -> Result<u16, BadObject> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32, BadObject> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64, BadObject> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn range(&self, at: u64, len: u64) -> Result<&'a [u8], BadObject> {
        let end = at.checked_add(len).and_then(|end| usize::try_from(end).ok());
        let range = end.and_then(|end| self.0.get(at as usize..end));
        range.ok_or_else(|| bad(format!("{len} bytes at {at} are not in it")))
    }

    fn text(&self, at: usize) -> Result<&'a str, BadObject> {
        let rest = self.0.get(at..).unwrap_or(&[]);
        let end = rest.iter().position(|&b| b == 0).ok_or_else(|| bad("a name without an end"))?;
        std::str::from_utf8(&rest[..end]).map_err(|_| bad("a name that is no text"))
    }
}

fn sections(object: &[u8]) -> Result<Vec<Section<'_>>, BadObject> {
    let elf = Reader(object);
    if object.get(..6) != Some(b"\x7fELF\x02\x01") || elf.u16(18)? != MACHINE_BPF {
        return Err(bad("no 64-bit little-endian ELF file for BPF"));
    }
    let (table, size, count) = (elf.u64(40)?, u64::from(elf.u16(58)?), u64::from(elf.u16(60)?));
    let header = |i: u64| elf.range(table.saturating_add(i.saturating_mul(size)), size.max(64)).map(Reader);
    let names = header(u64::from(elf.u16(62)?))?;
    let names = Reader(elf.range(names.u64(24)?, names.u64(32)?)?);
    let section = |i| {
        let h = header(i)?;
        let kind = h.u32(4)?;
        // A section without bits in the file.
        let data = if kind == 8 { &[] } else { elf.range(h.u64(24)?, h.u64(32)?)? };
        Ok(Section { name: names.text(h.u32(0)? as usize)?, kind, data, link: h.u32(40)?, info: h.u32(44)? })
    };
    (0..count).map(section).collect()
}

fn symbols<'a>(sections: &[Section<'a>]) -> Result<Vec<Symbol<'a>>, BadObject> {
    let Some(table) = sections.iter().find(|s| s.kind == 2) else { return Err(bad("no symbols")) };
    let names = sections.get(table.link as usize).ok_or_else(|| bad("symbols without names"))?;
    let (names, table) = (Reader(names.data), Reader(table.data));
    let symbol = |i: usize| {
        let at = i * 24;
        Ok(Symbol {
            name: names.text(table.u32(at)? as usize)?,
            section: table.u16(at + 6)?,
            value: table.u64(at + 8)?,
        })
    };
    (0..table.0.len() / 24).map(symbol).collect()
}

fn words(section: &Section<'_>) -> Result<Vec<u64>, BadObject> {
    let (words, rest) = section.data.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(bad(format!("section {} does not consist of instructions", section.name)));
    }
    Ok(words.iter().map(|w| u64::from_le_bytes(*w)).collect())
}

/// The contents of a section; `None` if there is none with this name.
pub(crate) fn section<'a>(object: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, BadObject> {
    Ok(sections(object)?.into_iter().find(|s| s.name == name && s.kind == 1).map(|s| s.data))
}

impl Program {
    /// Reads the program whose entry is in section `entry` of `object`.
    ///
    /// # Errors
    /// The object is not a BPF object, needs something that this loader does not support (other maps, global variables,
    /// functions of other objects), or contains something that no merge program needs (`allowed.rs`).
    pub fn read(object: &[u8], entry: &str) -> Result<Self, BadObject> {
        let sections = sections(object)?;
        allowed::check_sections(&sections)?;
        let symbols = symbols(&sections)?;
        let of = |name: &str| sections.iter().position(|s| s.name == name && s.kind == 1);
        let entry_name = entry;
        let entry = of(entry).ok_or_else(|| bad(format!("no section {entry}")))?;
        let licence = of("license").map_or(&[][..], |i| sections[i].data);
        let licence = String::from_utf8_lossy(licence).trim_end_matches('\0').to_owned();
        let mut program = Self { instructions: Vec::new(), arena: Vec::new(), calls: Vec::new(), licence };
        // Where each section begins in the program.
        let mut places = BTreeMap::new();
        for section in [Some(entry), of(".text")].into_iter().flatten() {
            if places.insert(section, program.instructions.len()).is_none() {
                program.instructions.extend(words(&sections[section])?);
            }
        }
        for relocations in sections.iter().filter(|s| s.kind == SECTION_REL) {
            let Some(&place) = places.get(&(relocations.info as usize)) else { continue };
            let table = Reader(relocations.data);
            for at in (0..relocations.data.len()).step_by(16) {
                let (offset, info) = (table.u64(at)?, table.u64(at + 8)?);
                let symbol = symbols.get((info >> 32) as usize).ok_or_else(|| bad("a place without a symbol"))?;
                let i = place + (offset / 8) as usize;
                program.relocate(i, info as u32, symbol, &sections, &places)?;
            }
        }
        // As the verifier has it. Compilers put some functions' exit in their middle.
        if program.instructions.last().is_none_or(|last| !ENDS.contains(&(*last as u8))) {
            return Err(bad("it ends with neither an exit nor a jump"));
        }
        for (_, name) in &program.calls {
            allowed::check_function(entry_name, name)?;
        }
        let calls: Vec<usize> = program.calls.iter().map(|(i, _)| *i).collect();
        allowed::check_instructions(&program.instructions, &program.arena, &calls)?;
        Ok(program)
    }

    /// Makes a program of these instructions; those at `arena` refer to the arena. For tests of the verifier: nothing
    /// is checked.
    pub fn of_instructions(instructions: Vec<u64>, arena: Vec<usize>, licence: &str) -> Self {
        Self { instructions, arena, calls: Vec::new(), licence: licence.to_owned() }
    }

    fn relocate(
        &mut self,
        i: usize,
        kind: u32,
        symbol: &Symbol<'_>,
        sections: &[Section<'_>],
        places: &BTreeMap<usize, usize>,
    ) -> Result<(), BadObject> {
        let Some(instruction) = self.instructions.get_mut(i) else { return Err(bad("a place outside of it")) };
        let section = sections.get(usize::from(symbol.section)).map_or("", |s| s.name);
        match (kind, *instruction as u8) {
            (R_BPF_64_64, BPF_LD_IMM64) if section == ".maps" && symbol.name == "arena" => {
                self.arena.push(i);
                Ok(())
            }
            (R_BPF_64_32, BPF_CALL) if symbol.section == 0 => {
                self.calls.push((i, symbol.name.to_owned()));
                Ok(())
            }
            (R_BPF_64_32, BPF_CALL) => {
                let target = places.get(&usize::from(symbol.section));
                let target = target.ok_or_else(|| bad(format!("it calls {}, which is not in it", symbol.name)))?;
                // The object has the target's offset in its section, minus one, in addition to the symbol's.
                let inside = i64::from((*instruction >> 32) as i32) + 1 + (symbol.value / 8) as i64;
                let distance = *target as i64 + inside - i as i64 - 1;
                let distance = i32::try_from(distance).map_err(|_| bad("a call too far"))?;
                *instruction =
                    (*instruction & 0xffff_0fff) | u64::from(BPF_PSEUDO_CALL) << 12 | u64::from(distance as u32) << 32;
                Ok(())
            }
            _ => Err(bad(format!("it names {}, which this loader does not know", symbol.name))),
        }
    }

    /// Its licence, for the kernel.
    pub fn licence(&self) -> &str {
        &self.licence
    }

    /// Its instructions, with the arena's descriptor filled in.
    pub fn with_arena(&self, fd: i32) -> Vec<u64> {
        let mut instructions = self.instructions.clone();
        for &i in self.arena.iter().filter(|i| **i < self.instructions.len()) {
            instructions[i] =
                (instructions[i] & 0xffff_0fff) | u64::from(BPF_PSEUDO_MAP_FD) << 12 | u64::from(fd as u32) << 32;
        }
        instructions
    }

    /// The functions of the kernel that it calls.
    pub fn functions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.calls.iter().map(|(_, name)| &**name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The same as [`Self::with_arena`], with the numbers of the kernel's functions that it calls.
    pub fn with_functions(&self, fd: i32, numbers: &[(String, u32)]) -> Vec<u64> {
        let mut instructions = self.with_arena(fd);
        for (i, name) in &self.calls {
            if let Some((_, number)) = numbers.iter().find(|(n, _)| n == name) {
                instructions[*i] = (instructions[*i] & 0xffff_0fff & !0xffff_0000)
                    | u64::from(BPF_PSEUDO_KFUNC_CALL) << 12
                    | u64::from(*number) << 32;
            }
        }
        instructions
    }

    /// Its instructions, with 0 for the arena's descriptor.
    pub fn instructions(&self) -> &[u64] {
        &self.instructions
    }
}
