//! What a cell and the nucleus have agreed on (architecture section 3, on a machine without Linux).
//!
//! A call is a `syscall` instruction in the runtime's own code: its number in rax, arguments in rdi,
//! rsi, rdx and r10, the result in rax (a negative Linux error number, or a value). rcx, r11, and all
//! other registers that a function may change are lost. A `syscall` anywhere else is the program's:
//! the nucleus passes it up (`call_entry` of [`call::UPCALLS`]) with all registers as they are, but
//! for rcx and r11, which a system call changes anyway.
//!
//! Everything else that happens to ring 3 — an exception, an interrupt that is not masked — is an
//! upcall: the registers are put into the core's `trap` ([`crate::control::CoreArea`], in the form of
//! [`SigContext`](crate::frame::SigContext)), the core's mask is set, and the core goes on at `upcall_entry`
//! on its [trap stack](crate::layout::TRAP_STACK), with the address of its `CoreLocal` in rdi and of its trap in rsi.
//! GS is as the program left it. The trap's `trap` field is the processor's vector, or one of those in [`vector`].

use crate::errno::Errno;

/// Numbers of the calls.
pub mod call {
    /// `end(status)`: ends the cell on all its cores. `status` is a wait status (`waitpid(2)`).
    pub const END: u64 = 0;
    /// `log(text, length)`: a line to the machine's console, behind the cell's name.
    pub const LOG: u64 = 1;
    /// `upcalls(upcall_entry, call_entry, critical_start, critical_end)`: where this core's upcalls go. In
    /// `[critical_start, critical_end)` the mask is set, but a resume is under way: an event is not left pending.
    pub const UPCALLS: u64 = 2;
    /// `arm(deadline)`: an event on this core at `deadline` (ns on the machine's clock); `u64::MAX`: none.
    pub const ARM: u64 = 3;
    /// `park(deadline)`: sleeps until this core is notified, or the deadline.
    pub const PARK: u64 = 4;
    /// `notify(core)`: sets a core's pending bit; wakes it, or interrupts it if it is not masked.
    pub const NOTIFY: u64 = 5;
    /// `space_create()`: makes an empty space; its number. EAGAIN: too many, ENOMEM: no memory for page tables.
    pub const SPACE_CREATE: u64 = 6;
    /// `space_destroy(space)`: EBUSY while a core is in it.
    pub const SPACE_DESTROY: u64 = 7;
    /// `space_switch(space)`: this core is in another space from here on.
    pub const SPACE_SWITCH: u64 = 8;
    /// `map(address, length, access, offset)`: shows the cell's memory from `offset` on, in the current space, in
    /// place of what was there. ENOMEM: no memory for page tables ([`TABLES_GIVE`]), the range is as far as it got.
    /// Other cores may remember what was there before until [`SETTLED`], if the core's word for that is not 0 afterwards.
    /// EINVAL: not the programs' part of the space, or not all the cell's own memory.
    pub const MAP: u64 = 9;
    /// `unmap(address, length)`.
    pub const UNMAP: u64 = 10;
    /// `protect(address, length, access)`: of what is mapped; the rest stays as it is.
    pub const PROTECT: u64 = 11;
    /// `console(stream, text, length)`: bytes of standard output (1) or standard error (2) as they are. Value: how many
    /// were taken; never waits for long. ENODEV: the cell has not been given the console.
    pub const CONSOLE: u64 = 12;
    /// `changes(list, n)`: makes up to [`CHANGES_MAX`](super::CHANGES_MAX) changes of the current space, in the list's
    /// order; other cores are asked only once to forget what was there. Value: how many were made; an error is the
    /// first one's.
    pub const CHANGES: u64 = 13;
    /// `tables_give(offset)`: the block of 2 MiB of the cell's memory at `offset` is for page tables from here on, out of
    /// reach of ring 3. EBUSY: a program maps something of it, in whatever space.
    pub const TABLES_GIVE: u64 = 14;
    /// `tables_back()`: takes a block back in which there is no page table now; its offset. What is in it is
    /// undefined. ENOENT: there is none.
    pub const TABLES_BACK: u64 = 15;
    /// `send(peer, line)`: puts the [line](crate::mailbox::Line) at an address that is a multiple of its size into a
    /// peer's inbox, and rings its bell. `peer` is a number in the descriptor's list. EAGAIN: the inbox is full, EPERM:
    /// the boot configuration doesn't allow it, EPIPE: that cell has ended.
    pub const SEND: u64 = 16;
    /// `settled(change)`: has every core forgotten what a [change](crate::control::CoreArea::to_settle) took away?
    /// [`NOT_YET`](super::NOT_YET): no.
    pub const SETTLED: u64 = 17;
    /// `page_bits(address, length, bit, to)`: reads a [bit](super::bit) of all pages of a range of the current space and clears it, where
    /// pages of 2 MiB are made small ones. A bit a page is set where that was, in words of 16 bits at `to`, one for each aligned
    /// 64 KiB that the range has a part of; others stay as they are. Other cores may use pages that they have used before unseen
    /// until [`SETTLED`], as by [`MAP`]. ENOMEM: no memory for page tables, it is done as far as it got. EINVAL: not the programs' part, or
    /// more than [`BITS_MAX`](super::BITS_MAX) pages. EFAULT: there is no place for the words.
    pub const PAGE_BITS: u64 = 18;
    /// `forget(address, length)`: cores walk the page tables anew for a range of the current space, when it is [`SETTLED`].
    pub const FORGET: u64 = 19;
}

