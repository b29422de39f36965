//! Tests of row S27: the `DataLoader`, with workers and page-locked batches.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use warpline::data::{DataLoader, Dataset, PinMemory, TensorDataset};
use warpline::{
    DType, Device, Error, ErrorKind, Generator, Result, ResultExt, SyncPolicy, Tensor, arange,
    manual_seed, rand, tensor, zeros,
};

use crate::boxes::within_a_minute;
use crate::common::bad_calls::refused;
use crate::common::{World, cpu, schedules, worlds};

crate::rows! {
    schedules(1) s27_batches_are_page_locked gpu_s27_batches_are_page_locked => pinned;
}

fn pinned(_: &World) -> Result<()> {
    let data = || TensorDataset::new(arange(12, DType::F32)?.reshape([6, 2])?, arange(6, ())?);
    for workers in [0, 3] {
        let loader = DataLoader::new(data()?).batch_size(4)?.num_workers(workers);
        for batch in loader.pin_memory(true).iter()? {
            let (input, target) = batch?;
            assert!(input.is_pinned() && target.is_pinned());
            let doubled = (&input.to_non_blocking("cuda")? * 2.0)?;
            assert_eq!(doubled.cpu()?.to_vec::<f32>()?, (&input * 2.0)?.to_vec::<f32>()?);
        }
        for batch in DataLoader::new(data()?).num_workers(workers).iter()? {
            assert!(!batch?.0.is_pinned());
        }
    }
    Ok(())
}

#[test]
fn a_sample_past_the_end_is_an_error_at_any_index() -> Result<()> {
    let data = TensorDataset::new(zeros([3, 2], ())?, zeros([3], ())?)?;
    for index in [3, usize::MAX / 2, usize::MAX - 2, usize::MAX] {
        assert!(
            matches!(data.get(index).kind(), Some(ErrorKind::IndexOutOfRange { .. })),
            "{index}"
        );
    }
    Ok(())
}

/// A dataset of the numbers 0, 1, …, as `int64`. One sample may fail or panic.
#[derive(Debug, Default)]
struct Numbers {
    len: usize,
    error_at: Option<usize>,
    panic_at: Option<usize>,
    /// Delays early samples, so that later samples are ready first.
    slow: bool,
    loaded: Arc<AtomicUsize>,
}

impl Dataset for Numbers {
    type Sample = (Tensor, i64);

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        assert_ne!(Some(index), self.panic_at, "on purpose");
        if Some(index) == self.error_at {
            return Err(Error::invalid("get", format!("sample {index} is broken")));
        }
        if self.slow {
            std::thread::sleep(Duration::from_micros(50 * (self.len - index) as u64));
        }
        self.loaded.fetch_add(1, Ordering::SeqCst);
        Ok((tensor([index as f32, -(index as f32)], ())?, index as i64))
    }
}

fn numbers(loader: &DataLoader<Numbers>) -> Result<Vec<Vec<i64>>> {
    loader.iter()?.map(|b| b?.1.to_vec::<i64>()).collect()
}

#[test]
fn s27_batches_come_in_order() {
    cpu(|_| {
        for workers in [0, 1, 2, 5, 20] {
            for prefetch in [1, 3] {
                let data = Numbers { len: 11, slow: true, ..Numbers::default() };
                let loader = DataLoader::new(data)
                    .batch_size(3)?
                    .num_workers(workers)
                    .prefetch_factor(prefetch);
                assert_eq!(loader.len(), 4);
                let expected = [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9, 10]];
                assert_eq!(numbers(&loader)?, expected);
                // A loader can be iterated again.
                let (x, _) = loader.iter()?.nth(1).expect("a second batch")?;
                assert_eq!(x.to_vec::<f32>()?, [3.0, -3.0, 4.0, -4.0, 5.0, -5.0]);
                assert_eq!(loader.iter()?.size_hint(), (4, Some(4)));
            }
        }
        Ok(())
    });
}

