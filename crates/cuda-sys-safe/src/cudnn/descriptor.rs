//! Descriptors of cuDNN's backend interface: typed attributes, destroyed on drop.

use std::ffi::c_void;
use std::ptr;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptor_t, cudnnBackendDescriptorType_t as Kind,
};

use super::Cudnn;
use crate::Result;

/// A descriptor that is under construction or finalized.
#[derive(Debug)]
pub(super) struct Descriptor {
    cudnn: &'static Cudnn,
    raw: cudnnBackendDescriptor_t,
}

// SAFETY: a descriptor is not tied to a thread. It is changed only by its owner, and cuDNN permits
// concurrent reads of a finalized descriptor.
unsafe impl Send for Descriptor {}
// SAFETY: cuDNN permits concurrent reads of a finalized descriptor. `set` and `finalize` consume the descriptor, and
// `get` lets cuDNN fill only descriptors that the same function has just made.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(super) fn new(cudnn: &'static Cudnn, kind: Kind) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is valid for writes.
        let status = unsafe { (cudnn.api.cudnnBackendCreateDescriptor)(kind, &mut raw) };
        cudnn.check("cudnnBackendCreateDescriptor", status)?;
        Ok(Self { cudnn, raw })
    }

    pub(super) fn raw(&self) -> cudnnBackendDescriptor_t {
        self.raw
    }

    /// Sets an attribute.
    ///
    /// # Safety
    /// `T` is the C type of `ty`. Handles and descriptors among the values are alive.
    pub(super) unsafe fn set<T>(self, name: Name, ty: Type, values: &[T]) -> Result<Self> {
        let (count, from) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: cuDNN reads `count` values of this type before the call returns.
        let status =
            unsafe { (self.cudnn.api.cudnnBackendSetAttribute)(self.raw, name, ty, count, from) };
        self.cudnn.check("cudnnBackendSetAttribute", status)?;
        Ok(self)
    }

    /// Sets an attribute that holds integers.
    pub(super) fn integers(self, name: Name, values: &[i64]) -> Result<Self> {
        // SAFETY: the attribute's type for integers is `i64`.
        unsafe { self.set(name, Type::CUDNN_TYPE_INT64, values) }
    }

    /// Sets an attribute that holds a descriptor. cuDNN copies it or counts references.
    pub(super) fn descriptor(self, name: Name, value: &Self) -> Result<Self> {
        // SAFETY: the descriptor is alive.
        unsafe { self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[value.raw]) }
    }

    /// Ends the construction.
    pub(super) fn finalize(self) -> Result<Self> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { (self.cudnn.api.cudnnBackendFinalize)(self.raw) };
        self.cudnn.check("cudnnBackendFinalize", status)?;
        Ok(self)
    }

    /// Returns the number of values of an attribute.
    pub(super) fn count(&self, name: Name, ty: Type) -> Result<usize> {
        let (mut count, nowhere) = (0, ptr::null_mut());
        // SAFETY: no values are requested, so cuDNN writes only their number.
        let status = unsafe {
            (self.cudnn.api.cudnnBackendGetAttribute)(self.raw, name, ty, 0, &mut count, nowhere)
        };
        self.cudnn.check("cudnnBackendGetAttribute", status)?;
        Ok(count.max(0) as usize)
    }

    /// Reads up to `into.len()` values of an attribute and returns their number.
    ///
    /// # Safety
    /// `T` is the C type of `ty`, for which every value that cuDNN writes is valid.
    pub(super) unsafe fn get<T>(&self, name: Name, ty: Type, into: &mut [T]) -> Result<usize> {
        let mut count = 0;
        let to = into.as_mut_ptr().cast::<c_void>();
        // SAFETY: the buffer has room for this many values.
        let status = unsafe {
            let get = self.cudnn.api.cudnnBackendGetAttribute;
            get(self.raw, name, ty, into.len() as i64, &mut count, to)
        };
        self.cudnn.check("cudnnBackendGetAttribute", status)?;
        Ok((count.max(0) as usize).min(into.len()))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is alive and not used afterwards. An error is ignored, because
        // nothing could be done about it.
        unsafe { (self.cudnn.api.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}
