//! Virtual memory management: reservations, physical memory, mappings, access.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sim::CallKind;
use crate::sim::backing::{HostMapping, MemoryFile};
use crate::sim::state::memory::{Region, RegionKind};
use crate::sim::state::vmm::{GRANULARITY, MappedRange, PhysicalBacking, PhysicalState, aligned};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn mem_granularity(&self, device: usize) -> Result<usize> {
        self.has_virtual_memory(CallKind::MemGranularity, device).map(|()| GRANULARITY)
    }

    /// Returns an error for a device without virtual memory. All calls that create virtual memory
    /// check this first.
    pub(super) fn has_virtual_memory(&self, call: CallKind, device: usize) -> Result<()> {
        if self.devices[device].properties.virtual_memory_management {
            return Ok(());
        }
        let why = "the simulated device has no virtual memory management";
        Err(error(call, CudaCode::NOT_SUPPORTED, device, why))
    }

    pub(super) fn address_reserve(&mut self, device: usize, bytes: usize) -> Result<DevicePtr> {
        let call = CallKind::AddressReserve;
        self.has_virtual_memory(call, device)?;
        if !aligned(bytes) {
            return Err(self.not_a_multiple(call, device, bytes));
        }
        let full = || error(call, CudaCode::OUT_OF_MEMORY, device, "no address range is left");
        let mapping = isize::try_from(bytes)
            .ok()
            .and_then(|_| HostMapping::inaccessible(bytes).ok())
            .ok_or_else(full)?;
        let base = self.memory.fresh_range(device, bytes, GRANULARITY as u64).ok_or_else(full)?;
        let kind = RegionKind::Reservation(BTreeMap::new());
        let region = Region { device, base, bytes, kind, backing: Some(mapping) };
        self.memory.regions.insert(base, region);
        // SAFETY: this driver has just reserved the addresses.
        Ok(unsafe { DevicePtr::from_raw(base) })
    }

    pub(super) fn not_a_multiple(
        &self,
        call: CallKind,
        device: usize,
        bytes: usize,
    ) -> DriverError {
        let why = format!("{bytes} bytes are not a positive multiple of {GRANULARITY}");
        error(call, CudaCode::INVALID_VALUE, device, &why)
    }

    pub(super) fn address_free(
        &mut self,
        device: usize,
        ptr: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        let refuse = |why| Err(error(CallKind::AddressFree, CudaCode::INVALID_VALUE, device, why));
        let region = self.memory.regions.get(&ptr.addr());
        match region.map(|r| (r, &r.kind)) {
            Some((region, RegionKind::Reservation(mappings))) if region.bytes == bytes => {
                if !mappings.is_empty() {
                    return refuse("something is still mapped there");
                }
                self.memory.regions.remove(&ptr.addr());
                Ok(())
            }
            _ => refuse("not a whole reservation"),
        }
    }

    pub(super) fn mem_create(&mut self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        let call = CallKind::MemCreate;
        self.has_virtual_memory(call, device)?;
        if !aligned(bytes) {
            return Err(self.not_a_multiple(call, device, bytes));
        }
        self.charge(call, device, bytes)?;
        let offset = match &mut self.memory.file {
            Some(file) => file.extend(bytes),
            none => MemoryFile::new().and_then(|file| none.insert(file).extend(bytes)),
        };
        let Ok(offset) = offset else {
            self.devices[device].used -= bytes;
            return Err(error(
                call,
                CudaCode::OUT_OF_MEMORY,
                device,
                "the host has no memory file",
            ));
        };
        Ok(self.add_physical(PhysicalState::new(device, bytes, PhysicalBacking::Own(offset))))
    }

    pub(super) fn add_physical(&mut self, physical: PhysicalState) -> PhysicalHandle {
        let (id, device) = (self.fresh(), physical.device);
        if let PhysicalBacking::Shared { file, .. } = &physical.backing {
            self.shared_files.insert(id, Arc::clone(file));
        }
        self.physical.insert(id, physical);
        // SAFETY: this driver has just created the object.
        unsafe { PhysicalHandle::from_raw(device, id) }
    }

    pub(super) fn mem_release(&mut self, handle: PhysicalHandle) -> Result<()> {
        match self.physical.get_mut(&handle.raw()) {
            Some(physical) if !physical.released => physical.released = true,
            _ => {
                let call = CallKind::MemRelease;
                return Err(error(call, CudaCode::INVALID_VALUE, handle.device(), "not live"));
            }
        }
        self.drop_physical(handle.raw());
        Ok(())
    }

    /// Frees the memory if it is released and not mapped.
    fn drop_physical(&mut self, id: u64) {
        let Some(physical) = self.physical.get(&id) else { return };
        if !physical.released || physical.mappings > 0 {
            return;
        }
        // Imported memory is counted in the process that created it.
        if !matches!(physical.backing, PhysicalBacking::Shared { imported: true, .. }) {
            self.devices[physical.device].used -= physical.bytes;
        }
        if let (PhysicalBacking::Own(offset), Some(file)) = (&physical.backing, &self.memory.file) {
            file.punch(*offset, physical.bytes);
        }
        self.physical.remove(&id);
        self.shared_files.remove(&id);
    }

    pub(super) fn mem_map(
        &mut self,
        ptr: DevicePtr,
        bytes: usize,
        offset: usize,
        handle: PhysicalHandle,
    ) -> Result<()> {
        let call = CallKind::MemMap;
        let device = handle.device();
        let refuse = |why: &str| Err(error(call, CudaCode::INVALID_VALUE, device, why));
        if !aligned(bytes) {
            return Err(self.not_a_multiple(call, device, bytes));
        }
        let Some(physical) = self.physical.get(&handle.raw()).filter(|p| !p.released) else {
            return refuse("the physical memory is not live");
        };
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= physical.bytes);
        if !fits {
            let why = "the range does not lie inside the physical memory";
            return Err(error(call, CudaCode::NOT_SUPPORTED, device, why));
        }
        if !ptr.addr().is_multiple_of(GRANULARITY as u64) {
            return Err(self.not_a_multiple(call, device, bytes));
        }
        if offset != 0 {
            return refuse("the driver only maps from offset 0");
        }
        let Some(physical) = self.physical.get_mut(&handle.raw()) else {
            return refuse("the physical memory is not live");
        };
        let base = self.memory.region(ptr.addr(), bytes).map(|r| r.base);
        let region = base.and_then(|base| self.memory.regions.get_mut(&base));
        let Some(Region {
            base, kind: RegionKind::Reservation(mappings), backing: Some(host), ..
        }) = region
        else {
            return refuse("the addresses are not reserved");
        };
        let at = (ptr.addr() - *base) as usize;
        let before = mappings.range(..at + bytes).next_back();
        if before.is_some_and(|(&start, mapped)| start + mapped.bytes > at) {
            return refuse("something is already mapped there");
        }
        let placed = match (&physical.backing, &self.memory.file) {
            (PhysicalBacking::Own(offset), Some(file)) => {
                host.map_file(at, bytes, file, *offset).is_ok()
            }
            (PhysicalBacking::Own(_), None) => false,
            (PhysicalBacking::Shared { file, .. }, _) => {
                host.map_file(at, bytes, &file.file, 0).is_ok()
            }
        };
        if !placed {
            return Err(error(call, CudaCode::MAP_FAILED, device, "the host cannot map it"));
        }
        physical.mappings += 1;
        let access = BTreeMap::new();
        mappings.insert(at, MappedRange { physical: handle.raw(), bytes, access });
        Ok(())
    }

    /// Returns the reservation of a range, and the starts of the mappings that together are exactly
    /// the range.
    fn whole_mappings(&self, ptr: DevicePtr, bytes: usize) -> Option<(u64, Vec<usize>)> {
        let region = self.memory.region(ptr.addr(), bytes)?;
        let RegionKind::Reservation(mappings) = &region.kind else { return None };
        let at = (ptr.addr() - region.base) as usize;
        let end = at + bytes;
        let mut reached = at;
        let mut starts = Vec::new();
        while reached < end {
            reached += mappings.get(&reached).map(|m| m.bytes).inspect(|_| starts.push(reached))?;
        }
        (reached == end && !starts.is_empty()).then_some((region.base, starts))
    }

    pub(super) fn mem_set_access(
        &mut self,
        device: usize,
        ptr: DevicePtr,
        bytes: usize,
        access: &[(usize, MemAccess)],
    ) -> Result<()> {
        let call = CallKind::MemSetAccess;
        let refuse = |code, why: &str| Err(error(call, code, device, why));
        if let Some(&(bad, _)) = access.iter().find(|(d, _)| *d >= self.devices.len()) {
            return Err(DriverError::InvalidDevice { device: bad, count: self.devices.len() });
        }
        let Some((base, starts)) = self.whole_mappings(ptr, bytes) else {
            return refuse(CudaCode::INVALID_VALUE, "not exactly a run of whole mappings");
        };
        let Some(Region { kind: RegionKind::Reservation(mappings), .. }) =
            self.memory.regions.get(&base)
        else {
            return Ok(());
        };
        for start in &starts {
            let owner = mappings.get(start).and_then(|m| self.physical.get(&m.physical));
            let Some(owner) = owner.map(|p| p.device) else { continue };
            if access.iter().any(|&(d, a)| a != MemAccess::None && !self.linked(d, owner)) {
                return refuse(
                    CudaCode::INVALID_DEVICE,
                    "a device has no link to the memory's device",
                );
            }
        }
        let Some(Region { kind: RegionKind::Reservation(mappings), .. }) =
            self.memory.regions.get_mut(&base)
        else {
            return Ok(());
        };
        for start in starts {
            if let Some(mapped) = mappings.get_mut(&start) {
                mapped.access.extend(access.iter().copied());
            }
        }
        Ok(())
    }

    /// Returns the reservation of a range, and the starts of the mappings in the range. Returns
    /// `None` if a mapping crosses an end of the range.
    fn mappings_within(&self, ptr: DevicePtr, bytes: usize) -> Option<(u64, Vec<usize>)> {
        let region = self.memory.region(ptr.addr(), bytes).filter(|_| aligned(bytes))?;
        let RegionKind::Reservation(mappings) = &region.kind else { return None };
        let at = (ptr.addr() - region.base) as usize;
        let end = at + bytes;
        let before = mappings.range(..at).next_back();
        let last = mappings.range(..end).next_back();
        let inside = at.is_multiple_of(GRANULARITY)
            && before.is_none_or(|(start, m)| start + m.bytes <= at)
            && last.is_none_or(|(start, m)| start + m.bytes <= end);
        inside.then(|| (region.base, mappings.range(at..end).map(|(&start, _)| start).collect()))
    }

    /// Unmaps all mappings in the range. Other addresses in the range stay as they are.
    pub(super) fn mem_unmap(&mut self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()> {
        let Some((base, starts)) = self.mappings_within(ptr, bytes) else {
            let why = "not a range of a reservation with whole mappings";
            return Err(error(CallKind::MemUnmap, CudaCode::INVALID_VALUE, device, why));
        };
        for start in starts {
            let Some(Region {
                kind: RegionKind::Reservation(mappings), backing: Some(host), ..
            }) = self.memory.regions.get_mut(&base)
            else {
                continue;
            };
            let Some(mapped) = mappings.remove(&start) else { continue };
            host.make_inaccessible(start, mapped.bytes);
            if let Some(physical) = self.physical.get_mut(&mapped.physical) {
                physical.mappings -= 1;
            }
            self.drop_physical(mapped.physical);
        }
        Ok(())
    }
}
