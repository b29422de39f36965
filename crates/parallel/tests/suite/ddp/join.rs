//! Uneven inputs.

use warpline::autograd::no_grad;
use warpline::{Result, Tensor, full};
use warpline_nn::{Buffer, Forward, Module, Parameter};
use warpline_parallel::distributed::{
    DdpError, DdpOptions, DistributedDataParallel, JoinOptions, ProcessGroup,
};

use crate::group_support::{Ranks, schedules};

/// A factor, a term, and a count of the forward passes.
#[derive(Debug, Module)]
struct Net {
    a: Parameter,
    b: Parameter,
    count: Buffer,
}

impl Forward<Tensor> for Net {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.count.add_(1.0)?;
        ((&x * &self.a)? + &self.b)?.sum(())
    }
}

/// Trains for a number of steps that depends on the rank. Returns the gradients of `a` of each step, and the module at
/// the end.
fn train(
    group: ProcessGroup,
    (options, join): (DdpOptions, JoinOptions),
    steps: usize,
) -> Result<(Vec<f32>, [f32; 3])> {
    let device = group.device();
    let parameter = |value: f64| Parameter::new(full([40], value, device)?);
    let count = Buffer::new(full([], 0.0, device)?);
    let net = Net { a: parameter(1.0)?, b: parameter(2.0)?, count };
    let input = full([40], 1.0 + group.rank() as f64, device)?;
    let net = DistributedDataParallel::new(net, group, options)?;
    let grads = net.join(join, || {
        let mut grads = Vec::new();
        for _ in 0..steps {
            net.zero_grad()?;
            net.forward(input.clone())?.backward()?;
            let grad = net.module().a.grad().expect("a gradient");
            no_grad(|| net.module().a.add_scaled_(&grad, -1.0).map(drop))?;
            grads.push(grad);
        }
        Ok(grads)
    })?;
    let grads = grads.iter().map(|grad| Ok(grad.to_vec::<f32>()?[0]));
    let net = net.module();
    let first = |tensor: &Tensor| Ok::<_, warpline::Error>(tensor.to_vec::<f32>()?[0]);
    let end = [first(&net.a)?, first(&net.b)?, first(&net.count)?];
    Ok((grads.collect::<Result<_>>()?, end))
}

const SMALL: f64 = 100.0 / (1 << 20) as f64;

#[test]
fn ranks_with_more_inputs_continue_with_zeros_from_the_other_ranks() {
    let check = |ranks: &Ranks| {
        for options in [
            DdpOptions::new(),
            DdpOptions::new().bucket_cap_mb(SMALL),
            DdpOptions::new().bucket_cap_mb(SMALL).find_unused_parameters(true),
            DdpOptions::new().bucket_cap_mb(SMALL).static_graph(true),
            DdpOptions::new().bucket_cap_mb(SMALL).gradient_as_bucket_view(true),
        ] {
            for (initial, lone) in [(true, 1.0), (false, 2.0)] {
                let join = JoinOptions::new().divide_by_initial_world_size(initial);
                let all = ranks.run(|group| {
                    let steps = [1, 4][group.rank()];
                    train(group, (options.clone(), join), steps)
                });
                // Inputs are 1 and 2: the mean is 1.5, and 2 / 2 or 2 / 1 once rank 0 has left.
                assert_eq!(all[0].0, [1.5], "{options:?}");
                assert_eq!(all[1].0, [1.5, lone, lone, lone], "{options:?}");
                // All ranks end with the model of rank 1.
                assert_eq!(all[1].1, [1.0 - 1.5 - 3.0 * lone, 2.0, 4.0], "{options:?}");
                assert_eq!(all[0].1, all[1].1);
            }
        }
    };
    check(&Ranks::cpu(2));
    schedules(&[2], check);
}

#[test]
fn a_rank_without_any_input_takes_part() {
    let all = Ranks::cpu(3).run(|group| {
        let steps = [3, 0, 2][group.rank()];
        train(group, (DdpOptions::new().bucket_cap_mb(SMALL), JoinOptions::new()), steps)
    });
    assert_eq!(all[0].0, [4.0 / 3.0, 4.0 / 3.0, 1.0 / 3.0]);
    assert!(all[1].0.is_empty());
    assert_eq!(all[1].1, all[0].1);
    assert_eq!(all[2].1, all[0].1);
}

#[test]
fn all_ranks_fail_together_if_requested() {
    let errors = Ranks::cpu(2).run(|group| {
        let steps = [1, 3][group.rank()];
        let join = JoinOptions::new().throw_on_early_termination(true);
        Ok(train(group, (DdpOptions::new(), join), steps).unwrap_err())
    });
    for (number, error) in errors.iter().enumerate() {
        match error.find::<DdpError>() {
            Some(DdpError::EarlyTermination { rank }) => assert_eq!(*rank, number),
            _ => panic!("{error}"),
        }
    }
}
