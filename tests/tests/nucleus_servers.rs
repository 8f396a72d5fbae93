//! Servers on the nucleus, in QEMU, answer clients of this host as they do on Linux; several cells stand
//! side by side on one machine; what runs there is the runtime that runs on Linux, byte for byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::{Failed, Outcome, Trial, arguments, atoll, compare, port, run, top};

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let mut trials = vec![
        Trial::test("redis", || redis(&[])),
        Trial::test("redis_on_pci", || redis(&["--machine", "q35"])),
        Trial::test("redis_with_iommu", || redis(&["--machine", "q35", "--iommu"])),
        Trial::test("each_has_its_device", each_has_its_device),
        Trial::test("memcached", memcached),
        Trial::test("nginx", nginx),
        Trial::test("go", go),
        Trial::test("one_ends_alone", one_ends_alone),
        Trial::test("crashed_server_starts_again", crashed_server_starts_again),
        Trial::test("page_tables_grow", page_tables_grow),
        Trial::test("the_same_runtime", the_same_runtime),
    ];
    for cells in [2, 4, 8] {
        trials.push(Trial::test(format!("side_by_side_{cells}"), move || side_by_side(cells)));
    }
    libtest_mimic::run(&arguments(), trials).exit();
}

/// A server that ends with its value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Starts one, and waits until somebody listens and answers to `hello`, if that is not empty.
    fn start(mut command: Command, port: u16, hello: &[u8]) -> Result<Server, Failed> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut server = Server(command.spawn()?);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = server.0.try_wait()? {
                let mut said = String::new();
                server.0.stderr.take().map(|mut e| e.read_to_string(&mut said)).transpose()?;
                return Err(format!("the server ended at once ({status}):\n{said}").into());
            }
            // QEMU listens before anybody is there.
            if talk(port, hello).is_ok_and(|answer| !answer.is_empty()) {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("nobody answers".into())
    }

    /// Waits for its end; its exit status.
    fn wait(mut self) -> Result<i32, Failed> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.code().unwrap_or(-1));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("the server does not end".into())
    }
}

/// What a server answers to this within a second.
fn talk(port: u16, what: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(what)?;
    let mut answer = vec![0; 64];
    let n = stream.read(&mut answer)?;
    answer.truncate(n);
    Ok(answer)
}

/// A server's words with a port, on Linux; and the same in a cell, whose port leads there.
fn both(words: &[&str], includes: &[&str], port_inside: u16) -> [(Command, u16); 2] {
    both_on(&[], words, includes, port_inside)
}

/// The cell on a machine with this hardware.
fn both_on(hardware: &[&str], words: &[&str], includes: &[&str], port_inside: u16) -> [(Command, u16); 2] {
    let (linux_port, cell_port) = (port(), port());
    let fill = |port: u16| words.iter().map(move |w| w.replace("PORT", &port.to_string()));
    let mut linux = Command::new(words[0]);
    linux.args(fill(linux_port).skip(1));
    let mut cell = Command::new(atoll());
    cell.args(["run", "--platform", "nucleus", "--cores", "2", "--memory", "256M"]).args(hardware);
    cell.args(["--publish", &format!("{cell_port}:{port_inside}")]);
    for path in includes {
        cell.args(["--include", path]);
    }
    cell.arg("--").args(fill(port_inside));
    [(linux, linux_port), (cell, cell_port)]
}

fn client(words: &[&str], port: u16) -> Result<Outcome, Failed> {
    let mut command = Command::new(words[0]);
    command.args(words[1..].iter().map(|w| w.replace("PORT", &port.to_string())));
    Ok(run(command, Duration::from_secs(60))?)
}

fn well(outcome: &Outcome) -> Result<(), Failed> {
    if outcome.status == 0 && !outcome.hung {
        return Ok(());
    }
    Err(format!(
        "status {} (hung: {}):\n{}\n{}",
        outcome.status, outcome.hung, outcome.stdout, outcome.stderr
    )
    .into())
}

