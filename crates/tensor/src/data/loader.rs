//! The data loader: order, batches, worker threads, page-locked memory.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use warpline_runtime::generator::CpuGenerator;
use warpline_runtime::{ChosenGenerators, Runtime, SharedGenerator};
use warpline_stream::CheckOwner;
use warpline_sync::CaughtPanic;

use super::sampler::draw;
use super::{Collate, Dataset, PinMemory, RandomSampler, Sampler};
#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::Modes;
use crate::{Error, Generator, Result, runtime, with_runtime};

/// Iterates over a dataset in batches (`torch.utils.data.DataLoader`).
///
/// Workers are threads. Batches are returned in order, even if a worker is slow. Each worker loads at most
/// `prefetch_factor` batches ahead.
///
/// ```
/// use warpline::data::{DataLoader, TensorDataset};
///
/// # fn main() -> warpline::Result<()> {
/// let inputs = warpline::arange(10, ())?.reshape([10, 1])?;
/// let targets = warpline::zeros([10], ())?;
/// let loader = DataLoader::new(TensorDataset::new(inputs, targets)?).batch_size(4)?;
/// let sizes: Vec<usize> = loader.iter()?.map(|b| Ok(b?.0.size()[0])).collect::<warpline::Result<_>>()?;
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok(())
/// # }
/// ```
pub struct DataLoader<D: Dataset, B = <<D as Dataset>::Sample as Collate>::Batch> {
    dataset: Arc<D>,
    collate: CollateFn<D, B>,
    batch_size: usize,
    shuffle: bool,
    sampler: Option<Box<dyn Sampler>>,
    generator: Option<SharedGenerator<CpuGenerator>>,
    drop_last: bool,
    num_workers: usize,
    prefetch_factor: usize,
    pin_memory: bool,
}

/// Joins the samples of a batch.
type CollateFn<D, B> = Arc<dyn Fn(Vec<<D as Dataset>::Sample>) -> Result<B> + Send + Sync>;

impl<D: Dataset + fmt::Debug, B> fmt::Debug for DataLoader<D, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("dataset", &self.dataset)
            .field("batch_size", &self.batch_size)
            .field("shuffle", &self.shuffle)
            .finish_non_exhaustive()
    }
}

impl<D: Dataset<Sample: Collate>> DataLoader<D> {
    /// Creates a loader that returns batches of one sample, in order, and loads them in the iterating thread.
    #[expect(
        clippy::redundant_closure,
        reason = "errors of a path as a function would have a line of the standard library"
    )]
    pub fn new(dataset: D) -> Self {
        Self::with_collate_fn(dataset, |samples| Collate::collate(samples))
    }
}

