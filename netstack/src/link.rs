//! Frames: ports that move them, the loopback, and what a frame is for.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpAddress,
    IpEndpoint, IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber, UdpPacket,
};

/// Frames in and out: the seam below the stack (architecture section 8).
/// Only the stack calls it, one call at a time, but for a [`PacketPort::send`]
/// from within the closure of [`PacketPort::receive`].
pub trait PacketPort: Send + Sync {
    /// Hardware address.
    fn mac(&self) -> [u8; 6];
    /// Largest IP packet in a frame, bytes; at least 1280.
    fn mtu(&self) -> usize;
    /// Hands the next frame that came to `f`, without a checksum at its end. False: there is none.
    fn receive(&self, f: &mut dyn FnMut(&[u8])) -> bool;
    /// Is there room to send a frame? Stays so until one is sent.
    fn room(&self) -> bool;
    /// Has `f` fill in a frame of `len` bytes and sends it. False: there was no room, and `f` was not called.
    fn send(&self, len: usize, f: &mut dyn FnMut(&mut [u8])) -> bool;
}

/// Largest packet on the loopback, bytes. Its frames are copied twice, so larger ones bring nothing.
const LOOP_MTU: usize = 32 << 10;
/// Frames on the loopback that wait at most; what has no room there is sent again later.
const LOOP_FRAMES: usize = 512;
/// Buffers that the loopback keeps.
const LOOP_SPARE: usize = 16;

/// The loopback's frames.
#[derive(Default)]
pub(crate) struct Loop {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Loop {
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// Takes a frame's buffer back.
    pub(crate) fn done(&mut self, frame: Vec<u8>) {
        if self.spare.len() < LOOP_SPARE {
            self.spare.push(frame);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// Where an interface's frames go.
pub(crate) enum Link {
    Loop(Loop),
    Port(Arc<dyn PacketPort>),
}

impl Link {
    pub(crate) fn is_port(&self) -> bool {
        matches!(self, Link::Port(_))
    }

    pub(crate) fn mtu(&self) -> usize {
        match self {
            Link::Loop(_) => LOOP_MTU,
            Link::Port(p) => p.mtu().clamp(1280, 65535),
        }
    }

    pub(crate) fn room(&self) -> bool {
        match self {
            Link::Loop(l) => l.frames.len() < LOOP_FRAMES,
            Link::Port(p) => p.room(),
        }
    }

    fn send<R>(&mut self, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Link::Loop(l) => {
                let mut frame = l.spare.pop().unwrap_or_default();
                frame.resize(len, 0);
                let r = f(&mut frame);
                l.frames.push_back(frame);
                r
            }
            Link::Port(p) => {
                let (mut f, mut r) = (Some(f), None);
                p.send(len, &mut |frame| {
                    if let Some(f) = f.take() {
                        r = Some(f(frame));
                    }
                });
                match (r, f) {
                    (Some(r), _) => r,
                    // The frame is lost, as one may be on the wire.
                    (None, Some(f)) => f(&mut alloc::vec![0; len]),
                    (None, None) => unreachable!("a closure that ran has a result"),
                }
            }
        }
    }
}

/// What smoltcp sees: one frame to receive, perhaps, and a link to send on.
pub(crate) struct Feed<'a> {
    pub(crate) frame: Option<&'a [u8]>,
    pub(crate) link: &'a mut Link,
    /// IP packets that were sent.
    pub(crate) sent: u32,
    /// Of a connection: the sequence number behind the last one that was ever sent (SND.NXT).
    pub(crate) next: Option<u32>,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(link: &'a mut Link, frame: Option<&'a [u8]>) -> Self {
        Feed { frame, link, sent: 0, next: None }
    }
}

pub(crate) struct Frame<'a>(&'a [u8]);

impl RxToken for Frame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(crate) struct Room<'a> {
    link: &'a mut Link,
    sent: &'a mut u32,
    next: &'a mut Option<u32>,
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let port = self.link.is_port();
        self.link.send(len, |frame| {
            let r = f(frame);
            if !port || !is_question(frame) {
                *self.sent += 1;
            }
            if port {
                mend(frame, self.next);
            }
            r
        })
    }
}

