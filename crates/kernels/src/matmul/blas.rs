//! Which products cuBLAS takes, and how it is asked for them.

use warpline_cuda_sys_safe::blas::{Blas, BlasType, GemmArgs};
use warpline_cuda_sys_safe::{DevicePtr, Driver, DriverError, StreamHandle};

use super::{Product, Steps};
use warpline_runtime::DType;

/// A product as cuBLAS is to be asked for it, all but the addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm {
    args: GemmArgs,
    /// Whether `a` and `b` change places.
    swapped: bool,
}

/// How a matrix lies in memory: rows one after the other, or columns; and elements between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    Rows(usize),
    Columns(usize),
}

impl Lie {
    fn of(rows: u64, columns: u64, steps: Steps) -> Option<Self> {
        // A single row or column has no distance to the next; any that is valid will do.
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

/// Whether a matrix's strides are ones that cuBLAS takes.
pub(super) fn takes(rows: u64, columns: u64, steps: Steps) -> bool {
    steps.batch >= 0 && Lie::of(rows, columns, steps).is_some()
}

impl Gemm {
    /// Of the dtypes of operands and result. `None` when cuBLAS cannot do it as it lies.
    pub(super) fn new([dtype, result]: [DType; 2], p: &Product) -> Option<Self> {
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
        // A result that lies in columns is a transposed one that lies in rows:
        // Cᵀ = Bᵀ · Aᵀ.
        let (swapped, p, ldc) = match Lie::of(p.m, p.n, p.c)? {
            Lie::Rows(ldc) => (false, *p, ldc),
            Lie::Columns(ldc) => {
                let turned = |s: Steps| Steps { row: s.column, column: s.row, ..s };
                let (a, b, c) = (turned(p.b), turned(p.a), turned(p.c));
                (true, Product { m: p.n, n: p.m, a, b, c, ..*p }, ldc)
            }
        };
        // What lies in rows is, to cuBLAS, its transpose: it computes the transposed result from
        // the transposed operands in turned order.
        let turn = |lie| match lie {
            Lie::Rows(ld) => (false, ld),
            Lie::Columns(ld) => (true, ld),
        };
        let (transa, lda) = turn(Lie::of(p.k, p.n, p.b)?);
        let (transb, ldb) = turn(Lie::of(p.m, p.k, p.a)?);
        let largest = [p.m, p.n, p.k, p.batch, lda as u64, ldb as u64, ldc as u64];
        if largest.iter().any(|&v| v > i32::MAX as u64) {
            return None;
        }
        // SAFETY: placeholders that `enqueue` replaces; nothing reads them.
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
            workspace: None,
        };
        Some(Self { args, swapped })
    }

    /// Asks for the product of `a`, `b` into `c`, in this order in `pointers`.
    #[track_caller]
    pub(super) fn enqueue(
        &self,
        driver: &dyn Driver,
        device: usize,
        stream: StreamHandle,
        pointers: &[DevicePtr],
    ) -> Result<(), DriverError> {
        let &[a, b, c] = pointers else {
            return Err(DriverError::InvalidArgument {
                call: "matmul",
                reason: "a product has three operands".into(),
            });
        };
        let (a, b) = if self.swapped { (a, b) } else { (b, a) };
        let args = GemmArgs { a, b, c, ..self.args };
        let handle = Blas::load()?.handle(driver, device)?;
        // SAFETY: the driver calls this with a live stream of the device, whose context it has
        // made current, and the operands' own addresses; sizes and strides are those of the
        // operands, which launches keep alive.
        unsafe { handle.gemm_strided_batched(stream, &args) }
    }
}
