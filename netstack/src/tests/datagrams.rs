//! Datagrams, over the loopback and over the wire.

use super::*;

fn udp(sim: &Sim, n: usize, at: Option<&str>) -> i32 {
    let at: Option<SocketAddr> = at.map(|a| a.parse().unwrap());
    let domain = at.map_or(net::AF_INET, domain);
    let s = sim.calls(n).socket(domain, net::SOCK_DGRAM, 0).unwrap();
    if let Some(at) = at {
        sim.calls(n).bind(s, &bytes(at)).unwrap();
    }
    s
}

fn to(s: &str) -> Vec<u8> {
    bytes(s.parse().unwrap())
}

/// Bytes, who sent them, and flags.
fn take(sim: &Sim, n: usize, s: i32, max: usize, flags: u32) -> Result<(Vec<u8>, SocketAddr, usize, u32)> {
    let (mut out, mut from) = (Vec::new(), [0; 28]);
    let r = sim.calls(n).receive(s, max, Some(&mut from), flags, &mut |b| {
        out.extend_from_slice(b);
        b.len()
    })?;
    Ok((out, parse(&from[..r.addr_len]), r.len, r.flags))
}

#[test]
fn there_and_back() {
    for (from, there, at) in [
        (0, "127.0.0.1:53", "0.0.0.0:53"),
        (1, "10.0.0.1:53", "0.0.0.0:53"),
        (1, "10.0.0.1:53", "10.0.0.1:53"),
        (1, "[fd00::1]:53", "[::]:53"),
        (1, "[::ffff:10.0.0.1]:53", "[::]:53"),
        (0, "[::1]:53", "[::1]:53"),
    ] {
        let sim = Sim::new(1, Wire::GOOD);
        let s = udp(&sim, 0, Some(at));
        let c = udp(&sim, from, Some(if there.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" }));
        assert_eq!(take(&sim, 0, s, 10, 0).err(), Some(Errno::EAGAIN));
        assert_eq!(send_to(&mut sim.calls(from), c, b"question", Some(&to(there))), Ok(8));
        sim.run(3 * SECOND);
        assert_eq!(sim.calls(0).probe(s), IN | OUT_UDP);
        assert_eq!(sim.calls(0).queued(s, false), Ok(8));
        let (b, client, _, _) = take(&sim, 0, s, 100, net::MSG_PEEK).unwrap();
        assert_eq!(b, b"question");
        // Too little room: the rest is gone, and one is told.
        assert_eq!(take(&sim, 0, s, 5, net::MSG_PEEK | net::MSG_TRUNC).unwrap().2, 8);
        let (b, again, len, flags) = take(&sim, 0, s, 5, 0).unwrap();
        assert_eq!((b, again, len, flags), (b"quest".to_vec(), client, 5, net::MSG_TRUNC));
        assert_eq!(take(&sim, 0, s, 10, 0).err(), Some(Errno::EAGAIN));
        assert_eq!(send_to(&mut sim.calls(0), s, b"answer", Some(&bytes(client))), Ok(6));
        sim.run(3 * SECOND);
        let (b, server, _, _) = take(&sim, from, c, 100, 0).unwrap();
        assert_eq!((b, server), (b"answer".to_vec(), there.parse().unwrap()));
        // Nothing at all is a datagram, too.
        assert_eq!(send_to(&mut sim.calls(0), s, b"", Some(&bytes(client))), Ok(0));
        sim.run(3 * SECOND);
        assert_eq!(sim.calls(from).probe(c), IN | OUT_UDP);
        assert_eq!(take(&sim, from, c, 100, 0).unwrap().0, b"");
        sim.calls(0).close(s).unwrap();
        sim.calls(from).close(c).unwrap();
        sim.run(SECOND);
        for n in 0..2 {
            assert_eq!(sim.calls(n).usage(), (0, 0, 0));
        }
    }
}

#[test]
fn a_connected_socket_hears_its_peer_only() {
    let sim = Sim::new(2, Wire::GOOD);
    let s = udp(&sim, 0, Some("0.0.0.0:53"));
    let (a, b) = (udp(&sim, 1, Some("0.0.0.0:1000")), udp(&sim, 1, Some("0.0.0.0:1001")));
    sim.calls(0).connect(s, &to("10.0.0.2:1000")).unwrap();
    assert_eq!(name(&mut sim.calls(0), s, false), Ok("10.0.0.1:53".parse().unwrap()));
    let open = {
        let s = sim.calls(0).socket(net::AF_INET, net::SOCK_DGRAM, 0).unwrap();
        assert_eq!(sim.calls(0).bind(s, &to("0.0.0.0:53")), Err(Errno::EADDRINUSE));
        for s in [s, s] {
            sim.calls(0).set_option(s, net::SOL_SOCKET, net::SO_REUSEADDR, &1u32.to_ne_bytes()).unwrap();
        }
        assert_eq!(sim.calls(0).bind(s, &to("0.0.0.0:53")), Err(Errno::EADDRINUSE));
        s
    };
    sim.calls(0).close(open).unwrap();
    send_to(&mut sim.calls(1), a, b"from a", Some(&to("10.0.0.1:53"))).unwrap();
    send_to(&mut sim.calls(1), b, b"from b", Some(&to("10.0.0.1:53"))).unwrap();
    sim.run(3 * SECOND);
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0).unwrap(), b"from a");
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0), Err(Errno::EAGAIN));
    assert_eq!(send(&mut sim.calls(0), s, b"to a"), Ok(4));
    sim.run(3 * SECOND);
    assert_eq!(receive(&mut sim.calls(1), a, 100, 0).unwrap(), b"to a");
}

