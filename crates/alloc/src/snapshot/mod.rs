//! Snapshots of the allocator's memory and history, as plain values and as files.

mod frame;
mod segment;
#[cfg(feature = "snapshot")]
mod settings;
#[cfg(feature = "snapshot")]
mod write;

#[cfg(feature = "snapshot")]
use std::io;

pub use frame::Frame;
pub use segment::{BlockInfo, BlockState, SegmentInfo};

use crate::trace::TraceRing;
use crate::{AllocatorConfig, TraceAction, TraceEntry};
#[cfg(feature = "snapshot")]
use write::{AsJson, AsPickle};

/// The memory of one or more devices: segments and blocks, and the history if a trace was on
/// (`torch.cuda.memory._snapshot`).
///
/// Writing a snapshot to a file needs the feature `snapshot`:
///
/// ```
/// # use warpline_alloc::Snapshot;
/// # fn save(snapshot: &Snapshot) -> std::io::Result<()> {
/// // For `python -m torch.cuda._memory_viz trace_plot snapshot.pickle`, or to drop onto
/// // https://pytorch.org/memory_viz.
/// snapshot.write_pickle(std::fs::File::create("snapshot.pickle")?)
/// # }
/// let json = Snapshot::default().to_json()?;
/// assert!(json.starts_with(r#"{"segments":[],"device_traces":[],"#));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// All segments, all mapped ranges of arenas, and all aliases, ordered by device, then by
    /// address.
    pub segments: Vec<SegmentInfo>,
    /// The history of each device, oldest entry first. Indexed by device.
    pub device_traces: Vec<Vec<TraceEntry>>,
    /// The options in use.
    pub allocator_settings: AllocatorConfig,
    /// Annotations that the program added.
    pub external_annotations: Vec<Annotation>,
}

/// An annotation that the program added to a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Annotation {
    /// Index of the device.
    pub device: usize,
    /// Time in microseconds since 1970.
    pub time_us: u64,
    /// Text of the annotation.
    pub name: String,
}

impl Snapshot {
    /// Creates the snapshot of one device. `segments` and `trace` must be from the same moment,
    /// because viewers undo the trace, newest entry first, to find the segments at earlier times.
    pub(crate) fn of_device(
        device: &str,
        mut segments: Vec<SegmentInfo>,
        trace: TraceRing,
        allocator_settings: AllocatorConfig,
    ) -> Self {
        let device = ordinal(device);
        for segment in &mut segments {
            segment.device = device;
        }
        trace.add_origins(&mut segments);
        let trace = trace.into_entries();
        let external_annotations = trace
            .iter()
            .filter(|entry| entry.action == TraceAction::Annotate)
            .map(|entry| Annotation {
                device,
                time_us: entry.time_us,
                name: entry.user_metadata.to_string(),
            })
            .collect();
        let mut device_traces = vec![Vec::new(); device + 1];
        device_traces[device] = trace;
        Self { segments, device_traces, allocator_settings, external_annotations }
    }

    /// Adds the snapshot of another device, so that one file shows both. Keeps the options of
    /// `self`.
    pub fn merge(&mut self, other: Self) {
        self.segments.extend(other.segments);
        self.segments.sort_by_key(|segment| (segment.device, segment.address));
        self.external_annotations.extend(other.external_annotations);
        self.external_annotations.sort_by_key(|annotation| annotation.time_us);
        if self.device_traces.len() < other.device_traces.len() {
            self.device_traces.resize_with(other.device_traces.len(), Vec::new);
        }
        for (mine, theirs) in self.device_traces.iter_mut().zip(other.device_traces) {
            mine.extend(theirs);
            mine.sort_by_key(|entry| entry.time_us);
        }
    }
}

/// Output as files, with the feature `snapshot`.
#[cfg(feature = "snapshot")]
impl Snapshot {
    /// Returns the snapshot as JSON, with PyTorch's keys.
    ///
    /// # Errors
    /// [`io::Error`] if `serde_json` refuses a value. A snapshot has no such value.
    pub fn to_json(&self) -> io::Result<String> {
        Ok(serde_json::to_string(&AsJson(self))?)
    }

    /// Writes the text of [`to_json`](Self::to_json).
    ///
    /// # Errors
    /// The [`io::Error`] of `writer`.
    pub fn write_json(&self, writer: impl io::Write) -> io::Result<()> {
        let mut writer = io::BufWriter::new(writer);
        serde_json::to_writer(&mut writer, &AsJson(self))?;
        io::Write::flush(&mut writer)
    }

    /// Writes the file format of `torch.cuda.memory._dump_snapshot`: a Python pickle, which
    /// `torch/cuda/_memory_viz.py` and <https://pytorch.org/memory_viz> open. Freed blocks that
    /// other streams still use are `active_pending_free` there, as in PyTorch's own files, which
    /// differ from its documentation.
    ///
    /// # Errors
    /// The [`io::Error`] of `writer`.
    pub fn write_pickle(&self, writer: impl io::Write) -> io::Result<()> {
        let mut writer = io::BufWriter::new(writer);
        let options = serde_pickle::SerOptions::new().proto_v2();
        serde_pickle::to_writer(&mut writer, &AsPickle(self), options).map_err(
            |error| match error {
                serde_pickle::Error::Io(error) => error,
                other => io::Error::other(other),
            },
        )?;
        io::Write::flush(&mut writer)
    }
}

/// Returns the index in a device's name, such as 1 for `cuda:1`. 0 if there is none.
pub(crate) fn ordinal(device: &str) -> usize {
    let number = device.rsplit(':').next().and_then(|number| number.parse::<u8>().ok());
    number.unwrap_or(0).into()
}

#[cfg(all(test, feature = "snapshot"))]
mod tests;
