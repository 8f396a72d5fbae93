//! Addresses as programs give them: `sockaddr_in` and `sockaddr_in6`.

use core::net::{Ipv4Addr, Ipv6Addr};

use atoll_abi::{Errno, Result};
use linux_raw_sys::net;
use smoltcp::wire::{IpAddress, IpEndpoint};

/// Length of a `sockaddr_in`.
const LEN_V4: usize = 16;
/// Length of a `sockaddr_in6`.
const LEN_V6: usize = 28;
/// Shortest `sockaddr_in6` that is taken: without the scope (SIN6_LEN_RFC2133).
const LEN_V6_OLD: usize = 24;

/// The family that an address names; AF_UNSPEC if it is too short to name one.
pub(crate) fn family(bytes: &[u8]) -> u32 {
    match bytes {
        [a, b, ..] => u32::from(u16::from_ne_bytes([*a, *b])),
        _ => net::AF_UNSPEC,
    }
}

/// Reads an address for a socket of IPv6 (`v6`) or IPv4. Of IPv6, addresses that stand for IPv4 come as such,
/// and the unspecified one as IPv6.
pub(crate) fn parse(bytes: &[u8], v6: bool) -> Result<IpEndpoint> {
    if bytes.len() < if v6 { LEN_V6_OLD } else { LEN_V4 } {
        return Err(Errno::EINVAL);
    }
    if family(bytes) != if v6 { net::AF_INET6 } else { net::AF_INET } {
        return Err(Errno::EAFNOSUPPORT);
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let addr = if v6 {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[8..24]);
        let a = Ipv6Addr::from(octets);
        a.to_ipv4_mapped().map_or(IpAddress::Ipv6(a), IpAddress::Ipv4)
    } else {
        IpAddress::Ipv4(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]))
    };
    Ok(IpEndpoint { addr, port })
}

/// Writes an address for a socket of IPv6 or IPv4 as far as there is room; its full length.
pub(crate) fn write(at: IpEndpoint, v6: bool, out: &mut [u8]) -> usize {
    let mut bytes = [0u8; LEN_V6];
    bytes[2..4].copy_from_slice(&at.port.to_be_bytes());
    let len = if v6 {
        bytes[..2].copy_from_slice(&(net::AF_INET6 as u16).to_ne_bytes());
        let a = match at.addr {
            IpAddress::Ipv4(a) => a.to_ipv6_mapped(),
            IpAddress::Ipv6(a) => a,
        };
        bytes[8..24].copy_from_slice(&a.octets());
        if a.is_unicast_link_local() {
            // Ports are few; the first one is number 2, as behind a loopback.
            bytes[24..28].copy_from_slice(&2u32.to_ne_bytes());
        }
        LEN_V6
    } else {
        bytes[..2].copy_from_slice(&(net::AF_INET as u16).to_ne_bytes());
        if let IpAddress::Ipv4(a) = at.addr {
            bytes[4..8].copy_from_slice(&a.octets());
        }
        LEN_V4
    };
    let n = len.min(out.len());
    out[..n].copy_from_slice(&bytes[..n]);
    len
}

/// Any address of a family.
pub(crate) fn any(v6: bool) -> IpAddress {
    if v6 { IpAddress::Ipv6(Ipv6Addr::UNSPECIFIED) } else { IpAddress::Ipv4(Ipv4Addr::UNSPECIFIED) }
}

/// Where packets to `to` go from a socket that is bound to `own`: those to no address, to the machine itself.
pub(crate) fn target(to: IpAddress, own: IpAddress) -> IpAddress {
    match (to, own) {
        (to, _) if !to.is_unspecified() => to,
        (IpAddress::Ipv4(_), IpAddress::Ipv4(own)) if !own.is_unspecified() => own.into(),
        (IpAddress::Ipv4(_), _) | (_, IpAddress::Ipv4(_)) => IpAddress::Ipv4(Ipv4Addr::LOCALHOST),
        _ => IpAddress::Ipv6(Ipv6Addr::LOCALHOST),
    }
}

/// Which addresses a bound socket answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    /// Of IPv4: none, all (`Some(None)`), or one.
    v4: Option<Option<Ipv4Addr>>,
    v6: Option<Option<Ipv6Addr>>,
}

impl Cover {
    /// Of a socket of IPv6 or IPv4 bound to `addr`.
    pub(crate) fn new(addr: IpAddress, v6: bool, only: bool) -> Self {
        match addr {
            IpAddress::Ipv4(a) => Cover { v4: Some((!a.is_unspecified()).then_some(a)), v6: None },
            IpAddress::Ipv6(a) if a.is_unspecified() => {
                Cover { v4: (v6 && !only).then_some(None), v6: Some(None) }
            }
            IpAddress::Ipv6(a) => Cover { v4: None, v6: Some(Some(a)) },
        }
    }

    /// Is there an address that both answer to?
    pub(crate) fn overlaps(self, other: Cover) -> bool {
        fn meet<T: PartialEq>(a: Option<Option<T>>, b: Option<Option<T>>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => a.is_none() || b.is_none() || a == b,
                _ => false,
            }
        }
        meet(self.v4, other.v4) || meet(self.v6, other.v6)
    }

    /// How exactly it answers to `addr`: not at all, as one of all, or to this one only.
    pub(crate) fn fits(self, addr: IpAddress) -> Option<u32> {
        match addr {
            IpAddress::Ipv4(a) => match self.v4? {
                // An IPv4 socket comes before one of IPv6 that takes both.
                None => Some(if self.v6.is_some() { 0 } else { 1 }),
                Some(own) => (own == a).then_some(2),
            },
            IpAddress::Ipv6(a) => match self.v6? {
                None => Some(0),
                Some(own) => (own == a).then_some(2),
            },
        }
    }
}
