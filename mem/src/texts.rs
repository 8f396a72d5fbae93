//! Rewritten code of files, as several processes show it.
//!
//! To rewrite the system-call sites of a library takes a copy of its code, and
//! some hundred microseconds. What comes of it depends on nothing but how far the
//! trampolines lie from the code. So the first process that maps a file in this
//! way leaves its chunks here, with those of the trampolines, and others show the
//! same ones at the same distance, at whatever addresses, as long as pages lie
//! alike in their slots. Nobody can write to them: who tries gets a copy
//! ([`crate::sharers`]).

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use atoll_sync::Mutex;

use crate::heap::memory;
use crate::vm::{Window, leave_chunk};

/// Texts of one file that are kept at most: an executable has one stretch of code as a rule.
const KEPT: usize = 4;

/// What a text is of, and how it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Where in its slot the first byte lies.
    pub phase: u64,
}

/// A slot of a text.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Address of the slot, from the one on that the text begins in. Trampolines may lie before it.
    pub at: i64,
    /// Offset of its chunk in the cell's memory.
    pub offset: u64,
    /// Pages that are filled, a bit each.
    pub pages: u16,
}

/// The text of a file from one offset to another, rewritten.
pub struct Text {
    shape: Shape,
    /// Address of the trampolines, from the text's first byte on.
    trampolines: i64,
    /// Bytes of the trampolines' area.
    room: u64,
    /// Windows in order, and so their trampolines; addresses count from the text's first byte on.
    windows: Box<[(u64, Window)]>,
    /// Each is owned once from here. None: given up.
    pieces: Mutex<Option<Arc<[Piece]>>>,
}

/// All that there are.
static ALL: Mutex<Vec<Weak<Text>>> = Mutex::new(Vec::new());

impl Text {
    /// What a space has rewritten, and whose chunks it has added an owner to each of; windows by their addresses in it.
    /// `start`: the text's first byte there.
    pub(crate) fn new(
        shape: Shape,
        start: u64,
        (trampolines, room): (u64, u64),
        windows: impl Iterator<Item = (u64, Window)>,
        pieces: Arc<[Piece]>,
    ) -> Arc<Text> {
        let from_start = |addr: u64| addr.wrapping_sub(start);
        let windows = windows
            .map(|(at, w)| (from_start(at), Window { trampoline: from_start(w.trampoline), ..w }))
            .collect();
        let trampolines = from_start(trampolines) as i64;
        let text = Arc::new(Text { shape, trampolines, room, windows, pieces: Mutex::new(Some(pieces)) });
        let mut all = ALL.lock();
        all.retain(|text| text.strong_count() > 0);
        all.push(Arc::downgrade(&text));
        text
    }

    /// Where the trampolines go for a text at `start`: address and length, bytes. None: out of the address space.
    pub(crate) fn trampolines(&self, start: u64) -> Option<(u64, u64)> {
        Some((start.checked_add_signed(self.trampolines)?, self.room))
    }

    /// Its slots, with an owner more of each, which is the caller. None: it was given up.
    pub(crate) fn share(&self) -> Option<Arc<[Piece]>> {
        let pieces = self.pieces.lock();
        let pieces = pieces.as_ref()?;
        pieces.iter().for_each(|piece| memory().sharers().add(piece.offset));
        Some(pieces.clone())
    }

    /// How many windows it has.
    pub(crate) fn len(&self) -> usize {
        self.windows.len()
    }

    /// The last window that begins at `addr` or before, in a text at `start`.
    pub(crate) fn window_before(&self, start: u64, addr: u64) -> Option<(u64, Window)> {
        let n = self.windows.partition_point(|(at, _)| start + at <= addr);
        Some(placed(start, self.windows.get(n.checked_sub(1)?)?))
    }

    /// The last window whose trampoline begins at `addr` or before, in a text at `start`.
    pub(crate) fn trampoline_before(&self, start: u64, addr: u64) -> Option<(u64, Window)> {
        let n = self.windows.partition_point(|w| placed(start, w).1.trampoline <= addr);
        Some(placed(start, self.windows.get(n.checked_sub(1)?)?))
    }

    fn lies_behind(&self, from: u64) -> bool {
        let pieces = self.pieces.lock();
        pieces.as_ref().is_some_and(|pieces| pieces.iter().any(|piece| piece.offset >= from))
    }

    /// Gives its chunks up: nobody comes to share them any more. Value: how many.
    fn give_up(&self) -> usize {
        let pieces = self.pieces.lock().take();
        let pieces = pieces.as_deref().unwrap_or_default();
        pieces.iter().for_each(|piece| leave_chunk(piece.offset));
        pieces.len()
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A window of a text that begins at `start`.
fn placed(start: u64, (at, w): &(u64, Window)) -> (u64, Window) {
    (start + at, Window { trampoline: start.wrapping_add(w.trampoline), ..*w })
}

/// Gives up all texts that have chunks at `from` of the cell's memory or behind it. Value: chunks, each of which is free when
/// the last process that shows it has gone.
pub fn give_up(from: u64) -> usize {
    // They may be dropped here, which takes no lock of the list.
    let all: Vec<Arc<Text>> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    all.iter().filter(|text| text.lies_behind(from)).map(|text| text.give_up()).sum()
}

/// The texts of a file whose contents don't change any more.
#[derive(Default)]
pub struct Texts(Mutex<Vec<Arc<Text>>>);

impl Texts {
    /// The text of this shape, if there is one.
    pub(crate) fn find(&self, shape: Shape) -> Option<Arc<Text>> {
        self.0.lock().iter().find(|text| text.shape == shape).cloned()
    }

    /// Keeps a text for others, in place of one that was given up.
    pub(crate) fn keep(&self, text: Arc<Text>) {
        let mut texts = self.0.lock();
        texts.retain(|t| t.shape != text.shape);
        if texts.len() == KEPT {
            texts.remove(0);
        }
        texts.push(text);
    }
}
