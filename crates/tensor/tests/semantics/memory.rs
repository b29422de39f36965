//! Tests of rows S14–S18: memory counters of the caching allocator.

use warpline::{DType, Result, RuntimeConfig, SyncPolicy, cuda, empty, ones, rand};

use crate::boxes::SimBox;
use crate::common::{self, World};

const MIB: usize = 1 << 20;

rows! {
    worlds(1) s15_allocated_and_its_peak gpu_s15_allocated_and_its_peak => allocated;
    worlds(1) s16_cached_memory_counts_as_used gpu_s16_cached_memory_counts_as_used => cached;
    worlds(1) s17_figures_of_the_note gpu_s17_figures_of_the_note => figures;
    worlds(1) s18_empty_cache_leaves_memory_in_use gpu_s18_empty_cache_leaves_memory_in_use => empties;
}

/// The rows also hold under PyTorch's allocator policy.
#[test]
fn s15_to_s18_with_segments() {
    let allocator = cuda::AllocatorConfig::parse("policy:torch").expect("options");
    let config = RuntimeConfig { allocator, ..RuntimeConfig::default() };
    for row in [allocated, cached, figures, empties] {
        common::worlds_with(1, &config, row);
    }
}

/// The simulator lists this process. On a real GPU, NVML lists all processes.
#[test]
fn the_processes_of_a_device_are_this_one_with_its_memory() {
    SimBox::lazy(2).enter(|| {
        let listed = |device: usize| -> Result<usize> {
            let processes = cuda::list_gpu_processes(device)?.expect("known");
            let [process] = processes[..] else { panic!("{processes:?}") };
            assert_eq!(process.pid, std::process::id());
            Ok(process.memory.expect("known"))
        };
        let before = [listed(0)?, listed(1)?];
        let held = empty([100 * MIB], (DType::U8, 1))?;
        assert_eq!([listed(0)?, listed(1)?], [before[0], before[1] + 100 * MIB]);
        drop(held);
        cuda::empty_cache();
        assert_eq!(listed(1)?, before[1]);
        Ok(())
    });
}

fn allocated(world: &World) -> Result<()> {
    for i in 0..world.devices {
        let start = cuda::memory_allocated(i)?;
        assert_eq!(start, 0);
        let a = empty([1000], i)?; // 4000 bytes, rounded to 4096
        assert_eq!(cuda::memory_allocated(i)?, 4096);
        let view = a.narrow(0, 10, 10)?;
        drop(a);
        assert_eq!(cuda::memory_allocated(i)?, 4096, "a view keeps the storage");
        let b = empty([1], i)?;
        drop(view);
        assert_eq!(cuda::memory_allocated(i)?, 512);
        assert_eq!(cuda::max_memory_allocated(i)?, 4608);
        cuda::reset_peak_memory_stats(i)?;
        assert_eq!(cuda::max_memory_allocated(i)?, 512);
        let c = empty([256], i)?;
        cuda::reset_max_memory_allocated(i)?;
        assert_eq!(cuda::max_memory_allocated(i)?, 1536);
        drop((b, c));
        assert_eq!(cuda::memory_allocated(i)?, start);
        // The counters of the other devices did not change.
        for j in i + 1..world.devices {
            assert_eq!(cuda::max_memory_allocated(j)?, 0);
        }
        let stats = cuda::memory_stats(i)?.as_map();
        assert_eq!(stats["allocated_bytes.all.current"], 0);
        assert_eq!(stats["allocation.all.allocated"], 3);
        // The fields of `memory_stats` are PyTorch's nested names.
        let nested = cuda::memory_stats(i)?;
        assert_eq!(
            stats["allocated_bytes.small_pool.peak"],
            nested.allocated_bytes.small_pool.peak
        );
        assert_eq!(stats["num_device_alloc"], nested.num_device_alloc);
        assert_eq!(
            [nested.num_alloc_retries, nested.num_ooms, nested.num_sync_all_streams],
            [0; 3]
        );
        assert!(cuda::memory_summary(i)?.contains("Allocated memory"));
    }
    Ok(())
}

