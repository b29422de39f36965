//! Page-locked memory: copies that overlap with work on another stream.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{Result, cuda};

/// Runs the example on one device.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    support::on_devices(1, || {
        let host = warpline::arange(1 << 20, ())?.pin_memory()?;
        report.check("S26 pin_memory", host.is_pinned(), "the copy is page-locked");

        let copies = cuda::Stream::new(())?;
        let work = warpline::ones([512, 512], "cuda")?;
        let moved = cuda::with_stream(&copies, || host.to_non_blocking("cuda"))?;
        let product = work.matmul(&work)?; // on the default stream, beside the copy
        // The default stream waits for the copy without a call of the program.
        let sum = moved.sum(())?.item::<i64>()?;
        let expected = (1i64 << 19) * ((1 << 20) - 1);
        report.check("S10 a non_blocking copy is in order", sum == expected, sum);
        let corner = product.select(0, 0)?.select(0, 0)?.item::<f32>()?;
        report.check("S7 beside other work", corner == 512.0, corner);

        let back = moved.cpu()?;
        report.check(
            "S9 copies back wait by themselves",
            back.to_vec::<i64>()? == host.to_vec::<i64>()?,
            "equal",
        );
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("pinned memory", run)
}
