//! The counters that one shard updates on every allocation and free.

use crate::PoolKind;

/// The counted quantities. The discriminants index [`Counters`].
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

/// One value per quantity.
pub(crate) type CounterValues = [i64; QUANTITIES];

/// Amount of allocated blocks: number, size in bytes, and requested bytes.
type Amount = [i64; 3];

#[inline]
fn add(amount: &mut Amount, by: Amount) {
    amount.iter_mut().zip(by).for_each(|(amount, by)| *amount += by);
}

/// Quantities that change with the allocated blocks, each with its index in an [`Amount`].
const BLOCK_QUANTITIES: [(Quantity, usize); 5] = [
    (Quantity::Allocation, 0),
    (Quantity::Active, 0),
    (Quantity::AllocatedBytes, 1),
    (Quantity::ActiveBytes, 1),
    (Quantity::RequestedBytes, 2),
];

/// The statistics of a shard. Peaks apply to the sum over all shards, which a shard does not know.
/// Each shard has a `limit` per quantity: as long as no shard exceeds its limit, the sum stays
/// within the known peak. A shard sets `over` when it exceeds a limit. The request or free that
/// exceeded it then locks all shards and computes new limits (`Global::raise_peaks`).
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// Current values, by pool.
    pub(crate) current: [CounterValues; 2],
    /// Sum of all increases since the last reset, by pool.
    pub(crate) increased: [CounterValues; 2],
    /// `current` at the last reset.
    pub(crate) base: [CounterValues; 2],
    /// Limits by pool, and for both together.
    pub(crate) limit: [CounterValues; 3],
    /// Highest value of this shard when peaks were raised. The shard is likely to reach it again.
    pub(crate) seen: [CounterValues; 3],
    /// Allocated and freed amounts not yet added to the values above, by pool.
    pending_allocated: [Amount; 2],
    pending_freed: [Amount; 2],
    /// Amounts that can be allocated before a limit is exceeded, by pool and for both pools.
    room: [Amount; 3],
    /// Highest value beyond a limit since peaks were raised. The current value may be lower.
    pub(crate) top: [CounterValues; 3],
    /// Whether a limit was exceeded since peaks were raised.
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
            pending_allocated: Default::default(),
            pending_freed: Default::default(),
            room: Default::default(),
            top: [none; 3],
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
        if current > self.limit[kind][at] || both > self.limit[2][at] {
            self.over = true;
            self.top[kind][at] = self.top[kind][at].max(current);
            self.top[2][at] = self.top[2][at].max(both);
        }
    }

    /// Counts a block as allocated.
    #[inline]
    pub(crate) fn allocate(&mut self, kind: PoolKind, size: usize, requested: usize) {
        let by = [1, size as i64, requested as i64];
        add(&mut self.pending_allocated[kind as usize], by);
        let less = by.map(|by| -by);
        add(&mut self.room[kind as usize], less);
        add(&mut self.room[2], less);
        let [of_kind, of_both] = [self.room[kind as usize], self.room[2]];
        // The sign bit is set if any limit is exceeded.
        let least = of_kind.iter().chain(&of_both).fold(0, |all, room| all | room);
        self.over |= least < 0;
    }

    /// Counts a block as free.
    #[inline]
    pub(crate) fn free(&mut self, kind: PoolKind, size: usize, requested: usize) {
        let by = [1, size as i64, requested as i64];
        add(&mut self.pending_freed[kind as usize], by);
        add(&mut self.room[kind as usize], by);
        add(&mut self.room[2], by);
    }

    /// Counts a block as freed while other streams still use it.
    pub(crate) fn free_early(&mut self, kind: PoolKind, size: usize) {
        self.apply_pending();
        self.decrease(kind, Quantity::Allocation, 1);
        self.decrease(kind, Quantity::AllocatedBytes, size as i64);
        self.make_room();
    }

    /// Counts a block as free after [`free_early`](Self::free_early).
    pub(crate) fn free_late(&mut self, kind: PoolKind, size: usize, requested: usize) {
        self.apply_pending();
        self.decrease(kind, Quantity::Active, 1);
        self.decrease(kind, Quantity::ActiveBytes, size as i64);
        self.decrease(kind, Quantity::RequestedBytes, requested as i64);
        self.make_room();
    }

    /// Adds the pending amounts to the values.
    pub(crate) fn apply_pending(&mut self) {
        for kind in 0..2 {
            let pending_allocated = std::mem::take(&mut self.pending_allocated[kind]);
            let pending_freed = std::mem::take(&mut self.pending_freed[kind]);
            for (quantity, amount) in BLOCK_QUANTITIES {
                self.current[kind][quantity as usize] +=
                    pending_allocated[amount] - pending_freed[amount];
                self.increased[kind][quantity as usize] += pending_allocated[amount];
            }
        }
    }

    /// Computes the distance of the values from their limits. The values must be up to date.
    pub(crate) fn make_room(&mut self) {
        let now = self.now();
        self.room = [[i64::MAX; 3]; 3];
        for (pool, room) in self.room.iter_mut().enumerate() {
            for (quantity, amount) in BLOCK_QUANTITIES {
                let at = quantity as usize;
                room[amount] = room[amount].min(self.limit[pool][at] - now[pool][at]);
            }
        }
    }

    #[inline]
    pub(crate) fn decrease(&mut self, kind: PoolKind, quantity: Quantity, by: i64) {
        self.current[kind as usize][quantity as usize] -= by;
    }

    /// Increases or decreases a quantity, depending on the sign.
    #[inline]
    pub(crate) fn change(&mut self, kind: PoolKind, quantity: Quantity, by: i64) {
        if by > 0 {
            self.increase(kind, quantity, by);
        } else {
            self.decrease(kind, quantity, -by);
        }
    }

    /// Returns the number of allocated blocks.
    pub(crate) fn blocks(&mut self) -> i64 {
        self.apply_pending();
        self.current.iter().map(|current| current[Quantity::Allocation as usize]).sum()
    }

    /// Returns the current values of each pool and of both.
    pub(crate) fn now(&self) -> [CounterValues; 3] {
        let [small, large] = self.current;
        [small, large, std::array::from_fn(|at| small[at] + large[at])]
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.increased = [[0; QUANTITIES]; 2];
        self.base = self.current;
    }

    /// Adds another shard's counts, except limits.
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
