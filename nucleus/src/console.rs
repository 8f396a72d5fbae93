//! The serial console: what the nucleus says. Cores take turns with their lines, but none waits for
//! ever for another: then lines mix. A port that does not take them loses them.
#![allow(unsafe_code, reason = "names an I/O port")]

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use uart_16550::{Config, Uart16550};

use crate::clock;

/// The serial ports of a PC. The first is the nucleus's, as QEMU, Firecracker and Cloud Hypervisor have it, too;
/// the others, where they are, take what programs write: to their standard output, and their standard error.
const PORTS: [u16; 3] = [0x3f8, 0x2f8, 0x3e8];
/// Looks at a port that is full before a byte is given up.
const PATIENCE: u32 = 10_000;
/// For how long the log leaves its port alone that has not taken a byte, ns: what it has to say meanwhile is lost.
const LEFT_ALONE: u64 = 100_000_000;
/// How long a line may take before ours begins all the same, ns: its core may have stopped. At 115,200 baud one of a cell
/// takes 0.1 s. And how long a core waits for its turn altogether, whoever is quicker.
const LINE_PATIENCE: u64 = 1_000_000_000;
const TURN_PATIENCE: u64 = 4_000_000_000;
/// The same in looks, for as long as there is no clock.
const TURN_LOOKS: u32 = 10_000_000;

/// Somebody writes a line.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Lines that have ended.
static LINES: AtomicU32 = AtomicU32::new(0);
/// When the log tries its port again, by the clock.
static TRY_AGAIN: AtomicU64 = AtomicU64::new(0);
/// Which ports are there.
static THERE: [AtomicBool; PORTS.len()] = [const { AtomicBool::new(false) }; PORTS.len()];

type Port = Uart16550<uart_16550::backend::PioBackend>;

/// A turn on the console, up to the end of the value's life.
pub struct Turn(());

impl Turn {
    /// Waits a little for the others.
    pub fn take() -> Turn {
        if !BUSY.swap(true, Ordering::Acquire) {
            return Turn(());
        }
        let begun = clock::now();
        let (mut line, mut since, mut looks) = (LINES.load(Ordering::Relaxed), begun, 0);
        while BUSY.swap(true, Ordering::Acquire) {
            let (now, current) = (clock::now(), LINES.load(Ordering::Relaxed));
            if current != line {
                (line, since) = (current, now);
            }
            looks += u32::from(now == 0);
            let spent = |from: u64, patience| now.saturating_sub(from) > patience;
            if spent(since, LINE_PATIENCE) || spent(begun, TURN_PATIENCE) || looks > TURN_LOOKS {
                break;
            }
            core::hint::spin_loop();
        }
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        LINES.fetch_add(1, Ordering::Relaxed);
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

/// Writes bytes of the log. A port that does not take them loses them, and what comes in the time after that: who says
/// much does not wait for each byte.
pub fn log(bytes: &[u8]) {
    if clock::now() < TRY_AGAIN.load(Ordering::Relaxed) {
        return;
    }
    if let Some(mut port) = port(0)
        && port.send_all(bytes) < bytes.len()
    {
        TRY_AGAIN.store(clock::now() + LEFT_ALONE, Ordering::Relaxed);
    }
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
        log(s.as_bytes());
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
