//! What processes cost, in cells and on Linux (requirement X-01).

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::bench::{Row, Table, compare_times, compile, output};
use crate::build;
use crate::servers::{Kind, SIDES, Server, Side, after, command};
use crate::system::{cpu_seconds_with_ended, need};

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// Which parts [default: all]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// One JSON object a row: name, linux, cell, unit, ratio (above 1: the cell is better).
    #[arg(long)]
    json: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A group of figures.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq, Debug)]
enum Part {
    /// Forks of small and large processes, exec, and the first writes after a fork.
    Calls,
    /// A shell that runs /bin/true a thousand times.
    Shell,
    /// make -j2 with gcc.
    Make,
    /// Redis's answers while it saves.
    Redis,
    /// pgbench and PostgreSQL, both in the cell: processor time.
    Pgbench,
    /// sysbench and MariaDB, both in the cell: processor time.
    Sysbench,
}

/// Measures.
pub fn run(options: &Options) -> Result<()> {
    build::all(true)?;
    // PostgreSQL runs as somebody else, who has to get to its files.
    let dir = tempfile::Builder::new()
        .prefix("atoll-bench-")
        .permissions(fs::Permissions::from_mode(0o711))
        .tempdir()?;
    for part in Part::value_variants() {
        if !options.parts.is_empty() && !options.parts.contains(part) {
            continue;
        }
        match part {
            Part::Calls => {
                let program = compile("processes", dir.path())?;
                let name = str::to_string;
                compare_times(options.rounds, options.json, name, dir.path(), &program, &["1024"])?;
            }
            Part::Shell => shell(options, dir.path())?,
            Part::Make => make(options, dir.path())?,
            Part::Redis => redis(options, dir.path())?,
            Part::Pgbench => {
                need(&[("pgbench", "postgresql"), ("perl", "perl")])?;
                databases(options, dir.path(), "pgbench", PGBENCH)?;
            }
            Part::Sysbench => {
                need(&[
                    ("mariadbd", "mariadb-server"),
                    ("mariadb", "mariadb-client"),
                    ("sysbench", "sysbench"),
                ])?;
                databases(options, dir.path(), "sysbench", SYSBENCH)?;
            }
        }
    }
    Ok(())
}

/// Times a command of both sides in turns, seconds.
fn times(
    options: &Options,
    name: &str,
    dir: &Path,
    program: &str,
    arguments: &[&str],
    before: impl Fn() -> Result<()>,
) -> Result<()> {
    let mut times: [Vec<f64>; 2] = Default::default();
    for _ in 0..options.rounds {
        for (side, times) in SIDES.into_iter().zip(&mut times) {
            before()?;
            let begun = Instant::now();
            output(side, dir, program, arguments)?;
            times.push(begun.elapsed().as_secs_f64());
        }
    }
    let [mut linux, mut cell] = times;
    Row::less(name, "s", &mut linux, &mut cell).print(options.json);
    Ok(())
}

fn shell(options: &Options, dir: &Path) -> Result<()> {
    for shell in ["/bin/dash", "/bin/bash"] {
        let script = "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done";
        times(options, &format!("{shell}: 1,000 times /bin/true"), dir, shell, &["-c", script], || Ok(()))?;
    }
    let script = "i=0; while [ $i -lt 300 ]; do x=$(echo $i | tr 0-9 a-j); i=$((i+1)); done";
    times(options, "/bin/dash: 300 pipelines in substitutions", dir, "/bin/dash", &["-c", script], || Ok(()))
}

/// Files of C that are compiled.
const FILES: usize = 24;

