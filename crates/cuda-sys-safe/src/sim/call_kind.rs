//! The kinds of driver call. Calls are counted by kind, and faults are injected by kind.

use crate::CudaCode;

macro_rules! calls {
    ($($kind:ident = $name:literal;)*) => {
        /// A kind of driver call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum CallKind {
            $(#[doc = concat!("`", $name, "`.")] $kind,)*
        }

        impl CallKind {
            /// Every kind.
            pub const ALL: &'static [CallKind] = &[$(CallKind::$kind,)*];

            /// Returns the name of the driver function, such as `cuMemAlloc_v2`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(CallKind::$kind => $name,)* }
            }
        }
    };
}

calls! {
    Properties = "cuDeviceGetAttribute";
    PrimaryContextActive = "cuDevicePrimaryCtxGetState";
    Synchronize = "cuCtxSynchronize";
    MemInfo = "cuMemGetInfo_v2";
    MemAlloc = "cuMemAlloc_v2";
    MemFree = "cuMemFree_v2";
    HostAlloc = "cuMemHostAlloc";
    HostFree = "cuMemFreeHost";
    HostRegister = "cuMemHostRegister_v2";
    HostUnregister = "cuMemHostUnregister";
    MemcpyAsync = "cuMemcpyAsync";
    Memcpy = "cuMemcpy";
    MemsetAsync = "cuMemsetAsync";
    StreamPriorityRange = "cuCtxGetStreamPriorityRange";
    StreamCreate = "cuStreamCreateWithPriority";
    StreamDestroy = "cuStreamDestroy_v2";
    StreamQuery = "cuStreamQuery";
    StreamSynchronize = "cuStreamSynchronize";
    StreamWaitEvent = "cuStreamWaitEvent";
    StreamWaitValue = "cuStreamWaitValue32_v2";
    StreamWriteValue = "cuStreamWriteValue32_v2";
    StreamPriority = "cuStreamGetPriority";
    LaunchHostFunc = "cuLaunchHostFunc";
    EventCreate = "cuEventCreate";
    EventDestroy = "cuEventDestroy_v2";
    EventRecord = "cuEventRecord";
    EventQuery = "cuEventQuery";
    EventSynchronize = "cuEventSynchronize";
    EventElapsed = "cuEventElapsedTime";
    ModuleLoad = "cuModuleLoadData";
    ModuleUnload = "cuModuleUnload";
    ModuleFunction = "cuModuleGetFunction";
    FunctionMaxShared = "cuFuncSetAttribute";
    Launch = "cuLaunchKernel";
    CanAccessPeer = "cuDeviceCanAccessPeer";
    EnablePeerAccess = "cuCtxEnablePeerAccess";
    DisablePeerAccess = "cuCtxDisablePeerAccess";
    MemGranularity = "cuMemGetAllocationGranularity";
    AddressReserve = "cuMemAddressReserve";
    AddressFree = "cuMemAddressFree";
    MemCreate = "cuMemCreate";
    MemExport = "cuMemExportToShareableHandle";
    MemImport = "cuMemImportFromShareableHandle";
    MemRelease = "cuMemRelease";
    MemMap = "cuMemMap";
    MemSetAccess = "cuMemSetAccess";
    MemUnmap = "cuMemUnmap";
    MempoolCreate = "cuMemPoolCreate";
    MempoolDestroy = "cuMemPoolDestroy";
    MempoolReleaseThreshold = "cuMemPoolSetAttribute";
    MempoolTrim = "cuMemPoolTrimTo";
    MempoolSetAccess = "cuMemPoolSetAccess";
    MemAllocAsync = "cuMemAllocFromPoolAsync";
    MemFreeAsync = "cuMemFreeAsync";
    BeginCapture = "cuStreamBeginCapture_v2";
    EndCapture = "cuStreamEndCapture";
    CaptureStatus = "cuStreamGetCaptureInfo_v2";
    ConditionCreate = "cuGraphConditionalHandleCreate";
    CaptureConditional = "cuGraphAddNode";
    BeginCaptureToBody = "cuStreamBeginCaptureToGraph";
    ExchangeCaptureMode = "cuThreadExchangeStreamCaptureMode";
    GraphInstantiate = "cuGraphInstantiateWithFlags";
    GraphLaunch = "cuGraphLaunch";
    GraphDebugDotPrint = "cuGraphDebugDotPrint";
    GraphDestroy = "cuGraphDestroy";
    GraphExecDestroy = "cuGraphExecDestroy";
    IpcMemHandle = "cuIpcGetMemHandle";
    IpcOpenMem = "cuIpcOpenMemHandle_v2";
    IpcCloseMem = "cuIpcCloseMemHandle";
    IpcEventHandle = "cuIpcGetEventHandle";
    IpcOpenEvent = "cuIpcOpenEventHandle";
    CommInit = "ncclCommInitRankConfig";
    GroupEnd = "ncclGroupEnd";
}

impl CallKind {
    /// Returns `true` for calls that release an object. They succeed on a lost device.
    #[must_use]
    pub const fn is_release(self) -> bool {
        use CallKind::*;
        matches!(
            self,
            MemFree
                | HostFree
                | HostUnregister
                | StreamDestroy
                | EventDestroy
                | ModuleUnload
                | AddressFree
                | MemRelease
                | MemUnmap
                | MempoolDestroy
                | MemFreeAsync
                | GraphDestroy
                | GraphExecDestroy
                | IpcCloseMem
        )
    }

