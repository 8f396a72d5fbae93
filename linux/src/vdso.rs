//! The vDSO that programs see (`vdso(7)`): an ELF image, assembled here.
//!
//! Its clock functions jump through GS to the platform's own code where that
//! can read the clock without a call, and are system calls where it can't.
#![allow(unsafe_code, reason = "assembles an ELF image")]

use core::mem::offset_of;

use alloc::sync::Arc;
use atoll_abi::core_local::CoreLocal;
use atoll_abi::{Errno, Result};
use atoll_mem::heap::take_fixed_pages;
use atoll_mem::io::Source;
use atoll_mem::pages::CHUNK_ORDER;
use atoll_mem::vm::Object;
use atoll_sync::SetOnce;

core::arch::global_asm!(
    ".pushsection .rodata.atoll_vdso,\"a\",@progbits",
    ".balign 64",
    ".globl atoll_vdso_start",
    "atoll_vdso_start:",
    // ELF header: 64-bit, little endian, shared object, x86-64.
    ".byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0",
    ".short 3, 62",
    ".long 1",
    ".quad 0",
    ".quad 64",
    ".quad 0",
    ".long 0",
    ".short 64, 56, 2, 64, 0, 0",
    // PT_LOAD, read and execute, all of it.
    ".long 1, 5",
    ".quad 0, 0, 0",
    ".quad atoll_vdso_end - atoll_vdso_start, atoll_vdso_end - atoll_vdso_start",
    ".quad 0x1000",
    // PT_DYNAMIC.
    ".long 2, 4",
    ".quad 9f - atoll_vdso_start, 9f - atoll_vdso_start, 9f - atoll_vdso_start",
    ".quad 8f - 9f, 8f - 9f",
    ".quad 8",
    // Dynamic section: hash, strings, symbols, versions, name.
    "9:",
    ".quad 4, atoll_vdso_hash - atoll_vdso_start",
    ".quad 5, atoll_vdso_strings - atoll_vdso_start",
    ".quad 6, atoll_vdso_symbols - atoll_vdso_start",
    ".quad 10, atoll_vdso_strings_end - atoll_vdso_strings",
    ".quad 11, 24",
    ".quad 14, atoll_vdso_soname - atoll_vdso_strings",
    ".quad 0x6ffffff0, atoll_vdso_versions - atoll_vdso_start",
    ".quad 0x6ffffffc, atoll_vdso_verdef - atoll_vdso_start",
    ".quad 0x6ffffffd, 2",
    ".quad 0, 0",
    "8:",
    // Hash table: one bucket, all symbols chained.
    "atoll_vdso_hash:",
    ".long 1, 11, 1",
    ".long 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0",
    ".balign 8",
    "atoll_vdso_symbols:",
    ".zero 24",
    ".macro atoll_symbol name, function",
    ".long \\name - atoll_vdso_strings",
    // Global function (or weak, for the names without underscores), default visibility.
    ".byte 0x12, 0",
    ".short 1",
    ".quad \\function - atoll_vdso_start, 16",
    ".endm",
    "atoll_symbol atoll_vn_cg, atoll_vdso_clock_gettime",
    "atoll_symbol atoll_vn_gt, atoll_vdso_gettimeofday",
    "atoll_symbol atoll_vn_ti, atoll_vdso_time",
    "atoll_symbol atoll_vn_cr, atoll_vdso_clock_getres",
    "atoll_symbol atoll_vn_gc, atoll_vdso_getcpu",
    "atoll_symbol atoll_vn_cg + 7, atoll_vdso_clock_gettime",
    "atoll_symbol atoll_vn_gt + 7, atoll_vdso_gettimeofday",
    "atoll_symbol atoll_vn_ti + 7, atoll_vdso_time",
    "atoll_symbol atoll_vn_cr + 7, atoll_vdso_clock_getres",
    "atoll_symbol atoll_vn_gc + 7, atoll_vdso_getcpu",
    // Version of each symbol: all LINUX_2.6.
    "atoll_vdso_versions:",
    ".short 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2",
    ".balign 4",
    // Version definitions: the file itself, and LINUX_2.6 (its ELF hash is 0x3ae75f6).
    "atoll_vdso_verdef:",
    ".short 1, 1, 1, 1",
    ".long 0xdeebfa1, 20, 28",
    ".long atoll_vdso_soname - atoll_vdso_strings, 0",
    ".short 1, 0, 2, 1",
    ".long 0x3ae75f6, 20, 0",
    ".long atoll_vdso_linux26 - atoll_vdso_strings, 0",
    "atoll_vdso_strings:",
    ".byte 0",
    "atoll_vn_cg: .asciz \"__vdso_clock_gettime\"",
    "atoll_vn_gt: .asciz \"__vdso_gettimeofday\"",
    "atoll_vn_ti: .asciz \"__vdso_time\"",
    "atoll_vn_cr: .asciz \"__vdso_clock_getres\"",
    "atoll_vn_gc: .asciz \"__vdso_getcpu\"",
    "atoll_vdso_soname: .asciz \"linux-vdso.so.1\"",
    "atoll_vdso_linux26: .asciz \"LINUX_2.6\"",
    "atoll_vdso_strings_end:",
    ".balign 16",
    // A system call from here: as a trampoline makes it.
    ".macro atoll_vdso_call number",
    "mov eax, \\number",
    "lea rcx, [rip + 8]",
    "jmp gs:[{ENTRY}]",
    "ret",
    ".endm",
    "atoll_vdso_clock_gettime:",
    // Clocks that the platform reads by itself: 0, 1, 4 to 7 and 11.
    "cmp edi, 11",
    "ja 2f",
    "mov eax, 0x8f3",
    "bt eax, edi",
    "jnc 2f",
    "jmp gs:[{CLOCK_GETTIME}]",
    "2:",
    "atoll_vdso_call 228",
    ".balign 16",
    "atoll_vdso_gettimeofday:",
    "jmp gs:[{GETTIMEOFDAY}]",
    ".balign 16",
    "atoll_vdso_time:",
    "jmp gs:[{TIME}]",
    ".balign 16",
    "atoll_vdso_clock_getres:",
    "atoll_vdso_call 229",
    ".balign 16",
    "atoll_vdso_getcpu:",
    "test rdi, rdi",
    "jz 3f",
    "mov eax, gs:[{ID}]",
    "mov [rdi], eax",
    "3:",
    "test rsi, rsi",
    "jz 4f",
    "mov dword ptr [rsi], 0",
    "4:",
    "xor eax, eax",
    "ret",
    ".balign 16",
    "atoll_vdso_end:",
    ".popsection",
    ENTRY = const offset_of!(CoreLocal, entry),
    CLOCK_GETTIME = const offset_of!(CoreLocal, clock_gettime),
    GETTIMEOFDAY = const offset_of!(CoreLocal, gettimeofday),
    TIME = const offset_of!(CoreLocal, time),
    ID = const offset_of!(CoreLocal, id),
);

