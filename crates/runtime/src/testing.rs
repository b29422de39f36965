//! Helpers for tests of ops, which run the same cases on the CPU and on devices.

use std::panic::Location;
use std::path::Path;
use std::sync::PoisonError;

use crate::host::{Cast, HostElement, Number, SharedPtr};
use crate::iter::{self, HostLoop, Index, Kernels, Variant, Widths};
use crate::module::{Program, Source, disk, loaded_text};
use crate::{
    DType, Layout, Result, Runtime, RuntimeConfig, Scalar, Site, Storage, Target, View, launch,
};
use warpline_alloc::AllocatorConfig;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_cuda_sys_safe::{DriverError, HostLaunch};

/// Returns simulated devices with 8 GiB of memory, less than the default, because the simulator reserves addresses for
/// all memory, and addresses are scarce under valgrind.
pub fn small_sim(devices: usize) -> SimConfig {
    SimConfig { capacity: 8 << 30, ..SimConfig::new(devices) }
}

/// Returns the PTX that a device with this capability and driver loads for one kernel of `ptx`, and whether the kernel
/// waits for earlier work of its stream itself.
#[must_use]
pub fn loaded_ptx(ptx: &str, kernel: &str, capability: (u32, u32), version: u32) -> (String, bool) {
    loaded_text(ptx, kernel, capability, version)
}

/// Returns the PTX in a file of the cache of compiled code. `None` if the file is not trusted or not intact.
#[must_use]
pub fn cached_ptx(folder: &Path, name: &str) -> Option<String> {
    disk::load(folder, name)
}

/// Writes PTX to a file of the cache of compiled code.
pub fn cache_ptx(folder: &Path, name: &str, ptx: &str) {
    disk::store(folder, name, ptx);
}

/// Runs a test on every target that needs no hardware: the CPU and a simulated device.
pub fn on_every_target(body: impl Fn(Target<'_>)) {
    let reason = DriverError::NoDevice { reason: "this test runs on the CPU".into() };
    body(Target::Cpu(&Runtime::without_cuda(reason, &RuntimeConfig::default())));
    let sim = SimConfig { schedule: Schedule::Lazy, check_footprints: true, ..small_sim(1) };
    let sim = sim.build();
    on_driver(Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap(), body);
    assert!(sim.violations().is_empty(), "{:?}", sim.violations());
    assert!(sim.overruns().is_empty(), "{:?}", sim.overruns());
}

/// Runs a test on a real device, or on the simulated one that `WARPLINE_DRIVER` names.
pub fn on_gpu(body: impl Fn(Target<'_>)) {
    let driver = warpline_cuda_sys_safe::open(driver_spec().as_deref(), None).unwrap();
    // Read the options from the environment, so that a memory checker can make every block a
    // separate allocation of the driver.
    let allocator = AllocatorConfig::from_env_with(|name| std::env::var(name)).unwrap();
    let config = RuntimeConfig { allocator, ..RuntimeConfig::default() };
    on_driver(Runtime::new(driver, config).unwrap(), body);
}

fn driver_spec() -> Option<String> {
    std::env::var("WARPLINE_DRIVER").ok()
}

/// Returns whether [`on_gpu`] runs on a simulated device.
pub fn gpu_is_simulated() -> bool {
    driver_spec().is_some_and(|spec| spec.trim().starts_with("sim"))
}

fn on_driver(runtime: Runtime, body: impl Fn(Target<'_>)) {
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    body(Target::Cuda(&runtime, device, &stream));
    stream.synchronize().unwrap();
}

/// Kernels of [`fill`] and [`copy`]. They have names only: simulated devices run the host code
/// below.
pub(crate) static KERNELS: Program =
    Program::new("testing", &["fill", "copy"], iter::KERNELS, |_, _| Source::new());
pub(crate) const SINGLE: Widths = Widths { vector: 1, run: 1 };

/// Sets every byte of a view's elements, on the CPU and on simulated devices.
///
/// # Errors
/// The same as [`Kernels::launch`].
#[track_caller]
pub fn fill(target: Target<'_>, out: View<'_>, byte: u8) -> Result<()> {
    struct Set;
    // SAFETY: writes the `size` bytes of each element of the operand.
    unsafe impl HostLoop<[u32; 2], 1> for Set {
        const VARIANT: &'static str = "fill";

        unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<1>, &[byte, size]: &[u32; 2]) {
            each(index, |[at]| {
                let at = SharedPtr::<u8>::operand(launch, 0).at(at * size as isize);
                // SAFETY: `at` is an element of the operand, and elements have `size` bytes.
                unsafe { at.write_bytes(byte as u8, size as usize) };
            });
        }
    }
    let args = [byte.into(), out.dtype.size() as u32];
    static SET: Kernels<[u32; 2], 1> = Kernels::new(by_dtype!(all T => {
        // SAFETY: the loop writes the operand, whose elements have the size in `args`. No GPU runs
        // the kernels.
        Some(unsafe { Variant::new::<Set>(&KERNELS, [T::DTYPE], SINGLE) })
    }));
    SET.launch(target, Site::here("fill_"), out.dtype, [out], args)
}

/// Copies a view to another view of the same sizes and dtype, on the CPU and on simulated devices.
///
/// # Errors
/// The same as [`Kernels::launch`].
#[track_caller]
pub fn copy(target: Target<'_>, from: View<'_>, to: View<'_>) -> Result<()> {
    struct Put;
    // SAFETY: reads the bytes of each element of the first operand, and writes those of the second.
    unsafe impl HostLoop<u32, 2> for Put {
        const VARIANT: &'static str = "copy";

        unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<2>, &size: &u32) {
            let at = |operand, element: isize| {
                SharedPtr::<u8>::operand(launch, operand).at(element * size as isize)
            };
            each(index, |[from, to]| {
                // SAFETY: `from` and `to` are elements of the operands, and elements have `size`
                // bytes. `copy_to` allows both to be the same.
                unsafe { at(0, from).copy_to(at(1, to), size as usize) };
            });
        }
    }
    static PUT: Kernels<u32, 2> = Kernels::new(by_dtype!(all T => {
        // SAFETY: the loop reads and writes elements of the size in its argument. No GPU runs the
        // kernels.
        Some(unsafe { Variant::new::<Put>(&KERNELS, [T::DTYPE; 2], SINGLE) })
    }));
    PUT.launch(target, Site::here("copy_"), to.dtype, [from, to], to.dtype.size() as u32)
}

/// Calls `f` with the offsets of each element.
fn each<const N: usize>(index: &Index<N>, mut f: impl FnMut([isize; N])) {
    (0..index.numel()).for_each(|i| f(index.offsets(i)));
}

/// A tensor with its memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Storage of the elements.
    pub storage: Storage,
    /// Positions of the elements in the storage.
    pub layout: Layout,
    /// Type of the elements.
    pub dtype: DType,
}

