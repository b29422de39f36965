//! The check that a kernel touches only declared elements, by running it on poisoned copies.

use std::ptr::with_exposed_provenance;

use smallvec::SmallVec;

use super::RunError;
use super::kernels::NOWHERE;
use crate::CudaCode;
use crate::sim::state::SimState;
use crate::sim::state::launch::{LaunchOperand, OwnedLaunch};
use crate::sim::state::violation::{FootprintViolation, ViolationKind};

const GUARD: usize = 256;

/// A copy's address is equal to the original's modulo this number, because kernels may choose their
/// path by alignment.
const ALIGN: usize = 256;

const READ: u8 = 1;

const WRITE: u8 = 2;

/// The values of bytes that must not be read, one value for each of the two trials.
const POISON: [u8; 2] = [0x7e, 0x81];

/// A range of addresses that operands cover without a gap. It is copied as a whole, so that
/// operands that alias each other also alias in the copy.
struct CoveredRange {
    low: u64,
    before: Vec<u8>,
    flags: Vec<u8>,
    /// Host address of the original.
    host: usize,
}

/// A poisoned copy of a range between guard zones, with the alignment of the original.
struct Trial {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl SimState {
    /// Runs a kernel on its operands and on copies, and compares the results.
    pub(super) fn run_checked(
        &mut self,
        launch: &OwnedLaunch,
        pointers: &[*mut u8],
    ) -> Result<(), RunError> {
        let spans = spans(launch, pointers);
        let mut trials = POISON.map(|p| spans.iter().map(|s| Trial::new(s, p)).collect::<Vec<_>>());
        for trial in &mut trials {
            let pointers: SmallVec<[*mut u8; 8]> =
                launch.operands.iter().map(|o| trial_pointer(o, &spans, trial)).collect();
            // SAFETY: every operand's hull lies inside its span's copy.
            unsafe { launch.call(&pointers) };
        }
        // SAFETY: `run_kernel` checked that the operands lie in live memory, which no other code
        // accesses while the kernel runs.
        unsafe { launch.call(pointers) };
        let found = spans.iter().enumerate().find_map(|(i, span)| {
            span.compare(&trials[0][i], &trials[1][i])
                .map(|(kind, at)| (kind, span.low.wrapping_add_signed(at)))
        });
        let Some((kind, address)) = found else { return Ok(()) };
        let operand = nearest(&launch.operands, address);
        let violation = FootprintViolation {
            op: launch.op,
            location: launch.location,
            kind,
            operand,
            offset: address.wrapping_sub(launch.operands[operand].ptr) as i64,
        };
        let why = violation.to_string();
        self.violations.push(violation);
        Err(RunError { code: CudaCode::LAUNCH_FAILED, why })
    }
}

fn nearest(operands: &[LaunchOperand], address: u64) -> usize {
    let distance = |o: &LaunchOperand| {
        let end = o.low() + o.bytes() as u64;
        o.low().saturating_sub(address).max(address.saturating_sub(end.saturating_sub(1)))
    };
    let covering = operands.iter().enumerate().filter(|(_, o)| o.bytes() > 0);
    covering.min_by_key(|(_, o)| distance(o)).map_or(0, |(index, _)| index)
}

fn spans(launch: &OwnedLaunch, pointers: &[*mut u8]) -> Vec<CoveredRange> {
    let mut hulls: Vec<(u64, u64, usize)> = launch
        .operands
        .iter()
        .zip(pointers)
        .filter(|(o, _)| o.bytes() > 0)
        .map(|(o, p)| {
            let host = p.expose_provenance().wrapping_add_signed(o.hull.0 as isize);
            (o.low(), o.low() + o.bytes() as u64, host)
        })
        .collect();
    hulls.sort_unstable();
    let mut merged: Vec<(u64, u64, usize)> = Vec::new();
    for hull in hulls {
        match merged.last_mut() {
            Some(last) if hull.0 < last.1 => last.1 = last.1.max(hull.1),
            _ => merged.push(hull),
        }
    }
    let mut spans: Vec<CoveredRange> = merged
        .into_iter()
        .map(|(low, high, host)| {
            let bytes = (high - low) as usize;
            // SAFETY: the operands lie in live memory, which no other code accesses while the
            // kernel runs.
            let before =
                unsafe { std::slice::from_raw_parts(with_exposed_provenance(host), bytes) };
            CoveredRange { low, before: before.to_vec(), flags: vec![0; bytes], host }
        })
        .collect();
    for operand in launch.operands.iter().filter(|o| o.bytes() > 0) {
        if let Some(span) = spans.iter_mut().rev().find(|s| s.low <= operand.low()) {
            span.mark(operand);
        }
    }
    spans
}

/// Returns an operand's pointer into a trial's copies.
fn trial_pointer(operand: &LaunchOperand, spans: &[CoveredRange], trial: &mut [Trial]) -> *mut u8 {
    let span = spans.iter().rposition(|s| s.low <= operand.low());
    match span {
        Some(span) if operand.bytes() > 0 => {
            let offset = operand.ptr.wrapping_sub(spans[span].low) as isize;
            let start = trial[span].start;
            trial[span].memory.as_mut_ptr().wrapping_add(start).wrapping_offset(offset)
        }
        _ => std::ptr::with_exposed_provenance_mut(NOWHERE),
    }
}

impl CoveredRange {
    /// Flags each byte that an operand declares.
    fn mark(&mut self, operand: &LaunchOperand) {
        let access = operand.access;
        let flag = if access.reads() { READ } else { 0 } | if access.writes() { WRITE } else { 0 };
        let base = operand.ptr.wrapping_sub(self.low) as i64;
        let item = operand.item_size as i64;
        let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, operand.sizes.len());
        let mut at = base;
        loop {
            for byte in &mut self.flags[at as usize..(at + item) as usize] {
                *byte |= flag;
            }
            let mut dim = operand.sizes.len();
            loop {
                if dim == 0 {
                    return;
                }
                dim -= 1;
                // A dimension of size 1 may have any stride, so the sum may overflow. Wrapping
                // arithmetic is right, because the stride is subtracted again.
                let step = (operand.strides[dim] as i64).wrapping_mul(item);
                index[dim] += 1;
                at = at.wrapping_add(step);
                if step != 0 && index[dim] < operand.sizes[dim] {
                    break;
                }
                at = at.wrapping_sub(step.wrapping_mul(index[dim] as i64));
                index[dim] = 0;
            }
        }
    }

