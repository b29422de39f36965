//! Threads: several modules at once, several callers, and the end of the threads.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use warpline::amp::autocast;
use warpline::{DType, Device, Runtime, Tensor, cuda, full, ones, runtime, with_runtime};
use warpline_parallel::{DataParallel, DataParallelError};

use super::nets::{Counts, FnModule};
use super::world::{SimBox, TestResult, values};

crate::on_both! {
    Auto([2, 3]) s28_several_modules_run_at_once gpu2_s28_several_modules_run_at_once => several;
    Auto([2, 3]) s28_choices_of_replicas_end_with_the_replicas gpu2_s28_choices_of_replicas_end_with_the_replicas => choices;
    Auto([2, 8]) s28_two_threads_share_one_module gpu2_s28_two_threads_share_one_module => shared;
    Auto([2, 3]) s28_replicas_are_in_the_callers_region_of_autocast
        gpu2_s28_replicas_are_in_the_callers_region_of_autocast => regions;
}

/// Replicas set streams and devices, and some panic afterwards. The next forward pass is not affected.
fn choices(devices: usize) -> TestResult {
    let caller = thread::current().id();
    let (seen, noted) = channel();
    let net = DataParallel::new(
        FnModule(move |(x, fails): (Tensor, bool)| {
            if thread::current().id() == caller {
                return Ok(x);
            }
            let world = runtime();
            let streams: warpline::Result<Vec<_>> =
                (0..devices).map(cuda::current_stream).collect();
            seen.send((x.device(), cuda::current_device()?, streams?)).expect("the test listens");
            for d in 0..devices {
                world.devices()?.set_current_stream(&cuda::Stream::new(d)?)?;
            }
            cuda::set_device(0)?;
            assert!(!fails, "on purpose");
            Ok(x)
        }),
        (),
    )?;
    for forward in 0..6 {
        // A replica sees the caller's stream for its own device, and default streams for the others.
        let own: Vec<_> = (0..devices).map(|d| cuda::Stream::new(d)).collect::<Result<_, _>>()?;
        let devices_of = runtime();
        for stream in &own {
            devices_of.devices()?.set_current_stream(stream)?;
        }
        let fails = forward % 2 == 1;
        let x = ones([devices], 0)?;
        let ran = catch_unwind(AssertUnwindSafe(|| net.forward((x, fails))));
        match ran {
            Ok(out) => assert_eq!(values(&out?)?, vec![1.0; devices]),
            Err(_) => assert!(fails),
        }
        let found: Vec<_> = noted.try_iter().collect();
        assert_eq!(found.len(), devices - 1);
        for (at, current, streams) in found {
            let at = at.index().expect("a GPU");
            assert_eq!(current, at);
            for (d, stream) in streams.iter().enumerate() {
                let expected = if d == at { *stream == own[d] } else { stream.is_default() };
                assert!(expected, "forward {forward} on cuda:{at} finds {stream:?}");
            }
        }
    }
    Ok(())
}

fn regions(devices: usize) -> TestResult {
    let product = |x: Tensor| x.matmul(&ones([2, 2], x.device())?);
    let net = DataParallel::new(FnModule(product), ())?;
    let x = ones([2 * devices, 2], 0)?;
    let mixed = autocast("cuda", DType::F16, || net.forward(x.clone()))?;
    assert_eq!((mixed.dtype(), net.forward(x)?.dtype()), (DType::F16, DType::F32));
    Ok(())
}

fn in_thread(
    runtime: &Runtime,
    body: impl FnOnce() -> TestResult + Send + 'static,
) -> thread::JoinHandle<()> {
    let runtime = runtime.clone();
    thread::spawn(move || with_runtime(&runtime, body).unwrap_or_else(|e| panic!("{e:?}")))
}

