//! Random permutations.
//!
//! On CUDA, indices are sorted by random keys. The keys have just enough bits that equal keys are
//! rare, and the indices of equal keys are shuffled afterwards. PyTorch uses the same algorithm,
//! and the permutations are the same.

use std::panic::Location;

use warpline_cuda_sys_safe::HostLaunch;
use warpline_stream::Stream;

use super::cuda::{BLOCK, base, geometry};
use super::order::order;
use super::philox::{pairs as pairs_of, philox};
use super::{FromInt, mt, on_cpu};
use crate::programs::kernels;
use crate::sort::{SortPair, TILE, sort_pairs};
use warpline_runtime::graph::{PhiloxState, Sequence};
use warpline_runtime::host::{self, SharedPtr};
use warpline_runtime::iter::Walk;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::Program;
use warpline_runtime::{
    CudaDevice, DType, Error, ErrorKind, Layout, Result, Runtime, Site, Storage, Target, View,
};
use warpline_runtime::{cuda_struct, dispatch};

const OP: &str = "randperm";

// SAFETY, for all kernels: only `on_cuda` makes `Permutation`s, with the number of pairs of the
// launch, and with the size and the order of the result. Each pair, each run of equal keys, and
// each element of the result belongs to one thread. The kernels read the state only if the flag for
// its presence in `Permutation` is set.
kernels! {
    pub(super) PERMUTE = "permute", &[""], |_, _| {
        base().with::<Permutation>().with::<SortPair>().push(include_str!("permute.cuh"))
    } => {
        unsafe KEYS: Kernel<Permutation, 2> = any self::permute_keys;
        unsafe TIES: Kernel<Permutation, 2> = any self::permute_ties;
        unsafe WRITE: Kernel<Permutation, 2> =
            all self::permute_write.in_variant(""), selected_by 1;
    }
}

cuda_struct! {
    struct Permutation {
        n: u64,
        pairs: u64,
        philox: PhiloxState,
        threads: u64,
        bits: u64,
        dtype: u64,
        order: Walk<1>,
    }
}

/// Writes a random permutation of `0..n` into `out`, which has one dimension of `n` elements
/// (`torch.randperm`). Supports every dtype that can represent these values, except bool.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is bool.
/// - [`ErrorKind::ShapeMismatch`] if `out` does not have one dimension.
/// - [`ErrorKind::InvalidArgument`] if the dtype cannot represent the values.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of allocating scratch memory and of [`Kernel::launch`].
#[track_caller]
pub fn randperm(target: Target<'_>, out: View<'_>) -> Result<()> {
    let location = Location::caller();
    if out.dtype == DType::Bool {
        return Err(ErrorKind::UnsupportedDType { dtype: out.dtype }.of(OP));
    }
    if out.sizes().len() != 1 {
        return Err(Error::shape(
            OP,
            format!("the result must have one dimension, but has sizes {:?}", out.sizes()),
        ));
    }
    let largest = match out.dtype {
        DType::U8 => u8::MAX.into(),
        DType::I8 => i8::MAX as u64,
        DType::I16 => i16::MAX as u64,
        DType::I32 => i32::MAX as u64,
        DType::F16 => (1 << 11) + 1,
        DType::BF16 => (1 << 8) + 1,
        DType::F32 => (1 << 24) + 1,
        _ => (1 << 53) + 1,
    };
    let n = out.numel();
    if n as u64 > largest {
        return Err(Error::invalid(
            OP,
            format!("n is {n}, but {} holds at most {largest}", out.dtype),
        ));
    }
    check_operands(OP, &[out.write()])?;
    target.check(OP)?;
    match target {
        _ if n == 0 => Ok(()),
        Target::Cuda(runtime, device, stream) => on_cuda(runtime, device, stream, out),
        Target::Cpu(_) => dispatch!(out.dtype, all T => {
            on_cpu::<T>(target, out, Site { op: OP, location }, mt::randperm)
        }),
    }
}

