//! Reductions over dimensions.

use smallvec::SmallVec;
use warpline_kernels::reduce::{ReduceOp, reduce};
use warpline_runtime::{Layout, Sizes};

use super::record_reduction::record_reduction;
use super::reduction_gradients::{self as gradients, ReducedDims};
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::autograd::{record, refuse_gradient, should_record};
use crate::called::Called;
use crate::into_shape::list_tuples;
use crate::{CallScope, Error, Integer, Result, Tensor};

/// The dimensions over which a reduction combines elements: `()` or `None` for all, one dimension, or several.
/// Negative dimensions count from the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name dimensions",
    label = "expected `()` for all, one such as `-1`, or several such as `[0, 2]`",
    note = "dimensions are `usize`, `isize`, `i32` or `i64`; negative ones count from the end"
)]
pub trait IntoDims {
    /// Returns the dimensions; an empty list means all dimensions.
    fn into_dims(self) -> SmallVec<[isize; 6]>;
}

impl IntoDims for () {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        SmallVec::new()
    }
}

impl<I: Integer> IntoDims for I {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        SmallVec::from_iter([self.into_isize()])
    }
}

// Implemented for only one integer type, so that the compiler can infer the type of `None`.
impl IntoDims for Option<isize> {
    fn into_dims(self) -> SmallVec<[isize; 6]> {
        self.into_iter().collect()
    }
}

macro_rules! dims {
    ($([$($generic:tt)*] $ty:ty;)*) => {$(
        impl<I: Integer, $($generic)*> IntoDims for $ty {
            fn into_dims(self) -> SmallVec<[isize; 6]> {
                self.iter().map(|dim| dim.into_isize()).collect()
            }
        }
    )*};
}

dims! {
    [] Vec<I>;
    [] &Vec<I>;
    [] &[I];
    [const N: usize] [I; N];
    [const N: usize] &[I; N];
}

list_tuples!(IntoDims::into_dims -> [isize], Integer, into_isize);

/// One dimension, or `()` or `None` for all. A negative dimension counts from the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a dimension",
    label = "expected `()` for all, or one such as `-1`",
    note = "dimensions are `usize`, `isize`, `i32` or `i64`; negative ones count from the end"
)]
pub trait IntoDim {
    /// Returns the dimension; `None` stands for all.
    fn into_dim(self) -> Option<isize>;
}

impl IntoDim for () {
    fn into_dim(self) -> Option<isize> {
        None
    }
}

impl<I: Integer> IntoDim for I {
    fn into_dim(self) -> Option<isize> {
        Some(self.into_isize())
    }
}

impl IntoDim for Option<isize> {
    fn into_dim(self) -> Option<isize> {
        self
    }
}

#[track_caller]
fn apply(op: ReduceOp, a: &Tensor, dims: &[isize], keepdim: bool) -> Result<Tensor> {
    match op {
        ReduceOp::Sum => autocast_operands!(F32, Keep, [a] => apply(op, a, dims, keepdim)),
        ReduceOp::Prod => autocast_operands!(F32, F32, [a] => apply(op, a, dims, keepdim)),
        ReduceOp::Mean
        | ReduceOp::Max
        | ReduceOp::Min
        | ReduceOp::ArgMax
        | ReduceOp::ArgMin
        | ReduceOp::Any
        | ReduceOp::All => {}
    }
    let result = op.result_dtype(a.dtype())?;
    let mut reduced: SmallVec<[bool; 6]> = SmallVec::from_elem(dims.is_empty(), a.dim());
    for &dim in dims {
        let d = a.layout().dim(dim).of(op.name())?;
        // A tensor without dimensions accepts 0 and -1, but has no dimension to reduce.
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
    if !out.dtype().is_float() || !should_record(&[a]) {
        return Ok(out);
    }
    record_reduction(op, a, out, ReducedDims(which))
}

/// Returns the result of a reduction without a gradient, or an error if the input requires one.
#[track_caller]
fn no_gradient(op: ReduceOp, a: &Tensor, out: Tensor) -> Result<Tensor> {
    refuse_gradient(op.name(), &[a])?;
    Ok(out)
}

/// Declares the methods of each reduction, and its gradient for [`record_reduction!`].
macro_rules! reduction_methods {
    ($(
        $(#[$doc:meta])*
        $name:ident $keep:ident $op:ident($dims:ident: $into:ident => $convert:ident), gradient $gradient:tt;
    )*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`ErrorKind::DimOutOfRange`] if the tensor lacks a dimension. [`ErrorKind::InvalidArgument`] if
            /// a dimension is named twice, or if the reduction is undefined for no elements, as a maximum is,
            /// and there are none. [`ErrorKind::UnsupportedDType`] if the reduction does not support the dtype.
            /// Errors of [every op](Tensor#errors-of-every-op).
            #[track_caller]
            pub fn $name(&self, $dims: impl $into) -> Result<Self> {
                apply(ReduceOp::$op, self, $dims.$convert().as_slice(), false).of(stringify!($name))
            }

            #[doc = concat!("The same as [`Tensor::", stringify!($name), "`], but keeps the dimensions, with size 1.")]
            ///
            /// # Errors
            #[doc = concat!("The same as [`Tensor::", stringify!($name), "`].")]
            #[track_caller]
            pub fn $keep(&self, $dims: impl $into) -> Result<Self> {
                let _call = CallScope::enter(stringify!($keep));
                apply(ReduceOp::$op, self, $dims.$convert().as_slice(), true)
            }
        )*}

        record_reduction! { $($op $gradient;)* }
    };
}

