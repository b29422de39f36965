//! Trains a recurrent network or a Transformer to predict the next word of a text: `word_language_model` of
//! pytorch/examples.
//!
//! `main.py`, `model.py` and `data.py` have 333 lines without comments. Shakespeare's plays replace Wikitext-2.
//! A step is an epoch.

mod data;
mod model;

use std::time::Instant;

use warpline::autograd::no_grad;
use warpline::{Device, Result, Tensor, manual_seed};
use warpline_nn::optim::clip_grad_norm_;
use warpline_nn::{Module, NLLLoss, load_file, save_file};

use data::Corpus;
use model::Model;

/// Settings of the program, with the defaults of `main.py`.
#[derive(Clone, Copy, Debug)]
struct Args {
    model: &'static str,
    emsize: usize,
    nhid: usize,
    nlayers: usize,
    lr: f64,
    clip: f64,
    epochs: usize,
    batch_size: usize,
    bptt: usize,
    dropout: f64,
    tied: bool,
    seed: u64,
    log_interval: usize,
    nhead: usize,
    /// Number of lines of the text.
    lines: usize,
}

const ARGS: Args = Args {
    model: "LSTM",
    emsize: 200,
    nhid: 200,
    nlayers: 2,
    lr: 20.0,
    clip: 0.25,
    epochs: 40,
    batch_size: 20,
    bptt: 35,
    dropout: 0.2,
    tied: false,
    seed: 1111,
    log_interval: 200,
    nhead: 2,
    lines: usize::MAX,
};

const EVAL_BATCH_SIZE: usize = 10;

/// Divides a text into `bsz` columns of equal length: `[words]` to `[words / bsz, bsz]`.
fn batchify(data: &Tensor, bsz: usize, device: Device) -> Result<Tensor> {
    let nbatch = data.size()[0] / bsz;
    let data = data.narrow(0, 0, nbatch * bsz)?;
    data.view((bsz, -1))?.t()?.contiguous()?.to(device)
}

/// Wraps hidden states in new tensors, to detach them from their history.
fn repackage_hidden(h: &[Tensor]) -> Vec<Tensor> {
    h.iter().map(Tensor::detach).collect()
}

fn get_batch(source: &Tensor, i: usize, bptt: usize) -> Result<(Tensor, Tensor)> {
    let seq_len = bptt.min(source.size()[0] - 1 - i);
    let data = source.i(i..i + seq_len)?;
    let target = source.i(i + 1..i + 1 + seq_len)?.view(-1)?;
    Ok((data, target))
}

fn evaluate(model: &mut Model, data_source: &Tensor, args: &Args) -> Result<f64> {
    model.eval();
    let criterion = NLLLoss::new(());
    let mut total_loss = 0.0;
    let mut hidden = model.init_hidden(EVAL_BATCH_SIZE)?;
    let last = data_source.size()[0] - 1;
    no_grad(|| {
        for i in (0..last).step_by(args.bptt) {
            let (data, targets) = get_batch(data_source, i, args.bptt)?;
            let (output, next) = model.forward(&data, &hidden)?;
            hidden = next;
            let loss: f64 = criterion.forward(&output, &targets)?.item()?;
            total_loss += data.size()[0] as f64 * loss;
        }
        Ok(total_loss / last as f64)
    })
}

