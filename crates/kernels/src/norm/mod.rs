//! Normalisation of rows: `layer_norm` and `rms_norm`, and their gradients.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use warpline_cuda_sys_safe::HostKernel;

use crate::programs::{FLOATS, LANES, committed};
use crate::turn::{Scratch, TURN, ticket};
use warpline_runtime::cuda_struct;
use warpline_runtime::launch::{self, Call, Code, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, ErrorKind, Operand, Result, Target, View};

pub(crate) const PROGRAMS: &[&Program] = &[&LAYER_NORM, &LAYER_NORM_BACKWARD];

/// Elements up to which lanes of one warp have a row.
const SHORT: usize = 1024;
/// Threads of a block that adds up columns, and how many of these it has at most.
const COLUMN_THREADS: u32 = 512;
const MOST_COLUMNS: u32 = 64;
/// Rows that a thread loads at a time, and how many of them take less time than blocks need to share a column.
const AT_A_TIME: u64 = 4;
const FEW: u64 = 8;

/// Rows of a few lanes, and of a block.
static LAYER_NORM: Program = Program::new("layer_norm", FLOATS, &["warp", "block"], |_, ty| {
    source().push(&format!("LAYER_NORM({ty})"))
})
.with_ptx(committed);

/// The same, and sums of columns, for weight and bias: of vectors of columns, and of single ones.
static LAYER_NORM_BACKWARD: Program = Program::new(
    "layer_norm_backward",
    FLOATS,
    &["warp", "block", "vectors", "columns"],
    |_, ty| source().push(&format!("LAYER_NORM_BACKWARD({ty})")),
)
.with_ptx(committed);

fn source() -> Source {
    let of = Source::new().with::<Norm>().push(module::ELEMENT).push(LANES);
    let of = of.push(&format!("#define COLUMN_THREADS {COLUMN_THREADS}"));
    let of = of.push(&format!("#define MOST_COLUMNS {MOST_COLUMNS}"));
    let of = of.push(&format!("#define AT_A_TIME {AT_A_TIME}")).push(TURN);
    of.push(include_str!("norm.cuh"))
}

/// `rows` of `size` elements. `team` is the logarithm of how many lanes have a row, or neighbouring columns, `eps` the bits of
/// an `f64`, and `ticket` the number of a launch whose blocks share columns.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
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

cuda_struct!(Norm { rows, size, team, eps, is_centred, is_weighted, is_biased, ticket });

/// What is normalised, and how: what the forward kernel and those for the gradient are told. All views are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// The rows, of floats, one after the other.
    pub input: View<'a>,
    /// What a row is multiplied by, if there is something: as many elements as a row has.
    pub weight: Option<View<'a>>,
    /// Each row's mean, in [`LayerNorm::moment_dtype`], or 0 where it is not subtracted.
    pub mean: View<'a>,
    /// One over the root of each row's mean square, likewise.
    pub scale: View<'a>,
    /// Added to the mean square.
    pub eps: f64,
    /// Whether the mean is subtracted: `layer_norm` rather than `rms_norm`.
    pub centred: bool,
}

