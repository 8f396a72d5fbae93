//! The scheduler on the simulated platform: many cores, many seeds.
#![allow(unsafe_code, reason = "sets a thread's registers")]
#![allow(missing_docs, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use atoll_abi::core_local::{core_local, pending};
use atoll_abi::grid::{INFRASTRUCTURE, Measure, Parameters, RESOURCES, ROOT, Resource, SchedulerKind, kind};
use atoll_abi::platform;
use atoll_abi::service::{Op, Request};
use atoll_platform_sim::{Config, Outcome, run};
use atoll_sync::{Mutex, WaitQueue};
use atoll_task as task;

/// Keeps pieces of memory that are aligned to a line, as a core's books are, and were given back: nobody may write there any more.
struct Keeper;

const KEPT: usize = 1024;
const PATTERN: u8 = 0x33;
static KEPT_NOW: AtomicUsize = AtomicUsize::new(0);
static KEPT_AT: [(AtomicPtr<u8>, AtomicUsize); KEPT] =
    [const { (AtomicPtr::new(std::ptr::null_mut()), AtomicUsize::new(0)) }; KEPT];

// SAFETY: all is the system's, but that some of it is not given back.
unsafe impl GlobalAlloc for Keeper {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let n = if layout.align() == 64 { KEPT_NOW.fetch_add(1, Ordering::SeqCst) } else { KEPT };
        // SAFETY: the caller's promise: nobody uses it any more.
        unsafe {
            match KEPT_AT.get(n) {
                Some((kept, len)) => {
                    at.write_bytes(PATTERN, layout.size());
                    len.store(layout.size(), Ordering::SeqCst);
                    kept.store(at, Ordering::SeqCst);
                }
                None => System.dealloc(at, layout),
            }
        }
    }
}

#[global_allocator]
static KEEPER: Keeper = Keeper;

/// How many pieces were given back and kept, and whether one of them was written to since.
fn kept() -> (usize, bool) {
    let all = || KEPT_AT.iter().filter(|(at, _)| !at.load(Ordering::SeqCst).is_null());
    let damaged = all().any(|(at, len)| {
        // SAFETY: it was not given back, and has so many bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts(at.load(Ordering::SeqCst), len.load(Ordering::SeqCst)) };
        bytes.iter().any(|byte| *byte != PATTERN)
    });
    (all().count(), damaged)
}

fn boot(core: usize, first: impl FnOnce() + Send + 'static) -> ! {
    if core == 0 {
        task::init(platform().control().descriptor.cores.load(Ordering::Relaxed) as usize);
    } else {
        while task::cores() == 0 {
            // Core 0 sets up the scheduler first.
            platform().now();
        }
    }
    task::boot_core();
    if core == 0 {
        task::start(task::spawn(0, first).unwrap());
    }
    task::run_core()
}

fn seeds(test: fn(usize) -> !, want: Outcome) {
    first_seeds(40, test, want);
}

/// For tests that take long.
fn first_seeds(seeds: u64, test: fn(usize) -> !, want: Outcome) {
    some_seeds(seeds, &[1, 2, 4], test, want);
}

fn some_seeds(seeds: u64, cores: &[usize], test: fn(usize) -> !, want: Outcome) {
    for seed in 1..=seeds {
        for &cores in cores {
            let config = Config { cores, seed, switch_once_in: [0, 3, 20][seed as usize % 3].max(1) };
            assert_eq!(run(config, test), want, "{config:?}");
        }
    }
}

/// For tests of what many cores do to each other: `many` seeds with 8 and 16 of them, too.
fn seeds_and_many_cores(seeds: u64, many: u64, test: fn(usize) -> !, want: Outcome) {
    first_seeds(seeds, test, want);
    some_seeds(many, &[8, 16], test, want);
}

fn join(count: &Arc<(AtomicU64, WaitQueue)>, n: u64) {
    loop {
        count.1.register(1);
        if count.0.load(Ordering::SeqCst) == n {
            count.1.unregister();
            return;
        }
        task::park();
        count.1.unregister();
    }
}

/// Sleeps, whoever wakes it meanwhile: a wake-up of those that it has waited for may come late.
fn sleep_whole(deadline: u64) {
    while platform().now() < deadline {
        task::sleep_until(deadline);
    }
}

fn done(count: &Arc<(AtomicU64, WaitQueue)>) {
    count.0.fetch_add(1, Ordering::SeqCst);
    count.1.wake_all(1);
}

