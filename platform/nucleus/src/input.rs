//! Standard input, by a port: what passes there is in `atoll_abi::nucleus::input`.
#![allow(unsafe_code, reason = "fills the requesters' buffers")]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::devices::{Answers, Asked, say};
use atoll_abi::errno::Errno;
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::nucleus::input::{ANSWERED, ASK, LEAST, MOST};
use atoll_abi::service::{Extent, Op, Request};
use atoll_drivers::console::Console;
use atoll_drivers::transport::AnyTransport;

/// `poll(2)` bits.
const POLLIN: u64 = 1;
const POLLHUP: u64 = 0x10;
/// The control that asks how many bytes are there.
const FIONREAD: u64 = 0x541b;

/// Standard input.
pub(crate) struct Input {
    port: Box<Console<AnyTransport>>,
    /// Words for the other side that the port had no room for.
    words: VecDeque<u32>,
    /// A word that is coming in: its bytes, and how many there are.
    word: ([u8; 4], usize),
    /// Bytes of the piece that is coming in which are not there yet.
    left: usize,
    /// Bytes that nobody has read yet.
    bytes: VecDeque<u8>,
    /// A piece has been asked for and has not begun to come.
    wanted: bool,
    end: bool,
    error: Option<Errno>,
    /// Who wants to read, or to know when that is possible.
    readers: VecDeque<Asked>,
    /// Who wants to know what is there now.
    curious: VecDeque<Asked>,
}

impl Input {
    pub fn new(port: Box<Console<AnyTransport>>) -> Input {
        Input {
            port,
            words: VecDeque::new(),
            word: ([0; 4], 0),
            left: 0,
            bytes: VecDeque::new(),
            wanted: false,
            end: false,
            error: None,
            readers: VecDeque::new(),
            curious: VecDeque::new(),
        }
    }

    /// Does this stream control ask how much is there?
    pub fn is_question(request: &Request) -> bool {
        request.arg[0] == 0 && request.arg[1] == FIONREAD && request.a.len >= 4
    }

    pub fn interrupted(&mut self) {
        self.port.interrupted();
    }

    /// Takes a request: to read, or a question.
    pub fn take(&mut self, asked: Asked) {
        if Op::from_number(asked.1.op) == Some(Op::StreamRead) {
            return self.readers.push_back(asked);
        }
        self.words.push_back(ASK);
        self.curious.push_back(asked);
    }

    pub fn serve(&mut self, answers: &Answers) {
        if let Err(e) = self.exchange(answers) {
            say(format_args!("standard input ends: its port does not work any more ({e})"));
            self.end = true;
            self.words.clear();
            self.curious.drain(..).for_each(|asked| answers.give(&asked, Err(Errno::EIO), 0));
        }
        self.answer(answers);
    }

    /// Moves bytes both ways, as far as the port can.
    fn exchange(&mut self, answers: &Answers) -> Result<(), atoll_drivers::Error> {
        let mut came = Vec::new();
        while self.port.receive(|bytes| came.extend_from_slice(bytes))? {
            self.come(&came, answers);
            came.clear();
        }
        self.answer(answers);
        if let Some((_, request)) = self.readers.front()
            && !self.wanted
            && !self.end
            && self.left == 0
        {
            self.words.push_back((request.a.len as u32).clamp(LEAST, MOST));
            self.wanted = true;
        }
        while let Some(word) = self.words.front() {
            match self.port.send(&word.to_le_bytes()) {
                Ok(()) => drop(self.words.pop_front()),
                Err(atoll_drivers::Error::QueueFull) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes in what came.
    fn come(&mut self, mut bytes: &[u8], answers: &Answers) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (now, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.bytes.extend(now);
                self.left -= now.len();
                bytes = rest;
                continue;
            }
            let (word, have) = &mut self.word;
            word[*have] = bytes[0];
            bytes = &bytes[1..];
            *have = (*have + 1) % word.len();
            if *have > 0 {
                continue;
            }
            match i32::from_le_bytes(*word) {
                ANSWERED => {
                    if let Some(asked) = self.curious.pop_front() {
                        let there = (self.bytes.len() as u32).to_ne_bytes();
                        fill(asked.1.a, &there);
                        answers.give(&asked, Ok(0), 0);
                    }
                }
                0 => (self.wanted, self.end) = (false, true),
                n @ 1.. => (self.wanted, self.left) = (false, n as usize),
                n => (self.wanted, self.error) = (false, Some(Errno(n.unsigned_abs().min(4095)))),
            }
        }
    }

    /// Answers those who can be answered, in order.
    fn answer(&mut self, answers: &Answers) {
        while !self.bytes.is_empty() || self.end || self.error.is_some() {
            let Some(asked) = self.readers.pop_front() else { return };
            let room = asked.1.a;
            if self.bytes.is_empty() && room.len > 0 {
                match self.error.take() {
                    Some(e) => answers.give(&asked, Err(e), 0),
                    None => answers.give(&asked, Ok(0), POLLHUP),
                }
                continue;
            }
            let n = self.bytes.len().min(room.len as usize);
            let (first, second) = self.bytes.as_slices();
            let part = first.len().min(n);
            fill(room, &first[..part]);
            fill(Extent { offset: room.offset + part as u64, len: room.len }, &second[..n - part]);
            self.bytes.drain(..n);
            let more = if self.bytes.is_empty() { 0 } else { POLLIN };
            let end = if self.end { POLLHUP } else { 0 };
            // An error is something to read, too.
            let error = if self.error.is_some() { POLLIN } else { 0 };
            let ready = more | end | error;
            answers.give(&asked, Ok(if room.len == 0 { ready } else { n as u64 }), ready);
        }
    }
}

/// Copies into a requester's buffer, which has room.
fn fill(to: Extent, bytes: &[u8]) {
    // SAFETY: the requester's buffer, in the cell's memory, until it is answered; the callers look at its length.
    unsafe {
        ((DIRECT_MAP + to.offset) as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
}
