//! Service messages: what a cell asks of a serving thread (XOS section IV.D,
//! "message-based system calls"; architecture section 3, "host services").
//!
//! A request is 128 bytes, an answer 32. Names and data lie in the cell's
//! extents and are named by offset, never by a program's address, so that the
//! server needs no view of any space. The server copies a request before it
//! looks at it and checks every offset.

use crate::grid::Resource;
use crate::ring::{Ring, Words};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A run of bytes in the cell's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Extent {
    /// Offset from the start of the cell's memory, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
}

/// What is asked. The comments name the arguments (`arg[0]`...), the buffers and the answer's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Op {
    /// Nothing; answers 0. For measuring the path.
    Nop = 0,
    /// Attributes of `arg[0]`=mount, path `a`, the last component not followed. [`HostAttr`] into `b`.
    Stat,
    /// Names and attributes of the directory `a` on mount `arg[0]`, from the
    /// host's position `arg[1]` on (0: the start), as [`HostDirent`] records
    /// into `b`. Value: bytes written; `extra`: where to go on, 0 at the end.
    /// `arg[2]` = 1: only names and kinds.
    ReadDir,
    /// Target of the symbolic link `a` on mount `arg[0]` into `b`. Value: length.
    ReadLink,
    /// Opens `a` on mount `arg[0]` with Linux flags `arg[1]` and mode `arg[2]` (see [`Op::mode_argument`]); with
    /// O_TMPFILE, makes a file without a name in the directory `a`.
    /// [`HostAttr`] into `b`. Value: a handle. `arg[3]` = 1: pass the file descriptor, too.
    Open,
    /// Lets handle `arg[0]` go, and those whose numbers are in `a`, 8 bytes each, [`RELEASED_MAX`] at most. Those that are none are passed over there.
    /// `arg[1]` = 1: the locks of its opening go before.
    Release,
    /// Passes a file descriptor of handle `arg[0]`.
    PassFd,
    /// Reads from handle `arg[0]` at offset `arg[1]` into `a`, and `b` when `a` is full. Value: bytes.
    Read,
    /// Writes `a`, then `b`, to handle `arg[0]` at offset `arg[1]`, or, if
    /// `arg[2]` = 1, at whatever is the file's end. Value: bytes. With `arg[3]` = 1 or, for data only, 2: writes `a` alone; when all of it
    /// is written, tells [`HostAttr`] in `c`, if there is one, stores 1 into `b`, 1 byte, and flushes the handle to its device. `extra`: the
    /// error number of that, or 0.
    Write,
    /// Flushes handle `arg[0]` to its device; `arg[1]` = 1: data only; `arg[1]` = 2: all of the file system of mount `arg[0]`.
    Sync,
    /// [`HostAttr`] of handle `arg[0]` into `b`.
    StatHandle,
    /// Sets the length of handle `arg[0]` to `arg[1]`.
    Truncate,
    /// `fallocate(2)` on handle `arg[0]`: mode `arg[1]`, offset `arg[2]`, length `arg[3]`.
    Allocate,
    /// Makes directory `a` on mount `arg[0]` with mode `arg[1]` (see [`Op::mode_argument`]). This and the others that change names or the attributes of files ([`Op::changes_tree`])
    /// put a [`HostChanged`] into `c`, if that is not empty.
    MakeDir,
    /// Removes the name `a` on mount `arg[0]`; `arg[1]` = 1: a directory.
    Unlink,
    /// Renames `a` on mount `arg[0]` to `b`, with `renameat2(2)` flags `arg[1]`.
    Rename,
    /// Gives the file `a` on mount `arg[0]`, or that of handle `arg[1]` if that is not 0, the further name `b`.
    Link,
    /// Makes the symbolic link `b` with target `a` on mount `arg[0]`.
    SymLink,
    /// Makes a FIFO, a socket's name or an empty regular file `a` on mount `arg[0]` with mode `arg[1]` (see [`Op::mode_argument`]).
    /// A socket's name, with its type in `arg[2]`, on a volume: a host socket is bound to it, if that can be: `extra` is
    /// [`WALK_OPENED`] and its handle, for [`Op::Listen`]; passes the descriptor. One for datagrams says who sent each (SO_PASSCRED).
    MakeNode,
    /// Changes attributes of `a` on mount `arg[0]`, or, if `arg[1]` = 1, of
    /// handle `arg[2]`; [`HostSetAttr`] in `b`.
    SetAttr,
    /// `statfs(2)` of mount `arg[0]` into `b` ([`HostStatFs`]).
    StatFs,
    /// Reads the standard stream `arg[0]` into `a`. Value: bytes, 0 at its end.
    /// `extra`: `poll(2)` bits afterwards.
    /// If `a` is empty: waits until there is something to read; value: `poll(2)` bits.
    /// A terminal whose foreground somebody else is: [`Errno::BACKGROUND`](crate::Errno). With `arg[1]` = 1 it does nothing but say whether
    /// that is so, with 2 it has others of the cell's job outside get SIGTTIN if that is so.
    StreamRead,
    /// Writes `a` to the standard stream `arg[0]`. Value: bytes.
    StreamWrite,
    /// Terminal control `arg[1]` on standard stream `arg[0]`; its argument in and out in `a`.
    StreamControl,
    /// Makes a host socket: domain `arg[0]`, type `arg[1]`, protocol `arg[2]`. Value: a handle; passes the descriptor.
    Socket,
    /// Binds socket handle `arg[0]` to the address `a`.
    Bind,
    /// Connects socket handle `arg[0]` to the address `a`.
    Connect,
    /// Listens on socket handle `arg[0]` with backlog `arg[1]`. Who connects to a Unix socket sees whom the request is for (SO_PEERCRED).
    Listen,
    /// The rewriting plan for the executable of handle `arg[0]`, from its
    /// `arg[1]`th site on, as plan records into `b`. Value: bytes written; `extra`: sites in all.
    Plan,
    /// Extended attributes of path `a` on mount `arg[0]`, or of handle `arg[3]` if
    /// that is not 0. `arg[1]` = 0 list, 1 get, 2 set (its flags from bit 8 on),
    /// 3 remove. At the front of `b` the name, `arg[2]` bytes; behind it the
    /// value to set. What was asked for into `b`; value: its length.
    ExtendedAttr,
    /// A handle of the standard stream `arg[0]`, if that is a file or a device.
    StreamHandle,
    /// Moves the position of the standard stream `arg[0]` by `arg[1]`, from
    /// where `arg[2]` says (`lseek(2)`). Value: the new position.
    StreamSeek,
    /// `lseek(2)` in handle `arg[0]` from `arg[1]` for data (`arg[2]` = 0) or a hole (1). Value: offset.
    SeekData,
    /// Locks the file of handle `arg[0]` from `arg[2]` for `arg[3]` bytes (0: to
    /// its end), for the whole cell: `arg[1]` = 0 unlock, 1 to read, 2 to write,
    /// by `fcntl(F_OFD_SETLK)`; 4 more, by `flock(2)`. Never waits: EAGAIN. With 8 more,
    /// `arg[0]` is a mount, and the file of path `a` on it is opened before, to be written if that
    /// may be: value: its handle, which is there only if it was locked. `b` has a [`HostAttr`] with
    /// the device and number that it must have, ENOENT if it is another one, and nothing that
    /// counts afterwards. With 16 more: it is another handle of the same opening that locks it; value: its number.
    Lock,
    /// Attributes of name after name of the path `a` on mount `arg[0]`, whose first `arg[1]` bytes
    /// are a directory that is not asked for: a [`HostAttr`] each into `b`. Ends behind what is no
    /// directory, or when `b` is full. Value: how many; an error only if there is not even one.
    /// `extra`: [`WALK_MISSING`] if the next name is not there; else, if the last
    /// is a symbolic link, the length of its target, which follows the attributes (0: no room).
    /// `arg[2]` = 1: if the last is a regular file, it is opened to be read, if that can be done: [`WALK_OPENED`] and a handle;
    /// passes the file descriptor.
    Walk,
    /// Reads disk `arg[0]` of the cell's from byte `arg[1]` on into `a`, whole sectors of 512 bytes, at most 64 KiB in
    /// one 2 MiB block of memory. Value: bytes, all of them. If `a` is empty: value: the disk's size, bytes.
    DiskRead,
    /// Asks the kernel below about the cell's network: one message of rtnetlink(7) in `a`, RTM_GET..., with what it says into
    /// `b`. `arg[0]` = 1: what is asked is looked at strictly (NETLINK_GET_STRICT_CHK). Value: bytes. EMSGSIZE: there is no room.
    Route,
    /// An `ioctl(2)` of netdevice(7) that only asks, `arg[0]`: `struct ifreq` in and out in `a`; for SIOCGIFCONF as many of them as there are
    /// room for into `b`. Value: 0, or the bytes of these; if `b` is empty, how many they would be. Or one of these, which no command
    /// is, text into `b`, as much as there is room for, and the value is how long all of it is: [`NET_TABLE`], a table of /proc/net,
    /// [`NET_TABLES`]`[arg[1]]`; [`NET_LIST`], the interfaces, a line each: number, `virtual` or `device`, name; [`NET_ATTRIBUTE`],
    /// [`NET_ATTRIBUTES`]`[arg[1]]` of the interface whose name is in `a` (`/sys/class/net`).
    Interface,
    /// Makes the regular file `a` on mount `arg[0]` with mode `arg[1]` (see [`Op::mode_argument`]), which is not there (EEXIST), and opens it to read and write:
    /// `extra` is [`WALK_OPENED`] and a handle, or 0 if there can't be one. [`HostChanged`] into `c`. `arg[3]` = 1: pass the file
    /// descriptor, too.
    Create,
    /// The first program has been stopped by signal `arg[0]`, and whoever started the cell is to see that: the supervisor stops, as far as
    /// somebody can continue it, and answers when it goes on. Value: 0.
    Stop,
    /// Copies [`Request::len`] bytes of handle `arg[0]` from `arg[1]` on to handle `arg[2]` at `arg[3]` (`copy_file_range(2)`): EXDEV,
    /// EOPNOTSUPP where the host can't do that. Value: bytes, fewer at the end of the one, or where the other takes no more.
    CopyRange,
    /// Makes a Unix socket of the host of type `arg[1]` and connects it to the one whose name is `a` on mount `arg[0]`, which is a volume
    /// (ECONNREFUSED where it is none). EAGAIN: its backlog is full. Value: 0; passes the descriptor, but of one for datagrams.
    ConnectName,
    /// Sends the datagram `b` to the Unix socket whose name is `a` on mount `arg[0]`, likewise a volume. EAGAIN: it takes no more now.
    /// Value: bytes.
    SendName,
    /// Has [`Op::NextEvents`] tell what others do to the file `a` on mount `arg[0]`: events of `inotify(7)`, those of `arg[1]` that are
    /// changes, besides what was asked for before; ESTALE if it isn't that of device `arg[2]` and number `arg[3]`. 0: none of that one
    /// any more, whether it is there or not. ENOSYS: the host can't say that.
    Watch,
    /// Waits until others have done something to what is watched, and says what: [`HostEvent`]s into `a`. Value: bytes. EBUSY: somebody
    /// waits already.
    NextEvents,
    /// `arg[1]` = 1: takes a lease of the file of handle `arg[0]`, which was opened to be written (`F_SETLEASE` of `fcntl(2)`): nobody else has
    /// it open, and who wants to open it waits. EAGAIN: somebody has. 0: gives it back. 2: value: another handle of the same opening,
    /// which has the same locks. 3: the cell is about to give it back, and has five seconds for that.
    Lease,
    /// Waits until somebody wants to open a file of which the cell has a lease. Value: its handle. The cell has it for one more second. EBUSY: it waits already.
    NextOpener,
}

