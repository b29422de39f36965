//! The default policy when enough memory is free, but in scattered pieces.

use std::sync::{Arc, Mutex};

use warpline_alloc::{AllocError, Block, CachingAllocator};

use crate::common::{Act, Fake, FakeError, MIB, PAGE, Physical, Random, check_state};

fn physical(fake: &Fake, block: &Block<Fake>) -> Physical {
    crate::common::physical(fake, block.address(), block.size())
}

/// Creates an allocator with `count` free pages, each between two live blocks of a page.
fn comb(fake: &Fake, count: usize) -> (CachingAllocator<Fake>, Vec<Block<Fake>>) {
    let allocator = fake.allocator("policy:default");
    let blocks = (0..2 * count + 1).map(|_| allocator.malloc(PAGE, &0).unwrap());
    let mut blocks: Vec<_> = blocks.collect();
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 2 == 1
    });
    (allocator, blocks)
}

#[test]
fn a_window_serves_the_next_request_without_a_call() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, _blocks) = comb(&fake, 20);
    let first = allocator.malloc(20 * PAGE, &0).unwrap().address();
    let calls = fake.world().calls;
    // The window serves smaller blocks too.
    for bytes in [20 * PAGE, 19 * PAGE + 512, 20 * PAGE - 512] {
        let again = allocator.malloc(bytes, &0).unwrap();
        assert_eq!(again.address(), first);
        check_state(&allocator);
    }
    let made = fake.world().calls - calls;
    assert_eq!(made, 0);
    assert_eq!(allocator.memory_stats().num_remaps, 20);
}

#[test]
fn a_block_takes_no_more_of_the_last_page_than_it_needs() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, _blocks) = comb(&fake, 20);
    let reserved = allocator.memory_reserved();
    let large = allocator.malloc(20 * PAGE - 3 * MIB, &0).unwrap();
    let rest = allocator.malloc(3 * MIB, &0).unwrap();
    assert_eq!(allocator.memory_reserved(), reserved);
    let [large, rest] = [&large, &rest].map(|block| physical(&fake, block));
    assert!(large.iter().any(|part| part.0 == rest[0].0), "they share a page");
    check_state(&allocator);
}

#[test]
fn memory_goes_back_to_where_it_was() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, blocks) = comb(&fake, 20);
    let before = allocator.segments().len();
    let moves: Arc<Mutex<Vec<(u64, u64, usize)>>> = Arc::default();
    let seen = Arc::clone(&moves);
    allocator.on_remap(move |from, to, bytes| seen.lock().unwrap().push((from, to, bytes)));
    let large = allocator.malloc(20 * PAGE - 512, &0).unwrap();
    let out = std::mem::take(&mut *moves.lock().unwrap());
    assert_eq!(out.iter().map(|(_, _, bytes)| bytes).sum::<usize>(), large.size());
    drop(large);
    let back: Vec<_> = out.iter().map(|&(from, to, bytes)| (to, from, bytes)).collect();
    assert_eq!(*moves.lock().unwrap(), back);
    assert_eq!(allocator.segments().len(), before);
    // After the neighbours are freed, the free memory is contiguous again.
    drop(blocks);
    let all = allocator.malloc(41 * PAGE, &0).unwrap();
    assert_eq!(allocator.memory_stats().num_remaps, 20);
    drop(all);
    allocator.empty_cache();
    assert_eq!(fake.world().used(), 0);
    assert!(fake.world().mappings.is_empty());
    assert!(fake.world().ranges.is_empty());
}

#[test]
fn windows_of_other_streams_are_returned_when_these_are_done() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, _blocks) = comb(&fake, 8);
    let large = allocator.malloc(8 * PAGE, &0).unwrap();
    large.record_stream(&1);
    fake.launch_on(1, &large);
    drop(large);
    let reserved = allocator.memory_reserved();
    let other = allocator.malloc(8 * PAGE, &0).unwrap();
    assert_eq!(allocator.memory_reserved(), reserved + 8 * PAGE, "it waits for the other stream");
    check_state(&allocator);
    drop(other);
    fake.complete(1);
    let _both = [8 * PAGE, 8 * PAGE].map(|bytes| allocator.malloc(bytes, &0).unwrap());
    assert_eq!(allocator.memory_reserved(), reserved + 8 * PAGE);
    check_state(&allocator);
}

#[test]
fn a_window_that_cannot_be_mapped_leaves_everything_usable() {
    for error in [FakeError::Fault, FakeError::OutOfMemory] {
        let fake = Fake::with_pages(41 * PAGE);
        let (allocator, blocks) = comb(&fake, 20);
        let before = allocator.segments();
        fake.world().fail_map = Some(error);
        let failed = allocator.malloc(20 * PAGE, &0).unwrap_err();
        assert_eq!(matches!(failed, AllocError::Backend { .. }), error == FakeError::Fault);
        check_state(&allocator);
        fake.world().fail_map = None;
        if error == FakeError::Fault {
            assert_eq!(allocator.segments(), before);
        }
        drop(allocator.malloc(20 * PAGE, &0).unwrap());
        drop(blocks);
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0);
        assert!(fake.world().mappings.is_empty());
    }
}

