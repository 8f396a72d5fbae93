//! The protocol of one connection: its transmission control block (RFC 9293).
//!
//! It knows nothing of addresses, sockets or frames: it is given the peer's
//! segments ([`Tcb::hear`]) and the time ([`Tcb::at_time`]), and is asked for
//! what is to be sent ([`Tcb::output`]). What a connection usually does, bytes
//! that come in order and acknowledgements of what was sent, goes a short way
//! (`hear_expected`, the header prediction of Van Jacobson's).
//!
//! Beyond RFC 9293: window scaling, time stamps and protection against wrapped
//! sequence numbers (RFC 7323), selective acknowledgements both ways (RFC 2018)
//! with the loss recovery of RFC 6675, or else NewReno's (RFC 6582), limited
//! transmit (RFC 3042), retransmission timer (RFC 6298), CUBIC (RFC 9438),
//! blind attacks (RFC 5961), Minshall's variant of the Nagle algorithm, as Linux
//! has it.

use alloc::vec::Vec;

use smoltcp::wire::TcpOption;

use crate::congestion::Congestion;
use crate::link::{Segment, flags};
use crate::ring::Ring;

/// Shortest and longest time until something is sent again, and the one before any round trip was measured, us.
const RTO_MIN: i64 = 200_000;
const RTO_MAX: i64 = 120_000_000;
const RTO_FIRST: i64 = 1_000_000;
/// For how long an acknowledgement may wait for bytes to go with, us.
pub(crate) const ACK_DELAY: i64 = 10_000;
/// TIME_WAIT, us.
const TIME_WAIT: i64 = 10_000_000;
/// For how long TCP_CORK holds bytes back, us (tcp(7)).
const CORK: i64 = 200_000;
/// What a handshake may take in all, us (tcp_syn_retries, tcp_synack_retries).
const SYN_LIMIT: i64 = 127_000_000;
const SYN_ACK_LIMIT: i64 = 63_000_000;
/// And what was sent until it is acknowledged (tcp_retries2).
const LIMIT: i64 = 924_000_000;
/// How often a peer is told, that says nothing right, how things are, us (tcp_invalid_ratelimit).
const CHALLENGE: i64 = 500_000;
/// Segments that may overtake one before it counts as lost (RFC 5681: DupThresh).
const OVERTAKEN: u32 = 3;
/// Pieces behind a gap that are kept, and that are known of the peer.
const PIECES: usize = 64;
/// The least that a segment may be as large as (RFC 9293 section 3.7.1): so much is acknowledged later.
const SMALLEST_SEGMENT: u32 = 536;
/// Time stamps that are older than this say nothing (RFC 7323 section 5.5), us.
const STAMPS_LAST: i64 = 24 * 86_400 * 1_000_000;
/// Largest shift of windows (RFC 7323 section 2.3).
const SCALE_MAX: u8 = 14;

/// Connection states (RFC 9293 section 3.3.2). There is no LISTEN: a listening socket makes one for each request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// A segment to be sent.
pub(crate) struct Outgoing<'a> {
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// A multiple of four bytes.
    pub(crate) options: &'a [u8],
    /// The data, in two pieces.
    pub(crate) data: (&'a [u8], &'a [u8]),
}

/// What a connection begins with.
pub(crate) struct Begin {
    /// Its first sequence number, not to be guessed.
    pub(crate) sequence: u32,
    /// Added to the time stamps, likewise.
    pub(crate) stamp: u32,
    /// Largest segment that the way there takes, without options.
    pub(crate) segment: u32,
    /// It is a way where nothing is lost or congested: no window for that, no time stamps.
    pub(crate) local: bool,
    /// Bytes of the buffers at first, and at most.
    pub(crate) receive: usize,
    pub(crate) send: usize,
    pub(crate) receive_most: usize,
    pub(crate) send_most: usize,
}

/// What a program may set.
#[derive(Clone, Copy, Default)]
pub(crate) struct Settings {
    /// TCP_NODELAY.
    pub(crate) no_delay: bool,
    /// TCP_CORK.
    pub(crate) cork: bool,
    /// SO_KEEPALIVE: after which silence, how often, and how many probes, us.
    pub(crate) keep: Option<(i64, i64, u32)>,
    /// How long something that was sent may stay unacknowledged, us (TCP_USER_TIMEOUT).
    pub(crate) limit: Option<i64>,
}

/// How losses are being mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Recovery {
    /// Others arrived (RFC 6675).
    Fast,
    /// Nothing was heard in time.
    Timeout,
}

/// What is to be sent next.
enum Next {
    Reset(u32),
    Syn,
    /// From here on so many bytes; for the first time?
    Bytes(u32, u32, bool),
    Probe,
    Acknowledgement,
}

/// Is `a` before `b`, of two sequence numbers?
#[inline]
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

fn sooner(a: u32, b: u32) -> u32 {
    if before(a, b) { a } else { b }
}

/// Pieces of the sequence space, in order, with gaps between them.
#[derive(Default)]
struct Pieces(Vec<(u32, u32)>);

impl Pieces {
    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds one. False: there are too many.
    fn add(&mut self, mut from: u32, mut to: u32) -> bool {
        let touches = |&(a, b): &(u32, u32)| !before(to, a) && !before(b, from);
        let first = self.0.iter().position(touches);
        match first {
            Some(first) => {
                let count = self.0[first..].iter().take_while(|p| touches(p)).count();
                from = sooner(from, self.0[first].0);
                to = later(to, self.0[first + count - 1].1);
                self.0[first] = (from, to);
                self.0.drain(first + 1..first + count);
                true
            }
            None if self.0.len() < PIECES => {
                let at = self.0.iter().position(|p| before(from, p.0)).unwrap_or(self.0.len());
                self.0.insert(at, (from, to));
                true
            }
            None => false,
        }
    }

    /// Forgets what is before a sequence number.
    fn forget(&mut self, end: u32) {
        let gone = self.0.iter().take_while(|p| !before(end, p.1)).count();
        self.0.drain(..gone);
        if let Some(first) = self.0.first_mut() {
            first.0 = later(first.0, end);
        }
    }

    /// How much of what lies between these is in it?
    fn within(&self, from: u32, to: u32) -> u32 {
        let part = |&(a, b): &(u32, u32)| {
            let (a, b) = (later(a, from), sooner(b, to));
            if before(a, b) { b.wrapping_sub(a) } else { 0 }
        };
        self.0.iter().map(part).sum()
    }
}

/// What a segment's options say.
#[derive(Default)]
struct Options {
    segment: Option<u16>,
    scale: Option<u8>,
    selective: bool,
    pieces: [Option<(u32, u32)>; 3],
    /// TSval and TSecr.
    stamp: Option<(u32, u32)>,
}

