//! A program on blocks of the allocator: one stream copies batches to the device, another computes.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;
use warpline_alloc::{AllocError, AllocatorConfig, Block, CachingAllocator};

use crate::Cudarc;

/// Number of batches.
const BATCHES: usize = 200;
/// Floats of the largest batch.
const FLOATS: usize = 1 << 18;

/// Results of [`run`].
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Whether the allocator did not reuse freed memory while `compute` still read it.
    pub kept_while_used: bool,
    /// Whether the allocator reused this memory once `compute` was done.
    pub used_again: bool,
    /// Number of wrong results.
    pub wrong: usize,
    /// Number of blocks that were requested.
    pub requests: i64,
    /// Number of segments or pages that the driver allocated.
    pub device_allocs: i64,
    /// Peak of the bytes that the allocator reserved from the driver.
    pub peak_reserved: i64,
    /// Bytes that the allocator still reserved after `empty_cache`.
    pub left: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hits = 100.0 * (1.0 - self.device_allocs as f64 / self.requests as f64);
        writeln!(f, "wrong results: {}", self.wrong)?;
        writeln!(f, "kept while another stream used it: {}", self.kept_while_used)?;
        writeln!(f, "used again after that: {}", self.used_again)?;
        writeln!(f, "blocks: {}, driver allocations: {}", self.requests, self.device_allocs)?;
        writeln!(f, "served from the cache: {hits:.1} %")?;
        write!(f, "reserved: at most {} bytes, in the end {}", self.peak_reserved, self.left)
    }
}

/// Runs the program in this context.
///
/// # Errors
/// Errors of cudarc's calls, and [`AllocError`] if an allocation fails.
pub fn run(context: &Arc<CudaContext>, config: AllocatorConfig) -> Result<Report, Box<dyn Error>> {
    let module = context.load_module(Ptx::from_src(include_str!("affine.ptx")))?;
    let affine = module.load_function("affine")?;
    let (copies, compute) = (context.new_stream()?, context.new_stream()?);
    let allocator = CachingAllocator::new(Cudarc(context.clone()), config);

    // `compute` reads `x` for 50 ms. Meanwhile `x` is dropped.
    let x = Floats::new(&allocator, FLOATS, &copies)?;
    let y = Floats::new(&allocator, FLOATS, &compute)?;
    let first = x.block.address();
    x.write(&vec![1.0; FLOATS], &copies)?;
    compute.join(&copies)?;
    launch(&affine, &compute, &y, &x, (2.0, 3.0), 50_000_000)?;
    x.block.record_stream(&compute);
    drop(x);
    let other = Floats::new(&allocator, FLOATS, &copies)?;
    let kept_while_used = other.block.address() != first;
    let mut wrong = y.read(&compute)?.iter().filter(|y| **y != 5.0).count();
    drop(other);
    let used_again = Floats::new(&allocator, FLOATS, &copies)?.block.address() == first;
    drop(y);

    for batch in 0..BATCHES {
        let count = FLOATS / (1 + batch % 7);
        let values: Vec<f32> = (0..count).map(|i| ((i + batch) % 1000) as f32).collect();
        // `copies` fills its own block.
        let x = Floats::new(&allocator, count, &copies)?;
        x.write(&values, &copies)?;
        // `compute` reads the block after the copy: cudarc orders the streams with an event.
        compute.join(&copies)?;
        let y = Floats::new(&allocator, count, &compute)?;
        launch(&affine, &compute, &y, &x, (2.0, 1.0), 0)?;
        // The block is reused only after `compute` has read it.
        x.block.record_stream(&compute);
        drop(x);
        let expected = values.iter().map(|x| 2.0 * x + 1.0);
        wrong += y.read(&compute)?.into_iter().zip(expected).filter(|(y, e)| y != e).count();
    }

    let stats = allocator.memory_stats();
    allocator.empty_cache();
    Ok(Report {
        kept_while_used,
        used_again,
        wrong,
        requests: stats.allocation.all.allocated,
        device_allocs: stats.num_device_alloc,
        peak_reserved: stats.reserved_bytes.all.peak,
        left: allocator.memory_reserved(),
    })
}

/// An array of floats in a block. The block's address is a `CUdeviceptr`, which all functions of
/// cudarc take.
struct Floats {
    block: Block<Cudarc>,
    count: usize,
}

impl Floats {
    /// Allocates memory for work on `stream`. Before another stream uses the memory, it must wait
    /// for `stream`, and the use must be recorded with `record_stream`.
    fn new(
        allocator: &CachingAllocator<Cudarc>,
        count: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, AllocError> {
        let block = allocator.malloc(count * size_of::<f32>(), stream)?;
        Ok(Self { block, count })
    }

    fn write(&self, values: &[f32], stream: &CudaStream) -> Result<(), DriverError> {
        assert_eq!(values.len(), self.count);
        stream.context().bind_to_thread()?;
        // SAFETY: the block has room for `values`, and a copy from pageable memory has read them on
        // return.
        unsafe { result::memcpy_htod_async(self.block.address(), values, stream.cu_stream()) }
    }

    fn read(&self, stream: &CudaStream) -> Result<Vec<f32>, DriverError> {
        let mut values = vec![0.0; self.count];
        stream.context().bind_to_thread()?;
        // SAFETY: the block has at least as many bytes as `values`, which live until the stream is
        // synchronized below.
        unsafe {
            result::memcpy_dtoh_async(&mut values, self.block.address(), stream.cu_stream())?;
        }
        stream.synchronize()?;
        Ok(values)
    }
}

/// Launches `y = a * x + b` with cudarc.
fn launch(
    affine: &CudaFunction,
    stream: &Arc<CudaStream>,
    y: &Floats,
    x: &Floats,
    (a, b): (f32, f32),
    nanoseconds: u64,
) -> Result<(), DriverError> {
    assert_eq!(x.count, y.count);
    let (to, from, n) = (y.block.address(), x.block.address(), y.count as u32);
    let mut call = stream.launch_builder(affine);
    call.arg(&to).arg(&from).arg(&a).arg(&b).arg(&n).arg(&nanoseconds);
    // SAFETY: the arguments match the kernel's parameters, and the kernel accesses `n` floats of
    // both blocks, which have `n` floats each.
    unsafe { call.launch(LaunchConfig::for_num_elems(n)) }?;
    Ok(())
}
