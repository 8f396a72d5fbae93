//! The memory policy: how memory is brought in for which programs and mappings, as a TOML file says it.
//!
//! `docs/memory.md` describes the file.

use std::path::Path;

use atoll_abi::control::{MappingKind, MappingPolicy, MemoryPolicy, Paging, ProgramPolicy};
use atoll_supervisor::Result;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::toml_file::{self, Read, integer, known, list, one_of, size, string, table, wrong};

/// Longest file, bytes.
const FILE_MAX: u64 = 256 << 10;
/// Programs that a file can name, and mappings of each.
const PROGRAMS_MAX: usize = 64;
const MAPPINGS_MAX: usize = 32;
/// Colours that frames can be told apart by.
const COLOURS_MAX: i64 = u64::BITS as i64;
/// Longest pattern of a path, bytes.
const PATTERN_MAX: usize = 255;

const PAGING: [(&str, Paging); 4] = [
    ("usual", Paging::Usual),
    ("demand", Paging::Demand),
    ("huge", Paging::Huge),
    ("populate", Paging::Populate),
];
const KINDS: [(&str, MappingKind); 4] = [
    ("anonymous", MappingKind::Anonymous),
    ("heap", MappingKind::Heap),
    ("stack", MappingKind::Stack),
    ("file", MappingKind::File),
];

fn paging(t: &DeTable<'_>) -> Read<Option<Paging>> {
    t.get("paging").map(|v| one_of(v, "paging", &PAGING)).transpose()
}

fn pattern(v: &Spanned<DeValue<'_>>) -> Read<String> {
    let path = string(v, "path")?;
    if path.is_empty() || path.len() > PATTERN_MAX || path.chars().any(char::is_control) {
        let what = format!("a path has 1 to {PATTERN_MAX} bytes, none of them control characters");
        return wrong(&v.span(), what);
    }
    Ok(path.into())
}

fn mapping(v: &Spanned<DeValue<'_>>) -> Read<MappingPolicy> {
    let t = table(v, "mapping")?;
    known(t, "a mapping", &["kind", "least", "most", "path", "paging", "colours"])?;
    let Some(kind) = t.get("kind") else {
        return wrong(&v.span(), "this mapping has no `kind`: anonymous, heap, stack or file");
    };
    let kind = one_of(kind, "kind", &KINDS)?;
    let (paging, colours) = (paging(t)?, t.get("colours").map(colours).transpose()?);
    if paging.is_none() && colours.is_none() {
        return wrong(&v.span(), "this mapping has neither `paging` nor `colours`");
    }
    if let Some(v) = t.get("colours").filter(|_| kind != MappingKind::Anonymous) {
        return wrong(&v.span(), "`colours` are for anonymous mappings");
    }
    let grows = matches!(kind, MappingKind::Heap | MappingKind::Stack);
    for key in ["least", "most"] {
        if let Some(v) = t.get(key).filter(|_| grows) {
            return wrong(&v.span(), format!("`{key}` is for anonymous mappings and files: the others grow"));
        }
    }
    if let Some(v) = t.get("path").filter(|_| kind != MappingKind::File) {
        return wrong(&v.span(), "`path` is for mappings of files");
    }
    if kind == MappingKind::File && !matches!(paging, Some(Paging::Usual | Paging::Populate)) {
        let at = t.get("paging").map_or(v.span(), Spanned::span);
        return wrong(&at, "files come by 64 KiB and more in any case: `paging` is usual or populate");
    }
    let of = |key: &str, without| t.get(key).map_or(Ok(without), |v| size(v, key));
    let (least, most) = (of("least", 0)?, of("most", u64::MAX)?);
    if least > most {
        let at = t.get("least").map_or(v.span(), Spanned::span);
        return wrong(&at, "`least` is more than `most`");
    }
    let path = t.get("path").map(pattern).transpose()?;
    Ok(MappingPolicy { kind, least, most, path, paging, colours })
}

