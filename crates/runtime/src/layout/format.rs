//! The order of dimensions in memory: memory formats, and the order of an op's result.

use smallvec::SmallVec;

use super::{Layout, Sizes, Strides, is_same};
#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result};

/// Order of a tensor's dimensions in memory (`torch.memory_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryFormat {
    /// `torch.contiguous_format`: row-major.
    Contiguous,
    /// `torch.channels_last`: for `N × C × H × W`, the channels are innermost.
    ChannelsLast,
    /// `torch.channels_last_3d`: for `N × C × D × H × W`, the channels are innermost.
    ChannelsLast3d,
    /// `torch.preserve_format`: the order of the input tensor.
    Preserve,
}

impl MemoryFormat {
    /// Returns the dimensions from the innermost out. `None` if the format is not defined for
    /// `ndim`.
    fn order(self, ndim: usize) -> Option<SmallVec<[usize; 6]>> {
        match (self, ndim) {
            (Self::Contiguous | Self::Preserve, _) => Some((0..ndim).rev().collect()),
            (Self::ChannelsLast, 4) => Some(SmallVec::from_slice(&[1, 3, 2, 0])),
            (Self::ChannelsLast3d, 5) => Some(SmallVec::from_slice(&[1, 4, 3, 2, 0])),
            _ => None,
        }
    }
}

impl Layout {
    /// Returns a dense layout with these sizes in a format. [`MemoryFormat::Preserve`] is row-major
    /// here, because there is no input tensor.
    ///
    /// # Errors
    /// - [`ErrorKind::SizeOverflow`] if the number of elements does not fit `isize`.
    /// - [`ErrorKind::InvalidArgument`] if the format is not defined for this number of dimensions.
    #[track_caller]
    pub fn in_format(sizes: &[usize], format: MemoryFormat) -> Result<Self> {
        let plain = Self::contiguous(sizes)?;
        match format.order(sizes.len()) {
            Some(_) if matches!(format, MemoryFormat::Contiguous | MemoryFormat::Preserve) => {
                Ok(plain)
            }
            Some(order) => Ok(Self::dense(sizes, &order)),
            None => {
                let needed = if format == MemoryFormat::ChannelsLast { 4 } else { 5 };
                let reason = format!("{format:?} needs {needed} dimensions, not {}", sizes.len());
                Err(Error::invalid("memory_format", reason))
            }
        }
    }

    /// Returns whether the elements lie one after the other in the format's order
    /// (`Tensor.is_contiguous(memory_format)`). For [`MemoryFormat::Preserve`], any dense order
    /// counts.
    #[must_use]
    pub fn is_contiguous_in(&self, format: MemoryFormat) -> bool {
        match format {
            MemoryFormat::Contiguous => self.is_contiguous(),
            MemoryFormat::Preserve => self.is_dense(),
            _ => format.order(self.ndim()).is_some_and(|order| self.follows(&order)),
        }
    }

