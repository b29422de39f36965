//! CPU loops of all ops. A loop reads elements as the compute type, applies a function, and writes
//! the results as the dtype of the output. Only the function is compiled for each op.

use std::any::TypeId;
use std::array::from_fn;
use std::marker::PhantomData;

use warpline_cuda_sys_safe::HostLaunch;
use warpline_runtime::host::{
    GRAIN, HostElement, LANES, Number, SharedPtr, load, parallel_for, rows, store,
};
use warpline_runtime::iter::{Flat, HostLoop, Index, Space, Variant};
use warpline_runtime::module::Program;
use warpline_runtime::{DType, dispatch};

use super::entry::{DTypes, Input, Slices, widths};
use super::run::Numbers;
use crate::math::{Convert, vectorized};

/// The CPU implementation of an op with `N` inputs of the compute type `C`.
///
/// # Safety
/// [`Function::run`] accesses only the elements that its safety section names.
pub unsafe trait Function<C, const N: usize> {
    /// Type of the results.
    type Out;

    /// Computes `n` results.
    ///
    /// # Safety
    /// The inputs are valid for `n` reads and `out` for `n` writes. An input may be `out` itself,
    /// but must not overlap `out` otherwise. No other thread accesses this memory meanwhile.
    unsafe fn run(inputs: [*const C; N], out: *mut Self::Out, n: usize);
}

/// Applies `f` to each element. Elements are processed in chunks: a chunk is read completely before
/// an element of it is written. An operand may therefore be the result, and the compiler can use
/// vector instructions.
///
/// # Safety
/// The inputs are valid for `n` reads and `out` for `n` writes. An input may be `out` itself, but
/// must not overlap `out` otherwise. No other thread accesses this memory meanwhile.
#[inline(always)]
pub unsafe fn each<C: Copy, R: Copy, const N: usize>(
    inputs: [*const C; N],
    out: *mut R,
    n: usize,
    f: impl Fn([C; N]) -> R,
) {
    let mut k = 0;
    while k + LANES <= n {
        // SAFETY: `k + LANES` is at most `n`, for which the caller guarantees valid pointers.
        let x: [[C; LANES]; N] = unsafe { at(inputs, k) };
        for j in 0..LANES {
            // SAFETY: `k + j` is less than `n`.
            unsafe { out.add(k + j).write(f(lane(&x, j))) };
        }
        k += LANES;
    }
    while k < n {
        // SAFETY: `k` is less than `n`, for which the caller guarantees valid pointers.
        unsafe { out.add(k).write(f(lane::<_, 1, N>(&at(inputs, k), 0))) };
        k += 1;
    }
}

/// Reads a `[C; M]` from each input, `k` elements after its begin. Like [`lane`], this is a function of its own because
/// closures in [`each`] would be compiled anew for each op.
///
/// # Safety
/// Each input is valid for reads of `M` elements from `k` on.
#[inline(always)]
unsafe fn at<C: Copy, const M: usize, const N: usize>(
    inputs: [*const C; N],
    k: usize,
) -> [[C; M]; N] {
    // SAFETY: the caller guarantees that the reads are valid.
    inputs.map(|input| unsafe { input.add(k).cast::<[C; M]>().read() })
}

/// Returns element `j` of each array.
#[inline(always)]
fn lane<C: Copy, const M: usize, const N: usize>(x: &[[C; M]; N], j: usize) -> [C; N] {
    from_fn(|i| x[i][j])
}

/// Applies a function of slices.
///
/// # Safety
/// The input is valid for `n` reads and `out` for `n` writes. The input may be `out` itself, but
/// must not overlap `out` otherwise. No other thread accesses this memory meanwhile.
pub unsafe fn in_slices<C: Copy>(input: *const C, out: *mut C, n: usize, f: impl Fn(&mut [C])) {
    // A slice stays in the level 1 cache between the copy and the function.
    for first in (0..n).step_by(SLICE) {
        let n = SLICE.min(n - first);
        // SAFETY: the caller guarantees that `n` elements are valid, and only the slice accesses
        // `out` from here on.
        unsafe {
            let (input, out) = (input.add(first), out.add(first));
            if !std::ptr::eq(input, out) {
                out.copy_from_nonoverlapping(input, n);
            }
            f(std::slice::from_raw_parts_mut(out, n));
        }
    }
}

