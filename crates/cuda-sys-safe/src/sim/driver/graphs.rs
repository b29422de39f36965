//! Graphs and executable graphs.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::sim::CallKind;
use crate::sim::state::graph::GraphExecState;
use crate::sim::state::streams::StreamOpKind;
use crate::sim::state::work::{Label, Point};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn graph_instantiate(&mut self, handle: GraphHandle) -> Result<GraphExecHandle> {
        let call = CallKind::GraphInstantiate;
        let Some((device, graph)) = self.graphs.get(&handle.raw()).cloned() else {
            return Err(error(call, CudaCode::INVALID_VALUE, handle.device(), "no such graph"));
        };
        let id = self.fresh();
        self.graph_execs.insert(id, GraphExecState { device, graph, latest: None });
        // SAFETY: this driver has just created the object.
        Ok(unsafe { GraphExecHandle::from_raw(device, id) })
    }

    pub(super) fn graph_launch(
        &mut self,
        handle: GraphExecHandle,
        stream: StreamHandle,
    ) -> Result<Option<Point>> {
        let call = CallKind::GraphLaunch;
        let key = self.stream_key(call, stream)?;
        let Some(exec) = self.graph_execs.get(&handle.raw()) else {
            return Err(error(call, CudaCode::INVALID_VALUE, handle.device(), "no such graph"));
        };
        let (graph, latest) = (Arc::clone(&exec.graph), exec.latest);
        let comms = || graph.nodes.iter().filter_map(|node| node.work.communicator());
        let mut after = self.latest_of(comms());
        after.extend(latest);
        let point =
            self.enqueue(key, Label::of(call), StreamOpKind::Graph(Arc::clone(&graph)), &after)?;
        if let Some(point) = point {
            self.note_latest(comms(), point);
            crate::nccl::sim::notify_change();
        }
        if let Some(exec) = self.graph_execs.get_mut(&handle.raw())
            && point.is_some()
            && !exec.graph.nodes.is_empty()
        {
            exec.latest = point;
        }
        Ok(point)
    }

    /// Returns a description of the graph in the DOT language.
    pub(super) fn graph_dot(&self, handle: GraphHandle) -> Result<String> {
        let Some((_, graph)) = self.graphs.get(&handle.raw()) else {
            let call = CallKind::GraphDebugDotPrint;
            return Err(error(call, CudaCode::INVALID_VALUE, handle.device(), "no such graph"));
        };
        let mut dot = String::from("digraph {\n");
        for (number, node) in graph.nodes.iter().enumerate() {
            let location = node.label.location.map(|at| format!("\\n{at}")).unwrap_or_default();
            let label = format!("{}{location}", node.label.op).replace('"', "'");
            let _ = writeln!(dot, "  {number} [label=\"{label}\"];");
            for before in &node.after {
                let _ = writeln!(dot, "  {before} -> {number};");
            }
        }
        dot.push_str("}\n");
        Ok(dot)
    }

    pub(super) fn graph_destroy(&mut self, handle: GraphHandle) -> Result<()> {
        match self.graphs.remove(&handle.raw()) {
            Some(_) => Ok(()),
            None => {
                let call = CallKind::GraphDestroy;
                Err(error(call, CudaCode::INVALID_VALUE, handle.device(), "no such graph"))
            }
        }
    }

    pub(super) fn graph_exec_destroy(&mut self, handle: GraphExecHandle) -> Result<()> {
        match self.graph_execs.remove(&handle.raw()) {
            Some(_) => Ok(()),
            None => {
                let call = CallKind::GraphExecDestroy;
                Err(error(call, CudaCode::INVALID_VALUE, handle.device(), "no such graph"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::sim::SimConfig;
    use crate::*;

    #[test]
    fn a_replay_visits_each_node_of_a_long_chain_once() {
        for nodes in [16, 16_000] {
            let sim = SimConfig::new(1).build();
            let driver: Arc<dyn Driver> = sim.clone();
            let flags = StreamFlags { non_blocking: true, priority: 0 };
            let stream = owned::Stream::new(&driver, 0, flags).unwrap();
            let memory = driver.mem_alloc(0, 4).unwrap();
            let handle = stream.handle();
            // SAFETY: the memory is live and has four bytes, the stream is live, and the graph
            // comes from its capture.
            unsafe {
                driver.begin_capture(handle, CaptureMode::Relaxed).unwrap();
                for _ in 0..nodes {
                    driver.memset_async(memory, MemsetValue::U32(7), 1, handle).unwrap();
                }
                let graph = driver.end_capture(handle).unwrap();
                let exec = driver.graph_instantiate(graph).unwrap();
                for _ in 0..2 {
                    driver.graph_launch(exec, handle).unwrap();
                }
                stream.synchronize().unwrap();
                driver.graph_exec_destroy(exec).unwrap();
                driver.graph_destroy(graph).unwrap();
                driver.mem_free(0, memory).unwrap();
            }
            let steps = sim.lock().graph_steps;
            assert_eq!(steps, 2 * (2 * nodes - 1), "each node, and each dependency");
        }
    }
}
