//! What `/proc` tells of a program's memory page by page, or by what is mapped: pagemap, numa_maps and map_files (`proc(5)`).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Write;

use atoll_abi::layout::{PAGE, USER_MAX};
use atoll_abi::{Errno, Result};
use atoll_fs::{Attr, File, InodeRef, Sink};
use atoll_mem::vm::{AddressSpace, Kind, Page};
use zerocopy::IntoBytes;

use crate::proc::{NamedArea, named_areas};
use crate::process::{Task, Visit};

/// An open /proc/PID/pagemap: of each page of the program that ran there when it was opened, a word. Where it lies, Linux tells only
/// those who may administer the machine (`CAP_SYS_ADMIN`), which nobody in a cell may.
pub struct PageMap {
    /// The file in `/proc`.
    pub node: InodeRef,
    /// Whose memory it is.
    pub visit: Visit,
}

/// Bits of such a word.
const PRESENT: u64 = 1 << 63;
const OF_OBJECT: u64 = 1 << 61;
const OWN: u64 = 1 << 56;

/// Bytes of a word.
const WORD: u64 = 8;
/// Pages of which it is told at a time.
const PAGES: usize = 512;

impl File for PageMap {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, sink: &mut Sink, at: Option<u64>, _nonblock: bool) -> Result<usize> {
        let at = at.unwrap_or(0);
        // Of a program that has ended there is nothing.
        let Some(space) = self.visit.space() else { return Ok(0) };
        if !at.is_multiple_of(WORD) || !(sink.left() as u64).is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        let mut page = at / WORD;
        let mut done = 0;
        while page < USER_MAX / PAGE && sink.left() > 0 {
            let n = PAGES.min(sink.left() / WORD as usize).min((USER_MAX / PAGE - page) as usize);
            let (mut pages, mut words) = ([Page::default(); PAGES], [0u64; PAGES]);
            space.memory.pages_from(page * PAGE, &mut pages[..n]);
            for (word, page) in words.iter_mut().zip(&pages[..n]) {
                let bits = [(page.present, PRESENT), (page.of_object, OF_OBJECT), (page.own, OWN)];
                *word = bits.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum();
            }
            let bytes = words[..n].as_bytes();
            // A word is put as a whole.
            match sink.ensure(bytes.len()).and_then(|()| sink.put(bytes)) {
                Ok(put) => {
                    done += put;
                    // A page went meanwhile.
                    if put < bytes.len() {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            page += n as u64;
            atoll_sync::breathe();
        }
        Ok(done)
    }

    fn attr(&self) -> Result<Attr> {
        self.node.attr()
    }
}

/// An area's line in numa_maps. There is one node, and nothing else to choose.
pub fn put_numa_line(out: &mut Vec<u8>, memory: &AddressSpace, row: &NamedArea) {
    let NamedArea { start, area, name, .. } = row;
    out.extend_from_slice(format!("{start:08x} default").as_bytes());
    match &name[..] {
        b"[heap]" => out.extend_from_slice(b" heap"),
        b"[stack]" => out.extend_from_slice(b" stack"),
        name if of_file(row) => {
            out.extend_from_slice(b" file=");
            for byte in name {
                match byte {
                    b'\n' | b'\t' | b'=' | b' ' => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
                    other => out.push(*other),
                }
            }
        }
        _ => {}
    }
    let resident = memory.residence(*start, area.end);
    let in_pages = |bytes: u64| bytes / PAGE;
    let (all, anonymous) = (in_pages(resident.sum()), in_pages(resident.anonymous.sum()));
    let dirty = anonymous + in_pages(resident.shared_memory.sum());
    let mapped = if all != anonymous && all != dirty { all } else { 0 };
    let mut text = String::new();
    for (what, pages) in [("anon", anonymous), ("dirty", dirty), ("mapped", mapped), ("N0", all)] {
        if pages != 0 {
            // A string takes whatever is written to it.
            let _ = write!(text, " {what}={pages}");
        }
    }
    text.push_str(if all != 0 { " kernelpagesize_kB=4\n" } else { "\n" });
    out.extend_from_slice(text.as_bytes());
}

/// Does it show a file, or what Linux has a file for?
fn of_file(row: &NamedArea) -> bool {
    !matches!(row.area.kind, Kind::Anonymous) && !row.name.is_empty() && row.name[0] != b'['
}

/// What of a file is mapped, of at most `most` mappings from an address on: an entry of map_files each.
pub fn mapped_files(t: &Task, from: u64, most: usize) -> Vec<NamedArea> {
    let (mut found, mut next) = (Vec::new(), Some(from));
    while let Some(from) = next.filter(|_| found.len() < most) {
        let (rows, behind) = named_areas(t, from, most);
        found.extend(rows.into_iter().filter(of_file));
        next = behind;
    }
    found.truncate(most);
    found
}

/// The addresses that such an entry's name says.
pub fn addresses(name: &str) -> Option<(u64, u64)> {
    let (start, end) = name.split_once('-')?;
    // There is one way to write each.
    let number = |text: &str| u64::from_str_radix(text, 16).ok().filter(|n| format!("{n:x}") == text);
    Some((number(start)?, number(end)?))
}

/// The path of the file that is mapped from the one address to the other.
pub fn mapped_path(t: &Arc<Task>, start: u64, end: u64) -> Result<Vec<u8>> {
    let (rows, _) = named_areas(t, start, 1);
    let row = rows.into_iter().find(|row| row.start == start && row.area.end == end && of_file(row));
    row.map(|row| row.name).ok_or(Errno::ENOENT)
}
