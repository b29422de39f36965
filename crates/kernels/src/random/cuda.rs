//! Fills of CUDA tensors, with PyTorch's launch geometry, and their CPU implementations for
//! simulated devices.

use std::any::TypeId;

use half::{bf16, f16};
use warpline_cuda_sys_safe::{DeviceProperties, HostLaunch};

use super::float::RandomFloat;
use super::order::order;
use super::philox::{normal2, normal4, pairs, philox, uniform2, uniform4};
use super::{Distribution, FromInt, RandomFill};
use crate::programs::{FLOATS, committed, kernels, test_sources};
use warpline_runtime::graph::{PhiloxState, Sequence};
use warpline_runtime::host::{self, SharedPtr};
use warpline_runtime::iter::Walk;
use warpline_runtime::launch::{Grid, Kernel};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{CudaDevice, DType, Result, Target, View, cuda_struct, hosts};

/// Threads per block.
pub(super) const BLOCK: u64 = 256;

// The kernel of a program is an instance of the CUDA template with the name of the program.
//
// SAFETY, for all kernels: only `fill` makes `Draw`s, with the sizes, strides and dtype of the result.
// Each element of the result is written by one thread. The kernel reads the state only if the flag
// for its presence in `Draw` is set.
kernels! {
    pub(super) UNIFORM = "uniform", FLOATS, typed => {
        unsafe FILL_UNIFORM: Kernel<Draw, 2> = float self::uniform;
    }
    pub(super) NORMAL = "normal", FLOATS, typed => {
        unsafe FILL_NORMAL: Kernel<Draw, 2> = float self::normal;
    }
    pub(super) EXPONENTIAL = "exponential", FLOATS, typed => {
        unsafe FILL_EXPONENTIAL: Kernel<Draw, 2> = float self::exponential;
    }
    // One variant for each type of the probability, which is `f64` only if the result has type `f64`.
    pub(super) BERNOULLI = "bernoulli", &["f32", "f64"], any => {
        unsafe FILL_BERNOULLI: Kernel<Draw, 2> =
            all self::bernoulli.in_variant("f32").with_variant(DType::F64, "f64");
    }
}

/// One variant for each type of a draw.
pub(super) static RANDINT: Program =
    Program::new("randint", &["u32", "u64"], &[""], any).with_ptx(committed);

macro_rules! randint {
    ($draw:ident) => {
        Kernel::new(
            &RANDINT,
            "",
            hosts!(all T => <$draw as Draws>::randint::<T>).in_variant(stringify!($draw)),
        )
    };
}

// The second kernel is for wide ranges.
//
// SAFETY: the same as for the kernels above.
static FILL_RANDINT: [Kernel<Draw, 2>; 2] = unsafe { [randint!(u32), randint!(u64)] };
test_sources!(FILL_RANDINT);

/// Maximum number of blocks per multiprocessor. The kernels loop over the remaining elements.
const BLOCKS_PER_SM: u64 = 32;

fn typed(program: &Program, variant: &str) -> Source {
    source(program.name(), variant, variant, neighbours(variant == "f64"))
}

fn any(program: &Program, variant: &str) -> Source {
    source(program.name(), variant, "void", 1)
}

fn source(name: &str, variant: &str, out: &str, neighbours: u64) -> Source {
    let of = base().with::<Draw>().push(include_str!("fill.cuh"));
    of.push(&format!("RANDOM({name}_{variant}, {out}, ({name}<{variant}, {neighbours}>))"))
}

/// Returns the number of PyTorch's threads whose work one thread of this kernel does. A larger number
/// makes the code longer and slower to compile. The number is therefore 1 for doubles, and 4 for
/// half-width floats although a larger number would be faster.
const fn neighbours(double: bool) -> u64 {
    if double { 1 } else { 4 }
}

/// Returns the CUDA source that all random kernels share: it draws words and stores elements in
/// memory order.
pub(super) fn base() -> Source {
    let of = Source::new().with::<PhiloxState>().with::<Walk<1>>();
    of.push(module::ELEMENT)
        .push(module::WALK)
        .push(module::PHILOX)
        .push(include_str!("random.cuh"))
}

cuda_struct! {
    struct Draw {
        numel: u64,
        philox: PhiloxState,
        /// Threads of PyTorch's grid, each of which has a random sequence.
        threads: u64,
        /// Number of times that a thread of PyTorch's grid draws four words.
        rounds: u64,
        /// Threads of this kernel per round.
        groups: u64,
        /// Whether the elements are adjacent in memory.
        aligned: u64,
        /// Number of elements from the last aligned vector boundary to the first element.
        skew: u64,
        a: f64,
        b: f64,
        range: u64,
        base: i64,
        dtype: u64,
        order: Walk<1>,
    }
}

