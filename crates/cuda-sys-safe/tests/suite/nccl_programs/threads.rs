//! Runs ranks as threads.

use std::sync::Arc;

use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_cuda_sys_safe::*;

use super::kit::*;

/// Number of seeded schedules, in addition to the lazy and the eager one.
pub(crate) fn seeds() -> u64 {
    std::env::var("WARPLINE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

/// Runs a program with one rank per driver and device.
fn run(places: &[(Arc<dyn Driver>, usize)], program: Program, expected: &[&str], on: &str) {
    let ranks = places.len();
    let id = places[0].0.nccl().unwrap().unique_id().unwrap();
    let meeting = Arc::<Meeting>::default();
    std::thread::scope(|scope| {
        for (rank, (driver, device)) in places.iter().enumerate() {
            let meeting = Some(Arc::clone(&meeting));
            scope.spawn(move || {
                let comm = Communicator::new(driver, *device, &id, ranks, rank, LIMIT).unwrap();
                let rank = Rank { meeting, ..Rank::new(driver, comm).unwrap() };
                check(&rank, program, expected, on);
                rank.stream.synchronize().unwrap();
                // Other ranks may still read this rank's buffers.
                rank.meet();
                rank.comm.abort();
            });
        }
    });
}

/// Runs a program with each number of ranks. An even number of ranks shares one simulator. With an
/// odd number, each rank has its own simulator.
pub(crate) fn simulated(counts: &[usize], program: Program, expected: &[&str]) {
    let seeded = (0..seeds()).map(Schedule::Seeded);
    for schedule in [Schedule::Lazy, Schedule::Eager].into_iter().chain(seeded) {
        for &ranks in counts {
            let own_simulators = ranks % 2 == 1;
            let devices = if own_simulators { 1 } else { ranks };
            let config = SimConfig { schedule, capacity: 1 << 24, ..SimConfig::new(devices) };
            let simulators: Vec<_> = (0..ranks / devices).map(|_| config.clone().build()).collect();
            let place = |rank: usize| -> (Arc<dyn Driver>, usize) {
                (simulators[rank / devices].clone(), rank % devices)
            };
            let places: Vec<_> = (0..ranks).map(place).collect();
            run(&places, program, expected, &format!("the simulator, {schedule:?}"));
            for sim in simulators {
                assert!(sim.usage().all_released(), "{schedule:?} leaks: {:#?}", sim.usage());
                assert_eq!(sim.violations(), [], "{schedule:?}");
            }
        }
    }
}

/// Runs a program on GPUs.
pub(crate) fn real(devices: &[usize], program: Program, expected: &[&str]) {
    let driver = real::load().unwrap();
    let places: Vec<_> = devices.iter().map(|&device| (driver.clone(), device)).collect();
    run(&places, program, expected, "GPUs");
}
