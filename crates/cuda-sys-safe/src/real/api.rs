//! The functions of `libcuda` that are used, and the places where the library is looked for. The
//! functions are a table of pointers with cudarc's types, so a missing symbol is an error that
//! names it.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::path::PathBuf;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUgraphNode, CUhostFn, CUipcEventHandle,
    CUipcMemHandle, CUjit_option, CUlaunchConfig, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmodule,
    CUpointer_attribute, CUstream, CUuuid,
};
use libloading::Library;

use super::captures::NodeParams;
use super::raw::WrittenProperties;
use crate::Result;
use crate::dylib::{LibrarySearch, StatusCode, function_table, version_text};

pub(super) const SEARCH: LibrarySearch = LibrarySearch {
    library: "CUDA driver",
    variable: "WARPLINE_LIBCUDA",
    names: if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] },
    folders: if cfg!(windows) {
        &[]
    } else {
        &[
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/local/nvidia/lib64",
            "/usr/lib/wsl/lib",
        ]
    },
};

// Enums that the driver writes are declared as integers, because a newer driver may write a value
// that the enum lacks. The names are the exported ones: `_v2` where a macro of cuda.h maps a name
// to a `_v2`.
function_table! {
    pub(super) struct CudaApi of "CUDA driver";
    required "CUDA 11.4 (driver 470)" {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int);
        cuCtxSetCurrent(CUcontext);
        cuCtxSynchronize();
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);

        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);

        cuMemcpy(CUdeviceptr, CUdeviceptr, usize);
        cuMemcpyHtoD_v2(CUdeviceptr, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
        cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, usize);
        cuMemcpyPeer(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize);
        cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuMemsetD16Async(CUdeviceptr, c_ushort, usize, CUstream);
        cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);

        cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        cuStreamDestroy_v2(CUstream);
        cuStreamQuery(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuStreamGetPriority(CUstream, *mut c_int);
        cuStreamIsCapturing(CUstream, *mut c_uint);
        cuLaunchHostFunc(CUstream, CUhostFn, *mut c_void);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventSynchronize(CUevent);
        cuEventElapsedTime(*mut f32, CUevent, CUevent);

        cuModuleLoadDataEx(
            *mut CUmodule,
            *const c_void,
            c_uint,
            *mut CUjit_option,
            *mut *mut c_void,
        );
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
        cuLaunchKernel(
            CUfunction,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            CUstream,
            *mut *mut c_void,
            *mut *mut c_void,
        );

        cuStreamBeginCapture_v2(CUstream, c_uint);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuStreamGetCaptureInfo_v2(
            CUstream,
            *mut c_uint,
            *mut u64,
            *mut CUgraph,
            *mut *const CUgraphNode,
            *mut usize,
        );
        cuThreadExchangeStreamCaptureMode(*mut c_uint);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphDebugDotPrint(CUgraph, *const c_char, c_uint);
        cuGraphDestroy(CUgraph);
        cuGraphExecDestroy(CUgraphExec);
    }
    optional {
        "CUDA 11.8" cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
        "CUDA 4.0" cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        "CUDA 4.0" cuCtxEnablePeerAccess(CUcontext, c_uint);
        "CUDA 4.0" cuCtxDisablePeerAccess(CUcontext);

        "CUDA 10.2" cuMemGetAllocationGranularity(
            *mut usize,
            *const CUmemAllocationProp,
            CUmemAllocationGranularity_flags,
        );
        "CUDA 10.2" cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        "CUDA 10.2" cuMemAddressFree(CUdeviceptr, usize);
        "CUDA 10.2" cuMemCreate(
            *mut CUmemGenericAllocationHandle,
            usize,
            *const CUmemAllocationProp,
            c_ulonglong,
        );
        "CUDA 10.2" cuMemExportToShareableHandle(
            *mut c_void,
            CUmemGenericAllocationHandle,
            CUmemAllocationHandleType,
            c_ulonglong,
        );
        "CUDA 10.2" cuMemImportFromShareableHandle(
            *mut CUmemGenericAllocationHandle,
            *mut c_void,
            CUmemAllocationHandleType,
        );
        "CUDA 10.2" cuMemGetAllocationPropertiesFromHandle(
            *mut WrittenProperties,
            CUmemGenericAllocationHandle,
        );
        "CUDA 10.2" cuMemRelease(CUmemGenericAllocationHandle);
        "CUDA 10.2" cuMemMap(
            CUdeviceptr,
            usize,
            usize,
            CUmemGenericAllocationHandle,
            c_ulonglong,
        );
        "CUDA 10.2" cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        "CUDA 10.2" cuMemUnmap(CUdeviceptr, usize);

        "CUDA 11.2" cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps);
        "CUDA 11.2" cuMemPoolDestroy(CUmemoryPool);
        "CUDA 11.2" cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
        "CUDA 11.2" cuMemPoolSetAccess(CUmemoryPool, *const CUmemAccessDesc, usize);
        "CUDA 11.2" cuMemPoolTrimTo(CUmemoryPool, usize);
        "CUDA 11.2" cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
        "CUDA 11.2" cuMemFreeAsync(CUdeviceptr, CUstream);

        "CUDA 12.3" cuGraphConditionalHandleCreate(*mut u64, CUgraph, CUcontext, c_uint, c_uint);
        // Without `_v2`: the form of CUDA 12.3, whose edges have no data.
        "CUDA 12.2" cuGraphAddNode(
            *mut CUgraphNode,
            CUgraph,
            *const CUgraphNode,
            usize,
            *mut NodeParams,
        );
        "CUDA 12.3" cuStreamBeginCaptureToGraph(
            CUstream,
            CUgraph,
            *const CUgraphNode,
            *const c_void,
            usize,
            c_uint,
        );
        "CUDA 11.3" cuStreamUpdateCaptureDependencies(CUstream, *mut CUgraphNode, usize, c_uint);

        "CUDA 11.7" cuStreamWaitValue32_v2(CUstream, CUdeviceptr, c_uint, c_uint);
        "CUDA 11.7" cuStreamWriteValue32_v2(CUstream, CUdeviceptr, c_uint, c_uint);

        "CUDA 4.1" cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
        "CUDA 11.0" cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
        "CUDA 4.1" cuIpcCloseMemHandle(CUdeviceptr);
        "CUDA 4.1" cuIpcGetEventHandle(*mut CUipcEventHandle, CUevent);
        "CUDA 4.1" cuIpcOpenEventHandle(*mut CUevent, CUipcEventHandle);
    }
}

/// Opens the first candidate that the loader accepts, and resolves the table.
pub(super) fn open(candidates: &[PathBuf]) -> Result<CudaApi> {
    let library = SEARCH.open(candidates)?;
    // SAFETY: cuda.h declares these signatures. The signature of a name never changes, because a
    // new signature gets a new suffix.
    unsafe { CudaApi::resolve(library, version_of) }
}

fn version_of(library: &Library) -> String {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> StatusCode;
    let mut version = 0;
    // SAFETY: cuda.h declares this signature.
    match unsafe { library.get::<GetVersion>(c"cuDriverGetVersion") } {
        // SAFETY: the pointer is valid for writes; the call needs no initialisation.
        Ok(get) if unsafe { get(&mut version) } == 0 => version_text(version as u32),
        _ => "unknown".to_owned(),
    }
}
