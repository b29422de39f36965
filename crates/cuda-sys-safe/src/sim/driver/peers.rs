//! Peer links and peer access.

use crate::sim::CallKind;
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    fn check_peer(&self, peer: usize) -> Result<()> {
        let count = self.devices.len();
        if peer < count { Ok(()) } else { Err(DriverError::InvalidDevice { device: peer, count }) }
    }

    pub(super) fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool> {
        self.check_peer(peer)?;
        Ok(device != peer && self.linked(device, peer))
    }

    pub(super) fn enable_peer_access(&mut self, device: usize, peer: usize) -> Result<()> {
        let call = CallKind::EnablePeerAccess;
        self.check_peer(peer)?;
        if device == peer {
            let why = "a device is not its own peer";
            return Err(error(call, CudaCode::PEER_ACCESS_UNSUPPORTED, device, why));
        }
        self.check_unsafe_call(call, device)?;
        if !self.linked(device, peer) {
            let why = format!("there is no link to cuda:{peer}");
            return Err(error(call, CudaCode::PEER_ACCESS_UNSUPPORTED, device, &why));
        }
        self.devices[peer].context = true;
        self.devices[device].peers.insert(peer);
        Ok(())
    }

    pub(super) fn disable_peer_access(&mut self, device: usize, peer: usize) -> Result<()> {
        self.check_peer(peer)?;
        if self.devices[device].peers.remove(&peer) {
            return Ok(());
        }
        let call = CallKind::DisablePeerAccess;
        Err(error(call, CudaCode::PEER_ACCESS_NOT_ENABLED, device, ""))
    }
}
