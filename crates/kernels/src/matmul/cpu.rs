//! The CPU implementation of matrix products.

use gemm::Parallelism;
use warpline_cuda_sys_safe::HostLaunch;

use super::{Params, Steps};
use crate::host::{self, HostElement, Number, Shared};

/// Products below which threads cost more than they bring.
const PARALLEL_FROM: u64 = 1 << 17;

/// # Safety
/// As [`warpline_cuda_sys_safe::HostKernel`]: `a`, `b` and the result, of `T`s, and [`Params`].
pub(super) unsafe fn floats<T: 'static + Copy + From<bool>>(launch: &HostLaunch<'_>) {
    let p: Params = host::params(launch);
    let [a, b, c] = [0, 1, 2].map(|i| Shared::<T>::operand(launch, i));
    for i in 0..p.batch as isize {
        let at = |of: Shared<T>, steps: Steps| of.at(i * steps.batch as isize);
        // SAFETY: the matrices are declared as these sizes and strides tell.
        unsafe {
            gemm(&p, launch.parallel, (at(a, p.a), p.a), (at(b, p.b), p.b), (at(c, p.c), p.c));
        }
    }
}

/// As [`floats`], by way of `f32`.
///
/// # Safety
/// As [`floats`].
pub(super) unsafe fn halves<T: HostElement<Compute = f32>>(launch: &HostLaunch<'_>) {
    let p: Params = host::params(launch);
    let [a, b, c] = [0, 1, 2].map(|i| Shared::<T>::operand(launch, i));
    let plain = |columns: u64| Steps { batch: 0, row: columns as i64, column: 1 };
    let widen =
        |of: Shared<T>, steps: Steps, batch: i64, rows: u64, columns: u64, to: &mut Vec<f32>| {
            to.clear();
            for row in 0..rows as i64 {
                to.extend((0..columns as i64).map(|column| {
                    // SAFETY: an element of the operand.
                    unsafe { of.read(steps.at(batch, row, column)) }.get()
                }));
            }
        };
    let (mut x, mut y) = (Vec::new(), Vec::new());
    let mut z = vec![0f32; (p.m * p.n) as usize];
    for batch in 0..p.batch as i64 {
        widen(a, p.a, batch, p.m, p.k, &mut x);
        widen(b, p.b, batch, p.k, p.n, &mut y);
        // SAFETY: the three are as large as their sizes and strides tell.
        unsafe {
            let (x, y, z) = (x.as_mut_ptr(), y.as_mut_ptr(), z.as_mut_ptr());
            gemm(&p, launch.parallel, (x, plain(p.k)), (y, plain(p.n)), (z, plain(p.n)));
        }
        for row in 0..p.m as i64 {
            for column in 0..p.n as i64 {
                let value = z[(row * p.n as i64 + column) as usize];
                // SAFETY: an element of the result.
                unsafe { c.write(p.c.at(batch, row, column), T::put(value)) };
            }
        }
    }
}

/// # Safety
/// The pointers are valid for matrices of the sizes of `p` and these strides.
unsafe fn gemm<T: 'static + Copy + From<bool>>(
    p: &Params,
    parallel: bool,
    (a, sa): (*mut T, Steps),
    (b, sb): (*mut T, Steps),
    (c, sc): (*mut T, Steps),
) {
    let parallel = parallel && p.m * p.n * p.k >= PARALLEL_FROM;
    let parallelism = if parallel { Parallelism::Rayon(0) } else { Parallelism::None };
    let (a, b, c) = (Shared(a), Shared(b), Shared(c));
    let run = || {
        // SAFETY: the caller's promise.
        unsafe {
            gemm::gemm(
                p.m as usize,
                p.n as usize,
                p.k as usize,
                c.at(0),
                sc.column as isize,
                sc.row as isize,
                false,
                a.at(0),
                sa.column as isize,
                sa.row as isize,
                b.at(0),
                sb.column as isize,
                sb.row as isize,
                T::from(false),
                T::from(true),
                false,
                false,
                false,
                parallelism,
            );
        }
    };
    if parallel { host::on_threads(run) } else { run() }
}

/// # Safety
/// As [`floats`].
pub(super) unsafe fn integers<T: HostElement<Compute = T> + Number>(launch: &HostLaunch<'_>) {
    let p: Params = host::params(launch);
    let [a, b, c] = [0, 1, 2].map(|i| Shared::<T>::operand(launch, i));
    let grain = ((1 << 14) / (p.n * p.k).max(1)).max(1) as usize;
    host::parallel_for(launch.parallel, (p.batch * p.m) as usize, grain, |rows| {
        let mut sums = vec![T::from_parts(0.0, 0); p.n as usize];
        for index in rows {
            let (batch, row) = ((index as u64 / p.m) as i64, (index as u64 % p.m) as i64);
            sums.fill(T::from_parts(0.0, 0));
            for k in 0..p.k as i64 {
                // SAFETY: an element of the operand.
                let x = unsafe { a.read(p.a.at(batch, row, k)) };
                for (column, sum) in (0..).zip(&mut sums) {
                    // SAFETY: an element of the operand.
                    let y = unsafe { b.read(p.b.at(batch, k, column)) };
                    *sum = sum.add(x.mul(y));
                }
            }
            for (column, sum) in (0..).zip(&sums) {
                // SAFETY: an element of the result, in a row that is this thread's.
                unsafe { c.write(p.c.at(batch, row, column), *sum) };
            }
        }
    });
}