/// Returns a function that applies `f` to every element of a slice.
pub(super) fn scalars<C: Copy>(f: impl Fn(C) -> C) -> impl Fn(&mut [C]) {
    move |values| values.iter_mut().for_each(|x| *x = f(*x))
}

/// Returns kernels and the function over slices of an op on elements `T`, with results `O`, if
/// `dtypes` contains the dtype of `T`. `cuda` is the op's CUDA expression.
///
/// # Safety
/// There are `I` inputs. `program` has the source that [`entry`](super::entry) makes from `cuda` and
/// `inputs`, with elements of `T` and a result of `O`. `cuda` computes the same as `F`.
pub const unsafe fn host<F, T, O, const I: usize, const N: usize>(
    program: &'static Program,
    dtypes: DTypes,
    inputs: &[Input],
    cuda: &str,
) -> Option<(Variant<Numbers<I>, N>, Slices)>
where
    T: HostElement,
    O: HostElement,
    F: Function<T::Compute, I, Out = O::Compute>,
{
    const { assert!(I + 1 == N) };
    if !dtypes.contains(T::DTYPE) {
        return None;
    }
    let mut views = [T::DTYPE; N];
    views[I] = O::DTYPE;
    let mut input = 0;
    while input < I {
        if inputs[input].is_bool {
            views[input] = DType::Bool;
        }
        input += 1;
    }
    let widths = widths(cuda, I, T::DTYPE);
    // SAFETY: the caller guarantees that the program's variant for `T` computes the same as `F`.
    // `run` launches the kernels only with arguments that contain the dtypes of the views.
    let variant = unsafe { Variant::new::<FunctionLoop<F, T, O>>(program, views, widths) };
    Some((variant, slices::<F, T, O, I>))
}

/// Computes an op over slices, as a [`Slices`] function.
///
/// # Safety
/// `inputs` has `I` pointers, each valid for reads of `n` values of `T::Compute`. `out` is valid
/// for `n` writes and overlaps no input. `n` is at most 512.
unsafe fn slices<F, T, O, const I: usize>(inputs: &[*const u8], out: *mut u8, n: usize)
where
    T: HostElement,
    O: HostElement,
    F: Function<T::Compute, I, Out = O::Compute>,
{
    // SAFETY: the caller guarantees what `run_slices` requires.
    unsafe { run_slices::<T, O, I>(F::run, inputs, out, n) }
}

/// Calls `f` for [`slices`]. It is compiled once for all ops of these types.
///
/// # Safety
/// The conditions of [`slices`], and `f` is a [`Function::run`].
unsafe fn run_slices<T: HostElement, O: HostElement, const I: usize>(
    f: unsafe fn([*const T::Compute; I], *mut O::Compute, usize),
    inputs: &[*const u8],
    out: *mut u8,
    n: usize,
) {
    let inputs = from_fn(|k| inputs[k].cast::<T::Compute>());
    if TypeId::of::<T>() == TypeId::of::<O>() {
        // SAFETY: the caller guarantees that each pointer leads to `n` values. `O::Compute` is
        // `T::Compute`, because `O` is `T`.
        return unsafe { f(inputs, out.cast(), n) };
    }
    let mut results = [O::Compute::from_bits(0); SLICE];
    // SAFETY: the caller guarantees that each input has `n` values, and `results` has room for 512.
    unsafe { f(inputs, results.as_mut_ptr(), n) };
    for (k, result) in results[..n].iter().enumerate() {
        // SAFETY: `k` is less than `n`, for which the caller guarantees a valid `out`.
        unsafe { out.cast::<T::Compute>().add(k).write(T::Compute::from_number(*result)) };
    }
}

/// Applies `F` to operands that are computed as `T`, and writes results of `O`.
struct FunctionLoop<F, T, O>(PhantomData<(F, T, O)>);

// SAFETY: `over` reads the operands that are not numbers and writes the last one.
unsafe impl<F, T, O, const I: usize, const N: usize> HostLoop<Numbers<I>, N>
    for FunctionLoop<F, T, O>
