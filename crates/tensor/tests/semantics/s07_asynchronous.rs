//! Tests of row S7: ops are enqueued and return before they run, and the results are the same as if
//! each op had run at once.

use warpline::{DType, Device, Result, RuntimeConfig, arange, cuda, full, ones};
use warpline_cuda_sys_safe::sim::CallKind;

use crate::boxes::SimBox;
use crate::common::World;

crate::rows! {
    schedules(1) s07_results_look_sequential gpu_s07_results_look_sequential => sequential;
}

/// In-place ops, views and fills whose order matters. All numbers are exact.
fn program(device: Device) -> Result<Vec<f32>> {
    let a = arange(48, (DType::F32, device))?;
    let b = (&a + 1.0)?;
    let c = (&b * &a)?;
    a.add_(&c)?;
    c.fill_(2.0)?;
    let d = (&a / &c)?;
    b.zero_()?;
    let e = (&d - &b)?.reshape([6, 8])?;
    e.i(1)?.copy_(&e.i(2)?, ())?;
    e.t()?.i(3)?.mul_(0.5)?;
    let f = warpline::cat(&[&e, &e.t()?.reshape([6, 8])?], 0)?;
    d.fill_(-1.0)?; // must not change `e`, which has its own memory
    (&f + &f.sum(0)?)?.to_vec()
}

fn sequential(world: &World) -> Result<()> {
    let expected = program(Device::Cpu)?;
    for device in 0..world.devices {
        assert_eq!(program(Device::cuda(device))?, expected);
    }
    Ok(())
}

#[test]
fn s07_nothing_runs_before_something_waits() {
    for devices in 1..=3 {
        let lazy = SimBox::lazy(devices);
        lazy.enter(|| {
            let a = ones([4], devices - 1)?;
            let launched = lazy.count(CallKind::Launch);
            let waits = lazy.host_waits();
            for _ in 0..10 {
                a.add_(1.0)?;
            }
            assert_eq!(lazy.count(CallKind::Launch), launched + 10);
            assert_eq!(lazy.host_waits(), waits, "enqueueing made the host wait");
            assert!(lazy.sim.pending() >= 10, "only {} are pending", lazy.sim.pending());
            assert_eq!(a.to_vec::<f32>()?, [11.0; 4]);
            assert_eq!(lazy.sim.pending(), 0);
            Ok(())
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s07_ops_return_before_they_run() {
    // A simulated device may run work early, so the test uses the laziest schedule.
    let spec = crate::common::gpu_spec();
    let (spec, n) = if spec.starts_with("sim") { (spec + ",lazy", 16) } else { (spec, 4096) };
    let runtime = warpline::open(&spec, &RuntimeConfig::default()).expect("a GPU");
    warpline::with_runtime(&runtime, || -> Result<()> {
        let a = full([n, n], 1e-3, (DType::F32, "cuda"))?;
        a.matmul(&a)?; // loads the kernels
        cuda::synchronize(())?;
        let products = (0..20).map(|_| a.matmul(&a)).collect::<Result<Vec<_>>>()?;
        assert!(!cuda::current_stream(())?.query()?, "20 products were done at once");
        cuda::synchronize(())?;
        assert!(cuda::current_stream(())?.query()?);
        drop(products);
        Ok(())
    })
    .expect("no failure");
}
