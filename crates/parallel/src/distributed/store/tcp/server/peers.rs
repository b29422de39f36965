//! Connections by peer network, so that no network uses all slots. A network is an IPv4 address, or the first 64 bits of
//! an IPv6 address: a single host usually has all addresses of such a range.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// Largest number of connections of clients that have proven that they know the secret.
const MAX_CLIENTS: usize = 8192;
/// Largest number of clients of a network. All ranks of a machine share an address, and so do all machines
/// behind a NAT, so the limit is large: 512 ranks with 8 connections each. The other half of [`MAX_CLIENTS`] is for
/// other networks.
const MAX_PER_NETWORK: usize = MAX_CLIENTS / 2;
/// Largest number of connections without a proof of the secret.
pub(super) const MAX_UNAUTHENTICATED: usize = 128;

#[derive(Debug, Default)]
pub(super) struct StorePeers {
    /// Connections without a proof of the secret, oldest first.
    unauthenticated: BTreeMap<usize, IpAddr>,
    /// Connections that have proven that they know the secret.
    clients: HashMap<usize, IpAddr>,
    /// Number of clients by network.
    counts: HashMap<IpAddr, usize>,
}

/// Returns the first address of the peer's network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

impl StorePeers {
    pub(super) fn add_unauthenticated(&mut self, id: usize, address: IpAddr) {
        self.unauthenticated.insert(id, network(address));
    }

    pub(super) fn is_full(&self) -> bool {
        self.unauthenticated.len() >= MAX_UNAUTHENTICATED
    }

    /// Returns the connection to evict: the oldest connection of the network with the most unauthenticated connections.
    /// A flood from one network thus evicts only its own connections, even if a client elsewhere takes long for its
    /// proof.
    pub(super) fn unauthenticated_to_evict(&self) -> Option<usize> {
        let mut oldest = BTreeMap::new();
        for (id, network) in &self.unauthenticated {
            oldest.entry(network).or_insert((0, std::cmp::Reverse(*id))).0 += 1;
        }
        oldest.into_values().max().map(|(_, id)| id.0)
    }

    /// Counts a connection as authenticated. Returns `false` if a limit is exceeded; the caller then closes the
    /// connection.
    pub(super) fn authenticate(&mut self, id: usize) -> bool {
        let Some(network) = self.unauthenticated.remove(&id) else { return false };
        let count = self.counts.entry(network).or_default();
        *count += 1;
        let count = *count;
        self.clients.insert(id, network);
        count <= MAX_PER_NETWORK && self.clients.len() <= MAX_CLIENTS
    }

    pub(super) fn remove(&mut self, id: usize) {
        self.unauthenticated.remove(&id);
        let Some(network) = self.clients.remove(&id) else { return };
        if let Some(count) = self.counts.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn a_network_uses_at_most_half_of_the_slots() {
        let mut peers = StorePeers::default();
        let mut accepted = |id: usize, last| {
            peers.add_unauthenticated(id, address(last));
            let accepted = peers.authenticate(id);
            if !accepted {
                peers.remove(id);
            }
            accepted
        };
        let count = (0..MAX_CLIENTS).filter(|id| accepted(*id, 1)).count();
        assert_eq!(count, MAX_PER_NETWORK);
        let others = MAX_CLIENTS..2 * MAX_CLIENTS;
        let count = others.filter(|id| accepted(*id, 2 + (id % 100) as u8)).count();
        assert_eq!(count, MAX_CLIENTS - MAX_PER_NETWORK);
        (0..2 * MAX_CLIENTS).for_each(|id| peers.remove(id));
        assert!(peers.clients.is_empty() && peers.counts.is_empty());
    }

    #[test]
    fn the_oldest_connection_of_the_busiest_network_is_evicted() {
        let mut peers = StorePeers::default();
        assert_eq!(peers.unauthenticated_to_evict(), None);
        for (id, last) in [1, 2, 3, 2, 3].into_iter().enumerate() {
            peers.add_unauthenticated(id, address(last));
        }
        for expected in [1, 2, 0, 3, 4] {
            assert_eq!(peers.unauthenticated_to_evict(), Some(expected));
            peers.remove(expected);
        }
    }

    #[test]
    fn a_host_with_many_ipv6_addresses_is_one_peer() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::9"));
        assert_ne!(of("2001:db8:1:2::9"), of("2001:db8:1:3::9"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
