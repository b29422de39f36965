//! Options of L-BFGS.

use crate::optim::rule::{Setting, Settings, check_not_negative};

/// A line search of [`LBFGS`](super::LBFGS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineSearch {
    /// A search for a point that satisfies the strong Wolfe conditions (`"strong_wolfe"`).
    StrongWolfe,
}

warpline::__options! {
    /// Options of [`LBFGS`](super::LBFGS).
    #[derive(Clone, Copy, Debug, PartialEq)]
    LBFGSOptions [] [] {
        /// Sets the learning rate: the length of a step without a line search, and the first trial of a line search.
        /// Default: 1.
        lr: f64 = 1.0, f64;
        /// Sets the largest number of iterations of a step. Default: 20.
        max_iter: usize = 20, usize;
        /// Sets the largest number of evaluations of the closure in a step. Default: `max_iter` · 5 / 4.
        max_eval: Option<usize> = None, impl Into<Option<usize>> => Into::into;
        /// Sets the largest magnitude of a gradient's elements at which a step ends. Default: 1e-7.
        tolerance_grad: f64 = 1e-7, f64;
        /// Sets the change of the loss or of the parameters at which a step ends. Default: 1e-9.
        tolerance_change: f64 = 1e-9, f64;
        /// Sets the number of past iterations that approximate the inverse Hessian. Each takes twice the memory of the
        /// parameters. Default: 100.
        history_size: usize = 100, usize;
        /// Sets the line search. Default: `None`, steps of length `lr`.
        line_search_fn: Option<LineSearch> = None, impl Into<Option<LineSearch>> => Into::into;
    }
}

impl LBFGSOptions {
    /// Returns the largest number of evaluations of the closure in a step.
    pub(super) fn max_evaluations(&self) -> usize {
        self.max_eval.unwrap_or_else(|| self.max_iter.saturating_mul(5) / 4)
    }
}

impl Settings for LBFGSOptions {
    const NAME: &'static str = "LBFGS";

    fn settings(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("lr", self.lr),
            ("max_iter", self.max_iter as f64),
            ("max_eval", self.max_evaluations() as f64),
            ("tolerance_grad", self.tolerance_grad),
            ("tolerance_change", self.tolerance_change),
            ("history_size", self.history_size as f64),
            ("line_search_fn", self.line_search_fn.is_some().number()),
        ]
    }

    fn set(&mut self, name: &str, value: f64) -> bool {
        match name {
            "lr" => self.lr = value,
            "max_iter" => self.max_iter = value as usize,
            "max_eval" => self.max_eval = Some(value as usize),
            "tolerance_grad" => self.tolerance_grad = value,
            "tolerance_change" => self.tolerance_change = value,
            "history_size" => self.history_size = value as usize,
            "line_search_fn" => {
                self.line_search_fn = (value != 0.0).then_some(LineSearch::StrongWolfe);
            }
            _ => return false,
        }
        true
    }

    fn check(&self) -> Result<(), String> {
        check_not_negative(&[
            ("lr", self.lr),
            ("tolerance_grad", self.tolerance_grad),
            ("tolerance_change", self.tolerance_change),
        ])?;
        if self.history_size == 0 {
            return Err("history_size must be 1 or more".into());
        }
        Ok(())
    }
}
