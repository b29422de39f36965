//! Rows of the semantics that are about time: what runs when, on which stream, and what happens
//! when it fails. Those that need to see inside the simulated driver use [`boxes`].

#[macro_use]
mod common;

#[path = "semantics/boxes.rs"]
mod boxes;

#[path = "semantics/s06_peers.rs"]
mod s06_peers;
#[path = "semantics/s07_asynchronous.rs"]
mod s07_asynchronous;
#[path = "semantics/s08_index_check.rs"]
mod s08_index_check;
#[path = "semantics/s08_index_edges.rs"]
mod s08_index_edges;
#[path = "semantics/s08_index_programs.rs"]
mod s08_index_programs;
#[path = "semantics/s08_launch_blocking.rs"]
mod s08_launch_blocking;
#[path = "semantics/s08_launch_ring.rs"]
mod s08_launch_ring;
#[path = "semantics/s08_marked_programs.rs"]
mod s08_marked_programs;
#[path = "semantics/s08_marked_replays.rs"]
mod s08_marked_replays;
#[path = "semantics/s08_marked_tensors.rs"]
mod s08_marked_tensors;
#[path = "semantics/s10_pending.rs"]
mod s10_pending;
#[path = "semantics/s11_streams.rs"]
mod s11_streams;
#[path = "semantics/s12_incorrect_example.rs"]
mod s12_incorrect_example;
#[path = "semantics/s12_programs.rs"]
mod s12_programs;
#[path = "semantics/s13_synchronisation.rs"]
mod s13_synchronisation;
#[path = "semantics/s14_frees.rs"]
mod s14_frees;
#[path = "semantics/s19_availability.rs"]
mod s19_availability;
#[path = "semantics/s20_batches.rs"]
mod s20_batches;
#[path = "semantics/s21_visible_devices.rs"]
mod s21_visible_devices;
#[path = "semantics/s27_data_loader.rs"]
mod s27_data_loader;
#[path = "semantics/s31_modules.rs"]
mod s31_modules;

#[path = "semantics/failures.rs"]
mod failures;
#[path = "semantics/hazards.rs"]
mod hazards;
#[path = "semantics/ported.rs"]
mod ported;
#[path = "semantics/races.rs"]
mod races;
#[path = "semantics/sticky.rs"]
mod sticky;
#[path = "semantics/threads.rs"]
mod threads;
