//! Tests of the driver layer: the simulated driver, the real driver's bookkeeping with fake
//! libraries, and programs with one transcript for both drivers. These tests are in one program, so
//! they are linked once.

#[cfg(target_os = "linux")]
#[path = "../fake/build.rs"]
mod build;

mod driver_programs;
mod fake_driver;
mod fake_nccl;
mod misuse;
mod nccl_programs;
mod shared_memory;
mod sim;
mod sim_calls;
mod sim_conditions;
mod sim_kernels;
mod sim_nccl;
mod sim_nccl_splits;
mod sim_times;

use warpline_cuda_sys_safe::{DeviceCode, FunctionHandle};

/// Returns the code of a launch with a single thread.
fn one_thread(function: FunctionHandle) -> DeviceCode<'static> {
    DeviceCode::Kernel { function, grid: [1; 3], block: [1; 3], shared_bytes: 0, waits: false }
}

/// Returns the name of a test in this program. `module` is the `module_path!` of its module.
fn named(module: &str, test: &str) -> String {
    module.split_once("::").map_or(test.to_owned(), |(_, module)| format!("{module}::{test}"))
}
