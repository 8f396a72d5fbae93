//! The grid's books as they are sent outside: an image of what a host would see in the cell's memory
//! (`atoll_abi::nucleus::outside::Books`).
//!
//! Other cores go on meanwhile. What changes hands while it is copied is copied again; whoever reads the image believes nothing.
#![allow(unsafe_code, reason = "copies what all cores write to")]

use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::{NUCLEUS, control};
use atoll_abi::core_local::CoreLocal;
use atoll_abi::grid::{
    ACTIVITIES_MAX, Account, BURNT_MAX, GridArea, Held, LEASE_SPARE, LeaseLine, QUOTA_WORDS, Record, Sheet,
    kind,
};
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::nucleus::outside::{Books, Reported, Said};
use zerocopy::IntoBytes;

/// How often is copied what changes meanwhile.
const TRIES: usize = 8;

/// The most bytes of an answer that are sent at once.
const AT_ONCE: u64 = 256 << 10;

/// Puts a copy of what is at `from` into the image, words of which each is as it was at some moment. Value: where.
///
/// # Safety
/// `[from, from + len)` can be read, is aligned to 8 bytes and shared, if at all, as atomics.
unsafe fn put(image: &mut Vec<u8>, from: *const u8, len: usize, align: usize) -> usize {
    image.resize(image.len().next_multiple_of(align), 0);
    let at = image.len();
    image.reserve(len);
    for n in 0..len / 8 {
        // SAFETY: the caller's promise.
        let word = unsafe { &*from.cast::<AtomicU64>().add(n) }.load(Ordering::Relaxed);
        image.extend_from_slice(&word.to_ne_bytes());
    }
    at
}