fn cached(world: &World) -> Result<()> {
    for i in 0..world.devices {
        // Create the context before the first measurement, because the context uses memory.
        drop(empty([1], i)?);
        cuda::synchronize(i)?;
        cuda::empty_cache();
        let before = cuda::mem_get_info(i)?;
        let a = empty([8 << 20], i)?; // 32 MiB
        drop(a);
        assert_eq!(cuda::memory_allocated(i)?, 0);
        assert_eq!(cuda::memory_reserved(i)?, 32 * MIB);
        assert_eq!(cuda::memory_cached(i)?, 32 * MIB);
        assert_eq!(cuda::max_memory_cached(i)?, cuda::max_memory_reserved(i)?);
        if !world.real {
            // Check free memory only on the simulator, because other processes may use a real GPU.
            let after = cuda::mem_get_info(i)?;
            assert_eq!((before.free - after.free, before.total), (32 * MIB, after.total));
        }
        cuda::empty_cache();
        assert_eq!(cuda::memory_reserved(i)?, 0);
        assert_eq!(cuda::max_memory_reserved(i)?, 32 * MIB);
        cuda::reset_max_memory_cached(i)?;
        assert_eq!(cuda::max_memory_reserved(i)?, 0);
    }
    Ok(())
}

fn figures(world: &World) -> Result<()> {
    let last = world.devices - 1;
    let t = rand([300, 300, 300], last)?;
    assert_eq!(cuda::max_memory_allocated(last)?, 108_000_256);
    assert_eq!(cuda::memory_reserved(last)?, 109_051_904);
    drop(t);
    assert_eq!(cuda::memory_allocated(last)?, 0);
    assert_eq!(cuda::memory_reserved(last)?, 109_051_904);
    Ok(())
}

fn empties(world: &World) -> Result<()> {
    for i in 0..world.devices {
        let kept = ones([1000], i)?;
        // 2 MiB is a segment, 4 MiB a page.
        let small = cuda::memory_reserved(i)?;
        assert!([2 * MIB, 4 * MIB].contains(&small), "{small}");
        let gone = ones([8 << 20], i)?;
        drop(gone);
        assert_eq!(cuda::memory_reserved(i)?, small + 32 * MIB);
        cuda::empty_cache();
        assert_eq!(cuda::memory_reserved(i)?, small);
        assert_eq!(kept.to_vec::<f32>()?, vec![1.0; 1000]);
    }
    Ok(())
}

/// Tests that memory of a tensor that a second stream uses is not reused before this stream has
/// finished.
fn second_stream(record: bool) -> impl Fn(&World) -> Result<()> {
    move |_| {
        let s = cuda::Stream::new(())?;
        let expected: f32 = 4096.0;
        for _ in 0..4 {
            let a = ones([4096], "cuda")?;
            s.wait_stream(&cuda::current_stream(())?)?;
            let sum = cuda::with_stream(&s, || a.sum(()))?;
            if record {
                a.record_stream(&s)?;
            }
            drop(a);
            let b = ones([4096], "cuda")?; // other memory, or ordered after the use on `s`
            b.fill_(-7.0)?;
            s.synchronize()?;
            assert_eq!(sum.item::<f32>()?, expected);
        }
        Ok(())
    }
}

#[test]
fn s14_record_stream_defers_reuse() {
    common::schedules(1, SyncPolicy::Manual, second_stream(true));
}

#[test]
fn s14_reuse_is_deferred_by_default() {
    common::schedules(1, SyncPolicy::Auto, second_stream(false));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s14_record_stream_defers_reuse() {
    common::gpu(1, SyncPolicy::Manual, second_stream(true));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s14_reuse_is_deferred_by_default() {
    common::gpu(1, SyncPolicy::Auto, second_stream(false));
}
