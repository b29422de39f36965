//! Conditional nodes of graphs (CUDA 12.3).
//!
//! The functions are optional, so an older driver fails with
//! [`MissingSymbol`](crate::DriverError::MissingSymbol). The condition is created first, and its
//! function names CUDA 12.3.

use std::ffi::c_uint;
use std::mem::offset_of;
use std::ptr;

use cudarc::driver::sys::{CUcontext, CUgraph, CUgraphNode};

use super::CudaDriver;
use super::call_macros::call;
use super::raw::{mode_number, raw_stream};
use crate::{
    CaptureMode, ConditionHandle, ConditionalKind, CudaCode, DriverError, GraphHandle, Result,
    StreamHandle,
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

const _: () = assert!(size_of::<NodeParams>() == 256 && offset_of!(NodeParams, conditional) == 16);

impl CudaDriver {
    /// Returns the graph that a stream is captured into, with the nodes that its next work depends
    /// on. The nodes are valid until the next call for the stream.
    fn captured_graph(&self, stream: StreamHandle) -> Result<(CUgraph, *const CUgraphNode, usize)> {
        const ACTIVE: u32 = 1;
        let (mut status, mut id, mut graph) = (0, 0, ptr::null_mut());
        let (mut nodes, mut count) = (ptr::null(), 0);
        let device = stream.device();
        call!(
            self,
            device,
            cuStreamGetCaptureInfo_v2(
                raw_stream(stream),
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                &mut count,
            )
        )?;
        if status != ACTIVE {
            let call = "cuStreamGetCaptureInfo_v2";
            let why = "the stream is not captured, or its capture is invalid";
            return Err(DriverError::cuda(call, CudaCode::ILLEGAL_STATE, Some(device))
                .with_detail(|| why.into()));
        }
        Ok((graph, nodes, count))
    }

    /// # Safety
    /// The stream is live.
    pub(super) unsafe fn create_condition(&self, stream: StreamHandle) -> Result<ConditionHandle> {
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

    /// # Safety
    /// The stream is live, and the condition belongs to the graph that the stream is captured into.
    pub(super) unsafe fn add_conditional(
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

    /// # Safety
    /// The stream and the body are live.
    pub(super) unsafe fn begin_body(&self, stream: StreamHandle, body: GraphHandle) -> Result<()> {
        let (raw, graph) = (raw_stream(stream), body.raw() as usize as CUgraph);
        let mode = mode_number(CaptureMode::Relaxed);
        call!(
            self,
            stream.device(),
            cuStreamBeginCaptureToGraph?(raw, graph, ptr::null(), ptr::null(), 0, mode)
        )
    }
}
