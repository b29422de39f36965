//! Calls of CUDA libraries in place of kernels.

use std::marker::PhantomData;

use bytemuck::Pod;
use warpline_cuda_sys_safe::{DevicePtr, DriverError, HostKernel, StreamHandle};

use super::super::{Call, Code, Target, run};
use super::{DTYPES, Hosts};
use crate::module::CudaType;
use crate::{CudaDevice, DType, ErrorKind, Operand, Result, Site};

/// An op with `N` operands and the parameters `P` that a library computes on a GPU. The CPU and a simulated GPU run the
/// CPU implementation.
#[derive(Clone, Copy, Debug)]
pub struct LibraryOp<P, const N: usize> {
    /// Indexed by dtype of the first operand.
    hosts: [Option<HostKernel>; DTYPES],
    params: PhantomData<fn(&P)>,
}

impl<P: CudaType + Pod, const N: usize> LibraryOp<P, N> {
    /// Declares the op. The dtype of the first operand selects the CPU implementation; the variants
    /// that `hosts` names are not used.
    ///
    /// # Safety
    /// The conditions of [`Kernel::new`](super::Kernel::new) that concern the CPU implementation.
    #[must_use]
    pub const unsafe fn new(hosts: Hosts<P>) -> Self {
        const { assert!(N > 0, "the dtype of an operand selects the CPU implementation") };
        let mut all = [None; DTYPES];
        let mut dtype = 0;
        while dtype < DTYPES {
            if let Some(variant) = hosts.by_dtype[dtype] {
                all[dtype] = Some(variant.host);
            }
            dtype += 1;
        }
        Self { hosts: all, params: PhantomData }
    }

    /// Makes the call on a GPU. Elsewhere runs the CPU implementation with the parameters of the
    /// call. `op` is the name of the op for its users.
    ///
    /// # Errors
    /// - [`ErrorKind::UnsupportedDType`] if there is no CPU implementation for the dtype of the
    ///   first operand.
    /// - [`ErrorKind::Driver`] if the library fails.
    /// - The other errors of [`Kernel::launch`](super::Kernel::launch).
    #[track_caller]
    pub fn launch(
        &self,
        target: Target<'_>,
        op: &'static str,
        operands: &[Operand<'_>; N],
        call: &impl LibraryCall<N, Params = P>,
    ) -> Result<()> {
        let dtype: DType = operands[0].view.dtype;
        let Some(host) = self.hosts[dtype as usize] else {
            return Err(ErrorKind::UnsupportedDType { dtype }.of(op));
        };
        let enqueue = |stream: StreamHandle, pointers: &[DevicePtr]| {
            let (Target::Cuda(_, device, _), Ok(pointers)) = (target, pointers.try_into()) else {
                let reason = format!(
                    "the launch has {N} operands, but the driver passed {} pointers",
                    pointers.len()
                );
                return Err(DriverError::InvalidArgument { call: op, reason });
            };
            // SAFETY: the driver has made the context of the target's device current, and passes the
            // target's stream and the addresses of the operands. The launch keeps the operands' memory
            // alive.
            unsafe { call.enqueue(device, stream, pointers) }
        };
        let Site { op, location } = Site::here(op);
        let (code, params) = (Code::Library(&enqueue), bytemuck::bytes_of(call.params()));
        let checks_indices = P::BEGINS_WITH_REPORT;
        let call = Call { op, operands, params, checks_indices, host, code, location };
        // SAFETY: the implementation of `LibraryCall` guarantees that the work that it enqueues accesses
        // only the operands, as declared, and the caller of `new` guarantees the same for `host`.
        unsafe { run(target, &call) }
    }
}

/// The library call that a GPU runs for a [`LibraryOp`] with `N` operands.
///
/// # Safety
/// - [`enqueue`](Self::enqueue) enqueues only on the stream that it receives, and uses no host
///   memory after it has returned.
/// - The enqueued work fulfils the promises of [`Kernel::new`](super::Kernel::new) that concern GPU code, for every
///   launch by code that can make the call: it accesses only elements of the operands at `pointers`, and writes every
///   element of those that are declared as written. Keep the type private to code that makes the call's value from the
///   same views that are the operands of the launch.
pub unsafe trait LibraryCall<const N: usize> {
    /// The parameters of the CPU implementation.
    type Params;

    /// Returns the parameters of the CPU implementation that computes the same.
    fn params(&self) -> &Self::Params;

    /// Enqueues the call on a stream of `device`. `pointers` are the addresses of the operands.
    ///
    /// # Errors
    /// The error of the library, if the library refuses the call.
    ///
    /// # Safety
    /// The stream is alive, and the context of its device is current. The memory of the operands
    /// stays valid until the work is done.
    unsafe fn enqueue(
        &self,
        device: &CudaDevice,
        stream: StreamHandle,
        pointers: &[DevicePtr; N],
    ) -> Result<(), DriverError>;
}
