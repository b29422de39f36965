//! Tests of hooks of modules, on the CPU and on simulated devices: their order, the values that they replace,
//! and their removal.

use std::sync::{Arc, Mutex, Weak};

use warpline::autograd::{HookHandle, no_grad};
use warpline::cuda::{Callable, make_graphed_callables};
use warpline::{ErrorKind, Result, Tensor, ones, simulated, tensor, with_runtime};
use warpline_nn::{Apply, Embedding, Hooked, LSTM, Linear, Module, ReLU, Sequential};

use crate::common::{World, worlds};

type Log = Arc<Mutex<Vec<String>>>;

fn log(log: &Log, line: impl Into<String>) {
    log.lock().unwrap().push(line.into());
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

/// `x ↦ 2 x`, with hooks.
fn doubling(device: warpline::Device) -> Result<Hooked<Linear>> {
    let linear = Linear::new(1, 1, device)?;
    no_grad(|| linear.weight.fill_(2.0).map(drop))?;
    no_grad(|| linear.bias.as_ref().expect("a bias").fill_(0.0).map(drop))?;
    Ok(Hooked::new(linear))
}

#[test]
fn hooks_run_in_pytorchs_order_until_they_are_removed() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let module = doubling(place)?;
            let seen = Log::default();
            let lines = |name: &'static str| {
                let seen = Arc::clone(&seen);
                move || log(&seen, name)
            };
            let (pre1, pre2, after1, after2, back) =
                (lines("pre 1"), lines("pre 2"), lines("after 1"), lines("after 2"), lines("back"));
            let handles = [
                module.register_forward_hook(move |module, input, output| {
                    // The hook gets the input that the pre-hooks returned, and the module inside `Hooked`.
                    assert_eq!(input.detach().to_vec::<f32>()?, [3.0]);
                    assert_eq!(output.detach().to_vec::<f32>()?, [6.0]);
                    assert_eq!(module.weight.size(), [1, 1]);
                    after1();
                    output.add(1).map(Some)
                }),
                module.register_full_backward_hook(move |grad_input, grad_output| {
                    assert_eq!(
                        grad_output[0].as_ref().expect("a gradient").to_vec::<f32>()?,
                        [10.0]
                    );
                    assert_eq!(
                        grad_input[0].as_ref().expect("a gradient").to_vec::<f32>()?,
                        [20.0]
                    );
                    back();
                    Ok(Some(vec![Some(grad_input[0].as_ref().expect("a gradient").mul(5)?)]))
                }),
                module.register_forward_pre_hook(move |_, input| {
                    pre1();
                    input.add(1).map(Some)
                }),
                module.register_forward_pre_hook(move |_, input| {
                    pre2();
                    input.add(1).map(Some)
                }),
                module.register_forward_hook(move |_, _, output| {
                    assert_eq!(output.detach().to_vec::<f32>()?, [7.0]);
                    after2();
                    Ok(None)
                }),
            ];
            let x = ones([1, 1], place)?.requires_grad_(true)?;
            let y = module.forward(&x)?;
            assert_eq!(y.detach().to_vec::<f32>()?, [7.0]);
            assert_eq!(taken(&seen), ["pre 1", "pre 2", "after 1", "after 2"]);
            y.mul(10)?.sum(())?.backward()?;
            assert_eq!(taken(&seen), ["back"]);
            assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [100.0]);
            // The weight's gradient does not depend on the replaced gradient of the input.
            assert_eq!(module.weight.grad().expect("a gradient").to_vec::<f32>()?, [30.0]);
            handles.into_iter().for_each(warpline::autograd::HookHandle::remove);
            let y = module.clone().forward(&x)?;
            y.sum(())?.backward()?;
            assert_eq!(y.detach().to_vec::<f32>()?, [2.0]);
            assert!(taken(&seen).is_empty());
        }
        Ok(())
    });
}

#[test]
fn elements_of_a_sequence_have_hooks() -> Result<()> {
    let net =
        Sequential::new().with(Linear::new(2, 3, ())?).with(ReLU).with(Linear::new(3, 1, ())?);
    let seen = Log::default();
    let handles: Vec<_> = net
        .iter()
        .enumerate()
        .map(|(i, layer)| {
            let seen = Arc::clone(&seen);
            layer.register_forward_hook(move |layer, _, output| {
                log(&seen, format!("{i} {} {:?}", layer.type_name(), output.size()));
                Ok(None)
            })
        })
        .collect();
    let seen_back = Arc::clone(&seen);
    net[1].register_full_backward_hook(move |grad_input, grad_output| {
        let sizes = [grad_input, grad_output].map(|grads| grads[0].as_ref().map(Tensor::dim));
        log(&seen_back, format!("{sizes:?}"));
        Ok(None)
    });
    // A clone of the sequence has the same hooks, as have the elements of a converted sequence.
    let mut clone = net.clone();
    clone.to(warpline::DType::F64)?;
    let x = ones([4, 2], warpline::DType::F64)?;
    x.apply(&clone)?.sum(())?.backward()?;
    let expected = ["0 Linear [4, 3]", "1 ReLU [4, 3]", "2 Linear [4, 1]", "[Some(2), Some(2)]"];
    assert_eq!(taken(&seen), expected);
    handles.into_iter().for_each(warpline::autograd::HookHandle::remove);
    no_grad(|| x.apply(&clone).map(drop))?;
    assert!(taken(&seen).is_empty(), "without gradients no backward hook is connected");
    Ok(())
}