reduction_methods! {
    /// The sum over dimensions (`torch.sum`). Integers and bools give `int64`.
    sum sum_keepdim Sum(dims: IntoDims => into_dims),
        gradient { (_, _, reduced) => gradients::Sum { reduced } };
    /// The product over dimensions (`torch.prod`). Integers and bools give `int64`.
    prod prod_keepdim Prod(dims: IntoDims => into_dims),
        gradient { (x, _, reduced) => gradients::Product { x: x.clone(), reduced } };
    /// The mean over dimensions (`torch.mean`). Floats only.
    mean mean_keepdim Mean(dims: IntoDims => into_dims),
        gradient { (x, out, reduced) => gradients::Mean { count: (x.numel() / out.numel().max(1)) as f64, reduced } };
    /// The largest element over dimensions; NaN if there is a NaN (`torch.amax`).
    #[doc(alias = "max")]
    amax amax_keepdim Max(dims: IntoDims => into_dims),
        gradient { (x, out, reduced) => gradients::Extreme { x: x.clone(), out: out.clone(), reduced } };
    /// The smallest element over dimensions; NaN if there is a NaN (`torch.amin`).
    #[doc(alias = "min")]
    amin amin_keepdim Min(dims: IntoDims => into_dims),
        gradient { (x, out, reduced) => gradients::Extreme { x: x.clone(), out: out.clone(), reduced } };
    /// Returns whether any element along dimensions is nonzero (`torch.any`). The result is bool, but `uint8` for
    /// `uint8`.
    any any_keepdim Any(dims: IntoDims => into_dims), gradient none;
    /// Returns whether all elements along dimensions are nonzero (`torch.all`). The result is bool, but `uint8` for
    /// `uint8`.
    all all_keepdim All(dims: IntoDims => into_dims), gradient none;
    /// The index of the largest element along a dimension, as `int64` (`torch.argmax`). If `dim` is `None` or
    /// `()`, the index is the position in the flattened tensor. Of equal elements, the first is chosen. A NaN
    /// is larger than any number.
    argmax argmax_keepdim ArgMax(dim: IntoDim => into_dim), gradient none;
    /// The index of the smallest element along a dimension, as `int64` (`torch.argmin`). A NaN is smaller than
    /// any number. Otherwise the same as [`Tensor::argmax`].
    argmin argmin_keepdim ArgMin(dim: IntoDim => into_dim), gradient none;
}

impl Tensor {
    /// The largest elements along a dimension, and their indices (`torch.max` with `dim`).
    ///
    /// # Errors
    /// The same as [`Tensor::argmax`].
    #[track_caller]
    pub fn max(&self, dim: impl Integer) -> Result<(Self, Self)> {
        let _call = CallScope::enter("max");
        let dim = dim.into_isize();
        Ok((self.amax(dim)?, self.argmax(dim)?))
    }

    /// The smallest elements along a dimension, and their indices (`torch.min` with `dim`).
    ///
    /// # Errors
    /// The same as [`Tensor::argmin`].
    #[track_caller]
    pub fn min(&self, dim: impl Integer) -> Result<(Self, Self)> {
        let _call = CallScope::enter("min");
        let dim = dim.into_isize();
        Ok((self.amin(dim)?, self.argmin(dim)?))
    }
}
