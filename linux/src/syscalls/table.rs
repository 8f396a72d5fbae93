//! The table of system calls: number, name, what serves it.

use atoll_abi::grid::Resource;
use linux_raw_sys::general as linux;

use super::events as timers;
use super::{
    Handler, events, fd, kcmp, memory, misc, net, path, poll, process, process_vm, ptrace, sched, signals,
    time,
};
use crate::aio;
use crate::futex;
use crate::ipc::{mqueue, msg, sem, shm};
use crate::seccomp;

/// The resource that a family of calls asks. A read or a write turns to what serves its file.
macro_rules! resource {
    (aio) => {
        Resource::Files
    };
    (events) => {
        Resource::Wait
    };
    (fd) => {
        Resource::Files
    };
    (futex) => {
        Resource::Wait
    };
    (seccomp) => {
        Resource::Process
    };
    (kcmp) => {
        Resource::Process
    };
    (memory) => {
        Resource::AddressSpace
    };
    (misc) => {
        Resource::Process
    };
    (mqueue) => {
        Resource::Wait
    };
    (msg) => {
        Resource::Wait
    };
    (net) => {
        Resource::Socket
    };
    (path) => {
        Resource::Files
    };
    (poll) => {
        Resource::Wait
    };
    (process) => {
        Resource::Process
    };
    (process_vm) => {
        Resource::AddressSpace
    };
    (ptrace) => {
        Resource::Process
    };
    (sched) => {
        Resource::Process
    };
    (sem) => {
        Resource::Wait
    };
    (shm) => {
        Resource::AddressSpace
    };
    (signals) => {
        Resource::Process
    };
    (time) => {
        Resource::Timer
    };
    (timers) => {
        Resource::Timer
    };
}

macro_rules! table {
    ($($number:literal $name:ident $family:ident::$handler:ident;)*) => {
        /// What serves a call, by number.
        pub static TABLE: [Option<Handler>; SIZE] = {
            let mut t: [Option<Handler>; SIZE] = [None; SIZE];
            $(t[$number] = Some($family::$handler);)*
            t
        };
        /// The resource that a call asks, by number.
        pub static RESOURCES: [Resource; SIZE] = {
            let mut t = [Resource::Process; SIZE];
            $(t[$number] = resource!($family);)*
            t
        };
        /// Names of the calls in the table.
        pub static NAMES: &[(u16, &str)] = &[$(($number, stringify!($name)),)*];
    };
}

/// One more than the highest number.
const SIZE: usize = 463;

