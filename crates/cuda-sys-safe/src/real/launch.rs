//! Copies, launches, host functions and modules: they need more than passing arguments on to one
//! driver call.

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUdeviceptr, CUfunction, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmodule, CUstream,
};
use smallvec::SmallVec;
use warpline_sync::CaughtPanic;

use super::CudaDriver;
use super::raw::raw_stream;
use crate::{
    Copy, CopyEnd, CudaCode, DeviceCode, DevicePtr, DriverError, Launch, ModuleHandle, Result,
    StreamHandle,
};

/// Largest number of operands for which a launch needs no heap allocation.
const INLINE: usize = 16;

impl CudaDriver {
    /// Copies on a stream, or synchronously in the current context if there is no stream.
    ///
    /// # Safety
    /// The same as [`crate::Driver::memcpy_async`]. `device`, which is the stream's device if there
    /// is a stream, has been entered.
    pub(super) unsafe fn copy(
        &self,
        device: usize,
        copy: &Copy,
        stream: Option<CUstream>,
    ) -> Result<()> {
        let (api, bytes) = (&self.api, copy.bytes);
        use CopyEnd::{Device, Host};
        // SAFETY: the caller guarantees that both ends and the stream are valid. Each pattern
        // passes its ends to the function that takes ends of these kinds.
        let (call, status) = unsafe {
            match (copy.dst, copy.src, stream) {
                (Device { ptr, .. }, Host(src), Some(stream)) => (
                    "cuMemcpyHtoDAsync_v2",
                    (api.cuMemcpyHtoDAsync_v2)(ptr.addr(), src.as_ptr().cast(), bytes, stream),
                ),
                (Device { ptr, .. }, Host(src), None) => (
                    "cuMemcpyHtoD_v2",
                    (api.cuMemcpyHtoD_v2)(ptr.addr(), src.as_ptr().cast(), bytes),
                ),
                (Host(dst), Device { ptr, .. }, Some(stream)) => (
                    "cuMemcpyDtoHAsync_v2",
                    (api.cuMemcpyDtoHAsync_v2)(dst.as_ptr().cast(), ptr.addr(), bytes, stream),
                ),
                (Host(dst), Device { ptr, .. }, None) => (
                    "cuMemcpyDtoH_v2",
                    (api.cuMemcpyDtoH_v2)(dst.as_ptr().cast(), ptr.addr(), bytes),
                ),
                (Device { device: to, ptr: dst }, Device { device: from, ptr: src }, _) => {
                    return self.copy_between((to, dst), (from, src), bytes, device, stream);
                }
                // With unified addressing, the untyped copy accepts host addresses.
                (Host(dst), Host(src), Some(stream)) => (
                    "cuMemcpyAsync",
                    (api.cuMemcpyAsync)(
                        address(dst.as_ptr()),
                        address(src.as_ptr()),
                        bytes,
                        stream,
                    ),
                ),
                (Host(dst), Host(src), None) => (
                    "cuMemcpy",
                    (api.cuMemcpy)(address(dst.as_ptr()), address(src.as_ptr()), bytes),
                ),
            }
        };
        self.check(call, device, status).map_err(|e| e.with_detail(|| format!("{bytes} bytes")))
    }

    /// # Safety
    /// The same as [`Self::copy`].
    unsafe fn copy_between(
        &self,
        (to, dst): (usize, DevicePtr),
        (from, src): (usize, DevicePtr),
        bytes: usize,
        device: usize,
        stream: Option<CUstream>,
    ) -> Result<()> {
        let (api, dst, src) = (&self.api, dst.addr(), src.addr());
        // SAFETY: the caller guarantees that both ranges and the stream are valid. The contexts are
        // retained and never released.
        let (call, status) = unsafe {
            match (to == from, stream) {
                (true, Some(stream)) => {
                    ("cuMemcpyDtoDAsync_v2", (api.cuMemcpyDtoDAsync_v2)(dst, src, bytes, stream))
                }
                (true, None) => ("cuMemcpyDtoD_v2", (api.cuMemcpyDtoD_v2)(dst, src, bytes)),
                (false, stream) => {
                    let to = self.context("cuMemcpyPeerAsync", to)?;
                    let from = self.context("cuMemcpyPeerAsync", from)?;
                    match stream {
                        Some(stream) => (
                            "cuMemcpyPeerAsync",
                            (api.cuMemcpyPeerAsync)(dst, to, src, from, bytes, stream),
                        ),
                        None => ("cuMemcpyPeer", (api.cuMemcpyPeer)(dst, to, src, from, bytes)),
                    }
                }
            }
        };
        self.check(call, device, status)
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes from cuda:{from} to cuda:{to}")))
    }

