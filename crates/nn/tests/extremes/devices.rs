//! Calls of `warpline::cuda` that take the index of a device.

use warpline::{Result, cuda};

use super::cases::cases;
use super::{Case, ResultSummary, Summarize};

pub(crate) const DEVICES: &[Case] = cases! {
    "set_device" |at, n| cuda::set_device(n.u)?;
    "device" |at, n| { let _ = cuda::device(n.u)?; };
    "with_device" |at, n| cuda::with_device(n.u, || Ok(()))?;
    "synchronize" |at, n| cuda::synchronize(n.u)?;
    "get_device_name" |at, n| cuda::get_device_name(n.u)?;
    "get_device_properties" |at, n| cuda::get_device_properties(n.u)?.name;
    "get_device_capability" |at, n| { cuda::get_device_capability(n.u)?; };
    "can_device_access_peer" |at, n| { cuda::can_device_access_peer(n.u, 0)?; };
    "can_device_access_peer" |at, n| { cuda::can_device_access_peer(0, n.u)?; };
    "enable_peer_access" |at, n| cuda::enable_peer_access(n.u, 0)?;
    "enable_peer_access" |at, n| cuda::enable_peer_access(0, n.u)?;
    "current_stream" |at, n| { cuda::current_stream(n.u)?; };
    "default_stream" |at, n| { cuda::default_stream(n.u)?; };
    "exclusive_stream" |at, n| { cuda::exclusive_stream(n.u, 0)?; };
    "graph_pool_handle" |at, n| { cuda::graph_pool_handle(n.u)?; };
    "MemPool::new" |at, n| { cuda::MemPool::new(n.u, cuda::PoolOptions::default())?; };
    "mem_get_info" |at, n| { cuda::mem_get_info(n.u)?; };
    "list_gpu_processes" |at, n| { cuda::list_gpu_processes(n.u)?; };
    "memory_allocated" |at, n| { cuda::memory_allocated(n.u)?; };
    "set_per_process_memory_fraction" |at, n| cuda::set_per_process_memory_fraction(1.0, n.u)?;
    "get_per_process_memory_fraction" |at, n| { cuda::get_per_process_memory_fraction(n.u)?; };
    "get_rng_state" |at, n| { cuda::get_rng_state(n.u)?; };
    "set_rng_state" |at, n| cuda::set_rng_state(&cuda::get_rng_state(0)?, n.u)?;
};

impl Summarize for String {
    fn summarize(&self) -> Result<ResultSummary> {
        Ok(ResultSummary(self.clone()))
    }
}
