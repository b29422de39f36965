//! Calls of `warpline`.

use warpline::data::{DataLoader, DistributedSampler, RandomSampler, TensorDataset};
use warpline::functional::*;
use warpline::{
    BincountOptions, Device, DiagEmbedOptions, DiagonalOptions, DiffOptions, HistcOptions,
    NormOptions, Result, Rot90Options, ScatterReduce, SortOptions, Tensor, TopkOptions, VarOptions,
    VectorNormOptions, arange, empty, eye, full, linspace, logspace, ones, rand, randint, randn,
    randperm, tensor, tril_indices, triu_indices, zeros,
};

use super::{Case, ResultSummary, Summarize};

/// Builds a table of calls, each with the name of its function.
macro_rules! cases {
    ($($name:literal |$at:ident, $n:ident| $call:expr;)*) => {
        &[$(($name, |$at: &str, $n: crate::Number| -> warpline::Result<crate::ResultSummary> {
            let _ = ($at, $n);
            crate::Summarize::summarize(&$call)
        })),*]
    };
}
pub(crate) use cases;

pub(crate) fn v(at: &str) -> Tensor {
    arange(4f32, at).expect("four numbers")
}

pub(crate) fn m(at: &str) -> Tensor {
    arange(6f32, at).and_then(|t| t.reshape([2, 3])).expect("six numbers")
}

fn c(at: &str) -> Tensor {
    arange(24f32, at).and_then(|t| t.reshape([2, 3, 4])).expect("24 numbers")
}

pub(crate) fn at2(at: &str) -> Tensor {
    tensor([0i64, 1], at).expect("two indices")
}

/// Gives an error the name [`super::PREPARATION`], which shows that the tested call did not cause it.
fn made<T>(operand: Result<T>) -> Result<T> {
    operand.map_err(|error| error.of(super::PREPARATION))
}

/// Returns a tensor without elements and with the given strides.
fn strided(at: &str, n: crate::Number) -> Result<Tensor> {
    made(v(at).as_strided([0, 2], [n.i, n.i], 0))
}

fn im(at: &str, dims: usize) -> Tensor {
    let sizes = [&[1, 2][..], &[4, 4, 4][..dims]].concat();
    arange(sizes.iter().product::<usize>() as f32, at)
        .and_then(|t| t.reshape(&sizes[..].iter().map(|&n| n as isize).collect::<Vec<_>>()[..]))
        .expect("an image")
}

fn k(at: &str, dims: usize) -> Tensor {
    ones([&[2, 2][..], &[2, 2, 2][..dims]].concat(), at).expect("a kernel")
}

impl Summarize for Device {
    fn summarize(&self) -> Result<ResultSummary> {
        Ok(ResultSummary(self.to_string()))
    }
}

/// A random tensor. Only its sizes are compared, because its values differ between devices.
struct Random(Tensor);

impl Summarize for Random {
    fn summarize(&self) -> Result<ResultSummary> {
        ResultSummary::sizes(&self.0)
    }
}

