//! Embedding tables.

use warpline::functional::embedding;
use warpline::{Error, Result, Tensor, TensorOptions, randn};

use crate::called::Called;
use crate::{Forward, Module, Parameter, input_device};

/// A table of vectors (`torch.nn.Embedding`). Maps integer indices `[..]` to vectors `[.., width]`.
#[derive(Clone, Debug, Module)]
pub struct Embedding {
    /// The table, `[entries, width]`.
    pub weight: Parameter,
    padding_idx: Option<usize>,
}

impl Embedding {
    /// Creates a table of `entries` vectors, drawn from the standard normal distribution.
    ///
    /// # Errors
    /// The same as [`randn`].
    #[track_caller]
    pub fn new(entries: usize, width: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        Self::with_padding(entries, width, None, options)
    }

    /// Creates a table like [`Embedding::new`], whose entry `padding_idx` is zero and gets no gradient.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `padding_idx` is not below `entries`;
    /// errors of [`randn`].
    #[track_caller]
    pub fn with_padding(
        entries: usize,
        width: usize,
        padding_idx: impl Into<Option<usize>>,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let padding_idx = padding_idx.into();
        if let Some(entry) = padding_idx.filter(|entry| *entry >= entries) {
            let reason = format!("padding_idx {entry} is none of {entries} entries");
            return Err(Error::invalid("Embedding", reason));
        }
        let op = "Embedding";
        let weight = randn([entries, width], options).of(op)?;
        if let Some(entry) = padding_idx {
            weight.select(0, entry as isize).of(op)?.zero_().of(op)?;
        }
        Ok(Self { weight: Parameter::new(weight).of(op)?, padding_idx })
    }

    /// Creates a table from an existing parameter (`from_pretrained`).
    #[must_use]
    pub fn from_weight(weight: Parameter) -> Self {
        Self { weight, padding_idx: None }
    }

    /// Looks up the vectors of `indices`.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `indices` is on a device that cannot
    /// access `weight`; errors of [`embedding`].
    #[track_caller]
    pub fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        input_device::check("Embedding", indices, "weight", &self.weight)?;
        let padding = self.padding_idx.map(|entry| entry as isize);
        embedding(indices, &self.weight, padding)
    }
}

impl Forward<Tensor> for Embedding {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, indices: Tensor) -> Result<Tensor> {
        self.forward(&indices)
    }
}
