//! Tests that training runs of twenty steps have PyTorch's losses, gradient norms and weights.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use warpline::functional::{
    AttentionOptions, BatchNormOptions, ConvOptions, LayerNormOptions, MaxPoolOptions, batch_norm,
    conv2d, cross_entropy, embedding, layer_norm, linear, max_pool2d, scaled_dot_product_attention,
};
use warpline::{DType, Device, Result, Tensor, tensor};
use warpline_nn::optim::{
    AdamW, AdamWOptions, LambdaLR, Optimizer, SGD, SGDOptions, Scheduler, clip_grad_norm_,
};

use crate::common::{World, cpu, golden_json, goldens, gpu, worlds};

const STEPS: usize = 20;
const TOLERANCE: f64 = 1e-9;

/// A golden run, with its tensors on a device.
struct GoldenRun {
    tensors: BTreeMap<String, Tensor>,
    losses: Vec<f64>,
    norms: Vec<f64>,
}

impl GoldenRun {
    fn load(name: &str, device: Device) -> Result<Option<Self>> {
        let Some(runs) = golden_json("train/runs.json") else { return Ok(None) };
        let path = goldens().join(format!("train/{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let sizes: Vec<isize> = view.shape().iter().map(|&size| size as isize).collect();
            let words = view.data().chunks_exact(8).map(|word| word.try_into().expect("8 bytes"));
            let flat = match view.dtype() {
                safetensors::Dtype::F64 => {
                    tensor(words.map(f64::from_le_bytes).collect::<Vec<_>>(), device)?
                }
                safetensors::Dtype::I64 => {
                    tensor(words.map(i64::from_le_bytes).collect::<Vec<_>>(), device)?
                }
                other => panic!("{name} has dtype {other:?}"),
            };
            tensors.insert(name.to_owned(), flat.reshape(&sizes[..])?);
        }
        let numbers = |key: &str| -> Vec<f64> {
            let all = runs[name][key].as_array().expect("numbers");
            all.iter().map(|value| value.as_f64().expect("a number")).collect()
        };
        Ok(Some(Self { tensors, losses: numbers("losses"), norms: numbers("norms") }))
    }

    /// Returns the tensors whose names begin with `prefix`, with the prefix removed.
    fn under(&self, prefix: &str) -> impl Iterator<Item = (&str, &Tensor)> {
        let all = self.tensors.iter();
        all.filter_map(move |(name, tensor)| Some((name.strip_prefix(prefix)?, tensor)))
    }

    /// Returns copies of the initial tensors. Learned tensors require gradients.
    fn weights(&self) -> Result<Weights> {
        let copy = |(name, tensor): (&str, &Tensor)| {
            // Running statistics have no gradients.
            let learned = self.tensors.contains_key(&format!("grad0.{name}"));
            Ok((name.to_owned(), tensor.copy()?.requires_grad_(learned)?))
        };
        self.under("init.").map(copy).collect::<Result<_>>().map(Weights)
    }

    /// Runs twenty steps. Calls `step` after each backward pass. Compares the losses, the first gradients and the final
    /// tensors with the golden run.
    fn train(
        &self,
        weights: &Weights,
        optimizer: &mut dyn Optimizer,
        forward: impl Fn(&Weights, &Tensor) -> Result<Tensor>,
        mut step: impl FnMut(usize, &mut dyn Optimizer) -> Result<()>,
    ) -> Result<()> {
        for i in 0..STEPS {
            let logits = forward(weights, &self.tensors[&format!("x.{i}")])?;
            let classes = logits.size()[logits.dim() - 1] as isize;
            let target = self.tensors[&format!("t.{i}")].reshape([-1])?;
            let loss = cross_entropy(&logits.reshape([-1, classes])?, &target, ())?;
            near(&format!("loss {i}"), loss.item()?, self.losses[i]);
            optimizer.zero_grad()?;
            loss.backward()?;
            if i == 0 {
                for (name, expected) in self.under("grad0.") {
                    let grad = weights.get(name).grad().unwrap_or_else(|| panic!("{name}"));
                    all_near(&format!("gradient of {name}"), &grad, expected)?;
                }
            }
            step(i, optimizer)?;
        }
        for (name, expected) in self.under("final.") {
            all_near(name, weights.get(name), expected)?;
        }
        Ok(())
    }
}

struct Weights(BTreeMap<String, Tensor>);

impl Weights {
    fn get(&self, name: &str) -> &Tensor {
        self.0.get(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    fn all(&self) -> Vec<Tensor> {
        self.0.values().filter(|tensor| tensor.requires_grad()).cloned().collect()
    }

    fn linear(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        linear(x, self.get(&weight), self.get(&bias))
    }

    fn layer_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let width = x.size()[x.dim() - 1];
        let options = LayerNormOptions::new().weight(self.get(&weight)).bias(self.get(&bias));
        layer_norm(x, [width], options)
    }

    fn batch_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let of = |part: &str| self.get(&format!("{name}.{part}"));
        of("num_batches_tracked").add_(1)?;
        let options = BatchNormOptions::new().weight(of("weight")).bias(of("bias")).training(true);
        batch_norm(x, of("running_mean"), of("running_var"), options)
    }

