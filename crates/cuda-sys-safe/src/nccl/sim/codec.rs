//! Encoding of requests and events as bytes, for ranks of other processes.

use std::sync::Arc;

use super::call::{CallDesc, CollectiveKind};
use super::hub::{Departure, DeviceId, HubMember, RankEvent};
use crate::nccl::{NcclType, ReduceOp};
use crate::{CollectiveMismatch, DriverError};

/// Writes values as bytes.
#[derive(Default)]
pub(super) struct ByteWriter(pub(super) Vec<u8>);

/// Reads values from bytes. A value is `None` if the bytes end too early or are invalid.
pub(super) struct ByteReader<'a>(pub(super) &'a [u8]);

const KINDS: [CollectiveKind; 7] = [
    CollectiveKind::AllReduce,
    CollectiveKind::Broadcast,
    CollectiveKind::Reduce,
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::Send,
    CollectiveKind::Recv,
];

/// The calls that errors can name.
const CALLS: [&str; 2] = ["ncclCommInitRankConfig", "ncclCommGetAsyncError"];

impl ByteWriter {
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn size(&mut self, size: usize) -> &mut Self {
        self.number(size as u64)
    }

    /// Writes an optional number.
    pub(super) fn maybe(&mut self, number: Option<u64>) -> &mut Self {
        self.size(number.is_some().into()).number(number.unwrap_or(0))
    }

    fn one_of<T: PartialEq>(&mut self, all: &[T], one: &T) -> &mut Self {
        self.size(all.iter().position(|other| other == one).unwrap_or(all.len()))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.size(bytes.len()).0.extend(bytes);
        self
    }

    pub(super) fn member(&mut self, member: HubMember) -> &mut Self {
        self.size(member.comm).size(member.rank)
    }

    pub(super) fn device_id(&mut self, device_id: DeviceId) -> &mut Self {
        self.number(device_id.process).number(device_id.driver).size(device_id.device);
        self.size(device_id.machine)
    }

    pub(super) fn departure(&mut self, why: Departure) -> &mut Self {
        self.size((why == Departure::Died).into())
    }

    pub(super) fn desc(&mut self, desc: &CallDesc) -> &mut Self {
        self.one_of(&KINDS, &desc.kind).size(desc.count).one_of(&NcclType::ALL, &desc.dtype);
        self.size(desc.op.map_or(ReduceOp::ALL.len(), |op| {
            ReduceOp::ALL.iter().position(|o| *o == op).unwrap_or(0)
        }));
        self.maybe(desc.rank.map(|rank| rank as u64))
    }

    /// Writes a virtual time.
    pub(super) fn time(&mut self, time: f64) -> &mut Self {
        self.number(time.to_bits())
    }

    fn machines(&mut self, machines: &[usize]) -> &mut Self {
        machines.iter().fold(self.size(machines.len()), |writer, machine| writer.size(*machine))
    }

    pub(super) fn event(&mut self, event: &RankEvent) -> &mut Self {
        match event {
            RankEvent::Ready(machines) => self.size(0).machines(machines),
            RankEvent::Done { op, part, output, begin } => {
                self.size(1).number(*op).size(*part).bytes(output).time(*begin)
            }
            RankEvent::Failed(error) => self.size(2).error(error),
            RankEvent::Split(None) => self.size(3),
            RankEvent::Split(Some((member, machines))) => {
                self.size(4).member(*member).machines(machines)
            }
            RankEvent::ProgressRequested => self.size(5),
        }
    }

    fn error(&mut self, error: &DriverError) -> &mut Self {
        match error {
            DriverError::CollectiveMismatch(found) => {
                let CollectiveMismatch { what, ranks, calls } = &**found;
                self.size(0).bytes(what.as_bytes()).size(ranks[0]).size(ranks[1]);
                self.bytes(calls[0].as_bytes()).bytes(calls[1].as_bytes())
            }
            DriverError::LibraryCall { call, status, detail, .. } => {
                self.size(1).one_of(&CALLS, call).bytes(status.as_bytes()).bytes(detail.as_bytes())
            }
            other => {
                let text = other.to_string();
                self.size(1).size(1).bytes(b"ncclInternalError").bytes(text.as_bytes())
            }
        }
    }
}

impl<'a> ByteReader<'a> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    pub(super) fn maybe(&mut self) -> Option<Option<u64>> {
        let (some, number) = (self.number()?, self.number()?);
        Some((some == 1).then_some(number))
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.size()?).copied()
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let size = self.size()?;
        let (bytes, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    pub(super) fn member(&mut self) -> Option<HubMember> {
        Some(HubMember { comm: self.size()?, rank: self.size()? })
    }

    pub(super) fn device_id(&mut self) -> Option<DeviceId> {
        Some(DeviceId {
            process: self.number()?,
            driver: self.number()?,
            device: self.size()?,
            machine: self.size()?,
        })
    }

    pub(super) fn departure(&mut self) -> Option<Departure> {
        self.one_of(&[Departure::Aborted, Departure::Died])
    }

    pub(super) fn desc(&mut self) -> Option<CallDesc> {
        Some(CallDesc {
            kind: self.one_of(&KINDS)?,
            count: self.size()?,
            dtype: self.one_of(&NcclType::ALL)?,
            op: ReduceOp::ALL.get(self.size()?).copied(),
            rank: self.maybe()?.map(|rank| rank as usize),
        })
    }

    /// Reads a virtual time.
    pub(super) fn time(&mut self) -> Option<f64> {
        Some(f64::from_bits(self.number()?)).filter(|time| time.is_finite())
    }

    fn machines(&mut self) -> Option<Vec<usize>> {
        (0..self.size()?).map(|_| self.size()).collect()
    }

    pub(super) fn event(&mut self) -> Option<RankEvent> {
        Some(match self.number()? {
            0 => RankEvent::Ready(self.machines()?),
            1 => {
                let (op, part) = (self.number()?, self.size()?);
                let output = Arc::from(self.bytes()?);
                RankEvent::Done { op, part, output, begin: self.time()? }
            }
            2 => RankEvent::Failed(self.error()?),
            3 => RankEvent::Split(None),
            4 => RankEvent::Split(Some((self.member()?, self.machines()?))),
            5 => RankEvent::ProgressRequested,
            _ => return None,
        })
    }

    fn error(&mut self) -> Option<DriverError> {
        Some(match self.number()? {
            0 => DriverError::CollectiveMismatch(Box::new(CollectiveMismatch {
                what: self.text()?,
                ranks: [self.size()?, self.size()?],
                calls: [self.text()?, self.text()?],
            })),
            1 => {
                let call = self.one_of(&CALLS)?;
                super::hub::failed(call, &self.text()?, self.text()?)
            }
            _ => return None,
        })
    }
}
