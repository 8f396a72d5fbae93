//! The serial console: what the nucleus says. Cores take turns with their lines, but none waits for
//! ever for another: then lines mix. A port that does not take them loses them.
#![allow(unsafe_code, reason = "names an I/O port")]

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use uart_16550::{Config, Uart16550};

/// The serial ports of a PC. The first is the nucleus's, as QEMU, Firecracker and Cloud Hypervisor have it, too;
/// the others, where they are, take what programs write: to their standard output, and their standard error.
const PORTS: [u16; 3] = [0x3f8, 0x2f8, 0x3e8];
/// Looks at a port that is full before a byte is given up.
const PATIENCE: u32 = 10_000;
/// Looks at a line that does not end before ours begins all the same: its core may have stopped.
const TURN_PATIENCE: u32 = 100_000_000;

/// Somebody writes a line.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Which ports are there.
static THERE: [AtomicBool; PORTS.len()] = [const { AtomicBool::new(false) }; PORTS.len()];

type Port = Uart16550<uart_16550::backend::PioBackend>;

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

fn port(n: usize) -> Option<Port> {
    // SAFETY: a PC's serial port; the nucleus has them for itself.
    unsafe { Uart16550::new_port(PORTS[n]).ok() }
}

impl Console {
    /// Sets the ports up, once.
    pub fn init() {
        for (n, there) in THERE.iter().enumerate() {
            let well = port(n).is_some_and(|mut p| p.check_present() && p.init(Config::default()).is_ok());
            there.store(well, Ordering::Relaxed);
        }
    }
}

/// Writes bytes of a program's stream, 1 or 2, to its port, or, if it has none of its own, to the console. Value: how many it took.
pub fn write_stream(stream: usize, bytes: &[u8]) -> usize {
    if THERE[stream].load(Ordering::Relaxed)
        && let Some(mut port) = port(stream)
    {
        return port.send_all(bytes);
    }
    let _turn = Turn::take();
    port(0).map_or(bytes.len(), |mut port| port.send_all(bytes))
}

trait SendAll {
    fn send_all(&mut self, bytes: &[u8]) -> usize;
}

impl SendAll for Port {
    /// As many as the port takes without much waiting.
    fn send_all(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        for byte in bytes {
            if !(0..PATIENCE).any(|_| self.try_send_byte(*byte).is_ok()) {
                break;
            }
            done += 1;
        }
        done
    }
}

impl fmt::Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // A port that does not take it loses it.
        if let Some(mut port) = port(0) {
            port.send_all(s.as_bytes());
        }
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
