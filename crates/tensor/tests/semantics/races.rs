//! Tests of tensor programs in which the race detector of `SyncPolicy::Manual` must report a race,
//! and of programs that it must accept.

use warpline::{Device, Result, cuda, ones, zeros};

use crate::common::World;

crate::rows! {
    manual(1) races_name_the_allocation gpu_races_name_the_allocation => allocation;
    manual(1) races_of_freed_memory gpu_races_of_freed_memory => freed;
    manual(1) races_of_interleaved_views gpu_races_of_interleaved_views => interleaved;
    manual(1) races_with_host_code gpu_races_with_host_code => host_code;
    manual(2) races_with_a_peers_copy gpu2_races_with_a_peers_copy => peers;
    manual(1) races_are_not_seen_in_plain_programs gpu_races_are_not_seen_in_plain_programs => plain;
}

fn allocation(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let s = cuda::Stream::new(device)?;
        let (line, a) = (line!(), zeros([1000], device)?);
        let b = cuda::with_stream(&s, || a.narrow(0, 10, 20)?.exp())?;
        let races = cuda::take_races();
        assert_eq!(races.len(), 1, "{races:?}");
        let race = &races[0];
        assert_eq!((race.allocated.file(), race.allocated.line()), (file!(), line));
        assert_eq!(race.bytes, 40..120, "the view's bytes");
        assert!(race.first.access.writes() && !race.second.access.writes());
        let text = format!("{race:#}");
        assert!(text.contains(&s.to_string()) && text.lines().count() == 4, "{text}");
        a.record_stream(&s)?;
        cuda::synchronize(device)?;
        drop(b);
    }
    Ok(())
}

/// Frees a tensor while another stream reads it, so that the next tensor reuses its memory.
fn freed(world: &World) -> Result<()> {
    for device in 0..world.devices {
        for record in [true, false] {
            let s = cuda::exclusive_stream(device, 0)?;
            let a = ones([1 << 20], device)?;
            s.wait_stream(&cuda::current_stream(device)?)?;
            let sum = cuda::with_stream(&s, || a.sum(()))?;
            if record {
                a.record_stream(&s)?;
            }
            drop(a);
            let b = zeros([1 << 20], device)?;
            let races = cuda::take_races();
            assert_eq!(races.is_empty(), record, "{races:?}");
            for race in races {
                assert!(race.is_reuse() && race.first.op == "sum", "{race}");
                assert!(race.mend().contains("record_stream"), "{race}");
            }
            cuda::synchronize(device)?;
            drop((b, sum));
        }
    }
    Ok(())
}

fn interleaved(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let s = cuda::Stream::new(device)?;
        let a = zeros([64, 64], device)?;
        cuda::synchronize(device)?;
        a.narrow(1, 0, 32)?.fill_(1.0)?;
        cuda::with_stream(&s, || a.narrow(1, 32, 32)?.fill_(2.0).map(drop))?;
        assert!(cuda::take_races().is_empty(), "columns apart");
        cuda::with_stream(&s, || a.narrow(1, 31, 2)?.fill_(3.0).map(drop))?;
        assert_eq!(cuda::take_races().len(), 1, "one column shared");
        a.record_stream(&s)?;
        cuda::synchronize(device)?;
    }
    Ok(())
}

fn host_code(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let pinned = zeros([1 << 16], ())?.pin_memory()?;
        let a = ones([1 << 16], device)?;
        pinned.copy_(&a, true)?;
        let (line, values) = (line!(), pinned.to_vec::<f32>()?);
        assert_eq!(values[7], 1.0, "reported, and safe all the same");
        let races = cuda::take_races();
        assert_eq!(races.len(), 1, "{races:?}");
        assert_eq!((races[0].second.location.line(), races[0].second.stream.clone()), (line, None));
        // With a wait for the copy there is no race.
        pinned.copy_(&a, true)?;
        cuda::current_stream(device)?.synchronize()?;
        pinned.add_(1.0)?;
        assert_eq!(pinned.to_vec::<f32>()?[7], 2.0);
        assert!(cuda::take_races().is_empty());
        // The host may read the source of a copy in flight, but not write it.
        a.copy_(&pinned, true)?;
        assert_eq!(pinned.to_vec::<f32>()?[7], 2.0);
        assert!(cuda::take_races().is_empty());
        pinned.zero_()?;
        assert_eq!(cuda::take_races().len(), 1);
        cuda::synchronize(device)?;
    }
    Ok(())
}

/// Tests that a copy between devices is ordered on both current streams, and on no other stream.
fn peers(world: &World) -> Result<()> {
    for device in 1..world.devices {
        let a = ones([1000], 0)?;
        let b = zeros([1000], device)?;
        b.copy_(&a, true)?;
        a.add_(1.0)?;
        b.add_(1.0)?;
        assert!(cuda::take_races().is_empty());
        let s = cuda::Stream::new(0)?;
        cuda::with_stream(&s, || a.add_(1.0).map(drop))?;
        let races = cuda::take_races();
        assert!(!races.is_empty());
        assert!(races.iter().all(|race| race.second.stream.as_ref() == Some(&s)), "{races:?}");
        a.record_stream(&s)?;
        let c = a.to(Device::cuda(device))?;
        assert!(!cuda::take_races().is_empty(), "`s` may still be writing");
        cuda::synchronize(0)?;
        cuda::synchronize(device)?;
        drop((b, c));
    }
    Ok(())
}

/// Tests that streams that use no tensor of another stream, with frequent allocations and an emptied
/// cache, have no race.
fn plain(world: &World) -> Result<()> {
    for round in 0..3 {
        for device in 0..world.devices {
            let a = ones([300, 7], device)?;
            let b = (&(&a * 2.0)?.t()?.contiguous()? + 1.0)?;
            assert_eq!(b.sum(())?.item::<f32>()?, 6300.0);
            // Let another stream of the device allocate the memory that this stream freed.
            let s = cuda::exclusive_stream(device, 0)?;
            drop((a, b));
            cuda::empty_cache();
            cuda::with_stream(&s, || {
                let c = ones([300, 7], device)?;
                c.add_(f64::from(round))?;
                c.sum(())?.item::<f32>()
            })?;
        }
    }
    let races = cuda::take_races();
    assert!(races.is_empty(), "{races:?}");
    Ok(())
}
