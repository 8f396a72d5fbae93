//! Hardware addresses of neighbours: ARP (RFC 826) and neighbour discovery (RFC 4861), for what does not go by smoltcp,
//! which answers the neighbours' own questions.

use hashbrown::HashMap;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, HardwareAddress,
    Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol, Ipv6Address, Ipv6Packet, Ipv6Repr, NdiscRepr,
    RawHardwareAddress,
};

use crate::link::Link;

/// For how long an address is believed, us (RFC 4861: REACHABLE_TIME is 30 s; Linux's caches last 60 s).
const BELIEVED: i64 = 60_000_000;
/// How often it is asked for, us (RETRANS_TIMER).
const ASKED: i64 = 1_000_000;
/// How often without an answer, until it is forgotten (MAX_UNICAST_SOLICIT).
const TIMES: u32 = 3;
/// Most neighbours.
const MOST: usize = 1024;

pub(crate) type Mac = [u8; 6];

/// What is known of a neighbour.
struct Neighbour {
    mac: Option<Mac>,
    /// When it said so, us.
    since: i64,
    /// When it was asked last, and how often since it answered.
    asked_at: i64,
    asked: u32,
}

/// The neighbours behind one port.
#[derive(Default)]
pub(crate) struct Neighbours {
    all: HashMap<IpAddress, Neighbour>,
}

/// What is known of one.
pub(crate) struct Known {
    /// Its address, and until when to believe that, us.
    pub(crate) mac: Option<(Mac, i64)>,
    /// It is to be asked now.
    pub(crate) ask: bool,
}

impl Neighbours {
    /// `confirmed`: when it last answered as far as a connection knows (RFC 4861 section 7.3.1).
    pub(crate) fn find(&mut self, addr: IpAddress, confirmed: i64, now: i64) -> Known {
        if self.all.len() >= MOST && !self.all.contains_key(&addr) {
            self.make_room();
        }
        let unknown = || Neighbour { mac: None, since: 0, asked_at: i64::MIN / 2, asked: 0 };
        let n = self.all.entry(addr).or_insert_with(unknown);
        if n.mac.is_some() && confirmed > n.since {
            (n.since, n.asked) = (confirmed, 0);
        }
        if let Some(mac) = n.mac
            && now - n.since < BELIEVED
        {
            return Known { mac: Some((mac, n.since + BELIEVED)), ask: false };
        }
        let ask = now - n.asked_at >= ASKED;
        if ask {
            if n.asked >= TIMES {
                n.mac = None;
            }
            (n.asked_at, n.asked) = (now, n.asked.saturating_add(1));
        }
        // Until it says something else, it is where it was.
        Known { mac: n.mac.map(|mac| (mac, n.asked_at + ASKED)), ask }
    }

    fn make_room(&mut self) {
        let least = |(_, n): &(&IpAddress, &Neighbour)| (n.mac.is_some(), n.since, n.asked_at);
        if let Some(addr) = self.all.iter().min_by_key(least).map(|(addr, _)| *addr) {
            self.all.remove(&addr);
        }
    }

    fn learn(&mut self, addr: IpAddress, mac: Mac, now: i64) {
        if self.all.len() >= MOST && !self.all.contains_key(&addr) {
            self.make_room();
        }
        self.all.insert(addr, Neighbour { mac: Some(mac), since: now, asked_at: i64::MIN / 2, asked: 0 });
    }

    /// Takes up what a frame says of a neighbour. `own`: is it an address of this port? `near`: of its networks?
    pub(crate) fn hear(
        &mut self,
        frame: &[u8],
        now: i64,
        own: impl Fn(IpAddress) -> bool,
        near: impl Fn(IpAddress) -> bool,
    ) {
        if let Some((addr, mac)) = said(frame, own)
            && near(addr)
            && addr.is_unicast()
        {
            self.learn(addr, mac, now);
        }
    }
}

/// What a frame that is for us says of a neighbour's address.
fn said(frame: &[u8], own: impl Fn(IpAddress) -> bool) -> Option<(IpAddress, Mac)> {
    let e = EthernetFrame::new_checked(frame).ok()?;
    let (addr, mac) = match e.ethertype() {
        EthernetProtocol::Arp => {
            let ArpRepr::EthernetIpv4 {
                source_hardware_addr: mac,
                source_protocol_addr: from,
                target_protocol_addr: to,
                ..
            } = ArpRepr::parse(&ArpPacket::new_checked(e.payload()).ok()?).ok()?
            else {
                return None;
            };
            (own(to.into())).then_some((IpAddress::from(from), mac))?
        }
        EthernetProtocol::Ipv6 => {
            let p = Ipv6Packet::new_checked(e.payload()).ok()?;
            if p.next_header() != IpProtocol::Icmpv6 || p.hop_limit() != 255 {
                return None;
            }
            let icmp = Icmpv6Packet::new_checked(p.payload()).ok()?;
            if !icmp.verify_checksum(&p.src_addr(), &p.dst_addr()) {
                return None;
            }
            let (addr, mac) = match NdiscRepr::parse(&icmp).ok()? {
                NdiscRepr::NeighborAdvert { target_addr, lladdr: Some(mac), .. } => (target_addr, mac),
                NdiscRepr::NeighborSolicit { target_addr, lladdr: Some(mac) } if own(target_addr.into()) => {
                    (p.src_addr(), mac)
                }
                _ => return None,
            };
            let mac = EthernetAddress::from_bytes(mac.as_bytes().first_chunk::<6>()?);
            (IpAddress::from(addr), mac)
        }
        _ => return None,
    };
    mac.is_unicast().then_some((addr, mac.0))
}

