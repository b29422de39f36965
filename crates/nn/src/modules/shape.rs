//! Modules that change only the shape of their input, or nothing.

use warpline::{Result, Tensor};

use super::activation::forward;
use crate::{Forward, Module};

/// Returns its input (`torch.nn.Identity`).
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Identity;

forward!(Identity, _this, x => Ok(x.clone()));

/// Flattens a range of dimensions into one (`torch.nn.Flatten`). Default: all dimensions but the first.
#[derive(Clone, Copy, Debug, Module)]
pub struct Flatten {
    /// First dimension of the range. Negative: counted from the end. Default: 1.
    pub start_dim: isize,
    /// Last dimension of the range, inclusive. Negative: counted from the end. Default: -1.
    pub end_dim: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Self { start_dim: 1, end_dim: -1 }
    }
}

forward!(Flatten, this, x => x.flatten(this.start_dim, this.end_dim));

/// Splits a dimension into several (`torch.nn.Unflatten`).
#[derive(Clone, Debug, Module)]
pub struct Unflatten {
    /// The dimension to split. Negative: counted from the end.
    pub dim: isize,
    /// Sizes of the new dimensions. One size may be -1, which is inferred.
    #[module(skip)]
    pub sizes: Vec<isize>,
}

forward!(Unflatten, this, x => x.unflatten(this.dim, &this.sizes));
