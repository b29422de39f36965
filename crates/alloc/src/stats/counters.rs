//! What one shard counts on every allocation and free.

use crate::PoolKind;

/// What is counted. The discriminants index [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Allocation,
    AllocatedBytes,
    Active,
    ActiveBytes,
    RequestedBytes,
    InactiveSplit,
    InactiveSplitBytes,
    OversizeAllocations,
}

pub(crate) const QUANTITIES: usize = 8;

/// One value for each quantity.
pub(crate) type Values = [i64; QUANTITIES];

/// A shard's share of the statistics. Peaks are of the sum over all shards, which no shard knows:
/// each has a `limit` per quantity that it can reach without the sum passing the known peak, and
/// says so when it goes beyond.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// By pool.
    pub(crate) current: [Values; 2],
    /// The sum of all increases since the last reset, by pool.
    pub(crate) increased: [Values; 2],
    /// `current` at that reset.
    pub(crate) base: [Values; 2],
    /// By pool, and for both together.
    pub(crate) limit: [Values; 3],
    /// The most this shard was seen at when peaks were raised: what it may well need again.
    pub(crate) seen: [Values; 3],
    /// Whether a limit was passed since peaks were raised.
    pub(crate) over: bool,
}

impl Default for Counters {
    fn default() -> Self {
        let none = [0; QUANTITIES];
        Self {
            current: [none; 2],
            increased: [none; 2],
            base: [none; 2],
            limit: [none; 3],
            seen: [none; 3],
            over: false,
        }
    }
}

impl Counters {
    #[inline]
    pub(crate) fn increase(&mut self, kind: PoolKind, quantity: Quantity, by: i64) {
        let (kind, at) = (kind as usize, quantity as usize);
        let current = self.current[kind][at] + by;
        self.current[kind][at] = current;
        self.increased[kind][at] += by;
        let both = current + self.current[1 - kind][at];
        self.over |= current > self.limit[kind][at] || both > self.limit[2][at];
    }

    /// Counts a block as the caller's. All quantities at once, since that takes fewer steps than
    /// some of them in turn.
    #[inline]
    pub(crate) fn allocate(
        &mut self,
        kind: PoolKind,
        size: usize,
        requested: usize,
        oversize: bool,
    ) {
        let (size, requested) = (size as i64, requested as i64);
        let by: Values = [1, size, 1, size, requested, 0, 0, i64::from(oversize)];
        let other = self.current[1 - kind as usize];
        let current = &mut self.current[kind as usize];
        let increased = &mut self.increased[kind as usize];
        let [limit, both] = [&self.limit[kind as usize], &self.limit[2]];
        // Negative once a limit is passed.
        let mut room = 0;
        for at in 0..QUANTITIES {
            current[at] += by[at];
            increased[at] += by[at];
            room |= (limit[at] - current[at]) | (both[at] - current[at] - other[at]);
        }
        self.over |= room < 0;
    }

    #[inline]
    pub(crate) fn decrease(&mut self, kind: PoolKind, quantity: Quantity, by: i64) {
        self.current[kind as usize][quantity as usize] -= by;
    }

    /// An increase or a decrease, whichever the sign says.
    #[inline]
    pub(crate) fn change(&mut self, kind: PoolKind, quantity: Quantity, by: i64) {
        if by > 0 {
            self.increase(kind, quantity, by);
        } else {
            self.decrease(kind, quantity, -by);
        }
    }

    /// How many blocks callers have.
    pub(crate) fn blocks(&self) -> i64 {
        self.current.iter().map(|current| current[Quantity::Allocation as usize]).sum()
    }

    /// The current values of each pool and of both.
    pub(crate) fn now(&self) -> [Values; 3] {
        let [small, large] = self.current;
        [small, large, std::array::from_fn(|at| small[at] + large[at])]
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.increased = [[0; QUANTITIES]; 2];
        self.base = self.current;
    }

    /// Adds another shard's counts, all but limits.
    pub(crate) fn add(&mut self, other: &Self) {
        for kind in 0..2 {
            for at in 0..QUANTITIES {
                self.current[kind][at] += other.current[kind][at];
                self.increased[kind][at] += other.increased[kind][at];
                self.base[kind][at] += other.base[kind][at];
            }
        }
    }
}
