//! Tests of streams, tensors and events in several threads. All of these may move between threads,
//! and threads may share a stream. Each thread has its own current streams.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use warpline::cuda::{Event, Stream};
use warpline::{DType, Result, Tensor, arange, cuda, full, with_runtime, zeros};

use crate::common::World;

const THREADS: usize = 8;

crate::rows! {
    schedules(1) threads_pass_on_tensors_streams_and_events gpu_threads_pass_on_tensors_streams_and_events => passing;
    schedules(1) threads_share_one_stream gpu_threads_share_one_stream => one_stream;
    schedules(1) threads_of_a_pool_keep_their_streams gpu_threads_of_a_pool_keep_their_streams => pool;
    schedules(1) threads_read_the_writes_of_one_thread gpu_threads_read_the_writes_of_one_thread => readers;
}

/// Runs `f` in eight threads, in the runtime of the test.
fn in_threads(world: &World, f: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let run = |i: usize| with_runtime(&world.runtime, || f(i));
        let threads: Vec<_> = (0..THREADS).map(|i| scope.spawn(move || run(i))).collect();
        // Join all threads before returning the first error.
        let ends: Vec<_> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
        ends.into_iter().collect()
    })
}

/// A message that is passed from thread to thread: a tensor, the stream that wrote it, and an event
/// after the write.
struct Parcel {
    tensor: Tensor,
    stream: Stream,
    event: Event,
    hops: usize,
}

/// Passes parcels around a ring of threads. Each thread adds 1 twice, on its own stream or on the
/// parcel's stream, and some threads move the tensor to another device.
fn passing(world: &World) -> Result<()> {
    const HOPS: usize = 3 * THREADS;
    let (senders, receivers): (Vec<Sender<Parcel>>, Vec<Receiver<Parcel>>) =
        (0..THREADS).map(|_| channel()).unzip();
    let receivers: Vec<_> = receivers.into_iter().map(Mutex::new).collect();
    let arrived = Mutex::new(Vec::new());
    in_threads(world, |i| {
        let device = i % world.devices;
        let mut own = cuda::Stream::new(device)?;
        let tensor = cuda::with_stream(&own, || full([64], i as f64, (DType::F32, device)))?;
        let (event, next) = (own.record_event(None)?, &senders[(i + 1) % THREADS]);
        let first = Parcel { tensor, stream: own.clone(), event, hops: 0 };
        let _ = next.send(first);
        let receiver = receivers[i].lock().expect("one thread");
        // Each thread receives every parcel equally often.
        for _ in 0..HOPS {
            let mut parcel = receiver.recv_timeout(Duration::from_secs(60)).expect("a parcel");
            let _ = parcel.event.query()?;
            let stream = if parcel.hops % 3 == 1 { parcel.stream.clone() } else { own.clone() };
            stream.wait_event(&parcel.event)?;
            cuda::with_stream(&stream, || -> Result<()> {
                if parcel.hops % 5 == 2 {
                    parcel.tensor = parcel.tensor.to_non_blocking(device)?;
                }
                parcel.tensor = parcel.tensor.add(1.0)?;
                parcel.tensor.add_(1.0).map(drop)
            })?;
            // The parcel takes the thread's own stream to another thread, so this thread makes a
            // new stream.
            parcel.event = stream.record_event(None)?;
            parcel.stream = std::mem::replace(&mut own, cuda::exclusive_stream(device, 0)?);
            parcel.hops += 1;
            if parcel.hops == HOPS {
                arrived.lock().expect("no panic").push(parcel);
            } else {
                let _ = next.send(parcel);
            }
        }
        Ok(())
    })?;
    let mut sums = Vec::new();
    for parcel in arrived.into_inner().expect("no panic") {
        let values = parcel.tensor.to_vec::<f32>()?;
        assert_eq!(values, vec![values[0]; 64]);
        sums.push(values[0] as usize);
    }
    sums.sort_unstable();
    assert_eq!(sums, (0..THREADS).map(|i| i + 2 * HOPS).collect::<Vec<_>>());
    Ok(())
}

