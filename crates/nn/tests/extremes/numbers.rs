//! Calls that take a number as a `Scalar`: with an integer, for tensors of floats and of integers.

use warpline::{
    AddmmOptions, DType, Tensor, arange_start, arange_start_step, linspace, logspace, zeros,
};
use warpline_nn::init::constant_;

use super::Case;
use super::cases::{at2, cases, m, v};

pub(crate) const NUMBERS: &[Case] = cases! {
    "arange_start" |at, n| arange_start(n.l, 3, at)?;
    "arange_start" |at, n| arange_start(0, n.l, (DType::I64, at))?;
    "arange_start" |at, n| arange_start(n.l, n.w, at)?;
    "arange_start_step" |at, n| arange_start_step(n.l, 3, 1, at)?;
    "arange_start_step" |at, n| arange_start_step(3, n.l, -1, (DType::I64, at))?;
    "arange_start_step" |at, n| arange_start_step(i64::MIN, i64::MAX, n.l, (DType::I64, at))?;
    "arange_start_step" |at, n| arange_start_step(n.l, i64::MAX, 1i64 << 62, (DType::I64, at))?;
    "linspace" |at, n| linspace(0, n.l, 3, (DType::I64, at))?;
    "logspace" |at, n| logspace(n.l, 1, 3, 2.0, at)?;
    "logspace" |at, n| logspace(0, n.l, 3, 2.0, at)?;
    "new_full" |at, n| at2(at).new_full([2], n.l, ())?;
    "full_like" |at, n| at2(at).full_like(n.l, ())?;
    "constant_" |at, n| constant_(&m(at), n.l)?.clone();
    "masked_fill" |at, n| m(at).masked_fill(&mask(at)?, n.l)?;
    "masked_fill" |at, n| bytes(at)?.masked_fill(&mask(at)?, n.l)?;
    "masked_fill_" |at, n| m(at).masked_fill_(&mask(at)?, n.l)?;
    "index_fill" |at, n| m(at).index_fill(0, &at2(at), n.l)?;
    "index_fill" |at, n| bytes(at)?.index_fill(0, &at2(at), n.l)?;
    "index_add_scaled_" |at, n| m(at).index_add_scaled_(0, &at2(at), &m(at), n.l)?;
    "index_add_scaled_" |at, n| integers(at)?.index_add_scaled_(0, &at2(at), &integers(at)?, n.l)?;
    "add_scaled" |at, n| m(at).add_scaled(&m(at), n.l)?;
    "add_scaled" |at, n| integers(at)?.add_scaled(&integers(at)?, n.l)?;
    "add_scaled_" |at, n| m(at).add_scaled_(&m(at), n.l)?;
    "add_scaled_" |at, n| bytes(at)?.add_scaled_(&bytes(at)?, n.l)?;
    "addcmul" |at, n| m(at).addcmul(&m(at), &m(at), n.l)?;
    "addcmul" |at, n| integers(at)?.addcmul(&integers(at)?, &integers(at)?, n.l)?;
    "addcmul_" |at, n| m(at).addcmul_(&m(at), &m(at), n.l)?;
    "addcdiv" |at, n| v(at).addcdiv(&v(at), &v(at).add(1)?, n.l)?;
    "addcdiv" |at, n| integers(at)?.addcdiv(&integers(at)?, &integers(at)?, n.l)?;
    "addcdiv_" |at, n| v(at).addcdiv_(&v(at), &v(at).add(1)?, n.l)?;
    "rpow" |at, n| v(at).rpow(n.l)?;
    "rpow" |at, n| at2(at).rpow(n.l)?;
    "threshold" |at, n| m(at).threshold(n.l, 1)?;
    "threshold" |at, n| m(at).threshold(2, n.l)?;
    "threshold" |at, n| integers(at)?.threshold(n.l, n.l)?;
    "threshold_" |at, n| m(at).threshold_(n.l, 1)?;
    "threshold_" |at, n| m(at).threshold_(2, n.l)?;
    "addmm" |at, n| square(at)?.addmm(&square(at)?, &square(at)?, AddmmOptions::new().beta(n.l))?;
    "addmm" |at, n| square(at)?.addmm(&square(at)?, &square(at)?, AddmmOptions::new().alpha(n.l))?;
};

/// Returns six `int64`.
fn integers(at: &str) -> warpline::Result<Tensor> {
    m(at).to(DType::I64)
}

/// Returns six `uint8`.
fn bytes(at: &str) -> warpline::Result<Tensor> {
    m(at).to(DType::U8)
}

fn mask(at: &str) -> warpline::Result<Tensor> {
    m(at).gt(2)
}

fn square(at: &str) -> warpline::Result<Tensor> {
    zeros([2, 2], at)
}
