//! Files and names of a cell.
//!
//! [`node`] says what a file system is to the rest of the runtime: inodes
//! with names under them, and files that can be read, written and waited for.
//! [`namespace`] puts file systems together into one tree and walks paths.
//! The file systems: [`tmp`] in the cell's memory, which [`archive`] fills from
//! a cpio archive and [`ext4`] from a [`disk`], [`host`] for directories
//! of the host behind service messages, with a cache whose pages [`chunks`]
//! keeps. Files that have no name: [`pipe`], [`stream`] (the standard streams)
//! and [`device`]. [`inotify`] tells those who watch what happens to files.
//! Nothing here knows a system call.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod archive;
pub mod chunks;
pub mod device;
pub mod disk;
pub mod errors;
pub mod ext4;
pub mod host;
pub mod inotify;
pub mod namespace;
pub mod node;
pub mod open;
mod paths;
pub mod pipe;
pub mod stream;
pub mod tmp;
pub mod types;

pub use atoll_mem::io::{Sink, Source};
pub use namespace::{Location, Mount, Namespace};
pub use node::{File, FileSystem, Inode, InodeRef, NewNode};
pub use open::OpenFile;
pub use types::{Attr, Cred, DirEntry, FileType, NewMode, SetAttr, StatFs, Time, poll};
