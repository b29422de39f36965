//! Tests of row S8: with `launch_blocking`, every launch waits for its completion, and the call
//! that launched reports a failure. Otherwise the next synchronization reports the failure and
//! names the launch.

use warpline::{Error, ErrorKind, Result, RuntimeConfig, cuda, ones};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};

use crate::boxes::{SimBox, schedules};

fn boxed(schedule: Schedule, launch_blocking: bool) -> SimBox {
    let config = RuntimeConfig { launch_blocking, ..RuntimeConfig::default() };
    SimBox::new(SimConfig { schedule, ..SimConfig::new(2) }, &config)
}

fn illegal_address() -> Fault {
    Fault::new(CallKind::Launch, CudaCode::ILLEGAL_ADDRESS).at_run()
}

/// Asserts that an error names the op, the code and the line of the call.
fn assert_names(error: &Error, op: &str, line: u32) {
    let text = error.to_string();
    let site = format!("{}:{line}:", file!());
    for fact in [op, "CUDA_ERROR_ILLEGAL_ADDRESS", &site] {
        assert!(text.contains(fact), "no `{fact}` in: {text}");
    }
}

#[test]
fn s08_a_blocking_launch_reports_its_own_failure() {
    for (schedule, device) in schedules().into_iter().flat_map(|s| [(s, 1), (s, 0)]) {
        let world = boxed(schedule, true);
        world.enter(|| {
            let (a, b) = (ones([8], device)?, ones([8], device)?);
            assert_eq!((&a + &b)?.to_vec::<f32>()?, [2.0; 8]);
            world.sim.inject(illegal_address().on(device));
            let (line, result) = (line!(), a.add(&b));
            let error = result.expect_err("a failed launch");
            assert!(matches!((error.op(), error.kind()), ("add", ErrorKind::Driver)), "{error:?}");
            assert_names(&error, "add", line);
            Ok(())
        });
    }
}

#[test]
fn s08_without_launch_blocking_the_next_synchronisation_reports_the_failure() {
    let world = boxed(Schedule::Lazy, false);
    world.enter(|| {
        let (a, b) = (ones([8], "cuda")?, ones([8], "cuda")?);
        let elsewhere = ones([8], "cuda:1")?;
        world.sim.inject(illegal_address().on(0).after(2)); // the fills come first
        let (line, sum) = (line!(), a.mul(&b)?);
        let later = (&sum + 1.0)?;
        let error = cuda::synchronize(0).expect_err("the failed launch");
        assert_names(&error, "mul", line);
        assert!(later.to_vec::<f32>().is_err());
        let error = elsewhere.to_vec::<f32>().expect_err("all devices are lost");
        assert_names(&error, "mul", line);
        Ok(())
    });
}

/// Checks that all work of an op is complete when the op returns.
fn nothing_is_left() -> Result<()> {
    let stream = cuda::current_stream(())?;
    let a = ones([64, 64], "cuda")?;
    assert!(stream.query()?);
    for _ in 0..5 {
        a.matmul(&a)?.add_(1.0)?;
        assert!(stream.query()?, "a blocking launch returned before it had run");
    }
    Ok(())
}

#[test]
fn s08_each_launch_is_waited_for() {
    for schedule in schedules() {
        let world = boxed(schedule, true);
        world.enter(|| {
            let a = ones([4], "cuda")?;
            for _ in 0..5 {
                a.add_(1.0)?;
                assert_eq!(world.sim.pending(), 0);
            }
            nothing_is_left()
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s08_each_launch_is_waited_for() {
    let config = RuntimeConfig { launch_blocking: true, ..RuntimeConfig::default() };
    let runtime = warpline::open(&crate::common::gpu_spec(), &config).expect("a GPU");
    warpline::with_runtime(&runtime, nothing_is_left).expect("no failure");
}
