//! Devices that are only software: null, zero, full, random.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use atoll_abi::{Errno, Result, platform};
use atoll_mem::io::{Sink, Source};
use atoll_mem::vm::{Mappable, Object};

use crate::node::{At, File};

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
}

impl Device {
    /// Linux's device number.
    pub fn number(self) -> u64 {
        let minor = match self {
            Device::Null => 3,
            Device::Zero => 5,
            Device::Full => 7,
            Device::Random => 9,
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
            Device::Random => {
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
        let n = source.left();
        source.advance(n);
        Ok((n, 0))
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
