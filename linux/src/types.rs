//! Structures that programs and the personality exchange, as Linux lays them out on x86-64.
#![allow(missing_docs, reason = "the names are the manual pages'")]

use atoll_abi::layout::PAGE;
use atoll_abi::{Errno, Result};
use atoll_mem::user;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Reads a structure of the program's.
pub fn get<T: FromBytes + FromZeros + IntoBytes>(addr: u64) -> Result<T> {
    let mut value = T::new_zeroed();
    user::read(addr, value.as_mut_bytes())?;
    Ok(value)
}

/// Reads a structure that later kernels' may be longer than, or that an older one's are a beginning of: so many bytes of it are the
/// program's (`copy_struct_from_user` of Linux). E2BIG: what follows is not zero, or is more than a page.
pub fn get_beginning<T: FromBytes + FromZeros + IntoBytes>(addr: u64, len: u64) -> Result<T> {
    if len > PAGE {
        return Err(Errno::E2BIG);
    }
    let (mut value, mut rest) = (T::new_zeroed(), [0; 64]);
    let known = (len as usize).min(size_of::<T>());
    let mut at = addr.wrapping_add(known as u64);
    let mut left = len as usize - known;
    while left > 0 {
        let n = left.min(rest.len());
        user::read(at, &mut rest[..n])?;
        if rest[..n].iter().any(|b| *b != 0) {
            return Err(Errno::E2BIG);
        }
        (at, left) = (at.wrapping_add(n as u64), left - n);
    }
    user::read(addr, &mut value.as_mut_bytes()[..known])?;
    Ok(value)
}

/// Writes a structure to the program.
pub fn put<T: IntoBytes + Immutable>(addr: u64, value: &T) -> Result<()> {
    user::write(addr, value.as_bytes())
}

/// Reads a string that ends in a zero byte, of at most `most` bytes without it.
pub fn get_string(addr: u64, most: usize, too_long: Errno) -> Result<alloc::vec::Vec<u8>> {
    let mut out = alloc::vec::Vec::new();
    let mut buf = [0u8; 256];
    let mut at = addr;
    loop {
        // Up to the next 256-byte boundary: no byte of a page behind the string's end is needed.
        let n = 256 - (at as usize & 255);
        let got = user::read_some(at, &mut buf[..n])?;
        if let Some(end) = buf[..got].iter().position(|b| *b == 0) {
            out.extend_from_slice(&buf[..end]);
            return if out.len() > most { Err(too_long) } else { Ok(out) };
        }
        if got < n {
            return Err(Errno::EFAULT);
        }
        out.extend_from_slice(&buf[..n]);
        if out.len() > most {
            return Err(too_long);
        }
        at += n as u64;
    }
}

/// Reads a path.
pub fn get_path(addr: u64) -> Result<alloc::vec::Vec<u8>> {
    get_string(addr, atoll_fs::namespace::PATH_MAX, Errno::ENAMETOOLONG)
}

