//! Plans how the `syscall` instructions of an executable are replaced by jumps.
//!
//! A jump takes five bytes and `syscall` has two, so each site needs a
//! *window*: instructions beside the `syscall` that move to a trampoline
//! (architecture section 4). Three kinds, in this order of preference:
//!
//! - `mov eax, imm32` directly before: it has five bytes itself. The jump
//!   lies over it, the `syscall` stays where it is, and code that branches to
//!   the `syscall` traps, slowly but rightly.
//! - the `syscall` and what follows it.
//! - what precedes it; the `syscall` stays.
//!
//! No branch may enter a window but at its first byte. That is known for
//! branches of the same function (it is decoded whole), for jumps from
//! anywhere with a 32-bit displacement and addresses loaded with one (all code
//! is searched for bytes that could be such an instruction), for addresses in
//! data and relocations, and for jump tables (entries of the tables that the function loads the address
//! of). Where it can't be known, the site is left alone: it traps and works.
//!
//! The result is a list of fixed-size records that need no decoder to apply.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hashbrown::HashSet;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use object::elf;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the analysis and the records: plans that were kept are not used with another.
pub const VERSION: u32 = 5;
/// Bytes of code that one site moves, at most.
pub const CODE_MAX: usize = 40;
/// Bytes of a jump.
pub const JUMP: usize = 5;
/// Longest function that is decoded for one site, bytes.
const FUNCTION_MAX: u64 = 1 << 20;

/// Code that is decoded for one segment, bytes; sites beyond are left alone.
const DECODED_MAX: u64 = 8 << 20;
/// Addresses that a program's windows may lie apart.
const SPAN_MAX: u64 = 4 << 30;
/// How far a short jump leads, bytes, its own length included.
const SHORT_REACH: u64 = 130;

/// A displacement in moved code that depends on where the code lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fix {
    /// What it points to, relative to the window's first byte.
    pub target: i32,
    /// Offset of the 32-bit displacement in the moved code.
    pub at: u8,
    /// Offset in the moved code of the end of its instruction, from which it counts.
    pub end: u8,
    /// Reserved.
    pub pad: u16,
}

/// One site.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Record {
    /// Offset of the window's first byte in the file.
    pub offset: u64,
    /// Bytes of the window that the jump and its filling lie over.
    pub len: u8,
    /// Bytes from the window's first byte to where the program goes on.
    pub resume: u8,
    /// Bytes of moved code before the call.
    pub before: u8,
    /// Bytes of moved code behind it.
    pub after: u8,
    /// The moved code never goes on: it ends with a return or a jump.
    pub ends: u8,
    /// Entries of `fixes`.
    pub fix_count: u8,
    /// Entries of `boundaries`.
    pub boundary_count: u8,
    /// Offset of the `syscall` from the window's first byte.
    pub site: u8,
    /// Reserved.
    pub pad: u32,
    /// Check sum of the window and the `syscall` as they were, so that a plan
    /// for other contents of the file does no harm.
    pub check: u32,
    /// Instructions: offset in the window, offset in the moved code. The call
    /// itself stands at `site` and `before`.
    pub boundaries: [[u8; 2]; 8],
    /// Displacements to be corrected.
    pub fixes: [Fix; 3],
    /// The moved code: `before` bytes, then `after` bytes.
    pub code: [u8; CODE_MAX],
}

/// Bytes of a record.
pub const RECORD: usize = size_of::<Record>();

/// A plan.
#[derive(Default, Debug)]
pub struct Plan {
    /// Sites that can be rewritten, by offset.
    pub records: Vec<Record>,
    /// `syscall` instructions that were found.
    pub sites: usize,
    /// What kinds of windows: by `mov`, forwards, backwards.
    pub kinds: [usize; 3],
}

/// A stretch of code: address, offset in the file, bytes.
struct Segment<'a> {
    addr: u64,
    offset: u64,
    bytes: &'a [u8],
}

impl Segment<'_> {
    fn end(&self) -> u64 {
        self.addr + self.bytes.len() as u64
    }

    fn slice(&self, from: u64, to: u64) -> &[u8] {
        &self.bytes[(from - self.addr) as usize..(to.min(self.end()) - self.addr) as usize]
    }
}

