//! Gradients, and gradients of gradients, against differences.

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::functional::{
    self as f, AttentionOptions, BatchNormOptions, CrossEntropyOptions, InstanceNormOptions,
    Reduction,
};
use warpline::{DType, Device, Error, Result, Tensor, einsum, manual_seed, rand, tensor};

use crate::common;

/// A function of tensors, what it is called, and the sizes of its inputs.
type Checked = (&'static str, &'static [&'static [usize]], fn(&[Tensor]) -> Result<Tensor>);

const FUNCTIONS: &[Checked] = &[
    ("var and std", &[&[3, 4]], |x| x[0].var(1, 1)?.sum(())?.mul(&x[0].std(0, 0)?)),
    ("std_mean", &[&[3, 2]], |x| {
        let (std, mean) = x[0].std_mean_keepdim(0, 1)?;
        std.mul(&mean)
    }),
    ("norms", &[&[3, 4]], |x| {
        let others = x[0].vector_norm(3.0, 1)?.mul(&x[0].vector_norm(0.5, 1)?)?;
        x[0].norm(2.0, 1)?.mul(&others)?.add(&x[0].vector_norm(1.5, ())?)
    }),
    ("largest and smallest", &[&[3, 4]], |x| {
        x[0].vector_norm(f64::INFINITY, 1)?.sub(&x[0].vector_norm(f64::NEG_INFINITY, 1)?)
    }),
    ("cdist", &[&[3, 2], &[4, 2]], |x| x[0].cdist(&x[1], 2.0)),
    ("cdist by a product", &[&[27, 2], &[1, 2]], |x| x[0].narrow(0, 0, 26)?.cdist(&x[1], 2.0)),
    ("logsumexp", &[&[3, 4]], |x| x[0].logsumexp([0, 1])?.mul(&x[0].logsumexp(1)?)),
    ("diff", &[&[5]], |x| x[0].square()?.diff(2, 0)),
    ("einsum", &[&[2, 3, 3], &[3, 4], &[2]], |x| einsum("bii,ij,b->jb", x)),
    ("einsum with an ellipsis", &[&[2, 3, 4], &[3, 4]], |x| einsum("...ij,ij", x)),
    ("tensordot", &[&[2, 3], &[4, 3]], |x| x[0].tensordot_dims(&x[1], 1, 1)),
    ("kron", &[&[2, 2], &[3]], |x| x[0].kron(&x[1])),
    ("addmm", &[&[3], &[2, 4], &[4, 3]], |x| x[0].addmm(&x[1], &x[2], 0.5, 2)),
    ("trace", &[&[3, 3]], |x| x[0].matmul(&x[0])?.trace()),
    ("diagonal", &[&[3, 4, 2]], |x| x[0].diagonal(1, 0, 1)?.square()),
    ("diag_embed", &[&[2, 3]], |x| x[0].diag_embed(-1, 0, 2)?.square()),
    ("unfold", &[&[2, 5]], |x| x[0].t()?.unfold(0, 3, 1)?.square()),
    ("as_strided", &[&[10]], |x| x[0].mul(1.0)?.as_strided([3, 2, 3], [2, 1, 1], 1)?.square()),
    ("repeats", &[&[2, 3]], |x| {
        x[0].repeat([2, 1, 2])?.square()?.mul(&x[0].repeat_interleave(2, 1)?)
    }),
    ("triangles", &[&[3, 3]], |x| x[0].tril(0)?.matmul(&x[0].triu(1)?)),
    ("in place", &[&[3, 3]], |x| {
        let y = x[0].mul(2.0)?;
        y.tril_(0)?.mul_(&x[0])?;
        y.diagonal(0, 0, 1)?.mul_(&x[0].select(0, 0)?)?;
        y.square()
    }),
    ("linear", &[&[2, 2, 3], &[4, 3], &[4]], |x| f::linear(&x[0], &x[1], &x[2])),
    ("layer_norm", &[&[2, 2, 3], &[2, 3], &[2, 3]], |x| {
        f::layer_norm(&x[0], [2, 3], &x[1], &x[2], 1e-2)
    }),
    ("rms_norm", &[&[2, 3], &[3]], |x| f::rms_norm(&x[0], 3, &x[1], 1e-2)),
    ("group_norm", &[&[2, 4, 2], &[4], &[4]], |x| f::group_norm(&x[0], 2, &x[1], &x[2], 1e-2)),
    ("batch_norm", &[&[3, 2, 2], &[2], &[2]], |x| {
        let (weight, bias) = (Some(&x[1]), Some(&x[2]));
        let options =
            BatchNormOptions { weight, bias, training: true, eps: 1e-2, ..Default::default() };
        f::batch_norm(&x[0], None, None, &options)
    }),
    ("instance_norm", &[&[2, 2, 3], &[2]], |x| {
        let options = InstanceNormOptions { weight: Some(&x[1]), ..Default::default() };
        f::instance_norm(&x[0], None, None, &options)
    }),
    ("normalize", &[&[2, 3]], |x| f::normalize(&x[0], 2.0, 1, 1e-12)),
    ("cosine_similarity", &[&[2, 3], &[1, 3]], |x| f::cosine_similarity(&x[0], &x[1], 1, 1e-8)),
    ("glu", &[&[2, 4]], |x| f::glu(&x[0], 1)),
    ("attention", &[&[1, 2, 3, 4], &[1, 1, 3, 4], &[1, 1, 3, 2]], |x| {
        let options = AttentionOptions { is_causal: true, enable_gqa: true, ..Default::default() };
        f::scaled_dot_product_attention(&x[0], &x[1], &x[2], &options)
    }),
    ("masked attention", &[&[2, 3], &[2, 3], &[2, 3], &[2, 2]], |x| {
        let options = AttentionOptions { attn_mask: Some(&x[3]), ..Default::default() };
        f::scaled_dot_product_attention(&x[0], &x[1], &x[2], &options)
    }),
    ("cross_entropy", &[&[3, 4]], |x| {
        let target = x[0].new_tensor([2i64, -100, 0], DType::I64)?;
        let options = CrossEntropyOptions { label_smoothing: 0.2, ..Default::default() };
        let smooth = f::cross_entropy(&x[0], &target, &options)?;
        let plain = f::cross_entropy(&x[0], &target, &CrossEntropyOptions::default())?;
        smooth.mul(&plain)
    }),
    ("cross_entropy of probabilities", &[&[2, 3], &[2, 3]], |x| {
        f::cross_entropy(&x[0], &x[1], &CrossEntropyOptions::default())
    }),
    ("smooth losses", &[&[4], &[4]], |x| {
        let smooth = f::smooth_l1_loss(&x[0], &x[1], Reduction::Mean, 0.3)?;
        smooth.add(&f::huber_loss(&x[0], &x[1], Reduction::None, 0.4)?)
    }),
    ("binary_cross_entropy", &[&[4], &[4]], |x| {
        let (p, t) = (x[0].sigmoid()?, x[1].sigmoid()?);
        f::binary_cross_entropy(&p, &t, None, Reduction::Sum)
    }),
    ("binary_cross_entropy_with_logits", &[&[4], &[4], &[4]], |x| {
        f::binary_cross_entropy_with_logits(&x[0], &x[1], None, Reduction::None, &x[2])
    }),
    ("kl_div", &[&[2, 3], &[2, 3]], |x| {
        f::kl_div(&x[0], &x[1].abs()?, Reduction::BatchMean, false)?.add(&f::kl_div(
            &x[0],
            &x[1],
            Reduction::Sum,
            true,
        )?)
    }),
    ("padding", &[&[2, 3]], |x| {
        f::pad(&x[0], &[1, -1, 0, 2], f::PadMode::Constant(0.5.into()))?.square()
    }),
];

fn check_all(device: Device) -> Result<()> {
    manual_seed(3);
    for (name, sizes, function) in FUNCTIONS {
        // Away from zero, where some have an edge.
        let input =
            |sizes: &&[usize]| rand(*sizes, (DType::F64, device))?.add(0.2)?.requires_grad_(true);
        let inputs = sizes.iter().map(input).collect::<Result<Vec<_>>>()?;
        let one = |x: &[Tensor]| function(x).map(|y| vec![y]);
        let named = |e: Error| Error::invalid("check", format!("{name}: {e}"));
        gradcheck(one, &inputs, GradcheckOptions::default()).map_err(named)?;
        gradgradcheck(one, &inputs, GradcheckOptions::default()).map_err(named)?;
    }
    Ok(())
}

#[test]
fn gradients_of_what_is_made_of_ops_are_those_of_differences() {
    common::cpu(|_| check_all(Device::Cpu));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_gradients_of_what_is_made_of_ops_are_those_of_differences() {
    common::gpu(1, warpline::SyncPolicy::Auto, |_| check_all(Device::cuda(0)));
}

#[test]
fn elements_that_are_one_in_memory_share_a_gradient() {
    common::cpu(|_| {
        let x = tensor([1f64, 2.0], ())?.requires_grad_(true)?;
        // PyTorch 2.11: the sum over what is one element, shared among the places that show it.
        let wide = x.unsqueeze(0)?.expand([3, 2])?;
        wide.as_strided([2], [1], None)?.sum(())?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f64>()?, [1.0, 1.0]);
        Ok(())
    });
}
