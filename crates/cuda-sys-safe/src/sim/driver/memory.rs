//! Device memory: allocation, freeing, and queries of addresses.

use crate::sim::CallKind;
use crate::sim::state::memory::{ALLOCATION_UNIT, HostOverlap, Region, RegionKind, rounded};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn mem_alloc(&mut self, device: usize, bytes: usize) -> Result<DevicePtr> {
        let call = CallKind::MemAlloc;
        if bytes == 0 {
            return Err(error(call, CudaCode::INVALID_VALUE, device, "zero bytes"));
        }
        let full = || error(call, CudaCode::OUT_OF_MEMORY, device, "");
        let charged = rounded(bytes).ok_or_else(full)?;
        self.charge(call, device, charged)?;
        let align = if bytes >= 1 << 20 { 2 << 20 } else { ALLOCATION_UNIT as u64 };
        let Some(base) = self.memory.fresh_range(device, bytes, align) else {
            self.devices[device].used -= charged;
            return Err(full());
        };
        self.memory.insert(device, base, bytes, RegionKind::Alloc { freeing: false });
        // SAFETY: this driver has just allocated the memory.
        Ok(unsafe { DevicePtr::from_raw(base) })
    }

    /// Checks that an address is the start of an allocation on any device. Returns the device for
    /// which `cuMemFree` waits; `None` for memory of a pool, which is freed without waiting.
    pub(super) fn check_free(&self, device: usize, ptr: DevicePtr) -> Result<Option<usize>> {
        match self.memory.regions.get(&ptr.addr()) {
            Some(Region { kind: RegionKind::Alloc { freeing: false }, device, .. }) => {
                Ok(Some(*device))
            }
            Some(Region { kind: RegionKind::Pool { freeing: false, .. }, .. }) => Ok(None),
            _ => {
                let why = format!("{ptr:?} is not the start of a live allocation");
                Err(error(CallKind::MemFree, CudaCode::INVALID_VALUE, device, &why))
            }
        }
    }

    /// Frees memory that `check_free` accepted. The caller must have waited for the device that
    /// `check_free` returned.
    pub(super) fn mem_free(&mut self, ptr: DevicePtr) -> Result<()> {
        let Some(region) = self.remove_allocation(ptr.addr()) else { return Ok(()) };
        self.report_overrun(&region, "found when it was freed")
    }

    /// Turns an overwritten redzone into a sticky error.
    pub(super) fn report_overrun(&mut self, region: &Region, when: &str) -> Result<()> {
        let Some(why) = self.note_overrun(region, when) else { return Ok(()) };
        if self.devices[region.device].lost.is_some() {
            return Ok(());
        }
        self.lose(
            region.device,
            CudaError {
                call: CallKind::MemFree.name(),
                code: CudaCode::ILLEGAL_ADDRESS,
                device: Some(region.device),
                detail: Some(why),
                location: None,
            },
        );
        self.report_loss(CallKind::MemFree, region.device)
    }

    /// Returns `true` if a memset of the device may write to the memory. Unlike a copy, a memset
    /// needs access. Access to mapped memory is checked when the work runs.
    pub(super) fn may_set(&self, device: usize, address: u64) -> bool {
        let Some(region) = self.memory.region(address, 1) else { return true };
        match region.kind {
            RegionKind::Alloc { .. } => {
                region.device == device || self.devices[device].peers.contains(&region.device)
            }
            RegionKind::Pool { pool, .. } => self.pool_allows(pool, device, true),
            RegionKind::Reservation(_) => true,
        }
    }

    pub(super) fn mem_info(&self, device: usize) -> MemInfo {
        let total = self.config.capacity;
        MemInfo { free: total - self.devices[device].used, total }
    }

    pub(super) fn pointer_kind(&self, address: u64) -> PointerKind {
        if let Some(device) = self.owner(address, 1) {
            return PointerKind::Device(device);
        }
        match self.memory.host_range(address as usize, 1) {
            HostOverlap::Inside => PointerKind::Pinned,
            _ => PointerKind::Pageable,
        }
    }
}
