//! One tensor as an op sees it: bytes, layout, dtype.

use std::sync::LazyLock;

use warpline_cuda_sys_safe::Access;

use crate::overlap;
use crate::{DType, ErrorKind, Layout, Result, Sizes, Storage, Strides, checked_numel};

/// A borrowed tensor: what every op takes.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The memory.
    pub storage: &'a Storage,
    /// Where in it the elements lie.
    pub layout: &'a Layout,
    /// What they are.
    pub dtype: DType,
}

impl<'a> View<'a> {
    /// Sizes per dimension.
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> &'a [usize] {
        self.layout.sizes()
    }

    /// Strides per dimension, in elements.
    #[inline]
    #[must_use]
    pub fn strides(&self) -> &'a [isize] {
        self.layout.strides()
    }

    /// Number of elements.
    #[inline]
    #[must_use]
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// As an operand that is only read.
    #[inline]
    #[must_use]
    pub fn read(self) -> Operand<'a> {
        Operand { view: self, access: Access::Read }
    }

    /// As an operand of which every element is overwritten.
    #[inline]
    #[must_use]
    pub fn write(self) -> Operand<'a> {
        Operand { view: self, access: Access::Write }
    }

    /// As an operand that is read and written.
    #[inline]
    #[must_use]
    pub fn read_write(self) -> Operand<'a> {
        Operand { view: self, access: Access::ReadWrite }
    }

    /// As an operand that is not touched: none of its elements. Kernels that take a number in its place are
    /// given an address all the same.
    #[must_use]
    pub fn untouched(self) -> Operand<'a> {
        static NOTHING: LazyLock<Layout> = LazyLock::new(|| {
            Layout::from_parts(Sizes::from_slice(&[0]), Strides::from_slice(&[1]), 0)
        });
        View { layout: &NOTHING, ..self }.read()
    }

    /// Returns an error for a view of another dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if the view is not of `expected`.
    #[track_caller]
    pub fn check_dtype(&self, op: &'static str, expected: DType) -> Result<()> {
        if self.dtype == expected {
            return Ok(());
        }
        Err(ErrorKind::DTypeMismatch { expected, actual: self.dtype }.of(op))
    }

    /// Refuses a layout that reaches outside its storage.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfStorage`].
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

    /// Bytes from the storage's start to the view's end; `None` if it starts before that.
    fn bytes_end(&self) -> Option<usize> {
        let offset = isize::try_from(self.layout.offset()).ok()?;
        if self.sizes().contains(&0) {
            checked_numel(self.sizes()).ok()?;
            // Its address is still computed.
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

    /// Refuses to write where several indices share an address, as threads of one launch would
    /// then write it at once; and where that is hard to tell, as of no view of a plain tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OverlappingWrite`].
    #[track_caller]
    pub fn check_writable(&self, op: &'static str) -> Result<()> {
        if overlap::within(self.layout) { Err(ErrorKind::OverlappingWrite.of(op)) } else { Ok(()) }
    }
}

/// A view and what is done with it.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The tensor.
    pub view: View<'a>,
    /// What is done with it.
    pub access: Access,
}
