//! Mappings, and the spaces that they are in.
#![allow(unsafe_code, reason = "changes mappings of a program's part where no program is")]

use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::control::{platform_kind, space_state};
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::{BLOCK, DIRECT_MAP, PAGE};
use atoll_abi::platform::{Access, Backing, Change, PageBit, platform};
use atoll_mem::user;

use crate::{ADDRESS, COMMAND, DONE, Machine, REST, WRITE, wait};

/// Where nothing else is.
pub(crate) const AT: u64 = 1 << 40;
const NONE: Access = Access::empty();
const R: Access = Access::READ;
const RW: Access = Access::READ.union(Access::WRITE);

/// The word at this offset of the cell's memory.
fn own(offset: u64) -> &'static AtomicU64 {
    // SAFETY: the cell's memory, in a block that the suite has for itself.
    unsafe { &*((DIRECT_MAP + offset) as *const AtomicU64) }
}

fn map(addr: u64, len: u64, access: Access, offset: u64) -> Result<()> {
    // SAFETY: no program is there, and nothing of the runtime's in the block.
    unsafe { platform().map(addr, len, access, Backing::Memory { offset }) }
}

fn unmap(addr: u64, len: u64) -> Result<()> {
    // SAFETY: as above.
    unsafe { platform().unmap(addr, len) }
}

fn protect(addr: u64, len: u64, access: Access) -> Result<()> {
    // SAFETY: as above.
    unsafe { platform().protect(addr, len, access) }
}

/// What is read there, and whether it can be written.
fn look(addr: u64) -> (Result<u64>, Result<()>) {
    let mut bytes = [0; 8];
    let read = user::read(addr, &mut bytes).map(|()| u64::from_le_bytes(bytes));
    (read, user::write(addr, &bytes))
}

pub(crate) fn run(machine: &dyn Machine) {
    let block = machine.block();
    for page in 0..BLOCK / PAGE {
        own(block + page * PAGE).store(1000 + page, Ordering::SeqCst);
    }
    mappings(machine, block);
    wrong(machine, block);
    lists(machine, block);
    shared(machine, block);
    bits(machine, block);
    spaces(machine, block);
}

fn mappings(machine: &dyn Machine, block: u64) {
    let say = |what: &str, done: Result<()>| {
        machine.say(format_args!(
            "{what}: {done:?}, then {:?} and behind it {:?}",
            look(AT),
            look(AT + PAGE)
        ));
    };
    say("nothing yet", Ok(()));
    say("map rw", map(AT, PAGE, RW, block + 3 * PAGE));
    say("map rw, two", map(AT, 2 * PAGE, RW, block + 5 * PAGE));
    say("protect r", protect(AT, PAGE, R));
    say("protect none", protect(AT, 2 * PAGE, NONE));
    say("protect rw", protect(AT, 2 * PAGE, RW));
    say("map over it", map(AT + PAGE, PAGE, R, block + 9 * PAGE));
    say("map nothing", unsafe_nothing(AT, PAGE));
    say("unmap", unmap(AT + PAGE, PAGE));
    say("unmap again", unmap(AT, 2 * PAGE));
    // One memory at two addresses.
    let twice = map(AT, PAGE, RW, block).and(map(AT + PAGE, PAGE, R, block));
    own(block).store(77, Ordering::SeqCst);
    say("twice", twice);
    let wrote = user::write(AT, &78u64.to_le_bytes());
    say("written by one", wrote);
    machine.say(format_args!("own view: {}", own(block).load(Ordering::SeqCst)));
    // A block as a whole, in parts, and again as a whole.
    let whole = map(AT, BLOCK, RW, block);
    machine.say(format_args!("block: {whole:?}, {:?} to {:?}", look(AT + PAGE), look(AT + BLOCK - PAGE)));
    let part = protect(AT + 4 * PAGE, PAGE, R).and(unmap(AT + 6 * PAGE, PAGE));
    let at = [3, 4, 5, 6, 7].map(|n| look(AT + n * PAGE));
    machine.say(format_args!("parts: {part:?}, {at:?}"));
    let again = map(AT, BLOCK, R, block);
    machine.say(format_args!(
        "whole again: {again:?}, {:?} and {:?}",
        look(AT + 4 * PAGE),
        look(AT + 6 * PAGE)
    ));
    let gone = unmap(AT - BLOCK, 3 * BLOCK);
    machine.say(format_args!("all gone: {gone:?}, {:?}", look(AT + 5 * PAGE)));
}