/// `{ of = COUNT, wanted = [COLOUR, ...] }`: the count, and a bit for each that is wanted.
fn colours(v: &Spanned<DeValue<'_>>) -> Read<(u32, u64)> {
    let t = table(v, "colours")?;
    known(t, "colours", &["of", "wanted"])?;
    let (Some(of), Some(wanted)) = (t.get("of"), t.get("wanted")) else {
        return wrong(&v.span(), "colours are a count and some of these: { of = 16, wanted = [0, 1, 2, 3] }");
    };
    let of = integer(of, "of", 1, COLOURS_MAX)?;
    let all = list(wanted, "wanted")?;
    if all.is_empty() {
        return wrong(&wanted.span(), "`wanted` names no colour");
    }
    let mut bits = 0;
    for one in all {
        bits |= 1 << integer(one, "a colour", 0, of - 1)?;
    }
    Ok((of as u32, bits))
}

fn program(v: &Spanned<DeValue<'_>>) -> Read<ProgramPolicy> {
    let t = table(v, "program")?;
    known(t, "a program", &["path", "paging", "mapping"])?;
    let Some(path) = t.get("path") else { return wrong(&v.span(), "this program has no `path`") };
    let path = pattern(path)?;
    let mappings = match t.get("mapping") {
        Some(m) => list(m, "mapping")?,
        None => &[],
    };
    if mappings.len() > MAPPINGS_MAX {
        return wrong(&v.span(), format!("{MAPPINGS_MAX} mappings of a program are the most"));
    }
    let mappings = mappings.iter().map(mapping).collect::<Read<Vec<_>>>()?;
    let paging = paging(t)?;
    Ok(ProgramPolicy { path, paging, mappings })
}

fn read(text: &str) -> Read<MemoryPolicy> {
    let document = toml_file::document(text)?;
    let top = document.get_ref();
    known(top, "the file", &["program"])?;
    let programs = match top.get("program") {
        Some(v) => list(v, "program")?,
        None => &[],
    };
    if let Some(v) = programs.get(PROGRAMS_MAX) {
        return wrong(&v.span(), format!("{PROGRAMS_MAX} programs are the most"));
    }
    Ok(MemoryPolicy { programs: programs.iter().map(program).collect::<Read<_>>()? })
}

fn parse(text: &str) -> std::result::Result<MemoryPolicy, String> {
    read(text).map_err(|wrong| wrong.said_of(text))
}

