//! Time: the processors' time-stamp counter, measured once, and a timer a core.
#![allow(unsafe_code, reason = "reads and writes ports and the timer's register")]

use core::arch::x86_64::{_mm_lfence, _rdtsc};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use raw_cpuid::CpuId;
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use crate::apic::Apic;

/// IA32_TSC_DEADLINE.
const TSC_DEADLINE: u32 = 0x6e0;
/// Counts a second of a PC's interval timer.
const PIT_HZ: u64 = 1_193_182;
/// For how long counters are compared, in those counts: 10 ms.
const PIT_COUNTS: u16 = (PIT_HZ / 100) as u16;
/// Looks at a timer that does not come before it is given up.
const PATIENCE: u32 = 1_000_000;

/// The counter at the start.
static BASE: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds a count, times 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);
/// Counts a nanosecond, times 2^32.
static INVERSE: AtomicU64 = AtomicU64::new(0);
/// Counts of the APIC's timer a nanosecond, times 2^32.
static APIC_SCALE: AtomicU64 = AtomicU64::new(0);
/// Timers take a value of the counter as deadline.
static BY_DEADLINE: AtomicBool = AtomicBool::new(false);
/// Nanoseconds from 1970 to the start.
static REALTIME: AtomicU64 = AtomicU64::new(0);

fn counter() -> u64 {
    // SAFETY: only reads.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

fn scaled(value: u64, by: u64) -> u64 {
    ((u128::from(value) * u128::from(by)) >> 32) as u64
}

fn ratio(a: u64, b: u64) -> u64 {
    ((u128::from(a) << 32) / u128::from(b.max(1))) as u64
}

fn input(port: u16) -> u8 {
    // SAFETY: a port of a PC's timer, of its clock, or of nothing.
    unsafe { Port::new(port).read() }
}

fn output(port: u16, value: u8) {
    // SAFETY: as above.
    unsafe { Port::new(port).write(value) }
}

/// Measures the counter and the APIC's timer by the PC's interval timer, whose first channel counts down round and
/// round. Value: nanoseconds, counts of the one, counts of the other.
fn measure(apic: Apic) -> Option<(u64, u64, u64)> {
    // Channel 0, both bytes, mode 2, from 65536 on.
    output(0x43, 0x34);
    output(0x40, 0);
    output(0x40, 0);
    let read = || {
        // Holds the count until it has been read.
        output(0x43, 0);
        u16::from_le_bytes([input(0x40), input(0x40)])
    };
    apic.count_down(u32::MAX);
    let (from, start, apic_start) = (read(), counter(), apic.count_left());
    for _ in 0..PATIENCE {
        let (now, end, left) = (read(), counter(), apic.count_left());
        let passed = from.wrapping_sub(now);
        if passed >= PIT_COUNTS {
            let ns = u64::from(passed) * 1_000_000_000 / PIT_HZ;
            return Some((ns, end - start, u64::from(apic_start - left)));
        }
    }
    None
}

/// Silences the interrupt controllers of an old PC, which would raise what exceptions have for numbers: those
/// that they can't hold back come as 32 to 47, which nobody takes.
fn silence_pic() {
    for (port, first, wiring) in [(0x20, 32, 4), (0xa0, 40, 2)] {
        output(port, 0x11);
        output(port + 1, first);
        output(port + 1, wiring);
        output(port + 1, 1);
        output(port + 1, 0xff);
    }
}

/// Finds out how fast counters count, once.
pub fn start(apic: Apic) -> Result<(), &'static str> {
    silence_pic();
    BASE.store(counter(), Ordering::Relaxed);
    REALTIME.store(calendar(), Ordering::Relaxed);
    let cpuid = CpuId::new();
    let by_deadline = cpuid.get_feature_info().is_some_and(|f| f.has_tsc_deadline());
    BY_DEADLINE.store(by_deadline, Ordering::Relaxed);
    let hz = cpuid.get_tsc_info().and_then(|t| t.tsc_frequency()).filter(|_| by_deadline);
    if let Some(hz) = hz {
        SCALE.store(ratio(1_000_000_000, hz), Ordering::Relaxed);
        INVERSE.store(ratio(hz, 1_000_000_000), Ordering::Relaxed);
        return Ok(());
    }
    let (ns, counts, apic_counts) = measure(apic).ok_or("this machine has no timer that is known")?;
    SCALE.store(ratio(ns, counts), Ordering::Relaxed);
    INVERSE.store(ratio(counts, ns), Ordering::Relaxed);
    APIC_SCALE.store(ratio(apic_counts, ns), Ordering::Relaxed);
    Ok(())
}

