//! Rewriting of system-call sites: the plan that the platform's side makes of
//! an executable, or that came with it in an archive, applied when it is mapped.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;

use atoll_abi::core_local::CoreLocal;
use atoll_abi::service::{Op, Request};
use atoll_fs::host::HostFile;
use atoll_mem::io::extent_mut;
use atoll_mem::texts::Texts;
use atoll_mem::vm::{Moved, RewriteSite, Rewriting};
use atoll_rewrite::{Call as InPlace, RECORD, Record, VERSION};
use atoll_task::Call;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Records that are asked for at once.
const BATCH: usize = 1024;
/// Sites of one file that are believed at most.
const SITES_MAX: usize = 1 << 20;

/// Trampolines begin at multiples of this many bytes.
const ALIGN: u64 = 16;

/// The sites of a file, by offset.
struct Plan {
    records: Box<[Record]>,
    texts: Texts,
}

/// The plan for an executable.
pub fn planner(file: &HostFile) -> Option<Arc<dyn Rewriting>> {
    let handle = file.handle().ok()?;
    let mut records: Vec<Record> = Vec::new();
    // Counts those that are left out, too.
    let mut seen = 0;
    loop {
        let mut batch: Vec<Record> = Vec::new();
        batch.resize_with(BATCH, Record::new_zeroed);
        let mut r = Request::new(Op::Plan);
        r.arg[0] = handle;
        r.arg[1] = seen as u64;
        r.b = extent_mut(batch.as_mut_slice().as_mut_bytes());
        let call = Call::send(r).ok()?;
        let n = call.wait().ok()? as usize / RECORD;
        let total = (call.extra() as usize).min(SITES_MAX);
        batch[..n.min(BATCH)].iter().for_each(|r| add(&mut records, *r, u64::MAX));
        seen += n;
        if n < BATCH || seen >= total {
            break;
        }
    }
    plan(records)
}

/// The plan for an executable of `size` bytes from what an archive has for it: version, records.
pub fn packed(bytes: &'static [u8], size: u64) -> Option<Arc<dyn Rewriting>> {
    let (version, bytes) = bytes.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let mut records = Vec::new();
    for r in bytes.chunks_exact(RECORD).take(SITES_MAX) {
        add(&mut records, Record::read_from_bytes(r).ok()?, size);
    }
    plan(records)
}

/// Adds a record of a file of at most `size` bytes. They come from outside: unsound ones and ones out of order are
/// left out.
fn add(records: &mut Vec<Record>, r: Record, size: u64) {
    // What is there ends within the file.
    let start = records.last().map_or(0, |l| l.offset + u64::from(l.extent()));
    let end = r.offset.checked_add(u64::from(r.extent()));
    if r.is_sound() && r.offset >= start && end.is_some_and(|end| end <= size) {
        records.push(r);
    }
}

fn plan(records: Vec<Record>) -> Option<Arc<dyn Rewriting>> {
    (!records.is_empty())
        .then(|| Arc::new(Plan { records: records.into(), texts: Texts::default() }) as Arc<dyn Rewriting>)
}

/// What stands in a site's trampoline for the call.
fn call_of(r: &Record) -> InPlace {
    let in_place = r
        .number()
        .and_then(crate::process::word_of)
        .and_then(|through| InPlace::read(offset_of!(CoreLocal, task) as u32, through));
    in_place.unwrap_or_else(|| InPlace::enter(offset_of!(CoreLocal, entry) as u32))
}

impl Rewriting for Plan {
    fn sites(&self, start: u64, end: u64) -> Vec<RewriteSite> {
        let from = self.records.partition_point(|r| r.offset < start);
        self.records[from..]
            .iter()
            .zip(from..)
            .take_while(|(r, _)| r.offset + u64::from(r.extent()) <= end)
            .map(|(r, n)| RewriteSite { offset: r.offset, len: r.extent(), index: n as u32 })
            .collect()
    }

    fn room(&self, sites: &[RewriteSite]) -> u64 {
        sites
            .iter()
            .map(|s| &self.records[s.index as usize])
            .map(|r| (r.trampoline_len(&call_of(r)) as u64).next_multiple_of(ALIGN))
            .sum()
    }

    fn texts(&self) -> &Texts {
        &self.texts
    }

    fn write(
        &self,
        site: &RewriteSite,
        text: &mut [u8],
        at: u64,
        trampoline: &mut [u8],
        to: u64,
    ) -> Option<Moved> {
        let r = self.records.get(site.index as usize)?;
        let call = call_of(r);
        let len = r.write_trampoline(trampoline, at, to, &call)?;
        let mut moved = Moved { len: len as u32, ..Moved::default() };
        for (window, place) in r.places(&call) {
            if !moved.push(window, place) {
                return None;
            }
        }
        r.write_jump(text, at, to)?;
        Some(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(offset: u64, len: u8, site: u8) -> Record {
        let mut r = Record::new_zeroed();
        (r.offset, r.len, r.site) = (offset, len, site);
        r
    }

    fn packed_of(version: u32, records: &[Record]) -> Option<Vec<u64>> {
        let bytes = [&version.to_le_bytes()[..], records.as_bytes(), b"rest"].concat();
        let plan = packed(bytes.leak(), 1000)?;
        Some(plan.sites(0, u64::MAX).iter().map(|s| s.offset).collect())
    }

    /// An archive comes from outside.
    #[test]
    fn records_are_checked() {
        let good = [record(0, 5, 5), record(7, 5, 0), record(995, 5, 1)];
        assert_eq!(packed_of(VERSION, &good), Some([0, 7, 995].into()));
        assert_eq!(packed_of(VERSION + 1, &good), None);
        assert_eq!(packed_of(VERSION, &[]), None);
        assert!(packed(b"abc", 1000).is_none());
        let bad = [
            record(0, 4, 0),
            record(20, 5, 63),
            // Behind the file's end, in part or wholly.
            record(994, 5, 5),
            record(1000, 5, 0),
            record(u64::MAX - 3, 5, 0),
            record(500, 5, 0),
            // Over the one before.
            record(504, 5, 0),
            record(100, 5, 0),
        ];
        assert_eq!(packed_of(VERSION, &bad), Some([500].into()));
        // Nothing that a record says leads out of the window and the trampoline.
        let mut wild = record(0, 5, 0);
        (wild.before, wild.after, wild.boundary_count) = (40, 0, 8);
        wild.boundaries = [[255; 2]; 8];
        let bytes = [&VERSION.to_le_bytes()[..], wild.as_bytes()].concat();
        let plan = packed(bytes.leak(), 1000).unwrap();
        let site = plan.sites(0, 1000)[0];
        let (mut text, mut out) = ([0; 5], [0; 256]);
        assert!(plan.write(&site, &mut text, 0x10000, &mut out, 0x20000).is_none());
        assert_eq!(text, [0; 5]);
    }
}