table! {
    0 read fd::read;
    1 write fd::write;
    2 open path::open;
    3 close fd::close;
    4 stat path::stat;
    5 fstat path::fstat;
    6 lstat path::lstat;
    7 poll poll::poll;
    8 lseek fd::lseek;
    9 mmap memory::mmap;
    10 mprotect memory::mprotect;
    11 munmap memory::munmap;
    12 brk memory::brk;
    13 rt_sigaction signals::rt_sigaction;
    14 rt_sigprocmask signals::rt_sigprocmask;
    15 rt_sigreturn signals::rt_sigreturn;
    16 ioctl fd::ioctl;
    17 pread64 fd::pread;
    18 pwrite64 fd::pwrite;
    19 readv fd::readv;
    20 writev fd::writev;
    21 access path::access;
    22 pipe fd::pipe;
    23 select poll::select;
    24 sched_yield sched::sched_yield;
    25 mremap memory::mremap;
    26 msync memory::msync;
    27 mincore memory::mincore;
    28 madvise memory::madvise;
    29 shmget shm::shmget;
    30 shmat shm::shmat;
    31 shmctl shm::shmctl;
    32 dup fd::dup;
    33 dup2 fd::dup2;
    34 pause signals::pause;
    35 nanosleep time::nanosleep;
    36 getitimer time::getitimer;
    37 alarm time::alarm;
    38 setitimer time::setitimer;
    39 getpid process::getpid;
    40 sendfile fd::sendfile;
    41 socket net::socket;
    42 connect net::connect;
    43 accept net::accept;
    44 sendto net::sendto;
    45 recvfrom net::recvfrom;
    46 sendmsg net::sendmsg;
    47 recvmsg net::recvmsg;
    48 shutdown net::shutdown;
    49 bind net::bind;
    50 listen net::listen;
    51 getsockname net::getsockname;
    52 getpeername net::getpeername;
    53 socketpair net::socketpair;
    54 setsockopt net::setsockopt;
    55 getsockopt net::getsockopt;
    56 clone process::clone;
    57 fork process::fork;
    58 vfork process::vfork;
    59 execve process::execve;
    60 exit process::exit;
    61 wait4 process::wait4;
    62 kill process::kill;
    63 uname misc::uname;
    64 semget sem::semget;
    65 semop sem::semop;
    66 semctl sem::semctl;
    67 shmdt shm::shmdt;
    68 msgget msg::msgget;
    69 msgsnd msg::msgsnd;
    70 msgrcv msg::msgrcv;
    71 msgctl msg::msgctl;
    72 fcntl fd::fcntl;
    73 flock fd::flock;
    74 fsync fd::fsync;
    75 fdatasync fd::fdatasync;
    76 truncate path::truncate;
    77 ftruncate fd::ftruncate;
    78 getdents path::getdents;
    79 getcwd path::getcwd;
    80 chdir path::chdir;
    81 fchdir path::fchdir;
    82 rename path::rename;
    83 mkdir path::mkdir;
    84 rmdir path::rmdir;
    85 creat path::creat;
    86 link path::link;
    87 unlink path::unlink;
    88 symlink path::symlink;
    89 readlink path::readlink;
    90 chmod path::chmod;
    91 fchmod path::fchmod;
    92 chown path::chown;
    93 fchown path::fchown;
    94 lchown path::lchown;
    95 umask path::umask;
    96 gettimeofday time::gettimeofday;
    97 getrlimit process::getrlimit;
    98 getrusage process::getrusage;
    99 sysinfo misc::sysinfo;
    100 times process::times;
    101 ptrace ptrace::ptrace;
    102 getuid process::getuid;
    103 syslog misc::syslog;
    104 getgid process::getgid;
    105 setuid process::setuid;
    106 setgid process::setgid;
    107 geteuid process::geteuid;
    108 getegid process::getegid;
    109 setpgid process::setpgid;
    110 getppid process::getppid;
    111 getpgrp process::getpgrp;
    112 setsid process::setsid;
    113 setreuid process::setreuid;
    114 setregid process::setregid;
    115 getgroups process::getgroups;
    116 setgroups process::setgroups;
    117 setresuid process::setresuid;
    118 getresuid process::getresuid;
    119 setresgid process::setresgid;
    120 getresgid process::getresgid;
    121 getpgid process::getpgid;
    122 setfsuid process::setfsuid;
    123 setfsgid process::setfsgid;
    124 getsid process::getsid;
    125 capget process::capget;
    126 capset process::capset;
    127 rt_sigpending signals::rt_sigpending;
    128 rt_sigtimedwait signals::rt_sigtimedwait;
    129 rt_sigqueueinfo process::rt_sigqueueinfo;
    130 rt_sigsuspend signals::rt_sigsuspend;
    131 sigaltstack signals::sigaltstack;
    132 utime path::utime;
    133 mknod path::mknod;
    135 personality process::personality;
    137 statfs path::statfs;
    138 fstatfs path::fstatfs;
    140 getpriority sched::getpriority;
    141 setpriority sched::setpriority;
    142 sched_setparam sched::sched_setparam;
    143 sched_getparam sched::sched_getparam;
    144 sched_setscheduler sched::sched_setscheduler;
    145 sched_getscheduler sched::sched_getscheduler;
    146 sched_get_priority_max sched::sched_get_priority_max;
    147 sched_get_priority_min sched::sched_get_priority_min;
    148 sched_rr_get_interval sched::sched_rr_get_interval;
    149 mlock memory::mlock;
    150 munlock memory::munlock;
    151 mlockall memory::mlockall;
    152 munlockall memory::munlockall;
    155 pivot_root misc::not_permitted;
    157 prctl process::prctl;
    158 arch_prctl process::arch_prctl;
    159 adjtimex time::adjtimex;
    160 setrlimit process::setrlimit;
    161 chroot path::chroot;
    162 sync fd::sync;
    163 acct misc::not_permitted;
    164 settimeofday time::set_clock;
    165 mount misc::not_permitted;
    166 umount2 misc::not_permitted;
    167 swapon misc::not_permitted;
    168 swapoff misc::not_permitted;
    169 reboot misc::not_permitted;
    170 sethostname misc::sethostname;
    171 setdomainname misc::setdomainname;
    172 iopl misc::not_permitted;
    173 ioperm misc::not_permitted;
    175 init_module misc::not_permitted;
    176 delete_module misc::not_permitted;
    179 quotactl misc::not_permitted;
    186 gettid process::gettid;
    187 readahead fd::readahead;
    188 setxattr path::setxattr;
    189 lsetxattr path::lsetxattr;
    190 fsetxattr path::fsetxattr;
    191 getxattr path::getxattr;
    192 lgetxattr path::lgetxattr;
    193 fgetxattr path::fgetxattr;
    194 listxattr path::listxattr;
    195 llistxattr path::llistxattr;
    196 flistxattr path::flistxattr;
    197 removexattr path::removexattr;
    198 lremovexattr path::lremovexattr;
    199 fremovexattr path::fremovexattr;
    200 tkill process::tkill;
    201 time time::time;
    202 futex futex::futex;
    203 sched_setaffinity sched::sched_setaffinity;
    204 sched_getaffinity sched::sched_getaffinity;
    206 io_setup aio::io_setup;
    207 io_destroy aio::io_destroy;
    208 io_getevents aio::io_getevents;
    209 io_submit aio::io_submit;
    210 io_cancel aio::io_cancel;
    212 lookup_dcookie misc::not_built;
    213 epoll_create poll::epoll_create;
    216 remap_file_pages memory::remap_file_pages;
    217 getdents64 path::getdents64;
    218 set_tid_address process::set_tid_address;
    220 semtimedop sem::semtimedop;
    221 fadvise64 fd::fadvise;
    222 timer_create timers::timer_create;
    223 timer_settime timers::timer_settime;
    224 timer_gettime timers::timer_gettime;
    225 timer_getoverrun timers::timer_getoverrun;
    226 timer_delete timers::timer_delete;
    227 clock_settime time::clock_settime;
    228 clock_gettime time::clock_gettime;
    229 clock_getres time::clock_getres;
    230 clock_nanosleep time::clock_nanosleep;
    231 exit_group process::exit_group;
    232 epoll_wait poll::epoll_wait;
    233 epoll_ctl poll::epoll_ctl;
    234 tgkill process::tgkill;
    235 utimes path::utimes;
    237 mbind misc::mbind;
    238 set_mempolicy misc::set_mempolicy;
    239 get_mempolicy misc::get_mempolicy;
    240 mq_open mqueue::mq_open;
    241 mq_unlink mqueue::mq_unlink;
    242 mq_timedsend mqueue::mq_timedsend;
    243 mq_timedreceive mqueue::mq_timedreceive;
    244 mq_notify mqueue::mq_notify;
    245 mq_getsetattr mqueue::mq_getsetattr;
    246 kexec_load misc::not_permitted;
    247 waitid process::waitid;
    248 add_key misc::not_built;
    249 request_key misc::not_built;
    250 keyctl misc::not_built;
    251 ioprio_set sched::ioprio_set;
    252 ioprio_get sched::ioprio_get;
    253 inotify_init events::inotify_init;
    254 inotify_add_watch events::inotify_add_watch;
    255 inotify_rm_watch events::inotify_rm_watch;
    257 openat path::openat;
    258 mkdirat path::mkdirat;
    259 mknodat path::mknodat;
    260 fchownat path::fchownat;
    261 futimesat path::futimesat;
    262 newfstatat path::newfstatat;
    263 unlinkat path::unlinkat;
    264 renameat path::renameat;
    265 linkat path::linkat;
    266 symlinkat path::symlinkat;
    267 readlinkat path::readlinkat;
    268 fchmodat path::fchmodat;
    269 faccessat path::faccessat;
    270 pselect6 poll::pselect6;
    271 ppoll poll::ppoll;
    272 unshare process::unshare;
    273 set_robust_list process::set_robust_list;
    274 get_robust_list process::get_robust_list;
    275 splice fd::splice;
    276 tee fd::tee;
    277 sync_file_range fd::sync_file_range;
    278 vmsplice fd::vmsplice;
    280 utimensat path::utimensat;
    281 epoll_pwait poll::epoll_pwait;
    282 signalfd events::signalfd;
    283 timerfd_create timers::timerfd_create;
    284 eventfd events::eventfd;
    285 fallocate fd::fallocate;
    286 timerfd_settime timers::timerfd_settime;
    287 timerfd_gettime timers::timerfd_gettime;
    288 accept4 net::accept4;
    289 signalfd4 events::signalfd4;
    290 eventfd2 events::eventfd2;
    291 epoll_create1 poll::epoll_create1;
    292 dup3 fd::dup3;
    293 pipe2 fd::pipe2;
    294 inotify_init1 events::inotify_init1;
    295 preadv fd::preadv;
    296 pwritev fd::pwritev;
    297 rt_tgsigqueueinfo process::rt_tgsigqueueinfo;
    298 perf_event_open misc::not_built;
    299 recvmmsg net::recvmmsg;
    302 prlimit64 process::prlimit64;
    305 clock_adjtime time::clock_adjtime;
    306 syncfs fd::syncfs;
    307 sendmmsg net::sendmmsg;
    308 setns misc::not_permitted;
    309 getcpu sched::getcpu;
    310 process_vm_readv process_vm::process_vm_readv;
    311 process_vm_writev process_vm::process_vm_writev;
    312 kcmp kcmp::kcmp;
    313 finit_module misc::not_permitted;
    314 sched_setattr sched::sched_setattr;
    315 sched_getattr sched::sched_getattr;
    316 renameat2 path::renameat2;
    317 seccomp seccomp::seccomp;
    318 getrandom misc::getrandom;
    319 memfd_create path::memfd_create;
    320 kexec_file_load misc::not_permitted;
    321 bpf misc::not_permitted;
    322 execveat process::execveat;
    323 userfaultfd memory::userfaultfd;
    324 membarrier memory::membarrier;
    325 mlock2 memory::mlock2;
    326 copy_file_range fd::copy_file_range;
    327 preadv2 fd::preadv2;
    328 pwritev2 fd::pwritev2;
    329 pkey_mprotect misc::not_built;
    330 pkey_alloc misc::not_built;
    331 pkey_free misc::not_built;
    332 statx path::statx;
    333 io_pgetevents aio::io_pgetevents;
    334 rseq misc::not_built;
    424 pidfd_send_signal process::pidfd_send_signal;
    425 io_uring_setup misc::not_built;
    426 io_uring_enter misc::not_built;
    427 io_uring_register misc::not_built;
    428 open_tree misc::not_permitted;
    429 move_mount misc::not_permitted;
    430 fsopen misc::not_permitted;
    431 fsconfig misc::not_permitted;
    432 fsmount misc::not_permitted;
    433 fspick misc::not_permitted;
    434 pidfd_open process::pidfd_open;
    435 clone3 process::clone3;
    436 close_range fd::close_range;
    437 openat2 path::openat2;
    439 faccessat2 path::faccessat2;
    440 process_madvise misc::not_built;
    441 epoll_pwait2 poll::epoll_pwait2;
    444 landlock_create_ruleset misc::not_built;
    445 landlock_add_rule misc::not_built;
    446 landlock_restrict_self misc::not_built;
    447 memfd_secret misc::not_built;
    449 futex_waitv futex::futex_waitv;
    451 cachestat misc::not_built;
    452 fchmodat2 path::fchmodat2;
    453 map_shadow_stack misc::not_built;
    462 mseal misc::not_built;
}