/// Plans for an ELF file. None: it is none, or not for this processor.
pub fn plan(file: &[u8]) -> Option<Plan> {
    let elf = ElfFile64::<LittleEndian>::parse(file).ok()?;
    let mut plan = Plan::default();
    let segments: Vec<Segment> = elf
        .segments()
        .filter(|s| matches!(s.flags(), SegmentFlags::Elf { p_flags, .. } if (p_flags & elf::PF_X).0 != 0))
        .filter_map(|s| {
            let (offset, _) = s.file_range();
            Some(Segment { addr: s.address(), offset, bytes: s.data().ok()? })
        })
        // Files come from anywhere: none whose addresses wrap around.
        .filter(|s| s.addr.checked_add(s.bytes.len() as u64).is_some_and(|end| end < 1 << 47))
        .collect();
    let starts = function_starts(&elf, &segments);
    for segment in &segments {
        plan_segment(&elf, segment, &segments, &starts, &mut plan);
    }
    plan.records.sort_by_key(|r| r.offset);
    // Windows of neighbouring sites must not touch: the earlier one wins.
    let mut end = 0;
    plan.records.retain(|r| {
        let ok = r.offset >= end;
        if ok {
            end = r.offset + u64::from(r.len.max(r.resume));
        }
        ok
    });
    Some(plan)
}

/// Addresses where code is known to begin: functions by unwind table, by symbols, and sections.
fn function_starts(elf: &ElfFile64<LittleEndian>, segments: &[Segment]) -> Vec<u64> {
    let mut starts: Vec<u64> = Vec::new();
    let inside = |a: u64| segments.iter().any(|s| (s.addr..s.end()).contains(&a));
    for s in elf.symbols().chain(elf.dynamic_symbols()) {
        if s.kind() == SymbolKind::Text && s.address() != 0 {
            starts.push(s.address());
        }
    }
    for s in elf.sections() {
        if inside(s.address()) {
            starts.push(s.address());
        }
        if s.name() == Ok(".eh_frame_hdr")
            && let Ok(data) = s.data()
        {
            unwind_starts(data, s.address(), &mut starts);
        }
    }
    if let Some((addr, data)) = unwind_segment(elf) {
        unwind_starts(data, addr, &mut starts);
    } else if let Some(s) = elf.section_by_name(".eh_frame")
        && let Ok(data) = s.data()
    {
        frame_starts(data, s.address(), &mut starts);
    }
    // The unwind entries of signal trampolines begin one byte early, so that unwinders which
    // look up "return address - 1" find them (glibc, sigaction.c). That byte is no code.
    let early = signal_frames(elf);
    for start in starts.iter_mut().filter(|s| early.contains(&**s)) {
        *start = start.wrapping_add(1);
    }
    for s in segments {
        // A segment without sections begins with the file's header if it covers it.
        if s.offset != 0 {
            starts.push(s.addr);
        }
        starts.push(s.end());
    }
    starts.retain(|a| inside(*a) || segments.iter().any(|s| s.end() == *a));
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// The unwind table's header by its program header, for files without sections.
fn unwind_segment<'a>(elf: &ElfFile64<'a, LittleEndian>) -> Option<(u64, &'a [u8])> {
    use object::read::elf::ProgramHeader;
    let h = elf.elf_program_headers().iter().find(|h| h.p_type(LittleEndian) == elf::PT_GNU_EH_FRAME)?;
    Some((h.p_vaddr(LittleEndian), h.data(LittleEndian, elf.data()).ok()?))
}

