//! The way into the runtime and back to the program, instruction by instruction.
//!
//! A rewritten site jumps to a trampoline, which loads RCX with the address
//! to come back to and jumps here through GS. Nothing of the program's stack
//! is touched. What must hold at every instruction:
//!
//! - Before `atoll_entry_commit`, only RCX has changed, which a system call
//!   changes anyway. An upcall there starts the trampoline over.
//! - From then on the mask is set: asynchronous upcalls become pending bits.
//! - On the way out the mask is cleared first and the pending word is read
//!   after it, so that a bit set in between is seen. An upcall between the
//!   clearing and the jump finds the program's registers complete, flags
//!   included, all but RIP, which is kept where `resume` keeps it, and RCX.
//! - Linux keeps the flags over a call, and so do we: they are saved by
//!   PUSHF, which is cheap, and put back by SAHF and an addition that
//!   overflows or not, because POPF takes longer than all the rest. Nothing
//!   behind that changes a flag, hence the JRCXZ.
//! - A *quiet* call (`atoll_quiet`, the runtime's table by number) only reads a
//!   word or two: it neither blocks nor fails, and touches no vector register. It
//!   leaves alone what the others save, and takes two thirds of the time. A test
//!   disassembles those functions. Where the site tells the number, the trampoline
//!   has answered such a call, and it does not get here.
//! - `atoll_resume` restores every register, flags included. An upcall in its
//!   critical part throws the half-loaded registers away and starts from the
//!   frame again, which still holds all of them.
//!
//! `tests/tests/entry.rs` steps through all of it, one instruction at a time,
//! and sends an upcall at each.
#![allow(unsafe_code, reason = "assembles the entry code")]

use atoll_abi::control::{Clock, Control, Descriptor};
use atoll_abi::core_local::CoreLocal;
use atoll_abi::frame::{UserFrame, XSAVE_OFFSET};
use atoll_abi::layout::{CONTROL, HOST_THREAD_SIZE, HOST_THREADS, LOOP_STACK};
use core::mem::offset_of;

/// Extended state that `resume` loads: x87, SSE, AVX, AVX-512, protection keys.
const ALL_STATE: u32 = 0x2e7;

/// The direction flag.
const DIRECTION: u32 = 0x400;
/// Flags that hardly any program has set when it makes a call: DF, AC, ID.
const RARE_FLAGS: u32 = 0x24_0400;
/// Entries of `atoll_quiet`.
const QUIET_CALLS: usize = atoll_abi::QUIET_CALLS;

