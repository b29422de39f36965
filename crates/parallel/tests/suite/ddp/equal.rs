//! Training on several ranks equals training in one process with the whole batch, and two runs give the same bits.

use warpline_parallel::distributed::DdpOptions;

use super::model::{Trained, small_buckets, train, train_alone};
use crate::group_support::{Ranks, gpu_spec, schedules};

const STEPS: usize = 6;

/// Returns the losses and weights of a training run, after checking that they are the same on all ranks.
fn trained(ranks: &Ranks, options: &DdpOptions) -> Trained {
    let all = ranks.run(|group| train(&group, options.clone(), STEPS));
    for (rank, other) in all.iter().enumerate() {
        assert_eq!(*other, all[0], "rank {rank}");
    }
    all[0].clone()
}

fn variants() -> [(&'static str, DdpOptions); 5] {
    [
        ("default", DdpOptions::new()),
        ("small buckets", small_buckets()),
        ("views", small_buckets().gradient_as_bucket_view(true)),
        ("find unused", small_buckets().find_unused_parameters(true)),
        ("static graph", small_buckets().static_graph(true)),
    ]
}

#[test]
fn cpu_ranks_train_like_one_process_with_the_whole_batch() {
    let alone = train_alone(STEPS);
    assert!(alone.losses[STEPS - 1] < alone.losses[0]);
    for count in [1, 2, 3, 8] {
        for (name, options) in variants() {
            let (first, second) =
                (trained(&Ranks::cpu(count), &options), trained(&Ranks::cpu(count), &options));
            assert_eq!(first, second, "{count} ranks, {name}");
            first.assert_close(&alone, 1e-12);
        }
    }
}

#[test]
fn simulated_gpus_train_like_one_process_under_every_schedule() {
    const COUNTS: [usize; 3] = [2, 3, 8];
    let alone = train_alone(STEPS);
    let cpu = COUNTS.map(|count| (count, trained(&Ranks::cpu(count), &small_buckets())));
    schedules(&COUNTS, |ranks| {
        let first = trained(ranks, &small_buckets());
        assert_eq!(first, trained(ranks, &small_buckets()));
        first.assert_close(&alone, 1e-12);
        // The simulator runs the CPU code of each op and sums in the order of ranks, as CPU groups do.
        assert!(cpu.contains(&(ranks.len(), first)));
    });
}

#[test]
fn every_variant_trains_like_one_process_on_simulated_gpus() {
    let alone = train_alone(STEPS);
    for (_, options) in variants() {
        for spec in ["sim:2,lazy", "sim:2,seed=1", "sim:2,seed=2"] {
            trained(&Ranks::new(spec, 2), &options).assert_close(&alone, 1e-12);
        }
    }
}

/// Under `SyncPolicy::Manual`, only the waits that the reducer makes order the streams.
#[test]
fn the_reducer_orders_its_streams_itself() {
    let alone = train_alone(STEPS);
    for spec in ["sim:2,lazy", "sim:2,seed=1", "sim:2,seed=2", "sim:2,seed=3"] {
        trained(&Ranks::manual(spec, 2), &small_buckets()).assert_close(&alone, 1e-12);
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_ddp_trains_like_one_process_with_the_whole_batch() {
    let (ranks, alone) = (Ranks::new(&gpu_spec(), 2), train_alone(STEPS));
    for (_, options) in variants() {
        trained(&ranks, &options).assert_close(&alone, 1e-9);
    }
}
