//! Process groups between CPU tensors, and `spawn`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warpline::{DType, Result, arange, full, tensor, with_runtime, zeros};
use warpline_parallel::distributed::{
    AllToAllOptions, Backend, FileStore, GroupError, InitOptions, P2p, ReduceOptions, Store,
    TcpStore, init_process_group, spawn,
};

use crate::group_failures::a_rank_is_gone;
use crate::group_support::{LONG, Ranks, at, values, works};
use crate::groups::{all_collectives, dtypes_are_nccls};

#[test]
fn every_collective_is_correct_on_cpus() {
    for count in 1..=4 {
        for ranks in [Ranks::cpu(count), Ranks::cpu(count).debug()] {
            for async_op in [false, true] {
                ranks.run(|group| all_collectives(&group, async_op));
            }
        }
    }
}

#[test]
fn cpu_groups_take_the_dtypes_of_nccl() {
    dtypes_are_nccls(&Ranks::cpu(2));
}

#[test]
fn invalid_calls_on_cpus_are_refused_and_change_nothing() {
    Ranks::cpu(2).run(|group| {
        let x = zeros([2, 3], ())?;
        let list = [x.clone()];
        for (refused, says) in [
            (group.all_reduce(&x.t()?, ()), "contiguous"),
            (
                group.all_reduce(&zeros([2], "cuda:0")?, ReduceOptions::new().async_op(true)),
                "cuda:0",
            ),
            (group.broadcast(&x, 2, ()), "no rank 2"),
            (group.all_gather(&list, &x, ()), "but must have 2, one for each rank"),
            (group.all_gather_into_tensor(&x, &x, ()), "as many elements"),
            (
                group.all_to_all_single(&x, &x, AllToAllOptions::new().input_split_sizes(&[1, 2])),
                "[1, 2]",
            ),
            (group.scatter(&x, Some(&list), 1 - group.rank(), ()), "only rank"),
            (group.send(&x, group.rank(), false), "itself"),
            (group.batch_isend_irecv(&[]), "at least one"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(x.to_vec::<f32>()?, [0.0; 6]);
        works(&group)
    });
}

/// Messages longer than a piece, of several sizes. Each rank sends and receives at the same time.
#[test]
fn long_messages_are_cut_into_pieces() {
    const LENGTH: usize = 700_001;
    Ranks::cpu(3).run(|group| {
        let (rank, ranks) = (group.rank(), group.world_size());
        let x = arange(LENGTH as i64, (DType::F32, "cpu"))?.mul(rank as f64 + 1.0)?;
        group.all_reduce(&x, ())?;
        let wanted = |i: usize| (i as f32) + 2.0 * (i as f32) + 3.0 * (i as f32);
        let found = x.to_vec::<f32>()?;
        assert!(found.iter().enumerate().all(|(i, x)| *x == wanted(i)));
        let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let length = |rank: usize| LENGTH * (rank + 1);
        let sent = full([length(rank)], rank as f64, ())?;
        let received = zeros([length(before)], ())?;
        group.batch_isend_irecv(&[P2p::Send(&sent, next), P2p::Recv(&received, before)])?;
        assert!(received.to_vec::<f32>()?.iter().all(|x| *x == before as f32));
        Ok(())
    });
}

#[test]
fn sums_are_in_the_order_of_ranks_and_equal_on_all_ranks() {
    let terms = [1e8, -1e8, 1.0, 3e-8];
    let wanted = ((1e8f32 - 1e8) + 1.0) + 3e-8;
    for (rank, sum) in spawn(4, |group| {
        let x = tensor([terms[group.rank()] as f32], ())?;
        group.all_reduce(&x, ())?;
        x.item::<f32>()
    })
    .unwrap()
    .into_iter()
    .enumerate()
    {
        assert_eq!(sum.to_bits(), wanted.to_bits(), "rank {rank}: {sum}");
    }
}

#[test]
fn subgroups_of_cpus_have_calls_of_their_own() {
    Ranks::cpu(3).run(|group| {
        let pair = group.new_group(&[2, 0])?;
        assert_eq!(pair.is_some(), group.rank() != 1);
        if let Some(pair) = &pair {
            assert_eq!((pair.rank(), pair.world_size()), (group.rank() / 2, 2));
            works(pair)?;
        }
        works(&group)
    });
}

#[test]
fn cpu_groups_work_over_every_store() {
    let works_over = |stores: [Arc<dyn Store>; 2]| {
        std::thread::scope(|scope| {
            // The host's store lives until both ranks have ended.
            for (rank, store) in stores.iter().enumerate() {
                scope.spawn(move || {
                    let options = InitOptions::new(Arc::clone(store), rank, 2)
                        .backend(Backend::Cpu)
                        .timeout(LONG);
                    with_runtime(&warpline::simulated(0).unwrap(), || {
                        works(&init_process_group(options).unwrap()).unwrap();
                    });
                });
            }
        });
    };
    let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
    let client = TcpStore::connect(("127.0.0.1", host.port()), LONG).unwrap();
    works_over([Arc::new(host), Arc::new(client)]);
    let path = std::env::temp_dir().join(format!("warpline-cpu-groups-{}", std::process::id()));
    let open = || Arc::new(FileStore::open(&path).unwrap()) as Arc<dyn Store>;
    works_over([open(), open()]);
    let _ = std::fs::remove_file(&path);
}

/// A timeout that is short, so that hanging calls fail soon, and longer than matching calls take on a busy machine.
const SHORT: Duration = Duration::from_millis(1500);

#[test]
fn a_cpu_rank_that_is_gone_is_named_by_all_others() {
    let ranks = Ranks::cpu(3);
    a_rank_is_gone(&ranks);
    ranks.run(|group| works(&group));
}

#[test]
fn a_cpu_rank_that_never_arrives_is_named() {
    let ranks = Ranks::cpu(3).timeout(Duration::from_millis(300));
    for error in ranks.init_without(1) {
        let found = error.find::<GroupError>();
        assert!(
            matches!(found, Some(GroupError::Init { missing, .. }) if missing == &[1]),
            "{error}"
        );
    }
}

#[test]
fn differing_calls_on_cpus_fail_and_leave_the_tensors_unchanged() {
    let errors = Ranks::cpu(2).timeout(SHORT).run(|group| {
        let x = at(&group, 1)?;
        let called = match group.rank() {
            0 => group.all_reduce(&x, ()),
            _ => group.all_reduce(&full([4], 1.0, ())?, ()),
        };
        let error = called.unwrap_err();
        assert_eq!(values(&x)?, [1.0; 3]);
        assert!(GroupError::failure(&group.barrier().unwrap_err()).is_some());
        Ok(error)
    });
    for (rank, error) in errors.iter().enumerate() {
        let text = error.to_string();
        let failure = GroupError::failure(error).unwrap_or_else(|| panic!("rank {rank}: {text}"));
        assert_eq!(failure.rank, rank);
        for call in ["all_reduce(float32[3], Sum)", "all_reduce(float32[4], Sum)"] {
            assert!(text.contains(call), "rank {rank}: {text}");
        }
        assert!(text.contains("cpu_groups.rs:"), "rank {rank}: {text}");
    }
}

#[test]
fn spawn_returns_the_first_error_with_its_rank_and_ends_the_other_ranks() {
    let begun = Instant::now();
    let error = spawn(3, |group| -> Result<()> {
        if group.rank() == 2 {
            zeros([2], ())?.reshape([3])?;
        }
        group.barrier()
    })
    .unwrap_err();
    assert!(begun.elapsed() < LONG);
    match error.find::<GroupError>() {
        Some(GroupError::Rank { rank: 2, source }) => {
            assert!(GroupError::failure(source).is_none(), "{source}");
        }
        _ => panic!("{error}"),
    }
}

#[test]
fn spawn_resumes_the_panic_of_a_rank() {
    let begun = Instant::now();
    let panicked = std::panic::catch_unwind(|| {
        spawn(2, |group| {
            assert!(group.rank() != 1, "rank 1 panics");
            group.barrier()
        })
    });
    let panic = panicked.unwrap_err();
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(text.contains("rank 1 panics"), "{text}");
    // The other rank does not wait for a record of the rank that panicked.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// The payload of a rank's panic belongs to the program, and its drop may panic.
#[test]
fn spawn_leaks_the_panics_that_it_does_not_resume() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("the payload's drop");
        }
    }
    let ranks = || spawn(3, |_| -> Result<()> { std::panic::panic_any(Payload) });
    let panic = std::panic::catch_unwind(ranks).unwrap_err();
    assert!(panic.is::<Payload>());
    std::mem::forget(panic);
}

