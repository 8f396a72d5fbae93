//! A core of the processor: its segments, its protections, its exceptions.
//!
//! Interrupts stay off while the nucleus runs. An exception in it is its own fault: it says what it
//! knows and the core stops. Stack overflow comes as a double fault on a stack of its own.
#![allow(unsafe_code, reason = "loads descriptor tables and control registers")]

use core::arch::{asm, global_asm};

use raw_cpuid::CpuId;
use x86_64::VirtAddr;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::{Cr2, Cr4, Cr4Flags};
use x86_64::registers::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{Entry, HandlerFunc, InterruptDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use crate::say;

/// Exceptions of the processor.
const EXCEPTIONS: usize = 32;

/// Registers at an exception, as the entry code pushes them.
#[repr(C)]
#[allow(missing_docs, reason = "registers by their names")]
pub struct Registers {
    pub general: [u64; 15],
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// Names of `Registers::general`.
const NAMES: [&str; 15] =
    ["r15", "r14", "r13", "r12", "r11", "r10", "r9", "r8", "rbp", "rdi", "rsi", "rdx", "rcx", "rbx", "rax"];

global_asm!(
    r#"
.balign 16
.global exception_entries
exception_entries:
.set n, 0
.rept {exceptions}
    .balign 16
    // Those for which the processor pushes no error code.
    .if n != 8 && (n < 10 || n > 14) && n != 17 && n != 21 && n != 29 && n != 30
    .byte 0x6a, 0                   // push 0
    .endif
    .byte 0x6a, n                   // push n
    jmp exception_common
    .set n, n + 1
.endr
exception_common:
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rdi, rsp
    and rsp, -16
    call nucleus_exception
    ud2
"#,
    exceptions = const EXCEPTIONS,
);

unsafe extern "C" {
    static exception_entries: u8;
}

/// What a core has for itself. It lies in memory of its own and stays there for ever.
#[repr(C, align(64))]
pub struct Core {
    index: usize,
    gdt: GlobalDescriptorTable<8>,
    tss: TaskStateSegment,
    idt: InterruptDescriptorTable,
}

impl Core {
    /// Prepares a core with this stack for what comes from ring 3, and this one for double faults,
    /// non-maskable interrupts and machine checks: what may come when the other is of no use.
    pub fn prepare(&mut self, index: usize, stack: u64, emergency: u64) {
        self.index = index;
        self.tss = TaskStateSegment::new();
        self.tss.privilege_stack_table[0] = VirtAddr::new(stack);
        self.tss.interrupt_stack_table[0] = VirtAddr::new(emergency);
        self.gdt = GlobalDescriptorTable::empty();
        self.gdt.append(Descriptor::kernel_code_segment());
        self.gdt.append(Descriptor::kernel_data_segment());
        self.gdt.append(Descriptor::user_data_segment());
        self.gdt.append(Descriptor::user_code_segment());
        self.idt = InterruptDescriptorTable::new();
        // SAFETY: as many entries as there are exceptions, 16 bytes each.
        let address = |n: usize| VirtAddr::new(unsafe { (&raw const exception_entries).add(n * 16) } as u64);
        let idt = (&raw mut self.idt).cast::<Entry<HandlerFunc>>();
        for n in 0..EXCEPTIONS {
            // SAFETY: entries of the table are alike whatever type their handler has; each address is one's.
            let options = unsafe { (*idt.add(n)).set_handler_addr(address(n)) };
            if matches!(n, 2 | 8 | 18) {
                // SAFETY: the stack is there, and for these alone.
                unsafe { options.set_stack_index(0) };
            }
        }
    }

    /// Makes this the core that runs. To be called once by each core.
    pub fn start(&'static mut self) {
        // SAFETY: the descriptors of the task state are right, and it stays where it is.
        let tss = unsafe { Descriptor::tss_segment_unchecked(&raw const self.tss) };
        let selector = self.gdt.append(tss);
        let code = x86_64::structures::gdt::SegmentSelector(8);
        // SAFETY: the tables stay where they are; the selectors are those of `prepare`.
        unsafe {
            self.gdt.load_unsafe();
            CS::set_reg(code);
            for set in [SS::set_reg, DS::set_reg, ES::set_reg] {
                set(x86_64::structures::gdt::SegmentSelector(0));
            }
            load_tss(selector);
            self.idt.load_unsafe();
        }
        protect();
    }
}

/// Turns on what the processor has to protect ring 0.
fn protect() {
    let id = CpuId::new();
    let features = id.get_extended_feature_info();
    let mut flags = Cr4Flags::PAGE_GLOBAL;
    if let Some(f) = &features {
        for (has, flag) in [
            (f.has_smep(), Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION),
            (f.has_smap(), Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION),
            (f.has_umip(), Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION),
            (f.has_fsgsbase(), Cr4Flags::FSGSBASE),
        ] {
            flags.set(flag, has);
        }
    }
    // SAFETY: nothing of the nucleus is mapped for ring 3.
    unsafe { Cr4::update(|r| r.insert(flags)) };
}

/// Names of what [`protect`] turned on.
pub fn protections() -> [(&'static str, bool); 4] {
    let on = Cr4::read();
    [
        ("SMEP", on.contains(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION)),
        ("SMAP", on.contains(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION)),
        ("UMIP", on.contains(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION)),
        ("FSGSBASE", on.contains(Cr4Flags::FSGSBASE)),
    ]
}

/// Goes on with `f` on another stack; this one stays as it is, and what `argument` is may lie there.
pub fn go_on<T>(stack: u64, f: extern "C" fn(&mut T) -> !, argument: &mut T) -> ! {
    // SAFETY: the stack is fresh; nothing comes back to this one, so the reference lives on.
    unsafe {
        asm!("mov rsp, {}", "xor ebp, ebp", "call {}", "ud2",
            in(reg) stack, in(reg) f, in("rdi") argument, options(noreturn))
    }
}

/// Stops this core for good.
pub fn stop() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}

#[unsafe(no_mangle)]
extern "C" fn nucleus_exception(r: &Registers) -> ! {
    let address = Cr2::read_raw();
    say!("exception {} error {:#x} at {:#x}, address {address:#x}", r.vector, r.error, r.rip);
    say!("cs {:#x} rflags {:#x} ss:rsp {:#x}:{:#x}", r.cs, r.rflags, r.ss, r.rsp);
    for (names, values) in NAMES.chunks(5).zip(r.general.chunks(5)) {
        use core::fmt::Write as _;
        let mut console = crate::console::Console;
        // It can't fail.
        let _ = console.write_str("nucleus:");
        for (name, value) in names.iter().zip(values) {
            let _ = write!(console, " {name} {value:#x}");
        }
        let _ = console.write_str("\n");
    }
    crate::end(false)
}

/// Tells QEMU's `isa-debug-exit` to end the machine with this value.
pub fn debug_exit(port: u16, value: u32) {
    // SAFETY: a port that the command line names for this.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack)) };
}
