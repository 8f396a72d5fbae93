//! Servers on Linux and in cells, and the load generators that people use with them.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build::atoll;
use crate::system::cpu_seconds;

/// Where a server runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A process as always.
    Linux,
    /// In a cell.
    Cell,
}

/// Both, in the order in which they take turns.
pub const SIDES: [Side; 2] = [Side::Linux, Side::Cell];

/// A command on one side: as it is, or in a cell that sees `dir`.
pub fn command(side: Side, dir: &Path, program: &str, arguments: &[String]) -> Command {
    let mut command = match side {
        Side::Linux => {
            let mut c = Command::new(program);
            c.current_dir(dir);
            c
        }
        Side::Cell => {
            let mut c = Command::new(atoll());
            c.args(["run", "--memory", "2G", "--volume"])
                .arg(format!("{0}:{0}", dir.display()))
                .arg("--workdir")
                .arg(dir)
                .args(["--", program]);
            c
        }
    };
    // Debian's servers lie in directories that an ordinary user's path leaves out.
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(arguments).env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// What kind of server, and how to load it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// memcached with four threads.
    Memcached,
    /// redis-server without persistence.
    Redis,
    /// nginx with one process, and a file to be asked for.
    Nginx {
        /// Its size, bytes.
        size: usize,
    },
}

impl Kind {
    /// Programs that its benchmark needs, with their packages.
    pub fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Kind::Memcached => &[("memcached", "memcached"), ("memcaslap", "libmemcached-tools")],
            Kind::Redis => &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")],
            Kind::Nginx { .. } => &[("nginx", "nginx-light"), ("wrk", "wrk")],
        }
    }

    /// A name for a directory.
    fn name(self) -> String {
        match self {
            Kind::Nginx { size } => format!("nginx-{size}"),
            kind => format!("{kind:?}").to_lowercase(),
        }
    }

    /// Where its files are.
    pub fn directory(self, side: Side, dir: &Path) -> PathBuf {
        dir.join(format!("{}-{side:?}", self.name()))
    }
}

/// A server that runs.
pub struct Server {
    child: Child,
    port: u16,
    kind: Kind,
    log: PathBuf,
    dir: PathBuf,
}

/// What a load came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Requests per second.
    pub rate: f64,
    /// 99th percentile of the time to an answer, us.
    pub p99: f64,
    /// Processor time of the server and all that serves it, for 1,000 requests, us.
    pub cpu: f64,
}

impl Server {
    /// Starts one and waits until it takes connections.
    pub fn start(kind: Kind, side: Side, dir: &Path, port: u16) -> Result<Server> {
        Self::start_with(kind, side, dir, port, &[])
    }