#[test]
fn s27_shuffle_is_a_permutation_by_the_cpu_generator() {
    cpu(|_| {
        let loader = |workers| {
            let data = Numbers { len: 50, ..Numbers::default() };
            DataLoader::new(data).batch_size(7)?.shuffle(true).num_workers(workers).pass()
        };
        manual_seed(3);
        let once = numbers(&loader(0)?)?.concat();
        let twice = numbers(&loader(0)?)?.concat();
        manual_seed(3);
        let again = numbers(&loader(3)?)?.concat();
        assert_eq!(once, again, "the same seed gives the same order, workers or not");
        assert_ne!(once, twice, "every iteration has an order of its own");
        for mut order in [once, twice] {
            assert!(!order.is_sorted());
            order.sort_unstable();
            assert_eq!(order, (0..50).collect::<Vec<i64>>());
        }
        Ok(())
    });
}

/// A dataset of random values, drawn on the CPU and on a device.
struct Noise(Option<Device>);

impl Dataset for Noise {
    type Sample = Tensor;

    fn len(&self) -> usize {
        24
    }

    fn get(&self, _: usize) -> Result<Tensor> {
        let host = rand([2], ())?;
        let Some(device) = self.0 else { return Ok(host) };
        Tensor::cat(&[&host, &rand([2], device)?.cpu()?], 0)
    }
}

#[test]
fn s27_workers_draw_from_seeds_of_their_own() {
    schedules(1, SyncPolicy::Auto, |world| {
        let device = world.places().get(1).copied();
        let drawn = |batch: &Tensor| batch.to_vec::<f32>();
        let here = || -> Result<Vec<f32>> {
            let mut drawn = rand([2], ())?.to_vec::<f32>()?;
            drawn.extend(device.map_or(Ok(vec![]), |device| rand([2], device)?.to_vec::<f32>())?);
            Ok(drawn)
        };
        let mut mains = Vec::new();
        for workers in [0, 1, 2, 4] {
            let mut outcomes = Vec::new();
            for _ in 0..20 {
                manual_seed(5);
                let loader = DataLoader::new(Noise(device)).batch_size(3)?.num_workers(workers);
                let (mut batches, mut main) = (Vec::new(), Vec::new());
                for batch in loader.iter()? {
                    batches.push(drawn(&batch?)?);
                    main.push(here()?);
                }
                if workers > 0 {
                    mains.push(main);
                }
                outcomes.push(batches);
            }
            assert!(outcomes.iter().all(|batches| *batches == outcomes[0]), "{workers} workers");
            if workers == 0 {
                continue;
            }
            // As in PyTorch, an iteration draws a base seed, and the seed of a worker is the base
            // seed plus the worker's number.
            manual_seed(5);
            let base = world.runtime.cpu_generator().lock().random64() & i64::MAX as u64;
            for worker in 0..workers {
                manual_seed(base.wrapping_add(worker as u64));
                for batch in outcomes[0].iter().skip(worker).step_by(workers) {
                    let expected: Vec<f32> =
                        (0..3).map(|_| here()).collect::<Result<Vec<_>>>()?.concat();
                    assert_eq!(*batch, expected, "worker {worker} of {workers}");
                }
            }
        }
        assert!(mains.iter().all(|main| *main == mains[0]), "the program's draws");
        Ok(())
    });
}

/// The expected orders were computed with PyTorch 2.11.
#[test]
fn s27_the_order_is_pytorchs_for_a_seed() {
    cpu(|_| {
        let loader = || {
            let data = Numbers { len: 11, ..Numbers::default() };
            DataLoader::new(data).batch_size(4)?.shuffle(true).pass()
        };
        let two_epochs: [[Vec<Vec<i64>>; 2]; 2] = [
            [
                vec![vec![10, 4, 2, 9], vec![5, 8, 1, 6], vec![0, 3, 7]],
                vec![vec![10, 3, 4, 8], vec![9, 7, 5, 1], vec![2, 6, 0]],
            ],
            [
                vec![vec![5, 10, 8, 1], vec![0, 9, 2, 6], vec![3, 7, 4]],
                vec![vec![5, 10, 4, 1], vec![3, 6, 0, 2], vec![9, 8, 7]],
            ],
        ];
        let own: [Vec<Vec<i64>>; 2] = [
            vec![vec![1, 0, 9, 6], vec![10, 3, 8, 4], vec![7, 2, 5]],
            vec![vec![9, 5, 2, 10], vec![0, 7, 6, 8], vec![4, 1, 3]],
        ];
        for (i, seed) in [0, 42].into_iter().enumerate() {
            manual_seed(seed);
            let shuffled = loader()?;
            assert_eq!([numbers(&shuffled)?, numbers(&shuffled)?], two_epochs[i], "seed {seed}");
            let generator = Generator::new();
            generator.manual_seed(seed);
            assert_eq!(numbers(&loader()?.generator(&generator)?)?, own[i], "seed {seed}");
        }
        Ok(())
    });
}

