//! `tests/programs/*.sh` on Linux and in a cell.

use std::fs;
use std::path::Path;

use atoll_tests::{Failed, arguments, atoll, cases, program_case, setting, top};

fn main() {
    // What is there for the nucleus alone is in other cases, too.
    let mut trials = cases("programs", "sh", case);
    trials.retain(|trial| !trial.name().ends_with("_inside"));
    libtest_mimic::run(&arguments(), trials).exit();
}

/// Share of a case's system calls that go through rewritten sites, at least.
const REWRITTEN: f64 = 0.99;

fn case(script: &Path, text: &str) -> Result<(), Failed> {
    let reports = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let reports = reports.path().join("reports");
    program_case(script, text, 1, |dir| {
        let options = setting(text, "options").unwrap_or_default();
        // A cell has a /tmp of its own; what the cases need of a checkout there must be shown to it.
        let top = top();
        let hidden = [Path::new("/tmp"), Path::new("/var/tmp")].iter().any(|t| top.starts_with(t));
        let shown = if hidden { format!("--volume {0}:{0}:ro ", top.display()) } else { String::new() };
        format!(
            "{} run {options} --report {} {shown}--volume {2}:{2} --workdir {2} --",
            atoll().display(),
            reports.display(),
            dir.display()
        )
    })?;
    rewritten(&reports, script, setting(text, "options").is_some_and(|o| o.contains("--keep-code")))
}

/// OV-02: counts how the case's programs made their system calls: a trap costs a hundred times a jump. `kept`: their code was to stay as it is.
fn rewritten(reports: &Path, script: &Path, kept: bool) -> Result<(), Failed> {
    let (mut all, mut trapped) = (0, 0);
    // A case may end some of its cells by force, before they write theirs.
    for line in fs::read_to_string(reports).unwrap_or_default().lines() {
        let report: serde_json::Value = serde_json::from_str(line)?;
        all += report["system_calls"].as_u64().ok_or("a report without a number of system calls")?;
        trapped +=
            report["system_calls_trapped"].as_u64().ok_or("a report without a number of trapped ones")?;
    }
    if all == 0 {
        return Err(
            "none of its cells has left a report of system calls: nothing is known of their sites".into()
        );
    }
    let share = 1.0 - trapped as f64 / all as f64;
    let name = script.file_stem().unwrap_or_default().to_string_lossy();
    println!("{name}: {all} system calls, {:.3} % through rewritten sites", share * 100.0);
    if kept && trapped != all {
        return Err(format!("{} of {all} system calls were rewritten all the same", all - trapped).into());
    }
    if !kept && share < REWRITTEN {
        return Err(format!("{trapped} of {all} system calls trapped").into());
    }
    Ok(())
}
