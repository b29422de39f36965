//! Tests that activation functions return the same results as the methods of the same names.

use warpline::functional::{self as f, Approximate, ELUOptions, HardtanhOptions, SoftplusOptions};
use warpline::{Result, Tensor, functional, tensor};

macro_rules! same {
    ($x:expr, $($name:ident($($argument:expr),*))+) => {$(
        let (function, method) = (functional::$name($x, $($argument),*)?, $x.$name($($argument),*)?);
        assert_eq!(function.to_vec::<f32>()?, method.to_vec::<f32>()?, stringify!($name));
    )+};
}

#[test]
fn activation_functions_equal_the_methods() -> Result<()> {
    let x = tensor([[-3f32, -0.4, 0.0], [0.4, 1.5, 30.0]], ())?;
    same! {
        &x,
        hardsigmoid() hardswish() log_softmax(1) logsigmoid() mish() relu() relu6() selu() sigmoid() silu()
        softmax(-1) softsign() tanh() tanhshrink() threshold(0.1, 7)
    }
    Ok(())
}

#[test]
fn activations_with_options_have_pytorchs_defaults() -> Result<()> {
    let x = tensor([[-3f32, -0.4, 0.0], [0.4, 1.5, 30.0]], ())?;
    let same = |function: Result<Tensor>, method: Result<Tensor>| {
        assert_eq!(function?.to_vec::<f32>()?, method?.to_vec::<f32>()?);
        Ok::<_, warpline::Error>(())
    };
    same(f::celu(&x, ()), x.celu(1.0))?;
    same(f::celu(&x, 0.7), x.celu(0.7))?;
    same(f::elu(&x, ()), x.elu(1.0))?;
    same(f::elu(&x, ELUOptions::new().alpha(0.7)), x.elu(0.7))?;
    same(f::gelu(&x, ()), x.gelu())?;
    same(f::gelu(&x, Approximate::Tanh), x.gelu_tanh())?;
    same(f::hardshrink(&x, ()), x.hardshrink(0.5))?;
    same(f::hardshrink(&x, 0.3), x.hardshrink(0.3))?;
    same(f::hardtanh(&x, ()), x.hardtanh(()))?;
    same(
        f::hardtanh(&x, HardtanhOptions::new().min_val(-0.5).max_val(0.6)),
        x.hardtanh(HardtanhOptions::new().min_val(-0.5).max_val(0.6)),
    )?;
    same(f::leaky_relu(&x, ()), x.leaky_relu(0.01))?;
    same(f::leaky_relu(&x, 0.2), x.leaky_relu(0.2))?;
    same(f::softplus(&x, ()), x.softplus(()))?;
    same(
        f::softplus(&x, SoftplusOptions::new().beta(2.0).threshold(9.0)),
        x.softplus(SoftplusOptions::new().beta(2.0).threshold(9.0)),
    )?;
    same(f::softshrink(&x, ()), x.softshrink(0.5))?;
    same(f::softshrink(&x, 0.3), x.softshrink(0.3))?;
    let even = x.view((3, 2))?;
    same(f::glu(&even, ()), f::glu(&even, 1))?;
    Ok(())
}

#[test]
fn activations_in_place_change_their_input() -> Result<()> {
    let x = tensor([-3f32, -0.4, 0.0, 0.4, 1.5, 30.0], ())?;
    macro_rules! in_place {
        ($($name:ident $($number:expr),* => $method:ident($($argument:expr),*))+) => {$(
            let changed = x.copy()?;
            assert!(f::$name(&changed, $($number),*)?.is_same(&changed));
            let expected = x.$method($($argument),*)?.to_vec::<f32>()?;
            assert_eq!(changed.to_vec::<f32>()?, expected, stringify!($name));
        )+};
    }
    in_place! {
        relu_ => relu()
        selu_ => selu()
        threshold_ 0.1, 7 => threshold(0.1, 7)
        elu_ () => elu(1.0)
        celu_ 0.7 => celu(0.7)
        leaky_relu_ () => leaky_relu(0.01)
        hardtanh_ HardtanhOptions::new().max_val(0.6) => hardtanh(HardtanhOptions::new().max_val(0.6))
    }
    Ok(())
}