core::arch::global_asm!(
    ".pushsection .text.atoll_entry,\"ax\",@progbits",
    ".macro atoll_save_arguments",
    "mov [rsp + {RDX}], rdx",
    "mov [rsp + {RSI}], rsi",
    "mov [rsp + {RDI}], rdi",
    "mov [rsp + {R8}], r8",
    "mov [rsp + {R9}], r9",
    "mov [rsp + {R10}], r10",
    ".endm",
    ".macro atoll_save",
    "mov [rsp + {RCX}], rcx",
    "mov [rsp + {RIP}], rcx",
    "mov rcx, gs:[{USER_RSP}]",
    "mov [rsp + {RSP}], rcx",
    "mov [rsp + {RAX}], rax",
    "atoll_save_arguments",
    "mov [rsp + {R11}], r11",
    "mov [rsp + {RBX}], rbx",
    "mov [rsp + {RBP}], rbp",
    "mov [rsp + {R12}], r12",
    "mov [rsp + {R13}], r13",
    "mov [rsp + {R14}], r14",
    "mov [rsp + {R15}], r15",
    "mov dword ptr [rsp + {KIND}], 0",
    "movaps [rsp + {XMM} + 0x00], xmm0",
    "movaps [rsp + {XMM} + 0x10], xmm1",
    "movaps [rsp + {XMM} + 0x20], xmm2",
    "movaps [rsp + {XMM} + 0x30], xmm3",
    "movaps [rsp + {XMM} + 0x40], xmm4",
    "movaps [rsp + {XMM} + 0x50], xmm5",
    "movaps [rsp + {XMM} + 0x60], xmm6",
    "movaps [rsp + {XMM} + 0x70], xmm7",
    "movaps [rsp + {XMM} + 0x80], xmm8",
    "movaps [rsp + {XMM} + 0x90], xmm9",
    "movaps [rsp + {XMM} + 0xa0], xmm10",
    "movaps [rsp + {XMM} + 0xb0], xmm11",
    "movaps [rsp + {XMM} + 0xc0], xmm12",
    "movaps [rsp + {XMM} + 0xd0], xmm13",
    "movaps [rsp + {XMM} + 0xe0], xmm14",
    "movaps [rsp + {XMM} + 0xf0], xmm15",
    ".endm",
    // Below the frame is its runtime stack. POP counts from the moved stack pointer.
    ".macro atoll_save_flags",
    "pushfq",
    "pop qword ptr [rsp + {RFLAGS}]",
    ".endm",
    // The ELF entry, of both platforms.
    ".globl _start",
    "_start:",
    "movabs eax, [{PLATFORM}]",
    "test eax, eax",
    "jz atoll_host_start",
    "jmp atoll_nucleus_start",
    // A system call that trapped, from the nucleus, with the mask set and all registers as they were,
    // flags included, but for rcx and r11: from here on it is like a rewritten site's.
    ".globl atoll_trapped_call",
    "atoll_trapped_call:",
    "mov gs:[{USER_RSP}], rsp",
    "mov rcx, gs:[{TRAPPED_RIP}]",
    "jmp atoll_entry_commit",
    // A rewritten site, through its trampoline. rcx: where to go back to; rax: the call's number.
    ".globl atoll_entry",
    "atoll_entry:",
    "mov gs:[{USER_RSP}], rsp",
    ".globl atoll_entry_commit",
    "atoll_entry_commit:",
    "mov dword ptr gs:[{MASK}], 1",
    "mov rsp, gs:[{FRAME}]",
    "atoll_save_flags",
    "mov [rsp + {RCX}], rcx",
    "cmp rax, {QUIET_CALLS}",
    "jae 8f",
    "lea rcx, [rip + atoll_quiet]",
    "mov rcx, [rcx + rax * 8]",
    "test rcx, rcx",
    "jnz atoll_quiet_call",
    "8:",
    "mov rcx, [rsp + {RCX}]",
    "atoll_save",
    "mov [rsp + {ORIG_RAX}], rax",
    // CLD takes four cycles, and the flag is almost never set.
    "test dword ptr [rsp + {RFLAGS}], {DIRECTION}",
    "jnz 6f",
    "7:",
    "mov rdi, rsp",
    "call atoll_syscall",
    ".globl atoll_syscall_return",
    "atoll_syscall_return:",
    // Nothing has changed the frame but the call's result: what a call preserves is still there.
    "cmp dword ptr [rsp + {KIND}], 0",
    "je atoll_leave_fast",
    // The frame may have become another one: a signal handler's, a new program's.
    "atoll_leave:",
    "cmp dword ptr [rsp + {KIND}], 0",
    "jne atoll_resume_frame",
    "mov rbx, [rsp + {RBX}]",
    "mov rbp, [rsp + {RBP}]",
    "mov r12, [rsp + {R12}]",
    "mov r13, [rsp + {R13}]",
    "mov r14, [rsp + {R14}]",
    "mov r15, [rsp + {R15}]",
    "atoll_leave_fast:",
    "movaps xmm0, [rsp + {XMM} + 0x00]",
    "movaps xmm1, [rsp + {XMM} + 0x10]",
    "movaps xmm2, [rsp + {XMM} + 0x20]",
    "movaps xmm3, [rsp + {XMM} + 0x30]",
    "movaps xmm4, [rsp + {XMM} + 0x40]",
    "movaps xmm5, [rsp + {XMM} + 0x50]",
    "movaps xmm6, [rsp + {XMM} + 0x60]",
    "movaps xmm7, [rsp + {XMM} + 0x70]",
    "movaps xmm8, [rsp + {XMM} + 0x80]",
    "movaps xmm9, [rsp + {XMM} + 0x90]",
    "movaps xmm10, [rsp + {XMM} + 0xa0]",
    "movaps xmm11, [rsp + {XMM} + 0xb0]",
    "movaps xmm12, [rsp + {XMM} + 0xc0]",
    "movaps xmm13, [rsp + {XMM} + 0xd0]",
    "movaps xmm14, [rsp + {XMM} + 0xe0]",
    "movaps xmm15, [rsp + {XMM} + 0xf0]",
    "mov rcx, [rsp + {RIP}]",
    "atoll_leave_registers:",
    // Linux leaves the flags in r11.
    "mov r11, [rsp + {RFLAGS}]",
    "mov gs:[{RESUME_RIP}], rcx",
    "mov rdx, [rsp + {RDX}]",
    "mov rsi, [rsp + {RSI}]",
    "mov rdi, [rsp + {RDI}]",
    "mov r8, [rsp + {R8}]",
    "mov r9, [rsp + {R9}]",
    "mov r10, [rsp + {R10}]",
    "test r11d, {RARE_FLAGS}",
    "jnz 4f",
    // ah: the low flags; al: 1 if OF, which adding 0x7f turns into an overflow.
    "mov eax, r11d",
    "shl eax, 8",
    "bt r11d, 11",
    "setc al",
    "add al, 0x7f",
    "sahf",
    "3:",
    "mov rax, [rsp + {RAX}]",
    "mov rsp, [rsp + {RSP}]",
    "mov dword ptr gs:[{MASK}], 0",
    ".globl atoll_exit_check",
    "atoll_exit_check:",
    "mov ecx, gs:[{PENDING}]",
    "jrcxz 5f",
    // Something arrived while the mask was set.
    "mov rcx, gs:[{RESUME_RIP}]",
    "mov gs:[{USER_RSP}], rsp",
    "jmp atoll_exit_late",
    "5:",
    "mov rcx, gs:[{RESUME_RIP}]",
    "jmp rcx",
    // The direction flag, or one that only POPF sets.
    "4:",
    "push r11",
    "popfq",
    "jmp 3b",
    "6:",
    "cld",
    "jmp 7b",
    // rcx: the function. The rest of the frame is not looked at; what a function preserves stays where it is.
    "atoll_quiet_call:",
    "atoll_save_arguments",
    // Not what it was before, by whose flags one that is resumed to go by one instruction is known.
    "mov dword ptr [rsp + {KIND}], 0",
    "mov rdi, gs:[{USER_RSP}]",
    "mov [rsp + {RSP}], rdi",
    "mov rdi, gs:[{TASK}]",
    "inc qword ptr gs:[{FAST_CALLS}]",
    "call rcx",
    "mov [rsp + {RAX}], rax",
    "mov rcx, [rsp + {RCX}]",
    "jmp atoll_leave_registers",
    ".globl atoll_exit_late",
    "atoll_exit_late:",
    "mov dword ptr gs:[{MASK}], 1",
    "mov rsp, gs:[{FRAME}]",
    "atoll_save_flags",
    "atoll_save",
    "mov qword ptr [rsp + {ORIG_RAX}], -1",
    ".globl atoll_pending_entry",
    "atoll_pending_entry:",
    "cld",
    "mov rdi, rsp",
    "call atoll_pending",
    ".globl atoll_pending_return",
    "atoll_pending_return:",
    "jmp atoll_leave",
    // An upcall threw a resume away: the frame is whole, start from it.
    ".globl atoll_resume_again",
    "atoll_resume_again:",
    "mov rsp, gs:[{FRAME}]",
    "jmp atoll_pending_entry",
    // rdi: the current thread's frame. Goes on with the program as the frame says.
    ".globl atoll_resume",
    "atoll_resume:",
    "mov rsp, rdi",
    "jmp atoll_leave",
    "atoll_resume_frame:",
    "mov rdi, rsp",
    "mov rax, [rdi + {FS}]",
    "wrfsbase rax",
    "mov eax, {ALL_STATE}",
    "xor edx, edx",
    "xrstor64 [rdi + {XSAVE}]",
    "mov rax, [rdi + {RIP}]",
    "mov gs:[{RESUME_RIP}], rax",
    ".globl atoll_resume_critical",
    "atoll_resume_critical:",
    "cmp dword ptr gs:[{PENDING}], 0",
    "jne atoll_pending_entry",
    "push qword ptr [rdi + {RFLAGS}]",
    "popfq",
    "mov rax, [rdi + {RAX}]",
    "mov rbx, [rdi + {RBX}]",
    "mov rcx, [rdi + {RCX}]",
    "mov rdx, [rdi + {RDX}]",
    "mov rsi, [rdi + {RSI}]",
    "mov rbp, [rdi + {RBP}]",
    "mov r8, [rdi + {R8}]",
    "mov r9, [rdi + {R9}]",
    "mov r10, [rdi + {R10}]",
    "mov r11, [rdi + {R11}]",
    "mov r12, [rdi + {R12}]",
    "mov r13, [rdi + {R13}]",
    "mov r14, [rdi + {R14}]",
    "mov r15, [rdi + {R15}]",
    "mov rsp, [rdi + {RSP}]",
    "mov rdi, [rdi + {RDI}]",
    "mov dword ptr gs:[{MASK}], 0",
    "jmp gs:[{RESUME_RIP}]",
    ".globl atoll_resume_end",
    "atoll_resume_end:",
    // rdi: frame, rsi: function of it. Leaves the signal stack for the thread's runtime stack.
    ".globl atoll_to_thread_stack",
    "atoll_to_thread_stack:",
    "mov rsp, rdi",
    "cld",
    "call rsi",
    ".globl atoll_upcall_return",
    "atoll_upcall_return:",
    "jmp atoll_leave",
    // rdi: function, rsi: its argument, rdx: stack.
    ".globl atoll_on_stack",
    "atoll_on_stack:",
    "mov rsp, rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "xor ebp, ebp",
    "call rax",
    "ud2",
    ".popsection",
    RAX = const offset_of!(UserFrame, rax),
    RBX = const offset_of!(UserFrame, rbx),
    RCX = const offset_of!(UserFrame, rcx),
    RDX = const offset_of!(UserFrame, rdx),
    RSI = const offset_of!(UserFrame, rsi),
    RDI = const offset_of!(UserFrame, rdi),
    RBP = const offset_of!(UserFrame, rbp),
    RSP = const offset_of!(UserFrame, rsp),
    R8 = const offset_of!(UserFrame, r8),
    R9 = const offset_of!(UserFrame, r9),
    R10 = const offset_of!(UserFrame, r10),
    R11 = const offset_of!(UserFrame, r11),
    R12 = const offset_of!(UserFrame, r12),
    R13 = const offset_of!(UserFrame, r13),
    R14 = const offset_of!(UserFrame, r14),
    R15 = const offset_of!(UserFrame, r15),
    RIP = const offset_of!(UserFrame, rip),
    RFLAGS = const offset_of!(UserFrame, rflags),
    ORIG_RAX = const offset_of!(UserFrame, orig_rax),
    FS = const offset_of!(UserFrame, fs_base),
    KIND = const offset_of!(UserFrame, kind),
    XMM = const offset_of!(UserFrame, xmm),
    XSAVE = const XSAVE_OFFSET,
    ALL_STATE = const ALL_STATE,
    MASK = const offset_of!(CoreLocal, mask),
    PENDING = const offset_of!(CoreLocal, pending),
    FRAME = const offset_of!(CoreLocal, frame),
    USER_RSP = const offset_of!(CoreLocal, user_rsp),
    RESUME_RIP = const offset_of!(CoreLocal, resume_rip),
    TASK = const offset_of!(CoreLocal, task),
    FAST_CALLS = const offset_of!(CoreLocal, fast_calls),
    TRAPPED_RIP = const offset_of!(CoreLocal, trapped_rip),
    PLATFORM = const CONTROL as usize + offset_of!(Control, descriptor) + offset_of!(Descriptor, platform),
    QUIET_CALLS = const QUIET_CALLS,
    DIRECTION = const DIRECTION,
    RARE_FLAGS = const RARE_FLAGS,
);

