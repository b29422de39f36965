//! Losses: negative log-likelihood of class indices, and the gradient of cross entropy.

mod cpu;

use crate::programs::{FLOATS, LANES, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Operand, Result, Target, View, cuda_struct};

pub(crate) const PROGRAMS: &[&Program] = &[&NLL_LOSS, &NLL_LOSS_BACKWARD];

fn source<P: module::CudaType>() -> Source {
    let of = Source::new().with::<P>().push(module::ELEMENT).push(module::REPORT);
    of.push(LANES).push(include_str!("nll.cuh"))
}

kernels! {
    NLL_LOSS = "nll_loss", FLOATS, |_, ty| {
        source::<Checked>().push(&format!("NLL_LOSS({ty})"))
    } => {
        // SAFETY: `nll_loss` makes all `Checked`s, with the sizes and strides of the launch's
        // operands. The kernel checks a class before it selects a logarithm or a weight, and one
        // thread writes the results.
        unsafe LOSS: Kernel<Checked, 5> = float cpu::nll_loss;
    }
    NLL_LOSS_BACKWARD = "nll_loss_backward", FLOATS, |_, ty| {
        source::<Checked>().push(&format!("NLL_LOSS_BACKWARD({ty})"))
    } => {
        // SAFETY: `nll_loss_backward` makes all `Losses` that a kernel takes as its parameters, with
        // the sizes and strides of the launch's operands. The kernel selects a weight only by a class
        // in range, and each element of the result is written by one thread.
        unsafe BACKWARD: Kernel<Losses, 6> = float cpu::nll_loss_backward;
    }
}

/// Maximum number of threads of the forward kernel, which is launched with one block.
const THREADS: usize = 1024;
/// Threads per block of the backward kernel.
const BACKWARD_THREADS: usize = 256;

cuda_struct! {
    /// `rows` of `size` classes. `log_steps` and `out_steps` are the strides of logarithms and
    /// result from row to row and from class to class. `team` is the binary logarithm of the number
    /// of threads per row.
    struct Losses {
        rows: u64,
        size: u64,
        log_steps: [i64; 2],
        out_steps: [i64; 2],
        class_step: i64,
        weight_step: i64,
        ignored: i64,
        is_weighted: u64,
        is_mean: u64,
        team: u64,
    }
}

cuda_struct! {
    /// The parameters of the forward kernel, which checks classes.
    struct Checked {
        report: Report,
        losses: Losses,
    }
}

/// Operands and options that [`nll_loss`] and [`nll_loss_backward`] share.
#[derive(Clone, Copy, Debug)]
pub struct Nll<'a> {
    /// Logarithms of probabilities, `[rows, classes]`, of a floating-point dtype.
    pub log: View<'a>,
    /// Class of each row, of `int64`.
    pub classes: View<'a>,
    /// Weight of each class, in the dtype of the logarithms. `None`: 1.
    pub weight: Option<View<'a>>,
    /// Class of rows that are ignored.
    pub ignore_index: i64,
    /// Whether to divide the sum by the total weight of the rows that are not ignored.
    pub mean: bool,
}

impl Nll<'_> {
    /// Returns the dtype of the total weight for logarithms of dtype `log`: `float32` for the
    /// half-width floats.
    #[must_use]
    pub fn total_dtype(log: DType) -> DType {
        if log == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Returns the operand of the weight. If there is no weight, returns the logarithms as a
    /// stand-in that is not read.
    fn weight_operand(&self) -> Operand<'_> {
        self.weight.unwrap_or(self.log).read()
    }

    /// Checks the dtypes and sizes of the views of `self` and of `scalars`, and returns the parameters.
    /// Each scalar comes with the dtype that it must have.
    #[track_caller]
    fn params(&self, op: &'static str, scalars: [(View<'_>, DType); 2]) -> Result<Losses> {
        let (log, classes) = (self.log, self.classes);
        let own = [(classes, DType::I64), (self.weight.unwrap_or(log), log.dtype)];
        for (view, expected) in own.into_iter().chain(scalars) {
            view.check_dtype(op, expected)?;
        }
        let &[rows, size] = log.sizes() else {
            let reason =
                format!("the logarithms have sizes {:?}; they must be a matrix", log.sizes());
            return Err(Error::shape(op, reason));
        };
        let weighs = self.weight.is_none_or(|weight| weight.sizes() == [size]);
        if classes.sizes() != [rows] || !weighs || scalars.iter().any(|(s, _)| s.numel() != 1) {
            let reason = format!(
                "the classes have sizes {:?}, the weights {:?} and the logarithms {:?}; there must \
                 be one class per row and one weight per column of the logarithms, and each scalar \
                 must have one element",
                classes.sizes(),
                self.weight.map(|weight| weight.sizes()),
                log.sizes()
            );
            return Err(Error::shape(op, reason));
        }
        let steps = |view: View<'_>| [view.strides()[0] as i64, view.strides()[1] as i64];
        Ok(Losses {
            rows: rows as u64,
            size: size as u64,
            log_steps: steps(log),
            out_steps: [0; 2],
            class_step: classes.strides()[0] as i64,
            weight_step: self.weight.map_or(0, |weight| weight.strides()[0] as i64),
            ignored: self.ignore_index,
            is_weighted: self.weight.is_some().into(),
            is_mean: self.mean.into(),
            team: 0,
        })
    }
}

