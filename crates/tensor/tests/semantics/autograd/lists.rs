//! Tests that a list of gradients that does not match its tensors is an error.

use std::sync::atomic::{AtomicUsize, Ordering};

use warpline::autograd::{
    BackwardTensorsOptions, Context, Function, GradOptions, Gradients, ToSave, backward,
    checkpoint, grad,
};
use warpline::{DType, Device, ErrorKind, Result, Tensor, ones, tensor};

use super::leaf;
use crate::common;

fn fails(result: Result<impl Sized>, words: &str) {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::Gradient { .. }) => {
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains("lists.rs"), "another line: {error}");
        }
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("no error, but expected: {words}"),
    }
}

#[test]
fn lists_of_starting_gradients_have_an_entry_for_each_tensor() {
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        let (a, b) = (x.mul(2.0)?, x.mul(3.0)?);
        let ten = tensor([10.0], ())?;
        let (one, three) = ([Some(&ten)], [Some(&ten); 3]);
        let given = BackwardTensorsOptions::new().retain_graph(true);
        fails(
            backward(&[&a, &b], given.grad_tensors(&one)),
            "1 gradients were given for 2 tensors",
        );
        fails(
            backward(&[&a, &b], given.grad_tensors(&three)),
            "3 gradients were given for 2 tensors",
        );
        fails(grad(&[&a, &b], &[&x], GradOptions::new().grad_outputs(&one)), "1 gradients");
        fails(grad(&[&a, &b], &[&x], GradOptions::new().grad_outputs(&three)), "3 gradients");
        fails(grad(&[], &[&x], ()), "do not depend on input 0");
        assert!(x.grad().is_none());
        backward(&[&a, &b], given.grad_tensors(&[None, Some(&ten)]))?;
        assert_eq!(super::grad(&x)?, [32.0]);
        x.set_grad(None)?;
        backward(&[&a, &b], ())?;
        assert_eq!(super::grad(&x)?, [5.0]);
        Ok(())
    });
}

#[test]
fn a_starting_gradient_has_the_dtype_and_device_of_its_tensor() {
    common::cpu(|_| {
        let x = tensor([1f32], ())?.requires_grad_(true)?;
        for dtype in [DType::I64, DType::U8, DType::Bool] {
            let gradient = ones([1], dtype)?;
            let given = [Some(&gradient)];
            fails(grad(&[&x], &[&x], GradOptions::new().grad_outputs(&given)), "convert it first");
            fails(x.backward_with(&gradient), "convert it first");
        }
        let wide = tensor([2f64], ())?;
        let found =
            grad(&[&x], &[&x], GradOptions::new().grad_outputs(&[Some(&wide)]))?.remove(0).unwrap();
        assert_eq!((found.dtype(), found.to_vec::<f32>()?), (DType::F32, vec![2.0]));
        x.mul(1.0)?.backward_with(&wide)?;
        assert_eq!(x.grad().unwrap().dtype(), DType::F32);
        Ok(())
    });
    common::worlds(2, |_| {
        let x = ones([2], Device::cuda(0))?.requires_grad_(true)?;
        for device in [Device::Cpu, Device::cuda(1)] {
            let gradient = ones([2], device)?;
            fails(x.mul(1.0)?.backward_with(&gradient), "move it first");
            let sum = x.sum(())?;
            sum.backward_with(&tensor(3f32, device)?)?;
        }
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [6.0, 6.0]);
        Ok(())
    });
}

/// A function whose backward pass is the closure in its field.
struct ReturnedGradients(fn(&Tensor) -> Result<Gradients>);

impl Function for ReturnedGradients {
    const NAME: &'static str = "returns";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].add(inputs[1])?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        (self.0)(grads[0].as_ref().expect("a gradient"))
    }
}

/// Applies `ReturnedGradients` to two inputs, of which only the first requires a gradient. Returns
/// the gradient of the first input.
fn returning(device: Device, f: fn(&Tensor) -> Result<Gradients>) -> Result<Tensor> {
    let x = ones([2], device)?.requires_grad_(true)?;
    ReturnedGradients(f).apply(&[&x, &ones([2], device)?])?[0].sum(())?.backward()?;
    Ok(x.grad().expect("a gradient"))
}

#[test]
fn a_function_returns_a_gradient_for_each_input() {
    common::cpu(|_| {
        let cpu = Device::Cpu;
        fails(returning(cpu, |_| Ok(Gradients::new())), "returned 0 gradients");
        fails(returning(cpu, |g| Ok([Some(g.clone())].into_iter().collect())), "1 gradients");
        let surplus = |g: &Tensor| Ok((0..3).map(|_| Some(g.clone())).collect());
        fails(returning(cpu, surplus), "returned 3 gradients, but there are 2 inputs");
        returning(cpu, |g| Ok([Some(g.clone()), None, None].into_iter().collect()))?;

        let integers = |g: &Tensor| Ok([Some(g.to(DType::I64)?), None].into_iter().collect());
        fails(returning(cpu, integers), "of dtype torch.int64 for input 0");
        let long = |g: &Tensor| Ok([Some(g.new_ones([3], ())?), None].into_iter().collect());
        fails(returning(cpu, long), "gradient of shape [3] for an input of shape [2]");
        let found = returning(cpu, |g| {
            Ok([Some(g.new_ones([4, 2], DType::F64)?), None].into_iter().collect())
        })?;
        assert_eq!(found.to_vec::<f32>()?, [4.0, 4.0]);
        Ok(())
    });
    common::worlds(2, |_| {
        let other = |g: &Tensor| Ok([Some(g.to(Device::cuda(1))?), None].into_iter().collect());
        fails(returning(Device::cuda(0), other), "on cuda:1 for input 0 on cuda:0");
        Ok(())
    });
}

#[test]
fn a_checkpoint_recomputes_results_like_the_first() {
    /// Runs a checkpoint whose function returns different tensors in the forward pass and in the
    /// recomputation.
    fn recomputed(f: fn(usize, &Tensor) -> Result<Vec<Tensor>>) -> Result<Tensor> {
        let x = leaf(&[1.0, 2.0])?;
        let calls = AtomicUsize::new(0);
        let call = move |x: &[Tensor]| f(calls.fetch_add(1, Ordering::Relaxed), &x[0]);
        let made = checkpoint(call, &[&x])?;
        made[0].sum(())?.backward()?;
        Ok(x.grad().expect("a gradient"))
    }
    common::cpu(|_| {
        fails(
            recomputed(|call, x| (call..2).map(|_| x.mul(2.0)).collect()),
            "returned 1 results when it was recomputed, but 2 in the forward pass",
        );
        fails(
            recomputed(|call, x| (0..call + 1).map(|_| x.mul(2.0)).collect()),
            "returned 2 results",
        );
        fails(
            recomputed(|call, x| Ok(vec![x.mul(2.0)?.i(..2 - call as isize)?])),
            "result 0 is a tensor of shape [1]",
        );
        fails(
            recomputed(|call, x| match call {
                0 => Ok(vec![x.mul(2.0)?]),
                _ => Ok(vec![x.mul(2.0)?.to(DType::F32)?]),
            }),
            "result 0 is a tensor of shape [2]",
        );
        fails(recomputed(|_, x| Ok(vec![x.mul(2.0)?.detach()])), "no recomputed result depends on");
        assert_eq!(recomputed(|_, x| Ok(vec![x.mul(2.0)?]))?.to_vec::<f64>()?, [2.0, 2.0]);
        Ok(())
    });
}
