//! The line discipline of terminals (`termios(3)`, Linux's `n_tty`): what
//! happens to bytes between a keyboard and who reads, and between who writes
//! and a screen. Knows no file and no process.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linux_raw_sys::general as linux;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest line that is edited, bytes; what comes behind it is dropped.
const LINE_MAX: usize = 4095;
/// Bytes that wait in one direction before who writes waits, too.
pub const ROOM: usize = 16 << 10;

/// A terminal's settings, as the kernel has them (`struct termios2`; without the speeds at its end, `struct termios`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are termios(3)'s")]
pub struct Termios {
    pub iflag: u32,
    pub oflag: u32,
    pub cflag: u32,
    pub lflag: u32,
    pub line: u8,
    pub cc: [u8; 19],
    /// Bits per second, of input and output.
    pub ispeed: u32,
    pub ospeed: u32,
}

/// Bytes of `struct termios`.
pub const TERMIOS: usize = core::mem::offset_of!(Termios, ispeed);

/// Bits per second of B0 to B38400, and from B57600 on.
const SPEEDS: [u32; 31] = [
    0, 50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19_200, 38_400, 57_600, 115_200,
    230_400, 460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000, 2_000_000, 2_500_000,
    3_000_000, 3_500_000, 4_000_000,
];

impl Default for Termios {
    /// As a new terminal has them.
    fn default() -> Self {
        Termios {
            iflag: linux::ICRNL | linux::IXON,
            oflag: linux::OPOST | linux::ONLCR,
            cflag: linux::B38400 | linux::CS8 | linux::CREAD,
            lflag: linux::ISIG
                | linux::ICANON
                | linux::ECHO
                | linux::ECHOE
                | linux::ECHOK
                | linux::ECHOCTL
                | linux::ECHOKE
                | linux::IEXTEN,
            line: 0,
            cc: [3, 28, 127, 21, 4, 0, 1, 0, 17, 19, 26, 0, 18, 15, 23, 22, 0, 0, 0],
            ispeed: 38_400,
            ospeed: 38_400,
        }
    }
}

/// The same as System V has it (`struct termio`): the low halves, and fewer characters.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "the names are those of ioctl_tty(2)")]
pub struct Termio {
    pub iflag: u16,
    pub oflag: u16,
    pub cflag: u16,
    pub lflag: u16,
    pub line: u8,
    pub cc: [u8; 8],
    pub padding: u8,
}

impl Termio {
    /// What it shows of a terminal's settings.
    pub fn of(all: &Termios) -> Termio {
        let [iflag, oflag, cflag, lflag] =
            [all.iflag, all.oflag, all.cflag, all.lflag].map(|flag| flag as u16);
        let mut cc = [0; 8];
        cc.copy_from_slice(&all.cc[..8]);
        Termio { iflag, oflag, cflag, lflag, line: all.line, cc, padding: 0 }
    }

    /// Settings with this in place of what it shows of them.
    pub fn over(&self, mut all: Termios) -> Termios {
        let low = |all: u32, flag: u16| all & 0xffff_0000 | u32::from(flag);
        all.iflag = low(all.iflag, self.iflag);
        all.oflag = low(all.oflag, self.oflag);
        all.cflag = low(all.cflag, self.cflag);
        all.lflag = low(all.lflag, self.lflag);
        all.line = self.line;
        all.cc[..8].copy_from_slice(&self.cc);
        all
    }
}

impl Termios {
    /// Is this flag of the local modes set?
    pub fn local(&self, flag: u32) -> bool {
        self.lflag & flag != 0
    }

    /// The same with the speeds that its flags name: B0 as that of input is the speed of output, and BOTHER is any.
    pub fn with_speeds(mut self) -> Self {
        let speed = |code: u32, own: u32| match code & linux::CBAUD {
            linux::BOTHER => own,
            code if code & linux::CBAUDEX != 0 => SPEEDS[(code & !linux::CBAUDEX) as usize + 15],
            code => SPEEDS[code as usize],
        };
        self.ospeed = speed(self.cflag, self.ospeed);
        let input = self.cflag >> linux::IBSHIFT;
        self.ispeed = if input & linux::CBAUD == 0 { self.ospeed } else { speed(input, self.ispeed) };
        self
    }

    /// Is this the special character `which` (a V constant)? Zero means that there is none.
    fn is(&self, c: u8, which: u32) -> bool {
        c != 0 && self.cc[which as usize] == c
    }
}

/// So many bytes of what is written lie at the other side, read or not, and are that side's to forget; Linux has them in the reader's own
/// buffer.
pub const ARRIVED: usize = 4095;