/// Reads the sorted table of `.eh_frame_hdr` (LSB Core 10.6.2) in its usual encoding.
fn unwind_starts(data: &[u8], addr: u64, starts: &mut Vec<u64>) {
    // Version 1, frame pointer as pcrel sdata4, count as udata4, table as datarel sdata4.
    if data.len() < 12 || data[0] != 1 || data[2] != 0x03 || data[3] != 0x3b {
        return;
    }
    let word = |at: usize| data.get(at..at + 4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let count = word(8).unwrap_or(0) as u32 as usize;
    for n in 0..count {
        let Some(start) = word(12 + n * 8) else { return };
        starts.push(addr.wrapping_add_signed(i64::from(start)));
    }
}

/// Reads the unwind entries themselves, as static programs have them without a table.
fn frame_starts(data: &[u8], addr: u64, starts: &mut Vec<u64>) {
    let frames = gimli::EhFrame::new(data, gimli::LittleEndian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(addr);
    let mut entries = gimli::UnwindSection::entries(&frames, &bases);
    while let Ok(Some(entry)) = entries.next() {
        if let gimli::CieOrFde::Fde(partial) = entry
            && let Ok(fde) = partial
                .parse(|_, bases, offset| gimli::UnwindSection::cie_from_offset(&frames, bases, offset))
        {
            starts.push(fde.initial_address());
        }
    }
}

/// Addresses in the unwind entries of signal trampolines.
fn signal_frames(elf: &ElfFile64<LittleEndian>) -> HashSet<u64> {
    let mut found = HashSet::new();
    let section = elf.section_by_name(".eh_frame");
    let Some((addr, data)) = section.and_then(|s| Some((s.address(), s.data().ok()?))) else { return found };
    let frames = gimli::EhFrame::new(data, gimli::LittleEndian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(addr);
    let mut trampolines = HashSet::new();
    let mut entries = gimli::UnwindSection::entries(&frames, &bases);
    while let Ok(Some(entry)) = entries.next() {
        match entry {
            gimli::CieOrFde::Cie(cie) if cie.is_signal_trampoline() => {
                trampolines.insert(cie.offset());
            }
            gimli::CieOrFde::Fde(partial) if trampolines.contains(&partial.cie_offset().0) => {
                if let Ok(fde) = partial
                    .parse(|_, bases, offset| gimli::UnwindSection::cie_from_offset(&frames, bases, offset))
                {
                    found.insert(fde.initial_address());
                }
            }
            _ => {}
        }
    }
    found
}

/// A decoded function.
struct Function {
    /// Instructions, in order.
    code: Vec<Instruction>,
    /// Addresses that branches in it go to.
    targets: HashSet<u64>,
    /// It jumps to where a register or memory says, and no table was found for it.
    unknown_jumps: bool,
}

fn plan_segment(
    elf: &ElfFile64<LittleEndian>,
    segment: &Segment,
    all: &[Segment],
    starts: &[u64],
    plan: &mut Plan,
) {
    let hits: Vec<u64> = find_sites(segment.bytes).map(|at| segment.addr + at as u64).collect();
    if hits.is_empty() {
        return;
    }
    let mut functions = Functions { elf, segment, starts, decoded: BTreeMap::new(), bytes: 0 };
    let mut candidates = Vec::new();
    for site in hits {
        let Some(n) = starts.partition_point(|s| *s <= site).checked_sub(1) else { continue };
        let start = starts[n];
        let Some(function) = functions.get(n) else { continue };
        let Ok(index) = function.code.binary_search_by_key(&site, |i| i.ip()) else { continue };
        if function.code[index].code() != Code::Syscall {
            continue;
        }
        plan.sites += 1;
        candidates.push((site, start, index));
    }
    let windows: Vec<(u64, Vec<Draft>)> = candidates
        .into_iter()
        .map(|(site, start, index)| {
            let f = functions.decoded.get(&start).and_then(Option::as_ref);
            (site, f.map_or(Vec::new(), |f| drafts(f, index, segment, starts)))
        })
        .collect();
    // Jumps with a 32-bit displacement from anywhere into the inside of a window.
    let mut inner: HashSet<u64> = HashSet::new();
    for (_, list) in &windows {
        for d in list {
            inner.extend(d.inner());
        }
    }
    let mut entered = far_targets(elf, all, &inner);
    functions.near_targets(&inner, &mut entered);
    for (_, list) in windows {
        if let Some(d) = list.into_iter().find(|d| d.inner().all(|a| !entered.contains(&a))) {
            plan.kinds[d.kind] += 1;
            plan.records.push(d.record(segment));
        }
    }
}

/// The functions of a segment, decoded when they are asked for.
struct Functions<'a> {
    elf: &'a ElfFile64<'a, LittleEndian>,
    segment: &'a Segment<'a>,
    starts: &'a [u64],
    decoded: BTreeMap<u64, Option<Function>>,
    /// Bytes that were decoded.
    bytes: u64,
}

impl Functions<'_> {
    /// The function that begins at the `n`th start.
    fn get(&mut self, n: usize) -> Option<&Function> {
        let (start, limit) = (self.starts[n], self.segment.end());
        let end = self.starts.get(n + 1).copied().unwrap_or(limit).min(limit);
        if start < self.segment.addr || start >= end {
            return None;
        }
        let (elf, segment, bytes) = (self.elf, self.segment, &mut self.bytes);
        let decoded = self.decoded.entry(start).or_insert_with(|| {
            *bytes = bytes.saturating_add(end - start);
            if *bytes > DECODED_MAX { None } else { decode(elf, segment, start, end) }
        });
        decoded.as_ref()
    }

    /// Adds which of `inner` are entered by jumps of neighbouring functions,
    /// which may be short ones.
    fn near_targets(&mut self, inner: &HashSet<u64>, entered: &mut HashSet<u64>) {
        for a in inner {
            let low = a.saturating_sub(SHORT_REACH);
            let from = self.starts.partition_point(|s| *s <= low).saturating_sub(1);
            let to = self.starts.partition_point(|s| *s <= a.saturating_add(SHORT_REACH));
            if (from..to).any(|n| self.get(n).is_some_and(|f| f.targets.contains(a))) {
                entered.insert(*a);
            }
        }
    }
}

/// Offsets of the bytes of `syscall`.
fn find_sites(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut at = 0;
    core::iter::from_fn(move || {
        while at + 1 < bytes.len() {
            // The second byte is the rarer one to follow the first.
            match bytes[at..bytes.len() - 1].iter().position(|b| *b == 0x0f) {
                None => return None,
                Some(n) => {
                    at += n + 1;
                    if bytes[at] == 0x05 {
                        return Some(at - 1);
                    }
                }
            }
        }
        None
    })
}

fn decode(elf: &ElfFile64<LittleEndian>, segment: &Segment, start: u64, end: u64) -> Option<Function> {
    if end <= start || end - start > FUNCTION_MAX {
        return None;
    }
    let mut decoder = Decoder::with_ip(64, segment.slice(start, end), start, DecoderOptions::NONE);
    let mut f = Function { code: Vec::new(), targets: HashSet::new(), unknown_jumps: false };
    let mut tables: Vec<u64> = Vec::new();
    let mut indirect = 0;
    while decoder.can_decode() {
        let i = decoder.decode();
        if i.is_invalid() {
            // Data in code, or the end of what is known to be code.
            if f.code.is_empty() {
                return None;
            }
            break;
        }
        match i.flow_control() {
            FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::Call
            | FlowControl::XbeginXabortXend => {
                if matches!(i.op0_kind(), OpKind::NearBranch64) {
                    f.targets.insert(i.near_branch_target());
                }
            }
            FlowControl::IndirectBranch => {
                indirect += 1;
                if i.op0_kind() == OpKind::Memory
                    && i.memory_base() == Register::None
                    && i.memory_index() != Register::None
                {
                    // jmp [table + index * 8]
                    tables.push(i.memory_displacement64());
                }
            }
            _ => {}
        }
        if i.code() == Code::Lea_r64_m && i.is_ip_rel_memory_operand() {
            tables.push(i.ip_rel_memory_address());
        }
        f.code.push(i);
    }
    if indirect > 0 {
        let mut found = 0;
        for table in tables {
            found += usize::from(table_targets(elf, table, start, end, &mut f.targets));
        }
        f.unknown_jumps = found == 0;
    }
    Some(f)
}

/// Adds what a jump table leads to, as long as its entries stay in the
/// function; says whether it looks like one.
fn table_targets(
    elf: &ElfFile64<LittleEndian>,
    table: u64,
    start: u64,
    end: u64,
    targets: &mut HashSet<u64>,
) -> bool {
    let Some(bytes) = elf.segments().find_map(|s| {
        let at = table.checked_sub(s.address())?;
        s.data().ok()?.get(at as usize..)
    }) else {
        return false;
    };
    let mut any = false;
    // Relative entries of four bytes, as compilers make them for position-independent code.
    for entry in bytes.chunks_exact(4).take(4096) {
        let target = table
            .wrapping_add_signed(i64::from(i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]])));
        if !(start..end).contains(&target) {
            break;
        }
        any = true;
        targets.insert(target);
    }
    // Absolute ones of eight.
    for entry in bytes.chunks_exact(8).take(4096) {
        let Ok(entry) = entry.try_into() else { break };
        let target = u64::from_le_bytes(entry);
        if !(start..end).contains(&target) {
            break;
        }
        any = true;
        targets.insert(target);
    }
    any
}