/// Computes `torch.nn.functional.nll_loss`. `loss` receives the sum or the mean of the rows'
/// losses, and `total` the total weight of the rows that are not ignored. Each has one element;
/// `loss` has the dtype of the logarithms, and `total` has [`Nll::total_dtype`]. Sums are the same
/// in each run. Errors carry the name `op`.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the logarithms are not of a floating-point dtype.
/// - [`ErrorKind::DTypeMismatch`] if the classes do not have dtype `int64`, if the weight or `loss`
///   has a different dtype than the logarithms, or if `total` does not have the dtype
///   [`Nll::total_dtype`].
/// - [`ErrorKind::ShapeMismatch`] if the logarithms are not a matrix, if there is not one class per
///   row or one weight per class, or if `loss` or `total` does not have one element.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result may overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - [`ErrorKind::IndexCheck`] if a class is out of range and is not ignored; on a GPU, a later
///   wait or read of a result returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn nll_loss(
    target: Target<'_>,
    op: &'static str,
    nll: &Nll<'_>,
    loss: View<'_>,
    total: View<'_>,
) -> Result<()> {
    LOSS.check_dtype(op, nll.log.dtype)?;
    let losses =
        nll.params(op, [(loss, nll.log.dtype), (total, Nll::total_dtype(nll.log.dtype))])?;
    let operands =
        [nll.log.read(), nll.classes.read(), nll.weight_operand(), loss.write(), total.write()];
    check_operands(op, &operands)?;
    let params = Checked { report: Report::new(1, losses.size as usize), losses };
    let threads = (losses.rows as usize).next_power_of_two().clamp(32, THREADS);
    LOSS.launch(target, op, &operands, &params, Grid::new([1; 3], threads as u32))
}

/// Computes the gradient of [`nll_loss`] of a log-softmax, with respect to the input of the
/// log-softmax, into `out`, which has the sizes and the dtype of the logarithms. `grad` is the
/// gradient of the loss, with one element. `total` is the total weight of the forward pass.
///
/// A row of the gradient is the row's probabilities, minus 1 for its class, times the weight of the
/// class and `grad`, and divided by `total` if the loss is a mean. The row is 0 if its class is
/// ignored or out of range.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `out` or `grad` has a different dtype than the logarithms.
/// - [`ErrorKind::ShapeMismatch`] if `out` has different sizes than the logarithms, or `grad` does
///   not have one element.
/// - The other errors of [`nll_loss`], except [`ErrorKind::IndexCheck`].
#[track_caller]
pub fn nll_loss_backward(
    target: Target<'_>,
    grad: View<'_>,
    nll: &Nll<'_>,
    total: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "nll_loss_backward";
    BACKWARD.check_dtype(OP, nll.log.dtype)?;
    let mut params =
        nll.params(OP, [(grad, nll.log.dtype), (total, Nll::total_dtype(nll.log.dtype))])?;
    out.check_dtype(OP, nll.log.dtype)?;
    if out.sizes() != nll.log.sizes() {
        let reason = format!(
            "the result has sizes {:?}, but the logarithms have {:?}",
            out.sizes(),
            nll.log.sizes()
        );
        return Err(Error::shape(OP, reason));
    }
    let operands = [
        grad.read(),
        nll.log.read(),
        nll.classes.read(),
        nll.weight_operand(),
        total.read(),
        out.write(),
    ];
    check_operands(OP, &operands)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let team = (params.size as usize).next_power_of_two().min(BACKWARD_THREADS);
    params.out_steps = [out.strides()[0] as i64, out.strides()[1] as i64];
    params.team = team.ilog2().into();
    let blocks = (params.rows as usize).div_ceil(BACKWARD_THREADS / team);
    let grid = Grid::linear(blocks, BACKWARD_THREADS as u32);
    BACKWARD.launch(target, OP, &operands, &params, grid)
}