    /// # Safety
    /// The same as [`crate::Driver::launch`].
    pub(super) unsafe fn enqueue(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        let device = stream.device();
        self.enter("cuLaunchKernel", device)?;
        let mut pointers: SmallVec<[DevicePtr; INLINE]> =
            launch.footprints.iter().map(|footprint| footprint.ptr).collect();
        match launch.code {
            DeviceCode::Kernel { function, grid, block, shared_bytes, waits } => {
                // An address for each argument. The driver copies the arguments byte by byte before
                // it returns, so the parameter block needs no alignment.
                let mut arguments: SmallVec<[*mut c_void; INLINE + 1]> =
                    pointers.iter_mut().map(|pointer| (&raw mut *pointer).cast()).collect();
                if !launch.params.is_empty() {
                    arguments.push(launch.params.as_ptr().cast_mut().cast());
                }
                // A driver without attributes launches in order, and the kernel's wait returns at once.
                let mut early = CUlaunchAttribute {
                    id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                    pad: [0; 4],
                    value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
                };
                let function = function.raw() as usize as CUfunction;
                let ([x, y, z], [block_x, block_y, block_z]) = (grid, block);
                let (handle, arguments) = (raw_stream(stream), arguments.as_mut_ptr());
                let none = std::ptr::null_mut();
                // SAFETY: the caller guarantees that the function and the operands are valid, and
                // that the function waits if `waits` says so. Each argument points to a live value:
                // a `DevicePtr` is a 64-bit address, and `params` is the kernel's block.
                let status = unsafe {
                    match self.api.cuLaunchKernelEx() {
                        Ok(launch) if waits => {
                            let config = CUlaunchConfig {
                                gridDimX: x,
                                gridDimY: y,
                                gridDimZ: z,
                                blockDimX: block_x,
                                blockDimY: block_y,
                                blockDimZ: block_z,
                                sharedMemBytes: shared_bytes,
                                hStream: handle,
                                attrs: &raw mut early,
                                numAttrs: 1,
                            };
                            launch(&config, function, arguments, none)
                        }
                        _ => (self.api.cuLaunchKernel)(
                            function,
                            x,
                            y,
                            z,
                            block_x,
                            block_y,
                            block_z,
                            shared_bytes,
                            handle,
                            arguments,
                            none,
                        ),
                    }
                };
                self.check("cuLaunchKernel", device, status).map_err(|e| {
                    let shape = || {
                        format!(
                            "{} with grid {grid:?}, block {block:?}, {shared_bytes} bytes of \
                             shared memory",
                            launch.op
                        )
                    };
                    e.with_detail(shape).at(launch.location)
                })
            }
            DeviceCode::Library(call) => call(stream, &pointers)
                .map_err(|e| e.with_detail(|| launch.op.to_owned()).at(launch.location)),
            DeviceCode::Collective(call) => call(stream).map_err(|e| e.at(launch.location)),
        }
    }

    /// # Safety
    /// The same as [`crate::Driver::launch_host_func`].
    pub(super) unsafe fn enqueue_host(
        &self,
        stream: StreamHandle,
        f: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        const CALL: &str = "cuLaunchHostFunc";
        let device = stream.device();
        self.enter(CALL, device)?;
        let mut capturing = 0;
        // SAFETY: the stream is alive and the pointer valid for writes.
        let status = unsafe { (self.api.cuStreamIsCapturing)(raw_stream(stream), &mut capturing) };
        self.check("cuStreamIsCapturing", device, status)?;
        if capturing != 0 {
            // A graph would run the function at every replay, but it can run only once.
            let code = CudaCode::STREAM_CAPTURE_UNSUPPORTED;
            return Err(DriverError::cuda(CALL, code, Some(device)));
        }
        let data = Box::into_raw(Box::new(f)).cast::<c_void>();
        let status =
            // SAFETY: the stream is alive. `run_boxed` expects the type of `data`, and the driver
            // calls it at most once.
            unsafe { (self.api.cuLaunchHostFunc)(raw_stream(stream), Some(run_boxed), data) };
        self.check(CALL, device, status).inspect_err(|_| {
            // SAFETY: the driver refused the call, so it will never use `data`.
            drop(unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) });
        })
    }

    pub(super) fn load_module(&self, device: usize, image: &[u8]) -> Result<ModuleHandle> {
        const CALL: &str = "cuModuleLoadDataEx";
        if image.is_empty() {
            let reason = "the image is empty".to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        }
        self.enter(CALL, device)?;
        // The copy adds the NUL that PTX text needs, and has the alignment that a cubin may need.
        let mut text = Vec::with_capacity(image.len() + 1);
        text.extend_from_slice(image);
        text.push(0);

        let mut log = vec![0u8; 8192];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: the image ends in NUL. The image and the log buffer outlive the call, and the
        // buffer's size is passed.
        let status = unsafe {
            (self.api.cuModuleLoadDataEx)(
                &mut module,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        self.check(CALL, device, status).map_err(|e| {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]);
            if log.trim().is_empty() { e } else { e.with_detail(|| log.trim().to_owned()) }
        })?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { ModuleHandle::from_raw(device, module as usize as u64) })
    }
}

/// Callback of `cuLaunchHostFunc`. `data` is a `Box<Box<dyn FnOnce() + Send>>`.
extern "C" fn run_boxed(data: *mut c_void) {
    // SAFETY: `enqueue_host` leaked this box, and the driver calls this function once.
    let f = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not unwind into the driver. The panic hook has already reported it.
    let _ = CaughtPanic::catch(*f);
}

fn address(ptr: *mut u8) -> CUdeviceptr {
    ptr.expose_provenance() as CUdeviceptr
}
