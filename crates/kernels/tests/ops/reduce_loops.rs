//! Tests that compare the CPU implementation of reductions with plain loops, at sizes around its
//! limits.

use proptest::prelude::*;
use proptest::sample::select;
use rayon::ThreadPoolBuilder;
use warpline_cuda_sys_safe::DriverError;
use warpline_kernels::reduce::*;
use warpline_runtime::testing::Tensor;
use warpline_runtime::{DType, Runtime, RuntimeConfig, Target};

use crate::reduce::{check, result_sizes};

fn on_cpu(body: impl FnOnce(Target<'_>)) {
    let reason = DriverError::NoDevice { reason: "this test runs on the CPU".into() };
    body(Target::Cpu(&Runtime::without_cuda(reason, &RuntimeConfig::default())));
}

/// Returns values with many duplicates, and `nans` NaNs.
fn values(dtype: DType, n: usize, seed: usize, nans: usize) -> Vec<f64> {
    let value = |i: usize| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 7;
    let quarters = if dtype.is_float() { 4.0 } else { 1.0 };
    let mut values: Vec<f64> = (seed..seed + n).map(|i| value(i) as f64 / quarters).collect();
    if dtype.is_float() && n > 0 {
        for i in 0..nans {
            values[(seed + i) * 7919 % n] = f64::NAN;
        }
    }
    values
}

/// Lengths around the numbers of lanes, of rows in a group, and of elements in a block, in a tile
/// and in a thread's part.
const LENGTHS: [usize; 14] = [0, 1, 7, 8, 9, 16, 17, 63, 65, 130, 1023, 1025, 2100, 66_000];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn results_equal_those_of_plain_loops(
        dtype in select(&DType::ALL[..]),
        [a, b] in [select(&LENGTHS[..]), select(&LENGTHS[..])],
        middle in 1usize..4,
        view in 0..4,
        seed in 0usize..1000,
        nans in 0usize..3,
    ) {
        // Limit the number of elements: two long dimensions together would test nothing new.
        let b = b.min(70_000 / a.max(1));
        on_cpu(|target| {
            let n = a * middle * b;
            let base = Tensor::new(target, dtype, &[a, middle, b], &values(dtype, n, seed, nans));
            let a = match view {
                0 => base,
                1 => base.with(|l| l.transpose(0, 2)),
                2 => base.with(|l| l.slice(2, b.min(1), b, 3)),
                _ => base.with(|l| l.narrow(0, a.min(1) as isize, a - a.min(1))?.transpose(1, 2)),
            };
            for &op in ReduceOp::ALL {
                if op.result_dtype(dtype).is_err() || op == ReduceOp::Prod {
                    continue;
                }
                for dims in [&[][..], &[0], &[1], &[2]] {
                    let reduced = |d: &usize| dims.is_empty() || dims.contains(d);
                    let sizes = a.view().sizes().to_vec();
                    let extent: usize = (0..3).filter(reduced).map(|d| sizes[d]).product();
                    if extent > 0 || matches!(op, ReduceOp::Sum | ReduceOp::Any | ReduceOp::All) {
                        check(target, op, &a, dims, false);
                    }
                }
            }
        });
    }
}

/// `argmax` and `argmin` return the index of the first extreme, or of the first NaN.
#[test]
fn argmax_and_argmin_return_the_first_index() {
    on_cpu(|target| {
        let n = 5000;
        for places in [&[0][..], &[4999], &[1023, 1024], &[1024, 3000], &[63, 64], &[4096, 4999]] {
            for peak in [9.0, f64::NAN] {
                let mut values = vec![1.0; n];
                places.iter().for_each(|&i| values[i] = peak);
                // A decoy: larger than most elements, but smaller than the peak.
                values[if places[0] == 0 { 1 } else { 0 }] = 8.0;
                let flat = Tensor::new(target, DType::F32, &[n, 1], &values);
                let wide: Vec<f64> = values.iter().flat_map(|&v| [v, -v, 1.0]).collect();
                let wide = Tensor::new(target, DType::F32, &[n, 3], &wide);
                for op in [ReduceOp::ArgMax, ReduceOp::ArgMin] {
                    check(target, op, &flat, &[0], false);
                    check(target, op, &flat, &[], false);
                    check(target, op, &wide, &[0], false);
                }
            }
        }
    });
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    on_cpu(|target| {
        // The magnitudes of these numbers differ so much that their sum depends on the order.
        let n = 1 << 19;
        let value = |i: usize| {
            let bits = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((bits >> 20) as f64) * (10f64).powi((bits >> 7 & 15) as i32 - 8)
        };
        let values: Vec<f64> = (0..n).map(value).collect();
        let alone = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for sizes in [[1, n], [7, n / 7], [n / 3, 3], [n / 2000, 2000], [n / 80, 80]] {
            let of = &values[..sizes[0] * sizes[1]];
            let a = Tensor::new(target, DType::F64, &sizes, of);
            for dims in [&[][..], &[0], &[1]] {
                let sum = || {
                    let out =
                        Tensor::garbage(target, DType::F64, &result_sizes(&sizes, dims, false));
                    reduce(target, ReduceOp::Sum, a.view(), dims, out.view()).unwrap();
                    out.floats(target).into_iter().map(f64::to_bits).collect::<Vec<u64>>()
                };
                // An op that starts on a thread of another pool stays on that thread.
                assert_eq!(sum(), alone.install(sum), "{sizes:?} over {dims:?}");
            }
        }
    });
}
