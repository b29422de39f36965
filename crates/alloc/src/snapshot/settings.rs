//! Options under the names of PyTorch's snapshots.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::AllocatorConfig;

pub(super) struct SettingsEntry<'a>(pub(super) &'a AllocatorConfig);

impl Serialize for SettingsEntry<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let config = self.0;
        let bytes = |size: Option<usize>| size.map_or(-1, |size| size as i64);
        let divisions: BTreeMap<String, usize> = config
            .roundup_power2_divisions
            .iter()
            .enumerate()
            .map(|(i, divisions)| ((1u64 << i).to_string(), *divisions))
            .collect();
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("max_split_size", &bytes(config.max_split_size))?;
        map.serialize_entry("max_non_split_rounding", &config.max_non_split_rounding)?;
        map.serialize_entry("large_segment_size", &config.large_segment_size)?;
        let threshold = config.garbage_collection_threshold.unwrap_or(0.0);
        map.serialize_entry("garbage_collection_threshold", &threshold)?;
        let fraction = config.memory_fraction.unwrap_or(1.0);
        map.serialize_entry("per_process_memory_fraction", &fraction)?;
        map.serialize_entry("caching", &config.caching)?;
        map.serialize_entry("expandable_segments", &config.expandable())?;
        map.serialize_entry("policy", config.policy.name())?;
        map.serialize_entry("roundup_power2_divisions", &divisions)?;
        map.end()
    }
}
