//! PyTorch's CUDA semantics, native in Rust: devices, streams, caching allocation, and a thin
//! tensor.
//!
//! ```
//! use warpline::{DType, tensor, zeros};
//!
//! let a = tensor(&[[1f32, 2.0], [3.0, 4.0]], ())?;
//! let b = (&a + 1.0)?.matmul(&a.t()?)?;
//! assert_eq!(b.to_vec::<f32>()?, [8.0, 18.0, 14.0, 32.0]);
//! println!("{b}");
//! assert_eq!(zeros([2], (DType::I64, "cpu"))?.to_string(), "tensor([0, 0])");
//! # Ok::<(), warpline::Error>(())
//! ```
//!
//! Every function that can fail returns a [`Result`], and so does every operator. With `"cuda"` as the device,
//! the same program runs on a GPU. With `WARPLINE_DRIVER=sim:3` in the environment, there are three simulated
//! GPUs. A function with the name of a PyTorch function does the same as that function, unless
//! [`guide::from_pytorch`] lists a difference.
//!
//! # Further reading
//!
//! | for | see |
//! |---|---|
//! | PyTorch's names and their counterparts, missing features | [`guide::from_pytorch`] |
//! | environment variables, options of `sim:N`, fields of [`RuntimeConfig`] | [`guide::settings`] |
//! | example programs: an overlapped loader, threads of a server, a test that finds a race, decoding with a cache, a custom allocator backend | [`guide`] |
//! | the tensor: its methods, and the types for [shapes](IntoShape), [indices](Tensor::i) and [options](TensorOptions) | [`Tensor`] |
//! | devices, streams, events, graphs, memory (`torch.cuda`) | [`cuda`] |
//! | data loaders | [`data`] |
//! | modules, initialisers, optimizers (`torch.nn`, `torch.optim`) | the crate `warpline-nn` |
//! | tensors shared between processes | `multiprocessing`, on Linux |
//! | errors | [`Error`], [`ErrorKind`] |
//! | separate runtimes: simulated GPUs, other settings | [`open`], [`with_runtime`], [`RuntimeConfig`] |
//! | several GPUs, several processes | the crate `warpline-parallel` |
//! | custom ops; the layers below this crate | the crates `warpline-runtime`, `warpline-kernels`, `warpline-stream`, `warpline-alloc`, `warpline-cuda-sys-safe` |

#![forbid(unsafe_code)]

mod ambient;
pub mod amp;
pub mod autograd;
pub mod backends;
mod called;
pub mod cpu;
pub mod cuda;
pub mod data;
mod device;
mod environment;
mod exec;
pub mod expr;
pub mod functional;
mod generator;
#[cfg(doc)]
pub mod guide;
mod into_shape;
mod methods;
#[cfg(target_os = "linux")]
pub mod multiprocessing;
mod tensor;
mod tensor_options;
mod warning;

#[doc(hidden)]
pub use ambient::from_variables as __from_variables;
pub use ambient::{SimulatedOptions, manual_seed, open, runtime, simulated, with_runtime};
pub use autograd::{enable_grad, inference_mode, no_grad};
pub use backends::{get_float32_matmul_precision, set_float32_matmul_precision};
#[doc(hidden)]
pub use called::Called as __Called;
pub use device::IntoDevice;
pub use exec::Exec;
pub use generator::{Generator, get_rng_state, set_rng_state, with_generator};
pub use into_shape::{Integer, IntoShape, IntoSizes};
pub use methods::{
    AddmmOptions, BincountOptions, DiagEmbedOptions, DiagonalOptions, DiffOptions, DimRange,
    Ellipsis, HistcOptions, IndexRange, IntoDim, IntoDims, IntoIndices, IntoOperand,
    IsCloseOptions, MeshIndexing, NanToNumOptions, NormOptions, NormalOptions, Pending,
    Rot90Options, RoundingMode, ScatterReduce, SortOptions, TensorData, TensorIndex,
    TensorOrScalar, TensordotDims, TopkOptions, UniformOptions, UniqueOptions, VarOptions,
    VectorNormOptions, apply_elementwise, arange, arange_start, arange_start_step, block_diag, cat,
    dstack, einsum, embedding, empty, eye, full, hstack, isin, linspace, logspace, meshgrid, ones,
    promote_types, rand, randint, randn, randperm, result_type, searchsorted, stack, tensor,
    tensor_of_literals, tril_indices, triu_indices, vstack, where_cond, zeros,
};
pub use tensor::Tensor;
pub use tensor_options::{IntoOptionalTensor, IntoOptions, OrDefault, TensorOptions};
#[doc(hidden)]
pub use warning::warn as __warn;
/// Computes a formula of tensors and numbers. Its value is a [`Result`].
///
/// Operators are written as in PyTorch. Each of them may fail, and an error names the operator's line and column.
///
/// ```
/// use warpline::{expr, tensor};
///
/// let (a, b, x) = (tensor![1.0, 2.0]?, tensor![3.0, 4.0]?, tensor![0.5, -0.5]?);
/// let y = expr!(a + b * x - 2 * x.pow(2))?;
/// assert_eq!(y.to_vec::<f32>()?, [2.0, -0.5]);
/// let clipped = expr!(x * (x > 0) + (a - b).abs().mean(()))?;
/// assert_eq!(clipped.to_vec::<f32>()?, [2.5, 2.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// - Operands are tensors, parameters and numbers of every type ([`expr::FormulaOperand`]). A variable, a field or an element
///   of a slice is used by reference and is not moved.
/// - The operators are `+ - * / % & | ^ << >>`, unary `-` and `!`, and the comparisons `== != < <= > >=`, which give a
///   boolean tensor as in PyTorch. Between two numbers, every operator is Rust's.
/// - A call that returns a [`Result`] gives its value: `x.pow(2).sum(())` needs no `?`. To handle the `Result` of a
///   call, take the call out of the formula.
/// - `?`, `return`, `break 'label` and `continue 'label` do the same as outside. `break` and `continue` need a label.
/// - Blocks, `if`, `match` and loops may contain formulas. Closures are plain Rust.
///
/// # Errors
/// The first error of an operator or a call, in the order of evaluation.
pub use warpline_macros::expr;
pub use warpline_runtime::{
    Access, CallScope, Category, DType, Device, Element, Error, ErrorKind, HostCacheStats,
    InvalidVariable, MemoryFormat, Race, RaceReport, RacingUse, Result, ResultExt, Runtime,
    RuntimeConfig, Scalar, Site, Staging, SyncPolicy,
};

/// Compiles the README's program.
#[cfg(doctest)]
#[doc = include_str!("../docs/README.md")]
struct Readme;

/// Runs the programs of `docs/first-steps.md` as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/first-steps.md")]
struct FirstStepsPage;

/// Runs the programs of `docs/tensors.md` as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/tensors.md")]
struct TensorsPage;

/// Runs the programs of `docs/memory.md` as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/memory.md")]
struct MemoryPage;

/// Runs the programs of `docs/simulated-gpus.md` as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/simulated-gpus.md")]
struct SimulatedGpusPage;

/// Compiles the programs of `docs/streams.md`, and runs the last one as a test.
#[cfg(doctest)]
#[doc = include_str!("../docs/streams.md")]
struct StreamsPage;

/// Runs the program of this crate's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
