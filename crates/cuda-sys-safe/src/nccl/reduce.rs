//! Combining the inputs of ranks, on the host.

use half::{bf16, f16};

use crate::nccl::{NcclType, ReduceOp};

/// Combines the elements of all ranks on the host, in the order of ranks. Integers wrap, and their mean is truncated.
/// `f16` and `bf16` are combined in single precision and rounded once. Each input has the bytes of one rank's elements;
/// all inputs have the same size. The simulated NCCL computes its results with this function.
///
/// ```
/// use warpline_cuda_sys_safe::nccl::{NcclType, ReduceOp, reduce};
///
/// let ranks = [1.5f32.to_ne_bytes(), 2.0f32.to_ne_bytes()];
/// let sum = reduce(NcclType::F32, ReduceOp::Sum, &[&ranks[0], &ranks[1]]);
/// assert_eq!(sum, 3.5f32.to_ne_bytes());
/// ```
#[must_use]
pub fn reduce(dtype: NcclType, op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    match dtype {
        NcclType::I8 => integers::<i8, 1>(op, inputs),
        NcclType::U8 => integers::<u8, 1>(op, inputs),
        NcclType::I32 => integers::<i32, 4>(op, inputs),
        NcclType::U32 => integers::<u32, 4>(op, inputs),
        NcclType::I64 => integers::<i64, 8>(op, inputs),
        NcclType::U64 => integers::<u64, 8>(op, inputs),
        NcclType::F16 => floats::<f16, 2>(op, inputs),
        NcclType::BF16 => floats::<bf16, 2>(op, inputs),
        NcclType::F32 => floats::<f32, 4>(op, inputs),
        NcclType::F64 => floats::<f64, 8>(op, inputs),
    }
}

/// An element of `N` bytes.
trait NcclElement<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
}

/// An integer, which is combined as `i128`.
trait NcclInteger<const N: usize>: NcclElement<N> {
    fn wide(self) -> i128;
    /// Converts a wide integer to this type, with wrapping.
    fn wrap(wide: i128) -> Self;
}

