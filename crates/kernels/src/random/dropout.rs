//! Dropout of CUDA tensors in one pass, with what PyTorch's fused kernel draws.

use warpline_cuda_sys_safe::HostLaunch;

use super::cuda::{BLOCK, base, geometry};
use super::philox::{philox, uniform4};
use super::real::Real;
use crate::programs::{FLOATS, committed};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::graph::{Place, Sequence};
use warpline_runtime::host::{self, Shared};
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::Program;
use warpline_runtime::{CudaDevice, DType, Error, Result, Target, View};
use warpline_runtime::{cuda_struct, hosts};

const OP: &str = "dropout";

pub(super) static DROPOUT: Program = Program::new(OP, FLOATS, &[""], |_, ty| {
    let of = base().with::<Drop>().push(include_str!("dropout.cuh"));
    of.push(&format!("DROPOUT({ty})"))
})
.with_ptx(committed);

// SAFETY: `dropout` makes all `Drop`s, of contiguous views with as many elements as they say. Each element of the input is
// read, and each of the two results written, by one thread. The state is read if the `Drop` says that it is there.
static KERNEL: Kernel<Drop, 4> = unsafe { Kernel::new(&DROPOUT, "", hosts!(float T => each::<T>)) };

cuda_struct! {
    /// The kernel's parameters.
    struct Drop {
        numel: u64,
        place: Place,
        /// Threads of PyTorch's grid; each has a sequence of its own.
        threads: u64,
        /// Times that each of them draws four words.
        rounds: u64,
        /// Neighbours that each of them has at a time.
        vec: u64,
        /// How likely an element is kept, and what it is multiplied by.
        p: f64,
        scale: f64,
    }
}

/// Elements of a contiguous float tensor, of which each is kept with probability `p`, times 1 / `p`, and which they are, as
/// bools. `out` and `kept` are as `input` is.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] unless all are contiguous and of the same size; [`ErrorKind::UnsupportedDType`]; as
/// [`Kernel::launch`].
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
        let reason = "the input, the result and the bools must be contiguous and of one size";
        return Err(Error::invalid(OP, reason));
    }
    check_operands(OP, &[input.read(), out.write(), kept.write()])?;
    if input.numel() == 0 {
        return Ok(());
    }
    target.check(OP)?;
    let numel = input.numel();
    let (blocks, values) = geometry(device.properties(), numel, 4);
    // As many as are 16 bytes, and divide the elements.
    let mut vec = (16 / input.dtype.size()).min(8);
    while !numel.is_multiple_of(vec) || !input.layout.offset().is_multiple_of(vec) {
        vec /= 2;
    }
    let mut sequence = Sequence::of(target, device);
    let threads = blocks * BLOCK;
    // Eight neighbours take two draws, of which the second is beyond what the sequence is advanced by: as in PyTorch.
    let rounds = (numel as u64).div_ceil(threads * vec as u64) * vec as u64;
    let rounds = rounds.div_ceil(4);
    let params = Drop {
        numel: numel as u64,
        place: sequence.advance(values),
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

/// The CPU implementation: as the kernel, with threads for threads.
///
/// # Safety
/// As [`warpline_cuda_sys_safe::HostKernel`], with elements of `T`.
unsafe fn each<T: Real>(launch: &HostLaunch<'_>, p: &Drop) {
    let (input, out) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 1));
    let kept = Shared::<bool>::operand(launch, 2);
    // SAFETY: the last operand is the state that `Drop` speaks of.
    let (seed, offset) = unsafe { p.place.get(launch, 3) };
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
                // SAFETY: an element of the operands; each is one thread's.
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
