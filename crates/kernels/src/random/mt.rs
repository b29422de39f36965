//! Fills of CPU tensors from the MT19937 sequence.
//!
//! Random numbers are drawn sequentially. Normal values in contiguous memory are then computed on
//! all cores.

use std::slice::from_raw_parts_mut;

use warpline_cuda_sys_safe::HostLaunch;

use super::FromInt;
use super::float::RandomFloat;
use super::order::order;
use crate::math::{Convert, vectorized};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::generator::CpuGenerator;
use warpline_runtime::host::{self, HostElement, SharedPtr};
use warpline_runtime::iter::Walk;
use warpline_runtime::{Result, Site, View, launch};

/// The CPU tensor of a fill, which is locked for writing.
pub(super) struct FillTarget<'a, T> {
    launch: &'a HostLaunch<'a>,
    elements: SharedPtr<T>,
    order: Walk<1>,
    numel: usize,
    contiguous: bool,
}

impl<T: HostElement> FillTarget<'_, T> {
    /// Locks the elements of `out` while `f` runs. The caller must have checked that `out` does not
    /// reach outside its storage.
    ///
    /// # Errors
    /// - [`ErrorKind::DTypeMismatch`] if `T` is not the type of the elements of `out`.
    /// - [`ErrorKind::TooManyDims`] if `out` has more than 16 dimensions after merging.
    /// - The errors of [`launch::with_operands`].
    #[track_caller]
    pub(super) fn with(
        site: Site,
        out: View<'_>,
        f: impl FnOnce(&mut FillTarget<'_, T>),
    ) -> Result<()> {
        out.check_dtype(site.op, T::DTYPE)?;
        let order = order(site.op, out.layout)?;
        launch::with_operands(site, &[out.write()], &[], |launch| {
            f(&mut FillTarget {
                launch,
                elements: SharedPtr::operand(launch, 0),
                order,
                numel: out.numel(),
                contiguous: out.layout.is_contiguous(),
            });
        })
    }

    /// Writes one value per element, in memory order.
    fn fill(&mut self, mut next: impl FnMut() -> T) {
        for i in 0..self.numel {
            // SAFETY: `order` reaches only elements of the operand. Their type is `T`, as `with`
            // has checked, and they are locked for writing.
            unsafe { self.elements.write(self.order.offsets(i)[0], next()) };
        }
    }

    /// Returns the elements. `None` if they are not contiguous.
    fn slice(&mut self) -> Option<&mut [T]> {
        // SAFETY: the elements are contiguous, of `T`, and locked for writing. The slice borrows
        // this target, so there is no other.
        self.contiguous.then(|| unsafe { from_raw_parts_mut(self.elements.0, self.numel) })
    }
}

/// Draws a value in `[0, 1)` with as many bits as `T` has.
fn unit<T: RandomFloat>(generator: &mut CpuGenerator) -> T {
    unit_of(draw::<T>(generator))
}

/// Draws the bits for [`unit_of`].
fn draw<T: RandomFloat>(generator: &mut CpuGenerator) -> u64 {
    if T::DIGITS > 32 { generator.random64() } else { generator.random().into() }
}

#[inline(always)]
fn unit_of<T: RandomFloat>(draw: u64) -> T {
    let mask = (1u64 << T::DIGITS) - 1;
    T::from_f64((draw & mask) as f64 / (1u64 << T::DIGITS) as f64)
}

/// Fills a slice with `f(draw)` for consecutive draws, in chunks that fit the level 1 cache.
fn fill_slice<T: RandomFloat>(
    to: &mut [T],
    generator: &mut CpuGenerator,
    f: impl Fn(u64) -> T + Copy,
) {
    let mut draws = [0; 512];
    for chunk in to.chunks_mut(draws.len()) {
        let draws = &mut draws[..chunk.len()];
        draws.fill_with(|| draw::<T>(generator));
        vectorized(Convert(draws, chunk, f));
    }
}

