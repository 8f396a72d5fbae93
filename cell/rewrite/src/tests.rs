use super::*;

/// Bytes of the way into the runtime.
const CALL: usize = 15;
use std::println;
use std::string::String;

/// An ELF file with one executable segment and one function symbol-less section.
fn elf(code: &[u8]) -> Vec<u8> {
    let mut f = Vec::new();
    f.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    f.extend_from_slice(&2u16.to_le_bytes());
    f.extend_from_slice(&62u16.to_le_bytes());
    f.extend_from_slice(&1u32.to_le_bytes());
    for w in [0x401000u64, 64, 0] {
        f.extend_from_slice(&w.to_le_bytes());
    }
    f.extend_from_slice(&0u32.to_le_bytes());
    for h in [64u16, 56, 1, 64, 0, 0] {
        f.extend_from_slice(&h.to_le_bytes());
    }
    f.extend_from_slice(&1u32.to_le_bytes());
    f.extend_from_slice(&5u32.to_le_bytes());
    for w in [0x1000u64, 0x401000, 0x401000, code.len() as u64, code.len() as u64, 0x1000] {
        f.extend_from_slice(&w.to_le_bytes());
    }
    f.resize(0x1000, 0);
    f.extend_from_slice(code);
    f
}

fn one(code: &[u8]) -> Option<Record> {
    plan(&elf(code)).unwrap().records.first().copied()
}

#[test]
fn mov_before() {
    // nop; mov eax, 39; syscall; ret
    let r = one(&[0x90, 0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]).unwrap();
    assert_eq!((r.offset, r.len, r.site, r.resume), (0x1001, 5, 5, 7));
    let call = Call::enter(40);
    assert_eq!(r.places(&call).collect::<Vec<_>>(), [(0, 0), (5, 5), (7, 20)]);
    let mut t = [0; TRAMPOLINE_MAX];
    let n = r.write_trampoline(&mut t, 0x401001, 0x500000, &call).unwrap();
    assert_eq!(n, 25);
    assert_eq!(&t[..5], [0xb8, 39, 0, 0, 0]);
    assert_eq!(&t[5..20], [0x48, 0x8d, 0x0d, 8, 0, 0, 0, 0x65, 0xff, 0x24, 0x25, 40, 0, 0, 0]);
    // Back to behind the syscall.
    assert_eq!(t[20], 0xe9);
    let disp = i32::from_le_bytes(t[21..25].try_into().unwrap());
    assert_eq!((0x500000 + 25i64 + i64::from(disp)) as u64, 0x401008);
}

/// A call that only reads a word does so in the trampoline; a program that is stopped there is seen before its
/// `mov`, and one that is to go on at the `syscall` goes on there.
#[test]
fn a_word_is_read_in_place() {
    let r = one(&[0x90, 0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]).unwrap();
    assert_eq!(r.number(), Some(39));
    let call = Call::read(0x10, &[0x20, 0x30]).unwrap();
    assert_eq!(r.places(&call).collect::<Vec<_>>(), [(0, 0), (7, 49)]);
    let mut t = [0; TRAMPOLINE_MAX];
    let n = r.write_trampoline(&mut t, 0x401001, 0x500000, &call).unwrap();
    let code: Vec<String> = Decoder::with_ip(64, &t[..n], 0x500000, DecoderOptions::NONE)
        .iter()
        .map(|i| std::format!("{:?} {:?} {:x}", i.code(), i.op0_register(), i.memory_displacement64()))
        .collect();
    let wanted = ["Mov_r64_rm64 RCX 10", "Mov_r64_rm64 RCX 20", "Mov_r32_rm32 EAX 30"];
    assert_eq!(code[0], "Mov_r32_imm32 EAX 0");
    assert_eq!(code[8..11], wanted);
    assert_eq!(t[49], 0xe9);
    // Nothing but rax, rcx and r11 is changed.
    for i in Decoder::with_ip(64, &t[..49], 0x500000, DecoderOptions::NONE).iter() {
        let changed =
            [Register::RAX, Register::RCX, Register::R11].contains(&i.op0_register().full_register());
        assert!(changed || i.code() == Code::Lahf, "{:?}", i.code());
        assert_eq!(i.rflags_modified(), 0);
    }
    assert!(Call::read(0x10, &[]).is_none() && Call::read(0x10, &[1, 2, 3, 4]).is_none());
    assert!(Call::read(0x10, &[1 << 31]).is_none());
    // xor eax, eax; syscall; test eax, eax; js +1: nothing is known of the number.
    let r = one(&[0x31, 0xc0, 0x0f, 0x05, 0x85, 0xc0, 0x78, 1, 0x90, 0xc3]).unwrap();
    assert_eq!(r.number(), None);
}