/// Which of `inner` any bytes lead to that could be a jump, a call or a load of an address.
fn far_targets(elf: &ElfFile64<LittleEndian>, segments: &[Segment], inner: &HashSet<u64>) -> HashSet<u64> {
    let fixed = elf.kind() == object::ObjectKind::Executable;
    let mut found = HashSet::new();
    let (Some(low), Some(high)) = (inner.iter().min(), inner.iter().max()) else { return found };
    if high - low > SPAN_MAX {
        // No compiler makes that; jumps of 32 bits don't lead so far.
        return inner.clone();
    }
    let span = (high - low) as usize + 1;
    let mut bits = alloc::vec![0u64; span.div_ceil(64)];
    for a in inner {
        let n = (a - low) as usize;
        bits[n / 64] |= 1 << (n % 64);
    }
    let mut note = |target: u64| {
        let at = target.wrapping_sub(*low) as usize;
        if at < span && bits[at / 64] & 1 << (at % 64) != 0 {
            found.insert(target);
        }
    };
    for s in segments {
        for (n, w) in s.bytes.windows(6).enumerate() {
            let disp = i32::from_le_bytes([w[2], w[3], w[4], w[5]]);
            // E8 call, E9 jmp; 0F 8x jcc; 8D lea with a displacement from RIP.
            let relative = w[1] & 0xfe == 0xe8
                || w[0] == 0x0f && w[1] & 0xf0 == 0x80
                || w[0] == 0x8d && w[1] & 0xc7 == 0x05;
            if relative {
                note((s.addr + n as u64 + 6).wrapping_add_signed(i64::from(disp)));
            }
            // An address itself, in programs that are loaded where they say.
            if fixed {
                note(u64::from(disp as u32));
            }
        }
    }
    // Pointers in data: by relocation, or as they stand.
    for (_, r) in elf.dynamic_relocations().into_iter().flatten() {
        note(r.addend() as u64);
    }
    for s in elf.segments().filter(|_| fixed) {
        for w in s.data().unwrap_or_default().chunks_exact(8) {
            note(u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]));
        }
    }
    found
}

