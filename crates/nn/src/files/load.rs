//! Loads tensors from files.
//!
//! All headers are checked against the lengths of their files before any tensor is allocated. Then several threads read
//! chunks of up to 8 MiB (`launch::fill_bytes`): on the CPU into the tensors themselves, for a GPU into page-locked
//! memory. In the latter case each thread has two buffers: the device copies from one while the thread fills the other.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Deserialize;
use warpline::__Called as _;
use warpline::{
    DType, Device, Error, Exec, IntoDevice, IntoOptions, Result, Tensor, TensorOptions, empty,
};
use warpline_runtime::launch::{copy_bytes, fill_bytes};

use super::FileError;
use super::header::{SafetensorsFile, UniqueMap};
use crate::StateDict;

/// Maximum number of bytes per read, and of a page-locked buffer.
const CHUNK_BYTES: usize = 8 << 20;
/// Maximum number of reading threads. One thread copies about 8 GB/s from the page cache.
const MAX_THREADS: usize = 8;

/// The progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read so far.
    pub bytes: u64,
    /// Bytes of all tensors together.
    pub total: u64,
}

/// Options of [`load_file`]. A device or a device's name converts into options with that `device`.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// The device to load to. No other option is set.
    tensor: TensorOptions,
    progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl<'a> LoadOptions<'a> {
    /// Creates options with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the device of the loaded tensors. Default: the CPU. An invalid name becomes an error of [`load_file`].
    #[must_use]
    pub fn device(mut self, device: impl IntoDevice) -> Self {
        self.tensor = self.tensor.device(device);
        self
    }

    /// Sets a callback that runs on the calling thread after each chunk (up to 8 MiB) has been read. Default: none.
    #[must_use]
    pub fn progress(mut self, progress: &'a mut dyn FnMut(Progress)) -> Self {
        self.progress = Some(progress);
        self
    }
}

impl From<()> for LoadOptions<'_> {
    fn from((): ()) -> Self {
        Self::new()
    }
}

macro_rules! from_device {
    ($($ty:ty),*) => {$(
        impl From<$ty> for LoadOptions<'_> {
            fn from(device: $ty) -> Self {
                Self::new().device(device)
            }
        }
    )*};
}

from_device!(Device, &Device, &str, String, &String, usize);

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadOptions").field("tensor", &self.tensor).finish_non_exhaustive()
    }
}

/// Loads the tensors of a safetensors file (`safetensors.torch.load_file`). `options` is `()`, a device, or
/// [`LoadOptions`]. If the extension of `path` is `json`, loads the tensors that this index names from its files.
/// Names, dtypes and shapes are those in the files.
///
/// ```
/// use warpline_nn::{Linear, Module, load_file, save_file};
///
/// let folder = std::env::temp_dir().join(format!("warpline-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&folder).unwrap();
/// let (path, mut net) = (folder.join("net.safetensors"), Linear::new(2, 3, ())?);
/// save_file(&net.state_dict(), &path, ())?;
/// net.load_state_dict(&load_file(&path, "cpu")?, true)?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidDeviceString`](warpline::ErrorKind::InvalidDeviceString) if the device is not a device name;
/// [`ErrorKind::File`](warpline::ErrorKind::File) with a [`FileError`] as its source: [`FileError::Io`] if a file
/// cannot be opened or read or is not a regular file, [`FileError::Invalid`] if it is not a valid safetensors file or
/// index, [`FileError::DType`] if a tensor has a dtype that Warpline does not have, [`FileError::Tensor`] if memory
/// cannot be allocated or a copy to the device fails.
#[track_caller]
pub fn load_file<'a>(
    path: impl AsRef<Path>,
    options: impl IntoOptions<LoadOptions<'a>>,
) -> Result<StateDict> {
    let LoadOptions { tensor, progress } = options.into_options();
    let device = tensor.requested_device().of("load_file")?.unwrap_or(Device::Cpu);
    load(path.as_ref(), device, progress).map_err(Error::from).of("load_file")
}

