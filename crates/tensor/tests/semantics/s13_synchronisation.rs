//! Tests of row S13: `synchronize`, `wait_stream`, `wait_event`, `record_event`, `query` and
//! `elapsed_time`.

use warpline::cuda::{Event, EventFlags, Stream};
use warpline::{DType, Result, Tensor, cuda, full, zeros};

use crate::boxes::SimBox;
use crate::common::World;

crate::rows! {
    schedules(1) s13_synchronize_waits_for_all_streams gpu_s13_synchronize_waits_for_all_streams => device;
    schedules(1) s13_an_event_covers_earlier_work gpu_s13_an_event_covers_earlier_work
        => event;
    manual(1) s13_wait_stream_orders gpu_s13_wait_stream_orders => wait_stream;
    manual(1) s13_wait_event_orders gpu_s13_wait_event_orders => wait_event;
    manual(2) s13_wait_event_orders_across_devices gpu2_s13_wait_event_orders_across_devices
        => across_devices;
    schedules(1) s13_elapsed_time gpu_s13_elapsed_time => elapsed_time;
}

/// Enqueues 20 matrix products, which keep the current stream busy for a while.
fn busy(world: &World, device: usize) -> Result<Tensor> {
    let size = if world.real { 2048 } else { 4 };
    let a = full([size, size], 0.5 / size as f64, (DType::F32, device))?;
    let mut b = a.copy()?;
    for _ in 0..20 {
        b = a.matmul(&b)?;
    }
    Ok(b)
}

fn pool_streams(device: usize) -> Result<[Stream; 2]> {
    Ok([cuda::Stream::new(device)?, cuda::Stream::new(device)?])
}

fn device(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let streams = pool_streams(device)?;
        let mut kept = vec![busy(world, device)?];
        for stream in &streams {
            kept.push(cuda::with_stream(stream, || busy(world, device))?);
        }
        cuda::synchronize(device)?;
        for stream in &streams {
            assert!(stream.query()?);
        }
        assert!(cuda::default_stream(device)?.query()?);
    }
    Ok(())
}

fn event(world: &World) -> Result<()> {
    let [s, _] = pool_streams(0)?;
    let event = Event::new(());
    assert!(event.query()?, "an event that was never recorded");
    assert_eq!(event.device_index(), None);
    let kept = cuda::with_stream(&s, || busy(world, 0))?;
    s.record_event(Some(&event))?;
    assert_eq!(event.device_index(), Some(0));
    event.synchronize()?;
    assert!(event.query()?);
    assert!(s.query()?, "nothing came after the event");
    let recorded = s.record_event(None)?;
    s.synchronize()?;
    assert!(recorded.query()?);
    drop(kept);
    Ok(())
}

/// Produces a tensor on one stream and consumes it on another. `order` must order the consumer
/// after the producer.
fn produce_and_consume(
    world: &World,
    from: usize,
    to: usize,
    order: impl Fn(&Stream, &Stream) -> Result<()>,
) -> Result<()> {
    let (s, t) = (cuda::Stream::new(from)?, cuda::Stream::new(to)?);
    let a = cuda::with_stream(&s, || zeros([1000], from))?;
    let kept = cuda::with_stream(&s, || busy(world, from))?;
    cuda::with_stream(&s, || a.fill_(3.0).map(drop))?;
    order(&s, &t)?;
    let sum = cuda::with_stream(&t, || a.to(warpline::Device::cuda(to))?.sum(())?.item::<f32>())?;
    assert_eq!(sum, 3000.0);
    assert!(world.runtime.take_races().is_empty(), "ordered uses are no race");
    a.record_stream(&t)?;
    cuda::synchronize(from)?;
    cuda::synchronize(to)?;
    drop(kept);
    Ok(())
}

fn wait_stream(world: &World) -> Result<()> {
    for device in 0..world.devices {
        produce_and_consume(world, device, device, |s, t| t.wait_stream(s))?;
    }
    Ok(())
}

