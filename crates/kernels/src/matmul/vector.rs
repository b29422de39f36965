//! Matrix-vector products on the CPU. They run at memory speed if each element of the matrix is
//! read once, in memory order, and all threads share the product. At that speed, sums in a wider type are free.

use std::slice::from_raw_parts;

use super::Product;
use super::sum::{PartialSum, Summed};
use crate::math::{Loop, vectorized};
use warpline_runtime::host::{self, GRAIN, HostElement, Number, SharedPtr};

/// Number of rows that are summed together if the matrix is column-major. The sums fit the level 1
/// cache, and memory is still read in long runs.
const BLOCK: usize = 1024;
/// Number of bytes of the vector that are read at a time. They fit the level 1 cache.
const VECTOR: usize = 16 << 10;

/// Bytes of a cache line. Loads of aligned vectors do not cross cache lines.
const LINE: usize = 64;

/// Partial sums per row: several vector registers, so that additions overlap. With fewer, compilers unroll the loop over
/// them and use no vectors for exact sums.
const LANES: usize = 32;

/// Minimum number of matrix elements per part, if the sums of rows are split because there are too few
/// rows for all threads.
const PART: usize = 1 << 15;

/// Maximum number of parts per row. The bound keeps the memory for partial sums independent of the
/// size of an expanded operand.
const PARTS: usize = 64;

/// The sums `Σ matrix[r][k] · vector[k]` of each batch. Steps are strides in elements.
#[derive(Clone, Copy)]
struct MatrixVector<T> {
    rows: usize,
    matrix: (SharedPtr<T>, [i64; 3]),
    vector: (SharedPtr<T>, [i64; 2]),
}

/// Returns the address of the element at the indices `at`.
fn at<T: Copy, const N: usize>((base, steps): (SharedPtr<T>, [i64; N]), at: [usize; N]) -> *mut T {
    let offset: i64 = at.iter().zip(steps).map(|(&i, step)| i as i64 * step).sum();
    base.at(offset as isize)
}

/// Returns whether one operand is a vector.
pub(super) fn is_matrix_vector(p: &Product) -> bool {
    p.m == 1 || p.n == 1
}

