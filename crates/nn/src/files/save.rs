//! Writes tensors into files.
//!
//! A save writes a new file beside the previous one and renames it (`warpline-files`). Shards get names that no other
//! save uses, and their index is replaced last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use safetensors::tensor::{Metadata, TensorInfo};
use warpline::__Called as _;
use warpline::{Error, IntoOptions, Result, Tensor};
use warpline_files::NewFile;
use warpline_runtime::launch::read_bytes;

use super::FileError;
use super::header::{METADATA, to_file_dtype};
use super::load::read_index;
use crate::StateDict;

/// Bytes per write.
const CHUNK_BYTES: usize = 1 << 20;
/// The longest header that the `safetensors` library accepts, in bytes.
const MAX_HEADER: usize = 100_000_000;

/// Returns the header of a file, including its length field, and the tensors in the order of their data.
fn header<'a>(
    state: &'a StateDict,
    metadata: &BTreeMap<String, String>,
    path: &Path,
) -> Result<(Vec<u8>, Vec<&'a Tensor>), FileError> {
    let invalid = |reason: String| FileError::invalid(path, reason);
    if state.get(METADATA).is_some() {
        return Err(invalid(format!("a tensor cannot have the name `{METADATA}`")));
    }
    check_names(state, path)?;
    let mut tensors: Vec<(&str, &Tensor)> = state.iter().collect();
    // Like other writers of safetensors, put tensors of large alignment first.
    tensors.sort_by(|(a, left), (b, right)| {
        to_file_dtype(right.dtype()).cmp(&to_file_dtype(left.dtype())).then(a.cmp(b))
    });
    let (mut infos, mut at) = (Vec::with_capacity(tensors.len()), 0usize);
    for (name, tensor) in &tensors {
        let bytes = tensor.numel().checked_mul(tensor.element_size());
        let Some(end) = bytes.and_then(|bytes| at.checked_add(bytes)) else {
            return Err(invalid(format!("the file would be too large with the tensor `{name}`")));
        };
        let (dtype, shape) = (to_file_dtype(tensor.dtype()), tensor.size().to_vec());
        infos.push(((*name).to_owned(), TensorInfo { dtype, shape, data_offsets: (at, end) }));
        at = end;
    }
    let metadata: Option<HashMap<_, _>> =
        (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect());
    let header = Metadata::new(metadata, infos).map_err(|error| invalid(error.to_string()))?;
    let mut text = serde_json::to_vec(&header).map_err(|error| invalid(error.to_string()))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() > MAX_HEADER {
        return Err(invalid(format!("its header would have {} bytes", text.len())));
    }
    let bytes = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    Ok((bytes, tensors.into_iter().map(|(_, tensor)| tensor).collect()))
}

/// Fails if a state has several tensors of one name. A file would lack all but the last of them.
fn check_names(state: &StateDict, path: &Path) -> Result<(), FileError> {
    match state.ambiguity() {
        None => Ok(()),
        Some(reason) => Err(FileError::invalid(path, reason)),
    }
}

/// Writes a tensor's elements in row-major order.
#[track_caller]
fn write(tensor: &Tensor, path: &Path, file: &mut impl Write) -> Result<(), FileError> {
    let tensor = tensor.detach().cpu().and_then(|host| host.contiguous());
    let host = tensor.map_err(FileError::tensor(path))?;
    let (from, bytes) =
        (host.storage_offset() * host.element_size(), host.numel() * host.element_size());
    let mut chunk = vec![0; bytes.min(CHUNK_BYTES)];
    for at in (0..bytes).step_by(CHUNK_BYTES) {
        let chunk = &mut chunk[..CHUNK_BYTES.min(bytes - at)];
        read_bytes((host.storage(), from + at), chunk).map_err(FileError::tensor(path))?;
        file.write_all(chunk).map_err(FileError::io(path, "writing it"))?;
    }
    Ok(())
}