#[test]
fn backward_hooks_get_the_gradients_in_the_order_of_the_inputs() -> Result<()> {
    let lstm: Hooked<LSTM, (Tensor, (Tensor, Tensor))> = Hooked::new(LSTM::new(2, 3, ())?);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let grads = Arc::clone(&seen);
    lstm.register_full_backward_hook(move |grad_input, grad_output| {
        let known =
            |grads: &[Option<Tensor>]| -> Vec<bool> { grads.iter().map(Option::is_some).collect() };
        grads.lock().unwrap().push((known(grad_input), known(grad_output)));
        Ok(None)
    });
    let (hidden, cell) = (ones([1, 3], ())?, ones([1, 3], ())?.requires_grad_(true)?);
    let (output, _) = lstm.forward((ones([5, 2], ())?, (hidden, cell)))?;
    output.sum(())?.backward()?;
    let expected = (vec![false, false, true], vec![true, false, false]);
    assert_eq!(*seen.lock().unwrap(), [expected]);
    Ok(())
}

#[test]
fn a_module_whose_inputs_need_no_gradient_calls_its_backward_hooks() -> Result<()> {
    let table = Hooked::new(Embedding::new(4, 2, ())?);
    let seen = Log::default();
    let lines = Arc::clone(&seen);
    let handle = table.register_full_backward_hook(move |grad_input, grad_output| {
        let output = grad_output[0].as_ref().expect("a gradient");
        log(&lines, format!("{} {:?}", grad_input[0].is_none(), output.size()));
        Ok(None)
    });
    let indices = tensor([0i64, 2], ())?;
    table.forward(&indices)?.sum(())?.backward()?;
    assert_eq!(taken(&seen), ["true [2, 2]"]);
    handle.remove();
    table.register_full_backward_hook(|_, grad_output| Ok(Some(grad_output.to_vec())));
    let error = table.forward(&indices)?.sum(())?.backward().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
    Ok(())
}

#[test]
fn a_hook_that_fails_makes_the_pass_fail() -> Result<()> {
    let net = Hooked::new(ReLU);
    let failing = net.register_forward_pre_hook(|_, x| x.reshape([7]).map(Some));
    assert!(net.forward(&ones([2], ())?).is_err());
    failing.remove();
    net.register_full_backward_hook(|_, _| Ok(Some(Vec::new())));
    let x = ones([2], ())?.requires_grad_(true)?;
    let error = net.forward(&x)?.sum(())?.backward().unwrap_err();
    assert!(error.to_string().contains("0 gradients for 1 inputs"), "{error}");
    Ok(())
}

/// Dropping a hook runs code of the program.
#[test]
fn a_hook_that_uses_its_module_when_it_is_dropped_does_not_block() -> Result<()> {
    struct OnDrop(Weak<Hooked<Linear>>, Log);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            if let Some(module) = self.0.upgrade() {
                module.register_forward_hook(|_, _, output| output.add(1).map(Some)).remove();
                let output = module.forward(tensor([[1.0f32]], ()).expect("an input"));
                log(&self.1, format!("{:?}", output.and_then(|y| y.item::<f32>())));
            }
        }
    }

    let (module, seen) = (Arc::new(doubling(warpline::Device::Cpu)?), Log::default());
    let owned = || OnDrop(Arc::downgrade(&module), Arc::clone(&seen));
    let [pre, after, back] = [owned(), owned(), owned()];
    let handles = [
        module.register_forward_pre_hook(move |_, _| {
            let _owned = &pre;
            Ok(None)
        }),
        module.register_forward_hook(move |_, _, _| {
            let _owned = &after;
            Ok(None)
        }),
        module.register_full_backward_hook(move |_, _| {
            let _owned = &back;
            Ok(None)
        }),
    ];
    handles.into_iter().for_each(HookHandle::remove);
    assert_eq!(taken(&seen), ["Ok(2.0)"; 3]);
    Ok(())
}

/// Hooks of modules would run in the capture only.
#[test]
fn a_module_with_hooks_cannot_be_graphed() {
    with_runtime(&simulated(1).unwrap(), || {
        let module = doubling(warpline::Device::cuda(0))?;
        let x = ones([1, 1], "cuda")?;
        let make = || {
            let callable = Callable::new(|x| Ok(vec![module.forward(&x[0])?]), &[&x]);
            make_graphed_callables([callable], ())
        };
        for handle in [
            module.register_forward_pre_hook(|_, _| Ok(None)),
            module.register_forward_hook(|_, _, _| Ok(None)),
            module.register_full_backward_hook(|_, _| Ok(None)),
        ] {
            let error = make().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("a module has hooks"), "{error}");
            assert!(error.location().is_some_and(|at| at.file() == file!()), "{error}");
            module.forward(&x)?;
            handle.remove();
        }
        let [graphed] = make()?;
        assert_eq!(graphed.call(&[&x])?[0].to_vec::<f32>()?, [2.0]);
        Ok::<_, warpline::Error>(())
    })
    .unwrap();
}
