//! Activations as functions. Each function calls the tensor method of the same name.

use crate::{Integer, Result, Scalar, Tensor};

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
