//! The memory of a cell on the simulated platform, for tests of file systems.

use std::alloc::{Layout, alloc_zeroed};
use std::io::Write;
use std::panic;

use atoll_abi::layout::{BLOCK, Sizes};
use atoll_abi::{Errno, platform};
use atoll_fs::InodeRef;
use atoll_mem::heap::{RuntimeAllocator, start_core};
use atoll_sync::{ThreadOps, set_thread_ops};

pub const MEMORY: u64 = 16 * BLOCK;

/// Runs `$test` in a cell of one core, which is this thread alone.
macro_rules! in_cell_ {
    ($test:expr) => {{
        use atoll_platform_sim::{Config, Outcome, run};
        let end = run(Config { cores: 1, seed: 1, switch_once_in: 0 }, |_| {
            crate::cell::boot();
            let test: fn() = $test;
            test();
            atoll_abi::platform().end(0)
        });
        assert_eq!(end, Outcome::Ended(0));
    }};
}
pub(crate) use in_cell_ as in_cell;

pub fn boot() {
    panic::set_hook(Box::new(|what| {
        // Not by way of the test harness, which is not in this process.
        let _ = writeln!(std::io::stderr(), "{what}");
        platform().end(1)
    }));
    set_thread_ops(&ThreadOps {
        current: || 1,
        park: || unreachable!("one thread"),
        unpark: |_| {},
        now: || 0,
        others: || false,
        breathe: || {},
        relax: || {},
    });
    static ALLOCATOR: RuntimeAllocator = RuntimeAllocator::new();
    let layout = Layout::from_size_align(MEMORY as usize, BLOCK as usize).unwrap();
    // SAFETY: fresh, zeroed, never freed; it is started once, and nothing was allocated from it.
    unsafe { ALLOCATOR.start(alloc_zeroed(layout), Sizes::fixed(MEMORY), 1, true) };
    start_core(0);
}

/// Finds a path, link or not.
pub fn find(root: &InodeRef, path: &str) -> Result<InodeRef, Errno> {
    path.split('/').try_fold(root.clone(), |at, name| at.lookup(name.as_bytes()))
}
