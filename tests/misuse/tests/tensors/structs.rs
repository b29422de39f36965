use std::time::Duration;

use warpline::Tensor;
use warpline_nn::{Linear, Module};

#[derive(Module)]
struct Net {
    fc: Linear,
    mask: Tensor,
}

#[derive(Module)]
struct Tuple(Linear, Duration);

#[derive(Module)]
struct Generic<M> {
    inner: M,
    others: Vec<(M, Duration)>,
}

#[derive(Module)]
struct Attributes {
    #[module(skipped)]
    fc: Linear,
}

#[derive(Module)]
#[module(repr = Self::describe)]
struct Described {
    fc: Linear,
}

#[derive(Module)]
struct Renamed {
    #[module(name = "fc")]
    first: Linear,
    #[module(name = "fc")]
    second: Linear,
}

#[derive(Module)]
struct NamedAsAnother {
    #[module(name = "second")]
    first: Linear,
    second: Linear,
}

#[derive(Module)]
struct NamedWithADot {
    #[module(name = "fc.weight")]
    first: Linear,
}

#[derive(Module)]
union Either {
    a: u32,
    b: u32,
}

fn main() {
    let _ = (Net::visit, Tuple::visit, Generic::<Linear>::visit);
}
