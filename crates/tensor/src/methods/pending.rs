//! Asynchronous copies of values from a device to the host.

use std::fmt;

#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called;
use crate::cuda::Event;
use crate::exec::Exec;
use crate::{CallScope, Element, Result, Tensor};

/// A value that a device is still copying to the host. PyTorch's counterpart is `t.to('cpu',
/// non_blocking=True)` together with an event that tells when the result can be read.
///
/// A `Pending` owns the page-locked memory of the copy. The memory cannot be read before the copy is complete.
/// If the `Pending` is dropped earlier, its memory is not reused before the copy is complete; the drop does not
/// wait. Any thread may wait for the value.
#[must_use = "nothing waits for the copy unless the value is asked for"]
pub struct Pending<T> {
    host: Tensor,
    /// Recorded right after the copy, so that a wait does not include later work of the stream. `None` if
    /// nothing was copied from a device.
    done: Option<Event>,
    value: fn(Tensor) -> Result<T>,
}

impl<T> Pending<T> {
    /// Returns whether [`Pending::wait`] would return at once.
    ///
    /// # Errors
    /// [`ErrorKind::Surfaced`] if the copy or earlier work on the device failed.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let _call = CallScope::enter("query");
        Ok(match &self.done {
            Some(done) => done.query()?,
            None => true,
        })
    }

    /// Waits until the copy is complete, and returns the value. Does not wait for work that was enqueued on the
    /// stream after the copy. Returns at once if [`Pending::query`] has returned `true`.
    ///
    /// # Errors
    /// [`ErrorKind::Surfaced`] if the copy or earlier work on the device failed. [`ErrorKind::IndexCheck`] or
    /// [`ErrorKind::Collective`] if an index check or a collective on which the value depends has failed.
    #[track_caller]
    pub fn wait(self) -> Result<T> {
        let _call = CallScope::enter("wait");
        if let Some(done) = self.done {
            let waited = done.host_wait();
            // If an op that computed the value failed, report its failure rather than an error of the wait.
            let memory = self.host.storage();
            memory.check_marks(0..memory.bytes())?;
            waited.of("wait")?;
        }
        (self.value)(self.host)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the elements, because the copy may still be writing them.
        f.debug_struct("Pending")
            .field("size", &self.host.size())
            .field("dtype", &self.host.dtype())
            .finish_non_exhaustive()
    }
}

impl Tensor {
    /// Starts a copy of all elements to the host, in row-major order: [`Tensor::to_vec`] without the wait. The
    /// copy has the elements at the time of the call; later writes to the tensor do not change the copy.
    ///
    /// ```
    /// # use warpline::{arange, simulated, with_runtime};
    /// with_runtime(&simulated(1)?, || {
    ///     let t = arange(4, "cuda")?;
    ///     let pending = t.to_vec_async::<i64>()?;
    ///     t.fill_(0)?; // runs after the copy
    ///     assert_eq!(pending.wait()?, [0, 1, 2, 3]);
    ///     Ok::<_, warpline::Error>(())
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if `T` is not the tensor's dtype. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn to_vec_async<T: Element>(&self) -> Result<Pending<Vec<T>>> {
        self.as_view().check_dtype("to_vec_async", T::DTYPE)?;
        // Copy a host tensor at once, because later writes must not change the value.
        let from = if self.is_cuda() { self.clone() } else { self.duplicate()? };
        from.pending(|host| host.to_vec())
    }

    /// Starts a copy of the tensor to the host: [`Tensor::cpu`] without the wait (`t.to('cpu',
    /// non_blocking=True)`). A tensor on the CPU is returned without a copy.
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn cpu_async(&self) -> Result<Pending<Tensor>> {
        let _call = CallScope::enter("to");
        self.pending(Ok)
    }

    #[track_caller]
    fn pending<T>(&self, value: fn(Tensor) -> Result<T>) -> Result<Pending<T>> {
        let host = self.to_non_blocking("cpu")?;
        let done = match self.exec()? {
            Exec::Cpu(_) => None,
            Exec::Cuda(_, _, stream) => Some(stream.record_event(None).of("to")?),
        };
        Ok(Pending { host, done, value })
    }
}
