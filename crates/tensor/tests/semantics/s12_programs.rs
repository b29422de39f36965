//! Tests of row S12: random programs on several streams, devices and threads give the same values
//! as their ops run one after another, and the host waits only for values that the program reads.

use std::sync::{Condvar, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use warpline::cuda::Stream;
use warpline::{DType, Pending, Result, SyncPolicy, Tensor, cuda, full, with_runtime};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule};

use crate::boxes::{SimBox, schedules};

const TENSORS: usize = 5;
const STREAMS: usize = 3;
const THREADS: usize = 3;
/// Elements of each tensor.
const N: usize = 8;

/// An action on tensor `dst` that may read tensor `src`.
#[derive(Clone, Debug)]
enum Action {
    /// `dst += src`
    Add,
    /// Assigns twice the second half of `src` to the first half of `dst`.
    Halves,
    /// Replaces `dst` by a new tensor `src * 3 + 1` on a device, and frees the old tensor.
    Replace { device: usize },
    /// Copies `src` to `dst`.
    Copy { non_blocking: bool },
    /// Copies `src` to `dst` through a page-locked tensor that is dropped at once.
    ThroughHost,
    /// Sets all elements of `dst` to one number.
    Fill(i64),
    /// Starts a copy of `src` to the host. The program waits for it at the end.
    Ask,
    /// Copies `src` to the host, and waits for the copy at once.
    Read,
}

#[derive(Clone, Debug)]
struct Operation {
    thread: usize,
    stream: usize,
    dst: usize,
    src: usize,
    action: Action,
}

impl Operation {
    fn writes(&self) -> bool {
        !matches!(self.action, Action::Ask | Action::Read)
    }

    /// Returns whether the order of the two calls matters.
    fn conflicts(&self, other: &Operation) -> bool {
        let touches = |a: &Operation, b: &Operation| a.writes() && [b.dst, b.src].contains(&a.dst);
        touches(self, other) || touches(other, self)
    }
}

fn program() -> impl Strategy<Value = Vec<Operation>> {
    let action = prop_oneof![
        4 => Just(Action::Add),
        3 => Just(Action::Halves),
        3 => (0..3usize).prop_map(|device| Action::Replace { device }),
        3 => any::<bool>().prop_map(|non_blocking| Action::Copy { non_blocking }),
        2 => Just(Action::ThroughHost),
        1 => (-9..9i64).prop_map(Action::Fill),
        2 => Just(Action::Ask),
        1 => Just(Action::Read),
    ];
    let op = (0..THREADS, 0..STREAMS, 0..TENSORS, 0..TENSORS, action).prop_map(
        |(thread, stream, dst, src, action)| Operation { thread, stream, dst, src, action },
    );
    prop::collection::vec(op, 1..50)
}

/// The final tensors, and the values that each reading operation returned.
#[derive(Debug, PartialEq)]
struct Outcome {
    tensors: Vec<Vec<i64>>,
    seen: Vec<Option<Vec<i64>>>,
}

/// Runs the program one operation after another on plain numbers.
fn expected(program: &[Operation]) -> Outcome {
    let mut tensors: Vec<Vec<i64>> = (0..TENSORS).map(|i| vec![i as i64; N]).collect();
    let see = |op: &Operation| {
        let src = tensors[op.src].clone();
        let dst = &mut tensors[op.dst];
        match op.action {
            Action::Add => dst.iter_mut().zip(&src).for_each(|(d, s)| *d = d.wrapping_add(*s)),
            Action::Halves => {
                let (first, second) = (&mut dst[..N / 2], &src[N / 2..]);
                first.iter_mut().zip(second).for_each(|(d, s)| *d = s.wrapping_mul(2));
            }
            Action::Replace { .. } => {
                *dst = src.iter().map(|s| s.wrapping_mul(3).wrapping_add(1)).collect();
            }
            Action::Copy { .. } | Action::ThroughHost => *dst = src,
            Action::Fill(value) => dst.fill(value),
            Action::Ask | Action::Read => return Some(src),
        }
        None
    };
    let seen = program.iter().map(see).collect();
    Outcome { tensors, seen }
}

/// The result of a reading operation.
enum ReadResult {
    Now(Vec<i64>),
    Later(Pending<Vec<i64>>),
}

/// State that the threads of a run share.
struct Run<'a> {
    world: &'a SimBox,
    program: &'a [Operation],
    streams: Vec<Vec<Stream>>,
    tensors: Vec<Mutex<Tensor>>,
    /// For each operation, whether it was called. Operations that conflict or have the same thread
    /// are called in the order of the program, all others in any order.
    called: Mutex<Vec<bool>>,
    progress: Condvar,
}

