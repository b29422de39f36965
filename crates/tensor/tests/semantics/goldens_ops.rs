//! Every op that exists against PyTorch's outputs, on each kind of device. The folder may be
//! chosen with `WARPLINE_GOLDENS`; its form is described in `tests/goldens/README.md`.

use warpline::{Device, SyncPolicy};

use crate::{common, goldens_suite};

#[test]
fn cpu() {
    common::cpu(|_| {
        goldens_suite::run(Device::Cpu);
        Ok(())
    });
}

#[test]
fn simulated_cuda() {
    common::worlds(1, |world| {
        goldens_suite::run(Device::cuda(world.devices - 1));
        Ok(())
    });
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_goldens() {
    common::gpu(1, SyncPolicy::Auto, |_| {
        goldens_suite::run(Device::cuda(0));
        Ok(())
    });
}
