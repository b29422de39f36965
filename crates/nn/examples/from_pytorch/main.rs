//! The training script of `docs/from-pytorch.md`, beside PyTorch's in `train.py`. A test includes the program too.

include!("program.rs");
