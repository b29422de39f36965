//! Tests of row S8: an error that is reported after its launch lists all launches of the stream
//! that may be incomplete, oldest first, with shapes and call sites.

use warpline::{Error, ErrorKind, Result, SyncPolicy, Tensor, cuda, ones};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule};
use warpline_stream::PendingLaunches;

use crate::boxes::{SimBox, schedules};

fn pending(error: &Error) -> &[PendingLaunches] {
    match error.kind() {
        ErrorKind::Surfaced { pending } | ErrorKind::NotStarted { pending } => pending,
        _ => panic!("it lists no launches: {error}"),
    }
}

/// Returns the op and the line of each listed launch.
fn listed(of: &PendingLaunches) -> Vec<(&'static str, u32)> {
    of.launches.iter().map(|l| (l.op, l.location.line())).collect()
}

/// Injects a fault into the next kernel of the device, and returns a tensor on this device.
fn struck(world: &SimBox) -> Result<Tensor> {
    let a = ones([2, 3], 0)?;
    cuda::synchronize(0)?; // completed launches are not listed
    world.sim.inject(Fault::new(CallKind::Launch, CudaCode::ILLEGAL_ADDRESS).at_run().on(0));
    Ok(a)
}

#[test]
fn s08_an_error_lists_the_launches_it_may_be_of() {
    type Wait = fn(&Tensor) -> Error;
    let waits: [Wait; 6] = [
        |_| cuda::synchronize(0).expect_err("synchronize"),
        |_| cuda::current_stream(0).expect("it").synchronize().expect_err("stream"),
        |a| a.to_vec::<f32>().expect_err("a copy back"),
        |a| a.sum(()).and_then(|s| s.item::<f32>()).expect_err("item"),
        |_| loop {
            match cuda::current_stream(0).expect("it").query() {
                Ok(done) => assert!(!done, "the launch has failed"),
                Err(error) => return error,
            }
        },
        |_| {
            let event = cuda::current_stream(0).and_then(|s| s.record_event(None));
            event.expect("an event").synchronize().expect_err("event")
        },
    ];
    for (i, wait) in waits.into_iter().enumerate() {
        let world = SimBox::lazy(1);
        world.enter(|| {
            let a = struck(&world)?;
            let (first, b) = (line!(), a.mul(&a)?);
            let (second, c) = (line!(), b.add(1.0)?);
            let error = wait(&c);
            let pending = pending(&error);
            let listed = listed(&pending[0]);
            assert_eq!(listed[..2], [("mul", first), ("add", second)], "wait {i}: {error}");
            assert_eq!((pending.len(), pending[0].older), (1, 0));
            let text = error.to_string();
            let mul =
                format!("mul(float32[2, 3], float32[2, 3], float32[2, 3]) at {}:{first}:", file!());
            for fact in ["CUDA_ERROR_ILLEGAL_ADDRESS", "the default stream of cuda:0", &mul] {
                assert!(text.contains(fact), "wait {i}: no `{fact}` in: {text}");
            }
            Ok(())
        });
    }
}

/// A copy that is staged in page-locked memory waits for earlier work on its own, so it may report
/// a failure.
#[test]
fn s08_a_large_copy_lists_pending_launches_too() {
    for to_device in [false, true] {
        let world = SimBox::lazy(1);
        world.enter(|| {
            let large = ones([16 << 20], 0)?;
            let host = ones([16 << 20], "cpu")?;
            let a = struck(&world)?;
            let (line, b) = (line!(), a.mul(&a)?);
            let copied = if to_device { large.copy_(&host, ()) } else { host.copy_(&large, ()) };
            let error = copied.map(drop).expect_err("the failed launch");
            assert_eq!(listed(&pending(&error)[0])[0], ("mul", line), "{error}");
            drop(b);
            Ok(())
        });
    }
}

#[test]
fn s08_a_later_launch_lists_pending_launches_too() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let a = struck(&world)?;
        let (line, b) = (line!(), a.mul(&a)?);
        assert!(cuda::synchronize(0).is_err());
        let (later, result) = (line!(), b.add(1.0));
        let error = result.expect_err("a launch on a lost device");
        assert_eq!(listed(&pending(&error)[0]), [("mul", line)]);
        let text = error.to_string();
        let start = format!("add at {}:{later}:", file!());
        assert!(text.starts_with(&start) && text.contains("cuda:0 is lost"), "{text}");
        let error = b.copy_(&a, ()).map(drop).expect_err("a copy on a lost device");
        assert_eq!(listed(&pending(&error)[0]), [("mul", line)]);
        Ok(())
    });
}

#[test]
fn s08_the_ring_is_bounded_and_counts_dropped_launches() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let a = struck(&world)?;
        for _ in 0..100 {
            a.add_(1.0)?;
        }
        let error = cuda::synchronize(0).expect_err("the failed launch");
        let pending = &pending(&error)[0];
        assert_eq!((pending.launches.len(), pending.older), (64, 36));
        assert!(pending.launches.is_sorted_by_key(|l| l.number));
        assert!(error.to_string().contains("36 older operation(s)"), "{error}");
        Ok(())
    });
}

/// The synchronized stream is listed first. Other streams are also listed, because the whole device
/// is lost.
#[test]
fn s08_other_streams_of_a_lost_device_come_after() {
    for schedule in schedules() {
        let world = SimBox::with(2, schedule, SyncPolicy::Auto);
        world.enter(|| {
            let a = ones([4], 0)?;
            let s = cuda::Stream::new(0)?;
            let b = cuda::with_stream(&s, || ones([4], 0))?;
            cuda::synchronize(0)?;
            world
                .sim
                .inject(Fault::new(CallKind::Launch, CudaCode::ILLEGAL_ADDRESS).at_run().on(0));
            let (line, failed) = (line!(), a.mul_(2.0));
            if failed.is_err() {
                return Ok(()); // the launch ran at once and returned the error
            }
            let (other, failed) = (line!(), cuda::with_stream(&s, || b.neg()));
            let error = match failed {
                Ok(_) => s.synchronize().expect_err("the device is lost"),
                Err(error) => error,
            };
            let lists: Vec<_> = pending(&error).iter().map(listed).collect();
            let all = [vec![("neg", other)], vec![("mul", line)]];
            // If `neg` was refused, only the launch before it is listed.
            assert!(lists == all || lists == all[1..], "{error}");
            if schedule == Schedule::Lazy {
                assert_eq!(lists, all);
            }
            Ok(())
        });
    }
}