#[test]
fn s27_an_iteration_goes_on_where_another_was_stopped() {
    cpu(|_| {
        for workers in [0, 1, 3] {
            let generator = Generator::new();
            let data = Numbers { len: 11, ..Numbers::default() };
            let loader = DataLoader::new(data)
                .batch_size(2)?
                .shuffle(true)
                .num_workers(workers)
                .generator(&generator)?;
            numbers(&loader)?;
            let (before, own) = (generator.get_state()?, warpline::get_rng_state()?);
            let whole = numbers(&loader)?;
            let after = generator.get_state()?.to_vec::<u8>()?;
            for first in 0..=6 {
                generator.set_state(&before)?;
                let rest = loader.iter_from(first)?.map(|b| b?.1.to_vec::<i64>());
                assert_eq!(rest.collect::<Result<Vec<_>>>()?, whole[first..], "from {first}");
                assert_eq!(generator.get_state()?.to_vec::<u8>()?, after);
            }
            assert!(loader.iter_from(7)?.next().is_none());
            assert_eq!(warpline::get_rng_state()?.to_vec::<u8>()?, own.to_vec::<u8>()?);
        }
        Ok(())
    });
}

trait Pass: Sized {
    fn pass(self) -> Result<Self> {
        Ok(self)
    }
}
impl Pass for DataLoader<Numbers> {}

#[test]
fn s27_drop_last_leaves_out_the_incomplete_batch() {
    cpu(|_| {
        let loader = |len, drop_last| -> Result<_> {
            let data = Numbers { len, ..Numbers::default() };
            Ok(DataLoader::new(data).batch_size(4)?.drop_last(drop_last).num_workers(2))
        };
        assert_eq!(numbers(&loader(10, true)?)?, [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(loader(10, true)?.len(), 2);
        assert_eq!(loader(8, true)?.len(), 2);
        assert_eq!(numbers(&loader(9, false)?)?.last(), Some(&vec![8]));
        assert!(loader(3, true)?.is_empty());
        assert!(numbers(&loader(3, true)?)?.is_empty());
        assert!(numbers(&loader(0, false)?)?.is_empty());
        Ok(())
    });
}

#[test]
fn s27_a_batch_size_of_zero_is_refused() {
    let error = DataLoader::new(Numbers::default()).batch_size(0).expect_err("no batches");
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument { .. })
            && error.to_string().contains("batch_size")
    );
}

/// Samples of different sizes.
struct Ragged;

impl Dataset for Ragged {
    type Sample = (Tensor, i64);

    fn len(&self) -> usize {
        4
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        Ok((arange(index + 1, ())?, index as i64))
    }
}

#[test]
fn s27_samples_of_different_sizes_are_an_error_at_the_callers_line() {
    cpu(|_| {
        for workers in [0, 2] {
            let loader = DataLoader::new(Ragged).batch_size(3)?.num_workers(workers);
            let mut batches = loader.iter()?;
            let text = match workers {
                0 => refused("DataLoader", batches.next().unwrap()),
                _ => batches.next().unwrap().expect_err("their sizes differ").to_string(),
            };
            assert!(text.contains("samples of sizes [1] and [2]"), "{text}");
            assert!(text.contains("with_collate_fn"), "{text}");
            assert!(text.contains("s27_data_loader.rs:"), "{text}");
        }
        Ok(())
    });
}

/// A sample and a batch of types that the loader does not know.
struct Sentence(Tensor);
struct Lengths(Vec<usize>);

struct Sentences(Vec<usize>);

impl Dataset for Sentences {
    type Sample = Sentence;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<Sentence> {
        Ok(Sentence(zeros([self.0[index]], ())?))
    }
}

impl PinMemory for Lengths {}

