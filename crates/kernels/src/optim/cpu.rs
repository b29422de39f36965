//! The CPU implementation of optimizer steps and of sums of squares.

use std::ops::{Add, Div, Mul, Neg, Sub};

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{GRAIN, HostElement, SharedPtr, parallel_for};

use super::{
    AMSGRAD, CENTERED, CHUNK, FIRST, LISTS, MAXIMIZE, MOMENTUM, NESTEROV, RATES, SKIPS, TENSORS,
    UNSCALES, Update,
};
use crate::math::{Loop, vectorized};

/// A floating-point type in which steps are computed.
pub(super) trait UpdateFloat:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + Send
    + Sync
{
    fn of(value: f64) -> Self;
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($($ty:ident)*) => {$(
        impl UpdateFloat for $ty {
            #[inline(always)]
            fn of(value: f64) -> Self {
                value as $ty
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                $ty::sqrt(self)
            }
        }
    )*};
}

real! { f32 f64 }

/// Applies a rule to one element of each operand.
trait ElementUpdate<C>: Copy + Sync {
    const LISTS: usize;
    fn new(update: &Update, rate: impl Fn(usize) -> f64) -> Self;
    fn apply(self, x: &mut [C; LISTS]);
}

#[derive(Clone, Copy)]
struct Hyperparameters<C> {
    numbers: [C; 8],
    flags: u32,
}

impl<C: UpdateFloat> Hyperparameters<C> {
    /// Takes the numbers of `update`. If the flag [`RATES`] is set, replaces the first `rates` of
    /// them by `rate(0)`, `rate(1)` and so on, which read the operand of the rates.
    fn new(update: &Update, rates: usize, rate: impl Fn(usize) -> f64) -> Self {
        let number = |k: usize| {
            let from_memory = k < rates && update.flags & RATES != 0;
            C::of(if from_memory { rate(k) } else { update.numbers[k] })
        };
        Self { numbers: std::array::from_fn(number), flags: update.flags }
    }

    #[inline(always)]
    fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns the gradient, negated for maximization, plus the weight decay.
    #[inline(always)]
    fn gradient(&self, x: &[C; LISTS], decay: C) -> C {
        let g = if self.is(MAXIMIZE) { -x[1] } else { x[1] };
        g + decay * x[0]
    }
}

#[inline(always)]
fn toward<C: UpdateFloat>(from: C, to: C, weight: C) -> C {
    if weight < C::of(0.5) {
        from + weight * (to - from)
    } else {
        to - (to - from) * (C::of(1.0) - weight)
    }
}

#[derive(Clone, Copy)]
struct Sgd<C>(Hyperparameters<C>);

impl<C: UpdateFloat> ElementUpdate<C> for Sgd<C> {
    const LISTS: usize = 3;

    fn new(update: &Update, rate: impl Fn(usize) -> f64) -> Self {
        Self(Hyperparameters::new(update, 1, rate))
    }

    #[inline(always)]
    fn apply(self, x: &mut [C; LISTS]) {
        let [lr, momentum, undamped, decay, ..] = self.0.numbers;
        let mut g = self.0.gradient(x, decay);
        if self.0.is(MOMENTUM) {
            x[2] = if self.0.is(FIRST) { g } else { momentum * x[2] + undamped * g };
            g = if self.0.is(NESTEROV) { g + momentum * x[2] } else { x[2] };
        }
        x[0] = x[0] - lr * g;
    }
}

#[derive(Clone, Copy)]
struct Adam<C> {
    of: Hyperparameters<C>,
    /// One minus each beta, computed in `f64` before rounding.
    rest: [C; 2],
}

impl<C: UpdateFloat> ElementUpdate<C> for Adam<C> {
    const LISTS: usize = 5;

    fn new(update: &Update, rate: impl Fn(usize) -> f64) -> Self {
        let rest = [3, 4].map(|k| C::of(1.0 - update.numbers[k]));
        Self { of: Hyperparameters::new(update, 3, rate), rest }
    }