/// One terminal's line.
#[derive(Default)]
pub struct Line {
    /// Its settings.
    pub termios: Termios,
    /// What can be read.
    input: VecDeque<u8>,
    /// Of that, the lines' lengths; only whole lines are read, if it is edited. Of length 0: an end of file.
    lines: VecDeque<usize>,
    /// The line that is being edited.
    edit: Vec<u8>,
    /// What goes to the screen.
    output: VecDeque<u8>,
    column: usize,
    /// The column where the line that is being edited begins.
    begin: usize,
    /// Where in the output begins what shows only when all that is typed at once has been looked at.
    pending: usize,
    /// The next character stands for itself.
    literal: bool,
    /// Output is stopped.
    pub stopped: bool,
}

impl Line {
    /// Are lines edited?
    pub fn canonical(&self) -> bool {
        self.termios.local(linux::ICANON)
    }

    /// Changes the settings.
    pub fn set(&mut self, new: Termios) {
        let was = self.canonical();
        self.termios = new;
        match (was, self.canonical()) {
            (true, false) => {
                // What was typed can be read as it is.
                self.lines.clear();
                self.input.extend(self.edit.drain(..));
            }
            (false, true) if !self.input.is_empty() => self.lines.push_back(self.input.len()),
            _ => {}
        }
        if self.termios.iflag & linux::IXON == 0 {
            self.stopped = false;
        }
    }

    /// Do ^S and ^Q stop the output and let it go on?
    pub fn stops_as_usual(&self) -> bool {
        let at = |n: u32| self.termios.cc[n as usize];
        self.termios.iflag & linux::IXON != 0
            && at(linux::VSTOP) == b'S' & 0x1f
            && at(linux::VSTART) == b'Q' & 0x1f
    }

    /// Bytes that can be read now.
    pub fn readable(&self) -> usize {
        if self.canonical() { self.lines.iter().sum() } else { self.input.len() }
    }

    /// Is there something to read, an end of file for example?
    pub fn has_input(&self) -> bool {
        if self.canonical() { !self.lines.is_empty() } else { !self.input.is_empty() }
    }

    /// Bytes that can be typed before who types has to wait.
    pub fn input_room(&self) -> usize {
        if self.canonical() && self.lines.is_empty() {
            // Whatever is too long is dropped: only a line's end can end it.
            return ROOM;
        }
        ROOM.saturating_sub(self.input.len())
    }

    /// Bytes on the way to the screen.
    pub fn written(&self) -> usize {
        self.output.len()
    }

    /// What a read of up to `most` bytes would get: one line at most, if lines are edited.
    pub fn peek_input(&self, most: usize) -> Vec<u8> {
        let most = if self.canonical() { most.min(self.lines.front().copied().unwrap_or(0)) } else { most };
        self.input.iter().take(most).copied().collect()
    }

    /// Takes what was peeked at.
    pub fn take_input(&mut self, n: usize) {
        self.input.drain(..n);
        if self.canonical()
            && let Some(first) = self.lines.front_mut()
        {
            *first -= n;
            if *first == 0 {
                self.lines.pop_front();
            }
        }
    }

    /// What goes to the screen next.
    pub fn peek_output(&self, most: usize) -> Vec<u8> {
        self.output.iter().take(most).copied().collect()
    }

    /// Takes what was peeked at.
    pub fn take_output(&mut self, n: usize) {
        self.output.drain(..n);
    }

    /// Forgets what was typed and not read.
    pub fn flush_input(&mut self) {
        self.input.clear();
        self.lines.clear();
        self.edit.clear();
    }

    /// Forgets what was written and has not arrived at the other side.
    pub fn flush_output(&mut self) {
        self.output.truncate(ARRIVED);
    }

    /// Forgets all that was written and not read at the other side.
    pub fn flush_arrived(&mut self) {
        self.output.clear();
    }

    /// Characters are typed, all at once. Value: signals for the foreground.
    pub fn receive(&mut self, typed: &[u8]) -> Vec<u32> {
        self.pending = self.output.len();
        typed.iter().filter_map(|c| self.receive_one(*c)).collect()
    }