fn several(devices: usize) -> TestResult {
    let start = Arc::new(Barrier::new(3));
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let start = Arc::clone(&start);
            in_thread(&runtime(), move || {
                let net = DataParallel::new(Counts::new(0)?, ())?;
                start.wait();
                for forward in 1..=4 {
                    net.module().weight.fill_(f64::from(i))?;
                    let out = net.forward(ones([2 * devices], 0)?)?;
                    let mut expected = vec![(i + forward) as f32; 2 * devices];
                    assert_eq!(values(&out)?, expected);
                    expected.clear();
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread failed"))?;
    }
    Ok(())
}

/// Several threads share a `DataParallel`, each with its own streams and input.
fn shared(devices: usize) -> TestResult {
    let weight = full([], 3.0, 0)?;
    let mut counts = Counts::new(0)?;
    counts.weight.set(weight.clone());
    let net = Arc::new(DataParallel::new(counts, ())?);
    let threads: Vec<_> = (1..=2)
        .map(|i| {
            let net = Arc::clone(&net);
            in_thread(&runtime(), move || {
                for d in 0..devices {
                    runtime().devices()?.set_current_stream(&cuda::Stream::new(d)?)?;
                }
                for _ in 0..4 {
                    // The first element is zero, so that the buffer does not change.
                    let x = full([devices, 2], f64::from(i), 0)?;
                    x.narrow(1, 0, 1)?.zero_()?;
                    let out = net.forward(x)?;
                    let expected: Vec<f32> =
                        (0..devices).flat_map(|_| [0.0, 3.0 * i as f32]).collect();
                    assert_eq!(values(&out)?, expected);
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread failed"))?;
    }
    Ok(())
}

/// Sends a message when its thread ends.
struct SendOnDrop(Sender<()>);

impl Drop for SendOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

thread_local! {
    static ENDS: RefCell<Option<SendOnDrop>> = const { RefCell::new(None) };
}

#[test]
fn threads_are_kept_and_end_with_their_module() {
    SimBox::lazy(4).enter(|| {
        let (sender, ended) = channel();
        let caller = thread::current().id();
        let (names, named) = channel();
        let net = DataParallel::new(
            FnModule(move |x: Tensor| {
                if thread::current().id() != caller {
                    ENDS.with_borrow_mut(|ends| {
                        _ = ends.get_or_insert_with(|| SendOnDrop(sender.clone()))
                    });
                    let device = x.device().index();
                    names.send((device, thread::current().id())).expect("the test listens");
                }
                Ok(x)
            }),
            (),
        )?;
        let mut threads = Vec::new();
        for _ in 0..3 {
            net.forward(ones([4], 0)?)?;
            let mut these: Vec<_> = named.try_iter().collect();
            these.sort_by_key(|(device, _)| *device);
            assert_eq!(these.len(), 3, "one for each device but the first");
            threads.push(these);
            // Sleep for longer than the threads poll for a message.
            thread::sleep(Duration::from_millis(2));
        }
        assert!(threads.windows(2).all(|pair| pair[0] == pair[1]), "the same each time");
        assert!(ended.try_recv().is_err(), "none has ended");
        drop(net);
        for _ in 0..3 {
            ended.recv_timeout(Duration::from_secs(60)).expect("a thread ends");
        }
        Ok(())
    });
}

/// Each device has work before the host waits for any device.
#[test]
fn s29_eight_gpus_are_kept_busy() {
    let world = SimBox::lazy(8);
    world.enter(|| {
        let net = DataParallel::new(Counts::new(0)?, ())?;
        let x = ones([16], 0)?;
        net.forward(x.clone())?;
        for device in 0..8 {
            cuda::synchronize(device)?;
        }
        let waits = world.host_waits();
        let out = net.forward(x)?;
        assert_eq!(world.host_waits(), waits, "the host waited in a forward");
        for device in 0..8 {
            assert!(!cuda::current_stream(device)?.query()?, "cuda:{device} has nothing to do");
        }
        assert_eq!(out.size(), [16]);
        Ok(())
    });
}

/// Code that runs once, at the first call from inside a forward pass.
#[derive(Default)]
struct Once(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Once {
    fn set(&self, code: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("no panic") = Some(Box::new(code));
    }

    fn run(&self) {
        let code = self.0.lock().expect("no panic").take();
        code.into_iter().for_each(|code| code());
    }
}

/// A member whose clones run the program's code.
struct RunsOnClone(Arc<Once>);

impl Clone for RunsOnClone {
    fn clone(&self) -> Self {
        self.0.run();
        Self(Arc::clone(&self.0))
    }
}

#[test]
fn a_clone_of_a_module_may_run_a_forward_pass_of_the_same_data_parallel() {
    SimBox::lazy(2).enter(|| {
        let member = RunsOnClone(Arc::default());
        let nested = Arc::clone(&member.0);
        let add = FnModule(move |x: Tensor| {
            let _member = &member;
            x.add(1.0)
        });
        let net = Arc::new(DataParallel::new(add, ())?);
        let (x, (sender, received)) = (ones([4], 0)?, channel());
        let (inner, y) = (Arc::clone(&net), x.mul(2.0)?);
        nested.set(move || sender.send(inner.forward(y)).expect("the test listens"));
        assert_eq!(values(&net.forward(x)?)?, [2.0; 4]);
        assert_eq!(values(&received.try_recv()??)?, [3.0; 4]);
        Ok(())
    });
}

#[test]
fn a_replica_that_calls_its_own_data_parallel_on_another_thread_gets_an_error() {
    SimBox::lazy(2).enter(|| {
        let nested = Arc::new(Once::default());
        let inside = Arc::clone(&nested);
        let net = FnModule(move |x: Tensor| {
            if x.device() == Device::cuda(1) {
                inside.run();
            }
            Ok(x)
        });
        let net = Arc::new(DataParallel::new(net, ())?);
        let (x, (sender, received)) = (ones([4], 0)?, channel());
        let (inner, y) = (Arc::clone(&net), x.clone());
        nested.set(move || sender.send(inner.forward(y)).expect("the test listens"));
        assert_eq!(values(&net.forward(x)?)?, [1.0; 4]);
        let error = received.try_recv()?.unwrap_err();
        let thread = matches!(error.find(), Some(DataParallelError::Thread { device: 1, .. }));
        assert!(thread, "{error}");
        Ok(())
    });
}
