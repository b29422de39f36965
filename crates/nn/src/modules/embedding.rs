//! Vectors that indices name.

use warpline::functional::embedding;
use warpline::{Error, Result, Tensor, TensorOptions, randn};

use crate::called::Called;
use crate::{Forward, Module, Parameter, place};

/// A table of vectors (`torch.nn.Embedding`): indices `[..]` to `[.., width]`.
#[derive(Clone, Debug, Module)]
pub struct Embedding {
    /// `[entries, width]`.
    pub weight: Parameter,
    padding_idx: Option<usize>,
}

impl Embedding {
    /// A table drawn from the normal distribution.
    ///
    /// # Errors
    /// When the memory cannot be had.
    #[track_caller]
    pub fn new(entries: usize, width: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        Self::with_padding(entries, width, None, options)
    }

    /// [`Embedding::new`], of which the entry `padding_idx` is zero and is not learned.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where there is no such entry; as [`Embedding::new`].
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

    /// A table that is there (`from_pretrained`).
    #[must_use]
    pub fn from_weight(weight: Parameter) -> Self {
        Self { weight, padding_idx: None }
    }

    /// The vectors.
    ///
    /// # Errors
    /// As [`embedding`].
    #[track_caller]
    pub fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        place::check("Embedding", indices, "weight", &self.weight)?;
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
