//! The messages that serving threads answer on a host, answered in place: there is nobody else.

use core::sync::atomic::Ordering;

use crate::calls::{self, LINE_MAX};
use crate::control;
use atoll_abi::core_local::core_local;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::nucleus::call;
use atoll_abi::service::{Answer, Extent, Op, RING, Request};

/// Takes a request; its answer is there at once.
pub(crate) fn submit(request: &Request) -> Result<()> {
    let area = &control().cores[core_local().id()];
    if area.outstanding.load(Ordering::Relaxed) as usize >= RING {
        return Err(Errno::EAGAIN);
    }
    let value = match serve(request) {
        Ok(value) => value as i64,
        Err(e) => -i64::from(e.0),
    };
    let answer = Answer { cookie: request.cookie, value, extra: 0, flags: 0 };
    // There is room: no more than that are under way, and this core alone pushes and pops.
    area.answers.push(&answer);
    area.outstanding.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn serve(request: &Request) -> Result<u64> {
    match Op::from_number(request.op) {
        Some(Op::Nop) => Ok(0),
        Some(Op::StreamWrite) => console(request.arg[0], request.a),
        // Its end.
        Some(Op::StreamRead) => Ok(0),
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
        let taken = calls::call(call::CONSOLE, [stream, DIRECT_MAP + text.offset + done, n, 0])?;
        done += taken;
        if taken == 0 && done > 0 {
            break;
        }
    }
    Ok(done)
}