where
    T: HostElement,
    O: HostElement,
    F: Function<T::Compute, I, Out = O::Compute>,
{
    const VARIANT: &'static str = T::DTYPE.suffix();

    unsafe fn flat(launch: &HostLaunch<'_>, space: &Flat, numbers: &Numbers<I>) {
        // SAFETY: the caller guarantees that the operands have the dtypes in `numbers` and the
        // elements of `space`.
        unsafe {
            if is_in_place::<T, O, I>(numbers) {
                return in_place::<T, O, I>(launch, space.numel as usize, F::run);
            }
            over::<T, O, I, N>(launch, &space.index(), *numbers, F::run);
        }
    }

    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<N>, numbers: &Numbers<I>) {
        // SAFETY: the caller guarantees that the operands have the dtypes in `numbers` and the
        // elements of `index`.
        unsafe { over::<T, O, I, N>(launch, index, *numbers, F::run) }
    }
}

/// Elements per slice: enough that the cost of a call does not matter, few enough that they stay in
/// the level 1 cache.
pub(super) const SLICE: usize = 32 * LANES;

const _: () = assert!(SLICE == 512, "the documentation of `slices` has this number");

/// Returns whether the loop can use the memory of all operands as it is.
fn is_in_place<T: HostElement, O: HostElement, const I: usize>(numbers: &Numbers<I>) -> bool {
    let is_own = |k| numbers.code(k) == if k < I { T::DTYPE } else { O::DTYPE } as u32;
    is_plain::<T>() && is_plain::<O>() && (0..=I).all(is_own)
}

/// Runs the loop over contiguous operands, for which [`is_in_place`] holds.
///
/// # Safety
/// The launch has `I` operands with `numel` elements of `T`, then the result with as many elements of `O`. No other
/// thread writes to these elements.
unsafe fn in_place<T: HostElement, O: HostElement, const I: usize>(
    launch: &HostLaunch<'_>,
    numel: usize,
    f: unsafe fn([*const T::Compute; I], *mut O::Compute, usize),
) {
    let memory: [SharedPtr<T>; I] = from_fn(|k| SharedPtr::operand(launch, k));
    let result = SharedPtr::<O>::operand(launch, I);
    parallel_for(launch.parallel, numel, GRAIN, |range| {
        let first = range.start as isize;
        let inputs = memory.map(|memory| memory.at(first).cast_const().cast());
        // SAFETY: the caller guarantees that there are `numel` elements. Ranges of different threads are disjoint.
        unsafe { f(inputs, result.at(first).cast(), range.len()) }
    });
}

/// Runs the loop. It is compiled once for all ops of these types.
///
/// # Safety
/// The launch has `I` operands, then the result. Operands that are numbers are not read. All others
/// have the dtypes in `numbers`, and elements at the positions of `index`. No other thread writes
/// to these elements.
unsafe fn over<T: HostElement, O: HostElement, const I: usize, const N: usize>(
    launch: &HostLaunch<'_>,
    index: &Index<N>,
    numbers: Numbers<I>,
    f: unsafe fn([*const T::Compute; I], *mut O::Compute, usize),
) {
    let strides = index.inner_strides();
    let memory: [SharedPtr<T>; I] = from_fn(|k| SharedPtr::operand(launch, k));
    let result = SharedPtr::<O>::operand(launch, I);
    parallel_for(launch.parallel, index.numel(), GRAIN, |range| {
        let mut inputs: [Reader<T>; I] = from_fn(|k| {
            let number = numbers.number(k).map(T::Compute::from_bits);
            Reader::new(memory[k], strides[k], numbers.dtype(k), number, range.len())
        });
        let mut out = Writer::new(result, strides[N - 1], numbers.dtype(I), range.len());
        let in_place = out.in_place && inputs.iter().all(|input| input.in_place);
        rows(index, range, |at, n| {
            let step = if in_place { n.max(1) } else { SLICE };
            for first in (0..n).step_by(step) {
                let n = step.min(n - first);
                let offset = |k: usize| at[k] + first as isize * strides[k];
                // SAFETY: the caller guarantees that the operands have the elements of the row.
                // `n` is at most the size of the range and, without
                // `in_place`, of a slice.
                unsafe {
                    let values = from_fn(|k| inputs[k].read(offset(k), n));
                    f(values, out.results(offset(N - 1)), n);
                    out.write(offset(N - 1), n);
                }
            }
        });
    });
}

