//! Reductions over dimensions, and softmax.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::reduce::{ReduceOp, reduce};
use warpline_kernels::softmax as kernel;
use warpline_runtime::{Layout, Sizes};

use crate::autograd::{is_grad_enabled, record, refuse, wanted};
use crate::called::Called;
use crate::{Error, Result, Tensor, cat, where_cond};

/// Which dimensions a reduction takes together: `()` or `None` for all, one, or several. Negative ones
/// count from the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` names no dimensions",
    label = "expected `()` for all, one such as `-1`, or several such as `[0, 2]`",
    note = "dimensions are `isize`, since negative ones count from the end"
)]
pub trait IntoDims {
    /// The dimensions; none stands for all.
    fn into_dims(self) -> SmallVec<[isize; 6]>;
}

impl IntoDims for () {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        SmallVec::new()
    }
}

impl IntoDims for isize {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        SmallVec::from_iter([self])
    }
}

impl IntoDims for Option<isize> {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        self.into_iter().collect()
    }
}

impl IntoDims for Vec<isize> {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        self.into()
    }
}

impl IntoDims for &Vec<isize> {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        self.as_slice().into()
    }
}

impl IntoDims for &[isize] {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        self.into()
    }
}

impl<const N: usize> IntoDims for [isize; N] {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        self.as_slice().into()
    }
}

impl<const N: usize> IntoDims for &[isize; N] {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        self.as_slice().into()
    }
}

/// One dimension, or `()` or `None` for all.
#[diagnostic::on_unimplemented(
    message = "`{Self}` names no dimension",
    label = "expected `()` for all, or one such as `-1`",
    note = "dimensions are `isize`, since negative ones count from the end"
)]
pub trait IntoDim {
    /// The dimension; none stands for all.
    fn into_dim(self) -> Option<isize>;
}

impl IntoDim for () {
    fn into_dim(self) -> Option<isize> {
        None
    }
}

impl IntoDim for isize {
    fn into_dim(self) -> Option<isize> {
        Some(self)
    }
}

impl IntoDim for Option<isize> {
    fn into_dim(self) -> Option<isize> {
        self
    }
}

#[track_caller]
fn apply(op: ReduceOp, a: &Tensor, dims: &[isize], keepdim: bool) -> Result<Tensor> {
    let result = op.result_dtype(a.dtype())?;
    let mut reduced: SmallVec<[bool; 6]> = SmallVec::from_elem(dims.is_empty(), a.dim());
    for &dim in dims {
        let d = a.layout().dim(dim).of(op.name())?;
        // A scalar has a dimension to name, but none to reduce.
        if let Some(slot) = reduced.get_mut(d)
            && std::mem::replace(slot, true)
        {
            return Err(Error::invalid(
                op.name(),
                format!("dim {d} appears several times in {dims:?}"),
            ));
        }
    }
    let which: SmallVec<[usize; 6]> = (0..a.dim()).filter(|&d| reduced[d]).collect();
    let sizes: Sizes =
        a.size().iter().zip(&reduced).map(|(&n, &r)| if r { 1 } else { n }).collect();
    let exec = a.exec()?;
    let out = exec.empty(&sizes, result).of(op.name())?;
    reduce(exec.target(), op, a.as_view(), &which, out.as_view())?;
    let out = if keepdim {
        out
    } else {
        let kept: Sizes = (0..a.dim()).filter(|&d| !reduced[d]).map(|d| a.size()[d]).collect();
        out.with_layout(Layout::contiguous(&kept)?)
    };
    if !out.dtype().is_float() || !wanted(&[a]) {
        return Ok(out);
    }
    record_reduction(op, a, out, which)
}

