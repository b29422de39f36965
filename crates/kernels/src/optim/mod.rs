//! Steps of optimizers, and what goes with them, over many tensors in one launch.
//!
//! A tensor's operands are its elements, its gradient and its state, all dense and laid out alike. A launch takes up to
//! [`MOST`] tensors; each block has a chunk of one of them.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use warpline_cuda_sys_safe::HostKernel;
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Operand, Result, Target, View, cuda_struct};

use crate::programs::{FLOATS, committed};

pub(crate) const PROGRAMS: &[&Program] = &[&SGD, &ADAM, &RMSPROP, &SCALE, &NORM];

/// Tensors that one launch takes.
pub const MOST: usize = 24;
/// Those that the kernel for few takes.
const FEW: usize = 8;
/// Threads of a block, and elements that they share.
const BLOCK: u32 = 256;
const CHUNK: usize = 2048;

/// What is asked for besides numbers.
const MAXIMIZE: u64 = 1;
const NESTEROV: u64 = 2;
const DECOUPLED: u64 = 4;
const AMSGRAD: u64 = 8;
const CENTERED: u64 = 16;
const ON_DEVICE: u64 = 32;
const LARGEST: u64 = 64;

/// The kernels' parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Step {
    /// The first block of each tensor.
    first: [u32; MOST],
    numel: [u64; MOST],
    /// Which step it is of each tensor, from 1; on the device, which of the steps there.
    step: [u64; MOST],
    lr: f64,
    weight_decay: f64,
    eps: f64,
    /// Two more numbers of the optimizer.
    a: f64,
    b: f64,
    flags: u64,
}

cuda_struct!(Step { first, numel, step, lr, weight_decay, eps, a, b, flags });

/// A program of an optimizer whose tensors have this many operands each. After them all come two more: steps and learning
/// rate, on the device; or a result.
macro_rules! program {
    ($name:literal, $operands:expr) => {
        Program::new($name, FLOATS, &["", "few"], |_, ty| source($name, ty, $operands))
            .with_ptx(committed)
    };
}

static SGD: Program = program!("sgd", 3);
static ADAM: Program = program!("adam", 5);
static RMSPROP: Program = program!("rmsprop", 5);
static SCALE: Program = program!("grad_scale", 1);
static NORM: Program = program!("grad_norm", 1);

fn source(name: &str, ty: &str, operands: usize) -> Source {
    let of = Source::new().with::<Step>().push(module::ELEMENT);
    let mut of = of.push(&format!(
        "#define CHUNK {CHUNK}\n#define MAXIMIZE {MAXIMIZE}\n#define NESTEROV {NESTEROV}\n#define DECOUPLED \
         {DECOUPLED}\n#define AMSGRAD {AMSGRAD}\n#define CENTERED {CENTERED}\n#define ON_DEVICE \
         {ON_DEVICE}\n#define LARGEST {LARGEST}"
    ));
    of = of.push(include_str!("optim.cuh"));
    for (end, tensors) in [("", MOST), ("_few", FEW)] {
        let places = |i: usize| (0..operands).map(move |k| format!("t{i}_{k}"));
        let pointers: Vec<String> =
            (0..tensors).flat_map(places).map(|name| format!("{ty}* {name}")).collect();
        let cases: String = (0..tensors)
            .map(|i| {
                let sets: String =
                    places(i).enumerate().map(|(k, name)| format!("t[{k}] = {name}; ")).collect();
                format!("    case {i}: {sets}break;\n")
            })
            .collect();
        of = of.push(&format!(
            "extern \"C\" __global__ __launch_bounds__({BLOCK}) void {name}_{ty}{end}(\n    {}, void* x, void* y,\n    \
             const __grid_constant__ Step p) {{\n    {ty}* t[{operands}];\n    const u32 which = which_of<{tensors}>(p);\n    \
             switch (which) {{\n{cases}    }}\n    {name}<{ty}>(t, x, y, p, which);\n}}",
            pointers.join(", ")
        ));
    }
    of
}

/// Where steps are counted and what the learning rate is.
#[derive(Clone, Copy, Debug)]
pub enum Counted<'a> {
    /// Both are the host's: a capture keeps them as they are.
    Host {
        /// Which step it is of each tensor, from 1.
        steps: &'a [u64],
        /// The learning rate.
        lr: f64,
    },
    /// Both are on the device, and replays read them.
    Device {
        /// Steps of [`DType::F32`], from 1.
        steps: View<'a>,
        /// Which of them is each tensor's.
        places: &'a [u64],
        /// One element of [`DType::F64`].
        lr: View<'a>,
    },
}

/// Settings of [`sgd`].
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // PyTorch's names
pub struct SgdStep {
    pub momentum: f64,
    pub dampening: f64,
    pub weight_decay: f64,
    pub nesterov: bool,
    pub maximize: bool,
}

