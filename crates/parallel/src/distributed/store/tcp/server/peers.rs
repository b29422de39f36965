//! Limits connections by peer address: no address can use all slots, and a host with many addresses cannot use all
//! unauthenticated slots. The hosts of a local network may share the first 64 bits of their IPv6 addresses, and a
//! single host may have all addresses of such a range.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// Largest number of connections of clients that have proven that they know the secret.
const MAX_CLIENTS: usize = 8192;
/// Largest number of clients with the same address. All ranks of a machine share an address, and so do all machines
/// behind a NAT, so the limit is large: 512 ranks with 8 connections each. The other half of [`MAX_CLIENTS`] is for
/// other addresses.
const MAX_PER_ADDRESS: usize = MAX_CLIENTS / 2;
/// Largest number of connections without a proof of the secret.
pub(super) const MAX_UNAUTHENTICATED: usize = 128;

#[derive(Debug, Default)]
pub(super) struct StorePeers {
    /// Connections without a proof of the secret, oldest first.
    unauthenticated: BTreeMap<usize, IpAddr>,
    /// Connections that have proven that they know the secret.
    clients: HashMap<usize, IpAddr>,
    /// Number of clients by address.
    counts: HashMap<IpAddr, usize>,
}

/// Returns the first address of the network of a canonical address: for IPv4, the address itself.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

impl StorePeers {
    pub(super) fn add_unauthenticated(&mut self, id: usize, address: IpAddr) {
        self.unauthenticated.insert(id, address.to_canonical());
    }

    pub(super) fn is_full(&self) -> bool {
        self.unauthenticated.len() >= MAX_UNAUTHENTICATED
    }

    /// Returns the unauthenticated connection to evict: the oldest connection of the address with the most connections,
    /// in the network with the most connections. A flood from one address thus evicts only its own connections, even if
    /// a client elsewhere takes long for its proof. A flood from many addresses evicts only connections of its network.
    pub(super) fn unauthenticated_to_evict(&self) -> Option<usize> {
        let (mut networks, mut addresses) = (HashMap::new(), HashMap::new());
        for &address in self.unauthenticated.values() {
            *networks.entry(network(address)).or_insert(0) += 1;
            *addresses.entry(address).or_insert(0) += 1;
        }
        let crowd = |address: IpAddr| (networks[&network(address)], addresses[&address]);
        let ids = self.unauthenticated.iter();
        ids.max_by_key(|(id, address)| (crowd(**address), Reverse(**id))).map(|(id, _)| *id)
    }

    /// Counts a connection as authenticated. Returns `false` if a limit is exceeded; the caller then closes the
    /// connection.
    pub(super) fn authenticate(&mut self, id: usize) -> bool {
        let Some(address) = self.unauthenticated.remove(&id) else { return false };
        let count = self.counts.entry(address).or_default();
        *count += 1;
        let count = *count;
        self.clients.insert(id, address);
        count <= MAX_PER_ADDRESS && self.clients.len() <= MAX_CLIENTS
    }

    pub(super) fn remove(&mut self, id: usize) {
        self.unauthenticated.remove(&id);
        let Some(address) = self.clients.remove(&id) else { return };
        if let Some(count) = self.counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&address);
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
    fn an_address_uses_at_most_half_of_the_slots() {
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
        assert_eq!(count, MAX_PER_ADDRESS);
        let others = MAX_CLIENTS..2 * MAX_CLIENTS;
        let count = others.filter(|id| accepted(*id, 2 + (id % 100) as u8)).count();
        assert_eq!(count, MAX_CLIENTS - MAX_PER_ADDRESS);
        (0..2 * MAX_CLIENTS).for_each(|id| peers.remove(id));
        assert!(peers.clients.is_empty() && peers.counts.is_empty());
    }

    #[test]
    fn the_oldest_connection_of_the_busiest_address_is_evicted() {
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
    fn a_flood_of_ipv6_addresses_evicts_its_own_network() {
        let mut peers = StorePeers::default();
        let all =
            ["10.0.0.1", "2001:db8::7", "fd00::1", "2001:db8::8", "2001:db8::8", "2001:db8::9"];
        for (id, text) in all.into_iter().enumerate() {
            peers.add_unauthenticated(id, text.parse().unwrap());
        }
        // The address with two connections goes first, then the oldest of the network, then the oldest of all.
        for expected in [3, 1, 4, 0, 2, 5] {
            assert_eq!(peers.unauthenticated_to_evict(), Some(expected));
            peers.remove(expected);
        }
    }
}
