//! Optimizer steps that update many tensors in one launch.

mod cpu;
mod total_norm;
mod unscale;

use std::fmt::Write as _;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::BLOCK;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct};

use crate::programs::{FLOATS, kernels};

pub use total_norm::{partial_sums, sum_dtype, sum_squares};
pub use unscale::{check_and_unscale, update_scale};

pub(crate) const PROGRAMS: &[&Program] = &[
    &SGD,
    &ADAM,
    &RMSPROP,
    &SCALE,
    &total_norm::SUM_SQUARES,
    &unscale::UNSCALE,
    &unscale::UPDATE_SCALE,
];

/// Tensors per launch.
const TENSORS: usize = 16;
/// Maximum number of operands per tensor: the parameter, its gradient, and three state tensors.
#[doc(hidden)]
pub const LISTS: usize = 5;
/// Elements per block.
const CHUNK: u32 = BLOCK * 8;

/// Returns the number of operands of a kernel with `lists` operands per tensor: those of all
/// tensors, then the rates, `found_inf` and `grad_scale`.
const fn operands(lists: usize) -> usize {
    TENSORS * lists + 3
}

// SAFETY, for all kernels: only `launch` makes the parameters and operands. The operands of a
// tensor are contiguous, of one dtype, and have `numel` elements. The blocks from the tensor's
// `first` process these elements, each element by one thread. The kernel reads and writes an
// operand only if its bit in `reads` or `writes` is set, and `launch` declares the operand by the
// same bits. `step` checks that `rates` has as many numbers as the rule reads, and that `found_inf`
// and `grad_scale` have one. A step that `found_inf` may skip declares no operand as only written,
// because a skipped step leaves all operands as they are.
kernels! {
    SGD = "sgd", FLOATS, |_, ty| source("sgd", "Sgd", 3, ty) => {
        unsafe SGD_STEP: Kernel<Update, { operands(3) }> = float cpu::sgd;
    }
    ADAM = "adam", FLOATS, |_, ty| source("adam", "Adam", 5, ty) => {
        unsafe ADAM_STEP: Kernel<Update, { operands(5) }> = float cpu::adam;
    }
    RMSPROP = "rmsprop", FLOATS, |_, ty| source("rmsprop", "RmsProp", 5, ty) => {
        unsafe RMSPROP_STEP: Kernel<Update, { operands(5) }> = float cpu::rmsprop;
    }
    SCALE = "scale", FLOATS, |_, ty| source("scale", "Scale", 1, ty) => {
        unsafe SCALE_STEP: Kernel<Update, { operands(1) }> = float cpu::scale;
    }
}

// Flags of a step. Flags without a comment come from the update rule.
const MAXIMIZE: u32 = 1;
/// Read the rates from memory.
const RATES: u32 = 2;
const MOMENTUM: u32 = 4;
const FIRST: u32 = 8;
const NESTEROV: u32 = 16;
const AMSGRAD: u32 = 32;
const CENTERED: u32 = 64;
/// Skip the step if `found_inf` is not zero.
const SKIPS: u32 = 128;
/// Divide gradients by `grad_scale`.
const UNSCALES: u32 = 256;

/// Returns the source of a rule's kernel, which has one pointer parameter per operand.
fn source(program: &str, rule: &str, lists: usize, ty: &str) -> Source {
    let mut code = format!("extern \"C\" __global__ void {program}_{ty}(\n");
    for tensor in 0..TENSORS {
        for list in 0..lists {
            let _ = write!(code, "{ty}* t{tensor}_{list}, ");
        }
        code.push('\n');
    }
    let first: Vec<String> = (0..lists).map(|list| format!("t0_{list}")).collect();
    let _ = write!(
        code,
        "const f64* rates, const f32* found_inf, const f32* grad_scale, const __grid_constant__ Update u) {{\nu32 which = \
         0;\n{ty}* x[LISTS] = {{{}}};\n",
        first.join(", ")
    );
    for tensor in 1..TENSORS {
        let _ = write!(code, "if (blockIdx.x >= u.tensors[{tensor}].first) {{ which = {tensor};");
        for list in 0..lists {
            let _ = write!(code, " x[{list}] = t{tensor}_{list};");
        }
        code.push_str(" }\n");
    }
    let _ = write!(
        code,
        "update<{ty}, {rule}<compute_t<{ty}>>>(x, rates, found_inf, grad_scale, u, which);\n}}\n"
    );
    let mut constants = format!(
        "#define LISTS {lists}\n#define BLOCK {BLOCK}\n#define CHUNK {CHUNK}\n#define MAXIMIZE \
         {MAXIMIZE}\n"
    );
    for (name, value) in [
        ("RATES", RATES),
        ("MOMENTUM", MOMENTUM),
        ("FIRST", FIRST),
        ("NESTEROV", NESTEROV),
        ("AMSGRAD", AMSGRAD),
        ("CENTERED", CENTERED),
        ("SKIPS", SKIPS),
        ("UNSCALES", UNSCALES),
    ] {
        let _ = writeln!(constants, "#define {name} {value}");
    }
    let of = Source::new().with::<Update>().push(module::ELEMENT).push(&constants);
    of.push(include_str!("update.cuh")).push(&code)
}

