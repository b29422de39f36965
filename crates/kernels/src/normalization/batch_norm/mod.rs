//! Batch norm: normalization of each channel over batch and positions, and its gradients.
//!
//! Training takes two launches, one for the moments of the channels and one for the result. The gradients also take two
//! launches. Each thread visits only its own channels, so it reads their parameters once. The elements are row-major,
//! or have the channels innermost.

mod cpu;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{self, Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, MemoryFormat, Operand, Result, Target, View, cuda_struct};

use super::LayerNorm;
use crate::programs::{FLOATS, kernels};
use crate::scratch::ScratchTensor;
use crate::turn::{TURN, scratch_operand, ticket};

/// Threads of a block.
const THREADS: u32 = 512;
/// Threads of a block that share a row if the channels are innermost and loads are vectors.
const VECTOR_TEAM: u64 = 8;
/// Threads of a block that share a row if the channels are innermost and loads are single elements.
const SINGLE_TEAM: u64 = 32;
/// Bytes of a vector.
const VECTOR: u64 = 16;

// Kernels for planes of one channel and for rows of all channels, each with single elements and
// with vectors.
//
// SAFETY, for all kernels: `BatchNorm::params` makes all `Channels`, from the launch's operands,
// after a check of their sizes and layouts. The parameters of channels have the dtype that the flags
// name, and are accessed only if the flags for their presence are set. Each element of a result is
// written by one thread. The scratch operand has a word for each counter and each partial result.
// Kernels with vectors are launched only if all elements are aligned to vectors.
kernels! {
    pub(super) BATCH_NORM = "batch_norm", FLOATS, |_, ty| {
        let of = Source::new().with::<Channels>().push(module::ELEMENT);
        let of = of.push(&format!("#define THREADS {THREADS}")).push(TURN);
        of.push(include_str!("batch_norm.cuh")).push(&format!("BATCH_NORM({ty})"))
    } => {
        unsafe MOMENTS: [Kernel<Channels, 6>; 4] =
            float cpu::batch_norm_moments[planes, plane_vectors, rows, row_vectors];
        unsafe APPLY: [Kernel<Channels, 6>; 4] =
            float cpu::batch_norm_apply[planes, plane_vectors, rows, row_vectors];
        unsafe SUMS: [Kernel<Channels, 9>; 4] =
            float cpu::batch_norm_sums[planes, plane_vectors, rows, row_vectors];
        unsafe BACKWARD: [Kernel<Channels, 8>; 4] =
            float cpu::batch_norm_backward[planes, plane_vectors, rows, row_vectors];
    }
}

cuda_struct! {
    /// Numbers of planes, channels, and elements of a plane. `eps` and `momentum` hold the bits of
    /// an `f64`. Parameters of channels are of the type of arithmetic if `is_wide` or
    /// `is_running_wide` is 1, otherwise of the element type. `ticket` identifies a launch whose
    /// blocks share channels.
    struct Channels {
        batch: u64,
        channels: u64,
        area: u64,
        is_last: u64,
        eps: u64,
        momentum: u64,
        is_training: u64,
        is_weighted: u64,
        is_biased: u64,
        is_wide: u64,
        is_running: u64,
        is_running_wide: u64,
        ticket: u64,
    }
}

/// The operands and options that the forward pass and its gradients share.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm<'a> {
    /// The elements, `[batch, channels, …]`, of a floating-point dtype: row-major, or with the
    /// channels innermost. The other views of elements have the same order.
    pub input: View<'a>,
    /// Factor of each channel. Weight and bias are contiguous, of the input's dtype or of
    /// [`LayerNorm::moment_dtype`]. `None`: 1.
    pub weight: Option<View<'a>>,
    /// Summand of each channel, of the weight's dtype. `None`: 0. The gradients do not read it.
    pub bias: Option<View<'a>>,
    /// Mean of each channel. In training, the forward pass writes it in [`LayerNorm::moment_dtype`], and the gradients
    /// read it. Otherwise it is the running mean.
    pub mean: View<'a>,
    /// In training, the reciprocal root of each channel's variance plus `eps`; the forward pass writes it in
    /// [`LayerNorm::moment_dtype`], and the gradients read it. Otherwise the running variance.
    pub scale: View<'a>,
    /// Number that is added to the variance.
    pub eps: f64,
}

