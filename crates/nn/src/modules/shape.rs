//! Modules that only change sizes.

use warpline::{Result, Tensor};

use super::activation::forward;
use crate::{Forward, Module};

/// Its input (`torch.nn.Identity`).
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Identity;

forward!(Identity, _this, x => Ok(x.clone()));

/// Dimensions taken together (`torch.nn.Flatten`): all but the first, by default.
#[derive(Clone, Copy, Debug, Module)]
pub struct Flatten {
    /// The first of them.
    pub start_dim: isize,
    /// The last of them.
    pub end_dim: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Self { start_dim: 1, end_dim: -1 }
    }
}

forward!(Flatten, this, x => x.flatten(this.start_dim, this.end_dim));

/// A dimension in several (`torch.nn.Unflatten`).
#[derive(Clone, Debug, Module)]
pub struct Unflatten {
    /// Which.
    pub dim: isize,
    /// The sizes, of which one may be -1.
    #[module(skip)]
    pub sizes: Vec<isize>,
}

forward!(Unflatten, this, x => x.unflatten(this.dim, &this.sizes));