/// Computes a matrix-vector product of floats. Sizes and strides alone determine how sums are split,
/// so results are the same on any number of threads.
///
/// # Safety
/// The operands, of `T`, and the result, of `R`, are valid for the sizes and strides of `p`.
pub(super) unsafe fn floats<T, R>(
    parallel: bool,
    p: &Product,
    [a, b]: [SharedPtr<T>; 2],
    c: SharedPtr<R>,
) where
    T: Summed,
    R: HostElement<Compute = T::Compute>,
{
    let (batches, length) = (p.batch as usize, p.k as usize);
    let (product, result) = if p.n == 1 {
        let product = MatrixVector {
            rows: p.m as usize,
            matrix: (a, [p.a.batch, p.a.row, p.a.column]),
            vector: (b, [p.b.batch, p.b.row]),
        };
        (product, (c, [p.c.batch, p.c.row]))
    } else {
        // The transposed product is the product of the transposed operands in reverse order.
        let product = MatrixVector {
            rows: p.n as usize,
            matrix: (b, [p.b.batch, p.b.column, p.b.row]),
            vector: (a, [p.a.batch, p.a.column]),
        };
        (product, (c, [p.c.batch, p.c.column]))
    };
    let by_columns = product.matrix.1[1] == 1 && product.matrix.1[2] != 1 && product.rows > 1;
    // Rows per task.
    let rows = if by_columns { BLOCK } else { (GRAIN / length.max(1)).clamp(1, BLOCK) };
    let blocks = product.rows.div_ceil(rows);
    let few = batches * blocks < 16;
    let part = if few {
        (PART / rows.min(product.rows)).max(BLOCK).max(length.div_ceil(PARTS))
    } else {
        usize::MAX
    };
    let parts = length.div_ceil(part).max(1);
    let each = rows.min(product.rows) * length.div_ceil(parts);
    let grain = (GRAIN / each.max(1)).max(1);
    let zero = zero::<T>();
    let put = |sum: T::Sum| R::put(T::narrow(sum.value()));
    let mut partial = vec![zero; if parts > 1 { batches * parts * product.rows } else { 0 }];
    let partials = SharedPtr(partial.as_mut_ptr());
    host::parallel_for(parallel, batches * blocks * parts, grain, |tasks| {
        let mut sums = [zero; BLOCK];
        let size = size_of::<T::Wide>();
        let buffered = (VECTOR / size).min(length).min(part);
        let mut memory = vec![T::Wide::from_bits(0); buffered + LINE / size];
        let skipped = memory.as_ptr().align_offset(LINE).min(LINE / size);
        let vector = &mut memory[skipped..][..buffered];
        for task in tasks {
            let (batch, block, p) = (task / (blocks * parts), task / parts % blocks, task % parts);
            let (first, k) = (block * rows, p * part.min(length));
            let sums = &mut sums[..rows.min(product.rows - first)];
            sums.fill(zero);
            let length = part.min(length - k);
            let buffer = &mut vector[..];
            vectorized(Rows {
                product,
                batch,
                first,
                k,
                length,
                by_columns,
                sums: &mut *sums,
                buffer,
            });
            for (row, &sum) in (first..).zip(&*sums) {
                // SAFETY: the rows of the result, or the partial sums of this part, belong to this
                // task.
                unsafe {
                    if parts == 1 {
                        at(result, [batch, row]).write(put(sum));
                    } else {
                        partials.write(((batch * parts + p) * product.rows + row) as isize, sum);
                    }
                }
            }
        }
    });
    if parts > 1 {
        for index in 0..batches * product.rows {
            let (batch, row) = (index / product.rows, index % product.rows);
            let of_part = |p: usize| partial[(batch * parts + p) * product.rows + row];
            let sum = (1..parts).fold(of_part(0), |sum, p| sum.merge(of_part(p)));
            // SAFETY: `row` and `batch` are within the result, and this loop runs on one thread.
            unsafe { at(result, [batch, row]).write(put(sum)) };
        }
    }
}

/// Sums of rows over `length` elements from `k` on.
struct Rows<'a, T: Summed> {
    product: MatrixVector<T>,
    batch: usize,
    first: usize,
    k: usize,
    length: usize,
    by_columns: bool,
    sums: &'a mut [T::Sum],
    /// Buffer for elements of the vector.
    buffer: &'a mut [T::Wide],
}

impl<T: Summed> Loop for Rows<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { product, batch, first, k, length, by_columns, sums, buffer } = self;
        let most = buffer.len().max(1);
        for from in (k..k + length).step_by(most) {
            let vector = &mut buffer[..most.min(k + length - from)];
            let (start, step) = (at(product.vector, [batch, from]), product.vector.1[1] as isize);
            if step == 1 {
                // SAFETY: the vector has `vector.len()` adjacent elements from `start` on.
                let elements = unsafe { from_raw_parts(start, vector.len()) };
                vector.iter_mut().zip(elements).for_each(|(x, e)| *x = e.wide());
            } else {
                for (i, x) in vector.iter_mut().enumerate() {
                    // SAFETY: `i` is less than `vector.len()`, so the vector has this element.
                    *x = unsafe { start.offset(i as isize * step).read() }.wide();
                }
            }
            let start = at(product.matrix, [batch, first, from]);
            let [_, row, column] = product.matrix.1.map(|step| step as isize);
            // SAFETY: the matrix has a row from `first` on for each of `sums`, with an element for
            // each of `vector`.
            unsafe {
                if by_columns {
                    columns(start, column, vector, sums);
                } else {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let of = start.offset(r as isize * row);
                        *sum = sum.merge(if column == 1 {
                            dot(of, vector)
                        } else {
                            dot_strided(of, column, vector)
                        });
                    }
                }
            }
        }
    }
}