/// A window that could be used for a site.
struct Draft {
    kind: usize,
    start: u64,
    /// Bytes that are overwritten.
    len: u64,
    site: u64,
    resume: u64,
    before: Vec<u8>,
    after: Vec<u8>,
    ends: bool,
    fixes: Vec<Fix>,
    boundaries: Vec<[u8; 2]>,
}

impl Draft {
    /// Addresses inside the window where no branch may enter.
    fn inner(&self) -> impl Iterator<Item = u64> + '_ {
        self.start + 1..self.start + self.len
    }

    fn record(self, segment: &Segment) -> Record {
        let mut r = Record {
            offset: self.start - segment.addr + segment.offset,
            len: self.len as u8,
            resume: (self.resume - self.start) as u8,
            before: self.before.len() as u8,
            after: self.after.len() as u8,
            ends: u8::from(self.ends),
            fix_count: self.fixes.len() as u8,
            boundary_count: self.boundaries.len() as u8,
            site: (self.site - self.start) as u8,
            pad: 0,
            check: 0,
            boundaries: [[0; 2]; 8],
            fixes: [Fix::default(); 3],
            code: [0; CODE_MAX],
        };
        r.boundaries[..self.boundaries.len()].copy_from_slice(&self.boundaries);
        r.fixes[..self.fixes.len()].copy_from_slice(&self.fixes);
        let (b, a) = (self.before.len(), self.after.len());
        r.code[..b].copy_from_slice(&self.before);
        r.code[b..b + a].copy_from_slice(&self.after);
        r.check = check(segment.slice(self.start, self.start + u64::from(r.extent())));
        r
    }
}

/// The windows that a site could have, the best first.
fn drafts(f: &Function, index: usize, segment: &Segment, starts: &[u64]) -> Vec<Draft> {
    let mut out = Vec::new();
    out.extend(by_mov(f, index, segment));
    out.extend(forwards(f, index, segment, starts));
    out.extend(backwards(f, index, segment, false));
    out.extend(backwards(f, index, segment, true));
    out
}

/// Bytes of an instruction as they stand in the file.
fn bytes_of<'a>(segment: &Segment<'a>, i: &Instruction) -> &'a [u8] {
    let at = (i.ip() - segment.addr) as usize;
    &segment.bytes[at..at + i.len()]
}

fn by_mov(f: &Function, index: usize, segment: &Segment) -> Option<Draft> {
    let site = f.code[index].ip();
    let mov = &f.code[index.checked_sub(1)?];
    if mov.code() != Code::Mov_r32_imm32
        || mov.op0_register() != Register::EAX
        || mov.len() != JUMP
        || mov.next_ip() != site
    {
        return None;
    }
    Some(Draft {
        kind: 0,
        start: mov.ip(),
        len: JUMP as u64,
        site,
        resume: site + 2,
        before: bytes_of(segment, mov).to_vec(),
        after: Vec::new(),
        ends: false,
        fixes: Vec::new(),
        boundaries: alloc::vec![[0, 0]],
    })
}

/// Moved code under construction.
struct Moved {
    start: u64,
    code: Vec<u8>,
    fixes: Vec<Fix>,
}

