//! Neural networks for Warpline (`torch.nn`, `torch.optim`): modules, initialisers, optimizers, learning-rate
//! schedulers, and safetensors files. State dictionaries use PyTorch's names.
//!
//! ```
//! use warpline_nn::{Linear, Module, ReLU, Sequential};
//!
//! warpline::manual_seed(0);
//! let net = Sequential::new().with(Linear::new(4, 8, ())?).with(ReLU).with(Linear::new(8, 2, ())?);
//! let state = net.state_dict();
//! assert_eq!(state.keys().collect::<Vec<_>>(), ["0.weight", "0.bias", "2.weight", "2.bias"]);
//! assert_eq!(net.forward(&warpline::ones([3, 4], ())?)?.size(), [3, 2]);
//! # Ok::<(), warpline::Error>(())
//! ```

#![forbid(unsafe_code)]

// The code of `#[derive(Module)]` names `::warpline_nn`; this makes the name valid inside this crate.
extern crate self as warpline_nn;

pub mod amp;
mod files;
mod hooks;
pub mod init;
mod input_device;
mod module_trait;
mod modules;
pub mod optim;
mod parameter;
pub mod utils;

pub use files::{
    FileError, LoadOptions, Progress, SaveOptions, load_file, save_file, save_sharded,
};
pub use hooks::{Grads, Hooked, TensorTree};
#[doc(hidden)]
pub use module_trait::derived as __private;
pub use module_trait::{
    Apply, Forward, IncompatibleKeys, LoadError, Member, MemberMut, Mismatch, Module, StateDict,
    Visitor, VisitorMut,
};
pub use modules::*;
pub use parameter::{Buffer, Parameter, Training};
pub use warpline_macros::Module;

/// Runs the programs of `docs/training.md` as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/training.md")]
struct TrainingPage;

/// Runs the program of `docs/from-candle.md` as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../docs/from-candle.md")]
struct FromCandle;

/// Runs the examples of this crate's README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