// Where the time-stamp counter is the clock, this code reads it, for programs by the runtime's vDSO. It
// runs as theirs: on their stack, interrupted as they are.
core::arch::global_asm!(
    ".pushsection .text.atoll_clock,\"ax\",@progbits",
    ".globl atoll_clock_start",
    "atoll_clock_start:",
    // -> rax: ns since the machine's start. Changes rdx.
    ".macro atoll_clock_read",
    "movabs r8, {CLOCK}",
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, [r8 + {BASE}]",
    "mul qword ptr [r8 + {SCALE}]",
    "shrd rax, rdx, 32",
    ".endm",
    // edi: one of the clocks 0, 1, 4 to 7 and 11; rsi: struct timespec.
    ".globl atoll_clock_gettime",
    "atoll_clock_gettime:",
    "atoll_clock_read",
    // CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI.
    "mov ecx, 0x821",
    "bt ecx, edi",
    "jnc 2f",
    "add rax, [r8 + {REALTIME}]",
    "2:",
    "xor edx, edx",
    "mov ecx, 1000000000",
    "div rcx",
    "mov [rsi], rax",
    "mov [rsi + 8], rdx",
    "xor eax, eax",
    "ret",
    // rdi: struct timeval or null, rsi: struct timezone or null.
    ".globl atoll_gettimeofday",
    "atoll_gettimeofday:",
    "test rdi, rdi",
    "jz 3f",
    "atoll_clock_read",
    "add rax, [r8 + {REALTIME}]",
    "xor edx, edx",
    "mov ecx, 1000",
    "div rcx",
    "xor edx, edx",
    "mov ecx, 1000000",
    "div rcx",
    "mov [rdi], rax",
    "mov [rdi + 8], rdx",
    "3:",
    "test rsi, rsi",
    "jz 4f",
    "mov qword ptr [rsi], 0",
    "4:",
    "xor eax, eax",
    "ret",
    // rdi: time_t or null.
    ".globl atoll_time",
    "atoll_time:",
    "atoll_clock_read",
    "add rax, [r8 + {REALTIME}]",
    "xor edx, edx",
    "mov ecx, 1000000000",
    "div rcx",
    "test rdi, rdi",
    "jz 5f",
    "mov [rdi], rax",
    "5:",
    "ret",
    ".globl atoll_clock_end",
    "atoll_clock_end:",
    ".popsection",
    CLOCK = const CONTROL as usize + offset_of!(Control, descriptor) + offset_of!(Descriptor, clock),
    BASE = const offset_of!(Clock, base),
    SCALE = const offset_of!(Clock, scale),
    REALTIME = const offset_of!(Clock, realtime),
);

