//! Device memory: opaque addresses, what lives there, and the host memory behind it.

use std::collections::BTreeMap;

use super::CallKind;
use super::backing::{Mapping, MemoryFile, bytes_at, fill, in_pages};
use super::host::HostRange;
use super::state::{State, error};
use super::usage::Overrun;
use super::vmm::Mapped;
use crate::*;

/// Each device's addresses start at a multiple of this. They are not canonical on any host, so
/// host code that touches one faults.
pub(super) const DEVICE_SPACE: u64 = 1 << 50;

/// What allocations are rounded up to.
const ALLOCATION_UNIT: usize = 512;

const REDZONE: usize = 4096;
const REDZONE_BYTE: u8 = 0xfb;

pub(super) struct Memory {
    pub(super) regions: BTreeMap<u64, Region>,
    pub(super) host: BTreeMap<usize, HostRange>,
    /// Freed page-locked memory: kept inaccessible, so that its addresses never mean anything else.
    pub(super) freed_host: BTreeMap<usize, Mapping>,
    pub(super) file: Option<MemoryFile>,
    next: Vec<u64>,
    redzones: bool,
}

/// A range of device addresses in use.
pub(super) struct Region {
    pub(super) device: usize,
    pub(super) base: u64,
    pub(super) bytes: usize,
    pub(super) kind: Kind,
    /// Made when first touched. A reservation's is made with it.
    pub(super) backing: Option<Mapping>,
}

pub(super) enum Kind {
    /// `cuMemAlloc`.
    Alloc { freeing: bool },
    /// From a pool; live from when its allocation runs until its free runs.
    Pool { pool: u64, live: bool, freeing: bool },
    /// `cuMemAddressReserve`, with its mappings by offset.
    Reservation(BTreeMap<usize, Mapped>),
}

impl Kind {
    /// Whether a stream was already given the free.
    pub(super) fn freeing(&self) -> bool {
        matches!(self, Self::Alloc { freeing: true } | Self::Pool { freeing: true, .. })
    }
}

/// On whose behalf memory is touched.
#[derive(Clone, Copy)]
pub(super) enum User {
    /// A kernel on a device.
    Kernel(usize),
    /// A copy or memset, which reaches any device's memory.
    Copy,
}

pub(super) fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALLOCATION_UNIT)
}

impl Memory {
    pub(super) fn new(devices: usize, redzones: bool) -> Self {
        let next = (0..devices).map(|d| (d as u64 + 1) * DEVICE_SPACE + (2 << 20)).collect();
        Self {
            regions: BTreeMap::new(),
            host: BTreeMap::new(),
            freed_host: BTreeMap::new(),
            file: None,
            next,
            redzones,
        }
    }

    /// Addresses that were never used before, with a gap after them.
    pub(super) fn fresh_range(&mut self, device: usize, bytes: usize, align: u64) -> Option<u64> {
        let base = self.next[device].checked_next_multiple_of(align)?;
        let end = base.checked_add(bytes as u64)?.checked_add(ALLOCATION_UNIT as u64)?;
        if end >= (device as u64 + 2) * DEVICE_SPACE {
            return None;
        }
        self.next[device] = end;
        Some(base)
    }

    pub(super) fn insert(&mut self, device: usize, base: u64, bytes: usize, kind: Kind) {
        self.regions.insert(base, Region { device, base, bytes, kind, backing: None });
    }

