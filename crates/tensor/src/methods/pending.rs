//! Values on their way from a device to the host.

use std::fmt;

use crate::cuda::Event;
use crate::exec::Exec;
use crate::{Element, ErrorKind, Result, Tensor};

/// A value that a device is still to write (PyTorch: what `t.to('cpu', non_blocking=True)` gives,
/// with an event that says when it may be read).
///
/// It owns the page-locked memory that the copy goes into. Nothing can read that before the copy
/// is done, and dropped early it goes to nobody else before then; dropping does not wait. It may
/// be waited for in another thread than the one that made it.
#[must_use = "nothing waits for the copy unless the value is asked for"]
pub struct Pending<T> {
    host: Tensor,
    /// Recorded right after the copy, so that later work on its stream is not waited for. `None`
    /// where there was nothing to copy from a device.
    done: Option<Event>,
    value: fn(Tensor) -> Result<T>,
}

impl<T> Pending<T> {
    /// Whether [`Pending::wait`] would return at once.
    ///
    /// # Errors
    /// What earlier work on the device failed with.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        Ok(match &self.done {
            Some(done) => done.query()?,
            None => true,
        })
    }

    /// Blocks the host until the copy is done, not for work that the stream was given later, and
    /// gives the value. Costs no wait once [`Pending::query`] has answered true.
    ///
    /// # Errors
    /// What the copy, or earlier work on the device, failed with.
    #[track_caller]
    pub fn wait(self) -> Result<T> {
        if let Some(done) = self.done {
            let waited = done.host_wait();
            // What these values were computed from, whatever else the wait reports.
            let memory = self.host.storage();
            memory.check_marks(0..memory.bytes())?;
            waited?;
        }
        (self.value)(self.host)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the elements: they may still be written.
        f.debug_struct("Pending")
            .field("size", &self.host.size())
            .field("dtype", &self.host.dtype())
            .finish_non_exhaustive()
    }
}

impl Tensor {
    /// All elements, row-major, once the device has copied them: [`Tensor::to_vec`] that does not
    /// wait. They are those of now, whatever is written to the tensor later.
    ///
    /// ```
    /// # use warpline::{arange, simulated, with_runtime};
    /// with_runtime(&simulated(1)?, || {
    ///     let t = arange(4, "cuda")?;
    ///     let pending = t.to_vec_async::<i64>()?;
    ///     t.fill_(0)?; // comes after the copy
    ///     assert_eq!(pending.wait()?, [0, 1, 2, 3]);
    ///     Ok::<_, warpline::Error>(())
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] when `T` is not the tensor's dtype; what enqueueing the copy fails
    /// with.
    #[track_caller]
    pub fn to_vec_async<T: Element>(&self) -> Result<Pending<Vec<T>>> {
        if self.dtype() != T::DTYPE {
            return Err(ErrorKind::DTypeMismatch { expected: T::DTYPE, actual: self.dtype() }
                .of("to_vec_async"));
        }
        // On the host there is nothing to wait for, but others may write to the memory.
        let from = if self.is_cuda() { self.clone() } else { self.duplicate()? };
        from.pending(|host| host.to_vec())
    }

    /// The tensor on the host, once the device has copied it: [`Tensor::cpu`] that does not wait
    /// (`t.to('cpu', non_blocking=True)`). The tensor itself where it is there already.
    ///
    /// # Errors
    /// What enqueueing the copy fails with.
    #[track_caller]
    pub fn cpu_async(&self) -> Result<Pending<Tensor>> {
        self.pending(Ok)
    }

    #[track_caller]
    fn pending<T>(&self, value: fn(Tensor) -> Result<T>) -> Result<Pending<T>> {
        let host = self.to_non_blocking("cpu")?;
        let done = match self.exec()? {
            Exec::Cpu(_) => None,
            Exec::Cuda(_, _, stream) => Some(stream.record_event(None)?),
        };
        Ok(Pending { host, done, value })
    }
}
