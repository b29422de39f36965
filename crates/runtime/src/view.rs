//! An op's view of a tensor: memory, layout and dtype.

use std::sync::LazyLock;

use warpline_cuda_sys_safe::Access;

use crate::overlap;
use crate::{DType, ErrorKind, Layout, Result, Sizes, Storage, Strides, checked_numel};

/// A borrowed tensor: the form in which all ops take tensors.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Storage of the elements.
    pub storage: &'a Storage,
    /// Positions of the elements in the storage.
    pub layout: &'a Layout,
    /// Type of the elements.
    pub dtype: DType,
}

impl<'a> View<'a> {
    /// Returns the size of each dimension.
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> &'a [usize] {
        self.layout.sizes()
    }

    /// Returns the stride of each dimension, in elements.
    #[inline]
    #[must_use]
    pub fn strides(&self) -> &'a [isize] {
        self.layout.strides()
    }

    /// Returns the number of elements.
    #[inline]
    #[must_use]
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// Returns an operand that is only read.
    #[inline]
    #[must_use]
    pub fn read(self) -> Operand<'a> {
        Operand { view: self, access: Access::Read }
    }

    /// Returns an operand whose elements are all overwritten.
    #[inline]
    #[must_use]
    pub fn write(self) -> Operand<'a> {
        Operand { view: self, access: Access::Write }
    }

    /// Returns an operand that is read and written.
    #[inline]
    #[must_use]
    pub fn read_write(self) -> Operand<'a> {
        Operand { view: self, access: Access::ReadWrite }
    }

    /// Returns an operand without elements, which is not accessed. Kernels still receive an
    /// address, for an argument that they do not use.
    #[must_use]
    pub fn untouched(self) -> Operand<'a> {
        static NOTHING: LazyLock<Layout> = LazyLock::new(|| {
            Layout::from_parts(Sizes::from_slice(&[0]), Strides::from_slice(&[1]), 0)
        });
        View { layout: &NOTHING, ..self }.read()
    }

    /// Returns an error for a view of a different dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if the view's dtype is not `expected`.
    #[track_caller]
    pub fn check_dtype(&self, op: &'static str, expected: DType) -> Result<()> {
        self.check_operand_dtype(op, "the tensor", expected)
    }

    /// Returns an error that names the operand, such as `the index`, for a view of a different dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if the view's dtype is not `expected`.
    #[track_caller]
    pub fn check_operand_dtype(
        &self,
        op: &'static str,
        operand: &'static str,
        expected: DType,
    ) -> Result<()> {
        if self.dtype == expected {
            return Ok(());
        }
        Err(ErrorKind::DTypeMismatch { operand, expected, actual: self.dtype }.of(op))
    }

    /// Checks that the layout lies inside the storage.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfStorage`] if the layout reaches outside the storage.
    #[track_caller]
    pub fn check_inside(&self, op: &'static str) -> Result<()> {
        if self.bytes_end().is_some_and(|end| end <= self.storage.bytes()) {
            return Ok(());
        }
        Err(ErrorKind::OutOfStorage {
            sizes: self.sizes().to_vec(),
            strides: self.strides().to_vec(),
            offset: self.layout.offset(),
            bytes: self.storage.bytes(),
        }
        .of(op))
    }

    /// Returns the number of bytes from the storage's start to the view's end. `None` if the view
    /// starts before the storage or the end overflows.
    fn bytes_end(&self) -> Option<usize> {
        let offset = isize::try_from(self.layout.offset()).ok()?;
        if self.sizes().contains(&0) {
            checked_numel(self.sizes()).ok()?;
            // The address of the first element is computed even for an empty view, so it must not
            // overflow.
            return self.layout.offset().checked_mul(self.dtype.size()).map(|_| 0);
        }
        let (mut low, mut high, mut numel) = (offset, offset, 1isize);
        for (&size, &stride) in self.sizes().iter().zip(self.strides()) {
            let size = isize::try_from(size).ok()?;
            numel = numel.checked_mul(size)?;
            let reach = (size - 1).checked_mul(stride)?;
            let end = if reach < 0 { &mut low } else { &mut high };
            *end = end.checked_add(reach)?;
        }
        if low < 0 { None } else { (high as usize + 1).checked_mul(self.dtype.size()) }
    }

    /// Checks that no two indices share an address. Otherwise, several threads of a launch could
    /// write to the address. Also rejects layouts for which this is hard to decide: slices and
    /// permutations of contiguous tensors are never rejected, but views with other strides may be,
    /// even if no indices share an address.
    ///
    /// # Errors
    /// [`ErrorKind::OverlappingWrite`] if indices share an address, or may share one.
    #[track_caller]
    pub fn check_writable(&self, op: &'static str) -> Result<()> {
        if overlap::may_overlap_itself(self.layout) {
            Err(ErrorKind::OverlappingWrite.of(op))
        } else {
            Ok(())
        }
    }
}

/// A view and its access.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The borrowed tensor.
    pub view: View<'a>,
    /// The launch's access to the tensor.
    pub access: Access,
}
