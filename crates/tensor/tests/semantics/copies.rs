//! Tests of rows S5, S9 and S10: copies between all pairs of devices, also of other dtypes and layouts.

use warpline::{
    DType, Device, ErrorKind, Result, ResultExt as _, Tensor, arange, cuda, empty, zeros,
};

use crate::common::World;

rows! {
    schedules(1) s05_copies_between_all_pairs_of_devices_are_right gpu_s05_copies_between_all_pairs_of_devices_are_right => pairings;
    schedules(1) s05_dtypes_and_layouts_convert gpu_s05_dtypes_and_layouts_convert => converting;
    schedules(1) s09_copies_are_in_order gpu_s09_copies_are_in_order => in_order;
    schedules(2) s09_device_copies_synchronise_with_both_streams gpu2_s09_device_copies_synchronise_with_both_streams => both_streams;
    schedules(1) s10_non_blocking_is_correct gpu_s10_non_blocking_is_correct => non_blocking;
    worlds(1) s05_large_copies_are_right gpu_s05_large_copies_are_right => large;
    worlds(1) s05_copies_broadcast_and_refuse gpu_s05_copies_broadcast_and_refuse => refusals;
}

fn numbers(at: Device) -> Result<Tensor> {
    arange(24, ())?.reshape([2, 3, 4])?.to(at)
}

fn pairings(world: &World) -> Result<()> {
    let expected: Vec<i64> = (0..24).collect();
    for from in world.places() {
        let source = numbers(from)?;
        for to in world.places() {
            let moved = source.to(to)?;
            assert_eq!(moved.device(), to);
            assert_eq!(moved.to_vec::<i64>()?, expected, "{from} to {to}");
            // `to` returns the same tensor if neither device nor dtype changes.
            assert_eq!(moved.data_ptr() == source.data_ptr(), from == to, "{from} to {to}");
            let into = zeros([2, 3, 4], (DType::I64, to))?;
            into.copy_(&source, ())?;
            assert_eq!(into.to_vec::<i64>()?, expected, "copy_ {from} to {to}");
        }
    }
    Ok(())
}

fn converting(world: &World) -> Result<()> {
    for from in world.places() {
        for to in world.places() {
            // Source and destination are not contiguous, and their dtypes differ.
            let source = numbers(from)?.transpose(0, 2)?;
            let into = zeros([3, 4, 5], (DType::F16, to))?;
            let view = into.permute([1, 0, 2])?.narrow(2, 1, 2)?;
            view.copy_(&source, ())?;
            let expected = source.to("cpu")?.to(DType::F16)?.to_vec::<half::f16>()?;
            assert_eq!(view.to_vec::<half::f16>()?, expected, "{from} to {to}");
            let untouched = into.i((.., .., 0))?.to_vec::<half::f16>()?;
            assert!(untouched.iter().all(|v| v.to_f32() == 0.0), "beside the view");
            let both = numbers(from)?.to((DType::F64, to))?;
            assert_eq!((both.dtype(), both.device()), (DType::F64, to));
            assert_eq!(both.sum(())?.item::<f64>()?, 276.0);
        }
    }
    Ok(())
}

/// A copy reads the results of work enqueued before it, and is not affected by later work.
fn in_order(world: &World) -> Result<()> {
    for i in 0..world.devices {
        let a = zeros([1000], i)?;
        for step in 1..5 {
            a.add_(1.0)?;
            let host = a.cpu()?;
            a.add_(100.0)?;
            assert_eq!(host.to_vec::<f32>()?, vec![step as f32; 1000]);
            a.sub_(100.0)?;
        }
        // The host may change the source once a blocking copy has returned.
        let host = warpline::ones([1000], ())?;
        let device = host.to(i)?;
        host.fill_(7.0)?;
        assert_eq!(device.to_vec::<f32>()?, vec![1.0; 1000]);
    }
    Ok(())
}