#[test]
fn forward_with_rip_relative_and_branch() {
    // xor eax, eax; syscall; lea rcx, [rip + 0x100]; ret
    let r = one(&[0x31, 0xc0, 0x0f, 0x05, 0x48, 0x8d, 0x0d, 0, 1, 0, 0, 0xc3]).unwrap();
    assert_eq!((r.offset, r.len, r.site, r.after), (0x1002, 9, 0, 7));
    let mut t = [0; TRAMPOLINE_MAX];
    let n = r.write_trampoline(&mut t, 0x401002, 0x600000, &Call::enter(40)).unwrap();
    let disp = i32::from_le_bytes(t[CALL + 3..CALL + 7].try_into().unwrap());
    // The same address as before: 0x40100b + 0x100.
    assert_eq!((0x600000 + CALL as i64 + 7 + i64::from(disp)) as u64, 0x40110b);
    assert_eq!(n, CALL + 7 + JUMP);
    // xor eax, eax; syscall; test eax, eax; js +1; nop; ret
    let r = one(&[0x31, 0xc0, 0x0f, 0x05, 0x85, 0xc0, 0x78, 1, 0x90, 0xc3]).unwrap();
    assert_eq!((r.len, r.after), (6, 8));
    assert_eq!(&r.code[2..4], [0x0f, 0x88]);
}

#[test]
fn branch_into_the_window() {
    // xor eax, eax; syscall; L: cmp rax, -4095; jmp L: the window forwards is entered at L.
    let code = [0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xeb, 0xf8];
    let r = one(&code);
    assert!(r.is_none(), "{r:?}");
    // The same with a jump from far away, in bytes that are not even decoded as this function.
    let mut code = [0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3].to_vec();
    code.extend_from_slice(&[0xe9]);
    let disp = 4i32 - (code.len() as i32 + 4);
    code.extend_from_slice(&disp.to_le_bytes());
    assert!(one(&code).is_none());
}

#[test]
fn branch_to_the_syscall_is_harmless_for_mov() {
    // jmp to the syscall itself over the mov: the syscall stays in place.
    let r = one(&[0xeb, 5, 0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]).unwrap();
    assert_eq!((r.offset, r.len), (0x1002, 5));
}

#[test]
fn backward_window() {
    // mov rax, r10 (3); mov edi, edx (2); syscall; then a target: backwards it is.
    let code = [0x4c, 0x89, 0xd0, 0x89, 0xd7, 0x0f, 0x05, 0x90, 0xeb, 0xfd];
    let r = one(&code).unwrap();
    assert_eq!((r.offset, r.len, r.site, r.resume, r.before), (0x1000, 5, 5, 7, 5));
}

#[test]
fn window_over_the_syscall() {
    // L: xor edi, edi; mov eax, edx; syscall; jmp L; L2: nop; jmp L2: too little on either side alone, and L may be the window's start.
    let code = [0x31, 0xff, 0x89, 0xd0, 0x0f, 0x05, 0xeb, 0xf8, 0x90, 0xeb, 0xfd];
    let r = one(&code).unwrap();
    assert_eq!((r.offset, r.len, r.site, r.resume, r.before, r.after), (0x1000, 6, 4, 6, 4, 0));
    let call = Call::enter(40);
    let mut t = [0; TRAMPOLINE_MAX];
    let n = r.write_trampoline(&mut t, 0x401000, 0x600000, &call).unwrap();
    assert_eq!((&t[..4], &t[4..4 + CALL], n), (&code[..4], call.bytes(), 4 + CALL + JUMP));
    // It goes on with the jump.
    let back = i32::from_le_bytes(t[n - 4..n].try_into().unwrap());
    assert_eq!(0x600000 + n as i64 + i64::from(back), 0x401006);
    let mut text = code;
    r.write_jump(&mut text, 0x401000, 0x600000).unwrap();
    assert_eq!((text[0], &text[5..]), (0xe9, &[0xcc, 0xeb, 0xf8, 0x90, 0xeb, 0xfd][..]));
    let places: std::vec::Vec<_> = r.places(&call).collect();
    assert_eq!(places, [(0, 0), (2, 2), (4, 4), (6, 4 + CALL)]);
    // With a jump to the syscall itself it stays as it is.
    assert!(one(&[0x31, 0xff, 0x89, 0xd0, 0x0f, 0x05, 0xeb, 0xfc, 0x90, 0xeb, 0xfd]).is_none());
}