/// The running statistics that training updates.
#[derive(Clone, Copy, Debug)]
pub struct RunningStatistics<'a> {
    /// Running mean of each channel. Mean and variance are contiguous, of the input's dtype or of
    /// [`LayerNorm::moment_dtype`].
    pub mean: View<'a>,
    /// Running variance of each channel, unbiased.
    pub var: View<'a>,
    /// Weight of the batch's statistics in the updated running statistics.
    pub momentum: f64,
}

impl BatchNorm<'_> {
    /// Checks the input, other views of elements, weight and bias. Returns the parameters.
    #[track_caller]
    fn params(&self, op: &'static str, like_input: &[View<'_>]) -> Result<Channels> {
        let input = self.input;
        MOMENTS[0].check_dtype(op, input.dtype)?;
        let &[batch, channels, ref spatial @ ..] = input.sizes() else {
            let reason = format!("an input of {:?}, which has no channels", input.sizes());
            return Err(Error::shape(op, reason));
        };
        let area: usize = spatial.iter().product();
        if area >= 1 << 31 {
            // Kernels compute positions in a plane in 32 bits.
            let reason =
                format!("the input has sizes {:?}; a plane must be below 2³¹", input.sizes());
            return Err(Error::shape(op, reason));
        }
        let format = if area == 1 || input.layout.is_contiguous() {
            MemoryFormat::Contiguous
        } else if spatial.len() == 3 {
            MemoryFormat::ChannelsLast3d
        } else {
            MemoryFormat::ChannelsLast
        };
        for view in [input].iter().chain(like_input) {
            view.check_dtype(op, input.dtype)?;
            if view.sizes() != input.sizes() || !view.layout.is_contiguous_in(format) {
                let reason = format!(
                    "an operand of {:?} with strides {:?} for an input of {:?} in {format:?} order",
                    view.sizes(),
                    view.strides(),
                    input.sizes()
                );
                return Err(Error::shape(op, reason));
            }
        }
        let of_channels: Vec<View<'_>> = self.weight.iter().chain(&self.bias).copied().collect();
        let is_wide = per_channel(op, input, &of_channels)?;
        Ok(Channels {
            batch: batch as u64,
            channels: channels as u64,
            area: area as u64,
            is_last: (area == 1 || format != MemoryFormat::Contiguous).into(),
            eps: self.eps.to_bits(),
            momentum: 0,
            is_training: 1,
            is_weighted: self.weight.is_some().into(),
            is_biased: self.bias.is_some().into(),
            is_wide: is_wide.into(),
            is_running: 0,
            is_running_wide: 1,
            ticket: 0,
        })
    }

    /// Checks that mean and scale are of the dtype in which training computes them.
    #[track_caller]
    fn check_moments(&self, op: &'static str) -> Result<()> {
        per_channel(op, self.input, &[self.mean, self.scale])?;
        self.mean.check_dtype(op, LayerNorm::moment_dtype(self.input.dtype))
    }

    /// Returns the operands of the kernels that write the result.
    fn result_operands<'b>(&'b self, out: View<'b>) -> [Operand<'b>; 6] {
        let [weight, bias] = [self.weight, self.bias].map(|view| self.or_input(view));
        [self.input.read(), weight, bias, self.mean.read(), self.scale.read(), out.write()]
    }

    /// Returns the operand of `view`. For `None`, returns the input as a stand-in that is not read.
    fn or_input<'b>(&'b self, view: Option<View<'b>>) -> Operand<'b> {
        view.unwrap_or(self.input).read()
    }
}

