//! Sums of rows selected by indices: `torch.nn.functional.embedding_bag(mode="sum")`.

use std::ops::AddAssign;
use std::panic::Location;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::{HostLaunch, SharedPtr, parallel_for};
use warpline_runtime::launch::{Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct, hosts};

cuda_struct! {
    /// Parameters of the kernel and the CPU function. Strides are in elements.
    struct Bags {
        report: Report,
        rows: u64,
        width: u64,
        bag: u64,
        weight: [i64; 2],
        indices: [i64; 2],
        out: [i64; 2],
    }
}

/// Each thread computes elements of the result. Neighbouring threads compute neighbours of a row.
const CUDA: &str = r#"
template <class T>
__device__ void embedding_bag(const T* weight, const i64* indices, T* out, const Bags& p) {
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 i = first; i < p.rows * p.width; i += (u64)gridDim.x * blockDim.x) {
        const i64 row = i / p.width, column = i % p.width;
        T sum = 0;
        for (i64 k = 0; k < p.bag; k++) {
            const i64 at = indices[row * p.indices[0] + k * p.indices[1]];
            if (check_index(at, p.report)) sum += weight[at * p.weight[0] + column * p.weight[1]];
        }
        out[row * p.out[0] + column * p.out[1]] = sum;
    }
}
"#;

/// Returns the source of one variant, the kernel `embedding_bag_f32` or `embedding_bag_f64`.
fn source(_: &Program, dtype: &str) -> Source {
    Source::new().with::<Bags>().push(module::REPORT).push(CUDA).push(&format!(
        r#"extern "C" __global__ void embedding_bag_{dtype}(
            const {dtype}* weight, const i64* indices, {dtype}* out, const __grid_constant__ Bags p) {{
            embedding_bag(weight, indices, out, p);
        }}"#
    ))
}

/// GPU code of the op. `cargo run --example ptx` compiles it.
pub static PROGRAM: Program = Program::new("embedding_bag", &["f32", "f64"], &[""], source)
    .with_ptx(|_| Some(include_bytes!("../ptx/embedding_bag.ptx.lzma")));

// SAFETY: only `embedding_bag` launches this kernel, with `Bags` made from the launched views. With these sizes and
// strides, both functions access only elements of the operands; rows of the weight are read only after their index was
// checked. Each element of `out` is written by one thread.
static KERNEL: Kernel<Bags, 3> =
    unsafe { Kernel::new(&PROGRAM, "", hosts!(F32 | F64, T => on_host::<T>)) };

/// The CPU implementation.
///
/// # Safety
/// The rules of [`HostKernel`](warpline_runtime::host::HostKernel) hold. The operands are a weight of `T`, indices of
/// `i64`, and a result of `T`.
unsafe fn on_host<T: Copy + Default + AddAssign>(launch: &HostLaunch<'_>, p: &Bags) {
    let (weight, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 2));
    let indices = SharedPtr::<i64>::operand(launch, 1);
    let place =
        |strides: [i64; 2], at: [i64; 2]| (at[0] * strides[0] + at[1] * strides[1]) as isize;
    parallel_for(launch.parallel, p.rows as usize, 64, |rows| {
        for (row, column) in rows.flat_map(|row| (0..p.width).map(move |c| (row as i64, c as i64)))
        {
            let mut sum = T::default();
            for k in 0..p.bag as i64 {
                // SAFETY: `row` and `k` are inside the indices. The element of the weight exists,
                // because its row was checked. The report's mailbox lives as long as the launch.
                unsafe {
                    let at = indices.read(place(p.indices, [row, k]));
                    if p.report.check_index(at) {
                        sum += weight.read(place(p.weight, [at, column]));
                    }
                }
            }
            // SAFETY: `row` and `column` are inside the result, and no other thread writes this element.
            unsafe { out.write(place(p.out, [row, column]), sum) };
        }
    });
}

/// Writes to each row of `out` the sum of the rows of `weight` that the same row of `indices` names. `indices` is an
/// `int64` matrix. `weight` and `out` are matrices of `f32` or `f64`. All strides are allowed.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype of `weight` is neither `f32` nor `f64`.
/// - [`ErrorKind::DTypeMismatch`] if the dtype of `indices` is not `int64`, or if `out` has a different dtype than
///   `weight`.
/// - [`ErrorKind::ShapeMismatch`] if `weight` or `indices` is not a matrix, or if `out` does not have one row per row
///   of `indices` and one column per column of `weight`.
/// - [`ErrorKind::IndexCheck`] if an element of `indices` is not the index of a row of `weight`.
/// - The errors of [`check_operands`] and [`Kernel::launch`].
#[track_caller]
pub fn embedding_bag(
    target: Target<'_>,
    weight: View<'_>,
    indices: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "embedding_bag";
    let location = Location::caller();
    KERNEL.check_dtype(OP, weight.dtype)?;
    for (view, expected) in [(indices, DType::I64), (out, weight.dtype)] {
        view.check_dtype(OP, expected)?;
    }
    let (&[size, width], &[rows, bag]) = (weight.sizes(), indices.sizes()) else {
        let reason = "weight and indices must be matrices".to_owned();
        return Err(Error::shape(OP, reason).at(location));
    };
    if out.sizes() != [rows, width] {
        let reason =
            format!("a result of {:?} where {:?} are computed", out.sizes(), [rows, width]);
        return Err(Error::shape(OP, reason).at(location));
    }
    let operands = [weight.read(), indices.read(), out.write()];
    check_operands(OP, &operands)?;
    let strides = |view: View<'_>| [view.strides()[0] as i64, view.strides()[1] as i64];
    let bags = Bags {
        report: Report::new(0, size),
        rows: rows as u64,
        width: width as u64,
        bag: bag as u64,
        weight: strides(weight),
        indices: strides(indices),
        out: strides(out),
    };
    if out.numel() == 0 {
        return Ok(());
    }
    let grid = Grid::cover(out.numel(), 256);
    KERNEL.launch(target, OP, &operands, &bags, grid)
}
