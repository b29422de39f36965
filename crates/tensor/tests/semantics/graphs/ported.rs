//! PyTorch's tests of graphs, under PyTorch's names.

use warpline::cuda::{self, CudaGraph, MemoryStats};
use warpline::{Result, Tensor, full, ones, zeros};

use super::values;
use crate::common::World;

const SMALL_BUFFER: i64 = 2 << 20;

rows! {
    torch(1) graphs_two_successive gpu_graphs_two_successive => two_successive;
    torch(1) graphs_three_successive gpu_graphs_three_successive => three_successive;
    torch(1) graphs_concurrent_replay gpu_graphs_concurrent_replay => concurrent_replay;
    torch(1) graphs_memory_stats_and_use_result_after_destroy_graph
        gpu_graphs_memory_stats_and_use_result_after_destroy_graph => memory_stats;
    torch(1) graphs_capture_reclaim_2_streams gpu_graphs_capture_reclaim_2_streams => reclaim_2;
    torch(1) graphs_capture_reclaim_4_streams gpu_graphs_capture_reclaim_4_streams => reclaim_4;
    torch(1) graphs_record_stream gpu_graphs_record_stream => record_stream;
    torch(1) graphs_pinned_blocks_are_not_recycled gpu_graphs_pinned_blocks_are_not_recycled => pinned;
}

fn sum(t: &Tensor) -> Result<f64> {
    t.sum(())?.item()
}

fn stats() -> Result<MemoryStats> {
    cuda::memory_stats(())
}

fn func_with_temps(t: &Tensor, val: f64) -> Result<Tensor> {
    let x = (t.copy()? + val)?;
    let y = (t.copy()? + val)?;
    x + y
}

fn two_successive(_: &World) -> Result<()> {
    const SIZE: usize = 1000;
    let s = cuda::Stream::new(())?;
    let mut reserved_no_sharing = 0;
    for share in ["no", "pool()", "graph_pool_handle()"] {
        cuda::empty_cache();
        let (mut g0, mut g1) = (CudaGraph::new(), CudaGraph::new());
        let a = ones([SIZE], 0)?;
        s.wait_stream(&cuda::current_stream(())?)?;
        let first = cuda::graph_pool_handle(())?;
        let b = cuda::with_stream(&s, || {
            let b = g0.capture_with(&first, || {
                let mut b = a.copy()?;
                for _ in 0..5 {
                    b = func_with_temps(&b, 1.0)?;
                }
                Ok(b)
            })?;
            let second = match share {
                "no" => cuda::graph_pool_handle(())?,
                "pool()" => g0.pool()?,
                _ => first.clone(),
            };
            drop(first);
            g1.capture_with(&second, || {
                let mut b = b;
                for _ in 0..5 {
                    b = func_with_temps(&b, 1.0)?;
                }
                Ok(b)
            })
        })?;
        cuda::current_stream(())?.wait_stream(&s)?;
        // Eager ops run between the replays.
        let mut c = a.copy()?;
        let mut two_more = || -> Result<()> {
            for _ in 0..2 {
                c = func_with_temps(&c, 3.0)?;
            }
            Ok(())
        };
        two_more()?;
        g0.replay()?;
        two_more()?;
        g1.replay()?;
        two_more()?;
        assert_eq!(sum(&b)?, (SIZE * 3070) as f64);
        assert_eq!(sum(&c)?, (SIZE * 442) as f64);
        let reserved = stats()?.reserved_bytes.all.current;
        if share == "no" {
            reserved_no_sharing = reserved;
        } else {
            assert_eq!(reserved_no_sharing - reserved, SMALL_BUFFER, "shared through {share}");
        }
        drop((a, b, c, g0, g1));
        cuda::synchronize(())?;
    }
    Ok(())
}

fn three_successive(_: &World) -> Result<()> {
    const SIZE: usize = 1000;
    let s = cuda::Stream::new(())?;
    for share in [false, true] {
        let a = ones([SIZE], 0)?;
        let (mut g0, mut g1, mut g2) = (CudaGraph::new(), CudaGraph::new(), CudaGraph::new());
        let (e, f) = cuda::with_stream(&s, || {
            let pool = cuda::graph_pool_handle(())?;
            let another = || if share { Ok(pool.clone()) } else { cuda::graph_pool_handle(()) };
            let (c, d) = g0.capture_with(&pool, || {
                let b = a.copy()?;
                Ok(((&b + 1.0)?, (&b + 2.0)?))
            })?;
            let e = g1.capture_with(&another()?, || {
                let e = (&c + 3.0)?;
                drop(c);
                Ok(e)
            })?;
            let f = g2.capture_with(&another()?, || &d + 4.0)?;
            Ok::<_, warpline::Error>((e, f))
        })?;
        // Replays in the order of the captures give the right results.
        for graph in [&g0, &g1, &g2] {
            graph.replay()?;
        }
        assert_eq!((sum(&e)?, sum(&f)?), (5000.0, 7000.0));
        // In a different order, the results are right only without a shared pool: with a shared
        // pool, `f` reuses the memory of `c`.
        for graph in [&g0, &g2, &g1] {
            graph.replay()?;
        }
        assert_eq!(sum(&e)?, if share { 10_000.0 } else { 5000.0 });
        assert_eq!(sum(&f)?, 7000.0);
    }
    Ok(())
}

