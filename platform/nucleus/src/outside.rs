//! Requests that are answered outside the machine, by a port: what passes there is in `atoll_abi::nucleus::outside`.
#![allow(unsafe_code, reason = "reads and fills the requesters' buffers")]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::devices::{Answers, Asked, say};
use crate::{NUCLEUS, control};
use atoll_abi::core_local::core_local;
use atoll_abi::errno::Errno;
use atoll_abi::grid::CONFIG_MAX;
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::nucleus::outside::{
    BOOKS, BUFFERS_MAX, BURN, FIRST_HANDLE, OFFER, REPORT, REPORTED, SAID, SIGNALS, TAKEN, UNDER_WAY, WINDOW,
};
use atoll_abi::service::{Answer, Extent, Op, Request};
use atoll_drivers::Error;
use atoll_drivers::console::Console;
use atoll_drivers::transport::AnyTransport;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a request that the port is given at once.
const PIECE: usize = 16 << 10;
const ANSWER: usize = size_of::<Answer>();

/// An answer whose bytes are coming in.
struct Coming {
    asked: Asked,
    answer: Answer,
    /// What is still to be filled of the requester's buffers.
    left: [Extent; 3],
}

/// A configuration that is coming in.
struct Offer {
    number: u32,
    len: usize,
    /// How much of it is there.
    have: usize,
}

/// The port.
pub(crate) struct Outside {
    port: Box<Console<AnyTransport>>,
    /// Requests that are under way, each by its cookie less one.
    asked: Vec<Option<Asked>>,
    /// Those that are not sent, because so many are.
    later: VecDeque<Asked>,
    /// What the port had no room for: bytes, and how many of them are gone.
    leaving: VecDeque<(Vec<u8>, usize)>,
    /// Bytes that were sent and not said to be taken.
    on_the_way: usize,
    /// The head of an answer that is coming in, and how much of it is there.
    head: ([u8; ANSWER], usize),
    coming: Option<Coming>,
    offer: Option<Offer>,
    /// The port does not work, or who is there tells lies.
    broken: bool,
}

impl Outside {
    pub fn new(port: Box<Console<AnyTransport>>) -> Outside {
        Outside {
            port,
            asked: Vec::new(),
            later: VecDeque::new(),
            leaving: VecDeque::new(),
            on_the_way: 0,
            head: ([0; ANSWER], 0),
            coming: None,
            offer: None,
            broken: false,
        }
    }

    /// Is this a request that is answered outside? The rest is the cell's own affair.
    pub fn takes(request: &Request) -> bool {
        match Op::from_number(request.op) {
            None | Some(Op::Nop | Op::PassFd | Op::DiskRead) => false,
            Some(Op::Socket | Op::Bind | Op::Connect | Op::Listen | Op::Route | Op::Interface) => false,
            Some(Op::Release) => request.arg[0] >= FIRST_HANDLE,
            Some(_) => true,
        }
    }

    pub fn interrupted(&mut self) {
        self.port.interrupted();
    }

    pub fn look_again(&mut self) {
        self.port.look_again();
    }

    /// Takes a request.
    pub fn take(&mut self, mut asked: Asked, answers: &Answers) {
        let request = &mut asked.1;
        let all = request.buffers().iter().fold(0u64, |all, one| all.saturating_add(one.len));
        if all > BUFFERS_MAX {
            // Fewer bytes may come than there is room for. Nothing else is that long.
            if Op::from_number(request.op) != Some(Op::Read) {
                return answers.give(&asked, Err(Errno::EINVAL), 0);
            }
            request.a.len = request.a.len.min(BUFFERS_MAX);
            (request.b.len, request.c.len) = (0, 0);
        }
        self.later.push_back(asked);
    }

    pub fn serve(&mut self, answers: &Answers) {
        if !self.broken
            && let Err(e) = self.exchange(answers)
        {
            say(format_args!("nothing outside is reached any more: its port does not work ({e})"));
            self.broken = true;
        }
        if self.broken {
            let coming = self.coming.take().map(|c| c.asked);
            let all = self.asked.drain(..).flatten().chain(coming).chain(self.later.drain(..));
            all.for_each(|asked| answers.give(&asked, Err(Errno::EIO), 0));
        }
    }

    /// Moves bytes both ways, as far as the port can.
    fn exchange(&mut self, answers: &Answers) -> Result<(), Error> {
        let mut came = Vec::new();
        while self.port.receive(|bytes| came.extend_from_slice(bytes))? {
            self.come(&came, answers)?;
            came.clear();
        }
        loop {
            while let Some((bytes, gone)) = self.leaving.front_mut() {
                let n = (bytes.len() - *gone).min(PIECE).min(WINDOW - self.on_the_way);
                if n == 0 {
                    return Ok(());
                }
                match self.port.send(&bytes[*gone..*gone + n]) {
                    Ok(()) => *gone += n,
                    Err(Error::QueueFull) => return Ok(()),
                    Err(e) => return Err(e),
                }
                self.on_the_way += n;
                if *gone == bytes.len() {
                    self.leaving.pop_front();
                }
            }
            let slot = self.asked.iter().position(Option::is_none).unwrap_or(self.asked.len());
            if slot == UNDER_WAY {
                return Ok(());
            }
            let Some(asked) = self.later.pop_front() else { return Ok(()) };
            self.leaving.push_back((frame(&asked.1, slot as u64 + 1), 0));
            match self.asked.get_mut(slot) {
                Some(free) => *free = Some(asked),
                None => self.asked.push(Some(asked)),
            }
        }
    }

