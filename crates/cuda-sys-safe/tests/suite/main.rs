//! The driver layer: the simulated driver, the real one's bookkeeping against libraries that do as they
//! are told, and programs that hold both drivers to one transcript. One program of all, which is
//! linked once.

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
mod sim_kernels;
mod sim_nccl;
mod sim_nccl_splits;

/// The name that a test of a module, as of `module_path!`, has in this program.
fn named(module: &str, test: &str) -> String {
    module.split_once("::").map_or(test.to_owned(), |(_, module)| format!("{module}::{test}"))
}
