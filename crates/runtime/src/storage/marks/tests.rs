//! Tests of marks, and of their translation by replays.

use std::sync::Arc;

use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_stream::{CapturedChecks, Devices, KernelSet};

use super::*;
use crate::completion::{Completion, PendingCollective};
use crate::launch::TOKEN;
use crate::{ErrorKind, Site};

/// Returns a pending collective on the communicator with index `number`.
fn pending(number: usize) -> Dependency {
    static ALL: std::sync::OnceLock<[Completion; 8]> = std::sync::OnceLock::new();
    let completion = &ALL.get_or_init(Default::default)[number];
    let here = std::panic::Location::caller();
    Dependency::Collective(PendingCollective::new((completion, 1), "test", here))
}

fn source(kernel: usize) -> Dependencies {
    [pending(kernel)].into_iter().collect()
}

fn read(marks: &mut StorageMarks, bytes: Range<usize>) -> Vec<Dependency> {
    let mut dependencies = Dependencies::new();
    marks.read(&bytes, &mut dependencies).unwrap();
    dependencies.to_vec()
}

#[test]
fn overwriting_from_the_ends_removes_marks() {
    let mut marks = StorageMarks::default();
    marks.add(&(10..40), &source(0));
    marks.overwrite(&(20..30)); // has no effect, because it would split the mark
    for (overwritten, left) in [(0..15, 15..40), (35..90, 15..35), (30..35, 15..30)] {
        marks.overwrite(&overwritten);
        let hit = |at| !read(&mut marks.clone(), at..at + 1).is_empty();
        assert!((0..100).all(|at| hit(at) == left.contains(&at)), "{overwritten:?}");
    }
    marks.overwrite(&(0..30));
    assert!(marks.is_empty());
}

#[test]
fn many_marks_merge_into_one() {
    let mut marks = StorageMarks::default();
    for i in 0..100 {
        marks.add(&(10 * i..10 * i + 5), &source(i % 5));
    }
    assert!(marks.marks.len() <= MAX_MARKS + 1);
    for i in 0..100 {
        assert!(read(&mut marks, 10 * i..10 * i + 1).contains(&pending(i % 5)));
    }
    assert!(read(&mut marks, 2000..3000).is_empty());
}

#[test]
fn a_collective_covers_earlier_ones_of_its_communicator() {
    let completions = [Completion::default(), Completion::default()];
    let here = std::panic::Location::caller();
    let of = |at: usize, number| {
        Dependency::Collective(PendingCollective::new((&completions[at], number), "test", here))
    };
    let mut marks = StorageMarks::default();
    for dependencies in [[of(0, 1), of(1, 1)], [of(0, 3), of(0, 2)]] {
        marks.add(&(0..8), &dependencies.into_iter().collect());
    }
    assert_eq!(read(&mut marks, 0..8), [of(0, 3), of(1, 1)]);
    completions[1].done_up_to(1);
    assert_eq!(read(&mut marks, 0..8), [of(0, 3)]);
    completions[0].done_up_to(2);
    completions[0].fail(std::sync::Arc::new(std::fmt::Error));
    assert!(matches!(marks.failed(&(7..9)), Some(e) if matches!(e.kind(), ErrorKind::Collective)));
    assert!(marks.failed(&(8..9)).is_none());
    assert!(marks.read(&(0..1), &mut Dependencies::new()).is_err());
}

