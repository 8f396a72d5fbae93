//! Pseudo terminals (`pty(7)`): `/dev/ptmx`, `/dev/pts`, and the two ends of each.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use atoll_abi::layout::PAGE;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::node::At;
use atoll_fs::{
    Attr, Cred, DirEntry, File, FileSystem, FileType, Inode, InodeRef, OpenFile, SetAttr, Sink, Source,
    StatFs, Time, poll,
};
use atoll_mem::user;
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Limit, wait};
use core::sync::atomic::Ordering;
use linux_raw_sys::{general as linux, ioctl as ctl};
use zerocopy::IntoBytes;

use crate::current::{self, current};
use crate::line::{ARRIVED, Line, ROOM, TERMIOS, Termio, Termios};
use crate::process::Process;
use crate::types::{Siginfo, get, put};
use crate::{jobs, signal};

/// Most terminals at a time.
const TERMINALS_MAX: u32 = 4096;
/// Major number of the terminals in `/dev/pts`.
const MAJOR: u64 = 136;
/// Group that terminals belong to (tty).
const GROUP: u32 = 5;
/// Bytes that are copied at a time.
const PIECE: usize = 512;

static ALL: Mutex<BTreeMap<u32, Weak<Pty>>> = Mutex::new(BTreeMap::new());

/// A pseudo terminal.
struct Pty {
    index: u32,
    state: Mutex<State>,
    /// Where who holds the master end waits.
    master: WaitQueue,
    /// Where programs on the terminal wait.
    slave: WaitQueue,
    node: Mutex<Node>,
}

/// Whose it is in `/dev/pts`, and what its users may do.
#[derive(Clone, Copy)]
struct Node {
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Time,
    mtime: Time,
    ctime: Time,
}

struct State {
    line: Line,
    window: [u16; 4],
    /// `unlockpt(3)` was not called yet.
    locked: bool,
    /// The master end is open.
    held: bool,
    /// Openings of the slave end.
    openings: usize,
    /// It was opened once: when nobody has it open any more, that is an end.
    opened: bool,
    /// The session whose controlling terminal it is; 0: none.
    session: u32,
    /// Its foreground process group.
    foreground: u32,
    /// Who reads at the master end is told of more than what is written (TIOCPKT): a byte before each piece of that, and one of its own
    /// for what else has happened (`TIOCPKT_*`), as these bits have it.
    packets: bool,
    happened: u32,
    /// Only who may do everything opens it (TIOCEXCL).
    exclusive: bool,
}

impl State {
    /// Something happened that only who reads packets is told of.
    fn note(&mut self, what: u32) {
        if self.packets {
            self.happened |= what;
        }
    }

    /// The line is changed: what of that is told in packets?
    fn change<R>(&mut self, change: impl FnOnce(&mut Line) -> R) -> R {
        let before = (self.line.stopped, self.line.stops_as_usual());
        let r = change(&mut self.line);
        let after = (self.line.stopped, self.line.stops_as_usual());
        let either = |is: bool, yes: u32, no: u32| if is { (yes, no) } else { (no, yes) };
        let mut tell = |changed: bool, (set, clear): (u32, u32)| {
            if changed {
                self.happened &= !clear;
                self.note(set);
            }
        };
        tell(before.0 != after.0, either(after.0, linux::TIOCPKT_STOP, linux::TIOCPKT_START));
        tell(before.1 != after.1, either(after.1, linux::TIOCPKT_DOSTOP, linux::TIOCPKT_NOSTOP));
        r
    }
}

impl Pty {
    /// The terminal's number in `/dev/pts`.
    fn device(&self) -> u64 {
        MAJOR << 8 | u64::from(self.index & 0xff) | u64::from(self.index >> 8) << 20
    }

    /// See [`jobs::check_foreground`]; others than those of its session may do it.
    fn check(&self, number: u32) -> Result<()> {
        let Some(task) = current::try_current() else { return Ok(()) };
        let s = self.state.lock();
        let (is_own, foreground) = (s.session == task.process.sid.load(Ordering::Relaxed), s.foreground);
        drop(s);
        if is_own { jobs::check_foreground(foreground, number) } else { Ok(()) }
    }

