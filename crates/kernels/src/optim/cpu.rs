//! The CPU implementations: as the kernels, tensor by tensor.

use std::ops::{Add, Div, Mul, Neg, Sub};

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};
use warpline_runtime::DType;
use warpline_runtime::dispatch;
use warpline_runtime::host::{GRAIN, HostElement, Shared, parallel_for, params};

use super::{
    AMSGRAD, CENTERED, CHUNK, DECOUPLED, FEW, LARGEST, MAXIMIZE, MOST, NESTEROV, ON_DEVICE, Step,
};

/// What elements are computed in.
trait Float:
    Copy
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn root(self) -> Self;
}

macro_rules! floats {
    ($($ty:ty),*) => {$(
        impl Float for $ty {
            #[inline(always)]
            fn of(value: f64) -> Self {
                value as $ty
            }
            #[inline(always)]
            fn wide(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    )*};
}

floats!(f32, f64);

macro_rules! kernels {
    ($($name:ident $of:ident;)*) => {$(
        pub(super) fn $name(dtype: DType) -> HostKernel {
            dispatch!(dtype, float T => $of::<T>, _ => unreachable!("the dtype was checked"))
        }
    )*};
}

kernels! {
    sgd sgd_of;
    adam adam_of;
    rmsprop rmsprop_of;
    scale scale_of;
    norm norm_of;
}

/// A tensor's operands, its number and its elements.
struct Tensor<T, const N: usize> {
    operands: [Shared<T>; N],
    k: usize,
    numel: usize,
}

impl<T: HostElement, const N: usize> Tensor<T, N>
where
    T::Compute: Float,
{
    /// # Safety
    /// `i` is below `numel`, operand `n` is there, and no other thread has the element.
    #[inline(always)]
    unsafe fn get(&self, n: usize, i: usize) -> T::Compute {
        // SAFETY: the caller's promise.
        unsafe { self.operands[n].read(i as isize) }.get()
    }

    /// # Safety
    /// As [`Tensor::get`].
    #[inline(always)]
    unsafe fn put(&self, n: usize, i: usize, value: T::Compute) {
        // SAFETY: the caller's promise.
        unsafe { self.operands[n].write(i as isize, T::put(value)) };
    }
}

/// The tensors of a launch, the parameters, and the number of the first operand behind the tensors'.
fn tensors<T: HostElement, const N: usize>(
    launch: &HostLaunch<'_>,
) -> (Vec<Tensor<T, N>>, Step, usize) {
    let step: Step = params(launch);
    let room = if launch.pointers.len() == FEW * N + 2 { FEW } else { MOST };
    let own = (0..room).filter(|&k| step.first[k] != u32::MAX);
    let tensor = |k: usize| Tensor {
        operands: std::array::from_fn(|n| Shared::operand(launch, k * N + n)),
        k,
        numel: step.numel[k] as usize,
    };
    (own.map(tensor).collect(), step, room * N)
}

/// Which step it is of a tensor.
///
/// # Safety
/// Operand `at` has the steps, if they are on the device.
unsafe fn step_of(launch: &HostLaunch<'_>, step: &Step, at: usize, k: usize) -> u64 {
    if step.flags & ON_DEVICE == 0 {
        return step.step[k];
    }
    // SAFETY: the caller's promise.
    unsafe { Shared::<f32>::operand(launch, at).read(step.step[k] as isize) as u64 }
}

/// # Safety
/// The operand after `at` is the learning rate, if it is on the device.
unsafe fn lr_of(launch: &HostLaunch<'_>, step: &Step, at: usize) -> f64 {
    if step.flags & ON_DEVICE == 0 {
        return step.lr;
    }
    // SAFETY: the caller's promise.
    unsafe { Shared::<f64>::operand(launch, at + 1).read(0) }
}

/// `base` to the power of `n`.
fn power(mut base: f64, mut n: u64) -> f64 {
    let mut result = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            result *= base;
        }
        base *= base;
        n >>= 1;
    }
    result
}

fn lerp<A: Float>(a: A, b: A, weight: A) -> A {
    if weight < A::of(0.5) { a + weight * (b - a) } else { b - (b - a) * (A::of(1.0) - weight) }
}

/// Calls `f` for each element.
fn each(launch: &HostLaunch<'_>, numel: usize, f: impl Fn(usize) + Sync) {
    parallel_for(launch.parallel, numel, GRAIN, |range| range.for_each(&f));
}

