//! Concatenation of tensors along a dimension. One launch takes up to eight tensors, because the
//! time for small tensors depends on the number of launches.

mod cpu;

use bytemuck::Zeroable;
use smallvec::SmallVec;
use warpline_runtime::iter::{BLOCK, magic};
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Error, ErrorKind, Operand, Result, Target, View, cuda_struct, hosts};

use crate::copy;
use crate::programs::{UNITS, by_unit, committed, test_sources};

const OP: &str = "cat";

pub(crate) const PROGRAMS: &[&Program] = &[&CAT];

/// Maximum number of tensors per launch.
#[doc(hidden)]
pub const SOURCES: usize = 8;
/// Bytes of the largest unit that is moved at once.
const WIDEST: usize = 16;

/// Variants by the size of the units that are moved.
static CAT: Program = Program::new("cat", UNITS, &["", "pair"], |_, unit| {
    let of =
        Source::new().with::<Cat>().with::<CatPair>().push(module::ELEMENT).push(module::SPACE);
    let of = of.push(&format!("#define SOURCES {SOURCES}\n#define BLOCK {BLOCK}"));
    of.push(include_str!("cat.cuh")).push(&format!("CAT({unit})"))
})
.with_ptx(committed);

macro_rules! cat {
    ($unit:ty, $variant:literal) => {
        Kernel::new(&CAT, "", hosts!(any cpu::cat::<$unit>).in_variant($variant))
    };
}

macro_rules! pair {
    ($unit:ty, $variant:literal) => {
        Kernel::new(&CAT, "pair", hosts!(any cpu::pair::<$unit>).in_variant($variant))
    };
}

// SAFETY: `join` makes all `Cat`s, with the sizes of the launch's operands. The sources are contiguous,
// and the result consists of columns of a contiguous tensor. All consist of whole units. Each source
// has its own columns of the result's rows, and each unit is written by one thread.
static CATS: [Kernel<Cat, { SOURCES + 1 }>; UNITS.len()] = unsafe { by_unit!(cat) };
// SAFETY: `join` makes each `CatPair` from the two parts of a `Cat` that fill the rows of the result.
// The operands are contiguous and consist of whole units, and each unit is written by one thread.
static PAIRS: [Kernel<CatPair, 3>; UNITS.len()] = unsafe { by_unit!(pair) };
test_sources!(CATS, PAIRS);

cuda_struct! {
    /// The position of a source's units in the result.
    struct Part {
        /// Number of the first block of the source.
        first: u32,
        numel: u32,
        /// Units per row of the source.
        columns: u32,
        /// Column of the result's rows at which the source begins.
        at: u32,
        /// Magic number and shift for the division by `columns` on a GPU.
        magic: u32,
        shift: u32,
    }
}

cuda_struct! {
    /// The parameters for up to [`SOURCES`] sources. Together, the sources have fewer than 2³¹
    /// units.
    struct Cat {
        /// Units per row of the result.
        pitch: u32,
        parts: [Part; SOURCES],
    }
}

cuda_struct! {
    /// The parameters for two sources that fill the rows of the result: the fields of their
    /// [`Part`]s that the kernel needs.
    struct CatPair {
        /// First block of the second source.
        first: u32,
        numel: [u32; 2],
        columns: [u32; 2],
        magic: [u32; 2],
        shift: [u32; 2],
    }
}

impl CatPair {
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

/// Concatenates tensors along dimension `dim` (`torch.cat`). In this dimension the size of `out` is
/// the sum of the inputs' sizes; all other sizes are equal. Inputs of other dtypes are converted to
/// the dtype of `out`, which can be any dtype.
///
/// # Errors
/// - [`ErrorKind::DimOutOfRange`] if `out` has no dimension `dim`.
/// - [`ErrorKind::ShapeMismatch`] if an input differs from `out` in the number of dimensions or in
///   a size other than that of `dim`, or if the inputs' sizes in `dim` do not add up to that of
///   `out`.
/// - [`ErrorKind::TooManyDims`] if an input and its part of `out` have more than 16 dimensions after merging, which
///   happens only if the input has to be converted, or if the input or `out` is not contiguous.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with an input.
/// - The errors of [`Kernel::launch`].
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
    let sizes = out.sizes();
    if dim >= sizes.len() {
        let (dim, ndim) = (dim as isize, sizes.len());
        return Err(ErrorKind::DimOutOfRange { dim, ndim }.of(OP));
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
    let reason = format!(
        "tensors of sizes {all:?}, joined along dimension {dim}, do not give a result of sizes \
         {sizes:?}"
    );
    Err(Error::shape(OP, reason))
}

/// Returns whether `join` can move the elements of an input without a conversion.
fn is_moved(input: View<'_>, out: View<'_>) -> bool {
    let is_counted = |view: View<'_>| view.numel() <= i32::MAX as usize;
    let is_plain = |view: View<'_>| view.layout.is_contiguous() && is_counted(view);
    input.dtype == out.dtype && is_plain(input) && is_plain(out)
}

/// Writes inputs, which fill the indices `begin..end` of dimension `dim`, to `out`.
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
        // Larger units gain nothing on the CPU: its implementation copies runs of elements with one
        // call.
        Target::Cpu(_) => 1,
    };
    while !fits(times) {
        times /= 2;
    }
    let unit = size * times;
    // Units per block, as `EACH` in the kernel defines it.
    let units_of_block = BLOCK * (WIDEST / unit).min(4) as u32;
    // All sizes fit 32 bits, because `is_moved` accepts only inputs and results of fewer than 2³¹
    // elements.
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
    let grid = Grid::new([first, 1, 1], BLOCK);
    let by_unit = unit.ilog2() as usize;
    // Most concatenations have two sources that fill the rows of the result.
    let [a, b, ..] = params.parts;
    if inputs.len() == 2 && a.columns + b.columns == params.pitch {
        let operands = [operands[0], operands[1], operands[SOURCES]];
        return PAIRS[by_unit].launch(target, OP, &operands, &CatPair::new([a, b]), grid);
    }
    CATS[by_unit].launch(target, OP, &operands, &params, grid)
}
