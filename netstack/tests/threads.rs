//! Many threads at one stack: nobody is forgotten, by the lock or by the events.
#![allow(missing_docs, reason = "a test")]

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use atoll_abi::Errno;
use atoll_abi::platform::Events;
use atoll_netstack::{Config, Stack};
use atoll_sync::{ThreadOps, set_thread_ops};
use linux_raw_sys::net;

static THREADS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

thread_local!(static ME: Cell<usize> = const { Cell::new(usize::MAX) });

fn current() -> usize {
    ME.with(|me| {
        if me.get() == usize::MAX {
            let mut all = THREADS.lock().unwrap();
            all.push(thread::current());
            me.set(all.len() - 1);
        }
        me.get()
    })
}

static OPS: ThreadOps = ThreadOps {
    current,
    park: thread::park,
    unpark: |t| THREADS.lock().unwrap()[t].unpark(),
    now: || 0,
    others: || false,
    breathe: || {},
    relax: || {},
};

fn address() -> Vec<u8> {
    let mut a = (net::AF_INET as u16).to_ne_bytes().to_vec();
    a.extend(80u16.to_be_bytes());
    a.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    a
}

/// A core: it sleeps until it is woken, and looks for events.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    ring: Condvar,
}

#[test]
fn cores_share_a_stack() {
    const CORES: usize = 4;
    const BYTES: usize = 4 << 20;
    set_thread_ops(&OPS);
    let bells: Arc<Vec<Bell>> = Arc::new((0..CORES).map(|_| Bell::default()).collect());
    let ring = bells.clone();
    let wake = move |core: usize| {
        *ring[core].rung.lock().unwrap() = true;
        ring[core].ring.notify_one();
    };
    let stack = Arc::new(Stack::new(Config::new(1, CORES), Vec::new(), Box::new(wake)));
    let start = Instant::now();
    let now = move || start.elapsed().as_nanos() as u64;
    let l = stack.calls(now()).socket(net::AF_INET, net::SOCK_STREAM, 0).unwrap();
    stack.calls(now()).bind(l, &address()).unwrap();
    stack.calls(now()).listen(l, 100).unwrap();
    // Each pair of cores has a connection: the even core sends, the odd one receives.
    let mut ends = Vec::new();
    for _ in 0..CORES / 2 {
        let a = stack.calls(now()).socket(net::AF_INET, net::SOCK_STREAM, 0).unwrap();
        assert_eq!(stack.calls(now()).connect(a, &address()), Err(Errno::EINPROGRESS));
        let (b, _) = stack.calls(now()).accept(l, &mut []).unwrap();
        ends.extend([a, b]);
    }
    let threads: Vec<_> = ends
        .into_iter()
        .enumerate()
        .map(|(core, s)| {
            let (stack, bells) = (stack.clone(), bells.clone());
            thread::spawn(move || {
                stack.calls(now()).watch(s, core, core as u64).unwrap();
                let (mut done, mut events) = (0, Events::new());
                while done < BYTES {
                    let r = if core.is_multiple_of(2) {
                        stack.calls(now()).send(s, 10_000.min(BYTES - done), None, 0, &mut |b| b.len())
                    } else {
                        stack.calls(now()).receive(s, 7_000, None, 0, &mut |b| b.len()).map(|r| r.len)
                    };
                    match r {
                        Ok(n) => done += n,
                        Err(Errno::EAGAIN) => {
                            // An edge must come; time passes as it would with interrupts.
                            loop {
                                if core < CORES / 2 {
                                    stack.take_events(core, &mut events);
                                } else {
                                    stack.poll_and_take(now(), core, &mut events);
                                }
                                if !events.take().is_empty() {
                                    break;
                                }
                                let rung = bells[core].rung.lock().unwrap();
                                let wait = bells[core].ring.wait_timeout_while(
                                    rung,
                                    Duration::from_millis(20),
                                    |rung| !*rung,
                                );
                                let (mut rung, timeout) = wait.unwrap();
                                *rung = false;
                                drop(rung);
                                if timeout.timed_out() {
                                    stack.poll(now());
                                    assert!(
                                        start.elapsed() < Duration::from_secs(60),
                                        "core {core} waits in vain"
                                    );
                                }
                            }
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
}
