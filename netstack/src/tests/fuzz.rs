//! A hostile peer: no frame panics the stack, hangs it or makes it grow without bound.

use proptest::prelude::*;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet, IpAddress, IpProtocol, Ipv4Packet,
    Ipv6Packet, TcpPacket, UdpPacket,
};

use super::*;

/// Machine 0 with sockets of every kind and state, and frames from a real conversation with machine 1.
struct Target {
    sim: Sim,
    frames: Vec<Vec<u8>>,
}

impl Target {
    fn new(seed: u64) -> Target {
        let sim = Sim::with(seed, Wire::GOOD, |s| Config { memory: 4 << 20, ..config(s) });
        let mut frames = Vec::new();
        let mut note = |sim: &Sim| {
            for _ in 0..40 {
                frames.extend(sim.lanes[0].lock().unwrap().frames.values().cloned());
                sim.step(SECOND / 10);
            }
        };
        let l = sim.listen(0, "[::]:80", 10);
        sim.listen(0, "0.0.0.0:81", 10);
        let u = sim.calls(0).socket(net::AF_INET6, net::SOCK_DGRAM, 0).unwrap();
        sim.calls(0).bind(u, &bytes("[::]:53".parse().unwrap())).unwrap();
        for to in ["10.0.0.1:80", "[fd00::1]:80"] {
            let to: SocketAddr = to.parse().unwrap();
            for k in 0..4 {
                let a = sim.calls(1).socket(domain(to), net::SOCK_STREAM, 0).unwrap();
                let _ = sim.calls(1).connect(a, &bytes(to));
                note(&sim);
                let Ok((b, _)) = accept(&mut sim.calls(0), l) else { continue };
                let _ = send(&mut sim.calls(1), a, &pattern(0, 3000));
                let _ = send(&mut sim.calls(0), b, &pattern(0, 3000));
                note(&sim);
                match k {
                    1 => sim.calls(0).shutdown(b, 1).unwrap(),
                    2 => sim.calls(1).shutdown(a, 1).unwrap(),
                    3 => sim.calls(0).close(b).unwrap(),
                    _ => {}
                }
                note(&sim);
            }
            let c = sim.calls(1).socket(domain(to), net::SOCK_DGRAM, 0).unwrap();
            let port = |p| bytes(SocketAddr::new(to.ip(), p));
            let _ = send_to(&mut sim.calls(1), c, b"question", Some(&port(53)));
            let _ = send_to(&mut sim.calls(1), c, b"nobody", Some(&port(54)));
            note(&sim);
            // Machine 0 asks, too: refusals come back.
            let a = sim.calls(0).socket(domain(to), net::SOCK_STREAM, 0).unwrap();
            let there = if to.is_ipv6() { "[fd00::2]:7" } else { "10.0.0.2:7" };
            let _ = sim.calls(0).connect(a, &bytes(there.parse().unwrap()));
            let c = sim.calls(0).socket(domain(to), net::SOCK_DGRAM, 0).unwrap();
            let _ = sim.calls(0).connect(c, &bytes(there.parse().unwrap()));
            let _ = send(&mut sim.calls(0), c, b"x");
            note(&sim);
        }
        let a = sim.tcp(0);
        let _ = sim.calls(0).connect(a, &bytes("10.0.0.77:80".parse().unwrap()));
        assert!(frames.len() > 60);
        Target { sim, frames }
    }

    fn hear(&self, frame: Vec<u8>) {
        self.sim.lanes[0].lock().unwrap().push(0, frame);
        let now = self.sim.now();
        self.sim.clock.store(now + 50_000, Ordering::SeqCst);
        self.sim.stacks[0].poll(self.sim.now());
        // What it says is for nobody.
        self.sim.lanes[1].lock().unwrap().frames.clear();
    }

    /// It is still sound: within its bounds, and it serves.
    fn check(&self) {
        let (memory, _, flows) = self.sim.calls(0).usage();
        assert!(memory <= 4 << 20 && flows < 200);
        for s in 0..200 {
            let mut c = self.sim.calls(0);
            let _ = c.probe(s);
            let _ = accept(&mut c, s);
            let _ = receive(&mut c, s, 100, 0);
        }
        let now = self.sim.now();
        assert!(self.sim.stacks[0].poll(now).is_none_or(|t| t + SECOND > now));
    }
}

