//! S37: each stream has one cuBLAS workspace from the caching allocator.

use warpline::cuda::{self, CudaGraph, Stream};
use warpline::{
    DType, Device, Result, RuntimeConfig, SyncPolicy, Tensor, arange, full, ones, with_runtime,
    zeros,
};

use crate::common::{self, World};
use crate::s08_index_check::failed;
use crate::s08_marked_tensors::picked;

crate::rows! {
    worlds(1) s37_a_stream_keeps_one_workspace gpu_s37_a_stream_keeps_one_workspace => one_each;
    worlds(1) s37_cleared_workspaces_are_made_again gpu_s37_cleared_workspaces_are_made_again => cleared;
    worlds(1) s37_workspaces_of_dropped_streams_are_freed gpu_s37_workspaces_of_dropped_streams_are_freed => dropped;
    schedules64(1) s37_products_on_several_streams_repeat_bit_for_bit
        gpu_s37_products_on_several_streams_repeat_bit_for_bit => repeat;
    manual(1) s37_products_on_several_streams_share_no_workspace
        gpu_s37_products_on_several_streams_share_no_workspace => share_nothing;
    schedules64(1) s37_a_graph_owns_its_workspaces gpu_s37_a_graph_owns_its_workspaces => captured;
    schedules(1) s37_a_failed_product_leaves_the_next_one_right
        gpu_s37_a_failed_product_leaves_the_next_one_right => failure;
}

/// The size of a product that cuBLAS computes.
const N: usize = 260;

/// Bytes of a workspace on the devices of the current runtime.
fn workspace() -> Result<usize> {
    Ok(warpline::runtime().device(0)?.cublas_workspace_bytes())
}

/// Returns the number of bytes by which `f` increases the allocated memory of a device.
fn allocates(device: usize, f: impl FnOnce() -> Result<()>) -> Result<usize> {
    let before = cuda::memory_allocated(device)?;
    f()?;
    Ok(cuda::memory_allocated(device)? - before)
}

/// Computes a product on a stream and drops it.
fn multiply(stream: &Stream, a: &Tensor) -> Result<()> {
    cuda::with_stream(stream, || a.matmul(a)).map(drop)
}

fn one_each(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let a = ones([N, N], device)?;
        let streams = [Stream::new(device)?, Stream::new(device)?];
        for stream in &streams {
            let first = allocates(device, || multiply(stream, &a))?;
            assert_eq!(first, workspace()?, "the stream's first product");
            assert_eq!(allocates(device, || multiply(stream, &a))?, 0, "the same workspace");
        }
        // Products that Warpline's own kernels compute need no workspace.
        let (small, integers) = (ones([4, 4], device)?, ones([N, N], (DType::I32, device))?);
        let third = cuda::exclusive_stream(device, 0)?;
        assert_eq!(allocates(device, || multiply(&third, &small))?, 0);
        assert_eq!(allocates(device, || multiply(&third, &integers))?, 0);
    }
    Ok(())
}

fn cleared(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let a = full([N, N], 2.0, device)?;
        let before = cuda::memory_allocated(device)?;
        for stream in [Stream::new(device)?, Stream::new(device)?] {
            multiply(&stream, &a)?;
        }
        assert_eq!(cuda::memory_allocated(device)? - before, 2 * workspace()?);
        let last = a.matmul(&a)?;
        cuda::clear_cublas_workspaces();
        let product = N * N * 4;
        let kept = cuda::memory_allocated(device)? - before;
        assert!((product..product + (1 << 20)).contains(&kept), "{kept} bytes besides the product");
        assert_eq!(last.to_vec::<f32>()?, vec![4.0 * N as f32; N * N]);
        drop(last);
        let again = allocates(device, || multiply(&cuda::current_stream(device)?, &a))?;
        assert_eq!(again, workspace()?);
        cuda::clear_cublas_workspaces();
        assert_eq!(cuda::memory_allocated(device)?, before);
    }
    Ok(())
}

fn dropped(world: &World) -> Result<()> {
    for device in 0..world.devices {
        for _ in 0..20 {
            let stream = cuda::exclusive_stream(device, 0)?;
            cuda::with_stream(&stream, || ones([N, N], device)?.matmul(&ones([N, N], device)?))?;
            assert_eq!(
                cuda::memory_allocated(device)?,
                workspace()?,
                "those of earlier streams are freed"
            );
        }
    }
    Ok(())
}

/// Products whose sums cuBLAS may split, so that partial sums lie in the workspace.
fn products(device: usize) -> Result<Vec<[Tensor; 2]>> {
    let values = |sizes: [usize; 2], seed: usize| {
        let count = sizes[0] * sizes[1];
        let x = arange(count, (DType::F32, device))?.mul(0.618_034 * seed as f64)?;
        x.sub(&x.floor()?)?.sub(0.5)?.reshape(sizes)
    };
    let sizes = [[32, 2048, 32], [64, 1024, 32], [32, 512, 64], [128, 256, 130]];
    let all =
        (1..).zip(sizes).map(|(i, [m, k, n])| Ok([values([m, k], i)?, values([k, n], i + 7)?]));
    all.collect()
}

