//! Rewriting of system-call sites: the plan that the platform's side makes of
//! an executable, applied when it is mapped.

use alloc::sync::Arc;
use atoll_fs::host::HostFile;
use atoll_mem::vm::Rewriting;

/// The plan for an executable.
pub fn planner(_file: &HostFile) -> Option<Arc<dyn Rewriting>> {
    None
}