    /// Returns the errors of its own that the call may return on a GPU, the most likely one first, as the driver's
    /// documentation lists them, and the unknown error. Every call may also return the sticky error of earlier work.
    /// Errors that the call's callers rule out, such as one for a driver that is not initialised, are left out.
    #[must_use]
    pub const fn errors(self) -> &'static [CudaCode] {
        use CallKind::*;
        use CudaCode as Code;
        match self {
            MemAlloc | HostAlloc | MemAllocAsync | StreamCreate | MempoolCreate => {
                &[Code::OUT_OF_MEMORY, Code::INVALID_VALUE, Code::UNKNOWN]
            }
            MemCreate | AddressReserve => {
                &[Code::OUT_OF_MEMORY, Code::NOT_PERMITTED, Code::NOT_SUPPORTED, Code::UNKNOWN]
            }
            EventCreate | GraphInstantiate | IpcMemHandle | IpcEventHandle => {
                &[Code::OUT_OF_MEMORY, Code::INVALID_VALUE, Code::INVALID_HANDLE, Code::UNKNOWN]
            }
            MemMap => {
                &[Code::INVALID_VALUE, Code::OUT_OF_MEMORY, Code::ILLEGAL_STATE, Code::UNKNOWN]
            }
            HostRegister => &[
                Code::OUT_OF_MEMORY,
                Code::HOST_MEMORY_ALREADY_REGISTERED,
                Code::NOT_PERMITTED,
                Code::UNKNOWN,
            ],
            HostUnregister => &[Code::HOST_MEMORY_NOT_REGISTERED, Code::UNKNOWN],
            ModuleLoad => &[
                Code::INVALID_PTX,
                Code::UNSUPPORTED_PTX_VERSION,
                Code::NO_BINARY_FOR_GPU,
                Code::JIT_COMPILER_NOT_FOUND,
                Code::OUT_OF_MEMORY,
                Code::UNKNOWN,
            ],
            ModuleUnload => &[Code::NOT_PERMITTED, Code::UNKNOWN],
            ModuleFunction => &[Code::NOT_FOUND, Code::INVALID_HANDLE, Code::UNKNOWN],
            Launch => &[
                Code::LAUNCH_OUT_OF_RESOURCES,
                Code::INVALID_VALUE,
                Code::INVALID_HANDLE,
                Code::INVALID_IMAGE,
                Code::UNKNOWN,
            ],
            EnablePeerAccess => {
                &[Code::TOO_MANY_PEERS, Code::PEER_ACCESS_UNSUPPORTED, Code::UNKNOWN]
            }
            DisablePeerAccess => &[Code::PEER_ACCESS_NOT_ENABLED, Code::UNKNOWN],
            StreamWaitValue | StreamWriteValue => {
                &[Code::NOT_SUPPORTED, Code::INVALID_VALUE, Code::UNKNOWN]
            }
            EndCapture => &[
                Code::STREAM_CAPTURE_INVALIDATED,
                Code::STREAM_CAPTURE_UNJOINED,
                Code::STREAM_CAPTURE_WRONG_THREAD,
                Code::UNKNOWN,
            ],
            IpcOpenMem | IpcOpenEvent => {
                &[Code::INVALID_HANDLE, Code::MAP_FAILED, Code::NOT_SUPPORTED, Code::UNKNOWN]
            }
            _ => &[Code::INVALID_VALUE, Code::INVALID_HANDLE, Code::INVALID_CONTEXT, Code::UNKNOWN],
        }
    }

    /// Returns `true` for calls that work without a context, and so do not notice that earlier work
    /// failed.
    pub(super) const fn needs_no_context(self) -> bool {
        use CallKind::*;
        matches!(
            self,
            Properties
                | PrimaryContextActive
                | CanAccessPeer
                | MemGranularity
                | ExchangeCaptureMode
        )
    }

    /// Returns `true` for calls that CUDA documents as potentially unsafe. While any stream of any
    /// device is being captured, the modes of the capture and of the calling thread decide whether
    /// these calls are forbidden (`SimState::check_unsafe_call`).
    ///
    /// The same rule applies to queries of streams and events, to waits for streams and events, and
    /// to `MemAllocAsync`, `MemFreeAsync` and `EnablePeerAccess`, but these calls check their
    /// arguments first. Other calls, such as `cuMemcpy` and `cuCtxSynchronize`, are restricted only
    /// by captures of their own stream or device. No capture restricts the calls that create or
    /// destroy streams, events and mappings.
    pub(super) const fn is_unsafe_in_capture(self) -> bool {
        use CallKind::*;
        matches!(
            self,
            MemAlloc
                | MemFree
                | HostAlloc
                | HostFree
                | HostRegister
                | HostUnregister
                | ModuleUnload
                | DisablePeerAccess
                | MempoolCreate
                | MempoolDestroy
                | MempoolReleaseThreshold
                | MempoolTrim
                | MempoolSetAccess
                | GraphInstantiate
                | GraphExecDestroy
                | IpcOpenMem
                | IpcCloseMem
        )
    }
}
