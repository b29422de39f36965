//! Sets of a graph's kernels that check indices.

use std::sync::Arc;

/// A set of kernel numbers, for the kernels of a graph that check indices. Clones share the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSet(Arc<Vec<u64>>);

impl KernelSet {
    /// Creates a set of one kernel.
    #[must_use]
    pub fn of(kernel: usize) -> Self {
        let mut words = vec![0; kernel / 64 + 1];
        words[kernel / 64] = 1 << (kernel % 64);
        Self(Arc::new(words))
    }

    /// Returns an identifier that clones of a set have in common.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns whether a kernel is in the set.
    #[must_use]
    pub fn contains(&self, kernel: usize) -> bool {
        self.0.get(kernel / 64).is_some_and(|word| word >> (kernel % 64) & 1 == 1)
    }

    /// Returns whether all kernels of `other` are in this set.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let beyond = other.0.iter().skip(self.0.len()).all(|&word| word == 0);
        Arc::ptr_eq(&self.0, &other.0)
            || beyond && self.0.iter().zip(&*other.0).all(|(own, other)| other & !own == 0)
    }

    /// Adds all kernels of `other`.
    pub fn join(&mut self, other: &Self) {
        if self.covers(other) {
            return;
        }
        let own = Arc::make_mut(&mut self.0);
        own.resize(own.len().max(other.0.len()), 0);
        own.iter_mut().zip(&*other.0).for_each(|(own, other)| *own |= other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_contains_both_sets_and_nothing_else() {
        let mut set = KernelSet::of(3);
        assert!(set.covers(&KernelSet::of(3)) && !set.covers(&KernelSet::of(130)));
        set.join(&KernelSet::of(130));
        set.join(&KernelSet::of(63));
        assert!((0..500).all(|kernel| set.contains(kernel) == [3, 63, 130].contains(&kernel)));
        assert!(set.covers(&KernelSet::of(130)) && !KernelSet::of(63).covers(&set));
        let before = set.clone();
        set.join(&KernelSet::of(64));
        assert!(!before.contains(64) && set.covers(&before));
    }
}
