//! The CPU implementation of softmax.

use warpline_cuda_sys_safe::HostLaunch;

use super::Params;
use crate::host::{self, Cast, GRAIN, HostElement, Number, Shared};

/// A type that softmax is computed in.
pub(super) trait Float: Number + Cast<f64> {
    const LOWEST: Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
}

impl Float for f32 {
    const LOWEST: Self = f32::NEG_INFINITY;
    fn exp(self) -> Self {
        self.exp()
    }
    fn ln(self) -> Self {
        self.ln()
    }
}

impl Float for f64 {
    const LOWEST: Self = f64::NEG_INFINITY;
    fn exp(self) -> Self {
        self.exp()
    }
    fn ln(self) -> Self {
        self.ln()
    }
}

/// # Safety
/// As [`warpline_cuda_sys_safe::HostKernel`]: source and result, of `T`s, and [`Params`].
pub(super) unsafe fn softmax<T: HostElement<Compute: Float>>(launch: &HostLaunch<'_>) {
    let p: Params = host::params(launch);
    let (source, result) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 1));
    let size = p.size as usize;
    let grain = (GRAIN / 8 / size).max(1);
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        let mut row: Vec<T::Compute> = Vec::with_capacity(size);
        for index in rows {
            let (from, to) = p.row(index);
            row.clear();
            row.extend((0..size as isize).map(|i| {
                // SAFETY: an element of the source.
                unsafe { source.read(from + i * p.source_step as isize) }.get()
            }));
            let largest = row.iter().fold(T::Compute::LOWEST, |a, &b| a.maximum(b));
            for v in &mut row {
                *v = v.sub(largest);
            }
            // In double precision, for long rows.
            let sum: f64 = row.iter().map(|v| Cast::<f64>::cast(v.exp())).sum();
            let sum = T::Compute::from_parts(sum, 0);
            let ln = sum.ln();
            for (i, v) in row.iter().enumerate() {
                let value = if p.log != 0 { v.sub(ln) } else { v.exp().div(sum) };
                // SAFETY: an element of the result, in a row that is this thread's.
                unsafe { result.write(to + i as isize * p.result_step as isize, T::put(value)) };
            }
        }
    });
}
