//! Colours of pages: a program may want some of its memory only in frames whose number, modulo a count that it names, is one of some. Frames
//! of the same colour use the same part of a cache (or the same bank), so who has a colour for itself has that part for itself.
//!
//! Only a platform whose frames are the machine's can do so ([`Platform::frame_of`](atoll_abi::platform::Platform::frame_of)).

use atoll_abi::layout::PAGE;
use atoll_abi::platform::platform;
use atoll_abi::{Errno, Result};

use crate::heap::{ask_for_pages, give_pages, memory, take_page_where, take_pages_dirty};

/// The colours that are wanted of so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Colours {
    count: u32,
    wanted: u64,
}

impl Colours {
    /// The most colours that there can be.
    pub const MAX: u32 = u64::BITS;

    /// Of `count` colours those whose bits are set. EINVAL: there can't be so many, or there are none of these.
    pub fn new(count: u32, wanted: u64) -> Result<Colours> {
        let all = u64::MAX.checked_shr(Colours::MAX.wrapping_sub(count)).filter(|_| count != 0);
        let known = all.is_some_and(|all| wanted & !all == 0);
        if known && wanted != 0 { Ok(Colours { count, wanted }) } else { Err(Errno::EINVAL) }
    }

    /// Is a frame of one of them?
    pub fn has(self, frame: u64) -> bool {
        self.wanted >> (frame % u64::from(self.count)) & 1 != 0
    }

    /// Takes a page of them, zeroed; its offset in the cell's memory. None: among what is looked through there is none.
    pub(crate) fn take(self) -> Option<u64> {
        let is_one = |page: u64| platform().frame_of(page * PAGE).is_some_and(|frame| self.has(frame));
        take_page_where(&is_one).or_else(|| {
            // As many frames that follow each other as there are colours, from other cores if there are none here.
            let order = self.count.next_power_of_two().trailing_zeros();
            let chunk = take_pages_dirty(order)
                .or_else(|| ask_for_pages(order).then(|| take_pages_dirty(order)).flatten())?;
            let first = chunk / PAGE;
            let found = (first..first + (1 << order)).find(|page| is_one(*page)).map(|page| page * PAGE);
            let rest = (0..1 << order).map(|n| chunk + n * PAGE).filter(|page| Some(*page) != found);
            rest.for_each(|page| give_pages(page, 0));
            found.inspect(|page| memory().clear(*page, PAGE))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_of_frames() {
        for (count, wanted) in [(0, 1), (1, 0), (1, 2), (4, 0), (4, 0x10), (64, 0), (65, 1), (u32::MAX, 1)] {
            assert_eq!(Colours::new(count, wanted), Err(Errno::EINVAL), "{count} {wanted:#x}");
        }
        assert!((0..9).all(|frame| Colours::new(1, 1).unwrap().has(frame)));
        let some = Colours::new(5, 0b01001).unwrap();
        assert_eq!(
            (0..12).filter(|frame| some.has(*frame)).collect::<alloc::vec::Vec<_>>(),
            [0, 3, 5, 8, 10]
        );
        assert!(Colours::new(64, 1 << 63).unwrap().has(127) && !Colours::new(64, 1 << 63).unwrap().has(64));
    }
}
