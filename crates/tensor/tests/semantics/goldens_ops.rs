//! Tests that compare the results of the ops in the golden files with PyTorch's, on each kind of device.
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

/// `footprints::goldens_keep_to_their_footprints` computes the same ops on the first device.
#[test]
fn ops_on_the_last_of_three_simulated_gpus_agree_with_pytorch() {
    common::worlds(3, |world| {
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
