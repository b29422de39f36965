//! Tests of process groups, their stores and launcher, `DistributedDataParallel` and `DataParallel`. They are one
//! program, so that only one program is linked.

#[path = "../group_support/mod.rs"]
mod group_support;

mod cpu_groups;
mod data_parallel;
mod ddp;
#[cfg(target_os = "linux")]
mod endings;
mod examples;
mod faults;
mod graphed_collectives;
mod group_debug;
mod group_failures;
mod group_replays;
mod groups;
mod launcher;
#[cfg(target_os = "linux")]
mod load;
mod processes;
mod store;
mod store_deadlines;
mod store_failures;
mod store_hostile;
mod store_secret;
mod store_tcp;
mod store_wire;

/// Returns the full name of a test in this program. `module` is the `module_path!` of the test's module.
fn full_test_name(module: &str, test: &str) -> String {
    module.split_once("::").map_or(test.to_owned(), |(_, module)| format!("{module}::{test}"))
}
