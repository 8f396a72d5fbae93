//! Splits a machine among cells: reads a boot configuration, and gives each cell that it names cores
//! and memory of its own.
//!
//! Every core and every block of memory belongs to exactly one cell or to the supervisor's share
//! (RF-01). This crate only decides; it touches no hardware, has no heap, and is tested on any
//! machine. The nucleus makes true what it says.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod config;
mod nodes;
mod split;

pub use config::{Config, ConfigError, Request, Restart, parse, peers};
pub use nodes::{Nodes, RANGES_MAX};
pub use split::{Cell, Extent, SplitError, Table, disjoint, split, without};

/// Grain of memory, bytes: a huge page.
pub const BLOCK: u64 = 2 << 20;
/// The most cells.
pub const CELLS_MAX: usize = 32;
/// The most cores of a machine.
pub const CORES_MAX: usize = 64;
/// The most pieces of memory that a cell is given.
pub const EXTENTS_MAX: usize = 8;
/// The most pieces of memory that a machine has, or that are left.
pub const REGIONS_MAX: usize = 128;
