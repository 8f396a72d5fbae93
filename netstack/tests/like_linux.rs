//! The same calls, by chance, on Linux's sockets and on the stack's: the same answers.
#![allow(unsafe_code, reason = "makes Linux's socket calls")]
#![allow(missing_docs, reason = "a test")]

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use atoll_abi::Errno;
use atoll_netstack::{Config, Stack};

type Answer<T> = Result<T, u32>;

/// All that `poll(2)` tells of a socket.
const ALL_EVENTS: i16 =
    libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLRDHUP;

/// A `sockaddr`.
fn bytes(a: SocketAddr) -> Vec<u8> {
    let family = if a.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let mut out = (family as u16).to_ne_bytes().to_vec();
    out.extend(a.port().to_be_bytes());
    match a {
        SocketAddr::V4(a) => {
            out.extend(a.ip().octets());
            out.extend([0; 8]);
        }
        SocketAddr::V6(a) => {
            out.extend([0; 4]);
            out.extend(a.ip().octets());
            out.extend([0; 4]);
        }
    }
    out
}

fn parse(b: &[u8]) -> SocketAddr {
    let port = u16::from_be_bytes([b[2], b[3]]);
    if i32::from(b[0]) == libc::AF_INET {
        SocketAddr::new(IpAddr::from(<[u8; 4]>::try_from(&b[4..8]).unwrap()), port)
    } else {
        SocketAddr::new(IpAddr::from(<[u8; 16]>::try_from(&b[8..24]).unwrap()), port)
    }
}

trait Api {
    fn socket(&mut self, v6: bool, stream: bool) -> Answer<i32>;
    fn bind(&mut self, s: i32, a: SocketAddr) -> Answer<()>;
    /// None: AF_UNSPEC.
    fn connect(&mut self, s: i32, a: Option<SocketAddr>) -> Answer<()>;
    fn listen(&mut self, s: i32, backlog: i32) -> Answer<()>;
    fn accept(&mut self, s: i32) -> Answer<(i32, SocketAddr)>;
    fn send(&mut self, s: i32, b: &[u8], to: Option<SocketAddr>) -> Answer<usize>;
    fn receive(&mut self, s: i32, max: usize, flags: i32) -> Answer<(Vec<u8>, usize)>;
    fn shutdown(&mut self, s: i32, how: i32) -> Answer<()>;
    fn close(&mut self, s: i32);
    fn poll(&mut self, s: i32) -> u32;
    fn name(&mut self, s: i32, peer: bool) -> Answer<SocketAddr>;
    fn option(&mut self, s: i32, level: i32, name: i32) -> Answer<u32>;
    fn set(&mut self, s: i32, level: i32, name: i32, value: &[u8]) -> Answer<()>;
    fn queued(&mut self, s: i32) -> Answer<u32>;
    /// Lets time pass.
    fn wait(&mut self);
}

struct Linux;

fn check(n: isize) -> Answer<isize> {
    if n < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap() as u32) } else { Ok(n) }
}