impl Moved {
    /// Appends an instruction, in a form that works elsewhere. False: it has none.
    fn push(&mut self, segment: &Segment, i: &Instruction, base: usize) -> bool {
        let at = base + self.code.len();
        let relative = |target: u64| i32::try_from(target.wrapping_sub(self.start) as i64).ok();
        match i.flow_control() {
            FlowControl::Next | FlowControl::Return => {
                let bytes = bytes_of(segment, i);
                if i.is_ip_rel_memory_operand() {
                    let Some(target) = relative(i.ip_rel_memory_address()) else { return false };
                    // The displacement is the last four bytes but for an immediate.
                    let offsets = constant_offsets(segment, i);
                    let Some(disp) = offsets else { return false };
                    let fix = Fix { target, at: (at + disp) as u8, end: (at + bytes.len()) as u8, pad: 0 };
                    self.fixes.push(fix);
                }
                self.code.extend_from_slice(bytes);
            }
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                if i.op0_kind() != OpKind::NearBranch64 {
                    return false;
                }
                let Some(target) = relative(i.near_branch_target()) else { return false };
                let opcode: &[u8] = if i.is_jmp_short_or_near() {
                    &[0xe9]
                } else if i.is_jcc_short_or_near() {
                    let bytes = bytes_of(segment, i);
                    // Short form 7x, near form 0F 8x: the condition is the low half either way.
                    let condition =
                        if bytes.len() == 2 { bytes[0] & 0xf } else { bytes[bytes.len() - 5] & 0xf };
                    &[0x0f, 0x80 | condition]
                } else {
                    // loop, jrcxz
                    return false;
                };
                self.code.extend_from_slice(opcode);
                let here = base + self.code.len();
                self.fixes.push(Fix { target, at: here as u8, end: (here + 4) as u8, pad: 0 });
                self.code.extend_from_slice(&[0; 4]);
            }
            // A moved call would leave a return address in the trampoline.
            _ => return false,
        }
        base + self.code.len() <= CODE_MAX && self.fixes.len() <= 3
    }
}

/// Where in an instruction its RIP-relative displacement lies.
fn constant_offsets(segment: &Segment, i: &Instruction) -> Option<usize> {
    let mut d = Decoder::with_ip(64, bytes_of(segment, i), i.ip(), DecoderOptions::NONE);
    let again = d.decode();
    let o = d.get_constant_offsets(&again);
    (o.has_displacement() && o.displacement_size() == 4).then(|| o.displacement_offset())
}

fn no_fall_through(i: &Instruction) -> bool {
    matches!(i.flow_control(), FlowControl::Return | FlowControl::UnconditionalBranch)
}

fn forwards(f: &Function, index: usize, segment: &Segment, starts: &[u64]) -> Option<Draft> {
    if f.unknown_jumps {
        return None;
    }
    let site = f.code[index].ip();
    let mut moved = Moved { start: site, code: Vec::new(), fixes: Vec::new() };
    let mut boundaries = Vec::new();
    let mut end = site + 2;
    let mut ends = false;
    for i in &f.code[index + 1..] {
        if i.ip() != end {
            return None;
        }
        if f.targets.contains(&i.ip()) || i.code() == Code::Syscall {
            return None;
        }
        boundaries.push([(i.ip() - site) as u8, moved.code.len() as u8]);
        if !moved.push(segment, i, 0) || boundaries.len() > 7 {
            return None;
        }
        end = i.next_ip();
        if no_fall_through(i) {
            ends = true;
            break;
        }
        if end - site >= JUMP as u64 {
            break;
        }
    }
    let need = site + JUMP as u64;
    if end < need {
        // Behind a return there may be padding up to the next function.
        if !ends || need > segment.end() {
            return None;
        }
        let padding = segment.slice(end, need);
        let next = starts[starts.partition_point(|s| *s <= site)..].first().copied().unwrap_or(segment.end());
        let filler = padding.iter().all(|b| *b == 0x90 || *b == 0xcc)
            || is_long_nop(segment.slice(end, (end + 16).min(next)));
        if need > next || !filler || (end..need).any(|a| f.targets.contains(&a)) {
            return None;
        }
        end = need;
    }
    Some(Draft {
        kind: 1,
        start: site,
        len: end - site,
        site,
        resume: end,
        before: Vec::new(),
        after: moved.code,
        ends,
        fixes: moved.fixes,
        boundaries,
    })
}

/// Does a multi-byte nop begin here that covers what is needed?
fn is_long_nop(bytes: &[u8]) -> bool {
    let mut d = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    let mut covered = 0;
    while d.can_decode() && covered < 3 {
        let i = d.decode();
        if !matches!(
            i.code(),
            Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64
        ) {
            return false;
        }
        covered += i.len();
    }
    covered >= 3
}

