//! A program's own pager (`userfaultfd(2)`, `ioctl_userfaultfd(2)`).
//!
//! Some of a space's areas name a [`Userfault`]. Who accesses a page of theirs that is missing, or that the pager keeps writes away
//! from, is held up here, in the fault, and a message of it waits for whoever reads the descriptor. That may be any thread of any
//! process that has it: pages are put in place by whoever calls, in the space that the descriptor was made in. A thread that is held
//! up has no locks. It goes on when it is woken, when it gets a signal or is ended, and when the last descriptor is closed: from then
//! on the areas are like all others.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};

use atoll_abi::layout::{PAGE, is_user_range};
use atoll_abi::{Errno, Result};
use atoll_fs::{File, Sink, Source, poll};
use atoll_mem::io;
use atoll_mem::vm::{AddressSpace, Denied, OwnPager, Pager, SLOT};
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Limit, wait, wait_uninterrupted};
use linux_raw_sys::{general as linux, ioctl as ctl};
use zerocopy::IntoBytes;

use crate::current;
use crate::process::{Space, Task, work};
use crate::quota::Held;
use crate::syscalls::unsupported;
use crate::types::{get, put};
use crate::visit::{Room, in_other_space};

/// What a program may ask for: that is all there is here of what Linux has.
const FEATURES: u64 = (linux::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | linux::UFFD_FEATURE_SIGBUS
    | linux::UFFD_FEATURE_THREAD_ID
    | linux::UFFD_FEATURE_EXACT_ADDRESS) as u64;
/// Commands for the descriptor.
const COMMANDS: u64 = 1 << linux::_UFFDIO_REGISTER | 1 << linux::_UFFDIO_UNREGISTER | 1 << linux::_UFFDIO_API;
/// Commands for a range that is registered.
const RANGE_COMMANDS: u64 = 1 << linux::_UFFDIO_WAKE
    | 1 << linux::_UFFDIO_COPY
    | 1 << linux::_UFFDIO_ZEROPAGE
    | 1 << linux::_UFFDIO_WRITEPROTECT;
/// `UFFDIO_WRITEPROTECT_MODE_WP` and `_DONTWAKE`.
const KEEP: u64 = 1;
const KEEP_DONTWAKE: u64 = 2;

/// Bytes of a message.
const MESSAGE: usize = 32;

/// What areas and descriptor have in common.
struct Userfault {
    /// The space that it was made in. Its areas have it, not the other way round.
    space: Weak<Space>,
    /// Which program was there then. Of another one that runs in the same space later it must not learn anything.
    image: u64,
    /// Is it only asked about the program's own accesses, and not about those of system calls?
    user_mode_only: bool,
    is_open: AtomicBool,
    state: Mutex<State>,
    /// Those who read messages.
    readers: WaitQueue,
    /// Those who are held up.
    held_up: WaitQueue,
}

#[derive(Default)]
struct State {
    /// The features that were agreed on. None: UFFDIO_API was not called.
    features: Option<u64>,
    /// Accesses that are held up.
    accesses: Vec<HeldUp>,
    /// The next one's number.
    next: u64,
}

/// An access that is held up.
struct HeldUp {
    number: u64,
    address: u64,
    message: [u64; MESSAGE / 8],
    is_read: bool,
}

impl State {
    fn has(&self, features: u32) -> bool {
        self.features.is_some_and(|f| f & u64::from(features) != 0)
    }
}

impl Userfault {
    /// Those who were held up in a range go on.
    fn wake(&self, start: u64, len: u64) {
        self.state.lock().accesses.retain(|a| !(start..start + len).contains(&a.address));
        self.held_up.wake_all(poll::IN);
    }

