//! What a cell's processes may ask of the host.
//!
//! Four walls, each enough to stop most attacks by itself: the processes see
//! an empty file system, their own processes only, and nobody's System V IPC
//! (namespaces); they have no privilege and can gain none; Landlock denies
//! file, network and signal access whatever descriptors say; and seccomp
//! filters let through only the calls of the platform, listed here:
//! [`ALLOWED`] in the processes that run programs, [`STARTING`] besides in the
//! one that makes them and in themselves before they run anything. The lists
//! in `docs/security.md` are generated from these.
#![allow(unsafe_code, reason = "changes the process's credentials")]

use std::os::fd::RawFd;

use crate::filter::{Program, compile};
use crate::{Error, Result};

/// A restriction on one argument of an allowed call.
#[derive(Clone, Copy, Debug)]
pub enum Only {
    /// Whatever the arguments.
    Any,
    /// Argument `.0` (from 0) is one of these, of these names.
    Among(u8, &'static [(u64, &'static str)]),
    /// Argument `.0` is another descriptor than that of the cell's memory.
    NotMemory(u8),
    /// Argument `.0` has none of these bits, of this name.
    Without(u8, u64, &'static str),
    /// Arguments 1 and 2 are one of these pairs, of these names.
    Pairs(&'static [(u64, u64, &'static str)]),
}

impl std::fmt::Display for Only {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |names: &mut dyn Iterator<Item = &'static str>| names.collect::<Vec<_>>().join(", ");
        match self {
            Only::Any => f.write_str("any"),
            Only::Among(n, values) => {
                write!(f, "argument {}: {}", n + 1, list(&mut values.iter().map(|v| v.1)))
            }
            Only::NotMemory(n) => write!(f, "argument {}: not the cell's memory", n + 1),
            Only::Without(n, _, name) => write!(f, "argument {}: without {name}", n + 1),
            Only::Pairs(pairs) => f.write_str(&list(&mut pairs.iter().map(|p| p.2))),
        }
    }
}

/// A host call that a cell may make.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub number: i64,
    /// Under which condition.
    pub only: Only,
    /// What for.
    pub why: &'static str,
}

const SOL_SOCKET: u64 = libc::SOL_SOCKET as u64;
const TCP: u64 = libc::IPPROTO_TCP as u64;
const UDP: u64 = libc::IPPROTO_UDP as u64;
const IP: u64 = libc::IPPROTO_IP as u64;
const IPV6: u64 = libc::IPPROTO_IPV6 as u64;

