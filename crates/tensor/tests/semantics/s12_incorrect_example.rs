//! Tests of row S12: the incorrect example in PyTorch's note on CUDA semantics. `normal_` runs on
//! the default stream and `sum` on another stream, without a wait. By default, the result is right.
//! Under `SyncPolicy::Manual`, a race is reported.

use warpline::{Device, Race, Result, SyncPolicy, Tensor, cuda, empty, manual_seed};
use warpline_cuda_sys_safe::sim::Schedule;

use crate::boxes::SimBox;
use crate::common::World;

crate::rows! {
    schedules(1) s12_the_example_is_right_by_default gpu_s12_the_example_is_right_by_default => right_by_default;
    schedules(2) s12_the_example_is_right_across_devices gpu2_s12_the_example_is_right_across_devices => right_across_devices;
    manual(1) s12_the_race_is_reported_in_manual_mode gpu_s12_the_race_is_reported_in_manual_mode => reported;
    manual(1) s12_wait_stream_removes_the_race gpu_s12_wait_stream_removes_the_race => mended;
    manual(1) s12_a_write_after_a_read_is_a_race gpu_s12_a_write_after_a_read_is_a_race
        => write_after_read;
    manual(1) s12_two_reads_are_no_race gpu_s12_two_reads_are_no_race => two_reads;
    manual(1) s12_views_share_their_races gpu_s12_views_share_their_races => views;
}

fn filled(device: usize) -> Result<Tensor> {
    manual_seed(7);
    let a = empty([100, 100], device)?;
    a.normal_(())?;
    Ok(a)
}

/// Computes the expected sum, on one stream.
fn expected(device: usize) -> Result<f32> {
    filled(device)?.sum(())?.item()
}

fn right_by_default(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let expected = expected(device)?;
        let s = cuda::Stream::new(device)?;
        let a = filled(device)?;
        let b = cuda::with_stream(&s, || a.sum(()))?;
        assert_eq!(b.item::<f32>()?, expected);
        // Write on the default stream while `s` may still read.
        let c = cuda::with_stream(&s, || a.add(1.0))?;
        a.zero_()?;
        let again = (&c - 1.0)?.sum(())?.item::<f32>()?;
        assert!((again - expected).abs() < 0.1, "{again} instead of {expected}");
        assert_eq!(a.sum(())?.item::<f32>()?, 0.0);
    }
    assert!(world.runtime.take_races().is_empty());
    Ok(())
}

/// Makes a tensor on one device, moves it to another device on a pool stream, and uses it there on a
/// pool stream.
fn right_across_devices(world: &World) -> Result<()> {
    let expected = expected(0)?;
    for device in 1..world.devices {
        let (s, t) = (cuda::Stream::new(0)?, cuda::Stream::new(device)?);
        let a = filled(0)?;
        let moved = cuda::with_stream(&s, || a.to(Device::cuda(device)))?;
        a.zero_()?;
        let b = cuda::with_stream(&t, || moved.sum(()))?;
        assert_eq!(b.item::<f32>()?, expected);
    }
    Ok(())
}

/// Asserts that all reported races are between these two calls in this file.
fn assert_race(races: &[Race], first: (&str, u32), second: (&str, u32)) {
    assert!(!races.is_empty(), "no race was reported");
    for race in races {
        let text = race.to_string();
        for (site, (op, line)) in [(&race.first, first), (&race.second, second)] {
            assert_eq!((site.op, site.location.line()), (op, line), "{text}");
            assert_eq!(site.location.file(), file!());
            assert!(text.contains(&format!("`{op}` at {}:{line}", file!())), "{text}");
        }
        assert_ne!(race.first.stream, race.second.stream);
        assert!(text.contains("wait_stream"), "says what to do: {text}");
    }
}

fn reported(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let s = cuda::Stream::new(device)?;
        let a = empty([100, 100], device)?;
        let (write, _) = (line!(), a.normal_(())?);
        let _on_s = cuda::stream(&s)?;
        let (read, b) = (line!(), a.sum(())?);
        assert_race(&world.runtime.take_races(), ("normal_", write), ("sum", read));
        // PyTorch requires `record_stream` for memory that another stream uses.
        a.record_stream(&s)?;
        drop(b);
        cuda::synchronize(device)?;
    }
    Ok(())
}

