//! PyTorch's rules: rounding, pools, segment sizes, and splitting.

use crate::{AllocError, AllocatorConfig};

/// 1 MiB.
pub(crate) const MIB: usize = 1 << 20;
/// Granularity of blocks, in bytes.
pub const MIN_BLOCK_SIZE: usize = 512;
/// Largest request of the small pool, in bytes.
pub const SMALL_SIZE: usize = MIB;
/// Largest request of the small pool under [`Policy::Default`](crate::Policy::Default), in bytes.
/// The small pool exists so that short-lived small blocks do not fragment the pages of larger
/// blocks. The limit is smaller than [`SMALL_SIZE`], because under this policy the small pool need
/// not fill whole segments.
pub const SMALL_SIZE_IN_PAGES: usize = MIB / 2;
/// Default size of a page under [`Policy::Default`](crate::Policy::Default), in bytes.
pub(crate) const PAGE: usize = 4 * MIB;
/// Size of a segment of the small pool, in bytes.
pub const SMALL_BUFFER: usize = 2 * MIB;
/// Default size of a segment for requests under [`MIN_LARGE_ALLOC`], in bytes.
pub const LARGE_BUFFER: usize = 20 * MIB;
/// Size from which a request gets a segment of its own, in bytes.
pub const MIN_LARGE_ALLOC: usize = 10 * MIB;
/// Granularity of large segments, in bytes.
pub const ROUND_LARGE: usize = 2 * MIB;
/// Size from which requests are rejected, in bytes: 1 EB.
pub const MAX_REQUEST: usize = 1 << 60;

/// The pool of a block, by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Requests up to 1 MiB, or up to 512 KiB under [`Policy::Default`](crate::Policy::Default).
    Small,
    /// All larger requests.
    Large,
}

impl PoolKind {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Small => Self::Large,
            Self::Large => Self::Small,
        }
    }
}

/// Returns the block size for a request of `bytes` bytes.
pub(crate) fn round_size(config: &AllocatorConfig, bytes: usize) -> Result<usize, AllocError> {
    if bytes >= MAX_REQUEST {
        return Err(AllocError::TooLarge { requested: bytes });
    }
    if bytes < MIN_BLOCK_SIZE {
        return Ok(MIN_BLOCK_SIZE);
    }
    let divisions = config.divisions_for(bytes);
    if divisions > 1 && bytes > MIN_BLOCK_SIZE.saturating_mul(divisions) {
        Ok(next_power2_division(bytes, divisions))
    } else {
        Ok(bytes.next_multiple_of(MIN_BLOCK_SIZE))
    }
}

/// Rounds `bytes` up to the next of `divisions` equal steps between powers of two. `bytes` is under
/// [`MAX_REQUEST`], so nothing overflows.
fn next_power2_division(bytes: usize, divisions: usize) -> usize {
    if bytes.is_power_of_two() {
        return bytes;
    }
    let floor = 1usize << bytes.ilog2();
    match floor >> divisions.ilog2() {
        0 => floor << 1,
        step => bytes.next_multiple_of(step),
    }
}

/// Returns the size of the segment to allocate for a block of `size` bytes.
pub(crate) fn segment_size(config: &AllocatorConfig, size: usize) -> usize {
    if size <= SMALL_SIZE {
        SMALL_BUFFER
    } else if size < MIN_LARGE_ALLOC && size <= config.large_segment_size {
        config.large_segment_size
    } else {
        size.next_multiple_of(ROUND_LARGE)
    }
}

/// Options that every request needs, precomputed, and together smaller than a cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) caching: bool,
    /// Whether free blocks are chosen by the rules of PyTorch's expandable segments.
    pub(crate) expandable: bool,
    /// Whether sizes are only rounded to [`MIN_BLOCK_SIZE`].
    plain_rounding: bool,
    small_size: usize,
    max_split: usize,
    max_non_split_rounding: usize,
}

