//! Loops over strided operands: rows of the innermost dimension, and elementwise maps.

use std::ops::Range;

use super::{HostElement, Number, Shared, parallel_for};
use crate::iter::Index;

/// Elements that loops take at once. Slices that are a multiple of it have no scalar remainder.
pub const LANES: usize = 16;

/// Elements below which a second thread does not pay.
pub const GRAIN: usize = 32 * 1024;

/// Calls `row(at, n)` for each run of the innermost dimension within `range` of the linear index:
/// `at` is where its first element lies in each operand; the others follow at the operands'
/// strides of dimension 0.
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

// LANES elements are handled together. All of them are read before any is written, so that an
// operand may be the result in place, and the compiler may use vector instructions.

#[inline(always)]
unsafe fn load<T: Copy>(p: *const T, stride: isize) -> [T; LANES] {
    match stride {
        // SAFETY: the caller's promise that LANES elements at this stride are declared.
        1 => unsafe { p.cast::<[T; LANES]>().read() },
        // SAFETY: as above.
        0 => [unsafe { p.read() }; LANES],
        // SAFETY: as above.
        _ => std::array::from_fn(|k| unsafe { p.offset(k as isize * stride).read() }),
    }
}

#[inline(always)]
unsafe fn store<T: Copy>(p: *mut T, stride: isize, values: [T; LANES]) {
    if stride == 1 {
        // SAFETY: the caller's promise that LANES elements at this stride are declared.
        unsafe { p.cast::<[T; LANES]>().write(values) };
    } else {
        for (k, v) in values.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { p.offset(k as isize * stride).write(v) };
        }
    }
}

/// `out = value()` for every element.
///
/// # Safety
/// `out` is valid for writes at every offset of `index`, and nobody else touches it meanwhile.
pub unsafe fn map0<O: Copy + Sync>(out: Shared<O>, index: &Index<1>, parallel: bool, v: O) {
    let [s] = index.inner_strides();
    parallel_for(parallel, index.numel(), GRAIN, |range| {
        rows(index, range, |[o], n| {
            for k in 0..n as isize {
                // SAFETY: within the operand, as the caller promises.
                unsafe { out.write(o + k * s, v) };
            }
        });
    });
}

/// `out = f(a)` element by element; `out` may be `a` itself.
///
/// # Safety
/// The pointers are valid at every offset of `index` for reads and writes respectively, and nobody
/// else touches what they reach meanwhile.
pub unsafe fn map1<A: Copy + Sync, O: Copy + Sync>(
    a: Shared<A>,
    out: Shared<O>,
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
                // SAFETY: LANES elements of the row from `k` on, as the caller promises.
                unsafe {
                    let x = load(a.offset(k * sa), sa);
                    store(out.offset(k * so), so, std::array::from_fn(|j| f(x[j])));
                }
            }
            for k in whole as isize..n as isize {
                // SAFETY: element `k` of the row.
                unsafe { out.offset(k * so).write(f(a.offset(k * sa).read())) };
            }
        });
    });
}

/// Elements that [`map_slices`] makes a slice of: enough that a call is nothing, few enough that
/// they stay in the nearest cache.
const SLICE: usize = 32 * LANES;

/// `out = a` with `f` applied to slices of it; `out` may be `a` itself. A slice's length is a
/// multiple of [`LANES`]; what is beyond a row's end is anything.
///
/// # Safety
/// As [`map1`].
pub unsafe fn map_slices<T: HostElement>(
    a: Shared<T>,
    out: Shared<T>,
    index: &Index<2>,
    parallel: bool,
    f: fn(&mut [T::Compute]),
) {
    let [sa, so] = index.inner_strides();
    parallel_for(parallel, index.numel(), GRAIN, |range| {
        let mut slice = [T::Compute::from_parts(0.0, 0); SLICE];
        rows(index, range, |[ia, io], n| {
            for first in (0..n).step_by(SLICE) {
                let n = SLICE.min(n - first);
                let (a, out) = (a.at(ia + first as isize * sa), out.at(io + first as isize * so));
                let slice = &mut slice[..n.next_multiple_of(LANES)];
                // SAFETY: n elements of the row from `first` on, as the caller promises.
                unsafe {
                    read(a, sa, n, slice);
                    f(slice);
                    write(out, so, n, slice);
                }
            }
        });
    });
}

/// Reads the first `n` of a slice.
unsafe fn read<T: HostElement>(a: *const T, stride: isize, n: usize, slice: &mut [T::Compute]) {
    let (chunks, rest) = slice[..n].as_chunks_mut::<LANES>();
    for (k, chunk) in chunks.iter_mut().enumerate() {
        // SAFETY: the caller's promise that n elements at this stride are declared.
        *chunk = unsafe { load(a.offset((k * LANES) as isize * stride), stride) }.map(T::get);
    }
    for (x, k) in rest.iter_mut().zip(n - n % LANES..) {
        // SAFETY: as above.
        *x = unsafe { a.offset(k as isize * stride).read() }.get();
    }
}

/// Writes the first `n` of a slice.
unsafe fn write<T: HostElement>(out: *mut T, stride: isize, n: usize, slice: &[T::Compute]) {
    let (chunks, rest) = slice[..n].as_chunks::<LANES>();
    for (k, chunk) in chunks.iter().enumerate() {
        let values = chunk.map(T::put);
        // SAFETY: the caller's promise that n elements at this stride are declared.
        unsafe { store(out.offset((k * LANES) as isize * stride), stride, values) };
    }
    for (&x, k) in rest.iter().zip(n - n % LANES..) {
        // SAFETY: as above.
        unsafe { out.offset(k as isize * stride).write(T::put(x)) };
    }
}

/// `out = f(a, b)` element by element; `out` may be `a` or `b` itself.
///
/// # Safety
/// As [`map1`].
pub unsafe fn map2<A: Copy + Sync, B: Copy + Sync, O: Copy + Sync>(
    a: Shared<A>,
    b: Shared<B>,
    out: Shared<O>,
    index: &Index<3>,
    parallel: bool,
    f: impl Fn(A, B) -> O + Sync,
) {
    let [sa, sb, so] = index.inner_strides();
    parallel_for(parallel, index.numel(), GRAIN, |range| {
        rows(index, range, |[ia, ib, io], n| {
            let (a, b) = (a.at(ia), b.at(ib));
            let out = out.at(io);
            let whole = n - n % LANES;
            for k in (0..whole as isize).step_by(LANES) {
                // SAFETY: LANES elements of the row from `k` on, as the caller promises.
                unsafe {
                    let (x, y) = (load(a.offset(k * sa), sa), load(b.offset(k * sb), sb));
                    store(out.offset(k * so), so, std::array::from_fn(|j| f(x[j], y[j])));
                }
            }
            for k in whole as isize..n as isize {
                // SAFETY: element `k` of the row.
                unsafe {
                    let value = f(a.offset(k * sa).read(), b.offset(k * sb).read());
                    out.offset(k * so).write(value);
                }
            }
        });
    });
}
