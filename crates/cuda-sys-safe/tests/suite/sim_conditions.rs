//! Conditional nodes of the simulated driver: branches, loops, nesting, and refused calls.

use std::ffi::CStr;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{DeviceMemory, LaunchToken, Module, Stream};
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

use crate::one_thread;

const PTX: &str = ".version 8.0\n.target sm_75\n\
    .visible .entry k(\n.param .u64 a,\n.param .align 8 .b8 p[8]\n)\n{ ret; }\n";
const KERNEL: &CStr = c"k";

/// Subtracts 1 from a counter, and sets the condition in the parameters to whether the counter was
/// positive.
unsafe fn count_down(launch: &HostLaunch<'_>) {
    let condition: u64 = bytemuck::pod_read_unaligned(launch.params);
    let counter = launch.pointers[0].cast::<i32>();
    // SAFETY: tests declare one `i32`.
    unsafe {
        set_graph_condition(condition, u32::from(*counter > 0));
        *counter -= 1;
    }
}

/// Adds 1 to a counter.
unsafe fn count_up(launch: &HostLaunch<'_>) {
    // SAFETY: tests declare one `i32`.
    unsafe { *launch.pointers[0].cast::<i32>() += 1 };
}

struct Machine {
    sim: Arc<SimDriver>,
    driver: Arc<dyn Driver>,
    module: Module,
    token: LaunchToken,
}

impl Machine {
    fn new(schedule: Schedule) -> Self {
        let sim = SimConfig { schedule, ..SimConfig::new(2) }.build();
        let driver: Arc<dyn Driver> = sim.clone();
        let module = Module::load_ptx(&driver, 0, PTX).unwrap();
        // SAFETY: the tests keep all memory, and end bodies before their graphs.
        let token = unsafe { LaunchToken::new() };
        Self { sim, driver, module, token }
    }

    fn stream(&self) -> Stream {
        let flags = StreamFlags { non_blocking: true, priority: 0 };
        Stream::new(&self.driver, 0, flags).unwrap()
    }

    fn counter(&self) -> DeviceMemory {
        DeviceMemory::new(&self.driver, 0, 4).unwrap()
    }

    fn launch(&self, host: HostKernel, counter: &DeviceMemory, condition: u64, stream: &Stream) {
        let function = self.module.function(KERNEL).unwrap();
        let code = one_thread(function.handle());
        let operand = Footprint {
            ptr: counter.ptr(),
            device: 0,
            item_size: 4,
            sizes: &[],
            strides: &[],
            access: Access::ReadWrite,
        };
        let (location, params) = (Location::caller(), condition.to_ne_bytes());
        let (op, footprints, params) = ("test", &[operand][..], &params[..]);
        let launch = Launch { op, code, host, footprints, params, location };
        // SAFETY: the tests keep the memory until the stream is synchronized.
        unsafe { self.driver.launch(stream.handle(), &launch) }.unwrap();
    }

    fn set(&self, counter: &DeviceMemory, value: u32, stream: &Stream) {
        // SAFETY: the tests keep the memory until the stream is synchronized.
        unsafe {
            let value = MemsetValue::U32(value);
            self.driver.memset_async(counter.ptr(), value, 1, stream.handle()).unwrap();
        }
    }

    fn get(&self, counter: &DeviceMemory) -> i32 {
        let mut value = 0i32;
        let dst = CopyEnd::Host(NonNull::from(&mut value).cast());
        let src = CopyEnd::Device { device: 0, ptr: counter.ptr() };
        // SAFETY: both ends have four bytes, and the copy is synchronous.
        unsafe { self.driver.memcpy(0, &Copy { dst, src, bytes: 4 }) }.unwrap();
        value
    }

    /// Captures a loop on `counter` whose body is `body`.
    fn repeat(&self, counter: &DeviceMemory, stream: &Stream, body: impl FnOnce(&Stream)) {
        let condition = stream.create_condition(self.token).unwrap();
        self.launch(count_down, counter, condition.raw(), stream);
        let inside = self.stream();
        let kind = ConditionalKind::While;
        let capture = stream.capture_conditional(condition, kind, &inside, self.token).unwrap();
        body(&inside);
        self.launch(count_down, counter, condition.raw(), &inside);
        capture.end().unwrap();
    }
}

