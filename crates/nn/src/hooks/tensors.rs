//! Inputs and outputs of modules as lists of tensors.

use warpline::{Result, Tensor};

/// A value that consists of tensors: a tensor, or an `Option`, `Vec`, array or tuple of such values. Numbers and
/// strings contain no tensors. The inputs and outputs of a [`Hooked`](crate::Hooked) module are of these types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an input or output of a module with hooks",
    label = "expected a tensor, or an `Option`, `Vec`, array or tuple of tensors",
    note = "a type of your own implements `warpline_nn::TensorTree`"
)]
pub trait TensorTree: Clone {
    /// Calls `f` for each tensor, in order, and returns the value with the results in their places.
    ///
    /// # Errors
    /// The first error of `f`.
    fn map_tensors(self, f: &mut dyn FnMut(Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl TensorTree for Tensor {
    fn map_tensors(self, f: &mut dyn FnMut(Tensor) -> Result<Tensor>) -> Result<Self> {
        f(self)
    }
}

impl<T: TensorTree> TensorTree for Option<T> {
    fn map_tensors(self, f: &mut dyn FnMut(Tensor) -> Result<Tensor>) -> Result<Self> {
        self.map(|value| value.map_tensors(f)).transpose()
    }
}

impl<T: TensorTree> TensorTree for Vec<T> {
    fn map_tensors(self, f: &mut dyn FnMut(Tensor) -> Result<Tensor>) -> Result<Self> {
        self.into_iter().map(|value| value.map_tensors(f)).collect()
    }
}

impl<T: TensorTree, const N: usize> TensorTree for [T; N] {
    fn map_tensors(mut self, f: &mut dyn FnMut(Tensor) -> Result<Tensor>) -> Result<Self> {
        for value in &mut self {
            *value = value.clone().map_tensors(f)?;
        }
        Ok(self)
    }
}

macro_rules! without_tensors {
    ($($ty:ty),*) => {$(
        impl TensorTree for $ty {
            fn map_tensors(self, _: &mut dyn FnMut(Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(self)
            }
        }
    )*};
}

without_tensors!((), bool, u8, i32, u32, i64, u64, isize, usize, f32, f64, String, &'static str);

macro_rules! tuples {
    ($($name:ident $i:tt),*) => {
        impl<$($name: TensorTree),*> TensorTree for ($($name,)*) {
            fn map_tensors(self, f: &mut dyn FnMut(Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(self.$i.map_tensors(f)?,)*))
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
