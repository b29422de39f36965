//! Extreme integers for the integer parameters of tensors' methods, functions and modules: an error or the right result,
//! soon, and without a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use warpline::data::{DataLoader, DistributedSampler, TensorDataset};
use warpline::functional as f;
use warpline::{
    DType, Device, Result, Tensor, arange, ones, simulated, tensor, with_runtime, zeros,
};

/// An extreme integer, as each integer type.
#[derive(Clone, Copy, Debug)]
struct Extreme(i128);

impl Extreme {
    fn u(self) -> usize {
        self.0 as usize
    }

    fn i(self) -> isize {
        self.0 as isize
    }

    fn l(self) -> i64 {
        self.0 as i64
    }
}

const EXTREMES: [Extreme; 10] = [
    Extreme(0),
    Extreme(1),
    Extreme(-1),
    Extreme(1 << 31),
    Extreme(-(1 << 31)),
    Extreme(1 << 32),
    Extreme(1 << 40),
    Extreme(i64::MAX as i128),
    Extreme(i64::MIN as i128),
    Extreme(u64::MAX as i128),
];

/// How large a result may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    /// About that of the input, whatever the argument.
    OfInput,
    /// What the argument says: 2³¹ elements are right, but too many for a test.
    OfArgument,
}
use Size::{OfArgument, OfInput};

type Call = fn(Extreme, Device) -> Result<()>;

fn x(device: Device) -> Result<Tensor> {
    arange(24f32, device)?.reshape([2, 3, 4])
}

fn image(dims: usize, device: Device) -> Result<Tensor> {
    ones(&[1, 1, 6, 6, 6][..2 + dims], device)
}

/// A tensor without elements whose strides are extreme.
fn empty_strided(v: Extreme, device: Device) -> Result<Tensor> {
    zeros([4], device)?.as_strided([0, 2], [v.i(), v.i()], 0)
}

macro_rules! table {
    ($($size:ident $name:literal => |$v:ident, $d:ident| $call:expr;)*) => {
        &[$((
            $name,
            $size,
            {
                fn call($v: Extreme, $d: Device) -> Result<()> {
                    $call.map(drop)
                }
                call as Call
            },
        )),*]
    };
}

