//! Calls functions of `warpline-kernels` with extreme dimensions, windows and ranges.

use warpline::{DType, Device, Result, Tensor, ones, zeros};
use warpline_kernels::collective::{self, CollectiveOp, GroupMember};
use warpline_kernels::pool::{Divisor, Regions, Window};
use warpline_kernels::reduce::ReduceOp;
use warpline_kernels::scan::ScanOp;
use warpline_kernels::scatter::Reduce;
use warpline_kernels::{
    cat, conv, fill, indexing, loss, optim, pool, random, reduce, scan, scatter, softmax, sort,
};

use super::Case;
use super::cases::{at2, cases, m};

pub(crate) const KERNELS: &[Case] = cases! {
    "cat" |at, n| to(zeros([4, 3], at)?, |t, out| cat::cat(t, &[m(at).as_view(), m(at).as_view()], n.u, out))?;
    "index_select" |at, n| to(zeros([2, 3], at)?, |t, out| indexing::index_select(t, m(at).as_view(), n.u, at2(at).as_view(), out))?;
    "index_select_sizes" |at, n| { indexing::index_select_sizes(&[2, 3], n.u, &[2])?; };
    "index_select_sizes" |at, n| { indexing::index_select_sizes(&[n.u, 3], 0, &[n.u])?; };
    "gather" |at, n| to(zeros([2], at)?, |t, out| indexing::gather(t, m(at).as_view(), n.u, at2(at).as_view(), out))?;
    "embedding_sizes" |at, n| { indexing::embedding_sizes(&[n.u, n.u], &[n.u])?; };
    "randint" |at, n| to(zeros([2, 3], at)?, |t, out| random::randint(t, out, n.l, n.l))?;
    "reduce" |at, n| to(zeros([3], at)?, |t, out| reduce::reduce(t, ReduceOp::Sum, m(at).as_view(), &[n.u], out))?;
    "scan" |at, n| to(zeros([2, 3], at)?, |t, out| scan::scan(t, ScanOp::Sum, m(at).as_view(), n.u, out, None))?;
    "scatter" |at, n| to(m(at), |t, out| scatter::scatter(t, "scatter", out, n.u, at2(at).reshape([2, 1])?.as_view(), m(at).as_view(), Reduce::Sum))?;
    "index_add_as" |at, n| to(m(at), |t, out| scatter::index_add_as("index_add_as", t, out, n.u, at2(at).as_view(), m(at).as_view()))?;
    "index_add" |at, n| to(m(at), |t, out| scatter::index_add(t, out, n.u, at2(at).as_view(), m(at).as_view()))?;
    "embedding_backward" |at, n| to(m(at), |t, out| scatter::embedding_backward(t, out, at2(at).as_view(), m(at).as_view(), Some(n.u)))?;
    "linear_index" |at, n| to(zeros([2], (DType::I64, at))?, |t, out| scatter::linear_index(t, "linear_index", out, at2(at).as_view(), (n.u, 2), true))?;
    "linear_index" |at, n| to(zeros([2], (DType::I64, at))?, |t, out| scatter::linear_index(t, "linear_index", out, at2(at).as_view(), (0, n.u), true))?;
    "softmax" |at, n| to(m(at), |t, out| softmax::softmax(t, m(at).as_view(), n.u, out, false))?;
    "softmax_backward" |at, n| to(zeros([2, 3], at)?, |t, out| softmax::softmax_backward(t, m(at).as_view(), m(at).as_view(), n.u, out, true))?;
    "sort" |at, n| to(zeros([2, 3], at)?, |t, out| sort::sort(t, m(at).as_view(), n.u, false, out, zeros([2, 3], (DType::I64, at))?.as_view()))?;
    "sort_in_parts" |at, n| to(zeros([2, 3], at)?, |t, out| sort::sort_in_parts(t, m(at).as_view(), n.u, false, [out, zeros([2, 3], (DType::I64, at))?.as_view()], 8))?;
    "check" |at, n| { Window { input: [1, 1, n.u], ..ONE }.check("check")?; };
    "im2col" |at, n| columns(at, &Window { stride: [1, 1, n.u], ..ONE })?;
    "im2col" |at, n| columns(at, &Window { padding: [0, 0, n.u], ..ONE })?;
    "im2col" |at, n| columns(at, &Window { dilation: [1, 1, n.u], ..ONE })?;
    "col2im" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::col2im(t, ones([1, 1, 1], at)?.as_view(), &Window { stride: [1, 1, n.u], ..ONE }, out))?;
    "col2im" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::col2im(t, ones([1, 1, 1], at)?.as_view(), &Window { dilation: [1, 1, n.u], ..ONE }, out))?;
    "conv" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &ONE, n.u, out))?;
    "conv" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &Window { padding: [0, 0, n.u], ..ONE }, 1, out))?;
    "conv_input_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::conv_input_backward(t, ones([1, 1, 1], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &Window { stride: [1, 1, n.u], ..ONE }, n.u, out))?;
    "conv_input_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::conv_input_backward(t, ones([1, 1, 1], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &Window { dilation: [1, 1, n.u], ..ONE }, 1, out))?;
    "conv_weight_backward" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv_weight_backward(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &ONE, n.u, out))?;
    "conv_weight_backward" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv_weight_backward(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &Window { padding: [0, 0, n.u], ..ONE }, 1, out))?;
    "max_pool" |at, n| pooled(at, &Window { dilation: [1, 1, n.u], ..ONE }, Regions::Moving)?;
    "max_pool" |at, n| pooled(at, &Window { padding: [0, 0, n.u], ..ONE }, Regions::Moving)?;
    "max_pool" |at, n| pooled(at, &Window { kernel: [1, 1, n.u], ..ONE }, Regions::Adaptive)?;
    "max_pool_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| pool::max_pool_backward(t, ones([1, 1, 1], at)?.as_view(), zeros([1, 1, 1], (DType::I64, at))?.as_view(), &Window { dilation: [1, 1, n.u], ..ONE }, Regions::Moving, out))?;
    "avg_pool" |at, n| to(zeros([1, 1, 1], at)?, |t, out| pool::avg_pool(t, ones([1, 1, 4], at)?.as_view(), &Window { stride: [1, 1, n.u], ..ONE }, Regions::Moving, Divisor::Inside, out))?;
    "avg_pool" |at, n| to(zeros([1, 1, 1], at)?, |t, out| pool::avg_pool(t, ones([1, 1, 4], at)?.as_view(), &ONE, Regions::Moving, Divisor::Number(n.l), out))?;
    "fill" |at, n| to(m(at), |t, out| fill::fill(t, out, n.l.into()))?;
    "fill" |at, n| to(at2(at), |t, out| fill::fill(t, out, n.l.into()))?;
    "arange" |at, n| to(at2(at), |t, out| fill::arange(t, out, n.l.into(), 1.into()))?;
    "arange" |at, n| to(at2(at), |t, out| fill::arange(t, out, 1.into(), n.l.into()))?;
    "arange" |at, n| to(m(at), |t, out| fill::arange(t, out, n.l.into(), n.l.into()))?;
    "max_pool" |at, n| pooled(at, &Window { output: [1, 1, n.u], ..ONE }, Regions::Moving)?;
    "nll_loss" |at, n| nll(at, n.l)?;
    "check" |at, n| collective::check("check", GroupMember { rank: n.u, ..MEMBER }, &[])?;
    "check" |at, n| collective::check("check", GroupMember { ranks: n.u, ..MEMBER }, &[])?;
    "check" |at, n| gathered(GroupMember { ranks: n.u, ..MEMBER })?;
    "check" |at, n| gathered(GroupMember { rank: n.u, ..MEMBER })?;
    "update_scale" |at, n| to(ones([1], at)?, |t, out| optim::update_scale(t, [out, zeros([1], (DType::I32, at))?.as_view(), zeros([1], at)?.as_view()], (2.0, 0.5), n.l))?;
    "avg_pool_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| pool::avg_pool_backward(t, ones([1, 1, 1], at)?.as_view(), &Window { stride: [1, 1, n.u], ..ONE }, Regions::Moving, Divisor::Padded, out))?;
};

