//! Data sets and loaders (`torch.utils.data`).

mod collate;
mod loader;
mod sampler;

pub use collate::{Collate, PinMemory};
pub use loader::{Batches, DataLoader};
pub use sampler::{DistributedSampler, RandomSampler, Sampler};

#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result, Tensor};

/// A set of samples, by index (`torch.utils.data.Dataset`).
pub trait Dataset: Send + Sync + 'static {
    /// The type of a sample: a tensor, a number, or a tuple of these; another type that implements [`Collate`]; or any
    /// type, with a [`DataLoader::with_collate_fn`].
    type Sample: Send + 'static;

    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns sample number `index`.
    ///
    /// # Errors
    /// Errors of loading the sample. The loader returns them in place of the batch.
    fn get(&self, index: usize) -> Result<Self::Sample>;
}

/// Pairs of rows of two tensors (`torch.utils.data.TensorDataset`).
#[derive(Clone, Debug)]
pub struct TensorDataset {
    inputs: Tensor,
    targets: Tensor,
}

impl TensorDataset {
    /// Pairs row `i` of `inputs` with row `i` of `targets`.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if a tensor has no dimensions, or the numbers of rows differ.
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
        // An index that does not fit `isize` must not become negative, because negative indices count from the end.
        let index = isize::try_from(index).unwrap_or(isize::MAX);
        Ok((self.inputs.select(0, index)?, self.targets.select(0, index)?))
    }
}
