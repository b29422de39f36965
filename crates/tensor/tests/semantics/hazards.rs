//! Tests of ordered uses and races of memory on several streams, under `SyncPolicy::Manual`. The
//! cases are those of PyTorch's tests of its stream sanitizer.

use warpline::cuda::{Event, Stream};
use warpline::{Race, Result, RuntimeConfig, SyncPolicy, Tensor, cuda, zeros};

use crate::common::World;

/// Declares the tests. The detector decides the order when work is enqueued, independently of its
/// execution, so one schedule suffices.
macro_rules! cases {
    ($($sim:ident $gpu:ident => $body:expr;)*) => {$(
        #[test]
        fn $sim() {
            let sync_policy = SyncPolicy::Manual;
            let config = RuntimeConfig { sync_policy, ..RuntimeConfig::default() };
            crate::common::worlds_with(1, &config, $body);
        }

        #[test]
        #[ignore = "needs a GPU"]
        fn $gpu() {
            crate::common::gpu(1, SyncPolicy::Manual, $body);
        }
    )*};
}

cases! {
    hazard_simple_error gpu_hazard_simple_error => simple_error;
    hazard_simple_sync gpu_hazard_simple_sync => simple_sync;
    hazard_branch_sync gpu_hazard_branch_sync => branch_sync;
    hazard_chain_sync gpu_hazard_chain_sync => chain_sync;
    hazard_expired_record gpu_hazard_expired_record => expired_record;
    hazard_deleted_record gpu_hazard_deleted_record => deleted_record;
    hazard_all_reads_checked gpu_hazard_all_reads_checked => all_reads_checked;
    hazard_state_merging gpu_hazard_state_merging => state_merging;
    hazard_record_override gpu_hazard_record_override => record_override;
    hazard_multiple_wait gpu_hazard_multiple_wait => multiple_wait;
}

/// Four streams, and a tensor that the device has finished writing.
struct HazardCase {
    streams: [Stream; 4],
    tensor: Tensor,
    made: Vec<Tensor>,
}

impl HazardCase {
    fn new(device: usize) -> Result<Self> {
        let stream = || cuda::exclusive_stream(device, 0);
        let streams = [stream()?, stream()?, stream()?, stream()?];
        let tensor = zeros([64], device)?;
        cuda::synchronize(device)?;
        Ok(Self { streams, tensor, made: Vec::new() })
    }

    /// Writes the tensor on a stream. Returns the races of the write.
    fn write(&self, on: &Stream) -> Result<Vec<Race>> {
        cuda::with_stream(on, || self.tensor.add_(1.0).map(drop))?;
        Ok(cuda::take_races())
    }

    /// Reads the tensor on a stream. Returns the races of the read.
    fn read(&mut self, on: &Stream) -> Result<Vec<Race>> {
        let made = cuda::with_stream(on, || self.tensor.exp())?;
        self.made.push(made);
        Ok(cuda::take_races())
    }

    fn streams(&self) -> [Stream; 4] {
        self.streams.clone()
    }
}

/// Runs a case on every device. Its results are dropped after the device has finished.
fn each(world: &World, case: impl Fn(&mut HazardCase) -> Result<()>) -> Result<()> {
    for device in 0..world.devices {
        let mut it = HazardCase::new(device)?;
        case(&mut it)?;
        cuda::synchronize(device)?;
        assert!(cuda::take_races().is_empty(), "a race that the case did not look at");
    }
    Ok(())
}

/// Makes `on` wait for all work that has been enqueued on `after`.
fn wait(on: &Stream, after: &Stream) -> Result<()> {
    on.wait_event(&after.record_event(None)?)
}

fn simple_error(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, ..] = case.streams();
        assert!(case.write(&a)?.is_empty());
        let races = case.read(&b)?;
        assert_eq!(races.len(), 1);
        assert_eq!((&races[0].first.stream, &races[0].second.stream), (&Some(a), &Some(b)));
        assert!(!races[0].second.access.writes());
        Ok(())
    })
}

fn simple_sync(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, ..] = case.streams();
        assert!(case.write(&a)?.is_empty());
        wait(&b, &a)?;
        assert!(case.read(&b)?.is_empty());
        Ok(())
    })
}

/// Two streams may read after they have waited for the same write. Neither may then write without a
/// wait for the other's read.
fn branch_sync(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, c, _] = case.streams();
        case.write(&a)?;
        let event = a.record_event(None)?;
        b.wait_event(&event)?;
        c.wait_event(&event)?;
        assert!(case.read(&b)?.is_empty());
        assert!(case.read(&c)?.is_empty());
        let races = case.write(&c)?;
        assert_eq!(races.len(), 1);
        assert_eq!((&races[0].first.stream, races[0].second.access.writes()), (&Some(b), true));
        Ok(())
    })
}

fn chain_sync(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, c, d] = case.streams();
        case.write(&a)?;
        wait(&b, &a)?;
        wait(&c, &b)?;
        wait(&d, &c)?;
        assert!(case.write(&d)?.is_empty());
        Ok(())
    })
}

/// An event covers the work before its record, not the work after.
fn expired_record(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, ..] = case.streams();
        let event = a.record_event(None)?;
        case.write(&a)?;
        b.wait_event(&event)?;
        assert_eq!(case.read(&b)?.len(), 1);
        Ok(())
    })
}

/// A wait for a new event does not count as a wait for a deleted event whose handle it reuses.
fn deleted_record(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, ..] = case.streams();
        case.write(&a)?;
        drop(a.record_event(None)?);
        b.wait_event(&Event::default())?;
        assert_eq!(case.read(&b)?.len(), 1);
        Ok(())
    })
}

/// A write must come after every read, not just the latest.
fn all_reads_checked(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, c, _] = case.streams();
        assert!(case.read(&a)?.is_empty());
        assert!(case.read(&b)?.is_empty());
        wait(&c, &b)?;
        let races = case.write(&c)?;
        assert_eq!(races.len(), 1);
        assert_eq!(races[0].first.stream, Some(a));
        Ok(())
    })
}

/// A stream is ordered after two other streams by two separate waits.
fn state_merging(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, c, d] = case.streams();
        case.read(&a)?;
        case.read(&b)?;
        wait(&c, &a)?;
        wait(&d, &b)?;
        wait(&d, &c)?;
        assert!(case.write(&d)?.is_empty());
        Ok(())
    })
}

/// A second record replaces the first.
fn record_override(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, c, _] = case.streams();
        let event = Event::default();
        case.write(&a)?;
        event.record(&a)?;
        event.record(&b)?;
        c.wait_event(&event)?;
        assert_eq!(case.read(&c)?.len(), 1);
        Ok(())
    })
}

/// An earlier wait stays valid when the event is waited for again or recorded again.
fn multiple_wait(world: &World) -> Result<()> {
    each(world, |case| {
        let [a, b, c, _] = case.streams();
        case.write(&a)?;
        let event = a.record_event(None)?;
        for _ in 0..3 {
            b.wait_event(&event)?;
        }
        event.record(&c)?;
        b.wait_event(&event)?;
        assert!(case.read(&b)?.is_empty());
        Ok(())
    })
}
