//! Tests of autocast regions: nesting, threads and custom functions. `autocast_cache.rs` tests the converted copies of
//! parameters, `registry/autocast.rs` the dtypes of each op.

use std::panic::catch_unwind;

use warpline::amp::{
    AutocastGuard, AutocastOptions, autocast, get_autocast_dtype, is_autocast_available,
    is_autocast_enabled,
};
use warpline::autograd::{Context, Function, Gradients, Modes, ToSave, checkpoint, no_grad};
use warpline::data::{DataLoader, Dataset};
use warpline::functional::{add_layer_norm, binary_cross_entropy, linear};
use warpline::{
    DType, Device, Error, ErrorKind, Result, Tensor, einsum, full, ones, simulated, with_runtime,
};

pub(crate) fn on_gpu(program: impl FnOnce() -> Result<()>) {
    let runtime = simulated(1).unwrap();
    with_runtime(&runtime, program).unwrap_or_else(|e| panic!("{e}"));
}

pub(crate) fn weight(
    sizes: [usize; 2],
    device: impl Into<warpline::TensorOptions>,
) -> Result<Tensor> {
    ones(sizes, device)?.requires_grad_(true)
}

#[test]
fn a_region_of_float32_on_the_cpu_is_disabled() -> Result<()> {
    let half = ones([2, 2], DType::F16)?;
    autocast("cpu", DType::F32, || {
        assert_eq!(half.matmul(&half)?.dtype(), DType::F16);
        assert!(!is_autocast_enabled("cpu")? && get_autocast_dtype("cpu")? == DType::F32);
        Ok(())
    })?;
    on_gpu(|| {
        autocast("cuda", DType::F32, || {
            let half = ones([2, 2], (DType::F16, "cuda"))?;
            assert_eq!(half.matmul(&half)?.dtype(), DType::F32);
            Ok(())
        })
    });
    Ok(())
}

/// In one region, both products share one conversion of the weight, so their gradients are added in
/// `float16`, where 2048 + 1 is 2048. In two regions, they are added in `float32`.
#[test]
fn a_region_records_a_conversion_once_and_the_next_region_again() -> Result<()> {
    let weight = weight([1, 1], ())?;
    let large = full([1, 1], 2048.0, ())?;
    let both = |region: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        region(&large, &weight)?.backward()?;
        let grad = weight.grad().expect("a gradient").item::<f32>();
        weight.set_grad(None)?;
        grad
    };
    let half = |x: &Tensor, w: &Tensor| {
        let region = AutocastOptions::new().dtype(DType::F16);
        autocast("cpu", region, || x.matmul(w)?.add(&ones([1, 1], ())?.matmul(w)?)?.sum(()))
    };
    assert_eq!(both(half)?, 2048.0);
    let apart = |x: &Tensor, w: &Tensor| {
        let product = |x: &Tensor| autocast("cpu", DType::F16, || x.matmul(w));
        product(x)?.to(DType::F32)?.add(&product(&ones([1, 1], ())?)?)?.sum(())
    };
    assert_eq!(both(apart)?, 2049.0);
    Ok(())
}

#[test]
fn a_value_converted_without_gradients_does_not_hide_them_later() -> Result<()> {
    let weight = weight([2, 2], ())?;
    autocast("cpu", (), || {
        no_grad(|| ones([1, 2], ())?.matmul(&weight).map(drop))?;
        assert!(ones([1, 2], ())?.matmul(&weight)?.requires_grad());
        Ok(())
    })
}

#[test]
fn regions_nest_and_a_panic_ends_them() -> Result<()> {
    let (a, b) = (ones([2, 2], ())?, ones([2, 2], ())?);
    let outer = AutocastGuard::new("cpu", ())?;
    assert_eq!(a.matmul(&b)?.dtype(), DType::BF16);
    let inner = || autocast("cpu", AutocastOptions::new().enabled(false), || a.matmul(&b));
    assert_eq!(inner()?.dtype(), DType::F32);
    assert_eq!(autocast("cpu", DType::F16, || a.matmul(&b))?.dtype(), DType::F16);
    let panicked =
        catch_unwind(|| autocast("cpu", DType::F16, || -> Result<()> { panic!("stop") }));
    assert!(panicked.is_err());
    assert_eq!(a.matmul(&b)?.dtype(), DType::BF16);
    drop(outer);
    assert_eq!(a.matmul(&b)?.dtype(), DType::F32);
    Ok(())
}

#[test]
fn a_region_does_not_affect_other_devices_float64_integers_and_in_place_ops() {
    on_gpu(|| {
        let _region = AutocastGuard::new("cuda", ())?;
        assert_eq!(ones([2, 2], ())?.matmul(&ones([2, 2], ())?)?.dtype(), DType::F32);
        let wide = ones([2, 2], (DType::F64, Device::cuda(0)))?;
        assert_eq!(wide.matmul(&wide)?.dtype(), DType::F64);
        let half = ones([2], (DType::F16, Device::cuda(0)))?;
        assert_eq!(half.exp()?.dtype(), DType::F32);
        assert_eq!(half.exp_()?.dtype(), DType::F16);
        assert_eq!(ones([2], (DType::I64, Device::cuda(0)))?.square()?.dtype(), DType::I64);
        Ok(())
    });
}