/// Records a reduction over dimensions `which`. A result's gradient goes to the elements that it was made of.
#[track_caller]
fn record_reduction(
    op: ReduceOp,
    a: &Tensor,
    out: Tensor,
    which: SmallVec<[usize; 6]>,
) -> Result<Tensor> {
    let name = op.name();
    let dims: SmallVec<[isize; 6]> = which.iter().map(|&d| d as isize).collect();
    let reduced = which.clone();
    // With the dimensions that are gone, of size 1.
    let kept = move |t: &Tensor, sizes: &[usize]| {
        let size = |(d, &n): (usize, &usize)| if which.contains(&d) { 1 } else { n as isize };
        t.reshape(&sizes.iter().enumerate().map(size).collect::<SmallVec<[isize; 6]>>()[..])
    };
    let over = move |t: &Tensor, reduce: fn(&Tensor, &[isize]) -> Result<Tensor>| {
        if dims.is_empty() { Ok(t.clone()) } else { reduce(t, &dims) }
    };
    let sum: fn(&Tensor, &[isize]) -> Result<Tensor> = |t, dims| t.sum_keepdim(dims);
    let product: fn(&Tensor, &[isize]) -> Result<Tensor> = |t, dims| t.prod_keepdim(dims);
    let saved = out.clone();
    match op {
        ReduceOp::Sum => record(name, out, &[a], &[], move |context, grad| {
            let sizes = context.sizes(0);
            Ok(smallvec![Some(expand(&kept(grad, sizes)?, sizes)?)])
        }),
        ReduceOp::Mean => {
            let count = (a.numel() / out.numel().max(1)) as f64;
            record(name, out, &[a], &[], move |context, grad| {
                let sizes = context.sizes(0);
                Ok(smallvec![Some(expand(&kept(&grad.div(count)?, sizes)?, sizes)?)])
            })
        }
        // Of equal elements each has its share.
        ReduceOp::Max | ReduceOp::Min => {
            record(name, out, &[a], &[a, &saved], move |context, grad| {
                let (x, sizes) = (context.saved(0)?, context.sizes(0));
                let equal = x.eq(&kept(&context.saved(1)?, sizes)?)?.to(grad.dtype())?;
                let share = kept(grad, sizes)?.div(&over(&equal, sum)?)?;
                Ok(smallvec![Some(equal.mul(&share)?)])
            })
        }
        // An element's slope is the product of the others: of all, divided by it; where it alone is zero, of
        // those that are not; and where two are, zero.
        ReduceOp::Prod => record(name, out, &[a], &[a], move |context, grad| {
            let x = context.saved(0)?;
            if is_grad_enabled() && x.numel() > 0 {
                // Which says nothing of how the slope changes at a zero.
                let slope = product_of_others(&x, &reduced)?;
                return Ok(smallvec![Some(slope.mul(&kept(grad, context.sizes(0))?)?)]);
            }
            let zero = x.eq(0.0)?;
            let others = over(&where_cond(&zero, 1.0, &x)?, product)?;
            let zeros = over(&zero.to(x.dtype())?, sum)?;
            let whole = where_cond(&zeros.eq(0.0)?, &others, 0.0)?.div(&x)?;
            let alone = where_cond(&zeros.eq(1.0)?, &others, 0.0)?;
            let slope = where_cond(&zero, &alone, &whole)?;
            Ok(smallvec![Some(slope.mul(&kept(grad, context.sizes(0))?)?)])
        }),
        _ => {
            refuse(name, &[a])?;
            Ok(out)
        }
    }
}

/// For each element the product of the others along dimensions `which`: of those before it and those behind it.
#[track_caller]
fn product_of_others(x: &Tensor, which: &[usize]) -> Result<Tensor> {
    let kept = (0..x.dim()).filter(|d| !which.contains(d));
    let order: SmallVec<[usize; 6]> = kept.chain(which.iter().copied()).collect();
    let dims = |order: &[usize]| order.iter().map(|&d| d as isize).collect::<SmallVec<[_; 6]>>();
    let last = x.permute(&dims(&order)[..])?;
    let flat = last.reshape([-1, which.iter().map(|&d| x.size()[d] as isize).product()])?;
    let (one, count) = (flat.narrow(1, 0, 1)?.ones_like(())?, flat.size()[1] - 1);
    let before = cat(&[&one, &flat.narrow(1, 0, count)?], 1)?.cumprod(1)?;
    let behind = cat(&[&flat.narrow(1, 1, count)?, &one], 1)?.flip(1)?.cumprod(1)?.flip(1)?;
    let mut back = order.clone();
    order.iter().enumerate().for_each(|(place, &d)| back[d] = place);
    let sizes: SmallVec<[isize; 6]> = last.size().iter().map(|&n| n as isize).collect();
    before.mul(&behind)?.reshape(&sizes[..])?.permute(&dims(&back)[..])
}

