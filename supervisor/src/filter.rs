//! System-call filters: classic BPF programs for seccomp(2).
//!
//! The numbers of the calls are a tree of comparisons, where the common compilers write a list of them: the host runs a filter for every
//! number there is when it is installed (to know which calls it lets through whatever their arguments), and then for each call that depends on them.
//! For the list of the crate `seccompiler`, 448 instructions, that takes the host 270 us in every start of a cell, for this 100.

use std::collections::BTreeMap;

use libc::sock_filter;

use crate::confine::Only;
use crate::{Error, Result};

/// A filter.
pub type Program = Vec<sock_filter>;

// Opcodes (linux/bpf_common.h), answers (seccomp(2)), and where the numbers lie in struct seccomp_data.
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const HAS_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

fn instruction(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// A comparison of what was loaded last, and how many instructions are left out if it holds, and if not.
fn jump(code: u16, k: u32, holds: usize, fails: usize) -> Result<sock_filter> {
    let near =
        |n: usize| u8::try_from(n).map_err(|_| Error::new("a jump in the system-call filter is too long"));
    Ok(sock_filter { code, jt: near(holds)?, jf: near(fails)?, k })
}

/// Loads the lower half of an argument (from 0): commands, options, descriptors and flags have no more, or the kernel ignores it.
fn argument(n: u8) -> sock_filter {
    instruction(LOAD, 16 + 8 * u32::from(n))
}

/// The filter that lets through calls of these numbers, if one of their conditions holds; anything else fails with EPERM. `memory`: the
/// descriptor that [`Only::NotMemory`] is about.
pub fn compile(calls: impl Iterator<Item = (i64, Only)>, memory: u32) -> Result<Program> {
    let mut leaves: BTreeMap<u32, Program> = BTreeMap::new();
    for (number, only) in calls {
        let number = u32::try_from(number).map_err(|e| Error::with("the number of a system call", e))?;
        leaves.entry(number).or_default().extend(condition(only, memory)?);
    }
    let mut program = vec![
        instruction(LOAD, ARCH),
        jump(EQUAL, AUDIT_ARCH_X86_64, 1, 0)?,
        instruction(ANSWER, KILL),
        instruction(LOAD, NUMBER),
    ];
    let leaves: Vec<(u32, Program)> = leaves.into_iter().collect();
    program.extend(tree(&leaves)?);
    Ok(program)
}

/// Finds the number that was loaded among these.
fn tree(leaves: &[(u32, Program)]) -> Result<Program> {
    let (left, right) = leaves.split_at(leaves.len() / 2);
    let Some((first, condition)) = right.first() else { return Ok(vec![instruction(ANSWER, DENY)]) };
    if left.is_empty() {
        let mut program = vec![jump(EQUAL, *first, 1, 0)?, instruction(ANSWER, DENY)];
        program.extend(condition);
        program.push(instruction(ANSWER, DENY));
        return Ok(program);
    }
    let lower = tree(left)?;
    let mut program = match jump(AT_LEAST, *first, lower.len(), 0) {
        Ok(jump) => vec![jump],
        Err(_) => vec![jump(AT_LEAST, *first, 0, 1)?, instruction(JUMP, lower.len() as u32)],
    };
    program.extend(lower);
    program.extend(tree(right)?);
    Ok(program)
}

/// Lets the call through if this holds, and goes on behind it otherwise.
fn condition(only: Only, memory: u32) -> Result<Program> {
    let allow = instruction(ANSWER, ALLOW);
    let half = |value: u64| {
        u32::try_from(value).map_err(|e| Error::with("a value that the system-call filter compares", e))
    };
    Ok(match only {
        Only::Any => vec![allow],
        Only::Among(n, values) => {
            let mut program = vec![argument(n)];
            for (value, _) in values {
                program.push(jump(EQUAL, half(*value)?, 0, 1)?);
                program.push(allow);
            }
            program
        }
        Only::NotMemory(n) => vec![argument(n), jump(EQUAL, memory, 1, 0)?, allow],
        Only::Without(n, bits, _) => vec![argument(n), jump(HAS_BITS, half(bits)?, 1, 0)?, allow],
        Only::Pairs(pairs) => {
            let mut program = Program::new();
            for of_one in ranges(pairs).chunk_by(|x, y| x.0 == y.0) {
                let mut second = vec![argument(2)];
                for (_, from, to) in of_one {
                    if from == to {
                        second.push(jump(EQUAL, half(*from)?, 0, 1)?);
                    } else {
                        second.push(jump(AT_LEAST, half(*from)?, 0, 2)?);
                        second.push(jump(ABOVE, half(*to)?, 1, 0)?);
                    }
                    second.push(allow);
                }
                program.push(argument(1));
                program.push(jump(EQUAL, half(of_one[0].0)?, 0, second.len())?);
                program.extend(second);
            }
            program
        }
    })
}

/// The same pairs as ranges of the second part: the first part, the lowest and the highest.
fn ranges(pairs: &[(u64, u64, &str)]) -> Vec<(u64, u64, u64)> {
    let mut sorted: Vec<(u64, u64)> = pairs.iter().map(|(a, b, _)| (*a, *b)).collect();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|x, y| x.0 == y.0 && x.1 + 1 == y.1);
    runs.map(|run| (run[0].0, run[0].1, run[run.len() - 1].1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confine::{ALLOWED, Allowed, SOCKET_OPTIONS, STARTING};
    use proptest::prelude::*;
    use seccompiler::{
        SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
        SeccompRule,
    };

    const MEMORY: u32 = 24;

    #[test]
    fn ranges_are_the_pairs() {
        let all: Vec<(u64, u64)> = ranges(SOCKET_OPTIONS)
            .into_iter()
            .flat_map(|(a, from, to)| (from..=to).map(move |b| (a, b)))
            .collect();
        let mut pairs: Vec<(u64, u64)> = SOCKET_OPTIONS.iter().map(|(a, b, _)| (*a, *b)).collect();
        pairs.sort_unstable();
        assert_eq!(all, pairs);
    }

    /// What the host would do: the answer, and how many instructions it takes.
    fn run(program: &[(u16, u8, u8, u32)], arch: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let (mut at, mut a, mut steps) = (0, 0u32, 0);
        loop {
            let (code, jt, jf, k) = program[at];
            (at, steps) = (at + 1, steps + 1);
            let holds = match code {
                LOAD => {
                    a = match k {
                        NUMBER => number,
                        ARCH => arch,
                        k => (arguments[(k as usize - 16) / 8] >> (8 * (k % 8))) as u32,
                    };
                    continue;
                }
                JUMP => {
                    at += k as usize;
                    continue;
                }
                ANSWER => return (k, steps),
                // BPF_ALU | BPF_AND | BPF_K: the other compiler's.
                0x54 => {
                    a &= k;
                    continue;
                }
                EQUAL => a == k,
                AT_LEAST => a >= k,
                ABOVE => a > k,
                HAS_BITS => a & k != 0,
                _ => panic!("{code:#x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    /// The same filter by another compiler.
    fn others(calls: &[Allowed]) -> Vec<(u16, u8, u8, u32)> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        let when = |n, op, value| SeccompCondition::new(n, Len::Dword, op, value).unwrap();
        for call in calls {
            let list = rules.entry(call.number).or_default();
            let mut add = |conditions| list.push(SeccompRule::new(conditions).unwrap());
            match call.only {
                Only::Any => {}
                Only::Among(n, values) => values.iter().for_each(|v| add(vec![when(n, Op::Eq, v.0)])),
                Only::NotMemory(n) => add(vec![when(n, Op::Ne, MEMORY.into())]),
                Only::Without(n, bits, _) => add(vec![when(n, Op::MaskedEq(bits), 0)]),
                Only::Pairs(pairs) => {
                    pairs.iter().for_each(|p| add(vec![when(1, Op::Eq, p.0), when(2, Op::Eq, p.1)]));
                }
            }
        }
        let deny = SeccompAction::Errno(libc::EPERM as u32);
        let filter =
            SeccompFilter::new(rules, deny, SeccompAction::Allow, "x86_64".try_into().unwrap()).unwrap();
        let program: seccompiler::BpfProgram = filter.try_into().unwrap();
        program.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
    }

    fn ours(calls: &[Allowed]) -> Vec<(u16, u8, u8, u32)> {
        let program = compile(calls.iter().map(|c| (c.number, c.only)), MEMORY).unwrap();
        program.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
    }

    fn lists() -> [Vec<Allowed>; 2] {
        [ALLOWED.to_vec(), ALLOWED.iter().chain(STARTING).copied().collect()]
    }

    /// Arguments that the lists speak of, and their neighbours.
    fn argument() -> impl Strategy<Value = u64> {
        let named: Vec<u64> = lists()[1]
            .iter()
            .flat_map(|c| match c.only {
                Only::Among(_, values) => values.iter().map(|v| v.0).collect(),
                Only::Pairs(pairs) => pairs.iter().flat_map(|p| [p.0, p.1]).collect(),
                Only::Without(_, bits, _) => vec![bits, !bits],
                Only::NotMemory(_) => vec![MEMORY.into()],
                Only::Any => vec![],
            })
            .collect();
        prop_oneof![
            proptest::sample::select(named).prop_flat_map(|v| prop_oneof![
                4 => Just(v), 1 => Just(v.wrapping_add(1)), 1 => Just(v.wrapping_sub(1)), 1 => Just(v | 7 << 32),
            ]),
            any::<u64>(),
            0..64u64,
        ]
    }

    #[test]
    fn every_number_is_answered_the_same() {
        for list in lists() {
            let (ours, others) = (ours(&list), others(&list));
            let mut most = 0;
            for number in (0..1000).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
                for arguments in [[0; 6], [1; 6], [u64::MAX; 6], [u64::from(MEMORY); 6]] {
                    let (answer, steps) = run(&ours, AUDIT_ARCH_X86_64, number, arguments);
                    assert_eq!(answer, run(&others, AUDIT_ARCH_X86_64, number, arguments).0, "{number}");
                    most = most.max(steps);
                }
            }
            assert_eq!(run(&ours, 0x4000_0003, 1, [0; 6]).0, KILL, "another architecture's calls");
            println!("{} instructions, {most} for a call at most; {} before", ours.len(), others.len());
            assert!(most < 60, "{most}");
        }
    }

    proptest! {
        #[test]
        fn arguments_are_answered_the_same(
            n in 0..64usize, arguments in proptest::collection::vec(argument(), 6),
        ) {
            for list in lists() {
                let call = list[n % list.len()];
                let arguments: [u64; 6] = arguments.clone().try_into().unwrap();
                let number = call.number as u32;
                let answer = |program: &[_]| run(program, AUDIT_ARCH_X86_64, number, arguments).0;
                prop_assert_eq!(answer(&ours(&list)), answer(&others(&list)), "{}", call.name);
            }
        }
    }
}
