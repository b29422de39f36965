//! The policies that map and unmap pages.

use warpline_alloc::{AllocError, AllocatorConfig};

use crate::common::{Fake, FakeError, MIB, PAGE, check_state};

const EXPANDABLE: &str = "expandable_segments:True";
/// Creates an allocator with `count` free pages between live blocks of stream 0. The reserved
/// memory equals the peak of the requests, so the headroom allows only two new pages.
fn fragmented(
    fake: &Fake,
    count: usize,
) -> (warpline_alloc::CachingAllocator<Fake>, Vec<warpline_alloc::Block<Fake>>) {
    let allocator = fake.allocator("policy:default");
    let mut blocks: Vec<_> =
        (0..2 * count + 8).map(|_| allocator.malloc(PAGE, &0).unwrap()).collect();
    let mut kept = 0;
    blocks.retain(|_| {
        kept += 1;
        kept % 2 == 0 || kept > 2 * count
    });
    (allocator, blocks)
}

#[test]
fn free_pages_are_mapped_where_they_are_needed() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, blocks) = fragmented(&fake, 20);
    let reserved = allocator.memory_reserved();
    let pages = fake.world().pages.len();
    // No free block is larger than a page. Free pages are remapped, and none is created.
    let block = allocator.malloc(20 * PAGE, &0).unwrap();
    assert_eq!((allocator.memory_reserved(), fake.world().pages.len()), (reserved, pages));
    assert_eq!(allocator.memory_stats().num_remaps, 20);
    assert!(fake.world().waits.is_empty(), "a stream need not wait for itself");
    check_state(&allocator);
    drop((block, blocks));
    allocator.empty_cache();
    assert_eq!(allocator.memory_reserved(), 0);
    assert!(fake.world().mappings.is_empty(), "former addresses are unmapped too");
}

#[test]
fn another_streams_pages_come_with_a_wait_on_the_device() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, _blocks) = fragmented(&fake, 20);
    fake.launch(0);
    let _block = allocator.malloc(20 * PAGE, &7).unwrap();
    assert_eq!(fake.world().waits, [(7, 0)]);
    assert_eq!((fake.world().syncs, allocator.memory_stats().num_sync_all_streams), (0, 0));
    check_state(&allocator);
}

#[test]
fn addresses_that_work_may_still_use_stay_mapped() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, _blocks) = fragmented(&fake, 20);
    fake.launch(0);
    let unmaps = fake.world().unmaps;
    let large = allocator.malloc(20 * PAGE, &0).unwrap();
    drop(large);
    for _ in 0..20 {
        let _again = allocator.malloc(3 * MIB, &0).unwrap();
    }
    assert_eq!(fake.world().unmaps, unmaps);
}

#[test]
fn new_pages_save_calls_if_free_memory_is_unusable() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    // Half of each page is free, but no page is free as a whole.
    let mut halves: Vec<_> = (0..200).map(|_| allocator.malloc(PAGE / 2, &0).unwrap()).collect();
    halves = halves.into_iter().skip(1).step_by(2).collect();
    assert_eq!(allocator.memory_reserved(), 100 * PAGE);
    // All of these pages are new. The reserved memory is now a tenth more than the peak of the
    // requests.
    let mut wholes: Vec<_> = (0..10).map(|_| allocator.malloc(PAGE, &0).unwrap()).collect();
    assert_eq!(allocator.memory_reserved(), 110 * PAGE);
    wholes = wholes.into_iter().skip(1).step_by(2).collect();
    // Two of the five free pages would suffice, but they are not adjacent. The headroom allows two
    // new pages.
    let first = allocator.malloc(2 * PAGE, &0).unwrap();
    assert_eq!(allocator.memory_reserved(), 112 * PAGE);
    assert_eq!(allocator.memory_stats().num_remaps, 0);
    // The headroom is used up, so two free pages are remapped.
    let second = allocator.malloc(2 * PAGE, &0).unwrap();
    assert_eq!(allocator.memory_reserved(), 112 * PAGE);
    assert_eq!(allocator.memory_stats().num_remaps, 2);
    check_state(&allocator);
    // Emptying the cache resets the headroom, so only the needed pages are created.
    drop((first, second, wholes, halves));
    allocator.empty_cache();
    let small: Vec<_> = (0..20).map(|_| allocator.malloc(PAGE / 2, &0).unwrap()).collect();
    assert_eq!(allocator.memory_reserved(), 10 * PAGE);
    drop(small);
}

#[test]
fn failed_requests_and_reset_peaks_cost_no_memory() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    let page = || allocator.malloc(PAGE, &0).unwrap();
    let mut pages: Vec<_> = (0..25).map(|_| page()).collect();
    for round in 0..10 {
        // Leave scattered free pages, and use up the headroom.
        let kept: Vec<_> = pages.into_iter().step_by(2).collect();
        let large: Vec<_> = (0..5).map(|_| allocator.malloc(2 * PAGE, &0).unwrap()).collect();
        let reserved = allocator.memory_reserved();
        assert!(reserved <= 27 * PAGE, "round {round}: {reserved}");
        drop(large);
        let error = allocator.malloc(2 << 40, &0).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        allocator.reset_peak_stats();
        pages = kept;
        pages.extend((pages.len()..25).map(|_| page()));
    }
    check_state(&allocator);
}

#[test]
fn without_virtual_memory_there_are_segments() {
    let fake = Fake::new(1 << 40);
    for options in ["policy:default", EXPANDABLE] {
        let allocator = fake.allocator(options);
        drop(allocator.malloc(3 * MIB, &0).unwrap());
        assert_eq!(allocator.memory_reserved(), 20 * MIB, "{options}");
        assert!(!allocator.segments()[0].is_expandable);
    }
}