macro_rules! c_struct {
    ($(#[$m:meta])* $name:ident { $($field:ident: $t:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $t,)* }
    };
}

c_struct!(Timespec { sec: i64, nsec: i64 });
c_struct!(Timeval { sec: i64, usec: i64 });
c_struct!(Itimerspec { interval: Timespec, value: Timespec });
c_struct!(Itimerval { interval: Timeval, value: Timeval });
c_struct!(Timezone { minuteswest: i32, dsttime: i32 });
c_struct!(Iovec { base: u64, len: u64 });
c_struct!(Stat {
    dev: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    pad: u32,
    rdev: u64,
    size: i64,
    blksize: i64,
    blocks: i64,
    atime: i64,
    atime_nsec: i64,
    mtime: i64,
    mtime_nsec: i64,
    ctime: i64,
    ctime_nsec: i64,
    unused: [i64; 3],
});
c_struct!(StatxTime { sec: i64, nsec: u32, pad: i32 });
c_struct!(Statx {
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    pad: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    atime: StatxTime,
    btime: StatxTime,
    ctime: StatxTime,
    mtime: StatxTime,
    rdev_major: u32,
    rdev_minor: u32,
    dev_major: u32,
    dev_minor: u32,
    mnt_id: u64,
    spare: [u64; 13],
});
c_struct!(StatfsC {
    kind: i64,
    bsize: i64,
    blocks: u64,
    bfree: u64,
    bavail: u64,
    files: u64,
    ffree: u64,
    fsid: [i32; 2],
    namelen: i64,
    frsize: i64,
    flags: i64,
    spare: [i64; 4],
});
c_struct!(SigactionC { handler: u64, flags: u64, restorer: u64, mask: u64 });
c_struct!(StackT { sp: u64, flags: i32, pad: i32, size: u64 });
c_struct!(Rlimit { cur: u64, max: u64 });
c_struct!(Rusage {
    utime: Timeval,
    stime: Timeval,
    maxrss: i64,
    ixrss: i64,
    idrss: i64,
    isrss: i64,
    minflt: i64,
    majflt: i64,
    nswap: i64,
    inblock: i64,
    oublock: i64,
    msgsnd: i64,
    msgrcv: i64,
    nsignals: i64,
    nvcsw: i64,
    nivcsw: i64,
});
c_struct!(Sysinfo {
    uptime: i64,
    loads: [u64; 3],
    totalram: u64,
    freeram: u64,
    sharedram: u64,
    bufferram: u64,
    totalswap: u64,
    freeswap: u64,
    procs: u16,
    pad: u16,
    pad2: u32,
    totalhigh: u64,
    freehigh: u64,
    mem_unit: u32,
    pad3: u32,
});
c_struct!(Timex {
    modes: u32,
    pad: u32,
    offset: i64,
    freq: i64,
    maxerror: i64,
    esterror: i64,
    status: i32,
    pad2: u32,
    constant: i64,
    precision: i64,
    tolerance: i64,
    time: Timeval,
    tick: i64,
    ppsfreq: i64,
    jitter: i64,
    shift: i32,
    pad3: u32,
    stabil: i64,
    jitcnt: i64,
    calcnt: i64,
    errcnt: i64,
    stbcnt: i64,
    tai: i32,
    pad4: [u32; 11],
});
c_struct!(Tms { utime: i64, stime: i64, cutime: i64, cstime: i64 });
c_struct!(PollFd { fd: i32, events: i16, revents: i16 });
c_struct!(MsgHdr {
    name: u64,
    namelen: u32,
    pad: u32,
    iov: u64,
    iovlen: u64,
    control: u64,
    controllen: u64,
    flags: u32,
    pad2: u32,
});
c_struct!(MmsgHdr { hdr: MsgHdr, len: u32, pad: u32 });
c_struct!(CmsgHdr { len: u64, level: i32, kind: i32 });
c_struct!(Ucred { pid: i32, uid: u32, gid: u32 });
c_struct!(Linger { onoff: i32, linger: i32 });
c_struct!(CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
});
c_struct!(OpenHow { flags: u64, mode: u64, resolve: u64 });
c_struct!(Sigevent { value: u64, signo: i32, notify: i32, tid: i32, pad: [i32; 11] });
c_struct!(SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    least_used: u32,
    most_used: u32,
});
c_struct!(Flock { kind: i16, whence: i16, pad: i32, start: i64, len: i64, pid: i32, pad2: i32 });
c_struct!(IpcPerm {
    key: i32,
    uid: u32,
    gid: u32,
    cuid: u32,
    cgid: u32,
    mode: u32,
    seq: u16,
    pad: [u16; 3],
    unused: [u64; 2],
});
c_struct!(ShmidDs {
    perm: IpcPerm,
    segsz: u64,
    atime: i64,
    dtime: i64,
    ctime: i64,
    cpid: u32,
    lpid: u32,
    nattch: u64,
    unused: [u64; 2],
});
c_struct!(Shminfo { shmmax: u64, shmmin: u64, shmmni: u64, shmseg: u64, shmall: u64, unused: [u64; 4] });
c_struct!(ShmInfo { used_ids: i32, pad: u32, tot: u64, rss: u64, swp: u64, swaps: [u64; 2] });
c_struct!(SemidDs {
    perm: IpcPerm,
    otime: i64,
    unused1: u64,
    ctime: i64,
    unused2: u64,
    nsems: u64,
    unused: [u64; 2],
});
c_struct!(Sembuf { num: u16, op: i16, flags: i16 });
c_struct!(Seminfo {
    semmap: i32,
    semmni: i32,
    semmns: i32,
    semmnu: i32,
    semmsl: i32,
    semopm: i32,
    semume: i32,
    semusz: i32,
    semvmx: i32,
    semaem: i32,
});
c_struct!(MsqidDs {
    perm: IpcPerm,
    stime: i64,
    rtime: i64,
    ctime: i64,
    cbytes: u64,
    qnum: u64,
    qbytes: u64,
    lspid: u32,
    lrpid: u32,
    unused: [u64; 2],
});
c_struct!(Msginfo {
    msgpool: i32,
    msgmap: i32,
    msgmax: i32,
    msgmnb: i32,
    msgmni: i32,
    msgssz: i32,
    msgtql: i32,
    msgseg: u16,
    pad: u16,
});
c_struct!(MqAttr { flags: i64, maxmsg: i64, msgsize: i64, curmsgs: i64, reserved: [i64; 4] });
c_struct!(Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    reqprio: i16,
    fildes: u32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    reserved2: u64,
    flags: u32,
    resfd: u32,
});
c_struct!(FutexWaitv { value: u64, addr: u64, flags: u32, reserved: u32 });
c_struct!(AioSigset { mask: u64, size: u64 });
c_struct!(SignalfdSiginfo {
    signo: u32,
    errno: i32,
    code: i32,
    pid: u32,
    uid: u32,
    fd: i32,
    tid: u32,
    band: u32,
    overrun: u32,
    trapno: u32,
    status: i32,
    int: i32,
    ptr: u64,
    utime: u64,
    stime: u64,
    addr: u64,
    pad: [u64; 6],
});