impl Tensor {
    /// Creates a contiguous tensor with these values, converted as [`Cast`] does.
    pub fn new(target: Target<'_>, dtype: DType, sizes: &[usize], values: &[f64]) -> Self {
        let layout = Layout::contiguous(sizes).unwrap();
        assert_eq!(layout.numel(), values.len());
        let bytes = dispatch!(dtype, all T => bytes(values.iter().map(|&v| to::<T>(v))));
        let host = Storage::pageable(target.runtime(), bytes.len().max(1)).unwrap();
        with_bytes(&host, |memory| memory[..bytes.len()].copy_from_slice(&bytes));
        let storage = match target {
            Target::Cpu(_) => host,
            Target::Cuda(runtime, _, stream) => {
                let device = Storage::device(runtime, bytes.len().max(1), stream).unwrap();
                let here = Location::caller();
                launch::copy_bytes(stream, (&device, 0), (&host, 0), bytes.len(), false, here)
                    .unwrap();
                device
            }
        };
        Self { storage, layout, dtype }
    }

    /// Creates a tensor filled with a value that tests do not expect in results.
    pub fn garbage(target: Target<'_>, dtype: DType, sizes: &[usize]) -> Self {
        Self::new(target, dtype, sizes, &vec![77.0; sizes.iter().product()])
    }

    /// Returns the same memory with another layout.
    pub fn with(&self, f: impl FnOnce(&Layout) -> Result<Layout>) -> Self {
        Self { layout: f(&self.layout).unwrap(), ..self.clone() }
    }

    /// Returns a view of the tensor, to pass to an op.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }

    /// Removes the mark of a failed index check, so that a test can read the kernel's results.
    pub fn unmarked(&self) -> &Self {
        self.storage.uses().marks = Default::default();
        self.storage.set_marked(false);
        self
    }

    /// Returns the values in row-major order, after all work is complete.
    pub fn values(&self, target: Target<'_>) -> Vec<Scalar> {
        let n = self.storage.bytes();
        let host = match target {
            Target::Cpu(_) => self.storage.clone(),
            Target::Cuda(runtime, _, stream) => {
                let host = Storage::pageable(runtime, n).unwrap();
                let here = Location::caller();
                launch::copy_bytes(stream, (&host, 0), (&self.storage, 0), n, false, here).unwrap();
                host
            }
        };
        let mut at = vec![self.layout.offset() as isize];
        for (&size, &stride) in self.layout.sizes().iter().zip(self.layout.strides()) {
            let steps = 0..size as isize;
            at = at.iter().flat_map(|a| steps.clone().map(move |i| a + i * stride)).collect();
        }
        with_bytes(&host, |memory| {
            dispatch!(self.dtype, all T => {
                at.iter().map(|&i| element::<T>(memory, i as usize).get().to_scalar()).collect()
            })
        })
    }

    /// Returns the values as [`Tensor::values`] does, as floats.
    pub fn floats(&self, target: Target<'_>) -> Vec<f64> {
        self.values(target).into_iter().map(Scalar::to_f64).collect()
    }
}