#[test]
fn a_replay_turns_captured_collectives_into_its_own() {
    let completions = [Completion::default(), Completion::default()];
    let of = |op, at: usize, number| {
        let here = std::panic::Location::caller();
        PendingCollective::new((&completions[at], number), op, here)
    };
    let mut captured_marks = StorageMarks::default();
    for (bytes, at, number) in [(0..8, 0, 1), (0..8, 0, 2), (8..16, 1, 1)] {
        captured_marks.add(
            &bytes,
            &[Dependency::CapturedCollective(of("captured", at, number))].into_iter().collect(),
        );
    }
    assert_eq!(read(&mut captured_marks, 0..8).len(), 1);
    let replays = [0, 1].map(|at| Dependency::Collective(of("replay", at, 10 + at as u64)));
    let mut new = captured_marks.after_replay(
        &StorageMarks::default(),
        &mut ReplayDependencies::new(&Dependencies::new(), &replays),
    );
    assert_eq!(read(&mut new, 0..8), [Dependency::Collective(of("captured", 0, 10))]);
    assert_eq!(read(&mut new, 8..16), [Dependency::Collective(of("captured", 1, 11))]);
    completions[0].fail(std::sync::Arc::new(std::fmt::Error));
    let text = new.failed(&(0..8)).unwrap().to_string();
    assert!(text.contains("captured at "), "{text}");
    assert!(new.failed(&(8..16)).is_none());
}

#[test]
fn a_replay_keeps_marks_of_bytes_that_it_does_not_overwrite() {
    let (mut old, mut captured_marks) = (StorageMarks::default(), StorageMarks::before_replay(100));
    old.add(&(0..60), &source(7));
    captured_marks.overwrite(&(0..50));
    let kernel = |number| Dependency::CapturedKernels(KernelSet::of(number));
    captured_marks.add(&(0..20), &[kernel(1), Dependency::ReplayInputs].into_iter().collect());
    assert_eq!(read(&mut captured_marks, 50..60), [Dependency::ReplayInputs]);
    assert_eq!(captured_marks.replay_inputs(), Some(&(50..60)));
    let (stream, checks) = captured(2);
    let replay = checks.begin_replay(TOKEN, &stream, 1).unwrap();
    let mut new = captured_marks.after_replay(
        &old,
        &mut ReplayDependencies::new(&source(3), &[Dependency::Launch(replay.clone())]),
    );
    let second = Dependency::Launch(replay.of_kernels(&KernelSet::of(1)));
    assert_eq!(read(&mut new, 0..20), [second, pending(3)]);
    assert_eq!(read(&mut new, 20..50), []);
    assert_eq!(read(&mut new, 50..60), source(7)[..]);
    assert_eq!(read(&mut new, 60..100), []);
}

/// Returns a stream on which no work completes by itself, and the index checks of a graph with
/// `kernels` kernels.
fn captured(kernels: usize) -> (Stream, Arc<CapturedChecks>) {
    let driver = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
    let stream = Devices::new(driver).unwrap().get(0).unwrap().exclusive_stream(0).unwrap();
    let checks = Arc::new(CapturedChecks::default());
    for _ in 0..kernels {
        checks.add(&stream, Site::here("test")).unwrap();
    }
    (stream, checks)
}

/// The replays read the whole storage and write a part of it.
#[test]
fn marks_do_not_grow_with_the_number_of_outstanding_replays() {
    let (stream, checks) = captured(100);
    let mut captured_marks = StorageMarks::before_replay(100);
    for kernel in 0..100 {
        let dependencies =
            [Dependency::CapturedKernels(KernelSet::of(kernel)), Dependency::ReplayInputs];
        captured_marks.add(&(0..40), &dependencies.into_iter().collect());
    }
    let mut marks = StorageMarks::default();
    for op in 1..=1000 {
        let mut inputs = Dependencies::new();
        marks.read(&(0..100), &mut inputs).unwrap();
        inputs.merge_launches(MAX_LAUNCHES, &stream, op);
        let replay = checks.begin_replay(TOKEN, &stream, op).unwrap();
        marks = captured_marks.after_replay(
            &marks,
            &mut ReplayDependencies::new(&inputs, &[Dependency::Launch(replay)]),
        );
        marks.merge_launches(&stream, op);
        let dependencies = marks.marks.iter().map(|mark| mark.dependencies.len());
        assert_eq!(dependencies.sum::<usize>(), 1, "{op}");
    }
}
