//! Tests of moves of modules between devices and dtypes, and of invalid moves.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline::autograd::{HookHandle, mark_moved, no_grad};
use warpline::{DType, ErrorKind, MemoryFormat, Result, Tensor, TensorOptions, ones, randn, zeros};
use warpline_nn::optim::{Optimizer, SGD, SGDOptions, clip_grad_norm_};
use warpline_nn::{Buffer, Linear, Module, Parameter};

use crate::boxes::SimBox;
use crate::common::{World, worlds};

#[test]
fn a_network_computes_the_same_everywhere() {
    worlds(1, network);
}

fn network(world: &World) -> Result<()> {
    let mut net = Linear::new(4, 3, ())?;
    let x = randn([2, 4], ())?;
    let expected = net.forward(&x)?.to_vec::<f32>()?;
    for at in world.places() {
        net.to(at)?;
        for parameter in net.parameters() {
            assert_eq!(parameter.device(), at);
        }
        let y = net.forward(&x.to(at)?)?;
        assert_eq!(y.device(), at);
        for (a, b) in y.to_vec::<f32>()?.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
    Ok(())
}
/// The dtype applies to floating-point tensors, and the memory format to tensors with four dimensions.
#[test]
fn a_module_goes_to_a_dtype_and_a_format() {
    #[derive(Module)]
    struct Net {
        linear: Linear,
        filter: Parameter,
        steps: Buffer,
    }
    let filter = Parameter::new(zeros([2, 3, 4, 5], ()).unwrap()).unwrap();
    let steps = Buffer::new(zeros([1], DType::I64).unwrap());
    let mut net = Net { linear: Linear::new(4, 2, ()).unwrap(), filter, steps };
    net.to(TensorOptions::new().dtype(DType::F64).memory_format(MemoryFormat::ChannelsLast))
        .unwrap();
    assert_eq!(net.filter.stride(), [60, 1, 15, 3]);
    assert!(net.parameters().iter().all(|parameter| parameter.dtype() == DType::F64));
    assert_eq!(net.steps.dtype(), DType::I64);
    assert!(net.to(DType::I32).is_err());
}

#[test]
fn a_buffer_that_shares_a_parameters_memory_stays_a_buffer() {
    #[derive(Module)]
    struct Net {
        weight: Parameter,
        kept: Buffer,
    }
    let weight = Parameter::new(zeros([2], ()).unwrap()).unwrap();
    let mut net = Net { kept: Buffer::new(weight.detach()), weight };
    net.to(DType::F64).unwrap();
    assert!(net.weight.requires_grad() && !net.kept.requires_grad());
    assert_eq!(net.kept.dtype(), DType::F64);
}

#[test]
fn errors_name_the_call_and_the_parameter() {
    let error = Linear::new(2, 2, ()).unwrap().to("cuda:x").unwrap_err();
    assert!(error.to_string().starts_with("Module::to: "), "{error}");
    SimBox::lazy(1).enter(|| {
        let mut linear = Linear::new(3, 2, ())?;
        let error = linear.share_memory().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::CannotShare { reason, .. } if reason.contains("weight: ")),
            "{error}"
        );
        assert!(!linear.parameters()[0].is_shared());
        Ok(())
    });
}

/// A network of two layers that share one weight.
#[derive(Clone, Module)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn tied() -> Result<Self> {
        let first = Linear { bias: None, ..Linear::new(2, 2, ())? };
        let second = Linear { weight: first.weight.clone(), bias: None };
        Ok(Self { layers: vec![first, second] })
    }

    /// Registers a hook on the shared weight. Returns a counter of the hook's calls.
    fn count_hook_calls(&self) -> Result<Arc<AtomicUsize>> {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        self.layers[0].weight.register_hook(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(None)
        })?;
        Ok(calls)
    }

    fn loss(&self) -> Result<Tensor> {
        let weight = &self.layers[0].weight;
        let mut x = ones([1, 2], (weight.dtype(), weight.device()))?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        x.sum(())
    }
}

fn sgd(net: &impl Module) -> Result<SGD> {
    SGD::new(net.parameters(), SGDOptions::new().lr(0.1).momentum(0.9))
}

