//! The standard streams: what the supervisor's own descriptors 0, 1 and 2
//! stand for. Served by messages, because reading a terminal or a pipe waits.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_abi::control::StreamKind;
use atoll_abi::grid::Resource;
use atoll_abi::platform::ReadBuf;
use atoll_abi::service::{Extent, HostAttr, Op, Request};
use atoll_abi::{Errno, Result, platform};
use atoll_mem::heap::host_buf;
use atoll_mem::io::{Sink, Source, extent_mut};
use atoll_mem::user;
use atoll_mem::vm::{Mappable, Object};
use atoll_sync::{Mutex, SetOnce, WaitQueue};
use atoll_task::{Call, Limit, books, call, descriptor_of, gate, wait};
use linux_raw_sys::{general as linux, ioctl};
use zerocopy::IntoBytes;

use crate::chunks::Scratch;
use crate::host::attr_of;
use crate::node::{At, File};
use crate::types::{Attr, Time, poll};

/// Device number and inode of the terminal in `/dev`.
pub const CONSOLE_NUMBER: u64 = 0x501;
/// See [`CONSOLE_NUMBER`].
pub const CONSOLE_INODE: u64 = 1000;

/// Who knows what the caller may do with the terminal that the cell was started on.
pub struct JobControl {
    /// Whether it may read from it or change it, as a process of the cell: what it would be told by is SIGTTIN or SIGTTOU.
    pub check: fn(u32) -> Result<()>,
    /// The whole cell is in the terminal's background: the caller is told by that signal, and by the function others of the cell's job
    /// outside. The error that its call ends with.
    pub in_background: fn(u32, &dyn Fn()) -> Errno,
}
static JOB_CONTROL: SetOnce<JobControl> = SetOnce::new();

/// Says who knows that, once.
pub fn set_job_control(control: JobControl) {
    assert!(JOB_CONTROL.set(control).is_ok(), "said twice");
}

/// Bytes of one request.
const PIECE: u64 = 64 << 10;
/// After so many writes a stream is worth a descriptor, by which the cell writes itself.
const DIRECT_AFTER: u32 = 4;
/// Where there was no room, as in a pipe whose reader is slow, it is a request for so long, ns.
const NO_ROOM: u64 = 1_000_000;
/// If such a write to a file takes as long as this, ns, all writes to files are requests again: for as long as [`HOLD_OFF`] first, and each
/// time twice as long, up to that many times; at first again after [`FORGET`].
const HELD_UP: u64 = 200_000;
const HOLD_OFF: u64 = 1_000_000_000;
const HOLD_OFFS: u32 = 6;
const FORGET: u64 = 300_000_000_000;

/// How a stream is written to without asking anybody.
#[derive(Default)]
struct Direct {
    /// How often it was written to, until there is a descriptor.
    writes: u32,
    /// The descriptor, once it was asked for. None within: there is to be none.
    fd: Option<Option<i32>>,
    /// The host can't tell whether a write to it waits.
    is_in_vain: bool,
    /// Until when none is tried, by the platform's clock.
    not_before: u64,
}

/// Writes to streams that are files, of which more than one may be the same: of the host's, who writes to a file has it for itself.
struct Files {
    /// Until when no core writes to one itself, by the platform's clock; since when that was so last, and how often.
    not_before: AtomicU64,
    since: AtomicU64,
    times: AtomicU32,
    /// Requests under way, behind which who writes would wait.
    requests: AtomicU32,
}

static FILES: Files = Files {
    not_before: AtomicU64::new(0),
    since: AtomicU64::new(0),
    times: AtomicU32::new(0),
    requests: AtomicU32::new(0),
};

