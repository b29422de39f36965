//! Embedding tables.

use warpline::__Called as _;
use warpline::functional::{self, embedding};
use warpline::{Error, Integer, IntoOptions, Result, Tensor, randn};

use super::options::parameter_options;
use super::repr::size;
use crate::{Forward, Module, Parameter, input_device};

/// A table of vectors (`torch.nn.Embedding`). Maps integer indices `[..]` to vectors `[.., width]`.
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct Embedding {
    /// The table, `[entries, width]`.
    pub weight: Parameter,
    padding_idx: Option<isize>,
}

/// Converts the argument of the setter `padding_idx`.
fn row(index: impl Integer) -> Option<isize> {
    Some(index.into_isize())
}

parameter_options! {
    /// Options of [`Embedding`].
    EmbeddingOptions [] [] {
        /// Sets the entry that is zero and gets no gradient. Negative: counted from the end. Default: none.
        padding_idx: Option<isize> = None, impl Integer => row;
    }
}

warpline::__options! {
    /// Options of [`Embedding::from_pretrained`].
    #[derive(Clone, Copy, Debug)]
    EmbeddingFromPretrainedOptions [] [] {
        /// Sets whether the table is a constant, which gets no gradient. Default: `true`.
        freeze: bool = true, bool;
        /// Sets the entry that gets no gradient. Negative: counted from the end. Default: none.
        padding_idx: Option<isize> = None, impl Integer => row;
    }
}

/// Fails if `padding_idx` is not the index of an entry.
#[track_caller]
fn check_padding_idx(padding_idx: Option<isize>, entries: usize) -> Result<()> {
    let rows = isize::try_from(entries).unwrap_or(isize::MAX);
    match padding_idx.filter(|entry| !(-rows..rows).contains(entry)) {
        None => Ok(()),
        Some(entry) => {
            let reason = format!("padding_idx {entry} is out of range for {entries} entries");
            Err(Error::invalid("Embedding", reason))
        }
    }
}

impl Embedding {
    /// Creates a table of `entries` vectors, drawn from the standard normal distribution.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `padding_idx` is out of range;
    /// errors of [`randn`].
    #[track_caller]
    pub fn new(
        entries: usize,
        width: usize,
        options: impl IntoOptions<EmbeddingOptions>,
    ) -> Result<Self> {
        let EmbeddingOptions { padding_idx, tensor: options } = options.into_options();
        let op = "Embedding";
        check_padding_idx(padding_idx, entries)?;
        let weight = randn([entries, width], options).of(op)?;
        if let Some(entry) = padding_idx {
            weight.select(0, entry).of(op)?.zero_().of(op)?;
        }
        Ok(Self { weight: Parameter::new(weight).of(op)?, padding_idx })
    }

    /// Creates a table from its vectors, `[entries, width]`, and shares their memory (`from_pretrained`).
    ///
    /// ```
    /// use warpline::tensor;
    /// use warpline_nn::{Embedding, EmbeddingFromPretrainedOptions};
    ///
    /// let vectors = tensor![[1.0, 2.0], [3.0, 4.0]]?;
    /// let table = Embedding::from_pretrained(&vectors, ())?;
    /// assert_eq!(table.forward(&tensor![1]?)?.to_vec::<f32>()?, [3.0, 4.0]);
    /// assert!(!table.weight.requires_grad());
    /// let options = EmbeddingFromPretrainedOptions::new().freeze(false);
    /// assert!(Embedding::from_pretrained(&vectors, options)?.weight.requires_grad());
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`](warpline::ErrorKind::ShapeMismatch) if `weight` does not have two dimensions.
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `padding_idx` is out of range.
    /// Errors of [`Parameter::new`].
    #[track_caller]
    pub fn from_pretrained(
        weight: &Tensor,
        options: impl IntoOptions<EmbeddingFromPretrainedOptions>,
    ) -> Result<Self> {
        let EmbeddingFromPretrainedOptions { freeze, padding_idx } = options.into_options();
        let op = "Embedding";
        let [entries, _] = weight.dims().of(op)?;
        check_padding_idx(padding_idx, entries)?;
        let weight = Parameter::new(weight.clone()).of(op)?;
        if freeze {
            weight.requires_grad_(false).of(op)?;
        }
        Ok(Self { weight, padding_idx })
    }

    fn describe(&self) -> String {
        let padding = self.padding_idx.map(|entry| format!(", padding_idx={entry}"));
        let [entries, width] = [0, 1].map(|dim| size(&self.weight, dim));
        format!("{entries}, {width}{}", padding.unwrap_or_default())
    }

    /// Looks up the vectors of `indices`.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `indices` is on a device that cannot
    /// access `weight`; errors of [`embedding`].
    #[track_caller]
    pub fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        input_device::check("Embedding", indices, "weight", &self.weight)?;
        let mut options = functional::EmbeddingOptions::new();
        options.padding_idx = self.padding_idx;
        embedding(indices, &self.weight, options)
    }
}

impl Forward<Tensor> for Embedding {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, indices: Tensor) -> Result<Tensor> {
        self.forward(&indices)
    }
}
