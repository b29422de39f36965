//! Tensors into files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::{Dtype, SafeTensorError, View};
use warpline::Tensor;
use warpline_runtime::launch::read_bytes;

use super::FileError;
use super::header::{METADATA, of_dtype};
use crate::StateDict;

/// A tensor's elements, row-major, on the host.
struct Bytes {
    dtype: Dtype,
    sizes: Vec<usize>,
    data: Vec<u8>,
}

impl View for Bytes {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.sizes
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

impl Bytes {
    #[track_caller]
    fn new(tensor: &Tensor) -> warpline::Result<Self> {
        let host = tensor.detach().cpu()?.contiguous()?;
        let mut data = vec![0; host.numel() * host.element_size()];
        read_bytes((host.storage(), host.storage_offset() * host.element_size()), &mut data)?;
        Ok(Self { dtype: of_dtype(host.dtype()), sizes: host.size().to_vec(), data })
    }
}

/// Writes tensors into a safetensors file (`safetensors.torch.save_file`), in the place of what is there: another file is written
/// beside it first, so that there is always one that is whole. Tensors that share memory are written one by one.
///
/// # Errors
/// [`FileError`].
#[track_caller]
pub fn save_file(state: &StateDict, path: impl AsRef<Path>) -> Result<(), FileError> {
    save_file_with(state, &BTreeMap::new(), path)
}

/// [`save_file`] with a text for each of some names (`metadata`).
///
/// # Errors
/// As [`save_file`].
#[track_caller]
pub fn save_file_with(
    state: &StateDict,
    metadata: &BTreeMap<String, String>,
    path: impl AsRef<Path>,
) -> Result<(), FileError> {
    let path = path.as_ref();
    if state.get(METADATA).is_some() {
        return Err(FileError::invalid(path, format!("a tensor cannot be called `{METADATA}`")));
    }
    let mut tensors = Vec::new();
    for (name, tensor) in state.iter() {
        tensors.push((name, Bytes::new(tensor).map_err(FileError::tensor(path))?));
    }
    let metadata: Option<HashMap<String, String>> = (!metadata.is_empty())
        .then(|| metadata.iter().map(|(name, text)| (name.clone(), text.clone())).collect());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = safetensors::serialize_to_file(tensors, metadata, &part);
    let written = written.map_err(|error| match error {
        SafeTensorError::IoError(error) => FileError::io(&part, "writing it")(error),
        other => FileError::invalid(path, other.to_string()),
    });
    let renamed = written.and_then(|()| {
        std::fs::rename(&part, path).map_err(FileError::io(path, "putting it in place"))
    });
    if renamed.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&part);
    }
    renamed
}

/// Writes tensors into files of at most `max_bytes` of data, or one tensor, in a folder, and an index of them,
/// `model.safetensors.index.json`.
///
/// # Errors
/// As [`save_file`].
#[track_caller]
pub fn save_sharded(
    state: &StateDict,
    folder: impl AsRef<Path>,
    max_bytes: usize,
) -> Result<(), FileError> {
    let folder = folder.as_ref();
    let mut shards: Vec<(StateDict, usize)> = Vec::new();
    for (name, tensor) in state.iter() {
        let bytes = tensor.numel() * tensor.element_size();
        match shards.last_mut().filter(|(_, full)| full + bytes <= max_bytes) {
            Some((shard, full)) => {
                shard.insert(name, tensor.clone());
                *full += bytes;
            }
            None => {
                let mut shard = StateDict::new();
                shard.insert(name, tensor.clone());
                shards.push((shard, bytes));
            }
        }
    }
    let (count, mut map) = (shards.len(), serde_json::Map::new());
    let total: usize = shards.iter().map(|(_, bytes)| bytes).sum();
    for (i, (shard, _)) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
        save_file(shard, folder.join(&name))?;
        map.extend(shard.names().map(|tensor| (tensor.to_owned(), name.clone().into())));
    }
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
    let path = folder.join("model.safetensors.index.json");
    std::fs::write(&path, format!("{index:#}\n")).map_err(FileError::io(&path, "writing it"))
}
