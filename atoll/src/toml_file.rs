//! TOML files with words for everything that is wrong, and where.

use std::ops::Range;
use std::path::Path;

use atoll_supervisor::{Error, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong, and where in the text.
#[derive(Debug)]
pub struct Wrong {
    pub at: Range<usize>,
    pub what: String,
}

pub type Read<T> = std::result::Result<T, Wrong>;

pub fn wrong<T>(at: &Range<usize>, what: impl Into<String>) -> Read<T> {
    Err(Wrong { at: at.clone(), what: what.into() })
}

/// How many letters must change to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let least = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], least);
        }
    }
    row[b.len()]
}

/// What was meant, or all that could be.
pub fn suggestion<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    // Long words can't be near.
    let near = known.clone().filter(|_| word.len() < 64).map(|k| (distance(word, k), k)).min();
    match near {
        Some((d, k)) if d <= 2.max(k.len() / 3) => format!("did you mean `{k}`?"),
        _ => format!("it is one of {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// A word of the file, short enough for a message.
pub fn quoted(word: &str) -> String {
    let short: String = word.chars().take(48).map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("`{short}`")
}

/// Only known keys stand in a table.
pub fn known(table: &DeTable<'_>, of: &str, keys: &[&str]) -> Read<()> {
    for key in table.keys() {
        let name = key.get_ref().as_ref();
        if !keys.contains(&name) {
            let meant = suggestion(name, keys.iter().copied());
            return wrong(&key.span(), format!("{} is no key of {of}: {meant}", quoted(name)));
        }
    }
    Ok(())
}

pub fn string<'a>(value: &'a Spanned<DeValue<'_>>, key: &str) -> Read<&'a str> {
    match value.get_ref().as_str() {
        Some(s) => Ok(s),
        None => wrong(&value.span(), format!("`{key}` is a string, not this {}", value.get_ref().type_str())),
    }
}

pub fn table<'a, 'i>(value: &'a Spanned<DeValue<'i>>, key: &str) -> Read<&'a DeTable<'i>> {
    match value.get_ref().as_table() {
        Some(t) => Ok(t),
        None => wrong(&value.span(), format!("`{key}` is a table, not this {}", value.get_ref().type_str())),
    }
}

pub fn list<'a, 'i>(value: &'a Spanned<DeValue<'i>>, key: &str) -> Read<&'a [Spanned<DeValue<'i>>]> {
    match value.get_ref().as_array() {
        Some(a) => Ok(a),
        None => wrong(&value.span(), format!("`{key}` is a list, not this {}", value.get_ref().type_str())),
    }
}

pub fn number(value: &Spanned<DeValue<'_>>) -> Option<i64> {
    let number = value.get_ref().as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

pub fn integer(value: &Spanned<DeValue<'_>>, key: &str, least: i64, most: i64) -> Read<i64> {
    match number(value) {
        Some(n) if (least..=most).contains(&n) => Ok(n),
        _ => wrong(&value.span(), format!("`{key}` is a whole number from {least} to {most}")),
    }
}

pub fn one_of<T: Copy>(value: &Spanned<DeValue<'_>>, key: &str, names: &[(&str, T)]) -> Read<T> {
    let word = string(value, key)?;
    match names.iter().find(|(n, _)| *n == word) {
        Some((_, one)) => Ok(*one),
        None => {
            let meant = suggestion(word, names.iter().map(|(n, _)| *n));
            wrong(&value.span(), format!("{} is no {key}: {meant}", quoted(word)))
        }
    }
}

/// A number without sign, in front, and what is behind it.
pub fn amount(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    value.is_finite().then(|| (value, text[end..].trim_start()))
}

/// Rounds to a number of at least 1.
pub fn whole(value: f64) -> Option<u64> {
    let value = value.round();
    (value >= 1.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// So many bytes.
pub fn bytes(text: &str) -> Option<u64> {
    let (value, unit) = amount(text)?;
    let unit = BYTES.iter().find(|(name, _)| *name == unit)?.1;
    whole(value * unit as f64)
}

/// Memory.
pub fn size(value: &Spanned<DeValue<'_>>, key: &str) -> Read<u64> {
    let plain = number(value).and_then(|n| u64::try_from(n).ok());
    match plain.or_else(|| value.get_ref().as_str().and_then(bytes)) {
        Some(n) if n > 0 => Ok(n),
        _ => wrong(
            &value.span(),
            format!(
                "`{key}` is bytes of memory: write \"256MiB\" (KiB, MiB, GiB, TiB are powers of 1024, kB, MB, GB, TB of 1000)"
            ),
        ),
    }
}

/// Units of bytes; those that a file is written back with first, the largest before.
pub const BYTES: [(&str, u64); 9] = [
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

impl Wrong {
    /// It, behind `line L, column C`.
    pub fn said_of(self, text: &str) -> String {
        let mut start = self.at.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column}: {}", self.what)
    }
}

/// The tables and keys of a text.
pub fn document(text: &str) -> Read<Spanned<DeTable<'_>>> {
    DeTable::parse(text)
        .map_err(|e| Wrong { at: e.span().unwrap_or(0..0), what: e.message().replace('\n', ", ") })
}

/// Reads a file of at most `most` bytes.
pub fn load<T>(
    path: &Path,
    what: &str,
    most: u64,
    parse: impl FnOnce(&str) -> std::result::Result<T, String>,
) -> Result<T> {
    let name = path.display();
    let failed = |e| Error::with(format!("reading the {what}, {name}"), e);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, most + 1), &mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(Error::new(format!("{name}: a {what} has at most {most} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|e| Error::with(name.to_string(), e))?;
    parse(&text).map_err(|e| Error::new(format!("{name}, {e}")))
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn near_words() {
        assert_eq!(
            [distance("", "abc"), distance("abc", ""), distance("kitten", "sitting"), distance("é", "e")],
            [3, 3, 3, 1]
        );
    }
}
