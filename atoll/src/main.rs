//! The command line.
fn main() {
    let runtime = std::fs::read(std::env::current_exe().unwrap().parent().unwrap().join("atoll-runtime")).unwrap();
    let t = std::time::Instant::now();
    let mut cell = atoll_supervisor::launch::launch(atoll_supervisor::launch::CellConfig {
        runtime, cores: 2, cpus: None, memory: 1 << 30,
        boot: atoll_abi::control::BootConfig { name: "x".into(), program: vec![], args: vec![], env: vec![], workdir: vec![], uid: 0, gid: 0, groups: vec![], umask: 0o22, mounts: vec![], streams: [atoll_abi::control::StreamKind::Closed; 3], host_network: true, started_at: 0, seed: [0; 32], max_files: 1000, verbose: false, randomize: false, cpu_model: "".into(), cpu_flags: "".into(), cpu_khz: 0 },
        mounts: vec![], streams: atoll_supervisor::serve::Streams::of_this_process(), network: atoll_supervisor::sockets::Policy::Host, plan_cache: None, confined: true,
    }).unwrap();
    let s = cell.wait();
    println!("{s} {:?}", t.elapsed());
}
