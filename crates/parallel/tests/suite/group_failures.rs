//! Failures of process groups: mismatched calls, late ranks and lost ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warpline::{Runtime, RuntimeConfig, open, with_runtime};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_parallel::distributed::{
    GroupError, HashStore, InitOptions, ReduceOp, ReduceOptions, init_process_group,
};

use crate::group_support::{LONG, Ranks, at, schedules, schedules_at_once, values, works};

/// The errors of all ranks name the mismatched calls, not only the error of the rank that detects the mismatch.
#[test]
fn a_mismatch_is_an_error_on_every_rank_that_names_the_calls() {
    schedules(&[3], |ranks| {
        let errors = ranks.timeout(Duration::from_secs(5)).run(|group| {
            // Wait until all ranks have joined, because joining could fail after a mismatch.
            group.barrier()?;
            let x = at(&group, 1)?;
            let work = match group.rank() {
                1 => group.broadcast(&x, 0, true),
                _ => group.all_reduce(&x, ReduceOptions::new().async_op(true)),
            };
            Ok(work.and_then(|work| work.synchronize()).unwrap_err())
        });
        for (rank, error) in errors.iter().enumerate() {
            let failure =
                GroupError::failure(error).unwrap_or_else(|| panic!("rank {rank}: {error}"));
            assert_eq!(failure.rank, rank);
            let text = error.to_string();
            // The calls are written as in the flight recorder, or as in the simulated NCCL.
            for calls in [
                ["all_reduce(float32[3], Sum)", "AllReduce(3"],
                ["broadcast(float32[3], root 0)", "Broadcast(3"],
            ] {
                assert!(calls.iter().any(|call| text.contains(call)), "rank {rank}: {text}");
            }
            assert!(text.contains("group_failures.rs:"), "rank {rank}: {text}");
        }
    });
}

/// A timeout that is short, so that hanging calls fail soon, and longer than matching calls take on a busy machine.
const SHORT: Duration = Duration::from_millis(1500);

#[test]
fn a_missing_rank_is_named_at_the_timeout_and_a_new_group_works() {
    schedules_at_once(3, |ranks| {
        let ranks = ranks.timeout(SHORT);
        ranks.run(|group| {
            let x = at(&group, 1)?;
            group.all_reduce(&x, ())?.synchronize()?;
            let error = if group.rank() == 2 {
                // This rank is alive but late: its watchdog reads the failure that the others reported.
                let begun = Instant::now();
                while group.failure().is_none() {
                    assert!(begun.elapsed() < LONG);
                    std::thread::sleep(Duration::from_millis(5));
                }
                group.all_reduce(&x, ()).unwrap_err()
            } else {
                group
                    .all_reduce(&x, ReduceOptions::new().op(ReduceOp::Max).async_op(true))?
                    .synchronize()
                    .unwrap_err()
            };
            let failure = GroupError::failure(&error).unwrap_or_else(|| panic!("{error}"));
            assert_eq!((failure.rank, failure.missing.len()), (group.rank(), 0), "{error}");
            assert!(error.to_string().contains("all_reduce(float32[3], Max)"), "{error}");
            if group.rank() != 2 {
                assert!(GroupError::failure(&error).is_some());
                assert_eq!((failure.seq, failure.differing.len()), (2, 1), "{error}");
                assert_eq!(failure.differing[0].rank, 2, "{error}");
                assert!(failure.location.contains("group_failures.rs:"), "{error}");
            }
            // All later calls fail with the same error.
            assert!(GroupError::failure(&group.barrier().unwrap_err()).is_some());
            assert!(GroupError::failure(&group.new_group(&[0]).unwrap_err()).is_some());
            Ok(())
        });
        // The process can form a new group.
        ranks.timeout(LONG).run(|group| works(&group));
    });
}

