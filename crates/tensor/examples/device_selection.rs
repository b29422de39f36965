//! The first example of PyTorch's note on CUDA semantics: tensors are made on the named device, and ops run on
//! the device of their inputs.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{Result, cuda, tensor};

/// Runs the example on three devices.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    support::on_devices(3, || {
        let x = tensor([1.0, 2.0], "cuda:0")?; // x is on cuda:0, whatever the current device is
        let y = tensor([1.0, 2.0], ())?.cuda()?; // y goes to the current device, 0
        report.check("S2 `cuda` is the current device", x.device() == y.device(), y.device());

        cuda::with_device(1, || {
            let a = tensor([1.0, 2.0], "cuda")?; // inside the guard, `cuda` is device 1
            let b = tensor([1.0, 2.0], ())?.cuda()?;
            let b2 = tensor([1.0, 2.0], ())?.to("cuda")?;
            let all_on_1 = [&a, &b, &b2].iter().all(|t| t.device().to_string() == "cuda:1");
            report.check("S1 the guard switches `cuda`", all_on_1, a.device());

            let c = (&a + &b)?;
            report.check("S3 results live with their inputs", c.device() == a.device(), &c);
            let z = (&x + &y)?; // runs on device 0 although 1 is current
            report.check("S3 the current device does not matter", z.device() == x.device(), &z);

            let d = warpline::randn([2], "cuda:2")?;
            let e = warpline::randn([2], ())?.to("cuda:2")?;
            let f = warpline::randn([2], ())?.to("cuda:2")?;
            let same = d.device() == e.device() && e.device() == f.device();
            report.check("S5 `to` reaches any device", same, f.device());

            let mixed = &a + &d;
            let refused = matches!(&mixed, Err(error) if error.to_string().contains("cuda:2"));
            let outcome = mixed.err().map(|e| e.to_string()).unwrap_or_default();
            report.check("S4 mixing devices is an error that names both", refused, outcome);
            Ok::<(), warpline::Error>(())
        })?;
        report.check(
            "S1 the guard restores",
            cuda::current_device()? == 0,
            cuda::current_device()?,
        );
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("device selection", run)
}
