//! Tests of copies through page-locked memory and over a peer link.

use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::{CopyEnd, CudaCode, MemsetValue};

use super::pageable::StagedCopy;
use super::transfer::{FIRST_PIECE, pieces};
use super::*;
use crate::Site;
use crate::graph::{Capturing, GraphLog, GraphPool};
use crate::race::Touch;
use crate::testing::small_sim;
use crate::{ErrorKind, ResultExt, RuntimeConfig, Staging, SyncPolicy};

/// Small pieces, so that copies of few bytes have many pieces.
pub(super) const STAGING: Staging = Staging { from: 100, chunk: 64, threads: 3 };

pub(super) fn schedules() -> impl Iterator<Item = Schedule> {
    let seeds = std::env::var("WARPLINE_SCHEDULES").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
    [Schedule::Lazy, Schedule::Eager].into_iter().chain((0..seeds).map(Schedule::Seeded))
}

pub(super) fn open(sim: SimConfig, sync_policy: SyncPolicy) -> (Arc<SimDriver>, Runtime) {
    let sim = sim.build();
    let config = RuntimeConfig { sync_policy, staging: STAGING, ..RuntimeConfig::default() };
    let runtime = Runtime::new(sim.clone(), config).unwrap();
    (sim, runtime)
}

fn with(schedule: Schedule, devices: usize) -> (Arc<SimDriver>, Runtime) {
    open(SimConfig { schedule, ..small_sim(devices) }, SyncPolicy::Auto)
}

pub(super) fn pattern(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes).map(|i| ((i + salt) * 31 % 251) as u8).collect()
}

pub(super) fn set(stream: &Stream, storage: &Storage, value: u8) {
    let here = Location::caller();
    memset(stream, (storage, 0), MemsetValue::U8(value), storage.bytes(), "fill_", here).unwrap();
}

pub(super) fn pageable(runtime: &Runtime, bytes: &[u8]) -> Storage {
    let storage = Storage::pageable(runtime, bytes.len()).unwrap();
    write_bytes((&storage, 0), bytes).unwrap();
    storage
}

/// Reads a storage with one driver copy.
pub(super) fn contents(stream: &Stream, storage: &Storage) -> Vec<u8> {
    let mut bytes = vec![0; storage.bytes()];
    let near = Storage::pinned(storage.runtime(), storage.bytes()).unwrap();
    let here = Location::caller();
    copy_bytes(stream, (&near, 0), (storage, 0), bytes.len(), false, here).unwrap();
    read_bytes((&near, 0), &mut bytes).unwrap();
    bytes
}

#[test]
fn pieces_are_shared_among_the_threads() {
    let staging = Staging { from: 1 << 20, chunk: 4 << 20, threads: 8 };
    assert_eq!(staging.piece(1 << 20), 256 << 10);
    assert_eq!(staging.piece(16 << 20), 1 << 20);
    assert_eq!(staging.piece(1 << 30), 4 << 20);
    assert_eq!(Staging { threads: 0, chunk: 0, from: 0 }.piece(usize::MAX), 1);
}

#[test]
fn staging_with_any_values_copies() {
    let extremes = [0, 1, 1 << 63, usize::MAX / 2 + 2, usize::MAX];
    let all = extremes.into_iter().flat_map(|from| {
        extremes.into_iter().flat_map(move |chunk| {
            extremes.into_iter().map(move |threads| Staging { from, chunk, threads })
        })
    });
    for staging in all {
        let sim = SimConfig { unlinked_peers: vec![(0, 1)], ..small_sim(2) }.build();
        let config = RuntimeConfig { staging, ..RuntimeConfig::default() };
        let runtime = Runtime::new(sim, config).unwrap();
        let stream = |d: usize| runtime.device(d).unwrap().device().stream_from_pool(0).unwrap();
        let [a, b] = [0, 1].map(stream);
        let here = Location::caller();
        let x = Storage::device(&runtime, 1000, &a).unwrap();
        let y = Storage::device(&runtime, 1000, &b).unwrap();
        let (source, back) =
            (pageable(&runtime, &pattern(1000, 3)), pageable(&runtime, &[0; 1000]));
        copy_bytes(&a, (&x, 0), (&source, 0), 1000, false, here).unwrap();
        copy_bytes(&b, (&y, 0), (&x, 0), 1000, false, here).unwrap();
        copy_bytes(&b, (&back, 0), (&y, 0), 1000, false, here).unwrap();
        let mut bytes = [0; 1000];
        read_bytes((&back, 0), &mut bytes).unwrap();
        assert_eq!(bytes, *pattern(1000, 3), "{staging:?}");
        // The number of threads is bounded, and so are their buffers.
        let most = Staging { from: 1, ..*runtime.staging() };
        let pieces = (1usize << 40).div_ceil(most.piece(1 << 40)).min(most.threads);
        assert!(pieces <= 256, "{staging:?}");
    }
}