fn with_bytes<R>(storage: &Storage, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let _lock = storage.host_lock().write().unwrap_or_else(PoisonError::into_inner);
    let pointer = storage.host_ptr().unwrap();
    // SAFETY: the bytes lie inside the storage, whose write lock is held.
    f(unsafe { std::slice::from_raw_parts_mut(pointer, storage.bytes()) })
}

fn bytes<T: HostElement>(values: impl Iterator<Item = T>) -> Vec<u8> {
    let values: Vec<T> = values.collect();
    let n = size_of_val(values.as_slice());
    // SAFETY: elements are plain data without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), n) }.to_vec()
}

fn element<T: HostElement>(memory: &[u8], index: usize) -> T {
    let bytes = &memory[index * size_of::<T>()..][..size_of::<T>()];
    // SAFETY: the slice has as many bytes as a `T`, and every byte pattern is a valid `T`.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

fn to<T: HostElement>(v: f64) -> T
where
    f64: Cast<T::Compute>,
{
    T::put(v.cast())
}

/// Returns the value that an element of `dtype` has after `value` is stored in it.
pub fn stored(dtype: DType, value: f64) -> f64 {
    dispatch!(dtype, all T => to::<T>(value).get().to_scalar().to_f64())
}

/// Returns deterministic values in the range of the dtype, with zeros and ones, and for floats NaN
/// and infinities.
pub fn samples(dtype: DType, n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut values = Vec::with_capacity(n);
    for _ in 0..n {
        let bits = next();
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        values.push(match (bits % 16, dtype.is_float()) {
            (0, _) => 0.0,
            (1, _) => 1.0,
            (2, true) => f64::NAN,
            (3, true) => f64::INFINITY,
            (4, true) => f64::NEG_INFINITY,
            (_, true) => unit * 8.0 - 4.0,
            (_, false) => (unit * 240.0).floor() - 120.0,
        });
    }
    values.into_iter().map(|v| stored(dtype, v)).collect()
}

/// Returns the relative error that results of a float dtype may have. 0 for integers and bools.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 0.0,
    }
}

/// Asserts that values are close to the expected values. The expected values are first rounded to `dtype`.
#[track_caller]
pub fn assert_close(dtype: DType, actual: &[f64], expected: &[f64], context: &str) {
    assert_eq!(actual.len(), expected.len(), "{context}");
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let e = stored(dtype, e);
        let close = a == e
            || (a.is_nan() && e.is_nan())
            || (a - e).abs() <= tolerance(dtype) * e.abs().max(1.0);
        assert!(close, "{context}, element {i}: {a}, not {e}");
    }
}

/// Layouts of the two operands and the result of an elementwise op. Each is a view of a contiguous
/// tensor.
#[derive(Debug)]
pub struct Shape {
    /// Name, for messages.
    pub name: &'static str,
    /// Sizes of the memory of `a`, `b` and the result.
    pub memory: [&'static [usize]; 3],
    /// View of the memory for each operand and the result.
    pub views: [fn(&Layout) -> Result<Layout>; 3],
}

/// Returns contiguous, broadcast, transposed, sliced, empty, scalar and many-dimensional shapes.
pub fn shapes() -> Vec<Shape> {
    let whole: fn(&Layout) -> Result<Layout> = |l| Ok(l.clone());
    let shape = |name, memory, views| Shape { name, memory, views };
    vec![
        shape("contiguous", [&[5, 13], &[5, 13], &[5, 13]], [whole; 3]),
        shape("several threads", [&[70_001], &[70_001], &[70_001]], [whole; 3]),
        shape("zero-dimensional", [&[], &[], &[]], [whole; 3]),
        shape("empty", [&[3, 0], &[3, 0], &[3, 0]], [whole; 3]),
        shape(
            "a row and a column",
            [&[1, 37], &[21, 1], &[21, 37]],
            [|l| l.expand(&[21, 37]), |l| l.expand(&[21, 37]), whole],
        ),
        shape("a scalar", [&[4, 6], &[], &[4, 6]], [whole, |l| l.expand(&[4, 6]), whole]),
        shape("transposed", [&[7, 33], &[33, 7], &[33, 7]], [|l| l.transpose(0, 1), whole, whole]),
        shape(
            "offset by one",
            [&[41], &[41], &[41]],
            [|l| l.narrow(0, 1, 40), |l| l.narrow(0, 0, 40), |l| l.narrow(0, 1, 40)],
        ),
        shape(
            "every third into every second",
            [&[60, 3], &[60, 3], &[40, 3]],
            [|l| l.slice(0, 0, 60, 3), |l| l.slice(0, 1, 60, 3), |l| l.slice(0, 0, 40, 2)],
        ),
        shape(
            "a broadcast middle",
            [&[2, 1, 3, 5], &[2, 4, 3, 5], &[2, 4, 3, 5]],
            [
                |l| l.expand(&[2, 4, 3, 5])?.permute(&[3, 0, 2, 1]),
                |l| l.permute(&[3, 0, 2, 1]),
                |l| l.permute(&[3, 0, 2, 1]),
            ],
        ),
    ]
}