/// Returns whether elements in memory have the representation of the compute type.
fn is_plain<T: HostElement>() -> bool {
    TypeId::of::<T>() == TypeId::of::<T::Compute>()
}

/// [`read_own`], or [`read_as`] for some dtype.
type Read<C> = unsafe fn(*const u8, isize, isize, &mut [C]);
/// [`write_own`], or [`write_as`] for some dtype.
type Write<C> = unsafe fn(*mut u8, isize, isize, &[C]);

/// Reads an input in the compute type. The input consists of elements of any dtype, or is a number.
pub(super) struct Reader<T: HostElement> {
    memory: SharedPtr<T>,
    stride: isize,
    /// Whether memory is used without a copy.
    in_place: bool,
    is_number: bool,
    read: Read<T::Compute>,
    /// Converted elements, or the number. Empty if memory is used without a copy.
    buffer: Vec<T::Compute>,
}

impl<T: HostElement> Reader<T> {
    /// Creates the reader of at most `numel` elements.
    pub(super) fn new(
        memory: SharedPtr<T>,
        stride: isize,
        dtype: DType,
        number: Option<T::Compute>,
        numel: usize,
    ) -> Self {
        let own = dtype == T::DTYPE;
        let in_place = own && is_plain::<T>() && stride == 1 && number.is_none();
        let length = if in_place { 0 } else { SLICE.min(numel) };
        Self {
            memory,
            stride,
            in_place,
            is_number: number.is_some(),
            read: if own { read_own::<T> } else { dispatch!(dtype, all S => read_as::<S, T>) },
            buffer: vec![number.unwrap_or(T::Compute::from_bits(0)); length],
        }
    }

    /// Returns a pointer to `n` values of the compute type.
    ///
    /// # Safety
    /// From `offset` on, the memory has `n` elements of the dtype that was passed to `new`. No
    /// thread writes these elements while the result is used. `n` is at most [`SLICE`], unless
    /// `in_place` is set, and at most the number of elements that was passed to `new`. Numbers need
    /// no memory.
    pub(super) unsafe fn read(&mut self, offset: isize, n: usize) -> *const T::Compute {
        if self.in_place {
            return self.memory.at(offset).cast();
        }
        if !self.is_number {
            // SAFETY: the caller guarantees that there are `n` elements, of the dtype that `read`
            // was chosen for.
            unsafe {
                (self.read)(self.memory.0.cast(), offset, self.stride, &mut self.buffer[..n])
            };
        }
        self.buffer.as_ptr()
    }
}

/// Reads elements of `T` from `offset` on.
///
/// # Safety
/// The memory has `to.len()` elements of `T`, from `offset` on and `stride` apart. No thread writes
/// to these elements meanwhile.
unsafe fn read_own<T: HostElement>(
    memory: *const u8,
    offset: isize,
    stride: isize,
    to: &mut [T::Compute],
) {
    let (from, n) = (memory.cast::<T>().wrapping_offset(offset), to.len());
    if stride == 1 {
        // SAFETY: the caller guarantees that `n` elements are adjacent, and `to` does not overlap
        // them.
        let values = unsafe { std::slice::from_raw_parts(from, n) };
        return vectorized(Convert(values, to, T::get));
    }
    let (chunks, rest) = to.as_chunks_mut::<LANES>();
    for (k, chunk) in chunks.iter_mut().enumerate() {
        // SAFETY: the chunk is within the elements that the caller guarantees.
        let elements = unsafe { load(from.offset((k * LANES) as isize * stride), stride) };
        *chunk = elements.map(T::get);
    }
    for (value, k) in rest.iter_mut().zip(n - n % LANES..) {
        // SAFETY: `k` is less than `n`, the number of elements that the caller guarantees.
        *value = unsafe { from.offset(k as isize * stride).read() }.get();
    }
}

/// Reads elements of `S` from `offset` on and converts each to `T`, then to the compute type of
/// `T`.
///
/// # Safety
/// The memory has `to.len()` elements of `S`, from `offset` on and `stride` apart. No thread writes
/// to these elements meanwhile.
unsafe fn read_as<S: HostElement, T: HostElement>(
    memory: *const u8,
    offset: isize,
    stride: isize,
    to: &mut [T::Compute],
) {
    let memory = memory.cast::<S>().wrapping_offset(offset);
    for (k, value) in to.iter_mut().enumerate() {
        // SAFETY: `k` is less than the number of elements that the caller guarantees.
        let element = unsafe { memory.offset(k as isize * stride).read() };
        *value = T::put(T::Compute::from_number(element.get())).get();
    }
}

