//! Normalization of rows: `layer_norm` and `rms_norm`, with or without the addition of a residual,
//! and their gradients. The folder `batch_norm` normalizes channels.

mod batch_norm;
mod cpu;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use crate::programs::{FLOATS, LANES, kernels};
use crate::scratch::ScratchTensor;
use crate::turn::{TURN, scratch_operand, ticket};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{self, Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Operand, Result, Target, View, cuda_struct};

pub use batch_norm::{
    BatchNorm, RunningStatistics, batch_norm, batch_norm_backward, batch_norm_inference,
};

pub(crate) const PROGRAMS: &[&Program] =
    &[&LAYER_NORM, &LAYER_NORM_BACKWARD, &batch_norm::BATCH_NORM];

/// Maximum size of a row that the lanes of one warp share.
const MAX_WARP_ROW: usize = 1024;
/// Number of threads of a block that sums columns.
const COLUMN_THREADS: u32 = 512;
/// Maximum number of columns of a block that sums columns.
const MOST_COLUMNS: u32 = 64;
/// Number of rows that a thread loads at a time.
const AT_A_TIME: u64 = 4;
/// Number of rows per thread up to which sharing a column between blocks costs more than it saves.
const FEW: u64 = 8;

fn source() -> Source {
    let of = Source::new().with::<Norm>().push(module::ELEMENT).push(LANES);
    let of = of.push(&format!("#define COLUMN_THREADS {COLUMN_THREADS}"));
    let of = of.push(&format!("#define MOST_COLUMNS {MOST_COLUMNS}"));
    let of = of.push(&format!("#define AT_A_TIME {AT_A_TIME}")).push(TURN);
    of.push(include_str!("layer_norm.cuh"))
}

kernels! {
    // `warp` has a few lanes per row, `block` a block per row. The `add` kernels normalize the sum
    // of two operands.
    LAYER_NORM = "layer_norm", FLOATS, |_, ty| source().push(&format!("LAYER_NORM({ty})")) => {
        // SAFETY: `LayerNorm::params` makes all `Norm`s, from the launch's contiguous operands,
        // after a check of their sizes. Each element of a result is written by one thread. The
        // kernels read the weight only if `is_weighted` is set, and the bias only if `is_biased` is
        // set.
        unsafe ROWS: [Kernel<Norm, 6>; 2] = float cpu::layer_norm[warp, block];
        // SAFETY: the same as for `ROWS`. Each element of the sum is also written by one thread,
        // and read only by this thread, after the write.
        unsafe ADD_ROWS: [Kernel<Norm, 8>; 2] = float cpu::layer_norm_add[warp, block];
    }
    // The same kernels for the gradient of the rows, where the `add` kernels add another gradient,
    // and two kernels that sum columns for the gradients of weight and bias.
    LAYER_NORM_BACKWARD = "layer_norm_backward", FLOATS, |_, ty| {
        source().push(&format!("LAYER_NORM_BACKWARD({ty})"))
    } => {
        // SAFETY: the same as for `ROWS`.
        unsafe ROWS_BACKWARD: [Kernel<Norm, 6>; 2] = float cpu::layer_norm_backward[warp, block];
        // SAFETY: the same as for `ROWS`. The additional operand has the size of the rows.
        unsafe ADD_ROWS_BACKWARD: [Kernel<Norm, 7>; 2] =
            float cpu::layer_norm_backward_add[warp, block];
        // SAFETY: the same as for `ROWS`. The scratch operand has a word for each counter and
        // each partial sum; the CPU implementation does not use it.
        unsafe COLUMNS: Kernel<Norm, 7> = float cpu::layer_norm_backward_columns;
        // SAFETY: the same as for `COLUMNS`. On a GPU, this kernel is launched only if rows are
        // aligned to vectors.
        unsafe VECTORS: Kernel<Norm, 7> = float cpu::layer_norm_backward_vectors;
    }
}

