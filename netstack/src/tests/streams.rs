//! Connections, over the loopback and over the wire.

use super::*;

#[test]
fn what_a_program_says_of_its_service_is_in_its_packets() {
    for (to, level, name) in
        [("10.0.0.1:80", net::IPPROTO_IP, net::IP_TOS), ("[fd00::1]:80", net::IPPROTO_IPV6, net::IPV6_TCLASS)]
    {
        let (level, v6) = (level as u32, level == net::IPPROTO_IPV6);
        let sim = Sim::new(1, Wire::GOOD);
        let l = sim.listen(0, if v6 { "[::]:80" } else { "0.0.0.0:80" }, 5);
        let (a, b) = sim.pair(1, 0, l, to);
        assert_eq!(option(&mut sim.calls(1), a, level, name), Ok(0));
        // The two lowest bits tell of congestion, and are the stack's.
        sim.calls(1).set_option(a, level, name, &0xb3u32.to_ne_bytes()).unwrap();
        assert_eq!(option(&mut sim.calls(1), a, level, name), Ok(0xb0));
        assert_eq!(send(&mut sim.calls(1), a, b"marked"), Ok(6));
        sim.stacks[1].poll(sim.clock.load(Ordering::SeqCst));
        let frame = sim.lanes[0].lock().unwrap().last().unwrap().clone();
        let marked = if v6 { frame[14] << 4 | frame[15] >> 4 } else { frame[15] };
        assert_eq!(marked, 0xb0);
        sim.until(SECOND, "data", || sim.calls(0).probe(b) & IN != 0);
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0), Ok(b"marked".to_vec()));
    }
    let sim = Sim::new(1, Wire::GOOD);
    let l = sim.listen(0, "[::]:80", 5);
    assert_eq!(sim.calls(0).set_option(l, IPV6, net::IPV6_TCLASS, &256u32.to_ne_bytes()), Err(Errno::EINVAL));
    assert_eq!(sim.calls(0).set_option(l, IPV6, net::IPV6_TCLASS, &(-1i32).to_ne_bytes()), Ok(()));
    // As ip(7) has it, a byte is enough.
    assert_eq!(sim.calls(0).set_option(l, IP, net::IP_TOS, &[0x10]), Ok(()));
    assert_eq!(option(&mut sim.calls(0), l, IP, net::IP_TOS), Ok(0x10));
}

const IP: u32 = net::IPPROTO_IP as u32;
const IPV6: u32 = net::IPPROTO_IPV6 as u32;

#[test]
fn echo_over_the_loopback_and_the_wire() {
    for (from, to, v6) in [
        (0, "127.0.0.1:80", false),
        (0, "10.0.0.1:80", false),
        (1, "10.0.0.1:80", false),
        (0, "[::1]:80", true),
        (1, "[fd00::1]:80", true),
        (0, "[fd00::1]:80", true),
        (1, "[::ffff:10.0.0.1]:80", true),
    ] {
        let sim = Sim::new(1, Wire::GOOD);
        let l = sim.listen(0, if v6 { "[::]:80" } else { "0.0.0.0:80" }, 5);
        let (a, b) = sim.pair(from, 0, l, to);
        assert_eq!(name(&mut sim.calls(from), a, true).unwrap(), to.parse().unwrap());
        assert_eq!(name(&mut sim.calls(0), b, false).unwrap(), to.parse().unwrap());
        let local = name(&mut sim.calls(from), a, false);
        assert_eq!(local, name(&mut sim.calls(0), b, true));
        assert_eq!(send(&mut sim.calls(from), a, b"hello"), Ok(5));
        sim.until(SECOND, "data", || sim.calls(0).probe(b) & IN != 0);
        assert_eq!(sim.calls(0).queued(b, false), Ok(5));
        assert_eq!(receive(&mut sim.calls(0), b, 2, net::MSG_PEEK), Ok(b"he".to_vec()));
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0), Ok(b"hello".to_vec()));
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0), Err(Errno::EAGAIN));
        assert_eq!(send(&mut sim.calls(0), b, b"world!"), Ok(6));
        sim.until(SECOND, "answer", || sim.calls(from).probe(a) & IN != 0);
        assert_eq!(receive(&mut sim.calls(from), a, 100, 0), Ok(b"world!".to_vec()));
        sim.calls(from).close(a).unwrap();
        sim.until(SECOND, "end", || sim.calls(0).probe(b) & RDHUP != 0);
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0), Ok(Vec::new()));
        sim.calls(0).close(b).unwrap();
        sim.calls(0).close(l).unwrap();
        sim.run(30 * SECOND);
        for n in 0..2 {
            assert_eq!(sim.calls(n).usage(), (0, 0, 0), "to {to}");
        }
    }
}

/// Sends both ways at once and checks each byte.
fn transfer(sim: &Sim, (x, a): (usize, i32), (y, b): (usize, i32), len: usize, limit: u64) {
    let ends = [(x, a), (y, b)];
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    let mut seed = 7;
    sim.until(limit, "transfer", || {
        for k in 0..2 {
            let (host, s) = ends[k];
            loop {
                let n = (random(&mut seed) as usize % 20_000 + 1).min(len - sent[k]);
                match send(&mut sim.calls(host), s, &pattern(sent[k], n)) {
                    Ok(n) if n > 0 => sent[k] += n,
                    Ok(_) | Err(Errno::EAGAIN) => break,
                    Err(e) => panic!("send: {e}"),
                }
            }
            let (host, s) = ends[1 - k];
            loop {
                match receive(&mut sim.calls(host), s, random(&mut seed) as usize % 30_000 + 1, 0) {
                    Ok(bytes) => {
                        assert!(bytes == pattern(got[k], bytes.len()), "wrong bytes at {}", got[k]);
                        got[k] += bytes.len();
                    }
                    Err(Errno::EAGAIN) => break,
                    Err(e) => panic!("receive: {e}"),
                }
            }
        }
        got == [len; 2]
    });
}