/// Nanoseconds since the start.
pub fn now() -> u64 {
    scaled(counter().wrapping_sub(BASE.load(Ordering::Relaxed)), SCALE.load(Ordering::Relaxed))
}

/// What a cell reads the clock by: base, scale, realtime.
pub fn parameters() -> [u64; 3] {
    [&BASE, &SCALE, &REALTIME].map(|v| v.load(Ordering::Relaxed))
}

/// Has this core's timer interrupt it at `deadline`, or a while before; `u64::MAX`: not at all.
pub fn arm(apic: Apic, deadline: u64) {
    /// Who wants one later gets one then, and asks again, ns.
    const LONGEST: u64 = 3_600_000_000_000;
    let deadline = if deadline == u64::MAX { deadline } else { deadline.min(now() + LONGEST) };
    if BY_DEADLINE.load(Ordering::Relaxed) {
        let at = match deadline {
            u64::MAX => 0,
            ns => (BASE.load(Ordering::Relaxed) + scaled(ns, INVERSE.load(Ordering::Relaxed))).max(1),
        };
        // SAFETY: the timer is in this mode.
        return unsafe { Msr::new(TSC_DEADLINE).write(at) };
    }
    let counts = match deadline {
        u64::MAX => 0,
        ns => {
            let counts = scaled(ns.saturating_sub(now()), APIC_SCALE.load(Ordering::Relaxed));
            counts.clamp(1, u64::from(u32::MAX)) as u32
        }
    };
    apic.count_down(counts);
}

/// Is the timer of the kind that takes deadlines?
pub fn by_deadline() -> bool {
    BY_DEADLINE.load(Ordering::Relaxed)
}

/// Nanoseconds from 1970 to now by the PC's clock (MC146818), to the second; 0: there is none.
fn calendar() -> u64 {
    let register = |n: u8| {
        output(0x70, n);
        input(0x71)
    };
    let read = || [0u8, 2, 4, 7, 8, 9].map(register);
    // While it changes (bit 7 of register A) and until two readings agree.
    let mut found = None;
    for _ in 0..10_000 {
        if register(0x0a) & 0x80 == 0 {
            let values = read();
            if register(0x0a) & 0x80 == 0 && values == read() {
                found = Some(values);
                break;
            }
        }
    }
    let Some(values) = found.filter(|v| v.iter().any(|b| *b != 0xff)) else { return 0 };
    let mode = register(0x0b);
    let number = |b: u8| u64::from(if mode & 4 != 0 { b } else { (b >> 4) * 10 + (b & 15) });
    let [second, minute, hour, day, month, year] = values;
    let mut hours = number(hour & 0x7f);
    if mode & 2 == 0 {
        hours = hours % 12 + if hour & 0x80 != 0 { 12 } else { 0 };
    }
    let (year, month) = (2000 + number(year), number(month).clamp(1, 12));
    // Days of the civil calendar since 1970: years begin in March.
    let y = if month <= 2 { year - 1 } else { year };
    let day_of_year =
        (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + number(day).max(1) - 1;
    let days = y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719_468;
    (((days * 24 + hours) * 60 + number(minute)) * 60 + number(second)) * 1_000_000_000
}
