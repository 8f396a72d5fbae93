//! Changes of spaces, and the memory for their page tables: the nucleus has none of its own for them, so that when what
//! it was given is used up the cell gives it a block more.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use atoll_abi::core_local::core_local;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::PAGE;
use atoll_abi::nucleus::{BITS_MAX, CHANGES_MAX, MapChange, bit, call, change as kind};
use atoll_abi::platform::{Access, Change, PageBit};
use atoll_mem::heap::{give_pages, take_fixed_pages_dirty};
use atoll_mem::pages::BLOCK_ORDER;
use atoll_mem::vm::take_pages_hard;

use crate::calls::{call as nucleus, insist, try_call};
use crate::control;

/// Repeats a call for as long as it lacks memory for page tables and there is some.
pub(crate) fn with_tables(call: impl Fn() -> Result<u64>) -> Result<u64> {
    loop {
        match call() {
            Err(Errno::ENOMEM) => give_block()?,
            done => return done,
        }
    }
}

fn give_block() -> Result<()> {
    let block =
        take_fixed_pages_dirty(BLOCK_ORDER).or_else(|| take_pages_hard(BLOCK_ORDER)).ok_or(Errno::ENOMEM)?;
    let given = nucleus(call::TABLES_GIVE, [block, 0, 0, 0]);
    // With EIO it can't be reached any more, and is lost.
    if given.is_err_and(|e| e != Errno::EIO) {
        give_pages(block, BLOCK_ORDER);
    }
    given.map(drop)
}

/// Makes the changes of a list. When it returns, no core remembers what was there before.
pub(crate) fn change(list: &[Change]) -> Result<()> {
    settled(|last| make(list, last))
}

/// Makes calls that change mappings, with a place for the last change, and sees to it that no core remembers what was there before.
fn settled(calls: impl FnOnce(&Cell<u64>) -> Result<()>) -> Result<()> {
    let last = Cell::new(0);
    let done = calls(&last);
    match last.get() {
        0 => done,
        // One whose processor stands still may yet.
        last => nucleus(call::SETTLED, [last, 0, 0, 0]).and(done),
    }
}

/// As [`Platform::take_page_bits`](atoll_abi::platform::Platform::take_page_bits).
pub(crate) fn take_page_bits(bit: PageBit, addr: u64, len: u64, pages: &mut [u16]) -> Result<()> {
    const GRAIN: u64 = 16 * PAGE;
    let end = addr.checked_add(len).ok_or(Errno::EINVAL)?;
    let first = addr / GRAIN;
    if (pages.len() as u64) < end.div_ceil(GRAIN) - first {
        return Err(Errno::EINVAL);
    }
    let which = match bit {
        PageBit::Accessed => bit::ACCESSED,
        PageBit::Dirty => bit::DIRTY,
    };
    settled(|last| {
        let mut at = addr;
        while at < end {
            let next = end.min((at / GRAIN * GRAIN).saturating_add(BITS_MAX * PAGE));
            let to = pages[(at / GRAIN - first) as usize..].as_mut_ptr() as u64;
            with_tables(|| changing(last, call::PAGE_BITS, [at, next - at, which, to]))?;
            at = next;
        }
        Ok(())
    })
}

/// As [`Platform::forget`](atoll_abi::platform::Platform::forget).
pub(crate) fn forget(addr: u64, len: u64) -> Result<()> {
    settled(|last| changing(last, call::FORGET, [addr, len, 0, 0]).map(drop))
}

/// A call that changes mappings. `last`: the last change of which cores may remember what was there before.
fn changing(last: &Cell<u64>, number: u64, arguments: [u64; 4]) -> Result<u64> {
    insist(|| {
        let done = try_call(number, arguments);
        // Before another thread runs here, or this one elsewhere.
        let to_settle = &control().cores[core_local().id()].to_settle;
        let number = to_settle.load(Ordering::Relaxed);
        if number != 0 {
            to_settle.store(0, Ordering::Relaxed);
            // Later ones have higher numbers, and when one is settled all before it are.
            last.set(last.get().max(number));
        }
        done
    })
}

fn make(list: &[Change], last: &Cell<u64>) -> Result<()> {
    if let [one] = list {
        let (number, MapChange { access, address, len, offset, .. }) = encode(one);
        return with_tables(|| changing(last, number, [address, len, u64::from(access), offset])).map(drop);
    }
    const MAX: usize = CHANGES_MAX as usize;
    let mut done = Ok(());
    for part in list.chunks(MAX) {
        let mut changes = [MapChange { kind: 0, access: 0, address: 0, len: 0, offset: 0 }; MAX];
        for (to, one) in changes.iter_mut().zip(part) {
            *to = encode(one).1;
        }
        let mut left = &changes[..part.len()];
        while !left.is_empty() {
            let list = [left.as_ptr() as u64, left.len() as u64, 0, 0];
            match with_tables(|| changing(last, call::CHANGES, list)) {
                Ok(n) => left = &left[n as usize..],
                Err(e) => {
                    done = done.and(Err(e));
                    left = &left[1..];
                }
            }
        }
    }
    done
}

/// The number of the call that makes it alone, and itself in a list.
fn encode(change: &Change) -> (u64, MapChange) {
    let one = |kind, address, len, access: Access, offset| MapChange {
        kind,
        access: access.bits(),
        address,
        len,
        offset,
    };
    match *change {
        Change::Map { addr, len, access, offset } => (call::MAP, one(kind::MAP, addr, len, access, offset)),
        Change::Unmap { addr, len } => (call::UNMAP, one(kind::UNMAP, addr, len, Access::empty(), 0)),
        Change::Protect { addr, len, access } => (call::PROTECT, one(kind::PROTECT, addr, len, access, 0)),
    }
}
