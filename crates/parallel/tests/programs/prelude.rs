//! Functions that the programs call. A printed program contains this file.
#![allow(dead_code)] // each program uses only a part

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline::cuda::driver::{CudaMemory, DeviceMemory, Driver, DriverError};
use warpline::{DType, Device, Error, Result, Tensor, cuda};
use warpline_cuda_sys_safe::StreamFlags;
use warpline_cuda_sys_safe::owned;
use warpline_nn::Module;
use warpline_nn::optim::{
    Adadelta, AdadeltaOptions, Adam, AdamOptions, AdamW, AdamWOptions, Optimizer, RMSprop,
    RMSpropOptions, SGD, SGDOptions,
};

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

/// Moves a module to the dtype and device `[dtype, device, …]`. Its parameters become constants that are the same on
/// every device.
pub(crate) fn fixed<M: Module>(mut module: M, n: &[i64]) -> Result<M> {
    module.to((dtype(n[0]), place(n[1])?))?;
    module.requires_grad_(false)?;
    for (k, parameter) in module.parameters().iter().enumerate() {
        let mut numbers = vec![n[0], n[1], k as i64, 0];
        numbers.extend(parameter.size().iter().map(|&n| n as i64));
        parameter.copy_(&pattern(&numbers)?.mul(0.25)?, ())?;
    }
    Ok(module)
}

/// Makes optimizer number `kind` with a learning rate.
pub(crate) fn optimizer(kind: i64, params: &[Tensor], lr: f64) -> Result<Box<dyn Optimizer>> {
    let params = params.to_vec();
    Ok(match kind {
        0 => Box::new(SGD::new(params, SGDOptions::new().lr(lr))?),
        1 => Box::new(AdamW::new(params, AdamWOptions::new().lr(lr))?),
        2 => Box::new(Adam::new(params, AdamOptions::new().lr(lr))?),
        3 => Box::new(RMSprop::new(params, RMSpropOptions::new().lr(lr))?),
        _ => Box::new(Adadelta::new(params, AdadeltaOptions::new().lr(lr))?),
    })
}

/// Fails with [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) unless a fact holds. A row that fails
/// in this way, unlike one that panics, can also run with failing driver calls.
pub(crate) fn holds(fact: bool, what: &'static str) -> Result<()> {
    if fact { Ok(()) } else { Err(Error::invalid("holds", what)) }
}

/// Returns whether the program runs without GPUs.
pub(crate) fn no_gpus() -> Result<bool> {
    Ok(cuda::device_count()? == 0)
}

/// Returns what queries say of a tensor: numbers of dimensions and elements, dtype, size of an element, device,
/// contiguity, and flags of autograd; if there are elements, the offset, and the size and stride of each dimension with
/// several indices.
pub(crate) fn facts(t: &Tensor) -> Result<Vec<i64>> {
    let place = match t.is_cuda() {
        true => (0..2).find(|&k| t.device() == Device::cuda(k)).unwrap_or(9) as i64,
        false => 2,
    };
    let mut facts = vec![
        t.dim() as i64,
        t.numel() as i64,
        t.dtype() as i64,
        t.element_size() as i64,
        place,
        i64::from(t.is_contiguous()),
        i64::from(t.requires_grad()),
        i64::from(t.is_leaf()),
    ];
    if t.numel() > 0 {
        facts.push(t.storage_offset() as i64);
        let steps = t.shape().iter().zip(t.stride()).filter(|(n, _)| **n > 1);
        facts.extend(steps.flat_map(|(&n, &stride)| [n as i64, stride as i64]));
    }
    Ok(facts)
}

/// A temporary folder, which is removed when it is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("warpline-program-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("the folder is removed");
    }
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