impl Options {
    fn parse(mut rest: &[u8]) -> Options {
        let mut all = Options::default();
        while let Ok((after, option)) = TcpOption::parse(rest) {
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(n) => all.segment = Some(n),
                TcpOption::WindowScale(n) => all.scale = Some(n),
                TcpOption::SackPermitted => all.selective = true,
                TcpOption::SackRange(pieces) => all.pieces = pieces,
                TcpOption::TimeStamp { tsval, tsecr } => all.stamp = Some((tsval, tsecr)),
                _ => {}
            }
            rest = after;
        }
        all
    }
}

/// Options of a segment with a time stamp alone, as everybody sends them (RFC 7323 appendix A).
const STAMPED: [u8; 4] = [1, 1, 8, 10];

/// A connection.
pub(crate) struct Tcb {
    state: State,
    pub(crate) settings: Settings,
    /// The last segment was sent with MSG_MORE.
    more: bool,
    local: bool,

    // What is sent.
    /// The first sequence number (ISS), the first that is not acknowledged (SND.UNA), the first that was never sent
    /// (SND.NXT), and that of the first byte in `tx`.
    first: u32,
    una: u32,
    nxt: u32,
    tx_at: u32,
    tx: Ring,
    tx_capacity: usize,
    tx_most: usize,
    /// The peer's window (SND.WND), the largest one it had, the segment that it comes from (SND.WL1).
    wnd: u32,
    wnd_most: u32,
    wnd_from: u32,
    wnd_scale: u8,
    /// Largest segment to the peer, less the options that each has; and what the peer is told that it may send.
    segment: u32,
    offer: u16,
    /// The end of the last segment that was shorter.
    short_end: u32,
    /// A FIN follows the bytes in `tx`.
    closing: bool,

    // What is received.
    /// RCV.NXT; up to where the peer was told that it may send; what it was last told to have come.
    rcv_nxt: u32,
    rcv_most: u32,
    rcv_told: u32,
    rcv_scale: u8,
    rx: Ring,
    rx_capacity: usize,
    rx_most: usize,
    /// The round that is being measured: up to where bytes have been let come, since when, and how many were read.
    round_end: u32,
    round_at: i64,
    round_read: usize,
    /// The shortest round, us.
    round: i64,
    /// What has come behind a gap; the piece that came last.
    early: Pieces,
    early_last: u32,
    /// The FIN's sequence number.
    fin_at: Option<u32>,
    /// The largest segment that has come.
    rcv_segment: u32,

    // What both have agreed on.
    selective: bool,
    stamps: bool,
    stamp_offset: u32,
    /// The peer's last time stamp (TS.Recent), and when it came.
    stamp_recent: u32,
    stamp_at: i64,

    // Acknowledging.
    unacknowledged: u32,
    ack_now: bool,
    ack_at: Option<i64>,
    challenged: i64,

    // Round trips, us.
    /// Smoothed (0: none was measured), and its variation.
    rtt: i64,
    rtt_var: i64,
    rto: i64,
    backoff: u32,
    /// The end of a segment that is being timed, and when it was sent.
    timed: Option<(u32, i64)>,

    // Losses.
    congestion: Congestion,
    duplicates: u32,
    /// What the peer has beyond `una`.
    sacked: Pieces,
    recovery: Option<Recovery>,
    /// Up to here was sent when the recovery began.
    recover: u32,
    /// What is before it and not in `sacked` is lost; from `resend` on it has not been sent again.
    lost_to: u32,
    resend: u32,
    /// Send it whatever the window says.
    resend_now: bool,

    // Times.
    /// When something is sent again, or asked.
    resend_at: Option<i64>,
    /// Questions that were not answered.
    probes: u32,
    probe: bool,
    /// A short segment may go, too.
    force: bool,
    syn_now: bool,
    cork_at: Option<i64>,
    over_at: Option<i64>,
    /// When the peer was last heard, when bytes were last sent, since when nothing has become of what was, and when
    /// something last arrived.
    heard: i64,
    sent: i64,
    progress: i64,
    confirmed: i64,
    kept: u32,

    /// A reset to be sent, and its sequence number.
    reset: Option<u32>,
}

impl Tcb {
    fn new(state: State, begin: &Begin, now: i64) -> Tcb {
        let scale = (0..SCALE_MAX).find(|s| begin.receive_most >> s <= 0xffff).unwrap_or(SCALE_MAX);
        let iss = begin.sequence;
        Tcb {
            state,
            settings: Settings::default(),
            more: false,
            local: begin.local,
            first: iss,
            una: iss,
            nxt: iss,
            tx_at: iss.wrapping_add(1),
            tx: Ring::new(),
            tx_capacity: begin.send,
            tx_most: begin.send_most,
            wnd: 0,
            wnd_most: 0,
            wnd_from: 0,
            wnd_scale: 0,
            segment: begin.segment,
            offer: begin.segment.min(0xffff) as u16,
            short_end: iss,
            closing: false,
            rcv_nxt: 0,
            rcv_most: 0,
            rcv_told: 0,
            rcv_scale: scale,
            rx: Ring::new(),
            rx_capacity: begin.receive,
            rx_most: begin.receive_most,
            round_end: 0,
            round_at: now,
            round_read: 0,
            round: i64::MAX,
            early: Pieces::default(),
            early_last: 0,
            fin_at: None,
            rcv_segment: SMALLEST_SEGMENT,
            selective: false,
            stamps: false,
            stamp_offset: begin.stamp,
            stamp_recent: 0,
            stamp_at: now,
            unacknowledged: 0,
            ack_now: false,
            ack_at: None,
            challenged: i64::MIN / 2,
            rtt: 0,
            rtt_var: 0,
            rto: RTO_FIRST,
            backoff: 0,
            timed: None,
            congestion: Congestion::new(!begin.local),
            duplicates: 0,
            sacked: Pieces::default(),
            recovery: None,
            recover: iss,
            lost_to: iss,
            resend: iss,
            resend_now: false,
            resend_at: None,
            probes: 0,
            probe: false,
            force: false,
            syn_now: true,
            cork_at: None,
            over_at: None,
            heard: now,
            sent: now,
            progress: now,
            confirmed: 0,
            kept: 0,
            reset: None,
        }
    }

    /// One that asks for a connection.
    pub(crate) fn connect(begin: &Begin, now: i64) -> Tcb {
        Tcb::new(State::SynSent, begin, now)
    }

    /// One that was asked for, by this segment.
    pub(crate) fn accept(begin: &Begin, syn: &Segment, now: i64) -> Tcb {
        let mut t = Tcb::new(State::SynReceived, begin, now);
        t.take_syn(syn, now);
        t
    }

    // --- what its socket asks ---

    #[inline]
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Bytes to be read.
    #[inline]
    pub(crate) fn recv_queue(&self) -> usize {
        self.rx.len()
    }

    pub(crate) fn recv_capacity(&self) -> usize {
        self.rx_capacity
    }

