//! Errors of driver calls and of CUDA libraries.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;

/// The result of a driver call.
pub type Result<T, E = DriverError> = std::result::Result<T, E>;

/// A `CUresult` other than success, with the driver's name and text for the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaCode(pub u32);

macro_rules! codes {
    ($($konst:ident = $value:literal, $name:literal, $text:literal;)*) => {
        impl CudaCode {
            $(#[doc = concat!("`", $name, "`: ", $text, ".")] pub const $konst: CudaCode = CudaCode($value);)*

            /// Returns the name of the code in `cuda.h`, such as `CUDA_ERROR_OUT_OF_MEMORY`. A code
            /// of a newer driver, which is not listed here, gets a placeholder.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.0 { $($value => $name,)* _ => "a CUDA error that this version has no name for" }
            }

            /// Returns the driver's text for the code, such as `out of memory`. A code that is not
            /// listed here gets a placeholder.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "see cuda.h" }
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down";
    STUB_LIBRARY = 34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library";
    DEVICE_UNAVAILABLE = 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    DEVICE_NOT_LICENSED = 102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device doesn't have valid Grid license";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    MAP_FAILED = 205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed";
    UNMAP_FAILED = 206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed";
    ALREADY_MAPPED = 208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped";
    NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device";
    NOT_MAPPED = 211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped";
    ECC_UNCORRECTABLE = 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered";
    PEER_ACCESS_UNSUPPORTED = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices";
    INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
    NVLINK_UNCORRECTABLE = 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution";
    JIT_COMPILER_NOT_FOUND = 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found";
    UNSUPPORTED_PTX_VERSION = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain.";
    JIT_COMPILATION_DISABLED = 223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled";
    CONTAINED = 226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error";
    INVALID_SOURCE = 300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid";
    FILE_NOT_FOUND = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found";
    SHARED_OBJECT_INIT_FAILED = 303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object initialization failed";
    OPERATING_SYSTEM = 304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    ASSERT = 710, "CUDA_ERROR_ASSERT", "device-side assert triggered";
    TOO_MANY_PEERS = 711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space";
    INVALID_PC = 718, "CUDA_ERROR_INVALID_PC", "invalid program counter";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    SYSTEM_NOT_READY = 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW";
    MPS_CONNECTION_FAILED = 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server";
    MPS_RPC_FAILURE = 806, "CUDA_ERROR_MPS_RPC_FAILURE", "MPS server failed to communicate with the MPS control daemon";
    MPS_SERVER_NOT_READY = 807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests";
    MPS_CLIENT_TERMINATED = 810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "MPS client has been terminated by the server";
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
    TIMEOUT = 909, "CUDA_ERROR_TIMEOUT", "wait operation timed out";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    EXTERNAL_DEVICE = 911, "CUDA_ERROR_EXTERNAL_DEVICE", "an async error has occurred in external entity outside of CUDA";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

impl CudaCode {
    /// Returns `true` if the code is sticky: every later call fails, on every device of the
    /// process.
    #[must_use]
    pub fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::ECC_UNCORRECTABLE
                | Self::NVLINK_UNCORRECTABLE
                | Self::CONTAINED
                | Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::CONTEXT_IS_DESTROYED
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
                | Self::DEVICE_UNAVAILABLE
                | Self::MPS_CLIENT_TERMINATED
                | Self::EXTERNAL_DEVICE
        )
    }
}

impl fmt::Debug for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// A failed driver call: the function, its code, the device and the line that asked for the call.
#[derive(Clone)]
pub struct CudaError {
    /// The driver function, such as `cuMemAlloc_v2`.
    pub call: &'static str,
    /// The driver's code.
    pub code: CudaCode,
    /// Index of the device, if the call was for one.
    pub device: Option<usize>,
    /// The caller's activity, if known: the name of an op, a size, a symbol.
    pub detail: Option<String>,
    /// Source line that asked for the call, if known.
    pub location: Option<&'static Location<'static>>,
}

/// Writes the message, as `Display` does, because `main` and `unwrap` print errors by `Debug`.
impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.call)?;
        if let Some(device) = self.device {
            write!(f, " on cuda:{device}")?;
        }
        write!(f, " with {} ({}: {})", self.code.name(), self.code.0, self.code.text())?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        if let Some(location) = self.location {
            write!(f, ", asked for at {location}")?;
        }
        Ok(())
    }
}