/// Socket options that a cell may set itself.
pub const SOCKET_OPTIONS: &[(u64, u64, &str)] = &[
    (SOL_SOCKET, libc::SO_REUSEADDR as u64, "SO_REUSEADDR"),
    (SOL_SOCKET, libc::SO_REUSEPORT as u64, "SO_REUSEPORT"),
    (SOL_SOCKET, libc::SO_KEEPALIVE as u64, "SO_KEEPALIVE"),
    (SOL_SOCKET, libc::SO_LINGER as u64, "SO_LINGER"),
    (SOL_SOCKET, libc::SO_SNDBUF as u64, "SO_SNDBUF"),
    (SOL_SOCKET, libc::SO_RCVBUF as u64, "SO_RCVBUF"),
    (SOL_SOCKET, libc::SO_BROADCAST as u64, "SO_BROADCAST"),
    (SOL_SOCKET, libc::SO_OOBINLINE as u64, "SO_OOBINLINE"),
    (SOL_SOCKET, libc::SO_PRIORITY as u64, "SO_PRIORITY"),
    (SOL_SOCKET, libc::SO_DONTROUTE as u64, "SO_DONTROUTE"),
    (SOL_SOCKET, libc::SO_BINDTODEVICE as u64, "SO_BINDTODEVICE"),
    (SOL_SOCKET, libc::SO_RCVLOWAT as u64, "SO_RCVLOWAT"),
    (SOL_SOCKET, libc::SO_TIMESTAMP as u64, "SO_TIMESTAMP"),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS as u64, "SO_TIMESTAMPNS"),
    (SOL_SOCKET, libc::SO_RXQ_OVFL as u64, "SO_RXQ_OVFL"),
    (SOL_SOCKET, libc::SO_MAX_PACING_RATE as u64, "SO_MAX_PACING_RATE"),
    (SOL_SOCKET, libc::SO_NO_CHECK as u64, "SO_NO_CHECK"),
    (SOL_SOCKET, numbers::SO_BUF_LOCK, "SO_BUF_LOCK"),
    (SOL_SOCKET, numbers::SO_TXREHASH, "SO_TXREHASH"),
    (TCP, libc::TCP_NODELAY as u64, "TCP_NODELAY"),
    (TCP, libc::TCP_CONGESTION as u64, "TCP_CONGESTION"),
    (TCP, libc::TCP_CORK as u64, "TCP_CORK"),
    (TCP, libc::TCP_KEEPIDLE as u64, "TCP_KEEPIDLE"),
    (TCP, libc::TCP_KEEPINTVL as u64, "TCP_KEEPINTVL"),
    (TCP, libc::TCP_KEEPCNT as u64, "TCP_KEEPCNT"),
    (TCP, libc::TCP_USER_TIMEOUT as u64, "TCP_USER_TIMEOUT"),
    (TCP, libc::TCP_QUICKACK as u64, "TCP_QUICKACK"),
    (TCP, libc::TCP_DEFER_ACCEPT as u64, "TCP_DEFER_ACCEPT"),
    (TCP, libc::TCP_FASTOPEN as u64, "TCP_FASTOPEN"),
    (TCP, libc::TCP_MAXSEG as u64, "TCP_MAXSEG"),
    (TCP, libc::TCP_SYNCNT as u64, "TCP_SYNCNT"),
    (TCP, libc::TCP_LINGER2 as u64, "TCP_LINGER2"),
    (TCP, libc::TCP_NOTSENT_LOWAT as u64, "TCP_NOTSENT_LOWAT"),
    (TCP, libc::TCP_THIN_LINEAR_TIMEOUTS as u64, "TCP_THIN_LINEAR_TIMEOUTS"),
    (TCP, libc::TCP_WINDOW_CLAMP as u64, "TCP_WINDOW_CLAMP"),
    (TCP, libc::TCP_THIN_DUPACK as u64, "TCP_THIN_DUPACK"),
    (TCP, libc::TCP_SAVE_SYN as u64, "TCP_SAVE_SYN"),
    (TCP, numbers::TCP_FASTOPEN_NO_COOKIE, "TCP_FASTOPEN_NO_COOKIE"),
    (UDP, libc::UDP_CORK as u64, "UDP_CORK"),
    (UDP, libc::UDP_SEGMENT as u64, "UDP_SEGMENT"),
    (UDP, libc::UDP_GRO as u64, "UDP_GRO"),
    (UDP, numbers::UDP_NO_CHECK6_TX, "UDP_NO_CHECK6_TX"),
    (UDP, numbers::UDP_NO_CHECK6_RX, "UDP_NO_CHECK6_RX"),
    (IP, libc::IP_FREEBIND as u64, "IP_FREEBIND"),
    (IP, libc::IP_BIND_ADDRESS_NO_PORT as u64, "IP_BIND_ADDRESS_NO_PORT"),
    (IP, libc::IP_RECVORIGDSTADDR as u64, "IP_RECVORIGDSTADDR"),
    (IP, libc::IP_MINTTL as u64, "IP_MINTTL"),
    (IP, libc::IP_UNICAST_IF as u64, "IP_UNICAST_IF"),
    (IP, numbers::IP_LOCAL_PORT_RANGE, "IP_LOCAL_PORT_RANGE"),
    (IP, libc::IP_TOS as u64, "IP_TOS"),
    (IP, libc::IP_TTL as u64, "IP_TTL"),
    (IP, libc::IP_PKTINFO as u64, "IP_PKTINFO"),
    (IP, libc::IP_RECVERR as u64, "IP_RECVERR"),
    (IP, libc::IP_RECVTOS as u64, "IP_RECVTOS"),
    (IP, libc::IP_RECVTTL as u64, "IP_RECVTTL"),
    (IP, libc::IP_RECVOPTS as u64, "IP_RECVOPTS"),
    (IP, libc::IP_RETOPTS as u64, "IP_RETOPTS"),
    (IP, libc::IP_MTU_DISCOVER as u64, "IP_MTU_DISCOVER"),
    (IP, libc::IP_MULTICAST_IF as u64, "IP_MULTICAST_IF"),
    (IP, libc::IP_MULTICAST_TTL as u64, "IP_MULTICAST_TTL"),
    (IP, libc::IP_MULTICAST_LOOP as u64, "IP_MULTICAST_LOOP"),
    (IP, libc::IP_ADD_MEMBERSHIP as u64, "IP_ADD_MEMBERSHIP"),
    (IP, libc::IP_DROP_MEMBERSHIP as u64, "IP_DROP_MEMBERSHIP"),
    (IP, libc::IP_MULTICAST_ALL as u64, "IP_MULTICAST_ALL"),
    (IP, libc::IP_ADD_SOURCE_MEMBERSHIP as u64, "IP_ADD_SOURCE_MEMBERSHIP"),
    (IP, libc::IP_DROP_SOURCE_MEMBERSHIP as u64, "IP_DROP_SOURCE_MEMBERSHIP"),
    (IP, libc::IP_BLOCK_SOURCE as u64, "IP_BLOCK_SOURCE"),
    (IP, libc::IP_UNBLOCK_SOURCE as u64, "IP_UNBLOCK_SOURCE"),
    (IP, libc::MCAST_JOIN_GROUP as u64, "MCAST_JOIN_GROUP"),
    (IP, libc::MCAST_LEAVE_GROUP as u64, "MCAST_LEAVE_GROUP"),
    (IP, libc::MCAST_JOIN_SOURCE_GROUP as u64, "MCAST_JOIN_SOURCE_GROUP"),
    (IP, libc::MCAST_LEAVE_SOURCE_GROUP as u64, "MCAST_LEAVE_SOURCE_GROUP"),
    (IP, libc::MCAST_BLOCK_SOURCE as u64, "MCAST_BLOCK_SOURCE"),
    (IP, libc::MCAST_UNBLOCK_SOURCE as u64, "MCAST_UNBLOCK_SOURCE"),
    (IPV6, libc::IPV6_V6ONLY as u64, "IPV6_V6ONLY"),
    (IPV6, libc::IPV6_FREEBIND as u64, "IPV6_FREEBIND"),
    (IPV6, libc::IPV6_RECVPKTINFO as u64, "IPV6_RECVPKTINFO"),
    (IPV6, libc::IPV6_RECVERR as u64, "IPV6_RECVERR"),
    (IPV6, libc::IPV6_MTU_DISCOVER as u64, "IPV6_MTU_DISCOVER"),
    (IPV6, libc::IPV6_MTU as u64, "IPV6_MTU"),
    (IPV6, libc::IPV6_DONTFRAG as u64, "IPV6_DONTFRAG"),
    (IPV6, libc::IPV6_RECVORIGDSTADDR as u64, "IPV6_RECVORIGDSTADDR"),
    (IPV6, libc::IPV6_TCLASS as u64, "IPV6_TCLASS"),
    (IPV6, libc::IPV6_RECVTCLASS as u64, "IPV6_RECVTCLASS"),
    (IPV6, libc::IPV6_RECVHOPLIMIT as u64, "IPV6_RECVHOPLIMIT"),
    (IPV6, libc::IPV6_UNICAST_HOPS as u64, "IPV6_UNICAST_HOPS"),
    (IPV6, libc::IPV6_MINHOPCOUNT as u64, "IPV6_MINHOPCOUNT"),
    (IPV6, libc::IPV6_UNICAST_IF as u64, "IPV6_UNICAST_IF"),
    (IPV6, libc::IPV6_ADDR_PREFERENCES as u64, "IPV6_ADDR_PREFERENCES"),
    (IPV6, libc::IPV6_AUTOFLOWLABEL as u64, "IPV6_AUTOFLOWLABEL"),
    (IPV6, libc::IPV6_MULTICAST_IF as u64, "IPV6_MULTICAST_IF"),
    (IPV6, libc::IPV6_MULTICAST_HOPS as u64, "IPV6_MULTICAST_HOPS"),
    (IPV6, libc::IPV6_MULTICAST_LOOP as u64, "IPV6_MULTICAST_LOOP"),
    (IPV6, libc::IPV6_ADD_MEMBERSHIP as u64, "IPV6_ADD_MEMBERSHIP"),
    (IPV6, libc::IPV6_DROP_MEMBERSHIP as u64, "IPV6_DROP_MEMBERSHIP"),
    (IPV6, libc::IPV6_MULTICAST_ALL as u64, "IPV6_MULTICAST_ALL"),
    (IPV6, libc::IPV6_RECVPATHMTU as u64, "IPV6_RECVPATHMTU"),
    (IPV6, libc::MCAST_JOIN_GROUP as u64, "MCAST_JOIN_GROUP"),
    (IPV6, libc::MCAST_LEAVE_GROUP as u64, "MCAST_LEAVE_GROUP"),
    (IPV6, libc::MCAST_JOIN_SOURCE_GROUP as u64, "MCAST_JOIN_SOURCE_GROUP"),
    (IPV6, libc::MCAST_LEAVE_SOURCE_GROUP as u64, "MCAST_LEAVE_SOURCE_GROUP"),
    (IPV6, libc::MCAST_BLOCK_SOURCE as u64, "MCAST_BLOCK_SOURCE"),
    (IPV6, libc::MCAST_UNBLOCK_SOURCE as u64, "MCAST_UNBLOCK_SOURCE"),
];