cuda_struct! {
    /// The first block of a tensor, and the number of its elements, which is less than 2³¹.
    struct Part {
        first: u32,
        numel: u32,
    }
}

cuda_struct! {
    /// The parameters of a launch: numbers and flags of the rule, and the tensors. Bit `k` of
    /// `reads` and `writes` tells whether the kernel reads and writes operand `k` of each tensor.
    struct Update {
        numbers: [f64; 8],
        flags: u32,
        reads: u32,
        writes: u32,
        /// Blocks for all tensors together.
        blocks: u32,
        tensors: [Part; TENSORS],
    }
}

/// The update rule of an optimizer step, with its hyperparameters. If [`step`] receives `rates`,
/// the elements of `rates` replace the fields whose documentation says "Read from `rates` if
/// given", in the order of these fields.
#[derive(Clone, Copy, Debug)]
pub enum UpdateRule {
    /// `torch.optim.SGD`. With a momentum, `state[0]` is the momentum buffer.
    SGD {
        /// Learning rate. Read from `rates` if given.
        lr: f64,
        /// Momentum and dampening. `None`: no momentum.
        momentum: Option<(f64, f64)>,
        /// Whether to use Nesterov momentum.
        nesterov: bool,
        /// Whether this is the first step. The first step initializes the momentum buffer instead
        /// of reading it.
        first: bool,
        /// The parameter times this number is added to the gradient.
        weight_decay: f64,
        /// Maximize the objective instead of minimizing it.
        maximize: bool,
    },
    /// `torch.optim.Adam`. `state[0]` is the running mean of the gradients, `state[1]` the running
    /// mean of their squares and, with `amsgrad`, `state[2]` the maximum of the mean squares.
    Adam {
        /// Learning rate divided by the bias correction of the mean. Read from `rates` if given.
        rate: f64,
        /// Square root of the bias correction of the mean square. Read from `rates` if given.
        root: f64,
        /// Factor of the parameter before the update, for decoupled weight decay. Read from `rates`
        /// if given.
        kept: f64,
        /// Decay rates of the running mean and of the running mean square.
        betas: (f64, f64),
        /// Number that is added to the denominator.
        eps: f64,
        /// The parameter times this number is added to the gradient.
        weight_decay: f64,
        /// Whether to divide by the maximum of all mean squares so far.
        amsgrad: bool,
        /// Maximize the objective instead of minimizing it.
        maximize: bool,
    },
    /// `torch.optim.RMSprop`. `state[0]` is the running mean square, `state[1]` the momentum buffer
    /// if there is a momentum, and `state[2]` the running mean if `centered`.
    RMSprop {
        /// Learning rate. Read from `rates` if given.
        lr: f64,
        /// Decay rate of the running means.
        alpha: f64,
        /// Number that is added to the denominator.
        eps: f64,
        /// The parameter times this number is added to the gradient.
        weight_decay: f64,
        /// Momentum. `None`: no momentum.
        momentum: Option<f64>,
        /// Whether to normalize by the variance instead of the mean square.
        centered: bool,
        /// Maximize the objective instead of minimizing it.
        maximize: bool,
    },
    /// Multiplies the tensors by the number in `rates`. Needs no gradients.
    Scale,
}

/// A parameter with its gradient and optimizer state. All views are contiguous and have the
/// parameter's dtype and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Tensors<'a> {
    /// The parameter, which the step updates in place.
    pub param: View<'a>,
    /// The gradient of the parameter. May be `None` only for [`UpdateRule::Scale`].
    pub grad: Option<View<'a>>,
    /// State tensors, at the indices that the [`UpdateRule`] names. States that the rule does not use
    /// may be `None`.
    pub state: [Option<View<'a>>; 3],
}

/// Tensors of a gradient scaler, which the step reads on the device. Each has one `float32`
/// element.
#[derive(Clone, Copy, Debug)]
pub struct GradScaling<'a> {
    /// If this element is not zero, a gradient is infinite or NaN, and the step changes nothing.
    pub found_inf: View<'a>,
    /// Divisor of the gradients. The step divides them in place before it uses them. `None`: the
    /// gradients are not scaled.
    pub grad_scale: Option<View<'a>>,
}

