//! The properties of the default device.

use crate::DeviceProperties;

/// Total memory of an H200 by `cuMemGetInfo`, in bytes.
pub const H200_TOTAL_MEMORY: usize = 150_110_011_392;

/// Returns the properties of an NVIDIA H200. `index` determines the UUID and the PCI bus, which
/// differ between devices.
#[must_use]
pub fn h200(index: usize) -> DeviceProperties {
    DeviceProperties {
        name: "NVIDIA H200".into(),
        uuid: uuid(index),
        compute_capability: (9, 0),
        total_memory: H200_TOTAL_MEMORY,
        multiprocessor_count: 132,
        max_threads_per_multiprocessor: 2048,
        max_threads_per_block: 1024,
        max_block_dim: [1024, 1024, 64],
        max_grid_dim: [i32::MAX as u32, 65_535, 65_535],
        warp_size: 32,
        shared_memory_per_block: 48 << 10,
        shared_memory_per_block_optin: 227 << 10,
        l2_cache_size: 60 << 20,
        memory_bus: (6144, 3_201_000),
        pci: (0, 0x0f + index as u32, 0),
        virtual_memory_management: true,
        memory_pools: true,
        integrated: false,
    }
}

/// Returns a UUID of pseudo-random bytes. The first two bytes differ between the devices that can
/// be simulated, so that short prefixes identify a device.
fn uuid(index: usize) -> [u8; 16] {
    let mut state = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        *byte = (state >> 56) as u8;
    }
    uuid
}
