//! Distinct values: `unique`, `unique_consecutive`.

use crate::autograd::refuse_gradient;
use crate::functional::options::options;
use crate::{CallScope, DType, IntoOptions, Result, Tensor, arange, cat, ones};

options! {
    /// Options of [`Tensor::unique`] and [`Tensor::unique_consecutive`].
    #[derive(Clone, Copy, Debug)]
    UniqueOptions [] [] {
        /// Sets whether the index of each element among the values is returned. Default: `false`.
        return_inverse: bool = false, bool;
        /// Sets whether the number of occurrences of each value is returned. Default: `false`.
        return_counts: bool = false, bool;
    }
}

impl Tensor {
    /// Returns the distinct values in ascending order (`torch.unique`). With `return_inverse`, also returns the
    /// index of each element among these values; with `return_counts`, also the number of occurrences of each
    /// value. The host waits for the number of values.
    ///
    /// ```
    /// # use warpline::{UniqueOptions, tensor};
    /// let t = tensor(&[5, 2, 5], ())?;
    /// let (values, ..) = t.unique(())?;
    /// let options = UniqueOptions::new().return_inverse(true).return_counts(true);
    /// let (_, inverse, counts) = t.unique(options)?;
    /// assert_eq!(values.to_vec::<i32>()?, [2, 5]);
    /// assert_eq!(inverse.unwrap().to_vec::<i64>()?, [1, 0, 1]);
    /// assert_eq!(counts.unwrap().to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture) if the stream is being captured.
    /// [`ErrorKind::Gradient`](crate::ErrorKind::Gradient) if the tensor requires a gradient and gradients are
    /// recorded. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn unique(
        &self,
        options: impl IntoOptions<UniqueOptions>,
    ) -> Result<(Self, Option<Self>, Option<Self>)> {
        const OP: &str = "unique";
        let _call = CallScope::enter(OP);
        let UniqueOptions { return_inverse, return_counts } = options.into_options();
        refuse_gradient(OP, &[self])?;
        let (sorted, from) = self.reshape([self.numel() as isize])?.sort(0)?;
        let runs = EqualRuns::of(&sorted)?;
        let inverse = if return_inverse {
            let inverse = runs.inverse.scatter(0, &from, &runs.inverse)?;
            Some(inverse.reshape(sizes(self))?)
        } else {
            None
        };
        let counts = return_counts.then(|| runs.counts()).transpose()?;
        Ok((runs.values, inverse, counts))
    }

    /// Returns the first element of each run of equal elements, in the order of the elements
    /// (`torch.unique_consecutive`). Otherwise the same as [`Tensor::unique`].
    ///
    /// # Errors
    /// The same as [`Tensor::unique`].
    #[track_caller]
    pub fn unique_consecutive(
        &self,
        options: impl IntoOptions<UniqueOptions>,
    ) -> Result<(Self, Option<Self>, Option<Self>)> {
        const OP: &str = "unique_consecutive";
        let _call = CallScope::enter(OP);
        let UniqueOptions { return_inverse, return_counts } = options.into_options();
        refuse_gradient(OP, &[self])?;
        let runs = EqualRuns::of(&self.reshape([self.numel() as isize])?)?;
        let inverse = return_inverse.then(|| runs.inverse.reshape(sizes(self)));
        let inverse = inverse.transpose()?;
        let counts = return_counts.then(|| runs.counts()).transpose()?;
        Ok((runs.values, inverse, counts))
    }
}

/// The runs of equal neighbours in a vector.
struct EqualRuns {
    values: Tensor,
    /// Index of the run to which each element belongs.
    inverse: Tensor,
    /// Index of the first element of each run.
    starts: Tensor,
    numel: usize,
}

impl EqualRuns {
    #[track_caller]
    fn of(flat: &Tensor) -> Result<Self> {
        let (numel, device) = (flat.numel(), flat.device());
        if numel == 0 {
            let none = arange(0i64, (DType::I64, device))?;
            return Ok(Self { values: flat.copy()?, inverse: none.clone(), starts: none, numel });
        }
        let last = flat.narrow(0, 0, numel - 1)?;
        let differs = flat.narrow(0, 1, numel - 1)?.ne(&last)?;
        let begins = cat(&[ones([1], (DType::Bool, device))?, differs], 0)?;
        let starts = begins.nonzero_positions()?;
        let inverse = begins.cumsum(0)?.sub(1)?;
        Ok(Self { values: flat.index_select(0, &starts)?, inverse, starts, numel })
    }

    #[track_caller]
    fn counts(&self) -> Result<Tensor> {
        let n = self.starts.numel();
        if n == 0 {
            return self.starts.copy();
        }
        let end = self.starts.new_full([1], self.numel as i64, ())?;
        cat(&[self.starts.narrow(0, 1, n - 1)?, end], 0)?.sub(&self.starts)
    }
}

fn sizes(of: &Tensor) -> Vec<isize> {
    of.size().iter().map(|&n| n as isize).collect()
}
