//! Requests to the serving threads, as calls: send, wait, take the answer.
#![allow(unsafe_code, reason = "a request's cookie is a counted pointer to who waits for the answer")]

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering};

use crate::books::Asked;
use crate::{Activity, Cause, books, messages, scheduler};
use atoll_abi::errno::{Errno, Result};
use atoll_abi::grid::Resource;
use atoll_abi::service::{ANSWER_FD, Answer, Op, Request};
use atoll_abi::{assert_accounted, platform};
use atoll_sync::WaitQueue;

/// What is done when an answer comes.
type Then = alloc::boxed::Box<dyn Fn(&Call) + Send + Sync>;

/// A request under way.
pub struct Call {
    done: AtomicBool,
    value: AtomicI64,
    extra: AtomicU64,
    fd: AtomicI32,
    waiters: WaitQueue,
    /// Who asked.
    cause: Cause,
    /// When, and to what the time until the answer belongs.
    sent: Asked,
    /// That time, if it is to be somebody else's, ns.
    took: AtomicU64,
    /// Run when the answer is there, in the event thread, for whom.
    then: Option<(Activity, Then)>,
}

impl Call {
    /// Sends a request. Waits only if too many are under way on this core.
    pub fn send(request: Request) -> Result<Arc<Call>> {
        Self::send_then(request, None)
    }

    /// Sends a request, and has `then` called in an event thread when the answer is there.
    pub fn send_then(mut request: Request, then: Option<Then>) -> Result<Arc<Call>> {
        let call = Arc::new(Call {
            done: AtomicBool::new(false),
            value: AtomicI64::new(0),
            extra: AtomicU64::new(0),
            fd: AtomicI32::new(-1),
            waiters: WaitQueue::new(),
            cause: Cause::current(),
            sent: Asked::now(Op::from_number(request.op).and_then(Op::resource)),
            took: AtomicU64::new(0),
            then: then.map(|then| (messages::for_whom(), then)),
        });
        request.cookie = Arc::into_raw(call.clone()) as u64;
        loop {
            match books::within(Resource::DeviceWrite, || platform().submit(&request)) {
                Ok(()) => return Ok(call),
                Err(Errno::EAGAIN) => scheduler::park_until(platform().now() + 100_000),
                Err(e) => {
                    // SAFETY: the request was not sent, so nobody else has the count.
                    drop(unsafe { Arc::from_raw(request.cookie as *const Call) });
                    return Err(e);
                }
            }
        }
    }

    /// Is the answer there?
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Those who wait for the answer; woken with interest 1.
    pub fn waiters(&self) -> &WaitQueue {
        &self.waiters
    }

    /// Waits for the answer.
    pub fn wait(&self) -> Result<u64> {
        while !self.is_done() {
            self.waiters.register(1);
            if self.is_done() {
                self.waiters.unregister();
                break;
            }
            scheduler::park();
            self.waiters.unregister();
        }
        if self.cause == Cause::NOBODY {
            self.sent.was_waited_for(self.took.swap(0, Ordering::Relaxed));
        }
        self.result()
    }

    /// The answer, which is there.
    pub fn result(&self) -> Result<u64> {
        Errno::from_ret(self.value.load(Ordering::Relaxed))
    }

    /// The answer's second value.
    pub fn extra(&self) -> u64 {
        self.extra.load(Ordering::Relaxed)
    }

    /// Takes the host descriptor that came along.
    pub fn take_fd(&self) -> Option<i32> {
        let fd = self.fd.swap(-1, Ordering::Relaxed);
        (fd >= 0).then_some(fd)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let (Some(fd), Some(host)) = (self.take_fd(), platform().host()) {
            host.close(fd);
        }
    }
}

/// Sends a request and waits for its value.
pub fn call(request: Request) -> Result<u64> {
    Call::send(request)?.wait()
}

/// Sends a request that passes a descriptor, and waits. Value, descriptor. ENFILE: the host gives the cell no more of them; then the
/// handle that is the value, if it is one, is let go.
pub fn descriptor_of(request: Request, is_handle: bool) -> Result<(u64, i32)> {
    let call = Call::send(request)?;
    let value = call.wait()?;
    let fd = call.take_fd().ok_or(Errno::ENFILE);
    if fd.is_err() && is_handle {
        let mut release = Request::new(Op::Release);
        release.arg[0] = value;
        // Nobody waits for it.
        let _ = Call::send(release);
    }
    fd.map(|fd| (value, fd))
}

/// Has it been said that there are no more descriptors?
static NONE_LEFT: AtomicBool = AtomicBool::new(false);

/// An answer has come.
pub(crate) fn answered(answer: &Answer) {
    assert_accounted("an answer");
    // SAFETY: the cookie is the count that `send` gave away; the platform reports each answer once.
    let call = unsafe { Arc::from_raw(answer.cookie as *const Call) };
    if answer.flags & ANSWER_FD != 0 {
        match platform().take_descriptor() {
            Ok(fd) => call.fd.store(fd, Ordering::Relaxed),
            // It could be said for each, of which there may be many.
            Err(_) if NONE_LEFT.swap(true, Ordering::Relaxed) => {}
            Err(_) => platform().log(
                "the host gives the cell's programs no more descriptors: start it with a larger hard limit (ulimit -Hn)",
            ),
        }
    }
    call.took.store(call.sent.is_over(call.cause), Ordering::Relaxed);
    books::tell(call.cause, || {
        call.value.store(answer.value, Ordering::Relaxed);
        call.extra.store(answer.extra, Ordering::Relaxed);
        call.done.store(true, Ordering::Release);
        call.waiters.wake_all(1);
    });
    if let Some((activity, then)) = &call.then {
        books::serve(activity, Resource::Completion, || then(&call));
    }
}