impl UpdateRule {
    fn op(&self) -> &'static str {
        match self {
            Self::SGD { .. } => "sgd_step",
            Self::Adam { .. } => "adam_step",
            Self::RMSprop { .. } => "rmsprop_step",
            Self::Scale => "scale",
        }
    }

    /// Returns the kernel parameters except those of the tensors. If `rates` is true, the kernel
    /// reads the rates from memory.
    fn update(&self, rates: bool) -> Update {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let rates = flag(rates, RATES);
        let mut numbers = [0.0; 8];
        let mut put = |values: &[f64]| numbers[..values.len()].copy_from_slice(values);
        let (flags, reads, writes) = match *self {
            Self::SGD { lr, momentum, nesterov, first, weight_decay, maximize } => {
                let (kept, dampening) = momentum.unwrap_or_default();
                put(&[lr, kept, 1.0 - dampening, weight_decay]);
                let moves = momentum.is_some();
                let flags = flag(maximize, MAXIMIZE)
                    | flag(moves, MOMENTUM)
                    | flag(first, FIRST)
                    | flag(nesterov, NESTEROV);
                (flags, 0b11 | flag(moves && !first, 0b100), 1 | flag(moves, 0b100))
            }
            Self::Adam { rate, root, kept, betas, eps, weight_decay, amsgrad, maximize } => {
                put(&[rate, root, kept, betas.0, betas.1, eps, weight_decay]);
                let most = flag(amsgrad, 0b10000);
                let flags = flag(maximize, MAXIMIZE) | flag(amsgrad, AMSGRAD);
                (flags, 0b1111 | most, 0b1101 | most)
            }
            Self::RMSprop { lr, alpha, eps, weight_decay, momentum, centered, maximize } => {
                put(&[lr, alpha, eps, weight_decay, momentum.unwrap_or(0.0)]);
                let moves = momentum.is_some();
                let kept = flag(moves, 0b1000) | flag(centered, 0b10000);
                let flags =
                    flag(maximize, MAXIMIZE) | flag(moves, MOMENTUM) | flag(centered, CENTERED);
                (flags, 0b111 | kept, 0b101 | kept)
            }
            Self::Scale => (0, 1, 1),
        };
        let tensors = [Part { first: u32::MAX, numel: 0 }; TENSORS];
        Update { numbers, flags: flags | rates, reads, writes, blocks: 0, tensors }
    }
}

/// Returns whether [`step`] supports the tensor: it must be contiguous and floating-point, and have
/// fewer than 2³¹ elements.
#[must_use]
pub fn takes(view: View<'_>) -> bool {
    view.layout.is_contiguous() && view.dtype.is_float() && view.numel() <= i32::MAX as usize
}

/// Applies an optimizer step to parameters of one dtype, several per launch.
///
/// `rates` holds the numbers that change between replays of a captured step: [`UpdateRule::Adam`]
/// reads three, every other rule one. With `scaling`, the caller must initialize all states before
/// the call, even for the first step of [`UpdateRule::SGD`], because a step that `found_inf` skips
/// does not initialize them.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if [`takes`] returns `false` for a tensor, if `rates` is too short, not contiguous
///   or not a `float64` tensor, if the rule is [`UpdateRule::Scale`] and `rates` is `None`, if a tensor of `scaling`
///   does not have exactly one `float32` element, or if a gradient or a state that the rule needs is missing.
/// - [`ErrorKind::DTypeMismatch`] if a tensor has a different dtype than the first parameter.
/// - [`ErrorKind::ShapeMismatch`] if the sizes of a gradient or state differ from those of its
///   parameter.
/// - [`ErrorKind::OverlappingOperands`] if a tensor that the step writes shares memory with another tensor of the same
///   launch, which takes up to 16 parameters.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn step(
    target: Target<'_>,
    rule: &UpdateRule,
    tensors: &[Tensors<'_>],
    rates: Option<View<'_>>,
    scaling: Option<GradScaling<'_>>,
) -> Result<()> {
    let op = rule.op();
    let need = match rule {
        UpdateRule::Adam { .. } => 3,
        _ => 1,
    };
    if let Some(rates) = rates
        && (rates.dtype != DType::F64 || !takes(rates) || rates.numel() < need)
    {
        let reason = format!("the rates must be {need} contiguous `float64` elements");
        return Err(Error::invalid(op, reason));
    }
    if matches!(rule, UpdateRule::Scale) && rates.is_none() {
        return Err(Error::invalid(
            op,
            "`UpdateRule::Scale` needs `rates`, which holds the factor",
        ));
    }
    let mut update = rule.update(rates.is_some());
    if let Some(scaling) = scaling {
        check_number(op, "found_inf", scaling.found_inf)?;
        update.flags |= SKIPS;
        if let Some(grad_scale) = scaling.grad_scale {
            check_number(op, "grad_scale", grad_scale)?;
            update.flags |= UNSCALES;
            update.writes |= update.reads & 0b10;
        }
        // A skipped step writes nothing, so no operand may be declared as only written.
        update.reads |= update.writes;
    }
    let inputs = (tensors, rates, scaling);
    match rule {
        UpdateRule::SGD { .. } => launch(target, op, &SGD_STEP, &update, inputs),
        UpdateRule::Adam { .. } => launch(target, op, &ADAM_STEP, &update, inputs),
        UpdateRule::RMSprop { .. } => launch(target, op, &RMSPROP_STEP, &update, inputs),
        UpdateRule::Scale => launch(target, op, &SCALE_STEP, &update, inputs),
    }
}

