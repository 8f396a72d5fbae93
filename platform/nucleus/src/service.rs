//! The messages that serving threads answer on a host, answered in place, as far as there is nobody else. Those for
//! which a device has to be waited for go to `devices`, and by one of those outside, if somebody is there.

use core::sync::atomic::Ordering;

use crate::calls::{self, LINE_MAX};
use crate::control;
use crate::devices::devices;
use crate::net::{Net, start};
use atoll_abi::core_local::core_local;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::nucleus::call;
use atoll_abi::service::{ANSWER_FD, Answer, Extent, Op, RING, Request};

/// Takes a request; its answer is there at once.
pub(crate) fn submit(request: &Request) -> Result<()> {
    let outstanding = || control().cores[core_local().id()].outstanding.load(Ordering::Relaxed) as usize;
    // Half of the ring is for those who come from other cores, below.
    if outstanding() >= RING / 2 {
        return Err(Errno::EAGAIN);
    }
    if let Some(devices) = devices().filter(|d| d.takes(request)) {
        devices.submit(request);
        return Ok(());
    }
    let (value, fd) = match serve(request) {
        Ok((value, fd)) => (value as i64, fd),
        Err(e) => (e.to_ret(), None),
    };
    // Only here: to serve it may have taken the thread to another core.
    let area = &control().cores[core_local().id()];
    let flags = if fd.is_some() { ANSWER_FD } else { 0 };
    if let Some(fd) = fd {
        Net::announce(fd);
    }
    let answer = Answer { cookie: request.cookie, value, extra: 0, flags };
    // This core alone pushes and pops.
    assert!(area.answers.push(&answer), "no room for an answer");
    area.outstanding.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Value, and a descriptor that comes with it.
fn serve(request: &Request) -> Result<(u64, Option<i32>)> {
    match Op::from_number(request.op) {
        Some(Op::Nop) => Ok((request.arg[0], None)),
        Some(Op::StreamWrite) => console(request.arg[0], request.a).map(|n| (n, None)),
        // Without a port, its end.
        Some(Op::StreamRead) => Ok((0, None)),
        Some(Op::DiskRead) => Err(Errno::ENODEV),
        Some(op @ (Op::Socket | Op::Bind | Op::Connect | Op::Listen | Op::Release)) => {
            start().serve(op, request)
        }
        Some(Op::StreamControl) => Err(Errno::ENOTTY),
        Some(Op::StreamSeek) => Err(Errno::ESPIPE),
        _ => Err(Errno::ENOSYS),
    }
}

/// Writes to standard output or standard error. What the console doesn't take now is the caller's to write again.
fn console(stream: u64, text: Extent) -> Result<u64> {
    let mut done = 0;
    while done < text.len {
        let n = (text.len - done).min(LINE_MAX as u64);
        let taken = match calls::call(call::CONSOLE, [stream, DIRECT_MAP + text.offset + done, n, 0]) {
            Err(Errno::ENODEV) => lines(DIRECT_MAP + text.offset + done, n),
            taken => taken?,
        };
        done += taken;
        if taken == 0 && done > 0 {
            break;
        }
    }
    Ok(done)
}

/// Writes to the log, line by line, what has no console to go to. Value: all of it.
#[allow(unsafe_code, reason = "reads the requester's buffer")]
fn lines(text: u64, len: u64) -> u64 {
    // SAFETY: the requester's buffer, in the cell's memory, until it is answered.
    let bytes = unsafe { core::slice::from_raw_parts(text as *const u8, len as usize) };
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        // What the log doesn't take is lost, as with every log.
        let _ = calls::call(call::LOG, [line.as_ptr() as u64, line.len() as u64, 0, 0]);
    }
    len
}
