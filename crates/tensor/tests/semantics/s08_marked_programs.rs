//! Tests of row S8: random programs with tensors on a device and on the host, and with indices out
//! of range. A model predicts the failure marks of each tensor.

use std::collections::BTreeSet;

use proptest::prelude::*;
use warpline::cuda::{self, CudaGraph, Stream};
use warpline::{
    DType, ErrorKind, Result, RuntimeConfig, SyncPolicy, Tensor, arange, embedding, full, zeros,
};
use warpline_cuda_sys_safe::sim::Schedule;

use crate::boxes::{SimBox, schedules};
use crate::common;
use crate::s08_index_check::{failed, table};
use crate::s08_marked_tensors::{assert_marked, picked, which};

const TENSORS: usize = 4;
const WIDTH: usize = 4;
/// Indices of the middle elements.
const MIDDLE: [usize; 2] = [1, 2];

/// A step of a random program. Tensors are referred to by number; the last tensor is page-locked.
#[derive(Clone, Debug)]
enum Step {
    Pick {
        to: usize,
        bad: bool,
    },
    Add(usize, [usize; 2]),
    AddInto(usize, usize),
    Copy(usize, usize),
    Middle(usize, usize),
    /// Replays the graph a number of times with a good or a bad index.
    Replay {
        bad: bool,
        times: u8,
    },
    Fill(usize),
    Read(usize),
    Wait(usize),
    WaitForAll,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let place = || 0..=TENSORS;
    let on_device = || 0..TENSORS;
    let step = prop_oneof![
        4 => (on_device(), any::<bool>()).prop_map(|(to, bad)| Step::Pick { to, bad }),
        2 => (on_device(), on_device(), on_device()).prop_map(|(to, a, b)| Step::Add(to, [a, b])),
        2 => (on_device(), on_device()).prop_map(|(to, a)| Step::AddInto(to, a)),
        3 => (place(), place()).prop_map(|(to, a)| Step::Copy(to, a)),
        2 => (place(), on_device()).prop_map(|(to, a)| Step::Middle(to, a)),
        2 => (any::<bool>(), 1..4u8).prop_map(|(bad, times)| Step::Replay { bad, times }),
        1 => place().prop_map(Step::Fill),
        3 => place().prop_map(Step::Read),
        1 => (0usize..3).prop_map(Step::Wait),
        1 => Just(Step::WaitForAll),
    ];
    (0usize..3, step)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each read of a marked tensor fails with the index of one of its marks. An unmarked tensor
    /// has the right values.
    #[test]
    fn s08_tensors_are_marked_as_a_model_says(steps in prop::collection::vec(step(), 0..60)) {
        for schedule in schedules() {
            SimBox::with(1, schedule, SyncPolicy::Auto).enter(|| run(&steps, schedule));
        }
    }
}

type Indices = BTreeSet<i64>;

/// Expected values of a tensor, and the bad indices that mark the whole tensor and its middle.
#[derive(Clone, Debug, Default)]
struct Model {
    values: [f32; WIDTH],
    whole: Indices,
    middle: Indices,
}

impl Model {
    fn marks(&self) -> Indices {
        &self.whole | &self.middle
    }
}

struct Program {
    tensors: Vec<Tensor>,
    /// Picks a row for tensor 0, and adds tensor 2 to tensor 1.
    graph: CudaGraph,
    /// The index of the row.
    index: Tensor,
    models: Vec<Model>,
    /// Indices of failures that the host is sure to know, because it has waited for them.
    known: Indices,
    issued: Indices,
}

impl Program {
    /// Returns whether work that depends on `marks` was enqueued. Such work must be refused if the
    /// host already knows one of the failures.
    fn done<R: std::fmt::Debug>(&self, answer: Result<R>, marks: &Indices, context: &str) -> bool {
        if answer.is_ok() {
            assert!(marks.is_disjoint(&self.known), "{context}: {marks:?} not refused");
            return true;
        }
        assert!(marks.contains(&failed(answer).index), "{context}: {marks:?}");
        false
    }
}

/// Calls `f` again while it fails only because of a report.
fn again<R>(mut f: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 0..8 {
        match f() {
            Err(error) if matches!(error.kind(), ErrorKind::IndexCheck { .. }) => {}
            answer => return answer,
        }
    }
    f()
}

fn run(steps: &[(usize, Step)], schedule: Schedule) -> Result<()> {
    let table = arange(16.0f32, 0)?.view([4, WIDTH as isize])?;
    let host = || zeros([WIDTH], ())?.pin_memory();
    let tensors = (0..TENSORS).map(|_| zeros([WIDTH], 0)).chain([host()]);
    let streams = [0; 3].map(|_| cuda::Stream::new(0));
    let streams: Vec<Stream> = streams.into_iter().collect::<Result<_>>()?;
    let tensors = tensors.collect::<Result<Vec<Tensor>>>()?;
    let (mut graph, index) = (CudaGraph::new(), zeros([1], (DType::I64, 0))?);
    cuda::with_stream(&streams[0], || {
        graph.capture(|| {
            tensors[0].copy_(&embedding(&table, &index)?.view([WIDTH as isize])?, ())?;
            tensors[1].add_(&tensors[2]).map(drop)
        })
    })?;
    let mut program = Program {
        tensors,
        graph,
        index,
        models: vec![Model::default(); TENSORS + 1],
        known: Indices::new(),
        issued: Indices::new(),
    };
    for (i, (stream, step)) in steps.iter().enumerate() {
        let context = format!("step {i} of {steps:?}, {schedule:?}");
        let _on = cuda::stream(&streams[*stream])?;
        program.step(i as i64, step, &table, &streams, &context)?;
    }
    (0..=TENSORS)
        .try_for_each(|t| program.read(t, &format!("at the end of {steps:?}, {schedule:?}")))
}