impl<D: Dataset, B: PinMemory + Send + 'static> DataLoader<D, B> {
    /// Creates a loader, as `new` does, that joins the samples of a batch with `collate` (`collate_fn`). The samples can
    /// have any type and any sizes. Workers call `collate` in their threads.
    ///
    /// ```
    /// use warpline::data::{DataLoader, Dataset};
    /// use warpline::functional::pad;
    /// use warpline::{Result, Tensor, arange, stack};
    ///
    /// /// Sequences of 1 to 6 numbers.
    /// struct Sequences;
    ///
    /// impl Dataset for Sequences {
    ///     type Sample = Tensor;
    ///
    ///     fn len(&self) -> usize {
    ///         6
    ///     }
    ///
    ///     fn get(&self, index: usize) -> Result<Tensor> {
    ///         arange(index + 1, ())
    ///     }
    /// }
    ///
    /// // Pads the sequences to the longest of them, and keeps their lengths.
    /// let loader = DataLoader::with_collate_fn(Sequences, |sequences| {
    ///     let lengths: Vec<usize> = sequences.iter().map(Tensor::numel).collect();
    ///     let longest = lengths.iter().max().copied().unwrap_or(0);
    ///     let padded = sequences.iter().map(|s| pad(s, (0, longest - s.numel()), ()));
    ///     Ok((stack(&padded.collect::<Result<Vec<_>>>()?, 0)?, lengths))
    /// });
    /// let mut batches = loader.batch_size(4)?.iter()?;
    /// let (batch, lengths) = batches.next().expect("two batches")?;
    /// assert_eq!((batch.size(), &lengths[..]), (&[4, 4][..], &[1, 2, 3, 4][..]));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    pub fn with_collate_fn(
        dataset: D,
        collate: impl Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    ) -> Self {
        Self {
            dataset: Arc::new(dataset),
            collate: Arc::new(collate),
            batch_size: 1,
            shuffle: false,
            sampler: None,
            generator: None,
            drop_last: false,
            num_workers: 0,
            prefetch_factor: 2,
            pin_memory: false,
        }
    }

    /// Sets the number of samples per batch. Default: 1.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `batch_size` is zero.
    #[track_caller]
    pub fn batch_size(mut self, batch_size: usize) -> Result<Self> {
        if batch_size == 0 {
            return Err(Error::invalid("DataLoader", "batch_size must be greater than 0"));
        }
        self.batch_size = batch_size;
        Ok(self)
    }

    /// Sets whether each iteration uses a new random order. Its seed comes from the CPU's generator, and the
    /// order is PyTorch's. Default: `false`.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Sets a sampler that selects the samples, instead of `shuffle`. Default: none.
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.sampler = Some(Box::new(sampler));
        self
    }

    /// Sets the generator of random orders and seeds, instead of the CPU's. Default: none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is a generator of a GPU.
    #[track_caller]
    pub fn generator(mut self, generator: &Generator) -> Result<Self> {
        self.generator = Some(generator.of_cpu("DataLoader")?);
        Ok(self)
    }

    /// Sets whether a last batch that is not full is dropped. Default: `false`.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Sets the number of worker threads. Default: 0, which loads in the iterating thread.
    ///
    /// Each iteration draws a base seed, as in PyTorch. Worker `i` has its own generators, for the CPU and each
    /// device, with the base seed plus `i`. So the random values of a sample depend on the seed and on the
    /// number of workers, but not on the workers' speed. No worker advances the program's generators.
    ///
    /// A forked child does not have the workers of its parent, so an iteration that began in the parent returns an error
    /// there.
    #[must_use]
    pub fn num_workers(mut self, num_workers: usize) -> Self {
        self.num_workers = num_workers;
        self
    }

    /// Sets the number of batches that each worker loads ahead, at least 1. Default: 2.
    #[must_use]
    pub fn prefetch_factor(mut self, prefetch_factor: usize) -> Self {
        self.prefetch_factor = prefetch_factor.max(1);
        self
    }

    /// Sets whether batches are returned in page-locked memory. [`to_non_blocking`](crate::Tensor::to_non_blocking)
    /// copies them asynchronously from there. Default: `false`.
    #[must_use]
    pub fn pin_memory(mut self, pin_memory: bool) -> Self {
        self.pin_memory = pin_memory;
        self
    }

    /// Returns the dataset (`loader.dataset`).
    ///
    /// ```
    /// use warpline::data::{DataLoader, Dataset, TensorDataset};
    ///
    /// let (inputs, targets) = (warpline::zeros([10, 2], ())?, warpline::zeros([10], ())?);
    /// let loader = DataLoader::new(TensorDataset::new(inputs, targets)?).batch_size(4)?;
    /// assert_eq!((loader.dataset().len(), loader.len()), (10, 3));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    #[must_use]
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// Returns the number of batches in an iteration.
    #[must_use]
    pub fn len(&self) -> usize {
        let n = self.sampler.as_ref().map_or(self.dataset.len(), |sampler| sampler.len());
        if self.drop_last { n / self.batch_size } else { n.div_ceil(self.batch_size) }
    }

    /// Returns whether an iteration has no batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts an iteration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the sampler returns an index beyond the dataset, or a worker thread
    /// cannot be started.
    #[track_caller]
    pub fn iter(&self) -> Result<Batches<D, B>> {
        self.iter_from(0)
    }

    /// Starts an iteration at batch number `first`. Earlier batches are not loaded. A stopped program can
    /// continue an iteration: give the loader a generator in the state that it had when that iteration began.
    ///
    /// # Errors
    /// The same as [`DataLoader::iter`].
    #[track_caller]
    pub fn iter_from(&self, first: usize) -> Result<Batches<D, B>> {
        let n = self.dataset.len();
        // Draws a seed even without workers, as PyTorch does, so that later draws are the same.
        let seed = draw(self.generator.as_ref());
        let order = match &self.sampler {
            Some(sampler) => Some(sampler.indices()),
            None if self.shuffle => {
                let mut sampler = RandomSampler::new(n);
                sampler.generator.clone_from(&self.generator);
                Some(sampler.indices())
            }
            None => None,
        };
        if let Some(index) = order.iter().flatten().find(|index| **index >= n) {
            let reason = format!("the sampler gives the index {index}, but there are {n} samples");
            return Err(Error::invalid("DataLoader", reason));
        }
        let n = order.as_ref().map_or(n, Vec::len);
        let job = Arc::new(LoadJob {
            dataset: Arc::clone(&self.dataset),
            collate: Arc::clone(&self.collate),
            order,
            samples: n,
            batch_size: self.batch_size,
            batches: self.len(),
            pin_memory: self.pin_memory,
            runtime: runtime(),
        });
        let first = first.min(job.batches);
        let left = job.batches - first;
        let ahead = self.prefetch_factor.min(left);
        let mut workers = Vec::new();
        for worker in 0..self.num_workers.min(left) {
            let seed = seed.wrapping_add(worker as u64);
            workers.push(LoaderWorker::start(
                &job,
                first + worker,
                self.num_workers,
                (ahead, seed),
            )?);
        }
        Ok(Batches { job, workers, first, next: first })
    }
}

