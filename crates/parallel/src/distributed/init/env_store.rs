//! The store that a process creates from the environment.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::super::environment::Environment;
use super::super::store::{Deadline, look_up};
use super::super::{Result, StoreError, TcpStore, TcpStoreOptions};

/// The store that this process has created from the environment, and the settings that it was created from.
static STORE: Mutex<Option<(Environment, Arc<TcpStore>)>> = Mutex::new(None);

pub(super) fn store_from_env(found: &Environment, timeout: Duration) -> Result<Arc<TcpStore>> {
    let cached = || STORE.lock().unwrap_or_else(PoisonError::into_inner);
    let lookup = |cached: &Option<(Environment, Arc<TcpStore>)>| {
        let (from, store) = cached.as_ref()?;
        let same = (&from.host, from.port, from.rank) == (&found.host, found.port, found.rank);
        same.then(|| Arc::clone(store))
    };
    if let Some(store) = lookup(&cached()) {
        return Ok(store);
    }
    // Look up the name and connect without the lock, so that a thread with a shorter timeout does not have to wait for
    // this thread.
    let address = (found.host.clone(), found.port);
    let mut options = TcpStoreOptions::new().timeout(timeout);
    options.secret.clone_from(&found.secret);
    if found.rank == 0 && !found.launcher_hosts {
        let addresses = listen_addresses(address, Deadline::after(timeout));
        let addresses = addresses.map_err(|error| StoreError::Bind {
            address: format!("{}:{}", found.host, found.port),
            reason: error.to_string(),
        })?;
        let mut cached = cached();
        if let Some(store) = lookup(&cached) {
            return Ok(store);
        }
        let store = Arc::new(TcpStore::host(&*addresses, options)?);
        // Drop the former store without the lock, because its end waits for a thread.
        let former = cached.replace((found.clone(), Arc::clone(&store)));
        drop(cached);
        drop(former);
        return Ok(store);
    }
    let store = Arc::new(TcpStore::connect(address, options)?);
    let former = cached().replace((found.clone(), Arc::clone(&store)));
    drop(former);
    Ok(store)
}

/// Returns the addresses at which rank 0 may listen.
fn listen_addresses<A>(name: A, deadline: Deadline) -> io::Result<Vec<SocketAddr>>
where
    A: ToSocketAddrs + Send + Sync + 'static,
{
    look_up(&Arc::new(name), deadline).map(reachable_addresses)
}

/// Removes loopback addresses if there are others. Some systems give a host's own name a loopback address beside the
/// address that other hosts know, and a store that listened there would never hear from them.
fn reachable_addresses(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_reachable = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
    if addresses.iter().any(is_reachable) {
        addresses.retain(is_reachable);
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::super::super::environment::DEFAULT_TIMEOUT;
    use super::*;

    #[test]
    fn rank_0_listens_on_the_given_address() {
        let found = |host| listen_addresses((host, 7), Deadline::after(DEFAULT_TIMEOUT));
        let addresses = |host| found(host).unwrap();
        assert_eq!(addresses("10.1.2.3"), [SocketAddr::from(([10, 1, 2, 3], 7))]);
        assert!(addresses("localhost").iter().all(|address| address.ip().is_loopback()));
        found("no.such.host.invalid").unwrap_err();
    }

    #[test]
    fn rank_0_does_not_listen_on_the_loopback_of_a_name_with_other_addresses() {
        let addresses = |of: &[&str]| -> Vec<SocketAddr> {
            of.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 7)).collect()
        };
        let mixed = addresses(&["127.0.1.1", "10.1.2.3", "::1", "fd00::1", "::ffff:127.0.0.1"]);
        assert_eq!(reachable_addresses(mixed), addresses(&["10.1.2.3", "fd00::1"]));
        let loopback = addresses(&["127.0.1.1", "::1"]);
        assert_eq!(reachable_addresses(loopback.clone()), loopback);
    }

    #[test]
    fn a_slow_name_look_up_does_not_block_rank_0() {
        struct Slow;
        impl ToSocketAddrs for Slow {
            type Iter = std::vec::IntoIter<SocketAddr>;
            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                std::thread::sleep(DEFAULT_TIMEOUT);
                Ok(Vec::new().into_iter())
            }
        }
        let error = listen_addresses(Slow, Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}
