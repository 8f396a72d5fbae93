//! Threads of a cell: what runs on its cores, and what waits.
//!
//! A [`Thread`] has a runtime stack and, if it belongs to a program, a
//! register frame on top of it. Each core has a run queue that only it
//! touches; wake-ups for another core travel through that core's inbox
//! (architecture section 6). Blocking is always a switch to another thread;
//! only a core that has none sleeps, in the platform. Work that comes from
//! outside (answers, readiness, timers with a callback) is done by each
//! core's event thread, so that all of it may take locks.
//!
//! The crate knows nothing of Linux. It calls the platform to arm deadlines,
//! to sleep, to wake cores and to move between spaces.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg_attr(feature = "without-books", allow(dead_code, reason = "nobody writes to the sheets"))]
mod activity;
mod arch;
#[cfg(not(feature = "without-books"))]
pub mod books;
#[cfg(feature = "without-books")]
#[path = "unkept.rs"]
pub mod books;
mod core_state;
mod extended;
mod fair;
#[cfg_attr(feature = "without-books", allow(dead_code, reason = "nobody is told what was used"))]
pub mod gate;
mod load;
mod messages;
mod online;
mod polling;
mod queue;
mod rcu;
mod ready;
mod scheduler;
mod service;
mod thread;
mod timer;
pub mod trace;
mod wait;

pub use activity::{
    Activity, Amounts, CORE_WORDS, Cause, CoreSet, Debtor, Used, class_of, confine, divide, has_core,
    name_of, runtime_on, set_heir, set_of_cores, used,
};
pub use arch::{copy_of, fs_base as thread_pointer, set_fs_base as set_thread_pointer};
pub use core_state::{CoreStats, core_stats, cores, load_averages, set_event_handler};
pub use extended::{capture as capture_extended, detect as detect_extended};
pub use fair::{IDLE as WEIGHT_IDLE, NORMAL as WEIGHT_NORMAL, weight as weight_of};
pub use messages::{Labels, for_whom, send, send_for};
pub use online::{CORE_PATIENCE, cores_online, is_online, online, set_online};
pub use rcu::{barrier, quiesce};
pub use ready::{Policy, ROUND, SLICE};
pub use scheduler::{
    Until, acted, after_answers, ask_to_tidy, boot_core, end_space, ends_soon, exit, give_way, in_space,
    init, look, look_before_sleep, look_if_acted, move_if_need_be, move_to_space, on_deadline, on_notify,
    own_cpu_time, park, park_until, run_core, set_policy, set_tidy, set_work_ahead, start, unpark, visit,
    work_for, yield_now,
};
pub use service::{Call, call, descriptor_of};
pub use thread::{
    Thread, ThreadRef, changed_what_is_stored, current, read_from_storage, spawn, spawn_program,
};
pub use timer::{Hold, Timer, sleep_until};
pub use wait::{Limit, wait, wait_uninterrupted, wait_uninterrupted_until};