impl Files {
    /// A write took so long.
    fn took(&self, took: u64, now: u64) {
        if took < HELD_UP {
            return;
        }
        let before = self.since.swap(now, Ordering::Relaxed);
        let is_long_ago = now.saturating_sub(before) >= FORGET;
        let times = if is_long_ago { 0 } else { self.times.load(Ordering::Relaxed) };
        self.times.store((times + 1).min(HOLD_OFFS), Ordering::Relaxed);
        self.not_before.store(now + (HOLD_OFF << times), Ordering::Relaxed);
    }
}

/// What a program has not read stays where it is: no more is asked for than
/// it wants, and for its readiness a stream is only asked.
struct Reading {
    /// The request under way and where its bytes go; None: it asks for readiness.
    call: Option<(Arc<Call>, Option<Scratch>)>,
    /// Bytes that came and were not read yet: where they begin, where they end.
    ready: Option<(Scratch, u64, u64)>,
    /// `poll(2)` bits that were reported since the last read.
    readable: u32,
    end: bool,
    error: Option<Errno>,
}

/// One standard stream.
pub struct Stream {
    number: u64,
    kind: StreamKind,
    reading: Mutex<Reading>,
    writing: Mutex<Direct>,
    queue: WaitQueue,
    /// The server's handle, of a file or a device that was asked about.
    handle: SetOnce<u64>,
    /// The host's descriptor, of a file that was mapped.
    descriptor: SetOnce<i32>,
    made: Time,
    /// Who waits until it is a reader's turn has asked for that: see [`gate::when_open`].
    asked: AtomicU64,
    me: alloc::sync::Weak<Stream>,
}

impl Stream {
    /// Stream 0, 1 or 2.
    pub fn new(number: u64, kind: StreamKind) -> Arc<Stream> {
        Arc::new_cyclic(|me| Stream {
            number,
            kind,
            reading: Mutex::new(Reading { call: None, ready: None, readable: 0, end: false, error: None }),
            writing: Mutex::new(Direct::default()),
            queue: WaitQueue::new(),
            handle: SetOnce::new(),
            descriptor: SetOnce::new(),
            made: Time::now(),
            asked: AtomicU64::new(0),
            me: me.clone(),
        })
    }

    /// Is it a terminal?
    pub fn is_terminal(&self) -> bool {
        self.kind == StreamKind::Terminal
    }

    /// Takes in what a finished request brought; asks for `most` bytes or, if that is none, for readiness.
    fn pump(&self, r: &mut Reading, most: u64) {
        if let Some((c, _)) = &r.call
            && c.is_done()
            && let Some((c, scratch)) = r.call.take()
        {
            match (c.result(), scratch) {
                (Ok(bits), None) => r.readable = bits as u32,
                (Ok(0), _) => r.end = true,
                (Ok(n), Some(scratch)) => {
                    let n = n.min(scratch.len());
                    r.readable = c.extra() as u32;
                    r.ready = Some((scratch, 0, n));
                }
                (Err(e), _) => r.error = Some(e),
            }
        }
        let known = r.ready.is_some() || r.end || r.error.is_some();
        if r.call.is_none() && !known && (most > 0 || r.readable == 0) {
            let mut request = Request::new(Op::StreamRead);
            request.arg[0] = self.number;
            let mut scratch = None;
            if most > 0 {
                let Ok(s) = Scratch::up_to(most.min(PIECE)) else {
                    r.error = Some(Errno::ENOMEM);
                    return;
                };
                let len = most.min(s.len());
                request.a = Extent { offset: s.offset(), len };
                scratch = Some(s);
                r.readable = 0;
            }
            let weak = self.me.clone();
            let then = move |_: &Call| {
                if let Some(s) = weak.upgrade() {
                    s.queue.wake_all(poll::IN | poll::HUP);
                }
            };
            if let Ok(c) = Call::send_then(request, Some(alloc::boxed::Box::new(then))) {
                r.call = Some((c, scratch));
            }
        }
    }
}