/// Does a call turn to another resource than its family's, once it knows which file it is for?
pub fn turns(number: u64) -> bool {
    const READ_AND_WRITE: &[u32] = &[
        linux::__NR_read,
        linux::__NR_write,
        linux::__NR_pread64,
        linux::__NR_pwrite64,
        linux::__NR_readv,
        linux::__NR_writev,
        linux::__NR_sendfile,
        linux::__NR_splice,
        linux::__NR_tee,
        linux::__NR_vmsplice,
        linux::__NR_preadv,
        linux::__NR_pwritev,
        linux::__NR_copy_file_range,
        linux::__NR_preadv2,
        linux::__NR_pwritev2,
    ];
    READ_AND_WRITE.iter().any(|n| u64::from(*n) == number)
}

/// Does a call make objects of the runtime's that stay when it is over? What gives some back is never among them, nor what a
/// program needs to end in order; nor brk, which extends what there is, and has no errors.
pub fn makes_objects(number: u64) -> bool {
    const MAKERS: &[u32] = &[
        linux::__NR_mmap,
        linux::__NR_mprotect,
        linux::__NR_mremap,
        linux::__NR_madvise,
        linux::__NR_mlock,
        linux::__NR_mlock2,
        linux::__NR_mlockall,
        linux::__NR_shmat,
        linux::__NR_shmget,
        linux::__NR_userfaultfd,
        linux::__NR_memfd_create,
        linux::__NR_memfd_secret,
        linux::__NR_pkey_mprotect,
        linux::__NR_open,
        linux::__NR_openat,
        linux::__NR_openat2,
        linux::__NR_creat,
        linux::__NR_mkdir,
        linux::__NR_mkdirat,
        linux::__NR_mknod,
        linux::__NR_mknodat,
        linux::__NR_link,
        linux::__NR_linkat,
        linux::__NR_symlink,
        linux::__NR_symlinkat,
        linux::__NR_rename,
        linux::__NR_renameat,
        linux::__NR_renameat2,
        linux::__NR_setxattr,
        linux::__NR_lsetxattr,
        linux::__NR_fsetxattr,
        linux::__NR_inotify_init,
        linux::__NR_inotify_init1,
        linux::__NR_inotify_add_watch,
        linux::__NR_flock,
        linux::__NR_fcntl,
        linux::__NR_dup,
        linux::__NR_dup2,
        linux::__NR_dup3,
        linux::__NR_pipe,
        linux::__NR_pipe2,
        linux::__NR_socket,
        linux::__NR_socketpair,
        linux::__NR_accept,
        linux::__NR_accept4,
        linux::__NR_bind,
        linux::__NR_connect,
        linux::__NR_listen,
        linux::__NR_eventfd,
        linux::__NR_eventfd2,
        linux::__NR_epoll_create,
        linux::__NR_epoll_create1,
        linux::__NR_epoll_ctl,
        linux::__NR_signalfd,
        linux::__NR_signalfd4,
        linux::__NR_timerfd_create,
        linux::__NR_timer_create,
        linux::__NR_pidfd_open,
        linux::__NR_io_setup,
        linux::__NR_io_submit,
        linux::__NR_io_uring_setup,
        linux::__NR_mq_open,
        linux::__NR_mq_timedsend,
        linux::__NR_mq_notify,
        linux::__NR_msgget,
        linux::__NR_msgsnd,
        linux::__NR_semget,
        linux::__NR_semop,
        linux::__NR_semtimedop,
        linux::__NR_fork,
        linux::__NR_vfork,
        linux::__NR_clone,
        linux::__NR_clone3,
        linux::__NR_execve,
        linux::__NR_execveat,
        linux::__NR_rt_sigqueueinfo,
        linux::__NR_rt_tgsigqueueinfo,
        linux::__NR_chroot,
        linux::__NR_add_key,
    ];
    MAKERS.iter().any(|n| u64::from(*n) == number)
}