/// Commands whose answers don't depend on time or place.
const REDIS: &str = "\
    for i = 1, 500 do redis.call('SET', 'key:' .. i, string.rep('v', i)) end \
    redis.call('ZADD', 'z', 3, 'c', 1, 'a', 2, 'b') redis.call('HSET', 'h', 'f', '1', 'g', '2') \
    return {redis.call('DBSIZE'), redis.call('STRLEN', 'key:417'), redis.call('ZRANGE', 'z', 0, -1), \
    redis.call('HGETALL', 'h'), redis.sha1hex(redis.call('GET', 'key:500'))}";

fn redis(hardware: &[&str]) -> Result<(), Failed> {
    let words = ["redis-server", "--port", "PORT", "--protected-mode", "no", "--save", "", "--dir", "/tmp"];
    let mut said = Vec::new();
    for (command, port) in both_on(hardware, &words, &[], 6379) {
        let server = Server::start(command, port, b"PING\r\n")?;
        said.push(client(&["redis-cli", "-p", "PORT", "EVAL", REDIS, "0"], port)?);
        let load = ["redis-benchmark", "-p", "PORT", "-q", "-n", "2000", "-c", "20", "-t", "set,get,lpush"];
        well(&client(&load, port)?)?;
        // More at once than QEMU's own queue of new connections holds.
        let load = ["redis-benchmark", "-p", "PORT", "-q", "-n", "2000", "-c", "200", "-t", "get"];
        well(&client(&load, port)?)?;
        let load =
            ["redis-benchmark", "-p", "PORT", "-q", "-n", "2000", "-P", "16", "-d", "3000", "-t", "set,get"];
        well(&client(&load, port)?)?;
        client(&["redis-cli", "-p", "PORT", "SHUTDOWN", "NOSAVE"], port)?;
        let status = server.wait()?;
        if status != 0 {
            return Err(format!("the server ended with {status}").into());
        }
    }
    well(&said[0])?;
    compare(&said[0], &said[1])
}

/// Cells side by side, each with a device on PCI behind the IOMMU, fetch a file from this host; one starts anew with it.
fn each_has_its_device() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    let fetched = std::thread::spawn(move || {
        // Two that are given something, and one that is so twice and asks for what is not there.
        for stream in listener.incoming().take(4) {
            let mut stream = stream?;
            let mut request = [0; 1000];
            let n = stream.read(&mut request)?;
            let status = if request[..n].starts_with(b"GET /none") { "404 None" } else { "200 Fine" };
            write!(stream, "HTTP/1.0 {status}\r\nContent-Length: 5\r\n\r\nfine\n")?;
        }
        Ok::<(), std::io::Error>(())
    });
    let cell = |n: usize, path: &str, more: &str| {
        let fetch = format!("curl -s -f -m 30 http://10.0.2.2:{port}/{path}");
        format!("cell c{n}\n cores 1\n memory 64M\n device net{n}\n{more} run {fetch}\n")
    };
    let configuration = cell(0, "a", "") + &cell(1, "none", " restart on-failure:1\n") + &cell(2, "b", "");
    let file = dir.path().join("machine.conf");
    std::fs::write(&file, configuration)?;
    let mut command = Command::new(atoll());
    command.args(["boot", "--verbose", "--machine", "q35", "--iommu"]).arg(&file);
    let outcome = run(command, Duration::from_secs(90))?;
    // What curl says of a status of 400 and more.
    let lines =
        ["c0: fine", "c2: fine", "atoll: nucleus: cell c1 starts again, for the 1. time"].map(String::from);
    expect(&outcome, 22, &lines)?;
    fetched.join().map_err(|_| "the host's server panicked")??;
    Ok(())
}