/// A window before the `syscall`. `over`: and over it, where less is before it that can be moved (as in the loop around `exit` at
/// the end of a thread of glibc's).
fn backwards(f: &Function, index: usize, segment: &Segment, over: bool) -> Option<Draft> {
    if f.unknown_jumps || f.targets.contains(&f.code[index].ip()) {
        return None;
    }
    let site = f.code[index].ip();
    let mut first = index;
    let own = if over { 2 } else { 0 };
    while site + own - f.code[first].ip() < JUMP as u64 {
        // What is moved must not be a target, but for its first instruction.
        if first < index && f.targets.contains(&f.code[first].ip()) {
            return None;
        }
        first = first.checked_sub(1)?;
        if f.code[first].next_ip() != f.code[first + 1].ip()
            || f.code[first].flow_control() != FlowControl::Next
        {
            return None;
        }
    }
    let start = f.code[first].ip();
    let mut moved = Moved { start, code: Vec::new(), fixes: Vec::new() };
    let mut boundaries = Vec::new();
    for i in &f.code[first..index] {
        boundaries.push([(i.ip() - start) as u8, moved.code.len() as u8]);
        if !moved.push(segment, i, 0) || boundaries.len() > 7 {
            return None;
        }
    }
    Some(Draft {
        kind: 2,
        start,
        len: site + own - start,
        site,
        resume: site + 2,
        before: moved.code,
        after: Vec::new(),
        ends: false,
        fixes: moved.fixes,
        boundaries,
    })
}

/// Bytes of what stands in a trampoline for a `syscall`, at most.
pub const CALL_MAX: usize = 44;
/// Bytes of the longest trampoline.
pub const TRAMPOLINE_MAX: usize = CODE_MAX + CALL_MAX + JUMP;

/// Flags into r11: ah has the lower ones, cl OF and IF, which is always set. Changes no flag.
const FLAGS: [u8; 22] = [
    0x9f, // lahf
    0x0f, 0x90, 0xc1, // seto cl
    0x0f, 0xb6, 0xc9, // movzx ecx, cl
    0x8d, 0x0c, 0xcd, 2, 0, 0, 0, // lea ecx, [rcx * 8 + 2]
    0x88, 0xe0, // mov al, ah
    0x88, 0xcc, // mov ah, cl
    0x44, 0x0f, 0xb7, 0xd8, // movzx r11d, ax
];

/// What stands in a trampoline for its `syscall`.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    code: [u8; CALL_MAX],
    len: u8,
    /// It serves one number only, so that a program that is to go on at the `syscall` itself, with whatever
    /// number, must not go on here.
    one_number: bool,
}

impl Call {
    /// The way into the runtime: `lea rcx, [rip + 8]` and `jmp gs:[entry]`.
    pub fn enter(entry: u32) -> Call {
        let mut call = Call { code: [0; CALL_MAX], len: 0, one_number: false };
        call.push(&[0x48, 0x8d, 0x0d, 8, 0, 0, 0]);
        call.push(&[0x65, 0xff, 0x24, 0x25]);
        call.push(&entry.to_le_bytes());
        debug_assert_eq!(u64::from(call.len), atoll_abi::layout::TRAMPOLINE_RETURN);
        call
    }

    /// A call whose result is a 32-bit word: at the end of `through`, a way of pointers that begins at offset
    /// `from` of GS. Changes rax, rcx and r11 only, and no flag. The program can be interrupted anywhere in it, and
    /// goes on where it was, or with the `mov` before it. As Linux, it leaves the flags in r11, but for those
    /// that only PUSHF shows, which needs a stack: DF, AC and ID, which no compiler has set at a call.
    pub fn read(from: u32, through: &[u32]) -> Option<Call> {
        let mut call = Call { code: [0; CALL_MAX], len: 0, one_number: true };
        let (word, pointers) = through.split_last()?;
        if FLAGS.len() + 9 + 7 * pointers.len() + 6 > CALL_MAX
            || [&[from], through].concat().iter().any(|o| *o >> 31 != 0)
        {
            return None;
        }
        call.push(&FLAGS);
        // mov rcx, gs:[from]
        call.push(&[0x65, 0x48, 0x8b, 0x0c, 0x25]);
        call.push(&from.to_le_bytes());
        for offset in pointers {
            // mov rcx, [rcx + offset]
            call.push(&[0x48, 0x8b, 0x89]);
            call.push(&offset.to_le_bytes());
        }
        // mov eax, [rcx + word]
        call.push(&[0x8b, 0x81]);
        call.push(&word.to_le_bytes());
        Some(call)
    }

