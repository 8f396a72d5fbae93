//! Linux error numbers as a type.

use core::fmt;
use linux_raw_sys::errno as raw;

/// A Linux error number (`errno(3)`), positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub u32);

/// A result whose error is a Linux error number.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident)*) => {
        #[allow(missing_docs, reason = "the names are errno(3)'s")]
        impl Errno {
            $(pub const $name: Errno = Errno(raw::$name);)*
        }
        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Errno::$name => f.write_str(stringify!($name)),)*
                    Errno(n) => write!(f, "E{n}"),
                }
            }
        }
    };
}

errnos! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK
    EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE
    EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM
    ENODATA ETIME EBADMSG EPROTO EOVERFLOW ELIBBAD EILSEQ EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL
    ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN
    ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN EDQUOT
    ECANCELED EOWNERDEAD ENOTRECOVERABLE
}

impl Errno {
    /// Internal to the runtime: the call was interrupted before it had an
    /// effect and is to be restarted, or to fail with EINTR, as the handler's
    /// `SA_RESTART` says (Linux's ERESTARTSYS). Never seen by a program.
    pub const RESTART: Errno = Errno(512);
    /// Internal to the runtime: interrupted, and restarted whatever happens (ERESTARTNOINTR).
    pub const RESTART_ALWAYS: Errno = Errno(513);
    /// Internal to the runtime: interrupted; restarted only when no handler ran (ERESTARTNOHAND).
    pub const RESTART_NOHAND: Errno = Errno(514);

    /// Internal, an answer of the supervisor's: the terminal is somebody else's, whoever started the cell is in its background, and who reads
    /// there is to be told by SIGTTIN.
    pub const BACKGROUND: Errno = Errno(515);

    /// The value a system call returns for this error.
    pub const fn to_ret(self) -> i64 {
        -(self.0 as i64)
    }

    /// Splits a system call's return value as Linux defines it.
    pub const fn from_ret(ret: i64) -> Result<u64> {
        if ret < 0 && ret >= -4095 { Err(Errno(-ret as u32)) } else { Ok(ret as u64) }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns() {
        assert_eq!(Errno::from_ret(-2), Err(Errno::ENOENT));
        assert_eq!(Errno::from_ret(-4096), Ok((-4096i64) as u64));
        assert_eq!(Errno::from_ret(7), Ok(7));
        assert_eq!(Errno::ENOENT.to_ret(), -2);
        assert_eq!(std::format!("{:?} {:?}", Errno::EADDRINUSE, Errno(999)), "EADDRINUSE E999");
    }
}
