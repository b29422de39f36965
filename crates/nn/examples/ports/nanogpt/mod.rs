//! Trains a GPT on the characters of Shakespeare's plays and writes a text: nanoGPT's `model.py` and `train.py`, with
//! the settings of `config/train_shakespeare_char.py`.
//!
//! Together, the files have 453 lines without comments. Left out: pretrained weights of GPT-2, several GPUs,
//! `torch.compile`, `autocast` and `wandb`. A step is an iteration.

mod model;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use warpline::autograd::no_grad;
use warpline::{Device, Error, Result, Tensor, expr, manual_seed, randint, stack, tensor, zeros};
use warpline_nn::optim::{AdamW, Optimizer, OptimizerState, clip_grad_norm_};
use warpline_nn::{Module, load_file, save_file};

use model::{GPT, GPTConfig};

/// Settings of the training.
#[derive(Clone, Copy, Debug)]
struct Settings {
    eval_interval: usize,
    log_interval: usize,
    eval_iters: usize,
    gradient_accumulation_steps: usize,
    batch_size: usize,
    block_size: usize,
    n_layer: usize,
    n_head: usize,
    n_embd: usize,
    dropout: f64,
    bias: bool,
    learning_rate: f64,
    max_iters: usize,
    weight_decay: f64,
    beta1: f64,
    beta2: f64,
    grad_clip: f64,
    warmup_iters: usize,
    lr_decay_iters: usize,
    min_lr: f64,
}

const SETTINGS: Settings = Settings {
    eval_interval: 250,
    log_interval: 10,
    eval_iters: 200,
    gradient_accumulation_steps: 1,
    batch_size: 64,
    block_size: 256,
    n_layer: 6,
    n_head: 6,
    n_embd: 384,
    dropout: 0.2,
    bias: false,
    learning_rate: 1e-3,
    max_iters: 5000,
    weight_decay: 1e-1,
    beta1: 0.9,
    beta2: 0.99,
    grad_clip: 1.0,
    warmup_iters: 100,
    lr_decay_iters: 5000,
    min_lr: 1e-4,
};

impl Settings {
    /// Returns random pieces of `data` and the same pieces one character later, `[batch, block]`.
    fn get_batch(&self, data: &Tensor, device: Device) -> Result<(Tensor, Tensor)> {
        let last = data.numel() - self.block_size;
        let ix = randint(0, last as i64, [self.batch_size], ())?.to_vec::<i64>()?;
        let pieces = |shift: i64| {
            let piece = |i: &i64| data.narrow(0, i + shift, self.block_size);
            stack(&ix.iter().map(piece).collect::<Result<Vec<_>>>()?, 0)
        };
        let (x, y) = (pieces(0)?, pieces(1)?);
        if device.is_cuda() {
            let x = x.pin_memory()?.to_non_blocking(device)?;
            return Ok((x, y.pin_memory()?.to_non_blocking(device)?));
        }
        Ok((x, y))
    }

    /// Returns the mean loss over many batches.
    fn estimate_loss(&self, model: &mut GPT, data: &Tensor, device: Device) -> Result<f32> {
        model.eval();
        let losses = zeros([self.eval_iters], device)?;
        no_grad(|| {
            for k in 0..self.eval_iters {
                let (x, y) = self.get_batch(data, device)?;
                if let (_, Some(loss)) = model.forward(&x, Some(&y))? {
                    losses.i(k)?.copy_(&loss, ())?;
                }
            }
            Ok::<_, Error>(())
        })?;
        model.train();
        losses.mean(())?.item()
    }

    /// Returns the learning rate of an iteration: cosine decay with warmup.
    fn get_lr(&self, it: usize) -> f64 {
        if it < self.warmup_iters {
            return self.learning_rate * (it + 1) as f64 / (self.warmup_iters + 1) as f64;
        }
        if it > self.lr_decay_iters {
            return self.min_lr;
        }
        let decay_iters = (self.lr_decay_iters - self.warmup_iters) as f64;
        let decay_ratio = (it - self.warmup_iters) as f64 / decay_iters;
        let coeff = 0.5 * (1.0 + (std::f64::consts::PI * decay_ratio).cos());
        self.min_lr + coeff * (self.learning_rate - self.min_lr)
    }
}

/// Writes the model and the optimizer to a file.
fn save_checkpoint(model: &GPT, optimizer: &AdamW, path: &Path) -> Result<()> {
    let mut checkpoint = model.state_dict().with_prefix("model");
    checkpoint.extend(optimizer.state_dict()?.to_tensors()?.with_prefix("optimizer"));
    save_file(&checkpoint, path, ())
}