/// Asserts that a call failed because a parameter was moved. The error must name `op`, the parameter `name` and the
/// caller's line, and give advice.
#[track_caller]
fn moved<T>(op: &str, name: &str, result: Result<T>) {
    let here = Location::caller();
    let text = result.err().unwrap_or_else(|| panic!("{op}: no error")).to_string();
    assert!(text.starts_with(&format!("{op}: the parameter `{name}` was moved")), "{text}");
    assert!(text.contains("build the optimizer"), "{text}");
    assert!(text.contains(&format!("{}:{}:", here.file(), here.line())), "{text}");
}

/// Runs a test for each dtype and device to which a module moves.
fn moves(world: &World, test: impl Fn(TensorOptions) -> Result<()>) -> Result<()> {
    test(DType::F64.into())?;
    world.places().into_iter().filter(|at| at.is_cuda()).try_for_each(|at| test(at.into()))
}

#[test]
fn an_optimizer_built_before_a_move_reports_an_error_at_its_step() {
    worlds(1, |world| {
        moves(world, |to| {
            let mut net = Net::tied()?;
            let mut optimizer = sgd(&net)?;
            net.loss()?.backward()?;
            optimizer.step()?;
            let state = optimizer.state_dict()?;
            let old = net.parameters();
            net.to(to)?;
            moved("step", "layers.0.weight", optimizer.step());
            moved("SGD", "layers.0.weight", SGD::new(old.clone(), ()));
            moved("clip_grad_norm_", "layers.0.weight", clip_grad_norm_(&old, 1.0, ()));
            // An optimizer of the new parameters continues with the gradients and the state.
            let mut optimizer = sgd(&net)?;
            optimizer.load_state_dict(&state)?;
            assert!(net.parameters().iter().all(|parameter| parameter.grad().is_some()));
            optimizer.step()?;
            let kept = &optimizer.state_dict()?.state[&0]["momentum_buffer"];
            assert_eq!((kept.device(), kept.dtype()), {
                let weight = &net.layers[0].weight;
                (weight.device(), weight.dtype())
            });
            Ok(())
        })
    });
}

#[test]
fn a_frozen_parameter_that_was_moved_cannot_be_unfrozen_or_stepped() -> Result<()> {
    let mut net = Net::tied()?;
    net.requires_grad_(false)?;
    let (mut optimizer, old) = (sgd(&net)?, net.parameters());
    net.to(DType::F64)?;
    moved("requires_grad_", "layers.0.weight", old[0].requires_grad_(true));
    moved("step", "layers.0.weight", optimizer.step());
    Ok(())
}

/// Registers a hook at the caller's line.
#[track_caller]
fn watched(leaf: &Tensor) -> Result<HookHandle> {
    leaf.register_post_accumulate_grad_hook(|_| Ok(()))
}

#[test]
fn gradients_and_hooks_of_the_old_tensor_of_a_moved_parameter_are_errors() {
    worlds(1, |world| {
        moves(world, |to| {
            let mut net = Net::tied()?;
            let (loss, old) = (net.loss()?, net.parameters().remove(0));
            let other = net.clone();
            net.to(to)?;
            moved("backward", "layers.0.weight", loss.backward());
            moved("backward", "layers.0.weight", other.loss()?.backward());
            moved("register_hook", "layers.0.weight", old.register_hook(|_| Ok(None)));
            moved("register_post_accumulate_grad_hook", "layers.0.weight", watched(&old));
            moved("set_grad", "layers.0.weight", old.set_grad(&old.zeros_like(())?));
            old.set_grad(None)?;
            net.loss()?.backward()
        })
    });
}

#[test]
fn a_frozen_parameter_keeps_its_gradient() {
    worlds(1, |world| {
        moves(world, |to| {
            let mut net = Net::tied()?;
            net.loss()?.backward()?;
            net.requires_grad_(false)?;
            let before = grads(&net)?;
            net.to(to)?;
            assert!(net.parameters().iter().all(|parameter| !parameter.requires_grad()));
            assert_eq!(grads(&net)?, before);
            Ok(())
        })
    });
}

fn grads(net: &Net) -> Result<Vec<Vec<f64>>> {
    let values = |p: &Tensor| p.grad().expect("a gradient").to(DType::F64)?.to_vec::<f64>();
    net.parameters().iter().map(values).collect()
}

