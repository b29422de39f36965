//! Tests of rows S7, S8 and S11–S13: streams, and the order of work on them.

use warpline::{Result, RuntimeConfig, SyncPolicy, cuda, empty, manual_seed, ones, tensor, zeros};

use crate::common::{self, World};

rows! {
    schedules(1) s07_results_are_as_if_each_op_had_run_at_once gpu_s07_results_are_as_if_each_op_had_run_at_once => as_if_at_once;
    schedules(1) s07_kernels_of_a_stream_run_in_order gpu_s07_kernels_of_a_stream_run_in_order => in_order;
    worlds(1) s11_a_stream_guard_restores gpu_s11_a_stream_guard_restores => guard;
    schedules(1) s12_the_example_is_right_by_default gpu_s12_the_example_is_right_by_default => right_by_default;
    manual(1) s12_the_race_is_reported_in_manual_mode gpu_s12_the_race_is_reported_in_manual_mode => reported;
    manual(1) s13_wait_stream_orders gpu_s13_wait_stream_orders => wait_stream;
    schedules(1) s13_events_order_streams gpu_s13_events_order_streams => events;
}

fn as_if_at_once(world: &World) -> Result<()> {
    let at = world.devices - 1;
    let a = ones([256], at)?;
    let mut b = zeros([256], at)?;
    for _ in 0..10 {
        b = (&b + &a)?;
        b.mul_(2.0)?;
        a.add_(1.0)?;
    }
    let (mut x, mut y) = (1f32, 0f32);
    for _ in 0..10 {
        y = (y + x) * 2.0;
        x += 1.0;
    }
    assert_eq!(b.to_vec::<f32>()?, vec![y; 256]);
    Ok(())
}

/// Each kernel reads elements that other blocks of the kernel before it wrote, and kernels alternate with copies and
/// library calls.
fn in_order(world: &World) -> Result<()> {
    let at = world.devices - 1;
    for (n, rounds) in [(1usize, 20), (4096, 20), (1 << 16, 3)] {
        let start: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
        let x = tensor(&start, at)?;
        let one = ones([1, 1], at)?;
        for _ in 0..rounds {
            let y = x.flip([0])?;
            y.add_(1.0)?;
            let z = y.flip([0])?;
            y.zero_()?;
            x.copy_(&z, ())?;
            z.zero_()?;
            let product = x.unsqueeze(1)?.matmul(&one)?.squeeze(1)?;
            x.zero_()?;
            x.copy_(&product.flip([0])?.flip([0])?, ())?;
        }
        let expected: Vec<f32> = start.iter().map(|v| v + rounds as f32).collect();
        assert_eq!(x.to_vec::<f32>()?, expected, "{n} elements");
    }
    Ok(())
}

