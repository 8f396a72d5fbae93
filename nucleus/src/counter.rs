//! A counter of the processor, where there is one, for cells whose books count an event beside time.
#![allow(unsafe_code, reason = "programs the processor's counters")]

use atoll_formats::counter::{Counters, Program, program};
use raw_cpuid::{CpuId, cpuid};
use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;

/// Leaf of CPUID that says which of Intel's counters there are.
const ARCHITECTURAL: u32 = 0xa;
/// Leaf that says the highest of the extended ones, and the one that says whether AMD's have PerfMonV2.
const EXTENDED: u32 = 0x8000_0000;
const MONITORING: u32 = 0x8000_0022;

/// How this machine counts an event. None: it can't.
pub fn find(name: &str) -> Option<Program> {
    let id = CpuId::new();
    let vendor = id.get_vendor_info()?;
    let counters = match vendor.as_str() {
        "GenuineIntel" if id.get_performance_monitoring_info().is_some() => {
            let leaf = cpuid!(ARCHITECTURAL);
            Counters::Intel(leaf.eax, leaf.ebx)
        }
        "AuthenticAMD" | "HygonGenuine"
            if id
                .get_extended_processor_and_feature_identifiers()
                .is_some_and(|f| f.has_perf_cntr_extensions()) =>
        {
            let highest = cpuid!(EXTENDED).eax;
            let v2 = highest >= MONITORING && cpuid!(MONITORING).eax & 1 != 0;
            Counters::Amd(u32::from(id.get_feature_info()?.family_id()), v2)
        }
        _ => return None,
    };
    program(counters, name)
}

/// This core's first counter counts that from now on, and ring 3 may read it.
pub fn start(program: &Program) {
    let Program { select, counter, global, .. } = *program;
    // SAFETY: registers that the processor says that it has; they count, and interrupt nobody.
    unsafe {
        Msr::new(select.0).write(0);
        Msr::new(counter).write(0);
        Msr::new(select.0).write(select.1);
        if let Some((register, bit)) = global {
            let mut register = Msr::new(register);
            let on = register.read();
            register.write(on | bit);
        }
        Cr4::update(|r| r.insert(Cr4Flags::PERFORMANCE_MONITOR_COUNTER));
    }
}
