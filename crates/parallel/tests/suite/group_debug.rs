//! Debug mode, which compares the ranks' calls.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warpline::cuda::{self, CudaGraph};
use warpline::{DType, ErrorKind, Result, with_runtime, zeros};
use warpline_parallel::distributed::{
    AllToAllOptions, GroupError, HashStore, InitOptions, P2p, ReduceOp, ReduceOptions, Store,
    StoreResult, init_process_group,
};

use crate::group_support::{at, schedules, values, works};

/// Returns the differing ranks of a [`GroupError::Mismatch`], and the error's message.
fn mismatch<T>(result: Result<T>) -> (Vec<usize>, String) {
    let error = result.err().expect("a mismatch");
    let Some(GroupError::Mismatch { differing, .. }) = error.find() else { panic!("{error}") };
    (differing.iter().map(|d| d.rank).collect(), error.to_string())
}

/// Checks that a call was refused because of its own arguments.
#[track_caller]
fn refused<T: std::fmt::Debug>(call: Result<T>) {
    let (error, here) = (call.unwrap_err(), std::panic::Location::caller());
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert_eq!(error.location().map(|at| (at.file(), at.line())), Some((here.file(), here.line())));
}

#[test]
fn debug_mode_names_the_differing_ranks_and_launches_nothing() {
    schedules(&[3], |ranks| {
        ranks.debug().run(|group| {
            let (rank, x) = (group.rank(), at(&group, 1)?);
            let error = match rank {
                1 => group.broadcast(&x, 0, ()),
                _ => group.all_reduce(&x, ()),
            }
            .unwrap_err();
            let Some(GroupError::Mismatch { seq: 1, differing, .. }) = error.find() else {
                panic!("{error}")
            };
            let ranks: Vec<_> = differing.iter().map(|d| d.rank).collect();
            assert_eq!(ranks, if rank == 1 { vec![0, 2] } else { vec![1] });
            assert!(error.to_string().contains("all_reduce(float32[3], Sum)"), "{error}");
            assert!(error.to_string().contains("broadcast(float32[3], root 0)"), "{error}");
            assert_eq!(values(&x)?, [1.0; 3]);
            // Debug mode also compares dtype, shape, reduction and root.
            let y = zeros([3], (if rank == 2 { DType::F64 } else { DType::F32 }, group.device()))?;
            assert!(group.all_reduce(&y, ReduceOptions::new().async_op(true)).is_err());
            let y = zeros([if rank == 2 { 3 } else { 4 }], group.device())?;
            assert!(group.all_reduce(&y, ReduceOptions::new().async_op(true)).is_err());
            let op = if rank == 2 { ReduceOp::Max } else { ReduceOp::Min };
            assert!(group.all_reduce(&x, ReduceOptions::new().op(op).async_op(true)).is_err());
            assert!(group.broadcast(&x, usize::from(rank == 2), true).is_err());
            works(&group)
        });
    });
}

#[test]
fn a_refused_call_in_debug_mode_does_not_disturb_later_calls() {
    schedules(&[2], |ranks| {
        ranks.debug().run(|group| {
            let turned = zeros([2, 3], group.device())?.t()?;
            for async_op in [false, true] {
                let refused =
                    group.all_reduce(&turned, ReduceOptions::new().async_op(async_op)).unwrap_err();
                assert!(refused.to_string().contains("contiguous"), "{refused}");
                works(&group)?;
            }
            Ok(())
        });
    });
}

#[test]
fn debug_mode_compares_sends_and_receives_by_their_order_between_two_ranks() {
    schedules(&[3], |ranks| {
        ranks.debug().run(|group| {
            let rank = group.rank();
            let of = |count: usize, dtype| zeros([count], (dtype, group.device()));
            let (three, four, int) = (of(3, DType::F32)?, of(4, DType::F32)?, of(3, DType::I32)?);
            // Receive with a different count, then with a different dtype: both ranks get the error, and neither
            // launches.
            for wrong in [&four, &int] {
                match rank {
                    0 => {
                        let (ranks, text) = mismatch(group.send(&three, 1, false));
                        assert_eq!(ranks, [1], "{text}");
                        assert!(text.contains("send(float32[3], to 1)"), "{text}");
                        assert!(text.contains("from 0)"), "{text}");
                    }
                    1 => assert_eq!(mismatch(group.recv(wrong, 0, true)).0, [0]),
                    _ => {}
                }
            }
            // Receive in a different order, in one batch: the single sends do not match.
            match rank {
                0 => {
                    mismatch(group.send(&three, 1, false));
                    mismatch(group.send(&four, 1, false));
                }
                1 => {
                    let both = [P2p::Recv(&four, 0), P2p::Recv(&three, 0)];
                    assert_eq!(mismatch(group.batch_isend_irecv(&both)).0, [0, 0]);
                }
                _ => {}
            }
            // After the mismatches, matching calls work, including sends of a rank to itself.
            let (x, y) = (at(&group, rank)?, at(&group, 9)?);
            let (next, last) = ((rank + 1) % 3, (rank + 2) % 3);
            for shift in 0..3 {
                let (to, from) = ((rank + shift) % 3, (rank + 3 - shift) % 3);
                let both = [P2p::Send(&x, to), P2p::Recv(&y, from)];
                group.batch_isend_irecv(&both)?.wait()?;
                assert_eq!(values(&y)?, [from as f32; 3]);
            }
            // A call with invalid arguments neither waits for other ranks nor uses up a sequence number.
            refused(group.send(&x, rank, false));
            refused(group.recv(&x, 3, false));
            if rank == 0 {
                group.send(&x, next, false)?;
                group.recv(&y, last, false)?;
            } else {
                group.recv(&y, last, false)?;
                group.send(&x, next, false)?;
            }
            assert_eq!(values(&y)?, [last as f32; 3]);
            works(&group)
        });
    });
}