/// Tables of /proc/net that a cell can read.
pub const NET_TABLES: [&str; 15] = [
    "dev",
    "if_inet6",
    "route",
    "ipv6_route",
    "arp",
    "dev_mcast",
    "igmp",
    "igmp6",
    "netstat",
    "snmp",
    "snmp6",
    "sockstat",
    "sockstat6",
    "softnet_stat",
    "fib_trie",
];

/// What [`Op::Interface`] is asked for in place of a command.
pub const NET_TABLE: u64 = 0;
/// See [`NET_TABLE`].
pub const NET_LIST: u64 = 1;
/// See [`NET_TABLE`].
pub const NET_ATTRIBUTE: u64 = 2;

/// What a cell can read of an interface: files of `/sys/class/net/NAME` (sysfs-class-net and sysfs-class-net-statistics of Linux's
/// Documentation/ABI/testing), those in a directory of their own last.
pub const NET_ATTRIBUTES: [&str; 50] = [
    "addr_assign_type",
    "addr_len",
    "address",
    "broadcast",
    "carrier",
    "carrier_changes",
    "carrier_down_count",
    "carrier_up_count",
    "dev_id",
    "dev_port",
    "dormant",
    "duplex",
    "flags",
    "ifalias",
    "ifindex",
    "iflink",
    "link_mode",
    "mtu",
    "name_assign_type",
    "netdev_group",
    "operstate",
    "proto_down",
    "speed",
    "testing",
    "tx_queue_len",
    "type",
    "uevent",
    "statistics/collisions",
    "statistics/multicast",
    "statistics/rx_bytes",
    "statistics/rx_compressed",
    "statistics/rx_crc_errors",
    "statistics/rx_dropped",
    "statistics/rx_errors",
    "statistics/rx_fifo_errors",
    "statistics/rx_frame_errors",
    "statistics/rx_length_errors",
    "statistics/rx_missed_errors",
    "statistics/rx_over_errors",
    "statistics/rx_packets",
    "statistics/tx_aborted_errors",
    "statistics/tx_bytes",
    "statistics/tx_carrier_errors",
    "statistics/tx_compressed",
    "statistics/tx_dropped",
    "statistics/tx_errors",
    "statistics/tx_fifo_errors",
    "statistics/tx_heartbeat_errors",
    "statistics/tx_packets",
    "statistics/tx_window_errors",
];

