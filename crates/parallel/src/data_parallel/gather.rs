//! Gathers the outputs of replicas on one device.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Once;

use warpline::autograd::{Context, Function, Gradients, ToSave};
use warpline::{Device, Error, Result, Tensor};
use warpline_runtime::resolve_dim;

use super::DataParallelError;

const SCALAR_WARNING: &str = "Was asked to gather along dimension 0, but all input tensors were scalars; \
                       will instead unsqueeze and return a vector.";

/// The destination of a gather: a device and a dimension.
#[derive(Clone, Copy, Debug)]
pub struct GatherTo {
    pub(super) device: Device,
    pub(super) dim: isize,
}

/// An output that can be gathered (`torch.nn.parallel.gather`). Tensors are concatenated along a dimension, on a GPU or
/// the CPU. Tuples, `Vec`s and maps are gathered element by element. `Option`s are gathered to `None` if the option of
/// the first replica is `None`.
pub trait Gather: Sized + Send + 'static {
    /// Gathers the outputs of the replicas, in order. `outputs` has at least one element.
    ///
    /// # Errors
    /// [`ErrorKind::DataParallel`](warpline::ErrorKind::DataParallel) with a [`DataParallelError`] as its source:
    /// [`DataParallelError::GatherFromCpu`] if a tensor is on the CPU, [`DataParallelError::GatherShapes`] if tensors
    /// differ in a size other than that of the dimension, [`DataParallelError::GatherStructure`] if lists, maps or
    /// options differ in structure. [`ErrorKind::DimOutOfRange`](warpline::ErrorKind::DimOutOfRange) if the tensors do
    /// not have the dimension; errors of [`Tensor::new_empty`] and [`Tensor::copy_`].
    fn gather(outputs: Vec<Self>, to: GatherTo) -> Result<Self>;
}

/// Tensors without dimensions become the elements of a vector, if the dimension is 0. A warning about this is given once
/// per process, through `tracing` or, without a subscriber, on stderr.
impl Gather for Tensor {
    #[track_caller]
    fn gather(mut outputs: Vec<Self>, to: GatherTo) -> Result<Self> {
        if let Some(replica) = outputs.iter().position(|output| !output.is_cuda()) {
            return Err(DataParallelError::GatherFromCpu { replica }.into());
        }
        if to.dim == 0 && outputs.iter().all(|output| output.dim() == 0) {
            // Warn once, because Python also shows a repeated warning only once.
            static WARNED: Once = Once::new();
            WARNED.call_once(|| warpline::__warn(SCALAR_WARNING));
            for output in &mut outputs {
                *output = output.view([1])?;
            }
        }
        let Some(first) = outputs.first() else { return Err(no_outputs_error()) };
        let dim = resolve_dim(to.dim, first.dim())?;
        let mut sizes = first.size().to_vec();
        sizes[dim] = 0;
        for (replica, output) in outputs.iter().enumerate() {
            let found = output.size();
            let fits = found.len() == sizes.len()
                && (0..sizes.len()).all(|d| d == dim || found[d] == first.size()[d]);
            if !fits {
                return Err(DataParallelError::GatherShapes {
                    replica,
                    found: found.to_vec(),
                    expected: first.size().to_vec(),
                    dim: to.dim,
                }
                .into());
            }
            sizes[dim] += found[dim];
        }
        let parts: Vec<&Tensor> = outputs.iter().collect();
        Ok(Concatenation { device: to.device, dim: dim as isize, sizes }
            .apply(&parts)?
            .swap_remove(0))
    }
}

/// The concatenation of tensors on one device. The backward pass splits the gradient and moves the parts to the devices
/// of the tensors.
struct Concatenation {
    device: Device,
    dim: isize,
    /// Shape of the result.
    sizes: Vec<usize>,
}

impl Function for Concatenation {
    const NAME: &'static str = "gather";

