//! Splits inputs into one chunk per device. The chunks for the other devices are copied before the chunk for the first
//! device. The host does not wait for copies from page-locked memory or from a GPU. Chunks in host memory are copied
//! directly to their device.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use warpline::{DType, Device, Result, Scalar, Tensor};

/// The destination of a scatter: devices and a dimension.
#[derive(Clone, Copy, Debug)]
pub struct ScatterTo<'a> {
    pub(super) device_ids: &'a [usize],
    pub(super) dim: isize,
}

impl ScatterTo<'_> {
    /// Returns the number of devices, which is the maximum number of chunks.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.device_ids.len()
    }
}

/// An input that can be split between replicas (`torch.nn.parallel.scatter`). Tensors are split along a dimension into
/// chunks of size ⌈size / devices⌉; there may be fewer chunks than devices. Tuples, `Vec`s, `Option`s and maps are
/// split element by element. Numbers and text are passed to every replica, and so is an [`Arc`], by reference.
///
/// A struct can implement `Scatter` by way of a tuple:
///
/// ```
/// use warpline::{Result, Tensor};
/// use warpline_parallel::data_parallel::{Scatter, ScatterTo};
///
/// struct Batch { images: Tensor, scale: f64 }
///
/// impl Scatter for Batch {
///     fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
///         let pieces = (self.images, self.scale).scatter(to)?;
///         Ok(pieces.into_iter().map(|(images, scale)| Batch { images, scale }).collect())
///     }
/// }
/// ```
pub trait Scatter: Sized + Send + 'static {
    /// Returns the chunks in the order of the devices: at least one, and at most [`ScatterTo::devices`].
    ///
    /// # Errors
    /// Errors of [`Tensor::chunk`] and [`Tensor::to_non_blocking`].
    fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>>;
}

/// The host does not wait for copies from page-locked memory or from a GPU.
impl Scatter for Tensor {
    #[track_caller]
    fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
        let mut chunks = self.chunk(to.devices(), to.dim)?;
        // Copy the other chunks first, because the first device usually holds its chunk already.
        let others = chunks.iter_mut().zip(to.device_ids).skip(1);
        for (chunk, &device) in others {
            *chunk = chunk.to_non_blocking(Device::cuda(device))?;
        }
        if let (Some(chunk), Some(&device)) = (chunks.first_mut(), to.device_ids.first()) {
            *chunk = chunk.to_non_blocking(Device::cuda(device))?;
        }
        Ok(chunks)
    }
}

impl<T: Scatter + Clone> Scatter for Option<T> {
    #[track_caller]
    fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
        match self {
            Some(value) => Ok(value.scatter(to)?.into_iter().map(Some).collect()),
            None => Ok(vec![None; to.devices()]),
        }
    }
}

/// Adds a part to each chunk. Drops the chunks without a part.
fn add_parts<T, P>(
    chunks: &mut Option<Vec<T>>,
    parts: Vec<P>,
    new: impl Fn() -> T,
    put: impl Fn(&mut T, P),
) {
    let chunks = chunks.get_or_insert_with(|| parts.iter().map(|_| new()).collect());
    chunks.truncate(parts.len());
    for (chunk, part) in chunks.iter_mut().zip(parts) {
        put(chunk, part);
    }
}

impl<T: Scatter> Scatter for Vec<T> {
    #[track_caller]
    fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
        let mut chunks = None;
        for value in self {
            add_parts(&mut chunks, value.scatter(to)?, Vec::new, Vec::push);
        }
        Ok(chunks.unwrap_or_else(|| (0..to.devices()).map(|_| Vec::new()).collect()))
    }
}

macro_rules! impl_scatter_for_maps {
    ($($map:ident: $($key:path),*;)*) => {$(
        impl<K, V> Scatter for $map<K, V>
        where
            K: Clone + Send + 'static $(+ $key)*,
            V: Scatter,
        {
            #[track_caller]
            fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
                let mut chunks = None;
                for (key, value) in self {
                    let put = |chunk: &mut Self, part| drop(chunk.insert(key.clone(), part));
                    add_parts(&mut chunks, value.scatter(to)?, Self::new, put);
                }
                Ok(chunks.unwrap_or_else(|| (0..to.devices()).map(|_| Self::new()).collect()))
            }
        }
    )*};
}

impl_scatter_for_maps! {
    HashMap: Eq, Hash;
    BTreeMap: Ord;
}

macro_rules! impl_scatter_for_tuples {
    ($(($($name:ident $value:ident),*);)*) => {$(
        impl<$($name: Scatter),*> Scatter for ($($name,)*) {
            #[track_caller]
            fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
                let ($($value,)*) = self;
                $(let mut $value = $value.scatter(to)?.into_iter();)*
                // Like Python's `zip`, end with the shortest list.
                Ok(std::iter::from_fn(|| Some(($($value.next()?,)*))).collect())
            }
        }
    )*};
}

impl_scatter_for_tuples! {
    (A a);
    (A a, B b);
    (A a, B b, C c);
    (A a, B b, C c, D d);
    (A a, B b, C c, D d, E e);
    (A a, B b, C c, D d, E e, F f);
}

macro_rules! impl_scatter_by_clone {
    ($($type:ty),*) => {$(
        impl Scatter for $type {
            fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
                Ok(vec![self; to.devices()])
            }
        }
    )*};
}

impl_scatter_by_clone! {
    (), bool, char, u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64,
    String, &'static str, Scalar, DType, Device
}

/// Every replica gets the same reference.
impl<T: Send + Sync + 'static + ?Sized> Scatter for Arc<T> {
    fn scatter(self, to: ScatterTo<'_>) -> Result<Vec<Self>> {
        Ok(vec![self; to.devices()])
    }
}