    /// The region that holds all of a range.
    pub(super) fn region(&self, address: u64, bytes: usize) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        let end = address.checked_add(bytes as u64)?;
        (end <= region.base + region.bytes as u64 && address < region.base + region.bytes as u64)
            .then_some(region)
    }

    /// Whether a range overlaps page-locked memory that the driver allocated.
    pub(super) fn is_own_host(&self, address: usize, bytes: usize) -> bool {
        let before = self.host.range(..address.saturating_add(bytes)).rev();
        before.take_while(|(base, r)| *base + r.bytes > address).any(|(_, r)| r.owned.is_some())
    }

    /// Whether an address is in memory of the program that was registered.
    pub(super) fn is_registered(&self, address: usize) -> bool {
        let range = self.host.range(..=address).next_back();
        range.is_some_and(|(base, r)| *base + r.bytes > address && r.owned.is_none())
    }

    /// Whether a range overlaps a freed or live page-locked range, and which.
    pub(super) fn host_range(&self, address: usize, bytes: usize) -> HostOverlap {
        let end = address.saturating_add(bytes);
        if let Some((&base, range)) = self.host.range(..end).next_back()
            && base + range.bytes > address
        {
            let inside = base <= address && end <= base + range.bytes;
            return if inside { HostOverlap::Inside } else { HostOverlap::Partly };
        }
        if let Some((&base, freed)) = self.freed_host.range(..end).next_back()
            && base + freed.bytes > address
        {
            return HostOverlap::Freed;
        }
        HostOverlap::None
    }
}

/// How a host range lies to the page-locked ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostOverlap {
    None,
    Inside,
    Partly,
    Freed,
}

impl Region {
    /// The host address of an offset, mapping memory if this is the first touch.
    fn host_address(&mut self, offset: u64, redzones: bool) -> Option<usize> {
        if matches!(self.kind, Kind::Reservation(_)) {
            return Some(self.backing.as_ref()?.base + offset as usize);
        }
        if self.backing.is_none() {
            let mapping =
                Mapping::anonymous(in_pages(self.bytes)?.checked_add(2 * REDZONE)?).ok()?;
            if redzones {
                fill(mapping.base, REDZONE, REDZONE_BYTE);
                let tail = REDZONE + self.bytes;
                fill(mapping.base + tail, mapping.bytes - tail, REDZONE_BYTE);
            }
            self.backing = Some(mapping);
        }
        Some(self.backing.as_ref()?.base + REDZONE + offset as usize)
    }

    /// The first byte of its redzones that was overwritten.
    pub(super) fn overrun(&self) -> Option<Overrun> {
        let mapping = match (&self.kind, &self.backing) {
            (Kind::Reservation(_), _) | (_, None) => return None,
            (_, Some(mapping)) => mapping,
        };
        // SAFETY: the mapping is live and work runs only under the lock that we hold.
        let all = unsafe { bytes_at(mapping.base, mapping.bytes) };
        let spoiled = |bytes: &[u8]| bytes.iter().position(|&b| b != REDZONE_BYTE);
        let tail = REDZONE + self.bytes;
        let at = spoiled(&all[tail..]).map(|i| tail + i).or_else(|| spoiled(&all[..REDZONE]))?;
        let (device, base, bytes) = (self.device, self.base, self.bytes);
        Some(Overrun { device, base, bytes, offset: at as i64 - REDZONE as i64 })
    }
}

