//! The method `apply` of tensors, which chains calls of modules and functions in the order in which they run.

use warpline::{Result, Tensor};

use super::Forward;

/// A function or closure is a module without parameters, for generic callers.
#[diagnostic::do_not_recommend]
impl<Input, Output, F: Fn(Input) -> Result<Output>> Forward<Input> for F {
    type Output = Output;

    #[track_caller]
    fn forward(&self, input: Input) -> Result<Output> {
        self(input)
    }
}

/// Adds the method `apply` to tensors.
pub trait Apply {
    /// Passes the tensor to a module, a function or a closure, and returns the output.
    ///
    /// ```
    /// use warpline::{Tensor, ones};
    /// use warpline_nn::{Apply, Linear};
    ///
    /// let (fc1, fc2) = (Linear::new(4, 8, ())?, Linear::new(8, 2, ())?);
    /// let y = ones([3, 4], ())?.apply(&fc1)?.apply(&|x: Tensor| x.relu())?.apply(&fc2)?;
    /// assert_eq!(y.size(), [3, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Forward::forward`] of the module, or of the function.
    fn apply<M: Forward<Tensor>>(&self, module: &M) -> Result<M::Output>;
}

impl Apply for Tensor {
    #[track_caller]
    fn apply<M: Forward<Tensor>>(&self, module: &M) -> Result<M::Output> {
        module.forward(self.clone())
    }
}
