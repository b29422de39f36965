//! Joins tensors along a dimension. One launch takes eight tensors, because joining small tensors
//! costs as much as its launches.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use warpline_runtime::cuda_struct;
use warpline_runtime::iter::{BLOCK, magic};
use warpline_runtime::launch::{self, Call, Code, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Error, ErrorKind, Operand, Result, Target, View};

use crate::copy;
use crate::programs::{bits, committed};

const OP: &str = "cat";

pub(crate) const PROGRAMS: &[&Program] = &[&CAT];

/// Tensors that one launch takes.
const SOURCES: usize = 8;
/// Bytes that are moved at once where rows allow it.
const WIDEST: usize = 16;

/// By the bytes that are moved at once.
static CAT: Program =
    Program::new("cat", &["u8", "u16", "u32", "u64", "u128"], &["", "pair"], |_, unit| {
        let of =
            Source::new().with::<Cat>().with::<Pair>().push(module::ELEMENT).push(module::SPACE);
        let of = of.push(&format!("#define SOURCES {SOURCES}\n#define BLOCK {BLOCK}"));
        of.push(include_str!("cat.cuh")).push(&format!("CAT({unit})"))
    })
    .with_ptx(committed);

/// Where a source's units go.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Part {
    /// Its first block.
    first: u32,
    numel: u32,
    /// Units of a row, and where they begin in the result's.
    columns: u32,
    at: u32,
    /// What a GPU divides by `columns` with.
    magic: u32,
    shift: u32,
}

cuda_struct!(Part { first, numel, columns, at, magic, shift });

/// The kernel's parameters. There are fewer than 2³¹ units.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Cat {
    /// Units from row to row of the result.
    pitch: u32,
    parts: [Part; SOURCES],
}

cuda_struct!(Cat { pitch, parts });

/// The parameters of the kernel for two sources that take all of the result's rows: of both, what a [`Part`] has.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Pair {
    /// The first block of the second.
    first: u32,
    numel: [u32; 2],
    columns: [u32; 2],
    magic: [u32; 2],
    shift: [u32; 2],
}

cuda_struct!(Pair { first, numel, columns, magic, shift });

impl Pair {
    fn new([a, b]: [Part; 2]) -> Self {
        Self {
            first: b.first,
            numel: [a.numel, b.numel],
            columns: [a.columns, b.columns],
            magic: [a.magic, b.magic],
            shift: [a.shift, b.shift],
        }
    }
}

