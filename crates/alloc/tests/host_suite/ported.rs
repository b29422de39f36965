//! PyTorch's tests of its allocators, one test for each, under their names. Tests of pools,
//! page-locked memory and snapshots have their own files.

use warpline_alloc::AllocatorConfig;

use crate::common::{Fake, MIB, check_state};

const SEGMENTS: &str = "policy:torch";
const EXPANDABLE: &str = "expandable_segments:True";
const PAGES: &str = "policy:default";

/// Combinations of kinds of memory in one heap: the options change while blocks live.
const KINDS: [[&str; 3]; 4] = [
    [SEGMENTS, EXPANDABLE, SEGMENTS],
    [EXPANDABLE, SEGMENTS, EXPANDABLE],
    [SEGMENTS, PAGES, EXPANDABLE],
    [PAGES, EXPANDABLE, PAGES],
];

fn options(kind: &str, others: &str) -> AllocatorConfig {
    let text = format!("{kind},per_process_memory_fraction:0.5,{others}");
    AllocatorConfig::parse(&text).unwrap()
}

#[test]
fn max_split_expandable() {
    for kinds in KINDS {
        let fake = Fake::with_pages(240 * MIB); // 120 MiB may be reserved
        let allocator = fake.allocator("");
        let blocks = kinds.map(|kind| {
            allocator.set_config(options(kind, "max_split_size_mb:40"));
            allocator.malloc(40 * MIB, &0).unwrap()
        });
        let error = allocator.malloc(40 * MIB, &0).unwrap_err();
        assert!(error.is_out_of_memory(), "{kinds:?}: {error}");
        check_state(&allocator);
        drop(blocks);
        // The request fits only after all cached memory of every kind is released.
        let all = allocator.malloc(120 * MIB, &0).unwrap();
        assert_eq!((all.size(), allocator.memory_reserved()), (120 * MIB, 120 * MIB));
        check_state(&allocator);
    }
}

#[test]
fn garbage_collect_expandable() {
    for kinds in KINDS {
        let fake = Fake::with_pages(240 * MIB);
        let allocator = fake.allocator("");
        let threshold = "garbage_collection_threshold:0.5";
        let blocks = [kinds[0], kinds[1]].map(|kind| {
            allocator.set_config(options(kind, threshold));
            allocator.malloc(40 * MIB, &0).unwrap()
        });
        drop(blocks);
        // Garbage collection releases idle segments and skips free blocks of arenas.
        drop(allocator.malloc(80 * MIB, &0).unwrap());
        check_state(&allocator);
        assert!(allocator.memory_reserved() <= 120 * MIB);
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0, "{kinds:?}");
    }
}
