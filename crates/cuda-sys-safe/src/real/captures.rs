//! Captures of streams, and conditional nodes of graphs (CUDA 12.3).
//!
//! The functions for conditional nodes are optional, so an older driver fails with
//! [`MissingSymbol`](crate::DriverError::MissingSymbol). The condition is created first, and its
//! function names CUDA 12.3.

use std::ffi::c_uint;
use std::mem::offset_of;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUcontext, CUgraph, CUgraphNode};

use super::CudaDriver;
use super::call_macros::call;
use super::raw::{mode_number, raw_stream};
use crate::{
    CaptureMode, CaptureStatus, ConditionHandle, ConditionalKind, CudaCode, DriverError,
    GraphHandle, Result, StreamHandle,
};

/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
const CONDITIONAL_NODE: c_uint = 13;

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`: each launch begins with the default value.
const ASSIGN_DEFAULT: c_uint = 1;

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`: replace the stream's dependencies.
const SET_DEPENDENCIES: c_uint = 1;

/// `CUgraphNodeParams` of a conditional node. Declared here because the headers of CUDA 12.0 lack
/// it, and with integers for enums.
#[repr(C)]
pub(super) struct NodeParams {
    kind: c_uint,
    reserved: [c_uint; 3],
    conditional: ConditionalParams,
    /// The remainder of the union, which has 29 words.
    rest: [u64; 25],
    reserved_end: u64,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`.
#[repr(C)]
struct ConditionalParams {
    handle: u64,
    kind: c_uint,
    /// Number of bodies.
    size: c_uint,
    /// Written by the driver: the bodies, in memory of the driver.
    bodies: *const CUgraph,
    context: CUcontext,
}

/// Streams of this process that are captured into bodies.
static BODIES: Mutex<Vec<StreamHandle>> = Mutex::new(Vec::new());

fn bodies() -> MutexGuard<'static, Vec<StreamHandle>> {
    BODIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an error if a body is being captured on the device. A synchronization of the device would
/// fail, too, but it would also invalidate the capture, and drivers up to 13.0 crash at the end of
/// an invalidated body.
pub(super) fn check_no_body(device: usize) -> Result<()> {
    if bodies().iter().all(|body| body.device() != device) {
        return Ok(());
    }
    let (call, code) = ("cuCtxSynchronize", CudaCode::STREAM_CAPTURE_UNSUPPORTED);
    let why = "the body of a conditional node is being captured";
    Err(DriverError::cuda(call, code, Some(device)).with_detail(|| why.into()))
}

/// Records the end of a stream's capture.
fn body_ended(stream: StreamHandle) {
    bodies().retain(|body| *body != stream);
}

const _: () = assert!(size_of::<NodeParams>() == 256 && offset_of!(NodeParams, conditional) == 16);

impl CudaDriver {
    /// Returns the capture status of a stream.
    pub(super) fn status_of(&self, stream: StreamHandle) -> Result<CaptureStatus> {
        let (mut status, mut id, raw) = (0, 0, raw_stream(stream));
        call!(
            self,
            stream.device(),
            cuStreamGetCaptureInfo_v2(
                raw,
                &mut status,
                &mut id,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        )?;
        Ok(match status {
            0 => CaptureStatus::None,
            1 => CaptureStatus::Active(id),
            _ => CaptureStatus::Invalidated,
        })
    }

    /// Ends the capture of a stream.
    pub(super) fn end_capture_of(&self, stream: StreamHandle) -> Result<GraphHandle> {
        let (device, raw, mut graph) = (stream.device(), raw_stream(stream), ptr::null_mut());
        let ended = call!(self, device, cuStreamEndCapture(raw, &mut graph));
        body_ended(stream);
        ended?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { GraphHandle::from_raw(device, graph as usize as u64) })
    }

    /// Returns the graph that a stream is captured into, with the nodes that its next work depends
    /// on. The nodes are valid until the next call for the stream.
    fn captured_graph(&self, stream: StreamHandle) -> Result<(CUgraph, *const CUgraphNode, usize)> {
        const ACTIVE: u32 = 1;
        let (mut status, mut id, mut graph) = (0, 0, ptr::null_mut());
        let (mut nodes, mut count, raw) = (ptr::null(), 0, raw_stream(stream));
        let device = stream.device();
        call!(
            self,
            device,
            cuStreamGetCaptureInfo_v2(
                raw,
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                &mut count,
            )
        )?;
        if status == ACTIVE {
            return Ok((graph, nodes, count));
        }
        let (call, code) = ("cuStreamGetCaptureInfo_v2", CudaCode::ILLEGAL_STATE);
        let why = "the stream is not captured, or its capture is invalid";
        Err(DriverError::cuda(call, code, Some(device)).with_detail(|| why.into()))
    }

    /// Creates a condition in the graph that a stream is captured into.
    pub(super) fn create_condition(&self, stream: StreamHandle) -> Result<ConditionHandle> {
        let device = stream.device();
        // Find out first whether the driver is new enough.
        self.api.cuGraphConditionalHandleCreate()?;
        let (graph, ..) = self.captured_graph(stream)?;
        let context = self.context("cuGraphConditionalHandleCreate", device)?;
        let mut handle = 0;
        call!(
            self,
            device,
            cuGraphConditionalHandleCreate?(&mut handle, graph, context, 0, ASSIGN_DEFAULT)
        )?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { ConditionHandle::from_raw(device, handle) })
    }

    /// Adds a conditional node after the captured work of a stream, and returns its body.
    pub(super) fn add_conditional(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        kind: ConditionalKind,
    ) -> Result<GraphHandle> {
        let device = stream.device();
        let (graph, after, count) = self.captured_graph(stream)?;
        let mut params = NodeParams {
            kind: CONDITIONAL_NODE,
            reserved: [0; 3],
            conditional: ConditionalParams {
                handle: condition.raw(),
                kind: match kind {
                    ConditionalKind::If => 0,
                    ConditionalKind::While => 1,
                },
                size: 1,
                bodies: ptr::null(),
                context: self.context("cuGraphAddNode", device)?,
            },
            rest: [0; 25],
            reserved_end: 0,
        };
        let mut node: CUgraphNode = ptr::null_mut();
        call!(self, device, cuGraphAddNode?(&mut node, graph, after, count, &mut params))?;
        let raw = raw_stream(stream);
        call!(
            self,
            device,
            cuStreamUpdateCaptureDependencies?(raw, &mut node, 1, SET_DEPENDENCIES)
        )?;
        let bodies = params.conditional.bodies;
        if bodies.is_null() {
            return Err(DriverError::cuda("cuGraphAddNode", CudaCode::UNKNOWN, Some(device)));
        }
        // SAFETY: the driver has written an array with as many bodies as the node has, one.
        let body = unsafe { bodies.read() };
        // SAFETY: this driver has just created the graph.
        Ok(unsafe { GraphHandle::from_raw(device, body as usize as u64) })
    }

    /// Begins to capture a stream into a body.
    pub(super) fn begin_body(&self, stream: StreamHandle, body: GraphHandle) -> Result<()> {
        let (raw, graph) = (raw_stream(stream), body.raw() as usize as CUgraph);
        let mode = mode_number(CaptureMode::Relaxed);
        bodies().push(stream);
        let begun = call!(
            self,
            stream.device(),
            cuStreamBeginCaptureToGraph?(raw, graph, ptr::null(), ptr::null(), 0, mode)
        );
        if begun.is_err() {
            body_ended(stream);
        }
        begun
    }
}
