//! Peer access between devices.
//!
//! A program enables a pair of devices for the operands of ops. `cuCtxEnablePeerAccess` gives
//! access only to memory of `cuMemAlloc`. For the pages that the allocator maps, now or later, the
//! allocator gives the access (`cuda/peers.rs` of `warpline-alloc`).

use std::sync::PoisonError;

use warpline_cuda_sys_safe::{CudaCode, DriverError};
use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicU8, Ordering};

use super::Runtime;
#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result};

const UNKNOWN: u8 = 0;
/// Copies go through host memory.
const UNREACHABLE: u8 = 1;
/// Copies go over the link.
const LINKED: u8 = 2;
/// Copies go over the link, and ops may take tensors of the peer.
const ENABLED: u8 = 3;

/// State of each ordered pair of devices.
#[derive(Debug)]
pub(super) struct PeerLinks {
    pairs: Vec<AtomicU8>,
    devices: usize,
    /// Locked while a thread gives a device access to the memory of another.
    changing: Mutex<()>,
}

impl PeerLinks {
    pub(super) fn new(devices: usize) -> Self {
        let pairs = (0..devices * devices).map(|_| AtomicU8::new(UNKNOWN)).collect();
        Self { pairs, devices, changing: Mutex::default() }
    }

    fn pair(&self, device: usize, peer: usize) -> &AtomicU8 {
        &self.pairs[device * self.devices + peer]
    }
}

impl Runtime {
    /// Lets ops on `device` read and write the memory of `peer` directly. Does nothing if access is
    /// enabled already.
    ///
    /// # Errors
    /// - [`ErrorKind::Driver`] if there is no peer link between the devices, or a driver call fails
    ///   for another reason.
    /// - The errors of [`Runtime::device`] for either index.
    #[track_caller]
    pub fn enable_peer_access(&self, device: usize, peer: usize) -> Result<()> {
        let (device, peer) = (self.device(device)?.index(), self.device(peer)?.index());
        if device == peer {
            return Ok(());
        }
        self.connect(device, peer)?;
        self.0.peers.pair(device, peer).store(ENABLED, Ordering::Release);
        Ok(())
    }

    /// Returns whether ops on `device` may access the memory of `peer`. Always `true` for the same
    /// device.
    #[must_use]
    pub fn peer_access_enabled(&self, device: usize, peer: usize) -> bool {
        let within = device.max(peer) < self.0.peers.devices;
        device == peer
            || within && self.0.peers.pair(device, peer).load(Ordering::Acquire) == ENABLED
    }

    /// Returns whether two devices can access each other's memory. The first call for a pair
    /// enables the access if it is possible.
    #[track_caller]
    pub(crate) fn link_peers(&self, a: usize, b: usize) -> Result<bool> {
        Ok(a == b || self.link(a, b)? && self.link(b, a)?)
    }

    #[track_caller]
    fn link(&self, device: usize, peer: usize) -> Result<bool> {
        match self.0.peers.pair(device, peer).load(Ordering::Acquire) {
            UNKNOWN => {}
            known => return Ok(known != UNREACHABLE),
        }
        let reaches = self.driver()?.can_access_peer(device, peer);
        let reaches = reaches.map_err(|e| Error::driver("can_device_access_peer", e))?;
        if !reaches {
            self.0.peers.pair(device, peer).store(UNREACHABLE, Ordering::Release);
            return Ok(false);
        }
        match self.connect(device, peer) {
            Err(error)
                if error.driver_error().and_then(DriverError::code)
                    == Some(CudaCode::TOO_MANY_PEERS) =>
            {
                self.0.peers.pair(device, peer).store(UNREACHABLE, Ordering::Release);
                Ok(false)
            }
            connected => connected.map(|()| true),
        }
    }

    /// Lets `device` access all memory of `peer`.
    #[track_caller]
    fn connect(&self, device: usize, peer: usize) -> Result<()> {
        let peers = &self.0.peers;
        let _changing = peers.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.pair(device, peer).load(Ordering::Acquire) >= LINKED {
            return Ok(());
        }
        let failed = |e| Error::driver("enable_peer_access", e);
        self.driver()?.enable_peer_access(device, peer).map_err(failed)?;
        self.device(peer)?.allocator().backend().allow_peer(device).map_err(failed)?;
        self.0.shared.allow(device, peer).map_err(failed)?;
        peers.pair(device, peer).store(LINKED, Ordering::Release);
        Ok(())
    }
}
