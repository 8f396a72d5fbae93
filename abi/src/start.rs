//! How a cell's first process is started on a host.
//!
//! The supervisor's child maps the runtime and jumps to its ELF entry. What
//! the runtime needs before it can trust anything shared lies in memory of
//! the process's own, at [`START`].

use crate::layout::{HOST_THREAD_SIZE, HOST_THREADS, MAX_CORES};

/// Address of the [`Start`] page.
pub const START: u64 = HOST_THREADS + MAX_CORES as u64 * HOST_THREAD_SIZE;

/// The most instructions of a seccomp filter (Linux's BPF_MAXINSNS).
pub const FILTER_MAX: usize = 4096;

/// Told by the supervisor, in private memory.
#[repr(C)]
pub struct Start {
    /// Cores of the cell.
    pub cores: u32,
    /// Instructions in `filter`; 0: no confinement (tests only).
    pub filter_len: u32,
    /// Where the host's vDSO and its data are mapped: start and length, in order of address.
    pub vdso: [[u64; 2]; 4],
    /// Offsets of the vDSO's functions from the start of `vdso[0]`: clock_gettime, gettimeofday, time.
    pub vdso_functions: [u64; 3],
    /// What each core counts, as `perf_event_open(2)` wants it ([`Count::attributes`](crate::counter::Count::attributes)); zeros: nothing.
    pub counter: [u64; 8],
    /// The highest descriptor that a counter may have: the others are for files and sockets.
    pub counter_most: u32,
    /// CPU of each core, or -1.
    pub cpu: [i32; MAX_CORES],
    /// `struct sock_filter` each.
    pub filter: [u64; FILTER_MAX],
}
