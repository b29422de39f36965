//! Short texts: device names, settings, options of the allocator.

use std::sync::{Arc, LazyLock};

use warpline::Device;
use warpline_alloc::{AllocatorConfig, CudaAllocator, CudaBackend};
use warpline_cuda_sys_safe::Driver;
use warpline_cuda_sys_safe::owned::Stream;

/// A simulated device for allocators.
pub(crate) static DRIVER: LazyLock<Arc<dyn Driver>> = LazyLock::new(|| {
    warpline_cuda_sys_safe::open(Some("sim:1,memory=1GiB"), None).expect("a simulated device")
});

/// Parses the name of a device. The printed name of a device is the same device.
pub(crate) fn device(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match text.parse::<Device>() {
        Ok(device) => assert_eq!(device.to_string().parse::<Device>().ok(), Some(device)),
        Err(error) => drop(error.to_string()),
    }
}

/// Parses options of the allocator. Valid options make an allocator that serves requests or refuses them.
pub(crate) fn allocator_options(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match AllocatorConfig::parse(text) {
        Ok(config) => {
            let allocator = CudaAllocator::new(CudaBackend::new(DRIVER.clone(), 0), config);
            let stream = Stream::default_of(&DRIVER, 0);
            let sizes = [1, 3 << 20, 40 << 20, 1 << 20];
            let blocks: Vec<_> =
                sizes.iter().map(|size| allocator.malloc(*size, &stream)).collect();
            drop(blocks);
            let _ = allocator.malloc(2 << 20, &stream);
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Reads settings of the form `NAME=VALUE`, one a line, as if they were the environment.
pub(crate) fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let variables: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let runtime = warpline::__from_variables(&variables);
    if let Err(error) = runtime.devices() {
        drop(error.to_string());
    }
    if let Err(error) = warpline_parallel::distributed::__check_variables(&variables) {
        drop(error.to_string());
    }
}