/// Numbers of calls.
#[allow(non_upper_case_globals, reason = "as the crate writes them")]
mod numbers {
    pub use libc::*;
    // What the crate does not have, from linux/socket.h, in.h, tcp.h and udp.h.
    pub const SO_BUF_LOCK: u64 = 72;
    pub const SO_TXREHASH: u64 = 74;
    pub const TCP_FASTOPEN_NO_COOKIE: u64 = 34;
    pub const UDP_NO_CHECK6_TX: u64 = 101;
    pub const UDP_NO_CHECK6_RX: u64 = 102;
    pub const IP_LOCAL_PORT_RANGE: u64 = 51;
    // Too new for the crate: Linux 6.7.
    pub const SYS_futex_wake: i64 = 454;
    pub const SYS_futex_wait: i64 = 455;
}

macro_rules! allowed {
    ($($name:ident $number:ident $only:expr, $why:literal;)*) => {
        &[$(Allowed { name: stringify!($name), number: numbers::$number, only: $only, why: $why },)*]
    };
}

/// All of them.
pub const ALLOWED: &[Allowed] = allowed! {
    futex SYS_futex Only::Among(1, &[(libc::FUTEX_WAIT as u64, "FUTEX_WAIT"), (libc::FUTEX_WAKE as u64, "FUTEX_WAKE")]), "wait for the baton of a core; wake serving threads";
    futex_wait SYS_futex_wait Only::Any, "the same, from Linux 6.7 on";
    futex_wake SYS_futex_wake Only::Any, "the same, from Linux 6.7 on";
    sched_yield SYS_sched_yield Only::Any, "have the thread run that a core's baton went to";
    epoll_pwait2 SYS_epoll_pwait2 Only::Any, "sleep until an event, a bell or a deadline";
    epoll_ctl SYS_epoll_ctl Only::Any, "watch a socket";
    write SYS_write Only::NotMemory(0), "ring a core's bell; log lines";
    timer_settime SYS_timer_settime Only::Any, "arm a core's deadline";
    tgkill SYS_tgkill Only::Among(2, &[(libc::SIGURG as u64, "SIGURG")]), "interrupt a core of this cell";
    rt_sigreturn SYS_rt_sigreturn Only::Any, "return from an upcall that was only noted";
    mmap SYS_mmap Only::Without(3, libc::MAP_ANONYMOUS as u64, "MAP_ANONYMOUS"), "map the cell's memory and granted files";
    munmap SYS_munmap Only::Any, "unmap";
    mprotect SYS_mprotect Only::Any, "change access to a mapping";
    preadv2 SYS_preadv2 Only::Any, "read a granted file if that needs no waiting";
    pwritev2 SYS_pwritev2 Only::NotMemory(0), "write to a standard stream that is no terminal";
    fstat SYS_fstat Only::Any, "size and times of a granted file";
    recvfrom SYS_recvfrom Only::Any, "receive from a socket";
    sendto SYS_sendto Only::Any, "send to a socket";
    recvmsg SYS_recvmsg Only::Any, "the same with addresses and control messages; take granted descriptors";
    sendmsg SYS_sendmsg Only::Any, "the same with an address or several pieces";
    poll SYS_poll Only::Any, "what a socket is ready for";
    accept4 SYS_accept4 Only::Any, "take a connection of a listening socket";
    shutdown SYS_shutdown Only::Any, "close one direction of a socket";
    getsockname SYS_getsockname Only::Any, "a socket's address";
    getpeername SYS_getpeername Only::Any, "its peer's address";
    getsockopt SYS_getsockopt Only::Any, "a socket's options and pending error";
    setsockopt SYS_setsockopt Only::Pairs(SOCKET_OPTIONS), "options that concern one socket only";
    ioctl SYS_ioctl Only::Among(1, &[(libc::FIONREAD, "FIONREAD"), (libc::TIOCOUTQ, "TIOCOUTQ")]), "bytes queued in a socket";
    close SYS_close Only::Any, "let a descriptor go";
    clock_gettime SYS_clock_gettime Only::Any, "clocks, where the vDSO can't read them";
    gettimeofday SYS_gettimeofday Only::Any, "as above";
    time SYS_time Only::Any, "as above";
    getrandom SYS_getrandom Only::Any, "random bytes";
    exit SYS_exit Only::Any, "end a thread";
    exit_group SYS_exit_group Only::Any, "end a space or the cell";
};