#[test]
fn s07_ops_return_before_they_run() {
    let runtime = warpline::open("sim:1,lazy", &RuntimeConfig::default()).expect("a simulator");
    warpline::with_runtime(&runtime, || -> Result<()> {
        let a = ones([16], "cuda")?;
        let done = cuda::current_stream(())?.record_event(None)?;
        assert!(!done.query()?, "the laziest schedule has run the fill already");
        assert_eq!(a.to_vec::<f32>()?, [1.0; 16]);
        assert!(done.query()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn s08_launch_blocking_waits_for_each_launch() {
    let config = RuntimeConfig { launch_blocking: true, ..RuntimeConfig::default() };
    let runtime = warpline::open("sim:1,lazy", &config).expect("a simulator");
    warpline::with_runtime(&runtime, || -> Result<()> {
        let a = ones([16], "cuda")?;
        assert!(cuda::current_stream(())?.query()?);
        let _b = (&a + 1.0)?;
        assert!(cuda::current_stream(())?.query()?);
        Ok(())
    })
    .unwrap();
}

fn guard(world: &World) -> Result<()> {
    let last = world.devices - 1;
    let default = cuda::current_stream(last)?;
    assert!(default.is_default());
    let s = cuda::Stream::new(cuda::StreamOptions::new().device(last).priority(-1))?;
    {
        let _guard = cuda::stream(&s)?;
        assert_eq!(cuda::current_stream(last)?, s);
        assert_eq!(cuda::current_device()?, last, "the guard switches the device too");
        let t = ones([4], "cuda")?;
        assert_eq!(t.to_vec::<f32>()?, [1.0; 4]);
        let nested = cuda::exclusive_stream(last, 0)?;
        cuda::with_stream(&nested, || {
            assert_eq!(cuda::current_stream(last).ok(), Some(nested.clone()));
            Ok(())
        })?;
        assert_eq!(cuda::current_stream(last)?, s);
    }
    assert_eq!(cuda::current_stream(last)?, default);
    assert_eq!(cuda::current_device()?, 0);
    assert_eq!(cuda::default_stream(last)?, default);
    Ok(())
}

/// The example of PyTorch's note on CUDA semantics, with a fixed seed, so that the expected sum is
/// known.
fn right_by_default(_: &World) -> Result<()> {
    manual_seed(0);
    let a = empty([100, 100], "cuda")?;
    a.normal_(())?;
    let expected = a.sum(())?.item::<f32>()?;
    for _ in 0..3 {
        manual_seed(0);
        let s = cuda::Stream::new(())?;
        let a = zeros([100, 100], "cuda")?;
        a.normal_(())?;
        let b = cuda::with_stream(&s, || a.sum(()))?;
        // The default stream reads the result of `s`, and overwrites the operand of `s`.
        a.fill_(0.0)?;
        assert_eq!((&b + 0.0)?.item::<f32>()?, expected);
    }
    assert!(cuda::take_races().is_empty());
    Ok(())
}

fn reported(_: &World) -> Result<()> {
    let s = cuda::Stream::new(())?;
    let a = empty([100, 100], "cuda")?;
    a.normal_(())?;
    let b = cuda::with_stream(&s, || a.sum(()))?;
    let races = cuda::take_races();
    assert_eq!(races.len(), 1, "{races:?}");
    let (first, second) = (&races[0].first, &races[0].second);
    assert_eq!((first.op, second.op), ("normal_", "sum"));
    for site in [first, second] {
        assert!(site.location.file().ends_with("streams.rs"), "{}", site.location);
    }
    cuda::synchronize(())?;
    drop((a, b));
    Ok(())
}

fn wait_stream(_: &World) -> Result<()> {
    let s = cuda::Stream::new(())?;
    let a = ones([1000], "cuda")?;
    s.wait_stream(&cuda::current_stream(())?)?;
    let b = cuda::with_stream(&s, || a.sum(()))?;
    a.record_stream(&s)?;
    cuda::current_stream(())?.wait_stream(&s)?;
    let c = (&b + 1.0)?;
    b.record_stream(&cuda::current_stream(())?)?;
    assert_eq!(c.item::<f32>()?, 1001.0);
    assert_eq!(cuda::take_races().len(), 0);
    Ok(())
}

fn events(_: &World) -> Result<()> {
    let (start, end) = (
        cuda::Event::new(cuda::EventFlags::new().enable_timing(true)),
        cuda::Event::new(cuda::EventFlags::new().enable_timing(true)),
    );
    let stream = cuda::current_stream(())?;
    start.record(&stream)?;
    let a = ones([1000], "cuda")?;
    let b = (&a * 2.0)?;
    end.record(&stream)?;
    end.synchronize()?;
    assert!(end.query()? && start.elapsed_time(&end)? >= 0.0);
    let s = cuda::Stream::new(())?;
    s.wait_event(&end)?;
    assert_eq!(cuda::with_stream(&s, || b.sum(()))?.item::<f32>()?, 2000.0);
    s.synchronize()?;
    assert!(s.query()?);
    cuda::synchronize("cuda")
}

#[test]
fn s12_the_policy_can_be_changed() {
    common::worlds(1, |world| {
        assert_eq!(world.runtime.sync_policy(), SyncPolicy::Auto);
        cuda::set_sync_policy(SyncPolicy::Manual);
        assert_eq!(world.runtime.sync_policy(), SyncPolicy::Manual);
        Ok(())
    });
}