/// Rounds results to `O` and writes them as elements of `D` from `offset` on.
///
/// # Safety
/// The memory has `results.len()` elements of `D`, from `offset` on and `stride` apart. No other
/// thread accesses these elements meanwhile.
unsafe fn write_as<D: HostElement, O: HostElement>(
    memory: *mut u8,
    offset: isize,
    stride: isize,
    results: &[O::Compute],
) {
    let memory = memory.cast::<D>().wrapping_offset(offset);
    for (k, &value) in results.iter().enumerate() {
        let element = D::put(D::Compute::from_number(O::put(value).get()));
        // SAFETY: `k` is less than the number of elements that the caller guarantees.
        unsafe { memory.offset(k as isize * stride).write(element) };
    }
}

/// Writes results as elements of `O` from `offset` on.
///
/// # Safety
/// The memory has `results.len()` elements of `O`, from `offset` on and `stride` apart. No other
/// thread accesses these elements meanwhile.
unsafe fn write_own<O: HostElement>(
    memory: *mut u8,
    offset: isize,
    stride: isize,
    results: &[O::Compute],
) {
    let (out, n) = (memory.cast::<O>().wrapping_offset(offset), results.len());
    if stride == 1 {
        // SAFETY: the caller guarantees that `n` elements are adjacent, and `results` does not
        // overlap them.
        let to = unsafe { std::slice::from_raw_parts_mut(out, n) };
        return vectorized(Convert(results, to, O::put));
    }
    let (chunks, rest) = results.as_chunks::<LANES>();
    for (k, chunk) in chunks.iter().enumerate() {
        // SAFETY: the chunk is within the elements that the caller guarantees.
        unsafe { store(out.offset((k * LANES) as isize * stride), stride, chunk.map(O::put)) };
    }
    for (&value, k) in rest.iter().zip(n - n % LANES..) {
        // SAFETY: `k` is less than `n`, the number of elements that the caller guarantees.
        unsafe { out.offset(k as isize * stride).write(O::put(value)) };
    }
}

/// Writes the result, converted to any dtype.
pub(super) struct Writer<O: HostElement> {
    memory: SharedPtr<O>,
    stride: isize,
    in_place: bool,
    write: Write<O::Compute>,
    /// Results before their conversion. Empty if memory is used without a copy.
    buffer: Vec<O::Compute>,
}

impl<O: HostElement> Writer<O> {
    /// Creates the writer of at most `numel` elements.
    pub(super) fn new(memory: SharedPtr<O>, stride: isize, dtype: DType, numel: usize) -> Self {
        let own = dtype == O::DTYPE;
        let in_place = own && is_plain::<O>() && stride == 1;
        let length = if in_place { 0 } else { SLICE.min(numel) };
        Self {
            memory,
            stride,
            in_place,
            write: if own { write_own::<O> } else { dispatch!(dtype, all D => write_as::<D, O>) },
            buffer: vec![O::Compute::from_bits(0); length],
        }
    }

    /// Returns the address for the results from `offset` on: the memory itself, or the buffer.
    pub(super) fn results(&mut self, offset: isize) -> *mut O::Compute {
        if self.in_place { self.memory.at(offset).cast() } else { self.buffer.as_mut_ptr() }
    }

    /// Writes the `n` results that are at the address which [`Writer::results`] returned for
    /// `offset`.
    ///
    /// # Safety
    /// From `offset` on, the memory has `n` elements of the dtype that was passed to `new`. No
    /// other thread accesses these elements during the call. `n` is at most [`SLICE`], unless
    /// `in_place` is set, and at most the number of elements that was passed to `new`.
    pub(super) unsafe fn write(&mut self, offset: isize, n: usize) {
        if !self.in_place {
            // SAFETY: the caller guarantees that there are `n` elements, of the dtype that `write`
            // was chosen for.
            unsafe { (self.write)(self.memory.0.cast(), offset, self.stride, &self.buffer[..n]) };
        }
    }
}