impl State {
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
        self.memory.insert(device, base, bytes, Kind::Alloc { freeing: false });
        // SAFETY: just allocated.
        Ok(unsafe { DevicePtr::from_raw(base) })
    }

    /// Checks that an address is the start of an allocation, whatever device it is of, and which
    /// device freeing it waits for: a pool's memory is freed without waiting.
    pub(super) fn check_free(&self, device: usize, ptr: DevicePtr) -> Result<Option<usize>> {
        match self.memory.regions.get(&ptr.addr()) {
            Some(Region { kind: Kind::Alloc { freeing: false }, device, .. }) => Ok(Some(*device)),
            Some(Region { kind: Kind::Pool { freeing: false, .. }, .. }) => Ok(None),
            _ => {
                let why = format!("{ptr:?} is not the start of a live allocation");
                Err(error(CallKind::MemFree, CudaCode::INVALID_VALUE, device, &why))
            }
        }
    }

    /// Frees what `check_free` accepted, once what it named is idle.
    pub(super) fn mem_free(&mut self, ptr: DevicePtr) -> Result<()> {
        let Some(region) = self.remove_allocation(ptr.addr()) else { return Ok(()) };
        self.report_overrun(&region, "found when it was freed")
    }

    /// Forgets an allocation.
    pub(super) fn remove_allocation(&mut self, base: u64) -> Option<Region> {
        let region = self.memory.regions.remove(&base)?;
        match region.kind {
            Kind::Pool { pool, .. } => self.pool_credit(pool, region.bytes),
            _ => self.devices[region.device].used -= rounded(region.bytes).unwrap_or(0),
        }
        Some(region)
    }

    /// Turns a spoiled redzone into a sticky error.
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
        self.surface(CallKind::MemFree, region.device)
    }

    /// Looks for a spoiled redzone, and says what was found.
    pub(super) fn note_overrun(&mut self, region: &Region, when: &str) -> Option<String> {
        let overrun = self.memory.redzones.then(|| region.overrun()).flatten()?;
        self.overruns.push(overrun);
        Some(format!("{overrun}, {when}"))
    }

    /// The device that owns a range, if all of it is allocated or mapped.
    pub(super) fn owner(&self, address: u64, bytes: usize) -> Option<usize> {
        let region = self.memory.region(address, bytes.max(1))?;
        match &region.kind {
            Kind::Reservation(mappings) => {
                let offset = (address - region.base) as usize;
                let first = super::vmm::covering(mappings, offset, bytes.max(1))?.next()?;
                Some(self.physical.get(&first.physical)?.device)
            }
            _ => Some(region.device),
        }
    }

    /// Whether a device may set memory, as far as the call looks: unlike a copy, it needs access.
    /// Whether mapped memory is open to it shows when the work runs.
    pub(super) fn may_set(&self, device: usize, address: u64) -> bool {
        let Some(region) = self.memory.region(address, 1) else { return true };
        match region.kind {
            Kind::Alloc { .. } => {
                region.device == device || self.devices[device].peers.contains(&region.device)
            }
            Kind::Pool { pool, .. } => self.pool_allows(pool, device, true),
            Kind::Reservation(_) => true,
        }
    }

    fn pool_allows(&self, pool: u64, device: usize, write: bool) -> bool {
        self.pools.get(&pool).is_some_and(|pool| pool.allows(device, write))
    }

    /// The host address behind a range of device addresses, or why it may not be touched now.
    pub(super) fn locate(
        &mut self,
        address: u64,
        bytes: usize,
        user: User,
        write: bool,
    ) -> Result<usize, String> {
        if address < DEVICE_SPACE {
            return match self.memory.host_range(address as usize, bytes) {
                HostOverlap::Inside => Ok(address as usize),
                _ => Err(format!("{address:#x} is neither device nor page-locked host memory")),
            };
        }
        let outside = || format!("{bytes} bytes at {address:#x} do not lie in live memory");
        let region = self.memory.region(address, bytes).ok_or_else(outside)?;
        let may = match &region.kind {
            Kind::Pool { live: false, .. } => {
                return Err(format!(
                    "the pool's memory at {address:#x} is not allocated at this point of stream order"
                ));
            }
            Kind::Pool { pool, .. } => match user {
                User::Copy => true,
                User::Kernel(d) => self.pool_allows(*pool, d, write),
            },
            Kind::Alloc { .. } => match user {
                User::Copy => true,
                User::Kernel(d) => {
                    d == region.device || self.devices[d].peers.contains(&region.device)
                }
            },
            Kind::Reservation(mappings) => {
                let offset = (address - region.base) as usize;
                let mut covering = super::vmm::covering(mappings, offset, bytes)
                    .ok_or_else(|| format!("{bytes} bytes at {address:#x} are not all mapped"))?;
                covering.all(|mapped| mapped.allows(user, write))
            }
        };
        if !may {
            let who = match user {
                User::Kernel(d) => format!("cuda:{d}"),
                User::Copy => "a copy".into(),
            };
            return Err(format!("{who} has no access to {address:#x}, of cuda:{}", region.device));
        }
        let redzones = self.memory.redzones;
        let base = region.base;
        let region = self.memory.regions.get_mut(&base).ok_or_else(outside)?;
        region
            .host_address(address - base, redzones)
            .ok_or_else(|| "the host has no memory to back this allocation".into())
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
