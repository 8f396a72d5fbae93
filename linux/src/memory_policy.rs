//! How memory is brought in for which programs and mappings, as a file says it (docs/memory.md).
//!
//! Which part of the file is a process's is decided at exec and kept as a number; what mmap makes is looked up there. Without a file
//! that number is 0, and all of this is one look at it.

use alloc::string::String;
use core::sync::atomic::Ordering;

use atoll_abi::control::{MappingKind, MappingPolicy, MemoryPolicy, Paging, ProgramPolicy};
use atoll_abi::platform::platform;
use atoll_fs::OpenFile;
use atoll_grid::matches::is_program;
use atoll_mem::colours::Colours;

use crate::process::{Process, world};

/// Programs and mappings that a policy names at most.
const RULES_MAX: usize = 4096;

/// Can it be followed? Err: why not.
pub fn check(policy: &MemoryPolicy) -> core::result::Result<(), String> {
    let rules: usize = policy.programs.iter().map(|p| 1 + p.mappings.len()).sum();
    let mut mappings = policy.programs.iter().flat_map(|p| &p.mappings);
    let can_be = |m: &MappingPolicy| {
        m.least <= m.most && m.colours.is_none_or(|(count, wanted)| Colours::new(count, wanted).is_ok())
    };
    if rules > RULES_MAX || !mappings.all(can_be) {
        return Err("it says too much, or of sizes or colours that can't be".into());
    }
    Ok(())
}

/// Is something said of colours that this platform can't follow, because it tells of no frames?
pub fn is_without_colours(policy: &MemoryPolicy) -> bool {
    let said = policy.programs.iter().flat_map(|p| &p.mappings).any(|m| m.colours.is_some());
    said && platform().frame_of(0).is_none()
}

/// The process runs another program from now on. What is said of that program, if something is.
pub fn starts(process: &Process, exe: &[u8]) -> Option<&'static ProgramPolicy> {
    let programs = &world().memory_policy.programs;
    let found = programs.iter().position(|p| is_program(p.path.as_bytes(), exe));
    process.memory_policy.store(found.map_or(0, |n| n as u32 + 1), Ordering::Relaxed);
    programs.get(found?)
}

/// What is said of a process's program, if something is.
pub fn of(process: &Process) -> Option<&'static ProgramPolicy> {
    let number = (process.memory_policy.load(Ordering::Relaxed) as usize).checked_sub(1)?;
    world().memory_policy.programs.get(number)
}

/// How a program's heap or first stack is brought in, if that is said.
pub fn of_kind(program: Option<&ProgramPolicy>, kind: MappingKind) -> Option<Paging> {
    program?.mappings.iter().find(|m| m.kind == kind)?.paging
}

/// What is said of a private mapping of `len` bytes that a process makes, of a file or of none, if something is.
pub fn of_mapping(process: &Process, file: Option<&OpenFile>, len: u64) -> Option<&'static MappingPolicy> {
    let fits = |m: &&MappingPolicy| {
        (m.least..=m.most).contains(&len)
            && match (m.kind, file) {
                (MappingKind::Anonymous, None) => true,
                (MappingKind::File, Some(file)) => {
                    m.path.as_ref().is_none_or(|path| is_program(path.as_bytes(), &file.describe()))
                }
                _ => false,
            }
    };
    of(process)?.mappings.iter().find(fits)
}

/// The colours of frames that a mapping's pages are to be in, if that is said and the platform tells of frames.
pub fn colours(said: &MappingPolicy) -> Option<Colours> {
    let (count, wanted) = said.colours?;
    platform().frame_of(0)?;
    // Checked when the cell began.
    Colours::new(count, wanted).ok()
}
