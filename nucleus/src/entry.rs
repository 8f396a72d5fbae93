//! The first instructions of the machine's cores.
//!
//! The boot core is entered by PVH (Xen's "x86/HVM direct boot ABI"): 32 bits, flat segments, no
//! paging, `ebx` is the address of the start info. QEMU, Firecracker and Cloud Hypervisor know this
//! entry by a note in the ELF file. Or by Multiboot2, in the same state, with a magic number in `eax`: GRUB does so,
//! started by a BIOS or by UEFI, whose boot services have ended then. The others are started by a SIPI, in real
//! mode, at a page below 1 MiB to which their first instructions are copied.
#![allow(unsafe_code, reason = "the first instructions")]

use core::arch::global_asm;

use atoll_partition::Extent;

/// Where the image's addresses are, less where it is loaded.
pub const VIRTUAL: u64 = 0xffff_ffff_8000_0000;
/// Where all of physical memory is mapped.
pub const DIRECT: u64 = 0xffff_8000_0000_0000;
/// And where that ends: devices' registers are next.
pub const DIRECT_END: u64 = 0xffff_c000_0000_0000;
/// Physical memory that the first page tables map.
pub const MAPPED: u64 = 4 << 30;
/// Size of the boot core's first stack, bytes.
const STACK: usize = 128 << 10;
/// The page below 1 MiB where the other cores begin; its number is the SIPI's vector.
pub const TRAMPOLINE: u64 = 0x8000;

global_asm!(
    r#"
.section .note.Xen, "a", @note
    .balign 4
    .long 4, 4, 18                  // XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_start

// Multiboot2's: which tags it needs, where it is entered, modules in whole pages; the end.
.section .boot.header, "a"
.balign 8
multiboot_header:
    .long 0xe85250d6, 0, multiboot_end - multiboot_header
    .long -(0xe85250d6 + (multiboot_end - multiboot_header))
    .short 1, 0
    .long 20, 1, 3, 6, 0            // command line, modules, memory; and up to a multiple of 8
    .short 3, 0
    .long 12, multiboot_start, 0
    .short 6, 0
    .long 8
    .short 0, 0
    .long 8
multiboot_end:

// 64-bit mode has no use for them.
.macro no_segments
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov fs, eax
    mov gs, eax
.endm

.section .boot.text, "ax"
.code32
.global pvh_start
pvh_start:
    xor eax, eax
multiboot_start:
    mov esi, eax
    cli
    cld
    mov esp, offset boot_stack_top - {virtual}
    // 64-bit mode, no-execute pages, syscall.
    mov eax, offset boot_pml4
    mov cr3, eax
    mov eax, 1 << 5 | 1 << 9 | 1 << 10  // PAE, OSFXSR, OSXMMEXCPT, and nothing that firmware has left there
    mov cr4, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 1 << 8 | 1 << 11        // LME, NXE
    wrmsr
    mov eax, cr0
    and eax, ~(1 << 2)              // no emulation of the FPU
    // Paging, WP, NE (an x87 exception is one: Intel SDM volume 3, section 2.5), MP, PE.
    or eax, 1 << 31 | 1 << 16 | 1 << 5 | 1 << 1 | 1
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    // A far jump to 64-bit code, by a far return.
    push 8
    mov eax, offset long_mode
    push eax
    retf
.code64
long_mode:
    no_segments
    movabs rsp, offset boot_stack_top
    mov edi, ebx
    mov esi, esi
    xor ebp, ebp
    movabs rax, offset nucleus_main
    call rax
    ud2

.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 64-bit code, ring 0
boot_gdt_pointer:
    .word 15
    .long boot_gdt

// The first 4 GiB, three times: where it is, at the direct map, and the first GiB at the image's addresses.
// They go as soon as the nucleus has made its own.
.section .boot.tables, "aw"
.balign 4096
boot_pml4:
    .quad boot_pdpt + 3
    .fill 255, 8, 0
    .quad boot_pdpt + 3
    .fill 254, 8, 0
    .quad boot_pdpt_image + 3
boot_pdpt:
    .quad boot_pd + 0x0003, boot_pd + 0x1003, boot_pd + 0x2003, boot_pd + 0x3003
    .fill 508, 8, 0
boot_pdpt_image:
    .fill 510, 8, 0
    .quad boot_pd + 3, 0
boot_pd:
    .set at, 0
    .rept 2048
    .quad at + 0x83
    .set at, at + 0x200000
    .endr

.section .bss.boot_stack, "aw", @nobits
.balign 4096
    .skip {stack}
boot_stack_top:

// The other cores. Copied to TRAMPOLINE; what lies behind `ap_arguments` is filled in for each.
.section .rodata.ap, "a"
.global ap_start, ap_arguments, ap_end
.balign 16
.code16
ap_start:
    cli
    cld
    xor ax, ax
    mov ds, ax
    .byte 0x0f, 0x01, 0x16          // lgdt
    .word {trampoline} + ap_gdt_pointer - ap_start
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea                // ljmp 16:ap_32
    .long {trampoline} + ap_32 - ap_start
    .word 16
.code32
ap_32:
    mov ax, 24
    mov ds, ax
    mov ss, ax
    mov eax, cr4
    or eax, 1 << 5 | 1 << 9 | 1 << 10
    mov cr4, eax
    .byte 0xa1                      // mov eax, [...]
    .long {trampoline} + ap_arguments - ap_start
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 1 << 8 | 1 << 11
    wrmsr
    mov eax, cr0
    and eax, ~(1 << 2 | 1 << 29 | 1 << 30)  // FPU; caches on
    or eax, 1 << 31 | 1 << 16 | 1 << 5 | 1 << 1 | 1
    mov cr0, eax
    .byte 0xea                      // ljmp 8:ap_64
    .long {trampoline} + ap_64 - ap_start
    .word 8
.code64
ap_64:
    no_segments
    mov rsp, [rip + ap_arguments + 8]
    mov rdi, [rip + ap_arguments + 16]
    xor ebp, ebp
    call [rip + ap_arguments + 24]
    ud2
.balign 8
ap_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 64-bit code
    .quad 0x00cf9b000000ffff        // 32-bit code
    .quad 0x00cf93000000ffff        // data
ap_gdt_pointer:
    .word 31
    .long {trampoline} + ap_gdt - ap_start
.balign 8
ap_arguments:
    .quad 0, 0, 0, 0                // page tables, stack, argument, function
ap_end:
"#,
    r#".section .text"#,
    r"    .code64",
    virtual = const VIRTUAL,
    stack = const STACK,
    trampoline = const TRAMPOLINE,
);

unsafe extern "C" {
    static ap_start: u8;
    static ap_arguments: u8;
    static ap_end: u8;
    static boot_start: u8;
    static text_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static image_end: u8;
}

/// Addresses of the image's parts: code, constants, variables; the last one is its end.
pub fn image() -> [u64; 4] {
    [&raw const text_start, &raw const text_end, &raw const rodata_end, &raw const image_end]
        .map(|p| p as u64)
}

/// Where the image is in physical memory.
pub fn image_in_memory() -> Extent {
    let start = &raw const boot_start as u64;
    Extent { start, len: &raw const image_end as u64 - VIRTUAL - start }
}

/// The code of the other cores' start, and the offset of its arguments.
pub fn trampoline() -> (&'static [u8], usize) {
    let start = &raw const ap_start;
    // SAFETY: these symbols lie in one section, in this order.
    unsafe {
        let len = (&raw const ap_end).offset_from(start) as usize;
        (core::slice::from_raw_parts(start, len), (&raw const ap_arguments).offset_from(start) as usize)
    }
}