/// Is this address in the clock code?
pub(crate) fn in_clock(rip: u64) -> bool {
    (atoll_clock_start as *const () as u64..atoll_clock_end as *const () as u64).contains(&rip)
}

/// Addresses of `clock_gettime`, `gettimeofday` and `time` by the time-stamp counter.
pub fn clock_functions() -> [u64; 3] {
    [atoll_clock_gettime, atoll_gettimeofday, atoll_time].map(|f| f as *const () as u64)
}

unsafe extern "C" {
    fn atoll_entry();
    fn atoll_entry_commit();
    fn atoll_exit_check();
    fn atoll_exit_late();
    fn atoll_resume(frame: *mut UserFrame) -> !;
    fn atoll_resume_critical();
    fn atoll_resume_end();
    fn atoll_resume_again() -> !;
    fn atoll_trapped_call();
    fn atoll_clock_start();
    fn atoll_clock_end();
    fn atoll_clock_gettime();
    fn atoll_gettimeofday();
    fn atoll_time();
    fn atoll_to_thread_stack(frame: *mut UserFrame, f: extern "C" fn(&mut UserFrame)) -> !;
    fn atoll_on_stack(f: extern "C" fn(usize) -> !, argument: usize, stack: u64) -> !;
}

/// Addresses in the entry code that who interrupts it must know.
pub struct Landmarks {
    /// First instruction of the entry code.
    pub entry: u64,
    /// From here on the mask is set.
    pub entry_commit: u64,
    /// The mask has been cleared, the pending word not yet read.
    pub exit_check: u64,
    /// Last instruction before the mask is set again, when something was pending.
    pub exit_late: u64,
    /// From here on registers are the program's, one after the other.
    pub resume_critical: u64,
    /// Behind the last of them.
    pub resume_end: u64,
    /// Where a resume begins again.
    pub resume_again: u64,
}

