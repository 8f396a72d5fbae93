//! Connections with Linux's own TCP, over a TAP device in a network namespace of the test's, on a wire that loses,
//! delays and repeats. Needs to be root: else it says so, and passes.
#![allow(unsafe_code, reason = "makes Linux's calls")]
#![allow(missing_docs, reason = "a test")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_abi::Errno;
use atoll_netstack::{Config, PacketPort, PortConfig, Stack};
use linux_raw_sys::net;

/// What the wire does to frames, each way, of a thousand.
#[derive(Clone, Copy, Debug)]
struct Bad {
    lost: u64,
    late: u64,
    twice: u64,
}

struct Wire {
    bad: Bad,
    random: u64,
    /// Frames that wait, by when and count: to Linux, to the stack.
    late: [BTreeMap<(Instant, u64), Vec<u8>>; 2],
    count: u64,
    buffer: Vec<u8>,
}

struct Tap {
    file: File,
    wire: Mutex<Wire>,
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

impl Wire {
    /// A frame that goes one way: what comes out now.
    fn pass(&mut self, way: usize, frame: Vec<u8>) -> Option<Vec<u8>> {
        let mut chance = |p: u64| p > 0 && random(&mut self.random) % 1000 < p;
        let (lost, late, twice) = (chance(self.bad.lost), chance(self.bad.late), chance(self.bad.twice));
        let delay = Duration::from_micros(300 + random(&mut self.random) % 3000);
        self.count += 1;
        if twice || late && !lost {
            self.late[way].insert((Instant::now() + delay, self.count), frame.clone());
        }
        (!lost && !late).then_some(frame)
    }

    fn due(&mut self, way: usize) -> Option<Vec<u8>> {
        let (&key, _) = self.late[way].first_key_value()?;
        if key.0 > Instant::now() { None } else { self.late[way].remove(&key) }
    }
}

impl Tap {
    fn to_linux(&self, frame: &[u8]) {
        // One that has no room there is lost.
        let _ = (&self.file).write(frame);
    }

    /// Frames that are late, to Linux.
    fn deliver(&self) {
        let due: Vec<_> = {
            let mut w = self.wire.lock().unwrap();
            std::iter::from_fn(|| w.due(0)).collect()
        };
        due.iter().for_each(|f| self.to_linux(f));
    }
}

impl PacketPort for Tap {
    fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 9]
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn receive(&self, f: &mut dyn FnMut(&[u8])) -> bool {
        let next = {
            let mut w = self.wire.lock().unwrap();
            let w = &mut *w;
            match w.due(1) {
                Some(frame) => Some(frame),
                None => loop {
                    let Ok(n) = (&self.file).read(&mut w.buffer) else { break None };
                    let frame = w.buffer[..n].to_vec();
                    if let Some(frame) = w.pass(1, frame) {
                        break Some(frame);
                    }
                },
            }
        };
        next.map(|frame| f(&frame)).is_some()
    }

    fn room(&self) -> bool {
        true
    }

    fn send(&self, len: usize, f: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut frame = vec![0; len];
        f(&mut frame);
        let frame = self.wire.lock().unwrap().pass(0, frame);
        if let Some(frame) = frame {
            self.to_linux(&frame);
        }
        true
    }
}

/// A machine beside this one, in a namespace where nobody else is.
struct Two {
    stack: Stack,
    tap: Arc<Tap>,
    begun: Instant,
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().expect("the program ip");
    assert!(status.success(), "ip {words}");
}