/// Asks for a neighbour's hardware address, from an address of the same family.
pub(crate) fn ask(link: &mut Link, mac: Mac, from: IpAddress, addr: IpAddress) {
    let own = EthernetAddress(mac);
    match (from, addr) {
        (IpAddress::Ipv4(from), IpAddress::Ipv4(addr)) => {
            let question = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: own,
                source_protocol_addr: from,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: addr,
            };
            let len = EthernetFrame::<&[u8]>::buffer_len(question.buffer_len());
            link.try_send(len, &mut |frame| {
                let mut e = EthernetFrame::new_unchecked(frame);
                e.set_dst_addr(EthernetAddress::BROADCAST);
                e.set_src_addr(own);
                e.set_ethertype(EthernetProtocol::Arp);
                question.emit(&mut ArpPacket::new_unchecked(e.payload_mut()));
            });
        }
        (IpAddress::Ipv6(from), IpAddress::Ipv6(addr)) => {
            let group = solicited(addr);
            let question = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                target_addr: addr,
                lladdr: Some(RawHardwareAddress::from(HardwareAddress::Ethernet(own))),
            });
            let packet = Ipv6Repr {
                src_addr: from,
                dst_addr: group,
                next_header: IpProtocol::Icmpv6,
                payload_len: question.buffer_len(),
                hop_limit: 255,
            };
            let len = EthernetFrame::<&[u8]>::buffer_len(packet.buffer_len() + question.buffer_len());
            let [.., a, b, c, d] = group.octets();
            link.try_send(len, &mut |frame| {
                let mut e = EthernetFrame::new_unchecked(frame);
                e.set_dst_addr(EthernetAddress([0x33, 0x33, a, b, c, d]));
                e.set_src_addr(own);
                e.set_ethertype(EthernetProtocol::Ipv6);
                let mut p = Ipv6Packet::new_unchecked(e.payload_mut());
                packet.emit(&mut p);
                let mut icmp = Icmpv6Packet::new_unchecked(p.payload_mut());
                question.emit(&from, &group, &mut icmp, &ChecksumCapabilities::default());
            });
        }
        _ => {}
    }
}

/// The group where a neighbour listens for questions (RFC 4291 section 2.7.1).
fn solicited(addr: Ipv6Address) -> Ipv6Address {
    let [.., a, b, c] = addr.octets();
    Ipv6Address::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];

    #[test]
    fn asked_believed_and_forgotten() {
        let mut all = Neighbours::default();
        let addr = IpAddress::v4(10, 0, 0, 1);
        let known = all.find(addr, 0, 0);
        assert!(known.mac.is_none() && known.ask);
        assert!(!all.find(addr, 0, ASKED - 1).ask);
        assert!(all.find(addr, 0, ASKED).ask);
        all.learn(addr, A, ASKED);
        let known = all.find(addr, 0, ASKED + 1);
        assert!(known.mac == Some((A, ASKED + BELIEVED)) && !known.ask);
        // A connection has heard of it.
        let known = all.find(addr, ASKED + 9, ASKED + BELIEVED);
        assert!(known.mac == Some((A, ASKED + 9 + BELIEVED)) && !known.ask);
        // Old, it is asked again and believed meanwhile; then not any more.
        let mut now = ASKED + 9 + BELIEVED;
        for _ in 0..TIMES {
            let known = all.find(addr, 0, now);
            assert!(known.mac == Some((A, now + ASKED)) && known.ask);
            assert!(!all.find(addr, 0, now + 1).ask);
            now += ASKED;
        }
        let known = all.find(addr, 0, now);
        assert!(known.mac.is_none() && known.ask);
    }

    #[test]
    fn there_are_not_too_many() {
        let mut all = Neighbours::default();
        let addr = |n: u32| IpAddress::Ipv4(n.into());
        all.learn(addr(1), A, 5);
        for n in 2..5000 {
            all.find(addr(n), 0, i64::from(n));
        }
        assert_eq!(all.all.len(), MOST);
        assert!(all.find(addr(1), 0, 5000).mac.is_some(), "who answers stays");
    }
}