impl Rules {
    pub(crate) fn new(config: &AllocatorConfig) -> Self {
        Self {
            caching: config.caching,
            expandable: config.expandable(),
            plain_rounding: config.roundup_power2_divisions.iter().all(|&steps| steps <= 1),
            small_size: config.small_size(),
            max_split: config.max_split(),
            max_non_split_rounding: config.max_non_split_rounding,
        }
    }

    /// Rounds a size as [`round_size`] does. `None` if the options need more than plain rounding,
    /// or if the size is too large.
    #[inline]
    pub(crate) fn round_plainly(&self, bytes: usize) -> Option<usize> {
        let plain = self.plain_rounding && bytes < MAX_REQUEST;
        plain.then(|| bytes.max(1).next_multiple_of(MIN_BLOCK_SIZE))
    }

    /// Returns the pool of a block of this size.
    #[inline]
    pub(crate) fn pool(&self, size: usize) -> PoolKind {
        if size <= self.small_size { PoolKind::Small } else { PoolKind::Large }
    }

    /// Returns whether blocks of this size are never split (`max_split_size`).
    #[inline]
    pub(crate) fn is_oversize(&self, size: usize) -> bool {
        size >= self.max_split
    }

    /// Returns whether to split a block that has `remaining` bytes more than `size`. In an arena,
    /// small remainders are split off too.
    #[inline]
    pub(crate) fn should_split(
        &self,
        kind: PoolKind,
        arena: bool,
        size: usize,
        remaining: usize,
    ) -> bool {
        match kind {
            _ if arena => remaining >= MIN_BLOCK_SIZE,
            PoolKind::Small => remaining >= MIN_BLOCK_SIZE,
            PoolKind::Large => !self.is_oversize(size) && remaining > SMALL_SIZE,
        }
    }

    /// Returns whether a block of `found` bytes may serve a request of `size` bytes under
    /// `max_split_size`.
    #[inline]
    pub(crate) fn may_serve(&self, size: usize, found: usize) -> bool {
        if self.is_oversize(size) {
            found < size.saturating_add(self.max_non_split_rounding)
        } else {
            !self.is_oversize(found)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_to_512() {
        let config = AllocatorConfig::default();
        for (bytes, size) in [(1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)] {
            assert_eq!(round_size(&config, bytes).unwrap(), size);
        }
        assert!(matches!(round_size(&config, MAX_REQUEST), Err(AllocError::TooLarge { .. })));
        assert!(round_size(&config, MAX_REQUEST - 1).is_ok());
    }

    #[test]
    fn divisions_round_to_fractions_of_a_power_of_two() {
        let config = AllocatorConfig::parse("roundup_power2_divisions:4").unwrap();
        for (bytes, size) in [(1200, 1536), (2048, 2048), (2049, 2560), (5 * MIB + 1, 6 * MIB)] {
            assert_eq!(round_size(&config, bytes).unwrap(), size, "{bytes}");
        }
    }

    #[test]
    fn the_division_rule_starts_above_512_times_the_divisions() {
        let config = AllocatorConfig::parse("roundup_power2_divisions:4").unwrap();
        assert_eq!(round_size(&config, 2047).unwrap(), 2048);
        assert_eq!(round_size(&config, 1025).unwrap(), 1536);
        let config = AllocatorConfig::parse("roundup_power2_divisions:2").unwrap();
        assert_eq!(round_size(&config, 1025).unwrap(), 1536);
        assert_eq!(round_size(&config, 2049).unwrap(), 3072);
    }

    #[test]
    fn segments_have_three_sizes() {
        let config = AllocatorConfig::default();
        for (size, segment) in [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (11 * MIB + 512, 12 * MIB),
        ] {
            assert_eq!(segment_size(&config, size), segment);
        }
        let config = AllocatorConfig::parse("large_segment_size_mb:4").unwrap();
        assert_eq!(segment_size(&config, 3 * MIB), 4 * MIB);
        assert_eq!(segment_size(&config, 5 * MIB), 6 * MIB);
    }
}
