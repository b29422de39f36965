//! Tests of row S8: a failed index check marks the tensor that the kernel wrote. Until this tensor
//! is overwritten, each read on the host, of the tensor or of data computed from it, returns the
//! error. Once the failure is known, each launch that reads such data also returns the error. This
//! holds on any thread, whether or not the error was reported before.

use warpline::cuda::{self, Stream};
use warpline::{
    DType, Device, Error, Pending, Result, RuntimeConfig, Staging, Tensor, arange, cat, embedding,
    full, zeros,
};
use warpline_cuda_sys_safe::sim::SimConfig;

use crate::boxes::{SimBox, schedules};
use crate::common::{self, World};
use crate::s08_index_check::{failed, indices, table};

crate::rows! {
    schedules64(1) s08_no_wait_takes_a_failure_from_its_tensor
        gpu_s08_no_wait_takes_a_failure_from_its_tensor => told_elsewhere;
    manual(1) s08_marks_work_in_manual_mode gpu_s08_marks_work_in_manual_mode => told_elsewhere;
    schedules64(1) s08_four_threads_read_their_own_tensors gpu_s08_four_threads_read_their_own_tensors
        => four_threads;
    schedules(1) s08_what_is_computed_from_a_failure_fails
        gpu_s08_what_is_computed_from_a_failure_fails => derived;
    schedules(1) s08_launches_on_a_known_failure_are_refused
        gpu_s08_launches_on_a_known_failure_are_refused => refused;
    schedules(1) s08_host_copies_of_a_failure_fail gpu_s08_host_copies_of_a_failure_fail => on_host;
    schedules(1) s08_more_failures_than_are_reported_stay_with_their_tensors gpu_s08_more_failures_than_are_reported_stay_with_their_tensors => many;
    schedules(1) s08_overwritten_tensors_are_right_again gpu_s08_overwritten_tensors_are_right_again
        => overwritten;
    schedules(1) s08_pending_values_fail_as_their_tensor gpu_s08_pending_values_fail_as_their_tensor
        => pending;
    schedules(2) s08_copies_between_devices_are_marked gpu2_s08_copies_between_devices_are_marked
        => between_devices;
}

/// Returns a row of `t` at an index out of range. Reads of the result fail with this index.
pub(crate) fn picked(t: &Tensor, index: i64) -> Result<Tensor> {
    embedding(t, &which(index)?)
}

/// Returns an index that is made on the device, because a copy from the host would wait.
pub(crate) fn which(index: i64) -> Result<Tensor> {
    full([1], index, (DType::I64, 0))
}

/// Asserts that every read of the tensor fails with this index, repeatedly.
#[track_caller]
pub(crate) fn assert_marked(t: &Tensor, index: i64) {
    for _ in 0..2 {
        assert_eq!(failed(t.to_vec::<f32>()).index, index);
        if t.is_cuda() {
            assert_eq!(failed(t.cpu()).index, index);
        }
        let printed = t.to_string();
        assert!(printed.contains(&format!("index {index} is out of range")), "{printed}");
    }
}

/// Tests that other threads that wait receive no report, and that each read of the tensor fails, on
/// any thread.
fn told_elsewhere(_: &World) -> Result<()> {
    let (t, runtime) = (table(0)?, warpline::runtime());
    let other = cuda::Stream::new(0)?;
    let in_thread = |wait: &(dyn Fn() -> Result<()> + Sync)| {
        let wait = || warpline::with_runtime(&runtime, wait);
        std::thread::scope(|scope| scope.spawn(wait).join().expect("no panic"))
    };
    for turn in 0..4 {
        let u = picked(&t, 40 + turn)?;
        in_thread(&|| other.synchronize())?;
        in_thread(&|| cuda::synchronize(0))?;
        if turn % 2 == 0 {
            assert_eq!(failed(cuda::synchronize(0)).index, 40 + turn);
            cuda::synchronize(0)?; // reported only once
        }
        assert_marked(&u, 40 + turn);
        assert_eq!(failed(in_thread(&|| u.to_vec::<f32>().map(drop))).index, 40 + turn);
        cuda::synchronize(0)?; // the read has reported the failure
    }
    Ok(())
}

