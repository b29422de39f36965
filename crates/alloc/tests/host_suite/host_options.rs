//! PyTorch's options for page-locked memory.

use warpline_alloc::{AllocatorConfig, ConfigError, HostCache, HostConfig};

use crate::common::{Fake, MIB};

fn host(text: &str) -> HostConfig {
    AllocatorConfig::parse(text).unwrap().host
}

#[test]
fn every_option_is_read() {
    let config = host(
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,\
         pinned_use_background_threads:True,pinned_reserve_segment_size_mb:64,\
         pinned_max_round_threshold_mb:128,pinned_max_cached_size_mb:256",
    );
    assert_eq!((config.use_host_register, config.register_threads), (Some(true), Some(8)));
    assert!(config.use_background_threads);
    assert_eq!(config.reserve_segment_size, 64 * MIB);
    assert_eq!(config.max_round_threshold, Some(128 * MIB));
    assert_eq!(config.max_cached_size, Some(256 * MIB));
    assert_eq!(host("pinned_use_cuda_host_register:False").use_host_register, Some(false));
    assert_eq!(host(""), HostConfig::default());
}

#[test]
fn an_invalid_option_is_named_in_the_error() {
    for (text, key, value) in [
        ("pinned_use_cuda_host_register:1", "pinned_use_cuda_host_register", "1"),
        ("pinned_use_background_threads:yes", "pinned_use_background_threads", "yes"),
        ("pinned_num_register_threads:3", "pinned_num_register_threads", "3"),
        ("pinned_num_register_threads:0", "pinned_num_register_threads", "0"),
        ("pinned_num_register_threads:256", "pinned_num_register_threads", "256"),
        ("pinned_reserve_segment_size_mb:-1", "pinned_reserve_segment_size_mb", "-1"),
        ("pinned_max_round_threshold_mb:0", "pinned_max_round_threshold_mb", "0"),
        ("pinned_max_cached_size_mb:1.5", "pinned_max_cached_size_mb", "1.5"),
    ] {
        let error = AllocatorConfig::parse(text).unwrap_err();
        let ConfigError::InvalidValue { key: k, value: v, .. } = &error else {
            panic!("{text}: {error}")
        };
        assert_eq!((k.as_str(), v.as_str()), (key, value));
    }
    let error = AllocatorConfig::parse("pinned_sise_mb:1").unwrap_err();
    assert_eq!(error, ConfigError::UnknownOption { key: "pinned_sise_mb".into() });
    let error = AllocatorConfig::parse("pinned_max_cached_size_mb").unwrap_err();
    assert_eq!(error, ConfigError::MissingValue { key: "pinned_max_cached_size_mb".into() });
}

#[test]
fn the_cache_keeps_at_most_the_configured_size() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), host("pinned_max_cached_size_mb:100"));
    let blocks = [60, 50, 40].map(|mib| cache.alloc(mib * MIB).unwrap());
    let [a, b, c] = blocks;
    drop(a);
    assert_eq!(fake.world().used(), 150 * MIB);
    drop(b);
    assert_eq!(
        fake.world().used(),
        90 * MIB,
        "the block of 60 MiB was not released, although 110 MiB exceed the limit"
    );
    drop(c);
    assert_eq!(fake.world().used(), 90 * MIB);
    // A block larger than the limit is released at once, as in PyTorch.
    drop(cache.alloc(200 * MIB).unwrap());
    assert!(fake.world().live.values().all(|&bytes| bytes < 200 * MIB));
    let stats = cache.stats();
    assert_eq!(stats.num_host_alloc - stats.num_host_free, stats.allocations.current as u64);

    let none = HostCache::new(fake.clone(), host("pinned_max_cached_size_mb:0"));
    cache.empty_cache();
    let small = none.alloc(100).unwrap();
    drop(none.alloc(200).unwrap());
    assert_eq!(fake.world().used(), 2 * MIB);
    drop(small);
    assert_eq!(fake.world().used(), 0);
}

#[test]
fn a_cap_waits_for_streams_too() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), host("pinned_max_cached_size_mb:0"));
    let block = cache.alloc(20 * MIB).unwrap();
    block.record_use(&1);
    fake.launch(1);
    drop(block);
    assert_eq!(fake.world().used(), 20 * MIB);
    fake.complete(1);
    drop(cache.alloc(1).unwrap());
    assert_eq!(fake.world().used(), 0);
}

#[test]
fn a_reserve_serves_requests_that_fit_and_stays() {
    let fake = Fake::new(1 << 40);
    let config = host("pinned_reserve_segment_size_mb:64,pinned_max_cached_size_mb:0");
    let cache = HostCache::new(fake.clone(), config);
    let small = cache.alloc(100).unwrap();
    let large = cache.alloc(40 * MIB).unwrap();
    assert_eq!(fake.world().asked, [64 * MIB]);
    assert_eq!((small.offset(), large.offset()), (0, 512));
    let elsewhere = cache.alloc(30 * MIB).unwrap();
    assert_eq!(fake.world().asked, [64 * MIB, 30 * MIB]);
    drop((small, large, elsewhere));
    cache.empty_cache();
    assert_eq!(fake.world().used(), 64 * MIB);
    assert_eq!(cache.alloc(64 * MIB).unwrap().offset(), 0);
    assert_eq!(fake.world().asked.len(), 2);
    drop(cache);
    assert_eq!(fake.world().used(), 0);
}

/// If the reserve segment does not fit, requests get ordinary segments.
#[test]
fn a_reserve_segment_that_does_not_fit_is_skipped() {
    let fake = Fake::new(32 * MIB);
    let cache = HostCache::new(fake.clone(), host("pinned_reserve_segment_size_mb:64"));
    let _block = cache.alloc(20 * MIB).unwrap();
    assert_eq!(fake.world().used(), 20 * MIB);
}

#[test]
fn the_number_of_registration_threads_is_set_or_depends_on_the_size() {
    let auto = HostConfig::default();
    assert_eq!(auto.threads_for(4096, 64), 1);
    assert_eq!(auto.threads_for(64 * MIB, 64), 4);
    assert_eq!(auto.threads_for(1 << 30, 8), 8);
    assert_eq!(auto.threads_for(1 << 40, 256), 16);
    assert_eq!(auto.threads_for(1 << 30, 0), 1);
    assert_eq!(host("pinned_num_register_threads:32").threads_for(4096, 2), 32);
    assert!(!auto.registers(MIB) && auto.registers(1 << 30));
    assert!(host("pinned_use_cuda_host_register:True").registers(1));
    assert!(!host("pinned_use_cuda_host_register:False").registers(1 << 30));
}
