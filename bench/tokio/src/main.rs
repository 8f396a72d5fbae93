//! Times what tokio's threads do to each other: prints a name and the nanoseconds that it takes, a line each.

use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

/// How many of each there are in a round.
const N: u32 = 20_000;

fn measure(name: &str, runtime: &Runtime, work: impl AsyncFn()) {
    let mut took = [0.0; 6];
    for took in &mut took {
        let begun = Instant::now();
        runtime.block_on(work());
        *took = begun.elapsed().as_nanos() as f64 / f64::from(N);
    }
    // The first one does not count.
    took[1..].sort_by(f64::total_cmp);
    println!("{name} {:.2}", took[3]);
}

/// A task sends what it gets back to one outside the workers: each waits for the other.
async fn ping_pong(inside: bool) {
    let (there, mut arrives) = mpsc::channel(1);
    let (back, mut returns) = mpsc::channel(1);
    let echo = tokio::spawn(async move {
        while let Some(n) = arrives.recv().await {
            if back.send(n).await.is_err() {
                break;
            }
        }
    });
    let ask = async move {
        for n in 0..N {
            there.send(n).await.expect("the other one takes all");
            assert_eq!(returns.recv().await, Some(n));
        }
    };
    if inside {
        tokio::spawn(ask).await.expect("it does not panic");
    } else {
        ask.await;
    }
    echo.await.expect("it does not panic");
}

fn main() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    measure("tokio: ping-pong of two tasks", &runtime, async || ping_pong(true).await);
    measure("tokio: ping-pong of a task and a thread", &runtime, async || ping_pong(false).await);
    measure("tokio: spawn of a task, and its end", &runtime, async || {
        for _ in 0..N {
            tokio::spawn(async {}).await.expect("it does not panic");
        }
    });
    measure("tokio: spawn_blocking, and its end", &runtime, async || {
        for _ in 0..N {
            tokio::task::spawn_blocking(|| ()).await.expect("it does not panic");
        }
    });
}
