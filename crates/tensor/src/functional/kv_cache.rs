//! A cache of keys and values for decoding.

use warpline_kernels::kv_cache as kernel;

#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::refuse_gradient;
use crate::exec::check_together;
use crate::{CallScope, DType, Error, IntoShape, Result, Tensor, TensorOptions, zeros};

/// The keys and values of one attention layer at the positions so far, in memory for a fixed number of positions.
///
/// The length is a tensor on the cache's device, so a graph that was captured once appends at the next position in
/// each replay, and no method waits for the device. Each cache has a length of its own, which [`KvCache::append`]
/// advances in the launch that copies the keys and values. The layers of a model can therefore append in any order.
/// Work that needs the positions of a step, such as the choice of cosines for [`rotary_embedding`], must read the
/// length of a layer before that layer appends.
///
/// Positions from the length on hold zeros, unless a program has shortened the length. Attention over the whole
/// capacity must mask these positions: `arange(capacity) < length`, or [`KvCache::len`] as the option `key_lengths`. A
/// clone shares the memory.
///
/// PyTorch has no such type; its counterpart is `StaticCache` of `transformers`.
///
/// ```
/// use warpline::functional::KvCache;
/// use warpline::{DType, ones};
///
/// let cache = KvCache::new([1, 2, 16, 4], DType::F32)?;
/// let prompt = ones([1, 2, 5, 4], ())?;
/// cache.append(&prompt, &prompt)?;
/// let (k, v) = (ones([1, 2, 1, 4], ())?, ones([1, 2, 1, 4], ())?);
/// cache.append(&k, &v)?;
/// assert_eq!(cache.len().to_vec::<i64>()?, [6]);
/// assert_eq!(cache.keys().sum(())?.item::<f32>()?, 48.0);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// [`rotary_embedding`]: super::rotary_embedding
#[derive(Clone, Debug)]
pub struct KvCache {
    /// Keys and values, `[2, batch, heads, capacity, width]`.
    memory: Tensor,
    keys: Tensor,
    values: Tensor,
    /// The length, and a counter of the kernel.
    state: Tensor,
    len: Tensor,
}

impl KvCache {
    /// Creates an empty cache of `[batch, kv_heads, capacity, head_dim]`, whose memory holds zeros. Takes dtype and
    /// device as [`zeros`] does.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if there are not four sizes. Otherwise the same as [`zeros`].
    #[track_caller]
    pub fn new(sizes: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Self> {
        const OP: &str = "KvCache";
        let _call = CallScope::enter(OP);
        let sizes = sizes.into_shape();
        let &[batch, heads, capacity, width] = &sizes[..] else {
            let reason = format!(
                "expected four sizes (batch, heads, capacity, width), but got {:?}",
                &sizes[..]
            );
            return Err(Error::shape(OP, reason));
        };
        let memory = zeros([2, batch, heads, capacity, width], options)?;
        let state = memory.new_zeros([2], DType::I64)?;
        let (keys, values) = (memory.select(0, 0)?, memory.select(0, 1)?);
        let len = state.narrow(0, 0, 1)?;
        Ok(Self { memory, keys, values, state, len })
    }

    /// Copies keys and values of `[batch, kv_heads, n, head_dim]` to the `n` positions from the length on, and advances
    /// the length by `n`, in one launch. Keys and values are read with their strides. The cache has no gradient.
    ///
    /// If the length on the device leaves no room for `n` positions, the launch changes nothing and the failure is
    /// reported like an index out of range. On the CPU, this call returns the error. On a GPU, a later read or wait
    /// returns it, and so does each use of the cache until [`KvCache::reset`].
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if keys and values do not have the same four sizes, or differ from the cache in a
    /// size other than the number of positions. [`ErrorKind::InvalidArgument`] if `n`, the number of new positions, is
    /// more than the capacity. [`ErrorKind::DTypeMismatch`] if keys or values have a different dtype than the cache.
    /// [`ErrorKind::IndexCheck`] on the CPU if the length leaves no room for `n` positions. [`ErrorKind::Gradient`] if
    /// keys or values require a gradient. [`ErrorKind::OverlappingOperands`] if keys or values are views of the cache.
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn append(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        const OP: &str = "append";
        let _call = CallScope::enter(OP);
        refuse_gradient(OP, &[keys, values])?;
        check_together(OP, &self.keys, keys)?;
        check_together(OP, &self.keys, values)?;
        let (count, capacity) = (keys.size().get(2).copied().unwrap_or(0), self.keys.size()[2]);
        if count > capacity {
            let reason =
                format!("{count} positions do not fit into a cache of {capacity} positions");
            return Err(Error::invalid(OP, reason));
        }
        let cache = kernel::KvCache {
            keys: self.keys.as_view(),
            values: self.values.as_view(),
            state: self.state.as_view(),
        };
        let exec = self.keys.exec()?;
        kernel::append(exec.target(), OP, &cache, keys.as_view(), values.as_view())
    }

    /// Returns the keys, `[batch, kv_heads, capacity, head_dim]`: a view of the cache's memory.
    #[must_use]
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// Returns the values, `[batch, kv_heads, capacity, head_dim]`: a view of the cache's memory.
    #[must_use]
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Returns the number of positions, an `int64` tensor of shape `[1]` on the cache's device: a view of the memory
    /// that [`KvCache::append`] changes. A program may write it, for example to drop the last positions.
    #[must_use]
    pub fn len(&self) -> &Tensor {
        &self.len
    }

    /// Sets the length to 0, and all keys and values to zeros. Also makes the cache usable again
    /// after a failed [`KvCache::append`].
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        let _call = CallScope::enter("reset");
        self.memory.zero_()?;
        self.state.zero_()?;
        Ok(())
    }
}
