//! Stacks joined by a wire that loses and reorders, on a clock of their own.

use std::boxed::Box;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use atoll_abi::platform::{Event, Events};
use atoll_abi::{Errno, Result};
use linux_raw_sys::net;

use crate::{Calls, Config, PacketPort, PortConfig, Stack};

mod datagrams;
mod dhcp;
mod fuzz;
mod readiness;
mod streams;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// Frames on their way in one direction, by arrival.
#[derive(Default)]
pub struct Lane {
    frames: BTreeMap<(u64, u64), Vec<u8>>,
    count: u64,
    random: u64,
}

/// What a wire does to frames.
#[derive(Clone, Copy)]
pub struct Wire {
    /// Of a thousand.
    pub loss: u64,
    /// Of a thousand, those that come later.
    pub late: u64,
    /// Of a thousand, those that come twice.
    pub twice: u64,
    /// Of a thousand, those for which there is no room; a moment later there is.
    pub full: u64,
    /// ns.
    pub delay: u64,
}

impl Wire {
    pub const GOOD: Wire = Wire { loss: 0, late: 0, twice: 0, full: 0, delay: 50_000 };
}

pub struct TestPort {
    mac: [u8; 6],
    wire: Wire,
    clock: Arc<AtomicU64>,
    pub input: Arc<Mutex<Lane>>,
    output: Arc<Mutex<Lane>>,
}

pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

impl Lane {
    /// The last one that is on its way.
    pub fn last(&self) -> Option<&Vec<u8>> {
        self.frames.values().next_back()
    }

    pub fn push(&mut self, at: u64, frame: Vec<u8>) {
        self.count += 1;
        self.frames.insert((at, self.count), frame);
    }

    pub fn pop(&mut self, now: u64) -> Option<Vec<u8>> {
        let (&key, _) = self.frames.first_key_value()?;
        if key.0 > now { None } else { self.frames.remove(&key) }
    }
}

impl PacketPort for TestPort {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn receive(&self, f: &mut dyn FnMut(&[u8])) -> bool {
        let frame = self.input.lock().unwrap().pop(self.clock.load(Ordering::SeqCst));
        match frame {
            Some(frame) => {
                f(&frame);
                true
            }
            None => false,
        }
    }

    fn room(&self) -> bool {
        self.output.lock().unwrap().frames.len() < 300
    }

    fn send(&self, len: usize, f: &mut dyn FnMut(&mut [u8])) -> bool {
        let full =
            self.wire.full > 0 && random(&mut self.output.lock().unwrap().random) % 1000 < self.wire.full;
        if full || !self.room() {
            return false;
        }
        let mut frame = std::vec![0; len];
        f(&mut frame);
        let mut lane = self.output.lock().unwrap();
        let lane = &mut *lane;
        let now = self.clock.load(Ordering::SeqCst);
        let mut chance = |p: u64| p > 0 && random(&mut lane.random) % 1000 < p;
        let (lost, late, twice) = (chance(self.wire.loss), chance(self.wire.late), chance(self.wire.twice));
        if !lost {
            let at = now + self.wire.delay * if late { 5 } else { 1 };
            if twice {
                lane.push(at + self.wire.delay, frame.clone());
            }
            lane.push(at, frame);
        }
        true
    }
}

/// Two machines, 10.0.0.1 and 10.0.0.2, fd00::1 and fd00::2.
pub struct Sim {
    pub clock: Arc<AtomicU64>,
    pub stacks: Vec<Stack>,
    pub lanes: Vec<Arc<Mutex<Lane>>>,
}

pub fn config(seed: u64) -> Config {
    Config { memory: 64 << 20, ..Config::new(seed, 4) }
}

impl Sim {
    pub fn new(seed: u64, wire: Wire) -> Sim {
        Sim::with(seed, wire, config)
    }