impl Api for Linux {
    fn socket(&mut self, v6: bool, stream: bool) -> Answer<i32> {
        let (d, k) = (
            if v6 { libc::AF_INET6 } else { libc::AF_INET },
            if stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM },
        );
        // SAFETY: no memory is involved.
        check(unsafe { libc::socket(d, k | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) } as isize)
            .map(|n| n as i32)
    }
    fn bind(&mut self, s: i32, a: SocketAddr) -> Answer<()> {
        let b = bytes(a);
        // SAFETY: our address.
        check(unsafe { libc::bind(s, b.as_ptr().cast(), b.len() as u32) } as isize).map(drop)
    }
    fn connect(&mut self, s: i32, a: Option<SocketAddr>) -> Answer<()> {
        let b = a.map_or(vec![0; 16], bytes);
        // SAFETY: our address.
        check(unsafe { libc::connect(s, b.as_ptr().cast(), b.len() as u32) } as isize).map(drop)
    }
    fn listen(&mut self, s: i32, backlog: i32) -> Answer<()> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::listen(s, backlog) } as isize).map(drop)
    }
    fn accept(&mut self, s: i32) -> Answer<(i32, SocketAddr)> {
        let (mut b, mut len) = ([0u8; 28], 28u32);
        // SAFETY: our buffer and its length.
        let n = unsafe { libc::accept4(s, b.as_mut_ptr().cast(), &raw mut len, libc::SOCK_NONBLOCK) };
        check(n as isize).map(|n| (n as i32, parse(&b)))
    }
    fn send(&mut self, s: i32, b: &[u8], to: Option<SocketAddr>) -> Answer<usize> {
        let to = to.map(bytes).unwrap_or_default();
        let p = if to.is_empty() { std::ptr::null() } else { to.as_ptr() };
        // SAFETY: our buffers.
        let n = unsafe {
            libc::sendto(s, b.as_ptr().cast(), b.len(), libc::MSG_NOSIGNAL, p.cast(), to.len() as u32)
        };
        check(n).map(|n| n as usize)
    }
    fn receive(&mut self, s: i32, max: usize, flags: i32) -> Answer<(Vec<u8>, usize)> {
        let mut b = vec![0; max];
        // SAFETY: our buffer.
        let n = check(unsafe { libc::recv(s, b.as_mut_ptr().cast(), max, flags) })? as usize;
        b.truncate(n);
        Ok((b, n))
    }
    fn shutdown(&mut self, s: i32, how: i32) -> Answer<()> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::shutdown(s, how) } as isize).map(drop)
    }
    fn close(&mut self, s: i32) {
        // SAFETY: no memory is involved.
        unsafe { libc::close(s) };
    }
    fn poll(&mut self, s: i32) -> u32 {
        let mut p = libc::pollfd { fd: s, events: ALL_EVENTS, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut p, 1, 0) };
        p.revents as u32
    }
    fn name(&mut self, s: i32, peer: bool) -> Answer<SocketAddr> {
        let (mut b, mut len) = ([0u8; 28], 28u32);
        // SAFETY: our buffer and its length.
        let n = unsafe {
            if peer {
                libc::getpeername(s, b.as_mut_ptr().cast(), &raw mut len)
            } else {
                libc::getsockname(s, b.as_mut_ptr().cast(), &raw mut len)
            }
        };
        check(n as isize).map(|_| parse(&b))
    }
    fn option(&mut self, s: i32, level: i32, name: i32) -> Answer<u32> {
        let (mut v, mut len) = (0u32, 4u32);
        // SAFETY: our variable and its length.
        let n = unsafe { libc::getsockopt(s, level, name, (&raw mut v).cast(), &raw mut len) };
        check(n as isize).map(|_| v)
    }
    fn set(&mut self, s: i32, level: i32, name: i32, value: &[u8]) -> Answer<()> {
        // SAFETY: our buffer and its length.
        let n = unsafe { libc::setsockopt(s, level, name, value.as_ptr().cast(), value.len() as u32) };
        check(n as isize).map(drop)
    }
    fn queued(&mut self, s: i32) -> Answer<u32> {
        let mut n = 0i32;
        // SAFETY: our variable.
        check(unsafe { libc::ioctl(s, libc::FIONREAD, &raw mut n) } as isize).map(|_| n as u32)
    }
    fn wait(&mut self) {
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
}

struct Ours {
    stack: Stack,
    now: u64,
}

fn number<T>(r: Result<T, Errno>) -> Answer<T> {
    r.map_err(|e| e.0)
}