/// Handles that one [`Op::Release`] lets go beside the first.
pub const RELEASED_MAX: usize = 128;

/// In [`Op::Walk`]'s `extra`: the name behind the last one found does not exist.
pub const WALK_MISSING: u64 = 1 << 63;

/// In [`Op::Walk`]'s, [`Op::Create`]'s and [`Op::MakeNode`]'s `extra`: the other bits are a handle of the last one found, or of the one that was made.
pub const WALK_OPENED: u64 = 1 << 62;

/// Where in the mode of what is made the maker's mask begins: see [`Op::mode_argument`].
pub const UMASK_SHIFT: u32 = 16;

impl Op {
    /// Which argument is the mode of what is made: its type and permissions, and from bit [`UMASK_SHIFT`] on the maker's mask (umask(2)),
    /// whose bits it doesn't get, unless the directory has a default ACL, which is there in its place (acl(5)).
    pub const fn mode_argument(self) -> Option<usize> {
        match self {
            Op::MakeDir | Op::MakeNode | Op::Create => Some(1),
            Op::Open => Some(2),
            _ => None,
        }
    }

    /// To which resource the time belongs that the platform has such a request: what changes or makes something is written, what only asks
    /// or opens is read. None: it is done when others do something, as what a stream's other end does.
    pub const fn resource(self) -> Option<Resource> {
        match self {
            Op::Nop | Op::StreamRead | Op::StreamWrite | Op::Stop | Op::NextEvents | Op::NextOpener => None,
            Op::Stat
            | Op::ReadDir
            | Op::ReadLink
            | Op::Open
            | Op::PassFd
            | Op::Read
            | Op::StatHandle
            | Op::StatFs
            | Op::Plan
            | Op::StreamHandle
            | Op::SeekData
            | Op::Walk
            | Op::DiskRead
            | Op::Route
            | Op::Interface
            | Op::Watch => Some(Resource::DeviceRead),
            Op::Release
            | Op::Write
            | Op::Sync
            | Op::Truncate
            | Op::Allocate
            | Op::MakeDir
            | Op::Unlink
            | Op::Rename
            | Op::Link
            | Op::SymLink
            | Op::MakeNode
            | Op::SetAttr
            | Op::StreamControl
            | Op::Socket
            | Op::Bind
            | Op::Connect
            | Op::Listen
            | Op::ExtendedAttr
            | Op::StreamSeek
            | Op::Lock
            | Op::Lease
            | Op::Create
            | Op::CopyRange
            | Op::ConnectName
            | Op::SendName => Some(Resource::DeviceWrite),
        }
    }

