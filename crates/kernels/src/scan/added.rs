//! The scan that `docs/add-an-op.md` adds as an example. It has its own CUDA code.

use warpline_runtime::testing::{Tensor, assert_close, stored};

use super::*;

scans! {
    SQUARES = "scan_squares" (r#"
template <class C> struct Squares : Sum<C> {
    static __device__ __forceinline__ C of(C v, i64) { return (C)(v * v); }
};"#) {
        /// Sum of squares. Integers wrap.
        Squares = "cumsquares", "squares", "SCAN({name}, {ty}, Squares<compute_t<{ty}>>)", Values(squares::<T>);
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// source and the result, with elements of type `T`.
unsafe fn squares<T: HostElement>(launch: &HostLaunch<'_>, p: &Scan) {
    let row = |values: &mut dyn Iterator<Item = T::Compute>, sums: &mut dyn FnMut(T::Compute)| {
        let mut sum = T::Compute::from_number(0i64);
        for value in values {
            sum = sum.add(value.mul(value));
            sums(sum);
        }
    };
    // SAFETY: the caller guarantees the conditions of `values`.
    unsafe { values::<T>(launch, p, row) }
}

/// # Panics
/// If a result of the scan differs from that of a loop.
pub fn compare_with_a_loop(target: Target<'_>) {
    // Rows that a block scans, rows longer than a tile, rows that a thread scans, and empty rows.
    for [a, b, c] in [[3, 40, 5], [1, 1500, 1], [50, 6, 70], [2, 0, 3]] {
        for dtype in DType::ALL {
            let n = a * b * c;
            let values: Vec<f64> = (0..n).map(|i| stored(dtype, (i % 3) as f64)).collect();
            let mut expected: Vec<f64> = values.iter().map(|v| v * v).collect();
            for at in 0..n {
                if at / c % b > 0 {
                    expected[at] += expected[at - c];
                }
                if !dtype.is_float() {
                    expected[at] = stored(dtype, expected[at]);
                }
            }
            let source = Tensor::new(target, dtype, &[a, b, c], &values);
            let out = Tensor::garbage(target, dtype, &[a, b, c]);
            for op in ScanOp::ALL {
                run(target, op.declaration(), source.view(), 1, out.view(), None).unwrap();
                let context = format!("{op:?} of {dtype}, {:?}", [a, b, c]);
                assert_close(dtype, &out.floats(target), &expected, &context);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use warpline_runtime::testing::on_every_target;

    use super::*;
    use crate::programs::CheckSources;

    #[test]
    fn scans_take_the_struct_that_their_source_defines() {
        let library = crate::scan::ScanOp::ALL.map(crate::scan::ScanOp::declaration);
        for declaration in library.into_iter().chain(ScanOp::ALL.map(ScanOp::declaration)) {
            match &declaration.kernels {
                ScanKernels::Values(kernels) => kernels.check_sources(),
                ScanKernels::Indexed(kernels) => kernels.check_sources(),
            }
        }
    }

    #[test]
    fn a_declaration_is_a_scan() {
        on_every_target(compare_with_a_loop);
    }
}
