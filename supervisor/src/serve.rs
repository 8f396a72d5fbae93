//! The serving threads.
#![allow(unsafe_code, reason = "host calls on the cell's memory")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

use atoll_abi::control::Control;
use atoll_abi::errno::Errno;
use atoll_abi::service::{ANSWER_FD, Answer, Op, Request};

use crate::Result;
use crate::launch::CellConfig;
use crate::memory::Mapping;

/// A host directory that a cell has mounted.
pub struct HostMount {
    /// The directory.
    pub root: OwnedFd,
    /// Refuse changes.
    pub read_only: bool,
}

impl HostMount {
    /// A second handle on it.
    pub fn try_clone(&self) -> io::Result<HostMount> {
        Ok(HostMount { root: self.root.try_clone()?, read_only: self.read_only })
    }
}

/// The standard streams.
#[derive(Clone, Copy, Default)]
pub struct Streams;

/// Serves one cell.
pub struct Server {
    control: Arc<Mapping>,
    memory: Arc<Mapping>,
    cores: Vec<Mutex<()>>,
    answer: Vec<Mutex<()>>,
    bells: Vec<OwnedFd>,
    sockets: Vec<OwnedFd>,
    idle: AtomicUsize,
    threads: AtomicU32,
    mounts: Vec<HostMount>,
}

/// What a request comes to.
pub(crate) struct Reply {
    value: i64,
    extra: u64,
    fd: Option<OwnedFd>,
}

impl Server {
    /// Starts serving.
    pub fn start(
        control: Arc<Mapping>,
        memory: Arc<Mapping>,
        config: &CellConfig,
        bells: Vec<OwnedFd>,
        sockets: Vec<OwnedFd>,
        mounts: Vec<HostMount>,
    ) -> Result<Arc<Server>> {
        let server = Arc::new(Server {
            control,
            memory,
            cores: (0..config.cores).map(|_| Mutex::new(())).collect(),
            answer: (0..config.cores).map(|_| Mutex::new(())).collect(),
            bells,
            sockets,
            idle: AtomicUsize::new(0),
            threads: AtomicU32::new(0),
            mounts,
        });
        server.clone().add_thread();
        Ok(server)
    }
    fn add_thread(self: Arc<Self>) {
        std::thread::spawn(move || self.work());
    }
    fn work(&self) {
        let _ = (&self.control, &self.memory, &self.cores, &self.answer, &self.bells, &self.sockets, &self.idle, &self.threads, &self.mounts);
        loop { std::thread::park(); }
    }
}