    fn receive_one(&mut self, c: u8) -> Option<u32> {
        let t = self.termios;
        let mut c = c;
        if core::mem::take(&mut self.literal) {
            self.keep(c);
            return None;
        }
        if t.iflag & linux::ISTRIP != 0 {
            c &= 0x7f;
        }
        if t.iflag & linux::IUCLC != 0 && t.local(linux::IEXTEN) {
            c = c.to_ascii_lowercase();
        }
        if t.iflag & linux::IXON != 0 {
            if t.is(c, linux::VSTART) {
                self.stopped = false;
                return None;
            }
            if t.is(c, linux::VSTOP) {
                self.stopped = true;
                return None;
            }
            if t.iflag & linux::IXANY != 0 {
                self.stopped = false;
            }
        }
        if t.local(linux::ISIG) {
            let signals = [
                (linux::VINTR, linux::SIGINT),
                (linux::VQUIT, linux::SIGQUIT),
                (linux::VSUSP, linux::SIGTSTP),
            ];
            if let Some((_, signal)) = signals.iter().find(|(which, _)| t.is(c, *which)) {
                if !t.local(linux::NOFLSH) {
                    self.flush_input();
                    self.output.truncate(self.pending);
                    self.flush_output();
                }
                self.stopped = false;
                if t.local(linux::ECHO) {
                    self.echo(c);
                }
                self.pending = self.output.len();
                return Some(*signal);
            }
        }
        match c {
            b'\r' if t.iflag & linux::IGNCR != 0 => return None,
            b'\r' if t.iflag & linux::ICRNL != 0 => c = b'\n',
            b'\n' if t.iflag & linux::INLCR != 0 => c = b'\r',
            _ => {}
        }
        if !self.canonical() {
            self.keep(c);
            return None;
        }
        let extended = t.local(linux::IEXTEN);
        if t.is(c, linux::VERASE) || t.is(c, linux::VKILL) || extended && t.is(c, linux::VWERASE) {
            self.erase(c);
        } else if extended && t.is(c, linux::VLNEXT) {
            self.literal = true;
            if t.local(linux::ECHO) && t.local(linux::ECHOCTL) {
                self.output.extend(b"^\x08");
            }
        } else if extended && t.local(linux::ECHO) && t.is(c, linux::VREPRINT) {
            self.echo(c);
            self.put(b'\n');
            for c in self.edit.clone() {
                self.echo(c);
            }
        } else if c == b'\n' {
            if t.local(linux::ECHO) || t.local(linux::ECHONL) {
                self.put(b'\n');
            }
            self.end_line(Some(c));
        } else if t.is(c, linux::VEOF) {
            self.end_line(None);
        } else if t.is(c, linux::VEOL) || extended && t.is(c, linux::VEOL2) {
            if t.local(linux::ECHO) {
                self.echo(c);
            }
            self.end_line(Some(c));
        } else {
            self.keep(c);
        }
        None
    }

    fn end_line(&mut self, last: Option<u8>) {
        self.edit.extend(last);
        self.lines.push_back(self.edit.len());
        self.input.extend(self.edit.drain(..));
    }

    fn keep(&mut self, c: u8) {
        if self.canonical() {
            if self.edit.len() >= LINE_MAX {
                return;
            }
            if self.edit.is_empty() {
                self.begin = self.column;
            }
            self.edit.push(c);
        } else {
            self.input.push_back(c);
        }
        if self.termios.local(linux::ECHO) {
            if c == b'\n' {
                self.put(c);
            } else {
                self.echo(c);
            }
        }
    }

    /// Shows a character that was typed.
    fn echo(&mut self, c: u8) {
        if self.termios.local(linux::ECHOCTL) && c.is_ascii_control() && c != b'\t' {
            self.output.extend([b'^', c ^ 0x40]);
            self.column += 2;
        } else {
            self.put(c);
        }
    }

    /// Takes the last character off the line, all of it if there are several bytes to it.
    fn pop(&mut self) -> Option<u8> {
        let mut c = self.edit.pop()?;
        if self.termios.iflag & linux::IUTF8 != 0 {
            while c & 0xc0 == 0x80 {
                c = self.edit.pop()?;
            }
        }
        Some(c)
    }

    /// VERASE, VKILL or VWERASE was typed.
    fn erase(&mut self, by: u8) {
        let t = self.termios;
        let echo = t.local(linux::ECHO);
        if self.edit.is_empty() {
            return;
        }
        let kill = t.is(by, linux::VKILL);
        if kill && !(echo && t.local(linux::ECHOK) && t.local(linux::ECHOKE) && t.local(linux::ECHOE)) {
            self.edit.clear();
            if echo {
                self.echo(by);
                if t.local(linux::ECHOK) {
                    self.put(b'\n');
                }
            }
            return;
        }
        let word = !kill && !t.is(by, linux::VERASE);
        let mut seen = false;
        while let Some(last) = self.edit.last() {
            let part = last.is_ascii_alphanumeric() || *last == b'_';
            if word && !part && seen {
                break;
            }
            seen |= part;
            let Some(c) = self.pop() else { break };
            if echo {
                self.rub_out(c, by, word || kill);
            }
            if !word && !kill {
                break;
            }
        }
    }

