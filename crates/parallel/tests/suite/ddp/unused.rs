//! Parameters that a backward pass leaves out.

use warpline::autograd::enable_grad;
use warpline::{Error, Result, Tensor, full};
use warpline_nn::{Forward, Module, Parameter};
use warpline_parallel::distributed::{DdpError, DdpOptions, DistributedDataParallel, ProcessGroup};

use crate::group_support::{Ranks, schedules};

/// Three factors. The input of a forward pass names the factors that the pass uses.
#[derive(Debug, Module)]
struct Parts {
    a: Parameter,
    b: Parameter,
    c: Parameter,
}

impl Forward<&str> for Parts {
    type Output = Tensor;

    fn forward(&self, names: &str) -> Result<Tensor> {
        let mut product = full([], 1.0, self.a.device())?;
        for name in names.chars() {
            let factor = match name {
                'a' => &self.a,
                'b' => &self.b,
                _ => &self.c,
            };
            product = (&product * factor)?;
        }
        Ok(product)
    }
}

fn parts(group: ProcessGroup, options: DdpOptions) -> Result<DistributedDataParallel<Parts>> {
    let parameter = |value: f64| Parameter::new(full([], value, group.device())?);
    let net = Parts { a: parameter(2.0)?, b: parameter(3.0)?, c: parameter(5.0)? };
    DistributedDataParallel::new(net, group, options)
}

fn grads(net: &DistributedDataParallel<Parts>) -> Result<Vec<Option<f32>>> {
    net.parameters().iter().map(|p| p.grad().map(|grad| grad.item()).transpose()).collect()
}

#[test]
fn locally_unused_parameters_get_the_mean_and_globally_unused_ones_stay() {
    let check = |ranks: &Ranks| {
        for view in [false, true] {
            ranks.run(|group| {
                let rank = group.rank();
                let options = DdpOptions::new().find_unused_parameters(true);
                let net = parts(group, options.gradient_as_bucket_view(view))?;
                // Rank 0 uses a; rank 1 uses a and b. The gradients are 1 and (3, 2).
                net.forward(["a", "ab"][rank])?.backward()?;
                assert_eq!(grads(&net)?, [Some(2.0), Some(1.0), None]);
                net.zero_grad()?;
                // A parameter that no rank uses keeps its gradient.
                net.module().c.set_grad(&full([], 7.0, net.group().device())?)?;
                net.forward(["ba", "b"][rank])?.backward()?;
                assert_eq!(grads(&net)?, [Some(1.5), Some(1.5), Some(7.0)]);
                net.zero_grad()?;
                // All parameters are used.
                net.forward("abc")?.backward()?;
                assert_eq!(grads(&net)?, [Some(15.0), Some(10.0), Some(6.0)]);
                Ok(())
            });
        }
    };
    check(&Ranks::cpu(2));
    schedules(&[2], check);
}

#[test]
fn parameters_without_a_gradient_are_named_by_the_next_forward_pass() {
    let errors = Ranks::cpu(2).run(|group| {
        let net = parts(group, DdpOptions::new())?;
        net.forward("ac")?.backward()?;
        Ok(net.forward("abc").unwrap_err())
    });
    for (number, error) in errors.iter().enumerate() {
        match error.find::<DdpError>() {
            Some(DdpError::NotReduced { rank, parameters }) => {
                assert_eq!((*rank, &parameters[..]), (number, &["b".to_owned()][..]), "{error}");
            }
            _ => panic!("{error}"),
        }
        assert!(error.to_string().contains("find_unused_parameters"), "{error}");
    }
}

#[test]
fn a_static_graph_finds_unused_parameters_once_and_rebuilds_after_its_second_iteration() {
    let check = |ranks: &Ranks| {
        ranks.run(|group| {
            let rank = group.rank();
            let options = DdpOptions::new().static_graph(true).bucket_cap_mb(0.0);
            let net = parts(group, options)?;
            for iteration in 0..4 {
                let buckets = net.bucket_names();
                if iteration < 2 {
                    assert_eq!(buckets, [["a", "b", "c"]]);
                }
                net.forward(["a", "ab"][rank])?.backward()?;
                assert_eq!(grads(&net)?, [Some(2.0), Some(1.0), None]);
                net.zero_grad()?;
            }
            let buckets = net.bucket_names();
            assert_eq!(buckets.len(), 3);
            assert_eq!(buckets[0].len(), 1);
            Ok(buckets)
        })
    };
    let buckets = check(&Ranks::cpu(2));
    // Unused parameters of rank 0 come last.
    assert_eq!(buckets[0], [["a"], ["b"], ["c"]]);
    assert_eq!(buckets[0], buckets[1]);
    schedules(&[2], |ranks| drop(check(ranks)));
}

#[test]
fn a_static_graph_that_changes_is_an_error_that_names_the_parameter() {
    let errors = Ranks::cpu(2).run(|group| {
        let net = parts(group, DdpOptions::new().static_graph(true))?;
        net.forward("ab")?.backward()?;
        Ok(net.forward("abc")?.backward().unwrap_err())
    });
    for error in errors {
        let found = error.find::<DdpError>();
        assert!(
            matches!(found, Some(DdpError::GraphChanged { parameter, .. }) if parameter == "c"),
            "{error}"
        );
    }
}

/// Runs the backward pass of a product of `a` within the backward pass of the loss, as a checkpoint does.
fn twice(net: &DistributedDataParallel<Parts>) -> Result<()> {
    let loss = net.forward("abc")?;
    let a = net.module().a.clone();
    let outer = loss.detach().requires_grad_(true)?;
    outer.register_hook(move |_| {
        enable_grad(|| a.mul(1.0))?.backward()?;
        Ok(None)
    })?;
    (outer + loss)?.backward()
}

#[test]
fn a_gradient_that_is_ready_twice_is_an_error_unless_the_graph_is_static() {
    let errors = Ranks::cpu(2).run(|group| {
        let net = parts(group, DdpOptions::new())?;
        Ok::<Error, _>(twice(&net).unwrap_err())
    });
    for error in errors {
        let found = error.find::<DdpError>();
        assert!(
            matches!(found, Some(DdpError::ReadyTwice { parameter, .. }) if parameter == "a"),
            "{error}"
        );
    }
    Ranks::cpu(2).run(|group| {
        let net = parts(group, DdpOptions::new().static_graph(true))?;
        for _ in 0..3 {
            twice(&net)?;
            assert_eq!(grads(&net)?, [Some(16.0), Some(10.0), Some(6.0)]);
            net.zero_grad()?;
        }
        Ok(())
    });
}
