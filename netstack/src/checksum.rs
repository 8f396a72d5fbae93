//! The internet's checksum (RFC 1071). Sums are of words as they lie in memory: their order makes no difference but
//! to where the result's bytes belong, and there they lie, too.

/// Adds bytes to a sum. Those that went before it were even in number.
pub(crate) fn add(mut sum: u64, bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        sum = add_words(sum, block);
    }
    add_few(sum, rest)
}

/// As [`add`], for less than 64 bytes, or for a number that is known when this is compiled.
#[inline(always)]
pub(crate) fn add_few(mut sum: u64, mut rest: &[u8]) -> u64 {
    if let Some((words, after)) = rest.split_first_chunk::<32>() {
        (sum, rest) = (add_words(sum, words), after);
    }
    if let Some((words, after)) = rest.split_first_chunk::<16>() {
        (sum, rest) = (add_words(sum, words), after);
    }
    if let Some((word, after)) = rest.split_first_chunk::<8>() {
        (sum, rest) = (join(sum, u64::from_ne_bytes(*word)), after);
    }
    if let Some((word, after)) = rest.split_first_chunk::<4>() {
        (sum, rest) = (join(sum, u32::from_ne_bytes(*word).into()), after);
    }
    if let Some((word, after)) = rest.split_first_chunk::<2>() {
        (sum, rest) = (join(sum, u16::from_ne_bytes(*word).into()), after);
    }
    if let [last] = rest {
        sum = join(sum, u16::from_ne_bytes([*last, 0]).into());
    }
    sum
}

/// Adds words of 64 bits. What one carries goes into the next one's addition, which is one instruction.
#[inline(always)]
fn add_words<const BYTES: usize>(mut sum: u64, words: &[u8; BYTES]) -> u64 {
    let mut carry = false;
    for word in words.as_chunks::<8>().0 {
        (sum, carry) = sum.carrying_add(u64::from_ne_bytes(*word), carry);
    }
    join(sum, carry.into())
}

/// Adds a word, and what is carried.
#[inline(always)]
pub(crate) fn join(sum: u64, word: u64) -> u64 {
    let (sum, carry) = sum.overflowing_add(word);
    sum + u64::from(carry)
}

/// What precedes a TCP segment of `len` bytes in its sum, but for the addresses.
#[inline]
pub(crate) fn pseudo_tcp(len: usize) -> u64 {
    u64::from(u16::from_ne_bytes([0, 6])) + u64::from((len as u16).to_be())
}

/// What a sum is in 16 bits.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Is this the sum of what has its right checksum in it?
#[inline]
pub(crate) fn is_right(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// The checksum, as its bytes lie in memory, of what has zeroes in its place.
#[inline]
pub(crate) fn of(sum: u64) -> [u8; 2] {
    (!fold(sum)).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::checksum;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn sums_are_smoltcp_s(bytes in prop::collection::vec(any::<u8>(), 0..200), head in 0..20usize) {
            let head = (head * 2).min(bytes.len() & !1);
            let (first, second) = bytes.split_at(head);
            let sum = super::add(super::add(0, first), second);
            // Zero has two forms, and only nothing has the first one.
            let theirs = checksum::data(&bytes);
            prop_assert_eq!(super::of(sum), (!theirs).to_be_bytes());
            let mut whole: Vec<u8> = bytes.clone();
            whole.resize(bytes.len().next_multiple_of(2), 0);
            whole.extend(super::of(sum));
            prop_assert!(super::is_right(super::add(0, &whole)));
            whole[0] ^= 1;
            prop_assert!(!super::is_right(super::add(0, &whole)));
            let few = &bytes[..bytes.len().min(63)];
            prop_assert_eq!(super::add_few(1, few), super::add(1, few));
        }
    }

    #[test]
    fn carries() {
        for n in 0..100 {
            let ones = std::vec![0xff; n];
            assert_eq!(super::of(super::add(0, &ones)), (!checksum::data(&ones)).to_be_bytes(), "{n}");
        }
        assert!(super::is_right(super::add(u64::MAX, &[0; 32])));
    }
}