impl Stream {
    /// EAGAIN if it isn't the caller's turn to read, by what the grid's configuration says of devices. Those who wait for the stream hear
    /// of it when it is.
    fn admitted(&self) -> Result<()> {
        if !gate::full(Resource::DeviceRead) {
            return Ok(());
        }
        let weak = self.me.clone();
        let tell = move || {
            if let Some(s) = weak.upgrade() {
                s.queue.wake_all(poll::IN | poll::RDNORM);
            }
        };
        if gate::when_open(Resource::DeviceRead, &self.asked, tell) { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// Is the cell in this terminal's background?
    fn in_background(&self) -> bool {
        let mut request = Request::new(Op::StreamRead);
        request.arg = [self.number, 1, 0, 0];
        call(request) == Err(Errno::BACKGROUND)
    }

    /// The caller may not read from it for that: it is told so, and the cell's job outside.
    fn refuse(&self) -> Errno {
        let tell = || {
            let mut request = Request::new(Op::StreamRead);
            request.arg = [self.number, 2, 0, 0];
            let _ = call(request);
        };
        JOB_CONTROL.get().map_or(Errno::EIO, |jobs| (jobs.in_background)(linux::SIGTTIN, &tell))
    }

    /// The descriptor to write to, if it is worth one.
    fn descriptor(&self, direct: &mut Direct) -> Option<i32> {
        if let Some(fd) = direct.fd {
            return fd;
        }
        direct.writes += 1;
        if direct.writes <= DIRECT_AFTER {
            return None;
        }
        let ask = || {
            // The kernel decides whether a job may write to its terminal, and asks who does.
            platform().host().filter(|_| !self.is_terminal())?;
            let mut request = Request::new(Op::StreamHandle);
            request.arg = [self.number, 1, 0, 0];
            descriptor_of(request, false).ok().map(|(_, fd)| fd)
        };
        *direct.fd.insert(ask())
    }

    /// Writes by the host's descriptor what needs no waiting: that costs a tenth of a request. Value: how much; the rest, and what is wrong
    /// with it, is for a request.
    fn write_now(&self, direct: &mut Direct, from: &Scratch, len: u64) -> u64 {
        let (Some(fd), Some(host)) = (self.descriptor(direct), platform().host()) else { return 0 };
        // A file is written to as a whole, with whatever others write before or behind it. That hardly ever waits, for the host only
        // copies; but where it has more to write than its disk takes, whoever writes waits, and the core would.
        let is_file = self.kind == StreamKind::File;
        let begun = platform().now();
        let not_before = if is_file { FILES.not_before.load(Ordering::Relaxed) } else { direct.not_before };
        if direct.is_in_vain || begun < not_before || is_file && FILES.requests.load(Ordering::Acquire) > 0 {
            return 0;
        }
        let bytes = ReadBuf::of(host_buf(from.offset(), len));
        let written = books::within(Resource::DeviceWrite, || host.write(fd, &[bytes], is_file));
        if is_file {
            let now = platform().now();
            FILES.took(now.saturating_sub(begun), now);
        }
        match written {
            Ok(n) => return n as u64,
            Err(Errno::EAGAIN) => direct.not_before = begun + NO_ROOM,
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) => direct.is_in_vain = true,
            Err(_) => {}
        }
        0
    }

    /// Has the host write it.
    fn ask_to_write(&self, request: Request) -> Result<u64> {
        if self.kind != StreamKind::File {
            return call(request);
        }
        FILES.requests.fetch_add(1, Ordering::AcqRel);
        let written = call(request);
        FILES.requests.fetch_sub(1, Ordering::AcqRel);
        written
    }

    /// The server's handle.
    fn handle(&self) -> Result<u64> {
        if let Some(handle) = self.handle.get() {
            return Ok(*handle);
        }
        let mut request = Request::new(Op::StreamHandle);
        request.arg[0] = self.number;
        let handle = call(request)?;
        if self.handle.set(handle).is_err() {
            // Another thread was faster.
            let mut request = Request::new(Op::Release);
            request.arg[0] = handle;
            call(request)?;
        }
        self.handle.get().copied().ok_or(Errno::EIO)
    }

    /// What only a file can do.
    fn of_file(&self, op: Op, args: [u64; 3]) -> Result<()> {
        if self.kind != StreamKind::File {
            return Err(Errno::EINVAL);
        }
        let mut request = Request::new(op);
        request.arg = [self.handle()?, args[0], args[1], args[2]];
        call(request).map(drop)
    }

    /// Reads a file, which does not wait long: at its own position or at `at`.
    fn read_file(&self, sink: &mut Sink, at: Option<u64>) -> Result<usize> {
        let scratch = Scratch::up_to((sink.left() as u64).min(PIECE))?;
        let len = scratch.len().min(sink.left() as u64);
        let mut request = Request::new(Op::StreamRead);
        request.arg[0] = self.number;
        if let Some(at) = at {
            request = Request::new(Op::Read);
            request.arg = [self.handle()?, at, 0, 0];
        }
        request.a = Extent { offset: scratch.offset(), len };
        let n = call(request)?.min(len) as usize;
        let put = if n == 0 { Ok(0) } else { sink.put_memory(scratch.offset(), n) };
        let left = n - put.unwrap_or(0);
        if left > 0 && at.is_none() {
            // The program's buffer was not there: the rest is to be read again.
            self.seek(-(left as i64), linux::SEEK_CUR)?;
        }
        put
    }
}

impl File for Stream {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, at: Option<u64>, nonblock: bool) -> Result<usize> {
        if sink.left() == 0 {
            return Ok(0);
        }
        if self.is_terminal()
            && let Some(jobs) = JOB_CONTROL.get()
        {
            (jobs.check)(linux::SIGTTIN)?;
        }
        if nonblock && self.kind != StreamKind::File {
            self.admitted()?;
        } else {
            gate::pass(Resource::DeviceRead);
        }
        if self.kind == StreamKind::File {
            let read = books::within(Resource::DeviceRead, || self.read_file(sink, at));
            books::moved(Resource::DeviceRead, read.unwrap_or(0) as u64);
            return read;
        }
        let limit = if nonblock { Limit::Never } else { Limit::Forever };
        let mut get = || {
            let mut r = self.reading.lock();
            self.pump(&mut r, sink.left() as u64);
            if let Some((scratch, from, to)) = &mut r.ready {
                let put = || sink.put_memory(scratch.offset() + *from, (*to - *from) as usize);
                let n = match books::within(Resource::DeviceRead, put) {
                    Ok(n) => n,
                    Err(e) => return Some(Err(e)),
                };
                *from += n as u64;
                if from == to {
                    r.ready = None;
                }
                return Some(Ok(n));
            }
            if let Some(e) = r.error.take() {
                return Some(Err(e));
            }
            if r.end {
                // A terminal can go on after its end (Ctrl-D); a pipe or a file stays at its end.
                r.end = self.kind != StreamKind::Terminal;
                return Some(Ok(0));
            }
            None
        };
        let read = loop {
            match wait(&self.queue, poll::IN | poll::HUP, limit, &mut get)? {
                Err(Errno::BACKGROUND) if self.in_background() => return Err(self.refuse()),
                // It was so when the terminal was asked, for who waited before, and the shell has changed that since.
                Err(Errno::BACKGROUND) => {}
                other => break other,
            }
        };
        books::moved(Resource::DeviceRead, read.unwrap_or(0) as u64);
        read
    }