#[test]
fn empty_cache_keeps_a_block_in_pieces() {
    let fake = Fake::with_pages(1 << 40);
    let (allocator, blocks) = comb(&fake, 20);
    let large = allocator.malloc(12 * PAGE - 512, &0).unwrap();
    let memory = physical(&fake, &large);
    drop(blocks);
    allocator.empty_cache();
    assert_eq!(allocator.memory_reserved(), 12 * PAGE);
    assert_eq!(physical(&fake, &large), memory);
    check_state(&allocator);
    let other = allocator.malloc(30 * PAGE, &0).unwrap();
    check_state(&allocator);
    drop((large, other));
    allocator.empty_cache();
    assert_eq!(fake.world().used(), 0);
    assert!(fake.world().ranges.is_empty());
}

/// Frees random pages among a stream's 64 pages and allocates their total size as one block,
/// `times` times. `completes` selects the steps after which the stream's work completes.
fn combine(
    fake: &Fake,
    allocator: &CachingAllocator<Fake>,
    stream: u64,
    times: usize,
    completes: impl Fn(usize) -> bool,
) -> Vec<Option<Block<Fake>>> {
    let page = || Some(allocator.malloc(PAGE, &stream).unwrap());
    let mut blocks: Vec<_> = (0..64).map(|_| page()).collect();
    let mut random = Random(stream + 1);
    for step in 0..times {
        (0..16).for_each(|_| blocks[random.below(64)] = None);
        let free = blocks.iter().filter(|block| block.is_none()).count();
        let large = allocator.malloc(free * PAGE, &stream).unwrap();
        fake.launch_on(stream, &large);
        if fake.world().waits_for_device {
            // The allocator has no record of this use.
            fake.launch_on(9, &large);
        }
        drop(large);
        blocks.iter_mut().filter(|block| block.is_none()).for_each(|block| *block = page());
        if completes(step) {
            fake.complete(stream);
        }
    }
    blocks
}

/// Completes the work during the first half of every hundred steps.
fn at_times(step: usize) -> bool {
    step % 100 < 50
}

#[test]
fn windows_that_are_not_in_use_are_given_up_when_there_are_many() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    let _blocks = combine(&fake, &allocator, 0, 3000, at_times);
    let pages = fake.world().pages.len();
    let mappings = fake.world().mappings.len();
    assert!(allocator.memory_stats().num_remaps > 10 * (pages + 32) as i64);
    assert!(mappings < 20 * (pages + 32), "{mappings} mappings of {pages} pages");
    check_state(&allocator);
}

/// Retired windows must stay mapped while work is pending. The fake backend fails otherwise.
#[test]
fn windows_that_were_given_up_stay_mapped_until_their_work_is_done() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    let _blocks = combine(&fake, &allocator, 0, 200, |_| false);
    fake.complete(0);
}

/// Retired windows must stay mapped while work without a record is pending. The allocator unmaps
/// many windows after one wait for the device.
#[test]
fn retired_windows_stay_mapped_for_unrecorded_work() {
    let fake = Fake::with_pages(1 << 40);
    fake.world().waits_for_device = true;
    let allocator = fake.allocator("policy:default");
    let blocks = combine(&fake, &allocator, 0, 3000, at_times);
    let (waits, unmaps) = {
        let world = fake.world();
        (world.device_waits, world.unmaps)
    };
    assert!(waits > 0 && waits * 100 < unmaps, "{waits} waits, {unmaps} unmapped");
    // If waits for the device fail, no window is unmapped, and new windows get unused addresses.
    fake.world().fail_device_wait = Some(FakeError::Fault);
    drop(blocks);
    let _blocks = combine(&fake, &allocator, 0, 1000, at_times);
    assert_eq!(fake.world().unmaps, unmaps);
    check_state(&allocator);
}

/// Addresses that the backend refuses to unmap are not chosen for another window.
#[test]
fn a_window_that_cannot_be_unmapped_costs_its_addresses_alone() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    fake.world().refuses = Some((Random(3), 50));
    let blocks = combine(&fake, &allocator, 0, 2000, at_times);
    assert!(fake.world().refusals > 100 && fake.world().unmaps > 100);
    check_state(&allocator);
    assert!(allocator.memory_stats().refused_releases > 0);
    fake.world().refuses = None;
    drop(blocks);
    allocator.empty_cache();
    assert_eq!(allocator.memory_stats().refused_releases, 0);
    assert_eq!(fake.world().used(), 0);
}