#[test]
fn debug_mode_compares_the_content_of_each_transfer_not_the_splits() {
    schedules(&[2], |ranks| {
        ranks.debug().run(|group| {
            let rank = group.rank();
            let (x, y) = (zeros([4], group.device())?, zeros([4], group.device())?);
            x.fill_(rank as f64 + 1.0)?;
            // A call with equal splits matches a call without splits.
            let splits =
                AllToAllOptions::new().output_split_sizes(&[2, 2]).input_split_sizes(&[2, 2]);
            let options = if rank == 0 { splits } else { AllToAllOptions::new() };
            group.all_to_all_single(&y, &x, options)?;
            assert_eq!(values(&y)?, [1.0, 1.0, 2.0, 2.0]);
            // Each rank has its own sizes: rank 0 sends 3 elements to rank 1, and rank 1 sends 1 element to rank 0.
            let (inputs, outputs, y) = match rank {
                0 => ([1, 3], [1, 1], zeros([2], group.device())?),
                _ => ([1, 3], [3, 3], zeros([6], group.device())?),
            };
            group.all_to_all_single(
                &y,
                &x,
                AllToAllOptions::new().output_split_sizes(&outputs).input_split_sizes(&inputs),
            )?;
            let expected: &[f32] =
                if rank == 0 { &[1.0, 2.0] } else { &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0] };
            assert_eq!(values(&y)?, expected);
            // The parts do not match: rank 0 sends 2 elements to rank 1, which receives 3.
            let outputs = if rank == 0 { [2, 1] } else { [3, 2] };
            let y = zeros([outputs.iter().sum()], group.device())?;
            let inputs = if rank == 0 { [2, 2] } else { [1, 2] };
            let x = zeros([inputs.iter().sum()], group.device())?;
            let (ranks, text) = mismatch(group.all_to_all_single(
                &y,
                &x,
                AllToAllOptions::new().output_split_sizes(&outputs).input_split_sizes(&inputs),
            ));
            assert_eq!(ranks, [1 - rank], "{text}");
            assert!(text.contains("2 of float32") && text.contains("3 of float32"), "{text}");
            let list = [x.clone(), y.clone()];
            let ints = [zeros([3], (DType::I32, group.device()))?, y.clone()];
            let inputs = if rank == 0 { &list } else { &ints };
            let outs = [x.new_empty(x.size(), x.device())?, y.new_empty(y.size(), y.device())?];
            let (_, text) = mismatch(group.all_to_all(&outs, inputs, ()));
            assert!(text.contains("of int32") && text.contains("all_to_all()"), "{text}");
            works(&group)
        });
    });
}

/// A store that tracks the keys that comparisons use.
#[derive(Debug, Default)]
struct KeyTrackingStore {
    store: HashStore,
    keys: Mutex<BTreeSet<String>>,
}

impl Store for KeyTrackingStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        if key.contains("/check/") {
            self.keys.lock().unwrap().insert(key.into());
        }
        self.store.set(key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        self.store.get(key, timeout)
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        self.store.add(key, amount)
    }

    fn compare_set(&self, key: &str, old: &[u8], new: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.store.compare_set(key, old, new)
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        self.keys.lock().unwrap().remove(key);
        self.store.delete(key)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        self.store.wait(keys, timeout)
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        self.store.check(keys)
    }
}

#[test]
fn debug_mode_leaves_nothing_in_the_store_between_replays() {
    schedules(&[2], |ranks| {
        let listed = Arc::new(KeyTrackingStore::default());
        let rank = |rank: usize| {
            let options = InitOptions::new(listed.clone(), rank, 2).device(rank).debug(true);
            let group = init_process_group(options)?;
            cuda::set_device(group.device())?;
            let x = at(&group, 0)?;
            group.all_reduce(&x, ())?;
            let side = cuda::Stream::new(group.device())?;
            let mut graph = CudaGraph::new();
            cuda::with_stream(&side, || graph.capture(|| group.all_reduce(&x, ()).map(drop)))?;
            // Each replay has its own sequence number and writes nothing to the store.
            for replays in 0..6 {
                (0..replays).try_for_each(|_| graph.replay())?;
                group.all_reduce(&x, ())?;
            }
            group.barrier()
        };
        std::thread::scope(|scope| {
            let run = |of| scope.spawn(move || with_runtime(ranks.runtime(), || rank(of)));
            for rank in [0, 1].map(run) {
                rank.join().unwrap().unwrap();
            }
        });
        let left = listed.keys.lock().unwrap();
        assert_eq!(left.len(), 2, "only the last key of each rank should be left: {left:?}");
    });
}
