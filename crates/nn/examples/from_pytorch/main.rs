//! The training script of `docs/from-pytorch.md`. `train.py` is PyTorch's version. A test includes `program.rs`
//! too.

include!("program.rs");
