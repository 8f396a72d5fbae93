//! Who is told of changes, core by core.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Most cores.
pub(crate) const CORES_MAX: usize = 256;

/// A set of cores.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cores([u64; CORES_MAX / 64]);

impl Cores {
    pub(crate) fn add(&mut self, core: usize) {
        self.0[core / 64] |= 1 << (core % 64);
    }

    fn remove(&mut self, core: usize) {
        self.0[core / 64] &= !(1 << (core % 64));
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    pub(crate) fn each(self, mut f: impl FnMut(usize)) {
        for (n, mut word) in self.0.into_iter().enumerate() {
            while word != 0 {
                f(n * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }
}

/// What a core can be asked without the stack's lock.
pub(crate) struct CoreState {
    /// Looks for events that were begun.
    pub(crate) looks: AtomicU32,
    /// There is something to be looked at.
    pub(crate) some: AtomicBool,
    /// It looked while the stack was busy, and is to be told when that is over.
    pub(crate) missed: AtomicBool,
}

pub(crate) fn core_states(cores: usize) -> Box<[CoreState]> {
    assert!((1..=CORES_MAX).contains(&cores), "1 to 256 cores");
    let one = |_| CoreState {
        looks: AtomicU32::new(0),
        some: AtomicBool::new(false),
        missed: AtomicBool::new(false),
    };
    (0..cores).map(one).collect()
}

/// Sockets with changes that their cores have not looked at.
pub(crate) struct Changes {
    lists: Vec<VecDeque<usize>>,
    /// Cores that have not been woken for what is in their lists; are there any?
    wake: Cores,
    any: bool,
}

impl Changes {
    pub(crate) fn new(cores: usize) -> Self {
        Changes { lists: (0..cores).map(|_| VecDeque::new()).collect(), wake: Cores::default(), any: false }
    }

    pub(crate) fn cores(&self) -> usize {
        self.lists.len()
    }

    /// Notes a change of `socket`, which `core` watches and has not been told of.
    pub(crate) fn note(&mut self, core: usize, socket: usize) {
        self.lists[core].push_back(socket);
        self.wake.add(core);
        self.any = true;
    }

    /// Takes the cores that are to be woken, if there are any.
    pub(crate) fn take_wake(&mut self) -> Option<Cores> {
        core::mem::take(&mut self.any).then(|| core::mem::take(&mut self.wake))
    }

    /// A core has looked at all that there is for it.
    pub(crate) fn looked(&mut self, core: usize) {
        self.wake.remove(core);
        self.any = self.any && !self.wake.is_empty();
    }

    pub(crate) fn take(&mut self, core: usize) -> Option<usize> {
        self.lists[core].pop_front()
    }

    pub(crate) fn any(&self, core: usize) -> bool {
        !self.lists[core].is_empty()
    }

    pub(crate) fn forget(&mut self, core: usize, socket: usize) {
        self.lists[core].retain(|&s| s != socket);
    }
}

/// Tells cores that have something to look at, after the lock was let go.
pub(crate) fn tell(states: &[CoreState], wake: Cores, f: &(dyn Fn(usize) + Send + Sync)) {
    wake.each(|core| {
        states[core].some.store(true, Ordering::SeqCst);
        f(core);
    });
}
