//! Tests that compare the results of all ops with PyTorch's, on each kind of device.
//! `WARPLINE_GOLDENS` is the path of another folder of golden files; `tests/goldens/README.md`
//! describes the format.

use warpline::{Device, SyncPolicy};

use crate::{common, goldens_suite};

#[test]
fn ops_on_the_cpu_agree_with_pytorch() {
    common::cpu(|_| {
        goldens_suite::run(Device::Cpu);
        Ok(())
    });
}

#[test]
fn ops_on_a_simulated_gpu_agree_with_pytorch() {
    common::worlds(1, |world| {
        goldens_suite::run(Device::cuda(world.devices - 1));
        Ok(())
    });
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_ops_agree_with_pytorch() {
    common::gpu(1, SyncPolicy::Auto, |_| {
        goldens_suite::run(Device::cuda(0));
        Ok(())
    });
}
