//! The register frame of a program that entered the runtime.
//!
//! A frame belongs to its thread: it lies at the top of the thread's runtime
//! stack, never on the program's. There is one a thread, because a thread is
//! in its program at most once.

use core::mem::offset_of;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes set aside behind a frame for the extended (x87, SSE, AVX, AVX-512) state.
///
/// AVX-512 with protection keys takes 2,696 bytes. AMX tiles would take 8 KiB
/// more; programs must ask Linux for them and the runtime says no.
pub const XSAVE_MAX: usize = 2816;

/// How a frame was taken, and so how it must be resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FrameKind {
    /// By a rewritten `syscall` site: general registers and xmm0-15 are saved.
    Syscall = 0,
    /// By an upcall: everything is saved, the extended state in the xsave area.
    Full = 1,
}

/// A program's registers. The order is known to the entry code.
#[repr(C, align(64))]
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "the fields are the registers' names")]
pub struct UserFrame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// Number of the system call being served, or `u64::MAX`.
    pub orig_rax: u64,
    pub rip: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub fs_base: u64,
    /// A [`FrameKind`].
    pub kind: u32,
    /// Not zero: the extended state beyond SSE that was live when the thread
    /// was switched out lies in the xsave area (a mask of its components).
    pub saved_components: u32,
    pub reserved: [u64; 3],
    /// xmm0 to xmm15, of a frame taken at a rewritten site.
    pub xmm: [[u64; 2]; 16],
    /// Extended state in the processor's standard (not compacted) XSAVE format.
    pub xsave: [u64; XSAVE_MAX / 8],
}

/// Offset of the xsave area in a frame, bytes (a multiple of 64, as XSAVE asks).
pub const XSAVE_OFFSET: usize = offset_of!(UserFrame, xsave);
const _: () = assert!(XSAVE_OFFSET.is_multiple_of(64));

impl UserFrame {
    /// A frame with all registers zero and the extended state a new Linux process has.
    pub fn new() -> Self {
        let mut f = Self::new_zeroed();
        f.begin();
        f
    }

    /// As a new one.
    pub fn reset(&mut self) {
        // Nothing but whole numbers, in place: the frame is large for a stack.
        self.zero();
        self.begin();
    }

    /// What is not zero in a new one.
    fn begin(&mut self) {
        self.orig_rax = u64::MAX;
        self.rflags = 0x202;
        self.kind = FrameKind::Full as u32;
        self.begin_extended();
    }

    /// Puts the extended state back to that of a new process: x87 control
    /// word 0x37f, MXCSR 0x1f80, all else in its initial configuration.
    pub fn reset_extended(&mut self) {
        self.xsave = [0; XSAVE_MAX / 8];
        self.begin_extended();
    }

    /// What is not zero of it.
    fn begin_extended(&mut self) {
        self.xsave[0] = 0x37f;
        self.xsave[3] = 0x1f80;
        // XSTATE_BV: x87 and SSE are taken from the area, the rest is initial.
        self.xsave[64] = 3;
    }

    /// Was the frame taken at a rewritten site?
    pub fn is_syscall(&self) -> bool {
        self.kind == FrameKind::Syscall as u32
    }
}

impl Default for UserFrame {
    fn default() -> Self {
        Self::new()
    }
}

/// Why the platform calls the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upcall {
    /// A `syscall` instruction that was not rewritten; the frame holds its arguments.
    Syscall,
    /// A processor exception in the program.
    Fault {
        /// Which exception.
        kind: FaultKind,
        /// The address that faulted, for page faults; else the instruction's.
        addr: u64,
        /// Page-fault error code (bit 0 present, 1 write, 2 user, 4 fetch), or 0.
        code: u64,
        /// Linux's `si_code` for the signal that this fault becomes.
        si_code: i32,
    },
    /// A notification, a deadline or a device event; the pending word has been taken.
    Event,
}

/// A processor exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// #PF on an address that is mapped otherwise or not at all (SIGSEGV).
    Page,
    /// An access to memory whose backing is gone: beyond the end of a file, revoked (SIGBUS).
    Bus,
    /// #GP and its kind: no address is known (SIGSEGV).
    Protection,
    /// #DE, #MF, #XM (SIGFPE).
    Arithmetic,
    /// #UD (SIGILL).
    InvalidOpcode,
    /// #DB, #BP (SIGTRAP).
    Debug,
    /// The program changed the GS base, which is the runtime's.
    SegmentBase,
    /// The program is not in 64-bit mode any more: it jumped to another code segment.
    CodeSegment,
    /// A system call by `int 0x80` or `sysenter`, which are not served. The
    /// frame stands at the instruction.
    LegacyCall,
}

/// `struct sigcontext` of x86-64: the registers in a Linux signal frame, the host's and those
/// that the personality makes. `segments` holds cs, gs, fs and ss; `fpstate` is an address.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields are the registers' names")]
pub struct SigContext {
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub rflags: u64,
    pub segments: u64,
    pub error: u64,
    pub trap: u64,
    pub oldmask: u64,
    pub cr2: u64,
    pub fpstate: u64,
    pub reserved: [u64; 8],
}

const _: () = assert!(size_of::<SigContext>() == 256);
