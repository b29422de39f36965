//! Modules that go from one place to another, and what is refused on the way.

use warpline::{DType, Error, MemoryFormat, Result, TensorOptions, randn, zeros};
use warpline_nn::{Buffer, Linear, Module, Parameter};

use crate::boxes::SimBox;
use crate::common::{World, worlds};

#[test]
fn a_network_computes_the_same_everywhere() {
    worlds(1, network);
}

fn network(world: &World) -> Result<()> {
    let mut net = Linear::new(4, 3, ())?;
    let x = randn([2, 4], ())?;
    let expected = net.forward(&x)?.to_vec::<f32>()?;
    for at in world.places() {
        net.to(at)?;
        for parameter in net.parameters() {
            assert_eq!(parameter.device(), at);
        }
        let y = net.forward(&x.to(at)?)?;
        assert_eq!(y.device(), at);
        for (a, b) in y.to_vec::<f32>()?.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
    Ok(())
}
/// Of a module floats take the dtype, and what has four dimensions the format.
#[test]
fn a_module_goes_to_a_dtype_and_a_format() {
    #[derive(Module)]
    struct Net {
        linear: Linear,
        filter: Parameter,
        steps: Buffer,
    }
    let filter = Parameter::new(zeros([2, 3, 4, 5], ()).unwrap()).unwrap();
    let steps = Buffer::new(zeros([1], DType::I64).unwrap());
    let mut net = Net { linear: Linear::new(4, 2, ()).unwrap(), filter, steps };
    net.to(TensorOptions::new().dtype(DType::F64).memory_format(MemoryFormat::ChannelsLast))
        .unwrap();
    assert_eq!(net.filter.stride(), [60, 1, 15, 3]);
    assert!(net.parameters().iter().all(|parameter| parameter.dtype() == DType::F64));
    assert_eq!(net.steps.dtype(), DType::I64);
    assert!(net.to(DType::I32).is_err());
}

#[test]
fn a_buffer_that_shares_a_parameters_memory_stays_a_buffer() {
    #[derive(Module)]
    struct Net {
        weight: Parameter,
        kept: Buffer,
    }
    let weight = Parameter::new(zeros([2], ()).unwrap()).unwrap();
    let mut net = Net { kept: Buffer::new(weight.detach()), weight };
    net.to(DType::F64).unwrap();
    assert!(net.weight.requires_grad() && !net.kept.requires_grad());
    assert_eq!(net.kept.dtype(), DType::F64);
}

#[test]
fn what_is_refused_names_the_call_and_the_parameter() {
    let error = Linear::new(2, 2, ()).unwrap().to("cuda:x").unwrap_err();
    assert!(error.to_string().starts_with("Module::to: "), "{error}");
    SimBox::lazy(1).enter(|| {
        let mut linear = Linear::new(3, 2, ())?;
        let error = linear.share_memory().unwrap_err();
        assert!(
            matches!(&error, Error::CannotShare { reason, .. } if reason.contains("weight: ")),
            "{error}"
        );
        assert!(!linear.parameters()[0].is_shared());
        Ok(())
    });
}