fn set(image: &mut [u8], at: usize, word: u64) {
    image[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

/// What cores are at that is in no sheet yet.
fn open(cores: usize) -> Vec<(u64, u32)> {
    let word = |l: &CoreLocal| (l.unsettled.load(Ordering::Acquire), l.unsettled_for.load(Ordering::Acquire));
    control().cores[..cores].iter().map(|c| word(&c.local)).collect()
}

/// What has come of offers and known work, of the latter with its results.
pub(crate) fn said(results: bool) -> Vec<u8> {
    let grid = &control().grid;
    // These first: what they tell of is there by then.
    let (answered, burns_over) =
        (grid.answered.load(Ordering::Acquire), grid.burns_over.load(Ordering::Acquire));
    let burnt_len = grid.burnt_len.load(Ordering::Relaxed).min(BURNT_MAX as u32);
    let said = Said {
        answered,
        taken: grid.taken.load(Ordering::Relaxed),
        burns_over,
        burnt_len,
        reason: core::array::from_fn(|n| grid.reason[n].load(Ordering::Relaxed)),
    };
    let mut all = said.as_bytes().to_vec();
    if results {
        all.extend(grid.burnt[..burnt_len as usize].iter().map(|byte| byte.load(Ordering::Relaxed)));
    }
    all
}

/// What has come of a question, and its answer from `from` on, as far as it may be sent at once.
pub(crate) fn reported(number: u32, from: u64) -> Vec<u8> {
    let area = &control().report;
    let over = area.over.load(Ordering::Acquire);
    let (offset, len) = (area.offset.load(Ordering::Relaxed), area.len.load(Ordering::Relaxed));
    let online = control().life.online.load(Ordering::Relaxed);
    let mut all = Reported { over, online, len, from }.as_bytes().to_vec();
    let last = area.asked.load(Ordering::Relaxed);
    if over == number && last == number && from < len {
        let some = (len - from).min(AT_ONCE);
        // SAFETY: the runtime keeps the answer to the last question until the next one, which only who calls this passes on.
        all.extend_from_slice(unsafe {
            core::slice::from_raw_parts((DIRECT_MAP + offset + from) as *const u8, some as usize)
        });
    }
    all
}

/// What cores have leased of an activity's quota and do not use. In an image nothing is leased, as lines for each core would be most of it.
fn spare(cores: usize, activity: usize, quota: usize) -> u32 {
    let at = match control().grid.leases.load(Ordering::Acquire) {
        0 => return 0,
        at => (DIRECT_MAP + at) as *const LeaseLine,
    };
    let of_core = |core: usize| {
        // SAFETY: the runtime has put lines for each core there, for good.
        let line = unsafe { &*at.add(core * ACTIVITIES_MAX + activity) };
        (line.0[quota].load(Ordering::Acquire) & LEASE_SPARE) as u32
    };
    (0..cores).map(of_core).sum()
}

/// The books as they are now.
pub(crate) fn image() -> Vec<u8> {
    let cores = control().descriptor.cores.load(Ordering::Relaxed) as usize;
    for n in 1.. {
        let before = open(cores);
        let image = copy(cores, &before);
        fence(Ordering::Acquire);
        // A core that has switched meanwhile may have a slice in its sheets twice, or not at all.
        if n == TRIES || open(cores) == before {
            return image;
        }
    }
    unreachable!("the last try returns")
}

fn copy(cores: usize, open: &[(u64, u32)]) -> Vec<u8> {
    let grid = &control().grid;
    let mut image = alloc::vec![0; size_of::<Books>()];
    // SAFETY: the control area, whose parts are atomics.
    let area =
        unsafe { put(&mut image, (&raw const *grid).cast(), size_of::<GridArea>(), align_of::<GridArea>()) };
    image.resize(image.len().next_multiple_of(align_of::<CoreLocal>()), 0);
    let locals = image.len();
    image.resize(locals + cores * size_of::<CoreLocal>(), 0);
    for (n, (since, what)) in open.iter().enumerate() {
        let local = locals + n * size_of::<CoreLocal>();
        set(&mut image, local + offset_of!(CoreLocal, unsettled), *since);
        let at = local + offset_of!(CoreLocal, unsettled_for);
        image[at..at + 4].copy_from_slice(&what.to_ne_bytes());
    }
    let held = grid.held.load(Ordering::Acquire);
    let held = match held {
        0 => 0,
        // SAFETY: the runtime has put one for each core there, for good.
        at => unsafe {
            put(&mut image, (DIRECT_MAP + at) as *const u8, cores * size_of::<Held>(), align_of::<Held>())
        },
    };
    set(&mut image, area + offset_of!(GridArea, held), held as u64);
    let accounts = area + offset_of!(GridArea, accounts);
    for (n, leased) in grid.accounts.iter().flat_map(|account| &account.leased).enumerate() {
        let (activity, quota) = (n / QUOTA_WORDS, n % QUOTA_WORDS);
        let leased = leased.load(Ordering::Acquire).saturating_sub(spare(cores, activity, quota));
        let at = accounts
            + activity * size_of::<Account>()
            + offset_of!(Account, leased)
            + quota * size_of::<u32>();
        image[at..at + size_of::<u32>()].copy_from_slice(&leased.to_ne_bytes());
    }
    set(&mut image, area + offset_of!(GridArea, leases), 0);
    let records = (grid.records.load(Ordering::Acquire) as usize).min(ACTIVITIES_MAX);
    for (n, record) in grid.directory[..records].iter().enumerate() {
        let at = area + offset_of!(GridArea, directory) + n * size_of::<Record>();
        for _ in 0..TRIES {
            let sequence = record.sequence.load(Ordering::Acquire);
            // SAFETY: as above.
            let copied = unsafe { put(&mut image, (&raw const *record).cast(), size_of::<Record>(), 8) };
            image.copy_within(copied..copied + size_of::<Record>(), at);
            image.truncate(copied);
            let sheets = record.sheets.load(Ordering::Acquire);
            let there = record.kind.load(Ordering::Relaxed) != kind::NONE && sheets != 0;
            let sheets = if there {
                // SAFETY: they are freed only when this core has passed a quiet point (`atoll_task`), which it doesn't here.
                unsafe {
                    put(
                        &mut image,
                        (DIRECT_MAP + sheets) as *const u8,
                        2 * cores * size_of::<Sheet>(),
                        align_of::<Sheet>(),
                    )
                }
            } else {
                0
            };
            set(&mut image, at + offset_of!(Record, sheets), sheets as u64);
            fence(Ordering::Acquire);
            if sequence.is_multiple_of(2) && record.sequence.load(Ordering::Relaxed) == sequence {
                break;
            }
        }
    }
    let clock = NUCLEUS.now();
    let (area, locals) = (area as u64, locals as u64);
    let slept = control().cores[..cores].iter().map(|core| core.slept_by(clock)).sum();
    let head = Books { clock, cores: cores as u64, area, locals, slept };
    image[..size_of::<Books>()].copy_from_slice(head.as_bytes());
    image
}
