use warpline::Tensor;
use warpline_nn::{Linear, Module};

#[derive(Module)]
enum Block<M> {
    Plain(Linear),
    Masked(Linear, Tensor),
    Named { fc: M, mask: Option<Tensor> },
    Only(Tensor),
    Nothing,
}

fn main() {
    let _ = Block::<Linear>::Nothing;
}
