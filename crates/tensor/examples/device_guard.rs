//! The example "outside device is 0, inside device is 1" of PyTorch's note on CUDA semantics.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{Result, cuda};

/// Runs the example on two devices.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    support::on_devices(2, || {
        println!("    Outside device is {}", cuda::current_device()?);
        {
            let _guard = cuda::device(1)?;
            println!("    Inside device is {}", cuda::current_device()?);
            report.check("S1 inside is 1", cuda::current_device()? == 1, cuda::current_device()?);
            let nested = cuda::with_device(0, cuda::current_device)?;
            report.check("S1 guards nest", nested == 0, nested);
            report.check("S1 and restore", cuda::current_device()? == 1, cuda::current_device()?);
        }
        println!("    Outside device is still {}", cuda::current_device()?);
        report.check("S1 outside is 0", cuda::current_device()? == 0, cuda::current_device()?);
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("device guard", run)
}
