//! The program on a GPU: `cargo test -- --ignored gpu_`.

use alloc_over_cudarc::{open, program};
use warpline_alloc::AllocatorConfig;

#[test]
#[ignore = "needs a GPU"]
fn gpu_the_program_runs_under_every_policy() {
    let context = open(0).unwrap();
    println!("{}", context.name().unwrap());
    for options in ["policy:default", "policy:torch", "policy:torch,expandable_segments:True"] {
        let report = program::run(&context, AllocatorConfig::parse(options).unwrap()).unwrap();
        println!("\n{options}\n{report}");
        assert_eq!(report.wrong, 0);
        assert!(report.kept_while_used && report.used_again);
        assert!(report.device_allocs > 0 && report.device_allocs < report.requests / 10);
        assert_eq!(report.left, 0);
    }
    // Reports errors of releases, which happen in drops.
    context.check_err().unwrap();
}