#[test]
fn s27_a_collate_fn_joins_samples_of_any_type() {
    cpu(|_| {
        for workers in [0, 2] {
            let lengths = |samples: Vec<Sentence>| {
                Ok(Lengths(samples.iter().map(|sample| sample.0.numel()).collect()))
            };
            let data = Sentences(vec![3, 1, 2]);
            let loader = DataLoader::with_collate_fn(data, lengths).batch_size(2)?;
            let batches = loader.num_workers(workers).pin_memory(true).iter()?;
            let batches: Vec<_> = batches.map(|batch| Ok(batch?.0)).collect::<Result<_>>()?;
            assert_eq!(batches, [vec![3, 1], vec![2]]);
        }
        let fails = DataLoader::with_collate_fn(Ragged, |samples| -> Result<Tensor> {
            samples[0].0.sum(7)
        });
        let error = fails.iter()?.next().unwrap().expect_err("there is no dimension 7");
        assert!(error.to_string().starts_with("sum: "), "{error}");
        Ok(())
    });
}

#[test]
fn s27_batches_are_maps_arrays_and_tuples() {
    fn batches<B: PinMemory + Send + 'static>(
        collate: impl Fn(Vec<(Tensor, i64)>) -> B + Send + Sync + 'static,
    ) -> Result<Vec<B>> {
        let loader = DataLoader::with_collate_fn(Ragged, move |samples| Ok(collate(samples)));
        loader.batch_size(3)?.pin_memory(true).iter()?.collect()
    }
    worlds(1, |_| {
        let first = |samples: Vec<(Tensor, i64)>| samples[0].0.clone();
        for map in batches(move |s| HashMap::from([("x".to_owned(), first(s))]))? {
            assert!(map["x"].is_pinned());
        }
        for map in batches(move |s| BTreeMap::from([(7, Box::new(first(s)))]))? {
            assert!(map[&7].is_pinned());
        }
        for [a, b] in batches(move |s| [first(s.clone()), s[0].0.clone()])? {
            assert!(a.is_pinned() && b.is_pinned());
        }
        let (half, other) = (half::f16::from_f32(0.5), half::bf16::from_f32(0.5));
        for batch in batches(move |s| (first(s), 1u16, 2u32, 3u64, half, other, "text", ()))? {
            assert!(batch.0.is_pinned());
            assert_eq!((batch.1, batch.2, batch.3), (1, 2, 3));
            assert_eq!((batch.4, batch.5, batch.6), (half, other, "text"));
        }
        Ok(())
    });
}

#[test]
fn s27_errors_reach_the_iterator() {
    cpu(|_| {
        for workers in [0, 2] {
            let data = Numbers { len: 9, error_at: Some(4), ..Numbers::default() };
            let loader = DataLoader::new(data).batch_size(3)?.num_workers(workers);
            let results: Vec<_> = loader.iter()?.collect();
            assert_eq!(results.len(), 3);
            assert!(results[0].is_ok() && results[2].is_ok(), "only its own batch fails");
            let error = results[1].as_ref().expect_err("a broken sample").to_string();
            assert!(error.contains("sample 4 is broken"), "{error}");
        }
        Ok(())
    });
}

#[test]
fn s27_samples_that_do_not_fit_are_an_error() {
    struct Ragged;
    impl Dataset for Ragged {
        type Sample = Tensor;
        fn len(&self) -> usize {
            4
        }
        fn get(&self, index: usize) -> Result<Tensor> {
            zeros([1 + index % 2], ())
        }
    }
    cpu(|_| {
        let error = DataLoader::new(Ragged).batch_size(2)?.iter()?.next().expect("a batch");
        assert!(matches!(error.kind(), Some(ErrorKind::ShapeMismatch { .. })), "{error:?}");
        Ok(())
    });
    let (inputs, targets) = (zeros([3, 2], "cpu").unwrap(), zeros([4], "cpu").unwrap());
    assert!(matches!(
        TensorDataset::new(inputs, targets).kind(),
        Some(ErrorKind::ShapeMismatch { .. })
    ));
}

#[test]
fn s27_a_dataset_that_panics_does_not_hang() {
    within_a_minute(|| {
        cpu(|_| {
            for at in [0, 4, 8] {
                let data = Numbers { len: 9, panic_at: Some(at), ..Numbers::default() };
                let loader = DataLoader::new(data).batch_size(3)?.num_workers(2);
                let results: Vec<_> = loader.iter()?.collect();
                let (last, before) = results.split_last().expect("results");
                assert_eq!(before.len(), at / 3);
                assert!(before.iter().all(Result::is_ok));
                let error = last.as_ref().expect_err("a panic").to_string();
                assert!(error.contains("panicked") && error.contains("on purpose"), "{error}");
            }
            Ok(())
        });
    });
}

