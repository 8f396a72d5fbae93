//! A thread that is traced (ptrace(2)).
#![allow(unsafe_code, reason = "traces a thread")]

use crate::Failed;

/// A traced thread. Whoever traces it is the only one who asks anything of it.
pub struct Tracee(pub i32);

impl Tracee {
    /// Asks for something.
    pub fn request(&self, what: u32, address: usize, data: usize) -> Result<(), Failed> {
        // SAFETY: the requests used here read or write what `data` points to, which is valid, or nothing.
        let r = unsafe { libc::ptrace(what, self.0, address, data) };
        if r < 0 {
            return Err(format!("ptrace {what:#x}: {}", std::io::Error::last_os_error()).into());
        }
        Ok(())
    }

    /// Waits until it stops; the signal that it stopped by, None if it has ended.
    pub fn wait(&self) -> Result<Option<i32>, Failed> {
        let mut status = 0;
        // SAFETY: a thread that is traced by this one.
        if unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) } != self.0 {
            return Err(format!("waiting: {}", std::io::Error::last_os_error()).into());
        }
        Ok(libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status)))
    }

    /// Stops it, wherever it is. A signal that comes first is passed on. It is traced only as long as it stands still: else each
    /// signal would stop it.
    pub fn freeze(&self) -> Result<(), Failed> {
        self.request(libc::PTRACE_SEIZE, 0, 0)?;
        loop {
            // A stop for a signal stands for this one, too, so it is asked for again.
            self.request(libc::PTRACE_INTERRUPT, 0, 0)?;
            match self.wait()?.ok_or("the thread has ended")? {
                libc::SIGTRAP => return Ok(()),
                signal => self.request(libc::PTRACE_CONT, 0, signal as usize)?,
            }
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<(), Failed> {
        self.request(libc::PTRACE_DETACH, 0, 0)
    }
}
