//! Dropout of CUDA tensors in one pass, with the random numbers of PyTorch's fused kernel.

use warpline_cuda_sys_safe::HostLaunch;

use super::cuda::{BLOCK, base, geometry};
use super::float::RandomFloat;
use super::philox::{philox, uniform4};
use crate::programs::{FLOATS, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::graph::{PhiloxState, Sequence};
use warpline_runtime::host::{self, SharedPtr};
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::Program;
use warpline_runtime::{CudaDevice, DType, Error, Result, Target, View, cuda_struct};

const OP: &str = "dropout";

kernels! {
    pub(super) DROPOUT = "dropout", FLOATS, |_, ty| {
        let of = base().with::<Dropout>().push(include_str!("dropout.cuh"));
        of.push(&format!("DROPOUT({ty})"))
    } => {
        // SAFETY: only `dropout` makes `Dropout`s, and it passes contiguous operands of `numel`
        // elements. Each index belongs to one thread, which reads the input and writes both results at
        // this index. The kernel reads the state only if the flag for its presence in `Dropout` is set.
        unsafe KERNEL: Kernel<Dropout, 4> = float cpu::dropout;
    }
}

cuda_struct! {
    /// The kernel's parameters.
    struct Dropout {
        numel: u64,
        philox: PhiloxState,
        /// Threads of PyTorch's grid, each of which has a random sequence.
        threads: u64,
        /// Number of times that a thread of PyTorch's grid draws four random words.
        rounds: u64,
        /// Neighbouring elements that a thread of PyTorch's grid processes at a time.
        vec: u64,
        /// Probability of keeping an element.
        p: f64,
        /// Factor of kept elements, 1 / `p`.
        scale: f64,
    }
}

/// Keeps each element of `input` with probability `p` and multiplies it by 1 / `p`; sets the other
/// elements to 0 (`torch.nn.functional.dropout` in training). `out` receives the elements, and
/// `kept` receives, for each element, a bool that tells whether the element was kept. All views
/// must be contiguous and have the same number of elements. `out` must have the floating-point
/// dtype of `input`. The target must be a CUDA device.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::InvalidArgument`] if a view is not contiguous, if the numbers of elements differ,
///   if `out` has a different dtype than `input`, or if `kept` is not boolean.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn dropout(
    (target, device): (Target<'_>, &CudaDevice),
    input: View<'_>,
    (out, kept): (View<'_>, View<'_>),
    p: f64,
) -> Result<()> {
    super::require_float(OP, input.dtype)?;
    let alike = [input, out, kept].iter().all(|view| view.layout.is_contiguous())
        && [out, kept].iter().all(|view| view.numel() == input.numel())
        && (out.dtype, kept.dtype) == (input.dtype, DType::Bool);
    if !alike {
        let reason = "input and result must have the same dtype, the mask must be boolean, and all three must be contiguous and have the same number of elements";
        return Err(Error::invalid(OP, reason));
    }
    check_operands(OP, &[input.read(), out.write(), kept.write()])?;
    if input.numel() == 0 {
        return Ok(());
    }
    target.check(OP)?;
    let numel = input.numel();
    let (blocks, values) = geometry(device.properties(), numel, 4);
    // Use vectors of 16 bytes with at most 8 elements, or shorter vectors if needed: every vector
    // must be full, and the input's first vector must be aligned.
    let mut vec = (16 / input.dtype.size()).min(8);
    while !numel.is_multiple_of(vec) || !input.layout.offset().is_multiple_of(vec) {
        vec /= 2;
    }
    let generator = device.generator();
    let mut sequence = Sequence::of(target, &generator)?;
    let threads = blocks * BLOCK;
    // A draw gives four random numbers, so a vector of eight elements needs two draws. As in
    // PyTorch, the second draw may use values beyond those by which the sequence advances.
    let rounds = (numel as u64).div_ceil(threads * vec as u64) * vec as u64;
    let rounds = rounds.div_ceil(4);
    let params = Dropout {
        numel: numel as u64,
        philox: sequence.advance(values),
        threads,
        rounds,
        vec: vec as u64,
        p,
        scale: 1.0 / p,
    };
    let layout = sequence.state_layout()?;
    let state = sequence.state(&layout, out.storage);
    let operands = [input.read(), out.write(), kept.write(), state];
    let grid = Grid::linear((blocks * rounds) as usize, BLOCK as u32);
    KERNEL.launch(target, OP, &operands, &params, grid)
}

/// The CPU implementation.
mod cpu {
    use super::*;

    /// Runs dropout on the CPU. One iteration does one draw of one thread of PyTorch's grid.
    ///
    /// # Safety
    /// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the input (`T`), `out` (`T`), `kept`
    /// (`bool`) and the generator's state. In a graph, the state must be valid; other launches do not read it.
    pub(super) unsafe fn dropout<T: RandomFloat>(launch: &HostLaunch<'_>, p: &Dropout) {
        let (input, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
        let kept = SharedPtr::<bool>::operand(launch, 2);
        // SAFETY: the last operand is the state, which `get` reads only if the flag in `p.philox` is
        // set.
        let (seed, offset) = unsafe { p.philox.get(launch, 3) };
        let single = T::DIGITS <= 24;
        host::parallel_for(launch.parallel, (p.threads * p.rounds) as usize, 256, |range| {
            for unit in range {
                let (thread, call) = (unit as u64 % p.threads, unit as u64 / p.threads);
                let words = uniform4(philox(seed, thread, offset / 4 + call));
                for (k, word) in words.into_iter().enumerate() {
                    let at = call * 4 + k as u64;
                    let i = (at / p.vec * p.threads + thread) * p.vec + at % p.vec;
                    if i >= p.numel {
                        continue;
                    }
                    let keep = if single { word < p.p as f32 } else { f64::from(word) < p.p };
                    // SAFETY: `i` is less than the number of elements, and each element belongs to one
                    // thread.
                    unsafe {
                        let x = input.read(i as isize).to_f64();
                        let value = if single {
                            f64::from(x as f32 * f32::from(u8::from(keep)) * p.scale as f32)
                        } else {
                            x * f64::from(u8::from(keep)) * p.scale
                        };
                        out.write(i as isize, T::from_f64(value));
                        kept.write(i as isize, keep);
                    }
                }
            }
        });
    }
}