#[track_caller]
fn expand(t: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    t.expand(&sizes.iter().map(|&n| n as isize).collect::<SmallVec<[isize; 6]>>()[..])
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $keep:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::DimOutOfRange`], [`Error::UnsupportedDType`], and what the launch fails
            /// with.
            #[track_caller]
            pub fn $name(&self, dims: impl IntoDims) -> Result<Self> {
                apply(ReduceOp::$op, self, &dims.into_dims(), false).of(stringify!($name))
            }

            #[doc = concat!(
                "[`Tensor::", stringify!($name), "`] that keeps the dimensions, with size 1."
            )]
            ///
            /// # Errors
            /// As without.
            #[track_caller]
            pub fn $keep(&self, dims: impl IntoDims) -> Result<Self> {
                apply(ReduceOp::$op, self, &dims.into_dims(), true).of(stringify!($keep))
            }
        )*}
    };
}

methods! {
    /// The sum over dimensions; of integers and bools as `int64`.
    sum sum_keepdim Sum;
    /// The product over dimensions; of integers and bools as `int64`.
    prod prod_keepdim Prod;
    /// The mean over dimensions; floats only.
    mean mean_keepdim Mean;
    /// The largest element over dimensions; NaN if there is one.
    #[doc(alias = "max")]
    amax amax_keepdim Max;
    /// The smallest element over dimensions; NaN if there is one.
    #[doc(alias = "min")]
    amin amin_keepdim Min;
    /// Whether any element over dimensions is not zero.
    any any_keepdim Any;
    /// Whether all elements over dimensions are not zero.
    all all_keepdim All;
}

impl Tensor {
    /// The index of the largest element, the first of equals, along a dimension, or with `None` or
    /// `()` in the flattened tensor; a NaN is the largest. `int64`.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::InvalidArgument`] where there is no element.
    #[track_caller]
    pub fn argmax(&self, dim: impl IntoDim) -> Result<Self> {
        apply(ReduceOp::ArgMax, self, dim.into_dim().as_slice(), false)
    }

    /// [`Tensor::argmax`] along a dimension, which stays with size 1.
    ///
    /// # Errors
    /// As without.
    #[track_caller]
    pub fn argmax_keepdim(&self, dim: impl IntoDim) -> Result<Self> {
        apply(ReduceOp::ArgMax, self, dim.into_dim().as_slice(), true).of("argmax_keepdim")
    }

    /// The index of the smallest element; otherwise as [`Tensor::argmax`].
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn argmin(&self, dim: impl IntoDim) -> Result<Self> {
        apply(ReduceOp::ArgMin, self, dim.into_dim().as_slice(), false)
    }

    /// [`Tensor::argmin`] along a dimension, which stays with size 1.
    ///
    /// # Errors
    /// As without.
    #[track_caller]
    pub fn argmin_keepdim(&self, dim: impl IntoDim) -> Result<Self> {
        apply(ReduceOp::ArgMin, self, dim.into_dim().as_slice(), true).of("argmin_keepdim")
    }

    /// The largest elements along a dimension, and their indices (`torch.max` with `dim`).
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    #[track_caller]
    pub fn max(&self, dim: isize) -> Result<(Self, Self)> {
        Ok((self.amax(dim).of("max")?, self.argmax(dim).of("max")?))
    }

    /// The smallest elements along a dimension, and their indices (`torch.min` with `dim`).
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    #[track_caller]
    pub fn min(&self, dim: isize) -> Result<(Self, Self)> {
        Ok((self.amin(dim).of("min")?, self.argmin(dim).of("min")?))
    }

    /// `exp(self)` divided by its sum along a dimension. Floats only.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`], [`Error::UnsupportedDType`].
    #[track_caller]
    pub fn softmax(&self, dim: isize) -> Result<Self> {
        self.softmax_or_log(dim, false)
    }

    /// The logarithm of [`Tensor::softmax`], more exact than taking it afterwards.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn log_softmax(&self, dim: isize) -> Result<Self> {
        self.softmax_or_log(dim, true)
    }

    #[track_caller]
    fn softmax_or_log(&self, dim: isize, log: bool) -> Result<Self> {
        let name = if log { "log_softmax" } else { "softmax" };
        let d = self.layout().dim(dim).of(name)?;
        if self.dim() == 0 {
            return self.unsqueeze(0)?.softmax_or_log(0, log)?.squeeze(0);
        }
        let exec = self.exec()?;
        let out = exec.empty(self.size(), self.dtype()).of(name)?;
        kernel::softmax(exec.target(), self.as_view(), d, out.as_view(), log)?;
        if !wanted(&[self]) {
            return Ok(out);
        }
        let saved = out.clone();
        record(name, out, &[self], &[&saved], move |context, grad| {
            Ok(smallvec![Some(softmax_backward(grad, &context.saved(0)?, d, log)?)])
        })
    }
}

/// The gradient of what softmax over dimension `dim`, or its logarithm, made `out` of: one launch, or ops that have
/// gradients themselves.
#[track_caller]
pub(crate) fn softmax_backward(
    grad: &Tensor,
    out: &Tensor,
    dim: usize,
    log: bool,
) -> Result<Tensor> {
    if !is_grad_enabled() {
        let exec = out.exec()?;
        let result = exec.empty(out.size(), out.dtype())?;
        let (target, views) = (exec.target(), [grad, out, &result].map(Tensor::as_view));
        kernel::softmax_backward(target, views[0], views[1], dim, views[2], log)?;
        return Ok(result);
    }
    let dim = dim as isize;
    if log {
        grad.sub(&out.exp()?.mul(&grad.sum_keepdim(dim)?)?)
    } else {
        out.mul(&grad.sub(&grad.mul(out)?.sum_keepdim(dim)?)?)
    }
}
