//! Tests of row S8: random programs with indices out of range on several streams. A model predicts
//! which call reports which failure.

use std::collections::BTreeMap;

use proptest::prelude::*;
use warpline::cuda::{self, Stream};
use warpline::{Result, SyncPolicy, Tensor, embedding};
use warpline_cuda_sys_safe::sim::Schedule;

use crate::boxes::{SimBox, schedules};
use crate::s08_index_check::{failed, indices, table};

/// A step of a random program.
#[derive(Clone, Debug)]
enum Step {
    Good(usize),
    Bad(usize),
    Stream(usize),
    Device,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..3).prop_map(Step::Good),
        3 => (0usize..3).prop_map(Step::Bad),
        2 => (0usize..3).prop_map(Step::Stream),
        1 => Just(Step::Device),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A wait for a stream reports the stream's first failure since the last wait.
    #[test]
    fn s08_every_wait_reports_the_failure_that_a_model_predicts(steps in prop::collection::vec(step(), 0..40)) {
        for schedule in schedules() {
            SimBox::with(1, schedule, SyncPolicy::Auto).enter(|| run(&steps, schedule));
        }
    }
}

fn run(steps: &[Step], schedule: Schedule) -> Result<()> {
    let t = table(0)?;
    let bad: Vec<Tensor> =
        (0..steps.len()).map(|i| indices(0, &[100 + i as i64])).collect::<Result<_>>()?;
    let good = indices(0, &[1])?;
    cuda::synchronize(0)?;
    let streams = [0; 3].map(|_| cuda::Stream::new(0));
    let streams: Vec<Stream> = streams.into_iter().collect::<Result<_>>()?;
    let mut owed = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        let context = format!("step {i} of {steps:?}, {schedule:?}");
        let on = |s: usize, which| cuda::with_stream(&streams[s], || embedding(&t, which));
        match *step {
            Step::Good(s) => drop(on(s, &good)?),
            Step::Bad(s) => {
                on(s, &bad[i])?;
                owed.entry(s).or_insert(100 + i as i64);
            }
            Step::Stream(s) => match owed.remove(&s) {
                Some(index) => {
                    assert_eq!(failed(streams[s].synchronize()).index, index, "{context}")
                }
                None => streams[s].synchronize().unwrap_or_else(|e| panic!("{e}: {context}")),
            },
            Step::Device => {
                let mut said: Vec<i64> =
                    (0..owed.len()).map(|_| failed(cuda::synchronize(0)).index).collect();
                said.sort_unstable();
                let mut should: Vec<i64> = std::mem::take(&mut owed).into_values().collect();
                should.sort_unstable();
                assert_eq!(said, should, "{context}");
                cuda::synchronize(0).unwrap_or_else(|e| panic!("{e}: {context}"));
            }
        }
    }
    Ok(())
}
