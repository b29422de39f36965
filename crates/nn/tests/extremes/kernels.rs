//! Calls of `warpline-kernels`, whose functions take dimensions, windows and ranges.

use warpline::{DType, Result, Tensor, ones, zeros};
use warpline_kernels::pool::{Divisor, Regions, Window};
use warpline_kernels::reduce::ReduceOp;
use warpline_kernels::scan::ScanOp;
use warpline_kernels::scatter::Reduce;
use warpline_kernels::{
    cat, conv, indexing, optim, pool, random, reduce, scan, scatter, softmax, sort,
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
    "check" |at, n| { window(n.u, 0).check("check")?; };
    "im2col" |at, n| columns(at, n.u, 3)?;
    "im2col" |at, n| columns(at, n.u, 4)?;
    "im2col" |at, n| columns(at, n.u, 5)?;
    "col2im" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::col2im(t, ones([1, 1, 1], at)?.as_view(), &window(n.u, 3), out))?;
    "col2im" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::col2im(t, ones([1, 1, 1], at)?.as_view(), &window(n.u, 5), out))?;
    "conv" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &window(1, 3), n.u, out))?;
    "conv" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &window(n.u, 4), 1, out))?;
    "conv_input_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::conv_input_backward(t, ones([1, 1, 1], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &window(n.u, 3), n.u, out))?;
    "conv_input_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| conv::conv_input_backward(t, ones([1, 1, 1], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &window(n.u, 5), 1, out))?;
    "conv_weight_backward" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv_weight_backward(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &window(1, 3), n.u, out))?;
    "conv_weight_backward" |at, n| to(zeros([1, 1, 1], at)?, |t, out| conv::conv_weight_backward(t, ones([1, 1, 4], at)?.as_view(), ones([1, 1, 1], at)?.as_view(), &window(n.u, 4), 1, out))?;
    "max_pool" |at, n| pooled(at, &window(n.u, 5), Regions::Moving)?;
    "max_pool" |at, n| pooled(at, &window(n.u, 4), Regions::Moving)?;
    "max_pool" |at, n| pooled(at, &window(n.u, 2), Regions::Adaptive)?;
    "max_pool_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| pool::max_pool_backward(t, ones([1, 1, 1], at)?.as_view(), zeros([1, 1, 1], (DType::I64, at))?.as_view(), &window(n.u, 5), Regions::Moving, out))?;
    "avg_pool" |at, n| to(zeros([1, 1, 1], at)?, |t, out| pool::avg_pool(t, ones([1, 1, 4], at)?.as_view(), &window(n.u, 3), Regions::Moving, Divisor::Inside, out))?;
    "avg_pool" |at, n| to(zeros([1, 1, 1], at)?, |t, out| pool::avg_pool(t, ones([1, 1, 4], at)?.as_view(), &window(1, 3), Regions::Moving, Divisor::Number(n.l), out))?;
    "update_scale" |at, n| to(ones([1], at)?, |t, out| optim::update_scale(t, [out, zeros([1], (DType::I32, at))?.as_view(), zeros([1], at)?.as_view()], (2.0, 0.5), n.l))?;
    "avg_pool_backward" |at, n| to(zeros([1, 1, 4], at)?, |t, out| pool::avg_pool_backward(t, ones([1, 1, 1], at)?.as_view(), &window(n.u, 3), Regions::Moving, Divisor::Padded, out))?;
};

/// Runs a kernel on a result.
fn to(
    out: Tensor,
    run: impl FnOnce(warpline_runtime::Target<'_>, warpline_runtime::View<'_>) -> Result<()>,
) -> Result<Tensor> {
    run(out.exec()?.target(), out.as_view())?;
    Ok(out)
}

/// Returns a window of one element over four elements, with one of its fields replaced by `n`.
fn window(n: usize, field: usize) -> Window {
    let one = [1; 3];
    let mut window = Window {
        input: [1, 1, 4],
        output: one,
        kernel: one,
        stride: one,
        padding: [0; 3],
        dilation: one,
    };
    let fields = [
        &mut window.input,
        &mut window.output,
        &mut window.kernel,
        &mut window.stride,
        &mut window.padding,
        &mut window.dilation,
    ];
    for (i, values) in fields.into_iter().enumerate() {
        if i == field {
            values[2] = n;
        }
    }
    window
}

fn columns(at: &str, n: usize, field: usize) -> Result<Tensor> {
    let image = ones([1, 1, 4], at)?;
    to(zeros([1, 1, 1], at)?, |t, out| conv::im2col(t, image.as_view(), &window(n, field), out))
}

fn pooled(at: &str, window: &Window, places: Regions) -> Result<Tensor> {
    let (image, indices) = (ones([1, 1, 4], at)?, zeros([1, 1, 1], (DType::I64, at))?);
    to(zeros([1, 1, 1], at)?, |t, out| {
        pool::max_pool(t, image.as_view(), window, places, out, indices.as_view())
    })
}
