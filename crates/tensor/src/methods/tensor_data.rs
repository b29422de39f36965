//! Values from which a tensor can be made: numbers, and nested arrays, slices and vectors of numbers.

use warpline_runtime::Sizes;

#[cfg(doc)]
use crate::ErrorKind;
use crate::{Element, Error, Result};

/// Numbers with a shape. The default dtype of the tensor is the type of the numbers: `1f32` gives `float32`. A
/// plain `1.0` is an `f64` in Rust, so add a suffix or request a dtype.
#[diagnostic::on_unimplemented(
    message = "a tensor cannot be made from `{Self}`",
    label = "expected numbers, or arrays, slices or `Vec`s of them, nested",
    note = "numbers are `bool`, `u8`, `i8` to `i64`, `f16`, `bf16`, `f32` and `f64`"
)]
pub trait TensorData {
    /// The type of the numbers.
    type Elem: Element;

    /// Returns the shape.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if rows differ in shape.
    fn sizes(&self) -> Result<Sizes>;

    /// Appends the numbers in row-major order.
    fn append_to(&self, out: &mut Vec<Self::Elem>);

    /// Appends the numbers of several items, in order.
    fn append_all(items: &[Self], out: &mut Vec<Self::Elem>)
    where
        Self: Sized,
    {
        for item in items {
            item.append_to(out);
        }
    }
}

macro_rules! scalars {
    ($($ty:ty),*) => {$(
        impl TensorData for $ty {
            type Elem = $ty;
            #[track_caller]
            fn sizes(&self) -> Result<Sizes> {
                Ok(Sizes::new())
            }
            fn append_to(&self, out: &mut Vec<$ty>) {
                out.push(*self);
            }
            fn append_all(items: &[$ty], out: &mut Vec<$ty>) {
                out.extend_from_slice(items);
            }
        }
    )*};
}

scalars!(bool, u8, i8, i16, i32, i64, half::f16, half::bf16, f32, f64);

impl<T: TensorData> TensorData for [T] {
    type Elem = T::Elem;

    #[track_caller]
    fn sizes(&self) -> Result<Sizes> {
        let mut sizes = Sizes::new();
        sizes.push(self.len());
        let Some((first, rest)) = self.split_first() else { return Ok(sizes) };
        let inner = first.sizes()?;
        // Numbers have no shape, so there is nothing to compare, and a loop over all of them would be slow.
        if !inner.is_empty() {
            for (i, row) in rest.iter().enumerate() {
                let other = row.sizes()?;
                if other != inner {
                    return Err(Error::shape(
                        "tensor",
                        format!("row {} has shape {other:?}, but the first has {inner:?}", i + 1),
                    ));
                }
            }
        }
        sizes.extend(inner);
        Ok(sizes)
    }

    fn append_to(&self, out: &mut Vec<T::Elem>) {
        T::append_all(self, out);
    }
}

impl<T: TensorData, const N: usize> TensorData for [T; N] {
    type Elem = T::Elem;

    #[track_caller]
    fn sizes(&self) -> Result<Sizes> {
        self.as_slice().sizes()
    }

    fn append_to(&self, out: &mut Vec<T::Elem>) {
        self.as_slice().append_to(out);
    }
}

impl<T: TensorData> TensorData for Vec<T> {
    type Elem = T::Elem;

    #[track_caller]
    fn sizes(&self) -> Result<Sizes> {
        self.as_slice().sizes()
    }

    fn append_to(&self, out: &mut Vec<T::Elem>) {
        self.as_slice().append_to(out);
    }
}

impl<T: TensorData + ?Sized> TensorData for &T {
    type Elem = T::Elem;

    #[track_caller]
    fn sizes(&self) -> Result<Sizes> {
        (**self).sizes()
    }

    fn append_to(&self, out: &mut Vec<T::Elem>) {
        (**self).append_to(out);
    }
}
