//! Requests that exceed the available memory.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline_alloc::AllocError;

use crate::common::{Fake, FakeError, MIB, check_state};

#[test]
fn the_error_states_the_facts_and_leaves_everything_usable() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator("");
    let kept = allocator.malloc(30 * MIB, &0).unwrap();
    let small = allocator.malloc(512, &0).unwrap();
    let error = allocator.malloc(80 * MIB, &0).unwrap_err();
    let AllocError::OutOfMemory(facts) = &error else { panic!("{error:?}") };
    assert_eq!((facts.requested, facts.segment), (80 * MIB, 80 * MIB));
    assert_eq!((facts.free, facts.total), (Some(68 * MIB), Some(100 * MIB)));
    assert_eq!((facts.allocated, facts.reserved), (30 * MIB + 512, 32 * MIB));
    assert_eq!((facts.device.as_str(), facts.limit), ("fake:0", None));
    assert!(error.is_out_of_memory());
    let text = error.to_string();
    for fact in [
        "fake:0 out of memory. Tried to allocate 80.00 MiB.",
        "total capacity of 100.00 MiB of which 68.00 MiB is free",
        "30.00 MiB is allocated, and 2.00 MiB is reserved but unallocated",
    ] {
        assert!(text.contains(fact), "{text}");
    }
    let stats = allocator.memory_stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (1, 1));
    check_state(&allocator);
    assert_eq!(allocator.malloc(60 * MIB, &0).unwrap().size(), 60 * MIB);
    drop((kept, small));
    assert_eq!(allocator.memory_allocated(), 0);
}

#[test]
fn cached_memory_is_released_and_the_request_is_retried() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator("");
    drop(allocator.malloc(60 * MIB, &1).unwrap());
    let block = allocator.malloc(80 * MIB, &0).unwrap();
    assert_eq!(allocator.memory_reserved(), 80 * MIB);
    let stats = allocator.memory_stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms), (1, 0));
    assert_eq!((stats.num_device_alloc, stats.num_device_free), (2, 1));
    drop(block);
    check_state(&allocator);
}

#[test]
fn the_cache_is_searched_again_once_pending_streams_are_done() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator("");
    let block = allocator.malloc(80 * MIB, &0).unwrap();
    let anchor = allocator.malloc(512, &0).unwrap();
    let address = block.address();
    block.record_stream(&1);
    fake.launch(1);
    drop(block);
    // After a wait for stream 1 the freed block fits. No segment needs to be released.
    let again = allocator.malloc(80 * MIB, &0).unwrap();
    assert_eq!(again.address(), address);
    let stats = allocator.memory_stats();
    assert_eq!((stats.num_device_free, stats.num_alloc_retries, stats.num_ooms), (0, 0, 0));
    assert_eq!(stats.num_sync_all_streams, 1);
    drop(anchor);
}

#[test]
fn a_part_of_a_segment_freed_under_pressure_is_found() {
    let fake = Fake::new(20 * MIB);
    let allocator = fake.allocator("");
    // The segment of 20 MiB cannot be released, because one of its two blocks stays live.
    let kept = allocator.malloc(5 * MIB, &0).unwrap();
    let block = allocator.malloc(9 * MIB, &0).unwrap();
    block.record_stream(&1);
    fake.launch(1);
    drop(block);
    let again = allocator.malloc(15 * MIB, &0).unwrap();
    assert_eq!(again.address(), kept.address() + 5 * MIB as u64);
}

#[test]
fn the_memory_fraction_holds() {
    let total = 1000 * MIB;
    let fake = Fake::new(total);
    let allocator = fake.allocator("");
    allocator.set_memory_fraction(0.5).unwrap();
    let bytes = (total as f64 * 0.499) as usize;
    drop(allocator.malloc(bytes, &0).unwrap());
    allocator.empty_cache();
    // Half of the memory is a multiple of 2 MiB, the granularity of large segments, so exactly half
    // fits. One more byte does not.
    drop(allocator.malloc(total / 2, &0).unwrap());
    let error = allocator.malloc(total / 2 + 1, &0).unwrap_err();
    let AllocError::OutOfMemory(facts) = &error else { panic!("{error:?}") };
    assert_eq!(facts.limit, Some(500 * MIB));
    assert!(error.to_string().contains("500.00 MiB allowed"), "{error}");
    // The limit is checked before the backend is called.
    assert!(fake.world().asked.iter().all(|asked| *asked <= 500 * MIB));
    for bad in [-0.1, 1.1, f64::NAN] {
        assert!(allocator.set_memory_fraction(bad).is_err());
    }
    allocator.set_memory_fraction(1.0).unwrap();
    assert!(allocator.malloc(total / 2 + 1, &0).is_ok());
    let configured = fake.allocator("per_process_memory_fraction:0.1");
    allocator.empty_cache();
    assert!(configured.malloc(101 * MIB, &0).unwrap_err().is_out_of_memory());
}

#[test]
fn observers_run_without_the_lock() {
    let fake = Fake::new(50 * MIB);
    let allocator = fake.allocator("");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, inner) = (seen.clone(), allocator.clone());
    allocator.on_out_of_memory(move |facts| {
        // Each of these calls would deadlock if a lock were held.
        let stats = inner.memory_stats();
        inner.empty_cache();
        drop(inner.malloc(512, &0).unwrap());
        log.lock().unwrap().push((facts.requested, stats.num_ooms));
    });
    assert!(allocator.malloc(60 * MIB, &0).is_err());
    assert!(allocator.malloc(70 * MIB, &0).is_err());
    assert_eq!(*seen.lock().unwrap(), [(60 * MIB, 1), (70 * MIB, 2)]);
}