/// Flags by which the cell's first process makes further ones, and these their threads.
const CLONES: &[(u64, &str)] = &[
    ((libc::CLONE_FILES | libc::SIGCHLD) as u64, "a process (CLONE_FILES)"),
    (
        (libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM) as u64,
        "a thread",
    ),
];

/// Calls that are made besides where no program runs: by the cell's first
/// process, and by others until they lock themselves in.
pub const STARTING: &[Allowed] = allowed! {
    clone SYS_clone Only::Among(0, CLONES), "make a space's process and its threads";
    wait4 SYS_wait4 Only::Any, "collect processes that ended";
    kill SYS_kill Only::Among(1, &[(libc::SIGKILL as u64, "SIGKILL")]), "end a space's process";
    rt_sigtimedwait SYS_rt_sigtimedwait Only::Any, "wait for wishes and for children that end";
    rt_sigprocmask SYS_rt_sigprocmask Only::Any, "take signals one by one";
    rt_sigaction SYS_rt_sigaction Only::Any, "install the handler that makes upcalls of signals";
    sigaltstack SYS_sigaltstack Only::Any, "the stack that it runs on";
    timer_create SYS_timer_create Only::Any, "a core's deadline";
    sched_setaffinity SYS_sched_setaffinity Only::Among(0, &[(0, "itself")]), "pin a core's thread";
    mremap SYS_mremap Only::Any, "move the host's clock code beside the runtime";
    perf_event_open SYS_perf_event_open Only::Among(1, &[(0, "itself")]), "a core's counter (`--counter`)";
    getpid SYS_getpid Only::Any, "own ids";
    gettid SYS_gettid Only::Any, "own ids";
    prctl SYS_prctl Only::Among(0, &[
            (libc::PR_SET_PDEATHSIG as u64, "PR_SET_PDEATHSIG"),
            (PR_SET_SYSCALL_USER_DISPATCH, "PR_SET_SYSCALL_USER_DISPATCH"),
        ]),
        "end with the parent; dispatch the program's own system calls to the runtime";
    seccomp SYS_seccomp Only::Among(0, &[(1, "SECCOMP_SET_MODE_FILTER")]), "lock in: the list above and nothing more";
};