/// Where they are.
pub fn landmarks() -> Landmarks {
    let a = |f: unsafe extern "C" fn()| f as usize as u64;
    Landmarks {
        entry: a(atoll_entry),
        entry_commit: a(atoll_entry_commit),
        exit_check: a(atoll_exit_check),
        exit_late: a(atoll_exit_late),
        resume_critical: a(atoll_resume_critical),
        resume_end: a(atoll_resume_end),
        resume_again: atoll_resume_again as *const () as u64,
    }
}

/// Address that trampolines jump to.
pub fn entry_address() -> u64 {
    atoll_entry as *const () as u64
}

/// Address that the nucleus goes to with a program's system call that trapped.
pub fn trapped_call_address() -> u64 {
    atoll_trapped_call as *const () as u64
}

/// Begins a resume again that was interrupted in its critical part.
///
/// # Safety
/// On the core's own stack, with the mask set.
pub unsafe fn again() -> ! {
    // SAFETY: the caller's promise.
    unsafe { atoll_resume_again() }
}

/// Goes on with the current thread's program as its frame says.
///
/// # Safety
/// `frame` is the current thread's, and nothing on its runtime stack is needed any more.
pub unsafe fn resume(frame: *mut UserFrame) -> ! {
    // SAFETY: the caller's promise.
    unsafe { atoll_resume(frame) }
}

