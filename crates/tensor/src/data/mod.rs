//! Loading data in batches (`torch.utils.data`).

mod collate;
mod loader;
mod sampler;

pub use collate::{Collate, PinMemory};
pub use loader::{Batches, DataLoader};
pub use sampler::{DistributedSampler, RandomSampler, Sampler};

use crate::{Error, Result, Tensor};

/// Samples by index (`torch.utils.data.Dataset`).
pub trait Dataset: Send + Sync + 'static {
    /// One sample: a tensor, a number, or a tuple of such.
    type Sample: Collate;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sample `index`.
    ///
    /// # Errors
    /// Whatever loading it met; the batch it belongs to is then that error.
    fn get(&self, index: usize) -> Result<Self::Sample>;
}

/// Rows of two tensors with as many rows each (`torch.utils.data.TensorDataset`).
#[derive(Clone, Debug)]
pub struct TensorDataset {
    inputs: Tensor,
    targets: Tensor,
}

impl TensorDataset {
    /// Pairs row `i` of `inputs` with row `i` of `targets`.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] when they have no rows, or not as many.
    #[track_caller]
    pub fn new(inputs: Tensor, targets: Tensor) -> Result<Self> {
        let rows = |t: &Tensor| t.size().first().copied();
        if rows(&inputs).is_none() || rows(&inputs) != rows(&targets) {
            return Err(Error::shape(
                "TensorDataset",
                format!(
                    "inputs of shape {:?} and targets of shape {:?} need the same first size",
                    inputs.size(),
                    targets.size()
                ),
            ));
        }
        Ok(Self { inputs, targets })
    }
}

impl Dataset for TensorDataset {
    type Sample = (Tensor, Tensor);

    fn len(&self) -> usize {
        self.inputs.size()[0]
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<Self::Sample> {
        // No index from the back, as negative ones are.
        let index = isize::try_from(index).unwrap_or(isize::MAX);
        Ok((self.inputs.select(0, index)?, self.targets.select(0, index)?))
    }
}