#[track_caller]
fn on_cuda(runtime: &Runtime, device: &CudaDevice, stream: &Stream, out: View<'_>) -> Result<()> {
    const THREADS: u32 = BLOCK as u32;
    let n = out.numel();
    let count = n.next_power_of_two().max(TILE);
    let storage = Storage::device(runtime, count * size_of::<SortPair>(), stream)?;
    let layout = Layout::contiguous(&[count * 2])?;
    let pairs = View { storage: &storage, layout: &layout, dtype: DType::I64 };
    let order = order(OP, out.layout)?;

    let (blocks, values) = geometry(device.properties(), n, 2);
    // The random sequence stays locked until all kernels are enqueued, so that ops draw from the
    // sequence in the order of their launches.
    let target = Target::Cuda(runtime, device, stream);
    let generator = device.generator();
    let mut sequence = Sequence::of(target, &generator)?;
    let mut params = Permutation {
        n: n as u64,
        pairs: count as u64,
        philox: sequence.advance(values),
        threads: blocks * BLOCK,
        bits: key_bits(n as f64),
        dtype: out.dtype as u64,
        order,
    };
    let groups = Grid::cover(n, THREADS);
    let state_layout = sequence.state_layout()?;
    let operands = [pairs.write(), sequence.state(&state_layout, &storage)];
    KEYS.launch(target, OP, &operands, &params, Grid::linear(blocks as usize, THREADS))?;
    sort_pairs(target, OP, pairs, count)?;
    params.philox = sequence.advance(n as u64);
    let with_state = [pairs.read_write(), sequence.state(&state_layout, &storage)];
    TIES.launch(target, OP, &with_state, &params, groups)?;
    WRITE.launch(target, OP, &[pairs.read(), out.write()], &params, groups)
}

/// Returns the number of bits for which `n` random keys are all distinct with a probability of at
/// least 0.9.
fn key_bits(n: f64) -> u64 {
    let bits = (n - (6.0 * n * n + 1.0) / (12.0 * 0.9f64.ln())).log2().ceil();
    (bits as u64).min(64)
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are `p.pairs`
/// pairs and, in a graph, the generator's state.
unsafe fn permute_keys(launch: &HostLaunch<'_>, p: &Permutation) {
    let out = SharedPtr::<SortPair>::operand(launch, 0);
    let mask = if p.bits == 64 { u64::MAX } else { (1 << p.bits) - 1 };
    // SAFETY: the second operand is the state, which `get` reads only if the flag in `p.philox` is
    // set.
    let (seed, offset) = unsafe { p.philox.get(launch, 1) };
    let modulus = if p.bits <= 32 { u32::MAX.into() } else { u64::MAX };
    let threads = p.threads as usize;
    host::parallel_for(launch.parallel, p.n as usize, 1 << 14, |range| {
        for index in range {
            let (thread, turn) = (index % threads, index / threads);
            let words = philox(seed, thread as u64, offset / 4 + turn as u64 / 2);
            let key = (pairs_of(words)[turn % 2] % modulus) & mask;
            // SAFETY: there are at least `n` pairs, and each index belongs to one thread.
            unsafe { out.write(index as isize, SortPair { key, index: index as u64 }) };
        }
    });
    for index in p.n..p.pairs {
        // SAFETY: there are `pairs` pairs, and this loop runs on one thread.
        unsafe { out.write(index as isize, SortPair { key: u64::MAX, index: u64::MAX }) };
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are `p.pairs`
/// pairs and, in a graph, the generator's state.
unsafe fn permute_ties(launch: &HostLaunch<'_>, p: &Permutation) {
    let data = SharedPtr::<SortPair>::operand(launch, 0);
    // SAFETY: the second operand is the state, which `get` reads only if the flag in `p.philox` is
    // set.
    let (seed, offset) = unsafe { p.philox.get(launch, 1) };
    // SAFETY: there are at least `n` pairs, and no other thread accesses them meanwhile.
    let pairs = unsafe { std::slice::from_raw_parts_mut(data.0, p.n as usize) };
    let mut first = 0;
    for run in pairs.chunk_by_mut(|a, b| a.key == b.key) {
        for (drawn, i) in (1..run.len()).rev().enumerate() {
            let words = philox(seed, first, offset / 4 + drawn as u64 / 4);
            let other = words[drawn % 4] % (i as u32 + 1);
            run.swap(i, other as usize);
        }
        first += run.len() as u64;
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are `p.pairs`
/// pairs and the result, with elements of type `T`.
unsafe fn permute_write<T: FromInt>(launch: &HostLaunch<'_>, p: &Permutation) {
    let (pairs, out) =
        (SharedPtr::<SortPair>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    host::parallel_for(launch.parallel, p.n as usize, 1 << 14, |range| {
        for i in range {
            // SAFETY: there are at least `n` pairs. `out` has `n` elements, and each belongs to one
            // thread.
            unsafe {
                out.write(p.order.offsets(i)[0], T::from_i64(pairs.read(i as isize).index as i64))
            };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_grow_with_the_number_of_indices() {
        assert_eq!([1.0, 5.0, 17.0, 1000.0].map(key_bits), [3, 7, 11, 23]);
        assert_eq!(key_bits(f64::from(1u32 << 31)), 64);
    }
}