impl Api for Ours {
    fn socket(&mut self, v6: bool, stream: bool) -> Answer<i32> {
        let (d, k) = (
            if v6 { libc::AF_INET6 } else { libc::AF_INET },
            if stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM },
        );
        number(self.stack.calls(self.now).socket(d as u32, k as u32, 0))
    }
    fn bind(&mut self, s: i32, a: SocketAddr) -> Answer<()> {
        number(self.stack.calls(self.now).bind(s, &bytes(a)))
    }
    fn connect(&mut self, s: i32, a: Option<SocketAddr>) -> Answer<()> {
        number(self.stack.calls(self.now).connect(s, &a.map_or(vec![0; 16], bytes)))
    }
    fn listen(&mut self, s: i32, backlog: i32) -> Answer<()> {
        number(self.stack.calls(self.now).listen(s, backlog as u32))
    }
    fn accept(&mut self, s: i32) -> Answer<(i32, SocketAddr)> {
        let mut b = [0; 28];
        number(self.stack.calls(self.now).accept(s, &mut b)).map(|(n, _)| (n, parse(&b)))
    }
    fn send(&mut self, s: i32, b: &[u8], to: Option<SocketAddr>) -> Answer<usize> {
        let to = to.map(bytes);
        let mut rest = b;
        number(self.stack.calls(self.now).send(s, b.len(), to.as_deref(), 0, &mut |room| {
            room.copy_from_slice(&rest[..room.len()]);
            rest = &rest[room.len()..];
            room.len()
        }))
    }
    fn receive(&mut self, s: i32, max: usize, flags: i32) -> Answer<(Vec<u8>, usize)> {
        let mut out = Vec::new();
        let r = self.stack.calls(self.now).receive(s, max, None, flags as u32, &mut |b| {
            out.extend_from_slice(b);
            b.len()
        });
        let len = number(r)?.len;
        // What recv(2) leaves in the buffer of what it does not say.
        out.resize(len.min(max), 0);
        Ok((out, len))
    }
    fn shutdown(&mut self, s: i32, how: i32) -> Answer<()> {
        number(self.stack.calls(self.now).shutdown(s, how as u32))
    }
    fn close(&mut self, s: i32) {
        self.stack.calls(self.now).close(s).unwrap();
    }
    fn poll(&mut self, s: i32) -> u32 {
        self.stack.calls(self.now).probe(s)
    }
    fn name(&mut self, s: i32, peer: bool) -> Answer<SocketAddr> {
        let mut b = [0; 28];
        number(self.stack.calls(self.now).name(s, peer, &mut b)).map(|_| parse(&b))
    }
    fn option(&mut self, s: i32, level: i32, name: i32) -> Answer<u32> {
        let mut v = [0; 4];
        number(self.stack.calls(self.now).get_option(s, level as u32, name as u32, &mut v))?;
        Ok(u32::from_ne_bytes(v))
    }
    fn set(&mut self, s: i32, level: i32, name: i32, value: &[u8]) -> Answer<()> {
        number(self.stack.calls(self.now).set_option(s, level as u32, name as u32, value))
    }
    fn queued(&mut self, s: i32) -> Answer<u32> {
        number(self.stack.calls(self.now).queued(s, false))
    }
    fn wait(&mut self) {
        // Longer than an acknowledgement is put off, shorter than TIME_WAIT takes over some calls.
        for _ in 0..4 {
            self.now += 5_000_000;
            self.stack.poll(self.now);
        }
    }
}

#[derive(Clone, Debug)]
enum Call {
    Socket { v6: bool, stream: bool },
    Bind(usize, SocketAddr),
    Connect(usize, Option<SocketAddr>),
    Listen(usize, i32),
    Accept(usize),
    Send(usize, usize, Option<SocketAddr>),
    Receive(usize, usize, i32),
    Shutdown(usize, i32),
    Close(usize),
    Poll(usize),
    Name(usize, bool),
    Option(usize, i32, i32),
    Set(usize, i32, i32, Vec<u8>),
    Queued(usize),
}

/// Sockets by their place in the script.
struct Run<A: Api> {
    api: A,
    fds: Vec<Option<i32>>,
    /// Ports that the system chose, by the order in which they were seen.
    ports: HashMap<u16, usize>,
    base: u16,
}

fn text<T: std::fmt::Debug>(r: Answer<T>) -> String {
    match r {
        Ok(v) => format!("{v:?}"),
        Err(e) => format!("{:?}", Errno(e)),
    }
}

impl<A: Api> Run<A> {
    fn show(&mut self, a: SocketAddr) -> String {
        if a.port() == 0 || (self.base..self.base + 8).contains(&a.port()) {
            return format!("{}:+{}", a.ip(), a.port().saturating_sub(self.base));
        }
        let n = self.ports.len();
        format!("{}:chosen{}", a.ip(), self.ports.entry(a.port()).or_insert(n))
    }

