//! The headers in front of a connection's segments, and the frames that they make.

use smoltcp::wire::{IpAddress, IpEndpoint};

use crate::checksum;
use crate::link::Link;
use crate::neighbours::Mac;
use crate::tcb::Outgoing;

/// Bytes of the headers of Ethernet, IPv4, IPv6 and TCP.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const TCP_NUMBER: u8 = 6;
/// Usual hop limit.
const HOPS: u8 = 64;

/// What a program says of its packets' headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The hop limit, if not the usual one.
    pub(crate) hops: Option<u8>,
    /// Type of service of IPv4, and traffic class of IPv6.
    pub(crate) service: u8,
    pub(crate) class: u8,
}

/// How a connection's segments go: what each of them begins with.
pub(crate) struct Way {
    /// Ethernet's header, if there is one, and IP's, but for what differs.
    head: [u8; ETHERNET + IPV6],
    len: usize,
    ports: [u8; 4],
    v4: bool,
    /// Checksums are needed.
    sums: bool,
    /// Sums of the IPv4 header and of what precedes a segment, but for the length, and its ports.
    ip_sum: u64,
    tcp_sum: u64,
}

impl Way {
    /// From an address to another one, by way of these hardware addresses; without them, to this machine.
    pub(crate) fn new(local: IpEndpoint, remote: IpEndpoint, macs: Option<(Mac, Mac)>, marks: Marks) -> Way {
        let mut head = [0; ETHERNET + IPV6];
        let at = if macs.is_some() { ETHERNET } else { 0 };
        let (frame, packet) = head.split_at_mut(at);
        if let Some((from, to)) = macs {
            frame[..6].copy_from_slice(&to);
            frame[6..12].copy_from_slice(&from);
        }
        let hops = marks.hops.unwrap_or(HOPS);
        let (v4, len, kind) = match (local.addr, remote.addr) {
            (IpAddress::Ipv4(from), IpAddress::Ipv4(to)) => {
                // Version and length; don't fragment.
                packet[0] = 0x45;
                packet[1] = marks.service;
                packet[6] = 0x40;
                packet[8..10].copy_from_slice(&[hops, TCP_NUMBER]);
                packet[12..16].copy_from_slice(&from.octets());
                packet[16..20].copy_from_slice(&to.octets());
                (true, IPV4, [8, 0])
            }
            (from, to) => {
                let octets = |a| match a {
                    IpAddress::Ipv4(a) => a.to_ipv6_mapped().octets(),
                    IpAddress::Ipv6(a) => a.octets(),
                };
                packet[..2].copy_from_slice(&[0x60 | marks.class >> 4, marks.class << 4]);
                packet[6..8].copy_from_slice(&[TCP_NUMBER, hops]);
                packet[8..24].copy_from_slice(&octets(from));
                packet[24..40].copy_from_slice(&octets(to));
                (false, IPV6, [0x86, 0xdd])
            }
        };
        let addresses = if v4 { &packet[12..20] } else { &packet[8..40] };
        let mut ports = [0; 4];
        ports[..2].copy_from_slice(&local.port.to_be_bytes());
        ports[2..].copy_from_slice(&remote.port.to_be_bytes());
        let ip_sum = if v4 { checksum::add(0, &packet[..IPV4]) } else { 0 };
        let tcp_sum = checksum::add(checksum::add(checksum::pseudo_tcp(0), addresses), &ports);
        if macs.is_some() {
            head[12..14].copy_from_slice(&kind);
        }
        Way { head, len: at + len, ports, v4, sums: macs.is_some(), ip_sum, tcp_sum }
    }

    /// Sends a segment. False: there was no room.
    #[inline]
    pub(crate) fn send(&self, link: &mut Link, out: &Outgoing) -> bool {
        let header = TCP + out.options.len();
        let len = header + out.data.0.len() + out.data.1.len();
        link.try_send(self.len + len, &mut |frame| self.write(frame, out, header, len))
    }

