//! CPU implementations of batch norm and its gradients. Sums are in `f64`, in the order of the
//! elements, so they are the same with any number of threads.

use std::ops::Range;

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{Cast, HostElement, Number, SharedPtr, parallel_for};

use super::Channels;

/// Number of neighbouring channels that a thread takes at a time if the channels are innermost.
const TOGETHER: usize = 16;

impl Channels {
    fn eps(&self) -> f64 {
        f64::from_bits(self.eps)
    }

    /// Calls `f` for ranges of channels, from several threads.
    fn each_range(&self, launch: &HostLaunch<'_>, f: impl Fn(Range<usize>) + Sync) {
        let together = if self.is_last == 1 { TOGETHER } else { 1 };
        let channels = self.channels as usize;
        parallel_for(launch.parallel, channels.div_ceil(together), 1, |parts| {
            for part in parts {
                f(part * together..((part + 1) * together).min(channels));
            }
        });
    }

    /// Calls `f` with the index in the range and the position in memory of each element of these
    /// channels.
    fn each_element(&self, channels: Range<usize>, mut f: impl FnMut(usize, isize)) {
        let (all, area) = (self.channels as usize, self.area as usize);
        if self.is_last == 1 {
            for row in 0..self.batch as usize * area {
                let first = row * all + channels.start;
                (0..channels.len()).for_each(|c| f(c, (first + c) as isize));
            }
            return;
        }
        for (c, channel) in channels.enumerate() {
            for n in 0..self.batch as usize {
                let first = (n * all + channel) * area;
                (0..area).for_each(|i| f(c, (first + i) as isize));
            }
        }
    }
}

/// Parameters of channels: of the element type, or of its type of arithmetic.
struct Parameters<T: HostElement> {
    plain: SharedPtr<T>,
    wide: SharedPtr<T::Compute>,
    is_wide: bool,
}

impl<T: HostElement> Parameters<T> {
    fn operand(launch: &HostLaunch<'_>, index: usize, is_wide: u64) -> Self {
        Self {
            plain: SharedPtr::operand(launch, index),
            wide: SharedPtr::operand(launch, index),
            is_wide: is_wide == 1,
        }
    }

    /// # Safety
    /// The channel exists, and no other thread writes its parameter.
    unsafe fn read(&self, channel: usize) -> T::Compute {
        // SAFETY: the caller guarantees that the element exists, in one of the two types.
        unsafe {
            if self.is_wide {
                self.wide.read(channel as isize)
            } else {
                self.plain.read(channel as isize).get()
            }
        }
    }

    /// # Safety
    /// The channel exists, and no other thread accesses its parameter.
    unsafe fn write(&self, channel: usize, value: T::Compute) {
        // SAFETY: the caller guarantees that the element exists, in one of the two types.
        unsafe {
            if self.is_wide {
                self.wide.write(channel as isize, value);
            } else {
                self.plain.write(channel as isize, T::put(value));
            }
        }
    }
}

fn wide<T: HostElement>(value: T) -> f64
where
    T::Compute: Cast<f64>,
{
    value.get().cast()
}

