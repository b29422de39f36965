//! Tests of custom functions, of checkpoints, and of gradients against finite differences.

use warpline::autograd::{
    Context, Function, GradcheckOptions, Gradients, ToSave, checkpoint, gradcheck, gradgradcheck,
};
use warpline::functional::{
    CrossEntropyLossOptions, LayerNormOptions, RMSNormOptions, Reduction, add_layer_norm,
    add_rms_norm, cross_entropy, dropout, layer_norm, rms_norm,
};
use warpline::{
    DType, Device, Error, Result, Tensor, cuda, manual_seed, ones, rand, randn, where_cond,
};

use super::{grad, leaf};
use crate::common;

/// The square function, with the slope `(2 + error) * x`, which is right if `error` is 0.
struct Square {
    error: f64,
}

impl Function for Square {
    const NAME: &'static str = "my_square";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        save.tensor(inputs[0]);
        Ok(vec![inputs[0].square()?])
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let x = context.saved(0)?;
        let slope = |grad: &Tensor| grad.mul(&x.mul(2.0 + self.error)?);
        grads.iter().map(|grad| grad.as_ref().map(slope).transpose()).collect()
    }
}

#[test]
fn a_custom_function_has_its_own_gradient() {
    common::cpu(|_| {
        let x = leaf(&[3.0])?;
        let y = Square { error: 0.0 }.apply(&[&x])?.remove(0);
        assert_eq!(y.grad_fn().as_deref(), Some("MySquareBackward0"));
        y.mul(&y)?.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [108.0]);
        let options = GradcheckOptions::default();
        let own = |x: &[Tensor]| Square { error: 0.0 }.apply(&[&x[0]]);
        gradcheck(own, std::slice::from_ref(&x), options)?;
        gradgradcheck(own, std::slice::from_ref(&x), options)?;
        let wrong = gradcheck(|x| Square { error: 0.01 }.apply(&[&x[0]]), &[x], options);
        let text = wrong.unwrap_err().to_string();
        assert!(text.contains("element 0 of output 0 changes by 6"), "{text}");
        Ok(())
    });
}

#[test]
fn a_checkpoint_recomputes_tensors_that_it_does_not_keep() {
    common::cpu(|_| {
        let (x, weight) = (leaf(&[0.5, 1.5])?, leaf(&[2.0, 3.0])?);
        let own = weight.clone();
        let block = move |x: &[Tensor]| Ok(vec![x[0].mul(&own)?.sin()?.mul(&x[0])?]);
        let plain = block(std::slice::from_ref(&x))?.remove(0);
        plain.sum(())?.backward()?;
        let expected = (grad(&x)?, grad(&weight)?);
        x.set_grad(None)?;
        weight.set_grad(None)?;
        let again = checkpoint(block, &[&x])?.remove(0);
        assert_eq!(again.to_vec::<f64>()?, plain.to_vec::<f64>()?);
        again.sum(())?.backward()?;
        assert_eq!((grad(&x)?, grad(&weight)?), expected);
        Ok(())
    });
}