    #[inline]
    fn write(&self, frame: &mut [u8], out: &Outgoing, header: usize, len: usize) {
        let (head, segment) = frame.split_at_mut(self.len);
        if let Some(head) = head.first_chunk_mut::<{ ETHERNET + IPV4 }>()
            && self.len == ETHERNET + IPV4
        {
            // As it is most often: in a few instructions.
            head.copy_from_slice(&self.head[..ETHERNET + IPV4]);
        } else {
            head.copy_from_slice(&self.head[..self.len]);
        }
        if self.v4 {
            let all = ((IPV4 + len) as u16).to_be_bytes();
            let packet = self.len - IPV4;
            head[packet + 2..packet + 4].copy_from_slice(&all);
            let sum = checksum::join(self.ip_sum, u16::from_ne_bytes(all).into());
            head[packet + 10..packet + 12].copy_from_slice(&checksum::of(sum));
        } else {
            let packet = self.len - IPV6;
            head[packet + 4..packet + 6].copy_from_slice(&(len as u16).to_be_bytes());
        }
        let mut tcp = [0; TCP];
        tcp[..4].copy_from_slice(&self.ports);
        tcp[4..8].copy_from_slice(&out.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&out.acknowledged.to_be_bytes());
        tcp[12] = (header as u8 / 4) << 4;
        tcp[13] = out.flags;
        tcp[14..16].copy_from_slice(&out.window.to_be_bytes());
        segment[..TCP].copy_from_slice(&tcp);
        if !out.options.is_empty() {
            segment[TCP..header].copy_from_slice(out.options);
        }
        let (first, second) = segment[header..].split_at_mut(out.data.0.len());
        if !first.is_empty() {
            first.copy_from_slice(out.data.0);
        }
        if !second.is_empty() {
            second.copy_from_slice(out.data.1);
        }
        if self.sums {
            // The ports are in both: what is summed begins behind them.
            let sum = checksum::join(self.tcp_sum, u64::from((len as u16).to_be()));
            let sum = checksum::add(sum, &segment[4..]);
            segment[16..18].copy_from_slice(&checksum::of(sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{EthernetFrame, Ipv4Packet, Ipv6Packet, TcpPacket};
    use std::vec::Vec;

    fn frame(way: &Way, out: &Outgoing) -> Vec<u8> {
        let header = TCP + out.options.len();
        let len = header + out.data.0.len() + out.data.1.len();
        let mut frame = std::vec![0xaa; way.len + len];
        way.write(&mut frame, out, header, len);
        frame
    }

    proptest! {
        #[test]
        fn frames_are_as_smoltcp_reads_them(
            v4: bool, data in prop::collection::vec(any::<u8>(), 0..1400), at in 0..1400usize,
            options in 0..4usize, sequence: u32, acknowledged: u32, window: u16, flags in 0..64u8,
        ) {
            let end = |last: u8, port| IpEndpoint {
                addr: if v4 { IpAddress::v4(10, 0, 0, last) } else { IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, last.into()) },
                port,
            };
            let marks = Marks { hops: Some(7), service: 0xb8, class: 0x9c };
            let way = Way::new(end(1, 80), end(2, 12345), Some(([2; 6], [4; 6])), marks);
            let options = [1; 12][..options * 4].to_vec();
            let (a, b) = data.split_at(at.min(data.len()));
            let out = Outgoing { sequence, acknowledged, flags, window, options: &options, data: (a, b) };
            let frame = frame(&way, &out);
            let e = EthernetFrame::new_checked(&frame[..]).unwrap();
            prop_assert_eq!((e.src_addr().0, e.dst_addr().0), ([2; 6], [4; 6]));
            let segment = if v4 {
                let p = Ipv4Packet::new_checked(e.payload()).unwrap();
                prop_assert!(p.verify_checksum() && p.dont_frag() && (p.hop_limit(), p.dscp(), p.ecn()) == (7, 0x2e, 0));
                prop_assert_eq!((p.src_addr().into(), p.dst_addr().into()), (end(1, 0).addr, end(2, 0).addr));
                p.payload()
            } else {
                let p = Ipv6Packet::new_checked(e.payload()).unwrap();
                prop_assert!((p.hop_limit(), p.traffic_class(), p.flow_label()) == (7, 0x9c, 0));
                prop_assert_eq!((p.src_addr().into(), p.dst_addr().into()), (end(1, 0).addr, end(2, 0).addr));
                p.payload()
            };
            let t = TcpPacket::new_checked(segment).unwrap();
            prop_assert!(t.verify_checksum(&end(1, 0).addr, &end(2, 0).addr));
            prop_assert_eq!((t.src_port(), t.dst_port(), t.window_len()), (80, 12345, window));
            prop_assert_eq!((t.seq_number().0 as u32, t.ack_number().0 as u32), (sequence, acknowledged));
            prop_assert_eq!((t.fin(), t.syn(), t.rst(), t.psh(), t.ack()),
                (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0, flags & 8 != 0, flags & 16 != 0));
            prop_assert_eq!(t.options(), &options[..]);
            prop_assert_eq!(t.payload(), &data[..]);
        }
    }
}
