//! Samplers: the order of samples.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpline_runtime::SharedGenerator;
use warpline_runtime::generator::CpuGenerator;

#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Generator, Result, runtime};

/// A source of sample indices (`torch.utils.data.Sampler`). The indices may differ in each
/// iteration.
pub trait Sampler: Send + Sync + 'static {
    /// Returns the indices of the next iteration.
    fn indices(&self) -> Vec<usize>;

    /// Returns the number of indices.
    fn len(&self) -> usize;

    /// Returns whether there are no indices.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A shared sampler, whose settings the program can still change.
impl<S: Sampler + ?Sized> Sampler for Arc<S> {
    fn indices(&self) -> Vec<usize> {
        (**self).indices()
    }

    fn len(&self) -> usize {
        (**self).len()
    }
}

/// Draws a non-negative `int64` (`torch.empty((), dtype=torch.int64).random_()`). Without a generator, uses the
/// generator of the CPU.
pub(super) fn draw(generator: Option<&SharedGenerator<CpuGenerator>>) -> u64 {
    let generator = generator.cloned().unwrap_or_else(|| runtime().cpu_generator());
    generator.lock().random64() & i64::MAX as u64
}

/// Returns the numbers `0..n` in a random order.
fn permutation(n: usize, generator: &mut CpuGenerator) -> Vec<usize> {
    generator.permutation(n).into_iter().map(|index| index as usize).collect()
}

/// All samples in a random order (`torch.utils.data.RandomSampler`).
#[derive(Clone, Debug)]
pub struct RandomSampler {
    samples: usize,
    pub(super) generator: Option<SharedGenerator<CpuGenerator>>,
}

impl RandomSampler {
    /// Creates a sampler of `samples` samples. The seed of each iteration is drawn from the CPU's generator.
    #[must_use]
    pub fn new(samples: usize) -> Self {
        Self { samples, generator: None }
    }

    /// Sets the generator of the order, instead of the CPU's.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is a generator of a GPU.
    #[track_caller]
    pub fn generator(mut self, generator: &Generator) -> Result<Self> {
        self.generator = Some(generator.of_cpu("RandomSampler")?);
        Ok(self)
    }
}

impl Sampler for RandomSampler {
    fn indices(&self) -> Vec<usize> {
        match &self.generator {
            Some(generator) => {
                let mut generator = generator.lock();
                let order = permutation(self.samples, &mut generator);
                // PyTorch draws a second, unused permutation. Draw it as well, so that later draws are PyTorch's.
                generator.permutation(self.samples);
                order
            }
            None => permutation(self.samples, &mut CpuGenerator::new(draw(None))),
        }
    }

    fn len(&self) -> usize {
        self.samples
    }
}

/// One rank's share of the samples (`torch.utils.data.DistributedSampler`). All ranks have the same number
/// of samples. If the samples do not divide evenly, the first samples are used again; with
/// [`drop_last`](Self::drop_last), the last samples are left out.
///
/// ```
/// use std::sync::Arc;
/// use warpline::arange;
/// use warpline::data::{DataLoader, DistributedSampler, TensorDataset};
///
/// let (ranks, rank) = (2, 0);
/// let sampler = Arc::new(DistributedSampler::new(6, ranks, rank)?);
/// let data = TensorDataset::new(arange(6, ())?, arange(6, ())?)?;
/// let loader = DataLoader::new(data).batch_size(3)?.sampler(Arc::clone(&sampler));
/// for epoch in 0..2 {
///     sampler.set_epoch(epoch);
///     assert_eq!(loader.iter()?.count(), 1);
/// }
/// # Ok::<(), warpline::Error>(())
/// ```
pub struct DistributedSampler {
    samples: usize,
    replicas: usize,
    rank: usize,
    shuffle: bool,
    drop_last: bool,
    seed: u64,
    epoch: AtomicU64,
}

impl fmt::Debug for DistributedSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{} of {}", self.rank, self.replicas);
        f.debug_struct("DistributedSampler").field("rank", &part).finish_non_exhaustive()
    }
}

impl DistributedSampler {
    /// Creates the sampler for rank `rank`, one of `replicas` ranks. The order of samples is random and the same on all
    /// ranks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `rank` is not less than `replicas`.
    #[track_caller]
    pub fn new(samples: usize, replicas: usize, rank: usize) -> Result<Self> {
        if rank >= replicas {
            let reason = format!("rank {rank} is out of range for {replicas} replicas");
            return Err(Error::invalid("DistributedSampler", reason));
        }
        let epoch = AtomicU64::new(0);
        Ok(Self { samples, replicas, rank, shuffle: true, drop_last: false, seed: 0, epoch })
    }

    /// Sets whether the order is random. Default: `true`.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Sets whether the last samples are left out if the samples do not divide evenly, instead of using the
    /// first samples again. Default: `false`.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Sets the seed of the order. All ranks must use the same seed. Default: 0.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of the epoch, which selects the order. Call it before each iteration; otherwise each iteration
    /// has the same order.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }
}

impl Sampler for DistributedSampler {
    fn indices(&self) -> Vec<usize> {
        let order: Vec<usize> = if self.shuffle {
            let seed = self.seed.wrapping_add(self.epoch.load(Ordering::Relaxed));
            permutation(self.samples, &mut CpuGenerator::new(seed))
        } else {
            (0..self.samples).collect()
        };
        let total = self.len() * self.replicas;
        let mine = order.iter().cycle().take(total).skip(self.rank).step_by(self.replicas);
        mine.copied().collect()
    }

    fn len(&self) -> usize {
        if self.drop_last {
            self.samples / self.replicas
        } else {
            self.samples.div_ceil(self.replicas)
        }
    }
}