#[track_caller]
fn load(
    path: &Path,
    device: Device,
    mut progress: Option<&mut dyn FnMut(Progress)>,
) -> Result<StateDict, FileError> {
    // Check all headers before any allocation.
    let files = open_files(path)?;
    let total: usize = files.iter().flat_map(|f| &f.entries).map(|entry| entry.bytes).sum();
    let (mut state, mut chunks) = (StateDict::new(), Vec::new());
    for file in &files {
        for entry in &file.entries {
            let to = TensorOptions::new().dtype(entry.dtype).device(device);
            let tensor = empty(&entry.sizes[..], to).map_err(FileError::tensor(&file.path))?;
            let mut done = 0;
            while done < entry.bytes {
                let bytes = CHUNK_BYTES.min(entry.bytes - done);
                let (from, tensor) = (entry.begin + done as u64, tensor.clone());
                chunks.push(FileChunk { file, name: &entry.name, from, tensor, at: done, bytes });
                done += bytes;
            }
            state.insert(&entry.name[..], tensor);
        }
    }
    read_chunks(&chunks, device, &mut |bytes| {
        if let Some(progress) = &mut progress {
            progress(Progress { bytes: bytes as u64, total: total as u64 });
        }
    })?;
    Ok(state)
}

/// The index of several files.
#[derive(Deserialize)]
struct ShardIndex {
    weight_map: UniqueMap<String>,
}

/// Maximum number of attempts to open the files of an index that concurrent saves replace.
const ATTEMPTS: usize = 100;

/// Opens all files of a path. Checks their headers, and that they contain the tensors that an index names.
fn open_files(path: &Path) -> Result<Vec<SafetensorsFile>, FileError> {
    if path.extension().is_none_or(|end| end != "json") {
        return Ok(vec![SafetensorsFile::new(path)?]);
    }
    let mut text = read_index(path)?;
    for _ in 1..ATTEMPTS {
        let files = open_indexed_files(path, &text);
        if files.is_ok() {
            return files;
        }
        // A save may have replaced the index and removed its files.
        let now = read_index(path)?;
        if now == text {
            return files;
        }
        text = now;
    }
    open_indexed_files(path, &text)
}

pub(super) fn read_index(path: &Path) -> Result<String, FileError> {
    let read = |mut file: File| {
        let mut text = String::new();
        file.read_to_string(&mut text).map(|_| text)
    };
    warpline_files::open(path).and_then(read).map_err(FileError::io(path, "reading it"))
}

/// Opens the files that an index names.
fn open_indexed_files(path: &Path, text: &str) -> Result<Vec<SafetensorsFile>, FileError> {
    let ShardIndex { weight_map: UniqueMap(file_by_tensor) } = serde_json::from_str(text)
        .map_err(|error| FileError::invalid(path, format!("it is not an index: {error}")))?;
    let names: BTreeSet<&String> = file_by_tensor.values().collect();
    let mut files = Vec::new();
    for name in names {
        if Path::new(name).components().count() != 1 {
            let reason = format!("it names the file `{name}`, which is not beside it");
            return Err(FileError::invalid(path, reason));
        }
        let mut file = SafetensorsFile::new(&path.with_file_name(name))?;
        // A file may contain tensors that the index assigns to another file or does not name.
        file.entries.retain(|entry| file_by_tensor.get(&entry.name) == Some(name));
        files.push(file);
    }
    let found: BTreeSet<&String> = files.iter().flat_map(|f| &f.entries).map(|e| &e.name).collect();
    if let Some((name, file)) = file_by_tensor.iter().find(|(name, _)| !found.contains(name)) {
        let reason =
            format!("the index says that `{file}` contains the tensor `{name}`, but it does not");
        return Err(FileError::invalid(path, reason));
    }
    Ok(files)
}

