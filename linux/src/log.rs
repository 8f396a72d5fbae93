//! Lines for the operator, not too many of the same.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use atoll_abi::platform;
use atoll_sync::Mutex;

/// Lines of one kind that are written before the rest is only counted.
const BURST: u32 = 1;
/// Kinds that are told apart.
const KINDS: usize = 256;

static SEEN: Mutex<Vec<(String, u32)>> = Mutex::new(Vec::new());

/// Writes a line, once for each `kind`.
pub fn once(kind: &str, line: fmt::Arguments) {
    {
        let mut seen = SEEN.lock();
        if let Some((_, n)) = seen.iter_mut().find(|(k, _)| k == kind) {
            *n += 1;
            if *n > BURST {
                return;
            }
        } else if seen.len() < KINDS {
            seen.push((String::from(kind), 1));
        } else {
            return;
        }
    }
    platform().log(&alloc::format!("{line}"));
}

/// Writes a line.
pub fn line(line: fmt::Arguments) {
    platform().log(&alloc::format!("{line}"));
}
