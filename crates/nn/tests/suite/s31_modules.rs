//! S31: a network moved with `.to(device)` computes the same results there.

use warpline::{Device, ErrorKind, Result, Tensor, manual_seed, randn, tensor};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault};
use warpline_nn::{Linear, Module, RNNCell};

use crate::boxes::SimBox;
use crate::common::World;

crate::rows! {
    schedules(1) s31_a_module_moves gpu_s31_a_module_moves => moves;
    schedules(1) s31_linear_agrees_with_the_reference gpu_s31_linear_agrees_with_the_reference
        => linear;
    schedules(1) s31_rnn_agrees_with_the_reference gpu_s31_rnn_agrees_with_the_reference => rnn;
}

fn names(module: &impl Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, _)| name).collect()
}

fn moves(world: &World) -> Result<()> {
    manual_seed(1);
    let mut net = RNNCell::new(3, 4, ())?;
    assert_eq!(names(&net), ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]);
    let values = |net: &mut RNNCell| -> Result<Vec<Vec<f32>>> {
        net.parameters().iter().map(|p| p.to_vec::<f32>()).collect()
    };
    let before = values(&mut net)?;
    assert!(before.iter().all(|p| p.iter().all(|v| v.abs() <= 0.5)));
    for place in world.places().into_iter().rev() {
        net.to(place)?;
        assert!(net.parameters().iter().all(|p| p.device() == place));
        assert_eq!(values(&mut net)?, before);
        // Parameters that are already on the device are not replaced.
        let addresses = |net: &mut RNNCell| -> Vec<u64> {
            net.parameters().iter().map(Tensor::data_ptr).collect()
        };
        let there = addresses(&mut net);
        net.to(place)?;
        assert_eq!(addresses(&mut net), there);
    }
    Ok(())
}

/// Computes `x @ wᵀ + b` in plain Rust, with `x` of `[n, inputs]` and `w` of `[outputs, inputs]`.
fn affine(x: &[f32], w: &[f32], b: &[f32], inputs: usize) -> Vec<f32> {
    x.chunks(inputs)
        .flat_map(|row| {
            w.chunks(inputs).zip(b).map(move |(w, b)| {
                let products = row.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                (products.sum::<f64>() + f64::from(*b)) as f32
            })
        })
        .collect()
}

fn assert_close(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= 1e-5 * e.abs().max(1.0), "element {i} is {a} instead of {e}");
    }
}

fn linear(world: &World) -> Result<()> {
    manual_seed(2);
    let mut net = Linear::new(5, 3, ())?;
    let parameters = net.parameters();
    let (w, b) = (parameters[0].to_vec::<f32>()?, parameters[1].to_vec::<f32>()?);
    assert_eq!(net.weight.size(), [3, 5]);
    let x = randn([2, 4, 5], ())?;
    let expected = affine(&x.to_vec::<f32>()?, &w, &b, 5);
    for place in world.places() {
        net.to(place)?;
        let y = net.forward(&x.to(place)?)?;
        assert_eq!((y.size(), y.device()), (&[2, 4, 3][..], place));
        assert_close(&y.to_vec::<f32>()?, &expected);
        let row = net.forward(&x.to(place)?.i((1, 2))?)?;
        assert_eq!(row.size(), [3]);
        assert_close(&row.to_vec::<f32>()?, &expected[18..21]);
    }
    Ok(())
}

fn rnn(world: &World) -> Result<()> {
    manual_seed(3);
    let mut net = RNNCell::new(3, 4, ())?;
    let p = net.parameters().iter().map(|p| p.to_vec::<f32>()).collect::<Result<Vec<_>>>()?;
    let steps = (0..5).map(|_| randn([2, 3], ())).collect::<Result<Vec<_>>>()?;
    let mut expected = vec![0f32; 8];
    for x in &steps {
        let (a, h) =
            (affine(&x.to_vec::<f32>()?, &p[0], &p[2], 3), affine(&expected, &p[1], &p[3], 4));
        expected = a.iter().zip(&h).map(|(a, h)| (a + h).tanh()).collect();
    }
    for place in world.places() {
        net.to(place)?;
        let mut hidden = None;
        for x in &steps {
            let x = x.to(place)?;
            // As in PyTorch's note, create the hidden state on the device of the input.
            let h = match hidden.take() {
                Some(hidden) => hidden,
                None => net.initial_hidden(&x)?,
            };
            assert_eq!(h.device(), place);
            hidden = Some(net.forward(&x, &h)?);
        }
        assert_close(&hidden.expect("a state").to_vec::<f32>()?, &expected);
    }
    Ok(())
}

#[test]
fn s31_when_one_parameter_cannot_move_none_does() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let mut net = RNNCell::new(3, 4, ())?;
        // Make the copy of the third parameter fail.
        world.sim.inject(Fault::new(CallKind::MemcpyAsync, CudaCode::INVALID_VALUE).after(2));
        assert!(net.to("cuda").is_err());
        assert!(net.parameters().iter().all(|p| p.device() == Device::Cpu));
        net.to("cuda")?;
        let x = tensor([[1f32, 2.0, 3.0]], "cpu")?;
        let error = net.forward(&x, &net.initial_hidden(&x)?).expect_err("x is elsewhere");
        assert!(matches!(error.kind(), ErrorKind::DeviceMismatch { .. }), "{error:?}");
        Ok(())
    });
}
