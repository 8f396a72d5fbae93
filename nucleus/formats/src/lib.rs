//! What loaders, hypervisors and firmware tell the nucleus, read out of bytes.
//!
//! Each module reads one format, and takes any bytes: what is cut off or contradicts itself is an error or is left
//! out, never a panic. This crate touches no hardware, has no heap, and is tested on any machine. The nucleus
//! finds the bytes.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod affinity;
pub mod clock;
pub mod counter;
pub mod multiboot;

/// A little-endian number of four or eight bytes.
macro_rules! number {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(bytes: &[u8], at: usize) -> Option<$type> {
            let end = at.checked_add(size_of::<$type>())?;
            Some(<$type>::from_le_bytes(bytes.get(at..end)?.try_into().ok()?))
        }
    };
}
number!(u32_at, u32);
number!(u64_at, u64);