    /// Returns whether the elements fill a range of memory, each address once, in any order.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        if self.is_contiguous() {
            return true;
        }
        let mut order: SmallVec<[usize; 6]> = (0..self.ndim()).rev().collect();
        order.sort_by_key(|&d| (self.sizes[d] > 1, self.strides[d]));
        self.follows(&order)
    }

    fn follows(&self, order: &[usize]) -> bool {
        let mut step = 1;
        order.iter().filter(|&&d| self.sizes[d] != 1).all(|&d| {
            let fits = self.strides[d] == step;
            step *= self.sizes[d] as isize;
            fits
        })
    }

    /// Returns the memory format that a convolution gives its result for an operand with this
    /// layout (`suggest_memory_format`): a channels-last format if the strides grow in its order,
    /// otherwise [`MemoryFormat::Contiguous`]. The layout may have gaps.
    #[must_use]
    pub fn suggested_format(&self) -> MemoryFormat {
        let last = match self.ndim() {
            4 => MemoryFormat::ChannelsLast,
            5 => MemoryFormat::ChannelsLast3d,
            _ => return MemoryFormat::Contiguous,
        };
        let mut least = 0;
        for &d in last.order(self.ndim()).iter().flatten() {
            let (size, stride) = (self.sizes[d], self.strides[d]);
            // As in PyTorch, the first dimension decides where both orders fit.
            let fits_both = d == 0 && least == self.strides[1];
            if size == 0 || stride < least || self.strides[1] == 0 || fits_both {
                return MemoryFormat::Contiguous;
            }
            least = stride * size.max(1) as isize;
        }
        last
    }

    /// Returns the layout of a new tensor in this tensor's format: with the same strides if this
    /// layout is dense, otherwise dense with the same order of dimensions.
    #[must_use]
    pub fn preserved(&self) -> Self {
        if self.is_dense() {
            return self.at_start();
        }
        Self::dense(&self.sizes, &self.by_stride())
    }

    /// Returns the layout of an elementwise op's result. The operands have the result's sizes. If all
    /// operands have the same strides and are dense, the result has these strides. If all operands
    /// are row-major, so is the result. Otherwise the strides of the operands order its dimensions:
    /// for two dimensions, the first operand that distinguishes them decides.
    #[must_use]
    pub fn of_result(operands: &[&Self]) -> Self {
        let Some((first, others)) = operands.split_first() else { return Self::dense(&[], &[]) };
        let alike = others.iter().all(|other| is_same(&other.strides, &first.strides));
        if alike && first.is_dense() {
            return first.at_start();
        }
        if operands.iter().all(|operand| operand.is_contiguous()) {
            let order: SmallVec<[usize; 6]> = (0..first.ndim()).rev().collect();
            return Self::dense(&first.sizes, &order);
        }
        Self::dense(&first.sizes, &order_of(&first.sizes, operands))
    }

    /// Returns the dimensions from the innermost out in memory. Dimensions of stride 0 keep their
    /// place.
    pub fn by_stride(&self) -> SmallVec<[usize; 6]> {
        order_of(&self.sizes, &[self])
    }

    /// Returns a dense layout with the dimensions in `order`, from the innermost out.
    fn dense(sizes: &[usize], order: &[usize]) -> Self {
        let mut strides: Strides = SmallVec::from_elem(1, sizes.len());
        let mut step = 1isize;
        for &d in order {
            strides[d] = step;
            step = step.saturating_mul(sizes[d].max(1) as isize);
        }
        Self { sizes: Sizes::from_slice(sizes), strides, offset: 0 }
    }
}

/// Returns the dimensions from the innermost out, sorted as in PyTorch's TensorIterator: by the
/// strides of the first operand that distinguishes two dimensions. A stride of 0 distinguishes
/// nothing.
fn order_of(sizes: &[usize], operands: &[&Layout]) -> SmallVec<[usize; 6]> {
    let mut order: SmallVec<[usize; 6]> = (0..sizes.len()).rev().collect();
    for i in 1..order.len() {
        let mut at = i;
        for before in (0..i).rev() {
            match goes_outside(sizes, operands, order[before], order[at]) {
                Some(true) => {
                    order.swap(before, at);
                    at = before;
                }
                Some(false) => break,
                None => {}
            }
        }
    }
    order
}