fn four_threads(_: &World) -> Result<()> {
    let (t, runtime) = (table(0)?, warpline::runtime());
    cuda::synchronize(0)?;
    std::thread::scope(|scope| {
        for thread in 0..4i64 {
            let (t, runtime) = (&t, runtime.clone());
            let run = move || {
                let s = cuda::exclusive_stream(0, 0)?;
                let _on = cuda::stream(&s)?;
                let which = which(if thread == 0 { 9 } else { thread })?;
                for _ in 0..25 {
                    let row = embedding(t, &which)?.add(1.0)?;
                    match thread {
                        0 => assert_marked(&row, 9),
                        _ => {
                            let first = (3 * thread + 1) as f32;
                            assert_eq!(row.to_vec::<f32>()?, [first, first + 1.0, first + 2.0]);
                            s.synchronize()?;
                        }
                    }
                }
                Ok::<_, Error>(())
            };
            scope.spawn(move || warpline::with_runtime(&runtime, run).expect("no other failure"));
        }
    });
    Ok(())
}

/// Tests that marks propagate through ops, streams, dtypes, views and in-place ops.
fn derived(_: &World) -> Result<()> {
    let t = table(0)?;
    let right = zeros([1, 3], 0)?;
    let streams = [cuda::Stream::new(0)?, cuda::Stream::new(0)?];
    let on = |s: &Stream, f: &dyn Fn() -> Result<Tensor>| cuda::with_stream(s, f);
    for by_wait in [false, true] {
        let u = picked(&t, 7)?;
        let a = on(&streams[0], &|| (&u * 2.0)?.add(&right))?;
        let b = on(&streams[1], &|| a.to(DType::F64)?.sum(())?.to(DType::F32))?;
        let c = on(&streams[0], &|| {
            cat(&[&right, &a.narrow(1, 0, 3)?], 0)?.t()?.matmul(&cat(&[&right, &right], 0)?)
        })?;
        let in_place = zeros([1, 3], 0)?;
        on(&streams[1], &|| in_place.add_(&b).cloned())?;
        let apart = right.add(1.0)?;
        if by_wait {
            assert_eq!(failed(cuda::synchronize(0)).index, 7);
        }
        for marked in [&b, &c, &in_place, &a, &u] {
            assert_marked(marked, 7);
        }
        for right in [&right, &apart] {
            // Each of these reads also waits for failed launches, but the reads of the marked
            // tensors have already reported the failures.
            right.to_vec::<f32>()?;
        }
        cuda::synchronize(0)?;
    }
    Ok(())
}

/// Tests that launches that read a marked tensor are refused once the failure is known, on any thread
/// and stream.
fn refused(_: &World) -> Result<()> {
    let (t, runtime) = (table(0)?, warpline::runtime());
    let u = picked(&t, 4)?;
    assert_eq!(failed(cuda::synchronize(0)).index, 4);
    let s = cuda::Stream::new(0)?;
    let right = zeros([1, 3], 0)?;
    let launches = || -> Result<Vec<Result<Tensor>>> {
        Ok(vec![
            u.add(1.0),
            &right + &u,
            u.sum(()),
            u.copy(),
            u.narrow(1, 1, 1)?.t()?.copy(),
            cat(&[&u, &right], 0),
            u.softmax(1),
            u.to(DType::I32),
            right.copy_(&u, ()).cloned(),
            right.add_(&u).cloned(),
            u.mul_(2.0).cloned(),
            right.matmul(&u.t()?),
            embedding(&u, &which(0)?),
            u.to_non_blocking("cpu"),
        ])
    };
    let here = launches()?;
    let there = || warpline::with_runtime(&runtime, || cuda::with_stream(&s, launches));
    let there = std::thread::scope(|scope| scope.spawn(there).join().expect("no panic"))?;
    for launch in here.into_iter().chain(there) {
        assert_eq!(failed(launch).index, 4);
    }
    // The refused launches changed nothing.
    assert_eq!(right.to_vec::<f32>()?, [0.0; 3]);
    u.narrow(1, 0, 2)?.fill_(1.0)?; // a fill reads nothing, so it is allowed
    assert_marked(&u, 4);
    Ok(())
}