#[test]
fn all_streams_together_have_not_too_many_windows() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    let combine = |stream| combine(&fake, &allocator, stream, 1500, at_times);
    let _blocks: Vec<_> = (0..8).map(combine).collect();
    let pages = fake.world().pages.len();
    let mappings = fake.world().mappings.len();
    assert!(mappings < 30 * (pages + 32), "{mappings} mappings of {pages} pages");
    check_state(&allocator);
}

/// Pages migrate between streams and back, to former homes or to new addresses.
#[test]
fn streams_that_take_turns_share_their_pages() {
    for seed in 0..40u64 {
        // Every second run has little memory.
        let fake = Fake::with_pages([1 << 40, 47 * PAGE][seed as usize % 2]);
        let allocator = fake.allocator("policy:default");
        let mut live: Vec<Block<Fake>> = Vec::new();
        let mut random = Random(seed);
        let mut pick = |n: usize| random.below(n);
        for step in 0..400 {
            if live.len() > pick(1 + step / 40) {
                live.swap_remove(pick(live.len()));
            }
            let bytes = [16, 16, 5, 9][pick(4)] * PAGE - [0, 3 * MIB][pick(2)];
            match allocator.malloc(bytes, &(pick(5) as u64)) {
                Ok(block) => live.push(block),
                Err(error) => assert!(error.is_out_of_memory() && seed % 2 == 1, "{error}"),
            }
            check_state(&allocator);
        }
        let requested = allocator.memory_stats().requested_bytes.all.peak as usize;
        assert!(allocator.memory_reserved() <= requested + requested / 64 + 8 * MIB + 10 * PAGE);
        live.clear();
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0, "seed {seed}");
        assert!(fake.world().ranges.is_empty());
    }
}

/// Enqueues work on a block and drops the block right after the wait in `empty_cache`.
#[test]
fn empty_cache_leaves_windows_that_were_in_use_before_it_waited() {
    for neighbours_stay in [true, false] {
        let fake = Fake::with_pages(1 << 40);
        let (allocator, blocks) = comb(&fake, 20);
        let large = allocator.malloc(20 * PAGE, &0).unwrap();
        let kept = neighbours_stay.then_some(blocks);
        let late = fake.clone();
        fake.world().after_sync = Some(Act(Box::new(move || {
            late.launch_on(0, &large);
            std::thread::spawn(move || drop(large)).join().unwrap();
        })));
        allocator.empty_cache();
        assert!(fake.world().after_sync.is_none());
        check_state(&allocator);
        drop(kept);
        fake.complete(0);
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0);
        assert!(fake.world().ranges.is_empty());
    }
}

#[test]
fn streams_that_take_turns_on_a_full_device_settle() {
    let options = ["policy:default", "policy:default,per_process_memory_fraction:0.1"];
    for (capacity, options) in [(100, options[0]), (1000, options[1])] {
        let fake = Fake::with_pages(capacity * PAGE);
        let allocator = fake.allocator(options);
        let _fill = [0, 1].map(|stream| allocator.malloc(10 * PAGE, &stream).unwrap());
        let turn = |times: u64| {
            for step in 0..times {
                let block = allocator.malloc(80 * PAGE, &(step % 2)).unwrap();
                fake.launch_on(step % 2, &block);
                drop(block);
                [0, 1].iter().for_each(|&stream| fake.complete(stream));
            }
            let mappings = fake.world().mappings.len();
            (allocator.memory_stats().num_remaps, mappings)
        };
        let settled = turn(20);
        assert_eq!(turn(100), settled, "{options}");
    }
}

#[test]
fn one_streams_windows_do_not_cost_another_its_own() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    let fill = |stream: u64| {
        let blocks = (0..81).map(|_| allocator.malloc(PAGE, &stream).unwrap());
        blocks.enumerate().filter(|(at, _)| at % 2 == 0).collect::<Vec<_>>()
    };
    let _fill = [fill(0), fill(1)];
    // Allocates a stream's 40 free pages one by one, frees those that `gives` selects, and allocates
    // their total size as one block.
    let step = |stream: u64, gives: &dyn Fn(usize) -> bool| {
        let mut held: Vec<_> =
            (0..40).map(|_| Some(allocator.malloc(PAGE, &stream).unwrap())).collect();
        (0..40).filter(|&at| gives(at)).for_each(|at| held[at] = None);
        let count = held.iter().filter(|block| block.is_none()).count();
        drop(allocator.malloc(count * PAGE, &stream).unwrap());
        fake.complete(stream);
    };
    for layout in 0..100usize {
        step(0, &|at| (at * (layout + 3)) % 7 < 3);
    }
    let remaps = || allocator.memory_stats().num_remaps;
    let all = || (3..7).for_each(|k| step(1, &|at| (at * k) % 5 < 2));
    all();
    let settled = remaps();
    all();
    assert_eq!(remaps(), settled);
}