#[test]
fn hooks_go_with_the_parameter_and_their_handles_still_remove_them() {
    worlds(1, |world| {
        moves(world, |to| {
            let mut net = Net::tied()?;
            let calls = Arc::new([const { AtomicUsize::new(0) }; 2]);
            let count = |i: usize| {
                let calls = calls.clone();
                move || {
                    calls[i].fetch_add(1, Ordering::Relaxed);
                }
            };
            let weight = net.layers[0].weight.clone();
            let (grad, leaf) = (count(0), count(1));
            let seen = weight.register_hook(move |_| {
                grad();
                Ok(None)
            })?;
            let added = weight.register_post_accumulate_grad_hook(move |_| {
                leaf();
                Ok(())
            })?;
            let called = || [&calls[0], &calls[1]].map(|calls| calls.load(Ordering::Relaxed));
            net.to(to)?;
            net.to(DType::F16)?;
            net.loss()?.backward()?;
            assert_eq!(called(), [1, 1]);
            seen.remove();
            added.remove();
            net.loss()?.backward()?;
            assert_eq!(called(), [1, 1]);
            Ok(())
        })
    });
}

#[test]
fn a_move_that_changes_nothing_keeps_every_parameter() -> Result<()> {
    let mut net = Net::tied()?;
    let mut optimizer = sgd(&net)?;
    // A second parameter in the same memory is a separate parameter, before and after the move.
    net.layers.push(Linear {
        weight: Parameter::new(net.layers[0].weight.clone().detach())?,
        bias: None,
    });
    let all = |net: &Net| net.layers.iter().map(|l| Tensor::clone(&l.weight)).collect::<Vec<_>>();
    let before = all(&net);
    net.to(DType::F32)?;
    net.to("cpu")?;
    for (before, after) in before.iter().zip(all(&net)) {
        assert!(before.is_same(&after));
    }
    net.loss()?.backward()?;
    optimizer.step()
}

#[test]
fn an_old_optimizer_fails_after_share_memory_and_set_data() -> Result<()> {
    let mut net = Net::tied()?;
    let mut optimizer = sgd(&net)?;
    net.layers[0].weight.set_data(zeros([2, 2], ())?)?;
    moved("step", "Parameter([2, 2], torch.float32, cpu)", optimizer.step());
    SimBox::lazy(1).enter(|| {
        let mut net = Net::tied()?;
        net.to("cuda")?;
        let mut optimizer = sgd(&net)?;
        net.share_memory()?;
        assert!(net.layers[0].weight.is_same(&net.layers[1].weight), "tied");
        moved("step", "layers.0.weight", optimizer.step());
        net.share_memory()?;
        sgd(&net)?.step()
    });
    Ok(())
}

/// Parameters are tied if they are one tensor. Two parameters over the same memory have gradients of their own.
#[test]
fn parameters_that_share_memory_stay_two_parameters() -> Result<()> {
    #[derive(Module)]
    struct Two {
        first: Parameter,
        second: Parameter,
    }
    let shared = ones([2], ())?;
    let (first, second) = (Parameter::new(shared.clone())?, Parameter::new(shared)?);
    first.set_grad(&ones([2], ())?)?;
    second.set_grad(&ones([2], ())?.mul(5)?)?;
    let mut two = Two { first, second };
    assert_eq!(two.parameters().len(), 2);
    two.to(DType::F64)?;
    let params = two.parameters();
    let grads = params.iter().map(|p| p.grad().expect("a gradient").to_vec::<f64>());
    assert_eq!(grads.collect::<Result<Vec<_>>>()?, [[1.0, 1.0], [5.0, 5.0]]);
    no_grad(|| two.first.fill_(3).map(drop))?;
    assert_eq!(two.second.to_vec::<f64>()?, [1.0, 1.0], "as in PyTorch, the copies share nothing");
    Ok(())
}

