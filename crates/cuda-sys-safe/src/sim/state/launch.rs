//! Enqueued kernel launches and their operands.

use std::panic::Location;

use smallvec::SmallVec;

use crate::*;

/// A launch that outlives its call.
pub(crate) struct OwnedLaunch {
    pub(crate) op: &'static str,
    pub(crate) host: HostKernel,
    pub(crate) operands: Vec<LaunchOperand>,
    pub(crate) location: &'static Location<'static>,
    params: Vec<u128>,
    param_bytes: usize,
}

/// A footprint that outlives its call.
pub(crate) struct LaunchOperand {
    pub(crate) ptr: u64,
    pub(crate) item_size: usize,
    pub(crate) sizes: SmallVec<[usize; 6]>,
    pub(crate) strides: SmallVec<[isize; 6]>,
    pub(crate) access: Access,
    /// First byte and byte after the last, as offsets from `ptr`. Both are equal if there is no
    /// element.
    pub(crate) hull: (i64, i64),
}

impl LaunchOperand {
    pub(crate) fn bytes(&self) -> usize {
        (self.hull.1 - self.hull.0) as usize
    }

    /// Returns the lowest address of the operand.
    pub(crate) fn low(&self) -> u64 {
        self.ptr.wrapping_add_signed(self.hull.0)
    }
}

impl OwnedLaunch {
    pub(crate) fn new(launch: &Launch<'_>) -> Self {
        let mut params = vec![0u128; launch.params.len().div_ceil(16)];
        bytemuck::cast_slice_mut(&mut params)[..launch.params.len()].copy_from_slice(launch.params);
        let operands = launch.footprints.iter().map(|f| LaunchOperand {
            ptr: f.ptr.addr(),
            item_size: f.item_size,
            sizes: f.sizes.into(),
            strides: f.strides.into(),
            access: f.access,
            hull: f.hull(),
        });
        Self {
            op: launch.op,
            host: launch.host,
            operands: operands.collect(),
            location: launch.location,
            params,
            param_bytes: launch.params.len(),
        }
    }

    /// Runs the CPU implementation.
    ///
    /// # Safety
    /// The pointers are valid for the operands, and no other code accesses the operands.
    pub(crate) unsafe fn call(&self, pointers: &[*mut u8]) {
        let params = &bytemuck::cast_slice::<u128, u8>(&self.params)[..self.param_bytes];
        // SAFETY: the caller guarantees valid pointers, which no other code accesses. The
        // parameters are those of the launch.
        unsafe { (self.host)(&HostLaunch { pointers, params, parallel: false }) }
    }
}