    /// Adds an access, and tells those who read of it. Value: its number.
    fn hold_up(&self, task: &Task, addr: u64, write: bool, kept: bool) -> u64 {
        let mut state = self.state.lock();
        let mut flags = 0;
        if write {
            flags |= linux::UFFD_PAGEFAULT_FLAG_WRITE;
        }
        if kept {
            flags |= linux::UFFD_PAGEFAULT_FLAG_WP;
        }
        let exact = state.has(linux::UFFD_FEATURE_EXACT_ADDRESS);
        let address = if exact { addr } else { addr & !(PAGE - 1) };
        let tid = if state.has(linux::UFFD_FEATURE_THREAD_ID) { task.tid() } else { 0 };
        let message = [u64::from(linux::UFFD_EVENT_PAGEFAULT), u64::from(flags), address, u64::from(tid)];
        let number = state.next;
        state.next += 1;
        state.accesses.push(HeldUp { number, address: addr, message, is_read: false });
        drop(state);
        self.readers.wake_all(poll::IN);
        number
    }
}

impl Pager for Userfault {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn ask(
        &self,
        memory: &AddressSpace,
        addr: u64,
        write: bool,
        kept: bool,
        by_program: bool,
    ) -> core::result::Result<(), Denied> {
        if self.user_mode_only && !by_program || self.state.lock().has(linux::UFFD_FEATURE_SIGBUS) {
            return Err(Denied::Bus);
        }
        let task = current();
        let number = self.hold_up(task, addr, write, kept);
        let goes_on = || !self.is_open() || !self.state.lock().accesses.iter().any(|a| a.number == number);
        let mut done = Ok(());
        // It may have been put in place in between, and who did that has woken nobody.
        if memory.asked(addr, write).is_some() {
            if by_program {
                // After a signal it faults again.
                let _ = wait(&self.held_up, poll::IN, Limit::Forever, || goes_on().then_some(()));
            } else {
                // Whoever ends the task unparks it.
                let is_ended = || task.asked() & work::END != 0;
                done = wait_uninterrupted(&self.held_up, poll::IN, || match goes_on() {
                    true => Some(Ok(())),
                    false => is_ended().then_some(Err(Denied::Bus)),
                });
            }
        }
        self.state.lock().accesses.retain(|a| a.number != number);
        // The next one there is another one, however often they come.
        task.same_fault.store(0, Ordering::Relaxed);
        done
    }
}

/// `userfaultfd(2)`.
pub struct UserfaultFd {
    shared: Arc<Userfault>,
    _held: Held,
}

impl UserfaultFd {
    /// For a space.
    pub fn new(space: &Arc<Space>, user_mode_only: bool, held: Held) -> Self {
        let shared = Userfault {
            space: Arc::downgrade(space),
            image: space.memory.image(),
            user_mode_only,
            is_open: AtomicBool::new(true),
            state: Mutex::new(State::default()),
            readers: WaitQueue::new(),
            held_up: WaitQueue::new(),
        };
        UserfaultFd { shared: Arc::new(shared), _held: held }
    }

    /// The space that it was made in. ESRCH: nobody is there any more.
    fn space(&self) -> Result<Arc<Space>> {
        let space = self.shared.space.upgrade().ok_or(Errno::ESRCH)?;
        let is_gone = space.users.load(Ordering::SeqCst) == 0 || space.memory.image() != self.shared.image;
        if is_gone { Err(Errno::ESRCH) } else { Ok(space) }
    }

    /// Does something in the space that it was made in.
    fn run<R: Send + Sync + Copy + 'static>(
        &self,
        f: impl FnOnce(&AddressSpace, &Arc<dyn Pager>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let space = self.space()?;
        let pager: Arc<dyn Pager> = self.shared.clone();
        if space.id == current().space.id {
            return f(&space.memory, &pager);
        }
        in_other_space(space, move |memory| f(memory, &pager))
    }