    /// Columns that the echo of a byte takes; not a tab's.
    fn width(&self, c: u8) -> usize {
        let t = &self.termios;
        if c.is_ascii_control() {
            return if t.local(linux::ECHOCTL) { 2 } else { 0 };
        }
        usize::from(t.iflag & linux::IUTF8 == 0 || c & 0xc0 != 0x80)
    }

    /// Takes a character off the screen.
    fn rub_out(&mut self, c: u8, by: u8, several: bool) {
        let t = self.termios;
        if !several && !t.local(linux::ECHOE) {
            self.echo(by);
            return;
        }
        let columns = if c == b'\t' {
            // To where the line was before it, counted from the tab before that.
            let since = self.edit.iter().rev().take_while(|c| **c != b'\t');
            let mut before: usize = since.map(|c| self.width(*c)).sum();
            if !self.edit.contains(&b'\t') {
                before += self.begin;
            }
            8 - before % 8
        } else {
            self.width(c)
        };
        for _ in 0..columns {
            self.output.extend(if c == b'\t' { &b"\x08"[..] } else { b"\x08 \x08" });
        }
        self.column = self.column.saturating_sub(columns);
    }

    /// A character is written.
    pub fn put(&mut self, c: u8) {
        let flags = self.termios.oflag;
        if flags & linux::OPOST == 0 {
            self.output.push_back(c);
            return;
        }
        let has = |flag: u32| flags & flag != 0;
        let mut c = c;
        if c == b'\r' {
            if has(linux::ONOCR) && self.column == 0 {
                return;
            }
            if has(linux::OCRNL) {
                c = b'\n';
            }
        }
        match c {
            b'\n' => {
                if has(linux::ONLCR) {
                    self.output.push_back(b'\r');
                }
                if has(linux::ONLCR) || has(linux::ONLRET) {
                    self.column = 0;
                }
            }
            b'\r' => self.column = 0,
            b'\t' => {
                let spaces = 8 - self.column % 8;
                self.column += spaces;
                if flags & linux::TABDLY == linux::XTABS {
                    self.output.extend(core::iter::repeat_n(b' ', spaces));
                    return;
                }
            }
            8 => self.column = self.column.saturating_sub(1),
            _ => {
                if has(linux::OLCUC) {
                    c = c.to_ascii_uppercase();
                }
                let continued = self.termios.iflag & linux::IUTF8 != 0 && c & 0xc0 == 0x80;
                if !c.is_ascii_control() && !continued {
                    self.column += 1;
                }
            }
        }
        self.output.push_back(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(line: &mut Line, text: &[u8]) -> Vec<u8> {
        assert_eq!(line.receive(text), []);
        let shown = line.peek_output(1000);
        line.take_output(shown.len());
        shown
    }

    #[test]
    fn lines_are_edited() {
        let mut line = Line::default();
        assert_eq!(typed(&mut line, b"ab\x7fc\r"), b"ab\x08 \x08c\r\n");
        assert_eq!(typed(&mut line, b"one two\x17x\x15y\x04"), {
            let mut shown = b"one two\x08 \x08\x08 \x08\x08 \x08x".to_vec();
            for _ in 0..5 {
                shown.extend(b"\x08 \x08");
            }
            shown.push(b'y');
            shown
        });
        assert_eq!(line.peek_input(100), b"ac\n");
        line.take_input(3);
        assert_eq!(line.peek_input(100), b"y");
        line.take_input(1);
        assert!(!line.has_input());
        typed(&mut line, b"\x04");
        assert!(line.has_input());
        assert_eq!(line.peek_input(10), b"");
    }

    #[test]
    fn raw_after_canonical() {
        let mut line = Line::default();
        typed(&mut line, b"half");
        assert!(!line.has_input());
        let mut raw = line.termios;
        raw.lflag &= !(linux::ICANON | linux::ECHO | linux::ISIG);
        line.set(raw);
        assert_eq!(typed(&mut line, b"\x03\r"), b"");
        assert_eq!(line.peek_input(100), b"half\x03\n");
    }

    #[test]
    fn signals_and_tabs() {
        let mut line = Line::default();
        assert_eq!(line.receive(&[3]), [linux::SIGINT]);
        assert_eq!(line.peek_output(10), b"^C");
        line.termios.oflag |= linux::XTABS;
        line.put(b'\t');
        assert_eq!(line.peek_output(20), b"^C      ");
    }
}