/// A mismatch of collective calls: ranks of a communicator made different calls where all must make
/// the same call. NCCL hangs or mixes up data in this case. The simulated NCCL reports this error
/// to all ranks.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ranks of a communicator disagree about {what}: rank {} called {}, rank {} called {}",
    ranks[0], calls[0], ranks[1], calls[1]
)]
pub struct CollectiveMismatch {
    /// The point of disagreement, such as `collective number 3`, counted from 0.
    pub what: String,
    /// Two ranks that disagree.
    pub ranks: [usize; 2],
    /// The calls of these two ranks, in the order of `ranks`.
    pub calls: [String; 2],
}

/// Writes the message, as `Display` does, because `main` and `unwrap` print errors by `Debug`.
impl fmt::Debug for CollectiveMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An environment variable that has an invalid value, or a name that Warpline does not know.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable {variable} is `{value}`: {reason}")]
pub struct InvalidVariable {
    /// Name of the variable.
    pub variable: Cow<'static, str>,
    /// Value of the variable.
    pub value: String,
    /// The cause, and the accepted values.
    pub reason: String,
}

/// Writes the message, as `Display` does, because `main` and `unwrap` print errors by `Debug`.
impl fmt::Debug for InvalidVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error of a driver call, or of a call of another CUDA library.
#[derive(Clone, thiserror::Error)]
pub enum DriverError {
    /// An environment variable has an invalid value, or a name that Warpline does not know.
    #[error(transparent)]
    InvalidVariable(Box<InvalidVariable>),
    /// The system cannot provide host memory.
    #[error("cannot allocate {bytes} bytes of host memory: {reason}")]
    HostMemory {
        /// Requested size, in bytes.
        bytes: usize,
        /// The cause.
        reason: String,
    },
    /// A CUDA library was not found.
    #[error(
        "no {library} library was found: install it, or name its path in {variable} (looked for {}; {reason})",
        searched.join(", ")
    )]
    LibraryNotFound {
        /// Name of the library, such as `CUDA driver`.
        library: &'static str,
        /// The names that were tried, in order.
        searched: Vec<String>,
        /// The loader's message for the last tried file that exists, or for the first name if no
        /// file exists.
        reason: String,
        /// The environment variable that overrides the search.
        variable: &'static str,
    },
    /// A CUDA library lacks a function, usually because the library is too old.
    #[error(
        "the {library} library has no {symbol}: it is too old (version {version}); this needs {needs}"
    )]
    MissingSymbol {
        /// Name of the library, such as `CUDA driver`.
        library: &'static str,
        /// The missing function.
        symbol: &'static str,
        /// Version that the library reports, as `major.minor`, or `unknown`.
        version: String,
        /// The first release that has the function.
        needs: &'static str,
    },
    /// The library of a [`CudaPluggableAllocator`](crate::owned::CudaPluggableAllocator) cannot be
    /// loaded, or lacks a function.
    #[error("the allocator's library {} {}: {reason}", path.display(), match symbol {
        Some(symbol) => format!("has no function `{symbol}`"),
        None => "cannot be loaded".to_owned(),
    })]
    AllocatorLibrary {
        /// Path of the library.
        path: PathBuf,
        /// The missing function. `None` if the library cannot be loaded.
        symbol: Option<String>,
        /// The loader's message.
        reason: String,
    },
    /// The driver works, but reports no device.
    #[error("no CUDA device is visible: {reason}")]
    NoDevice {
        /// The driver's answer, and advice on what to check.
        reason: String,
    },
    /// The specification of simulated devices asks for zero devices.
    #[error("no CUDA device is visible: `{spec}` asks for none")]
    NoneSimulated {
        /// The specification, such as `sim:0`.
        spec: String,
    },
    /// `CUDA_VISIBLE_DEVICES` hides every device.
    #[error("no CUDA device is visible: CUDA_VISIBLE_DEVICES is `{value}`, which {}",
        match installed {
            Some(1) => "does not show the only device".to_owned(),
            Some(count) => format!("shows none of the {count} devices"),
            None => "hides every device that it does not name".to_owned(),
        }
    )]
    DevicesHidden {
        /// Value of the variable.
        value: String,
        /// Number of devices in the machine, if known.
        installed: Option<usize>,
    },
    /// There is no device with this index.
    #[error(
        "invalid device ordinal: cuda:{device} was requested, but {count} device(s) are visible"
    )]
    InvalidDevice {
        /// The requested index.
        device: usize,
        /// Number of visible devices.
        count: usize,
    },
    /// An earlier sticky error lost the device for good, and with it all other devices of the
    /// process (except simulated devices with isolated faults).
    #[error(
        "cuda:{device} is lost, and every other CUDA device of this process with it: the process has to end before CUDA can be used again (CPU tensors stay usable); the cause was: {cause}"
    )]
    DeviceLost {
        /// The device.
        device: usize,
        /// The sticky error, which may have occurred on another device.
        cause: Arc<CudaError>,
    },
    /// The call was made in a process that was forked after CUDA was initialised in its parent.
    #[error(
        "{call} was called in a forked child of process {parent}: CUDA does not survive fork(); start the child with exec or spawn"
    )]
    ForkedChild {
        /// The driver function.
        call: &'static str,
        /// Id of the process that initialised CUDA.
        parent: u32,
    },
    /// An argument is invalid, or the operation is not allowed now, for example on a stream that is
    /// being captured. The operation did not reach the driver.
    #[error("{call}: {reason}")]
    InvalidArgument {
        /// The operation.
        call: &'static str,
        /// The rule that the argument or the operation breaks.
        reason: String,
    },
    /// A call of another CUDA library (cuBLAS, cuDNN, NVRTC, NCCL) failed. Statuses of these
    /// libraries are not codes of the driver.
    #[error(
        "{call} failed: {status}{}{detail}{}",
        if detail.is_empty() { "" } else { ": " },
        location.map_or_else(String::new, |location| format!(", asked for at {location}"))
    )]
    LibraryCall {
        /// The library function, such as `cublasGemmStridedBatchedEx`.
        call: &'static str,
        /// The library's own name or text for the status.
        status: String,
        /// Further information, such as a compiler's log. May be empty.
        detail: String,
        /// Source line that asked for the call, if known.
        location: Option<&'static Location<'static>>,
    },
    /// A CUDA library uses cuBLAS, but is built for a different major version of CUDA than cuBLAS.
    #[error(
        "{library} is built for CUDA {cuda}, but the process's cuBLAS for CUDA {cublas}; name libraries of one version in WARPLINE_CUDNN and WARPLINE_CUBLAS"
    )]
    OtherCuda {
        /// The library.
        library: &'static str,
        /// Major version of CUDA that the library is built for.
        cuda: u32,
        /// Major version of CUDA that cuBLAS is built for.
        cublas: u32,
    },
    /// Ranks of a communicator made different calls where all must make the same call.
    #[error("{0}")]
    CollectiveMismatch(Box<CollectiveMismatch>),
    /// A driver call failed for any other reason.
    #[error("{0}")]
    Cuda(Box<CudaError>),
}

