//! Connections by peer address, so that no address uses all slots.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

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

impl StorePeers {
    pub(super) fn add_unauthenticated(&mut self, id: usize, address: IpAddr) {
        self.unauthenticated.insert(id, address.to_canonical());
    }

    pub(super) fn is_full(&self) -> bool {
        self.unauthenticated.len() >= MAX_UNAUTHENTICATED
    }

    /// Returns the connection to evict: the oldest connection of the address with the most unauthenticated connections.
    /// A flood from one address thus evicts only its own connections, even if a client at another address takes long
    /// for its proof.
    pub(super) fn unauthenticated_to_evict(&self) -> Option<usize> {
        let mut oldest = BTreeMap::new();
        for (id, address) in &self.unauthenticated {
            oldest.entry(address).or_insert((0, std::cmp::Reverse(*id))).0 += 1;
        }
        oldest.into_values().max().map(|(_, id)| id.0)
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
}