#[test]
fn a_refusal_is_told_to_who_is_connected() {
    for (from, there) in [(0, "127.0.0.1:9"), (1, "10.0.0.1:9"), (1, "[fd00::1]:9")] {
        let sim = Sim::new(3, Wire::GOOD);
        let s = udp(&sim, from, Some(if there.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" }));
        send_to(&mut sim.calls(from), s, b"x", Some(&to(there))).unwrap();
        sim.run(3 * SECOND);
        assert_eq!(sim.calls(from).probe(s), OUT_UDP);
        sim.calls(from).connect(s, &to(there)).unwrap();
        sim.calls(from).watch(s, 0, 1).unwrap();
        events(&sim.stacks[from], 0);
        send(&mut sim.calls(from), s, b"x").unwrap();
        sim.run(3 * SECOND);
        assert_eq!(events(&sim.stacks[from], 0)[0].1, OUT_UDP | ERR, "{there}");
        assert_eq!(receive(&mut sim.calls(from), s, 1, 0), Err(Errno::ECONNREFUSED));
        assert_eq!(receive(&mut sim.calls(from), s, 1, 0), Err(Errno::EAGAIN));
    }
}

#[test]
fn sizes_and_bounds() {
    let sim = Sim::new(4, Wire::GOOD);
    let s = udp(&sim, 0, Some("0.0.0.0:53"));
    let c = udp(&sim, 0, None);
    let here = to("127.0.0.1:53");
    assert_eq!(send_to(&mut sim.calls(0), c, &pattern(0, 65507), Some(&here)), Ok(65507));
    assert_eq!(send_to(&mut sim.calls(0), c, &pattern(0, 65508), Some(&here)), Err(Errno::EMSGSIZE));
    assert_eq!(receive(&mut sim.calls(0), s, 100_000, 0).unwrap(), pattern(0, 65507));
    // Over the wire, what fits a packet.
    let there = to("10.0.0.2:53");
    assert_eq!(send_to(&mut sim.calls(0), c, &pattern(0, 1473), Some(&there)), Err(Errno::EMSGSIZE));
    let r = udp(&sim, 1, Some("0.0.0.0:53"));
    assert_eq!(send_to(&mut sim.calls(0), c, &pattern(0, 1472), Some(&there)), Ok(1472));
    sim.run(3 * SECOND);
    assert_eq!(receive(&mut sim.calls(1), r, 100_000, 0).unwrap(), pattern(0, 1472));
    // Nobody takes them: no more than the buffer holds stay.
    for _ in 0..2000 {
        send_to(&mut sim.calls(0), c, &[7; 1000], Some(&here)).unwrap();
    }
    assert!(sim.calls(0).usage().0 < 400_000);
    let mut n = 0;
    while receive(&mut sim.calls(0), s, 1000, 0).is_ok() {
        n += 1;
    }
    assert!((100..300).contains(&n), "{n}");
    // Nobody answers there: what waits is bounded, and given up.
    let dead = to("10.0.0.99:9");
    let mut e = Ok(0);
    for _ in 0..1000 {
        e = send_to(&mut sim.calls(0), c, &[7; 1000], Some(&dead));
        if e.is_err() {
            break;
        }
    }
    assert_eq!(e, Err(Errno::EAGAIN));
    assert_eq!(sim.calls(0).probe(c) & OUT, 0);
    sim.until(10 * SECOND, "room", || sim.calls(0).probe(c) & OUT != 0);
    sim.run(3 * SECOND);
    assert_eq!(send_to(&mut sim.calls(0), c, b"still there", Some(&there)), Ok(11));
    sim.run(3 * SECOND);
    assert_eq!(receive(&mut sim.calls(1), r, 100, 0).unwrap(), b"still there");
}

#[test]
fn broadcasts_reach_all_who_want_them() {
    let sim = Sim::new(5, Wire::GOOD);
    let c = udp(&sim, 0, None);
    let (all, near) = (to("255.255.255.255:99"), to("10.0.0.255:99"));
    assert_eq!(send_to(&mut sim.calls(0), c, b"x", Some(&all)), Err(Errno::EACCES));
    assert_eq!(send_to(&mut sim.calls(0), c, b"x", Some(&near)), Err(Errno::EACCES));
    sim.calls(0).set_option(c, net::SOL_SOCKET, net::SO_BROADCAST, &1u32.to_ne_bytes()).unwrap();
    let both: Vec<_> = (0..2)
        .map(|_| {
            let s = udp(&sim, 1, None);
            sim.calls(1).set_option(s, net::SOL_SOCKET, net::SO_REUSEADDR, &1u32.to_ne_bytes()).unwrap();
            sim.calls(1).bind(s, &to("0.0.0.0:99")).unwrap();
            s
        })
        .collect();
    for there in [all, near] {
        send_to(&mut sim.calls(0), c, b"hear", Some(&there)).unwrap();
        sim.run(SECOND);
        for s in &both {
            assert_eq!(receive(&mut sim.calls(1), *s, 100, 0).unwrap(), b"hear");
        }
    }
}

#[test]
fn a_datagram_that_cannot_be_copied_stays() {
    let sim = Sim::new(6, Wire::GOOD);
    let s = udp(&sim, 0, Some("127.0.0.1:53"));
    send_to(&mut sim.calls(0), s, b"to myself", Some(&to("127.0.0.1:53"))).unwrap();
    assert_eq!(sim.calls(0).receive(s, 100, None, 0, &mut |_| 3).err(), Some(Errno::EFAULT));
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0).unwrap(), b"to myself");
    assert_eq!(sim.calls(0).send(s, 5, Some(&to("127.0.0.1:53")), 0, &mut |_| 4), Err(Errno::EFAULT));
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0), Err(Errno::EAGAIN));
}

