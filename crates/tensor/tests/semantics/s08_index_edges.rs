//! Tests of row S8, edge cases of failed index checks: a failure that one wait does not cover is
//! kept for a later wait, even if other threads enqueue work or wait meanwhile.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use warpline::cuda::{self, CudaGraph};
use warpline::{
    Error, ErrorKind, Result, ResultExt as _, RuntimeConfig, SyncPolicy, embedding, zeros,
};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};

use crate::boxes::{SimBox, schedules};
use crate::s08_index_check::{failed, indices, table};

/// The wait for a value reports only the failure of the launch that computed this value.
#[test]
fn s08_failures_outside_a_wait_stay_for_a_later_wait() {
    for schedule in schedules() {
        SimBox::with(1, schedule, SyncPolicy::Auto).enter(|| {
            let t = table(0)?;
            let all: Vec<_> = (10..15).map(|i| indices(0, &[i])).collect::<Result<_>>()?;
            cuda::synchronize(0)?;
            let s = cuda::exclusive_stream(0, 0)?; // so that each operation has an op event
            let values = cuda::with_stream(&s, || {
                all.iter()
                    .map(|i| embedding(&t, i)?.to_vec_async::<f32>())
                    .collect::<Result<Vec<_>>>()
            })?;
            for (index, value) in (10..).zip(values) {
                assert_eq!(failed(value.wait()).index, index, "{schedule:?}");
            }
            cuda::synchronize(0)
        });
    }
}

/// A replay may fail before the call that launches it has returned. Waits of other threads must not
/// consume this failure.
#[test]
fn s08_only_a_wait_for_the_replay_reports_it() {
    SimBox::with(1, Schedule::Eager, SyncPolicy::Auto).enter(|| {
        let (t, good, bad) = (table(0)?, indices(0, &[1])?, indices(0, &[7])?);
        let mut graph = CudaGraph::new();
        graph.capture(|| {
            (0..500).try_for_each(|_| embedding(&t, &good).map(drop))?;
            embedding(&t, &bad).map(drop)
        })?;
        let (other, over) = (cuda::exclusive_stream(0, 0)?, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    other.synchronize().expect("it covers no replay");
                }
            });
            let run = || {
                graph.replay()?;
                Ok(cuda::current_stream(0)?.synchronize())
            };
            let ran: Vec<Result<_>> = (0..100).map(|_| run()).collect();
            over.store(true, Ordering::Relaxed);
            for waited in ran {
                assert_eq!(failed(waited?).index, 7);
            }
            Ok(())
        })
    });
}

/// A refused replay does not hide the failure of the replay before it.
#[test]
fn s08_a_refused_replay_hides_no_earlier_one() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let (t, bad) = (table(0)?, indices(0, &[7])?);
        let mut graph = CudaGraph::new();
        graph.capture(|| embedding(&t, &bad).map(drop))?;
        graph.replay()?;
        world.sim.inject(Fault::new(CallKind::GraphLaunch, CudaCode::OUT_OF_MEMORY).times(1));
        graph.replay().expect_err("it was refused");
        assert_eq!(failed(cuda::synchronize(0)).index, 7);
        cuda::synchronize(0)
    });
}

/// One thread begins and ends captures of a stream while another thread launches on it. Each launch
/// is captured or runs at once, and its failure is reported either for the replay or for the run.
#[test]
fn s08_a_launch_beside_a_capture_reports_its_failure() {
    SimBox::with(1, Schedule::Eager, SyncPolicy::Auto).enter(|| {
        let (t, bad) = (table(0)?, indices(0, &[7])?);
        let s = cuda::exclusive_stream(0, 0)?;
        // Fill the allocator's cache and the tables first, so that the loop below allocates
        // nothing.
        let warm = cuda::with_stream(&s, || embedding(&t, &bad))?;
        assert_eq!(failed(s.synchronize()).index, 7);
        drop(warm);
        let runtime = warpline::runtime();
        for round in 0..600 {
            let delay = round % 60;
            let start = Barrier::new(2);
            let mut graph = CudaGraph::new();
            let launched = std::thread::scope(|scope| {
                let launcher = scope.spawn(|| {
                    warpline::with_runtime(&runtime, || {
                        cuda::with_stream(&s, || {
                            start.wait();
                            let begun = Instant::now();
                            while begun.elapsed().as_micros() < delay {}
                            embedding(&t, &bad)
                        })
                    })
                });
                let captured = cuda::with_stream(&s, || {
                    start.wait();
                    graph.capture(|| {
                        while !launcher.is_finished() {
                            std::hint::spin_loop();
                        }
                        Ok(())
                    })
                });
                captured?;
                Ok::<_, Error>(launcher.join().expect("no panic"))
            })?;
            let Ok(_kept) = launched else { continue }; // the launch met a change of the capture and was refused
            let ran = s.synchronize();
            let other = cuda::exclusive_stream(0, 0)?;
            cuda::with_stream(&other, || graph.replay())?;
            let replayed = other.synchronize();
            assert!(ran.is_err() != replayed.is_err(), "round {round}: {ran:?}, {replayed:?}");
        }
        Ok(())
    });
}

/// Failures that one wait does not report are reported by the next wait. Queries report none.
#[test]
fn s08_remaining_failures_are_reported_by_the_next_wait() {
    SimBox::lazy(1).enter(|| {
        let (t, bad) = (table(0)?, indices(0, &[7])?);
        let streams = [cuda::exclusive_stream(0, 0)?, cuda::exclusive_stream(0, 0)?];
        for s in &streams {
            cuda::with_stream(s, || embedding(&t, &bad))?;
        }
        failed(cuda::synchronize(0));
        for s in &streams {
            assert!(s.is_done(s.last_op())?);
        }
        failed(cuda::synchronize(0));
        cuda::synchronize(0)
    });
}

/// A wait that ends because a device is lost does not consume the report of another device.
#[test]
fn s08_a_moot_wait_swallows_no_report() {
    // This test isolates faults. On hardware all devices are lost together, and no report remains.
    let config = SimConfig { schedule: Schedule::Lazy, isolate_faults: true, ..SimConfig::new(2) };
    let world = SimBox::new(config, &RuntimeConfig::default());
    world.enter(|| {
        let host = zeros([4], "cpu")?.pin_memory()?;
        let there = host.to_non_blocking(0)?;
        cuda::synchronize(0)?;
        let (t, bad) = (table(1)?, indices(1, &[7])?);
        for _ in 0..2 {
            let s = cuda::exclusive_stream(1, 0)?;
            cuda::with_stream(&s, || embedding(&t, &bad))?;
        }
        failed(cuda::synchronize(1));
        world.sim.inject(Fault::new(CallKind::Launch, CudaCode::ILLEGAL_ADDRESS).at_run().on(0));
        there.add_(1.0)?;
        assert!(matches!(
            cuda::synchronize(0).kind(),
            Some(ErrorKind::Surfaced { .. } | ErrorKind::Driver)
        ));
        host.fill_(1.0)?;
        assert_eq!(host.to_vec::<f32>()?, [1.0; 4]);
        failed(cuda::synchronize(1));
        cuda::synchronize(1)
    });
}
