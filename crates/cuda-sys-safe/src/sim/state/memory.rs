//! Device memory and page-locked host memory: addresses in use, and the host memory behind them.

use std::collections::BTreeMap;
use std::fmt;

use super::vmm::MappedRange;
use crate::sim::backing::{HostMapping, MemoryFile, bytes_at, fill, in_pages};

/// Each device's addresses start at a multiple of this number. Hosts map no memory at such high
/// addresses unless a program asks for it, so host code that accesses a device address faults.
pub(crate) const DEVICE_SPACE: u64 = 1 << 50;

/// Granularity of allocations, in bytes.
pub(crate) const ALLOCATION_UNIT: usize = 512;

const REDZONE: usize = 4096;

const REDZONE_BYTE: u8 = 0xfb;

pub(crate) struct MemoryState {
    pub(crate) regions: BTreeMap<u64, Region>,
    pub(crate) host: BTreeMap<usize, HostRange>,
    /// Freed page-locked memory. Kept inaccessible, so that its addresses are never reused.
    pub(crate) freed_host: BTreeMap<usize, HostMapping>,
    pub(crate) file: Option<MemoryFile>,
    next: Vec<u64>,
    pub(crate) redzones: bool,
}

/// A range of device addresses in use.
pub(crate) struct Region {
    pub(crate) device: usize,
    pub(crate) base: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: RegionKind,
    /// Host memory behind the region, mapped on first access. The host memory of a reservation is
    /// mapped at once.
    pub(crate) backing: Option<HostMapping>,
}

pub(crate) enum RegionKind {
    /// `cuMemAlloc`.
    Alloc { freeing: bool },
    /// An allocation of a pool. Live from the time the allocation runs until the free runs.
    Pool { pool: u64, live: bool, freeing: bool },
    /// `cuMemAddressReserve`, with its mappings by offset.
    Reservation(BTreeMap<usize, MappedRange>),
}

impl RegionKind {
    /// Returns `true` if the free has been enqueued.
    pub(crate) fn freeing(&self) -> bool {
        matches!(self, Self::Alloc { freeing: true } | Self::Pool { freeing: true, .. })
    }
}

/// Host memory that the driver knows.
pub(crate) struct HostRange {
    pub(crate) bytes: usize,
    /// The driver's own mapping; `None` for registered memory of the program.
    pub(crate) owned: Option<HostMapping>,
}

/// The relation of a host range to page-locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostOverlap {
    None,
    Inside,
    Partly,
    Freed,
}

pub(crate) fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALLOCATION_UNIT)
}

impl MemoryState {
    pub(crate) fn new(devices: usize, redzones: bool) -> Self {
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

    /// Returns addresses that were never used before, followed by a gap.
    pub(crate) fn fresh_range(&mut self, device: usize, bytes: usize, align: u64) -> Option<u64> {
        let base = self.next[device].checked_next_multiple_of(align)?;
        let end = base.checked_add(bytes as u64)?.checked_add(ALLOCATION_UNIT as u64)?;
        if end >= (device as u64 + 2) * DEVICE_SPACE {
            return None;
        }
        self.next[device] = end;
        Some(base)
    }

    pub(crate) fn insert(&mut self, device: usize, base: u64, bytes: usize, kind: RegionKind) {
        self.regions.insert(base, Region { device, base, bytes, kind, backing: None });
    }

    /// Returns the region that contains all of a range.
    pub(crate) fn region(&self, address: u64, bytes: usize) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        let end = address.checked_add(bytes as u64)?;
        (end <= region.base + region.bytes as u64 && address < region.base + region.bytes as u64)
            .then_some(region)
    }

    /// Returns `true` if a range overlaps page-locked memory that the driver allocated.
    pub(crate) fn is_own_host(&self, address: usize, bytes: usize) -> bool {
        let before = self.host.range(..address.saturating_add(bytes)).rev();
        before.take_while(|(base, r)| *base + r.bytes > address).any(|(_, r)| r.owned.is_some())
    }

    /// Returns `true` if an address is in registered memory of the program.
    pub(crate) fn is_registered(&self, address: usize) -> bool {
        let range = self.host.range(..=address).next_back();
        range.is_some_and(|(base, r)| *base + r.bytes > address && r.owned.is_none())
    }

    /// Returns the relation of a range to live and freed page-locked memory.
    pub(crate) fn host_range(&self, address: usize, bytes: usize) -> HostOverlap {
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

impl Region {
    /// Returns the host address of an offset. Maps memory on first access.
    pub(crate) fn host_address(&mut self, offset: u64, redzones: bool) -> Option<usize> {
        if matches!(self.kind, RegionKind::Reservation(_)) {
            return Some(self.backing.as_ref()?.base + offset as usize);
        }
        if self.backing.is_none() {
            let mapping =
                HostMapping::anonymous(in_pages(self.bytes)?.checked_add(2 * REDZONE)?).ok()?;
            if redzones {
                fill(mapping.base, REDZONE, REDZONE_BYTE);
                let tail = REDZONE + self.bytes;
                fill(mapping.base + tail, mapping.bytes - tail, REDZONE_BYTE);
            }
            self.backing = Some(mapping);
        }
        Some(self.backing.as_ref()?.base + REDZONE + offset as usize)
    }

    /// Returns an overwritten byte of the redzones, if there is one.
    pub(crate) fn overrun(&self) -> Option<Overrun> {
        let mapping = match (&self.kind, &self.backing) {
            (RegionKind::Reservation(_), _) | (_, None) => return None,
            (_, Some(mapping)) => mapping,
        };
        // SAFETY: the mapping is live. Work that changes it runs only under the lock that the
        // caller holds.
        let all = unsafe { bytes_at(mapping.base, mapping.bytes) };
        let spoiled = |bytes: &[u8]| bytes.iter().position(|&b| b != REDZONE_BYTE);
        let tail = REDZONE + self.bytes;
        let at = spoiled(&all[tail..]).map(|i| tail + i).or_else(|| spoiled(&all[..REDZONE]))?;
        let (device, base, bytes) = (self.device, self.base, self.bytes);
        Some(Overrun { device, base, bytes, offset: at as i64 - REDZONE as i64 })
    }
}

/// A device allocation with an overwritten redzone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// Index of the device.
    pub device: usize,
    /// Address of the allocation.
    pub base: u64,
    /// Size of the allocation, in bytes.
    pub bytes: usize,
    /// Offset of an overwritten byte from `base`. Negative before the allocation.
    pub offset: i64,
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, base, bytes, offset } = self;
        write!(
            f,
            "byte {offset} of the {bytes} bytes at {base:#x} on cuda:{device} was overwritten"
        )
    }
}
