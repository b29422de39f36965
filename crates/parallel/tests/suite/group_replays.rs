//! Replays of graphs with collectives.

use std::time::{Duration, Instant};

use crate::group_support::{LONG, Ranks, at, gpu_spec, schedules, values};
use warpline::cuda::{self, CudaGraph};
use warpline::{Result, Tensor, with_runtime};
use warpline_parallel::distributed::{GroupError, P2p, ProcessGroup, ReduceOp, ReduceOptions};

/// A timeout that is short, so that hanging replays fail soon, and longer than matching calls take on a busy machine.
const SHORT: Duration = Duration::from_millis(1500);

/// Captures the calls of `body` on a new stream.
fn capture(group: &ProcessGroup, body: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    cuda::set_device(group.device())?;
    let side = cuda::Stream::new(group.device())?;
    let mut graph = CudaGraph::new();
    cuda::with_stream(&side, || graph.capture(body))?;
    Ok(graph)
}

/// Asserts that `read` failed because the collective `op` did not complete.
fn refused<T>(what: &str, op: &str, read: warpline::Result<T>) -> warpline::Error {
    let error = read.err().unwrap_or_else(|| panic!("{what} was read"));
    assert!(matches!(error.kind(), warpline::ErrorKind::Collective), "{what}: {error}");
    assert!(error.to_string().contains(&format!("{op} at ")), "{what}: {error}");
    assert!(error.to_string().contains("group_replays.rs:"), "{what}: {error}");
    error
}

/// Rank 0 replays once more than rank 1, so its last replay hangs.
fn a_replay_hangs(ranks: &Ranks) {
    ranks.timeout(SHORT).run(|group| {
        let (x, kept) = (at(&group, 1)?, at(&group, 1)?);
        let (y, apart) = (at(&group, 0)?, at(&group, 0)?);
        // NCCL connects the ranks during the first calls, which cannot be captured.
        group.all_reduce(&x, ReduceOp::Max)?;
        group.broadcast(&x, 0, ())?.synchronize()?;
        let graph = capture(&group, || {
            group.all_reduce(&x, ())?;
            group.broadcast(&x, 0, ())?;
            group.all_reduce(&x, ReduceOptions::new().async_op(true))?.wait()?;
            y.copy_(&(&x + 1.0)?, true)?;
            apart.fill_(3.0)?;
            Ok(())
        })?;
        for replays in 1..3 {
            graph.replay()?;
            assert_eq!(values(&x)?, [4f32.powi(replays); 3]);
        }
        group.barrier()?;
        if group.rank() == 1 {
            let begun = Instant::now();
            while group.failure().is_none() {
                assert!(begun.elapsed() < LONG);
                std::thread::sleep(Duration::from_millis(5));
            }
            // This rank has no unfinished work, so its results can be read.
            assert_eq!((values(&x)?, values(&y)?), (vec![16.0; 3], vec![17.0; 3]));
            return Ok(());
        }
        graph.replay()?;
        let later = (|| (&y + 1.0)?.sum(()))();
        let error = refused("the result", "all_reduce", x.to_vec::<f32>());
        let failure = GroupError::failure(&error).expect("the group's own");
        // The earlier calls are two calls, three captured calls, two replays and a barrier. The hanging replay follows.
        assert_eq!(
            (failure.rank, failure.seq, &*failure.reason),
            (0, 9, &*format!("it was not done within {SHORT:?}"))
        );
        assert_eq!(failure.op, "replay(all_reduce, broadcast, all_reduce)");
        assert!(failure.location.contains("group_replays.rs:"), "{error}");
        let differing: Vec<_> = failure.differing.iter().map(|d| d.rank).collect();
        assert_eq!(differing, [1], "{error}");
        refused("a value that the graph computed from the result", "all_reduce", y.to_vec::<f32>());
        refused(
            "a value computed later",
            "all_reduce",
            later.and_then(|t: Tensor| t.item::<f32>()),
        );
        // Independent and overwritten tensors can be read.
        assert_eq!(values(&kept)?, [1.0; 3]);
        assert_eq!(values(&apart)?, [3.0; 3]);
        // Later replays are refused.
        refused("a replay", "replay", {
            x.fill_(1.0)?;
            graph.replay()
        });
        assert_eq!(values(&x)?, [1.0; 3]);
        Ok(())
    });
}