pub(crate) const TENSORS: &[Case] = cases! {
    "empty" |at, n| Random(empty([n.u, 2], at)?);
    "zeros" |at, n| zeros([n.u, 2], at)?;
    "zeros" |at, n| zeros([n.u, 0], at)?;
    "zeros" |at, n| zeros([n.u, 0, n.u], at)?;
    "ones" |at, n| ones([2, n.u], at)?;
    "full" |at, n| full([n.u], n.l, at)?;
    "full" |at, n| full([2], n.l, at)?;
    "arange" |at, n| arange(n.l, at)?;
    "linspace" |at, n| linspace(0, 1, n.u, at)?;
    "linspace" |at, n| linspace(n.l, 1, 3, at)?;
    "logspace" |at, n| logspace(0, 1, n.u, 2.0, at)?;
    "eye" |at, n| eye((n.u, 2), at)?;
    "eye" |at, n| eye((2, n.u), at)?;
    "rand" |at, n| Random(rand([n.u], at)?);
    "randn" |at, n| Random(randn([n.u], at)?);
    "randint" |at, n| Random(randint(0, n.l, [3], at)?);
    "randint" |at, n| Random(randint(n.l, 1, [3], at)?);
    "randint" |at, n| Random(randint(0, 2, [n.u], at)?);
    "randperm" |at, n| Random(randperm(n.u, at)?);
    "from_vec" |at, n| Tensor::from_vec(vec![1f32; 2], [n.u], at)?;
    "new_empty" |at, n| Random(m(at).new_empty([n.u], ())?);
    "new_full" |at, n| m(at).new_full([n.u], 1, ())?;
    "new_zeros" |at, n| m(at).new_zeros([n.u], ())?;
    "new_ones" |at, n| m(at).new_ones([n.u], ())?;
    "tril_indices" |at, n| tril_indices(n.u, 1, 0, at)?;
    "tril_indices" |at, n| tril_indices(1, n.u, 0, at)?;
    "tril_indices" |at, n| tril_indices(3, 3, n.i, at)?;
    "triu_indices" |at, n| triu_indices(n.u, 1, 0, at)?;
    "triu_indices" |at, n| triu_indices(1, n.u, n.i, at)?;
    "triu_indices" |at, n| triu_indices(3, 3, n.i, at)?;
    "i" |at, n| m(at).i(n.i)?;
    "i" |at, n| m(at).i(n.u)?;
    "i" |at, n| m(at).i((.., n.i..))?;
    "i" |at, n| m(at).i(..=n.u)?;
    "i" |at, n| m(at).i(n.l..n.l)?;
    "random_" |at, n| Random(m(at).random_(0, n.l)?.clone());
    "random_" |at, n| Random(m(at).to(warpline::DType::I64)?.random_(n.l, 1)?.clone());
    "round_decimals" |at, n| m(at).round_decimals(n.l)?;
    "round_decimals_" |at, n| m(at).round_decimals_(n.l)?;
    "sum" |at, n| m(at).sum(n.i)?;
    "sum_keepdim" |at, n| m(at).sum_keepdim(n.i)?;
    "prod" |at, n| m(at).prod(n.i)?;
    "mean" |at, n| m(at).mean([n.i, 0])?;
    "amax" |at, n| m(at).amax(n.i)?;
    "amin" |at, n| m(at).amin(n.i)?;
    "all" |at, n| m(at).all(n.i)?;
    "any" |at, n| m(at).any(n.i)?;
    "argmax" |at, n| m(at).argmax(n.i)?;
    "argmax_keepdim" |at, n| m(at).argmax_keepdim(n.i)?;
    "argmin" |at, n| m(at).argmin(n.i)?;
    "argmin_keepdim" |at, n| m(at).argmin_keepdim(n.i)?;
    "max" |at, n| m(at).max(n.i)?;
    "min" |at, n| m(at).min(n.i)?;
    "softmax" |at, n| m(at).softmax(n.i)?;
    "log_softmax" |at, n| m(at).log_softmax(n.i)?;
    "index_select" |at, n| m(at).index_select(n.i, &at2(at))?;
    "index_select" |at, n| m(at).index_select(0, &tensor([n.l], at)?)?;
    "gather" |at, n| m(at).gather(n.i, &at2(at).reshape([2, 1])?)?;
    "gather" |at, n| m(at).gather(1, &tensor([n.l], at)?.reshape([1, 1])?)?;
    "reshape" |at, n| m(at).reshape([n.i, 3])?;
    "reshape" |at, n| zeros([0], at)?.reshape([n.i, 0])?;
    "view" |at, n| m(at).view([n.i, 3])?;
    "transpose" |at, n| m(at).transpose(n.i, 0)?;
    "transpose" |at, n| m(at).transpose(0, n.i)?;
    "permute" |at, n| m(at).permute([n.i, 0])?;
    "expand" |at, n| m(at).expand([n.i, 2, 3])?;
    "add" |at, n| made(m(at).expand([n.i, 2, 3]))?.add(1.0)?;
    "narrow" |at, n| m(at).narrow(n.i, 0, 1)?;
    "narrow" |at, n| m(at).narrow(0, n.i, 1)?;
    "narrow" |at, n| m(at).narrow(0, 1, n.u)?;
    "select" |at, n| m(at).select(n.i, 0)?;
    "select" |at, n| m(at).select(0, n.i)?;
    "slice" |at, n| m(at).slice(n.i, .., 1)?;
    "slice" |at, n| m(at).slice(0, n.i.., 1)?;
    "slice" |at, n| m(at).slice(0, ..n.u, 1)?;
    "slice" |at, n| m(at).slice(0, .., n.u)?;
    "slice" |at, n| m(at).slice(1, 1.., n.u)?.unsqueeze(1)?.add(1.0)?.sum(())?;
    "slice" |at, n| m(at).slice(1, 1.., n.u)?.unfold(0, 1, n.u)?.flip([0, 1])?;
    "squeeze" |at, n| m(at).squeeze(n.i)?;
    "unsqueeze" |at, n| m(at).unsqueeze(n.i)?;
    "flatten" |at, n| m(at).flatten(n.i)?;
    "flatten" |at, n| m(at).flatten((0, n.i))?;
    "cat" |at, n| warpline::cat(&[m(at), m(at)], n.i)?;
    "stack" |at, n| warpline::stack(&[m(at), m(at)], n.i)?;
    "diag" |at, n| m(at).diag(n.i)?;
    "diag" |at, n| v(at).diag(n.i)?;
    "diag_embed" |at, n| v(at).diag_embed(DiagEmbedOptions::new().offset(n.i).dim1(0).dim2(1))?;
    "diag_embed" |at, n| v(at).diag_embed(DiagEmbedOptions::new().dim1(n.i).dim2(1))?;
    "diag_embed" |at, n| v(at).diag_embed(DiagEmbedOptions::new().dim1(0).dim2(n.i))?;
    "repeat" |at, n| v(at).repeat([n.u])?;
    "repeat" |at, n| zeros([0], at)?.repeat([n.u])?;
    "tile" |at, n| m(at).tile([n.u])?;
    "repeat_interleave" |at, n| v(at).repeat_interleave(n.u, 0)?;
    "repeat_interleave" |at, n| v(at).repeat_interleave(2, n.i)?;
    "rot90" |at, n| m(at).rot90(Rot90Options::new().k(n.i))?;
    "rot90" |at, n| m(at).rot90(Rot90Options::new().dims([n.i, 1]))?;
    "split" |at, n| m(at).split(n.u, 0)?;
    "split" |at, n| m(at).split(1, n.i)?;
    "split" |at, n| made(ones([1], at)?.expand([n.i]))?.split(1, 0)?.len().min(1).ignore_value();
    "chunk" |at, n| m(at).chunk(n.u, 0)?;
    "chunk" |at, n| m(at).chunk(2, n.i)?;
    "split_with_sizes" |at, n| m(at).split_with_sizes(&[n.u, 1], 0)?;
    "split_with_sizes" |at, n| m(at).split_with_sizes(&[1, 1], n.i)?;
    "tensor_split" |at, n| m(at).tensor_split(n.u, 0)?;
    "tensor_split" |at, n| m(at).tensor_split(2, n.i)?;
    "tensor_split_at" |at, n| m(at).tensor_split_at([n.i, 1], 0)?;
    "tensor_split_at" |at, n| m(at).tensor_split_at([1], n.i)?;
    "unbind" |at, n| m(at).unbind(n.i)?;
    "unbind" |at, n| made(ones([1], at)?.expand([n.i]))?.unbind(0)?.len().min(1).ignore_value();
    "diagonal" |at, n| m(at).diagonal(DiagonalOptions::new().offset(n.i))?;
    "diagonal" |at, n| m(at).diagonal(DiagonalOptions::new().dim1(n.i))?;
    "diagonal" |at, n| m(at).diagonal(DiagonalOptions::new().dim2(n.i))?;
    "as_strided" |at, n| m(at).as_strided([n.u], [0], 0)?;
    "as_strided" |at, n| m(at).as_strided([1, 2], [n.i, 1], 0)?.add(1.0)?;
    "as_strided" |at, n| m(at).as_strided([0, 2], [1, n.i], n.u)?.add(1.0)?;
    "as_strided" |at, n| m(at).as_strided([2], [1], n.u)?;
    "unfold" |at, n| m(at).unfold(n.i, 1, 1)?;
    "unfold" |at, n| m(at).unfold(0, n.u, 1)?;
    "unfold" |at, n| m(at).unfold(0, 1, n.u)?;
    "movedim" |at, n| m(at).movedim(n.i, 0)?;
    "movedim" |at, n| m(at).movedim(0, n.i)?;
    "unflatten" |at, n| m(at).unflatten(n.i, [1, -1])?;
    "unflatten" |at, n| m(at).unflatten(0, [n.i, -1])?;
    "broadcast_to" |at, n| v(at).broadcast_to([n.i, 4])?;
    "tril" |at, n| m(at).tril(n.i)?;
    "triu" |at, n| m(at).triu(n.i)?;
    "tril_" |at, n| m(at).tril_(n.i)?;
    "triu_" |at, n| m(at).triu_(n.i)?;
    "logsumexp" |at, n| m(at).logsumexp(n.i)?;
    "logsumexp_keepdim" |at, n| m(at).logsumexp_keepdim(n.i)?;
    "nansum" |at, n| m(at).nansum(n.i)?;
    "nansum_keepdim" |at, n| m(at).nansum_keepdim(n.i)?;
    "nanmean" |at, n| m(at).nanmean(n.i)?;
    "nanmean_keepdim" |at, n| m(at).nanmean_keepdim(n.i)?;
    "aminmax" |at, n| m(at).aminmax(n.i)?;
    "aminmax_keepdim" |at, n| m(at).aminmax_keepdim(n.i)?;
    "count_nonzero" |at, n| m(at).count_nonzero(n.i)?;
    "diff" |at, n| m(at).diff(DiffOptions::new().n(n.u).dim(1))?;
    "diff" |at, n| m(at).diff(DiffOptions::new().dim(n.i))?;
    "vector_norm" |at, n| m(at).vector_norm(VectorNormOptions::new().dim(n.i))?;
    "vector_norm_keepdim" |at, n| m(at).vector_norm_keepdim(VectorNormOptions::new().dim(n.i))?;
    "norm" |at, n| m(at).norm(NormOptions::new().dim(n.i))?;
    "norm_keepdim" |at, n| m(at).norm_keepdim(NormOptions::new().dim(n.i))?;
    "var" |at, n| m(at).var(n.i)?;
    "var" |at, n| m(at).var(VarOptions::new().dim(0).correction(n.u))?;
    "var_keepdim" |at, n| m(at).var_keepdim(VarOptions::new().dim(n.i).correction(n.u))?;
    "std" |at, n| m(at).std(n.i)?;
    "std" |at, n| m(at).std(VarOptions::new().dim(0).correction(n.u))?;
    "std_keepdim" |at, n| m(at).std_keepdim(VarOptions::new().dim(0).correction(n.u))?;
    "std_keepdim" |at, n| m(at).std_keepdim(n.i)?;
    "var_mean" |at, n| m(at).var_mean(VarOptions::new().dim(0).correction(n.u))?;
    "var_mean" |at, n| m(at).var_mean(n.i)?;
    "var_mean_keepdim" |at, n| m(at).var_mean_keepdim(n.i)?;
    "var_mean_keepdim" |at, n| m(at).var_mean_keepdim(VarOptions::new().dim(0).correction(n.u))?;
    "std_mean" |at, n| m(at).std_mean(VarOptions::new().dim(0).correction(n.u))?;
    "std_mean" |at, n| m(at).std_mean(n.i)?;
    "std_mean_keepdim" |at, n| m(at).std_mean_keepdim(n.i)?;
    "std_mean_keepdim" |at, n| m(at).std_mean_keepdim(VarOptions::new().dim(0).correction(n.u))?;
    "cumsum" |at, n| m(at).cumsum(n.i)?;
    "cumsum_" |at, n| m(at).cumsum_(n.i)?;
    "cumprod" |at, n| m(at).cumprod(n.i)?;
    "cumprod_" |at, n| m(at).cumprod_(n.i)?;
    "cummax" |at, n| m(at).cummax(n.i)?;
    "cummin" |at, n| m(at).cummin(n.i)?;
    "multinomial" |at, n| Random(v(at).multinomial(n.u, true)?);
    "multinomial" |at, n| Random(v(at).multinomial(n.u, ())?);
    "kthvalue" |at, n| m(at).kthvalue(n.u, 1)?;
    "kthvalue" |at, n| m(at).kthvalue(1, n.i)?;
    "kthvalue_keepdim" |at, n| m(at).kthvalue_keepdim(n.u, n.i)?;
    "median" |at, n| m(at).median(n.i)?;
    "median_keepdim" |at, n| m(at).median_keepdim(n.i)?;
    "sort" |at, n| m(at).sort(n.i)?;
    "argsort" |at, n| m(at).argsort(SortOptions::new().dim(n.i).descending(true))?;
    "topk" |at, n| m(at).topk(n.u, 1)?;
    "topk" |at, n| m(at).topk(1, TopkOptions::new().dim(n.i))?;
    "flip" |at, n| m(at).flip(n.i)?;
    "roll" |at, n| m(at).roll(n.i, 1)?;
    "roll" |at, n| m(at).roll(n.i, ())?;
    "roll" |at, n| m(at).roll(1, n.i)?;
    "tensordot" |at, n| m(at).tensordot(&m(at), n.u)?;
    "tensordot" |at, n| m(at).tensordot(&m(at), (n.i, 0))?;
    "tensordot" |at, n| m(at).tensordot(&m(at), (0, n.i))?;
    "bincount" |at, n| at2(at).bincount(BincountOptions::new().minlength(n.u))?;
    "bincount" |at, n| tensor([n.l], at)?.bincount(())?;
    "histc" |at, n| v(at).histc(HistcOptions::new().bins(n.u).max(4.0))?;
    "scatter" |at, n| m(at).scatter(n.i, &at2(at).reshape([1, 2])?, 1.0)?;
    "scatter" |at, n| m(at).scatter(1, &tensor([n.l], at)?.reshape([1, 1])?, 1.0)?;
    "scatter_" |at, n| m(at).scatter_(n.i, &at2(at).reshape([1, 2])?, 1.0)?;
    "scatter_add" |at, n| m(at).scatter_add(n.i, &at2(at).reshape([1, 2])?, &m(at))?;
    "scatter_add_" |at, n| m(at).scatter_add_(n.i, &at2(at).reshape([1, 2])?, &m(at))?;
    "scatter_reduce" |at, n| m(at).scatter_reduce(n.i, &at2(at).reshape([1, 2])?, &m(at), ScatterReduce::Sum, true)?;
    "scatter_reduce_" |at, n| m(at).scatter_reduce_(n.i, &at2(at).reshape([1, 2])?, &m(at), ScatterReduce::Sum, true)?;
    "take_along_dim" |at, n| m(at).take_along_dim(&at2(at).reshape([2, 1])?, n.i)?;
    "index_add" |at, n| m(at).index_add(n.i, &at2(at), &m(at))?;
    "index_add" |at, n| m(at).index_add(0, &tensor([n.l, 0], at)?, &m(at))?;
    "index_add_" |at, n| m(at).index_add_(n.i, &at2(at), &m(at))?;
    "index_add_scaled" |at, n| m(at).index_add_scaled(n.i, &at2(at), &m(at), n.l)?;
    "index_add_scaled_" |at, n| m(at).index_add_scaled_(n.i, &at2(at), &m(at), 2)?;
    "index_copy" |at, n| m(at).index_copy(n.i, &at2(at), &m(at))?;
    "index_copy_" |at, n| m(at).index_copy_(n.i, &at2(at), &m(at))?;
    "index_fill" |at, n| m(at).index_fill(n.i, &at2(at), 1)?;
    "index_fill_" |at, n| m(at).index_fill_(n.i, &at2(at), n.l)?;
    "narrow" |at, n| strided(at, n)?.narrow(1, 1, 1)?;
    "select" |at, n| strided(at, n)?.select(1, 1)?;
    "slice" |at, n| strided(at, n)?.slice(1, .., n.u)?;
    "unsqueeze" |at, n| strided(at, n)?.unsqueeze(0)?.sum(0)?;
    "unsqueeze" |at, n| strided(at, n)?.unsqueeze(1)?;
    "reshape" |at, n| strided(at, n)?.reshape([2, 0])?;
    "diagonal" |at, n| strided(at, n)?.diagonal(1)?;
    "flip" |at, n| strided(at, n)?.flip([0, 1])?;
    "sum" |at, n| strided(at, n)?.sum(0)?;
    "sum" |at, n| strided(at, n)?.add(1.0)?.sum(())?;
    "add" |at, n| at2(at).add(n.l)?;
    "mul" |at, n| at2(at).mul(n.l)?;
    "remainder" |at, n| at2(at).remainder(n.l)?;
    "floor_divide" |at, n| at2(at).floor_divide(n.l)?;
    "pow" |at, n| at2(at).pow(n.l)?;
    "fill_" |at, n| at2(at).fill_(n.l)?;
    "take" |at, n| m(at).take(&tensor([n.l], at)?)?;
    "cuda" |at, n| Device::cuda(n.u);
    "to" |at, n| m(at).to(Device::cuda(n.u))?;
    "simulated" |at, n| { warpline::simulated(n.u.saturating_add(2))?; };
};

