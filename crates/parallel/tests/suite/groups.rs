//! Process groups whose ranks are threads, on simulated devices under many schedules. Tests named `gpu2_…` use two
//! GPUs.

use warpline::cuda::{self, CudaGraph};
use warpline::{DType, Device, ErrorKind, Result, Tensor, arange, full, tensor, zeros};
use warpline_parallel::distributed::{
    AllToAllOptions, P2p, ProcessGroup, ReduceOp, ReduceOptions, Work,
};

use crate::group_support::{Ranks, at, schedules, values};

fn of(group: &ProcessGroup, values: &[f32]) -> Result<Tensor> {
    tensor(values, group.device())
}

/// Waits for the call if it is asynchronous.
fn finish(work: &Work, async_op: bool) -> Result<()> {
    if async_op { work.wait() } else { Ok(()) }
}

/// Checks the result of every collective. In gathers, scatters and all-to-alls of one element per rank, the element
/// encodes its source and destination.
pub(crate) fn all_collectives(group: &ProcessGroup, async_op: bool) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let number = |from: usize, to: usize| (from * 10 + to) as f32;
    let all = || 0..ranks;

    let x = at(group, rank + 1)?;
    finish(&group.all_reduce(&x, ReduceOptions::new().async_op(async_op))?, async_op)?;
    assert_eq!(values(&x)?, [(ranks * (ranks + 1) / 2) as f32; 3]);
    for (op, wanted) in [
        (ReduceOp::Max, ranks as f32),
        (ReduceOp::Min, 1.0),
        (ReduceOp::Product, (1..=ranks).product::<usize>() as f32),
        (ReduceOp::Avg, (ranks + 1) as f32 / 2.0),
    ] {
        let x = at(group, rank + 1)?;
        finish(&group.all_reduce(&x, ReduceOptions::new().op(op).async_op(async_op))?, async_op)?;
        assert_eq!(values(&x)?, [wanted; 3], "{op:?}");
    }
    let pair = [at(group, rank)?, at(group, 2 * rank)?];
    finish(&group.all_reduce_coalesced(&pair, ReduceOptions::new().async_op(async_op))?, async_op)?;
    let sum = all().sum::<usize>() as f32;
    assert_eq!((values(&pair[0])?, values(&pair[1])?), (vec![sum; 3], vec![2.0 * sum; 3]));

    for root in all() {
        let x = at(group, rank)?;
        finish(&group.broadcast(&x, root, async_op)?, async_op)?;
        assert_eq!(values(&x)?, [root as f32; 3]);
        let x = at(group, rank)?;
        finish(&group.reduce(&x, root, ReduceOptions::new().async_op(async_op))?, async_op)?;
        assert_eq!(values(&x)?, [if rank == root { sum } else { rank as f32 }; 3]);

        let outputs =
            all().map(|_| zeros([1], group.device())).collect::<warpline::Result<Vec<_>>>()?;
        let list = (rank == root).then_some(&outputs[..]);
        finish(&group.gather(&of(group, &[number(rank, root)])?, list, root, async_op)?, async_op)?;
        for (from, output) in outputs.iter().enumerate() {
            let wanted = if rank == root { number(from, root) } else { 0.0 };
            assert_eq!(values(output)?, [wanted]);
        }
        let inputs = all().map(|to| of(group, &[number(root, to)])).collect::<Result<Vec<_>>>()?;
        let list = (rank == root).then_some(&inputs[..]);
        let x = zeros([1], group.device())?;
        finish(&group.scatter(&x, list, root, async_op)?, async_op)?;
        assert_eq!(values(&x)?, [number(root, rank)]);
    }

    // The sizes of lists may differ from rank to rank.
    let outputs =
        all().map(|r| zeros([r + 1], group.device())).collect::<warpline::Result<Vec<_>>>()?;
    let input = full([rank + 1], rank as f64, group.device())?;
    finish(&group.all_gather(&outputs, &input, async_op)?, async_op)?;
    for (r, output) in outputs.iter().enumerate() {
        assert_eq!(values(output)?, vec![r as f32; r + 1]);
    }
    let output = zeros([2 * ranks], group.device())?;
    let input = full([2], rank as f64, group.device())?;
    finish(&group.all_gather_into_tensor(&output, &input, async_op)?, async_op)?;
    assert_eq!(values(&output)?, all().flat_map(|r| [r as f32; 2]).collect::<Vec<_>>());

    let inputs = all()
        .map(|to| full([to + 1], f64::from(number(rank, to)), group.device()))
        .collect::<warpline::Result<Vec<_>>>()?;
    let output = zeros([rank + 1], group.device())?;
    finish(
        &group.reduce_scatter(&output, &inputs, ReduceOptions::new().async_op(async_op))?,
        async_op,
    )?;
    let column: f32 = all().map(|from| number(from, rank)).sum();
    assert_eq!(values(&output)?, vec![column; rank + 1]);
    let input = of(group, &all().map(|to| number(rank, to)).collect::<Vec<_>>())?;
    let output = zeros([1], group.device())?;
    finish(
        &group.reduce_scatter_tensor(&output, &input, ReduceOptions::new().async_op(async_op))?,
        async_op,
    )?;
    assert_eq!(values(&output)?, [column]);

    let received: Vec<_> = all().map(|from| number(from, rank)).collect();
    let output = zeros([ranks], group.device())?;
    finish(
        &group.all_to_all_single(&output, &input, AllToAllOptions::new().async_op(async_op))?,
        async_op,
    )?;
    assert_eq!(values(&output)?, received);
    // Rank r receives r + 1 elements from each rank.
    let splits: Vec<_> = all().map(|to| to + 1).collect();
    let input = arange((ranks * (ranks + 1) / 2) as i64, (DType::F32, group.device()))?;
    let output = zeros([ranks * (rank + 1)], group.device())?;
    let own = vec![rank + 1; ranks];
    let work = group.all_to_all_single(
        &output,
        &input,
        AllToAllOptions::new()
            .output_split_sizes(&own)
            .input_split_sizes(&splits)
            .async_op(async_op),
    )?;
    finish(&work, async_op)?;
    let first = rank * (rank + 1) / 2;
    let part: Vec<_> = (first..=first + rank).map(|i| i as f32).collect();
    assert_eq!(values(&output)?, part.repeat(ranks));
    let inputs = all().map(|to| of(group, &[number(rank, to)])).collect::<Result<Vec<_>>>()?;
    let outputs =
        all().map(|_| zeros([1], group.device())).collect::<warpline::Result<Vec<_>>>()?;
    finish(&group.all_to_all(&outputs, &inputs, async_op)?, async_op)?;
    for (from, output) in outputs.iter().enumerate() {
        assert_eq!(values(output)?, [number(from, rank)]);
    }

    if ranks == 1 {
        return group.barrier();
    }
    // Send around the ring of ranks: single sends and receives in one direction, a batch in the other direction.
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let (mine, theirs) = (at(group, rank)?, zeros([3], group.device())?);
    if rank == 0 {
        finish(&group.send(&mine, next, async_op)?, async_op)?;
        finish(&group.recv(&theirs, before, async_op)?, async_op)?;
    } else {
        finish(&group.recv(&theirs, before, async_op)?, async_op)?;
        finish(&group.send(&mine, next, async_op)?, async_op)?;
    }
    assert_eq!(values(&theirs)?, [before as f32; 3]);
    let work = group.batch_isend_irecv(&[P2p::Send(&mine, before), P2p::Recv(&theirs, next)])?;
    work.wait()?;
    assert_eq!(values(&theirs)?, [next as f32; 3]);
    group.barrier()
}

