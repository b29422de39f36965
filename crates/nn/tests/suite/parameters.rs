//! Tests that a parameter or buffer is accepted wherever a tensor is accepted.

use warpline::functional::{LayerNormOptions, layer_norm, linear};
use warpline::{DType, Result, Scalar, cat, einsum, expr, ones, stack, tensor, tensor as make};
use warpline_nn::{Apply, Buffer, Linear, Module, Parameter, ReLU};
use warpline_runtime::{bf16, f16};

#[test]
fn a_converted_parameter_is_a_tensor_and_the_parameter_stays() -> Result<()> {
    let mut net = Linear::new(2, 3, ())?;
    let double = net.weight.to(DType::F64)?;
    assert_eq!((double.dtype(), net.weight.dtype()), (DType::F64, DType::F32));
    assert!(!double.is_leaf() && net.weight.is_leaf());
    double.sum(())?.backward()?;
    assert!(net.weight.grad().is_some());
    let buffer = Buffer::new(ones([2], ())?);
    assert_eq!((buffer.to(DType::F64)?.dtype(), buffer.dtype()), (DType::F64, DType::F32));
    // A module is converted in place.
    net.to(DType::F64)?;
    assert_eq!(net.weight.dtype(), DType::F64);
    Ok(())
}

#[test]
fn a_parameter_is_an_argument_of_every_kind() -> Result<()> {
    let x = make([[1f32, 2.0], [3.0, 4.0]], ())?;
    let p = Parameter::new(tensor([[1f32, 0.0], [0.0, 2.0]], ())?)?;
    let row = Buffer::new(tensor([10f32, 20.0], ())?);
    let values = |t: Result<warpline::Tensor>| t?.detach().flatten(())?.to_vec::<f32>();
    // Methods.
    assert_eq!(values(x.add(&p))?, [2.0, 2.0, 3.0, 6.0]);
    assert_eq!(values(x.mul(&row))?, [10.0, 40.0, 30.0, 80.0]);
    assert_eq!(values(p.mul(&row))?, [10.0, 0.0, 0.0, 40.0]);
    assert_eq!(values(x.matmul(&p))?, [1.0, 4.0, 3.0, 8.0]);
    assert_eq!(values(x.maximum(&p))?, [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(values(x.pow(&p))?, [1.0, 1.0, 1.0, 16.0]);
    assert_eq!(values(x.clamp(&p, &row))?, [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(values(x.lerp(&p, 0.5))?, [1.0, 1.0, 1.5, 3.0]);
    assert!(x.gt(&p)?.any(())?.item::<bool>()?);
    // Functions.
    assert_eq!(values(linear(&x, &p, &row))?, [11.0, 24.0, 13.0, 28.0]);
    let options = LayerNormOptions::new().weight(&row).bias(&row);
    assert_eq!(layer_norm(&x, [2], options)?.size(), [2, 2]);
    // Lists.
    assert_eq!(cat(&[&x, &p], 0)?.size(), [4, 2]);
    assert_eq!(cat(&[&p, &p], 0)?.size(), [4, 2]);
    assert_eq!(cat(&[p.clone(), p.clone()], 0)?.size(), [4, 2]);
    assert_eq!(stack(&[&row, &row], 0)?.size(), [2, 2]);
    assert_eq!(einsum("ij,jk->ik", &[&p, &p])?.size(), [2, 2]);
    // Operators and formulas.
    assert_eq!(values(&x + &p)?, [2.0, 2.0, 3.0, 6.0]);
    assert_eq!(values(&p * &row)?, [10.0, 0.0, 0.0, 40.0]);
    assert_eq!(values(&p * &p)?, [1.0, 0.0, 0.0, 4.0]);
    assert_eq!(values(&p - x.clone())?, [0.0, -2.0, -3.0, -2.0]);
    assert_eq!(values(x.clone() / &row)?, [0.1, 0.1, 0.3, 0.2]);
    assert_eq!(values(2.0 * &p)?, [2.0, 0.0, 0.0, 4.0]);
    assert_eq!(values(1 - &p)?, [0.0, 1.0, 1.0, -1.0]);
    assert_eq!((&p * 2)?.sum(())?.item::<f32>()?, 6.0);
    assert_eq!((&p % 1.5)?.sum(())?.item::<f32>()?, 1.5);
    assert_eq!(values(expr!(x * p + row))?, [11.0, 20.0, 10.0, 28.0]);
    // Indices, and the input of a module.
    let index = Buffer::new(tensor([1i64], ())?);
    assert_eq!(values(x.i(&index))?, [3.0, 4.0]);
    assert_eq!(values(x.i((.., &index)))?, [2.0, 4.0]);
    assert_eq!(values(p.apply(&ReLU))?, [1.0, 0.0, 0.0, 2.0]);
    Ok(())
}

#[test]
fn numbers_of_every_type_are_operands_of_a_parameter() -> Result<()> {
    let p = Parameter::new(tensor![1.0, 2.0]?)?;
    let values = |t: Result<warpline::Tensor>| t?.detach().to_vec::<f32>();
    assert_eq!(values(-&p)?, [-1.0, -2.0]);
    let n = 2usize;
    assert_eq!(values(&p * 2f32)?, [2.0, 4.0]);
    assert_eq!(values(&p / n)?, [0.5, 1.0]);
    assert_eq!(values(&p - Scalar::Int(1))?, [0.0, 1.0]);
    assert_eq!(values(f16::from_f32(0.5) * &p)?, [0.5, 1.0]);
    assert_eq!(values(bf16::from_f32(2.0) / &p)?, [2.0, 1.0]);
    assert_eq!(values(Scalar::Float(1.5) + &p)?, [2.5, 3.5]);
    let mask = Buffer::new(make([true, false], ())?);
    assert_eq!((!&mask)?.to_vec::<bool>()?, [false, true]);
    // A formula takes a parameter by value, too.
    assert_eq!(values(expr!(p.clone() * 2 + Buffer::new(ones([2], ())?)))?, [3.0, 5.0]);
    Ok(())
}

#[test]
fn a_parameter_converts_to_numbers_and_vectors() -> Result<()> {
    let p = Parameter::new(tensor![[1.5, 2.0]]?)?;
    assert_eq!(Vec::<f32>::try_from(&p)?, [1.5, 2.0]);
    assert_eq!(Vec::<Vec<f32>>::try_from(&p)?, [[1.5, 2.0]]);
    let count = Buffer::new(tensor![4]?);
    assert_eq!((usize::try_from(&count)?, f64::try_from(&count)?), (4, 4.0));
    let error = f32::try_from(&p).unwrap_err();
    assert_eq!((error.op(), error.location().expect("a line").file()), ("item", file!()));
    Ok(())
}
