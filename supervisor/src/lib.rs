//! Starts cells on a Linux host, confines them, and serves them.
//!
//! [`image`] prepares the runtime's ELF file for mapping; [`memory`] makes
//! the files behind a cell's memory, whose length [`extents`] changes, and [`growth`] when the cell asks; [`launch`] forks the cell's first
//! process, which [`confine`]s itself and jumps into the runtime; [`serve`]
//! answers the cell's requests from threads of this process. [`registry`] has
//! a socket for each live cell, by which others [`inspect`] it and read its
//! [`books`]. [`placement`] keeps cells' cores apart from each other. [`pack`] makes root file systems for machines without Linux,
//! [`remote`] serves cells there, and [`symbols`] names what a crash of the runtime
//! was in. Nothing that comes out of a cell is believed: requests are copied, then
//! checked.

mod ahead;
pub mod books;
pub mod confine;
pub mod cores;
pub mod counter;
pub mod extents;
pub mod filter;
pub mod growth;
pub mod image;
pub mod inspect;
pub mod jobs;
pub mod launch;
mod leases;
pub mod memory;
pub mod neighbours;
pub mod pack;
pub mod placement;
pub mod plan;
pub mod registry;
pub mod remote;
pub mod serve;
pub mod sockets;
pub mod symbols;
pub mod vdso;
mod watch;

use std::fmt;
use std::io::Write;

/// Prints a line on standard error by one write, so that no line of a program that writes there too comes between.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => { $crate::say_line(format_args!($($arg)*)) };
}

/// What [`say!`] does. Like `eprintln!`, but with a standard error that can't be written to nothing is said.
pub fn say_line(line: fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// What a cell says, as text that does nothing to a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Why a cell could not be started or served.
#[derive(Debug)]
pub struct Error {
    what: String,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that says what was being done.
    pub fn new(what: impl Into<String>) -> Self {
        Error { what: what.into(), cause: None }
    }

    /// The same, with the error underneath.
    pub fn with(what: impl Into<String>, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error { what: what.into(), cause: Some(Box::new(cause)) }
    }

    /// The last host call's error.
    pub fn host(what: impl Into<String>) -> Self {
        Self::with(what, std::io::Error::last_os_error())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