    fn push(&mut self, bytes: &[u8]) {
        let at = self.len as usize;
        self.code[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    fn bytes(&self) -> &[u8] {
        &self.code[..self.len as usize]
    }
}

/// FNV-1a.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

impl Record {
    /// Bytes from the window's first byte on that belong to it or its `syscall`.
    pub fn extent(&self) -> u32 {
        u32::from(self.len.max(self.resume).max(self.site.saturating_add(2)))
    }

    /// Bytes of its trampoline with this call.
    pub fn trampoline_len(&self, call: &Call) -> usize {
        let back = if self.ends != 0 { 0 } else { JUMP };
        self.before as usize + call.bytes().len() + self.after as usize + back
    }

    /// The call's number, if the window begins with the `mov eax, imm32` directly before it and with nothing else.
    pub fn number(&self) -> Option<u32> {
        let by_mov = self.before as usize == JUMP && self.site as usize == JUMP && self.code[0] == 0xb8;
        by_mov.then(|| u32::from_le_bytes([self.code[1], self.code[2], self.code[3], self.code[4]]))
    }

    /// Is it one that can be applied? Records come from outside.
    pub fn is_sound(&self) -> bool {
        let code = self.before as usize + self.after as usize;
        code <= CODE_MAX
            && (JUMP..=64).contains(&(self.len as usize))
            && self.extent() <= 64
            && self.fix_count as usize <= self.fixes.len()
            && self.boundary_count as usize <= self.boundaries.len()
            && self.fixes[..self.fix_count as usize]
                .iter()
                .all(|f| f.at as usize + 4 <= code && f.end as usize <= code)
    }

    /// Offset in the trampoline of offset `at` of the moved code.
    fn in_trampoline(&self, call: &Call, at: usize) -> usize {
        if at < self.before as usize { at } else { at + call.bytes().len() }
    }

    /// Writes the trampoline, which is to lie at `to`, for a window at
    /// `window`; its length. None: something is out of reach.
    pub fn write_trampoline(&self, out: &mut [u8], window: u64, to: u64, call: &Call) -> Option<usize> {
        let (before, after) = (self.before as usize, self.after as usize);
        let behind = before + call.bytes().len();
        let n = self.trampoline_len(call);
        let out = out.get_mut(..n)?;
        out[..before].copy_from_slice(&self.code[..before]);
        out[before..behind].copy_from_slice(call.bytes());
        out[behind..behind + after].copy_from_slice(&self.code[before..before + after]);
        for f in &self.fixes[..self.fix_count as usize] {
            let target = window.wrapping_add_signed(i64::from(f.target));
            // The end of an instruction that ends the code before the call lies before the call.
            let end =
                if f.end as usize <= before { f.end as usize } else { f.end as usize + call.bytes().len() };
            let disp = displacement(to + end as u64, target)?;
            let at = self.in_trampoline(call, f.at as usize);
            out[at..at + 4].copy_from_slice(&disp.to_le_bytes());
        }
        if self.ends == 0 {
            let at = n - JUMP;
            let disp = displacement(to + n as u64, window + u64::from(self.resume))?;
            out[at] = 0xe9;
            out[at + 1..].copy_from_slice(&disp.to_le_bytes());
        }
        Some(n)
    }

    /// Writes the jump over the window's bytes. None: the trampoline is out of
    /// reach, or these are not the bytes that were planned for.
    pub fn write_jump(&self, text: &mut [u8], window: u64, to: u64) -> Option<()> {
        if check(text.get(..self.extent() as usize)?) != self.check {
            return None;
        }
        let text = text.get_mut(..self.len as usize)?;
        let disp = displacement(window + JUMP as u64, to)?;
        text[0] = 0xe9;
        text[1..JUMP].copy_from_slice(&disp.to_le_bytes());
        // Nobody comes here.
        text[JUMP..].fill(0xcc);
        Some(())
    }

    /// Where instructions of the window stand in the trampoline: offset in the window, offset there.
    pub fn places<'a>(&'a self, call: &'a Call) -> impl Iterator<Item = (usize, usize)> + 'a {
        let moved = self.boundaries[..self.boundary_count as usize]
            .iter()
            .map(|[w, m]| (*w as usize, self.in_trampoline(call, *m as usize)));
        let before = moved.clone().filter(|(w, _)| *w < self.site as usize);
        let behind = moved.filter(|(w, _)| *w > self.site as usize);
        let site = (self.site as usize, self.before as usize);
        let site = (!call.one_number).then_some(site);
        let back = (self.site as usize + 2, self.before as usize + call.bytes().len());
        let back = (self.after == 0).then_some(back);
        before.chain(site).chain(behind).chain(back)
    }
}

fn displacement(from: u64, to: u64) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from) as i64).ok()
}

#[cfg(test)]
mod tests;
