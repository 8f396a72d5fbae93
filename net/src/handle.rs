//! What a socket is to the calls above it.
//!
//! Handles never wait: a call that would have to returns EAGAIN, and
//! [`Handle::queue`] says when to try again. Waiting, timeouts, signals and
//! epoll are written once, above.

use alloc::sync::Arc;

use atoll_abi::{Errno, Result};
use atoll_mem::io::{Sink, Source};
use atoll_sync::WaitQueue;

use crate::address::Address;

/// Which direction to close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Shutdown {
    /// No more receiving.
    Read = 0,
    /// No more sending.
    Write = 1,
    /// Neither.
    Both = 2,
}

/// What all sockets have in common.
pub trait Handle: Send + Sync {
    /// Gives it a local address.
    fn bind(&self, addr: &Address) -> Result<()>;
    /// Names its peer. EINPROGRESS: ready for writing when it is done; then see [`Handle::take_error`].
    fn connect(&self, addr: &Address) -> Result<()>;
    /// Closes a direction.
    fn shutdown(&self, how: Shutdown) -> Result<()>;
    /// Its own address.
    fn local(&self) -> Result<Address>;
    /// Its peer's; ENOTCONN.
    fn peer(&self) -> Result<Address>;
    /// `getsockopt(2)`; length of the value.
    fn get_option(&self, level: u32, name: u32, value: &mut [u8]) -> Result<usize>;
    /// `setsockopt(2)`.
    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()>;
    /// The error that came meanwhile, once: 0 or an error number.
    fn take_error(&self) -> u32;
    /// What it is ready for: `poll(2)` bits.
    fn ready(&self) -> u32;
    /// A call is made on it that waits if it must: [`Handle::ready`] must be right about it from now on.
    fn will_wait(&self) {}
    /// Asks for what this core's look for events does not tell: for those who don't wait.
    fn refresh(&self) {}
    /// Is it known that a call to receive (or, if `send`, to send) would have to wait? That may be a
    /// moment old: for those who would wait then, and hear of the change.
    fn idle(&self, _send: bool) -> bool {
        false
    }
    /// Where to wait for that to change.
    fn queue(&self) -> &WaitQueue;
    /// Bytes that wait to be received (or, if `out`, to be sent).
    fn queued(&self, out: bool) -> Result<u32>;
    /// For how long its last `close` waits until what was sent has arrived (SO_LINGER), seconds, where the caller has to see to that.
    fn lingers(&self) -> u32 {
        0
    }
}

/// A connection, or a socket that can become or take some.
pub trait StreamHandle: Handle {
    /// Starts taking connections.
    fn listen(&self, backlog: u32) -> Result<()>;
    /// Takes a connection.
    fn accept(&self) -> Result<(Arc<dyn StreamHandle>, Address)>;
    /// Receives. 0: the peer sends no more. `flags`: MSG_PEEK, MSG_OOB, MSG_TRUNC.
    fn receive(&self, sink: &mut Sink, flags: u32) -> Result<usize>;
    /// Sends, perhaps less than there is. `flags`: MSG_OOB, MSG_MORE.
    fn send(&self, source: &mut Source, flags: u32) -> Result<usize>;
}

/// What a datagram brought.
#[derive(Debug)]
pub struct Datagram {
    /// Its bytes, also those that had no room if MSG_TRUNC was asked for.
    pub len: usize,
    /// Who sent it.
    pub from: Address,
    /// `msg_flags`.
    pub flags: u32,
    /// Bytes of control messages.
    pub control_len: usize,
}

/// A socket for single messages.
pub trait DatagramHandle: Handle {
    /// Receives one. Control messages go to `control`.
    fn receive(&self, sink: &mut Sink, control: &mut [u8], flags: u32) -> Result<Datagram>;
    /// Sends one, to `to` or to the connected peer, with control messages (perhaps none).
    fn send(&self, source: &mut Source, to: Option<&Address>, control: &[u8], flags: u32) -> Result<usize>;
    /// A message of the system's own comes in. EOPNOTSUPP: it takes none.
    fn deliver(&self, _message: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
}