    /// Does it change names or attributes of a mount's tree, and say what they are then?
    pub const fn changes_tree(self) -> bool {
        matches!(
            self,
            Op::MakeDir
                | Op::Unlink
                | Op::Rename
                | Op::Link
                | Op::SymLink
                | Op::MakeNode
                | Op::SetAttr
                | Op::Create
        )
    }

    /// All of them, in order of their numbers.
    pub const ALL: [Op; 47] = [
        Op::Nop,
        Op::Stat,
        Op::ReadDir,
        Op::ReadLink,
        Op::Open,
        Op::Release,
        Op::PassFd,
        Op::Read,
        Op::Write,
        Op::Sync,
        Op::StatHandle,
        Op::Truncate,
        Op::Allocate,
        Op::MakeDir,
        Op::Unlink,
        Op::Rename,
        Op::Link,
        Op::SymLink,
        Op::MakeNode,
        Op::SetAttr,
        Op::StatFs,
        Op::StreamRead,
        Op::StreamWrite,
        Op::StreamControl,
        Op::Socket,
        Op::Bind,
        Op::Connect,
        Op::Listen,
        Op::Plan,
        Op::ExtendedAttr,
        Op::StreamHandle,
        Op::StreamSeek,
        Op::SeekData,
        Op::Lock,
        Op::Walk,
        Op::DiskRead,
        Op::Route,
        Op::Interface,
        Op::Create,
        Op::Stop,
        Op::CopyRange,
        Op::ConnectName,
        Op::SendName,
        Op::Watch,
        Op::NextEvents,
        Op::Lease,
        Op::NextOpener,
    ];

