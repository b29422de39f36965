//! L-BFGS: a quasi-Newton method with limited memory.
//!
//! An iteration multiplies the gradient by an approximation of the inverse Hessian, which the two-loop recursion
//! computes from the last differences of gradients and of parameters. Parameters, gradients and directions are flat
//! vectors, the concatenations of all parameters' elements. The order of all sums is PyTorch's.

mod line_search;
mod options;
mod state;

use std::borrow::Borrow;
use std::collections::VecDeque;

use warpline::autograd::{ModeGuard, check_not_moved};
use warpline::{CallScope, Error, IntoOptions, Result, Tensor, cat};

use self::line_search::{SearchLine, SearchPoint, strong_wolfe};
use super::group::ParamGroup;
use super::optimizer::{Optimizer, OptimizerId};
use super::rule::Settings;
use super::state::OptimizerState;

pub use self::options::{LBFGSOptions, LineSearch};

/// L-BFGS (`torch.optim.LBFGS`), with one group of parameters.
///
/// A step evaluates the loss several times, so it takes a closure that computes the loss and its gradients:
///
/// ```
/// use warpline_nn::optim::{LBFGS, LBFGSOptions, LineSearch, Optimizer};
///
/// let x = warpline::zeros([3], ())?.requires_grad_(true)?;
/// let options = LBFGSOptions::new().line_search_fn(LineSearch::StrongWolfe);
/// let mut optimizer = LBFGS::new(vec![x.clone()], options)?;
/// let before = optimizer.step(|optimizer| {
///     optimizer.zero_grad()?;
///     let loss = x.sub(2.0)?.square()?.sum(())?;
///     loss.backward()?;
///     Ok(loss)
/// })?;
/// assert_eq!(before.item::<f32>()?, 12.0);
/// assert_eq!(x.to_vec::<f32>()?, [2.0; 3]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Debug)]
pub struct LBFGS {
    id: OptimizerId,
    group: ParamGroup<LBFGSOptions>,
    /// Number of evaluations of the closure so far.
    func_evals: u64,
    /// Number of iterations so far.
    n_iter: u64,
    /// `None` before the first iteration.
    memory: Option<LBFGSMemory>,
}

/// The state that an iteration takes from the previous iteration. The names are those of PyTorch's state.
#[derive(Clone, Debug)]
struct LBFGSMemory {
    /// Direction of the last iteration.
    d: Tensor,
    /// Step length of the last iteration.
    t: f64,
    /// Differences of gradients, oldest first.
    old_dirs: VecDeque<Tensor>,
    /// Differences of parameters, oldest first.
    old_stps: VecDeque<Tensor>,
    /// Reciprocals of the dot products of `old_dirs` and `old_stps`, entry by entry.
    ro: VecDeque<f64>,
    /// Diagonal of the initial approximation of the inverse Hessian.
    h_diag: f64,
    /// Gradient at the beginning of the last iteration.
    prev_flat_grad: Tensor,
    /// Loss at the beginning of the last iteration.
    prev_loss: f64,
}

impl LBFGS {
    /// Creates an optimizer of tensors or [`Parameter`](crate::Parameter)s. `options` is `()` or [`LBFGSOptions`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if there are no parameters, a parameter is
    /// not a leaf or appears twice, or an option is out of range; [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a
    /// module's move replaced a parameter.
    #[track_caller]
    pub fn new(
        params: Vec<impl Borrow<Tensor>>,
        options: impl IntoOptions<LBFGSOptions>,
    ) -> Result<Self> {
        let params = params.iter().map(|param| Borrow::<Tensor>::borrow(param).clone());
        let group = ParamGroup::new(params.collect()).options(options);
        group.check(&[])?;
        Ok(Self { id: OptimizerId::unique(), group, func_evals: 0, n_iter: 0, memory: None })
    }