    /// Bytes that are not acknowledged.
    #[inline]
    pub(crate) fn send_queue(&self) -> usize {
        self.tx.len()
    }

    #[inline]
    pub(crate) fn send_capacity(&self) -> usize {
        self.tx_capacity
    }

    /// Is there room for bytes?
    #[inline]
    pub(crate) fn can_send(&self) -> bool {
        self.may_send() && self.tx.len() < self.tx_capacity
    }

    /// Would bytes be taken, if there were room?
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    /// Is there a reset that has not been sent?
    pub(crate) fn has_reset(&self) -> bool {
        self.reset.is_some()
    }

    /// Largest segment to the peer, and the smoothed round trip with its variation, us, for those who look.
    pub(crate) fn segment_size(&self) -> u32 {
        self.segment
    }

    pub(crate) fn round_trip(&self) -> (i64, i64) {
        (self.rtt, self.rtt_var)
    }

    /// When something that was sent last arrived, bytes or acknowledgements, us.
    pub(crate) fn confirmed(&self) -> i64 {
        self.confirmed
    }

    /// Congestion window, bytes; time until something is sent again, us.
    pub(crate) fn window(&self) -> (u32, i64) {
        (self.congestion.window(), self.rto)
    }

    /// Hands up to `max` bytes to `f`, piece by piece, which says how many it took; it may stop short. `peek`: they stay.
    /// Value: how many.
    #[inline]
    pub(crate) fn read(&mut self, max: usize, peek: bool, f: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let n = self.rx.show(max, f);
        if !peek {
            self.rx.skip(n);
            if self.early.is_empty() {
                self.rx.rewind();
            }
            self.round_read += n;
        }
        n
    }

    /// How much larger the buffers should be, for what is to be received and for what is sent, bytes: what can be on its way
    /// should not be less than what the reader or the network can take (as Linux's `tcp_rcv_space_adjust` and
    /// `tcp_sndbuf_expand`).
    #[inline]
    pub(crate) fn wants(&mut self, now: i64) -> (usize, usize) {
        let mut receive = 0;
        if before(self.round_end, self.rcv_nxt) {
            receive = self.next_round(now);
        }
        let window = self.congestion.window() as usize;
        let send = if self.tx_capacity < self.tx_most && self.tx.len() >= self.tx_capacity && !self.local {
            (2 * window).min(self.tx_most).saturating_sub(self.tx_capacity)
        } else {
            0
        };
        (receive, send)
    }

    /// A whole window has come since the last one.
    fn next_round(&mut self, now: i64) -> usize {
        let took = (now - self.round_at).max(1);
        self.round = self.round.min(took);
        // In a round trip as many were read.
        let read = (self.round_read as i64).saturating_mul(self.round) / took;
        (self.round_end, self.round_at, self.round_read) = (self.rcv_most, now, 0);
        if self.local {
            return 0;
        }
        let wanted = 2 * read as usize + 16 * self.segment as usize;
        wanted.min(self.rx_most).saturating_sub(self.rx_capacity)
    }

    /// Makes the buffers larger.
    pub(crate) fn grow(&mut self, (receive, send): (usize, usize)) {
        self.rx_capacity += receive;
        self.tx_capacity += send;
    }

    /// Is the window so much larger than the peer knows, after something was read, that it has to be told? Then it will be.
    #[inline]
    pub(crate) fn opens_window(&mut self) -> bool {
        let told = self.rcv_most.wrapping_sub(self.rcv_nxt) as usize;
        let free = self.rx_capacity.saturating_sub(self.rx.len());
        // As Linux's `tcp_cleanup_rbuf`.
        if told * 2 > self.rx_capacity || free < told * 2 || !self.receives() {
            return false;
        }
        self.ack_now = true;
        true
    }

    /// Has `f` fill in up to `max` bytes to be sent, as far as there is room. `more`: others will follow at once. Value: how
    /// many, and whether it did not stop short.
    #[inline]
    pub(crate) fn write(
        &mut self,
        max: usize,
        more: bool,
        f: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> (usize, bool) {
        let room = self.tx_capacity.saturating_sub(self.tx.len());
        self.more = more;
        if self.tx.len() == 0 {
            self.tx.rewind();
        }
        self.tx.fill(max.min(room), f)
    }

    /// No more bytes will be sent.
    pub(crate) fn close(&mut self) {
        match self.state {
            State::SynSent => self.end(),
            State::SynReceived => self.closing = true,
            State::Established => (self.closing, self.state) = (true, State::FinWait1),
            State::CloseWait => (self.closing, self.state) = (true, State::LastAck),
            _ => {}
        }
    }

    /// Ends it at once; the peer is told, if there is one.
    pub(crate) fn abort(&mut self) {
        let peer = !matches!(self.state, State::Closed | State::SynSent | State::TimeWait);
        self.end();
        if peer {
            self.reset = Some(self.nxt);
        }
    }

    /// What is to be read stays.
    fn end(&mut self) {
        self.state = State::Closed;
        (self.resend_at, self.ack_at, self.over_at, self.cork_at) = (None, None, None, None);
        self.ack_now = false;
        self.reset = None;
        self.early.clear();
        self.sacked.clear();
        self.tx = Ring::new();
    }

    // --- what the peer says ---

    /// Takes a segment.
    #[inline]
    pub(crate) fn hear(&mut self, s: &Segment, now: i64) {
        if !self.hear_expected(s, now) {
            self.hear_any(s, now);
        }
    }

    /// Takes a segment that goes on where the last one ended and says nothing unusual. False: it is not one.
    #[inline]
    fn hear_expected(&mut self, s: &Segment, now: i64) -> bool {
        let len = s.data.len() as u32;
        let usual = self.state == State::Established
            && s.flags & !flags::PSH == flags::ACK
            && s.sequence == self.rcv_nxt
            && self.fin_at.is_none()
            && self.early.is_empty()
            && self.recovery.is_none()
            && self.sacked.is_empty()
            && self.duplicates == 0
            && !before(s.acknowledged, self.una)
            && !before(self.nxt, s.acknowledged)
            && s.window != 0
            && len <= self.rcv_most.wrapping_sub(self.rcv_nxt)
            // What says nothing new may be a duplicate, or be about the window.
            && (len > 0 || s.acknowledged != self.una);
        if !usual {
            return false;
        }
        match (s.options.first_chunk::<12>(), self.stamps) {
            (None, false) if s.options.is_empty() => {}
            (Some(o), true) if s.options.len() == 12 && o[..4] == STAMPED => {
                let value = u32::from_be_bytes([o[4], o[5], o[6], o[7]]);
                if before(value, self.stamp_recent) {
                    return false;
                }
                // Its sequence number is RCV.NXT, which may be beyond what was acknowledged: then it waits.
                if self.rcv_told == self.rcv_nxt {
                    (self.stamp_recent, self.stamp_at) = (value, now);
                }
            }
            _ => return false,
        }
        self.heard = now;
        self.kept = 0;
        self.wnd = u32::from(s.window) << self.wnd_scale;
        self.wnd_most = self.wnd_most.max(self.wnd);
        self.wnd_from = s.sequence;
        if s.acknowledged != self.una {
            self.acknowledged(s.acknowledged, now);
        }
        if len > 0 {
            self.rx.put(self.rx.len(), s.data);
            self.rx.extend(s.data.len());
            self.rcv_nxt = self.rcv_nxt.wrapping_add(len);
            self.arrived(len, now);
        }
        true
    }

    /// Bytes have come in order: they are acknowledged, now or later.
    #[inline]
    fn arrived(&mut self, len: u32, now: i64) {
        // Nobody sends more who has not heard that the last ones came.
        self.confirmed = now;
        self.unacknowledged += len;
        self.rcv_segment = self.rcv_segment.max(len);
        if self.unacknowledged > self.rcv_segment {
            self.ack_now = true;
        } else if self.ack_at.is_none() {
            self.ack_at = Some(now + ACK_DELAY);
        }
    }

    /// Can bytes come?
    fn receives(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2)
    }

