//! Programs of several threads, and the check that some sequential order of their steps gives the
//! same results.

use std::collections::HashSet;
use std::panic::Location;

use warpline_cuda_sys_safe::MemsetValue;
use warpline_runtime::graph::Graph;
use warpline_runtime::launch::{memset, write_bytes};
use warpline_runtime::{Storage, Target};
use warpline_stream::Stream;

use super::*;

/// A step of a thread. Numbers are indices of storages unless described otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Sets every byte of the storage to the value.
    Fill(usize, u8),
    /// Sets each element of the first storage, `to`, to `to * 3 + from + add`. Both storages must
    /// be on the device, or both on the host.
    Mix(usize, usize, i64),
    /// Copies the second storage to the first. If the flag is true, the copy is non-blocking.
    Copy(usize, usize, bool),
    Read(usize),
    /// Replays the graph with this index.
    Replay(usize),
}

/// A graph, and the `to`, `from`, `factor` and `add` of calls of `mix` that have the same effect.
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    pub(crate) does: Vec<(usize, usize, i64, i64)>,
}

/// State that the threads share.
pub(crate) struct Shared {
    pub(crate) storages: Vec<Storage>,
    pub(crate) graphs: Vec<Captured>,
}

fn byte(value: u8) -> i64 {
    i64::from_ne_bytes([value; 8])
}

impl Shared {
    fn is_host(&self, at: usize) -> bool {
        self.storages[at].cuda_device().is_none()
    }

    /// Returns a random step that these storages allow.
    pub(crate) fn random_step(&self) -> Step {
        let count = self.storages.len();
        let number = 1 + random(250);
        loop {
            let (to, from) = (random(count), random(count));
            let both = [to, from].map(|at| self.is_host(at));
            return match random(if self.graphs.is_empty() { 6 } else { 8 }) {
                0 => Step::Fill(to, number as u8),
                1 | 2 if to != from && both[0] == both[1] => Step::Mix(to, from, number as i64),
                3 | 4 if to != from && both != [true; 2] => Step::Copy(to, from, random(2) == 0),
                5 => Step::Read(to),
                6.. => Step::Replay(random(self.graphs.len())),
                _ => continue,
            };
        }
    }

    /// Runs a step. Returns the value that it read.
    pub(crate) fn run(&self, step: Step, stream: &Stream) -> Option<i64> {
        match step {
            Step::Fill(to, value) => {
                let to = &self.storages[to];
                if to.cuda_device().is_some() {
                    let here = Location::caller();
                    let value = MemsetValue::U8(value);
                    memset(stream, (to, 0), value, BYTES, "fill_", here).unwrap();
                } else {
                    write_bytes((to, 0), &[value; BYTES]).unwrap();
                }
            }
            Step::Mix(to, from, add) if self.is_host(to) => {
                let (to, from) = (&self.storages[to], &self.storages[from]);
                mix(Target::Cpu(to.runtime()), to, from, 3, add).unwrap();
            }
            Step::Mix(to, from, add) => {
                mix_on(stream, &self.storages[to], &self.storages[from], 3, add).unwrap();
            }
            Step::Copy(to, from, non_blocking) => {
                copy(stream, &self.storages[to], &self.storages[from], non_blocking).unwrap();
            }
            Step::Read(from) if self.is_host(from) => return Some(value(&self.storages[from])),
            Step::Read(from) => return Some(value_of(stream, &self.storages[from])),
            Step::Replay(graph) => self.graphs[graph].graph.replay(stream).unwrap(),
        }
        None
    }

    /// Applies a step to a model of the storages' values. Returns the value that it reads.
    fn model(&self, step: Step, values: &mut [i64]) -> Option<i64> {
        match step {
            Step::Fill(to, value) => values[to] = byte(value),
            Step::Mix(to, from, add) => values[to] = mixed(values[to], values[from], 3, add),
            Step::Copy(to, from, _) => values[to] = values[from],
            Step::Read(from) => return Some(values[from]),
            Step::Replay(graph) => {
                for &(to, from, factor, add) in &self.graphs[graph].does {
                    values[to] = mixed(values[to], values[from], factor, add);
                }
            }
        }
        None
    }
}

/// Runs the steps of each thread on the thread's stream. Asserts that some sequential order of all
/// steps gives the values that were read and the final values of the storages. In this order, the
/// steps of each thread keep their own order.
pub(crate) fn run(shared: Shared, before: Vec<i64>, threads: Vec<(Stream, Vec<Step>)>) {
    let shared = Arc::new(shared);
    let steps: Vec<Vec<Step>> = threads.iter().map(|(_, steps)| steps.clone()).collect();
    let last = threads[0].0.clone();
    let tasks = threads.into_iter().map(|(stream, steps)| {
        let shared = Arc::clone(&shared);
        move || steps.into_iter().map(|step| shared.run(step, &stream)).collect::<Vec<_>>()
    });
    let seen = together(tasks);
    let all = 0..shared.storages.len();
    let after: Vec<i64> =
        all.map(|at| shared.run(Step::Read(at), &last).unwrap_or_default()).collect();
    let search = Search { shared: &shared, steps: &steps, seen: &seen, after: &after };
    let mut tried = HashSet::new();
    assert!(
        search.reaches_the_end(vec![0; steps.len()], before.clone(), &mut tried),
        "no order of {steps:?} from {before:?} reads {seen:?} and ends with {after:?}"
    );
}

struct Search<'a> {
    shared: &'a Shared,
    steps: &'a [Vec<Step>],
    seen: &'a [Vec<Option<i64>>],
    after: &'a [i64],
}

impl Search<'_> {
    fn reaches_the_end(
        &self,
        done: Vec<usize>,
        values: Vec<i64>,
        tried: &mut HashSet<(Vec<usize>, Vec<i64>)>,
    ) -> bool {
        if !tried.insert((done.clone(), values.clone())) {
            return false;
        }
        let left = (0..done.len()).filter(|&t| done[t] < self.steps[t].len());
        let left: Vec<usize> = left.collect();
        if left.is_empty() {
            return values == self.after;
        }
        left.into_iter().any(|thread| {
            let (mut values, mut done) = (values.clone(), done.clone());
            let at = done[thread];
            let read = self.shared.model(self.steps[thread][at], &mut values);
            done[thread] += 1;
            read == self.seen[thread][at] && self.reaches_the_end(done, values, tried)
        })
    }
}