/// Runs a kernel on a result.
fn to(
    out: Tensor,
    run: impl FnOnce(warpline_runtime::Target<'_>, warpline_runtime::View<'_>) -> Result<()>,
) -> Result<Tensor> {
    run(out.exec()?.target(), out.as_view())?;
    Ok(out)
}

/// A window of one element, at one position of an image of four elements.
const ONE: Window = Window {
    input: [1, 1, 4],
    output: [1; 3],
    kernel: [1; 3],
    stride: [1; 3],
    padding: [0; 3],
    dilation: [1; 3],
};

fn columns(at: &str, window: &Window) -> Result<Tensor> {
    let image = ones([1, 1, 4], at)?;
    to(zeros([1, 1, 1], at)?, |t, out| conv::im2col(t, image.as_view(), window, out))
}

fn pooled(at: &str, window: &Window, places: Regions) -> Result<Tensor> {
    let (image, indices) = (ones([1, 1, 4], at)?, zeros([1, 1, 1], (DType::I64, at))?);
    to(zeros([1, 1, 1], at)?, |t, out| {
        pool::max_pool(t, image.as_view(), window, places, out, indices.as_view())
    })
}

/// The first of two ranks.
const MEMBER: GroupMember = GroupMember { device: Device::Cpu, rank: 0, ranks: 2 };

/// Checks a gather of two elements per rank to four elements.
fn gathered(member: GroupMember) -> Result<()> {
    let (input, output) = (zeros([2], "cpu")?, zeros([4], "cpu")?);
    let gather = CollectiveOp::AllGather { input: input.as_view(), output: output.as_view() };
    collective::check("check", member, &[gather])
}

/// Returns a loss of two rows of which one may be ignored.
fn nll(at: &str, ignore_index: i64) -> Result<Tensor> {
    let (log, classes, total) = (m(at), at2(at), zeros([], at)?);
    let (log, classes) = (log.as_view(), classes.as_view());
    let nll = loss::Nll { log, classes, weight: None, ignore_index, mean: true };
    to(zeros([], at)?, |t, out| loss::nll_loss(t, "nll_loss", &nll, out, total.as_view()))
}