/// Checks that views have one element per channel and one dtype: the dtype of the input or the
/// dtype of the moments. Returns whether the views have the dtype of the moments.
#[track_caller]
fn per_channel(op: &'static str, input: View<'_>, views: &[View<'_>]) -> Result<bool> {
    let Some(first) = views.first() else { return Ok(false) };
    let wide = LayerNorm::moment_dtype(input.dtype);
    if first.dtype != input.dtype {
        first.check_dtype(op, wide)?;
    }
    for view in views {
        view.check_dtype(op, first.dtype)?;
        if view.numel() != input.sizes()[1] || !view.layout.is_contiguous() {
            let reason = format!(
                "an operand of {:?} with strides {:?} for the channels of {:?}; it must be contiguous",
                view.sizes(),
                view.strides(),
                input.sizes()
            );
            return Err(Error::shape(op, reason));
        }
    }
    Ok(first.dtype == wide)
}

/// A kernel's index in its array, its grid, and the number of words of scratch memory that it needs.
struct Plan {
    kernel: usize,
    grid: Grid,
    scratch: Option<usize>,
}

impl Channels {
    fn is_empty(&self) -> bool {
        self.batch == 0 || self.channels == 0 || self.area == 0
    }

    /// Distributes channels and their elements over blocks. `each` is the number of vectors that a
    /// thread visits at least, `blocks` the number of blocks per multiprocessor, and `fields` the
    /// number of values per channel that blocks share, 0 if they share none.
    #[track_caller]
    fn plan(
        &mut self,
        target: Target<'_>,
        op: &'static str,
        elements: &[View<'_>],
        [each, blocks, fields]: [u64; 3],
    ) -> Result<Plan> {
        let mut plan = Plan {
            kernel: 2 * self.is_last as usize,
            grid: Grid::linear(1, THREADS),
            scratch: None,
        };
        let Target::Cuda(_, device, _) = target else { return Ok(plan) };
        let item = elements[0].dtype.size() as u64;
        let mut at = item * if self.is_last == 1 { self.channels } else { self.area };
        for view in elements {
            at |= launch::address(op, view)?.addr();
        }
        let has_vectors = at.is_multiple_of(VECTOR);
        plan.kernel += usize::from(has_vectors);
        let vector = if has_vectors { VECTOR / item } else { 1 };
        // Number of blocks side by side, and of vectors per thread if blocks do not split the channels.
        let (across, steps) = if self.is_last == 1 {
            let team = if has_vectors { VECTOR_TEAM } else { SINGLE_TEAM };
            let height = u64::from(THREADS) / team;
            (self.channels.div_ceil(team * vector), (self.batch * self.area).div_ceil(height))
        } else {
            let vectors = self.batch * (self.area / vector);
            (self.channels, vectors.div_ceil(u64::from(THREADS)))
        };
        let busy = blocks * u64::from(device.properties().multiprocessor_count);
        let splits = (busy / across).min(steps / each).clamp(1, 65_535);
        if splits > 1 && fields > 0 {
            self.ticket = ticket();
            // One counter per block of the first split, then the values of each split.
            plan.scratch = Some((across + splits * fields * self.channels) as usize);
        }
        plan.grid = Grid::new([launch::blocks(across as usize), splits as u32, 1], THREADS);
        Ok(plan)
    }
}

/// Normalizes each channel by the mean and variance of its elements
/// (`torch.nn.functional.batch_norm` in training) into `out`, multiplies by the weight and adds the
/// bias. Writes `norm.mean` and `norm.scale`, and updates `running`, if given. Half-width floats are
/// computed in `float32`. Sums are the same in each run.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the input is not of a floating-point dtype.
/// - [`ErrorKind::DTypeMismatch`] if `out` has a different dtype than the input, if mean or scale does not have the
///   dtype [`LayerNorm::moment_dtype`], if weight and bias differ in dtype, or running mean and variance do, or if one
///   of these dtypes is neither the input's nor `moment_dtype`.
/// - [`ErrorKind::ShapeMismatch`] if the input has fewer than two dimensions, has 2³¹ or more elements per plane (one
///   channel of one item), or is neither row-major nor channels-last; if `out` differs from the input in sizes or
///   memory order; or if weight, bias, mean, scale or a running statistic is not contiguous or does not have one
///   element per channel.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - The errors of [`Kernel::launch`] and of allocating scratch memory.
#[track_caller]
pub fn batch_norm(
    target: Target<'_>,
    norm: &BatchNorm<'_>,
    running: Option<RunningStatistics<'_>>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "batch_norm";
    let params = norm.params(OP, &[out])?;
    norm.check_moments(OP)?;
    let mut own = params;
    let [mut to_mean, mut to_var] = [norm.mean.untouched(), norm.scale.untouched()];
    if let Some(running) = running {
        own.is_running_wide = per_channel(OP, norm.input, &[running.mean, running.var])?.into();
        own.is_running = 1;
        own.momentum = running.momentum.to_bits();
        [to_mean, to_var] = [running.mean, running.var].map(View::read_write);
    }
    let moments = [norm.input.read(), norm.mean.write(), norm.scale.write(), to_mean, to_var];
    check_operands(OP, &moments)?;
    let results = norm.result_operands(out);
    check_operands(OP, &results)?;
    if params.is_empty() {
        return Ok(());
    }
    let plan = own.plan(target, OP, &[norm.input], [4, 2, 3])?;
    let scratch = scratch(target, &plan)?;
    let [a, b, c, d, e] = moments;
    let operands = [a, b, c, d, e, scratch_operand(scratch.as_ref(), norm.mean)];
    MOMENTS[plan.kernel].launch(target, OP, &operands, &own, plan.grid)?;
    let mut own = params;
    let plan = own.plan(target, OP, &[norm.input, out], [4, 4, 0])?;
    APPLY[plan.kernel].launch(target, OP, &results, &own, plan.grid)
}

/// Normalizes each channel by the running mean `norm.mean` and the running variance `norm.scale`
/// (`torch.nn.functional.batch_norm` outside training) into `out`.
///
/// # Errors
/// The errors of [`batch_norm`]. Mean and scale may also have the input's dtype, but must both have the
/// same dtype.
#[track_caller]
pub fn batch_norm_inference(target: Target<'_>, norm: &BatchNorm<'_>, out: View<'_>) -> Result<()> {
    const OP: &str = "batch_norm";
    let mut params = norm.params(OP, &[out])?;
    params.is_training = 0;
    params.is_running_wide = per_channel(OP, norm.input, &[norm.mean, norm.scale])?.into();
    let operands = norm.result_operands(out);
    check_operands(OP, &operands)?;
    if params.is_empty() {
        return Ok(());
    }
    let plan = params.plan(target, OP, &[norm.input, out], [4, 4, 0])?;
    APPLY[plan.kernel].launch(target, OP, &operands, &params, plan.grid)
}

/// Computes the gradients of [`batch_norm`]: with respect to its input into `of_input`, its weight
/// into `of_weight` and its bias into `of_bias`, each if given. `grad` is the gradient of the
/// forward result. `of_weight` and `of_bias` have the weight's dtype. Sums are the same in each run.
///
/// # Errors
/// The errors of [`batch_norm`]. The conditions on `out` also hold for `grad` and `of_input`, and those on the weight
/// for `of_weight` and `of_bias`.
#[track_caller]
pub fn batch_norm_backward(
    target: Target<'_>,
    norm: &BatchNorm<'_>,
    grad: View<'_>,
    of_input: Option<View<'_>>,
    [of_weight, of_bias]: [Option<View<'_>>; 2],
) -> Result<()> {
    const OP: &str = "batch_norm_backward";
    let norm = BatchNorm { bias: None, ..*norm };
    let mut like_input = vec![grad];
    like_input.extend(of_input);
    let params = norm.params(OP, &like_input)?;
    norm.check_moments(OP)?;
    let of_channels: Vec<View<'_>> =
        norm.weight.into_iter().chain(of_weight).chain(of_bias).collect();
    let mut own = Channels {
        is_weighted: of_weight.is_some().into(),
        is_biased: of_bias.is_some().into(),
        is_wide: per_channel(OP, norm.input, &of_channels)?.into(),
        ..params
    };
    let wide = LayerNorm::moment_dtype(norm.input.dtype);
    let sums = ScratchTensor::new(target, &[2, params.channels as usize], wide)?;
    let [along, plain] = [sums.view().layout.select(0, 0)?, sums.view().layout.select(0, 1)?];
    let [along, plain] = [&along, &plain].map(|layout| View { layout, ..sums.view() });
    let [g, x, mean, scale] = [grad, norm.input, norm.mean, norm.scale].map(View::read);
    let (to_weight, to_bias) = (
        of_weight.map_or(norm.mean.untouched(), View::write),
        of_bias.map_or(norm.scale.untouched(), View::write),
    );
    check_operands(OP, &[g, x, mean, scale, to_weight, to_bias])?;
    if let Some(out) = of_input {
        check_operands(OP, &[g, x, norm.or_input(norm.weight), mean, scale, out.write()])?;
    }
    if params.is_empty() {
        return Ok(());
    }
    let plan = own.plan(target, OP, &[grad, norm.input], [2, 2, 2])?;
    let shared = scratch(target, &plan)?;
    let shared = scratch_operand(shared.as_ref(), norm.mean);
    let operands = [g, x, mean, scale, to_weight, to_bias, along.write(), plain.write(), shared];
    SUMS[plan.kernel].launch(target, OP, &operands, &own, plan.grid)?;
    let Some(out) = of_input else { return Ok(()) };
    let mut own = params;
    let plan = own.plan(target, OP, &[grad, norm.input, out], [2, 4, 0])?;
    let weight = norm.or_input(norm.weight);
    let operands = [g, x, weight, mean, scale, along.read(), plain.read(), out.write()];
    BACKWARD[plan.kernel].launch(target, OP, &operands, &own, plan.grid)
}

#[track_caller]
fn scratch(target: Target<'_>, plan: &Plan) -> Result<Option<ScratchTensor>> {
    plan.scratch.map(|words| ScratchTensor::new(target, &[words], DType::I64)).transpose()
}
