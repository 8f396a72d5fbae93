//! What a loader says by Multiboot2 (the specification, version 2.0, section 3.6): a list of tags. By hand, because
//! the `multiboot2` crate panics on tags that are not as they should be.

use crate::{u32_at, u64_at};

/// What `eax` holds when a kernel is entered so.
pub const MAGIC: u32 = 0x36d7_6289;
/// Bytes of the list's head, and of a tag's.
const HEAD: usize = 8;
/// Bytes of a range of memory, at least.
const RANGE: usize = 24;

/// What a tag says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag<'a> {
    /// The command line, up to its end.
    CommandLine(&'a [u8]),
    /// A file in memory.
    Module {
        /// Physical address of the first byte.
        start: u32,
        /// And behind the last.
        end: u32,
    },
    /// The ranges of physical memory.
    Memory(Memory<'a>),
    /// A copy of ACPI's root pointer.
    RootPointer {
        /// Where in the list it is, bytes.
        at: usize,
        /// It is the one of ACPI 2 and later.
        new: bool,
    },
    /// Another one, by its number.
    Other(u32),
}

/// Ranges of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory<'a> {
    ranges: &'a [u8],
    size: usize,
}

impl Memory<'_> {
    /// Their first byte, their length in bytes, and their kind as E820 has it.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        let numbers = |r: &[u8]| Some((u64_at(r, 0)?, u64_at(r, 8)?, u32_at(r, 16)?));
        self.ranges.chunks_exact(self.size).filter_map(numbers)
    }
}

/// How long the list is that begins so, bytes.
pub fn length(head: &[u8]) -> Option<usize> {
    usize::try_from(u32_at(head, 0)?).ok()
}

/// The tags of a list, up to the one that ends it, or to an error: the list is cut off, or a tag is.
pub fn tags(list: &[u8]) -> impl Iterator<Item = Result<Tag<'_>, &'static str>> {
    let mut at = HEAD;
    core::iter::from_fn(move || {
        let here = at;
        let tag = read(list, here);
        at = match tag {
            Some((_, next)) => next,
            None => usize::MAX,
        };
        match tag {
            Some((Some(tag), _)) => Some(Ok(tag)),
            Some((None, _)) => None,
            // Once.
            None => {
                (here != usize::MAX).then_some(Err("the loader's list of tags is cut off, or one of them is"))
            }
        }
    })
}

/// The tag at `at`, and where the next one is. No tag: this is the end.
fn read(list: &[u8], at: usize) -> Option<(Option<Tag<'_>>, usize)> {
    let (kind, size) = (u32_at(list, at)?, u32_at(list, at.checked_add(4)?)? as usize);
    let end = at.checked_add(size)?;
    let body = list.get(at.checked_add(HEAD)?..end)?;
    let tag = match kind {
        0 => return Some((None, usize::MAX)),
        1 => Tag::CommandLine(body.split(|b| *b == 0).next().unwrap_or_default()),
        3 => Tag::Module { start: u32_at(body, 0)?, end: u32_at(body, 4)? },
        6 => {
            let size = u32_at(body, 0)? as usize;
            (size >= RANGE).then_some(())?;
            Tag::Memory(Memory { ranges: body.get(8..)?, size })
        }
        14 | 15 => Tag::RootPointer { at: at + HEAD, new: kind == 15 },
        other => Tag::Other(other),
    };
    Some((Some(tag), end.checked_next_multiple_of(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(tags: &[(u32, &[u8])]) -> Vec<u8> {
        let mut list = vec![0; HEAD];
        for (kind, body) in tags {
            list.extend(kind.to_le_bytes());
            list.extend((body.len() as u32 + 8).to_le_bytes());
            list.extend(*body);
            list.resize(list.len().next_multiple_of(8), 0);
        }
        let len = list.len() as u32;
        list[..4].copy_from_slice(&len.to_le_bytes());
        list
    }

    fn numbers(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn reads_what_a_loader_says() {
        let map = numbers(&[24, 0, 0x9_fc00, 1, 0x10_0000, 0x700_0000, 1, 0x700_0000, 0x1000, 3]);
        let module = [&numbers(&[0x30_0000 | 0x31_0001 << 32])[..], b"x\0"].concat();
        let list =
            list(&[(1, b"exit=f4 a\0"), (3, &module), (9, b"?"), (6, &map), (14, b"RSD PTR "), (0, b"")]);
        assert_eq!(length(&list), Some(list.len()));
        let tags: Vec<_> = tags(&list).map(Result::unwrap).collect();
        assert_eq!(tags[0], Tag::CommandLine(b"exit=f4 a"));
        assert_eq!(tags[1], Tag::Module { start: 0x30_0000, end: 0x31_0001 });
        assert_eq!(tags[2], Tag::Other(9));
        let Tag::Memory(memory) = tags[3] else { panic!("{:?}", tags[3]) };
        assert_eq!(
            memory.ranges().collect::<Vec<_>>(),
            [(0, 0x9_fc00, 1), (0x10_0000, 0x700_0000, 1), (0x700_0000, 0x1000, 3)]
        );
        let Tag::RootPointer { at, new: false } = tags[4] else { panic!("{:?}", tags[4]) };
        assert_eq!(&list[at..at + 8], b"RSD PTR ");
        assert_eq!(tags.len(), 5);
    }

    #[test]
    fn says_that_something_is_cut_off() {
        let whole = list(&[(1, b"a\0"), (6, &numbers(&[24, 0, 1, 1])), (0, b"")]);
        for len in 0..whole.len() {
            let tags: Vec<_> = tags(&whole[..len]).collect();
            assert!(tags.last().is_some_and(|t| t.is_err()), "{len}: {tags:?}");
        }
        // A tag shorter than its head, ranges without a length, a module without an end.
        for bad in [numbers(&[16, 1 | 7 << 32]), list(&[(6, &numbers(&[0, 0]))]), list(&[(3, b"abcd")])] {
            assert!(tags(&bad).any(|t| t.is_err()), "{bad:?}");
        }
    }

    proptest! {
        /// Whatever it is given, it comes to an end.
        #[test]
        fn takes_any_bytes(words in prop::collection::vec(prop_oneof![0u32..40, any::<u32>()], 0..64)) {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let _ = length(&bytes);
            for tag in tags(&bytes).flatten() {
                match tag {
                    Tag::Memory(memory) => prop_assert!(memory.ranges().count() * RANGE <= bytes.len()),
                    Tag::CommandLine(line) => prop_assert!(line.len() < bytes.len()),
                    Tag::RootPointer { at, .. } => prop_assert!(at <= bytes.len()),
                    _ => {}
                }
            }
        }
    }
}
