//! Buckets: flat buffers that each hold the gradients of several parameters.

use std::sync::Arc;

use warpline::autograd::Reclaimed;
use warpline::cuda::{self, Stream};
use warpline::{DType, Device, Result, Tensor, zeros};

use super::hooks::BucketReduction;

/// A parameter that requires a gradient.
#[derive(Clone)]
pub(super) struct NamedParameter {
    pub(super) name: String,
    pub(super) tensor: Tensor,
}

/// The properties of a tensor that determine its bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorSize {
    dtype: DType,
    device: Device,
    /// Size of all elements, in bytes.
    bytes: usize,
}

impl TensorSize {
    pub(super) fn of(tensor: &Tensor) -> Self {
        let bytes = tensor.numel() * tensor.element_size();
        Self { dtype: tensor.dtype(), device: tensor.device(), bytes }
    }
}

/// Assigns tensors to buckets (`compute_bucket_assignment_by_size`). `order` has the indices of the tensors in the
/// order in which they enter the buckets. Default: the order of `tensors`.
///
/// A bucket has tensors of one dtype and device. It is closed once its size reaches the capacity. The n-th bucket of a
/// dtype and device has the n-th of `capacities`; the last capacity applies to all further buckets. Buckets are sorted
/// by their smallest index or, if there is an `order`, by the time at which they were closed.
pub(super) fn assign_buckets(
    tensors: &[TensorSize],
    capacities: &[usize],
    order: Option<&[usize]>,
) -> Vec<Vec<usize>> {
    struct OpenBucket {
        key: (DType, Device),
        indices: Vec<usize>,
        bytes: usize,
        /// Number of closed buckets of this dtype and device.
        closed: usize,
    }
    let (mut open, mut buckets): (Vec<OpenBucket>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    for place in 0..tensors.len() {
        let index = order.map_or(place, |order| order[place]);
        let TensorSize { dtype, device, bytes } = tensors[index];
        let key = (dtype, device);
        let at = open.iter().position(|bucket| bucket.key == key).unwrap_or_else(|| {
            open.push(OpenBucket { key, indices: Vec::new(), bytes: 0, closed: 0 });
            open.len() - 1
        });
        let bucket = &mut open[at];
        bucket.indices.push(index);
        bucket.bytes += bytes;
        let capacity = capacities.get(bucket.closed).or(capacities.last());
        if bucket.bytes >= capacity.copied().unwrap_or(usize::MAX) {
            buckets.push(std::mem::take(&mut bucket.indices));
            bucket.bytes = 0;
            bucket.closed += 1;
        }
    }
    buckets.extend(open.into_iter().map(|bucket| bucket.indices).filter(|rest| !rest.is_empty()));
    if order.is_none() {
        buckets.sort_by_key(|bucket| bucket.iter().min().copied());
    }
    buckets
}

/// A flat buffer of gradients, which is reduced as a whole.
pub(super) struct Bucket {
    /// Indices of the parameters.
    pub(super) parameters: Vec<usize>,
    pub(super) buffer: Tensor,
    /// Views of `buffer`: the gradient of each parameter, with the parameter's sizes and strides.
    pub(super) views: Vec<Tensor>,
    /// Number of parameters whose gradients are not in the buffer yet.
    pub(super) pending: usize,
    /// The streams on which gradients were written to the buffer. The reduction waits for all of them.
    pub(super) streams: Vec<Stream>,
    /// The launched reduction.
    pub(super) reduction: Option<Reclaimed<BucketReduction>>,
    /// Description in errors: the number of the bucket and its parameters.
    pub(super) label: Arc<str>,
}

impl Bucket {
    fn new(parameters: Vec<usize>, all: &[NamedParameter], label: Arc<str>) -> Result<Self> {
        let tensors = || parameters.iter().map(|index| &all[*index].tensor);
        let count: usize = tensors().map(Tensor::numel).sum();
        let first = &all[parameters[0]].tensor;
        let buffer = zeros([count], (first.dtype(), first.device()))?;
        let mut start = 0;
        let views = tensors().map(|tensor| {
            // A gradient has the strides of its parameter, if the parameter is dense.
            let strides = match tensor.is_contiguous() {
                true => tensor.stride().to_vec(),
                false => tensor.detach().empty_like(())?.stride().to_vec(),
            };
            let view = buffer.as_strided(tensor.size(), &strides[..], start);
            start += tensor.numel();
            view
        });
        let views = views.collect::<Result<Vec<Tensor>>>()?;
        let (pending, streams) = (parameters.len(), Vec::new());
        Ok(Self { parameters, buffer, views, pending, streams, reduction: None, label })
    }

    /// Records that a gradient was written to the buffer on the current stream.
    pub(super) fn gradient_written(&mut self) -> Result<()> {
        self.pending -= 1;
        if self.buffer.is_cuda() {
            let stream = cuda::current_stream(self.buffer.device())?;
            if !self.streams.contains(&stream) {
                self.streams.push(stream);
            }
        }
        Ok(())
    }

    /// Makes the current stream wait for all streams that wrote gradients. Under `SyncPolicy::Manual`, nothing else
    /// orders the reduction after them.
    pub(super) fn wait_for_gradients(&mut self) -> Result<()> {
        let streams = std::mem::take(&mut self.streams);
        if streams.is_empty() {
            return Ok(());
        }
        let current = cuda::current_stream(self.buffer.device())?;
        streams.iter().try_for_each(|stream| current.wait_stream(stream))
    }
}

/// The index of a parameter's bucket, and the parameter's index in that bucket.
pub(super) type BucketPlace = (usize, usize);

/// Creates the buckets of an assignment. Also returns the place of each parameter.
pub(super) fn make_buckets(
    assignment: Vec<Vec<usize>>,
    all: &[NamedParameter],
) -> Result<(Vec<Bucket>, Vec<BucketPlace>)> {
    let (count, mut places) = (assignment.len(), vec![(0, 0); all.len()]);
    let mut buckets = Vec::with_capacity(count);
    for (number, parameters) in assignment.into_iter().enumerate() {
        for (place, &index) in parameters.iter().enumerate() {
            places[index] = (number, place);
        }
        let name = |index: Option<&usize>| index.map_or("", |index| &*all[*index].name);
        let (first, last) = (name(parameters.first()), name(parameters.last()));
        let names = match parameters.len() {
            1 => format!("of {first}"),
            length => format!("from {first} to {last}, {length} parameters"),
        };
        let label = format!("bucket {number} of {count}, gradients {names}");
        buckets.push(Bucket::new(parameters, all, label.into())?);
    }
    Ok((buckets, places))
}

/// Returns whether `grad` is the same memory as `view`, with the same strides.
pub(super) fn is_view(grad: &Tensor, view: &Tensor) -> bool {
    let place = |tensor: &Tensor| (tensor.storage_offset(), tensor.stride().to_vec());
    grad.storage().same_as(view.storage()) && place(grad) == place(view)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        model: String,
        shapes: Vec<Vec<usize>>,
        dtypes: Vec<String>,
        limits: Vec<usize>,
        buckets: Vec<Vec<usize>>,
    }

    fn size(dtype: DType, numel: usize) -> TensorSize {
        TensorSize { dtype, device: Device::Cpu, bytes: numel * dtype.size() }
    }

    #[test]
    fn buckets_are_those_of_pytorch() {
        let text = include_str!("../../../tests/goldens/buckets.json");
        let goldens: Vec<Golden> = serde_json::from_str(text).unwrap();
        assert!(goldens.len() >= 3);
        for golden in goldens {
            let sizes = golden.shapes.iter().zip(&golden.dtypes).map(|(shape, name)| {
                let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == name).unwrap();
                size(dtype, shape.iter().product())
            });
            let sizes: Vec<_> = sizes.collect();
            let found = assign_buckets(&sizes, &golden.limits, None);
            assert_eq!(found, golden.buckets, "{} with {:?}", golden.model, golden.limits);
        }
    }

    /// The pieces in which the constructor broadcasts parameters and buffers.
    #[test]
    fn a_piece_of_a_broadcast_ends_once_it_has_250_mib() {
        let mebibytes = |n: usize| size(DType::F32, n << 18);
        let all = [200, 49, 1, 250, 300, 1, 2].map(mebibytes);
        let pieces = assign_buckets(&all, &[super::super::sync::BROADCAST_PIECE], None);
        assert_eq!(pieces, [vec![0, 1, 2], vec![3], vec![4], vec![5, 6]]);
    }

    #[test]
    fn each_dtype_has_its_own_buckets_and_capacities() {
        let (f32, f64) = (|n| size(DType::F32, n), |n| size(DType::F64, n));
        let all = [f32(1), f64(1), f32(2), f64(2), f32(1), f64(1)];
        assert_eq!(
            assign_buckets(&all, &[12, 1], None),
            [vec![0, 2], vec![1, 3], vec![4], vec![5]]
        );
        // If an order of the parameters is given, buckets stay in the order in which they were closed.
        let order = [5, 4, 3, 2, 1, 0];
        assert_eq!(
            assign_buckets(&all, &[12], Some(&order)),
            [vec![5, 3], vec![4, 2], vec![1], vec![0]]
        );
        assert_eq!(assign_buckets(&all, &[usize::MAX], None), [vec![0, 2, 4], vec![1, 3, 5]]);
    }
}