fn both_streams(_: &World) -> Result<()> {
    let (s0, s1) = (cuda::Stream::new(0)?, cuda::Stream::new(1)?);
    let _on_1 = cuda::stream(&s1)?;
    let _on_0 = cuda::stream(&s0)?;
    let a = zeros([512], 0)?;
    let b = zeros([512], 1)?;
    for step in 1..6 {
        a.fill_(f64::from(step))?;
        b.fill_(-1.0)?; // before the copy
        b.copy_(&a, ())?;
        a.fill_(-2.0)?; // after the copy
        assert_eq!((&b + 0.0)?.to_vec::<f32>()?, vec![step as f32; 512]);
    }
    Ok(())
}

fn non_blocking(world: &World) -> Result<()> {
    for i in 0..world.devices {
        let pinned = arange(1000, ())?.pin_memory()?;
        let expected: Vec<i64> = (0..1000).collect();
        let device = pinned.to_non_blocking(i)?;
        // A host op that changes the source waits for the copy.
        pinned.fill_(0)?;
        assert_eq!(device.to_vec::<i64>()?, expected);
        let back = device.to_non_blocking("cpu")?;
        assert!(back.is_pinned());
        assert_eq!(back.to_vec::<i64>()?, expected, "reading waits for the copy");
        let pageable = empty([1000], DType::I64)?;
        pageable.copy_(&device, true)?;
        assert_eq!(pageable.to_vec::<i64>()?, expected);
        device.copy_(&pageable, true)?;
        pageable.fill_(0)?;
        assert_eq!(device.to_vec::<i64>()?, expected, "a pageable source is read at once");
        // The memory of a dropped page-locked source is not reused before the copy is complete.
        let moved = arange(1000, ())?.pin_memory()?.to_non_blocking(i)?;
        let other = zeros([1000], DType::I64)?.pin_memory()?;
        other.fill_(-1)?;
        assert_eq!(moved.to_vec::<i64>()?, expected);
    }
    Ok(())
}

/// Tests copies of one to six MiB between pageable memory and a device, and between devices. The
/// driver's own copies of pageable memory are used, because staging begins at 8 MiB.
fn large(world: &World) -> Result<()> {
    for elements in [(1 << 17) - 1, 1 << 17, (1 << 17) + 1, 700_001] {
        let expected: Vec<i64> = (0..elements).collect();
        for i in 0..world.devices {
            let source = arange(elements, ())?;
            let device = source.to(i)?;
            source.fill_(-1)?;
            device.add_(1)?;
            let part = device.narrow(0, 3, elements as usize - 3)?;
            device.sub_(1)?;
            assert_eq!(device.to_vec::<i64>()?, expected, "{elements} on cuda:{i}");
            assert_eq!(part.to_vec::<i64>()?, expected[3..], "{elements} on cuda:{i}");
            let peer = device.to((i + 1) % world.devices)?;
            assert_eq!(peer.to_vec::<i64>()?, expected, "{elements} from cuda:{i}");
        }
    }
    Ok(())
}

fn refusals(world: &World) -> Result<()> {
    for at in world.places() {
        let into = zeros([2, 3], (DType::I64, at))?;
        into.copy_(&arange(3, ())?, ())?;
        assert_eq!(into.to_vec::<i64>()?, [0, 1, 2, 0, 1, 2]);
        let wrong = into.copy_(&arange(4, ())?, ());
        assert!(matches!(wrong.kind(), Some(ErrorKind::ExpandMismatch { .. })));
        let expanded = zeros([1], (DType::I64, at))?.expand([3])?;
        let shared = expanded.copy_(&arange(3, ())?, ());
        assert!(matches!(shared.kind(), Some(ErrorKind::OverlappingWrite)));
        // The source is the transpose of the destination; the copy reads the old elements.
        let square = arange(9, at)?.reshape([3, 3])?;
        square.copy_(&square.t()?, ())?;
        assert_eq!(square.to_vec::<i64>()?, [0, 3, 6, 1, 4, 7, 2, 5, 8]);
    }
    Ok(())
}
