//! A core of the processor: its segments, its protections, its exceptions.
//!
//! Interrupts stay off while the nucleus runs, but where it sleeps. An exception in it is its own fault: it says what
//! it knows and the machine ends; one in ring 3 is passed up to the cell's runtime, or ends the cell if that has not
//! asked for it. Stack overflow comes as a double fault on a stack of its own.
#![allow(unsafe_code, reason = "loads descriptor tables and control registers")]

use core::arch::{asm, global_asm};

use core::cell::Cell;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use atoll_abi::control::{ASLEEP, CoreArea};
use atoll_abi::core_local::{CoreLocal, pending};
use atoll_abi::errno::Errno;
use atoll_abi::layout::{EXEMPT_END, HOST_THREAD_SIZE, HOST_THREADS, IMAGE_MAX, PAGE, RUNTIME_BASE};
use atoll_abi::nucleus::{MapChange, TRAP_BUSY, call, change, vector as up};
use raw_cpuid::CpuId;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::{Cr2, Cr4, Cr4Flags, Efer, EferFlags};
use x86_64::registers::model_specific::Msr;
use x86_64::registers::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::registers::xcontrol::XCr0;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{Entry, HandlerFunc, InterruptDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

use crate::apic::{Apic, vector};
use crate::cell::Answer;
use crate::console::{Console, Turn};
use crate::entry::DIRECT;
use crate::paging::AddressSpace;
use crate::space::Space;
use crate::{clock, cores, counter, iommu};

/// Exceptions of the processor.
const EXCEPTIONS: usize = 32;
/// Those that may come when a core's stack is of no use, or while it is in use: non-maskable interrupts, double faults,
/// machine checks. The entry code knows them, too.
const EMERGENCIES: [usize; 3] = [2, 8, MACHINE_CHECK];
const MACHINE_CHECK: usize = 18;
/// Bytes at the top of their stack that hold the core's own address; it stays aligned.
const EMERGENCY_TOP: u64 = 16;

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
    .if n == 2 || n == 8 || n == 18
    jmp exception_emergency
    .else
    jmp exception_common
    .endif
    .set n, n + 1
.endr
// The interrupts that there are.
.macro interrupt name, n
    .balign 16
.global \name
\name:
    .byte 0x6a, 0
    push \n                        // as 32 bits
    jmp exception_common
.endm
interrupt interrupt_timer, {timer}
interrupt interrupt_notify, {notify}
interrupt interrupt_flush, {flush}
interrupt interrupt_device, {device}
interrupt interrupt_fault, {fault}
interrupt interrupt_stray, {stray}
interrupt interrupt_spurious, {spurious}

// A system call of a program that has changed GS: as if it were an exception.
call_with_foreign_gs:
    mov rsp, gs:[8]
    push {ss}
    push qword ptr gs:[0]
    push r11
    push {cs}
    push rcx
    push 0
    push {call_vector}
    jmp exception_saved
// On the stack for emergencies. They come at any instruction, so that GS may be ring 3's in ring 0, too, and ring 3 can
// give it any value; where the core's part is stands at that stack's top. None of them goes back.
exception_emergency:
    push rax
    push rcx
    push rdx
    mov ecx, {gs_base}
    mov eax, [rsp + {to_core}]
    mov edx, [rsp + {to_core} + 4]
    wrmsr
    pop rdx
    pop rcx
    pop rax
    jmp exception_saved
exception_common:
    // From ring 3, GS is the cell's.
    test qword ptr [rsp + 24], 3
    jz 2f
    swapgs
2:
exception_saved:
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
    sub rsp, 256
    .set at, 0
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movaps [rsp + at], xmm\n
    .set at, at + 16
    .endr
    // None of ring 3's flags: not its direction, not its leave to reach ring 3's memory.
    push 2
    popfq
    lea rdi, [rsp + 256]
    call nucleus_exception
    .set at, 0
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movaps xmm\n, [rsp + at]
    .set at, at + 16
    .endr
    add rsp, 256
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    add rsp, 16
    test qword ptr [rsp + 8], 3
    jz 3f
    swapgs
3:
    iretq

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

// A system call. Of the runtime's own code it is a call of the nucleus: number in rax, arguments in rdi, rsi,
// rdx, r10. Any other is a program's, and goes up to the runtime with all registers as they are. GS finds the core.
.global nucleus_call_entry
nucleus_call_entry:
    swapgs
    mov gs:[0], rsp
    movabs rsp, -{runtime}
    add rsp, rcx
    cmp rsp, {exempt}
    jae 2f
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
2:
    // A runtime that has not said where it wants them has no programs.
    cmp qword ptr gs:[32], 0
    je call_with_foreign_gs
    swapgs
    rdgsbase rsp
    swapgs
    cmp rsp, gs:[40]
    jne call_with_foreign_gs
    mov rsp, gs:[24]
    mov dword ptr [rsp + {mask}], 1
    mov [rsp + {trapped_rip}], rcx
    // What is counted in `fast_calls` with all that come by that way is not one.
    inc qword ptr [rsp + {trapped_calls}]
    dec qword ptr [rsp + {fast_calls}]
    mov rcx, gs:[32]
    // Not the trap flag.
    and r11, -0x101
    mov rsp, gs:[0]
    swapgs
    sysretq

// rdi: instruction pointer, rsi: stack pointer, rdx, rcx: for rdi and rsi there.
.global nucleus_enter
nucleus_enter:
    push {ss}
    push rsi
    push 0x202
    push {cs}
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
    timer = const vector::TIMER as u32,
    notify = const vector::NOTIFY as u32,
    flush = const vector::FLUSH as u32,
    device = const vector::DEVICE as u32,
    fault = const vector::FAULT as u32,
    stray = const vector::STRAY as u32,
    spurious = const vector::SPURIOUS as u32,
    call_vector = const up::CALL as u32,
    gs_base = const GS_BASE,
    // Behind three registers and what lies there at an exception.
    to_core = const 3 * 8 + size_of::<Registers>() - offset_of!(Registers, vector),
    cs = const USER_CS,
    ss = const USER_SS,
    runtime = const RUNTIME_BASE,
    exempt = const EXEMPT_END - RUNTIME_BASE,
    mask = const offset_of!(CoreLocal, mask),
    trapped_rip = const offset_of!(CoreLocal, trapped_rip),
    trapped_calls = const offset_of!(CoreLocal, trapped_calls),
    fast_calls = const offset_of!(CoreLocal, fast_calls),
);