/// One rank leaves before its call. All other ranks get an error that names the missing rank.
pub(crate) fn a_rank_is_gone(ranks: &Ranks) {
    let gone = ranks.len() - 1;
    let errors = ranks.timeout(SHORT).run(|group| {
        let x = at(&group, 1)?;
        group.all_reduce(&x, ())?.synchronize()?;
        if group.rank() == gone {
            return Ok(None); // drops this rank's group
        }
        let begun = Instant::now();
        let failed = group
            .all_reduce(&x, ReduceOptions::new().async_op(true))
            .and_then(|work| work.synchronize());
        assert!(begun.elapsed() < LONG);
        Ok(failed.err())
    });
    for (rank, error) in errors.iter().enumerate().take(gone) {
        let error = error.as_ref().unwrap_or_else(|| panic!("rank {rank} has no error"));
        assert!(matches!(error.find(), Some(GroupError::PeerFailed(_))), "{error}");
        let failure = GroupError::failure(error).unwrap();
        assert!(failure.missing.contains(&gone), "{error}");
        assert_eq!((failure.rank, failure.seq), (rank, 2));
        assert!(failure.op.starts_with("all_reduce("), "{error}");
        assert!(failure.location.contains("group_failures.rs:"), "{error}");
    }
}

#[test]
fn a_rank_that_is_gone_is_named_by_all_others() {
    for spec in ["sim:3,lazy", "sim:3,seed=1", "sim:3,eager"] {
        let ranks = Ranks::new(spec, 3);
        a_rank_is_gone(&ranks);
        ranks.run(|group| works(&group));
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_rank_that_is_gone_is_named_by_all_others() {
    let ranks = Ranks::new(&crate::group_support::gpu_spec(), 2);
    a_rank_is_gone(&ranks);
    ranks.run(|group| works(&group));
}

/// One rank leaves. The other rank cannot read the result of its unfinished collective or anything computed from it,
/// but can read earlier results.
fn unfinished_results_are_refused(ranks: &Ranks, async_op: bool) {
    ranks.timeout(SHORT).run(|group| {
        let (x, done) = (at(&group, 1)?, at(&group, 1)?);
        group.all_reduce(&done, ReduceOptions::new().async_op(async_op))?.synchronize()?;
        group.barrier()?;
        if group.rank() == 1 {
            return Ok(());
        }
        let work = group.all_reduce(&x, ReduceOptions::new().async_op(async_op))?;
        if async_op {
            work.wait()?;
        }
        // NCCL's call may return only after the failure is known. The ops below then fail instead of the reads.
        let computed = (|| {
            let y = (&x + 1.0)?;
            Ok((y.sum(())?, y, x.to_non_blocking("cpu")?))
        })();
        let refused = |what: &str, error: Option<warpline::Error>| {
            let error = error.unwrap_or_else(|| panic!("{what} was read"));
            assert!(matches!(error.kind(), warpline::ErrorKind::Collective), "{what}: {error}");
            assert!(error.to_string().contains("all_reduce at "), "{error}");
            let failure = GroupError::failure(&error).unwrap_or_else(|| panic!("{what}: {error}"));
            assert_eq!((failure.rank, failure.seq), (0, 3), "{error}");
        };
        match computed {
            Ok((sum, y, copy)) => {
                refused("the sum", sum.item::<f32>().err());
                refused("a value computed from a result", y.to_vec::<f32>().err());
                refused("a copy", copy.to_vec::<f32>().err());
            }
            Err(error) => refused("an operand", Some(error)),
        }
        refused("the result", x.to_vec::<f32>().err());
        // New launches cannot use the result either.
        refused("an operand", (&x * 2.0).err());
        assert_eq!(values(&done)?, [2.0; 3]);
        assert_eq!(values(&(&done + 1.0)?)?, [3.0; 3]);
        x.fill_(7.0)?;
        assert_eq!(values(&(&x + 1.0)?)?, [8.0; 3]);
        Ok(())
    });
}

#[test]
fn results_of_an_aborted_collective_cannot_be_read() {
    for spec in ["sim:2,lazy", "sim:2,seed=1", "sim:2,eager"] {
        let ranks = Ranks::new(spec, 2);
        for async_op in [false, true] {
            unfinished_results_are_refused(&ranks, async_op);
        }
        ranks.run(|group| works(&group));
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_results_of_an_aborted_collective_cannot_be_read() {
    let ranks = Ranks::new(&crate::group_support::gpu_spec(), 2);
    for async_op in [false, true] {
        unfinished_results_are_refused(&ranks, async_op);
    }
}

#[test]
fn a_group_that_is_dropped_with_work_that_cannot_end_does_not_hang() {
    let ranks = Ranks::new("sim:2,seed=3", 2);
    let begun = Instant::now();
    ranks.timeout(SHORT).run(|group| {
        if group.rank() == 0 {
            drop(group.all_reduce(&at(&group, 1)?, ReduceOptions::new().async_op(true))?);
        }
        drop(group);
        Ok(())
    });
    assert!(begun.elapsed() < LONG);
}

/// One rank never makes its first call. NCCL's call on the other rank waits for the connection.
fn a_first_call_hangs(ranks: &Ranks) {
    for async_op in [false, true] {
        let begun = Instant::now();
        let errors = ranks.timeout(SHORT).run(|group| {
            let x = at(&group, 1)?;
            if group.rank() == 0 {
                let work = group.all_reduce(&x, ReduceOptions::new().async_op(async_op));
                return Ok(work.and_then(|work| work.synchronize()).unwrap_err());
            }
            while group.failure().is_none() {
                assert!(begun.elapsed() < LONG);
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(group.failure().unwrap())
        });
        let failure = GroupError::failure(&errors[0]).unwrap_or_else(|| panic!("{}", errors[0]));
        assert!(failure.op.starts_with("all_reduce("), "{failure:?}");
        assert!(failure.reason.starts_with("it was not done within"), "{failure:?}");
        assert!(failure.location.contains("group_failures.rs:"), "{failure:?}");
        assert_eq!(failure.differing.len(), 1, "{failure:?}");
        assert_eq!(
            (failure.differing[0].rank, GroupError::failure(&errors[1]).unwrap().rank),
            (1, 1)
        );
        assert!(begun.elapsed() < LONG);
    }
}

#[test]
fn a_call_that_hangs_in_nccl_ends_at_the_timeout() {
    let driver = Arc::new(NullDriver::with_hanging_collectives(2));
    let runtime = Runtime::new(driver, RuntimeConfig::default()).unwrap();
    a_first_call_hangs(&Ranks::in_runtime(runtime, 2));
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_call_that_hangs_in_nccl_ends_at_the_timeout() {
    let ranks = Ranks::new(&crate::group_support::gpu_spec(), 2);
    a_first_call_hangs(&ranks);
    ranks.run(|group| works(&group));
}

#[test]
fn ranks_that_do_not_join_are_named() {
    let runtime = open("sim:3", &warpline::RuntimeConfig::default()).unwrap();
    let ranks = Ranks::in_runtime(runtime, 3).timeout(SHORT);
    for absent in 0..3 {
        let errors = ranks.init_without(absent);
        assert_eq!(errors.len(), 2);
        for error in errors {
            let Some(GroupError::Init { missing, world_size: 3, .. }) = error.find() else {
                panic!("{error}")
            };
            assert_eq!(*missing, [absent], "{error}");
        }
    }
}

/// A rank that gave up a round and tries again meets the ranks that come later.
#[test]
fn a_rank_that_gave_up_meets_the_others_in_a_later_round() {
    let runtime = open("sim:2", &warpline::RuntimeConfig::default()).unwrap();
    for early in 0..2 {
        let store = Arc::new(HashStore::new());
        let init = |rank: usize, timeout| {
            let options = InitOptions::new(store.clone(), rank, 2).device(rank).timeout(timeout);
            with_runtime(&runtime, || init_process_group(options))
        };
        let error = init(early, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error.find(), Some(GroupError::Init { .. })), "{error}");
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (runtime, init) = (&runtime, &init);
                scope.spawn(move || {
                    let group = init(rank, LONG).unwrap_or_else(|e| panic!("rank {rank}: {e}"));
                    with_runtime(runtime, || works(&group)).unwrap();
                });
            }
        });
    }
}
