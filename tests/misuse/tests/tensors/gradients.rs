use warpline::autograd::{Function, ToSave};
use warpline::{Result, Tensor};

struct Forgetful;

impl Function for Forgetful {
    const NAME: &'static str = "forgetful";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].abs()?])
    }
}

fn main() {}
