//! Doing something in a space that the caller does not run in, and what is copied on the way.

use alloc::boxed::Box;
use alloc::sync::Arc;

use atoll_abi::core_local::core_local;
use atoll_abi::{Errno, Result};
use atoll_fs::poll;
use atoll_mem::heap::{give_pages, take_pages_dirty};
use atoll_mem::pages::CHUNK_ORDER;
use atoll_mem::vm::AddressSpace;
use atoll_sync::{SetOnce, WaitQueue};
use atoll_task::wait_uninterrupted;

use crate::process::Space;

/// Has a thread of the runtime do something in a space that the caller does not run in, and waits for it. ENOMEM: there is no memory for the thread.
pub fn in_other_space<R: Send + Sync + Copy + 'static>(
    space: Arc<Space>,
    f: impl FnOnce(&AddressSpace) -> Result<R> + Send + 'static,
) -> Result<R> {
    let state = Arc::new((SetOnce::<Result<R>>::new(), WaitQueue::new()));
    let its = state.clone();
    let work = move || {
        let done = atoll_task::in_space(space.id, || f(&space.memory));
        // Only here.
        let _ = its.0.set(done);
        its.1.wake_all(poll::IN);
    };
    let thread = atoll_task::spawn(core_local().id(), Box::new(work)).ok_or(Errno::ENOMEM)?;
    atoll_task::start(thread);
    wait_uninterrupted(&state.1, poll::IN, || state.0.get().copied())
}

/// Room for what is copied between spaces, one slot of it: all spaces see it.
pub struct Room(u64);

impl Room {
    /// Takes some. What is in it is undefined.
    pub fn new() -> Result<Room> {
        take_pages_dirty(CHUNK_ORDER).map(Room).ok_or(Errno::ENOMEM)
    }

    /// Where it is in the cell's memory.
    pub fn offset(&self) -> u64 {
        self.0
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        give_pages(self.0, CHUNK_ORDER);
    }
}
