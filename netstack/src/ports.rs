//! Which ports are taken, and by whom.

use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::sockets::Kind;

/// Ports that are given to those who ask for none (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: core::ops::Range<u16> = 32768..61000;

/// One port's users.
#[derive(Default)]
pub(crate) struct Use {
    /// Sockets that are bound to it, the latest last.
    pub(crate) sockets: Vec<usize>,
    /// Connections of sockets that were bound to it and are closed.
    left: u32,
    /// Those of them whose sockets did not have SO_REUSEADDR.
    strict: u32,
}

/// All ports.
#[derive(Default)]
pub(crate) struct Ports {
    used: HashMap<(Kind, u16), Use>,
}

impl Ports {
    pub(crate) fn sockets(&self, kind: Kind, port: u16) -> &[usize] {
        self.used.get(&(kind, port)).map_or(&[], |u| &u.sockets)
    }

    pub(crate) fn bind(&mut self, kind: Kind, port: u16, socket: usize) {
        self.used.entry((kind, port)).or_default().sockets.push(socket);
    }

    pub(crate) fn unbind(&mut self, kind: Kind, port: u16, socket: usize) {
        self.change(kind, port, |u| u.sockets.retain(|&s| s != socket));
    }

    /// Do connections that were left behind hold the port against a socket with or without SO_REUSEADDR?
    pub(crate) fn held(&self, port: u16, reuse: bool) -> bool {
        self.used.get(&(Kind::Tcp, port)).is_some_and(|u| if reuse { u.strict > 0 } else { u.left > 0 })
    }

    /// A connection outlives its socket.
    pub(crate) fn leave(&mut self, port: u16, reuse: bool) {
        self.change(Kind::Tcp, port, |u| {
            u.left += 1;
            u.strict += u32::from(!reuse);
        });
    }

    /// It has ended.
    pub(crate) fn left(&mut self, port: u16, reuse: bool) {
        self.change(Kind::Tcp, port, |u| {
            u.left -= 1;
            u.strict -= u32::from(!reuse);
        });
    }

    fn change(&mut self, kind: Kind, port: u16, f: impl FnOnce(&mut Use)) {
        let u = self.used.entry((kind, port)).or_default();
        f(u);
        if u.sockets.is_empty() && u.left == 0 {
            self.used.remove(&(kind, port));
        }
    }

    /// A port for one who asked for none: the first that `good` takes, from a place that `random` says.
    pub(crate) fn ephemeral(random: u32, mut good: impl FnMut(u16) -> bool) -> Option<u16> {
        let n = u32::from(EPHEMERAL.end - EPHEMERAL.start);
        (0..n).map(|k| EPHEMERAL.start + (random.wrapping_add(k) % n) as u16).find(|&p| good(p))
    }
}
