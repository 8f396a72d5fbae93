//! The documents say what is so: rows, dependencies, links and paths in them are checked against the tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the project").to_path_buf()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirements {
    requirement: Vec<Requirement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    id: String,
    title: String,
    source: String,
    #[serde(default)]
    issues: Vec<u32>,
    host: Option<State>,
    nucleus: Option<State>,
    simulation: Option<State>,
    #[serde(default)]
    shown_by: Vec<String>,
    note: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum State {
    Open,
    Partial,
    Done,
}

/// How many rows the papers, and what goes beyond them, have.
const ROWS: [(&str, &str, usize); 6] = [
    ("RF", "RainForest", 16),
    ("XOS", "XOS", 13),
    ("OR", "OmniRE", 9),
    ("OK", "Omni-kernel", 17),
    ("OV", "OSv", 14),
    ("X", "beyond the papers", 6),
];

/// Does a test exist? A case's file, or `file::function` for a test function in a file.
fn test_exists(name: &str) -> bool {
    let (file, function) = match name.split_once("::") {
        Some((file, function)) => (file, Some(function)),
        None => (name, None),
    };
    let Ok(text) = fs::read_to_string(top().join(file)) else { return false };
    match function {
        None => file.starts_with("tests/"),
        Some(function) => text.contains(&format!("fn {function}(")),
    }
}

#[test]
fn requirements() {
    let list: Requirements = toml::from_str(&read("docs/requirements.toml")).expect("docs/requirements.toml");
    let expected: Vec<(String, &str)> = ROWS
        .iter()
        .flat_map(|(p, source, n)| (1..=*n).map(move |i| (format!("{p}-{i:02}"), *source)))
        .collect();
    let found: Vec<(String, &str)> =
        list.requirement.iter().map(|r| (r.id.clone(), r.source.as_str())).collect();
    assert_eq!(found, expected, "rows are missing, there twice, or out of order");
    let mut wrong = Vec::new();
    for r in &list.requirement {
        let states: Vec<State> = [r.host, r.nucleus, r.simulation].into_iter().flatten().collect();
        if r.title.is_empty() || states.is_empty() {
            wrong.push(format!("{} has no title or no state", r.id));
        }
        if !r.issues.is_sorted() || r.issues.contains(&0) {
            wrong.push(format!("{}: its issues are numbers in order", r.id));
        }
        if states.iter().all(|s| *s == State::Open) != r.shown_by.is_empty() {
            wrong.push(format!("{}: a row that is not open names what shows it, and only such a row", r.id));
        }
        if states.contains(&State::Partial) && r.note.is_none() {
            wrong.push(format!("{}: a row that is partial says in its note what is missing", r.id));
        }
        for test in r.shown_by.iter().filter(|t| !test_exists(t)) {
            wrong.push(format!("{}: there is no test {test}", r.id));
        }
    }
    assert!(wrong.is_empty(), "docs/requirements.toml:\n{}", wrong.join("\n"));
}

/// Every `Cargo.toml` of the workspace.
fn manifests() -> Vec<(String, toml::Table)> {
    let root: toml::Table = toml::from_str(&read("Cargo.toml")).expect("Cargo.toml");
    let members = root["workspace"]["members"].as_array().expect("a list of members").clone();
    let mut list = vec![("Cargo.toml".to_string(), root)];
    for m in members {
        let path = format!("{}/Cargo.toml", m.as_str().expect("a path"));
        let text = read(&path);
        list.push((path, toml::from_str(&text).expect("a manifest")));
    }
    list
}

/// Names of what a manifest depends on, wherever in it that stands, but for the workspace's own crates.
fn dependencies_of(table: &toml::Table, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let toml::Value::Table(inner) = value else { continue };
        if matches!(key.as_str(), "dependencies" | "dev-dependencies" | "build-dependencies") {
            for (name, how) in inner {
                let package = how.get("package").and_then(|p| p.as_str()).unwrap_or(name);
                if how.get("path").is_none() && !package.starts_with("atoll-") {
                    found.insert(package.to_string());
                }
            }
        } else {
            dependencies_of(inner, found);
        }
    }
}

#[test]
fn dependencies() {
    let mut found = BTreeSet::new();
    for (_, manifest) in manifests() {
        dependencies_of(&manifest, &mut found);
    }
    let text = read("docs/dependencies.md");
    let named: BTreeSet<String> = text
        .lines()
        .filter_map(|l| l.strip_prefix("| `"))
        .filter_map(|l| l.split('`').next())
        .map(str::to_string)
        .collect();
    let missing: Vec<_> = found.difference(&named).collect();
    let gone: Vec<_> = named.difference(&found).collect();
    assert!(missing.is_empty(), "docs/dependencies.md has no row for {missing:?}");
    assert!(gone.is_empty(), "docs/dependencies.md has rows for what nobody depends on: {gone:?}");
}

/// The documents: those beside this project's manifest, and docs/.
fn documents() -> Vec<String> {
    let mut list = Vec::new();
    for dir in ["", "docs"] {
        for entry in fs::read_dir(top().join(dir)).expect("a directory").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                list.push(if dir.is_empty() { name } else { format!("{dir}/{name}") });
            }
        }
    }
    list.sort();
    list
}