unsafe extern "C" {
    static exception_entries: u8;
    static interrupt_timer: u8;
    static interrupt_notify: u8;
    static interrupt_flush: u8;
    static interrupt_device: u8;
    static interrupt_fault: u8;
    static interrupt_stray: u8;
    static interrupt_spurious: u8;
    static nucleus_call_entry: u8;
    fn nucleus_enter(rip: u64, rsp: u64, first: u64, second: u64) -> !;
}

/// What a core has for itself. It lies in memory of its own and stays there for ever.
#[repr(C, align(64))]
pub struct Core {
    /// Where the entry code keeps ring 3's stack pointer for an instant. Its offset is known there, as are the next.
    user_rsp: u64,
    /// Top of the stack for what comes from ring 3.
    stack: u64,
    /// Its own address.
    this: u64,
    /// The words that it shares with the runtime (`CoreLocal`), by the direct map.
    local: Cell<u64>,
    /// Where a program's system calls go; 0: nowhere yet.
    call_entry: Cell<u64>,
    /// The address of those words in the cell: what GS is there.
    user_local: Cell<u64>,
    /// Its number in the machine.
    pub index: usize,
    /// The cell that runs here.
    cell: Cell<Option<&'static crate::cell::Cell>>,
    /// Its number in the cell.
    number: Cell<usize>,
    /// Where upcalls go; 0: nowhere yet.
    upcall_entry: Cell<u64>,
    /// Where a resume is under way although the mask is set.
    critical: Cell<(u64, u64)>,
    /// The space that it is in.
    space: Cell<Space>,
    /// When it wants an event; `u64::MAX`: not.
    armed: Cell<u64>,
    gdt: GlobalDescriptorTable<16>,
    tss: TaskStateSegment,
    idt: InterruptDescriptorTable,
}

