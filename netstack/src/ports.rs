//! Which ports are taken, and by whom.

use alloc::vec::Vec;

use hashbrown::HashMap;
use smoltcp::wire::{IpAddress, IpEndpoint};

use crate::address::Cover;
use crate::sockets::Kind;

/// Ports that are given to those who ask for none (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: core::ops::Range<u16> = 32768..61000;

/// One port's users.
#[derive(Default)]
pub(crate) struct Use {
    /// Sockets that are bound to it, the latest last.
    pub(crate) sockets: Vec<usize>,
    /// Connections that hold it by themselves, by address: those with SO_REUSEADDR and those without.
    left: Vec<(IpAddress, u32, u32)>,
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

    /// Do connections that were left behind hold a port against a socket with or without SO_REUSEADDR that
    /// answers to `cover`?
    pub(crate) fn held(&self, port: u16, cover: Cover, reuse: bool) -> bool {
        self.used.get(&(Kind::Tcp, port)).is_some_and(|u| {
            u.left
                .iter()
                .any(|&(a, kind, strict)| cover.fits(a).is_some() && (strict > 0 || !reuse && kind > 0))
        })
    }

    /// A connection outlives its socket, or never had one that was bound.
    pub(crate) fn leave(&mut self, at: IpEndpoint, reuse: bool) {
        self.change(Kind::Tcp, at.port, |u| {
            let n = u.left.iter().position(|l| l.0 == at.addr).unwrap_or_else(|| {
                u.left.push((at.addr, 0, 0));
                u.left.len() - 1
            });
            let l = &mut u.left[n];
            *(if reuse { &mut l.1 } else { &mut l.2 }) += 1;
        });
    }

    /// It has ended.
    pub(crate) fn left(&mut self, at: IpEndpoint, reuse: bool) {
        self.change(Kind::Tcp, at.port, |u| {
            if let Some(l) = u.left.iter_mut().find(|l| l.0 == at.addr) {
                *(if reuse { &mut l.1 } else { &mut l.2 }) -= 1;
            }
            u.left.retain(|l| l.1 + l.2 > 0);
        });
    }

    fn change(&mut self, kind: Kind, port: u16, f: impl FnOnce(&mut Use)) {
        let u = self.used.entry((kind, port)).or_default();
        f(u);
        if u.sockets.is_empty() && u.left.is_empty() {
            self.used.remove(&(kind, port));
        }
    }

    /// A port for one who asked for none: the first that `good` takes, from a place that `random` says.
    pub(crate) fn ephemeral(random: u32, mut good: impl FnMut(u16) -> bool) -> Option<u16> {
        let n = u32::from(EPHEMERAL.end - EPHEMERAL.start);
        (0..n).map(|k| EPHEMERAL.start + (random.wrapping_add(k) % n) as u16).find(|&p| good(p))
    }
}
