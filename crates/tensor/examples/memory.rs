//! The functions that report and free GPU memory, with the numbers of PyTorch's note on CUDA semantics.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{Result, RuntimeConfig, cuda};

/// Runs the example on one device with an empty cache.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    support::with_config(1, &RuntimeConfig::default(), |_| {
        let start = cuda::memory_allocated(())?;
        let t = warpline::rand([300, 300, 300], "cuda")?;
        let (peak, reserved) = (cuda::max_memory_allocated(())?, cuda::memory_reserved(())?);
        report.check("S17 max_memory_allocated", peak == 108_000_256, peak);
        report.check("S17 memory_reserved", reserved == 109_051_904, reserved);
        report.check(
            "S16 memory_cached is its name of 2018",
            cuda::memory_cached(())? == reserved,
            reserved,
        );

        drop(t); // the memory goes back to the cache, not to the driver
        let (now, cached) = (cuda::memory_allocated(())?, cuda::memory_reserved(())?);
        report.check("S15 a drop gives the memory back", now == start, now);
        report.check("S16 the cache keeps it", cached == reserved, cached);

        cuda::reset_peak_memory_stats(())?;
        let peak = cuda::max_memory_allocated(())?;
        report.check("S15 peaks can be reset", peak == start, peak);

        let small = warpline::ones([10], "cuda")?;
        cuda::empty_cache();
        let kept = cuda::memory_reserved(())?;
        report.check(
            "S18 empty_cache keeps what is in use",
            [2 << 20, 4 << 20].contains(&kept),
            kept,
        );
        let intact = small.to_vec::<f32>()? == [1.0; 10];
        report.check("S18 and touches nothing in it", intact, &small);
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("memory", run)
}