#[test]
fn a_backward_pass_in_a_region_equals_one_outside() -> Result<()> {
    let gradient = |inside: bool| {
        let weight = full([2, 2], 1.0 / 3.0, ())?.requires_grad_(true)?;
        let loss = full([2, 2], 1.0 / 7.0, ())?.matmul(&weight)?.exp()?.sum(())?;
        if inside {
            autocast("cpu", (), || loss.backward())?;
        } else {
            loss.backward()?;
        }
        weight.grad().expect("a gradient").to_vec::<f32>()
    };
    assert_eq!(gradient(true)?, gradient(false)?);
    Ok(())
}

#[test]
fn a_region_without_a_dtype_inherits_that_of_the_enclosing_region() -> Result<()> {
    let weight = weight([2, 2], ())?;
    let dtype = || ones([2, 2], ())?.matmul(&weight).map(|t| t.dtype());
    let outer = AutocastOptions::new().dtype(DType::F16).cache_enabled(false);
    autocast("cpu", outer, || {
        assert_eq!(autocast("cpu", (), dtype)?, DType::F16);
        let off = AutocastOptions::new().enabled(false);
        autocast("cpu", off, || {
            assert_eq!((dtype()?, get_autocast_dtype("cpu")?), (DType::F32, DType::F16));
            assert_eq!(autocast("cpu", (), dtype)?, DType::F16);
            Ok(())
        })
    })?;
    assert_eq!(autocast("cpu", DType::F32, dtype)?, DType::F32);
    assert_eq!(get_autocast_dtype("cpu")?, DType::BF16);
    Ok(())
}

/// Changes its input in place.
struct Doubles;

impl Function for Doubles {
    const NAME: &'static str = "doubles";
    const CAST_INPUTS: Option<DType> = Some(DType::BF16);

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        inputs[0].mul_(2)?;
        Ok(vec![inputs[0].copy()?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        Ok(grads.iter().cloned().collect())
    }
}

#[test]
fn a_change_of_a_converted_input_does_not_reach_the_parameter() {
    on_gpu(|| {
        let (weight, x) = (weight([2, 2], "cuda")?, ones([1, 2], "cuda")?);
        let product = || autocast("cuda", DType::BF16, || x.matmul(&weight)?.to(DType::F32));
        drop(product()?);
        autocast("cuda", DType::BF16, || Doubles.apply(&[&weight]).map(drop))?;
        assert_eq!(product()?.to_vec::<f32>()?, [2.0; 2]);
        let transposed = || einsum("ij->ji", &[&weight])?.zero_().map(drop);
        autocast("cuda", DType::BF16, || no_grad(transposed))?;
        assert_eq!(product()?.to_vec::<f32>()?, [2.0; 2]);
        Ok(())
    });
}

#[test]
fn a_fused_norm_has_the_dtypes_of_its_parts() {
    on_gpu(|| {
        let x = ones([2, 4], (DType::F16, Device::cuda(0)))?;
        let (norm, sum) = autocast("cuda", (), || add_layer_norm(&x, &x, 4, ()))?;
        assert_eq!((norm.dtype(), sum.dtype()), (DType::F32, DType::F16));
        Ok(())
    });
}

#[test]
fn threads_inherit_regions_only_with_the_modes() -> Result<()> {
    let _region = AutocastGuard::new("cpu", ())?;
    let modes = Modes::current();
    let there = std::thread::spawn(move || {
        let before = is_autocast_enabled("cpu")?;
        let weight = weight([2, 2], ())?;
        let dtype = modes.within(|| ones([1, 2], ())?.matmul(&weight).map(|t| t.dtype()))?;
        Ok::<_, Error>((before, dtype))
    });
    assert_eq!(there.join().expect("no panic")?, (false, DType::BF16));
    Ok(())
}

#[test]
fn a_checkpoint_recomputes_in_the_region_of_the_forward_pass() -> Result<()> {
    let x = full([2, 2], 0.3, ())?.requires_grad_(true)?;
    let f = |x: &[Tensor]| Ok(vec![x[0].matmul(&x[0])?.to(DType::F32)?.exp()?]);
    let region = || autocast("cpu", (), || checkpoint(f, &[&x])?[0].sum(()));
    region()?.backward()?;
    let recomputed = x.grad().expect("a gradient").to_vec::<f32>()?;
    x.set_grad(None)?;
    autocast("cpu", (), || f(std::slice::from_ref(&x))?[0].sum(()))?.backward()?;
    assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, recomputed);
    Ok(())
}

/// Squares a matrix. The backward pass asserts the dtype of its product.
struct Product<const CAST: bool>;

