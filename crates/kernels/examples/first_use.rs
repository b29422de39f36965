//! Measures the time that the first use of an op on a GPU takes to decompress the PTX and to
//! compile it in the driver. Run it with `CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1`; otherwise the
//! driver caches compiled code.
//!
//! The arguments are names of programs; without arguments, all programs are measured. For each
//! program, prints the median and the maximum over its kernels, in milliseconds beyond the time of
//! an empty kernel, and at last the 40 programs with the longest maxima. Each kernel is compiled
//! twice, and the shorter time is used, because other work of the host may delay a compilation.

use std::sync::Arc;
use std::time::Instant;

use warpline_cuda_sys_safe::Driver;
use warpline_cuda_sys_safe::owned::Module;
use warpline_kernels::programs;
use warpline_runtime::module::{single, specialized};

const EMPTY: &str = "\
    .version 8.0\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    let driver = warpline_cuda_sys_safe::open(spec.as_deref(), None)?;
    let capability = driver.properties(0)?.compute_capability;
    // The first load creates the context and starts the compiler, so do not count it.
    load(&driver, EMPTY, "empty")?;
    let names: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let (mut all, mut empty) = (Vec::new(), Vec::new());
    for program in programs().into_iter().filter(|program| wanted(program.name())) {
        let mut times = Vec::new();
        for variant in 0..program.variants().len() {
            // Measure the empty kernel again for each variant, because the load of the host varies.
            empty.push(load(&driver, EMPTY, "empty")?);
            for kernel in program.kernels(variant) {
                let begun = Instant::now();
                let ptx =
                    program.ptx(variant).ok_or("it was not compiled: run `cargo xtask ptx`")?;
                let ptx = specialized(single(ptx, &kernel), capability);
                let unpacked = begun.elapsed().as_secs_f64() * 1e3;
                let first = load(&driver, &ptx, &kernel)?;
                let compiled = first.min(load(&driver, &ptx, &kernel)?);
                times.push((unpacked + compiled, kernel));
            }
        }
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.push((program.name(), times));
    }
    empty.sort_by(f64::total_cmp);
    let Some(&base) = empty.get(empty.len() / 2) else { return Err("no such program".into()) };
    println!(
        "{:<20} {:>8} {:>8}   ms beyond an empty kernel's {base:.2}",
        "program", "median", "longest"
    );
    let mut longest = Vec::new();
    for (name, mut times) in all {
        let median = times[times.len() / 2].0 - base;
        let Some((most, kernel)) = times.pop() else { continue };
        println!("{name:<20} {median:>8.2} {:>8.2} {kernel}", most - base);
        longest.push((most - base, kernel));
    }
    longest.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("longest: {:?}", &longest[..longest.len().min(40)]);
    Ok(())
}

/// Loads a module, and returns the time until its kernel can be launched, in milliseconds.
fn load(
    driver: &Arc<dyn Driver>,
    ptx: &str,
    kernel: &str,
) -> Result<f64, Box<dyn std::error::Error>> {
    let name = std::ffi::CString::new(kernel)?;
    let begun = Instant::now();
    let module = Module::load_ptx(driver, 0, ptx)?;
    let _function = module.function(&name)?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