#[test]
fn loops_and_branches_nest() {
    for schedule in
        [Schedule::Eager, Schedule::Lazy].into_iter().chain((0..8).map(Schedule::Seeded))
    {
        let machine = Machine::new(schedule);
        let stream = machine.stream();
        let [outer, inner, branch, sum] = [(); 4].map(|()| machine.counter());
        let capture = stream.begin_capture(CaptureMode::Relaxed, machine.token).unwrap();
        machine.repeat(&outer, &stream, |body| {
            machine.set(&inner, 3, body);
            machine.repeat(&inner, body, |body| machine.launch(count_up, &sum, 0, body));
            // Positive in the first two runs.
            let condition = body.create_condition(machine.token).unwrap();
            machine.launch(count_down, &branch, condition.raw(), body);
            let inside = machine.stream();
            let branch = body
                .capture_conditional(condition, ConditionalKind::If, &inside, machine.token)
                .unwrap();
            machine.launch(count_up, &sum, 0, &inside);
            branch.end().unwrap();
        });
        let exec = capture.end().unwrap().instantiate().unwrap();
        for runs in [0, 1, 4] {
            machine.set(&outer, runs, &stream);
            machine.set(&branch, 2, &stream);
            machine.set(&sum, 0, &stream);
            // SAFETY: the memory is alive, and only this stream uses it.
            unsafe { exec.launch(&stream) }.unwrap();
            stream.synchronize().unwrap();
            assert_eq!(machine.get(&sum), (3 * runs + runs.min(2)) as i32, "{schedule:?}");
        }
    }
}

#[test]
fn a_condition_is_for_one_node_of_its_graph() {
    let machine = Machine::new(Schedule::Lazy);
    let (stream, inside, other) = (machine.stream(), machine.stream(), machine.stream());
    let code = |error: DriverError| error.code();
    let error = stream.create_condition(machine.token).unwrap_err();
    assert_eq!(code(error), Some(CudaCode::ILLEGAL_STATE), "not captured");
    let capture = stream.begin_capture(CaptureMode::Relaxed, machine.token).unwrap();
    let elsewhere = other.begin_capture(CaptureMode::Relaxed, machine.token).unwrap();
    let condition = stream.create_condition(machine.token).unwrap();
    let add = |stream: &Stream, inside: &Stream| {
        stream.capture_conditional(condition, ConditionalKind::If, inside, machine.token)
    };
    assert_eq!(code(add(&other, &inside).unwrap_err()), Some(CudaCode::INVALID_VALUE));
    let body = add(&stream, &inside).unwrap();
    let third = machine.stream();
    assert_eq!(code(add(&stream, &third).unwrap_err()), Some(CudaCode::INVALID_VALUE));
    drop(body);
    drop(elsewhere);
    // A condition that is never set is 0.
    let exec = capture.end().unwrap().instantiate().unwrap();
    // SAFETY: the graph uses no memory.
    unsafe { exec.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    drop((exec, stream, inside, other, third));
    drop(machine.module);
    assert!(machine.sim.usage().all_released(), "{:?}", machine.sim.usage());
}

#[test]
fn a_loop_without_an_end_loses_the_device() {
    let machine = Machine::new(Schedule::Lazy);
    let (stream, counter) = (machine.stream(), machine.counter());
    machine.set(&counter, i32::MAX as u32, &stream);
    let capture = stream.begin_capture(CaptureMode::Relaxed, machine.token).unwrap();
    machine.repeat(&counter, &stream, |_| ());
    let exec = capture.end().unwrap().instantiate().unwrap();
    // SAFETY: the memory is alive, and only this stream uses it.
    unsafe { exec.launch(&stream) }.unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::LAUNCH_TIMEOUT), "{error}");
    assert!(error.to_string().contains("100000 runs"), "{error}");
}
