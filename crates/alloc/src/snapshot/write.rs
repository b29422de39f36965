//! Serialization of a snapshot as PyTorch's dictionaries, for any format.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::settings::SettingsEntry;
use super::{Annotation, BlockInfo, BlockState, Frame, SegmentInfo, Snapshot};
use crate::{PoolKind, TraceAction, TraceEntry};

/// The snapshot with the names of PyTorch's documentation.
pub(super) struct AsJson<'a>(pub(super) &'a Snapshot);

/// The snapshot with the names that PyTorch writes and its viewers read.
pub(super) struct AsPickle<'a>(pub(super) &'a Snapshot);

impl Serialize for AsJson<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        snapshot(self.0, BlockState::name, to)
    }
}

impl Serialize for AsPickle<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let name = |state: BlockState| match state {
            BlockState::AwaitingFree => "active_pending_free",
            other => other.name(),
        };
        snapshot(self.0, name, to)
    }
}

type StateName = fn(BlockState) -> &'static str;

fn snapshot<S: Serializer>(of: &Snapshot, name: StateName, to: S) -> Result<S::Ok, S::Error> {
    let mut dict = to.serialize_struct("Snapshot", 4)?;
    dict.serialize_field("segments", &List(&of.segments, |s| SegmentEntry(s, name)))?;
    dict.serialize_field("device_traces", &of.device_traces)?;
    dict.serialize_field("allocator_settings", &SettingsEntry(&of.allocator_settings))?;
    dict.serialize_field("external_annotations", &of.external_annotations)?;
    dict.end()
}

/// A list that serializes each element of `.0` as the result of `.1`.
struct List<'a, T, F>(&'a [T], F);

impl<'a, T, U: Serialize + 'a, F: Fn(&'a T) -> U> Serialize for List<'a, T, F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(&self.1))
    }
}

struct SegmentEntry<'a>(&'a SegmentInfo, StateName);

impl Serialize for SegmentEntry<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(segment, name) = *self;
        let kind = match segment.segment_type {
            PoolKind::Small => "small",
            PoolKind::Large => "large",
        };
        let mut dict = to.serialize_struct("Segment", 12)?;
        dict.serialize_field("device", &segment.device)?;
        dict.serialize_field("address", &segment.address)?;
        dict.serialize_field("total_size", &segment.total_size)?;
        dict.serialize_field("allocated_size", &segment.allocated_size)?;
        dict.serialize_field("active_size", &segment.active_size)?;
        dict.serialize_field("requested_size", &segment.requested_size)?;
        dict.serialize_field("stream", &signed(segment.stream))?;
        dict.serialize_field("segment_type", kind)?;
        dict.serialize_field("segment_pool_id", &segment.segment_pool_id)?;
        dict.serialize_field("is_expandable", &segment.is_expandable)?;
        dict.serialize_field("frames", &segment.frames)?;
        dict.serialize_field("blocks", &List(&segment.blocks, |b| BlockEntry(b, name)))?;
        dict.end()
    }
}

/// Converts to `i64`, because viewers read integers of up to 8 bytes as signed.
fn signed(stream: u64) -> i64 {
    stream as i64
}

struct BlockEntry<'a>(&'a BlockInfo, StateName);

impl Serialize for BlockEntry<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(block, name) = *self;
        let mut dict = to.serialize_struct("Block", 5)?;
        dict.serialize_field("address", &block.address)?;
        dict.serialize_field("size", &block.size)?;
        dict.serialize_field("requested_size", &block.requested_size)?;
        dict.serialize_field("state", name(block.state))?;
        dict.serialize_field("frames", &block.frames)?;
        dict.end()
    }
}

impl Serialize for TraceEntry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let address = if self.action == TraceAction::Oom { "device_free" } else { "addr" };
        let mut dict = to.serialize_struct("TraceEntry", 8)?;
        dict.serialize_field("action", self.action.name())?;
        dict.serialize_field(address, &self.address)?;
        dict.serialize_field("size", &self.size)?;
        dict.serialize_field("stream", &signed(self.stream))?;
        dict.serialize_field("time_us", &self.time_us)?;
        dict.serialize_field("compile_context", "N/A")?;
        dict.serialize_field("user_metadata", &*self.user_metadata)?;
        dict.serialize_field("frames", &self.frames())?;
        dict.end()
    }
}

impl Serialize for Frame {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut dict = to.serialize_struct("Frame", 3)?;
        dict.serialize_field("name", &self.name)?;
        dict.serialize_field("filename", &self.filename)?;
        dict.serialize_field("line", &self.line)?;
        dict.end()
    }
}

impl Serialize for Annotation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut dict = to.serialize_struct("Annotation", 3)?;
        dict.serialize_field("name", &self.name)?;
        dict.serialize_field("device", &self.device)?;
        dict.serialize_field("time_us", &self.time_us)?;
        dict.end()
    }
}