impl LayerNorm<'_> {
    /// What moments of rows of a dtype are in: `f32` for the halves.
    #[must_use]
    pub fn moment_dtype(dtype: DType) -> DType {
        if dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn op(&self) -> &'static str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }

    /// An operand, or what stands in its place and is not read.
    fn or_input<'b>(&'b self, view: Option<View<'b>>) -> Operand<'b> {
        view.unwrap_or(self.input).read()
    }

    /// Checks these views, and others of the rows' sizes or of one row's.
    #[track_caller]
    fn params(&self, like_input: &[View<'_>], like_row: &[View<'_>]) -> Result<Norm> {
        let (op, location, input) = (self.op(), Location::caller(), self.input);
        let rows = self.mean.numel();
        let size = input.numel() / rows.max(1);
        let wide = Self::moment_dtype(input.dtype);
        let weight = self.weight.iter().chain(like_row).map(|view| (*view, input.dtype, size));
        let others = like_input.iter().map(|view| (*view, input.dtype, input.numel()));
        let moments = [(self.mean, wide, rows), (self.scale, wide, rows)];
        let all = [(input, input.dtype, rows * size)].into_iter();
        for (view, expected, numel) in all.chain(weight).chain(others).chain(moments) {
            if view.dtype != expected {
                let actual = view.dtype;
                return Err(ErrorKind::DTypeMismatch { expected, actual }.of(op).at(location));
            }
            if view.numel() != numel || !view.layout.is_contiguous() {
                let reason = format!(
                    "an operand of {:?} with strides {:?} for {rows} rows of {size} elements; it must be \
                     contiguous and have {numel}",
                    view.sizes(),
                    view.strides()
                );
                return Err(Error::shape(op, reason).at(location));
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
    /// The kernel for rows, its blocks and their threads.
    fn shape(&self) -> (usize, u32, u32) {
        let (rows, team) = (self.rows as usize, 1 << self.team);
        if self.size as usize <= SHORT {
            (0, launch::blocks((rows * team).div_ceil(128)), 128)
        } else {
            (1, launch::blocks(rows), 512)
        }
    }

    /// Shares sums of columns out to the blocks of a GPU, whose threads have `vector` neighbouring columns each. Returns the
    /// grid: blocks in y share columns.
    fn share_out(&mut self, vector: u64, item_size: u64, multiprocessors: u64) -> [u32; 2] {
        let bytes = vector * item_size;
        // Neighbouring lanes read one sector of a row together, or up to four.
        let (least, most) = ((32 / bytes).max(1), (128 / bytes).min(32));
        let blocks = |lanes: u64| self.size.div_ceil(lanes * vector).max(1);
        // Those of a thread, of blocks that share nothing.
        let rows = |lanes: u64| self.rows * lanes / u64::from(COLUMN_THREADS);
        let busy = 2 * multiprocessors;
        let (mut lanes, mut splits) = (least, 1);
        if rows(least) > FEW && blocks(least) < busy {
            // A warp reads no more than eight rows at a time. Few blocks share, since the last of them waits for what all
            // the others have left.
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
        // There are no more splits than twice the multiprocessors.
        [launch::blocks(blocks(lanes) as usize), splits as u32]
    }
}

/// The number of a dtype's variant, and one of its host kernels.
macro_rules! variant {
    ($op:expr, $dtype:expr, $($kernel:tt)*) => {
        match $dtype {
            DType::F16 => (0, cpu::$($kernel)*::<half::f16> as HostKernel),
            DType::BF16 => (1, cpu::$($kernel)*::<half::bf16> as HostKernel),
            DType::F32 => (2, cpu::$($kernel)*::<f32> as HostKernel),
            DType::F64 => (3, cpu::$($kernel)*::<f64> as HostKernel),
            dtype => {
                let (op, location) = ($op, Location::caller());
                return Err(ErrorKind::UnsupportedDType { dtype }.of(op).at(location));
            }
        }
    };
}

/// `torch.nn.functional.layer_norm` of rows, or `rms_norm`, into `out`: times the weight plus `bias`. Mean and scale are
/// written. The halves are computed in `f32`.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`], [`ErrorKind::DTypeMismatch`]; [`ErrorKind::ShapeMismatch`], also for views that are not
/// contiguous; [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`]; otherwise as [`launch::run`].
#[track_caller]
pub fn layer_norm(
    target: Target<'_>,
    norm: &LayerNorm<'_>,
    bias: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let op = norm.op();
    let (index, host) = variant!(op, norm.input.dtype, layer_norm);
    let mut params = norm.params(&[out], bias.as_slice())?;
    params.is_biased = bias.is_some().into();
    let operands = [
        norm.input.read(),
        norm.or_input(norm.weight),
        bias.unwrap_or(norm.input).read(),
        out.write(),
        norm.mean.write(),
        norm.scale.write(),
    ];
    let (kernel, blocks, threads) = params.shape();
    let program = (&LAYER_NORM, index, kernel);
    run(target, op, &operands, &params, host, program, (blocks, threads))
}

/// The gradient of [`layer_norm`] with respect to its rows, into `out`, for `grad`, that of its result.
///
/// # Errors
/// As there.
#[track_caller]
pub fn layer_norm_backward(
    target: Target<'_>,
    norm: &LayerNorm<'_>,
    grad: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "layer_norm_backward";
    let (index, host) = variant!(OP, norm.input.dtype, backward);
    let params = norm.params(&[grad, out], &[])?;
    let operands = [
        grad.read(),
        norm.input.read(),
        norm.or_input(norm.weight),
        norm.mean.read(),
        norm.scale.read(),
        out.write(),
    ];
    let (kernel, blocks, threads) = params.shape();
    let program = (&LAYER_NORM_BACKWARD, index, kernel);
    run(target, OP, &operands, &params, host, program, (blocks, threads))
}

/// The gradients of [`layer_norm`] with respect to its weight and, if asked for, its bias. Sums are the same each time.
///
/// # Errors
/// As there.
#[track_caller]
pub fn layer_norm_parameters_backward(
    target: Target<'_>,
    norm: &LayerNorm<'_>,
    grad: View<'_>,
    of_weight: View<'_>,
    of_bias: Option<View<'_>>,
) -> Result<()> {
    const OP: &str = "layer_norm_backward";
    let (index, host) = variant!(OP, norm.input.dtype, parameters);
    let results: SmallVec<[View<'_>; 2]> = [of_weight].into_iter().chain(of_bias).collect();
    let mut params = norm.params(&[grad], &results)?;
    params.is_biased = of_bias.is_some().into();
    let of_bias = of_bias.map_or(of_weight.untouched(), View::write);
    let (mut kernel, mut grid, mut scratch) = (2, [1; 2], None);
    let mut operands: SmallVec<[Operand<'_>; 7]> = SmallVec::new();
    operands.extend([grad, norm.input, norm.mean, norm.scale].map(View::read));
    operands.extend([of_weight.write(), of_bias]);
    check_operands(OP, &operands)?;
    if let Target::Cuda(runtime, device, stream) = target {
        let item = norm.input.dtype.size() as u64;
        let mut vector = (16 / item).min(4);
        let mut at = params.size * item;
        for view in [grad, norm.input] {
            at |= launch::address(OP, &view)?.addr();
        }
        if !at.is_multiple_of(vector * item) {
            (kernel, vector) = (3, 1);
        }
        grid = params.share_out(vector, item, device.properties().multiprocessor_count.into());
        let [blocks, splits] = grid.map(|n| n as usize);
        if splits > 1 {
            params.ticket = ticket();
            // A counter for each block of the first split, then sums of both kinds for each split.
            let words = blocks + 2 * splits * params.size as usize;
            scratch = Some(Scratch::new(runtime, stream, words)?);
        }
    }
    operands.push(Scratch::operand(scratch.as_ref(), of_weight));
    let program = (&LAYER_NORM_BACKWARD, index, kernel);
    start(target, OP, &operands, &params, host, program, (grid, COLUMN_THREADS))
}

#[track_caller]
fn run(
    target: Target<'_>,
    op: &'static str,
    operands: &[Operand<'_>],
    params: &Norm,
    host: HostKernel,
    kernel: (&'static Program, usize, usize),
    (blocks, threads): (u32, u32),
) -> Result<()> {
    check_operands(op, operands)?;
    start(target, op, operands, params, host, kernel, ([blocks, 1], threads))
}

/// Of operands that were checked.
#[track_caller]
fn start(
    target: Target<'_>,
    op: &'static str,
    operands: &[Operand<'_>],
    params: &Norm,
    host: HostKernel,
    kernel: (&'static Program, usize, usize),
    ([x, y], threads): ([u32; 2], u32),
) -> Result<()> {
    if params.rows == 0 || params.size == 0 {
        return Ok(());
    }
    let call = Call {
        op,
        operands,
        params: bytemuck::bytes_of(params),
        checks_indices: false,
        host,
        code: Code::Kernel { kernel, grid: [x, y, 1], block: [threads, 1, 1], shared_bytes: 0 },
        location: Location::caller(),
    };
    // SAFETY: the views are contiguous and have the sizes that the parameters say, and vectors where kernels load any; each
    // element of a result is written by one thread; scratch has a word for each counter and each sum that blocks leave, and
    // host code needs none; all kernels take `Norm`.
    unsafe { launch::run(target, &call) }
}
