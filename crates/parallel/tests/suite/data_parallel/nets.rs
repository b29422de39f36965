//! Modules for tests.

use std::sync::{Arc, Mutex};

use warpline::{Device, Result, Tensor, cuda, full, zeros};
use warpline_nn::{Buffer, Forward, Module, Visitor, VisitorMut};

/// Computes `x * weight + count`. Each forward pass adds the first element of its input to `count`, and records its
/// device and stream.
#[derive(Clone, Module)]
pub(crate) struct Counts {
    pub(crate) weight: Buffer,
    pub(crate) count: Buffer,
    #[module(skip)]
    pub(crate) seen: Arc<Mutex<Vec<ForwardRecord>>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ForwardRecord {
    pub(crate) device: Device,
    pub(crate) size: Vec<usize>,
    /// The current stream of the current device.
    pub(crate) stream: cuda::Stream,
}

impl Counts {
    pub(crate) fn new(device: usize) -> Result<Self> {
        let device = Device::cuda(device);
        let (weight, count) =
            (Buffer::new(full([], 2.0, device)?), Buffer::new(zeros([], device)?));
        Ok(Self { weight, count, seen: Arc::default() })
    }

    /// Returns and clears the recorded forward passes, ordered by device.
    pub(crate) fn take_seen(&self) -> Vec<ForwardRecord> {
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap());
        seen.sort_by_key(|seen| seen.device.index());
        seen
    }
}

impl Forward<Tensor> for Counts {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let device = x.device();
        let stream = cuda::current_stream(())?;
        self.seen.lock().unwrap().push(ForwardRecord { device, size: x.size().to_vec(), stream });
        if x.numel() > 0 {
            self.count.add_(&x.flatten(())?.select(0, 0)?)?;
        }
        x.mul(&self.weight)?.add(&self.count)
    }
}

/// A module without tensors that runs a closure.
#[derive(Clone)]
pub(crate) struct FnModule<F>(pub(crate) F);

impl<F: 'static> Module for FnModule<F> {
    fn visit<'m>(&'m self, _: &mut Visitor<'m, '_>) {}
    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl<F: Fn(I) -> Result<O>, I, O> Forward<I> for FnModule<F> {
    type Output = O;

    fn forward(&self, input: I) -> Result<O> {
        (self.0)(input)
    }
}

/// A module with two buffers that share a tensor, and a third buffer.
#[derive(Clone, Module)]
pub(crate) struct Tied {
    pub(crate) weights: [Buffer; 3],
    /// Buffers of each replica that ran.
    #[module(skip)]
    pub(crate) left: Arc<Mutex<Vec<[Tensor; 3]>>>,
}

impl Tied {
    pub(crate) fn new() -> Result<Self> {
        let one = Buffer::new(full([4], 1.0, 0)?);
        let weights = [one.clone(), one, Buffer::new(full([4], 3.0, 0)?)];
        Ok(Self { weights, left: Arc::default() })
    }
}

impl Forward<Tensor> for Tied {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.left.lock().unwrap().push(self.weights.each_ref().map(|weight| Tensor::clone(weight)));
        // Write in place through one buffer and read through the other.
        if x.device() != Device::cuda(0) {
            self.weights[0].add_(1.0)?;
        }
        x.mul(&self.weights[1])
    }
}
