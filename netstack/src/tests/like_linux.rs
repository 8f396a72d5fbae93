//! Debug.
use super::*;
#[test]
fn dbg_v6() {
    let sim = Sim::new(4, Wire::GOOD);
    let to: SocketAddr = "[fd00::1]:81".parse().unwrap();
    let a = sim.calls(1).socket(domain(to), net::SOCK_STREAM, 0).unwrap();
    assert_eq!(sim.calls(1).connect(a, &bytes(to)), Err(Errno::EINPROGRESS));
    for _ in 0..30 {
        for (n, l) in sim.lanes.iter().enumerate() {
            for (k, f) in &l.lock().unwrap().frames {
                std::println!("{} to {n}: {:?} {:02x?}", sim.now(), k, f);
            }
        }
        sim.step(SECOND);
    }
}
#[test]
fn dbg_stall() {
    let bad = Wire { loss: 20, late: 30, twice: 10, delay: 200_000 };
    let sim = Sim::new(103, bad);
    let l = sim.listen(0, "[::]:80", 5);
    let (a, b) = sim.pair(1, 0, l, "[fd00::1]:80");
    let (mut s, mut g) = ([0; 2], [0; 2]);
    let end = sim.now() + 100 * SECOND;
    let mut lines = 0;
    while sim.now() < end {
        for (k, (x, p), (y, q)) in [(0, (1, a), (0, b)), (1, (0, b), (1, a))] {
            while let Ok(n) = send(&mut sim.calls(x), p, &pattern(s[k], 10_000.min(300_000 - s[k]))) {
                if n == 0 {
                    break;
                }
                s[k] += n;
            }
            while let Ok(n) = receive(&mut sim.calls(y), q, 10_000, 0) {
                g[k] += n.len();
            }
        }
        sim.step(SECOND);
        if sim.now() > end - 40 * SECOND && lines < 60 {
            lines += 1;
            std::println!(
                "{} {s:?} {g:?} queued {:?} {:?}",
                sim.now(),
                sim.calls(1).queued(a, true),
                sim.calls(0).queued(b, true)
            );
            for (n, l) in sim.lanes.iter().enumerate() {
                for (k, f) in &l.lock().unwrap().frames {
                    std::println!("   to {n}: {:?} {} {:02x?}", k, f.len(), &f[12..f.len().min(90)]);
                }
            }
        }
    }

    for k in 0..2 {
        let c = sim.stacks[k].inner.lock();
        for f in 0..5 {
            if let Some(f) = c.flows.get(f) {
                let t = std::format!("{:?}", f.tcp_socket());
                let mut out = std::string::String::new();
                let mut depth = 0;
                for ch in t.chars() {
                    if ch == '[' {
                        depth += 1;
                    }
                    if depth == 0 {
                        out.push(ch);
                    }
                    if ch == ']' {
                        depth -= 1;
                    }
                }
                std::println!(
                    "timer {:?} listed {} waits {} stuck {:?}: {}",
                    f.timer,
                    f.listed,
                    f.waits,
                    f.stuck,
                    out
                );
            }
        }
    }
}
