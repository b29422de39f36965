//! Samples of arguments: the same values on every device, in several layouts.

use std::ops::Range;

use warpline::{DType, Device, Result, Tensor, full};

/// The description of an argument.
#[derive(Clone, Debug)]
pub(super) struct Arg {
    sizes: Vec<usize>,
    fill: Fill,
}

#[derive(Clone, Debug)]
enum Fill {
    /// Numbers of the entry's dtype. Small float tensors have neither zeros nor equal elements.
    Plain,
    /// Numbers of the entry's dtype in a range, spread evenly.
    Within(Range<f64>),
    /// Numbers of the entry's dtype, in ascending order.
    Ascending,
    /// Indices of `int64`.
    Indices(Vec<i64>),
    /// Bools.
    Mask,
    /// Numbers of `float32`, for every dtype of the entry.
    Single,
}

/// Returns an argument with numbers of the entry's dtype. Small float tensors have neither zeros nor
/// equal elements.
pub(super) fn x(sizes: &[usize]) -> Arg {
    Arg { sizes: sizes.to_vec(), fill: Fill::Plain }
}

/// Returns an argument with positive numbers of the entry's dtype.
pub(super) fn positive(sizes: &[usize]) -> Arg {
    within(sizes, 0.3..2.0)
}

/// Returns an argument with numbers of the entry's dtype in a range.
pub(super) fn within(sizes: &[usize], range: Range<f64>) -> Arg {
    Arg { sizes: sizes.to_vec(), fill: Fill::Within(range) }
}

/// Returns an argument with numbers of the entry's dtype, in ascending order.
pub(super) fn ascending(sizes: &[usize]) -> Arg {
    Arg { sizes: sizes.to_vec(), fill: Fill::Ascending }
}

/// Indices of `int64`.
pub(super) fn indices(values: &[i64], sizes: &[usize]) -> Arg {
    Arg { sizes: sizes.to_vec(), fill: Fill::Indices(values.to_vec()) }
}

/// Bools.
pub(super) fn mask(sizes: &[usize]) -> Arg {
    Arg { sizes: sizes.to_vec(), fill: Fill::Mask }
}

/// Numbers of `float32`, for every dtype of the entry.
pub(super) fn single(sizes: &[usize]) -> Arg {
    Arg { sizes: sizes.to_vec(), fill: Fill::Single }
}

/// Returns samples with one argument each: plain numbers with these sizes.
pub(super) fn each(sizes: &[&[usize]]) -> Vec<Vec<Arg>> {
    sizes.iter().map(|sizes| vec![x(sizes)]).collect()
}

/// Layout of a sample tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Contiguous,
    /// The first dimension is the innermost.
    Transposed,
    /// Every second element along the last dimension of a larger tensor, beginning with the second.
    Strided,
    /// An expanded row: all rows are the same memory.
    Expanded,
}

impl Layout {
    pub(super) const ALL: [Layout; 4] =
        [Layout::Contiguous, Layout::Transposed, Layout::Strided, Layout::Expanded];
}

/// Makes the arguments of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maker {
    pub(super) dtype: DType,
    pub(super) device: Device,
    pub(super) layout: Layout,
}

impl Maker {
    pub(super) fn args(self, sample: &[Arg]) -> Result<Vec<Tensor>> {
        sample.iter().enumerate().map(|(k, arg)| arg.make(k, self)).collect()
    }

    /// Returns a tensor of plain numbers with the dtype, sizes and device of another tensor.
    pub(super) fn like(self, k: usize, tensor: &Tensor) -> Result<Tensor> {
        let (dtype, device) = (tensor.dtype(), tensor.device());
        x(tensor.size()).make(k, Self { dtype, device, ..self })
    }
}

impl Arg {
    /// Returns whether the argument has the entry's dtype.
    pub(super) fn is_numeric(&self) -> bool {
        matches!(self.fill, Fill::Plain | Fill::Within(_) | Fill::Ascending)
    }