/// The payload of a worker's panic belongs to the program, and its drop may panic.
#[test]
fn s27_a_worker_whose_panic_cannot_be_dropped_does_not_abort_the_process() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("the payload's drop");
        }
    }
    struct Panicking;
    impl Dataset for Panicking {
        type Sample = Tensor;
        fn len(&self) -> usize {
            8
        }
        fn get(&self, _: usize) -> Result<Tensor> {
            std::panic::panic_any(Payload)
        }
    }
    within_a_minute(|| {
        cpu(|_| {
            let loader = DataLoader::new(Panicking).batch_size(1)?.num_workers(3);
            let first = loader.iter()?.next().expect("a batch");
            let error = first.expect_err("a panic").to_string();
            assert!(error.contains("panicked: it said nothing"), "{error}");
            Ok(())
        });
    });
}

#[test]
fn s27_dropping_the_iterator_early_joins_the_workers() {
    /// Sets a flag when the last worker has dropped it.
    struct Watched(Arc<AtomicBool>);
    impl Drop for Watched {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    impl Dataset for Watched {
        type Sample = f32;
        fn len(&self) -> usize {
            1000
        }
        fn get(&self, index: usize) -> Result<f32> {
            std::thread::sleep(Duration::from_micros(100));
            Ok(index as f32)
        }
    }
    within_a_minute(|| {
        cpu(|_| {
            let gone = Arc::new(AtomicBool::new(false));
            let loader = DataLoader::new(Watched(Arc::clone(&gone))).num_workers(4);
            let mut batches = loader.iter()?;
            assert_eq!(batches.next().expect("a batch")?.to_vec::<f32>()?, [0.0]);
            drop(loader);
            assert!(!gone.load(Ordering::SeqCst), "the iteration keeps the dataset");
            drop(batches);
            assert!(gone.load(Ordering::SeqCst), "a worker is still there");
            Ok(())
        });
    });
}

#[test]
fn s27_workers_load_only_so_far_ahead() {
    cpu(|_| {
        let loaded = Arc::new(AtomicUsize::new(0));
        let data = Numbers { len: 100, loaded: Arc::clone(&loaded), ..Numbers::default() };
        let loader = DataLoader::new(data).batch_size(2)?.num_workers(2).prefetch_factor(3);
        let batches = loader.iter()?;
        let most = 2 * 2 * 3;
        let start = Instant::now();
        while loaded.load(Ordering::SeqCst) < most && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert_eq!(loaded.load(Ordering::SeqCst), most);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(loaded.load(Ordering::SeqCst), most, "loaded further ahead than asked for");
        assert_eq!(batches.count(), 50);
        assert_eq!(loaded.load(Ordering::SeqCst), 100);
        Ok(())
    });
}

#[test]
fn s27_tuples_and_numbers_are_put_together() {
    struct Mixed;
    impl Dataset for Mixed {
        type Sample = (Tensor, i64, (bool, f32));
        fn len(&self) -> usize {
            3
        }
        fn get(&self, index: usize) -> Result<Self::Sample> {
            Ok((zeros([2, 2], DType::F16)?, index as i64, (index == 1, 0.5)))
        }
    }
    cpu(|_| {
        let mut batches = DataLoader::new(Mixed).batch_size(3)?.iter()?;
        let (x, index, (flag, weight)) = batches.next().expect("a batch")?;
        assert!(batches.next().is_none());
        assert_eq!((x.size(), x.dtype()), (&[3, 2, 2][..], DType::F16));
        assert_eq!(index.to_vec::<i64>()?, [0, 1, 2]);
        assert_eq!(flag.to_vec::<bool>()?, [false, true, false]);
        assert_eq!(weight.to_vec::<f32>()?, [0.5; 3]);
        Ok(())
    });
}

#[test]
fn s27_page_locked_batches_need_cuda() {
    cpu(|_| {
        let data = Numbers { len: 2, ..Numbers::default() };
        for workers in [0, 1] {
            let data = Numbers { len: data.len, ..Numbers::default() };
            let loader = DataLoader::new(data).num_workers(workers).pin_memory(true);
            let error = loader.iter()?.next().expect("a batch").expect_err("no CUDA");
            assert!(matches!(error.kind(), ErrorKind::CudaUnavailable { .. }), "{error:?}");
        }
        Ok(())
    });
}