/// Threads on all cores fight for one mutex; no increment and no wake-up is lost (OV-04).
#[test]
fn mutex_across_cores() {
    seeds(
        |core| {
            boot(core, || {
                let total = Arc::new(Mutex::new(0u64));
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                for i in 0..8 {
                    let (total, count) = (total.clone(), count.clone());
                    let t = task::spawn(i % task::cores(), move || {
                        for _ in 0..20 {
                            let mut g = total.lock();
                            let v = *g;
                            task::yield_now();
                            *g = v + 1;
                        }
                        done(&count);
                    });
                    task::start(t.unwrap());
                }
                join(&count, 8);
                platform().end(if *total.lock() == 160 { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// Who is woken on a core that sleeps, again and again by one that sleeps then, goes on where that one is; if the waker works on, it waits
/// for its own core, or another one, no longer than anybody.
#[test]
fn who_is_woken_goes_on_where_its_waker_sleeps() {
    seeds(
        |core| {
            boot(core, || {
                let turn = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));

                let (theirs, ended) = (turn.clone(), count.clone());
                let other = task::spawn(task::cores() - 1, move || {
                    for n in 0..40 {
                        join(&theirs, 2 * n + 1);
                        done(&theirs);
                    }
                    done(&ended);
                });
                let other = other.unwrap();
                other.allow_moving();
                let ended = count.clone();
                let one = task::spawn(0, move || {
                    let mut together = 0;
                    for n in 0..40u64 {
                        sleep_whole(platform().now() + 500_000);
                        done(&turn);
                        if n >= 30 {
                            burn(1_000_000);
                            task::yield_now();
                        }
                        join(&turn, 2 * n + 2);
                        together += u64::from(other.core() == task::current().core());
                    }
                    assert!(task::cores() == 1 || together > 10, "{together} of 40 times");
                    done(&ended);
                });
                let one = one.unwrap();
                one.allow_moving();
                task::start(other);
                task::start(one);
                join(&count, 2);
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Who has computed for long and wakes another one on its core goes on for a while, but not for long.
#[test]
fn who_wakes_goes_on_a_while() {
    some_seeds(
        20,
        &[1, 2],
        |core| {
            boot(core, || {
                let turn = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let ran = Arc::new(AtomicU64::new(0));
                let (theirs, ended, runs) = (turn.clone(), count.clone(), ran.clone());
                let sleeper = task::spawn(0, move || {
                    for n in 1..=40 {
                        join(&theirs, n);
                        runs.store(platform().now(), Ordering::SeqCst);
                    }
                    done(&ended);
                });
                let (ended, last) = (count.clone(), ran);
                let waker = task::spawn(0, move || {
                    let (mut soon, mut late) = (0, 0);
                    for n in 1..=40u64 {
                        let computes = platform().now() + if n == 1 { 20_000_000 } else { 1_000_000 };
                        run_program(|now| now >= computes);
                        done(&turn);
                        let woken = platform().now();
                        run_program(|now| last.load(Ordering::SeqCst) >= woken || now >= woken + 10_000_000);
                        let after = last.load(Ordering::SeqCst).saturating_sub(woken);
                        soon += u64::from(after < 20_000);
                        late += u64::from(after == 0 || after > 1_000_000);
                    }
                    // But for the first time, when it had nothing before.
                    if soon > 1 || late > 1 {
                        eprintln!("{soon} too soon, {late} too late of 40");
                        platform().end(1);
                    }
                    done(&ended);
                });
                let works = task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"work").unwrap();
                for t in [sleeper.unwrap(), waker.unwrap()] {
                    t.work_for(works.clone());
                    task::start(t);
                }
                join(&count, 2);
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Threads that idle cores may take over run on one core at a time: none is
/// taken from under the core that still stands on its stack.
#[test]
fn threads_move() {
    seeds(
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let shared = Arc::new((Mutex::new(0u64), WaitQueue::new()));
                for i in 0..6 {
                    let (count, shared) = (count.clone(), shared.clone());
                    let t = task::spawn(0, move || {
                        // On the stack, where a second core would damage it.
                        let mut seen = [i as u64; 64];
                        for round in 0..120 {
                            for word in &mut seen {
                                *word += 1;
                            }
                            match round % 12 {
                                0 => task::park_until(platform().now() + 20_000),
                                1 => *shared.0.lock() += 1,
                                _ => task::yield_now(),
                            }
                            shared.1.wake_all(1);
                        }
                        assert!(seen.iter().all(|w| *w == i as u64 + 120));
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.allow_moving();
                    task::start(t);
                }
                join(&count, 6);
                platform().end(if *shared.0.lock() == 60 { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// Sleepers wake in order of their deadlines and not before them; answers reach who asked.
#[test]
fn timers_and_answers() {
    seeds(
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                for i in 0..10u64 {
                    let count = count.clone();
                    let t = task::spawn(i as usize % task::cores(), move || {
                        for round in 0..5 {
                            let until = platform().now() + 1_000 + i * 7_919 % 50_000;
                            while platform().now() < until {
                                task::sleep_until(until);
                            }
                            let mut request = Request::new(Op::Nop);
                            request.arg[0] = i * 100 + round;
                            assert_eq!(task::call(request), Ok(i * 100 + round));
                        }
                        done(&count);
                    });
                    task::start(t.unwrap());
                }
                join(&count, 10);
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// A periodic timer calls until it is stopped, and not after.
#[test]
fn periodic_timer() {
    seeds(
        |core| {
            boot(core, || {
                let n = Arc::new(AtomicU64::new(0));
                let n2 = n.clone();
                let timer = task::Timer::new(move |times| {
                    n2.fetch_add(times, Ordering::SeqCst);
                    task::Hold::NOT
                });
                let start = platform().now();
                timer.start(start + 10_000, 10_000);
                while platform().now() < start + 200_000 {
                    task::sleep_until(start + 200_000);
                }
                timer.stop();
                let seen = n.load(Ordering::SeqCst);
                let late = platform().now() + 100_000;
                while platform().now() < late {
                    task::sleep_until(late);
                }
                let after = n.load(Ordering::SeqCst);
                platform().end(if (15..=20).contains(&seen) && after <= seen + 1 { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// A timer whose call holds it back does not call until it is resumed, or until that is over; no time is lost.
#[test]
fn held_timer() {
    seeds(
        |core| {
            boot(core, || {
                // Held for ever and for 50 us: (calls, times).
                for (hold, calls) in [(u64::MAX, 1..=1), (50_000, 3..=5)] {
                    let seen = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
                    let s = seen.clone();
                    let timer = task::Timer::new(move |times| {
                        s.0.fetch_add(1, Ordering::SeqCst);
                        s.1.fetch_add(times, Ordering::SeqCst);
                        task::Hold(hold)
                    });
                    let start = platform().now();
                    timer.start(start + 1_000, 1_000);
                    let until = |at: u64| {
                        while platform().now() < at {
                            task::sleep_until(at);
                        }
                    };
                    until(start + 200_500);
                    let held = calls.contains(&seen.0.load(Ordering::SeqCst));
                    let (left, _) = timer.remaining();
                    let resumed = timer.resume();
                    let (now, sum) = (platform().now(), seen.1.load(Ordering::SeqCst) + resumed);
                    let all = (now - start) / 1_000;
                    let told = all - 3 <= sum && sum <= all && left <= 1_000;
                    // It goes on at its interval.
                    until(now + 3_000);
                    let goes_on = seen.0.load(Ordering::SeqCst) > *calls.start();
                    timer.stop();
                    let stopped = timer.resume() == 0;
                    if !(held && told && goes_on && stopped) {
                        platform().end(1);
                    }
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// A timer that runs out just when the last thread that is ready goes to wait for it wakes that one.
#[test]
fn timer_of_who_goes_to_sleep() {
    seeds(
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                for n in 0..200 {
                    let seen = count.clone();
                    let timer = task::Timer::new(move |_| {
                        done(&seen);
                        task::Hold::NOT
                    });
                    timer.start(platform().now() + 10 * n, 0);
                    join(&count, n + 1);
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// A cell whose threads all wait for ever is seen as such, not spun on.
#[test]
fn all_asleep_is_quiet() {
    seeds(
        |core| {
            boot(core, || {
                loop {
                    task::park();
                }
            })
        },
        Outcome::Stuck,
    );
}

/// Everything that the cell has used, ns.
fn booked() -> i64 {
    task::used().iter().flat_map(|used| used.entries.iter().map(|e| e.time)).sum()
}

/// Whatever threads do, each nanosecond of each core is in one record (OK-05): what the records of two looks differ by
/// is the time between them, on every core.
#[test]
fn books_balance() {
    seeds_and_many_cores(40, 6, work_and_balance, Outcome::Ended(0));
}

/// They do, too, where the core looks at a counter beside the clock.
#[test]
fn books_balance_that_count() {
    seeds_and_many_cores(40, 6, |core| counting(core, work_and_balance), Outcome::Ended(0));
}

/// Runs `f` in a cell that counts something.
fn counting(core: usize, f: fn(usize) -> !) -> ! {
    let count = atoll_abi::counter::Count { event: atoll_abi::counter::EVENTS[0], user_only: false };
    platform().control().grid.counts.store(count.word(), Ordering::Relaxed);
    f(core)
}

fn work_and_balance(core: usize) -> ! {
    boot(core, || {
        // All cores are up.
        task::sleep_until(platform().now() + 1_000_000);
        let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
        let look = || (platform().now(), booked(), platform().now());
        let first = look();
        let threads = task::cores().max(6);
        for i in 0..threads {
            let count = count.clone();
            let t = task::spawn(i % task::cores(), move || {
                for n in 0..20 {
                    task::books::begin(n % 3, Resource::Files);
                    if n % 5 == 0 {
                        task::sleep_until(platform().now() + 50_000);
                    } else {
                        task::yield_now();
                    }
                    task::books::within(Resource::DeviceRead, || platform().now());
                    task::books::end();
                }
                done(&count);
            });
            task::start(t.unwrap());
        }
        join(&count, threads as u64);
        let second = look();
        let cores = task::cores() as i64;
        // A look takes a moment, in which the books go on.
        let least = (second.0 - first.2) as i64 * cores;
        let most = (second.2 - first.0) as i64 * cores;
        let total = second.1 - first.1;
        platform().end(if (least..=most).contains(&total) { 0 } else { 1 });
    })
}

/// Is there an assertion against this (OK-01)?
#[cfg(all(debug_assertions, not(feature = "without-books")))]
fn is_refused(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

/// What a program's thread has the platform do is part of a message, and so is what takes long; what the runtime's threads do
/// is on their own account.
#[cfg(all(debug_assertions, not(feature = "without-books")))]
#[test]
fn nothing_happens_in_no_record() {
    // The test sets the thread pointer of the one core's thread.
    some_seeds(
        4,
        &[1],
        |core| {
            boot(core, || {
                std::panic::set_hook(Box::new(|_| ()));
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let (of_program, wrong) = (count.clone(), Arc::new(AtomicU64::new(0)));
                let noted = wrong.clone();
                let check = move |holds: bool| {
                    noted.fetch_add(u64::from(!holds), Ordering::SeqCst);
                };
                let host = task::thread_pointer();
                let all_well = check.clone();
                let t = task::spawn_program(
                    platform().control().cores[0].local.space.load(Ordering::SeqCst),
                    move || {
                        let in_message = || {
                            task::books::begin(0, Resource::Files);
                            task::yield_now();
                            platform().disarm();
                            atoll_abi::assert_accounted("a loop");
                            task::books::end();
                        };
                        check(!is_refused(in_message));
                        check(is_refused(|| platform().disarm()));
                        check(!is_refused(in_message));
                        check(is_refused(|| atoll_abi::assert_accounted("a loop")));
                        check(!is_refused(|| _ = platform().now()));
                        task::books::begin(0, Resource::Process);
                        done(&of_program);
                    },
                    task::exit,
                );
                let t = t.unwrap();
                // SAFETY: it has not begun.
                unsafe { t.frame() }.fs_base = host;
                task::start(t);
                all_well(!is_refused(|| platform().disarm()));
                join(&count, 1);
                platform().end(wrong.load(Ordering::SeqCst) as i32);
            })
        },
        Outcome::Ended(0),
    );
}

/// What is timed of short messages stands for others, but never for more time than there was: no record is below nothing, at any
/// time, whatever a thread does first, or next to others, or while the machine is elsewhere (OK-05).
#[test]
fn nothing_is_below_nothing() {
    first_seeds(
        12,
        |core| {
            boot(core, || {
                task::sleep_until(platform().now() + 1_000_000);
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let (wrong, root) = (Arc::new(AtomicU64::new(0)), task::Activity::root());
                for n in 0..4 {
                    let (count, wrong) = (count.clone(), wrong.clone());
                    let t = task::spawn(n % task::cores(), move || {
                        for k in 0..60 {
                            task::books::begin(k % 2, Resource::Files);
                            platform().now();
                            task::books::end();
                            match k % 20 {
                                7 => task::yield_now(),
                                15 => atoll_platform_sim::steal(300_000),
                                _ => {}
                            }
                            let used = task::used();
                            let below = used
                                .iter()
                                .any(|u| u.kind == kind::PROCESS && u.entries.iter().any(|e| e.time < 0));
                            wrong.fetch_add(u64::from(below), Ordering::Relaxed);
                        }
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.work_for(task::Activity::new(kind::PROCESS, &root, n as u32 + 1, b"short").unwrap());
                    task::start(t);
                }
                join(&count, 4);
                platform().end(if wrong.load(Ordering::SeqCst) == 0 { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// Passes time. Value: how much it was, ns.
fn burn(ns: u64) -> u64 {
    let start = platform().now();
    loop {
        let passed = platform().now() - start;
        if passed >= ns {
            return passed;
        }
    }
}

/// What a thread of the runtime does for others, it is paid back for by those whose it turns out to be, in proportion; what has
/// ended by then is its class's, and the books balance (OK-04).
#[test]
fn work_behind_is_paid_back() {
    seeds(
        |core| {
            boot(core, || {
                task::sleep_until(platform().now() + 1_000_000);
                let root = task::Activity::root();
                let class = task::Activity::new(kind::NAMED, &root, 0, b"class").unwrap();
                let make = |name: &[u8]| task::Activity::new(kind::PROCESS, &class, 1, name).unwrap();
                let (first, ended) = (make(b"first"), make(b"ended"));
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let debtors = Arc::new(Mutex::new(Vec::new()));
                for who in [&first, &ended] {
                    let (count, debtors) = (count.clone(), debtors.clone());
                    let t = task::spawn(0, move || {
                        debtors.lock().push(task::Debtor::current());
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.work_for(who.clone());
                    task::start(t);
                }
                join(&count, 2);
                // Its thread has let go of it, too.
                task::sleep_until(platform().now() + 1_000_000);
                drop(ended);
                let at = |entries: &[task::Used], who: u32, resource: Resource| {
                    let used = entries.iter().find(|used| used.activity == who).unwrap();
                    used.entries[resource as usize]
                };
                let before = (platform().now(), booked(), task::used());
                let burnt = Arc::new([const { AtomicU64::new(0) }; 3]);
                let (took, whose, writer) = (burnt.clone(), debtors.clone(), count.clone());
                let t = task::spawn(0, move || {
                    let begun = task::books::begin_for_nobody();
                    for _ in 0..4 {
                        took[0].fetch_add(burn(1_000_000), Ordering::Relaxed);
                        task::sleep_until(platform().now() + 100_000);
                        for n in 0..12 {
                            let (asked, reads) = (platform().now(), n % 3 == 0);
                            let _ = task::call(Request::new(if reads { Op::StatHandle } else { Op::Write }));
                            took[if reads { 2 } else { 1 }]
                                .fetch_add(platform().now() - asked, Ordering::Relaxed);
                        }
                    }
                    let whose: Vec<_> = whose.lock().iter().map(|d| (*d, 1)).collect();
                    task::books::reimburse(begun, Resource::DeviceWrite, &[(whose[0].0, 3), whose[1]]);
                    whose.iter().for_each(|(d, _)| task::books::moved_for(*d, Resource::DeviceWrite, 100));
                    done(&writer);
                });
                task::start(t.unwrap());
                join(&count, 3);
                let after = (task::used(), booked(), platform().now());
                let of = |who: u32| {
                    let [(was, is), (reads, read)] = [Resource::DeviceWrite, Resource::DeviceRead]
                        .map(|resource| (at(&before.2, who, resource), at(&after.0, who, resource)));
                    (
                        is.time - was.time,
                        is.bytes - was.bytes,
                        [is.device - was.device, read.device - reads.device],
                    )
                };
                let [burnt, waits @ ..] = burnt.each_ref().map(|n| n.load(Ordering::Relaxed) as i64);
                // Besides what it burns, it goes to sleep and sends requests.
                let near = |n: i64, want: i64| n >= want && n < want + want / 20 + 100_000;
                let (one, other) = (of(first.number()), of(class.number()));
                // Until an answer is taken in, and not until who waits for it runs again.
                let close = |n: i64, most: i64| n <= most && n > most * 3 / 4;
                let paid = |(n, waited): (usize, &i64)| {
                    close(one.2[n], waited * 3 / 4) && close(other.2[n], waited / 4 + 1)
                };
                let device = waits.iter().enumerate().all(paid) && of(INFRASTRUCTURE).2 == [0, 0];
                let fair = near(one.0, burnt * 3 / 4) && near(other.0, burnt / 4);
                let bytes = one.1 == 100 && other.1 == 100;
                let nobody = |all: &[task::Used]| at(all, INFRASTRUCTURE, Resource::Completion).time;
                let paid_back = nobody(&after.0) - nobody(&before.2) < burnt / 8;
                let cores = task::cores() as i64;
                let balanced = after.1 - before.1 <= (after.2 - before.0) as i64 * cores;
                platform().end(if fair && bytes && device && paid_back && balanced { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// Work that idle cores do ahead on memory is paid for by those who take that, on whichever core, and the books balance (OK-04).
#[test]
fn work_ahead_is_paid_for() {
    const PIECES: u64 = 40;
    static DONE: AtomicU64 = AtomicU64::new(0);
    seeds(
        |core| {
            boot(core, || {
                task::set_work_ahead(|| {
                    let n = DONE.fetch_add(1, Ordering::Relaxed);
                    (n < PIECES).then(|| {
                        burn(2_000 + n % 3 * 500);
                        16
                    })
                });
                let memory = |of: u32| {
                    let used = task::used();
                    used.iter().find(|used| used.activity == of).unwrap().entries[Resource::Memory as usize]
                        .time
                };
                while DONE.load(Ordering::Relaxed) <= PIECES {
                    task::sleep_until(platform().now() + 20_000_000);
                }
                // The last ones are in the books.
                task::sleep_until(platform().now() + 20_000_000);
                let (before, cost, books) = (platform().now(), memory(INFRASTRUCTURE), booked());
                let root = task::Activity::root();
                let takes = task::Activity::new(kind::PROCESS, &root, 1, b"takes").unwrap();
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                for n in 0..4 {
                    let (count, whose) = (count.clone(), takes.number());
                    let t = task::spawn(n % task::cores(), move || {
                        for _ in 0..PIECES * 3 {
                            task::books::worked_ahead_for(whose, 1);
                        }
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.work_for(takes.clone());
                    task::start(t);
                }
                join(&count, 4);
                // Of 16 pages each 12 were taken.
                let (paid, left) = (memory(takes.number()), memory(INFRASTRUCTURE));
                // A sixteenth: so much may a page cost more or less than all cores have been told.
                let near = |n: i64, want: i64| (n - want).abs() <= cost / 16;
                let right = cost > PIECES as i64 * 2_000 && near(paid, cost * 3 / 4) && near(left, cost / 4);
                let balanced = booked() - books <= (platform().now() - before) as i64 * task::cores() as i64;
                platform().end(if right && balanced { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// How long a core is taken away, ns.
const STOLEN: u64 = 3_000_000;

/// What was burnt on purpose, by activity and resource, ns.
#[derive(Default)]
struct Burnt([[AtomicU64; RESOURCES]; 4]);

impl Burnt {
    fn note(&self, who: usize, resource: Resource, ns: u64) {
        self.0[who][resource as usize].fetch_add(ns, Ordering::Relaxed);
    }
}

/// One thread burns in each resource, in and outside of a message, and has a timer and an answer to a request burn, too.
fn burn_everywhere(who: usize, burnt: &Arc<Burnt>, count: &Arc<(AtomicU64, WaitQueue)>) {
    for round in 0..3 {
        burnt.note(who, Resource::Thread, burn(1_000_000));
        for (n, resource) in Resource::SERVING.into_iter().enumerate() {
            // Of a length that belongs to both, and in two parts: others run between them.
            let ns = 240_000 + 40_000 * (who as u64 + n as u64 % 3);
            task::books::begin(n, Resource::Process);
            task::books::turn_to(resource);
            burnt.note(who, resource, burn(ns));
            task::yield_now();
            burnt.note(who, resource, burn(ns / 2));
            let other = Resource::SERVING[(n + 1) % Resource::SERVING.len()];
            task::books::within(other, || burnt.note(who, other, burn(ns)));
            task::books::end();
        }
        // In the middle of a slice it comes to be somebody else's.
        let (of_timer, of_answer) = (burnt.clone(), burnt.clone());
        let done_by_timer = Arc::new((AtomicU64::new(0), WaitQueue::new()));
        let (seen_by_timer, seen_by_answer) = (done_by_timer.clone(), done_by_timer.clone());
        let timer = task::Timer::new(move |_| {
            of_timer.note(who, Resource::Timer, burn(400_000));
            done(&seen_by_timer);
            task::Hold::NOT
        });
        timer.start(platform().now() + 20_000, 0);
        let then = move |_: &task::Call| {
            of_answer.note(who, Resource::Completion, burn(400_000 + 40_000 * round));
            done(&seen_by_answer);
        };
        let call = task::Call::send_then(Request::new(Op::Nop), Some(Box::new(then))).unwrap();
        join(&done_by_timer, 2);
        call.wait().unwrap();
    }
    done(count);
}

/// Known burns come back in the record of the resource and the activity that they were injected into, within 1 % (OK-05): in
/// threads, in messages of each resource, in timers and answers, which the runtime serves for who asked (OK-04). So does what
/// the machine takes from a core. Next to nothing is left to nobody.
#[test]
fn burns_come_back() {
    // With more cores, time passes faster than each of them looks at the clock.
    some_seeds(6, &[1, 2], |core| burn_and_compare(core, false), Outcome::Ended(0));
}

/// So does what is counted beside time: the simulated counter counts nanoseconds. (With more cores, each look at it takes time of all.)
#[test]
fn what_is_counted_comes_back() {
    some_seeds(6, &[1], |core| counting(core, |core| burn_and_compare(core, true)), Outcome::Ended(0));
}

/// Burns everywhere, and compares what is in the records, time or what is counted, with that.
fn burn_and_compare(core: usize, counting: bool) -> ! {
    boot(core, move || {
        let root = task::Activity::root();
        let mut who: Vec<task::Activity> = [b"gold", b"iron"]
            .into_iter()
            .map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap())
            .collect();
        let unit = task::Activity::new(kind::UNIT, &who[0], 7, b"unit").unwrap();
        who.push(unit);
        task::sleep_until(platform().now() + 1_000_000);
        let before = task::used();
        let (burnt, count) = (Arc::new(Burnt::default()), Arc::new((AtomicU64::new(0), WaitQueue::new())));
        for on in 0..task::cores() {
            for (n, activity) in who.iter().enumerate() {
                let (burnt, count) = (burnt.clone(), count.clone());
                let t = task::spawn(on, move || burn_everywhere(n, &burnt, &count)).unwrap();
                t.work_for(activity.clone());
                task::start(t);
            }
            let (burnt, count, gold) = (burnt.clone(), count.clone(), who[0].clone());
            let turns = [who[1].clone(), who[2].clone()];
            let t = task::spawn(on, move || {
                for _ in 0..20 {
                    burnt.note(0, Resource::Thread, burn(30_000));
                    let gold = task::work_for(turns[0].clone());
                    burnt.note(1, Resource::Thread, burn(60_000));
                    let iron = task::work_for(turns[1].clone());
                    burnt.note(2, Resource::Thread, burn(90_000));
                    task::yield_now();
                    drop(task::work_for(iron));
                    drop(task::work_for(gold));
                }
                done(&count);
            })
            .unwrap();
            t.work_for(gold);
            task::start(t);
        }
        join(&count, 4 * task::cores() as u64);
        // One core after the other is taken away for a while, in the middle of its work.
        for on in 0..task::cores() {
            let (burnt, robbed) = (burnt.clone(), Arc::new((AtomicU64::new(0), WaitQueue::new())));
            let seen = robbed.clone();
            let t = task::spawn(on, move || {
                burnt.note(1, Resource::Thread, burn(500_000));
                atoll_platform_sim::steal(STOLEN);
                burnt.note(1, Resource::Thread, burn(500_000));
                done(&seen);
            });
            let t = t.unwrap();
            t.work_for(who[1].clone());
            task::start(t);
            join(&robbed, 1);
        }
        let after = task::used();
        let of = |used: &[task::Used], activity: u32, resource: Resource| {
            used.iter().find(|u| u.activity == activity).map_or(0, |u| match counting {
                false => u.entries[resource as usize].time,
                true => u.entries[resource as usize].counted,
            })
        };
        let came_back = |activity: u32, resource: Resource| {
            (of(&after, activity, resource) - of(&before, activity, resource)) as f64
        };
        let mut wrong = 0;
        let mut compare = |name: &str, resource: Resource, got: f64, want: f64| {
            if (got - want).abs() > want * 0.01 {
                eprintln!("{name}, {}: {got} ns and not {want}", resource.name());
                wrong += 1;
            }
        };
        let mut all = 0.0;
        for (n, activity) in who.iter().enumerate() {
            for resource in
                Resource::SERVING.into_iter().chain([Resource::Thread, Resource::Timer, Resource::Completion])
            {
                let want = burnt.0[n][resource as usize].load(Ordering::Relaxed) as f64;
                all += want;
                compare(["gold", "iron", "unit"][n], resource, came_back(activity.number(), resource), want);
            }
        }
        // What is counted is the core's, wherever it is.
        let stolen = if counting { 0 } else { STOLEN * task::cores() as u64 };
        compare("cell", Resource::Stolen, came_back(ROOT, Resource::Stolen), stolen as f64);
        let unattributed = came_back(INFRASTRUCTURE, Resource::Completion);
        if unattributed > all * 0.005 {
            eprintln!("{unattributed} ns are nobody's, of {all}");
            wrong += 1;
        }
        platform().end(wrong.min(70));
    })
}

/// Threads of three classes on every core: each class gets its share, and who is alone gets all (OK-10, OK-16).
#[test]
fn classes_share_by_weight() {
    first_seeds(
        8,
        |core| {
            boot(core, || {
                let classes: Vec<task::Activity> = (0..3)
                    .map(|n| {
                        task::Activity::new(kind::NAMED, &task::Activity::root(), 0, &[b'a' + n]).unwrap()
                    })
                    .collect();
                let weights = [50u32, 33, 17];
                let of = |weight| Parameters { weight, ..Parameters::default() };
                let division: Vec<_> = classes.iter().zip(weights).map(|(c, w)| (c, of(w))).collect();
                task::divide(SchedulerKind::Wfq, Parameters::default(), &division);
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let got: Arc<[AtomicU64; 3]> = Arc::default();
                let end = platform().now() + 8_000_000;
                for on in 0..task::cores() {
                    for (n, class) in classes.iter().enumerate() {
                        // The heaviest class has its time in several threads.
                        for _ in 0..if n == 0 { 2 } else { 1 } {
                            let (count, got) = (count.clone(), got.clone());
                            let t = task::spawn(on, move || {
                                while platform().now() < end {
                                    let start = platform().now();
                                    while platform().now() < start + 1_000 {}
                                    got[n].fetch_add(platform().now() - start, Ordering::Relaxed);
                                    task::yield_now();
                                }
                                done(&count);
                            });
                            let t = t.unwrap();
                            t.work_for(class.clone());
                            task::start(t);
                        }
                    }
                }
                join(&count, 4 * task::cores() as u64);
                let total: u64 = got.iter().map(|g| g.load(Ordering::Relaxed)).sum();
                let fair = got.iter().zip(weights).all(|(g, w)| {
                    let percent = g.load(Ordering::Relaxed) as f64 * 100.0 / total as f64;
                    (percent - f64::from(w)).abs() < 2.0
                });
                platform().end(if fair { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// A gate at which classes share a rate by their weights.
fn by_weight(measure: Measure, rate: u64, classes: &[task::Activity], weights: &[u32]) -> task::gate::Rule {
    let of = |weight: &u32| Parameters { weight: *weight, ..Parameters::default() };
    task::gate::Rule {
        scheduler: SchedulerKind::Wfq,
        measure,
        rate,
        batch: 1,
        core: 0,
        cell: Parameters::default(),
        classes: classes.iter().zip(weights).map(|(c, w)| (c.number(), of(w))).collect(),
    }
}

/// What all classes get at the gate of the tests below, messages a second.
const GATE_RATE: u64 = 300_000;

/// What a class had at a gate.
#[derive(Debug)]
struct Had {
    /// Of what all had together.
    percent: f64,
    /// How long what waited did, ns.
    waited: u64,
    /// How much of what waited was paid in one turn.
    batch: f64,
}

/// Two threads of each of three classes, on any cores, send messages to a resource whose gate goes by this scheduler and these
/// parameters: as many as they can, or so many a second that the class asks for. Checks that all together get the rate, no more
/// and no less, for so many ms, and that nobody is left waiting.
fn at_gate(
    scheduler: SchedulerKind,
    batch: u32,
    ms: u64,
    classes: [(Parameters, Option<u64>); 3],
) -> [Had; 3] {
    let root = task::Activity::root();
    let named = |n: u8| task::Activity::new(kind::NAMED, &root, 0, &[b'a' + n]).unwrap();
    let activities = [named(0), named(1), named(2)];
    let rule = task::gate::Rule {
        scheduler,
        batch,
        classes: activities.iter().zip(classes).map(|(a, (p, _))| (a.number(), p)).collect(),
        ..by_weight(Measure::Operations, GATE_RATE, &[], &[])
    };
    task::gate::set(Resource::Pipe, Some(&rule));
    let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
    let got: Arc<[AtomicU64; 3]> = Arc::default();
    let begun = platform().now();
    // What may be used at once after a rest is gone by then.
    let warm = begun + 15_000_000;
    let end = warm + ms * 1_000_000;
    for (n, (activity, (_, asked))) in activities.iter().zip(classes).enumerate() {
        // Each of the two sends half of it, also what it is late with.
        let every = asked.map_or(0, |rate| 2_000_000_000 / rate);
        for on in n..n + 2 {
            let (count, got) = (count.clone(), got.clone());
            let t = task::spawn(on % task::cores(), move || {
                let mut next = begun;
                while platform().now() < end {
                    next += every;
                    if next > platform().now() {
                        task::sleep_until(next);
                    }
                    task::books::begin(n, Resource::Process);
                    task::books::turn_to(Resource::Pipe);
                    task::books::end();
                    if (warm..end).contains(&platform().now()) {
                        got[n].fetch_add(1, Ordering::Relaxed);
                    }
                }
                done(&count);
            });
            let t = t.unwrap();
            t.work_for(activity.clone());
            task::start(t);
        }
    }
    join(&count, 6);
    let total: u64 = got.iter().map(|g| g.load(Ordering::Relaxed)).sum();
    // The window and those that are under way.
    let windows = GATE_RATE / 200 + classes.iter().map(|(p, _)| p.reservation / 100).sum::<u64>();
    let rate = GATE_RATE / 1000 * ms;
    if total > rate + windows + 100 || total * 10 < rate * 9 {
        eprintln!("{scheduler:?}: {got:?} of {rate}");
        platform().end(1);
    }
    // Without the rule nobody waits.
    task::gate::set(Resource::Pipe, None);
    assert!(!task::gate::full(Resource::Pipe));
    let used = task::used();
    [0, 1, 2].map(|n| {
        let of = used.iter().find(|used| used.activity == activities[n].number()).unwrap();
        let of = of.entries[Resource::Pipe as usize];
        Had {
            percent: got[n].load(Ordering::Relaxed) as f64 * 100.0 / total as f64,
            waited: of.queued / of.waits.max(1),
            batch: of.waits as f64 / of.turns.max(1) as f64,
        }
    })
}

/// Ends the run, well if each class got this percentage, but for so much.
fn ends_with(got: [Had; 3], shares: [f64; 3], within: f64) {
    let fair = got.iter().zip(shares).all(|(got, share)| (got.percent - share).abs() < within);
    if !fair {
        eprintln!("{got:?}, not {shares:?}");
    }
    platform().end(i32::from(!fair));
}

fn share(weight: u32) -> Parameters {
    Parameters { weight, ..Parameters::default() }
}

/// Threads of three classes, on any cores, send messages to a resource that has a rate: all together get that, and each class
/// its share, whoever wakes when (OK-02, OK-07, OK-10). What one pays late it pays all the same, and nobody is left waiting.
#[test]
fn gates_share_by_weight() {
    first_seeds(
        8,
        |core| {
            boot(core, || {
                let got = at_gate(SchedulerKind::Wfq, 1, 40, [50, 33, 17].map(|w| (share(w), None)));
                ends_with(got, [50.0, 33.0, 17.0], 3.0);
            })
        },
        Outcome::Ended(0),
    );
}

/// A class with a low limit of events gets on, although those who wait at the gate are woken there, which is an event, too.
#[test]
fn a_low_limit_of_events_lets_some_on() {
    const LIMIT: u64 = 50;
    first_seeds(
        4,
        |core| {
            boot(core, || {
                let activity = task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"low").unwrap();
                let low = Parameters { limit: LIMIT, ..Parameters::default() };
                let rule = task::gate::Rule {
                    classes: vec![(activity.number(), low)],
                    ..by_weight(Measure::Operations, 0, &[], &[])
                };
                task::gate::set(Resource::Completion, Some(&rule));
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let passed = Arc::new(AtomicU64::new(0));
                let end = platform().now() + 1_000_000_000;
                let (of, by) = (count.clone(), passed.clone());
                let t = task::spawn(task::cores() - 1, move || {
                    while platform().now() < end {
                        task::gate::pass(Resource::Completion);
                        task::books::begin(0, Resource::Process);
                        task::books::turn_to(Resource::Completion);
                        task::books::end();
                        by.fetch_add(1, Ordering::Relaxed);
                    }
                    done(&of);
                });
                let t = t.unwrap();
                t.work_for(activity);
                task::start(t);
                join(&count, 1);
                let passed = passed.load(Ordering::Relaxed);
                if !(LIMIT * 8 / 10..=LIMIT + 10).contains(&passed) {
                    eprintln!("{passed} in a second");
                    platform().end(1);
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// The same if more is paid in each turn, as far as somebody has it (OK-11).
#[test]
fn gates_share_by_weight_in_batches() {
    first_seeds(
        3,
        |core| {
            boot(core, || {
                let got = at_gate(SchedulerKind::Wfq, 4, 80, [50, 33, 17].map(|w| (share(w), None)));
                if got.iter().any(|had| had.batch < 3.0 || had.batch > 4.0) {
                    eprintln!("{got:?}");
                    platform().end(1);
                }
                ends_with(got, [50.0, 33.0, 17.0], 3.0);
            })
        },
        Outcome::Ended(0),
    );
}

/// At a gate that goes round all get the same, whatever their weights (OK-10).
#[test]
fn gates_take_turns() {
    first_seeds(
        4,
        |core| {
            boot(core, || {
                let got = at_gate(SchedulerKind::RoundRobin, 1, 40, [50, 33, 17].map(|w| (share(w), None)));
                ends_with(got, [33.3; 3], 3.0);
            })
        },
        Outcome::Ended(0),
    );
}

/// At a gate that goes by priority the highest class gets all that it asks for, the next one the rest, and who is below somebody
/// that never has enough, nothing (OK-10).
#[test]
fn gates_go_by_priority() {
    first_seeds(
        4,
        |core| {
            boot(core, || {
                let of = |priority, weight| Parameters { priority, ..share(weight) };
                let classes = [(of(3, 1), Some(GATE_RATE / 4)), (of(-3, 100), None), (of(1, 10), None)];
                let got = at_gate(SchedulerKind::Priority, 1, 40, classes);
                ends_with(got, [25.0, 0.0, 75.0], 2.0);
            })
        },
        Outcome::Ended(0),
    );
}

/// At a gate that goes by deadlines who is due soon waits next to nothing for who has enough to do and is due later, and
/// what is never due waits for both (OK-10).
#[test]
fn gates_go_by_deadline() {
    first_seeds(
        4,
        |core| {
            boot(core, || {
                let of = |deadline, asked| (Parameters { deadline, ..share(100) }, asked);
                let classes = [of(20_000_000, None), of(0, None), of(1_000_000, Some(GATE_RATE / 4))];
                let got = at_gate(SchedulerKind::Deadline, 1, 40, classes);
                if got[2].waited > 500_000 || got[0].waited < 10 * got[2].waited {
                    eprintln!("{got:?}");
                    platform().end(1);
                }
                ends_with(got, [75.0, 0.0, 25.0], 2.0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Who has a reservation at a gate gets that, though its weight is next to nothing, and others what is left (OK-10).
#[test]
fn gates_hold_reservations() {
    first_seeds(
        3,
        |core| {
            boot(core, || {
                let reserved = Parameters { reservation: GATE_RATE * 3 / 10, ..share(1) };
                let classes = [(share(1000), None), (share(500), None), (reserved, None)];
                // Its threads send what is half of its window at a time.
                ends_with(at_gate(SchedulerKind::Wfq, 1, 240, classes), [46.7, 23.3, 30.0], 2.0);
            })
        },
        Outcome::Ended(0),
    );
}

/// What a class with a limit may not have at a gate with a rate is the others' (OK-10).
#[test]
fn gates_give_what_limits_leave() {
    first_seeds(
        4,
        |core| {
            boot(core, || {
                let limited = Parameters { limit: GATE_RATE / 5, ..share(1000) };
                let classes = [(limited, None), (share(30), None), (share(10), None)];
                ends_with(at_gate(SchedulerKind::Wfq, 1, 40, classes), [20.0, 60.0, 20.0], 2.0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Two classes send messages in which a resource is asked for something, and it another one within that, and long ones to another resource
/// in between: what the gate is paid is what the resource is charged with, no more and no less, whoever waits and whether all messages
/// are timed or one in so many (OK-07). So the resource has its rate, and each class its share of that.
fn what_is_charged_is_paid<const SAMPLE: u32>() {
    first_seeds(
        3,
        |core| {
            boot(core, || {
                // Of each core, ns a second.
                const RATE: u64 = 100_000_000;
                let weights = [75u32, 25];
                let root = task::Activity::root();
                let classes =
                    [b"a", b"b"].map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap());
                let rule = by_weight(Measure::Time, RATE, &classes, &weights);
                task::gate::set(Resource::FileCache, Some(&rule));
                task::books::set_sample(SAMPLE);
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let begun = platform().now();
                let end = begun + 100_000_000;
                for (n, class) in classes.iter().enumerate() {
                    for core in 0..task::cores() {
                        let count = count.clone();
                        let t = task::spawn(core, move || {
                            for round in 0.. {
                                if platform().now() >= end {
                                    break;
                                }
                                task::books::begin(n, Resource::Process);
                                task::books::turn_to(Resource::FileCache);
                                burn(2_000);
                                task::books::within(Resource::DeviceRead, || {
                                    burn(1_000);
                                    task::books::within(Resource::Memory, || burn(4_000));
                                });
                                if round % 2 == 0 {
                                    // Others' messages come in between.
                                    task::yield_now();
                                }
                                burn(2_000);
                                task::books::end();
                                if round % 8 == 0 {
                                    task::books::begin(n + 2, Resource::Process);
                                    burn(60_000);
                                    task::books::end();
                                }
                            }
                            done(&count);
                        });
                        let t = t.unwrap();
                        t.work_for(class.clone());
                        task::start(t);
                    }
                }
                join(&count, 2 * task::cores() as u64);
                let used = task::used();
                let had = classes.each_ref().map(|class| {
                    let of = used.iter().find(|used| used.activity == class.number()).unwrap();
                    of.entries[Resource::FileCache as usize].time as u64
                });
                let total: u64 = had.iter().sum();
                let took = platform().now() - begun;
                let most =
                    (u128::from(RATE) * u128::from(took) / 1_000_000_000) as u64 * task::cores() as u64;
                let percent = had[0] as f64 * 100.0 / total as f64;
                // What may be used at once in the beginning, and what was under way in the end.
                if total > most * 6 / 5 || total * 10 < most * 8 || (percent - 75.0).abs() > 5.0 {
                    eprintln!("{had:?} of {most}: {percent:.1} %");
                    platform().end(1);
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

#[test]
fn what_is_charged_is_paid_all_timed() {
    what_is_charged_is_paid::<1>();
}

#[test]
fn what_is_charged_is_paid_sampled() {
    what_is_charged_is_paid::<16>();
}

/// The host takes the processor away in the middle of one class's messages, for longer than that class's share of the resource: it
/// pays at the gate for what it had, and the shares are as they are to be (OK-07, OK-10).
fn what_was_not_had_is_not_paid<const WHERE: u32>() {
    first_seeds(
        3,
        |core| {
            boot(core, || {
                const RATE: u64 = 100_000_000;
                const AWAY: u64 = 3_000_000;
                let root = task::Activity::root();
                let classes =
                    [b"a", b"b"].map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap());
                let rule = by_weight(Measure::Time, RATE, &classes, &[50, 50]);
                task::gate::set(Resource::FileCache, Some(&rule));
                let rule = by_weight(Measure::Time, 10 * RATE, &classes, &[50, 50]);
                task::gate::set(Resource::Memory, Some(&rule));
                task::books::set_sample(1);
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let end = platform().now() + 400_000_000;
                for (n, class) in classes.iter().enumerate() {
                    let count = count.clone();
                    let t = task::spawn(0, move || {
                        let mut away = platform().now();
                        while platform().now() < end {
                            task::gate::pass(Resource::FileCache);
                            task::books::begin(n, Resource::FileCache);
                            burn(10_000);
                            if n == 0 && platform().now() >= away {
                                atoll_platform_sim::steal(AWAY);
                                away = platform().now() + 8 * AWAY;
                                match WHERE {
                                    WAITS => sleep_whole(platform().now() + 50_000),
                                    ASKS => task::books::within(Resource::Memory, || _ = burn(150_000)),
                                    _ => {}
                                }
                            }
                            task::books::end();
                            burn(10_000);
                            task::yield_now();
                        }
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.work_for(class.clone());
                    task::start(t);
                }
                join(&count, 2);
                let used = task::used();
                let had = classes.each_ref().map(|class| {
                    let of = used.iter().find(|used| used.activity == class.number()).unwrap();
                    of.entries[Resource::FileCache as usize].time as f64
                });
                let percent = had[0] * 100.0 / (had[0] + had[1]);
                if (percent - 50.0).abs() > 5.0 {
                    eprintln!("{had:?}: {percent:.1} %");
                    platform().end(1);
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// What the message does after that: nothing, wait, or ask another resource that has a gate, too.
const ENDS: u32 = 0;
const WAITS: u32 = 1;
const ASKS: u32 = 2;

#[test]
fn what_was_not_had_at_the_end_is_not_paid() {
    what_was_not_had_is_not_paid::<ENDS>();
}

#[test]
fn what_was_not_had_before_a_wait_is_not_paid() {
    what_was_not_had_is_not_paid::<WAITS>();
}

#[test]
fn what_was_not_had_before_a_question_is_not_paid() {
    what_was_not_had_is_not_paid::<ASKS>();
}

/// Numbers from a seed.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Messages of one dependency label, sent to any core by threads that move about: each thread's run in the order they were sent
/// in, and no two at once (OK-06).
#[test]
fn labels_keep_order() {
    const LABELS: u64 = 3;
    const SENDERS: u64 = 4;
    const EACH: u64 = 30;
    seeds_and_many_cores(
        20,
        4,
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                // Of each label: messages that run, the most that ever did, and the last of each sender's.
                let state: Arc<[[AtomicU64; 2 + SENDERS as usize]; LABELS as usize]> = Arc::default();
                let wrong = Arc::new(AtomicU64::new(0));
                let class = task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"one").unwrap();
                for sender in 0..SENDERS {
                    let (count, state, wrong) = (count.clone(), state.clone(), wrong.clone());
                    let t = task::spawn(0, move || {
                        let mut random = 0x9E37_79B9 + sender * 77 + platform().now();
                        let mut sent = [0; LABELS as usize];
                        for _ in 0..EACH {
                            let n = (next_random(&mut random) % LABELS) as usize;
                            sent[n] += 1;
                            let (count, state, wrong, k) =
                                (count.clone(), state.clone(), wrong.clone(), sent[n]);
                            let labels = task::Labels { dependency: n as u64 + 1, affinity: 0 };
                            let to = next_random(&mut random) as usize % task::cores();
                            task::send(to, labels, Resource::Completion, move || {
                                let of = &state[n];
                                let running = of[0].fetch_add(1, Ordering::Relaxed);
                                burn(3_000);
                                let before = of[2 + sender as usize].swap(k, Ordering::Relaxed);
                                if running != 0 || before + 1 != k {
                                    wrong.fetch_add(1, Ordering::Relaxed);
                                }
                                of[0].fetch_sub(1, Ordering::Relaxed);
                                done(&count);
                            });
                            match next_random(&mut random) % 4 {
                                0 => task::yield_now(),
                                1 => task::sleep_until(platform().now() + 20_000),
                                _ => _ = burn(2_000),
                            }
                        }
                    });
                    let t = t.unwrap();
                    t.work_for(class.clone());
                    t.allow_moving();
                    task::start(t);
                }
                join(&count, SENDERS * EACH);
                platform().end(if wrong.load(Ordering::SeqCst) == 0 { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// A message goes to the core where the last one of its affinity label ran, until that is long ago: then load moves (OK-06).
#[test]
fn labels_let_load_move() {
    some_seeds(
        20,
        &[2, 4],
        |core| {
            boot(core, || {
                let (count, at) =
                    (Arc::new((AtomicU64::new(0), WaitQueue::new())), Arc::new(AtomicU64::new(0)));
                let mut sent = 0;
                let mut runs_on = |to: usize, labels: task::Labels| {
                    let (count, at) = (count.clone(), at.clone());
                    let (ran, seen) = (count.clone(), at.clone());
                    task::send(to, labels, Resource::Completion, move || {
                        seen.store(atoll_abi::core_local::core_local().id() as u64, Ordering::SeqCst);
                        done(&ran);
                    });
                    sent += 1;
                    join(&count, sent);
                    at.load(Ordering::SeqCst)
                };
                let label = task::Labels { dependency: 0, affinity: 0xA7011 };
                let mut right = runs_on(1, label) == 1;
                for _ in 0..3 {
                    right &= runs_on(0, label) == 1;
                    right &= runs_on(0, task::Labels::NONE) == 0;
                }
                task::sleep_until(platform().now() + 12_000_000);
                right &= runs_on(0, label) == 0;
                right &= runs_on(1, label) == 0;
                platform().end(if right { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// A timer that runs out again and again does so where the thread is that asks for it: when that has moved, so does the timer.
#[test]
fn timers_follow_who_waits() {
    some_seeds(
        10,
        &[2, 4],
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let at: Arc<[AtomicU64; 4]> = Arc::default();
                let (ran, last) = (at.clone(), Arc::new(AtomicU64::new(9)));
                let seen = last.clone();
                let timer = task::Timer::new(move |times| {
                    let here = atoll_abi::core_local::core_local().id();
                    ran[here].fetch_add(times, Ordering::SeqCst);
                    seen.store(here as u64, Ordering::SeqCst);
                    task::Hold::NOT
                });
                timer.start(platform().now() + 500_000, 500_000);
                task::sleep_until(platform().now() + 2_200_000);
                let here = at[0].load(Ordering::SeqCst) >= 2 && last.load(Ordering::SeqCst) == 0;
                let (asks, asked) = (timer.clone(), count.clone());
                let t = task::spawn(1, move || {
                    asks.catch_up();
                    done(&asked);
                });
                task::start(t.unwrap());
                join(&count, 1);
                task::sleep_until(platform().now() + 3_000_000);
                let moved = last.load(Ordering::SeqCst) == 1 && at[1].load(Ordering::SeqCst) >= 2;
                timer.stop();
                let all = || at.iter().map(|n| n.load(Ordering::SeqCst)).sum::<u64>();
                let stopped = all();
                task::sleep_until(platform().now() + 2_000_000);
                platform().end(if here && moved && all() == stopped { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// A thread sleeps again and again, and does something in between. Value: where it was woken each time.
fn sleeps_and_works(times: usize, core: usize) -> Arc<Mutex<Vec<usize>>> {
    sleeps_and_works_for(times, core, 20_000, 5_000)
}

/// The same, of so long, ns.
fn sleeps_and_works_for(times: usize, core: usize, sleeps: u64, works: u64) -> Arc<Mutex<Vec<usize>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    let t = task::spawn(core, move || {
        for _ in 0..times {
            task::park_until(platform().now() + sleeps);
            burn(works);
            all.lock().push(core_local().id());
        }
    });
    let t = t.unwrap();
    t.allow_moving();
    task::start(t);
    seen
}

/// XOS-09: threads of a core whose processor others use go to cores that have room, and stay there; where none has, they stay.
#[test]
fn threads_go_where_no_others_are() {
    some_seeds(
        20,
        &[2, 4, 9],
        |core| {
            boot(core, || {
                let areas = &platform().control().cores;
                let cores = task::cores();
                let say = |n: usize, others: u32, used: u32| {
                    areas[n].others.store(others, Ordering::Relaxed);
                    areas[n].used.store(used, Ordering::Relaxed);
                };
                let mut right = true;
                // The last one has room.
                say(0, 800, 300);
                (1..cores - 1).for_each(|n| say(n, 0, 950));
                let all: Vec<_> = (0..3).map(|_| sleeps_and_works(100, 0)).collect();
                sleep_whole(platform().now() + 20_000_000);
                for seen in all {
                    let seen = seen.lock();
                    right &= seen.len() == 100 && seen[10..].iter().all(|at| *at != 0);
                }
                // All are full, or as crowded.
                for (here, others, used) in [(300, 0, 900), (0, 0, 950), (300, 600, 0)] {
                    say(0, 800, here);
                    (1..cores).for_each(|n| say(n, others, used));
                    let seen = sleeps_and_works(50, 0);
                    sleep_whole(platform().now() + 10_000_000);
                    let seen = seen.lock();
                    right &= seen.len() == 50 && seen.iter().all(|at| *at == 0);
                }
                platform().end(if right { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// XOS-09: who has had more of a processor lately than others have left of theirs stays where others want the processor, too: it would wait
/// there, and come back. Who has had less goes.
#[test]
fn who_finds_no_room_stays() {
    some_seeds(
        10,
        &[2, 4],
        |core| {
            boot(core, || {
                let areas = &platform().control().cores;
                let cores = task::cores();
                let much = sleeps_and_works_for(600, 0, 100_000, 500_000);
                sleep_whole(platform().now() + 200_000_000);
                let little = sleeps_and_works_for(100, 0, 900_000, 20_000);
                let before = much.lock().len();
                for (n, area) in areas.iter().enumerate().take(cores) {
                    area.others.store(if n == 0 { 800 } else { 0 }, Ordering::Relaxed);
                    area.used.store(if n == 0 { 0 } else { 600 }, Ordering::Relaxed);
                }
                sleep_whole(platform().now() + 150_000_000);
                let (much, little) = (much.lock(), little.lock());
                let stays =
                    before > 100 && much.len() > before + 100 && much[before..].iter().all(|at| *at == 0);
                let goes = little.len() == 100 && little[10..].iter().all(|at| *at != 0);
                platform().end(i32::from(!stays) + 2 * i32::from(!goes));
            })
        },
        Outcome::Ended(0),
    );
}

/// OK-05: a thread's processor time has nothing of what the machine was elsewhere meanwhile, as soon as that is known.
#[test]
fn what_is_stolen_is_no_processor_time() {
    const AWAY: u64 = 2_000_000;
    some_seeds(
        20,
        &[1, 2, 4],
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let wrong = Arc::new(AtomicU64::new(0));
                let (finished, bad) = (count.clone(), wrong.clone());
                let t = task::spawn(task::cores() - 1, move || {
                    // From its first look on the core knows what it has.
                    let mut burnt = burn(1_000_000);
                    task::own_cpu_time();
                    for n in 0..50 {
                        burnt += burn(700_000);
                        if n % 3 == 0 {
                            atoll_platform_sim::steal(AWAY);
                        }
                        match n % 4 {
                            0 => _ = task::own_cpu_time(),
                            1 => task::yield_now(),
                            2 => task::park_until(platform().now() + 100_000),
                            _ => {}
                        }
                        // The last time may not be known yet.
                        let told = task::current().cpu_time();
                        if told < burnt * 99 / 100 || told > burnt * 102 / 100 + AWAY {
                            eprintln!("{n}: {told} ns, and not {burnt}");
                            bad.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    burnt += burn(1_000_000 + AWAY);
                    let told = task::own_cpu_time();
                    if told.abs_diff(burnt) > burnt / 50 {
                        eprintln!("in the end: {told} ns, and not {burnt}");
                        bad.fetch_add(1, Ordering::Relaxed);
                    }
                    done(&finished);
                });
                let t = t.unwrap();
                let root = task::Activity::root();
                t.work_for(task::Activity::new(kind::NAMED, &root, 0, b"robbed").unwrap());
                task::start(t);
                join(&count, 1);
                platform().end(i32::from(wrong.load(Ordering::Relaxed) != 0));
            })
        },
        Outcome::Ended(0),
    );
}

/// OK-05: what the machine takes in many small pieces, each from a message (one that wakes somebody whom its processor is given), is found
/// and taken from what the core was at meanwhile, not only from the thread's own time, as long as that lasts.
#[test]
fn what_is_stolen_in_pieces_is_taken_from_what_was_done() {
    const PIECES: i64 = 400;
    const FIRST: i64 = 1_000_000;
    const OWN: i64 = 30_000;
    const WRITING: i64 = 10_000;
    const AWAY: i64 = 40_000;
    some_seeds(
        10,
        &[1],
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let finished = count.clone();
                let who = task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"robbed").unwrap();
                let t = task::spawn(0, move || {
                    // From its first look on the core knows what it has.
                    burn(FIRST as u64);
                    task::own_cpu_time();
                    for n in 0..PIECES {
                        burn(OWN as u64);
                        task::books::begin(0, Resource::DeviceWrite);
                        burn(WRITING as u64);
                        atoll_platform_sim::steal(AWAY as u64);
                        task::books::end();
                        if n % 25 == 24 {
                            task::park_until(platform().now() + 20_000);
                        }
                    }
                    done(&finished);
                });
                let t = t.unwrap();
                t.work_for(who.clone());
                task::start(t);
                join(&count, 1);
                let used = task::used();
                let of = |activity: u32, resource: Resource| {
                    let used = used.iter().find(|u| u.activity == activity);
                    used.map_or(0, |u| u.entries[resource as usize].time)
                };
                let stolen = of(ROOT, Resource::Stolen);
                let (own, writing) =
                    (of(who.number(), Resource::Thread), of(who.number(), Resource::DeviceWrite));
                let near = |n: i64, want: i64| (n - want).abs() <= want / 20;
                // The message seems to have taken five of eight parts, so as many are taken from it.
                let seemed = WRITING + AWAY;
                let rightly = seemed - AWAY * seemed / (seemed + OWN);
                let right = near(stolen, AWAY * PIECES)
                    && near(own + writing, FIRST + (OWN + WRITING) * PIECES)
                    && near(writing, rightly * PIECES);
                if !right {
                    eprintln!("{stolen} ns stolen, the thread had {own}, its messages {writing}");
                }
                platform().end(i32::from(!right));
            })
        },
        Outcome::Ended(0),
    );
}

/// OK-05: what a core with nothing to do finds out of the time that it really had is taken from the activity that it worked for last
/// only as long as there is that one.
#[test]
fn what_is_stolen_is_not_taken_from_who_has_ended() {
    const ROUNDS: usize = 20;
    some_seeds(
        20,
        &[2, 4],
        |core| {
            boot(core, || {
                task::set_tidy(|| atoll_platform_sim::steal(2_000_000));
                let (last, root) = (task::cores() - 1, task::Activity::root());
                let one = task::set_of_cores([last]);
                for _ in 0..ROUNDS {
                    let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                    let finished = count.clone();
                    let t = task::spawn(last, move || {
                        burn(700_000);
                        // It ends elsewhere.
                        task::current().set_affinity(task::set_of_cores([0]));
                        task::park_until(platform().now() + 50_000);
                        done(&finished);
                    });
                    let t = t.unwrap();
                    t.allow_moving();
                    t.work_for(task::Activity::new(kind::NAMED, &root, 0, b"short").unwrap());
                    task::start(t);
                    join(&count, 1);
                    // Meanwhile all cores pass where its books may be given back.
                    for _ in 0..5 {
                        sleep_whole(platform().now() + 300_000);
                        task::ask_to_tidy(&one);
                    }
                }
                let (pieces, damaged) = kept();
                platform().end(if pieces < ROUNDS - 1 { 2 } else { i32::from(damaged) });
            })
        },
        Outcome::Ended(0),
    );
}

/// OV-05: threads that never sleep, as there is something for them whenever they look, take turns by those looks, not by whole turns.
#[test]
fn who_looks_lets_others_go() {
    some_seeds(
        10,
        &[1],
        |core| {
            boot(core, || {
                platform().control().cores[0].watched.store(1, Ordering::Relaxed);
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let (longest, begun) = (Arc::new(AtomicU64::new(0)), platform().now());
                for _ in 0..3 {
                    let (count, longest) = (count.clone(), longest.clone());
                    let t = task::spawn(0, move || {
                        let mut last = begun;
                        for _ in 0..400 {
                            burn(30_000);
                            task::look();
                            task::give_way();
                            let now = platform().now();
                            longest.fetch_max(now - last, Ordering::SeqCst);
                            last = now;
                        }
                        done(&count);
                    });
                    task::start(t.unwrap());
                }
                join(&count, 3);
                // The turns of two others, each of which may have several before who has had more.
                let longest = longest.load(Ordering::SeqCst);
                platform().end(if longest < 1_500_000 { 0 } else { (longest / 1000) as i32 });
            })
        },
        Outcome::Ended(0),
    );
}

/// OR-03: what a thread holds goes with it when it moves to another core: timers that it has set run out there, also the first time,
/// and can be stopped from where they were set. What one that has ended held runs out where it ended.
#[test]
fn what_a_thread_holds_goes_with_it() {
    /// Where one of two timers ran out last, and how often.
    type Ran = [(AtomicU64, AtomicU64); 3];
    some_seeds(
        10,
        &[2, 4],
        |core| {
            boot(core, || {
                let ran: Arc<Ran> = Arc::default();
                let over = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let timer = |n: usize| {
                    let ran = ran.clone();
                    task::Timer::new(move |times| {
                        ran[n].0.store(atoll_abi::core_local::core_local().id() as u64, Ordering::SeqCst);
                        ran[n].1.fetch_add(times, Ordering::SeqCst);
                        task::Hold::NOT
                    })
                };
                let [once, again, stopped] = [timer(0), timer(1), timer(2)];
                let timers = (once.clone(), again.clone(), stopped.clone());
                let (ended, here) = (over.clone(), Arc::new(AtomicU64::new(0)));
                let was_right = here.clone();
                let t = task::spawn(0, move || {
                    let (once, again, stopped) = timers;
                    let begun = platform().now();
                    once.start(begun + 1_000_000, 0);
                    again.start(begun + 1_200_000, 300_000);
                    stopped.start(begun + 5_000_000, 0);
                    let me = task::current();
                    let held = me.timers();
                    me.set_affinity(task::set_of_cores([1]));
                    task::move_if_need_be();
                    let moved = me.core() == 1 && me.timers() == held;
                    task::sleep_until(begun + 3_100_000);
                    // The one that ran out once is nobody's any more.
                    was_right.store(u64::from(moved && held == 3 && me.timers() == 2), Ordering::SeqCst);
                    done(&ended);
                });
                let t = t.unwrap();
                t.allow_moving();
                task::start(t);
                join(&over, 1);
                // By one on another core than where they are.
                stopped.stop();
                let at = |n: usize| ran[n].0.load(Ordering::SeqCst);
                let times = |n: usize| ran[n].1.load(Ordering::SeqCst);
                let there = (at(0), times(0), at(1)) == (1, 1, 1) && times(1) >= 4;
                let before = times(1);
                task::sleep_until(platform().now() + 4_000_000);
                let goes_on = times(1) > before && at(1) == 1;
                again.stop();
                let last = times(1);
                task::sleep_until(platform().now() + 2_000_000);
                let right = here.load(Ordering::SeqCst) == 1 && there && goes_on;
                let still = times(1) == last && times(2) == 0;
                platform().end(if right && still { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// What is to be done when a class may go on at a gate is that class's work, whoever's payment opens it (OK-02, OK-06).
#[test]
fn what_opens_is_the_class_s() {
    const BURN: u64 = 400_000;
    some_seeds(
        10,
        &[1, 2],
        |core| {
            boot(core, || {
                let gold = task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"gold").unwrap();
                let p = |limit| Parameters { limit, ..Parameters::default() };
                let rule = task::gate::Rule {
                    scheduler: SchedulerKind::Wfq,
                    measure: Measure::Operations,
                    rate: 0,
                    batch: 1,
                    core: 0,
                    cell: p(0),
                    classes: vec![(gold.number(), p(1000))],
                };
                task::gate::set(Resource::Pipe, Some(&rule));
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let opened = count.clone();
                let t = task::spawn(0, move || {
                    while !task::gate::full(Resource::Pipe) {
                        task::books::begin(0, Resource::Pipe);
                        task::books::end();
                    }
                    let asked = AtomicU64::new(0);
                    let then = move || {
                        burn(BURN);
                        done(&opened);
                    };
                    assert!(task::gate::when_open(Resource::Pipe, &asked, then));
                });
                let t = t.unwrap();
                t.work_for(gold.clone());
                task::start(t);
                join(&count, 1);
                task::sleep_until(platform().now() + 2_000_000);
                let used = task::used();
                let of = used.iter().find(|used| used.activity == gold.number()).unwrap();
                let time = of.entries[Resource::Pipe as usize].time;
                platform().end(if time >= BURN as i64 { 0 } else { 1 });
            })
        },
        Outcome::Ended(0),
    );
}

/// Sends one message after another to this core, for the running thread's activity, and counts those that run within a time.
fn send_again(on: usize, within: Range<u64>, ran: Arc<AtomicU64>) {
    task::send(on, task::Labels::NONE, Resource::Completion, move || {
        burn(4_000);
        let now = platform().now();
        ran.fetch_add(u64::from(within.contains(&now)), Ordering::Relaxed);
        if now < within.end {
            send_again(on, within, ran);
        }
    });
}

/// Classes whose messages wait for a core's event thread share it by weight, or as the configuration's scheduler says (OK-10, OK-16).
#[test]
fn queued_messages_are_ordered_by_the_scheduler() {
    first_seeds(
        6,
        |core| {
            boot(core, || {
                let root = task::Activity::root();
                let named = |n: u8| task::Activity::new(kind::NAMED, &root, 0, &[b'a' + n]).unwrap();
                let classes = [named(0), named(1), named(2)];
                for (scheduler, shares) in [
                    (SchedulerKind::Wfq, [50, 33, 17]),
                    (SchedulerKind::RoundRobin, [33, 33, 33]),
                    (SchedulerKind::Priority, [0, 0, 100]),
                ] {
                    let of = |n: usize| {
                        let (weight, priority) = ([50, 33, 17][n], n as i32);
                        Parameters { weight, priority, ..Parameters::default() }
                    };
                    let division: Vec<_> = classes.iter().enumerate().map(|(n, c)| (c, of(n))).collect();
                    task::divide(scheduler, Parameters::default(), &division);
                    // Each core looks at that when it switches.
                    task::sleep_until(platform().now() + 500_000);
                    let ran: [Arc<AtomicU64>; 3] = Default::default();
                    let (begun, on) = (platform().now(), task::cores() - 1);
                    // When all of them are at it.
                    let within = begun + 500_000..begun + 3_000_000;
                    // Three of each wait all the time. Threads do not come in between.
                    let (all, within_too): (Vec<_>, _) =
                        (classes.iter().cloned().zip(ran.clone()).collect(), within.clone());
                    let t = task::spawn(on, move || {
                        for (class, ran) in all {
                            task::work_for(class);
                            (0..3).for_each(|_| send_again(on, within_too.clone(), ran.clone()));
                        }
                    });
                    task::start(t.unwrap());
                    task::sleep_until(within.end + 500_000);
                    let ran = ran.map(|ran| ran.load(Ordering::Relaxed));
                    let total: u64 = ran.iter().sum();
                    let fair = ran.iter().zip(shares).all(|(ran, share)| {
                        (*ran as f64 * 100.0 / total as f64 - f64::from(share)).abs() < 3.0
                    });
                    if !fair || total < 100 {
                        eprintln!("{scheduler:?}: {ran:?}");
                        platform().end(1);
                    }
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// What a core's event thread does for a class counts as the class's time where the core is divided: who has it do much has less for its
/// threads, and not more than its share (OK-16).
#[test]
fn work_of_event_threads_is_the_class_s() {
    some_seeds(
        6,
        &[1, 2],
        |core| {
            boot(core, || {
                let root = task::Activity::root();
                let classes =
                    [b"one", b"two"].map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap());
                let division: Vec<_> = classes.iter().map(|class| (class, Parameters::default())).collect();
                task::divide(SchedulerKind::Wfq, Parameters::default(), &division);
                // With more cores, shares are those of all of them together, by what was at work where lately.
                let time = 20_000_000 * task::cores() as u64;
                let end = platform().now() + 4_000_000 + time;
                for on in 0..task::cores() {
                    for class in &classes {
                        let t = task::spawn(on, move || {
                            while platform().now() < end {
                                burn(20_000);
                                task::yield_now();
                            }
                        });
                        let t = t.unwrap();
                        t.work_for(class.clone());
                        task::start(t);
                    }
                    // Messages take a quarter of the core.
                    let t = task::spawn(on, move || {
                        while platform().now() < end {
                            task::sleep_until(platform().now() + 12_000);
                            let on = core_local().id();
                            task::send(on, task::Labels::NONE, Resource::Timer, || _ = burn(8_000));
                        }
                    });
                    let t = t.unwrap();
                    t.work_for(classes[1].clone());
                    task::start(t);
                }
                let had = || {
                    let used = task::used();
                    classes.each_ref().map(|class| {
                        let of = used.iter().find(|u| u.activity == class.number()).unwrap();
                        [Resource::Thread, Resource::Timer, Resource::Completion]
                            .map(|resource| of.entries[resource as usize].time)
                    })
                };
                task::sleep_until(end - time);
                let before = had();
                task::sleep_until(end);
                let after = had();
                let of = |class: usize, n: usize| (after[class][n] - before[class][n]) as f64;
                let [one, two] = [0, 1].map(|class| (0..3).map(|n| of(class, n)).sum::<f64>());
                let share = one * 100.0 / (one + two);
                let worked = of(1, 1) * 100.0 / (one + two);
                if (share - 50.0).abs() > 2.0 || worked < 10.0 {
                    eprintln!("{share} % of both; messages took {worked} %: {before:?} {after:?}");
                    platform().end(1);
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Sends a message to this core that takes a while and does so again, until `end`.
fn chain(end: u64) {
    let on = core_local().id();
    task::send(on, task::Labels::NONE, Resource::Timer, move || {
        burn(8_000);
        if platform().now() < end {
            chain(end);
        }
    });
}

/// A class that floods cores with messages, and one that works there.
struct Flood {
    scheduler: SchedulerKind,
    /// What the two are to have.
    flood: Parameters,
    works: Parameters,
    /// Messages of the flood that wait on each core, and has it a thread there, too?
    messages: usize,
    threads: bool,
    /// A turn of whoever works, ns.
    turn: u64,
    /// What the flood has of what both have, at least and at most, %.
    share: [f64; 2],
    /// What it has at least when nobody else has anything to do, % of the time.
    alone: i64,
    /// How long a message of a class that seldom has one waits, at most, ns.
    late: u64,
}

/// A class whose messages would take all of a core has its share, whichever scheduler divides the core, and what others leave; their threads
/// have theirs, and so have its own. A class that seldom has a message need not wait long (OK-02, OK-08).
#[test]
fn classes_of_messages_have_their_share() {
    some_seeds(
        2,
        &[1, 2],
        |core| {
            boot(core, || {
                const TIME: u64 = 48_000_000;
                let root = task::Activity::root();
                let [flood, works, seldom] = [b"flood", b"works", b"seldo"]
                    .map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap());
                let of = |weight, priority| Parameters {
                    weight,
                    priority,
                    deadline: 10_000_000,
                    ..Parameters::default()
                };
                let first = Flood {
                    scheduler: SchedulerKind::Wfq,
                    flood: of(1, 0),
                    works: of(3, 0),
                    messages: 1,
                    threads: false,
                    turn: 20_000,
                    share: [22.5, 27.5],
                    alone: 88,
                    // Beyond another's tag a turn goes on for 1 ms.
                    late: 1_200_000,
                };
                let (reserved, limit) = (300_000_000, 200_000_000);
                let turns = Flood {
                    scheduler: SchedulerKind::RoundRobin,
                    flood: of(1, 0),
                    turn: 3_000_000,
                    share: [40.0, 60.0],
                    late: 10_000_000,
                    ..first
                };
                let cases = [
                    Flood { flood: of(3, 0), works: of(1, 0), share: [72.5, 77.5], ..first },
                    Flood { messages: 300, threads: true, ..first },
                    Flood { flood: of(3, 0), works: of(1, 0), threads: true, share: [72.5, 77.5], ..first },
                    Flood {
                        flood: Parameters { reservation: reserved, ..of(1, 0) },
                        works: of(9, 0),
                        share: [27.0, 34.0],
                        ..first
                    },
                    Flood {
                        flood: Parameters { limit, ..of(9, 0) },
                        works: of(1, 0),
                        share: [18.0, 23.0],
                        alone: 18,
                        ..first
                    },
                    Flood { works: of(1, 1), share: [0.0, 1.0], scheduler: SchedulerKind::Priority, ..first },
                    Flood {
                        flood: of(1, 1),
                        share: [99.0, 100.0],
                        scheduler: SchedulerKind::Priority,
                        ..first
                    },
                    // Who has an earlier deadline ends turns of messages, and not those of who works here.
                    Flood {
                        scheduler: SchedulerKind::Deadline,
                        threads: true,
                        messages: 20,
                        turn: 1_000_000,
                        share: [15.0, 60.0],
                        ..turns
                    },
                    // Its thread's turns are short, and every second one of its.
                    Flood { threads: true, share: [20.0, 60.0], ..turns },
                    turns,
                    first,
                ];
                for case in cases {
                    let of_seldom = Parameters { deadline: 1_000_000, ..of(100, 2) };
                    let division = [(&flood, case.flood), (&works, case.works), (&seldom, of_seldom)];
                    let divide = || task::divide(case.scheduler, of(100, 3), &division);
                    divide();
                    let begun = platform().now();
                    let (both, end) = (begun + TIME, begun + 2 * TIME);
                    let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                    let [late, sent, ran, had_turns]: [Arc<AtomicU64>; 4] = Default::default();
                    let spin = |turn: u64, turns: Arc<AtomicU64>| {
                        let count = count.clone();
                        Box::new(move || {
                            while platform().now() < both {
                                burn(turn);
                                turns.fetch_add(1, Ordering::Relaxed);
                                task::yield_now();
                            }
                            done(&count);
                        })
                    };
                    for on in 0..task::cores() {
                        let flooded = count.clone();
                        let messages = case.messages;
                        let mut starts: Vec<(_, Box<dyn FnOnce() + Send>)> = vec![
                            (
                                &flood,
                                Box::new(move || {
                                    (0..messages).for_each(|_| chain(end));
                                    done(&flooded);
                                }),
                            ),
                            (&works, spin(case.turn, Arc::default())),
                            (&seldom, {
                                let (count, late) = (count.clone(), late.clone());
                                let (sent, ran) = (sent.clone(), ran.clone());
                                Box::new(move || {
                                    while platform().now() < both {
                                        task::sleep_until(platform().now() + 1_000_000);
                                        sent.fetch_add(1, Ordering::Relaxed);
                                        let (at, late, ran) = (platform().now(), late.clone(), ran.clone());
                                        let on = core_local().id();
                                        task::send(on, task::Labels::NONE, Resource::Timer, move || {
                                            late.fetch_max(platform().now() - at, Ordering::Relaxed);
                                            ran.fetch_add(1, Ordering::Relaxed);
                                        });
                                    }
                                    done(&count);
                                })
                            }),
                        ];
                        if case.threads {
                            starts.push((&flood, spin(20_000, had_turns.clone())));
                        }
                        for (whose, f) in starts {
                            let t = task::spawn(on, f).unwrap();
                            t.work_for(whose.clone());
                            task::start(t);
                        }
                    }
                    let had = || {
                        let used = task::used();
                        [&flood, &works].map(|class| {
                            let of = used.iter().find(|u| u.activity == class.number()).unwrap();
                            of.entries.iter().map(|entry| entry.time).sum::<i64>()
                        })
                    };
                    sleep_whole(begun + TIME / 8);
                    // Whoever waits goes on waiting.
                    divide();
                    // It begins with what no share was kept for.
                    sleep_whole(begun + TIME / 6);
                    let before = had();
                    sleep_whole(both);
                    let between = had();
                    join(&count, (3 + u64::from(case.threads)) * task::cores() as u64);
                    sleep_whole(end + 5_000_000);
                    let after = had();
                    let part = |had: i64, of: u64| had * 100 / (of * task::cores() as u64) as i64;
                    let [flooded, worked] = [0, 1].map(|n| between[n] - before[n]);
                    let share = flooded as f64 * 100.0 / (flooded + worked) as f64;
                    let all = part(flooded + worked, TIME * 5 / 6);
                    let left = part(after[0] - between[0], TIME);
                    let [late, sent, ran, turns] =
                        [late, sent, ran, had_turns].map(|n| n.load(Ordering::Relaxed));
                    // With more cores, each divides itself by what was at work where lately.
                    let about = if task::cores() > 1 { 4.0 } else { 0.0 };
                    let right = (case.share[0] - about..=case.share[1] + about).contains(&share)
                        && all >= 88
                        && left >= case.alone
                        && (ran == sent && ran >= 3 && late <= case.late)
                        && (turns >= 3) == case.threads;
                    if !right {
                        let (cores, Flood { scheduler, flood, .. }) = (task::cores(), &case);
                        eprintln!(
                            "{cores} {scheduler:?} {flood:?}: {share:.2} {all} {left} {late} {ran}/{sent} {turns}"
                        );
                        platform().end(1);
                    }
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// A class with a limit at the gate before a resource that serves queued messages: they are held back, all of them run in the end, and
/// those of others go on (OK-02, OK-07).
#[test]
fn queued_messages_wait_for_their_gate() {
    first_seeds(
        6,
        |core| {
            boot(core, || {
                let root = task::Activity::root();
                let [gold, free] =
                    [b"gold", b"free"].map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap());
                let p = |limit| Parameters { limit, ..Parameters::default() };
                for (measure, limit) in [(Measure::Operations, 10_000), (Measure::Time, 20_000_000)] {
                    let rule = task::gate::Rule {
                        scheduler: SchedulerKind::Wfq,
                        measure,
                        rate: 0,
                        batch: 1,
                        core: task::cores() - 1,
                        cell: p(0),
                        classes: vec![(gold.number(), p(limit))],
                    };
                    task::gate::set(Resource::Timer, Some(&rule));
                    const EACH: u64 = 1600;
                    let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                    let ran: [Arc<AtomicU64>; 2] = Default::default();
                    for (whose, ran) in [&gold, &free].into_iter().zip(&ran) {
                        let (count, ran) = (count.clone(), ran.clone());
                        let t = task::spawn(0, move || {
                            for n in 0..EACH {
                                let (count, ran) = (count.clone(), ran.clone());
                                task::send(
                                    n as usize % task::cores(),
                                    task::Labels::NONE,
                                    Resource::Timer,
                                    move || {
                                        burn(2_000);
                                        ran.fetch_add(1, Ordering::Relaxed);
                                        done(&count);
                                    },
                                );
                            }
                        });
                        let t = t.unwrap();
                        t.work_for(whose.clone());
                        task::start(t);
                    }
                    let begun = platform().now();
                    sleep_whole(begun + 10_000_000);
                    let [held, other] = ran.each_ref().map(|ran| ran.load(Ordering::Relaxed));
                    // 100 messages in 10 ms, or on each core; a rest's worth, the window's, and what was under way.
                    let cores = if measure == Measure::Time { task::cores() as u64 } else { 1 };
                    let right =
                        other == EACH && held >= 80 && held <= (100 + 100 + 200) * cores && held < EACH;
                    if !right {
                        eprintln!("{measure:?}: {held} with a limit, {other} without");
                        platform().end(1);
                    }
                    join(&count, 2 * EACH);
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Processes of no activity share a gate as one class. What is the cell's own is not held back with their messages, and these go on when
/// the gate opens, or is gone, also where messages of a class of higher priority always wait (OK-02).
#[test]
fn messages_of_no_activity_wait_and_go_on() {
    const EACH: u64 = 1_000;
    first_seeds(
        6,
        |core| {
            boot(core, || {
                let root = task::Activity::root();
                let stray = task::Activity::new(kind::PROCESS, &root, 7, b"stray").unwrap();
                let gold = task::Activity::new(kind::NAMED, &root, 0, b"gold").unwrap();
                let above = Parameters { priority: 1, ..Parameters::default() };
                task::divide(SchedulerKind::Priority, Parameters::default(), &[(&gold, above)]);
                task::sleep_until(platform().now() + 500_000);
                let rule = by_weight(Measure::Operations, 20_000, std::slice::from_ref(&gold), &[1]);
                for removed in [false, true] {
                    task::gate::set(Resource::Timer, Some(&rule));
                    let (count, owns) =
                        (Arc::new((AtomicU64::new(0), WaitQueue::new())), Arc::new(AtomicU64::new(0)));
                    let (counted, begun) = (count.clone(), platform().now());
                    let t = task::spawn(0, move || {
                        for n in 0..EACH {
                            let (counted, to) = (counted.clone(), n as usize % task::cores());
                            task::send(to, task::Labels::NONE, Resource::Timer, move || {
                                burn(1_000);
                                done(&counted);
                            });
                        }
                    });
                    let t = t.unwrap();
                    t.work_for(stray.clone());
                    task::start(t);
                    // Of the class of higher priority, every 20 us on each core.
                    for on in 0..task::cores() {
                        let t = task::spawn(on, move || {
                            while platform().now() < begun + 20_000_000 {
                                task::send(on, task::Labels::NONE, Resource::Completion, || _ = burn(10_000));
                                task::sleep_until(platform().now() + 20_000);
                            }
                        });
                        let t = t.unwrap();
                        t.work_for(gold.clone());
                        task::start(t);
                    }
                    task::sleep_until(begun + 8_000_000);
                    for to in 0..task::cores() {
                        let owns = owns.clone();
                        task::send(to, task::Labels::NONE, Resource::Timer, move || {
                            _ = owns.fetch_add(1, Ordering::SeqCst)
                        });
                    }
                    task::sleep_until(begun + 10_000_000);
                    let (ran, owns) = (count.0.load(Ordering::SeqCst), owns.load(Ordering::SeqCst));
                    // 200 in 10 ms, as many at once after a rest, its window, and what was under way.
                    if !(150..900).contains(&ran) || owns != task::cores() as u64 {
                        eprintln!("{ran} messages of {EACH}, and {owns} of the cell's own");
                        platform().end(1);
                    }
                    if removed {
                        task::gate::set(Resource::Timer, None);
                    }
                    join(&count, EACH);
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// The core that a rule names takes the turns that are not due at once, and another one when another rule names that (OK-09).
#[test]
fn turns_are_taken_where_the_rule_says() {
    some_seeds(
        6,
        &[3],
        |core| {
            boot(core, || {
                let gold = task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"gold").unwrap();
                let mut rule = by_weight(Measure::Operations, 0, std::slice::from_ref(&gold), &[100]);
                rule.classes[0].1.limit = 10_000;
                for at in [1, 2, 1] {
                    rule.core = at;
                    task::gate::set(Resource::Pipe, Some(&rule));
                    task::sleep_until(platform().now() + 1_000_000);
                    let busy = || [1, 2].map(|core| task::core_stats(core).busy_ns);
                    let (before, count) = (busy(), Arc::new((AtomicU64::new(0), WaitQueue::new())));
                    let counted = count.clone();
                    let t = task::spawn(0, move || {
                        for _ in 0..1_000 {
                            task::books::begin(0, Resource::Process);
                            task::books::turn_to(Resource::Pipe);
                            task::books::end();
                        }
                        done(&counted);
                    });
                    let t = t.unwrap();
                    t.work_for(gold.clone());
                    task::start(t);
                    join(&count, 1);
                    let after = busy();
                    let [first, second] = [0, 1].map(|n| after[n] - before[n]);
                    let (mine, other) = if at == 1 { (first, second) } else { (second, first) };
                    if mine == 0 || other * 4 > mine {
                        eprintln!("core {at} was to take turns: {before:?}, then {after:?}");
                        platform().end(1);
                    }
                }
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Messages to event threads, also of other cores, and those that they send in turn: each runs once, there, one sender's in order, and
/// their time is the activity's that the first was sent for (OK-03, OK-08, OK-15).
#[test]
fn messages_are_for_whom_they_were_sent() {
    seeds_and_many_cores(
        12,
        2,
        |core| {
            boot(core, || {
                const EACH: u64 = 4;
                const BURN: u64 = 100_000;
                let cores = task::cores();
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new(), <[AtomicU64; 2]>::default()));
                let orders: Arc<Vec<Mutex<Vec<u64>>>> =
                    Arc::new((0..2 * cores * cores).map(|_| Mutex::default()).collect());
                let root = task::Activity::root();
                let activities =
                    [b"one", b"two"].map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap());
                let each = EACH * (cores * cores) as u64;
                // For each activity and core one that sends to all cores.
                for (n, activity) in activities.iter().enumerate() {
                    for from in 0..cores {
                        let (count, orders) = (count.clone(), orders.clone());
                        let t = task::spawn(from, move || {
                            for k in 0..EACH * cores as u64 {
                                let to = k as usize % cores;
                                let (count, orders) = (count.clone(), orders.clone());
                                let (next, order) = ((to + 1) % cores, (n * cores + from) * cores + to);
                                task::send(to, task::Labels::NONE, Resource::Completion, move || {
                                    assert_eq!(core_local().id(), to);
                                    orders[order].lock().push(k);
                                    // The second half of the work, on the next core.
                                    task::send(next, task::Labels::NONE, Resource::Timer, move || {
                                        assert_eq!(core_local().id(), next);
                                        let begun = platform().now();
                                        while platform().now() < begun + BURN * (n as u64 + 1) {}
                                        // Perhaps longer: in the simulator others' steps take time, too.
                                        count.2[n].fetch_add(platform().now() - begun, Ordering::SeqCst);
                                        if count.0.fetch_add(1, Ordering::SeqCst) + 1
                                            == EACH * orders.len() as u64
                                        {
                                            count.1.wake_all(1);
                                        }
                                    });
                                });
                            }
                        });
                        let t = t.unwrap();
                        t.work_for(activity.clone());
                        task::start(t);
                    }
                }
                loop {
                    count.1.register(1);
                    let all = count.0.load(Ordering::SeqCst) == 2 * each;
                    if !all {
                        task::park();
                    }
                    count.1.unregister();
                    if all {
                        break;
                    }
                }
                let ordered = orders.iter().all(|o| o.lock().is_sorted() && o.lock().len() == EACH as usize);
                // The last one's time is not in the books before it has ended.
                task::sleep_until(platform().now() + 1_000_000);
                let used = task::used();
                let right = activities.iter().enumerate().all(|(n, activity)| {
                    let of = used.iter().find(|u| u.activity == activity.number()).unwrap();
                    let task::Amounts { time: burnt, messages, .. } = of.entries[Resource::Timer as usize];
                    let want = count.2[n].load(Ordering::SeqCst) as i64;
                    // A look at the clock takes up to 200 ns here, and as long for each of many others that come in between.
                    let looks = want / 50 * (cores as i64).max(4) / 4;
                    let right = messages == each && (want..want + looks).contains(&burnt);
                    if !right {
                        eprintln!("{messages} of {each} messages took {burnt} ns, and should {want}");
                    }
                    right
                });
                platform().end(i32::from(!ordered || !right));
            })
        },
        Outcome::Ended(0),
    );
}

/// Threads of three classes that begin on the wrong cores: the classes get their shares of all cores together (OK-06, OK-16).
#[test]
fn classes_share_all_cores() {
    for seed in 1..=2 {
        let config = Config { cores: 2, seed, switch_once_in: 3 };
        let test = |core| {
            boot(core, || {
                let root = task::Activity::root();
                let weights = [50u32, 33, 17];
                let classes =
                    [0, 1, 2].map(|n| task::Activity::new(kind::NAMED, &root, 0, &[b'a' + n]).unwrap());
                let of = |weight| Parameters { weight, ..Parameters::default() };
                let division: Vec<_> = classes.iter().zip(weights).map(|(c, w)| (c, of(w))).collect();
                task::divide(SchedulerKind::Wfq, Parameters::default(), &division);
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let got: Arc<[AtomicU64; 3]> = Arc::default();
                let (warm, end) = (platform().now() + 60_000_000, platform().now() + 180_000_000);
                for (on, n) in [(0, 0), (0, 0), (0, 1), (1, 1), (1, 2), (1, 2)] {
                    let (count, got) = (count.clone(), got.clone());
                    let t = task::spawn(on, move || {
                        while platform().now() < end {
                            let start = platform().now();
                            while platform().now() < start + 20_000 {}
                            if start > warm {
                                got[n].fetch_add(platform().now() - start, Ordering::Relaxed);
                            }
                            task::yield_now();
                        }
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.work_for(classes[n].clone());
                    t.allow_moving();
                    task::start(t);
                }
                join(&count, 6);
                let total: u64 = got.iter().map(|g| g.load(Ordering::Relaxed)).sum();
                let fair = got.iter().zip(weights).all(|(g, w)| {
                    let percent = g.load(Ordering::Relaxed) as f64 * 100.0 / total as f64;
                    (percent - f64::from(w)).abs() < 3.0
                });
                if !fair {
                    eprintln!("{got:?} of {total}");
                }
                platform().end(if fair { 0 } else { 1 });
            })
        };
        assert_eq!(run(config, test), Outcome::Ended(0), "{config:?}");
    }
}

/// Threads run where they may, whether they have chosen that or their class has no other core (OK-09, `cores`).
#[test]
fn threads_keep_to_their_cores() {
    seeds(
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let confined = Arc::new(AtomicU64::new(0));
                let class =
                    task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"confined").unwrap();
                let here = || atoll_abi::core_local::core_local().id();
                let only = |n: usize| [1u64 << n, 0, 0, 0];
                for i in 0..6 {
                    let (count, confined) = (count.clone(), confined.clone());
                    let t = task::spawn(0, move || {
                        let cores = task::cores();
                        for round in 0..40 {
                            if i < 3 {
                                let chosen = (i + round) % cores;
                                task::current().set_affinity(only(chosen));
                                task::move_if_need_be();
                                assert_eq!(here(), chosen);
                                task::yield_now();
                                assert_eq!(here(), chosen);
                            }
                            let known = confined.load(Ordering::SeqCst) != 0;
                            let until = platform().now() + 5_000 * (round as u64 % 4);
                            while platform().now() < until {
                                task::sleep_until(until);
                            }
                            assert!(i < 3 || !known || round % 4 == 0 || here() == cores - 1);
                        }
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.allow_moving();
                    if i >= 3 {
                        t.set_class(class.number());
                    }
                    task::start(t);
                }
                task::sleep_until(platform().now() + 50_000);
                task::confine(&[(&class, only(task::cores() - 1))]);
                confined.store(1, Ordering::SeqCst);
                join(&count, 6);
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}

/// Passes time as a program does, which goes into the runtime when its core is told to. Value: as for [`burn`].
fn run_program(until: impl Fn(u64) -> bool) -> u64 {
    let start = platform().now();
    loop {
        let now = platform().now();
        if until(now) {
            return now - start;
        }
        let bits = core_local().pending.swap(0, Ordering::SeqCst);
        if bits & pending::DEADLINE != 0 {
            task::on_deadline();
        }
        if bits & pending::NOTIFY != 0 {
            task::on_notify();
        }
    }
}

/// For how long it runs, and what it does at the end.
fn works_for(ns: u64, core: usize, then: impl FnOnce() + Send + 'static) -> &'static task::Thread {
    let work = move || {
        let end = platform().now() + ns;
        run_program(|now| now >= end);
        then();
    };
    let t = task::spawn(core, work).unwrap();
    t.work_for(task::Activity::new(kind::NAMED, &task::Activity::root(), 0, b"work").unwrap());
    t.allow_moving();
    t
}

/// OV-04: who waits for a thread that runs on goes to the core that has nothing to do from then on, long before the turn is over.
fn waits_shortly(waiting: u64) {
    let begun = Arc::new(AtomicU64::new(u64::MAX));
    let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
    let ended = Arc::new(AtomicU64::new(0));
    let at = ended.clone();
    let other = works_for(600_000, 1, move || at.store(platform().now(), Ordering::SeqCst));
    let wait: Vec<_> = (0..waiting)
        .map(|_| {
            let (first, all) = (begun.clone(), count.clone());
            works_for(0, 0, move || {
                first.fetch_min(platform().now(), Ordering::SeqCst);
                done(&all);
            })
        })
        .collect();
    let (all, seen) = (count.clone(), begun.clone());
    // It wakes them, and goes on.
    let runs = works_for(100_000, 0, move || {
        wait.into_iter().for_each(task::start);
        let end = platform().now() + 20_000_000;
        run_program(|now| now >= end || seen.load(Ordering::SeqCst) != u64::MAX);
        done(&all);
    });
    task::start(other);
    task::start(runs);
    join(&count, waiting + 1);
    let waited = begun.load(Ordering::SeqCst).saturating_sub(ended.load(Ordering::SeqCst));
    if waited > 400_000 {
        eprintln!("{waited} ns after there was a core for it");
    }
    platform().end(i32::from(waited > 400_000));
}

#[test]
fn who_waits_goes_where_nothing_is_left() {
    some_seeds(20, &[2], |core| boot(core, || waits_shortly(1)), Outcome::Ended(0));
    some_seeds(20, &[2], |core| boot(core, || waits_shortly(2)), Outcome::Ended(0));
}

/// A thread that makes another one goes on till its turn is over: what it has had in it isn't forgotten for the new one.
#[test]
fn who_makes_a_thread_goes_on() {
    some_seeds(
        20,
        &[1, 2],
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let kept = Arc::new(AtomicU64::new(0));
                let stop = Arc::new(AtomicU64::new(0));
                for n in 1..task::cores() {
                    let stop = stop.clone();
                    // Nothing is left for the new one.
                    task::start(works_for(0, n, move || {
                        run_program(|_| stop.load(Ordering::SeqCst) != 0);
                    }));
                }
                let (all, well) = (count.clone(), kept.clone());
                let maker = works_for(2_400_000, 0, move || {
                    let began = Arc::new(AtomicU64::new(0));
                    let first = began.clone();
                    let made = works_for(0, 0, move || first.store(platform().now(), Ordering::SeqCst));
                    task::start(made);
                    let made_at = platform().now();
                    run_program(|now| now >= made_at + 500_000);
                    well.store(u64::from(began.load(Ordering::SeqCst) == 0), Ordering::SeqCst);
                    done(&all);
                });
                task::start(maker);
                join(&count, 1);
                stop.store(1, Ordering::SeqCst);
                platform().end(i32::from(kept.load(Ordering::SeqCst) == 0));
            })
        },
        Outcome::Ended(0),
    );
}

/// How late a class may be that is due when it is woken: the shortest turn of another and the way there, ns.
const WOKEN_WITHIN: u64 = 55_000;

/// A class that is entitled to the core runs at once when it is woken, beside four threads that never stop, by a timer and by
/// one of these: by a reservation (OK-10), priority and deadline. What the machine takes from it is not taken for its use.
/// `apart`: they are of spaces of their own, and so are deadlines.
fn runs_when_woken(scheduler: SchedulerKind, apart: bool) {
    // The test sets the thread pointer of the one core's threads.
    let host = task::thread_pointer();
    let spawn = |space: u32, f: Box<dyn FnOnce() + Send>| {
        if !apart {
            return task::spawn(0, f).unwrap();
        }
        let begin = move || {
            task::books::begin(0, Resource::Process);
            f();
        };
        let t = task::spawn_program(space, begin, task::exit).unwrap();
        // SAFETY: it has not begun.
        unsafe { t.frame() }.fs_base = host;
        t
    };
    const EACH: u64 = 60;
    const GAP: u64 = 1_000_000;
    let root = task::Activity::root();
    let [victim, flood] =
        [b"vict", b"load"].map(|name| task::Activity::new(kind::NAMED, &root, 0, name).unwrap());
    let of = |weight, reservation, priority, deadline| Parameters {
        weight,
        reservation,
        priority,
        deadline,
        ..Parameters::default()
    };
    let division = [(&victim, of(30, 300_000_000, 1, 1_000_000)), (&flood, of(70, 0, 0, 50_000_000))];
    task::divide(scheduler, Parameters::default(), &division);
    // When the next one is to be woken by another thread, and whether all is done.
    let state: Arc<(AtomicU64, AtomicU64, AtomicU64)> = Arc::default();
    let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
    let (told, finished) = (state.clone(), count.clone());
    let woken = Box::new(move || {
        let mut at = platform().now() + 3 * GAP;
        for n in 0..EACH {
            if n % 2 == 0 {
                while platform().now() < at {
                    task::park_until(at);
                }
            } else {
                told.0.store(at, Ordering::SeqCst);
                while told.0.load(Ordering::SeqCst) != 0 {
                    task::park();
                }
            }
            told.2.fetch_max(platform().now() - at, Ordering::SeqCst);
            run_program(|now| now > at + GAP / 5);
            at += GAP;
            if n % 20 == 10 && !apart {
                // Its reservation would be used up for ten milliseconds.
                atoll_platform_sim::steal(STOLEN);
                at += STOLEN;
            }
        }
        told.1.store(1, Ordering::SeqCst);
        done(&finished);
    });
    let woken = spawn(1, woken);
    woken.work_for(victim);
    for _ in 0..4 {
        let (state, count) = (state.clone(), count.clone());
        let flooding = Box::new(move || {
            while state.1.load(Ordering::SeqCst) == 0 {
                run_program(|now| {
                    let at = state.0.load(Ordering::SeqCst);
                    state.1.load(Ordering::SeqCst) != 0 || (at != 0 && now >= at)
                });
                if state.0.swap(0, Ordering::SeqCst) != 0 {
                    task::unpark(woken);
                }
            }
            done(&count);
        });
        let t = spawn(2, flooding);
        t.work_for(flood.clone());
        task::start(t);
    }
    task::start(woken);
    join(&count, 5);
    let late = state.2.load(Ordering::SeqCst);
    if late > WOKEN_WITHIN {
        eprintln!("{scheduler:?}: {late} ns late");
    }
    platform().end(i32::from(late > WOKEN_WITHIN));
}

#[test]
fn reserved_class_runs_when_woken() {
    some_seeds(6, &[1], |core| boot(core, || runs_when_woken(SchedulerKind::Wfq, false)), Outcome::Ended(0));
}

#[test]
fn a_class_of_another_space_runs_when_woken() {
    some_seeds(6, &[1], |core| boot(core, || runs_when_woken(SchedulerKind::Wfq, true)), Outcome::Ended(0));
}

#[test]
fn higher_priority_runs_when_woken() {
    some_seeds(
        3,
        &[1],
        |core| boot(core, || runs_when_woken(SchedulerKind::Priority, false)),
        Outcome::Ended(0),
    );
}

#[test]
fn earlier_deadline_runs_when_woken() {
    some_seeds(
        3,
        &[1],
        |core| boot(core, || runs_when_woken(SchedulerKind::Deadline, false)),
        Outcome::Ended(0),
    );
}

/// How long a thread or timer stays at most on a core that goes, ns of simulated time (RF-03: 1 ms).
const GONE_WITHIN: u64 = 1_000_000;

/// Cores come and go 2,000 times in all under threads that compute, sleep, lock, wake each other, send messages and have timers:
/// nobody runs on a core that is gone, nobody is late, and nothing is lost (RF-03).
#[test]
fn cores_come_and_go() {
    const WORKERS: u64 = 6;
    const CHANGES: u64 = 170;
    some_seeds(
        6,
        &[3, 8],
        |core| {
            boot(core, || {
                let count = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                let over = Arc::new(AtomicU64::new(0));
                // Sent and come: messages, calls of timers; how late one was at most; what the lock guards.
                let sums: Arc<[AtomicU64; 4]> = Arc::default();
                let guarded = Arc::new(Mutex::new(0u64));
                let mut workers = Vec::new();
                for n in 0..WORKERS {
                    let (count, over, sums) = (count.clone(), over.clone(), sums.clone());
                    let guarded = guarded.clone();
                    let t = task::spawn(0, move || {
                        let mut random = 0x9E37_79B9 + n * 77 + platform().now();
                        let mut mine = 0;
                        if n == 0 {
                            // It would be on one core only.
                            task::current().set_affinity([1 << (task::cores() - 1), 0, 0, 0]);
                        }
                        let late = |at: u64| {
                            sums[2].fetch_max(platform().now().saturating_sub(at), Ordering::Relaxed)
                        };
                        while over.load(Ordering::SeqCst) == 0 {
                            let at = platform().now() + next_random(&mut random) % 60_000;
                            match next_random(&mut random) % 6 {
                                0 => _ = run_program(|now| now > at),
                                1 => {
                                    while platform().now() < at {
                                        task::sleep_until(at);
                                    }
                                    late(at);
                                }
                                2 => {
                                    *guarded.lock() += 1;
                                    mine += 1;
                                }
                                3 => {
                                    sums[0].fetch_add(1, Ordering::SeqCst);
                                    let came = sums.clone();
                                    let to = next_random(&mut random) as usize % task::cores();
                                    let labels = task::Labels { dependency: n / 2, affinity: n % 2 };
                                    task::send(to, labels, Resource::Completion, move || {
                                        came[1].fetch_add(1, Ordering::SeqCst);
                                    });
                                }
                                4 => {
                                    let seen = Arc::new((AtomicU64::new(0), WaitQueue::new()));
                                    let call = seen.clone();
                                    let timer = task::Timer::new(move |_| {
                                        done(&call);
                                        task::Hold::NOT
                                    });
                                    timer.start(at, 0);
                                    join(&seen, 1);
                                    late(at);
                                }
                                _ => task::yield_now(),
                            }
                        }
                        sums[3].fetch_add(mine, Ordering::SeqCst);
                        done(&count);
                    });
                    let t = t.unwrap();
                    t.allow_moving();
                    let root = task::Activity::root();
                    t.work_for(task::Activity::new(kind::NAMED, &root, 0, b"robbed").unwrap());
                    task::start(t);
                    workers.push(t);
                }
                let mut random = 0x1234_5678 + platform().now();
                let mut slowest = 0;
                for _ in 0..CHANGES {
                    task::sleep_until(platform().now() + next_random(&mut random) % 200_000);
                    let wanted = (next_random(&mut random) % (1 << task::cores())) | 1;
                    slowest = slowest.max(task::set_online([wanted, 0, 0, 0]).unwrap());
                    assert_eq!(task::online(), [wanted, 0, 0, 0]);
                    for t in &workers {
                        let on = t.core();
                        assert!(task::is_online(on) || !t.is_running(), "runs on core {on} of {wanted:b}");
                    }
                }
                over.store(1, Ordering::SeqCst);
                join(&count, WORKERS);
                let until = platform().now() + 1_000_000;
                while platform().now() < until
                    && sums[0].load(Ordering::SeqCst) != sums[1].load(Ordering::SeqCst)
                {
                    task::sleep_until(platform().now() + 10_000);
                }
                assert_eq!(sums[0].load(Ordering::SeqCst), sums[1].load(Ordering::SeqCst), "messages");
                assert_eq!(*guarded.lock(), sums[3].load(Ordering::SeqCst), "what a lock guards");
                let late = sums[2].load(Ordering::SeqCst);
                assert!(slowest < GONE_WITHIN, "a core went after {slowest} ns");
                assert!(late < 2 * GONE_WITHIN, "{late} ns late");
                platform().end(0);
            })
        },
        Outcome::Ended(0),
    );
}