/// A float, and the type in which it is combined.
trait NcclFloat<const N: usize>: NcclElement<N> {
    type Sum: Copy + PartialOrd;
    fn widen(self) -> Self::Sum;
    fn round(sum: Self::Sum) -> Self;
    fn combine(op: ReduceOp, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn divide(sum: Self::Sum, by: usize) -> Self::Sum;
}

macro_rules! elements {
    ($($ty:ty: $n:literal),*) => {$(
        impl NcclElement<$n> for $ty {
            fn read(bytes: [u8; $n]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            fn bytes(self) -> [u8; $n] {
                self.to_ne_bytes()
            }
        }
    )*};
}
elements!(i8: 1, u8: 1, i32: 4, u32: 4, i64: 8, u64: 8, f16: 2, bf16: 2, f32: 4, f64: 8);

macro_rules! integers {
    ($($ty:ty: $n:literal),*) => {$(
        impl NcclInteger<$n> for $ty {
            fn wide(self) -> i128 {
                self.into()
            }
            fn wrap(wide: i128) -> Self {
                wide as Self
            }
        }
    )*};
}
integers!(i8: 1, u8: 1, i32: 4, u32: 4, i64: 8, u64: 8);

macro_rules! floats {
    ($($ty:ty: $n:literal in $sum:ty, $widen:expr, $round:expr;)*) => {$(
        impl NcclFloat<$n> for $ty {
            type Sum = $sum;
            fn widen(self) -> $sum {
                $widen(self)
            }
            fn round(sum: $sum) -> Self {
                $round(sum)
            }
            fn combine(op: ReduceOp, a: $sum, b: $sum) -> $sum {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b,
                    ReduceOp::Product => a * b,
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                }
            }
            fn divide(sum: $sum, by: usize) -> $sum {
                sum / by as $sum
            }
        }
    )*};
}
floats! {
    f16: 2 in f32, f16::to_f32, f16::from_f32;
    bf16: 2 in f32, bf16::to_f32, bf16::from_f32;
    f32: 4 in f32, std::convert::identity, std::convert::identity;
    f64: 8 in f64, std::convert::identity, std::convert::identity;
}

fn integers<T: NcclInteger<N>, const N: usize>(op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    fold::<T, T, N>(
        inputs,
        |a| a,
        |a: T, b: T| {
            let (a, b) = (a.wide(), b.wide());
            T::wrap(match op {
                ReduceOp::Sum | ReduceOp::Avg => a + b,
                ReduceOp::Product => a.wrapping_mul(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
            })
        },
        |sum| match op {
            ReduceOp::Avg => T::wrap(sum.wide() / inputs.len() as i128),
            _ => sum,
        },
    )
}

fn floats<T: NcclFloat<N>, const N: usize>(op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    fold::<T, T::Sum, N>(
        inputs,
        T::widen,
        |a, b| T::combine(op, a, b),
        |sum| match op {
            ReduceOp::Avg => T::round(T::divide(sum, inputs.len())),
            _ => T::round(sum),
        },
    )
}

fn fold<T: NcclElement<N>, S: Copy, const N: usize>(
    inputs: &[&[u8]],
    begin: impl Fn(T) -> S,
    combine: impl Fn(S, S) -> S,
    end: impl Fn(S) -> T,
) -> Vec<u8> {
    let Some((first, rest)) = inputs.split_first() else { return Vec::new() };
    let elements =
        |bytes: &[u8]| -> Vec<T> { bytes.as_chunks().0.iter().map(|&b| T::read(b)).collect() };
    let mut sums: Vec<S> = elements(first).into_iter().map(&begin).collect();
    for input in rest {
        for (sum, element) in sums.iter_mut().zip(elements(input)) {
            *sum = combine(*sum, begin(element));
        }
    }
    sums.into_iter().flat_map(|sum| end(sum).bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<T: NcclElement<N>, const N: usize>(dtype: NcclType, op: ReduceOp, ranks: &[T]) -> T {
        let inputs: Vec<[u8; N]> = ranks.iter().map(|element| element.bytes()).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(|bytes| &bytes[..]).collect();
        let bytes = reduce(dtype, op, &inputs);
        T::read(bytes.try_into().unwrap())
    }

    #[test]
    fn integers_wrap_and_means_are_truncated() {
        use ReduceOp::*;
        assert_eq!(reduced(NcclType::I8, Sum, &[100i8, 100]), -56);
        assert_eq!(reduced(NcclType::U8, Product, &[16u8, 17]), 16);
        assert_eq!(reduced(NcclType::I32, Avg, &[-4i32, -3]), -3);
        assert_eq!(reduced(NcclType::U64, Max, &[u64::MAX, 1]), u64::MAX);
        assert_eq!(reduced(NcclType::U64, Sum, &[u64::MAX, 2]), 1);
        assert_eq!(reduced(NcclType::I64, Product, &[i64::MAX, i64::MAX, 3]), 3);
        assert_eq!(reduced(NcclType::U32, Min, &[7u32, 3, 5]), 3);
    }

    #[test]
    fn halves_are_summed_in_single_precision_in_the_order_of_ranks() {
        use ReduceOp::*;
        let h = f16::from_f32;
        // Rounding to half precision after each step would give 2048.
        assert_eq!(reduced(NcclType::F16, Sum, &[h(2048.0), h(1.0), h(1.0)]), h(2050.0));
        assert_eq!(
            reduced(NcclType::BF16, Avg, &[1.0, 2.0].map(bf16::from_f32)),
            bf16::from_f32(1.5)
        );
        assert_eq!(reduced(NcclType::F32, Sum, &[1e8f32, -1e8, 1.0]), 1.0);
        assert_eq!(reduced(NcclType::F32, Sum, &[1.0f32, 1e8, -1e8]), 0.0);
        assert_eq!(reduced(NcclType::F64, Avg, &[1.0f64, 2.0, 6.0]), 3.0);
    }
}