#[test]
fn a_replay_that_hangs_is_timed_out_and_its_results_are_refused() {
    for spec in ["sim:2,lazy", "sim:2,seed=1", "sim:2,seed=2", "sim:2,eager"] {
        a_replay_hangs(&Ranks::new(spec, 2));
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_replay_that_hangs_is_timed_out_and_its_results_are_refused() {
    a_replay_hangs(&Ranks::new(&gpu_spec(), 2));
}

#[test]
fn a_graph_of_two_groups_is_watched_by_each() {
    for spec in ["sim:2,lazy", "sim:2,seed=1", "sim:2,eager"] {
        let ranks = Ranks::new(spec, 2);
        ranks.timeout(SHORT).run(|group| {
            let alone = group.new_group(&[0])?;
            let (x, y) = (at(&group, 1)?, at(&group, 1)?);
            let graph = capture(&group, || {
                if let Some(alone) = &alone {
                    alone.all_reduce(&y, ReduceOptions::new().async_op(true))?.wait()?;
                }
                group.all_reduce(&x, ()).map(drop)
            })?;
            graph.replay()?;
            assert_eq!(values(&x)?, [2.0; 3]);
            group.barrier()?;
            let Some(alone) = alone else { return Ok(()) };
            graph.replay()?;
            refused("the result", "all_reduce", x.to_vec::<f32>());
            assert!(group.failure().is_some());
            // A replay counts as one call on each group. The call is done when the whole replay is done.
            match alone.all_reduce(&y, ()) {
                Ok(work) => assert_eq!(work.seq(), 4),
                Err(error) => {
                    let failure = GroupError::failure(&error).unwrap_or_else(|| panic!("{error}"));
                    assert_eq!((failure.seq, &*failure.op), (3, "replay(all_reduce)"), "{error}");
                }
            }
            Ok(())
        });
    }
}

/// A replay of sends and receives uses up no sequence number of the collectives.
#[test]
fn replays_of_sends_are_numbered_separately() {
    schedules(&[3], |ranks| {
        ranks.run(|group| {
            let (x, y) = (at(&group, group.rank())?, at(&group, 7)?);
            let peer = 1 - group.rank().min(1);
            if group.rank() < 2 {
                let graph = capture(&group, || {
                    let both = [P2p::Send(&x, peer), P2p::Recv(&y, peer)];
                    group.batch_isend_irecv(&both)?.wait()
                })?;
                graph.replay()?;
                graph.replay()?;
                assert_eq!(values(&y)?, [peer as f32; 3]);
            }
            let seq = group.all_reduce(&x, ReduceOp::Max)?.seq();
            assert_eq!((seq, values(&x)?), (1, vec![2.0; 3]));
            Ok(())
        });
    });
}

/// The graph keeps the group alive, so its watchdog still runs.
#[test]
fn a_graph_whose_group_was_dropped_is_still_watched() {
    let ranks = Ranks::new("sim:2,seed=3", 2);
    let kept = ranks.timeout(SHORT).run(|group| {
        let x = at(&group, 1)?;
        let graph = capture(&group, || group.all_reduce(&x, ()).map(drop))?;
        group.barrier()?;
        Ok((graph, x))
    });
    let [(graph, x), _other] = &kept[..] else { panic!("two ranks") };
    with_runtime(ranks.runtime(), || {
        cuda::set_device(0).unwrap();
        // Without the watchdog, this replay would never end.
        graph.replay().unwrap();
        refused("the result", "all_reduce", x.to_vec::<f32>());
    });
}