    /// Sends what is no request, of the grid.
    fn tell(&mut self, what: u64, bytes: Vec<u8>) {
        let mut head = Request::new(Op::Nop);
        (head.cookie, head.a.len) = (what, bytes.len() as u64);
        self.leaving.push_back((head.as_bytes().to_vec(), 0));
        self.leaving.push_back((bytes, 0));
    }

    /// Tells the runtime of a configuration that has come in whole.
    fn take_offer(&mut self) {
        if let Some(Offer { number, len, .. }) = self.offer.take_if(|offer| offer.have == offer.len) {
            let grid = &control().grid;
            grid.config_len.store(len as u32, Ordering::Relaxed);
            grid.offered.store(number, Ordering::SeqCst);
            mail();
        }
    }

    /// Takes in what came.
    fn come(&mut self, mut bytes: &[u8], answers: &Answers) -> Result<(), Error> {
        while !bytes.is_empty() {
            if let Some(offer) = &mut self.offer {
                let now = bytes.len().min(offer.len - offer.have);
                let to = &control().grid.config[offer.have..];
                to.iter().zip(&bytes[..now]).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
                bytes = &bytes[now..];
                offer.have += now;
                self.take_offer();
                continue;
            }
            if self.coming.is_none() {
                let (head, have) = &mut self.head;
                let now = bytes.len().min(ANSWER - *have);
                head[*have..*have + now].copy_from_slice(&bytes[..now]);
                bytes = &bytes[now..];
                *have += now;
                if *have < ANSWER {
                    return Ok(());
                }
                *have = 0;
                let answer = Answer::read_from_bytes(head).map_err(|_| Error::IoError)?;
                match answer.cookie {
                    SIGNALS => {
                        signals(answer.value as u64);
                        continue;
                    }
                    BOOKS => {
                        let image = crate::books::image();
                        // More than that is not taken there. There are not so many activities on so many cores.
                        let image = if image.len() as u64 > BUFFERS_MAX { Vec::new() } else { image };
                        self.tell(BOOKS, image);
                        continue;
                    }
                    SAID => {
                        self.tell(SAID, crate::books::said(answer.value != 0));
                        continue;
                    }
                    REPORT => {
                        let report = &control().report;
                        report.what.store(answer.value as u32, Ordering::Relaxed);
                        report.value.store(answer.extra, Ordering::Relaxed);
                        report.asked.store((answer.value as u64 >> 32) as u32, Ordering::SeqCst);
                        mail();
                        continue;
                    }
                    REPORTED => {
                        let number = (answer.value as u64 >> 32) as u32;
                        self.tell(REPORTED, crate::books::reported(number, answer.extra));
                        continue;
                    }
                    BURN => {
                        control().grid.burns_times.store(answer.extra as u32, Ordering::Relaxed);
                        control().grid.burns_asked.store(answer.value as u32, Ordering::SeqCst);
                        mail();
                        continue;
                    }
                    OFFER if answer.extra <= CONFIG_MAX as u64 => {
                        let (number, len) = (answer.value as u32, answer.extra as usize);
                        self.offer = Some(Offer { number, len, have: 0 });
                        self.take_offer();
                        continue;
                    }
                    OFFER => return Err(Error::IoError),
                    TAKEN => {
                        let left = self.on_the_way.checked_sub(answer.value as usize);
                        self.on_the_way = left.ok_or(Error::IoError)?;
                        continue;
                    }
                    _ => {}
                }
                let slot = answer.cookie as usize - 1;
                let asked = self.asked.get_mut(slot).and_then(Option::take).ok_or(Error::IoError)?;
                let filled = asked.1.filled(&answer);
                let buffers = asked.1.buffers();
                let left = [0, 1, 2].map(|n| Extent { offset: buffers[n].offset, len: filled[n] });
                self.coming = Some(Coming { asked, answer, left });
            }
            let Some(coming) = &mut self.coming else { continue };
            for part in &mut coming.left {
                let now = bytes.len().min(part.len as usize);
                fill(part.offset, &bytes[..now]);
                *part = Extent { offset: part.offset + now as u64, len: part.len - now as u64 };
                bytes = &bytes[now..];
            }
            if coming.left.iter().all(|part| part.len == 0)
                && let Some(Coming { asked, answer, .. }) = self.coming.take()
            {
                answers.give(&asked, Errno::from_ret(answer.value), answer.extra);
            }
        }
        Ok(())
    }
}

/// A request as it is sent, with what it gives.
fn frame(request: &Request, cookie: u64) -> Vec<u8> {
    let given = request.given();
    let mut frame = Vec::with_capacity(size_of::<Request>() + given.iter().sum::<u64>() as usize);
    frame.extend_from_slice(Request { cookie, ..*request }.as_bytes());
    for (Extent { offset: at, .. }, len) in request.buffers().into_iter().zip(given) {
        // SAFETY: the requester's buffer, in the cell's memory, until it is answered. Programs may write to it
        // meanwhile: what is sent is what is there then.
        frame.extend_from_slice(unsafe {
            core::slice::from_raw_parts((DIRECT_MAP + at) as *const u8, len as usize)
        });
    }
    frame
}

/// Copies into a requester's buffer, which has room.
fn fill(to: u64, bytes: &[u8]) {
    // SAFETY: the requester's buffer, in the cell's memory, until it is answered; `filled` is no longer than that.
    unsafe { ((DIRECT_MAP + to) as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Signals have come from outside.
fn signals(bits: u64) {
    control().mailbox.signals.fetch_or(bits, Ordering::SeqCst);
    mail();
}

/// The first core is to look at the mailbox.
fn mail() {
    if core_local().id() != 0 {
        NUCLEUS.notify(0);
    }
}
