//! How long things take over the loopback: `cargo run --release -p atoll-netstack --example loopback`.
#![allow(missing_docs, reason = "a program")]

use std::time::Instant;

use atoll_netstack::{Calls, Config, Stack};
use linux_raw_sys::net;

const ROUNDS: u32 = 200_000;
const BYTES: usize = 2 << 30;

fn address(port: u16) -> Vec<u8> {
    let mut a = (net::AF_INET as u16).to_ne_bytes().to_vec();
    a.extend(port.to_be_bytes());
    a.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    a
}

fn send(c: &mut Calls, s: i32, len: usize) -> usize {
    let fill = &mut |room: &mut [u8]| {
        room.fill(7);
        room.len()
    };
    c.send(s, len, None, 0, fill).unwrap_or(0)
}

fn receive(c: &mut Calls, s: i32, buffer: &mut [u8]) -> usize {
    let mut at = 0;
    let take = &mut |b: &[u8]| {
        buffer[at..at + b.len()].copy_from_slice(b);
        at += b.len();
        b.len()
    };
    c.receive(s, 1 << 16, None, 0, take).map_or(0, |r| r.len)
}

struct Run {
    stack: Stack,
    start: Instant,
    buffer: Vec<u8>,
}

impl Run {
    fn calls(&self) -> Calls<'_> {
        self.stack.calls(self.start.elapsed().as_nanos() as u64)
    }

    fn pair(&self, listener: i32, port: u16) -> (i32, i32) {
        let a = self.calls().socket(net::AF_INET, net::SOCK_STREAM, 0).expect("a socket");
        let _ = self.calls().connect(a, &address(port));
        let (b, _) = self.calls().accept(listener, &mut []).expect("a connection");
        (a, b)
    }

    /// ns for a small question and its answer, as four calls.
    fn questions(&mut self, a: i32, b: i32) -> f64 {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            assert_eq!(send(&mut self.calls(), a, 64), 64);
            let mut buffer = std::mem::take(&mut self.buffer);
            assert_eq!(receive(&mut self.calls(), b, &mut buffer), 64);
            assert_eq!(send(&mut self.calls(), b, 64), 64);
            assert_eq!(receive(&mut self.calls(), a, &mut buffer), 64);
            self.buffer = buffer;
        }
        start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    }
}

fn main() {
    let stack = Stack::new(Config::new(1, 1), Vec::new(), Box::new(|_| {}));
    let mut run = Run { stack, start: Instant::now(), buffer: vec![0; 1 << 16] };
    let listener = run.calls().socket(net::AF_INET, net::SOCK_STREAM, 0).expect("a socket");
    run.calls().bind(listener, &address(80)).expect("a port");
    run.calls().listen(listener, 4096).expect("a listener");
    let (a, b) = run.pair(listener, 80);
    println!("tcp, 64 bytes there and back    {:8.0} ns", run.questions(a, b));
    for _ in 0..1000 {
        run.pair(listener, 80);
    }
    println!("  among 1000 more connections   {:8.0} ns", run.questions(a, b));

    let start = Instant::now();
    let (mut sent, mut got) = (0, 0);
    let mut buffer = std::mem::take(&mut run.buffer);
    while got < BYTES {
        sent += send(&mut run.calls(), a, (BYTES - sent).min(1 << 16));
        got += receive(&mut run.calls(), b, &mut buffer);
    }
    println!("tcp, a stream                   {:8.2} GB/s", got as f64 / start.elapsed().as_nanos() as f64);
    run.buffer = buffer;

    let start = Instant::now();
    for _ in 0..ROUNDS / 10 {
        let (a, b) = run.pair(listener, 80);
        run.calls().close(a).expect("open");
        run.calls().close(b).expect("open");
    }
    let each = start.elapsed().as_nanos() as f64 / f64::from(ROUNDS / 10);
    println!("connect, accept, close twice    {each:8.0} ns");

    let (a, b) = (7000, 7001);
    let [a, b] = [a, b].map(|port| {
        let s = run.calls().socket(net::AF_INET, net::SOCK_DGRAM, 0).expect("a socket");
        run.calls().bind(s, &address(port)).expect("a port");
        (s, port)
    });
    run.calls().connect(a.0, &address(b.1)).expect("a peer");
    run.calls().connect(b.0, &address(a.1)).expect("a peer");
    println!("udp, 64 bytes there and back    {:8.0} ns", run.questions(a.0, b.0));
}
