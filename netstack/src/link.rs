//! Frames: ports that move them, the loopback, and what a frame is for.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpAddress,
    IpEndpoint, IpProtocol, IpVersion, Ipv4Address, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

use crate::checksum;

/// Frames in and out: the seam below the stack (architecture section 8).
/// Only the stack calls it, one call at a time, but for a [`PacketPort::send`]
/// from within the closure of [`PacketPort::receive`].
pub trait PacketPort: Send + Sync {
    /// Hardware address.
    fn mac(&self) -> [u8; 6];
    /// Largest IP packet in a frame, bytes; at least 1280.
    fn mtu(&self) -> usize;
    /// Hands the next frame that came to `f`, without a checksum at its end. False: there is none, and whoever cares for
    /// the port will hear of the next one.
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
    /// A port, and the largest packet that it takes.
    Port(Arc<dyn PacketPort>, usize),
}

impl Link {
    pub(crate) fn of(port: Arc<dyn PacketPort>) -> Link {
        let mtu = port.mtu().clamp(1280, 65535);
        Link::Port(port, mtu)
    }

    pub(crate) fn is_port(&self) -> bool {
        matches!(self, Link::Port(..))
    }

    pub(crate) fn mtu(&self) -> usize {
        match self {
            Link::Loop(_) => LOOP_MTU,
            Link::Port(_, mtu) => *mtu,
        }
    }

    pub(crate) fn room(&self) -> bool {
        match self {
            Link::Loop(l) => l.frames.len() < LOOP_FRAMES,
            Link::Port(p, _) => p.room(),
        }
    }