cuda_struct! {
    /// `rows` of `size` elements. `team` is the binary logarithm of the number of lanes that share
    /// a row, or of the number of neighbouring columns per block. `eps` holds the bits of an `f64`.
    /// `ticket` identifies a launch whose blocks share columns.
    struct Norm {
        rows: u64,
        size: u64,
        team: u64,
        eps: u64,
        is_centred: u64,
        is_weighted: u64,
        is_biased: u64,
        ticket: u64,
    }
}

/// The operands and options that the forward pass and its gradients share. All views are
/// contiguous.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// The rows, of a floating-point dtype, without gaps.
    pub input: View<'a>,
    /// Factor of each column, with as many elements as a row. `None`: 1.
    pub weight: Option<View<'a>>,
    /// Mean of each row, in [`LayerNorm::moment_dtype`]. 0 if `centred` is false. The forward pass
    /// writes it, the gradients read it.
    pub mean: View<'a>,
    /// Reciprocal square root of each row's variance (or mean square) plus `eps`, in
    /// [`LayerNorm::moment_dtype`]. The forward pass writes it, the gradients read it.
    pub scale: View<'a>,
    /// Number that is added to the variance or mean square.
    pub eps: f64,
    /// Whether to subtract the mean: `layer_norm` if true, `rms_norm` if false.
    pub centred: bool,
}