    fn forward(&self, _save: &mut ToSave, parts: &[&Tensor]) -> Result<Vec<Tensor>> {
        let joined = parts[0].new_empty(&self.sizes, self.device)?;
        // Enqueue the copies from other devices first, because they take longer than copies within a device. The host
        // waits only if the result is in host memory.
        for to_same_device in [false, true] {
            let mut start = 0;
            for part in parts {
                let length = part.size()[self.dim as usize];
                if (part.device() == self.device) == to_same_device {
                    let target = joined.narrow(self.dim, start as isize, length)?;
                    target.copy_(part, joined.is_cuda())?;
                }
                start += length;
            }
        }
        Ok(vec![joined])
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let [Some(grad)] = grads else { return Ok((0..context.inputs()).map(|_| None).collect()) };
        let mut start = 0;
        let mut part_grad = |i: usize| {
            let length = context.sizes(i)[self.dim as usize];
            let from = start as isize;
            start += length;
            let part = || grad.narrow(self.dim, from, length)?.to(context.device(i));
            context.needs(i).then(part).transpose()
        };
        (0..context.inputs()).map(&mut part_grad).collect()
    }
}

impl<T: Gather> Gather for Option<T> {
    #[track_caller]
    fn gather(outputs: Vec<Self>, to: GatherTo) -> Result<Self> {
        if matches!(outputs.first(), Some(None)) {
            return Ok(None);
        }
        let count = outputs.len();
        let outputs: Vec<T> = outputs.into_iter().flatten().collect();
        if outputs.len() < count {
            return Err(structure_error("replica 0 has an output and another has none".into()));
        }
        T::gather(outputs, to).map(Some)
    }
}

impl<T: Gather> Gather for Vec<T> {
    #[track_caller]
    fn gather(outputs: Vec<Self>, to: GatherTo) -> Result<Self> {
        let lengths: Vec<usize> = outputs.iter().map(Vec::len).collect();
        let length = lengths.first().copied().ok_or_else(no_outputs_error)?;
        if lengths.iter().any(|l| *l != length) {
            return Err(structure_error(format!("lists of lengths {lengths:?}")));
        }
        let mut outputs: Vec<_> = outputs.into_iter().map(Vec::into_iter).collect();
        let part = |_| T::gather(outputs.iter_mut().flat_map(Iterator::next).collect(), to);
        (0..length).map(part).collect()
    }
}

macro_rules! impl_gather_for_maps {
    ($($map:ident: $($key:path),*;)*) => {$(
        impl<K, V> Gather for $map<K, V>
        where
            K: Debug + Send + 'static $(+ $key)*,
            V: Gather,
        {
            #[track_caller]
            fn gather(outputs: Vec<Self>, to: GatherTo) -> Result<Self> {
                let mut outputs = outputs.into_iter();
                let first = outputs.next().ok_or_else(no_outputs_error)?;
                let mut others: Vec<Self> = outputs.collect();
                if others.iter().any(|other| other.len() != first.len()) {
                    return Err(structure_error("All dicts must have the same number of keys".into()));
                }
                let mut joined = Self::new();
                for (key, value) in first {
                    let mut parts = vec![value];
                    for other in &mut others {
                        let missing = || structure_error(format!("not all have the key {key:?}"));
                        parts.push(other.remove(&key).ok_or_else(missing)?);
                    }
                    joined.insert(key, V::gather(parts, to)?);
                }
                Ok(joined)
            }
        }
    )*};
}

impl_gather_for_maps! {
    HashMap: Eq, Hash;
    BTreeMap: Ord;
}

impl Gather for () {
    fn gather(_: Vec<Self>, _: GatherTo) -> Result<Self> {
        Ok(())
    }
}

macro_rules! impl_gather_for_tuples {
    ($(($($name:ident $value:ident),*);)*) => {$(
        impl<$($name: Gather),*> Gather for ($($name,)*) {
            #[track_caller]
            fn gather(outputs: Vec<Self>, to: GatherTo) -> Result<Self> {
                struct Parts<$($name),*> { $($value: Vec<$name>),* }
                let mut parts = Parts { $($value: Vec::with_capacity(outputs.len())),* };
                for ($($value,)*) in outputs {
                    $(parts.$value.push($value);)*
                }
                Ok(($($name::gather(parts.$value, to)?,)*))
            }
        }
    )*};
}

impl_gather_for_tuples! {
    (A a);
    (A a, B b);
    (A a, B b, C c);
    (A a, B b, C c, D d);
    (A a, B b, C c, D d, E e);
    (A a, B b, C c, D d, E e, F f);
}

#[track_caller]
fn structure_error(reason: String) -> Error {
    DataParallelError::GatherStructure { reason }.into()
}

#[track_caller]
fn no_outputs_error() -> Error {
    structure_error("there are no outputs".into())
}