fn memcached() -> Result<(), Failed> {
    // A value larger than a segment, numbers, what is not there, an error.
    let large = "x".repeat(100_000);
    let script = format!(
        "set a 5 0 3\r\nabc\r\nadd a 0 0 1\r\nz\r\nappend a 0 0 3\r\ndef\r\nget a b\r\nset n 0 0 2\r\n41\r\nincr n 1\r\n\
         set l 0 0 {}\r\n{large}\r\nget l\r\ndelete a\r\nget a\r\nnonsense\r\nquit\r\n",
        large.len()
    );
    let mut said = Vec::new();
    for (command, port) in both(&["memcached", "-u", "root", "-t", "2", "-p", "PORT", "-U", "0"], &[], 11211)
    {
        let _server = Server::start(command, port, b"version\r\n")?;
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(script.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        said.push(answer);
        well(&client(
            &["memcslap", "--servers=127.0.0.1:PORT", "--concurrency=4", "--execute-number=200"],
            port,
        )?)?;
    }
    if said[0] != said[1] {
        return Err(format!("on Linux:\n{:.300}\nin the cell:\n{:.300}", said[0], said[1]).into());
    }
    Ok(())
}

fn nginx() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let at = dir.path().display();
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(dir.path().join("large"), bytes)?;
    std::fs::write(dir.path().join("index.html"), "small\n")?;
    let configuration = |port: u16| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|t| format!("{t}_temp_path /tmp/{t};\n"))
            .concat();
        format!(
            "daemon off; master_process off; error_log stderr; pid /tmp/atoll-nginx-{port}.pid;\n\
             events {{ worker_connections 256; }}\nhttp {{ access_log off; {temporary}\n\
             server {{ listen {port}; root {at}; }} }}\n"
        )
    };
    let inside = 8080;
    let [(_, linux_port), (_, cell_port)] = both(&["nginx"], &[], inside);
    for port in [linux_port, inside] {
        std::fs::write(dir.path().join(format!("{port}.conf")), configuration(port))?;
    }
    let file = |port: u16| dir.path().join(format!("{port}.conf")).display().to_string();
    let mut linux = Command::new("/usr/sbin/nginx");
    linux.args(["-c", &file(linux_port)]);
    let mut cell = Command::new(atoll());
    cell.args(["run", "--platform", "nucleus", "--memory", "256M", "--include", &at.to_string()]);
    cell.args(["--publish", &format!("{cell_port}:{inside}"), "--", "/usr/sbin/nginx", "-c", &file(inside)]);
    let mut said = Vec::new();
    for (command, port) in [(linux, linux_port), (cell, cell_port)] {
        let _server = Server::start(command, port, b"GET / HTTP/1.0\r\n\r\n")?;
        let mut all = String::new();
        for (path, range) in [("", "0-"), ("large", "0-"), ("large", "1000-200000"), ("none", "0-")] {
            let url = format!("http://127.0.0.1:{port}/{path}");
            let fetch = ["curl", "-s", "-m", "20", "-r", range, "-w", "%{http_code} %{size_download}", &url];
            let outcome = client(&fetch, port)?;
            well(&outcome)?;
            all += &outcome.stdout;
        }
        said.push(all);
        well(&client(&["ab", "-q", "-n", "300", "-c", "10", "http://127.0.0.1:PORT/large"], port)?)?;
        well(&client(&["ab", "-q", "-k", "-n", "500", "-c", "10", "http://127.0.0.1:PORT/"], port)?)?;
    }
    if said[0] != said[1] {
        return Err("the answers differ".into());
    }
    Ok(())
}

/// Boots a machine by this configuration.
fn boot(configuration: &str) -> Result<Outcome, Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let file = dir.path().join("machine.conf");
    std::fs::write(&file, configuration)?;
    let mut command = Command::new(atoll());
    command.args(["boot", "--verbose"]).arg(&file);
    Ok(run(command, Duration::from_secs(90))?)
}

