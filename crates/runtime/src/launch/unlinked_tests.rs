//! Tests of copies between devices without a peer link.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};

use super::staging_tests::{STAGING, contents, open, pageable, pattern, schedules, set};
use super::*;
use crate::testing::small_sim;
use crate::{ErrorKind, ResultExt, SyncPolicy};

fn unlinked(schedule: Schedule) -> SimConfig {
    SimConfig { schedule, unlinked_peers: vec![(0, 1)], ..small_sim(3) }
}

/// Without a link, pieces go through page-locked memory, in order with work on both devices. The
/// host does not wait, under either policy.
#[test]
fn unlinked_devices_copy_in_pieces() {
    for policy in [SyncPolicy::Auto, SyncPolicy::Manual] {
        for schedule in schedules() {
            for (bytes, on) in [(1, 0), (64, 1), (65, 0), (256, 1), (257, 0), (3000, 1), (999, 2)] {
                let unlinked_peers = vec![(0, 1)];
                let (sim, runtime) =
                    open(SimConfig { schedule, unlinked_peers, ..small_sim(3) }, policy);
                let stream = |d: usize| runtime.device(d).unwrap().device().stream_from_pool(0);
                let [from, to, third] = [0, 1, 2].map(|d| stream(d).unwrap());
                let here = Location::caller();
                let x = Storage::device(&runtime, bytes + 9, &from).unwrap();
                let y = Storage::device(&runtime, bytes + 9, &to).unwrap();
                let source = pageable(&runtime, &pattern(bytes + 9, 1));
                copy_bytes(&from, (&x, 0), (&source, 0), bytes + 9, false, here).unwrap();
                set(&to, &y, 6);
                let by = [&from, &to, &third][on];
                for other in [&from, &to] {
                    by.wait_stream(other).unwrap();
                }
                let before = sim.usage();
                copy_bytes(by, (&y, 5), (&x, 2), bytes, true, here).unwrap();
                let usage = sim.usage();
                let what = format!("{policy:?} {schedule:?} {bytes} bytes");
                assert_eq!(usage.host_waits, before.host_waits, "{what}");
                let pieces =
                    usage.count(CallKind::MemcpyAsync) - before.count(CallKind::MemcpyAsync);
                assert_eq!(pieces, 2 * bytes.div_ceil(STAGING.chunk) as u64, "{what}");
                for other in [&from, &to] {
                    other.wait_stream(by).unwrap();
                }
                set(&from, &x, 0);
                let mut should = vec![6; bytes + 9];
                should[5..5 + bytes].copy_from_slice(&pattern(bytes + 9, 1)[2..2 + bytes]);
                assert_eq!(contents(&to, &y), should, "{what}");
                let races = runtime.take_races();
                assert!(races.is_empty(), "{what}: {races:#?}");
                assert_eq!(sim.usage().count(CallKind::EnablePeerAccess), 0);
                let enabled = runtime.enable_peer_access(0, 1);
                assert!(matches!(enabled.kind(), Some(ErrorKind::Driver)), "{enabled:?}");
            }
        }
    }
}

#[test]
fn a_copy_is_not_torn_by_writes_of_another_thread() {
    let (_, runtime) = open(unlinked(Schedule::Eager), SyncPolicy::Auto);
    let stream = |d: usize| runtime.device(d).unwrap().device().stream_from_pool(0).unwrap();
    let [from, to, others_from, others_to] = [0, 1, 0, 1].map(stream);
    let here = Location::caller();
    let bytes = 100 * STAGING.chunk;
    let x = Storage::device(&runtime, bytes, &from).unwrap();
    let y = Storage::device(&runtime, bytes, &to).unwrap();
    set(&from, &x, 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in (0..=255).cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                set(&others_from, &x, value);
                set(&others_to, &y, value);
            }
        });
        let torn = (0..100).find_map(|_| {
            copy_bytes(&to, (&y, 0), (&x, 0), bytes, true, here).unwrap();
            let held = contents(&to, &y);
            held.iter().any(|byte| *byte != held[0]).then_some(held)
        });
        over.store(true, Ordering::Relaxed);
        assert!(torn.is_none(), "{torn:?}");
    });
}

#[test]
fn pieces_before_a_failed_piece_are_waited_for() {
    for schedule in schedules() {
        let (sim, runtime) = open(unlinked(schedule), SyncPolicy::Auto);
        let stream = |d: usize| runtime.device(d).unwrap().device().stream_from_pool(0).unwrap();
        let [from, to, other] = [0, 1, 0].map(stream);
        let here = Location::caller();
        let bytes = 6 * STAGING.chunk;
        let x = Storage::device(&runtime, bytes, &from).unwrap();
        let y = Storage::device(&runtime, bytes, &to).unwrap();
        set(&from, &x, 1);
        set(&to, &y, 2);
        // Five transfers succeed: both transfers of two pieces, and the first of the third piece.
        sim.inject(Fault::new(CallKind::MemcpyAsync, CudaCode::INVALID_VALUE).after(5));
        let failed = copy_bytes(&to, (&y, 0), (&x, 0), bytes, true, here);
        assert!(
            failed
                .as_ref()
                .is_err_and(|e| matches!((e.op(), e.kind()), ("copy_", ErrorKind::Driver))),
            "{failed:?}"
        );
        set(&other, &x, 3);
        let (copied, rest) = (vec![1; 2 * STAGING.chunk], vec![2; 4 * STAGING.chunk]);
        assert_eq!(contents(&to, &y), [copied, rest].concat(), "{schedule:?}");
    }
}