impl Run<'_> {
    fn tensor(&self, index: usize) -> Tensor {
        self.tensors[index].lock().unwrap().clone()
    }

    fn call(&self, op: &Operation) -> Result<Option<ReadResult>> {
        // Select the stream on every device, since the op may run on the device of `src`, of `dst`
        // or of the result.
        let _guards: Vec<_> =
            self.streams.iter().map(|of| cuda::stream(&of[op.stream])).collect::<Result<_>>()?;
        let (dst, src) = (self.tensor(op.dst), self.tensor(op.src));
        match op.action {
            Action::Add => drop(dst.add_(&src.to_non_blocking(dst.device())?)?),
            Action::Halves => {
                let second = src.narrow(0, N as isize / 2, N / 2)?.mul(2)?;
                dst.narrow(0, 0, N / 2)?.copy_(&second, true)?;
            }
            Action::Replace { device } => {
                let moved = src.to_non_blocking(device % self.world.devices)?;
                *self.tensors[op.dst].lock().unwrap() = moved.mul(3)?.add(1)?;
            }
            Action::Copy { non_blocking } => drop(dst.copy_(&src, non_blocking)?),
            Action::ThroughHost => drop(dst.copy_(&src.to_non_blocking("cpu")?, true)?),
            Action::Fill(value) => drop(dst.fill_(value)?),
            Action::Ask => return Ok(Some(ReadResult::Later(src.to_vec_async()?))),
            Action::Read => return Ok(Some(ReadResult::Now(src.to_vec_async()?.wait()?))),
        }
        Ok(None)
    }

    /// Waits until all earlier conflicting operations have been called.
    fn turn(&self, index: usize) {
        let blocked = |called: &mut Vec<bool>| {
            let before = self.program[..index].iter().zip(called.iter());
            before.into_iter().any(|(op, called)| !called && op.conflicts(&self.program[index]))
        };
        drop(self.progress.wait_while(self.called.lock().unwrap(), blocked).unwrap());
    }

    fn thread(&self, thread: usize) -> Result<Vec<(usize, Option<ReadResult>)>> {
        let own = self.program.iter().enumerate().filter(|(_, op)| op.thread == thread);
        own.map(|(index, op)| {
            self.turn(index);
            let seen = with_runtime(&self.world.runtime, || self.call(op));
            // Mark the operation as called even if it failed, so that no thread waits forever.
            self.called.lock().unwrap()[index] = true;
            self.progress.notify_all();
            Ok((index, seen?))
        })
        .collect()
    }
}