fn expect(outcome: &Outcome, status: i32, lines: &[String]) -> Result<(), Failed> {
    let there = |line: &String| outcome.stdout.lines().chain(outcome.stderr.lines()).any(|l| l == line);
    match lines.iter().find(|l| !there(l)) {
        None if outcome.status == status && !outcome.hung => Ok(()),
        missing => Err(format!(
            "status {} instead of {status} (hung: {}), missing: {missing:?}\n{}\n{}",
            outcome.status, outcome.hung, outcome.stdout, outcome.stderr
        )
        .into()),
    }
}

/// Each with its own runtime, cores and memory: all come to their own result.
fn side_by_side(cells: usize) -> Result<(), Failed> {
    let work = "i=0; s=0; while [ $i -lt 3000 ]; do i=$((i+1)); s=$((s+i*NUMBER)); done; echo it is $s";
    let configuration: String = (0..cells)
        .map(|n| {
            let (cores, work) = (1 + n % 2, work.replace("NUMBER", &n.to_string()));
            format!("cell c{n}\n cores {cores}\n memory 64M\n run busybox sh -c '{work}'\n")
        })
        .collect();
    let results: Vec<String> = (0..cells).map(|n| format!("c{n}: it is {}", 3000 * 3001 / 2 * n)).collect();
    expect(&boot(&configuration)?, 0, &results)
}

/// A static Go program: what its runtime and standard library ask of a system, and its HTTP server.
fn go() -> Result<(), Failed> {
    let built = top().join("target/test-programs");
    std::fs::create_dir_all(&built)?;
    let program = built.join("go-for-nucleus");
    let mut compiler = Command::new("go");
    let path = std::env::var("PATH").unwrap_or_default();
    // The compiler's own directory serves where there is no package.
    compiler.env("PATH", format!("{path}:/usr/local/go/bin")).env("CGO_ENABLED", "0");
    compiler.current_dir(top().join("tests/programs/go")).args(["build", "-o"]).arg(&program).arg(".");
    well(&run(compiler, Duration::from_secs(180))?)?;
    let program = program.display().to_string();
    let children = ["/usr/bin/echo", "/usr/bin/false", "/usr/bin/tr", "/usr/bin/env", "/usr/bin/sleep"];
    let said = both(&[&program], &children, 1).map(|(command, _)| run(command, Duration::from_secs(120)));
    let [linux, cell] = said;
    let (linux, cell) = (linux?, cell?);
    well(&linux)?;
    compare(&linux, &cell)?;
    let mut answers = Vec::new();
    for (command, port) in both(&[&program, "serve", "0.0.0.0:PORT"], &[], 8080) {
        let _server = Server::start(command, port, b"GET / HTTP/1.0\r\n\r\n")?;
        let mut all = String::new();
        for n in 0..10 {
            let got = client(&["curl", "-sS", &format!("http://127.0.0.1:PORT/path/{n}")], port)?;
            well(&got)?;
            all += &got.stdout;
        }
        let sent = client(
            &["curl", "-sS", "--data-binary", &format!("@{program}"), "http://127.0.0.1:PORT/upload"],
            port,
        )?;
        well(&sent)?;
        answers.push(all + &sent.stdout);
    }
    if answers[0] != answers[1] || answers[0].is_empty() {
        return Err(format!("on Linux:\n{}\nin the cell:\n{}", answers[0], answers[1]).into());
    }
    Ok(())
}

/// A cell that ends badly ends alone.
fn one_ends_alone() -> Result<(), Failed> {
    let outcome = boot(
        "cell bad\n cores 1\n memory 64M\n run busybox sh -c 'kill -SEGV $$'\n\
         cell hungry\n cores 1\n memory 32M\n run busybox dd if=/dev/zero of=/tmp/all bs=1M\n\
         cell good\n cores 1\n memory 64M\n run busybox sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo still here'\n",
    )?;
    let said = |line: &str| line.to_string();
    expect(
        &outcome,
        139,
        &[
            said("atoll: nucleus: cell bad was ended by signal 11"),
            said("atoll: nucleus: cell hungry ended with status 1"),
            said("good: still here"),
            said("atoll: nucleus: cell good ended with status 0"),
        ],
    )
}

