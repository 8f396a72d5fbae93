//! The runtime's file is what it claims to be: a program by itself, without a loader, a C library or thread-local storage, that
//! leaves FS to the program. Whatever were added to it would run with a program's thread pointer as its own.

use std::collections::BTreeSet;
use std::fs::File;

use atoll_supervisor::symbols::Symbols;
use atoll_tests::{Failed, Trial, arguments, atoll};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, elf};

fn main() {
    let trials = vec![
        Trial::test("needs_nobody", || with_file(needs_nobody)),
        Trial::test("leaves_fs_alone", || with_file(leaves_fs_alone)),
    ];
    libtest_mimic::run(&arguments(), trials).exit();
}

type Elf<'a> = ElfFile64<'a, LittleEndian>;

fn with_file(check: fn(&Elf) -> Result<(), Failed>) -> Result<(), Failed> {
    let bytes = std::fs::read(atoll().with_file_name("atoll-runtime"))?;
    check(&Elf::parse(&*bytes)?)
}

/// Names that are not Rust's own and not the runtime's: what the compiler asks for, which `cell/` and compiler-builtins define.
const OF_THE_COMPILER: &[&str] =
    &["_start", "memcpy", "memmove", "memset", "memcmp", "bcmp", "rust_eh_personality", "_Unwind_Resume"];

fn needs_nobody(file: &Elf) -> Result<(), Failed> {
    let mut wrong = Vec::new();
    let header = file.elf_header();
    for segment in header.program_headers(LittleEndian, file.data())? {
        match segment.p_type(LittleEndian) {
            elf::PT_INTERP => wrong.push("an interpreter".into()),
            elf::PT_TLS => wrong.push("thread-local storage".into()),
            elf::PT_DYNAMIC => {
                let entries = segment.dynamic(LittleEndian, file.data())?.unwrap_or_default();
                let needed = entries.iter().filter(|e| e.d_tag.get(LittleEndian) == elf::DT_NEEDED);
                wrong.extend(needed.map(|_| "a library".into()));
            }
            _ => {}
        }
    }
    // It is moved to its place by whoever maps it, who knows this kind only.
    for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
        if relocation.flags() != (RelocationFlags::Elf { r_type: elf::R_X86_64_RELATIVE }) {
            wrong.push(format!("at {at:#x} a relocation {:?}", relocation.flags()));
        }
    }
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let name = symbol.name()?;
        if symbol.is_undefined() && !name.is_empty() {
            wrong.push(format!("{name}, which is not there"));
        }
        // Rust's are mangled, but for integers of 128 bits.
        let known = ["_ZN", "_R", "atoll_", "__div", "__udiv", "__mod", "__umod"];
        let of_c = symbol.kind() == object::SymbolKind::Text
            && !known.iter().any(|k| name.starts_with(k))
            && !OF_THE_COMPILER.contains(&name);
        if of_c {
            wrong.push(format!("{name}, which is not the runtime's"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("the runtime has {}", wrong.join("; ")).into()) }
}

/// Who may read the program's FS or set it, as it goes to another thread or is asked for: a function and its file, or a label.
const MAY_TOUCH_FS: &[(&str, &str)] = &[
    ("fs_base", "task/src/arch.rs"),
    ("set_fs_base", "task/src/arch.rs"),
    ("capture", "platform/entry/src/upcall.rs"),
    ("atoll_resume_frame", ""),
];

fn leaves_fs_alone(file: &Elf) -> Result<(), Failed> {
    let mut touches = Vec::new();
    let (mut all, mut bad) = (0u64, 0u64);
    for section in file.sections().filter(|s| s.kind() == object::SectionKind::Text) {
        let code = section.data()?;
        for i in Decoder::with_ip(64, code, section.address(), DecoderOptions::NONE).iter() {
            all += 1;
            bad += u64::from(i.is_invalid());
            if touches_fs(&i) {
                touches.push(i.ip());
            }
        }
    }
    println!("{all} instructions, {bad} of them none, {} touch FS", touches.len());
    // Else this looks at something else than code.
    if all < 100_000 || bad > all / 10_000 || touches.is_empty() {
        return Err(format!("{bad} of {all} instructions are none, {} touch FS", touches.len()).into());
    }
    // By the names that a crash's report would have: what is inlined comes first of each address, which a return lies behind.
    let symbols = Symbols::new(File::open(atoll().with_file_name("atoll-runtime"))?, touches.len());
    let mut found = BTreeSet::new();
    for at in touches {
        let names = symbols.names(&format!("+{:#x}", at + 1));
        let first = names.first().ok_or_else(|| format!("nobody knows whose the code at {at:#x} is"))?;
        let words: Vec<&str> = first.split_whitespace().collect();
        let (name, place) =
            (words.get(1).copied().unwrap_or_default(), words.last().copied().unwrap_or_default());
        let one = MAY_TOUCH_FS
            .iter()
            .find(|(function, path)| name.rsplit("::").next() == Some(function) && place.contains(path));
        found.insert(one.ok_or_else(|| format!("FS is touched at {at:#x}:\n{}", names.join("\n")))?);
    }
    if found.len() != MAY_TOUCH_FS.len() {
        return Err(format!("of those that may touch FS only {found:?} do").into());
    }
    Ok(())
}

/// By a segment prefix, as an operand, or its base.
fn touches_fs(i: &Instruction) -> bool {
    let base = [Mnemonic::Rdfsbase, Mnemonic::Wrfsbase, Mnemonic::Lfs];
    let operand =
        (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n) == Register::FS);
    base.contains(&i.mnemonic()) || operand || i.segment_prefix() == Register::FS
}
