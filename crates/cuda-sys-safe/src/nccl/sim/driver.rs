//! The interface of NCCL, call by call.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::hub::{DeviceId, Hub, RequestSink, failed};
use super::process::{HubConnection, port};
use super::{Advance, Participant, notify_change};
use crate::nccl::{Collective, CommHandle, CommState, Nccl, UniqueId};
use crate::sim::SimDriver;
use crate::{Result, StreamHandle};

/// The simulated version of NCCL.
const VERSION: u32 = 22_800;

/// The first bytes of an id.
const MAGIC: [u8; 16] = *b"warpline sim id\0";

/// Returns an identifier of this process.
pub(super) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// The content of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    process: u64,
    number: u64,
    /// Port at which other processes reach the hub; 0 if there is none.
    port: u16,
}

impl Id {
    fn to_bytes(self) -> UniqueId {
        let mut bytes = [0; UniqueId::BYTES];
        bytes[..16].copy_from_slice(&MAGIC);
        bytes[16..24].copy_from_slice(&self.process.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.port.to_le_bytes());
        UniqueId::from_bytes(bytes)
    }

    fn read(id: &UniqueId) -> Option<Self> {
        let (words, _) = id.as_bytes().as_chunks::<8>();
        let number = |at: usize| u64::from_le_bytes(words[at]);
        let port = u16::from_le_bytes([id.as_bytes()[32], id.as_bytes()[33]]);
        let ours = id.as_bytes()[..16] == MAGIC;
        ours.then(|| Self { process: number(2), number: number(3), port })
    }

    /// Returns the id's hub, or a connection to it.
    fn hub(self) -> Option<Arc<dyn RequestSink>> {
        if self.process == process() {
            return Some(Hub::find(self.number)?);
        }
        Some(HubConnection::open(self.port, self.process, self.number)?)
    }
}

fn refused(call: &'static str, why: String) -> crate::DriverError {
    failed(call, "ncclInvalidArgument", why)
}

// SAFETY: a group is one operation of the stream. It accesses only the memory that its calls name,
// when it begins and when it ends.
unsafe impl Nccl for SimDriver {
    fn version(&self) -> Result<u32> {
        Ok(VERSION)
    }

    fn unique_id(&self) -> Result<UniqueId> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Hub::open(number);
        Ok(Id { process: process(), number, port: port().unwrap_or(0) }.to_bytes())
    }

    fn comm_init(
        &self,
        device: usize,
        id: &UniqueId,
        ranks: usize,
        rank: usize,
    ) -> Result<CommHandle> {
        const CALL: &str = "ncclCommInitRankConfig";
        self.enter_comm_init(device)?;
        if rank >= ranks {
            return Err(refused(CALL, format!("there is no rank {rank} among {ranks} ranks")));
        }
        let Some((id, hub)) = Id::read(id).and_then(|id| Some((id, id.hub()?))) else {
            let why = "no simulated communicator waits for ranks with this id: each communicator needs \
                       a new one";
            return Err(refused(CALL, why.to_owned()));
        };
        let machine = self.machine_of(device);
        let device_id = DeviceId { process: process(), driver: self.number(), device, machine };
        let participant = Participant::new((id.process, id.number), hub, self.weak(), device_id);
        participant.join(ranks, rank);
        Ok(self.add_participant(participant))
    }

    unsafe fn comm_split(
        &self,
        comm: CommHandle,
        color: Option<u32>,
        key: usize,
    ) -> Result<Option<CommHandle>> {
        let participant = self.ready_participant("ncclCommSplit", comm)?;
        Ok(participant.split(color, key).map(|child| self.add_participant(child)))
    }

    unsafe fn comm_rank(&self, comm: CommHandle) -> Result<(usize, usize)> {
        const CALL: &str = "ncclCommUserRank";
        let participant = self.participant(CALL, comm)?;
        participant.rank().ok_or_else(|| refused(CALL, "the communicator is not ready".into()))
    }

    unsafe fn comm_state(&self, comm: CommHandle) -> Result<CommState> {
        let participant = self.participant("ncclCommGetAsyncError", comm)?;
        if !participant.is_ready()? {
            return Ok(CommState::InProgress);
        }
        // Work runs only inside driver calls, so polling must run some work.
        let (ran, behind) = self.advance(&participant, false);
        if let (false, Some(behind)) = (ran, behind) {
            super::drive(&behind, false);
        }
        participant.is_ready().map(|_| CommState::Ready)
    }

    unsafe fn enqueue(
        &self,
        comm: CommHandle,
        calls: &[Collective],
        stream: StreamHandle,
    ) -> Result<()> {
        let participant = self.ready_participant("ncclGroupEnd", comm)?;
        self.enqueue_group(comm, participant, calls, stream)?;
        notify_change();
        Ok(())
    }

    unsafe fn comm_interrupt(&self, comm: CommHandle) -> Result<()> {
        // Simulated calls never block, but enqueued work may wait for other ranks.
        self.participant("ncclCommAbort", comm)?.abort();
        Ok(())
    }

    unsafe fn comm_abort(&self, comm: CommHandle) -> Result<()> {
        let participant = self.participant("ncclCommAbort", comm)?;
        self.remove_participant(comm);
        participant.abort();
        Ok(())
    }
}

impl SimDriver {
    /// Kills the ranks on a device, as if they were in another process that ended. Later uses of
    /// these ranks' communicators fail. For the other ranks, a communicator fails only if one of
    /// them waits for a killed rank.
    pub fn kill_ranks(&self, device: usize) {
        for participant in self.participants_on(device) {
            participant.die();
        }
    }

    fn ready_participant(&self, call: &'static str, comm: CommHandle) -> Result<Arc<Participant>> {
        let participant = self.participant(call, comm)?;
        match participant.is_ready()? {
            true => Ok(participant),
            false => Err(refused(call, "the communicator's last call is still in progress".into())),
        }
    }
}
