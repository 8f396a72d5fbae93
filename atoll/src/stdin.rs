//! Standard input for a machine of its own: `atoll_abi::nucleus::input`, this side.
#![allow(unsafe_code, reason = "reads standard input past Rust's buffer, and waits for two descriptors")]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use atoll_abi::nucleus::input::{ANSWERED, ASK, MOST};

const STDIN: i32 = 0;

/// Gives the cell at the other end of `port` what it asks for, in a thread, until that end is closed. Nothing is
/// read before it is wanted: who reads nothing leaves standard input to others.
pub fn serve(port: UnixStream) {
    std::thread::spawn(move || {
        // The machine has ended: nobody wants anything any more.
        let _ = pass(port);
    });
}

fn pass(mut port: UnixStream) -> std::io::Result<()> {
    // How many bytes are wanted.
    let mut wanted = 0u32;
    let mut buffer = vec![0; MOST as usize];
    loop {
        let (asked, ready) = wait(&port, wanted > 0, -1)?;
        if ready {
            give(&mut port, &mut wanted, &mut buffer)?;
        } else if asked {
            let mut word = [0; 4];
            port.read_exact(&mut word)?;
            match u32::from_le_bytes(word) {
                ASK => {
                    if wanted > 0 && wait(&port, true, 0)?.1 {
                        give(&mut port, &mut wanted, &mut buffer)?;
                    }
                    port.write_all(&ANSWERED.to_le_bytes())?;
                }
                n => wanted = n.min(MOST),
            }
        }
    }
}

/// Reads once, and sends what came of it.
fn give(port: &mut UnixStream, wanted: &mut u32, buffer: &mut [u8]) -> std::io::Result<()> {
    let room = &mut buffer[..*wanted as usize];
    // SAFETY: so many bytes are there.
    let n = unsafe { libc::read(STDIN, room.as_mut_ptr().cast(), room.len()) };
    if n < 0 {
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        // Somebody else who has it was faster, or a signal came.
        if error == libc::EAGAIN || error == libc::EINTR {
            return Ok(());
        }
        *wanted = 0;
        return port.write_all(&(-error).to_le_bytes());
    }
    *wanted = 0;
    port.write_all(&(n as i32).to_le_bytes())?;
    port.write_all(&room[..n as usize])
}

/// Waits until the cell has something to say or, if `reading`, there is something to read; which of them.
fn wait(port: &UnixStream, reading: bool, timeout: i32) -> std::io::Result<(bool, bool)> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [entry(port.as_raw_fd()), entry(if reading { STDIN } else { -1 })];
    // SAFETY: two entries.
    while unsafe { libc::poll(both.as_mut_ptr(), 2, timeout) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok((both[0].revents != 0, both[1].revents != 0))
}
