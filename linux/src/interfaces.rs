//! The network's interfaces as `/sys/class/net` shows them (sysfs-class-net of Linux's Documentation/ABI/testing): what the platform
//! below says of those of the host's network. Elsewhere there is the loopback alone, of which nothing but what all have is told; where
//! there is no network at all it is down.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_abi::service::NET_ATTRIBUTES;
use atoll_abi::{Errno, Result, platform};
use atoll_net::route;
use atoll_sync::Mutex;

use crate::syscalls::net::can_ask_network;

/// Where attributes begin that are in a directory of their own.
pub const STATISTICS: &str = "statistics/";

/// What is known of the loopback without asking anybody.
const LOOPBACK: [(&str, &str); 17] = [
    ("addr_assign_type", "0"),
    ("addr_len", "6"),
    ("address", "00:00:00:00:00:00"),
    ("broadcast", "00:00:00:00:00:00"),
    ("carrier_changes", "0"),
    ("dev_id", "0x0"),
    ("dev_port", "0"),
    ("ifindex", "1"),
    ("iflink", "1"),
    ("link_mode", "0"),
    ("mtu", "65536"),
    ("name_assign_type", "2"),
    ("netdev_group", "0"),
    ("proto_down", "0"),
    ("tx_queue_len", "1000"),
    ("type", "772"),
    ("uevent", "INTERFACE=lo\nIFINDEX=1"),
];

/// The same, if it is up, and if it isn't.
const LOOPBACK_UP: [(&str, &str); 4] =
    [("carrier", "1"), ("dormant", "0"), ("flags", "0x9"), ("operstate", "unknown")];
const LOOPBACK_DOWN: [(&str, &str); 2] = [("flags", "0x8"), ("operstate", "down")];

/// An interface.
#[derive(Clone)]
pub struct Interface {
    /// Its number.
    pub number: u32,
    /// There is no device behind it.
    pub is_virtual: bool,
    /// Its name.
    pub name: String,
    /// The platform tells of it.
    is_told: bool,
}

/// Those that there are. Who reads of all of them asks often: what was said is believed for a moment.
pub fn all() -> Arc<[Interface]> {
    static LAST: Mutex<(u64, Option<Arc<[Interface]>>)> = Mutex::new((0, None));
    let now = platform().now();
    if let (until, Some(last)) = &*LAST.lock()
        && now < *until
    {
        return last.clone();
    }
    let all: Arc<[Interface]> = ask().into();
    *LAST.lock() = (now + BELIEVED, Some(all.clone()));
    all
}

/// For how long, ns.
const BELIEVED: u64 = 20_000_000;

fn ask() -> Vec<Interface> {
    let told = if can_ask_network() { route::interfaces() } else { Err(Errno::ENOENT) };
    let Ok(text) = told else {
        return alloc::vec![Interface { number: 1, is_virtual: true, name: "lo".into(), is_told: false }];
    };
    let text = String::from_utf8_lossy(&text);
    let parsed = text.lines().filter_map(|line| {
        let mut words = line.splitn(3, ' ');
        let number = words.next()?.parse().ok()?;
        let is_virtual = words.next()? == "virtual";
        Some(Interface { number, is_virtual, name: words.next()?.into(), is_told: true })
    });
    parsed.collect()
}

/// The one with a number. ENOENT.
pub fn find(number: u32) -> Result<Interface> {
    all().iter().find(|i| i.number == number).cloned().ok_or(Errno::ENOENT)
}

/// What [`NET_ATTRIBUTES`]`[attribute]` of one says. What can't be told of it, as the speed of the loopback, is an error.
pub fn attribute(number: u32, attribute: usize) -> Result<Vec<u8>> {
    let of = find(number)?;
    if of.is_told {
        return route::attribute(of.name.as_bytes(), attribute);
    }
    let name = NET_ATTRIBUTES[attribute];
    if name.starts_with(STATISTICS) {
        return Ok(b"0\n".to_vec());
    }
    if name == "ifalias" {
        return Ok(Vec::new());
    }
    let state = if can_ask_network() { &LOOPBACK_UP[..] } else { &LOOPBACK_DOWN };
    let (_, value) = LOOPBACK.iter().chain(state).find(|(known, _)| *known == name).ok_or(Errno::EINVAL)?;
    Ok((String::from(*value) + "\n").into_bytes())
}
