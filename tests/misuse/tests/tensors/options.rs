use warpline::functional::{ConvOptions, MaxPoolOptions, Reduction, conv2d, cross_entropy, max_pool2d};
use warpline::{Result, Tensor};

fn options(x: &Tensor) -> Result<()> {
    max_pool2d(x, 2, ConvOptions::new())?;
    max_pool2d(x, [2, 2, 2], ())?;
    max_pool2d(x, 2, MaxPoolOptions::new().strides(1))?;
    conv2d(x, x, None, ConvOptions::new().stride(0.5))?;
    conv2d(x, x, None, ConvOptions::new().padding("same"))?;
    cross_entropy(x, x, "sum")?;
    let _ = MaxPoolOptions::<2> { stride: None, ..MaxPoolOptions::new() };
    let _: Reduction = "sum".into();
    Ok(())
}

fn main() {}
