//! In which order samples are taken.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use warpline_runtime::generator::CpuGenerator;

use crate::{Error, Generator, Result, runtime};

/// Indices of samples, anew for each iteration (`torch.utils.data.Sampler`).
pub trait Sampler: Send + Sync + 'static {
    /// The indices of the next iteration.
    fn indices(&self) -> Vec<usize>;

    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Draws an `int64` that is not negative (`torch.empty((), dtype=torch.int64).random_()`), from the CPU's generator where none
/// is given.
pub(super) fn draw(generator: Option<&Generator>) -> u64 {
    let next = |generator: &mut CpuGenerator| generator.random64() & i64::MAX as u64;
    match generator {
        Some(own) => next(&mut own.lock()),
        None => next(&mut runtime().cpu_generator()),
    }
}

/// The numbers up to `n` in a random order.
fn permutation(n: usize, generator: &mut CpuGenerator) -> Vec<usize> {
    generator.permutation(n).into_iter().map(|index| index as usize).collect()
}

/// All samples in a random order (`torch.utils.data.RandomSampler`).
#[derive(Clone, Debug)]
pub struct RandomSampler {
    samples: usize,
    generator: Option<Generator>,
}

impl RandomSampler {
    /// Of so many; each iteration's seed is drawn from the CPU's generator.
    #[must_use]
    pub fn new(samples: usize) -> Self {
        Self { samples, generator: None }
    }

    /// From a sequence of one's own.
    #[must_use]
    pub fn generator(mut self, generator: Generator) -> Self {
        self.generator = Some(generator);
        self
    }
}

impl Sampler for RandomSampler {
    fn indices(&self) -> Vec<usize> {
        match &self.generator {
            Some(generator) => {
                let mut generator = generator.lock();
                let order = permutation(self.samples, &mut generator);
                // PyTorch's draws another order, of which it takes none.
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

/// A rank's part of the samples (`torch.utils.data.DistributedSampler`): each rank has as many; the first are taken twice where
/// they do not divide.
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
    /// The part of `rank` of `replicas`, in a random order that all ranks have in common.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] of a rank that is none.
    #[track_caller]
    pub fn new(samples: usize, replicas: usize, rank: usize) -> Result<Self> {
        if rank >= replicas {
            let reason = format!("rank {rank} is none of {replicas}");
            return Err(Error::invalid("DistributedSampler", reason));
        }
        let epoch = AtomicU64::new(0);
        Ok(Self { samples, replicas, rank, shuffle: true, drop_last: false, seed: 0, epoch })
    }

    /// Whether the order is random.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Whether what does not divide is left out, instead of filled up.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// The seed of the order; the same on all ranks.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Which order comes next: to be called before each iteration, or all are the same.
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