/// Reads the model and the optimizer from a file.
fn load_checkpoint(model: &mut GPT, optimizer: &mut AdamW, path: &Path) -> Result<()> {
    let checkpoint = load_file(path, "cpu")?;
    model.load_state_dict(&checkpoint.under_prefix("model"), true)?;
    let state = OptimizerState::from_tensors(&checkpoint.under_prefix("optimizer"))?;
    optimizer.load_state_dict(&state)
}

pub(crate) fn run(device: Device, steps: Option<usize>, small: bool) -> anyhow::Result<()> {
    let mut settings = SETTINGS;
    if small {
        settings = Settings { eval_interval: 5, log_interval: 1, eval_iters: 2, ..settings };
        settings = Settings { batch_size: 8, block_size: 16, n_layer: 2, ..settings };
        settings = Settings { n_head: 2, n_embd: 32, dropout: 0.0, warmup_iters: 2, ..settings };
    }
    settings.max_iters = steps.unwrap_or(settings.max_iters);
    let Settings { n_layer, n_head, n_embd, block_size, dropout, bias, .. } = settings;
    let accumulation_steps = settings.gradient_accumulation_steps;
    let tokens_per_iter = accumulation_steps * settings.batch_size * block_size;
    println!("tokens per iteration will be: {tokens_per_iter}");
    manual_seed(1337);

    let text = include_str!("../../data/shakespeare.txt");
    let chars: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
    let encode = |c| chars.iter().position(|&known| known == c).unwrap_or(0) as i64;
    let data = tensor(text.chars().map(encode).collect::<Vec<_>>(), ())?;
    let (train_data, val_data) =
        (data.i(..data.numel() * 9 / 10)?, data.i(data.numel() * 9 / 10..)?);

    let vocab_size = chars.len();
    let config = GPTConfig { block_size, vocab_size, n_layer, n_head, n_embd, dropout, bias };
    let mut model = GPT::new(config)?;
    model.to(device)?;
    let betas = (settings.beta1, settings.beta2);
    let mut optimizer =
        model.configure_optimizers(settings.weight_decay, settings.learning_rate, betas)?;

    let path = std::env::temp_dir().join(format!("nanogpt-{}.safetensors", std::process::id()));
    let mut best_val_loss = f32::INFINITY;
    let (mut x, mut y) = settings.get_batch(&train_data, device)?;
    let (mut t0, mut running_mfu) = (Instant::now(), -1.0);
    for iter_num in 0..=settings.max_iters {
        for group in 0..optimizer.group_count() {
            optimizer.set_lr(group, settings.get_lr(iter_num))?;
        }

        if iter_num % settings.eval_interval == 0 {
            let train = settings.estimate_loss(&mut model, &train_data, device)?;
            let val = settings.estimate_loss(&mut model, &val_data, device)?;
            println!("step {iter_num}: train loss {train:.4}, val loss {val:.4}");
            if val < best_val_loss {
                best_val_loss = val;
                println!("saving checkpoint to {}", path.display());
                save_checkpoint(&model, &optimizer, &path)?;
            }
        }

        let mut lossf = 0.0;
        for _ in 0..accumulation_steps {
            let (_, Some(loss)) = model.forward(&x, Some(&y))? else { continue };
            let loss = expr!(loss / accumulation_steps)?;
            (x, y) = settings.get_batch(&train_data, device)?;
            loss.backward()?;
            lossf += loss.item::<f32>()?;
        }
        if settings.grad_clip != 0.0 {
            clip_grad_norm_(&model.parameters(), settings.grad_clip, ())?;
        }
        optimizer.step()?;
        optimizer.zero_grad()?;

        let dt = t0.elapsed().as_secs_f64();
        t0 = Instant::now();
        if iter_num % settings.log_interval == 0 {
            if iter_num >= 5 {
                let mfu = model.estimate_mfu(settings.batch_size * accumulation_steps, dt);
                running_mfu = if running_mfu < 0.0 { mfu } else { 0.9 * running_mfu + 0.1 * mfu };
            }
            println!(
                "iter {iter_num}: loss {lossf:.4}, time {:.2}ms, mfu {:.2}%",
                dt * 1000.0,
                running_mfu * 100.0
            );
        }
    }

    load_checkpoint(&mut model, &mut optimizer, &path)?;
    std::fs::remove_file(&path)?;
    model.eval();
    let start = tensor([[encode('\n')]], device)?;
    let new_tokens = if small { 20 } else { 500 };
    let written = model.generate(&start, new_tokens, 0.8, Some(200))?.to_vec::<i64>()?;
    println!("{}", written.iter().map(|&i| chars[i as usize]).collect::<String>());
    Ok(())
}