    /// The operation with this number.
    pub fn from_number(n: u32) -> Option<Op> {
        Op::ALL.get(n as usize).copied().filter(|op| *op as u32 == n)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// Returned in the answer.
    pub cookie: u64,
    /// An [`Op`]'s number.
    pub op: u32,
    /// Reserved, 0.
    pub flags: u32,
    /// User id to act for.
    pub uid: u32,
    /// Group id to act for.
    pub gid: u32,
    /// Plain arguments.
    pub arg: [u64; 4],
    /// First buffer.
    pub a: Extent,
    /// Second buffer.
    pub b: Extent,
    /// Third buffer, for what a change has made of the tree, or of the file.
    pub c: Extent,
    /// How many bytes it is about, where neither an argument nor a buffer says that.
    pub len: u64,
    /// Room for later; 0.
    pub reserved: [u64; 2],
}

impl Request {
    /// Its buffers.
    pub fn buffers(&self) -> [Extent; 3] {
        [self.a, self.b, self.c]
    }

    /// How many bytes of its buffers the server reads.
    pub fn given(&self) -> [u64; 3] {
        let (a, b) = (self.a.len, self.b.len);
        match Op::from_number(self.op) {
            Some(
                Op::Stat
                | Op::ReadDir
                | Op::ReadLink
                | Op::Open
                | Op::MakeDir
                | Op::Unlink
                | Op::MakeNode
                | Op::StreamWrite
                | Op::StreamControl
                | Op::Bind
                | Op::Connect
                | Op::Walk
                | Op::Create
                | Op::ConnectName
                | Op::Watch
                | Op::Release,
            ) => [a, 0, 0],
            Some(
                Op::Write
                | Op::Rename
                | Op::Link
                | Op::SymLink
                | Op::SetAttr
                | Op::ExtendedAttr
                | Op::Lock
                | Op::SendName,
            ) => [a, b, 0],
            _ => [0; 3],
        }
    }

    /// How many bytes of its buffers the server has filled, if this is its answer.
    pub fn filled(&self, answer: &Answer) -> [u64; 3] {
        let (a, b) = (self.a.len, self.b.len);
        let Ok(value) = u64::try_from(answer.value) else { return [0; 3] };
        let attr = size_of::<HostAttr>() as u64;
        match Op::from_number(self.op) {
            Some(Op::Stat | Op::Open | Op::StatHandle) => [0, b.min(attr), 0],
            Some(Op::StatFs) => [0, b.min(size_of::<HostStatFs>() as u64), 0],
            Some(Op::ReadDir | Op::ReadLink | Op::Plan | Op::ExtendedAttr | Op::Route) => {
                [0, b.min(value), 0]
            }
            Some(Op::Walk) => {
                let link = if answer.extra & (WALK_MISSING | WALK_OPENED) != 0 { 0 } else { answer.extra };
                [0, b.min(value.saturating_mul(attr).saturating_add(link)), 0]
            }
            Some(Op::Write) => [0, 0, self.c.len.min(attr)],
            Some(Op::Read) => [a.min(value), b.min(value.saturating_sub(a)), 0],
            Some(Op::StreamRead | Op::DiskRead | Op::NextEvents) => [a.min(value), 0, 0],
            Some(Op::StreamControl) => [a, 0, 0],
            Some(Op::Interface) => [a, b.min(value), 0],
            Some(op) if op.changes_tree() => [0, 0, self.c.len.min(size_of::<HostChanged>() as u64)],
            _ => [0; 3],
        }
    }