/// What of [`call::PAGE_BITS`] is asked for.
pub mod bit {
    /// The page was used.
    pub const ACCESSED: u64 = 0;
    /// It was written to.
    pub const DIRTY: u64 = 1;
}

/// The most pages of one [`call::PAGE_BITS`]: 32 MiB.
pub const BITS_MAX: u64 = 8_192;

/// Any call that changes mappings, spaces or page tables, or sends, may answer this when another core of the cell is in the middle of
/// one and does not come to its end, as if its processor stood still: nothing has been done, and it is to be made again later.
pub const NOT_YET: Errno = Errno::EINPROGRESS;

/// The most changes of one [`call::CHANGES`].
pub const CHANGES_MAX: u64 = 32;

/// Values of [`MapChange::kind`].
pub mod change {
    /// Shows memory.
    pub const MAP: u32 = 0;
    /// Shows nothing.
    pub const UNMAP: u32 = 1;
    /// Leaves what is there, with another access.
    pub const PROTECT: u32 = 2;
}

/// One change of mappings.
#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
pub struct MapChange {
    /// Which one ([`change`]).
    pub kind: u32,
    /// [`Access`](crate::platform::Access).
    pub access: u32,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Offset of what is shown in the cell's memory.
    pub offset: u64,
}

/// Values of a trap's `trap` field beyond the processor's own.
pub mod vector {
    /// Pending bits are set.
    pub const EVENT: u64 = 256;
    /// A system call of a program that has changed the GS base.
    pub const CALL: u64 = 257;
}

