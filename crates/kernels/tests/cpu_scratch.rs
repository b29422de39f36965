//! Tests of the memory that CPU ops allocate. It must not grow with the size of an expanded
//! operand, because a failed allocation inside an op aborts the process.

use std::alloc::{GlobalAlloc, Layout as Bytes, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use warpline_cuda_sys_safe::DriverError;
use warpline_kernels::matmul::matmul;
use warpline_kernels::reduce::{ReduceOp, reduce};
use warpline_kernels::softmax::softmax;
use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Storage, Target, View};

/// An allocator that forwards to the system's, and counts the allocated bytes and their maximum.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system's allocator, which fulfills the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Bytes) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller guarantees that the size of the layout is not zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Bytes) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `alloc` got `at` from `System` with this layout, and the caller frees it once.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the maximum number of bytes that are allocated while `f` runs, beyond those allocated
/// before.
fn peak(f: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    f();
    PEAK.load(Relaxed) - before
}

struct Tensor(Storage, Layout, DType);

impl Tensor {
    fn new(runtime: &Runtime, dtype: DType, sizes: &[usize]) -> Self {
        let layout = Layout::contiguous(sizes).unwrap();
        Self(Storage::pageable(runtime, layout.numel() * dtype.size()).unwrap(), layout, dtype)
    }

    fn expand(&self, sizes: &[usize]) -> Self {
        Self(self.0.clone(), self.1.expand(sizes).unwrap(), self.2)
    }

    fn view(&self) -> View<'_> {
        View { storage: &self.0, layout: &self.1, dtype: self.2 }
    }
}

// There is only one test in this file, because allocations of tests that run at the same time would
// be counted.
#[test]
fn expanded_operands_need_no_more_memory() {
    let reason = DriverError::NoDevice { reason: "this test runs on the CPU".into() };
    let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
    let target = Target::Cpu(&runtime);
    const MIB: usize = 1 << 20;

    for dtype in [DType::F16, DType::BF16, DType::F32, DType::I64] {
        let one = Tensor::new(&runtime, dtype, &[1, 1]);
        let out = Tensor::new(&runtime, dtype, &[1, 1]);
        let k = 1 << 24;
        let (a, b) = (one.expand(&[1, k]), one.expand(&[k, 1]));
        let needed = peak(|| matmul(target, a.view(), b.view(), out.view()).unwrap());
        assert!(needed < 16 * MIB, "matmul of {dtype} over {k}: {needed} bytes");

        let n = 1 << 22;
        let (b, out) = (one.expand(&[1, n]), Tensor::new(&runtime, dtype, &[1, n]));
        let needed = peak(|| matmul(target, one.view(), b.view(), out.view()).unwrap());
        assert!(needed < 16 * MIB, "matmul of {dtype} into {n} columns: {needed} bytes");
    }

    let n = 1 << 23;
    let (a, out) =
        (Tensor::new(&runtime, DType::F16, &[1]), Tensor::new(&runtime, DType::F16, &[n]));
    let a = a.expand(&[n]);
    let needed = peak(|| softmax(target, a.view(), 0, out.view(), false).unwrap());
    assert!(needed < 16 * MIB, "softmax of {n}: {needed} bytes");

    let (a, out) = (Tensor::new(&runtime, DType::U8, &[1]), Tensor::new(&runtime, DType::I64, &[]));
    let n = 1 << 30;
    let a = a.expand(&[n]);
    let needed = peak(|| reduce(target, ReduceOp::Sum, a.view(), &[0], out.view()).unwrap());
    assert!(needed < MIB / 8, "sum of {n}: {needed} bytes");
}