fn unsafe_nothing(addr: u64, len: u64) -> Result<()> {
    // SAFETY: as in `map`.
    unsafe { platform().map(addr, len, NONE, Backing::Nothing) }
}

fn wrong(machine: &dyn Machine, block: u64) {
    let memory = platform().control().descriptor.memory.load(Ordering::Relaxed);
    let beyond = map(AT, PAGE, RW, memory);
    let across = map(AT, 2 * PAGE, RW, memory - PAGE);
    let around = map(AT, PAGE, RW, u64::MAX - PAGE + 1);
    let (odd_place, odd_offset) = (map(AT + 1, PAGE, RW, block), map(AT, PAGE, RW, block + 8));
    machine.say(format_args!("wrong: beyond {beyond:?} across {across:?} around {around:?}"));
    machine.say(format_args!("wrong: place {odd_place:?} offset {odd_offset:?}, then {:?}", look(AT)));
}

fn lists(machine: &dyn Machine, block: u64) {
    let mut list = [Change::Unmap { addr: 0, len: 0 }; 40];
    for (n, change) in list.iter_mut().enumerate() {
        let n = n as u64;
        *change =
            Change::Map { addr: AT + n * 3 * PAGE, len: PAGE, access: RW, offset: block + (100 + n) * PAGE };
    }
    // SAFETY: as in `map`.
    let change = |list: &[Change]| unsafe { platform().change(list) };
    let done = change(&list);
    let right = (0..40).all(|n| look(AT + n * 3 * PAGE) == (Ok(1100 + n), Ok(())));
    machine.say(format_args!("list: {done:?}, right {right}, between {:?}", look(AT + PAGE)));
    let done = change(&[
        Change::Protect { addr: AT, len: PAGE, access: R },
        Change::Map { addr: AT + 1, len: PAGE, access: RW, offset: block },
        Change::Unmap { addr: AT + 3 * PAGE, len: PAGE },
    ]);
    machine.say(format_args!("list with one wrong: {done:?}, {:?} and {:?}", look(AT), look(AT + 3 * PAGE)));
    machine.say(format_args!("empty list: {:?}, rest {:?}", change(&[]), unmap(AT, BLOCK)));
}

/// Another core that uses what is taken away notices at once.
fn shared(machine: &dyn Machine, block: u64) {
    let mut rounds = 0;
    for round in 0..20u64 {
        let addr = AT + round * PAGE;
        DONE.store(0, Ordering::SeqCst);
        ADDRESS.store(addr, Ordering::SeqCst);
        let shown = map(addr, PAGE, RW, block + 8 * PAGE).is_ok();
        COMMAND.store(WRITE, Ordering::SeqCst);
        let writes = wait(|| DONE.load(Ordering::SeqCst) > 0);
        let less = if round % 2 == 0 { unmap(addr, PAGE) } else { protect(addr, PAGE, R) };
        // From here on it can't write: what is there stays.
        own(block + 8 * PAGE).store(5, Ordering::SeqCst);
        let stopped = wait(|| COMMAND.load(Ordering::SeqCst) == REST);
        let kept = own(block + 8 * PAGE).load(Ordering::SeqCst) == 5;
        rounds += u32::from(shown && writes && less.is_ok() && stopped && kept);
    }
    machine.say(format_args!("taken away from another core: {rounds} of 20, {:?}", unmap(AT, BLOCK)));
}

