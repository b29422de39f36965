//! Collation of samples to a batch.

use crate::{Result, Tensor};

/// A sample that can be joined with other samples of its type (`default_collate`).
pub trait Collate: Send + Sized + 'static {
    /// The type of a batch of these samples.
    type Batch: PinMemory + Send + 'static;

    /// Joins samples along a new first dimension.
    ///
    /// # Errors
    /// [`crate::ErrorKind::ShapeMismatch`] if the shapes of tensors differ.
    /// [`crate::ErrorKind::DeviceMismatch`] if their devices differ. Otherwise the same as
    /// [`stack`](crate::stack).
    fn collate(samples: Vec<Self>) -> Result<Self::Batch>;
}

/// A batch whose tensors can be moved to page-locked memory.
pub trait PinMemory: Sized {
    /// Copies the tensors to page-locked memory. Tensors that are in such memory already are not copied.
    ///
    /// # Errors
    /// [`crate::ErrorKind::CudaUnavailable`] if there is no GPU. [`crate::ErrorKind::CannotPin`] if a tensor is
    /// on a GPU. [`crate::ErrorKind::Alloc`] if there is no memory to lock.
    fn pin_memory(self) -> Result<Self>;
}

impl Collate for Tensor {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>) -> Result<Tensor> {
        Tensor::stack(&samples, 0)
    }
}

impl PinMemory for Tensor {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        Tensor::pin_memory(&self)
    }
}

macro_rules! collate_numbers {
    ($($ty:ty)*) => {$(
        impl Collate for $ty {
            type Batch = Tensor;

            #[track_caller]
            fn collate(samples: Vec<Self>) -> Result<Tensor> {
                crate::tensor(samples, ())
            }
        }
    )*};
}

collate_numbers!(bool u8 i8 i16 i32 i64 f32 f64);

macro_rules! collate_tuples {
    ($($name:ident $samples:ident),+) => {
        impl<$($name: Collate),+> Collate for ($($name,)+) {
            type Batch = ($($name::Batch,)+);

            #[allow(non_snake_case)]
            #[track_caller]
            fn collate(samples: Vec<Self>) -> Result<Self::Batch> {
                $(let mut $samples = Vec::with_capacity(samples.len());)+
                for ($($name,)+) in samples {
                    $($samples.push($name);)+
                }
                Ok(($($name::collate($samples)?,)+))
            }
        }

        impl<$($name: PinMemory),+> PinMemory for ($($name,)+) {
            #[allow(non_snake_case)]
            #[track_caller]
            fn pin_memory(self) -> Result<Self> {
                let ($($name,)+) = self;
                Ok(($($name.pin_memory()?,)+))
            }
        }
    };
}

collate_tuples!(A a);
collate_tuples!(A a, B b);
collate_tuples!(A a, B b, C c);
collate_tuples!(A a, B b, C c, D d);