    /// Returns the first byte at which the trials show a violation, as an offset from the span's
    /// start.
    fn compare(&self, a: &Trial, b: &Trial) -> Option<(ViolationKind, i64)> {
        for (trial, poison) in [(a, POISON[0]), (b, POISON[1])] {
            let spoiled = |bytes: &[u8]| bytes.iter().position(|&x| x != poison);
            let end = trial.start + trial.bytes;
            if let Some(i) = spoiled(&trial.memory[..trial.start]) {
                return Some((ViolationKind::UndeclaredWrite, i as i64 - trial.start as i64));
            }
            if let Some(i) = spoiled(&trial.memory[end..]) {
                return Some((ViolationKind::UndeclaredWrite, (trial.bytes + i) as i64));
            }
        }
        // SAFETY: the span lies in live memory, which no other code accesses while the kernel runs.
        let real = unsafe {
            std::slice::from_raw_parts(with_exposed_provenance::<u8>(self.host), self.flags.len())
        };
        (0..self.flags.len()).find_map(|i| {
            let (x, y) = (a.memory[a.start + i], b.memory[b.start + i]);
            let kind = if self.flags[i] & WRITE == 0 {
                let keeps = |now: u8, poison: u8| now == self.kept(i, poison);
                let unchanged = keeps(x, POISON[0]) && keeps(y, POISON[1]);
                (!unchanged || real[i] != self.before[i]).then_some(ViolationKind::UndeclaredWrite)
            } else if self.flags[i] & READ == 0 && (x, y) == (POISON[0], POISON[1]) {
                Some(ViolationKind::MissingWrite)
            } else {
                (x != y || x != real[i]).then_some(ViolationKind::UndeclaredRead)
            };
            kind.map(|kind| (kind, i as i64))
        })
    }

    fn kept(&self, index: usize, poison: u8) -> u8 {
        if self.flags[index] & READ == 0 { poison } else { self.before[index] }
    }
}

impl Trial {
    fn new(span: &CoveredRange, poison: u8) -> Self {
        let bytes = span.before.len();
        let mut memory = vec![poison; bytes + 2 * GUARD + ALIGN];
        let wanted = span.host % ALIGN;
        let from = memory.as_ptr().addr() + GUARD;
        let start = GUARD + (wanted + ALIGN - from % ALIGN) % ALIGN;
        for i in 0..bytes {
            memory[start + i] = span.kept(i, poison);
        }
        Self { memory, start, bytes }
    }
}
