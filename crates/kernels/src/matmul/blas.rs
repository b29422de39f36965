//! Selection of the products that cuBLAS supports, and their conversion to its arguments.

use warpline_cuda_sys_safe::blas::{Blas, BlasType, GemmArgs, GemmPrecision};
use warpline_cuda_sys_safe::{DevicePtr, DriverError, StreamHandle};

use super::{Product, Steps};
use warpline_runtime::launch::LibraryCall;
use warpline_runtime::{CudaDevice, DType, Precision};

/// A cuBLAS call that computes a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm<'a> {
    product: &'a Product,
    /// The arguments, without the addresses.
    args: GemmArgs,
    /// Whether `a` and `b` are exchanged.
    swapped: bool,
}

/// The memory order of a matrix, row-major or column-major, with the leading dimension in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatrixOrder {
    Rows(usize),
    Columns(usize),
}

impl MatrixOrder {
    fn of(rows: u64, columns: u64, steps: Steps) -> Option<Self> {
        // A single row or column has no leading dimension, so any valid value will do.
        let distance = |many: u64, step: i64, length: u64| match many {
            0 | 1 => Some(length.max(1) as usize),
            _ => (step >= length.max(1) as i64).then_some(step as usize),
        };
        let dense = |length: u64, step: i64| length <= 1 || step == 1;
        let by_rows = dense(columns, steps.column).then(|| distance(rows, steps.row, columns));
        let by_columns = dense(rows, steps.row).then(|| distance(columns, steps.column, rows));
        by_rows.flatten().map(Self::Rows).or(by_columns.flatten().map(Self::Columns))
    }
}

/// Returns whether cuBLAS supports the strides of a matrix.
pub(super) fn takes(rows: u64, columns: u64, steps: Steps) -> bool {
    steps.batch >= 0 && MatrixOrder::of(rows, columns, steps).is_some()
}

impl<'a> Gemm<'a> {
    /// Makes the call for the dtypes of operands and result, with a workspace of this size in bytes. Returns `None` if
    /// cuBLAS does not support the dtypes, sizes or strides.
    pub(super) fn new(
        [dtype, result]: [DType; 2],
        product: &'a Product,
        precision: &Precision,
        workspace: usize,
    ) -> Option<Self> {
        let p = product;
        let of = |dtype| match dtype {
            DType::F16 => Some(BlasType::F16),
            DType::BF16 => Some(BlasType::BF16),
            DType::F32 => Some(BlasType::F32),
            DType::F64 => Some(BlasType::F64),
            _ => None,
        };
        let (dtype, result) = (of(dtype)?, of(result)?);
        if p.k == 0 || [p.a, p.b, p.c].iter().any(|s| s.batch < 0) {
            return None;
        }
        // A column-major result is the transpose of a row-major result: Cᵀ = Bᵀ · Aᵀ.
        let (swapped, p, ldc) = match MatrixOrder::of(p.m, p.n, p.c)? {
            MatrixOrder::Rows(ldc) => (false, *p, ldc),
            MatrixOrder::Columns(ldc) => (true, p.transposed(), ldc),
        };
        // cuBLAS is column-major, so a row-major matrix is its transpose there. The call computes
        // the transposed result from the transposed operands in reverse order.
        let turn = |order| match order {
            MatrixOrder::Rows(ld) => (false, ld),
            MatrixOrder::Columns(ld) => (true, ld),
        };
        let (transa, lda) = turn(MatrixOrder::of(p.k, p.n, p.b)?);
        let (transb, ldb) = turn(MatrixOrder::of(p.m, p.k, p.a)?);
        let largest = [p.m, p.n, p.k, p.batch, lda as u64, ldb as u64, ldc as u64];
        if largest.iter().any(|&v| v > i32::MAX as u64) {
            return None;
        }
        let precision = GemmPrecision {
            tf32: precision.matmul_uses_tf32(),
            reduced_precision_reduction: match dtype {
                BlasType::F16 => precision.allow_fp16_reduced_precision_reduction(),
                _ => precision.allow_bf16_reduced_precision_reduction(),
            },
            fp16_accumulation: precision.allow_fp16_accumulation(),
        };
        // SAFETY: the null addresses are placeholders that `enqueue` replaces before any use.
        let nowhere = unsafe { DevicePtr::from_raw(0) };
        let args = GemmArgs {
            dtype,
            result,
            transa,
            transb,
            m: p.n as usize,
            n: p.m as usize,
            k: p.k as usize,
            alpha: 1.0,
            beta: 0.0,
            a: nowhere,
            lda,
            stride_a: p.b.batch,
            b: nowhere,
            ldb,
            stride_b: p.a.batch,
            c: nowhere,
            ldc,
            stride_c: p.c.batch,
            batch: p.batch as usize,
            precision,
            workspace: Some((nowhere, workspace)),
        };
        Some(Self { product, args, swapped })
    }
}

// SAFETY: `launch_cublas`, the only caller of `new` outside tests, launches with the operands that
// the product was made from, and with a workspace of the call's size. cuBLAS computes this product
// with their dtypes, sizes and strides: it reads `a` and `b`, and writes every element of `c`.
unsafe impl LibraryCall<4> for Gemm<'_> {
    type Params = Product;

    fn params(&self) -> &Product {
        self.product
    }

    #[track_caller]
    unsafe fn enqueue(
        &self,
        device: &CudaDevice,
        stream: StreamHandle,
        &[a, b, c, workspace]: &[DevicePtr; 4],
    ) -> Result<(), DriverError> {
        let (a, b) = if self.swapped { (a, b) } else { (b, a) };
        // A workspace of 0 bytes is also passed, because cuBLAS would otherwise use its own, which streams share.
        let workspace = self.args.workspace.map(|(_, bytes)| (workspace, bytes));
        let args = GemmArgs { a, b, c, workspace, ..self.args };
        let handle = Blas::load()?.handle(&**device.driver(), device.index())?;
        // SAFETY: the caller passes a live stream, has made the context of the stream's device
        // current, and passes the addresses of valid operands. Sizes and strides are those of the
        // operands.
        unsafe { handle.gemm_strided_batched(stream, &args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_uses_the_precision_settings_of_the_runtime() {
        let steps = Steps { batch: 0, row: 64, column: 1 };
        let product = Product { batch: 1, m: 64, n: 64, k: 64, a: steps, b: steps, c: steps };
        let precision = Precision::default();
        let of = |dtype| Gemm::new([dtype; 2], &product, &precision, 0).unwrap().args.precision;
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            assert_eq!(of(dtype), GemmPrecision::DEFAULT);
        }
        precision.set_allow_fp16_reduced_precision_reduction(false);
        precision.set_allow_fp16_accumulation(true);
        precision.set_float32_matmul_precision("high").unwrap();
        let expected = GemmPrecision {
            tf32: true,
            reduced_precision_reduction: false,
            fp16_accumulation: true,
        };
        assert_eq!(of(DType::F16), expected);
        assert!(of(DType::BF16).reduced_precision_reduction);
        precision.set_allow_bf16_reduced_precision_reduction(false);
        assert!(!of(DType::BF16).reduced_precision_reduction);
    }
}