    /// The same, with more in the environment.
    pub fn start_with(
        kind: Kind,
        side: Side,
        dir: &Path,
        port: u16,
        environment: &[(&str, &Path)],
    ) -> Result<Server> {
        let dir = kind.directory(side, dir);
        fs::create_dir_all(&dir)?;
        let (program, arguments): (&str, Vec<String>) = match kind {
            Kind::Memcached => {
                let text = format!("-u nobody -l 127.0.0.1 -p {port} -t 4 -m 512 -c 1024");
                ("memcached", words(&text))
            }
            Kind::Redis => {
                let text = format!("--bind 127.0.0.1 --port {port} --appendonly no");
                ("redis-server", words(&text).into_iter().chain(["--save".into(), String::new()]).collect())
            }
            Kind::Nginx { size } => ("nginx", prepare_nginx(&dir, port, size)?),
        };
        let log = dir.join("log");
        let out = fs::File::create(&log)?;
        let child = command(side, &dir, program, &arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        let mut server = Server { child, port, kind, log, dir };
        let begun = Instant::now();
        loop {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("{program} ({side:?}) ended with {status}:\n{}", server.said());
            }
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("{program} ({side:?}) takes no connections:\n{}", server.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has printed.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id; in a cell, that of the cell's supervisor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that it has used, with all that serves it, seconds.
    pub fn cpu(&self) -> f64 {
        cpu_seconds(self.child.id())
    }

    /// Loads it for about `seconds`; `pipeline` requests at a time on a connection (Redis only).
    pub fn load(&mut self, seconds: f64, pipeline: u32) -> Result<Load> {
        let before = self.cpu();
        let begun = Instant::now();
        let (count, p99) = match self.kind {
            Kind::Memcached => self.memcaslap(seconds)?,
            Kind::Redis => self.redis_benchmark(seconds, pipeline)?,
            Kind::Nginx { .. } => self.wrk(seconds)?,
        };
        let took = begun.elapsed().as_secs_f64();
        let cpu = (self.cpu() - before) * 1e6 / (count / 1000.0);
        if let Some(status) = self.child.try_wait()? {
            bail!("the server ended under load with {status}:\n{}", self.said());
        }
        Ok(Load { rate: count / took, p99, cpu })
    }

    /// 90 % get, 10 % set, values of 1 KiB, 50 connections. Value: requests, p99 in us.
    fn memcaslap(&self, seconds: f64) -> Result<(f64, f64)> {
        let file = self.dir.join("memcaslap.conf");
        fs::write(&file, "key\n64 64 1\nvalue\n1024 1024 1\ncmd\n0 0.1\n1 0.9\n")?;
        let time = format!("{}s", seconds.ceil());
        let text = output(
            Command::new("memcaslap")
                .arg("-s")
                .arg(format!("127.0.0.1:{}", self.port))
                .args(["-T", "1", "-c", "50", "-t", &time, "-S", &time, "-F"])
                .arg(&file),
        )?;
        let count = after(&text, "Ops:").context("memcaslap says no number of operations")?;
        let total = text.rsplit("Total Statistics (").next().unwrap_or_default();
        Ok((count, log2_percentile(total, 0.99).context("memcaslap shows no distribution")?))
    }

    /// SET and GET in equal parts, 50 connections.
    fn redis_benchmark(&self, seconds: f64, pipeline: u32) -> Result<(f64, f64)> {
        // As many as keep it busy for that long at a rate that it reaches.
        let each = (if pipeline > 1 { 700_000.0 } else { 80_000.0 } * seconds / 2.0) as u64;
        let (mut worst, port) = (0.0f64, self.port.to_string());
        let text = output(Command::new("redis-benchmark").args([
            "-p",
            &port,
            "-t",
            "set,get",
            "-c",
            "50",
            "--csv",
            "-n",
            &each.to_string(),
            "-P",
            &pipeline.to_string(),
        ]))?;
        // "test","rps","avg","min","p50","p95","p99","max", times in ms
        for line in text.lines().filter(|l| l.starts_with("\"SET\"") || l.starts_with("\"GET\"")) {
            let p99 = line.split(',').nth(6).and_then(|v| v.trim_matches('"').parse::<f64>().ok());
            worst = worst.max(p99.context("redis-benchmark shows no percentiles")? * 1000.0);
        }
        Ok((2.0 * each as f64, worst))
    }

    /// The file, 50 connections.
    fn wrk(&self, seconds: f64) -> Result<(f64, f64)> {
        wrk(self.port, 50, seconds).with_context(|| self.said())
    }
}

/// Asks an nginx for its file. Value: requests, p99 in us.
pub fn wrk(port: u16, connections: u32, seconds: f64) -> Result<(f64, f64)> {
    let text = output(
        Command::new("wrk")
            .args(["-t", "1", "-c", &connections.to_string(), "--latency"])
            .args(["-d", &format!("{}s", seconds.ceil())])
            .arg(format!("http://127.0.0.1:{port}/file")),
    )?;
    let count =
        text.lines().find_map(|l| l.trim().split_once(" requests in")).context("wrk shows no count")?;
    if text.contains("Non-2xx") {
        bail!("nginx answers with errors:\n{text}");
    }
    let p99 = text.lines().find_map(|l| l.trim().strip_prefix("99%")).context("wrk shows no p99")?.trim();
    let (number, scale) = match p99 {
        t if t.ends_with("us") => (&t[..t.len() - 2], 1.0),
        t if t.ends_with("ms") => (&t[..t.len() - 2], 1000.0),
        t => (t.trim_end_matches('s'), 1e6),
    };
    Ok((count.0.parse()?, number.parse::<f64>()? * scale))
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM first, as an administrator would; a server that does not listen is killed.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

/// Makes a directory for an nginx with a file of this size. Value: its arguments.
pub fn prepare_nginx(dir: &Path, port: u16, size: usize) -> Result<Vec<String>> {
    fs::create_dir_all(dir.join("www"))?;
    fs::create_dir_all(dir.join("tmp"))?;
    fs::write(dir.join("www/file"), vec![b'x'; size])?;
    fs::write(dir.join("nginx.conf"), nginx_configuration(dir, port))?;
    Ok(vec!["-p".into(), format!("{}/", dir.display()), "-c".into(), "nginx.conf".into()])
}

fn nginx_configuration(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|n| format!("  {n}_temp_path {dir}/tmp/{n};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\npid {dir}/pid;\nerror_log stderr;\n\
         events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  keepalive_requests 1000000;\n{temporary}  \
         server {{ listen 127.0.0.1:{port}; root {dir}/www; }}\n}}\n"
    )
}

/// Runs a load generator; its standard output.
fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {shown}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        // What went wrong stands in either stream.
        let _ = std::io::stderr().write_all(&output.stderr);
        bail!("{shown} failed with {}:\n{text}", output.status);
    }
    Ok(text)
}

/// The number that follows a word.
pub fn after(text: &str, word: &str) -> Option<f64> {
    text.rsplit_once(word)?.1.split_whitespace().next()?.parse().ok()
}

/// A percentile of memcaslap's distribution: counts by powers of two of
/// microseconds, four a line, "first power: count count count count". Within
/// a power, times are taken to be spread evenly.
fn log2_percentile(text: &str, part: f64) -> Option<f64> {
    let mut counts: Vec<(i32, f64)> = Vec::new();
    for line in text.lines().skip_while(|l| !l.contains("Log2 Dist")).skip(1) {
        let Some((first, rest)) = line.split_once(':') else { break };
        let Ok(first) = first.trim().parse::<i32>() else { break };
        counts.extend((first..).zip(rest.split_whitespace().filter_map(|c| c.parse::<f64>().ok())));
    }
    let mut left = counts.iter().map(|(_, n)| n).sum::<f64>() * part;
    for (power, n) in counts {
        if left <= n && n > 0.0 {
            let low = 2f64.powi(power - 1);
            return Some(low + low * left / n);
        }
        left -= n;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_of_a_distribution() {
        let text = "Total Statistics (100 events)\n   Log2 Dist:\n       4:        0       50     40    10\n";
        // 50 in [16, 32), 40 in [32, 64), 10 in [64, 128): the 99th of 100 lies nine tenths into the last.
        assert_eq!(log2_percentile(text, 0.99), Some(64.0 + 64.0 * 0.9));
        assert_eq!(log2_percentile(text, 0.25), Some(16.0 + 16.0 * 0.5));
        assert_eq!(after("Run time: 3.0s Ops: 277479 TPS: 92479", "Ops:"), Some(277_479.0));
    }
}