/// Makes a frame's checksums right, as far as it is a frame.
pub(super) fn sum(frame: &mut [u8]) {
    let Ok(mut e) = EthernetFrame::new_checked(frame) else { return };
    let (a, b, next);
    let kind = e.ethertype();
    let payload = match kind {
        EthernetProtocol::Ipv4 => {
            let Ok(mut p) = Ipv4Packet::new_checked(e.payload_mut()) else { return };
            if p.header_len() < 20 {
                return;
            }
            p.fill_checksum();
            (a, b, next) = (IpAddress::from(p.src_addr()), IpAddress::from(p.dst_addr()), p.next_header());
            let head = usize::from(p.header_len());
            &mut p.into_inner()[head..]
        }
        EthernetProtocol::Ipv6 => {
            let Ok(p) = Ipv6Packet::new_checked(e.payload_mut()) else { return };
            (a, b, next) = (IpAddress::from(p.src_addr()), IpAddress::from(p.dst_addr()), p.next_header());
            &mut p.into_inner()[40..]
        }
        _ => return,
    };
    match (next, a, b) {
        (IpProtocol::Tcp, ..) => {
            if let Ok(mut t) = TcpPacket::new_checked(payload) {
                t.fill_checksum(&a, &b);
            }
        }
        (IpProtocol::Udp, ..) => {
            if let Ok(mut t) = UdpPacket::new_checked(payload) {
                t.fill_checksum(&a, &b);
            }
        }
        (IpProtocol::Icmp, ..) => {
            if let Ok(mut t) = Icmpv4Packet::new_checked(payload) {
                t.fill_checksum();
            }
        }
        (IpProtocol::Icmpv6, IpAddress::Ipv6(a), IpAddress::Ipv6(b)) => {
            if let Ok(mut t) = Icmpv6Packet::new_checked(payload) {
                t.fill_checksum(&a, &b);
            }
        }
        _ => {}
    }
}

fn rounds(n: u64) -> u64 {
    std::env::var("ATOLL_FUZZ").map_or(n, |v| v.parse().unwrap())
}

#[test]
fn real_frames_with_bits_turned() {
    for seed in 0..rounds(30) {
        let t = Target::new(seed % 8);
        let mut r = seed.wrapping_mul(0x9e37_79b9) + 5;
        for k in 0..600 {
            let mut frame = t.frames[random(&mut r) as usize % t.frames.len()].clone();
            for _ in 0..random(&mut r) % 6 {
                // Headers more than what they carry.
                let n = frame.len().min(if random(&mut r).is_multiple_of(4) { 1600 } else { 90 });
                let at = 12 + random(&mut r) as usize % (n - 12);
                frame[at] = match random(&mut r) % 3 {
                    0 => random(&mut r) as u8,
                    1 => frame[at] ^ 1 << (random(&mut r) % 8),
                    _ => [0, 1, 0x7f, 0x80, 0xff][random(&mut r) as usize % 5],
                };
            }
            match random(&mut r) % 10 {
                0 => frame.truncate(random(&mut r) as usize % frame.len()),
                1 => frame.extend(std::vec![0xa5; random(&mut r) as usize % 100]),
                _ => {}
            }
            if !random(&mut r).is_multiple_of(10) {
                sum(&mut frame);
            }
            t.hear(frame);
            if k % 50 == 0 {
                t.check();
            }
        }
        t.check();
        // Everything ends at last.
        for s in 0..300 {
            let _ = t.sim.calls(0).close(s);
        }
        t.sim.lanes[0].lock().unwrap().frames.clear();
        for _ in 0..2000 {
            t.sim.lanes[1].lock().unwrap().frames.clear();
            let now = t.sim.now();
            let Some(next) = t.sim.stacks[0].poll(now) else { break };
            t.sim.clock.store(next.max(now + 1000), Ordering::SeqCst);
        }
        assert_eq!(t.sim.calls(0).usage(), (0, 0, 0), "seed {seed}");
    }
}

#[test]
fn a_flood_of_requests_for_connections() {
    let t = Target::new(3);
    let syn = t.frames.iter().find(|f| f[12..14] == [8, 0] && f[23] == 6 && f[47] == 2).unwrap().clone();
    let mut r = 9;
    for k in 0..20_000u32 {
        let mut frame = syn.clone();
        frame[29] = random(&mut r) as u8;
        frame[34..36].copy_from_slice(&(random(&mut r) as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&if k % 2 == 0 { 80u16 } else { 81 }.to_be_bytes());
        sum(&mut frame);
        t.hear(frame);
    }
    t.check();
    // Whoever means it still gets in, once the flood is over.
    t.sim.run(2 * SECOND);
    let l = t.sim.listen(0, "0.0.0.0:82", 5);
    t.sim.pair(1, 0, l, "10.0.0.1:82");
    t.sim.run(100 * SECOND);
    let a = t.sim.tcp(1);
    let _ = t.sim.calls(1).connect(a, &bytes("10.0.0.1:81".parse().unwrap()));
    t.sim.until(60 * SECOND, "connect", || t.sim.calls(1).probe(a) == OUT);
}

proptest! {
    #[test]
    fn random_frames(frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..50),
                     kind in 0..5usize) {
        let t = Target::new(1);
        for mut f in frames {
            if kind > 0 && f.len() > 34 {
                f[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
                f[12..14].copy_from_slice(&[[8, 0], [8, 6], [0x86, 0xdd], [8, 0]][kind - 1]);
                let len = f.len() as u16 - 14;
                if kind == 1 || kind == 4 {
                    f[14] = 0x45;
                    f[16..18].copy_from_slice(&len.to_be_bytes());
                    f[20..22].copy_from_slice(&[0, 0]);
                    f[23] = [1, 6, 17][usize::from(f[23]) % 3];
                    f[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
                } else if kind == 3 && f.len() > 54 {
                    f[14] = 0x60;
                    f[18..20].copy_from_slice(&(len - 40).to_be_bytes());
                    f[20] = [0, 6, 17, 58, 43, 44][usize::from(f[20]) % 6];
                    f[22..38].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
                    f[38..54].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
                }
                sum(&mut f);
            }
            t.hear(f);
        }
        t.check();
    }
}
