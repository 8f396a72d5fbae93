//! How much memory a cell has: granted and taken away while it runs.
//!
//! It is one file, of which the cell has the first so many bytes. To grant more is to make it longer, and to take some away is to cut it
//! off (architecture section 5): at once, in all mappings of the cell, whatever the cell does. It is always the end that goes. A file
//! for each part that could go would cost each process of the cell a mapping of the host's for each, and a cell has nothing of it: what
//! it has is the same wherever it lies, and it moves what it needs out of the way. What was cut off is the host's again, which clears it
//! before anybody sees it.
#![allow(unsafe_code, reason = "looks at the control area")]

use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_abi::control::Control;
use atoll_abi::layout::{BLOCK, Sizes, mixed_blocks};

use crate::memory::{self, Mapping};
use crate::{Error, Result, ahead};

/// A cell's memory.
pub struct Extents {
    pub(crate) control: Arc<Mapping>,
    /// What of it is there.
    pub(crate) memory: Arc<Mapping>,
    pub(crate) file: File,
    /// What it began with: the most and the least stay so.
    pub(crate) sizes: Sizes,
    /// The most cores of the cell.
    pub(crate) cores: u64,
    /// Its pages are huge. Small ones are cleared in no time.
    pub(crate) is_huge: bool,
    /// A thread has memory ready ahead of need.
    pub(crate) ahead: Mutex<bool>,
}

impl Extents {
    /// The control area.
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the mapping holds one, of atomics only.
        unsafe { &*self.control.base().cast::<Control>() }
    }

    /// How much the cell has.
    pub fn sizes(&self) -> Sizes {
        Sizes { now: self.memory.there(), ..self.sizes }
    }

    /// How much of that the host has given, bytes.
    pub fn used(&self) -> u64 {
        memory::used(&self.file)
    }

    /// Blocks from the first on that it may take for anything, and where those begin that it takes most of.
    pub(crate) fn zones(&self) -> (u64, u64) {
        let fixed = self.sizes.least / BLOCK;
        (mixed_blocks(self.sizes.most, self.cores).min(fixed).min(self.sizes.now / BLOCK), fixed)
    }

    /// The cell has `bytes` from now on, a multiple of 2 MiB between the least and the most. For one at a time.
    pub(crate) fn set(self: &Arc<Self>, bytes: u64) -> Result<()> {
        let (now, said) = (self.memory.there(), &self.control().descriptor.memory);
        if bytes < now {
            // It maps no more of what goes.
            said.store(bytes, Ordering::SeqCst);
        }
        self.memory
            .resize(&self.file, bytes)
            .map_err(|e| Error::with("changing the length of the cell's memory", e))?;
        if bytes > now {
            said.store(bytes, Ordering::SeqCst);
            self.make_ready();
        }
        Ok(())
    }

    pub(crate) fn is_ahead(&self) -> MutexGuard<'_, bool> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has memory ready for the cell, from now on.
    pub(crate) fn make_ready(self: &Arc<Self>) {
        if self.is_huge && !std::mem::replace(&mut *self.is_ahead(), true) {
            ahead::start(self.clone());
        }
    }
}
