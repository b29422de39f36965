//! Tests of operations that change a version, and of operations that do not.

use std::panic::Location;

use warpline_cuda_sys_safe::MemsetValue;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_stream::Stream;

use super::Version;
use crate::graph::{Capturing, GraphPool};
use crate::launch::{copy_bytes, memset, read_bytes, write_bytes};
use crate::testing::{copy, fill, small_sim};
use crate::{DType, Layout, Runtime, RuntimeConfig, Staging, Storage, SyncPolicy, Target, View};

const BYTES: usize = 1024;

fn runtime(policy: SyncPolicy, unlinked_peers: Vec<(usize, usize)>) -> Runtime {
    let sim = SimConfig { schedule: Schedule::Lazy, unlinked_peers, ..small_sim(2) }.build();
    // These options stage some copies of the test and not others.
    let staging = Staging { from: 512, chunk: 256, threads: 2 };
    let config = RuntimeConfig { sync_policy: policy, staging, ..RuntimeConfig::default() };
    Runtime::new(sim, config).unwrap()
}

/// Returns a storage on each of two devices, a page-locked storage and a pageable storage.
fn storages(runtime: &Runtime, streams: &[Stream; 2]) -> [Storage; 4] {
    [
        Storage::device(runtime, BYTES, &streams[0]).unwrap(),
        Storage::device(runtime, BYTES, &streams[1]).unwrap(),
        Storage::pinned(runtime, BYTES).unwrap(),
        Storage::pageable(runtime, BYTES).unwrap(),
    ]
}

fn streams(runtime: &Runtime) -> [Stream; 2] {
    [0, 1].map(|d| runtime.device(d).unwrap().device().stream_from_pool(0).unwrap())
}

/// Checks that `f` changes the versions of the storages `to`, and no others.
#[track_caller]
fn writes(all: &[Storage], to: &[usize], f: impl FnOnce()) {
    let before: Vec<Version> = all.iter().map(Storage::version).collect();
    f();
    for (i, (storage, version)) in all.iter().zip(&before).enumerate() {
        assert_eq!(version.is_of(storage), !to.contains(&i), "storage {i}");
    }
}

#[test]
fn every_way_to_write_changes_the_version_and_reads_do_not() {
    let here = Location::caller();
    for policy in [SyncPolicy::Auto, SyncPolicy::Manual] {
        for unlinked in [vec![], vec![(0, 1)]] {
            let runtime = runtime(policy, unlinked);
            let streams = streams(&runtime);
            let all = storages(&runtime, &streams);
            // The stream of device 1 if either storage is there, otherwise the stream of device 0.
            let stream = |d: usize, s: usize| &streams[if d == 1 || s == 1 { 1 } else { 0 }];
            for d in 0..4 {
                for s in 0..4 {
                    if d == s || (d > 1 && s > 1) {
                        continue;
                    }
                    for bytes in [8, BYTES] {
                        writes(&all, &[d], || {
                            let (dst, src) = ((&all[d], 0), (&all[s], 0));
                            copy_bytes(stream(d, s), dst, src, bytes, true, here).unwrap();
                        });
                    }
                }
            }
            let value = MemsetValue::U8(1);
            for (i, stream) in streams.iter().enumerate() {
                writes(&all, &[i], || {
                    memset(stream, (&all[i], 0), value, 8, "fill_", here).unwrap();
                });
            }
            for i in [2, 3] {
                writes(&all, &[i], || write_bytes((&all[i], 0), &[1; 8]).unwrap());
                writes(&all, &[], || read_bytes((&all[i], 0), &mut [0; 8]).unwrap());
            }
            // Writes through another view of a part of the storage.
            let (layout, other) = (Layout::contiguous(&[4]).unwrap(), Layout::contiguous(&[4]));
            let (gpu, cpu) = (runtime.device(0).unwrap(), Target::Cpu(&runtime));
            let gpu = Target::Cuda(&runtime, gpu, &streams[0]);
            let other = other.unwrap();
            for (i, target) in [(0, gpu), (2, cpu), (3, cpu)] {
                let view = View { storage: &all[i], layout: &layout, dtype: DType::F32 };
                writes(&all, &[i], || fill(target, view, 1).unwrap());
                let from = if i == 2 { 3 } else { 2 };
                let view = View { storage: &all[i], layout: &layout, dtype: DType::F32 };
                let src = View { storage: &all[from], layout: &other, dtype: DType::F32 };
                if i > 0 {
                    writes(&all, &[i], || copy(cpu, src, view).unwrap());
                }
            }
        }
    }
}

#[test]
fn a_write_changes_the_version_when_it_is_captured_and_when_it_is_replayed() {
    let here = Location::caller();
    for policy in [SyncPolicy::Auto, SyncPolicy::Manual] {
        let runtime = runtime(policy, vec![]);
        let streams = streams(&runtime);
        let mut all = storages(&runtime, &streams).to_vec();
        let pool = GraphPool::new(runtime.device(0).unwrap());
        let [stream, _] = &streams;
        stream.synchronize().unwrap();
        let mut graph = None;
        writes(&all, &[0, 2], || {
            let capturing = Capturing::begin(&runtime, stream, &pool).unwrap();
            memset(stream, (&all[0], 0), MemsetValue::U8(1), 8, "fill_", here).unwrap();
            copy_bytes(stream, (&all[2], 0), (&all[0], 0), 8, true, here).unwrap();
            let made = Storage::device(&runtime, BYTES, stream).unwrap();
            memset(stream, (&made, 0), MemsetValue::U8(1), 8, "fill_", here).unwrap();
            graph = Some((capturing.end().unwrap(), made));
        });
        let (graph, made) = graph.unwrap();
        all.push(made);
        writes(&all, &[0, 2, 4], || graph.replay(stream).unwrap());
        writes(&all, &[0, 2, 4], || graph.replay(stream).unwrap());
        // Take a version after zero, one and two replays in a row.
        for before in 0..3 {
            (0..before).for_each(|_| graph.replay(stream).unwrap());
            let version = all[0].version();
            assert!(version.is_of(&all[0]));
            (0..2).for_each(|_| graph.replay(stream).unwrap());
            assert!(!version.is_of(&all[0]), "{policy:?}, {before}");
        }
    }
}

#[test]
fn a_new_storage_never_has_the_version_of_a_dropped_one() {
    let runtime = runtime(SyncPolicy::Auto, vec![]);
    let gone = Storage::pageable(&runtime, 8).unwrap();
    let version = gone.version();
    assert!(version.is_of(&gone.clone()), "a clone has the same version");
    drop(gone);
    for _ in 0..100 {
        let storage = Storage::pageable(&runtime, 8).unwrap();
        assert!(!version.is_of(&storage));
    }
}

#[test]
fn a_storage_is_unique_without_other_references() {
    let runtime = runtime(SyncPolicy::Auto, vec![]);
    let storage = Storage::pageable(&runtime, 8).unwrap();
    let version = storage.version();
    assert!(storage.is_unique(), "a version holds no reference");
    let other = storage.clone();
    assert!(!storage.is_unique() && !other.is_unique());
    drop(other);
    assert!(storage.is_unique());
    drop(version);
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_another_process_may_write_has_always_changed() {
    let runtime = runtime(SyncPolicy::Auto, vec![]);
    let stream = runtime.device(0).unwrap().device().default_stream();
    let storage = Storage::shared(&runtime, 8, stream).unwrap();
    assert!(!storage.version().is_of(&storage));
}