/// Each module is moved by a call of its own.
#[test]
fn modules_that_share_a_parameter_share_it_after_each_was_moved() {
    worlds(1, |world| {
        moves(world, |to| {
            let mut encoder = Net::tied()?;
            let [mut decoder, mut third] = [encoder.clone(), encoder.clone()];
            encoder.loss()?.backward()?;
            encoder.to(to.clone())?;
            // The decoder still has the old tensor, and reports it.
            assert!(decoder.loss()?.backward().is_err());
            moved("SGD", "layers.0.weight", SGD::new(decoder.parameters(), ()));
            decoder.to(to.clone())?;
            assert!(decoder.layers[1].weight.is_same(&encoder.layers[0].weight));
            assert!(decoder.layers[0].weight.grad().is_some(), "the gradient moved once");
            sgd(&decoder)?.step()?;
            // A conversion that only one module makes leaves the other with an old tensor, which it reports.
            let mut optimizer = sgd(&encoder)?;
            decoder.to(DType::BF16)?;
            moved("step", "layers.0.weight", optimizer.step());
            encoder.to(DType::BF16)?;
            assert!(decoder.layers[0].weight.is_same(&encoder.layers[1].weight));
            // The first tensor leads to the last one, although the tensors between are gone.
            third.to(DType::BF16)?;
            assert!(third.layers[0].weight.is_same(&encoder.layers[0].weight));
            Ok(())
        })
    });
}

/// A part is moved before the whole.
#[test]
fn a_tied_parameter_stays_tied_if_a_part_of_the_module_is_moved_first() -> Result<()> {
    for first in 0..2 {
        let mut net = Net::tied()?;
        net.layers[first].to(DType::F64)?;
        net.to(DType::BF16)?;
        assert_eq!(net.parameters().len(), 1);
        net.loss()?.backward()?;
        sgd(&net)?.step()?;
    }
    Ok(())
}

#[test]
fn a_module_whose_clone_was_moved_and_dropped_is_usable_after_to() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let mut net = Net::tied()?;
        no_grad(|| net.layers[0].weight.fill_(1.0001).map(drop))?;
        let exact = net.layers[0].weight.detach().to(DType::F64)?.to_vec::<f64>()?;
        let calls = net.count_hook_calls()?;
        let mut copy = net.clone();
        copy.to(DType::F16)?;
        // While the copy lives, its rounded values do not silently replace the exact values.
        moved("Module::to", "layers.0.weight", net.to(dtype));
        drop(copy);
        net.to(dtype)?;
        assert_eq!(net.parameters().len(), 1);
        net.loss()?.backward()?;
        assert_eq!(calls.load(Ordering::Relaxed), 1, "the hook has moved back");
        assert_eq!(net.layers[0].weight.detach().to(DType::F64)?.to_vec::<f64>()?, exact);
        sgd(&net)?.step()?;
    }
    Ok(())
}

#[test]
fn a_module_that_shares_a_moved_parameter_may_ask_for_another_dtype_if_none_was_converted() {
    worlds(1, |world| {
        for at in world.places() {
            let mut encoder = Net::tied()?;
            let mut decoder = encoder.clone();
            encoder.to(at)?;
            decoder.to(DType::F16)?;
            assert_eq!(decoder.layers[0].weight.device(), at);
            encoder.to(DType::F16)?;
            assert!(decoder.layers[0].weight.is_same(&encoder.layers[0].weight));
        }
        Ok(())
    });
}

/// A graph that was recorded before the move reaches the old tensor.
#[test]
fn a_gradient_that_arrives_at_a_moved_parameter_calls_no_hook() -> Result<()> {
    let mut net = Net::tied()?;
    let calls = net.count_hook_calls()?;
    let (loss, old) = (net.loss()?, net.parameters()[0].clone());
    net.to(DType::F64)?;
    assert!(loss.backward().is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // Marking the tensor as moved again does not list the hook twice.
    mark_moved(&old, &net.layers[0].weight, "again");
    net.loss()?.backward()?;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    Ok(())
}

#[test]
fn a_module_moves_its_parameter_alone_if_the_other_module_is_gone() -> Result<()> {
    let mut net = Net::tied()?;
    for dtype in [DType::F64, DType::BF16] {
        let mut other = net.clone();
        other.to(dtype)?;
        drop(other);
    }
    let mut other = net.clone();
    net.to(DType::F64)?;
    sgd(&net)?.step()?;
    other.to(DType::F64)?;
    assert!(other.layers[0].weight.is_same(&net.layers[0].weight));
    Ok(())
}
