//! Where the host's vDSO is, and where in it the clock functions are.
#![allow(unsafe_code, reason = "reads this process's own vDSO")]

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};

use crate::{Error, Result};

/// Ranges of the vDSO and its data in this process, in order of address, and
/// the offsets of clock_gettime, gettimeofday and time from the first.
pub fn find() -> Result<([[u64; 2]; 4], [u64; 3])> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| Error::with("/proc/self/maps", e))?;
    let mut ranges = [[0; 2]; 4];
    let mut n = 0;
    let mut code = None;
    for line in maps.lines() {
        let name = line.rsplit(' ').next().unwrap_or("");
        if !matches!(name, "[vvar]" | "[vvar_vclock]" | "[vdso]") {
            continue;
        }
        let range =
            line.split(' ').next().and_then(|r| r.split_once('-')).and_then(|(a, b)| {
                Some((u64::from_str_radix(a, 16).ok()?, u64::from_str_radix(b, 16).ok()?))
            });
        let Some((start, end)) = range else { continue };
        if n == ranges.len() {
            return Err(Error::new("the host's vDSO has more parts than expected"));
        }
        // Its parts keep their distances: the code finds its data by them.
        if n > 0 && ranges[n - 1][0] + ranges[n - 1][1] != start {
            return Err(Error::new("the host's vDSO is not in one piece"));
        }
        if name == "[vdso]" {
            code = Some((start, end));
        }
        ranges[n] = [start, end - start];
        n += 1;
    }
    let (start, end) = code.ok_or_else(|| Error::new("the host has no vDSO"))?;
    // SAFETY: the kernel keeps these pages mapped and readable.
    let image = unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
    let file = ElfFile64::<LittleEndian>::parse(image).map_err(|e| Error::with("the host's vDSO", e))?;
    let mut functions = [0; 3];
    for (name, slot) in
        ["__vdso_clock_gettime", "__vdso_gettimeofday", "__vdso_time"].iter().zip(&mut functions)
    {
        let symbol = file.dynamic_symbols().find(|s| s.name() == Ok(*name));
        let symbol = symbol.ok_or_else(|| Error::new(format!("the host's vDSO has no {name}")))?;
        *slot = start - ranges[0][0] + symbol.address();
    }
    Ok((ranges, functions))
}