/// Products on four streams have the same bits as on one stream, however the streams overlap.
fn repeat(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let operands = products(device)?;
        let bits = |product: Tensor| -> Result<Vec<u32>> {
            Ok(product.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
        };
        let alone: Vec<Vec<u32>> =
            operands.iter().map(|[a, b]| bits(a.matmul(b)?)).collect::<Result<_>>()?;
        let streams: Vec<Stream> = (0..4).map(|_| Stream::new(device)).collect::<Result<_>>()?;
        let rounds = if world.real { 50 } else { 2 };
        let mut results = Vec::new();
        for round in 0..rounds {
            for (i, [a, b]) in operands.iter().enumerate() {
                let stream = &streams[(i + round) % streams.len()];
                results.push((i, cuda::with_stream(stream, || a.matmul(b))?));
            }
        }
        for (i, result) in results {
            assert!(bits(result)? == alone[i], "product {i}");
        }
    }
    Ok(())
}

/// No order between the streams is needed, so there is no race.
fn share_nothing(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let streams = [Stream::new(device)?, Stream::new(device)?];
        let operands = [ones([N, N], device)?, ones([N, N], device)?];
        cuda::synchronize(device)?;
        let mut results = Vec::new();
        for _ in 0..3 {
            for (stream, a) in streams.iter().zip(&operands) {
                results.push(cuda::with_stream(stream, || a.matmul(a))?);
            }
            cuda::clear_cublas_workspaces();
        }
        let races = cuda::take_races();
        assert!(races.is_empty(), "{races:?}");
        cuda::synchronize(device)?;
        for result in results {
            assert_eq!(result.to_vec::<f32>()?, vec![N as f32; N * N]);
        }
    }
    Ok(())
}

/// Captured products use memory of the graph's pool, whatever becomes of the streams' workspaces.
fn captured(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let _on = cuda::device(device)?;
        let a = full([N, N], 0.5, device)?;
        let mut graph = CudaGraph::new();
        let (main, side) = (Stream::new(device)?, Stream::new(device)?);
        let _main = cuda::stream(&main)?;
        // The streams have workspaces, which the capture leaves alone.
        multiply(&main, &a)?;
        multiply(&side, &a)?;
        let mut results = None;
        let outside = cuda::memory_allocated(device)?;
        graph.capture(|| {
            let first = a.matmul(&a)?;
            // A branch of the capture has a workspace of its own.
            side.wait_stream(&main)?;
            let second = cuda::with_stream(&side, || first.add(&first)?.matmul(&a))?;
            results = Some((first.matmul(&a)?, second));
            Ok(())
        })?;
        let id = graph.pool().expect("captured").id();
        let of_pool = |s: &cuda::SegmentInfo| s.device == device && s.segment_pool_id.1 == id;
        let segments = cuda::memory_snapshot()?;
        let bytes: usize = segments.iter().filter(|s| of_pool(s)).map(|s| s.total_size).sum();
        assert!(bytes >= 2 * workspace()?, "{bytes} bytes in the pool");
        let tensors = cuda::memory_allocated(device)? - outside;
        assert!(tensors < workspace()?, "{tensors} bytes");

        let (first, second) = results.expect("captured");
        let n = N as f32;
        for round in 0..2 {
            let value = 0.5 + round as f32;
            a.fill_(value)?;
            multiply(&side, &a)?;
            cuda::clear_cublas_workspaces();
            let garbage = full([1 << 21], f32::NAN, device)?;
            graph.replay()?;
            assert_eq!(first.to_vec::<f32>()?, vec![n * n * value.powi(3); N * N]);
            assert_eq!(second.to_vec::<f32>()?, vec![2.0 * n * n * value.powi(3); N * N]);
            drop(garbage);
        }
    }
    Ok(())
}

/// The workspace carries no failed index check from one product to the next.
fn failure(_: &World) -> Result<()> {
    let a = ones([N, N], 0)?;
    let bad = picked(&zeros([2, N], 0)?, 7)?.expand([N, N])?;
    let tainted = bad.matmul(&a)?;
    let right = a.matmul(&a)?;
    assert_eq!(right.to_vec::<f32>()?, vec![N as f32; N * N]);
    assert_eq!(failed(tainted.to_vec::<f32>()).index, 7);
    Ok(())
}

/// Runs a product in a runtime with workspaces of this size. Returns the number of bytes
/// that the product allocated.
fn with_size(spec: &str, bytes: usize, policy: SyncPolicy) -> Result<usize> {
    let config = RuntimeConfig {
        cublas_workspace: Some(bytes),
        sync_policy: policy,
        ..RuntimeConfig::default()
    };
    with_runtime(&warpline::open(spec, &config)?, || {
        let a = ones([N, N], Device::cuda(0))?;
        allocates(0, || {
            let product = a.matmul(&a)?;
            assert_eq!(product.to_vec::<f32>()?, vec![N as f32; N * N]);
            Ok(())
        })
    })
}

fn sizes(spec: &str) -> Result<()> {
    for policy in [SyncPolicy::Auto, SyncPolicy::Manual] {
        for bytes in [0, 128 << 10, 8 << 20] {
            assert_eq!(with_size(spec, bytes, policy)?, bytes);
        }
    }
    Ok(())
}

#[test]
fn s37_a_workspace_has_the_configured_size() -> Result<()> {
    sizes("sim:1")
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s37_a_workspace_has_the_configured_size() -> Result<()> {
    sizes(&common::gpu_spec())
}
