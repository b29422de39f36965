//! Tests of the semantic rows (`docs/rows.md`) on simulated machines with one to three devices.
//! Tests named `gpu_…` run on a real device, tests named `gpu2_…` on two. Tests that inspect the
//! simulated driver use [`boxes`]. Tests of golden files, graphs and footprints are in the same
//! binary, so that only one binary is linked.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod boxes;

mod s06_peers;
mod s07_asynchronous;
mod s08_failure_owners;
mod s08_index_check;
mod s08_index_edges;
mod s08_index_programs;
mod s08_launch_blocking;
mod s08_launch_ring;
mod s08_marked_programs;
mod s08_marked_replays;
mod s08_marked_tensors;
mod s10_pending;
mod s11_streams;
mod s12_incorrect_example;
mod s12_programs;
mod s13_synchronisation;
mod s14_frees;
mod s19_availability;
mod s20_batches;
mod s21_visible_devices;
mod s27_data_loader;
mod s34_precision;
mod s37_workspaces;
mod s38_captured_memory;
mod s38_graphed_callables;
mod s38_kept_graphs;
#[cfg(target_os = "linux")]
mod s40_nvml_check;
mod s41_bodies;
mod s41_control_flow;

mod s35_backward_streams;
#[cfg(target_os = "linux")]
mod s36_pluggable;

mod added_op;
mod autocast;
mod autocast_cache;
mod autocast_captures;
mod autograd;
mod bad_input;
mod by_name;
mod composites;
mod convolutions;
mod copies;
mod decoding;
mod devices;
mod elementwise;
mod exactness;
mod extreme_arguments;
mod factories;
mod failures;
mod formats;
mod formulas;
mod generators;
mod hazards;
mod indexing;
mod loss_arguments;
mod memory;
mod memory_history;
mod memory_pools;
mod messages;
mod messages_composites;
mod names;
mod number_operands;
mod odd_input;
mod pinned;
mod ported;
mod races;
mod random;
mod registry;
mod sizes;
mod sticky;
mod streams;
mod threads;
mod visible;

mod footprints;
mod functional_activations;
mod goldens_dtypes;
mod goldens_ops;
mod goldens_print;
mod goldens_suite;
mod gradient_lines;
mod graphs;
mod python;