    fn write(&self, source: &mut Source, at: At, _nonblock: bool) -> Result<(usize, u64)> {
        gate::pass(Resource::DeviceWrite);
        let mut direct = self.writing.lock();
        let mut done = 0;
        while source.left() > 0 {
            let scratch = Scratch::up_to((source.left() as u64).min(PIECE))?;
            let len = scratch.len().min(source.left() as u64);
            let n = match source.take_memory(scratch.offset(), len as usize) {
                Ok(n) => n as u64,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            };
            let mut request = Request::new(Op::StreamWrite);
            request.arg[0] = self.number;
            let mut written = 0;
            if let At::Offset(from) = at {
                request = Request::new(Op::Write);
                request.arg = [self.handle()?, from + done as u64, 0, 0];
            } else {
                written = self.write_now(&mut direct, &scratch, n).min(n);
            }
            request.a = Extent { offset: scratch.offset() + written, len: n - written };
            let asked = if written < n { self.ask_to_write(request) } else { Ok(0) };
            // What was written is, whatever is wrong with the rest.
            let taken = asked.map(|more| written + more.min(n - written));
            match taken.or_else(|e| if written > 0 { Ok(written) } else { Err(e) }) {
                Ok(k) => {
                    books::moved(Resource::DeviceWrite, k);
                    done += k as usize;
                    // The rest was not taken, and is the caller's to write again.
                    if k < n {
                        // If the program's next page is missing, too, nobody is to go on behind it.
                        source.limit(0);
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => {
                    source.limit(0);
                    break;
                }
            }
        }
        Ok((done, 0))
    }

    fn keeps_position(&self) -> bool {
        self.kind == StreamKind::File
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        if self.kind != StreamKind::File {
            return Err(Errno::ESPIPE);
        }
        let mut request = Request::new(Op::StreamSeek);
        request.arg = [self.number, offset as u64, u64::from(whence), 0];
        call(request)
    }

    fn attr(&self) -> Result<Attr> {
        let (mode, rdev) = match self.kind {
            StreamKind::Terminal => (linux::S_IFCHR | 0o620, CONSOLE_NUMBER),
            StreamKind::File | StreamKind::Device => {
                let mut out = HostAttr::default();
                let mut request = Request::new(Op::StatHandle);
                request.arg[0] = self.handle()?;
                let mut bytes = alloc::vec::Vec::from(out.as_bytes());
                request.b = extent_mut(&mut bytes);
                call(request)?;
                out.as_mut_bytes().copy_from_slice(&bytes);
                return Ok(attr_of(&out));
            }
            _ => (linux::S_IFIFO | 0o600, 0),
        };
        // A terminal is the console of /dev, so that `ttyname(3)` finds it.
        let (ino, dev) = match self.kind {
            StreamKind::Terminal => (CONSOLE_INODE, crate::device::DEV),
            _ => (10 + self.number, 0xe),
        };
        let made = self.made;
        Ok(Attr {
            ino,
            dev,
            mode,
            rdev,
            nlink: 1,
            // The C library's buffer for it is that large.
            blksize: if self.kind == StreamKind::Terminal { 1024 } else { 4096 },
            atime: made,
            mtime: made,
            ctime: made,
            ..Attr::default()
        })
    }

    fn ready(&self) -> u32 {
        let mut r = self.reading.lock();
        let mut bits = poll::OUT | poll::WRNORM;
        if self.kind == StreamKind::File {
            return bits | poll::IN | poll::RDNORM;
        }
        if self.number == 0 || self.kind == StreamKind::Terminal {
            self.pump(&mut r, 0);
        }
        let known = r.readable & poll::IN != 0 || r.ready.is_some() || r.end || r.error.is_some();
        if known && self.admitted().is_ok() {
            bits |= poll::IN | poll::RDNORM;
        }
        if (r.end || r.readable & poll::HUP != 0) && self.kind == StreamKind::Pipe {
            bits |= poll::HUP;
        }
        bits
    }

    fn refresh(&self) {
        // The question that is on its way is answered when there is something, not when there is nothing.
        if !matches!(self.kind, StreamKind::Terminal | StreamKind::Pipe) || self.ready() & poll::IN != 0 {
            return;
        }
        let mut bytes = alloc::vec![0u8; 8];
        let mut request = Request::new(Op::StreamControl);
        request.arg = [self.number, u64::from(ioctl::FIONREAD), 0, 0];
        request.a = extent_mut(&mut bytes);
        if call(request).is_ok() && bytes[..4] != [0; 4] {
            self.reading.lock().readable |= poll::IN;
        }
    }

    fn signals(&self) -> bool {
        self.is_terminal()
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        if self.kind != StreamKind::Terminal && command != ioctl::FIONREAD {
            return Err(Errno::ENOTTY);
        }
        // Size of the argument, and which way it goes.
        let (len, reads, writes) = match command {
            ioctl::TCGETS => (36, true, false),
            ioctl::TCSETS | ioctl::TCSETSW | ioctl::TCSETSF => (36, false, true),
            ioctl::TCGETS2 => (44, true, false),
            ioctl::TCSETS2 | ioctl::TCSETSW2 | ioctl::TCSETSF2 => (44, false, true),
            ioctl::TIOCGWINSZ => (8, true, false),
            ioctl::TIOCSWINSZ => (8, false, true),
            ioctl::TIOCGPGRP | ioctl::FIONREAD | ioctl::TIOCGSID => (4, true, false),
            ioctl::TIOCSPGRP => (4, false, true),
            ioctl::TCFLSH | ioctl::TCXONC | ioctl::TCSBRK => (0, false, false),
            _ => return Err(Errno::ENOTTY),
        };
        if command == ioctl::FIONREAD {
            let r = self.reading.lock();
            if let Some((_, from, to)) = &r.ready {
                let n = (to - from) as u32;
                drop(r);
                return user::write(arg, &n.to_ne_bytes()).map(|()| 0);
            }
        }
        let mut bytes = alloc::vec![0u8; len.max(8)];
        if writes {
            user::read(arg, &mut bytes[..len])?;
        }
        let mut request = Request::new(Op::StreamControl);
        request.arg = [self.number, u64::from(command), if len == 0 { arg } else { 0 }, 0];
        request.a = extent_mut(&mut bytes);
        let value = call(request)?;
        if reads {
            user::write(arg, &bytes[..len])?;
        }
        Ok(value)
    }

    fn mappable(self: Arc<Self>) -> Result<Arc<dyn Mappable>> {
        if self.kind == StreamKind::File { Ok(self) } else { Err(Errno::ENODEV) }
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.of_file(Op::Sync, [u64::from(data_only), 0, 0])
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.of_file(Op::Truncate, [len, 0, 0])
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.of_file(Op::Allocate, [u64::from(mode), offset, len])
    }

    fn describe(&self) -> Vec<u8> {
        match self.kind {
            StreamKind::Terminal => b"/dev/console".to_vec(),
            StreamKind::Device => b"/dev/null".to_vec(),
            _ => alloc::format!("pipe:[{}]", 10 + self.number).into_bytes(),
        }
    }
}

impl Mappable for Stream {
    fn host_file(&self, _write: bool) -> Result<Option<i32>> {
        if let Some(fd) = self.descriptor.get() {
            return Ok(Some(*fd));
        }
        let mut request = Request::new(Op::PassFd);
        request.arg[0] = self.handle()?;
        let fd = match descriptor_of(request, false) {
            Ok((_, fd)) => fd,
            // The one who answers is on another machine.
            Err(Errno::ENOSYS) => return Ok(None),
            Err(e) => return Err(e),
        };
        if self.descriptor.set(fd).is_err()
            && let Some(host) = platform().host()
        {
            // Another thread was faster.
            host.close(fd);
        }
        Ok(self.descriptor.get().copied())
    }

    fn object(&self) -> Option<Arc<dyn Object>> {
        None
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            let n = self.read_file(&mut Sink::kernel(&mut to[done..]), Some(offset + done as u64))?;
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(done)
    }

    fn describe(&self) -> (Vec<u8>, u64, u64) {
        let attr = File::attr(self).unwrap_or_default();
        (File::describe(self), attr.dev, attr.ino)
    }
}