/// With separate pools, both results are right. With a shared pool, PyTorch's results are garbage;
/// in Warpline, the replays wait for each other.
fn concurrent_replay(_: &World) -> Result<()> {
    const SIZE: usize = 1 << 15;
    let s = cuda::Stream::new(())?;
    for share in [false, true] {
        let a = ones([SIZE], 0)?;
        let (mut g0, mut g1) = (CudaGraph::new(), CudaGraph::new());
        let (b, c) = cuda::with_stream(&s, || {
            let busy = |val: f64| {
                let mut b = a.copy()?;
                for _ in 0..5 {
                    b = (&b + val)?;
                }
                Ok(b)
            };
            let b = g0.capture(|| busy(1.0))?;
            let pool = if share { g0.pool()? } else { cuda::graph_pool_handle(())? };
            Ok::<_, warpline::Error>((b, g1.capture_with(&pool, || busy(2.0))?))
        })?;
        let streams = [cuda::Stream::new(())?, cuda::Stream::new(())?];
        for _ in 0..3 {
            cuda::with_stream(&streams[0], || g0.replay())?;
            cuda::with_stream(&streams[1], || g1.replay())?;
        }
        assert_eq!(values(&b)?, vec![6.0; SIZE], "shared: {share}");
        assert_eq!(values(&c)?, vec![11.0; SIZE], "shared: {share}");
    }
    Ok(())
}

/// A case: the number of elements, the segments of the graph and their bytes, and the bytes that
/// remain when only the result is alive.
struct MemoryCase {
    numel: usize,
    segments: i64,
    bytes: i64,
    bytes_after: i64,
    small: bool,
}

fn memory_stats(_: &World) -> Result<()> {
    const SMALL_SIZE: usize = 1 << 20;
    const LARGE_BUFFER: i64 = 20 << 20;
    const MIN_LARGE: usize = 10 << 20;
    let rounded = (MIN_LARGE + 512).next_multiple_of(2 << 20) as i64;
    let case = |bytes: usize, segments, total, after, small| {
        let numel = bytes / 4;
        MemoryCase { numel, segments, bytes: total, bytes_after: after, small }
    };
    let cases = [
        case(512, 1, SMALL_BUFFER, SMALL_BUFFER, true),
        case(SMALL_SIZE, 2, 2 * SMALL_BUFFER, SMALL_BUFFER, true),
        case(SMALL_SIZE + 512, 1, LARGE_BUFFER, LARGE_BUFFER, false),
        case(MIN_LARGE - 512, 2, 2 * LARGE_BUFFER, LARGE_BUFFER, false),
        case(MIN_LARGE + 512, 3, 3 * rounded, rounded, false),
    ];
    let s = cuda::Stream::new(())?;
    for MemoryCase { numel, segments, bytes, bytes_after, small } in cases {
        cuda::empty_cache();
        let of = |stats: &MemoryStats| {
            let all = [stats.segment, stats.reserved_bytes, stats.active, stats.active_bytes];
            all.map(|s| if small { s.small_pool.current } else { s.large_pool.current })
        };
        let since = |before: [i64; 4]| -> Result<[i64; 4]> {
            let now = of(&stats()?);
            Ok(std::array::from_fn(|i| now[i] - before[i]))
        };
        let mut g = CudaGraph::new();
        s.wait_stream(&cuda::current_stream(())?)?;
        let (a, before, b) = cuda::with_stream(&s, || {
            // Allocate `a` on the stream of the capture, like the random state.
            let a = ones([numel], 0)?;
            let before = of(&stats()?);
            let b = g.capture(|| {
                let mut b = a.copy()?;
                for _ in 0..5 {
                    b = (b.copy()? + 1.0)?;
                }
                Ok(b)
            })?;
            Ok::<_, warpline::Error>((a, before, b))
        })?;
        cuda::current_stream(())?.wait_stream(&s)?;
        let size = numel as i64 * 4;
        // The result is one block. The small pool also holds one block for the random state;
        // PyTorch has two.
        let state = i64::from(small);
        let expected = [segments, bytes, 1 + state, size + 512 * state];
        let mut after_capture = since(before)?;
        for empties in [true, false] {
            assert_eq!(after_capture, expected, "{numel} elements");
            g.replay()?;
            assert_eq!(sum(&b)?, 6.0 * numel as f64);
            if empties {
                cuda::empty_cache();
                after_capture = since(before)?;
            }
        }
        drop(g);
        cuda::empty_cache();
        assert_eq!(sum(&b)?, 6.0 * numel as f64);
        cuda::empty_cache();
        assert_eq!(
            since(before)?,
            [1, bytes_after, 1, size],
            "{numel} elements, without the graph"
        );
        drop((a, b));
        cuda::synchronize(())?;
        cuda::empty_cache();
    }
    Ok(())
}

