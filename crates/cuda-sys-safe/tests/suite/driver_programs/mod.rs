//! Small programs of driver calls, each with the transcript that CUDA produces. Every program runs
//! on the simulator under several schedules, and on the real driver if there is a GPU. All runs
//! must produce the transcript.

use std::sync::{Arc, Mutex, PoisonError};

use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_cuda_sys_safe::*;

/// Defines programs: name, required devices, body, and expected transcript. Each program becomes
/// one test on the simulator and one on a GPU.
macro_rules! programs {
    ($($name:ident($devices:tt, $driver:ident, $t:ident) $body:block
        => [$($line:literal),* $(,)?])*) => {$(
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[allow(clippy::unnecessary_wraps)]
            fn program($driver: &Arc<dyn Driver>, $t: &mut Transcript) -> Result<()> {
                $body
                Ok(())
            }

            #[test]
            fn the_simulator_prints_the_transcript() {
                crate::driver_programs::simulated($devices, program, &[$($line),*]);
            }

            gpu_test!($devices, &[$($line),*]);
        }
    )*};
}

/// Defines the test of a program on the real driver. The test's name tells the number of required
/// GPUs.
macro_rules! gpu_test {
    (1, $expected:expr) => {
        #[test]
        #[ignore = "needs a GPU"]
        fn gpu_the_real_driver_prints_the_transcript() {
            crate::driver_programs::real(program, $expected);
        }
    };
    (2, $expected:expr) => {
        #[test]
        #[ignore = "needs two GPUs"]
        fn gpu2_the_real_driver_prints_the_transcript() {
            crate::driver_programs::real(program, $expected);
        }
    };
}

mod captures;
mod copies;
mod forbidden;
mod kernels;
mod kit;
mod streams;
mod virtual_memory;

use kit::{Program, Transcript};

fn check(driver: &Arc<dyn Driver>, program: Program, expected: &[&str], on: &str) {
    let mut transcript = Transcript::default();
    let result = program(driver, &mut transcript);
    let seen = transcript.0;
    if let Err(error) = result {
        panic!("on {on}: {error}\nafter {seen:#?}");
    }
    assert_eq!(seen, expected, "on {on}");
}

fn simulated(devices: usize, program: Program, expected: &[&str]) {
    let seeds = (0..8).map(Schedule::Seeded);
    for schedule in [Schedule::Eager, Schedule::Lazy].into_iter().chain(seeds) {
        for check_footprints in [false, true] {
            let sim = SimConfig { schedule, check_footprints, ..SimConfig::new(devices) }.build();
            let driver: Arc<dyn Driver> = sim.clone();
            check(&driver, program, expected, &format!("the simulator, {schedule:?}"));
            drop(driver);
            assert!(sim.usage().all_released(), "{schedule:?} leaks: {:#?}", sim.usage());
            assert_eq!(sim.violations(), []);
            assert_eq!(sim.overruns(), []);
        }
    }
}

fn real(program: Program, expected: &[&str]) {
    // Captures and waits of one program would affect another program on the same GPU.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    let driver = open(spec.as_deref(), None).unwrap_or_else(|error| panic!("{error}"));
    check(&driver, program, expected, "the GPU");
}