#[test]
fn bytes_that_are_no_syscall() {
    // mov eax, 0x050f: the bytes are an immediate.
    let p = plan(&elf(&[0xb8, 0x0f, 0x05, 0, 0, 0xc3])).unwrap();
    assert_eq!((p.sites, p.records.len()), (0, 0));
}

#[test]
fn padding_behind_a_return() {
    // syscall; ret; nops up to the end.
    let r = one(&[0x0f, 0x05, 0xc3, 0x90, 0x90, 0x90]).unwrap();
    assert_eq!((r.len, r.after, r.ends), (5, 1, 1));
    assert!(one(&[0x0f, 0x05, 0xc3, 0x31, 0xc0, 0xc3]).is_none());
}

/// Addresses of code that are loaded by another function or stand in data are branches, too.
#[test]
fn entered_by_address() {
    // mov eax, edi; syscall; inc eax; inc eax; ret; then lea rcx, [rip - 0x10]; ret
    let code = |lea: u8| {
        let mut code = std::vec![0x89, 0xf8, 0x0f, 0x05, 0xff, 0xc0, 0xff, 0xc0, 0xc3, 0x90];
        code.extend([0x48, 0x8d, 0x0d, lea, 0xff, 0xff, 0xff, 0xc3]);
        code
    };
    assert!(one(&code(0xef)).is_some(), "the address of the function");
    assert!(one(&code(0xf3)).is_none(), "the address behind the call");
}

#[test]
fn damaged_files() {
    let good = elf(&[0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]);
    for n in 0..good.len().min(200) {
        let mut bad = good.clone();
        bad[n] = bad[n].wrapping_add(0x7f);
        let _ = plan(&bad);
        let _ = plan(&good[..n]);
    }
}

/// OV-02: what share of real libraries' sites can be rewritten.
#[test]
fn coverage_of_this_machine() {
    let mut report = String::new();
    for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/bin/busybox"] {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let start = std::time::Instant::now();
        let p = plan(&bytes).unwrap();
        let took = start.elapsed();
        report.push_str(&std::format!(
            "{path}: {} of {} {:?} in {took:?}\n",
            p.records.len(),
            p.sites,
            p.kinds
        ));
        assert!(p.records.len() * 100 >= p.sites * 95, "{report}");
        assert!(p.records.iter().all(Record::is_sound));
        // glibc's signal trampoline, whose unwind entry begins one byte early: mov $15, %rax; syscall.
        let trampoline = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
        for at in bytes.windows(trampoline.len()).enumerate().filter(|(_, w)| *w == trampoline) {
            let inside = at.0 as u64 + 1..at.0 as u64 + 7;
            assert!(
                p.records.iter().all(|r| !inside.contains(&r.offset)),
                "{path}: inside of an instruction"
            );
        }
    }
    println!("{report}");
}

/// What is written depends on how far the trampoline is from the window, and on nothing else: processes of a file share it.
#[test]
fn only_the_distance_counts() {
    let read = Call::read(0x10, &[0x20, 0x30]).unwrap();
    // With a jump out, an address that counts from the instruction, and a way on.
    let codes: [&[u8]; 3] = [
        &[0x90, 0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3],
        &[0x48, 0x8b, 0x05, 0, 1, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff, 0x73, 1, 0xc3, 0xc3],
        &[0x0f, 0x05, 0x48, 0x8d, 0x0d, 0, 1, 0, 0, 0xc3],
    ];
    for code in codes {
        let Some(r) = one(code) else { panic!("no record") };
        for call in [&read, &Call::enter(40)] {
            let written = |base: u64| {
                let (mut t, mut text) = ([0; TRAMPOLINE_MAX], code.to_vec());
                let at = base + r.offset;
                let n = r.write_trampoline(&mut t, at, base - 0x10_0000, call).unwrap();
                r.write_jump(&mut text[(r.offset - 0x1000) as usize..], at, base - 0x10_0000).unwrap();
                (t[..n].to_vec(), text)
            };
            assert_eq!(written(0x40_0000), written(0x7fff_1234_5000));
        }
    }
}