    /// A request with no arguments.
    pub fn new(op: Op) -> Self {
        Request {
            cookie: 0,
            op: op as u32,
            flags: 0,
            uid: 0,
            gid: 0,
            arg: [0; 4],
            a: Extent::default(),
            b: Extent::default(),
            c: Extent::default(),
            len: 0,
            reserved: [0; 2],
        }
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Answer {
    /// The request's.
    pub cookie: u64,
    /// A value, or a negative Linux error number.
    pub value: i64,
    /// A second value, by operation.
    pub extra: u64,
    /// Bit 0: a file descriptor was sent along on the core's socket.
    pub flags: u64,
}

/// [`Answer::flags`]: a descriptor comes with the answer.
pub const ANSWER_FD: u64 = 1;

impl Words<16> for Request {
    fn to_words(&self) -> [u64; 16] {
        zerocopy::transmute!(*self)
    }
    fn from_words(words: &[u64; 16]) -> Self {
        zerocopy::transmute!(*words)
    }
}

impl Words<4> for Answer {
    fn to_words(&self) -> [u64; 4] {
        zerocopy::transmute!(*self)
    }
    fn from_words(words: &[u64; 4]) -> Self {
        zerocopy::transmute!(*words)
    }
}

/// Requests a core can have under way.
pub const RING: usize = 128;
/// From a core to the server.
pub type RequestRing = Ring<16, RING>;
/// From the server to a core.
pub type AnswerRing = Ring<4, RING>;

/// A file's attributes, as `statx(2)` tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are statx(2)'s")]
pub struct HostAttr {
    pub ino: u64,
    pub dev: u64,
    pub size: u64,
    pub blocks: u64,
    pub rdev: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub blksize: u32,
    pub atime_nsec: u32,
    pub mtime_nsec: u32,
    pub ctime_nsec: u32,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
}

/// What a change has made of the tree: attributes right after it. Those with no kind in their mode are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostChanged {
    /// Of what was changed, made, linked or renamed.
    pub what: HostAttr,
    /// Of the directory from which a name has gone.
    pub from: HostAttr,
    /// Of the directory to which a name has come.
    pub to: HostAttr,
}

/// What to change, for [`Op::SetAttr`]; fields count where their bit in `mask` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are stat(2)'s")]
pub struct HostSetAttr {
    /// 1 mode, 2 uid, 4 gid, 8 size, 16 atime, 32 mtime.
    pub mask: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: i64,
    pub mtime: i64,
    pub atime_nsec: u32,
    pub mtime_nsec: u32,
}

/// Head of what [`Op::NextEvents`] tells of one event; the name's bytes follow, padded to eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostEvent {
    /// Device of what is watched, as in [`HostAttr`].
    pub dev: u64,
    /// Its number. Both 0: events were lost (IN_Q_OVERFLOW).
    pub ino: u64,
    /// What happened, and IN_ISDIR (`inotify(7)`).
    pub mask: u32,
    /// The same for both events of a rename, from 2^31 on; 0.
    pub cookie: u32,
    /// Length of the name in the directory that is watched, bytes; 0: the event is of what is watched itself.
    pub name_len: u32,
    /// 0.
    pub reserved: u32,
}

impl HostEvent {
    /// How long the first event is, with its name. None: it isn't whole.
    pub fn whole(bytes: &[u8]) -> Option<usize> {
        let (head, rest) = Self::read_from_prefix(bytes).ok()?;
        let name = (head.name_len as usize).next_multiple_of(8);
        (name <= rest.len()).then_some(size_of::<Self>() + name)
    }

    /// The head of an event with a name of this length.
    pub fn head((dev, ino): (u64, u64), mask: u32, cookie: u32, name: &[u8]) -> HostEvent {
        HostEvent { dev, ino, mask, cookie, name_len: name.len() as u32, reserved: 0 }
    }