const TABLE: &[(&str, Size, Call)] = table! {
    OfInput "narrow dim" => |v, d| x(d)?.narrow(v.i(), 0, 1);
    OfInput "narrow start" => |v, d| x(d)?.narrow(0, v.i(), 1);
    OfInput "narrow length" => |v, d| x(d)?.narrow(0, 0, v.u());
    OfInput "narrow of strided" => |v, d| empty_strided(v, d)?.narrow(1, 1, 1);
    OfInput "select dim" => |v, d| x(d)?.select(v.i(), 0);
    OfInput "select index" => |v, d| x(d)?.select(0, v.i());
    OfInput "select of strided" => |v, d| empty_strided(v, d)?.select(1, 1);
    OfInput "slice range" => |v, d| x(d)?.slice(2, v.i().., 1);
    OfInput "slice end" => |v, d| x(d)?.slice(2, ..v.i(), 1);
    OfInput "slice step" => |v, d| x(d)?.slice(2, .., v.u())?.contiguous();
    OfInput "slice of strided" => |v, d| empty_strided(v, d)?.slice(1, .., v.u());
    OfInput "i" => |v, d| x(d)?.i((v.i(), .., v.i()..));
    OfInput "transpose" => |v, d| x(d)?.transpose(v.i(), 0);
    OfInput "permute" => |v, d| x(d)?.permute([v.i(), 0, 1]);
    OfInput "squeeze" => |v, d| x(d)?.squeeze(v.i());
    OfInput "unsqueeze" => |v, d| x(d)?.unsqueeze(v.i());
    OfInput "unsqueeze of strided" => |v, d| empty_strided(v, d)?.unsqueeze(0);
    OfInput "flatten" => |v, d| x(d)?.flatten(v.i(), -1);
    OfInput "flatten end" => |v, d| x(d)?.flatten(0, v.i());
    OfInput "unflatten" => |v, d| x(d)?.unflatten(2, [v.i(), 2]);
    OfInput "reshape" => |v, d| x(d)?.reshape([v.i(), 4]);
    OfInput "reshape of strided" => |v, d| empty_strided(v, d)?.reshape([2, 0]);
    OfInput "view" => |v, d| x(d)?.view([v.i(), -1]);
    OfInput "expand" => |v, d| ones([1], d)?.expand([v.i(), v.i()]);
    OfInput "as_strided size" => |v, d| x(d)?.as_strided([v.u()], [1], 0);
    OfInput "as_strided stride" => |v, d| x(d)?.as_strided([2], [v.i()], 0);
    OfInput "as_strided one stride" => |v, d| x(d)?.as_strided([1, 1], [v.i(), v.i()], 0)?.add(1.0);
    OfInput "as_strided offset" => |v, d| x(d)?.as_strided([1], [1], v.u());
    OfInput "as_strided of no elements" => |v, d| {
        let none = x(d)?.as_strided([0, 3], [v.i(), v.i()], 0)?;
        let _ = none.data_ptr();
        none.sum(0)?;
        none.sum(())?;
        none.add(&none)?.contiguous()
    };
    OfInput "unfold method" => |v, d| x(d)?.unfold(2, v.u(), 1);
    OfInput "unfold step" => |v, d| x(d)?.unfold(2, 2, v.u());
    OfInput "movedim" => |v, d| x(d)?.movedim(v.i(), 0);
    OfInput "diagonal" => |v, d| x(d)?.diagonal(v.i(), 0, 1);
    OfInput "diagonal dim" => |v, d| x(d)?.diagonal(0, v.i(), 1);
    OfInput "diagonal of strided" => |v, d| empty_strided(v, d)?.diagonal(1, 0, 1);
    OfInput "diag" => |v, d| ones([2, 2], d)?.diag(v.i());
    OfArgument "diag of a vector" => |v, d| ones([2], d)?.diag(v.i());
    OfArgument "diag_embed" => |v, d| ones([2], d)?.diag_embed(v.i(), 0, 1);
    OfInput "tril" => |v, d| ones([2, 3], d)?.tril(v.i());
    OfInput "triu_" => |v, d| ones([2, 3], d)?.triu_(v.i()).map(|_| ());
    OfArgument "tril_indices rows" => |v, d| warpline::tril_indices(v.u(), 2, 0, d);
    OfArgument "tril_indices columns" => |v, d| warpline::tril_indices(3, v.u(), 0, d);
    OfInput "tril_indices no columns" => |v, d| warpline::tril_indices(v.u(), 0, 0, d);
    OfInput "tril_indices offset" => |v, d| warpline::tril_indices(3, 3, v.i(), d);
    OfInput "triu_indices rows" => |v, d| warpline::triu_indices(v.u(), 2, 0, d);
    OfArgument "triu_indices columns" => |v, d| warpline::triu_indices(3, v.u(), 0, d);
    OfInput "triu_indices offset" => |v, d| warpline::triu_indices(3, 3, v.i(), d);
    OfInput "split" => |v, d| x(d)?.split(v.u(), 2).map(|_| ());
    OfInput "split dim" => |v, d| x(d)?.split(1, v.i()).map(|_| ());
    OfInput "chunk" => |v, d| x(d)?.chunk(v.u(), 2).map(|_| ());
    OfInput "tensor_split_at" => |v, d| x(d)?.tensor_split_at(&[v.i(), 1], 2).map(|_| ());
    OfArgument "tensor_split" => |v, d| x(d)?.tensor_split(v.u(), 2).map(|_| ());
    OfInput "split_with_sizes" => |v, d| x(d)?.split_with_sizes(&[v.u(), 4], 2).map(|_| ());
    OfArgument "unbind of expanded" => |v, d| ones([1], d)?.expand([v.i()])?.unbind(0).map(|_| ());
    OfArgument "chunk of nothing" => |v, d| zeros([0], d)?.chunk(v.u(), 0).map(|_| ());
    OfInput "flip" => |v, d| x(d)?.flip(v.i());
    OfInput "flip of strided" => |v, d| empty_strided(v, d)?.flip([0, 1]);
    OfInput "roll" => |v, d| x(d)?.roll(v.i(), ());
    OfInput "roll dim" => |v, d| x(d)?.roll(1, v.i());
    OfInput "rot90" => |v, d| x(d)?.rot90(v.i(), [0, 1]);
    OfArgument "repeat" => |v, d| ones([1], d)?.repeat([v.u()]);
    OfArgument "repeat twice" => |v, d| ones([2], d)?.repeat([v.u(), 2]);
    OfArgument "tile" => |v, d| ones([1], d)?.tile([v.u()]);
    OfArgument "repeat_interleave" => |v, d| ones([1], d)?.repeat_interleave(v.u(), 0);
    OfInput "repeat of nothing" => |v, d| zeros([0], d)?.repeat([v.u()]);
    OfInput "sum" => |v, d| x(d)?.sum(v.i());
    OfInput "amax" => |v, d| x(d)?.amax(v.i());
    OfInput "argmax" => |v, d| x(d)?.argmax(v.i());
    OfInput "var" => |v, d| x(d)?.var((), v.u());
    OfInput "std" => |v, d| x(d)?.std(0, v.u());
    OfInput "softmax" => |v, d| x(d)?.softmax(v.i());
    OfInput "logsumexp" => |v, d| x(d)?.logsumexp(v.i());
    OfInput "cumsum" => |v, d| x(d)?.cumsum(v.i());
    OfInput "cummax" => |v, d| x(d)?.cummax(v.i()).map(|_| ());
    OfInput "sort" => |v, d| x(d)?.sort(v.i(), false).map(|_| ());
    OfInput "topk" => |v, d| x(d)?.topk(v.u(), 2, true).map(|_| ());
    OfInput "topk dim" => |v, d| x(d)?.topk(1, v.i(), true).map(|_| ());
    OfInput "kthvalue" => |v, d| x(d)?.kthvalue(v.u(), 2).map(|_| ());
    OfInput "median" => |v, d| x(d)?.median(v.i()).map(|_| ());
    OfArgument "multinomial" => |v, d| ones([3], d)?.multinomial(v.u(), true);
    OfInput "multinomial once each" => |v, d| ones([3], d)?.multinomial(v.u(), false);
    OfInput "diff" => |v, d| x(d)?.diff(v.u(), 2);
    OfInput "diff of nothing" => |v, d| zeros([0], d)?.diff(v.u(), 0);
    OfInput "diff dim" => |v, d| x(d)?.diff(1, v.i());
    OfInput "round_decimals" => |v, d| x(d)?.round_decimals(v.l());
    OfInput "tensordot" => |v, d| x(d)?.tensordot(&x(d)?, v.u());
    OfInput "index_select" => |v, d| {
        x(d)?.index_select(0, &tensor([v.l()], d)?)?.to_vec::<f32>().map(|_| ())
    };
    OfInput "gather" => |v, d| {
        x(d)?.gather(2, &tensor([[[v.l()]]], d)?)?.to_vec::<f32>().map(|_| ())
    };
    OfInput "gather dim" => |v, d| x(d)?.gather(v.i(), &tensor([[[0i64]]], d)?);
    OfInput "take" => |v, d| x(d)?.take(&tensor([v.l()], d)?)?.to_vec::<f32>().map(|_| ());
    OfInput "index_add" => |v, d| {
        let to = ones([3], d)?;
        to.index_add(0, &tensor([v.l()], d)?, &ones([1], d)?)?.to_vec::<f32>().map(|_| ())
    };
    OfInput "scatter" => |v, d| {
        let to = ones([3], d)?;
        to.scatter_add(0, &tensor([v.l()], d)?, &ones([1], d)?)?.to_vec::<f32>().map(|_| ())
    };
    OfArgument "bincount" => |v, d| tensor([1i64, 2], d)?.bincount(None, v.u());
    OfArgument "histc" => |v, d| x(d)?.histc(v.u(), 0.0, 1.0);
    OfInput "add integer" => |v, d| tensor([1i64], d)?.add(v.l());
    OfInput "add integer to i32" => |v, d| tensor([1i32], d)?.add(v.l());
    OfInput "remainder" => |v, d| tensor([i64::MIN, 7], d)?.remainder(v.l());
    OfInput "floor_divide" => |v, d| tensor([i64::MIN, 7], d)?.floor_divide(v.l());
    OfInput "pow" => |v, d| tensor([2i64, -1], d)?.pow(v.l());
    OfInput "shift" => |v, d| tensor([2i64, -1], d)?.bitwise_left_shift(v.l());
    OfInput "fill_" => |v, d| tensor([2i64, -1], d)?.fill_(v.l()).map(|_| ());
    OfInput "random_" => |v, d| zeros([2], (DType::I64, d))?.random_(0, v.l()).map(|_| ());
    OfInput "random_ low" => |v, d| zeros([2], (DType::I64, d))?.random_(v.l(), i64::MAX).map(|_| ());
    OfArgument "empty" => |v, d| warpline::empty([v.u(), 2], d);
    OfArgument "zeros" => |v, d| zeros([v.u()], d);
    OfInput "zeros of nothing" => |v, d| zeros([v.u(), 0], d);
    OfArgument "eye" => |v, d| warpline::eye(v.u(), 2, d);
    OfArgument "linspace" => |v, d| warpline::linspace(0.0, 1.0, v.u(), d);
    OfArgument "randperm" => |v, d| warpline::randperm(v.u(), d);
    OfArgument "arange" => |v, d| arange(v.l(), d);
    OfInput "randint" => |v, d| warpline::randint(0, v.l(), [2], d);
    OfArgument "new_zeros" => |v, d| x(d)?.new_zeros([v.u()], ());
    OfInput "normalize" => |v, d| f::normalize(&x(d)?, 2.0, v.i(), 1e-5);
    OfInput "glu" => |v, d| f::glu(&x(d)?, v.i());
    OfInput "group_norm" => |v, d| f::group_norm(&x(d)?, v.u(), None, None, 1e-5);
    OfInput "layer_norm" => |v, d| f::layer_norm(&x(d)?, [v.u()], None, None, 1e-5);
    OfInput "embedding padding" => |v, d| {
        f::embedding(&tensor([1i64], d)?, &ones([3, 2], d)?, Some(v.i()))
    };
    OfInput "embedding index" => |v, d| {
        f::embedding(&tensor([v.l()], d)?, &ones([3, 2], d)?, None)?.to_vec::<f32>().map(|_| ())
    };
    OfArgument "one_hot" => |v, d| f::one_hot(&tensor([1i64], d)?, Some(v.u()));
    OfInput "pixel_shuffle" => |v, d| f::pixel_shuffle(&ones([1, 4, 2, 2], d)?, v.u());
    OfInput "pixel_unshuffle" => |v, d| f::pixel_unshuffle(&ones([1, 4, 2, 2], d)?, v.u());
    OfArgument "pad" => |v, d| f::pad(&x(d)?, &[v.i(), 0], f::PadMode::Constant(0.0.into()));
    OfArgument "pad both" => |v, d| f::pad(&x(d)?, &[v.i(), v.i()], f::PadMode::Constant(0.0.into()));
    OfInput "pad reflect" => |v, d| f::pad(&x(d)?, &[v.i(), 0], f::PadMode::Reflect);
    OfArgument "pad circular" => |v, d| f::pad(&x(d)?, &[0, v.i()], f::PadMode::Circular);
    OfArgument "pad replicate" => |v, d| f::pad(&x(d)?, &[0, v.i()], f::PadMode::Replicate);
    OfInput "conv1d stride" => |v, d| {
        let (x, w) = (image(1, d)?, ones([1, 1, 2], d)?);
        f::conv1d(&x, &w, None, &f::ConvOptions { stride: [v.u()], ..Default::default() })
    };
    OfInput "conv2d stride with gradients" => |v, d| {
        let x = image(2, d)?.requires_grad_(true)?;
        let w = ones([1, 1, 2, 2], d)?.requires_grad_(true)?;
        let options = f::ConvOptions { stride: [v.u(); 2], ..Default::default() };
        f::conv2d(&x, &w, None, &options)?.sum(())?.backward()
    };
    OfInput "conv2d dilation" => |v, d| {
        let (x, w) = (image(2, d)?, ones([1, 1, 2, 1], d)?);
        f::conv2d(&x, &w, None, &f::ConvOptions { dilation: [1, v.u()], ..Default::default() })
    };
    OfInput "conv2d wide dilation" => |v, d| {
        let (x, w) = (image(2, d)?, ones([1, 1, 2, 2], d)?);
        f::conv2d(&x, &w, None, &f::ConvOptions { dilation: [v.u(); 2], ..Default::default() })
    };
    OfInput "conv2d dilation as Same" => |v, d| {
        let (x, w, padding) = (image(2, d)?, ones([1, 1, 2, 2], d)?, f::Padding::Same);
        let options = f::ConvOptions { dilation: [v.u(); 2], padding, ..Default::default() };
        f::conv2d(&x, &w, None, &options)
    };
    OfArgument "conv3d padding" => |v, d| {
        let (x, w) = (image(3, d)?, ones([1, 1, 2, 2, 2], d)?);
        let options = f::ConvOptions { padding: [v.u(); 3].into(), ..Default::default() };
        f::conv3d(&x, &w, None, &options)
    };
    OfInput "conv2d groups" => |v, d| {
        let (x, w) = (image(2, d)?, ones([1, 1, 2, 2], d)?);
        f::conv2d(&x, &w, None, &f::ConvOptions { groups: v.u(), ..Default::default() })
    };
    OfArgument "conv_transpose2d stride" => |v, d| {
        let (x, w) = (image(2, d)?, ones([1, 1, 2, 2], d)?);
        let options = f::ConvTransposeOptions { stride: [v.u(); 2], ..Default::default() };
        f::conv_transpose2d(&x, &w, None, &options)
    };
    OfInput "conv_transpose2d stride of one" => |v, d| {
        let (x, w) = (ones([1, 1, 1, 1], d)?, ones([1, 1, 2, 2], d)?);
        let options = f::ConvTransposeOptions { stride: [v.u(); 2], ..Default::default() };
        f::conv_transpose2d(&x, &w, None, &options)
    };
    OfInput "conv_transpose2d padding" => |v, d| {
        let (x, w) = (image(2, d)?, ones([1, 1, 2, 2], d)?);
        let options = f::ConvTransposeOptions { padding: [v.u(); 2], ..Default::default() };
        f::conv_transpose2d(&x, &w, None, &options)
    };
    OfInput "conv_transpose2d output_padding" => |v, d| {
        let (x, w) = (image(2, d)?, ones([1, 1, 2, 2], d)?);
        let options = f::ConvTransposeOptions { output_padding: [v.u(); 2], ..Default::default() };
        f::conv_transpose2d(&x, &w, None, &options)
    };
    OfInput "unfold stride" => |v, d| {
        f::unfold(&image(2, d)?, [2, 2], &f::FoldOptions { stride: [v.u(); 2], ..Default::default() })
    };
    OfInput "unfold kernel" => |v, d| f::unfold(&image(2, d)?, [v.u(); 2], &f::FoldOptions::default());
    OfArgument "unfold padding" => |v, d| {
        f::unfold(&image(2, d)?, [2, 2], &f::FoldOptions { padding: [v.u(); 2], ..Default::default() })
    };
    OfInput "fold stride" => |v, d| {
        let columns = ones([1, 4, 1], d)?;
        f::fold(&columns, [6, 6], [2, 2], &f::FoldOptions { stride: [v.u(); 2], ..Default::default() })
    };
    OfArgument "fold sizes" => |v, d| {
        f::fold(&ones([1, 4, 1], d)?, [v.u(); 2], [2, 2], &f::FoldOptions::default())
    };
    OfInput "max_pool2d kernel" => |v, d| {
        f::max_pool2d(&image(2, d)?, [v.u(), 1], &f::MaxPoolOptions::default())
    };
    OfInput "max_pool2d stride" => |v, d| {
        let options = f::MaxPoolOptions { stride: Some([v.u(); 2]), ..Default::default() };
        f::max_pool2d(&image(2, d)?, [2, 2], &options)
    };
    OfInput "max_pool2d dilation of one" => |v, d| {
        let options = f::MaxPoolOptions { dilation: [1, v.u()], ..Default::default() };
        f::max_pool2d(&image(2, d)?, [1, 1], &options)
    };
    OfInput "max_pool2d dilation" => |v, d| {
        let options = f::MaxPoolOptions { dilation: [v.u(); 2], ..Default::default() };
        f::max_pool2d(&image(2, d)?, [2, 2], &options)
    };
    OfInput "max_pool2d padding" => |v, d| {
        let options = f::MaxPoolOptions { padding: [v.u(); 2], ..Default::default() };
        f::max_pool2d(&image(2, d)?, [2, 2], &options)
    };
    OfInput "max_pool2d in ceil mode" => |v, d| {
        let options = f::MaxPoolOptions {
            padding: [v.u() / 2; 2],
            dilation: [v.u(); 2],
            stride: Some([v.u(); 2]),
            ceil_mode: true,
        };
        f::max_pool2d(&image(2, d)?, [2, 2], &options)
    };
    OfInput "avg_pool1d stride" => |v, d| {
        let options = f::AvgPoolOptions { stride: Some([v.u()]), ..Default::default() };
        f::avg_pool1d(&image(1, d)?, [2], &options)
    };
    OfInput "avg_pool2d divisor" => |v, d| {
        let options = f::AvgPoolOptions { divisor_override: Some(v.l()), ..Default::default() };
        f::avg_pool2d(&image(2, d)?, [2, 2], &options)
    };
    OfArgument "adaptive_avg_pool2d" => |v, d| f::adaptive_avg_pool2d(&image(2, d)?, [v.u(), 1]);
    OfArgument "adaptive_max_pool2d" => |v, d| f::adaptive_max_pool2d(&image(2, d)?, [v.u(), 1]);
    OfArgument "Linear" => |v, d| warpline_nn::Linear::new(v.u(), 2, d).map(|_| ());
    OfArgument "Embedding" => |v, d| warpline_nn::Embedding::new(v.u(), 2, d).map(|_| ());
    OfArgument "LayerNorm" => |v, d| warpline_nn::LayerNorm::new([v.u()], d).map(|_| ());
    OfArgument "BatchNorm2d" => |v, d| warpline_nn::BatchNorm2d::new(v.u(), d).map(|_| ());
    OfArgument "GroupNorm" => |v, d| warpline_nn::GroupNorm::new(v.u(), 4, d).map(|_| ());
    OfArgument "LSTM" => |v, d| warpline_nn::LSTM::new(2, v.u(), d).map(|_| ());
    OfInput "MultiheadAttention" => |v, d| warpline_nn::MultiheadAttention::new(4, v.u(), d).map(|_| ());
    OfInput "DataLoader" => |v, d| {
        let mut loader = DataLoader::new(TensorDataset::new(x(d)?, x(d)?)?).batch_size(v.u())?;
        loader = loader.prefetch_factor(v.u());
        for batch in loader.iter()? {
            batch?;
        }
        loader.iter_from(v.u()).map(|_| ())
    };
    OfInput "DistributedSampler" => |v, _d| DistributedSampler::new(5, v.u(), v.u()).map(|_| ());
};

#[test]
fn extreme_integers_are_errors_or_give_results_and_never_a_panic() {
    let runtime = simulated(1).unwrap();
    let mut failures = Vec::new();
    with_runtime(&runtime, || {
        for device in [Device::Cpu, Device::cuda(0)] {
            for &(name, size, call) in TABLE {
                for v in EXTREMES {
                    if size == OfArgument && (1 << 31..1 << 41).contains(&v.0.abs()) {
                        continue;
                    }
                    let begun = Instant::now();
                    let done = catch_unwind(AssertUnwindSafe(|| call(v, device)));
                    if done.is_err() {
                        failures.push(format!("{name} of {} on {device}: a panic", v.0));
                    }
                    // Some take milliseconds; the bound is for loops without end.
                    let took = begun.elapsed();
                    if took > Duration::from_secs(5) {
                        failures.push(format!("{name} of {} on {device}: {took:?}", v.0));
                    }
                }
                let sum = ones([3], device).and_then(|t| t.sum(())?.item::<f32>());
                if !matches!(sum, Ok(3.0)) {
                    failures.push(format!("after {name}, other work on {device}: {sum:?}"));
                    break;
                }
            }
        }
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