/// A server that crashes is there again, with its cores and its network device.
fn crashed_server_starts_again() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let file = dir.path().join("machine.conf");
    std::fs::write(
        &file,
        "cell server\n cores 2\n memory 128M\n device net0\n restart on-failure:2\n \
         run redis-server --port 6379 --protected-mode no --save '' --enable-debug-command yes --dir /tmp\n",
    )?;
    let port = port();
    let mut command = Command::new(atoll());
    command.args(["boot", "--json", "--publish", &format!("{port}:6379")]).arg(&file);
    let mut server = Server::start(command, port, b"PING\r\n")?;
    for _ in 0..2 {
        well(&client(&["redis-cli", "-p", "PORT", "SET", "key", "value"], port)?)?;
        // It tells nobody any more.
        client(&["redis-cli", "-p", "PORT", "DEBUG", "SEGFAULT"], port)?;
        let begun = Instant::now();
        while !talk(port, b"GET key\r\n").is_ok_and(|answer| answer == b"$-1\r\n") {
            if begun.elapsed() > PATIENCE {
                return Err("it is not there again".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    client(&["redis-cli", "-p", "PORT", "DEBUG", "SEGFAULT"], port)?;
    let stderr = server.0.stderr.take();
    match server.wait()? {
        139 => {}
        status => return Err(format!("it was to start twice again, and ended with {status}").into()),
    }
    let said = stderr.map(std::io::read_to_string).transpose()?.unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(said.lines().last().unwrap_or_default())?;
    let cell = &report["cells"][0];
    if (&cell["name"], &cell["signal"], &cell["restarts"]) != (&"server".into(), &11.into(), &2.into()) {
        return Err(format!("the report says {report}").into());
    }
    Ok(())
}

/// What a program maps takes page tables as it needs: more than the cell had for them at first.
fn page_tables_grow() -> Result<(), Failed> {
    let program = "import mmap\nfor r in range(3):\n a = [mmap.mmap(-1, 4 << 20) for i in range(1200)]\n \
                   for i, m in enumerate(a): m[2 << 20] = i % 251\n \
                   print(sum(m[2 << 20] == i % 251 for i, m in enumerate(a)))\n for m in a: m.close()\n";
    let mut command = Command::new(atoll());
    command.args(["run", "--platform", "nucleus", "--memory", "192M", "--include", "/usr/lib/python3.11"]);
    command.args(["--", "/usr/bin/python3", "-c", program]);
    let outcome = run(command, Duration::from_secs(60))?;
    well(&outcome)?;
    if outcome.stdout == "1200\n1200\n1200\n" { Ok(()) } else { Err(outcome.stdout.into()) }
}

fn sha256(path: &Path) -> Result<String, Failed> {
    let mut command = Command::new("sha256sum");
    command.arg(path);
    let outcome = run(command, Duration::from_secs(20))?;
    well(&outcome)?;
    Ok(outcome.stdout.split(' ').next().unwrap_or_default().to_string())
}

/// What the nucleus is given to start in each cell is the file that `atoll run` starts on Linux.
fn the_same_runtime() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let file = dir.path().join("machine.conf");
    std::fs::write(&file, "cell c\n cores 1\n memory 64M\n run /bin/true\n")?;
    let mut command = Command::new(atoll());
    command.args(["image", "build"]).arg(&file).arg("--output").arg(dir.path());
    well(&run(command, Duration::from_secs(60))?)?;
    let mut command = Command::new("tar");
    command.arg("-C").arg(dir.path()).arg("-xf").arg(dir.path().join("module.tar")).arg("runtime");
    well(&run(command, Duration::from_secs(20))?)?;
    let hashes = [sha256(&dir.path().join("runtime"))?, sha256(&top().join("target/release/atoll-runtime"))?];
    if hashes[0] != hashes[1] || hashes[0].len() != 64 {
        return Err(format!("not the same: {hashes:?}").into());
    }
    Ok(())
}
