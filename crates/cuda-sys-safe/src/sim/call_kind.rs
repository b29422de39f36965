//! The kinds of driver call. Calls are counted by kind, and faults are injected by kind.

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