/// What the processor notes of pages is told once, exactly, and goes with the address whatever is done to the mapping; where that can't be
/// read, it is said so. All of it is one line, as not all platforms can.
fn bits(machine: &dyn Machine, block: u64) {
    const PAGES: usize = (BLOCK / PAGE) as usize;
    let p = platform();
    let is_nucleus = p.control().descriptor.platform.load(Ordering::Relaxed) == platform_kind::NUCLEUS;
    let take = |bit, addr: u64, len: u64| {
        let mut words = [0u16; PAGES / 16 + 1];
        let done = p.take_page_bits(bit, addr, len, &mut words);
        let pages = (0..16 * words.len()).filter(|n| words[n / 16] & 1 << (n % 16) != 0);
        // The last page of all that are told, and how many they are.
        done.map(|()| (pages.clone().count(), pages.max()))
    };
    let (dirty, accessed) = (PageBit::Dirty, PageBit::Accessed);
    let write = |page: u64| user::write(AT + page * PAGE, &1u64.to_le_bytes());
    let read = |page: u64| user::read(AT + page * PAGE, &mut [0; 8]);
    let none = Ok((0, None));
    let one = |n: usize| Ok((1, Some(n)));
    let mut wrong = 0;
    let mut holds = |holds: bool| wrong += u32::from(!holds);
    if p.has_page_bits() {
        holds(map(AT, 40 * PAGE, RW, block).is_ok() && take(dirty, AT, BLOCK) == none);
        holds(write(20).is_ok() && take(dirty, AT, BLOCK) == one(20) && take(dirty, AT, BLOCK) == none);
        holds(take(accessed, AT, BLOCK) == one(20) && take(accessed, AT, BLOCK) == none);
        holds(read(7).is_ok() && take(dirty, AT, BLOCK) == none && take(accessed, AT, BLOCK) == one(7));
        // In a part that begins and ends within a word; the others keep theirs.
        holds(write(3).is_ok() && write(20).is_ok() && write(39).is_ok());
        holds(take(dirty, AT + 4 * PAGE, 35 * PAGE) == one(20));
        holds(take(dirty, AT, 40 * PAGE) == Ok((2, Some(39))));
        // Other access, none, and other memory.
        holds(write(5).is_ok() && protect(AT, 40 * PAGE, NONE).is_ok());
        holds(
            protect(AT, 40 * PAGE, R).is_ok() && map(AT + 4 * PAGE, 3 * PAGE, RW, block + 9 * PAGE).is_ok(),
        );
        holds(take(dirty, AT, BLOCK) == one(5) && take(dirty, AT, BLOCK) == none);
        holds(write(5).is_ok() && unmap(AT + 5 * PAGE, PAGE).is_ok());
        holds(map(AT + 5 * PAGE, PAGE, RW, block).is_ok() && take(dirty, AT, BLOCK) == none);
        // As a whole where parts were, and by the page where a whole was.
        holds(write(5).is_ok() && map(AT, BLOCK, RW, block).is_ok());
        holds(take(dirty, AT, BLOCK) == Ok((PAGES, Some(PAGES - 1))));
        holds(write(500).is_ok() && take(dirty, AT, BLOCK) == one(500));
        holds(
            unmap(AT, BLOCK).is_ok() && map(AT, BLOCK, RW, block).is_ok() && take(dirty, AT, BLOCK) == none,
        );
        holds(write(501).is_ok() && take(dirty, AT, BLOCK) == one(501));
        // Another core that goes on writing is seen each time.
        holds(take(dirty, AT, BLOCK) == none);
        for _ in 0..20 {
            DONE.store(0, Ordering::SeqCst);
            ADDRESS.store(AT + 8 * PAGE, Ordering::SeqCst);
            COMMAND.store(WRITE, Ordering::SeqCst);
            let writes = wait(|| DONE.load(Ordering::SeqCst) > 0);
            let taken = take(dirty, AT, BLOCK);
            let at = DONE.load(Ordering::SeqCst);
            let goes_on = wait(|| DONE.load(Ordering::SeqCst) > at + 1);
            holds(writes && taken == one(8) && goes_on && take(dirty, AT, BLOCK) == one(8));
            holds(p.forget(AT, BLOCK).is_ok() && unmap(AT + 8 * PAGE, PAGE).is_ok());
            holds(wait(|| COMMAND.load(Ordering::SeqCst) == REST));
            holds(map(AT + 8 * PAGE, PAGE, RW, block + 8 * PAGE).is_ok() && take(dirty, AT, BLOCK) == none);
        }
        let mut few = [0u16; 1];
        holds(p.take_page_bits(dirty, AT, 17 * PAGE, &mut few) == Err(Errno::EINVAL));
        holds(p.take_page_bits(dirty, AT + 1, PAGE, &mut few) == Err(Errno::EINVAL));
        holds(p.take_page_bits(dirty, DIRECT_MAP, PAGE, &mut few) == Err(Errno::EINVAL));
        holds(p.forget(DIRECT_MAP, PAGE) == Err(Errno::EINVAL) && p.forget(AT, PAGE) == Ok(()));
        holds(unmap(AT, BLOCK).is_ok());
    } else {
        holds(take(dirty, AT, PAGE) == Err(Errno::ENOSYS) && p.forget(AT, PAGE) == Err(Errno::ENOSYS));
    }
    machine.say(format_args!(
        "page bits: where they are known {}, {wrong} wrong",
        p.has_page_bits() == is_nucleus
    ));
}