/// Writes tensors to a safetensors file (`safetensors.torch.save_file`). Replaces an existing file.
///
/// The replacement is atomic: the tensors are written to a temporary file in the same folder, `.NAME.RANDOM.part`,
/// which is synced to the disk and then renamed. At any time the path holds a complete file, the previous or the new
/// one, even if several processes save or the process is killed. A killed process leaves its `.part` file behind. A
/// symbolic link at the path is replaced by the file.
///
/// Tensors that share memory are written separately. `options` is `()` or [`SaveOptions`].
///
/// # Errors
/// [`ErrorKind::File`](warpline::ErrorKind::File) with a [`FileError`] as its source: [`FileError::Tensor`] if a tensor
/// cannot be copied to the host, [`FileError::Io`] if the file cannot be written, [`FileError::Invalid`] if a tensor is
/// named `__metadata__`, the state is of a module that has several tensors of one name, or the header would exceed 100
/// MB. The previous file is then unchanged. One error is an exception: if the sync of the folder fails, the new file is
/// already in place.
#[track_caller]
pub fn save_file(
    state: &StateDict,
    path: impl AsRef<Path>,
    options: impl IntoOptions<SaveOptions>,
) -> Result<()> {
    let SaveOptions { metadata } = options.into_options();
    save_to(state, &metadata, path.as_ref()).map_err(Error::from).of("save_file")
}

warpline::__options! {
    /// Options of [`save_file`].
    #[derive(Clone, Debug)]
    SaveOptions [] [] {
        /// Sets the metadata: a text per name. Default: none.
        metadata: BTreeMap<String, String> = BTreeMap::new(), BTreeMap<String, String>;
    }
}

#[track_caller]
fn save_to(
    state: &StateDict,
    metadata: &BTreeMap<String, String>,
    path: &Path,
) -> Result<(), FileError> {
    let (header, tensors) = header(state, metadata, path)?;
    let failed = |error| FileError::io(path, "writing it")(error);
    let mut file = BufWriter::with_capacity(CHUNK_BYTES, NewFile::create(path).map_err(failed)?);
    file.write_all(&header).map_err(failed)?;
    for tensor in tensors {
        write(tensor, path, &mut file)?;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.commit().map_err(FileError::io(path, "replacing it"))
}

/// File name of the index.
const INDEX: &str = "model.safetensors.index.json";

/// Writes tensors to several files in a folder, with an index, `model.safetensors.index.json`, that
/// [`load_file`](crate::load_file) accepts. Each file has at most `max_bytes` bytes of data, or a single larger tensor.
///
/// The index is replaced atomically, as by [`save_file`], after all files that it names. These files have names that no
/// other save uses, `model-RANDOM-NNNNN-of-NNNNN.safetensors`, so the previous index stays valid until it is replaced.
/// Afterwards all files that have such a name and are not in the new index are removed: files of the previous save, and
/// files and temporary files of killed saves. Saves to the same folder take turns; each waits up to ten minutes. On a
/// file system without locks, no files of other saves are removed.
///
/// # Errors
/// The same as [`save_file`]; [`FileError::Io`] with the kind [`WouldBlock`](std::io::ErrorKind::WouldBlock) if other
/// saves lock the folder for ten minutes.
#[track_caller]
pub fn save_sharded(state: &StateDict, folder: impl AsRef<Path>, max_bytes: usize) -> Result<()> {
    save_within(LOCK_TIMEOUT, state, folder.as_ref(), max_bytes)
        .map_err(Error::from)
        .of("save_sharded")
}

/// Saves like [`save_sharded`], but waits up to `limit` for other saves.
#[track_caller]
fn save_within(
    limit: Duration,
    state: &StateDict,
    folder: &Path,
    max_bytes: usize,
) -> Result<(), FileError> {
    check_names(state, folder)?;
    let lock = match warpline_files::lock_folder(folder, limit) {
        // Without the lock, the other save would remove the files of this save.
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return Err(FileError::io(folder, "waiting for other saves to it")(error));
        }
        lock => lock,
    };
    let mut shards: Vec<(StateDict, usize)> = Vec::new();
    for (name, tensor) in state.iter() {
        let bytes = tensor.numel().saturating_mul(tensor.element_size());
        let fits = |full: usize| full.checked_add(bytes).is_some_and(|full| full <= max_bytes);
        match shards.last_mut().filter(|(_, full)| fits(*full)) {
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
    let (tag, mut written) = (format!("{:016x}", warpline_files::random()), BTreeSet::new());
    let saved = save_all(&shards, &tag, folder, &mut written);
    // After a failed sync of the folder the new index may be in place.
    let used = saved.is_ok() || read_index(&folder.join(INDEX)).is_ok_and(|now| now.contains(&tag));
    let is_ours = |name: &str| match warpline_files::name_of_temporary(name) {
        Some(name) => name == INDEX || is_shard(name),
        None => is_shard(name),
    };
    let is_stale = |name: &str| match used {
        true => saved.is_ok() && lock.is_ok() && is_ours(name) && !written.contains(name),
        false => written.contains(name),
    };
    // Ignore failures to remove files, which do not affect the saved state.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_stale) {
            let _ = warpline_files::remove(&entry.path());
        }
    }
    saved
}