#[test]
fn large_transfers_arrive_whole() {
    let sim = Sim::new(2, Wire::GOOD);
    let l = sim.listen(0, "0.0.0.0:80", 5);
    let (a, b) = sim.pair(0, 0, l, "127.0.0.1:80");
    transfer(&sim, (0, a), (0, b), 3 << 20, SECOND);
    let (a, b) = sim.pair(1, 0, l, "10.0.0.1:80");
    transfer(&sim, (1, a), (0, b), 3 << 20, 5 * SECOND);
}

#[test]
fn large_transfers_arrive_whole_over_a_bad_wire() {
    for seed in 0..8 {
        let bad = Wire { loss: 20, late: 30, twice: 10, full: 0, delay: 200_000 };
        let sim = Sim::new(100 + seed, bad);
        let (at, to) =
            if seed % 2 == 0 { ("0.0.0.0:80", "10.0.0.1:80") } else { ("[::]:80", "[fd00::1]:80") };
        let l = sim.listen(0, at, 5);
        let (a, b) = sim.pair(1, 0, l, to);
        transfer(&sim, (1, a), (0, b), 300_000, 900 * SECOND);
        sim.calls(1).close(a).unwrap();
        sim.until(600 * SECOND, "end", || receive(&mut sim.calls(0), b, 1, 0) == Ok(Vec::new()));
        sim.calls(0).close(b).unwrap();
        sim.calls(0).close(l).unwrap();
        sim.run(400 * SECOND);
        for n in 0..2 {
            assert_eq!(sim.calls(n).usage(), (0, 0, 0), "seed {seed}");
        }
    }
}

#[test]
fn what_was_sent_before_closing_arrives() {
    for to in ["127.0.0.1:80", "10.0.0.1:80"] {
        let sim = Sim::new(3, Wire::GOOD);
        let l = sim.listen(0, "0.0.0.0:80", 5);
        let from = usize::from(to.starts_with("10."));
        let (a, b) = sim.pair(from, 0, l, to);
        let mut sent = 0;
        while let Ok(n) = send(&mut sim.calls(from), a, &pattern(sent, 10_000)) {
            sent += n;
        }
        sim.calls(from).close(a).unwrap();
        let mut got = 0;
        sim.until(10 * SECOND, "all", || {
            loop {
                match receive(&mut sim.calls(0), b, 5000, 0) {
                    Ok(bytes) if bytes.is_empty() => return true,
                    Ok(bytes) => {
                        assert!(bytes == pattern(got, bytes.len()));
                        got += bytes.len();
                    }
                    Err(Errno::EAGAIN) => return false,
                    Err(e) => panic!("{e}"),
                }
            }
        });
        assert_eq!(got, sent);
        assert!(sent >= 65536);
    }
}

#[test]
fn nobody_listens() {
    let sim = Sim::new(4, Wire::GOOD);
    for (from, to) in [(0, "127.0.0.1:81"), (1, "10.0.0.1:81"), (1, "[fd00::1]:81")] {
        let to: SocketAddr = to.parse().unwrap();
        let a = sim.calls(from).socket(domain(to), net::SOCK_STREAM, 0).unwrap();
        assert_eq!(sim.calls(from).probe(a), OUT | HUP);
        assert_eq!(sim.calls(from).connect(a, &bytes(to)), Err(Errno::EINPROGRESS));
        // Asking for a neighbour may take a second (smoltcp asks for one at a time).
        sim.until(3 * SECOND, "refusal", || sim.calls(from).probe(a) == IN | OUT | ERR | HUP | RDHUP);
        assert_eq!(error_of(&mut sim.calls(from), a), Errno::ECONNREFUSED.0);
        assert_eq!(error_of(&mut sim.calls(from), a), 0);
        assert_eq!(receive(&mut sim.calls(from), a, 1, 0), Ok(Vec::new()));
        assert_eq!(send(&mut sim.calls(from), a, b"x"), Err(Errno::EPIPE));
        assert_eq!(sim.calls(from).connect(a, &bytes(to)), Err(Errno::ECONNABORTED));
        // And once more from the start.
        assert_eq!(sim.calls(from).connect(a, &bytes(to)), Err(Errno::EINPROGRESS));
        sim.until(SECOND, "refusal", || sim.calls(from).probe(a) & ERR != 0);
        assert_eq!(sim.calls(from).connect(a, &bytes(to)), Err(Errno::ECONNREFUSED));
        sim.calls(from).close(a).unwrap();
    }
    sim.run(SECOND);
    assert_eq!(sim.calls(0).usage().2 + sim.calls(1).usage().2, 0);
}

