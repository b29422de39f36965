use warpline::data::{DataLoader, TensorDataset};
use warpline::functional::cross_entropy;
use warpline::{DType, Device, Result, Tensor, cuda, manual_seed, rand};
use warpline_nn::optim::{
    AdamW, AdamWOptions, CosineAnnealingLR, Optimizer, Scheduler, clip_grad_norm_,
};
use warpline_nn::{Linear, Module, save_file};

#[derive(Module)]
struct Net {
    hidden: Linear,
    out: Linear,
}

impl Net {
    fn new() -> Result<Self> {
        Ok(Self { hidden: Linear::new(8, 32, ())?, out: Linear::new(32, 4, ())? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.out.forward(&self.hidden.forward(x)?.relu()?)
    }
}

fn data() -> Result<DataLoader<TensorDataset>> {
    let x = rand([256, 8], ())?;
    let y = (x.sum(1)? - 2)?.clamp(0, 3)?.to(DType::I64)?;
    Ok(DataLoader::new(TensorDataset::new(x, y)?).batch_size(32)?.shuffle(true))
}

fn train(device: Device) -> Result<(Net, Vec<f32>)> {
    manual_seed(0);
    let loader = data()?;
    let mut net = Net::new()?;
    net.to(device)?;
    let options = AdamWOptions::new().lr(0.01);
    let mut optimizer = AdamW::new(net.parameters(), options)?;
    let mut scheduler = CosineAnnealingLR::new(&mut optimizer, 80, ())?;
    let mut losses = Vec::new();
    for _ in 0..10 {
        let mut last = None;
        for batch in loader.iter()? {
            let (x, y) = batch?;
            let out = net.forward(&x.to(device)?)?;
            let loss = cross_entropy(&out, &y.to(device)?, ())?;
            optimizer.zero_grad()?;
            loss.backward()?;
            clip_grad_norm_(&net.parameters(), 1.0, ())?;
            optimizer.step()?;
            scheduler.step(&mut optimizer)?;
            last = Some(loss);
        }
        losses.extend(last.map(|loss| loss.item::<f32>()).transpose()?);
    }
    Ok((net, losses))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = if cuda::is_available()? { Device::cuda(0) } else { Device::Cpu };
    let (net, losses) = train(device)?;
    println!("{losses:?}");
    save_file(&net.state_dict(), "net.safetensors", ())?;
    Ok(())
}
