//! Trains on batches. The next batch is copied to the GPU while the GPU computes with the current one.
//!
//! `cargo run --example overlapped_loader`; put `WARPLINE_DRIVER=sim:1` before the command to run on a
//! simulated GPU.

use warpline::data::{DataLoader, TensorDataset};
use warpline::{Result, Tensor, cuda, manual_seed, randn, zeros};

/// Enqueues the copy of a batch on `copies`, and returns at once, because the batch is in page-locked memory.
fn to_gpu(batch: Result<(Tensor, Tensor)>, copies: &cuda::Stream) -> Result<(Tensor, Tensor)> {
    let (x, y) = batch?;
    cuda::with_stream(copies, || Ok((x.to_non_blocking("cuda")?, y.to_non_blocking("cuda")?)))
}

fn main() -> Result<()> {
    manual_seed(0);
    let x = randn([1024, 8], ())?;
    let truth = randn([8, 1], ())?;
    let data = TensorDataset::new(x.copy()?, x.matmul(&truth)?)?;
    let loader =
        DataLoader::new(data).batch_size(64)?.shuffle(true).num_workers(2).pin_memory(true);

    let weight = zeros([8, 1], "cuda")?;
    let copies = cuda::Stream::new(())?;
    for epoch in 0..5 {
        let mut loss = zeros((), "cuda")?;
        let mut batches = loader.iter()?;
        let mut next = batches.next().map(|batch| to_gpu(batch, &copies)).transpose()?;
        while let Some((x, y)) = next {
            // The next batch is copied while the GPU computes. The ops that use the batch wait for the copy on the
            // GPU; the program does not have to ask for this wait.
            next = batches.next().map(|batch| to_gpu(batch, &copies)).transpose()?;
            let error = (x.matmul(&weight)? - &y)?;
            let gradient = x.t()?.matmul(&error)?;
            weight.add_scaled_(&gradient, -1.0 / 64.0)?;
            loss = (loss + error.square()?.mean(())?)?;
        }
        // The host waits for the GPU only here, once per epoch.
        println!("epoch {epoch}: loss {:.6}", loss.item::<f32>()? / loader.len() as f32);
    }
    let off = (weight.cpu()? - truth)?.abs()?.amax(())?.item::<f32>()?;
    println!("the weights are off by {off:.6} at most");
    assert!(off < 0.01);
    Ok(())
}
