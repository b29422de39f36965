//! Addresses: the device that owns their memory, access to it, and its release.

use super::SimState;
use super::memory::{DEVICE_SPACE, HostOverlap, Region, RegionKind, rounded};
use super::vmm::{MemoryUser, covering};

impl SimState {
    /// Returns the device that owns a range, if all of the range is allocated or mapped.
    pub(crate) fn owner(&self, address: u64, bytes: usize) -> Option<usize> {
        let region = self.memory.region(address, bytes.max(1))?;
        match &region.kind {
            RegionKind::Reservation(mappings) => {
                let offset = (address - region.base) as usize;
                let first = covering(mappings, offset, bytes.max(1))?.next()?;
                Some(self.physical.get(&first.physical)?.device)
            }
            _ => Some(region.device),
        }
    }

    /// Returns the host address behind a range of device addresses, or the reason why the range
    /// must not be accessed now.
    pub(crate) fn locate(
        &mut self,
        address: u64,
        bytes: usize,
        user: MemoryUser,
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
            RegionKind::Pool { live: false, .. } => {
                return Err(format!(
                    "the pool's memory at {address:#x} is not allocated at this point of stream order"
                ));
            }
            RegionKind::Pool { pool, .. } => match user {
                MemoryUser::Copy => true,
                MemoryUser::Kernel(d) => self.pool_allows(*pool, d, write),
            },
            RegionKind::Alloc { .. } => match user {
                MemoryUser::Copy => true,
                MemoryUser::Kernel(d) => {
                    d == region.device || self.devices[d].peers.contains(&region.device)
                }
            },
            RegionKind::Reservation(mappings) => {
                let offset = (address - region.base) as usize;
                let mut covering = covering(mappings, offset, bytes)
                    .ok_or_else(|| format!("{bytes} bytes at {address:#x} are not all mapped"))?;
                covering.all(|mapped| mapped.allows(user, write))
            }
        };
        if !may {
            let who = match user {
                MemoryUser::Kernel(d) => format!("cuda:{d}"),
                MemoryUser::Copy => "a copy".into(),
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

    pub(crate) fn pool_allows(&self, pool: u64, device: usize, write: bool) -> bool {
        self.pools.get(&pool).is_some_and(|pool| pool.allows(device, write))
    }

    /// Returns `true` if two devices can access each other's memory. The devices may be the same.
    pub(crate) fn linked(&self, device: usize, peer: usize) -> bool {
        let (a, b) = (self.devices[device].physical, self.devices[peer].physical);
        !self.config.unlinked_peers.iter().any(|&(x, y)| (x, y) == (a, b) || (y, x) == (a, b))
    }

    /// Removes an allocation.
    pub(crate) fn remove_allocation(&mut self, base: u64) -> Option<Region> {
        let region = self.memory.regions.remove(&base)?;
        match region.kind {
            RegionKind::Pool { pool, .. } => self.pool_credit(pool, region.bytes),
            _ => self.devices[region.device].used -= rounded(region.bytes).unwrap_or(0),
        }
        Some(region)
    }

    /// Looks for an overwritten redzone, and describes it.
    pub(crate) fn note_overrun(&mut self, region: &Region, when: &str) -> Option<String> {
        let overrun = self.memory.redzones.then(|| region.overrun()).flatten()?;
        self.overruns.push(overrun);
        Some(format!("{overrun}, {when}"))
    }

    /// Returns an allocation's bytes to its pool.
    pub(crate) fn pool_credit(&mut self, id: u64, bytes: usize) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.used -= rounded(bytes).unwrap_or(0);
            if pool.destroyed {
                self.pool_shrink(id, 0);
            }
        }
    }

    /// Releases unallocated memory of a pool, down to `keep` bytes.
    pub(crate) fn pool_shrink(&mut self, id: u64, keep: usize) {
        let Some(pool) = self.pools.get_mut(&id) else { return };
        let reserved = pool.reserved.min(pool.used.max(keep));
        self.devices[pool.device].used -= pool.reserved - reserved;
        pool.reserved = reserved;
        if pool.destroyed && pool.reserved == 0 {
            self.pools.remove(&id);
        }
    }
}
