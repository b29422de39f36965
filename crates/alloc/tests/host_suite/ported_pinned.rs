//! PyTorch's tests of page-locked memory, one test for each, under their names.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use warpline_alloc::{AllocatorConfig, CudaHostBackend, CudaHostCache, HostCache, PinnedBlock};
use warpline_cuda_sys_safe::sim::{CallKind, SimConfig};
use warpline_cuda_sys_safe::{Driver, PointerKind};

use crate::common::{Fake, MIB};

#[test]
fn pinned_memory_with_cudaregister() {
    for threads in [1, 8] {
        let text =
            format!("pinned_use_cuda_host_register:True,pinned_num_register_threads:{threads}");
        let config = AllocatorConfig::parse(&text).unwrap().host;
        let sim = SimConfig::new(1).build();
        let driver: Arc<dyn Driver> = sim.clone();
        let cache = CudaHostCache::new(CudaHostBackend::new(driver, 0), config);
        // Allocate from several threads at once, as in
        // `pinned_memory_with_cudaregister_multithread`.
        std::thread::scope(|scope| {
            for i in 1..=4 {
                let (cache, sim) = (&cache, &sim);
                scope.spawn(move || {
                    let block = cache.alloc(i * 3 * MIB).unwrap();
                    assert!(block.memory().is_pinned());
                    let start = block.as_ptr().addr().get();
                    for at in [start, start + i * 3 * MIB - 1] {
                        assert_eq!(sim.pointer_kind(at as u64).unwrap(), PointerKind::Pinned);
                    }
                });
            }
        });
        let made = cache.stats().num_host_alloc;
        assert_eq!(sim.usage().count(CallKind::HostRegister), made);
        assert_eq!(sim.usage().count(CallKind::HostAlloc), 0);
        drop(cache);
        assert!(sim.usage().all_released(), "all are unregistered");
    }
}

/// The option has no effect: freed blocks are reused without background threads.
#[test]
fn pinned_memory_use_background_threads() {
    let fake = Fake::new(1 << 40);
    let config = AllocatorConfig::parse("pinned_use_background_threads:True").unwrap().host;
    let cache = HostCache::new(fake.clone(), config);
    let address = |block: &PinnedBlock<Fake>| block.memory().address + block.offset() as u64;
    let block = cache.alloc(5 * MIB).unwrap();
    let first = address(&block);
    block.record_use(&1);
    fake.launch(1);
    drop(block);
    let other = cache.alloc(5 * MIB).unwrap();
    assert_ne!(address(&other), first, "a copy still uses it");
    fake.complete(1);
    assert_eq!(
        address(&cache.alloc(5 * MIB).unwrap()),
        first,
        "the freed block was not reused at once"
    );
    assert_eq!(fake.world().syncs, 0);
}
