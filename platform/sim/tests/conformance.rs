//! The contract's conformance suite on the simulator, under several seeds. What it writes down is compared with
//! what it writes on the host and on the nucleus by `tests/tests/conformance.rs`; here it is enough that all seeds agree.
#![allow(unsafe_code, reason = "catches faults as a platform does, and goes on in another space")]

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::frame::{Upcall, UserFrame};
use atoll_abi::layout::BLOCK;
use atoll_abi::platform::platform;
use atoll_conformance::Machine;
use atoll_platform_sim::{Config, Outcome, run_with_memory};

struct Sim;

static NEXT: AtomicU64 = AtomicU64::new(0);
/// Where the lines go.
static LINES: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

impl Machine for Sim {
    fn say(&self, line: Arguments) {
        *LINES.lock().unwrap() += &format!("{line}\n");
    }

    fn block(&self) -> u64 {
        NEXT.fetch_add(BLOCK, Ordering::Relaxed)
    }

    fn switch(&self, space: u32) {
        /// Continues on the stack that it was called on: that of a simulated core is in all spaces.
        extern "C" fn arrived(kept: usize) -> ! {
            // SAFETY: kept by `leave`.
            unsafe { back(kept) }
        }
        extern "C" fn go(kept: usize, space: usize) -> ! {
            platform().space_switch(space as u32, arrived, kept)
        }
        // SAFETY: comes back by `arrived`, before anything that it left on the stack is overwritten.
        unsafe { leave(go, space as usize) }
    }

    fn program(&self, _frame: &mut UserFrame) -> Option<Upcall> {
        None
    }
}

std::arch::global_asm!(
    // rdi: function, rsi: its second argument; its first is what `back` wants.
    "leave:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rax, rdi",
    "mov rdi, rsp",
    "sub rsp, 8",
    "call rax",
    "ud2",
    "back:",
    "mov rsp, rdi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    fn leave(f: extern "C" fn(usize, usize) -> !, argument: usize);
    fn back(kept: usize) -> !;
}

extern "C" fn fault(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the host calls this with a valid context.
    let rip = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    match atoll_mem::user::fixup(*rip as u64) {
        Some(to) => *rip = to as i64,
        // SAFETY: ends the process.
        None => unsafe { libc::abort() },
    }
}

fn boot(core: usize) -> ! {
    if core > 0 {
        atoll_conformance::other_core()
    }
    // SAFETY: a handler that only looks at a table.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
    }
    atoll_conformance::run(&Sim);
    let path = std::env::var_os("ATOLL_CONFORMANCE").expect("set below");
    let mut file = std::fs::File::create(path).expect("a file for the lines");
    file.write_all(LINES.lock().unwrap().as_bytes()).expect("room for the lines");
    platform().end(42)
}

#[test]
fn all_seeds_agree() {
    let to = std::env::var_os("ATOLL_CONFORMANCE").map(std::path::PathBuf::from);
    let path =
        to.unwrap_or_else(|| std::env::temp_dir().join(format!("atoll-conformance-{}", std::process::id())));
    // SAFETY: this test is alone in its process, and has no threads.
    unsafe { std::env::set_var("ATOLL_CONFORMANCE", &path) };
    let mut first: Option<String> = None;
    for seed in 1..=10 {
        let config = Config { cores: 2, seed, switch_once_in: 4 };
        assert_eq!(run_with_memory(config, 8 * BLOCK, boot), Outcome::Ended(42), "seed {seed}");
        let lines = std::fs::read_to_string(&path).expect("the lines");
        assert_eq!(*first.get_or_insert_with(|| lines.clone()), lines, "seed {seed}");
    }
    let lines = first.expect("there was a seed");
    assert!(lines.lines().count() > 40, "{lines}");
    println!("{lines}");
}
