//! Backward passes in one launch: programs that compute the gradients of all operands of an op from
//! its formulas.
//!
//! An op whose backward pass would take several launches has a program `NAME_backward` for floating-point dtypes. The
//! program's inputs are the operands, the gradient of the result and, if the formulas name it, the result. Its results
//! are a gradient for each operand that has a formula. Unwanted gradients, and inputs that no wanted gradient reads,
//! are not accessed. In CUDA, each step is a call of its entry's expression (`cuda.rs`), inside the same kernels that
//! forward ops use. On the CPU, the entries' loops run over slices of 512 elements, step by step, so that intermediates
//! need no memory (`host.rs`). Half-width floats are computed in `float32` and rounded once, when a gradient is
//! written.
//!
//! A [`BackwardPass`] is a type for each backward pass, through which the CPU implementation finds
//! the formulas.

mod cuda;
mod host;
mod run;

use std::sync::OnceLock;

use warpline_runtime::iter::CONVERTING_KERNELS;
use warpline_runtime::module::{Program, Source};

use super::formula::{Builder, Formula, MAX_OPERANDS};
use super::run::MAX_VIEWS;
use super::{extremes, table};
use crate::programs::FLOATS;

pub use cuda::source;
use run::LaunchBackward;
pub use run::{BackwardKernels, apply_backward};

/// The gradient formulas of an op, which are built on first use, and the program that computes
/// them.
#[derive(Debug)]
pub struct Backward {
    name: &'static str,
    build: fn(&mut Builder),
    formula: OnceLock<Formula>,
    program: &'static Program,
    kernels: &'static dyn LaunchBackward,
}

/// The type of a [`Backward`].
#[doc(hidden)]
pub trait BackwardPass: 'static {
    fn backward() -> &'static Backward;
}

impl Backward {
    /// Creates the backward pass of an op.
    ///
    /// # Safety
    /// `kernels` are those of `program`, and of the [`BackwardPass`] that returns this backward
    /// pass. `build` builds the same formula on each call. It declares all operands, then the
    /// gradient of the result, then the result if a formula names it; these are the `I` inputs. It
    /// sets `N - I` gradients.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn new<const I: usize, const N: usize>(
        name: &'static str,
        program: &'static Program,
        kernels: &'static BackwardKernels<I, N>,
        build: fn(&mut Builder),
    ) -> Self {
        Self { name, build, formula: OnceLock::new(), program, kernels }
    }

    /// Creates the program of a backward pass with this name and source.
    #[doc(hidden)]
    #[must_use]
    pub const fn program_of(name: &'static str, source: fn(&Program, &str) -> Source) -> Program {
        Program::new(name, FLOATS, CONVERTING_KERNELS, source)
    }

    /// Returns the name of the op.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the steps of all gradients.
    pub fn formula(&self) -> &Formula {
        self.formula.get_or_init(|| Formula::new(self.build))
    }

    /// Returns the program that computes the gradients, which has a variant for each floating-point
    /// dtype.
    #[must_use]
    pub const fn program(&self) -> &'static Program {
        self.program
    }

    /// Returns whether one fused program computes the gradients. It does if separate ops would take several
    /// launches, and if there are at most eight inputs and results.
    #[must_use]
    pub fn is_fused(&self) -> bool {
        self.formula().launches(0..MAX_OPERANDS) > 1 && self.kernels.views() <= MAX_VIEWS
    }

    /// Returns the numbers of inputs and of views of the kernels, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn inputs_and_views(&self) -> (usize, usize) {
        (self.kernels.inputs(), self.kernels.views())
    }
}

/// Returns the backward passes that have programs: those of the table and of [`extremes::OTHERS`].
pub(super) fn fused() -> impl Iterator<Item = &'static Backward> {
    let all = table().filter_map(|op| op.backward()).chain(extremes::OTHERS.iter().copied());
    all.filter(|backward| backward.is_fused())
}