    pub fn with(seed: u64, wire: Wire, config: fn(u64) -> Config) -> Sim {
        let clock = Arc::new(AtomicU64::new(SECOND));
        let lanes: Vec<_> =
            (0..2).map(|n| Arc::new(Mutex::new(Lane { random: seed * 2 + n, ..Lane::default() }))).collect();
        let stacks = (0..2u8)
            .map(|n| {
                let port = TestPort {
                    mac: [2, 0, 0, 0, 0, n + 1],
                    wire,
                    clock: clock.clone(),
                    input: lanes[usize::from(n)].clone(),
                    output: lanes[usize::from(1 - n)].clone(),
                };
                let address = |s: &str| s.parse::<IpAddr>().unwrap();
                let port = PortConfig {
                    port: Arc::new(port),
                    dhcp: false,
                    addresses: std::vec![
                        (address(&std::format!("10.0.0.{}", n + 1)), 24),
                        (address(&std::format!("fd00::{}", n + 1)), 64),
                    ],
                    gateways: std::vec![address("10.0.0.254")],
                };
                Stack::new(config(seed + u64::from(n)), std::vec![port], Box::new(|_| {}))
            })
            .collect();
        Sim { clock, stacks, lanes }
    }

    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    pub fn calls(&self, n: usize) -> Calls<'_> {
        self.stacks[n].calls(self.now())
    }

    /// Lets time go on to the next thing that happens, or for `limit`; false: it came to the limit.
    pub fn step(&self, limit: u64) -> bool {
        let now = self.now();
        let mut next = now + limit;
        for s in &self.stacks {
            next = next.min(s.poll(now).unwrap_or(u64::MAX));
        }
        for l in &self.lanes {
            next = next.min(l.lock().unwrap().frames.keys().next().map_or(u64::MAX, |k| k.0));
        }
        // A deadline may be due; time never stands still.
        self.clock.store(next.max(now + 1000), Ordering::SeqCst);
        for s in &self.stacks {
            s.poll(self.now());
        }
        next < now + limit
    }

    /// Lets things happen for some time.
    pub fn run(&self, time: u64) {
        let end = self.now() + time;
        while self.now() < end {
            self.step(end - self.now());
        }
    }

    /// Lets things happen until something is so; panics if it takes longer than `limit`.
    pub fn until(&self, limit: u64, what: &str, mut f: impl FnMut() -> bool) {
        let end = self.now() + limit;
        while !f() {
            assert!(self.now() < end, "not within the time: {what}");
            self.step(end - self.now());
        }
    }

    pub fn tcp(&self, n: usize) -> i32 {
        self.calls(n).socket(net::AF_INET, net::SOCK_STREAM, 0).unwrap()
    }

    pub fn listen(&self, n: usize, at: &str, backlog: u32) -> i32 {
        let at: SocketAddr = at.parse().unwrap();
        let s = self.calls(n).socket(domain(at), net::SOCK_STREAM, 0).unwrap();
        self.calls(n).set_option(s, net::SOL_SOCKET, net::SO_REUSEADDR, &1u32.to_ne_bytes()).unwrap();
        self.calls(n).bind(s, &bytes(at)).unwrap();
        self.calls(n).listen(s, backlog).unwrap();
        s
    }

    /// A connection from machine `from` to `to`, which listens on machine `on`.
    pub fn pair(&self, from: usize, on: usize, listener: i32, to: &str) -> (i32, i32) {
        let to: SocketAddr = to.parse().unwrap();
        let a = self.calls(from).socket(domain(to), net::SOCK_STREAM, 0).unwrap();
        assert_eq!(self.calls(from).connect(a, &bytes(to)), Err(Errno::EINPROGRESS));
        let mut b = None;
        self.until(60 * SECOND, "accept", || {
            b = accept(&mut self.calls(on), listener).ok();
            b.is_some()
        });
        self.until(60 * SECOND, "connect", || self.calls(from).probe(a) & OUT != 0);
        assert_eq!(self.calls(from).connect(a, &bytes(to)), Ok(()));
        assert_eq!(self.calls(from).connect(a, &bytes(to)), Err(Errno::EISCONN));
        (a, b.unwrap().0)
    }
}