fn wait_event(world: &World) -> Result<()> {
    for device in 0..world.devices {
        produce_and_consume(world, device, device, |s, t| {
            let event = s.record_event(None)?;
            t.wait_event(&event)
        })?;
        produce_and_consume(world, device, device, |s, t| {
            let event = Event::default();
            // A wait for an event without a record does nothing.
            t.wait_event(&event)?;
            event.record(s)?;
            event.wait(t)
        })?;
        // Order the streams through a third stream.
        produce_and_consume(world, device, device, |s, t| {
            let between = cuda::Stream::new(device)?;
            between.wait_stream(s)?;
            t.wait_stream(&between)
        })?;
        // Order the streams by a wait on the host.
        produce_and_consume(world, device, device, |s, _| s.synchronize())?;
    }
    Ok(())
}

fn across_devices(world: &World) -> Result<()> {
    for to in 1..world.devices {
        produce_and_consume(world, 0, to, |s, t| {
            // The copy runs on the current stream of the source's device.
            let default = cuda::default_stream(0)?;
            let event = s.record_event(None)?;
            default.wait_event(&event)?;
            t.wait_event(&event)
        })?;
    }
    Ok(())
}

fn elapsed_time(world: &World) -> Result<()> {
    let timed = || Event::new(EventFlags::new().enable_timing(true));
    for device in 0..world.devices {
        let stream = cuda::current_stream(device)?;
        let (start, end) = (timed(), timed());
        assert!(start.elapsed_time(&end).is_err(), "neither was recorded");
        start.record(&stream)?;
        let kept = busy(world, device)?;
        end.record(&stream)?;
        end.synchronize()?;
        let ms = start.elapsed_time(&end)?;
        assert!(ms > 0.0 && ms < 10_000.0, "{ms} ms");
        let untimed = stream.record_event(None)?;
        stream.synchronize()?;
        let error = start.elapsed_time(&untimed).expect_err("no timing").to_string();
        assert!(
            error.contains("Event::new(EventFlags::new().enable_timing(true))"),
            "says what to do: {error}"
        );
        drop(kept);
    }
    Ok(())
}

#[test]
fn s13_waiting_for_a_stream_leaves_the_others_alone() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let [s, t] = pool_streams(0)?;
        let a = cuda::with_stream(&s, || zeros([4], 0))?;
        let b = cuda::with_stream(&t, || zeros([4], 0))?;
        for _ in 0..10 {
            cuda::with_stream(&s, || a.add_(1.0).map(drop))?;
            cuda::with_stream(&t, || b.add_(1.0).map(drop))?;
        }
        let before = world.sim.pending();
        s.synchronize()?;
        let after = world.sim.pending();
        assert!(after >= 10 && before >= after + 10, "{before} pending before, {after} after");
        assert!(s.query()?);
        assert!(!t.query()?);
        // On the simulator, each query lets work progress, so that polling loops end.
        let mut queries = 0;
        while !t.query()? {
            queries += 1;
            assert!(queries < 1000, "a polling loop does not end");
        }
        assert_eq!(world.sim.pending(), 0);
        Ok(())
    });
}

#[test]
fn s13_elapsed_time_of_unfinished_work_is_an_error() {
    let world = SimBox::lazy(2);
    world.enter(|| {
        let timed = || Event::new(EventFlags::new().enable_timing(true));
        let (start, end, elsewhere) = (timed(), timed(), timed());
        let stream = cuda::current_stream(0)?;
        start.record(&stream)?;
        let a = zeros([4], 0)?;
        end.record(&stream)?;
        elsewhere.record(&cuda::current_stream(1)?)?;
        let error = start.elapsed_time(&end).expect_err("unfinished");
        assert!(error.to_string().contains("synchronize"), "{error}");
        cuda::synchronize(0)?;
        assert!(start.elapsed_time(&end)? > 0.0);
        cuda::synchronize(1)?;
        assert!(start.elapsed_time(&elsewhere).is_err(), "events of two devices");
        // An event belongs to the device of its first record.
        let error = start.record(&cuda::current_stream(1)?).expect_err("moved");
        assert!(error.to_string().contains("cuda:0"), "{error}");
        drop(a);
        Ok(())
    });
}