    #[inline(always)]
    fn apply(self, x: &mut [C; LISTS]) {
        let [rate, root, kept, _, beta2, eps, decay, _] = self.of.numbers;
        let g = self.of.gradient(x, decay);
        x[2] = toward(x[2], g, self.rest[0]);
        x[3] = beta2 * x[3] + self.rest[1] * g * g;
        let mut square = x[3];
        if self.of.is(AMSGRAD) {
            #[allow(clippy::eq_op)] // NaN
            let stays = x[4] > square || x[4] != x[4];
            square = if stays { x[4] } else { square };
            x[4] = square;
        }
        x[0] = kept * x[0] - rate * x[2] / (square.sqrt() / root + eps);
    }
}

#[derive(Clone, Copy)]
struct RMSprop<C> {
    of: Hyperparameters<C>,
    rest: C,
}

impl<C: UpdateFloat> ElementUpdate<C> for RMSprop<C> {
    const LISTS: usize = 5;

    fn new(update: &Update, rate: impl Fn(usize) -> f64) -> Self {
        let rest = C::of(1.0 - update.numbers[1]);
        Self { of: Hyperparameters::new(update, 1, rate), rest }
    }

    #[inline(always)]
    fn apply(self, x: &mut [C; LISTS]) {
        let [lr, alpha, eps, decay, momentum, ..] = self.of.numbers;
        let g = self.of.gradient(x, decay);
        x[2] = alpha * x[2] + self.rest * g * g;
        let mut square = x[2];
        if self.of.is(CENTERED) {
            x[4] = toward(x[4], g, self.rest);
            square = square - x[4] * x[4];
        }
        let mut by = g / (square.sqrt() + eps);
        if self.of.is(MOMENTUM) {
            by = momentum * x[3] + by;
            x[3] = by;
        }
        x[0] = x[0] - lr * by;
    }
}

#[derive(Clone, Copy)]
struct Scale<C>(C);

impl<C: UpdateFloat> ElementUpdate<C> for Scale<C> {
    const LISTS: usize = 1;

    fn new(_: &Update, rate: impl Fn(usize) -> f64) -> Self {
        Self(C::of(rate(0)))
    }

    #[inline(always)]
    fn apply(self, x: &mut [C; LISTS]) {
        x[0] = x[0] * self.0;
    }
}

/// The update of a range of one tensor's elements, as a loop for `vectorized`.
struct Elements<T: HostElement, S> {
    step: S,
    /// Divisor of the gradients. `None`: 1.
    grad_scale: Option<T::Compute>,
    operands: [SharedPtr<T>; LISTS],
    range: std::ops::Range<usize>,
    reads: u32,
    writes: u32,
}