    #[inline(never)]
    fn hear_any(&mut self, s: &Segment, now: i64) {
        match self.state {
            State::Closed => return,
            State::SynSent => return self.hear_answer(s, now),
            _ => {}
        }
        let has = |flag: u8| s.flags & flag != 0;
        let options = Options::parse(s.options);
        let len = s.data.len() as u32;
        let end = s.sequence.wrapping_add(len + u32::from(has(flags::FIN)) + u32::from(has(flags::SYN)));
        // As Linux's `tcp_sequence`: what was sent before it heard what it was told, too.
        let old = before(end, self.rcv_told);
        let beyond = before(self.rcv_most, s.sequence);
        let wrapped = self.stamps
            && !has(flags::RST)
            && options.stamp.is_some_and(|(v, _)| before(v, self.stamp_recent))
            && now - self.stamp_at < STAMPS_LAST;
        if old || beyond || wrapped {
            if !has(flags::RST) {
                // It may not know what has come.
                if len > 0 && !has(flags::SYN) {
                    self.ack_now = true;
                } else {
                    self.challenge(now);
                }
                if self.state == State::SynReceived && has(flags::SYN) {
                    self.syn_now = true;
                }
            }
            return;
        }
        if has(flags::RST) {
            if s.sequence == self.rcv_nxt || self.state == State::SynReceived {
                self.end();
            } else {
                self.challenge(now);
            }
            return;
        }
        if has(flags::SYN) {
            if self.state == State::SynReceived && s.sequence.wrapping_add(1) == self.rcv_nxt {
                // Our answer has got lost.
                self.syn_now = true;
            } else {
                self.challenge(now);
            }
            return;
        }
        if !has(flags::ACK) {
            return;
        }
        if before(self.nxt, s.acknowledged)
            || before(s.acknowledged, self.una.wrapping_sub(self.wnd_most.max(0xffff)))
        {
            if self.state == State::SynReceived {
                self.reset = Some(s.acknowledged);
            } else {
                self.challenge(now);
            }
            return;
        }
        if self.state == State::SynReceived {
            if s.acknowledged == self.una {
                // Ours has not arrived.
                return;
            }
            self.established();
            self.state = if self.closing { State::FinWait1 } else { State::Established };
        }
        if self.stamps
            && let Some((value, _)) = options.stamp
            && !before(self.rcv_told, s.sequence)
            && !before(value, self.stamp_recent)
        {
            (self.stamp_recent, self.stamp_at) = (value, now);
        }
        self.heard = now;
        self.kept = 0;
        if self.una == self.nxt {
            // It answers: there is nothing that could be lost.
            self.progress = now;
        }
        self.hear_acknowledgement(s, &options, now);
        if self.state != State::Closed && (len > 0 || has(flags::FIN)) {
            self.hear_bytes(s, has(flags::FIN), now);
        }
    }

    /// In SYN-SENT.
    fn hear_answer(&mut self, s: &Segment, now: i64) {
        let has = |flag: u8| s.flags & flag != 0;
        let good = has(flags::ACK) && s.acknowledged == self.first.wrapping_add(1) && self.nxt != self.first;
        if has(flags::ACK) && !good {
            if !has(flags::RST) {
                self.reset = Some(s.acknowledged);
            }
            return;
        }
        if has(flags::RST) {
            if good {
                self.end();
            }
            return;
        }
        if !has(flags::SYN) {
            return;
        }
        self.take_syn(s, now);
        self.heard = now;
        if good {
            self.established();
            self.acknowledged(s.acknowledged, now);
            self.state = State::Established;
            self.ack_now = true;
        } else {
            // Both have asked at once.
            self.state = State::SynReceived;
            self.syn_now = true;
        }
    }

    /// Takes up what the peer's SYN says.
    fn take_syn(&mut self, s: &Segment, now: i64) {
        let options = Options::parse(s.options);
        self.rcv_nxt = s.sequence.wrapping_add(1);
        (self.rcv_most, self.rcv_told) = (self.rcv_nxt, self.rcv_nxt);
        (self.round_end, self.round_at) = (self.rcv_nxt, now);
        match options.scale {
            Some(n) => self.wnd_scale = n.min(SCALE_MAX),
            None => self.rcv_scale = 0,
        }
        self.selective = options.selective;
        self.stamps = options.stamp.is_some() && !self.local;
        if let Some((value, _)) = options.stamp {
            (self.stamp_recent, self.stamp_at) = (value, now);
        }
        let theirs = options.segment.map_or(SMALLEST_SEGMENT, u32::from).max(64);
        self.segment = self.segment.min(theirs) - if self.stamps { 12 } else { 0 };
        // Not scaled yet.
        self.wnd = s.window.into();
        (self.wnd_most, self.wnd_from) = (self.wnd, s.sequence);
    }

    /// The handshake is done.
    fn established(&mut self) {
        self.congestion.begin(self.segment);
        if self.backoff > 0 {
            // RFC 6298 section 5.7.
            self.rto = self.rto.max(3 * RTO_FIRST);
        }
    }

    /// Tells the peer how things are, now and then (RFC 5961 section 7).
    fn challenge(&mut self, now: i64) {
        if now - self.challenged >= CHALLENGE {
            self.challenged = now;
            self.ack_now = true;
        }
    }