    /// The first event, its name, and the bytes behind it.
    pub fn read(bytes: &[u8]) -> Option<(HostEvent, &[u8], &[u8])> {
        let (event, rest) = bytes.split_at(Self::whole(bytes)?);
        let (head, name) = Self::read_from_prefix(event).ok()?;
        Some((head, &name[..head.name_len as usize], rest))
    }
}

/// Head of a directory record; the name's bytes follow, padded to eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostDirent {
    /// Attributes of the entry; only `ino` and the kind in `mode` (0: not known) if `nlink` is 0.
    pub attr: HostAttr,
    /// Length of the name, bytes.
    pub name_len: u32,
    /// [`DIRENT_PLAIN`], or 0.
    pub flags: u32,
}

/// The entry has no extended attributes (`listxattr(2)`). Told only beside all other attributes.
pub const DIRENT_PLAIN: u32 = 1;

/// What `statfs(2)` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are statfs(2)'s")]
pub struct HostStatFs {
    pub kind: u64,
    pub bsize: u64,
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub namelen: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes which way, where the server does not see the cell's memory.
    #[test]
    fn buffers_have_a_direction() {
        let answer = |value, extra| Answer { cookie: 1, value, extra, flags: 0 };
        let request = |op, a, b| {
            let mut r = Request::new(op);
            (r.a.len, r.b.len) = (a, b);
            r
        };
        let read = request(Op::Read, 100, 50);
        assert_eq!(read.given(), [0, 0, 0]);
        assert_eq!(read.filled(&answer(120, 0)), [100, 20, 0]);
        assert_eq!(read.filled(&answer(1000, 0)), [100, 50, 0]);
        assert_eq!(read.filled(&answer(-5, 0)), [0, 0, 0]);
        let write = request(Op::Write, 100, 50);
        assert_eq!((write.given(), write.filled(&answer(150, 0))), ([100, 50, 0], [0; 3]));
        let attr = size_of::<HostAttr>() as u64;
        let walk = request(Op::Walk, 9, 1000);
        assert_eq!((walk.given(), walk.filled(&answer(2, 7))), ([9, 0, 0], [0, 2 * attr + 7, 0]));
        assert_eq!(walk.filled(&answer(2, WALK_MISSING)), [0, 2 * attr, 0]);
        assert_eq!(walk.filled(&answer(2, WALK_OPENED | 77)), [0, 2 * attr, 0]);
        assert_eq!(walk.filled(&answer(i64::MAX, 7)), [0, 1000, 0]);
        // Nothing but these is both ways.
        assert_eq!(request(Op::StreamControl, 36, 0).given(), [36, 0, 0]);
        assert_eq!(request(Op::StreamControl, 36, 0).filled(&answer(0, 0)), [36, 0, 0]);
        assert_eq!(request(Op::ExtendedAttr, 3, 40).given(), [3, 40, 0]);
        let lock = request(Op::Lock, 3, 40);
        assert_eq!((lock.given(), lock.filled(&answer(7, 0))), ([3, 40, 0], [0; 3]));
        let changed = size_of::<HostChanged>() as u64;
        for op in Op::ALL.into_iter().filter(|op| op.changes_tree()) {
            let mut change = request(op, 3, 40);
            assert_eq!(change.filled(&answer(0, 0)), [0; 3]);
            change.c.len = changed;
            assert_eq!((change.given()[2], change.filled(&answer(7, 0))), (0, [0, 0, changed]));
            change.c.len = 1 << 40;
            assert_eq!(change.filled(&answer(0, 0)), [0, 0, changed]);
            assert_eq!(change.filled(&answer(-1, 0)), [0; 3]);
        }
    }

    #[test]
    fn messages_survive_the_ring() {
        let ring = RequestRing::new();
        let mut r = Request::new(Op::Open);
        r.cookie = 77;
        r.arg = [1, 2, 3, 4];
        r.a = Extent { offset: 5, len: 6 };
        assert!(ring.push(&r));
        let back: Request = ring.pop().unwrap();
        assert_eq!(back.cookie, 77);
        assert_eq!(Op::from_number(back.op), Some(Op::Open));
        assert_eq!((back.arg, back.a), (r.arg, r.a));
        assert_eq!(Op::from_number(Op::ALL.len() as u32), None);
        assert_eq!(Op::from_number(9999), None);
    }
}
