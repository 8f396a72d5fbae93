//! What fits nowhere else.

use core::sync::atomic::Ordering;

use atoll_abi::layout::{PAGE, is_user_range};
use atoll_abi::{Errno, Result};
use atoll_fs::device::Device;
use atoll_fs::{File, Sink};
use atoll_mem::heap::memory;
use atoll_mem::io::reading;
use atoll_mem::user;
use linux_raw_sys::general as linux;
use zerocopy::IntoBytes;

use super::process::PER_LINUX32;
use super::{Call, unsupported};
use crate::process::{task_count, world};
use crate::types::{Sysinfo, put};

/// Version of Linux whose behaviour is copied, as `uname(2)` tells it.
pub const RELEASE: &str = "6.1.0-atoll";

/// `uname(2)`.
pub fn uname(c: &mut Call) -> Result<u64> {
    let mut out = [0u8; 65 * 6];
    let mut field = |n: usize, text: &[u8]| {
        let len = text.len().min(64);
        out[n * 65..n * 65 + len].copy_from_slice(&text[..len]);
    };
    field(0, b"Linux");
    field(1, &world().hostname.lock());
    field(2, RELEASE.as_bytes());
    field(3, b"#1 SMP Atoll");
    let of_32_bit = c.task.process.persona.load(Ordering::Relaxed) & 0xff == PER_LINUX32;
    field(4, if of_32_bit { b"i686" } else { b"x86_64" });
    field(5, &world().domainname.lock());
    user::write(c.arg(0), &out).map(|()| 0)
}

fn set_name(c: &Call, domain: bool) -> Result<u64> {
    if !c.task.may(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if c.arg(1) > 64 {
        return Err(Errno::EINVAL);
    }
    let mut name = alloc::vec![0; c.arg(1) as usize];
    user::read(c.arg(0), &mut name)?;
    *if domain { &world().domainname } else { &world().hostname }.lock() = name;
    Ok(0)
}

/// `sethostname(2)`.
pub fn sethostname(c: &mut Call) -> Result<u64> {
    set_name(c, false)
}

/// `setdomainname(2)`.
pub fn setdomainname(c: &mut Call) -> Result<u64> {
    set_name(c, true)
}

/// `sysinfo(2)`.
pub fn sysinfo(c: &mut Call) -> Result<u64> {
    let m = memory();
    let info = Sysinfo {
        uptime: super::time::uptime().0 as i64,
        // Of these, one is 1 << 16.
        loads: atoll_task::load_averages().map(|average| average << 5),
        totalram: m.total(),
        freeram: m.total() - m.used(),
        procs: task_count().min(u16::MAX as usize) as u16,
        mem_unit: 1,
        ..Sysinfo::default()
    };
    put(c.arg(0), &info).map(|()| 0)
}

/// `getrandom(2)`.
pub fn getrandom(c: &mut Call) -> Result<u64> {
    let flags = c.uint(2);
    if flags & !(linux::GRND_NONBLOCK | linux::GRND_RANDOM | linux::GRND_INSECURE) != 0 {
        return Err(Errno::EINVAL);
    }
    let both = linux::GRND_RANDOM | linux::GRND_INSECURE;
    if flags & both == both {
        return Err(Errno::EINVAL);
    }
    let len = c.arg(1).min(32 << 20);
    if len > 0 && !is_user_range(c.arg(0), len) {
        return Err(Errno::EFAULT);
    }
    let mut sink = Sink::one(c.arg(0), len);
    reading(&mut sink, || true, |s| Device::Urandom.read(s, None, false)).map(|n| n as u64)
}

/// Calls that only a machine's administrator may make: EPERM, as in any container.
pub fn not_permitted(c: &mut Call) -> Result<u64> {
    Err(unsupported(c.task, "administration of the machine", Errno::EPERM))
}

/// Calls that a Linux may be built without: ENOSYS, without a word.
pub fn not_built(_c: &mut Call) -> Result<u64> {
    Err(Errno::ENOSYS)
}

/// `syslog(2)`.
pub fn syslog(c: &mut Call) -> Result<u64> {
    const SIZE_BUFFER: u32 = 10;
    if c.uint(0) == SIZE_BUFFER { Ok(1 << 14) } else { Err(Errno::EPERM) }
}

/// `get_mempolicy(2)`: one node, the default policy.
pub fn get_mempolicy(c: &mut Call) -> Result<u64> {
    if c.arg(0) != 0 {
        put(c.arg(0), &0u32)?;
    }
    if c.arg(1) != 0 && c.arg(2) >= 1 {
        let words = c.arg(2).div_ceil(64);
        for n in 0..words {
            put(c.arg(1) + n * 8, &u64::from(n == 0))?;
        }
    }
    Ok(0)
}

/// Reads a set of nodes of so many bits and one, as Linux counts them.
fn read_nodes(addr: u64, bits: u64) -> Result<()> {
    let bits = bits.wrapping_sub(1);
    if bits == 0 || addr == 0 {
        return Ok(());
    }
    if bits > PAGE * 8 {
        return Err(Errno::EINVAL);
    }
    let mut words = [0u64; PAGE as usize / 8];
    user::read(addr, words[..bits.div_ceil(64) as usize].as_mut_bytes())
}

/// `set_mempolicy(2)`: with one node there is nothing to choose.
pub fn set_mempolicy(c: &mut Call) -> Result<u64> {
    read_nodes(c.arg(1), c.arg(2)).map(|()| 0)
}

/// `mbind(2)`: as `set_mempolicy`.
pub fn mbind(c: &mut Call) -> Result<u64> {
    read_nodes(c.arg(3), c.arg(4)).map(|()| 0)
}