fn make(options: &Options, dir: &Path) -> Result<()> {
    need(&[("make", "make"), ("gcc", "gcc")])?;
    let source = dir.join("source");
    fs::create_dir_all(&source)?;
    let bench = build::top().join("bench");
    let threads = fs::read_to_string(bench.join("threads.c"))?;
    fs::copy(bench.join("common.h"), source.join("common.h"))?;
    // A real program of a few hundred lines, again and again under other names: what a compiler does with it is no less.
    for n in 0..FILES {
        fs::write(source.join(format!("part{n}.c")), threads.replace("int main(", &format!("int main{n}(")))?;
    }
    let objects: String = (0..FILES).map(|n| format!(" part{n}.o")).collect();
    let rule = "%.o: %.c\n\tgcc -O1 -w -c -o $@ $<\n";
    fs::write(
        source.join("Makefile"),
        format!("all:{objects}\n\tgcc -r -nostdlib -o all -Wl,-z,muldefs{objects}\n{rule}"),
    )?;
    let clean = || {
        for entry in fs::read_dir(&source)? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e == "o") && !path.ends_with("Makefile") {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    };
    times(options, &format!("make -j2 of {FILES} files"), &source, "/usr/bin/make", &["-s", "-j2"], clean)
}

/// Keys in the Redis that saves.
const KEYS: usize = 1_000_000;

fn redis(options: &Options, dir: &Path) -> Result<()> {
    need(Kind::Redis.needs())?;
    let (mut quiet, mut saving): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    for (n, side) in SIDES.into_iter().enumerate() {
        let port = 17_450 + n as u16;
        let mut server = Server::start(Kind::Redis, side, dir, port)?;
        let cli = |arguments: &[&str]| -> Result<String> {
            let output =
                Command::new("redis-cli").args(["-p", &port.to_string()]).args(arguments).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        // Filled by a script, as the command for that is off by default.
        let fill = format!(
            "for i = 1, {KEYS} do redis.call('set', 'k' .. i, string.rep('v', 200)) end return redis.call('dbsize')"
        );
        if cli(&["eval", &fill, "0"])?.trim() != KEYS.to_string() {
            bail!("Redis did not take {KEYS} keys");
        }
        server.load(1.0, 1)?;
        for _ in 0..options.rounds {
            quiet[n].push(server.load(2.0, 1)?.p99);
            cli(&["bgsave"])?;
            saving[n].push(server.load(2.0, 1)?.p99);
            while cli(&["info", "persistence"])?.contains("rdb_bgsave_in_progress:1") {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    for (name, [mut linux, mut cell]) in [("", quiet), (" while it saves 1,000,000 keys", saving)] {
        Row::less(format!("redis, get and set{name}: p99"), "us", &mut linux, &mut cell).print(options.json);
    }
    Ok(())
}

/// A database on files of the host and its clients, by a Unix socket: `start`, `load WHAT` with four clients, `stop`.
const PGBENCH: &str = r#"
    # It does not run as root.
    if [ "$(id -u)" = 0 ]; then
        chown -R 65534:65534 "$PWD"
        exec perl -e '$) = "65534 65534"; $( = 65534; ($<, $>) = (65534, 65534); exec @ARGV' bash -eu "$0" "$@"
    fi
    PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
    export LC_ALL=C PGHOST=/tmp PGPORT=$1 PGDATABASE=postgres PGUSER=postgres PGDATA=$PWD/data
    start() {
        initdb --username=postgres --auth=trust
        postgres -k /tmp -c listen_addresses= &
        until psql --command='select 1'; do sleep 0.1; done
        pgbench --initialize --scale=10 --quiet
    }
    load() {
        case $1 in
            read-write) pgbench --client=4 --jobs=2 --transactions=1500 ;;
            read-only) pgbench --client=4 --jobs=2 --transactions=15000 --select-only ;;
        esac | sed -n 's/^number of transactions actually processed: \([0-9]*\).*/transactions: \1/p'
    }
    stop() { pg_ctl stop; wait; }
"#;
/// The same with MariaDB.
const SYSBENCH: &str = r#"
    export LC_ALL=C
    socket=/tmp/mariadb.$1 data=$PWD/data
    bench() {
        sysbench --db-driver=mysql --mysql-socket="$socket" --mysql-user=root --mysql-db=mysql --tables=4 --table-size=10000 "$@"
    }
    start() {
        mariadb-install-db --no-defaults --datadir="$data" --user="$(id -un)" --auth-root-authentication-method=normal
        mariadbd --no-defaults --datadir="$data" --socket="$socket" --skip-networking --user="$(id -un)" &
        until mariadb-admin --no-defaults --user=root --socket="$socket" ping; do sleep 0.1; done
        bench oltp_read_write prepare
    }
    load() {
        case $1 in
            read-write) bench --threads=4 --time=0 --events=1500 oltp_read_write run ;;
            read-only) bench --threads=4 --time=0 --events=3000 oltp_read_only run ;;
        esac | sed 's/ (.*//'
    }
    stop() { mariadb-admin --no-defaults --user=root --socket="$socket" shutdown; wait; }