#[test]
fn nobody_answers() {
    let sim = Sim::new(5, Wire::GOOD);
    // No such machine; and no way at all.
    let a = sim.tcp(0);
    let to = bytes("10.0.0.77:80".parse().unwrap());
    assert_eq!(sim.calls(0).connect(a, &to), Err(Errno::EINPROGRESS));
    assert_eq!(sim.calls(0).connect(a, &to), Err(Errno::EALREADY));
    assert_eq!(send(&mut sim.calls(0), a, b"x"), Err(Errno::EAGAIN));
    assert_eq!(sim.calls(0).probe(a), 0);
    let start = sim.now();
    sim.until(10 * SECOND, "failure", || sim.calls(0).probe(a) & ERR != 0);
    assert!((2..6).contains(&((sim.now() - start) / SECOND)));
    assert_eq!(error_of(&mut sim.calls(0), a), Errno::EHOSTUNREACH.0);
    let six = sim.calls(0).socket(net::AF_INET6, net::SOCK_STREAM, 0).unwrap();
    let to = bytes("[2001:db8::1]:80".parse().unwrap());
    assert_eq!(sim.calls(0).connect(six, &to), Err(Errno::ENETUNREACH));
    // A machine that says nothing.
    let sim = Sim::new(5, Wire::GOOD);
    let u = sim.calls(0).socket(net::AF_INET, net::SOCK_DGRAM, 0).unwrap();
    send_to(
        &mut sim.calls(0),
        u,
        b"so that they know each other",
        Some(&bytes("10.0.0.2:9".parse().unwrap())),
    )
    .unwrap();
    sim.run(SECOND);
    let a = sim.tcp(0);
    assert_eq!(sim.calls(0).connect(a, &bytes("10.0.0.2:80".parse().unwrap())), Err(Errno::EINPROGRESS));
    for _ in 0..1000 {
        sim.lanes[1].lock().unwrap().frames.retain(|_, f| f[12..14] == [8, 6]);
        sim.step(SECOND);
        if sim.calls(0).probe(a) & ERR != 0 {
            break;
        }
    }
    assert_eq!(error_of(&mut sim.calls(0), a), Errno::ETIMEDOUT.0);
}

#[test]
fn a_backlog_holds_what_it_holds_in_order() {
    for (from, to) in [(0, "127.0.0.1:80"), (1, "10.0.0.1:80")] {
        let sim = Sim::new(6, Wire::GOOD);
        let l = sim.listen(0, "0.0.0.0:80", 3);
        let all: Vec<_> = (0..10)
            .map(|_| {
                let a = sim.tcp(from);
                assert_eq!(sim.calls(from).connect(a, &bytes(to.parse().unwrap())), Err(Errno::EINPROGRESS));
                sim.run(10 * MS);
                a
            })
            .collect();
        let up = |a: &&i32| sim.calls(from).probe(**a) & OUT != 0;
        assert_eq!(all.iter().filter(up).count(), 4, "the backlog and one more, as on Linux");
        // As they are accepted, the others get in: all of them, each once.
        let mut accepted = Vec::new();
        sim.until(100 * SECOND, "all", || {
            while let Ok((b, peer)) = accept(&mut sim.calls(0), l) {
                accepted.push((b, peer));
            }
            accepted.len() == 10
        });
        for (a, (_, peer)) in all.iter().zip(&accepted).take(4) {
            assert_eq!(name(&mut sim.calls(from), *a, false).unwrap(), *peer);
        }
    }
}

#[test]
fn many_connections() {
    for (from, to) in [(0, "127.0.0.1:80"), (1, "10.0.0.1:80")] {
        let sim = Sim::with(7, Wire::GOOD, |s| Config { memory: 1 << 30, ..config(s) });
        let l = sim.listen(0, "0.0.0.0:80", 4096);
        let mut pairs = Vec::new();
        let to = bytes(to.parse().unwrap());
        let small = 4608u32.to_ne_bytes();
        sim.calls(0).set_option(l, net::SOL_SOCKET, net::SO_RCVBUF, &small).unwrap();
        sim.calls(0).set_option(l, net::SOL_SOCKET, net::SO_SNDBUF, &small).unwrap();
        let all: Vec<_> = (0..2000)
            .map(|n: u32| {
                let a = sim.tcp(from);
                sim.calls(from).set_option(a, net::SOL_SOCKET, net::SO_RCVBUF, &small).unwrap();
                sim.calls(from).set_option(a, net::SOL_SOCKET, net::SO_SNDBUF, &small).unwrap();
                assert_eq!(sim.calls(from).connect(a, &to), Err(Errno::EINPROGRESS));
                if n.is_multiple_of(50) {
                    sim.run(MS);
                }
                a
            })
            .collect();
        sim.until(60 * SECOND, "accept", || {
            while let Ok(c) = accept(&mut sim.calls(0), l) {
                pairs.push(c);
            }
            pairs.len() == all.len()
        });
        for (n, a) in all.iter().enumerate() {
            let mut c = sim.calls(from);
            let port = name(&mut c, *a, false).unwrap().port();
            send(&mut c, *a, &port.to_be_bytes()).unwrap();
            drop(c);
            if n.is_multiple_of(50) {
                sim.run(MS);
            }
        }
        sim.run(20 * SECOND);
        for (b, peer) in &pairs {
            assert_eq!(receive(&mut sim.calls(0), *b, 10, 0).unwrap(), peer.port().to_be_bytes());
            sim.calls(0).close(*b).unwrap();
        }
        for a in &all {
            sim.calls(from).close(*a).unwrap();
        }
        sim.run(60 * SECOND);
        assert_eq!(sim.calls(0).usage().2, 0);
        assert_eq!(sim.calls(1).usage().2, 0);
    }
}

