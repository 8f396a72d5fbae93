//! Names for the addresses in a report of the runtime's crash, out of what its file says to debuggers.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use addr2line::{Context, gimli};
use atoll_abi::layout::{IMAGE_MAX, RUNTIME_BASE};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectKind, ObjectSection};

/// Addresses of a line that are looked up.
const MOST: usize = 16;

/// What a runtime's file says of its code.
pub struct Symbols {
    runtime: File,
    /// Lines that are still looked up.
    left: Cell<usize>,
}

/// A place in the runtime's image.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Place {
    /// Bytes from its start.
    offset: u64,
    /// It lies behind a call: what is asked for is the call.
    returns: bool,
}

/// The places in a line of a report, the runtime's own (`broken` in both platforms) or the nucleus's (`report`).
fn places(line: &str) -> Vec<Place> {
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let behind = |mark: &str| {
        let (_, text) = line.split_once(mark)?;
        number(text.split([',', ')']).next()?)
    };
    let fault = if line.starts_with("the runtime got ") {
        behind("(image + ")
    } else if line.starts_with("nucleus: cell ") && line.contains(": exception ") {
        behind(" at ").and_then(|address| address.checked_sub(RUNTIME_BASE))
    } else {
        let words = line.strip_prefix("nucleus: stack:").unwrap_or(line).trim();
        let all: Option<Vec<u64>> = words.split(' ').map(|w| number(w.strip_prefix('+')?)).collect();
        let all = all.unwrap_or_default().into_iter().filter(|offset| (1..IMAGE_MAX).contains(offset));
        return all.map(|offset| Place { offset, returns: true }).collect();
    };
    let fault = fault.filter(|offset| *offset < IMAGE_MAX);
    fault.map(|offset| Place { offset, returns: false }).into_iter().collect()
}

impl Symbols {
    /// Of this file, which is read when there is something to look up. That is done for so many lines: what cells say
    /// can look like a report, again and again.
    pub fn new(runtime: File, lines: usize) -> Symbols {
        Symbols { runtime, left: Cell::new(lines) }
    }

    /// If this is a line of a report: a line for each address in it that has a name.
    pub fn names(&self, line: &str) -> Vec<String> {
        let mut places = places(line);
        places.truncate(MOST);
        if places.is_empty() || self.left.get() == 0 {
            return Vec::new();
        }
        self.left.set(self.left.get() - 1);
        let mut bytes = Vec::new();
        let mut file = &self.runtime;
        if file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).is_err() {
            return Vec::new();
        }
        look_up(&bytes, &places).unwrap_or_default()
    }
}

/// None: this is no program, or damaged.
fn look_up(bytes: &[u8], places: &[Place]) -> Option<Vec<String>> {
    let elf = ElfFile64::<LittleEndian>::parse(bytes).ok()?;
    // One that can't be moved has its addresses as they are in a cell.
    let base = if elf.kind() == ObjectKind::Executable { RUNTIME_BASE } else { 0 };
    let section = |id: gimli::SectionId| -> gimli::Result<_> {
        let data = elf.section_by_name(id.name()).and_then(|s| s.data().ok()).unwrap_or_default();
        Ok(gimli::EndianSlice::new(data, gimli::LittleEndian))
    };
    let lines = gimli::Dwarf::load(section).and_then(Context::from_dwarf);
    let symbols = elf.symbol_map();
    let mut names = Vec::new();
    for place in places {
        let at = base + place.offset - u64::from(place.returns);
        let symbol = symbols.before(at).map(|s| addr2line::demangle_auto(s.name().into(), None).into_owned());
        let mut frames = lines.as_ref().map_or(Vec::new(), |lines| frames(lines, at));
        if frames.is_empty() && symbol.is_some() {
            frames.push(Frame::default());
        }
        let last = frames.len().saturating_sub(1);
        let mut offset = format!("+{:#x}", place.offset);
        for (n, Frame { function, line }) in frames.into_iter().enumerate() {
            // What is inlined of the standard library says little, and is much.
            if n < last && line.as_ref().is_some_and(|l| l.starts_with("/rustc/")) {
                continue;
            }
            // Lines know the function's own name only.
            let name = symbol.clone().filter(|_| n == last).or(function).unwrap_or("?".into());
            let line = line.map(|l| format!(" at {l}")).unwrap_or_default();
            names.push(format!("    {:>12} {name}{line}", std::mem::take(&mut offset)));
        }
    }
    Some(names)
}

/// A function that the code at an address is of.
#[derive(Default)]
struct Frame {
    function: Option<String>,
    /// Its file, and the line's number there.
    line: Option<String>,
}

/// The innermost first, then what it is inlined into.
fn frames<R: gimli::Reader>(context: &Context<R>, at: u64) -> Vec<Frame> {
    let mut found = Vec::new();
    let Ok(mut frames) = context.find_frames(at).skip_all_loads() else { return found };
    while let Ok(Some(frame)) = frames.next() {
        found.push(Frame {
            function: frame.function.as_ref().and_then(|f| Some(f.demangle().ok()?.into_owned())),
            line: frame.location.and_then(|l| Some(format!("{}:{}", l.file?, l.line?))),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(line: &str) -> Vec<(u64, bool)> {
        places(line).iter().map(|p| (p.offset, p.returns)).collect()
    }

    #[test]
    fn finds_addresses_in_reports_only() {
        let line = "the runtime got exception 14 (error 0x4) at 0x40000011fa40 (image + 0x11fa40), address 0x18, sp 0x410";
        assert_eq!(all(line), [(0x11fa40, false)]);
        assert_eq!(all(" +0x118d1c +0x1197b8"), [(0x118d1c, true), (0x1197b8, true)]);
        let line = "nucleus: cell a, core 0: exception 14 error 0x6 at 0x400000001fe0, address 0x41fff";
        assert_eq!(all(line), [(0x1fe0, false)]);
        assert_eq!(all("nucleus: stack: +0x10 +0x20"), [(0x10, true), (0x20, true)]);
        for line in [
            "",
            "nucleus: stack:",
            "sum: +0x10",
            "+0x10 and more",
            "+0x0 +0xffffffffffffffff",
            "nucleus: cell a, core 0: exception 14 error 0x6 at 0x18, address 0x18",
            "the runtime got host signal 11 (code 1) at 0x18 (image + 0xffffc00000000018), address 0x18, sp 0x1",
        ] {
            assert_eq!(all(line), [], "{line}");
        }
    }

    /// This program is one with symbols and lines.
    #[test]
    fn names_functions_and_lines() {
        let me = std::fs::read("/proc/self/exe").unwrap();
        let elf = ElfFile64::<LittleEndian>::parse(&*me).unwrap();
        let symbol = elf
            .symbol_map()
            .symbols()
            .iter()
            .find(|s| s.name().contains("names_functions_and_lines"))
            .copied();
        let offset = symbol.unwrap().address() + 8;
        let names = look_up(&me, &[Place { offset, returns: false }]).unwrap();
        // What is inlined there comes first.
        let (name, line) = names.last().unwrap().split_once(" at ").unwrap();
        assert!(name.contains("symbols::tests::names_functions_and_lines"), "{names:?}");
        assert!(line.contains("symbols.rs:"), "{names:?}");
        assert!(look_up(&me[..me.len() / 2], &[Place { offset, returns: false }]).is_none());
        assert!(look_up(b"#!/bin/sh", &[Place { offset, returns: false }]).is_none());
    }
}
