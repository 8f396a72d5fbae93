//! Time: the processors' time-stamp counter, whose frequency KVM says, or CPUID, or else is measured once; and a timer
//! a core.
#![allow(unsafe_code, reason = "reads and writes ports and registers, KVM's and the timer's")]

use core::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atoll_formats::clock::{self as formats, Leaves, Rate, Time, scaled};
use raw_cpuid::{CpuId, Hypervisor};
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use crate::apic::Apic;
use crate::entry::VIRTUAL;
use crate::say;

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
/// The inverse of that.
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

/// What KVM writes: how the counter counts, and the time of day. Neither crosses a page's end.
#[repr(C, align(64))]
struct Shared([AtomicU32; formats::TIME / 4], [AtomicU32; formats::TIME / 4]);
static SHARED: Shared = Shared(
    [const { AtomicU32::new(0) }; formats::TIME / 4],
    [const { AtomicU32::new(0) }; formats::TIME / 4],
);

/// A copy of what KVM wrote, all of it before or after it wrote again.
fn copy_of(words: &[AtomicU32; formats::TIME / 4]) -> [u8; formats::TIME] {
    let mut bytes = [0; formats::TIME];
    for _ in 0..PATIENCE {
        let version = words[0].load(Ordering::Acquire);
        for (word, to) in words.iter().zip(bytes.chunks_exact_mut(4)) {
            to.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        if version.is_multiple_of(2) && words[0].load(Ordering::Acquire) == version {
            return bytes;
        }
    }
    [0; formats::TIME]
}

/// KVM's features, if this is a machine of KVM's: other hypervisors' leaves may stand before its own.
fn kvm_features() -> Option<u32> {
    let signature = |base: u32| {
        let leaf = __cpuid(base);
        [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).as_flattened() == b"KVMKVMKVM\0\0\0"
    };
    CpuId::new().get_feature_info().filter(|f| f.has_hypervisor())?;
    (0x4000_0000u32..0x4001_0000)
        .step_by(0x100)
        .find(|base| signature(*base))
        .map(|base| __cpuid(base + 1).eax)
}

/// What KVM's clock says, and the nanoseconds from 1970 to that clock's beginning.
fn kvm() -> Option<(Time, Option<u64>)> {
    let features = kvm_features().filter(|f| f & formats::CLOCK != 0)?;
    let place = |words: &[AtomicU32; formats::TIME / 4]| words.as_ptr() as u64 - VIRTUAL;
    // SAFETY: KVM has these registers, and writes to the static that is named, which nothing else uses: it is
    // made of atomics. It has written when the first instruction is over, and stops with the second.
    unsafe {
        Msr::new(formats::MSR_SYSTEM_TIME).write(place(&SHARED.0) | 1);
        Msr::new(formats::MSR_SYSTEM_TIME).write(0);
        Msr::new(formats::MSR_WALL_CLOCK).write(place(&SHARED.1));
    }
    let Some(time) = formats::time(&copy_of(&SHARED.0)) else {
        say!("clock: KVM offers one, and does not write it");
        return None;
    };
    let stable = time.stable && features & formats::CLOCK_STABLE != 0;
    if !stable {
        say!(
            "clock: KVM calls the time-stamp counter unstable: cores' clocks may differ and time may jump when the machine is moved"
        );
    }
    Some((Time { stable, ..time }, formats::wall_clock(&copy_of(&SHARED.1))))
}

/// What CPUID says of the counter.
fn leaves(cpuid: &CpuId<raw_cpuid::CpuIdReaderNative>) -> Leaves {
    // Other hypervisors have something else there.
    let known = |h: &Hypervisor| matches!(h, Hypervisor::KVM | Hypervisor::VMware);
    let hypervisor = cpuid.get_hypervisor_info().filter(|h| known(&h.identify()));
    Leaves {
        hypervisor_khz: hypervisor.and_then(|h| h.tsc_frequency()).unwrap_or_default(),
        crystal_hz: cpuid.get_tsc_info().and_then(|t| t.tsc_frequency()).unwrap_or_default(),
        base_mhz: cpuid.get_processor_frequency_info().map_or(0, |f| f.processor_base_frequency()),
    }
}

/// Finds out how fast counters count, once.
pub fn start(apic: Apic) -> Result<(), &'static str> {
    silence_pic();
    let cpuid = CpuId::new();
    let by_deadline = cpuid.get_feature_info().is_some_and(|f| f.has_tsc_deadline());
    BY_DEADLINE.store(by_deadline, Ordering::Relaxed);
    let (kvm, leaves) = (kvm(), leaves(&cpuid));
    let base = counter();
    BASE.store(base, Ordering::Relaxed);
    let by_kvm = kvm.filter(|(time, _)| time.stable);
    let realtime = by_kvm.and_then(|(time, wall)| Some(wall?.saturating_add(time.at(base))));
    REALTIME.store(realtime.unwrap_or_else(calendar), Ordering::Relaxed);
    let known = match by_kvm {
        Some((time, _)) => Some((time.hz(), "KVM's clock")),
        None => leaves.exact(),
    };
    // A timer that takes no deadlines must be measured itself.
    let measured = if known.is_some() && by_deadline { None } else { measure(apic) };
    if let Some((ns, _, apic_counts)) = measured {
        APIC_SCALE.store(ratio(apic_counts, ns), Ordering::Relaxed);
    } else if !by_deadline {
        return Err("this machine has no timer that is known");
    }
    let by_timer =
        measured.map(|(ns, counts, _)| (scaled(1_000_000_000, ratio(counts, ns)), "the PC's timer"));
    let roughly = || Some((leaves.rough()?, "the processor's name: it may be a percent off"));
    let (hz, by) = known.or(by_timer).or_else(roughly).ok_or("this machine has no timer that is known")?;
    say!("clock: {}.{:03} MHz by {by}", hz / 1_000_000, hz / 1000 % 1000);
    let rate = Rate::of(hz);
    SCALE.store(rate.scale, Ordering::Relaxed);
    INVERSE.store(rate.inverse, Ordering::Relaxed);
    Ok(())
}