impl Two {
    fn new(bad: Bad, seed: u64) -> Option<Two> {
        // SAFETY: no memory is involved; only this thread and those that it starts are elsewhere then.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            eprintln!("skipped: a network namespace needs root");
            return None;
        }
        let tun =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        let Ok(file) = tun else {
            eprintln!("skipped: there is no /dev/net/tun");
            return None;
        };
        const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
        // struct ifreq: the name, and IFF_TAP | IFF_NO_PI.
        let mut request = [0u8; 40];
        request[..4].copy_from_slice(b"tap0");
        request[16..18].copy_from_slice(&0x1002u16.to_ne_bytes());
        // SAFETY: our structure, of the size that it has.
        assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) }, 0);
        ip("link set tap0 up");
        ip("addr add 10.9.0.1/24 dev tap0");
        ip("addr add fd09::1/64 dev tap0 nodad");
        let late = [BTreeMap::new(), BTreeMap::new()];
        let wire = Wire { bad, random: seed, late, count: 0, buffer: vec![0; 70_000] };
        let tap = Arc::new(Tap { file, wire: Mutex::new(wire) });
        let address = |s: &str| s.parse::<IpAddr>().unwrap();
        let port = PortConfig {
            port: tap.clone(),
            dhcp: false,
            addresses: vec![(address("10.9.0.2"), 24), (address("fd09::2"), 64)],
            gateways: Vec::new(),
        };
        let stack = Stack::new(Config::new(seed, 1), vec![port], Box::new(|_| {}));
        Some(Two { stack, tap, begun: Instant::now() })
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Lets things happen until something is so.
    fn until(&self, limit: Duration, what: &str, mut f: impl FnMut() -> bool) {
        let end = Instant::now() + limit;
        while !f() {
            assert!(Instant::now() < end, "not within the time: {what}");
            self.tap.deliver();
            self.stack.poll(self.now());
            let mut p = libc::pollfd { fd: self.tap.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let ms = i32::from(self.stack.deadline().is_none_or(|t| t > self.now()));
            // SAFETY: one entry.
            unsafe { libc::poll(&raw mut p, 1, ms) };
        }
    }

    fn socket(&self, at: SocketAddr) -> i32 {
        let domain = if at.is_ipv6() { net::AF_INET6 } else { net::AF_INET };
        self.stack.calls(self.now()).socket(domain, net::SOCK_STREAM, 0).unwrap()
    }

    /// A connection, that Linux asks for or the stack does.
    fn pair(&self, v6: bool, linux_asks: bool) -> (TcpStream, i32) {
        let at = move |linux: bool, port| {
            let host = match (v6, linux) {
                (false, true) => "10.9.0.1",
                (false, false) => "10.9.0.2",
                (true, true) => "fd09::1",
                (true, false) => "fd09::2",
            };
            SocketAddr::new(host.parse().unwrap(), port)
        };
        let limit = Duration::from_secs(60);
        if linux_asks {
            let l = self.socket(at(false, 80));
            self.stack.calls(self.now()).bind(l, &bytes(at(false, 80))).unwrap();
            self.stack.calls(self.now()).listen(l, 8).unwrap();
            let asks = std::thread::spawn(move || TcpStream::connect(at(false, 80)).unwrap());
            let mut got = None;
            self.until(limit, "a request", || {
                got = self.stack.calls(self.now()).accept(l, &mut [0; 28]).ok();
                got.is_some()
            });
            self.until(limit, "a connection", || asks.is_finished());
            self.stack.calls(self.now()).close(l).unwrap();
            return (asks.join().unwrap(), got.unwrap().0);
        }
        let listener = TcpListener::bind(at(true, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let to = listener.local_addr().unwrap();
        let s = self.socket(to);
        assert_eq!(self.stack.calls(self.now()).connect(s, &bytes(to)), Err(Errno::EINPROGRESS));
        let mut got = None;
        self.until(limit, "a connection", || {
            got = got.take().or_else(|| listener.accept().ok());
            got.is_some() && self.stack.calls(self.now()).probe(s) & libc::POLLOUT as u32 != 0
        });
        assert_eq!(self.stack.calls(self.now()).connect(s, &bytes(to)), Ok(()));
        (got.unwrap().0, s)
    }
}

/// A `sockaddr`.
fn bytes(a: SocketAddr) -> Vec<u8> {
    let family = if a.is_ipv6() { net::AF_INET6 } else { net::AF_INET };
    let mut out = (family as u16).to_ne_bytes().to_vec();
    out.extend(a.port().to_be_bytes());
    match a.ip() {
        IpAddr::V4(ip) => {
            out.extend(ip.octets());
            out.extend([0; 8]);
        }
        IpAddr::V6(ip) => {
            out.extend([0; 4]);
            out.extend(ip.octets());
            out.extend([0; 4]);
        }
    }
    out
}

fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// What Linux says of its end: `struct tcp_info`.
fn tcp_info(s: &TcpStream) -> [u8; 104] {
    let (mut info, mut len) = ([0u8; 104], 104u32);
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: our buffer and its length.
    let r = unsafe { libc::getsockopt(s.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &raw mut len) };
    assert_eq!(r, 0);
    info
}

/// Bytes both ways at once, each checked; then Linux ends, or the stack does.
fn transfer(two: &Two, mut linux: TcpStream, s: i32, len: usize, linux_ends: bool) {
    linux.set_nonblocking(true).unwrap();
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    let mut seed = 11;
    let mut room = vec![0; 40_000];
    two.until(Duration::from_secs(120), "all bytes", || {
        let size = random(&mut seed) as usize % 30_000 + 1;
        let part = pattern(sent[0], size.min(len - sent[0]));
        match linux.write(&part) {
            Ok(n) => sent[0] += n,
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        let part = pattern(sent[1], size.min(len - sent[1]));
        let mut rest = &part[..];
        let put = two.stack.calls(two.now()).send(s, part.len(), None, 0, &mut |room| {
            let n = room.len();
            room.copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            n
        });
        match put {
            Ok(n) => sent[1] += n,
            Err(e) => assert_eq!(e, Errno::EAGAIN),
        }
        match linux.read(&mut room[..size]) {
            Ok(n) => {
                assert!(room[..n] == pattern(got[1], n), "at {}", got[1]);
                got[1] += n;
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        let mut bytes = Vec::new();
        let mut calls = two.stack.calls(two.now());
        let took = calls.receive(s, size, None, 0, &mut |b| {
            bytes.extend_from_slice(b);
            b.len()
        });
        drop(calls);
        match took {
            Ok(_) => {
                assert!(bytes == pattern(got[0], bytes.len()), "at {}", got[0]);
                got[0] += bytes.len();
            }
            Err(e) => assert_eq!(e, Errno::EAGAIN),
        }
        got == [len; 2]
    });
    // The options: time stamps, selective acknowledgements, window scaling.
    assert_eq!(tcp_info(&linux)[5] & 7, 7);
    let ended = |linux: &mut TcpStream| matches!(linux.read(&mut [0; 9]), Ok(0));
    let receive = || two.stack.calls(two.now()).receive(s, 9, None, 0, &mut |b| b.len()).map(|r| r.len);
    let limit = Duration::from_secs(60);
    if linux_ends {
        linux.shutdown(std::net::Shutdown::Write).unwrap();
        two.until(limit, "Linux's end", || receive() == Ok(0));
        two.stack.calls(two.now()).close(s).unwrap();
        two.until(limit, "our end", || ended(&mut linux));
    } else {
        two.stack.calls(two.now()).shutdown(s, 1).unwrap();
        two.until(limit, "our end", || ended(&mut linux));
        drop(linux);
        two.until(limit, "Linux's end", || receive() == Ok(0));
        two.stack.calls(two.now()).close(s).unwrap();
    }
}

fn exchange(bad: Bad, len: usize) {
    let seed = std::env::var("ATOLL_SEED").map_or(5, |v| v.parse().unwrap());
    let Some(two) = Two::new(bad, seed) else { return };
    for (n, (v6, linux_asks)) in
        [(false, true), (true, true), (false, false), (true, false)].into_iter().enumerate()
    {
        let begun = Instant::now();
        let (linux, s) = two.pair(v6, linux_asks);
        transfer(&two, linux, s, len, n.is_multiple_of(2));
        println!("{bad:?} v6 {v6} Linux asks {linux_asks}: {:?}", begun.elapsed());
    }
}

#[test]
fn over_a_good_wire() {
    exchange(Bad { lost: 0, late: 0, twice: 0 }, 8 << 20);
}

#[test]
fn over_a_wire_that_loses() {
    exchange(Bad { lost: 10, late: 0, twice: 0 }, 2 << 20);
}

#[test]
fn over_a_wire_that_does_everything() {
    exchange(Bad { lost: 20, late: 30, twice: 20 }, 1 << 20);
}

#[test]
fn resets_and_refusals() {
    let Some(two) = Two::new(Bad { lost: 0, late: 0, twice: 0 }, 6) else { return };
    let limit = Duration::from_secs(20);
    for v6 in [false, true] {
        // Nobody listens there.
        let to: SocketAddr = if v6 { "[fd09::2]:81" } else { "10.9.0.2:81" }.parse().unwrap();
        let asks = std::thread::spawn(move || TcpStream::connect(to).map(drop).unwrap_err().kind());
        two.until(limit, "an answer", || asks.is_finished());
        assert_eq!(asks.join().unwrap(), ErrorKind::ConnectionRefused);
        // Nor here.
        let to: SocketAddr = if v6 { "[fd09::1]:81" } else { "10.9.0.1:81" }.parse().unwrap();
        let s = two.socket(to);
        assert_eq!(two.stack.calls(two.now()).connect(s, &bytes(to)), Err(Errno::EINPROGRESS));
        two.until(limit, "a refusal", || {
            two.stack.calls(two.now()).connect(s, &bytes(to)) == Err(Errno::ECONNREFUSED)
        });
        // Closed with something unread, Linux resets; and so do we.
        let (linux, s) = two.pair(v6, true);
        two.stack.calls(two.now()).send(s, 5, None, 0, &mut |room| room.len()).unwrap();
        two.until(limit, "bytes", || linux.peek(&mut [0; 9]).is_ok());
        drop(linux);
        let receive = |s| two.stack.calls(two.now()).receive(s, 9, None, 0, &mut |b| b.len()).map(|r| r.len);
        two.until(limit, "a reset", || receive(s) == Err(Errno::ECONNRESET));
        let (mut linux, s) = two.pair(v6, false);
        linux.set_nonblocking(true).unwrap();
        linux.write_all(b"unread").unwrap();
        two.until(limit, "bytes", || two.stack.calls(two.now()).queued(s, false) == Ok(6));
        two.stack.calls(two.now()).close(s).unwrap();
        two.until(limit, "a reset", || {
            linux.read(&mut [0; 9]).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
        });
    }
}