fn record_stream(_: &World) -> Result<()> {
    cuda::empty_cache();
    let (potential_problem, a) = (zeros([3], 0)?, zeros([3], 0)?);
    let [s0, s1, s2] = [(); 3].map(|()| cuda::Stream::new(()).expect("a stream"));
    let mut g = CudaGraph::new();
    cuda::synchronize(())?;
    cuda::with_stream(&s0, || {
        potential_problem.record_stream(&s0)?;
        potential_problem.fill_(1.0).map(drop)
    })?;
    drop(potential_problem);
    cuda::with_stream(&s1, || {
        g.capture(|| {
            // The allocation must not query events of earlier frees during the capture.
            let b = a.copy()?;
            s2.wait_stream(&s1)?;
            cuda::with_stream(&s2, || b.fill_(1.0).map(drop))?;
            b.record_stream(&s2)?;
            drop(b);
            s1.wait_stream(&s2)?;
            Ok(())
        })
    })?;
    g.replay()?;
    cuda::synchronize(())?;
    let c = zeros([3], 0)?;
    assert_eq!(values(&c)?, [0.0; 3]);
    Ok(())
}

fn pinned(_: &World) -> Result<()> {
    let data = ones([100], ())?.pin_memory()?;
    let address = data.data_ptr();
    let device = zeros([100], 0)?;
    let mut g = CudaGraph::new();
    let s = cuda::Stream::new(())?;
    // Both page-locked tensors are used before the capture, and dropped during the capture.
    cuda::with_stream(&s, || device.copy_(&data, true).map(drop))?;
    let used = zeros([100], ())?.pin_memory()?;
    cuda::with_stream(&s, || device.copy_(&used, true).map(drop))?;
    cuda::with_stream(&s, || {
        g.capture(|| {
            device.copy_(&data, true)?;
            drop((data, used));
            for _ in 0..3 {
                let other = zeros([100], ())?.pin_memory()?;
                assert_ne!(other.data_ptr(), address, "the graph copies from it");
            }
            Ok(())
        })
    })?;
    let other = zeros([100], ())?.pin_memory()?;
    assert_ne!(other.data_ptr(), address);
    g.replay()?;
    assert_eq!(values(&device)?, vec![1.0; 100]);
    Ok(())
}

/// A capture reuses memory that `others` further streams have used during the capture only after it
/// has waited for all of them.
fn reclaim(others: usize) -> Result<()> {
    let streams: Vec<_> = (0..=others).map(|_| cuda::Stream::new(())).collect::<Result<_>>()?;
    let (main, side) = streams.split_first().expect("there is one");
    let mut g = CudaGraph::new();
    let (results, first) = cuda::with_stream(main, || {
        g.capture(|| {
            let data = ones([8], 0)?;
            let address = data.data_ptr();
            let mut results = Vec::new();
            for stream in side {
                stream.wait_stream(main)?;
                results.push(cuda::with_stream(stream, || {
                    data.record_stream(stream)?;
                    &data + 1.0
                })?);
            }
            drop(data);
            let mut held = Vec::new();
            for stream in side {
                held.push(ones([8], 0)?);
                assert_ne!(held[held.len() - 1].data_ptr(), address, "{stream} may still use it");
                main.wait_stream(stream)?;
            }
            let again = full([8], 9.0, 0)?;
            assert_eq!(again.data_ptr(), address, "all were waited for");
            Ok((results, again))
        })
    })?;
    for _ in 0..3 {
        g.replay()?;
        for result in &results {
            assert_eq!(values(result)?, [2.0; 8]);
        }
        assert_eq!(values(&first)?, [9.0; 8]);
    }
    Ok(())
}

fn reclaim_2(_: &World) -> Result<()> {
    reclaim(1)
}

fn reclaim_4(_: &World) -> Result<()> {
    reclaim(3)
}
