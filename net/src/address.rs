//! Socket addresses, as programs give them.

use atoll_abi::{Errno, Result};
use linux_raw_sys::net;

/// Longest address (`struct sockaddr_storage`).
pub const ADDRESS_MAX: usize = 128;

/// An address of any family.
#[derive(Clone, Copy)]
pub struct Address {
    bytes: [u8; ADDRESS_MAX],
    len: usize,
}

/// A word of what the host says, as it lies there; 0 behind its end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))
}

impl Address {
    /// No address.
    pub const fn empty() -> Self {
        Address { bytes: [0; ADDRESS_MAX], len: 0 }
    }

    /// From bytes; EINVAL if they are too many.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut a = Self::empty();
        a.bytes.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
        a.len = bytes.len();
        Ok(a)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Room for one, to be filled; then [`Address::set_len`].
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// How much of the room was used.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(ADDRESS_MAX);
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its family; AF_UNSPEC if there is none.
    pub fn family(&self) -> u32 {
        if self.len < 2 {
            net::AF_UNSPEC
        } else {
            u32::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]))
        }
    }
}

impl core::fmt::Debug for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.bytes())
    }
}