/// The text without its fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// The name that a heading can be linked to by.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    prose(text).lines().filter(|l| l.starts_with('#')).map(|l| anchor(l.trim_start_matches('#'))).collect()
}

/// Targets of the links in a text.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices("](") {
        if let Some(end) = text[at + 2..].find(')') {
            found.push(text[at + 2..at + 2 + end].to_string());
        }
    }
    found
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for name in documents() {
        let text = read(&name);
        let dir = Path::new(&name).parent().unwrap_or(Path::new("")).to_path_buf();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, part) = link.split_once('#').map_or((link.as_str(), None), |(p, a)| (p, Some(a)));
            let target = if path.is_empty() { PathBuf::from(&name) } else { dir.join(path) };
            if !top().join(&target).exists() {
                wrong.push(format!("{name}: {link}"));
            } else if let Some(part) = part
                && !anchors(&read(&target)).contains(part)
            {
                wrong.push(format!("{name}: {link} (no such heading)"));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

/// Words in backticks that look like paths of this tree: their first part is one of its directories.
fn paths(text: &str) -> Vec<String> {
    let rooms: BTreeSet<String> = fs::read_dir(top())
        .expect("the project's directory")
        .flatten()
        .filter(|e| e.path().is_dir())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|n| !n.starts_with('.') && n != "target")
        .collect();
    prose(text)
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|w| w.chars().all(|c| c.is_ascii_alphanumeric() || "/._-:".contains(c)))
        .filter(|w| w.split_once('/').is_some_and(|(first, _)| rooms.contains(first)))
        .map(|w| w.split("::").next().unwrap_or(w).to_string())
        .collect()
}

#[test]
fn paths_exist() {
    let mut wrong = Vec::new();
    for name in documents() {
        for path in paths(&read(&name)) {
            if !top().join(&path).exists() {
                wrong.push(format!("{name}: {path}"));
            }
        }
    }
    assert!(wrong.is_empty(), "paths that don't exist:\n{}", wrong.join("\n"));
}

/// Rows of the specification's tables whose first cell is a name in backticks: name and second cell.
fn specified() -> Vec<(String, String)> {
    read("docs/specification.md")
        .lines()
        .filter_map(|l| l.strip_prefix("| `"))
        .filter_map(|l| l.split_once("` | "))
        .map(|(name, rest)| (name.to_string(), rest.split('|').next().unwrap_or("").trim().replace('`', "")))
        .collect()
}

#[test]
fn addresses_and_limits() {
    use atoll_abi::{control, frame, layout, service, start};
    let addresses = [
        ("USER_MIN", layout::USER_MIN),
        ("RUNTIME_BASE", layout::RUNTIME_BASE),
        ("IMAGE_MAX", layout::IMAGE_MAX),
        ("VDSO_AREA", layout::VDSO_AREA),
        ("VDSO_AREA_SIZE", layout::VDSO_AREA_SIZE),
        ("EXEMPT_END", layout::EXEMPT_END),
        ("HOST_THREADS", layout::HOST_THREADS),
        ("HOST_THREAD_SIZE", layout::HOST_THREAD_SIZE),
        ("START", start::START),
        ("CONTROL", layout::CONTROL),
        ("DIRECT_MAP", layout::DIRECT_MAP),
        ("RUNTIME_END", layout::RUNTIME_END),
        ("USER_MAX", layout::USER_MAX),
        ("PAGE", layout::PAGE),
        ("BLOCK", layout::BLOCK),
        ("MAX_CORES", layout::MAX_CORES as u64),
        ("MAX_SPACES", layout::MAX_SPACES as u64),
        ("BOOT_MAX", control::BOOT_MAX as u64),
        ("FILTER_MAX", start::FILTER_MAX as u64),
        ("RING", service::RING as u64),
        ("XSAVE_MAX", frame::XSAVE_MAX as u64),
        ("TRAMPOLINE_RETURN", layout::TRAMPOLINE_RETURN),
    ];
    let rows = specified();
    for (name, value) in addresses {
        let Some((_, said)) = rows.iter().find(|(n, _)| n == name) else {
            panic!("docs/specification.md does not say {name}")
        };
        let digits = said.replace('_', "");
        let said = digits.strip_prefix("0x").map_or(digits.parse(), |hex| u64::from_str_radix(hex, 16));
        assert_eq!(said, Ok(value), "docs/specification.md says another {name}: {value:#x}");
    }
}

#[test]
fn version() {
    let says = format!("Version: `ABI_VERSION` {}.", atoll_abi::control::ABI_VERSION);
    assert!(read("docs/specification.md").contains(&says), "docs/specification.md does not say {says}");
}

#[test]
fn service_operations() {
    let said: Vec<String> = read("docs/specification.md")
        .lines()
        .filter_map(|l| l.strip_prefix("| "))
        .filter(|l| l.starts_with(|c: char| c.is_ascii_digit()))
        .map(|l| l.split('|').take(2).map(str::trim).collect::<Vec<_>>().join(" "))
        .collect();
    let ops: Vec<String> =
        atoll_abi::service::Op::ALL.iter().map(|op| format!("{} `{op:?}`", *op as u32)).collect();
    assert_eq!(said, ops);
}
