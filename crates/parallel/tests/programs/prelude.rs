//! Functions that the programs call. A printed program contains this file.
#![allow(dead_code)] // each program uses only a part

use std::sync::Arc;

use warpline::cuda::driver::{CudaMemory, DeviceMemory, Driver, DriverError};
use warpline::{DType, Device, Error, Result, Tensor, cuda};
use warpline_cuda_sys_safe::StreamFlags;
use warpline_cuda_sys_safe::owned;

/// Returns the device with a number: 0 and 1 are GPUs, 2 is the host. Without GPUs, every number
/// means the host.
pub(crate) fn place(place: i64) -> Result<Device> {
    let gpus = cuda::device_count()?;
    Ok(if place == 2 || gpus == 0 { Device::Cpu } else { Device::cuda(place as usize) })
}

/// Returns the dtype with a number.
pub(crate) fn dtype(number: i64) -> DType {
    DType::ALL[number as usize]
}

/// Converts numbers to sizes. A negative number becomes a huge size.
pub(crate) fn sizes(numbers: &[i64]) -> Vec<usize> {
    numbers.iter().map(|&number| number as usize).collect()
}

/// Makes a tensor from the numbers `[dtype, device, seed, modulus, sizes…]`. If the modulus is not
/// 0, the elements are integers from 0 to `modulus - 1`. Otherwise they are small integers.
pub(crate) fn pattern(n: &[i64]) -> Result<Tensor> {
    let (dtype, sizes) = (dtype(n[0]), sizes(&n[4..]));
    let value = |i: i64| match (n[3], dtype) {
        (0, DType::Bool) => (i + n[2]) % 3 % 2,
        (0, DType::U8) => (i * 7 + n[2] * 3) % 11,
        (0, _) => (i * 7 + n[2] * 3) % 11 - 5,
        (modulus, _) => (i * 5 + n[2]) % modulus,
    };
    let values: Vec<f64> =
        (0..sizes.iter().product::<usize>() as i64).map(|i| value(i) as f64).collect();
    Tensor::from_vec(values, &sizes, (dtype, place(n[1])?))
}

/// The results of a step: none, one, or several tensors.
pub(crate) trait Results {
    fn list(self) -> Result<Vec<Tensor>>;
}

impl Results for () {
    fn list(self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }
}

impl Results for &Tensor {
    fn list(self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }
}

impl Results for Tensor {
    fn list(self) -> Result<Vec<Tensor>> {
        Ok(vec![self])
    }
}

impl Results for (Tensor, Tensor) {
    fn list(self) -> Result<Vec<Tensor>> {
        Ok(vec![self.0, self.1])
    }
}

impl Results for Vec<Tensor> {
    fn list(self) -> Result<Vec<Tensor>> {
        Ok(self)
    }
}

/// Makes the results of an op contiguous, so that a model can predict their strides.
pub(crate) fn dense(results: Vec<Tensor>) -> Result<Vec<Tensor>> {
    results.iter().map(Tensor::contiguous).collect()
}

/// Reads all elements.
pub(crate) fn read(t: &Tensor) -> Result<Vec<f64>> {
    // Detach, so that autograd does not record ops on a shared handle.
    let t = t.detach();
    if t.dtype().is_float() {
        return t.to((DType::F64, "cpu"))?.to_vec::<f64>();
    }
    Ok(t.to((DType::I64, "cpu"))?.to_vec::<i64>()?.into_iter().map(|v| v as f64).collect())
}

/// Returns the error of closures that fail on purpose.
pub(crate) fn own_error() -> Error {
    Error::invalid("own", "the program's own error")
}

/// A value that may convert into memory for a pool.
struct Offer<T>(T);

/// Converts an offer. The compiler prefers this trait if the conversion exists.
trait Accepted {
    fn convert(self) -> Option<CudaMemory>;
}

impl<T: Into<CudaMemory>> Accepted for Offer<T> {
    fn convert(self) -> Option<CudaMemory> {
        Some(self.0.into())
    }
}

/// Refuses an offer.
trait Refused {
    fn convert(self) -> Option<CudaMemory>;
}

impl<T> Refused for &Offer<T> {
    fn convert(self) -> Option<CudaMemory> {
        None
    }
}

/// Source of a pool. Offers memory of a stream-ordered pool, which may be used only in the order of its stream. The
/// library must refuse such memory, and the source then returns other memory.
pub(crate) fn memory(
    driver: &Arc<dyn Driver>,
    device: usize,
    bytes: usize,
) -> std::result::Result<CudaMemory, DriverError> {
    let flags = StreamFlags { non_blocking: true, ..StreamFlags::default() };
    let stream = owned::Stream::new(driver, device, flags)?;
    let ordered = owned::MemPool::new(driver, device)?.alloc(bytes, &stream)?;
    match Offer(ordered).convert() {
        Some(memory) => Ok(memory),
        None => Ok(DeviceMemory::new(driver, device, bytes)?.into()),
    }
}
