//! Devices that are only software: null, zero, full, random.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use atoll_abi::{Errno, Result, platform};
use atoll_mem::io::{Sink, Source};
use atoll_mem::user;
use atoll_mem::vm::{Mappable, Object};
use atoll_sync::breathe;

use crate::node::{At, File};
use crate::types::poll;

/// Device number of `/dev` itself.
pub const DEV: u64 = 6;

/// Which device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// Swallows everything, gives nothing.
    Null,
    /// Zeroes without end.
    Zero,
    /// Zeroes without end, and no space left.
    Full,
    /// Random bytes.
    Random,
    /// Random bytes of the same kind, under another name.
    Urandom,
}

impl Device {
    /// Linux's device number.
    pub fn number(self) -> u64 {
        let minor = match self {
            Device::Null => 3,
            Device::Zero => 5,
            Device::Full => 7,
            Device::Random => 8,
            Device::Urandom => 9,
        };
        1 << 8 | minor
    }
}

impl File for Device {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, _nonblock: bool) -> Result<usize> {
        match self {
            Device::Null => Ok(0),
            Device::Zero | Device::Full => sink.put_zeroes(sink.left()),
            Device::Random | Device::Urandom => {
                let mut done = 0;
                let mut buf = [0u8; 256];
                while sink.left() > 0 {
                    let n = buf.len().min(sink.left());
                    platform().random(&mut buf[..n]);
                    match sink.put(&buf[..n]) {
                        Ok(k) => {
                            done += k;
                            if k < n {
                                break;
                            }
                            breathe();
                        }
                        Err(e) if done == 0 => return Err(e),
                        Err(_) => break,
                    }
                }
                Ok(done)
            }
        }
    }

    fn write(&self, source: &mut Source, _at: At, _nonblock: bool) -> Result<(usize, u64)> {
        if *self == Device::Full {
            return Err(Errno::ENOSPC);
        }
        if matches!(self, Device::Random | Device::Urandom) {
            // There are enough random bytes; but the program's must be there.
            let mut done = 0;
            let mut buf = [0u8; 256];
            while source.left() > 0 {
                match source.take(&mut buf) {
                    Ok(n) => done += n,
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => break,
                }
            }
            return Ok((done, 0));
        }
        let n = source.left();
        source.advance(n);
        Ok((n, 0))
    }

    fn ready(&self) -> u32 {
        let readable = poll::IN | poll::RDNORM;
        if *self == Device::Random { readable } else { readable | poll::OUT | poll::WRNORM }
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        /// RNDGETENTCNT: bits of entropy, which Linux has said are 256 since 5.18.
        const GET_COUNT: u32 = 0x8004_5200;
        match (self, command) {
            (Device::Random | Device::Urandom, GET_COUNT) => {
                user::write(arg, &256i32.to_ne_bytes()).map(|()| 0)
            }
            (Device::Random | Device::Urandom, _) => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn mappable(self: Arc<Self>) -> Result<Arc<dyn Mappable>> {
        if *self == Device::Zero { Ok(self) } else { Err(Errno::ENODEV) }
    }

    fn describe(&self) -> Vec<u8> {
        b"/dev/null".to_vec()
    }
}

/// Private mappings of /dev/zero: zero pages.
impl Mappable for Device {
    fn host_file(&self, _write: bool) -> Result<Option<i32>> {
        Ok(None)
    }

    fn object(&self) -> Option<Arc<dyn Object>> {
        None
    }

    fn read(&self, _offset: u64, to: &mut [u8]) -> Result<usize> {
        to.fill(0);
        Ok(to.len())
    }

    fn describe(&self) -> (Vec<u8>, u64, u64) {
        (b"/dev/zero".to_vec(), 5, self.number())
    }
}
