//! Counters of the processor, as CPUID says that it has them: Intel's architectural ones (SDM volume 3, chapter "Performance Monitoring"),
//! and AMD's with the core extension (APM volume 2, section 13.2), which hypervisors show with the same leaves if they have any.

/// What CPUID says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counters {
    /// Leaf 0xa: EAX and EBX.
    Intel(u32, u32),
    /// Leaf 0x80000001 has PerfCtrExtCore; the processor's family, and whether leaf 0x80000022 says that it has PerfMonV2.
    Amd(u32, bool),
}

/// How the first counter is made to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Program {
    /// The register that selects the event, and what is written there.
    pub select: (u32, u64),
    /// The register that holds what is counted: it begins at 0.
    pub counter: u32,
    /// The register that has counters run, and the bit that is set there, if there is one.
    pub global: Option<(u32, u64)>,
    /// The bits that the counter has.
    pub mask: u64,
}

/// Counts in ring 3 and in ring 0; on.
const USER: u64 = 1 << 16;
const KERNEL: u64 = 1 << 17;
const ENABLE: u64 = 1 << 22;

/// Intel's architectural events: name, bit of EBX that says that it isn't there, event, unit mask.
const INTEL: [(&str, u32, u64, u64); 6] = [
    ("cycles", 0, 0x3c, 0x00),
    ("instructions", 1, 0xc0, 0x00),
    ("cache-references", 3, 0x2e, 0x4f),
    ("cache-misses", 4, 0x2e, 0x41),
    ("branches", 5, 0xc4, 0x00),
    ("branch-misses", 6, 0xc5, 0x00),
];
/// IA32_PERFEVTSEL0, IA32_PMC0, IA32_PERF_GLOBAL_CTRL.
const INTEL_REGISTERS: [u32; 3] = [0x186, 0xc1, 0x38f];

/// AMD's, from family 17h on, which Linux's driver takes for these names: event, unit mask.
const AMD: [(&str, u64, u64); 6] = [
    ("cycles", 0x76, 0x00),
    ("instructions", 0xc0, 0x00),
    ("cache-references", 0x60, 0xff),
    ("cache-misses", 0x64, 0x09),
    ("branches", 0xc2, 0x00),
    ("branch-misses", 0xc3, 0x00),
];
const AMD_FAMILY: u32 = 0x17;
/// PERF_CTL0, PERF_CTR0, with PerfMonV2 PerfCntrGlobalCtl, and the counters' width.
const AMD_REGISTERS: [u32; 3] = [0xc001_0200, 0xc001_0201, 0xc000_0301];
const AMD_WIDTH: u32 = 48;

fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// How the first counter counts an event, by its name of `perf-list(1)`. None: it can't.
pub fn program(counters: Counters, name: &str) -> Option<Program> {
    let selects = |event: u64, unit: u64| event | unit << 8 | USER | KERNEL | ENABLE;
    match counters {
        Counters::Intel(eax, ebx) => {
            let byte = |n: u32| eax >> (8 * n) & 0xff;
            let [version, count, width, events] = [0, 1, 2, 3].map(byte);
            let (_, absent, event, unit) = INTEL.into_iter().find(|e| e.0 == name)?;
            if version == 0 || count == 0 || width == 0 || absent >= events || ebx & 1 << absent != 0 {
                return None;
            }
            let [select, counter, global] = INTEL_REGISTERS;
            Some(Program {
                select: (select, selects(event, unit)),
                counter,
                global: (version > 1).then_some((global, 1)),
                mask: mask(width),
            })
        }
        Counters::Amd(family, v2) => {
            let (_, event, unit) = AMD.into_iter().find(|e| e.0 == name && family >= AMD_FAMILY)?;
            let [select, counter, global] = AMD_REGISTERS;
            Some(Program {
                select: (select, selects(event, unit)),
                counter,
                global: v2.then_some((global, 1)),
                mask: mask(AMD_WIDTH),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn intel() {
        // Version 5, 8 counters of 48 bits, 8 events that are all there, as a Sapphire Rapids says.
        let all = Counters::Intel(8 << 24 | 48 << 16 | 8 << 8 | 5, 0);
        let misses = program(all, "cache-misses").unwrap();
        assert_eq!(misses.select, (0x186, 0x43_412e));
        assert_eq!((misses.counter, misses.global, misses.mask), (0xc1, Some((0x38f, 1)), 0xffff_ffff_ffff));
        // The first version has no register for all of them.
        assert_eq!(
            program(Counters::Intel(7 << 24 | 40 << 16 | 2 << 8 | 1, 0), "cycles").unwrap().global,
            None
        );
        // No counters, as in emulation; an event that isn't there, or that leaf says nothing of.
        assert_eq!(program(Counters::Intel(0, 0), "cycles"), None);
        assert_eq!(program(Counters::Intel(8 << 24 | 48 << 16 | 8 << 8 | 5, 1 << 4), "cache-misses"), None);
        assert_eq!(program(Counters::Intel(4 << 24 | 48 << 16 | 8 << 8 | 5, 0), "cache-misses"), None);
        assert_eq!(program(all, "page-faults"), None);
    }

    #[test]
    fn amd() {
        let misses = program(Counters::Amd(0x19, false), "cache-misses").unwrap();
        assert_eq!(misses.global, None);
        let newer = program(Counters::Amd(0x19, true), "cache-misses").unwrap();
        assert_eq!((newer.select, newer.global), (misses.select, Some((0xc000_0301, 1))));
        assert_eq!((misses.select, misses.counter), ((0xc001_0200, 0x43_0964), 0xc001_0201));
        assert_eq!(program(Counters::Amd(0x15, false), "cache-misses"), None);
        assert_eq!(program(Counters::Amd(0x19, true), "task-clock"), None);
    }

    proptest! {
        #[test]
        fn takes_anything(eax: u32, ebx: u32, family: u32, v2: bool, name in "[a-zA-Z-]{0,20}") {
            let _ = program(Counters::Intel(eax, ebx), &name);
            let _ = program(Counters::Amd(family, v2), &name);
            let cycles = program(Counters::Intel(eax, ebx), "cycles");
            prop_assert!(cycles.is_none_or(|p| p.mask != 0));
        }
    }
}