    fn hear_acknowledgement(&mut self, s: &Segment, options: &Options, now: i64) {
        let wnd = u32::from(s.window) << self.wnd_scale;
        let same = wnd == self.wnd;
        let newer = before(self.wnd_from, s.sequence) || self.wnd_from == s.sequence;
        if newer && !before(s.acknowledged, self.una) {
            (self.wnd, self.wnd_from) = (wnd, s.sequence);
            self.wnd_most = self.wnd_most.max(wnd);
        }
        if wnd > 0 && self.una == self.nxt {
            // Who waited for the window need not any more.
            (self.resend_at, self.force, self.probes) = (None, false, 0);
        }
        let before_this = self.una;
        if before(self.una, s.acknowledged) {
            self.acknowledged(s.acknowledged, now);
        }
        let mut more = false;
        if self.selective {
            for &(from, to) in options.pieces.iter().flatten() {
                let sent = !before(self.nxt, to) && before(from, to);
                if sent && before(self.una, to) {
                    let from = later(from, self.una);
                    if self.sacked.within(from, to) < to.wrapping_sub(from) {
                        more |= self.sacked.add(from, to);
                    }
                }
            }
        }
        if self.una == before_this
            && s.acknowledged == self.una
            && self.una != self.nxt
            && s.data.is_empty()
            && s.flags & flags::FIN == 0
            && (same || more)
            && (more || !self.selective)
        {
            self.duplicates += 1;
        }
        self.find_losses();
        // Has it all of ours, and the FIN?
        if self.closing && self.una == self.end_of_all() {
            match self.state {
                State::FinWait1 => self.state = State::FinWait2,
                State::Closing => self.wait_over(now),
                State::LastAck => self.end(),
                _ => {}
            }
        }
    }

    /// Everything up to here has been acknowledged.
    #[inline]
    fn acknowledged(&mut self, to: u32, now: i64) {
        let bytes = to.wrapping_sub(self.una);
        let full = self.nxt.wrapping_sub(self.una).saturating_mul(2) >= self.congestion.window();
        let data = (to.wrapping_sub(self.tx_at) as i32).max(0) as usize;
        let data = data.min(self.tx.len());
        self.tx.skip(data);
        self.tx_at = self.tx_at.wrapping_add(data as u32);
        self.una = to;
        if let Some((end, at)) = self.timed
            && !before(to, end)
        {
            self.timed = None;
            self.measured(now - at);
        }
        self.backoff = 0;
        self.probes = 0;
        (self.progress, self.confirmed) = (now, now);
        self.resend_at = if self.una == self.nxt { None } else { Some(now + self.rto) };
        if self.recovery.is_some() || self.duplicates > 0 || !self.sacked.is_empty() {
            self.acknowledged_while_lost(bytes, full, now);
        } else {
            self.recover = to;
            self.congestion.acknowledged(bytes, full, self.segment, now, self.rtt);
        }
    }

    #[inline(never)]
    fn acknowledged_while_lost(&mut self, bytes: u32, full: bool, now: i64) {
        self.sacked.forget(self.una);
        self.resend = later(self.resend, self.una);
        self.lost_to = later(self.lost_to, self.una);
        match self.recovery {
            Some(_) if !before(self.una, self.recover) => {
                self.recovery = None;
                self.duplicates = 0;
                (self.resend, self.lost_to) = (self.una, self.una);
            }
            Some(kind) => {
                if !self.selective {
                    // What is next has got lost, too (RFC 6582 section 3.2).
                    self.duplicates = self.duplicates.saturating_sub(bytes.div_ceil(self.segment));
                    if kind == Recovery::Fast {
                        self.resend = self.una;
                        self.lost_to = self.una.wrapping_add(self.segment);
                        self.resend_now = true;
                    }
                }
                if kind == Recovery::Timeout {
                    self.congestion.acknowledged(bytes, full, self.segment, now, self.rtt);
                }
            }
            None => {
                self.duplicates = 0;
                self.congestion.acknowledged(bytes, full, self.segment, now, self.rtt);
            }
        }
    }

    /// A round trip took this long (RFC 6298 section 2).
    fn measured(&mut self, took: i64) {
        let took = took.max(1);
        if self.rtt == 0 {
            (self.rtt, self.rtt_var) = (took, took / 2);
        } else {
            self.rtt_var += ((self.rtt - took).abs() - self.rtt_var) / 4;
            self.rtt += (took - self.rtt) / 8;
            self.rtt = self.rtt.max(1);
        }
        self.rto = (self.rtt + 4 * self.rtt_var).clamp(RTO_MIN, RTO_MAX);
    }

    /// What has been overtaken often enough is lost.
    fn find_losses(&mut self) {
        if self.una == self.nxt || self.sacked.is_empty() && self.duplicates < OVERTAKEN {
            return;
        }
        let lost_to = if self.selective {
            // RFC 6675, IsLost: so many bytes arrived behind it, or so many pieces.
            let (mut bytes, mut lost_to) = (0, self.una);
            for (n, &(from, to)) in self.sacked.0.iter().rev().enumerate() {
                bytes += to.wrapping_sub(from);
                if bytes > (OVERTAKEN - 1) * self.segment || n + 1 >= OVERTAKEN as usize {
                    lost_to = from;
                    break;
                }
            }
            lost_to
        } else if self.recovery.is_none() && !before(self.una, self.recover) {
            self.una.wrapping_add(self.segment)
        } else {
            self.lost_to
        };
        let lost_to = sooner(lost_to, self.nxt);
        if self.recovery.is_none() && before(self.una, lost_to) {
            let in_flight = self.nxt.wrapping_sub(self.una);
            self.congestion.lost(in_flight, self.segment);
            self.recovery = Some(Recovery::Fast);
            self.recover = self.nxt;
            self.resend = self.una;
            self.lost_to = lost_to;
            self.resend_now = true;
            self.timed = None;
        } else if self.recovery == Some(Recovery::Fast) {
            self.lost_to = later(self.lost_to, lost_to);
        }
    }

    /// Bytes or a FIN, or both.
    fn hear_bytes(&mut self, s: &Segment, fin: bool, now: i64) {
        let end = s.sequence.wrapping_add(s.data.len() as u32);
        let repeated = before(s.sequence, self.rcv_nxt);
        if self.receives() {
            let mut data = s.data;
            let mut at = s.sequence;
            if before(at, self.rcv_nxt) {
                let known = (self.rcv_nxt.wrapping_sub(at) as usize).min(data.len());
                (data, at) = (&data[known..], self.rcv_nxt);
            }
            let room = self.rcv_most.wrapping_sub(at) as i32;
            let whole = data.len() as i32 <= room;
            data = &data[..data.len().min(room.max(0) as usize)];
            let to = at.wrapping_add(data.len() as u32);
            if !data.is_empty() {
                let place = self.rx.len() + at.wrapping_sub(self.rcv_nxt) as usize;
                if at == self.rcv_nxt {
                    self.rx.put(place, data);
                    self.advance(to);
                    self.arrived(data.len() as u32, now);
                    // It filled a gap, or there is still one.
                    self.ack_now |= !self.early.is_empty();
                    self.take_early();
                } else {
                    if self.early.add(at, to) {
                        self.rx.put(place, data);
                        self.early_last = at;
                    }
                    self.ack_now = true;
                }
            }
            if fin && whole && self.fin_at.is_none() {
                self.fin_at = Some(end);
            }
            if !whole {
                self.ack_now = true;
            }
            if self.fin_at == Some(self.rcv_nxt) {
                self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
                self.rcv_most = later(self.rcv_most, self.rcv_nxt);
                self.ack_now = true;
                self.early.clear();
                match self.state {
                    State::Established => self.state = State::CloseWait,
                    State::FinWait1 => self.state = State::Closing,
                    _ => self.wait_over(now),
                }
                return;
            }
        }
        if repeated {
            // It does not know that this has come.
            self.ack_now = true;
            if self.state == State::TimeWait && fin {
                self.wait_over(now);
            }
        }
    }