#[test]
fn halves_close_one_by_one() {
    for (from, to) in [(0, "127.0.0.1:80"), (1, "10.0.0.1:80")] {
        let sim = Sim::new(8, Wire::GOOD);
        let l = sim.listen(0, "0.0.0.0:80", 3);
        let (a, b) = sim.pair(from, 0, l, to);
        send(&mut sim.calls(from), a, b"last words").unwrap();
        sim.calls(from).shutdown(a, 1).unwrap();
        assert_eq!(send(&mut sim.calls(from), a, b"x"), Err(Errno::EPIPE));
        sim.until(SECOND, "end", || sim.calls(0).probe(b) & RDHUP != 0);
        assert_eq!(sim.calls(0).probe(b), IN | OUT | RDHUP);
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0).unwrap(), b"last words");
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0).unwrap(), b"");
        // The other half goes on.
        sim.run(100 * SECOND);
        assert_eq!(sim.calls(from).probe(a), OUT);
        send(&mut sim.calls(0), b, &pattern(0, 40_000)).unwrap();
        sim.calls(0).close(b).unwrap();
        sim.until(SECOND, "end", || sim.calls(from).probe(a) & HUP != 0);
        // TIME_WAIT passes, and what nobody has read stays.
        sim.run(100 * SECOND);
        assert_eq!(receive(&mut sim.calls(from), a, 100_000, 0).unwrap(), pattern(0, 40_000));
        assert_eq!(receive(&mut sim.calls(from), a, 100, 0).unwrap(), b"");
        sim.calls(from).close(a).unwrap();
        sim.calls(0).close(l).unwrap();
        sim.run(100 * SECOND);
        assert_eq!(sim.calls(0).usage(), (0, 0, 0));
        assert_eq!(sim.calls(1).usage(), (0, 0, 0));
    }
}

#[test]
fn both_close_at_once() {
    let sim = Sim::new(9, Wire::GOOD);
    let l = sim.listen(0, "0.0.0.0:80", 3);
    let (a, b) = sim.pair(1, 0, l, "10.0.0.1:80");
    sim.calls(1).shutdown(a, 1).unwrap();
    sim.calls(0).shutdown(b, 1).unwrap();
    sim.until(SECOND, "both", || sim.calls(1).probe(a) & sim.calls(0).probe(b) & HUP != 0);
    for (n, s) in [(1, a), (0, b)] {
        assert_eq!(receive(&mut sim.calls(n), s, 1, 0).unwrap(), b"");
        assert_eq!(error_of(&mut sim.calls(n), s), 0);
        sim.calls(n).close(s).unwrap();
    }
    sim.calls(0).close(l).unwrap();
    sim.run(20 * SECOND);
    assert_eq!(sim.calls(0).usage(), (0, 0, 0));
    assert_eq!(sim.calls(1).usage(), (0, 0, 0));
}

#[test]
fn a_reset_is_told_once_after_what_came_before() {
    for (from, to) in [(0, "127.0.0.1:80"), (1, "10.0.0.1:80")] {
        let sim = Sim::new(10, Wire::GOOD);
        let l = sim.listen(0, "0.0.0.0:80", 3);
        let (a, b) = sim.pair(from, 0, l, to);
        send(&mut sim.calls(from), a, b"before").unwrap();
        sim.run(50 * MS);
        let mut linger = [0; 8];
        linger[0] = 1;
        sim.calls(from).set_option(a, net::SOL_SOCKET, net::SO_LINGER, &linger).unwrap();
        sim.calls(from).close(a).unwrap();
        sim.until(SECOND, "reset", || sim.calls(0).probe(b) & ERR != 0);
        assert_eq!(sim.calls(0).probe(b), IN | OUT | RDHUP | HUP | ERR);
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0).unwrap(), b"before");
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0), Err(Errno::ECONNRESET));
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0).unwrap(), b"");
        assert_eq!(send(&mut sim.calls(0), b, b"x"), Err(Errno::EPIPE));
        assert_eq!(name(&mut sim.calls(0), b, true), Err(Errno::ENOTCONN));
        // One that closes with something unread resets, too.
        let (a, b) = sim.pair(from, 0, l, to);
        send(&mut sim.calls(from), a, b"unread").unwrap();
        sim.run(50 * MS);
        sim.calls(0).close(b).unwrap();
        sim.until(SECOND, "reset", || sim.calls(from).probe(a) & ERR != 0);
        assert_eq!(send(&mut sim.calls(from), a, b"x"), Err(Errno::ECONNRESET));
        assert_eq!(send(&mut sim.calls(from), a, b"x"), Err(Errno::EPIPE));
        // And so does one whose peer goes on sending.
        let (a, b) = sim.pair(from, 0, l, to);
        sim.calls(0).close(b).unwrap();
        sim.run(50 * MS);
        assert_eq!(sim.calls(from).probe(a), IN | OUT | RDHUP);
        send(&mut sim.calls(from), a, b"to nobody").unwrap();
        sim.until(SECOND, "reset", || sim.calls(from).probe(a) & ERR != 0);
        assert_eq!(error_of(&mut sim.calls(from), a), Errno::EPIPE.0);
    }
}

