use warpline::{DType, Device, Result, Tensor};

fn foreign(pred: &Tensor, target: Tensor, device: Device) -> Result<()> {
    Tensor::zeros([2, 3], ())?;
    Tensor::zeros((2, 3), DType::F32, &device)?;
    Tensor::ones([2, 3], DType::F32)?;
    Tensor::new(&[1f32, 2.0], &device)?;
    pred.to_dtype(DType::F32)?;
    pred.to_device(&device)?;
    pred.eq(target)?;
    pred.add("one")?;
    Ok(())
}

fn main() {}