/// From Linux 5.11.
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

/// The filter of processes that run programs: [`ALLOWED`], anything else fails with EPERM. `memory`: the descriptor of the cell's memory.
pub fn filter(memory: RawFd) -> Result<Program> {
    compile(ALLOWED.iter().map(|call| (call.number, call.only)), memory as u32)
}

/// The filter that a cell's first process starts with, and all others inherit.
pub fn starting_filter(memory: RawFd) -> Result<Program> {
    compile(ALLOWED.iter().chain(STARTING).map(|call| (call.number, call.only)), memory as u32)
}

/// Denies this process and its children all access by path, by network
/// address, and to signals outside, where the host has Landlock. Value: does it?
pub fn landlock() -> bool {
    use landlock::{
        ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus, Scope,
    };
    let abi = ABI::V6;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|r| r.handle_access(AccessNet::from_all(abi)))
        .and_then(|r| r.scope(Scope::from_all(abi)))
        .and_then(|r| r.create())
        .and_then(|r| r.restrict_self());
    ruleset.is_ok_and(|r| r.ruleset != RulesetStatus::NotEnforced)
}

/// Lets this process and its children make only the calls that starting and running take.
pub fn lock_in(filter: &Program) -> Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: a valid program. Without privileges it takes that none can be gained.
    let locked = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) == 0
    };
    if locked { Ok(()) } else { Err(Error::host("the host refused the system-call filter")) }
}

