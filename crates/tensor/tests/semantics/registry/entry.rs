//! An entry of the registry.

use std::fmt::Write;

use warpline::autograd::GradcheckOptions;
use warpline::{DType, Result, Tensor};
use warpline_kernels::autocast::Policy;

use super::sample::Arg;

/// Treatment of an op's operands in a region of autocast, on a GPU and on the CPU. An op without a
/// policy of its own has the category of its inner ops.
pub(super) type Category = [Policy; 2];

pub(super) const KEEP: Category = [Policy::Keep; 2];
pub(super) const LOW: Category = [Policy::Low; 2];
pub(super) const LOW_ON_GPU: Category = [Policy::Low, Policy::Keep];
pub(super) const F32: Category = [Policy::F32; 2];
pub(super) const F32_ON_GPU: Category = [Policy::F32, Policy::Keep];
pub(super) const F32_ON_CPU: Category = [Policy::Keep, Policy::F32];
pub(super) const WIDEST_ON_GPU: Category = [Policy::Widest, Policy::Keep];

/// The function that an entry calls.
type Call = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;

/// A public op, with samples of its arguments.
pub(super) struct Entry {
    /// Name in the crate, such as `Tensor::add`, or `elementwise::add` for an entry of the table.
    pub(super) name: String,
    /// The parameters of this entry, if an op has several entries.
    pub(super) variant: String,
    pub(super) category: Category,
    takes: Box<dyn Fn(DType) -> bool>,
    pub(super) samples: Vec<Vec<Arg>>,
    pub(super) call: Call,
    /// The arguments that have a gradient if they are floats.
    pub(super) differentiable: Vec<usize>,
    /// The reason why other float arguments have no gradient.
    pub(super) without_gradient: Option<&'static str>,
    /// Tolerance of the comparisons with differences.
    pub(super) differences: GradcheckOptions,
    /// The reason why the values of results differ between devices, if they do. Sizes and dtypes
    /// must be equal.
    pub(super) differs: Option<&'static str>,
    /// Factor of the tolerance between devices and between backward passes.
    pub(super) slack: f64,
}

impl Entry {
    /// Returns the entry of an op that is differentiable in all float arguments.
    pub(super) fn new<R: Results>(
        name: impl Into<String>,
        category: Category,
        takes: impl Fn(DType) -> bool + 'static,
        samples: impl IntoIterator<Item = Vec<Arg>>,
        call: impl Fn(&[Tensor]) -> Result<R> + 'static,
    ) -> Self {
        let samples: Vec<Vec<Arg>> = samples.into_iter().collect();
        let first = samples.first().map_or(&[][..], |args| &args[..]);
        Self {
            name: name.into(),
            variant: String::new(),
            category,
            takes: Box::new(takes),
            differentiable: (0..first.len()).filter(|&k| first[k].is_numeric()).collect(),
            samples,
            call: Box::new(move |args| call(args).map(R::into_results)),
            without_gradient: None,
            differences: GradcheckOptions::default(),
            differs: None,
            slack: 1.0,
        }
    }

    /// Sets the description of this entry's parameters.
    pub(super) fn with(mut self, variant: impl Into<String>) -> Self {
        self.variant = variant.into();
        self
    }

    /// Replaces the dtypes that the op supports.
    pub(super) fn of(mut self, takes: impl Fn(DType) -> bool + 'static) -> Self {
        self.takes = Box::new(takes);
        self
    }

    /// Declares the arguments that have a gradient, and the reason why other float arguments have
    /// none.
    pub(super) fn only(mut self, differentiable: &[usize], reason: &'static str) -> Self {
        self.differentiable = differentiable.to_vec();
        self.without_gradient = Some(reason);
        self
    }

    /// Declares that no argument has a gradient.
    pub(super) fn constant(self, reason: &'static str) -> Self {
        self.only(&[], reason)
    }

    /// Sets the tolerance of the comparisons with differences.
    pub(super) fn differences(mut self, options: GradcheckOptions) -> Self {
        self.differences = options;
        self
    }

    /// Compares only sizes and dtypes between devices.
    pub(super) fn differs(mut self, reason: &'static str) -> Self {
        self.differs = Some(reason);
        self
    }

    /// Multiplies the tolerance between devices and between backward passes.
    pub(super) fn slack(mut self, factor: f64) -> Self {
        self.slack = factor;
        self
    }

    /// Returns whether the op supports a dtype.
    pub(super) fn takes(&self, dtype: DType) -> bool {
        (self.takes)(dtype)
    }

    /// Returns the name with the parameters.
    pub(super) fn title(&self) -> String {
        let mut title = self.name.clone();
        if !self.variant.is_empty() {
            let _ = write!(title, "[{}]", self.variant);
        }
        title
    }
}

/// The returned type of an op.
pub(super) trait Results: 'static {
    fn into_results(self) -> Vec<Tensor>;
}

impl Results for Tensor {
    fn into_results(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl Results for (Tensor, Tensor) {
    fn into_results(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

impl Results for Vec<Tensor> {
    fn into_results(self) -> Vec<Tensor> {
        self
    }
}

impl Results for (Tensor, Option<Tensor>, Option<Tensor>) {
    fn into_results(self) -> Vec<Tensor> {
        [Some(self.0), self.1, self.2].into_iter().flatten().collect()
    }
}

/// Returns whether a dtype is floating-point. The following functions are further sets of dtypes.
pub(super) fn floats(dtype: DType) -> bool {
    dtype.is_float()
}

pub(super) fn numbers(dtype: DType) -> bool {
    dtype != DType::Bool
}

pub(super) fn integers(dtype: DType) -> bool {
    !dtype.is_float() && dtype != DType::Bool
}

pub(super) fn every(_: DType) -> bool {
    true
}
