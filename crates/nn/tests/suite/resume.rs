//! Tests that a run of the example `train_gpt` that resumes from a file is identical to an uninterrupted run.

#[path = "../../examples/train_gpt/checkpoint.rs"]
mod checkpoint;
#[path = "../../examples/train_gpt/model.rs"]
mod model;
#[allow(dead_code)] // this test does not decode tokens
#[path = "../../examples/train_gpt/text.rs"]
mod text;
#[path = "../../examples/train_gpt/train.rs"]
mod train;

use warpline::{DType, Device, Result, manual_seed, with_runtime};
use warpline_nn::Module;

use model::{Gpt, Sizes};
use text::{Characters, Pieces};
use train::{Settings, Training};

/// A text of 12 samples. With batches of 5, an epoch has 2 steps.
const TEXT: &str = "so shaken as we";

fn training(device: Device, autocast: Option<DType>) -> Result<Training> {
    let characters = Characters::of(TEXT);
    let context = 3;
    let vocabulary = characters.len();
    let sizes = Sizes { vocabulary, context, width: 8, layers: 2, heads: 2, dropout: 0.2 };
    let settings = Settings { batch_size: 5, steps: 8, lr: 1e-2, seed: 5, autocast };
    let pieces = Pieces::new(characters.encode(TEXT), context)?;
    Training::new(pieces, || Gpt::new(&sizes, device), &settings, device)
}

/// Runs `steps` steps. Returns the bits of their losses.
fn losses(training: &mut Training, steps: usize) -> Result<Vec<u32>> {
    (0..steps).map(|_| Ok(training.step()?.item::<f32>()?.to_bits())).collect()
}

fn weights(training: &Training) -> Result<Vec<(String, Vec<u32>)>> {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let parameters = training.model.named_parameters().into_iter();
    parameters.map(|(name, tensor)| Ok((name, bits(tensor.to_vec()?)))).collect()
}

fn resumes(device: Device) -> anyhow::Result<()> {
    [None, Some(DType::F16)].into_iter().try_for_each(|autocast| resumes_with(device, autocast))
}

fn resumes_with(device: Device, autocast: Option<DType>) -> anyhow::Result<()> {
    let training = |device| training(device, autocast);
    let file =
        std::env::temp_dir().join(format!("warpline-resume-{}-{device}", std::process::id()));
    for stop in [1, 2, 3] {
        let mut whole = training(device)?;
        let expected = losses(&mut whole, 6)?;

        let mut first = training(device)?;
        assert_eq!(losses(&mut first, stop)?, expected[..stop]);
        checkpoint::save(&first, &file)?;

        // Change the state of a second run before it resumes.
        let mut second = training(device)?;
        losses(&mut second, 1)?;
        second.scaler.update_with(8.0)?;
        manual_seed(99);
        warpline::rand([3], device)?;
        checkpoint::resume(&mut second, &file)?;
        std::fs::remove_file(&file)?;
        assert_eq!(second.step as usize, stop);
        let scale = |of: &Training| of.scaler.get_scale();
        assert_eq!(scale(&second)?, scale(&first)?);
        assert_eq!(losses(&mut second, 6 - stop)?, expected[stop..], "after {stop} steps");
        assert_eq!(weights(&second)?, weights(&whole)?, "after {stop} steps");
    }
    Ok(())
}

#[test]
fn a_training_on_the_host_resumes_bit_for_bit() -> anyhow::Result<()> {
    // The test has its own runtime, because other tests draw from the generators of the process's runtime.
    with_runtime(&warpline::simulated(1)?, || resumes(Device::Cpu))
}

#[test]
fn a_training_on_a_simulated_gpu_resumes_bit_for_bit() -> anyhow::Result<()> {
    with_runtime(&warpline::simulated(1)?, || resumes(Device::cuda(0)))
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_training_resumes_bit_for_bit() -> anyhow::Result<()> {
    resumes(Device::cuda(0))
}

/// Checks that the seeds have an effect. Otherwise the tests above would prove nothing.
#[test]
fn batches_and_dropout_depend_on_the_seeds() -> anyhow::Result<()> {
    with_runtime(&warpline::simulated(1)?, || {
        let mut one = training(Device::Cpu, None)?;
        let mut other = training(Device::Cpu, None)?;
        let expected = losses(&mut one, 2)?;
        manual_seed(6);
        assert_ne!(losses(&mut other, 1)?, expected[..1], "dropout");
        let mut other = training(Device::Cpu, None)?;
        let state = other.generator.get_state()?;
        other.seek(state, 0)?;
        assert_ne!(losses(&mut other, 1)?, expected[..1], "the loader's order");
        Ok(())
    })
}