/// Saves all shards and then their index. Adds the names of the shards to `written`.
#[track_caller]
fn save_all(
    shards: &[(StateDict, usize)],
    tag: &str,
    folder: &Path,
    written: &mut BTreeSet<String>,
) -> Result<(), FileError> {
    let (count, mut map, mut total) = (shards.len(), serde_json::Map::new(), 0usize);
    for (i, (shard, bytes)) in shards.iter().enumerate() {
        let name = format!("{PREFIX}{tag}-{:05}-of-{count:05}{SUFFIX}", i + 1);
        written.insert(name.clone());
        save_to(shard, &BTreeMap::new(), &folder.join(&name))?;
        map.extend(shard.keys().map(|tensor| (tensor.to_owned(), name.clone().into())));
        total = total.saturating_add(*bytes);
    }
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
    let path = folder.join(INDEX);
    let save = || {
        let mut file = NewFile::create(&path)?;
        file.write_all(format!("{index:#}\n").as_bytes())?;
        file.commit()
    };
    save().map_err(FileError::io(&path, "writing it"))
}

/// Longest wait for other saves to the same folder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

const PREFIX: &str = "model-";
const SUFFIX: &str = ".safetensors";

/// Returns `true` for names of the form `model-RANDOM-NNNNN-of-NNNNN.safetensors`.
fn is_shard(name: &str) -> bool {
    let Some(middle) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)) else {
        return false;
    };
    let digits = |part: &str, least: usize, radix: u32| {
        part.len() >= least && part.chars().all(|digit| digit.is_digit(radix))
    };
    match middle.split('-').collect::<Vec<_>>()[..] {
        [save, number, "of", count] => {
            save.len() == 16
                && digits(save, 16, 16)
                && digits(number, 5, 10)
                && digits(count, 5, 10)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_that_waits_too_long_for_another_leaves_the_folder_as_it_is() {
        let folder = std::env::temp_dir().join(format!("warpline-turns-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut state = StateDict::new();
        state.insert("weight", warpline::ones([4], ()).unwrap());
        save_sharded(&state, &folder, 8).unwrap();
        let files = || {
            let entries = fs::read_dir(&folder).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>()
        };
        let before = files();
        let other = warpline_files::lock_folder(&folder, Duration::ZERO).unwrap();
        let refused = save_within(Duration::from_millis(20), &state, &folder, 8);
        let Err(FileError::Io { cause, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(cause.kind(), ErrorKind::WouldBlock);
        assert_eq!(files(), before);
        drop(other);
        save_within(Duration::ZERO, &state, &folder, 8).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