/// A part of a tensor and its position in a file.
struct FileChunk<'a> {
    file: &'a SafetensorsFile,
    name: &'a str,
    from: u64,
    tensor: Tensor,
    /// Offset in the tensor, in bytes.
    at: usize,
    bytes: usize,
}

/// Reads all chunks. Calls `done` on this thread with the number of bytes read so far.
#[track_caller]
fn read_chunks(
    chunks: &[FileChunk<'_>],
    device: Device,
    done: &mut dyn FnMut(usize),
) -> Result<(), FileError> {
    let Some(first) = chunks.first() else { return Ok(()) };
    let location = std::panic::Location::caller();
    let failed = |error| FileError::tensor(&first.file.path)(error);
    // Use the caller's stream for all copies, because each thread has its own current stream.
    let exec = first.tensor.exec().map_err(failed)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = MAX_THREADS.min(cores).min(chunks.len());
    // Page-locked buffers, two per thread.
    let mut all_buffers: Vec<Vec<Tensor>> = Vec::new();
    if device.is_cuda() {
        let chunk = chunks.iter().map(|chunk| chunk.bytes).max().unwrap_or(0);
        let pinned = TensorOptions::new().dtype(DType::U8).pin_memory(true);
        let buffers = || (0..2).map(|_| empty([chunk], &pinned)).collect::<warpline::Result<_>>();
        all_buffers =
            (0..threads).map(|_| buffers()).collect::<warpline::Result<_>>().map_err(failed)?;
    }
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let error = Mutex::new(None);
    let (sender, received) = channel();
    let work = |buffers: Option<Vec<Tensor>>, sender: Sender<usize>| {
        for iteration in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let staging = buffers.as_ref().map(|buffers| &buffers[iteration % 2]);
            if let Err(reason) = chunk.read(staging, &exec, location) {
                stop.store(true, Ordering::Relaxed);
                error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
                return;
            }
            // There is no receiver only if the callback has panicked.
            let _ = sender.send(chunk.bytes);
        }
    };
    thread::scope(|scope| {
        let mut all_buffers = all_buffers.into_iter();
        for _ in 0..threads {
            let (buffers, sender, work) = (all_buffers.next(), sender.clone(), &work);
            scope.spawn(move || work(buffers, sender));
        }
        drop(sender);
        let mut bytes = 0;
        for chunk in received {
            bytes += chunk;
            done(bytes);
        }
    });
    match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl FileChunk<'_> {
    fn read(
        &self,
        staging: Option<&Tensor>,
        exec: &Exec<'_>,
        location: &'static std::panic::Location<'static>,
    ) -> Result<(), FileError> {
        let path = &self.file.path;
        let tensor = |error: warpline::Error| FileError::tensor(path)(error.at(location));
        let fill = |to: &Tensor, at: usize| {
            let read = |bytes: &mut [u8]| read_at(&self.file.file, bytes, self.from);
            let outcome = fill_bytes((to.storage(), at), self.bytes, read).map_err(tensor)?;
            outcome.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    let reason =
                        format!("it ended within the tensor `{}` while it was read", self.name);
                    FileError::invalid(path, reason)
                }
                _ => FileError::io(path, "reading a tensor")(error),
            })
        };
        let Some(staging) = staging else { return fill(&self.tensor, self.at) };
        // `fill_bytes` waits for the previous copy from this buffer.
        fill(staging, 0)?;
        let Exec::Cuda(_, _, stream) = exec else { return Ok(()) };
        let (to, from) = ((self.tensor.storage(), self.at), (staging.storage(), 0));
        copy_bytes(stream, to, from, self.bytes, true, location).map_err(tensor)
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], from: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, from)
}

#[cfg(windows)]
fn read_at(file: &File, bytes: &mut [u8], from: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = from + done as u64;
        match std::os::windows::fs::FileExt::seek_read(file, &mut bytes[done..], at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}
