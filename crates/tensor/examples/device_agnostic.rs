//! One program for every machine: `cargo run --example device_agnostic -- --disable-cuda`.

#[path = "support/mod.rs"]
pub(crate) mod support;

use clap::Parser;
use support::Report;
use warpline::{Device, Result, cuda};

#[derive(Debug, Parser)]
struct Args {
    /// Run on the CPU even if there is a GPU.
    #[arg(long)]
    disable_cuda: bool,
}

/// The program, which runs on any device.
fn network(device: Device) -> Result<warpline::Tensor> {
    warpline::manual_seed(1);
    let x = warpline::ones([8, 42], device)?;
    let weight = warpline::randn([42, 2], ())?.to(device)?;
    x.matmul(&weight)?.softmax(-1)?.sum(())
}

fn device(disable_cuda: bool) -> Result<Device> {
    Ok(if !disable_cuda && cuda::is_available()? { Device::Cuda(None) } else { Device::Cpu })
}

/// Runs the program with and without CUDA.
#[allow(dead_code)] // for `cuda_semantics`
pub(crate) fn run(report: &mut Report) -> Result<()> {
    let cpu = network(device(true)?)?;
    report.check("S19 with --disable-cuda it runs on the CPU", cpu.device() == Device::Cpu, &cpu);
    support::on_devices(1, || {
        let gpu = network(device(false)?)?;
        let same =
            gpu.device() != Device::Cpu && (gpu.item::<f32>()? - cpu.item::<f32>()?).abs() < 1e-4;
        report.check("S19 without, on CUDA, with the same result", same, &gpu);
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", network(device(args.disable_cuda)?)?);
    Ok(())
}