#[test]
fn a_listener_takes_its_connections_with_it() {
    let sim = Sim::new(11, Wire::GOOD);
    let l = sim.listen(0, "0.0.0.0:80", 3);
    let a = sim.tcp(1);
    let to = bytes("10.0.0.1:80".parse().unwrap());
    assert_eq!(sim.calls(1).connect(a, &to), Err(Errno::EINPROGRESS));
    sim.until(SECOND, "connect", || sim.calls(1).probe(a) & OUT != 0);
    sim.calls(0).close(l).unwrap();
    sim.until(SECOND, "reset", || sim.calls(1).probe(a) & ERR != 0);
    assert_eq!(error_of(&mut sim.calls(1), a), Errno::ECONNRESET.0);
    sim.run(2 * SECOND);
    assert_eq!(sim.calls(0).usage(), (0, 0, 0));
}

#[test]
fn memory_is_counted_and_bounded() {
    let sim = Sim::with(12, Wire::GOOD, |s| Config { memory: 1 << 20, ..config(s) });
    let l = sim.listen(0, "0.0.0.0:80", 100);
    let to = bytes("127.0.0.1:80".parse().unwrap());
    let mut all = Vec::new();
    let e = loop {
        let a = sim.tcp(0);
        all.push(a);
        match sim.calls(0).connect(a, &to) {
            Err(Errno::EINPROGRESS) => {}
            e => break e,
        }
        assert!(all.len() < 20);
    };
    assert_eq!(e, Err(Errno::ENOBUFS));
    assert!(sim.calls(0).usage().0 <= 1 << 20);
    for a in all {
        sim.calls(0).close(a).unwrap();
    }
    sim.calls(0).close(l).unwrap();
    sim.run(100 * SECOND);
    assert_eq!(sim.calls(0).usage(), (0, 0, 0));
    // Connections that are over make room for new ones: none of 100 is refused.
    let l = sim.listen(0, "0.0.0.0:80", 100);
    for _ in 0..100 {
        let (a, b) = sim.pair(0, 0, l, "127.0.0.1:80");
        sim.calls(0).close(a).unwrap();
        sim.calls(0).close(b).unwrap();
        sim.run(MS);
    }
}

#[test]
fn buffers_are_as_large_as_asked() {
    let sim = Sim::new(13, Wire::GOOD);
    let l = sim.listen(0, "0.0.0.0:80", 3);
    sim.calls(0).set_option(l, net::SOL_SOCKET, net::SO_RCVBUF, &200_000u32.to_ne_bytes()).unwrap();
    assert_eq!(option(&mut sim.calls(0), l, net::SOL_SOCKET, net::SO_RCVBUF), Ok(400_000));
    let (a, b) = sim.pair(0, 0, l, "127.0.0.1:80");
    let mut sent = 0;
    for _ in 0..100 {
        sent += send(&mut sim.calls(0), a, &pattern(sent, 10_000)).unwrap_or(0);
        sim.run(20 * MS);
    }
    assert_eq!(sim.calls(0).queued(b, false), Ok(200_000));
    assert_eq!(sim.calls(0).queued(a, true), Ok((sent - 200_000) as u32));
    assert_eq!(sim.calls(0).probe(a) & OUT, 0);
    // A closed window opens again.
    let mut got = 0;
    sim.until(10 * SECOND, "the rest", || {
        let n = receive(&mut sim.calls(0), b, 70_000, 0).map_or(0, |b| b.len());
        got += n;
        got == sent
    });
    assert_eq!(sim.calls(0).probe(a) & OUT, OUT);
}

#[test]
fn whoever_copies_may_stop_short() {
    let sim = Sim::new(14, Wire::GOOD);
    let l = sim.listen(0, "0.0.0.0:80", 3);
    let (a, b) = sim.pair(0, 0, l, "127.0.0.1:80");
    assert_eq!(sim.calls(0).send(a, 10, None, 0, &mut |_| 0), Err(Errno::EFAULT));
    let part = &mut |room: &mut [u8]| {
        room[..4].copy_from_slice(b"1234");
        4
    };
    assert_eq!(sim.calls(0).send(a, 10, None, 0, part), Ok(4));
    assert_eq!(sim.calls(0).receive(b, 10, None, 0, &mut |_| 0).err(), Some(Errno::EFAULT));
    assert_eq!(sim.calls(0).receive(b, 10, None, 0, &mut |_| 3).unwrap().len, 3);
    assert_eq!(receive(&mut sim.calls(0), b, 10, 0).unwrap(), b"4");
    assert_eq!(receive(&mut sim.calls(0), b, 10, 0), Err(Errno::EAGAIN));
}

#[test]
fn a_dead_peer_is_noticed() {
    let sim = Sim::new(15, Wire::GOOD);
    let l = sim.listen(0, "0.0.0.0:80", 3);
    let (a, _) = sim.pair(1, 0, l, "10.0.0.1:80");
    let set =
        |name, v: u32| sim.calls(1).set_option(a, net::IPPROTO_TCP as u32, name, &v.to_ne_bytes()).unwrap();
    set(net::TCP_KEEPIDLE, 10);
    set(net::TCP_KEEPINTVL, 2);
    set(net::TCP_KEEPCNT, 3);
    sim.calls(1).set_option(a, net::SOL_SOCKET, net::SO_KEEPALIVE, &1u32.to_ne_bytes()).unwrap();
    // Alive, it answers.
    sim.run(200 * SECOND);
    assert_eq!(sim.calls(1).probe(a), OUT);
    let start = sim.now();
    for _ in 0..1000 {
        sim.lanes[0].lock().unwrap().frames.clear();
        sim.step(SECOND);
        if sim.calls(1).probe(a) & ERR != 0 {
            break;
        }
    }
    assert_eq!(error_of(&mut sim.calls(1), a), Errno::ETIMEDOUT.0);
    let took = (sim.now() - start) / SECOND;
    assert!((5..25).contains(&took), "{took} s");
}

