//! Programs and their upcalls: what happened, with which registers.
#![allow(unsafe_code, reason = "maps a program")]

use core::sync::atomic::Ordering;

use atoll_abi::core_local::{core_local, pending};
use atoll_abi::frame::{FaultKind, Upcall, UserFrame};
use atoll_abi::layout::{DIRECT_MAP, PAGE};
use atoll_abi::platform::{Access, Backing, platform};

use crate::Machine;
use crate::memory::AT;

/// A program, and what becomes of it.
struct Case {
    name: &'static str,
    code: &'static [u8],
}

const fn case(name: &'static str, code: &'static [u8]) -> Case {
    Case { name, code }
}

/// rax is the address of a page that can be read, rbx of one where nothing is, rcx is 0.
const CASES: &[Case] = &[
    case("ud2", &[0x0f, 0x0b]),
    case("int3", &[0xcc]),
    case("hlt", &[0xf4]),
    case("cli", &[0xfa]),
    case("wrmsr", &[0x0f, 0x30]),
    case("div by zero", &[0x48, 0xf7, 0xf1]),
    case("load", &[0x8a, 0x13]),
    case("store", &[0x88, 0x13]),
    // It is looked at first, and so there.
    case("store, read-only", &[0x38, 0x10, 0x88, 0x10]),
    case("jump to nothing", &[0xff, 0xe3]),
    case("jump to data", &[0xff, 0xe0]),
    case("far pointer", &[0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x8a, 0x10]),
    case("syscall", &[0x0f, 0x05]),
    case("push without a stack", &[0x48, 0x89, 0xdc, 0x50]),
    case("loop", &[0xeb, 0xfe]),
];

const CODE: u64 = AT + 16 * PAGE;
const DATA: u64 = AT + 32 * PAGE;
const NOTHING: u64 = AT + 64 * PAGE;

/// A frame whose registers are all different.
fn frame() -> UserFrame {
    let mut f = UserFrame::new();
    (f.rax, f.rbx, f.rcx, f.rip, f.rsp) = (DATA, NOTHING, 0, CODE, DATA + 256);
    (f.rdx, f.rsi, f.rdi, f.rbp) = (0x1111, 0x2222, 0x3333, 0x4444);
    (f.r8, f.r9, f.r10, f.r11) = (0x8888, 0x9999, 0xaaaa, 0xbbbb);
    (f.r12, f.r13, f.r14, f.r15) = (0xcccc, 0xdddd, 0xeeee, 0xffff);
    f.fs_base = DATA + 8;
    // xmm0 to xmm15.
    for (n, word) in f.xsave[20..52].iter_mut().enumerate() {
        *word = 0x5a5a_0000 + n as u64;
    }
    f
}

/// The registers that are not as they were, but those that a system call changes.
fn changed(before: &UserFrame, after: &UserFrame, syscall: bool) -> usize {
    let all = |f: &UserFrame| {
        [f.rdx, f.rsi, f.rdi, f.rbp, f.rbx, f.r8, f.r9, f.r10, f.r12, f.r13, f.r14, f.r15, f.fs_base]
    };
    let plain = all(before).iter().zip(all(after)).filter(|(a, b)| **a != *b).count();
    let rest =
        if syscall { 0 } else { usize::from(before.r11 != after.r11) + usize::from(before.rcx != after.rcx) };
    // A frame of a call that the platform passes on without saving everything keeps them elsewhere.
    let vectors = if after.is_syscall() {
        let words = after.xmm.as_flattened();
        before.xsave[20..52].iter().zip(words).filter(|(a, b)| a != b).count()
    } else {
        before.xsave[20..52].iter().zip(&after.xsave[20..52]).filter(|(a, b)| a != b).count()
    };
    plain + rest + vectors
}

pub(crate) fn run(machine: &dyn Machine) {
    let p = platform();
    let block = machine.block();
    let map = |addr, access, offset| {
        // SAFETY: no program is there, and nothing of the runtime's in the block.
        unsafe { p.map(addr, PAGE, access, Backing::Memory { offset }) }
    };
    let shown = map(CODE, Access::READ | Access::EXEC, block).and(map(DATA, Access::READ, block + PAGE));
    machine.say(format_args!("programs: {shown:?}"));
    for Case { name, code } in CASES {
        // SAFETY: the suite's block.
        unsafe { ((DIRECT_MAP + block) as *mut u8).copy_from(code.as_ptr(), code.len()) };
        let (before, mut after) = (frame(), frame());
        core_local().pending.store(0, Ordering::SeqCst);
        if *name == "loop" {
            p.arm(p.now() + 2_000_000);
        }
        let Some(upcall) = machine.program(&mut after) else {
            return machine.say(format_args!("programs: this platform has none"));
        };
        let changed = changed(&before, &after, upcall == Upcall::Syscall);
        let rip = after.rip.wrapping_sub(CODE);
        let rsp = after.rsp.wrapping_sub(DATA);
        match upcall {
            Upcall::Event => {
                let bits = core_local().pending.load(Ordering::SeqCst) & !pending::DEADLINE;
                machine.say(format_args!("{name}: event, also {bits}, at {rip}, {changed} changed"));
            }
            Upcall::Syscall => machine.say(format_args!(
                "{name}: syscall, rcx {} r11 {:#x}, at {rip}, {changed} changed",
                after.rcx == after.rip,
                after.r11 & 0xffff
            )),
            Upcall::Fault { kind, addr, code, si_code } => {
                // The address of what is no page fault, and codes of what is one, are the personality's to find.
                let page = kind == FaultKind::Page;
                let addr = if page { addr.wrapping_sub(AT) } else { 0 };
                let code = if page { code & 0x17 } else { 0 };
                let si_code = if kind == FaultKind::Arithmetic { si_code } else { 0 };
                machine.say(format_args!(
                    "{name}: {kind:?} at {addr:#x} code {code} {si_code}, rip {rip:#x} rsp {rsp:#x}, {changed} changed"
                ));
            }
        }
    }
}
