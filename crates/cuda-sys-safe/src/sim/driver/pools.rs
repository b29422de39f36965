//! Stream-ordered memory pools.

use std::collections::BTreeMap;

use crate::sim::CallKind;
use crate::sim::state::memory::{RegionKind, rounded};
use crate::sim::state::pools::PoolState;
use crate::sim::state::streams::StreamOpKind;
use crate::sim::state::work::{Label, Point};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn mempool_create(&mut self, device: usize) -> MemPoolHandle {
        let id = self.fresh();
        let access = BTreeMap::new();
        let pool =
            PoolState { device, threshold: 0, reserved: 0, used: 0, destroyed: false, access };
        self.pools.insert(id, pool);
        // SAFETY: this driver has just created the object.
        unsafe { MemPoolHandle::from_raw(device, id) }
    }

    fn pool(&mut self, call: CallKind, handle: MemPoolHandle) -> Result<&mut PoolState> {
        match self.pools.get_mut(&handle.raw()) {
            Some(pool) if !pool.destroyed && pool.device == handle.device() => Ok(pool),
            _ => Err(error(call, CudaCode::INVALID_VALUE, handle.device(), "no such pool")),
        }
    }

    /// Destroys a pool. Its allocations stay valid until they are freed.
    pub(super) fn mempool_destroy(&mut self, handle: MemPoolHandle) -> Result<()> {
        let pool = self.pool(CallKind::MempoolDestroy, handle)?;
        pool.destroyed = true;
        pool.threshold = 0;
        self.pool_shrink(handle.raw(), 0);
        Ok(())
    }

    pub(super) fn mempool_threshold(&mut self, handle: MemPoolHandle, bytes: u64) -> Result<()> {
        self.pool(CallKind::MempoolReleaseThreshold, handle)?.threshold = bytes;
        Ok(())
    }

    pub(super) fn mempool_set_access(
        &mut self,
        handle: MemPoolHandle,
        access: &[(usize, MemAccess)],
    ) -> Result<()> {
        let call = CallKind::MempoolSetAccess;
        let device = handle.device();
        for &(peer, wanted) in access {
            let why = match (peer, wanted) {
                (peer, _) if peer >= self.devices.len() => format!("there is no cuda:{peer}"),
                (peer, MemAccess::ReadWrite) if peer == device => continue,
                (peer, _) if peer == device => "a pool is open to its own device".into(),
                (peer, _) if !self.linked(peer, device) => {
                    format!("cuda:{peer} cannot reach cuda:{device}")
                }
                _ => continue,
            };
            return Err(error(call, CudaCode::INVALID_DEVICE, device, &why));
        }
        self.pool(call, handle)?.access.extend(access.iter().copied());
        Ok(())
    }

    pub(super) fn mempool_trim(&mut self, handle: MemPoolHandle, keep: usize) -> Result<()> {
        self.pool(CallKind::MempoolTrim, handle)?;
        self.pool_shrink(handle.raw(), keep);
        Ok(())
    }

    /// Shrinks all pools to their release thresholds, at a host synchronisation.
    pub(super) fn pools_at_synchronisation(&mut self) {
        let ids: Vec<_> = self.pools.iter().map(|(&id, p)| (id, p.threshold)).collect();
        for (id, threshold) in ids {
            self.pool_shrink(id, usize::try_from(threshold).unwrap_or(usize::MAX));
        }
    }

    pub(super) fn mem_alloc_async(
        &mut self,
        handle: MemPoolHandle,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(DevicePtr, Option<Point>)> {
        let call = CallKind::MemAllocAsync;
        let device = handle.device();
        let key = self.stream_key(call, stream)?;
        self.refuse_in_capture(call, key)?;
        self.pool(call, handle)?;
        if bytes == 0 {
            return Ok((DevicePtr::NULL, None));
        }
        let full = || error(call, CudaCode::OUT_OF_MEMORY, device, "");
        let charged = rounded(bytes).ok_or_else(full)?;
        let base = self.memory.fresh_range(device, bytes, 512).ok_or_else(full)?;
        let pool = self.pool(call, handle)?;
        let used = pool.used.checked_add(charged).ok_or_else(full)?;
        let more = used.saturating_sub(pool.reserved);
        self.charge(call, device, more)?;
        let pool = self.pool(call, handle)?;
        (pool.used, pool.reserved) = (used, pool.reserved + more);
        let kind = RegionKind::Pool { pool: handle.raw(), live: false, freeing: false };
        self.memory.insert(device, base, bytes, kind);
        let point = self.enqueue(key, Label::of(call), StreamOpKind::PoolAlloc(base), &[])?;
        // SAFETY: this driver has just allocated the memory.
        Ok((unsafe { DevicePtr::from_raw(base) }, point))
    }

    pub(super) fn mem_free_async(
        &mut self,
        ptr: DevicePtr,
        stream: StreamHandle,
    ) -> Result<Option<Point>> {
        let call = CallKind::MemFreeAsync;
        let key = self.stream_key(call, stream)?;
        self.refuse_in_capture(call, key)?;
        let device = stream.device();
        if self.devices[device].lost.is_some() {
            let region = self.memory.regions.get(&ptr.addr());
            if region.is_some_and(|r| !matches!(r.kind, RegionKind::Reservation(_))) {
                self.remove_allocation(ptr.addr());
            }
            return Ok(None);
        }
        if ptr == DevicePtr::NULL {
            return Ok(None);
        }
        let region = self.memory.regions.get_mut(&ptr.addr());
        let Some(RegionKind::Alloc { freeing } | RegionKind::Pool { freeing, .. }) =
            region.map(|region| &mut region.kind).filter(|kind| !kind.freeing())
        else {
            let why = format!("{ptr:?} is not the start of a live allocation");
            return Err(error(call, CudaCode::INVALID_VALUE, device, &why));
        };
        *freeing = true;
        self.enqueue(key, Label::of(call), StreamOpKind::PoolFree(ptr.addr()), &[])
    }
}