    fn agree(&self, arg: u64) -> Result<u64> {
        let [api, features, _]: [u64; 3] = get(arg)?;
        let mut state = self.shared.state.lock();
        let known = api == u64::from(linux::UFFD_API) && features & !FEATURES == 0;
        let agreed = known && state.features.is_none();
        if agreed {
            state.features = Some(features);
        }
        drop(state);
        put(arg, &if agreed { [api, FEATURES, COMMANDS] } else { [0; 3] })?;
        if agreed { Ok(0) } else { Err(Errno::EINVAL) }
    }

    fn register(&self, arg: u64) -> Result<u64> {
        let [start, len, mode]: [u64; 3] = get(arg)?;
        let known = u64::from(linux::UFFDIO_REGISTER_MODE_MISSING | linux::UFFDIO_REGISTER_MODE_WP);
        if mode & u64::from(linux::UFFDIO_REGISTER_MODE_MINOR) != 0 {
            return Err(unsupported(current(), "userfaultfd's UFFDIO_REGISTER_MODE_MINOR", Errno::EINVAL));
        }
        if mode == 0 || mode & !known != 0 {
            return Err(Errno::EINVAL);
        }
        check_range(start, len)?;
        let missing = mode & u64::from(linux::UFFDIO_REGISTER_MODE_MISSING) != 0;
        let writes = mode & u64::from(linux::UFFDIO_REGISTER_MODE_WP) != 0;
        self.space().map_err(|_| Errno::ENOMEM)?;
        let image = self.shared.image;
        self.run(move |memory, pager| {
            memory.register(start, len, &OwnPager { pager: pager.clone(), missing, writes }, image)
        })?;
        let without = if writes { 0 } else { 1 << linux::_UFFDIO_WRITEPROTECT };
        put(arg + 24, &(RANGE_COMMANDS & !without)).map(|()| 0)
    }

    fn unregister(&self, arg: u64) -> Result<u64> {
        let [start, len]: [u64; 2] = get(arg)?;
        check_range(start, len)?;
        self.space().map_err(|_| Errno::ENOMEM)?;
        self.run(move |memory, pager| memory.unregister(start, len, pager))?;
        self.shared.wake(start, len);
        Ok(0)
    }

    /// Puts pages in place: copies of what lies at `from`, or zeroes. `result`: where the program learns how many bytes.
    fn place(
        &self,
        at: u64,
        len: u64,
        from: Option<u64>,
        kept: bool,
        wake: bool,
        result: u64,
    ) -> Result<u64> {
        let mut done = 0;
        let space = self.space()?;
        let pager: Arc<dyn Pager> = self.shared.clone();
        let mut end = if space.memory.is_paged_by(at, len, &pager) { Ok(()) } else { Err(Errno::ENOENT) };
        while done < len && end.is_ok() {
            match self.place_some(at + done, (len - done).min(SLOT), from.map(|from| from + done), kept) {
                Ok(n) => done += n,
                Err(e) => end = Err(e),
            }
        }
        let placed = match end {
            Err(e) if done == 0 => Err(e),
            _ => Ok(done),
        };
        put(result, &placed.map_or_else(|e| e.to_ret(), |n| n as i64))?;
        let placed = placed?;
        if wake {
            self.shared.wake(at, placed);
        }
        if placed == len { Ok(0) } else { Err(Errno::EAGAIN) }
    }

    /// The same for what is left of a slot, and no more than `most` bytes. Value: bytes.
    fn place_some(&self, at: u64, most: u64, from: Option<u64>, kept: bool) -> Result<u64> {
        let mut len = most.min(SLOT - at % SLOT);
        let Some(from) = from else {
            return self.run(move |memory, pager| memory.place(at, len, None, kept, pager));
        };
        let room = Room::new()?;
        let offset = room.offset();
        let mut source = Source::one(from, len);
        let whole = || true;
        let copied = io::writing(&mut source, whole, |source| {
            source.take_memory(offset + source.done() as u64, source.left())
        })?;
        len = copied as u64 & !(PAGE - 1);
        if len == 0 {
            return Err(Errno::EFAULT);
        }
        self.run(move |memory, pager| memory.place(at, len, Some(offset), kept, pager))
    }

