//! Segments and blocks of the caching allocators, and the history of their requests.

#[cfg(feature = "snapshot")]
use std::path::Path;

use warpline_alloc::cuda::CudaAllocator;
use warpline_alloc::{SegmentInfo, Snapshot, TraceConfig};

use crate::Error;
#[cfg(doc)]
use crate::ErrorKind;
#[cfg(feature = "snapshot")]
use crate::called::Called as _;
use crate::{Result, runtime};

/// Calls `f` with the allocator of each device, in the order of devices.
#[track_caller]
fn map_allocators<R>(f: impl Fn(&CudaAllocator) -> R) -> Result<Vec<R>> {
    let runtime = runtime();
    let mut all = Vec::new();
    for index in 0..runtime.devices()?.count() {
        all.push(f(runtime.device(index)?.allocator()));
    }
    Ok(all)
}

/// Returns the segments of all devices with their blocks, ordered by device and address
/// (`torch.cuda.memory_snapshot`). [`SegmentInfo::device`] is the device, and [`SegmentInfo::segment_pool_id`]
/// the private pool, if any. See [`MemPool::snapshot`](super::MemPool::snapshot) for one pool.
///
/// ```
/// use warpline::{DType, cuda, simulated, with_runtime, zeros};
///
/// with_runtime(&simulated(2)?, || {
///     let t = zeros([1000], (DType::F32, "cuda:1"))?;
///     let segments = cuda::memory_snapshot()?;
///     assert_eq!((segments.len(), segments[0].device), (1, 1));
///     assert_eq!(segments[0].blocks[0].address, t.data_ptr());
///     assert_eq!(segments[0].allocated_size, cuda::memory_allocated(1)?);
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn memory_snapshot() -> Result<Vec<SegmentInfo>> {
    Ok(map_allocators(CudaAllocator::segments).of("memory_snapshot")?.concat())
}

/// Starts to record the requests of the allocators of all devices, or stops with `None`
/// (`torch.cuda.memory._record_memory_history`). The records stay until recording is started again.
///
/// PyTorch's `enabled="state"` is `max_entries: 0`, and its `stacks` are [`Backtraces`](super::Backtraces).
/// Without a backtrace, an entry names the location of the request.
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn record_memory_history(config: impl Into<Option<TraceConfig>>) -> Result<()> {
    let config = config.into();
    map_allocators(|a| a.record_memory_history(config.clone()))
        .map(drop)
        .of("record_memory_history")
}

/// Returns the segments of all devices and the recorded history (`torch.cuda.memory._snapshot`).
///
/// ```
/// use warpline::cuda::{TraceAction, TraceConfig, memory};
/// use warpline::{simulated, with_runtime, zeros};
///
/// with_runtime(&simulated(2)?, || {
///     memory::record_memory_history(TraceConfig::default())?;
///     drop(zeros([1000], "cuda:1")?);
///     memory::record_memory_history(None)?;
///     let snapshot = memory::snapshot()?;
///     let [first, second] = &snapshot.device_traces[..] else { panic!("two devices") };
///     assert!(first.is_empty());
///     assert!(second.iter().any(|e| e.action == TraceAction::Alloc && e.size == 4000));
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn snapshot() -> Result<Snapshot> {
    let runtime = runtime();
    let mut all = Snapshot::default();
    for index in 0..runtime.devices().of("snapshot")?.count() {
        let device = runtime.device(index)?.allocator().snapshot();
        match index {
            0 => all = device,
            _ => all.merge(device),
        }
    }
    Ok(all)
}

/// Writes [`snapshot`] to a file in PyTorch's format (`torch.cuda.memory._dump_snapshot`).
/// `torch/cuda/_memory_viz.py` and the page at <https://pytorch.org/memory_viz> open such a file. An existing
/// file is replaced once the new file is complete.
///
/// ```
/// use warpline::{cuda, simulated, with_runtime};
///
/// let path = std::env::temp_dir().join(format!("snapshot-{}.pickle", std::process::id()));
/// with_runtime(&simulated(1)?, || cuda::memory::dump_snapshot(&path))?;
/// assert!(std::fs::metadata(&path)?.len() > 0);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
/// [`ErrorKind::InvalidArgument`] if the file cannot be written; the message has the path and the reason.
#[cfg(feature = "snapshot")]
#[track_caller]
pub fn dump_snapshot(path: impl AsRef<Path>) -> Result<()> {
    let (path, snapshot) = (path.as_ref(), snapshot().of("dump_snapshot")?);
    let written = warpline_files::NewFile::create(path).and_then(|mut file| {
        snapshot.write_pickle(&mut file)?;
        file.commit()
    });
    match written {
        Ok(()) => Ok(()),
        Err(e) => Err(Error::invalid("dump_snapshot", format!("{}: {e}", path.display()))),
    }
}

/// Adds an entry that holds `text` to the history of every device. Has no effect while no history is recorded
/// ([`record_memory_history`]).
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn annotate(text: &str) -> Result<()> {
    let runtime = runtime();
    for index in 0..runtime.devices().of("annotate")?.count() {
        runtime.device(index)?.allocator().annotate(text);
    }
    Ok(())
}

/// Attaches `text` to all entries recorded from now on, on all devices
/// (`torch.cuda.memory._set_memory_metadata`).
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn set_memory_metadata(text: &str) -> Result<()> {
    map_allocators(|a| a.set_memory_metadata(text)).map(drop).of("set_memory_metadata")
}