/// Writes the message, as `Display` does, because `main` and `unwrap` print errors by `Debug`.
impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl DriverError {
    /// Creates [`DriverError::InvalidVariable`].
    #[must_use]
    pub fn variable(
        variable: impl Into<Cow<'static, str>>,
        value: impl Into<String>,
        reason: String,
    ) -> Self {
        let (variable, value) = (variable.into(), value.into());
        Self::InvalidVariable(Box::new(InvalidVariable { variable, value, reason }))
    }

    /// Returns `true` if there is no GPU to use: no driver is installed, or the driver reports no
    /// device. Other errors mean that something is wrong.
    #[must_use]
    pub fn is_no_device(&self) -> bool {
        matches!(
            self,
            Self::LibraryNotFound { .. }
                | Self::NoDevice { .. }
                | Self::NoneSimulated { .. }
                | Self::DevicesHidden { .. }
        ) || self.code() == Some(CudaCode::STUB_LIBRARY)
    }

    /// Creates [`DriverError::Cuda`] without detail and location.
    #[must_use]
    pub fn cuda(call: &'static str, code: CudaCode, device: Option<usize>) -> Self {
        Self::Cuda(Box::new(CudaError { call, code, device, detail: None, location: None }))
    }

    /// Sets the line that asked for the call, unless it is set already. Only [`DriverError::Cuda`]
    /// and [`DriverError::LibraryCall`] have a line to set.
    #[must_use]
    pub fn at(mut self, location: &'static Location<'static>) -> Self {
        let place = match &mut self {
            Self::Cuda(error) => &mut error.location,
            Self::LibraryCall { location, .. } => location,
            _ => return self,
        };
        place.get_or_insert(location);
        self
    }

    /// Returns the line that asked for the call, if known.
    #[must_use]
    pub fn location(&self) -> Option<&'static Location<'static>> {
        match self {
            Self::Cuda(error) => error.location,
            Self::DeviceLost { cause, .. } => cause.location,
            Self::LibraryCall { location, .. } => *location,
            _ => None,
        }
    }

    /// Sets [`CudaError::detail`], unless it is set already. Does nothing to errors other than
    /// [`DriverError::Cuda`].
    #[must_use]
    pub fn with_detail(mut self, detail: impl FnOnce() -> String) -> Self {
        if let Self::Cuda(error) = &mut self {
            error.detail.get_or_insert_with(detail);
        }
        self
    }

    /// Returns the CUDA code of the error, if it has one.
    #[must_use]
    pub fn code(&self) -> Option<CudaCode> {
        match self {
            Self::Cuda(error) => Some(error.code),
            Self::DeviceLost { cause, .. } => Some(cause.code),
            _ => None,
        }
    }

    /// Returns `true` if the device of the failed call cannot be used any more.
    #[must_use]
    pub fn loses_device(&self) -> bool {
        matches!(self, Self::DeviceLost { .. }) || self.code().is_some_and(CudaCode::is_sticky)
    }

    /// Returns `true` if the device or the host is out of memory.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::HostMemory { .. }) || self.code() == Some(CudaCode::OUT_OF_MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::CUresult::{self, *};

    use super::*;

    #[test]
    fn codes_are_those_of_the_header() {
        let listed: [CUresult; 32] = [
            CUDA_ERROR_INVALID_VALUE,
            CUDA_ERROR_OUT_OF_MEMORY,
            CUDA_ERROR_STUB_LIBRARY,
            CUDA_ERROR_DEVICE_NOT_LICENSED,
            CUDA_ERROR_UNMAP_FAILED,
            CUDA_ERROR_ALREADY_MAPPED,
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUDA_ERROR_NOT_MAPPED,
            CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUDA_ERROR_JIT_COMPILATION_DISABLED,
            CUDA_ERROR_INVALID_SOURCE,
            CUDA_ERROR_FILE_NOT_FOUND,
            CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
            CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
            CUDA_ERROR_OPERATING_SYSTEM,
            CUDA_ERROR_ILLEGAL_ADDRESS,
            CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
            CUDA_ERROR_TOO_MANY_PEERS,
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            CUDA_ERROR_SYSTEM_NOT_READY,
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
            CUDA_ERROR_MPS_CONNECTION_FAILED,
            CUDA_ERROR_MPS_RPC_FAILURE,
            CUDA_ERROR_MPS_SERVER_NOT_READY,
            CUDA_ERROR_MPS_CLIENT_TERMINATED,
            CUDA_ERROR_CAPTURED_EVENT,
            CUDA_ERROR_TIMEOUT,
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
            CUDA_ERROR_EXTERNAL_DEVICE,
        ];
        for result in listed {
            assert_eq!(CudaCode(result as u32).name(), format!("{result:?}"));
        }
        let newer = DriverError::cuda("cuInit", CudaCode(4321), None).to_string();
        assert!(newer.contains("4321") && !newer.contains("CUDA_ERROR_UNKNOWN"), "{newer}");
    }

    #[test]
    fn a_failed_library_call_says_where_it_was_asked_for() {
        let here = Location::caller();
        let failed = DriverError::LibraryCall {
            call: "cublasGemmStridedBatchedEx",
            status: "CUBLAS_STATUS_EXECUTION_FAILED".into(),
            detail: String::new(),
            location: None,
        };
        let text = failed.at(here).to_string();
        assert!(text.ends_with(&format!("asked for at {here}")), "{text}");
    }
}
