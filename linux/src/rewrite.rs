//! Rewriting of system-call sites: the plan that the platform's side makes of
//! an executable, applied when it is mapped.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;

use atoll_abi::core_local::CoreLocal;
use atoll_abi::service::{Op, Request};
use atoll_fs::host::HostFile;
use atoll_mem::io::extent_mut;
use atoll_mem::vm::{Moved, RewriteSite, Rewriting};
use atoll_rewrite::{RECORD, Record};
use atoll_task::Call;
use zerocopy::{FromZeros, IntoBytes};

/// Records that are asked for at once.
const BATCH: usize = 1024;
/// Sites of one file that are believed at most.
const SITES_MAX: usize = 1 << 20;

/// Trampolines begin at multiples of this many bytes.
const ALIGN: u64 = 16;

/// The sites of a file, by offset.
struct Plan {
    records: Box<[Record]>,
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
        // They come from outside: unsound ones and ones out of order are left out.
        for r in &batch[..n.min(BATCH)] {
            let end = records.last().map_or(0, |l: &Record| l.offset + u64::from(l.extent()));
            if r.is_sound() && r.offset >= end {
                records.push(*r);
            }
        }
        seen += n;
        if n < BATCH || seen >= total {
            break;
        }
    }
    (!records.is_empty()).then(|| Arc::new(Plan { records: records.into() }) as Arc<dyn Rewriting>)
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
            .map(|s| (self.records[s.index as usize].trampoline_len() as u64).next_multiple_of(ALIGN))
            .sum()
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
        let len = r.write_trampoline(trampoline, at, to, offset_of!(CoreLocal, entry) as u32)?;
        let mut moved = Moved { len: len as u32, ..Moved::default() };
        for (window, place) in r.places() {
            if !moved.push(window, place) {
                return None;
            }
        }
        r.write_jump(text, at, to)?;
        Some(moved)
    }
}