fn narrow<C: Number>(value: f64) -> C {
    C::from_number(value)
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the elements (`T`), mean and scale
/// (`T::Compute`), running mean and variance, and scratch memory.
pub(super) unsafe fn batch_norm_moments<T>(launch: &HostLaunch<'_>, p: &Channels)
where
    T: HostElement,
    T::Compute: Cast<f64>,
{
    let x = SharedPtr::<T>::operand(launch, 0);
    let [means, scales] = [1, 2].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let [running_mean, running_var] =
        [3, 4].map(|i| Parameters::<T>::operand(launch, i, p.is_running_wide));
    let count = (p.batch * p.area) as f64;
    p.each_range(launch, |channels| {
        let (mut mean, mut squares) = (vec![0.0; channels.len()], vec![0.0; channels.len()]);
        // SAFETY: `each_element` yields elements that exist.
        p.each_element(channels.clone(), |c, at| mean[c] += wide(unsafe { x.read(at) }));
        mean.iter_mut().for_each(|sum| *sum /= count);
        p.each_element(channels.clone(), |c, at| {
            // SAFETY: `each_element` yields elements that exist.
            let d = wide(unsafe { x.read(at) }) - mean[c];
            squares[c] += d * d;
        });
        for (c, channel) in channels.enumerate() {
            let scale = 1.0 / (squares[c] / count + p.eps()).sqrt();
            // SAFETY: the channel exists and belongs to this thread.
            unsafe {
                means.write(channel as isize, narrow(mean[c]));
                scales.write(channel as isize, narrow(scale));
                if p.is_running == 1 {
                    let momentum = f64::from_bits(p.momentum);
                    for (running, new) in
                        [(&running_mean, mean[c]), (&running_var, squares[c] / (count - 1.0))]
                    {
                        let old: f64 = running.read(channel).cast();
                        running.write(channel, narrow((1.0 - momentum) * old + momentum * new));
                    }
                }
            }
        }
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the elements (`T`), weight, bias, mean,
/// scale (outside training, the variance), and the result (`T`).
pub(super) unsafe fn batch_norm_apply<T>(launch: &HostLaunch<'_>, p: &Channels)
where
    T: HostElement,
    T::Compute: Cast<f64>,
{
    let [x, out] = [0, 5].map(|i| SharedPtr::<T>::operand(launch, i));
    let [weight, bias] = [1, 2].map(|i| Parameters::<T>::operand(launch, i, p.is_wide));
    let [mean, scale] = [3, 4].map(|i| Parameters::<T>::operand(launch, i, p.is_running_wide));
    p.each_range(launch, |channels| {
        let one = T::Compute::from_number(1.0);
        let of: Vec<[T::Compute; 3]> = channels
            .clone()
            .map(|channel| {
                // SAFETY: the channel exists.
                unsafe {
                    let mut factor = scale.read(channel);
                    if p.is_training == 0 {
                        factor = narrow(1.0 / (factor.cast() + p.eps()).sqrt());
                    }
                    let weight = if p.is_weighted == 1 { weight.read(channel) } else { one };
                    let plus = if p.is_biased == 1 { bias.read(channel) } else { narrow(0.0) };
                    [mean.read(channel), factor.mul(weight), plus]
                }
            })
            .collect();
        p.each_element(channels, |c, at| {
            let [mean, factor, plus] = of[c];
            // SAFETY: `each_element` yields elements that exist, of channels of this thread.
            unsafe {
                let y = x.read(at).get().sub(mean).mul(factor).add(plus);
                out.write(at, T::put(y));
            }
        });
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the gradient (`T`), the elements (`T`),
/// mean, scale, the gradients of weight and bias, the two sums, and scratch memory.
pub(super) unsafe fn batch_norm_sums<T>(launch: &HostLaunch<'_>, p: &Channels)
where
    T: HostElement,
    T::Compute: Cast<f64>,
{
    let [grad, x] = [0, 1].map(|i| SharedPtr::<T>::operand(launch, i));
    let [means, scales, along, plain] =
        [2, 3, 6, 7].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let [of_weight, of_bias] = [4, 5].map(|i| Parameters::<T>::operand(launch, i, p.is_wide));
    p.each_range(launch, |channels| {
        // SAFETY: the channels exist.
        let mean = |channel: usize| -> f64 { unsafe { means.read(channel as isize) }.cast() };
        let mean: Vec<f64> = channels.clone().map(mean).collect();
        let mut sums = vec![[0.0; 2]; channels.len()];
        p.each_element(channels.clone(), |c, at| {
            // SAFETY: `each_element` yields elements that exist.
            let (g, x) = unsafe { (wide(grad.read(at)), wide(x.read(at))) };
            sums[c][0] += g;
            sums[c][1] += g * (x - mean[c]);
        });
        for ([of_one, of_deviation], channel) in sums.into_iter().zip(channels) {
            // SAFETY: the channel exists and belongs to this thread.
            unsafe {
                let scale: f64 = scales.read(channel as isize).cast();
                let of_scaled = of_deviation * scale;
                along.write(channel as isize, narrow(of_scaled));
                plain.write(channel as isize, narrow(of_one));
                if p.is_weighted == 1 {
                    of_weight.write(channel, narrow(of_scaled));
                }
                if p.is_biased == 1 {
                    of_bias.write(channel, narrow(of_one));
                }
            }
        }
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the gradient (`T`), the elements (`T`),
/// weight, mean, scale, the two sums, and the result (`T`).
pub(super) unsafe fn batch_norm_backward<T>(launch: &HostLaunch<'_>, p: &Channels)
where
    T: HostElement,
    T::Compute: Cast<f64>,
{
    let [grad, x, out] = [0, 1, 7].map(|i| SharedPtr::<T>::operand(launch, i));
    let weight = Parameters::<T>::operand(launch, 2, p.is_wide);
    let [means, scales, along, plain] =
        [3, 4, 5, 6].map(|i| SharedPtr::<T::Compute>::operand(launch, i));
    let count = (p.batch * p.area) as f64;
    p.each_range(launch, |channels| {
        let of: Vec<[T::Compute; 4]> = channels
            .clone()
            .map(|channel| {
                let i = channel as isize;
                // SAFETY: the channel exists.
                unsafe {
                    let (mean, scale) = (means.read(i), scales.read(i));
                    let each = |sum: T::Compute| narrow::<T::Compute>(sum.cast() / count);
                    let (less, slope) = (each(plain.read(i)), each(along.read(i)).mul(scale));
                    let factor =
                        if p.is_weighted == 1 { scale.mul(weight.read(channel)) } else { scale };
                    [mean, factor, less, slope]
                }
            })
            .collect();
        p.each_element(channels, |c, at| {
            let [mean, factor, less, slope] = of[c];
            // SAFETY: `each_element` yields elements that exist, of channels of this thread.
            unsafe {
                let d = x.read(at).get().sub(mean);
                let rest = grad.read(at).get().sub(less).sub(d.mul(slope));
                out.write(at, T::put(rest.mul(factor)));
            }
        });
    });
}
