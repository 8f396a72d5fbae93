//! The serial console: what the nucleus says. Cores take turns with their lines, but none waits for
//! ever for another: then lines mix. A port that does not take them loses them.
#![allow(unsafe_code, reason = "names an I/O port")]

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use uart_16550::{Config, Uart16550};

/// The first serial port of a PC, as QEMU, Firecracker and Cloud Hypervisor have it, too.
const PORT: u16 = 0x3f8;
/// Looks at a port that is full before a byte is given up.
const PATIENCE: u32 = 100_000;
/// Looks at a line that does not end before ours begins all the same: its core may have stopped.
const TURN_PATIENCE: u32 = 100_000_000;

/// Somebody writes a line.
static BUSY: AtomicBool = AtomicBool::new(false);

/// A turn on the console, up to the end of the value's life.
pub struct Turn(());

impl Turn {
    /// Waits a little for the others.
    pub fn take() -> Turn {
        for _ in 0..TURN_PATIENCE {
            if !BUSY.swap(true, Ordering::Acquire) {
                break;
            }
            core::hint::spin_loop();
        }
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// The console.
pub struct Console;

impl Console {
    fn port() -> Option<Uart16550<uart_16550::backend::PioBackend>> {
        // SAFETY: a PC's first serial port; the nucleus has it for itself.
        unsafe { Uart16550::new_port(PORT).ok() }
    }

    /// Sets the port up, once.
    pub fn init() {
        if let Some(mut port) = Self::port() {
            // A port that isn't there takes nothing.
            let _ = port.init(Config::default());
        }
    }
}

impl Console {
    /// Writes bytes as they are.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        let Some(mut port) = Self::port() else { return };
        for byte in bytes {
            for _ in 0..PATIENCE {
                if port.try_send_byte(*byte).is_ok() {
                    break;
                }
            }
        }
    }
}

impl fmt::Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.write_bytes(s.as_bytes());
        Ok(())
    }
}

/// Writes a line.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => {{
        use core::fmt::Write as _;
        let _turn = $crate::console::Turn::take();
        // It can't fail.
        let _ = writeln!($crate::console::Console, "nucleus: {}", format_args!($($arg)*));
    }};
}