#[test]
fn callbacks_are_asked_before_the_backend() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let hoard = Arc::new(Mutex::new(vec![allocator.malloc(30 * MIB, &0).unwrap()]));
    let calls = Arc::new(AtomicUsize::new(0));
    let (freed, count) = (hoard.clone(), calls.clone());
    allocator.on_cache_miss(move || {
        count.fetch_add(1, Ordering::Relaxed);
        freed.lock().unwrap().pop().is_some()
    });
    let block = allocator.malloc(30 * MIB, &0).unwrap();
    assert_eq!((fake.world().asked.len(), calls.load(Ordering::Relaxed)), (1, 1));
    let other = allocator.malloc(30 * MIB, &0).unwrap();
    assert_eq!((fake.world().asked.len(), calls.load(Ordering::Relaxed)), (2, 2));
    drop((block, other));
}

#[test]
fn oversize_segments_are_released_first() {
    let fake = Fake::new(200 * MIB);
    let allocator = fake.allocator("max_split_size_mb:40");
    drop([50, 60].map(|mib| allocator.malloc(mib * MIB, &0).unwrap()));
    drop(allocator.malloc(20 * MIB, &0).unwrap());
    // 130 MiB are cached and 70 MiB of device memory are free. The oversize segments of 60 and 50 MiB
    // are released, because their total suffices for the request. The segment of 20 MiB stays.
    let block = allocator.malloc(100 * MIB, &0).unwrap();
    let stats = allocator.memory_stats();
    assert_eq!((stats.num_device_free, stats.num_alloc_retries), (2, 0));
    assert_eq!(allocator.memory_reserved(), 120 * MIB);
    drop(block);
    // The free segment of 100 MiB must not serve the request, because it is larger by more than
    // `max_non_split_rounding`. 80 MiB of device memory are free, so no segment is released.
    drop(allocator.malloc(41 * MIB, &0).unwrap());
    assert_eq!(allocator.memory_stats().num_device_free, 2);
    check_state(&allocator);
}

#[test]
fn too_few_oversize_segments_are_followed_by_the_rest() {
    let fake = Fake::new(200 * MIB);
    let allocator = fake.allocator("max_split_size_mb:40");
    drop(allocator.malloc(50 * MIB, &0).unwrap());
    drop(allocator.malloc(30 * MIB, &1).unwrap());
    let _block = allocator.malloc(190 * MIB, &0).unwrap();
    let stats = allocator.memory_stats();
    assert_eq!((stats.num_device_free, stats.num_alloc_retries), (2, 1));
}

#[test]
fn garbage_collection_frees_the_longest_idle_blocks() {
    let fake = Fake::new(1000 * MIB);
    let allocator =
        fake.allocator("garbage_collection_threshold:0.5,per_process_memory_fraction:0.8");
    // The threshold is 400 MiB.
    let old = allocator.malloc(150 * MIB, &0).unwrap();
    let young = allocator.malloc(200 * MIB, &0).unwrap();
    drop(old);
    for _ in 0..10 {
        drop(allocator.malloc(20 * MIB, &1).unwrap());
    }
    drop(young);
    assert_eq!(allocator.memory_stats().num_device_free, 0, "under the threshold");
    let a = allocator.malloc(100 * MIB, &2).unwrap();
    assert_eq!(allocator.memory_stats().num_device_free, 0, "370 MiB were reserved before");
    let b = allocator.malloc(100 * MIB, &2).unwrap();
    // The reserved 470 MiB exceed the threshold by 70 MiB. The block of 150 MiB is the oldest and
    // suffices.
    let sizes: Vec<_> = allocator.segments().iter().map(|s| s.total_size / MIB).collect();
    assert_eq!(sizes, [200, 20, 100, 100]);
    drop((a, b));
    check_state(&allocator);
}

#[test]
fn garbage_is_not_collected_without_a_fraction() {
    let fake = Fake::new(1000 * MIB);
    let allocator = fake.allocator("garbage_collection_threshold:0.1");
    drop(allocator.malloc(300 * MIB, &0).unwrap());
    drop(allocator.malloc(300 * MIB, &1).unwrap());
    assert_eq!(allocator.memory_stats().num_device_free, 0);
}

#[test]
fn other_failures_of_the_backend_are_returned() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    fake.world().fail_alloc = Some(FakeError::Fault);
    let error = allocator.malloc(512, &0).unwrap_err();
    assert_eq!(error.backend::<FakeError>(), Some(&FakeError::Fault));
    assert!(!error.is_out_of_memory());
    assert_eq!(allocator.memory_stats().num_ooms, 0);
    fake.world().fail_alloc = None;
    assert!(allocator.malloc(512, &0).is_ok());
    check_state(&allocator);
}

#[test]
fn an_observer_that_panics_poisons_nothing() {
    let allocator = Fake::new(MIB).allocator("");
    allocator.on_out_of_memory(|_| panic!("observer"));
    let inner = allocator.clone();
    assert!(std::thread::spawn(move || inner.malloc(512, &0).map(drop)).join().is_err());
    assert_eq!(allocator.memory_stats().num_ooms, 1);
    assert_eq!(allocator.memory_reserved(), 0);
}
