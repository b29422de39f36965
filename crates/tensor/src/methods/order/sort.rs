//! Sorting: `sort`, `argsort`, `topk`.

use smallvec::smallvec;
use warpline_kernels::sort;

#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::{Gradients, NodeInputs, OpBackward, record, saved, should_record};
use crate::functional::options::{from_integer, options};
use crate::{CallScope, DType, Error, Integer, IntoOptions, Result, Tensor};

options! {
    /// Options of [`Tensor::sort`] and [`Tensor::argsort`]. An integer converts into options with that `dim`.
    #[derive(Clone, Copy, Debug)]
    SortOptions [] [] {
        /// Sets the dimension. Negative: counted from the end. Default: -1.
        dim: isize = -1, impl Integer => Integer::into_isize;
        /// Sets whether the largest element comes first. Default: `false`.
        descending: bool = false, bool;
    }
}

options! {
    /// Options of [`Tensor::topk`]. An integer converts into options with that `dim`.
    #[derive(Clone, Copy, Debug)]
    TopkOptions [] [] {
        /// Sets the dimension. Negative: counted from the end. Default: -1.
        dim: isize = -1, impl Integer => Integer::into_isize;
        /// Sets whether the largest elements are returned, instead of the smallest. Default: `true`.
        largest: bool = true, bool;
    }
}

from_integer! { SortOptions dim; TopkOptions dim; }

impl Tensor {
    /// Sorts the elements along a dimension, and returns them with their former indices (`torch.sort`). The
    /// sort is stable. A NaN is larger than any number.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let (values, indices) = tensor(&[3, 1, 2], ())?.sort(())?;
    /// assert_eq!((values.to_vec::<i32>()?, indices.to_vec::<i64>()?), (vec![1, 2, 3], vec![1, 2, 0]));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn sort(&self, options: impl IntoOptions<SortOptions>) -> Result<(Self, Self)> {
        const OP: &str = "sort";
        let _call = CallScope::enter(OP);
        let SortOptions { dim, descending } = options.into_options();
        let d = self.layout().dim(dim)?;
        let exec = self.exec()?;
        let values = exec.empty(self.size(), self.dtype())?;
        let indices = exec.empty(self.size(), DType::I64)?;
        let (to, places) = (values.as_view(), indices.as_view());
        sort::sort(exec.target(), self.as_view(), d, descending, to, places)?;
        if values.dtype().is_float() && should_record(&[self]) {
            let values = record(OP, values, &[self], Sort { dim, indices: indices.clone() })?;
            return Ok((values, indices));
        }
        Ok((values, indices))
    }

    /// Returns only the indices of [`Tensor::sort`] (`torch.argsort`).
    ///
    /// # Errors
    /// The same as [`Tensor::sort`].
    #[track_caller]
    pub fn argsort(&self, options: impl IntoOptions<SortOptions>) -> Result<Self> {
        let _call = CallScope::enter("argsort");
        Ok(self.detach().sort(options.into_options())?.1)
    }

    /// Sorts the elements along the first dimension, in ascending order (`torch.msort`).
    ///
    /// # Errors
    /// The same as [`Tensor::sort`].
    #[track_caller]
    pub fn msort(&self) -> Result<Self> {
        let _call = CallScope::enter("msort");
        Ok(self.sort(0)?.0)
    }

    /// The `k` largest elements along a dimension in descending order, or the `k` smallest in ascending order,
    /// with their indices (`torch.topk`).
    ///
    /// # Errors
    /// The same as [`Tensor::sort`]. [`ErrorKind::InvalidArgument`] if `k` exceeds the size of the dimension.
    #[track_caller]
    pub fn topk(&self, k: usize, options: impl IntoOptions<TopkOptions>) -> Result<(Self, Self)> {
        const OP: &str = "topk";
        let _call = CallScope::enter(OP);
        let TopkOptions { dim, largest } = options.into_options();
        let d = self.layout().dim(dim)?;
        let size = self.size().get(d).copied().unwrap_or(1);
        if k > size {
            return Err(Error::invalid(OP, format!("k is {k}, but there are {size} elements")));
        }
        let (values, indices) = self.sort(SortOptions::new().dim(dim).descending(largest))?;
        if k == size {
            return Ok((values, indices));
        }
        // Copy the selected elements, so that the memory of all sorted elements can be freed.
        let first = |t: &Tensor| {
            if t.dim() == 0 { t.reshape([1])?.narrow(0, 0, k) } else { t.narrow(dim, 0, k) }
        };
        Ok((first(&values)?.copy()?, first(&indices)?.copy()?))
    }
}

saved! {
    struct Sort { dim: isize, indices: Tensor }
}

impl OpBackward for Sort {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let whole = grad.new_zeros(inputs.sizes(0), ())?;
        Ok(smallvec![Some(whole.scatter_(self.dim, &self.indices, grad)?.clone())])
    }
}