/// Returns the product of a row without gaps and the vector.
///
/// # Safety
/// `row` is valid for reads of as many elements as the vector has.
#[inline(always)]
unsafe fn dot<T: Summed>(row: *const T, vector: &[T::Wide]) -> T::Sum {
    let none = T::Wide::from_bits(0);
    // Sums and errors are in separate arrays, because compilers make no vectors of pairs.
    let (mut sums, mut errors) = ([none; LANES], [none; LANES]);
    let (chunks, rest) = vector.as_chunks::<LANES>();
    for (i, chunk) in chunks.iter().enumerate() {
        // SAFETY: a chunk has LANES elements, and the row has as many elements as the vector.
        let elements = unsafe { row.add(i * LANES).cast::<[T; LANES]>().read() };
        for j in 0..LANES {
            let (sum, error) = T::Sum::exact(sums[j], elements[j].wide().mul(chunk[j]));
            sums[j] = sum;
            errors[j] = errors[j].add(error);
        }
    }
    // If `total` received the address of the sums themselves, the loop would store them in each iteration.
    let done = std::array::from_fn(|j| T::Sum::new(sums[j], errors[j]));
    let mut rest_sum = zero::<T>();
    for (j, &x) in rest.iter().enumerate() {
        // SAFETY: `rest` follows the chunks, and the row has as many elements as the vector.
        let element = unsafe { row.add(chunks.len() * LANES + j).read() };
        rest_sum = rest_sum.merge(product(element, x));
    }
    total(&done).merge(rest_sum)
}

fn zero<T: Summed>() -> T::Sum {
    T::Sum::new(T::Wide::from_bits(0), T::Wide::from_bits(0))
}

/// Returns the product of two elements as a sum. The product of two `f32` is exact.
#[inline(always)]
fn product<T: Summed>(element: T, x: T::Wide) -> T::Sum {
    T::Sum::new(element.wide().mul(x), T::Wide::from_bits(0))
}

/// Adds up the partial sums. Not inlined: otherwise the compiler would arrange the partial sums for
/// this reduction, which makes the caller's loop several times slower.
#[inline(never)]
fn total<V, S: PartialSum<V>>(sums: &[S; LANES]) -> S {
    let mut sums = *sums;
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for j in 0..width {
            sums[j] = sums[j].merge(sums[j + width]);
        }
    }
    sums[0]
}

/// Returns the product of a row with gaps and the vector.
///
/// # Safety
/// `row` is valid for reads of as many elements as the vector has, `step` apart.
#[inline(always)]
unsafe fn dot_strided<T: Summed>(row: *const T, step: isize, vector: &[T::Wide]) -> T::Sum {
    // SAFETY: `j` is less than the length of the vector.
    let element = |j: usize| unsafe { row.offset(j as isize * step).read() };
    let add = |sum: T::Sum, (j, &x)| sum.merge(product(element(j), x));
    vector.iter().enumerate().fold(zero::<T>(), add)
}

/// Adds the products of columns and vector elements to the sums of the rows. The elements of a
/// column are adjacent.
///
/// # Safety
/// `start` is valid for reads of one column per element of the vector. Columns are `step` apart and
/// have one element per sum.
#[inline(always)]
unsafe fn columns<T: Summed>(
    start: *const T,
    step: isize,
    vector: &[T::Wide],
    sums: &mut [T::Sum],
) {
    // SAFETY: `k` is less than the length of the vector, and `r` is less than the number of sums.
    let get = |k: usize, r: usize| unsafe { start.offset(k as isize * step).add(r).read() };
    // Processes four columns at a time, so that sums are read and written once for them.
    let (fours, rest) = vector.as_chunks::<4>();
    for (i, x) in fours.iter().enumerate() {
        for (r, sum) in sums.iter_mut().enumerate() {
            let [a, b, c, d]: [T::Sum; 4] =
                std::array::from_fn(|j| product(get(4 * i + j, r), x[j]));
            *sum = sum.merge(a.merge(b).merge(c.merge(d)));
        }
    }
    for (k, &x) in (4 * fours.len()..).zip(rest) {
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = sum.merge(product(get(k, r), x));
        }
    }
}