pub(crate) const FUNCTIONS: &[Case] = cases! {
    "normalize" |at, n| normalize(&m(at), NormalizeOptions::new().dim(n.i))?;
    "cosine_similarity" |at, n| cosine_similarity(&m(at), &m(at), CosineSimilarityOptions::new().dim(n.i))?;
    "glu" |at, n| glu(&c(at), n.i)?;
    "glu" |at, n| glu(&c(at), GLUOptions::new().dim(n.i))?;
    "softmin" |at, n| softmin(&m(at), n.i)?;
    "layer_norm" |at, n| layer_norm(&m(at), [n.u], ())?;
    "rms_norm" |at, n| rms_norm(&m(at), [n.u], ())?;
    "add_layer_norm" |at, n| { add_layer_norm(&m(at), &m(at), [n.u], ())?; };
    "add_rms_norm" |at, n| { add_rms_norm(&m(at), &m(at), [n.u], ())?; };
    "KvCache::new" |at, n| { KvCache::new([1, 1, n.u, 2], at)?; };
    "KvCache::new" |at, n| { KvCache::new([n.u, n.u, 3, n.u], at)?; };
    "group_norm" |at, n| group_norm(&c(at), n.u, ())?;
    "pad" |at, n| pad(&m(at), [n.i, 0], PadMode::Constant(0.0.into()))?;
    "pad" |at, n| pad(&m(at), [n.i, isize::MAX], PadMode::Constant(0.0.into()))?;
    "pad" |at, n| pad(&c(at), [0, n.i], PadMode::Reflect)?;
    "pad" |at, n| pad(&c(at), [n.i, isize::MAX], PadMode::Replicate)?;
    "pad" |at, n| pad(&c(at), [n.i, 1], PadMode::Circular)?;
    "pixel_shuffle" |at, n| pixel_shuffle(&im(at, 2), n.u)?;
    "pixel_unshuffle" |at, n| pixel_unshuffle(&im(at, 2), n.u)?;
    "rotary_embedding" |at, n| rotary_embedding(&m(at).reshape([1, 6])?, &zeros([1, 3], at)?, &ones([1, 3], at)?, RotaryEmbeddingOptions::new().rotary_dim(n.u))?;
    "embedding" |at, n| embedding(&at2(at), &m(at), EmbeddingOptions::new().padding_idx(n.i))?;
    "embedding" |at, n| embedding(&tensor([n.l], at)?, &m(at), ())?;
    "one_hot" |at, n| one_hot(&at2(at), n.u)?;
    "one_hot" |at, n| one_hot(&at2(at), OneHotOptions::new().num_classes(n.u))?;
    "one_hot" |at, n| one_hot(&tensor([n.l], at)?, ())?;
    "conv1d" |at, n| conv1d(&im(at, 1), &k(at, 1), None, ConvOptions::new().stride([n.u]))?;
    "conv1d" |at, n| conv1d(&im(at, 1), &k(at, 1), None, ConvOptions::new().padding([n.u]))?;
    "conv2d" |at, n| conv2d(&im(at, 2), &k(at, 2), None, ConvOptions::new().dilation([n.u, 1]))?;
    "conv2d" |at, n| conv2d(&im(at, 2), &k(at, 2), None, ConvOptions::new().groups(n.u))?;
    "conv1d" |at, n| conv1d(&im(at, 1), &k(at, 1), None, ConvOptions::new().padding(Padding::Same).dilation([n.u]))?;
    "conv2d" |at, n| gradient(at, n.u)?;
    "conv3d" |at, n| conv3d(&im(at, 3), &k(at, 3), None, ConvOptions::new().stride([n.u; 3]).padding(Padding::Zeros([n.u; 3])))?;
    "conv_transpose1d" |at, n| conv_transpose1d(&im(at, 1), &k(at, 1), None, ConvTransposeOptions::new().stride([n.u]))?;
    "conv_transpose1d" |at, n| conv_transpose1d(&im(at, 1), &k(at, 1), None, ConvTransposeOptions::new().padding([n.u]))?;
    "conv_transpose2d" |at, n| conv_transpose2d(&im(at, 2), &k(at, 2), None, ConvTransposeOptions::new().dilation([1, n.u]))?;
    "conv_transpose2d" |at, n| conv_transpose2d(&im(at, 2), &k(at, 2), None, ConvTransposeOptions::new().output_padding([n.u; 2]).stride([n.u; 2]))?;
    "conv_transpose3d" |at, n| conv_transpose3d(&im(at, 3), &k(at, 3), None, ConvTransposeOptions::new().groups(n.u))?;
    "unfold" |at, n| unfold(&im(at, 2), [n.u, 1], ())?;
    "unfold" |at, n| unfold(&im(at, 2), [2, 2], FoldOptions::new().padding([n.u; 2]))?;
    "unfold" |at, n| unfold(&im(at, 2), [2, 2], FoldOptions::new().stride([n.u; 2]))?;
    "unfold" |at, n| unfold(&im(at, 2), [1, 2], FoldOptions::new().dilation([n.u, 1]))?;
    "fold" |at, n| fold(&c(at), [n.u, 1], [1, 1], ())?;
    "fold" |at, n| fold(&c(at), [2, 2], [n.u, 1], ())?;
    "fold" |at, n| fold(&c(at), [2, 2], [1, 1], FoldOptions::new().stride([n.u; 2]).padding([n.u; 2]))?;
    "max_pool1d" |at, n| max_pool1d(&im(at, 1), [n.u], ())?;
    "max_pool1d_with_indices" |at, n| max_pool1d_with_indices(&im(at, 1), [1], MaxPoolOptions::new().dilation([n.u]))?;
    "max_pool2d" |at, n| max_pool2d(&im(at, 2), [1, 1], MaxPoolOptions::new().dilation([1, n.u]))?;
    "max_pool2d" |at, n| max_pool2d(&im(at, 2), [2, 2], MaxPoolOptions::new().dilation([n.u; 2]).padding([n.u; 2]))?;
    "max_pool2d_with_indices" |at, n| max_pool2d_with_indices(&im(at, 2), [2, 2], MaxPoolOptions::new().stride([n.u; 2]).ceil_mode(true))?;
    "max_pool3d" |at, n| max_pool3d(&im(at, 3), [n.u; 3], MaxPoolOptions::new().padding([n.u / 2; 3]).ceil_mode(true))?;
    "max_pool3d_with_indices" |at, n| max_pool3d_with_indices(&im(at, 3), [2; 3], MaxPoolOptions::new().stride([n.u; 3]))?;
    "avg_pool1d" |at, n| avg_pool1d(&im(at, 1), [n.u], AvgPoolOptions::new().padding([n.u / 2]))?;
    "avg_pool2d" |at, n| avg_pool2d(&im(at, 2), [2, 2], AvgPoolOptions::new().stride([n.u; 2]).ceil_mode(true))?;
    "avg_pool2d" |at, n| avg_pool2d(&im(at, 2), [2, 2], AvgPoolOptions::new().divisor_override(n.l))?;
    "avg_pool3d" |at, n| avg_pool3d(&im(at, 3), [2; 3], AvgPoolOptions::new().padding([n.u; 3]))?;
    "adaptive_avg_pool1d" |at, n| adaptive_avg_pool1d(&im(at, 1), [n.u])?;
    "adaptive_avg_pool2d" |at, n| adaptive_avg_pool2d(&im(at, 2), [n.u, 0])?;
    "adaptive_avg_pool3d" |at, n| adaptive_avg_pool3d(&im(at, 3), [n.u, 1, n.u])?;
    "adaptive_max_pool1d" |at, n| adaptive_max_pool1d(&im(at, 1), [n.u])?;
    "adaptive_max_pool2d_with_indices" |at, n| adaptive_max_pool2d_with_indices(&im(at, 2), [1, n.u])?;
    "adaptive_max_pool3d" |at, n| adaptive_max_pool3d(&im(at, 3), [n.u; 3])?;
    "interpolate" |at, n| interpolate(&im(at, 1), InterpolateOptions::new().size([n.u]))?;
    "interpolate" |at, n| interpolate(&im(at, 2), InterpolateOptions::new().size([1, n.u]).mode(InterpolateMode::Bilinear))?;
    "nll_loss" |at, n| nll_loss(&m(at), &at2(at), NLLLossOptions::new().ignore_index(n.l))?;
    "cross_entropy" |at, n| cross_entropy(&m(at), &tensor([n.l, 0], at)?, CrossEntropyLossOptions::new().ignore_index(n.l))?;
    "cross_entropy" |at, n| cross_entropy(&m(at), &tensor([n.l, 0], at)?, ())?;
    "batch_size" |at, n| batches(at, |l| l.batch_size(n.u))?;
    "num_workers" |at, n| batches(at, |l| Ok(l.num_workers(n.u)))?;
    "prefetch_factor" |at, n| batches(at, |l| Ok(l.num_workers(1).prefetch_factor(n.u)))?;
    "iter_from" |at, n| { loader(at)?.iter_from(n.u)?.next().transpose()?; };
    "RandomSampler::new" |at, n| { let _ = RandomSampler::new(n.u); };
    "DistributedSampler::new" |at, n| { let _ = DistributedSampler::new(n.u, 1, 0)?; };
    "DistributedSampler::new" |at, n| { let _ = DistributedSampler::new(4, n.u, 0)?; };
    "DistributedSampler::new" |at, n| { let _ = DistributedSampler::new(4, 2, n.u)?; };
    "DistributedSampler::set_epoch" |at, n| { DistributedSampler::new(4, 2, 0)?.set_epoch(n.w); };
};

fn loader(at: &str) -> Result<DataLoader<TensorDataset>> {
    Ok(DataLoader::new(TensorDataset::new(m(at), at2(at))?))
}

fn batches(
    at: &str,
    set: impl FnOnce(DataLoader<TensorDataset>) -> Result<DataLoader<TensorDataset>>,
) -> Result<Tensor> {
    let first = set(loader(at)?)?.iter()?.next().transpose()?;
    first.map_or_else(|| zeros([0], ()), |(inputs, _)| Ok(inputs))
}

/// A result whose value is not compared.
trait IgnoreValue {
    fn ignore_value(self);
}

impl IgnoreValue for usize {
    fn ignore_value(self) {}
}

/// Returns the gradient of a convolution's weight.
fn gradient(at: &str, stride: usize) -> Result<Tensor> {
    let weight = k(at, 2);
    weight.requires_grad_(true)?;
    let options = ConvOptions::new().stride(stride);
    conv2d(&im(at, 2), &weight, None, options)?.sum(())?.backward()?;
    Ok(weight.grad().unwrap_or(weight))
}