/// `struct epoll_event`, which is packed on x86-64.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
pub struct EpollEvent {
    pub events: u32,
    pub data: u64,
}

/// `siginfo_t`: 128 bytes whose use depends on the signal.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Siginfo {
    pub signo: i32,
    pub errno: i32,
    pub code: i32,
    pad: i32,
    pub words: [u64; 14],
}

/// `si_code` of what a POSIX timer sends.
const SI_TIMER: i32 = -2;

impl core::fmt::Debug for Siginfo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "signal {} code {}", self.signo, self.code)
    }
}

impl Siginfo {
    /// Sent by `kill` and its kind: sender and value.
    pub fn from_user(signo: u32, code: i32, pid: u32, uid: u32, value: u64) -> Self {
        let mut s = Siginfo { signo: signo as i32, errno: 0, code, pad: 0, words: [0; 14] };
        s.words[0] = u64::from(pid) | u64::from(uid) << 32;
        s.words[1] = value;
        s
    }

    /// Sent by the kernel for no one in particular.
    pub fn from_kernel(signo: u32, code: i32) -> Self {
        Self::from_user(signo, code, 0, 0, 0)
    }

    /// A fault at an address.
    pub fn fault(signo: u32, code: i32, addr: u64) -> Self {
        let mut s = Self::from_kernel(signo, code);
        s.words[0] = addr;
        s
    }

    /// A child changed its state.
    pub fn child(code: i32, pid: u32, uid: u32, status: i32, utime: u64, stime: u64) -> Self {
        let mut s = Self::from_user(linux_raw_sys::general::SIGCHLD, code, pid, uid, 0);
        s.words[1] = status as u32 as u64;
        s.words[2] = utime;
        s.words[3] = stime;
        s
    }

    /// A file got ready, for the `reason` (POLL_...) and by the `poll(2)` bits that say the same.
    pub fn ready(signo: u32, reason: u32, band: u32, fd: u32) -> Self {
        use linux_raw_sys::general as linux;
        // Those whose codes mean something of their own.
        let own = [
            linux::SIGILL,
            linux::SIGFPE,
            linux::SIGSEGV,
            linux::SIGBUS,
            linux::SIGTRAP,
            linux::SIGCHLD,
            linux::SIGSYS,
        ];
        let code = if own.contains(&signo) { linux::SI_SIGIO } else { reason as i32 };
        let mut s = Self::from_kernel(signo, code);
        s.words[0] = band.into();
        s.words[1] = fd.into();
        s
    }