#[test]
fn every_collective_is_correct() {
    schedules(&[1, 2, 3], |ranks| {
        ranks.run(|group| all_collectives(&group, false));
        ranks.run(|group| all_collectives(&group, true));
    });
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_every_collective_is_correct() {
    let ranks = Ranks::new(&crate::group_support::gpu_spec(), 2);
    ranks.run(|group| all_collectives(&group, false));
    ranks.run(|group| all_collectives(&group, true));
}

#[test]
fn dtypes_are_nccls_and_bools_are_combined_by_or() {
    schedules(&[2], dtypes_are_nccls);
}

pub(crate) fn dtypes_are_nccls(ranks: &Ranks) {
    ranks.run(|group| {
        for dtype in DType::ALL {
            let x = full([4], 1, (dtype, group.device()))?;
            let reduced = group.all_reduce(&x, ());
            match dtype {
                DType::I16 => {
                    let error = reduced.unwrap_err();
                    assert!(error.to_string().contains("int16"), "{error}");
                }
                DType::Bool => {
                    reduced?;
                    assert_eq!(x.to_vec::<bool>()?, [true; 4]);
                    let error = group.all_reduce(&x, ReduceOp::Avg).unwrap_err();
                    assert!(error.to_string().contains("bool"), "{error}");
                }
                _ => {
                    reduced?;
                    assert_eq!(values(&x.to(DType::F32)?)?, [2.0; 4], "{dtype:?}");
                }
            }
        }
        group.barrier()
    });
}

#[test]
fn invalid_calls_are_refused_and_change_nothing() {
    schedules(&[2], |ranks| {
        ranks.run(|group| {
            let x = zeros([2, 3], group.device())?;
            let list = [x.clone()];
            for (refused, says) in [
                (group.all_reduce(&x.t()?, ()), "contiguous"),
                (group.all_reduce(&zeros([2], "cpu")?, ReduceOptions::new().async_op(true)), "cpu"),
                (group.broadcast(&x, 2, ()), "no rank 2"),
                (group.all_gather(&list, &x, ()), "but must have 2, one for each rank"),
                (group.reduce_scatter(&x, &list, ()), "one for each"),
                (group.all_to_all(&list, &list, ()), "one for each"),
                (group.all_gather_into_tensor(&x, &x, ()), "as many elements"),
                (
                    group.all_to_all_single(
                        &x,
                        &x,
                        AllToAllOptions::new().output_split_sizes(&[1]),
                    ),
                    "[1]",
                ),
                (
                    group.all_to_all_single(
                        &x,
                        &x,
                        AllToAllOptions::new().input_split_sizes(&[1, 2]),
                    ),
                    "[1, 2]",
                ),
                (group.gather(&x, None, group.rank(), ()), "must pass a list of tensors"),
                (group.scatter(&x, Some(&list), 1 - group.rank(), ()), "only rank"),
                (group.gather(&x, None, 7, ()), "no rank 7"),
                (group.send(&x, group.rank(), false), "itself"),
                (group.batch_isend_irecv(&[]), "at least one"),
            ] {
                let error = refused.unwrap_err();
                assert!(error.to_string().contains(says), "{says}: {error}");
            }
            for bad in [&[][..], &[2], &[1, 1]] {
                let error = group.new_group(bad).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
            }
            all_collectives(&group, false)
        });
    });
}

/// Asynchronous work waits for earlier work on the current stream, and `Work::wait` makes later work wait for the
/// asynchronous work. Under `SyncPolicy::Manual` there is no other ordering.
#[test]
fn async_work_is_ordered_by_wait_alone() {
    for seed in 0..crate::group_support::number("WARPLINE_SCHEDULES", 8) {
        let ranks = Ranks::manual(&format!("sim:2,seed={seed}"), 2);
        ranks.run(|group| {
            let side = cuda::Stream::new(group.device())?;
            let _on = cuda::stream(&side)?;
            let x = at(&group, 1)?;
            x.mul_(3.0)?;
            let work = group.all_reduce(&x, ReduceOptions::new().async_op(true))?;
            work.wait()?;
            x.mul_(10.0)?;
            assert_eq!(values(&x)?, [60.0; 3]);
            assert!(work.is_completed()?);
            assert_eq!(work.tensors().len(), 1);
            Ok(())
        });
        assert!(ranks.runtime().take_races().is_empty(), "seed {seed}");
    }
}

#[test]
fn work_of_a_dropped_group_still_runs() {
    schedules(&[2], |ranks| {
        let sums = ranks.run(|group| {
            let x = at(&group, group.rank() + 1)?;
            drop(group.all_reduce(&x, ReduceOptions::new().async_op(true))?);
            drop(group);
            values(&x)
        });
        assert_eq!(sums, [[3.0; 3], [3.0; 3]]);
    });
}

#[test]
fn host_waits_end_when_the_work_is_done() {
    schedules(&[2], |ranks| {
        ranks.run(|group| {
            for async_op in [false, true] {
                let x = at(&group, 1)?;
                let work = group.all_reduce(&x, ReduceOptions::new().async_op(async_op))?;
                work.synchronize()?;
                assert!(work.is_completed()?);
                assert_eq!(values(&x)?, [2.0; 3]);
            }
            Ok(())
        });
    });
}

#[test]
fn subgroups_have_the_requested_ranks() {
    schedules(&[3], |ranks| {
        ranks.run(|group| {
            let world = group.rank();
            let pair = group.new_group(&[2, 0])?;
            assert_eq!(pair.is_some(), world != 1);
            let alone = group.new_group(&[1])?;
            assert_eq!(alone.is_some(), world == 1);
            if let Some(pair) = pair {
                assert_eq!((pair.rank(), pair.world_size()), (world / 2, 2));
                let x = at(&pair, world + 1)?;
                pair.all_reduce(&x, ())?;
                assert_eq!(values(&x)?, [4.0; 3]);
                all_collectives(&pair, true)?;
            }
            all_collectives(&group, false)
        });
    });
}

#[test]
fn a_captured_collective_runs_in_each_replay() {
    schedules(&[2], |ranks| drop(ranks.run(|group| captured(&group))));
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_captured_collective_runs_in_each_replay() {
    Ranks::new(&crate::group_support::gpu_spec(), 2).run(|group| captured(&group));
}

#[test]
fn ranks_without_a_device_option_use_different_devices() {
    let ranks = Ranks::new("sim:3,seed=1", 3);
    ranks.without_devices().run(|group| {
        assert_eq!(group.device(), Device::cuda(group.rank()));
        all_collectives(&group, false)
    });
}

fn captured(group: &ProcessGroup) -> Result<()> {
    cuda::set_device(group.device())?;
    let x = at(group, 1)?;
    // NCCL connects the ranks during the first call, which cannot be captured.
    group.all_reduce(&x, ReduceOp::Max)?.synchronize()?;
    let side = cuda::Stream::new(group.device())?;
    let mut graph = CudaGraph::new();
    cuda::with_stream(&side, || {
        graph.capture(|| {
            group.all_reduce(&x, ())?;
            let work = group.all_reduce(&x, ReduceOptions::new().async_op(true))?;
            work.wait()
        })
    })?;
    for replays in 1..4 {
        graph.replay()?;
        assert_eq!(values(&x)?, [4f32.powi(replays); 3]);
    }
    group.barrier()
}

#[test]
fn host_waits_are_refused_during_a_capture_and_work_afterwards() {
    schedules(&[2], |ranks| {
        ranks.run(|group| {
            cuda::set_device(group.device())?;
            let side = cuda::Stream::new(group.device())?;
            cuda::with_stream(&side, || {
                CudaGraph::new().capture(|| {
                    for refused in [group.barrier(), group.new_group(&[0, 1]).map(drop)] {
                        let error = refused.expect_err("refused");
                        assert!(error.to_string().contains("blocks the host"), "{error}");
                    }
                    Ok(())
                })
            })?;
            all_collectives(&group, false)
        });
    });
}
