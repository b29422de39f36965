//! The methods of [`Tensor`](crate::Tensor), and the functions that create, join and index tensors.

mod binary;
mod bounds;
pub(crate) mod composite;
mod elementwise;
mod factories;
mod foreign_names;
pub(crate) mod indexing;
mod inplace;
mod literal;
mod new_like;
mod operators;
mod order;
mod pending;
mod powers;
mod print;
mod products;
mod promote;
mod read;
mod record_reduction;
mod reduce;
mod reduction_gradients;
mod shapes;
mod softmax;
mod statistics;
mod tensor_data;
mod transfer;
mod unary;
mod unary_with_parameters;
mod views;

pub use bounds::{NanToNumOptions, where_cond};
pub use elementwise::{IntoOperand, TensorOrScalar, apply_elementwise};
pub(crate) use elementwise::{
    apply as apply_elementwise_in, common_dtype, common_dtype_of, counts_as_number, rounded,
};
pub use factories::{
    arange, arange_start, arange_start_step, empty, eye, full, linspace, logspace, ones, rand,
    randint, randn, randperm, tensor, zeros,
};
pub(crate) use indexing::embedding_padded;
pub use indexing::{
    BincountOptions, Ellipsis, HistcOptions, IndexRange, IntoIndices, ScatterReduce, TensorIndex,
    embedding,
};
pub use inplace::{NormalOptions, UniformOptions};
pub use literal::tensor_of_literals;
pub use order::{SortOptions, TopkOptions, UniqueOptions, isin, searchsorted};
pub use pending::Pending;
pub use powers::{IsCloseOptions, RoundingMode};
pub use products::{AddmmOptions, TensordotDims, einsum};
pub use promote::{promote_types, result_type};
pub use reduce::{IntoDim, IntoDims};
pub(crate) use shapes::list;
pub use shapes::{
    DiagEmbedOptions, DiagonalOptions, MeshIndexing, Rot90Options, block_diag, cat, dstack, hstack,
    meshgrid, stack, tril_indices, triu_indices, vstack,
};
pub(crate) use softmax::Softmax;
pub use statistics::{DiffOptions, NormOptions, VarOptions, VectorNormOptions};
pub use tensor_data::TensorData;
pub use views::DimRange;
