//! `new_*` and `*_like` make tensors of the same dtype and device as another tensor.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{DType, Device, Result, Tensor};

fn same_kind(new: &Tensor, like: &Tensor) -> bool {
    new.device() == like.device() && new.dtype() == like.dtype()
}

/// Runs on the CPU and on two devices.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    support::on_devices(2, || {
        for device in ["cpu", "cuda:0", "cuda:1"] {
            let x = warpline::empty([2], (DType::F64, device.parse::<Device>()?))?;
            let full = x.new_full([1, 2], -4.5, ())?;
            let made = x.new_tensor([1, 2, 3], x.dtype())?;
            report.check(
                &format!("S22 new_full and new_tensor from {device}"),
                same_kind(&full, &x) && same_kind(&made, &x),
                &full,
            );
            let y = warpline::rand([2, 3], x.device())?;
            let (ones, zeros) = (y.ones_like(())?, y.zeros_like(())?);
            report.check(
                &format!("S23 ones_like and zeros_like of {device}"),
                same_kind(&ones, &y)
                    && same_kind(&zeros, &y)
                    && ones.to_vec::<f32>()? == [1.0; 6]
                    && zeros.to_vec::<f32>()? == [0.0; 6],
                &ones,
            );
        }
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("new_* and *_like", run)
}