pub use crate::stack::bits::{ERR, HUP, IN, OUT, OUT_UDP, RDHUP};

pub fn domain(a: SocketAddr) -> u32 {
    if a.is_ipv6() { net::AF_INET6 } else { net::AF_INET }
}

/// A `sockaddr`.
pub fn bytes(a: SocketAddr) -> Vec<u8> {
    let mut out = (domain(a) as u16).to_ne_bytes().to_vec();
    out.extend(a.port().to_be_bytes());
    match a {
        SocketAddr::V4(a) => {
            out.extend(a.ip().octets());
            out.extend([0; 8]);
        }
        SocketAddr::V6(a) => {
            out.extend([0; 4]);
            out.extend(a.ip().octets());
            out.extend(a.scope_id().to_ne_bytes());
        }
    }
    out
}

/// What a `sockaddr` says.
pub fn parse(b: &[u8]) -> SocketAddr {
    let port = u16::from_be_bytes([b[2], b[3]]);
    if u32::from(b[0]) == net::AF_INET {
        SocketAddr::new(IpAddr::from(<[u8; 4]>::try_from(&b[4..8]).unwrap()), port)
    } else {
        SocketAddr::new(IpAddr::from(<[u8; 16]>::try_from(&b[8..24]).unwrap()), port)
    }
}

pub fn name(c: &mut Calls, s: i32, peer: bool) -> Result<SocketAddr> {
    let mut b = [0; 28];
    let n = c.name(s, peer, &mut b)?;
    Ok(parse(&b[..n]))
}

pub fn accept(c: &mut Calls, s: i32) -> Result<(i32, SocketAddr)> {
    let mut b = [0; 28];
    let (fd, n) = c.accept(s, &mut b)?;
    Ok((fd, parse(&b[..n])))
}

pub fn send(c: &mut Calls, s: i32, bytes: &[u8]) -> Result<usize> {
    send_to(c, s, bytes, None)
}

pub fn send_to(c: &mut Calls, s: i32, bytes: &[u8], to: Option<&[u8]>) -> Result<usize> {
    let mut rest = bytes;
    c.send(s, bytes.len(), to, 0, &mut |room| {
        room.copy_from_slice(&rest[..room.len()]);
        rest = &rest[room.len()..];
        room.len()
    })
}

/// As [`send`], with `flags`.
pub fn send_with(c: &mut Calls, s: i32, bytes: &[u8], flags: u32) -> Result<usize> {
    let mut rest = bytes;
    c.send(s, bytes.len(), None, flags, &mut |room| {
        room.copy_from_slice(&rest[..room.len()]);
        rest = &rest[room.len()..];
        room.len()
    })
}

pub fn receive(c: &mut Calls, s: i32, max: usize, flags: u32) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    c.receive(s, max, None, flags, &mut |b| {
        out.extend_from_slice(b);
        b.len()
    })?;
    Ok(out)
}

pub fn error_of(c: &mut Calls, s: i32) -> u32 {
    option(c, s, net::SOL_SOCKET, net::SO_ERROR).unwrap()
}

pub fn option(c: &mut Calls, s: i32, level: u32, name: u32) -> Result<u32> {
    let mut v = [0; 4];
    c.get_option(s, level, name, &mut v)?;
    Ok(u32::from_ne_bytes(v))
}

pub fn events(s: &Stack, core: usize) -> Vec<(u64, u32, u32)> {
    let mut e = Events::new();
    s.take_events(core, &mut e);
    e.iter()
        .map(|e| match e {
            Event::Ready { cookie, events, look } => (*cookie, *events, *look),
            _ => unreachable!(),
        })
        .collect()
}

/// Bytes that can be checked at any place.
pub fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
