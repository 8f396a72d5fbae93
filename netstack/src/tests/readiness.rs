//! Edges, against the word that the runtime keeps (`net/src/readiness.rs`): what it promises must come true.

use super::*;

#[test]
fn an_edge_for_each_change() {
    let sim = Sim::new(1, Wire::GOOD);
    let s = &sim.stacks[0];
    let l = sim.listen(0, "0.0.0.0:80", 5);
    sim.calls(0).watch(l, 1, 11).unwrap();
    assert_eq!(sim.calls(0).watch(l, 1, 11), Err(Errno::EEXIST));
    assert_eq!(sim.calls(0).watch(l, 9, 11), Err(Errno::EINVAL));
    assert!(events(s, 1).is_empty());
    let (looks, a) = (s.looks(1), sim.tcp(1));
    let to = bytes("10.0.0.1:80".parse().unwrap());
    assert_eq!(sim.calls(1).connect(a, &to), Err(Errno::EINPROGRESS));
    sim.calls(1).watch(a, 0, 5).unwrap();
    sim.run(20 * MS);
    assert!(s.has_events(1) && !s.has_events(0));
    assert_eq!(events(s, 1), [(11, IN, looks.wrapping_add(1))]);
    assert!(!s.has_events(1) && events(s, 1).is_empty());
    assert_eq!(events(&sim.stacks[1], 0), [(5, OUT, 1)]);
    let (b, _) = accept(&mut sim.calls(0), l).unwrap();
    sim.calls(0).watch(b, 2, 22).unwrap();
    // What is so when the watch begins is told.
    assert_eq!(events(s, 2), [(22, OUT, 1)]);
    for _ in 0..3 {
        // More data is an edge, though nothing was taken.
        send(&mut sim.calls(1), a, b"x").unwrap();
        sim.run(20 * MS);
        let e = events(s, 2);
        assert_eq!((e.len(), e[0].1), (1, IN | OUT));
    }
    // Several changes merge, and one that is over when the core looks is none.
    receive(&mut sim.calls(0), b, 100, 0).unwrap();
    send(&mut sim.calls(1), a, b"x").unwrap();
    sim.run(20 * MS);
    send(&mut sim.calls(1), a, b"x").unwrap();
    sim.run(20 * MS);
    receive(&mut sim.calls(0), b, 100, 0).unwrap();
    assert_eq!(events(s, 2), [(22, OUT, s.looks(2))]);
    // Room is told of to who has found none.
    let mut sent = 0;
    while let Ok(n) = send(&mut sim.calls(0), b, &[0; 10_000]) {
        sent += n;
        sim.run(20 * MS);
    }
    assert!(events(s, 2).is_empty());
    while sent > 0 {
        sim.run(20 * MS);
        sent -= receive(&mut sim.calls(1), a, 100_000, 0).unwrap().len();
    }
    sim.run(20 * MS);
    assert_eq!(events(s, 2).iter().map(|e| e.1).collect::<Vec<_>>(), [OUT]);
    // The end, and a reset.
    sim.calls(1).shutdown(a, 1).unwrap();
    sim.run(20 * MS);
    assert_eq!(events(s, 2)[0].1, IN | OUT | RDHUP);
    sim.calls(1).close(a).unwrap();
    send(&mut sim.calls(0), b, b"x").unwrap();
    sim.run(20 * MS);
    assert_eq!(events(s, 2)[0].1, IN | OUT | RDHUP | HUP | ERR);
    // Of a closed socket nothing comes any more.
    send(&mut sim.calls(0), b, b"x").unwrap_err();
    let (a, c) = sim.pair(1, 0, l, "10.0.0.1:80");
    sim.calls(0).watch(c, 2, 33).unwrap();
    send(&mut sim.calls(1), a, b"x").unwrap();
    sim.run(20 * MS);
    sim.calls(0).close(c).unwrap();
    assert!(events(s, 2).is_empty());
}

