//! S12: a random program over several streams has the same result as on one stream.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use warpline_stream::{Devices, OpNumber, Stream};

use crate::support::{on_simulated, schedules, simulated, work};

/// `cells[dst] = 3 * cells[dst] + cells[src] + 1` on a stream.
#[derive(Clone, Debug)]
struct CellOp {
    stream: usize,
    dst: usize,
    src: usize,
}

const CELLS: usize = 4;
const STREAMS: usize = 5;

type Cells = Arc<Mutex<[u64; CELLS]>>;

fn apply(cells: &mut [u64; CELLS], op: &CellOp) {
    cells[op.dst] = cells[op.dst].wrapping_mul(3).wrapping_add(cells[op.src]).wrapping_add(1);
}

/// The last write of a cell, and the reads since then.
#[derive(Default)]
struct CellUses {
    write: Option<(Stream, OpNumber)>,
    reads: Vec<(Stream, OpNumber)>,
}

/// Runs a program. With `ordered`, every use of a cell waits for the uses that it conflicts with.
fn run(devices: &Devices, program: &[CellOp], ordered: bool) -> [u64; CELLS] {
    let streams: Vec<Stream> = (0..STREAMS)
        .map(|i| {
            let device = devices.get(i % devices.count()).unwrap();
            if i == 0 {
                device.default_stream().clone()
            } else {
                device.stream_from_pool(0).unwrap()
            }
        })
        .collect();
    let cells = Cells::default();
    let mut uses: [CellUses; CELLS] = Default::default();
    for op in program {
        let stream = &streams[op.stream];
        if ordered {
            let before =
                uses[op.src].write.iter().chain(&uses[op.dst].write).chain(&uses[op.dst].reads);
            for (other, number) in before {
                stream.wait_for(other, *number).unwrap();
            }
        }
        let (cells, op_) = (cells.clone(), op.clone());
        let number = work(stream, move || apply(&mut cells.lock().unwrap(), &op_));
        uses[op.src].reads.push((stream.clone(), number));
        uses[op.dst] = CellUses { write: Some((stream.clone(), number)), reads: Vec::new() };
    }
    for device in devices {
        device.synchronize().unwrap();
    }
    *cells.lock().unwrap()
}

fn expected(program: &[CellOp]) -> [u64; CELLS] {
    let mut cells = [0; CELLS];
    program.iter().for_each(|op| apply(&mut cells, op));
    cells
}

fn program() -> impl Strategy<Value = Vec<CellOp>> {
    let op =
        (0..STREAMS, 0..CELLS, 0..CELLS).prop_map(|(stream, dst, src)| CellOp { stream, dst, src });
    prop::collection::vec(op, 1..60)
}

#[test]
fn s12_random_programs_agree_with_one_stream() {
    let config = Config { cases: 32, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&program(), |program| {
            for count in 1..=3 {
                for seed in 0..schedules() {
                    for driver in simulated(count, seed) {
                        let at = format!("{count} device(s) of {}, schedule {seed}", driver.name());
                        let devices = Devices::new(driver).unwrap();
                        if run(&devices, &program, true) != expected(&program) {
                            return Err(TestCaseError::fail(at));
                        }
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

/// Checks that the schedules can reveal a missing wait.
#[test]
fn s12_without_waits_some_schedule_gives_another_result() {
    let program: Vec<CellOp> = (0..40)
        .map(|i| CellOp { stream: i % STREAMS, dst: i % CELLS, src: (i + 1) % CELLS })
        .collect();
    let wrong = std::cell::Cell::new(0);
    on_simulated(|devices| {
        if run(devices, &program, false) != expected(&program) {
            wrong.set(wrong.get() + 1);
        }
    });
    assert!(wrong.get() > 0);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s12_a_program_agrees_with_one_stream() {
    crate::support::on_gpus(|devices| {
        let program: Vec<CellOp> = (0..400)
            .map(|i| CellOp { stream: i * 7 % STREAMS, dst: i * 5 % CELLS, src: i * 3 % CELLS })
            .collect();
        assert_eq!(run(devices, &program, true), expected(&program));
    });
}