/// Bounds what this process and its children can make the host keep for them:
/// no core files; private writable memory, which would come on top of the
/// cell's own, only for the stacks of `cores` host threads.
pub fn limit_memory(cores: usize) -> std::io::Result<()> {
    const ROOM: u64 = 1 << 20;
    let private = cores as u64 * atoll_abi::layout::HOST_THREAD_SIZE + ROOM;
    for (which, most) in [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_DATA, private)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a valid limit.
        if unsafe { libc::setrlimit(which, &raw const limit) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives up every capability, and root's identity if this process has it.
pub fn drop_privileges() -> std::io::Result<()> {
    const NOBODY: u32 = 65534;
    let check = |r: i32| if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: plain system calls on this process.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        for cap in 0..64 {
            if libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) != 0 {
                break;
            }
        }
        if libc::geteuid() == 0 {
            // In a user namespace with one user mapped these fail, and there is nobody else to become.
            if libc::setgroups(0, std::ptr::null()) == 0 && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0 {
                check(libc::setresuid(NOBODY, NOBODY, NOBODY))?;
            }
        }
        let header: [u32; 2] = [0x2008_0522, 0];
        let none = [0u32; 6];
        check(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) as i32)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_fits() {
        let program = filter(-1).unwrap();
        assert!(program.len() <= atoll_abi::start::FILTER_MAX, "{} instructions", program.len());
        starting_filter(-1).unwrap();
    }

    #[test]
    fn nothing_dangerous_is_allowed() {
        for n in [
            libc::SYS_open,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_connect,
            libc::SYS_socket,
            libc::SYS_mount,
            libc::SYS_kill,
            libc::SYS_io_uring_setup,
            libc::SYS_clone,
            libc::SYS_bpf,
            libc::SYS_prctl,
            libc::SYS_process_vm_readv,
            libc::SYS_rt_sigaction,
            libc::SYS_memfd_create,
            libc::SYS_perf_event_open,
        ] {
            assert!(ALLOWED.iter().all(|a| a.number != n), "{n}");
        }
    }
}