struct LoadJob<D: Dataset, B> {
    dataset: Arc<D>,
    collate: CollateFn<D, B>,
    /// The order of the samples; `None`: the order of the dataset.
    order: Option<Vec<usize>>,
    samples: usize,
    batch_size: usize,
    batches: usize,
    pin_memory: bool,
    runtime: Runtime,
}

impl<D: Dataset, B: PinMemory> LoadJob<D, B> {
    /// Loads a batch. If collating or pinning fails with an error that is located in this file, the error gets
    /// `location` instead, because `#[track_caller]` does not work through threads and closures. Errors of a
    /// user-defined dataset or collation keep their own locations.
    fn load(&self, batch: usize, location: &'static Location<'static>) -> Result<B> {
        let start = batch * self.batch_size;
        let end = start.saturating_add(self.batch_size).min(self.samples);
        let index = |i: usize| self.order.as_ref().map_or(i, |order| order[i]);
        let samples: Result<Vec<_>> = (start..end).map(|i| self.dataset.get(index(i))).collect();
        let batch = samples.and_then(|samples| {
            let batch = (self.collate)(samples)?;
            if self.pin_memory { batch.pin_memory() } else { Ok(batch) }
        });
        batch.map_err(|error| match error.location() {
            Some(at) if at.file() == file!() => error.at(location),
            _ => error,
        })
    }
}

/// A thread that loads batches `first`, `first + step`, and so on. Its random ops use a separate seed.
#[derive(Debug)]
struct LoaderWorker<B> {
    batches: Option<Receiver<Result<B>>>,
    thread: Option<JoinHandle<()>>,
    /// Identifier of the process in which the thread runs. A forked child does not have the thread.
    process: u32,
}

impl<B: PinMemory + Send + 'static> LoaderWorker<B> {
    #[track_caller]
    fn start<D: Dataset>(
        job: &Arc<LoadJob<D, B>>,
        first: usize,
        step: usize,
        (ahead, seed): (usize, u64),
    ) -> Result<Self> {
        let location = Location::caller();
        // A worker holds one finished batch while the channel is full.
        let (sender, receiver) = sync_channel(ahead.saturating_sub(1));
        let (job, runtime) = (Arc::clone(job), job.runtime.clone());
        let (modes, owner) = (Modes::current(), CheckOwner::current());
        let work = move || {
            for batch in (first..job.batches).step_by(step) {
                // Sending fails once the iterator is dropped.
                if sender.send(job.load(batch, location)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("loader-{first}")).spawn(move || {
            with_runtime(&runtime, || {
                owner.within(|| {
                    ChosenGenerators::seeded(&runtime, seed).within(|| modes.within(work))
                })
            })
        });
        match thread {
            Ok(thread) => {
                let process = std::process::id();
                Ok(Self { batches: Some(receiver), thread: Some(thread), process })
            }
            Err(e) => Err(Error::invalid("DataLoader", format!("cannot start a worker: {e}"))),
        }
    }
}

impl<B> LoaderWorker<B> {
    /// Joins the worker. Returns its panic, if it panicked.
    fn join(&mut self) -> Option<CaughtPanic> {
        let thread = self.thread.take().filter(|_| self.is_here())?;
        thread.join().err().map(CaughtPanic::new)
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<B> Drop for LoaderWorker<B> {
    fn drop(&mut self) {
        // Close the channel first, so that a worker that is blocked on sending ends.
        self.batches = None;
        let _ = self.join();
    }
}

/// An iteration over a [`DataLoader`].
pub struct Batches<D: Dataset, B = <<D as Dataset>::Sample as Collate>::Batch> {
    job: Arc<LoadJob<D, B>>,
    workers: Vec<LoaderWorker<B>>,
    first: usize,
    next: usize,
}

impl<D: Dataset, B> fmt::Debug for Batches<D, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<D: Dataset, B: PinMemory + Send + 'static> Iterator for Batches<D, B> {
    type Item = Result<B>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        let location = Location::caller();
        if self.next >= self.job.batches {
            return None;
        }
        let batch = self.next;
        self.next += 1;
        if self.workers.is_empty() {
            return Some(with_runtime(&self.job.runtime, || self.job.load(batch, location)));
        }
        let workers = self.workers.len();
        let worker = &mut self.workers[(batch - self.first) % workers];
        if !worker.is_here() {
            self.next = self.job.batches;
            let reason = "this is a forked child, which has no workers; iterate in it anew";
            return Some(Err(Error::invalid("DataLoader", reason)));
        }
        let received = worker.batches.as_ref().and_then(|b| b.recv().ok());
        if received.is_some() {
            return received;
        }
        self.next = self.job.batches;
        let panic = worker.join();
        let why = panic.as_ref().and_then(CaughtPanic::message).unwrap_or("it said nothing");
        let reason = format!("the worker of batch {batch} panicked: {why}");
        Some(Err(Error::invalid("DataLoader", reason)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.job.batches - self.next;
        (left, Some(left))
    }
}