    /// Runs up to `max_iter` iterations, and returns the loss of the first evaluation. `closure` clears the gradients,
    /// computes the loss and its gradients, and returns the loss, which has one element. Its argument is this
    /// optimizer, for [`zero_grad`](Optimizer::zero_grad). Parameters without a gradient count as having a gradient of
    /// zeros.
    ///
    /// The host waits for each loss and for the values that decide how to go on.
    ///
    /// # Errors
    /// Errors of the closure, after which the optimizer's state is the state before the call;
    /// [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a module's move replaced a parameter; errors of the ops, for
    /// example if the parameters are on several devices.
    #[track_caller]
    pub fn step(&mut self, mut closure: impl FnMut(&Self) -> Result<Tensor>) -> Result<Tensor> {
        let _call = CallScope::enter("step");
        for param in self.group.params() {
            check_not_moved("step", param)?;
        }
        let _no_grad = ModeGuard::no_grad();
        let options = self.group.options;
        let max_eval = options.max_evaluations();
        let first_loss = self.call(&mut closure)?;
        let mut loss = first_loss.item::<f64>()?;
        let mut flat_grad = self.gather_flat_grad()?;
        let mut evals = 1;
        if largest(&flat_grad)? <= options.tolerance_grad {
            self.func_evals = self.func_evals.saturating_add(1);
            return Ok(first_loss);
        }
        let (mut memory, mut total_iter) = (self.memory.clone(), self.n_iter);
        for n_iter in 1..=options.max_iter {
            total_iter = total_iter.saturating_add(1);
            let mut now = match memory.take() {
                Some(memory) => memory.advance(&flat_grad, loss, &options)?,
                None => LBFGSMemory::first(&flat_grad, loss, options.lr)?,
            };
            let slope = dot(&flat_grad, &now.d)?;
            if slope > -options.tolerance_change {
                memory = Some(now);
                break;
            }
            let mut evaluated = true;
            if options.line_search_fn.is_some() {
                let line = SearchLine::new(self, &mut closure, &now.d)?;
                let origin = SearchPoint { t: 0.0, loss, grad: flat_grad.clone(), slope };
                let budget = max_eval.saturating_sub(evals);
                let (end, count) = strong_wolfe(line, origin, now.t, budget)?;
                (now.t, loss, flat_grad) = (end.t, end.loss, end.grad);
                evals += count;
                self.move_along(&now.d, now.t)?;
            } else {
                self.move_along(&now.d, now.t)?;
                // The last iteration leaves the evaluation to the next step.
                evaluated = n_iter != options.max_iter;
                if evaluated {
                    loss = self.call(&mut closure)?.item::<f64>()?;
                    flat_grad = self.gather_flat_grad()?;
                    evals += 1;
                }
            }
            let (change, prev_loss) = ((&now.d, now.t), now.prev_loss);
            let done = n_iter == options.max_iter
                || evals >= max_eval
                || evaluated && largest(&flat_grad)? <= options.tolerance_grad
                || largest(&change.0.mul(change.1)?)? <= options.tolerance_change
                || (loss - prev_loss).abs() < options.tolerance_change;
            memory = Some(now);
            if done {
                break;
            }
        }
        (self.memory, self.n_iter) = (memory, total_iter);
        self.func_evals = self.func_evals.saturating_add(evals as u64);
        Ok(first_loss)
    }

    /// Calls the closure with gradients enabled, outside the scope of this call.
    fn call(&self, closure: &mut impl FnMut(&Self) -> Result<Tensor>) -> Result<Tensor> {
        let _outside = CallScope::none();
        let _grad = ModeGuard::enable_grad();
        closure(self)
    }

    /// Returns all gradients as one vector.
    #[track_caller]
    fn gather_flat_grad(&self) -> Result<Tensor> {
        let mut all = Vec::new();
        for param in self.group.params() {
            let grad = match param.grad() {
                Some(grad) => grad.detach().reshape([-1]),
                None => param.detach().zeros_like(()).and_then(|zeros| zeros.reshape([-1])),
            };
            all.push(grad?);
        }
        cat(&all, 0)
    }

    /// Adds `t` times the direction `d` to the parameters.
    #[track_caller]
    fn move_along(&self, d: &Tensor, t: f64) -> Result<()> {
        let mut offset = 0;
        for param in self.group.params() {
            let part = d.narrow(0, offset, param.numel())?;
            param.add_scaled_(&part.view(param.size())?, t)?;
            offset += param.numel();
        }
        Ok(())
    }
}