/// Settings of [`adam`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // PyTorch's names
pub struct AdamStep {
    pub betas: (f64, f64),
    pub eps: f64,
    pub weight_decay: f64,
    /// AdamW's: the weights decay by themselves, and not by way of the gradient.
    pub decoupled: bool,
    pub amsgrad: bool,
    pub maximize: bool,
}

/// Settings of [`rmsprop`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // PyTorch's names
pub struct RmspropStep {
    pub alpha: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub momentum: f64,
    pub centered: bool,
    pub maximize: bool,
}

/// A step of SGD (`torch.optim.SGD`) of tensors, each with its gradient and its momentum, which is not there if the
/// settings have none. The momentum of a tensor's first step is its gradient.
///
/// # Errors
/// [`Error::InvalidArgument`] unless each tensor's operands are dense, laid out alike and of one float dtype; as
/// [`launch::run`].
#[track_caller]
pub fn sgd(
    target: Target<'_>,
    tensors: &[[Option<View<'_>>; 3]],
    counted: Counted<'_>,
    settings: &SgdStep,
) -> Result<()> {
    let SgdStep { momentum, dampening, weight_decay, nesterov, maximize } = *settings;
    let flags = flag(nesterov, NESTEROV) | flag(maximize, MAXIMIZE);
    let step = Step { weight_decay, a: momentum, b: dampening, flags, ..Step::zeroed() };
    run("SGD", target, &SGD, cpu::sgd, tensors, counted, step)
}

/// A step of Adam or AdamW (`torch.optim.Adam`, `AdamW`) of tensors, each with its gradient, the means of it and of its
/// square, and the largest of the latter, which is not there unless the settings ask for it.
///
/// # Errors
/// As [`sgd`].
#[track_caller]
pub fn adam(
    target: Target<'_>,
    tensors: &[[Option<View<'_>>; 5]],
    counted: Counted<'_>,
    settings: &AdamStep,
) -> Result<()> {
    let AdamStep { betas: (a, b), eps, weight_decay, decoupled, amsgrad, maximize } = *settings;
    let flags = flag(decoupled, DECOUPLED) | flag(amsgrad, AMSGRAD) | flag(maximize, MAXIMIZE);
    let step = Step { weight_decay, eps, a, b, flags, ..Step::zeroed() };
    run("Adam", target, &ADAM, cpu::adam, tensors, counted, step)
}

/// A step of RMSprop (`torch.optim.RMSprop`) of tensors, each with its gradient, the mean of its square, and, where the
/// settings ask for them, the mean of the gradient and the momentum.
///
/// # Errors
/// As [`sgd`].
#[track_caller]
pub fn rmsprop(
    target: Target<'_>,
    tensors: &[[Option<View<'_>>; 5]],
    counted: Counted<'_>,
    settings: &RmspropStep,
) -> Result<()> {
    let RmspropStep { alpha, eps, weight_decay, momentum, centered, maximize } = *settings;
    let flags = flag(centered, CENTERED) | flag(maximize, MAXIMIZE);
    let step = Step { weight_decay, eps, a: alpha, b: momentum, flags, ..Step::zeroed() };
    run("RMSprop", target, &RMSPROP, cpu::rmsprop, tensors, counted, step)
}

/// Multiplies tensors by a number on the device, one element of [`DType::F64`].
///
/// # Errors
/// As [`sgd`].
#[track_caller]
pub fn scale(target: Target<'_>, tensors: &[View<'_>], by: View<'_>) -> Result<()> {
    for chunk in tensors.chunks(MOST) {
        let operands: Vec<[Option<View<'_>>; 1]> = chunk.iter().map(|t| [Some(*t)]).collect();
        let (step, blocks) = shared(&operands, Step::zeroed());
        let last = [by.read(), by.untouched()];
        launch("scale", target, (&SCALE, cpu::scale), &operands, &[true], last, (step, blocks))?;
    }
    Ok(())
}

/// How many elements [`norm`] needs for tensors of these sizes.
#[must_use]
pub fn norm_parts(numels: impl Iterator<Item = usize>) -> usize {
    numels.map(|numel| numel.div_ceil(CHUNK)).sum()
}

/// Sums of squares of parts of the tensors, or with `largest` their largest magnitudes: `out` is of [`DType::F64`] and has
/// [`norm_parts`] elements, in one dimension.
///
/// # Errors
/// As [`sgd`].
#[track_caller]
pub fn norm(target: Target<'_>, tensors: &[View<'_>], largest: bool, out: View<'_>) -> Result<()> {
    let mut begun = 0;
    for chunk in tensors.chunks(MOST) {
        let operands: Vec<[Option<View<'_>>; 1]> = chunk.iter().map(|t| [Some(*t)]).collect();
        let flags = flag(largest, LARGEST);
        let (step, blocks) = shared(&operands, Step { flags, ..Step::zeroed() });
        if blocks == 0 {
            continue;
        }
        let part = out.layout.narrow(0, begun as isize, blocks as usize)?;
        let part = View { layout: &part, ..out };
        let last = [part.write(), part.untouched()];
        launch("norm", target, (&NORM, cpu::norm), &operands, &[false], last, (step, blocks))?;
        begun += blocks as usize;
    }
    Ok(())
}

fn flag(asked: bool, flag: u64) -> u64 {
    if asked { flag } else { 0 }
}

/// Shares blocks out; how many there are.
fn shared<const N: usize>(tensors: &[[Option<View<'_>>; N]], mut step: Step) -> (Step, u32) {
    step.first = [u32::MAX; MOST];
    let mut blocks = 0;
    for (k, [tensor, ..]) in tensors.iter().enumerate().filter_map(|(k, t)| Some((k, [t[0]?]))) {
        step.first[k] = blocks;
        step.numel[k] = tensor.numel() as u64;
        blocks += tensor.numel().div_ceil(CHUNK) as u32;
    }
    (step, blocks)
}

#[track_caller]
fn run<const N: usize>(
    op: &'static str,
    target: Target<'_>,
    program: &'static Program,
    host: fn(DType) -> HostKernel,
    tensors: &[[Option<View<'_>>; N]],
    counted: Counted<'_>,
    step: Step,
) -> Result<()> {
    // All but the gradient are written.
    let writes: [bool; N] = std::array::from_fn(|k| k != 1);
    for (i, chunk) in tensors.chunks(MOST).enumerate() {
        let (mut step, blocks) = shared(chunk, step);
        let Some([Some(first), ..]) = chunk.first().map(|t| &t[..]) else { continue };
        let numbers = |from: &[u64], to: &mut [u64; MOST]| {
            let from = from.iter().skip(i * MOST).take(chunk.len());
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        };
        let last = match counted {
            Counted::Host { steps, lr } => {
                numbers(steps, &mut step.step);
                step.lr = lr;
                [first.untouched(), first.untouched()]
            }
            Counted::Device { steps, places, lr } => {
                numbers(places, &mut step.step);
                step.flags |= ON_DEVICE;
                if steps.dtype != DType::F32
                    || lr.dtype != DType::F64
                    || lr.numel() != 1
                    || !steps.layout.is_contiguous()
                    || places.iter().any(|place| *place >= steps.numel() as u64)
                {
                    let reason = "steps are of float32, and the learning rate is one float64";
                    return Err(Error::invalid(op, reason.into()));
                }
                [steps.read(), lr.read()]
            }
        };
        launch(op, target, (program, host), chunk, &writes, last, (step, blocks))?;
    }
    Ok(())
}

#[track_caller]
fn launch<const N: usize>(
    op: &'static str,
    target: Target<'_>,
    (program, host): (&'static Program, fn(DType) -> HostKernel),
    tensors: &[[Option<View<'_>>; N]],
    writes: &[bool; N],
    last: [Operand<'_>; 2],
    (step, blocks): (Step, u32),
) -> Result<()> {
    let Some(Some(any)) = tensors.first().map(|t| t[0]) else { return Ok(()) };
    let few = tensors.len() <= FEW;
    let room = if few { FEW } else { MOST };
    let mut operands: SmallVec<[Operand<'_>; 3 * MOST]> = SmallVec::new();
    for tensor in tensors {
        let alike = |view: &View<'_>| {
            view.dtype == any.dtype
                && view.layout.is_dense()
                && tensor[0].is_some_and(|own| {
                    own.layout.sizes() == view.layout.sizes()
                        && own.layout.strides() == view.layout.strides()
                })
        };
        for (view, write) in tensor.iter().zip(writes) {
            match view {
                None => operands.push(any.untouched()),
                Some(view) if !alike(view) => {
                    let reason = "a tensor, its gradient and its state must be dense, laid out alike and of one dtype";
                    return Err(Error::invalid(op, reason.into()));
                }
                Some(view) if *write => operands.push(view.read_write()),
                Some(view) => operands.push(view.read()),
            }
        }
    }
    if !any.dtype.is_float() {
        let (location, dtype) = (Location::caller(), any.dtype);
        return Err(Error::UnsupportedDType { location, op, dtype });
    }
    operands.resize(room * N, any.untouched());
    operands.extend(last);
    launch::check_operands(op, &operands)?;
    let call = Call {
        op,
        operands: &operands,
        params: bytemuck::bytes_of(&step),
        checks_indices: false,
        host: host(any.dtype),
        code: Code::Kernel {
            kernel: (program, any.dtype as usize - DType::F16 as usize, few.into()),
            grid: [blocks.max(1), 1, 1],
            block: [BLOCK, 1, 1],
            shared_bytes: 0,
        },
        location: Location::caller(),
    };
    // SAFETY: kernel and host code take `Step`, which has the sizes of the tensors, whose operands are dense and
    // laid out alike, of the variant's dtype; each block has elements of its own, and reads what is declared as read.
    // Of the last two operands the first has a step for each number, or an element for each block.
    unsafe { launch::run(target, &call) }
}
