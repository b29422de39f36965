//! Process groups, their stores and launcher, and `DataParallel`: one program of all, which is linked
//! once.

#[path = "../group_support/mod.rs"]
mod group_support;

mod data_parallel;
mod group_debug;
mod group_failures;
mod group_replays;
mod groups;
mod launcher;
mod processes;
mod store;
mod store_deadlines;
mod store_failures;
mod store_hostile;
mod store_secret;
mod store_tcp;
mod store_wire;

/// The name that a test of a module, as of `module_path!`, has in this program.
fn named(module: &str, test: &str) -> String {
    module.split_once("::").map_or(test.to_owned(), |(_, module)| format!("{module}::{test}"))
}
