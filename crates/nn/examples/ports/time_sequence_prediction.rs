//! Predicts sine waves with two LSTM cells, trained by L-BFGS in `float64`: `time_sequence_prediction` of
//! pytorch/examples.
//!
//! `train.py` and `generate_sine_wave.py` have 88 lines without comments. A step is a step of L-BFGS, which evaluates
//! the loss up to 25 times. PyTorch's program draws the predictions; this program prints the last of each wave.

use warpline::autograd::no_grad;
use warpline::{DType, Device, Result, Tensor, arange, cat, expr, manual_seed, randint};
use warpline_nn::optim::{LBFGS, LBFGSOptions, Optimizer};
use warpline_nn::{LSTMCell, Linear, MSELoss, Module};

#[derive(Debug, Module)]
struct Sequence {
    lstm1: LSTMCell,
    lstm2: LSTMCell,
    linear: Linear,
}

impl Sequence {
    fn new() -> Result<Self> {
        Ok(Self {
            lstm1: LSTMCell::new(1, 51, ())?,
            lstm2: LSTMCell::new(51, 51, ())?,
            linear: Linear::new(51, 1, ())?,
        })
    }

    /// Returns the predicted successor of each value of `input`, `[waves, length]`, followed by `future`
    /// further predictions.
    fn forward(&self, input: &Tensor, future: usize) -> Result<Tensor> {
        let mut outputs = Vec::new();
        let mut output = input.i((.., ..1))?;
        let zeros = || input.new_zeros((input.size()[0], 51), ());
        let (mut h_t, mut c_t) = (zeros()?, zeros()?);
        let (mut h_t2, mut c_t2) = (zeros()?, zeros()?);
        for input_t in input.split(1, 1)? {
            (h_t, c_t) = self.lstm1.forward(&input_t, (&h_t, &c_t))?;
            (h_t2, c_t2) = self.lstm2.forward(&h_t, (&h_t2, &c_t2))?;
            output = self.linear.forward(&h_t2)?;
            outputs.push(output.clone());
        }
        for _ in 0..future {
            (h_t, c_t) = self.lstm1.forward(&output, (&h_t, &c_t))?;
            (h_t2, c_t2) = self.lstm2.forward(&h_t, (&h_t2, &c_t2))?;
            output = self.linear.forward(&h_t2)?;
            outputs.push(output.clone());
        }
        cat(&outputs, 1)
    }
}

/// Makes sine waves with random phases, `[count, length]`.
fn generate_sine_wave(count: usize, length: usize) -> Result<Tensor> {
    let period = 20;
    let shift = randint(-4 * period, 4 * period, (count, 1), ())?;
    let x = expr!(arange(length, ()) + shift)?;
    expr!((x.to(DType::F64) / period).sin())
}

pub(crate) fn run(device: Device, steps: Option<usize>, small: bool) -> anyhow::Result<()> {
    let (count, length, future) = if small { (23, 20, 5) } else { (100, 1000, 1000) };
    manual_seed(0);
    let data = generate_sine_wave(count, length)?.to(device)?;
    let (input, target) = (data.i((3.., ..-1))?, data.i((3.., 1..))?);
    let (test_input, test_target) = (data.i((..3, ..-1))?, data.i((..3, 1..))?);
    let mut seq = Sequence::new()?;
    seq.to((DType::F64, device))?;
    let criterion = MSELoss::new(());
    let mut optimizer = LBFGS::new(seq.parameters(), LBFGSOptions::new().lr(0.8))?;
    for i in 0..steps.unwrap_or(15) {
        println!("STEP: {i}");
        optimizer.step(|optimizer| {
            optimizer.zero_grad()?;
            let out = seq.forward(&input, 0)?;
            let loss = criterion.forward(&out, &target)?;
            println!("loss: {}", loss.item::<f64>()?);
            loss.backward()?;
            Ok(loss)
        })?;
        let pred = no_grad(|| seq.forward(&test_input, future))?;
        let loss = criterion.forward(&pred.narrow(1, 0, length - 1)?, &test_target)?;
        println!("test loss: {}", loss.item::<f64>()?);
        println!("predicted: {:?}", pred.i((.., -1))?.to_vec::<f64>()?);
    }
    Ok(())
}
