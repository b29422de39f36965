//! Options, invalid modules and captures.

use warpline::{Device, ErrorKind, Tensor, cuda, ones, zeros};
use warpline_nn::{Linear, Module};
use warpline_parallel::{DataParallel, DataParallelError, DataParallelOptions};

use super::nets::{Counts, FnModule};
use super::world::{SimBox, TestResult, values};

crate::on_both! {
    Auto([2, 3]) s28_outputs_go_where_they_are_asked_for
        gpu2_s28_outputs_go_where_they_are_asked_for => output_device;
}

fn output_device(devices: usize) -> TestResult {
    let last = devices - 1;
    let cases: [(DataParallelOptions, Device); 6] = [
        (DataParallelOptions::new(), Device::cuda(0)),
        (DataParallelOptions::new().output_device(-1), Device::Cpu),
        (DataParallelOptions::new().output_device("cpu"), Device::Cpu),
        (DataParallelOptions::new().output_device(last), Device::cuda(last)),
        (DataParallelOptions::new().output_device(1), Device::cuda(1)),
        (DataParallelOptions::new().device_ids(&[1, 0]), Device::cuda(1)),
    ];
    for (options, place) in cases {
        let swapped =
            matches!(place, Device::Cuda(Some(1))) && format!("{options:?}").contains("[1");
        let net = DataParallel::new(Counts::new(usize::from(swapped))?, options)?;
        for _ in 0..2 {
            net.module().count.zero_()?;
            let out = net.forward(ones([2 * devices], 0)?)?;
            assert_eq!((out.device(), values(&out)?), (place, vec![3.0; 2 * devices]));
        }
        // Only the replica on the first device updates the module's own buffer.
        assert_eq!(values(&net.module().count)?, [1.0]);
    }
    Ok(())
}

#[test]
fn devices_that_cannot_be_used_are_refused() {
    SimBox::lazy(2).enter(|| {
        let make = |options| DataParallel::new(Counts::new(0).unwrap(), options).map(drop);
        let options = DataParallelOptions::new;
        let twice = make(options().device_ids(&[1, 1])).unwrap_err();
        assert!(matches!(twice.find(), Some(DataParallelError::DeviceIds { .. })), "{twice}");
        assert!(twice.to_string().contains("[1, 1]"), "{twice}");
        let none = make(options().device_ids(&[])).unwrap_err();
        assert!(matches!(none.find(), Some(DataParallelError::DeviceIds { .. })), "{none}");
        for options in [options().device_ids(&[0, 2]), options().output_device(2)] {
            let error = make(options).unwrap_err();
            let named = matches!(error.kind(), ErrorKind::NoSuchDevice { index: 2, count: 2 });
            assert!(named, "{error}");
        }
        let error = make(options().output_device(-2)).unwrap_err();
        let named =
            matches!(error.find(), Some(DataParallelError::OutputDevice { output_device: -2 }));
        assert!(named, "{error}");
        assert!(make(options().output_device("gpu")).is_err());
        Ok(())
    });
}

#[test]
fn parameters_and_buffers_must_be_on_the_first_device() {
    SimBox::lazy(2).enter(|| {
        let message = |found: &str| {
            format!(
                "module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on device: {found}"
            )
        };
        let net = DataParallel::new(Linear::new(1, 1, ())?, ())?;
        let error = net.forward(ones([2, 1], 0)?).unwrap_err();
        assert_eq!(error.find::<DataParallelError>().unwrap().to_string(), message("cpu"));
        // Each forward pass checks the devices of parameters and buffers.
        let mut net = DataParallel::new(Counts::new(0)?, ())?;
        net.forward(ones([2], 0)?)?;
        net.module_mut().count.set(zeros([], 1)?);
        let error = net.forward(ones([2], 0)?).unwrap_err();
        assert_eq!(error.find::<DataParallelError>().unwrap().to_string(), message("cuda:1"));
        net.to("cuda:0")?;
        net.forward(ones([2], 0)?)?;
        Ok(())
    });
}

#[test]
fn data_parallel_is_a_module_with_pytorchs_names() {
    SimBox::lazy(2).enter(|| {
        let names = |tensors: Vec<(String, Tensor)>| -> Vec<String> {
            tensors.into_iter().map(|(name, _)| name).collect()
        };
        let net = DataParallel::new(Counts::new(0)?, ())?;
        assert_eq!(names(net.named_buffers()), ["module.weight", "module.count"]);
        let net = DataParallel::new(Linear::new(1, 1, "cuda:0")?, ())?;
        assert_eq!(names(net.named_parameters()), ["module.weight", "module.bias"]);
        Ok(())
    });
}

#[test]
fn forward_passes_during_a_capture_are_refused_and_the_capture_continues() {
    SimBox::lazy(2).enter(|| {
        let net = DataParallel::new(FnModule(|x: Tensor| x.add(1.0)), ())?;
        let x = ones([4], 0)?;
        cuda::synchronize(0)?;
        let options = DataParallelOptions::new().device_ids(&[0]);
        let alone = DataParallel::new(FnModule(|x: Tensor| x.add(1.0)), options)?;
        let (graph, out) = cuda::graph(|| {
            let refused = net.forward(x.clone()).map(drop).unwrap_err();
            let named = ("DataParallel", Some(file!()));
            assert!(matches!(refused.kind(), ErrorKind::Capture { .. }), "{refused}");
            assert_eq!(
                (refused.op(), refused.location().map(|l| l.file())),
                named,
                "the caller's line"
            );
            alone.forward(x.clone())
        })?;
        graph.replay()?;
        assert_eq!(values(&out)?, [2.0; 4]);
        assert_eq!(values(&net.forward(x)?)?, [2.0; 4]);
        Ok(())
    });
}