    /// A residual block: two convolutions, with a third convolution as the shortcut.
    fn block(&self, name: &str, x: &Tensor, stride: usize) -> Result<Tensor> {
        let of = |part: &str| format!("{name}.{part}");
        let weight = |part: &str| self.get(&format!("{name}.{part}.weight"));
        let y = self.batch_norm(&of("bn1"), &conv(x, weight("conv1"), stride, 1)?)?.relu()?;
        let y = self.batch_norm(&of("bn2"), &conv(&y, weight("conv2"), 1, 1)?)?;
        let beside = self.batch_norm(&of("down.1"), &conv(x, weight("down.0"), stride, 0)?)?;
        y.add(&beside)?.relu()
    }
}

fn conv(x: &Tensor, weight: &Tensor, stride: usize, padding: usize) -> Result<Tensor> {
    let options = ConvOptions::new().stride(stride).padding(padding);
    conv2d(x, weight, None, options)
}

fn near(what: &str, value: f64, expected: f64) {
    let allowed = TOLERANCE * expected.abs().max(1.0);
    assert!((value - expected).abs() <= allowed, "{what} is {value}, not {expected}");
}

fn all_near(what: &str, value: &Tensor, expected: &Tensor) -> Result<()> {
    assert_eq!(value.size(), expected.size(), "{what}");
    let values = |of: &Tensor| of.detach().to(DType::F64)?.to_vec::<f64>();
    for (i, (value, expected)) in values(value)?.into_iter().zip(values(expected)?).enumerate() {
        near(&format!("{what}, element {i}"), value, expected);
    }
    Ok(())
}

fn mlp(device: Device) -> Result<()> {
    let Some(run) = GoldenRun::load("mlp", device)? else { return Ok(()) };
    let weights = run.weights()?;
    let options = SGDOptions::new().lr(0.1).momentum(0.9).weight_decay(1e-3).nesterov(true);
    let mut sgd = SGD::new(weights.all(), options)?;
    let forward =
        |weights: &Weights, x: &Tensor| weights.linear("fc2", &weights.linear("fc1", x)?.relu()?);
    run.train(&weights, &mut sgd, forward, |_, optimizer| optimizer.step())
}

fn gpt_forward(weights: &Weights, x: &Tensor) -> Result<Tensor> {
    let &[batch, length] = x.size() else { panic!("tokens are of two dimensions") };
    let positions = warpline::arange(length as i64, x.device())?;
    let tokens = embedding(x, weights.get("wte.weight"), ())?;
    let mut x = tokens.add(&embedding(&positions, weights.get("wpe.weight"), ())?)?;
    let width = x.size()[2];
    let (heads, sizes) = (2, [batch, length, 2, width / 2].map(|size| size as isize));
    assert_eq!(width % heads, 0);
    for block in ["h.0", "h.1"] {
        let name = |layer: &str| format!("{block}.{layer}");
        let normed = weights.layer_norm(&name("ln_1"), &x)?;
        let qkv = weights.linear(&name("qkv"), &normed)?.split(width, 2)?;
        let of_heads = |t: &Tensor| t.reshape(sizes)?.transpose(1, 2);
        let (q, k, v) = (of_heads(&qkv[0])?, of_heads(&qkv[1])?, of_heads(&qkv[2])?);
        let options = AttentionOptions::new().is_causal(true);
        let seen = scaled_dot_product_attention(&q, &k, &v, options)?;
        let seen = seen.transpose(1, 2)?.reshape([batch, length, width].map(|s| s as isize))?;
        x = x.add(&weights.linear(&name("proj"), &seen)?)?;
        let inner = weights.linear(&name("fc"), &weights.layer_norm(&name("ln_2"), &x)?)?;
        x = x.add(&weights.linear(&name("out"), &inner.gelu_tanh()?)?)?;
    }
    linear(&weights.layer_norm("ln_f", &x)?, weights.get("wte.weight"), None)
}

fn gpt(device: Device) -> Result<()> {
    let Some(run) = GoldenRun::load("gpt", device)? else { return Ok(()) };
    let weights = run.weights()?;
    let options = AdamWOptions::new().lr(3e-3).betas((0.9, 0.95)).weight_decay(0.1);
    let mut adam = AdamW::new(weights.all(), options)?;
    let half_cosine = |i: i64| 0.5 * (1.0 + (std::f64::consts::PI * i as f64 / 20.0).cos());
    let mut scheduler = LambdaLR::new(&mut adam, half_cosine, ())?;
    run.train(&weights, &mut adam, gpt_forward, |i, optimizer| {
        let norm = clip_grad_norm_(&weights.all(), 1.0, ())?;
        near(&format!("norm {i}"), norm.item()?, run.norms[i]);
        optimizer.step()?;
        scheduler.step(optimizer)
    })
}

fn resnet_forward(weights: &Weights, x: &Tensor) -> Result<Tensor> {
    let x = conv(x, weights.get("stem.weight"), 2, 3)?;
    let x = weights.batch_norm("bn", &x)?.relu()?;
    let options = MaxPoolOptions::new().stride(2).padding(1);
    let x = max_pool2d(&x, [3; 2], options)?;
    let x = weights.block("l2", &weights.block("l1", &x, 1)?, 2)?;
    weights.linear("fc", &x.mean([2, 3])?)
}

fn resnet(device: Device) -> Result<()> {
    let Some(run) = GoldenRun::load("resnet", device)? else { return Ok(()) };
    let weights = run.weights()?;
    let options = SGDOptions::new().lr(0.05).momentum(0.9);
    let mut sgd = SGD::new(weights.all(), options)?;
    run.train(&weights, &mut sgd, resnet_forward, |_, optimizer| optimizer.step())
}

fn on_one_gpu(body: fn(Device) -> Result<()>) -> impl Fn(&World) -> Result<()> {
    move |_| body(Device::cuda(0))
}

macro_rules! runs {
    ($($name:ident $gpu:ident $body:ident;)*) => {$(
        #[test]
        fn $name() {
            cpu(|_| $body(Device::Cpu));
            worlds(1, on_one_gpu($body));
        }

        #[test]
        #[ignore = "needs a GPU"]
        fn $gpu() {
            gpu(1, warpline::SyncPolicy::Auto, on_one_gpu($body));
        }
    )*};
}

runs! {
    an_mlp_trains_as_in_pytorch gpu_an_mlp_trains_as_in_pytorch mlp;
    a_transformer_trains_as_in_pytorch gpu_a_transformer_trains_as_in_pytorch gpt;
    a_convolutional_network_trains_as_in_pytorch gpu_a_convolutional_network_trains_as_in_pytorch
        resnet;
}
