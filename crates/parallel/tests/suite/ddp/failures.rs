//! Failures: invalid and different models, and ranks that leave, are late or make an additional call in a step.

use std::time::{Duration, Instant};

use warpline::{DType, Device, ErrorKind, Result, full};
use warpline_nn::{Linear, Module};
use warpline_parallel::distributed::{DdpError, DdpOptions, DistributedDataParallel, GroupError};

use super::model::{Mlp, batch, small_buckets};
use crate::group_support::{LONG, Ranks, at_once, gpu_spec, works};

#[test]
fn a_forward_pass_after_a_move_of_the_module_is_an_error() {
    let errors = Ranks::cpu(2).run(|group| {
        let mut net = DistributedDataParallel::new(Linear::new(2, 1, ())?, group, ())?;
        net.module_mut().to(DType::F64)?;
        let x = full([1, 2], 1.0, DType::F64)?;
        Ok(net.call(|linear| linear.forward(&x)).unwrap_err())
    });
    for error in errors {
        assert!(matches!(error.kind(), ErrorKind::Moved { .. }), "{error}");
    }
}

#[test]
fn different_models_are_an_error_that_names_rank_and_parameter() {
    type Change = fn(&mut Mlp) -> Result<()>;
    let changes: [(Change, &str); 4] = [
        (
            |net| net.fc2.weight.set_data(full([6, 8], 0.0, DType::F64)?),
            "fc2.weight: float64[6, 8]",
        ),
        (
            |net| net.fc3.bias.as_mut().unwrap().set_data(full([2], 0.0, ())?),
            "fc3.bias: float32[2]",
        ),
        (|net| net.fc1.weight.requires_grad_(false).map(drop), "fc1.weight: float64[7, 5] without"),
        (
            |net| {
                net.fc3.bias = None;
                Ok(())
            },
            "nothing more",
        ),
    ];
    for (change, says) in changes {
        let errors = Ranks::cpu(3).run(|group| {
            let mut net = Mlp::new(Device::Cpu, 0)?;
            if group.rank() == 1 {
                change(&mut net)?;
            }
            Ok(DistributedDataParallel::new(net, group, ()).unwrap_err())
        });
        for (number, error) in errors.iter().enumerate() {
            match error.find::<DdpError>() {
                Some(DdpError::Differs { rank, differing }) => {
                    assert_eq!((*rank, differing.len()), (number, 1 + usize::from(number == 1)));
                    assert!(differing[0].contains("rank 1 has"), "{error}");
                    assert!(differing[0].contains(says), "{error}");
                }
                _ => panic!("{error}"),
            }
        }
    }
    // Different options are an error, because they would lead to different collectives.
    let errors = Ranks::cpu(2).run(|group| {
        let options = DdpOptions::new().find_unused_parameters(group.rank() == 1);
        Ok(DistributedDataParallel::new(Mlp::new(Device::Cpu, 0)?, group, options).unwrap_err())
    });
    assert!(errors[0].to_string().contains("find_unused_parameters: true"), "{}", errors[0]);
}

#[test]
fn modules_without_parameters_or_on_other_devices_are_refused() {
    Ranks::cpu(1).run(|group| {
        let net = Linear::new(2, 1, ())?;
        net.requires_grad_(false)?;
        let error = DistributedDataParallel::new(net, group.clone(), ()).unwrap_err();
        assert!(matches!(error.find(), Some(DdpError::NoParameters)), "{error}");
        let mut net = Linear::new(2, 1, ())?;
        net.to("cuda:0")?;
        let error = DistributedDataParallel::new(net, group, ()).unwrap_err();
        let wrong =
            matches!(error.find(), Some(DdpError::WrongDevice { name, .. }) if name == "weight");
        assert!(wrong, "{error}");
        Ok(())
    });
}

/// A timeout that is short, so that hanging calls fail soon, and longer than matching calls take on a busy machine.
const SHORT: Duration = Duration::from_millis(2500);

/// The points of a backward pass at which a rank leaves, in order: before the pass, and before each gradient.
const POINTS: [&str; 7] =
    ["", "fc3.bias", "fc3.weight", "fc2.bias", "fc2.weight", "fc1.bias", "fc1.weight"];