#[test]
fn pageable_copies_of_any_size_are_right_and_in_order() {
    for schedule in schedules() {
        let (sim, runtime) = with(schedule, 1);
        let device = runtime.device(0).unwrap().device();
        let [a, b] = [0, 0].map(|p| device.stream_from_pool(p).unwrap());
        let here = Location::caller();
        for bytes in [1, 4, 63, 64, 65, 99, 100, 101, 191, 192, 193, 383, 384, 385, 1000, 5003] {
            let (off, whole) = (7, bytes + 20);
            let source = pageable(&runtime, &pattern(whole, bytes));
            let x = Storage::device(&runtime, whole, &a).unwrap();
            set(&a, &x, 1);
            set(&b, &x, 2); // the copy must wait for this write
            let copies = sim.usage().count(CallKind::MemcpyAsync);
            copy_bytes(&a, (&x, off), (&source, 3), bytes, true, here).unwrap();
            let pieces = sim.usage().count(CallKind::MemcpyAsync) - copies;
            let expected = bytes.div_ceil(STAGING.piece(bytes)) as u64;
            assert_eq!(pieces, if bytes < 100 { 1 } else { expected }, "{schedule:?} {bytes}");
            assert!(bytes < 100 || pieces > 3);
            write_bytes((&source, 0), &vec![9; whole]).unwrap();
            let back = pageable(&runtime, &vec![5; whole]);
            copy_bytes(&b, (&back, 2), (&x, off), bytes, true, here).unwrap();
            set(&a, &x, 8); // this write must wait for the copy
            let mut seen = vec![0; whole];
            read_bytes((&back, 0), &mut seen).unwrap();
            let mut should = vec![5; whole];
            should[2..2 + bytes].copy_from_slice(&pattern(whole, bytes)[3..3 + bytes]);
            assert_eq!(seen, should, "{schedule:?} {bytes}");
            assert_eq!(contents(&b, &x), vec![8; whole], "{schedule:?} {bytes}");
        }
    }
}

/// After any failed driver call, the copy returns an error, memory in transfer is not reused, and
/// later copies work.
#[test]
fn a_failed_piece_leaves_nothing_behind() {
    let calls = [CallKind::MemcpyAsync, CallKind::EventRecord, CallKind::EventSynchronize];
    const BYTES: usize = 700;
    for schedule in schedules() {
        for (call, to_device, after) in
            calls.into_iter().flat_map(|c| (0..22).map(move |n| (c, n % 2 == 0, n / 2)))
        {
            let (sim, runtime) = with(schedule, 1);
            let stream = runtime.device(0).unwrap().device().stream_from_pool(0).unwrap();
            let other = runtime.device(0).unwrap().device().stream_from_pool(0).unwrap();
            let here = Location::caller();
            set(&other, &Storage::device(&runtime, BYTES, &other).unwrap(), 0);
            let x = Storage::device(&runtime, BYTES, &stream).unwrap();
            set(&stream, &x, 1);
            let host = pageable(&runtime, &[2; BYTES]);
            sim.inject(Fault::new(call, CudaCode::NOT_PERMITTED).after(after));
            let (dst, src) = if to_device { (&x, &host) } else { (&host, &x) };
            let result = copy_bytes(&stream, (dst, 0), (src, 0), BYTES, false, here);
            sim.clear_faults();
            let what = format!("{schedule:?} {call:?} after {after}, {result:?}");
            assert!(after > 0 || result.is_err(), "{what}");
            if let Err(error) = &result {
                assert!(error.driver_error().is_some(), "{what}");
            }
            drop(host);
            if after % 2 == 0 {
                // If the cache reused the ring too early, this code would overwrite it.
                let junk: Vec<_> = (0..4)
                    .map(|_| {
                        let junk = Storage::pinned(&runtime, 2 * STAGING.threads * 64).unwrap();
                        write_bytes((&junk, 0), &vec![77; junk.bytes()]).unwrap();
                        junk
                    })
                    .collect();
                let seen = contents(&other, &x);
                let fine = |&v: &u8| v == 1 || (v == 2 && to_device);
                assert!(seen.iter().all(fine), "{what}: {seen:?}");
                assert!(result.is_err() || !to_device || seen == [2; BYTES], "{what}");
                drop(junk);
            } else {
                // Another stream's write must wait for the pieces that are still in transfer.
                set(&other, &x, 5);
                other.synchronize().unwrap();
                stream.synchronize().unwrap();
                assert_eq!(contents(&other, &x), [5; BYTES], "{what}");
            }
            let again = pageable(&runtime, &pattern(BYTES, 3));
            copy_bytes(&other, (&x, 0), (&again, 0), BYTES, false, here).unwrap();
            assert_eq!(contents(&stream, &x), pattern(BYTES, 3), "{what}");
        }
    }
}

