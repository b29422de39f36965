//! Tests of single kinds of races, and of single kinds of order.

use std::panic::Location;
use std::sync::Arc;

use smallvec::smallvec;
use warpline_cuda_sys_safe::Access::{Read, ReadWrite, Write};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_stream::Stream;

use crate::launch::{copy_bytes, enqueue, read_bytes, write_bytes};
use crate::race::Touch;
use crate::{
    Access, DType, Layout, Operand, Race, RaceReport, Result, Runtime, RuntimeConfig, Site,
    Storage, SyncPolicy, View,
};

pub(super) const BYTES: usize = 4096;

pub(super) fn runtime(race_report: RaceReport) -> Runtime {
    let sync_policy = SyncPolicy::Manual;
    let config = RuntimeConfig { sync_policy, race_report, ..RuntimeConfig::default() };
    Runtime::new(Arc::new(NullDriver::new(2)), config).unwrap()
}

pub(super) fn streams<const N: usize>(runtime: &Runtime) -> [Stream; N] {
    [(); N].map(|()| runtime.device(0).unwrap().device().exclusive_stream(0).unwrap())
}

#[track_caller]
pub(super) fn run<'a>(on: &Stream, op: &'static str, touches: &[Touch<'a>]) -> Result<()> {
    let site = Site::here(op);
    enqueue(on, touches.iter().copied(), site, |_| Ok(())).map(drop)
}

pub(super) fn whole(storage: &Storage, access: Access) -> Touch<'_> {
    Touch::range(storage, 0, storage.bytes(), access)
}

pub(super) fn view<'a>(storage: &'a Storage, layout: &'a Layout, access: Access) -> Touch<'a> {
    Operand { view: View { storage, layout, dtype: DType::F32 }, access }.into()
}

/// Returns the only race.
#[track_caller]
pub(super) fn the_race(runtime: &Runtime) -> Race {
    let mut races = runtime.take_races();
    assert_eq!(races.len(), 1, "{races:#?}");
    races.remove(0)
}

#[test]
fn a_race_names_both_accesses_and_the_remedy() {
    let runtime = runtime(RaceReport::Collect);
    let [a, b] = streams(&runtime);
    let (line, x) = (line!(), Storage::device(&runtime, BYTES, &a).unwrap());
    let (_, y) = (line!(), Storage::device(&runtime, BYTES, &b).unwrap());
    run(&a, "normal_", &[Touch::range(&x, 0, 300, Write)]).unwrap();
    run(&b, "add", &[whole(&y, Write), Touch::range(&x, 100, 400, Read)]).unwrap();
    let race = the_race(&runtime);
    assert_eq!((race.first.op, race.first.argument, race.first.access), ("normal_", 0, Write));
    assert_eq!((race.second.op, race.second.argument, race.second.access), ("add", 1, Read));
    assert_eq!((race.first.stream.as_ref(), race.second.stream.as_ref()), (Some(&a), Some(&b)));
    assert_eq!((race.bytes.clone(), race.certain, race.is_reuse()), (100..300, true, false));
    assert_eq!((race.allocated.file(), race.allocated.line()), (file!(), line));
    let at = |side: &crate::RacingUse| side.location.to_string();
    assert_eq!(
        race.to_string(),
        format!(
            "race: `add` at {} (argument 1, input) on {b} reads memory that `normal_` at {} \
             (argument 0, output) on {a} may still be using; bytes 100 to 300 of the 4096 \
             allocated at {}. To order them, let {b} wait for {a} (`wait_stream`, or `wait_event` \
             for an event recorded after `normal_`) before `add`",
            at(&race.second),
            at(&race.first),
            race.allocated,
        )
    );
    let picture = format!("{race:#}");
    let lines: Vec<&str> = picture.lines().skip(1).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with(&a.to_string()) && lines[0].contains("[normal_]──"));
    assert!(lines[2].starts_with(&b.to_string()) && lines[2].contains("──[add]──"));
    let end = |line: &str, op: &str| line.chars().take_while(|c| *c != '[').count() + op.len() + 2;
    assert!(end(lines[0], "normal_") <= end(lines[2], ""), "time runs to the right:\n{picture}");
    assert_eq!(lines[0].chars().count(), lines[2].chars().count(), "{picture}");
}

