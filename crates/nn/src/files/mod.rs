//! Tensors in [safetensors](https://huggingface.co/docs/safetensors) files, single or sharded with an index.

mod error;
mod header;
mod load;
mod save;

pub use error::FileError;
pub use load::{LoadOptions, Progress, load_file};
pub use save::{SaveOptions, save_file, save_sharded};