"#;

/// A shell that has started a database and loads it when it is told.
struct Database {
    shell: Child,
    said: BufReader<ChildStdout>,
}

impl Database {
    fn start(script: &str, side: Side, dir: &Path, port: u16) -> Result<Database> {
        let dir = dir.join(format!("{side:?}"));
        fs::create_dir_all(&dir)?;
        let file = dir.join("script");
        let main = "start > started 2>&1\necho ready\nwhile read -r what; do load $what; echo ready; done\nstop > stopped 2>&1\n";
        fs::write(&file, format!("{script}\n{main}"))?;
        let arguments = ["-eu".to_string(), file.display().to_string(), port.to_string()];
        let mut shell = command(side, &dir, "/bin/bash", &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a shell")?;
        let said = BufReader::new(shell.stdout.take().expect("it is a pipe"));
        let mut database = Database { shell, said };
        database
            .until_ready()
            .with_context(|| fs::read_to_string(dir.join("started")).unwrap_or_default())?;
        Ok(database)
    }

    /// What it prints until it waits for orders.
    fn until_ready(&mut self) -> Result<String> {
        let mut text = String::new();
        while !text.ends_with("ready\n") {
            if self.said.read_line(&mut text)? == 0 {
                bail!("the shell ended: {:?}: {text}", self.shell.wait()?);
            }
        }
        Ok(text)
    }

    /// Processor time of all for a transaction, us; transactions per second.
    fn load(&mut self, what: &str) -> Result<(f64, f64)> {
        let (pid, begun) = (self.shell.id(), Instant::now());
        let before = cpu_seconds_with_ended(pid);
        writeln!(self.shell.stdin.as_ref().context("it is a pipe")?, "{what}")?;
        let text = self.until_ready()?;
        let count =
            after(&text, "transactions:").with_context(|| format!("no count of transactions: {text}"))?;
        Ok(((cpu_seconds_with_ended(pid) - before) * 1e6 / count, count / begun.elapsed().as_secs_f64()))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The end of its orders: it stops the server and ends.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn databases(options: &Options, dir: &Path, name: &str, script: &str) -> Result<()> {
    let dir = dir.join(name);
    let mut both = Vec::new();
    for (n, side) in SIDES.into_iter().enumerate() {
        both.push(Database::start(script, side, &dir, 17_460 + n as u16)?);
    }
    let (mut times, mut rates) = (Table::default(), Table::default());
    // One round of each doesn't count.
    for round in 0..=options.rounds {
        for what in ["read-write", "read-only"] {
            for (n, database) in both.iter_mut().enumerate() {
                let (cpu, rate) = database.load(what)?;
                if round > 0 {
                    times.add(&format!("{name} {what}: processor time of a transaction"), n, cpu);
                    rates.add(&format!("{name} {what}: transactions"), n, rate);
                }
            }
        }
    }
    times.print(options.json, |name, linux, cell| Row::less(name, "us", linux, cell));
    rates.print(options.json, |name, linux, cell| Row::more(name, "1/s", linux, cell));
    Ok(())
}
