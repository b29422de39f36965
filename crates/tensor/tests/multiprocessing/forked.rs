//! Tests of a forked child that drops a channel or an iteration of its parent. The parent's threads
//! do not exist in the child.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use warpline::data::{DataLoader, TensorDataset};
use warpline::{Result, arange, with_runtime};
use warpline_cuda_sys_safe::StreamHandle;
use warpline_cuda_sys_safe::sim::Schedule;

use crate::processes::{LONG, alone};
use crate::threads::{pair, world};

/// Returns whether `f` returns in a forked child.
fn ends_in_child(f: impl FnOnce()) -> bool {
    // SAFETY: the child runs only `f` and leaves through `_exit`, so no destructor or exit handler
    // of the parent runs in it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Unwinding would end only this thread, and the child would exit successfully.
        let code = i32::from(catch_unwind(AssertUnwindSafe(f)).is_err());
        // SAFETY: `_exit` takes no pointer and touches no memory of the process.
        unsafe { libc::_exit(code) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: `status` is a valid place for the result, and `child` has not been reaped.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } != child {
        if begun.elapsed() > LONG / 4 {
            // SAFETY: `child` has not been reaped, so its id is not reused.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: `status` is a valid place for the result, and `child` has not been reaped.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    status == 0
}

#[test]
fn s33_a_forked_child_drops_a_channel_without_waiting() {
    let _alone = alone(); // the child holds copies of all descriptors
    let worlds = [0, 1].map(|_| world(1, Schedule::Lazy));
    let (here, there) = pair();
    let hold = with_runtime(&worlds[0].1, || -> Result<_> {
        let tensor = warpline::zeros([600], "cuda:0")?.share_memory()?;
        let hold = worlds[0].0.hold(StreamHandle::default_of(0)).unwrap();
        tensor.add_(1.0)?;
        here.send(&tensor)?;
        Ok(hold)
    })
    .unwrap();
    let received = with_runtime(&worlds[1].1, || there.recv()).unwrap();
    // The work of the parent's stream has not run, because the simulator holds it back.
    let mut there = Some(there);
    let ended = ends_in_child(|| drop(there.take()));
    hold.open();
    drop((there, received));
    assert!(ended, "it hangs");
}

#[test]
fn a_forked_child_has_no_workers_of_its_parents_iteration() {
    let _alone = alone(); // the child holds copies of all descriptors
    let [inputs, targets] = [(); 2].map(|()| arange(8, ()).unwrap());
    let data = TensorDataset::new(inputs, targets).unwrap();
    let mut batches = DataLoader::new(data).num_workers(2).iter().unwrap();
    batches.next().unwrap().unwrap();
    let ended = ends_in_child(move || {
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("forked child"), "{error}");
        assert!(batches.next().is_none());
        drop(batches);
    });
    assert!(ended, "it hangs or panics");
}
