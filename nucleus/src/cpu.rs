//! A core of the processor: its segments, its protections, its exceptions.
//!
//! Interrupts stay off while the nucleus runs. An exception in it is its own fault: it says what it
//! knows and the machine ends; one in ring 3 ends its cell. Stack overflow comes as a double fault on a stack of its own.
#![allow(unsafe_code, reason = "loads descriptor tables and control registers")]

use core::arch::{asm, global_asm};

use raw_cpuid::CpuId;
use x86_64::VirtAddr;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::{Cr2, Cr4, Cr4Flags, Efer, EferFlags};
use x86_64::registers::model_specific::Msr;
use x86_64::registers::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{Entry, HandlerFunc, InterruptDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use crate::cell::Cell;
use crate::console::{Console, Turn};

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
    // From ring 3, GS is the cell's.
    test qword ptr [rsp + 24], 3
    jz 2f
    swapgs
2:
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

// Nothing of the nucleus's goes to ring 3 in registers that calls may change and that have no other use there.
.macro forget
    xor edx, edx
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    pxor xmm\n, xmm\n
    .endr
.endm

// A call of ring 3: number in rax, arguments in rdi, rsi, rdx, r10. GS finds the core.
.global nucleus_call_entry
nucleus_call_entry:
    swapgs
    mov gs:[0], rsp
    mov rsp, gs:[8]
    push qword ptr gs:[0]
    push rcx
    push r11
    sub rsp, 8
    mov rcx, r10
    mov r8, rax
    call nucleus_call
    xor edi, edi
    xor esi, esi
    forget
    add rsp, 8
    pop r11
    pop rcx
    pop rsp
    swapgs
    sysretq

// rdi: instruction pointer, rsi: stack pointer, rdx, rcx: for rdi and rsi there.
.global nucleus_enter
nucleus_enter:
    push 0x1b
    push rsi
    push 2
    push 0x23
    push rdi
    mov rdi, rdx
    mov rsi, rcx
    xor eax, eax
    xor ebx, ebx
    xor ecx, ecx
    xor ebp, ebp
    xor r11d, r11d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    forget
    swapgs
    iretq
"#,
    exceptions = const EXCEPTIONS,
);

unsafe extern "C" {
    static exception_entries: u8;
    static nucleus_call_entry: u8;
    fn nucleus_enter(rip: u64, rsp: u64, first: u64, second: u64) -> !;
}

/// What a core has for itself. It lies in memory of its own and stays there for ever.
#[repr(C, align(64))]
pub struct Core {
    /// Where the entry code keeps ring 3's stack pointer for an instant. Its offset is known there.
    user_rsp: u64,
    /// Top of the stack for what comes from ring 3. Its offset, too.
    stack: u64,
    /// Its own address. Its offset, too.
    this: u64,
    /// Its number.
    pub index: usize,
    /// The cell that runs here.
    pub cell: Option<&'static Cell>,
    gdt: GlobalDescriptorTable<8>,
    tss: TaskStateSegment,
    idt: InterruptDescriptorTable,
}

impl Core {
    /// Prepares a core with this stack for what comes from ring 3, and this one for double faults,
    /// non-maskable interrupts and machine checks: what may come when the other is of no use.
    pub fn prepare(&mut self, index: usize, stack: u64, emergency: u64) {
        (self.user_rsp, self.stack, self.this) = (0, stack, self as *const Core as u64);
        (self.index, self.cell) = (index, None);
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
    pub fn start(&mut self) {
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
        // What a `syscall` does: to the code that is mapped for it, with interrupts off and nothing of ring 3's
        // flags; and where the core's own part is found then.
        // SAFETY: selectors of `prepare`: ring 0 has 8 and 16, ring 3 24 (data) and 32 (code).
        unsafe {
            Efer::update(|e| e.insert(EferFlags::SYSTEM_CALL_EXTENSIONS));
            Msr::new(STAR).write(8 << 32 | 0x13 << 48);
            Msr::new(LSTAR).write(&raw const nucleus_call_entry as u64);
            Msr::new(SFMASK).write(FLAGS_OFF);
            Msr::new(GS_BASE).write(self as *mut Core as u64);
            Msr::new(KERNEL_GS_BASE).write(0);
        }
    }

    /// The core that runs this.
    pub fn here() -> &'static Core {
        let at: *const Core;
        // SAFETY: in ring 0, GS is the core's part, from `start` on.
        unsafe {
            asm!("mov {}, gs:[16]", out(reg) at, options(nostack, readonly, preserves_flags));
            &*at
        }
    }

    /// Goes to ring 3, for good: what comes back comes as a call or an exception.
    pub fn enter(&mut self, cell: &'static Cell, first: u64, second: u64) -> ! {
        self.cell = Some(cell);
        cell.space.enter();
        // SAFETY: the cell's own code, in its own space.
        unsafe { nucleus_enter(cell.entry, 0, first, second) }
    }
}

const STAR: u32 = 0xc000_0081;
const LSTAR: u32 = 0xc000_0082;
const SFMASK: u32 = 0xc000_0084;
const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// TF, IF, DF, IOPL, NT, RF, AC.
const FLAGS_OFF: u64 = 1 << 8 | 1 << 9 | 1 << 10 | 3 << 12 | 1 << 14 | 1 << 16 | 1 << 18;

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

fn report(r: &Registers, address: u64, of_cell: Option<&Cell>) -> core::fmt::Result {
    use core::fmt::Write as _;
    let _turn = Turn::take();
    let mut out = Console;
    write!(out, "nucleus: ")?;
    if let Some(cell) = of_cell {
        write!(out, "cell {}, core {}: ", cell.name(), Core::here().index)?;
    }
    writeln!(out, "exception {} error {:#x} at {:#x}, address {address:#x}", r.vector, r.error, r.rip)?;
    writeln!(out, "nucleus: cs {:#x} rflags {:#x} ss:rsp {:#x}:{:#x}", r.cs, r.rflags, r.ss, r.rsp)?;
    for (names, values) in NAMES.chunks(5).zip(r.general.chunks(5)) {
        write!(out, "nucleus:")?;
        for (name, value) in names.iter().zip(values) {
            write!(out, " {name} {value:#x}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nucleus_exception(r: &Registers) -> ! {
    // Only then is it sure that GS is the core's.
    let of_cell = (r.cs & 3 == 3).then(|| Core::here().cell).flatten();
    // It can't fail.
    let _ = report(r, Cr2::read_raw(), of_cell);
    match of_cell {
        // Its own fault, and nobody else's.
        Some(cell) => cell.end(crate::cell::CRASHED),
        None => crate::end(false),
    }
}

/// Tells QEMU's `isa-debug-exit` to end the machine with this value.
pub fn debug_exit(port: u16, value: u32) {
    // SAFETY: a port that the command line names for this.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack)) };
}