impl LayerNorm<'_> {
    /// Returns the dtype of means and scales for rows of `dtype`: `float32` for the half-width
    /// floats.
    #[must_use]
    pub fn moment_dtype(dtype: DType) -> DType {
        if dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn op(&self, of_sum: bool) -> &'static str {
        match (of_sum, self.centred) {
            (false, true) => "layer_norm",
            (false, false) => "rms_norm",
            (true, true) => "add_layer_norm",
            (true, false) => "add_rms_norm",
        }
    }

    /// Returns the operand of `view`. For `None`, returns the input as a stand-in that is not read.
    fn or_input<'b>(&'b self, view: Option<View<'b>>) -> Operand<'b> {
        view.unwrap_or(self.input).read()
    }

    /// Checks the views of `self`, those of `like_input` against the size of the input, and those
    /// of `like_row` against the size of a row. Returns the parameters.
    #[track_caller]
    fn params(
        &self,
        op: &'static str,
        like_input: &[View<'_>],
        like_row: &[View<'_>],
    ) -> Result<Norm> {
        let input = self.input;
        let rows = self.mean.numel();
        let size = input.numel() / rows.max(1);
        let wide = Self::moment_dtype(input.dtype);
        let weight = self.weight.iter().chain(like_row).map(|view| (*view, input.dtype, size));
        let others = like_input.iter().map(|view| (*view, input.dtype, input.numel()));
        let moments = [(self.mean, wide, rows), (self.scale, wide, rows)];
        let all = [(input, input.dtype, rows * size)].into_iter();
        for (view, expected, numel) in all.chain(weight).chain(others).chain(moments) {
            view.check_dtype(op, expected)?;
            if view.numel() != numel || !view.layout.is_contiguous() {
                let reason = format!(
                    "an operand has sizes {:?} and strides {:?}, and the input has {rows} rows of \
                     {size} elements; the operand must be contiguous and have {numel} elements",
                    view.sizes(),
                    view.strides()
                );
                return Err(Error::shape(op, reason));
            }
        }
        Ok(Norm {
            rows: rows as u64,
            size: size as u64,
            team: size.next_power_of_two().min(32).ilog2().into(),
            eps: self.eps.to_bits(),
            is_centred: self.centred.into(),
            is_weighted: self.weight.is_some().into(),
            is_biased: 0,
            ticket: 0,
        })
    }
}

impl Norm {
    /// Launches the kernel for short or for long rows.
    #[inline]
    #[track_caller]
    fn launch_rows<const N: usize>(
        &self,
        target: Target<'_>,
        op: &'static str,
        [short, long]: &[Kernel<Norm, N>; 2],
        operands: &[Operand<'_>; N],
    ) -> Result<()> {
        check_operands(op, operands)?;
        if self.is_empty() {
            return Ok(());
        }
        let (rows, team) = (self.rows as usize, 1 << self.team);
        let (kernel, grid) = if self.size as usize <= MAX_WARP_ROW {
            (short, Grid::cover(rows * team, 128))
        } else {
            (long, Grid::linear(rows, 512))
        };
        kernel.launch(target, op, operands, self, grid)
    }

    fn is_empty(&self) -> bool {
        self.rows == 0 || self.size == 0
    }

    /// Distributes the sums of columns over the blocks of a GPU, with `vector` neighbouring columns
    /// per thread. Returns the grid. All blocks with the same x sum the same columns.
    fn distribute(&mut self, vector: u64, item_size: u64, multiprocessors: u64) -> [u32; 2] {
        let bytes = vector * item_size;
        // Neighbouring lanes read one to four sectors of a row together.
        let (least, most) = ((32 / bytes).max(1), (128 / bytes).min(32));
        let blocks = |lanes: u64| self.size.div_ceil(lanes * vector).max(1);
        // Rows per thread if blocks do not share columns.
        let rows = |lanes: u64| self.rows * lanes / u64::from(COLUMN_THREADS);
        let busy = 2 * multiprocessors;
        let (mut lanes, mut splits) = (least, 1);
        if rows(least) > FEW && blocks(least) < busy {
            // With at least four lanes, a warp reads no more than eight rows at a time. More lanes
            // mean more splits of each column. The number of splits is limited, because the last
            // block of a column adds up the partial sums of all splits.
            lanes = lanes.max(4);
            while lanes < most && blocks(lanes * 2) * 32 >= busy {
                lanes *= 2;
            }
            splits = (busy / blocks(lanes)).min(rows(lanes) / AT_A_TIME).max(1);
        } else {
            let has_enough = |lanes| rows(lanes) <= AT_A_TIME || blocks(lanes) >= multiprocessors;
            while lanes < most && has_enough(lanes * 2) {
                lanes *= 2;
            }
        }
        self.team = lanes.ilog2().into();
        // The number of splits is at most twice the number of multiprocessors.
        [launch::blocks(blocks(lanes) as usize), splits as u32]
    }
}

/// Normalizes rows (`torch.nn.functional.layer_norm`, or `rms_norm` if `norm.centred` is false)
/// into `out`. Multiplies by the weight and adds `bias`, if given. Writes `norm.mean` and
/// `norm.scale`. Half-width floats are computed in `float32`.
///
/// If `added` is given, the launch first adds the first view of `added` to the input, and writes the
/// sum, rounded to the input's dtype, to the second view. These views and `out` have the input's
/// dtype and number of elements.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the input is not of a floating-point dtype.
/// - [`ErrorKind::DTypeMismatch`] if weight, `bias`, `out` or a view of `added` has a different dtype
///   than the input, or mean or scale does not have the dtype [`LayerNorm::moment_dtype`].
/// - [`ErrorKind::ShapeMismatch`] if a view has a different number of elements than required, or is
///   not contiguous.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn layer_norm(
    target: Target<'_>,
    norm: &LayerNorm<'_>,
    added: Option<[View<'_>; 2]>,
    bias: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let op = norm.op(added.is_some());
    ROWS[0].check_dtype(op, norm.input.dtype)?;
    let [residual, sum] = added.unwrap_or([out; 2]);
    let mut params = norm.params(op, &[residual, out, sum], bias.as_slice())?;
    params.is_biased = bias.is_some().into();
    let x = norm.input.read();
    let [weight, bias] = [norm.weight, bias].map(|view| norm.or_input(view));
    let [to, mean, scale] = [out, norm.mean, norm.scale].map(View::write);
    if added.is_none() {
        return params.launch_rows(target, op, &ROWS, &[x, weight, bias, to, mean, scale]);
    }
    let operands = [x, residual.read(), weight, bias, to, sum.write(), mean, scale];
    params.launch_rows(target, op, &ADD_ROWS, &operands)
}

/// Computes the gradient of [`layer_norm`] with respect to its rows into `out`. `grad` is the
/// gradient of the forward result. `norm.mean` and `norm.scale` are those of the forward pass. `grad`,
/// `other` and `out` have the input's dtype and number of elements.
///
/// If the forward pass got `added`, `norm.input` must be the sum that it wrote. `other` is then the
/// gradient of this sum as a result, which is added to the gradient of the rows.
///
/// # Errors
/// The errors of [`layer_norm`]. The conditions on `out` also hold for `grad` and `other`.
#[track_caller]
pub fn layer_norm_backward(
    target: Target<'_>,
    norm: &LayerNorm<'_>,
    grad: View<'_>,
    other: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "layer_norm_backward";
    ROWS_BACKWARD[0].check_dtype(OP, norm.input.dtype)?;
    let params = norm.params(OP, &[grad, other.unwrap_or(grad), out], &[])?;
    let [g, x, weight] = [grad.read(), norm.input.read(), norm.or_input(norm.weight)];
    let [mean, scale, out] = [norm.mean.read(), norm.scale.read(), out.write()];
    match other {
        None => {
            let operands = [g, x, weight, mean, scale, out];
            params.launch_rows(target, OP, &ROWS_BACKWARD, &operands)
        }
        Some(other) => {
            let operands = [g, x, weight, mean, scale, other.read(), out];
            params.launch_rows(target, OP, &ADD_ROWS_BACKWARD, &operands)
        }
    }
}

/// Computes the gradients of [`layer_norm`] with respect to its weight and, if `of_bias` is given,
/// its bias. `grad` is the gradient of the forward result. `of_weight` and `of_bias` have the
/// input's dtype and as many elements as a row. Sums are the same in each run.
///
/// # Errors
/// The errors of [`layer_norm`], with the conditions on `out` for `grad`, and those on the weight
/// for `of_weight` and `of_bias`. Also the errors of allocating scratch memory.
#[track_caller]
pub fn layer_norm_parameters_backward(
    target: Target<'_>,
    norm: &LayerNorm<'_>,
    grad: View<'_>,
    of_weight: View<'_>,
    of_bias: Option<View<'_>>,
) -> Result<()> {
    const OP: &str = "layer_norm_backward";
    COLUMNS.check_dtype(OP, norm.input.dtype)?;
    let results: SmallVec<[View<'_>; 2]> = [of_weight].into_iter().chain(of_bias).collect();
    let mut params = norm.params(OP, &[grad], &results)?;
    params.is_biased = of_bias.is_some().into();
    let of_bias = of_bias.map_or(of_weight.untouched(), View::write);
    let [g, x, mean, scale] = [grad, norm.input, norm.mean, norm.scale].map(View::read);
    check_operands(OP, &[g, x, mean, scale, of_weight.write(), of_bias])?;
    if params.is_empty() {
        return Ok(());
    }
    let (mut kernel, mut grid, mut scratch) = (&VECTORS, [1; 2], None);
    if let Target::Cuda(_, device, _) = target {
        let item = norm.input.dtype.size() as u64;
        let mut vector = (16 / item).min(4);
        let mut at = params.size * item;
        for view in [grad, norm.input] {
            at |= launch::address(OP, &view)?.addr();
        }
        if !at.is_multiple_of(vector * item) {
            (kernel, vector) = (&COLUMNS, 1);
        }
        grid = params.distribute(vector, item, device.properties().multiprocessor_count.into());
        let [blocks, splits] = grid.map(|n| n as usize);
        if splits > 1 {
            params.ticket = ticket();
            // One counter per block of the first split, then for each split one word per column for
            // each of the two sums.
            let words = blocks + 2 * splits * params.size as usize;
            scratch = Some(ScratchTensor::new(target, &[words], DType::I64)?);
        }
    }
    let scratch = scratch_operand(scratch.as_ref(), of_weight);
    let operands = [g, x, mean, scale, of_weight.write(), of_bias, scratch];
    let [blocks, splits] = grid;
    let grid = Grid::new([blocks, splits, 1], COLUMN_THREADS);
    kernel.launch(target, OP, &operands, &params, grid)
}
