//! A tokio program: TCP and UDP echo servers until SIGTERM, or a client of
//! its own that tries timers, files, blocking work, signals and children.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

async fn serve_tcp(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut r, mut w) = stream.split();
            let _ = copy(&mut r, &mut w).await;
        });
    }
}

async fn serve_udp(socket: UdpSocket) -> io::Result<()> {
    let mut b = vec![0; 65536];
    loop {
        let (n, from) = socket.recv_from(&mut b).await?;
        socket.send_to(&b[..n], from).await?;
    }
}

async fn serve(port: u16) -> io::Result<()> {
    let tcp = TcpListener::bind(("127.0.0.1", port)).await?;
    let udp = UdpSocket::bind(("127.0.0.1", port)).await?;
    let mut term = signal(SignalKind::terminate())?;
    println!("serving");
    tokio::select! {
        r = serve_tcp(tcp) => r,
        r = serve_udp(udp) => r,
        _ = term.recv() => {
            println!("terminated");
            Ok(())
        }
    }
}

async fn client(port: u16) -> io::Result<()> {
    let mut all = JoinSet::new();
    for n in 0..20u8 {
        all.spawn(async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            let (mut r, mut w) = stream.into_split();
            let sent: Vec<u8> = (0..200_000u32).map(|i| (i as u8).wrapping_mul(n)).collect();
            let copy = sent.clone();
            let writer = tokio::spawn(async move {
                w.write_all(&copy).await?;
                w.shutdown().await
            });
            let mut back = Vec::new();
            r.read_to_end(&mut back).await?;
            writer.await??;
            Ok::<bool, io::Error>(back == sent)
        });
    }
    let mut good = 0;
    while let Some(r) = all.join_next().await {
        good += usize::from(r??);
    }
    println!("tcp: {good} of 20");
    let udp = UdpSocket::bind("127.0.0.1:0").await?;
    udp.connect(("127.0.0.1", port)).await?;
    let mut good = 0;
    for n in [0usize, 1, 100, 1400, 9000, 60000] {
        let sent = vec![n as u8; n];
        udp.send(&sent).await?;
        let mut b = vec![0; 65536];
        let got = timeout(Duration::from_secs(5), udp.recv(&mut b)).await??;
        good += usize::from(b[..got] == sent[..]);
    }
    println!("udp: {good} of 6");
    Ok(())
}

async fn alone() -> io::Result<()> {
    let tcp = TcpListener::bind("127.0.0.1:0").await?;
    let port = tcp.local_addr()?.port();
    let udp = UdpSocket::bind(("127.0.0.1", port)).await?;
    tokio::spawn(serve_tcp(tcp));
    tokio::spawn(serve_udp(udp));
    client(port).await?;

    let begun = Instant::now();
    let mut ticks = interval(Duration::from_millis(10));
    for _ in 0..10 {
        ticks.tick().await;
    }
    println!("ticks: {}", begun.elapsed() >= Duration::from_millis(90));
    let late = timeout(Duration::from_millis(30), sleep(Duration::from_secs(10))).await;
    println!("timeout: {}", late.is_err());
    let mut sleepers = JoinSet::new();
    for n in 0..1000u64 {
        sleepers.spawn(async move {
            sleep(Duration::from_millis(n % 50)).await;
            n
        });
    }
    let mut sum = 0;
    while let Some(n) = sleepers.join_next().await {
        sum += n?;
    }
    println!("sleepers: {sum}");

    let mut work = JoinSet::new();
    for n in 0..40u64 {
        work.spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(5));
            (0..100_000).fold(n, |a, b| a.wrapping_mul(31).wrapping_add(b)) & 1
        });
    }
    let mut blocks = 0;
    while let Some(r) = work.join_next().await {
        r?;
        blocks += 1;
    }
    println!("blocking: {blocks}");

    tokio::fs::create_dir_all("deep/er").await?;
    let text = "some text\n".repeat(5000);
    tokio::fs::write("deep/er/file", &text).await?;
    let back = tokio::fs::read_to_string("deep/er/file").await?;
    tokio::fs::rename("deep/er/file", "file").await?;
    tokio::fs::remove_dir_all("deep").await?;
    println!("files: {} {}", back == text, tokio::fs::metadata("file").await?.len());

    let unix = UnixListener::bind("socket")?;
    let server = tokio::spawn(async move {
        let (mut s, _) = unix.accept().await?;
        let (mut r, mut w) = s.split();
        copy(&mut r, &mut w).await
    });
    let mut s = UnixStream::connect("socket").await?;
    s.write_all(b"unix").await?;
    s.shutdown().await?;
    let mut back = String::new();
    s.read_to_string(&mut back).await?;
    println!("{back}: {}", server.await??);
    tokio::fs::remove_file("socket").await?;

    let mut user = signal(SignalKind::user_defined1())?;
    let me = std::process::id().to_string();
    let status = tokio::process::Command::new("/bin/kill").args(["-USR1", &me]).status().await?;
    user.recv().await;
    println!("signal, and {status}");
    let mut tr = tokio::process::Command::new("tr")
        .args(["a-z", "A-Z"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut stdin = tr.stdin.take().ok_or(io::ErrorKind::Other)?;
    stdin.write_all(b"shout\n").await?;
    drop(stdin);
    let out = tr.wait_with_output().await?;
    print!("{}", String::from_utf8_lossy(&out.stdout));
    let mut slow = tokio::process::Command::new("sleep").arg("30").kill_on_drop(true).spawn()?;
    println!("slow: {}", timeout(Duration::from_millis(30), slow.wait()).await.is_err());
    slow.kill().await?;
    println!("killed: {:?}", slow.try_wait()?.map(|s| s.to_string()));
    let missing = tokio::process::Command::new("/no/such/program").spawn();
    println!("missing: {:?}", missing.err().map(|e| e.kind()));
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let port = || args.get(2).and_then(|p| p.parse().ok()).ok_or(io::ErrorKind::InvalidInput);
    match args.get(1).map(String::as_str) {
        Some("serve") => serve(port()?).await,
        Some("client") => client(port()?).await,
        _ => alone().await,
    }
}
