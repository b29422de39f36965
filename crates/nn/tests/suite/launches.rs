//! Tests the number of launches in a training step of the small GPT of `model_speed`. Launches take most of the
//! time of this step.

use warpline::{DType, randint};
use warpline_cuda_sys_safe::sim::CallKind;
use warpline_nn::Module;
use warpline_nn::optim::{AdamW, Optimizer};

use crate::boxes::SimBox;

#[path = "../../examples/model_speed/models.rs"]
#[allow(dead_code)]
mod models;

use models::{Gpt, GptSizes};

#[test]
fn a_step_of_a_gpt_of_four_layers() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let sizes = GptSizes { width: 32, heads: 4, layers: 4, vocabulary: 64, length: 16 };
        let mut gpt = Gpt::new(sizes)?;
        gpt.to((DType::BF16, "cuda"))?;
        let tokens = randint(0, 64, [2, 16], "cuda")?;
        let mut adam = AdamW::new(gpt.parameters(), ())?;
        let kinds = [CallKind::Launch, CallKind::MemcpyAsync, CallKind::MemsetAsync];
        let all = || kinds.iter().map(|&kind| sim.count(kind)).sum::<u64>();
        let mut counts = [0; 2];
        for count in &mut counts {
            let before = all();
            adam.zero_grad()?;
            gpt.loss(&tokens, &tokens)?.backward()?;
            adam.step()?;
            *count = all() - before;
        }
        // Count the second step, because the first step creates AdamW's state.
        assert_eq!(counts[1], 168);
        Ok(())
    });
}