/// Tests eight threads that enqueue on one stream: the ops of each thread stay in order, and no op
/// is interleaved with another.
fn one_stream(world: &World) -> Result<()> {
    const STEPS: usize = 12;
    for device in 0..world.devices {
        let stream = cuda::Stream::new(device)?;
        let total = cuda::with_stream(&stream, || zeros([100], (DType::I64, device)))?;
        let start = Barrier::new(THREADS);
        in_threads(world, |i| {
            let _guard = cuda::stream(&stream)?;
            start.wait();
            let mut own = full([100], i as i64, device)?;
            for step in 0..STEPS {
                total.add_(1)?;
                // Each step allocates, frees and reuses memory on the shared stream.
                own = own.mul(2)?.sub(&own)?.add(1)?;
                if step % 4 == 3 {
                    assert_eq!(own.to_vec::<i64>()?, vec![(i + step + 1) as i64; 100]);
                }
            }
            Ok(())
        })?;
        assert_eq!(total.to_vec::<i64>()?, vec![(THREADS * STEPS) as i64; 100]);
    }
    Ok(())
}

/// Tests a pool whose workers set their streams once: in every job, the streams of the worker are
/// current, although earlier jobs changed streams inside guards.
fn pool(world: &World) -> Result<()> {
    type Job = (usize, Tensor);
    let (jobs, taken) = channel::<Job>();
    for job in 0..4 * THREADS {
        let tensor = full([32], job as i64, job % world.devices)?;
        jobs.send((job, tensor)).expect("a receiver");
    }
    drop(jobs);
    let (taken, results) = (Mutex::new(taken), Mutex::new(Vec::new()));
    let streams: Arc<Mutex<Vec<Vec<Stream>>>> = Arc::default();
    let before = (cuda::current_device()?, cuda::current_stream(0)?);
    in_threads(world, |i| {
        let own = (0..world.devices).map(|d| cuda::exclusive_stream(d, 0));
        let own: Vec<Stream> = own.collect::<Result<_>>()?;
        own.iter().try_for_each(cuda::set_stream)?;
        let home = i % world.devices;
        cuda::set_device(home)?;
        streams.lock().expect("no panic").push(own.clone());
        loop {
            let job = taken.lock().expect("no panic").recv();
            let Ok((job, tensor)) = job else { break };
            for (device, stream) in own.iter().enumerate() {
                assert_eq!(&cuda::current_stream(device)?, stream, "worker {i}, job {job}");
            }
            assert_eq!(cuda::current_device()?, home, "worker {i}, job {job}");
            let device = job % world.devices;
            let earlier = own[device].last_op();
            let result = tensor.mul(3)?;
            assert!(own[device].last_op() > earlier, "it ran on the worker's own stream");
            // Use guards, and set the stream and the device inside the guards.
            let other = cuda::Stream::new(device)?;
            cuda::with_stream(&other, || cuda::set_stream(&cuda::default_stream(device)?))?;
            cuda::with_device((home + 1) % world.devices, || cuda::set_device(home))?;
            results.lock().expect("no panic").push((job, result));
        }
        Ok(())
    })?;
    assert_eq!((cuda::current_device()?, cuda::current_stream(0)?), before);
    let mut results = results.into_inner().expect("no panic");
    results.sort_by_key(|(job, _)| *job);
    assert_eq!(results.len(), 4 * THREADS);
    for (job, result) in results {
        assert_eq!(result.to_vec::<i64>()?, [3 * job as i64; 32]);
    }
    Ok(())
}

/// Tests eight readers on eight streams and then one writer, repeatedly.
fn readers(world: &World) -> Result<()> {
    let shared = arange(256, (DType::I64, 0))?;
    let expected: Vec<i64> = (0..256).collect();
    for round in 0..4 {
        let copies = Mutex::new(Vec::new());
        in_threads(world, |_| {
            let s = cuda::Stream::new(0)?;
            let (copy, pending) = cuda::with_stream(&s, || -> Result<_> {
                Ok((shared.add(0)?, shared.to_vec_async::<i64>()?))
            })?;
            copies.lock().expect("no panic").push((copy, pending));
            Ok(())
        })?;
        // The write is enqueued after the reads; the host has not waited for the reads.
        shared.fill_(-1)?;
        for (copy, pending) in copies.into_inner().expect("no panic") {
            assert_eq!(copy.to_vec::<i64>()?, expected, "round {round}");
            assert_eq!(pending.wait()?, expected, "round {round}");
        }
        shared.copy_(&arange(256, DType::I64)?, ())?;
    }
    Ok(())
}
