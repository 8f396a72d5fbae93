//! Memory of a cell, from extents to a program's mappings.
//!
//! Bottom up: [`blocks`] hands out the cell's 2 MiB blocks without a lock;
//! [`pages`] is one core's buddy allocator over blocks that it leased
//! (architecture section 5: each core manager leases blocks in batches and
//! serves its core alone); [`heap`] is the runtime's own allocator on top;
//! [`user`] copies to and from a program's memory and survives bad pointers;
//! [`vm`] keeps a space's mappings and populates them, on the core that
//! faults; what forks and programs of the same file share is counted by
//! [`sharers`] and kept by [`texts`]; [`slots`] finds a space's pages by their addresses. The crate calls the platform only to map, unmap and protect.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod blocks;
pub mod colours;
pub mod heap;
pub mod io;
pub mod pages;
#[cfg(debug_assertions)]
mod poison;
pub(crate) mod ready;
pub mod sharers;
pub(crate) mod slots;
pub mod texts;
pub mod user;
pub mod vm;

use alloc::vec::Vec;

use atoll_abi::{Errno, Result};

/// So many of `T`'s default, as long as a program likes. ENOMEM: there is no memory for them in one piece, which a `vec!` would end the
/// cell for.
pub fn buffer<T: Clone + Default>(len: usize) -> Result<Vec<T>> {
    let mut out = Vec::new();
    enlarge(&mut out, len)?;
    Ok(out)
}

/// Appends so many of `T`'s default. ENOMEM: there is no memory for them, and nothing changed.
pub fn enlarge<T: Clone + Default>(list: &mut Vec<T>, by: usize) -> Result<()> {
    list.try_reserve(by).map_err(|_| Errno::ENOMEM)?;
    list.resize(list.len() + by, T::default());
    Ok(())
}