/// Leaves the signal stack: calls `f` on the current thread's runtime stack, then resumes the frame.
///
/// # Safety
/// On the signal stack, with the mask set, after the frame was captured.
pub unsafe fn to_thread_stack(frame: *mut UserFrame, f: extern "C" fn(&mut UserFrame)) -> ! {
    // SAFETY: the caller's promise.
    unsafe { atoll_to_thread_stack(frame, f) }
}

/// Leaves the current stack for this core's own (on the host: this host thread's).
pub fn leave_stack(f: extern "C" fn(usize) -> !, argument: usize) -> ! {
    let core = atoll_abi::core_local::core_local().id() as u64;
    let top = HOST_THREADS + core * HOST_THREAD_SIZE + LOOP_STACK;
    // SAFETY: the loop stack is this host thread's, and whatever was on it is done with.
    unsafe { atoll_on_stack(f, argument, top) }
}

/// The core's words, through GS.
#[unsafe(no_mangle)]
fn atoll_core_local() -> &'static CoreLocal {
    let p: *const CoreLocal;
    // SAFETY: every host thread sets GS before it runs anything else of the runtime.
    unsafe {
        core::arch::asm!("mov {}, gs:[0]", out(reg) p, options(nostack, pure, readonly, preserves_flags));
        &*p
    }
}
