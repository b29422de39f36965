//! Chunks of inputs and their devices.

use warpline::{Device, arange, cuda, empty, full, ones, with_runtime};
use warpline_parallel::{DataParallel, DataParallelOptions};

use super::nets::{Counts, FnModule};
use super::world::{SimBox, TestResult, values};

crate::on_both! {
    Auto([2, 3]) s28_inputs_from_everywhere gpu2_s28_inputs_from_everywhere => from_everywhere;
    Auto([2, 5]) s28_inputs_are_split_along_another_dimension gpu2_s28_inputs_are_split_along_another_dimension => along_another;
    Auto([2, 8]) s28_no_input_is_one_replica gpu2_s28_no_input_is_one_replica => no_input;
}

#[derive(serde::Deserialize)]
struct Golden {
    n: usize,
    devices: usize,
    sizes: Vec<usize>,
}

#[test]
fn chunks_equal_pytorchs_chunks() {
    let goldens: Vec<Golden> =
        serde_json::from_str(include_str!("../../goldens/scatter.json")).unwrap();
    for Golden { n, devices, sizes } in goldens {
        SimBox::lazy(devices).enter(|| {
            let net = DataParallel::new(Counts::new(0)?, ())?;
            let x = arange(n as f64, 0)?.reshape([-1, 1])?;
            let out = net.forward(x)?;
            let seen = net.module().take_seen();
            let at: Vec<usize> = seen.iter().map(|seen| seen.size[0]).collect();
            assert_eq!(at, sizes, "{n} over {devices}");
            // There is one replica per chunk, on the first devices.
            let places: Vec<Device> = seen.iter().map(|seen| seen.device).collect();
            let first: Vec<Device> = (0..sizes.len()).map(Device::cuda).collect();
            assert_eq!(places, first);
            // The first element of each chunk is added to the chunk.
            let mut expected = Vec::new();
            for size in sizes {
                let start = expected.len();
                expected.extend((start..start + size).map(|v| (2 * v + start) as f32));
            }
            assert_eq!((out.size(), out.device()), (&[n, 1][..], Device::cuda(0)));
            assert_eq!(values(&out)?, expected, "in the input's order");
            Ok(())
        });
    }
}

fn from_everywhere(devices: usize) -> TestResult {
    let net = DataParallel::new(Counts::new(0)?, ())?;
    for round in 0..2 {
        net.module().count.zero_()?;
        let x = arange(7.0, ())?;
        let last = devices - 1;
        let x = [x.clone(), x.pin_memory()?, x.to(0)?, x.to(last)?];
        for (i, x) in x.into_iter().enumerate() {
            net.module().count.zero_()?;
            let size = 7usize.div_ceil(devices);
            let expected: Vec<f32> = (0..7).map(|v| (2 * v + v / size * size) as f32).collect();
            let out = net.forward(x)?;
            assert_eq!(values(&out)?, expected, "input {i} of round {round}");
        }
    }
    // An input without elements still has a chunk for each device.
    net.module().take_seen();
    let out = net.forward(empty([0, 3], 0)?)?;
    assert_eq!(out.size(), [0, 3]);
    assert_eq!(net.module().take_seen().len(), devices);
    // An input without dimensions cannot be split.
    assert!(net.forward(ones([], 0)?).is_err());
    Ok(())
}

fn along_another(_: usize) -> TestResult {
    for dim in [1, -1] {
        let options = DataParallelOptions::new().device_ids(&[0, 1]).dim(dim);
        let net = DataParallel::new(Counts::new(0)?, options)?;
        let out = net.forward(arange(10.0, 0)?.reshape([2, 5])?)?;
        let expected = [0.0, 2.0, 4.0, 9.0, 11.0, 10.0, 12.0, 14.0, 19.0, 21.0];
        assert_eq!(values(&out)?, expected);
        let sizes: Vec<_> = net.module().take_seen().into_iter().map(|seen| seen.size).collect();
        assert_eq!(sizes, [[2, 3], [2, 2]]);
    }
    Ok(())
}

fn no_input(devices: usize) -> TestResult {
    let net =
        DataParallel::new(FnModule(|()| full([], cuda::current_device()? as f64, "cuda")), ())?;
    assert_eq!(net.device_ids().len(), devices);
    let out = net.forward(())?;
    assert_eq!(values(&out)?, [0.0], "one replica, whose output is gathered");
    Ok(())
}

/// The host does not wait for devices, and replicas use the caller's streams.
#[test]
fn the_host_does_not_wait_and_the_callers_streams_are_used() {
    let world = SimBox::lazy(3);
    world.enter(|| {
        let net = DataParallel::new(Counts::new(0)?, ())?;
        net.forward(ones([6], 0)?)?;
        let streams = (0..3).map(|d| cuda::Stream::new(d));
        let streams = streams.collect::<warpline::Result<Vec<_>>>()?;
        let inputs = [ones([6], ())?.pin_memory()?, ones([6], 0)?, ones([6], 2)?];
        net.module().take_seen();
        let mut current = streams.iter().map(cuda::stream).collect::<warpline::Result<Vec<_>>>()?;
        // The stream guards leave the last stream's device current.
        assert_eq!(cuda::current_device()?, 2);
        for x in inputs {
            let waits = world.host_waits();
            let out = net.forward(x)?;
            assert_eq!(world.host_waits(), waits);
            let used: Vec<_> = net.module().take_seen().into_iter().map(|s| s.stream).collect();
            assert_eq!(used, streams);
            assert_eq!(cuda::current_device()?, 2, "as it was");
            drop(out);
        }
        while current.pop().is_some() {}
        Ok(())
    });
}

#[test]
fn one_gpu_or_the_cpu_runs_the_module_directly() {
    SimBox::lazy(2).enter(|| {
        // With one GPU, the module is moved and so is the input. The output stays on the GPU.
        let options = DataParallelOptions::new().device_ids(&[1]).output_device("cpu");
        let net = DataParallel::new(Counts::new(0)?, options)?;
        assert_eq!(net.module().weight.device(), Device::cuda(1));
        assert_eq!(net.module().count.device(), Device::cuda(1));
        let net_on_caller = std::thread::current().id();
        let here = FnModule(move |x: warpline::Tensor| {
            assert_eq!(std::thread::current().id(), net_on_caller);
            Ok(x)
        });
        let one = DataParallelOptions::new().device_ids(&[1]);
        let out = DataParallel::new(here, one)?.forward(ones([4], ())?)?;
        assert_eq!(out.device(), Device::cuda(1));
        Ok(())
    });
    let reason =
        warpline_cuda_sys_safe::DriverError::NoDevice { reason: "hidden by a test".into() };
    let runtime = warpline::Runtime::without_cuda(reason, &warpline::RuntimeConfig::default());
    with_runtime(&runtime, || {
        let net = DataParallel::new(warpline_nn::ReLU, ())?;
        assert!(net.device_ids().is_empty());
        let out = net.forward(arange(3.0, ())?)?;
        assert_eq!((values(&out)?, out.device()), (vec![0.0, 1.0, 2.0], Device::Cpu));
        anyhow::Ok(())
    })
    .unwrap();
}