/// Checks that a view has exactly one `float32` element.
#[track_caller]
fn check_number(op: &'static str, name: &str, view: View<'_>) -> Result<()> {
    if view.dtype == DType::F32 && view.numel() == 1 {
        return Ok(());
    }
    let (dtype, sizes) = (view.dtype, view.sizes());
    let reason = format!(
        "{name} must have one `float32` element, but has dtype {dtype} and sizes {sizes:?}"
    );
    Err(Error::invalid(op, reason))
}

/// The tensors, the rates and the scaling of a step.
type Inputs<'a> = (&'a [Tensors<'a>], Option<View<'a>>, Option<GradScaling<'a>>);

/// Launches the kernel for [`TENSORS`] tensors at a time.
#[track_caller]
fn launch<const N: usize>(
    target: Target<'_>,
    op: &'static str,
    kernel: &Kernel<Update, N>,
    update: &Update,
    (tensors, rates, scaling): Inputs<'_>,
) -> Result<()> {
    let lists = N / TENSORS;
    let Some(&Tensors { param: first, .. }) = tensors.first() else { return Ok(()) };
    for tensors in tensors.chunks(TENSORS) {
        let mut params = *update;
        let mut operands = [first.untouched(); N];
        for ((part, of), own) in
            params.tensors.iter_mut().zip(tensors).zip(operands.chunks_exact_mut(lists))
        {
            let Ok(numel) = u32::try_from(of.param.numel()) else {
                return Err(Error::invalid(op, "a parameter has 2³² elements or more"));
            };
            *part = Part { first: params.blocks, numel };
            params.blocks += numel.div_ceil(CHUNK);
            let [a, b, c] = of.state;
            let views = [Some(of.param), of.grad, a, b, c];
            for (list, (operand, view)) in own.iter_mut().zip(views).enumerate() {
                let (reads, writes) =
                    (params.reads >> list & 1 != 0, params.writes >> list & 1 != 0);
                if !reads && !writes {
                    continue;
                }
                let Some(view) = view else {
                    let reason = format!("operand {list} of a parameter is missing");
                    return Err(Error::invalid(op, reason));
                };
                check(op, first, of.param, view)?;
                *operand = match (reads, writes) {
                    (true, false) => view.read(),
                    (false, true) => view.write(),
                    _ => view.read_write(),
                };
            }
        }
        if let Some(rates) = rates {
            operands[N - 3] = rates.read();
        }
        if let Some(scaling) = scaling {
            operands[N - 2] = scaling.found_inf.read();
            if let Some(grad_scale) = scaling.grad_scale {
                operands[N - 1] = grad_scale.read();
            }
        }
        check_operands(op, &operands)?;
        let grid = Grid::new([params.blocks.max(1), 1, 1], BLOCK);
        kernel.launch(target, op, &operands, &params, grid)?;
    }
    Ok(())
}

/// Checks that an operand has the dtype of the first parameter and the sizes of its own parameter,
/// and that [`takes`] supports it.
#[track_caller]
fn check(op: &'static str, first: View<'_>, param: View<'_>, view: View<'_>) -> Result<()> {
    view.check_dtype(op, first.dtype)?;
    if view.sizes() != param.sizes() {
        let reason = format!(
            "a gradient or state has sizes {:?}, but its parameter has {:?}",
            view.sizes(),
            param.sizes()
        );
        return Err(Error::shape(op, reason));
    }
    if !takes(view) {
        let reason =
            "operands must be contiguous and floating-point, with fewer than 2³¹ elements each";
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}