fn mended(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let expected = expected(device)?;
        let s = cuda::Stream::new(device)?;
        let a = filled(device)?;
        s.wait_stream(&cuda::current_stream(device)?)?;
        let b = cuda::with_stream(&s, || a.sum(()))?;
        a.record_stream(&s)?;
        cuda::current_stream(device)?.wait_stream(&s)?;
        assert_eq!(b.item::<f32>()?, expected);
        assert!(world.runtime.take_races().is_empty());
    }
    Ok(())
}

fn write_after_read(world: &World) -> Result<()> {
    let s = cuda::Stream::new(0)?;
    let a = filled(0)?;
    s.wait_stream(&cuda::default_stream(0)?)?;
    let on_s = cuda::stream(&s)?;
    let (read, b) = (line!(), a.exp()?);
    drop(on_s);
    a.record_stream(&s)?;
    assert!(world.runtime.take_races().is_empty());
    let (write, _) = (line!(), a.zero_()?);
    let races = world.runtime.take_races();
    assert!(races.iter().all(|r| r.second.access.writes()));
    assert_race(&races, ("exp", read), (races[0].second.op, write));
    cuda::synchronize(0)?;
    drop(b);
    Ok(())
}

fn two_reads(world: &World) -> Result<()> {
    let a = filled(0)?;
    cuda::synchronize(0)?;
    let s = cuda::Stream::new(0)?;
    let b = a.exp()?;
    let c = cuda::with_stream(&s, || a.exp())?;
    a.record_stream(&s)?;
    assert!(world.runtime.take_races().is_empty(), "reads do not conflict");
    cuda::synchronize(0)?;
    assert_eq!(b.to_vec::<f32>()?, cuda::with_stream(&s, || c.to_vec::<f32>())?);
    assert!(world.runtime.take_races().is_empty(), "work that the host has waited for is ordered");
    Ok(())
}

/// Tests that a race between a view and its base is found, although their addresses differ.
fn views(world: &World) -> Result<()> {
    let s = cuda::Stream::new(0)?;
    let a = empty([100, 100], 0)?;
    let rows = a.narrow(0, 10, 20)?;
    let (write, _) = (line!(), a.normal_(())?);
    let on_s = cuda::stream(&s)?;
    let (read, b) = (line!(), rows.t()?.sum(())?);
    drop(on_s);
    assert_race(&world.runtime.take_races(), ("normal_", write), ("sum", read));
    a.record_stream(&s)?;
    cuda::synchronize(0)?;
    drop(b);
    Ok(())
}

/// The simulator makes the mistake visible: under the laziest schedule, `sum` reads unwritten
/// memory.
#[test]
fn s12_without_a_wait_the_data_is_wrong() {
    let run = |policy| {
        let world = SimBox::with(1, Schedule::Lazy, policy);
        let mut sum = f32::NAN;
        world.enter(|| {
            let s = cuda::Stream::new(0)?;
            let a = filled(0)?;
            sum = cuda::with_stream(&s, || a.sum(())?.item::<f32>())?;
            a.record_stream(&s)?;
            Ok(())
        });
        sum
    };
    let right = run(SyncPolicy::Auto);
    assert!(right != 0.0 && right.is_finite());
    assert_ne!(run(SyncPolicy::Manual), right);
}

#[test]
fn s12_a_race_can_be_an_error() {
    let config = warpline::RuntimeConfig {
        sync_policy: SyncPolicy::Manual,
        race_report: warpline::RaceReport::Error,
        ..warpline::RuntimeConfig::default()
    };
    crate::common::worlds_with(1, &config, |_| {
        let s = cuda::Stream::new(0)?;
        let a = filled(0)?;
        let error = cuda::with_stream(&s, || a.sum(())).expect_err("a race");
        assert_eq!(error.find::<warpline::Race>().map(|race| race.first.op), Some("normal_"));
        // The refused op was not enqueued. After a wait, it is.
        s.wait_stream(&cuda::default_stream(0)?)?;
        cuda::with_stream(&s, || a.sum(()))?;
        a.record_stream(&s)?;
        cuda::synchronize(0)
    });
}