/// Runs a program on several threads. Also returns the number of host waits.
fn run(world: &SimBox, program: &[Operation]) -> Result<(Outcome, u64)> {
    let mut tensors = Vec::new();
    let mut streams = Vec::new();
    for device in 0..world.devices {
        let mut of_device = vec![cuda::default_stream(device)?];
        for _ in 1..STREAMS {
            of_device.push(cuda::Stream::new(device)?);
        }
        streams.push(of_device);
    }
    for i in 0..TENSORS {
        tensors.push(Mutex::new(full([N], i as i64, i % world.devices)?));
    }
    let called = Mutex::new(vec![false; program.len()]);
    let run = Run { world, program, streams, tensors, called, progress: Condvar::new() };
    let waits = world.host_waits();
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                scope.spawn({
                    let run = &run;
                    move || run.thread(i)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    let waits = world.host_waits() - waits;
    let mut seen: Vec<Option<Vec<i64>>> = vec![None; program.len()];
    for (index, value) in parts.into_iter().flatten() {
        seen[index] = match value {
            Some(ReadResult::Now(vec)) => Some(vec),
            Some(ReadResult::Later(pending)) => Some(pending.wait()?),
            None => None,
        };
    }
    let tensors = (0..TENSORS).map(|i| run.tensor(i).to_vec()).collect::<Result<_>>()?;
    Ok((Outcome { tensors, seen }, waits))
}

#[test]
fn s12_random_programs_agree_with_their_ops_one_by_one() {
    let config = Config { cases: 8, failure_persistence: None, ..Config::default() };
    let checked = TestRunner::new(config).run(&program(), |program| {
        let reads = program.iter().filter(|op| matches!(op.action, Action::Read)).count() as u64;
        let expected = expected(&program);
        for devices in 1..=3 {
            for schedule in schedules() {
                let at = format!("{devices} device(s), {schedule:?}");
                let world = SimBox::with(devices, schedule, SyncPolicy::Auto);
                let ran = with_runtime(&world.runtime, || run(&world, &program));
                let (outcome, waits) =
                    ran.map_err(|e| TestCaseError::fail(format!("{at}: {e}")))?;
                prop_assert_eq!(&outcome, &expected, "{}", at);
                prop_assert!(waits <= reads, "{waits} host waits for {reads} reads: {at}");
                prop_assert!(world.runtime.take_races().is_empty());
            }
        }
        Ok(())
    });
    checked.unwrap_or_else(|e| panic!("{e}"));
}

/// Without the waits that `SyncPolicy::Auto` inserts, some programs give wrong values under some
/// schedules.
#[test]
fn s12_random_programs_need_their_waits() {
    let wrong = std::cell::Cell::new(0);
    let config = Config { cases: 8, failure_persistence: None, ..Config::default() };
    let ran = TestRunner::new(config).run(&program(), |program| {
        let world = SimBox::with(2, Schedule::Lazy, SyncPolicy::Manual);
        let outcome = with_runtime(&world.runtime, || run(&world, &program));
        // Memory that is reused too early may also cause an error.
        let right = outcome.is_ok_and(|(outcome, _)| outcome == expected(&program));
        wrong.set(wrong.get() + usize::from(!right));
        Ok(())
    });
    ran.unwrap_or_else(|e| panic!("{e}"));
    assert!(wrong.get() > 0, "no program came out wrong");
}

/// Number of operations that the producer enqueues after the operation for which the consumer
/// waits.
const LATER: usize = 20;

/// Runs `rounds` rounds in which a consumer uses a producer's result while the producer continues
/// with unrelated work. Returns the virtual time of the last round in milliseconds, and the number
/// of the producer's operations that are pending when the consumer is done.
fn consume(wait_for_all: bool, rounds: usize) -> (f64, usize) {
    const SIZE: [usize; 1] = [1 << 18];
    let world = SimBox::lazy(1);
    let (mut time, mut left) = (0.0, 0);
    world.enter(|| {
        let (producer, consumer) = (cuda::Stream::new(0)?, cuda::Stream::new(0)?);
        let device = |value| full(SIZE, value, (DType::F32, 0));
        let pinned = || full(SIZE, 5.0, DType::F32)?.pin_memory();
        let unrelated = cuda::with_stream(&producer, || device(0.0))?;
        let mine = cuda::with_stream(&consumer, || device(0.0))?;
        let (source, result) = (pinned()?, pinned()?);
        cuda::synchronize(0)?;
        for round in 1..=rounds {
            let start = world.sim.virtual_time(0);
            let used = cuda::with_stream(&producer, || -> Result<Tensor> {
                let used = device(1.0)?;
                (0..LATER).try_for_each(|_| unrelated.copy_(&source, true).map(drop))?;
                Ok(used)
            })?;
            if wait_for_all {
                consumer.wait_stream(&producer)?;
            }
            cuda::with_stream(&consumer, || -> Result<()> {
                (0..LATER).try_for_each(|_| {
                    mine.add_(&used)?;
                    result.copy_(&mine, true).map(drop)
                })
            })?;
            assert!(world.count(CallKind::StreamWaitEvent) >= 1, "it does wait for what it uses");
            consumer.synchronize()?;
            left = world.sim.pending();
            let covers_all = wait_for_all || round == 1;
            assert_eq!(producer.query()?, covers_all, "round {round}");
            assert_eq!(result.to_vec::<f32>()?, vec![(LATER * round) as f32; SIZE[0]]);
            cuda::synchronize(0)?;
            time = world.sim.virtual_time(0) - start;
        }
        Ok(())
    });
    (time, left)
}

/// A wait covers the work that made the result, but not the producer's later work. This holds from
/// the second round on; the first wait covers all work so far.
#[test]
fn s12_streams_overlap_past_a_wait() {
    let (serial, left) = consume(true, 2);
    assert_eq!(left, 0, "a wait for all of it leaves nothing");
    assert_eq!(consume(false, 1).1, 0, "the first wait covers all work so far");
    let (overlapped, left) = consume(false, 2);
    assert!(left >= LATER, "only {left} operations of the producer are left");
    assert!(overlapped < 0.7 * serial, "{overlapped} ms, one after the other {serial} ms");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s12_streams_overlap_past_a_wait() {
    let real = !crate::common::gpu_spec().starts_with("sim");
    let n = if real { 4096 } else { 8 };
    crate::common::gpu(1, SyncPolicy::Auto, |_| {
        let (producer, consumer) = (cuda::Stream::new(0)?, cuda::Stream::new(0)?);
        let big = full([n, n], 1e-3, (DType::F32, 0))?;
        // Load the kernels, and allocate memory for the results on both streams, before the
        // measurement.
        let products = || (0..20).map(|_| big.matmul(&big)).collect::<Result<Vec<_>>>();
        drop(cuda::with_stream(&producer, products)?);
        drop(cuda::with_stream(&consumer, || full([64], 0.0, 0)?.add(1.0)?.sum(()))?);
        cuda::synchronize(0)?;
        let round = || -> Result<(Tensor, bool)> {
            let used = cuda::with_stream(&producer, || full([64], 2.0, (DType::F32, 0)))?;
            let _products = cuda::with_stream(&producer, products)?;
            let sum = cuda::with_stream(&consumer, || used.add(1.0)?.sum(()))?;
            consumer.synchronize()?;
            let overlap = !producer.query()?;
            cuda::synchronize(0)?;
            Ok((sum, overlap))
        };
        round()?; // The first wait covers later work.
        let (sum, overlap) = round()?;
        // Assert the overlap only on a real GPU, because a simulated schedule may have run all
        // products by then.
        assert!(overlap || !real, "the consumer waited for 20 unrelated products");
        assert_eq!(sum.item::<f32>()?, 192.0);
        Ok(())
    });
}
