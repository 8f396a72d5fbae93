//! Shared memory by whole blocks, in the memory of a cell on the simulated platform.
#![allow(missing_docs, reason = "tests")]
#![allow(unsafe_code, reason = "makes a cell's memory and looks into it")]

use std::sync::Arc;

use atoll_abi::layout::{BLOCK, PAGE, USER_MAX};
use atoll_abi::platform::Access;
use atoll_fs::node::At;
use atoll_fs::tmp::{self, TmpFs, TmpNode, shared_memory};
use atoll_fs::{Cred, File, Source};
use atoll_mem::heap::{give_pages, memory, take_pages};
use atoll_mem::vm::{AddressSpace, Kind, MapRequest, Object, Place};
use cell::{MEMORY, in_cell};

#[expect(dead_code, reason = "nothing is found by its name here")]
mod cell;

const CHUNK: u64 = 64 << 10;
const CHUNKS: u64 = BLOCK / CHUNK;

fn object() -> Arc<TmpNode> {
    let (fs, _) = TmpFs::new(MEMORY, 0o777);
    shared_memory(&fs, 8 << 20, &Cred::root())
}

/// How many of the 64 KiB of a block have memory, and whether they lie in one piece that a large page can show.
fn block(object: &TmpNode, start: u64) -> (u64, bool) {
    let there = |n: &u64| object.has_memory(start + n * CHUNK);
    let count = (0..CHUNKS).filter(there).count() as u64;
    let first = object.chunk(start).unwrap();
    let follows = |n| object.chunk(start + n * CHUNK).unwrap() == first + n * CHUNK;
    (count, count == CHUNKS && first.is_multiple_of(BLOCK) && (0..CHUNKS).all(follows))
}

fn fill(object: &TmpNode, start: u64) {
    for n in 0..CHUNKS {
        let at = memory().address(object.chunk(start + n * CHUNK).unwrap());
        // SAFETY: the object's, and nobody else looks.
        unsafe { at.write_bytes((start / BLOCK * 64 + n) as u8, CHUNK as usize) };
    }
}

fn is_filled(object: &TmpNode, start: u64) -> bool {
    (0..CHUNKS).all(|n| {
        let at = memory().address(object.chunk(start + n * CHUNK).unwrap());
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(at, CHUNK as usize) };
        bytes.iter().all(|b| *b == (start / BLOCK * 64 + n) as u8)
    })
}

#[test]
fn what_is_touched_in_order_comes_by_blocks() {
    in_cell!(|| {
        let object = object();
        // The first block, and what is touched here and there, by 64 KiB.
        assert_eq!(block(&object, 0).0, 0);
        object.chunk_and_more(2 * BLOCK + CHUNK).unwrap();
        assert!(object.has_memory(2 * BLOCK + CHUNK) && !object.has_memory(2 * BLOCK));
        (0..CHUNKS / 2 - 1).for_each(|n| _ = object.chunk_and_more(n * CHUNK).unwrap());
        object.chunk_and_more(BLOCK + 3 * CHUNK).unwrap();
        assert!(!object.has_memory(BLOCK));
        // What has some already stays as it is.
        fill(&object, 0);
        fill(&object, BLOCK);
        fill(&object, 2 * BLOCK);
        // Most of the one before is there; the first that is touched needn't be the first of the block.
        let used = memory().used();
        object.chunk_and_more(3 * BLOCK + 5 * CHUNK).unwrap();
        assert_eq!(block(&object, 3 * BLOCK), (CHUNKS, true));
        assert_eq!(memory().used() - used, BLOCK);
        fill(&object, 3 * BLOCK);
        // Moved elsewhere it is still in one piece.
        assert_eq!(tmp::vacate(0, |_| true).unwrap(), 4 * BLOCK);
        assert_eq!(block(&object, 3 * BLOCK), (CHUNKS, true));
        assert!((0..4).all(|n| is_filled(&object, n * BLOCK)));
        // And goes by parts.
        object.truncate(3 * BLOCK + CHUNK).unwrap();
        assert_eq!(memory().used() - used, CHUNK);
        drop(object);
        assert_eq!(used - memory().used(), 3 * BLOCK);
    });
}

/// A file that began small: its first page and what follows at the next 64 KiB can lie as a block does, and are none.
#[test]
fn what_only_looks_like_a_block_is_moved_by_parts() {
    in_cell!(|| {
        // The next page is the first of a block, of which nobody else has any.
        let first =
            (0..MEMORY / PAGE).find_map(|_| take_pages(0).filter(|at| *at > 0 && at.is_multiple_of(BLOCK)));
        give_pages(first.unwrap(), 0);
        let (fs, _) = TmpFs::new(MEMORY, 0o777);
        let file = shared_memory(&fs, 0, &Cred::root());
        let write = |at, len| {
            let bytes = vec![7; len];
            let (done, _) = File::write(&*file, &mut Source::kernel(&bytes), At::Offset(at), false).unwrap();
            assert_eq!(done, len);
        };
        write(0, 1);
        (1..CHUNKS).for_each(|n| write(n * CHUNK, CHUNK as usize));
        let lies = |n| file.chunk(n * CHUNK).unwrap();
        assert!((2..CHUNKS).all(|n| lies(n) == lies(1) + (n - 1) * CHUNK) && lies(1) % BLOCK == CHUNK);
        let used = memory().used();
        tmp::vacate(0, |_| true).unwrap();
        assert_eq!(memory().used(), used);
    });
}

#[test]
fn not_where_memory_is_short_or_behind_the_end() {
    in_cell!(|| {
        let short = object();
        short.truncate(2 * BLOCK - 1).unwrap();
        (0..CHUNKS).for_each(|n| _ = short.chunk_and_more(n * CHUNK).unwrap());
        short.chunk_and_more(BLOCK).unwrap();
        assert_eq!(block(&short, BLOCK), (CHUNKS, true), "its last page counts");
        let shorter = object();
        shorter.truncate(2 * BLOCK - CHUNK).unwrap();
        (0..CHUNKS).for_each(|n| _ = shorter.chunk_and_more(n * CHUNK).unwrap());
        shorter.chunk_and_more(BLOCK).unwrap();
        assert!(!shorter.has_memory(BLOCK + CHUNK));
        let taken: Vec<_> = (0..3).map(|_| object()).collect();
        for other in &taken {
            (0..4 * CHUNKS).for_each(|n| _ = other.chunk_and_more(n * CHUNK));
        }
        assert!(!memory().is_mostly_free());
        let last = object();
        (0..=CHUNKS).for_each(|n| _ = last.chunk_and_more(n * CHUNK));
        assert!(!last.has_memory(BLOCK + CHUNK));
    });
}

#[test]
fn shared_mappings_lie_as_blocks_do() {
    in_cell!(|| {
        let space = AddressSpace::new(USER_MAX / 2);
        let map = |len, offset| {
            let object = object();
            let kind = Kind::Object { object: object.clone(), file: Some(object), offset };
            let request = MapRequest {
                addr: 0,
                len,
                access: Access::READ | Access::WRITE,
                shared: true,
                kind,
                place: Place::Hint,
                name: "",
                ..MapRequest::default()
            };
            space.map(request).unwrap()
        };
        map(4096, 0);
        assert!(map(3 * BLOCK + 4096, 0).is_multiple_of(BLOCK));
        assert!(map(BLOCK, 2 * BLOCK).is_multiple_of(BLOCK));
    });
}