/// Returns the number of blocks of PyTorch's fill, and the number of values by which the random
/// sequence advances. The values of this fill depend on the first, those of later fills on the second.
/// `lanes` is the number of values that four random words give.
pub(super) fn geometry(properties: &DeviceProperties, numel: usize, lanes: u64) -> (u64, u64) {
    let blocks_per_sm = u64::from(properties.max_threads_per_multiprocessor) / BLOCK;
    let numel = numel.max(1) as u64;
    let full = u64::from(properties.multiprocessor_count) * blocks_per_sm;
    let blocks = full.min(numel.div_ceil(BLOCK)).max(1);
    (blocks, numel.div_ceil(BLOCK * blocks * lanes) * 4)
}

#[track_caller]
pub(super) fn fill(
    target: Target<'_>,
    device: &CudaDevice,
    out: View<'_>,
    fill: &RandomFill,
) -> Result<()> {
    let dtype = out.dtype;
    let double = dtype == DType::F64;
    let wide = fill.range == 0 || fill.range >= super::WIDE_RANGE;
    let two = if fill.distribution == Distribution::Randint { wide } else { double };
    let lanes = if two { 2 } else { 4 };
    let kernel = match fill.distribution {
        Distribution::Uniform => &FILL_UNIFORM,
        Distribution::Normal => &FILL_NORMAL,
        Distribution::Exponential => &FILL_EXPONENTIAL,
        Distribution::Bernoulli => &FILL_BERNOULLI,
        Distribution::Randint => &FILL_RANDINT[usize::from(wide)],
    };
    let order = order(fill.op, out.layout)?;
    let (blocks, values) = geometry(device.properties(), out.numel(), lanes);
    // The random sequence stays locked until the launch is enqueued, so that fills draw from the
    // sequence in the order of their launches.
    let generator = device.generator();
    let mut sequence = Sequence::of(target, &generator)?;
    let (threads, rounds) = (blocks * BLOCK, values / 4);
    let typed = matches!(
        fill.distribution,
        Distribution::Uniform | Distribution::Normal | Distribution::Exponential
    );
    let neighbours = if typed { neighbours(double) } else { 1 };
    let aligned = order.inner() == (out.numel(), [1]);
    let skew = if aligned { out.layout.offset() as u64 % neighbours } else { 0 };
    let groups = (threads + skew).div_ceil(neighbours);
    let across = groups.div_ceil(BLOCK);
    let most = u64::from(device.properties().multiprocessor_count) * BLOCKS_PER_SM;
    let grid = [across as u32, (most / across).clamp(1, rounds) as u32, 1];
    let grid = Grid::new(grid, BLOCK as u32);
    let params = Draw {
        numel: out.numel() as u64,
        philox: sequence.advance(values),
        threads,
        rounds,
        groups,
        aligned: aligned.into(),
        skew,
        a: if fill.distribution == Distribution::Exponential {
            factor(fill.a, double)
        } else {
            fill.a
        },
        b: fill.b,
        range: fill.range,
        base: fill.base,
        dtype: dtype as u64,
        order,
    };
    let layout = sequence.state_layout()?;
    let operands = [out.write(), sequence.state(&layout, out.storage)];
    kernel.launch(target, fill.op, &operands, &params, grid)
}

/// Returns `-1 / lambda`, the factor of the logarithm in an exponential draw, rounded to the
/// precision of the computation.
fn factor(lambda: f64, double: bool) -> f64 {
    if double { -1.0 / lambda } else { f64::from(-1.0 / lambda as f32) }
}

/// Runs a fill on the CPU. One iteration does the work of one thread of PyTorch's grid.
///
/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the result (`T`) and the
/// generator's state. In a graph, the state must be valid; other launches do not read it.
unsafe fn each<T: Copy, I: IntoIterator<Item = T>>(
    launch: &HostLaunch<'_>,
    p: &Draw,
    lanes: usize,
    values: impl Fn(&Draw, [u32; 4]) -> I + Sync,
) {
    let out = SharedPtr::<T>::operand(launch, 0);
    // SAFETY: the second operand is the state, which `get` reads only if the flag in `p.philox` is
    // set.
    let (seed, offset) = unsafe { p.philox.get(launch, 1) };
    let (numel, threads) = (p.numel as usize, p.threads as usize);
    host::parallel_for(launch.parallel, threads.min(numel), 256, |range| {
        for thread in range {
            let firsts = (thread..numel).step_by(threads * lanes);
            for (turn, first) in firsts.enumerate() {
                let words = philox(seed, thread as u64, offset / 4 + turn as u64);
                let indices = (first..numel).step_by(threads);
                for (index, value) in indices.zip(values(p, words)) {
                    // SAFETY: `index` is less than the number of elements, and each index belongs
                    // to one thread.
                    unsafe { out.write(p.order.offsets(index)[0], value) };
                }
            }
        }
    });
}

/// Conversion of random words to values of a float type.
trait Lanes: RandomFloat {
    /// The compute type.
    type Acc: RandomFloat;
    const LANES: usize;
    fn uniform(words: [u32; 4]) -> impl IntoIterator<Item = Self::Acc>;
    fn normal(words: [u32; 4]) -> impl IntoIterator<Item = Self::Acc>;
    fn narrow(value: Self::Acc) -> Self {
        Self::from_f64(value.to_f64())
    }
    fn widen(self) -> Self::Acc {
        Self::Acc::from_f64(self.to_f64())
    }
}

