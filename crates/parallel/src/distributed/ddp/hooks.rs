//! Communication hooks: functions that reduce a bucket (`DistributedDataParallel.register_comm_hook`).

use std::sync::Arc;

use warpline::autograd::no_grad;
use warpline::{DType, Result, Tensor};

use super::super::{ProcessGroup, ReduceOp, Work};

/// A bucket of gradients whose reduction is due (`torch.distributed.GradBucket`).
#[allow(missing_debug_implementations)] // `Debug` of a tensor reads elements that may still be in flight
pub struct GradBucket {
    pub(super) group: ProcessGroup,
    pub(super) index: usize,
    pub(super) count: usize,
    pub(super) buffer: Tensor,
    pub(super) gradients: Vec<Tensor>,
    pub(super) parameters: Vec<Tensor>,
    pub(super) label: Arc<str>,
}

impl GradBucket {
    /// Returns the group of the ranks.
    #[must_use]
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Returns the number of the bucket. Buckets are reduced in ascending order.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns whether this is the last bucket of the iteration.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }

    /// Returns this rank's gradients as one flat tensor. They are not divided by the number of ranks.
    #[must_use]
    pub fn buffer(&self) -> &Tensor {
        &self.buffer
    }

    /// Returns views of the buffer: the gradient of each parameter.
    #[must_use]
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients
    }

    /// Returns the parameters, in the order of [`GradBucket::gradients`].
    #[must_use]
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// Reduces a tensor on the group's own stream, like [`ProcessGroup::all_reduce`] with `async_op`.
    ///
    /// # Errors
    /// Errors of [`ProcessGroup::all_reduce`], which name the bucket and its parameters.
    #[track_caller]
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Work> {
        self.group.all_reduce_labeled(tensor, op, &self.label)
    }
}

/// The outcome of a communication hook: a tensor with as many elements as the bucket's buffer. Once the work is done,
/// its elements become the gradients, converted to the dtype of the bucket.
#[allow(missing_debug_implementations)] // `Debug` of a tensor reads elements that may still be in flight
pub struct BucketReduction {
    pub(super) tensor: Tensor,
    pub(super) work: Option<Work>,
}

impl BucketReduction {
    /// Creates the outcome of a hook whose tensor is complete after `work`.
    #[must_use]
    pub fn after(work: Work, tensor: Tensor) -> Self {
        Self { tensor, work: Some(work) }
    }
}

/// The outcome of a hook whose tensor is complete after the earlier work on the current stream.
impl From<Tensor> for BucketReduction {
    fn from(tensor: Tensor) -> Self {
        Self { tensor, work: None }
    }
}

/// A communication hook.
pub(super) type CommHook = dyn Fn(&GradBucket) -> Result<BucketReduction> + Send + Sync;

/// Computes the mean over all ranks (`allreduce_hook`): divides by the number of ranks, then sums. Without a hook, the
/// buckets are reduced in the same way, except that [`JoinOptions`](super::JoinOptions) may select a smaller divisor.
///
/// # Errors
/// Errors of [`ProcessGroup::all_reduce`], which name the bucket and its parameters.
#[track_caller]
pub fn allreduce_hook(bucket: &GradBucket) -> Result<BucketReduction> {
    mean(bucket, bucket.buffer.clone(), bucket.group.world_size())
}

/// Computes the mean over all ranks in `bf16` (`bf16_compress_hook`), with half of the traffic of `f32`.
///
/// ```
/// use warpline::ones;
/// use warpline_nn::Linear;
/// use warpline_parallel::distributed::{DistributedDataParallel, ddp::bf16_compress_hook, spawn};
///
/// spawn(2, |group| {
///     let mut net = DistributedDataParallel::new(Linear::new(4, 2, ())?, group, ())?;
///     net.register_comm_hook(bf16_compress_hook);
///     net.forward(ones([3, 4], ())?)?.sum(())?.backward()
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// Errors of [`ProcessGroup::all_reduce`], which name the bucket and its parameters.
#[track_caller]
pub fn bf16_compress_hook(bucket: &GradBucket) -> Result<BucketReduction> {
    mean(bucket, bucket.buffer.to(DType::BF16)?, bucket.group.world_size())
}

/// Computes the mean over all ranks in `f16` (`fp16_compress_hook`), with half of the traffic of `f32`.
///
/// # Errors
/// Errors of [`ProcessGroup::all_reduce`], which name the bucket and its parameters.
#[track_caller]
pub fn fp16_compress_hook(bucket: &GradBucket) -> Result<BucketReduction> {
    mean(bucket, bucket.buffer.to(DType::F16)?, bucket.group.world_size())
}

/// Divides a tensor, then sums over all ranks. The division comes first, so that the sum does not overflow.
#[track_caller]
pub(super) fn mean(bucket: &GradBucket, tensor: Tensor, divisor: usize) -> Result<BucketReduction> {
    no_grad(|| tensor.div_(divisor as f64).map(drop))?;
    Ok(BucketReduction::after(bucket.all_reduce(&tensor, ReduceOp::Sum)?, tensor))
}