#[test]
fn views_race_where_they_share_bytes() {
    let runtime = runtime(RaceReport::Collect);
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    let matrix = Layout::contiguous(&[32, 32]).unwrap();
    let left = matrix.narrow(1, 0, 16).unwrap();
    let right = matrix.narrow(1, 16, 16).unwrap();
    run(&a, "fill_", &[view(&x, &left, Write)]).unwrap();
    run(&b, "fill_", &[view(&x, &right, Write)]).unwrap();
    assert!(runtime.take_races().is_empty(), "disjoint columns, although interleaved");
    let even = matrix.slice(0, 0, 32, 2).unwrap();
    let odd = matrix.slice(0, 1, 32, 2).unwrap();
    let y = Storage::device(&runtime, BYTES, &a).unwrap();
    run(&a, "fill_", &[view(&y, &even, Write)]).unwrap();
    run(&b, "fill_", &[view(&y, &odd.transpose(0, 1).unwrap(), Write)]).unwrap();
    assert!(runtime.take_races().is_empty(), "disjoint rows");
    run(&b, "exp", &[view(&y, &matrix.select(1, 3).unwrap(), Read)]).unwrap();
    assert_eq!(the_race(&runtime).first.stream, Some(a.clone()), "a column crosses every row");
    // One op with two arguments in one storage does not race with itself.
    let z = Storage::device(&runtime, BYTES, &a).unwrap();
    run(&a, "add_", &[whole(&z, ReadWrite), whole(&z, Read)]).unwrap();
    assert!(runtime.take_races().is_empty());
}

#[test]
fn undecided_overlaps_are_reported_as_possible_races() {
    // Whether the views share an element is a knapsack problem.
    let dims = || (smallvec![50, 50, 50, 50], smallvec![6006, 10010, 15015, 30030]);
    let (sizes, strides) = dims();
    let one = Layout::from_parts(sizes, strides, 0);
    let (sizes, strides) = dims();
    let other = Layout::from_parts(sizes, strides, 1);
    for report in [RaceReport::Collect, RaceReport::Error] {
        let runtime = runtime(report);
        let [a, b] = streams(&runtime);
        let x = Storage::device(&runtime, 16 << 20, &a).unwrap();
        run(&a, "fill_", &[view(&x, &one, Write)]).unwrap();
        run(&b, "fill_", &[view(&x, &other, Write)]).unwrap();
        assert!(runtime.take_races().is_empty());
        let possible = runtime.take_possible_races();
        assert_eq!(possible.len(), 1);
        assert!(!possible[0].certain && possible[0].to_string().starts_with("possible race: "));
    }
}

/// Allocates memory on `a`, uses it on `b`, frees it, and twice writes a new tensor at the same
/// address. Returns the races.
fn reuse(before_free: impl Fn(&Storage, &Stream, &Stream)) -> Vec<Race> {
    let runtime = runtime(RaceReport::Collect);
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    run(&a, "ones", &[whole(&x, Write)]).unwrap();
    b.wait_stream(&a).unwrap();
    run(&b, "sum", &[whole(&x, Read)]).unwrap();
    assert!(runtime.take_races().is_empty());
    before_free(&x, &a, &b);
    let address = x.address();
    drop(x);
    // Reuse the block twice: the accesses to `x` must still be known when the second tensor gets
    // it.
    for _ in 0..2 {
        let y = Storage::device(&runtime, BYTES, &a).unwrap();
        assert_eq!(y.address(), address, "the block was not reused");
        run(&a, "zeros", &[Touch::range(&y, 100, 8, Write)]).unwrap();
    }
    runtime.take_races()
}

#[test]
fn a_block_that_is_given_out_too_early_is_reported() {
    let races = reuse(|_, _, _| {});
    assert_eq!(races.len(), 2, "{races:?}");
    for race in &races {
        assert_eq!((race.first.op, race.second.op), ("sum", "zeros"));
        assert!(race.is_reuse() && race.bytes == (100..108));
        let text = race.to_string();
        assert!(
            text.contains("`record_stream`") && text.contains("given out again too early"),
            "{text}"
        );
    }
}