unsafe extern "C" {
    static atoll_vdso_start: u8;
    static atoll_vdso_end: u8;
}

/// The image.
pub fn image() -> &'static [u8] {
    let (start, end) = (&raw const atoll_vdso_start, &raw const atoll_vdso_end);
    // SAFETY: assembled above, between the two.
    unsafe { core::slice::from_raw_parts(start, end as usize - start as usize) }
}

/// The image's memory, which all spaces share.
pub struct Vdso {
    offset: u64,
}

impl Object for Vdso {
    fn chunk(&self, _offset: u64) -> Result<u64> {
        Ok(self.offset)
    }

    fn size(&self) -> u64 {
        image().len() as u64
    }

    fn mapped(&self, _by: i32) {}
}

static VDSO: SetOnce<Arc<Vdso>> = SetOnce::new();

/// Puts the image where it can be mapped, once.
pub fn prepare() -> Result<()> {
    let offset = take_fixed_pages(CHUNK_ORDER).ok_or(Errno::ENOMEM)?;
    Source::kernel(image()).take_memory(offset, image().len())?;
    // At boot, once.
    let _ = VDSO.set(Arc::new(Vdso { offset }));
    Ok(())
}

/// What to map into each program.
pub fn object() -> Arc<Vdso> {
    VDSO.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::LittleEndian as LE;
    use object::elf;
    use object::read::elf::{Dyn, FileHeader, ProgramHeader};
    use std::ffi::CStr;
    use std::vec::Vec;

    /// Finds the symbols as programs do, by the dynamic section: there are no sections.
    #[test]
    fn is_a_good_elf_file() {
        let bytes = image();
        let header = elf::FileHeader64::<LE>::parse(bytes).unwrap();
        let dynamic =
            header.program_headers(LE, bytes).unwrap().iter().find_map(|s| s.dynamic(LE, bytes).unwrap());
        let entry = |tag| dynamic.unwrap().iter().find(|d| d.d_tag(LE) == tag).unwrap().d_val(LE) as usize;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (symbols, strings) = (entry(elf::DT_SYMTAB), entry(elf::DT_STRTAB));
        // As many as the hash table has chains.
        let names: Vec<&str> = (0..word(entry(elf::DT_HASH) + 4))
            .map(|n| CStr::from_bytes_until_nul(&bytes[strings + word(symbols + n * 24)..]).unwrap())
            .map(|name| name.to_str().unwrap())
            .collect();
        for n in [
            "__vdso_clock_gettime",
            "__vdso_gettimeofday",
            "__vdso_time",
            "__vdso_getcpu",
            "clock_getres",
            "time",
        ] {
            assert!(names.contains(&n), "{n} in {names:?}");
        }
    }
}
