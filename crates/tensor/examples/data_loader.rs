//! A loader with pinned batches, which are moved to the GPU while the next batch is loaded.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::data::{DataLoader, TensorDataset};
use warpline::{Result, cuda};

/// Runs the example on one device.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    support::on_devices(1, || {
        let inputs = warpline::arange(1000, ())?.reshape([250, 4])?;
        let targets = warpline::arange(250, ())?;
        let loader = DataLoader::new(TensorDataset::new(inputs, targets)?)
            .batch_size(32)?
            .shuffle(true)
            .num_workers(2)
            .pin_memory(true);
        let cuda0 = warpline::Device::Cuda(Some(0));
        let (mut pinned, mut moved, mut total, mut batches) = (true, true, 0, 0);
        for batch in loader.iter()? {
            let (input, target) = batch?;
            pinned &= input.is_pinned() && target.is_pinned();
            let input = input.to_non_blocking(cuda0)?;
            let target = target.to_non_blocking(cuda0)?;
            moved &= input.device() == cuda0 && target.device() == cuda0;
            total += input.sum(())?.item::<i64>()? + target.sum(())?.item::<i64>()?;
            batches += 1;
        }
        report.check("S27 batches are pinned", pinned, format!("{batches} batches"));
        report.check("S20 and move with `to`", moved, cuda0);
        let expected = 999 * 500 + 249 * 125;
        report.check("S27 every sample comes once", total == expected, total);
        cuda::synchronize(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("data loader", run)
}
