//! Virtual memory for the allocator's default policy: addresses are reserved apart from the memory
//! that is mapped there. Without virtual memory, an allocator uses segments.

use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys};
use warpline_alloc::{Handle, VirtualMemory};

use crate::Cudarc;

/// Alignment of arenas, in bytes. The granularity of the device must divide it.
const PAGE: usize = 2 << 20;

/// Reserved addresses.
struct Range {
    address: u64,
    bytes: usize,
    context: Arc<CudaContext>,
}

/// Memory without an address.
struct Pages {
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
    context: Arc<CudaContext>,
}

/// Memory mapped at an address. The mapping ends before its pages and range are freed.
struct Mapping {
    address: u64,
    pages: Arc<Pages>,
    _range: Arc<Range>,
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: `reserve` reserved these addresses. Mappings keep the range alive, so nothing is
        // mapped there any more.
        let freed = unsafe { sys::cuMemAddressFree(self.address, self.bytes) }.result();
        self.context.record_err(freed);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `create` created the handle. Mappings keep the pages alive, so none is left.
        self.context.record_err(unsafe { sys::cuMemRelease(self.handle) }.result());
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped these addresses, and the allocator has waited for work that may use
        // them.
        let unmapped = unsafe { sys::cuMemUnmap(self.address, self.pages.bytes) }.result();
        self.pages.context.record_err(unmapped);
    }
}

impl Cudarc {
    /// The backend's virtual memory, if the device's granularity divides `PAGE`.
    pub(crate) fn pages(&self) -> Option<&dyn VirtualMemory<DriverError>> {
        let suits = |bytes: usize| bytes > 0 && PAGE.is_multiple_of(bytes);
        self.smallest().is_ok_and(suits).then_some(self as &dyn VirtualMemory<DriverError>)
    }

    fn smallest(&self) -> Result<usize, DriverError> {
        let mut bytes = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the call reads the properties and writes `bytes`, which both live.
        unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &self.properties(), minimum) }
            .result()?;
        Ok(bytes)
    }

    fn location(&self) -> sys::CUmemLocation {
        let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::CUmemLocation { type_, id: self.0.cu_device() }
    }

    fn properties(&self) -> sys::CUmemAllocationProp {
        // SAFETY: all fields of this C structure are integers, enums with a zero variant, or
        // pointers, so zeros are a valid value.
        let mut properties: sys::CUmemAllocationProp =
            unsafe { MaybeUninit::zeroed().assume_init() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = self.location();
        properties
    }
}

impl VirtualMemory<DriverError> for Cudarc {
    fn granularity(&self) -> usize {
        self.smallest().unwrap_or(PAGE)
    }

    fn reserve(&self, bytes: usize) -> Result<(u64, Handle), DriverError> {
        self.0.bind_to_thread()?;
        let mut address = 0;
        // SAFETY: the call only writes `address`.
        unsafe { sys::cuMemAddressReserve(&mut address, bytes, PAGE, 0, 0) }.result()?;
        Ok((address, Box::new(Arc::new(Range { address, bytes, context: self.0.clone() }))))
    }

    fn create(&self, bytes: usize) -> Result<Handle, DriverError> {
        self.0.bind_to_thread()?;
        let mut handle = 0;
        // SAFETY: the properties and `handle` are valid until the call returns.
        unsafe { sys::cuMemCreate(&mut handle, bytes, &self.properties(), 0) }.result()?;
        Ok(Box::new(Arc::new(Pages { handle, bytes, context: self.0.clone() })))
    }

    fn map(&self, range: &Handle, offset: usize, memory: &Handle) -> Result<Handle, DriverError> {
        let foreign = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let range: &Arc<Range> = range.downcast_ref().ok_or(foreign)?;
        let pages: &Arc<Pages> = memory.downcast_ref().ok_or(foreign)?;
        self.0.bind_to_thread()?;
        let address = range.address + offset as u64;
        // SAFETY: the range is reserved, and the allocator never maps an address that is still
        // mapped.
        unsafe { sys::cuMemMap(address, pages.bytes, 0, pages.handle, 0) }.result()?;
        // Unmaps if the next call fails.
        let mapping = Mapping { address, pages: pages.clone(), _range: range.clone() };
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: self.location(), flags };
        // SAFETY: `cuMemMap` has mapped these addresses.
        unsafe { sys::cuMemSetAccess(address, pages.bytes, &access, 1) }.result()?;
        Ok(Box::new(mapping))
    }
}