    fn advance(&mut self, to: u32) {
        self.rx.extend(to.wrapping_sub(self.rcv_nxt) as usize);
        self.rcv_nxt = to;
    }

    /// Takes what had come early and is in order now.
    fn take_early(&mut self) {
        while let Some(&(from, to)) = self.early.0.first()
            && !before(self.rcv_nxt, from)
        {
            if before(self.rcv_nxt, to) {
                self.advance(to);
            }
            self.early.0.remove(0);
        }
    }

    /// Both have said that they are done: for some time, who comes late is answered.
    fn wait_over(&mut self, now: i64) {
        self.state = State::TimeWait;
        (self.resend_at, self.ack_at, self.cork_at) = (None, None, None);
        self.over_at = Some(now + TIME_WAIT);
        self.tx.release();
        self.rx.release();
    }

    /// May there be something to be sent now?
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.ack_now || self.nxt != self.end_of_all() || self.recovery.is_some()
    }

    // --- times ---

    /// What of [`Tcb::next_at`] a segment or a call may have brought nearer.
    #[inline]
    pub(crate) fn soon(&self) -> Option<i64> {
        match (self.ack_at, self.resend_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When it is to be visited next, us: what is due before cannot be sent.
    pub(crate) fn next_at(&self) -> Option<i64> {
        let all = [self.ack_at, self.resend_at, self.cork_at, self.over_at, self.keep_at(), self.limit_at()];
        all.into_iter().flatten().min()
    }

    /// When to ask a peer that has been silent.
    fn keep_at(&self) -> Option<i64> {
        let (idle, interval, _) = self.settings.keep?;
        let still = self.una == self.nxt
            && self.tx.len() == 0
            && !matches!(self.state, State::Closed | State::SynSent | State::SynReceived | State::TimeWait);
        still.then(|| self.heard + idle + i64::from(self.kept) * interval)
    }

    /// When it is given up.
    fn limit_at(&self) -> Option<i64> {
        let limit = match self.state {
            State::SynSent => SYN_LIMIT,
            State::SynReceived => SYN_ACK_LIMIT,
            State::Closed | State::TimeWait => return None,
            _ if self.una == self.nxt && !self.waits_for_window() => return None,
            _ => self.settings.limit.unwrap_or(LIMIT),
        };
        Some(self.progress + limit)
    }

    /// Does what is due.
    pub(crate) fn at_time(&mut self, now: i64) {
        let due = |t: Option<i64>| t.is_some_and(|t| t <= now);
        if due(self.over_at) || due(self.limit_at()) {
            return self.end();
        }
        if due(self.ack_at) {
            (self.ack_at, self.ack_now) = (None, true);
        }
        if due(self.cork_at) {
            self.force = true;
        }
        if due(self.resend_at) {
            self.resend_at = None;
            self.timed_out(now);
        }
        if due(self.keep_at()) {
            if self.settings.keep.is_some_and(|(_, _, count)| self.kept >= count) {
                return self.abort();
            }
            self.kept += 1;
            self.probe = true;
        }
    }

    fn timed_out(&mut self, now: i64) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.backoff += 1;
            self.syn_now = true;
            return;
        }
        if self.una == self.nxt {
            // The peer has no room.
            self.probes += 1;
            if self.wnd > 0 {
                self.force = true;
            } else {
                self.probe = true;
            }
            self.resend_at = Some(now + self.backed_off(self.probes));
            return;
        }
        if self.sacked.0.first().is_some_and(|p| p.0 == self.una) {
            // It has thrown away what it had.
            self.sacked.clear();
        }
        let in_flight = self.nxt.wrapping_sub(self.una);
        self.congestion.timed_out(in_flight, self.segment, self.backoff > 0);
        self.backoff += 1;
        self.recovery = Some(Recovery::Timeout);
        self.recover = self.nxt;
        (self.resend, self.lost_to) = (self.una, self.nxt);
        (self.duplicates, self.timed, self.resend_now) = (0, None, true);
    }

    /// The time until something is sent again for the `n`th time.
    fn backed_off(&self, n: u32) -> i64 {
        (self.rto << n.min(10)).min(RTO_MAX)
    }

    // --- what is sent ---

    /// The sequence number behind the bytes in `tx`.
    #[inline]
    fn end_of_bytes(&self) -> u32 {
        self.tx_at.wrapping_add(self.tx.len() as u32)
    }

    /// And behind the FIN.
    fn end_of_all(&self) -> u32 {
        self.end_of_bytes().wrapping_add(self.closing.into())
    }

    /// Bytes that are thought to be on their way (RFC 6675's pipe).
    #[inline]
    fn in_flight(&self) -> u32 {
        let all = self.nxt.wrapping_sub(self.una);
        if self.recovery.is_none() && self.duplicates == 0 && self.sacked.is_empty() {
            return all;
        }
        let mut gone = self.sacked.within(self.una, self.nxt);
        if before(self.resend, self.lost_to) {
            let lost = self.lost_to.wrapping_sub(self.resend);
            gone += lost - self.sacked.within(self.resend, self.lost_to);
        }
        if !self.selective {
            gone = gone.saturating_add(self.duplicates.saturating_mul(self.segment));
        }
        all.saturating_sub(gone)
    }

    /// What has to be sent again: from where, and how much in one segment.
    fn hole(&mut self) -> Option<(u32, u32)> {
        let mut from = self.resend;
        let mut to = self.lost_to;
        for &(a, b) in &self.sacked.0 {
            if before(from, a) {
                to = sooner(to, a);
                break;
            }
            from = later(from, b);
        }
        self.resend = from;
        if !before(from, to) {
            return None;
        }
        Some((from, to.wrapping_sub(from).min(self.segment)))
    }

    /// Is there something that only the peer's window keeps back?
    fn waits_for_window(&self) -> bool {
        let unsent = self.end_of_bytes().wrapping_sub(self.nxt) as i32;
        if unsent <= 0 || !self.is_synchronized() {
            return false;
        }
        let room = (self.una.wrapping_add(self.wnd).wrapping_sub(self.nxt) as i32).max(0) as u32;
        room < (unsent as u32).min(self.segment)
    }

    fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::Closed | State::SynSent | State::SynReceived | State::TimeWait)
    }

    /// How many bytes to send that never were; 0: a FIN alone.
    #[inline]
    fn fresh(&mut self, now: i64) -> Option<u32> {
        let unsent = self.end_of_bytes().wrapping_sub(self.nxt) as i32;
        if unsent <= 0 && !self.closing || unsent < 0 {
            return None;
        }
        let unsent = unsent as u32;
        let flight = self.in_flight();
        let by_peer = (self.una.wrapping_add(self.wnd).wrapping_sub(self.nxt) as i32).max(0) as u32;
        let by_way = self.congestion.window().saturating_sub(flight);
        if unsent == 0 {
            return (by_peer > 0 || self.una == self.nxt).then_some(0);
        }
        let len = unsent.min(self.segment).min(by_peer).min(by_way);
        if len == self.segment {
            return Some(len);
        }
        if len == 0 {
            return None;
        }
        let now_or_never = core::mem::take(&mut self.force);
        let goes = if len < unsent {
            // Windows that are small are not filled (RFC 9293 section 3.8.6.2.1).
            if by_way <= by_peer { flight == 0 } else { len >= self.wnd_most / 2 || now_or_never }
        } else if self.closing {
            true
        } else if self.settings.cork || self.more {
            now_or_never || {
                self.cork_at.get_or_insert(now + CORK);
                false
            }
        } else {
            // (After 2 GiB, `short_end` says nothing.)
            let in_flight = self.una != self.nxt && before(self.una, self.short_end);
            self.settings.no_delay || !in_flight || now_or_never
        };
        goes.then_some(len)
    }

    #[inline]
    fn next(&mut self, now: i64) -> Option<Next> {
        if self.state != State::Established
            && let Some(next) = self.next_unusual()
        {
            return next;
        }
        if self.recovery.is_some()
            && let Some((from, len)) = self.hole()
            && (self.resend_now || self.in_flight() + len <= self.congestion.window())
        {
            return Some(Next::Bytes(from, len, false));
        }
        if let Some(len) = self.fresh(now) {
            return Some(Next::Bytes(self.nxt, len, true));
        }
        if self.probe {
            return Some(Next::Probe);
        }
        self.ack_now.then_some(Next::Acknowledgement)
    }

    /// In states where it sends something else. None: it does not.
    #[inline(never)]
    fn next_unusual(&mut self) -> Option<Option<Next>> {
        if let Some(at) = self.reset {
            return Some(Some(Next::Reset(at)));
        }
        match self.state {
            State::Closed => Some(None),
            State::SynSent | State::SynReceived => Some(if self.syn_now {
                Some(Next::Syn)
            } else if self.ack_now && self.state == State::SynReceived {
                Some(Next::Acknowledgement)
            } else {
                None
            }),
            State::TimeWait | State::FinWait2 => Some(if self.probe {
                Some(Next::Probe)
            } else {
                self.ack_now.then_some(Next::Acknowledgement)
            }),
            _ => None,
        }
    }

    /// Has `send` send what is to be sent, up to `most` segments; it says whether it could. Value: how many it has sent,
    /// and whether it could.
    #[inline]
    pub(crate) fn output(
        &mut self,
        now: i64,
        most: u32,
        send: &mut dyn FnMut(&Outgoing) -> bool,
    ) -> (u32, bool) {
        let mut sent = 0;
        while sent < most {
            let Some(next) = self.next(now) else { break };
            if !self.send(next, now, send) {
                return (sent, false);
            }
            sent += 1;
        }
        if self.una == self.nxt && self.resend_at.is_none() && self.waits_for_window() {
            self.resend_at = Some(now + self.backed_off(self.probes));
        }
        (sent, true)
    }

    fn send(&mut self, next: Next, now: i64, send: &mut dyn FnMut(&Outgoing) -> bool) -> bool {
        match next {
            Next::Bytes(from, len, fresh) => self.send_bytes(from, len, fresh, now, send),
            other => self.send_other(other, now, send),
        }
    }

    fn send_bytes(
        &mut self,
        from: u32,
        len: u32,
        fresh: bool,
        now: i64,
        send: &mut dyn FnMut(&Outgoing) -> bool,
    ) -> bool {
        let at = from.wrapping_sub(self.tx_at) as usize;
        let data = self.tx.get(at, len as usize);
        let bytes = (data.0.len() + data.1.len()) as u32;
        let last = from.wrapping_add(bytes) == self.end_of_bytes();
        let mut end = from.wrapping_add(bytes);
        let mut flags = flags::ACK;
        if last && bytes > 0 {
            flags |= flags::PSH;
        }
        // A FIN goes with the last bytes, and again with them.
        if last && self.closing && (fresh || len > bytes) {
            flags |= flags::FIN;
            end = end.wrapping_add(1);
        }
        let window = self.window_to_tell();
        let stamp;
        let options: &[u8] = if self.stamps {
            stamp = self.stamp(now);
            &stamp
        } else {
            &[]
        };
        let out = Outgoing {
            sequence: from,
            acknowledged: self.rcv_nxt,
            flags,
            window: (window >> self.rcv_scale) as u16,
            options,
            data,
        };
        if !send(&out) {
            return false;
        }
        self.told(window);
        if fresh {
            if self.una == self.nxt {
                self.progress = now;
                if now - self.sent > self.rto {
                    self.congestion.idle(self.segment);
                }
            }
            if bytes < self.segment {
                self.short_end = end;
            }
            self.nxt = end;
            self.cork_at = None;
            if self.timed.is_none() {
                self.timed = Some((end, now));
            }
        } else {
            self.resend = end;
            (self.timed, self.resend_now) = (None, false);
        }
        self.sent = now;
        if self.resend_at.is_none() || self.una == from {
            self.resend_at = Some(now + self.backed_off(self.backoff));
        }
        true
    }

    #[inline(never)]
    fn send_other(&mut self, next: Next, now: i64, send: &mut dyn FnMut(&Outgoing) -> bool) -> bool {
        let mut space = [0; 40];
        let window = self.window_to_tell();
        let mut out = Outgoing {
            sequence: self.nxt,
            acknowledged: self.rcv_nxt,
            flags: flags::ACK,
            window: (window >> self.rcv_scale) as u16,
            options: &[],
            data: (&[], &[]),
        };
        match next {
            Next::Reset(at) => {
                out.sequence = at;
                out.flags = if at == self.nxt { flags::RST | flags::ACK } else { flags::RST };
                if out.flags & flags::ACK == 0 {
                    out.acknowledged = 0;
                }
            }
            Next::Syn => {
                let asks = self.state == State::SynSent;
                out.sequence = self.first;
                out.flags = if asks { flags::SYN } else { flags::SYN | flags::ACK };
                out.window = self.rx_capacity.min(0xffff) as u16;
                if asks {
                    out.acknowledged = 0;
                }
                let len = self.syn_options(&mut space, asks, now);
                out.options = &space[..len];
            }
            _ => {
                if matches!(next, Next::Probe) {
                    // What it knows already: it has to say so.
                    out.sequence = self.una.wrapping_sub(1);
                }
                let mut len = 0;
                if self.stamps {
                    space[..12].copy_from_slice(&self.stamp(now));
                    len = 12;
                }
                len += self.early_options(&mut space[len..]);
                out.options = &space[..len];
            }
        }
        if !send(&out) {
            return false;
        }
        match next {
            Next::Reset(_) => self.reset = None,
            Next::Syn => {
                self.syn_now = false;
                if self.nxt == self.first {
                    self.nxt = self.first.wrapping_add(1);
                    self.timed = Some((self.nxt, now));
                    self.progress = now;
                } else {
                    self.timed = None;
                }
                self.resend_at = Some(now + self.backed_off(self.backoff));
                // Of the next ones, windows are scaled.
                self.rcv_most = self.rcv_nxt.wrapping_add(self.rx_capacity.min(0xffff) as u32);
                self.rcv_told = self.rcv_nxt;
                self.ack_now = false;
            }
            Next::Probe => {
                self.probe = false;
                self.told(window);
            }
            _ => self.told(window),
        }
        true
    }

    /// The peer was told what has come, and this window.
    #[inline]
    fn told(&mut self, window: u32) {
        self.rcv_told = self.rcv_nxt;
        self.rcv_most = later(self.rcv_most, self.rcv_nxt.wrapping_add(window));
        (self.unacknowledged, self.ack_now, self.ack_at) = (0, false, None);
    }

    /// The window that the peer is told: what there is room for, and not less than it knows of, but for what can't be said.
    /// A little more room is not told (RFC 9293 section 3.8.6.2.2).
    #[inline]
    fn window_to_tell(&self) -> u32 {
        let known = self.rcv_most.wrapping_sub(self.rcv_nxt);
        let free = self.rx_capacity.saturating_sub(self.rx.len()) as u32;
        let step = self.rcv_segment.min(self.rx_capacity as u32 / 2);
        let window = if free >= known.saturating_add(step) { free } else { known };
        (window >> self.rcv_scale << self.rcv_scale).min(0xffff << self.rcv_scale)
    }

    /// A time stamp, as an option.
    fn stamp(&self, now: i64) -> [u8; 12] {
        let mut o = [0; 12];
        let value = ((now / 1000) as u32).wrapping_add(self.stamp_offset);
        o[..4].copy_from_slice(&STAMPED);
        o[4..8].copy_from_slice(&value.to_be_bytes());
        o[8..].copy_from_slice(&self.stamp_recent.to_be_bytes());
        o
    }

    /// A SYN's options; of an answer, what was asked for.
    fn syn_options(&self, space: &mut [u8; 40], asks: bool, now: i64) -> usize {
        let [high, low] = self.offer.to_be_bytes();
        space[..4].copy_from_slice(&[2, 4, high, low]);
        let mut len = 4;
        let mut add = |bytes: &[u8]| {
            space[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        if asks || self.rcv_scale > 0 || self.wnd_scale > 0 {
            add(&[1, 3, 3, self.rcv_scale]);
        }
        if asks || self.selective {
            add(&[1, 1, 4, 2]);
        }
        if asks && !self.local || self.stamps {
            let mut stamp = self.stamp(now);
            if asks {
                stamp[8..].fill(0);
            }
            add(&stamp);
        }
        len
    }

    /// What came early, as an option (RFC 2018): the latest first.
    fn early_options(&self, space: &mut [u8]) -> usize {
        if !self.selective || self.early.is_empty() {
            return 0;
        }
        let most = (space.len().min(36) - 4) / 8;
        let is_last = |p: &&(u32, u32)| !before(self.early_last, p.0) && before(self.early_last, p.1);
        let (last, others) = (self.early.0.iter().find(is_last), self.early.0.iter().filter(|p| !is_last(p)));
        let mut len = 4;
        for (from, to) in last.into_iter().chain(others).take(most) {
            space[len..len + 4].copy_from_slice(&from.to_be_bytes());
            space[len + 4..len + 8].copy_from_slice(&to.to_be_bytes());
            len += 8;
        }
        space[..4].copy_from_slice(&[1, 1, 5, len as u8 - 2]);
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A short segment that was sent 2 GiB ago, or more, holds nothing back.
    #[test]
    fn what_was_short_long_ago() {
        let begin = Begin {
            sequence: 7,
            stamp: 0,
            segment: 1000,
            local: false,
            receive: 1 << 16,
            send: 1 << 16,
            receive_most: 1 << 16,
            send_most: 1 << 16,
        };
        let end = smoltcp::wire::IpEndpoint { addr: smoltcp::wire::IpAddress::v4(10, 0, 0, 1), port: 1 };
        let says = |flags| Segment {
            local: end,
            remote: end,
            flags,
            sequence: 100,
            acknowledged: 8,
            window: 1000,
            options: &[],
            data: &[],
        };
        let mut t = Tcb::connect(&begin, 0);
        let mut sent = Vec::new();
        let mut send = |out: &Outgoing| {
            sent.push(out.data.0.len());
            true
        };
        t.output(0, 9, &mut send);
        t.hear(&says(flags::SYN | flags::ACK), 1);
        assert_eq!(t.state(), State::Established);
        t.output(1, 9, &mut send);
        t.short_end = t.una.wrapping_add(1 << 30);
        assert_eq!(t.write(1, false, &mut |room| room.len()), (1, true));
        t.output(2, 9, &mut send);
        assert_eq!(sent, [0, 0, 1], "a SYN, an acknowledgement, a byte");
    }

    proptest! {
        /// As a set of bytes, around the wrap.
        #[test]
        fn pieces(base: u32, steps in prop::collection::vec((0..200u32, 0..30u32, any::<bool>()), 1..60)) {
            let (mut pieces, mut set) = (Pieces::default(), BTreeSet::new());
            for (at, len, forget) in steps {
                if forget && at < 30 {
                    pieces.forget(base.wrapping_add(at));
                    set = set.split_off(&at);
                } else if len > 0 && pieces.add(base.wrapping_add(at), base.wrapping_add(at + len)) {
                    set.extend(at..at + len);
                }
                let all: BTreeSet<u32> =
                    pieces.0.iter().flat_map(|&(a, b)| a.wrapping_sub(base)..b.wrapping_sub(base)).collect();
                prop_assert_eq!(&all, &set);
                prop_assert!(pieces.0.windows(2).all(|w| before(w[0].1, w[1].0)), "gaps between them");
                let part = pieces.within(base.wrapping_add(at), base.wrapping_add(at + len));
                prop_assert_eq!(part as usize, set.range(at..at + len).count());
            }
        }
    }
}