impl Program {
    fn step(
        &mut self,
        i: i64,
        step: &Step,
        table: &Tensor,
        streams: &[Stream],
        context: &str,
    ) -> Result<()> {
        let of = |t: &usize| (&self.tensors[*t], self.models[*t].clone());
        match step {
            Step::Pick { to, bad } => {
                let index = if *bad { 100 + i } else { i % 4 };
                let row = embedding(table, &full([1], index, (DType::I64, 0))?)?;
                let mut model = Model::default();
                if *bad {
                    self.issued.insert(index);
                    model.whole.insert(index);
                } else {
                    model.values = std::array::from_fn(|k| (4 * index) as f32 + k as f32);
                }
                let copied = of(to).0.copy_(&row.view([WIDTH as isize])?, ()).map(drop);
                if self.done(copied, &model.whole, context) {
                    self.models[*to] = model;
                }
            }
            Step::Add(to, [a, b]) => {
                let ((a, x), (b, y)) = (of(a), of(b));
                let marks = &x.marks() | &y.marks();
                let copied = a.add(b).and_then(|sum| of(to).0.copy_(&sum, ()).map(drop));
                if self.done(copied, &marks, context) {
                    let values = std::array::from_fn(|k| x.values[k] + y.values[k]);
                    self.models[*to] = Model { values, whole: marks, middle: Indices::new() };
                }
            }
            Step::AddInto(to, a) => {
                let ((to_tensor, x), (a, y)) = (of(to), of(a));
                let marks = &x.marks() | &y.marks();
                if self.done(to_tensor.add_(a).map(drop), &marks, context) {
                    let values = std::array::from_fn(|k| x.values[k] + y.values[k]);
                    self.models[*to] = Model { values, whole: marks, middle: Indices::new() };
                }
            }
            Step::Copy(to, a) if to == a => {}
            Step::Copy(to, a) => {
                let (a, x) = of(a);
                let marks = x.marks();
                if self.done(of(to).0.copy_(a, true).map(drop), &marks, context) {
                    let values = x.values;
                    self.models[*to] = Model { values, whole: marks, middle: Indices::new() };
                }
            }
            Step::Middle(to, a) if to == a => {}
            Step::Middle(to, a) => {
                let (a, x) = of(a);
                let marks = x.marks();
                let part = |t: &Tensor| t.narrow(0, MIDDLE[0] as isize, MIDDLE.len());
                let copied = part(of(to).0)?.copy_(&part(a)?, true).map(drop);
                if self.done(copied, &marks, context) {
                    let model = &mut self.models[*to];
                    model.middle = marks;
                    MIDDLE.iter().for_each(|k| model.values[*k] = x.values[*k]);
                }
            }
            Step::Replay { bad, times } => {
                // Wait first, because overlapping replays would share a report slot.
                let _ = cuda::synchronize(0);
                self.known = self.issued.clone();
                let index = if *bad { 100 + i } else { i % 4 };
                self.index.fill_(index)?;
                let marks = &self.models[1].marks() | &self.models[2].marks();
                for _ in 0..*times {
                    if !self.done(self.graph.replay(), &marks, context) {
                        return Ok(());
                    }
                    let picked = std::array::from_fn(|k| (4 * index) as f32 + k as f32);
                    self.models[0] = Model { values: picked, ..Model::default() };
                    if *bad {
                        self.issued.insert(index);
                        self.models[0].whole.insert(index);
                    }
                    let added = self.models[2].values;
                    self.models[1].values.iter_mut().zip(added).for_each(|(to, x)| *to += x);
                }
            }
            Step::Fill(t) => {
                again(|| self.tensors[*t].fill_(i as f64).map(drop))?;
                let values = [i as f32; WIDTH];
                self.models[*t] = Model { values, ..Model::default() };
            }
            Step::Read(t) => self.read(*t, context)?,
            Step::Wait(stream) => drop(streams[*stream].synchronize()),
            Step::WaitForAll => {
                let _ = cuda::synchronize(0);
                self.known = self.issued.clone();
            }
        }
        Ok(())
    }

    fn read(&self, t: usize, context: &str) -> Result<()> {
        let (tensor, model) = (&self.tensors[t], &self.models[t]);
        let marks = model.marks();
        if marks.is_empty() {
            assert_eq!(again(|| tensor.to_vec::<f32>())?, model.values, "{context}");
            return Ok(());
        }
        for _ in 0..2 {
            let index = failed(tensor.to_vec::<f32>()).index;
            assert!(marks.contains(&index), "{context}: {index}, not of {marks:?}");
        }
        Ok(())
    }
}

/// A program that never waits for its launches reads either the right data or the failure.
#[test]
fn s08_marks_of_a_program_that_never_waits() {
    common::schedules_with(1, &RuntimeConfig::default(), |_| {
        let (t, good) = (table(0)?, which(1)?);
        let (sum, right) = (zeros([1, 3], 0)?, zeros([1, 3], 0)?);
        let mut told = false;
        for turn in 0..300 {
            right.add_(&embedding(&t, &good)?)?;
            let row = picked(&t, if turn == 123 { 77 } else { 1 })?;
            // The host may know that the launch is complete although it has not waited.
            if let Err(refused) = sum.add_(&row) {
                assert!(turn >= 123, "{turn}: {refused}");
                assert_eq!(failed(Err::<(), _>(refused)).index, 77);
                told = true;
            }
        }
        if !told {
            assert_eq!(failed(cuda::synchronize(0)).index, 77);
        }
        cuda::synchronize(0)?;
        assert_eq!(right.to_vec::<f32>()?, [900.0, 1200.0, 1500.0]);
        assert_marked(&sum, 77);
        Ok(())
    });
}
