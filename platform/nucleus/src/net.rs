//! Sockets where there is no host: those of the cell's own network stack, by the host's calls.
//!
//! What is a descriptor on a host is here a socket's number in the stack. Frames are moved whenever a core
//! comes by for events; a device's interrupt, another core's wish and the stack's own deadline end its sleep.
#![allow(
    unsafe_code,
    reason = "starts devices whose registers the nucleus has mapped; keeps lists of a core's own"
)]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt::Write as _;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::{NUCLEUS, control, devices};
use atoll_abi::core_local::core_local;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::{DIRECT_MAP, MAX_CORES};
use atoll_abi::platform::{Events, HostBuf, HostCalls, ReadBuf, Received};
use atoll_abi::service::{HostAttr, Op, Request};
use atoll_drivers::net::NetPort;
use atoll_mem::user;
use atoll_netstack::{Calls, Config, PortConfig, Stack};
use atoll_platform_entry::line::Line;
use atoll_sync::SetOnce;

/// Virtio's number for network devices.
const NET: u32 = 1;
/// What `stat(2)` says a socket is.
const S_IFSOCK: u32 = 0o140_777;

/// The stack, and the devices below it.
pub(crate) struct Net {
    stack: Stack,
    devices: Vec<Arc<NetPort>>,
    /// A device's interrupt has come since the last look.
    interrupted: AtomicBool,
}

static NET_: SetOnce<Net> = SetOnce::new();

/// Descriptors that are announced in answers, by core.
struct Announced(UnsafeCell<VecDeque<i32>>);
// SAFETY: each core reaches its own only, in the runtime, with upcalls masked.
unsafe impl Sync for Announced {}
static ANNOUNCED: [Announced; MAX_CORES] = [const { Announced(UnsafeCell::new(VecDeque::new())) }; MAX_CORES];

fn announced() -> &'static mut VecDeque<i32> {
    // SAFETY: as above; no reference to it is kept.
    unsafe { &mut *ANNOUNCED[core_local().id()].0.get() }
}

/// The network, if it has been started.
#[inline]
pub(crate) fn net() -> Option<&'static Net> {
    NET_.get()
}

/// The network; started by the first who asks, with the other devices. In a thread.
#[cold]
pub(crate) fn start() -> &'static Net {
    if let Some(net) = net() {
        return net;
    }
    devices::start();
    let descriptor = &control().descriptor;
    let (mut devices, mut ports) = (Vec::new(), Vec::new());
    for device in descriptor.devices.iter().filter(|d| d.kind.load(Ordering::Relaxed) == NET) {
        // SAFETY: a device that the nucleus granted to this cell alone; this is done once.
        match unsafe { NetPort::new(device) } {
            Ok(port) => {
                let port = Arc::new(port);
                devices.push(port.clone());
                ports.push(PortConfig { port, dhcp: true, addresses: Vec::new(), gateways: Vec::new() });
            }
            Err(e) => {
                let mut line = Line::new();
                // It can't fail.
                let _ = write!(line, "a network device does not start, and is left out: {e}");
                NUCLEUS.log(line.as_str());
            }
        }
    }
    let mut seed = [0; 8];
    NUCLEUS.random(&mut seed);
    let cores = descriptor.cores.load(Ordering::Relaxed) as usize;
    let config = Config::new(u64::from_le_bytes(seed), cores);
    // This core comes by before it sleeps, and now and then while it runs a program.
    let wake = Box::new(|core: usize| {
        if core != core_local().id() {
            NUCLEUS.notify(core)
        }
    });
    let stack = Stack::new(config, ports, wake);
    // Who was first is the one; devices are there at boot, when there is one thread.
    let _ = NET_.set(Net { stack, devices, interrupted: AtomicBool::new(true) });
    net().expect("it has been set")
}

impl Net {
    /// A device has interrupted.
    pub fn interrupted(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }

    /// Moves frames, and adds what became of sockets that this core watches.
    pub fn poll(&self, events: &mut Events) {
        if self.interrupted.swap(false, Ordering::SeqCst) {
            self.devices.iter().for_each(|d| d.interrupted());
        }
        self.stack.poll_and_take(NUCLEUS.now(), core_local().id(), events);
    }

    /// Is there something for this core?
    pub fn has_events(&self) -> bool {
        self.is_interrupted() || self.stack.has_events(core_local().id())
    }

    /// Is an interrupt still to be answered? Then no core may sleep.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// A second look at the devices' queues, of a core that is about to sleep. Value: there is something to be done first.
    pub fn look_again(&self) -> bool {
        // Not while another core is at them, which takes frames in and out by the same queues: that one comes by here, too.
        let Some(_alone) = self.stack.try_calls(NUCLEUS.now()) else { return false };
        // Each of them.
        self.devices.iter().fold(false, |any, d| d.look_again() | any)
    }

    /// When it wants to be polled at the latest, ns.
    pub fn deadline(&self) -> u64 {
        self.stack.deadline().unwrap_or(u64::MAX)
    }