/// Joins tensors along dimension `dim` (`torch.cat`): `out` has their sizes, but there the sum of theirs.
/// Dtypes may differ; elements are then converted to that of `out`.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`], [`ErrorKind::DimOutOfRange`], [`ErrorKind::OutOfStorage`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`], and what a launch can fail with.
#[track_caller]
pub fn cat(target: Target<'_>, inputs: &[View<'_>], dim: usize, out: View<'_>) -> Result<()> {
    check_sizes(inputs, dim, out)?;
    let operands = inputs.iter().map(|input| input.read()).chain([out.write()]);
    check_operands(OP, &operands.collect::<SmallVec<[Operand<'_>; SOURCES + 1]>>())?;
    let mut joined: SmallVec<[View<'_>; SOURCES]> = SmallVec::new();
    let (mut begun, mut at) = (0, 0);
    for &input in inputs.iter().filter(|input| input.numel() > 0) {
        let end = at + input.sizes()[dim];
        if !is_moved(input, out) || joined.len() == SOURCES {
            join(target, &joined, dim, (out, begun, at))?;
            (joined, begun) = (SmallVec::new(), at);
        }
        if is_moved(input, out) {
            joined.push(input);
        } else {
            let part = out.layout.narrow(dim as isize, at as isize, end - at)?;
            copy::copy(target, input, View { layout: &part, ..out }).map_err(|e| e.of(OP))?;
            begun = end;
        }
        at = end;
    }
    join(target, &joined, dim, (out, begun, at))
}

#[track_caller]
fn check_sizes(inputs: &[View<'_>], dim: usize, out: View<'_>) -> Result<()> {
    let (sizes, location) = (out.sizes(), Location::caller());
    if dim >= sizes.len() {
        let (dim, ndim) = (dim as isize, sizes.len());
        return Err(ErrorKind::DimOutOfRange { dim, ndim }.of(OP).at(location));
    }
    let fits = |input: &View<'_>| {
        let of = input.sizes();
        of.len() == sizes.len() && (0..of.len()).all(|d| d == dim || of[d] == sizes[d])
    };
    let total = || inputs.iter().try_fold(0usize, |sum, input| sum.checked_add(input.sizes()[dim]));
    if inputs.iter().all(fits) && total() == Some(sizes[dim]) {
        return Ok(());
    }
    let all: Vec<&[usize]> = inputs.iter().map(|input| input.sizes()).collect();
    let reason = format!("a result of {sizes:?} for {all:?}, joined along dimension {dim}");
    Err(Error::shape(OP, reason).at(location))
}

/// Whether an input's elements are moved as they are.
fn is_moved(input: View<'_>, out: View<'_>) -> bool {
    let is_counted = |view: View<'_>| view.numel() <= i32::MAX as usize;
    let is_plain = |view: View<'_>| view.layout.is_contiguous() && is_counted(view);
    input.dtype == out.dtype && is_plain(input) && is_plain(out)
}

/// Writes inputs to `out` from index `begin` to `end` of the dimension, which they fill.
#[track_caller]
fn join(
    target: Target<'_>,
    inputs: &[View<'_>],
    dim: usize,
    (out, begin, end): (View<'_>, usize, usize),
) -> Result<()> {
    if inputs.is_empty() {
        return Ok(());
    }
    let layout = out.layout.narrow(dim as isize, begin as isize, end - begin)?;
    let pitch: usize = out.sizes()[dim..].iter().product();
    let out = View { layout: &layout, ..out };
    if let [input] = inputs {
        return copy::copy(target, *input, out).map_err(|e| e.of(OP));
    }
    let size = out.dtype.size();
    let columns = |input: &View<'_>| input.sizes()[dim..].iter().product::<usize>();
    let fits = |times: usize| {
        let is_whole = |input: &View<'_>| {
            columns(input).is_multiple_of(times) && input.layout.offset().is_multiple_of(times)
        };
        pitch.is_multiple_of(times)
            && layout.offset().is_multiple_of(times)
            && inputs.iter().all(is_whole)
    };
    let mut times = match target {
        Target::Cuda(..) => WIDEST / size,
        // The host copies rows as they are, and its threads share them by elements.
        Target::Cpu(_) => 1,
    };
    while !fits(times) {
        times /= 2;
    }
    let unit = size * times;
    // As many as the kernel's `EACH`.
    let units_of_block = BLOCK * (WIDEST / unit).min(4) as u32;
    // All sizes fit 32 bits: `is_moved` lets only inputs and results of fewer than 2³¹ elements through.
    let mut params = Cat { pitch: (pitch / times) as u32, parts: [Part::zeroed(); SOURCES] };
    let mut operands = [out.untouched(); SOURCES + 1];
    let (mut first, mut at) = (0, 0);
    for (k, part) in params.parts.iter_mut().enumerate() {
        part.first = u32::MAX;
        let Some(input) = inputs.get(k) else { continue };
        operands[k] = input.read();
        let (numel, columns) = ((input.numel() / times) as u32, (columns(input) / times) as u32);
        let (magic, shift) = magic(columns);
        *part = Part { first, numel, columns, at, magic, shift };
        (first, at) = (first + numel.div_ceil(units_of_block), at + columns);
    }
    operands[SOURCES] = out.write();
    // Two that take all of a result's rows, as most do.
    let [a, b, ..] = params.parts;
    let is_pair = inputs.len() == 2 && a.columns + b.columns == params.pitch;
    let pair = Pair::new([a, b]);
    let of_pair = [operands[0], operands[1], operands[SOURCES]];
    let call = Call {
        op: OP,
        operands: if is_pair { &of_pair } else { &operands },
        params: if is_pair { bytemuck::bytes_of(&pair) } else { bytemuck::bytes_of(&params) },
        checks_indices: false,
        host: if is_pair { cpu::pair_kernel(unit) } else { cpu::kernel(unit) },
        code: Code::Kernel {
            kernel: (&CAT, bits(unit), is_pair.into()),
            grid: [first, 1, 1],
            block: [BLOCK, 1, 1],
            shared_bytes: 0,
        },
        location: Location::caller(),
    };
    // SAFETY: the parameters are those of contiguous inputs, of which each has its columns of the rows of
    // `out`; they reach no further, and the kernels take `Pair` where that is what there is, and otherwise `Cat`.
    unsafe { launch::run(target, &call) }
}