pub(super) fn uniform<T: RandomFloat>(
    out: &mut FillTarget<'_, T>,
    generator: &mut CpuGenerator,
    from: f64,
    to: f64,
) {
    let (from, to) = (T::from_f64(from), T::from_f64(to));
    let (range, base) = (to.sub(from).to_f64(), from.to_f64());
    let value = move |draw: u64| {
        let x = unit_of::<T>(draw);
        if T::DIGITS >= 24 {
            return x.mul_add(to.sub(from), from);
        }
        // Half-width floats are computed in single precision.
        T::from_f64((x.to_f64() as f32).mul_add(range as f32, base as f32).into())
    };
    match out.slice() {
        Some(data) => fill_slice(data, generator, value),
        None => out.fill(|| value(draw::<T>(generator))),
    }
}

pub(super) fn normal<T: RandomFloat>(
    out: &mut FillTarget<'_, T>,
    generator: &mut CpuGenerator,
    mean: f64,
    std: f64,
) {
    let parallel = out.launch.parallel;
    let Some(data) = out.slice().filter(|data| data.len() >= 16) else {
        return out.fill(|| T::from_f64(draw_normal(generator).mul_add(std, mean)));
    };
    fill_slice(data, generator, unit_of::<T>);
    let (mean, std) = (T::from_f64(mean), T::from_f64(std));
    let blocks = SharedPtr(data.as_mut_ptr());
    host::parallel_for(parallel, data.len() / 16, 512, |range| {
        for block in range {
            // SAFETY: blocks of 16 do not overlap, and each belongs to one thread.
            let block = unsafe { &mut *{ blocks }.0.add(block * 16).cast::<[T; 16]>() };
            box_muller(block, mean, std);
        }
    });
    if data.len() % 16 != 0
        && let Some(last) = data.last_chunk_mut::<16>()
    {
        // As in PyTorch, draw and compute the last 16 elements again, although some of them are
        // already final.
        last.fill_with(|| unit(generator));
        box_muller(last, mean, std);
    }
}

/// Converts 16 uniform values to 16 normally distributed values.
fn box_muller<T: RandomFloat>(block: &mut [T; 16], mean: T, std: T) {
    let (one, minus_two) = (T::from_f64(1.0), T::from_f64(-2.0));
    for j in 0..8 {
        // Maps [0, 1) to (0, 1], for the logarithm.
        let u = one.sub(block[j]);
        let radius = minus_two.mul(u.ln()).sqrt();
        let (sin, cos) = block[j + 8].turns().sin_cos();
        block[j] = radius.mul(cos).mul_add(std, mean);
        block[j + 8] = radius.mul(sin).mul_add(std, mean);
    }
}

/// Returns a standard normal value. Values are computed in pairs; the generator keeps the second
/// value of a pair for the next call.
fn draw_normal(generator: &mut CpuGenerator) -> f64 {
    if let Some(value) = generator.take_normal() {
        return value;
    }
    let (u, v) = (unit::<f64>(generator), unit::<f64>(generator));
    let radius = (-2.0 * (-v).ln_1p()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * u).sin_cos();
    generator.keep_normal(radius * sin);
    radius * cos
}

pub(super) fn exponential<T: RandomFloat>(
    out: &mut FillTarget<'_, T>,
    generator: &mut CpuGenerator,
    lambda: f64,
) {
    out.fill(|| T::from_f64(-1.0 / lambda * (-unit::<f64>(generator)).ln_1p()));
}

pub(super) fn bernoulli<T: FromInt>(
    out: &mut FillTarget<'_, T>,
    generator: &mut CpuGenerator,
    p: f64,
) {
    out.fill(|| T::from_i64(i64::from(unit::<f64>(generator) < p)));
}

pub(super) fn randint<T: FromInt>(
    out: &mut FillTarget<'_, T>,
    generator: &mut CpuGenerator,
    range: u64,
    low: i64,
) {
    let wide = range >= super::WIDE_RANGE;
    out.fill(|| {
        let bits = if wide { generator.random64() } else { generator.random().into() };
        // A range of 0 means 2⁶⁴.
        T::from_i64((bits.checked_rem(range).unwrap_or(bits) as i64).wrapping_add(low))
    });
}

pub(super) fn randperm<T: FromInt>(out: &mut FillTarget<'_, T>, generator: &mut CpuGenerator) {
    let mut numbers = generator.permutation(out.numel).into_iter();
    // `numbers` yields one number per element, so the default is never used.
    out.fill(|| T::from_i64(numbers.next().unwrap_or_default()));
}