impl LBFGSMemory {
    /// Returns the state of the first iteration, whose direction is steepest descent.
    #[track_caller]
    fn first(flat_grad: &Tensor, loss: f64, lr: f64) -> Result<Self> {
        let sum: f64 = flat_grad.abs().and_then(|all| all.sum(())?.item())?;
        Ok(Self {
            d: flat_grad.neg()?,
            t: (1.0 / sum).min(1.0) * lr,
            old_dirs: VecDeque::new(),
            old_stps: VecDeque::new(),
            ro: VecDeque::new(),
            h_diag: 1.0,
            prev_flat_grad: flat_grad.clone(),
            prev_loss: loss,
        })
    }

    /// Returns the state of the next iteration at a point with this gradient and loss.
    #[track_caller]
    fn advance(mut self, flat_grad: &Tensor, loss: f64, options: &LBFGSOptions) -> Result<Self> {
        let y = flat_grad.sub(&self.prev_flat_grad)?;
        let s = self.d.mul(self.t)?;
        let ys = dot(&y, &s)?;
        // Skip a pair with small or negative curvature: negative curvature would make the approximation indefinite, and
        // a small `ys` would make its inverse `ro` huge.
        if ys > 1e-10 {
            while self.old_dirs.len() >= options.history_size.max(1) {
                self.old_dirs.pop_front();
                self.old_stps.pop_front();
                self.ro.pop_front();
            }
            self.h_diag = ys / dot(&y, &y)?;
            self.old_dirs.push_back(y);
            self.old_stps.push_back(s);
            self.ro.push_back(1.0 / ys);
        }
        self.d = self.direction(flat_grad)?;
        self.t = options.lr;
        (self.prev_flat_grad, self.prev_loss) = (flat_grad.clone(), loss);
        Ok(self)
    }

    /// Returns the negated gradient times the approximated inverse Hessian. The factors remain on the device.
    #[track_caller]
    fn direction(&self, flat_grad: &Tensor) -> Result<Tensor> {
        let q = flat_grad.neg()?;
        let mut factors = VecDeque::new();
        let pairs = || self.old_dirs.iter().zip(&self.old_stps).zip(&self.ro);
        for ((y, s), &ro) in pairs().rev() {
            let factor = s.dot(&q)?.mul(ro)?;
            q.sub_(&y.mul(&factor)?)?;
            factors.push_front(factor);
        }
        let r = q.mul(self.h_diag)?;
        for (((y, s), &ro), factor) in pairs().zip(&factors) {
            let factor = factor.sub(&y.dot(&r)?.mul(ro)?)?;
            r.add_(&s.mul(&factor)?)?;
        }
        Ok(r)
    }
}

/// Returns the dot product of two vectors.
#[track_caller]
fn dot(a: &Tensor, b: &Tensor) -> Result<f64> {
    a.dot(b).and_then(|product| product.item())
}

/// Returns the largest magnitude of a vector's elements.
#[track_caller]
fn largest(vector: &Tensor) -> Result<f64> {
    vector.abs().and_then(|all| all.amax(())?.item())
}

impl Optimizer for LBFGS {
    fn id(&self) -> OptimizerId {
        self.id
    }

    /// Returns an error, because a step of L-BFGS needs a closure: call [`LBFGS::step`].
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        let reason = "a step of L-BFGS evaluates the loss several times: call \
                      `LBFGS::step` with a closure that computes the loss and its gradients";
        Err(Error::invalid(LBFGSOptions::NAME, reason))
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.group.params().to_vec()
    }

    fn group_count(&self) -> usize {
        1
    }

    fn setting(&self, group: usize, name: &str) -> Option<f64> {
        self.group.setting(name).filter(|_| group == 0)
    }

    #[track_caller]
    fn set_setting(&mut self, group: usize, name: &str, value: f64) -> Result<()> {
        if group > 0 {
            let reason = format!("there is no group {group}, only 1");
            return Err(Error::invalid(LBFGSOptions::NAME, reason));
        }
        self.group.set_setting(name, value)
    }

    #[track_caller]
    fn state_dict(&self) -> Result<OptimizerState> {
        state::save(self)
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        state::load(self, state)
    }
}
