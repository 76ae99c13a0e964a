//! What a compiled object may have, whoever gives it: looked at before the kernel sees any of it.
//!
//! The kernel's verifier proves that a program ends and stays within its memory. It does not say that a program is
//! harmless: one that root loads may send signals, close descriptors and make calls of `bpf(2)`. A merge program needs
//! none of that. So there is a list of what it may have, and everything else is refused by name:
//!
//! | what | allowed |
//! |---|---|
//! | sections | the two entries, `.text`, `rockmill`, `.maps`, `license`; debug information, which nobody reads |
//! | maps | the arena, which the loader makes; none of the object's own, none by descriptor |
//! | helpers | `bpf_ktime_get_ns` |
//! | functions of the kernel | the two of the driver `loop`, in its program |
//! | relocations | of the arena and of calls; none of CO-RE |
//! | instructions | arithmetic, jumps, loads and stores, calls of its own functions; no call through a register |

use crate::object::{BPF_CALL, BPF_LD_IMM64, BPF_PSEUDO_CALL, BadObject, Section, bad};

/// The section of the entry of the driver `loop`.
const LOOP_ENTRY: &str = "struct_ops";

/// Sections that are loaded or read.
const SECTIONS: [&str; 6] = ["syscall", LOOP_ENTRY, ".text", "rockmill", ".maps", "license"];

/// Sections that compilers add, and that nothing here reads.
const IGNORED: [&str; 4] = [".BTF", ".BTF.ext", ".comment", ".llvm_addrsig"];

/// The arena has a name in the object and nothing else: the loader makes it.
const MAPS_BYTES: usize = 4;

/// The helpers that are allowed, by the kernel's numbers.
const HELPERS: [u32; 1] = [5];

/// The functions of the kernel that the driver `loop` calls.
const LOOP_FUNCTIONS: [&str; 2] = ["bpf_io_uring_get_region", "bpf_io_uring_submit_sqes"];

/// Names of helpers for messages: those that somebody could want here, and those that do the most harm.
const NAMES: [(u32, &str); 18] = [
    (1, "bpf_map_lookup_elem"),
    (2, "bpf_map_update_elem"),
    (3, "bpf_map_delete_elem"),
    (4, "bpf_probe_read"),
    (6, "bpf_trace_printk"),
    (12, "bpf_tail_call"),
    (36, "bpf_probe_write_user"),
    (58, "bpf_override_return"),
    (109, "bpf_send_signal"),
    (112, "bpf_probe_read_user"),
    (113, "bpf_probe_read_kernel"),
    (117, "bpf_send_signal_thread"),
    (148, "bpf_copy_from_user"),
    (166, "bpf_sys_bpf"),
    (167, "bpf_btf_find_by_name_kind"),
    (168, "bpf_sys_close"),
    (179, "bpf_kallsyms_lookup_name"),
    (191, "bpf_copy_from_user_task"),
];

const SECTION_BITS: u32 = 1;
const SECTION_RELA: u32 = 4;
const SECTION_NO_BITS: u32 = 8;