impl Device for Feed<'_> {
    type RxToken<'t>
        = Frame<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Room<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Frame<'_>, Room<'_>)> {
        let frame = self.frame.take()?;
        Some((Frame(frame), Room { link: self.link, sent: &mut self.sent, next: &mut self.next }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        self.link.room().then_some(Room { link: self.link, sent: &mut self.sent, next: &mut self.next })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut c = DeviceCapabilities::default();
        match self.link {
            Link::Loop(_) => {
                c.medium = Medium::Ip;
                c.max_transmission_unit = LOOP_MTU;
                c.checksum = ChecksumCapabilities::ignored();
            }
            Link::Port(_) => {
                c.medium = Medium::Ethernet;
                c.max_transmission_unit = self.link.mtu() + EthernetFrame::<&[u8]>::header_len();
            }
        }
        c
    }
}

/// Gives an acknowledgement without data the sequence number that it must have, SND.NXT (RFC 9293 section
/// 3.10.4). When smoltcp sends again what was lost, it takes a smaller one: a peer that has received more
/// ignores it, and two that do so at once never hear of each other again.
fn mend(frame: &mut [u8], next: &mut Option<u32>) {
    let Ok(mut e) = EthernetFrame::new_checked(frame) else { return };
    match e.ethertype() {
        EthernetProtocol::Ipv4 => {
            let Ok(mut p) = Ipv4Packet::new_checked(e.payload_mut()) else { return };
            if p.next_header() == IpProtocol::Tcp {
                let (from, to) = (p.src_addr().into(), p.dst_addr().into());
                mend_tcp(p.payload_mut(), from, to, next);
            }
        }
        EthernetProtocol::Ipv6 => {
            let Ok(mut p) = Ipv6Packet::new_checked(e.payload_mut()) else { return };
            if p.next_header() == IpProtocol::Tcp {
                let (from, to) = (p.src_addr().into(), p.dst_addr().into());
                mend_tcp(p.payload_mut(), from, to, next);
            }
        }
        _ => {}
    }
}

fn mend_tcp(segment: &mut [u8], from: IpAddress, to: IpAddress, next: &mut Option<u32>) {
    let Ok(mut t) = TcpPacket::new_checked(segment) else { return };
    let len = t.segment_len() as u32;
    let end = (t.seq_number().0 as u32).wrapping_add(len);
    let ahead = next.map_or(0, |n| n.wrapping_sub(end) as i32);
    if ahead <= 0 {
        *next = Some(end);
    } else if len == 0
        && !t.rst()
        && let Some(n) = *next
    {
        t.set_seq_number(TcpSeqNumber(n as i32));
        t.fill_checksum(&from, &to);
    }
}

/// Does a frame ask for a neighbour's hardware address?
fn is_question(frame: &[u8]) -> bool {
    let Ok(e) = EthernetFrame::new_checked(frame) else { return false };
    match e.ethertype() {
        EthernetProtocol::Arp => true,
        EthernetProtocol::Ipv6 => Ipv6Packet::new_checked(e.payload()).is_ok_and(|p| {
            p.next_header() == IpProtocol::Icmpv6
                && Icmpv6Packet::new_checked(p.payload())
                    .is_ok_and(|i| i.msg_type() == Icmpv6Message::NeighborSolicit)
        }),
        _ => false,
    }
}

/// What a frame is for, as far as its headers say. Nothing of it has been verified yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    Tcp {
        local: IpEndpoint,
        remote: IpEndpoint,
        /// It asks for a connection.
        syn: bool,
        rst: bool,
    },
    Udp {
        local: IpEndpoint,
        remote: IpEndpoint,
    },
    /// A message about a packet of ours: it was sent from `local` to `remote` and did not arrive.
    Undelivered {
        tcp: bool,
        local: IpEndpoint,
        remote: IpEndpoint,
        why: Why,
    },
    /// For the interface itself.
    Other,
    /// For nobody.
    Drop,
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Network,
    Host,
    Port,
}

/// Sorts a frame.
pub(crate) fn sort(frame: &[u8], ethernet: bool) -> Hint {
    if !ethernet {
        return sort_ip(frame);
    }
    match EthernetFrame::new_checked(frame) {
        Ok(e) => match e.ethertype() {
            EthernetProtocol::Ipv4 | EthernetProtocol::Ipv6 => sort_ip(e.payload()),
            _ => Hint::Other,
        },
        Err(_) => Hint::Drop,
    }
}