/// Reads a file.
pub fn load(path: &Path) -> Result<MemoryPolicy> {
    toml_file::load(path, "memory policy", FILE_MAX, parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// XOS-03: everything that a file can say.
    #[test]
    fn reads_what_is_right() {
        let text = r#"
[[program]]
path = "/usr/bin/redis-*"
paging = "huge"
mapping = [{ kind = "heap", paging = "demand" }, { kind = "file", path = "*.rdb", most = "1GiB", paging = "populate" }]
[[program]]
path = "job-?"
[[program.mapping]]
kind = "anonymous"
least = "64MiB"
paging = "usual"
[[program.mapping]]
kind = "stack"
paging = "populate"
[[program.mapping]]
kind = "anonymous"
colours = { of = 16, wanted = [0, 3, 15, 3] }
"#;
        let policy = parse(text).unwrap();
        let [redis, job] = &policy.programs[..] else { panic!("{policy:?}") };
        assert_eq!((&redis.path[..], redis.paging), ("/usr/bin/redis-*", Some(Paging::Huge)));
        assert_eq!((&job.path[..], job.paging), ("job-?", None));
        let of = |kind, least, most, path: Option<&str>, paging| MappingPolicy {
            kind,
            least,
            most,
            path: path.map(String::from),
            paging: Some(paging),
            colours: None,
        };
        let coloured = MappingPolicy {
            paging: None,
            colours: Some((16, 0x8009)),
            ..of(MappingKind::Anonymous, 0, u64::MAX, None, Paging::Usual)
        };
        assert_eq!(
            redis.mappings,
            [
                of(MappingKind::Heap, 0, u64::MAX, None, Paging::Demand),
                of(MappingKind::File, 0, 1 << 30, Some("*.rdb"), Paging::Populate)
            ]
        );
        assert_eq!(
            job.mappings,
            [
                of(MappingKind::Anonymous, 64 << 20, u64::MAX, None, Paging::Usual),
                of(MappingKind::Stack, 0, u64::MAX, None, Paging::Populate),
                coloured
            ]
        );
        assert_eq!(parse("").unwrap(), MemoryPolicy::default());
    }

    /// XOS-03: what is wrong is said, with its place.
    #[test]
    fn says_what_is_wrong() {
        let many = "[[program]]\npath = \"a\"\n".repeat(PROGRAMS_MAX + 1);
        let last = format!("line {}, column 1: 64 programs are the most", 2 * PROGRAMS_MAX + 1);
        let mapping = |what: &str| format!("[[program]]\npath = \"a\"\nmapping = [{{ {what} }}]\n");
        for (text, expected) in [
            (
                "[[programs]]\n".to_string(),
                "line 1, column 3: `programs` is no key of the file: did you mean `program`?",
            ),
            ("program = 3".into(), "line 1, column 11: `program` is a list, not this integer"),
            ("[[program]]\npaging = \"huge\"".into(), "line 1, column 1: this program has no `path`"),
            (
                "[[program]]\npath = \"\"".into(),
                "line 2, column 8: a path has 1 to 255 bytes, none of them control characters",
            ),
            (
                "[[program]]\npath = \"a\"\npaging = \"hug\"".into(),
                "line 3, column 10: `hug` is no paging: did you mean `huge`?",
            ),
            (mapping(""), "line 3, column 12: this mapping has no `kind`: anonymous, heap, stack or file"),
            (
                mapping("kind = \"heap\""),
                "line 3, column 12: this mapping has neither `paging` nor `colours`",
            ),
            (
                mapping("kind = \"heap\", least = 1, paging = \"huge\""),
                "line 3, column 37: `least` is for anonymous mappings and files: the others grow",
            ),
            (
                mapping("kind = \"stack\", path = \"b\", paging = \"huge\""),
                "line 3, column 37: `path` is for mappings of files",
            ),
            (
                mapping("kind = \"file\", paging = \"huge\""),
                "line 3, column 38: files come by 64 KiB and more in any case: `paging` is usual or populate",
            ),
            (
                mapping("kind = \"anonymous\", least = 2, most = 1, paging = \"huge\""),
                "line 3, column 42: `least` is more than `most`",
            ),
            (
                mapping("kind = \"anonymous\", least = \"much\", paging = \"huge\""),
                "line 3, column 42: `least` is bytes of memory: write \"256MiB\" (KiB, MiB, GiB, TiB are powers of 1024, kB, MB, GB, TB of 1000)",
            ),
            (
                mapping("kind = \"heap\", colours = { of = 4, wanted = [1] }"),
                "line 3, column 39: `colours` are for anonymous mappings",
            ),
            (
                mapping("kind = \"anonymous\", colours = { of = 4 }"),
                "line 3, column 44: colours are a count and some of these: { of = 16, wanted = [0, 1, 2, 3] }",
            ),
            (
                mapping("kind = \"anonymous\", colours = { of = 65, wanted = [1] }"),
                "line 3, column 51: `of` is a whole number from 1 to 64",
            ),
            (
                mapping("kind = \"anonymous\", colours = { of = 4, wanted = [1, 4] }"),
                "line 3, column 67: `a colour` is a whole number from 0 to 3",
            ),
            (
                mapping("kind = \"anonymous\", colours = { of = 4, wanted = [] }"),
                "line 3, column 63: `wanted` names no colour",
            ),
            (many, &last),
        ] {
            assert_eq!(parse(&text).unwrap_err(), expected, "{text}");
        }
    }

    /// Bytes of a file changed, dropped, doubled: it is read or refused.
    #[test]
    fn takes_any_text() {
        let text = "[[program]]\npath = \"a*\"\npaging = \"huge\"\nmapping = [{ kind = \"heap\", paging = \"demand\" }]\n";
        for at in 0..text.len() {
            let (before, behind) = text.split_at(at);
            for put in ["", "\"", "[", "}", "é", "\n", "9", "="] {
                let _ = parse(&format!("{before}{put}{behind}"));
                let _ = parse(&format!("{before}{put}{}", &behind[1..]));
            }
        }
    }
}
