//! The local APIC (Intel SDM volume 3, chapter 11): who this core is, and how it starts another.
#![allow(unsafe_code, reason = "reads and writes the APIC's registers")]

use core::arch::x86_64::{_mm_lfence, _mm_mfence};
use core::sync::atomic::{AtomicU64, Ordering};

use raw_cpuid::CpuId;
use x86_64::registers::model_specific::Msr;

/// IA32_APIC_BASE: on (bit 11), x2APIC (bit 10), address.
const BASE: u32 = 0x1b;
/// First MSR of the x2APIC's registers; register n of the other kind is MSR 0x800 + n / 16.
const X2APIC: u32 = 0x800;
const ID: u32 = 0x20;
const SPURIOUS: u32 = 0xf0;
const END_OF_INTERRUPT: u32 = 0xb0;
const COMMAND: u32 = 0x300;
const COMMAND_HIGH: u32 = 0x310;
const TIMER: u32 = 0x320;
const INITIAL_COUNT: u32 = 0x380;
const CURRENT_COUNT: u32 = 0x390;
const DIVIDER: u32 = 0x3e0;

/// Vectors of the interrupts that there are.
pub mod vector {
    /// The core's timer.
    pub const TIMER: u8 = 0x40;
    /// Another core has set a pending bit of this one, or the cell ends.
    pub const NOTIFY: u8 = 0x41;
    /// Another core has changed mappings that this one may remember.
    pub const FLUSH: u8 = 0x42;
    /// A device of the core's cell.
    pub const DEVICE: u8 = 0x43;
    /// An IOMMU has kept a device from something.
    pub const FAULT: u8 = 0x44;
    /// Stands for all that nobody was to send: a device's message can have any vector.
    pub const STRAY: u8 = 0x45;
    /// The APIC's own, for interrupts that were taken back.
    pub const SPURIOUS: u8 = 0xff;
}

/// Where the registers are mapped; 0: they are MSRs. The same on all cores.
static PLACE: AtomicU64 = AtomicU64::new(0);

/// A core's APIC.
#[derive(Clone, Copy)]
pub enum Apic {
    /// Registers are at this address.
    Memory(u64),
    /// Registers are MSRs.
    X2,
}

impl Apic {
    /// This core's, of the better kind that it has; `registers` is where they are mapped.
    pub fn start(registers: u64) -> Apic {
        let x2 = CpuId::new().get_feature_info().is_some_and(|f| f.has_x2apic());
        let mut base = Msr::new(BASE);
        // SAFETY: turns it on, in the mode that the processor says it has.
        unsafe { base.write(base.read() | 1 << 11 | if x2 { 1 << 10 } else { 0 }) };
        PLACE.store(if x2 { 0 } else { registers }, Ordering::Relaxed);
        let apic = Apic::here();
        // On.
        apic.write(SPURIOUS, 1 << 8 | u32::from(vector::SPURIOUS));
        // Undivided, for who measures it as for who uses it: a reset leaves 2 (Intel SDM volume 3, section 11.5.4).
        apic.write(DIVIDER, 0b1011);
        apic
    }

    /// This core's, which has been started.
    pub fn here() -> Apic {
        match PLACE.load(Ordering::Relaxed) {
            0 => Apic::X2,
            at => Apic::Memory(at),
        }
    }

    /// Which kind it is.
    pub fn name(self) -> &'static str {
        match self {
            Apic::Memory(_) => "xAPIC",
            Apic::X2 => "x2APIC",
        }
    }

    fn read(self, register: u32) -> u32 {
        match self {
            // SAFETY: mapped registers, 16 bytes apart.
            Apic::Memory(at) => unsafe { ((at + u64::from(register)) as *const u32).read_volatile() },
            // SAFETY: a register of the x2APIC, which is on.
            Apic::X2 => unsafe { Msr::new(X2APIC + register / 16).read() as u32 },
        }
    }

    fn write(self, register: u32, value: u32) {
        match self {
            // SAFETY: as above.
            Apic::Memory(at) => unsafe { ((at + u64::from(register)) as *mut u32).write_volatile(value) },
            // SAFETY: as above.
            Apic::X2 => unsafe { Msr::new(X2APIC + register / 16).write(u64::from(value)) },
        }
    }

    /// This core's id.
    pub fn id(self) -> u32 {
        match self {
            Apic::Memory(_) => self.read(ID) >> 24,
            Apic::X2 => self.read(ID),
        }
    }

    fn command(self, to: u32, value: u32) {
        match self {
            Apic::Memory(_) => {
                self.write(COMMAND_HIGH, to << 24);
                self.write(COMMAND, value);
                // Until it is delivered (bit 12).
                while self.read(COMMAND) & 1 << 12 != 0 {
                    core::hint::spin_loop();
                }
            }
            // Such a write waits for no store before it: who is interrupted is to see them all (Intel SDM volume 3, section
            // 11.12.3).
            // SAFETY: the command register, whole.
            Apic::X2 => unsafe {
                _mm_mfence();
                _mm_lfence();
                Msr::new(X2APIC + COMMAND / 16).write(u64::from(to) << 32 | u64::from(value))
            },
        }
    }

    /// Sets the timer up: it interrupts once, by a deadline or by a count.
    pub fn start_timer(self, by_deadline: bool) {
        self.write(TIMER, u32::from(vector::TIMER) | if by_deadline { 0b10 << 17 } else { 0 });
        // The write must be seen before one of the deadline's MSR.
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Counts down from there; 0: stops.
    pub fn count_down(self, from: u32) {
        self.write(INITIAL_COUNT, from);
    }

    /// What is left of that.
    pub fn count_left(self) -> u32 {
        self.read(CURRENT_COUNT)
    }

    /// The interrupt that came is done with.
    pub fn done(self) {
        self.write(END_OF_INTERRUPT, 0);
    }

    /// Interrupts a core.
    pub fn interrupt(self, to: u32, vector: u8) {
        self.command(to, 0x4000 | u32::from(vector));
    }

    /// Resets a core: INIT, as an edge.
    pub fn init(self, to: u32) {
        self.command(to, 0x4500);
    }

    /// Has a core that was reset begin at page `page`, in real mode.
    pub fn startup(self, to: u32, page: u32) {
        self.command(to, 0x4600 | page);
    }
}