#[test]
fn each_spawned_rank_has_generators_of_its_own() {
    let values = spawn(2, |group| {
        warpline::manual_seed(group.rank() as u64);
        group.barrier()?;
        warpline::rand([4], ())?.to_vec::<f32>()
    })
    .unwrap();
    warpline::manual_seed(0);
    assert_eq!(values[0], warpline::rand([4], ()).unwrap().to_vec::<f32>().unwrap());
    assert_ne!(values[0], values[1]);
}

/// The last call is a broadcast, which the root completes without waiting for the other ranks. The root hosts the store
/// and drops it at once. The host rarely waits for its whole limit of 10 seconds, even on a busy machine.
#[test]
fn the_host_of_the_store_waits_for_the_last_call_of_the_other_ranks() {
    let mut late = 0;
    for round in 0..12 {
        let host = TcpStore::host("127.0.0.1:0", ()).unwrap();
        let (port, runtime) = (host.port(), warpline::simulated(0).unwrap());
        let rank = |store: TcpStore, rank: usize| {
            let mut options = InitOptions::new(Arc::new(store), rank, 3);
            (options.backend, options.timeout) = (Backend::Cpu, LONG);
            options.store_host = Some(0);
            with_runtime(&runtime, || {
                let group = init_process_group(options)?;
                let x = full([5], if rank == 0 { 7.0 } else { 0.0 }, ())?;
                std::thread::sleep(Duration::from_millis(20 * rank as u64 * (round % 4)));
                group.broadcast(&x, 0, false)?;
                x.to_vec::<f32>()
            })
        };
        let connect = || TcpStore::connect(("127.0.0.1", port), LONG).unwrap();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let others = [1, 2].map(|number| scope.spawn(move || rank(connect(), number)));
            assert_eq!(rank(host, 0).unwrap(), [7.0; 5]);
            for other in others {
                assert_eq!(other.join().unwrap().unwrap(), [7.0; 5], "round {round}");
            }
        });
        late += usize::from(begun.elapsed() >= Duration::from_secs(10));
    }
    // Each of the four delays occurs in three rounds.
    assert!(late < 3, "the host waited for its whole limit");
}
