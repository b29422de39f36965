use warpline::{Result, Tensor, TensorOptions, cuda, tensor, zeros};

fn arguments(t: &Tensor) -> Result<()> {
    zeros([2.0, 3.0], ())?;
    t.view([2.0, 3.0])?;
    tensor("text", ())?;
    t.sum("rows")?;
    t.argmax(1.5)?;
    t.i("first")?;
    t.slice(0, 1, 1)?;
    t.to_vec::<u16>()?;
    let _ = TensorOptions::new().device(1.5);
    cuda::get_device_name(1.5)?;
    cuda::Stream::new(1.5)?;
    Ok(())
}

fn main() {}
