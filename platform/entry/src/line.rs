//! Text for the log, where nothing can be allocated.

use core::fmt;

/// A line of text without an allocator.
pub struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    /// Empty.
    #[allow(clippy::new_without_default, reason = "one way to make it is enough")]
    pub const fn new() -> Self {
        Line { bytes: [0; 512], len: 0 }
    }

    /// What was written; cut off where it was too long.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("(a line that is no text)")
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            if self.len + c.len_utf8() > self.bytes.len() {
                return Ok(());
            }
            self.len += c.encode_utf8(&mut self.bytes[self.len..]).len();
        }
        Ok(())
    }
}
