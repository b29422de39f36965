//! Collation of samples to a batch.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use half::{bf16, f16};

use crate::{Error, Result, Tensor};

/// A sample that can be joined with other samples of its type (`default_collate`).
/// [`DataLoader::with_collate_fn`](crate::data::DataLoader::with_collate_fn) joins other samples.
#[diagnostic::on_unimplemented(
    message = "a `DataLoader` does not know how to join samples of type `{Self}` to a batch",
    label = "expected samples that are tensors, numbers, or tuples of up to eight of them",
    note = "implement `Collate` for the sample, or create the loader with `DataLoader::with_collate_fn`"
)]
pub trait Collate: Send + Sized + 'static {
    /// The type of a batch of these samples.
    type Batch: PinMemory + Send + 'static;

    /// Joins samples along a new first dimension.
    ///
    /// # Errors
    /// [`crate::ErrorKind::ShapeMismatch`] if the sizes of tensors differ.
    /// [`crate::ErrorKind::DeviceMismatch`] if their devices differ. Otherwise the same as
    /// [`stack`](crate::stack).
    fn collate(samples: Vec<Self>) -> Result<Self::Batch>;
}

/// A batch whose tensors can be moved to page-locked memory.
#[diagnostic::on_unimplemented(
    message = "a `DataLoader` cannot return batches of type `{Self}`",
    label = "expected tensors, numbers, strings, or tuples, arrays, maps, `Vec`s and `Option`s of them",
    note = "wrap a type of another crate in a struct of your own",
    note = "`impl PinMemory for Batch {{}}` is enough for a struct `Batch` whose tensors stay in ordinary memory"
)]
pub trait PinMemory: Sized {
    /// Copies the tensors to page-locked memory. Tensors that are in such memory already are not copied. Default:
    /// returns the batch unchanged, as PyTorch does with a type that has no method `pin_memory`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::CudaUnavailable`] if there is no GPU. [`crate::ErrorKind::CannotPin`] if a tensor is
    /// on a GPU. [`crate::ErrorKind::Alloc`] if there is no memory to lock.
    fn pin_memory(self) -> Result<Self> {
        Ok(self)
    }
}

impl Collate for Tensor {
    type Batch = Tensor;

    #[track_caller]
    fn collate(samples: Vec<Self>) -> Result<Tensor> {
        if let [first, others @ ..] = &samples[..]
            && let Some(other) = others.iter().find(|other| other.size() != first.size())
        {
            let reason = format!(
                "samples of sizes {:?} and {:?} cannot be joined to a batch; \
                 `DataLoader::with_collate_fn` can pad them first",
                first.size(),
                other.size()
            );
            return Err(Error::shape("DataLoader", reason));
        }
        Tensor::stack(&samples, 0)
    }
}

impl PinMemory for Tensor {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        Tensor::pin_memory(&self)
    }
}

impl<T: PinMemory> PinMemory for Vec<T> {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        let mut pinned = Self::with_capacity(self.len());
        for batch in self {
            pinned.push(batch.pin_memory()?);
        }
        Ok(pinned)
    }
}

impl<T: PinMemory, const N: usize> PinMemory for [T; N] {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        let mut pinned = self.map(Some);
        for place in &mut pinned {
            *place = place.take().pin_memory()?;
        }
        Ok(pinned.map(|batch| batch.expect("pinning keeps `Some`")))
    }
}

impl<T: PinMemory> PinMemory for Box<T> {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        Ok(Self::new((*self).pin_memory()?))
    }
}

impl<K: Eq + Hash, T: PinMemory, S: BuildHasher + Default> PinMemory for HashMap<K, T, S> {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        let mut pinned = Self::with_capacity_and_hasher(self.len(), S::default());
        for (key, batch) in self {
            pinned.insert(key, batch.pin_memory()?);
        }
        Ok(pinned)
    }
}

impl<K: Ord, T: PinMemory> PinMemory for BTreeMap<K, T> {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        let mut pinned = Self::new();
        for (key, batch) in self {
            pinned.insert(key, batch.pin_memory()?);
        }
        Ok(pinned)
    }
}

impl<T: PinMemory> PinMemory for Option<T> {
    #[track_caller]
    fn pin_memory(self) -> Result<Self> {
        match self {
            Some(batch) => Ok(Some(batch.pin_memory()?)),
            None => Ok(None),
        }
    }
}

macro_rules! without_tensors {
    ($($ty:ty)*) => {$(
        impl PinMemory for $ty {}
    )*};
}

without_tensors!(() bool u8 u16 u32 u64 usize i8 i16 i32 i64 isize f16 bf16 f32 f64 String &'static str);

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
collate_tuples!(A a, B b, C c, D d, E e);
collate_tuples!(A a, B b, C c, D d, E e, F f);
collate_tuples!(A a, B b, C c, D d, E e, F f, G g);
collate_tuples!(A a, B b, C c, D d, E e, F f, G g, H h);