/// Refuses sections that a merge program does not have.
pub fn check_sections(sections: &[Section<'_>]) -> Result<(), BadObject> {
    for section in sections {
        let name = section.name;
        match section.kind {
            SECTION_RELA => return Err(bad(format!("section {name:?} has relocations with addends"))),
            SECTION_BITS | SECTION_NO_BITS => {}
            _ => continue, // tables of the file itself
        }
        if name == ".maps" && section.data.len() != MAPS_BYTES {
            return Err(bad("it declares maps of its own: there is the arena of rockmill_program.h and no other"));
        }
        if name == ".BTF.ext" && has_core_relocations(section.data)? {
            return Err(bad(
                "it has CO-RE relocations: a merge program reads no structures of the kernel by their fields",
            ));
        }
        if !SECTIONS.contains(&name) && !IGNORED.contains(&name) && !name.starts_with(".debug_") {
            return Err(bad(format!(
                "it has a section {name:?}: a merge program has {}, no global variables and no other kinds of programs",
                SECTIONS.join(", ")
            )));
        }
    }
    Ok(())
}

/// True if type information asks the loader to change instructions (`struct btf_ext_header`).
fn has_core_relocations(btf_ext: &[u8]) -> Result<bool, BadObject> {
    let u32_at = |at: usize| btf_ext.get(at..).and_then(|b| b.first_chunk::<4>()).map(|b| u32::from_le_bytes(*b));
    let Some(header) = u32_at(4) else { return Err(bad("its section .BTF.ext is cut")) };
    // Older headers end before the field.
    Ok(header >= 32 && u32_at(28).is_none_or(|len| len > 0))
}

/// Refuses a function of the kernel that a program with this entry does not call.
pub fn check_function(entry: &str, name: &str) -> Result<(), BadObject> {
    if entry == LOOP_ENTRY && LOOP_FUNCTIONS.contains(&name) {
        return Ok(());
    }
    Err(bad(format!("it calls the kernel's function {name:?}, which is not allowed in a merge program ({entry})")))
}

/// Refuses instructions that a merge program does not have. `arena` and `calls` are those that the loader itself
/// completes.
pub fn check_instructions(instructions: &[u64], arena: &[usize], calls: &[usize]) -> Result<(), BadObject> {
    let refused = |i: usize, what: String| Err(bad(format!("instruction {i}: {what}")));
    let mut i = 0;
    while let Some(&instruction) = instructions.get(i) {
        let (code, source) = (instruction as u8, (instruction >> 12) as u8 & 0xf);
        let immediate = (instruction >> 32) as u32;
        match (code & 0x07, code) {
            (0, BPF_LD_IMM64) => {
                if source != 0 && !arena.contains(&i) {
                    return refused(i, format!("it names a map or an object of the kernel by itself (kind {source})"));
                }
                if instructions.get(i + 1).is_none_or(|second| *second as u32 != 0) {
                    return refused(i, "a constant without its second half".to_owned());
                }
                i += 1;
            }
            (5, BPF_CALL) if calls.contains(&i) => {}
            (5, BPF_CALL) if source == BPF_PSEUDO_CALL => {
                let target = (i as i64 + 1).saturating_add(i64::from(immediate as i32));
                if usize::try_from(target).ok().is_none_or(|target| target >= instructions.len()) {
                    return refused(i, "it calls a function outside of it".to_owned());
                }
            }
            (5, BPF_CALL) if source == 0 => {
                if !HELPERS.contains(&immediate) {
                    let name = NAMES.iter().find(|(n, _)| *n == immediate).map_or("", |(_, name)| name);
                    return refused(
                        i,
                        format!(
                            "it calls the helper {immediate} {name}, which is not allowed in a merge program: \
                             bpf_ktime_get_ns is"
                        ),
                    );
                }
            }
            (5, BPF_CALL) => return refused(i, format!("it calls a function of the kernel by number {immediate}")),
            // 0x80: other calls.
            (5 | 6, _) if code & 0xf0 == 0x80 => return refused(i, "it calls what a register names".to_owned()),
            // Loads and stores, with signs, too, and atomic ones.
            (1, _) if matches!(code & 0xe0, 0x60 | 0x80) => {}
            (2, _) if code & 0xe0 == 0x60 => {}
            (3, _) if matches!(code & 0xe0, 0x60 | 0xc0) => {}
            (4..=7, _) => {}
            _ => return refused(i, format!("code {code:#04x} is not allowed in a merge program")),
        }
        i += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge_object::MergeObject;
    use crate::object;

    const EXPIRE: &[u8] = include_bytes!("../bpf/examples/expire.bpf.o");
    /// The kernel's number of `bpf_ktime_get_ns`.
    const CLOCK: u32 = 5;

    fn refusal(object: &[u8]) -> String {
        match MergeObject::read("hostile.o", object) {
            Ok(_) => "taken".to_owned(),
            Err(e) => e.to_string(),
        }
    }

    /// Where the data of a section begins.
    fn place(object: &[u8], name: &str) -> usize {
        object::section(object, name).unwrap().unwrap().as_ptr().addr() - object.as_ptr().addr()
    }

    /// The good object with these instructions in the place of the first ones of its functions.
    fn with(instructions: &[u64]) -> Vec<u8> {
        let mut object = EXPIRE.to_vec();
        let mut at = place(&object, ".text");
        for instruction in instructions {
            object[at..at + 8].copy_from_slice(&instruction.to_le_bytes());
            at += 8;
        }
        object
    }

    /// The good object with another name, of the same length, in its table of names.
    fn renamed(from: &str, to: &str) -> Vec<u8> {
        assert_eq!(from.len(), to.len());
        let mut object = EXPIRE.to_vec();
        let whole = [b"\0", from.as_bytes(), b"\0"].concat();
        let at = object.windows(whole.len()).position(|w| w == whole).unwrap() + 1;
        object[at..at + to.len()].copy_from_slice(to.as_bytes());
        object
    }

    const fn call(source: u64, immediate: u32) -> u64 {
        0x85 | source << 12 | (immediate as u64) << 32
    }

    #[test]
    fn of_all_helpers_of_the_kernel_the_clock_alone_is_allowed() {
        assert_eq!(refusal(&with(&[call(0, CLOCK)])), "taken");
        // Functions come behind the entry.
        let first = object::section(EXPIRE, "syscall").unwrap().unwrap().len() / 8;
        for helper in (0..300).chain([u32::MAX, 1 << 31]).filter(|h| *h != CLOCK) {
            let why = refusal(&with(&[call(0, helper)]));
            assert!(why.contains(&format!("instruction {first}: it calls the helper {helper} ")), "{why}");
        }
        // What a hostile object sent signals and closed descriptors with.
        for (helper, name) in [
            (12, "bpf_tail_call"),
            (36, "bpf_probe_write_user"),
            (58, "bpf_override_return"),
            (109, "bpf_send_signal"),
            (166, "bpf_sys_bpf"),
            (168, "bpf_sys_close"),
        ] {
            assert!(refusal(&with(&[call(0, helper)])).contains(name));
        }
        // In an entry, too, where the clock is read.
        let mut object = EXPIRE.to_vec();
        let clock = call(0, CLOCK).to_le_bytes();
        let at = object.windows(8).position(|w| w == clock).unwrap();
        object[at + 4] = 109;
        assert!(refusal(&object).contains("bpf_send_signal"));
    }

    #[test]
    fn functions_of_the_kernel_are_those_of_the_driver() {
        // By a number of the object's own choice.
        assert!(refusal(&with(&[call(2, 12_345)])).contains("a function of the kernel by number 12345"));
        let why = refusal(&renamed("bpf_io_uring_submit_sqes", "bpf_task_release_and_die"));
        assert!(why.contains("\"bpf_task_release_and_die\""), "{why}");
        assert!(check_function("syscall", "bpf_io_uring_submit_sqes").is_err());
        // Out of the program, and through a register.
        assert!(refusal(&with(&[call(1, 0x7fff_ffff)])).contains("a function outside"));
        assert!(refusal(&with(&[call(1, 0x8000_0000)])).contains("a function outside"));
        assert!(refusal(&with(&[0x8d])).contains("what a register names"));
        assert!(refusal(&with(&[0x86])).contains("what a register names"));
    }

    #[test]
    fn maps_and_objects_of_the_kernel_are_not_named() {
        // A constant is a constant.
        assert_eq!(refusal(&with(&[0x18 | 7 << 32, 0])), "taken");
        // A map by its descriptor, or a value in it; a variable of the kernel; a function; a map by its place.
        for kind in 1..=15u64 {
            let why = refusal(&with(&[0x18 | kind << 12 | 3 << 32, 0]));
            assert!(why.contains(&format!("an object of the kernel by itself (kind {kind})")), "{why}");
        }
        assert!(refusal(&renamed("arena", "other")).contains("it names other"));
        // A section of maps that is larger than a name.
        let mut object = EXPIRE.to_vec();
        let (at, sections) = (place(&object, ".maps"), u64::from_le_bytes(*object[40..].first_chunk().unwrap()));
        let header = (sections as usize..object.len()).step_by(64);
        let header = header.into_iter().find(|h| object[h + 24..h + 32] == (at as u64).to_le_bytes()).unwrap();
        object[header + 32] = 64;
        assert!(refusal(&object).contains("maps of its own"));
    }

    #[test]
    fn sections_of_other_programs_and_of_variables_are_refused() {
        for name in [".rodata", "kretpro", "maps/my", ".kconf1", "xdp.dev", "lsm/x_y", "iter/cf"] {
            let why = refusal(&renamed("license", name));
            assert!(why.contains(&format!("a section {name:?}")), "{why}");
        }
        let ext = |header: u32, relocations: u32| -> Vec<u8> {
            let words = [0xeb9f, header, 0, 8, 8, 8, 16, relocations, 0, 0];
            words.iter().flat_map(|w: &u32| w.to_le_bytes()).collect()
        };
        let check = |data: &[u8]| {
            let section = Section { name: ".BTF.ext", kind: SECTION_BITS, data, link: 0, info: 0 };
            check_sections(&[section]).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert_eq!(check(&ext(32, 0)), "");
        assert_eq!(check(&ext(24, 9)), ""); // an older header, without the field
        assert!(check(&ext(32, 20)).contains("CO-RE"));
        assert!(check(&ext(32, 20)[..30]).contains("CO-RE"));
        assert!(check(&[1; 5]).contains("is cut"));
    }

    #[test]
    fn every_instruction_code_is_decided() {
        for code in 0..=255u64 {
            let taken = check_instructions(&[code, 0], &[], &[]).is_ok();
            let class = code & 7;
            let expected = match class {
                0 => code == 0x18,
                1 => matches!(code & 0xe0, 0x60 | 0x80),
                2 => code & 0xe0 == 0x60,
                3 => matches!(code & 0xe0, 0x60 | 0xc0),
                // A call of the helper 0, and others.
                5 | 6 => code & 0xf0 != 0x80,
                _ => true,
            };
            // The second instruction, of code 0, is none unless it is half of a constant.
            assert_eq!(check_instructions(&[code, 0xb7], &[], &[]).is_ok(), expected && class != 0, "{code:#x}");
            assert_eq!(taken, code == 0x18, "{code:#x}");
        }
    }

    #[test]
    fn whatever_byte_changes_no_program_gets_more_than_it_may_have() {
        // Objects with up to 20 other bytes: what is still taken calls the clock, itself, and the driver's functions of
        // the kernel, whose kind and number the loader writes whatever stood there.
        const FUNCTION: u32 = 4_711;
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut object = EXPIRE.to_vec();
            for _ in 0..rng.usize(1..20) {
                let at = rng.usize(..object.len());
                object[at] = rng.u8(..);
            }
            let Ok(object) = MergeObject::read("changed.o", &object) else { continue };
            for driver in crate::instance::Driver::ALL {
                let Ok(program) = object.program(driver) else { continue };
                let mut constant = false;
                let numbers: Vec<(String, u32)> =
                    program.functions().into_iter().map(|name| (name.to_owned(), FUNCTION)).collect();
                assert!(numbers.iter().all(|(name, _)| check_function(driver.entry(), name).is_ok()), "seed {seed}");
                for instruction in program.with_functions(-1, &numbers) {
                    let (code, kind, n) = (instruction as u8, instruction >> 12 & 0xf, (instruction >> 32) as u32);
                    match code {
                        0x18 => assert!(kind == 0 || (kind == 1 && n == u32::MAX), "seed {seed}"),
                        0x85 => assert!(
                            constant || matches!((kind, n), (1, _) | (0, CLOCK) | (2, FUNCTION)),
                            "seed {seed}: a call of kind {kind}, {n}"
                        ),
                        0x8d => assert!(constant, "seed {seed}"),
                        _ => {}
                    }
                    constant = code == 0x18 && !constant;
                }
            }
        }
    }
}