macro_rules! lanes {
    ($($ty:ty => $acc:ty, $lanes:expr, $uniform:ident, $normal:ident;)*) => {$(
        impl Lanes for $ty {
            type Acc = $acc;
            const LANES: usize = $lanes;
            fn uniform(words: [u32; 4]) -> impl IntoIterator<Item = $acc> {
                $uniform(words)
            }
            fn normal(words: [u32; 4]) -> impl IntoIterator<Item = $acc> {
                $normal(words)
            }
        }
    )*};
}

lanes! {
    f16 => f32, 4, uniform4, normal4;
    bf16 => f32, 4, uniform4, normal4;
    f32 => f32, 4, uniform4, normal4;
    f64 => f64, 2, uniform2, normal2;
}

unsafe fn uniform<T: Lanes>(launch: &HostLaunch<'_>, p: &Draw) {
    let value = |p: &Draw, words| {
        let (from, to) = (T::from_f64(p.a), T::from_f64(p.b));
        let (range, base) = (to.sub(from).widen(), from.widen());
        T::uniform(words).into_iter().map(move |u| {
            let value = T::narrow(u.mul_add(range, base));
            // Draws are in (0, 1], but results must be in [from, to), so `to` becomes `from`.
            if value == to { from } else { value }
        })
    };
    // SAFETY: the caller guarantees that the operands are a result with elements of type `T` and the state.
    unsafe { each(launch, p, T::LANES, value) }
}

unsafe fn normal<T: Lanes>(launch: &HostLaunch<'_>, p: &Draw) {
    let value = |p: &Draw, words| {
        let (mean, std) = (T::Acc::from_f64(p.a), T::Acc::from_f64(p.b));
        T::normal(words).into_iter().map(move |z| T::narrow(z.mul_add(std, mean)))
    };
    // SAFETY: the caller guarantees that the operands are a result with elements of type `T` and the state.
    unsafe { each(launch, p, T::LANES, value) }
}

unsafe fn exponential<T: Lanes>(launch: &HostLaunch<'_>, p: &Draw) {
    let value = |p: &Draw, words| {
        // The compute type represents both constants exactly.
        let half_epsilon = 0.5f64.powi(T::Acc::DIGITS as i32);
        let factor = T::Acc::from_f64(p.a);
        T::uniform(words).into_iter().map(move |u| {
            // The logarithm must not be 0, because an exponential value must be positive.
            let near_one = u.to_f64() >= 1.0 - half_epsilon;
            let ln = if near_one { T::Acc::from_f64(-half_epsilon) } else { u.ln() };
            T::narrow(factor.mul(ln))
        })
    };
    // SAFETY: the caller guarantees that the operands are a result with elements of type `T` and the state.
    unsafe { each(launch, p, T::LANES, value) }
}

unsafe fn bernoulli<T: FromInt>(launch: &HostLaunch<'_>, p: &Draw) {
    // SAFETY: the caller guarantees that the operands are a result with elements of type `T` and the state.
    unsafe {
        // The probability has type `f64` only if the result has type `f64`.
        if TypeId::of::<T>() == TypeId::of::<f64>() {
            each(launch, p, 2, |p, words| uniform2(words).map(|u| T::from_i64((u < p.a).into())));
        } else {
            let value = |p: &Draw, words| {
                let probability = p.a as f32;
                uniform4(words).map(|u| T::from_i64((u < probability).into()))
            };
            each(launch, p, 4, value);
        }
    }
}

/// A type of draws of random integers.
trait Draws {
    /// # Safety
    /// The conditions of [`each`].
    unsafe fn randint<T: FromInt>(launch: &HostLaunch<'_>, p: &Draw);
}

impl Draws for u32 {
    unsafe fn randint<T: FromInt>(launch: &HostLaunch<'_>, p: &Draw) {
        let value = |p: &Draw, words: [u32; 4]| {
            let (range, base) = (p.range as u32, p.base);
            words.map(|w| T::from_i64(i64::from(w % range).wrapping_add(base)))
        };
        // SAFETY: the caller guarantees that the operands are a result with elements of type `T` and the state.
        unsafe { each(launch, p, 4, value) }
    }
}

impl Draws for u64 {
    unsafe fn randint<T: FromInt>(launch: &HostLaunch<'_>, p: &Draw) {
        let value = |p: &Draw, words| {
            let (range, base) = (p.range, p.base);
            // A range of 0 means 2⁶⁴.
            pairs(words)
                .map(|w| T::from_i64((w.checked_rem(range).unwrap_or(w) as i64).wrapping_add(base)))
        };
        // SAFETY: the caller guarantees that the operands are a result with elements of type `T` and the state.
        unsafe { each(launch, p, 2, value) }
    }
}
