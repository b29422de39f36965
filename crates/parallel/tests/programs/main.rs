//! Random programs against the public safe API.
//!
//! A *generator* creates programs from seeds ([`generate`]). A program is a list of calls of the
//! rows of a *table* ([`ops`], [`views`], [`gradients`], [`scenarios`],
//! [`modules`], [`optimizers`], [`files`], `channels`, [`loaders`], [`queries`], [`groups`]). A row
//! is a public function, or a fixed combination of public functions, with a rule for drawing valid arguments
//! and a prediction of the outcome. For about a third of the calls, a wrong argument is tried:
//! another number, or another tensor.
//!
//! A *model* ([`model`], [`apply`]) predicts the outcome of each call: the results, or the kinds of
//! error that a wrong call may return. It knows shapes, dtypes, strides, devices, aliasing,
//! gradients and memory, but no values. Calls that the model cannot predict are not generated.
//! Predictions depend only on the calls of a program, so calls can be left out and the remaining
//! program is predicted again.
//!
//! An *interpreter* ([`run`]) runs each program on the CPU and on two simulated GPUs under the
//! laziest schedule and a seeded one. Steps run on several streams, some in their own threads. Some
//! steps that are independent in the model run at the same time. The interpreter checks:
//!
//! - A call has the predicted outcome: sizes, dtype, device, strides, offset, shared memory and
//!   `requires_grad` of its results, or one of the kinds of error.
//! - No call panics, crashes or hangs. On the CPU, a failed call changes no tensor.
//! - Values are equal under both schedules. Between CPU and GPU they are equal or, after a call that
//!   may round differently, equal up to rounding. Values computed from rounded values are not
//!   compared.
//! - Gradients are equal under both schedules. If no values are rounded or random, the gradients of
//!   CPU and GPU are equal up to rounding.
//! - As long as no tensor has required a gradient, the allocator and the model agree on the number
//!   of allocated bytes after every group of steps that run at the same time. At the end no memory
//!   is in use, and the driver has no objects.
//! - No kernel accesses memory outside its declared footprint.
//! - In a further run ([`faults`]), a driver call fails, once or every time from then on. Any later
//!   call of the program may fail, but nothing panics, no memory remains in use, and later ops
//!   work.
//!
//! With `WARPLINE_TEST_ON_GPUS=1`, programs run on the CPU and on two GPUs instead, with the checks that need no
//! simulator.
//!
//! Programs run in child processes ([`campaign`]). A failing program is shrunk by leaving out
//! calls, and printed as Rust code with its seed ([`print`]).
//!
//! Environment variables: `WARPLINE_PROGRAMS` is the number of programs (default: 2,000),
//! `WARPLINE_PROGRAM_SEED` the first seed (default: 0), and `WARPLINE_PROGRAM_COVERAGE` a file to
//! which the table of calls ([`coverage`]) is written.
//!
//! Not covered yet: channels to another process (both ends are in one process), `DistributedDataParallel`, recurrent
//! modules, and functions without a row.

mod apply;
mod campaign;
#[cfg(target_os = "linux")]
mod channels;
mod coverage;
mod faults;
mod files;
mod generate;
mod gradients;
mod groups;
mod loaders;
mod model;
mod modules;
mod ops;
mod optimizers;
mod plan;
mod prelude;
mod print;
mod queries;
#[path = "../../../tensor/tests/common/random.rs"]
mod random;
mod row;
mod run;
mod scenarios;
mod views;

use campaign::number;

#[test]
fn random_programs() {
    let count = number("WARPLINE_PROGRAMS", 2000);
    let first = number("WARPLINE_PROGRAM_SEED", 0);
    let coverage = campaign::campaign(first, count);
    if count >= 2000 {
        let reached =
            |row: &row::Row| coverage.keys().any(|call| call.split('\t').next() == Some(row.name));
        let missing: Vec<&str> =
            ops::table().iter().filter(|row| !reached(row)).map(|row| row.name).collect();
        assert!(missing.is_empty(), "no program calls {missing:?}");
    }
    if let Ok(path) = std::env::var("WARPLINE_PROGRAM_COVERAGE") {
        let table = coverage::table(first, count, &coverage);
        std::fs::write(&path, table).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}

#[test]
#[ignore = "the child process of `random_programs`"]
fn worker() {
    campaign::work();
}
