//! The functions for activations return the same results as the methods of the same names.

use warpline::{Result, functional, tensor};

macro_rules! same {
    ($x:expr, $($name:ident($($argument:expr),*))+) => {$(
        let (function, method) = (functional::$name($x, $($argument),*)?, $x.$name($($argument),*)?);
        assert_eq!(function.to_vec::<f32>()?, method.to_vec::<f32>()?, stringify!($name));
    )+};
}

#[test]
fn activations_as_functions_are_the_methods() -> Result<()> {
    let x = tensor([[-3f32, -0.4, 0.0], [0.4, 1.5, 30.0]], ())?;
    same! {
        &x,
        celu(0.7) elu(0.7) gelu() hardshrink(0.3) hardsigmoid() hardswish() hardtanh(-0.5, 0.6) leaky_relu(0.2)
        log_softmax(1) logsigmoid() mish() relu() relu6() selu() sigmoid() silu() softmax(-1) softplus(2.0, 9.0)
        softshrink(0.3) softsign() tanh() tanhshrink() threshold(0.1, 7)
    }
    Ok(())
}
