//! The machines of simulated devices, and the time of collectives on the links between the devices.
//!
//! The virtual clock begins a collective when its last rank begins it, and ends it on all ranks after the time of the
//! algorithm that NCCL would choose: the faster of ring and tree for an all-reduce, and a ring for all others. The
//! counts of steps are those of NCCL's own model (`tuning.cc`). For `n` ranks on `m` machines and `S` bytes:
//!
//! | algorithm | steps within machines | steps between machines | bytes of each rank |
//! |---|---|---|---|
//! | ring, all-reduce | 2 (n - m) | 2 (m - 1) | 2 (n - 1) / n × S |
//! | tree, all-reduce | 2 (n / m - 1) | 2 log₂ m | 2 S |
//! | ring, all others | n - m | m - 1 | (n - 1) / n × S, or S with a root |
//!
//! Each step takes the latency of its link. The bytes move at the bandwidth of [`Topology::within`] or, if lower, of
//! the network adapters that a machine's ranks have together, because NCCL builds a ring through each adapter.
//!
//! Collectives do not slow down kernels, copies or other collectives.

use crate::nccl::sim::{CallDesc, CollectiveKind};

/// The path between two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time of an empty message, in microseconds.
    pub latency: f64,
    /// Bytes per time in one direction, in GB/s. Bytes take no time if it is not positive.
    pub bandwidth: f64,
}

/// The machines of simulated devices and their links, for the virtual time of collectives. The
/// default is one machine of H200s.
///
/// ```
/// use warpline_cuda_sys_safe::sim::{Link, SimConfig, Topology};
///
/// let between = Link { latency: 10.0, bandwidth: 25.0 };
/// let topology = Topology { machines: 8, between, ..Topology::default() };
/// let sim = SimConfig { topology, ..SimConfig::new(64) }.build(); // eight devices on each machine
/// // A tree: 14 steps within machines, 6 between them. The adapters of a machine have 200 GB/s together, so they limit
/// // the bandwidth.
/// assert_eq!(topology.all_reduce_time(64, 8, 64_000_000), 14.0 * 2.0 + 6.0 * 10.0 + 128_000_000.0 / 200e3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topology {
    /// Number of machines. The first devices are on the first machine, and so on; the last machine
    /// may have fewer devices. Default: 1. 0 counts as 1.
    pub machines: usize,
    /// Link between two devices of one machine. Default: 2 µs and 300 GB/s, which give the measured
    /// times of NCCL on two H200s.
    pub within: Link,
    /// Network adapter of each device. Default: 5 µs and 50 GB/s (400 Gb/s).
    pub between: Link,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            machines: 1,
            within: Link { latency: 2.0, bandwidth: 300.0 },
            between: Link { latency: 5.0, bandwidth: 50.0 },
        }
    }
}

/// The machines of a communicator's ranks.
#[derive(Clone, Copy, Debug)]
struct Spread {
    ranks: usize,
    machines: usize,
    /// Number of ranks on the machine that has the fewest.
    fewest: usize,
}

impl Spread {
    /// `machines` has the machine of each rank.
    fn of(machines: &[usize]) -> Self {
        let mut counts = std::collections::BTreeMap::new();
        machines.iter().for_each(|machine| *counts.entry(machine).or_insert(0) += 1);
        let fewest = counts.values().copied().min().unwrap_or(1);
        Self { ranks: machines.len(), machines: counts.len().max(1), fewest }
    }
}

impl Topology {
    /// Returns the time of an all-reduce in microseconds, after all ranks have begun it, for ranks
    /// that are spread evenly over machines.
    #[must_use]
    pub fn all_reduce_time(&self, ranks: usize, machines: usize, bytes: usize) -> f64 {
        let machines = machines.clamp(1, ranks.max(1));
        self.all_reduce(Spread { ranks, machines, fewest: ranks / machines }, bytes as f64)
    }

    /// Returns the machine of device `device` of `devices`.
    pub(crate) fn machine_of(&self, device: usize, devices: usize) -> usize {
        device / devices.div_ceil(self.machines.max(1)).max(1)
    }

