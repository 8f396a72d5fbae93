//! The local APIC (Intel SDM volume 3, chapter 11): who this core is, and how it starts another.
#![allow(unsafe_code, reason = "reads and writes the APIC's registers")]

use raw_cpuid::CpuId;
use x86_64::registers::model_specific::Msr;

/// IA32_APIC_BASE: on (bit 11), x2APIC (bit 10), address.
const BASE: u32 = 0x1b;
/// First MSR of the x2APIC's registers; register n of the other kind is MSR 0x800 + n / 16.
const X2APIC: u32 = 0x800;
const ID: u32 = 0x20;
const SPURIOUS: u32 = 0xf0;
const COMMAND: u32 = 0x300;
const COMMAND_HIGH: u32 = 0x310;

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
        let apic = if x2 { Apic::X2 } else { Apic::Memory(registers) };
        // On, with the spurious vector 255.
        apic.write(SPURIOUS, 1 << 8 | 255);
        apic
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
            // SAFETY: the command register, whole.
            Apic::X2 => unsafe {
                Msr::new(X2APIC + COMMAND / 16).write(u64::from(to) << 32 | u64::from(value))
            },
        }
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
