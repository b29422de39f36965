//! Details of an out-of-memory error, and hints.

use std::fmt;

use crate::summary::size_text;

/// Details of a request that failed because no memory was left. Sizes are in bytes.
///
/// `Display` follows PyTorch's message and ends with the hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Name of the device.
    pub device: String,
    /// Requested size.
    pub requested: usize,
    /// Size of the segment that PyTorch's rules give the request; the block's size if caching is
    /// off.
    pub segment: usize,
    /// Free memory of the device, if known.
    pub free: Option<usize>,
    /// Total memory of the device, if known.
    pub total: Option<usize>,
    /// Memory of the device in use by this process, if known. If not, it is at least `reserved`.
    pub process: Option<usize>,
    /// Memory that may be reserved under the memory fraction, if one is set.
    pub limit: Option<usize>,
    /// Size of all live blocks.
    pub allocated: usize,
    /// Memory that the allocator has reserved from the backend.
    pub reserved: usize,
    /// Part of `reserved` in private pools.
    pub private_pools: usize,
    /// Size of the largest free block, if known.
    pub largest_free: Option<usize>,
    /// Whether free pages can be moved to other addresses: under the default policy and with
    /// `expandable_segments`.
    pub remaps: bool,
}

impl OutOfMemory {
    /// Returns the reserved memory that is not allocated: fragmentation.
    #[must_use]
    pub fn unallocated(&self) -> usize {
        self.reserved.saturating_sub(self.allocated)
    }

    /// Returns the device memory that is used outside of this allocator, if known: by other
    /// processes, by the driver, and by this process in other ways.
    #[must_use]
    pub fn others(&self) -> Option<usize> {
        let used = self.total?.saturating_sub(self.free?);
        Some(used.saturating_sub(self.reserved))
    }

    /// Returns the device memory that other processes use, including the driver's memory if this
    /// process's memory is not known.
    fn other_processes(&self) -> Option<usize> {
        let by_other_ways = self.process.map_or(0, |process| process.saturating_sub(self.reserved));
        Some(self.others()?.saturating_sub(by_other_ways))
    }

