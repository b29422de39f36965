//! Parsing of options, and options from the environment.

use std::env::VarError;

use super::parse::VARIABLES;
use super::*;
use crate::rules::MIB;

#[test]
fn every_option_is_read() {
    let config = AllocatorConfig::parse(
        "max_split_size_mb:128, max_non_split_rounding_mb:40, large_segment_size_mb:30,\
         garbage_collection_threshold:0.8, per_process_memory_fraction:0.5, backend:native,\
         release_lock_on_cudamalloc:True, expandable_segments:False,\
         pinned_num_register_threads:1,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    )
    .unwrap();
    assert_eq!(config.max_split_size, Some(128 * MIB));
    assert_eq!(config.max_non_split_rounding, 40 * MIB);
    assert_eq!(config.large_segment_size, 30 * MIB);
    assert_eq!(config.garbage_collection_threshold, Some(0.8));
    assert_eq!(config.memory_fraction, Some(0.5));
    let mut divisions = [8; INTERVALS];
    divisions[..=8].fill(1);
    divisions[9..=10].copy_from_slice(&[2, 4]);
    assert_eq!(config.roundup_power2_divisions, divisions);
    assert_eq!(config.divisions_for(300 * MIB), 1);
    assert_eq!(config.divisions_for(600 * MIB), 2);
    assert_eq!(config.divisions_for(1 << 50), 8);
    assert_eq!(AllocatorConfig::parse("").unwrap(), AllocatorConfig::default());
    let config = AllocatorConfig::parse("headroom_percent:2.5,page_size_mb:32").unwrap();
    assert_eq!((config.headroom_percent, config.page_size), (Some(2.5), 32 * MIB));
    assert_eq!(config.policy, Policy::Default);
}

#[test]
fn a_bad_option_is_named() {
    for (text, key) in [
        ("max_split_sise_mb:128", "max_split_sise_mb"),
        ("max_split_size_mb", "max_split_size_mb"),
        ("max_split_size_mb:19", "`19`"),
        ("max_split_size_mb:-1", "`-1`"),
        ("large_segment_size_mb:100,max_split_size_mb:64", "at least 100"),
        ("max_split_size_mb:64,large_segment_size_mb:100", "at least 100"),
        ("max_non_split_rounding_mb:x", "`x`"),
        ("large_segment_size_mb:3", "`3`"),
        ("garbage_collection_threshold:1.2", "`1.2`"),
        ("garbage_collection_threshold:0", "`0`"),
        ("garbage_collection_threshold:NaN", "`NaN`"),
        ("headroom_percent:-1", "`-1`"),
        ("headroom_percent:101", "`101`"),
        ("headroom_percent:NaN", "`NaN`"),
        ("page_size_mb:3", "`3`"),
        ("page_size_mb:1", "`1`"),
        ("page_size_mb:2048", "`2048`"),
        ("per_process_memory_fraction:1.5", "1.5"),
        ("roundup_power2_divisions:3", "`3`"),
        ("roundup_power2_divisions:[256:3]", "`3`"),
        ("roundup_power2_divisions:[100:1]", "`100`"),
        ("roundup_power2_divisions:[256:1", "bracket"),
        ("roundup_power2_divisions:[256]", "`256`"),
        ("release_lock_on_cudamalloc:maybe", "`maybe`"),
        ("backend:other", "`other`"),
        ("a:1,", "`a`"),
    ] {
        let error = AllocatorConfig::parse(text).unwrap_err().to_string();
        assert!(error.contains(key), "{text}: {error}");
    }
}

#[test]
fn unsupported_options_are_refused() {
    for text in [
        "graph_capture_record_stream_reuse:True",
        "expandable_segments_reserve:0.5",
        "expandable_segments_reserve_by_class:[capture:0.25]",
    ] {
        let error = AllocatorConfig::parse(text).unwrap_err();
        assert!(matches!(error, ConfigError::NotSupported { .. }), "{text}: {error}");
    }
    assert!(AllocatorConfig::parse("graph_capture_record_stream_reuse:False").is_ok());
}

#[test]
fn cuda_malloc_async_rejects_options_of_the_native_backend() {
    let config = AllocatorConfig::parse("backend:cudaMallocAsync,throw_on_cudamalloc_oom:True");
    assert_eq!(config.unwrap().policy, Policy::CudaMallocAsync);
    for option in ["max_split_size_mb:128", "policy:torch", "roundup_power2_divisions:4"] {
        for text in [
            format!("backend:cudaMallocAsync,{option}"),
            format!("{option},backend:cudaMallocAsync"),
        ] {
            let error = AllocatorConfig::parse(&text).unwrap_err();
            assert!(matches!(error, ConfigError::OnlyNative { .. }), "{text}: {error}");
        }
    }
}

#[test]
fn the_last_backend_option_wins() {
    let parse = |text: &str| AllocatorConfig::parse(text).unwrap().policy;
    assert_eq!(parse("backend:cudaMallocAsync,backend:native"), Policy::Default);
    assert_eq!(parse("backend:cudaMallocAsync,backend:native,policy:torch"), Policy::Torch);
    assert_eq!(parse("backend:native,backend:cudaMallocAsync"), Policy::CudaMallocAsync);
}

#[test]
fn the_newest_options_of_pytorch_are_read() {
    let text = "pinned_free_catch_all:True,pinned_use_hip_host_register:True,\
                release_lock_on_hipmalloc:False,throw_on_cudamalloc_oom:True";
    let config = AllocatorConfig::parse(text).unwrap();
    assert_eq!(config.host.use_host_register, Some(true));
    for key in ["pinned_free_catch_all", "release_lock_on_hipmalloc"] {
        let error = AllocatorConfig::parse(&format!("{key}:maybe")).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn the_first_variable_that_is_set_wins() {
    let env = |set: &[(&'static str, &'static str)]| {
        let set = set.to_vec();
        AllocatorConfig::from_env_with(move |name| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_string()).ok_or(VarError::NotPresent)
        })
    };
    let config = env(&[
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:30"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:40"),
    ]);
    assert_eq!(config.unwrap().max_split_size, Some(40 * MIB));
    let config = env(&[
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:40"),
        ("WARPLINE_ALLOC_CONF", "max_split_size_mb:50"),
    ]);
    assert_eq!(config.unwrap().max_split_size, Some(50 * MIB));
    assert!(!env(&[("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")]).unwrap().caching);
    assert!(env(&[("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")]).unwrap().caching);
    assert_eq!(env(&[]).unwrap(), AllocatorConfig::default());
    for name in VARIABLES {
        let error = env(&[(name, "per_process_memory_fraction:2")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("per_process_memory_fraction"), "{text}");
    }
}

#[test]
fn a_variable_that_is_not_unicode_is_an_error_that_names_it() {
    for name in VARIABLES.into_iter().chain(["PYTORCH_NO_CUDA_MEMORY_CACHING"]) {
        let error = AllocatorConfig::from_env_with(|asked| match asked == name {
            true => Err(VarError::NotUnicode("\u{fffd}".into())),
            false => Err(VarError::NotPresent),
        });
        let reason = Box::new(ConfigError::NotUnicode);
        let value = "\u{fffd}".into();
        assert_eq!(error, Err(ConfigError::Variable { variable: name, value, reason }));
    }
}