/// A case: a name, the sizes of the inputs, and a function of these inputs.
type Checked = (&'static str, &'static [&'static [usize]], fn(&[Tensor]) -> Result<Tensor>);

/// Cases that the golden files lack, such as gradients of gradients through views, ties and
/// in-place ops.
const FUNCTIONS: &[Checked] = &[
    ("arithmetic", &[&[2, 3], &[3]], |x| {
        x[0].mul(&x[1])?.sub(&x[1])?.div(&x[1].square()?.add(1.0)?)
    }),
    ("pow", &[&[3]], |x| x[0].abs()?.pow(2.5)?.add(&x[0].square()?.add(1.0)?.rpow(2.0)?)),
    ("matmul", &[&[2, 3], &[2, 3, 2]], |x| x[0].matmul(&x[1])),
    ("vectors", &[&[3], &[3]], |x| x[0].matmul(&x[1])),
    ("softmax", &[&[2, 3]], |x| x[0].softmax(1)?.log_softmax(0)),
    ("cross entropy", &[&[4, 3]], |x| {
        let classes = warpline::tensor([2i64, 0, -100, 1], x[0].device())?;
        let weight = warpline::tensor([0.5, 1.0, 2.0], (DType::F64, x[0].device()))?;
        let (mean, sum) = (CrossEntropyLossOptions::default(), Reduction::Sum);
        let weighted = mean.weight(&weight);
        let both = cross_entropy(&x[0], &classes, weighted)?
            .mul(&cross_entropy(&x[0], &classes, mean)?)?;
        both.add(&cross_entropy(&x[0], &classes, mean.reduction(sum))?)
    }),
    ("layer norm", &[&[2, 3], &[3], &[3]], |x| {
        let norm = LayerNormOptions::new().eps(0.1);
        let plain = layer_norm(&x[0].t()?, 2, norm)?;
        layer_norm(&x[0], 3, norm.weight(&x[1]).bias(&x[2]))?.mul(&layer_norm(
            &plain.t()?,
            3,
            norm.weight(&x[1]),
        )?)
    }),
    ("rms norm", &[&[2, 3], &[2, 3]], |x| {
        let norm = RMSNormOptions::new().eps(0.1);
        rms_norm(&x[0], 3, norm)?.mul(&rms_norm(&x[0], [2, 3], norm.weight(&x[1]))?)
    }),
    ("norms of sums", &[&[2, 3], &[3, 2], &[3], &[3]], |x| {
        let options = LayerNormOptions::new().eps(0.1).weight(&x[2]).bias(&x[3]);
        let (normalized, sum) = add_layer_norm(&x[0], &x[1].t()?, 3, options)?;
        let options = RMSNormOptions::new().eps(0.1).weight(&x[2]);
        let (again, _) = add_rms_norm(&normalized, &sum, 3, options)?;
        let (_, unused) = add_rms_norm(&x[0], &again, 3, ())?;
        again.mul(&unused)
    }),
    ("transposed", &[&[3, 2], &[4, 3]], |x| x[0].t()?.matmul(&x[1].t()?)),
    ("reductions", &[&[2, 3]], |x| x[0].mean(0)?.mul(&x[0].sum([1, 0])?)?.add(&x[0].prod(0)?)),
    ("extremes", &[&[2, 3]], |x| x[0].amax(1)?.mul(&x[0].amin(())?)),
    ("activations", &[&[4]], |x| x[0].gelu()?.add(&x[0].silu()?)?.mul(&x[0].gelu_tanh()?)),
    ("functions", &[&[3]], |x| x[0].sigmoid()?.log()?.add(&x[0].erf()?.atan()?)),
    ("choices", &[&[4], &[4]], |x| {
        where_cond(&x[0].gt(&x[1])?, &x[0].exp()?, &x[1])?.maximum(&x[1])
    }),
    ("views", &[&[2, 3]], |x| {
        x[0].t()?.narrow(0, 1, 2)?.expand([2, 2, 2])?.reshape([-1])?.square()
    }),
    ("cat", &[&[2, 2], &[1, 2]], |x| warpline::cat(&[&x[0], &x[1], &x[0]], 0)?.square()),
    ("in place", &[&[3], &[3]], |x| {
        let y = x[0].mul(&x[1])?;
        y.mul_(&x[0])?.add_(&x[1])?.exp_()?;
        Ok(y)
    }),
    ("slices", &[&[2, 3], &[3]], |x| {
        let y = x[0].mul(1.0)?;
        y.select(0, 1)?.mul_(&x[1])?.mul_(&x[1])?;
        y.square()
    }),
];

fn check_all(device: Device) -> Result<()> {
    manual_seed(1);
    for (name, sizes, f) in FUNCTIONS {
        let input = |sizes: &&[usize]| randn(*sizes, (DType::F64, device))?.requires_grad_(true);
        let inputs = sizes.iter().map(input).collect::<Result<Vec<_>>>()?;
        let one = |x: &[Tensor]| f(x).map(|y| vec![y]);
        let options = GradcheckOptions::default();
        gradcheck(one, &inputs, options).map_err(|e| named(name, e))?;
        gradgradcheck(one, &inputs, options).map_err(|e| named(name, e))?;
    }
    Ok(())
}

#[test]
fn a_product_has_gradients_of_gradients_at_zeros() {
    common::cpu(|_| {
        for values in [[0.0, 2.0, -3.0, 4.0], [0.0, 2.0, 0.0, 4.0], [0.0; 4]] {
            let x = leaf(&values)?.view([2, 1, 2])?.detach().requires_grad_(true)?;
            let products: [fn(&Tensor) -> Result<Tensor>; 3] =
                [|x| x.prod(()), |x| x.prod(-1), |x| x.prod([2, 0])];
            for product in products {
                let one = |x: &[Tensor]| Ok(vec![product(&x[0])?]);
                gradcheck(one, std::slice::from_ref(&x), GradcheckOptions::default())?;
                gradgradcheck(one, std::slice::from_ref(&x), GradcheckOptions::default())?;
            }
        }
        Ok(())
    });
}

fn named(name: &str, error: Error) -> Error {
    Error::invalid("check", format!("{name}: {error}"))
}

#[test]
fn gradients_and_their_gradients_agree_with_differences() {
    common::cpu(|_| check_all(Device::Cpu));
    common::worlds(1, |_| check_all(Device::cuda(0)));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_gradients_and_their_gradients_agree_with_differences() {
    common::gpu(1, warpline::SyncPolicy::Auto, |_| check_all(Device::cuda(0)));
}

#[test]
fn a_checkpoint_draws_the_same_numbers_again() {
    let masks_agree = |device: Device| {
        let x = ones([64], (DType::F32, device))?.requires_grad_(true)?;
        let y = checkpoint(|x| Ok(vec![dropout(&x[0], 0.5)?]), &[&x])?.remove(0);
        // Draw between the forward and the backward pass: this must not change the recomputed mask,
        // and the recomputation must not change numbers that are drawn later.
        let next = rand([4], device)?.to_vec::<f32>()?;
        manual_seed(7);
        y.sum(())?.backward()?;
        let drawn = rand([4], device)?.to_vec::<f32>()?;
        manual_seed(7);
        assert_eq!(drawn, rand([4], device)?.to_vec::<f32>()?);
        assert_ne!(drawn, next);
        // The input is ones, so the gradient equals the output.
        assert_eq!(y.to_vec::<f32>()?, x.grad().unwrap().to_vec::<f32>()?);
        Ok(())
    };
    common::cpu(|_| masks_agree(Device::Cpu));
    common::worlds(1, |_| masks_agree(Device::cuda(0)));
}

#[test]
fn a_captured_checkpoint_draws_the_same_numbers_again() {
    common::worlds(1, |_| {
        let x = ones([64], Device::cuda(0))?.requires_grad_(true)?;
        let step = || {
            x.set_grad(None)?;
            let y = checkpoint(|x| Ok(vec![dropout(&x[0], 0.5)?]), &[&x])?.remove(0);
            y.sum(())?.backward()?;
            Ok(y.detach())
        };
        let (graph, y) = cuda::graph(step)?;
        let mut masks = Vec::new();
        for _ in 0..2 {
            graph.replay()?;
            masks.push(y.to_vec::<f32>()?);
            assert_eq!(masks.last(), Some(&x.grad().unwrap().to_vec::<f32>()?));
        }
        assert_ne!(masks[0], masks[1]);
        Ok(())
    });
}