/// A connection over the wire, from machine 1 to machine 0.
fn over_the_wire(sim: &Sim, to: &str) -> (i32, i32) {
    let l = sim.listen(0, "[::]:80", 5);
    sim.pair(1, 0, l, to)
}

const BOTH: [&str; 2] = ["10.0.0.1:80", "[fd00::1]:80"];

#[test]
fn an_answer_acknowledges_its_question() {
    for to in BOTH {
        let sim = Sim::new(21, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        sim.run(SECOND);
        let frames = |sim: &Sim| sim.lanes.iter().map(|l| l.lock().unwrap().count).collect::<Vec<_>>();
        let before = frames(&sim);
        for n in 0..100 {
            assert_eq!(send(&mut sim.calls(1), a, &pattern(n, 100)), Ok(100));
            sim.until(5 * MS, "question", || sim.calls(0).probe(b) & IN != 0);
            assert_eq!(receive(&mut sim.calls(0), b, 4096, 0), Ok(pattern(n, 100)));
            assert_eq!(send(&mut sim.calls(0), b, &pattern(n, 500)), Ok(500));
            sim.until(5 * MS, "answer", || sim.calls(1).probe(a) & IN != 0);
            assert_eq!(receive(&mut sim.calls(1), a, 4096, 0), Ok(pattern(n, 500)));
        }
        sim.run(SECOND);
        // And one says that the last answer came.
        let after = frames(&sim);
        assert_eq!([after[0] - before[0], after[1] - before[1]], [101, 100], "to {to}");
    }
}

#[test]
fn what_is_not_answered_is_acknowledged() {
    for to in BOTH {
        let sim = Sim::new(22, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        sim.run(SECOND);
        let unacknowledged = |sim: &Sim| sim.calls(1).queued(a, true).unwrap();
        // Until it sends several segments at once.
        transfer(&sim, (1, a), (0, b), 200_000, 60 * SECOND);
        sim.run(SECOND);
        for round in 0..20 {
            // A little, a little later, and at once what is much.
            assert_eq!(send(&mut sim.calls(1), a, &[0; 100]), Ok(100));
            sim.run(5 * MS);
            assert_eq!(unacknowledged(&sim), 100, "round {round} to {to}");
            sim.run(6 * MS);
            assert_eq!(unacknowledged(&sim), 0, "round {round} to {to}");
            assert_eq!(send(&mut sim.calls(1), a, &[0; 4500]), Ok(4500));
            sim.run(2 * MS);
            assert!(unacknowledged(&sim) < 2000, "{} in round {round} to {to}", unacknowledged(&sim));
            sim.run(11 * MS);
            assert_eq!(unacknowledged(&sim), 0, "round {round} to {to}");
            assert_eq!(receive(&mut sim.calls(0), b, 10_000, 0).map(|b| b.len()), Ok(4600));
        }
    }
}

#[test]
fn broken_frames_are_not_believed() {
    for to in BOTH {
        let sim = Sim::new(23, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        sim.run(SECOND);
        // Of the IPv4 header, TCP's ports, its flags, its window, the data.
        for at in [22, 26, 37, 48, 49, 60, 74, 80, 150] {
            assert_eq!(send(&mut sim.calls(1), a, &pattern(at, 100)), Ok(100));
            sim.stacks[1].poll(sim.now());
            for frame in sim.lanes[0].lock().unwrap().frames.values_mut() {
                frame[at] ^= 4;
            }
            sim.run(20 * MS);
            // IPv6 has no checksum of its own: what is broken there may be what nobody looks at.
            if at >= 54 || to == BOTH[0] {
                assert_eq!(sim.calls(0).probe(b) & IN, 0, "byte {at} to {to}");
            }
            sim.until(5 * SECOND, "the same once more", || sim.calls(0).probe(b) & IN != 0);
            assert_eq!(receive(&mut sim.calls(0), b, 4096, 0), Ok(pattern(at, 100)));
            // One that arrives at once: the next loss is noticed as soon as the first one.
            assert_eq!(send(&mut sim.calls(1), a, b"good"), Ok(4));
            sim.run(SECOND);
            assert_eq!(receive(&mut sim.calls(0), b, 4096, 0), Ok(b"good".to_vec()));
        }
    }
}

#[test]
fn a_forgotten_neighbour_is_asked_for_anew() {
    for to in BOTH {
        let sim = Sim::new(24, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        for _ in 0..3 {
            sim.run(200 * SECOND);
            assert_eq!(send(&mut sim.calls(0), b, b"late"), Ok(4));
            sim.until(10 * MS, "bytes", || sim.calls(1).probe(a) & IN != 0);
            assert_eq!(receive(&mut sim.calls(1), a, 100, 0), Ok(b"late".to_vec()));
        }
    }
}

#[test]
fn an_acknowledgement_that_is_kept_delays_nothing() {
    for to in BOTH {
        let sim = Sim::new(25, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        sim.run(SECOND);
        let frames = |sim: &Sim| sim.lanes.iter().map(|l| l.lock().unwrap().count).sum::<u64>();
        for round in 0..20 {
            let before = frames(&sim);
            assert_eq!(send(&mut sim.calls(0), b, &[0; 100]), Ok(100));
            // Until it is acknowledged, the algorithm of Nagle's lets no more go. Then it does, at once.
            sim.run(9 * MS);
            assert_eq!(send(&mut sim.calls(0), b, &[1; 100]), Ok(100));
            assert_eq!(frames(&sim) - before, 1, "round {round} to {to}");
            sim.run(2 * MS);
            assert_eq!(frames(&sim) - before, 3, "round {round} to {to}");
            sim.run(20 * MS);
            assert_eq!(frames(&sim) - before, 4, "round {round} to {to}");
            let before = frames(&sim);
            assert_eq!(send(&mut sim.calls(0), b, &[2; 100]), Ok(100));
            sim.run(12 * MS);
            assert_eq!(frames(&sim) - before, 2, "round {round} to {to}");
            // It has come, and may have been kept.
            assert_eq!(send(&mut sim.calls(0), b, &[3; 100]), Ok(100));
            sim.run(MS);
            assert_eq!(frames(&sim) - before, 3, "round {round} to {to}");
            assert_eq!(sim.calls(0).queued(b, true), Ok(100));
            sim.run(12 * MS);
            assert_eq!(sim.calls(0).queued(b, true), Ok(0));
            // Nothing is sent again.
            sim.run(5 * SECOND);
            assert_eq!(frames(&sim) - before, 4, "round {round} to {to}");
            assert_eq!(receive(&mut sim.calls(1), a, 4096, 0).map(|b| b.len()), Ok(400));
        }
    }
}

#[test]
fn more_frames_than_a_visit_takes() {
    let sim = Sim::new(26, Wire::GOOD);
    sim.run(SECOND);
    let now = sim.now();
    let left = || sim.lanes[0].lock().unwrap().frames.len();
    for _ in 0..600 {
        sim.lanes[0].lock().unwrap().push(0, std::vec![0; 60]);
    }
    // As long as it has not seen the last one it wants to come back.
    while left() > 0 {
        let before = left();
        let due = sim.stacks[0].poll(now).is_some_and(|t| t <= now);
        assert!(left() < before && (due || left() == 0), "{} of {before} are left", left());
    }
    sim.stacks[0].poll(now);
    assert!(sim.stacks[0].poll(now).is_none_or(|t| t > now));
}

#[test]
fn no_room_for_a_moment() {
    for to in BOTH {
        let sim = Sim::new(27, Wire { full: 200, ..Wire::GOOD });
        let (a, b) = over_the_wire(&sim, to);
        transfer(&sim, (1, a), (0, b), 300_000, 200 * SECOND);
        for n in 0..200 {
            assert_eq!(send(&mut sim.calls(1), a, &pattern(n, 100)), Ok(100));
            sim.until(SECOND, "question", || sim.calls(0).probe(b) & IN != 0);
            assert_eq!(receive(&mut sim.calls(0), b, 4096, 0), Ok(pattern(n, 100)));
            assert_eq!(send(&mut sim.calls(0), b, &pattern(n, 500)), Ok(500));
            sim.until(SECOND, "answer", || sim.calls(1).probe(a) & IN != 0);
            assert_eq!(receive(&mut sim.calls(1), a, 4096, 0), Ok(pattern(n, 500)));
        }
    }
}

/// Frames with data among those on their way to a machine.
fn with_data(sim: &Sim, n: usize) -> Vec<(u64, u64)> {
    let lane = sim.lanes[n].lock().unwrap();
    lane.frames.iter().filter(|(_, f)| f.len() > 200).map(|(key, _)| *key).collect()
}

#[test]
fn what_is_lost_is_sent_again_and_nothing_else() {
    for (to, lost) in BOTH.into_iter().flat_map(|to| [1, 2, 5].map(|n| (to, n))) {
        let sim = Sim::new(28, Wire { delay: 5 * MS, ..Wire::GOOD });
        let (a, b) = over_the_wire(&sim, to);
        sim.run(SECOND);
        assert_eq!(send(&mut sim.calls(1), a, &pattern(0, 14_000)), Ok(14_000));
        let all = with_data(&sim, 0);
        assert_eq!(all.len(), 10, "the initial window");
        for key in all.iter().skip(1).step_by(7 / lost).take(lost) {
            sim.lanes[0].lock().unwrap().frames.remove(key);
        }
        let before = sim.now();
        let mut again = 0;
        let mut seen = all;
        sim.until(SECOND, "all", || {
            let new: Vec<_> = with_data(&sim, 0).into_iter().filter(|k| !seen.contains(k)).collect();
            again += new.len();
            seen.extend(new);
            sim.calls(0).queued(b, false) == Ok(14_000)
        });
        assert_eq!(again, lost, "to {to}");
        // Two round trips and a little: no timer was waited for.
        assert!(sim.now() - before < 40 * MS, "{} ms", (sim.now() - before) / MS);
        assert_eq!(receive(&mut sim.calls(0), b, 20_000, 0), Ok(pattern(0, 14_000)));
    }
}

#[test]
fn corked_bytes_wait_for_others() {
    let (tcp, cork) = (net::IPPROTO_TCP as u32, net::TCP_CORK);
    for to in BOTH {
        let sim = Sim::new(29, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        let set = |v: u32| sim.calls(1).set_option(a, tcp, cork, &v.to_ne_bytes()).unwrap();
        let there = || sim.calls(0).queued(b, false).unwrap();
        set(1);
        assert_eq!(send(&mut sim.calls(1), a, &[1; 100]), Ok(100));
        sim.run(150 * MS);
        assert_eq!(there(), 0);
        // Not for ever.
        sim.run(60 * MS);
        assert_eq!(there(), 100);
        // Whole segments go at once, the rest when it is uncorked.
        assert_eq!(send(&mut sim.calls(1), a, &[1; 3000]), Ok(3000));
        sim.run(MS);
        assert!((2700..3000).contains(&(there() - 100)), "{}", there());
        set(0);
        sim.run(MS);
        assert_eq!(there(), 3100);
        // MSG_MORE does so for one call.
        sim.run(SECOND);
        assert_eq!(send_with(&mut sim.calls(1), a, &[1; 100], net::MSG_MORE), Ok(100));
        sim.run(MS);
        assert_eq!(there(), 3100);
        assert_eq!(send(&mut sim.calls(1), a, &[1; 100]), Ok(100));
        sim.run(MS);
        assert_eq!(there(), 3300);
    }
}

#[test]
fn who_has_no_room_is_asked_for_some() {
    for to in BOTH {
        let sim = Sim::new(30, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        let mut sent = 0;
        for _ in 0..100 {
            sent += send(&mut sim.calls(1), a, &pattern(sent, 10_000)).unwrap_or(0);
            sim.run(20 * MS);
        }
        let there = sim.calls(0).queued(b, false).unwrap() as usize;
        // A scaled window says no less than 64 bytes.
        assert!((65536 - 64..=65536).contains(&there), "{there}");
        // It is patient.
        let frames = sim.lanes[0].lock().unwrap().count;
        sim.run(1000 * SECOND);
        let asked = sim.lanes[0].lock().unwrap().count - frames;
        assert!((8..40).contains(&asked), "{asked} questions");
        // What says that there is room gets lost; so it asks again.
        assert_eq!(receive(&mut sim.calls(0), b, 1 << 17, 0), Ok(pattern(0, there)));
        sim.lanes[1].lock().unwrap().frames.clear();
        sim.until(130 * SECOND, "the rest", || sim.calls(0).queued(b, false) == Ok((sent - there) as u32));
    }
}

#[test]
fn blind_resets_are_not_believed() {
    for (to, ip) in BOTH.into_iter().zip([20, 40]) {
        let sim = Sim::new(31, Wire::GOOD);
        let (a, b) = over_the_wire(&sim, to);
        sim.run(SECOND);
        assert_eq!(send(&mut sim.calls(1), a, b"one"), Ok(3));
        let frame = sim.lanes[0].lock().unwrap().frames.values().next().unwrap().clone();
        sim.run(SECOND);
        let (sequence, flags) = (14 + ip + 4, 14 + ip + 13);
        let next = u32::from_be_bytes(frame[sequence..sequence + 4].try_into().unwrap()) + 3;
        let forged = |ahead: u32, bits: u8| {
            let mut f = frame.clone();
            f[sequence..sequence + 4].copy_from_slice(&next.wrapping_add(ahead).to_be_bytes());
            f[flags] = bits;
            super::fuzz::sum(&mut f);
            let before = sim.lanes[1].lock().unwrap().count;
            sim.lanes[0].lock().unwrap().push(0, f);
            sim.run(MS);
            sim.lanes[1].lock().unwrap().count - before
        };
        const RST: u8 = 4;
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        // Within the window, outside, and a new beginning: the peer is asked, now and then (RFC 5961).
        assert_eq!(forged(1000, RST), 1);
        assert_eq!(forged(1000, RST), 0);
        assert_eq!(forged(1 << 30, RST), 0);
        sim.run(SECOND);
        assert_eq!(forged(1000, SYN), 1);
        sim.run(SECOND);
        assert_eq!(forged(0, SYN | ACK), 1);
        assert_eq!(sim.calls(0).probe(b), IN | OUT);
        assert_eq!(send(&mut sim.calls(1), a, b"two"), Ok(3));
        sim.run(SECOND);
        assert_eq!(receive(&mut sim.calls(0), b, 100, 0), Ok(b"onetwo".to_vec()));
        // The right one is.
        forged(3, RST);
        assert_eq!(error_of(&mut sim.calls(0), b), Errno::ECONNRESET.0, "to {to}");
    }
}

#[test]
fn buffers_grow_with_the_way() {
    for to in BOTH {
        let sim = Sim::new(32, Wire { delay: 20 * MS, ..Wire::GOOD });
        let (a, b) = over_the_wire(&sim, to);
        let before = sim.now();
        transfer(&sim, (1, a), (0, b), 4 << 20, 60 * SECOND);
        // With 64 KiB in 40 ms it would take 2.6 s; slow start takes some of what it takes.
        let took = (sim.now() - before) / MS;
        assert!(took < 1000, "{took} ms to {to}");
        let memory = sim.calls(0).usage().0;
        assert!(memory > 500_000 && memory < 8 << 20, "{memory}");
        sim.calls(1).close(a).unwrap();
        sim.calls(0).close(b).unwrap();
        sim.run(100 * SECOND);
        assert_eq!(sim.calls(1).usage(), (0, 0, 0));
    }
}