#[test]
fn a_block_that_is_reused_in_time_is_not_reported() {
    assert!(reuse(|x, _, b| x.record_stream(b).unwrap()).is_empty(), "record_stream");
    assert!(reuse(|_, a, b| a.wait_stream(b).unwrap()).is_empty(), "the allocating stream waits");
    assert!(reuse(|_, _, b| b.synchronize().unwrap()).is_empty(), "the host has waited");
    // Work ordered before the recorded stream's work is also complete.
    let through = |x: &Storage, _: &Stream, b: &Stream| {
        let [c] = streams(x.runtime());
        c.wait_stream(b).unwrap();
        x.record_stream(&c).unwrap();
    };
    assert!(reuse(through).is_empty(), "record_stream of a stream that waited");
    let races = reuse(|x, a, _| x.record_stream(a).unwrap());
    assert_eq!(races.len(), 2, "record_stream has no effect for the allocating stream");
}

/// If a stream other than the stream of the allocation uses new memory first, it must wait.
#[test]
fn new_memory_is_ordered_only_on_the_stream_it_was_allocated_for() {
    for wait in [true, false] {
        let runtime = runtime(RaceReport::Collect);
        let [a, b] = streams(&runtime);
        let x = Storage::device(&runtime, BYTES, &a).unwrap();
        run(&a, "ones", &[whole(&x, Write)]).unwrap();
        drop(x);
        let y = Storage::device(&runtime, BYTES, &a).unwrap();
        if wait {
            b.wait_stream(&a).unwrap();
        }
        run(&b, "zeros", &[whole(&y, Write)]).unwrap();
        let races = runtime.take_races();
        assert_eq!(races.len(), usize::from(!wait));
        assert!(races.iter().all(|r| r.is_reuse() && r.mend().contains("`wait_stream`")));
        assert!(races.iter().all(|r| !r.to_string().contains("too early")));
    }
}

#[test]
fn host_code_races_with_copies_of_page_locked_memory() {
    let runtime = runtime(RaceReport::Collect);
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    let host = Storage::pinned(&runtime, BYTES).unwrap();
    let mut out = [0; 8];
    let here = Location::caller();
    copy_bytes(&a, (&host, 0), (&x, 0), 1024, true, here).unwrap();
    read_bytes((&host, 1024), &mut out).unwrap();
    assert!(runtime.take_races().is_empty(), "beyond the copy");
    let (line, read) = (line!(), read_bytes((&host, 1000), &mut out));
    read.unwrap();
    let race = the_race(&runtime);
    assert_eq!((race.second.op, race.second.stream.clone()), ("read_bytes", None));
    assert_eq!((race.second.location.line(), race.bytes.clone()), (line, 1000..1008));
    let text = race.to_string();
    assert!(text.contains("on the host reads") && text.contains("synchronise"), "{text}");
    // The read has waited for the copy, for soundness. This wait does not count as order.
    run(&b, "exp", &[whole(&x, Write)]).unwrap();
    assert_eq!(the_race(&runtime).first.stream, Some(a.clone()));
    a.synchronize().unwrap();
    read_bytes((&host, 1000), &mut out).unwrap();
    // During a copy to the device, host code may read the source but not write it.
    copy_bytes(&a, (&x, 0), (&host, 0), 1024, true, here).unwrap();
    read_bytes((&host, 0), &mut out).unwrap();
    runtime.take_races().iter().for_each(|r| assert_eq!(r.second.op, "copy_"));
    write_bytes((&host, 0), &out).unwrap();
    assert_eq!(the_race(&runtime).second.op, "write_bytes");
    // A CPU op counts as host code.
    let layout = Layout::contiguous(&[4]).unwrap();
    let small = View { storage: &host, layout: &layout, dtype: DType::F32 };
    crate::testing::fill(crate::Target::Cpu(&runtime), small, 1).unwrap();
    assert_eq!(the_race(&runtime).second.op, "fill_");
    // A blocking copy counts as a synchronization by the program.
    b.synchronize().unwrap();
    copy_bytes(&a, (&x, 0), (&host, 0), 1024, false, here).unwrap();
    write_bytes((&host, 0), &out).unwrap();
    assert!(runtime.take_races().is_empty());
}

#[test]
fn an_error_keeps_the_op_from_being_enqueued() {
    let runtime = runtime(RaceReport::Error);
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    run(&a, "ones", &[whole(&x, Write)]).unwrap();
    let before = b.last_op();
    for _ in 0..2 {
        let error = run(&b, "sum", &[whole(&x, Read)]).unwrap_err();
        assert_eq!(error.find::<Race>().map(|race| race.first.op), Some("ones"), "{error}");
    }
    assert_eq!(b.last_op(), before);
    assert!(runtime.take_races().is_empty());
    b.wait_stream(&a).unwrap();
    run(&b, "sum", &[whole(&x, Read)]).unwrap();
}