    /// Returns the time of a call in microseconds. `machines` has the machine of each rank; `rank`
    /// is the rank of the caller.
    pub(crate) fn call_time(&self, desc: &CallDesc, machines: &[usize], rank: usize) -> f64 {
        let part = desc.bytes() as f64;
        let spread = Spread::of(machines);
        let share = (spread.ranks.saturating_sub(1)) as f64;
        match desc.kind() {
            CollectiveKind::AllReduce => self.all_reduce(spread, part),
            // The count is that of one rank's part.
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter => {
                self.ring(spread, 1.0, share * part)
            }
            CollectiveKind::Broadcast | CollectiveKind::Reduce => {
                self.ring(spread, 1.0, if spread.ranks > 1 { part } else { 0.0 })
            }
            CollectiveKind::Send | CollectiveKind::Recv => {
                let peer = desc.root().unwrap_or(rank);
                let link = match machines.get(peer) == machines.get(rank) {
                    true => self.within,
                    false => self.between,
                };
                if peer == rank { 0.0 } else { finite(link.latency + time(part, link.bandwidth)) }
            }
        }
    }

    fn all_reduce(&self, spread: Spread, bytes: f64) -> f64 {
        let Spread { ranks, machines, .. } = spread;
        if ranks < 2 {
            return 0.0;
        }
        let share = (ranks - 1) as f64 / ranks as f64;
        let ring = self.ring(spread, 2.0, 2.0 * share * bytes);
        let depth = machines.next_power_of_two().trailing_zeros();
        let steps = [2.0 * (ranks as f64 / machines as f64 - 1.0), 2.0 * f64::from(depth)];
        ring.min(self.steps_and_bytes(spread, steps, 2.0 * bytes))
    }

    /// Returns the time of a ring that passes on its bytes `rounds` times.
    fn ring(&self, spread: Spread, rounds: f64, bytes: f64) -> f64 {
        let within = spread.ranks.saturating_sub(spread.machines) as f64;
        let between = (spread.machines - 1) as f64;
        self.steps_and_bytes(spread, [rounds * within, rounds * between], bytes)
    }

    fn steps_and_bytes(&self, spread: Spread, [within, between]: [f64; 2], bytes: f64) -> f64 {
        let adapters = spread.fewest as f64 * self.between.bandwidth;
        let bandwidth = match spread.machines {
            1 => self.within.bandwidth,
            _ => self.within.bandwidth.min(adapters),
        };
        let latency = within * self.within.latency + between * self.between.latency;
        finite(latency + time(bytes, bandwidth))
    }
}

fn time(bytes: f64, bandwidth: f64) -> f64 {
    if bandwidth > 0.0 { bytes / (bandwidth * 1e3) } else { 0.0 }
}

/// Replaces invalid settings, so that the virtual clock stays finite.
pub(super) fn finite(micros: f64) -> f64 {
    if micros.is_finite() { micros.max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Topology = Topology {
        machines: 2,
        within: Link { latency: 1.0, bandwidth: 100.0 },
        between: Link { latency: 10.0, bandwidth: 20.0 },
    };

    #[test]
    fn an_all_reduce_is_the_faster_of_ring_and_tree() {
        // One machine: 2 × 7 steps of 1 µs, and 1.75 MB at 100 GB/s.
        assert_eq!(SLOW.all_reduce_time(8, 1, 1_000_000), 14.0 + 17.5);
        // Four adapters of 20 GB/s. Ring: 12 and 2 steps, 14 MB of 8 MB. Tree: 6 and 2 steps, 16 B of 8 B.
        assert_eq!(SLOW.all_reduce_time(8, 2, 8_000_000), 32.0 + 14_000_000.0 / 80e3);
        assert_eq!(SLOW.all_reduce_time(8, 2, 8), 26.0 + 16.0 / 80e3);
        assert_eq!(SLOW.all_reduce_time(1, 1, 1_000_000), 0.0);
    }

    #[test]
    fn devices_are_divided_among_machines_in_order() {
        let machines = |machines, devices| {
            let topology = Topology { machines, ..SLOW };
            (0..devices).map(|device| topology.machine_of(device, devices)).collect::<Vec<_>>()
        };
        assert_eq!(machines(2, 4), [0, 0, 1, 1]);
        assert_eq!(machines(2, 5), [0, 0, 0, 1, 1]);
        assert_eq!(machines(0, 3), [0, 0, 0]);
        assert_eq!(machines(9, 3), [0, 1, 2]);
    }

    #[test]
    fn invalid_links_give_finite_times() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let link = Link { latency: value, bandwidth: value };
            let topology = Topology { machines: usize::MAX, within: link, between: link };
            for (ranks, machines) in [(0, 0), (1, 7), (8, 2), (64, 8)] {
                let time = topology.all_reduce_time(ranks, machines, usize::MAX);
                assert!(time.is_finite() && time >= 0.0, "{value}: {time}");
            }
        }
    }
}