impl Core {
    /// Prepares a core with this stack for what comes from ring 3, and this one for double faults,
    /// non-maskable interrupts and machine checks: what may come when the other is of no use.
    pub fn prepare(&mut self, index: usize, stack: u64, emergency: u64) {
        (self.user_rsp, self.stack, self.this) = (0, stack, self as *const Core as u64);
        self.index = index;
        (self.cell, self.number) = (Cell::new(None), Cell::new(0));
        (self.local, self.user_local) = (Cell::new(0), Cell::new(0));
        self.call_entry.set(0);
        self.upcall_entry.set(0);
        self.armed.set(u64::MAX);
        self.tss = TaskStateSegment::new();
        self.tss.privilege_stack_table[0] = VirtAddr::new(stack);
        // SAFETY: the topmost words of a stack that is mapped already; what is pushed there comes below them.
        unsafe { ((emergency - EMERGENCY_TOP) as *mut u64).write(self.this) };
        self.tss.interrupt_stack_table[0] = VirtAddr::new(emergency - EMERGENCY_TOP);
        self.gdt = GlobalDescriptorTable::empty();
        self.gdt.append(Descriptor::kernel_code_segment());
        self.gdt.append(Descriptor::kernel_data_segment());
        // Where Linux has 32-bit code there is nothing: ring 3 can't leave 64-bit mode.
        self.gdt.append(Descriptor::UserSegment(0));
        self.gdt.append(Descriptor::UserSegment(0));
        self.gdt.append(Descriptor::user_data_segment());
        self.gdt.append(Descriptor::user_code_segment());
        self.idt = InterruptDescriptorTable::new();
        let mut gate = |n: usize, at: u64| {
            let idt = (&raw mut self.idt).cast::<Entry<HandlerFunc>>();
            // SAFETY: entries of the table are alike whatever type their handler has; each address is one's, and the
            // stack is there.
            unsafe {
                let options = (*idt.add(n)).set_handler_addr(VirtAddr::new(at));
                if EMERGENCIES.contains(&n) {
                    options.set_stack_index(0);
                }
                if n == BREAKPOINT {
                    options.set_privilege_level(PrivilegeLevel::Ring3);
                }
            }
        };
        for n in 0..EXCEPTIONS {
            // SAFETY: as many entries as there are exceptions, 16 bytes each.
            gate(n, unsafe { (&raw const exception_entries).add(n * 16) } as u64);
        }
        for n in EXCEPTIONS..256 {
            gate(n, &raw const interrupt_stray as u64);
        }
        for (n, at) in [
            (vector::TIMER, &raw const interrupt_timer),
            (vector::NOTIFY, &raw const interrupt_notify),
            (vector::FLUSH, &raw const interrupt_flush),
            (vector::DEVICE, &raw const interrupt_device),
            (vector::FAULT, &raw const interrupt_fault),
            (vector::SPURIOUS, &raw const interrupt_spurious),
        ] {
            gate(n as usize, at as u64);
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
            // A reset leaves a local descriptor table at address 0 (Intel SDM volume 3, section 10.1.1), where a cell may have
            // memory: its descriptors would be ring 3's to write, call gates among them.
            asm!("lldt {:x}", in(reg) 0u16, options(nostack, preserves_flags));
            load_tss(selector);
            self.idt.load_unsafe();
        }
        protect();
        // What a `syscall` does: to the code that is mapped for it, with interrupts off and nothing of ring 3's
        // flags; and where the core's own part is found then.
        // SAFETY: selectors of `prepare`: ring 0 has 8 and 16; ring 3's are 8 and 16 behind that one.
        unsafe {
            Efer::update(|e| e.insert(EferFlags::SYSTEM_CALL_EXTENSIONS));
            Msr::new(STAR).write(8 << 32 | (USER_SS - 8) << 48);
            Msr::new(LSTAR).write(&raw const nucleus_call_entry as u64);
            Msr::new(SFMASK).write(FLAGS_OFF);
            Msr::new(GS_BASE).write(self.this);
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

    /// Goes to ring 3 as core `number` of a cell, for good: what comes back comes as a call, an exception or an interrupt.
    pub fn enter(&self, cell: &'static crate::cell::Cell, number: usize) -> ! {
        let (area, at) = cell.area(number);
        self.number.set(number);
        self.local.set(&raw const area.local as u64);
        self.user_local.set(at + offset_of!(CoreArea, local) as u64);
        self.cell.set(Some(cell));
        self.set_space(cell.first_space());
        cores::enter(self.index, self.space());
        Apic::here().start_timer(clock::by_deadline());
        if let Some(program) = &cell.counter {
            counter::start(program);
            area.counter_mask.store(program.mask, Ordering::Relaxed);
        }
        // It may have ended before this core was of it: then the interrupt that says so found nobody. One that comes
        // from here on waits for ring 3.
        if cell.has_ended() {
            leave(cell);
        }
        clear_state();
        // SAFETY: the cell's own code, in its own space.
        unsafe { nucleus_enter(cell.entry, 0, number as u64, 0) }
    }

    /// It has no cell any more.
    pub fn rest(&self) {
        self.cell.set(None);
        self.upcall_entry.set(0);
        self.call_entry.set(0);
        self.critical.set((0, 0));
        self.armed.set(u64::MAX);
        self.set_timer(u64::MAX);
        let space = Space(AddressSpace::of_nucleus().root());
        self.set_space(space);
        cores::enter(self.index, space);
    }

    /// Sleeps until then.
    pub fn sleep(&self, deadline: u64) {
        while clock::now() < deadline {
            self.set_timer(deadline);
            wait_for_interrupt();
        }
        self.set_timer(u64::MAX);
    }

    /// The space that it is in.
    pub fn space(&self) -> Space {
        self.space.get()
    }

    /// It is in another one.
    pub fn set_space(&self, space: Space) {
        self.space.set(space);
    }

    /// The words that it shares with the runtime.
    fn local(&self) -> &'static CoreLocal {
        // SAFETY: set by `enter`, before anything comes from ring 3; of atomics, for ever.
        unsafe { &*(self.local.get() as *const CoreLocal) }
    }

    /// `upcalls`.
    pub fn set_upcalls(&self, upcall: u64, call: u64, critical: (u64, u64)) -> Answer {
        let image = RUNTIME_BASE..RUNTIME_BASE + IMAGE_MAX;
        if [upcall, call, critical.0, critical.1].iter().any(|at| !image.contains(at)) {
            return Err(Errno::EINVAL);
        }
        self.upcall_entry.set(upcall);
        self.call_entry.set(call);
        self.critical.set(critical);
        Ok(0)
    }

    /// `arm`.
    pub fn arm(&self, deadline: u64) -> Answer {
        self.armed.set(deadline);
        self.set_timer(u64::MAX);
        Ok(0)
    }

    /// Has the timer come when an event is wanted, or at `also`.
    fn set_timer(&self, also: u64) {
        clock::arm(Apic::here(), self.armed.get().min(also));
    }

    /// The wanted event is due?
    fn look_at_timer(&self) {
        if self.armed.get() == u64::MAX {
            return;
        }
        if clock::now() >= self.armed.get() {
            self.armed.set(u64::MAX);
            self.local().pending.fetch_or(pending::DEADLINE, Ordering::SeqCst);
        } else {
            // It came early.
            self.set_timer(u64::MAX);
        }
    }

    /// `park`.
    pub fn park(&self, cell: &'static crate::cell::Cell, deadline: u64) -> Answer {
        const WAKES: u32 = pending::NOTIFY | pending::DEVICE | pending::MAILBOX;
        while self.local().pending.load(Ordering::SeqCst) & WAKES == 0 && clock::now() < deadline {
            // An interrupt that says so later ends the sleep.
            if cell.has_ended() {
                leave(cell);
            }
            self.set_timer(deadline);
            self.sleep_for(cell);
        }
        self.set_timer(u64::MAX);
        self.look_at_timer();
        Ok(0)
    }

    /// Waits for an interrupt in a cell's name, and counts how long.
    fn sleep_for(&self, cell: &'static crate::cell::Cell) {
        let area = self.area(cell);
        let begun = clock::now();
        let slept = area.slept_by(begun);
        area.slept.store(ASLEEP | begun.saturating_sub(slept), Ordering::Relaxed);
        wait_for_interrupt();
        // The cell may have written anything there.
        area.slept.store(slept.saturating_add(clock::now().saturating_sub(begun)), Ordering::Relaxed);
    }

    /// Leaves the registers in the core's trap, and has ring 3 go on with its upcalls. Value: false if it can't.
    fn pass_up(&self, cell: &crate::cell::Cell, r: &mut Registers, what: u64, address: u64) -> bool {
        let (area, at) = cell.area(self.number.get());
        let upcall = self.upcall_entry.get();
        if upcall == 0 || area.trap[TRAP_BUSY].load(Ordering::Relaxed) != 0 {
            return false;
        }
        let [r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax] = r.general;
        // The order of `SigContext`.
        let words = [
            r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, r.rsp, r.rip, r.rflags,
            r.cs, r.error, what, 0, address, 0, 1,
        ];
        const { assert!(TRAP_BUSY == 24) };
        for (to, word) in area.trap.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.local().mask.store(1, Ordering::SeqCst);
        let top = HOST_THREADS + (self.number.get() as u64 + 1) * HOST_THREAD_SIZE - PAGE;
        (r.rip, r.rsp, r.rflags, r.cs, r.ss) = (upcall, top, 0x202, USER_CS, USER_SS);
        r.general[RDI] = self.user_local.get();
        r.general[RSI] = at + offset_of!(CoreArea, trap) as u64;
        true
    }

    /// What it shares with this cell, whose it is.
    pub fn area(&self, cell: &'static crate::cell::Cell) -> &'static CoreArea {
        cell.area(self.number.get()).0
    }

    /// An interrupt has come. The way back to ring 3 may lead by its upcalls.
    fn interrupted(&self, r: &mut Registers) {
        let apic = Apic::here();
        match r.vector as u8 {
            // It needs no end.
            vector::SPURIOUS => return,
            vector::FLUSH => cores::forget_if_wanted(self.index),
            vector::FAULT => iommu::report(),
            vector::TIMER if self.cell.get().is_some() => self.look_at_timer(),
            vector::DEVICE if self.cell.get().is_some() => {
                self.local().pending.fetch_or(pending::DEVICE, Ordering::SeqCst);
            }
            _ => {}
        }
        apic.done();
        let Some(cell) = self.cell.get() else { return };
        if cell.has_ended() {
            leave(cell);
        }
        let from_cell = r.cs & 3 == 3;
        let local = self.local();
        let (from, to) = self.critical.get();
        if !from_cell || local.pending.load(Ordering::SeqCst) == 0 {
            return;
        }
        if local.mask.load(Ordering::SeqCst) == 0 || (from..to).contains(&r.rip) {
            // If it can't take it now, it stays pending.
            self.pass_up(cell, r, up::EVENT, 0);
        } else {
            self.area(cell).puts_off(clock::now());
        }
    }
}

/// Has core `number` of these of a cell, whose areas lie there by the direct map, look at its pending bits, and sets some.
pub fn notify(cores: u64, areas: u64, number: u64, bits: u32) -> Answer {
    if number >= u64::from(cores.count_ones()) {
        return Err(Errno::EINVAL);
    }
    let to = (0..number).fold(cores, |left, _| left & (left - 1)).trailing_zeros() as usize;
    // SAFETY: so many areas lie there, of atomics, for ever.
    let area = unsafe { &*(areas as *const CoreArea).add(number as usize) };
    area.local.pending.fetch_or(bits, Ordering::SeqCst);
    if to != Core::here().index {
        cores::interrupt(to);
    }
    Ok(0)
}

/// Sleeps until an interrupt has come.
pub fn wait_for_interrupt() {
    // It uses the stack: what comes is pushed below its top, where a function that calls none may have variables (the red zone;
    // this is compiled as a host's programs are). Nowhere else does anything come to this stack in ring 0 that goes back.
    // SAFETY: one that comes before the core sleeps ends the sleep; they are off again behind it.
    unsafe { asm!("sti", "hlt", "cli", options(nomem)) };
}

/// This core's cell has ended: it has nothing to do until it is given something.
pub fn leave(cell: &'static crate::cell::Cell) -> ! {
    Core::here().rest();
    cell.has_left();
    idle()
}

/// Waits for a cell, on a fresh stack.
pub fn idle() -> ! {
    go_on(Core::here().stack, crate::wait_for_job, &mut ())
}

/// Nothing of what ran here before is left in registers that the entry code doesn't load.
fn clear_state() {
    /// An image for XRSTOR in which all components are as at a reset.
    #[repr(align(64))]
    struct Image([u32; 144]);
    let mut image = Image([0; 144]);
    // MXCSR, which has no such state.
    image.0[6] = 0x1f80;
    // SAFETY: nothing of the nucleus's is in these registers; ring 3's bases are its own.
    unsafe {
        asm!("xrstor64 [{}]", in(reg) &raw const image, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
        Msr::new(FS_BASE).write(0);
        Msr::new(KERNEL_GS_BASE).write(0);
    }
}

/// Selectors of ring 3's code and data, the same as Linux's: some programs know them.
const USER_CS: u64 = atoll_abi::nucleus::USER_CS;
const USER_SS: u64 = 0x2b;
/// Places in `Registers::general`.
const RDI: usize = 9;
const RSI: usize = 10;
/// Vectors that ring 3 may raise by an instruction.
const BREAKPOINT: usize = 3;
/// IA32_MCG_STATUS: bit 2 says that a machine check is being handled; another one then shuts the processor down (Intel
/// SDM volume 3, section 16.3.1.2).
const MCG_STATUS: u32 = 0x17a;
const STAR: u32 = 0xc000_0081;
const LSTAR: u32 = 0xc000_0082;
const SFMASK: u32 = 0xc000_0084;
const FS_BASE: u32 = 0xc000_0100;
const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// TF, IF, DF, IOPL, NT, RF, AC.
const FLAGS_OFF: u64 = 1 << 8 | 1 << 9 | 1 << 10 | 3 << 12 | 1 << 14 | 1 << 16 | 1 << 18;

/// What ring 3's runtime and the way into the nucleus use without asking, and this processor doesn't have.
pub fn lacks() -> Option<&'static str> {
    let id = CpuId::new();
    if !id.get_extended_feature_info().is_some_and(|f| f.has_fsgsbase()) {
        return Some("this processor has no FSGSBASE, without which no cell can run");
    }
    let xsave = id.get_feature_info().is_some_and(|f| f.has_xsave());
    (!xsave).then_some("this processor has no XSAVE, without which no cell can run")
}

/// Turns on what the processor has to protect ring 0, and what it must have.
fn protect() {
    let id = CpuId::new();
    let features = id.get_extended_feature_info();
    let mut flags = Cr4Flags::PAGE_GLOBAL | Cr4Flags::FSGSBASE | Cr4Flags::OSXSAVE;
    if let Some(f) = &features {
        for (has, flag) in [
            (f.has_smep(), Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION),
            (f.has_smap(), Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION),
            (f.has_umip(), Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION),
            (f.has_pku(), Cr4Flags::PROTECTION_KEY_USER),
        ] {
            flags.set(flag, has);
        }
    }
    // Without it a machine check is a shutdown.
    let checks = id.get_feature_info().is_some_and(|f| f.has_mce() && f.has_mca());
    flags.set(Cr4Flags::MACHINE_CHECK_EXCEPTION, checks);
    // SAFETY: nothing of the nucleus is mapped for ring 3.
    unsafe { Cr4::update(|r| r.insert(flags)) };
    if let Some(state) = id.get_extended_state_info() {
        let has = u64::from(state.xcr0_supports_legacy_x87())
            | u64::from(state.xcr0_supports_sse_128()) << 1
            | u64::from(state.xcr0_supports_avx_256()) << 2
            | if state.xcr0_supports_avx512_zmm_hi256() { 7 << 5 } else { 0 }
            | u64::from(state.xcr0_supports_pkru()) << 9;
        // SAFETY: components that the processor has.
        unsafe { XCr0::write_raw(has) };
    }
}

/// Names of what [`protect`] turned on.
pub fn protections() -> [(&'static str, bool); 3] {
    let on = Cr4::read();
    [
        ("SMEP", on.contains(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION)),
        ("SMAP", on.contains(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION)),
        ("UMIP", on.contains(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION)),
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

fn report(r: &Registers, address: u64, of_cell: Option<&crate::cell::Cell>) -> core::fmt::Result {
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
    if of_cell.is_some() {
        write!(out, "nucleus: stack:")?;
        backtrace(r.rsp, &mut out)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Words on a runtime's stack that may be return addresses, as places in its file (`addr2line` knows them).
fn backtrace(rsp: u64, out: &mut Console) -> core::fmt::Result {
    use core::fmt::Write as _;
    /// Words that are looked at, and return addresses that are said.
    const WORDS: u64 = 4096;
    const MOST: usize = 16;
    let words = (0..WORDS).map_while(|n| (rsp & !7).checked_add(n * 8)?.into());
    let values = words.map_while(|at: u64| {
        let (physical, _) = Core::here().space().look(at)?;
        // SAFETY: a page that the cell can read, in the direct map; any value will do.
        Some(unsafe { ((DIRECT + physical) as *const u64).read_volatile() })
    });
    let text = RUNTIME_BASE..RUNTIME_BASE + IMAGE_MAX;
    for value in values.filter(|v| text.contains(v)).take(MOST) {
        write!(out, " +{:#x}", value - RUNTIME_BASE)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nucleus_exception(r: &mut Registers) {
    let core = Core::here();
    if (32..256).contains(&r.vector) {
        return core.interrupted(r);
    }
    let address = Cr2::read_raw();
    let of_cell = (r.cs & 3 == 3).then(|| core.cell.get()).flatten();
    // A machine check, or an interrupt of the hardware's that can't be masked, is nobody's own.
    let passed = !EMERGENCIES.contains(&(r.vector as usize));
    match of_cell {
        Some(cell) if passed && core.pass_up(cell, r, r.vector, address) => {}
        Some(_) => {
            // It can't fail.
            let _ = report(r, address, of_cell);
            if r.vector == MACHINE_CHECK as u64 {
                // The next one is to be an exception again, and not the machine's end.
                // SAFETY: a processor that has machine checks has the register.
                unsafe { Msr::new(MCG_STATUS).write(0) };
            }
            // Its own fault, and nobody else's. On the stack for what comes from ring 3, from which nothing is kept: the one for
            // emergencies is too small for what is to come, and has no room for the next one meanwhile.
            go_on(core.stack, crashed, &mut ())
        }
        None => {
            let _ = report(r, address, None);
            crate::end(false)
        }
    }
}

/// This core's cell is ended by an exception.
extern "C" fn crashed(_: &mut ()) -> ! {
    match Core::here().cell.get() {
        Some(cell) => cell.end(crate::cell::CRASHED),
        None => idle(),
    }
}

/// A call of ring 3.
#[unsafe(no_mangle)]
extern "C" fn nucleus_call(a: u64, b: u64, c: u64, d: u64, number: u64) -> i64 {
    let core = Core::here();
    let Some(cell) = core.cell.get() else { return Errno::ENOSYS.to_ret() };
    let one = |kind| MapChange { kind, access: c as u32, address: a, len: b, offset: d };
    let answer = match number {
        call::END => cell.end(a & 0xffff),
        call::LOG => cell.log(a, b),
        call::UPCALLS => core.set_upcalls(a, b, (c, d)),
        call::ARM => core.arm(a),
        call::PARK => core.park(cell, a),
        call::NOTIFY => cell.notify(a),
        call::SPACE_CREATE => cell.space_create(),
        call::SPACE_DESTROY => cell.space_destroy(a),
        call::SPACE_SWITCH => cell.space_switch(core, a),
        call::MAP | call::UNMAP | call::PROTECT => {
            let change = match number {
                call::MAP => one(change::MAP),
                call::UNMAP => MapChange { access: 0, offset: 0, ..one(change::UNMAP) },
                _ => MapChange { offset: 0, ..one(change::PROTECT) },
            };
            cell.change(core, &change)
        }
        call::CHANGES => cell.change_list(core, a, b),
        call::TABLES_GIVE => cell.tables_give(a),
        call::TABLES_BACK => cell.tables_back(),
        call::SEND => cell.send(core, a, b),
        call::SETTLED => cell.settled(a),
        call::PAGE_BITS => cell.page_bits(core, a, b, c, d),
        call::FORGET => cell.forget(core, a, b),
        call::CONSOLE => cell.write(a, b, c),
        _ => Err(Errno::ENOSYS),
    };
    match answer {
        Ok(value) => value as i64,
        Err(e) => e.to_ret(),
    }
}

/// Tells QEMU's `isa-debug-exit` to end the machine with this value.
pub fn debug_exit(port: u16, value: u32) {
    // SAFETY: a port that the command line names for this.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack)) };
}
