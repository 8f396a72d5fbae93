//! The parts of documents that are generated from the code.
//!
//! Such a part stands between two comment lines of its name in its document.
//! A test says when it is not what the code says.

use std::fs;

use anyhow::{Context, Result};
use atoll_supervisor::confine::{ALLOWED, Allowed, STARTING};

use crate::build::top;

/// A generated part: its document, its name there, and what makes it.
type Part = (&'static str, &'static str, fn() -> Result<String>);

const PARTS: &[Part] = &[
    ("docs/security.md", "host-calls", || Ok(calls(ALLOWED))),
    ("docs/security.md", "starting-calls", || Ok(calls(STARTING))),
];

/// Writes all of them.
pub fn write() -> Result<()> {
    for part in PARTS {
        let (path, old, new) = renewed(part)?;
        if old != new {
            fs::write(top().join(path), new).with_context(|| format!("writing {path}"))?;
            println!("{path}: {} is new", part.1);
        }
    }
    crate::syscalls::write()
}

/// A part's document as it is and as it should be.
fn renewed((path, name, make): &Part) -> Result<(&'static str, String, String)> {
    let text = fs::read_to_string(top().join(path)).with_context(|| format!("reading {path}"))?;
    let begin = format!("<!-- {name}: made by `cargo xtask docs` -->\n");
    let end = format!("<!-- end of {name} -->\n");
    let missing = || format!("{path} has no part {name}");
    let (before, rest) = text.split_once(&begin).with_context(missing)?;
    let (_, after) = rest.split_once(&end).with_context(missing)?;
    let new = format!("{before}{begin}{}{end}{after}", make()?);
    Ok((path, text, new))
}

/// A table of host calls.
fn calls(list: &[Allowed]) -> String {
    let mut text = String::from("| call | arguments | what for |\n| --- | --- | --- |\n");
    for call in list {
        text.push_str(&format!("| `{}` | {} | {} |\n", call.name, call.only, call.why));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_say_what_the_code_says() {
        for part in PARTS {
            let (path, old, new) = renewed(part).unwrap();
            assert!(old == new, "{path}: {} is out of date: run `cargo xtask docs`", part.1);
        }
    }
}