#[test]
fn a_datagram_in_pieces() {
    let sim = Sim::new(1, Wire::GOOD);
    let (s, other) = (udp(&sim, 0, Some("0.0.0.0:53")), udp(&sim, 0, Some("0.0.0.0:54")));
    let c = udp(&sim, 0, None);
    let send = |len: usize, at: &str, flags| {
        sim.calls(0).send(c, len, Some(&to(at)), flags, &mut |b| {
            b.fill(len as u8);
            b.len()
        })
    };
    let before = sim.calls(0).usage().0;
    assert_eq!(send(2, "127.0.0.1:53", net::MSG_MORE), Ok(2));
    assert_eq!(send(1, "127.0.0.1:54", net::MSG_MORE), Ok(1));
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0), Err(Errno::EAGAIN));
    // The first one said where to.
    assert_eq!(send(3, "127.0.0.1:54", 0), Ok(3));
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0).unwrap(), [2, 2, 1, 3, 3, 3]);
    assert_eq!(receive(&mut sim.calls(0), other, 100, 0), Err(Errno::EAGAIN));
    // One of which a piece can't be copied yet waits for that.
    assert_eq!(send(2, "127.0.0.1:53", net::MSG_MORE), Ok(2));
    assert_eq!(sim.calls(0).send(c, 5, None, 0, &mut |_| 4), Err(Errno::EFAULT));
    assert_eq!(send(1, "127.0.0.1:54", 0), Ok(1));
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0).unwrap(), [2, 2, 1]);
    // One that becomes too long is gone.
    assert_eq!(send(60_000, "127.0.0.1:53", net::MSG_MORE), Ok(60_000));
    assert_eq!(send(6000, "127.0.0.1:53", 0), Err(Errno::EMSGSIZE));
    assert_eq!(sim.calls(0).usage().0, before);
    assert_eq!(send(1, "127.0.0.1:53", 0), Ok(1));
    assert_eq!(receive(&mut sim.calls(0), s, 100, 0).unwrap(), [1]);
    assert_eq!(send(60_000, "127.0.0.1:53", net::MSG_MORE), Ok(60_000));
    sim.calls(0).close(c).unwrap();
    assert_eq!(sim.calls(0).usage().0, before);
}