/// Tests copies to page-locked and pageable host memory, blocking and non-blocking, and host ops
/// that read the copies.
fn on_host(_: &World) -> Result<()> {
    let t = table(0)?;
    for known in [false, true] {
        let pinned = zeros([2, 3], ())?.pin_memory()?;
        let rows = [pinned.narrow(0, 0, 1)?, pinned.narrow(0, 1, 1)?];
        let u = picked(&t, 5)?;
        rows[0].copy_(&picked(&t, 1)?, true)?;
        rows[1].copy_(&u, true)?;
        let host = u.to_non_blocking("cpu")?;
        if known {
            assert_eq!(failed(cuda::synchronize(0)).index, 5);
        }
        for marked in [&host, &pinned, &rows[1]] {
            assert_marked(marked, 5);
            assert_eq!(failed(marked.add(1.0)).index, 5);
            assert_eq!(failed(marked.cuda()).index, 5);
        }
        // The other row is right.
        assert_eq!(rows[0].to_vec::<f32>()?, [3.0, 4.0, 5.0]);
        let plain = zeros([1, 3], ())?;
        assert_eq!(failed(plain.copy_(&u, ())).index, 5);
        assert_eq!(failed(plain.copy_(&host, ())).index, 5);
        // A host op that overwrites the row removes its mark, and so does a copy from a device.
        rows[1].fill_(2.0)?;
        assert_eq!(pinned.to_vec::<f32>()?, [3.0, 4.0, 5.0, 2.0, 2.0, 2.0]);
        host.copy_(&zeros([1, 3], 0)?, true)?;
        assert_eq!(host.to_vec::<f32>()?, [0.0; 3]);
    }
    // A non-blocking copy back to a device keeps the mark, and a blocking copy fails.
    let u = picked(&t, 6)?;
    let host = u.to_non_blocking("cpu")?;
    let back = host.to_non_blocking(0)?;
    let plain = zeros([1, 3], ())?;
    assert_eq!(failed(plain.copy_(&back, ())).index, 6);
    assert_marked(&plain, 6);
    assert_marked(&back, 6);
    plain.zero_()?;
    assert_eq!(plain.to_vec::<f32>()?, [0.0; 3]);
    cuda::synchronize(0)
}

/// Tests that each of many failures marks only its own tensor, and that the tensors between them
/// are right.
fn many(_: &World) -> Result<()> {
    let t = table(0)?;
    for by_wait in [false, true] {
        let all: Vec<(i64, Tensor)> = (0..100)
            .map(|i| Ok((i, picked(&t, if i % 5 == 0 { i % 4 } else { 100 + i })?)))
            .collect::<Result<_>>()?;
        if by_wait {
            assert_eq!(failed(cuda::synchronize(0)).index, 101);
            cuda::synchronize(0)?; // the other failures count as reported
        } else {
            // The read reports the failure of its own tensor, although its wait covers all.
            assert_eq!(failed(all[99].1.to_vec::<f32>()).index, 199);
        }
        for (i, row) in &all {
            if i % 5 == 0 {
                let first = (3 * (i % 4)) as f32;
                assert_eq!(row.to_vec::<f32>()?, [first, first + 1.0, first + 2.0], "{i}");
            } else {
                assert_eq!(failed(row.to_vec::<f32>()).index, 100 + i);
            }
        }
        cuda::synchronize(0)?;
    }
    Ok(())
}

fn overwritten(_: &World) -> Result<()> {
    let t = table(0)?;
    type Overwrite = fn(&Tensor, &Tensor) -> Result<()>;
    let ways: [Overwrite; 7] = [
        |u, _| u.zero_().map(drop),
        |u, _| u.fill_(3.0).map(drop),
        |u, _| u.normal_(()).map(drop),
        |u, row| u.copy_(row, ()).map(drop),
        |u, _| u.copy_(&zeros([1, 3], ())?.pin_memory()?, true).map(drop),
        // Overwrite the tensor in parts.
        |u, row| {
            u.narrow(1, 0, 1)?.fill_(1.0)?;
            u.narrow(1, 2, 1)?.fill_(1.0)?;
            u.narrow(1, 1, 1)?.copy_(&row.narrow(1, 1, 1)?, ()).map(drop)
        },
        |u, row| u.view([3, 1])?.copy_(&row.t()?, ()).map(drop),
    ];
    for (n, way) in ways.into_iter().enumerate() {
        for known in [false, true] {
            let index = 10 + n as i64;
            let u = picked(&t, index)?;
            let views = [u.view([3])?, u.narrow(1, 2, 1)?, u.t()?];
            if known {
                assert_eq!(failed(cuda::synchronize(0)).index, index);
            }
            let of_old = if known { None } else { Some(u.add(1.0)?) };
            way(&u, &picked(&t, 2)?)?;
            if !known {
                assert_eq!(failed(cuda::synchronize(0)).index, index);
            }
            u.to_vec::<f32>()?;
            u.add(1.0)?.to_vec::<f32>()?;
            for view in &views {
                view.to_vec::<f32>()?;
            }
            if let Some(of_old) = of_old {
                assert_marked(&of_old, index);
            }
        }
    }
    // Overwriting a part keeps the mark of the whole tensor.
    let u = table(0)?.index_select(0, &indices(0, &[0, 9, 1])?)?;
    u.narrow(0, 0, 1)?.fill_(1.0)?;
    for view in [&u, &u.narrow(0, 1, 1)?, &u.t()?, &u.view([9])?, &u.narrow(1, 1, 1)?] {
        assert_marked(view, 9);
    }
    // An op that also reads the tensor is refused. A complete overwrite removes the mark.
    failed(u.mul_(0.0));
    u.copy_(&zeros([3, 3], 0)?, ())?;
    assert_eq!(u.to_vec::<f32>()?, [0.0; 9]);
    Ok(())
}