/// Returns whether dimension `a` lies outside of `b`. `None` if no operand distinguishes them.
fn goes_outside(sizes: &[usize], operands: &[&Layout], a: usize, b: usize) -> Option<bool> {
    for operand in operands {
        let [x, y] = [a, b].map(|d| operand.strides[d].unsigned_abs());
        if x == 0 || y == 0 {
            continue;
        }
        if x != y {
            return Some(x > y);
        }
        if sizes[a] > sizes[b] {
            return Some(true);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn layout(sizes: &[usize], strides: &[isize]) -> Layout {
        Layout::from_parts(sizes.into(), strides.into(), 0)
    }

    /// The expected formats are those of PyTorch's `suggest_memory_format`.
    #[test]
    fn convolutions_choose_the_format_as_in_pytorch() {
        use MemoryFormat::{ChannelsLast, ChannelsLast3d, Contiguous};
        let cases: [(&[usize], &[isize], MemoryFormat); 9] = [
            (&[2, 3, 4, 5], &[60, 20, 5, 1], Contiguous),
            (&[2, 3, 4, 5], &[60, 1, 15, 3], ChannelsLast),
            (&[2, 3, 4, 5], &[120, 1, 30, 6], ChannelsLast),
            (&[2, 3, 1, 1], &[3, 1, 1, 1], Contiguous),
            (&[2, 3, 1, 1], &[3, 1, 3, 3], ChannelsLast),
            (&[1, 1, 4, 5], &[20, 20, 5, 1], Contiguous),
            (&[2, 1, 4, 5], &[20, 1, 5, 1], ChannelsLast),
            (&[2, 0, 4, 5], &[20, 1, 5, 1], Contiguous),
            (&[2, 3, 2, 4, 5], &[120, 1, 60, 15, 3], ChannelsLast3d),
        ];
        for (sizes, strides, format) in cases {
            assert_eq!(layout(sizes, strides).suggested_format(), format, "{sizes:?} {strides:?}");
        }
        assert_eq!(layout(&[3, 4], &[1, 3]).suggested_format(), Contiguous);
    }

    /// The expected values are those of PyTorch's `empty`, `contiguous` and `is_contiguous`.
    #[test]
    fn channels_last_is_as_in_pytorch() {
        let last = Layout::in_format(&[2, 3, 4, 5], MemoryFormat::ChannelsLast).unwrap();
        assert_eq!(last.strides(), [60, 1, 15, 3]);
        assert!(last.is_contiguous_in(MemoryFormat::ChannelsLast) && !last.is_contiguous());
        assert!(last.is_dense());
        let last = Layout::in_format(&[2, 3, 4, 5, 6], MemoryFormat::ChannelsLast3d).unwrap();
        assert_eq!(last.strides(), [360, 1, 90, 18, 3]);
        // With one channel or one pixel, the layout is contiguous in both formats.
        let both = Layout::contiguous(&[2, 1, 4, 5]).unwrap();
        assert!(both.is_contiguous_in(MemoryFormat::ChannelsLast));
        assert!(Layout::in_format(&[2, 3], MemoryFormat::ChannelsLast).is_err());
        assert!(!Layout::contiguous(&[2, 3]).unwrap().is_contiguous_in(MemoryFormat::ChannelsLast));
    }

    #[test]
    fn dense_strides_are_preserved_and_other_layouts_keep_their_order() {
        let turned = layout(&[3, 4], &[1, 3]);
        assert_eq!(turned.preserved().strides(), [1, 3]);
        // Every second column of a transposed matrix is not dense.
        assert_eq!(layout(&[3, 4], &[2, 6]).preserved().strides(), [1, 3]);
        // An expanded row, as in `torch.empty(1, 4).expand(3, 4).clone()`.
        assert_eq!(layout(&[3, 4], &[0, 1]).preserved().strides(), [4, 1]);
        assert!(!layout(&[3, 4], &[0, 1]).is_dense() && !layout(&[2, 2], &[1, 1]).is_dense());
        let offset = Layout::from_parts(smallvec![2], smallvec![1], 7);
        assert_eq!(offset.preserved().offset(), 0);
    }

    /// The expected strides are those that `torch.add` returns for the same operands.
    #[test]
    fn results_take_the_order_of_their_operands() {
        let plain = Layout::contiguous(&[3, 4]).unwrap();
        let turned = layout(&[3, 4], &[1, 3]);
        assert_eq!(Layout::of_result(&[&turned]).strides(), [1, 3]);
        assert_eq!(Layout::of_result(&[&turned, &turned]).strides(), [1, 3]);
        assert_eq!(Layout::of_result(&[&plain, &turned]).strides(), [4, 1]);
        assert_eq!(Layout::of_result(&[&turned, &plain]).strides(), [1, 3]);
        // The broadcast row does not determine the order; the other operand does.
        assert_eq!(Layout::of_result(&[&layout(&[3, 4], &[0, 1]), &turned]).strides(), [1, 3]);
        assert_eq!(Layout::of_result(&[&layout(&[3, 4], &[0, 0])]).strides(), [4, 1]);
    }

    #[test]
    fn layouts_without_elements_are_contiguous() {
        let columns = Layout::contiguous(&[3, 4]).unwrap().transpose(0, 1).unwrap();
        assert!(!columns.is_contiguous());
        assert!(columns.narrow(0, 0, 0).unwrap().is_contiguous());
        assert!(columns.narrow(1, 0, 0).unwrap().is_contiguous());
        // The nonzero sizes overflow `isize`, which only a layout made from parts can have.
        let large = Layout::from_parts(smallvec![0, 1 << 62, 4], smallvec![4, 4, 1], 0);
        assert!(large.is_contiguous());
    }
}