fn train(model: &mut Model, train_data: &Tensor, epoch: usize, lr: f64, args: &Args) -> Result<()> {
    model.train();
    let criterion = NLLLoss::new(());
    let (mut total_loss, mut start_time) = (0.0, Instant::now());
    let mut hidden = model.init_hidden(args.batch_size)?;
    let last = train_data.size()[0] - 1;
    for (batch, i) in (0..last).step_by(args.bptt).enumerate() {
        let (data, targets) = get_batch(train_data, i, args.bptt)?;
        model.zero_grad()?;
        let (output, next) = model.forward(&data, &repackage_hidden(&hidden))?;
        hidden = next;
        let loss = criterion.forward(&output, &targets)?;
        loss.backward()?;
        clip_grad_norm_(&model.parameters(), args.clip, ())?;
        for p in model.parameters() {
            if let Some(grad) = p.grad() {
                p.detach().add_scaled_(&grad, -lr)?;
            }
        }
        total_loss += loss.item::<f64>()?;
        if batch % args.log_interval == 0 && batch > 0 {
            let cur_loss = total_loss / args.log_interval as f64;
            let elapsed = start_time.elapsed().as_secs_f64();
            println!(
                "| epoch {epoch:3} | {batch:5}/{:5} batches | lr {lr:.2} | ms/batch {:5.2} | \
                 loss {cur_loss:5.2} | ppl {:8.2}",
                train_data.size()[0] / args.bptt,
                elapsed * 1000.0 / args.log_interval as f64,
                cur_loss.exp()
            );
            (total_loss, start_time) = (0.0, Instant::now());
        }
    }
    Ok(())
}

fn main(device: Device, args: &Args) -> anyhow::Result<()> {
    manual_seed(args.seed);
    println!("Using device: {device}");
    let text = include_str!("../../data/shakespeare.txt");
    let corpus = Corpus::new(&text.lines().take(args.lines).collect::<Vec<_>>())?;
    let train_data = batchify(&corpus.train, args.batch_size, device)?;
    let val_data = batchify(&corpus.valid, EVAL_BATCH_SIZE, device)?;
    let test_data = batchify(&corpus.test, EVAL_BATCH_SIZE, device)?;
    let mut model = Model::new(corpus.ntokens, args)?;
    model.to(device)?;

    let file = format!("word_language_model-{}.safetensors", std::process::id());
    let path = std::env::temp_dir().join(file);
    let (mut lr, mut best_val_loss) = (args.lr, f64::INFINITY);
    for epoch in 1..=args.epochs {
        let epoch_start_time = Instant::now();
        train(&mut model, &train_data, epoch, lr, args)?;
        let val_loss = evaluate(&mut model, &val_data, args)?;
        println!("{}", "-".repeat(89));
        println!(
            "| end of epoch {epoch:3} | time: {:5.2}s | valid loss {val_loss:5.2} | \
             valid ppl {:8.2}",
            epoch_start_time.elapsed().as_secs_f64(),
            val_loss.exp()
        );
        println!("{}", "-".repeat(89));
        if val_loss < best_val_loss {
            save_file(&model.state_dict(), &path, ())?;
            best_val_loss = val_loss;
        } else {
            lr /= 4.0;
        }
    }

    model.load_state_dict(&load_file(&path, device)?, true)?;
    std::fs::remove_file(&path)?;
    let test_loss = evaluate(&mut model, &test_data, args)?;
    println!("{}", "=".repeat(89));
    println!("| End of training | test loss {test_loss:5.2} | test ppl {:8.2}", test_loss.exp());
    println!("{}", "=".repeat(89));
    Ok(())
}

/// Returns the arguments of a run. Small sizes are for a test.
fn args(steps: Option<usize>, small: bool) -> Args {
    let mut args = Args { epochs: steps.unwrap_or(ARGS.epochs), ..ARGS };
    if small {
        args = Args { emsize: 32, nhid: 32, batch_size: 8, bptt: 8, log_interval: 10, ..args };
        args.lines = 400;
    }
    args
}

pub(crate) fn run(device: Device, steps: Option<usize>, small: bool) -> anyhow::Result<()> {
    main(device, &args(steps, small))
}

/// Trains the Transformer, with the learning rate of PyTorch's README.
pub(crate) fn run_transformer(
    device: Device,
    steps: Option<usize>,
    small: bool,
) -> anyhow::Result<()> {
    main(device, &Args { model: "Transformer", lr: 5.0, ..args(steps, small) })
}