    /// Makes a call; what it says, as text. A place without a socket says nothing.
    fn call(&mut self, c: &Call) -> String {
        let fd = |n: usize| self.fds.get(n).copied().flatten();
        let at = match c {
            Call::Socket { .. } => Some(0),
            Call::Bind(n, _)
            | Call::Connect(n, _)
            | Call::Listen(n, _)
            | Call::Accept(n)
            | Call::Send(n, _, _)
            | Call::Receive(n, _, _)
            | Call::Shutdown(n, _)
            | Call::Close(n)
            | Call::Poll(n)
            | Call::Name(n, _)
            | Call::Option(n, _, _)
            | Call::Set(n, _, _, _)
            | Call::Queued(n) => fd(*n),
        };
        let Some(s) = at else { return String::new() };
        let a = &mut self.api;
        match c {
            Call::Socket { v6, stream } => {
                let r = a.socket(*v6, *stream);
                self.fds.push(r.ok());
                text(r.map(drop))
            }
            Call::Bind(_, at) => text(a.bind(s, *at)),
            Call::Connect(_, to) => text(a.connect(s, *to)),
            Call::Listen(_, n) => text(a.listen(s, *n)),
            Call::Accept(_) => match a.accept(s) {
                Ok((n, from)) => {
                    self.fds.push(Some(n));
                    self.show(from)
                }
                Err(e) => text::<()>(Err(e)),
            },
            Call::Send(_, len, to) => text(a.send(s, &(0..*len).map(|n| n as u8).collect::<Vec<_>>(), *to)),
            Call::Receive(_, max, flags) => text(a.receive(s, *max, *flags)),
            Call::Shutdown(_, how) => text(a.shutdown(s, *how)),
            Call::Close(n) => {
                a.close(s);
                self.fds[*n] = None;
                String::new()
            }
            Call::Poll(_) => format!("{:#x}", a.poll(s)),
            Call::Name(_, peer) => match a.name(s, *peer) {
                Ok(at) => self.show(at),
                Err(e) => text::<()>(Err(e)),
            },
            Call::Option(_, level, name) => text(a.option(s, *level, *name)),
            Call::Set(_, level, name, value) => text(a.set(s, *level, *name, value)),
            Call::Queued(_) => text(a.queued(s)),
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

fn a_call(r: &mut Random, sockets: usize, base: u16) -> Call {
    if sockets == 0 || (sockets < 8 && r.below(8) == 0) {
        return Call::Socket { v6: r.below(3) == 0, stream: r.below(4) != 0 };
    }
    // Mostly the latest.
    let n = if r.below(3) == 0 { r.below(sockets) } else { sockets - 1 - r.below(sockets.min(4)) };
    let address = |r: &mut Random| {
        let ip = r.of(&[
            "127.0.0.1",
            "127.0.0.1",
            "127.0.0.1",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "127.0.0.2",
        ]);
        SocketAddr::new(ip.parse().unwrap(), base + r.below(2) as u16)
    };
    match r.below(20) {
        0 => {
            let at = address(r);
            Call::Bind(n, if r.below(3) == 0 { SocketAddr::new(at.ip(), 0) } else { at })
        }
        1..=3 => Call::Connect(n, if r.below(12) == 0 { None } else { Some(address(r)) }),
        4 | 5 => Call::Listen(n, 3),
        6 | 7 => Call::Accept(n),
        8..=10 => {
            let to = if r.below(3) == 0 { Some(address(r)) } else { None };
            Call::Send(n, r.of(&[0, 1, 100, 1000]), to)
        }
        11 | 12 => Call::Receive(n, r.of(&[0, 1, 10, 2000]), r.of(&[0, 0, 0, libc::MSG_PEEK, libc::MSG_OOB])),
        13 => Call::Shutdown(n, r.below(3) as i32),
        14 => Call::Close(n),
        15 => Call::Poll(n),
        16 => Call::Name(n, r.below(2) == 0),
        17 => Call::Queued(n),
        18 => {
            let (level, name) = r.of(&[
                (libc::SOL_SOCKET, libc::SO_ERROR),
                (libc::SOL_SOCKET, libc::SO_TYPE),
                (libc::SOL_SOCKET, libc::SO_DOMAIN),
                (libc::SOL_SOCKET, libc::SO_PROTOCOL),
                (libc::SOL_SOCKET, libc::SO_ACCEPTCONN),
                (libc::SOL_SOCKET, libc::SO_REUSEADDR),
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
                (libc::IPPROTO_TCP, libc::TCP_NODELAY),
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
                (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
            ]);
            Call::Option(n, level, name)
        }
        _ => {
            let (level, name) = r.of(&[
                (libc::SOL_SOCKET, libc::SO_REUSEADDR),
                (libc::SOL_SOCKET, libc::SO_REUSEADDR),
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
                (libc::IPPROTO_TCP, libc::TCP_NODELAY),
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
                (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
                (libc::SOL_SOCKET, libc::SO_LINGER),
            ]);
            let value = r.of(&[1u32, 1, 0]).to_ne_bytes().to_vec();
            let value = if name == libc::SO_LINGER && level == libc::SOL_SOCKET {
                [value, vec![0; 4]].concat()
            } else {
                value
            };
            Call::Set(n, level, name, value)
        }
    }
}

/// One script; where the two differ, its calls so far.
fn script(seed: u64, base: u16) -> Result<(), String> {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let stack = Stack::new(Config::new(seed + 1, 1), vec![], Box::new(|_| {}));
    let mut linux = Run { api: Linux, fds: vec![], ports: HashMap::new(), base };
    let mut ours = Run { api: Ours { stack, now: 1_000_000_000 }, fds: vec![], ports: HashMap::new(), base };
    let mut log = String::new();
    let mut result = Ok(());
    // Sockets that are not connected from here on: what Linux makes of a connection after a shutdown that came
    // before it, and of a second connection to the other family, is an accident; so is half a shutdown of a
    // socket that listens. Whether a connection to itself comes about is a matter of time.
    let (mut spent, mut listening, mut bound, mut six) = (vec![], vec![], vec![], vec![]);
    for _ in 0..60 {
        let c = a_call(&mut r, linux.fds.len(), base);
        if matches!(&c, Call::Connect(n, _) | Call::Listen(n, _) if spent.contains(n)) {
            continue;
        }
        if matches!(&c, Call::Connect(n, Some(a)) if bound.contains(&(*n, a.port()))) {
            continue;
        }
        if matches!(&c, Call::Shutdown(n, 1) if listening.contains(n)) {
            continue;
        }
        let got = ours.call(&c);
        let mut want = linux.call(&c);
        // Linux's loopback takes a moment, sometimes.
        for _ in 0..20 {
            let again = want == "EAGAIN"
                || want == "EALREADY"
                || matches!(c, Call::Poll(_) | Call::Option(..) | Call::Queued(_) | Call::Name(..));
            if got == want || !again {
                break;
            }
            linux.api.wait();
            want = linux.call(&c);
        }
        ours.api.wait();
        match &c {
            Call::Shutdown(n, _) if want == "ENOTCONN" => spent.push(*n),
            Call::Connect(n, _) if want == "()" => spent.push(*n),
            Call::Connect(n, Some(_)) if six.contains(n) => spent.push(*n),
            Call::Socket { v6: true, .. } => six.push(linux.fds.len() - 1),
            Call::Bind(n, a) if want == "()" => bound.push((*n, a.port())),
            Call::Listen(n, _) if want == "()" => listening.push(*n),
            _ => {}
        }
        log += &format!("{c:?} -> {want}\n");
        if got != want {
            result = Err(format!("seed {seed}: {log}but here: {got}"));
            break;
        }
    }
    for fd in linux.fds.into_iter().flatten() {
        Linux.close(fd);
    }
    result
}

#[test]
fn random_calls_have_linux_answers() {
    let scripts = std::env::var("ATOLL_SCRIPTS").map_or(1000, |n| n.parse().unwrap());
    let start = std::env::var("ATOLL_SEED").map_or(0, |n| n.parse().unwrap());
    let mut ports = 15_000 + (std::process::id() % 1000) as u16 * 8;
    let mut failures = Vec::new();
    for seed in start..start + scripts {
        ports = if ports > 30_000 { 15_000 } else { ports + 8 };
        // Once more, in case somebody else has the port.
        if let Err(first) = script(seed, ports)
            && script(seed, ports + 4).is_err()
        {
            failures.push(first);
        }
    }
    for f in &failures {
        let last: Vec<_> = f.lines().rev().take(2).collect();
        println!("{} / {} ({})", last[1], last[0], f.lines().next().unwrap_or(""));
    }
    assert!(
        failures.is_empty(),
        "{} of {scripts} scripts differ, the first: {}",
        failures.len(),
        failures[0]
    );
}