/// The last rank leaves at a point of a step. The other ranks get an error that names the rank, the bucket and its
/// parameters.
fn a_rank_leaves(ranks: &Ranks, point: &str) {
    let gone = ranks.len() - 1;
    let errors = ranks.timeout(SHORT).run(|group| {
        let (device, part) = (group.device(), (group.rank(), group.world_size()));
        let net = Mlp::new(device, 0)?;
        let net = DistributedDataParallel::new(net, group.clone(), small_buckets())?;
        let step = |step: usize| -> Result<()> {
            let (x, y) = batch(step, part, device)?;
            (net.forward(x)? - y)?.square()?.mean(())?.backward()
        };
        (0..2).try_for_each(step)?;
        group.barrier()?;
        let begun = Instant::now();
        if group.rank() == gone {
            let parameters = net.module().named_parameters();
            if let Some((_, parameter)) = parameters.iter().find(|(name, _)| name == point) {
                parameter.register_hook(|_| {
                    Err(warpline::Error::invalid("test", "the rank leaves".to_owned()))
                })?;
                step(2).unwrap_err();
            }
            return Ok(None); // drops this rank's group
        }
        let stepped = step(2).and_then(|()| {
            let grads = net.parameters().into_iter().filter_map(|parameter| parameter.grad());
            grads.into_iter().try_for_each(|grad| grad.to_vec::<f64>().map(drop))
        });
        assert!(begun.elapsed() < LONG);
        Ok(Some((stepped.unwrap_err(), net.bucket_names())))
    });
    for (rank, failed) in errors.iter().enumerate().take(gone) {
        let (error, buckets) =
            failed.as_ref().unwrap_or_else(|| panic!("rank {rank} has no error"));
        let failure = GroupError::failure(error).unwrap_or_else(|| panic!("{error}"));
        assert_eq!((failure.rank, &failure.missing[..]), (rank, &[gone][..]), "{error}");
        let has_point = |bucket: &Vec<String>| bucket.iter().any(|name| name == point);
        let bucket = buckets.iter().position(has_point).unwrap_or(0);
        let text = error.to_string();
        assert!(text.contains(&format!("bucket {bucket} of {}", buckets.len())), "{point}: {text}");
        assert!(text.contains(&buckets[bucket][0]), "{point}: {text}");
    }
}

fn a_rank_leaves_at_every_point(specs: &[Option<&str>], ranks: usize) {
    let make = |spec: &Option<&str>| spec.map_or(Ranks::cpu(ranks), |spec| Ranks::new(spec, ranks));
    for spec in specs {
        // All points at the same time, because each ends at a timeout.
        std::thread::scope(|scope| {
            let start = |point| scope.spawn(move || a_rank_leaves(&make(spec), point));
            let all = POINTS.map(start);
            all.into_iter().for_each(|thread| thread.join().unwrap());
        });
        make(spec).run(|group| works(&group));
    }
}

#[test]
fn a_cpu_rank_that_leaves_in_the_middle_of_a_step_is_named_with_bucket_and_parameter() {
    a_rank_leaves_at_every_point(&[None], 3);
}

#[test]
fn a_rank_that_leaves_in_the_middle_of_a_step_is_named_with_bucket_and_parameter() {
    a_rank_leaves_at_every_point(
        &[Some("sim:3,lazy"), Some("sim:3,seed=1"), Some("sim:3,seed=2")],
        3,
    );
}

/// Rank 1 is slower than the timeout, or makes an additional call. Every rank gets an error that names the bucket and a
/// parameter in it. The errors of the other ranks also name rank 1.
fn a_rank_disturbs(ranks: &Ranks, slow: bool) {
    const ODD: usize = 1;
    let errors = ranks.timeout(SHORT).run(|group| {
        let (device, part) = (group.device(), (group.rank(), group.world_size()));
        let net = Mlp::new(device, 0)?;
        let net = DistributedDataParallel::new(net, group.clone(), small_buckets())?;
        let step = |step: usize| -> Result<()> {
            let (x, y) = batch(step, part, device)?;
            (net.forward(x)? - y)?.square()?.mean(())?.backward()?;
            let grads = net.parameters().into_iter().filter_map(|parameter| parameter.grad());
            grads.into_iter().try_for_each(|grad| grad.to_vec::<f64>().map(drop))
        };
        (0..2).try_for_each(step)?;
        group.barrier()?;
        let additional = || group.all_reduce(&full([3], 1.0, device)?, ());
        let begun = Instant::now();
        let failed = match (group.rank() == ODD, slow) {
            (true, true) => {
                std::thread::sleep(4 * SHORT);
                step(2)
            }
            (true, false) => additional().and_then(|_| step(2)),
            (false, _) => step(2),
        };
        assert!(begun.elapsed() < LONG);
        Ok(failed.unwrap_err())
    });
    for (rank, error) in errors.iter().enumerate() {
        let failure = GroupError::failure(error).unwrap_or_else(|| panic!("{error}"));
        let text = error.to_string();
        assert_eq!(failure.rank, rank, "{text}");
        assert!(text.contains("bucket 0 of 3") && text.contains("fc3.bias"), "{text}");
        if rank != ODD {
            assert!(failure.differing.iter().any(|call| call.rank == ODD), "{text}");
        }
    }
}

#[test]
fn a_slow_rank_and_a_rank_with_another_order_of_calls_are_named() {
    for slow in [true, false] {
        at_once(
            6,
            &[None, Some("sim:3,lazy"), Some("sim:3,seed=1"), Some("sim:3,seed=2")],
            |spec| {
                a_rank_disturbs(
                    &spec.map_or_else(|| Ranks::cpu(3), |spec| Ranks::new(spec, 3)),
                    slow,
                );
            },
        );
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_slow_rank_and_a_rank_with_another_order_of_calls_are_named() {
    for slow in [true, false] {
        a_rank_disturbs(&Ranks::new(&gpu_spec(), 2), slow);
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_ddp_rank_that_leaves_in_the_middle_of_a_step_is_named() {
    let ranks = Ranks::new(&gpu_spec(), 2);
    for point in POINTS {
        a_rank_leaves(&ranks, point);
    }
    ranks.run(|group| works(&group));
}
