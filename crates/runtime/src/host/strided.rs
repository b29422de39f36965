//! Loops over strided operands: rows of the innermost dimension, and elementwise maps.

use std::ops::Range;

use super::{SharedPtr, parallel_for};
use crate::iter::Index;

/// Number of elements that loops process at once. Slices of a multiple of this length have no
/// scalar remainder.
pub const LANES: usize = 16;

/// Minimum number of elements for which a second thread saves time.
pub const GRAIN: usize = 32 * 1024;

/// Calls `row(at, n)` for each run of the innermost dimension within `range` of the linear index.
/// `at` is the offset of the run's first element in each operand, in elements; the run has `n`
/// elements at the operands' strides of dimension 0.
#[inline]
pub fn rows<const N: usize>(
    index: &Index<N>,
    range: Range<usize>,
    mut row: impl FnMut([isize; N], usize),
) {
    let (mut i, end) = (range.start, range.end);
    let inner = index.size(0);
    while i < end {
        let n = (inner - i % inner).min(end - i);
        row(index.offsets(i), n);
        i += n;
    }
}

// Loops process LANES elements at a time. They read all of them before they write any, so that the
// result may be written in place and the compiler can use vector instructions.

/// Reads [`LANES`] elements.
///
/// # Safety
/// The elements from `p` on at this stride must be declared by the launch, and no thread may write
/// them meanwhile.
#[inline(always)]
pub unsafe fn load<T: Copy>(p: *const T, stride: isize) -> [T; LANES] {
    match stride {
        // SAFETY: the caller guarantees that LANES elements at this stride are declared.
        1 => unsafe { p.cast::<[T; LANES]>().read() },
        // SAFETY: the caller guarantees that LANES elements at this stride are declared.
        0 => [unsafe { p.read() }; LANES],
        // SAFETY: the caller guarantees that LANES elements at this stride are declared.
        _ => std::array::from_fn(|k| unsafe { p.offset(k as isize * stride).read() }),
    }
}

/// Writes [`LANES`] elements.
///
/// # Safety
/// The elements from `p` on at this stride must be declared as writable by the launch, and no other
/// thread may access them meanwhile.
#[inline(always)]
pub unsafe fn store<T: Copy>(p: *mut T, stride: isize, values: [T; LANES]) {
    if stride == 1 {
        // SAFETY: the caller guarantees that LANES elements at this stride are declared as
        // writable.
        unsafe { p.cast::<[T; LANES]>().write(values) };
    } else {
        for (k, v) in values.into_iter().enumerate() {
            // SAFETY: the caller guarantees that LANES elements at this stride are declared as
            // writable.
            unsafe { p.offset(k as isize * stride).write(v) };
        }
    }
}

/// `out = v` for every element.
///
/// # Safety
/// `out` must be valid for writes at every offset of `index`, and no other thread may access it
/// meanwhile.
pub unsafe fn map0<O: Copy + Sync>(out: SharedPtr<O>, index: &Index<1>, parallel: bool, v: O) {
    let [s] = index.inner_strides();
    parallel_for(parallel, index.numel(), GRAIN, |range| {
        rows(index, range, |[o], n| {
            for k in 0..n as isize {
                // SAFETY: the caller guarantees that `out` is valid at every offset of `index`.
                unsafe { out.write(o + k * s, v) };
            }
        });
    });
}

/// `out = f(a)` for every element. `out` may be `a` itself.
///
/// # Safety
/// The pointers must be valid for reads (`a`) and writes (`out`) at every offset of `index`, and no
/// other thread may access these elements meanwhile.
pub unsafe fn map1<A: Copy + Sync, O: Copy + Sync>(
    a: SharedPtr<A>,
    out: SharedPtr<O>,
    index: &Index<2>,
    parallel: bool,
    f: impl Fn(A) -> O + Sync,
) {
    let [sa, so] = index.inner_strides();
    parallel_for(parallel, index.numel(), GRAIN, |range| {
        rows(index, range, |[ia, io], n| {
            let (a, out) = (a.at(ia), out.at(io));
            let whole = n - n % LANES;
            for k in (0..whole as isize).step_by(LANES) {
                // SAFETY: the row has LANES elements from `k` on, and the caller guarantees that
                // both pointers are valid at every offset of `index`.
                unsafe {
                    let x = load(a.offset(k * sa), sa);
                    store(out.offset(k * so), so, std::array::from_fn(|j| f(x[j])));
                }
            }
            for k in whole as isize..n as isize {
                // SAFETY: the row has an element `k`, and the caller guarantees that both pointers
                // are valid at every offset of `index`.
                unsafe { out.offset(k * so).write(f(a.offset(k * sa).read())) };
            }
        });
    });
}
