//! Modules for tests.

use std::sync::{Arc, Mutex};

use warpline::nn::{Forward, Module};
use warpline::{Device, Result, Tensor, cuda, full, zeros};

type Visit<'a> = &'a mut dyn FnMut(&str, &mut Tensor) -> Result<()>;

/// `x * weight + count`, where `count` is a buffer to which each forward adds its input's first
/// element, and which computed where is noted.
#[derive(Clone)]
pub(crate) struct Counts {
    pub(crate) weight: Tensor,
    pub(crate) count: Tensor,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) device: Device,
    pub(crate) size: Vec<usize>,
    /// The current one of the current device.
    pub(crate) stream: cuda::Stream,
}

impl Counts {
    pub(crate) fn new(device: usize) -> Result<Self> {
        let device = Device::cuda(device);
        Ok(Self { weight: full([], 2.0, device)?, count: zeros([], device)?, seen: Arc::default() })
    }

    /// What was noted, by device.
    pub(crate) fn take_seen(&self) -> Vec<Seen> {
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap());
        seen.sort_by_key(|seen| seen.device.index());
        seen
    }
}

impl Module for Counts {
    fn visit_parameters(&mut self, visit: Visit<'_>) -> Result<()> {
        visit("weight", &mut self.weight)
    }

    fn visit_buffers(&mut self, visit: Visit<'_>) -> Result<()> {
        visit("count", &mut self.count)
    }
}

impl Forward<Tensor> for Counts {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let device = x.device();
        let stream = cuda::current_stream(())?;
        self.seen.lock().unwrap().push(Seen { device, size: x.size().to_vec(), stream });
        if x.numel() > 0 {
            self.count.add_(&x.flatten(0, -1)?.select(0, 0)?)?;
        }
        x.mul(&self.weight)?.add(&self.count)
    }
}

/// A module without tensors that runs a closure.
#[derive(Clone)]
pub(crate) struct Runs<F>(pub(crate) F);

impl<F> Module for Runs<F> {
    fn visit_parameters(&mut self, _: Visit<'_>) -> Result<()> {
        Ok(())
    }
}

impl<F: Fn(I) -> Result<O>, I, O> Forward<I> for Runs<F> {
    type Output = O;

    fn forward(&self, input: I) -> Result<O> {
        (self.0)(input)
    }
}

/// Two parameters that are one tensor, and one that is not.
#[derive(Clone)]
pub(crate) struct Tied {
    pub(crate) weights: [Tensor; 3],
    /// Where replicas leave what they have.
    pub(crate) left: Arc<Mutex<Vec<[Tensor; 3]>>>,
}

impl Tied {
    pub(crate) fn new() -> Result<Self> {
        let one = full([4], 1.0, 0)?;
        let weights = [one.clone(), one, full([4], 3.0, 0)?];
        Ok(Self { weights, left: Arc::default() })
    }
}

impl Module for Tied {
    fn visit_parameters(&mut self, visit: Visit<'_>) -> Result<()> {
        self.weights.iter_mut().try_for_each(|weight| visit("weight", weight))
    }
}

impl Forward<Tensor> for Tied {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.left.lock().unwrap().push(self.weights.clone());
        // In place through one, read through the other.
        if x.device() != Device::cuda(0) {
            self.weights[0].add_(1.0)?;
        }
        x.mul(&self.weights[1])
    }
}
