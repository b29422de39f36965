//! Generation of random programs.

use proptest::prelude::*;
use smallvec::smallvec;
use warpline_cuda_sys_safe::Access;

use crate::Layout;

/// Number of streams. The last is on device 1.
pub(super) const STREAMS: usize = 4;
/// Number of events.
pub(super) const EVENTS: usize = 2;
/// Number of storages. The first three are on device 0, the fourth is on device 1, and the last is
/// page-locked.
pub(super) const SLOTS: usize = 5;
/// The page-locked storage.
pub(super) const PINNED: usize = SLOTS - 1;
/// Size of a storage, in bytes.
pub(super) const BYTES: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Arg {
    pub(super) slot: usize,
    pub(super) layout: usize,
    pub(super) access: Access,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Op(usize, Vec<Arg>),
    /// Host code on part of the page-locked slot.
    Host(usize, Access),
    Record(usize, usize),
    Wait(usize, usize),
    WaitStream(usize, usize),
    Renew(usize),
    SyncStream(usize),
    SyncEvent(usize),
    QueryEvent(usize),
    SyncDevice(usize),
    RecordStream(usize, usize),
    /// Frees a slot's memory and allocates memory again, for a stream of its device.
    Realloc(usize, usize),
}

/// Returns layouts of views into sixteen `f32` elements.
pub(super) fn layouts() -> Vec<Layout> {
    vec![
        Layout::contiguous(&[4, 4]).unwrap(),
        Layout::from_parts(smallvec![8], smallvec![2], 0),
        Layout::from_parts(smallvec![8], smallvec![2], 1),
        Layout::from_parts(smallvec![8], smallvec![1], 8),
        Layout::from_parts(smallvec![4, 2], smallvec![4, 1], 1),
        Layout::from_parts(smallvec![4], smallvec![-4], 15),
        Layout::from_parts(smallvec![3], smallvec![0], 5),
        Layout::from_parts(smallvec![0], smallvec![1], 0),
    ]
}

fn access() -> impl Strategy<Value = Access> {
    prop::sample::select(vec![Access::Read, Access::Read, Access::Write, Access::ReadWrite])
}

pub(super) fn op() -> impl Strategy<Value = (usize, Vec<Arg>)> {
    let arg = (0..SLOTS, 0..layouts().len(), access());
    let arg = arg.prop_map(|(slot, layout, access)| Arg { slot, layout, access });
    (0..STREAMS, prop::collection::vec(arg, 1..4))
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let (s, e) = (0..STREAMS, 0..EVENTS);
    prop_oneof![
        10 => op().prop_map(|(s, args)| Step::Op(s, args)),
        2 => (0..layouts().len(), access()).prop_map(|(l, a)| Step::Host(l, a)),
        4 => (e.clone(), s.clone()).prop_map(|(e, s)| Step::Record(e, s)),
        4 => (s.clone(), e.clone()).prop_map(|(s, e)| Step::Wait(s, e)),
        2 => (s.clone(), s.clone()).prop_map(|(s, t)| Step::WaitStream(s, t)),
        1 => e.clone().prop_map(Step::Renew),
        1 => s.clone().prop_map(Step::SyncStream),
        1 => e.clone().prop_map(Step::SyncEvent),
        1 => e.prop_map(Step::QueryEvent),
        1 => (0..2usize).prop_map(Step::SyncDevice),
        2 => (0..PINNED, s.clone()).prop_map(|(i, s)| Step::RecordStream(i, s)),
        3 => (0..PINNED, s).prop_map(|(i, s)| Step::Realloc(i, s)),
    ]
}