/// What passes by a cell's first console device of virtio, if it was granted one: requests that are served outside the
/// machine, by who started it. Whatever they name goes along, for nobody outside sees the cell's memory.
///
/// The cell sends [requests](crate::service::Request) with a cookie of its own choice that is not 0, each followed by
/// what the server reads of its buffers ([`given`](crate::service::Request::given)); the offsets mean nothing. It is sent
/// [answers](crate::service::Answer), each followed by what the server filled
/// ([`filled`](crate::service::Request::filled)), in any order. What comes with the cookie [`SIGNALS`](outside::SIGNALS)
/// or [`TAKEN`](outside::TAKEN) is no answer. No descriptors come this way.
pub mod outside {
    /// The value's bits are signals, as in the [mailbox](crate::control::Mailbox).
    pub const SIGNALS: u64 = 0;
    /// The value is how many more bytes of the cell's have been taken; said when they are a quarter of [`WINDOW`] at the latest.
    pub const TAKEN: u64 = u64::MAX;
    /// From outside: the grid's books are asked for. From the cell, in answer: a request with this cookie, behind whose head come
    /// `a.len` bytes: an image of the books, see [`Books`].
    pub const BOOKS: u64 = u64::MAX - 1;
    /// At the start of an image of the books: where in it what lies, aligned as in the cell. Offsets in the area that would be
    /// of the cell's memory are of the image.
    #[derive(
        Clone,
        Copy,
        Debug,
        zerocopy::FromBytes,
        zerocopy::IntoBytes,
        zerocopy::Immutable,
        zerocopy::KnownLayout,
    )]
    #[repr(C)]
    pub struct Books {
        /// The time of the image, by the clock that the books are kept by, ns.
        pub clock: u64,
        /// The cell's cores.
        pub cores: u64,
        /// Its [`GridArea`](crate::grid::GridArea).
        pub area: u64,
        /// A [`CoreLocal`](crate::core_local::CoreLocal) for each core, of which the grid's words are there and the rest is 0.
        pub locals: u64,
        /// How long all of its cores together have slept by then, as the nucleus has counted, ns.
        pub slept: u64,
    }
    /// From outside: another configuration of the grid is offered. The value is the offer's number, and `extra` bytes come
    /// behind it: a `GridConfig`, encoded.
    pub const OFFER: u64 = u64::MAX - 2;
    /// From outside: known work is asked for. The value is the request's number, and `extra` how many times as long as else it
    /// is to be.
    pub const BURN: u64 = u64::MAX - 3;
    /// From outside: what has come of offers and known work is asked for, of the latter with its results if the value is not 0.
    /// From the cell, in answer: a request with this cookie, behind whose head come `a.len` bytes: a [`Said`], and the results.
    pub const SAID: u64 = u64::MAX - 4;
    /// From outside: something is asked for as in the cell's [`Report`](crate::report::Report). The value is the question's number,
    /// shifted left by 32, and [what](crate::report::what) is asked for; `extra` is the value that goes with that.
    pub const REPORT: u64 = u64::MAX - 5;
    /// From outside: what has come of the question of this number, of the answer what is behind its first `extra` bytes. From the
    /// cell, in answer: a request with this cookie, behind whose head come `a.len` bytes: a [`Reported`], and as many of those
    /// as the cell sends at once.
    pub const REPORTED: u64 = u64::MAX - 6;
    /// At the start of what the cell says of a question.
    #[derive(
        Clone,
        Copy,
        Debug,
        zerocopy::FromBytes,
        zerocopy::IntoBytes,
        zerocopy::Immutable,
        zerocopy::KnownLayout,
    )]
    #[repr(C)]
    pub struct Reported {
        /// The last question that is answered.
        pub over: u32,
        /// How many cores the cell uses now.
        pub online: u32,
        /// Length of the whole answer, bytes; 0: there was no memory for it.
        pub len: u64,
        /// From which byte of it on comes what is behind this.
        pub from: u64,
    }
    /// What has come of offers and known work: words of the cell's [`GridArea`](crate::grid::GridArea).
    #[derive(
        Clone,
        Copy,
        Debug,
        zerocopy::FromBytes,
        zerocopy::IntoBytes,
        zerocopy::Immutable,
        zerocopy::KnownLayout,
    )]
    #[repr(C)]
    pub struct Said {
        /// The last offer that was looked at.
        pub answered: u32,
        /// 1: it was taken.
        pub taken: u32,
        /// The known work that is over.
        pub burns_over: u32,
        /// Length of its results.
        pub burnt_len: u32,
        /// Why the offer was not taken, with NULs behind it.
        pub reason: [u8; crate::grid::REASON_MAX],
    }
    /// The most bytes that the cell has sent and that were not said to be taken: a console may drop what it can't pass
    /// on at once (QEMU's does), so there has to be room for so many on the way.
    pub const WINDOW: usize = 64 << 10;
    /// The most requests that the cell has under way.
    pub const UNDER_WAY: usize = 128;
    /// The most bytes of both buffers of a request.
    pub const BUFFERS_MAX: u64 = 2 << 20;
    /// The first handle that is given there: those below are others'.
    pub const FIRST_HANDLE: u64 = 1 << 32;
}

/// Word of a trap (a reserved one of the `SigContext`) that the nucleus sets with an upcall, and
/// the runtime clears when it has taken the registers: an exception in between ends the cell.
pub const TRAP_BUSY: usize = 24;

/// Selector of ring 3's code: the same as Linux's.
pub const USER_CS: u64 = 0x33;