    /// Changes the terminal's settings. `flush`: what was typed and not read is gone.
    fn set(&self, flush: bool, change: impl FnOnce(Termios) -> Termios) {
        let mut s = self.state.lock();
        if flush {
            s.line.flush_input();
            s.note(linux::TIOCPKT_FLUSHREAD);
        }
        let new = change(s.line.termios).with_speeds();
        s.change(|line| line.set(new));
        drop(s);
        self.slave.wake_all(poll::ALL);
        self.master.wake_all(poll::ALL);
    }

    /// Terminal control from either end.
    fn control(&self, command: u32, arg: u64, master: bool) -> Result<u64> {
        match command {
            ctl::TCSETS
            | ctl::TCSETSW
            | ctl::TCSETSF
            | ctl::TCSETA
            | ctl::TCSETAW
            | ctl::TCSETAF
            | ctl::TCSETS2
            | ctl::TCSETSW2
            | ctl::TCSETSF2 => {
                self.check(linux::SIGTTOU)?;
            }
            ctl::TCFLSH | ctl::TCXONC | ctl::TCSBRK | ctl::TCSBRKP if !master => {
                self.check(linux::SIGTTOU)?
            }
            // Linux has another error for this one.
            ctl::TIOCSPGRP => {
                self.check(linux::SIGTTOU).map_err(|e| if e == Errno::EIO { Errno::ENOTTY } else { e })?;
            }
            _ => {}
        }
        let mut s = self.state.lock();
        if !master && !s.held {
            return Err(Errno::EIO);
        }
        let sid = current().process.sid.load(Ordering::Relaxed);
        match command {
            ctl::TCGETS | ctl::TCGETS2 => {
                let now = s.line.termios;
                drop(s);
                let len = if command == ctl::TCGETS { TERMIOS } else { size_of::<Termios>() };
                user::write(arg, &now.as_bytes()[..len]).map(|()| 0)
            }
            ctl::TCSETS | ctl::TCSETSW | ctl::TCSETSF => {
                drop(s);
                let new: [u8; TERMIOS] = get(arg)?;
                self.set(command == ctl::TCSETSF, |mut now| {
                    now.as_mut_bytes()[..TERMIOS].copy_from_slice(&new);
                    now
                });
                Ok(0)
            }
            ctl::TCSETS2 | ctl::TCSETSW2 | ctl::TCSETSF2 => {
                drop(s);
                let new: Termios = get(arg)?;
                self.set(command == ctl::TCSETSF2, |_| new);
                Ok(0)
            }
            ctl::TCGETA => {
                let now = Termio::of(&s.line.termios);
                drop(s);
                user::write(arg, now.as_bytes()).map(|()| 0)
            }
            ctl::TCSETA | ctl::TCSETAW | ctl::TCSETAF => {
                drop(s);
                let new: Termio = get(arg)?;
                self.set(command == ctl::TCSETAF, |now| new.over(now));
                Ok(0)
            }
            ctl::TIOCGWINSZ => {
                let window = s.window;
                drop(s);
                user::write(arg, window.as_bytes()).map(|()| 0)
            }
            ctl::TIOCSWINSZ => {
                drop(s);
                let new: [u16; 4] = get(arg)?;
                let mut s = self.state.lock();
                let (changed, group) = (s.window != new, s.foreground);
                s.window = new;
                drop(s);
                if changed {
                    jobs::signal_group(group, linux::SIGWINCH);
                }
                Ok(0)
            }
            ctl::FIONREAD => {
                let n = if master { s.line.written().min(ARRIVED) } else { s.line.readable() };
                drop(s);
                put(arg, &(n as i32)).map(|()| 0)
            }
            ctl::TIOCOUTQ => {
                drop(s);
                put(arg, &0i32).map(|()| 0)
            }
            ctl::TCFLSH => {
                let (input, output) = match arg as u32 {
                    linux::TCIFLUSH => (true, false),
                    linux::TCOFLUSH => (false, true),
                    linux::TCIOFLUSH => (true, true),
                    _ => return Err(Errno::EINVAL),
                };
                // What a master has written lies at the slave's side at once.
                if input && master {
                    s.line.flush_arrived();
                } else if input {
                    s.line.flush_input();
                    s.note(linux::TIOCPKT_FLUSHREAD);
                }
                if output && !master {
                    s.line.flush_output();
                    s.note(linux::TIOCPKT_FLUSHWRITE);
                }
                drop(s);
                self.slave.wake_all(poll::ALL);
                self.master.wake_all(poll::ALL);
                Ok(0)
            }
            ctl::TCXONC => {
                match arg as u32 {
                    linux::TCOOFF => s.change(|line| line.stopped = true),
                    linux::TCOON => s.change(|line| line.stopped = false),
                    linux::TCIOFF | linux::TCION => {}
                    _ => return Err(Errno::EINVAL),
                }
                drop(s);
                self.slave.wake_all(poll::ALL);
                self.master.wake_all(poll::ALL);
                Ok(0)
            }
            // A break means nothing here, and what is written has arrived.
            ctl::TCSBRK | ctl::TCSBRKP => Ok(0),
            ctl::TIOCGPGRP if master || s.session == sid => {
                let group = s.foreground;
                drop(s);
                put(arg, &group).map(|()| 0)
            }
            ctl::TIOCSPGRP if s.session == sid => {
                drop(s);
                let group: u32 = get(arg)?;
                jobs::check_group(group, sid)?;
                self.state.lock().foreground = group;
                Ok(0)
            }
            ctl::TIOCGSID if master && s.session != 0 || s.session == sid => {
                let session = s.session;
                drop(s);
                put(arg, &session).map(|()| 0)
            }
            ctl::TIOCSCTTY if !master => {
                if s.session == sid {
                    return Ok(0);
                }
                let leads = current().process.pid == sid;
                if !leads || s.session != 0 {
                    return Err(Errno::EPERM);
                }
                drop(s);
                if of_session(sid).is_some() {
                    return Err(Errno::EPERM);
                }
                self.adopt(sid);
                Ok(0)
            }
            ctl::TIOCNOTTY if s.session == sid => {
                if current().process.pid == sid {
                    let group = s.foreground;
                    s.session = 0;
                    s.foreground = 0;
                    drop(s);
                    jobs::signal_group(group, linux::SIGHUP);
                    jobs::signal_group(group, linux::SIGCONT);
                }
                Ok(0)
            }
            ctl::TIOCGPTN if master => {
                drop(s);
                put(arg, &self.index).map(|()| 0)
            }
            ctl::TIOCSPTLCK if master => {
                drop(s);
                let lock: i32 = get(arg)?;
                self.state.lock().locked = lock != 0;
                Ok(0)
            }
            ctl::TIOCPKT if master => {
                drop(s);
                let on: i32 = get(arg)?;
                let mut s = self.state.lock();
                if on != 0 && !s.packets {
                    s.happened = 0;
                }
                s.packets = on != 0;
                Ok(0)
            }
            ctl::TIOCGPKT if master => {
                let on = i32::from(s.packets);
                drop(s);
                put(arg, &on).map(|()| 0)
            }
            ctl::TIOCEXCL | ctl::TIOCNXCL => {
                s.exclusive = command == ctl::TIOCEXCL;
                Ok(0)
            }
            ctl::TIOCGEXCL => {
                let exclusive = i32::from(s.exclusive);
                drop(s);
                put(arg, &exclusive).map(|()| 0)
            }
            // Its line discipline is N_TTY, and there is no other.
            ctl::TIOCGETD => {
                drop(s);
                put(arg, &0i32).map(|()| 0)
            }
            ctl::TIOCSETD => {
                drop(s);
                if get::<i32>(arg)? == 0 { Ok(0) } else { Err(Errno::EINVAL) }
            }
            ctl::TIOCGDEV => {
                drop(s);
                put(arg, &(self.device() as u32)).map(|()| 0)
            }
            // Nothing is locked.
            ctl::TIOCGLCKTRMIOS => {
                drop(s);
                user::write(arg, &[0; TERMIOS]).map(|()| 0)
            }
            ctl::TIOCGPTLCK if master => {
                let locked = i32::from(s.locked);
                drop(s);
                put(arg, &locked).map(|()| 0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Becomes the controlling terminal of a session that has none.
    fn adopt(&self, sid: u32) {
        let mut s = self.state.lock();
        s.session = sid;
        s.foreground = current().process.pgid.load(Ordering::Relaxed);
    }

    fn open_slave(self: &Arc<Self>, flags: u32) -> Result<Arc<dyn File>> {
        let mut s = self.state.lock();
        if !s.held || s.locked {
            return Err(Errno::EIO);
        }
        if s.exclusive && !current().may(linux::CAP_SYS_ADMIN) {
            return Err(Errno::EBUSY);
        }
        s.openings += 1;
        s.opened = true;
        let free = s.session == 0;
        drop(s);
        let process = &current().process;
        let sid = process.sid.load(Ordering::Relaxed);
        if flags & linux::O_NOCTTY == 0 && free && process.pid == sid && of_session(sid).is_none() {
            self.adopt(sid);
        }
        Ok(Arc::new(Slave { pty: self.clone() }))
    }
}

/// The pseudo terminal that a session has, if any.
fn of_session(sid: u32) -> Option<Arc<Pty>> {
    let all: Vec<Arc<Pty>> = ALL.lock().values().filter_map(Weak::upgrade).collect();
    all.into_iter().find(|p| p.state.lock().session == sid)
}

/// A process ends. If it leads a session, that has its terminal no longer, whose foreground is told (`disassociate_ctty` of Linux).
pub fn leader_ends(process: &Process) {
    let sid = process.sid.load(Ordering::Relaxed);
    if process.pid != sid {
        return;
    }
    jobs::signal_group(jobs::give_up_console(process), linux::SIGHUP);
    let Some(pty) = of_session(sid) else { return };
    let group = {
        let mut s = pty.state.lock();
        s.session = 0;
        core::mem::take(&mut s.foreground)
    };
    jobs::signal_group(group, linux::SIGHUP);
}

/// Is a file an end of a pseudo terminal?
pub fn is_end(file: &OpenFile) -> bool {
    file.as_type::<Master>().is_some() || file.as_type::<Slave>().is_some()
}

/// Number of the controlling terminal of a session, and its foreground group.
pub fn controlling(sid: u32) -> Option<(u64, u32)> {
    of_session(sid).map(|p| (p.device(), p.state.lock().foreground))
}

/// Opens what `/dev/tty` is for the caller, if that is a pseudo terminal.
pub fn open_controlling(flags: u32) -> Option<Result<Arc<dyn File>>> {
    let pty = of_session(current().process.sid.load(Ordering::Relaxed))?;
    Some(pty.open_slave(flags | linux::O_NOCTTY))
}

/// Opens `/dev/ptmx`: a new terminal's master end.
pub fn open_master() -> Result<Arc<dyn File>> {
    let mut all = ALL.lock();
    let index = (0..TERMINALS_MAX).find(|n| !all.contains_key(n)).ok_or(Errno::ENOSPC)?;
    let state = State {
        line: Line::default(),
        window: [0; 4],
        locked: true,
        held: true,
        openings: 0,
        opened: false,
        session: 0,
        foreground: 0,
        packets: false,
        happened: 0,
        exclusive: false,
    };
    let t = Time::now();
    let pty = Arc::new(Pty {
        index,
        state: Mutex::new(state),
        master: WaitQueue::new(),
        slave: WaitQueue::new(),
        node: Mutex::new(Node {
            mode: 0o620,
            uid: current().cred().uid,
            gid: GROUP,
            atime: t,
            mtime: t,
            ctime: t,
        }),
    });
    all.insert(index, Arc::downgrade(&pty));
    Ok(Arc::new(Master { pty }))
}

/// The end that a terminal emulator holds.
pub struct Master {
    pty: Arc<Pty>,
}

impl Master {
    /// Path of the other end.
    pub fn slave_path(&self) -> Vec<u8> {
        alloc::format!("/dev/pts/{}", self.pty.index).into_bytes()
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let (session, group) = {
            let mut s = self.pty.state.lock();
            s.held = false;
            (core::mem::take(&mut s.session), core::mem::take(&mut s.foreground))
        };
        ALL.lock().remove(&self.pty.index);
        self.pty.slave.wake_all(poll::ALL);
        // The line is dead (`tty_vhangup`).
        if let Some(leader) = crate::process::find_process(session) {
            signal::send_process(&leader, Siginfo::from_kernel(linux::SIGHUP, 0x80));
            signal::send_process(&leader, Siginfo::from_kernel(linux::SIGCONT, 0x80));
        }
        if group != session {
            jobs::signal_group(group, linux::SIGHUP);
            jobs::signal_group(group, linux::SIGCONT);
        }
    }
}

fn limit(nonblock: bool) -> Limit {
    if nonblock { Limit::Never } else { Limit::Forever }
}

impl File for Master {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        if sink.left() == 0 {
            return Ok(0);
        }
        let pty = &self.pty;
        let n = wait(&pty.master, poll::IN | poll::HUP, limit(nonblock), || {
            let mut s = pty.state.lock();
            if s.packets && s.happened != 0 {
                let put = sink.put(&[s.happened as u8]);
                if put.is_ok() {
                    s.happened = 0;
                }
                return Some(put);
            }
            if s.line.written() > 0 {
                let head = usize::from(s.packets);
                let mut bytes = alloc::vec![linux::TIOCPKT_DATA as u8; head];
                bytes.extend(s.line.peek_output(sink.left() - head));
                let put = sink.put(&bytes);
                if let Ok(n) = put {
                    s.line.take_output(n.saturating_sub(head));
                }
                return Some(put);
            }
            (s.opened && s.openings == 0).then_some(Err(Errno::EIO))
        })??;
        pty.slave.wake_all(poll::OUT | poll::WRNORM);
        Ok(n)
    }

    fn write(&self, source: &mut Source, _at: At, nonblock: bool) -> Result<(usize, u64)> {
        let pty = &self.pty;
        let mut done = 0;
        while source.left() > 0 {
            let room = wait(&pty.master, poll::OUT | poll::HUP, limit(nonblock), || {
                let room = pty.state.lock().line.input_room();
                (room > 0).then_some(room)
            });
            let mut bytes = [0; PIECE];
            let taken = room.and_then(|room| source.take(&mut bytes[..room.min(PIECE)]));
            let n = match taken {
                Ok(n) => n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            };
            done += n;
            let (signals, group) = {
                let mut s = pty.state.lock();
                let signals = s.change(|line| line.receive(&bytes[..n]));
                if !signals.is_empty() && !s.line.termios.local(linux::NOFLSH) {
                    s.note(linux::TIOCPKT_FLUSHREAD | linux::TIOCPKT_FLUSHWRITE);
                }
                (signals, s.foreground)
            };
            for number in signals {
                jobs::signal_group(group, number);
            }
            pty.slave.wake_all(poll::ALL);
            // Of what was typed something may be shown.
            pty.master.wake_all(poll::IN | poll::RDNORM);
        }
        Ok((done, 0))
    }

    fn ready(&self) -> u32 {
        let s = self.pty.state.lock();
        let mut bits = 0;
        if s.packets && s.happened != 0 {
            bits |= poll::PRI | poll::IN | poll::RDNORM;
        }
        if s.line.written() > 0 {
            bits |= poll::IN | poll::RDNORM;
        }
        if s.line.input_room() > 0 {
            bits |= poll::OUT | poll::WRNORM;
        }
        if s.opened && s.openings == 0 {
            bits |= poll::HUP;
        }
        bits
    }

    fn signals(&self) -> bool {
        true
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.pty.master)
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        self.pty.control(command, arg, true)
    }
}

/// The end that programs use as their terminal: one opening of it.
struct Slave {
    pty: Arc<Pty>,
}

impl Drop for Slave {
    fn drop(&mut self) {
        self.pty.state.lock().openings -= 1;
        self.pty.master.wake_all(poll::ALL);
    }
}

impl Slave {
    /// Waits until a read of `most` bytes has what it is to have (VMIN and VTIME, `termios(3)`). False: it has
    /// waited long enough.
    fn await_input(&self, most: usize, nonblock: bool) -> Result<bool> {
        let pty = &self.pty;
        let termios = pty.state.lock().line.termios;
        let raw = termios.lflag & linux::ICANON == 0;
        let least = usize::from(termios.cc[linux::VMIN as usize]);
        let tenths = u64::from(termios.cc[linux::VTIME as usize]) * 100_000_000;
        let until = |tenths: u64| Limit::Until(platform().now() + tenths);
        let enough = |n: usize| {
            let s = pty.state.lock();
            let there = if s.line.canonical() { s.line.has_input() } else { s.line.readable() >= n.max(1) };
            (there || !s.held).then_some(())
        };
        let bits = poll::IN | poll::HUP;
        let first = match (nonblock, raw && least == 0) {
            (true, _) => Limit::Never,
            (_, true) => until(tenths),
            _ => Limit::Forever,
        };
        // With a time, it is counted anew from each byte on; without one, all must be there.
        let wanted = if raw && least > 0 && tenths == 0 && !nonblock { least.min(most) } else { 1 };
        match wait(&pty.slave, bits, first, || enough(wanted)) {
            Ok(()) => {}
            Err(Errno::ETIMEDOUT) => return Ok(false),
            Err(e) => return Err(e),
        }
        if raw && least > 0 && tenths > 0 && !nonblock {
            loop {
                let there = pty.state.lock().line.readable();
                if there >= least.min(most) {
                    break;
                }
                match wait(&pty.slave, bits, until(tenths), || enough(there + 1)) {
                    Err(Errno::ETIMEDOUT) => break,
                    other => other?,
                }
                if !pty.state.lock().held {
                    break;
                }
            }
        }
        Ok(true)
    }
}

impl File for Slave {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        if sink.left() == 0 {
            return Ok(0);
        }
        self.pty.check(linux::SIGTTIN)?;
        loop {
            if !self.await_input(sink.left(), nonblock)? {
                return Ok(0);
            }
            let mut s = self.pty.state.lock();
            if !s.held {
                // Hung up: what was typed is nobody's.
                return Ok(0);
            }
            if !s.line.has_input() {
                // Another reader was faster.
                continue;
            }
            let bytes = s.line.peek_input(sink.left());
            let n = if bytes.is_empty() { 0 } else { sink.put(&bytes)? };
            s.line.take_input(n);
            drop(s);
            self.pty.master.wake_all(poll::OUT | poll::WRNORM);
            return Ok(n);
        }
    }

    fn write(&self, source: &mut Source, _at: At, nonblock: bool) -> Result<(usize, u64)> {
        let pty = &self.pty;
        if pty.state.lock().line.termios.local(linux::TOSTOP) {
            pty.check(linux::SIGTTOU)?;
        }
        let mut done = 0;
        while source.left() > 0 {
            let ready = wait(&pty.slave, poll::OUT | poll::HUP, limit(nonblock), || {
                let s = pty.state.lock();
                if !s.held {
                    return Some(Err(Errno::EIO));
                }
                (!s.line.stopped && s.line.written() < ROOM).then_some(Ok(()))
            });
            let mut bytes = [0; PIECE];
            match ready.and_then(|r| r).and_then(|()| source.take(&mut bytes)) {
                Ok(n) => {
                    let mut s = pty.state.lock();
                    bytes[..n].iter().for_each(|c| s.line.put(*c));
                    done += n;
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            pty.master.wake_all(poll::IN | poll::RDNORM);
        }
        Ok((done, 0))
    }

    fn ready(&self) -> u32 {
        let s = self.pty.state.lock();
        let mut bits = 0;
        let least = match (s.line.termios.cc[linux::VTIME as usize], s.line.termios.cc[linux::VMIN as usize])
        {
            (0, least) => usize::from(least).max(1),
            _ => 1,
        };
        if if s.line.canonical() { s.line.has_input() } else { s.line.readable() >= least } {
            bits |= poll::IN | poll::RDNORM;
        }
        if s.line.written() < ROOM {
            bits |= poll::OUT | poll::WRNORM;
        }
        if !s.held {
            bits |= poll::IN | poll::RDNORM | poll::OUT | poll::WRNORM | poll::ERR | poll::HUP;
        }
        bits
    }

    fn signals(&self) -> bool {
        true
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.pty.slave)
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        self.pty.control(command, arg, false)
    }
}

/// `/dev/pts`.
struct PtsFs {
    dev: u64,
    made: Time,
}

impl FileSystem for PtsFs {
    fn name(&self) -> &'static str {
        "devpts"
    }

    fn stat(&self) -> Result<StatFs> {
        // DEVPTS_SUPER_MAGIC.
        Ok(StatFs { kind: 0x1cd1, bsize: PAGE, namelen: 255, ..StatFs::default() })
    }
}

/// Its root, or a terminal.
struct PtsNode {
    fs: Arc<PtsFs>,
    index: Option<u32>,
}

/// The file system and its root.
pub fn pts_fs() -> (Arc<dyn FileSystem>, InodeRef) {
    // As Linux numbers file systems without a device.
    let fs = Arc::new(PtsFs { dev: 0x18, made: Time::now() });
    (fs.clone(), Arc::new(PtsNode { fs, index: None }))
}

impl PtsNode {
    fn pty(&self) -> Result<Arc<Pty>> {
        let index = self.index.ok_or(Errno::EISDIR)?;
        ALL.lock().get(&index).and_then(Weak::upgrade).ok_or(Errno::ENOENT)
    }
}

impl Inode for PtsNode {
    fn id(&self) -> u64 {
        self.index.map_or(1, |n| u64::from(n) + 3)
    }

