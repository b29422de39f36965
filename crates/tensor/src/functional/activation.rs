//! Activations as functions. Most of them call the tensor method of the same name.

use warpline_kernels::elementwise::SILU_MUL;

#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called;
use crate::methods::{apply_elementwise_in, common_dtype};
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

/// `silu(gate) * up` in one launch: the gate of a feed-forward layer of Llama. `gate` and `up` broadcast, and are
/// promoted to a common dtype. Half-width floats are computed in `f32` and rounded once. PyTorch has no such function;
/// its counterpart is `torch.nn.functional.silu(gate) * up`.
///
/// ```
/// # use warpline::functional::{silu, silu_mul};
/// # use warpline::tensor;
/// let (gate, up) = (tensor([-1f32, 0.0, 2.0], ())?, tensor([3f32, 4.0, 5.0], ())?);
/// let expected = silu(&gate)?.mul(&up)?;
/// assert!(silu_mul(&gate, &up)?.allclose(&expected, 1e-6, 0.0, false)?);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::BroadcastMismatch`] if the shapes do not broadcast. [`ErrorKind::UnsupportedDType`] if the common dtype
/// is not floating point. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let operands = [gate.into(), up.into()];
    apply_elementwise_in(&SILU_MUL, &operands, common_dtype(&operands))
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
