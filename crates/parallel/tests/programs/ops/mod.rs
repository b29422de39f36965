//! The table of public functions.

mod factories;
mod indexing;
mod pointwise;
mod products;
mod reductions;
mod windows;

use std::sync::OnceLock;

#[cfg(target_os = "linux")]
use crate::channels;
use crate::row::{Effect, Row};
use crate::{files, gradients, groups, loaders, modules, optimizers, queries, scenarios, views};

/// The row of `Tensor::from_vec`, which makes tensors for other rows.
pub(crate) const FROM_VEC: usize = 0;
/// The row that drops a tensor.
pub(crate) const DROP: usize = 1;

/// Returns the row of `Tensor::requires_grad_`.
pub(crate) fn requires_grad() -> usize {
    table().iter().position(|row| row.effect == Effect::Leaf).expect("a row")
}

/// Returns all rows.
pub(crate) fn table() -> &'static [Row] {
    static TABLE: OnceLock<Vec<Row>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let families = [
            factories::rows(),
            pointwise::rows(),
            reductions::rows(),
            products::rows(),
            indexing::rows(),
            windows::rows(),
            views::rows(),
            gradients::rows(),
            scenarios::rows(),
            modules::rows(),
            optimizers::rows(),
            files::rows(),
            loaders::rows(),
            queries::rows(),
            groups::rows(),
            #[cfg(target_os = "linux")]
            channels::rows(),
        ];
        families.into_iter().flatten().collect()
    })
}
