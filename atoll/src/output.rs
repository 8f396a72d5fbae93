//! Standard output of commands that print.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use atoll_supervisor::{Error, Result};

use crate::list::fail;

/// Prints. Value: may there still be a reader? Nobody is left to tell if it has gone; a full disk is an error.
pub(crate) fn print(text: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::with("writing to standard output", e)),
    }
}

/// Prints, and that was all.
pub(crate) fn finish(text: &str) -> ExitCode {
    print(text).map_or_else(|e| fail(&e), |_| ExitCode::SUCCESS)
}
