//! Options of `DataParallel`.

use warpline::{Device, Error, ErrorKind, Integer, IntoDevice as _, Result, Runtime};

use super::DataParallelError;

/// Options of [`super::DataParallel`]: GPUs, output device and batch dimension.
///
/// ```
/// use warpline_parallel::DataParallelOptions;
///
/// let options = DataParallelOptions::new().device_ids(&[2, 0]).output_device("cpu").dim(1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DataParallelOptions {
    device_ids: Option<Vec<usize>>,
    output_device: Option<OutputDevice>,
    pub(super) dim: isize,
}

/// The device on which outputs are gathered. Converts from a [`Device`], a name such as `"cpu"`, and the index of a
/// GPU, where -1 is the CPU.
#[derive(Clone, Debug)]
pub struct OutputDevice(DeviceSpec);

#[derive(Clone, Debug)]
enum DeviceSpec {
    Device(Device),
    Text(String),
    Number(i32),
}

impl From<Device> for OutputDevice {
    fn from(device: Device) -> Self {
        Self(DeviceSpec::Device(device))
    }
}

impl From<&str> for OutputDevice {
    fn from(text: &str) -> Self {
        Self(DeviceSpec::Text(text.into()))
    }
}

impl From<usize> for OutputDevice {
    fn from(index: usize) -> Self {
        Self(DeviceSpec::Device(Device::cuda(index)))
    }
}

impl From<i32> for OutputDevice {
    fn from(number: i32) -> Self {
        Self(DeviceSpec::Number(number))
    }
}

impl OutputDevice {
    #[track_caller]
    fn device(&self, runtime: &Runtime) -> Result<Device> {
        let device = match &self.0 {
            DeviceSpec::Device(device) => *device,
            DeviceSpec::Text(text) => text.into_device()?,
            DeviceSpec::Number(-1) => Device::Cpu,
            DeviceSpec::Number(number) => match usize::try_from(*number) {
                Ok(index) => Device::cuda(index),
                Err(_) => {
                    return Err(DataParallelError::OutputDevice { output_device: *number }.into());
                }
            },
        };
        let Device::Cuda(index) = device else { return Ok(device) };
        let index = match index {
            Some(index) => index,
            None => runtime.devices()?.current_device(),
        };
        runtime.device(index)?;
        Ok(Device::cuda(index))
    }
}

impl From<()> for DataParallelOptions {
    fn from((): ()) -> Self {
        Self::new()
    }
}

impl DataParallelOptions {
    /// Creates options with the defaults: all GPUs, outputs on the first GPU, batch dimension 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the indices of the GPUs. The module must be on the first of them. Default: all GPUs.
    #[must_use]
    pub fn device_ids(mut self, device_ids: &[usize]) -> Self {
        self.device_ids = Some(device_ids.to_vec());
        self
    }

    /// Sets the device on which outputs are gathered. It need not be one of the GPUs that compute. Default: the first
    /// of these GPUs.
    #[must_use]
    pub fn output_device(mut self, device: impl Into<OutputDevice>) -> Self {
        self.output_device = Some(device.into());
        self
    }

    /// Sets the dimension along which inputs are split and outputs are concatenated. Negative: counted from the end.
    /// Default: 0.
    #[must_use]
    pub fn dim(mut self, dim: impl Integer) -> Self {
        self.dim = dim.into_isize();
        self
    }

    /// Returns the GPUs and the output device. Without GPUs, ignores the options and returns an empty list and the CPU.
    #[track_caller]
    pub(super) fn devices(&self, runtime: &Runtime) -> Result<(Vec<usize>, Device)> {
        let count = match runtime.devices() {
            Ok(devices) => devices.count(),
            Err(error) if matches!(error.kind(), ErrorKind::CudaUnavailable { .. }) => {
                return Ok((Vec::new(), Device::Cpu));
            }
            Err(error) => return Err(error),
        };
        let device_ids = self.device_ids.clone().unwrap_or_else(|| (0..count).collect());
        let refused = |reason| {
            Error::from(DataParallelError::DeviceIds { device_ids: device_ids.clone(), reason })
        };
        let Some(&first) = device_ids.first() else { return Err(refused("the list is empty")) };
        for (i, &device) in device_ids.iter().enumerate() {
            runtime.device(device)?;
            if device_ids[..i].contains(&device) {
                return Err(refused("a device occurs twice"));
            }
        }
        let output_device = match &self.output_device {
            None => Device::cuda(first),
            Some(output_device) => output_device.device(runtime)?,
        };
        let sizes = device_ids.iter().map(|&device| gpu_size(runtime, device));
        if let Some(warning) = imbalance(&sizes.collect::<Result<Vec<_>>>()?) {
            warpline::__warn(&warning);
        }
        Ok((device_ids, output_device))
    }
}

/// Index of a GPU, its memory in bytes, and its number of multiprocessors.
type GpuSize = (usize, [u64; 2]);

fn gpu_size(runtime: &Runtime, device: usize) -> Result<GpuSize> {
    let properties = runtime.device(device)?.device().properties();
    let memory = properties.total_memory as u64;
    Ok((device, [memory, u64::from(properties.multiprocessor_count)]))
}

/// Returns PyTorch's warning if the smallest GPU has less than three quarters of the memory or multiprocessors of the
/// largest GPU.
fn imbalance(sizes: &[GpuSize]) -> Option<String> {
    [0, 1].into_iter().find_map(|what| {
        let least = sizes.iter().min_by_key(|(_, size)| size[what])?;
        let most = sizes.iter().max_by_key(|(_, size)| size[what])?;
        (4 * least.1[what] < 3 * most.1[what]).then(|| imbalance_warning(least.0, most.0))
    })
}

fn imbalance_warning(least: usize, most: usize) -> String {
    format!(
        "There is an imbalance between your GPUs. You may want to exclude GPU {least} which has less than 75% of the memory or cores of GPU {most}. You can do so by setting the device_ids argument to DataParallel, or by setting the CUDA_VISIBLE_DEVICES environment variable."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_below_three_quarters_of_the_largest_causes_a_warning() {
        let device = |i, memory, cores| (i, [memory, cores]);
        assert_eq!(imbalance(&[device(0, 100, 132)]), None);
        assert_eq!(imbalance(&[device(0, 100, 132), device(1, 75, 99)]), None);
        let memory = imbalance(&[device(2, 74, 132), device(0, 100, 132), device(1, 90, 132)]);
        let memory = memory.expect("a warning");
        assert!(memory.contains("exclude GPU 2 which") && memory.contains("of GPU 0."), "{memory}");
        let cores = imbalance(&[device(0, 100, 132), device(1, 100, 98)]).expect("a warning");
        assert!(cores.contains("exclude GPU 1 which"), "{cores}");
    }
}