    /// Returns whether the argument has indices.
    pub(super) fn is_index(&self) -> bool {
        matches!(self.fill, Fill::Indices(_))
    }

    /// Returns whether `layout` differs from the contiguous layout for this argument.
    pub(super) fn has(&self, layout: Layout) -> bool {
        match layout {
            Layout::Contiguous => false,
            Layout::Transposed => self.sizes.len() > 1,
            Layout::Strided => true,
            Layout::Expanded => self.is_numeric() && self.sizes.first().is_some_and(|&n| n > 1),
        }
    }

    /// Makes argument `k` of a sample.
    pub(super) fn make(&self, k: usize, maker: Maker) -> Result<Tensor> {
        let dtype = match self.fill {
            Fill::Plain | Fill::Within(_) | Fill::Ascending => maker.dtype,
            Fill::Indices(_) => DType::I64,
            Fill::Mask => DType::Bool,
            Fill::Single => DType::F32,
        };
        let layout = if self.has(maker.layout) { maker.layout } else { Layout::Contiguous };
        let count = self.sizes.iter().product();
        let values: Vec<f64> = (0..count).map(|i| self.value(k, i, dtype)).collect();
        let values = Tensor::from_vec(values, &self.sizes, (dtype, Device::Cpu))?;
        let last = self.sizes.len().saturating_sub(1);
        match layout {
            Layout::Contiguous => values.to(maker.device),
            Layout::Transposed => {
                let dims: Vec<isize> = (0..=last as isize).rev().collect();
                values.permute(&dims[..])?.contiguous()?.to(maker.device)?.permute(&dims[..])
            }
            Layout::Strided if self.sizes.is_empty() => {
                let base = full([3], 1, (dtype, Device::Cpu))?;
                base.select(0, 1)?.copy_(&values, ())?;
                base.to(maker.device)?.select(0, 1)
            }
            Layout::Strided => {
                let mut sizes = self.sizes.clone();
                sizes[last] = 2 * sizes[last] + 1;
                let base = full(&sizes, 1, (dtype, Device::Cpu))?;
                base.slice(last as isize, 1.., 2)?.copy_(&values, ())?;
                base.to(maker.device)?.slice(last as isize, 1.., 2)
            }
            Layout::Expanded => {
                let row = values.narrow(0, 0, 1)?.contiguous()?.to(maker.device)?;
                row.expand(&self.sizes)
            }
        }
    }

    fn value(&self, k: usize, i: usize, dtype: DType) -> f64 {
        match &self.fill {
            Fill::Mask => f64::from((i + k) % 3 != 1),
            Fill::Ascending if dtype == DType::Bool => f64::from(i > 0),
            Fill::Ascending if dtype == DType::U8 => i as f64,
            Fill::Ascending => i as f64 - 1.0,
            Fill::Indices(values) => values[i] as f64,
            Fill::Plain | Fill::Single => match dtype {
                DType::Bool => f64::from((i + k) % 3 != 1),
                DType::U8 => ((i * 7 + k * 3) % 23) as f64,
                _ if dtype.is_float() => (i as f64 * 0.7 + 0.1 + 0.8 * k as f64).sin() * 1.3,
                _ => ((i * 7 + k * 3) % 23) as f64 - 11.0,
            },
            Fill::Within(range) => {
                // The fractional parts of multiples of the golden ratio are evenly distributed.
                let fraction = 0.17 + 0.29 * k as f64 + 0.618_033_988_749_895 * i as f64;
                let value = range.start + (range.end - range.start) * fraction.fract();
                match dtype {
                    DType::Bool => f64::from(value.round() != 0.0),
                    DType::U8 => value.round().abs(),
                    _ if dtype.is_float() => value,
                    _ if range.start >= 0.0 => value.ceil(),
                    _ => value.round(),
                }
            }
        }
    }
}
