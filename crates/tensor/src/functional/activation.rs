//! Activations as functions. Most of them call the tensor method of the same name.

#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called;
use crate::{Error, Integer, Result, Scalar, Tensor};

macro_rules! activations {
    ($($name:ident($($parameter:ident: $ty:ty),*);)*) => {$(
        #[doc = concat!("[`Tensor::", stringify!($name), "`] as a function (`torch.nn.functional.", stringify!($name), "`).")]
        ///
        /// # Errors
        #[doc = concat!("The same as [`Tensor::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(input: &Tensor, $($parameter: $ty),*) -> Result<Tensor> {
            input.$name($($parameter),*)
        }
    )*};
}

activations! {
    celu(alpha: f64);
    elu(alpha: f64);
    gelu();
    hardshrink(lambda: f64);
    hardsigmoid();
    hardswish();
    hardtanh(min: f64, max: f64);
    leaky_relu(negative_slope: f64);
    log_softmax(dim: impl Integer);
    logsigmoid();
    mish();
    relu();
    relu6();
    selu();
    sigmoid();
    silu();
    softmax(dim: impl Integer);
    softplus(beta: f64, threshold: f64);
    softshrink(lambda: f64);
    softsign();
    tanh();
    tanhshrink();
    threshold(threshold: impl Into<Scalar>, value: impl Into<Scalar>);
}

/// The first half of a dimension times the sigmoid of the second half (`torch.nn.functional.glu`). PyTorch's
/// default for `dim` is -1.
///
/// # Errors
/// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if the
/// dimension's size is odd. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn glu(input: &Tensor, dim: impl Integer) -> Result<Tensor> {
    let dim = dim.into_isize();
    let op = "glu";
    let d = input.layout().dim(dim).of(op)?;
    let size = input.size().get(d).copied().unwrap_or(1);
    if !size.is_multiple_of(2) {
        let reason = format!("dimension {d} must be of even size, but is of {size}");
        return Err(Error::invalid(op, reason));
    }
    let half = size / 2;
    let gate = input.narrow(dim, half as isize, half).of(op)?.sigmoid().of(op)?;
    input.narrow(dim, 0, half).of(op)?.mul(&gate).of(op)
}

/// [`Tensor::softmax`] of the negated input (`torch.nn.functional.softmin`).
///
/// # Errors
/// The same as [`Tensor::softmax`].
#[track_caller]
pub fn softmin(input: &Tensor, dim: impl Integer) -> Result<Tensor> {
    let dim = dim.into_isize();
    input.neg().of("softmin")?.softmax(dim).of("softmin")
}