#[test]
fn no_history_is_kept_without_race_reports_or_with_automatic_sync() {
    let runtime = runtime(RaceReport::Off);
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    let racy = || {
        run(&a, "ones", &[whole(&x, Write)]).unwrap();
        run(&b, "zeros", &[whole(&x, Write)]).unwrap();
        (x.uses().history.is_some(), runtime.take_races().len())
    };
    assert_eq!(racy(), (false, 0));
    runtime.set_race_report(RaceReport::Collect);
    runtime.set_sync_policy(SyncPolicy::Auto);
    assert_eq!(racy(), (false, 0));
    runtime.set_sync_policy(SyncPolicy::Manual);
    assert_eq!(racy(), (true, 1));
}

/// Checks that the history of a storage does not grow without bound.
#[test]
fn histories_stay_small() {
    let runtime = runtime(RaceReport::Collect);
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    for i in 0..10_000 {
        run(&a, "fill_", &[Touch::range(&x, i % 32 * 128, 128, Write)]).unwrap();
        b.wait_stream(&a).unwrap();
        run(&b, "exp", &[Touch::range(&x, i % 32 * 128, 128, Read)]).unwrap();
        a.wait_stream(&b).unwrap();
    }
    let entries = x.uses().history.as_ref().unwrap().accesses.len();
    assert!(entries <= 64, "{entries}");
    run(&a, "zero_", &[whole(&x, Write)]).unwrap();
    assert_eq!(
        x.uses().history.as_ref().unwrap().accesses.len(),
        1,
        "the last access replaces all others"
    );
    // No later access replaces these accesses, but the host has observed that they are complete.
    for i in 0..10_000 {
        run(&a, "fill_", &[Touch::range(&x, i % 4000, 1 + i % 91, Write)]).unwrap();
        if i % 100 == 0 {
            a.synchronize().unwrap();
        }
    }
    let entries = x.uses().history.as_ref().unwrap().accesses.len();
    assert!(entries <= 400, "{entries}");
    drop(x);
    for _ in 0..1000 {
        let y = Storage::device(&runtime, BYTES, &a).unwrap();
        run(&a, "ones", &[whole(&y, Write)]).unwrap();
    }
    let blocks = runtime.detector().freed().len();
    assert!(blocks <= 2, "{blocks} freed blocks are remembered");
    assert!(runtime.take_races().is_empty());
}

#[test]
fn launch_blocking_hides_no_race() {
    let config = RuntimeConfig {
        sync_policy: SyncPolicy::Manual,
        launch_blocking: true,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(Arc::new(NullDriver::new(1)), config).unwrap();
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    run(&a, "ones", &[whole(&x, Write)]).unwrap();
    run(&b, "sum", &[whole(&x, Read)]).unwrap();
    assert_eq!(the_race(&runtime).second.op, "sum");
}

/// Eight threads use memory of their own on streams of their own, read common memory, and share one
/// stream. All accesses are ordered.
#[test]
fn ordered_threads_have_no_race() {
    let runtime = runtime(RaceReport::Collect);
    let [shared] = streams(&runtime);
    let common = Storage::device(&runtime, BYTES, &shared).unwrap();
    run(&shared, "ones", &[whole(&common, Write)]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let [own] = streams(&runtime);
                own.wait_stream(&shared).unwrap();
                let kept = Storage::device(&runtime, BYTES, &shared).unwrap();
                for i in 0..500 {
                    let x = Storage::device(&runtime, BYTES, &own).unwrap();
                    run(&own, "exp", &[whole(&x, Write), whole(&common, Read)]).unwrap();
                    run(&shared, "add_", &[whole(&kept, ReadWrite), whole(&common, Read)]).unwrap();
                    let y = Storage::device(&runtime, BYTES, &shared).unwrap();
                    own.wait_stream(&shared).unwrap();
                    run(&own, "mul", &[whole(&y, Write), whole(&x, Read)]).unwrap();
                    if i % 2 == 0 {
                        y.record_stream(&own).unwrap();
                    } else {
                        shared.wait_stream(&own).unwrap();
                    }
                }
            });
        }
    });
    assert!(runtime.take_races().is_empty() && runtime.take_possible_races().is_empty());
}