    /// A POSIX timer ran out.
    pub fn timer(signo: u32, id: i32, overrun: i32, value: u64) -> Self {
        let mut s = Self::from_kernel(signo, SI_TIMER);
        s.words[0] = u64::from(id as u32) | u64::from(overrun as u32) << 32;
        s.words[1] = value;
        s
    }

    /// The POSIX timer that sent it.
    pub fn timer_id(&self) -> Option<i32> {
        (self.code == SI_TIMER).then_some(self.words[0] as i32)
    }

    /// How often that timer ran out again before this was taken; 0 if no timer sent it.
    pub fn overrun(&self) -> u32 {
        if self.timer_id().is_some() { (self.words[0] >> 32) as u32 } else { 0 }
    }

    /// The timer ran out `times` again before this was taken.
    pub fn add_overrun(&mut self, times: u64) {
        let sum = ((self.words[0] >> 32) + times).min(i32::MAX as u64);
        self.words[0] = self.words[0] & 0xffff_ffff | sum << 32;
    }

    /// Process that sent it.
    pub fn pid(&self) -> u32 {
        self.words[0] as u32
    }
}

impl Timespec {
    /// From nanoseconds.
    pub fn from_ns(ns: u64) -> Self {
        Timespec { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as i64 }
    }

    /// To nanoseconds; EINVAL if it is no time. Very long is for ever (KTIME_MAX): half of what the number holds, so that sums fit, too.
    pub fn to_ns(self) -> Result<u64> {
        if self.sec < 0 || !(0..1_000_000_000).contains(&self.nsec) {
            return Err(Errno::EINVAL);
        }
        let ns = (self.sec as u64).saturating_mul(1_000_000_000).saturating_add(self.nsec as u64);
        Ok(ns.min(i64::MAX as u64))
    }
}

impl Timeval {
    /// From nanoseconds.
    pub fn from_ns(ns: u64) -> Self {
        Timeval { sec: (ns / 1_000_000_000) as i64, usec: (ns % 1_000_000_000 / 1000) as i64 }
    }

    /// To nanoseconds, as [`Timespec::to_ns`].
    pub fn to_ns(self) -> Result<u64> {
        if self.sec < 0 || !(0..1_000_000).contains(&self.usec) {
            return Err(Errno::EINVAL);
        }
        let ns = (self.sec as u64).saturating_mul(1_000_000_000).saturating_add(self.usec as u64 * 1000);
        Ok(ns.min(i64::MAX as u64))
    }
}

impl Stat {
    /// From attributes.
    pub fn from_attr(a: &atoll_fs::Attr) -> Self {
        Stat {
            dev: a.dev,
            ino: a.ino,
            nlink: u64::from(a.nlink),
            mode: a.mode,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            size: a.size as i64,
            blksize: i64::from(a.blksize),
            blocks: a.blocks as i64,
            atime: a.atime.sec,
            atime_nsec: i64::from(a.atime.nsec),
            mtime: a.mtime.sec,
            mtime_nsec: i64::from(a.mtime.nsec),
            ctime: a.ctime.sec,
            ctime_nsec: i64::from(a.ctime.nsec),
            ..Stat::default()
        }
    }
}

const _: () = assert!(size_of::<Stat>() == 144);
const _: () = assert!(size_of::<Statx>() == 256);
const _: () = assert!(size_of::<Siginfo>() == 128);
const _: () = assert!(size_of::<SignalfdSiginfo>() == 128);
const _: () = assert!(size_of::<EpollEvent>() == 12);
const _: () = assert!(size_of::<Sysinfo>() == 112);
const _: () = assert!(size_of::<Rusage>() == 144);
const _: () = assert!(size_of::<MsgHdr>() == 56);
const _: () = assert!(size_of::<ShmidDs>() == 112);
const _: () = assert!(size_of::<SemidDs>() == 104);
const _: () = assert!(size_of::<MsqidDs>() == 120);
const _: () = assert!(size_of::<MqAttr>() == 64);
const _: () = assert!(size_of::<Iocb>() == 64);
const _: () = assert!(size_of::<Sigevent>() == 64);