fn pending(_: &World) -> Result<()> {
    let t = table(0)?;
    for ask in [false, true] {
        let rows = [picked(&t, 11)?, picked(&t, 1)?, picked(&t, 12)?];
        let values: Vec<Pending<_>> =
            rows.iter().map(Tensor::to_vec_async::<f32>).collect::<Result<_>>()?;
        let host = rows[2].cpu_async()?;
        if ask {
            assert_eq!(failed(cuda::synchronize(0)).index, 11);
        }
        // Each value reports its own failure, in any order.
        let mut values: Vec<_> = values.into_iter().map(Pending::wait).collect();
        assert_eq!(failed(values.remove(2)).index, 12);
        assert_eq!(values.remove(1)?, [3.0, 4.0, 5.0]);
        assert_eq!(failed(values.remove(0)).index, 11);
        assert_eq!(failed(host.wait()).index, 12);
    }
    Ok(())
}

fn between_devices(_: &World) -> Result<()> {
    let t = table(0)?;
    for peers in [false, true] {
        if peers {
            cuda::enable_peer_access(1, 0)?;
        }
        let u = picked(&t, 30)?;
        let there = u.to(1)?;
        let strided = zeros([3, 2], 1)?;
        strided.narrow(1, 1, 1)?.copy_(&u.t()?, ())?;
        let sum = (&there + &there)?;
        let read = if peers { Some(zeros([1, 3], 1)?.add(&u)?) } else { None };
        for marked in [&sum, &there, &strided].into_iter().chain(&read) {
            assert_eq!(marked.device(), Device::cuda(1));
            assert_marked(marked, 30);
            assert_eq!(failed(marked.add(1.0)).index, 30);
        }
        there.zero_()?;
        assert_eq!(there.to_vec::<f32>()?, [0.0; 3]);
    }
    Ok(())
}

/// Without a peer link, the copy goes through page-locked memory.
#[test]
fn s08_copies_without_a_link_are_marked() {
    for schedule in schedules() {
        let unlinked_peers = vec![(0, 1)];
        let sim = SimConfig { schedule, unlinked_peers, ..SimConfig::new(2) };
        let world = SimBox::new(sim, &RuntimeConfig::default());
        world.enter(|| {
            let u = picked(&table(0)?, 31)?;
            let there = u.to(1)?;
            assert_marked(&there.add(1.0)?, 31);
            assert_marked(&there, 31);
            Ok(())
        });
    }
}

/// Here, copies of one byte or more are staged (by default, from 8 MiB on), in pieces of at most 64 bytes.
#[test]
fn s08_staged_copies_are_marked() {
    let staging = Staging { from: 1, chunk: 64, threads: 2 };
    let config = RuntimeConfig { staging, ..RuntimeConfig::default() };
    common::schedules_with(1, &config, |_| {
        let t = arange(4000.0f32, 0)?.view([4, 1000])?;
        for known in [false, true] {
            let _earlier = picked(&t, 33)?;
            let u = picked(&t, 32)?;
            let host = zeros([1, 1000], ())?;
            if known {
                assert_eq!(failed(cuda::synchronize(0)).index, 33);
            }
            assert_eq!(failed(host.copy_(&u, ())).index, 32);
            assert_marked(&u, 32);
            assert_eq!(host.to_vec::<f32>()?, [0.0; 1000]); // the failure was known before the copy
            u.copy_(&zeros([1, 1000], ())?, ())?;
            assert_eq!(u.to_vec::<f32>()?, [0.0; 1000]);
        }
        Ok(())
    });
}