/// How fast the counter counts; before that is known, not at all.
fn rate() -> Rate {
    Rate { scale: SCALE.load(Ordering::Relaxed), inverse: INVERSE.load(Ordering::Relaxed) }
}

/// Counts since the start.
fn counts() -> u64 {
    counter().wrapping_sub(BASE.load(Ordering::Relaxed))
}

/// Nanoseconds since the start; 0 until it is known how fast the counter counts.
pub fn now() -> u64 {
    rate().ns(counts())
}

/// What a cell reads the clock by: base, scale, realtime.
pub fn parameters() -> [u64; 3] {
    [&BASE, &SCALE, &REALTIME].map(|v| v.load(Ordering::Relaxed))
}

/// Has this core's timer interrupt it at `deadline`, or a while before; `u64::MAX`: not at all.
pub fn arm(apic: Apic, deadline: u64) {
    /// Who wants one later gets one then, and asks again, ns.
    const LONGEST: u64 = 3_600_000_000_000;
    let by_deadline = BY_DEADLINE.load(Ordering::Relaxed);
    // SAFETY: the timer is in this mode.
    let set = |at| unsafe { Msr::new(TSC_DEADLINE).write(at) };
    if deadline == u64::MAX {
        return if by_deadline { set(0) } else { apic.count_down(0) };
    }
    let (rate, counts) = (rate(), counts());
    let now = rate.ns(counts);
    let deadline = deadline.min(now + LONGEST);
    if by_deadline {
        return set(BASE.load(Ordering::Relaxed).wrapping_add(rate.when(counts, deadline)).max(1));
    }
    let counts = scaled(deadline.saturating_sub(now), APIC_SCALE.load(Ordering::Relaxed));
    apic.count_down(counts.clamp(1, u64::from(u32::MAX)) as u32);
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