impl<T: HostElement<Compute: UpdateFloat>, S: ElementUpdate<T::Compute>> Loop for Elements<T, S> {
    #[inline(always)]
    fn run(self) {
        for i in self.range {
            let mut x = [T::Compute::of(0.0); LISTS];
            for (k, value) in x.iter_mut().enumerate().take(S::LISTS) {
                if self.reads >> k & 1 != 0 {
                    // SAFETY: an operand that is declared as read has an element at `i`.
                    *value = unsafe { self.operands[k].read(i as isize) }.get();
                }
            }
            if let Some(grad_scale) = self.grad_scale {
                x[1] = x[1] / grad_scale;
            }
            self.step.apply(&mut x);
            for (k, value) in x.into_iter().enumerate().take(S::LISTS) {
                if self.writes >> k & 1 != 0 {
                    // SAFETY: an operand that is declared as written has an element at `i`, which
                    // belongs to this thread.
                    unsafe { self.operands[k].write(i as isize, T::put(value)) };
                }
            }
        }
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are
/// `S::LISTS` operands (`T`) for each of [`TENSORS`] tensors, then the rates (`f64`), then
/// `found_inf` and `grad_scale` (one `f32` each).
unsafe fn run<T: HostElement<Compute: UpdateFloat>, S: ElementUpdate<T::Compute>>(
    launch: &HostLaunch<'_>,
    update: &Update,
) {
    let rates = SharedPtr::<f64>::operand(launch, TENSORS * S::LISTS);
    // SAFETY: `step` has checked that `rates` has as many elements as the rule reads.
    let step = S::new(update, |k| unsafe { rates.read(k as isize) });
    let number = |operand: usize| {
        // SAFETY: `number` is called only if the flag for the operand is set, and `step` has
        // checked that the operand then has one `f32`.
        unsafe { SharedPtr::<f32>::operand(launch, TENSORS * S::LISTS + operand).read(0) }
    };
    if update.flags & SKIPS != 0 && number(1) != 0.0 {
        return;
    }
    let grad_scale = update.flags & UNSCALES != 0 && S::LISTS > 1;
    let grad_scale = grad_scale.then(|| T::Compute::of(f64::from(number(2))));
    let (reads, writes) = (update.reads, update.writes);
    let all: [[SharedPtr<T>; LISTS]; TENSORS] = std::array::from_fn(|which| {
        std::array::from_fn(|k| SharedPtr::operand(launch, which * S::LISTS + k.min(S::LISTS - 1)))
    });
    let chunk = CHUNK as usize;
    parallel_for(launch.parallel, update.blocks as usize, (GRAIN / chunk).max(1), |blocks| {
        for block in blocks {
            let which = update.tensors.partition_point(|part| part.first as usize <= block) - 1;
            let part = update.tensors[which];
            let begin = (block - part.first as usize) * chunk;
            let range = begin..(begin + chunk).min(part.numel as usize);
            let operands = all[which];
            vectorized(Elements { step, grad_scale, operands, range, reads, writes });
        }
    });
}

macro_rules! steps {
    ($($name:ident $rule:ident;)*) => {$(
        /// # Safety
        /// The conditions of [`run`].
        pub(super) unsafe fn $name<T: HostElement<Compute: UpdateFloat>>(
            launch: &HostLaunch<'_>,
            update: &Update,
        ) {
            // SAFETY: the caller guarantees the conditions of `run`.
            unsafe { run::<T, $rule<T::Compute>>(launch, update) }
        }
    )*};
}

steps! {
    sgd Sgd;
    adam Adam;
    rmsprop RMSprop;
    scale Scale;
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are
/// [`TENSORS`] tensors with elements of type `T`, then the sums.
pub(super) unsafe fn sum_squares<T: HostElement<Compute: UpdateFloat>>(
    launch: &HostLaunch<'_>,
    update: &Update,
) {
    let out = SharedPtr::<T::Compute>::operand(launch, TENSORS);
    let chunk = CHUNK as usize;
    let all: [SharedPtr<T>; TENSORS] =
        std::array::from_fn(|which| SharedPtr::operand(launch, which));
    parallel_for(launch.parallel, update.blocks as usize, (GRAIN / chunk).max(1), |blocks| {
        for block in blocks {
            let which = update.tensors.partition_point(|part| part.first as usize <= block) - 1;
            let part = update.tensors[which];
            let tensor = all[which];
            let begin = (block - part.first as usize) * chunk;
            // Eight sums, so that the compiler can use vector instructions.
            let mut sums = [T::Compute::of(0.0); 8];
            for i in begin..(begin + chunk).min(part.numel as usize) {
                // SAFETY: `i` is less than the tensor's number of elements.
                let x = unsafe { tensor.read(i as isize) }.get();
                sums[i % 8] = sums[i % 8] + x * x;
            }
            let sum = sums.into_iter().reduce(|a, b| a + b).unwrap_or(T::Compute::of(0.0));
            // SAFETY: the result has one element per block, and only this thread processes this
            // block.
            unsafe { out.write(block as isize, sum) };
        }
    });
}