#[test]
fn a_mapping_that_fails_leaves_everything_usable() {
    for options in ["policy:default", EXPANDABLE] {
        let fake = Fake::with_pages(1 << 40);
        let allocator = fake.allocator(options);
        let kept = allocator.malloc(5 * MIB, &0).unwrap();
        fake.world().fail_map = Some(FakeError::Fault);
        let error = allocator.malloc(50 * MIB, &0).unwrap_err();
        assert!(matches!(error, AllocError::Backend { .. }), "{error}");
        check_state(&allocator);
        fake.world().fail_map = None;
        drop(allocator.malloc(50 * MIB, &0).unwrap());
        drop(kept);
        check_state(&allocator);
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0);
    }
}

#[test]
fn expandable_segments_grow_at_the_first_place_that_is_long_enough() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator(EXPANDABLE);
    let page = |count: usize| allocator.malloc(count * 20 * MIB, &0).unwrap();
    let (first, _kept, last) = (page(2), page(1), page(1));
    let (start, end) = (first.address(), last.address());
    drop(first);
    allocator.empty_cache();
    drop(last);
    // The first range lacks two pages. The range at the end would lack only one.
    let block = page(2);
    assert_eq!(block.address(), start, "the free page is at {end:#x}");
    assert_eq!(allocator.memory_reserved(), 4 * 20 * MIB);
    check_state(&allocator);
}

#[test]
fn all_free_pages_count_when_memory_is_short() {
    // PyTorch fails here, because the free memory is scattered.
    let fake = Fake::with_pages(50 * PAGE);
    let allocator = fake.allocator("policy:default");
    let mut blocks: Vec<_> = (0..50).map(|_| allocator.malloc(PAGE, &0).unwrap()).collect();
    let mut kept = 0;
    blocks.retain(|_| {
        kept += 1;
        kept % 2 == 0
    });
    assert_eq!(allocator.malloc(25 * PAGE, &1).unwrap().size(), 25 * PAGE);
    check_state(&allocator);
}

#[test]
fn a_request_larger_than_the_device_is_out_of_memory() {
    for options in ["policy:default", EXPANDABLE] {
        let fake = Fake::with_pages(100 * MIB);
        let allocator = fake.allocator(options);
        let error = allocator.malloc(1 << 50, &0).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        check_state(&allocator);
    }
}

#[test]
fn the_memory_fraction_holds_for_pages() {
    for options in ["policy:default", EXPANDABLE] {
        let fake = Fake::with_pages(400 * MIB);
        let allocator = fake.allocator(&format!("{options},per_process_memory_fraction:0.25"));
        let kept = allocator.malloc(60 * MIB, &0).unwrap();
        let error = allocator.malloc(60 * MIB, &0).unwrap_err();
        assert!(error.to_string().contains("memory fraction"), "{error}");
        assert!(allocator.memory_reserved() <= 100 * MIB);
        drop(kept);
        assert!(allocator.malloc(90 * MIB, &0).is_ok(), "{options}");
    }
}

#[test]
fn streams_that_are_gone_leave_no_addresses_behind() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    for stream in 0..1000 {
        drop(allocator.malloc(5 * MIB, &stream).unwrap());
        if stream % 10 == 9 {
            allocator.empty_cache();
        }
    }
    assert!(fake.world().ranges.is_empty());
    assert_eq!(allocator.memory_reserved(), 0);
}

#[test]
fn pages_of_another_size_are_left_alone_when_the_options_change() {
    let options = ["expandable_segments:True", "policy:default"];
    for [first, then] in [options, [options[1], options[0]]] {
        let fake = Fake::with_pages(1 << 30);
        let allocator = fake.allocator(first);
        let kept = allocator.malloc(30 * MIB, &0).unwrap();
        drop(allocator.malloc(30 * MIB, &0).unwrap());
        allocator.set_config(AllocatorConfig::parse(then).unwrap());
        let block = allocator.malloc(70 * MIB, &0).unwrap();
        check_state(&allocator);
        drop((kept, block));
        allocator.empty_cache();
        assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0));
    }
}

#[test]
fn a_request_that_cannot_be_served_creates_no_pages() {
    for options in ["policy:default", "policy:default,per_process_memory_fraction:0.75"] {
        let fake = Fake::with_pages(2048 * MIB);
        let allocator = fake.allocator(options);
        let block = allocator.malloc(1024 * MIB, &0).unwrap();
        let pages = fake.world().asked.len();
        assert!(allocator.malloc(1100 * MIB, &0).unwrap_err().is_out_of_memory());
        assert_eq!(fake.world().asked.len(), pages);
        // Free pages count as available memory.
        let held = [300, 200].map(|mib| allocator.malloc(mib * MIB, &1).unwrap());
        drop(block);
        assert!(allocator.malloc(1030 * MIB, &0).is_ok());
        drop(held);
    }
}

#[test]
fn pages_of_an_idle_stream_serve_other_streams() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    let block = allocator.malloc(400 * MIB, &1).unwrap();
    block.record_stream(&0);
    fake.launch_on(0, &block);
    drop(block);
    fake.complete(0);
    // The use by stream 0 is complete, but no request of stream 1 has polled for the completion.
    let _block = allocator.malloc(400 * MIB, &0).unwrap();
    assert!(allocator.memory_reserved() <= 410 * MIB, "{}", allocator.memory_reserved());
}