#[test]
fn a_lost_device_is_the_error_of_a_staged_copy() {
    for schedule in schedules() {
        for after in 0..8 {
            let (sim, runtime) = with(schedule, 1);
            let stream = runtime.device(0).unwrap().device().stream_from_pool(0).unwrap();
            let here = Location::caller();
            let x = Storage::device(&runtime, 700, &stream).unwrap();
            let host = pageable(&runtime, &[2; 700]);
            let fault = Fault::new(CallKind::MemcpyAsync, CudaCode::ILLEGAL_ADDRESS);
            sim.inject(fault.after(after).at_run());
            for _ in 0..2 {
                let error = copy_bytes(&stream, (&x, 0), (&host, 0), 700, false, here).unwrap_err();
                let text = error.to_string();
                assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{schedule:?}: {text}");
            }
            drop((x, host, stream, runtime));
            assert!(sim.usage().all_released(), "{schedule:?}: {:#?}", sim.usage());
        }
    }
}

#[test]
fn concurrent_staged_copies_on_one_stream_are_right() {
    for schedule in schedules() {
        let (_sim, runtime) = with(schedule, 1);
        let stream = runtime.device(0).unwrap().device().stream_from_pool(0).unwrap();
        let shared = Storage::device(&runtime, 900, &stream).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (runtime, stream, shared) = (&runtime, &stream, &shared);
                scope.spawn(move || {
                    let here = Location::caller();
                    let mine = Storage::device(runtime, 900, stream).unwrap();
                    for round in 0..6 {
                        let source = pageable(runtime, &pattern(900, thread * 10 + round));
                        copy_bytes(stream, (&mine, 0), (&source, 0), 900, false, here).unwrap();
                        copy_bytes(stream, (shared, 0), (&mine, 0), 900, false, here).unwrap();
                        let back = pageable(runtime, &[0; 900]);
                        copy_bytes(stream, (&back, 0), (&mine, 0), 900, false, here).unwrap();
                        let mut seen = vec![0; 900];
                        read_bytes((&back, 0), &mut seen).unwrap();
                        assert_eq!(seen, pattern(900, thread * 10 + round), "{schedule:?}");
                    }
                });
            }
        });
        let last = contents(&stream, &shared);
        assert!((0..4).any(|thread| last == pattern(900, thread * 10 + 5)), "{schedule:?}");
    }
}

#[test]
fn a_peer_link_is_opened_once_and_used() {
    let (sim, runtime) = with(Schedule::Lazy, 3);
    let streams = [0, 1].map(|d| runtime.device(d).unwrap().device().default_stream());
    let here = Location::caller();
    let [x, y] = streams.map(|s| Storage::device(&runtime, 1000, s).unwrap());
    set(streams[0], &x, 4);
    for _ in 0..3 {
        copy_bytes(streams[0], (&y, 0), (&x, 0), 1000, true, here).unwrap();
        copy_bytes(streams[1], (&x, 0), (&y, 0), 1000, true, here).unwrap();
    }
    let usage = sim.usage();
    assert_eq!(
        (usage.count(CallKind::EnablePeerAccess), usage.count(CallKind::MemcpyAsync)),
        (2, 6)
    );
    assert_eq!(contents(streams[1], &y), [4; 1000]);
    // A copy does not enable peer access for ops.
    assert!(!runtime.peer_access_enabled(0, 1) && !runtime.peer_access_enabled(1, 0));
}

