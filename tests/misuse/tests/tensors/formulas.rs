use std::collections::HashMap;
use warpline::{Result, Tensor, expr, tensor};

fn formulas(x: &Tensor, named: &HashMap<String, Tensor>) -> Result<()> {
    expr!(x + "text" * 2)?;
    expr!(x.exp() - named)?;
    let unread = x.exp();
    expr!(unread + 1)?;
    for scale in [1.0, 2.0] {
        expr!(x * if scale > 1.0 { break } else { scale })?;
    }
    tensor![[1.0, 2.0], [3.0]]?;
    Ok(())
}

fn main() {}