    fn kind(&self) -> FileType {
        if self.index.is_some() { FileType::Character } else { FileType::Directory }
    }

    fn attr(&self) -> Result<Attr> {
        let base = Attr { ino: self.id(), dev: self.fs.dev, blksize: 1024, ..Attr::default() };
        if self.index.is_none() {
            let t = self.fs.made;
            let mode = linux::S_IFDIR | 0o755;
            return Ok(Attr { mode, nlink: 2, atime: t, mtime: t, ctime: t, ..base });
        }
        let Ok(pty) = self.pty() else {
            // Open, and hung up.
            return Ok(Attr { mode: linux::S_IFCHR | 0o620, nlink: 0, ..base });
        };
        let Node { mode, uid, gid, atime, mtime, ctime } = *pty.node.lock();
        let mode = linux::S_IFCHR | mode;
        Ok(Attr { mode, nlink: 1, uid, gid, rdev: pty.device(), atime, mtime, ctime, ..base })
    }

    fn set_attr(&self, change: &SetAttr, _cred: &Cred) -> Result<()> {
        if self.index.is_none() {
            return Err(Errno::EPERM);
        }
        let pty = self.pty()?;
        let mut node = pty.node.lock();
        // Truncating does nothing.
        *node = Node {
            mode: change.mode.map_or(node.mode, |mode| mode & 0o7777),
            uid: change.uid.unwrap_or(node.uid),
            gid: change.gid.unwrap_or(node.gid),
            atime: change.atime.unwrap_or(node.atime),
            mtime: change.mtime.unwrap_or(node.mtime),
            ctime: Time::now(),
        };
        Ok(())
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        if self.index.is_some() {
            return Err(Errno::ENOTDIR);
        }
        let index = core::str::from_utf8(name).ok().and_then(|n| n.parse().ok()).ok_or(Errno::ENOENT)?;
        let node = PtsNode { fs: self.fs.clone(), index: Some(index) };
        node.pty()?;
        Ok(Arc::new(node))
    }

    fn parent(&self) -> Option<InodeRef> {
        self.index.map(|_| Arc::new(PtsNode { fs: self.fs.clone(), index: None }) as InodeRef)
    }

    fn name(&self) -> Option<Vec<u8>> {
        self.index.map(|n| alloc::format!("{n}").into_bytes())
    }

    fn list(&self, from: u64, most: usize) -> Result<Vec<DirEntry>> {
        if self.index.is_some() {
            return Err(Errno::ENOTDIR);
        }
        let all: Vec<u32> = ALL.lock().keys().copied().collect();
        let entry = |n: u32| DirEntry {
            name: alloc::format!("{n}").into_bytes(),
            ino: u64::from(n) + 3,
            kind: FileType::Character,
            next: u64::from(n) + 1,
        };
        Ok(all.into_iter().filter(|n| u64::from(*n) >= from).take(most).map(entry).collect())
    }

    fn open(self: Arc<Self>, flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        if self.index.is_none() {
            return Ok(Arc::new(crate::dev::Directory));
        }
        self.pty().map_err(|_| Errno::EIO)?.open_slave(flags)
    }
}