#[test]
fn pieces_grow_and_cover_the_copy() {
    let of = |first, bytes| pieces(first, bytes).map(|part| part.len()).collect::<Vec<_>>();
    assert_eq!(of(3, 2), [2]);
    assert_eq!(of(3, 3), [3]);
    assert_eq!(of(3, 1000), [3, 48, 768, 181]);
    assert_eq!(of(usize::MAX, usize::MAX), [usize::MAX]);
    let mut end = 0;
    for part in pieces(1, 5000) {
        assert_eq!(part.start, end);
        end = part.end;
    }
    assert_eq!(end, 5000);
}

/// A large copy is one use of its storages, although the driver receives several pieces.
#[test]
fn large_device_copies_are_enqueued_in_pieces() {
    let (sim, runtime) = with(Schedule::Lazy, 2);
    let [a, b] = [0, 1].map(|d| runtime.device(d).unwrap().device().default_stream());
    let bytes = FIRST_PIECE + 100;
    let [x, y] = [(&a, 3), (&b, 9)].map(|(s, rest)| Storage::device(&runtime, bytes + rest, s));
    let (x, y) = (x.unwrap(), y.unwrap());
    let source = pageable(&runtime, &pattern(bytes + 3, 1));
    copy_bytes(a, (&x, 0), (&source, 0), bytes + 3, false, Location::caller()).unwrap();
    set(b, &y, 6);
    let copy = || copy_bytes(a, (&y, 5), (&x, 3), bytes, true, Location::caller());
    sim.inject(Fault::new(CallKind::MemcpyAsync, CudaCode::UNKNOWN).after(1).times(1));
    let (before, op) = (sim.usage(), a.last_op());
    copy().expect_err("the last piece is refused");
    assert_eq!(a.last_op(), op + 1, "only the wait for the other device");
    assert!(a.query().unwrap(), "earlier pieces could overwrite later writes");
    copy().unwrap();
    let usage = sim.usage();
    assert_eq!(usage.count(CallKind::MemcpyAsync) - before.count(CallKind::MemcpyAsync), 2 + 2);
    let mut should = vec![6; bytes + 9];
    should[5..5 + bytes].copy_from_slice(&pattern(bytes + 3, 1)[3..]);
    assert!(contents(b, &y) == should);
}

/// Another thread may begin or end a capture between two checks of a copy or an op.
#[test]
fn copies_and_ops_reject_a_capture_that_begins_or_ends_midway() {
    let (sim, runtime) = with(Schedule::Eager, 1);
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let x = Storage::device(&runtime, 1000, &stream).unwrap();
    set(&stream, &x, 1);
    let source = pageable(&runtime, &pattern(1000, 0));
    let from = CopyEnd::Host(NonNull::new(source.host_ptr().unwrap()).unwrap());
    let to = CopyEnd::Device { device: 0, ptr: x.device_ptr().unwrap() };
    let staged = StagedCopy::new(&runtime, &stream, to, from, 1000).unwrap();
    let site = Site::here("fill_");
    let copies = sim.usage().count(CallKind::MemcpyAsync);

    let capturing = Capturing::begin(&runtime, &stream, &GraphPool::new(device)).unwrap();
    // SAFETY: both ends are live, and no other code uses them.
    let (covered, ran) = unsafe { staged.run() };
    assert_eq!(covered, None);
    assert!(matches!(ran.kind(), Some(ErrorKind::Capturing)), "{ran:?}");
    let touches = [(&source, false)].into_iter();
    let held = super::enqueue(&stream, touches, site, |_| panic!("the op was captured"));
    assert!(matches!(held.kind(), Some(ErrorKind::Capture { .. })), "{held:?}");
    let captured = stream.captured().unwrap();
    capturing.end().unwrap();

    let late = [(&x, true)];
    let touches = late.map(Touch::from);
    let late = GraphLog::enqueue(&captured, &late, &touches, site, &ResultMarks::default(), |_| {
        panic!("the op was enqueued after the capture")
    });
    assert!(matches!(late.kind(), Some(ErrorKind::NotCapturing)), "{late:?}");
    assert_eq!(sim.usage().count(CallKind::MemcpyAsync), copies);
    assert_eq!(contents(&stream, &x), vec![1; 1000]);
}