/// What a core believes by the rules of edge-triggered events: an event tells how things are, a call that finds
/// nothing clears a bit, and nothing else is asked.
#[test]
fn who_follows_the_edges_never_waits_in_vain() {
    for seed in 0..60 {
        let wire = Wire { loss: 10, late: 20, twice: 5, full: 20, delay: 100_000 };
        let sim = Sim::new(1000 + seed, if seed % 2 == 0 { Wire::GOOD } else { wire });
        let mut r = seed * 77 + 1;
        let l = sim.listen(0, "0.0.0.0:80", 5);
        let (from, to) = if seed % 4 < 2 { (1, "10.0.0.1:80") } else { (0, "127.0.0.1:80") };
        let (a, b) = sim.pair(from, 0, l, to);
        let ends = [(from, a), (0, b)];
        // Believed readiness, bytes sent and received; each end sends a pattern and then closes its half.
        let (mut ready, mut sent, mut got, mut done) = ([0u32; 2], [0usize; 2], [0usize; 2], [false; 2]);
        for (k, (host, s)) in ends.into_iter().enumerate() {
            sim.calls(host).watch(s, k, k as u64).unwrap();
        }
        let total = 200_000;
        let mut idle = 0;
        while done != [true; 2] {
            for (k, (host, s)) in ends.into_iter().enumerate() {
                for (cookie, now, _) in events(&sim.stacks[host], k) {
                    assert_eq!(cookie, k as u64);
                    ready[k] |= now;
                }
                let mut c = sim.calls(host);
                for _ in 0..random(&mut r) % 4 {
                    if ready[k] & OUT != 0 && sent[k] < total {
                        let n = (random(&mut r) as usize % 30_000 + 1).min(total - sent[k]);
                        match send(&mut c, s, &pattern(sent[k], n)) {
                            Ok(n) => sent[k] += n,
                            Err(Errno::EAGAIN) => ready[k] &= !OUT,
                            Err(e) => panic!("seed {seed}: {e}"),
                        }
                        if sent[k] == total {
                            c.shutdown(s, 1).unwrap();
                        }
                    }
                    if ready[k] & IN != 0 && !done[k] {
                        let max = random(&mut r) as usize % 40_000 + 1;
                        match receive(&mut c, s, max, 0) {
                            Ok(bytes) => {
                                assert!(bytes == pattern(got[k], bytes.len()));
                                got[k] += bytes.len();
                                done[k] = bytes.is_empty();
                                // A short receive is all there was (epoll(7)).
                                if bytes.len() < max && ready[k] & RDHUP == 0 {
                                    ready[k] &= !IN;
                                }
                            }
                            Err(Errno::EAGAIN) => ready[k] &= !IN,
                            Err(e) => panic!("seed {seed}: {e}"),
                        }
                    }
                }
            }
            let acts =
                (0..2).any(|k| ready[k] & IN != 0 && !done[k] || ready[k] & OUT != 0 && sent[k] < total);
            if acts && !random(&mut r).is_multiple_of(3) {
                continue;
            }
            idle += 1;
            assert!(idle < 100_000, "seed {seed}: waits in vain: {ready:x?} {sent:?} {got:?}");
            sim.step(SECOND);
        }
        assert_eq!(got, [total; 2]);
    }
}

#[test]
fn cores_are_woken_and_none_waits_for_the_lock() {
    let woken = Arc::new(Mutex::new(Vec::new()));
    let log = woken.clone();
    let stack = Stack::new(config(1), Vec::new(), Box::new(move |core| log.lock().unwrap().push(core)));
    let u = stack.calls(0).socket(net::AF_INET, net::SOCK_DGRAM, 0).unwrap();
    stack.calls(0).bind(u, &bytes("127.0.0.1:9".parse().unwrap())).unwrap();
    stack.calls(0).watch(u, 3, 1).unwrap();
    assert_eq!(*woken.lock().unwrap(), [3]);
    {
        let mut busy = stack.calls(1000);
        // Who looks, or polls, meanwhile, goes away, and is told afterwards.
        assert!(events(&stack, 3).is_empty());
        assert!(stack.try_calls(2000).is_none());
        stack.poll(2000);
        send_to(&mut busy, u, b"x", Some(&bytes("127.0.0.1:9".parse().unwrap()))).unwrap();
        assert_eq!(*woken.lock().unwrap(), [3]);
    }
    assert_eq!(*woken.lock().unwrap(), [3, 3]);
    assert_eq!(events(&stack, 3), [(1, IN | OUT_UDP, 1)]);
}
