//! Tests of the training script of `docs/from-pytorch.md`: the page shows the tested program, and the program
//! has PyTorch's losses.

#[allow(dead_code)] // its `main` writes a file
mod program {
    include!("../../examples/from_pytorch/program.rs");

    pub(super) fn losses(device: Device) -> Result<Vec<f32>> {
        Ok(train(device)?.1)
    }
}

use crate::common::World;

/// Losses that `train.py` prints, on the CPU and on an H200.
const LOSSES: [f32; 10] = [
    1.360006, 1.267261, 1.146315, 1.281694, 1.226438, 1.053362, 1.009402, 1.11851, 1.235786,
    1.087088,
];

fn has_the_losses(device: warpline::Device) -> warpline::Result<()> {
    let losses = program::losses(device)?;
    for (epoch, (loss, theirs)) in losses.iter().zip(LOSSES).enumerate() {
        assert!((loss - theirs).abs() < 2e-5, "{device}: epoch {epoch}: {losses:?}");
    }
    assert_eq!(losses.len(), LOSSES.len());
    Ok(())
}

rows! {
    worlds(1) the_program_of_the_guide_has_pytorchs_losses gpu_the_program_of_the_guide_has_pytorchs_losses =>
        |world: &World| world.places().into_iter().try_for_each(has_the_losses);
}

/// Returns the lines of all code blocks of a language on the page, without empty lines.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut within = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(begins) => within = !within && begins == language,
            None if within && !line.is_empty() => lines.push(line.to_owned()),
            None => {}
        }
    }
    lines
}

#[test]
fn the_guide_shows_the_program_and_the_script() {
    // Cargo runs tests in the package's folder.
    let page = std::fs::read_to_string("../../docs/from-pytorch.md").unwrap();
    let section = page.split("## A training script").nth(1).unwrap().split("\n## ").next().unwrap();
    let whole = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let program = include_str!("../../examples/from_pytorch/program.rs");
    assert_eq!(blocks(section, "rust,ignore"), whole(program));
    let script = include_str!("../../examples/from_pytorch/train.py");
    assert_eq!(blocks(section, "python"), whole(script));
}
