//! A recurrent network that creates its hidden state on the input's device.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{Device, Result};
use warpline_nn::{Module, RNNCell};

fn unroll(device: Device) -> Result<Vec<f32>> {
    warpline::manual_seed(3);
    let mut cell = RNNCell::new(4, 8, ())?;
    cell.to(device)?;
    let steps = warpline::linspace(-1.0, 1.0, 5 * 2 * 4, ())?.reshape([5, 2, 4])?.to(device)?;
    let mut hidden = cell.initial_hidden(&steps.select(0, 0)?)?;
    for t in 0..5 {
        hidden = cell.forward(&steps.select(0, t)?, &hidden)?;
    }
    hidden.to_vec()
}

/// Compares runs on two devices with a run on the CPU.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    let expected = unroll(Device::Cpu)?;
    support::on_devices(2, || {
        for index in [0, 1] {
            let hidden = unroll(Device::Cuda(Some(index)))?;
            let worst =
                hidden.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            report.check(
                &format!("S31 the network runs on cuda:{index}, its state with it"),
                worst < 1e-5 && hidden.len() == expected.len(),
                format!("largest difference from the CPU {worst:e}"),
            );
        }
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("recurrent network", run)
}