/// # Safety
/// As [`HostKernel`]: operands of `T` as `super::launch` has them, and [`Step`].
unsafe fn sgd_of<T: HostElement>(launch: &HostLaunch<'_>)
where
    T::Compute: Float,
{
    let (tensors, step, at) = tensors::<T, 3>(launch);
    let of = T::Compute::of;
    // SAFETY: the caller's promise.
    let lr = of(unsafe { lr_of(launch, &step, at) });
    let (momentum, part, decay) = (of(step.a), of(1.0 - step.b), of(step.weight_decay));
    for tensor in &tensors {
        // SAFETY: the caller's promise.
        let first = unsafe { step_of(launch, &step, at, tensor.k) } == 1;
        // SAFETY: each element is one thread's; the momentum is there where it is asked for.
        each(launch, tensor.numel, |i| unsafe {
            let (own, mut grad) = (tensor.get(0, i), tensor.get(1, i));
            if step.flags & MAXIMIZE != 0 {
                grad = -grad;
            }
            if step.weight_decay != 0.0 {
                grad = grad + decay * own;
            }
            if step.a != 0.0 {
                let buffer = if first { grad } else { momentum * tensor.get(2, i) + part * grad };
                tensor.put(2, i, buffer);
                let nesterov = step.flags & NESTEROV != 0;
                grad = if nesterov { grad + momentum * buffer } else { buffer };
            }
            tensor.put(0, i, own - lr * grad);
        });
    }
}

/// # Safety
/// As [`HostKernel`]: operands of `T` as `super::launch` has them, and [`Step`].
unsafe fn adam_of<T: HostElement>(launch: &HostLaunch<'_>)
where
    T::Compute: Float,
{
    let (tensors, step, at) = tensors::<T, 5>(launch);
    let of = T::Compute::of;
    // SAFETY: the caller's promise.
    let lr = unsafe { lr_of(launch, &step, at) };
    let (weight1, beta2, weight2) = (of(1.0 - step.a), of(step.b), of(1.0 - step.b));
    let (eps, decay, kept) = (of(step.eps), of(step.weight_decay), 1.0 - lr * step.weight_decay);
    for tensor in &tensors {
        // SAFETY: the caller's promise.
        let count = unsafe { step_of(launch, &step, at, tensor.k) };
        let size = of(lr / (1.0 - power(step.a, count)));
        let root2 = of((1.0 - power(step.b, count)).sqrt());
        // SAFETY: each element is one thread's; the largest squares are there where they are asked for.
        each(launch, tensor.numel, |i| unsafe {
            let (mut own, mut grad) = (tensor.get(0, i), tensor.get(1, i));
            if step.flags & MAXIMIZE != 0 {
                grad = -grad;
            }
            if step.flags & DECOUPLED != 0 {
                own = own * of(kept);
            } else if step.weight_decay != 0.0 {
                grad = grad + decay * own;
            }
            let mean = lerp(tensor.get(2, i), grad, weight1);
            let mut square = beta2 * tensor.get(3, i) + weight2 * grad * grad;
            tensor.put(2, i, mean);
            tensor.put(3, i, square);
            if step.flags & AMSGRAD != 0 {
                let most = tensor.get(4, i);
                if most >= square {
                    square = most;
                }
                tensor.put(4, i, square);
            }
            tensor.put(0, i, own - size * mean / (square.root() / root2 + eps));
        });
    }
}

/// # Safety
/// As [`HostKernel`]: operands of `T` as `super::launch` has them, and [`Step`].
unsafe fn rmsprop_of<T: HostElement>(launch: &HostLaunch<'_>)
where
    T::Compute: Float,
{
    let (tensors, step, at) = tensors::<T, 5>(launch);
    let of = T::Compute::of;
    // SAFETY: the caller's promise.
    let lr = of(unsafe { lr_of(launch, &step, at) });
    let (alpha, rest, momentum) = (of(step.a), of(1.0 - step.a), of(step.b));
    let (eps, decay) = (of(step.eps), of(step.weight_decay));
    for tensor in &tensors {
        // SAFETY: each element is one thread's; what is asked for is there.
        each(launch, tensor.numel, |i| unsafe {
            let (own, mut grad) = (tensor.get(0, i), tensor.get(1, i));
            if step.flags & MAXIMIZE != 0 {
                grad = -grad;
            }
            if step.weight_decay != 0.0 {
                grad = grad + decay * own;
            }
            let square = alpha * tensor.get(2, i) + rest * grad * grad;
            tensor.put(2, i, square);
            let mut spread = square;
            if step.flags & CENTERED != 0 {
                let mean = lerp(tensor.get(3, i), grad, rest);
                tensor.put(3, i, mean);
                spread = spread - mean * mean;
            }
            let mut change = grad / (spread.root() + eps);
            if step.b > 0.0 {
                change = change + momentum * tensor.get(4, i);
                tensor.put(4, i, change);
            }
            tensor.put(0, i, own - lr * change);
        });
    }
}

/// # Safety
/// As [`HostKernel`]: operands of `T` as `super::launch` has them, and [`Step`].
unsafe fn scale_of<T: HostElement>(launch: &HostLaunch<'_>)
where
    T::Compute: Float,
{
    let (tensors, _, at) = tensors::<T, 1>(launch);
    // SAFETY: the operand behind the tensors' is the factor.
    let factor = T::Compute::of(unsafe { Shared::<f64>::operand(launch, at).read(0) });
    for tensor in &tensors {
        // SAFETY: each element is one thread's.
        each(launch, tensor.numel, |i| unsafe { tensor.put(0, i, tensor.get(0, i) * factor) });
    }
}

/// # Safety
/// As [`HostKernel`]: operands of `T` as `super::launch` has them, and [`Step`].
unsafe fn norm_of<T: HostElement>(launch: &HostLaunch<'_>)
where
    T::Compute: Float,
{
    let (tensors, step, at) = tensors::<T, 1>(launch);
    let out = Shared::<f64>::operand(launch, at);
    for tensor in &tensors {
        let first = step.first[tensor.k] as usize;
        parallel_for(launch.parallel, tensor.numel.div_ceil(CHUNK), 4, |chunks| {
            for chunk in chunks {
                let range = chunk * CHUNK..((chunk + 1) * CHUNK).min(tensor.numel);
                // SAFETY: elements of the tensor, which nobody writes.
                let values = range.map(|i| unsafe { tensor.get(0, i) }.wide());
                let part = if step.flags & LARGEST != 0 {
                    values.fold(
                        0.0,
                        |most, x| if x.abs() > most || x.is_nan() { x.abs() } else { most },
                    )
                } else {
                    values.map(|x| x * x).sum()
                };
                // SAFETY: an element of the result, which has one for each chunk.
                unsafe { out.write((first + chunk) as isize, part) };
            }
        });
    }
}
