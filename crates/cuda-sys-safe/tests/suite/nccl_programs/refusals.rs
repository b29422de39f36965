//! Calls that are refused.

use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::*;

use super::kit::*;

programs! {
    invalid_ranks([2], rank, t) {
        let id = rank.driver.nccl()?.unique_id()?;
        let device = rank.comm.device();
        let join = |ranks, own| {
            Communicator::new(&rank.driver, device, &id, ranks, own, LIMIT).map(drop)
        };
        t.call("rank 2 of 2", join(2, 2));
        t.call("rank 5 of 2", join(2, 5));
        t.call("rank 0 of 0", join(0, 0));
        t.call("a rank that is negative in C", join(usize::MAX, usize::MAX - 1));
        let count = rank.driver.device_count();
        let nowhere = Communicator::new(&rank.driver, count, &id, 1, 0, LIMIT);
        let refused = matches!(nowhere, Err(DriverError::InvalidDevice { .. }));
        t.say("a device that is not there", refused);
    } => [
        "rank 2 of 2: ncclCommInitRankConfig refused",
        "rank 5 of 2: ncclCommInitRankConfig refused",
        "rank 0 of 0: ncclCommInitRankConfig refused",
        "a rank that is negative in C: ncclCommInitRankConfig refused",
        "a device that is not there: true",
    ]
}

/// Joins both ranks of a communicator on one device.
fn on_one_device(driver: &std::sync::Arc<dyn Driver>) {
    let id = driver.nccl().unwrap().unique_id().unwrap();
    std::thread::scope(|scope| {
        let join = |rank| {
            scope.spawn(move || Communicator::new(driver, 0, &id, 2, rank, LIMIT).unwrap_err())
        };
        for thread in [0, 1].map(join) {
            let error = thread.join().unwrap();
            assert_eq!(kind(&error), "ncclInvalidUsage", "{error}");
        }
    });
}

#[test]
fn two_ranks_on_one_simulated_device() {
    for devices in 1..3 {
        let driver: std::sync::Arc<dyn Driver> = sim::SimConfig::new(devices).build();
        on_one_device(&driver);
    }
}

#[test]
#[ignore = "needs a GPU and NCCL"]
fn gpu_two_ranks_on_one_device() {
    let test = concat!(module_path!(), "::gpu_two_ranks_on_one_device");
    super::processes::without_multicast(test, || on_one_device(&real::load().unwrap()));
}