    /// Returns suggestions, the most likely to help first. Each is a sentence.
    #[must_use]
    pub fn hints(&self) -> Vec<&'static str> {
        let mut hints = Vec::new();
        let over_limit =
            self.limit.is_some_and(|limit| limit < self.reserved.saturating_add(self.segment));
        if self.total.is_some_and(|total| total < self.segment) {
            // No other hint can help.
            return vec!["The request is larger than all of the memory: split it."];
        }
        if over_limit {
            hints.push("The memory fraction is used up: raise it with set_memory_fraction.");
        }
        let idle = self.unallocated();
        if !self.remaps && (idle >= self.requested || idle > self.reserved / 4) {
            hints.push(
                "Much is reserved but unallocated, in pieces that are too small: the default \
                 policy and expandable_segments:True in WARPLINE_ALLOC_CONF combine pieces.",
            );
        }
        let missing = self.free.map(|free| self.segment.saturating_sub(free));
        let would_do =
            |bytes: usize| missing.is_some_and(|missing| missing > 0 && bytes >= missing);
        if would_do(self.private_pools) {
            hints.push(
                "Private pools hold enough memory for the request: drop unused graphs and pools.",
            );
        }
        if !over_limit && self.other_processes().is_some_and(would_do) {
            hints.push(
                "Other processes hold enough memory for the request: end them, or allocate on \
                 another device.",
            );
        } else if !over_limit && self.others().is_some_and(would_do) {
            hints.push("Libraries or other allocators, also in this process, hold enough memory for the request.");
        }
        if hints.is_empty() {
            hints.push("Live blocks take up the memory: drop some, or take smaller batches.");
        }
        hints
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, .. } = self;
        let size = size_text;
        write!(f, "{device} out of memory. Tried to allocate {}.", size(self.requested))?;
        if let (Some(free), Some(total)) = (self.free, self.total) {
            let (free, total) = (size(free), size(total));
            write!(f, " {device} has a total capacity of {total} of which {free} is free.")?;
        }
        match (self.process, self.other_processes()) {
            (Some(process), others) => {
                write!(f, " Including other memory, this process has {} in use", size(process))?;
                if let Some(others) = others {
                    write!(f, " and other processes {}", size(others))?;
                }
                f.write_str(".")?;
            }
            (None, Some(others)) => write!(
                f,
                " This process has at least {} in use, others at most {}.",
                size(self.reserved),
                size(others)
            )?,
            (None, None) => {}
        }
        if let Some(limit) = self.limit {
            write!(f, " {} allowed by the memory fraction.", size(limit))?;
        }
        let allocated = size(self.allocated);
        write!(f, " Of the reserved {}, {allocated} is allocated", size(self.reserved))?;
        if self.private_pools > 0 {
            write!(f, " (private pools hold {})", size(self.private_pools))?;
        }
        write!(f, ", and {} is reserved but unallocated", size(self.unallocated()))?;
        if let Some(largest) = self.largest_free {
            write!(f, ", its largest piece {}", size(largest))?;
        }
        write!(f, ". {}", self.hints().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A device with 100 MiB: 60 MiB in live blocks of this allocator, 10 MiB used by others, and
    /// 30 MiB free.
    fn facts() -> OutOfMemory {
        OutOfMemory {
            device: "cuda:0".into(),
            requested: 40 * MIB,
            segment: 40 * MIB,
            free: Some(30 * MIB),
            total: Some(100 * MIB),
            allocated: 60 * MIB,
            reserved: 60 * MIB,
            ..OutOfMemory::default()
        }
    }

    #[test]
    fn the_text_states_every_fact_once() {
        let facts = OutOfMemory {
            allocated: 50 * MIB,
            private_pools: 4 * MIB,
            largest_free: Some(3 * MIB),
            limit: Some(90 * MIB),
            remaps: true,
            segment: 30 * MIB + 1,
            ..facts()
        };
        assert_eq!(
            facts.to_string(),
            "cuda:0 out of memory. Tried to allocate 40.00 MiB. cuda:0 has a total capacity of \
             100.00 MiB of which 30.00 MiB is free. This process has at least 60.00 MiB in use, \
             others at most 10.00 MiB. 90.00 MiB allowed by the memory fraction. Of the reserved \
             60.00 MiB, 50.00 MiB is allocated (private pools hold 4.00 MiB), and 10.00 MiB is \
             reserved but unallocated, its largest piece 3.00 MiB. The memory fraction is used \
             up: raise it with set_memory_fraction. Private pools hold enough memory for the request: drop unused graphs and pools."
        );
    }

    #[test]
    fn unknown_figures_are_left_out() {
        let facts = OutOfMemory { free: None, total: None, ..facts() };
        assert_eq!(
            facts.to_string(),
            "cuda:0 out of memory. Tried to allocate 40.00 MiB. Of the reserved 60.00 MiB, 60.00 \
             MiB is allocated, and 0 bytes is reserved but unallocated. Live blocks take up the \
             memory: drop some, or take smaller batches."
        );
        assert_eq!(facts.others(), None);
    }

    #[test]
    fn a_known_process_is_told_from_others() {
        let facts = OutOfMemory { process: Some(65 * MIB), ..facts() };
        let text = facts.to_string();
        assert!(
            text.contains("this process has 65.00 MiB in use and other processes 5.00 MiB."),
            "{text}"
        );
    }

    #[test]
    fn no_hint_names_processes_that_use_nothing() {
        // All memory outside of the allocator is used by this process.
        let text = OutOfMemory { process: Some(70 * MIB), ..facts() }.to_string();
        assert!(text.contains("and other processes 0 bytes"), "{text}");
        assert!(!text.contains("end them"), "{text}");
        assert!(text.contains("also in this process"), "{text}");
    }

    #[test]
    fn hints_follow_from_the_facts() {
        let first = |facts: OutOfMemory| {
            let hint = facts.hints()[0];
            hint.split(':').next().unwrap_or_default().to_owned()
        };
        let live = "Live blocks take up the memory";
        let others = "Other processes hold enough memory for the request";
        let pieces = "Much is reserved but unallocated, in pieces that are too small";
        assert_eq!(first(facts()), others, "10 MiB are missing and others use 10 MiB");
        assert_eq!(first(OutOfMemory { segment: 42 * MIB, ..facts() }), live);
        let split = OutOfMemory { allocated: 20 * MIB, ..facts() };
        assert_eq!(first(split.clone()), pieces);
        assert_eq!(first(OutOfMemory { remaps: true, ..split }), others);
        let limited = OutOfMemory { limit: Some(60 * MIB), ..facts() };
        assert_eq!(limited.hints().len(), 1, "others' memory does not help under a limit");
        assert_eq!(first(limited), "The memory fraction is used up");
        let pools = OutOfMemory { private_pools: 20 * MIB, ..facts() };
        assert_eq!(first(pools), "Private pools hold enough memory for the request");
        let huge = OutOfMemory { segment: 101 * MIB, allocated: 0, ..facts() };
        assert_eq!(huge.hints(), ["The request is larger than all of the memory: split it."]);
    }

    #[test]
    fn odd_facts_do_not_overflow() {
        let facts = OutOfMemory {
            free: Some(usize::MAX),
            total: Some(1),
            limit: Some(1),
            allocated: 2,
            segment: usize::MAX,
            process: Some(usize::MAX),
            ..facts()
        };
        assert!(!facts.to_string().is_empty());
        assert_eq!(OutOfMemory { reserved: 1, ..facts }.unallocated(), 0);
    }
}