/// Calls that have a name and nothing that serves them.
pub static UNSERVED: &[(u16, &str)] = &[
    (134, "uselib"),
    (136, "ustat"),
    (139, "sysfs"),
    (153, "vhangup"),
    (154, "modify_ldt"),
    (156, "_sysctl"),
    (174, "create_module"),
    (177, "get_kernel_syms"),
    (178, "query_module"),
    (180, "nfsservctl"),
    (181, "getpmsg"),
    (182, "putpmsg"),
    (183, "afs_syscall"),
    (184, "tuxcall"),
    (185, "security"),
    (205, "set_thread_area"),
    (211, "get_thread_area"),
    (214, "epoll_ctl_old"),
    (215, "epoll_wait_old"),
    (219, "restart_syscall"),
    (236, "vserver"),
    (256, "migrate_pages"),
    (279, "move_pages"),
    (300, "fanotify_init"),
    (301, "fanotify_mark"),
    (303, "name_to_handle_at"),
    (304, "open_by_handle_at"),
    (335, "uretprobe"),
    (438, "pidfd_getfd"),
    (442, "mount_setattr"),
    (443, "quotactl_fd"),
    (448, "process_mrelease"),
    (450, "set_mempolicy_home_node"),
    (454, "futex_wake"),
    (455, "futex_wait"),
    (456, "futex_requeue"),
    (457, "statmount"),
    (458, "listmount"),
    (459, "lsm_get_self_attr"),
    (460, "lsm_set_self_attr"),
    (461, "lsm_list_modules"),
    (463, "setxattrat"),
    (464, "getxattrat"),
    (465, "listxattrat"),
    (466, "removexattrat"),
    (467, "open_tree_attr"),
    (468, "file_getattr"),
    (469, "file_setattr"),
];