impl<const CAST: bool> Function for Product<CAST> {
    const NAME: &'static str = "product";
    const CAST_INPUTS: Option<DType> = if CAST { Some(DType::F32) } else { None };

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        save.tensor(inputs[0]);
        Ok(vec![inputs[0].matmul(inputs[0])?])
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let (grad, x) = (grads[0].as_ref().expect("a gradient"), context.saved(0)?);
        let product = grad.to(DType::F32)?.matmul(&x.to(DType::F32)?)?;
        let expected = if CAST { DType::F32 } else { DType::BF16 };
        assert_eq!(product.dtype(), expected, "of the region of the forward pass");
        Ok([Some(product)].into_iter().collect())
    }
}

#[test]
fn a_custom_functions_backward_has_the_region_of_its_forward() -> Result<()> {
    let x = ones([2, 2], ())?.requires_grad_(true)?;
    let y = autocast("cpu", (), || Product::<false>.apply(&[&x]))?.remove(0);
    assert_eq!(y.dtype(), DType::BF16);
    y.to(DType::F32)?.sum(())?.backward()?;
    Ok(())
}

#[test]
fn a_custom_function_with_cast_inputs_computes_outside_the_region() -> Result<()> {
    let x = ones([2, 2], DType::BF16)?.requires_grad_(true)?;
    let y = autocast("cpu", (), || Product::<true>.apply(&[&x]))?.remove(0);
    assert_eq!(y.dtype(), DType::F32);
    y.sum(())?.backward()?;
    assert_eq!(x.grad().expect("a gradient").dtype(), DType::BF16);
    assert_eq!(Product::<true>.apply(&[&x])?[0].dtype(), DType::BF16, "outside regions");
    Ok(())
}

#[test]
fn a_linear_layer_in_half_width_gets_float32_gradients() {
    on_gpu(|| {
        let (weight, bias) = (weight([3, 2], "cuda")?, ones([3], "cuda")?.requires_grad_(true)?);
        let x = ones([4, 2], "cuda")?;
        let y = autocast("cuda", DType::BF16, || linear(&x, &weight, &bias))?;
        assert_eq!(y.dtype(), DType::BF16);
        y.to(DType::F32)?.sum(())?.backward()?;
        for parameter in [&weight, &bias] {
            let grad = parameter.grad().expect("a gradient");
            assert_eq!((grad.dtype(), grad.to_vec::<f32>()?[0]), (DType::F32, 4.0));
        }
        Ok(())
    });
}

#[test]
fn bad_regions_are_refused() {
    let refused = autocast("cpu", DType::F64, || Ok(())).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::InvalidArgument { .. }), "{refused}");
    assert!(refused.to_string().contains("f16, bf16 or f32"), "{refused}");
    assert!(is_autocast_available("cuda").unwrap() && is_autocast_available("cpu").unwrap());
    for device in
        [AutocastGuard::new("tpu", ()).unwrap_err(), is_autocast_available("tpu").unwrap_err()]
    {
        assert!(matches!(device.kind(), ErrorKind::InvalidDeviceString { .. }), "{device}");
    }
    on_gpu(|| {
        let half = full([2], 0.5, "cuda")?;
        let refused = autocast("cuda", (), || binary_cross_entropy(&half, &half, ())).unwrap_err();
        assert!(refused.to_string().contains("binary_cross_entropy_with_logits"), "{refused}");
        Ok(())
    });
}

/// A dataset whose only sample is a product.
struct OneProduct;

impl Dataset for OneProduct {
    type Sample = Tensor;

    fn len(&self) -> usize {
        1
    }

    fn get(&self, _: usize) -> Result<Tensor> {
        ones([2, 2], ())?.matmul(&ones([2, 2], ())?)
    }
}

#[test]
fn workers_of_a_loader_are_in_the_region_of_their_epoch() -> Result<()> {
    for workers in [0, 2] {
        let loader = DataLoader::new(OneProduct).num_workers(workers);
        let dtype = || loader.iter()?.next().expect("a batch").map(|batch| batch.dtype());
        assert_eq!(autocast("cpu", DType::BF16, dtype)?, DType::BF16);
        assert_eq!(dtype()?, DType::F32);
    }
    Ok(())
}

#[test]
fn ops_of_the_widest_dtype_count_the_dtype_of_the_region() {
    on_gpu(|| {
        let (half, brain) = (ones([2], (DType::F16, "cuda"))?, ones([2], (DType::BF16, "cuda"))?);
        for (region, operand, result) in [
            (DType::F32, &half, DType::F32),
            (DType::F16, &half, DType::F16),
            (DType::F16, &brain, DType::F32),
        ] {
            let product = autocast("cuda", region, || operand.dot(operand))?;
            assert_eq!(product.dtype(), result, "{} in a region of {region}", operand.dtype());
        }
        // The dtype of a disabled region has no effect.
        let disabled = AutocastOptions::new().dtype(DType::F64).enabled(false);
        assert_eq!(autocast("cuda", disabled, || half.dot(&half))?.dtype(), DType::F16);
        Ok(())
    });
}