fn sort_ip(packet: &[u8]) -> Hint {
    if packet.is_empty() {
        // Which smoltcp does not bear.
        return Hint::Drop;
    }
    match IpVersion::of_packet(packet) {
        Ok(IpVersion::Ipv4) => {
            let Ok(p) = Ipv4Packet::new_checked(packet) else { return Hint::Drop };
            // Fragments are not put together, and smoltcp would take one for a whole packet.
            if p.more_frags() || p.frag_offset() != 0 {
                return Hint::Drop;
            }
            let (from, to) = (IpAddress::Ipv4(p.src_addr()), IpAddress::Ipv4(p.dst_addr()));
            match p.next_header() {
                IpProtocol::Icmp => sort_icmp_v4(p.payload()),
                next => sort_transport(next, from, to, p.payload()),
            }
        }
        Ok(IpVersion::Ipv6) => {
            let Ok(p) = Ipv6Packet::new_checked(packet) else { return Hint::Drop };
            let (from, to) = (IpAddress::Ipv6(p.src_addr()), IpAddress::Ipv6(p.dst_addr()));
            let (mut next, mut payload) = (p.next_header(), p.payload());
            if next == IpProtocol::HopByHop {
                let [after, len, ..] = *payload else { return Hint::Drop };
                let Some(rest) = payload.get((usize::from(len) + 1) * 8..) else { return Hint::Drop };
                (next, payload) = (IpProtocol::from(after), rest);
            }
            match next {
                IpProtocol::Icmpv6 => sort_icmp_v6(from, to, payload),
                next => sort_transport(next, from, to, payload),
            }
        }
        Err(_) => Hint::Drop,
    }
}

fn sort_transport(protocol: IpProtocol, from: IpAddress, to: IpAddress, payload: &[u8]) -> Hint {
    match protocol {
        IpProtocol::Tcp => match TcpPacket::new_checked(payload) {
            Ok(t) => Hint::Tcp {
                local: IpEndpoint { addr: to, port: t.dst_port() },
                remote: IpEndpoint { addr: from, port: t.src_port() },
                syn: t.syn() && !t.ack() && !t.rst() && !t.fin(),
                rst: t.rst(),
            },
            Err(_) => Hint::Drop,
        },
        IpProtocol::Udp => match UdpPacket::new_checked(payload) {
            Ok(u) => Hint::Udp {
                local: IpEndpoint { addr: to, port: u.dst_port() },
                remote: IpEndpoint { addr: from, port: u.src_port() },
            },
            Err(_) => Hint::Drop,
        },
        _ => Hint::Other,
    }
}

fn sort_icmp_v4(payload: &[u8]) -> Hint {
    let Ok(m) = Icmpv4Packet::new_checked(payload) else { return Hint::Drop };
    if m.msg_type() != Icmpv4Message::DstUnreachable {
        return Hint::Other;
    }
    let why = match m.msg_code() {
        0 | 5 | 6 => Why::Network,
        1 | 7 => Why::Host,
        2 | 3 => Why::Port,
        _ => return Hint::Other,
    };
    if !m.verify_checksum() {
        return Hint::Drop;
    }
    // Only the packet's first bytes are there.
    let p = Ipv4Packet::new_unchecked(m.data());
    if m.data().len() < 20 || p.version() != 4 || m.data().len() < usize::from(p.header_len()) {
        return Hint::Drop;
    }
    let rest = &m.data()[usize::from(p.header_len())..];
    undelivered(p.next_header(), p.src_addr().into(), p.dst_addr().into(), rest, why)
}

fn sort_icmp_v6(from: IpAddress, to: IpAddress, payload: &[u8]) -> Hint {
    let Ok(m) = Icmpv6Packet::new_checked(payload) else { return Hint::Drop };
    let (IpAddress::Ipv6(from), IpAddress::Ipv6(to)) = (from, to) else { return Hint::Drop };
    if m.msg_type() != Icmpv6Message::DstUnreachable {
        return Hint::Other;
    }
    let why = match m.msg_code() {
        0 => Why::Network,
        3 => Why::Host,
        4 => Why::Port,
        _ => return Hint::Other,
    };
    if !m.verify_checksum(&from, &to) {
        return Hint::Drop;
    }
    let data = m.payload();
    if data.len() < 40 {
        return Hint::Drop;
    }
    let p = Ipv6Packet::new_unchecked(data);
    undelivered(p.next_header(), p.src_addr().into(), p.dst_addr().into(), &data[40..], why)
}

fn undelivered(protocol: IpProtocol, from: IpAddress, to: IpAddress, rest: &[u8], why: Why) -> Hint {
    let tcp = match protocol {
        IpProtocol::Tcp => true,
        IpProtocol::Udp => false,
        _ => return Hint::Other,
    };
    let [a, b, c, d, ..] = *rest else { return Hint::Drop };
    Hint::Undelivered {
        tcp,
        local: IpEndpoint { addr: from, port: u16::from_be_bytes([a, b]) },
        remote: IpEndpoint { addr: to, port: u16::from_be_bytes([c, d]) },
        why,
    }
}
