//! Three activities share a device (4.2 and 4.3, figures 5 to 8). The device is the host's, and the grid limits what it
//! takes and gives: less than it could, so that it is what everybody waits for.

use std::fs;
use std::net::TcpStream;

use anyhow::{Context, Result};
use atoll_abi::grid::Resource;
use serde::Serialize;

use super::cell::{Cell, Snapshot, Wanted};
use super::shares::{self, Measure, Share};
use super::{Bench, TENANTS, tenants};
use crate::servers::{Kind, prepare_nginx, wrk};
use crate::system::need;

/// What the network's device takes in a second, MB.
const SENT: u32 = 100;
/// What the disk gives in a second, MB.
const READ: u32 = 200;
/// Files of each reader's set, and the size of one, bytes: 512 MB together.
const FILES: usize = 32;
const FILE: usize = 16 << 20;
/// Requests that each reader has under way.
const DEPTH: usize = 32;
/// Connections to each server.
const CONNECTIONS: u32 = 16;
/// Size of the file that is asked for, bytes.
const ASKED: usize = 1 << 20;

#[derive(Serialize)]
struct Outcome {
    seconds: u32,
    /// The limit, bytes a second.
    rate: f64,
    /// Bytes at the device.
    bytes: Share,
    /// Part of the cores' time in which they worked, percent.
    busy: f64,
    /// Processor time, of all resources.
    time: Option<Share>,
    /// Bytes that the clients got from each server, percent of what all got.
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<[f64; 3]>,
}

/// Three nginx under equal load, and the bytes that leave.
pub fn network(bench: &Bench) -> Result<()> {
    need(Kind::Nginx { size: ASKED }.needs())?;
    let grid = tenants(&format!("[resource.device-write]\nmeasure = \"bytes\"\nrate = \"{SENT}MB/s\"\n"));
    let mut words = vec![bench.loads.clone(), "start".into()];
    let ports: [u16; 3] = std::array::from_fn(|n| 17_800 + n as u16);
    for ((name, _), port) in TENANTS.into_iter().zip(ports) {
        let arguments = prepare_nginx(&bench.dir.join(name), port, ASKED)?;
        words.extend([format!("TENANT={name}"), "nginx".into()]);
        words.extend(arguments);
        words.push(",".into());
    }
    let words: Vec<&str> = words.iter().map(|w| &w[..]).collect();
    let wanted = Wanted { name: "network", cores: 1, memory: "1G", grid: Some(&grid), runtime: None };
    let mut cell = Cell::start(bench, &wanted, &words)?;
    for port in ports {
        cell.wait_for("serve", |_| Ok(TcpStream::connect(("127.0.0.1", port)).ok()))?;
    }
    let seconds = bench.options.seconds;
    // A little longer than is watched, at both ends.
    let load = |port: u16| wrk(port, CONNECTIONS, f64::from(seconds) + 3.0);
    let (series, clients) = std::thread::scope(|s| -> Result<_> {
        let clients = ports.map(|port| s.spawn(move || load(port)));
        std::thread::sleep(std::time::Duration::from_secs(2));
        let series = cell.watch(seconds)?;
        let mut got = [0.0; 3];
        for (got, client) in got.iter_mut().zip(clients) {
            *got = client.join().ok().context("a client failed")??.0;
        }
        Ok((series, got))
    })?;
    drop(cell);
    let sum: f64 = clients.iter().sum();
    let clients = Some(clients.map(|n| n * 100.0 / sum));
    report(bench, "network", Resource::DeviceWrite, SENT, &series, clients)
}

/// Three readers of their own sets, with many requests at a time.
pub fn disk(bench: &Bench) -> Result<()> {
    let grid = tenants(&format!("[resource.device-read]\nmeasure = \"bytes\"\nrate = \"{READ}MB/s\"\n"));
    let mut words = vec![bench.loads.clone(), "start".into()];
    let bytes = vec![b'x'; FILE];
    for (name, _) in TENANTS {
        let set = bench.dir.join(format!("set-{name}"));
        fs::create_dir_all(&set)?;
        for n in 0..FILES {
            fs::write(set.join(n.to_string()), &bytes).context("making the readers' sets")?;
        }
        words.extend([format!("TENANT={name}"), bench.loads.clone(), "disk".into()]);
        words.extend([super::text_of(&set)?, DEPTH.to_string(), ",".into()]);
    }
    let words: Vec<&str> = words.iter().map(|w| &w[..]).collect();
    // Memory for far less than one set: what was read is gone when its turn comes again.
    let wanted = Wanted { name: "disk", cores: 1, memory: "128M", grid: Some(&grid), runtime: None };
    let cell = Cell::start(bench, &wanted, &words)?;
    cell.watch(2)?;
    let series = cell.watch(bench.options.seconds)?;
    drop(cell);
    for (name, _) in TENANTS {
        fs::remove_dir_all(bench.dir.join(format!("set-{name}")))?;
    }
    report(bench, "disk", Resource::DeviceRead, READ, &series, None)
}

fn report(
    bench: &Bench,
    part: &str,
    device: Resource,
    rate: u32,
    series: &[Snapshot],
    clients: Option<[f64; 3]>,
) -> Result<()> {
    bench.draw(part, series, &["bytes", "time"])?;
    let (first, last) = (&series[0], &series[series.len() - 1]);
    let worked = shares::worked(&shares::total(last).since(&shares::total(first)));
    let outcome = Outcome {
        seconds: bench.options.seconds,
        rate: f64::from(rate) * 1e6,
        bytes: shares::share(series, Some(device), Measure::Bytes)
            .context("no byte went through the device")?,
        busy: worked * 100.0 / ((last.clock - first.clock) as f64 * f64::from(last.cores)),
        time: shares::share(series, None, Measure::Time),
        clients,
    };
    let title = format!("{part}, {} windows of 1 s, {rate} MB/s: percent of the bytes", outcome.seconds);
    let mut text = shares::table(&title, "bytes a second", std::slice::from_ref(&outcome.bytes));
    if let Some([a, b, c]) = outcome.clients {
        text += &format!("  what the clients got: {a:.2}, {b:.2}, {c:.2} %\n");
    }
    text += &format!("  the cell's core was busy for {:.1} % of the time\n", outcome.busy);
    bench.show(part, &outcome, &text)
}
