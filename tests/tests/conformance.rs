//! The platform contract's conformance suite: what a runtime that runs it in place of programs writes on a Linux host
//! and on the nucleus, and what it wrote on the simulator (`cargo xtask test conformance` has it run before this).

use std::process::Command;
use std::time::Duration;

use atoll_tests::{Failed, Trial, arguments, atoll, difference, run, top};

/// The status that the suite ends with when it has got to its end.
const AT_ITS_END: i32 = 42;
/// How the simulator says that it has no programs.
const NO_PROGRAMS: &str = "programs: this platform has none\n";

fn main() {
    let trials = vec![Trial::test("all_platforms_agree", all_platforms_agree)];
    libtest_mimic::run(&arguments(), trials).exit();
}

/// What the suite writes on a platform.
fn lines(platform: &str) -> Result<String, Failed> {
    let mut command = Command::new(atoll());
    command.args(["run", "--platform", platform, "--cores", "2", "--", "/bin/true"]);
    command.env("ATOLL_RUNTIME", top().join("target/release/atoll-conformance"));
    let outcome = run(command, Duration::from_secs(120))?;
    if outcome.hung || outcome.status != AT_ITS_END {
        return Err(format!("{platform}: status {}\n{}", outcome.status, outcome.stderr).into());
    }
    let said = outcome.stderr.lines().filter_map(|l| l.strip_prefix("atoll: | "));
    Ok(said.map(|l| format!("{l}\n")).collect())
}

/// What they say of programs, and all the rest.
fn parted(lines: &str) -> (String, String) {
    let programs = |l: &&str| l.contains(" changed") || l.starts_with("programs: this");
    let all = |of_programs: bool| {
        let some = lines.lines().filter(|l| programs(l) == of_programs);
        some.map(|l| format!("{l}\n")).collect::<String>()
    };
    (all(true), all(false))
}

fn all_platforms_agree() -> Result<(), Failed> {
    let host = lines("host")?;
    let nucleus = lines("nucleus")?;
    let path = top().join("target/conformance-of-sim");
    let sim = std::fs::read_to_string(&path)
        .map_err(|e| format!("{}: {e}; `cargo xtask test conformance` makes it", path.display()))?;
    let ((programs, rest), (none, simulated)) = (parted(&host), parted(&sim));
    if host != nucleus || rest != simulated || none != NO_PROGRAMS {
        return Err(format!(
            "host and nucleus:\n{}\nhost and simulator:\n{}{none}",
            difference(&host, &nucleus),
            difference(&rest, &simulated)
        )
        .into());
    }
    // No platform may give the wrong answer that all others give.
    let good =
        ["cores: woken 20 of 20 times", "taken away from another core: 20 of 20, Ok(())", "spaces: 30 of 30"];
    if programs.lines().count() < 15 || !good.iter().all(|g| host.lines().any(|l| l == *g)) {
        return Err(host.into());
    }
    if host.lines().any(|l| {
        l.contains(" false")
            && !l.contains("inbox false")
            && !l.ends_with("left false")
            && l != "disarm: still comes false"
    }) {
        return Err(host.into());
    }
    Ok(())
}
