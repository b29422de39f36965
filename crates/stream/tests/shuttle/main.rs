//! Tests of state that threads share, under many schedules of the threads and of the devices' work.
//! A deadlock fails a test.
//!
//! Run them with `RUSTFLAGS="--cfg shuttle" cargo test -p warpline-stream --test shuttle
//! --target-dir target/shuttle`. `WARPLINE_SHUTTLE` is the number of random schedules of each test.
//! Default: 1000. Half as many schedules with few preemptions follow.
#![cfg(shuttle)]

mod captures;
mod current;
mod events;
#[allow(dead_code, reason = "shared with `suite`, which uses the rest")]
#[path = "../suite/fake.rs"]
mod fake;
mod statics;
mod streams;
mod waits;

use std::sync::{Arc, Mutex, PoisonError};

use shuttle::Runner;
use shuttle::rand::{RngCore, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use warpline_cuda_sys_safe::owned::LaunchToken;
use warpline_stream::{Devices, Error, OpNumber, Stream};

/// Runs a test under random schedules, and under schedules with few preemptions.
fn check(test: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules =
        std::env::var("WARPLINE_SHUTTLE").ok().and_then(|s| s.parse().ok()).unwrap_or(1000);
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new(3, schedules / 2), config).run(test);
}

/// Creates devices of a fake driver with a random schedule. The checker may switch threads at each
/// driver call.
fn fake_devices(devices: usize) -> Devices {
    Devices::new(fake::FakeDriver::new(devices, thread_rng().next_u64())).unwrap()
}

/// Creates streams of device 0.
fn streams<const N: usize>(devices: &Devices) -> [Stream; N] {
    [(); N].map(|()| devices.get(0).unwrap().exclusive_stream(0).unwrap())
}

/// The token for all work of the tests.
// SAFETY: the enqueued host functions access only memory that they own.
const TOKEN: LaunchToken = unsafe { LaunchToken::new() };

/// The work of a thread.
type Task = Box<dyn FnOnce() + Send>;

fn task(run: impl FnOnce() + Send + 'static) -> Task {
    Box::new(run)
}

/// Starts threads and waits for them.
fn together(tasks: impl IntoIterator<Item = Task>) {
    let threads: Vec<_> = tasks.into_iter().map(shuttle::thread::spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// The tags of the work that ran, in order.
#[derive(Clone, Debug, Default)]
struct RunLog(Arc<Mutex<Vec<u64>>>);

impl RunLog {
    fn list(&self) -> Vec<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn has(&self, tag: u64) -> bool {
        self.list().contains(&tag)
    }

    /// Asserts that the work with tag `first` ran before the work with tag `second`.
    #[track_caller]
    fn assert_order(&self, first: u64, second: u64) {
        let list = self.list();
        let at = |tag| list.iter().position(|t| *t == tag);
        assert!(at(first).is_some() && at(first) < at(second), "{first}, {second}: {list:?}");
    }

    /// Asserts that all operations known to be complete have run. The operations of the stream are
    /// tagged by their numbers.
    #[track_caller]
    fn assert_known(&self, stream: &Stream) {
        for op in (1..=stream.last_op()).filter(|op| stream.is_known_done(*op)) {
            assert!(self.has(op), "operation {op} is marked as complete but has not run");
        }
    }

    /// Submits work that adds its tag to the list when it runs.
    fn work(&self, stream: &Stream, tag: u64) -> OpNumber {
        let (ran, driver) = (self.clone(), stream.raw().driver());
        let work = move || ran.0.lock().unwrap_or_else(PoisonError::into_inner).push(tag);
        // SAFETY: `submit` passes the handle of `stream`, which is alive.
        let enqueue = |handle| unsafe { driver.launch_host_func(handle, Box::new(work)) };
        let enqueue = |handle| enqueue(handle).map_err(Error::from);
        stream.submit(TOKEN, enqueue).unwrap().1
    }
}
