//! Tests of the history of device memory and of the statistics of page-locked memory, with tensors.

use warpline::cuda::{TraceAction, TraceConfig, memory};
use warpline::{ErrorKind, Result, ResultExt, cuda, ones};

use crate::common::{self, World};

rows! {
    worlds(1) memory_history_covers_all_devices gpu_memory_history_covers_all_devices => history;
    worlds(1) host_memory_stats_count gpu_host_memory_stats_count => host_stats;
}

fn history(world: &World) -> Result<()> {
    memory::record_memory_history(TraceConfig::default())?;
    memory::set_memory_metadata("step 1")?;
    let tensors =
        (0..world.devices).map(|i| ones([1000 * (i + 1)], i)).collect::<Result<Vec<_>>>()?;
    memory::annotate("made")?;
    let segments = cuda::memory_snapshot()?;
    let snapshot = memory::snapshot()?;
    assert_eq!(snapshot.device_traces.len(), world.devices);
    for (i, trace) in snapshot.device_traces.iter().enumerate() {
        let allocs: Vec<_> = trace.iter().filter(|e| e.action == TraceAction::Alloc).collect();
        let [alloc] = &allocs[..] else { panic!("{allocs:?}") };
        assert_eq!((alloc.address, alloc.size), (tensors[i].data_ptr(), 4000 * (i + 1)));
        assert_eq!(&*alloc.user_metadata, "step 1");
        assert_eq!(
            alloc.site.map(|site| site.file()),
            Some(file!()),
            "the site is a line of this program"
        );
        assert!(trace.iter().any(|e| e.action == TraceAction::Annotate));
        let mut blocks = segments.iter().filter(|s| s.device == i).flat_map(|s| &s.blocks);
        assert!(blocks.any(|block| block.address == alloc.address));
    }
    assert_eq!(snapshot.segments.len(), segments.len());
    assert_eq!(snapshot.external_annotations.len(), world.devices);
    memory::record_memory_history(None)?;
    drop(tensors);
    let after = memory::snapshot()?;
    let total = |s: &cuda::Snapshot| s.device_traces.iter().map(Vec::len).sum::<usize>();
    assert_eq!(total(&after), total(&snapshot), "nothing is recorded any more");
    Ok(())
}

/// The file starts with the pickle protocol's number and ends with the stop opcode.
#[test]
fn a_snapshot_is_dumped_as_a_pickle() {
    common::worlds(1, |world| {
        let _kept = ones([1000], world.devices - 1)?;
        let name = format!("warpline-{}-{}.pickle", std::process::id(), world.devices);
        let path = std::env::temp_dir().join(name);
        memory::dump_snapshot(&path)?;
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::remove_file(&path).expect("the file is ours");
        assert_eq!((&bytes[..2], bytes.last()), (&[0x80, 2][..], Some(&b'.')));
        let missing = path.join("in/no/folder");
        let error = memory::dump_snapshot(&missing).expect_err("no folder");
        assert!(error.to_string().contains("in/no/folder"), "{error}");
        Ok(())
    });
}

fn host_stats(_: &World) -> Result<()> {
    cuda::reset_accumulated_host_memory_stats()?;
    let before = cuda::host_memory_stats()?;
    let pinned = ones([1000], ())?.pin_memory()?;
    let during = cuda::host_memory_stats()?;
    assert_eq!(during.active_requests.current - before.active_requests.current, 1);
    assert_eq!(during.active_bytes.current - before.active_bytes.current, 4096);
    assert_eq!(during.active_requests.allocated, 1);
    drop(pinned);
    let after = cuda::host_memory_stats()?;
    assert_eq!(after.active_bytes.current, before.active_bytes.current);
    assert_eq!(after.active_bytes.peak, during.active_bytes.peak);
    cuda::reset_peak_host_memory_stats()?;
    cuda::reset_accumulated_host_memory_stats()?;
    let reset = cuda::host_memory_stats()?;
    assert_eq!(reset.active_bytes.peak, before.active_bytes.current);
    assert_eq!(reset.active_requests.allocated, 0);
    assert!(reset.as_map().contains_key("host_alloc_time.avg"));
    Ok(())
}

#[test]
fn without_cuda_there_is_no_history() {
    common::cpu(|_| {
        let errors = [
            cuda::memory_snapshot().map(drop),
            memory::snapshot().map(drop),
            memory::record_memory_history(None),
            memory::annotate(""),
            memory::set_memory_metadata(""),
            cuda::host_memory_stats().map(drop),
            cuda::reset_peak_host_memory_stats(),
            cuda::reset_accumulated_host_memory_stats(),
        ];
        for result in errors {
            assert!(matches!(result.kind(), Some(ErrorKind::CudaUnavailable { .. })), "{result:?}");
        }
        Ok(())
    });
}