    fn keep(&self, arg: u64) -> Result<u64> {
        let [start, len, mode]: [u64; 3] = get(arg)?;
        check_range(start, len)?;
        if mode & !(KEEP | KEEP_DONTWAKE) != 0 || mode == KEEP | KEEP_DONTWAKE {
            return Err(Errno::EINVAL);
        }
        let kept = mode & KEEP != 0;
        self.run(move |memory, pager| memory.keep(start, len, kept, pager))?;
        if mode == 0 {
            self.shared.wake(start, len);
        }
        Ok(0)
    }
}

/// A range that a command may name.
fn check_range(start: u64, len: u64) -> Result<()> {
    let is_well = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len != 0;
    if is_well && is_user_range(start, len) { Ok(()) } else { Err(Errno::EINVAL) }
}

impl File for UserfaultFd {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        let shared = &self.shared;
        if shared.state.lock().features.is_none() || sink.left() < MESSAGE {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while sink.left() >= MESSAGE {
            let limit = if nonblock || done > 0 { Limit::Never } else { Limit::Forever };
            let put = wait(&shared.readers, poll::IN, limit, || {
                let mut state = shared.state.lock();
                let next = state.accesses.iter_mut().find(|a| !a.is_read)?;
                let put = sink.ensure(MESSAGE).and_then(|()| sink.put(next.message.as_bytes()));
                next.is_read = put.is_ok();
                Some(put)
            });
            match put.flatten() {
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn ready(&self) -> u32 {
        let state = self.shared.state.lock();
        match state.features {
            None => poll::ERR,
            Some(_) if state.accesses.iter().any(|a| !a.is_read) => poll::IN,
            Some(_) => 0,
        }
    }

    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Ok(0)
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.shared.readers)
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        if command != ctl::UFFDIO_API && self.shared.state.lock().features.is_none() {
            return Err(Errno::EINVAL);
        }
        match command {
            ctl::UFFDIO_API => self.agree(arg),
            ctl::UFFDIO_REGISTER => self.register(arg),
            ctl::UFFDIO_UNREGISTER => self.unregister(arg),
            ctl::UFFDIO_WAKE => {
                let [start, len]: [u64; 2] = get(arg)?;
                check_range(start, len)?;
                self.shared.wake(start, len);
                Ok(0)
            }
            ctl::UFFDIO_COPY => {
                let [to, from, len, mode]: [u64; 4] = get(arg)?;
                check_range(to, len)?;
                let (quiet, kept) = (linux::UFFDIO_COPY_MODE_DONTWAKE, linux::UFFDIO_COPY_MODE_WP);
                if mode & !u64::from(quiet | kept) != 0 || !is_user_range(from, len) {
                    return Err(Errno::EINVAL);
                }
                let has = |flag: u32| mode & u64::from(flag) != 0;
                self.place(to, len, Some(from), has(kept), !has(quiet), arg + 32)
            }
            ctl::UFFDIO_ZEROPAGE => {
                let [at, len, mode]: [u64; 3] = get(arg)?;
                check_range(at, len)?;
                let quiet = u64::from(linux::UFFDIO_ZEROPAGE_MODE_DONTWAKE);
                if mode & !quiet != 0 {
                    return Err(Errno::EINVAL);
                }
                self.place(at, len, None, false, mode & quiet == 0, arg + 24)
            }
            ctl::UFFDIO_WRITEPROTECT => self.keep(arg),
            ctl::UFFDIO_CONTINUE => {
                Err(unsupported(current(), "userfaultfd's UFFDIO_CONTINUE", Errno::EINVAL))
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[userfaultfd]".to_vec()
    }
}

impl Drop for UserfaultFd {
    fn drop(&mut self) {
        self.shared.is_open.store(false, Ordering::SeqCst);
        self.shared.held_up.wake_all(poll::IN);
    }
}
