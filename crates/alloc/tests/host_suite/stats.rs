//! Statistics and reports.

use crate::common::{Fake, MIB, Random, check_state};

#[test]
fn the_keys_are_pytorchs() {
    let keys: Vec<&str> = include_str!("../data/memory_stats_keys.txt").lines().collect();
    let map = Fake::new(0).allocator("").memory_stats().as_map();
    assert_eq!(map.keys().map(String::as_str).collect::<Vec<_>>(), keys);
    assert_eq!(map["max_split_size"], -1);
}

#[test]
fn one_byte_allocated_and_freed_restores_the_counter() {
    let allocator = Fake::new(1 << 40).allocator("");
    let before = allocator.memory_allocated();
    let block = allocator.malloc(1, &0).unwrap();
    assert_eq!(allocator.memory_allocated(), before + 512);
    assert_eq!(allocator.memory_stats().requested_bytes.all.current, 1);
    drop(block);
    assert_eq!(allocator.memory_allocated(), before);
}

#[test]
fn peaks_and_sums_can_be_reset() {
    let allocator = Fake::new(1 << 40).allocator("");
    let kept = allocator.malloc(1024, &0).unwrap();
    drop(allocator.malloc(2 * MIB, &0).unwrap());
    let bytes = allocator.memory_stats().allocated_bytes;
    assert_eq!((bytes.all.current, bytes.all.peak), (1024, 1024 + 2 * MIB as i64));
    assert_eq!((bytes.all.allocated, bytes.all.freed), (1024 + 2 * MIB as i64, 2 * MIB as i64));
    assert_eq!((bytes.small_pool.peak, bytes.large_pool.peak), (1024, 2 * MIB as i64));

    allocator.reset_peak_stats();
    let bytes = allocator.memory_stats().allocated_bytes;
    assert_eq!((bytes.all.peak, bytes.large_pool.peak, bytes.small_pool.peak), (1024, 0, 1024));

    allocator.reset_accumulated_stats();
    let stats = allocator.memory_stats();
    let bytes = stats.allocated_bytes.all;
    assert_eq!((bytes.current, bytes.allocated, bytes.freed), (1024, 0, 0));
    assert_eq!(stats.num_device_alloc, 0);
    drop(kept);
    let bytes = allocator.memory_stats().allocated_bytes.all;
    assert_eq!((bytes.current, bytes.allocated, bytes.freed), (0, 0, 1024));
}

#[test]
fn the_peak_of_both_pools_is_not_the_sum_of_their_peaks() {
    let allocator = Fake::new(1 << 40).allocator("");
    drop(allocator.malloc(MIB, &0).unwrap());
    drop(allocator.malloc(2 * MIB, &0).unwrap());
    let bytes = allocator.memory_stats().allocated_bytes;
    assert_eq!(bytes.all.peak, 2 * MIB as i64);
    assert_eq!(bytes.small_pool.peak + bytes.large_pool.peak, 3 * MIB as i64);
}

#[test]
fn allocators_are_independent() {
    let [a, b] = [Fake::new(1 << 40), Fake::new(1 << 40)].map(|fake| fake.allocator(""));
    let (x, y) = (a.malloc(3 * MIB, &0).unwrap(), b.malloc(512, &0).unwrap());
    assert_eq!((a.memory_allocated(), b.memory_allocated()), (3 * MIB, 512));
    drop(x);
    assert_eq!((a.memory_allocated(), b.memory_allocated()), (0, 512));
    drop(y);
}

#[test]
fn the_snapshot_adds_up_after_every_step() {
    let allocator = Fake::new(1 << 40).allocator("");
    let mut live = Vec::new();
    let mut random = Random(12345);
    for _ in 0..100 {
        let pick = random.below(usize::MAX);
        if pick.is_multiple_of(3) && !live.is_empty() {
            live.swap_remove(pick % live.len());
        } else {
            let bytes = 1 << (pick % 24);
            live.push(allocator.malloc(bytes + pick % 511, &(pick as u64 % 2)).unwrap());
        }
        check_state(&allocator);
    }
}

/// Replaces digits, which differ between runs, so that the columns of two tables compare equal.
fn form(line: &str) -> String {
    line.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect()
}

#[test]
fn the_summary_has_pytorchs_form() {
    // The summary names a GPU only for CUDA devices, so adapt PyTorch's rows.
    let golden = include_str!("../data/memory_summary.txt")
        .replace("GPU reserved memory   |", "Reserved memory       |")
        .replace("GPU reserved segments |", "Reserved segments     |")
        .replace("Oversize GPU segments |", "Oversize segments     |");
    let golden: Vec<&str> = golden.lines().collect();
    let allocator = Fake::new(1 << 40).allocator("");
    let _block = allocator.malloc(300 * 300 * 300 * 4, &0).unwrap();
    let summary = allocator.memory_summary();
    let lines: Vec<&str> = summary.lines().collect();
    assert_eq!(lines.len(), golden.len());
    for (i, (line, golden)) in lines.iter().zip(&golden).enumerate() {
        assert_eq!(line.len(), golden.len(), "{line}");
        match i {
            // The title and the row of counts differ from PyTorch's on purpose.
            1 | 3 => {}
            _ => assert_eq!(form(line)[..25], form(golden)[..25], "line {i}"),
        }
    }
    assert!(lines[1].contains("Warpline memory summary, fake:0"));
    assert!(!summary.contains("GPU"), "{summary}");
    // The allocator is in the state of the golden table, so the current and peak columns are equal.
    for at in [7, 11, 15, 19, 27, 35] {
        assert_eq!(lines[at][..50], golden[at][..50]);
    }
    assert_eq!(lines[23][..50], golden[23][..50]);
}

#[test]
fn the_peak_of_free_parts_counts_a_block_that_was_taken_again_at_once() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("policy:torch");
    let kept = allocator.malloc(512, &0).unwrap();
    let freed = allocator.malloc(4096, &0).unwrap();
    allocator.reset_peak_stats();
    drop(freed);
    let other = allocator.malloc(8192, &0).unwrap();
    let peak = allocator.memory_stats().inactive_split_bytes.all.peak;
    assert_eq!(peak, 2 * MIB as i64 - 512);
    drop((kept, other));
}