fn spaces(machine: &dyn Machine, block: u64) {
    let p = platform();
    let first = p.space_create();
    let second = p.space_create();
    let (Ok(a), Ok(b)) = (first, second) else {
        return machine.say(format_args!("spaces: {} {}", first.is_ok(), second.is_ok()));
    };
    let state = |space: u32| p.control().space_states[space as usize].load(Ordering::SeqCst);
    let ready = wait(|| state(a) == space_state::READY && state(b) == space_state::READY);
    machine.say(format_args!("spaces: different {}, ready {ready}", a != b && a != 0 && b != 0));
    let shown = map(AT, PAGE, RW, block);
    machine.switch(a);
    machine.say(format_args!("spaces: {shown:?} in the first, in the second {:?}", look(AT)));
    let shown = map(AT, PAGE, RW, block + PAGE).and(map(AT + PAGE, PAGE, RW, block));
    machine.switch(b);
    let shown = shown.and(map(AT + PAGE, PAGE, R, block + 2 * PAGE));
    machine.say(format_args!("spaces: {shown:?}, third {:?} {:?}", look(AT), look(AT + PAGE)));
    machine.switch(a);
    let written = user::write(AT + PAGE, &99u64.to_le_bytes());
    machine.say(format_args!("spaces: {written:?}, second {:?} {:?}", look(AT), look(AT + PAGE)));
    machine.switch(0);
    machine.say(format_args!("spaces: first {:?} {:?}", look(AT), look(AT + PAGE)));
    p.space_destroy(a);
    p.space_destroy(b);
    machine.say(format_args!("spaces: afterwards {:?}, {:?}", look(AT), unmap(AT, PAGE)));
    // They can be had again and again.
    let again = (0..30).filter(|_| {
        let made = p.space_create();
        made.is_ok_and(|space| {
            let ready = wait(|| state(space) == space_state::READY);
            machine.switch(space);
            let empty =
                look(AT).0 == Err(Errno::EFAULT) && map(AT, PAGE, RW, block).is_ok() && look(AT).0.is_ok();
            machine.switch(0);
            p.space_destroy(space);
            ready && empty
        })
    });
    machine.say(format_args!("spaces: {} of 30", again.count()));
}
