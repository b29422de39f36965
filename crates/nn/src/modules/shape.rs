//! Modules that change only the shape of their input, or nothing.

use warpline::{Integer, IntoOptions, IntoSizes, Result, Tensor};

use super::activation::forward;
use super::repr::tuple;
use crate::{Forward, Module};

/// Returns its input (`torch.nn.Identity`).
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Identity;

forward!(Identity, _this, x => Ok(x.clone()));

warpline::__options! {
    /// Options of [`Flatten`].
    #[derive(Clone, Copy, Debug)]
    FlattenOptions [] [] {
        /// Sets the first dimension of the range. Negative: counted from the end. Default: 1.
        start_dim: isize = 1, impl Integer => Integer::into_isize;
        /// Sets the last dimension of the range, inclusive. Negative: counted from the end. Default: -1.
        end_dim: isize = -1, impl Integer => Integer::into_isize;
    }
}

/// Flattens a range of dimensions into one (`torch.nn.Flatten`). Default: all dimensions but the first.
#[derive(Clone, Copy, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct Flatten {
    #[module(skip)]
    options: FlattenOptions,
}

impl Flatten {
    /// Creates a module that flattens a range of dimensions.
    #[must_use]
    pub fn new(options: impl IntoOptions<FlattenOptions>) -> Self {
        Self { options: options.into_options() }
    }

    fn describe(&self) -> String {
        let FlattenOptions { start_dim, end_dim } = self.options;
        format!("start_dim={start_dim}, end_dim={end_dim}")
    }
}

forward!(Flatten, this, x => x.flatten((this.options.start_dim, this.options.end_dim)));

/// Splits a dimension into several (`torch.nn.Unflatten`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct Unflatten {
    dim: isize,
    #[module(skip)]
    sizes: Vec<isize>,
}

impl Unflatten {
    /// Creates a module that splits dimension `dim`, counted from the end if negative. One of the sizes may be -1,
    /// which is inferred.
    #[must_use]
    pub fn new(dim: impl Integer, sizes: impl IntoSizes) -> Self {
        Self { dim: dim.into_isize(), sizes: sizes.into_sizes().into_vec() }
    }

    fn describe(&self) -> String {
        format!("dim={}, unflattened_size={}", self.dim, tuple(&self.sizes))
    }
}

forward!(Unflatten, this, x => x.unflatten(this.dim, &this.sizes));