    /// Has `f` fill in a frame of `len` bytes and sends it. False: there was no room, and `f` was not called.
    #[inline]
    pub(crate) fn try_send(&mut self, len: usize, f: &mut dyn FnMut(&mut [u8])) -> bool {
        match self {
            Link::Loop(l) if l.frames.len() >= LOOP_FRAMES => false,
            Link::Loop(l) => {
                let mut frame = l.spare.pop().unwrap_or_default();
                frame.resize(len, 0);
                f(&mut frame);
                l.frames.push_back(frame);
                true
            }
            Link::Port(p, _) => p.send(len, f),
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
            Link::Port(p, _) => {
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
    frame: Option<&'a [u8]>,
    link: &'a mut Link,
    /// IP packets that were sent.
    pub(crate) sent: u32,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(link: &'a mut Link, frame: Option<&'a [u8]>) -> Self {
        Feed { frame, link, sent: 0 }
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
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let port = self.link.is_port();
        self.link.send(len, |frame| {
            let r = f(frame);
            if !port || !is_question(frame) {
                *self.sent += 1;
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
        Some((Frame(frame), Room { link: self.link, sent: &mut self.sent }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        self.link.room().then_some(Room { link: self.link, sent: &mut self.sent })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut c = DeviceCapabilities::default();
        match self.link {
            Link::Loop(_) => {
                c.medium = Medium::Ip;
                c.max_transmission_unit = LOOP_MTU;
                c.checksum = ChecksumCapabilities::ignored();
            }
            Link::Port(..) => {
                c.medium = Medium::Ethernet;
                c.max_transmission_unit = self.link.mtu() + EthernetFrame::<&[u8]>::header_len();
            }
        }
        c
    }
}

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Of a TCP header without options.
const TCP_HEADER: usize = 20;
/// Bytes of the headers of most segments: Ethernet's, IPv4's and TCP's without options.
const HEADERS: usize = ETHERNET + 20 + TCP_HEADER;

/// Where things are in [`HEADERS`].
mod at {
    use core::ops::Range;
    /// The Ethernet header's end, and the IPv4 header's beginning: what follows is IPv4, of 20 bytes.
    pub const KIND: Range<usize> = 12..15;
    pub const IPV4: Range<usize> = 14..34;
    pub const IPV4_LEN: usize = 16;
    pub const IPV4_FRAGMENT: usize = 20;
    pub const IPV4_PROTOCOL: usize = 23;
    pub const FROM: usize = 26;
    pub const TO: usize = 30;
    pub const ADDRESSES: Range<usize> = 26..34;
    pub const TCP: usize = 34;
    pub const FROM_PORT: usize = 34;
    pub const TO_PORT: usize = 36;
    pub const SEQUENCE: usize = 38;
    pub const ACKNOWLEDGED: usize = 42;
    pub const TCP_LEN: usize = 46;
    pub const FLAGS: usize = 47;
    pub const WINDOW: usize = 48;
}

const IPV4_OF_20: [u8; 3] = [8, 0, 0x45];
const TCP: u8 = 6;

fn word(header: &[u8; HEADERS], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

fn long(header: &[u8; HEADERS], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
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

/// What a frame is for, as far as its headers say. Of what has come through a port, the checksums of IPv4 and TCP are
/// right; nothing else has been verified yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hint<'f> {
    Tcp(Segment<'f>),
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

/// A segment's flags (RFC 9293 section 3.1).
pub(crate) mod flags {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
    /// All that say what it is.
    pub const ALL: u8 = 63;
}

/// What a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'f> {
    pub(crate) local: IpEndpoint,
    pub(crate) remote: IpEndpoint,
    /// Of [`flags::ALL`].
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    /// If it acknowledges.
    pub(crate) acknowledged: u32,
    pub(crate) window: u16,
    pub(crate) options: &'f [u8],
    pub(crate) data: &'f [u8],
}

impl Segment<'_> {
    /// Does it ask for a connection?
    pub(crate) fn opens(&self) -> bool {
        self.flags & (flags::SYN | flags::ACK | flags::RST | flags::FIN) == flags::SYN
    }

    pub(crate) fn resets(&self) -> bool {
        self.flags & flags::RST != 0
    }
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Network,
    Host,
    Port,
}

/// Sorts a frame. `ethernet`: it came through a port.
pub(crate) fn sort(frame: &[u8], ethernet: bool) -> Hint<'_> {
    if !ethernet {
        return sort_ip(frame, false);
    }
    if let Some(hint) = sort_usual(frame) {
        return hint;
    }
    match EthernetFrame::new_checked(frame) {
        Ok(e) => match e.ethertype() {
            EthernetProtocol::Ipv4 | EthernetProtocol::Ipv6 => sort_ip(&frame[ETHERNET..], true),
            _ => Hint::Other,
        },
        Err(_) => Hint::Drop,
    }
}

/// As [`sort`], for TCP over IPv4 without options; None: it is something else, or broken.
#[inline]
fn sort_usual(frame: &[u8]) -> Option<Hint<'_>> {
    let header = frame.first_chunk::<HEADERS>()?;
    let end = ETHERNET + usize::from(word(header, at::IPV4_LEN));
    let data = at::TCP + usize::from(header[at::TCP_LEN] >> 4) * 4;
    let usual = header[at::KIND] == IPV4_OF_20
        && header[at::IPV4_PROTOCOL] == TCP
        // It is no fragment.
        && word(header, at::IPV4_FRAGMENT) & 0x3fff == 0
        && (HEADERS..=end).contains(&data);
    let packet = frame.get(..end).filter(|_| usual)?;
    let sum = checksum::add(checksum::pseudo_tcp(end - at::TCP), &packet[at::ADDRESSES.start..]);
    if !checksum::is_right(checksum::add_few(0, &header[at::IPV4])) || !checksum::is_right(sum) {
        return None;
    }
    let address = |at| IpAddress::Ipv4(Ipv4Address::from_bits(long(header, at)));
    Some(Hint::Tcp(Segment {
        local: IpEndpoint { addr: address(at::TO), port: word(header, at::TO_PORT) },
        remote: IpEndpoint { addr: address(at::FROM), port: word(header, at::FROM_PORT) },
        flags: header[at::FLAGS] & flags::ALL,
        sequence: long(header, at::SEQUENCE),
        acknowledged: long(header, at::ACKNOWLEDGED),
        window: word(header, at::WINDOW),
        options: &packet[HEADERS..data],
        data: &packet[data..],
    }))
}

/// `verify`: see to the checksums that smoltcp does not.
fn sort_ip(packet: &[u8], verify: bool) -> Hint<'_> {
    if packet.is_empty() {
        // Which smoltcp does not bear.
        return Hint::Drop;
    }
    match IpVersion::of_packet(packet) {
        Ok(IpVersion::Ipv4) => {
            let Ok(p) = Ipv4Packet::new_checked(packet) else { return Hint::Drop };
            // Fragments are not put together, and smoltcp would take one for a whole packet.
            if p.more_frags() || p.frag_offset() != 0 || verify && !p.verify_checksum() {
                return Hint::Drop;
            }
            let (from, to) = (IpAddress::Ipv4(p.src_addr()), IpAddress::Ipv4(p.dst_addr()));
            match p.next_header() {
                IpProtocol::Icmp => sort_icmp_v4(p.payload()),
                next => sort_transport(next, from, to, p.payload(), verify),
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
                next => sort_transport(next, from, to, payload, verify),
            }
        }
        Err(_) => Hint::Drop,
    }
}

fn sort_transport(
    protocol: IpProtocol,
    from: IpAddress,
    to: IpAddress,
    payload: &[u8],
    verify: bool,
) -> Hint<'_> {
    match protocol {
        IpProtocol::Tcp => match TcpPacket::new_checked(payload) {
            Ok(t) if !verify || t.verify_checksum(&from, &to) => Hint::Tcp(Segment {
                local: IpEndpoint { addr: to, port: t.dst_port() },
                remote: IpEndpoint { addr: from, port: t.src_port() },
                flags: payload[at::FLAGS - at::TCP] & flags::ALL,
                sequence: t.seq_number().0 as u32,
                acknowledged: t.ack_number().0 as u32,
                window: t.window_len(),
                options: &payload[TCP_HEADER..t.header_len().into()],
                data: &payload[t.header_len().into()..],
            }),
            _ => Hint::Drop,
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

fn sort_icmp_v4(payload: &[u8]) -> Hint<'_> {
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

fn sort_icmp_v6(from: IpAddress, to: IpAddress, payload: &[u8]) -> Hint<'_> {
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

fn undelivered(protocol: IpProtocol, from: IpAddress, to: IpAddress, rest: &[u8], why: Why) -> Hint<'_> {
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
