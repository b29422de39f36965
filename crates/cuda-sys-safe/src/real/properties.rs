//! Properties of a device.

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUuuid};

use super::CudaDriver;
use crate::{DeviceProperties, Result};

impl CudaDriver {
    /// Reads all properties from the driver. Needs no context.
    pub(super) fn read_properties(&self, device: usize) -> Result<DeviceProperties> {
        let raw = self.admit("cuDeviceGetAttribute", device)?.raw;
        let number = |attribute: Attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: the pointer is valid for writes.
            let status = unsafe { (self.api.cuDeviceGetAttribute)(&mut value, attribute, raw) };
            self.check("cuDeviceGetAttribute", device, status)?;
            Ok(value as u32)
        };
        use Attribute::*;
        Ok(DeviceProperties {
            name: self.device_name(device, raw)?,
            uuid: self.device_uuid(device, raw)?,
            compute_capability: (
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            total_memory: self.total_memory(device, raw)?,
            multiprocessor_count: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            max_threads_per_multiprocessor: number(
                CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
            )?,
            max_threads_per_block: number(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            max_block_dim: [
                number(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                number(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                number(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            max_grid_dim: [
                number(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                number(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                number(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
            warp_size: number(CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
            shared_memory_per_block: number(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?
                as usize,
            shared_memory_per_block_optin: number(
                CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )? as usize,
            l2_cache_size: number(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
            memory_bus: (
                number(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
                number(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            ),
            pci: (
                number(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
                number(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
                number(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
            ),
            virtual_memory_management: number(
                CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
            )? != 0,
            memory_pools: number(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
            integrated: number(CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        })
    }

    fn device_name(&self, device: usize, raw: i32) -> Result<String> {
        let mut name = [0u8; 256];
        let status =
            // SAFETY: the buffer has the length that is passed.
            unsafe { (self.api.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as i32, raw) };
        self.check("cuDeviceGetName", device, status)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    fn device_uuid(&self, device: usize, raw: i32) -> Result<[u8; 16]> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the pointer is valid for writes.
        let status = unsafe { (self.api.cuDeviceGetUuid_v2)(&mut uuid, raw) };
        self.check("cuDeviceGetUuid_v2", device, status)?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    fn total_memory(&self, device: usize, raw: i32) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the pointer is valid for writes.
        let status = unsafe { (self.api.cuDeviceTotalMem_v2)(&mut bytes, raw) };
        self.check("cuDeviceTotalMem_v2", device, status)?;
        Ok(bytes)
    }
}