    fn calls(&self) -> Calls<'_> {
        self.stack.calls(NUCLEUS.now())
    }

    /// Answers a request on sockets. Value, and whether a descriptor comes with it.
    pub fn serve(&self, op: Op, request: &Request) -> Result<(u64, Option<i32>)> {
        let [first, second, third, _] = request.arg;
        // A handle is a socket's number, and one: 0 is none.
        let socket = || Ok::<i32, Errno>(first.checked_sub(1).ok_or(Errno::EBADF)? as i32);
        let mut calls = self.calls();
        let address = || {
            // SAFETY: the requester's buffer, in the cell's memory, until it is answered.
            unsafe {
                core::slice::from_raw_parts(
                    (DIRECT_MAP + request.a.offset) as *const u8,
                    request.a.len as usize,
                )
            }
        };
        match op {
            Op::Socket => {
                let n = calls.socket(first as u32, second as u32, third as u32)?;
                // One who holds it is the handle, the other the descriptor.
                calls.hold(n)?;
                Ok((n as u64 + 1, Some(n)))
            }
            Op::Bind => calls.bind(socket()?, address()).map(|()| (0, None)),
            Op::Connect => calls.connect(socket()?, address()).map(|()| (0, None)),
            Op::Listen => calls.listen(socket()?, second as u32).map(|()| (0, None)),
            Op::Release => calls.close(socket()?).map(|()| (0, None)),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// A descriptor goes with the answer that comes next on this core.
    pub fn announce(fd: i32) {
        announced().push_back(fd);
    }

    /// Takes the next one.
    pub fn take_descriptor() -> Result<i32> {
        announced().pop_front().ok_or(Errno::EBADF)
    }
}

/// Where a call is in its buffers.
#[derive(Default)]
struct Place {
    buffer: usize,
    at: u64,
}

impl Place {
    /// Goes on with up to `len` bytes. `room` says how long a buffer is, if there is one of this number; `copy` is given
    /// a buffer's number, a place in it and a range of the bytes, and says how many it did: fewer end it. Value: bytes.
    fn go_on(
        &mut self,
        len: usize,
        room: impl Fn(usize) -> Option<u64>,
        mut copy: impl FnMut(usize, u64, Range<usize>) -> usize,
    ) -> usize {
        let mut done = 0;
        while done < len {
            let Some(room) = room(self.buffer) else { break };
            let left = (room - self.at).min((len - done) as u64) as usize;
            let n = copy(self.buffer, self.at, done..done + left);
            (done, self.at) = (done + n, self.at + n as u64);
            if n < left {
                break;
            }
            if self.at == room {
                *self = Place { buffer: self.buffer + 1, at: 0 };
            }
        }
        done
    }
}

impl HostCalls for Net {
    fn read_at(&self, _: i32, _: &[HostBuf], _: u64) -> Result<usize> {
        Err(Errno::EBADF)
    }

    fn write(&self, _: i32, _: &[ReadBuf], _: bool) -> Result<usize> {
        Err(Errno::ENOSYS)
    }

    fn receive(
        &self,
        fd: i32,
        bufs: &[HostBuf],
        addr: Option<&mut [u8]>,
        _: Option<&mut [u8]>,
        flags: u32,
    ) -> Result<Received> {
        let max: u64 = bufs.iter().map(HostBuf::len).sum();
        let (mut place, room) = (Place::default(), |n: usize| bufs.get(n).map(HostBuf::len));
        self.calls().receive(fd, max as usize, addr, flags, &mut |bytes| {
            place.go_on(bytes.len(), room, |n, at, part| user::fill(&bufs[n], at, &bytes[part]))
        })
    }

    fn send(
        &self,
        fd: i32,
        bufs: &[ReadBuf],
        addr: Option<&[u8]>,
        control: &[u8],
        flags: u32,
    ) -> Result<usize> {
        if !control.is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        let len: u64 = bufs.iter().map(ReadBuf::len).sum();
        let (mut place, room) = (Place::default(), |n: usize| bufs.get(n).map(ReadBuf::len));
        self.calls().send(fd, len as usize, addr, flags, &mut |bytes| {
            place.go_on(bytes.len(), room, |n, at, part| user::drain(&bufs[n], at, &mut bytes[part]))
        })
    }

    fn accept(&self, fd: i32, addr: &mut [u8]) -> Result<(i32, usize)> {
        self.calls().accept(fd, addr)
    }

    fn shutdown(&self, fd: i32, how: u32) -> Result<()> {
        self.calls().shutdown(fd, how)
    }

    fn get_option(&self, fd: i32, level: u32, name: u32, value: &mut [u8]) -> Result<usize> {
        self.calls().get_option(fd, level, name, value)
    }

    fn set_option(&self, fd: i32, level: u32, name: u32, value: &[u8]) -> Result<()> {
        self.calls().set_option(fd, level, name, value)
    }

    fn name(&self, fd: i32, peer: bool, addr: &mut [u8]) -> Result<usize> {
        self.calls().name(fd, peer, addr)
    }

    fn queued(&self, fd: i32, out: bool) -> Result<u32> {
        self.calls().queued(fd, out)
    }

    fn probe(&self, fd: i32) -> u32 {
        self.calls().probe(fd)
    }

    fn watch(&self, fd: i32, cookie: u64) -> Result<usize> {
        // Before this thread can be moved: the caller has asked this core for its looks.
        let core = core_local().id();
        self.calls().watch(fd, core, cookie)?;
        control().cores[core].watched.fetch_add(1, Ordering::Relaxed);
        Ok(core)
    }

    fn unwatch(&self, fd: i32, core: usize) -> Result<()> {
        self.calls().unwatch(fd)?;
        control().cores[core].watched.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn looks(&self, core: usize) -> u32 {
        self.stack.looks(core)
    }

    fn close_watched(&self, fd: i32, core: usize) {
        self.close(fd);
        control().cores[core].watched.fetch_sub(1, Ordering::Relaxed);
    }

    fn stat(&self, _: i32) -> Result<HostAttr> {
        Ok(HostAttr { mode: S_IFSOCK, nlink: 1, blksize: 4096, ..HostAttr::default() })
    }

    fn close(&self, fd: i32) {
        // One that is closed already has no more to lose.
        let _ = self.calls().close(fd);
    }
}
