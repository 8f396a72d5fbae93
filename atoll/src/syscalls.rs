//! `atoll syscalls`: what is supported, per call and flag.
//!
//! The table is made by `cargo xtask docs` from the dispatcher and from the
//! cases that compare a cell with Linux; a call or flag that no case
//! exercises isn't called supported.

use atoll_supervisor::say;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Args;
use serde_json::Value;

use crate::output;

const TABLE: &str = include_str!("../../docs/syscalls.json");

// Options of `atoll syscalls`.
#[derive(Args)]
pub struct Options {
    /// Print JSON: an array of calls
    #[arg(long)]
    json: bool,
    /// Only these calls
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

fn name(call: &Value) -> &str {
    call["name"].as_str().unwrap_or_default()
}

/// The name of the system call of this number, if there is one.
pub(crate) fn name_of(number: u64) -> Option<&'static str> {
    static NAMES: OnceLock<BTreeMap<u64, String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let calls: Vec<Value> = serde_json::from_str(TABLE).unwrap_or_default();
        calls.iter().filter_map(|c| Some((c["number"].as_u64()?, name(c).to_string()))).collect()
    });
    names.get(&number).map(String::as_str)
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().map_or(Vec::new(), |l| l.iter().filter_map(Value::as_str).collect())
}

/// Prints it.
pub fn print(options: &Options) -> ExitCode {
    let calls: Vec<Value> = match serde_json::from_str(TABLE) {
        Ok(calls) => calls,
        Err(e) => {
            say!("atoll: the table of system calls is broken: {e}");
            return ExitCode::FAILURE;
        }
    };
    let wanted = |c: &&Value| options.names.is_empty() || options.names.iter().any(|n| n == name(c));
    let chosen: Vec<&Value> = calls.iter().filter(wanted).collect();
    let mut unknown = false;
    for n in &options.names {
        if !calls.iter().any(|c| name(c) == n) {
            say!("atoll: there is no system call {n}");
            unknown = true;
        }
    }
    let text = if options.json {
        // Values that were parsed can be written.
        serde_json::to_string_pretty(&chosen).unwrap_or_default() + "\n"
    } else {
        describe(&chosen)
    };
    let printed = output::finish(&text);
    if unknown { ExitCode::FAILURE } else { printed }
}

fn describe(calls: &[&Value]) -> String {
    let mut text = String::new();
    let (mut unseen, mut refused) = (Vec::new(), Vec::new());
    for c in calls {
        let (flags, cases) = (words(&c["flags"]), words(&c["cases"]));
        if let Some(e) = c["error"].as_str() {
            refused.push(format!("{} ({e})", name(c)));
        } else if cases.is_empty() {
            unseen.push(name(c).to_string());
        } else {
            text.push_str(&format!("{}\n", name(c)));
            if !flags.is_empty() {
                text.push_str(&format!("    flags: {}\n", flags.join(" ")));
            }
            text.push_str(&format!("    cases: {}\n", cases.join(" ")));
        }
    }
    for (title, list) in
        [("Served, but no case shows one that succeeds", unseen), ("Not served, and the error", refused)]
    {
        if !list.is_empty() {
            text.push_str(&format!("\n{title}:\n    {}\n", list.join(" ")));
        }
    }
    text
}
